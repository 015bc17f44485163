//! Side lines: lines of memory that help a walk to find its entry, and that the walker's caches hold.

use crate::memory::Line;

/// Structures of side lines that a table can have.
pub const MOST_SIDE: usize = 4;

/// A structure of side lines, and the walker's cache of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideStructure {
    /// Name of the cache in results.
    pub cache: String,
    /// How many lines the cache holds.
    pub lines: SideLineCount,
    /// A line that the cache lacks must be read before the walk can go on. Else the walk does without,
    /// and the line is read afterwards.
    pub needed: bool,
}

/// How many side lines a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideLineCount {
    /// As many as the machine says under this key of `hashed_walks.cwc_entries`.
    Machine(&'static str),
    /// So many, as the scheme says.
    Scheme(u32),
}

/// What is known of a page before its entry is looked for: one line of each structure, where it is at
/// hand.
#[derive(Clone, Copy, Debug, Default)]
pub struct SideLines([Option<Line>; MOST_SIDE]);

impl SideLines {
    /// The line of a structure.
    #[inline]
    pub fn get(&self, structure: usize) -> Option<&Line> {
        self.0[structure].as_ref()
    }

    /// Adds the line of a structure.
    #[inline]
    pub fn set(&mut self, structure: usize, line: Line) {
        self.0[structure] = Some(line);
    }
}
