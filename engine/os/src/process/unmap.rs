//! Unmapping pages, and splitting large ones.

use flatwalk_paging::{Address, Mapping, Physical};

use super::Process;
use super::outcome::Flushes;
use crate::error::OsError;
use crate::policy::PolicyShape;

impl<In: Address, Out: Physical> Process<In, Out> {
    /// Unmaps a page and frees its frame.
    pub(super) fn release(&mut self, input: In, flushes: &mut Flushes<In>) -> Result<(), OsError> {
        let mapping = self.remove(input, flushes)?;
        self.memory.free_data(mapping.frame, self.geometry.shift(mapping.level));
        self.statistics.pages_freed += 1;
        Ok(())
    }

    /// Unmaps a page and keeps its frame.
    pub(super) fn remove(
        &mut self,
        input: In,
        flushes: &mut Flushes<In>,
    ) -> Result<Mapping<In, Out>, OsError> {
        let Self { table, memory, .. } = self;
        let (mapping, flush) = table.unmap(memory, input).map_err(OsError::Table)?;
        let changes = memory.unmetered(|memory| table.split_sparse(memory, input));
        flushes.add(flush);
        self.count_density_changes(changes, flushes);
        self.data_bytes -= self.geometry.span(mapping.level);
        if mapping.level > 1 {
            self.uncount_large(mapping.input);
        }
        Ok(mapping)
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
