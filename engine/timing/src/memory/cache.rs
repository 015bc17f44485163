//! A set-associative, write-back cache of 64-byte lines with true LRU and a page-table tag.
//!
//! A set is a run of words in order of recency, so that the words of an 8-way set share one line of
//! a cache of the simulator's machine. A replacement policy may choose another victim.

use flatwalk_os::Random;

use crate::config::machine;
use crate::memory::line::{
    DIRTY, FLAGS, Line, MARK, MARK_SHIFT, NOWHERE, OLD, PENDING, Set, TABLE, TAG_SHIFT, VALID,
};
use crate::memory::replacement::ReplacementPolicy;
use crate::memory::simulator_prefetch::prefetch;
use crate::memory::ways;

/// A line that had to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Which.
    pub line: Line,
    /// It must be written back.
    pub dirty: bool,
    /// It holds page-table entries.
    pub table: bool,
    /// Its mark; see [`Cache::set_mark`].
    pub mark: u8,
}

/// The mark of the line that a word stands for.
#[inline]
fn mark_of(word: u64) -> u8 {
    ((word & MARK) >> MARK_SHIFT) as u8
}

/// The word at `way` of one of so many sets that stands for a line that nothing is known of.
fn unknown(set: u64, way: usize, sets: u64) -> u64 {
    (NOWHERE + way as u64 * sets + set) << TAG_SHIFT | VALID
}

/// What a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The line is there.
    Hit,
    /// The line was asked for and may be on its way still: the MSHRs know. Or it has a mark.
    Pending,
    /// It is not.
    Miss,
}

/// One cache.
#[derive(Clone, Debug)]
pub struct Cache {
    /// `ways` words per set, most recently used first: line number, then flags. 0 is empty.
    words: Vec<u64>,
    /// Where the first set's words start: where a line of the simulator's machine does, which then has
    /// the whole set if that has 8 ways.
    first: usize,
    ways: usize,
    set_mask: u64,
}

