//! The memory hierarchy: L1I, L1D, L2, last-level cache and DRAM, with MSHRs at every cache.
//!
//! One contract: a request names a physical line and the cycle in which it is made, and the answer
//! is the cycle in which the line is there and who had it. Contents change in the order of calls
//! (program order); times come from what each request had to wait for.
//!
//! Several cores may run one program ([`Hierarchy::add_core`]). Each has L1 and L2 of its own, which are
//! kept coherent by invalidation: a line that one core writes leaves the others' caches, and one that
//! another core has written comes from there, through the last-level cache.

mod level;
mod misses;
mod prefetching;
mod sharing;
mod warming;

use flatwalk_os::Random;
use flatwalk_paging::Hpa;

use crate::config::machine::{Machine, WalkerEntry};
use crate::counts::{Add, Visitor, add};
use crate::memory::dram::{Dram, DramStatistics};
use crate::memory::line::Line;
use crate::memory::prefetchers::Wanted;
use crate::memory::replacement::ReplacementPolicy;
use level::{Found, Level};
use misses::Owner;
pub use prefetching::{FoundIn, Prefetched, Prefetching};
pub use sharing::{Private, SharedCaches};

/// Goes into the seed: whoever draws has a word of its own, so that each draws its own sequence of
/// the one seed.
const SEED_WORD: u64 = u64::from_be_bytes(*b"\0\0caches");

/// Who had the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Served {
    /// A first-level cache.
    L1,
    /// The second-level cache.
    L2,
    /// The last-level cache.
    Llc,
    /// Main memory.
    Dram,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// A load or store.
    Data,
    /// The page walker.
    Walker,
    /// Instruction fetch.
    Fetch,
    /// A data prefetcher.
    Prefetch,
}

impl Served {
    /// Of the number that it is.
    #[inline]
    fn of(number: u8) -> Self {
        [Self::L1, Self::L2, Self::Llc, Self::Dram][usize::from(number & 3)]
    }
}

/// When the line is there, and who had it. Small enough to be returned in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Cycle in which the requester has it.
    pub ready: u64,
    /// Who had it, and from bit 2 on whom the requester waits for.
    from: u8,
}

impl Response {
    /// A line that is there at `ready`, from who had it.
    #[inline]
    pub fn new(ready: u64, served: Served) -> Self {
        Self::late(ready, served, served)
    }

    /// A line that `served` has to wait for itself, until `awaited` has delivered it.
    #[inline]
    fn late(ready: u64, served: Served, awaited: Served) -> Self {
        Self { ready, from: served as u8 | (awaited as u8) << 2 }
    }

    /// Who had it. A line on its way counts for where it comes from to the first requester, and
    /// for the cache that waits for it to the others.
    #[inline]
    pub fn served(self) -> Served {
        Served::of(self.from)
    }

    /// Whom the requester waits for: who had the line, for those too that found it on its way.
    #[inline]
    pub fn awaited(self) -> Served {
        Served::of(self.from >> 2)
    }
}

/// What went through one cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Look-ups for data or instructions.
    pub data_accesses: u64,
    /// Of those, misses.
    pub data_misses: u64,
    /// Look-ups for page-table entries.
    pub table_accesses: u64,
    /// Of those, misses.
    pub table_misses: u64,
    /// Look-ups for data prefetchers: this cache's, and those above.
    pub prefetch_accesses: u64,
    /// Of those, misses.
    pub prefetch_misses: u64,
    /// Dirty lines evicted.
    pub writebacks: u64,
    /// Cycles that requests waited for an MSHR.
    pub mshr_wait_cycles: u64,
    /// Lines that went because another core wrote them.
    pub invalidations: u64,
}

add!(CacheStatistics {
    data_accesses,
    data_misses,
    table_accesses,
    table_misses,
    prefetch_accesses,
    prefetch_misses,
    writebacks,
    mshr_wait_cycles,
    invalidations
});

impl CacheStatistics {
    /// What came between `start` and now.
    pub(crate) fn since(self, start: Self) -> Self {
        Self {
            data_accesses: self.data_accesses - start.data_accesses,
            data_misses: self.data_misses - start.data_misses,
            table_accesses: self.table_accesses - start.table_accesses,
            table_misses: self.table_misses - start.table_misses,
            prefetch_accesses: self.prefetch_accesses - start.prefetch_accesses,
            prefetch_misses: self.prefetch_misses - start.prefetch_misses,
            writebacks: self.writebacks - start.writebacks,
            mshr_wait_cycles: self.mshr_wait_cycles - start.mshr_wait_cycles,
            invalidations: self.invalidations - start.invalidations,
        }
    }
}

