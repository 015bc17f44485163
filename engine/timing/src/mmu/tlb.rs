//! Translation look-aside buffers: set-associative arrays with true LRU, per page size or shared.

use flatwalk_paging::{Address, Geometry, Hpa, Level, Rights};

use crate::config::machine;
use crate::counts::Visitor;
use crate::memory::ways::{Sets, Slot};

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
    /// Cycles that the walk waited for a page walker; very many count as `u16::MAX`.
    pub waited: u16,
}

impl Translation {
    /// Cycle in which an access has it that asks in cycle `at`. A younger instruction may ask
    /// earlier than the one that walked; it has the translation earlier by as much, if the walk began at
    /// once, or else by as much earlier as a walker was free: `free` says from which cycle on one is.
    #[inline]
    pub fn ready_for(&self, at: u64, free: impl FnOnce(u64) -> u64) -> u64 {
        let mut earlier = self.requested.saturating_sub(at);
        if earlier > 0 && self.waited > 0 {
            let began = self.requested + u64::from(self.waited);
            earlier = earlier.min(began.saturating_sub(free(at)));
        }
        self.ready - earlier
    }
}

/// Look-ups and hits for one page size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlbStatistics {
    /// Look-ups: all arrays are looked up together.
    pub lookups: u64,
    /// Hits. An entry that does not allow the access is none.
    pub hits: u64,
}

/// One array.
#[derive(Clone, Debug)]
struct Array {
    /// Levels of the pages it holds.
    levels: Vec<Level>,
    latency: u64,
    /// By page number; the tag is [`tag`]'s.
    sets: Sets<Translation>,
    /// How many entries of each level are valid.
    live: [u32; 4],
    /// Per level.
    hits: [u64; 4],
}

/// A page's number and level: not 0, as no level is.
#[inline]
fn tag(page: u64, level: Level) -> u64 {
    page << 2 | u64::from(level)
}

/// The level that a tag was made of.
#[inline]
fn level_of(tag: u64) -> usize {
    (tag & 3) as usize
}

impl Array {
    fn new(config: &machine::Tlb) -> Self {
        let none = Translation {
            frame: Hpa::default(),
            level: 0,
            rights: Rights::ALL,
            dirty: false,
            requested: 0,
            ready: 0,
            waited: 0,
        };
        Self {
            levels: config.pages.iter().map(|p| p.level()).collect(),
            latency: config.latency_cycles,
            sets: Sets::new(config.entries, config.ways, none),
            live: [0; 4],
            hits: [0; 4],
        }
    }

    /// Puts an entry in; returns where, and whether pages of some size came or went altogether.
    #[inline]
    fn insert(&mut self, page: u64, entry: Translation) -> (Slot, bool) {
        let (slot, old) = self.sets.insert(page, tag(page, entry.level), entry);
        if old & 3 == u64::from(entry.level) {
            return (slot, false);
        }
        let come = &mut self.live[usize::from(entry.level)];
        *come += 1;
        let mut changed = *come == 1;
        if old != 0 {
            let gone = &mut self.live[level_of(old)];
            *gone -= 1;
            changed |= *gone == 0;
        }
        (slot, changed)
    }
}

/// Where the translation of a base page was when it was last asked for.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The base page's number.
    page: u64,
    /// The tag of the entry that translates it. What has another tag now, or none, is known no longer.
    tag: u64,
    slot: Slot,
    array: u8,
}

impl Known {
    const NOTHING: Self = Self { page: u64::MAX, tag: u64::MAX, slot: Slot::FIRST, array: 0 };
}

/// Base pages that are remembered, each at its number's place modulo theirs: most look-ups of a
/// first-level TLB are for one of a few pages, by turns.
const KNOWN: usize = 64;

/// The arrays of one TLB level, looked up in parallel.
#[derive(Clone, Debug)]
pub struct Tlb {
    arrays: Vec<Array>,
    /// The arrays, by number, and the levels of pages that there are entries for: a size that is not
    /// there is not searched.
    searched: Vec<(u8, Level)>,
    /// By a page's level: the array that holds it, and the level that it has there.
    homes: [Option<(u8, Level)>; 4],
    known: Box<[Known; KNOWN]>,
    shifts: [u8; 4],
    /// The slowest array's.
    latency: u64,
    lookups: u64,
    /// Entries that were valid at most when some were dropped.
    fullest: u32,
}

impl Tlb {
    /// Empty arrays as configured, for a geometry's page sizes.
    pub fn new(config: &[machine::Tlb], geometry: Geometry) -> Self {
        let mut shifts = [0; 4];
        for level in 1..=3.min(geometry.levels()) {
            shifts[usize::from(level)] = geometry.shift(level);
        }
        let arrays: Vec<_> = config.iter().map(Array::new).collect();
        // Where no array holds a size, the largest below it that one holds.
        let mut homes = [None; 4];
        for level in 1..homes.len() {
            let holds = |array: &Array| array.levels.contains(&(level as Level));
            let own = arrays.iter().position(holds).map(|array| (array as u8, level as Level));
            homes[level] = own.or(homes[level - 1]);
        }
        let latency = arrays.iter().map(|array| array.latency).max().unwrap_or(0);
        let known = Box::new([Known::NOTHING; KNOWN]);
        let searched = Vec::new();
        Self { arrays, searched, homes, known, shifts, latency, lookups: 0, fullest: 0 }
    }

    /// Notes anew what is to be searched.
    #[cold]
    fn list(&mut self) {
        self.searched.clear();
        for (number, array) in self.arrays.iter().enumerate() {
            let live = array.levels.iter().filter(|&&level| array.live[usize::from(level)] > 0);
            self.searched.extend(live.map(|&level| (number as u8, level)));
        }
    }

