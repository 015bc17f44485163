//! What lines of a cuckoo table hold: page-table entries, or the headers of a walk table.

use crate::keyed::line;
use crate::memory::Line;

/// What lines of a table hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Eight page-table entries, tagged as in [`line`].
    Entries,
    /// 64 bytes with five bits each; the upper three of the first say that the line is in use, those
    /// of the others are the tag.
    Headers,
}

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
            Self::Entries => line::is_vacant(word),
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

    /// The tag of a line in use.
    pub(super) fn key(self, line: &Line) -> u64 {
        match self {
            Self::Entries => line::key(line),
            Self::Headers => (1..=64 / HEADER_TAG_BITS as usize + 1).rev().fold(0, |key, i| {
                key << HEADER_TAG_BITS | u64::from(header(line, i as u64) >> HEADER_BITS)
            }),
        }
    }

    /// True if the line is in use for the tag `key`.
    #[inline]
    pub(super) fn matches(self, line: &Line, key: u64) -> bool {
        match self {
            Self::Entries => line::matches(line, key),
            Self::Headers => !self.is_vacant(line[0]) && self.key(line) == key,
        }
    }
}

/// A line of headers in use that says nothing yet, for the tag `key`.
pub(super) fn line_of_headers(key: u64) -> Line {
    let mut bytes = [0; HEADERS as usize];
    bytes[0] = HEADER_IN_USE as u8;
    for (i, byte) in bytes.iter_mut().enumerate().skip(1) {
        *byte = header_tag(key, i);
    }
    let words = bytes.as_chunks::<8>().0;
    std::array::from_fn(|i| u64::from_le_bytes(words[i]))
}

/// The tag's part in header `i`, which is not the first.
fn header_tag(key: u64, i: usize) -> u8 {
    let part = key.checked_shr(HEADER_TAG_BITS * (i as u32 - 1)).unwrap_or(0);
    ((part & ((1 << HEADER_TAG_BITS) - 1)) << HEADER_BITS) as u8
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
        fn headers_keep_their_bits_beside_a_whole_tag(key: u64, at in 0u64..64, bits in 0u8..32) {
            let mut line = line_of_headers(key);
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
