//! The shape of the page table after its entries changed: nodes are merged or split by their density,
//! or split because of the NF rule, and widened where it no longer has anything against it.

use flatwalk_paging::{
    Address, DensityChanges, Entry, EntryMemory, Level, Levels, Made, Physical, Step, TableError,
    Width,
};

use super::Process;
use super::outcome::Flushes;
use crate::error::OsError;
use crate::vma::Pages;

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
            let page = input.raw() >> self.geometry.page_shift();
            let region = page >> self.guarded_shift(level);
            if let Some(count) = self.large_pages.get_mut(&region) {
                *count -= 1;
                if *count == 0 {
                    self.large_pages.remove(&region);
                }
                self.may_be_narrow(page);
            }
        }
    }

    /// There is a large page less than was expected of the flattened node above `page`.
    pub(super) fn may_be_narrow(&mut self, page: u64) {
        let Some((level, _)) = self.policy.guarded_nodes else { return };
        let region = page >> self.guarded_shift(level);
        if self.narrow.last() != Some(&region) {
            self.narrow.push(region);
        }
    }

    /// Widens the nodes that were to have too many large pages below them to be flattened, where
    /// too few are there or can still come.
    pub(super) fn widen_nodes(&mut self, flushes: &mut Flushes<In>) -> Result<(), OsError> {
        let Some((level, width)) = self.policy.guarded_nodes else { return Ok(()) };
        for region in std::mem::take(&mut self.narrow) {
            let shift = self.guarded_shift(level);
            let pages = region << shift..(region + 1) << shift;
            let input = self.address(pages.start);
            let before = self.memory.work_so_far();
            let wide = self.node_width(input, level) != Some(width - 1)
                || !self.has_few_large(region, &pages);
            self.memory.forget_work_since(before);
            if wide {
                continue;
            }
            let Self { table, memory, .. } = self;
            let Some(tree) = table.tree_mut() else { return Ok(()) };
            match tree.reshape(memory, input, level, width) {
                Ok(Some(flush)) => {
                    self.statistics.promotions += 1;
                    flushes.add(flush);
                }
                // It stays as it is where there is no block for the wide one.
                Ok(None) | Err(TableError::OutOfMemory) => {}
                Err(error) => return Err(self.table_error(error)),
            }
        }
        Ok(())
    }

    /// Whether the NF rule has nothing against a flattened node of `region`, which has `pages`.
    fn has_few_large(&self, region: u64, pages: &Pages) -> bool {
        let there = self.large_pages.get(&region).copied().unwrap_or(0);
        let blocks = self.memory.free_blocks(self.geometry.shift(2));
        let is_empty =
            |part: &Pages| self.table.is_empty(&self.memory, self.address(part.start), 2);
        // One block is the node's.
        blocks > 0
            && !self.policy.will_be_mostly_large(&self.areas, pages, (there, blocks - 1), is_empty)
    }

    /// Blocks for large pages, that of the page which is being mapped included. Only the NF rule asks.
    pub(super) fn large_blocks(&self) -> u64 {
        let is_guarded = self.policy.guarded_nodes.is_some();
        if is_guarded { self.memory.free_blocks(self.geometry.shift(2)) + 1 } else { 0 }
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
