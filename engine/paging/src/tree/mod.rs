//! The software side of a page table: building, changing and taking it apart.
//!
//! Source: Intel SDM volume 3, chapter 4, for the conventional shape; Park et al. (ASPLOS 2022),
//! sections 3.2 to 3.4 and 6.2, for flattened nodes, fall-back, replicated large leaves, and later
//! promotion; Ainsworth and Jones (ISMM 2021), section 4, for nodes that overlap. Every word stands
//! in the memory that the caller passes; in addition the table keeps only what an operating system
//! keeps in its frame descriptors: which frames are nodes, of what shape, and how many of their
//! entries are in use.

mod density;
mod edit;
mod entries;
mod node;
mod outline;
mod reshape;
mod visit;

use std::marker::PhantomData;

use rustc_hash::FxHashMap;

use crate::addr::{Address, Physical};
use crate::entry::{Decoded, Entry, Rights};
use crate::error::{TableError, check_canonical};
use crate::geometry::{Geometry, Level, levels_spanned};
use crate::layout::{Density, Shape};
use crate::mapping::{Mapping, NodeStatistics};
use crate::memory::{EntryMemory, TableMemory};
use crate::walk::{Fault, Leaf, NodeRef, Walk};

use node::{Node, Path, allocate, united};
pub use outline::{Nodes, outline};

/// A page table whose nodes form a tree: radix and everything that flattens it.
#[derive(Clone, Debug)]
pub struct Tree<In, Out> {
    geometry: Geometry,
    root: NodeRef<Out>,
    nodes: FxHashMap<Out, Node>,
    density: Option<Density>,
    /// If it merges nodes by their density: those merged, by topmost level and address prefix.
    merged: FxHashMap<(Level, u64), Out>,
    input: PhantomData<In>,
}

impl<In: Address, Out: Physical> Tree<In, Out> {
    /// An empty table: one root node.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`] when there is no memory for the root.
    pub fn new(
        geometry: Geometry,
        shape: &impl Shape,
        memory: &mut impl TableMemory<Out>,
    ) -> Result<Self, TableError> {
        let level = geometry.levels();
        let wanted = shape.width(level, 0);
        let (base, width) = allocate(geometry, memory, level, wanted, 0)?;
        let mut nodes = FxHashMap::default();
        let is_fallback = width < wanted;
        nodes.insert(base, Node { level, width, used: 0, is_fallback, parts: Box::default() });
        let root = NodeRef { base, level, width, rights: Rights::ALL };
        let (density, merged) = (shape.density(), FxHashMap::default());
        Ok(Self { geometry, root, nodes, density, merged, input: PhantomData })
    }

    /// The geometry.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Where walks start: the content of the root register.
    #[inline]
    pub fn root(&self) -> NodeRef<Out> {
        self.root
    }

    /// A walk from the root.
    #[inline]
    pub fn walk(&self, input: In) -> Walk<In, Out> {
        Walk::from(self.geometry, self.root, input)
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
        if !self.geometry.is_canonical(input.raw()) {
            return Err(Fault::NotCanonical);
        }
        self.walk(input).finish(|at| memory.read(at))
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
        let (path, frame, level) = self.find(memory, input)?;
        Ok(self.mapping(memory, path.last(), input, frame, level))
    }

    /// How many nodes there are of each shape, root first.
    pub fn statistics(&self) -> Vec<NodeStatistics> {
        let mut shapes: Vec<NodeStatistics> = Vec::new();
        for node in self.nodes.values() {
            let (level, width) = (node.level, node.width);
            let known = shapes.iter().position(|s| (s.level, s.width) == (level, width));
            let at = known.unwrap_or_else(|| {
                let node_bytes = 1 << self.geometry.node_shift(width);
                shapes.push(NodeStatistics {
                    name: levels_spanned(level, width),
                    level,
                    width,
                    node_bytes,
                    nodes: 0,
                    entries_used: 0,
                });
                shapes.len() - 1
            });
            shapes[at].nodes += 1;
            shapes[at].entries_used += u64::from(node.used);
        }
        shapes.sort_by_key(|s| std::cmp::Reverse((s.level, s.width)));
        shapes
    }

    /// Gives every node back. Pages are the caller's.
    pub fn destroy(self, memory: &mut impl TableMemory<Out>) {
        let mut nodes: Vec<_> = self.nodes.iter().map(|(&base, node)| (base, node.width)).collect();
        nodes.sort_unstable();
        for (base, width) in nodes {
            memory.free(base, self.geometry.node_shift(width));
        }
    }

    // ---- inside ---------------------------------------------------------------------------------

    /// The nodes that serve `input`, which is mapped, and its page's frame and level.
    fn find(
        &self,
        memory: &impl EntryMemory<Out>,
        input: In,
    ) -> Result<(Path<Out>, Out, Level), TableError> {
        check_canonical(self.geometry, input.raw())?;
        let (path, entry) = self.reach(memory, input)?;
        match entry {
            // A page no larger than what the node covers.
            Decoded::Mapped { frame, level } if level <= path.last().level => {
                Ok((self.with_merged(path, input), frame, level))
            }
            Decoded::Absent => Err(TableError::NotMapped(input.raw())),
            _ => Err(TableError::Corrupt(input.raw())),
        }
    }

    /// The nodes that a walk for `input`, which is canonical, comes by, and the entry that ends it.
    fn reach(
        &self,
        memory: &impl EntryMemory<Out>,
        input: In,
    ) -> Result<(Path<Out>, Decoded<Out>), TableError> {
        let mut path = Path::from(self.root);
        loop {
            match self.decode(memory, path.last(), input) {
                Decoded::Table { base, level, width } => {
                    let child = self.child(base, level, width);
                    path.push(child.ok_or(TableError::Corrupt(input.raw()))?);
                }
                entry => return Ok((path, entry)),
            }
        }
    }

    /// A path with the merged nodes that its walk passed by.
    fn with_merged(&self, mut path: Path<Out>, input: In) -> Path<Out> {
        for level in 2..=self.geometry.levels() {
            self.merged_at(level, input).into_iter().for_each(|node| path.add(node));
        }
        path
    }

    /// The whole page of `level` whose leaf entries stand in `node`.
    fn mapping(
        &self,
        memory: &impl EntryMemory<Out>,
        node: NodeRef<Out>,
        input: In,
        frame: Out,
        level: Level,
    ) -> Mapping<In, Out> {
        let attributes = if level == node.bottom() && self.merged.is_empty() {
            Entry(memory.read(self.slot(node, input))).attributes()
        } else {
            united(self.places(node, input, level).flat_map(|place| {
                let (first, count) = self.slots(place, input, level);
                (0..count).map(move |i| Entry(memory.read(first.offset(i * 8))))
            }))
        };
        let input = In::new(input.raw() - self.geometry.within(input.raw(), level));
        Mapping { input, frame, level, attributes }
    }
}
