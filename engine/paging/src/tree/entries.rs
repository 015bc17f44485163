//! Where a page's entries stand, and how they are written.

use super::Tree;
use super::node::LeafEntries;
use crate::addr::{Address, Physical};
use crate::entry::{Attributes, Decoded, Entry, Rights};
use crate::geometry::{Level, Width};
use crate::memory::{EntryMemory, TableMemory};
use crate::walk::NodeRef;

impl<In: Address, Out: Physical> Tree<In, Out> {
    /// Address of the entry for `input` in `node`.
    pub(super) fn slot(&self, node: NodeRef<Out>, input: In) -> Out {
        node.base.offset(self.geometry.index(input.raw(), node.level, node.width) * 8)
    }

    /// The entry for `input` in `node`.
    pub(super) fn decode(
        &self,
        memory: &impl EntryMemory<Out>,
        node: NodeRef<Out>,
        input: In,
    ) -> Decoded<Out> {
        Entry(memory.read(self.slot(node, input))).decode(self.geometry, node.bottom())
    }

    /// The node that an entry points to; `None` if it is none of this table's of that shape, so
    /// that whatever else wrote to the memory cannot lead a change astray.
    pub(super) fn child(&self, base: Out, level: Level, width: Width) -> Option<NodeRef<Out>> {
        let node = self.nodes.get(&base)?;
        (node.level == level && node.width == width).then_some(NodeRef {
            base,
            level,
            width,
            rights: Rights::ALL,
        })
    }

    /// Number of the table of `level`, which has no more levels than the root, on the path of `input`
    /// among all there can be.
    pub(super) fn prefix(&self, level: Level, input: In) -> u64 {
        let shift = u32::from(self.geometry.shift(level + 1));
        self.geometry.unsigned(input.raw()).checked_shr(shift).unwrap_or(0)
    }

    /// The node that the table of `level` on the path of `input` was merged into with its children.
    pub(super) fn merged_at(&self, level: Level, input: In) -> Option<NodeRef<Out>> {
        if self.merged.is_empty() || level > self.geometry.levels() {
            return None;
        }
        let &base = self.merged.get(&(level, self.prefix(level, input)))?;
        Some(NodeRef { base, level, width: 2, rights: Rights::ALL })
    }

    /// The nodes that hold the entry of `level` for `input`, root first, where one of them is known:
    /// more than one only where merged nodes overlap.
    pub(super) fn places(
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
    pub(super) fn slots(&self, node: NodeRef<Out>, input: In, level: Level) -> (Out, u64) {
        let count = 1 << (self.geometry.index_bits() * (level - node.bottom()));
        let index = self.geometry.index(input.raw(), node.level, node.width) & !(count - 1);
        (node.base.offset(index * 8), count)
    }

    /// Writes adjacent entries from `first` on, and keeps the node's count of entries in use.
    pub(super) fn write(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        node: NodeRef<Out>,
        first: Out,
        entries: impl IntoIterator<Item = Entry>,
    ) {
        let (mut before, mut after) = (0, 0);
        for (i, entry) in (0..).zip(entries) {
            let slot = first.offset(i * 8);
            before += u32::from(Entry(memory.read(slot)).is_present());
            after += u32::from(entry.is_present());
            memory.write(slot, entry.0);
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
    }

    /// Takes the entry of `level` for `input` away wherever it stands.
    pub(super) fn clear(
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
    /// lead to the overlapping node if there is one.
    pub(super) fn vacate(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        node: NodeRef<Out>,
        input: In,
        level: Level,
    ) {
        let (first, count) = self.slots(node, input, level);
        let below = self.merged_at(level, input).filter(|_| node.bottom() == level);
        let entry = below
            .map_or(Entry::ABSENT, |below| Entry::table(below.base, below.width).overlapping());
        self.write(memory, node, first, (0..count).map(|_| entry));
    }

    /// Writes a page's leaf entry, or its replicas where entries are for smaller pages, wherever it
    /// belongs; `node` is one of the places.
    pub(super) fn write_leaves(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        node: NodeRef<Out>,
        input: In,
        frame: Out,
        level: Level,
        attributes: Attributes,
    ) {
        for place in self.places(node, input, level) {
            let (first, count) = self.slots(place, input, level);
            let (leaf, bottom) = (self.leaf(frame, level, attributes), place.bottom());
            let replicas = (0..count).map(|i| leaf.entry(bottom, i));
            self.write(memory, place, first, replicas);
        }
    }

    pub(super) fn leaf(
        &self,
        frame: Out,
        level: Level,
        attributes: Attributes,
    ) -> LeafEntries<Out> {
        let overlapping = self.density.is_some();
        LeafEntries { geometry: self.geometry, frame, level, attributes, overlapping }
    }

    pub(super) fn free(&mut self, memory: &mut impl TableMemory<Out>, base: Out, width: Width) {
        self.nodes.remove(&base);
        memory.free(base, self.geometry.node_shift(width));
    }
}
