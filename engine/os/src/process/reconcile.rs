//! Bringing what is mapped into line with the areas.

use flatwalk_paging::{Address, Mapping, Physical};
use flatwalk_trace::Protection;

use super::Process;
use super::outcome::Flushes;
use super::rights::rights;
use crate::error::OsError;
use crate::vma::{Attributes, Pages, Vma};

/// What happens to the pages in a range that stay in an area.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// They are freed: the areas are new, or the program discarded their contents.
    Discard,
    /// They get the rights of their areas.
    Reprotect,
}

impl<In: Address, Out: Physical> Process<In, Out> {
    /// Brings the pages in `range` into line with the areas, which have changed there already: pages
    /// outside every area are unmapped, the others are subject to `effect`.
    pub(super) fn reconcile(
        &mut self,
        range: &Pages,
        effect: Effect,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        for chunk in self.chunks(range.clone()) {
            let mut mapped = Vec::new();
            self.visit(chunk, &mut mapped)?;
            for mapping in mapped {
                if mapping.level == 1 {
                    self.reconcile_base(&mapping, range, effect, flushes)?;
                } else {
                    self.reconcile_large(&mapping, range, effect, flushes)?;
                }
            }
        }
        Ok(())
    }

    fn reconcile_base(
        &mut self,
        mapping: &Mapping<In, Out>,
        range: &Pages,
        effect: Effect,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let page = self.pages_of(mapping).start;
        if effect == Effect::Discard && range.contains(&page) {
            return self.release(mapping.input, flushes);
        }
        match self.areas.find(page) {
            Some(vma) => self.reprotect(mapping, vma.attributes.protection, flushes),
            None => self.release(mapping.input, flushes),
        }
    }

    fn reconcile_large(
        &mut self,
        mapping: &Mapping<In, Out>,
        range: &Pages,
        effect: Effect,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let pages = self.pages_of(mapping);
        let discarded = match effect {
            Effect::Discard => pages.start.max(range.start)..pages.end.min(range.end),
            Effect::Reprotect => pages.start..pages.start,
        };
        if discarded == pages || self.areas.intersecting(pages.clone()).next().is_none() {
            return self.release(mapping.input, flushes);
        }
        if let Some(protection) =
            self.policy.keeps_large(&self.areas, &pages, !discarded.is_empty())
        {
            // What is discarded but still in an area will be used again, and zeroing it then is the cost.
            for page in discarded {
                let within = (page - pages.start) << self.geometry.page_shift();
                self.memory.physical.zero(mapping.frame.offset(within), self.geometry.page_shift());
                let used = self.areas.find(page).is_some();
                self.memory.work.data_bytes += if used { self.geometry.span(1) } else { 0 };
            }
            return self.reprotect(mapping, protection, flushes);
        }
        self.split(mapping.input, flushes)?;
        let mut parts = Vec::new();
        self.visit(pages, &mut parts)?;
        for part in parts {
            self.reconcile_base(&part, range, effect, flushes)?;
        }
        Ok(())
    }

    /// Gives a page the rights that `protection` allows.
    fn reprotect(
        &mut self,
        mapping: &Mapping<In, Out>,
        protection: Protection,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let rights = rights(protection);
        if rights != mapping.attributes.rights {
            let Self { table, memory, .. } = self;
            let (_, flush) =
                table.protect(memory, mapping.input, rights).map_err(OsError::Table)?;
            flushes.add(flush);
        }
        Ok(())
    }

    /// Splits the large page that reaches across the start of `page`, if there is one.
    pub(super) fn split_across(
        &mut self,
        page: u64,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let region = self.region(page);
        if page == region.start {
            return Ok(());
        }
        let input = self.address(page);
        match self.table.translate(&self.memory, input) {
            Ok(leaf) if leaf.level > 1 => {}
            _ => return Ok(()),
        }
        self.split(input, flushes)?;
        // The pieces that lie in no area have to go.
        self.reconcile(&region, Effect::Reprotect, flushes)
    }

    /// The area of `page`. Where there is none, the holes in its region become implicit areas.
    pub(super) fn area_of(&mut self, page: u64, flushes: &mut Flushes<In>) -> Result<Vma, OsError> {
        if let Some(vma) = self.areas.find(page) {
            return Ok(vma);
        }
        let region = self.region(page);
        for hole in self.areas.holes(region.clone()) {
            self.areas.map(hole, Attributes::IMPLICIT);
        }
        self.reconcile(&region, Effect::Reprotect, flushes)?;
        Ok(self
            .areas
            .find(page)
            .unwrap_or(Vma { pages: page..page + 1, attributes: Attributes::IMPLICIT }))
    }
}
