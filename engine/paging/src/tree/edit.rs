//! Mapping, unmapping and changing pages.

use super::Tree;
use super::node::{Node, Path, allocate};
use crate::addr::{Address, Physical};
use crate::entry::{Attributes, Decoded, Entry, Rights};
use crate::error::{TableError, check_canonical, check_frame, check_page};
use crate::geometry::Level;
use crate::layout::Shape;
use crate::mapping::{Flush, Made, Mapping};
use crate::memory::{EntryMemory, TableMemory};
use crate::walk::NodeRef;

impl<In: Address, Out: Physical> Tree<In, Out> {
    /// Maps the page of `level` at `input` to `frame`, making the nodes that are missing, and freeing those below
    /// it that hold nothing.
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
    ) -> Result<Made<In>, TableError> {
        check_page(self.geometry, input.raw(), level)?;
        check_frame(self.geometry, frame, level)?;
        let mut made = Made::nothing();
        // What the topmost node that is made here is for.
        let mut made_bytes = 0;
        let mut at = self.root;
        let mut path = Path::from(at);
        while at.bottom() > level {
            at = match self.decode(memory, at, input) {
                Decoded::Table { base, level, width } => {
                    self.child(base, level, width).ok_or(TableError::Corrupt(input.raw()))?
                }
                Decoded::Absent => {
                    let child =
                        self.attach(memory, shape, at, input, &mut made).inspect_err(|_| {
                            // Nodes that were there stay, also if they hold nothing.
                            let keeps =
                                |first: In, last: In| last.raw() - first.raw() >= made_bytes;
                            self.prune(memory, path, input, &mut { keeps });
                        })?;
                    made_bytes = made_bytes.max(self.geometry.span(at.bottom()));
                    child
                }
                Decoded::Mapped { .. } => return Err(TableError::Occupied(input.raw())),
                Decoded::Reserved => return Err(TableError::Corrupt(input.raw())),
            };
            path.push(at);
        }
        if let Some(below) = self.merged_at(level, input).filter(|below| below.base != at.base) {
            at = below;
        }
        let (first, count) = self.slots(at, input, level);
        if (0..count).any(|i| Entry(memory.read(first.offset(i * 8))).is_present()) {
            if !self.is_empty(memory, input, level) {
                return Err(TableError::Occupied(input.raw()));
            }
            // What leads to nodes that hold nothing: the page takes their place.
            let last = input.offset(self.geometry.span(level) - 1);
            made.flush = self
                .free_empty(memory, input, last, &mut |first, end| first < input || last < end)?;
        }
        self.write_leaves(memory, at, input, frame, level, attributes);
        Ok(made)
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
        let (path, mapping) = self.take_away(memory, input)?;
        let tables = self.prune(memory, path, input, &mut |_, _| false).is_some();
        Ok((mapping, self.leaf_flush(mapping.input, mapping.level, tables)))
    }

    /// Takes away the page that `input` lies in. Its nodes stay, also if they hold nothing any more:
    /// [`Tree::free_empty`] frees them.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] when there is none.
    pub fn unmap_page(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
    ) -> Result<(Mapping<In, Out>, Flush<In>), TableError> {
        let (_, mapping) = self.take_away(memory, input)?;
        Ok((mapping, self.leaf_flush(mapping.input, mapping.level, false)))
    }

    /// Clears the entries of the page that `input` lies in. Gives the nodes that they stood in, and the page.
    fn take_away(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
    ) -> Result<(Path<Out>, Mapping<In, Out>), TableError> {
        let (path, frame, level) = self.find(memory, input)?;
        let mapping = self.mapping(memory, path.last(), input, frame, level);
        self.clear(memory, path.last(), input, level);
        Ok((path, mapping))
    }

    /// Frees the nodes that hold nothing on the way to addresses from `first` to `last`, but for those
    /// that `keeps` wants: it is asked with the first and the last address that a node is for.
    ///
    /// # Errors
    /// [`TableError::NotCanonical`], or [`TableError::Corrupt`] where something else has written to a node.
    pub fn free_empty(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        first: In,
        last: In,
        keeps: &mut dyn FnMut(In, In) -> bool,
    ) -> Result<Option<Flush<In>>, TableError> {
        for end in [first, last] {
            check_canonical(self.geometry, end.raw())?;
        }
        let mut found = Vec::new();
        self.find_empty(memory, self.root, (first.raw(), last.raw()), &mut found);
        let mut freed: Option<Flush<In>> = None;
        for input in found {
            let (path, _) = self.reach(memory, input)?;
            let path = self.with_merged(path, input);
            let Some(flush) = self.prune(memory, path, input, keeps) else { continue };
            freed = Some(freed.map_or(flush, |freed| freed.and(flush)));
        }
        Ok(freed)
    }

    /// An address each of the nodes below `node` that hold nothing, and are on the way to addresses in `range`.
    fn find_empty(
        &self,
        memory: &impl EntryMemory<Out>,
        node: NodeRef<Out>,
        range: (u64, u64),
        found: &mut Vec<In>,
    ) {
        let below = self.geometry.span(node.bottom()) - 1;
        let (mut address, last) = range;
        loop {
            let end = (address | below).min(last);
            if let Decoded::Table { base, level, width } =
                self.decode(memory, node, In::new(address))
                && let Some(child) = self.child(base, level, width)
            {
                if self.nodes[&child.base].used == 0 {
                    found.push(In::new(address));
                } else if child.bottom() > 1 {
                    self.find_empty(memory, child, (address, end), found);
                }
            }
            if end == last {
                return;
            }
            address = end + 1;
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
    ) -> Result<Made<In>, TableError> {
        let old = self.lookup(memory, from)?;
        let made = self.map(memory, shape, to, old.frame, old.level, old.attributes)?;
        let (_, flush) = self.unmap(memory, from)?;
        Ok(Made { flush: Some(flush), ..made })
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
        let (path, frame, level) = self.find(memory, input)?;
        let node = path.last();
        let old = self.mapping(memory, node, input, frame, level);
        if level == 1 {
            return Err(TableError::NoSuchPage(0));
        }
        let mut made = Made::nothing();
        let below = self.places(node, input, level).find(|place| place.bottom() < level);
        let at = match below {
            Some(below) => {
                // Where an overlapping node has the page too, it leads to its pieces from now on.
                for above in self.places(node, input, level).filter(|p| p.bottom() == level) {
                    self.vacate(memory, above, input, level);
                }
                below
            }
            None if node.bottom() == level => self.attach(memory, shape, node, input, &mut made)?,
            // A page whose copies are not where its table keeps them.
            None => return Err(TableError::Corrupt(input.raw())),
        };
        let bytes = self.geometry.span(level - 1);
        for i in 0..self.geometry.node_entries(1) {
            let (page, frame) = (old.input.offset(i * bytes), old.frame.offset(i * bytes));
            self.write_leaves(memory, at, page, frame, level - 1, old.attributes);
        }
        Ok(Made { flush: Some(self.leaf_flush(old.input, level, false)), ..made })
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

    /// Makes the child node of `parent` on the path of `input`, in place of the entry there.
    fn attach(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        shape: &impl Shape,
        parent: NodeRef<Out>,
        input: In,
        made: &mut Made<In>,
    ) -> Result<NodeRef<Out>, TableError> {
        let level = parent.bottom() - 1;
        let wanted = shape.width(level, input.raw());
        let (base, width) = allocate(self.geometry, memory, level, wanted, input.raw())?;
        let is_fallback = width < wanted;
        made.fallbacks += u32::from(is_fallback);
        self.nodes.insert(base, Node { level, width, used: 0, is_fallback, parts: Box::default() });
        made.filled.insert(parent.bottom());
        let slot = self.slot(parent, input);
        self.write(memory, parent, slot, [Entry::table(base, width)]);
        Ok(NodeRef { base, level, width, rights: Rights::ALL })
    }

    /// Frees the nodes at the end of `path`, which leads to `input`, that hold nothing, up to one that `keeps`
    /// wants. Gives what is stale then.
    fn prune(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        mut path: Path<Out>,
        input: In,
        keeps: &mut dyn FnMut(In, In) -> bool,
    ) -> Option<Flush<In>> {
        let mut freed = None;
        while let Some(node) = path.pop() {
            if path.length == 0 || self.nodes[&node.base].used > 0 {
                break;
            }
            let bytes = self.geometry.span(node.level + 1);
            let flush = Flush::of(In::new(input.raw() & !(bytes - 1)), bytes, true, true);
            if keeps(flush.start, flush.last) {
                break;
            }
            self.free(memory, node.base, node.width);
            self.merged.remove(&(node.level, self.prefix(node.level, input)));
            self.clear(memory, path.last(), input, node.level + 1);
            freed = Some(flush);
        }
        freed
    }

    fn leaf_flush(&self, start: In, level: Level, tables: bool) -> Flush<In> {
        Flush::of(start, self.geometry.span(level), true, tables)
    }
}
