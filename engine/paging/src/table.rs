//! A page table of any organisation, as an operating system uses it.

use crate::addr::{Address, Physical};
use crate::entry::{Attributes, Entry, Rights};
use crate::geometry::{Geometry, Level};
use crate::hashed::{Hashed, Resizes};
use crate::memory::{EntryMemory, TableMemory};
use crate::organisations::{Layout, Shape, Structure};
use crate::tree::{DensityChanges, Flush, Levels, Mapping, NodeStatistics, TableError, Tree};
use crate::walk::{Fault, Leaf};

/// A page table.
#[derive(Clone, Debug)]
pub enum PageTable<In, Out> {
    /// Nodes that form a tree.
    Tree(Tree<In, Out>),
    /// Entries found by hashing.
    Hashed(Box<Hashed<In, Out>>),
}

/// What an operating system has to see to after it changed a table.
#[must_use = "hardware may go on using what is stale until it is flushed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made<In> {
    /// Nodes narrower than the shape asked for, for want of a large block.
    pub fallbacks: u32,
    /// Levels of the entries that came to point to a new node.
    pub filled: Levels,
    /// What must be flushed.
    pub flush: Option<Flush<In>>,
}

impl<In: Address, Out: Physical> PageTable<In, Out> {
    /// An empty table of `layout`; `shape` says how wide its nodes are made, where it has any.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`] when there is no memory for it.
    pub fn new(
        layout: &Layout,
        shape: &impl Shape,
        memory: &mut impl TableMemory<Out>,
    ) -> Result<Self, TableError> {
        match layout.structure() {
            Structure::Tree => Tree::new(layout.geometry(), shape, memory).map(Self::Tree),
            Structure::Hashed(design) => {
                let table = Hashed::new(layout.geometry(), design, memory)?;
                Ok(Self::Hashed(Box::new(table)))
            }
        }
    }

