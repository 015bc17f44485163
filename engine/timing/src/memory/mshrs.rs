//! The miss-status holding registers of a cache, booked in time.
//!
//! Requests come in program order, but their times are not ordered (see [`crate::memory::slots`]),
//! and many are on their way at once, each for a few hundred cycles. What is kept is how many
//! registers are taken and given back in each cycle: a request changes two of these numbers. Cycles
//! stand together in chunks, and of each it is known how many requests touch it. Most requests find
//! fewer in all their chunks than there are registers, and fit. A chunk that is crowded has the
//! registers in use in each cycle instead, which are looked at and counted up one by one.

use std::ops::Range;

/// Cycles of a chunk.
const CHUNK: usize = 32;
/// Chunks that are looked at together, as many as a vector register has numbers.
const TOGETHER: usize = 16;
/// Chunks that are kept at first: twice as many as most machines are ever ahead of the frontier.
const CHUNKS: usize = 256;

/// Chunks after the frontier that are kept at most: 67 million cycles. A core that waits for memory all the
/// time is 20 million ahead of another at the end of its turn. Only after a longer page fault is a
/// request so much later than those before it, and then all that follow are, too.
const MOST_CHUNKS: usize = 1 << 21;

/// `FIRST[n]`: all bits of each of the first `n` numbers of those that are looked at together.
const FIRST: [[u16; TOGETHER]; TOGETHER + 1] = {
    let mut first = [[0; TOGETHER]; TOGETHER + 1];
    let mut n = 1;
    while n <= TOGETHER {
        first[n] = first[n - 1];
        first[n][n - 1] = u16::MAX;
        n += 1;
    }
    first
};

/// Registers in the cycles of a chunk.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// Those that are taken, or in a crowded chunk those in use.
    taken: [u8; CHUNK],
    /// Those that are given back.
    given: [u8; CHUNK],
}

impl Chunk {
    const EMPTY: Self = Self { taken: [0; CHUNK], given: [0; CHUNK] };
}

/// In place of the number of requests that touch it, a chunk that is crowded has this one.
const CROWDED: u16 = u16::MAX;

/// Registers of one cache.
#[derive(Clone, Debug)]
pub struct Mshrs {
    capacity: u8,
    /// The first cycle that is kept.
    base: u64,
    /// The first cycle of the chunk that is the first a request can still name. In all before it nothing is
    /// taken to be in use.
    frontier: u64,
    /// A request that ends before this cycle ends in a chunk that is kept.
    horizon: u64,
    chunks: Vec<Chunk>,
    /// By chunk: requests that have a register in it, or give one back in its first cycle. There are
    /// [`TOGETHER`] more than chunks, always 0.
    touching: Vec<u16>,
}

/// Where a register is free.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// The cycle in which the request begins.
    pub start: u64,
    /// The first cycle in which it is over.
    pub end: u64,
    /// Cycles in between in which it waits.
    pub waits: u64,
    /// No chunk of these cycles is crowded, and they are few.
    is_roomy: bool,
}

/// The number of the chunk that a cycle is in, and its place there; cycles are counted from a chunk's first.
#[inline]
fn place(cycle: u64) -> (usize, usize) {
    (cycle as usize / CHUNK, cycle as usize % CHUNK)
}

impl Mshrs {
    /// Registers of a cache that has `capacity`, 254 at most.
    pub fn new(capacity: u32) -> Self {
        Self {
            capacity: capacity.min(254) as u8,
            base: 0,
            frontier: 0,
            horizon: (CHUNKS * CHUNK) as u64,
            chunks: vec![Chunk::EMPTY; CHUNKS],
            touching: vec![0; CHUNKS + TOGETHER],
        }
    }

    /// The first cycle from `at` on in which a register is free.
    #[inline]
    pub fn earliest(&mut self, at: u64) -> u64 {
        if at < self.frontier {
            return at;
        }
        let (number, _) = place(at - self.base);
        match self.touching.get(number) {
            Some(&touching) if touching >= self.capacity.into() => self.free_after(at),
            _ => at,
        }
    }

