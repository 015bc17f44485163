//! What several cores share: a last-level cache and memory, and of one program its lines, too.

use rustc_hash::FxHashSet;

use super::level::Level;
use super::{CacheStatistics, Hierarchy};
use crate::config::machine::Machine;
use crate::memory::cache::Cache;
use crate::memory::dram::{Dram, DramStatistics};
use crate::memory::line::{LINE_SHIFT, Line, OWNER_SHIFT};
use crate::memory::replacement::{ReplacementPolicy, Turn};

/// A last-level cache and memory that several cores share; see [`Hierarchy::share`].
#[derive(Clone, Debug)]
pub struct SharedCaches {
    llc: Level,
    dram: Dram,
}

impl SharedCaches {
    /// Those of a timed machine, with `policy` for the cache; `None` if it has none.
    pub fn new(machine: &Machine, policy: Box<dyn ReplacementPolicy>, seed: u64) -> Option<Self> {
        let mut llc = Level::new(machine.llc.as_ref()?);
        llc.set_policy(Some(policy));
        Some(Self { llc, dram: Dram::new(machine, machine.memory.as_ref()?, seed) })
    }

    /// The core begins its turn that `turn` says.
    pub fn begin_turn(&mut self, turn: Turn) {
        if let Some(policy) = &mut self.llc.policy {
            policy.begin_turn(turn);
        }
    }

    /// The programs' traces have gaps here; see [`Hierarchy::begin_history`].
    pub fn begin_history(&mut self) {
        self.llc.cache.begin_history();
    }

    /// Time passes again from here on; see [`Hierarchy::presume_history`]. `l2_lines` are those of a core,
    /// and `data_bytes` what all programs have in memory.
    pub fn presume_history(&mut self, l2_lines: u64, data_bytes: u64) {
        self.llc.presume_history(|_| l2_lines, data_bytes);
    }
}

/// What a core has of its own while another one has its turn: L1 and L2, and counts.
#[derive(Clone, Debug)]
pub struct Private {
    l1i: Level,
    pub(super) l1d: Level,
    pub(super) l2: Level,
    pub(super) llc_statistics: CacheStatistics,
    pub(super) dram_statistics: DramStatistics,
    frontier: u64,
    l2_data: (u64, u64),
}

impl Hierarchy {
    /// What another core would have of its own that is like this one now.
    pub fn private(&self) -> Private {
        Private {
            l1i: self.l1i.clone(),
            l1d: self.l1d.clone(),
            l2: self.l2.clone(),
            llc_statistics: CacheStatistics::default(),
            dram_statistics: DramStatistics::default(),
            frontier: 0,
            l2_data: (0, 0),
        }
    }

    /// Another core runs the same program, with the last number. The first time, `policy` becomes that
    /// of the last-level cache, unless that one's own says what it is in a shared cache.
    pub fn add_core(&mut self, core: Private, policy: Box<dyn ReplacementPolicy>) {
        if !self.is_coherent() {
            let own = self.llc.policy.as_ref().and_then(|policy| policy.for_shared_cache());
            self.llc.set_policy(Some(own.unwrap_or(policy)));
        }
        self.others.push(core);
        self.shares = true;
    }

    /// Other cores run the same program.
    #[inline]
    pub(super) fn is_coherent(&self) -> bool {
        !self.others.is_empty()
    }

    /// The other core of that number has its turn next, and this one takes its number.
    pub fn exchange(&mut self, number: usize) {
        let other = &mut self.others[number];
        std::mem::swap(&mut self.l1i, &mut other.l1i);
        std::mem::swap(&mut self.l1d, &mut other.l1d);
        std::mem::swap(&mut self.l2, &mut other.l2);
        std::mem::swap(&mut self.llc.statistics, &mut other.llc_statistics);
        std::mem::swap(&mut self.dram.statistics, &mut other.dram_statistics);
        std::mem::swap(&mut self.frontier, &mut other.frontier);
        std::mem::swap(&mut self.l2_data, &mut other.l2_data);
    }

    /// A turn begins, in which no other core names a cycle before `floor`, nor before its own frontier.
    pub fn begin_turn(&mut self, turn: Turn, floor: u64) {
        let others = self.others.iter().map(|other| other.frontier.max(floor)).min();
        self.others_frontier = others.unwrap_or(u64::MAX);
        if let Some(policy) = &mut self.llc.policy {
            policy.begin_turn(turn);
        }
    }

    /// This core shares its last-level cache and memory from now on, where its lines are program
    /// `owner`'s.
    pub fn own(&mut self, owner: u64) {
        self.shares = true;
        self.owner = owner << OWNER_SHIFT;
    }

