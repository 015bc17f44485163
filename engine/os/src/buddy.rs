//! The buddy allocator of physical frames (Knuth, TAOCP 1, 2.5; Linux `mm/page_alloc.c`).
//!
//! Free blocks of 2^order frames, naturally aligned, orders 0 to 18 (4 KiB to 1 GiB). As in Linux, an
//! allocation takes the smallest free block that suffices, splits it keeping the lower half, and a
//! freed block merges with its buddy as far as possible. Where Linux takes a list's most recently
//! freed block, this takes the one with the **lowest address**: what an allocation returns depends
//! only on the set of free blocks, never on the order in which they were freed, so that two runs that
//! free the same memory in another order still lay out the rest alike.
//!
//! Each order is a bit set under a 64-ary tree of summaries, so every operation takes a few words
//! per order. The bits come zeroed from the system and cost nothing until used: at most 4 MiB for
//! 64 GiB of memory.

use crate::block_set::BlockSet;
use crate::placement::Placement;
use crate::random::Random;

/// The largest order: blocks of 2^18 frames, 1 GiB.
pub const MAX_ORDER: u32 = 18;
/// Bytes in a frame, the smallest block.
pub const FRAME_BYTES: u64 = 4096;
/// The order of a 2 MiB block: a large page, or a page-table node of two flattened levels.
pub const LARGE_ORDER: u32 = 9;

/// Draws after which no free frame is looked for at random any more.
pub(crate) const TRIES: usize = 64;

/// Makes large allocations fail at random, reproducibly.
struct Failure {
    probability: f64,
    random: Random,
}

/// What is drawn at random, see [`Placement`].
#[derive(Clone, Copy)]
enum Place {
    /// A 2 MiB block.
    Block,
    /// A frame of the upper half.
    Half,
    /// A frame of the 1 GiB that begins at this one.
    Window {
        /// First frame.
        start: u64,
    },
}

/// The first frame of the 1 GiB that `frame` is in.
fn window_of(frame: u64) -> u64 {
    frame >> MAX_ORDER << MAX_ORDER
}

/// What is drawn, and from what.
struct Drawing {
    of: Place,
    random: Random,
}

/// The allocator. Blocks are named by the number of their first frame.
pub struct Buddy {
    /// Free blocks by order.
    free: Vec<BlockSet>,
    /// One bit per order that has a free block.
    available: u32,
    frames: u64,
    free_frames: u64,
    failure: Option<Failure>,
    /// Where [`Buddy::place`] draws frames from.
    drawing: Option<Drawing>,
}

impl Buddy {
    /// All of `memory_bytes` (rounded down to whole frames) free.
    pub fn new(memory_bytes: u64) -> Self {
        let frames = memory_bytes / FRAME_BYTES;
        let mut buddy = Self { free_frames: frames, ..Self::empty(frames) };
        let mut frame = 0;
        while frame < frames {
            // The largest block that is aligned here and still fits.
            let order = frame.trailing_zeros().min((frames - frame).ilog2()).min(MAX_ORDER);
            buddy.insert(frame, order);
            frame += 1 << order;
        }
        buddy
    }

    /// None of `frames` free.
    pub(crate) fn empty(frames: u64) -> Self {
        let free = (0..=MAX_ORDER).map(|order| BlockSet::new(frames >> order)).collect();
        Self { free, available: 0, frames, free_frames: 0, failure: None, drawing: None }
    }

    /// Frames in all.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Frames that are free.
    pub fn free_frames(&self) -> u64 {
        self.free_frames
    }

    /// Free blocks of exactly `order` (a larger free block counts at its own order only).
    pub fn free_blocks(&self, order: u32) -> u64 {
        self.free.get(order as usize).map_or(0, |set| set.count)
    }

    /// Blocks of `order` that could be allocated one after another now, injected failures aside.
    pub fn allocatable_blocks(&self, order: u32) -> u64 {
        (order..=MAX_ORDER).map(|larger| self.free_blocks(larger) << (larger - order)).sum()
    }