    /// The same where as many requests touch the chunk as there are registers, or more.
    #[inline(never)]
    fn free_after(&mut self, at: u64) -> u64 {
        let (capacity, (mut number, mut skip)) = (self.capacity, place(at - self.base));
        while let Some(used) = self.crowded(number) {
            let free = used[skip..].iter().position(|&used| used < capacity);
            if let Some(free) = free {
                return self.base + (number * CHUNK + skip + free) as u64;
            }
            (number, skip) = (number + 1, 0);
        }
        at.max(self.base + (number * CHUNK) as u64)
    }

    /// The registers in use in each cycle of a chunk, if as many requests touch it as there are
    /// registers: from now on it is crowded.
    #[inline]
    fn crowded(&mut self, number: usize) -> Option<&mut [u8; CHUNK]> {
        let touching = &mut self.touching[number];
        if *touching < self.capacity.into() {
            return None;
        }
        let Chunk { taken, given } = &mut self.chunks[number];
        if *touching != CROWDED {
            let before = *touching - taken.iter().map(|&taken| u16::from(taken)).sum::<u16>();
            let mut used = before as u8;
            for (taken, given) in taken.iter_mut().zip(given) {
                used = used.wrapping_add(*taken).wrapping_sub(*given);
                *taken = used;
            }
            *touching = CROWDED;
        }
        Some(taken)
    }

    /// Where a request has a register that goes on at `start`, in which one is free, and takes as long as
    /// `[start, end)` lasts; nothing is booked. In cycles in which older instructions' requests have all of
    /// them it waits, and is over later by as many. No later call may name a time before `frontier`.
    #[inline]
    pub fn fit(&mut self, start: u64, end: u64, frontier: u64) -> Fit {
        self.frontier = self.frontier.max(frontier - frontier % CHUNK as u64);
        let from = start.max(self.frontier);
        if end <= from {
            return Fit { start, end, waits: 0, is_roomy: true };
        }
        let ((first, _), (last, _)) = (place(from - self.base), place(end - self.base));
        if end < self.horizon
            && let Some(of_those) = FIRST.get(last + 1 - first)
            && let Some(touching) = self.touching[first..].first_chunk::<TOGETHER>()
        {
            // By how much any is more than leaves a register free: whether all bits are 0, vector
            // units find out at once, but the greatest number in several steps.
            let most = u16::from(self.capacity) - 1;
            let mut excess = 0;
            for (touching, of_those) in touching.iter().zip(of_those) {
                excess |= (touching & of_those).saturating_sub(most);
            }
            if excess == 0 {
                return Fit { start, end, waits: 0, is_roomy: true };
            }
        }
        self.fit_among(start, end)
    }

    /// [`Mshrs::fit`] where some chunk is touched by as many requests as there are registers, or
    /// is not kept, or there are many chunks.
    #[inline(never)]
    fn fit_among(&mut self, start: u64, earliest_end: u64) -> Fit {
        let mut looked_at = start.max(self.frontier);
        let mut end = earliest_end;
        while looked_at < end {
            if end >= self.horizon {
                self.reach(start.max(self.frontier), end);
            }
            let full = self.full(looked_at, end);
            (looked_at, end) = (end, end + full);
        }
        Fit { start, end, waits: end - earliest_end, is_roomy: false }
    }

    /// By how much earlier a request would be over that has a register in `start..end`, had it asked at `at`.
    pub fn gain(&mut self, at: u64, start: u64, end: u64) -> u64 {
        let from = at.max(self.frontier);
        if from >= start {
            return start.saturating_sub(at);
        }
        let free = start - at - self.full(from, start);
        if free < end - start {
            return free;
        }
        let earliest = self.earliest(at);
        end - self.fit(earliest, earliest + (end - start), 0).end
    }

    /// Books a register at `fit`; nothing has been booked since that was found.
    #[inline]
    pub fn book_fit(&mut self, fit: Fit) {
        let (from, end) = (fit.start.max(self.frontier), fit.end);
        if end <= from {
            return;
        }
        let ((first, taken), (last, given)) = (place(from - self.base), place(end - self.base));
        if fit.is_roomy
            && let Some(of_those) = FIRST.get(last + 1 - first)
            && let Some(touching) = self.touching[first..].first_chunk_mut::<TOGETHER>()
        {
            for (touching, of_those) in touching.iter_mut().zip(of_those) {
                *touching += of_those & 1;
            }
            self.chunks[first].taken[taken] += 1;
            self.chunks[last].given[given] += 1;
            return;
        }
        self.take(from, end);
    }

