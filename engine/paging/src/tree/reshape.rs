//! Nodes that become wider or narrower while translations stay as they are.

use super::Tree;
use super::node::{Node, united};
use crate::addr::{Address, Physical};
use crate::entry::{Decoded, Entry, Rights};
use crate::error::{TableError, check_canonical};
use crate::geometry::{Level, Width};
use crate::mapping::Flush;
use crate::memory::{EntryMemory, TableMemory};
use crate::walk::NodeRef;

impl<In: Address, Out: Physical> Tree<In, Out> {
    /// Gives the node with topmost level `level` on the path of `input` another width: wider
    /// (promotion: its child nodes are merged into it; ASPLOS 2022, section 6.2) or narrower
    /// (demotion: it is taken apart). Translations stay as they are. `None` if it has that width.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] when there is no such node, [`TableError::Shape`] when the levels
    /// do not fit, [`TableError::OutOfMemory`], [`TableError::Corrupt`] when something else has written
    /// entries that lead nowhere, or two of them to one node; the table is unchanged then.
    pub fn reshape(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
        level: Level,
        width: Width,
    ) -> Result<Option<Flush<In>>, TableError> {
        check_canonical(self.geometry, input.raw())?;
        let impossible = TableError::Shape { address: input.raw(), level, width };
        let widest = if self.density.is_some() { 2 } else { 3 };
        if width == 0 || width > widest.min(level) || level > self.geometry.levels() {
            return Err(impossible);
        }
        let old = self.seek(memory, input, level)?.ok_or(impossible)?;
        if old.node.width == width {
            return Ok(None);
        }
        self.set_width(memory, old, width, input).map(Some)
    }

    /// The node with topmost level `level` on the path of `input`, or that part of a merged node that
    /// stands for it; `None` if that level lies within a node that was made as one.
    pub(super) fn seek(
        &self,
        memory: &impl EntryMemory<Out>,
        input: In,
        level: Level,
    ) -> Result<Option<Found<Out>>, TableError> {
        let (mut parent, mut at) = (None, self.root);
        while at.level > level {
            parent = Some(at);
            if at.bottom() <= level {
                break;
            }
            match self.decode(memory, at, input) {
                Decoded::Table { base, level, width } => {
                    let child = self.child(base, level, width);
                    at = child.ok_or(TableError::Corrupt(input.raw()))?;
                }
                Decoded::Reserved => return Err(TableError::Corrupt(input.raw())),
                Decoded::Absent | Decoded::Mapped { .. } => {
                    return Err(TableError::NotMapped(input.raw()));
                }
            }
        }
        let merged = self.merged_at(level, input);
        if let Some(node) = merged.or_else(|| (at.level == level).then_some(at)) {
            return Ok(Some(Found { node, parent }));
        }
        if self.density.is_none() {
            return Ok(None);
        }
        let part = self.part(at, input);
        let there = (0..self.geometry.node_entries(1))
            .map(|i| Entry(memory.read(part.base.offset(i * 8))))
            .find(|entry| entry.is_present());
        match there.map(|entry| entry.decode::<Out>(self.geometry, level)) {
            None => Err(TableError::NotMapped(input.raw())),
            Some(Decoded::Mapped { level: page, .. }) if page > level => {
                Err(TableError::NotMapped(input.raw()))
            }
            Some(_) => Ok(Some(Found { node: part, parent })),
        }
    }

    /// The conventional node of the lowest level that `node` stands for on the path of `input`.
    fn part(&self, node: NodeRef<Out>, input: In) -> NodeRef<Out> {
        let entries = self.geometry.node_entries(1);
        let index = self.geometry.index(input.raw(), node.level, node.width) & !(entries - 1);
        let level = node.bottom();
        NodeRef { base: node.base.offset(index * 8), level, width: 1, rights: Rights::ALL }
    }

