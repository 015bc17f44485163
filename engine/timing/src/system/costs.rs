//! What the operating system's work costs.

use flatwalk_os::Work;

use super::{Flushes, Handled};
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
    /// Other cores run the process, whose TLBs and page-walk caches are to be flushed, too.
    pub has_other_cores: bool,
}

/// What some work of an operating system's costs, in cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// All but the others.
    pub work: u64,
    /// Merging nodes and taking them apart.
    pub merges: u64,
    /// Leaving the guest because of its shadowed table.
    pub exits: u64,
    /// Waiting until other cores have flushed their TLBs.
    pub shootdowns: u64,
}

impl Cost {
    /// All of it.
    pub fn cycles(&self) -> u64 {
        self.work + self.merges + self.exits + self.shootdowns
    }
}

impl Costs<'_> {
    /// What a fault costs: the trap, for the host's the exit too, and the work.
    pub fn fault(&self, handled: &Handled, l1d_latency: u64) -> Cost {
        let merge_cycles = if handled.by_host { self.host_merge_cycles } else { self.merge_cycles };
        let mut cost = self.work(&handled.work, merge_cycles, &handled.flushes, l1d_latency);
        cost.work += self.os.fault_cycles;
        if handled.by_host {
            cost.work += self.exit_cycles;
        } else if self.shadow {
            cost.exits += self.exit_cycles;
        }
        cost
    }

    /// What the process's own kernel's work costs in a system call, with the flushes that it asks for.
    pub fn call(&self, work: &Work, flushes: &Flushes, l1d_latency: u64) -> Cost {
        self.work(work, self.merge_cycles, flushes, l1d_latency)
    }

    /// What `flushes` cost each core that carries them out for another's sake, and that one, which waits
    /// for all of them: they flush at the same time.
    pub fn shootdown(&self, flushes: &Flushes) -> u64 {
        let is_asked = self.has_other_cores && !flushes.is_empty();
        if is_asked { self.os.shootdown_cycles } else { 0 }
    }

    /// Zeroing, entries read and written, nodes merged at `merge_cycles` each, and other cores' flushes.
    fn work(&self, work: &Work, merge_cycles: u64, flushes: &Flushes, l1d_latency: u64) -> Cost {
        let zeroing = (work.data_bytes + work.node_bytes) / self.os.zero_bytes_per_cycle;
        Cost {
            work: zeroing + work.entries_read * l1d_latency + work.entries_written,
            merges: work.density_changes * merge_cycles,
            exits: if self.shadow { work.entries_written * self.exit_cycles } else { 0 },
            shootdowns: self.shootdown(flushes),
        }
    }
}
