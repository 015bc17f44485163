//! Arithmetic on addresses that owes nothing to the rest of the crate's.

use crate::geometry::{Geometry, Level};

/// Sizes by multiplication: bytes of a base page, entries of a level, number of levels.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of a base page.
    pub page: u64,
    /// Entries of a level.
    pub fan: u64,
    /// Levels.
    pub levels: Level,
}

impl Sizes {
    /// Those of a geometry.
    pub fn of(geometry: Geometry) -> Self {
        Self {
            page: 1 << geometry.page_shift(),
            fan: 1 << geometry.index_bits(),
            levels: geometry.levels(),
        }
    }

    /// Bytes that an entry of `level` translates.
    pub fn entry(self, level: Level) -> u128 {
        (1..level).fold(u128::from(self.page), |bytes, _| bytes * u128::from(self.fan))
    }

    /// Bytes of a page of `level` (1 to 3).
    pub fn bytes(self, level: Level) -> u64 {
        u64::try_from(self.entry(level)).unwrap()
    }

    /// Bytes that the table translates, both halves together.
    pub fn all(self) -> u128 {
        self.entry(self.levels + 1)
    }

    /// The canonical address with this offset from the start of the address space.
    pub fn canonical(self, offset: u128) -> u64 {
        let offset = offset % self.all();
        let raised =
            if offset >= self.all() / 2 { offset + (1 << 64) - self.all() } else { offset };
        u64::try_from(raised).unwrap()
    }

    /// The offset of a canonical address.
    pub fn offset(self, address: u64) -> u128 {
        u128::from(address) % self.all()
    }

    /// The index of `address` among the entries of `level`.
    pub fn digit(self, address: u64, level: Level) -> u64 {
        (self.offset(address) / self.entry(level) % u128::from(self.fan)) as u64
    }

    /// The canonical address with these indices, root first, and byte offset.
    pub fn address(self, digits: &[u64], byte: u64) -> u64 {
        let fold = |sum: u128, &digit: &u64| sum * u128::from(self.fan) + u128::from(digit);
        let pages = digits.iter().fold(0, fold);
        self.canonical(pages * u128::from(self.page) + u128::from(byte))
    }
}
