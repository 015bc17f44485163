//! The software side of a page table: building, changing and taking it apart.
//!
//! Source: Intel SDM volume 3, chapter 4, for the conventional shape; Park et al. (ASPLOS 2022),
//! sections 3.2 to 3.4 and 6.2, for flattened nodes, fall-back, replicated large leaves, and later
//! promotion. Every word stands in the memory that the caller passes; beside it the table keeps
//! only what an operating system keeps in its frame descriptors: which frames are nodes, of what
//! shape, and how many of their entries are in use.

use std::marker::PhantomData;

use rustc_hash::FxHashMap;

use crate::addr::{Address, Physical};
use crate::entry::{Attributes, Decoded, Entry, Rights};
use crate::geometry::{Geometry, Level, Width};
use crate::memory::{EntryMemory, TableMemory};
use crate::organisations::Shape;
use crate::walk::{Fault, Leaf, Partial, Step, Walk};

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
    /// The frame has more address bits than an entry.
    #[error("frame {0:#x} does not fit an entry: physical addresses have at most 52 bits")]
    FrameTooHigh(u64),
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
}

/// How many nodes there are of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStatistics {
    /// Topmost level of the nodes.
    pub level: Level,
    /// Levels that they span.
    pub width: Width,
    /// Size of one in bytes.
    pub node_bytes: u64,
    /// How many.
    pub nodes: u64,
    /// Entries in use in all of them.
    pub entries_used: u64,
}

/// What an operating system knows of a frame that is a node.
#[derive(Clone, Copy, Debug)]
struct Node {
    level: Level,
    width: Width,
    used: u32,
}

/// The nodes on the way to an address, root first.
#[derive(Clone, Copy)]
struct Path<Out> {
    nodes: [Option<Partial<Out>>; 6],
    length: usize,
}

impl<Out: Physical> Path<Out> {
    fn from(root: Partial<Out>) -> Self {
        let mut path = Self { nodes: [None; 6], length: 0 };
        path.push(root);
        path
    }

    fn push(&mut self, node: Partial<Out>) {
        self.nodes[self.length] = Some(node);
        self.length += 1;
    }

    fn last(&self) -> Partial<Out> {
        self.nodes[self.length - 1].expect("a path has at least the root")
    }

    fn pop(&mut self) -> Option<Partial<Out>> {
        self.length = self.length.checked_sub(1)?;
        self.nodes[self.length].take()
    }
}

