//! Mapping pages: one, or a run of them.

use std::ops::Range;

use flatwalk_paging::{AccessKind, Address, Attributes as EntryAttributes, Level, Physical};
use flatwalk_trace::Backing;

use super::Process;
use super::outcome::Flushes;
use super::rights::{new_page, permits, rights};
use crate::error::OsError;
use crate::metered_memory::MeteredMemory;
use crate::policy::PolicyShape;
use crate::vma::{Attributes, Pages, Vma};

/// What one fault of a file's page maps, as Linux has it by default (`fault_around_bytes`).
const AROUND_BYTES: u64 = 64 << 10;

/// A base page of `vma`. Files are in memory, in Linux's page cache, so that their own pages are not
/// filled; a store to a private mapping copies one.
fn allocate<Out: Physical>(
    memory: &mut MeteredMemory<Out>,
    page_shift: u8,
    vma: &Vma,
    access: AccessKind,
) -> Option<Out> {
    let Attributes { backing, shared, .. } = vma.attributes;
    if backing == Backing::File && (shared || access != AccessKind::Store) {
        memory.place_of_data(page_shift)
    } else {
        memory.allocate_data(page_shift)
    }
}

impl<In: Address, Out: Physical> Process<In, Out> {
    /// Maps the missing pages around `page` of a file, which a fault has just mapped: Linux's `do_fault_around()`.
    /// Private mappings that can be written are left out, where Linux maps what a store copies then.
    /// `mapped` gets the bytes that the pages take in memory.
    pub(super) fn map_around(
        &mut self,
        page: u64,
        vma: &Vma,
        access: AccessKind,
        (mapped, flushes): (&mut Vec<Range<u64>>, &mut Flushes<In>),
    ) -> Result<(), OsError> {
        let Attributes { protection, backing, shared, .. } = vma.attributes;
        let is_copied = protection.write && !shared;
        if backing != Backing::File || access == AccessKind::Store || is_copied || !protection.read
        {
            return Ok(());
        }
        let shift = self.geometry.page_shift();
        let pages = (AROUND_BYTES >> shift).max(1);
        let start = (page & !(pages - 1)).max(vma.pages.start);
        let end = (start + pages).min(vma.pages.end).min(self.region(page).end);
        for page in start..end {
            let input = self.address(page);
            // Linux leaves out what there is no memory for, too.
            if !self.segment.contains(&page)
                && self.table.translate(&self.memory.physical, input).is_err()
                && self.memory.free_blocks(shift) > 0
            {
                let (level, frame) = self.map_page(page, vma, AccessKind::Load, flushes)?;
                mapped.push(frame.raw()..frame.raw() + self.geometry.span(level));
                self.statistics.around_pages += 1;
            }
        }
        Ok(())
    }

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
            None => match allocate(&mut self.memory, self.geometry.page_shift(), vma, access) {
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
        let frame = |memory: &mut MeteredMemory<Out>| allocate(memory, shift, vma, access);
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