    /// Takes a free block of 2^`order` frames and returns its first frame. `None` where there is none,
    /// or where [`Buddy::fail_large_allocations`] makes it fail.
    pub fn allocate(&mut self, order: u32) -> Option<u64> {
        if self.fails(order) { None } else { self.allocate_if_any(order) }
    }

    /// Whether an allocation of `order` is drawn to fail.
    pub(crate) fn fails(&mut self, order: u32) -> bool {
        order >= LARGE_ORDER
            && self
                .failure
                .as_mut()
                .is_some_and(|failure| failure.random.unit() < failure.probability)
    }

    /// The block of 2^`order` frames at the highest address, without random failures.
    pub(crate) fn allocate_highest(&mut self, order: u32) -> Option<u64> {
        let orders = (order..=MAX_ORDER).filter(|order| self.available >> order & 1 != 0);
        let ends = orders.map(|order| ((self.free[order as usize].last() + 1) << order, order));
        let (end, from) = ends.max()?;
        let frame = end - (1 << order);
        self.take_part(frame, from, order);
        Some(frame)
    }

    /// [`Buddy::allocate`] without random failures.
    pub(crate) fn allocate_if_any(&mut self, order: u32) -> Option<u64> {
        let sufficient = self.available & u32::MAX.checked_shl(order)?;
        if sufficient == 0 {
            return None;
        }
        let from = sufficient.trailing_zeros();
        let lowest = (self.free[from as usize].first() << from, from);
        let (frame, from) = match self.drawing {
            Some(Drawing { of: Place::Block, .. })
                if from >= LARGE_ORDER && order <= LARGE_ORDER =>
            {
                self.drawn().unwrap_or(lowest)
            }
            Some(Drawing { of: Place::Half | Place::Window { .. }, .. }) if order == 0 => {
                self.drawn().unwrap_or_else(|| self.beside(lowest, sufficient))
            }
            _ => lowest,
        };
        self.take_part(frame, from, order);
        Some(frame)
    }

    /// What is taken where no frame could be drawn: `lowest`; of windows, the smallest block of the
    /// lowest window that has one of the orders `sufficient`. So one that has none any more is
    /// followed by the next that has.
    fn beside(&mut self, lowest: (u64, u32), sufficient: u32) -> (u64, u32) {
        let Some(Drawing { of: Place::Window { start }, .. }) = &mut self.drawing else {
            return lowest;
        };
        let orders = (0..=MAX_ORDER).filter(|order| sufficient >> order & 1 != 0);
        let firsts = orders.map(|order| (self.free[order as usize].first() << order, order));
        let by_window = |&(frame, order): &(u64, u32)| (window_of(frame), order);
        let lowest = firsts.min_by_key(by_window).unwrap_or(lowest);
        *start = window_of(lowest.0);
        lowest
    }

    /// Takes the block of `order` at `frame` out of the free block of order `from` that contains it.
    fn take_part(&mut self, frame: u64, mut from: u32, order: u32) {
        self.take(frame >> from << from, from);
        while from > order {
            from -= 1;
            self.insert((frame >> from ^ 1) << from, from);
        }
        self.free_frames -= 1 << order;
    }

    /// A block of less than 2 MiB at a place drawn at random, where single frames are to be drawn
    /// and there is one.
    pub(crate) fn allocate_anywhere(&mut self, order: u32) -> Option<u64> {
        if matches!(self.drawing, Some(Drawing { of: Place::Block, .. })) {
            return None;
        }
        let (frame, _) = self.drawn().filter(|&(_, from)| from >= order)?;
        self.allocate_around(frame, order)
    }

    /// A frame drawn at random, free or not, where 2 MiB blocks are to be drawn.
    pub(crate) fn draw(&mut self) -> Option<u64> {
        match &mut self.drawing {
            Some(Drawing { of: Place::Block, random }) => Some(random.below(self.frames)),
            _ => None,
        }
    }