/// A page table whose nodes form a tree: radix and everything that flattens it.
#[derive(Clone, Debug)]
pub struct Tree<In, Out> {
    geometry: Geometry,
    root: Partial<Out>,
    nodes: FxHashMap<Out, Node>,
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
            allocate(geometry, memory, level, shape.width(level, 0), &mut Change::default())?;
        let mut nodes = FxHashMap::default();
        nodes.insert(base, Node { level, width, used: 0 });
        let root = Partial { base, level, width, rights: Rights::ALL };
        Ok(Self { geometry, root, nodes, input: PhantomData })
    }

    /// The geometry.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Where walks start: the content of the root register.
    #[inline]
    pub fn root(&self) -> Partial<Out> {
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
        self.check_page(input, level)?;
        self.check_frame(frame, level)?;
        let mut change = Change::default();
        let mut at = self.root;
        let mut path = Path::from(at);
        while at.bottom() > level {
            change.entries_read += 1;
            at = match self.decode(memory, at, input) {
                Decoded::Table { base, width } => {
                    self.child(at, base, width).ok_or(TableError::Corrupt(input.raw()))?
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
        let (first, count) = self.slots(at, input, level);
        change.entries_read += 1;
        if (0..count).any(|i| Entry(memory.read(first.offset(i * 8))).is_present()) {
            return Err(TableError::Occupied(input.raw()));
        }
        change.entries_written += self.write_leaves(memory, at, input, frame, level, attributes);
        Ok(change)
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
        let (first, count) = self.slots(path.last(), mapping.input, level);
        self.write(memory, path.last(), first, (0..count).map(|_| Entry::ABSENT));
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
        self.check_frame(frame, level)?;
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
        let at = if node.bottom() == level {
            self.attach(memory, shape, node, input, &mut change)?
        } else {
            node
        };
        let bytes = self.geometry.span(level - 1);
        for i in 0..self.geometry.node_entries(1) {
            let (page, frame) = (old.input.offset(i * bytes), old.frame.offset(i * bytes));
            change.entries_written +=
                self.write_leaves(memory, at, page, frame, level - 1, old.attributes);
        }
        Ok((change, self.leaf_flush(old.input, level, false)))
    }

    /// Gives the node with topmost level `level` on the path of `input` another width: wider
    /// (promotion: its child nodes are merged into it; ASPLOS 2022, section 6.2) or narrower
    /// (demotion: it is taken apart). Translations stay as they are. `None` if it has that width.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] when there is no such node, [`TableError::Shape`] when the levels
    /// do not fit, [`TableError::OutOfMemory`]; the table is unchanged then.
    pub fn reshape(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
        level: Level,
        width: Width,
    ) -> Result<Option<(Change, Flush<In>)>, TableError> {
        self.check_canonical(input)?;
        let impossible = TableError::Shape { address: input.raw(), level, width };
        if width == 0 || width > 3 || width > level || level > self.geometry.levels() {
            return Err(impossible);
        }
        let mut parent = None;
        let mut old = self.root;
        while old.level > level {
            if old.bottom() <= level {
                return Err(impossible);
            }
            match self.decode(memory, old, input) {
                Decoded::Table { base, width } => {
                    parent = Some(old);
                    old = self.child(old, base, width).ok_or(TableError::Corrupt(input.raw()))?;
                }
                Decoded::Reserved => return Err(TableError::Corrupt(input.raw())),
                Decoded::Absent | Decoded::Mapped { .. } => {
                    return Err(TableError::NotMapped(input.raw()));
                }
            }
        }
        if old.width == width {
            return Ok(None);
        }
        let mut change = Change::default();
        let new = if width > old.width {
            self.merge(memory, old, width, input, &mut change)?
        } else {
            self.take_apart(memory, old, width, &mut change)?
        };
        let Some(parent) = parent else {
            self.root = new;
            let start = In::new(0);
            let flush = Flush { start, length_bytes: u64::MAX, leaves: false, tables: true };
            return Ok(Some((change, flush)));
        };
        let slot = self.slot(parent, input);
        change.entries_written +=
            self.write(memory, parent, slot, [Entry::table(new.base, new.width)]);
        let length_bytes = self.geometry.span(level + 1);
        let start = In::new(input.raw() & !(length_bytes - 1));
        Ok(Some((change, Flush { start, length_bytes, leaves: false, tables: true })))
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
        self.check_canonical(start)?;
        if length_bytes > 0 {
            let last = In::new(start.raw().saturating_add(length_bytes - 1));
            self.check_canonical(last)?;
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
                shapes.push(NodeStatistics { level, width, node_bytes, nodes: 0, entries_used: 0 });
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

    fn check_canonical(&self, input: In) -> Result<(), TableError> {
        if self.geometry.is_canonical(input.raw()) {
            Ok(())
        } else {
            let bits = self.geometry.address_bits();
            Err(TableError::NotCanonical { address: input.raw(), bits })
        }
    }

    fn check_alignment(&self, address: u64, level: Level) -> Result<(), TableError> {
        let page_bytes = self.geometry.span(level);
        if address & (page_bytes - 1) == 0 {
            Ok(())
        } else {
            Err(TableError::Misaligned { address, page_bytes })
        }
    }

    fn check_page(&self, input: In, level: Level) -> Result<(), TableError> {
        if level == 0 || level > self.geometry.levels().min(3) {
            return Err(TableError::NoSuchPage(level));
        }
        self.check_canonical(input)?;
        self.check_alignment(input.raw(), level)
    }

    fn check_frame(&self, frame: Out, level: Level) -> Result<(), TableError> {
        self.check_alignment(frame.raw(), level)?;
        if Entry::can_hold(frame) { Ok(()) } else { Err(TableError::FrameTooHigh(frame.raw())) }
    }

    /// Address of the entry for `input` in `node`.
    fn slot(&self, node: Partial<Out>, input: In) -> Out {
        node.base.offset(self.geometry.index(input.raw(), node.level, node.width) * 8)
    }

    /// The entry for `input` in `node`.
    fn decode(
        &self,
        memory: &impl EntryMemory<Out>,
        node: Partial<Out>,
        input: In,
    ) -> Decoded<Out> {
        Entry(memory.read(self.slot(node, input))).decode(self.geometry, node.bottom())
    }

    /// The node that an entry of `parent` points to; `None` if it is none of this table's there,
    /// so that whatever else wrote to the memory cannot lead a change astray.
    fn child(&self, parent: Partial<Out>, base: Out, width: Width) -> Option<Partial<Out>> {
        let level = parent.bottom() - 1;
        let node = self.nodes.get(&base)?;
        (node.level == level && node.width == width).then_some(Partial {
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
        parent: Partial<Out>,
        input: In,
        change: &mut Change,
    ) -> Result<Partial<Out>, TableError> {
        let level = parent.bottom() - 1;
        let wanted = shape.width(level, input.raw());
        let (base, width) = allocate(self.geometry, memory, level, wanted, change)?;
        self.nodes.insert(base, Node { level, width, used: 0 });
        let slot = self.slot(parent, input);
        change.entries_written += self.write(memory, parent, slot, [Entry::table(base, width)]);
        Ok(Partial { base, level, width, rights: Rights::ALL })
    }

    /// First entry, and number of entries, that a page of `level` at `input` takes in `node`.
    fn slots(&self, node: Partial<Out>, input: In, level: Level) -> (Out, u64) {
        let count = 1 << (self.geometry.index_bits() * (level - node.bottom()));
        let index = self.geometry.index(input.raw(), node.level, node.width) & !(count - 1);
        (node.base.offset(index * 8), count)
    }

    /// Writes adjacent entries from `first` on, keeps the node's count of entries in use, and
    /// returns how many it wrote.
    fn write(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        node: Partial<Out>,
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
            let node = self.nodes.get_mut(&node.base).expect("a path leads through known nodes");
            // Saturating: what others wrote was never counted.
            node.used = (node.used + after).saturating_sub(before);
        }
        written
    }

    /// Writes a page's leaf entry, or its replicas if the node's entries are for smaller pages.
    /// Returns how many entries.
    fn write_leaves(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        node: Partial<Out>,
        input: In,
        frame: Out,
        level: Level,
        attributes: Attributes,
    ) -> u64 {
        let (first, count) = self.slots(node, input, level);
        let (geometry, bottom) = (self.geometry, node.bottom());
        let replicas = (0..count).map(|i| replica(geometry, frame, level, bottom, i, attributes));
        self.write(memory, node, first, replicas)
    }

    /// The nodes down to the leaf of `input`, its frame and its level.
    fn find(
        &self,
        memory: &impl EntryMemory<Out>,
        input: In,
    ) -> Result<(Path<Out>, Out, Level), TableError> {
        self.check_canonical(input)?;
        let mut path = Path::from(self.root);
        loop {
            match self.decode(memory, path.last(), input) {
                Decoded::Table { base, width } => {
                    let child = self.child(path.last(), base, width);
                    path.push(child.ok_or(TableError::Corrupt(input.raw()))?);
                }
                Decoded::Mapped { frame, level } => return Ok((path, frame, level)),
                Decoded::Absent => return Err(TableError::NotMapped(input.raw())),
                Decoded::Reserved => return Err(TableError::Corrupt(input.raw())),
            }
        }
    }

    /// The whole page of `level` whose leaf entries stand in `node`.
    fn mapping(
        &self,
        memory: &impl EntryMemory<Out>,
        node: Partial<Out>,
        input: In,
        frame: Out,
        level: Level,
    ) -> Mapping<In, Out> {
        let (first, count) = self.slots(node, input, level);
        let mut attributes = Entry(memory.read(first)).attributes();
        for i in 1..count {
            let replica = Entry(memory.read(first.offset(i * 8)));
            attributes.accessed |= replica.is_accessed();
            attributes.dirty |= replica.is_dirty();
        }
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
            let parent = path.last();
            let slot = self.slot(parent, input);
            self.write(memory, parent, slot, [Entry::ABSENT]);
            self.free(memory, node.base, node.width);
            any = true;
        }
        any
    }

    fn free(&mut self, memory: &mut impl TableMemory<Out>, base: Out, width: Width) {
        self.nodes.remove(&base);
        memory.free(base, self.geometry.node_shift(width));
    }

    /// Merges `old`, which lies on the path of `input`, with its descendants into one node of
    /// `width`, and frees them.
    fn merge(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        old: Partial<Out>,
        width: Width,
        input: In,
        change: &mut Change,
    ) -> Result<Partial<Out>, TableError> {
        let (level, address) = (old.level, input.raw());
        let mut parts = Parts { bottom: level + 1 - width, nodes: Vec::new(), entries: Vec::new() };
        self.gather(memory, old, 0, &mut parts).map_err(|obstacle| match obstacle {
            Obstacle::Overlap => TableError::Shape { address, level, width },
            Obstacle::Corrupt => TableError::Corrupt(address),
        })?;
        let shift = self.geometry.node_shift(width);
        let base = memory.allocate(shift).ok_or(TableError::OutOfMemory)?;
        change.nodes += 1;
        change.node_bytes += 1 << shift;
        change.entries_written += parts.entries.len() as u64;
        for &(index, entry) in &parts.entries {
            memory.write(base.offset(index * 8), entry.0);
        }
        for (base, width) in parts.nodes {
            self.free(memory, base, width);
        }
        let used = u32::try_from(parts.entries.len()).expect("fewer than 2^32 entries in a node");
        self.nodes.insert(base, Node { level, width, used });
        Ok(Partial { base, width, ..old })
    }

    /// Collects `node`, whose first entry has number `first` among those of its level in the merged
    /// node, and what is below it down to the bottom of `parts`.
    fn gather(
        &self,
        memory: &impl EntryMemory<Out>,
        node: Partial<Out>,
        first: u64,
        parts: &mut Parts<Out>,
    ) -> Result<(), Obstacle> {
        let geometry = self.geometry;
        let below = node.bottom().checked_sub(parts.bottom).ok_or(Obstacle::Overlap)?;
        parts.nodes.push((node.base, node.width));
        let scale = geometry.node_entries(below);
        for i in 0..geometry.node_entries(node.width) {
            let entry = Entry(memory.read(node.base.offset(i * 8)));
            let index = (first + i) * scale;
            if below == 0 {
                if entry.is_present() {
                    parts.entries.push((index, entry));
                }
                continue;
            }
            match entry.decode::<Out>(geometry, node.bottom()) {
                Decoded::Table { base, width } => {
                    let child = self.child(node, base, width).ok_or(Obstacle::Corrupt)?;
                    let first = (first + i) * geometry.node_entries(width);
                    self.gather(memory, child, first, parts)?;
                }
                Decoded::Mapped { frame, level } => {
                    let attributes = entry.attributes();
                    parts.entries.extend((0..scale).map(|j| {
                        (index + j, replica(geometry, frame, level, parts.bottom, j, attributes))
                    }));
                }
                Decoded::Absent => {}
                Decoded::Reserved => return Err(Obstacle::Corrupt),
            }
        }
        Ok(())
    }

    /// Takes `old` apart into a node of `width` and child nodes for the rest of its levels.
    fn take_apart<M: TableMemory<Out>>(
        &mut self,
        memory: &mut M,
        old: Partial<Out>,
        width: Width,
        change: &mut Change,
    ) -> Result<Partial<Out>, TableError> {
        let geometry = self.geometry;
        let child_width = old.width - width;
        let child_level = old.level - width;
        let per_child = geometry.node_entries(child_width);
        let mut made: Vec<(Out, Width)> = Vec::new();
        let mut children: Vec<(Out, Node)> = Vec::new();
        let mut obtain = |memory: &mut M, width: Width, change: &mut Change| {
            let shift = geometry.node_shift(width);
            if let Some(base) = memory.allocate(shift) {
                made.push((base, width));
                change.nodes += 1;
                change.node_bytes += 1 << shift;
                return Ok(base);
            }
            for &(base, width) in &made {
                memory.free(base, geometry.node_shift(width));
            }
            Err(TableError::OutOfMemory)
        };
        let base = obtain(memory, width, change)?;
        let mut used = 0;
        for slot in 0..geometry.node_entries(width) {
            let group = old.base.offset(slot * per_child * 8);
            let read = |memory: &M, i: u64| Entry(memory.read(group.offset(i * 8)));
            let present = (0..per_child).filter(|&i| read(memory, i).is_present()).count();
            if present == 0 {
                continue;
            }
            used += 1;
            let first = read(memory, 0);
            let entry = match first.decode::<Out>(geometry, old.bottom()) {
                // 512 replicas of one large page become one leaf again.
                Decoded::Mapped { frame, level } if level == child_level + 1 => {
                    let mut attributes = first.attributes();
                    for i in 1..per_child {
                        let replica = read(memory, i);
                        attributes.accessed |= replica.is_accessed();
                        attributes.dirty |= replica.is_dirty();
                    }
                    Entry::leaf(frame, true, attributes)
                }
                _ => {
                    let child = obtain(memory, child_width, change)?;
                    for i in 0..per_child {
                        let entry = read(memory, i);
                        if entry.is_present() {
                            memory.write(child.offset(i * 8), entry.0);
                        }
                    }
                    change.entries_written += present as u64;
                    let used = u32::try_from(present).expect("fewer than 2^32 entries in a node");
                    let node = Node { level: child_level, width: child_width, used };
                    children.push((child, node));
                    Entry::table(child, child_width)
                }
            };
            memory.write(base.offset(slot * 8), entry.0);
            change.entries_written += 1;
        }
        self.free(memory, old.base, old.width);
        self.nodes.extend(children);
        self.nodes.insert(base, Node { level: old.level, width, used });
        Ok(Partial { base, width, ..old })
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
        node: Partial<Out>,
        first: u64,
        last: u64,
        visit: &mut impl FnMut(Mapping<In, Out>),
    ) {
        let geometry = self.geometry;
        let mut address = first;
        loop {
            let mut span_level = node.bottom();
            match self.decode(memory, node, In::new(address)) {
                Decoded::Table { base, width } => {
                    if let Some(child) = self.child(node, base, width) {
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

/// What a wider node is made of.
struct Parts<Out> {
    /// Lowest level that the wider node spans.
    bottom: Level,
    /// The nodes that it takes the place of.
    nodes: Vec<(Out, Width)>,
    /// Its entries and where they stand in it.
    entries: Vec<(u64, Entry)>,
}

/// Why nodes cannot be merged.
enum Obstacle {
    /// One of them spans the bottom level of the merged node and the level below.
    Overlap,
    /// An entry is not one that the table wrote.
    Corrupt,
}

/// Entry number `i` of those that a page of `level` takes in a node of entries of `bottom`.
fn replica<Out: Physical>(
    geometry: Geometry,
    frame: Out,
    level: Level,
    bottom: Level,
    i: u64,
    attributes: Attributes,
) -> Entry {
    if level == 1 {
        return Entry::leaf(frame, false, attributes);
    }
    // At level 1, PS stands for a level-2 page; elsewhere for a page of the entry's own level.
    let page = geometry.span(bottom.max(2));
    let within = (i * geometry.span(bottom)) & !(page - 1);
    Entry::leaf(frame.offset(within), true, attributes)
}

/// A node for `level` as wide as `wanted`, or as the memory allows.
fn allocate<Out: Physical>(
    geometry: Geometry,
    memory: &mut impl TableMemory<Out>,
    level: Level,
    wanted: Width,
    change: &mut Change,
) -> Result<(Out, Width), TableError> {
    for width in (1..=wanted.clamp(1, level.min(3))).rev() {
        let shift = geometry.node_shift(width);
        if let Some(base) = memory.allocate(shift) {
            change.nodes += 1;
            change.node_bytes += 1 << shift;
            change.fallbacks += u32::from(width < wanted);
            return Ok((base, width));
        }
    }
    Err(TableError::OutOfMemory)
}
