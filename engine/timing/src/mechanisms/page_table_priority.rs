//! Page-table priority: L2 and LLC evict data before page-table entries, always or in phases.
//!
//! Source: Park, Vougioukas, Sandberg and Black-Schaffer, "Every Walk's a Hit", ASPLOS 2022, sections
//! 5 and 6.1. While it is active, of a given share of evictions the least recently used line without
//! page-table entries goes, if there is one. Phases begin and end by hardware counters that are looked
//! at once in a window of instructions: L2 TLB misses, and the L2 cache's data miss ratio.
//!
//! Where programs share the LLC, "to prevent one process' data from evicting another's page table",
//! data of anyone goes first, then the program's own lines ([`Isolation::Owners`]); or each core has
//! its own part of the ways, and priority works within it ([`Isolation::Ways`]).
//!
//! Departs from the paper: the thresholds, the window and the share are the machine's settings, as
//! the paper leaves most of them open.

use flatwalk_os::Random;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Registered, Section, Setup, without_caches};
use crate::ConfigError;
use crate::config::machine::{Isolation, Machine, Multicore};
use crate::counts::Visitor;
use crate::memory::line::Set;
use crate::memory::replacement::{ReplacementPolicy, Turn};
use crate::mmu::mechanism::{Hooks, Mechanism, Observation, ResultView, figures};

const NAME: &str = "page_table_priority";

pub(super) const MECHANISM: Registered = Registered {
    name: NAME,
    scheme: Some(Section::of::<Settings>()),
    host: None,
    machine: Some(Section::of::<Parameters>()),
    figures: Section::of_figures::<Figures>(),
    build,
};

/// Page-table priority: L2 and LLC evict data before page-table entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// When it is active.
    pub mode: Mode,
}

/// When page-table priority is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// In phases of high TLB and cache misses.
    Phases,
    /// Always.
    Always,
}

/// Parameters of page-table priority, for schemes that switch it on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Per cent of evictions that spare page-table lines while it is active.
    #[schemars(range(min = 0, max = 100))]
    pub evict_data_percent: u32,
    /// Length of an observation window.
    #[schemars(range(min = 1))]
    pub window_instructions: u64,
    /// A phase begins when L2 TLB misses per 1000 instructions reach this, and …
    #[schemars(range(min = 0, max = 1_000_000))]
    pub enter_l2_tlb_mpki: f64,
    /// … the L2 cache's data miss ratio reaches this.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub enter_l2_data_miss_ratio: f64,
    /// It ends when either falls below this fraction of its threshold.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub exit_fraction: f64,
}

/// How long page-table priority was active.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Figures {
    /// Share of the measured instructions for which it was active.
    pub active_fraction: f64,
}

fn build(setup: &mut Setup<'_>) -> Result<Option<Box<dyn Mechanism>>, ConfigError> {
    let parameters = setup.machine.mechanisms.get::<Parameters>(NAME)?;
    let Some(Settings { mode }) = setup.scheme.mechanisms.get(NAME)? else { return Ok(None) };
    let parameters = parameters.ok_or_else(|| {
        let machine = &setup.machine.name;
        let problem =
            format!("machine `{machine}` has no such section, so it cannot be switched on");
        ConfigError::Value { key: NAME.to_owned(), problem }
    })?;
    let protect = || {
        let policy = Protect { percent: parameters.evict_data_percent };
        Some(Box::new(policy) as Box<dyn ReplacementPolicy>)
    };
    let active = mode == Mode::Always;
    let policies = if active { [protect(), protect()] } else { [None, None] };
    setup.set_policies(NAME, policies)?;
    Ok(Some(Box::new(Priority {
        mode,
        parameters,
        active,
        window: Window::default(),
        active_instructions: 0,
        counted_to: 0,
    })))
}

/// What had been counted when the window began.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    instructions: u64,
    l2_tlb_misses: u64,
    l2_data: (u64, u64),
}

impl Window {
    /// A window that begins now.
    fn of(observation: &Observation<'_>) -> Self {
        Self {
            instructions: observation.instructions,
            l2_tlb_misses: observation.l2_tlb_misses,
            l2_data: observation.caches.as_ref().map_or((0, 0), |caches| caches.l2_data()),
        }
    }
}

