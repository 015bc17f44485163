//! The software side of a page table: building, changing and taking it apart.
//!
//! Source: Intel SDM volume 3, chapter 4, for the conventional shape; Park et al. (ASPLOS 2022),
//! sections 3.2 to 3.4 and 6.2, for flattened nodes, fall-back, replicated large leaves, and later
//! promotion; Ainsworth and Jones (ISMM 2021), section 4, for nodes that overlap. Every word stands
//! in the memory that the caller passes; beside it the table keeps only what an operating system
//! keeps in its frame descriptors: which frames are nodes, of what shape, and how many of their
//! entries are in use.

mod density;
mod reshape;

use std::marker::PhantomData;

use rustc_hash::FxHashMap;

use crate::addr::{Address, Physical};
use crate::entry::{Attributes, Decoded, Entry, Rights};
use crate::geometry::{Geometry, Level, Width};
use crate::memory::{EntryMemory, TableMemory};
use crate::organisations::{Density, Shape};
use crate::table::{check_canonical, check_frame, check_page};
use crate::walk::{Fault, Leaf, NodeRef, Step, Walk};

pub use density::DensityChanges;

/// Why a change was not made. The table is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The address is not one that the geometry can translate.
    #[error("address {address:#x} is beyond the table's {bits} address bits")]
    NotCanonical {
        /// The address.
        address: u64,
        /// Address bits that the table translates.
        bits: u8,
    },
    /// Address or frame is not aligned to the page.
    #[error("{address:#x} is not aligned to a page of {page_bytes} bytes")]
    Misaligned {
        /// Address or frame.
        address: u64,
        /// Page size.
        page_bytes: u64,
    },
    /// The frame has more address bits than an entry, or lies beyond the memory.
    #[error(
        "frame {0:#x} is too high: physical addresses have at most 52 bits, and lie in the memory"
    )]
    FrameTooHigh(u64),
    /// The frame has a page already, in a table with one entry for each frame.
    #[error("frame {0:#x} has a page already: this table has one entry for each frame")]
    FrameTaken(u64),
    /// No page of this level can be mapped.
    #[error("level {0} has no leaves: pages are mapped at levels 1 to 3 of those the table has")]
    NoSuchPage(Level),
    /// Something is mapped there.
    #[error("something is mapped at {0:#x} already")]
    Occupied(u64),
    /// Nothing is mapped there.
    #[error("nothing is mapped at {0:#x}")]
    NotMapped(u64),
    /// No memory for a node, not even the smallest.
    #[error("no memory for a page-table node: give the machine more, or unmap something")]
    OutOfMemory,
    /// The node cannot get this width: it would overlap others, or the level lies inside a node.
    #[error("the node at level {level} on the path of {address:#x} cannot span {width} levels")]
    Shape {
        /// The address.
        address: u64,
        /// Topmost level of the node.
        level: Level,
        /// Width asked for.
        width: Width,
    },
    /// An entry has a reserved combination of bits: something else wrote to the table.
    #[error("an entry on the path of {0:#x} is corrupt")]
    Corrupt(u64),
}

/// What must be flushed before anyone relies on a change. Dropping it unseen is a bug that the
/// compiler reports.
#[must_use = "hardware may go on using the old translation until this is flushed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush<In> {
    /// First address concerned.
    pub start: In,
    /// Bytes concerned; `u64::MAX` (from 0) is the whole address space.
    pub length_bytes: u64,
    /// TLB entries that translate any part of the range are stale.
    pub leaves: bool,
    /// Page-walk-cache entries that serve any part of the range are stale.
    pub tables: bool,
}

/// A page that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<In, Out> {
    /// First address of the page.
    pub input: In,
    /// Where it lies.
    pub frame: Out,
    /// Level that a page of this size is a leaf of.
    pub level: Level,
    /// Rights, accessed and dirty bits (of replicas: of any).
    pub attributes: Attributes,
}

