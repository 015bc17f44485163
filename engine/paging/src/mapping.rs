//! What tables say of themselves and of changes: pages that are mapped, what must be flushed, what a
//! change did, and the memory that a table takes.

use crate::addr::Address;
use crate::entry::Attributes;
use crate::error::TableError;
use crate::geometry::{Level, Width};

/// What must be flushed before anyone relies on a change. Dropping it unseen is a bug that the
/// compiler reports.
#[must_use = "hardware may go on using the old translation until this is flushed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush<In> {
    /// First address concerned.
    pub start: In,
    /// Last address concerned: a length could not say that all 2^64 bytes are.
    pub last: In,
    /// TLB entries that translate any part of the range are stale.
    pub leaves: bool,
    /// Page-walk-cache entries that serve any part of the range are stale.
    pub tables: bool,
}

impl<In: Address> Flush<In> {
    /// Of the whole address space.
    pub fn everything(leaves: bool, tables: bool) -> Self {
        Self { start: In::new(0), last: In::new(u64::MAX), leaves, tables }
    }

    /// Of the `bytes` (not 0) from `start`, which end within the address space.
    pub(crate) fn of(start: In, bytes: u64, leaves: bool, tables: bool) -> Self {
        Self { start, last: start.offset(bytes - 1), leaves, tables }
    }

    /// One that covers both.
    pub fn and(self, other: Self) -> Self {
        Self {
            start: self.start.min(other.start),
            last: self.last.max(other.last),
            leaves: self.leaves | other.leaves,
            tables: self.tables | other.tables,
        }
    }

    /// Bytes concerned, 2^64 at most.
    pub fn length_bytes(&self) -> u128 {
        u128::from(self.last.raw() - self.start.raw()) + 1
    }
}

/// A page that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<In, Out> {
    /// First address of the page.
    pub input: In,
    /// Where it lies.
    pub frame: Out,
    /// Level that a page of this size is a leaf of.
    pub level: Level,
    /// Rights, accessed and dirty bits (of replicas: of any).
    pub attributes: Attributes,
}

/// A set of levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels(u8);

impl Levels {
    /// True if `level` is among them.
    #[inline]
    pub fn contains(self, level: Level) -> bool {
        self.0 >> level & 1 != 0
    }

    /// True if there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn insert(&mut self, level: Level) {
        self.0 |= 1 << level;
    }
}

/// What an operating system has to see to after it changed a table.
#[must_use = "hardware may go on using what is stale until it is flushed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made<In> {
    /// Nodes narrower than the shape asked for, for want of a large block.
    pub fallbacks: u32,
    /// Levels of the entries that came to point to a new node.
    pub filled: Levels,
    /// What must be flushed.
    pub flush: Option<Flush<In>>,
}

impl<In> Made<In> {
    pub(crate) fn nothing() -> Self {
        Self { fallbacks: 0, filled: Levels::default(), flush: None }
    }
}

/// What keeping a table's density took.
#[must_use = "hardware may go on using freed nodes until this is flushed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DensityChanges<In> {
    /// Nodes merged with their children.
    pub merged: u32,
    /// Merged nodes taken apart.
    pub unmerged: u32,
    /// Changes that were due, but there was no memory for them.
    pub refused: u32,
    /// What must be flushed; TLB entries stay valid.
    pub flush: Option<Flush<In>>,
}

impl<In: Address> DensityChanges<In> {
    pub(crate) fn nothing() -> Self {
        Self { merged: 0, unmerged: 0, refused: 0, flush: None }
    }

    /// These and more.
    pub(crate) fn and(self, more: Self) -> Self {
        let flush = match (self.flush, more.flush) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
        Self {
            merged: self.merged + more.merged,
            unmerged: self.unmerged + more.unmerged,
            refused: self.refused + more.refused,
            flush,
        }
    }

    /// Counts a change, or that there was no memory for it; true if it was made.
    pub(crate) fn count(
        &mut self,
        result: Result<Flush<In>, TableError>,
        counter: impl FnOnce(&mut Self) -> &mut u32,
    ) -> bool {
        match result {
            Ok(flush) => {
                *counter(self) += 1;
                // All lie on one path, so the longest contains the others.
                let length = flush.length_bytes();
                self.flush = self.flush.filter(|f| f.length_bytes() > length).or(Some(flush));
                true
            }
            Err(error) => {
                // A corrupt table is told to whoever next maps or unmaps there.
                self.refused += u32::from(error == TableError::OutOfMemory);
                false
            }
        }
    }
}

/// The blocks of memory of one kind that a table has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatistics {
    /// What results call them: levels spanned, such as `L4L3`, for nodes of a tree.
    pub name: String,
    /// Topmost level of the nodes; of other tables, the level of the pages that they serve.
    pub level: Level,
    /// Levels that they span.
    pub width: Width,
    /// Size of one in bytes.
    pub node_bytes: u64,
    /// How many.
    pub nodes: u64,
    /// Entries in use in all of them; lines or nodes in use, of tables that are not trees.
    pub entries_used: u64,
}

/// What an entry of a tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// It leads to a node.
    Table,
    /// It maps a page of its own size.
    Page,
    /// It maps a part of a larger page, and repeats its mapping.
    Replica,
}

/// Entries of a node that are in use one after the other, and of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries {
    /// Number of the first one in its node.
    pub index: u64,
    /// How many.
    pub count: u64,
    /// What they are.
    pub kind: EntryKind,
    /// The first one, as it stands in memory.
    pub word: u64,
}

/// A part of a tree in outline: neighbouring nodes of one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of the part whose entries lead to them; of the root its own.
    pub under: usize,
    /// Topmost level of the nodes.
    pub level: Level,
    /// Levels that they span.
    pub width: Width,
    /// They were to be wider, but there was no memory for that.
    pub is_fallback: bool,
    /// The first address under them. Where there were too many parts, not all addresses up to `last` are.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// How many nodes.
    pub nodes: u64,
    /// Entries that lead to nodes.
    pub tables: u64,
    /// Entries that map a page of their own size.
    pub pages: u64,
    /// Entries that map a part of a larger page, and repeat its mapping.
    pub replicas: u64,
    /// Physical address of the first node.
    pub node: u64,
    /// The first entries of that node, and how many more it has in use.
    pub entries: Vec<Entries>,
    /// See `entries`.
    pub entries_left: u64,
}

/// How often the tables of a page table were resized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resizes {
    /// Times that a table began to grow.
    pub grown: u64,
    /// Times that one began to shrink.
    pub shrunk: u64,
    /// Times that one should have grown or shrunk, but there was no contiguous memory for its ways.
    pub refused: u64,
    /// Times that it grew less than it should, for the same reason.
    pub curtailed: u64,
}

impl Resizes {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            grown: self.grown + other.grown,
            shrunk: self.shrunk + other.shrunk,
            refused: self.refused + other.refused,
            curtailed: self.curtailed + other.curtailed,
        }
    }
}