/// The hierarchy of one core, or of several of which one has its turn.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    l1i: Level,
    l1d: Level,
    l2: Level,
    llc: Level,
    dram: Dram,
    walker_entry: WalkerEntry,
    /// LLC and memory are shared with other cores.
    shares: bool,
    /// What a shared LLC and memory know this core's lines by, in addition to their number.
    owner: u64,
    /// No other core that shares them will name a cycle before.
    others_frontier: u64,
    random: Random,
    frontier: u64,
    /// Data look-ups and data misses of L2, measured or not, that mechanisms look at.
    l2_data: (u64, u64),
    /// Some cache has prefetchers.
    prefetches: bool,
    /// Scratch: lines that the prefetchers of one cache want.
    wanted: Vec<Wanted>,
    /// The other cores that run the same program.
    others: Vec<Private>,
    /// What has been used since a gap is warmed.
    has_gap: bool,
}

impl Hierarchy {
    /// The caches and the memory of a timed machine; `None` if it has none.
    pub fn new(machine: &Machine, seed: u64) -> Option<Self> {
        Some(Self {
            l1i: Level::new(machine.l1i.as_ref()?),
            l1d: Level::new(machine.l1d.as_ref()?),
            l2: Level::new(machine.l2.as_ref()?),
            llc: Level::new(machine.llc.as_ref()?),
            dram: Dram::new(machine, machine.memory.as_ref()?, seed),
            walker_entry: machine.walker.entry,
            shares: false,
            owner: 0,
            others_frontier: u64::MAX,
            random: Random::new(seed ^ SEED_WORD),
            frontier: 0,
            l2_data: (0, 0),
            prefetches: false,
            wanted: Vec::new(),
            others: Vec::new(),
            has_gap: false,
        })
    }

    /// No request will be made any more for a cycle before `frontier`.
    #[inline]
    pub fn advance(&mut self, frontier: u64) {
        self.frontier = frontier;
    }

    /// Gives the L2 cache a replacement policy, or takes it away.
    pub fn set_l2_policy(&mut self, policy: Option<Box<dyn ReplacementPolicy>>) {
        self.l2.set_policy(policy);
    }

    /// The same of the last-level cache, if this core has it for itself.
    pub fn set_llc_policy(&mut self, policy: Option<Box<dyn ReplacementPolicy>>) {
        if !self.shares {
            self.llc.set_policy(policy);
        }
    }

    /// The replacement policies of L2 and the last-level cache.
    pub fn policies(&self) -> [Option<&dyn ReplacementPolicy>; 2] {
        [self.l2.policy.as_deref(), self.llc.policy.as_deref()]
    }

    /// What all cores together have counted in L1D, L2 and the last-level cache; and lines read from and
    /// written to memory.
    pub fn totals(&self) -> ([CacheStatistics; 3], u64) {
        let mut caches = [&self.l1d, &self.l2, &self.llc].map(|level| level.statistics);
        let lines = |dram: &DramStatistics| dram.reads + dram.writes;
        let mut dram_lines = lines(&self.dram.statistics);
        for other in &self.others {
            let theirs = [other.l1d.statistics, other.l2.statistics, other.llc_statistics];
            caches.iter_mut().zip(&theirs).for_each(|(sum, more)| sum.add(more));
            dram_lines += lines(&other.dram_statistics);
        }
        (caches, dram_lines)
    }

    /// No request will be made any more for a cycle before this.
    pub fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Reads the line of `address` from L2 on, for a translation that stands in it; with `bypass`, from
    /// memory without looking in the caches first, unless one of them has it. Takes an MSHR of L1D until then
    /// if it comes `by_l1d`. Beside the response: whether the caches were passed by.
    pub fn read_translations(
        &mut self,
        address: Hpa,
        at: u64,
        bypass: bool,
        by_l1d: bool,
    ) -> (Response, bool) {
        let by = Requester::Walker;
        let line = Line::of(address);
        let bypasses =
            bypass && matches!(self.peek_below(Prefetching::L1d, line), Owner::Memory { .. });
        let owner = if bypasses {
            // What is spared is the time of the look-ups; the line fills both caches as any other, and
            // who watches them sees that.
            self.watch_below(line);
            Owner::Memory { llc_cycles: 0 }
        } else {
            self.look_up_l2(line, false, by)
        };
        let plan = if by_l1d {
            let (going, plan) = self.plan_first_level_miss(line, owner, at, by);
            self.l1d.keep(going);
            plan
        } else {
            self.plan_l2(line, owner, at)
        };
        (self.carry_out(line, owner, &plan, false, by), bypasses)
    }

    /// Those that watch L2 and the last-level cache see a look-up for a translation.
    fn watch_below(&mut self, line: Line) {
        let owned = self.owned(line);
        for (level, line) in [(&mut self.l2, line), (&mut self.llc, owned)] {
            if level.watched {
                level.watch(line, true);
            }
        }
    }

