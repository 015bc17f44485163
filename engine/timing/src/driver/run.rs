//! One run: a scheme on a machine, fed with a trace.
//!
//! Phases come with the trace's pieces ([`Phase`]): what is warmed, what runs with its clock, what is
//! counted. While nothing is counted, counts are put aside ([`crate::counts`]).

use std::sync::Arc;

use flatwalk_os::{LargePages, OsError};
use flatwalk_paging::{AccessKind, Address, Gva, Hpa, Layout};
use flatwalk_trace::{Access, Event, SourceInfo, ThreadId};

use crate::ConfigError;
pub use crate::config::run::{GuestFrames, Mode, RunConfiguration};
use crate::config::scheme::TranslationMode;
use crate::core::Environment;
use crate::core::decode::DecodedBlock;
use crate::core::stack::{CycleStack, Part};
use crate::counts::{Aside, Visitor, forget};
use crate::driver::look_ahead::{self, LookAhead};
use crate::driver::parts::{self, Timed};
use crate::driver::sampling::Phase;
use crate::mechanisms::{self, Setup};
use crate::memory::hierarchy::Requester;
use crate::memory::line::LINE_SHIFT;
use crate::memory::reader::{NoClock, TableReader, Warming};
use crate::mmu::Mmu;
use crate::mmu::blame::Blame;
use crate::mmu::event::Request;
use crate::mmu::mechanism::{Mechanism, Observation, ResultView};
use crate::system::System;
use crate::system::costs::Costs;
use crate::system::relocate::Relocation;

/// One piece of a stretch of the trace, decoded once for all runs.
#[derive(Clone, Debug)]
pub enum Piece {
    /// The next block identifier means this.
    Define(Arc<DecodedBlock>),
    /// A thread runs.
    Slice(flatwalk_trace::Slice),
    /// The address space changes.
    Event(Event),
    /// Another phase begins, or another window, before instruction `at` of the program.
    Phase {
        /// The phase.
        phase: Phase,
        /// Instructions that the program has executed, of all its threads.
        at: u64,
    },
}

/// What was counted, in a window or when it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Instructions that the program had executed before the window.
    pub at: u64,
    /// Instructions.
    pub instructions: u64,
    /// Cycles; 0 in functional mode.
    pub cycles: u64,
    /// Page walks.
    pub walks: u64,
    /// Entries that they read.
    pub walk_accesses: u64,
    /// Their latencies, summed.
    pub walk_latency_cycles: u64,
    /// Of these, waiting for a walker.
    pub walk_queue_cycles: u64,
    /// Page faults that the host answered.
    pub host_faults: u64,
    /// What the operating system counted.
    pub os: flatwalk_os::Statistics,
    /// What the cycles went to.
    pub stack: CycleStack,
}

impl Tally {
    /// What came between `start` and now.
    fn since(self, start: Self) -> Self {
        Self {
            at: start.at,
            instructions: self.instructions - start.instructions,
            cycles: self.cycles - start.cycles,
            walks: self.walks - start.walks,
            walk_accesses: self.walk_accesses - start.walk_accesses,
            walk_latency_cycles: self.walk_latency_cycles - start.walk_latency_cycles,
            walk_queue_cycles: self.walk_queue_cycles - start.walk_queue_cycles,
            host_faults: self.host_faults - start.host_faults,
            os: self.os - start.os,
            stack: self.stack.since(start.stack),
        }
    }
}

/// When other processes take the core.
#[derive(Clone, Copy, Debug)]
struct Switches {
    /// Cycles between them; `None`: never.
    every: Option<u64>,
    /// Cycle of the next.
    next: u64,
    /// Instructions at which the clock is looked at next.
    look: u64,
    /// So far, in the measured part.
    count: u64,
}

/// Instructions between two looks at the clock.
const CLOCK: u64 = 10_000;

