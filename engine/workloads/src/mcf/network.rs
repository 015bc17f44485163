//! What is scheduled: trips, a depot, and the arcs between them.

use super::{DEADHEAD, DEPOT_WAY, ROOT, VEHICLE};
use crate::rng::mix;

/// The arcs: first those from the depot, then those to it, then the deadheads.
pub(super) struct Network {
    pub(super) trips: u64,
    pub(super) deadheads: u64,
    pub(super) seed: u64,
}

impl Network {
    pub(super) fn arcs(&self) -> u64 {
        2 * self.trips + self.deadheads
    }

    pub(super) fn depot(&self) -> u32 {
        2 * self.trips as u32 + 1
    }

    /// Tail, head and cost.
    #[inline]
    pub(super) fn arc(&self, arc: u64) -> (u32, u32, i64) {
        let (trips, depot) = (self.trips, self.depot());
        let (start, end) = (|trip: u64| 1 + trip as u32, |trip: u64| (1 + trips + trip) as u32);
        if arc < trips {
            return (depot, start(arc), VEHICLE + DEPOT_WAY);
        } else if arc < 2 * trips {
            return (end(arc - trips), depot, DEPOT_WAY);
        } else if arc >= self.arcs() {
            return (depot, ROOT, 0);
        }
        let pairs = u128::from(trips * (trips - 1) / 2);
        let place = |number| (u128::from(number) * pairs / u128::from(self.deadheads)) as u64;
        let number = arc - 2 * trips;
        let (from, to) = (place(number), place(number + 1));
        let pair = from + mix(self.seed ^ number) % (to - from);
        // Pairs are numbered (0, 1), (0, 2), (1, 2), (0, 3), …
        let mut later = (((1 + 8 * pair) as f64).sqrt() as u64).div_ceil(2);
        while later * (later - 1) / 2 > pair {
            later -= 1;
        }
        while (later + 1) * later / 2 <= pair {
            later += 1;
        }
        let (tail, head) = (end(pair - later * (later - 1) / 2), start(later));
        let place = |node: u32| {
            let word = mix(!self.seed ^ u64::from(node)).cast_signed();
            (word & 0xff, word >> 8 & 0xff)
        };
        let (a, b) = (place(tail), place(head));
        (tail, head, DEADHEAD + (a.0 - b.0).abs() + (a.1 - b.1).abs())
    }
}