    /// Writes a translation into the line of `address`, in L2.
    pub fn write_translations(&mut self, address: Hpa, at: u64) {
        let line = Line::of(address);
        self.access_l2(line, at, true, Requester::Walker);
        self.invalidate_others(line);
    }

    /// `address` is soon to be asked for: prefetches the words that stand for its sets in the large
    /// caches.
    #[inline]
    pub fn prefetch_hint(&self, address: Hpa) {
        let line = Line::of(address);
        self.l2.cache.prefetch_hint(line);
        self.llc.cache.prefetch_hint(self.owned(line));
    }

    /// `address` is soon to be asked for, and the words that stand for its set in L2 are at hand:
    /// prefetches those of the last-level cache's set that has the line which will have to go for
    /// it.
    #[inline]
    pub fn prefetch_victim(&self, address: Hpa) {
        self.prefetch_victim_of(Line::of(address));
    }

    #[inline]
    fn prefetch_victim_of(&self, line: Line) {
        if let Some(oldest) = self.l2.cache.oldest(line) {
            self.llc.cache.prefetch_hint(self.owned(oldest));
        }
    }

    /// Asks for the line of `address` at cycle `at` where the walker's reads enter, unless that would
    /// have to wait for an MSHR. False if so.
    pub fn prefetch(&mut self, address: Hpa, at: u64) -> bool {
        let line = Line::of(address);
        let (level, of) = match self.walker_entry {
            WalkerEntry::L1d => (&mut self.l1d, Prefetching::L1d),
            WalkerEntry::L2 => (&mut self.l2, Prefetching::L2),
        };
        if !level.cache.contains(line) && !self.goes_on_at_once(of, line, at) {
            return false;
        }
        self.access(address, at, false, Requester::Walker);
        true
    }

    /// Asks for the line of `address` at cycle `at`; a write makes it dirty.
    #[inline(always)]
    pub fn access(&mut self, address: Hpa, at: u64, write: bool, by: Requester) -> Response {
        if write && self.is_coherent() {
            return self.access_exclusive(address, at, by);
        }
        self.access_any(address, at, write, by)
    }

    /// A write, where other cores may have the line: theirs become invalid. The line's own time is that
    /// of a read; nobody waits for the others' to go.
    #[inline(never)]
    fn access_exclusive(&mut self, address: Hpa, at: u64, by: Requester) -> Response {
        let line = Line::of(address);
        let is_mine = self.is_modified(line);
        let response = self.access_any(address, at, true, by);
        if !is_mine {
            self.invalidate_others(line);
        }
        response
    }

    /// The first-level cache that `by` asks; `None` if it asks L2.
    #[inline(always)]
    fn l1(&mut self, by: Requester) -> Option<&mut Level> {
        let is_passed_by = by == Requester::Walker && self.walker_entry == WalkerEntry::L2;
        (!is_passed_by).then(|| self.first_level(by))
    }

    #[inline(always)]
    fn access_any(&mut self, address: Hpa, at: u64, write: bool, by: Requester) -> Response {
        let line = Line::of(address);
        // What was used last is used again more often than not.
        if let Some(l1) = self.l1(by)
            && l1.cache.access_newest(line, write)
        {
            l1.count(by, true);
            return Response::new(at + l1.latency, Served::L1);
        }
        self.access_older(line, at, write, by)
    }

    /// The line is not the one that was used last of its set. Apart, so that such hits stay short.
    #[inline(never)]
    fn access_older(&mut self, line: Line, at: u64, write: bool, by: Requester) -> Response {
        let frontier = self.frontier;
        let Some(l1) = self.l1(by) else { return self.access_l2(line, at, write, by) };
        let hit = at + l1.latency;
        match l1.look_up(line, write, by, frontier) {
            Found::Here => Response::new(hit, Served::L1),
            Found::OnItsWay(miss) => {
                let ready = l1.ready(Some(miss), at);
                l1.note_use(line, ready > hit);
                self.on_its_way(Served::L1, miss, hit, ready)
            }
            Found::Nowhere => self.access_missing(line, at, write, by),
        }
    }

    /// The first-level cache does not have the line.
    #[inline]
    fn access_missing(&mut self, line: Line, at: u64, write: bool, by: Requester) -> Response {
        let owner = self.look_up_l2(line, false, by);
        let (going, plan) = self.plan_first_level_miss(line, owner, at, by);
        let response = self.carry_out(line, owner, &plan, false, by);
        let frontier = self.frontier;
        self.first_level(by).book(line, going, frontier);
        self.fill_l1(by, line, write, true, response.ready);
        response
    }

