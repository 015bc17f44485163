//! The hierarchy's part in data prefetching: who has prefetchers, and what a prefetch does.
//!
//! A prefetch is a request like any other: it takes an MSHR of its cache and of those below, waits for those
//! below, and takes its share of banks and buses. But it does not wait for an MSHR of its own cache: if none is
//! free from when it is made until the line is there, it is given up. The line comes in as the most recently
//! used, with a mark by which its first use, or its going unused, is counted.

use flatwalk_paging::Hpa;

use super::level::Level;
use super::{Hierarchy, Requester};
use crate::ConfigError;
use crate::config::machine::{Cache, Machine};
use crate::memory::line::Line;
use crate::memory::prefetchers::{Found, One, Prefetchers, Request, Wanted};

/// A cache that can have prefetchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetching {
    /// The first-level data cache.
    L1d,
    /// The second-level cache.
    L2,
}

/// What became of a prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetched {
    /// The line comes.
    Issued,
    /// The line is there, or on its way.
    Redundant,
    /// No MSHR was free until the line would have been there.
    Dropped,
}

/// What the caches with prefetchers have of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundIn {
    /// The first-level data cache.
    pub l1d: Found,
    /// The second-level cache.
    pub l2: Found,
}

impl Level {
    fn find(&self, line: Line) -> Found {
        match self.cache.mark(line) {
            None => Found::Nothing,
            Some(0) => Found::Line,
            Some(_) => Found::Unused,
        }
    }

    /// A line is used that may have been prefetched; `late` if it is waited for.
    #[inline]
    pub(super) fn note_use(&mut self, line: Line, late: bool) {
        if !self.prefetchers.is_empty() {
            self.note_first_use(line, late);
        }
    }

    fn note_first_use(&mut self, line: Line, late: bool) {
        let mark = self.cache.unmark(line);
        if mark > 0 {
            let figures = &mut self.prefetchers.one(usize::from(mark) - 1).figures;
            figures.useful += 1;
            figures.late += u64::from(late);
        }
    }

    /// A line with this mark is gone.
    #[inline]
    pub(super) fn note_gone(&mut self, mark: u8) {
        if mark > 0 {
            self.prefetchers.one(usize::from(mark) - 1).figures.useless += 1;
        }
    }

    /// Removes a line, because another core has written it. True if it was there.
    pub(super) fn invalidate(&mut self, line: Line) -> bool {
        if let Some(mark) = self.cache.mark(line) {
            self.note_gone(mark);
        }
        self.cache.remove(line)
    }
}

impl Hierarchy {
    /// Gives the caches the prefetchers that `machine` has.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn set_prefetchers(&mut self, machine: &Machine) -> Result<(), ConfigError> {
        let of = |cache: &Option<Cache>, name| match cache {
            Some(cache) => Prefetchers::new(cache, name),
            None => Ok(Prefetchers::default()),
        };
        self.l1d.prefetchers = of(&machine.l1d, "l1d")?;
        self.l2.prefetchers = of(&machine.l2, "l2")?;
        self.prefetches = !self.l1d.prefetchers.is_empty() || !self.l2.prefetchers.is_empty();
        Ok(())
    }

    /// True if some cache has prefetchers.
    #[inline]
    pub fn prefetches(&self) -> bool {
        self.prefetches
    }

    pub(super) fn level(&mut self, of: Prefetching) -> &mut Level {
        match of {
            Prefetching::L1d => &mut self.l1d,
            Prefetching::L2 => &mut self.l2,
        }
    }

    /// What L1D and L2 have of the line of `address`; nothing changes.
    pub fn find(&self, address: Hpa) -> FoundIn {
        let line = Line::of(address);
        FoundIn { l1d: self.l1d.find(line), l2: self.l2.find(line) }
    }

    /// The prefetchers of a cache see a request, and add what they want.
    pub fn observe(
        &mut self,
        of: Prefetching,
        request: &Request,
        wanted: &mut Vec<(Prefetching, Wanted)>,
    ) {
        let mut its = std::mem::take(&mut self.wanted);
        its.clear();
        self.level(of).prefetchers.observe(request, &mut its);
        wanted.extend(its.iter().map(|&one| (of, one)));
        self.wanted = its;
    }

    /// The prefetcher of that number.
    pub fn prefetcher(&mut self, of: Prefetching, number: usize) -> &mut One {
        self.level(of).prefetchers.one(number)
    }

    /// All prefetchers, and the names of their caches.
    pub fn prefetchers(&self) -> impl Iterator<Item = (&'static str, &One)> {
        let levels = [("L1D", &self.l1d), ("L2", &self.l2)].into_iter();
        levels.flat_map(|(name, level)| level.prefetchers.iter().map(move |one| (name, one)))
    }

    /// Prefetcher `by` of a cache asks for the line of `address` at cycle `at`.
    pub fn prefetch_data(
        &mut self,
        into: Prefetching,
        address: Hpa,
        at: u64,
        by: usize,
    ) -> Prefetched {
        let line = Line::of(address);
        let level = self.level(into);
        let is_there = level.cache.mark(line).is_some();
        level.count(Requester::Prefetch, is_there);
        if is_there {
            return Prefetched::Redundant;
        }
        if !self.goes_on_at_once(into, line, at) {
            return Prefetched::Dropped;
        }
        match into {
            Prefetching::L1d => {
                self.access_missing(line, at, false, Requester::Prefetch);
            }
            Prefetching::L2 => {
                let owner = self.look_up_llc(line, Requester::Prefetch);
                let plan = self.plan_l2(line, owner, at);
                self.carry_out(line, owner, &plan, false, Requester::Prefetch);
            }
        }
        self.level(into).cache.set_mark(line, by as u8 + 1);
        Prefetched::Issued
    }

    /// What [`Hierarchy::prefetch_data`] does to contents, where an MSHR is free.
    pub fn warm_prefetch_data(&mut self, into: Prefetching, address: Hpa, by: usize) -> Prefetched {
        let line = Line::of(address);
        if self.level(into).cache.mark(line).is_some() {
            return Prefetched::Redundant;
        }
        match into {
            Prefetching::L1d => {
                self.warm_l2(line, false, Requester::Prefetch);
                self.warm_fill_l1(Requester::Prefetch, line, false);
            }
            Prefetching::L2 => {
                self.warm_llc(line, Requester::Prefetch);
                self.warm_fill_l2(line, false, false);
            }
        }
        self.level(into).cache.set_mark(line, by as u8 + 1);
        Prefetched::Issued
    }
}
