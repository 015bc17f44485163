//! Of a sampled run, what is known of all that its windows stand for: the work of operating systems.
//!
//! What a fault or a system call takes depends on no cache and no clock, and address spaces follow
//! the program in and between windows. So a window's own share of that work, which may be much or
//! nothing by chance, gives way to its part of all that was done since the window before. The sum
//! over the windows is then to all of the work as their instructions are to all instructions: a
//! stratified sample whose rare events are known (Cochran, "Sampling Techniques", 1977, section
//! 5A).
//!
//! Where a kernel works on one core, others may have nothing to run. As many of them are idle
//! meanwhile as are in windows.

use flatwalk_os::Statistics;

use super::Run;
use super::windows::Tally;
use crate::core::kernel::KernelTime;
use crate::core::stack::{CycleStack, Part};
use crate::counts::Add;
use crate::driver::sampling::Sampled;

/// Parts of the cycle stack that are work of kernels.
const KERNELS: [Part; 6] = [
    Part::PageFaults,
    Part::HostFaults,
    Part::SystemCalls,
    Part::Merges,
    Part::GuestExits,
    Part::Shootdowns,
];

/// What operating systems counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OsCounts {
    /// The process's own.
    pub(super) own: Statistics,
    /// Faults that the host answered.
    pub(super) host_faults: u64,
}

impl OsCounts {
    /// `measured`, with what is known of all instead of it.
    pub(super) fn own_of(&self, measured: Statistics) -> Statistics {
        let Statistics { faults, around_pages, large_page_faults, large_page_fallbacks, .. } =
            self.own;
        Statistics { faults, around_pages, large_page_faults, large_page_fallbacks, ..measured }
    }
}

/// How much of a part was measured, in instructions.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// The first that windows stand for.
    first: u64,
    /// Those measured.
    measured: u64,
    /// All that windows stand for.
    represented: u64,
}

impl Share {
    fn of_sample(sampled: &Sampled) -> Self {
        Self {
            first: sampled.first_instruction,
            measured: sampled.instructions_measured,
            represented: sampled.instructions_represented,
        }
    }

    /// So much of `all`, to the nearest.
    fn of(self, all: u64) -> u64 {
        let (measured, represented) = (u128::from(self.measured), u128::from(self.represented));
        let rounded = (u128::from(all) * measured + represented / 2) / represented.max(1);
        u64::try_from(rounded).unwrap_or(u64::MAX)
    }
}

/// Divides `total` in the proportions of `weights`, so that the parts add up to it; nothing where
/// they are all 0.
fn divide(total: u64, weights: &[f64]) -> Vec<u64> {
    let sum: f64 = weights.iter().sum();
    let (mut so_far, mut given) = (0.0, 0);
    let last = weights.iter().rposition(|&weight| weight > 0.0);
    let part = |(number, &weight): (usize, &f64)| {
        so_far += weight;
        let up_to = match last {
            None => 0,
            Some(last) if number >= last => total,
            Some(_) => {
                // Weights are never negative.
                #[allow(clippy::cast_sign_loss)]
                let nearest = (total as f64 * (so_far / sum)).round() as u64;
                nearest.clamp(given, total)
            }
        };
        up_to - std::mem::replace(&mut given, up_to)
    };
    weights.iter().enumerate().map(part).collect()
}

impl Run {
    /// What is sampled begins with instruction `first`.
    pub(crate) fn sample_from(&mut self, first: u64) {
        self.sampled_from = (first > 0).then_some(first);
    }

    /// It begins.
    pub(super) fn begin_sampled_part(&mut self) {
        self.sampled_from = None;
        self.os_before = self.os_counts();
        self.on_each_core(|run| run.own.kernel_before = run.own_kernel());
    }

    fn os_counts(&self) -> OsCounts {
        let host_faults = self.system.host_statistics().map_or(0, |host| host.faults);
        OsCounts { own: self.system.statistics(), host_faults }
    }

    /// Lets windows have their part of all that kernels did, where the run has ended and `sampled`
    /// is what it measured.
    pub(crate) fn know_kernels(&mut self, sampled: &Sampled) {
        let share = Share::of_sample(sampled);
        if self.windows.is_empty() || share.measured >= share.represented {
            return;
        }
        let (now, before) = (self.os_counts(), self.os_before);
        let mut own = now.own - before.own;
        let Statistics { faults, around_pages, large_page_faults, large_page_fallbacks, .. } =
            &mut own;
        for count in [faults, around_pages, large_page_faults, large_page_fallbacks] {
            *count = share.of(*count);
        }
        let host_faults = share.of(now.host_faults - before.host_faults);
        self.os_known = Some(OsCounts { own, host_faults });
        if self.timed.is_some() {
            self.share_kernel_time(share);
        }
    }

    fn share_kernel_time(&mut self, share: Share) {
        // By core, in no order; then of all.
        let (mut done, mut before) = (Vec::new(), KernelTime::default());
        self.on_each_core(|run| {
            done.push((run.own.number, run.own_kernel().since(run.own.kernel_before)));
            before.add(&run.own.kernel_before);
        });
        let all = KernelTime::sum(done.iter().map(|(_, all)| *all));
        let due = CycleStack::of_parts(KERNELS.map(|part| (part, share.of(all.stack.of(part)))));
        let translation_faults = share.of(all.access_faults);
        let idle = self.idle_others();
        let parts = self.of_windows(&due, before, share);
        let mut idle_gained = 0_i64;
        let cores = self.by_core.len().max(1) as u64;
        for (window, part) in self.windows.iter_mut().zip(parts) {
            let (cycles, was_idle) = (window.cycles, window.stack.of(Part::Idle));
            replace(window, &part, idle);
            let more = window.cycles.cast_signed() - cycles.cast_signed();
            // Cores that came later were idle.
            let late = (cores - window.cores).cast_signed() * more;
            idle_gained +=
                window.stack.of(Part::Idle).cast_signed() - was_idle.cast_signed() + late;
        }
        if let Some((core, _)) = &mut self.timed {
            let statistics = &mut core.statistics;
            let stack = &mut statistics.stack;
            stack.replace(&statistics.kernel, &due);
            stack.set(Part::Idle, stack.of(Part::Idle).saturating_add_signed(idle_gained));
            statistics.kernel = due;
            statistics.translation_cycles -= statistics.translation_fault_cycles;
            statistics.translation_cycles += translation_faults;
            statistics.translation_fault_cycles = translation_faults;
            statistics.fault_cycles = share.of(all.faults);
            statistics.call_cycles = share.of(all.calls);
            statistics.merge_cycles = due.of(Part::Merges);
        }
        self.share_among_cores(&done, (&due, translation_faults), idle_gained);
    }