    /// The first-level cache that has a part in the requests of `by`.
    #[inline(always)]
    fn first_level(&mut self, by: Requester) -> &mut Level {
        if by == Requester::Fetch { &mut self.l1i } else { &mut self.l1d }
    }

    #[inline(always)]
    fn fill_l1(&mut self, by: Requester, line: Line, dirty: bool, pending: bool, at: u64) {
        let l1 = if by == Requester::Fetch { &mut self.l1i } else { &mut self.l1d };
        let table = by == Requester::Walker;
        let evicted = l1.cache.fill(line, table, dirty, pending, None, &mut self.random);
        let Some(gone) = evicted else { return };
        l1.note_gone(gone.mark);
        if gone.dirty {
            l1.statistics.writebacks += 1;
            self.write_back_to_l2(gone.line, gone.table, at);
        }
    }

    #[inline]
    fn count_l2_data(&mut self, by: Requester, hit: bool) {
        let is_data = !matches!(by, Requester::Walker | Requester::Prefetch);
        self.l2_data.0 += u64::from(is_data);
        self.l2_data.1 += u64::from(is_data && !hit);
    }

    fn fill_l2(&mut self, line: Line, table: bool, dirty: bool, pending: bool, at: u64) {
        let Level { cache, policy, .. } = &mut self.l2;
        let evicted =
            cache.fill(line, table, dirty, pending, policy.as_deref_mut(), &mut self.random);
        let Some(gone) = evicted else { return };
        self.l2.note_gone(gone.mark);
        if gone.dirty {
            self.l2.statistics.writebacks += 1;
            let line = self.owned(gone.line);
            if !self.llc.cache.write_back(line) {
                self.fill_llc(line, gone.table, true, false, at);
            }
        }
    }

    fn fill_llc(&mut self, line: Line, table: bool, dirty: bool, pending: bool, at: u64) {
        let Level { cache, policy, .. } = &mut self.llc;
        let evicted =
            cache.fill(line, table, dirty, pending, policy.as_deref_mut(), &mut self.random);
        if let Some(gone) = evicted
            && gone.dirty
        {
            self.llc.statistics.writebacks += 1;
            self.dram.write(gone.line, at, self.shared_frontier());
        }
    }

    fn write_back_to_l2(&mut self, line: Line, table: bool, at: u64) {
        if !self.l2.cache.write_back(line) {
            self.fill_l2(line, table, true, false, at);
        }
    }

    /// Lines that a core's L2 has room for.
    pub fn l2_lines(&self) -> u64 {
        self.l2.cache.lines()
    }

    /// Cycles that requests of L1D have waited for its MSHRs so far.
    #[inline]
    pub fn l1d_wait_cycles(&self) -> u64 {
        self.l1d.statistics.mshr_wait_cycles
    }

    /// Load-to-use latency of the first-level data cache.
    pub fn l1d_latency(&self) -> u64 {
        self.l1d.latency
    }

    /// Load-to-use latency of the instruction cache.
    pub fn l1i_latency(&self) -> u64 {
        self.l1i.latency
    }