/// What building a mapping took: the operating-system model charges for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Nodes allocated.
    pub nodes: u32,
    /// Bytes of nodes allocated, which were zeroed.
    pub node_bytes: u64,
    /// Nodes narrower than the shape asked for, for want of a large block.
    pub fallbacks: u32,
    /// Entries read on the way down.
    pub entries_read: u32,
    /// Entries written.
    pub entries_written: u64,
    /// Levels of the entries that came to point to a new node.
    pub filled: Levels,
}

/// A set of levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels(u8);

impl Levels {
    /// True if `level` is among them.
    #[inline]
    pub fn contains(self, level: Level) -> bool {
        self.0 >> level & 1 != 0
    }

    /// True if there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn insert(&mut self, level: Level) {
        self.0 |= 1 << level;
    }
}

/// What a block of memory is in a page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A node of a tree.
    Node,
    /// A way of a cuckoo table for pages of its level.
    Way,
    /// A way of the cuckoo walk table for its level.
    WalkTable,
    /// The buckets of a table with chains for pages of its level.
    Buckets,
    /// A block of further nodes of such a table.
    Chain,
    /// The lines of a table with open addressing for pages of its level.
    Lines,
    /// A piece of a table with an entry for each frame of its level's pages.
    Frames,
    /// A piece of the anchors of such a table.
    Anchors,
}

/// How many nodes there are of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStatistics {
    /// What they are.
    pub kind: NodeKind,
    /// Topmost level of the nodes.
    pub level: Level,
    /// Levels that they span.
    pub width: Width,
    /// Size of one in bytes.
    pub node_bytes: u64,
    /// How many.
    pub nodes: u64,
    /// Entries in use in all of them; lines in use, of hashed tables.
    pub entries_used: u64,
}

/// What an operating system knows of a frame that is a node.
#[derive(Clone, Debug)]
struct Node {
    level: Level,
    width: Width,
    used: u32,
    /// Entries in use of each conventional node that this one stands for, where the table merges
    /// nodes by how full they are; else empty.
    parts: Box<[u16]>,
}

/// The nodes on the way to an address, root first.
#[derive(Clone, Copy)]
struct Path<Out> {
    nodes: [Option<NodeRef<Out>>; 6],
    length: usize,
}

impl<Out: Physical> Path<Out> {
    fn from(root: NodeRef<Out>) -> Self {
        let mut path = Self { nodes: [None; 6], length: 0 };
        path.push(root);
        path
    }

    fn push(&mut self, node: NodeRef<Out>) {
        self.nodes[self.length] = Some(node);
        self.length += 1;
    }

    /// Adds a node that the walk passed by.
    fn add(&mut self, node: NodeRef<Out>) {
        if !self.nodes[..self.length].iter().flatten().any(|there| there.level == node.level) {
            self.push(node);
            self.nodes[..self.length]
                .sort_unstable_by_key(|node| std::cmp::Reverse(node.map(|node| node.level)));
        }
    }

    fn last(&self) -> NodeRef<Out> {
        self.nodes[self.length - 1].expect("a path has at least the root")
    }

