//! One run: a scheme on a machine, fed with a trace.
//!
//! Phases come with the trace's pieces ([`Phase`]): what is warmed, what runs with its clock, what is
//! counted. While nothing is counted, counts are put aside ([`crate::counts`]).

mod turns;
mod untimed;
pub(crate) mod whole;
mod windows;

use std::ops::Range;
use std::sync::Arc;

use flatwalk_os::{LargePages, OsError};
use flatwalk_paging::{AccessKind, Address, Gva, Layout};
use flatwalk_trace::{Event, Slice, SourceInfo, ThreadId};

use crate::ConfigError;
pub use crate::config::run::{Mode, RunConfiguration};
use crate::config::scheme::TranslationMode;
use crate::core::decode::DecodedBlock;
use crate::core::stack::{CycleStack, Part};
use crate::core::{Core, Environment};
use crate::counts::{Aside, Visitor, forget};
use crate::driver::cores::{CLOCK, Cores, Fresh, Own, Switches, no_page};
use crate::driver::look_ahead::{self, LookAhead};
use crate::driver::parts::{self, Timed};
use crate::driver::piece::{Mispredicted, Phase, Piece, is_call};
use crate::driver::predictions::Predictors;
use crate::driver::run::whole::OsCounts;
use crate::driver::run::windows::Tally;
use crate::driver::sampling::clock_before;
use crate::mechanisms::{self, Setup};
use crate::mmu::Mmu;
use crate::mmu::blame::Blame;
use crate::mmu::mechanism::{Mechanism, Observation, ResultView};
use crate::mmu::statistics::WalkCount;
use crate::system::System;
use crate::system::costs::Costs;
use crate::system::relocate::Relocation;

/// A run in progress. What it has of a core is that of the one that has its turn.
pub struct Run {
    pub(crate) configuration: RunConfiguration,
    pub(crate) system: System,
    pub(crate) mmu: Mmu,
    pub(crate) timed: Option<Timed>,
    relocation: Option<Relocation>,
    blocks: Vec<Arc<DecodedBlock>>,
    own: Own,
    cores: Cores,
    phase: Phase,
    /// Windows that have ended.
    windows: Vec<Tally>,
    /// Instructions run when the last of them did.
    measured_to: Option<u64>,
    /// Windows that began before the cores' clocks had drifted apart.
    early_windows: u64,
    /// What had been counted when the window under way began.
    window: Option<Tally>,
    /// What was counted in windows of all cores together, while none is under way.
    aside: Option<Aside>,
    /// Instructions and cycles of the last window.
    pace: (u64, u64),
    /// Instruction that the part that is sampled begins with, until it has begun.
    sampled_from: Option<u64>,
    /// What the operating system, and the host's, had counted before it.
    os_before: OsCounts,
    /// What they counted in as many instructions as were measured, where that is known of the whole part.
    os_known: Option<OsCounts>,
    /// Cycle in which, on average over the cores, the phase began.
    started: u64,
    /// What was measured, core by core, once all has ended.
    by_core: Vec<CoreFigures>,
    /// Cycles to merge a node, or to take one apart, of the process's own table and of the host's.
    merge_cycles: [u64; 2],
    /// Scratch for relocated addresses.
    relocated: Vec<u64>,
    last_address: Option<u64>,
    look_ahead: LookAhead,
    /// Number of the predictor that predicts for this run, if it does not itself …
    predictor: Option<usize>,
    /// … and what that got wrong of the slice that comes next.
    mispredicted: Option<Arc<[Mispredicted]>>,
}

