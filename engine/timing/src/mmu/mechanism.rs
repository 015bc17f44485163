//! The hooks through which a mechanism takes part in translation.
//!
//! A mechanism is what helps translation next to the page table: a prefetcher, a TLB in memory, a
//! segment, a policy of the caches. It implements [`Mechanism`] in one file of `mechanisms/`, says
//! in [`Hooks`] which hooks it has, and is called for no others. The MMU knows only that there are
//! some, behind one test of a flag, so that a scheme without any pays nothing.

use std::any::Any;
use std::fmt::Debug;

use flatwalk_os::OrderedNodes;
use flatwalk_paging::{AccessKind, Flush, Geometry, Gpa, Gva, Hpa};
use serde_json::{Map, Value};

use crate::counts::Visitor;
use crate::memory::hierarchy::{Hierarchy, Served};
use crate::memory::reader::{MemoryPort, Port};
use crate::mmu::event::{Found, Read, ReadCount, Request, Stopped, WalkObserver};
use crate::mmu::tlb::{Tlb, Translation};
use crate::mmu::walker::Walker;
use crate::mmu::walkers::Walkers;
use crate::system::System;

/// Which hooks a mechanism has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a hook of its own")]
pub struct Hooks {
    /// [`Mechanism::translate`].
    pub translate: bool,
    /// [`Mechanism::look_up`].
    pub look_up: bool,
    /// Its look-ups take a page walker, as the walk does that may follow.
    pub look_up_in_walker: bool,
    /// [`Mechanism::populated`].
    pub populate: bool,
    /// [`Mechanism::before_walk`], [`Mechanism::entry_read`], [`Mechanism::before_host_walk`],
    /// [`Mechanism::after_host_walk`] and [`Mechanism::after_walk`].
    pub walk: bool,
    /// [`Mechanism::filled`] and [`Mechanism::evicted`].
    pub fill: bool,
    /// [`Mechanism::protects_page_tables`] may be true.
    pub protect: bool,
    /// It is how the machine's walker works: every walk has it, one that a prefetcher wants or that is
    /// made to explain a translation too. It has the hooks of walks, and [`Mechanism::look_up`] is not
    /// called.
    pub part_of_walker: bool,
}

impl Hooks {
    /// Those of either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            translate: self.translate | other.translate,
            look_up: self.look_up | other.look_up,
            look_up_in_walker: self.look_up_in_walker | other.look_up_in_walker,
            populate: self.populate | other.populate,
            walk: self.walk | other.walk,
            fill: self.fill | other.fill,
            protect: self.protect | other.protect,
            part_of_walker: self.part_of_walker | other.part_of_walker,
        }
    }
}

/// The miss of the last-level TLB at which mechanisms are called, and what they may use.
pub struct Miss<'a> {
    /// What is to be translated, and when that was asked for of whom is called now.
    pub request: Request,
    /// Cycle in which the walk starts. A mechanism may let it start later.
    pub start: u64,
    /// The geometry of the process's own table.
    pub geometry: Geometry,
    /// The last-level TLB.
    pub tlb: &'a mut Tlb,
    /// The walker's own state.
    pub walker: &'a mut Walker,
    /// The mechanisms that are parts of it; none where one of them is called.
    pub(super) parts: &'a mut [Box<dyn Mechanism>],
    /// When walkers are in use.
    pub walkers: &'a mut Walkers,
    /// No request will be made any more for a cycle before this.
    pub frontier: u64,
    /// The tables, and the operating system.
    pub system: &'a mut System,
    /// The way to memory.
    pub port: &'a mut dyn MemoryPort,
    /// What takes note of reads that belong to this miss.
    pub log: &'a mut dyn WalkObserver,
}

