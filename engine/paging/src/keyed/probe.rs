//! Walks of keyed tables: reads that are made at once, each of which ends nowhere, at the translation,
//! or at a further read.

use crate::addr::Physical;
use crate::geometry::Level;
use crate::memory::LINE_BYTES;
use crate::walk::{Fault, Leaf};

/// A line that a walk reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe<A> {
    /// Where it is; aligned to its 64 bytes.
    pub at: A,
    /// Where the block begins that it is numbered in, such as a way.
    pub base: A,
    /// Under what reads of its kind are counted; see [`super::Design::read_names`].
    pub class: u8,
    /// Level of the pages that it serves.
    pub level: Level,
    /// What it is to the table, whose own affair that is.
    pub kind: u8,
    /// The way, or how many lines or nodes were read before it.
    pub way: u8,
    /// Where it is not the whole line: which word of it is meant.
    pub word: u8,
}

impl<A: Physical> Probe<A> {
    /// A line with entries of pages of `level`, looked at as a whole.
    #[inline]
    pub fn whole(at: A, base: A, level: Level, way: u8) -> Self {
        Self { at, base, class: level, level, kind: 0, way, word: 0 }
    }

    /// The word at `at`, and what stands behind it in its line.
    #[inline]
    pub fn word(at: A, base: A, level: Level, way: u8) -> Self {
        let within = at.raw() % LINE_BYTES;
        let line = A::new(at.raw() - within);
        Self { word: (within / 8) as u8, ..Self::whole(line, base, level, way) }
    }

    /// Number of the line, counted from the base.
    pub fn line(&self) -> u64 {
        self.at.raw().wrapping_sub(self.base.raw()) / LINE_BYTES
    }

    /// The read, as one who takes note of it sees it; `found`: it is what was looked for.
    pub fn noted(&self, found: bool) -> LineRead {
        let Self { level, kind, way, .. } = *self;
        LineRead { level, kind, way, number: self.line(), found }
    }
}

/// A line that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRead {
    /// As [`Probe::level`].
    pub level: Level,
    /// As [`Probe::kind`].
    pub kind: u8,
    /// As [`Probe::way`].
    pub way: u8,
    /// As [`Probe::line`].
    pub number: u64,
    /// It is the line that was looked for.
    pub found: bool,
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

impl<A: Physical> Answer<A> {
    /// The translation, if it led to that.
    #[inline]
    pub fn leaf(self) -> Option<Leaf<A>> {
        match self {
            Self::Leaf(leaf) => Some(leaf),
            Self::Nothing | Self::Follow(_) | Self::Fault(_) => None,
        }
    }

    /// The further read, if it led to one.
    #[inline]
    pub fn next(self) -> Option<Probe<A>> {
        match self {
            Self::Follow(next) => Some(next),
            Self::Nothing | Self::Leaf(_) | Self::Fault(_) => None,
        }
    }
}

/// Most lines that a walk asks for at once.
const MOST_PROBES: usize = 12;

/// Lines that a walk asks for at once.
#[derive(Clone, Copy, Debug)]
pub struct Probes<A> {
    probes: [Probe<A>; MOST_PROBES],
    used: usize,
}

impl<A: Physical> Default for Probes<A> {
    #[inline]
    fn default() -> Self {
        let nothing = Probe::whole(A::new(0), A::new(0), 1, 0);
        Self { probes: [nothing; MOST_PROBES], used: 0 }
    }
}

impl<A: Physical> Probes<A> {
    /// Adds one, of up to 12.
    #[inline]
    pub fn push(&mut self, probe: Probe<A>) {
        self.probes[self.used] = probe;
        self.used += 1;
    }

    /// All of them.
    #[inline]
    pub fn as_slice(&self) -> &[Probe<A>] {
        &self.probes[..self.used]
    }
}