    /// True if there is an entry for `address`; no look-up is counted, and nothing changes.
    pub fn holds(&self, address: u64) -> bool {
        self.peek(address).is_some()
    }

    /// The entry for `address`; no look-up is counted, and nothing changes.
    pub fn peek(&self, address: u64) -> Option<&Translation> {
        self.searched.iter().find_map(|&(number, level)| {
            let page = address >> self.shifts[usize::from(level)];
            let sets = &self.arrays[usize::from(number)].sets;
            sets.find(page, tag(page, level)).map(|slot| sets.value(slot))
        })
    }

    /// The translation that an entry of `level` for `address` would take the place of, and the first
    /// address of its page.
    pub fn victim(&self, address: u64, level: Level) -> Option<(u64, Translation)> {
        let (array, level) = self.homes[usize::from(level)]?;
        let page = address >> self.shifts[usize::from(level)];
        let (old, value) = self.arrays[usize::from(array)].sets.victim(page, tag(page, level))?;
        Some((old >> 2 << self.shifts[level_of(old)], *value))
    }

    /// A translation for `address` is soon to be put in, most likely that of a base page:
    /// prefetches the entry that it will take the place of.
    #[inline]
    pub fn prefetch_victim(&self, address: u64) {
        if let Some((array, level)) = self.homes[1] {
            let page = address >> self.shifts[usize::from(level)];
            self.arrays[usize::from(array)].sets.prefetch_victim(page);
        }
    }

    /// True if there are no arrays.
    pub fn is_empty(&self) -> bool {
        self.arrays.is_empty()
    }

    /// The slowest array's latency: what a miss costs before the next level is asked.
    pub fn latency(&self) -> u64 {
        self.latency
    }

    /// The entry for `address`, and the latency of the array that holds it.
    #[inline(always)]
    pub fn look_up(&mut self, address: u64) -> Option<(&Translation, u64)> {
        self.lookups += 1;
        let page = address >> self.shifts[1];
        let Known { page: of, tag, slot, array } = self.known[page as usize % KNOWN];
        if of == page && self.arrays[usize::from(array)].sets.holds(slot, tag) {
            let array = &mut self.arrays[usize::from(array)];
            array.sets.touch(slot);
            array.hits[level_of(tag)] += 1;
            return Some((array.sets.value(slot), array.latency));
        }
        self.search(address)
    }

    /// `entry`, which was just looked up, does not allow the access: that was no hit.
    pub fn refuse(&mut self, entry: &Translation) {
        if let Some((array, level)) = self.homes[usize::from(entry.level)] {
            self.arrays[usize::from(array)].hits[usize::from(level)] -= 1;
        }
    }

    #[inline(never)]
    fn search(&mut self, address: u64) -> Option<(&Translation, u64)> {
        for &(number, level) in &self.searched {
            let array = &mut self.arrays[usize::from(number)];
            let page = address >> self.shifts[usize::from(level)];
            let tag = tag(page, level);
            if let Some(slot) = array.sets.find(page, tag) {
                array.sets.touch(slot);
                array.hits[usize::from(level)] += 1;
                self.know(address, tag, slot, number);
                let array = &self.arrays[usize::from(number)];
                return Some((array.sets.value(slot), array.latency));
            }
        }
        None
    }

    /// Remembers where the translation of `address` is.
    #[inline]
    fn know(&mut self, address: u64, tag: u64, slot: Slot, array: u8) {
        let page = address >> self.shifts[1];
        self.known[page as usize % KNOWN] = Known { page, tag, slot, array };
    }

    /// Puts in the translation of the page that `address` lies in. Where no array holds its size,
    /// the part of it that is the largest size held goes in instead ("smashed", as Zen does).
    #[inline]
    pub fn insert(&mut self, address: u64, entry: Translation) {
        let Some((array, level)) = self.homes[usize::from(entry.level)] else { return };
        let shift = self.shifts[usize::from(level)];
        let mut entry = entry;
        if level != entry.level {
            let within = address & ((1 << self.shifts[usize::from(entry.level)]) - 1);
            entry.frame = entry.frame.offset(within >> shift << shift);
            entry.level = level;
        }
        let page = address >> shift;
        let (slot, changed) = self.arrays[usize::from(array)].insert(page, entry);
        self.know(address, tag(page, level), slot, array);
        if changed {
            self.list();
        }
    }

    /// Drops every entry of a page that overlaps `start..=last`.
    pub fn flush(&mut self, start: u64, last: u64) {
        // Nothing else lets it have fewer entries.
        self.fullest = self.fullest.max(self.occupied());
        for array in &mut self.arrays {
            let live = &mut array.live;
            array.sets.drop_where(|tag| {
                let shift = self.shifts[level_of(tag)];
                let gone = (start >> shift..=last >> shift).contains(&(tag >> 2));
                live[level_of(tag)] -= u32::from(gone);
                gone
            });
        }
        self.list();
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

    /// How many entries are valid.
    fn occupied(&self) -> u32 {
        self.arrays.iter().flat_map(|array| array.live).sum()
    }

    /// How many entries were valid at most at a time, of how many.
    pub fn fullest(&self) -> (u32, usize) {
        let entries = self.arrays.iter().flat_map(|array| array.sets.tags()).count();
        (self.fullest.max(self.occupied()), entries)
    }

    /// Shows its counts.
    pub fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.lookups);
        for array in &mut self.arrays {
            visit(&mut array.hits);
        }
    }
}