/// A run in progress.
pub struct Run {
    pub(crate) configuration: RunConfiguration,
    pub(crate) system: System,
    pub(crate) mmu: Mmu,
    pub(crate) timed: Option<Timed>,
    relocation: Option<Relocation>,
    blocks: Vec<Arc<DecodedBlock>>,
    thread: Option<ThreadId>,
    /// Page of the last fetch and where it lies, while no time passes.
    code_page: (u64, Hpa),
    /// Line of the last fetch, while caches are warmed.
    code_line: u64,
    /// All instructions, measured or not.
    instructions: u64,
    counts: Counts,
    phase: Phase,
    /// Windows that have ended.
    windows: Vec<Tally>,
    /// What had been counted when the window under way began.
    window: Option<Tally>,
    /// What was counted in windows, while none is under way.
    aside: Option<Aside>,
    /// Instructions and cycles of the last window.
    pace: (u64, u64),
    /// Instructions at which a mechanism looks at the run next.
    observation: u64,
    switches: Switches,
    /// Cycles to merge a node, or to take one apart, of the process's own table and of the host's.
    merge_cycles: [u64; 2],
    /// Scratch for relocated addresses.
    relocated: Vec<u64>,
    last_address: u64,
    look_ahead: LookAhead,
}

/// What a run counts itself.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    instructions: u64,
    loads: u64,
    stores: u64,
}

impl Run {
    /// A run of `configuration` over a trace described by `info`; all is counted unless phases say
    /// otherwise.
    ///
    /// # Errors
    /// When the configuration cannot be.
    pub fn new(
        configuration: RunConfiguration,
        info: &SourceInfo,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        let RunConfiguration { scheme, machine, .. } = &configuration;
        configuration.validate()?;
        let layout = scheme.layout()?;
        let geometry = layout.geometry();
        let relocation =
            Relocation::new(&info.touched, geometry).map_err(|bytes| ConfigError::DoesNotFit {
                bytes,
                levels: scheme.table.levels,
                scheme: scheme.name.clone(),
            })?;
        let moved = |address| relocation.as_ref().map_or(address, |r| r.address(address));
        let touched: Vec<_> =
            info.touched.iter().map(|&(from, to)| (moved(from), moved(to - 1) + 1)).collect();
        let large_pages = match (configuration.large_pages, configuration.thp) {
            (_, Some(thp)) => LargePages::Transparent(thp),
            (percent, None) => LargePages::share(percent.unwrap_or(0), &touched, geometry)?,
        };
        let memory_bytes = configuration.memory_bytes.unwrap_or(machine.os.memory_bytes);
        let host_layout = match &scheme.host {
            Some(host) => Some(host.layout()?),
            None => None,
        };
        let mut setup = Setup::new(
            (scheme, machine),
            parts::table_setup(&layout),
            host_layout.as_ref().map(parts::table_setup),
            &touched,
            memory_bytes,
        );
        let mechanisms = mechanisms::build(&mut setup)?;
        let layouts = (&layout, host_layout.as_ref());
        let system = parts::system(&configuration, &mut setup, layouts, large_pages, seed)?;
        let timed = parts::timed(&configuration, setup.take_policies(), seed)?;
        let mut walker = parts::walker(scheme, machine, layouts)?;
        if let Some(segment) = setup.guest_segment.take() {
            walker.set_guest_segment(segment);
        }
        if let Some(segment) = setup.host_segment.take() {
            walker.set_host_segment(segment);
        }
        let free = scheme.translation == TranslationMode::Free;
        let blame = Blame::new(relocation.clone());
        let mmu = Mmu::new(machine, geometry, walker, mechanisms, free, blame);
        let observation = next_observation(&mmu);
        let merge_us =
            [Some(&layout), host_layout.as_ref()].map(|l| l.map_or(0.0, Layout::merge_us));
        let merge_cycles = merge_us.map(|us| machine.cycles(1000.0 * us));
        let every = configuration.context_switch_ms.map(|ms| machine.cycles(1e6 * ms));
        let switches = Switches {
            every,
            next: every.unwrap_or(u64::MAX),
            look: if every.is_some() { CLOCK } else { u64::MAX },
            count: 0,
        };
        Ok(Self {
            configuration,
            system,
            mmu,
            timed,
            relocation,
            blocks: Vec::new(),
            thread: None,
            code_page: no_page(),
            code_line: u64::MAX,
            instructions: 0,
            counts: Counts::default(),
            phase: Phase::Measured,
            windows: Vec::new(),
            window: Some(Tally::default()),
            aside: None,
            pace: (0, 0),
            observation,
            switches,
            merge_cycles,
            relocated: Vec::new(),
            last_address: 0,
            look_ahead: LookAhead::default(),
        })
    }