    /// Exchanges the last-level cache and memory for `shared`'s, at the beginning and at the end of a
    /// turn; counts stay here. During the turn no other core names a cycle before `others_frontier`.
    pub fn share(&mut self, shared: &mut SharedCaches, others_frontier: u64) {
        std::mem::swap(&mut self.llc, &mut shared.llc);
        std::mem::swap(&mut self.llc.statistics, &mut shared.llc.statistics);
        std::mem::swap(&mut self.dram, &mut shared.dram);
        std::mem::swap(&mut self.dram.statistics, &mut shared.dram.statistics);
        self.others_frontier = others_frontier;
    }

    /// No request to what cores share will be made any more for a cycle before this.
    #[inline]
    pub(super) fn shared_frontier(&self) -> u64 {
        self.frontier.min(self.others_frontier)
    }

    /// Lines of the last-level cache that were to be there by then are there. Threads of one program do
    /// not wait for each other's: one that rests would have all others remember what was on its way.
    #[inline]
    pub(super) fn arrived(&self) -> u64 {
        if self.is_coherent() { self.frontier } else { self.shared_frontier() }
    }

    /// What a last-level cache that may be shared, and memory, know `line` by.
    #[inline]
    pub(super) fn owned(&self, line: Line) -> Line {
        Line(line.0 | self.owner)
    }

    /// True if this core has written the line: no other has it.
    #[inline]
    pub(super) fn is_modified(&self, line: Line) -> bool {
        self.l1d.cache.is_modified(line) || self.l2.cache.is_modified(line)
    }

    /// True if another core has written the line.
    pub(super) fn is_modified_elsewhere(&self, line: Line) -> bool {
        let has_written = |other: &Private| {
            [&other.l1d, &other.l2].iter().any(|level| level.cache.is_modified(line))
        };
        self.others.iter().any(has_written)
    }

    pub(super) fn invalidate_others(&mut self, line: Line) {
        for Private { l1i, l1d, l2, .. } in &mut self.others {
            for level in [l1i, l1d, l2] {
                if level.invalidate(line) {
                    level.statistics.invalidations += 1;
                }
            }
        }
    }

    /// Lets another core that has written the line write it back. True if there is one.
    pub(super) fn recall(&mut self, line: Line) -> bool {
        self.others.iter_mut().any(|Private { l1d, l2, .. }| {
            let [in_l1, in_l2] = [l1d, l2].map(|level| level.cache.clean(line));
            l2.statistics.writebacks += u64::from(in_l1 || in_l2);
            in_l1 || in_l2
        })
    }

    /// The trace has a gap here, after which L2 and LLC hold what was used before it; see
    /// [`Cache::begin_history`]. Of an LLC that programs share, [`SharedCaches::begin_history`]
    /// says so.
    pub fn begin_history(&mut self) {
        self.has_gap = true;
        for l2 in self.every_l2() {
            l2.begin_history();
            l2.clean_old();
        }
        if !self.is_of_a_mix() {
            self.llc.cache.begin_history();
        }
    }

    /// Programs of other cores share the last-level cache; each has one core.
    pub fn is_of_a_mix(&self) -> bool {
        self.shares && !self.is_coherent()
    }

    /// The L2 caches of all cores that run the program.
    fn every_l2(&mut self) -> impl Iterator<Item = &mut Cache> {
        let others = self.others.iter_mut().map(|other| &mut other.l2);
        others.chain([&mut self.l2]).map(|level| &mut level.cache)
    }

    /// Lines that several cores' L2 caches have: none has been written since it has been in more than one.
    fn shared_lines(&mut self) -> FxHashSet<Line> {
        let mut seen = FxHashSet::default();
        if !self.is_coherent() {
            return seen;
        }
        let all = self.every_l2().flat_map(|cache| cache.known_lines());
        all.filter(|&line| !seen.insert(line)).collect()
    }

    /// Time passes from here on, in which lines that go are written back: see
    /// [`Cache::presume_history`]. `data_bytes` is how much the program has in memory. Nothing is
    /// done where no gap came before: all is known.
    pub fn presume_history(&mut self, data_bytes: u64) {
        if !std::mem::take(&mut self.has_gap) {
            return;
        }
        let (l1d, l2) = (self.l1d.cache.lines(), self.l2_lines());
        let cores = self.others.len() as u64 + 1;
        let data_lines = data_bytes >> LINE_SHIFT;
        let shared = self.shared_lines();
        for cache in self.every_l2() {
            cache.presume_history(|_| l1d, data_lines / cores, |line| shared.contains(&line));
        }
        if !self.is_of_a_mix() {
            self.llc.presume_history(|_| l2 * cores, data_bytes);
        }
    }
}

impl Level {
    /// Of a last-level cache below L2 caches of `above` lines together, by owner; see
    /// [`Cache::presume_history`].
    fn presume_history(&mut self, above: impl Fn(u64) -> u64, data_bytes: u64) {
        self.cache.presume_history(above, data_bytes >> LINE_SHIFT, |_| false);
    }
}
