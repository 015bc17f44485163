//! One cache with its MSHRs, and what of its lines is on its way.

use super::{CacheStatistics, Requester};
use crate::config::machine;
use crate::memory::cache::{Cache, Lookup};
use crate::memory::line::Line;
use crate::memory::mshrs::Mshrs;
use crate::memory::outstanding::{Miss, Outstanding};
use crate::memory::prefetchers::Prefetchers;
use crate::memory::replacement::ReplacementPolicy;

/// A cache of the hierarchy.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub(super) cache: Cache,
    pub(super) latency: u64,
    pub(super) mshrs: Mshrs,
    outstanding: Outstanding,
    /// How long the line takes that was last found on its way.
    pub(super) taken: u64,
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
            taken: 0,
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

    /// Looks a line up. `Ok`: the cycle in which it is there. `Err`: it misses, and the request
    /// goes on in that cycle, when an MSHR is free.
    #[inline(always)]
    pub(super) fn look_up(
        &mut self,
        line: Line,
        at: u64,
        write: bool,
        by: Requester,
        frontier: u64,
    ) -> Result<u64, u64> {
        let lookup = self.cache.access(line, write);
        self.count(by, lookup != Lookup::Miss);
        match lookup {
            Lookup::Hit => Ok(at + self.latency),
            Lookup::Pending => {
                let ready = self.arrival(line, at, frontier);
                self.note_use(line, ready > at + self.latency);
                Ok(ready)
            }
            Lookup::Miss => {
                let start = self.mshrs.earliest(at);
                self.statistics.mshr_wait_cycles += start - at;
                Err(start)
            }
        }
    }

    /// When a line is there that was on its way when it was last looked at.
    #[inline(never)]
    fn arrival(&mut self, line: Line, at: u64, frontier: u64) -> u64 {
        let hit = at + self.latency;
        let Some(miss) = self.outstanding.last(line) else {
            self.cache.arrived(line);
            return hit;
        };
        if miss.end <= frontier {
            self.cache.arrived(line);
        }
        // A younger instruction may ask at an earlier time than the older one that missed: then it
        // is this request that brings the line, as much earlier, if there was an MSHR for it.
        let mut earlier = miss.asked.saturating_sub(at);
        if earlier > 0 {
            earlier = earlier.min(miss.start.saturating_sub(self.mshrs.earliest(at)));
        }
        self.taken = miss.end - miss.start;
        hit.max(miss.end - earlier)
    }

    /// Books the MSHR that brought `line`, which was asked for at `asked`, between `start` and
    /// `ready`; returns when it is there. No request names a cycle before `frontier` any more, and
    /// none will find a line on its way that was to be there at `arrived`.
    #[inline(always)]
    pub(super) fn book(
        &mut self,
        line: Line,
        (asked, start): (u64, u64),
        ready: u64,
        (frontier, arrived): (u64, u64),
    ) -> u64 {
        let delay = self.mshrs.book(start, ready, frontier);
        self.statistics.mshr_wait_cycles += delay;
        let (start, end) = (start + delay, ready + delay);
        self.outstanding.add(Miss { line, asked, start, end }, arrived);
        end
    }
}