    /// Instructions run so far, measured or not.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Instructions measured, loads, stores.
    pub(crate) fn measured(&self) -> (u64, u64, u64) {
        match &self.timed {
            Some((core, _)) => {
                let s = core.statistics;
                (s.instructions, s.loads, s.stores)
            }
            None => (self.counts.instructions, self.counts.loads, self.counts.stores),
        }
    }

    /// The windows measured so far, the one under way included.
    pub(crate) fn windows(&self) -> impl Iterator<Item = Tally> {
        let under_way = self.window.map(|start| self.tally().since(start));
        let under_way = under_way.filter(|window| window.instructions > 0);
        self.windows.iter().copied().chain(under_way)
    }

    /// True if something was measured; if not, all that was run is counted.
    pub(crate) fn has_measured(&self) -> bool {
        self.windows().next().is_some()
    }

    /// The sum of what `of` gives of each window, or of all that was run if nothing was measured.
    fn measured_sum<T: Default + std::ops::AddAssign>(&self, of: impl Fn(Tally) -> T) -> T {
        if !self.has_measured() {
            return of(self.tally());
        }
        self.windows().fold(T::default(), |mut sum, window| {
            sum += of(window);
            sum
        })
    }

    /// Cycles measured.
    pub(crate) fn cycles(&self) -> Option<u64> {
        self.timed.as_ref().map(|_| self.measured_sum(|window| window.cycles))
    }

    /// What the measured cycles went to; they add up to [`Self::cycles`]. Empty without a clock.
    pub(crate) fn cycle_stack(&self) -> impl Iterator<Item = (Part, u64)> {
        let timed = self.timed.as_ref().zip(self.cycles());
        timed.into_iter().flat_map(|((core, _), cycles)| core.statistics.stack.parts(cycles))
    }

    /// What the operating system counted in the measured part.
    pub(crate) fn os_measured(&self) -> flatwalk_os::Statistics {
        self.measured_sum(|window| window.os)
    }

    /// Faults that the host answered in the measured part; `None` without a host.
    pub(crate) fn host_faults(&self) -> Option<u64> {
        self.system.host_statistics().map(|_| self.measured_sum(|window| window.host_faults))
    }

    /// What is counted now.
    fn tally(&self) -> Tally {
        let walks = &self.mmu.statistics;
        let total = walks.total();
        Tally {
            at: 0,
            instructions: self.instructions,
            cycles: self.timed.as_ref().map_or(0, |(core, _)| core.cycle()),
            walks: total.walks,
            walk_accesses: total.accesses,
            walk_latency_cycles: total.latency_cycles,
            walk_queue_cycles: walks.queue_cycles,
            host_faults: self.system.host_statistics().map_or(0, |s| s.faults),
            os: self.system.statistics(),
            stack: self
                .timed
                .as_ref()
                .map_or_else(CycleStack::default, |(core, _)| core.statistics.stack),
        }
    }