    /// What went through each cache, from the core outwards.
    pub fn caches(&self) -> [(&'static str, CacheStatistics); 4] {
        [
            ("L1I", self.l1i.statistics),
            ("L1D", self.l1d.statistics),
            ("L2", self.l2.statistics),
            ("LLC", self.llc.statistics),
        ]
    }

    /// Data look-ups and data misses of the second-level cache so far, measured or not.
    pub fn l2_data(&self) -> (u64, u64) {
        self.l2_data
    }

    /// Memory, for its statistics.
    pub fn dram(&self) -> &Dram {
        &self.dram
    }

    /// Share of the last-level cache's lines that hold page-table entries.
    pub fn llc_table_fraction(&self) -> f64 {
        let (tables, _) = self.llc.cache.table_lines();
        tables as f64 / self.llc.cache.lines() as f64
    }

    /// Lines of the last-level cache that hold page-table entries, and all that hold something.
    #[cfg(test)]
    pub fn llc_table_lines(&self) -> (usize, usize) {
        self.llc.cache.table_lines()
    }

    /// Shows the counts of the core that has its turn.
    pub fn counts(&mut self, visit: &mut Visitor<'_>) {
        for level in [&mut self.l1i, &mut self.l1d, &mut self.l2] {
            visit(&mut level.statistics);
            if let Some(policy) = &mut level.policy {
                policy.counts(visit);
            }
            level.prefetchers.counts(visit);
        }
        visit(&mut self.llc.statistics);
        visit(&mut self.dram.statistics);
    }

    /// Shows the counts that are of all cores together.
    pub fn shared_counts(&mut self, visit: &mut Visitor<'_>) {
        if let Some(policy) = &mut self.llc.policy {
            policy.counts(visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_paging::Address;

    use super::*;
    use crate::config::machine::{Isolation, Multicore};
    use crate::mechanisms::page_table_priority;
    use crate::memory::line::LINE_SHIFT;
    use crate::memory::mshrs::Mshrs;
    use crate::memory::replacement::Turn;
    use crate::tests::testing::shipped_machine;

    impl Hierarchy {
        /// Asks for a line from the last-level cache on.
        fn access_llc(&mut self, line: Line, at: u64) -> Response {
            let owner = self.look_up_llc(line, Requester::Data);
            let plan = self.plan_llc(line, owner, at);
            self.carry_out(line, owner, &plan, false, Requester::Data)
        }
    }

    fn hierarchy() -> Hierarchy {
        Hierarchy::new(&crate::tests::testing::machine(), 1).unwrap()
    }

    /// Of two cores that run one program.
    fn two_cores() -> Hierarchy {
        let machine = crate::tests::testing::machine();
        let multicore = Multicore { cores: 2, isolation: Isolation::Owners };
        let policy = page_table_priority::shared_policy(&machine, multicore).unwrap();
        let mut h = hierarchy();
        let second = h.private();
        h.add_core(second, policy);
        h
    }

    fn read(h: &mut Hierarchy, address: u64, at: u64, by: Requester) -> (u64, Served) {
        let r = h.access(Hpa::new(address), at, false, by);
        (r.ready - at, r.served())
    }

    #[test]
    fn latencies_by_hand() {
        // The test machine: L1 4, L2 12, LLC 42 cycles, memory 100 cycles behind the LLC.
        let mut h = hierarchy();
        assert_eq!(read(&mut h, 0, 0, Requester::Data), (142, Served::Dram));
        assert_eq!(read(&mut h, 8, 1000, Requester::Data), (4, Served::L1));
        // 4 sets × 2 ways in L1D: two more lines of the set push line 0 out to L2.
        read(&mut h, 4 * 64, 2000, Requester::Data);
        read(&mut h, 8 * 64, 3000, Requester::Data);
        assert_eq!(read(&mut h, 0, 4000, Requester::Data), (12, Served::L2));
        // Instructions have their own first level.
        assert_eq!(read(&mut h, 0, 5000, Requester::Fetch), (12, Served::L2));
        assert_eq!(read(&mut h, 0, 6000, Requester::Fetch), (4, Served::L1));
    }

    #[test]
    fn a_line_on_its_way_is_waited_for_not_fetched_again() {
        let mut h = hierarchy();
        assert_eq!(read(&mut h, 0, 100, Requester::Data), (142, Served::Dram));
        assert_eq!(read(&mut h, 32, 110, Requester::Data), (132, Served::L1));
        assert_eq!(h.dram().statistics.reads, 1);
        // A younger instruction that asks at an earlier cycle brings the line earlier.
        assert_eq!(read(&mut h, 16, 90, Requester::Data), (142, Served::L1));
    }

    #[test]
    fn mshrs_limit_outstanding_misses() {
        // Two MSHRs in the test machine's L1D.
        let mut h = hierarchy();
        let ready: Vec<_> =
            (0..4).map(|n| h.access(Hpa::new(n << 20), 0, false, Requester::Data).ready).collect();
        assert_eq!(&ready[..2], [142, 143], "the bus carries one line a cycle");
        assert!(ready[2] >= 142 + 142 && ready[3] >= 142 + 142, "{ready:?}");
    }

    #[test]
    fn a_line_that_waits_for_an_mshr_is_there_for_nobody_sooner() {
        type Of = fn(&mut Hierarchy) -> &mut Level;
        type Ask = fn(&mut Hierarchy, Line, u64) -> Response;
        let levels: [(Of, Ask); 4] = [
            (|h| &mut h.l1i, |h, line, at| h.access_older(line, at, false, Requester::Fetch)),
            (|h| &mut h.l1d, |h, line, at| h.access_older(line, at, false, Requester::Data)),
            (|h| &mut h.l2, |h, line, at| h.access_l2(line, at, false, Requester::Data)),
            (|h| &mut h.llc, |h, line, at| h.access_llc(line, at)),
        ];
        for (level, ask) in levels {
            let mut h = hierarchy();
            for other in [&mut h.l1i, &mut h.l1d, &mut h.l2, &mut h.llc] {
                other.mshrs = Mshrs::new(64);
            }
            level(&mut h).mshrs = Mshrs::new(2);
            let mut ask = |line: u64, at| ask(&mut h, Line(line << 10), at).ready;
            // Any level's miss takes 142 cycles: the last one's latency, and memory's. The bus has
            // a line a cycle.
            assert_eq!([ask(1, 0), ask(2, 0)], [142, 143]);
            // The third line goes on its way when the first is there, however often it is asked for
            // meanwhile.
            assert_eq!([ask(3, 1), ask(3, 2), ask(3, 100)], [284; 3]);
            // Where one is free, who asks ten cycles earlier has the line so much earlier …
            assert_eq!([ask(4, 1000), ask(4, 990)], [1142, 1132]);
            // … but not if none was: it begins at 2142 for both, and for one that asked before the
            // first two, by the cycles in which it had one.
            assert_eq!([ask(5, 2000), ask(6, 2000)], [2142, 2143]);
            assert_eq!([ask(7, 2100), ask(7, 2050), ask(7, 1990)], [2284, 2284, 2284 - 10]);
            // Before them, one has all the time that it takes.
            assert_eq!([ask(7, 1858), ask(7, 1859), ask(7, 1800)], [2000, 2284 - 141, 2000 - 58]);
        }
    }

    #[test]
    fn what_waits_for_an_mshr_takes_nothing_below_meanwhile() {
        type Of = fn(&mut Hierarchy) -> &mut Level;
        type Ask = fn(&mut Hierarchy, Line, u64);
        fn address(line: Line) -> Hpa {
            Hpa::new(line.0 << LINE_SHIFT)
        }
        // Which cache has one MSHR, a request that needs it, and the latency before memory is asked.
        let by_data =
            |h: &mut Hierarchy, line, at| _ = h.access(address(line), at, false, Requester::Data);
        let levels: [(Of, Ask, u64); 6] = [
            (
                |h| &mut h.l1i,
                |h, line, at| _ = h.access(address(line), at, false, Requester::Fetch),
                42,
            ),
            (|h| &mut h.l1d, by_data, 42),
            (
                |h| &mut h.l1d,
                |h, line, at| _ = h.read_translations(address(line), at, false, true),
                42,
            ),
            (
                |h| &mut h.l1d,
                |h, line, at| _ = h.read_translations(address(line), at, true, true),
                0,
            ),
            (|h| &mut h.l2, |h, line, at| _ = h.access_l2(line, at, false, Requester::Data), 42),
            (|h| &mut h.llc, |h, line, at| _ = h.access_llc(line, at), 42),
        ];
        for (number, (level, ask, latency)) in levels.into_iter().enumerate() {
            let mut h = hierarchy();
            for other in [&mut h.l1i, &mut h.l1d, &mut h.l2, &mut h.llc] {
                other.mshrs = Mshrs::new(64);
            }
            level(&mut h).mshrs = Mshrs::new(1);
            // When a line would be there that memory is asked for at `at`: 100 cycles later, or 101 if
            // the bus has another one.
            let read = |h: &Hierarchy, at| h.dram.plan_read(Line(9 << 10), at).ready - at;
            let taken = latency + 100;
            // The second one waits for the first, and then goes on.
            ask(&mut h, Line(1 << 10), 1000);
            ask(&mut h, Line(2 << 10), 1050);
            let begins = 1000 + taken;
            let bus = [1050, 1000, begins].map(|from| read(&h, from + latency));
            assert_eq!(bus, [100, 101, 101], "{number}");
            // No cache below has an MSHR in use for it before.
            for other in [&mut h.l1i, &mut h.l1d, &mut h.l2, &mut h.llc] {
                let mut most = (900..begins + taken).map(|at| other.mshrs.in_use(at));
                assert!(most.all(|used| used <= 1), "{number}");
                assert_eq!(other.mshrs.in_use(999), 0, "{number}");
            }
        }
    }

    #[test]
    fn a_line_that_waits_for_an_mshr_takes_as_long_on_skylake_server() {
        let mut machine = shipped_machine("skylake-server");
        machine.l1d.as_mut().unwrap().mshrs = 2;
        let mut h = Hierarchy::new(&machine, 1).unwrap();
        let mut ask =
            |mib: u64, at| h.access(Hpa::new(mib << 20), at, false, Requester::Data).ready;
        // At 2 GHz: the last level's 42 cycles, 40 of the controller, 29 each for the row and for
        // the column, and 7 of the bus, which the second line waits for. The third one, asked for
        // at 1, begins at 147.
        assert_eq!([ask(1, 0), ask(2, 0)], [147, 147 + 7]);
        assert_eq!([ask(3, 1), ask(3, 2)], [147 + 147; 2]);
    }

    #[test]
    fn a_prefetch_is_given_up_where_no_mshr_is_free_until_its_line_is_there() {
        for into in [Prefetching::L1d, Prefetching::L2] {
            let mut h = hierarchy();
            // No two in a set, from which a prefetched line could go.
            let address = |line: u64| line << 20 | line << LINE_SHIFT;
            h.l2.mshrs = Mshrs::new(2);
            // Both MSHRs are in use from 1000 to 1142, and one of them from 2000 on.
            for (line, at) in [(1, 1000), (2, 1000), (3, 2000)] {
                read(&mut h, address(line), at, Requester::Data);
            }
            let mut prefetch =
                |line: u64, at| h.prefetch_data(into, Hpa::new(address(line)), at, 0);
            assert_eq!(prefetch(4, 900), Prefetched::Dropped, "{into:?}");
            assert_eq!(prefetch(4, 858), Prefetched::Issued, "until 1000");
            assert_eq!(prefetch(5, 1900), Prefetched::Issued, "there is the other one");
            assert_eq!(prefetch(6, 1900), Prefetched::Dropped);
            // The walker's are of L1D here.
            assert!(!h.prefetch(Hpa::new(address(7)), 900));
            assert!(h.prefetch(Hpa::new(address(7)), 857), "and the other one of those, too");
        }
    }

    #[test]
    fn a_prefetch_does_not_wait_for_an_mshr() {
        let mut h = hierarchy();
        read(&mut h, 1 << 20, 0, Requester::Data);
        assert!(h.prefetch(Hpa::new(2 << 20), 1), "one MSHR of two is free");
        assert!(!h.prefetch(Hpa::new(3 << 20), 2));
        assert!(h.prefetch(Hpa::new(2 << 20), 3), "what is on its way needs no other");
        assert_eq!(h.dram().statistics.reads, 2);
        assert!(h.prefetch(Hpa::new(3 << 20), 142));
        assert_eq!(read(&mut h, 3 << 20, 150, Requester::Walker), (142 + 142 - 150, Served::L1));
    }

    #[test]
    fn the_walker_enters_where_it_is_told() {
        let mut machine = crate::tests::testing::machine();
        machine.walker.entry = WalkerEntry::L2;
        let mut h = Hierarchy::new(&machine, 1).unwrap();
        read(&mut h, 0, 0, Requester::Data);
        assert_eq!(read(&mut h, 0, 1000, Requester::Walker), (12, Served::L2));
        assert_eq!(h.caches()[1].1.table_accesses, 0);
    }

    #[test]
    fn a_line_on_its_way_is_awaited_from_where_it_is() {
        let mut h = hierarchy();
        // Asked for at `at`, and again a cycle later: what the second request says.
        let twice = |h: &mut Hierarchy, at: u64, by: Requester| {
            let first = h.access(Hpa::new(0), at, false, Requester::Data);
            assert_eq!(first.served(), first.awaited());
            let second = h.access(Hpa::new(0), at + 1, false, by);
            (second.ready - at, second.served(), second.awaited())
        };
        assert_eq!(twice(&mut h, 0, Requester::Data), (142, Served::L1, Served::Dram));
        // Two more lines of its set push it out of L1D.
        let others = |h: &mut Hierarchy, numbers: &[u64], at: u64| {
            for n in numbers {
                h.access(Hpa::new(n * 256), at + 1000 * n, false, Requester::Data);
            }
        };
        others(&mut h, &[1, 2], 1000);
        assert_eq!(twice(&mut h, 9000, Requester::Data), (12, Served::L1, Served::L2));
        // And four of its set out of L2.
        others(&mut h, &[4, 8, 12, 16], 10_000);
        assert_eq!(twice(&mut h, 40_000, Requester::Data), (42, Served::L1, Served::Llc));
        others(&mut h, &[4, 8, 12, 16], 50_000);
        let fetch = twice(&mut h, 80_000, Requester::Fetch);
        assert_eq!(fetch, (42, Served::L2, Served::Llc), "another L1 that finds it in L2");
        let there = h.access(Hpa::new(0), 90_000, false, Requester::Data);
        assert_eq!((there.ready, there.awaited()), (90_004, Served::L1));
    }

    #[test]
    fn cores_share_room_and_time_but_no_lines_and_no_counts() {
        let machine = crate::tests::testing::machine();
        let multicore = Multicore { cores: 2, isolation: Isolation::Owners };
        let policy = page_table_priority::shared_policy(&machine, multicore).unwrap();
        let mut shared = SharedCaches::new(&machine, policy, 1).unwrap();
        let mut cores = [hierarchy(), hierarchy()];
        cores[1].own(1);
        let mut turn = |core: usize, address: u64, at: u64| {
            cores[core].share(&mut shared, 0);
            let answer = read(&mut cores[core], address, at, Requester::Data);
            cores[core].share(&mut shared, u64::MAX);
            answer
        };
        assert_eq!(turn(0, 0, 0), (142, Served::Dram));
        // The same address of another program is another line, and the bus carries one a cycle.
        assert_eq!(turn(1, 0, 0), (143, Served::Dram));
        // Four more lines of the set push line 0 out of the core's own caches, but not of the LLC.
        for n in 1..=4 {
            turn(0, n * 1024, 1000 * n);
        }
        assert_eq!(turn(0, 0, 9000), (42, Served::Llc));
        assert_eq!(turn(1, 1024, 9000), (142, Served::Dram), "nothing of the other's is there");
        let reads =
            cores.map(|core| (core.dram().statistics.reads, core.caches()[3].1.data_misses));
        assert_eq!(reads, [(5, 5), (2, 2)]);
    }

    /// Two cores of one program, of which one reads or writes at its turn.
    fn pair() -> impl FnMut(usize, u64, u64, bool) -> (u64, Served) {
        let mut h = two_cores();
        let mut turn = 0;
        move |core, address, at, write| {
            if core != turn {
                h.exchange(0);
                turn = core;
            }
            h.begin_turn(Turn::default(), 0);
            let response = h.access(Hpa::new(address), at, write, Requester::Data);
            (response.ready - at, response.served())
        }
    }

    #[test]
    fn what_one_core_writes_another_gets_from_there() {
        let mut access = pair();
        // L1 4, L2 12, LLC 42, memory 100 cycles behind it; another core's L2 is behind the LLC.
        assert_eq!(access(0, 0, 0, false), (142, Served::Dram));
        assert_eq!(access(1, 0, 1000, false), (42, Served::Llc), "both have it");
        assert_eq!(access(0, 0, 2000, false), (4, Served::L1));
        assert_eq!(access(1, 0, 3000, true), (4, Served::L1), "and the other has it no longer");
        assert_eq!(access(0, 0, 4000, false), (42 + 12, Served::Llc));
        assert_eq!(access(0, 0, 5000, false), (4, Served::L1));
        assert_eq!(access(1, 0, 6000, false), (4, Served::L1), "what was read stays, clean");
        // A write of what another core has written: the line comes from there, and goes there.
        access(1, 0, 7000, true);
        assert_eq!(access(0, 0, 8000, true), (54, Served::Llc));
        assert_eq!(access(1, 0, 9000, true), (54, Served::Llc));
        assert_eq!(access(1, 0, 10_000, true), (4, Served::L1));
    }

    #[test]
    fn a_line_that_two_cores_have_is_not_presumed_to_be_modified() {
        let mut h = two_cores();
        let warm = |h: &mut Hierarchy, lines: std::ops::Range<u64>, write: bool| {
            for line in lines {
                h.warm(Hpa::new(line * 64), write, Requester::Data);
            }
        };
        // Of the 64 lines of each core's L2 both have 32. Behind the gap 24 others are used, and written.
        for core in 0..2 {
            warm(&mut h, 0..32, false);
            warm(&mut h, 1000 * (core + 1)..1000 * (core + 1) + 8, false);
            h.exchange(0);
        }
        h.begin_history();
        for core in 0..2 {
            warm(&mut h, 1000 * (core + 1) + 8..1000 * (core + 1) + 32, true);
            h.exchange(0);
        }
        h.presume_history(1 << 30);
        let modified = |core: &Level, lines: std::ops::Range<u64>| {
            lines.filter(|&line| core.cache.is_modified(Line(line))).count()
        };
        let there =
            |core: &Level| (0..32).filter(|&line| core.cache.mark(Line(line)).is_some()).count();
        let other = &h.others[0].l2;
        assert!(there(&h.l2) > 20 && there(other) > 20);
        assert_eq!([modified(&h.l2, 0..32), modified(other, 0..32)], [0, 0]);
        let own = [modified(&h.l2, 1000..1008), modified(other, 2000..2008)];
        assert!(own.iter().all(|&own| own > 4), "{own:?}");
    }

    #[test]
    fn a_line_that_another_core_wrote_reaches_memory_once() {
        let mut h = two_cores();
        h.access(Hpa::new(0), 0, true, Requester::Data);
        h.exchange(0);
        h.access(Hpa::new(0), 1000, true, Requester::Data);
        for n in 1..10_000u64 {
            read(&mut h, n * 64, n * 1000, Requester::Data);
            h.exchange(0);
        }
        let mut writes = h.dram().statistics.writes;
        h.exchange(0);
        writes += h.dram().statistics.writes;
        assert_eq!(writes, 1);
    }

    #[test]
    fn dirty_lines_reach_memory() {
        let mut h = hierarchy();
        h.access(Hpa::new(0), 0, true, Requester::Data);
        for n in 1..10_000u64 {
            read(&mut h, n * 64, n * 1000, Requester::Data);
        }
        assert_eq!(h.dram().statistics.writes, 1);
    }
}
