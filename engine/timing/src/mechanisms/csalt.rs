//! CSALT: ways of a cache divided between translations and data, anew each epoch.
//!
//! Source: Marathe, Gulur, Ryoo, Song and John, "CSALT: Context Switch Aware Large TLB", MICRO 2017,
//! on top of a POM-TLB ([`crate::mechanisms::pom_tlb`]). Each of L2 and LLC has two stack-distance profilers
//! (Mattson et al., 1970), one for lines with translations and page-table entries and one for data:
//! they say how many hits each kind would have had with any number of ways. At the end of an epoch
//! the division with the most hits in all takes effect; weighted, where a miss of one kind costs more
//! (CSALT-CD).
//!
//! Profilers watch one set in [`SAMPLED`], as hardware does to be small. Departs from the paper: the
//! weight of translations is a setting, not measured at run time.

use crate::config::machine;
use crate::memory::cache::{Line, Replacement};

/// One set in so many is watched.
const SAMPLED: u64 = 32;

/// Hits by stack distance of one kind of line.
#[derive(Clone, Debug)]
struct Profiler {
    /// By watched set: lines, most recently used first.
    stacks: Vec<Vec<Line>>,
    /// `hits[i]`: accesses to the line at distance `i`, this epoch.
    hits: Vec<u64>,
}

impl Profiler {
    fn access(&mut self, set: usize, line: Line) {
        let stack = &mut self.stacks[set];
        if let Some(distance) = stack.iter().position(|&known| known == line) {
            self.hits[distance] += 1;
            stack[..=distance].rotate_right(1);
        } else {
            stack.truncate(self.hits.len() - 1);
            stack.insert(0, line);
        }
    }

    /// Hits that `ways` ways would have had.
    fn with(&self, ways: usize) -> u64 {
        self.hits[..ways].iter().sum()
    }
}

/// The division of one cache.
#[derive(Clone, Debug)]
pub struct Partition {
    ways: usize,
    sets: u64,
    epoch_accesses: u64,
    translation_weight: f64,
    accesses: u64,
    data: Profiler,
    translations: Profiler,
    /// Ways for data, once an epoch is over.
    data_ways: Option<u32>,
    /// Times that the division changed.
    pub changes: u64,
}

impl Partition {
    /// No division yet, for `cache`.
    pub fn new(settings: &crate::config::scheme::Csalt, cache: &machine::Cache) -> Self {
        let ways = cache.ways as usize;
        let sets = (cache.size_bytes >> crate::memory::cache::LINE_SHIFT) / u64::from(cache.ways);
        let watched = sets.div_ceil(SAMPLED) as usize;
        let profiler = Profiler { stacks: vec![Vec::new(); watched], hits: vec![0; ways] };
        Self {
            ways,
            sets,
            epoch_accesses: settings.epoch_accesses,
            translation_weight: settings.translation_weight,
            accesses: 0,
            data: profiler.clone(),
            translations: profiler,
            data_ways: None,
            changes: 0,
        }
    }

    /// Ways for data now; `None` before the first division.
    pub fn data_ways(&self) -> Option<u32> {
        self.data_ways
    }

    /// What the cache does for a victim now.
    pub fn replacement(&self) -> Replacement {
        self.data_ways.map_or(Replacement::Lru, |data_ways| Replacement::Partition { data_ways })
    }

    /// Notes a look-up of `line`, which holds translations if `table`.
    pub fn access(&mut self, line: Line, table: bool) {
        let set = line.0 & (self.sets - 1);
        if set.is_multiple_of(SAMPLED) {
            let profiler = if table { &mut self.translations } else { &mut self.data };
            profiler.access((set / SAMPLED) as usize, line);
        }
        self.accesses += 1;
        if self.accesses == self.epoch_accesses {
            self.divide();
        }
    }

    /// The division that this epoch's accesses would have had the most hits with; of equals, the one
    /// with the most for data. Each kind keeps a way.
    fn divide(&mut self) {
        let value = |data_ways: usize| {
            let translations = self.translations.with(self.ways - data_ways) as f64;
            self.data.with(data_ways) as f64 + self.translation_weight * translations
        };
        let mut best = (self.ways - 1).max(1);
        for data_ways in (1..best).rev() {
            if value(data_ways) > value(best) {
                best = data_ways;
            }
        }
        let best = best as u32;
        self.changes += u64::from(self.data_ways != Some(best));
        self.data_ways = Some(best);
        self.accesses = 0;
        self.data.hits.fill(0);
        self.translations.hits.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(translation_weight: f64) -> Partition {
        // 64 sets of 4 ways, of which two are watched: 0 and 32.
        let cache =
            machine::Cache { size_bytes: 64 * 4 * 64, ways: 4, latency_cycles: 1, mshrs: 1 };
        Partition::new(
            &crate::config::scheme::Csalt { epoch_accesses: 120, translation_weight },
            &cache,
        )
    }

    /// An epoch in which set 0 sees `data` and `translations` lines in turn, 10 rounds of 12 accesses.
    fn epoch(partition: &mut Partition, data: u64, translations: u64) {
        for round in 0..10 {
            for i in 0..6 {
                partition.access(Line(64 * ((round * 6 + i) % data)), false);
                partition.access(Line((1 << 30) + 64 * ((round * 6 + i) % translations)), true);
            }
        }
    }

    #[test]
    fn the_division_follows_what_would_have_hit() {
        let mut partition = partition(1.0);
        assert_eq!(partition.replacement(), Replacement::Lru);
        // Three lines of data in a cycle need three ways and get them; one line of the other kind.
        epoch(&mut partition, 3, 1);
        assert_eq!(partition.replacement(), Replacement::Partition { data_ways: 3 });
        epoch(&mut partition, 1, 3);
        assert_eq!(partition.data_ways(), Some(1));
        // More data than any number of ways holds: all for translations that it helps, once the lines of
        // the epoch before are gone from the stack.
        epoch(&mut partition, 50, 2);
        epoch(&mut partition, 50, 2);
        assert_eq!(partition.data_ways(), Some(2));
        assert_eq!(partition.changes, 3);
        epoch(&mut partition, 50, 2);
        assert_eq!(partition.changes, 3);
    }

    #[test]
    fn weight_decides_what_does_not_fit() {
        // Three and two lines in four ways: only one kind can have what it needs.
        for (weight, data_ways) in [(1.0, 3), (3.0, 2)] {
            let mut partition = partition(weight);
            epoch(&mut partition, 3, 2);
            epoch(&mut partition, 3, 2);
            assert_eq!(partition.data_ways(), Some(data_ways), "weight {weight}");
        }
    }

    #[test]
    fn sets_that_are_not_watched_do_not_count() {
        let mut partition = partition(1.0);
        for i in 0..60 {
            partition.access(Line(1 + 64 * (i % 3)), false);
            partition.access(Line(64 * (i % 2)), true);
        }
        assert_eq!(partition.data_ways(), Some(2), "translations need two, data nothing");
    }
}