    /// What mechanisms may look at when they write their results.
    pub(crate) fn view(&self) -> ResultView<'_> {
        ResultView {
            system: &self.system,
            walker: self.mmu.walker(),
            caches: self.timed.as_ref().map(|(_, caches)| &**caches),
            instructions: self.measured().0,
        }
    }

    /// True if addresses had to be moved to fit the scheme's geometry.
    pub(crate) fn is_relocated(&self) -> bool {
        self.relocation.is_some()
    }

    /// Where the trace's `address` lies in this run's address space.
    pub(crate) fn relocated_address(&self, address: u64) -> u64 {
        self.relocation.as_ref().map_or(address, |r| r.address(address))
    }

    /// What the block `id` of the trace is.
    pub(crate) fn block(&self, id: u32) -> &DecodedBlock {
        &self.blocks[id as usize]
    }

    /// True while a mechanism protects page-table lines in the caches.
    pub(crate) fn protects_page_tables(&self) -> bool {
        self.mmu.mechanisms().any(Mechanism::protects_page_tables)
    }

    /// The last data address used.
    pub fn last_address(&self) -> u64 {
        self.last_address
    }

    /// Takes one piece of the trace.
    ///
    /// # Errors
    /// When the operating system runs out of memory or addresses.
    pub fn take(&mut self, piece: &Piece) -> Result<(), OsError> {
        match piece {
            Piece::Define(block) => {
                let block = match &self.relocation {
                    None => Arc::clone(block),
                    Some(relocation) => {
                        let mut block = DecodedBlock::clone(block);
                        for op in &mut block.ops {
                            op.pc = relocation.address(op.pc);
                        }
                        for line in &mut block.lines {
                            *line = relocation.address(*line);
                        }
                        block.fall_through = block.fall_through.map(|a| relocation.address(a));
                        Arc::new(block)
                    }
                };
                self.blocks.push(block);
                Ok(())
            }
            &Piece::Phase { phase, at } => {
                self.enter(phase, at);
                Ok(())
            }
            Piece::Event(event @ Event::Name { .. }) => {
                self.mmu.blame.apply(event);
                Ok(())
            }
            Piece::Event(event) => {
                self.mmu.blame.apply(event);
                match &self.relocation {
                    None => self.event(event),
                    Some(relocation) => {
                        relocation.event(event).iter().try_for_each(|event| self.event(event))
                    }
                }
            }
            Piece::Slice(slice) => {
                if self.thread != Some(slice.thread) {
                    self.thread = Some(slice.thread);
                    if let Some((core, _)) = &mut self.timed {
                        core.drain();
                    }
                }
                if let Some(relocation) = &self.relocation {
                    let mut addresses = std::mem::take(&mut self.relocated);
                    addresses.clear();
                    addresses.extend(slice.addresses.iter().map(|&a| relocation.address(a)));
                    let result = self.slice(&slice.blocks, &addresses);
                    self.relocated = addresses;
                    result
                } else {
                    self.slice(&slice.blocks, &slice.addresses)
                }
            }
        }
    }

    fn event(&mut self, event: &Event) -> Result<(), OsError> {
        if matches!(event, Event::Root { .. } | Event::Entry { .. }) {
            // Of a recorded machine's tables: nothing that happens in ours, and no work of a kernel's.
            if self.configuration.scheme.recorded {
                let (_, flushes) = self.system.apply(event)?;
                self.mmu.carry_out(&flushes);
                self.code_page = no_page();
            }
            return Ok(());
        }
        let (work, flushes) = self.system.apply(event)?;
        self.mmu.carry_out(&flushes);
        self.code_page = no_page();
        // Populating and gaps stand for a part of the program that is not in the trace: no time.
        if let Some((core, caches)) = &mut self.timed
            && !matches!(event, Event::Populate { .. } | Event::Gap { .. })
        {
            if matches!(self.phase, Phase::Pass | Phase::Warm) {
                core.drain();
                return Ok(());
            }
            let costs = costs(&self.configuration, self.merge_cycles);
            core.kernel(costs.call(&work, caches.l1d_latency()));
        }
        Ok(())
    }

    fn slice(&mut self, blocks: &[u32], addresses: &[u64]) -> Result<(), OsError> {
        self.last_address = addresses.last().copied().unwrap_or(self.last_address);
        let mut rest = addresses;
        let mut done = 0;
        while done < blocks.len() {
            // To the end, or to the instruction at which something is to be looked at.
            let stop = self.next_stop();
            let used = match (&self.timed, self.phase) {
                (None, _) => self.run_functional(&blocks[done..], &mut rest, stop)?,
                (Some(_), Phase::Pass | Phase::Warm) => {
                    self.run_warm(&blocks[done..], &mut rest, stop)?
                }
                (Some(_), Phase::Detailed | Phase::Measured) => {
                    self.run_timed(&blocks[done..], &mut rest, stop)?
                }
            };
            done += used;
            if self.instructions >= stop {
                self.look();
            }
        }
        Ok(())
    }

    /// Instruction count at which something is to be looked at.
    fn next_stop(&self) -> u64 {
        self.observation.min(self.switches.look)
    }

    /// Lets another process take the core and give it back, if it is time.
    fn switch_context(&mut self) {
        let (Some(every), Some((core, _))) = (self.switches.every, &mut self.timed) else { return };
        self.switches.look = self.instructions + CLOCK;
        if self.phase == Phase::Warm {
            // Time goes on as fast as it did where it was measured.
            let (instructions, cycles) = self.pace;
            core.pass((CLOCK * cycles).checked_div(instructions).unwrap_or(CLOCK));
        }
        if core.cycle() < self.switches.next {
            return;
        }
        self.switches.next = core.cycle() + every;
        self.switches.count += u64::from(self.phase == Phase::Measured);
        core.drain();
        self.mmu.switch_context();
    }

    /// Times that another process took the core, in the measured part; `None` where none does.
    pub(crate) fn context_switches(&self) -> Option<u64> {
        self.switches.every.map(|_| self.switches.count)
    }

    /// Runs blocks until `stop` instructions; returns how many blocks.
    fn run_timed(
        &mut self,
        blocks: &[u32],
        rest: &mut &[u64],
        stop: u64,
    ) -> Result<usize, OsError> {
        let Some((core, caches)) = &mut self.timed else { return Ok(blocks.len()) };
        let mut env = Environment {
            mmu: &mut self.mmu,
            caches,
            system: &mut self.system,
            costs: costs(&self.configuration, self.merge_cycles),
        };
        for (i, &id) in blocks.iter().enumerate() {
            let block = &*self.blocks[id as usize];
            let (addresses, remaining) = rest.split_at(block.accesses.len());
            *rest = remaining;
            self.look_ahead.look(
                look_ahead::window(remaining, addresses.len()),
                env.system,
                Some(env.caches),
            );
            core.run(block, addresses, &mut env)?;
            self.instructions += block.ops.len() as u64;
            if self.instructions >= stop {
                return Ok(i + 1);
            }
        }
        Ok(blocks.len())
    }

    /// The same without a clock.
    fn run_functional(
        &mut self,
        blocks: &[u32],
        rest: &mut &[u64],
        stop: u64,
    ) -> Result<usize, OsError> {
        let (mmu, system) = (&mut self.mmu, &mut self.system);
        let mut untimed = Untimed { mmu, system, reader: NoClock, at: 0 };
        let fetches = untimed.mmu.translates_fetches();
        for (i, &id) in blocks.iter().enumerate() {
            let block = &*self.blocks[id as usize];
            let (addresses, remaining) = rest.split_at(block.accesses.len());
            *rest = remaining;
            self.look_ahead.look(
                look_ahead::window(remaining, addresses.len()),
                untimed.system,
                None,
            );
            if fetches {
                let last = block.ops[block.ops.len() - 1].pc;
                for pc in [block.pc(), last] {
                    if pc >> 12 != self.code_page.0 {
                        let physical = untimed.translate(pc, AccessKind::Fetch, || pc)?;
                        self.code_page = (pc >> 12, physical);
                    }
                }
            }
            for (access, &address) in block.accesses.iter().zip(addresses) {
                let kind = if access.store { AccessKind::Store } else { AccessKind::Load };
                let instruction = || block.instruction(access);
                untimed.translate(address, kind, instruction)?;
                let last = address.wrapping_add(u64::from(access.size.max(1)) - 1);
                if last >> 12 != address >> 12 {
                    untimed.translate_rest(last, kind, instruction())?;
                }
            }
            let n = block.ops.len() as u64;
            let loads = u64::from(block.loads);
            self.instructions += n;
            self.counts.instructions += n;
            self.counts.loads += loads;
            self.counts.stores += addresses.len() as u64 - loads;
            if self.instructions >= stop {
                return Ok(i + 1);
            }
        }
        Ok(blocks.len())
    }

    /// The same, and what caches, memory's rows and branch predictors hold changes as if time had passed.
    fn run_warm(&mut self, blocks: &[u32], rest: &mut &[u64], stop: u64) -> Result<usize, OsError> {
        let Some((core, caches)) = &mut self.timed else { return Ok(blocks.len()) };
        let (mmu, system) = (&mut self.mmu, &mut self.system);
        let mut untimed = Untimed { mmu, system, reader: Warming(caches), at: core.cycle() };
        let fetches = untimed.mmu.translates_fetches();
        for (i, &id) in blocks.iter().enumerate() {
            let block = &*self.blocks[id as usize];
            let (addresses, remaining) = rest.split_at(block.accesses.len());
            *rest = remaining;
            let soon = look_ahead::window(remaining, addresses.len());
            self.look_ahead.look(soon, untimed.system, Some(&*untimed.reader.0));
            core.warm(block);
            for &pc in &block.lines {
                if pc >> LINE_SHIFT == self.code_line {
                    continue;
                }
                self.code_line = pc >> LINE_SHIFT;
                if pc >> 12 != self.code_page.0 {
                    let physical = if fetches {
                        untimed.translate(pc, AccessKind::Fetch, || pc)?
                    } else {
                        Hpa::new(pc)
                    };
                    self.code_page = (pc >> 12, Hpa::new(physical.raw() & !0xfff));
                }
                let physical = self.code_page.1.offset(pc & 0xfff);
                untimed.reader.0.warm(physical, false, Requester::Fetch);
            }
            for (access, &address) in block.accesses.iter().zip(addresses) {
                untimed.access(address, *access, || block.instruction(access))?;
            }
            self.instructions += block.ops.len() as u64;
            if self.instructions >= stop {
                return Ok(i + 1);
            }
        }
        Ok(blocks.len())
    }

    /// Another phase begins, or another window, before instruction `at` of the program.
    fn enter(&mut self, phase: Phase, at: u64) {
        if let Some(start) = self.window.take() {
            let window = self.tally().since(start);
            if window.instructions > 0 {
                self.pace = (window.instructions, window.cycles);
                self.windows.push(window);
            }
        }
        let was_measured = self.phase == Phase::Measured && !self.windows.is_empty();
        let is_measured = phase == Phase::Measured;
        self.phase = phase;
        if was_measured && !is_measured {
            self.look_at_measurement(|mechanism, now| mechanism.measurement_ends(now));
            self.aside = Some(Aside::take(|visit| self.counts(visit)));
        }
        if is_measured && !was_measured {
            match self.aside.take() {
                Some(aside) => aside.put_back(|visit| self.counts(visit)),
                None => forget(|visit| self.counts(visit)),
            }
            self.look_at_measurement(|mechanism, now| mechanism.measurement_begins(now));
            self.observation = next_observation(&self.mmu);
        }
        if is_measured {
            self.window = Some(Tally { at, ..self.tally() });
        }
        if let (Some((core, _)), Phase::Pass | Phase::Warm) = (&mut self.timed, phase) {
            core.drain();
        }
    }

    /// The trace has ended: counts that were put aside are there to be read.
    pub(crate) fn end(&mut self) {
        if let Some(aside) = self.aside.take() {
            aside.put_back(|visit| self.counts(visit));
        }
    }

    /// Shows all counts of the measured part.
    fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.counts);
        visit(&mut self.switches.count);
        self.mmu.counts(visit);
        if let Some((core, caches)) = &mut self.timed {
            core.counts(visit);
            caches.counts(visit);
        }
    }

    /// Tells the mechanisms that what is measured begins or ends.
    fn look_at_measurement(&mut self, tell: fn(&mut dyn Mechanism, &mut Observation<'_>)) {
        let (instructions, l2_tlb_misses) = (self.instructions, self.mmu.l2_tlb_misses());
        for mechanism in self.mmu.mechanisms_mut() {
            let caches = self.timed.as_mut().map(|(_, caches)| &mut **caches);
            tell(&mut **mechanism, &mut Observation { instructions, l2_tlb_misses, caches });
        }
    }

    /// Lets another process or mechanisms have their look.
    fn look(&mut self) {
        let now = self.instructions;
        if now >= self.switches.look {
            self.switch_context();
        }
        if now >= self.observation {
            self.observe(now);
        }
    }

    /// Lets the mechanisms look at the run that want to.
    fn observe(&mut self, instructions: u64) {
        let l2_tlb_misses = self.mmu.l2_tlb_misses();
        for mechanism in self.mmu.mechanisms_mut() {
            if instructions >= mechanism.next_observation() {
                let caches = self.timed.as_mut().map(|(_, caches)| &mut **caches);
                mechanism.observe(&mut Observation { instructions, l2_tlb_misses, caches });
            }
        }
        self.observation = next_observation(&self.mmu);
    }
}

