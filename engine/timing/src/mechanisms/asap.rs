//! ASAP: prefetches of the last two entries of a walk, in parallel with the walk itself.
//!
//! Source: Margaritov, Ustiugov, Bugnion and Grot, "Prefetched Address Translation", MICRO 2019. The
//! operating system keeps the nodes of levels 2 and 1 of each VMA contiguous and in order
//! ([`flatwalk_os::OrderedNodes`]) and loads range registers with where they start; on a miss of the
//! L2 TLB the place of both entries is computed from the address and their lines are prefetched to
//! where the walker enters the hierarchy. The walk goes on as ever, with its page-walk caches, and
//! finds the lines there or on their way. A prefetch takes an MSHR if one is free until the line
//! is there; it does not wait for one.
//!
//! [`Issue`] says when that is, if the walk has to wait for a page walker: Park et al., ASPLOS 2022, section
//! 2, have ASAP prefetch "during the time spent accessing the higher levels", so when the walk begins.
//! Margaritov et al. start it at the miss of the last-level TLB, which hides that wait too.
//!
//! In a guest this happens in each dimension. With the guest's walk, the guest's two entries are
//! prefetched: the hypervisor keeps the guest's arrays contiguous in its own memory too, so that registers
//! can hold where they start there. And for each address that the host translates during the walk, its two
//! entries are prefetched when that translation begins.
//!
//! Departs from the paper: registers are per level, as many for each ([`OrderedNodes`] says why),
//! and the longest ranges get them. Where a guest's array lies in the host's memory is looked up in the
//! host's table at no cost, instead of being contiguous; what the host has not backed is not prefetched.

use flatwalk_os::{OrderedNodes, Process, Range};
use flatwalk_paging::{Address, Geometry, Gpa, Hpa, Physical};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Registered, Section, Setup};
use crate::ConfigError;
use crate::config::require;
use crate::counts::{Visitor, add};
use crate::memory::reader::MemoryPort;
use crate::mmu::event::{Found, Read, Stage, Stopped};
use crate::mmu::mechanism::{Hooks, Mechanism, Miss, ResultView, figures};
use crate::system::System;

const NAME: &str = "asap";

pub(super) const MECHANISM: Registered = Registered {
    name: NAME,
    scheme: Some(Section::of::<Settings>()),
    host: None,
    machine: None,
    figures: Section::of_figures::<Figures>(),
    build,
};

/// ASAP: prefetches of the last two entries of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Ranges of adjacent entries that the processor can hold, for each of the two levels.
    #[schemars(range(min = 1, max = 4096))]
    pub range_registers: u32,
    /// When prefetches are made.
    #[serde(default)]
    pub issue: Issue,
}

/// When prefetches are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Issue {
    /// When the walk begins, so once a page walker is free.
    #[default]
    WithWalk,
    /// When the L2 TLB misses, whether or not a page walker is free.
    AtMiss,
}

impl Issue {
    /// The cycle for the walk of `miss`.
    fn cycle(self, miss: &Miss<'_>) -> u64 {
        match self {
            Self::WithWalk => miss.start,
            Self::AtMiss => miss.request.at,
        }
    }
}

fn build(setup: &mut Setup<'_>) -> Result<Option<Box<dyn Mechanism>>, ConfigError> {
    let Some(settings) = setup.scheme.mechanisms.get::<Settings>(NAME)? else { return Ok(None) };
    setup.refuse_recorded(NAME)?;
    let Settings { range_registers: registers, issue } = settings;
    require(setup.own.is_tree, NAME, || {
        "prefetches entries of a tree, which this table is not".to_owned()
    })?;
    setup.own_needs.ordered_levels = LEVELS.to_vec();
    let asap: Box<dyn Mechanism> = match setup.host {
        None => {
            let own = Prefetcher::new(registers, Stage::One, setup.own.geometry);
            Box::new(Native { own, issue })
        }
        Some(host) => {
            setup.host_needs.ordered_levels = LEVELS.to_vec();
            let of_host = || Prefetcher::new(registers, Stage::Two, host.geometry);
            Box::new(Guest {
                own: Prefetcher::new(registers, Stage::One, setup.own.geometry),
                host: host.is_tree.then(of_host),
                issue,
            })
        }
    };
    Ok(Some(asap))
}