impl Miss<'_> {
    /// Walks for `address` on behalf of a prefetcher from cycle `at` on, if a page walker is free
    /// then, and needs no software. Its reads go to memory like any walk's and are
    /// counted in the answer, not among those of the miss; segments within the walker count it neither. A walk
    /// that finds nothing raises no fault.
    pub fn prefetch_walk(&mut self, address: Gva, at: u64) -> Option<(Found, u64)> {
        let timed = self.port.is_timed();
        let is_free = !timed || self.walkers.earliest(at) == at;
        if !is_free || self.parts.iter().any(|part| part.walks_in_software(address, self.tlb)) {
            return None;
        }
        let segments = self.walker.segments();
        let mut log = ReadCount::default();
        let mut ahead = Miss {
            request: Request { address, kind: AccessKind::Load, at },
            start: at,
            geometry: self.geometry,
            tlb: &mut *self.tlb,
            walker: &mut *self.walker,
            parts: &mut *self.parts,
            walkers: &mut *self.walkers,
            frontier: self.frontier,
            system: &mut *self.system,
            port: &mut *self.port,
            log: &mut log,
        };
        let mut result = ahead.walk(&mut []);
        self.walker.set_segments(segments);
        if timed {
            let (Ok(Found { ready: end, .. }) | Err(Stopped { at: end, .. })) = &mut result;
            *end += self.walkers.book(at, *end, self.frontier);
        }
        result.ok().map(|found| (found, log.0))
    }

    /// Walks for what is requested from cycle `start` on, with the parts of the walker and those of `others`
    /// that take part in walks. These have not been told that it is over.
    ///
    /// # Errors
    /// As [`Walker::walk`].
    pub(super) fn walk(&mut self, others: &mut [Box<dyn Mechanism>]) -> Result<Found, Stopped> {
        let parts = std::mem::take(&mut self.parts);
        for part in parts.iter_mut() {
            part.before_walk(self);
        }
        self.parts = parts;
        taking_part(others).for_each(|other| other.before_walk(self));
        let parts = std::mem::take(&mut self.parts);
        let Self { request: Request { address, kind, .. }, start, walker, system, .. } = self;
        let watched = &mut Watched { parts, others, log: &mut *self.log };
        let port = &mut *self.port;
        let mut result = if port.is_timed() {
            walker.walk(*address, *kind, *start, system, &mut Port::<true>(port), watched)
        } else {
            walker.walk(*address, *kind, *start, system, &mut Port::<false>(port), watched)
        };
        for part in parts.iter_mut() {
            part.after_walk(self, &mut result);
        }
        self.parts = parts;
        result
    }

    /// The walk is over, and its walker booked: `others` that take part in walks may go on.
    pub(super) fn is_over(
        &mut self,
        others: &mut [Box<dyn Mechanism>],
        result: &mut Result<Found, Stopped>,
    ) {
        taking_part(others).for_each(|other| other.after_walk(self, result));
    }
}

/// What a mechanism may look at when it writes its result.
#[derive(Clone, Copy)]
pub struct ResultView<'a> {
    /// The tables, and the operating system.
    pub system: &'a System,
    /// The walker's own state.
    pub walker: &'a Walker,
    /// Caches and memory, in timing mode.
    pub caches: Option<&'a Hierarchy>,
    /// Instructions measured.
    pub instructions: u64,
}

/// What has been counted when a mechanism looks at a run; see [`Mechanism::observe`].
pub struct Observation<'a> {
    /// Instructions run so far, warm-up included.
    pub instructions: u64,
    /// L2 TLB misses so far, measured or not.
    pub l2_tlb_misses: u64,
    /// Caches and memory, in timing mode.
    pub caches: Option<&'a mut Hierarchy>,
}

/// A step of a translation that a mechanism explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// In words.
    pub text: String,
    /// The name of the structure that was looked up.
    pub name: &'static str,
    /// It had an answer.
    pub hit: bool,
}

/// A mechanism next to the page table.
pub trait Mechanism: Any + Debug + Send {
    /// A copy, contents included.
    fn clone_box(&self) -> Box<dyn Mechanism>;

    /// The same on another core that runs the same program, before anything has run: a copy, but for
    /// what all cores have together.
    fn for_another_core(&self) -> Box<dyn Mechanism> {
        self.clone_box()
    }

    /// The turn goes to another core, and what all cores have together to `other`, which is this
    /// mechanism there.
    fn hand_over(&mut self, other: &mut dyn Mechanism) {
        let _ = other;
    }

    /// Its name, which is that of its section in a scheme or machine.
    fn name(&self) -> &'static str;

    /// Which of the hooks below are called.
    fn hooks(&self) -> Hooks {
        Hooks::default()
    }

    /// Translates `address` alongside the first-level TLB, in whose time the answer is there.
    fn translate(&mut self, address: Gva) -> Option<Hpa> {
        let _ = address;
        None
    }

    /// What [`Mechanism::translate`] would answer, for what the program did not ask for; counts nothing.
    fn peek(&self, address: Gva) -> Option<Hpa> {
        let _ = address;
        None
    }

