//! Cuckoo walk caches: lines of the cuckoo walk tables, which say where a page's entry can be.
//!
//! Source: Skarlatos et al. (ASPLOS 2020), section 5. One fully associative structure for each walk
//! table, looked up while the page's number is hashed. A line that misses is read after the walk, when
//! nobody waits for it. The paper's switching-off of caches that hit too rarely is not modelled.

use flatwalk_paging::hashed::{Hashed, Hint, Line};
use flatwalk_paging::{Address, Geometry, Level, Physical};

use crate::config::machine::{HashedWalks, WalkEnd};
use crate::mmu::pwc::PwcStatistics;

/// The lines of one walk table.
#[derive(Clone, Debug)]
struct Array {
    capacity: usize,
    keys: Vec<u64>,
    /// Beside each key: its line, the cycle from which it can be used, and when it was used last.
    lines: Vec<(Line, u64, u64)>,
}

impl Array {
    fn new(entries: u32) -> Self {
        Self { capacity: entries as usize, keys: Vec::new(), lines: Vec::new() }
    }

    fn get(&self, key: u64) -> Option<usize> {
        self.keys.iter().position(|&there| there == key)
    }
}

/// The caches of one walker, and how it walks hashed tables.
#[derive(Clone, Debug)]
pub struct Cwc {
    geometry: Geometry,
    /// For levels 2 and 3.
    arrays: [Array; 2],
    latency: u64,
    end: WalkEnd,
    clock: u64,
    statistics: [PwcStatistics; 2],
}

/// What the caches say of a page.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Where its entry can be.
    pub hint: Hint,
    /// For levels 2 and 3: the line is not here, and there is room to keep it.
    pub missing: [bool; 2],
}

impl Cwc {
    /// Empty caches as configured, for a table of `geometry`.
    pub fn new(config: &HashedWalks, geometry: Geometry) -> Self {
        let entries = |level: &str| config.cwc_entries.get(level).copied().unwrap_or(0);
        Self {
            geometry,
            arrays: [Array::new(entries("L2")), Array::new(entries("L3"))],
            latency: config.hash_cycles.max(config.cwc_latency_cycles),
            end: config.end,
            clock: 0,
            statistics: [PwcStatistics::default(); 2],
        }
    }

    /// None, for the same table.
    #[must_use]
    pub fn none(&self) -> Self {
        let arrays = [Array::new(0), Array::new(0)];
        Self { arrays, statistics: [PwcStatistics::default(); 2], ..*self }
    }

    /// The geometry of the table.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Cycles until the first read can be made: hashing, and looking up beside it.
    pub fn latency(&self) -> u64 {
        self.latency
    }

    /// When a walk ends.
    pub fn end(&self) -> WalkEnd {
        self.end
    }

    /// What is known of `input` at cycle `at`.
    #[inline]
    pub fn look_up<In: Address, A: Physical>(
        &mut self,
        table: &Hashed<In, A>,
        input: In,
        at: u64,
    ) -> Known {
        self.clock += 1;
        let mut missing = [false; 2];
        let mut slots = [None; 2];
        for (i, array) in self.arrays.iter_mut().enumerate() {
            let Some(key) = table.walk_table_key(input, i as Level + 2) else { continue };
            if array.capacity == 0 {
                continue;
            }
            self.statistics[i].lookups += 1;
            match array.get(key) {
                Some(slot) => {
                    let (_, ready, used) = &mut array.lines[slot];
                    *used = self.clock;
                    if *ready <= at {
                        self.statistics[i].hits += 1;
                        slots[i] = Some(slot);
                    }
                }
                None => missing[i] = true,
            }
        }
        let line = |i: usize| slots[i].map(|slot| &self.arrays[i].lines[slot].0);
        Known { hint: table.hint(input, [line(0), line(1)]), missing }
    }

    /// Keeps line `key` of the walk table for `level`; it can be used from `ready` on.
    pub fn insert(&mut self, level: Level, key: u64, line: Line, ready: u64) {
        let (clock, array) = (self.clock, &mut self.arrays[usize::from(level) - 2]);
        if array.keys.len() < array.capacity {
            array.keys.push(key);
            array.lines.push((line, ready, clock));
            return;
        }
        let oldest = array.lines.iter().enumerate().min_by_key(|(_, (.., used))| *used);
        if let Some((slot, _)) = oldest {
            array.keys[slot] = key;
            array.lines[slot] = (line, ready, clock);
        }
    }

    /// Drops everything, as page-walk caches do.
    pub fn flush(&mut self) {
        for array in &mut self.arrays {
            array.keys.clear();
            array.lines.clear();
        }
    }

    /// What each cache would answer for `input`: its level, and whether it has the line.
    pub fn probe<In: Address, A: Physical>(
        &self,
        table: &Hashed<In, A>,
        input: In,
    ) -> impl Iterator<Item = (Level, bool)> {
        (2..).zip(&self.arrays).filter(|(_, array)| array.capacity > 0).filter_map(
            move |(level, array)| {
                let key = table.walk_table_key(input, level)?;
                Some((level, array.get(key).is_some()))
            },
        )
    }

    /// Look-ups and hits, for levels 2 and 3.
    pub fn statistics(&self) -> impl Iterator<Item = (Level, PwcStatistics)> {
        let there = (2..).zip(&self.arrays).zip(self.statistics);
        there.filter(|((_, array), _)| array.capacity > 0).map(|((level, _), s)| (level, s))
    }

    /// Forgets all counts; contents stay.
    pub fn reset_statistics(&mut self) {
        self.statistics = [PwcStatistics::default(); 2];
    }
}
