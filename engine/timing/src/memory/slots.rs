//! A resource with a number of slots, booked in time: a bank, a bus.
//!
//! The core hands out requests in program order, but their times are not ordered: an instruction
//! that waited for its operands asks later than a younger one that did not. So slots are booked as
//! intervals, a request takes the first gap that fits, and at no time are more booked than exist.
//! Times that no request can have any more (before the core's dispatch) are forgotten.

/// From a cycle on, until the next step, so many slots are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    from: u64,
    used: u32,
}

/// `capacity` slots and when they are in use.
///
/// What is kept is the number in use as a function of time, as its steps. Neighbours differ, so that
/// a resource in full use for long is one step, however many requests made it so.
#[derive(Clone, Debug)]
pub struct Slots {
    capacity: u32,
    /// Number of steps at which to look for some to forget.
    crowd: u32,
    /// Ascending; nothing is in use before the first and from the last on.
    steps: Vec<Step>,
    /// Nothing is in use from here on: where the last step is, or was. Most requests come behind it, and need
    /// not look at the steps.
    end: u64,
}

/// Where a booking fits.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// The cycle in which it begins.
    pub from: u64,
    /// The first step behind its beginning, and the first that is not within it; `None` if it
    /// begins behind all that is booked.
    steps: Option<(usize, usize)>,
}

const CROWD: usize = 32;
/// Steps among which one is looked for one after the other.
const RECENT: usize = 16;

impl Slots {
    /// Slots of a resource that can serve `capacity` at once.
    pub fn new(capacity: u32) -> Self {
        Self { capacity, crowd: CROWD as u32, steps: Vec::with_capacity(CROWD + 2), end: 0 }
    }

    /// The step that holds at `at`; `None` before the first.
    #[inline]
    fn step_at(&self, at: u64) -> Option<usize> {
        // Most requests are among the latest; those of a core that is behind the others are not.
        let recent = self.steps.len().saturating_sub(RECENT);
        if recent > 0 && self.steps[recent].from > at {
            return self.steps[..recent].partition_point(|step| step.from <= at).checked_sub(1);
        }
        let found = self.steps[recent..].iter().rposition(|step| step.from <= at);
        found.map(|place| recent + place)
    }

    /// The first cycle from `at` on in which a slot is free.
    #[inline]
    pub fn earliest(&self, at: u64) -> u64 {
        if self.end <= at {
            return at;
        }
        let Some(first) = self.step_at(at) else { return at };
        if self.steps[first].used < self.capacity {
            return at;
        }
        self.free_after(first)
    }

    /// The first cycle with a slot free after the full step `full`.
    #[inline]
    fn free_after(&self, full: usize) -> u64 {
        let later = self.steps[full + 1..].iter().find(|step| step.used < self.capacity);
        later.map_or(u64::MAX, |step| step.from)
    }

    /// The first place from `start` on where a slot is free for `length` cycles, or if that is 0 for one.
    #[inline]
    pub fn fit(&self, start: u64, length: u64) -> Fit {
        if self.end <= start {
            return Fit { from: start, steps: None };
        }
        if length == 0 {
            return Fit { from: self.earliest(start), steps: None };
        }
        let (from, after, beyond) = self.gap(start, length);
        Fit { from, steps: Some((after, beyond)) }
    }

    /// Books `length` cycles at `fit`, which was found for them, and nothing has been booked since. No later
    /// call may name a time before `frontier`.
    #[inline]
    pub fn book_fit(&mut self, fit: Fit, length: u64, frontier: u64) {
        match fit.steps {
            Some((after, beyond)) if self.steps.len() < self.crowd as usize => {
                self.raise(after, beyond, fit.from, fit.from + length);
            }
            _ => {
                self.book(fit.from, fit.from + length, frontier);
            }
        }
    }

