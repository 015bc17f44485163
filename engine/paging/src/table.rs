//! A page table of any organisation, as an operating system uses it.

use crate::addr::{Address, Physical};
use crate::entry::{Attributes, Rights};
use crate::error::TableError;
use crate::geometry::{Geometry, Level};
use crate::keyed::{Design, Keyed, MakeStore};
use crate::layout::{Layout, Shape};
use crate::mapping::{DensityChanges, Flush, Levels, Made, Mapping, NodeStatistics, Part, Resizes};
use crate::memory::{EntryMemory, TableMemory};
use crate::tree::Tree;
use crate::walk::{Fault, Leaf};

/// A page table.
#[derive(Debug)]
pub enum PageTable<In, Out> {
    /// Nodes that form a tree.
    Tree(Tree<In, Out>),
    /// Entries found by the numbers of pages.
    Keyed(Box<Keyed<In, Out>>),
}

impl<In: Clone, Out: Physical> Clone for PageTable<In, Out> {
    fn clone(&self) -> Self {
        match self {
            Self::Tree(tree) => Self::Tree(tree.clone()),
            Self::Keyed(table) => Self::Keyed(table.clone()),
        }
    }
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
    ) -> Result<Self, TableError>
    where
        dyn Design: MakeStore<Out>,
    {
        match layout.design() {
            None => Tree::new(layout.geometry(), shape, memory).map(Self::Tree),
            Some(design) => {
                let table = Keyed::new(layout.geometry(), &**design, memory)?;
                Ok(Self::Keyed(Box::new(table)))
            }
        }
    }

    /// The geometry.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        match self {
            Self::Tree(tree) => tree.geometry(),
            Self::Keyed(table) => table.geometry(),
        }
    }

    /// The table, if it is a tree.
    #[inline]
    pub fn tree(&self) -> Option<&Tree<In, Out>> {
        match self {
            Self::Tree(tree) => Some(tree),
            Self::Keyed(_) => None,
        }
    }

    /// The table, to be changed, if it is a tree.
    pub fn tree_mut(&mut self) -> Option<&mut Tree<In, Out>> {
        match self {
            Self::Tree(tree) => Some(tree),
            Self::Keyed(_) => None,
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
            Self::Keyed(table) => table.translate(memory, input),
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
            Self::Keyed(table) => table.lookup(memory, input),
        }
    }

    /// True if no page lies in the page of `level`, 1 to 3, that starts at `input`.
    pub fn is_empty(&self, memory: &impl EntryMemory<Out>, input: In, level: Level) -> bool {
        match self {
            Self::Tree(tree) => tree.is_empty(memory, input, level),
            Self::Keyed(table) => table.is_empty(memory, input, level),
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
            Self::Tree(tree) => tree.map(memory, shape, input, frame, level, attributes),
            Self::Keyed(table) => {
                let flush = table.map(memory, input, frame, level, attributes)?;
                Ok(Made { flush, ..Made::nothing() })
            }
        }
    }

    /// Maps up to `pages` base pages from `input` on, as far as that only takes entries written next
    /// to others that are there, and `frame` gives frames for them. Returns how many; the next is
    /// for [`PageTable::map`].
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
            Self::Keyed(table) => table.map_run(memory, input, pages, attributes, frame),
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
            Self::Keyed(table) => table.unmap(memory, input),
        }
    }

    /// [`Tree::unmap_page`]; other tables have no nodes.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] when there is none.
    pub fn unmap_page(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
    ) -> Result<(Mapping<In, Out>, Flush<In>), TableError> {
        match self {
            Self::Tree(tree) => tree.unmap_page(memory, input),
            Self::Keyed(table) => table.unmap(memory, input),
        }
    }

    /// [`Tree::free_empty`]; other tables have no nodes.
    ///
    /// # Errors
    /// See there.
    pub fn free_empty(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        first: In,
        last: In,
        keeps: &mut dyn FnMut(In, In) -> bool,
    ) -> Result<Option<Flush<In>>, TableError> {
        self.tree_mut().map_or(Ok(None), |tree| tree.free_empty(memory, first, last, keeps))
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
            Self::Keyed(table) => {
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
            Self::Keyed(table) => table.update(memory, input, |mapping| mapping.frame = frame),
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
            Self::Keyed(table) => table.update(memory, input, |mapping| {
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
        match self {
            Self::Tree(tree) => tree.split(memory, shape, input),
            Self::Keyed(table) => {
                let flush = Some(table.split(memory, input)?);
                Ok(Made { flush, ..Made::nothing() })
            }
        }
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

    /// [`Tree::split_sparse_in`]; other tables have no nodes.
    pub fn split_sparse_in(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        first: In,
        last: In,
        keeps: &mut dyn FnMut(In, In) -> bool,
    ) -> DensityChanges<In> {
        self.tree_mut().map_or_else(DensityChanges::nothing, |tree| {
            tree.split_sparse_in(memory, first, last, keeps)
        })
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
            Self::Keyed(table) => table.visit(memory, start, length_bytes, visit),
        }
    }

    /// Every page that is mapped, in ascending order of (unsigned) address.
    pub fn mappings(&self, memory: &impl EntryMemory<Out>) -> Vec<Mapping<In, Out>> {
        match self {
            Self::Tree(tree) => tree.mappings(memory),
            Self::Keyed(table) => table.mappings(memory),
        }
    }

    /// The memory that it takes, by kind.
    pub fn statistics(&self) -> Vec<NodeStatistics> {
        match self {
            Self::Tree(tree) => tree.statistics(),
            Self::Keyed(table) => table.statistics(),
        }
    }

    /// [`Tree::outline`], of a tree.
    pub fn outline(&self, memory: &impl EntryMemory<Out>) -> Option<Vec<Part>> {
        self.tree().map(|tree| tree.outline(memory))
    }

    /// How often it was resized; trees are not.
    pub fn resizes(&self) -> Resizes {
        match self {
            Self::Tree(_) => Resizes::default(),
            Self::Keyed(table) => table.resizes(),
        }
    }

    /// Gives all memory back. Pages are the caller's.
    pub fn destroy(self, memory: &mut impl TableMemory<Out>) {
        match self {
            Self::Tree(tree) => tree.destroy(memory),
            Self::Keyed(table) => table.destroy(memory),
        }
    }
}
