//! Merging nodes where a table is dense, and taking them apart where it is no longer.
//!
//! Source: Ainsworth and Jones (ISMM 2021), sections 4.1 and 4.4.

use super::Tree;
use crate::addr::{Address, Physical};
use crate::entry::{Decoded, Entry};
use crate::geometry::Level;
use crate::mapping::{DensityChanges, Levels};
use crate::memory::{EntryMemory, TableMemory};
use crate::walk::NodeRef;

impl<In: Address, Out: Physical> Tree<In, Out> {
    /// Merges the nodes on the path of `input` that have become dense because entries of the levels
    /// `filled` were filled there ([`crate::Made::filled`]), the lowest first, and takes apart what has
    /// nothing left to gain after that. Does nothing in a table without [`crate::Density`].
    pub fn merge_dense(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
        filled: Levels,
    ) -> DensityChanges<In> {
        let mut done = DensityChanges::nothing();
        let Some(density) = self.density else { return done };
        for level in (2..=self.geometry.levels()).filter(|&level| filled.contains(level)) {
            let Ok(Some(found)) = self.seek(memory, input, level) else { continue };
            if found.node.width == 1 && self.gain(memory, found.node) >= density.merge_slots {
                let result = self.set_width(memory, found, 2, input);
                if done.count(result, |done| &mut done.merged) {
                    self.split_sparse_level(memory, input, level + 1, &mut done);
                }
            }
        }
        done
    }

    /// Takes apart the merged nodes on the path of `input` that have become sparse because the page
    /// there was unmapped. Does nothing in a table without [`crate::Density`].
    pub fn split_sparse(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
    ) -> DensityChanges<In> {
        let mut done = DensityChanges::nothing();
        for level in 2..=self.geometry.levels() {
            let Some(node) = self.merged_at(level, input) else { continue };
            let part = self.geometry.index(input.raw(), level, 1) as usize;
            if self.nodes.get(&node.base).is_some_and(|node| node.parts[part] == 0) {
                self.split_sparse_level(memory, input, level, &mut done);
            }
        }
        done
    }

    /// As [`Tree::split_sparse`], of all addresses from `first` to `last`, but for tables that hold nothing and
    /// that `keeps` wants: it is asked with the first and the last address that a table is for.
    pub fn split_sparse_in(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        first: In,
        last: In,
        keeps: &mut dyn FnMut(In, In) -> bool,
    ) -> DensityChanges<In> {
        let mut done = DensityChanges::nothing();
        for input in self.empty_parts(first, last, keeps) {
            done = done.and(self.split_sparse(memory, input));
        }
        done
    }

    /// Where the tables begin that merged nodes stand for, that hold nothing, and that `keeps` does not want.
    fn empty_parts(&self, first: In, last: In, keeps: &mut dyn FnMut(In, In) -> bool) -> Vec<In> {
        let geometry = self.geometry;
        let mut found = Vec::new();
        for level in (2..=geometry.levels()).filter(|_| !self.merged.is_empty()) {
            let (from, to) = (self.prefix(level, first), self.prefix(level, last));
            let mut look = |prefix: u64, base: &Out| {
                let parts = self.nodes.get(base).map_or(&[][..], |node| &node.parts);
                let empty = (0..).zip(parts).filter(|(_, used)| **used == 0);
                for (part, _) in empty {
                    let number = prefix * geometry.node_entries(1) + part;
                    let start = In::new(geometry.canonical(number << geometry.shift(level)));
                    let end = start.offset(geometry.span(level) - 1);
                    if start <= last && first <= end && !keeps(start, end) {
                        found.push(start);
                    }
                }
            };
            // Whichever is less: the tables that there can be, or the merged nodes that there are.
            if to - from < self.merged.len() as u64 {
                for prefix in from..=to {
                    if let Some(base) = self.merged.get(&(level, prefix)) {
                        look(prefix, base);
                    }
                }
            } else {
                let all = self.merged.iter();
                all.filter(|((l, prefix), _)| *l == level && (from..=to).contains(prefix))
                    .for_each(|((_, prefix), base)| look(*prefix, base));
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Takes apart the merged node with topmost level `level` on the path of `input`, if there is one
    /// and it has little to gain.
    fn split_sparse_level(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
        level: Level,
        done: &mut DensityChanges<In>,
    ) {
        let (Some(density), Some(node)) = (self.density, self.merged_at(level, input)) else {
            return;
        };
        if self.gain_of_merged(memory, node, self.prefix(level, input)) >= density.unmerge_slots {
            return;
        }
        if let Ok(Some(found)) = self.seek(memory, input, level) {
            let result = self.set_width(memory, found, 1, input);
            done.count(result, |done| &mut done.unmerged);
        }
    }

    /// How many entries of `node`, which is not merged, lead to a child node that is not: walks
    /// through these become shorter when it is merged.
    fn gain(&self, memory: &impl EntryMemory<Out>, node: NodeRef<Out>) -> u32 {
        let leads = |i| {
            let entry = Entry(memory.read(node.base.offset(i * 8)));
            let meaning = entry.decode::<Out>(self.geometry, node.level);
            matches!(meaning, Decoded::Table { width: 1, .. })
        };
        (0..self.geometry.node_entries(1)).map(|i| u32::from(leads(i))).sum()
    }

    /// The same of a merged node whose table has this prefix.
    fn gain_of_merged(
        &self,
        memory: &impl EntryMemory<Out>,
        node: NodeRef<Out>,
        prefix: u64,
    ) -> u32 {
        let entries = self.geometry.node_entries(1);
        let Some(known) = self.nodes.get(&node.base) else { return 0 };
        let mut gain = 0;
        for (i, _) in (0..).zip(&known.parts).filter(|(_, used)| **used > 0) {
            let first = Entry(memory.read(node.base.offset(i * entries * 8)));
            let meaning = first.decode::<Out>(self.geometry, node.bottom());
            let large = matches!(meaning, Decoded::Mapped { level, .. } if level == node.level);
            let merged = self.merged.contains_key(&(node.bottom(), prefix * entries + i));
            gain += u32::from(!large && !merged);
        }
        gain
    }
}
