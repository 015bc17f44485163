//! POM-TLB: a very large TLB in memory, read through the caches on a miss of the L2 TLB.
//!
//! Source: Ryoo, Gulur, Song and John, "Rethinking TLB Designs in Virtualized Environments: A Very
//! Large Part-of-Memory TLB", ISCA 2017. Entries have 16 bytes; a set of four is one line, so that
//! one access compares them all. Half of the memory holds small pages, half large ones. Two
//! predictors, one bit each, are indexed by the page number: which size to look for first, and
//! whether to go to memory without a look into the caches because they did not have the line the
//! last time. Only a miss in both halves walks, and what it finds goes in. A half that never had an
//! entry is not looked up: where a program has pages of one size, a look-up is a single access
//! (Park et al., ASPLOS 2022, section 2). Lines are cached in L2 and LLC like data, not in L1D.
//!
//! The paper does not say what holds a miss while its line is on the way. [`Within`] gives both answers: a
//! page walker, as for the walk that may follow, or nothing but the MSHRs of L2. Nor does it say whether
//! what is read from L2 on takes an MSHR of L1D, through which a walker's own reads go: [`Through`].
//!
//! Pages that are touched in a part of the program that is not run go in too.
//!
//! Departs from the paper: its memory is stacked DRAM with a channel of its own, here it is the end of
//! main memory; sets are indexed by the page number's low bits; a line that is cached is never
//! bypassed, since it may be newer than memory; invalidations cost nothing. Pages of 1 GiB do not go in.

use std::any::Any;

use flatwalk_paging::{Address, Flush, Geometry, Gva, Hpa, Level, Rights};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Registered, Section, Setup};
use crate::ConfigError;
use crate::counts::{Visitor, add};
use crate::memory::hierarchy::Served;
use crate::memory::line::{LINE_SHIFT, page_start};
use crate::mmu::event::{Found, Stopped};
use crate::mmu::mechanism::{Hooks, Mechanism, Miss, ResultView, figures};
use crate::mmu::tlb::Tlb;

const NAME: &str = "pom_tlb";

pub(super) const MECHANISM: Registered = Registered {
    name: NAME,
    scheme: Some(Section::of::<Settings>()),
    host: None,
    machine: None,
    figures: Section::of_figures::<Figures>(),
    build,
};

/// POM-TLB: a very large TLB in memory, behind the L2 TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Memory that it takes, half for each page size.
    #[schemars(range(min = 4096, max = 4_294_967_296u64), extend("powerOfTwo" = true))]
    pub size_bytes: u64,
    /// Predictions of page size and bypass.
    #[schemars(range(min = 1, max = 1_048_576), extend("powerOfTwo" = true))]
    pub predictor_entries: u32,
    /// What a look-up takes.
    #[serde(default)]
    pub within: Within,
    /// Whose MSHRs limit the look-ups under way.
    #[serde(default)]
    pub through: Through,
}

/// What a look-up takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Within {
    /// A page walker, from before the look-up to the end of a walk that follows: it is the walker
    /// that handles a miss of the L2 TLB.
    #[default]
    Walker,
    /// None; a walk that follows does.
    Nothing,
}

/// Whose MSHRs limit the look-ups under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Through {
    /// Those of L2, where the paper has look-ups enter.
    #[default]
    L2,
    /// Those of L1D, too, as for a line that L1D missed.
    L1d,
}

fn build(setup: &mut Setup<'_>) -> Result<Option<Box<dyn Mechanism>>, ConfigError> {
    let Some(settings) = setup.scheme.mechanisms.get::<Settings>(NAME)? else { return Ok(None) };
    setup.refuse_recorded(NAME)?;
    let base = setup.reserve(settings.size_bytes);
    Ok(Some(Box::new(PomTlb::new(&settings, base, setup.own.geometry))))
}

/// Entries in a line.
const WAYS: usize = 4;
/// Page sizes held, by level.
const LEVELS: [Level; 2] = [1, 2];

