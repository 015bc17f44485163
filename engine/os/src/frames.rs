//! The frames of physical memory, by mobility.

use crate::block_set::BlockSet;
use crate::buddy::{Buddy, LARGE_ORDER, MAX_ORDER, TRIES};

/// Of all 2 MiB blocks, one in so many at most is set aside for scattered page-table nodes, so that
/// data finds blocks too.
const MOST_SET_ASIDE: u64 = 4;

/// All physical memory, for data, which can be moved, and for page tables, which cannot.
///
/// Linux keeps free lists by mobility, so that a few unmovable pages (page tables above all) do not
/// spoil every large block. So does this: unmovable blocks smaller than 2 MiB come from 2 MiB blocks
/// that are set aside for them one at a time, and returned when empty. It also keeps the simulated page
/// tables close together in the simulator's own memory. Where 2 MiB blocks are drawn at random
/// ([`Placement::Scattered`](crate::Placement::Scattered)), each small node has a random frame of one, as
/// where unmovable pages have been allocated and freed for long.
pub struct Frames {
    movable: Buddy,
    unmovable: Buddy,
    /// The 2 MiB blocks set aside.
    set_aside: BlockSet,
    /// Page tables have whole blocks of 1 GiB, from the highest address down, and keep them. Nothing of these
    /// is left over that data would take before other memory.
    tables_last: bool,
}

impl Frames {
    /// All of `memory`, for both kinds; with `tables_last` those of page tables lie apart, at its end.
    pub fn new(memory: Buddy, tables_last: bool) -> Self {
        let frames = memory.frames();
        let set_aside = BlockSet::new(frames >> LARGE_ORDER);
        Self { movable: memory, unmovable: Buddy::empty(frames), set_aside, tables_last }
    }

    /// A block for data, which can be moved. `None` as with [`Buddy::allocate`].
    pub fn allocate_movable(&mut self, order: u32) -> Option<u64> {
        if self.movable.fails(order) {
            return None;
        }
        // When all else is used up, data gets what is left of the page tables' blocks.
        self.movable.allocate_if_any(order).or_else(|| self.unmovable.allocate_if_any(order))
    }

    /// A block for page tables, which cannot. `None` as with [`Buddy::allocate`].
    pub fn allocate_unmovable(&mut self, order: u32) -> Option<u64> {
        if self.tables_last {
            return self.allocate_last(order);
        }
        if order >= LARGE_ORDER {
            return self.movable.allocate(order);
        }
        if let Some(frame) = self.movable.allocate_anywhere(order) {
            return Some(frame);
        }
        if let Some(frame) = self.allocate_scattered(order) {
            return Some(frame);
        }
        if let Some(frame) = self.unmovable.allocate(order) {
            return Some(frame);
        }
        let Some(block) = self.movable.allocate_if_any(LARGE_ORDER) else {
            return self.movable.allocate(order);
        };
        self.set_aside.insert(block >> LARGE_ORDER);
        self.unmovable.free(block, LARGE_ORDER);
        self.unmovable.allocate(order)
    }

    /// A block for page tables that lie apart.
    fn allocate_last(&mut self, order: u32) -> Option<u64> {
        if self.movable.fails(order) {
            return None;
        }
        if let Some(frame) = self.unmovable.allocate_if_any(order) {
            return Some(frame);
        }
        // 1 GiB, or what there is of memory that is small or fragmented; half of what is free at most.
        let least = order.max(LARGE_ORDER);
        let half = (self.movable.free_frames() / 2).max(1).ilog2();
        let mut orders = (least..=half.clamp(least, MAX_ORDER)).rev();
        let found = orders.find_map(|size| Some((self.movable.allocate_highest(size)?, size)));
        let Some((block, size)) = found else { return self.movable.allocate_if_any(order) };
        let number = block >> LARGE_ORDER;
        (number..number + (1 << (size - LARGE_ORDER))).for_each(|part| self.set_aside.insert(part));
        self.unmovable.free(block, size);
        self.unmovable.allocate_if_any(order)
    }

