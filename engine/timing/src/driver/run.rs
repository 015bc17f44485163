//! One run: a scheme on a machine, fed with a trace.

use std::sync::Arc;

use flatwalk_os::{LargePages, OsError};
use flatwalk_paging::{AccessKind, Address, Gva, Layout};
use flatwalk_trace::{Event, SourceInfo, ThreadId};

use crate::ConfigError;
pub use crate::config::run::{GuestFrames, Mode, RunConfiguration};
use crate::config::scheme::TranslationMode;
use crate::core::Environment;
use crate::core::decode::DecodedBlock;
use crate::driver::look_ahead::{self, LookAhead};
use crate::driver::parts::{self, Timed};
use crate::mechanisms::{self, Setup};
use crate::memory::reader::NoClock;
use crate::mmu::Mmu;
use crate::mmu::event::Request;
use crate::mmu::mechanism::{Mechanism, Observation, ResultView};
use crate::system::System;
use crate::system::costs::Costs;
use crate::system::relocate::Relocation;

/// One piece of a window of the trace, decoded once for all runs.
#[derive(Clone, Debug)]
pub enum Piece {
    /// The next block identifier means this.
    Define(Arc<DecodedBlock>),
    /// A thread runs.
    Slice(flatwalk_trace::Slice),
    /// The address space changes.
    Event(Event),
}

/// What has been counted when measuring began.
#[derive(Clone, Debug, Default)]
struct Start {
    cycle: u64,
    os: flatwalk_os::Statistics,
    host_faults: u64,
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
    /// Page of the last fetch, in functional mode.
    code_page: u64,
    counts: Counts,
    warmup: u64,
    start: Option<Start>,
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

/// What functional mode counts itself.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// All instructions, warm-up included.
    instructions: u64,
    /// After warm-up.
    measured: u64,
    loads: u64,
    stores: u64,
}

