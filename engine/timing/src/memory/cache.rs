//! A set-associative, write-back cache of 64-byte lines with true LRU and a page-table tag.
//!
//! A set is a run of words in order of recency, so that the words of an 8-way set share one line of
//! the host's cache. Replacement may spare page-table lines (Park et al., ASPLOS 2022, section 6.1).

use flatwalk_os::Random;
use flatwalk_paging::{Address, Hpa};

use crate::config::machine;
use crate::memory::simulator_prefetch::prefetch;
use crate::memory::ways;

/// log2 of the line size in bytes.
pub const LINE_SHIFT: u32 = 6;

/// The number of a 64-byte line of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Line(pub u64);

impl Line {
    /// The line that `address` lies in.
    #[inline]
    pub fn of(address: Hpa) -> Self {
        Self(address.raw() >> LINE_SHIFT)
    }
}

/// The bit of a line's number from which on it says who owns it, where programs share a cache. All
/// memory that a machine can have lies below.
pub const OWNER_SHIFT: u32 = 40;

/// What replacement does in the set that is about to take a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// Evict the least recently used line.
    Lru,
    /// In this many per cent of evictions evict the least recently used line that holds no page
    /// table, if there is one.
    ProtectPageTables {
        /// Per cent.
        percent: u32,
    },
    /// In this many per cent of evictions evict the least recently used line that is not spared, else
    /// of the program's own; in the others, of both together. Spared are lines that hold page tables
    /// of the programs in `active`.
    Owners {
        /// Per cent.
        percent: u32,
        /// Whose the line is that comes in.
        owner: u64,
        /// One bit for each program.
        active: u64,
    },
    /// A program that fills so many ways evicts of its own, sparing its tables as
    /// [`Replacement::ProtectPageTables`] does; one that does not yet, of the others'.
    Ways {
        /// Per cent.
        percent: u32,
        /// Whose the line is that comes in.
        owner: u64,
        /// Ways.
        ways: u32,
    },
    /// Keep at most so many ways of a set for data, and the others for tables: evict the least
    /// recently used line of the kind that has its share already.
    Partition {
        /// Ways.
        data_ways: u32,
    },
}

/// A line that had to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Which.
    pub line: Line,
    /// It must be written back.
    pub dirty: bool,
    /// It holds page-table entries.
    pub table: bool,
}

/// What a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The line is there.
    Hit,
    /// The line was asked for and may be on its way still: the MSHRs know.
    Pending,
    /// It is not.
    Miss,
}

const VALID: u64 = 1;
const TABLE: u64 = 2;
const DIRTY: u64 = 4;
const PENDING: u64 = 8;
const FLAGS: u64 = 15;
const TAG_SHIFT: u32 = 4;

/// One cache.
#[derive(Clone, Debug)]
pub struct Cache {
    /// `ways` words per set, most recently used first: line number, then flags. 0 is empty.
    words: Vec<u64>,
    /// Where the first set's words start: where a line of the host's cache does, which then has the
    /// whole set if that has 8 ways.
    first: usize,
    ways: usize,
    set_mask: u64,
}

impl Cache {
    /// An empty cache of the configured size.
    pub fn new(config: &machine::Cache) -> Self {
        let lines = (config.size_bytes >> LINE_SHIFT) as usize;
        let ways = config.ways as usize;
        let words = vec![0_u64; lines + 7];
        // "As aligned as it can be" is an answer, too; nothing but speed depends on it.
        let first = words.as_ptr().align_offset(64).min(7);
        Self { words, first, ways, set_mask: (lines / ways) as u64 - 1 }
    }

    /// Where the words of the line's set start.
    #[inline]
    fn start(&self, line: Line) -> usize {
        self.first + (line.0 & self.set_mask) as usize * self.ways
    }

    #[inline]
    fn set(&mut self, line: Line) -> &mut [u64] {
        let start = self.start(line);
        &mut self.words[start..start + self.ways]
    }

    #[inline]
    fn position(set: &[u64], line: Line) -> Option<usize> {
        ways::find_masked(set, !(FLAGS ^ VALID), line.0 << TAG_SHIFT | VALID)
    }

