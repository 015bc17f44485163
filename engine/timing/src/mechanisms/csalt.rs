//! CSALT: ways of a cache divided between translations and data, anew each epoch.
//!
//! Source: Marathe, Gulur, Ryoo, Song and John, "CSALT: Context Switch Aware Large TLB", MICRO 2017,
//! on top of a POM-TLB. Each of L2 and LLC has two stack-distance profilers
//! (Mattson et al., 1970), one for lines with translations and page-table entries and one for data:
//! they say how many hits each kind would have had with any number of ways. At the end of an epoch
//! the division with the most hits in all takes effect; weighted, where a miss of one kind costs more
//! (CSALT-CD).
//!
//! Profilers watch one set in [`SAMPLED`], as hardware does to be small. Departs from the paper: the
//! weight of translations is a setting, not measured at run time.

use flatwalk_os::Random;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Registered, Section, Setup, without_caches};
use crate::ConfigError;
use crate::config::machine;
use crate::counts::Visitor;
use crate::memory::hierarchy::Hierarchy;
use crate::memory::line::{LINE_SHIFT, Line, Set};
use crate::memory::replacement::ReplacementPolicy;
use crate::mmu::mechanism::{Mechanism, ResultView, figures};

const NAME: &str = "csalt";

pub(super) const MECHANISM: Registered = Registered {
    name: NAME,
    scheme: Some(Section::of::<Settings>()),
    host: None,
    machine: None,
    figures: Section::of_figures::<Figures>(),
    build,
};

/// CSALT: ways of L2 and LLC divided between translations and data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Look-ups of a cache between one division and the next.
    #[schemars(range(min = 1))]
    pub epoch_accesses: u64,
    /// What a hit of a translation is worth in hits of data: 1 in CSALT-D, more in CSALT-CD.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub translation_weight: f64,
}

/// How the caches are divided.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Figures {
    /// Ways of L2 for data at the end; none before the first epoch is over.
    pub l2_data_ways: Option<u32>,
    /// The same of the last-level cache.
    pub llc_data_ways: Option<u32>,
    /// Times that either division changed; of several programs, that of L2 alone, as the other is of all.
    pub divisions: u64,
}

fn build(setup: &mut Setup<'_>) -> Result<Option<Box<dyn Mechanism>>, ConfigError> {
    let Some(settings) = setup.scheme.mechanisms.get::<Settings>(NAME)? else { return Ok(None) };
    let policy = |cache: &Option<machine::Cache>| {
        let partition = Partition::new(&settings, cache.as_ref()?);
        Some(Box::new(partition) as Box<dyn ReplacementPolicy>)
    };
    let machine = setup.machine;
    setup.set_policies(NAME, [policy(&machine.l2), policy(&machine.llc)])?;
    Ok(Some(Box::new(Division)))
}

/// What a scheme switches on: the caches' policies do the work.
#[derive(Clone, Copy, Debug)]
struct Division;

impl Division {
    /// The divisions of L2 and LLC.
    fn partitions<'a>(view: &ResultView<'a>) -> Option<[&'a Partition; 2]> {
        let [l2, llc] = view.caches?.policies().map(|policy| {
            let policy: &dyn std::any::Any = policy?;
            policy.downcast_ref::<Partition>()
        });
        Some([l2?, llc?])
    }
}

