//! Mapping pages ahead of any access.

use flatwalk_paging::{AccessKind, Address, Flush, Physical};

use super::Process;
use super::outcome::{FaultOutcome, Flushes, Outcome};
use super::rights::permits;
use crate::error::OsError;
use crate::vma::Pages;

/// How pages are populated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    /// One by one, as faults do.
    Singly,
    /// Those whose entries are adjacent, together.
    InRuns,
}

impl<In: Address, Out: Physical> Process<In, Out> {
    /// Maps each page of `length_bytes` from `address` that is not mapped, as a fault of a store would
    /// ([`Process::fault`]), but neither as a fault nor as work is it counted. Returns what is to be flushed.
    ///
    /// # Errors
    /// As [`Process::fault`].
    pub fn back(&mut self, address: In, length_bytes: u64) -> Result<Vec<Flush<In>>, OsError> {
        let pages = self.pages(address.raw(), length_bytes)?;
        let mut all = Vec::new();
        self.populate(&pages, AccessKind::Store, Touch::InRuns, &mut |flushes| {
            all.extend(flushes.into_iter());
        })?;
        let mut flushes = Flushes::default();
        self.widen_nodes(&mut flushes)?;
        all.extend(flushes.into_iter());
        let _: Outcome<In> = self.outcome(Flushes::default());
        Ok(all)
    }

    /// Lets a program access each page of `length_bytes` from `address`: those that are not mapped,
    /// or not for that, raise faults, of which `handled` learns one by one.
    ///
    /// # Errors
    /// As [`Process::fault`].
    pub fn access_pages(
        &mut self,
        address: In,
        length_bytes: u64,
        access: AccessKind,
        handled: &mut impl FnMut(FaultOutcome<In>),
    ) -> Result<(), OsError> {
        let pages = self.pages(address.raw(), length_bytes)?;
        let mut page = pages.start;
        while page < pages.end {
            if self.segment.contains(&page) {
                page = self.segment.end;
                continue;
            }
            let input = self.address(page);
            let found = self.table.translate(&self.memory.physical, input);
            let level = if let Ok(leaf) = found
                && permits(leaf.rights, access)
            {
                leaf.level
            } else {
                let outcome = self.fault(input, access)?;
                let level = outcome.level;
                handled(outcome);
                level
            };
            page = if level > 1 { self.region(page).end } else { page + 1 };
        }
        Ok(())
    }

    /// Maps each page of `pages` that is not mapped. `changed` is called with what is to be flushed.
    pub(super) fn populate(
        &mut self,
        pages: &Pages,
        access: AccessKind,
        how: Touch,
        changed: &mut impl FnMut(Flushes<In>),
    ) -> Result<(), OsError> {
        let mut page = pages.start;
        while page < pages.end {
            if self.segment.contains(&page) {
                page = self.segment.end;
                continue;
            }
            let mut flushes = Flushes::default();
            let vma = self.area_of(page, &mut flushes)?;
            changed(flushes);
            let stop = pages.end.min(vma.pages.end).min(self.region(page).end);
            let mut found = Vec::new();
            self.visit(page..stop, &mut found)?;
            let mut mapped = found.iter().map(|mapping| self.pages_of(mapping)).collect::<Vec<_>>();
            mapped.reverse();
            while page < stop {
                if let Some(there) = mapped.pop_if(|there| there.start <= page) {
                    page = there.end;
                    continue;
                }
                let mut flushes = Flushes::default();
                let (level, _) = self.map_page(page, &vma, access, &mut flushes)?;
                changed(flushes);
                self.statistics.populated_pages += 1;
                if level > 1 {
                    page = self.region(page).end;
                    continue;
                }
                page += 1;
                if how == Touch::InRuns {
                    let end = mapped.last().map_or(stop, |there| there.start);
                    let run = self.map_run(page..end, &vma, access)?;
                    self.statistics.populated_pages += run;
                    page += run;
                }
            }
        }
        Ok(())
    }
}
