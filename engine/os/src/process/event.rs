//! Carrying out the events of a trace.

use flatwalk_paging::{AccessKind, Address, Physical};
use flatwalk_trace::{Advice, Event};

use super::Process;
use super::outcome::{Flushes, Outcome};
use super::populate::Touch;
use super::reconcile::Effect;
use super::rights::HEAP;
use crate::error::OsError;
use crate::metered_memory::Work;
use crate::vma::Attributes;

impl<In: Address, Out: Physical> Process<In, Out> {
    /// Carries out an event.
    ///
    /// # Errors
    /// [`OsError::BeyondAddressSpace`] or [`OsError::OutOfMemory`].
    pub fn apply(&mut self, event: &Event) -> Result<Outcome<In>, OsError> {
        let mut flushes = Flushes::default();
        match *event {
            Event::Map { address, length, protection, backing, shared } => {
                let attributes =
                    Attributes { protection, backing, shared, huge: None, implicit: false };
                self.map_area(address, length, attributes, &mut flushes)?;
            }
            Event::Unmap { address, length } => {
                let pages = self.given_up(address, length)?;
                self.areas.unmap(pages.clone());
                self.reconcile(&pages, Effect::Discard, &mut flushes)?;
                self.free_nodes(&pages, &mut flushes)?;
            }
            Event::Remap { from, from_length, to, to_length } => {
                let (from, to) = (self.pages(from, from_length)?, self.pages(to, to_length)?);
                self.statistics.events += 1;
                return self.remap(&from, &to);
            }
            Event::Protect { address, length, protection } => {
                let pages = self.pages(address, length)?;
                self.areas.update(pages.clone(), |attributes| attributes.protection = protection);
                self.reconcile(&pages, Effect::Reprotect, &mut flushes)?;
                self.follow_scenario(&pages, false, &mut flushes)?;
            }
            Event::Advise { address, length, advice } => {
                self.advise(address, length, advice, &mut flushes)?;
            }
            Event::Break { from, to } => self.move_break(from, to, &mut flushes)?,
            Event::Populate { address, length, store } => {
                let pages = self.pages(address, length)?;
                let access = if store { AccessKind::Store } else { AccessKind::Load };
                self.populate(&pages, access, Touch::InRuns, &mut |more| flushes.extend(more))?;
            }
            Event::ThreadStart { .. }
            | Event::ThreadExit { .. }
            | Event::Wake { .. }
            | Event::Woken { .. }
            | Event::Marker { .. }
            | Event::Root { .. }
            | Event::Entry { .. }
            | Event::Gap { .. }
            | Event::Name { .. } => {
                let (nodes, moved, flushes) = (Vec::new(), Vec::new(), Vec::new());
                return Ok(Outcome { work: Work::default(), nodes, moved, flushes });
            }
        }
        self.statistics.events += 1;
        self.widen_nodes(&mut flushes)?;
        Ok(self.outcome(flushes))
    }

    fn map_area(
        &mut self,
        address: u64,
        length: u64,
        attributes: Attributes,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let pages = self.pages(address, length)?;
        let was_mapped = self.areas.intersecting(pages.clone()).next().is_some();
        self.areas.map(pages.clone(), attributes);
        let replaced = self.given_up(address, length)?;
        self.reconcile(&replaced, Effect::Discard, flushes)?;
        if was_mapped {
            self.free_nodes(&replaced, flushes)?;
        }
        if replaced != pages {
            self.reconcile(&pages, Effect::Reprotect, flushes)?;
        }
        Ok(())
    }

    fn advise(
        &mut self,
        address: u64,
        length: u64,
        advice: Advice,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let pages = self.pages(address, length)?;
        match advice {
            Advice::HugePage => {
                self.areas.update(pages, |attributes| attributes.huge = Some(true));
            }
            Advice::NoHugePage => {
                self.areas.update(pages, |attributes| attributes.huge = Some(false));
            }
            Advice::DontNeed => {
                let pages = self.given_up(address, length)?;
                self.reconcile(&pages, Effect::Discard, flushes)?;
            }
            Advice::Populate => {
                let areas: Vec<_> = self.areas.intersecting(pages.clone()).collect();
                for vma in areas.iter().filter(|vma| vma.attributes.protection.is_accessible()) {
                    let part = vma.pages.start.max(pages.start)..vma.pages.end.min(pages.end);
                    // The program waits for it, page by page.
                    self.populate(&part, AccessKind::Load, Touch::Singly, &mut |more| {
                        flushes.extend(more);
                    })?;
                }
            }
        }
        Ok(())
    }

    fn move_break(&mut self, from: u64, to: u64, flushes: &mut Flushes<In>) -> Result<(), OsError> {
        if to >= from {
            let grown = self.whole_pages(from, to)?;
            for hole in self.areas.holes(grown.clone()) {
                self.areas.map(hole, HEAP);
            }
            self.reconcile(&grown, Effect::Reprotect, flushes)
        } else {
            let shrunk = self.whole_pages(to, from)?;
            self.areas.unmap(shrunk.clone());
            self.reconcile(&shrunk, Effect::Discard, flushes)?;
            self.free_nodes(&shrunk, flushes)
        }
    }
}