/// The phases.
#[derive(Clone, Debug)]
struct Priority {
    mode: Mode,
    parameters: Parameters,
    active: bool,
    window: Window,
    /// Instructions measured while it was active, up to …
    active_instructions: u64,
    /// … so many run.
    counted_to: u64,
}

impl Priority {
    /// Counts the instructions up to now.
    fn count(&mut self, instructions: u64) {
        if self.active {
            self.active_instructions += instructions - self.counted_to;
        }
        self.counted_to = instructions;
    }

    /// Decides whether a phase begins, goes on, or ends (section 6.1: "phases of high cache and TLB miss
    /// … easily accomplished using existing hardware counters").
    fn decide(&mut self, observation: &mut Observation<'_>, length: u64) {
        let before = std::mem::replace(&mut self.window, Window::of(observation));
        let Some(caches) = &mut observation.caches else { return };
        let Window { l2_tlb_misses, l2_data: (lookups, misses), .. } = self.window;
        // What is passed over translates, and looks up no caches: it says nothing of them.
        if lookups == before.l2_data.0 && l2_tlb_misses > before.l2_tlb_misses {
            return;
        }
        let mpki = (l2_tlb_misses - before.l2_tlb_misses) as f64 * 1000.0 / length as f64;
        let lookups = (lookups - before.l2_data.0).max(1);
        let ratio = (misses - before.l2_data.1) as f64 / lookups as f64;
        let scale = if self.active { self.parameters.exit_fraction } else { 1.0 };
        self.active = mpki >= self.parameters.enter_l2_tlb_mpki * scale
            && ratio >= self.parameters.enter_l2_data_miss_ratio * scale;
        let policy = || {
            let policy = Protect { percent: self.parameters.evict_data_percent };
            self.active.then(|| Box::new(policy) as Box<dyn ReplacementPolicy>)
        };
        caches.set_l2_policy(policy());
        caches.set_llc_policy(policy());
    }

    fn active_fraction(&self, instructions: u64) -> f64 {
        match self.mode {
            Mode::Always => 1.0,
            Mode::Phases => self.active_instructions as f64 / instructions.max(1) as f64,
        }
    }
}

impl Mechanism for Priority {
    fn clone_box(&self) -> Box<dyn Mechanism> {
        Box::new(self.clone())
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn hooks(&self) -> Hooks {
        Hooks { protect: true, ..Hooks::default() }
    }

    fn next_observation(&self) -> u64 {
        match self.mode {
            Mode::Phases => {
                self.window.instructions.saturating_add(self.parameters.window_instructions)
            }
            Mode::Always => u64::MAX,
        }
    }

    fn observe(&mut self, observation: &mut Observation<'_>) {
        let length = observation.instructions - self.window.instructions;
        self.count(observation.instructions);
        self.decide(observation, length);
    }

    fn protects_page_tables(&self) -> bool {
        self.active
    }

    fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.active_instructions);
    }

    fn measurement_begins(&mut self, observation: &mut Observation<'_>) {
        self.counted_to = observation.instructions;
        self.window = Window::of(observation);
    }

    fn measurement_ends(&mut self, observation: &mut Observation<'_>) {
        self.count(observation.instructions);
    }

    fn result(&self, view: &ResultView<'_>) -> Option<Map<String, Value>> {
        let active_fraction = self.active_fraction(view.instructions);
        view.caches.map(|_| figures(&Figures { active_fraction }))
    }

    fn words(&self, view: &ResultView<'_>) -> Vec<String> {
        let percent = 100.0 * self.active_fraction(view.instructions);
        let words =
            || format!("page-table priority was active for {percent:.0} % of the instructions");
        view.caches.map(|_| words()).into_iter().collect()
    }

    fn warnings(&self, view: &ResultView<'_>) -> Vec<String> {
        without_caches("page-table priority", view)
    }
}

/// Protects the page tables of a cache's only program.
#[derive(Clone, Copy, Debug)]
struct Protect {
    percent: u32,
}

impl ReplacementPolicy for Protect {
    fn clone_box(&self) -> Box<dyn ReplacementPolicy> {
        Box::new(*self)
    }

    fn victim(&mut self, set: Set<'_>, _table: bool, random: &mut Random) -> usize {
        let oldest = set.oldest();
        if set.is_table(oldest) && random.below(100) < u64::from(self.percent) {
            return set.oldest_where(|place| !set.is_table(place)).unwrap_or(oldest);
        }
        oldest
    }