    /// A block at a random place among those without data: of memory set aside, or to be set aside
    /// if that is not much of all yet. `None` where no blocks are drawn, or none is met.
    fn allocate_scattered(&mut self, order: u32) -> Option<u64> {
        let most = (self.movable.frames() >> LARGE_ORDER) / MOST_SET_ASIDE;
        for _ in 0..TRIES {
            let frame = self.movable.draw()?;
            let number = frame >> LARGE_ORDER;
            if !self.set_aside.contains(number) {
                if self.set_aside.count >= most {
                    continue;
                }
                let Some(block) = self.movable.allocate_around(frame, LARGE_ORDER) else {
                    continue;
                };
                self.set_aside.insert(number);
                self.unmovable.free(block, LARGE_ORDER);
            }
            if let Some(first) = self.unmovable.allocate_around(frame, order) {
                return Some(first);
            }
        }
        None
    }

    /// Frees a block of either kind.
    pub fn free(&mut self, frame: u64, order: u32) {
        let block = frame >> LARGE_ORDER;
        let is_set_aside = self.set_aside.contains(block);
        if is_set_aside && self.tables_last {
            return self.unmovable.free(frame, order);
        }
        if order >= LARGE_ORDER || !is_set_aside {
            return self.movable.free(frame, order);
        }
        self.unmovable.free(frame, order);
        if self.unmovable.take_large(block << LARGE_ORDER) {
            self.set_aside.remove(block);
            self.movable.free(block << LARGE_ORDER, LARGE_ORDER);
        }
    }

    /// Frames that are free.
    pub fn free_frames(&self) -> u64 {
        self.movable.free_frames() + self.unmovable.free_frames()
    }

    /// Frames in all.
    pub fn frames(&self) -> u64 {
        self.movable.frames()
    }