impl Cache {
    /// An empty cache of the configured size.
    pub fn new(config: &machine::Cache) -> Self {
        let lines = (config.size_bytes >> super::line::LINE_SHIFT) as usize;
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
            let word = set[at] & !OLD | dirty;
            ways::put_in_front(set, at, word);
            return Self::found(word);
        }
        set[0] = set[0] & !OLD | dirty;
        Self::found(set[0])
    }

    /// What a look-up says that has found `word`.
    #[inline]
    fn found(word: u64) -> Lookup {
        if word & (PENDING | MARK) == 0 { Lookup::Hit } else { Lookup::Pending }
    }

    /// Accesses the line if it was used last of its set, is not on its way and has no mark; false if not so.
    #[inline]
    pub fn access_newest(&mut self, line: Line, write: bool) -> bool {
        let start = self.start(line);
        let word = &mut self.words[start];
        let there = *word & !(TABLE | DIRTY) == line.0 << TAG_SHIFT | VALID;
        if there && write {
            *word |= DIRTY;
        }
        there
    }

    /// Prefetches the words of the line's set.
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

    /// The mark of a line that is there, 0 if it has none; changes nothing.
    pub fn mark(&self, line: Line) -> Option<u8> {
        let start = self.start(line);
        let set = &self.words[start..start + self.ways];
        Self::position(set, line).map(|at| mark_of(set[at]))
    }

    /// Gives a line a mark, if it is there: a prefetcher brought it.
    pub fn set_mark(&mut self, line: Line, mark: u8) {
        let set = self.set(line);
        if let Some(at) = Self::position(set, line) {
            set[at] = set[at] & !MARK | u64::from(mark) << MARK_SHIFT;
        }
    }

    /// Takes a line's mark away; returns what it was, 0 for none.
    pub fn unmark(&mut self, line: Line) -> u8 {
        let mark = self.mark(line).unwrap_or(0);
        if mark > 0 {
            self.set_mark(line, 0);
        }
        mark
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
            set[at] = set[at] & !OLD | DIRTY;
        }
        at.is_some()
    }

    /// True if the line is there and has been written.
    #[inline]
    pub fn is_modified(&self, line: Line) -> bool {
        let start = self.start(line);
        let set = &self.words[start..start + self.ways];
        Self::position(set, line).is_some_and(|at| set[at] & DIRTY != 0)
    }

    /// The line is no longer to be written back. True if it was.
    pub fn clean(&mut self, line: Line) -> bool {
        let set = self.set(line);
        let Some(at) = Self::position(set, line) else { return false };
        let was_dirty = set[at] & DIRTY != 0;
        set[at] &= !DIRTY;
        was_dirty
    }

    /// Removes the line. True if it was there.
    pub fn remove(&mut self, line: Line) -> bool {
        let set = self.set(line);
        let Some(at) = Self::position(set, line) else { return false };
        set.copy_within(at + 1.., at);
        set[set.len() - 1] = 0;
        true
    }

    /// Puts a line in that is not there, most recently used, and returns what had to go for it.
    /// `pending` if it is yet to arrive.
    #[inline(always)]
    pub fn fill(
        &mut self,
        line: Line,
        table: bool,
        dirty: bool,
        pending: bool,
        policy: Option<&mut dyn ReplacementPolicy>,
        random: &mut Random,
    ) -> Option<Evicted> {
        // Without branches, which a processor could not predict.
        let flag = |on: bool, bit: u64| u64::from(on) * bit;
        let word = line.0 << TAG_SHIFT
            | VALID
            | flag(table, TABLE)
            | flag(dirty, DIRTY)
            | flag(pending, PENDING);
        let set = self.set(line);
        debug_assert!(Self::position(set, line).is_none());
        let old = match policy {
            Some(policy) if Set(set).is_full() => {
                let victim = policy.victim(Set(set), table, random);
                let old = set[victim];
                ways::put_in_front(set, victim, word);
                old
            }
            _ => ways::push_in_front(set, word),
        };
        (old & VALID != 0).then_some(Evicted {
            line: Line(old >> TAG_SHIFT),
            dirty: old & DIRTY != 0,
            table: old & TABLE != 0,
            mark: mark_of(old),
        })
    }

    /// The trace has a gap here: from now on it is known which lines of data are used after it.
    pub fn begin_history(&mut self) {
        for word in &mut self.words {
            if *word & (VALID | TABLE) == VALID {
                *word |= OLD;
            }
        }
    }

    /// Lines of data that are used no more are not written back when they go: in a gap they may have been.
    pub fn clean_old(&mut self) {
        for word in &mut self.words {
            if *word & OLD != 0 {
                *word &= !DIRTY;
            }
        }
    }

    /// What is known of the time since [`Cache::begin_history`] ends here. Of the lines that have
    /// not been used in it, as many are to be written back as of those that have: the trace does
    /// not say what was in their places by now. What they hold stays, since the latest that is
    /// known is the best that can be said of that (Wood, Hill and Kessler, "A model for estimating
    /// trace-sample miss ratios", 1991, on what a sample's cache holds at its start).
    ///
    /// Each program's lines are like its own. Where there are as many lines of data as the cache has, or
    /// more, places that are empty would have been taken, too. Lines that nothing is known of are like
    /// all, but as likely as one of them is the one that is wanted, what takes its place finds it
    /// there, and nothing goes.
    ///
    /// Args: so many lines of the caches above, by owner, have not had the time to be written back
    /// here; there are `data_lines` of data; `is_clean` says of a line that it has not been
    /// modified. Nothing is done where too few lines have been used to tell.
    pub fn presume_history(
        &mut self,
        above: impl Fn(u64) -> u64,
        data_lines: u64,
        is_clean: impl Fn(Line) -> bool,
    ) {
        let mut owners = Vec::new();
        for &word in self.words.iter().filter(|&&word| word & (VALID | TABLE | OLD) == VALID) {
            let owner = Share::of(&mut owners, Line(word >> TAG_SHIFT).owner());
            owner.used += 1;
            owner.modified += u64::from(word & DIRTY != 0);
        }
        for owner in &mut owners {
            owner.above = above(owner.owner);
        }
        let mut all = Share::all(&owners);
        let is_full = data_lines >= self.lines();
        let mut of_unknown = self.of_unknown(all, data_lines);
        // Of one program there is nothing to tell apart.
        let is_of_one = owners.len() == 1;
        let sets = self.set_mask + 1;
        for set in 0..sets {
            let start = self.first + set as usize * self.ways;
            for (way, word) in self.words[start..start + self.ways].iter_mut().enumerate() {
                if all.can_tell() && is_full && *word & VALID == 0 {
                    *word = unknown(set, way, sets) | OLD;
                }
                if *word & OLD == 0 {
                    continue;
                }
                *word &= !OLD;
                let line = Line(*word >> TAG_SHIFT);
                let share = if line.is_nowhere() {
                    &mut of_unknown
                } else if is_of_one {
                    &mut all
                } else {
                    Share::of(&mut owners, line.owner())
                };
                if share.can_tell() {
                    *word &= !DIRTY;
                    if share.next_is_modified(|| is_clean(line)) {
                        *word |= DIRTY;
                    }
                }
            }
        }
    }

    /// What lines that are used say of those that nothing is known of, if there are so many lines of data.
    fn of_unknown(&self, all: Share, data_lines: u64) -> Share {
        let (mut known, mut unknown) = (0, 0);
        let lines = self.lines() as usize;
        for &word in &self.words[self.first..self.first + lines] {
            let is_unknown = word & VALID == 0 || Line(word >> TAG_SHIFT).is_nowhere();
            unknown += u64::from(is_unknown);
            known += u64::from(!is_unknown && word & TABLE == 0);
        }
        // Data that are not among the lines known, and those of them for which there is no place.
        let others = data_lines.saturating_sub(known);
        let outside = others.saturating_sub(unknown);
        // In thousandths of lines, about, as there may be few of them.
        let (used, above) = (all.used << 10, all.above << 10);
        let modified = u128::from(all.modified << 10) * u128::from(outside);
        let modified = modified / u128::from(others.max(1));
        Share { used, above, modified: modified.try_into().expect("no more than all"), ..all }
    }

    /// All sets.
    #[cfg(test)]
    pub(crate) fn sets(&self) -> impl Iterator<Item = Set<'_>> {
        let words = self.words[self.first..].chunks_exact(self.ways);
        words.take(self.set_mask as usize + 1).map(Set)
    }

    /// So many lines came in while nothing was seen of it. They made lines older that `policy` spares, and took some in
    /// evictions that spare nothing. Other lines stay, as [`Cache::presume_history`] says, and as old as
    /// they were to each other.
    pub fn pass_over(&mut self, fills: u64, policy: &dyn ReplacementPolicy, random: &mut Random) {
        let sets = self.set_mask + 1;
        if fills >= sets {
            (0..sets).for_each(|set| self.pass_over_set(set, fills / sets, policy));
        }
        for _ in 0..fills % sets {
            self.pass_over_set(random.below(sets), 1, policy);
        }
        let unspared = u64::from(policy.unspared_percent());
        for set in (0..(fills * unspared + random.below(100)) / 100).map(|_| random.below(sets)) {
            let words = self.set(Line(set));
            let place = policy.unspared(Set(words));
            if Set(words).is_full() && policy.spares(Set(words), place) {
                self.take_spared(set, place, policy);
            }
        }
    }

    /// So many lines came into the set of that number in evictions that spare what `policy` spares.
    fn pass_over_set(&mut self, set: u64, fills: u64, policy: &dyn ReplacementPolicy) {
        let words = self.set(Line(set));
        if !Set(words).is_full() {
            return;
        }
        let others = Others::of(words, policy);
        if others.0.is_empty() {
            let place = policy.unspared(Set(words));
            self.take_spared(set, place, policy);
            return;
        }
        let is_other = |words: &[u64], place| !policy.spares(Set(words), place);
        for _ in 0..fills.min(others.0.len() as u64) {
            if let Some(place) = Set(words).oldest_where(|place| is_other(words, place)) {
                ways::put_in_front(words, place, words[place]);
            }
        }
        others.put_back(words, policy);
    }

    /// A line that `policy` mostly spares went for one that is not known.
    fn take_spared(&mut self, set: u64, place: usize, policy: &dyn ReplacementPolicy) {
        let unknown = unknown(set, place, self.set_mask + 1);
        let words = self.set(Line(set));
        let mut others = Others::of(words, policy);
        ways::put_in_front(words, place, unknown);
        others.0.push(unknown);
        others.put_back(words, policy);
    }

    /// The lines that are there; those that nothing is known of left out.
    pub fn known_lines(&self) -> impl Iterator<Item = Line> {
        let there = self.words.iter().filter(|&&word| word & VALID != 0);
        there.map(|word| Line(word >> TAG_SHIFT)).filter(|line| !line.is_nowhere())
    }

    /// Lines that it has room for.
    pub fn lines(&self) -> u64 {
        (self.set_mask + 1) * self.ways as u64
    }

    /// Lines that hold page-table entries, and all that hold something.
    pub fn table_lines(&self) -> (usize, usize) {
        let tables = self.words.iter().filter(|&&w| w & (VALID | TABLE) == VALID | TABLE).count();
        (tables, self.words.iter().filter(|&&w| w & VALID != 0).count())
    }
}

