//! A resource with a number of slots, booked in time: page walkers, MSHRs, a bank, a bus.
//!
//! The core hands out requests in program order, but their times are not ordered: an instruction
//! that waited for its operands asks later than a younger one that did not. So slots are booked as
//! intervals, a request takes the first gap that fits, and at no time are more booked than exist.
//! Times that no request can have any more (before the core's dispatch) are forgotten.

/// One booking: a half-open interval of cycles, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Booking {
    /// First cycle.
    pub start: u64,
    /// Cycle after the last.
    pub end: u64,
    /// What for: a line number, say.
    pub tag: u64,
}

/// `capacity` slots and their bookings.
#[derive(Clone, Debug)]
pub struct Slots {
    capacity: usize,
    bookings: Vec<Booking>,
    /// Every booking ends by then.
    last_end: u64,
}

impl Slots {
    /// Slots of a resource that can serve `capacity` at once.
    pub fn new(capacity: u32) -> Self {
        Self { capacity: capacity as usize, bookings: Vec::with_capacity(64), last_end: 0 }
    }

    /// Forgets what ended before `frontier`; no later call may name an earlier time.
    #[inline]
    pub fn forget(&mut self, frontier: u64) {
        if self.last_end <= frontier {
            self.bookings.clear();
        } else {
            self.bookings.retain(|b| b.end > frontier);
        }
    }

    /// The first cycle from `at` on in which a slot is free. `frontier`: see [`Slots::forget`].
    #[inline]
    pub fn earliest(&mut self, at: u64, frontier: u64) -> u64 {
        if self.bookings.len() < self.capacity {
            return at;
        }
        if at >= self.last_end {
            self.forget(frontier);
            return at;
        }
        self.forget(frontier);
        let mut at = at;
        while self.in_use(at) >= self.capacity {
            let next = self.bookings.iter().filter(|b| b.start <= at && at < b.end);
            at = next.map(|b| b.end).min().unwrap_or(at);
        }
        at
    }

    /// Books `[start, end)`, later by as much as is needed for a slot to be free all the while.
    /// Returns that delay in cycles.
    #[inline]
    pub fn book(&mut self, start: u64, end: u64, tag: u64, frontier: u64) -> u64 {
        let delay = if self.bookings.len() < self.capacity || start >= self.last_end {
            0
        } else {
            self.delay(start, end)
        };
        if self.bookings.len() >= 4 * self.capacity.max(16) {
            self.forget(frontier);
        }
        self.last_end = self.last_end.max(end + delay);
        if end > start {
            self.bookings.push(Booking { start: start + delay, end: end + delay, tag });
        }
        delay
    }

    /// The booking made last for `tag`, if it is remembered.
    #[inline]
    pub fn find(&self, tag: u64) -> Option<Booking> {
        self.bookings.iter().rev().find(|b| b.tag == tag).copied()
    }

    /// How many slots are in use at `at`.
    pub fn in_use(&self, at: u64) -> usize {
        self.bookings.iter().filter(|b| b.start <= at && at < b.end).count()
    }

    /// Smallest delay after which `[start, end)` fits.
    fn delay(&self, start: u64, end: u64) -> u64 {
        let length = end - start;
        let mut from = start;
        loop {
            // Use is highest at `from` or where a booking within the interval starts.
            let to = from + length;
            let crowded = |at: u64| self.in_use(at) >= self.capacity;
            let within = self.bookings.iter().map(|b| b.start).filter(|&s| s > from && s < to);
            let Some(full) = std::iter::once(from).chain(within).filter(|&at| crowded(at)).max()
            else {
                return from - start;
            };
            // Nothing that contains `full` fits, so the next try starts where a slot gets free there.
            let ends = self.bookings.iter().filter(|b| b.start <= full && full < b.end);
            from = ends.map(|b| b.end).min().unwrap_or(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_resource_makes_wait_until_a_slot_is_free() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.book(10, 20, 0, 0), 0);
        assert_eq!(slots.book(12, 40, 0, 0), 0);
        assert_eq!(slots.earliest(15, 0), 20);
        assert_eq!(slots.earliest(5, 0), 5);
        assert_eq!(slots.earliest(30, 0), 30);
    }

    #[test]
    fn a_late_request_for_an_early_time_takes_the_gap() {
        let mut slots = Slots::new(1);
        assert_eq!(slots.book(100, 200, 0, 0), 0);
        assert_eq!(slots.book(40, 90, 0, 0), 0);
        assert_eq!(slots.book(80, 100, 0, 0), 120, "it does not fit before 100");
    }

    proptest! {
        #[test]
        fn never_more_than_there_are(
            capacity in 1u32..5,
            requests in prop::collection::vec((0u64..200, 1u64..50), 1..60),
        ) {
            let mut slots = Slots::new(capacity);
            let mut booked: Vec<(u64, u64)> = Vec::new();
            for (at, length) in requests {
                let start = slots.earliest(at, 0);
                prop_assert!(start >= at);
                let delay = slots.book(start, start + length, 0, 0);
                // Some cycle of every earlier start is full: the delay is the smallest.
                let fits = |from: u64| (from..from + length).all(|t| {
                    booked.iter().filter(|&&(s, e)| s <= t && t < e).count() < capacity as usize
                });
                prop_assert!(fits(start + delay));
                prop_assert!((start..start + delay).all(|from| !fits(from)));
                booked.push((start + delay, start + delay + length));
            }
        }
    }
}