/// Levels whose entries are prefetched, in the order in which a walk wants them.
const LEVELS: [u8; 2] = [2, 1];

/// What was prefetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    prefetches: u64,
    dropped: u64,
    unused: u64,
    uncovered: u64,
}

add!(Counts { prefetches, dropped, unused, uncovered });

/// What was prefetched from one table.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[cfg_attr(test, derive(Default, Deserialize))]
pub struct TableFigures {
    /// Prefetches made.
    pub prefetches: u64,
    /// Prefetches given up for want of a free MSHR.
    pub dropped: u64,
    /// Prefetches made of lines that their walk did not read: a page-walk cache or a large page
    /// spared the entry, or it did not stand in order.
    pub unused: u64,
    /// Walks of addresses that no register had anything for.
    pub uncovered_walks: u64,
    /// Ranges of adjacent entries.
    pub ranges: u64,
    /// Memory reserved to keep nodes in order.
    pub reserved_bytes: u64,
    /// Nodes that found no contiguous memory.
    pub scattered_nodes: u64,
}

/// What was prefetched.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[cfg_attr(test, derive(Default, Deserialize))]
pub struct Figures {
    /// From the process's own table, or the guest's.
    pub own: Option<TableFigures>,
    /// From the host's table.
    pub host: Option<TableFigures>,
}

/// The prefetcher of one core, for one table, which is in memory of addresses `A`.
#[derive(Clone, Debug)]
struct Prefetcher<A> {
    stage: Stage,
    geometry: Geometry,
    registers: usize,
    /// Those in the registers, [`LEVELS`] one after the other.
    ranges: Vec<Range<A>>,
    /// Which ranges these are, as [`OrderedNodes::version`] counts.
    version: Option<u64>,
    /// Lines prefetched for the walk under way that it has not read yet, in the memory that the table
    /// is in.
    lines: [Option<u64>; LEVELS.len()],
    counts: Counts,
}

impl<A: Physical> Prefetcher<A> {
    /// Empty registers, for the tables of `stage`, which have `geometry`.
    fn new(registers: u32, stage: Stage, geometry: Geometry) -> Self {
        Self {
            stage,
            geometry,
            registers: registers as usize,
            ranges: Vec::new(),
            version: None,
            lines: [None; LEVELS.len()],
            counts: Counts::default(),
        }
    }

    /// Loads the registers, as the operating system does whenever a range changes.
    fn load(&mut self, nodes: &OrderedNodes<A>) {
        self.version = Some(nodes.version());
        self.ranges.clear();
        for level in LEVELS {
            let mut ranges: Vec<_> = nodes.ranges().filter(|range| range.level == level).collect();
            ranges.sort_by_key(|range| (std::cmp::Reverse(range.last - range.start), range.start));
            self.ranges.extend(ranges.into_iter().take(self.registers));
        }
    }

    /// Prefetches for a walk of `address` that begins at cycle `at`; `place` says where in the host's
    /// memory an entry lies.
    fn prefetch(
        &mut self,
        address: impl Address,
        at: u64,
        nodes: &OrderedNodes<A>,
        place: impl Fn(A) -> Option<Hpa>,
        port: &mut dyn MemoryPort,
    ) {
        if self.version != Some(nodes.version()) {
            self.load(nodes);
        }
        self.lines = [None; LEVELS.len()];
        let mut covered = false;
        for (line, level) in self.lines.iter_mut().zip(LEVELS) {
            let holds = |range: &&Range<A>| {
                range.level == level && (range.start..=range.last).contains(&address.raw())
            };
            let Some(range) = self.ranges.iter().find(holds) else { continue };
            covered = true;
            let entry = (address.raw() - range.start) >> self.geometry.shift(level);
            let entry_address = range.base.offset(entry * 8);
            let Some(place) = place(entry_address) else { continue };
            if port.prefetch_entry(place, at) {
                *line = Some(entry_address.raw());
                self.counts.prefetches += 1;
            } else {
                self.counts.dropped += 1;
            }
        }
        self.counts.uncovered += u64::from(!covered);
    }

