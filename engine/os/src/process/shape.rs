//! The shape of the page table after its entries changed: nodes are merged or split by their density,
//! or split because of the NF rule.

use flatwalk_paging::{
    Address, DensityChanges, Entry, EntryMemory, Level, Levels, Made, Physical, Step, Width,
};

use super::Process;
use super::outcome::Flushes;
use crate::error::OsError;

impl<In: Address, Out: Physical> Process<In, Out> {
    /// Counts what a change of the table did, adds its flush, and merges nodes that it made dense.
    pub(super) fn apply_outcome(&mut self, made: Made<In>, input: In, flushes: &mut Flushes<In>) {
        self.statistics.node_fallbacks += u64::from(made.fallbacks);
        made.flush.into_iter().for_each(|flush| flushes.add(flush));
        self.merge_dense(input, made.filled, flushes);
    }

    /// Merges the nodes on the path of `input` that became dense, after entries of the levels `filled`
    /// came to lead to new nodes.
    fn merge_dense(&mut self, input: In, filled: Levels, flushes: &mut Flushes<In>) {
        if !filled.is_empty() {
            let Self { table, memory, .. } = self;
            let changes = memory.unmetered(|memory| table.merge_dense(memory, input, filled));
            self.count_density_changes(changes, flushes);
        }
    }

    /// Counts merges and splits by density, and adds their flush.
    pub(super) fn count_density_changes(
        &mut self,
        changes: DensityChanges<In>,
        flushes: &mut Flushes<In>,
    ) {
        self.statistics.merges += u64::from(changes.merged);
        self.statistics.unmerges += u64::from(changes.unmerged);
        self.statistics.merge_refusals += u64::from(changes.refused);
        self.memory.work.density_changes += u64::from(changes.merged + changes.unmerged);
        changes.flush.into_iter().for_each(|flush| flushes.add(flush));
    }

    /// Counts a large page, and splits the flattened node above it if that is one too many.
    pub(super) fn count_large(
        &mut self,
        page: u64,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let Some((level, width)) = self.policy.guarded_nodes else { return Ok(()) };
        let count = self.large_pages.entry(page >> self.guarded_shift(level)).or_default();
        *count += 1;
        if *count != self.policy.layout.no_flatten_threshold() {
            return Ok(());
        }
        let input = self.address(page);
        if self.node_width(input, level) != Some(width) {
            return Ok(());
        }
        let Self { table, memory, .. } = self;
        let Some(tree) = table.tree_mut() else { return Ok(()) };
        match tree.reshape(memory, input, level, width - 1) {
            Ok(Some(flush)) => {
                self.statistics.demotions += 1;
                flushes.add(flush);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => Err(self.table_error(error)),
        }
    }

    /// Takes back the count of the large page that was at `input`.
    pub(super) fn uncount_large(&mut self, input: In) {
        if let Some((level, _)) = self.policy.guarded_nodes {
            let region = input.raw() >> self.geometry.page_shift() >> self.guarded_shift(level);
            if let Some(count) = self.large_pages.get_mut(&region) {
                *count -= 1;
                if *count == 0 {
                    self.large_pages.remove(&region);
                }
            }
        }
    }

    /// Width of the node with topmost level `level` on the path of `input`.
    fn node_width(&self, input: In, level: Level) -> Option<Width> {
        let mut walk = self.table.tree()?.walk(input);
        while walk.at().level > level {
            match walk.feed(Entry(self.memory.read(walk.entry_address()))) {
                Step::Table(_) => {}
                Step::Leaf(_) | Step::Fault(_) => return None,
            }
        }
        (walk.at().level == level).then_some(walk.at().width)
    }

    /// log2 of the pages under a node with topmost level `level`.
    fn guarded_shift(&self, level: Level) -> u8 {
        self.geometry.shift(level + 1) - self.geometry.page_shift()
    }
}
