//! Caches of side lines: lines next to the entries of a table without a tree, which say where a page's
//! entry can be ([`flatwalk_paging::keyed::Design::side_structures`]).
//!
//! Source: Skarlatos et al. (ASPLOS 2020), section 5. One fully associative structure for each kind of
//! side line, looked up while the page's number is hashed. A line that misses is read after the walk,
//! when nobody waits for it, or before, where the walk needs it. The paper's switching-off of caches that
//! hit too rarely is not modelled.

use std::sync::Arc;

use flatwalk_paging::keyed::{Design, Keyed, SideLineCount, SideLines};
use flatwalk_paging::{Address, Geometry, Line, Physical};

use crate::config::machine::{HashedWalks, WalkEnd};
use crate::counts::{Visitor, forget};
use crate::mmu::pwc::PwcStatistics;

/// The lines of one structure.
#[derive(Clone, Debug)]
struct Array {
    name: String,
    capacity: usize,
    keys: Vec<u64>,
    /// Of each key: its line, the cycle from which it can be used, and when it was used last.
    lines: Vec<(Line, u64, u64)>,
    statistics: PwcStatistics,
}

impl Array {
    fn get(&self, key: u64) -> Option<usize> {
        self.keys.iter().position(|&there| there == key)
    }
}

/// The caches of one walker, and how it walks tables of a design.
#[derive(Clone, Debug)]
pub struct SideCache {
    geometry: Geometry,
    design: Arc<dyn Design>,
    arrays: Box<[Array]>,
    latency: u64,
    end: WalkEnd,
    clock: u64,
}

/// What a cache says of a line.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// It has it.
    Here(Line),
    /// It has it from this cycle on.
    Later(Line, u64),
    /// It lacks it.
    Missing,
}

impl SideCache {
    /// Empty caches as configured, for tables of `design` and `geometry`.
    pub fn new(config: &HashedWalks, geometry: Geometry, design: &Arc<dyn Design>) -> Self {
        let sides = design.side_structures();
        let look_up = if sides.is_empty() { 0 } else { config.cwc_latency_cycles };
        let arrays = sides.into_iter().map(|side| Array {
            name: side.cache,
            capacity: match side.lines {
                SideLineCount::Machine(key) => config.cwc_entries.get(key).copied().unwrap_or(0),
                SideLineCount::Scheme(lines) => lines,
            } as usize,
            keys: Vec::new(),
            lines: Vec::new(),
            statistics: PwcStatistics::default(),
        });
        Self {
            geometry,
            design: Arc::clone(design),
            arrays: arrays.collect(),
            latency: config.hash_cycles.max(look_up),
            end: config.end,
            clock: 0,
        }
    }

    /// None, for the same table.
    #[must_use]
    pub fn none(&self) -> Self {
        let mut none = self.clone();
        for array in &mut none.arrays {
            array.capacity = 0;
        }
        none.flush();
        forget(|visit| none.counts(visit));
        none
    }

    /// The geometry of the table.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The design of the table.
    pub fn design(&self) -> &dyn Design {
        &*self.design
    }

    /// Cycles until the first read can be made: hashing, and at the same time looking up, where the
    /// table has side lines.
    pub fn latency(&self) -> u64 {
        self.latency
    }

    /// When a walk ends.
    pub fn end(&self) -> WalkEnd {
        self.end
    }

    /// A walk begins.
    #[inline]
    pub fn begin(&mut self) {
        self.clock += 1;
    }

    /// Looks line `key` of `structure` up at cycle `at`; `None` where there is no cache.
    #[inline]
    pub fn look_up(&mut self, structure: usize, key: u64, at: u64) -> Option<Found> {
        let array = &mut self.arrays[structure];
        if array.capacity == 0 {
            return None;
        }
        array.statistics.lookups += 1;
        let Some(slot) = array.get(key) else { return Some(Found::Missing) };
        let (line, ready, used) = &mut array.lines[slot];
        *used = self.clock;
        if *ready > at {
            return Some(Found::Later(*line, *ready));
        }
        array.statistics.hits += 1;
        Some(Found::Here(*line))
    }

    /// Keeps line `key` of `structure`; it can be used from `ready` on.
    pub fn insert(&mut self, structure: usize, key: u64, line: Line, ready: u64) {
        let (clock, array) = (self.clock, &mut self.arrays[structure]);
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

    /// What each cache would answer for `input`: its name, whether it has the line, and whether a walk
    /// needs that; and all lines that they have.
    pub fn probe<'a, In: Address, A: Physical>(
        &'a self,
        table: &Keyed<In, A>,
        input: In,
    ) -> (Vec<(&'a str, bool, bool)>, SideLines) {
        let (mut found, mut known) = (Vec::new(), SideLines::default());
        for (structure, (array, &needed)) in self.arrays.iter().zip(table.side_needed()).enumerate()
        {
            let Some(key) = table.side_key(structure, input, &known) else { continue };
            if array.capacity == 0 {
                continue;
            }
            let slot = array.get(key);
            found.push((array.name.as_str(), slot.is_some(), needed));
            if let Some(slot) = slot {
                known.set(structure, array.lines[slot].0);
            }
        }
        (found, known)
    }

    /// Look-ups and hits of each cache, by name.
    pub fn statistics(&self) -> impl Iterator<Item = (&str, PwcStatistics)> {
        let there = self.arrays.iter().filter(|array| array.capacity > 0);
        there.map(|array| (array.name.as_str(), array.statistics))
    }

    /// Shows its counts.
    pub fn counts(&mut self, visit: &mut Visitor<'_>) {
        for array in &mut self.arrays {
            visit(&mut array.statistics);
        }
    }
}