    /// Gives `old`, which lies on the path of `input`, another width.
    pub(super) fn set_width(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        old: Found<Out>,
        width: Width,
        input: In,
    ) -> Result<Flush<In>, TableError> {
        let Found { node: old, parent } = old;
        let new = if width > old.width {
            self.merge(memory, old, width, input)?
        } else {
            self.take_apart(memory, old, width, input)?
        };
        let Some(parent) = parent else {
            self.root = new;
            return Ok(Flush::everything(false, true));
        };
        self.link(memory, parent, new, input);
        let bytes = self.geometry.span(old.level + 1);
        Ok(Flush::of(In::new(input.raw() & !(bytes - 1)), bytes, false, true))
    }

    /// Lets the entries that lead to the table of `node`'s topmost level on the path of `input` lead
    /// to `node`; `parent` holds one of them.
    fn link(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        parent: NodeRef<Out>,
        node: NodeRef<Out>,
        input: In,
    ) {
        let above = node.level + 1;
        for place in self.places(parent, input, above) {
            let (first, _) = self.slots(place, input, above);
            if place.bottom() < above {
                // The merged node above has the entries of `node` themselves, or its overlap.
                let entries = match node.width {
                    1 => Vec::new(),
                    _ => self.overlap(memory, node, self.prefix(node.level, input)),
                };
                self.write(memory, place, first, entries);
            } else {
                let entry = match self.merged_at(above, input) {
                    Some(merged) if node.width == 1 => {
                        Entry::table(merged.base, merged.width).overlapping()
                    }
                    _ => Entry::table(node.base, node.width),
                };
                self.write(memory, place, first, [entry]);
            }
        }
    }

    /// What stands for `node`, a merged one whose table has this prefix, in a merged node above it:
    /// its base and the O bit, but large pages and pointers to merged nodes below as they are
    /// (Compendia, sections 4.4.3 and 4.5).
    fn overlap(
        &self,
        memory: &impl EntryMemory<Out>,
        node: NodeRef<Out>,
        prefix: u64,
    ) -> Vec<Entry> {
        let entries = self.geometry.node_entries(1);
        let entry = |i| {
            let first = Entry(memory.read(node.base.offset(i * entries * 8)));
            let child = self.merged.get(&(node.bottom(), prefix * entries + i));
            match (first.decode::<Out>(self.geometry, node.bottom()), child) {
                (Decoded::Mapped { frame, level }, _) if level == node.level => {
                    self.leaf(frame, level, first.attributes()).entry(level, 0)
                }
                (_, Some(&child)) => Entry::table(child, 2),
                (_, None) => Entry::table(node.base, node.width).overlapping(),
            }
        };
        (0..entries).map(entry).collect()
    }

