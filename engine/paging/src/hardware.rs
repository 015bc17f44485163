//! Flat page tables as the hardware extension of docs/flat-page-tables.md has them.
//!
//! Its entries differ from ours ([`crate::Entry`]) in how they say that the next table is flat, and
//! in bits that one ignores and the other does not. [`Paging::entry`] reads one as the other, and
//! the walk is the same: feed it the words of a guest's memory through this.

use crate::addr::{Address, Hpa};
use crate::entry::{Entry, Rights};
use crate::geometry::{Geometry, Level};
use crate::walk::{Fault, Leaf, NodeRef, Step, Walk};

/// CR3 bit 52 says that the root is flat, and bit 52 of an entry that the next table is.
const FLAT: u64 = 1 << 52;
/// Bits of CR4: five levels, and flat tables.
const CR4_LA57: u64 = 1 << 12;
const CR4_FLAT: u64 = 1 << 29;
/// Bits of a page fault's error code.
const FAULT_PRESENT: u64 = 1;
const FAULT_RESERVED: u64 = 1 << 3;
/// Bits of an address below a flat table's alignment: those beyond the 4 KiB that every table has.
const BELOW_FLAT: u64 = 0x1f_f000;
/// In an entry that maps a large page, PAT and not a bit of the address.
const LARGE_PAT: u64 = 1 << 12;
/// An entry that no walk can use, whatever its level: of a large page that is misaligned.
const RESERVED: Entry = Entry(Entry::PRESENT | Entry::PAGE_SIZE | LARGE_PAT);

/// How a processor in long mode, with EFER.NXE = 1, reads page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paging {
    /// Four levels, or five (CR4.LA57).
    pub five_levels: bool,
    /// Whether flat tables are enabled (CR4[29]).
    pub flat: bool,
    /// MAXPHYADDR: bits of physical address, 32 to 52.
    pub physical_bits: u8,
}

/// What a machine made of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It translated.
    Page {
        /// Physical address of the byte asked for.
        physical: u64,
        /// Bytes of the page that it lies in.
        bytes: u64,
    },
    /// It raised a page fault with this error code.
    Fault(u64),
}

impl Paging {
    /// As CR4 has it.
    #[must_use]
    pub fn new(cr4: u64, physical_bits: u8) -> Self {
        Self { five_levels: cr4 & CR4_LA57 != 0, flat: cr4 & CR4_FLAT != 0, physical_bits }
    }

    /// Walks for `address`. `read` gives the word at a physical address; it is also told the lowest
    /// level of the table that the word is in.
    ///
    /// # Errors
    /// What `read` fails with.
    pub fn translate<In: Address, E>(
        self,
        cr3: u64,
        address: In,
        mut read: impl FnMut(Hpa, Level) -> Result<u64, E>,
    ) -> Result<Result<Leaf<Hpa>, Fault<Hpa>>, E> {
        let mut walk = Walk::from(self.geometry(), self.root(cr3, address), address);
        loop {
            let level = walk.at().bottom();
            let word = read(walk.entry_address(), level)?;
            match walk.feed(self.entry(word, level)) {
                Step::Table(_) => {}
                Step::Leaf(leaf) => return Ok(Ok(leaf)),
                Step::Fault(fault) => return Ok(Err(fault)),
            }
        }
    }

    /// Compares what [`Paging::translate`] found for `address` with what a machine did.
    ///
    /// # Errors
    /// The difference, in words.
    pub fn compare<In: Address>(
        self,
        address: In,
        found: Result<Leaf<Hpa>, Fault<Hpa>>,
        machine: Outcome,
    ) -> Result<(), String> {
        match (machine, found) {
            (Outcome::Page { physical, bytes }, Ok(leaf)) => {
                let size = self.geometry().span(leaf.level);
                let target = leaf.frame.raw() + address.raw() % size;
                if (target, size) == (physical, bytes) {
                    return Ok(());
                }
                Err(format!(
                    "the machine found {physical:#x} in a page of {bytes:#x} bytes, the engine {target:#x} of {size:#x}"
                ))
            }
            // A right is missing; which ones there are depends on more than the tables.
            (Outcome::Fault(code), Ok(_))
                if code & (FAULT_PRESENT | FAULT_RESERVED) == FAULT_PRESENT =>
            {
                Ok(())
            }
            (Outcome::Fault(code), Err(Fault::NotPresent { .. })) if code & FAULT_PRESENT == 0 => {
                Ok(())
            }
            (Outcome::Fault(code), Err(Fault::Reserved { .. })) if code & FAULT_RESERVED != 0 => {
                Ok(())
            }
            (Outcome::Page { physical, .. }, Err(fault)) => {
                Err(format!("the machine found {physical:#x}, the engine {fault:?}"))
            }
            (Outcome::Fault(code), found) => Err(format!(
                "the machine raised a fault with code {code:#x}, the engine found {found:?}"
            )),
        }
    }

    /// How addresses are cut into indices.
    #[must_use]
    pub fn geometry(self) -> Geometry {
        if self.five_levels { Geometry::X86_5 } else { Geometry::X86_4 }
    }

    /// Where the walk of `address` begins. A flat root serves the lower half of the addresses; the
    /// page that CR3 points to is an ordinary root for the upper half.
    #[must_use]
    pub fn root<In: Address>(self, cr3: u64, address: In) -> NodeRef<Hpa> {
        let geometry = self.geometry();
        let level = geometry.levels();
        let base = cr3 & Entry::FRAME;
        let upper = address.raw() >> (geometry.address_bits() - 1) & 1 != 0;
        if self.flat && cr3 & FLAT != 0 && !upper {
            NodeRef { base: Hpa::new(base & !BELOW_FLAT), level, width: 2, rights: Rights::ALL }
        } else {
            NodeRef { base: Hpa::new(base), level, width: 1, rights: Rights::ALL }
        }
    }

    /// The entry of ours that means what the hardware's `word` means at `level`, the lowest level that
    /// the table it was read from spans ([`NodeRef::bottom`]).
    #[must_use]
    pub fn entry(self, word: u64, level: Level) -> Entry {
        // Bits that ours give a meaning to, and the hardware leaves to software.
        let mut ours = word & !(Entry::WIDTH_2 | Entry::WIDTH_3 | Entry::OVERLAP | FLAT);
        let flat = self.flat && word & FLAT != 0;
        let large = word & Entry::PAGE_SIZE != 0;
        let beyond = Entry::FRAME & !((1 << self.physical_bits) - 1);
        if word & Entry::PRESENT != 0 && (word & beyond != 0 || flat && large && level > 2) {
            return RESERVED;
        }
        match level {
            // PAT.
            1 => ours &= !Entry::PAGE_SIZE,
            2 | 3 if large => ours &= !LARGE_PAT,
            2 if flat => ours = ours & !LARGE_PAT | Entry::WIDTH_2,
            _ if flat => ours |= Entry::WIDTH_2,
            _ => {}
        }
        Entry(ours)
    }
}