    /// The walk read an entry.
    fn read(&mut self, read: &Read) {
        if self.stage != read.stage {
            return;
        }
        for line in &mut self.lines {
            if line.is_some_and(|line| line >> 6 == read.entry_address >> 6) {
                *line = None;
            }
        }
    }

    /// Notes which prefetches a walk that is over did not use.
    fn finish(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        self.counts.unused += lines.iter().flatten().count() as u64;
    }

    fn figures(&self, nodes: &OrderedNodes<A>) -> TableFigures {
        TableFigures {
            prefetches: self.counts.prefetches,
            dropped: self.counts.dropped,
            unused: self.counts.unused,
            uncovered_walks: self.counts.uncovered,
            ranges: nodes.ranges().count() as u64,
            reserved_bytes: nodes.reserved_bytes(),
            scattered_nodes: nodes.scattered_nodes(),
        }
    }
}

impl TableFigures {
    fn words(&self, whose: &str) -> String {
        let Self { prefetches, unused, dropped, .. } = self;
        format!(
            "ASAP prefetched {prefetches} entries of the {whose} table, {unused} of them for nothing, \
             and gave up {dropped}"
        )
    }
}

fn warnings(own: Option<TableFigures>) -> Vec<String> {
    let scattered = own.map_or(0, |own| own.scattered_nodes);
    let warning = format!(
        "{scattered} page-table nodes found no contiguous memory, so that ASAP cannot prefetch from them"
    );
    if scattered > 0 { vec![warning] } else { Vec::new() }
}

const HOOKS: Hooks = Hooks {
    walk: true,
    translate: false,
    look_up: false,
    look_up_in_walker: false,
    populate: false,
    fill: false,
    part_of_walker: false,
    protect: false,
};

/// For a process on the machine itself.
#[derive(Clone, Debug)]
struct Native {
    own: Prefetcher<Hpa>,
    issue: Issue,
}

impl Native {
    fn figures(&self, view: &ResultView<'_>) -> Option<TableFigures> {
        Some(self.own.figures(view.system.native()?.ordered_nodes()?))
    }
}

impl Mechanism for Native {
    fn clone_box(&self) -> Box<dyn Mechanism> {
        Box::new(self.clone())
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn hooks(&self) -> Hooks {
        HOOKS
    }

    fn before_walk(&mut self, miss: &mut Miss<'_>) {
        let at = self.issue.cycle(miss);
        if let Some(nodes) = miss.system.native().and_then(Process::ordered_nodes) {
            self.own.prefetch(miss.request.address, at, nodes, Some, miss.port);
        }
    }

    fn entry_read(&mut self, read: &Read) {
        self.own.read(read);
    }

    fn after_walk(&mut self, _miss: &mut Miss<'_>, _result: &mut Result<Found, Stopped>) {
        self.own.finish();
    }

    fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.own.counts);
    }

    fn result(&self, view: &ResultView<'_>) -> Option<Map<String, Value>> {
        Some(figures(&Figures { own: self.figures(view), host: None }))
    }

    fn words(&self, view: &ResultView<'_>) -> Vec<String> {
        self.figures(view).iter().map(|own| own.words("process's")).collect()
    }

    fn warnings(&self, view: &ResultView<'_>) -> Vec<String> {
        warnings(self.figures(view))
    }
}

/// For a process in a guest: for the guest's table, and for the host's whenever that is walked.
#[derive(Clone, Debug)]
struct Guest {
    own: Prefetcher<Gpa>,
    host: Option<Prefetcher<Hpa>>,
    issue: Issue,
}

impl Guest {
    fn figures(&self, view: &ResultView<'_>) -> Figures {
        let vm = view.system.virtual_machine();
        let own = vm.and_then(|vm| Some(self.own.figures(vm.guest.ordered_nodes()?)));
        let host = vm.and_then(|vm| Some(self.host.as_ref()?.figures(vm.host.ordered_nodes()?)));
        Figures { own, host }
    }
}

