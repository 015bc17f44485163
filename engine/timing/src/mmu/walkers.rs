//! The page walkers of a core, booked in time.
//!
//! Walks come in the order of the program, and not of time (see [`crate::memory::slots`]): a walker that an older
//! instruction's walk has from some cycle on may be free before it. Whether the time in between is enough for
//! another walk is known only when that has been made, as its reads wait for the caches' MSHRs and for memory.
//! So a walk begins where a walker is free for as long as walks have lately taken. If it takes longer and does
//! not fit, its end is later: then its reads were made in cycles in which the walker was another walk's.
//! Begun in any cycle in which a walker is free, most walks would be made so where many wait.

use crate::memory::slots::Slots;

/// Of so many walks the last ones' lengths are averaged, each one's weight is less by this share than the next
/// one's.
const AVERAGED: u64 = 8;

/// A core's page walkers.
#[derive(Clone, Debug)]
pub struct Walkers {
    slots: Slots,
    /// [`AVERAGED`] times the average length of a walk in cycles.
    lengths: u64,
}

impl Walkers {
    /// So many, of which each makes one walk at a time.
    pub fn new(concurrent: u32) -> Self {
        Self { slots: Slots::new(concurrent), lengths: 0 }
    }

    /// The first cycle from `at` on in which a walk can begin.
    #[inline]
    pub fn earliest(&self, at: u64) -> u64 {
        self.slots.fit(at, self.lengths / AVERAGED).from
    }

    /// Books a walker for a walk that was made in `[start, end)`, later by as much as is needed for one to be
    /// free all the while. Returns that delay in cycles. No later call may name a time before `frontier`.
    #[inline]
    pub fn book(&mut self, start: u64, end: u64, frontier: u64) -> u64 {
        self.lengths = self.lengths - self.lengths / AVERAGED + (end - start);
        self.slots.book(start, end, frontier)
    }

    /// How many make a walk at `at`.
    #[cfg(test)]
    pub fn in_use(&self, at: u64) -> u32 {
        self.slots.in_use(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_begins_where_one_as_long_as_others_fits() {
        let mut walkers = Walkers::new(1);
        // Nothing is known of walks yet.
        assert_eq!(walkers.book(1000, 1080, 0), 0);
        // The average of eight is a tenth of that: 80 / 8.
        assert_eq!([989, 990, 991, 1000].map(|at| walkers.earliest(at)), [989, 990, 1080, 1080]);
        // Of many, it is theirs.
        for walk in 1..100 {
            assert_eq!(walkers.book(1000 * walk + 1000, 1000 * walk + 1080, 0), 0);
        }
        let average = walkers.lengths / AVERAGED;
        assert!((70..=80).contains(&average), "{average}");
        assert_eq!([920, 1000 - average].map(|at| walkers.earliest(at)), [920, 1000 - average]);
        assert_eq!(walkers.earliest(1001 - average), 1080);
        // One that takes longer all the same ends later.
        assert_eq!(walkers.book(900, 1010, 0), 180);
    }
}
