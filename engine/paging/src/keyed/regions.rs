//! How many pages there are where: what an operating system keeps of a table without levels, to tell
//! at once which regions are empty.

use rustc_hash::FxHashMap;

use crate::geometry::{Geometry, Level};

/// Pages of each level in each region that an entry of the level above would span.
#[derive(Clone, Debug)]
pub struct Regions {
    geometry: Geometry,
    /// By level, from 1: counts by number of the region.
    counts: [FxHashMap<u64, u32>; 3],
}

impl Regions {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self { geometry, counts: Default::default() }
    }

    /// Adds pages in the region of page `number`. Returns how many there are now.
    pub(super) fn add(&mut self, level: Level, number: u64, pages: u32) -> u32 {
        let region = number >> self.geometry.index_bits();
        let count = self.counts[usize::from(level) - 1].entry(region).or_default();
        *count += pages;
        *count
    }

    /// Takes page `number` away. Returns how many are left in its region.
    pub(super) fn remove(&mut self, level: Level, number: u64) -> u32 {
        let region = number >> self.geometry.index_bits();
        let counts = &mut self.counts[usize::from(level) - 1];
        let left = counts.get_mut(&region).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            counts.remove(&region);
        }
        left
    }

    /// True if pages of level `below` lie in page `number` of `level`.
    pub fn any_in(&self, number: u64, level: Level, below: Level) -> bool {
        let shift = self.geometry.index_bits() * (level - below - 1);
        let first = number << shift;
        let counts = &self.counts[usize::from(below) - 1];
        let regions = 1 << shift;
        if counts.len() as u64 <= regions {
            return counts.keys().any(|&region| region >> shift == number);
        }
        (first..first + regions).any(|region| counts.contains_key(&region))
    }

    /// The regions with pages of `level` that may lie between two addresses, in no order: those of the
    /// range, or all, whichever are fewer.
    pub(super) fn between(&self, level: Level, first: u64, last: u64) -> Vec<u64> {
        let counts = &self.counts[usize::from(level) - 1];
        let shift = self.geometry.shift(level) + self.geometry.index_bits();
        let region =
            |address| self.geometry.unsigned(address).checked_shr(shift.into()).unwrap_or(0);
        let (low, high) = (region(first), region(last));
        if low <= high && high - low < counts.len() as u64 && first >> 63 == last >> 63 {
            (low..=high).filter(|region| counts.contains_key(region)).collect()
        } else {
            counts.keys().copied().collect()
        }
    }
}