    /// Books `[start, end)`, later by as much as is needed for a slot to be free all the while.
    /// Returns that delay in cycles. No later call may name a time before `frontier`.
    #[inline]
    pub fn book(&mut self, start: u64, end: u64, frontier: u64) -> u64 {
        if end <= start {
            return 0;
        }
        if self.end <= frontier {
            // All are over. So the steps of what is idle in between stay in one line of the
            // simulator's machine.
            self.steps.clear();
        } else if self.steps.len() >= self.crowd as usize {
            self.forget(frontier);
        }
        if self.end < start {
            self.steps.extend([Step { from: start, used: 1 }, Step { from: end, used: 0 }]);
            self.end = end;
            return 0;
        }
        if self.book_at_end(start, end) {
            return 0;
        }
        self.book_among(start, end - start) - start
    }

    /// Books `[start, end)` if a slot is free, it begins after all others but the last step, at
    /// which they end, and ends behind that: then steps need not be searched or moved. False if it
    /// is not so.
    #[inline]
    fn book_at_end(&mut self, start: u64, end: u64) -> bool {
        let [rest @ .., before, last] = &mut self.steps[..] else { return false };
        let last_end = last.from;
        if start < before.from || end <= last_end {
            return false;
        }
        if start == last_end {
            if before.used == 1 {
                last.from = end;
                self.end = end;
                return true;
            }
            last.used = 1;
        } else if before.used >= self.capacity {
            return false;
        } else if start > before.from {
            *last = Step { from: start, used: before.used + 1 };
            self.steps.push(Step { from: last_end, used: 1 });
        } else if rest.last().is_some_and(|step| step.used == before.used + 1) {
            *before = Step { from: last_end, used: 1 };
            *last = Step { from: end, used: 0 };
            self.end = end;
            return true;
        } else {
            before.used += 1;
            last.used = 1;
        }
        self.steps.push(Step { from: end, used: 0 });
        self.end = end;
        true
    }

    /// Books `length` cycles from the first gap at or after `at`; returns where that begins. No later
    /// call may name a time before `frontier`.
    #[inline]
    pub fn take(&mut self, at: u64, length: u64, frontier: u64) -> u64 {
        if length == 0 { self.earliest(at) } else { at + self.book(at, at + length, frontier) }
    }

    /// The same of a length that is not 0, among what is booked.
    fn book_among(&mut self, start: u64, length: u64) -> u64 {
        let (from, after, beyond) = self.gap(start, length);
        self.raise(after, beyond, from, from + length);
        from
    }

    /// The first gap of `length` cycles at or after `start`: where it begins, and the steps within it.
    fn gap(&self, start: u64, length: u64) -> (u64, usize, usize) {
        let steps = &self.steps;
        let mut from = start;
        // `after` is the first step behind `from`, and `used` what is in use before it.
        let mut after = self.step_at(from).map_or(0, |at| at + 1);
        let mut used = if after == 0 { 0 } else { steps[after - 1].used };
        let mut beyond = after;
        while let Some(step) = steps.get(beyond) {
            if used >= self.capacity {
                (from, after) = (step.from, beyond + 1);
            } else if step.from >= from + length {
                break;
            }
            used = step.used;
            beyond += 1;
        }
        (from, after, beyond)
    }

    /// One more in use in `from..to`; the steps in between are `after..beyond`.
    fn raise(&mut self, after: usize, beyond: usize, from: u64, to: u64) {
        for step in &mut self.steps[after..beyond] {
            step.used += 1;
        }
        // What is in use at the end of the interval, this included.
        let starts = after > 0 && self.steps[after - 1].from == from;
        let before = if after == 0 { 0 } else { self.steps[after - 1].used };
        let last = if beyond > after { self.steps[beyond - 1].used } else { before + 1 };
        // The steps at both ends are new, or one more or less makes them equal to their neighbours.
        match self.steps.get(beyond) {
            Some(step) if step.from == to => {
                if step.used == last {
                    self.steps.remove(beyond);
                }
            }
            _ => self.steps.insert(beyond, Step { from: to, used: last - 1 }),
        }
        if !starts {
            self.steps.insert(after, Step { from, used: before + 1 });
        } else if after > 1 && self.steps[after - 2].used == before + 1 {
            self.steps.remove(after - 1);
        } else {
            self.steps[after - 1].used += 1;
        }
        self.end = self.steps.last().map_or(0, |last| last.from);
    }