impl Run {
    /// A run of `configuration` over a trace described by `info`; the first `warmup` instructions
    /// are not counted.
    ///
    /// # Errors
    /// When the configuration cannot be.
    pub fn new(
        configuration: RunConfiguration,
        info: &SourceInfo,
        warmup: u64,
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
        let mmu = Mmu::new(machine, geometry, walker, mechanisms, free);
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
            code_page: u64::MAX,
            counts: Counts::default(),
            warmup,
            start: (warmup == 0).then(Start::default),
            observation,
            switches,
            merge_cycles,
            relocated: Vec::new(),
            last_address: 0,
            look_ahead: LookAhead::default(),
        })
    }

    /// Instructions run so far, warm-up included.
    pub fn instructions(&self) -> u64 {
        self.counts.instructions
    }

    /// Instructions measured, loads, stores.
    pub(crate) fn measured(&self) -> (u64, u64, u64) {
        match &self.timed {
            Some((core, _)) => {
                let s = core.statistics;
                (s.instructions, s.loads, s.stores)
            }
            None => (self.counts.measured, self.counts.loads, self.counts.stores),
        }
    }

    /// True if warm-up is over.
    pub(crate) fn is_measuring(&self) -> bool {
        self.start.is_some()
    }

    /// Cycles measured.
    pub(crate) fn cycles(&self) -> Option<u64> {
        let (core, _) = self.timed.as_ref()?;
        Some(core.cycle() - self.start.as_ref().map_or(0, |s| s.cycle))
    }

    /// What the operating system had counted when measuring began.
    pub(crate) fn os_at_start(&self) -> flatwalk_os::Statistics {
        self.start.as_ref().map(|s| s.os).unwrap_or_default()
    }

    /// Faults that the host answered in the measured part; `None` without a host.
    pub(crate) fn host_faults(&self) -> Option<u64> {
        let before = self.start.as_ref().map_or(0, |s| s.host_faults);
        self.system.host_statistics().map(|now| now.faults - before)
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
                        block.fall_through = block.fall_through.map(|a| relocation.address(a));
                        Arc::new(block)
                    }
                };
                self.blocks.push(block);
                Ok(())
            }
            Piece::Event(event) => match &self.relocation {
                None => self.event(event),
                Some(relocation) => {
                    relocation.event(event).iter().try_for_each(|event| self.event(event))
                }
            },
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
                self.code_page = u64::MAX;
            }
            return Ok(());
        }
        let (work, flushes) = self.system.apply(event)?;
        self.mmu.carry_out(&flushes);
        self.code_page = u64::MAX;
        // Populating and gaps stand for a part of the program that is not in the trace: no time.
        if let Some((core, caches)) = &mut self.timed
            && !matches!(event, Event::Populate { .. } | Event::Gap { .. })
        {
            let costs = costs(&self.configuration, self.merge_cycles);
            core.kernel(costs.work_cycles(&work, caches.l1d_latency()));
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
            let used = if self.timed.is_some() {
                self.run_timed(&blocks[done..], &mut rest, stop)?
            } else {
                self.run_functional(&blocks[done..], &mut rest, stop)?
            };
            done += used;
            if self.counts.instructions >= stop {
                self.look();
            }
        }
        Ok(())
    }

    /// Instruction count at which warm-up or an observation window ends.
    fn next_stop(&self) -> u64 {
        let warmup = if self.start.is_none() { self.warmup } else { u64::MAX };
        warmup.min(self.observation).min(self.switches.look)
    }

    /// Lets another process take the core and give it back, if it is time.
    fn switch_context(&mut self) {
        let (Some(every), Some((core, _))) = (self.switches.every, &mut self.timed) else { return };
        self.switches.look = self.counts.instructions + CLOCK;
        if core.cycle() < self.switches.next {
            return;
        }
        self.switches.next = core.cycle() + every;
        self.switches.count += 1;
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
            self.counts.instructions += block.ops.len() as u64;
            if self.counts.instructions >= stop {
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
        let mut untimed = Untimed { mmu: &mut self.mmu, system: &mut self.system };
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
                    if pc >> 12 != self.code_page {
                        untimed.translate(pc, AccessKind::Fetch)?;
                        self.code_page = pc >> 12;
                    }
                }
            }
            for (access, &address) in block.accesses.iter().zip(addresses) {
                let kind = if access.store { AccessKind::Store } else { AccessKind::Load };
                untimed.translate(address, kind)?;
                let last = address.wrapping_add(u64::from(access.size.max(1)) - 1);
                if last >> 12 != address >> 12 {
                    untimed.translate(last, kind)?;
                }
            }
            let n = block.ops.len() as u64;
            let loads = u64::from(block.loads);
            self.counts.instructions += n;
            self.counts.measured += n;
            self.counts.loads += loads;
            self.counts.stores += addresses.len() as u64 - loads;
            if self.counts.instructions >= stop {
                return Ok(i + 1);
            }
        }
        Ok(blocks.len())
    }

    /// Ends warm-up, or lets another process or mechanisms have their look.
    fn look(&mut self) {
        let now = self.counts.instructions;
        if now >= self.switches.look {
            self.switch_context();
        }
        if now >= self.observation {
            self.observe(now);
        }
        if self.start.is_none() && now >= self.warmup {
            let cycle = self.timed.as_ref().map_or(0, |(core, _)| core.cycle());
            let host_faults = self.system.host_statistics().map_or(0, |s| s.faults);
            self.start = Some(Start { cycle, os: self.system.statistics(), host_faults });
            self.counts = Counts { instructions: self.counts.instructions, ..Counts::default() };
            self.mmu.reset_statistics();
            self.switches.count = 0;
            if let Some((core, caches)) = &mut self.timed {
                core.reset_statistics();
                caches.reset_statistics();
            }
            self.mmu.mechanisms_mut().for_each(|m| m.measurement_begins(now));
            self.observation = next_observation(&self.mmu);
        }
    }

    /// Lets the mechanisms look at the run that want to.
    fn observe(&mut self, instructions: u64) {
        let l2_tlb_misses = self.mmu.statistics.l2_tlb_misses;
        for mechanism in self.mmu.mechanisms_mut() {
            if instructions >= mechanism.next_observation() {
                let caches = self.timed.as_mut().map(|(_, caches)| &mut **caches);
                mechanism.observe(&mut Observation { instructions, l2_tlb_misses, caches });
            }
        }
        self.observation = next_observation(&self.mmu);
    }
}

/// Instructions at which a mechanism wants to look at the run next.
fn next_observation(mmu: &Mmu) -> u64 {
    mmu.mechanisms().map(Mechanism::next_observation).min().unwrap_or(u64::MAX)
}

/// What functional mode works with.
struct Untimed<'a> {
    mmu: &'a mut Mmu,
    system: &'a mut System,
}

impl Untimed<'_> {
    #[inline]
    fn translate(&mut self, address: u64, kind: AccessKind) -> Result<(), OsError> {
        let request = Request { address: Gva::new(address), kind, at: 0 };
        let Self { mmu, system } = self;
        match mmu.translate(request, system, &mut NoClock) {
            Ok(_) => Ok(()),
            Err(stopped) => mmu
                .translate_after_fault(request, stopped, system, &mut NoClock, |_, _, _| 0)
                .map(drop),
        }
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
