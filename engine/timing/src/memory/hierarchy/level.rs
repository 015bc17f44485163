//! One cache with its MSHRs, and what of its lines is on its way.

use super::misses::Going;
use super::{CacheStatistics, Requester};
use crate::config::machine;
use crate::memory::cache::{Cache, Lookup};
use crate::memory::line::Line;
use crate::memory::mshrs::Mshrs;
use crate::memory::outstanding::{Miss, Outstanding};
use crate::memory::prefetchers::Prefetchers;
use crate::memory::replacement::ReplacementPolicy;

/// What a cache has of a line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    /// The line is there.
    Here,
    /// It is on its way, or was until lately.
    OnItsWay(Miss),
    /// It is not there.
    Nowhere,
}

/// A cache of the hierarchy.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub(super) cache: Cache,
    pub(super) latency: u64,
    pub(super) mshrs: Mshrs,
    outstanding: Outstanding,
    /// What decides which line goes; the least recently used one unless given.
    pub(super) policy: Option<Box<dyn ReplacementPolicy>>,
    /// The policy wants to know of each look-up.
    pub(super) watched: bool,
    pub(super) prefetchers: Prefetchers,
    pub(super) statistics: CacheStatistics,
}

impl Level {
    pub(super) fn new(config: &machine::Cache) -> Self {
        Self {
            cache: Cache::new(config),
            latency: config.latency_cycles,
            mshrs: Mshrs::new(config.mshrs),
            outstanding: Outstanding::default(),
            policy: None,
            watched: false,
            prefetchers: Prefetchers::default(),
            statistics: CacheStatistics::default(),
        }
    }

    pub(super) fn set_policy(&mut self, policy: Option<Box<dyn ReplacementPolicy>>) {
        self.watched = policy.as_ref().is_some_and(|policy| policy.watches());
        self.policy = policy;
    }

    /// A look-up that the policy wants to know of.
    #[cold]
    pub(super) fn watch(&mut self, line: Line, table: bool) {
        if let Some(policy) = &mut self.policy {
            policy.looked_up(line, table);
        }
    }

    #[inline]
    pub(super) fn count(&mut self, by: Requester, hit: bool) {
        let s = &mut self.statistics;
        let (accesses, misses) = match by {
            Requester::Walker => (&mut s.table_accesses, &mut s.table_misses),
            Requester::Prefetch => (&mut s.prefetch_accesses, &mut s.prefetch_misses),
            Requester::Data | Requester::Fetch => (&mut s.data_accesses, &mut s.data_misses),
        };
        *accesses += 1;
        *misses += u64::from(!hit);
    }

    /// Looks a line up. No request names a cycle before `frontier` any more.
    #[inline(always)]
    pub(super) fn look_up(
        &mut self,
        line: Line,
        write: bool,
        by: Requester,
        frontier: u64,
    ) -> Found {
        let lookup = self.cache.access(line, write);
        self.count(by, lookup != Lookup::Miss);
        match lookup {
            Lookup::Hit => Found::Here,
            Lookup::Pending => self.found_pending(line, frontier),
            Lookup::Miss => Found::Nowhere,
        }
    }

    /// What a look-up would find; nothing changes.
    pub(super) fn peek(&self, line: Line) -> Found {
        match (self.cache.mark(line), self.outstanding.last(line)) {
            (None, _) => Found::Nowhere,
            (Some(_), None) => Found::Here,
            (Some(_), Some(miss)) => Found::OnItsWay(miss),
        }
    }

    /// What is found of a line that was on its way when it was last looked at.
    #[inline(never)]
    fn found_pending(&mut self, line: Line, frontier: u64) -> Found {
        let miss = self.outstanding.last(line);
        if miss.is_none_or(|miss| miss.end <= frontier) {
            self.cache.arrived(line);
        }
        if miss.is_none() {
            self.note_use(line, false);
        }
        miss.map_or(Found::Here, Found::OnItsWay)
    }

    /// When a line is there for who asks at `at`: one that the cache has, or that `miss` brings.
    #[inline]
    pub(super) fn ready(&mut self, miss: Option<Miss>, at: u64) -> u64 {
        let hit = at + self.latency;
        let Some(miss) = miss else { return hit };
        if miss.asked <= at {
            return hit.max(miss.end);
        }
        // A younger instruction asks at an earlier time than the older one that missed: then it is this
        // request that brings the line, as much earlier as there was an MSHR for it.
        hit.max(miss.end - self.mshrs.gain(at, miss.start, miss.end))
    }

    /// Books the MSHR that brings `line`. None will find a line on its way that was to be there at
    /// `arrived`.
    #[inline(always)]
    pub(super) fn book(&mut self, line: Line, going: Going, arrived: u64) {
        let Going { asked, fit } = going;
        self.keep(going);
        // As if it had waited before it went on.
        let start = fit.start + fit.waits;
        self.outstanding.add(Miss { line, asked, start, end: fit.end }, arrived);
    }

    /// Books an MSHR that brings the cache no line.
    #[inline(always)]
    pub(super) fn keep(&mut self, Going { asked, fit }: Going) {
        self.mshrs.book_fit(fit);
        self.statistics.mshr_wait_cycles += fit.start - asked + fit.waits;
    }
}