    fn pop(&mut self) -> Option<NodeRef<Out>> {
        self.length = self.length.checked_sub(1)?;
        self.nodes[self.length].take()
    }
}

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
        let (base, width) =
            allocate(geometry, memory, level, shape.width(level, 0), 0, &mut Change::default())?;
        let mut nodes = FxHashMap::default();
        nodes.insert(base, Node { level, width, used: 0, parts: Box::default() });
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
        let mut walk = self.walk(input);
        loop {
            match walk.feed(Entry(memory.read(walk.entry_address()))) {
                Step::Table(_) => {}
                Step::Leaf(leaf) => return Ok(leaf),
                Step::Fault(fault) => return Err(fault),
            }
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
        let (path, frame, level) = self.find(memory, input)?;
        Ok(self.mapping(memory, path.last(), input, frame, level))
    }

    /// Maps the page of `level` at `input` to `frame`, making the nodes that are missing.
    ///
    /// # Errors
    /// See [`TableError`]; the table is unchanged then.
    pub fn map(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        shape: &impl Shape,
        input: In,
        frame: Out,
        level: Level,
        attributes: Attributes,
    ) -> Result<Change, TableError> {
        check_page(self.geometry, input.raw(), level)?;
        check_frame(self.geometry, frame, level)?;
        let mut change = Change::default();
        let mut at = self.root;
        let mut path = Path::from(at);
        while at.bottom() > level {
            change.entries_read += 1;
            at = match self.decode(memory, at, input) {
                Decoded::Table { base, level, width } => {
                    self.child(base, level, width).ok_or(TableError::Corrupt(input.raw()))?
                }
                Decoded::Absent => {
                    self.attach(memory, shape, at, input, &mut change).inspect_err(|_| {
                        self.prune(memory, path, input);
                    })?
                }
                Decoded::Mapped { .. } => return Err(TableError::Occupied(input.raw())),
                Decoded::Reserved => return Err(TableError::Corrupt(input.raw())),
            };
            path.push(at);
        }
        if let Some(below) = self.merged_at(level, input).filter(|below| below.base != at.base) {
            change.entries_read += 1;
            at = below;
        }
        let (first, count) = self.slots(at, input, level);
        change.entries_read += 1;
        if (0..count).any(|i| Entry(memory.read(first.offset(i * 8))).is_present()) {
            return Err(TableError::Occupied(input.raw()));
        }
        change.entries_written += self.write_leaves(memory, at, input, frame, level, attributes);
        Ok(change)
    }

    /// Maps up to `pages` base pages from `input` on, as far as that only takes entries written into
    /// one node that is there, and `frame` gives frames for them. Returns how many; the next is for
    /// [`Tree::map`].
    ///
    /// # Errors
    /// What is wrong with a frame; the pages before it are mapped then.
    pub fn map_run<M: TableMemory<Out>>(
        &mut self,
        memory: &mut M,
        input: In,
        pages: u64,
        attributes: Attributes,
        mut frame: impl FnMut(&mut M) -> Option<Out>,
    ) -> Result<u64, TableError> {
        check_page(self.geometry, input.raw(), 1)?;
        // Where merged nodes may overlap, an entry may stand in two.
        if self.density.is_some() {
            return Ok(0);
        }
        let mut at = self.root;
        while at.bottom() > 1 {
            let Decoded::Table { base, level, width } = self.decode(memory, at, input) else {
                return Ok(0);
            };
            at = self.child(base, level, width).ok_or(TableError::Corrupt(input.raw()))?;
        }
        let index = self.geometry.index(input.raw(), at.level, at.width);
        let room = pages.min(self.geometry.node_entries(at.width) - index);
        for page in 0..room {
            let slot = at.base.offset((index + page) * 8);
            if Entry(memory.read(slot)).is_present() {
                return Ok(page);
            }
            let Some(frame) = frame(memory) else { return Ok(page) };
            check_frame(self.geometry, frame, 1)?;
            self.write(memory, at, slot, [Entry::leaf(frame, false, attributes)]);
        }
        Ok(room)
    }

    /// Takes away the page that `input` lies in, and the nodes that become empty.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] when there is none.
    pub fn unmap(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
    ) -> Result<(Mapping<In, Out>, Flush<In>), TableError> {
        let (path, frame, level) = self.find(memory, input)?;
        let mapping = self.mapping(memory, path.last(), input, frame, level);
        self.clear(memory, path.last(), input, level);
        let tables = self.prune(memory, path, input);
        Ok((mapping, self.leaf_flush(mapping.input, level, tables)))
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
        self.update(memory, input, |mapping| mapping.attributes.rights = rights)
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
        let (_, _, level) = self.find(memory, input)?;
        check_frame(self.geometry, frame, level)?;
        self.update(memory, input, |mapping| mapping.frame = frame)
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
        self.update(memory, input, |mapping| {
            mapping.attributes.accessed = false;
            mapping.attributes.dirty = false;
        })
    }

    /// Moves the page that `from` lies in to `to` (mremap), with all its attributes.
    ///
    /// # Errors
    /// See [`TableError`]; the table is unchanged then.
    pub fn remap(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        shape: &impl Shape,
        from: In,
        to: In,
    ) -> Result<(Change, Flush<In>), TableError> {
        let old = self.lookup(memory, from)?;
        let change = self.map(memory, shape, to, old.frame, old.level, old.attributes)?;
        let (_, flush) = self.unmap(memory, from)?;
        Ok((change, flush))
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
    ) -> Result<(Change, Flush<In>), TableError> {
        let (path, frame, level) = self.find(memory, input)?;
        let node = path.last();
        let old = self.mapping(memory, node, input, frame, level);
        if level == 1 {
            return Err(TableError::NoSuchPage(0));
        }
        let mut change = Change::default();
        let below = self.places(node, input, level).find(|place| place.bottom() < level);
        let at = match below {
            Some(below) => {
                // Where an overlapping node has the page too, it leads to its pieces from now on.
                for above in self.places(node, input, level).filter(|p| p.bottom() == level) {
                    change.entries_written += self.vacate(memory, above, input, level);
                }
                below
            }
            None if node.bottom() == level => {
                self.attach(memory, shape, node, input, &mut change)?
            }
            // A page whose copies are not where its table keeps them.
            None => return Err(TableError::Corrupt(input.raw())),
        };
        let bytes = self.geometry.span(level - 1);
        for i in 0..self.geometry.node_entries(1) {
            let (page, frame) = (old.input.offset(i * bytes), old.frame.offset(i * bytes));
            change.entries_written +=
                self.write_leaves(memory, at, page, frame, level - 1, old.attributes);
        }
        Ok((change, self.leaf_flush(old.input, level, false)))
    }

    /// Calls `visit` for each page that lies, in part at least, in `length_bytes` from `start`, in
    /// ascending order. A replicated page is visited once.
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
        check_canonical(self.geometry, start.raw())?;
        if length_bytes > 0 {
            let last = In::new(start.raw().saturating_add(length_bytes - 1));
            check_canonical(self.geometry, last.raw())?;
            self.visit_between(memory, start.raw(), last.raw(), visit);
        }
        Ok(())
    }

    /// Every page that is mapped, in ascending order of (unsigned) address.
    pub fn mappings(&self, memory: &impl EntryMemory<Out>) -> Vec<Mapping<In, Out>> {
        let mut all = Vec::new();
        self.visit_between(memory, 0, u64::MAX, &mut |mapping| all.push(mapping));
        all
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
                    kind: NodeKind::Node,
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

    /// Address of the entry for `input` in `node`.
    fn slot(&self, node: NodeRef<Out>, input: In) -> Out {
        node.base.offset(self.geometry.index(input.raw(), node.level, node.width) * 8)
    }

    /// The entry for `input` in `node`.
    fn decode(
        &self,
        memory: &impl EntryMemory<Out>,
        node: NodeRef<Out>,
        input: In,
    ) -> Decoded<Out> {
        Entry(memory.read(self.slot(node, input))).decode(self.geometry, node.bottom())
    }

    /// The node that an entry points to; `None` if it is none of this table's of that shape, so that whatever else wrote to the memory cannot lead a change astray.
    fn child(&self, base: Out, level: Level, width: Width) -> Option<NodeRef<Out>> {
        let node = self.nodes.get(&base)?;
        (node.level == level && node.width == width).then_some(NodeRef {
            base,
            level,
            width,
            rights: Rights::ALL,
        })
    }

    /// Makes the child node of `parent` on the path of `input`, in place of the entry there.
    fn attach(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        shape: &impl Shape,
        parent: NodeRef<Out>,
        input: In,
        change: &mut Change,
    ) -> Result<NodeRef<Out>, TableError> {
        let level = parent.bottom() - 1;
        let wanted = shape.width(level, input.raw());
        let (base, width) = allocate(self.geometry, memory, level, wanted, input.raw(), change)?;
        self.nodes.insert(base, Node { level, width, used: 0, parts: Box::default() });
        change.filled.insert(parent.bottom());
        let slot = self.slot(parent, input);
        change.entries_written += self.write(memory, parent, slot, [Entry::table(base, width)]);
        Ok(NodeRef { base, level, width, rights: Rights::ALL })
    }

    /// Number of the table of `level`, which has no more levels than the root, on the path of `input`
    /// among all there can be.
    fn prefix(&self, level: Level, input: In) -> u64 {
        let unused = 64 - u32::from(self.geometry.address_bits());
        let shift = u32::from(self.geometry.shift(level + 1));
        (input.raw() << unused >> unused).checked_shr(shift).unwrap_or(0)
    }

    /// The node that the table of `level` on the path of `input` was merged into with its children.
    fn merged_at(&self, level: Level, input: In) -> Option<NodeRef<Out>> {
        if self.merged.is_empty() || level > self.geometry.levels() {
            return None;
        }
        let &base = self.merged.get(&(level, self.prefix(level, input)))?;
        Some(NodeRef { base, level, width: 2, rights: Rights::ALL })
    }

    /// The nodes that hold the entry of `level` for `input`, root first, where one of them is known:
    /// more than one only where merged nodes overlap.
    fn places(
        &self,
        known: NodeRef<Out>,
        input: In,
        level: Level,
    ) -> impl Iterator<Item = NodeRef<Out>> + use<In, Out> {
        let above = self.merged_at(level + 1, input);
        let below = self.merged_at(level, input);
        let only = (above.is_none() && below.is_none()).then_some(known);
        above.into_iter().chain(below).chain(only)
    }

    /// First entry, and number of entries, that a page of `level` at `input` takes in `node`.
    fn slots(&self, node: NodeRef<Out>, input: In, level: Level) -> (Out, u64) {
        let count = 1 << (self.geometry.index_bits() * (level - node.bottom()));
        let index = self.geometry.index(input.raw(), node.level, node.width) & !(count - 1);
        (node.base.offset(index * 8), count)
    }

    /// Writes adjacent entries from `first` on, keeps the node's count of entries in use, and
    /// returns how many it wrote.
    fn write(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        node: NodeRef<Out>,
        first: Out,
        entries: impl IntoIterator<Item = Entry>,
    ) -> u64 {
        let (mut written, mut before, mut after) = (0, 0, 0);
        for entry in entries {
            let slot = first.offset(written * 8);
            before += u32::from(Entry(memory.read(slot)).is_present());
            after += u32::from(entry.is_present());
            memory.write(slot, entry.0);
            written += 1;
        }
        if before != after {
            let part = (first.raw() - node.base.raw()) / 8 / self.geometry.node_entries(1);
            let node = self.nodes.get_mut(&node.base).expect("a path leads through known nodes");
            // Saturating: what others wrote was never counted.
            node.used = (node.used + after).saturating_sub(before);
            // Entries that are written together lie in one part.
            if let Some(used) = usize::try_from(part).ok().and_then(|i| node.parts.get_mut(i)) {
                *used = (*used + after as u16).saturating_sub(before as u16);
            }
        }
        written
    }

    /// Takes the entry of `level` for `input` away wherever it stands.
    fn clear(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        known: NodeRef<Out>,
        input: In,
        level: Level,
    ) {
        for place in self.places(known, input, level) {
            self.vacate(memory, place, input, level);
        }
    }

    /// Makes the entries of `level` for `input` in `node` those of an address without a page, which
    /// lead to the overlapping node if there is one. Returns how many.
    fn vacate(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        node: NodeRef<Out>,
        input: In,
        level: Level,
    ) -> u64 {
        let (first, count) = self.slots(node, input, level);
        let below = self.merged_at(level, input).filter(|_| node.bottom() == level);
        let entry = below
            .map_or(Entry::ABSENT, |below| Entry::table(below.base, below.width).overlapping());
        self.write(memory, node, first, (0..count).map(|_| entry))
    }

    /// Writes a page's leaf entry, or its replicas where entries are for smaller pages, wherever it
    /// belongs; `node` is one of the places. Returns how many entries.
    fn write_leaves(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        node: NodeRef<Out>,
        input: In,
        frame: Out,
        level: Level,
        attributes: Attributes,
    ) -> u64 {
        let mut written = 0;
        for place in self.places(node, input, level) {
            let (first, count) = self.slots(place, input, level);
            let (leaf, bottom) = (self.leaf(frame, level, attributes), place.bottom());
            let replicas = (0..count).map(|i| leaf.entry(bottom, i));
            written += self.write(memory, place, first, replicas);
        }
        written
    }

    fn leaf(&self, frame: Out, level: Level, attributes: Attributes) -> LeafEntries<Out> {
        let overlapping = self.density.is_some();
        LeafEntries { geometry: self.geometry, frame, level, attributes, overlapping }
    }

    /// The nodes that serve `input`, which is mapped, and its page's frame and level.
    fn find(
        &self,
        memory: &impl EntryMemory<Out>,
        input: In,
    ) -> Result<(Path<Out>, Out, Level), TableError> {
        check_canonical(self.geometry, input.raw())?;
        let mut path = Path::from(self.root);
        loop {
            match self.decode(memory, path.last(), input) {
                Decoded::Table { base, level, width } => {
                    let child = self.child(base, level, width);
                    path.push(child.ok_or(TableError::Corrupt(input.raw()))?);
                }
                // A page larger than what the node covers.
                Decoded::Mapped { level, .. } if level > path.last().level => {
                    return Err(TableError::Corrupt(input.raw()));
                }
                Decoded::Mapped { frame, level } => {
                    for level in 2..=self.geometry.levels() {
                        self.merged_at(level, input).into_iter().for_each(|node| path.add(node));
                    }
                    return Ok((path, frame, level));
                }
                Decoded::Absent => return Err(TableError::NotMapped(input.raw())),
                Decoded::Reserved => return Err(TableError::Corrupt(input.raw())),
            }
        }
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
            reshape::united(self.places(node, input, level).flat_map(|place| {
                let (first, count) = self.slots(place, input, level);
                (0..count).map(move |i| Entry(memory.read(first.offset(i * 8))))
            }))
        };
        let input = In::new(input.raw() & !(self.geometry.span(level) - 1));
        Mapping { input, frame, level, attributes }
    }

    fn leaf_flush(&self, start: In, level: Level, tables: bool) -> Flush<In> {
        Flush { start, length_bytes: self.geometry.span(level), leaves: true, tables }
    }

    fn update(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
        change: impl FnOnce(&mut Mapping<In, Out>),
    ) -> Result<(Mapping<In, Out>, Flush<In>), TableError> {
        let (path, frame, level) = self.find(memory, input)?;
        let old = self.mapping(memory, path.last(), input, frame, level);
        let mut new = old;
        change(&mut new);
        self.write_leaves(memory, path.last(), new.input, new.frame, level, new.attributes);
        Ok((old, self.leaf_flush(old.input, level, false)))
    }

    /// Frees the nodes at the end of `path` that hold nothing. True if there were any.
    fn prune(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        mut path: Path<Out>,
        input: In,
    ) -> bool {
        let mut any = false;
        while let Some(node) = path.pop() {
            if path.length == 0 || self.nodes[&node.base].used > 0 {
                break;
            }
            self.free(memory, node.base, node.width);
            self.merged.remove(&(node.level, self.prefix(node.level, input)));
            self.clear(memory, path.last(), input, node.level + 1);
            any = true;
        }
        any
    }

    fn free(&mut self, memory: &mut impl TableMemory<Out>, base: Out, width: Width) {
        self.nodes.remove(&base);
        memory.free(base, self.geometry.node_shift(width));
    }

    /// Visits the pages from `first` to `last`, which are canonical, stepping over the gap between
    /// the lower and the upper half of the address space.
    fn visit_between(
        &self,
        memory: &impl EntryMemory<Out>,
        first: u64,
        last: u64,
        visit: &mut impl FnMut(Mapping<In, Out>),
    ) {
        let sign = self.geometry.address_bits() - 1;
        let (lower_end, upper_start) = ((1 << sign) - 1, u64::MAX << sign);
        if first <= lower_end {
            self.visit_node(memory, self.root, first, last.min(lower_end), visit);
        }
        if last >= upper_start {
            self.visit_node(memory, self.root, first.max(upper_start), last, visit);
        }
    }

    fn visit_node(
        &self,
        memory: &impl EntryMemory<Out>,
        node: NodeRef<Out>,
        first: u64,
        last: u64,
        visit: &mut impl FnMut(Mapping<In, Out>),
    ) {
        let geometry = self.geometry;
        let mut address = first;
        loop {
            let mut span_level = node.bottom();
            match self.decode(memory, node, In::new(address)) {
                Decoded::Table { base, level, width } => {
                    if let Some(child) = self.child(base, level, width) {
                        let end = address | (geometry.span(node.bottom()) - 1);
                        self.visit_node(memory, child, address, end.min(last), visit);
                    }
                }
                Decoded::Mapped { frame, level } => {
                    visit(self.mapping(memory, node, In::new(address), frame, level));
                    span_level = level;
                }
                Decoded::Absent | Decoded::Reserved => {}
            }
            let end = address | (geometry.span(span_level) - 1);
            if end >= last {
                return;
            }
            address = end + 1;
        }
    }
}