/// The words of a set's lines that a policy does not spare, most recently used first.
struct Others(Vec<u64>);

impl Others {
    fn of(words: &[u64], policy: &dyn ReplacementPolicy) -> Self {
        let places = (0..words.len()).filter(|&place| !policy.spares(Set(words), place));
        Self(places.map(|place| words[place]).collect())
    }

    /// They are in the places that lines have now which are not spared, in their old order.
    fn put_back(self, words: &mut [u64], policy: &dyn ReplacementPolicy) {
        let mut others = self.0.into_iter();
        for place in 0..words.len() {
            if !policy.spares(Set(words), place)
                && let Some(other) = others.next()
            {
                words[place] = other;
            }
        }
    }
}

/// What lines of a program that are used after a gap say of those that are not.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    owner: u64,
    /// Lines of data that are used, and those of them that are modified.
    used: u64,
    modified: u64,
    /// Lines of the caches above.
    above: u64,
    /// Every line adds what is modified of those known; where that exceeds them all, one is to be
    /// written back.
    sum: u64,
}

impl Share {
    /// That of an owner.
    fn of(all: &mut Vec<Self>, owner: u64) -> &mut Self {
        let place = all.iter().position(|one| one.owner == owner).unwrap_or_else(|| {
            all.push(Self { owner, ..Self::default() });
            all.len() - 1
        });
        &mut all[place]
    }

