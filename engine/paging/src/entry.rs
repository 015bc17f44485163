//! Page-table entries: 8-byte words in the x86-64 encoding, plus the width of the next node.
//!
//! ```text
//!  63   62..60  59   58   57     56..52  51 ........ 12  11..9  8  7   6  5  4..3  2  1  0
//!  NX   ignored O    W1   W0     ignored  frame address  ignored G  PS  D  A  cache US RW P
//! ```
//! W1:W0 are the two size bits of Park et al. (ASPLOS 2022, section 6.1): 00 = the next node is
//! conventional, 10 = it spans two levels (2 MiB), 01 = three (1 GiB). Bit 58 is the one that the
//! public Linux prototype of the FPT paper uses. It is also the H bit of Compendia (Ainsworth and
//! Jones, ISMM 2021, section 4.2), whose O bit says that what the entry points to overlaps with the
//! node that the entry stands in: the index bits that found the entry are used once more.
//!
//! How a table is read, in full. A geometry has p offset bits, b index bits a level, and levels n
//! (the root's) to 1. An entry of level k translates `span(k)` = 2^(p + b(k−1)) bytes. A node with
//! topmost level t that spans w levels has 2^(bw) entries, which are of its lowest level
//! k = t + 1 − w; the entry for an address is number ⌊address / span(k)⌋ mod 2^(bw). A node takes
//! 2^(bw + 3) bytes, or 4 KiB if that is less, and is aligned to its size. The root's address,
//! level and width are given. An entry of level k is read as one of level j = k + O. It means, by the
//! first line that applies:
//!
//! 1. P = 0: nothing is mapped.
//! 2. PS = 1: a page of level max(j, 2), in one of its replicas where that is more than k (ASPLOS
//!    2022, section 3.4; Compendia, section 4.5). Reserved if that level is above 3 or above n, or the
//!    frame address is not a multiple of the page size.
//! 3. j = 1: a page of level 1, whatever W says; reserved if its frame is misaligned.
//! 4. W = 11: reserved.
//! 5. The address is not a multiple of the size of a node of width W: reserved.
//! 6. O < W < j: the node that serves the levels from j − 1 down to j − W. The walk goes on there.
//! 7. W = j ≤ n, and the node's size is `span(j)`: a page of level j. This makes recursive mappings
//!    work through flattened nodes (ASPLOS 2022, section 3.5).
//! 8. Anything else: reserved.
//!
//! The translation is the frame plus the address modulo the page size. It may be written, used in
//! user mode, and executed, if every entry on the path has RW = 1, US = 1, and NX = 0.

use crate::addr::Physical;
use crate::geometry::{Geometry, Level, Width};

/// One page-table entry as it stands in memory.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Entry(pub u64);

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({:#018x})", self.0)
    }
}

/// What the translation path permits so far: the conjunction over all entries read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Stores are allowed.
    pub write: bool,
    /// User mode is allowed.
    pub user: bool,
    /// Instruction fetches are allowed.
    pub execute: bool,
}

/// Why memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// A load.
    Load,
    /// A store.
    Store,
    /// An instruction fetch.
    Fetch,
}

impl Rights {
    /// Everything: the start of a walk, and what intermediate entries carry.
    pub const ALL: Self = Self { write: true, user: true, execute: true };

    /// What both permit.
    #[must_use]
    #[inline]
    pub fn and(self, other: Self) -> Self {
        Self {
            write: self.write & other.write,
            user: self.user & other.user,
            execute: self.execute & other.execute,
        }
    }

    /// True if they permit an access, as far as the entry's other bits (user, dirty) do.
    #[inline]
    pub fn permit(self, kind: AccessKind) -> bool {
        match kind {
            AccessKind::Load => true,
            AccessKind::Store => self.write,
            AccessKind::Fetch => self.execute,
        }
    }
}

/// What a leaf entry says in addition to the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// What the page permits.
    pub rights: Rights,
    /// Hardware has used the translation.
    pub accessed: bool,
    /// Hardware has stored through the translation.
    pub dirty: bool,
}

impl Attributes {
    /// A page with these rights, not yet used.
    pub fn new(rights: Rights) -> Self {
        Self { rights, accessed: false, dirty: false }
    }
}

/// What an entry means at the place where it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<A> {
    /// Nothing is mapped.
    Absent,
    /// It points to a node that spans `width` levels.
    Table {
        /// Physical address of the node.
        base: A,
        /// Topmost level of the node.
        level: Level,
        /// Levels that the node spans.
        width: Width,
    },
    /// It translates a page of `level`.
    Mapped {
        /// Physical address of the page.
        frame: A,
        /// Level that a page of this size is a leaf of: 1 for base pages.
        level: Level,
    },
    /// A reserved combination of bits.
    Reserved,
}

impl Entry {
    pub(crate) const PRESENT: u64 = 1;
    const WRITE: u64 = 1 << 1;
    const USER: u64 = 1 << 2;
    const ACCESSED: u64 = 1 << 5;
    const DIRTY: u64 = 1 << 6;
    pub(crate) const PAGE_SIZE: u64 = 1 << 7;
    pub(crate) const WIDTH_3: u64 = 1 << 57;
    pub(crate) const WIDTH_2: u64 = 1 << 58;
    pub(crate) const OVERLAP: u64 = 1 << 59;
    const NO_EXECUTE: u64 = 1 << 63;
    pub(crate) const FRAME: u64 = 0x000f_ffff_ffff_f000;

