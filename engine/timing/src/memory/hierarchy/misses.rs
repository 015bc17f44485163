//! How a request that misses goes on: who below has the line, when the request has it, and then what it
//! takes.
//!
//! Each cache on the way keeps one of its MSHRs for the request, from when the request goes on there until
//! its line is there. How long that is depends on those below: on what they have, and on their MSHRs, banks
//! and buses. So a request is planned, from the outermost cache inwards, for the first cycle in which an MSHR
//! is free. Only then is anything booked: all that a request takes belongs to the one cycle in which it goes
//! on. Older instructions' requests may have all MSHRs in some later cycle before the line is there. In a
//! processor one of them would wait then; here, where they have been booked, this one does.

use super::level::{Found, Level};
use super::{Hierarchy, Prefetching, Requester, Response, Served};
use crate::memory::dram::Read;
use crate::memory::line::Line;
use crate::memory::mshrs::Fit;
use crate::memory::outstanding::Miss;

/// Who below the first level has a line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    /// L2 has it, or waits for it.
    L2(Option<Miss>),
    /// The last-level cache has it, or waits for it.
    Llc(Option<Miss>),
    /// Another core has written it; and what the last-level cache has of it.
    OtherCore(Found),
    /// Main memory; after so many cycles of the last-level cache.
    Memory { llc_cycles: u64 },
}

impl Owner {
    /// By what L2 has of the line; `None` if that is nothing.
    #[inline]
    fn by_l2(found: Found) -> Option<Self> {
        match found {
            Found::Here => Some(Self::L2(None)),
            Found::OnItsWay(miss) => Some(Self::L2(Some(miss))),
            Found::Nowhere => None,
        }
    }

    /// By what the last-level cache has of a line that L2 does not have, and whether another core has written
    /// it; the cache takes so many cycles.
    #[inline]
    fn by_llc(found: Found, is_modified_elsewhere: bool, llc_cycles: u64) -> Self {
        match found {
            found if is_modified_elsewhere => Self::OtherCore(found),
            Found::Here => Self::Llc(None),
            Found::OnItsWay(miss) => Self::Llc(Some(miss)),
            Found::Nowhere => Self::Memory { llc_cycles },
        }
    }
}

/// A cache's part of a request that misses there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Going {
    /// The cycle in which it was asked.
    pub(super) asked: u64,
    /// Where an MSHR is free for it.
    pub(super) fit: Fit,
}

/// When a request has its line, and what it takes for that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The cycle in which the line's owner was asked.
    asked: u64,
    ready: u64,
    l2: Option<Going>,
    llc: Option<Going>,
    read: Option<Read>,
}

impl Plan {
    /// Nothing is taken for it.
    #[inline]
    fn simple(asked: u64, ready: u64) -> Self {
        Self { asked, ready, l2: None, llc: None, read: None }
    }
}

impl Hierarchy {
    /// Asks for a line from L2 on.
    pub(super) fn access_l2(
        &mut self,
        line: Line,
        at: u64,
        write: bool,
        by: Requester,
    ) -> Response {
        let owner = self.look_up_l2(line, write, by);
        let plan = self.plan_l2(line, owner, at);
        self.carry_out(line, owner, &plan, write, by)
    }

    /// Looks a line up from L2 on. Contents change in the order of calls, whatever the time is.
    pub(super) fn look_up_l2(&mut self, line: Line, write: bool, by: Requester) -> Owner {
        if self.l2.watched {
            self.l2.watch(line, by == Requester::Walker);
        }
        let found = self.l2.look_up(line, write, by, self.frontier);
        self.count_l2_data(by, !matches!(found, Found::Nowhere));
        Owner::by_l2(found).unwrap_or_else(|| {
            // What will have to go for the line is looked up there next.
            self.prefetch_victim_of(line);
            self.look_up_llc(line, by)
        })
    }

    /// The same from the last-level cache on, of a line that L2 does not have.
    pub(super) fn look_up_llc(&mut self, line: Line, by: Requester) -> Owner {
        let is_recalled = self.is_coherent() && self.recall(line);
        let line = self.owned(line);
        if self.llc.watched {
            self.llc.watch(line, by == Requester::Walker);
        }
        let found = self.llc.look_up(line, is_recalled, by, self.arrived());
        Owner::by_llc(found, is_recalled, self.llc.latency)
    }

    /// Who has a line that `level` does not have; nothing changes.
    pub(super) fn peek_below(&self, level: Prefetching, line: Line) -> Owner {
        if level == Prefetching::L1d
            && let Some(owner) = Owner::by_l2(self.l2.peek(line))
        {
            return owner;
        }
        let found = self.llc.peek(self.owned(line));
        Owner::by_llc(found, self.is_modified_elsewhere(line), self.llc.latency)
    }

    /// Whether a request for a line that `level` does not have would go on at once: whether one of its MSHRs is
    /// free from `at` on until the line is there. Nothing changes.
    pub(super) fn goes_on_at_once(&mut self, level: Prefetching, line: Line, at: u64) -> bool {
        if self.level(level).mshrs.earliest(at) > at {
            return false;
        }
        let owner = self.peek_below(level, line);
        let going = match level {
            Prefetching::L1d => {
                Some(self.plan_first_level_miss(line, owner, at, Requester::Prefetch).0)
            }
            Prefetching::L2 => self.plan_l2(line, owner, at).l2,
        };
        going.is_none_or(|going| going.fit.start == at && going.fit.waits == 0)
    }

