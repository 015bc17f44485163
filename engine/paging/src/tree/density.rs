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