    /// That of all together.
    fn all(owners: &[Self]) -> Self {
        let sum = |of: fn(&Self) -> u64| owners.iter().map(of).sum();
        let (used, modified) = (sum(|one| one.used), sum(|one| one.modified));
        Self { used, modified, above: sum(|one| one.above), ..Self::default() }
    }

    /// Lines that could have been modified and written back here.
    fn known(&self) -> u64 {
        self.used.saturating_sub(self.above)
    }

    fn can_tell(&self) -> bool {
        self.known() > self.above
    }

    /// Whether the next line is to be written back, unless it is clean.
    fn next_is_modified(&mut self, is_clean: impl Fn() -> bool) -> bool {
        let known = self.known();
        self.sum += self.modified.min(known);
        let is_modified = self.sum >= known && !is_clean();
        self.sum -= if is_modified { known } else { 0 };
        is_modified
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::memory::line::OWNER_SHIFT;

    pub(crate) fn cache(ways: u32) -> Cache {
        Cache::new(&machine::Cache {
            size_bytes: 64 * u64::from(ways),
            ways,
            latency_cycles: 1,
            mshrs: 1,
            prefetcher: Vec::new(),
        })
    }

    fn fill(cache: &mut Cache, n: u64, table: bool) -> Option<u64> {
        let mut random = Random::new(1);
        cache.fill(Line(n), table, false, false, None, &mut random).map(|e| e.line.0)
    }

    #[test]
    fn evicts_the_least_recently_used() {
        let mut cache = cache(4);
        for n in 0..4 {
            assert_eq!(fill(&mut cache, n, false), None);
        }
        assert_eq!(cache.access(Line(0), false), Lookup::Hit);
        assert_eq!(fill(&mut cache, 4, false), Some(1));
        assert_eq!(fill(&mut cache, 5, false), Some(2));
        assert_eq!(cache.access(Line(1), false), Lookup::Miss);
    }

    #[test]
    fn a_line_that_is_removed_leaves_its_way_empty() {
        let mut cache = cache(4);
        for n in 0..4 {
            fill(&mut cache, n, false);
        }
        assert!(cache.write_back(Line(2)) && cache.is_modified(Line(2)));
        assert!(cache.remove(Line(2)) && !cache.remove(Line(2)));
        assert!(!cache.contains(Line(2)) && !cache.is_modified(Line(2)));
        assert_eq!(fill(&mut cache, 4, false), None, "there is room");
        assert_eq!(fill(&mut cache, 5, false), Some(0), "the others are as old as they were");
        assert!(cache.write_back(Line(4)) && cache.clean(Line(4)) && !cache.clean(Line(4)));
    }

    #[test]
    fn a_mark_stays_until_it_is_taken_away() {
        let mut cache = cache(2);
        assert_eq!(cache.mark(Line(0)), None);
        for n in 0..2 {
            fill(&mut cache, n, false);
            cache.set_mark(Line(n), 3);
        }
        assert!(!cache.access_newest(Line(1), false), "its first use is to be noted");
        assert_eq!(cache.access(Line(1), true), Lookup::Pending);
        assert_eq!((cache.unmark(Line(1)), cache.unmark(Line(1))), (3, 0));
        assert_eq!(cache.access(Line(1), false), Lookup::Hit);
        let gone = cache.fill(Line(2), false, false, false, None, &mut Random::new(1));
        assert_eq!(gone.map(|gone| (gone.line.0, gone.mark)), Some((0, 3)));
        assert_eq!((cache.mark(Line(1)), cache.is_modified(Line(1))), (Some(0), true));
    }

    /// Lines that are to be written back, of those from `first` on.
    fn modified(cache: &Cache, first: u64, count: u64) -> u64 {
        (first..first + count).filter(|&n| cache.is_modified(Line(n))).count() as u64
    }

    #[test]
    fn after_a_gap_old_lines_are_like_those_that_are_used() {
        // Of ten lines that are used after the gap, none, three or all are modified.
        for stores in [0, 3, 10] {
            let mut cache = cache(128);
            (0..100).for_each(|n| assert_eq!(fill(&mut cache, n, n >= 90), None));
            (0..50).for_each(|n| assert!(cache.write_back(Line(n))));
            cache.begin_history();
            for n in 20..25 {
                assert_eq!(cache.access(Line(n), false), Lookup::Hit);
            }
            (100..105).for_each(|n| assert_eq!(fill(&mut cache, n, false), None));
            (20..25).for_each(|n| assert!(cache.clean(Line(n))));
            let used = (20..25).chain(100..105);
            used.take(stores).for_each(|n| assert_eq!(cache.access(Line(n), true), Lookup::Hit));
            cache.presume_history(|_| 0, 0, |_| false);
            let stores = stores as u64;
            assert_eq!(modified(&cache, 20, 5) + modified(&cache, 100, 5), stores);
            // 85 lines of data are old; those of tables are as they were, as is which of them goes first.
            let old = modified(&cache, 0, 20) + modified(&cache, 25, 65);
            assert!(old.abs_diff(85 * stores / 10) <= 1, "{old} with {stores} of 10");
            assert_eq!(modified(&cache, 90, 10), 0);
            (105..128).for_each(|n| assert_eq!(fill(&mut cache, n, false), None));
            assert_eq!(fill(&mut cache, 128, false), Some(0));
        }
    }

    #[test]
    fn a_gap_is_presumed_to_have_filled_the_cache() {
        let mut cache = cache(64);
        (0..8).for_each(|n| assert_eq!(fill(&mut cache, n, false), None));
        cache.begin_history();
        (0..8).for_each(|n| assert_eq!(cache.access(Line(n), true), Lookup::Hit));
        // As many as the cache above may yet write back: nothing is known.
        cache.presume_history(|_| 8, 1 << 40, |_| false);
        assert_eq!(fill(&mut cache, 8, false), None);
        assert_eq!(cache.access(Line(8), true), Lookup::Hit);
        cache.presume_history(|_| 2, 1 << 40, |_| false);
        let gone = cache.fill(Line(9), false, false, false, None, &mut Random::new(1)).unwrap();
        assert!(gone.line.is_nowhere() && gone.dirty);
        assert!((0..8).all(|n| cache.access(Line(n), false) == Lookup::Hit));
    }

    #[test]
    fn a_gap_leaves_nothing_to_write_back_of_data_that_fit() {
        // 16 lines are known, all modified, and 48 places empty: of 64 lines of data these have the others.
        for (data, written) in [(63, 0), (64, 0), (112, 24), (6400, 48)] {
            let mut cache = cache(64);
            cache.begin_history();
            (0..16).for_each(|n| assert_eq!(fill(&mut cache, n, false), None));
            (0..16).for_each(|n| assert_eq!(cache.access(Line(n), true), Lookup::Hit));
            cache.presume_history(|_| 0, data, |_| false);
            let found = modified(&cache, NOWHERE, 64);
            assert!(found.abs_diff(written) <= 1, "{found} of {data}");
        }
    }

    /// Spares tables in three of four evictions.
    #[derive(Clone, Copy, Debug)]
    struct Sparing;

    impl ReplacementPolicy for Sparing {
        fn clone_box(&self) -> Box<dyn ReplacementPolicy> {
            Box::new(*self)
        }

        fn victim(&mut self, set: Set<'_>, _table: bool, _random: &mut Random) -> usize {
            set.oldest()
        }

        fn spares(&self, set: Set<'_>, place: usize) -> bool {
            set.is_table(place)
        }

        fn unspared_percent(&self) -> u32 {
            25
        }
    }

    #[test]
    fn lines_that_are_spared_grow_old_and_go_one_by_one_in_what_is_passed_over() {
        // Which lines are left, the newest first.
        let of = |count: u64, tables: std::ops::Range<u64>, fills| {
            let mut cache = cache(8);
            (0..count).for_each(|n| assert_eq!(fill(&mut cache, n, tables.contains(&n)), None));
            cache.pass_over(fills, &Sparing, &mut Random::new(1));
            cache.known_lines().map(|Line(line)| line).collect::<Vec<_>>()
        };
        assert_eq!(of(8, 5..8, 0), [7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(of(8, 5..8, 2), [4, 3, 7, 6, 5, 2, 1, 0], "two came before them");
        assert_eq!(of(8, 5..8, 5), [4, 3, 2, 1, 0, 7, 6], "all others, and a table went");
        assert_eq!(of(8, 5..8, 8), [4, 3, 2, 1, 0, 7]);
        assert_eq!(of(8, 5..8, 400), [4, 3, 2, 1, 0]);
        assert_eq!(of(8, 0..8, 1), [7, 6, 5, 4, 3, 2, 1], "there is nothing else");
        assert_eq!(of(7, 0..7, 400), [6, 5, 4, 3, 2, 1, 0], "there is room");
    }

    #[test]
    fn after_a_gap_old_lines_are_like_those_of_their_own_program() {
        let of = |owner: u64, n: u64| owner << OWNER_SHIFT | n;
        let mut cache = cache(128);
        for owner in 0..2 {
            (0..30).for_each(|n| assert_eq!(fill(&mut cache, of(owner, n), false), None));
        }
        cache.begin_history();
        for n in 0..10 {
            assert_eq!(cache.access(Line(of(0, n)), true), Lookup::Hit);
            assert_eq!(cache.access(Line(of(1, n)), false), Lookup::Hit);
        }
        // One of two lines of all is modified, so one of two is that nothing is known of.
        cache.presume_history(|_| 0, 1 << 40, |_| false);
        assert_eq!([modified(&cache, of(0, 0), 30), modified(&cache, of(1, 0), 30)], [30, 0]);
        assert!(modified(&cache, NOWHERE, 128).abs_diff((128 - 60) / 2) <= 1);
    }

    #[test]
    fn keeps_dirt_until_eviction() {
        let mut cache = cache(1);
        let mut random = Random::new(1);
        fill(&mut cache, 0, true);
        assert_eq!(cache.access(Line(0), true), Lookup::Hit);
        let gone = cache.fill(Line(1), false, false, true, None, &mut random);
        assert_eq!(gone, Some(Evicted { line: Line(0), dirty: true, table: true, mark: 0 }));
        assert_eq!(cache.access(Line(1), false), Lookup::Pending);
        cache.arrived(Line(1));
        assert_eq!(cache.access(Line(1), false), Lookup::Hit);
    }
}
