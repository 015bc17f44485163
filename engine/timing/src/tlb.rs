//! Translation look-aside buffers: set-associative arrays with true LRU, per page size or shared.

use flatwalk_paging::{Address, Geometry, Hpa, Level, Rights};

use crate::{lru, machine};

/// What a TLB entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Physical address of the page.
    pub frame: Hpa,
    /// Level that a page of this size is a leaf of.
    pub level: Level,
    /// What the path permits.
    pub rights: Rights,
    /// The leaf entry's dirty bit was set when the entry was made: stores need not set it.
    pub dirty: bool,
    /// Cycle in which the walk was asked for.
    pub requested: u64,
    /// Cycle in which the translation is (was) there.
    pub ready: u64,
}

/// Look-ups and hits for one page size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlbStatistics {
    /// Look-ups: all arrays are looked up together.
    pub lookups: u64,
    /// Hits.
    pub hits: u64,
}

/// One array.
#[derive(Clone, Debug)]
struct Array {
    /// Levels of the pages it holds.
    levels: Vec<Level>,
    latency: u64,
    ways: usize,
    set_mask: u64,
    /// Page number and level, 0 for empty: the page's level never is.
    tags: Vec<u64>,
    entries: Vec<Translation>,
    stamps: Vec<u64>,
    /// How many entries of each level are valid: a size that is not there is not searched.
    live: [u32; 4],
    /// Per level.
    hits: [u64; 4],
}

impl Array {
    fn new(config: &machine::Tlb) -> Self {
        let entries = config.entries as usize;
        let empty = Translation {
            frame: Hpa::default(),
            level: 0,
            rights: Rights::ALL,
            dirty: false,
            requested: 0,
            ready: 0,
        };
        Self {
            levels: config.pages.iter().map(|p| p.level()).collect(),
            latency: config.latency_cycles,
            ways: config.ways as usize,
            set_mask: u64::from(config.entries / config.ways) - 1,
            tags: vec![0; entries],
            entries: vec![empty; entries],
            stamps: vec![0; entries],
            live: [0; 4],
            hits: [0; 4],
        }
    }

    #[inline]
    fn find(&self, page: u64, level: Level) -> Option<usize> {
        let first = (page & self.set_mask) as usize * self.ways;
        let tag = page << 2 | u64::from(level);
        let set = &self.tags[first..first + self.ways];
        set.iter().position(|&t| t == tag).map(|way| first + way)
    }

    fn insert(&mut self, page: u64, entry: Translation, now: u64) {
        let first = (page & self.set_mask) as usize * self.ways;
        let set = first..first + self.ways;
        let tag = page << 2 | u64::from(entry.level);
        let slot = first + lru::place(&self.tags[set.clone()], &self.stamps[set], tag);
        if self.tags[slot] != 0 {
            self.live[(self.tags[slot] & 3) as usize] -= 1;
        }
        self.live[usize::from(entry.level)] += 1;
        self.tags[slot] = tag;
        self.entries[slot] = entry;
        self.stamps[slot] = now;
    }
}

/// The arrays of one TLB level, looked up in parallel.
#[derive(Clone, Debug)]
pub struct Tlb {
    arrays: Vec<Array>,
    shifts: [u8; 4],
    /// Look-ups and insertions so far.
    clock: u64,
    lookups: u64,
}

impl Tlb {
    /// Empty arrays as configured, for a geometry's page sizes.
    pub fn new(config: &[machine::Tlb], geometry: Geometry) -> Self {
        let mut shifts = [0; 4];
        for level in 1..=3.min(geometry.levels()) {
            shifts[usize::from(level)] = geometry.shift(level);
        }
        Self { arrays: config.iter().map(Array::new).collect(), shifts, clock: 0, lookups: 0 }
    }

    /// True if there are no arrays.
    pub fn is_empty(&self) -> bool {
        self.arrays.is_empty()
    }

    /// The slowest array's latency: what a miss costs before the next level is asked.
    pub fn latency(&self) -> u64 {
        self.arrays.iter().map(|a| a.latency).max().unwrap_or(0)
    }

    /// The entry for `address`, and the latency of the array that holds it.
    #[inline]
    pub fn look_up(&mut self, address: u64) -> Option<(Translation, u64)> {
        self.clock += 1;
        self.lookups += 1;
        for array in &mut self.arrays {
            for &level in &array.levels {
                if array.live[usize::from(level)] == 0 {
                    continue;
                }
                let page = address >> self.shifts[usize::from(level)];
                if let Some(slot) = array.find(page, level) {
                    array.stamps[slot] = self.clock;
                    array.hits[usize::from(level)] += 1;
                    return Some((array.entries[slot], array.latency));
                }
            }
        }
        None
    }

    /// Puts in the translation of the page that `address` lies in. Where no array holds its size,
    /// the part of it that is the largest size held goes in instead ("smashed", as Zen does).
    #[inline]
    pub fn insert(&mut self, address: u64, entry: Translation) {
        self.clock += 1;
        for level in (1..=entry.level).rev() {
            if let Some(array) = self.arrays.iter_mut().find(|a| a.levels.contains(&level)) {
                let shift = self.shifts[usize::from(level)];
                let within = address & ((1 << self.shifts[usize::from(entry.level)]) - 1);
                let frame = entry.frame.offset(within >> shift << shift);
                array.insert(address >> shift, Translation { frame, level, ..entry }, self.clock);
                return;
            }
        }
    }

    /// Drops every entry of a page that overlaps `length_bytes` from `start`.
    pub fn flush(&mut self, start: u64, length_bytes: u64) {
        let last = start.wrapping_add(length_bytes.wrapping_sub(1));
        for array in &mut self.arrays {
            for slot in 0..array.tags.len() {
                let tag = array.tags[slot];
                if tag == 0 {
                    continue;
                }
                let shift = self.shifts[(tag & 3) as usize];
                if (start >> shift..=last >> shift).contains(&(tag >> 2)) {
                    array.tags[slot] = 0;
                    array.stamps[slot] = 0;
                    array.live[(tag & 3) as usize] -= 1;
                }
            }
        }
    }

    /// Look-ups and hits by page level, summed over arrays.
    pub fn statistics(&self) -> Vec<(Level, TlbStatistics)> {
        let statistics = |hits| TlbStatistics { lookups: self.lookups, hits };
        let mut all: Vec<_> = (self.arrays.iter())
            .flat_map(|a| a.levels.iter().map(|&l| (l, statistics(a.hits[usize::from(l)]))))
            .collect();
        all.sort_by_key(|&(level, _)| level);
        all
    }

    /// How many entries are valid, of how many.
    pub fn occupancy(&self) -> (usize, usize) {
        let valid = self.arrays.iter().flat_map(|a| &a.tags).filter(|&&t| t != 0).count();
        (valid, self.arrays.iter().map(|a| a.tags.len()).sum())
    }

    /// Forgets all counts; contents stay.
    pub fn reset_statistics(&mut self) {
        self.lookups = 0;
        for array in &mut self.arrays {
            array.hits = [0; 4];
        }
    }
}