    /// Merges `old`, which lies on the path of `input`, with its descendants into one node of
    /// `width`, and frees them.
    fn merge(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        old: NodeRef<Out>,
        width: Width,
        input: In,
    ) -> Result<NodeRef<Out>, TableError> {
        let (level, address) = (old.level, input.raw());
        let prefix = self.prefix(level, input);
        let bottom = level + 1 - width;
        let mut parts = Parts { bottom, prefix, nodes: Vec::new(), entries: Vec::new() };
        self.gather(memory, old, 0, &mut parts).map_err(|obstacle| match obstacle {
            Obstacle::Overlap => TableError::Shape { address, level, width },
            Obstacle::Corrupt => TableError::Corrupt(address),
        })?;
        // Two entries that lead to one node: it would be freed twice.
        let mut bases: Vec<Out> = parts.nodes.iter().map(|&(base, _)| base).collect();
        bases.sort_unstable();
        if bases.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(TableError::Corrupt(address));
        }
        let shift = self.geometry.node_shift(width);
        let base = memory.allocate(shift).ok_or(TableError::OutOfMemory)?;
        memory.is_node(base, shift, bottom, address);
        for &(index, entry) in &parts.entries {
            memory.write(base.offset(index * 8), entry.0);
        }
        // A part of a merged node is not a node of its own.
        let whole = self.nodes.get(&old.base).is_some_and(|node| node.level == level);
        parts.nodes.extend(whole.then_some((old.base, old.width)));
        for (base, width) in parts.nodes {
            self.free(memory, base, width);
        }
        let used = u32::try_from(parts.entries.len()).expect("fewer than 2^32 entries in a node");
        let mut node = Node { level, width, used, is_fallback: false, parts: Box::default() };
        if self.density.is_some() {
            let entries = self.geometry.node_entries(1);
            node.parts = vec![0; entries as usize].into();
            for &(index, _) in &parts.entries {
                node.parts[(index / entries) as usize] += 1;
            }
            self.merged.insert((level, prefix), base);
        }
        self.nodes.insert(base, node);
        Ok(NodeRef { base, width, ..old })
    }

    /// Collects the entries of `node`, the first of which has number `first` among those of its level
    /// in the merged node, and what is below it down to the bottom of `parts`.
    fn gather(
        &self,
        memory: &impl EntryMemory<Out>,
        node: NodeRef<Out>,
        first: u64,
        parts: &mut Parts<Out>,
    ) -> Result<(), Obstacle> {
        let geometry = self.geometry;
        let below = node.bottom().checked_sub(parts.bottom).ok_or(Obstacle::Overlap)?;
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
                Decoded::Table { base, level, width } => {
                    let child = self.child(base, level, width).ok_or(Obstacle::Corrupt)?;
                    if self.density.is_some() && width > 1 {
                        let prefix = parts.prefix * geometry.node_entries(1) + i;
                        let overlap = self.overlap(memory, child, prefix);
                        parts.entries.extend((index..).zip(overlap));
                        continue;
                    }
                    parts.nodes.push((child.base, child.width));
                    let first = (first + i) * geometry.node_entries(width);
                    self.gather(memory, child, first, parts)?;
                }
                Decoded::Mapped { frame, level } => {
                    let leaf = self.leaf(frame, level, entry.attributes());
                    let replicas = (0..scale).map(|j| (index + j, leaf.entry(parts.bottom, j)));
                    parts.entries.extend(replicas);
                }
                Decoded::Absent => {}
                Decoded::Reserved => return Err(Obstacle::Corrupt),
            }
        }
        Ok(())
    }

    /// Takes `old`, which lies on the path of `input`, apart into a node of `width` and child nodes
    /// for the rest of its levels.
    fn take_apart<M: TableMemory<Out>>(
        &mut self,
        memory: &mut M,
        old: NodeRef<Out>,
        width: Width,
        input: In,
    ) -> Result<NodeRef<Out>, TableError> {
        let geometry = self.geometry;
        let child_width = old.width - width;
        let child_level = old.level - width;
        let per_child = geometry.node_entries(child_width);
        let prefix = self.prefix(old.level, input);
        let mut made: Vec<(Out, Width)> = Vec::new();
        let mut children: Vec<(Out, Node)> = Vec::new();
        let mut obtain = |memory: &mut M, top: Level, width: Width, input: u64| {
            let shift = geometry.node_shift(width);
            if let Some(base) = memory.allocate(shift) {
                memory.is_node(base, shift, top + 1 - width, input);
                made.push((base, width));
                return Ok(base);
            }
            for &(base, width) in &made {
                memory.free(base, geometry.node_shift(width));
            }
            Err(TableError::OutOfMemory)
        };
        // Within a merged node above there is room for its entries already.
        let home =
            self.merged_at(old.level + 1, input).map(|above| (above, self.part(above, input)));
        let new = if let Some((_, part)) = home {
            part
        } else {
            let base = obtain(memory, old.level, width, input.raw())?;
            NodeRef { base, width, ..old }
        };
        let mut entries = Vec::new();
        // Written when all nodes have been had: without memory nothing may change.
        let mut usage = Vec::new();
        for slot in 0..geometry.node_entries(width) {
            let group = old.base.offset(slot * per_child * 8);
            let read = |memory: &M, i: u64| Entry(memory.read(group.offset(i * 8)));
            let present = (0..per_child).filter(|&i| read(memory, i).is_present()).count();
            if present == 0 {
                entries.push(Entry::ABSENT);
                continue;
            }
            if let Some(&below) = self.merged.get(&(child_level, prefix * per_child + slot)) {
                // The large pages' own entries go; those in the node below stay.
                usage.extend(self.usage_below(memory, group, old.bottom(), below));
                entries.push(Entry::table(below, 2));
                continue;
            }
            let first = read(memory, 0);
            entries.push(match first.decode::<Out>(geometry, old.bottom()) {
                // 512 replicas of one large page become one leaf again.
                Decoded::Mapped { frame, level } if level == child_level + 1 => {
                    let above = home.map(|_| Entry(memory.read(new.base.offset(slot * 8))));
                    let replicas = (0..per_child).map(|i| read(memory, i)).chain(above);
                    self.leaf(frame, level, united(replicas)).entry(level, 0)
                }
                _ => {
                    let child_shift = geometry.shift(child_level + 1);
                    let own = (geometry.node_entries(width) - 1) << child_shift;
                    let path = input.raw() & !own | slot << child_shift;
                    let child = obtain(memory, child_level, child_width, path)?;
                    let node = self.copied(memory, group, child, child_level, child_width);
                    children.push((child, node));
                    Entry::table(child, child_width)
                }
            });
        }
        for (replica, entry) in usage {
            memory.write(replica, entry.0);
        }
        self.free(memory, old.base, old.width);
        self.nodes.extend(children);
        self.merged.remove(&(old.level, prefix));
        if let Some((above, _)) = home {
            self.write(memory, above, new.base, entries);
            return Ok(new);
        }
        let (level, parts) = (old.level, Box::default());
        let mut node = Node { level, width, used: 0, is_fallback: false, parts };
        for (slot, entry) in (0..).zip(entries).filter(|(_, entry)| entry.is_present()) {
            memory.write(new.base.offset(slot * 8), entry.0);
            node.used += 1;
        }
        self.nodes.insert(new.base, node);
        Ok(new)
    }

    /// The accessed and dirty bits of the large pages that have entries of their own at `group`, which are
    /// of level `bottom`: for each page, where its first replica is in the merged node at `below`, and
    /// this replica with these bits in addition.
    fn usage_below(
        &self,
        memory: &impl EntryMemory<Out>,
        group: Out,
        bottom: Level,
        below: Out,
    ) -> Vec<(Out, Entry)> {
        let entries = self.geometry.node_entries(1);
        let usage = |i| {
            let entry = Entry(memory.read(group.offset(i * 8)));
            let Decoded::Mapped { .. } = entry.decode::<Out>(self.geometry, bottom) else {
                return None;
            };
            let replica = below.offset(i * entries * 8);
            Some((replica, Entry(memory.read(replica)).with_usage_of(entry)))
        };
        (0..entries).filter_map(usage).collect()
    }

    /// Copies the entries in use at `group` to `base`, a new node of `width` with topmost level `level`.
    fn copied(
        &self,
        memory: &mut impl TableMemory<Out>,
        group: Out,
        base: Out,
        level: Level,
        width: Width,
    ) -> Node {
        let mut node = Node { level, width, used: 0, is_fallback: false, parts: Box::default() };
        for i in 0..self.geometry.node_entries(width) {
            let entry = Entry(memory.read(group.offset(i * 8)));
            if entry.is_present() {
                memory.write(base.offset(i * 8), entry.0);
                node.used += 1;
            }
        }
        node
    }
}

/// A node and how it is reached.
#[derive(Clone, Copy)]
pub(super) struct Found<Out> {
    pub(super) node: NodeRef<Out>,
    /// One that leads there; none leads to the root.
    parent: Option<NodeRef<Out>>,
}

/// What a wider node is made of.
struct Parts<Out> {
    /// Lowest level that the wider node spans.
    bottom: Level,
    /// Number of its table among those of its topmost level.
    prefix: u64,
    /// The nodes below that it takes the place of.
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
