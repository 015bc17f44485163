//! What the operating system's work costs.

use flatwalk_os::Work;

use super::Handled;
use crate::config::machine;

/// What the operating system's work costs on a machine.
#[derive(Clone, Copy, Debug)]
pub struct Costs<'a> {
    /// The machine's figures.
    pub os: &'a machine::Os,
    /// Cycles to leave a guest and to enter it again.
    pub exit_cycles: u64,
    /// Whatever the process's kernel writes into its table leaves the guest, and faults do.
    pub shadow: bool,
    /// Cycles to merge a node of the process's own table, or to take one apart.
    pub merge_cycles: u64,
    /// The same for the host's table.
    pub host_merge_cycles: u64,
}

impl Costs<'_> {
    /// Cycles that a fault takes: the trap, for the host's the exit too, and the work.
    pub fn fault_cycles(&self, handled: &Handled, l1d_latency: u64) -> u64 {
        let (exit, merge) = if handled.by_host {
            (self.exit_cycles, self.host_merge_cycles)
        } else {
            (if self.shadow { self.exit_cycles } else { 0 }, self.merge_cycles)
        };
        self.os.fault_cycles + exit + self.work(&handled.work, merge, l1d_latency)
    }

    /// Cycles that the process's own kernel's work takes.
    pub fn work_cycles(&self, work: &Work, l1d_latency: u64) -> u64 {
        self.work(work, self.merge_cycles, l1d_latency)
    }

    /// Zeroing, entries read and written, and nodes merged at `merge_cycles` each.
    fn work(&self, work: &Work, merge_cycles: u64, l1d_latency: u64) -> u64 {
        (work.data_bytes + work.node_bytes) / self.os.zero_bytes_per_cycle
            + work.entries_read * l1d_latency
            + work.entries_written * if self.shadow { 1 + self.exit_cycles } else { 1 }
            + work.density_changes * merge_cycles
    }
}
