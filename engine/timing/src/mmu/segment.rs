//! Registers that translate one range of addresses: base, limit and offset.

use std::ops::Range;

use flatwalk_paging::{Address, Hpa, Physical};

/// The registers.
#[derive(Clone, Debug)]
pub struct Segment<A = Hpa> {
    range: Range<u64>,
    base: A,
    /// Translations that they gave.
    pub translations: u64,
}

impl<A: Physical> Segment<A> {
    /// Addresses in `range` lie from `base` on.
    pub fn new(range: Range<u64>, base: A) -> Self {
        Self { range, base, translations: 0 }
    }

    /// Where `address` lies, if it is in the segment.
    #[inline]
    pub fn translate(&mut self, address: impl Address) -> Option<A> {
        let found = self.place(address)?;
        self.translations += 1;
        Some(found)
    }

    /// The same, not counted.
    #[inline]
    pub fn place(&self, address: impl Address) -> Option<A> {
        let inside = self.range.contains(&address.raw());
        inside.then(|| self.base.offset(address.raw() - self.range.start))
    }

    /// True if both ends of each of its pieces of `bytes` are aligned to that.
    pub fn is_aligned(&self, bytes: u64) -> bool {
        (self.range.start | self.range.end | self.base.raw()).is_multiple_of(bytes)
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}