    /// Looks a line up and makes it the most recently used; a write makes it dirty.
    #[inline]
    pub fn access(&mut self, line: Line, write: bool) -> Lookup {
        let set = self.set(line);
        let dirty = if write { DIRTY } else { 0 };
        // What was used last is used again more often than not.
        if set[0] & !(FLAGS ^ VALID) != line.0 << TAG_SHIFT | VALID {
            let Some(at) = Self::position(set, line) else { return Lookup::Miss };
            let word = set[at];
            set.copy_within(0..at, 1);
            set[0] = word;
        }
        set[0] |= dirty;
        let word = set[0];
        if word & PENDING == 0 { Lookup::Hit } else { Lookup::Pending }
    }

    /// Accesses the line if it was used last of its set, and is not on its way; false if not so.
    #[inline]
    pub fn access_newest(&mut self, line: Line, write: bool) -> bool {
        let start = self.start(line);
        let word = &mut self.words[start];
        let there = *word & !(TABLE | DIRTY) == line.0 << TAG_SHIFT | VALID;
        *word |= if there && write { DIRTY } else { 0 };
        there
    }

    /// Asks the host for the words of the line's set.
    #[inline]
    pub fn prefetch_hint(&self, line: Line) {
        prefetch(&self.words[self.start(line)]);
    }

    /// The least recently used line of the set of `line`, if the set is full.
    #[inline]
    pub fn oldest(&self, line: Line) -> Option<Line> {
        let word = self.words[self.start(line) + self.ways - 1];
        (word & VALID != 0).then_some(Line(word >> TAG_SHIFT))
    }

    /// True if the line is there; changes nothing.
    pub fn contains(&mut self, line: Line) -> bool {
        Self::position(self.set(line), line).is_some()
    }

    /// Notes that a line is no longer on its way.
    #[inline]
    pub fn arrived(&mut self, line: Line) {
        let set = self.set(line);
        if let Some(at) = Self::position(set, line) {
            set[at] &= !PENDING;
        }
    }

    /// Marks a line dirty where it stands, without using it. False if it is not there.
    #[inline]
    pub fn write_back(&mut self, line: Line) -> bool {
        let set = self.set(line);
        let at = Self::position(set, line);
        if let Some(at) = at {
            set[at] |= DIRTY;
        }
        at.is_some()
    }

    /// Puts a line in that is not there, most recently used, and returns what had to go for it.
    /// `pending` if it is yet to arrive.
    #[inline]
    pub fn fill(
        &mut self,
        line: Line,
        table: bool,
        dirty: bool,
        pending: bool,
        replacement: Replacement,
        random: &mut Random,
    ) -> Option<Evicted> {
        let flag = |on: bool, bit: u64| if on { bit } else { 0 };
        let word = line.0 << TAG_SHIFT
            | VALID
            | flag(table, TABLE)
            | flag(dirty, DIRTY)
            | flag(pending, PENDING);
        let set = self.set(line);
        debug_assert!(Self::position(set, line).is_none());
        let lru = set.len() - 1;
        // Empty words only ever stand at the end.
        let victim = match replacement {
            Replacement::ProtectPageTables { percent }
                if set[lru] & (VALID | TABLE) == VALID | TABLE
                    && random.below(100) < u64::from(percent) =>
            {
                set.iter().rposition(|&word| word & TABLE == 0).unwrap_or(lru)
            }
            Replacement::Partition { data_ways } if set[lru] & VALID != 0 => {
                let data = set.iter().filter(|&&word| word & TABLE == 0).count();
                // The kind that the line is of if it has its share, else the other, which has more.
                let share = if table { set.len() - data_ways as usize } else { data_ways as usize };
                let have = if table { set.len() - data } else { data };
                let goes = if (have >= share) == table { TABLE } else { 0 };
                set.iter().rposition(|&word| word & TABLE == goes).unwrap_or(lru)
            }
            Replacement::Owners { percent, owner, active } if set[lru] & VALID != 0 => {
                Self::victim_of_owner(set, percent, owner, active, random).unwrap_or(lru)
            }
            Replacement::Ways { percent, owner, ways } if set[lru] & VALID != 0 => {
                Self::victim_by_ways(set, percent, owner, ways, random).unwrap_or(lru)
            }
            _ => lru,
        };
        let old = set[victim];
        set.copy_within(0..victim, 1);
        set[0] = word;
        (old & VALID != 0).then_some(Evicted {
            line: Line(old >> TAG_SHIFT),
            dirty: old & DIRTY != 0,
            table: old & TABLE != 0,
        })
    }

