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

/// Chunks after the frontier that are kept at most. Only after a long page fault is a request so much later
/// than those before it, and then all that follow are, too.
const MOST_CHUNKS: usize = 1 << 13;

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

    /// The first place from `start` on where a register is free for as long as `[start, end)` lasts; nothing
    /// is booked. No later call may name a time before `frontier`.
    #[inline]
    pub fn fit(&mut self, start: u64, end: u64, frontier: u64) -> Fit {
        self.frontier = self.frontier.max(frontier - frontier % CHUNK as u64);
        let from = start.max(self.frontier);
        if end <= from {
            return Fit { start, end, is_roomy: true };
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
                return Fit { start, end, is_roomy: true };
            }
        }
        self.fit_among(start, end - start)
    }

    /// [`Mshrs::fit`] where some chunk is touched by as many requests as there are registers, or
    /// is not kept, or there are many chunks.
    #[inline(never)]
    fn fit_among(&mut self, start: u64, length: u64) -> Fit {
        let mut at = start;
        loop {
            let (from, end) = (at.max(self.frontier), at + length);
            if end > from {
                if end >= self.horizon {
                    self.reach(start.max(self.frontier), end);
                }
                if let Some(full) = self.last_full(from, end) {
                    at = full + 1;
                    continue;
                }
            }
            return Fit { start: at, end, is_roomy: false };
        }
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

    /// The last cycle of `start..end` in which all registers are in use.
    fn last_full(&mut self, start: u64, end: u64) -> Option<u64> {
        let (base, capacity) = (self.base, self.capacity);
        self.pieces(start, end).find_map(|(number, cycles)| {
            let used = self.crowded(number)?;
            // Of a known number, all are looked at together.
            if used.iter().fold(0, |most, &used| most.max(used)) < capacity {
                return None;
            }
            let first = number * CHUNK + cycles.start;
            let full = used[cycles].iter().rposition(|&used| used >= capacity)?;
            Some(base + (first + full) as u64)
        })
    }

    /// Takes a register in `start..end`, in which one is free all the while.
    fn take(&mut self, start: u64, end: u64) {
        let ((first, taken), (last, given)) = (place(start - self.base), place(end - self.base));
        for (number, cycles) in self.pieces(start, end) {
            let touching = &mut self.touching[number];
            let chunk = &mut self.chunks[number];
            if *touching == CROWDED {
                chunk.taken[cycles].iter_mut().for_each(|used| *used += 1);
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
        /// Books the first place from `start` on; returns how much later it is.
        fn book(&mut self, start: u64, end: u64, frontier: u64) -> u64 {
            let fit = self.fit(start, end, frontier);
            self.book_fit(fit);
            fit.start - start
        }
    }

    #[test]
    fn a_full_cache_makes_wait_until_a_register_is_free() {
        let mut mshrs = Mshrs::new(2);
        assert_eq!(mshrs.book(10, 20, 0), 0);
        assert_eq!(mshrs.book(12, 40, 0), 0);
        assert_eq!(mshrs.earliest(15), 20);
        assert_eq!(mshrs.earliest(5), 5);
        assert_eq!(mshrs.earliest(30), 30);
        assert_eq!(mshrs.book(5, 15, 0), 15, "from 10 to 20 there is no room");
    }

    #[test]
    fn a_miss_of_a_million_cycles_makes_wait_too() {
        let mut mshrs = Mshrs::new(1);
        assert_eq!(mshrs.book(0, 1_000_000, 0), 0);
        assert_eq!(mshrs.earliest(10), 1_000_000);
        assert_eq!(mshrs.book(10, 1_000_010, 10), 999_990);
        assert_eq!(mshrs.book(20, 30, 20), 1_999_980);
    }

    #[test]
    fn it_keeps_as_many_cycles_as_it_takes() {
        let mut mshrs = Mshrs::new(1);
        let far = (10 * CHUNKS * CHUNK) as u64;
        assert_eq!(mshrs.book(5, 10, 0), 0);
        assert_eq!(mshrs.book(far, far + 10, 0), 0);
        assert_eq!((mshrs.earliest(5), mshrs.earliest(far)), (10, far + 10));
        assert_eq!(mshrs.book(7, far, 0), far + 3, "it fits behind both");
    }

    #[test]
    fn it_forgets_what_a_jump_leaves_behind() {
        let mut mshrs = Mshrs::new(1);
        let far = 1 << 60;
        assert_eq!(mshrs.book(5, 10, 0), 0);
        assert_eq!(mshrs.book(far + 7, far + 50, 0), 0);
        assert_eq!((mshrs.earliest(far + 20), mshrs.chunks.len()), (far + 50, CHUNKS));
        // Requests of the same instruction can still name times before it.
        assert_eq!((mshrs.earliest(5), mshrs.book(5, 10, 5)), (5, 0));
        assert_eq!(mshrs.book(far - 100, far + 10, 5), 150, "up to the other's end");
        assert_eq!(mshrs.earliest(far + 100), far + 160);
    }

    proptest! {
        #[test]
        fn never_more_than_there_are(
            capacity in 1u8..6,
            longest in prop::sample::select(vec![2u64, 40, 90, 1500]),
            requests in prop::collection::vec((0u64..200, 0u64..1500, 0u64..40), 1..200),
        ) {
            let mut mshrs = Mshrs::new(capacity.into());
            let mut booked: Vec<(u64, u64)> = Vec::new();
            let mut frontier = 0;
            for (at, length, passed) in requests {
                let length = 1 + length % longest;
                frontier += passed * longest / 90;
                let at = frontier + at;
                let full = |t: u64| {
                    booked.iter().filter(|&&(s, e)| s <= t && t < e).count() >= capacity.into()
                };
                let start = mshrs.earliest(at);
                prop_assert!((at..start).all(full));
                prop_assert!(!full(start));
                let delay = mshrs.book(start, start + length, frontier);
                // Some cycle of every earlier start is full: the delay is the smallest.
                let fits = |from: u64| !(from..from + length).any(full);
                prop_assert!(fits(start + delay));
                prop_assert!((start..start + delay).all(|from| !fits(from)));
                booked.push((start + delay, start + delay + length));
            }
        }
    }
}