impl Mechanism for Guest {
    fn clone_box(&self) -> Box<dyn Mechanism> {
        Box::new(self.clone())
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn hooks(&self) -> Hooks {
        HOOKS
    }

    fn before_walk(&mut self, miss: &mut Miss<'_>) {
        let at = self.issue.cycle(miss);
        let Miss { request, system, walker, port, .. } = miss;
        let System::Virtual(vm) = &**system else { return };
        let Some(nodes) = vm.guest.ordered_nodes() else { return };
        let place = |entry| walker.place_of(vm, entry);
        self.own.prefetch(request.address, at, nodes, place, &mut **port);
    }

    fn entry_read(&mut self, read: &Read) {
        self.own.read(read);
        if let Some(host) = &mut self.host {
            host.read(read);
        }
    }

    fn before_host_walk(
        &mut self,
        input: Gpa,
        at: u64,
        nodes: Option<&OrderedNodes<Hpa>>,
        port: &mut dyn MemoryPort,
    ) {
        if let (Some(host), Some(nodes)) = (&mut self.host, nodes) {
            host.prefetch(input, at, nodes, Some, port);
        }
    }

    fn after_host_walk(&mut self) {
        if let Some(host) = &mut self.host {
            host.finish();
        }
    }

    fn after_walk(&mut self, _miss: &mut Miss<'_>, _result: &mut Result<Found, Stopped>) {
        self.own.finish();
    }

    fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.own.counts);
        if let Some(host) = &mut self.host {
            visit(&mut host.counts);
        }
    }

    fn result(&self, view: &ResultView<'_>) -> Option<Map<String, Value>> {
        Some(figures(&self.figures(view)))
    }

    fn words(&self, view: &ResultView<'_>) -> Vec<String> {
        let Figures { own, host } = self.figures(view);
        let own = own.map(|own| own.words("guest's"));
        own.into_iter().chain(host.map(|host| host.words("host's"))).collect()
    }

    fn warnings(&self, view: &ResultView<'_>) -> Vec<String> {
        warnings(self.figures(view).own)
    }
}

#[cfg(test)]
mod tests {
    use super::{Figures, Issue, Settings, TableFigures};
    use crate::config::machine::Pwc;
    use crate::driver::run::{Mode, Run};
    use crate::mechanisms::direct_segment;
    use crate::tests::testing::{DATA, Do, Scenario, go, host_table, scheme, walk};

    const LARGE: u64 = 2 << 20;
    const GIB: u64 = 1 << 30;

    /// With caches large enough to keep what the few walks of a test read.
    fn scenario(flatten: &[&str], range_registers: u32) -> Scenario {
        let mut scenario = Scenario::new(scheme(4, flatten));
        if range_registers > 0 {
            let issue = Issue::default();
            scenario.scheme.mechanisms.set("asap", Settings { range_registers, issue });
        }
        let l1d = scenario.machine.l1d.as_mut().unwrap();
        (l1d.size_bytes, l1d.ways, l1d.mshrs) = (32 << 10, 8, 12);
        scenario
    }

    fn figures(run: &Run) -> Figures {
        crate::tests::testing::figures(run, "asap").unwrap_or_default()
    }

    /// What the prefetcher did since the last walk but one: made, dropped, unused, uncovered.
    fn counts(run: &Run) -> (u64, u64, u64, u64) {
        let s = figures(run).own.unwrap();
        (s.prefetches, s.dropped, s.unused, s.uncovered_walks)
    }

