//! Mapping, unmapping and changing pages of keyed tables.

use super::Keyed;
use super::line::TaggedLine;
use super::store::{Page, Stale};
use crate::addr::{Address, Physical};
use crate::entry::{Attributes, Entry};
use crate::error::{TableError, check_frame, check_page};
use crate::geometry::Level;
use crate::mapping::{Flush, Mapping};
use crate::memory::TableMemory;

impl<In: Address, Out: Physical> Keyed<In, Out> {
    /// Maps the page of `level` at `input` to `frame`. What caches know of side lines may be stale
    /// afterwards.
    ///
    /// # Errors
    /// See [`TableError`]; everything translates as before then.
    pub fn map(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        input: In,
        frame: Out,
        level: Level,
        attributes: Attributes,
    ) -> Result<Option<Flush<In>>, TableError> {
        check_page(self.geometry, input.raw(), level)?;
        check_frame(self.geometry, frame, level)?;
        if !self.is_empty(memory, input, level) {
            return Err(TableError::Occupied(input.raw()));
        }
        let entry = Entry::leaf(frame, level > 1, attributes);
        let stale = self.enter(memory, input, level, entry)?;
        Ok(self.flush(input, level, stale))
    }

    /// Maps up to `pages` base pages from `input` on, as far as that only takes entries written into
    /// one line that is there, and `frame` gives frames for them. Returns how many; the next is for
    /// [`Keyed::map`].
    ///
    /// # Errors
    /// What is wrong with a frame; the pages before it are mapped then.
    pub fn map_run<M: TableMemory<Out>>(
        &mut self,
        memory: &mut M,
        input: In,
        pages: u64,
        attributes: Attributes,
        mut frame: impl FnMut(&mut M) -> Option<Out>,
    ) -> Result<u64, TableError> {
        check_page(self.geometry, input.raw(), 1)?;
        let number = self.geometry.number(input.raw(), 1);
        let Some(line) = self.store.line_in_use(memory, number) else { return Ok(0) };
        let line = TaggedLine(line);
        let mut mapped = 0;
        let mut wrong = Ok(());
        for i in (number % 8..8).take(pages as usize) {
            if line.is_present(memory, i) {
                break;
            }
            let Some(frame) = frame(memory) else { break };
            wrong = check_frame(self.geometry, frame, 1);
            if wrong.is_err() {
                break;
            }
            line.write(memory, i, Entry::leaf(frame, false, attributes));
            mapped += 1;
        }
        if mapped > 0 {
            line.count_up(memory, mapped);
            // The line had pages, and so has its region: no side line changes.
            self.regions.add(1, number, mapped as u32);
        }
        wrong.map(|()| mapped)
    }

    /// Takes away the page that `input` lies in.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] when there is none.
    pub fn unmap(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        input: In,
    ) -> Result<(Mapping<In, Out>, Flush<In>), TableError> {
        let (mapping, _) = self.find(memory, input)?;
        let stale = self.withdraw(memory, input, mapping.level);
        Ok((mapping, self.page_flush(mapping.input, mapping.level, stale)))
    }

    /// Changes the page that `input` lies in; `change` may give it another frame or attributes.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] when there is none, or what says that it cannot have that frame.
    pub fn update(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        input: In,
        change: impl FnOnce(&mut Mapping<In, Out>),
    ) -> Result<(Mapping<In, Out>, Flush<In>), TableError> {
        let (old, leaf) = self.find(memory, input)?;
        let mut new = old;
        change(&mut new);
        check_frame(self.geometry, new.frame, leaf.level)?;
        let entry = Entry::leaf(new.frame, leaf.level > 1, new.attributes);
        self.store.change(memory, self.page(input, leaf.level), &leaf, entry)?;
        Ok((old, self.page_flush(old.input, leaf.level, Stale::default())))
    }

    /// Splits the large page that `input` lies in into pages of the level below.
    ///
    /// # Errors
    /// [`TableError::NotMapped`], [`TableError::NoSuchPage`] when it is a base page already, or
    /// [`TableError::OutOfMemory`]; everything translates as before then.
    pub fn split(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        input: In,
    ) -> Result<Flush<In>, TableError> {
        let (old, _) = self.find(memory, input)?;
        if old.level == 1 {
            return Err(TableError::NoSuchPage(0));
        }
        let (below, bytes) = (old.level - 1, self.geometry.span(old.level - 1));
        let mut stale = Stale::default();
        for i in 0..self.geometry.node_entries(1) {
            let piece = Entry::leaf(old.frame.offset(i * bytes), below > 1, old.attributes);
            match self.enter(memory, old.input.offset(i * bytes), below, piece) {
                Ok(more) => stale = stale.and(more),
                Err(error) => {
                    for i in 0..i {
                        self.withdraw(memory, old.input.offset(i * bytes), below);
                    }
                    return Err(error);
                }
            }
        }
        stale = stale.and(self.withdraw(memory, old.input, old.level));
        Ok(self.page_flush(old.input, old.level, stale))
    }

    /// Gives all memory back. Pages are the caller's.
    pub fn destroy(self, memory: &mut dyn TableMemory<Out>) {
        self.store.destroy(memory);
    }

    fn page(&self, input: In, level: Level) -> Page {
        Page { level, number: self.geometry.number(input.raw(), level) }
    }

    /// Puts in the entry of a page that is not mapped.
    fn enter(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        input: In,
        level: Level,
        entry: Entry,
    ) -> Result<Stale, TableError> {
        self.store.prepare(memory, level)?;
        let page = self.page(input, level);
        let mut stale = self.store.insert(memory, page, entry)?;
        if self.regions.add(level, page.number, 1) == 1 || level > 1 {
            match self.store.refresh(memory, input.raw(), &self.regions) {
                Ok(changed) => stale.here |= changed,
                Err(error) => {
                    self.withdraw(memory, input, level);
                    return Err(error);
                }
            }
        }
        Ok(stale)
    }

    /// Takes the entry of a page away that is mapped.
    fn withdraw(&mut self, memory: &mut dyn TableMemory<Out>, input: In, level: Level) -> Stale {
        let page = self.page(input, level);
        let mut stale = self.store.remove(memory, page);
        if self.regions.remove(level, page.number) == 0 || level > 1 {
            let changed = self.store.refresh(memory, input.raw(), &self.regions);
            stale.here |= changed.expect("taking away needs no memory");
        }
        stale
    }

    /// What is to be flushed after a change to the page of `level` at `input` that left no
    /// translation behind.
    fn flush(&self, input: In, level: Level, stale: Stale) -> Option<Flush<In>> {
        if stale.anywhere {
            return Some(Flush::everything(false, true));
        }
        stale.here.then(|| Flush::of(input, self.geometry.span(level), false, true))
    }

    /// What is to be flushed after a change to the page of `level` at `input`, which was mapped.
    fn page_flush(&self, input: In, level: Level, stale: Stale) -> Flush<In> {
        let page = || Flush::of(input, self.geometry.span(level), false, false);
        Flush { leaves: true, ..self.flush(input, level, stale).unwrap_or_else(page) }
    }
}
