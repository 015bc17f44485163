//! Lines of memory, and the words that stand for them in a cache's sets.

use flatwalk_paging::{Address, Hpa, LINE_BYTES};

/// log2 of the line size in bytes.
pub const LINE_SHIFT: u32 = LINE_BYTES.ilog2();

/// log2 of [`PAGE_BYTES`].
pub(crate) const PAGE_SHIFT: u32 = 12;

/// Bytes of the smallest page that any geometry has. An access is translated once for each that it
/// touches, and data prefetchers know no others.
pub(crate) const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;

/// Where the page begins that `address` lies in.
#[inline]
pub(crate) fn page_start(address: u64) -> u64 {
    address & !(PAGE_BYTES - 1)
}

/// How far `address` lies within its page.
#[inline]
pub(crate) fn page_offset(address: u64) -> u64 {
    address & (PAGE_BYTES - 1)
}

/// The last byte of an access to `size` bytes. One of unknown size has one.
#[inline]
pub(crate) fn last_byte(address: u64, size: u16) -> u64 {
    address.wrapping_add(u64::from(size.max(1)) - 1)
}

/// The number of a 64-byte line of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Line(pub u64);

impl Line {
    /// The line that `address` lies in.
    #[inline]
    pub fn of(address: Hpa) -> Self {
        Self(address.raw() >> LINE_SHIFT)
    }

    /// The program that owns it, where programs share a cache.
    #[inline]
    pub(super) fn owner(self) -> u64 {
        self.0 >> OWNER_SHIFT
    }

    /// True if it is no memory's, and stands for a line that nothing is known of.
    #[inline]
    pub(super) fn is_nowhere(self) -> bool {
        self.0 & NOWHERE != 0
    }
}

/// The bit of a line's number from which on it says who owns it, where programs share a cache. All
/// memory that a machine can have lies below.
pub const OWNER_SHIFT: u32 = 40;

/// Lines from this number on are no memory's: they stand for lines that nothing is known of.
pub(super) const NOWHERE: u64 = 1 << (OWNER_SHIFT - 1);

/// Where code is taken to lie that nothing translates: where its address says, as far as memory reaches.
#[inline]
pub fn untranslated(pc: u64) -> Hpa {
    Hpa::new(pc & ((NOWHERE << LINE_SHIFT) - 1))
}

pub(super) const VALID: u64 = 1;
pub(super) const TABLE: u64 = 2;
pub(super) const DIRTY: u64 = 4;
pub(super) const PENDING: u64 = 8;
/// Which of its cache's prefetchers brought a line that nobody has used yet, counted from 1; 0 for others.
pub(super) const MARK: u64 = 3 << MARK_SHIFT;
pub(super) const MARK_SHIFT: u32 = 4;
/// The line was used before a gap of the trace, and has not been since; see
/// [`super::cache::Cache::begin_history`].
pub(super) const OLD: u64 = 64;
pub(super) const FLAGS: u64 = 127;
pub(super) const TAG_SHIFT: u32 = 7;

/// Prefetchers that a cache can have.
pub const MOST_PREFETCHERS: usize = (MARK >> MARK_SHIFT) as usize;

/// Lines of a page.
pub(super) const PAGE_LINES: i64 = 1 << (PAGE_SHIFT - LINE_SHIFT);

/// A set of a cache: its lines, most recently used first.
#[derive(Clone, Copy, Debug)]
pub struct Set<'a>(pub(super) &'a [u64]);

impl Set<'_> {
    /// Place of the least recently used line.
    #[inline]
    pub fn oldest(self) -> usize {
        self.0.len() - 1
    }

    /// Ways of the cache.
    #[inline]
    pub fn ways(self) -> usize {
        self.0.len()
    }

    /// True if the line at `place` holds page-table entries.
    #[inline]
    pub fn is_table(self, place: usize) -> bool {
        self.0[place] & TABLE != 0
    }

    /// True if the line at `place` must be written back.
    #[inline]
    pub fn is_dirty(self, place: usize) -> bool {
        self.0[place] & DIRTY != 0
    }

    /// The program that owns the line at `place`, where programs share the cache.
    #[inline]
    pub fn owner(self, place: usize) -> u64 {
        Line(self.0[place] >> TAG_SHIFT).owner()
    }

    /// True if all ways are in use: empty words only ever stand at the end.
    #[inline]
    pub(super) fn is_full(self) -> bool {
        self.0[self.0.len() - 1] & VALID != 0
    }

    /// The least recently used line that `suits`.
    #[inline]
    pub fn oldest_where(self, suits: impl Fn(usize) -> bool) -> Option<usize> {
        (0..self.0.len()).rev().find(|&place| suits(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_nothing_translates_leaves_the_owner_alone() {
        for pc in [0x40_0000, 0x5555_5540_0040, 0x7fff_ffff_ffff, 0xffff_ffff_8000_0000] {
            let Line(line) = Line::of(untranslated(pc));
            assert!(line < NOWHERE, "{pc:#x}");
            assert_eq!(
                line % (1 << 20),
                (pc >> LINE_SHIFT) % (1 << 20),
                "the same set of any cache"
            );
        }
    }
}