    /// Takes the block of `order` that contains `frame` if all of it is free. Returns its first frame.
    pub(crate) fn allocate_around(&mut self, frame: u64, order: u32) -> Option<u64> {
        let from = self.containing(frame).filter(|&from| from >= order)?;
        let first = frame >> order << order;
        self.take_part(first, from, order);
        Some(first)
    }

    /// A free frame or 2 MiB block drawn at random and the order of the free block that contains it, where
    /// they are to be drawn. Gives up when memory is so full that the lowest free one serves.
    fn drawn(&mut self) -> Option<(u64, u32)> {
        let frames = self.frames;
        for _ in 0..TRIES {
            let Drawing { of, random } = self.drawing.as_mut()?;
            let (frame, least) = match *of {
                Place::Block => (random.below(frames >> LARGE_ORDER) << LARGE_ORDER, LARGE_ORDER),
                Place::Half => (frames / 2 + random.below(frames - frames / 2), 0),
                Place::Window { start } => {
                    (start + random.below((frames - start).min(1 << MAX_ORDER)), 0)
                }
            };
            if let Some(order) = self.containing(frame).filter(|&order| order >= least) {
                return Some((frame, order));
            }
        }
        None
    }

    /// Frees a block that was allocated, or an aligned part of one.
    pub fn free(&mut self, mut frame: u64, mut order: u32) {
        debug_assert!(
            frame.is_multiple_of(1 << order) && frame + (1 << order) <= self.frames,
            "the block is not in this memory"
        );
        debug_assert!(
            (0..=order).all(|o| !self.free[o as usize].contains(frame >> o))
                && self.containing(frame).is_none(),
            "frame {frame:#x} is free already"
        );
        self.free_frames += 1 << order;
        if let Some(Drawing { of: Place::Window { start }, .. }) = &mut self.drawing {
            *start = (*start).min(window_of(frame));
        }
        while order < MAX_ORDER && self.free[order as usize].contains(frame >> order ^ 1) {
            self.take(frame ^ 1 << order, order);
            frame &= !(1 << order);
            order += 1;
        }
        self.insert(frame, order);
    }

    /// Takes the 2 MiB block at `frame` if it is free, and no part of a larger free block. Returns
    /// whether it was.
    pub(crate) fn take_large(&mut self, frame: u64) -> bool {
        let whole = self.free[LARGE_ORDER as usize].contains(frame >> LARGE_ORDER);
        if whole {
            self.take(frame, LARGE_ORDER);
            self.free_frames -= 1 << LARGE_ORDER;
        }
        whole
    }

    /// Takes the frame `frame` if it is free. Returns whether it was.
    pub fn allocate_at(&mut self, frame: u64) -> bool {
        self.allocate_around(frame, 0).is_some()
    }

    /// Pins frames so that `fraction` of the 2 MiB (order-9) blocks that are free now can no longer
    /// be allocated as a whole: exactly round(`fraction` × blocks) of them, drawn uniformly, lose
    /// one frame each, at a random place. The rest of those blocks stays free, so that 4 KiB
    /// allocations hardly notice. A larger block is unavailable as soon as one of its 2 MiB blocks
    /// is. Values outside 0 to 1 count as the nearer end. Returns the number of frames pinned.
    pub fn fragment(&mut self, fraction: f64, seed: u64) -> u64 {
        let mut random = Random::new(seed);
        let mut remaining = self.allocatable_blocks(LARGE_ORDER);
        #[allow(clippy::cast_sign_loss)] // Clamped to what is not negative.
        let pinned = (fraction.clamp(0.0, 1.0) * remaining as f64).round() as u64;
        let mut needed = pinned;
        // Selection sampling (Knuth, TAOCP 2, 3.4.2, algorithm S): ascending, exactly `needed`.
        for block in 0..self.frames >> LARGE_ORDER {
            if needed == 0 {
                break;
            }
            let base = block << LARGE_ORDER;
            if self.containing(base).is_none_or(|order| order < LARGE_ORDER) {
                continue;
            }
            if random.below(remaining) < needed {
                self.allocate_at(base + random.below(1 << LARGE_ORDER));
                needed -= 1;
            }
            remaining -= 1;
        }
        pinned
    }

