//! Tagged lines: 64 bytes with the page-table entries of eight neighbouring pages, and the tag that
//! says of which, in their spare bits.
//! ```text
//!   63 … 57   56..52            51 … 0            entry i of pages 8k to 8k + 7
//!   as usual  bits 5i+4..5i of k  as usual          i = 0 to 6
//!             how many are present                 i = 7
//! ```

use crate::addr::Physical;
use crate::entry::Entry;
use crate::error::LayoutError;
use crate::geometry::Geometry;
use crate::memory::{EntryMemory, LINE_BYTES, Line, TableMemory};

/// log2 of the entries in a line.
pub const ENTRIES_SHIFT: u32 = 3;
/// Where the tag's bits begin in an entry, which the entry's own encoding leaves alone.
const TAG_SHIFT: u32 = 52;
/// Tag bits in each of seven entries.
const TAG_BITS: u32 = 5;
const TAG_MASK: u64 = ((1 << TAG_BITS) - 1) << TAG_SHIFT;
/// Bits that a tag can have.
const ALL_TAG_BITS: u32 = 7 * TAG_BITS;

/// log2 of the bytes of 2^`shift` lines.
pub fn lines_shift(shift: u8) -> u8 {
    shift + LINE_BYTES.ilog2() as u8
}

/// Refuses geometries whose page numbers have more bits than a line's tag.
///
/// # Errors
/// [`LayoutError::Value`] for `organisation`.
pub fn fits_tag(organisation: &'static str, geometry: Geometry) -> Result<(), LayoutError> {
    let bits = u32::from(geometry.address_bits() - geometry.page_shift());
    let bits = bits.saturating_sub(ENTRIES_SHIFT);
    if bits <= ALL_TAG_BITS {
        return Ok(());
    }
    Err(LayoutError::value(
        organisation,
        "levels",
        format!(
            "a line's tag has room for {ALL_TAG_BITS} bits of the page number, and {bits} are needed: \
             use 3 or 4 levels"
        ),
    ))
}

/// True if a line with this eighth word holds nothing.
#[inline]
pub fn is_vacant(eighth: u64) -> bool {
    eighth & TAG_MASK == 0
}

/// A line that holds nothing yet, for the tag `key`.
pub fn tagged(key: u64) -> Line {
    std::array::from_fn(|i| entry_tag(key, i))
}

/// The tag of a line in use.
pub fn key(line: &Line) -> u64 {
    (0..7).rev().fold(0, |key, i| key << TAG_BITS | (line[i] & TAG_MASK) >> TAG_SHIFT)
}

/// True if the line is in use for the tag `key`.
#[inline]
pub fn matches(line: &Line, key: u64) -> bool {
    let differs = |i: usize| (line[i] ^ entry_tag(key, i)) & TAG_MASK;
    // Most other lines differ in the first word already.
    differs(0) == 0 && (1..7).fold(0, |all, i| all | differs(i)) == 0 && !is_vacant(line[7])
}

/// The tag's part in entry `i`, of the first seven.
#[inline]
fn entry_tag(key: u64, i: usize) -> u64 {
    if i == 7 { 0 } else { (key >> (TAG_BITS * i as u32)) << TAG_SHIFT & TAG_MASK }
}

/// `entry` with the tag's part of the `word` that it takes the place of.
#[inline]
pub fn with_tag_of(entry: Entry, word: u64) -> Entry {
    Entry(entry.0 & !TAG_MASK | word & TAG_MASK)
}

/// How many entries are present, as a line's eighth word says.
pub fn present(eighth: u64) -> u64 {
    (eighth & TAG_MASK) >> TAG_SHIFT
}

/// The eighth word, saying that so many entries are present.
pub fn with_present(eighth: u64, count: u64) -> u64 {
    eighth & !TAG_MASK | count << TAG_SHIFT
}

/// A line with `entry` alone, of page `number`.
pub fn with_one(number: u64, entry: Entry) -> Line {
    let mut line = tagged(number >> ENTRIES_SHIFT);
    let i = (number & 7) as usize;
    line[i] = with_tag_of(entry, line[i]).0;
    line[7] = with_present(line[7], 1);
    line
}

/// A line in use, by where it stands.
#[derive(Clone, Copy, Debug)]
pub struct TaggedLine<Out>(pub Out);

impl<Out: Physical> TaggedLine<Out> {
    /// Entry `i`, its part of the tag included.
    pub fn entry<M: EntryMemory<Out> + ?Sized>(self, memory: &M, i: u64) -> Entry {
        Entry(memory.read(self.0.offset(i * 8)))
    }

    /// True if entry `i` is present.
    pub fn is_present<M: EntryMemory<Out> + ?Sized>(self, memory: &M, i: u64) -> bool {
        self.entry(memory, i).is_present()
    }

    /// Writes entry `i`; the tag's part there stays.
    pub fn write<M: TableMemory<Out> + ?Sized>(self, memory: &mut M, i: u64, entry: Entry) {
        let slot = self.0.offset(i * 8);
        memory.write(slot, with_tag_of(entry, memory.read(slot)).0);
    }

    /// Notes that so many more entries are present.
    pub fn count_up<M: TableMemory<Out> + ?Sized>(self, memory: &mut M, more: u64) {
        let last = self.0.offset(7 * 8);
        let eighth = memory.read(last);
        memory.write(last, with_present(eighth, present(eighth) + more));
    }

    /// Takes entry `i` away, unless it is the only one: false then.
    pub fn take<M: TableMemory<Out> + ?Sized>(self, memory: &mut M, i: u64) -> bool {
        let last = self.0.offset(7 * 8);
        let left = present(memory.read(last)).saturating_sub(1);
        if left > 0 {
            self.write(memory, i, Entry::ABSENT);
            memory.write(last, with_present(memory.read(last), left));
        }
        left > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_tag_reads_back_beside_what_the_line_holds(k: u64, other: u64, words: [u64; 8]) {
            let k = k % (1 << ALL_TAG_BITS);
            let mut line = tagged(k);
            prop_assert!(is_vacant(line[7]), "nothing is present");
            for (i, word) in line.iter_mut().enumerate() {
                *word = with_tag_of(Entry(words[i]), *word).0;
            }
            line[7] = with_present(line[7], 3);
            prop_assert!(!is_vacant(line[7]));
            prop_assert_eq!(present(line[7]), 3);
            prop_assert_eq!(key(&line), k);
            prop_assert!(matches(&line, k));
            let other = other % (1 << ALL_TAG_BITS);
            prop_assert_eq!(matches(&line, other), other == k);
            line[7] = with_present(line[7], 0);
            prop_assert!(!matches(&line, k));
        }
    }
}
