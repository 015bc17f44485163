//! Which pages a trace touches: one bit per 4 KiB page, kept per 2 MiB region.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::bytes::{Cursor, Malformed, put_varint};

const PAGE_SHIFT: u32 = 12;
const REGION_SHIFT: u32 = 21;
const REGION_BYTES: u64 = 1 << REGION_SHIFT;
const RECENT: usize = 1024;
const NONE: u64 = u64::MAX;

/// Regions that one payload names.
pub(crate) const MAX_FRESH_REGIONS: usize = 1 << 16;

type Bitmap = [u64; 8];

/// The pages touched so far. Memory grows with the regions touched, not with the trace's length.
#[derive(Debug)]
pub(crate) struct Touched {
    pages: FxHashMap<u64, Bitmap>,
    /// Pages not yet written out.
    fresh: FxHashMap<u64, Bitmap>,
    /// Direct-mapped: pages known to be in `pages`.
    recent: Box<[u64]>,
    /// Regions touched by `Populate` events: first region → one past the last; disjoint.
    populated: BTreeMap<u64, u64>,
    threads: FxHashSet<u32>,
    fresh_threads: Vec<u32>,
    count: u64,
}

impl Touched {
    pub(crate) fn new() -> Self {
        Self {
            pages: FxHashMap::default(),
            fresh: FxHashMap::default(),
            recent: vec![NONE; RECENT].into(),
            populated: BTreeMap::new(),
            threads: FxHashSet::default(),
            fresh_threads: Vec::new(),
            count: 0,
        }
    }

    /// Bytes `[address, address + length)` were touched; stops at the end of the address space.
    #[inline]
    pub(crate) fn touch(&mut self, address: u64, length: u64) {
        let first = address >> PAGE_SHIFT;
        let last = address.saturating_add(length.saturating_sub(1)) >> PAGE_SHIFT;
        for page in first..=last {
            if self.recent[page as usize % RECENT] != page {
                self.insert(page);
            }
        }
    }

    #[cold]
    fn insert(&mut self, page: u64) {
        self.recent[page as usize % RECENT] = page;
        let region = page >> (REGION_SHIFT - PAGE_SHIFT);
        let (word, bit) = ((page / 64 % 8) as usize, 1 << (page % 64));
        let bitmap = self.pages.entry(region).or_default();
        if bitmap[word] & bit == 0 {
            bitmap[word] |= bit;
            self.fresh.entry(region).or_default()[word] |= bit;
            self.count += 1;
        }
    }

    /// A part of the program that is not in the trace touched this range.
    pub(crate) fn populate(&mut self, address: u64, length: u64) {
        if length == 0 {
            return;
        }
        let mut start = address >> REGION_SHIFT;
        let mut end = (address.saturating_add(length - 1) >> REGION_SHIFT) + 1;
        // Merge it with every interval that overlaps or adjoins it.
        while let Some((&from, &to)) = self.populated.range(..=end).next_back() {
            if to < start {
                break;
            }
            start = start.min(from);
            end = end.max(to);
            self.populated.remove(&from);
        }
        self.populated.insert(start, end);
    }

    /// This thread ran or started.
    pub(crate) fn thread(&mut self, thread: u32) {
        if self.threads.insert(thread) {
            self.fresh_threads.push(thread);
        }
    }

    pub(crate) fn threads(&self) -> u64 {
        self.threads.len() as u64
    }

    /// 4 KiB pages touched by instructions and accesses.
    pub(crate) fn page_count(&self) -> u64 {
        self.count
    }