    /// From now on each allocation of order 9 or more fails with `probability`, drawn from `seed`.
    pub fn fail_large_allocations(&mut self, probability: f64, seed: u64) {
        self.failure =
            (probability > 0.0).then(|| Failure { probability, random: Random::new(seed) });
    }

    /// From now on frames come from where `placement` says, drawn from `seed`.
    pub fn place(&mut self, placement: Placement, seed: u64) {
        let of = match placement {
            Placement::Compact | Placement::Apart => None,
            Placement::Scattered => Some(Place::Block),
            Placement::Permuted => Some(Place::Window { start: 0 }),
            Placement::Scattered4k => Some(Place::Half),
        };
        self.drawing = of.map(|of| Drawing { of, random: Random::new(seed) });
    }

    /// The order of the free block that contains `frame`.
    fn containing(&self, frame: u64) -> Option<u32> {
        (0..=MAX_ORDER).find(|&order| self.free[order as usize].contains(frame >> order))
    }

    fn insert(&mut self, frame: u64, order: u32) {
        self.free[order as usize].insert(frame >> order);
        self.available |= 1 << order;
    }

    fn take(&mut self, frame: u64, order: u32) {
        let set = &mut self.free[order as usize];
        set.remove(frame >> order);
        if set.count == 0 {
            self.available &= !(1 << order);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Every free block, as (frame, order).
    fn free_blocks(buddy: &Buddy) -> BTreeSet<(u64, u32)> {
        (0..=MAX_ORDER)
            .flat_map(|order| {
                (0..buddy.frames >> order)
                    .filter(move |&block| buddy.free[order as usize].contains(block))
                    .map(move |block| (block << order, order))
            })
            .collect()
    }

    #[test]
    fn sixty_four_gib_take_a_few_megabytes_of_metadata() {
        let buddy = Buddy::new(64 << 30);
        let words: usize = buddy.free.iter().flat_map(|set| &set.levels).map(Vec::len).sum();
        assert!(words * 8 < 5 << 20, "{words} words");
        assert_eq!(buddy.free_blocks(18), 64);
        assert_eq!(buddy.free_frames(), 16 << 20);
    }

    #[test]
    fn the_lowest_address_comes_first_whatever_was_freed_last() {
        let mut buddy = Buddy::new(16 * FRAME_BYTES);
        let frames: Vec<_> = (0..16).map(|_| buddy.allocate(0).unwrap()).collect();
        assert_eq!(frames, (0..16).collect::<Vec<_>>());
        assert_eq!(buddy.allocate(0), None);
        for frame in [3, 9, 5] {
            buddy.free(frame, 0);
        }
        assert_eq!([(); 4].map(|()| buddy.allocate(0)), [Some(3), Some(5), Some(9), None]);
    }

    #[test]
    fn a_small_request_spares_the_large_blocks() {
        let mut buddy = Buddy::new(4 << 20);
        let large = buddy.allocate(9).unwrap();
        let small = buddy.allocate(0).unwrap();
        buddy.free(large, 9);
        // Frame 0 is lower, but splitting the whole 2 MiB block would waste it.
        assert_eq!((large, small, buddy.allocate(0)), (0, 512, Some(513)));
        assert_eq!(buddy.allocate(9), Some(0));
    }

    #[test]
    fn scattered_blocks_lie_anywhere_and_are_used_up_one_by_one() {
        let mut buddy = Buddy::new(256 << 20);
        buddy.place(Placement::Scattered, 7);
        let frames: Vec<_> = (0..16 << LARGE_ORDER).map(|_| buddy.allocate(0).unwrap()).collect();
        let blocks: BTreeSet<_> = frames.iter().map(|frame| frame >> LARGE_ORDER).collect();
        assert_eq!(blocks.len(), 16, "no block is broken into before the last is used up");
        assert!(blocks.iter().any(|&block| block > 64) && blocks.iter().any(|&block| block < 64));
        assert_eq!(buddy.allocatable_blocks(LARGE_ORDER), 128 - 16);
        let rest: BTreeSet<_> = (0..112).map(|_| buddy.allocate(LARGE_ORDER).unwrap()).collect();
        assert_eq!(rest.len(), 112);
        assert_eq!((buddy.allocate(0), buddy.free_frames()), (None, 0));
    }

    #[test]
    fn permuted_frames_fill_the_lowest_gibibyte_in_no_order() {
        const GIB: usize = 1 << MAX_ORDER;
        let mut buddy = Buddy::new(3 << 30);
        buddy.place(Placement::Permuted, 7);
        let frames: Vec<_> = (0..GIB).map(|_| buddy.allocate(0).unwrap()).collect();
        assert!(frames.iter().all(|&frame| frame < GIB as u64));
        let near = frames.windows(2).filter(|two| two[0].abs_diff(two[1]) < 512).count();
        // Of two frames drawn from a GiB, one in 256 lies within 2 MiB of the other; the last few
        // that no draw meets are taken in order.
        assert!((900..GIB / 50).contains(&near), "{near}");
        assert!(
            (0..100).all(|_| (GIB as u64..2 * GIB as u64).contains(&buddy.allocate(0).unwrap()))
        );
        assert!(buddy.allocate(LARGE_ORDER).is_some());
    }

    #[test]
    fn permuted_frames_go_back_to_the_lowest_gibibyte_that_has_room() {
        const GIB: u64 = 1 << MAX_ORDER;
        // The end is no whole GiB: a block smaller than those before it.
        let mut buddy = Buddy::new(3 << 30 | 512 << 20);
        buddy.place(Placement::Permuted, 7);
        let taken: Vec<_> = (0..GIB).map(|_| buddy.allocate(0).unwrap()).collect();
        let next: Vec<_> = (0..1000).map(|_| buddy.allocate(0).unwrap()).collect();
        assert!(next.iter().all(|frame| (GIB..2 * GIB).contains(frame)), "the next, not the end");
        // What is freed below is used before anything above is, even if that is in smaller blocks.
        let mut freed: Vec<_> = taken.iter().copied().filter(|frame| frame % 4096 < 8).collect();
        for &frame in &freed {
            buddy.free(frame, 0);
        }
        let mut again: Vec<_> = freed.iter().map(|_| buddy.allocate(0).unwrap()).collect();
        assert!(!again.is_sorted(), "they are drawn while there are enough of them");
        freed.sort_unstable();
        again.sort_unstable();
        assert_eq!(again, freed);
        assert!((GIB..2 * GIB).contains(&buddy.allocate(0).unwrap()));
    }

    #[test]
    fn scattered_frames_leave_the_lower_half_to_large_blocks() {
        let mut buddy = Buddy::new(1 << 30);
        buddy.place(Placement::Scattered4k, 7);
        let half = 1 << (MAX_ORDER - 1);
        let frames: BTreeSet<_> = (0..10_000).map(|_| buddy.allocate(0).unwrap()).collect();
        assert!(frames.len() == 10_000 && frames.iter().all(|&frame| frame >= half));
        let blocks: BTreeSet<_> = frames.iter().map(|frame| frame >> LARGE_ORDER).collect();
        assert_eq!(blocks.len(), 256, "39 frames of each block are taken, on average");
        assert_eq!(buddy.allocatable_blocks(LARGE_ORDER), 256);
        let all = (0..(2 * half - 10_000)).map_while(|_| buddy.allocate(0)).count() as u64;
        assert_eq!(all, 2 * half - 10_000, "when the upper half is full, the lower serves");
    }

    #[test]
    fn an_order_beyond_the_largest_is_never_there() {
        let mut buddy = Buddy::new(8 << 30);
        assert_eq!(buddy.allocate(MAX_ORDER + 1), None);
        assert_eq!(buddy.allocate(40), None);
        assert!(buddy.allocate(MAX_ORDER).is_some());
    }

    #[test]
    fn fragmentation_takes_exactly_its_fraction_of_the_large_blocks() {
        for (fraction, left) in [(0.0, 512), (0.25, 384), (0.5, 256), (1.0, 0), (7.0, 0)] {
            let mut buddy = Buddy::new(1 << 30);
            let pinned = buddy.fragment(fraction, 42);
            assert_eq!(pinned, 512 - left);
            assert_eq!(buddy.free_frames(), (1 << 18) - pinned);
            assert_eq!(std::iter::from_fn(|| buddy.allocate(LARGE_ORDER)).count() as u64, left);
        }
    }

    #[test]
    fn fragmentation_follows_its_seed() {
        let pins = |seed| {
            let mut buddy = Buddy::new(1 << 28);
            buddy.fragment(0.3, seed);
            free_blocks(&buddy)
        };
        assert_eq!(pins(1), pins(1));
        assert_ne!(pins(1), pins(2));
    }

    #[test]
    fn injected_failures_hit_large_orders_only_and_at_their_rate() {
        let mut buddy = Buddy::new(1 << 30);
        buddy.fail_large_allocations(0.25, 7);
        let mut failures = 0;
        for _ in 0..10_000 {
            assert!(buddy.allocate(8).map(|frame| buddy.free(frame, 8)).is_some());
            match buddy.allocate(9) {
                Some(frame) => buddy.free(frame, 9),
                None => failures += 1,
            }
        }
        assert!((2300..2700).contains(&failures), "{failures}");
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_frames(
            frames in 1_u64..3000,
            steps in prop::collection::vec((0_u32..12, any::<prop::sample::Index>(), 0_u8..4), 1..200),
        ) {
            let mut buddy = Buddy::new(frames * FRAME_BYTES + 17);
            let initial = free_blocks(&buddy);
            prop_assert_eq!(initial.iter().map(|(_, order)| 1_u64 << order).sum::<u64>(), frames);
            let mut taken: Vec<(u64, u32)> = Vec::new();
            let mut used = BTreeSet::new();
            for (order, which, action) in steps {
                if action == 0 && !taken.is_empty() {
                    let (frame, order) = taken.swap_remove(which.index(taken.len()));
                    buddy.free(frame, order);
                    (frame..frame + (1 << order)).for_each(|f| { used.remove(&f); });
                } else if action == 1 {
                    let frame = which.index(frames as usize) as u64;
                    prop_assert_eq!(buddy.allocate_at(frame), used.insert(frame));
                    if !taken.iter().any(|&(base, order)| (base..base + (1 << order)).contains(&frame)) {
                        taken.push((frame, 0));
                    }
                } else if let Some(frame) = buddy.allocate(order) {
                    prop_assert!(frame.is_multiple_of(1 << order) && frame + (1 << order) <= frames);
                    for f in frame..frame + (1 << order) {
                        prop_assert!(used.insert(f), "{} handed out twice", f);
                    }
                    taken.push((frame, order));
                } else {
                    // There is indeed no such block.
                    let mut blocks = 0..frames >> order;
                    prop_assert!(blocks.all(|b| (b << order..(b + 1) << order).any(|f| used.contains(&f))));
                }
                prop_assert_eq!(buddy.free_frames(), frames - used.len() as u64);
                let free = free_blocks(&buddy);
                prop_assert_eq!(free.iter().map(|(_, order)| 1_u64 << order).sum::<u64>(), buddy.free_frames());
                for (base, order) in free {
                    prop_assert!((base..base + (1 << order)).all(|f| !used.contains(&f)));
                }
            }
            for (frame, order) in taken {
                buddy.free(frame, order);
            }
            prop_assert_eq!(free_blocks(&buddy), initial, "coalescing does not restore the initial blocks");
        }
    }
}