/// What one core did in the measured part.
#[derive(Clone, Debug)]
pub(crate) struct CoreFigures {
    /// Its number.
    pub number: usize,
    /// Threads that ran on it.
    pub threads: usize,
    /// Instructions.
    pub instructions: u64,
    /// Cycles that passed for it; `None` if they are the run's.
    pub cycles: Option<u64>,
    /// What they went to.
    pub stack: CycleStack,
    /// Of these, what kernels did.
    pub kernel: CycleStack,
    /// Its walks.
    pub walks: WalkCount,
    /// Cycles in which retirement waited for a translation.
    pub translation_cycles: u64,
    /// Of these, those of page-fault handlers.
    pub translation_fault_cycles: u64,
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
        // An entry of a shadow leads to the host's memory, and holds as far as a page of the host does.
        let is_small = scheme.shadow && configuration.host_large_pages == 0;
        let large_pages = if is_small { LargePages::Below { boundary: 0 } } else { large_pages };
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
        let switches = Switches::new(every, 0);
        let most = configuration.most_cores();
        let policy = mechanisms::policy_for_threads(&configuration.machine)?;
        let fresh = Fresh {
            mmu: mmu.for_another_core(),
            core: timed.as_ref().map(|(core, _)| core.clone()),
            private: timed.as_ref().map(|(_, caches)| caches.private()),
            policy,
        };
        let cores = Cores::new(most, fresh);
        Ok(Self {
            configuration,
            system,
            mmu,
            timed,
            relocation,
            blocks: Vec::new(),
            own: Own::new(0, observation, switches),
            cores,
            phase: Phase::Measured,
            windows: Vec::new(),
            measured_to: None,
            early_windows: 0,
            window: Some(Tally::default()),
            aside: None,
            pace: (0, 0),
            sampled_from: None,
            os_before: OsCounts::default(),
            os_known: None,
            started: 0,
            by_core: Vec::new(),
            merge_cycles,
            relocated: Vec::new(),
            last_address: None,
            look_ahead: LookAhead::default(),
            predictor: None,
            mispredicted: None,
        })
    }

    /// Lets one of `predictors` predict for this run, if its core executes just what is in the trace.
    pub(crate) fn share_predictions(&mut self, predictors: &mut Predictors) {
        let RunConfiguration { machine, context_switch_ms, .. } = &self.configuration;
        let is_alike = self.relocation.is_none() && context_switch_ms.is_none();
        let core = machine.core.as_ref().filter(|_| is_alike && self.timed.is_some());
        self.predictor = core.map(|core| predictors.number(core));
    }

    /// Instructions run so far, measured or not.
    pub fn instructions(&self) -> u64 {
        let parked = self.cores.parked.iter().map(|core| core.own.instructions);
        self.own.instructions + parked.sum::<u64>()
    }

    /// Instructions measured, loads, stores.
    pub(crate) fn measured(&self) -> (u64, u64, u64) {
        match &self.timed {
            Some((core, _)) => {
                let s = core.statistics;
                (s.instructions, s.loads, s.stores)
            }
            None => (self.own.counts.instructions, self.own.counts.loads, self.own.counts.stores),
        }
    }

    /// Cycles measured.
    pub(crate) fn cycles(&self) -> Option<u64> {
        self.timed.as_ref().map(|_| self.measured_sum(|window| window.cycles))
    }

    /// What the measured cycles went to, on average over the cores; they add up to [`Self::cycles`].
    /// Empty without a clock.
    pub(crate) fn cycle_stack(&self) -> impl Iterator<Item = (Part, u64)> {
        let cores = self.by_core.len().max(1) as u64;
        let timed = self.timed.as_ref().zip(self.cycles());
        let stack = timed.map(|((core, _), cycles)| core.statistics.stack.average(cycles, cores));
        stack.into_iter().flatten()
    }

    /// What each core did in the measured part, in the order of their numbers; without a clock, each that ran
    /// something in it.
    pub(crate) fn by_core(&self) -> Vec<CoreFigures> {
        if self.by_core.is_empty() { vec![self.core_figures()] } else { self.by_core.clone() }
    }

    /// What the operating system counted in the measured part.
    pub(crate) fn os_measured(&self) -> flatwalk_os::Statistics {
        let measured = self.measured_sum(|window| window.os);
        self.os_known.map_or(measured, |known| known.own_of(measured))
    }

    /// Faults that the host answered in the measured part; `None` without a host.
    pub(crate) fn host_faults(&self) -> Option<u64> {
        let measured = || self.measured_sum(|window| window.host_faults);
        let host = self.system.host_statistics();
        host.map(|_| self.os_known.map_or_else(measured, |known| known.host_faults))
    }

    /// All cores; none without a clock.
    fn timed_cores(&self) -> impl Iterator<Item = &Core> {
        let parked = self.cores.parked.iter().filter_map(|core| core.core.as_deref());
        parked.chain(self.timed.as_ref().map(|(core, _)| &**core))
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

    /// Of the core whose L2 TLB was fullest: how many entries were valid at most at a time, of how many.
    pub(crate) fn fullest_l2_tlb(&self) -> (u32, usize) {
        self.mmus().map(|mmu| mmu.tlbs()[2].1.fullest()).max().unwrap_or_default()
    }

    /// Whether windows have their part of all that kernels did, wherever in the run that was.
    pub(crate) fn follows_kernels(&self) -> bool {
        self.os_known.is_some()
    }

    /// The MMUs of all cores.
    fn mmus(&self) -> impl Iterator<Item = &Mmu> {
        self.cores.parked.iter().map(|core| &core.mmu).chain([&self.mmu])
    }

    /// A warm-up that is long enough for the cores' clocks to drift apart, if it was too short for
    /// more than a quarter of the windows.
    pub(crate) fn longer_warmup(&self) -> Option<u64> {
        let cores = self.cores.parked.len() as u64 + 1;
        (self.early_windows * 4 > self.windows.len() as u64).then_some(clock_before(cores))
    }

    /// Instructions and cycles of the last window, if there has been one.
    pub(crate) fn pace(&self) -> Option<(u64, u64)> {
        (self.pace.0 > 0).then_some(self.pace)
    }

    /// What is done now.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
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

    /// Whether it wants to know which entries of page tables are used in what is passed over.
    pub(crate) fn wants_uses(&self) -> bool {
        self.timed.is_some() && self.mmu.may_protect_page_tables()
    }

    /// The last data address used, if any was.
    pub fn last_address(&self) -> Option<u64> {
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
                    Some(relocation) => Arc::new(relocated(block, relocation)),
                };
                self.blocks.push(block);
                Ok(())
            }
            Piece::Mispredicted(of_slice) => {
                self.mispredicted = self.predictor.map(|_| Arc::clone(of_slice));
                Ok(())
            }
            Piece::Threads(predictors) => {
                if let (Some(number), Some((core, _))) = (self.predictor.take(), &mut self.timed) {
                    core.predict_as(&predictors[number]);
                }
                Ok(())
            }
            &Piece::Used { ref threads, instructions } => {
                self.run_waiting()?;
                self.use_entries(threads, instructions);
                Ok(())
            }
            &Piece::Phase { phase, at } => {
                self.run_waiting()?;
                self.enter(phase, at);
                Ok(())
            }
            Piece::Event(Event::Wake { .. } | Event::Woken { .. }) if !self.has_queues() => Ok(()),
            &Piece::Event(Event::Wake { thread, number }) => {
                if let Some(core) = self.cores.has(thread) {
                    self.cores.queue_wake(core, number);
                    self.make_calls(core);
                }
                Ok(())
            }
            &Piece::Event(Event::Woken { thread, number }) => {
                self.cores.woken(thread, number);
                Ok(())
            }
            Piece::Event(event) | Piece::Passed(event) => {
                self.run_waiting()?;
                self.mmu.blame.apply(event);
                if let Event::Name { .. } = event {
                    return Ok(());
                }
                let passes = matches!(piece, Piece::Passed(_));
                match &self.relocation {
                    None => self.event(event, passes),
                    Some(relocation) => {
                        let moved = relocation.event(event);
                        moved.iter().try_for_each(|event| self.event(event, passes))
                    }
                }
            }
            Piece::Slice(slice) => {
                self.take_part(slice, 0..slice.blocks.len(), 0..slice.addresses.len())
            }
        }
    }

    /// Takes some blocks of a slice and their addresses; the parts of a slice come in their order.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(crate) fn take_part(
        &mut self,
        slice: &Slice,
        blocks: Range<usize>,
        addresses: Range<usize>,
    ) -> Result<(), OsError> {
        let (first, is_last) = (blocks.start, blocks.end == slice.blocks.len());
        let blocks = &slice.blocks[blocks];
        let addresses = look_ahead::with_sight(&slice.addresses, addresses);
        let result = if let Some(relocation) = &self.relocation {
            let mut relocated = std::mem::take(&mut self.relocated);
            relocated.clear();
            relocated.extend(addresses.iter().map(|&a| relocation.address(a)));
            let result = self.dispatch(slice.thread, (blocks, first), &relocated);
            self.relocated = relocated;
            result
        } else {
            self.dispatch(slice.thread, (blocks, first), addresses)
        };
        if is_last {
            self.mispredicted = None;
        }
        result
    }

    /// Something happens to the address space, or to threads; in a part that `passes` no time does.
    fn event(&mut self, event: &Event, passes: bool) -> Result<(), OsError> {
        if let &Event::Populate { address, length, store } = event
            && passes
        {
            self.touch(Gva::new(address), length, store)?;
            self.show_populated(event);
            self.tell_flushes(true, false);
            return Ok(());
        }
        let has_clock = self.phase.has_clock() && !passes;
        match *event {
            Event::ThreadStart { thread } => self.cores.start_thread(thread, self.clock()),
            Event::ThreadExit { thread } => self.cores.end_thread(thread),
            _ => {}
        }
        self.apply(event, has_clock)?;
        self.tell_flushes(is_call(event), has_clock);
        Ok(())
    }

    fn apply(&mut self, event: &Event, has_clock: bool) -> Result<(), OsError> {
        if matches!(event, Event::Root { .. } | Event::Entry { .. }) {
            // Of a recorded machine's tables: nothing that happens in ours, and no work of a kernel's.
            if self.configuration.scheme.recorded {
                let (_, flushes) = self.system.apply(event, &mut |_| {})?;
                self.mmu.carry_out(&flushes);
                self.own.code_page = no_page();
                if let Some((core, _)) = &mut self.timed {
                    core.forget_code();
                }
            }
            return Ok(());
        }
        let of_faults = costs(&self.configuration, self.merge_cycles, self.cores.are_several());
        let Self { system, mmu, timed, .. } = self;
        let (work, flushes) = system.apply(event, &mut |handled| {
            mmu.carry_out(&handled.flushes);
            if let Some((core, caches)) = timed {
                let cost = of_faults.fault(&handled, caches.l1d_latency());
                if has_clock {
                    core.fault_in_call(cost, handled.by_host);
                } else {
                    core.kernel.fault_in_call(cost, handled.by_host);
                }
            }
        })?;
        self.mmu.carry_out(&flushes);
        self.show_populated(event);
        self.own.code_page = no_page();
        if let Some((core, caches)) = &mut self.timed
            && is_call(event)
        {
            let others = self.cores.are_several();
            let costs = costs(&self.configuration, self.merge_cycles, others);
            let cost = costs.call(&work, &flushes, caches.l1d_latency());
            if has_clock {
                core.call(cost);
            } else {
                core.drain();
                core.kernel.call(cost);
            }
        }
        Ok(())
    }

    /// Pages were touched in a part that is passed over: they are in memory, and what kernels did
    /// for that is counted.
    fn touch(&mut self, address: Gva, length: u64, store: bool) -> Result<(), OsError> {
        let kind = if store { AccessKind::Store } else { AccessKind::Load };
        let costs = costs(&self.configuration, self.merge_cycles, self.cores.are_several());
        let Self { system, mmu, timed, .. } = self;
        let mut timed = timed.as_mut().map(|(core, caches)| (core, caches.l1d_latency()));
        self.own.code_page = no_page();
        system.access_pages(address, length, kind, &mut |handled| {
            mmu.carry_out(&handled.flushes);
            if let Some((core, l1d_latency)) = &mut timed {
                core.kernel.fault(costs.fault(&handled, *l1d_latency), handled.by_host);
            }
        })
    }

    /// Shows pages that were populated to mechanisms that want to know of them.
    fn show_populated(&mut self, event: &Event) {
        if let &Event::Populate { address, length, .. } = event
            && self.mmu.wants_populated()
        {
            let Self { system, mmu, .. } = self;
            system.visit(address, length, &mut |page| mmu.populated(&page));
        }
    }

    /// Runs blocks of a thread, of which the first has a place in its slice, on the core that has its turn.
    fn slice(
        &mut self,
        thread: ThreadId,
        (blocks, first): (&[u32], usize),
        addresses: &[u64],
    ) -> Result<(), OsError> {
        if self.own.thread != Some(thread) {
            self.own.thread = Some(thread);
            if let Some((core, _)) = &mut self.timed {
                core.drain();
            }
        }
        if self.phase == Phase::Measured {
            self.own.threads.insert(thread);
        }
        let mut rest = addresses;
        let mut done = 0;
        let of_slice = self.mispredicted.clone();
        let mispredicted =
            of_slice.as_deref().zip(self.predictor).map(|(all, number)| &all[number]);
        while done < blocks.len() {
            // To the end, or to the instruction at which something is to be looked at.
            let stop = self.next_stop();
            let used = match (&self.timed, self.phase) {
                (None, _) | (_, Phase::Pass) => {
                    self.run_functional(&blocks[done..], &mut rest, stop)?
                }
                (Some(_), Phase::Warm) => {
                    self.run_warm(&blocks[done..], (mispredicted, first + done), &mut rest, stop)?
                }
                (Some(_), Phase::Detailed | Phase::Measured) => {
                    self.run_timed(&blocks[done..], (mispredicted, first + done), &mut rest, stop)?
                }
            };
            done += used;
            if self.own.instructions >= stop {
                self.look();
            }
        }
        // What is behind that is only in sight.
        if let Some(made) = (addresses.len() - rest.len()).checked_sub(1) {
            self.last_address = Some(addresses[made]);
        }
        Ok(())
    }

    /// Instruction count at which something is to be looked at.
    fn next_stop(&self) -> u64 {
        self.own.observation.min(self.own.switches.look)
    }

    /// Lets another process take the core and give it back, if it is time.
    fn switch_context(&mut self) {
        let cores = self.cores.parked.len() as u64 + 1;
        let Own { switches, instructions, .. } = &mut self.own;
        let (Some(every), Some((core, _))) = (switches.every, &mut self.timed) else { return };
        switches.look = *instructions + CLOCK;
        if self.phase == Phase::Warm {
            // Time goes on as fast as it did where it was measured.
            let (instructions, cycles) = self.pace;
            core.pass((CLOCK * cores * cycles).checked_div(instructions).unwrap_or(CLOCK));
        }
        if core.cycle() < switches.next {
            return;
        }
        switches.next = core.cycle() + every;
        switches.count += u64::from(self.phase == Phase::Measured);
        core.drain();
        self.mmu.switch_context();
    }

    /// Times that another process took the core, in the measured part; `None` where none does.
    pub(crate) fn context_switches(&self) -> Option<u64> {
        self.own.switches.every.map(|_| self.own.switches.count)
    }

    /// Runs blocks until `stop` instructions; returns how many blocks. What was mispredicted is known by
    /// their places in the slice, of which the first is given.
    fn run_timed(
        &mut self,
        blocks: &[u32],
        (mispredicted, first): (Option<&Mispredicted>, usize),
        rest: &mut &[u64],
        stop: u64,
    ) -> Result<usize, OsError> {
        let Some((core, caches)) = &mut self.timed else { return Ok(blocks.len()) };
        let mut env = Environment {
            mmu: &mut self.mmu,
            caches,
            system: &mut self.system,
            costs: costs(&self.configuration, self.merge_cycles, self.cores.are_several()),
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
            let predicted = mispredicted.map(|all| all.is_right(first + i));
            core.run(block, predicted, addresses, &mut env)?;
            self.own.instructions += block.ops.len() as u64;
            if self.own.instructions >= stop {
                return Ok(i + 1);
            }
        }
        Ok(blocks.len())
    }

    /// Another phase begins, or another window, before instruction `at` of the program.
    fn enter(&mut self, phase: Phase, at: u64) {
        if self.sampled_from.is_some_and(|from| at >= from) {
            self.begin_sampled_part();
        }
        if self.phase.has_clock() {
            self.cut(phase);
        } else if phase.has_clock() {
            self.resume();
        }
        if let Some((_, caches)) = &mut self.timed {
            if self.phase == Phase::Pass && phase != Phase::Pass {
                caches.begin_history();
            }
            if !self.phase.has_clock() && phase.has_clock() {
                caches.presume_history(self.system.data_bytes());
            }
        }
        self.end_window();
        let was_measured = self.phase == Phase::Measured && !self.windows.is_empty();
        let is_measured = phase == Phase::Measured;
        self.phase = phase;
        if was_measured && !is_measured {
            self.on_each_core(|run| {
                run.look_at_measurement(Mechanism::measurement_ends);
                run.own.aside = Some(Aside::take(|visit| run.counts(visit)));
            });
            self.aside = Some(Aside::take(|visit| self.shared_counts(visit)));
        }
        if is_measured && !was_measured {
            self.on_each_core(|run| {
                match run.own.aside.take() {
                    Some(aside) => aside.put_back(|visit| run.counts(visit)),
                    None => forget(|visit| run.counts(visit)),
                }
                run.look_at_measurement(Mechanism::measurement_begins);
                run.own.observation = next_observation(&run.mmu);
            });
            match self.aside.take() {
                Some(aside) => aside.put_back(|visit| self.shared_counts(visit)),
                None => forget(|visit| self.shared_counts(visit)),
            }
        }
        if is_measured {
            self.window = Some(Tally { at, ..self.tally() });
            self.on_each_core(|run| run.own.began = run.own_clock());
        }
        if !phase.has_clock() {
            self.on_each_core(|run| {
                if let Some((core, _)) = &mut run.timed {
                    core.drain();
                }
            });
        }
    }

    /// The trace has ended: all is run, and counts are there to be read, of all cores together.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(crate) fn end(&mut self) -> Result<(), OsError> {
        self.run_waiting()?;
        // Where the trace ends as a window begins, there is nothing to wait for in it.
        let now = self.instructions();
        let begins = self.window.is_some_and(|start| start.instructions == now);
        if !begins || self.measured_to.is_none_or(|to| to == now) {
            self.align();
        }
        self.end_window();
        self.measured_so_far();
        if let Some(aside) = self.aside.take() {
            aside.put_back(|visit| self.shared_counts(visit));
        }
        let mut by_core = Vec::new();
        let mut counted = Vec::new();
        self.on_each_core(|run| {
            if let Some(aside) = run.own.aside.take() {
                aside.put_back(|visit| run.counts(visit));
            }
            if let Some((core, _)) = &mut run.timed {
                core.statistics.stack.count(Part::Idle, run.own.missed);
            }
            let figures = run.core_figures();
            let counts = Aside::take(|visit| run.counts(visit));
            // Time passes on a core that runs nothing, too.
            if run.timed.is_some() || figures.instructions > 0 || !run.cores.are_several() {
                by_core.push(figures);
                counted.push(counts);
            }
        });
        for counts in counted {
            counts.add_to(|visit| self.counts(visit));
        }
        by_core.sort_by_key(|core| core.number);
        self.by_core = by_core;
        Ok(())
    }

    /// What the core that has its turn did.
    fn core_figures(&self) -> CoreFigures {
        let core = self.timed.as_ref().map(|(core, _)| core.statistics).unwrap_or_default();
        CoreFigures {
            number: self.own.number,
            threads: self.own.threads.len(),
            instructions: self.measured().0,
            cycles: (self.cores.are_several() && !self.windows.is_empty())
                .then_some(self.own.missed + self.own.passed),
            stack: core.stack,
            kernel: core.kernel,
            walks: self.mmu.statistics.total(),
            translation_cycles: core.translation_cycles,
            translation_fault_cycles: core.translation_fault_cycles,
        }
    }

    /// Shows the counts of the measured part of the core that has its turn.
    fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.own.counts);
        visit(&mut self.own.switches.count);
        self.mmu.counts(visit);
        if let Some((core, caches)) = &mut self.timed {
            core.counts(visit);
            caches.counts(visit);
        }
    }

    /// Shows those of all cores together.
    fn shared_counts(&mut self, visit: &mut Visitor<'_>) {
        self.mmu.shared_counts(visit);
        if let Some((_, caches)) = &mut self.timed {
            caches.shared_counts(visit);
        }
    }

    /// Lets the mechanisms look at what is measured so far, as at its end.
    pub(crate) fn measured_so_far(&mut self) {
        if self.phase == Phase::Measured {
            self.on_each_core(|run| run.look_at_measurement(Mechanism::measurement_ends));
        }
    }

    /// Tells the mechanisms that what is measured begins or ends.
    fn look_at_measurement(&mut self, tell: fn(&mut dyn Mechanism, &mut Observation<'_>)) {
        let (instructions, l2_tlb_misses) = (self.own.instructions, self.mmu.l2_tlb_misses());
        for mechanism in self.mmu.mechanisms_mut() {
            let caches = self.timed.as_mut().map(|(_, caches)| &mut **caches);
            tell(&mut **mechanism, &mut Observation { instructions, l2_tlb_misses, caches });
        }
    }

    /// Lets another process or mechanisms have their look.
    fn look(&mut self) {
        let now = self.own.instructions;
        if now >= self.own.switches.look {
            self.switch_context();
        }
        if now >= self.own.observation {
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
        self.own.observation = next_observation(&self.mmu);
    }
}

/// A copy of `block` whose code lies where `relocation` moves it.
fn relocated(block: &DecodedBlock, relocation: &Relocation) -> DecodedBlock {
    let mut block = block.clone();
    for op in &mut block.ops {
        op.pc = relocation.address(op.pc);
    }
    for line in &mut block.lines {
        *line = relocation.address(*line);
    }
    block.fall_through = block.fall_through.map(|a| relocation.address(a));
    block
}

/// Instructions at which a mechanism wants to look at the run next.
fn next_observation(mmu: &Mmu) -> u64 {
    mmu.mechanisms().map(Mechanism::next_observation).min().unwrap_or(u64::MAX)
}

fn costs(
    RunConfiguration { scheme, machine, .. }: &RunConfiguration,
    [merge_cycles, host_merge_cycles]: [u64; 2],
    has_other_cores: bool,
) -> Costs<'_> {
    Costs {
        os: &machine.os,
        exit_cycles: machine.virtualisation.as_ref().map_or(0, |v| v.exit_cycles),
        shadow: scheme.shadow,
        merge_cycles,
        host_merge_cycles,
        has_other_cores,
    }
}

#[cfg(test)]
mod tests;
