//! What is translated: a process on the machine itself, or in a guest; and who answers its faults.

use flatwalk_os::{
    Access, Configuration, OrderedNodes, OsError, Process, Statistics, VirtualMachine, Work,
};
use flatwalk_paging::{Flush, Geometry, Gpa, Gva, Hpa, NodeStatistics};
use flatwalk_trace::Event;

use crate::machine;
use crate::mmu::{Mmu, Purpose};

/// What could not be translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untranslated {
    /// By the process's own table, or the guest's.
    Virtual(Gva),
    /// By the host's.
    GuestPhysical(Gpa),
}

/// A fault that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handled {
    /// What it took.
    pub work: Work,
    /// Translations were flushed.
    pub flushed: bool,
    /// It was the host's to handle: the guest was left for it.
    pub by_host: bool,
}

/// The table, or tables, and who answers their faults.
pub enum Space {
    /// A process on the machine itself.
    Native(Box<Process<Gva, Hpa>>),
    /// A process in a guest.
    Virtual(Box<VirtualMachine>),
}

impl Space {
    /// A process as `own` says; in a guest if there is a `host`.
    ///
    /// # Errors
    /// As [`Process::new`].
    pub fn new(own: &Configuration, host: Option<&Configuration>) -> Result<Self, OsError> {
        Ok(match host {
            None => Self::Native(Box::new(Process::new(own)?)),
            Some(host) => Self::Virtual(Box::new(VirtualMachine::new(own, host)?)),
        })
    }

    /// Lets the operating system answer a fault, and carries out the flushes that it asks for.
    ///
    /// # Errors
    /// When it cannot.
    pub fn fault(
        &mut self,
        untranslated: Untranslated,
        purpose: Purpose,
        mmu: &mut Mmu,
    ) -> Result<Handled, OsError> {
        let access = match purpose {
            Purpose::Load => Access::Load,
            Purpose::Store => Access::Store,
            Purpose::Fetch => Access::Fetch,
        };
        match (self, untranslated) {
            (Self::Native(process), Untranslated::Virtual(at)) => {
                let outcome = process.fault(at, access)?;
                flush(mmu, &outcome.flushes);
                let flushed = !outcome.flushes.is_empty();
                Ok(Handled { work: outcome.work, flushed, by_host: false })
            }
            (Self::Virtual(vm), Untranslated::Virtual(at)) => {
                let outcome = vm.guest.fault(at, access)?;
                flush(mmu, &outcome.flushes);
                let flushed = !outcome.flushes.is_empty();
                Ok(Handled { work: outcome.work, flushed, by_host: false })
            }
            (Self::Virtual(vm), Untranslated::GuestPhysical(at)) => {
                let outcome = vm.host.fault(at, access)?;
                for flush in &outcome.flushes {
                    mmu.flush_host(flush);
                }
                let flushed = !outcome.flushes.is_empty();
                Ok(Handled { work: outcome.work, flushed, by_host: true })
            }
            (Self::Native(_), Untranslated::GuestPhysical(_)) => {
                unreachable!("there is no guest")
            }
        }
    }

    /// Carries out an event, and the flushes that it asks for; returns what it took.
    ///
    /// # Errors
    /// When the operating system cannot.
    pub fn apply(&mut self, event: &Event, mmu: &mut Mmu) -> Result<Work, OsError> {
        let outcome = match self {
            Self::Native(process) => process.apply(event)?,
            Self::Virtual(vm) => {
                let (outcome, host) = vm.apply(event)?;
                for flush in &host {
                    mmu.flush_host(flush);
                }
                outcome
            }
        };
        flush(mmu, &outcome.flushes);
        Ok(outcome.work)
    }

    /// The geometry of the process's own table.
    pub fn geometry(&self) -> Geometry {
        match self {
            Self::Native(process) => process.table().geometry(),
            Self::Virtual(vm) => vm.guest.table().geometry(),
        }
    }

    /// Where the nodes of a process on the machine itself stand in order, if they are to.
    pub fn ordered_nodes(&self) -> Option<&OrderedNodes<Hpa>> {
        match self {
            Self::Native(process) => process.ordered_nodes(),
            Self::Virtual(_) => None,
        }
    }