impl Mechanism for Division {
    fn clone_box(&self) -> Box<dyn Mechanism> {
        Box::new(*self)
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn result(&self, view: &ResultView<'_>) -> Option<Map<String, Value>> {
        let [l2, llc] = Self::partitions(view)?;
        let of_mix = view.caches.is_some_and(Hierarchy::is_of_a_mix);
        Some(figures(&Figures {
            l2_data_ways: l2.data_ways,
            llc_data_ways: llc.data_ways,
            divisions: l2.changes + if of_mix { 0 } else { llc.changes },
        }))
    }

    fn words(&self, view: &ResultView<'_>) -> Vec<String> {
        let Some([l2, llc]) = Self::partitions(view) else { return Vec::new() };
        let of = |name, partition: &Partition| {
            let data = partition.data_ways?;
            Some(format!("{data} of the {} ways of the {name} are for data", partition.ways))
        };
        [of("L2", l2), of("LLC", llc)].into_iter().flatten().collect()
    }

    fn warnings(&self, view: &ResultView<'_>) -> Vec<String> {
        without_caches("CSALT's division of ways", view)
    }
}

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
struct Partition {
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
    changes: u64,
}

impl Partition {
    /// No division yet, for `cache`.
    fn new(settings: &Settings, cache: &machine::Cache) -> Self {
        let ways = cache.ways as usize;
        let sets = (cache.size_bytes >> LINE_SHIFT) / u64::from(cache.ways);
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

impl ReplacementPolicy for Partition {
    fn clone_box(&self) -> Box<dyn ReplacementPolicy> {
        Box::new(self.clone())
    }

    /// Keeps at most so many ways of a set for data, and the others for tables: the least recently used
    /// line goes of the kind that has its share already, if the line that comes in is of that kind, and
    /// of the other, which then has more, if not.
    fn victim(&mut self, set: Set<'_>, table: bool, _random: &mut Random) -> usize {
        let Some(data_ways) = self.data_ways else { return set.oldest() };
        let data = (0..set.ways()).filter(|&place| !set.is_table(place)).count();
        let share = if table { set.ways() - data_ways as usize } else { data_ways as usize };
        let have = if table { set.ways() - data } else { data };
        let table_goes = (have >= share) == table;
        set.oldest_where(|place| set.is_table(place) == table_goes).unwrap_or(set.oldest())
    }

    fn watches(&self) -> bool {
        true
    }

    fn looked_up(&mut self, line: Line, table: bool) {
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

    fn for_shared_cache(&self) -> Option<Box<dyn ReplacementPolicy>> {
        Some(self.clone_box())
    }

    fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.changes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::cache::Cache;
    use crate::memory::cache::tests::cache;

    fn partition(translation_weight: f64) -> Partition {
        // 64 sets of 4 ways, of which two are watched: 0 and 32.
        let cache = machine::Cache {
            size_bytes: 64 * 4 * 64,
            ways: 4,
            latency_cycles: 1,
            mshrs: 1,
            prefetcher: Vec::new(),
        };
        Partition::new(&Settings { epoch_accesses: 120, translation_weight }, &cache)
    }

    /// An epoch in which set 0 sees `data` and `translations` lines in turn, 10 rounds of 12 accesses.
    fn epoch(partition: &mut Partition, data: u64, translations: u64) {
        for round in 0..10 {
            for i in 0..6 {
                partition.looked_up(Line(64 * ((round * 6 + i) % data)), false);
                partition.looked_up(Line((1 << 30) + 64 * ((round * 6 + i) % translations)), true);
            }
        }
    }

    #[test]
    fn the_division_follows_what_would_have_hit() {
        let mut partition = partition(1.0);
        assert_eq!(partition.data_ways, None);
        // Three lines of data in a cycle need three ways and get them; one line of the other kind.
        epoch(&mut partition, 3, 1);
        assert_eq!(partition.data_ways, Some(3));
        epoch(&mut partition, 1, 3);
        assert_eq!(partition.data_ways, Some(1));
        // More data than any number of ways holds: all for translations that it helps, once the lines of
        // the epoch before are gone from the stack.
        epoch(&mut partition, 50, 2);
        epoch(&mut partition, 50, 2);
        assert_eq!(partition.data_ways, Some(2));
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
            assert_eq!(partition.data_ways, Some(data_ways), "weight {weight}");
        }
    }

    #[test]
    fn sets_that_are_not_watched_do_not_count() {
        let mut partition = partition(1.0);
        for i in 0..60 {
            partition.looked_up(Line(1 + 64 * (i % 3)), false);
            partition.looked_up(Line(64 * (i % 2)), true);
        }
        assert_eq!(partition.data_ways, Some(2), "translations need two, data nothing");
    }

    fn divided(data_ways: Option<u32>) -> Partition {
        Partition { data_ways, ..partition(1.0) }
    }

    fn fill(cache: &mut Cache, n: u64, table: bool, mut policy: Partition) -> Option<u64> {
        let mut random = Random::new(1);
        let policy: &mut dyn ReplacementPolicy = &mut policy;
        cache.fill(Line(n), table, false, false, Some(policy), &mut random).map(|e| e.line.0)
    }

    #[test]
    fn keeps_the_ways_of_either_kind() {
        let mut cache = cache(4);
        for n in 0..4 {
            fill(&mut cache, n, false, divided(None));
        }
        let division = || divided(Some(3));
        assert_eq!(
            fill(&mut cache, 10, true, division()),
            Some(0),
            "tables have less than their way"
        );
        assert_eq!(fill(&mut cache, 11, true, division()), Some(10), "and now no more than it");
        assert_eq!(fill(&mut cache, 4, false, division()), Some(1));
        assert_eq!(fill(&mut cache, 5, false, division()), Some(2), "the table is spared");
        let division = || divided(Some(1));
        assert_eq!(fill(&mut cache, 6, false, division()), Some(3), "data has more than its way");
        assert_eq!(fill(&mut cache, 12, true, division()), Some(4));
        assert_eq!(fill(&mut cache, 13, true, division()), Some(5));
        assert_eq!(fill(&mut cache, 14, true, division()), Some(11));
        assert_eq!(fill(&mut cache, 7, false, division()), Some(6));
    }
}