    #[test]
    fn latencies_by_hand() {
        let mapped = [(DATA, GIB)];
        let mut plain = scenario(&[], 0).start(&mapped, true);
        let mut asap = scenario(&[], 16).start(&mapped, true);
        // A page-walk cache for 1 cycle, the root's entry out of L2 for 12 (it shares its line with the
        // code), then three of 142 each. With ASAP the last two are asked for at once and there at 142
        // and 143, as the bus carries a line a cycle: the walk finds them in L1D for 4 cycles each.
        assert_eq!(walk(&mut plain, DATA), (4, 1 + 12 + 3 * 142));
        assert_eq!(walk(&mut asap, DATA), (4, 1 + 12 + 142 + 4 + 4));
        assert_eq!(counts(&asap), (2, 0, 0, 0));
        // The leaf node is known, and its entry stands in another line: that of level 2 is prefetched
        // for nothing, out of L1D.
        assert_eq!(walk(&mut plain, DATA + 64 * 4096), (1, 1 + 142));
        assert_eq!(walk(&mut asap, DATA + 64 * 4096), (1, 142));
        assert_eq!(counts(&asap), (2, 0, 1, 0));
        // Another leaf node: two entries one after the other, or both at once. Entries of level 2 for
        // nearby nodes share a line, so this goes further.
        assert_eq!(walk(&mut plain, DATA + 9 * LARGE), (2, 1 + 2 * 142));
        assert_eq!(walk(&mut asap, DATA + 9 * LARGE), (2, 142 + 4));
        assert_eq!(counts(&asap), (2, 0, 0, 0));
        // The price: two look-ups in L1D more for each walk, and no more lines from memory.
        let l1d = |run: &Run| run.timed.as_ref().unwrap().1.caches()[1].1.table_accesses;
        let reads = |run: &Run| run.timed.as_ref().unwrap().1.dram().statistics.reads;
        assert_eq!(l1d(&asap), l1d(&plain) + 3 * 2);
        assert_eq!(reads(&asap), reads(&plain));
    }

    #[test]
    fn prefetches_made_with_the_walk_do_not_hide_the_wait_for_a_walker() {
        // Two walks at once and one walker.
        let second = |issue| {
            let mut scenario = scenario(&[], 16);
            scenario.scheme.mechanisms.set("asap", Settings { range_registers: 16, issue });
            scenario.machine.walker.concurrent = 1;
            let mut run = scenario.start(&[(DATA, GIB)], true);
            walk(&mut run, DATA);
            crate::counts::forget(|visit| run.mmu.counts(visit));
            go(&mut run, &[Do::Load(DATA + 9 * LARGE), Do::Load(DATA + 18 * LARGE)]);
            let total = run.mmu.statistics.total();
            assert_eq!((total.walks, total.accesses), (2, 4));
            (total.latency_cycles, run.mmu.statistics.queue_cycles)
        };
        // Both are asked for while the walk of `DATA` is under way. By itself each takes 142 for
        // both of its entries, which are asked for together, and 4 for the second look-up, as in
        // `latencies_by_hand`. Lines have the bus for a cycle each, that of the first load's data
        // too.
        let own = 142 + 4;
        let about = |cycles: u64| cycles..=cycles + 2;
        let (with_walk, queue) = second(Issue::WithWalk);
        assert!(about(2 * own).contains(&(with_walk - queue)), "{with_walk} - {queue}");
        // Asked for at the miss, entries are there when the walker is free: the page-walk cache's
        // cycle and two look-ups of L1D. And the second walk waits for so short a first one.
        let at_hand = 1 + 4 + 4;
        let (at_miss, shorter) = second(Issue::AtMiss);
        assert_eq!(at_miss - shorter, 2 * at_hand);
        assert!(about(own - at_hand).contains(&(queue - shorter)), "{queue} - {shorter}");
    }

    #[test]
    fn a_flattened_node_is_prefetched_from_too() {
        let mut run = scenario(&["L4L3", "L2L1"], 16).start(&[(DATA, 2 * GIB)], true);
        assert_eq!(walk(&mut run, DATA), (2, 1 + 142 + 4));
        assert_eq!(counts(&run), (1, 0, 0, 0), "no nodes end at level 2");
        // The root's entry is in L1D, the other on its way since the walk was asked for.
        assert_eq!(walk(&mut run, DATA + GIB + LARGE), (2, 142));
    }

    #[test]
    fn what_does_not_stand_in_order_is_not_prefetched() {
        let mut scenario = scenario(&[], 16);
        scenario.fragmentation = 1.0;
        let mut run = scenario.start(&[(DATA, GIB)], true);
        assert_eq!(walk(&mut run, DATA), (4, 1 + 142 + 142 + 4 + 142));
        assert_eq!(counts(&run), (1, 0, 0, 0), "the one node of level 2 is contiguous");
    }

    #[test]
    fn the_longest_ranges_get_the_registers() {
        let mapped = [(DATA, 4 * LARGE), (DATA + 64 * GIB, 4096)];
        let mut run = scenario(&[], 1).start(&mapped, true);
        walk(&mut run, DATA + LARGE);
        assert_eq!(counts(&run), (2, 0, 0, 0));
        walk(&mut run, mapped[1].0);
        assert_eq!(counts(&run).3, 1);
    }

