//! Page-table nodes in contiguous memory, in the order of the addresses that they
//! translate, so that an entry's place can be computed from the address.
//!
//! Source: Margaritov et al., "Prefetched Address Translation" (ASAP), MICRO 2019: the kernel
//! reserves such memory for the last two levels of each VMA, and the processor has registers for where
//! it starts.
//!
//! One array of entries per level and VMA is reserved when the VMA gets its first node of the level.
//! A VMA that outgrows its array gets a further one, as large as the VMA is then, so that a growing
//! heap ends with few. Where there is no contiguous memory, nodes lie wherever they can, and are
//! counted. An array is freed with its last node.
//!
//! Departs from the paper: arrays of both levels have ranges of their own, since they end at
//! different boundaries.

use std::collections::BTreeMap;

use flatwalk_paging::{Geometry, Layout, Level, Physical};

use crate::buddy::{FRAME_BYTES, MAX_ORDER};
use crate::frames::Frames;
use crate::vma::Pages;

/// Addresses whose entries of one level are adjacent in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range<A> {
    /// Level of the entries.
    pub level: Level,
    /// First address.
    pub start: u64,
    /// Last address.
    pub last: u64,
    /// Where the entry for the first address is.
    pub base: A,
}

/// An array of entries in a block of memory of its own.
#[derive(Clone, Copy, Debug)]
struct Array<A> {
    /// Entries that belong to it.
    entries: u64,
    base: A,
    order: u32,
    /// Nodes in it.
    nodes: u64,
}

/// The arrays of one process.
#[derive(Clone, Debug)]
pub struct OrderedNodes<A> {
    geometry: Geometry,
    /// By level: entries of the widest node of such entries; 0 for levels that are not kept in order.
    units: [u64; 4],
    /// By level and number of the first entry among all that the level can have.
    arrays: BTreeMap<(Level, u64), Array<A>>,
    /// Keys of `arrays` by address.
    places: BTreeMap<A, (Level, u64)>,
    /// The pages of the area that nodes are made for next.
    pub(crate) area: Option<Pages>,
    changes: u64,
    scattered: u64,
}

impl<A: Physical> OrderedNodes<A> {
    /// No arrays yet, for tables of `layout`. Of `levels`, only those count at which nodes of the
    /// layout end.
    pub(crate) fn new(layout: &Layout, levels: &[Level]) -> Self {
        let geometry = layout.geometry();
        let mut units = [0; 4];
        for (top, width) in layout.groups() {
            let bottom = top + 1 - width;
            let exact = geometry.node_shift(width) == geometry.index_bits() * width + 3;
            if levels.contains(&bottom)
                && exact
                && let Some(unit) = units.get_mut(usize::from(bottom))
            {
                *unit = geometry.node_entries(width);
            }
        }
        let (arrays, places) = (BTreeMap::new(), BTreeMap::new());
        Self { geometry, units, arrays, places, area: None, changes: 0, scattered: 0 }
    }

    /// Every array, by level and address.
    pub fn ranges(&self) -> impl Iterator<Item = Range<A>> {
        self.arrays.iter().map(|(&(level, first), array)| {
            let shift = self.geometry.shift(level);
            let last = ((first + array.entries) << shift).wrapping_sub(1);
            Range { level, start: first << shift, last, base: array.base }
        })
    }

    /// A number that changes whenever the ranges do.
    pub fn version(&self) -> u64 {
        self.changes
    }

    /// Bytes of memory that the arrays take.
    pub fn reserved_bytes(&self) -> u64 {
        self.arrays.values().map(|array| FRAME_BYTES << array.order).sum()
    }

    /// Nodes that should be in order, but for which there was no contiguous memory.
    pub fn scattered_nodes(&self) -> u64 {
        self.scattered
    }

    /// The place of a new node of 2^`size_shift` bytes with entries of level `bottom`, on the path
    /// of `input`; `None` where it does not matter, or where there is no memory for an array.
    pub(crate) fn place(
        &mut self,
        frames: &mut Frames,
        size_shift: u8,
        bottom: Level,
        input: u64,
    ) -> Option<A> {
        let unit = *self.units.get(usize::from(bottom)).filter(|&&unit| unit > 0)?;
        let entry = input >> self.geometry.shift(bottom);
        let node = entry & !((1 << (size_shift - 3)) - 1);
        let known = self.containing(bottom, entry);
        let key = known.or_else(|| self.reserve(frames, bottom, unit, entry))?;
        let array = self.arrays.get_mut(&key)?;
        array.nodes += 1;
        Some(array.base.offset((node - key.1) * 8))
    }

