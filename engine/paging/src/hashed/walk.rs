//! Walks through a hashed table: reads that are made at once, each of which ends nowhere, at the
//! translation, or at a further read.

use super::line::LINE_BYTES;
use crate::addr::Physical;
use crate::geometry::Level;
use crate::walk::{Fault, Leaf};

/// What a line of a hashed table is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The entries of pages of this level.
    Pages(Level),
    /// Nodes with such entries, linked to chains.
    Chain(Level),
    /// Lines of such entries, which may be put behind others.
    Open(Level),
    /// The anchors of chains of frames of such pages.
    Anchor(Level),
    /// The entries of such frames.
    Frame(Level),
    /// The cuckoo walk table with a header for each line of entries of this level.
    WalkTable(Level),
}

impl Part {
    /// The level of the pages that it is for; `None` if it is for lines of entries.
    #[inline]
    pub fn pages(self) -> Option<Level> {
        match self {
            Self::Pages(level)
            | Self::Chain(level)
            | Self::Open(level)
            | Self::Anchor(level)
            | Self::Frame(level) => Some(level),
            Self::WalkTable(_) => None,
        }
    }
}

/// A line that a walk reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe<A> {
    /// Where it is; aligned to its 64 bytes.
    pub at: A,
    /// What it is part of.
    pub part: Part,
    /// The way, or how many lines or nodes were read before it.
    pub way: u8,
    /// Where the way, or the table of buckets, begins.
    pub base: A,
    /// Where it is not the whole line: which word of it is meant.
    pub(super) word: u8,
    /// Of a chain: it is the entry, and not the head of a node.
    pub(super) entry: bool,
}

impl<A: Physical> Probe<A> {
    /// A line that is looked at as a whole.
    #[inline]
    pub(super) fn whole(at: A, part: Part, way: u8, base: A) -> Self {
        Self { at, part, way, base, word: 0, entry: false }
    }

    /// The word at `at`, and what stands behind it in its line.
    #[inline]
    pub(super) fn word(at: A, part: Part, way: u8, base: A) -> Self {
        let within = at.raw() % LINE_BYTES;
        let line = A::new(at.raw() - within);
        Self { word: (within / 8) as u8, ..Self::whole(line, part, way, base) }
    }

    /// Number of the line in its way or table.
    pub fn line(&self) -> u64 {
        self.at.raw().wrapping_sub(self.base.raw()) / LINE_BYTES
    }
}

/// What a line led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<A> {
    /// The page is not there.
    Nothing,
    /// To the translation.
    Leaf(Leaf<A>),
    /// To a further read.
    Follow(Probe<A>),
    /// To an entry that says nothing sensible.
    Fault(Fault<A>),
}

/// Most lines that a walk asks for at once.
const MOST_PROBES: usize = 3 * super::cuckoo::MOST_WAYS;

/// Lines that a walk asks for at once.
#[derive(Clone, Copy, Debug)]
pub struct Probes<A> {
    probes: [Probe<A>; MOST_PROBES],
    used: usize,
}

impl<A: Physical> Probes<A> {
    #[inline]
    pub(super) fn none() -> Self {
        let nothing = Probe::whole(A::new(0), Part::Pages(1), 0, A::new(0));
        Self { probes: [nothing; MOST_PROBES], used: 0 }
    }

    #[inline]
    pub(super) fn push(&mut self, probe: Probe<A>) {
        self.probes[self.used] = probe;
        self.used += 1;
    }

    #[inline]
    pub(super) fn extend(&mut self, probe: Option<Probe<A>>) {
        if let Some(probe) = probe {
            self.push(probe);
        }
    }

    /// All of them.
    #[inline]
    pub fn as_slice(&self) -> &[Probe<A>] {
        &self.probes[..self.used]
    }
}

/// Where a page of one size can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// There is none.
    Nowhere,
    /// In any way.
    Anywhere,
    /// In this way, if there is one.
    Way(u8),
}

/// What is known of a page before its entry is looked for: for each level, where it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint(pub(super) [Where; 3]);

impl Hint {
    /// Where a page of `level` can be.
    pub fn at(&self, level: Level) -> Where {
        self.0[usize::from(level) - 1]
    }
}