    /// Looks for the translation after the last-level TLB missed and before the table is walked.
    /// One that does not permit the access ([`Found::permits`]) is no answer: the table is walked,
    /// whoever returns it.
    ///
    /// # Errors
    /// The cycle from which on a walk is wanted.
    fn look_up(&mut self, miss: &mut Miss<'_>) -> Result<Found, u64> {
        Err(miss.request.at)
    }

    /// A walk begins.
    fn before_walk(&mut self, miss: &mut Miss<'_>) {
        let _ = miss;
    }

    /// The walk read an entry.
    fn entry_read(&mut self, read: &Read) {
        let _ = read;
    }

    /// In the walk, a walk of the host's table for `input` begins at cycle `at`; `nodes` says where
    /// that table's nodes stand in order, if they do.
    fn before_host_walk(
        &mut self,
        input: Gpa,
        at: u64,
        nodes: Option<&OrderedNodes<Hpa>>,
        port: &mut dyn MemoryPort,
    ) {
        let _ = (input, at, nodes, port);
    }

    /// The walk of the host's table is over.
    fn after_host_walk(&mut self) {}

    /// The walk is over. A mechanism may take longer, or keep what was found.
    fn after_walk(&mut self, miss: &mut Miss<'_>, result: &mut Result<Found, Stopped>) {
        let _ = (miss, result);
    }

    /// A page was touched in a part of the program that is not run: what it left behind is there now. No time
    /// passes.
    fn populated(&mut self, address: Gva, found: &Found) {
        let _ = (address, found);
    }

    /// The last-level TLB got the translation of `address`.
    fn filled(&mut self, address: Gva, entry: &Translation, port: &mut dyn MemoryPort) {
        let _ = (address, entry, port);
    }

    /// The last-level TLB lost a translation, whose page begins at `page`.
    fn evicted(&mut self, page: Gva, entry: &Translation, port: &mut dyn MemoryPort) {
        let _ = (page, entry, port);
    }

    /// Translations, or the way to them, became stale in a range.
    fn flush(&mut self, flush: &Flush<Gva>, tlb: &mut Tlb) {
        let _ = (flush, tlb);
    }

    /// Another process takes the core.
    fn switch_context(&mut self) {}

    /// Shows its counts.
    fn counts(&mut self, visit: &mut Visitor<'_>) {
        let _ = visit;
    }

    /// What is measured begins.
    fn measurement_begins(&mut self, observation: &mut Observation<'_>) {
        let _ = observation;
    }

    /// What is measured ends, or pauses.
    fn measurement_ends(&mut self, observation: &mut Observation<'_>) {
        let _ = observation;
    }

    /// Number of instructions after which it wants to look at the run.
    fn next_observation(&self) -> u64 {
        u64::MAX
    }

    /// Looks at the run, once [`Mechanism::next_observation`] is reached.
    fn observe(&mut self, observation: &mut Observation<'_>) {
        let _ = observation;
    }

    /// True while it protects page-table lines in the caches.
    fn protects_page_tables(&self) -> bool {
        false
    }

    /// True if it can make walks so few that figures per walk mean little.
    fn replaces_walks(&self) -> bool {
        false
    }

    /// What the lines are called that it reads during a miss, if it reads any.
    fn read_name(&self) -> Option<&'static str> {
        None
    }

    /// Its figures, by name; `None` where they have no meaning in this run.
    fn result(&self, view: &ResultView<'_>) -> Option<Map<String, Value>>;

    /// What it did, in sentences that follow from the figures.
    fn words(&self, view: &ResultView<'_>) -> Vec<String> {
        let _ = view;
        Vec::new()
    }

    /// What a reader should know before trusting the numbers.
    fn warnings(&self, view: &ResultView<'_>) -> Vec<String> {
        let _ = view;
        Vec::new()
    }

    /// Whether a walk for `address` would need software now, which no prefetcher may call. Only of a part
    /// of the walker.
    fn walks_in_software(&self, address: Gva, tlb: &Tlb) -> bool {
        let _ = (address, tlb);
        false
    }

    /// What it would answer for `address` now; changes nothing. Only of a part of the walker.
    fn explain(&self, address: Gva, tlb: &Tlb) -> Option<Explained> {
        let _ = (address, tlb);
        None
    }
}

impl Clone for Box<dyn Mechanism> {
    fn clone(&self) -> Self {
        self.as_ref().clone_box()
    }
}