    #[cold]
    fn victim_of_owner(
        set: &[u64],
        percent: u32,
        owner: u64,
        active: u64,
        random: &mut Random,
    ) -> Option<usize> {
        let spared = |word: u64| word & TABLE != 0 && active >> owner_of(word) & 1 != 0;
        let lru = set.len() - 1;
        if !spared(set[lru]) {
            return Some(lru);
        }
        if random.below(100) < u64::from(percent) {
            let free = set.iter().rposition(|&word| !spared(word));
            free.or_else(|| set.iter().rposition(|&word| owner_of(word) == owner))
        } else {
            set.iter().rposition(|&word| !spared(word) || owner_of(word) == owner)
        }
    }

    #[cold]
    fn victim_by_ways(
        set: &[u64],
        percent: u32,
        owner: u64,
        ways: u32,
        random: &mut Random,
    ) -> Option<usize> {
        let own = |word: &u64| owner_of(*word) == owner;
        if set.iter().filter(|word| own(word)).count() < ways as usize {
            return set.iter().rposition(|word| !own(word));
        }
        let last = set.iter().rposition(own)?;
        if set[last] & TABLE != 0 && random.below(100) < u64::from(percent) {
            let data = set.iter().rposition(|word| own(word) && word & TABLE == 0);
            return data.or(Some(last));
        }
        Some(last)
    }

    /// Lines that hold page-table entries, and lines in all.
    pub fn table_lines(&self) -> (usize, usize) {
        let tables = self.words.iter().filter(|&&w| w & (VALID | TABLE) == VALID | TABLE).count();
        (tables, self.words.iter().filter(|&&w| w & VALID != 0).count())
    }
}