/// What the TLB in memory was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[cfg_attr(test, derive(Deserialize))]
pub struct Figures {
    /// Misses of the L2 TLB that looked here.
    pub lookups: u64,
    /// Of those, found here, and with what the access needs.
    pub hits: u64,
    /// Of those, found with the size that was looked for second.
    pub second_probes: u64,
    /// Lines read from memory without looking in the caches.
    pub bypasses: u64,
}

add!(Figures { lookups, hits, second_probes, bypasses });

/// An entry as it stands in memory: page number and validity; frame, rights and dirty bit.
type Entry = [u64; 2];

const VALID: u64 = 1;
const DIRTY: u64 = 1;
const WRITE: u64 = 2;
const USER: u64 = 4;
const EXECUTE: u64 = 8;

fn pack(page: u64, found: &Found) -> Entry {
    let Rights { write, user, execute } = found.rights;
    let flag = |on: bool, bit| if on { bit } else { 0 };
    let bits =
        flag(found.dirty, DIRTY) | flag(write, WRITE) | flag(user, USER) | flag(execute, EXECUTE);
    [page << 1 | VALID, found.frame.raw() | bits]
}

fn unpack(value: u64, level: Level, ready: u64) -> Found {
    let is = |bit| value & bit != 0;
    Found {
        frame: Hpa::new(page_start(value)),
        level,
        rights: Rights { write: is(WRITE), user: is(USER), execute: is(EXECUTE) },
        dirty: is(DIRTY),
        ready,
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Prediction {
    large: bool,
    bypass: bool,
}

/// The TLB and its predictors.
#[derive(Clone, Debug)]
struct PomTlb {
    geometry: Geometry,
    /// Where it begins; small pages first.
    base: Hpa,
    /// Sets for each size, a power of two.
    sets: u64,
    /// By size: sets one after the other, in each the most recently used first.
    entries: [Vec<Entry>; 2],
    /// By size: whether there ever was an entry.
    filled: [bool; 2],
    predictions: Vec<Prediction>,
    statistics: Figures,
    within: Within,
    through: Through,
}

impl PomTlb {
    /// An empty one at `base`, for tables of `geometry`.
    fn new(settings: &Settings, base: Hpa, geometry: Geometry) -> Self {
        let sets = (settings.size_bytes / 2) >> LINE_SHIFT;
        let empty = vec![[0; 2]; sets as usize * WAYS];
        Self {
            geometry,
            base,
            sets,
            entries: [empty.clone(), empty],
            filled: [false; 2],
            predictions: vec![Prediction::default(); settings.predictor_entries as usize],
            statistics: Figures::default(),
            within: settings.within,
            through: settings.through,
        }
    }

    fn page(&self, address: Gva, size: usize) -> u64 {
        address.raw() >> self.geometry.shift(LEVELS[size])
    }

    /// The set of a page, and where it stands in memory.
    fn set(&mut self, page: u64, size: usize) -> (&mut [Entry], Hpa) {
        let set = page & (self.sets - 1);
        let first = set as usize * WAYS;
        let line = size as u64 * self.sets + set;
        (&mut self.entries[size][first..first + WAYS], self.base.offset(line << LINE_SHIFT))
    }

    fn prediction(&mut self, address: Gva) -> &mut Prediction {
        let page = address.raw() >> self.geometry.page_shift();
        let at = page as usize & (self.predictions.len() - 1);
        &mut self.predictions[at]
    }

    /// Puts in what was found for `address`, and says where that stands; `None` for a page of another size.
    fn insert(&mut self, address: Gva, found: &Found) -> Option<Hpa> {
        let size = LEVELS.iter().position(|&level| level == found.level)?;
        self.prediction(address).large = size == 1;
        let page = self.page(address, size);
        let (entries, line) = self.set(page, size);
        let known = entries.iter().position(|entry| entry[0] == page << 1 | VALID);
        entries[..=known.unwrap_or(WAYS - 1)].rotate_right(1);
        entries[0] = pack(page, found);
        self.filled[size] = true;
        Some(line)
    }

    /// Drops every entry of a page that overlaps `start..=last`.
    fn drop_range(&mut self, start: Gva, last: Gva) {
        for (size, level) in LEVELS.into_iter().enumerate() {
            let shift = self.geometry.shift(level);
            let pages = start.raw() >> shift..=last.raw() >> shift;
            let stale = |entry: &Entry| entry[0] & VALID != 0 && pages.contains(&(entry[0] >> 1));
            if pages.end() - pages.start() < self.sets {
                for page in pages.clone() {
                    let (entries, _) = self.set(page, size);
                    entries.iter_mut().filter(|entry| stale(entry)).for_each(|e| *e = [0; 2]);
                }
            } else {
                let all = self.entries[size].iter_mut();
                all.filter(|entry| stale(entry)).for_each(|e| *e = [0; 2]);
            }
        }
    }
}

impl Mechanism for PomTlb {
    fn clone_box(&self) -> Box<dyn Mechanism> {
        Box::new(self.clone())
    }

    fn for_another_core(&self) -> Box<dyn Mechanism> {
        Box::new(Self {
            entries: [Vec::new(), Vec::new()],
            predictions: self.predictions.clone(),
            ..*self
        })
    }

    /// Cores have entries together, and predictors of their own.
    fn hand_over(&mut self, other: &mut dyn Mechanism) {
        let other: &mut dyn Any = other;
        let other = other.downcast_mut::<Self>().expect("mechanisms are in the same order");
        std::mem::swap(&mut self.entries, &mut other.entries);
        std::mem::swap(&mut self.filled, &mut other.filled);
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn hooks(&self) -> Hooks {
        let look_up_in_walker = self.within == Within::Walker;
        Hooks { look_up: true, look_up_in_walker, populate: true, walk: true, ..Hooks::default() }
    }

    fn look_up(&mut self, miss: &mut Miss<'_>) -> Result<Found, u64> {
        self.statistics.lookups += 1;
        let address = miss.request.address;
        let predicted = *self.prediction(address);
        let mut now = miss.request.at;
        let first = usize::from(predicted.large);
        let by_l1d = self.through == Through::L1d;
        let filled = self.filled;
        let sizes = [first, 1 - first].into_iter().filter(|&size| filled[size]);
        for (probe, size) in sizes.enumerate() {
            let page = self.page(address, size);
            let (entries, line) = self.set(page, size);
            let way = entries.iter().position(|entry| entry[0] == page << 1 | VALID);
            let value = way.map(|way| {
                entries[..=way].rotate_right(1);
                entries[0][1]
            });
            let (response, bypassed) =
                miss.port.read_translations(line, now, predicted.bypass, by_l1d);
            miss.log.mechanism_read(response.served());
            now = response.ready;
            self.statistics.bypasses += u64::from(bypassed);
            self.prediction(address).bypass = response.served() == Served::Dram;
            if let Some(value) = value {
                self.prediction(address).large = size == 1;
                let found = unpack(value, LEVELS[size], now);
                if !found.permits(miss.request.kind) {
                    return Err(now);
                }
                self.statistics.hits += 1;
                self.statistics.second_probes += probe as u64;
                return Ok(found);
            }
        }
        Err(now)
    }

    fn after_walk(&mut self, miss: &mut Miss<'_>, result: &mut Result<Found, Stopped>) {
        if let Ok(found) = result
            && let Some(line) = self.insert(miss.request.address, found)
        {
            // Nobody waits for the line to be written.
            miss.port.write_translations(line, found.ready);
        }
    }

    fn populated(&mut self, address: Gva, found: &Found) {
        // Another core may have the entries, and with them the turn.
        if !self.entries[0].is_empty() {
            self.insert(address, found);
        }
    }

    fn flush(&mut self, flush: &Flush<Gva>, _tlb: &mut Tlb) {
        // Where another core has its turn, it has the entries, and dropped them.
        if flush.leaves && !self.entries[0].is_empty() {
            self.drop_range(flush.start, flush.last);
        }
    }

    // Its entries are tagged: a context switch leaves them.

    fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.statistics);
    }

    fn read_name(&self) -> Option<&'static str> {
        Some("POM-TLB")
    }

    fn result(&self, _view: &ResultView<'_>) -> Option<Map<String, Value>> {
        Some(figures(&self.statistics))
    }

    fn words(&self, _view: &ResultView<'_>) -> Vec<String> {
        let Figures { lookups, hits, .. } = self.statistics;
        if lookups == 0 {
            return vec!["nothing was looked up in the POM-TLB".to_owned()];
        }
        let percent = 100.0 * hits as f64 / lookups as f64;
        vec![format!("the POM-TLB had {percent:.1} % of what the L2 TLB missed")]
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_paging::{Address, Attributes, Entry, EntryMemoryMut, Flush, Gva, Rights};
    use flatwalk_trace::Event;

    use super::{Figures, Settings, Through, Within};
    use crate::counts;
    use crate::driver::piece::Piece;
    use crate::driver::run::{Mode, Run};
    use crate::system::System;
    use crate::tests::testing::{DATA, Do, Scenario, go, host_table, scheme, walk};

    const PAGE: u64 = 4096;
    const LARGE: u64 = 2 << 20;
    const MIB: u64 = 1 << 20;

    fn figures(run: &Run) -> Figures {
        crate::tests::testing::figures(run, "pom_tlb").expect("it has one")
    }

    fn scenario(size_bytes: u64) -> Scenario {
        let mut scenario = Scenario::new(scheme(4, &[]));
        let settings = Settings {
            size_bytes,
            predictor_entries: 512,
            within: Within::Walker,
            through: Through::L2,
        };
        scenario.scheme.mechanisms.set("pom_tlb", settings);
        // Nothing is evicted by the few accesses of a test but what the L2 TLB loses.
        for cache in [&mut scenario.machine.l1d, &mut scenario.machine.l2] {
            let cache = cache.as_mut().unwrap();
            (cache.size_bytes, cache.ways, cache.mshrs) = (32 << 10, 8, 16);
        }
        scenario
    }

    /// A run with `mapped`, whose TLB in memory is empty.
    fn cold(scenario: &Scenario, mapped: &[(u64, u64)]) -> Run {
        let mut run = scenario.start(mapped, true);
        run.mmu.flush(&Flush::everything(true, false));
        run
    }

    /// Latencies and waits of two loads at once, of pages in different lines that the TLB in memory has.
    fn two_at_once(within: Within, through: Through, walkers: u32, l1d_mshrs: u32) -> (u64, u64) {
        let mut scenario = scenario(MIB);
        let size_bytes = MIB;
        let settings = Settings { size_bytes, predictor_entries: 512, within, through };
        scenario.scheme.mechanisms.set("pom_tlb", settings);
        scenario.machine.walker.concurrent = walkers;
        scenario.machine.l1d.as_mut().unwrap().mshrs = l1d_mshrs;
        let mut run = scenario.start(&[(DATA, 4 * MIB)], true);
        counts::forget(|visit| run.mmu.counts(visit));
        go(&mut run, &[Do::Load(DATA + 5 * PAGE), Do::Load(DATA + 300 * PAGE)]);
        let s = &run.mmu.statistics;
        assert_eq!((s.total().walks, s.total().accesses), (2, 2));
        (s.total().latency_cycles, s.queue_cycles)
    }

    #[test]
    fn a_look_up_takes_a_walker_or_none() {
        // A line from memory takes 142. With one walker the second look-up begins when the first is over.
        let (latency, queue) = two_at_once(Within::Walker, Through::L2, 1, 16);
        // The first load's data is asked for at the same time, and has the bus for a cycle before it.
        assert_eq!(latency - queue, 2 * 142 + 1);
        assert!((140..=142).contains(&queue), "it was asked for a cycle later at most: {queue}");
        // With two, or without taking one, both are under way at once, and share the bus: a cycle.
        assert_eq!(two_at_once(Within::Walker, Through::L2, 2, 16), (2 * 142 + 1, 0));
        assert_eq!(two_at_once(Within::Nothing, Through::L2, 1, 16), (2 * 142 + 1, 0));
    }

    #[test]
    fn a_look_up_takes_an_mshr_of_l1d_or_none() {
        let (by_l2, by_l1d) = (
            two_at_once(Within::Nothing, Through::L2, 1, 1),
            two_at_once(Within::Nothing, Through::L1d, 1, 1),
        );
        assert_eq!(by_l2, (2 * 142 + 1, 0));
        // The first load has the only MSHR for its look-up, 142, then for its data, as long. Then
        // only the second's look-up begins. That is not a wait for a walker.
        assert_eq!(by_l1d, (142 + 3 * 142, 0));
    }

    #[test]
    fn what_is_populated_is_there() {
        let mut in_a_guest = scenario(MIB);
        in_a_guest.scheme.host = Some(host_table(4, &[]));
        for scenario in [scenario(MIB), in_a_guest] {
            let mut run = scenario.start(&[(DATA, 4 * MIB)], true);
            // One line, from memory; and nothing is looked for a second time.
            assert_eq!(miss(&mut run, DATA + 700 * PAGE), (1, 142));
            let s = figures(&run);
            assert_eq!((s.lookups, s.hits, s.second_probes), (1, 1, 0));
        }
    }

    /// Accesses and latency of the one miss of the L2 TLB that a load of `address` is.
    fn miss(run: &mut Run, address: u64) -> (u64, u64) {
        let walked = walk(run, address);
        assert_eq!(run.mmu.statistics.l2_tlb_misses, 1);
        walked
    }

    /// Drives a page out of both TLBs: those of the test machine have 16 entries at most.
    fn forget(run: &mut Run) {
        let pages: Vec<_> = (64..128).map(|page| Do::Chase(DATA + page * PAGE)).collect();
        go(run, &pages);
    }

    #[test]
    fn latencies_by_hand() {
        let at = DATA + 5 * PAGE;
        let mut run = cold(&scenario(MIB), &[(DATA, 4 * MIB)]);
        // A line of the small half from memory, 142; then a walk: page-walk cache, 1, the root's entry from
        // L2, 12, as it shares its line with the code, and three of 142.
        assert_eq!(miss(&mut run, at), (5, 142 + 1 + 12 + 3 * 142));
        // The caches did not have the line, so for a page with the same prediction they are not even
        // looked at: 100. Its walk begins at a node of level 2, whose entry's line is in L1D.
        assert_eq!(miss(&mut run, at + 512 * PAGE), (3, 100 + 1 + 4 + 142));
        assert_eq!(figures(&run).bypasses, 1);
        forget(&mut run);
        // The entry was written since, so that L2 has its line; then it is looked for there.
        assert_eq!(miss(&mut run, at), (1, 12));
        forget(&mut run);
        assert_eq!(miss(&mut run, at), (1, 12));
        let s = figures(&run);
        assert_eq!((s.lookups, s.hits, s.second_probes, s.bypasses), (1, 1, 0, 0));
    }

    #[test]
    fn a_half_that_never_had_an_entry_is_not_looked_up() {
        let probes = |large_pages| {
            let mut scenario = scenario(MIB);
            scenario.large_pages = large_pages;
            let mut run = cold(&scenario, &[(DATA, 4 * LARGE)]);
            let (accesses, _) = miss(&mut run, DATA);
            accesses - if large_pages > 0 { 3 } else { 4 }
        };
        assert_eq!([0, 50, 100].map(probes), [1, 2, 1]);
    }

    #[test]
    fn large_pages_are_looked_for_first_once_they_were_found() {
        let mut scenario = scenario(MIB);
        scenario.large_pages = 50;
        let mut run = cold(&scenario, &[(DATA, 128 * LARGE)]);
        // Seven other large pages drive it out of the L1 TLB's two entries and, sharing its set, out of
        // the L2 TLB; none shares a prediction, or a set of the large half, with it.
        let mut others: Vec<_> = (1..8).map(|i| Do::Load(DATA + (8 * i) * LARGE)).collect();
        others.iter_mut().zip(1u64..).for_each(|(load, i)| {
            if let Do::Load(address) = load {
                *address += i * PAGE;
            }
        });
        assert_eq!(miss(&mut run, DATA).0, 2 + 3, "two probes and three levels");
        go(&mut run, &others);
        assert_eq!(miss(&mut run, DATA).0, 1);
        assert_eq!(figures(&run).second_probes, 0);
    }

    #[test]
    fn what_is_unmapped_is_forgotten_here_too() {
        for mode in [Mode::Timing, Mode::Functional] {
            let mut scenario = scenario(MIB);
            scenario.mode = mode;
            let mut run = scenario.start(&[(DATA, MIB)], true);
            go(&mut run, &[Do::Load(DATA)]);
            let unmap = Event::Unmap { address: DATA, length: PAGE };
            run.take(&Piece::Event(unmap)).unwrap();
            let faults = run.system.statistics().faults;
            forget(&mut run);
            go(&mut run, &[Do::Load(DATA)]);
            assert_eq!(run.system.statistics().faults, faults + 1, "a stale entry was used");
        }
    }

    #[test]
    fn a_store_to_a_clean_page_walks() {
        let mut run = cold(&scenario(MIB), &[(DATA, MIB)]);
        let leaf = |run: &Run| {
            let System::Native(process) = &run.system else { panic!("there is a guest") };
            process.table().translate(process.memory(), Gva::new(DATA)).unwrap()
        };
        // As after the kernel cleaned the page for write-back.
        let clean = Entry::leaf(leaf(&run).frame, false, Attributes::new(Rights::ALL));
        let at = leaf(&run).entry_address;
        let System::Native(process) = &mut run.system else { panic!("there is a guest") };
        process.memory_mut().write(at, clean.0);
        go(&mut run, &[Do::Load(DATA)]);
        forget(&mut run);
        assert!(!leaf(&run).entry.is_dirty());
        let hits = figures(&run).hits;
        go(&mut run, &[Do::Store(DATA)]);
        assert!(leaf(&run).entry.is_dirty());
        assert_eq!(figures(&run).hits, hits, "what may not be used is no hit");
    }

    #[test]
    fn it_holds_no_more_than_fits() {
        let hits = |size_bytes: u64| {
            let mut scenario = scenario(size_bytes);
            scenario.mode = Mode::Functional;
            let mut run = scenario.start(&[(DATA, 16 * MIB)], true);
            let pages: Vec<_> = (0..4096).map(|page| Do::Load(DATA + page * PAGE)).collect();
            go(&mut run, &pages);
            counts::forget(|visit| run.mmu.counts(visit));
            go(&mut run, &pages);
            figures(&run).hits
        };
        // 4096 small pages at 16 bytes, in half of it.
        assert_eq!(hits(128 << 10), 4096);
        assert_eq!(hits(64 << 10), 0, "least recently used, in order");
    }

    #[test]
    fn in_a_guest_it_holds_whole_translations() {
        let mut scenario = scenario(MIB);
        scenario.scheme.host = Some(host_table(4, &[]));
        let mut run = scenario.start(&[(DATA, MIB)], true);
        go(&mut run, &[Do::Chase(DATA)]);
        forget(&mut run);
        assert_eq!(miss(&mut run, DATA).0, 1);
    }
}
