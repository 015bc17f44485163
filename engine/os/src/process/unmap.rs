//! Unmapping pages, freeing the nodes of which nothing is left, and splitting large pages.

use flatwalk_paging::{Address, Mapping, Physical};

use super::Process;
use super::outcome::Flushes;
use crate::error::OsError;
use crate::policy::PolicyShape;
use crate::vma::Pages;

impl<In: Address, Out: Physical> Process<In, Out> {
    /// Unmaps a page and frees its frame.
    pub(super) fn release(&mut self, input: In, flushes: &mut Flushes<In>) -> Result<(), OsError> {
        let mapping = self.remove(input, flushes)?;
        self.memory.free_data(mapping.frame, self.geometry.shift(mapping.level));
        self.statistics.pages_freed += 1;
        Ok(())
    }

    /// Unmaps a page and keeps its frame. Its page-table nodes stay, as in Linux, which frees them with areas
    /// (`free_pgtables()`), and not when a program discards what it has there.
    pub(super) fn remove(
        &mut self,
        input: In,
        flushes: &mut Flushes<In>,
    ) -> Result<Mapping<In, Out>, OsError> {
        let Self { table, memory, .. } = self;
        let (mapping, flush) = table.unmap_page(memory, input).map_err(OsError::Table)?;
        flushes.add(flush);
        self.data_bytes -= self.geometry.span(mapping.level);
        if mapping.level > 1 {
            self.uncount_large(mapping.input);
        }
        Ok(mapping)
    }

    /// Frees the nodes that hold nothing where areas were taken away or replaced in `gone`, but for those in
    /// whose reach another area lies.
    pub(super) fn free_nodes(
        &mut self,
        gone: &Pages,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        if gone.is_empty() {
            return Ok(());
        }
        let shift = self.geometry.page_shift();
        let last = self.address(gone.end - 1).offset(self.geometry.span(1) - 1);
        let first = self.address(gone.start);
        let Self { table, memory, areas, .. } = self;
        let mut keeps = |first: In, last: In| {
            let (start, end) = (first.raw() >> shift, (last.raw() >> shift) + 1);
            let beside = [start..gone.start.max(start), gone.end.min(end)..end];
            beside.into_iter().any(|part| areas.intersecting(part).next().is_some())
        };
        let freed = table.free_empty(memory, first, last, &mut keeps).map_err(OsError::Table)?;
        let changes =
            memory.unmetered(|memory| table.split_sparse_in(memory, first, last, &mut keeps));
        if let Some(freed) = freed {
            flushes.add(freed);
        }
        self.count_density_changes(changes, flushes);
        Ok(())
    }

    /// Splits the large page at `input`.
    pub(super) fn split(&mut self, input: In, flushes: &mut Flushes<In>) -> Result<(), OsError> {
        let blocks = self.large_blocks();
        let Self { table, memory, policy, areas, geometry, .. } = self;
        if let Some(ordered) = &mut memory.ordered {
            let page = input.raw() >> geometry.page_shift();
            ordered.area = areas.find(page).map(|vma| vma.pages);
        }
        match table.split(memory, &PolicyShape { policy, areas, blocks }, input) {
            Ok(made) => {
                self.statistics.splits += 1;
                self.uncount_large(input);
                self.apply_outcome(made, input, flushes);
                Ok(())
            }
            Err(error) => Err(self.table_error(error)),
        }
    }
}