    /// Ranges `[start, end)` at 2 MiB granularity, ascending, disjoint and not adjoining; populated
    /// ranges included.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        let mut regions: Vec<(u64, u64)> =
            self.pages.keys().map(|&region| (region, region + 1)).collect();
        regions.extend(self.populated.iter().map(|(&from, &to)| (from, to)));
        regions.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (from, to) in regions {
            match ranges.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => ranges.push((from, to)),
            }
        }
        for (from, to) in &mut ranges {
            *from *= REGION_BYTES;
            *to = to.saturating_mul(REGION_BYTES);
        }
        ranges
    }

    pub(crate) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty() || !self.fresh_threads.is_empty()
    }

    /// How many regions have pages that are not yet written out.
    pub(crate) fn fresh_regions(&self) -> usize {
        self.fresh.len()
    }

    /// Encodes what was touched since the last call, in ascending order; as much as one payload may hold.
    pub(crate) fn encode_fresh(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.fresh_threads.len() as u64);
        for thread in self.fresh_threads.drain(..) {
            put_varint(&mut out, u64::from(thread));
        }
        let mut regions: Vec<(u64, Bitmap)> = self.fresh.drain().collect();
        regions.sort_unstable_by_key(|&(region, _)| region);
        let later = regions.split_off(regions.len().min(MAX_FRESH_REGIONS));
        self.fresh.extend(later);
        put_varint(&mut out, regions.len() as u64);
        let mut previous = 0;
        for (region, bitmap) in regions {
            put_varint(&mut out, region - previous);
            previous = region;
            for word in bitmap {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        out
    }

    /// Whether `noted` has the same pages and threads.
    pub(crate) fn was_noted_in(&self, noted: &Self) -> bool {
        self.pages == noted.pages && self.threads == noted.threads
    }

    /// Adds what [`Touched::encode_fresh`] wrote.
    pub(crate) fn merge(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let mut cursor = Cursor::new(bytes);
        for _ in 0..cursor.bounded(cursor.remaining() as u64)? {
            self.threads.insert(cursor.bounded(u64::from(u32::MAX))? as u32);
        }
        let mut region = 0_u64;
        for _ in 0..cursor.bounded(cursor.remaining() as u64)? {
            region += cursor.bounded((u64::MAX >> REGION_SHIFT) - region)?;
            let bitmap = self.pages.entry(region).or_default();
            for word in bitmap {
                let new = cursor.u64()? & !*word;
                *word |= new;
                self.count += u64::from(new.count_ones());
            }
        }
        cursor.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_regions_and_populated_ranges_join() {
        let mut touched = Touched::new();
        touched.touch(0x1fff, 2); // pages 1 and 2
        touched.touch(0x1fff, 2);
        touched.touch(REGION_BYTES, 1);
        touched.touch(10 * REGION_BYTES, 8);
        touched.populate(2 * REGION_BYTES, 1);
        touched.populate(20 * REGION_BYTES - 1, 2);
        assert_eq!(touched.page_count(), 4);
        let expected =
            [(0, 3), (10, 11), (19, 21)].map(|(from, to)| (from * REGION_BYTES, to * REGION_BYTES));
        assert_eq!(touched.ranges(), expected);

        let mut copy = Touched::new();
        copy.merge(&touched.encode_fresh()).expect("own encoding");
        assert_eq!(copy.page_count(), 4);
        assert!(!touched.has_fresh());
    }

    #[test]
    fn the_end_of_the_address_space_is_no_special_case() {
        let mut touched = Touched::new();
        touched.touch(u64::MAX, 64);
        touched.populate(u64::MAX - 1, u64::MAX);
        assert_eq!(touched.page_count(), 1);
        assert_eq!(touched.ranges(), [(u64::MAX - (REGION_BYTES - 1), u64::MAX)]);
    }

    #[test]
    fn overlapping_populated_ranges_are_one() {
        let mut touched = Touched::new();
        for start in [8, 2, 4, 0] {
            touched.populate(start * REGION_BYTES, 2 * REGION_BYTES);
        }
        touched.populate(5 * REGION_BYTES, 4 * REGION_BYTES);
        assert_eq!(touched.ranges(), [(0, 10 * REGION_BYTES)]);
    }
}
