//! The outcome of faults and events: the work done, and what has to be flushed.

use std::ops::Range;

use flatwalk_paging::{Address, Flush, Gva, Level};

use crate::metered_memory::Work;

/// What a fault led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The page was not mapped and is now.
    Mapped,
    /// The page was mapped but did not allow the access. It does now, as the access succeeded in the
    /// trace.
    Upgraded,
    /// The page was mapped and allowed the access.
    Spurious,
}

/// A fault that was handled. The access can be repeated once the flushes are done.
#[must_use = "hardware may continue to use old translations until the flushes are done"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultOutcome<In = Gva> {
    /// Its kind.
    pub kind: FaultKind,
    /// Level that the page is a leaf of now: 1 for a base page.
    pub level: Level,
    /// The work it took.
    pub work: Work,
    /// Physical addresses that were zeroed, or read from a file: the page, those around it, and page-table nodes.
    pub filled: Vec<Range<u64>>,
    /// What to flush.
    pub flushes: Vec<Flush<In>>,
}

/// A base page whose contents were moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Where it lay.
    pub from: u64,
    /// Where it lies now.
    pub to: Range<u64>,
}

/// An event that was carried out.
#[must_use = "hardware may continue to use old translations until the flushes are done"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<In = Gva> {
    /// The work it took.
    pub work: Work,
    /// Addresses of the page-table nodes that it made, and so wrote.
    pub nodes: Vec<Range<u64>>,
    /// Base pages whose contents were moved at no cost, as the scenario of large pages wants it.
    pub moved: Vec<Moved>,
    /// What to flush.
    pub flushes: Vec<Flush<In>>,
}

/// What an operation has made stale so far: one range that covers all changed pages, and one that
/// covers the nodes that changed while their pages stayed.
pub(super) struct Flushes<In> {
    pub(super) leaves: Option<Flush<In>>,
    tables: Option<Flush<In>>,
}

impl<In> Default for Flushes<In> {
    fn default() -> Self {
        Self { leaves: None, tables: None }
    }
}

impl<In: Address> Flushes<In> {
    pub(super) fn add(&mut self, more: Flush<In>) {
        let known = if more.leaves { &mut self.leaves } else { &mut self.tables };
        *known = Some(known.map_or(more, |known| known.and(more)));
    }

    pub(super) fn extend(&mut self, more: Self) {
        more.into_iter().for_each(|flush| self.add(flush));
    }

    pub(super) fn into_iter(self) -> impl Iterator<Item = Flush<In>> {
        self.leaves.into_iter().chain(self.tables)
    }
}