    /// Of the cores other than one that works, how many are idle in windows.
    fn idle_others(&self) -> f64 {
        let several = || self.windows.iter().filter(|window| window.cores > 1);
        let idle: u64 = several().map(|window| window.stack.of(Part::Idle)).sum();
        let cycles: u64 = several().map(|window| window.cycles).sum();
        if cycles == 0 { 0.0 } else { idle as f64 / cycles as f64 }
    }

    /// Of what is `due` in all windows, each one's part: as it was done since the window before, by
    /// instruction, or up to the end by the last.
    fn of_windows(&self, due: &CycleStack, before: KernelTime, share: Share) -> Vec<CycleStack> {
        let end = share.first + share.represented;
        let last = self.windows.len() - 1;
        let now = KernelTime::sum(self.timed_cores().map(|core| core.kernel));
        let (mut from, mut had) = (share.first, before.stack);
        let mut since = Vec::new();
        for (number, window) in self.windows.iter().enumerate() {
            let is_last = number == last;
            let to = if is_last { end } else { window.at + window.instructions };
            let has = if is_last { now.stack } else { window.kernel_to.stack };
            let of = window.instructions as f64 / (to.saturating_sub(from).max(1)) as f64;
            since.push((has.since(had), of));
            (from, had) = (to, has);
        }
        let mut parts = vec![CycleStack::default(); self.windows.len()];
        for part in KERNELS {
            let weights: Vec<f64> =
                since.iter().map(|(done, of)| done.of(part) as f64 * of).collect();
            let divided = divide(due.of(part), &weights);
            parts.iter_mut().zip(divided).for_each(|(stack, cycles)| stack.set(part, cycles));
        }
        parts
    }

    /// The same of each core's figures.
    fn share_among_cores(
        &mut self,
        done: &[(usize, KernelTime)],
        (due, translation_faults): (&CycleStack, u64),
        idle_gained: i64,
    ) {
        let shares = KERNELS.map(|part| {
            let weights: Vec<f64> = done.iter().map(|(_, all)| all.stack.of(part) as f64).collect();
            (part, divide(due.of(part), &weights))
        });
        let faults: Vec<f64> = done.iter().map(|(_, all)| all.access_faults as f64).collect();
        let faults = divide(translation_faults, &faults);
        // None is idle for less than nothing; where none was, the first is.
        let idle: Vec<f64> =
            self.by_core.iter().map(|core| core.stack.of(Part::Idle) as f64 + 1e-9).collect();
        let idle = divide(idle_gained.unsigned_abs(), &idle);
        for (core, idle) in self.by_core.iter_mut().zip(idle) {
            let place = done.iter().position(|&(number, _)| number == core.number);
            let Some(place) = place else { continue };
            let own = CycleStack::of_parts(
                shares.each_ref().map(|(part, divided)| (*part, divided[place])),
            );
            core.translation_cycles -= core.translation_fault_cycles;
            core.translation_cycles += faults[place];
            core.translation_fault_cycles = faults[place];
            let gained = own.sum().cast_signed() - core.kernel.sum().cast_signed();
            core.stack.replace(&core.kernel, &own);
            core.kernel = own;
            let idle = idle.cast_signed() * idle_gained.signum();
            core.stack.set(Part::Idle, core.stack.of(Part::Idle).saturating_add_signed(idle));
            core.cycles = core.cycles.map(|cycles| cycles.saturating_add_signed(gained + idle));
        }
    }
}

/// Gives a window `part` instead of what kernels did in it. So many of the other cores, `idle`, are
/// idle meanwhile.
fn replace(window: &mut Tally, part: &CycleStack, idle: f64) {
    let cores = window.cores.cast_signed();
    let gained = part.sum().cast_signed() - window.kernel.sum().cast_signed();
    let was_idle = window.stack.of(Part::Idle);
    let others = if cores > 1 { idle.min((cores - 1) as f64) } else { 0.0 };
    let wanted = gained + (gained as f64 * others).round() as i64;
    // All cores have the same time, and none is idle for less than nothing.
    let least = gained.saturating_sub_unsigned(was_idle);
    let more = (wanted.div_euclid(cores) + i64::from(wanted.rem_euclid(cores) > 0))
        .max(least.div_euclid(cores) + i64::from(least.rem_euclid(cores) > 0));
    window.stack.replace(&window.kernel, part);
    window.kernel = *part;
    window.stack.set(Part::Idle, was_idle.saturating_add_signed(cores * more - gained));
    window.cycles = window.cycles.saturating_add_signed(more);
    #[allow(clippy::cast_sign_loss)] // It is a sum of what is not negative.
    let known = (part.sum() as f64 * (1.0 + others) / window.cores as f64).round() as u64;
    window.kernel_cycles = Some(known.min(window.cycles));
}