/// Who owns the line of a word.
fn owner_of(word: u64) -> u64 {
    word >> (TAG_SHIFT + OWNER_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(ways: u32) -> Cache {
        Cache::new(&machine::Cache {
            size_bytes: 64 * u64::from(ways),
            ways,
            latency_cycles: 1,
            mshrs: 1,
        })
    }

    fn fill(cache: &mut Cache, n: u64, table: bool, how: Replacement) -> Option<u64> {
        let mut random = Random::new(1);
        cache.fill(Line(n), table, false, false, how, &mut random).map(|e| e.line.0)
    }

    #[test]
    fn evicts_the_least_recently_used() {
        let mut cache = cache(4);
        for n in 0..4 {
            assert_eq!(fill(&mut cache, n, false, Replacement::Lru), None);
        }
        assert_eq!(cache.access(Line(0), false), Lookup::Hit);
        assert_eq!(fill(&mut cache, 4, false, Replacement::Lru), Some(1));
        assert_eq!(fill(&mut cache, 5, false, Replacement::Lru), Some(2));
        assert_eq!(cache.access(Line(1), false), Lookup::Miss);
    }

    #[test]
    fn spares_tables_while_there_is_data() {
        let mut cache = cache(4);
        for n in 0..4 {
            fill(&mut cache, n, n < 2, Replacement::Lru);
        }
        let spare = Replacement::ProtectPageTables { percent: 100 };
        assert_eq!(fill(&mut cache, 4, true, spare), Some(2));
        assert_eq!(fill(&mut cache, 5, true, spare), Some(3));
        assert_eq!(fill(&mut cache, 6, false, spare), Some(0), "only tables left: plain LRU");
        let never = Replacement::ProtectPageTables { percent: 0 };
        assert_eq!(fill(&mut cache, 7, false, never), Some(1));
    }

    /// Line `n` of a program.
    fn line(owner: u64, n: u64) -> u64 {
        owner << OWNER_SHIFT | n
    }

    #[test]
    fn one_programs_lines_do_not_evict_anothers_tables() {
        let owners = |owner, active| Replacement::Owners { percent: 100, owner, active };
        let mut cache = cache(4);
        for (owner, n, table) in [(0, 0, true), (0, 1, true), (1, 2, false), (1, 3, true)] {
            fill(&mut cache, line(owner, n), table, owners(owner, 0b11));
        }
        // Program 1's data goes first; then its own table, though program 0's are older.
        assert_eq!(fill(&mut cache, line(1, 4), false, owners(1, 0b11)), Some(line(1, 2)));
        assert_eq!(fill(&mut cache, line(1, 5), true, owners(1, 0b11)), Some(line(1, 4)));
        assert_eq!(fill(&mut cache, line(1, 6), false, owners(1, 0b11)), Some(line(1, 3)));
        assert_eq!(fill(&mut cache, line(1, 7), true, owners(1, 0b11)), Some(line(1, 6)));
        // Two tables of each: a fill of program 0 takes its own, a third program's the oldest of all.
        assert_eq!(fill(&mut cache, line(0, 8), true, owners(0, 0b11)), Some(line(0, 0)));
        assert_eq!(fill(&mut cache, line(2, 9), true, owners(2, 0b111)), Some(line(0, 1)));
        // Without priority in force for program 1, its tables are like data: the oldest goes.
        assert_eq!(fill(&mut cache, line(0, 10), false, owners(0, 0b101)), Some(line(1, 5)));
        // The few evictions that spare nothing still leave the others' tables alone.
        let never = Replacement::Owners { percent: 0, owner: 2, active: 0b111 };
        assert_eq!(fill(&mut cache, line(2, 11), false, never), Some(line(2, 9)));
        assert_eq!(fill(&mut cache, line(2, 12), false, never), Some(line(0, 10)));
    }

    #[test]
    fn ways_of_a_program_are_its_own() {
        let ways = |owner| Replacement::Ways { percent: 100, owner, ways: 2 };
        let mut cache = cache(4);
        for n in 0..4 {
            fill(&mut cache, line(0, n), n == 0, ways(0));
        }
        // Program 0 had the set to itself; program 1 takes its two ways, and no more.
        assert_eq!(fill(&mut cache, line(1, 4), false, ways(1)), Some(line(0, 0)));
        assert_eq!(fill(&mut cache, line(1, 5), true, ways(1)), Some(line(0, 1)));
        assert_eq!(fill(&mut cache, line(1, 6), false, ways(1)), Some(line(1, 4)));
        assert_eq!(
            fill(&mut cache, line(1, 7), false, ways(1)),
            Some(line(1, 6)),
            "its table is spared"
        );
        assert_eq!(fill(&mut cache, line(0, 8), false, ways(0)), Some(line(0, 2)));
    }

    #[test]
    fn keeps_the_ways_of_either_kind() {
        let mut cache = cache(4);
        for n in 0..4 {
            fill(&mut cache, n, false, Replacement::Lru);
        }
        let division = Replacement::Partition { data_ways: 3 };
        assert_eq!(
            fill(&mut cache, 10, true, division),
            Some(0),
            "tables have less than their way"
        );
        assert_eq!(fill(&mut cache, 11, true, division), Some(10), "and now no more than it");
        assert_eq!(fill(&mut cache, 4, false, division), Some(1));
        assert_eq!(fill(&mut cache, 5, false, division), Some(2), "the table is spared");
        let division = Replacement::Partition { data_ways: 1 };
        assert_eq!(fill(&mut cache, 6, false, division), Some(3), "data has more than its way");
        assert_eq!(fill(&mut cache, 12, true, division), Some(4));
        assert_eq!(fill(&mut cache, 13, true, division), Some(5));
        assert_eq!(fill(&mut cache, 14, true, division), Some(11));
        assert_eq!(fill(&mut cache, 7, false, division), Some(6));
    }

    #[test]
    fn keeps_dirt_until_eviction() {
        let mut cache = cache(1);
        let mut random = Random::new(1);
        fill(&mut cache, 0, true, Replacement::Lru);
        assert_eq!(cache.access(Line(0), true), Lookup::Hit);
        let gone = cache.fill(Line(1), false, false, true, Replacement::Lru, &mut random);
        assert_eq!(gone, Some(Evicted { line: Line(0), dirty: true, table: true }));
        assert_eq!(cache.access(Line(1), false), Lookup::Pending);
        cache.arrived(Line(1));
        assert_eq!(cache.access(Line(1), false), Lookup::Hit);
    }
}