/// No page of code.
fn no_page() -> (u64, Hpa) {
    (u64::MAX, Hpa::default())
}

/// Instructions at which a mechanism wants to look at the run next.
fn next_observation(mmu: &Mmu) -> u64 {
    mmu.mechanisms().map(Mechanism::next_observation).min().unwrap_or(u64::MAX)
}

/// What works while no time passes.
struct Untimed<'a, R> {
    mmu: &'a mut Mmu,
    system: &'a mut System,
    reader: R,
    /// The cycle that it is all the time.
    at: u64,
}

impl Untimed<'_, Warming<'_>> {
    /// An access that goes through the caches; `instruction` gives the address of its instruction.
    #[inline]
    fn access(
        &mut self,
        address: u64,
        Access { size, store, .. }: Access,
        instruction: impl Fn() -> u64 + Copy,
    ) -> Result<(), OsError> {
        let kind = if store { AccessKind::Store } else { AccessKind::Load };
        let mut physical = self.translate(address, kind, instruction)?;
        self.reader.0.warm(physical, store, Requester::Data);
        let last = address.wrapping_add(u64::from(size.max(1)) - 1);
        let mut at = address;
        while at >> LINE_SHIFT != last >> LINE_SHIFT {
            let line = (at >> LINE_SHIFT).wrapping_add(1) << LINE_SHIFT;
            physical = if line.is_multiple_of(1 << 12) {
                self.translate(line, kind, instruction)?
            } else {
                physical.offset(line - at)
            };
            self.reader.0.warm(physical, store, Requester::Data);
            at = line;
        }
        Ok(())
    }
}