    fn spares(&self, set: Set<'_>, place: usize) -> bool {
        set.is_table(place)
    }

    fn unspared_percent(&self) -> u32 {
        100 - self.percent
    }
}

/// The policy of a cache that the cores of `multicore` share on `machine`, for whichever of their
/// programs have page-table priority active.
///
/// # Errors
/// If the machine's section cannot be.
pub fn shared_policy(
    machine: &Machine,
    multicore: Multicore,
) -> Result<Box<dyn ReplacementPolicy>, ConfigError> {
    let percent = machine
        .mechanisms
        .get::<Parameters>(NAME)?
        .map_or(0, |parameters| parameters.evict_data_percent);
    let turn = Turn::default();
    Ok(match multicore.isolation {
        Isolation::Owners => Box::new(Owners { percent, turn }),
        Isolation::Ways => {
            let ways = machine.llc.as_ref().map_or(1, |llc| llc.ways) / multicore.cores;
            Box::new(Ways { percent, own: ways as usize, turn })
        }
    })
}

/// Protects the page tables of programs that share a cache from all others' lines.
///
/// In a share of evictions the least recently used line that is not protected goes, else one of the
/// program's own; in the others, the least recently used of both together.
#[derive(Clone, Copy, Debug)]
struct Owners {
    percent: u32,
    turn: Turn,
}

impl ReplacementPolicy for Owners {
    fn clone_box(&self) -> Box<dyn ReplacementPolicy> {
        Box::new(*self)
    }

    fn victim(&mut self, set: Set<'_>, _table: bool, random: &mut Random) -> usize {
        let oldest = set.oldest();
        if !self.spares(set, oldest) {
            return oldest;
        }
        if random.below(100) >= u64::from(self.percent) {
            return self.unspared(set);
        }
        let free = set.oldest_where(|place| !self.spares(set, place));
        let own = || set.oldest_where(|place| set.owner(place) == self.turn.owner);
        free.or_else(own).unwrap_or(oldest)
    }

    fn spares(&self, set: Set<'_>, place: usize) -> bool {
        set.is_table(place) && self.turn.protected >> set.owner(place) & 1 != 0
    }

    fn unspared_percent(&self) -> u32 {
        100 - self.percent
    }

    fn unspared(&self, set: Set<'_>) -> usize {
        let goes = |place| !self.spares(set, place) || set.owner(place) == self.turn.owner;
        set.oldest_where(goes).unwrap_or(set.oldest())
    }

    fn begin_turn(&mut self, turn: Turn) {
        self.turn = turn;
    }
}

/// Gives each program its part of the ways of a shared cache, and protects its page tables within it.
///
/// A program that fills its ways evicts of its own; one that does not yet, of the others'.
#[derive(Clone, Copy, Debug)]
struct Ways {
    percent: u32,
    /// Ways that each program has.
    own: usize,
    turn: Turn,
}

impl ReplacementPolicy for Ways {
    fn clone_box(&self) -> Box<dyn ReplacementPolicy> {
        Box::new(*self)
    }

    fn victim(&mut self, set: Set<'_>, _table: bool, random: &mut Random) -> usize {
        let Turn { owner, protected } = self.turn;
        let percent = if protected >> owner & 1 == 1 { self.percent } else { 0 };
        let own = |place: &usize| set.owner(*place) == owner;
        let victim = if (0..set.ways()).filter(own).count() < self.own {
            set.oldest_where(|place| !own(&place))
        } else {
            set.oldest_where(|place| own(&place)).map(|last| {
                if set.is_table(last) && random.below(100) < u64::from(percent) {
                    let data = set.oldest_where(|place| own(&place) && !set.is_table(place));
                    return data.unwrap_or(last);
                }
                last
            })
        };
        victim.unwrap_or(set.oldest())
    }