    #[test]
    fn large_pages_use_the_entry_of_their_level() {
        let mut scenario = scenario(&[], 16);
        scenario.large_pages = 100;
        let mut run = scenario.start(&[(DATA, GIB)], true);
        assert_eq!(walk(&mut run, DATA), (3, 1 + 12 + 142 + 4));
        assert_eq!(counts(&run), (1, 0, 0, 0), "there is no node of level 1");
    }

    /// A guest whose walks take only one dimension: the host's, or its own, is done by a segment.
    fn one_dimension(of_the_host: bool, range_registers: u32) -> Run {
        let mut scenario = scenario(&[], range_registers);
        let mut host = host_table(4, &[]);
        if of_the_host {
            let settings = direct_segment::Settings { memory_fraction: 0.5 };
            scenario.scheme.mechanisms.set("direct_segment", settings);
        } else {
            host.mechanisms.set("direct_segment", direct_segment::HostSettings {});
        }
        scenario.scheme.host = Some(host);
        scenario.start(&[(DATA, GIB)], true)
    }

    #[test]
    fn each_dimension_of_a_guests_walk_is_prefetched_for() {
        for of_the_host in [false, true] {
            let mut plain = one_dimension(of_the_host, 0);
            let mut asap = one_dimension(of_the_host, 16);
            // As on the machine itself: a cycle for a page-walk cache, the root's entry, and three from
            // memory, of which the last two are asked for at once. They take the bus for a cycle each. The
            // host's root is in L2, as a process's is; the guest's comes from memory, a cycle late, since
            // that is when the second of them comes.
            let (root, root_after) = if of_the_host { (12, 12) } else { (142, 143) };
            assert_eq!(walk(&mut plain, DATA), (4, 1 + root + 3 * 142));
            assert_eq!(walk(&mut asap, DATA), (4, 1 + root_after + 142 + 4 + 4));
            let Figures { own, host } = figures(&asap);
            let prefetches = [own, host]
                .map(|asap| asap.map_or(0, |asap: TableFigures| asap.prefetches - asap.unused));
            assert_eq!(prefetches, if of_the_host { [0, 2] } else { [2, 0] });
        }
    }

    #[test]
    fn a_two_dimensional_walk_prefetches_for_the_guest_and_for_each_of_the_hosts_walks() {
        let run = |range_registers| {
            let mut scenario = scenario(&[], range_registers);
            scenario.scheme.host = Some(host_table(4, &[]));
            scenario.machine.pwc = Pwc::None;
            let virtualisation = scenario.machine.virtualisation.as_mut().unwrap();
            (virtualisation.pwc, virtualisation.nested_tlb) = (Pwc::None, Vec::new());
            let mut run = scenario.start(&[(DATA, GIB)], true);
            // The host backs the guest's nodes.
            go(&mut run, &[Do::Load(DATA + 77 * LARGE + 64 * 4096)]);
            let (accesses, latency) = walk(&mut run, DATA + 77 * LARGE);
            let Figures { own, host } = figures(&run);
            let asap = [own, host];
            (accesses, latency, asap.map(|asap| asap.map_or(0, |a| a.prefetches + a.dropped)))
        };
        let (plain, asap) = (run(0), run(16));
        assert_eq!((plain.0, asap.0), (24, 24));
        // Two entries of the guest's, and two for each of five walks of the host's.
        assert_eq!((plain.2, asap.2), ([0, 0], [2, 10]));
        assert!(asap.1 < plain.1, "{} and {}", asap.1, plain.1);
    }

    #[test]
    fn without_a_clock_the_same_is_read() {
        let reads = |range_registers| {
            let mut scenario = scenario(&[], range_registers);
            scenario.mode = Mode::Functional;
            let mut run = scenario.start(&[(DATA, GIB)], true);
            go(&mut run, &(0..500).map(|i| Do::Load(DATA + i * LARGE)).collect::<Vec<_>>());
            run.mmu.statistics.total()
        };
        assert_eq!(reads(16), reads(0));
    }
}