    /// Forgets the steps that end by `frontier`.
    #[cold]
    fn forget(&mut self, frontier: u64) {
        if let Some(now) = self.step_at(frontier) {
            self.steps.drain(..now);
        }
        self.crowd = (2 * self.steps.len()).max(CROWD) as u32;
    }

    /// How many slots are in use at `at`.
    pub fn in_use(&self, at: u64) -> u32 {
        self.step_at(at).map_or(0, |step| self.steps[step].used)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_resource_makes_wait_until_a_slot_is_free() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.book(10, 20, 0), 0);
        assert_eq!(slots.book(12, 40, 0), 0);
        assert_eq!(slots.earliest(15), 20);
        assert_eq!(slots.earliest(5), 5);
        assert_eq!(slots.earliest(30), 30);
    }

    #[test]
    fn a_late_request_for_an_early_time_takes_the_gap() {
        let mut slots = Slots::new(1);
        assert_eq!(slots.book(100, 200, 0), 0);
        assert_eq!(slots.book(40, 90, 0), 0);
        assert_eq!(slots.book(80, 100, 0), 120, "it does not fit before 100");
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut slots = Slots::new(1);
        for n in 0..10_000 {
            assert_eq!(slots.book(10 * n, 10 * n + 5, 10 * n), 0);
        }
        assert_eq!(slots.steps.len(), 2, "all but the last are over");
        // What stays in use for long keeps the steps before it, until there are many.
        assert_eq!(slots.book(100_000, 1_000_000, 99_990), 0);
        let mut slots = Slots { capacity: 2, ..slots };
        for n in 10_000..20_000 {
            assert_eq!(slots.book(10 * n, 10 * n + 5, 10 * n), 0);
        }
        assert!(slots.steps.len() <= CROWD + 2);
    }

    proptest! {
        #[test]
        fn never_more_than_there_are(
            capacity in 1u32..5,
            pace in prop::sample::select(vec![1u64, 10, 100]),
            requests in prop::collection::vec((0u64..200, 1u64..50, 0u64..3, any::<bool>()), 1..100),
        ) {
            let mut slots = Slots::new(capacity);
            let mut booked: Vec<(u64, u64)> = Vec::new();
            let mut frontier = 0;
            for (at, length, passed, at_fit) in requests {
                frontier += passed * pace;
                let at = frontier + at;
                let in_use = |t: u64| booked.iter().filter(|&&(s, e)| s <= t && t < e).count();
                prop_assert_eq!(slots.in_use(at) as usize, in_use(at));
                let start = slots.earliest(at);
                prop_assert!((at..start).all(|t| in_use(t) == capacity as usize));
                prop_assert!(in_use(start) < capacity as usize);
                let fit = slots.fit(at, length);
                let delay = fit.from - start;
                if at_fit {
                    slots.book_fit(fit, length, frontier);
                } else {
                    prop_assert_eq!(slots.book(start, start + length, frontier), delay);
                }
                // Some cycle of every earlier start is full: the delay is the smallest.
                let fits = |from: u64| (from..from + length).all(|t| in_use(t) < capacity as usize);
                prop_assert!(fits(start + delay));
                prop_assert!((start..start + delay).all(|from| !fits(from)));
                booked.push((start + delay, start + delay + length));
                prop_assert!(slots.steps.windows(2).all(|s| s[0].from < s[1].from && s[0].used != s[1].used));
                prop_assert_eq!(slots.steps.last(), Some(&Step { from: slots.end, used: 0 }));
            }
        }
    }
}
