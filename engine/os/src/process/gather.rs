//! Large pages where pages moved or got other rights, as the scenario of
//! [`LargePages::Below`](crate::LargePages::Below) has them.

use flatwalk_paging::{Address, Attributes as EntryAttributes, Mapping, Physical};
use flatwalk_trace::Protection;

use super::Process;
use super::outcome::{Flushes, Moved};
use super::reconcile::Effect;
use super::rights::rights;
use crate::error::OsError;
use crate::policy::LargePages;
use crate::vma::Pages;

impl<In: Address, Out: Physical> Process<In, Out> {
    /// Has each region in which `changed` has pages as the scenario says, if there is one: base
    /// pages become a large one where its areas agree by now, and a large one that came to lie
    /// above the boundary is split. This takes no work: the scenario says what is there, and not
    /// how it came about. Where `changed` is new, and memory has no block, that is counted.
    pub(super) fn follow_scenario(
        &mut self,
        changed: &Pages,
        is_new: bool,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let LargePages::Below { boundary } = self.policy.large_pages else { return Ok(()) };
        // Where nothing changed, a large page that reached across may have been split.
        let (start, last) = (changed.start, changed.end.max(changed.start + 1) - 1);
        if boundary == 0 || !self.geometry.is_canonical(self.address(start).raw()) {
            return Ok(());
        }
        let before = self.memory.work_so_far();
        let shift = self.geometry.page_shift() + self.geometry.index_bits();
        let regions = self.region(start).start..self.region(last).end;
        for chunk in self.chunks(regions) {
            let mut found = Vec::new();
            self.visit(chunk, &mut found)?;
            let is_one = |a: &Mapping<_, _>, b: &Mapping<_, _>| {
                Address::raw(a.input) >> shift == Address::raw(b.input) >> shift
            };
            for pages in found.chunk_by(is_one) {
                let region = self.region(self.pages_of(&pages[0]).start);
                let is_large = pages[0].level > 1;
                if boundary <= pages[0].input.raw() && is_large {
                    self.split(pages[0].input, flushes)?;
                    // The pieces that lie in no area have to go.
                    self.reconcile(&region, Effect::Reprotect, flushes)?;
                } else if !is_large
                    && let Some(protection) = self.policy.large(&self.areas, &region)
                {
                    self.gather(&region, protection, pages, is_new, flushes)?;
                }
            }
        }
        self.memory.forget_work_since(before);
        Ok(())
    }

    /// Makes one large page with `protection` of all that is mapped in `region`: base pages. They
    /// stay where they lie if that is a whole block; else a block takes them, if there is one.
    fn gather(
        &mut self,
        region: &Pages,
        protection: Protection,
        pages: &[Mapping<In, Out>],
        is_new: bool,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let (base, large) = (self.geometry.span(1), self.geometry.span(2));
        let first = pages[0].frame;
        let lie_together = pages.len() as u64 * base == large
            && first.raw().is_multiple_of(large)
            && (0..).zip(pages).all(|(i, page)| page.frame == first.offset(i * base));
        let frame = if lie_together {
            first
        } else if let Some(block) = self.memory.allocate_data(self.geometry.shift(2)) {
            block
        } else {
            self.statistics.large_page_fallbacks += u64::from(is_new);
            return Ok(());
        };
        let mut attributes = EntryAttributes::new(rights(protection));
        for page in pages {
            let Mapping { frame: from, attributes: of_page, .. } =
                self.remove(page.input, flushes)?;
            attributes.accessed |= of_page.accessed;
            attributes.dirty |= of_page.dirty;
            if !lie_together {
                let to = frame.offset((self.pages_of(page).start - region.start) * base);
                self.memory.physical.copy(from, to, self.geometry.page_shift());
                self.memory.free_data(from, self.geometry.page_shift());
                self.moved.push(Moved { from: from.raw(), to: to.raw()..to.raw() + base });
            }
        }
        self.enter(region.start, frame, 2, attributes, flushes)
    }
}