    /// Registers in use in a cycle.
    #[cfg(test)]
    pub fn in_use(&self, at: u64) -> u8 {
        let mut all = self.clone();
        // Of so few, every chunk is crowded.
        all.capacity = 0;
        let (number, cycle) = place(at - self.base);
        all.crowded(number).map_or(0, |used| used[cycle])
    }

    /// The chunks that `start..end` is in, the last one first, and the cycles there.
    fn pieces(&self, start: u64, end: u64) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let ((first, from), (last, to)) = (place(start - self.base), place(end - self.base));
        (first..=last).rev().map(move |number| {
            let from = if number == first { from } else { 0 };
            (number, from..if number == last { to } else { CHUNK })
        })
    }

    /// In how many cycles of `start..end` all registers are in use.
    fn full(&mut self, start: u64, end: u64) -> u64 {
        let capacity = self.capacity;
        let mut full = 0;
        for (number, cycles) in self.pieces(start, end) {
            let Some(used) = self.crowded(number) else { continue };
            // Of a known number, all are looked at together.
            if used.iter().fold(0, |most, &used| most.max(used)) >= capacity {
                full += used[cycles].iter().filter(|&&used| used >= capacity).count();
            }
        }
        full as u64
    }

    /// Takes a register in those cycles of `start..end` in which one is free.
    fn take(&mut self, start: u64, end: u64) {
        let capacity = self.capacity;
        let ((first, taken), (last, given)) = (place(start - self.base), place(end - self.base));
        for (number, cycles) in self.pieces(start, end) {
            let touching = &mut self.touching[number];
            let chunk = &mut self.chunks[number];
            if *touching == CROWDED {
                for used in &mut chunk.taken[cycles] {
                    *used += u8::from(*used < capacity);
                }
                continue;
            }
            *touching += 1;
            chunk.taken[taken] += u8::from(number == first);
            chunk.given[given] += u8::from(number == last);
        }
    }

    /// Forgets the chunks before the frontier, and keeps those up to `end`; or, of a request that
    /// begins too far from the frontier, none but those from `start` on, where the frontier then
    /// is.
    #[cold]
    fn reach(&mut self, start: u64, end: u64) {
        let chunk = CHUNK as u64;
        let jump = start / chunk - self.frontier / chunk >= MOST_CHUNKS as u64;
        let kept = self.chunks.len();
        let gone = if jump {
            self.frontier = start - start % chunk;
            kept
        } else {
            kept.min(place(self.frontier - self.base).0)
        };
        self.base = self.frontier;
        self.chunks.drain(..gone);
        self.touching.drain(..gone);
        let needed = 2 * (place(end - self.base).0 + 1);
        let kept = kept.max(needed.next_power_of_two());
        self.chunks.resize(kept, Chunk::EMPTY);
        self.touching.resize(kept + TOGETHER, 0);
        // Requests that are too far from the frontier come here.
        self.horizon = self.base + (kept.min(MOST_CHUNKS) * CHUNK) as u64;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Mshrs {
        /// Books a register from the first cycle from `start` on in which one is free, for as long as
        /// `[start, end)` lasts. Returns from when to when.
        fn book(&mut self, start: u64, end: u64, frontier: u64) -> (u64, u64) {
            let first = self.earliest(start);
            let fit = self.fit(first, first + (end - start), frontier);
            self.book_fit(fit);
            (fit.start, fit.end)
        }
    }

    #[test]
    fn requests_of_another_core_that_is_far_ahead_leave_those_before_them_as_they_are() {
        let mut mshrs = Mshrs::new(1);
        assert_eq!(mshrs.book(0, 100, 0), (0, 100));
        assert_eq!(mshrs.book(20_000_000, 20_000_100, 0), (20_000_000, 20_000_100));
        assert_eq!(mshrs.book(50, 150, 0), (100, 200));
        assert_eq!(mshrs.book(20_000_050, 20_000_150, 0), (20_000_100, 20_000_200));
    }

    #[test]
    fn a_full_cache_makes_wait_until_a_register_is_free() {
        let mut mshrs = Mshrs::new(2);
        assert_eq!(mshrs.book(10, 20, 0), (10, 20));
        assert_eq!(mshrs.book(12, 40, 0), (12, 40));
        assert_eq!(mshrs.earliest(15), 20);
        assert_eq!(mshrs.earliest(5), 5);
        assert_eq!(mshrs.earliest(30), 30);
        assert_eq!(mshrs.book(5, 15, 0), (5, 23), "from 12 to 20 there is none");
        assert_eq!(mshrs.book(5, 15, 0), (5, 28), "from 10 to 23 there is none");
    }

    #[test]
    fn a_miss_of_a_million_cycles_makes_wait_too() {
        let mut mshrs = Mshrs::new(1);
        assert_eq!(mshrs.book(0, 1_000_000, 0), (0, 1_000_000));
        assert_eq!(mshrs.earliest(10), 1_000_000);
        assert_eq!(mshrs.book(10, 1_000_010, 10), (1_000_000, 2_000_000));
    }

    #[test]
    fn it_keeps_as_many_cycles_as_it_takes() {
        let mut mshrs = Mshrs::new(1);
        let far = (10 * CHUNKS * CHUNK) as u64;
        assert_eq!(mshrs.book(5, 10, 0), (5, 10));
        assert_eq!(mshrs.book(far, far + 10, 0), (far, far + 10));
        assert_eq!((mshrs.earliest(5), mshrs.earliest(far)), (10, far + 10));
        assert_eq!(mshrs.book(7, far, 0), (10, far + 13), "it is over behind both");
    }

    #[test]
    fn it_forgets_what_a_jump_leaves_behind() {
        let mut mshrs = Mshrs::new(1);
        let far = 1 << 60;
        assert_eq!(mshrs.book(5, 10, 0), (5, 10));
        assert_eq!(mshrs.book(far + 7, far + 50, 0), (far + 7, far + 50));
        assert_eq!((mshrs.earliest(far + 20), mshrs.chunks.len()), (far + 50, CHUNKS));
        // Requests of the same instruction can still name times before it.
        assert_eq!((mshrs.earliest(5), mshrs.book(5, 10, 5)), (5, (5, 10)));
        assert_eq!(
            mshrs.book(far - 100, far + 10, 5),
            (far - 100, far + 53),
            "it waits for the other"
        );
        assert_eq!(mshrs.earliest(far + 20), far + 53);
    }

    #[test]
    fn had_it_asked_earlier_it_would_be_over_earlier_by_the_free_cycles() {
        let mut mshrs = Mshrs::new(1);
        assert_eq!(mshrs.book(100, 150, 0), (100, 150));
        assert_eq!(mshrs.book(120, 220, 0), (150, 250));
        assert_eq!([140, 150, 160].map(|at| mshrs.gain(at, 150, 250)), [0; 3]);
        assert_eq!([99, 90, 10].map(|at| mshrs.gain(at, 150, 250)), [1, 10, 90]);
        assert_eq!(mshrs.gain(0, 150, 250), 150, "it has all it needs before");
    }

    proptest! {
        #[test]
        fn never_more_than_there_are(
            capacity in 1u8..6,
            longest in prop::sample::select(vec![2u64, 40, 90, 1500]),
            requests in prop::collection::vec((0u64..200, 0u64..1500, 0u64..40), 1..200),
        ) {
            let mut mshrs = Mshrs::new(capacity.into());
            let mut used = vec![0; 1 << 20];
            let mut frontier = 0;
            for (at, length, passed) in requests {
                let length = 1 + length % longest;
                frontier += passed * longest / 90;
                let at = frontier + at;
                let start = mshrs.earliest(at);
                prop_assert!(used[at as usize..start as usize].iter().all(|&used| used == capacity));
                let (from, end) = mshrs.book(start, start + length, frontier);
                prop_assert_eq!(from, start);
                // It has a register in the first free cycles, and as many as it takes.
                let mut left = length;
                for (cycle, used) in used.iter_mut().enumerate().skip(start as usize) {
                    if *used < capacity {
                        (*used, left) = (*used + 1, left - 1);
                        prop_assert!(left < length || cycle as u64 == start);
                    }
                    if left == 0 {
                        prop_assert_eq!(end, cycle as u64 + 1);
                        break;
                    }
                }
            }
        }
    }
}
