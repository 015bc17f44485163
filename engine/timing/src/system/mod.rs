//! What is translated: a process on the machine itself, or in a guest; and who answers its faults.

pub mod costs;
pub mod recorded;
pub mod relocate;

use flatwalk_os::{Configuration, OsError, Process, Statistics, VirtualMachine, Work};
use flatwalk_paging::{AccessKind, Flush, Geometry, Gpa, Gva, Hpa, NodeStatistics};
use flatwalk_trace::Event;

use crate::mmu::Mmu;
use crate::system::recorded::Recorded;

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
pub enum System {
    /// A process on the machine itself.
    Native(Box<Process<Gva, Hpa>>),
    /// A process in a guest.
    Virtual(Box<VirtualMachine>),
    /// A process of a recorded machine, by that machine's own tables.
    Recorded(Box<Recorded>),
}

impl System {
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
        kind: AccessKind,
        mmu: &mut Mmu,
    ) -> Result<Handled, OsError> {
        match (self, untranslated) {
            (Self::Native(process), Untranslated::Virtual(at)) => {
                let outcome = process.fault(at, kind)?;
                flush(mmu, &outcome.flushes);
                let flushed = !outcome.flushes.is_empty();
                Ok(Handled { work: outcome.work, flushed, by_host: false })
            }
            (Self::Virtual(vm), Untranslated::Virtual(at)) => {
                let outcome = vm.guest.fault(at, kind)?;
                flush(mmu, &outcome.flushes);
                let flushed = !outcome.flushes.is_empty();
                Ok(Handled { work: outcome.work, flushed, by_host: false })
            }
            (Self::Virtual(vm), Untranslated::GuestPhysical(at)) => {
                let outcome = vm.host.fault(at, kind)?;
                for flush in &outcome.flushes {
                    mmu.flush_host(flush);
                }
                let flushed = !outcome.flushes.is_empty();
                Ok(Handled { work: outcome.work, flushed, by_host: true })
            }
            (Self::Recorded(recorded), Untranslated::Virtual(at)) => Err(recorded.missing(at)),
            (Self::Native(_) | Self::Recorded(_), Untranslated::GuestPhysical(_)) => {
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
            Self::Recorded(recorded) => {
                if let Some(stale) = recorded.apply(event)? {
                    mmu.flush(&stale);
                }
                return Ok(Work::default());
            }
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
            Self::Recorded(recorded) => recorded.geometry(),
        }
    }

    /// The process, if it is on the machine itself.
    pub fn native(&self) -> Option<&Process<Gva, Hpa>> {
        match self {
            Self::Native(process) => Some(process),
            Self::Virtual(_) | Self::Recorded(_) => None,
        }
    }

    /// The guest and what it runs on, if it is in one.
    pub fn virtual_machine(&self) -> Option<&VirtualMachine> {
        match self {
            Self::Native(_) | Self::Recorded(_) => None,
            Self::Virtual(vm) => Some(vm),
        }
    }

    /// What the process's operating system counted since the start.
    pub fn statistics(&self) -> Statistics {
        match self {
            Self::Native(process) => process.statistics(),
            Self::Virtual(vm) => vm.guest.statistics(),
            Self::Recorded(_) => Statistics::default(),
        }
    }

    /// What the host counted since the start, if there is one.
    pub fn host_statistics(&self) -> Option<Statistics> {
        match self {
            Self::Native(_) | Self::Recorded(_) => None,
            Self::Virtual(vm) => Some(vm.host.statistics()),
        }
    }

    /// Nodes of the process's own table.
    pub fn nodes(&self) -> Vec<NodeStatistics> {
        match self {
            Self::Native(process) => process.nodes(),
            Self::Virtual(vm) => vm.guest.nodes(),
            Self::Recorded(recorded) => recorded.nodes(),
        }
    }

    /// Nodes of the host's table, if there is one.
    pub fn host_nodes(&self) -> Option<Vec<NodeStatistics>> {
        match self {
            Self::Native(_) | Self::Recorded(_) => None,
            Self::Virtual(vm) => Some(vm.host.nodes()),
        }
    }

    /// Bytes in the process's pages.
    pub fn data_bytes(&self) -> u64 {
        match self {
            Self::Native(process) => process.data_bytes(),
            Self::Virtual(vm) => vm.guest.data_bytes(),
            Self::Recorded(recorded) => recorded.data_bytes(),
        }
    }
}

fn flush(mmu: &mut Mmu, flushes: &[Flush<Gva>]) {
    for flush in flushes {
        mmu.flush(flush);
    }
}

#[cfg(test)]
mod tests;
