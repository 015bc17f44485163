//! What is translated: a process on the machine itself, or in a guest; and who answers its faults.

pub mod costs;
pub mod recorded;
pub mod relocate;

use flatwalk_os::{
    Configuration, FaultOutcome, OsError, Process, Statistics, VirtualMachine, Work,
};
use flatwalk_paging::{
    AccessKind, Address, Flush, Geometry, Gpa, Gva, Hpa, Mapping, NodeStatistics, Part,
};
use flatwalk_trace::Event;

use crate::system::recorded::Recorded;

/// What could not be translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untranslated {
    /// By the process's own table, or the guest's.
    Virtual(Gva),
    /// By the host's.
    GuestPhysical(Gpa),
}

/// What is to be flushed, of the process's own table and of the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flushes {
    /// Of the host's table.
    pub host: Vec<Flush<Gpa>>,
    /// Of the process's own table, or the guest's.
    pub own: Vec<Flush<Gva>>,
}

impl Flushes {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.host.is_empty() && self.own.is_empty()
    }
}

/// A fault that was handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handled {
    /// What it took.
    pub work: Work,
    /// What is to be flushed.
    pub flushes: Flushes,
    /// It was the host's to handle: the guest was left for it.
    pub by_host: bool,
}

impl Handled {
    fn by_own(FaultOutcome { work, flushes: own, .. }: FaultOutcome<Gva>) -> Self {
        Self { work, flushes: Flushes { own, ..Flushes::default() }, by_host: false }
    }

    fn by_host(FaultOutcome { work, flushes: host, .. }: FaultOutcome<Gpa>) -> Self {
        Self { work, flushes: Flushes { host, ..Flushes::default() }, by_host: true }
    }
}

impl From<flatwalk_os::Handled> for Handled {
    fn from(by: flatwalk_os::Handled) -> Self {
        match by {
            flatwalk_os::Handled::ByGuest(outcome) => Self::by_own(outcome),
            flatwalk_os::Handled::ByHost(outcome) => Self::by_host(outcome),
        }
    }
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

    /// Lets the operating system, or the host's, handle a fault. `handled` learns of it, and then of those that the
    /// guest's kernel raises while it does.
    ///
    /// # Errors
    /// When it cannot.
    pub fn fault(
        &mut self,
        untranslated: Untranslated,
        kind: AccessKind,
        handled: &mut impl FnMut(Handled),
    ) -> Result<(), OsError> {
        match (self, untranslated) {
            (Self::Native(process), Untranslated::Virtual(at)) => {
                handled(Handled::by_own(process.fault(at, kind)?));
                Ok(())
            }
            (Self::Virtual(vm), Untranslated::Virtual(at)) => {
                vm.fault(at, kind, &mut |by| handled(by.into()))
            }
            (Self::Virtual(vm), Untranslated::GuestPhysical(at)) => {
                handled(Handled::by_host(vm.host.fault(at, kind)?));
                Ok(())
            }
            (Self::Recorded(recorded), Untranslated::Virtual(at)) => Err(recorded.missing(at)),
            (Self::Native(_) | Self::Recorded(_), Untranslated::GuestPhysical(_)) => {
                unreachable!("there is no guest")
            }
        }
    }

    /// Lets the program access each page of `length_bytes` from `address`; `handled` learns of each
    /// fault that this raises. A recorded machine's tables say themselves what is mapped.
    ///
    /// # Errors
    /// When the operating system, or the host's, cannot handle one.
    pub fn access_pages(
        &mut self,
        address: Gva,
        length_bytes: u64,
        kind: AccessKind,
        handled: &mut impl FnMut(Handled),
    ) -> Result<(), OsError> {
        match self {
            Self::Native(process) => {
                process.access_pages(address, length_bytes, kind, &mut |outcome| {
                    handled(Handled::by_own(outcome));
                })
            }
            Self::Virtual(vm) => {
                vm.access_pages(address, length_bytes, kind, &mut |by| handled(by.into()))
            }
            Self::Recorded(_) => Ok(()),
        }
    }

    /// Carries out an event; returns what it took, and what is to be flushed. `handled` learns of
    /// each fault of the host's that it raises.
    ///
    /// # Errors
    /// When the operating system cannot.
    pub fn apply(
        &mut self,
        event: &Event,
        handled: &mut impl FnMut(Handled),
    ) -> Result<(Work, Flushes), OsError> {
        match self {
            Self::Native(process) => {
                let outcome = process.apply(event)?;
                Ok((outcome.work, Flushes { own: outcome.flushes, ..Flushes::default() }))
            }
            Self::Recorded(recorded) => {
                let own = recorded.apply(event)?.into_iter().collect();
                Ok((Work::default(), Flushes { own, ..Flushes::default() }))
            }
            Self::Virtual(vm) => {
                let by_host = &mut |outcome| handled(Handled::by_host(outcome));
                let (outcome, host) = vm.apply(event, by_host)?;
                Ok((outcome.work, Flushes { host, own: outcome.flushes }))
            }
        }
    }

    /// Calls `visit` for each page in `length_bytes` from `address`, with where it lies in the machine's own
    /// memory. Of a guest's page and the host's behind it, the smaller one is the page.
    pub fn visit(
        &self,
        address: u64,
        length_bytes: u64,
        visit: &mut impl FnMut(Mapping<Gva, Hpa>),
    ) {
        let start = Gva::new(address);
        // Beyond the table nothing is mapped.
        let _ = match self {
            Self::Recorded(_) => Ok(()),
            Self::Native(process) => {
                process.table().visit(process.memory(), start, length_bytes, visit)
            }
            Self::Virtual(vm) => {
                let (guest, host) = (vm.guest.table(), vm.host.table());
                guest.visit(vm.guest.memory(), start, length_bytes, &mut |page| {
                    let Mapping { input, frame, level, attributes } = page;
                    let span = guest.geometry().span(level);
                    let mut at = 0;
                    while at < span {
                        let placed = frame.offset(at);
                        let Ok(leaf) = host.translate(vm.host.memory(), placed) else { break };
                        let within = host.geometry().within(placed.raw(), leaf.level);
                        let (input, frame) = (input.offset(at), leaf.frame.offset(within));
                        let level = level.min(leaf.level);
                        visit(Mapping { input, frame, level, attributes });
                        at += guest.geometry().span(level);
                    }
                })
            }
        };
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

    /// The tables that are trees, in outline: whose each is, and its geometry. A recorded machine's has what
    /// its walks have read.
    pub fn outlines(&self) -> Vec<(&'static str, Geometry, Vec<Part>)> {
        match self {
            Self::Native(process) => vec![("", process.table().geometry(), process.outline())],
            Self::Virtual(vm) => vec![
                ("guest", vm.guest.table().geometry(), vm.guest.outline()),
                ("host", vm.host.table().geometry(), vm.host.outline()),
            ],
            Self::Recorded(recorded) => vec![("", recorded.geometry(), recorded.outline())],
        }
        .into_iter()
        .filter_map(|(whose, geometry, outline)| Some((whose, geometry, outline?)))
        .collect()
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

#[cfg(test)]
mod tests;