    fn begin_turn(&mut self, turn: Turn) {
        self.turn = turn;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::piece::{Phase, Piece};
    use crate::memory::cache::tests::cache;
    use crate::memory::cache::{Cache, Lookup};
    use crate::memory::line::{Line, OWNER_SHIFT};
    use crate::tests::testing::{DATA, Do, Scenario, go, scheme};

    fn fill(
        cache: &mut Cache,
        n: u64,
        table: bool,
        mut policy: impl ReplacementPolicy,
    ) -> Option<u64> {
        let mut random = Random::new(1);
        let policy: &mut dyn ReplacementPolicy = &mut policy;
        cache.fill(Line(n), table, false, false, Some(policy), &mut random).map(|e| e.line.0)
    }

    #[test]
    fn a_window_of_any_length_ends_behind_its_beginning() {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.scheme.mechanisms.set(NAME, Settings { mode: Mode::Phases });
        let mut parameters: Parameters = scenario.machine.mechanisms.get(NAME).unwrap().unwrap();
        parameters.window_instructions = u64::MAX;
        scenario.machine.mechanisms.set(NAME, parameters);
        let mut run = scenario.start(&[(DATA, 1 << 20)], true);
        run.take(&Piece::Phase { phase: Phase::Warm, at: 0 }).unwrap();
        go(&mut run, &[Do::Load(DATA); 10]);
        // The window begins anew here.
        run.take(&Piece::Phase { phase: Phase::Measured, at: 10 }).unwrap();
        go(&mut run, &[Do::Load(DATA); 10]);
        let next = run.mmu.mechanisms().map(Mechanism::next_observation).min();
        assert_eq!((run.instructions(), next), (20, Some(u64::MAX)));
    }

    #[test]
    fn protects_tables_while_there_is_data() {
        let mut cache = cache(4);
        let protect = Protect { percent: 100 };
        for n in 0..4 {
            fill(&mut cache, n, n < 2, protect);
        }
        assert_eq!(fill(&mut cache, 4, true, protect), Some(2));
        assert_eq!(fill(&mut cache, 5, true, protect), Some(3));
        assert_eq!(fill(&mut cache, 6, false, protect), Some(0), "only tables left: plain LRU");
        assert_eq!(fill(&mut cache, 7, false, Protect { percent: 0 }), Some(1));
        assert_eq!(cache.access(Line(6), false), Lookup::Hit);
    }

    /// Line `n` of a program.
    fn line(owner: u64, n: u64) -> u64 {
        owner << OWNER_SHIFT | n
    }

    #[test]
    fn one_programs_lines_do_not_evict_anothers_tables() {
        let owners = |owner, protected| Owners { percent: 100, turn: Turn { owner, protected } };
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
        let never = Owners { percent: 0, turn: Turn { owner: 2, protected: 0b111 } };
        assert_eq!(fill(&mut cache, line(2, 11), false, never), Some(line(2, 9)));
        assert_eq!(fill(&mut cache, line(2, 12), false, never), Some(line(0, 10)));
    }

    #[test]
    fn what_is_said_to_be_spared_is_what_evictions_spare() {
        let owners = |protected, percent| Owners { percent, turn: Turn { owner: 1, protected } };
        let policies: [&dyn Fn(u32) -> Box<dyn ReplacementPolicy>; 3] = [
            &|percent| Box::new(Protect { percent }),
            &|percent| Box::new(owners(0b11, percent)),
            &|percent| Box::new(owners(0b01, percent)),
        ];
        // All sets of four lines of two programs, some of them tables.
        for (n, policy) in (0..256).flat_map(|n| policies.map(|policy| (n, policy))) {
            let mut cache = cache(4);
            for place in 0..4 {
                let (owner, table) = (n >> place & 1, n >> (4 + place) & 1 == 1);
                fill(&mut cache, line(owner, place), table, Protect { percent: 0 });
            }
            let set = cache.sets().next().unwrap();
            let mut random = Random::new(1);
            let [mut always, mut never] = [100, 0].map(policy);
            assert_eq!(never.victim(set, false, &mut random), never.unspared(set));
            let victim = always.victim(set, false, &mut random);
            if let Some(free) = set.oldest_where(|place| !always.spares(set, place)) {
                assert_eq!(victim, free, "{n:08b} {always:?}");
            }
            assert_eq!((always.unspared_percent(), never.unspared_percent()), (0, 100));
        }
    }

    #[test]
    fn ways_of_a_program_are_its_own() {
        let ways =
            |owner| Ways { percent: 100, own: 2, turn: Turn { owner, protected: 1 << owner } };
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
            "its table is protected"
        );
        assert_eq!(fill(&mut cache, line(0, 8), false, ways(0)), Some(line(0, 2)));
    }
}