    /// Blocks of `order` that could be allocated for data one after another now, injected failures
    /// aside.
    pub fn allocatable_blocks(&self, order: u32) -> u64 {
        let apart = if self.tables_last { self.unmovable.allocatable_blocks(order) } else { 0 };
        self.movable.allocatable_blocks(order) + apart
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::placement::Placement;

    #[test]
    fn where_data_lies_does_not_depend_on_tables_that_lie_apart() {
        // Memory of several GiB, of one and a rest, and of less.
        for bytes in [5 << 30, (1 << 30) + (6 << 20), 512 << 20] {
            let data_with = |orders: &[u32], fragmentation: f64| -> Vec<u64> {
                let mut memory = Buddy::new(bytes);
                memory.fragment(fragmentation, 1);
                let mut frames = Frames::new(memory, true);
                let mut nodes = vec![frames.allocate_unmovable(0).unwrap()];
                let mut data = Vec::new();
                for round in 0..30_000 {
                    let order = if round % 3000 == 0 { LARGE_ORDER } else { 0 };
                    data.push(frames.allocate_movable(order).unwrap());
                    if let Some(&order) = orders.get(round) {
                        nodes.push(frames.allocate_unmovable(order).unwrap());
                    }
                    if round % 10 == 0 && round < orders.len() {
                        frames.free(nodes.pop().unwrap(), orders[round]);
                    }
                }
                if bytes == 5 << 30 && fragmentation == 0.0 {
                    assert!(data.iter().max() < nodes.iter().min());
                }
                data
            };
            for fragmentation in [0.0, 0.3] {
                let without = data_with(&[], fragmentation);
                for orders in [&[0; 2000][..], &[9; 30], &[0, 9, 3, 10, 0, 9]] {
                    assert_eq!(
                        data_with(orders, fragmentation),
                        without,
                        "{bytes} {fragmentation}"
                    );
                }
            }
        }
    }

    #[test]
    fn data_gets_all_memory_if_tables_lie_apart() {
        let mut frames = Frames::new(Buddy::new(64 << 20), true);
        assert!(frames.allocate_unmovable(0).is_some());
        assert_eq!(frames.allocatable_blocks(LARGE_ORDER), 31);
        let rest = std::iter::from_fn(|| frames.allocate_movable(0)).count() as u64;
        assert_eq!((rest, frames.free_frames()), (16_383, 0));
        assert_eq!(frames.allocate_unmovable(0), None);
    }

    #[test]
    fn blocks_of_tables_that_lie_apart_fail_as_often_as_others() {
        let mut memory = Buddy::new(1 << 30);
        memory.fail_large_allocations(0.5, 1);
        let mut frames = Frames::new(memory, true);
        let tried: Vec<_> = (0..200).map(|_| frames.allocate_unmovable(LARGE_ORDER)).collect();
        let failed = tried.iter().filter(|block| block.is_none()).count();
        assert!((70..130).contains(&failed), "{failed}");
        let failed = (0..200).filter(|_| frames.allocate_movable(LARGE_ORDER).is_none()).count();
        assert!((70..130).contains(&failed), "{failed}");
    }

    #[test]
    fn unmovable_frames_keep_together_and_are_given_back() {
        let mut frames = Frames::new(Buddy::new(16 << 20), false);
        let mut nodes = Vec::new();
        for _ in 0..600 {
            assert!(frames.allocate_movable(0).is_some());
            nodes.push(frames.allocate_unmovable(0).unwrap());
        }
        let blocks: BTreeSet<_> = nodes.iter().map(|frame| frame >> LARGE_ORDER).collect();
        assert_eq!(blocks.len(), 2, "600 nodes fit two blocks");
        assert_eq!(frames.free_frames(), 4096 - 1200);
        let before = frames.allocatable_blocks(LARGE_ORDER);
        for node in nodes {
            frames.free(node, 0);
        }
        assert_eq!(frames.allocatable_blocks(LARGE_ORDER), before + 2);
        assert_eq!(frames.free_frames(), 4096 - 600);
    }

    #[test]
    fn scattered_nodes_lie_anywhere_but_in_blocks_of_data() {
        let mut memory = Buddy::new(4 << 30);
        memory.place(Placement::Scattered, 3);
        let mut frames = Frames::new(memory, false);
        let (mut nodes, mut data) = (Vec::new(), BTreeSet::new());
        for _ in 0..400 {
            nodes.push(frames.allocate_unmovable(0).unwrap());
            data.extend((0..512).map(|_| frames.allocate_movable(0).unwrap() >> LARGE_ORDER));
        }
        assert_eq!(data.len(), 400, "data uses a block up before the next");
        assert!(nodes.iter().all(|node| !data.contains(&(node >> LARGE_ORDER))));
        let blocks: BTreeSet<_> = nodes.iter().map(|node| node >> LARGE_ORDER).collect();
        // Of 400 draws from some 1,800 blocks, 360 differ, and every place in a block is as likely.
        assert!((300..400).contains(&blocks.len()), "{}", blocks.len());
        let places: BTreeSet<_> = nodes.iter().map(|node| node % 512).collect();
        assert!((250..320).contains(&places.len()), "{}", places.len());
        // No more than a quarter is set aside, and data gets what is left of that in the end.
        while nodes.len() < 2000 {
            nodes.push(frames.allocate_unmovable(0).unwrap());
        }
        assert_eq!(frames.set_aside.count, 512);
        let rest = std::iter::from_fn(|| frames.allocate_movable(0)).count() as u64;
        assert_eq!(rest, (4 << 18) - 2000 - 400 * 512);
        for node in nodes {
            frames.free(node, 0);
        }
        assert_eq!((frames.free_frames(), frames.set_aside.count), (2000, 512));
    }

    #[test]
    fn where_no_block_can_be_set_aside_single_frames_serve() {
        let mut memory = Buddy::new(4 << 20);
        memory.fragment(1.0, 3);
        let mut frames = Frames::new(memory, false);
        let nodes: Vec<_> = std::iter::from_fn(|| frames.allocate_unmovable(0)).collect();
        assert_eq!(nodes.len(), 1022);
        for node in nodes {
            frames.free(node, 0);
        }
        assert_eq!(frames.free_frames(), 1022);
        // Injected failures of large allocations do not touch small ones.
        let mut memory = Buddy::new(4 << 20);
        memory.fail_large_allocations(1.0, 3);
        let mut frames = Frames::new(memory, false);
        assert_eq!(frames.allocate_unmovable(LARGE_ORDER), None);
        assert!((0..1024).all(|_| frames.allocate_unmovable(0).is_some()));
    }
}