    /// What the process's operating system counted since the start.
    pub fn statistics(&self) -> Statistics {
        match self {
            Self::Native(process) => process.statistics(),
            Self::Virtual(vm) => vm.guest.statistics(),
        }
    }

    /// What the host counted since the start, if there is one.
    pub fn host_statistics(&self) -> Option<Statistics> {
        match self {
            Self::Native(_) => None,
            Self::Virtual(vm) => Some(vm.host.statistics()),
        }
    }

    /// Nodes of the process's own table.
    pub fn nodes(&self) -> Vec<NodeStatistics> {
        match self {
            Self::Native(process) => process.nodes(),
            Self::Virtual(vm) => vm.guest.nodes(),
        }
    }

    /// Nodes of the host's table, if there is one.
    pub fn host_nodes(&self) -> Option<Vec<NodeStatistics>> {
        match self {
            Self::Native(_) => None,
            Self::Virtual(vm) => Some(vm.host.nodes()),
        }
    }

    /// Bytes in the process's pages.
    pub fn data_bytes(&self) -> u64 {
        match self {
            Self::Native(process) => process.data_bytes(),
            Self::Virtual(vm) => vm.guest.data_bytes(),
        }
    }
}

fn flush(mmu: &mut Mmu, flushes: &[Flush<Gva>]) {
    for flush in flushes {
        mmu.flush(flush);
    }
}

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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};
    use std::path::Path;

    use flatwalk_os::Random;
    use flatwalk_paging::Address;

    use super::*;
    use crate::machine::{Scheme, TranslationMode};
    use crate::mmu::NoClock;
    use crate::run::{Mode, Piece, Run};
    use crate::testing::{Scenario, go};

    /// Below 2^39, where tables of three levels reach too.
    const DATA: u64 = 64 << 30;
    const BYTES: u64 = 64 << 20;

    fn shipped() -> Vec<Scheme> {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/flatwalk/data/schemes");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let schemes: Vec<_> = files
            .map(|path| toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
            .collect();
        assert!(schemes.len() >= 11);
        schemes
    }

    /// Where `address` lies for an access that is made now.
    fn place(run: &mut Run, address: u64, purpose: Purpose) -> Hpa {
        let access = match purpose {
            Purpose::Store => crate::testing::Do::Store(address),
            Purpose::Load | Purpose::Fetch => crate::testing::Do::Load(address),
        };
        go(run, &[access]);
        let answer = run.mmu.translate(Gva::new(address), purpose, 0, &mut run.space, &mut NoClock);
        answer.unwrap().physical
    }

    #[test]
    fn a_word_written_through_any_scheme_reads_back() {
        for scheme in shipped() {
            for large_pages in [0, 50, 100] {
                let mut scenario = Scenario::new(scheme.clone());
                scenario.mode = Mode::Functional;
                scenario.large_pages = large_pages;
                scenario.host_large_pages = large_pages;
                let mut run = scenario.start(&[(DATA, BYTES)], false);
                let mut random = Random::new(u64::from(large_pages));
                // What the program believes, and what lies in the machine's memory.
                let (mut written, mut memory) = (BTreeMap::new(), HashMap::new());
                for value in 0..1500 {
                    let address = DATA + random.below(BYTES / 8) * 8;
                    memory.insert(place(&mut run, address, Purpose::Store), value);
                    written.insert(address, value);
                    if value % 500 == 250 {
                        let (start, length) = (DATA + random.below(BYTES >> 12) * 4096, 1 << 20);
                        let length = length.min(DATA + BYTES - start);
                        run.take(&Piece::Event(Event::Unmap { address: start, length })).unwrap();
                        written.retain(|address, _| !(start..start + length).contains(address));
                    }
                }
                for (&address, value) in &written {
                    let at = place(&mut run, address, Purpose::Load);
                    assert_eq!(memory.get(&at), Some(value), "{} at {address:#x}", scheme.name);
                }
                let walked = scheme.translation == TranslationMode::Walked
                    && scheme.direct_segment.is_none();
                assert_eq!(run.mmu.statistics.total().walks > 0, walked, "{}", scheme.name);
            }
        }
    }
}