    /// A request that asks L2 for a line of `owner` at cycle `at`.
    #[inline]
    pub(super) fn plan_l2(&mut self, line: Line, owner: Owner, at: u64) -> Plan {
        if let Owner::L2(miss) = owner {
            return Plan::simple(at, self.l2.ready(miss, at));
        }
        let below = |h: &mut Self, start| h.plan_llc(line, owner, start);
        let (l2, plan) = self.plan_miss(|h| &mut h.l2, at, self.frontier, below);
        Plan { l2: Some(l2), ..plan }
    }

    /// The same of one that asks the last-level cache.
    pub(super) fn plan_llc(&mut self, line: Line, owner: Owner, at: u64) -> Plan {
        // Another core's L2 is looked up behind the last-level cache, which then has the line, too.
        let behind = self.llc.latency + self.l2.latency;
        match owner {
            Owner::L2(miss) | Owner::Llc(miss) => Plan::simple(at, self.llc.ready(miss, at)),
            Owner::OtherCore(Found::Here) => Plan::simple(at, at + behind),
            Owner::OtherCore(Found::OnItsWay(miss)) => {
                Plan::simple(at, self.llc.ready(Some(miss), at) + self.l2.latency)
            }
            Owner::OtherCore(Found::Nowhere) => {
                self.plan_llc_miss(at, |_, start| Plan::simple(start, start + behind))
            }
            Owner::Memory { llc_cycles } => {
                let line = self.owned(line);
                self.plan_llc_miss(at, |h, start| {
                    let read = h.dram.plan_read(line, start + llc_cycles);
                    Plan { read: Some(read), ..Plan::simple(start, read.ready) }
                })
            }
        }
    }

    #[inline]
    fn plan_llc_miss(&mut self, at: u64, below: impl Fn(&mut Self, u64) -> Plan) -> Plan {
        let frontier = self.shared_frontier();
        let (llc, plan) = self.plan_miss(|h| &mut h.llc, at, frontier, below);
        Plan { llc: Some(llc), ..plan }
    }

    /// A request that misses in `level` at cycle `at`: it goes on in the first cycle in which one of the
    /// cache's MSHRs is free, and takes as long as `below` says, and the cycles in which none is.
    #[inline]
    pub(super) fn plan_miss(
        &mut self,
        level: impl Fn(&mut Self) -> &mut Level,
        at: u64,
        frontier: u64,
        below: impl Fn(&mut Self, u64) -> Plan,
    ) -> (Going, Plan) {
        let start = level(self).mshrs.earliest(at);
        let plan = below(self, start);
        let fit = level(self).mshrs.fit(start, plan.ready, frontier);
        (Going { asked: at, fit }, Plan { ready: fit.end, ..plan })
    }

    /// A request that a first-level cache makes of L2 at `at`, and keeps one of its MSHRs for.
    #[inline]
    pub(super) fn plan_first_level_miss(
        &mut self,
        line: Line,
        owner: Owner,
        at: u64,
        by: Requester,
    ) -> (Going, Plan) {
        let below = |h: &mut Self, start| h.plan_l2(line, owner, start);
        self.plan_miss(|h| h.first_level(by), at, self.frontier, below)
    }

    /// Books what a request takes from L2 on, and puts its line into the caches there.
    pub(super) fn carry_out(
        &mut self,
        line: Line,
        owner: Owner,
        plan: &Plan,
        write: bool,
        by: Requester,
    ) -> Response {
        let table = by == Requester::Walker;
        let ready = plan.ready;
        if let Some(read) = &plan.read {
            self.dram.book_read(read, self.shared_frontier());
        }
        if let Some(going) = plan.llc {
            let (shared, arrived) = (self.owned(line), self.arrived());
            self.llc.book(shared, going, arrived);
            let is_recalled = matches!(owner, Owner::OtherCore(_));
            self.fill_llc(shared, table, is_recalled, true, ready);
        }
        if let Some(going) = plan.l2 {
            self.l2.book(line, going, self.frontier);
            self.fill_l2(line, table, write, true, ready);
        }
        match owner {
            Owner::L2(None) => Response::new(ready, Served::L2),
            Owner::L2(Some(miss)) => {
                self.l2.note_use(line, ready > plan.asked + self.l2.latency);
                self.on_its_way(Served::L2, miss, plan.asked + self.l2.latency, ready)
            }
            Owner::Llc(Some(miss)) => {
                self.on_its_way(Served::Llc, miss, plan.asked + self.llc.latency, ready)
            }
            Owner::Llc(None) | Owner::OtherCore(_) => Response::new(ready, Served::Llc),
            Owner::Memory { .. } => Response::new(ready, Served::Dram),
        }
    }

    /// The response of a level that would have had the line at `hit`, and waits for it until `ready`. It takes
    /// as long as `miss` says, which tells from where: behind L2's latency is the last-level cache, and behind
    /// that one's memory.
    #[inline(never)]
    pub(super) fn on_its_way(&self, served: Served, miss: Miss, hit: u64, ready: u64) -> Response {
        if ready <= hit {
            return Response::new(ready, served);
        }
        let taken = miss.end - miss.start;
        let awaited = if taken <= self.l2.latency {
            Served::L2
        } else if taken <= self.llc.latency + if self.is_coherent() { self.l2.latency } else { 0 } {
            Served::Llc
        } else {
            Served::Dram
        };
        Response::late(ready, served, awaited)
    }
}