    /// The geometry.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        match self {
            Self::Tree(tree) => tree.geometry(),
            Self::Hashed(table) => table.geometry(),
        }
    }

    /// The table, if it is a tree.
    #[inline]
    pub fn tree(&self) -> Option<&Tree<In, Out>> {
        match self {
            Self::Tree(tree) => Some(tree),
            Self::Hashed(_) => None,
        }
    }

    /// The table, to be changed, if it is a tree.
    pub fn tree_mut(&mut self) -> Option<&mut Tree<In, Out>> {
        match self {
            Self::Tree(tree) => Some(tree),
            Self::Hashed(_) => None,
        }
    }

    /// Translates as hardware would, without caches and without touching accessed bits.
    ///
    /// # Errors
    /// The fault that hardware would raise.
    pub fn translate(
        &self,
        memory: &impl EntryMemory<Out>,
        input: In,
    ) -> Result<Leaf<Out>, Fault<Out>> {
        match self {
            Self::Tree(tree) => tree.translate(memory, input),
            Self::Hashed(table) => table.translate(memory, input),
        }
    }

    /// The page that `input` lies in.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] or [`TableError::Corrupt`].
    pub fn lookup(
        &self,
        memory: &impl EntryMemory<Out>,
        input: In,
    ) -> Result<Mapping<In, Out>, TableError> {
        match self {
            Self::Tree(tree) => tree.lookup(memory, input),
            Self::Hashed(table) => table.lookup(memory, input),
        }
    }

    /// True if no page lies in the page of `level`, 1 to 3, that starts at `input`.
    pub fn is_empty(&self, memory: &impl EntryMemory<Out>, input: In, level: Level) -> bool {
        match self {
            Self::Tree(tree) => match tree.translate(memory, input) {
                // One entry for the whole page, and it is absent.
                Err(Fault::NotPresent { level: at, .. }) if at >= level => true,
                Err(Fault::NotPresent { level: at, entry_address }) if at + 1 == level => {
                    let entry = |i| Entry(memory.read(entry_address.offset(i * 8)));
                    (0..tree.geometry().node_entries(1)).all(|i| !entry(i).is_present())
                }
                Err(Fault::NotPresent { .. }) => {
                    let mut any = false;
                    let bytes = tree.geometry().span(level);
                    let looked = tree.visit(memory, input, bytes, &mut |_| any = true);
                    looked.is_ok() && !any
                }
                Ok(_) | Err(Fault::NotCanonical | Fault::Reserved { .. }) => false,
            },
            Self::Hashed(table) => table.is_empty(memory, input, level),
        }
    }

    /// Maps the page of `level` at `input` to `frame`.
    ///
    /// # Errors
    /// See [`TableError`]; everything translates as before then.
    pub fn map(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        shape: &impl Shape,
        input: In,
        frame: Out,
        level: Level,
        attributes: Attributes,
    ) -> Result<Made<In>, TableError> {
        match self {
            Self::Tree(tree) => {
                let change = tree.map(memory, shape, input, frame, level, attributes)?;
                Ok(Made { fallbacks: change.fallbacks, filled: change.filled, flush: None })
            }
            Self::Hashed(table) => {
                let flush = table.map(memory, input, frame, level, attributes)?;
                Ok(Made { fallbacks: 0, filled: Levels::default(), flush })
            }
        }
    }

    /// Maps up to `pages` base pages from `input` on, as far as that only takes entries written beside
    /// others that are there, and `frame` gives frames for them. Returns how many; the next is for
    /// [`PageTable::map`].
    ///
    /// # Errors
    /// What is wrong with a frame; the pages before it are mapped then.
    pub fn map_run<M: TableMemory<Out>>(
        &mut self,
        memory: &mut M,
        input: In,
        pages: u64,
        attributes: Attributes,
        frame: impl FnMut(&mut M) -> Option<Out>,
    ) -> Result<u64, TableError> {
        match self {
            Self::Tree(tree) => tree.map_run(memory, input, pages, attributes, frame),
            Self::Hashed(table) => table.map_run(memory, input, pages, attributes, frame),
        }
    }

    /// Takes away the page that `input` lies in.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] when there is none.
    pub fn unmap(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
    ) -> Result<(Mapping<In, Out>, Flush<In>), TableError> {
        match self {
            Self::Tree(tree) => tree.unmap(memory, input),
            Self::Hashed(table) => table.unmap(memory, input),
        }
    }

    /// Changes the rights of the page that `input` lies in.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] when there is none.
    pub fn protect(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
        rights: Rights,
    ) -> Result<(Mapping<In, Out>, Flush<In>), TableError> {
        match self {
            Self::Tree(tree) => tree.protect(memory, input, rights),
            Self::Hashed(table) => {
                table.update(memory, input, |mapping| mapping.attributes.rights = rights)
            }
        }
    }

    /// Points the page that `input` lies in to another frame of the same size (migration).
    ///
    /// # Errors
    /// [`TableError::NotMapped`] or [`TableError::Misaligned`].
    pub fn migrate(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
        frame: Out,
    ) -> Result<(Mapping<In, Out>, Flush<In>), TableError> {
        match self {
            Self::Tree(tree) => tree.migrate(memory, input, frame),
            Self::Hashed(table) => table.update(memory, input, |mapping| mapping.frame = frame),
        }
    }

    /// Clears the accessed and dirty bits of the page that `input` lies in.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] when there is none.
    pub fn clear_usage(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
    ) -> Result<(Mapping<In, Out>, Flush<In>), TableError> {
        match self {
            Self::Tree(tree) => tree.clear_usage(memory, input),
            Self::Hashed(table) => table.update(memory, input, |mapping| {
                (mapping.attributes.accessed, mapping.attributes.dirty) = (false, false);
            }),
        }
    }

    /// Splits the large page that `input` lies in into pages of the level below.
    ///
    /// # Errors
    /// [`TableError::NotMapped`], [`TableError::NoSuchPage`] when it is a base page already, or
    /// [`TableError::OutOfMemory`].
    pub fn split(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        shape: &impl Shape,
        input: In,
    ) -> Result<Made<In>, TableError> {
        let (fallbacks, filled, flush) = match self {
            Self::Tree(tree) => {
                let (change, flush) = tree.split(memory, shape, input)?;
                (change.fallbacks, change.filled, flush)
            }
            Self::Hashed(table) => (0, Levels::default(), table.split(memory, input)?),
        };
        Ok(Made { fallbacks, filled, flush: Some(flush) })
    }

    /// [`Tree::merge_dense`]; other tables have no nodes.
    pub fn merge_dense(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
        filled: Levels,
    ) -> DensityChanges<In> {
        self.tree_mut()
            .map_or_else(DensityChanges::nothing, |tree| tree.merge_dense(memory, input, filled))
    }

    /// [`Tree::split_sparse`]; other tables have no nodes.
    pub fn split_sparse(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
    ) -> DensityChanges<In> {
        self.tree_mut()
            .map_or_else(DensityChanges::nothing, |tree| tree.split_sparse(memory, input))
    }

    /// Calls `visit` for each page that lies, in part at least, in `length_bytes` from `start`, in
    /// ascending order.
    ///
    /// # Errors
    /// [`TableError::NotCanonical`] for a range beyond the table.
    pub fn visit(
        &self,
        memory: &impl EntryMemory<Out>,
        start: In,
        length_bytes: u64,
        visit: &mut impl FnMut(Mapping<In, Out>),
    ) -> Result<(), TableError> {
        match self {
            Self::Tree(tree) => tree.visit(memory, start, length_bytes, visit),
            Self::Hashed(table) => table.visit(memory, start, length_bytes, visit),
        }
    }

    /// Every page that is mapped, in ascending order of (unsigned) address.
    pub fn mappings(&self, memory: &impl EntryMemory<Out>) -> Vec<Mapping<In, Out>> {
        match self {
            Self::Tree(tree) => tree.mappings(memory),
            Self::Hashed(table) => table.mappings(memory),
        }
    }

    /// The memory that it takes, by kind.
    pub fn statistics(&self) -> Vec<NodeStatistics> {
        match self {
            Self::Tree(tree) => tree.statistics(),
            Self::Hashed(table) => table.statistics(),
        }
    }

    /// How often hashed tables were resized.
    pub fn resizes(&self) -> Resizes {
        match self {
            Self::Tree(_) => Resizes::default(),
            Self::Hashed(table) => table.resizes(),
        }
    }

    /// Gives all memory back. Pages are the caller's.
    pub fn destroy(self, memory: &mut impl TableMemory<Out>) {
        match self {
            Self::Tree(tree) => tree.destroy(memory),
            Self::Hashed(table) => table.destroy(memory),
        }
    }
}