/// The leaf entries of a page.
#[derive(Clone, Copy)]
struct LeafEntries<Out> {
    geometry: Geometry,
    frame: Out,
    level: Level,
    attributes: Attributes,
    /// Replicas carry the O bit.
    overlapping: bool,
}

impl<Out: Physical> LeafEntries<Out> {
    /// Number `i` of those that the page takes in a node of entries of level `bottom`.
    fn entry(&self, bottom: Level, i: u64) -> Entry {
        let Self { geometry, frame, level, attributes, overlapping } = *self;
        let large = |frame| Entry::leaf(frame, true, attributes);
        if level == 1 {
            Entry::leaf(frame, false, attributes)
        } else if overlapping && level > bottom {
            large(frame).overlapping()
        } else {
            // At level 1, PS stands for a level-2 page; elsewhere for one of the entry's own level.
            let page = geometry.span(bottom.max(2));
            large(frame.offset((i * geometry.span(bottom)) & !(page - 1)))
        }
    }
}

/// A node for `level` on the path of `input`, as wide as `wanted` or as the memory allows.
fn allocate<Out: Physical>(
    geometry: Geometry,
    memory: &mut impl TableMemory<Out>,
    level: Level,
    wanted: Width,
    input: u64,
    change: &mut Change,
) -> Result<(Out, Width), TableError> {
    for width in (1..=wanted.clamp(1, level.min(3))).rev() {
        let shift = geometry.node_shift(width);
        let bottom = level + 1 - width;
        if let Some(base) = memory.allocate_for(shift, bottom, input) {
            memory.is_node(base, shift, bottom, input);
            change.nodes += 1;
            change.node_bytes += 1 << shift;
            change.fallbacks += u32::from(width < wanted);
            return Ok((base, width));
        }
    }
    Err(TableError::OutOfMemory)
}
