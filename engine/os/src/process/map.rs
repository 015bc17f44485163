//! Mapping pages: one, or a run of them.

use flatwalk_paging::{AccessKind, Address, Attributes as EntryAttributes, Level, Physical};

use super::Process;
use super::outcome::Flushes;
use super::rights::{new_page, permits, rights};
use crate::error::OsError;
use crate::metered_memory::MeteredMemory;
use crate::policy::PolicyShape;
use crate::vma::{Pages, Vma};

impl<In: Address, Out: Physical> Process<In, Out> {
    /// Maps the page that is missing at `page`, as large as the policy and memory allow. Returns its
    /// level and its frame.
    pub(super) fn map_page(
        &mut self,
        page: u64,
        vma: &Vma,
        access: AccessKind,
        flushes: &mut Flushes<In>,
    ) -> Result<(Level, Out), OsError> {
        let region = self.region(page);
        let large = match self.policy.large(&self.areas, &region) {
            Some(protection) if self.is_empty(&region)? => Some(protection),
            _ => None,
        };
        let mut place = None;
        if let Some(protection) = large {
            if let Some(frame) = self.memory.allocate_data(self.geometry.shift(2)) {
                place = Some((region.start, frame, 2, protection));
            } else {
                self.statistics.large_page_fallbacks += 1;
                self.may_be_narrow(page);
            }
        }
        let (start, frame, level, protection) = match place {
            Some(place) => place,
            None => match self.memory.allocate_data(self.geometry.page_shift()) {
                Some(frame) => (page, frame, 1, vma.attributes.protection),
                None => return Err(self.out_of_memory()),
            },
        };
        self.statistics.implicit_mappings += u64::from(vma.attributes.implicit);
        let mismatched = !permits(rights(protection), access);
        self.statistics.protection_mismatches += u64::from(mismatched);
        let attributes = new_page(vma, protection, access);
        self.enter(start, frame, level, attributes, flushes)?;
        Ok((level, frame))
    }

    /// Maps the first of `pages`, which are missing and will be base pages, as far as their entries
    /// are adjacent. Returns how many.
    pub(super) fn map_run(
        &mut self,
        pages: Pages,
        vma: &Vma,
        access: AccessKind,
    ) -> Result<u64, OsError> {
        // Accesses to entries by virtual addresses are counted one by one.
        if pages.is_empty() || self.memory.windows.is_some() {
            return Ok(0);
        }
        let attributes = new_page(vma, vma.attributes.protection, access);
        let mismatched = !permits(rights(vma.attributes.protection), access);
        let (input, shift) = (self.address(pages.start), self.geometry.page_shift());
        let Self { table, memory, .. } = self;
        let frame = |memory: &mut MeteredMemory<Out>| memory.allocate_data(shift);
        let mapped = table
            .map_run(memory, input, pages.end - pages.start, attributes, frame)
            .map_err(|error| self.table_error(error))?;
        self.data_bytes += mapped << shift;
        self.statistics.implicit_mappings += if vma.attributes.implicit { mapped } else { 0 };
        self.statistics.protection_mismatches += if mismatched { mapped } else { 0 };
        Ok(mapped)
    }

    /// Maps `page` to `frame`. Where there is no memory for nodes, the frame is freed.
    pub(super) fn enter(
        &mut self,
        page: u64,
        frame: Out,
        level: Level,
        attributes: EntryAttributes,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let input = self.address(page);
        let blocks = self.large_blocks();
        let Self { table, memory, policy, areas, .. } = self;
        if let Some(ordered) = &mut memory.ordered {
            let pages = 1 << (self.geometry.shift(level) - self.geometry.page_shift());
            ordered.area = areas.intersecting(page..page + pages).next().map(|vma| vma.pages);
        }
        let shape = PolicyShape { policy, areas, blocks };
        match table.map(memory, &shape, input, frame, level, attributes) {
            Ok(made) => self.apply_outcome(made, input, flushes),
            Err(error) => {
                self.memory.free_data(frame, self.geometry.shift(level));
                return Err(self.table_error(error));
            }
        }
        self.data_bytes += self.geometry.span(level);
        if level > 1 {
            self.statistics.large_pages_mapped += 1;
            self.count_large(page, flushes)?;
        }
        Ok(())
    }
}