    /// The entry that maps nothing.
    pub const ABSENT: Self = Self(0);

    /// True if an entry's address field can hold `address`: 4 KiB-aligned, at most 52 bits.
    #[inline]
    pub fn can_hold<A: Physical>(address: A) -> bool {
        address.raw() & !Self::FRAME == 0
    }

    /// An entry that points to the node at `base`, which spans `width` levels (1 to 3).
    pub fn table<A: Physical>(base: A, width: Width) -> Self {
        debug_assert!((1..=3).contains(&width) && Self::can_hold(base));
        let size = match width {
            2 => Self::WIDTH_2,
            3 => Self::WIDTH_3,
            _ => 0,
        };
        Self(base.raw() | size | Self::PRESENT | Self::WRITE | Self::USER)
    }

    /// The entry with another address in it; all else stays.
    #[must_use]
    pub(crate) fn leading_to<A: Physical>(self, address: A) -> Self {
        debug_assert!(Self::can_hold(address));
        Self(self.0 & !Self::FRAME | address.raw())
    }

    /// The entry with the O bit set: what it points to is indexed by the bits of this entry's own
    /// level too.
    #[must_use]
    pub fn overlapping(self) -> Self {
        Self(self.0 | Self::OVERLAP)
    }

    /// The entry, closed to user mode.
    #[must_use]
    pub(crate) fn supervisor(self) -> Self {
        Self(self.0 & !Self::USER)
    }

    /// A leaf entry for the page at `frame`; `large` for any page that is not a base page.
    pub fn leaf<A: Physical>(frame: A, large: bool, attributes: Attributes) -> Self {
        debug_assert!(Self::can_hold(frame));
        let mut word = frame.raw() | Self::PRESENT;
        let mut set = |on: bool, bit: u64| word |= if on { bit } else { 0 };
        set(large, Self::PAGE_SIZE);
        set(attributes.rights.write, Self::WRITE);
        set(attributes.rights.user, Self::USER);
        set(!attributes.rights.execute, Self::NO_EXECUTE);
        set(attributes.accessed, Self::ACCESSED);
        set(attributes.dirty, Self::DIRTY);
        Self(word)
    }

    /// True if the entry maps or points to something.
    #[inline]
    pub fn is_present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }

    /// Rights of this entry alone.
    #[inline]
    pub fn rights(self) -> Rights {
        Rights {
            write: self.0 & Self::WRITE != 0,
            user: self.0 & Self::USER != 0,
            execute: self.0 & Self::NO_EXECUTE == 0,
        }
    }

    /// Rights, accessed and dirty bits of a leaf entry.
    #[inline]
    pub fn attributes(self) -> Attributes {
        Attributes { rights: self.rights(), accessed: self.is_accessed(), dirty: self.is_dirty() }
    }

    /// Hardware has used the entry.
    #[inline]
    pub fn is_accessed(self) -> bool {
        self.0 & Self::ACCESSED != 0
    }

    /// Hardware has stored through the entry.
    #[inline]
    pub fn is_dirty(self) -> bool {
        self.0 & Self::DIRTY != 0
    }

    /// The entry with the accessed bit, and for a store the dirty bit, set.
    #[must_use]
    #[inline]
    pub fn touched(self, store: bool) -> Self {
        Self(self.0 | Self::ACCESSED | if store { Self::DIRTY } else { 0 })
    }

    /// The entry with the accessed and dirty bits of `other` in addition to its own.
    #[must_use]
    pub fn with_usage_of(self, other: Self) -> Self {
        Self(self.0 | other.0 & (Self::ACCESSED | Self::DIRTY))
    }

    /// What the entry means when read as an entry of level `bottom`, the lowest level that the node
    /// it was read from spans (k below): the numbered lines at the head of this file.
    #[inline]
    pub fn decode<A: Physical>(self, geometry: Geometry, bottom: Level) -> Decoded<A> {
        // A branch, not a sum: so the level of the next node is guessed before the word is there.
        if self.0 & Self::OVERLAP == 0 {
            self.decode_as(geometry, bottom, 0)
        } else {
            self.decode_as(geometry, bottom + 1, 1)
        }
    }

    /// What the entry means as one of `level`, which is `overlap` above the one where it stands.
    #[inline]
    fn decode_as<A: Physical>(self, geometry: Geometry, level: Level, overlap: u8) -> Decoded<A> {
        if !self.is_present() {
            return Decoded::Absent;
        }
        let address = self.0 & Self::FRAME;
        let largest = geometry.largest();
        if self.0 & Self::PAGE_SIZE != 0 || level == 1 {
            let level = if self.0 & Self::PAGE_SIZE != 0 { level.max(2) } else { 1 };
            return if level <= largest && geometry.within(address, level) == 0 {
                Decoded::Mapped { frame: A::new(address), level }
            } else {
                Decoded::Reserved
            };
        }
        let width = match self.0 & (Self::WIDTH_2 | Self::WIDTH_3) {
            0 => 1,
            Self::WIDTH_2 => 2,
            Self::WIDTH_3 => 3,
            _ => return Decoded::Reserved,
        };
        if address & ((1 << geometry.node_shift(width)) - 1) != 0 {
            Decoded::Reserved
        } else if overlap < width && width < level {
            Decoded::Table { base: A::new(address), level: level - 1, width }
        } else if width == level
            && level <= largest
            && geometry.node_shift(width) == geometry.shift(level)
        {
            Decoded::Mapped { frame: A::new(address), level }
        } else {
            Decoded::Reserved
        }
    }
}