/// Refuses addresses that `geometry` cannot translate.
pub(crate) fn check_canonical(geometry: Geometry, address: u64) -> Result<(), TableError> {
    if geometry.is_canonical(address) {
        Ok(())
    } else {
        Err(TableError::NotCanonical { address, bits: geometry.address_bits() })
    }
}

fn check_alignment(geometry: Geometry, address: u64, level: Level) -> Result<(), TableError> {
    let page_bytes = geometry.span(level);
    if address & (page_bytes - 1) == 0 {
        Ok(())
    } else {
        Err(TableError::Misaligned { address, page_bytes })
    }
}

/// Refuses what can be no page of `level`.
pub(crate) fn check_page(geometry: Geometry, address: u64, level: Level) -> Result<(), TableError> {
    if level == 0 || level > geometry.levels().min(3) {
        return Err(TableError::NoSuchPage(level));
    }
    check_canonical(geometry, address)?;
    check_alignment(geometry, address, level)
}

/// Refuses what can be no frame of a page of `level`.
pub(crate) fn check_frame<Out: Physical>(
    geometry: Geometry,
    frame: Out,
    level: Level,
) -> Result<(), TableError> {
    check_alignment(geometry, frame.raw(), level)?;
    if Entry::can_hold(frame) { Ok(()) } else { Err(TableError::FrameTooHigh(frame.raw())) }
}
