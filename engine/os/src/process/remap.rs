//! Moving pages (mremap).

use flatwalk_paging::{Address, Attributes as EntryAttributes, Mapping, Physical};

use super::Process;
use super::outcome::{Flushes, Outcome};
use super::reconcile::Effect;
use super::rights::rights;
use crate::error::OsError;
use crate::vma::Pages;

impl<In: Address, Out: Physical> Process<In, Out> {
    /// Moves the pages in `from` to `to` (mremap).
    pub(super) fn remap(&mut self, from: &Pages, to: &Pages) -> Result<Outcome<In>, OsError> {
        let (mut departed, mut arrived) = (Flushes::default(), Flushes::default());
        if from.start == to.start {
            self.areas.remap(from.clone(), to.clone());
            let changed = from.end.min(to.end)..from.end.max(to.end);
            self.reconcile(&changed, Effect::Discard, &mut departed)?;
            self.free_nodes(&changed, &mut departed)?;
            self.follow_scenario(&changed, false, &mut departed)?;
            self.widen_nodes(&mut departed)?;
            return Ok(self.outcome(departed));
        }
        // Large pages that reach beyond either end cannot move, or are in the way.
        for end in [from.start, from.end, to.start, to.end] {
            self.split_across(end, &mut departed)?;
        }
        let mut moved = Vec::new();
        for chunk in self.chunks(from.clone()) {
            self.visit(chunk, &mut moved)?;
        }
        for mapping in &mut moved {
            *mapping = self.remove(mapping.input, &mut departed)?;
        }
        self.areas.remap(from.clone(), to.clone());
        self.free_nodes(from, &mut departed)?;
        self.reconcile(to, Effect::Discard, &mut arrived)?;
        self.free_nodes(to, &mut arrived)?;
        for mapping in moved {
            self.arrive(&mapping, from, to, &mut arrived)?;
        }
        self.follow_scenario(from, false, &mut departed)?;
        self.follow_scenario(to, true, &mut arrived)?;
        self.widen_nodes(&mut arrived)?;
        let mut outcome = self.outcome(departed);
        outcome.flushes.extend(arrived.into_iter());
        Ok(outcome)
    }

    /// Maps a page that was removed from `from` at its place in `to`, in pieces where a large page does
    /// not fit. What is beyond the end is freed.
    fn arrive(
        &mut self,
        mapping: &Mapping<In, Out>,
        from: &Pages,
        to: &Pages,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let pages = self.pages_of(mapping);
        let start = to.start + (pages.start - from.start);
        let end = start + (pages.end - pages.start);
        let aligned = start.is_multiple_of(pages.end - pages.start);
        if aligned && end <= to.end {
            return self.enter(start, mapping.frame, mapping.level, mapping.attributes, flushes);
        }
        self.statistics.splits += u64::from(mapping.level > 1);
        let base = self.geometry.span(1);
        for (i, page) in (start..end).enumerate() {
            let frame = mapping.frame.offset(i as u64 * base);
            // A large page may have reached beyond its areas; its pieces must not.
            if let Some(vma) = self.areas.find(page).filter(|_| page < to.end) {
                let rights = rights(vma.attributes.protection);
                let attributes = EntryAttributes { rights, ..mapping.attributes };
                self.enter(page, frame, 1, attributes, flushes)?;
            } else {
                self.memory.free_data(frame, self.geometry.page_shift());
                self.statistics.pages_freed += 1;
            }
        }
        Ok(())
    }
}