impl<R: TableReader> Untimed<'_, R> {
    /// Where the rest of an access lies that ends in another page.
    #[cold]
    fn translate_rest(
        &mut self,
        address: u64,
        kind: AccessKind,
        instruction: u64,
    ) -> Result<Hpa, OsError> {
        self.translate(address, kind, || instruction)
    }

    /// Where `address` lies; faults are handled.
    #[inline]
    fn translate(
        &mut self,
        address: u64,
        kind: AccessKind,
        instruction: impl FnOnce() -> u64,
    ) -> Result<Hpa, OsError> {
        let request = Request { address: Gva::new(address), kind, at: self.at };
        let Self { mmu, system, reader, .. } = self;
        let translated = match mmu.translate(request, instruction, system, reader) {
            Ok(translated) => translated,
            Err(stopped) => {
                let at = self.at;
                mmu.translate_after_fault(request, stopped, system, reader, |_, _, _, _| at)?
            }
        };
        Ok(translated.physical)
    }
}

fn costs(
    RunConfiguration { scheme, machine, .. }: &RunConfiguration,
    [merge_cycles, host_merge_cycles]: [u64; 2],
) -> Costs<'_> {
    Costs {
        os: &machine.os,
        exit_cycles: machine.virtualisation.as_ref().map_or(0, |v| v.exit_cycles),
        shadow: scheme.shadow,
        merge_cycles,
        host_merge_cycles,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::testing::{DATA, Do, Scenario, as_host, go, merging_scheme, scheme};

    const LARGE: u64 = 2 << 20;
    const MAPPED: [(u64, u64); 1] = [(DATA, 1 << 30)];

    /// What each of 66 first touches, one in each 2 MiB, takes.
    fn fault_cycles(merge_us: f64) -> Vec<u64> {
        let mut run = Scenario::new(merging_scheme(64, 32, merge_us)).start(&MAPPED, false);
        let mut before = 0;
        let cycles = (0..66).map(|i| {
            go(&mut run, &[Do::Load(DATA + i * LARGE)]);
            let (core, _) = run.timed.as_ref().expect("it is timed");
            let all = core.statistics.fault_cycles;
            all - std::mem::replace(&mut before, all)
        });
        cycles.collect()
    }

    #[test]
    fn merging_takes_the_kernel_as_long_as_the_scheme_says() {
        let (free, costly) = (fault_cycles(0.0), fault_cycles(20.0));
        // At 1 GHz, 20 µs are 20,000 cycles, in the fault that fills the 64th slot.
        let extra: Vec<u64> =
            costly.iter().zip(&free).map(|(with, without)| with - without).collect();
        assert_eq!((extra[63], extra.iter().sum::<u64>()), (20_000, 20_000));
        assert_eq!(free[63], free[62], "what it reads and writes is not charged in addition");
    }

    #[test]
    fn what_a_guest_writes_into_a_shadowed_table_leaves_the_guest() {
        let cycles = |shadow: bool| {
            let mut scenario = Scenario::new(scheme(4, &[]));
            scenario.scheme.shadow = shadow;
            let mut run = scenario.start(&MAPPED, false);
            let mut before = 0;
            let mut fault = |run: &mut Run, page: u64| {
                go(run, &[Do::Load(DATA + page * 4096)]);
                let (core, _) = run.timed.as_ref().expect("it is timed");
                let all = core.statistics.fault_cycles;
                all - std::mem::replace(&mut before, all)
            };
            let faults = [fault(&mut run, 0), fault(&mut run, 1)];
            let walks = walked(&run);
            let (core, _) = run.timed.as_ref().expect("it is timed");
            let started = core.cycle();
            run.take(&Piece::Event(Event::Unmap { address: DATA, length: 4096 })).unwrap();
            let (core, _) = run.timed.as_ref().expect("it is timed");
            (faults, core.cycle() - started, walks)
        };
        let (plain, shadowed) = (cycles(false), cycles(true));
        // The test machine takes 1500 cycles to leave a guest. The first fault writes a leaf and links
        // three nodes, the second a leaf; the fault itself leaves the guest too. Unmapping clears one.
        assert_eq!(shadowed.0[0] - plain.0[0], (1 + 4) * 1500);
        assert_eq!(shadowed.0[1] - plain.0[1], (1 + 1) * 1500);
        assert_eq!(shadowed.1 - plain.1, 1500);
        assert_eq!(shadowed.2, plain.2, "walks are those of one table");
    }

    #[test]
    fn a_context_switch_empties_tlbs_and_page_walk_caches() {
        let mut scenario = Scenario::new(scheme(4, &[]));
        // At 1 GHz, 5 µs are 5000 cycles; the clock is looked at every 10,000 instructions.
        scenario.context_switch_ms = Some(0.005);
        let mut run = scenario.start(&MAPPED, true);
        let pages: Vec<Do> = (0..4).map(|i| Do::Chase(DATA + i * 4096)).collect();
        go(&mut run, &pages.repeat(2_500));
        assert_eq!(walked(&run), (4, 4 + 3), "one whole walk; its node for the others");
        assert_eq!(run.context_switches(), Some(1));
        go(&mut run, &pages);
        assert_eq!(walked(&run), (8, 2 * (4 + 3)), "and once more");
        scenario.context_switch_ms = None;
        let mut run = scenario.start(&MAPPED, true);
        go(&mut run, &pages.repeat(2_501));
        assert_eq!((walked(&run), run.context_switches()), ((4, 7), None));
    }

    /// Walks and accesses since the start.
    fn walked(run: &Run) -> (u64, u64) {
        let total = run.mmu.statistics.total();
        (total.walks, total.accesses)
    }

    #[test]
    fn merging_flushes_page_walk_caches_and_no_tlb() {
        let scenario =
            Scenario { mode: Mode::Functional, ..Scenario::new(merging_scheme(8, 4, 0.0)) };
        let mut run = scenario.start(&MAPPED, false);
        for i in 0..8 {
            go(&mut run, &[Do::Load(DATA + i * LARGE)]);
        }
        assert_eq!(run.system.statistics().merges, 1);
        let before = walked(&run);
        go(&mut run, &[Do::Load(DATA + 6 * LARGE)]);
        assert_eq!(walked(&run), before, "the page is where it was");
        // Pages of 2 MiB that were never used yet: their faults map them without a node.
        let far = [100, 101].map(|i| DATA + i * LARGE);
        go(&mut run, &far.map(Do::Load));
        let (walks, accesses) = walked(&run);
        assert_eq!((walks - before.0, accesses - before.1), (2, 2), "one access a walk");
    }

    #[test]
    fn a_host_that_merges_keeps_the_guests_translations() {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.scheme.host = Some(as_host(merging_scheme(8, 4, 20.0)));
        for populate in [false, true] {
            let mut run = scenario.start(&[(DATA, 32 * LARGE)], populate);
            let pages: Vec<Do> = (0..32 * 512).map(|i| Do::Load(DATA + i * 4096)).collect();
            go(&mut run, &pages);
            let host = run.system.host_statistics().expect("there is a host");
            assert!(host.merges > 0 && run.system.statistics().merges == 0);
        }
    }
}
