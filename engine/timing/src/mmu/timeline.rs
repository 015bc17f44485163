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
    /// Waiting for a page walker.
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
    /// Divides the cycles from `from` to `until` by what the translation known at `until` took them
    /// for, from the last to the first. They add up to `until - from`.
    pub fn divide(&self, from: u64, until: u64, mut add: impl FnMut(Spent, u64)) {
        let mut left = until;
        if until == self.ready {
            let began = (self.start + self.delay).max(from);
            self.divide_walk(began, left, &mut add);
            left = left.min(began);
            for (since, spent) in [(self.wanted, Spent::Queue), (self.missed, Spent::Mechanism)] {
                let since = since.max(from).min(left);
                add(spent, left - since);
                left = since;
            }
        }
        add(Spent::Tlb, left - from);
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

    /// A miss at 10; a mechanism until 13, a walker at 20, and 2 later; reads as given; known at
    /// `ready`.
    fn timeline(reads: &[(u64, u64, Served)], ready: u64) -> Timeline {
        let mut log = WalkLog::default();
        for &(asked, ready, awaited) in reads {
            log.note_times(asked, ready, awaited);
        }
        Timeline { missed: 10, wanted: 13, start: 20, delay: 2, ready, log }
    }

    fn divided(timeline: &Timeline, from: u64, until: u64) -> Vec<(Spent, u64)> {
        let mut parts = Vec::new();
        timeline.divide(from, until, |spent, cycles| {
            if cycles > 0 {
                parts.push((spent, cycles));
            }
        });
        parts.reverse();
        parts
    }

    #[test]
    fn a_walk_is_divided_by_what_it_waited_for() {
        let serial = timeline(&[(21, 33, Served::L2), (33, 75, Served::Llc)], 77);
        let walk = [(Spent::LookUps, 1), (Spent::Read(Served::L2), 12)];
        let all = [(Spent::Tlb, 9), (Spent::Mechanism, 3), (Spent::Queue, 9)];
        let last = (Spent::Read(Served::Llc), 42);
        assert_eq!(divided(&serial, 1, 77), [&all[..], &walk, &[last]].concat());
        assert_eq!(divided(&serial, 30, 77), [(Spent::Read(Served::L2), 5), last]);
        assert_eq!(divided(&serial, 60, 77), [(Spent::Read(Served::Llc), 17)]);
        assert_eq!(divided(&serial, 12, 20), [(Spent::Tlb, 8)], "that was another translation");
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
        let found = divided(&timeline(&reads, 77), 22, 77);
        assert_eq!(
            found,
            [(Spent::LookUps, 1), (Spent::Read(Served::L2), 12), (Spent::Read(Served::Llc), 42)]
        );
        let last = divided(&timeline(&reads, 162), 22, 162);
        assert_eq!(last, [(Spent::LookUps, 1), (Spent::Read(Served::Dram), 139)]);
    }
}
