//! What the last translation that missed the TLBs spent its time on.
//!
//! It is kept as it happened, and divided only where somebody waited for it: most of a walk's time is
//! hidden behind other work, and then nobody asks.

use crate::memory::hierarchy::Served;
use crate::mmu::event::WalkLog;

/// What a translation takes time for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spent {
    /// Looking into TLBs, or waiting for a translation that was under way already.
    Tlb,
    /// What mechanisms do between the last TLB's miss and the walk: look-ups of their own.
    Mechanism,
    /// Being later because no page walker was free.
    Queue,
    /// In a walk, whatever is not waiting for an entry: page-walk caches, the nested TLB, hashing, a
    /// handler in software.
    LookUps,
    /// In a walk, waiting for an entry that this cache or memory had.
    Read(Served),
}

/// A miss of the last-level TLB, in cycles. What does not happen takes none.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The TLBs have missed.
    pub(super) missed: u64,
    /// Mechanisms have, too: a walker is wanted.
    pub(super) wanted: u64,
    /// A walker was free, and the walk began.
    pub(super) start: u64,
    /// So much later, as it turned out, was a walker free for all of it. Reads are made as if it had
    /// been free at once; here they stand later by as much.
    pub(super) delay: u64,
    /// The translation is known, or the walk found that there is none.
    pub(super) ready: u64,
    /// What the walk read.
    pub(super) log: WalkLog,
}

impl Timeline {
    /// Divides the cycles from `from` to `until`, if there are any, by what the translation known at
    /// `until` took them for. They add up to `until - from`. That is this miss only once: an access
    /// that merged with it, and has it at the same time, has waited for no walker of its own.
    ///
    /// A walk that has waited for a walker, and all that follows, are later by as much. So whatever of
    /// them is waited for is because of that first, and the rest is divided as if the walk had begun at
    /// once. By their overlap alone such waits would never show: the walks that are waited for belong to
    /// older instructions, which are waited for themselves, until their data is there. Returns the cycles of
    /// the wait that are left, for the data.
    pub fn divide(&mut self, from: u64, until: u64, mut add: impl FnMut(Spent, u64)) -> u64 {
        let from = from.min(until);
        if until != self.ready {
            add(Spent::Tlb, until - from);
            return 0;
        }
        self.ready = u64::MAX;
        let began = self.start + self.delay;
        let queued = began - self.wanted;
        let waited = queued.min(until - from);
        add(Spent::Queue, waited);
        let from = from + waited;
        self.divide_walk(began.max(from), until, &mut add);
        let began = began.max(from).min(until);
        let missed = (self.missed + queued).clamp(from, began);
        add(Spent::Mechanism, began - missed);
        add(Spent::Tlb, missed - from);
        queued - waited
    }

    /// The same of the walk, back along the reads that each waited for the one before. Of several that
    /// were made at once that is the one whose end the walk went on from.
    fn divide_walk(&self, from: u64, until: u64, add: &mut impl FnMut(Spent, u64)) {
        let mut left = until;
        while left > from {
            let times = self
                .log
                .times()
                .map(|(asked, ready, awaited)| (asked + self.delay, ready + self.delay, awaited));
            let last = times
                .filter(|&(asked, ready, _)| asked < ready && ready <= left)
                .max_by_key(|&(_, ready, _)| ready);
            let Some((asked, ready, awaited)) = last.filter(|&(_, ready, _)| ready > from) else {
                add(Spent::LookUps, left - from);
                return;
            };
            let asked = asked.max(from);
            add(Spent::LookUps, left - ready);
            add(Spent::Read(awaited), ready - asked);
            left = asked;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A miss at 10; a mechanism until 13, a walker at 20, and 2 later; reads as given; known as
    /// said.
    fn timeline(reads: &[(u64, u64, Served)], known: u64) -> Timeline {
        let mut log = WalkLog::default();
        for &(asked, there, awaited) in reads {
            log.note_times(asked, there, awaited);
        }
        Timeline { missed: 10, wanted: 13, start: 20, delay: 2, ready: known, log }
    }

    /// The parts, the wait for a walker first and the others from the last to the first; and what is left
    /// of that wait. The timeline is one that nobody has asked for yet.
    fn divided(timeline: &Timeline, from: u64, until: u64) -> (Vec<(Spent, u64)>, u64) {
        let mut parts = Vec::new();
        let left = timeline.clone().divide(from, until, |spent, cycles| {
            if cycles > 0 {
                parts.push((spent, cycles));
            }
        });
        (parts, left)
    }

    #[test]
    fn a_walk_is_divided_by_what_it_waited_for() {
        let serial = timeline(&[(21, 33, Served::L2), (33, 75, Served::Llc)], 77);
        let all = [
            (Spent::Queue, 9),
            (Spent::Read(Served::Llc), 42),
            (Spent::Read(Served::L2), 12),
            (Spent::LookUps, 1),
            (Spent::Mechanism, 3),
            (Spent::Tlb, 9),
        ];
        assert_eq!(divided(&serial, 1, 77), (all.to_vec(), 0));
        let some =
            [(Spent::Queue, 9), (Spent::Read(Served::Llc), 42), (Spent::Read(Served::L2), 1)];
        assert_eq!(divided(&serial, 25, 77), (some.to_vec(), 0));
        assert_eq!(divided(&serial, 72, 77), (vec![(Spent::Queue, 5)], 4));
        assert_eq!(divided(&serial, 80, 77), (vec![], 9), "nobody waits for it");
        let other = (vec![(Spent::Tlb, 8)], 0);
        assert_eq!(divided(&serial, 12, 20), other, "that was another translation");
    }

    #[test]
    fn a_wait_for_a_walker_counts_for_one_access() {
        let mut walk = timeline(&[(21, 75, Served::Llc)], 77);
        let mut divide = |from, until| {
            let mut parts = Vec::new();
            let left = walk.divide(from, until, |spent, cycles| parts.push((spent, cycles)));
            parts.retain(|&(_, cycles)| cycles > 0);
            (parts, left)
        };
        // What is known in another cycle is another translation, which leaves this one as it is.
        assert_eq!(divide(70, 76), (vec![(Spent::Tlb, 6)], 0));
        assert_eq!(divide(72, 77), (vec![(Spent::Queue, 5)], 4));
        // Two that merge with it, of which one is waited for.
        assert_eq!(divide(72, 77), (vec![(Spent::Tlb, 5)], 0));
        assert_eq!(divide(77, 77), (vec![], 0));
    }

    #[test]
    fn of_reads_made_at_once_the_one_counts_that_ended_it() {
        let reads = [
            (21, 160, Served::Dram),
            (21, 33, Served::L2),
            (33, 75, Served::Llc),
            (75, 90, Served::L2),
        ];
        // The read at 75 belongs to what is done after the walk.
        let (found, _) = divided(&timeline(&reads, 77), 13, 77);
        let walk =
            [(Spent::Read(Served::Llc), 42), (Spent::Read(Served::L2), 12), (Spent::LookUps, 1)];
        assert_eq!(found[1..], walk);
        let (last, _) = divided(&timeline(&reads, 162), 13, 162);
        assert_eq!(last[1..], [(Spent::Read(Served::Dram), 139), (Spent::LookUps, 1)]);
    }
}
