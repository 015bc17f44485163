//! What accesses do to contents while no time passes.

use flatwalk_paging::Hpa;

use super::level::Level;
use super::{Hierarchy, Requester, Served};
use crate::memory::cache::Lookup;
use crate::memory::line::Line;

impl Hierarchy {
    /// What [`Hierarchy::access`] does to the contents of caches and memory's rows, without its time and
    /// its counts.
    #[inline(always)]
    pub fn warm(&mut self, address: Hpa, write: bool, by: Requester) {
        if write && self.is_coherent() {
            let line = Line::of(address);
            let is_mine = self.is_modified(line);
            self.warm_any(address, true, by);
            if !is_mine {
                self.invalidate_others(line);
            }
            return;
        }
        self.warm_any(address, write, by);
    }

    #[inline(always)]
    fn warm_any(&mut self, address: Hpa, write: bool, by: Requester) {
        let line = Line::of(address);
        let is_newest = self.l1(by).is_some_and(|l1| l1.cache.access_newest(line, write));
        if !is_newest {
            self.warm_older(line, write, by);
        }
    }

    /// The same of a line that is not the one that was used last of its set.
    #[inline(never)]
    fn warm_older(&mut self, line: Line, write: bool, by: Requester) {
        let Some(l1) = self.l1(by) else {
            self.warm_l2(line, write, by);
            return;
        };
        match l1.cache.access(line, write) {
            Lookup::Hit => {}
            Lookup::Pending => l1.note_use(line, false),
            Lookup::Miss => {
                self.warm_l2(line, false, by);
                self.warm_fill_l1(by, line, write);
            }
        }
    }

    #[inline]
    pub(super) fn warm_fill_l1(&mut self, by: Requester, line: Line, dirty: bool) {
        let l1 = if by == Requester::Fetch { &mut self.l1i } else { &mut self.l1d };
        let table = by == Requester::Walker;
        let gone = l1.cache.fill(line, table, dirty, false, None, &mut self.random);
        let Some(gone) = gone else { return };
        l1.note_gone(gone.mark);
        if gone.dirty && !self.l2.cache.write_back(gone.line) {
            self.warm_fill_l2(gone.line, gone.table, true);
        }
    }

    /// So many lines came into L2 and the last-level cache while nothing was seen of it; see
    /// [`Cache::pass_over`](crate::memory::cache::Cache::pass_over).
    pub fn pass_over(&mut self, fills: [u64; 2]) {
        let levels = [&mut self.l2, &mut self.llc].into_iter().zip(fills);
        for (Level { cache, policy, .. }, fills) in levels {
            if let Some(policy) = policy {
                cache.pass_over(fills, &**policy, &mut self.random);
            }
        }
    }

    /// What [`Hierarchy::write_translations`] does to contents.
    pub fn warm_translations(&mut self, address: Hpa) {
        let line = Line::of(address);
        self.warm_l2(line, true, Requester::Walker);
        self.invalidate_others(line);
    }

    /// The same from L2 on; says who had the line.
    pub fn warm_l2(&mut self, line: Line, write: bool, by: Requester) -> Served {
        let walker = by == Requester::Walker;
        if self.l2.watched {
            self.l2.watch(line, walker);
        }
        let lookup = self.l2.cache.access(line, write);
        self.count_l2_data(by, lookup != Lookup::Miss);
        if lookup != Lookup::Miss {
            if lookup == Lookup::Pending {
                self.l2.note_use(line, false);
            }
            return Served::L2;
        }
        self.prefetch_victim_of(line);
        let served = self.warm_llc(line, by);
        self.warm_fill_l2(line, walker, write);
        served
    }

    /// The same from the last-level cache on, of a line that L2 does not have.
    #[inline]
    pub(super) fn warm_llc(&mut self, line: Line, by: Requester) -> Served {
        let walker = by == Requester::Walker;
        let is_recalled = self.is_coherent() && self.recall(line);
        let owned = self.owned(line);
        if self.llc.watched {
            self.llc.watch(owned, walker);
        }
        if self.llc.cache.access(owned, is_recalled) == Lookup::Miss {
            if !is_recalled {
                self.dram.warm(owned);
            }
            self.warm_fill_llc(owned, walker, is_recalled);
            if is_recalled { Served::Llc } else { Served::Dram }
        } else {
            Served::Llc
        }
    }

    pub(super) fn warm_fill_l2(&mut self, line: Line, table: bool, dirty: bool) {
        let Level { cache, policy, .. } = &mut self.l2;
        let gone = cache.fill(line, table, dirty, false, policy.as_deref_mut(), &mut self.random);
        let Some(gone) = gone else { return };
        self.l2.note_gone(gone.mark);
        if gone.dirty {
            let line = self.owned(gone.line);
            if !self.llc.cache.write_back(line) {
                self.warm_fill_llc(line, gone.table, true);
            }
        }
    }

    fn warm_fill_llc(&mut self, line: Line, table: bool, dirty: bool) {
        let Level { cache, policy, .. } = &mut self.llc;
        let gone = cache.fill(line, table, dirty, false, policy.as_deref_mut(), &mut self.random);
        if let Some(gone) = gone
            && gone.dirty
        {
            self.dram.warm(gone.line);
        }
    }
}
