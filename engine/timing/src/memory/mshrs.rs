//! The miss-status holding registers of a cache, booked in time.
//!
//! Requests come in program order, but their times are not ordered (see [`crate::memory::slots`]), and many
//! are on their way at once, each for a few hundred cycles. So what is kept is the number of registers
//! in use in every cycle: a byte for each, which vector instructions compare and count.

/// Cycles that are counted together, as many as a vector register has bytes.
const CHUNK: usize = 32;
type Chunk = [u8; CHUNK];
/// Chunks that are kept at first: more cycles than most machines are ever ahead of the frontier.
const CHUNKS: usize = 128;

/// Chunks that are kept at most. Only after a long page fault is a request so much later than those
/// before it, and then all that follow are, too.
const MOST_CHUNKS: u64 = 1 << 13;

/// `FIRST[n]`: one in each of the first `n` cycles of a chunk.
const FIRST: [Chunk; CHUNK + 1] = {
    let mut first = [[0; CHUNK]; CHUNK + 1];
    let mut n = 1;
    while n <= CHUNK {
        first[n] = first[n - 1];
        first[n][n - 1] = 1;
        n += 1;
    }
    first
};

/// Registers of one cache.
#[derive(Clone, Debug)]
pub struct Mshrs {
    capacity: u8,
    /// In use by cycle, in chunks, at the chunk's number modulo theirs, which is a power of two. Kept
    /// are the chunks from `frontier` on; all others are taken to be free.
    used: Vec<Chunk>,
    /// Number of the first chunk that is kept.
    frontier: u64,
}

/// The number of a cycle's chunk, and its place there.
#[inline]
fn place(cycle: u64) -> (u64, usize) {
    (cycle / CHUNK as u64, cycle as usize % CHUNK)
}

impl Mshrs {
    /// Registers of a cache that has `capacity`, 254 at most.
    pub fn new(capacity: u32) -> Self {
        let capacity = u8::try_from(capacity).unwrap_or(u8::MAX).min(u8::MAX - 1);
        Self { capacity, used: vec![[0; CHUNK]; CHUNKS], frontier: 0 }
    }

    /// The chunk of that number.
    #[inline]
    fn chunk(&mut self, number: u64) -> &mut Chunk {
        let place = number as usize & (self.used.len() - 1);
        &mut self.used[place]
    }

    /// The number of the first chunk that is not kept.
    #[inline]
    fn horizon(&self) -> u64 {
        self.frontier + self.used.len() as u64
    }

    /// The first cycle from `at` on in which a register is free.
    #[inline]
    pub fn earliest(&mut self, at: u64) -> u64 {
        let (chunk, within) = place(at);
        let kept = self.frontier..self.horizon();
        if !kept.contains(&chunk) || self.chunk(chunk)[within] < self.capacity {
            return at;
        }
        self.free_after(at)
    }

    fn free_after(&mut self, at: u64) -> u64 {
        let (mut chunk, within) = place(at);
        let mut skip = within;
        while chunk < self.horizon() {
            let capacity = self.capacity;
            let free = self.chunk(chunk)[skip..].iter().position(|&used| used < capacity);
            if let Some(free) = free {
                return chunk * CHUNK as u64 + (skip + free) as u64;
            }
            (chunk, skip) = (chunk + 1, 0);
        }
        chunk * CHUNK as u64
    }

    /// Books `[start, end)`, later by as much as is needed for a register to be free all the while.
    /// Returns that delay in cycles. No later call may name a time before `frontier`.
    #[inline]
    pub fn book(&mut self, start: u64, end: u64, frontier: u64) -> u64 {
        if end <= start {
            return 0;
        }
        self.advance(frontier);
        let mut from = start;
        while self.count_up(from, from + (end - start)) > self.capacity {
            from = self.retry_after(from, from + (end - start));
        }
        from - start
    }

    /// One more in each cycle of `start..end`; the largest number that this makes.
    #[inline]
    fn count_up(&mut self, start: u64, end: u64) -> u8 {
        let start = start.max(self.frontier * CHUNK as u64);
        if end <= start {
            return 0;
        }
        let ((first, from), (last, to)) = (place(start), place(end - 1));
        if last >= self.horizon() {
            self.reach(first, last);
        }
        let mut most = [0; CHUNK];
        let mut count = |chunk: &mut Chunk, more: &Chunk| {
            for ((used, more), most) in chunk.iter_mut().zip(more).zip(&mut most) {
                // What is not counted up is not looked at.
                *used += more;
                *most = (*used & more.wrapping_neg()).max(*most);
            }
        };
        let (before, up_to) = (FIRST[from], FIRST[to + 1]);
        let from_there = std::array::from_fn(|i| 1 - before[i]);
        if first == last {
            count(self.chunk(first), &std::array::from_fn(|i| up_to[i] & from_there[i]));
        } else {
            count(self.chunk(first), &from_there);
            for number in first + 1..last {
                count(self.chunk(number), &[1; CHUNK]);
            }
            count(self.chunk(last), &up_to);
        }
        most.into_iter().fold(0, u8::max)
    }

    /// Undoes [`Mshrs::count_up`], which made too many; the cycle after the last that has too many.
    #[cold]
    fn retry_after(&mut self, start: u64, end: u64) -> u64 {
        let mut after = start;
        for cycle in start.max(self.frontier * CHUNK as u64)..end {
            let (chunk, within) = place(cycle);
            let used = &mut self.chunk(chunk)[within];
            *used -= 1;
            if *used == self.capacity {
                after = cycle + 1;
            }
        }
        after
    }

    /// Lets the chunks before `frontier` stand for those after the horizon.
    #[inline]
    fn advance(&mut self, frontier: u64) {
        let (frontier, _) = place(frontier);
        for number in self.frontier..frontier.min(self.horizon()) {
            *self.chunk(number) = [0; CHUNK];
        }
        self.frontier = self.frontier.max(frontier);
    }

    /// Keeps as many more chunks as it takes to have those from `first` to `last`; or none but these,
    /// if that were too many.
    #[cold]
    fn reach(&mut self, first: u64, last: u64) {
        let jump = last - self.frontier >= MOST_CHUNKS;
        let from = if jump { first } else { self.frontier };
        let length = ((last - from) as usize + 1).next_power_of_two().max(self.used.len());
        let mut reached = Self { used: vec![[0; CHUNK]; length], frontier: from, ..*self };
        if !jump {
            for number in self.frontier..self.horizon() {
                *reached.chunk(number) = *self.chunk(number);
            }
        }
        *self = reached;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        assert_eq!((mshrs.earliest(far + 20), mshrs.used.len()), (far + 50, CHUNKS));
        // Requests of the same instruction can still name times before it.
        assert_eq!((mshrs.earliest(5), mshrs.book(5, 10, 5)), (5, 0));
        assert_eq!(mshrs.book(far - 100, far + 10, 5), 150, "up to the other's end");
        assert_eq!(mshrs.earliest(far + 100), far + 160);
    }

    proptest! {
        #[test]
        fn never_more_than_there_are(
            capacity in 1u8..6,
            requests in prop::collection::vec((0u64..200, 1u64..90, 0u64..40), 1..200),
        ) {
            let mut mshrs = Mshrs::new(capacity.into());
            let mut booked: Vec<(u64, u64)> = Vec::new();
            let mut frontier = 0;
            for (at, length, passed) in requests {
                frontier += passed;
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
