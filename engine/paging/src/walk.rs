//! The walker: a step machine that asks for entries and is fed them.

use crate::addr::{Address, Physical};
use crate::entry::{Decoded, Entry, Rights};
use crate::geometry::{Geometry, Level, Width};

/// How far a translation has come: the node to read next. This is also what a page-walk cache
/// holds, and what the root register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRef<A> {
    /// Physical address of the node.
    pub base: A,
    /// Topmost level that the node spans.
    pub level: Level,
    /// Levels that it spans.
    pub width: Width,
    /// What the entries read so far permit.
    pub rights: Rights,
}

impl<A> NodeRef<A> {
    /// The lowest level that the node spans: the level its entries belong to.
    #[inline]
    pub fn bottom(&self) -> Level {
        self.level + 1 - self.width
    }
}

/// The end of a successful walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf<A> {
    /// Physical address of the page.
    pub frame: A,
    /// Level that a page of this size is a leaf of; its size is `geometry.span(level)`.
    pub level: Level,
    /// What all entries on the path permit together.
    pub rights: Rights,
    /// Where the leaf entry stands.
    pub entry_address: A,
    /// The leaf entry.
    pub entry: Entry,
}

/// Why a walk ended without a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault<A> {
    /// The address is not one that the geometry can translate; nothing was read.
    NotCanonical,
    /// The entry is absent.
    NotPresent {
        /// Level of the entry.
        level: Level,
        /// Where it stands.
        entry_address: A,
    },
    /// The entry has a reserved combination of bits.
    Reserved {
        /// Level of the entry.
        level: Level,
        /// Where it stands.
        entry_address: A,
    },
}

/// What one entry led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<A> {
    /// To a further node; the walk goes on there. A page-walk cache may keep it.
    Table(NodeRef<A>),
    /// To the translation.
    Leaf(Leaf<A>),
    /// Nowhere.
    Fault(Fault<A>),
}

/// A walk in progress. Drive it by reading the word at [`Walk::entry_address`] and handing it to
/// [`Walk::feed`] until that gives a leaf or a fault.
#[derive(Clone, Copy, Debug)]
pub struct Walk<In, Out> {
    geometry: Geometry,
    input: In,
    at: NodeRef<Out>,
}

impl<In: Address, Out: Physical> Walk<In, Out> {
    /// A walk of `input` that starts at `at`: the root, or what a page-walk cache gave.
    ///
    /// `input` should be canonical ([`Geometry::is_canonical`]), which hardware sees to before it
    /// walks: the walk looks only at the bits that the levels consume.
    #[inline]
    pub fn from(geometry: Geometry, at: NodeRef<Out>, input: In) -> Self {
        Self { geometry, input, at }
    }

    /// The node to be read next.
    #[inline]
    pub fn at(&self) -> NodeRef<Out> {
        self.at
    }

    /// The address to translate.
    #[inline]
    pub fn input(&self) -> In {
        self.input
    }

    /// Physical address of the entry to be read next.
    #[inline]
    pub fn entry_address(&self) -> Out {
        let index = self.geometry.index(self.input.raw(), self.at.level, self.at.width);
        self.at.base.offset(index * 8)
    }

    /// Walks to the end; `read` gives the word at an address.
    ///
    /// # Errors
    /// The fault that hardware would raise.
    #[inline]
    pub fn finish(mut self, mut read: impl FnMut(Out) -> u64) -> Result<Leaf<Out>, Fault<Out>> {
        loop {
            match self.feed(Entry(read(self.entry_address()))) {
                Step::Table(_) => {}
                Step::Leaf(leaf) => return Ok(leaf),
                Step::Fault(fault) => return Err(fault),
            }
        }
    }

    /// Takes the entry found at [`Walk::entry_address`] one step further.
    #[inline(always)]
    pub fn feed(&mut self, entry: Entry) -> Step<Out> {
        let bottom = self.at.bottom();
        let rights = self.at.rights.and(entry.rights());
        match entry.decode::<Out>(self.geometry, bottom) {
            Decoded::Table { base, level, width } => {
                self.at = NodeRef { base, level, width, rights };
                Step::Table(self.at)
            }
            Decoded::Mapped { frame, level } => Step::Leaf(Leaf {
                frame,
                level,
                rights,
                entry_address: self.entry_address(),
                entry,
            }),
            Decoded::Absent => Step::Fault(Fault::NotPresent {
                level: bottom,
                entry_address: self.entry_address(),
            }),
            Decoded::Reserved => {
                Step::Fault(Fault::Reserved { level: bottom, entry_address: self.entry_address() })
            }
        }
    }
}
