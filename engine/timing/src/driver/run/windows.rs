//! Windows: what each counted, and the sums over them.

use super::Run;
use crate::core::kernel::KernelTime;
use crate::core::stack::{CycleStack, Part};
use crate::counts::Add;
use crate::memory::hierarchy::CacheStatistics;
use crate::mmu::statistics::WalkCount;

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
    /// Of these, what kernels did, on all cores.
    pub kernel: CycleStack,
    /// What they had done by the end, measured or not.
    pub kernel_to: KernelTime,
    /// Of the cycles, those that are known of all of the run: what kernels do.
    pub kernel_cycles: Option<u64>,
    /// Cores whose cycles these are.
    pub cores: u64,
    /// What went through L1D, L2 and the last-level cache.
    pub caches: [CacheStatistics; 3],
    /// Lines read from and written to memory.
    pub dram_lines: u64,
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
            kernel: self.kernel.since(start.kernel),
            kernel_to: self.kernel_to,
            kernel_cycles: None,
            cores: self.cores,
            caches: std::array::from_fn(|n| self.caches[n].since(start.caches[n])),
            dram_lines: self.dram_lines - start.dram_lines,
        }
    }
}

impl Run {
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
    pub(super) fn measured_sum<T: Default + std::ops::AddAssign>(
        &self,
        of: impl Fn(Tally) -> T,
    ) -> T {
        if !self.has_measured() {
            return of(self.tally());
        }
        self.windows().fold(T::default(), |mut sum, window| {
            sum += of(window);
            sum
        })
    }

    /// What is counted now.
    pub(super) fn tally(&self) -> Tally {
        let parked = self.cores.parked.iter().map(|core| &core.mmu);
        let all = || [&self.mmu].into_iter().chain(parked.clone()).map(|mmu| &mmu.statistics);
        let mut total = WalkCount::default();
        all().for_each(|walks| total.add(&walks.total()));
        let (caches, dram_lines) =
            self.timed.as_ref().map(|(_, caches)| caches.totals()).unwrap_or_default();
        let (mut stack, mut kernel) = (CycleStack::default(), CycleStack::default());
        for core in self.timed_cores() {
            stack.add(&core.statistics.stack);
            kernel.add(&core.statistics.kernel);
        }
        Tally {
            at: 0,
            instructions: self.instructions(),
            cycles: self.mean_clock(),
            walks: total.walks,
            walk_accesses: total.accesses,
            walk_latency_cycles: total.latency_cycles,
            walk_queue_cycles: all().map(|walks| walks.queue_cycles).sum(),
            host_faults: self.system.host_statistics().map_or(0, |s| s.faults),
            os: self.system.statistics(),
            stack,
            kernel,
            kernel_to: KernelTime::sum(self.timed_cores().map(|core| core.kernel)),
            kernel_cycles: None,
            cores: self.cores.parked.len() as u64 + 1,
            caches,
            dram_lines,
        }
    }

    /// The window under way ends, if there is one.
    pub(super) fn end_window(&mut self) {
        let Some(mut start) = self.window.take() else { return };
        let now = self.tally();
        if now.instructions == start.instructions {
            // What passed without an instruction is counted, so it belongs to the window that ended here.
            let ended_here = self.measured_to == Some(start.instructions);
            let Some(before) = self.windows.pop_if(|_| ended_here) else { return };
            start = start.since(before);
        }
        let window = now.since(start);
        self.on_each_core(|run| run.own.passed += run.own_clock() - run.own.began);
        self.pace = (window.instructions, window.cycles);
        self.measured_to = Some(now.instructions);
        self.windows.push(window);
    }

    /// What the cycles of one window went to, as [`Run::cycle_stack`] says of all; cores that came
    /// after it were idle.
    pub(crate) fn stack_of(&self, window: &Tally) -> impl Iterator<Item = (Part, u64)> {
        let cores = self.by_core.len().max(1) as u64;
        let mut stack = window.stack;
        stack.count(Part::Idle, window.cycles * (cores - window.cores));
        stack.average(window.cycles, cores)
    }
}