/// The figures of a mechanism as JSON, from a structure with named fields.
///
/// # Panics
/// If `figures` has no named fields, which is a mistake in the mechanism.
pub fn figures(figures: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(figures) {
        Ok(Value::Object(map)) => map,
        other => panic!("the figures of a mechanism have names: {other:?}"),
    }
}

/// Those of `others` that take part in walks.
fn taking_part(others: &mut [Box<dyn Mechanism>]) -> impl Iterator<Item = &mut Box<dyn Mechanism>> {
    others.iter_mut().filter(|mechanism| mechanism.hooks().walk)
}

/// A walk's log, and the mechanisms that watch the walk.
struct Watched<'a> {
    parts: &'a mut [Box<dyn Mechanism>],
    others: &'a mut [Box<dyn Mechanism>],
    log: &'a mut dyn WalkObserver,
}

impl Watched<'_> {
    fn mechanisms(&mut self) -> impl Iterator<Item = &mut Box<dyn Mechanism>> {
        self.parts.iter_mut().chain(taking_part(self.others))
    }
}

impl WalkObserver for Watched<'_> {
    fn read(&mut self, read: &Read) {
        self.mechanisms().for_each(|mechanism| mechanism.entry_read(read));
        self.log.read(read);
    }

    fn mechanism_read(&mut self, served: Served) {
        self.log.mechanism_read(served);
    }

    fn before_host_walk(
        &mut self,
        input: Gpa,
        at: u64,
        nodes: Option<&OrderedNodes<Hpa>>,
        port: &mut dyn MemoryPort,
    ) {
        for mechanism in self.mechanisms() {
            mechanism.before_host_walk(input, at, nodes, port);
        }
    }

    fn after_host_walk(&mut self) {
        self.mechanisms().for_each(|mechanism| mechanism.after_host_walk());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Arc, Mutex};

    use flatwalk_paging::Address;
    use flatwalk_trace::Event;

    use super::*;
    use crate::driver::piece::Piece;
    use crate::driver::run::Run;
    use crate::mmu::Mmu;
    use crate::mmu::blame::Blame;
    use crate::tests::testing::{DATA, Do, Scenario, go, scheme};

    const PAGE: u64 = 4096;

    /// What happened, as the hooks were called.
    #[derive(Debug, Default)]
    struct Seen {
        /// Pages that the L2 TLB has, by fills and evictions.
        held: HashSet<u64>,
        fills: u64,
        evictions: u64,
        looked_up: u64,
        /// Walks begun and ended, and entries read in between.
        begun: u64,
        ended: u64,
        read: u64,
        flushed: Vec<(u64, u64)>,
        switched: u64,
    }

    /// Watches, and does nothing.
    #[derive(Clone, Debug)]
    struct Spy(Arc<Mutex<Seen>>);

    impl Spy {
        fn see<T>(&self, what: impl FnOnce(&mut Seen) -> T) -> T {
            what(&mut self.0.lock().expect("nobody panicked"))
        }
    }

    impl Mechanism for Spy {
        fn clone_box(&self) -> Box<dyn Mechanism> {
            Box::new(self.clone())
        }

        fn name(&self) -> &'static str {
            "spy"
        }

        fn hooks(&self) -> Hooks {
            Hooks { look_up: true, walk: true, fill: true, ..Hooks::default() }
        }

        fn look_up(&mut self, miss: &mut Miss<'_>) -> Result<Found, u64> {
            self.see(|seen| seen.looked_up += 1);
            Err(miss.request.at)
        }

        fn before_walk(&mut self, _miss: &mut Miss<'_>) {
            self.see(|seen| seen.begun += 1);
        }

        fn entry_read(&mut self, _read: &Read) {
            self.see(|seen| {
                assert_eq!(seen.begun, seen.ended + 1, "an entry is read within a walk");
                seen.read += 1;
            });
        }

        fn after_walk(&mut self, _miss: &mut Miss<'_>, _result: &mut Result<Found, Stopped>) {
            self.see(|seen| seen.ended += 1);
        }

        fn filled(&mut self, address: Gva, entry: &Translation, _port: &mut dyn MemoryPort) {
            self.see(|seen| {
                seen.fills += 1;
                assert_eq!(entry.level, 1);
                assert!(seen.held.insert(address.raw() / PAGE), "{address:?} was there");
            });
        }

        fn evicted(&mut self, page: Gva, _entry: &Translation, _port: &mut dyn MemoryPort) {
            self.see(|seen| {
                seen.evictions += 1;
                assert!(seen.held.remove(&(page.raw() / PAGE)), "{page:?} was not there");
            });
        }

        fn flush(&mut self, flush: &Flush<Gva>, _tlb: &mut Tlb) {
            self.see(|seen| {
                let (start, last) = (flush.start.raw(), flush.last.raw());
                seen.flushed.push((start, last - start + 1));
                let gone = start / PAGE..=last / PAGE;
                seen.held.retain(|page| !gone.contains(page));
            });
        }

        fn switch_context(&mut self) {
            self.see(|seen| {
                seen.switched += 1;
                seen.held.clear();
            });
        }

        fn result(&self, _view: &ResultView<'_>) -> Option<Map<String, Value>> {
            None
        }
    }

    /// A run in which a spy has every hook, and what it sees.
    fn watched(context_switch_ms: Option<f64>) -> (Run, Arc<Mutex<Seen>>) {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.context_switch_ms = context_switch_ms;
        let mut run = scenario.start(&[(DATA, 1 << 30)], true);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let spies: Vec<Box<dyn Mechanism>> = vec![Box::new(Spy(Arc::clone(&seen)))];
        let geometry = run.system.geometry();
        let walker = run.mmu.walker().clone();
        run.mmu = Mmu::new(&scenario.machine, geometry, walker, spies, false, Blame::new(None));
        (run, seen)
    }

    #[test]
    fn every_hook_is_called_when_it_should_be() {
        let (mut run, seen) = watched(None);
        // Forty pages in the test machine's L2 TLB of 16 entries, round and round.
        let loads: Vec<_> = (0..200).map(|i| Do::Chase(DATA + i % 40 * PAGE)).collect();
        go(&mut run, &loads);
        let total = run.mmu.statistics.total();
        {
            let seen = seen.lock().unwrap();
            assert_eq!((seen.looked_up, seen.begun, seen.ended), (200, 200, 200));
            assert_eq!((seen.read, seen.fills), (total.accesses, total.walks));
            assert_eq!(seen.evictions, seen.fills - 16, "sixteen are there, the others had to go");
            assert_eq!(seen.held.len(), 16);
            assert_eq!((seen.flushed.len(), seen.switched), (0, 0));
        }
        run.take(&Piece::Event(Event::Unmap { address: DATA + 5 * PAGE, length: PAGE })).unwrap();
        assert_eq!(seen.lock().unwrap().flushed, [(DATA + 5 * PAGE, PAGE)]);
    }

    #[test]
    fn a_walk_ahead_waits_where_its_walker_is_taken_meanwhile() {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.machine.walker.concurrent = 1;
        let mut run = scenario.start(&[(DATA, 1 << 30)], true);
        // An older instruction, whose address is known late, has it from cycle 1000 to 2000.
        assert_eq!(run.mmu.walkers.book(1000, 2000, 0), 0);
        let Run { mmu, system, timed, .. } = &mut run;
        let (_, caches) = timed.as_mut().expect("it is timed");
        let request = Request { address: Gva::new(DATA), kind: AccessKind::Load, at: 990 };
        let mut log = ReadCount::default();
        let (mut miss, _) = mmu.miss(request, system, &mut **caches, &mut log);
        let (found, read) = miss.prefetch_walk(Gva::new(DATA), 1000 - 125).expect("one is free");
        // The page-walk cache for 1 cycle, and four reads of 142: too long for what is left until 1000.
        assert_eq!((read, found.ready), (4, 2000 - 125 + 1 + 4 * 142));
        // There is one walker at any time, and none left to who begins while it is used.
        assert!(miss.prefetch_walk(Gva::new(DATA + 64 * PAGE), 1500).is_none());
        assert!(miss.prefetch_walk(Gva::new(DATA + 64 * PAGE), 2400).is_none());
        assert!((0..3000).all(|at| mmu.walkers.in_use(at) <= 1));
    }

    #[test]
    fn a_context_switch_is_seen() {
        // As in the driver's own test: 5000 cycles, looked at every 10,000 instructions.
        let (mut run, seen) = watched(Some(0.005));
        let pages: Vec<Do> = (0..4).map(|i| Do::Chase(DATA + i * PAGE)).collect();
        go(&mut run, &pages.repeat(2_500));
        assert_eq!(seen.lock().unwrap().switched, 1);
    }
}