    /// Notes that a node with entries of level `bottom` had to be placed elsewhere.
    pub(crate) fn note_elsewhere(&mut self, bottom: Level) {
        let kept = self.units.get(usize::from(bottom)).is_some_and(|&unit| unit > 0);
        self.scattered += u64::from(kept);
    }

    /// Notes that the node at `at` was freed. False if it was not in an array.
    pub(crate) fn vacate(&mut self, frames: &mut Frames, at: A) -> bool {
        let Some((&base, &key)) = self.places.range(..=at).next_back() else { return false };
        let Some(array) = self.arrays.get_mut(&key) else { return false };
        if at.raw() - base.raw() >= FRAME_BYTES << array.order {
            return false;
        }
        array.nodes -= 1;
        if array.nodes == 0 {
            frames.free(base.raw() / FRAME_BYTES, array.order);
            self.arrays.remove(&key);
            self.places.remove(&base);
            self.changes += 1;
        }
        true
    }

    fn containing(&self, level: Level, entry: u64) -> Option<(Level, u64)> {
        let (&key, array) = self.arrays.range(..=(level, entry)).next_back()?;
        (key.0 == level && entry - key.1 < array.entries).then_some(key)
    }

    /// Reserves an array that contains entry number `entry` of `level`, for the part of the area that
    /// has none yet.
    fn reserve(
        &mut self,
        frames: &mut Frames,
        level: Level,
        unit: u64,
        entry: u64,
    ) -> Option<(Level, u64)> {
        let area = self.area.clone()?;
        let pages_shift = self.geometry.shift(level) - self.geometry.page_shift();
        let (start, end) = (area.start >> pages_shift, ((area.end - 1) >> pages_shift) + 1);
        if !(start..end).contains(&entry) {
            return None;
        }
        let before = self.arrays.range(..=(level, entry)).next_back();
        let taken = before.filter(|(key, _)| key.0 == level).map(|(key, a)| key.1 + a.entries);
        let limit = self.arrays.range((level, entry)..).next().filter(|(key, _)| key.0 == level);
        let limit = limit.map_or(u64::MAX, |(key, _)| key.1);
        let first = (start & !(unit - 1)).max(taken.unwrap_or(0));
        // An area that has an array already grows: next time it shall be longer before it needs one.
        let grows = taken.is_some_and(|taken| taken > start);
        let wanted = if grows { end.max(first + (end - start)) } else { end };
        let wanted = wanted.next_multiple_of(unit).min(limit);
        let frames_wanted = ((wanted - first) * 8).div_ceil(FRAME_BYTES);
        let order = frames_wanted.next_power_of_two().ilog2();
        if order > MAX_ORDER {
            return None;
        }
        let base = A::new(frames.allocate_unmovable(order)? * FRAME_BYTES);
        // A block is a power of two: what it has beyond the area serves the area's growth.
        let entries = (FRAME_BYTES << order >> 3).min(limit - first);
        self.arrays.insert((level, first), Array { entries, base, order, nodes: 0 });
        self.places.insert(base, (level, first));
        self.changes += 1;
        Some((level, first))
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_paging::{Address, Geometry, Gva, Hpa};
    use flatwalk_trace::{Backing, Event, Protection};

    use super::*;
    use crate::policy::LargePages;
    use crate::process::{Configuration, Process};
    use crate::testing::layout;

    const DATA: u64 = 1 << 40;
    const LARGE: u64 = 2 << 20;

    fn process(flatten: &[&str], large_pages: LargePages, fragmentation: f64) -> Process {
        Process::new(&Configuration {
            large_pages,
            fragmentation,
            ordered_levels: vec![1, 2],
            ..Configuration::new(layout(Geometry::X86_4, flatten), 4 << 30)
        })
        .unwrap()
    }

    fn apply(process: &mut Process, event: &Event) {
        let _flushes = process.apply(event).unwrap();
    }

    fn map(process: &mut Process, address: u64, length: u64) {
        let protection = Protection { read: true, write: true, execute: false };
        let backing = Backing::Anonymous;
        apply(process, &Event::Map { address, length, protection, backing, shared: false });
        apply(process, &Event::Populate { address, length, store: true });
    }

    fn none() -> LargePages {
        LargePages::Below { boundary: 0 }
    }

    /// The ranges of one level: first and last address.
    fn ranges(process: &Process, level: Level) -> Vec<(u64, u64)> {
        let all = process.ordered_nodes().unwrap().ranges();
        all.filter(|range| range.level == level).map(|range| (range.start, range.last)).collect()
    }

    /// Where the ranges say that the leaf entry for `address` stands.
    fn computed(process: &Process, level: Level, address: u64) -> Option<Hpa> {
        let shift = Geometry::X86_4.shift(level);
        let mut all = process.ordered_nodes().unwrap().ranges();
        let range = all.find(|r| r.level == level && (r.start..=r.last).contains(&address))?;
        Some(range.base.offset(((address - range.start) >> shift) * 8))
    }

    #[test]
    fn an_entry_stands_where_the_address_says() {
        for flatten in [&[][..], &["L3L2"], &["L4L3", "L2L1"], &["L2L1"]] {
            for (large, level) in [(none(), 1), (LargePages::Below { boundary: u64::MAX }, 2)] {
                let mut process = process(flatten, large, 0.0);
                // Neither end at a boundary of any node; and two that share one.
                for (address, length) in [(DATA + 5 * LARGE, 700 * LARGE), (DATA, LARGE)] {
                    map(&mut process, address, length);
                }
                for large in (0..1).chain(5..705) {
                    let address = DATA + large * LARGE;
                    let found = process.table().translate(process.memory(), Gva::new(address));
                    let found = found.unwrap().entry_address;
                    // Where L2 and L1 are one node, the leaves of large pages are level-1 entries.
                    let level = if flatten.contains(&"L2L1") { 1 } else { level };
                    let computed = computed(&process, level, address);
                    assert_eq!(computed, Some(found), "{flatten:?} {level} {address:#x}");
                }
                assert_eq!(process.ordered_nodes().unwrap().scattered_nodes(), 0);
            }
        }
    }

    #[test]
    fn a_growing_area_needs_few_arrays() {
        let mut process = process(&[], none(), 0.0);
        let mut from = DATA;
        for _ in 0..512 {
            let to = from + LARGE;
            apply(&mut process, &Event::Break { from, to });
            apply(&mut process, &Event::Populate { address: from, length: LARGE, store: true });
            from = to;
        }
        let leaves = ranges(&process, 1);
        assert!(leaves.len() <= 11, "{leaves:?}");
        assert!(leaves.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{leaves:?}");
        assert!(leaves[leaves.len() - 1].1 >= from - 1);
        let version = process.ordered_nodes().unwrap().version();
        apply(&mut process, &Event::Unmap { address: DATA, length: from - DATA });
        assert!(process.ordered_nodes().unwrap().version() > version);
    }

    #[test]
    fn all_memory_comes_back() {
        let mut process = process(&["L2L1"], none(), 0.0);
        let free = process.frames().free_frames();
        map(&mut process, DATA + LARGE, 1200 * LARGE);
        let reserved = process.ordered_nodes().unwrap().reserved_bytes();
        // Three nodes of 2 MiB in a block of a power of two.
        assert_eq!(reserved, 8 << 20);
        apply(&mut process, &Event::Unmap { address: DATA, length: 1300 * LARGE });
        assert_eq!(process.frames().free_frames(), free);
        assert_eq!(process.ordered_nodes().unwrap().reserved_bytes(), 0);
        assert_eq!(process.page_table_bytes(), 4096);
    }

    #[test]
    fn without_contiguous_memory_nodes_stand_anywhere() {
        let mut process = process(&[], none(), 1.0);
        // 2 GiB have 4 MiB of leaf entries, and no block of 2 MiB is whole.
        map(&mut process, DATA, 1 << 30);
        let ordered = process.ordered_nodes().unwrap();
        assert_eq!(ordered.scattered_nodes(), 512);
        assert_eq!(ranges(&process, 1), []);
        assert_eq!(ranges(&process, 2).len(), 1, "one node of level 2 is contiguous by itself");
    }
}
