//! 64-byte lines that carry the number of what they hold: eight page-table entries with the tag in
//! their spare bits, or 64 one-byte headers.

use crate::entry::Entry;

/// The words of one line of memory.
pub type Line = [u64; 8];

/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;

/// log2 of the bytes of 2^`shift` lines.
pub(super) fn lines_shift(shift: u8) -> u8 {
    shift + LINE_BYTES.ilog2() as u8
}

/// What lines of a table hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Eight page-table entries. Bits 56..52, which the entry's own encoding leaves alone, hold five
    /// bits of the tag in each of the first seven entries, and in the eighth how many are present.
    Entries,
    /// 64 bytes with five bits each; the upper three of the first say that the line is in use, those
    /// of the others are the tag.
    Headers,
}

/// Where the tag's bits begin in an entry.
const TAG_SHIFT: u32 = 52;
/// Tag bits in each of seven entries.
const TAG_BITS: u32 = 5;
const TAG_MASK: u64 = ((1 << TAG_BITS) - 1) << TAG_SHIFT;
/// Bits that a tag can have.
pub(super) const ENTRIES_TAG_BITS: u32 = 7 * TAG_BITS;

/// Bits of a header that are its own.
pub(super) const HEADER_BITS: u32 = 5;
const HEADER_TAG_BITS: u32 = 8 - HEADER_BITS;
/// Headers in a line.
pub(super) const HEADERS: u64 = 64;
const HEADER_IN_USE: u64 = 1 << HEADER_BITS;

impl Format {
    /// True if a line whose eighth (entries) or first (headers) word this is holds nothing.
    #[inline]
    pub(super) fn is_vacant(self, word: u64) -> bool {
        match self {
            Self::Entries => word & TAG_MASK == 0,
            Self::Headers => word & HEADER_IN_USE == 0,
        }
    }

    /// Which word [`Format::is_vacant`] looks at.
    #[inline]
    pub(super) fn vacancy_word(self) -> u64 {
        match self {
            Self::Entries => 7,
            Self::Headers => 0,
        }
    }

    /// A line in use that holds nothing yet, for the tag `key`.
    pub(super) fn tagged(self, key: u64) -> Line {
        match self {
            Self::Entries => std::array::from_fn(|i| entry_tag(key, i)),
            Self::Headers => {
                let mut bytes = [0; HEADERS as usize];
                bytes[0] = HEADER_IN_USE as u8;
                for (i, byte) in bytes.iter_mut().enumerate().skip(1) {
                    *byte = header_tag(key, i);
                }
                let words = bytes.as_chunks::<8>().0;
                std::array::from_fn(|i| u64::from_le_bytes(words[i]))
            }
        }
    }

    /// The tag of a line in use.
    pub(super) fn key(self, line: &Line) -> u64 {
        match self {
            Self::Entries => {
                (0..7).rev().fold(0, |key, i| key << TAG_BITS | (line[i] & TAG_MASK) >> TAG_SHIFT)
            }
            Self::Headers => (1..=64 / HEADER_TAG_BITS as usize + 1).rev().fold(0, |key, i| {
                key << HEADER_TAG_BITS | u64::from(header(line, i as u64) >> HEADER_BITS)
            }),
        }
    }

    /// True if the line is in use for the tag `key`.
    #[inline]
    pub(super) fn matches(self, line: &Line, key: u64) -> bool {
        match self {
            Self::Entries => {
                let differs = |i: usize| (line[i] ^ entry_tag(key, i)) & TAG_MASK;
                // Most other lines differ in the first word already.
                differs(0) == 0
                    && (1..7).fold(0, |all, i| all | differs(i)) == 0
                    && line[7] & TAG_MASK != 0
            }
            Self::Headers => !self.is_vacant(line[0]) && self.key(line) == key,
        }
    }
}

/// The tag's part in entry `i`, of the first seven.
#[inline]
fn entry_tag(key: u64, i: usize) -> u64 {
    if i == 7 { 0 } else { (key >> (TAG_BITS * i as u32)) << TAG_SHIFT & TAG_MASK }
}

/// The tag's part in header `i`, which is not the first.
fn header_tag(key: u64, i: usize) -> u8 {
    let part = key.checked_shr(HEADER_TAG_BITS * (i as u32 - 1)).unwrap_or(0);
    ((part & ((1 << HEADER_TAG_BITS) - 1)) << HEADER_BITS) as u8
}

/// `entry` with the tag's part of the `word` that it takes the place of.
#[inline]
pub(super) fn with_tag_of(entry: Entry, word: u64) -> Entry {
    Entry(entry.0 & !TAG_MASK | word & TAG_MASK)
}

/// How many entries are present, as a line's eighth word says.
pub(super) fn present(eighth: u64) -> u64 {
    (eighth & TAG_MASK) >> TAG_SHIFT
}

/// The eighth word, saying that so many entries are present.
pub(super) fn with_present(eighth: u64, count: u64) -> u64 {
    eighth & !TAG_MASK | count << TAG_SHIFT
}

/// Header `i` of a line, tag included.
#[inline]
pub(super) fn header(line: &Line, i: u64) -> u8 {
    (line[(i / 8) as usize] >> (i % 8 * 8)) as u8
}

/// `word`, which holds header `i`, with `bits` for it; its tag stays.
pub(super) fn with_header(word: u64, i: u64, bits: u8) -> u64 {
    let shift = i % 8 * 8;
    let mask = (1 << HEADER_BITS) - 1;
    word & !(mask << shift) | (u64::from(bits) & mask) << shift
}

/// True if a word of eight headers has none that says anything.
pub(super) fn says_nothing(word: u64) -> bool {
    word & 0x1f1f_1f1f_1f1f_1f1f == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_tag_reads_back_beside_what_the_line_holds(key: u64, other: u64, words: [u64; 8]) {
            let key_of_entries = key % (1 << ENTRIES_TAG_BITS);
            let mut line = Format::Entries.tagged(key_of_entries);
            prop_assert!(Format::Entries.is_vacant(line[7]), "nothing is present");
            for (i, word) in line.iter_mut().enumerate() {
                *word = with_tag_of(Entry(words[i]), *word).0;
            }
            line[7] = with_present(line[7], 3);
            prop_assert!(!Format::Entries.is_vacant(line[7]));
            prop_assert_eq!(present(line[7]), 3);
            prop_assert_eq!(Format::Entries.key(&line), key_of_entries);
            prop_assert!(Format::Entries.matches(&line, key_of_entries));
            let other = other % (1 << ENTRIES_TAG_BITS);
            prop_assert_eq!(Format::Entries.matches(&line, other), other == key_of_entries);
            line[7] = with_present(line[7], 0);
            prop_assert!(!Format::Entries.matches(&line, key_of_entries));
        }

        #[test]
        fn headers_keep_their_bits_beside_a_whole_tag(key: u64, at in 0u64..64, bits in 0u8..32) {
            let mut line = Format::Headers.tagged(key);
            prop_assert!(line.iter().all(|&word| says_nothing(word)));
            let word = &mut line[(at / 8) as usize];
            *word = with_header(*word, at, bits);
            prop_assert_eq!(header(&line, at) & 31, bits);
            prop_assert_eq!(line.iter().all(|&word| says_nothing(word)), bits == 0);
            prop_assert_eq!(Format::Headers.key(&line), key);
            prop_assert!(Format::Headers.matches(&line, key));
            prop_assert!(!Format::Headers.matches(&line, !key));
            prop_assert!(!Format::Headers.matches(&[0; 8], 0));
        }
    }
}
