//! The geometry of a page table: how many levels, and which address bits each consumes.

use serde::{Deserialize, Serialize};

/// A level of the page table. 1 holds the translations of base pages; the root is the highest.
pub type Level = u8;
/// How many adjacent levels one node spans: 1 is a conventional node, 2 and 3 are flattened.
pub type Width = u8;

/// How virtual addresses are cut into indices.
///
/// x86-64 has 12 offset bits and 9 bits for each of 4 or 5 levels. IA-64 Linux has 16 KiB pages
/// (14 bits) and 11 bits a level (2005 LKML post).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Geometry {
    page_shift: u8,
    index_bits: u8,
    levels: u8,
}

/// A geometry as it is read from a file, before [`Geometry::new`] has looked at it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    page_shift: u8,
    index_bits: u8,
    levels: u8,
}

impl TryFrom<Unchecked> for Geometry {
    type Error = GeometryError;

    fn try_from(raw: Unchecked) -> Result<Self, GeometryError> {
        Self::new(raw.page_shift, raw.index_bits, raw.levels)
    }
}

/// Why a geometry cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Too few or too many levels.
    #[error("a page table has 2 to 6 levels, not {0}")]
    Levels(u8),
    /// Page size out of range.
    #[error("a page shift is 12 to 16 bits (4 KiB to 64 KiB pages), not {0}")]
    PageShift(u8),
    /// Index bits out of range.
    #[error("a level is indexed by 1 to 13 bits, not {0}")]
    IndexBits(u8),
    /// The sum is more than an address has.
    #[error("{0} bits of virtual address are more than 64")]
    AddressBits(u32),
}

impl Geometry {
    /// x86-64 with three levels (39-bit addresses).
    pub const X86_3: Self = Self { page_shift: 12, index_bits: 9, levels: 3 };
    /// x86-64 with four levels (48-bit addresses).
    pub const X86_4: Self = Self { page_shift: 12, index_bits: 9, levels: 4 };
    /// x86-64 with five levels (57-bit addresses, LA57).
    pub const X86_5: Self = Self { page_shift: 12, index_bits: 9, levels: 5 };

    /// A geometry with base pages of `2^page_shift` bytes and nodes of `2^index_bits` entries.
    ///
    /// # Errors
    /// When a number is out of its range; see [`GeometryError`].
    pub fn new(page_shift: u8, index_bits: u8, levels: u8) -> Result<Self, GeometryError> {
        if !(2..=6).contains(&levels) {
            return Err(GeometryError::Levels(levels));
        }
        if !(12..=16).contains(&page_shift) {
            return Err(GeometryError::PageShift(page_shift));
        }
        if !(1..=13).contains(&index_bits) {
            return Err(GeometryError::IndexBits(index_bits));
        }
        let bits = u32::from(page_shift) + u32::from(index_bits) * u32::from(levels);
        if bits > 64 {
            return Err(GeometryError::AddressBits(bits));
        }
        Ok(Self { page_shift, index_bits, levels })
    }

    /// log2 of the base page size in bytes.
    #[inline]
    pub fn page_shift(self) -> u8 {
        self.page_shift
    }

    /// Index bits that one level consumes.
    #[inline]
    pub fn index_bits(self) -> u8 {
        self.index_bits
    }

    /// How many levels there are.
    #[inline]
    pub fn levels(self) -> Level {
        self.levels
    }

    /// Virtual address bits.
    #[inline]
    pub fn address_bits(self) -> u8 {
        self.shift(self.levels + 1)
    }

    /// log2 of the bytes that one entry of `level` translates: `shift(1)` is the page shift.
    #[inline]
    pub fn shift(self, level: Level) -> u8 {
        debug_assert!(level >= 1 && level <= self.levels + 1);
        self.page_shift + self.index_bits * (level - 1)
    }

    /// Bytes that one entry of `level` translates: the page size of a leaf there.
    #[inline]
    pub fn span(self, level: Level) -> u64 {
        1 << self.shift(level)
    }

    /// How far `address` lies within the page of `level` that it is in, in bytes.
    #[inline]
    pub fn within(self, address: u64, level: Level) -> u64 {
        address & (self.span(level) - 1)
    }

    /// `address` without the bits that only repeat its sign.
    #[inline]
    pub fn unsigned(self, address: u64) -> u64 {
        let unused = 64 - u32::from(self.address_bits());
        address << unused >> unused
    }

    /// The canonical address whose [`Geometry::unsigned`] is `address`.
    #[inline]
    pub fn canonical(self, address: u64) -> u64 {
        let unused = 64 - u32::from(self.address_bits());
        ((address << unused).cast_signed() >> unused).cast_unsigned()
    }

    /// Number of the page of `level` that `address` lies in; 0 for a level that there is not.
    #[inline]
    pub fn number(self, address: u64, level: Level) -> u64 {
        if level > self.levels { 0 } else { self.unsigned(address) >> self.shift(level) }
    }

    /// The largest level that has pages.
    #[inline]
    pub fn largest(self) -> Level {
        self.levels.min(3)
    }

    /// log2 of the size in bytes of a node that spans `width` levels: of its 8-byte entries, but no
    /// less than 4 KiB, because the address field of an entry begins at bit 12.
    #[inline]
    pub fn node_shift(self, width: Width) -> u8 {
        (self.index_bits * width + 3).max(12)
    }

    /// Entries in a node that spans `width` levels.
    #[inline]
    pub fn node_entries(self, width: Width) -> u64 {
        1 << (self.index_bits * width)
    }

    /// Index of `address` in a node whose topmost level is `level` and that spans `width` levels.
    #[inline]
    pub fn index(self, address: u64, level: Level, width: Width) -> u64 {
        (address >> self.shift(level + 1 - width)) & (self.node_entries(width) - 1)
    }

    /// True if the address is one that this geometry can translate (sign-extended from its top bit).
    #[inline]
    pub fn is_canonical(self, address: u64) -> bool {
        self.canonical(address) == address
    }
}

/// Name of the size that pages of `level` (1 to 3) have on x86-64: what results call them.
pub fn page_name(level: Level) -> &'static str {
    ["4K", "2M", "1G"][usize::from(level) - 1]
}

/// `L4L3` for level 4 and width 2.
pub fn levels_spanned(level: Level, width: Width) -> String {
    let levels = (level + 1 - width..=level).rev();
    levels.map(|l| format!("L{l}")).collect::<Vec<_>>().concat()
}
