//! What a run found, as it is written to JSON.
//!
//! All counts are of the measured part, after warm-up; sizes are of its end. Times are in cycles and
//! absent in functional mode.

use std::collections::BTreeMap;

use flatwalk_os::{Placement, Thp};
use flatwalk_paging::{Geometry, NodeStatistics, Physical};
use flatwalk_symbols::Symbols;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::config::machine::{Isolation, PageCrossing};
use crate::config::scheme::TranslationMode;
use crate::core::stack::Part;
use crate::driver::run::{CoreFigures, Mode, Run, RunConfiguration};
use crate::memory::energy::EnergyResult;
use crate::memory::prefetchers::Figures;
use crate::mmu::event::Stage;
use crate::mmu::mechanism::Mechanism;
use crate::mmu::pwc::PwcStatistics;
use crate::mmu::walker::{Caches, Walker};
use crate::report::blame::BlameResult;
use crate::report::outline::TreeResult;
use crate::report::words::{page_size, several};
use crate::system::System;

/// Everything that one run found.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RunResult {
    /// Name of the scheme.
    pub scheme: String,
    /// Name of the machine.
    pub machine: String,
    /// By key: what differs from the files of the machine and, behind `scheme.`, of the scheme.
    pub settings: Map<String, Value>,
    /// Name of the workload or trace.
    pub workload: String,
    /// Per cent of the touched memory on large pages; absent where `thp` says Linux's policy.
    #[schemars(extend("unit" = "%"))]
    pub large_pages: Option<u8>,
    /// Linux's policy for large pages; absent where `large_pages` says how many.
    pub thp: Option<Thp>,
    /// Share of physical 2 MiB blocks that cannot be had whole.
    pub fragmentation: f64,
    /// Per cent of the guest's memory on the host's large pages; absent without a guest.
    #[schemars(extend("unit" = "%"))]
    pub host_large_pages: Option<u8>,
    /// Where the guest's frames lie; absent without a guest.
    pub guest_frames: Option<Placement>,
    /// What was computed.
    pub mode: Mode,
    /// Seed of all that is random.
    pub seed: u64,
    /// Threads that ran in the measured part.
    pub threads: u64,
    /// All cores that there were, in the order of their numbers; without a clock, those on which they ran.
    pub cores: Vec<CoreResult>,
    /// Instructions measured, of all threads.
    pub instructions: u64,
    /// Time that passed; absent in functional mode.
    pub cycles: Option<u64>,
    /// Instructions of all threads per cycle.
    pub ipc: Option<f64>,
    /// Loads; an instruction may make several.
    pub loads: u64,
    /// Stores; an instruction may make several.
    pub stores: u64,
    /// What the cycles went to, on average over the cores. They add up to `cycles`; empty in functional
    /// mode.
    pub cycle_stack: Vec<CyclePart>,
    /// Page walks: from a miss of the L2 TLB to a translation.
    pub walks: u64,
    /// Entries that a walk reads on average. A hit in a TLB or page-walk cache is not an access.
    pub accesses_per_walk: Option<f64>,
    /// Average from the L2 TLB's miss to the translation.
    pub walk_latency_cycles: Option<f64>,
    /// Its first part: waiting for a free walker.
    pub walk_queue_cycles: Option<f64>,
    /// Its second part: everything else.
    pub walk_access_cycles: Option<f64>,
    /// Cycles in which retirement waited for an instruction whose own translation was outstanding, of all
    /// cores together. The difference to the scheme `ideal` is the better measure.
    pub translation_cycles: Option<u64>,
    /// Memory of the page table's nodes; of both tables in a guest.
    pub page_table_bytes: u64,
    /// Memory of the process's pages.
    pub data_bytes: u64,
    /// The page table at the end.
    pub page_table: PageTable,
    /// The windows that were measured, in order: the same instructions in every run of a request.
    pub windows: Vec<WindowResult>,
    /// Each TLB by page size.
    pub tlb: Vec<TlbResult>,
    /// Each page-walk cache.
    pub pwc: Vec<PwcResult>,
    /// The walks in detail.
    pub walk: WalkResult,
    /// Each cache.
    pub caches: Vec<CacheResult>,
    /// Each data prefetcher of the caches; absent on a machine without any, and in functional mode.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefetchers: Vec<PrefetcherResult>,
    /// Main memory; absent in functional mode.
    pub dram: Option<DramResult>,
    /// Dynamic energy of the data caches' accesses; absent where the machine has no figures.
    pub energy: Option<EnergyResult>,
    /// What the operating system did.
    pub os: OsResult,
    /// Branches; absent in functional mode.
    pub branch: Option<BranchResult>,
    /// Share of the last-level cache that page-table entries hold at the end: lines with such, of
    /// all that it has room for. In a mix it is the shared cache's.
    pub llc_table_fraction: Option<f64>,
    /// Where the walks come from.
    pub blame: BlameResult,
    /// By name: the figures of each mechanism that the scheme or the machine switches on.
    pub mechanisms: BTreeMap<&'static str, Map<String, Value>>,
    /// What the mechanisms did, in sentences that follow from their figures.
    pub mechanism_words: Vec<String>,
    /// Doubts about the run's validity, in words.
    pub warnings: Vec<String>,
    /// Every setting: the scheme, the machine and the run's own.
    pub configuration: RunConfiguration,
}

/// What one core did in the measured part.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CoreResult {
    /// Its number, from 0 on.
    pub core: u64,
    /// Threads that ran on it.
    pub threads: u64,
    /// Instructions.
    pub instructions: u64,
    /// What its cycles went to; empty in functional mode. They add up to what passed for it in
    /// windows, which is the run's `cycles` on average over the cores: a window ends where each
    /// core is with its instructions. If everything was measured it is the same for each.
    pub cycle_stack: Vec<CyclePart>,
    /// Page walks.
    pub walks: u64,
    /// Entries that they read.
    pub walk_accesses: u64,
    /// Sum over them, from the L2 TLB's miss to the translation; absent in functional mode.
    pub walk_latency_cycles: Option<u64>,
    /// Cycles in which retirement waited for an instruction whose own translation was outstanding; absent
    /// in functional mode.
    pub translation_cycles: Option<u64>,
}

/// What was counted in one window. Times are absent in functional mode.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WindowResult {
    /// Instructions that the program had executed before it, of all its threads.
    pub at: u64,
    /// Instructions.
    pub instructions: u64,
    /// Time.
    pub cycles: Option<u64>,
    /// Of that, work of kernels, and what other cores were idle for it, where it is this window's
    /// part of all that was done since the window before (`kernels_followed`): sampling has no
    /// share in that. Absent elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_cycles: Option<u64>,
    /// What the cycles went to: the run's `cycle_stack`, in its order. Empty in functional mode.
    pub cycle_stack: Vec<u64>,
    /// Page walks.
    pub walks: u64,
    /// Entries that they read.
    pub walk_accesses: u64,
    /// Sum over them, from the L2 TLB's miss to the translation.
    pub walk_latency_cycles: Option<u64>,
    /// Of that, waiting for a free walker.
    pub walk_queue_cycles: Option<u64>,
    /// Look-ups of data in the L1D cache: loads and stores.
    pub l1d_data_accesses: Option<u64>,
    /// Of those, misses.
    pub l1d_data_misses: Option<u64>,
    /// Look-ups of data and instructions in the L2 cache.
    pub l2_data_accesses: Option<u64>,
    /// Of those, misses.
    pub l2_data_misses: Option<u64>,
    /// Look-ups of page-table entries in the L2 cache.
    pub l2_table_accesses: Option<u64>,
    /// Of those, misses.
    pub l2_table_misses: Option<u64>,
    /// Look-ups of data and instructions in the last-level cache.
    pub llc_data_accesses: Option<u64>,
    /// Of those, misses.
    pub llc_data_misses: Option<u64>,
    /// Dynamic energy of the data caches in nJ; absent where the machine has no figures.
    pub cache_nj: Option<f64>,
    /// Lines read from and written to memory.
    pub dram_lines: Option<u64>,
}

/// What some of the cycles went to.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct CyclePart {
    /// To what.
    pub part: Part,
    /// How many.
    pub cycles: u64,
}

/// The page table at the end.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PageTable {
    /// Its nodes by shape.
    pub nodes: Vec<NodesResult>,
    /// Each table that is a tree, in outline: the guest's and the host's in a guest. A recorded machine's
    /// has what its walks read.
    pub trees: Vec<TreeResult>,
}

/// Nodes of one shape.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct NodesResult {
    /// Levels spanned, such as `L4L3`.
    pub level: String,
    /// Levels spanned.
    pub width: u8,
    /// Bytes of one node.
    pub node_bytes: u64,
    /// How many there are.
    pub nodes: u64,
    /// Bytes of all.
    pub bytes: u64,
    /// Entries that are not zero; of hashed tables the lines or nodes in use.
    pub entries_used: u64,
}

/// One TLB level and page size.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TlbResult {
    /// `L1I`, `L1D` or `L2`; `nested` too in a guest.
    pub name: &'static str,
    /// Page size.
    pub page: String,
    /// Look-ups of that TLB.
    pub lookups: u64,
    /// Hits on that size.
    pub hits: u64,
}

/// One page-walk cache.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PwcResult {
    /// Level whose entries it keeps; `PMD-CWC` and `PUD-CWC` keep lines of walk tables.
    pub level: String,
    /// Look-ups.
    pub lookups: u64,
    /// Walks that started from it.
    pub hits: u64,
}

/// The walks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WalkResult {
    /// By size of the page found.
    pub by_page: Vec<WalksByPage>,
    /// By level of the entry read.
    pub accesses_by_level: Vec<AccessesByLevel>,
    /// How long walks took.
    pub latency_histogram: Vec<Bucket>,
    /// Accesses that found a walk to their page under way, and made none.
    pub merged: u64,
    /// Walks made because a store found its page's dirty bit clear.
    pub dirty_updates: u64,
    /// Walks that ended in a page fault; not in `walks`.
    pub faulting: u64,
    /// Entries that those read.
    pub faulting_accesses: u64,
    /// Walks for instruction fetches, contained in `walks`.
    pub instruction_side: u64,
}

/// Walks that found a page of one size.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WalksByPage {
    /// Page size.
    pub page: String,
    /// Walks.
    pub walks: u64,
    /// Entries that they read.
    pub accesses: u64,
    /// Average latency.
    pub latency_cycles: Option<f64>,
}

/// Entries of one level that walks read, and who had them.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AccessesByLevel {
    /// Level of the entry; of a hashed table the page size, and `PMD-CWT`, `PUD-CWT` for lines of
    /// walk tables.
    pub level: String,
    /// Entries read.
    pub accesses: u64,
    /// Of those, served by the first-level data cache.
    pub l1d: u64,
    /// By the second-level cache.
    pub l2: u64,
    /// By the last-level cache.
    pub llc: u64,
    /// By main memory.
    pub dram: u64,
}

/// One bucket of the latency histogram: `from_cycles ≤ latency < to_cycles`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Bucket {
    /// Shortest latency.
    pub from_cycles: u64,
    /// The next bucket begins here.
    pub to_cycles: u64,
    /// Walks.
    pub walks: u64,
}

/// What went through one cache.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CacheResult {
    /// `L1I`, `L1D`, `L2` or `LLC`.
    pub name: &'static str,
    /// Look-ups for data and instructions.
    pub data_accesses: u64,
    /// Those that missed.
    pub data_misses: u64,
    /// Look-ups for page-table entries.
    pub table_accesses: u64,
    /// Those that missed.
    pub table_misses: u64,
    /// Look-ups for data prefetchers; absent on a machine without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch_accesses: Option<u64>,
    /// Those that missed; absent on a machine without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch_misses: Option<u64>,
    /// Dirty lines written back.
    pub writebacks: u64,
    /// Time that requests waited for an MSHR, summed.
    pub mshr_wait_cycles: u64,
    /// Lines that went because another core wrote them.
    pub invalidations: u64,
}

/// What a data prefetcher did.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PrefetcherResult {
    /// The cache that it brings lines into: `L1D` or `L2`.
    pub cache: &'static str,
    /// How it predicts.
    pub kind: &'static str,
    /// In words that stand behind its name.
    pub words: String,
    /// In figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// What memory did.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DramResult {
    /// Lines read.
    pub reads: u64,
    /// Lines written.
    pub writes: u64,
    /// Accesses to an open row.
    pub row_hits: u64,
    /// Accesses that opened a row.
    pub row_misses: u64,
    /// Average of a read, queueing included; absent if there was none.
    pub average_latency_cycles: Option<f64>,
}

/// What the operating system did.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct OsResult {
    /// Page faults.
    pub faults: u64,
    /// Time of all handlers, of all cores together, as the next two.
    pub fault_cycles: Option<u64>,
    /// Time of system calls that change the address space.
    pub call_cycles: Option<u64>,
    /// Time, contained in these two, in which nodes are merged or taken apart because of their density.
    pub merge_cycles: Option<u64>,
    /// Faults that the host answered; absent without a guest.
    pub host_faults: Option<u64>,
    /// Faults that mapped a large page.
    pub large_page_faults: u64,
    /// Those that should have, but found no block.
    pub large_page_fallbacks: u64,
    /// Page-table nodes narrower than the scheme wants, for want of a large block, since the start.
    pub node_fallbacks: u64,
    /// Flattened nodes taken apart by the no-flatten rule, since the start.
    pub demotions: u64,
    /// Nodes merged with their children because they were dense, since the start.
    pub merges: u64,
    /// Merged nodes taken apart because they no longer were, since the start.
    pub unmerges: u64,
    /// Times that there was no memory for either, since the start.
    pub merge_refusals: u64,
    /// Times that a hashed table began to grow or shrink, since the start.
    pub resizes: u64,
    /// Times that there was no contiguous memory for that, or not for as much as was due, since the
    /// start.
    pub resize_refusals: u64,
    /// Entries that the kernel accessed through a recursive table; absent without
    /// `recursive_index`.
    pub windows: Option<WindowsResult>,
    /// Large pages split.
    pub splits: u64,
    /// Pages mapped ahead of any access.
    pub populated_pages: u64,
    /// Pages of files that faults of their neighbours mapped.
    pub around_pages: u64,
    /// Accesses where the trace's events had mapped nothing.
    pub implicit_mappings: u64,
    /// Accesses against the rights of their mapping.
    pub protection_mismatches: u64,
    /// Times that another process took the core; absent without `context_switch_ms`.
    pub context_switches: Option<u64>,
    /// Changes of the address space.
    pub events: u64,
}

/// How a kernel accessed the entries of its recursive table.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct WindowsResult {
    /// Entries accessed by virtual addresses.
    pub accesses: u64,
    /// Entries that the hardware read to find them.
    pub reads: u64,
    /// Accesses to nodes that were not linked.
    pub unlinked: u64,
}

/// Branches.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BranchResult {
    /// Branches.
    pub branches: u64,
    /// Those predicted wrongly.
    pub mispredictions: u64,
    /// Of those, branches behind which loads were made before they were resolved; absent without
    /// `core.reconvergence_instructions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconverging: Option<u64>,
    /// Those loads, which are made again behind the branch; absent without
    /// `core.reconvergence_instructions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_loads: Option<u64>,
}

fn ratio(part: f64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part / whole as f64)
}

impl RunResult {
    /// The result of `run` over the trace called `workload`, whose code has the names in `symbols`.
    pub fn new(run: &Run, workload: &str, seed: u64, symbols: &mut Symbols) -> Self {
        let configuration = run.configuration.clone();
        let (instructions, loads, stores) = run.measured();
        let timed = run.timed.as_ref();
        let cycles = run.cycles();
        let walks = &run.mmu.statistics;
        let total = walks.total();
        let average = |sum: u64| timed.and(ratio(sum as f64, total.walks));
        let nodes = nodes(run);
        let in_guest = configuration.scheme.host.is_some();
        let view = run.view();
        let by_core = run.by_core();
        Self {
            scheme: configuration.scheme.name.clone(),
            machine: configuration.machine.name.clone(),
            settings: configuration.settings.clone(),
            workload: workload.to_owned(),
            large_pages: configuration.large_pages,
            thp: configuration.thp,
            fragmentation: configuration.fragmentation,
            host_large_pages: in_guest.then_some(configuration.host_large_pages),
            guest_frames: in_guest.then_some(configuration.guest_frames),
            mode: configuration.mode,
            seed,
            threads: by_core.iter().map(|core| core.threads as u64).sum(),
            cores: by_core.iter().map(|core| core_result(core, cycles)).collect(),
            instructions,
            cycles,
            ipc: cycles.and_then(|c| ratio(instructions as f64, c)),
            loads,
            stores,
            cycle_stack: run
                .cycle_stack()
                .map(|(part, cycles)| CyclePart { part, cycles })
                .collect(),
            walks: total.walks,
            accesses_per_walk: ratio(total.accesses as f64, total.walks),
            walk_latency_cycles: average(total.latency_cycles),
            walk_queue_cycles: average(walks.queue_cycles),
            walk_access_cycles: average(total.latency_cycles - walks.queue_cycles),
            translation_cycles: timed.map(|(core, _)| core.statistics.translation_cycles),
            page_table_bytes: nodes.iter().map(|n| n.bytes).sum(),
            data_bytes: run.system.data_bytes(),
            page_table: PageTable {
                nodes,
                trees: run.system.outlines().into_iter().map(TreeResult::from).collect(),
            },
            windows: windows(run),
            tlb: tlbs(run),
            pwc: pwcs(run),
            walk: walk_result(run),
            caches: caches(run),
            prefetchers: prefetchers(run),
            dram: timed.map(|(_, caches)| {
                let s = &caches.dram().statistics;
                DramResult {
                    reads: s.reads,
                    writes: s.writes,
                    row_hits: s.row_hits,
                    row_misses: s.row_misses,
                    average_latency_cycles: ratio(s.read_cycles as f64, s.reads),
                }
            }),
            energy: timed.and_then(|(_, caches)| {
                let figures = configuration.machine.energy.as_ref()?;
                Some(EnergyResult::new(figures, caches))
            }),
            os: os_result(run),
            branch: timed.map(|(core, _)| {
                let s = core.predictor().statistics;
                let ahead = core.reconvergence();
                BranchResult {
                    branches: s.branches,
                    mispredictions: s.mispredictions,
                    reconverging: ahead.map(|s| s.runs),
                    early_loads: ahead.map(|s| s.loads),
                }
            }),
            llc_table_fraction: timed.map(|(_, caches)| caches.llc_table_fraction()),
            blame: BlameResult::new(&run.mmu.blame, symbols, timed.is_some()),
            mechanisms: run
                .mmu
                .mechanisms()
                .filter_map(|mechanism| Some((mechanism.name(), mechanism.result(&view)?)))
                .fold(BTreeMap::new(), |mut all, (name, figures)| {
                    // Of those in Python there may be several.
                    all.entry(name).or_default().extend(figures);
                    all
                }),
            mechanism_words: run
                .mmu
                .mechanisms()
                .flat_map(|mechanism| mechanism.words(&view))
                .collect(),
            warnings: warnings(run),
            configuration,
        }
    }
}

/// What a core did in a run that took `cycles`.
fn core_result(core: &CoreFigures, cycles: Option<u64>) -> CoreResult {
    let stack =
        cycles.into_iter().flat_map(|cycles| core.stack.parts(core.cycles.unwrap_or(cycles)));
    CoreResult {
        core: core.number as u64,
        threads: core.threads as u64,
        instructions: core.instructions,
        cycle_stack: stack.map(|(part, cycles)| CyclePart { part, cycles }).collect(),
        walks: core.walks.walks,
        walk_accesses: core.walks.accesses,
        walk_latency_cycles: cycles.map(|_| core.walks.latency_cycles),
        translation_cycles: cycles.map(|_| core.translation_cycles),
    }
}

fn windows(run: &Run) -> Vec<WindowResult> {
    let timed = |count: u64| run.timed.is_some().then_some(count);
    let energy = run.configuration.machine.energy.as_ref().filter(|_| run.timed.is_some());
    let all = run.windows().map(|window| WindowResult {
        at: window.at,
        instructions: window.instructions,
        cycles: timed(window.cycles),
        kernel_cycles: window.kernel_cycles,
        cycle_stack: if run.timed.is_some() {
            run.stack_of(&window).map(|(_, cycles)| cycles).collect()
        } else {
            Vec::new()
        },
        walks: window.walks,
        walk_accesses: window.walk_accesses,
        walk_latency_cycles: timed(window.walk_latency_cycles),
        walk_queue_cycles: timed(window.walk_queue_cycles),
        l1d_data_accesses: timed(window.caches[0].data_accesses),
        l1d_data_misses: timed(window.caches[0].data_misses),
        l2_data_accesses: timed(window.caches[1].data_accesses),
        l2_data_misses: timed(window.caches[1].data_misses),
        l2_table_accesses: timed(window.caches[1].table_accesses),
        l2_table_misses: timed(window.caches[1].table_misses),
        llc_data_accesses: timed(window.caches[2].data_accesses),
        llc_data_misses: timed(window.caches[2].data_misses),
        cache_nj: energy.map(|figures| EnergyResult::of(figures, window.caches).cache_nj),
        dram_lines: timed(window.dram_lines),
    });
    all.collect()
}

fn nodes(run: &Run) -> Vec<NodesResult> {
    let all = |whose: &'static str, nodes: Vec<NodeStatistics>| {
        nodes.into_iter().map(move |n| NodesResult {
            level: format!("{whose}{}", n.name),
            width: n.width,
            node_bytes: n.node_bytes,
            nodes: n.nodes,
            bytes: n.nodes * n.node_bytes,
            entries_used: n.entries_used,
        })
    };
    match run.system.host_nodes() {
        None => all("", run.system.nodes()).collect(),
        Some(host) => all("guest ", run.system.nodes()).chain(all("host ", host)).collect(),
    }
}

/// The geometry of the host's table, or of the only one.
fn host_geometry(run: &Run) -> Geometry {
    match &run.system {
        System::Virtual(vm) => vm.host.table().geometry(),
        system => system.geometry(),
    }
}

fn tlbs(run: &Run) -> Vec<TlbResult> {
    let nested = match run.mmu.walker() {
        Walker::Nested(nested) => nested.tlb.as_ref(),
        Walker::Native(_) => None,
    };
    let own = run.system.geometry();
    let named = run.mmu.tlbs().into_iter().map(|(name, tlb)| (name, tlb, own));
    let named = named.chain(nested.map(|tlb| ("nested", tlb, host_geometry(run))));
    let all = named.flat_map(|(name, tlb, geometry)| {
        tlb.statistics().into_iter().map(move |(level, s)| TlbResult {
            name,
            page: page_size(geometry, level),
            lookups: s.lookups,
            hits: s.hits,
        })
    });
    all.collect()
}

fn pwcs(run: &Run) -> Vec<PwcResult> {
    match run.mmu.walker() {
        Walker::Native(caches) => pwcs_of("", caches),
        Walker::Nested(nested) => {
            [pwcs_of("guest ", &nested.guest), pwcs_of("host ", &nested.host)].concat()
        }
    }
}

fn pwcs_of<A: Physical>(whose: &str, caches: &Caches<A>) -> Vec<PwcResult> {
    let one = |name: String, PwcStatistics { lookups, hits }: PwcStatistics| PwcResult {
        level: format!("{whose}{name}"),
        lookups,
        hits,
    };
    match caches {
        Caches::Tree(pwc) => {
            pwc.statistics().into_iter().map(|(level, s)| one(format!("L{level}"), s)).collect()
        }
        Caches::Keyed(side) => side.statistics().map(|(name, s)| one(name.to_owned(), s)).collect(),
    }
}

fn prefetchers(run: &Run) -> Vec<PrefetcherResult> {
    let all = run.timed.iter().flat_map(|(_, caches)| caches.prefetchers());
    let all = all.map(|(cache, one)| PrefetcherResult {
        cache,
        kind: one.kind,
        words: one.figures.words(),
        figures: one.figures,
    });
    all.collect()
}

fn caches(run: &Run) -> Vec<CacheResult> {
    let has_prefetchers = run.timed.as_ref().is_some_and(|(_, caches)| caches.prefetches());
    let prefetch = |count: u64| has_prefetchers.then_some(count);
    let caches = run.timed.iter().flat_map(|(_, caches)| caches.caches());
    let all = caches.map(|(name, s)| CacheResult {
        name,
        data_accesses: s.data_accesses,
        data_misses: s.data_misses,
        table_accesses: s.table_accesses,
        table_misses: s.table_misses,
        prefetch_accesses: prefetch(s.prefetch_accesses),
        prefetch_misses: prefetch(s.prefetch_misses),
        writebacks: s.writebacks,
        mshr_wait_cycles: s.mshr_wait_cycles,
        invalidations: s.invalidations,
    });
    all.collect()
}

fn walk_result(run: &Run) -> WalkResult {
    let walks = &run.mmu.statistics;
    let timed = run.timed.as_ref();
    let by_page = (1..=3u8).filter(|&l| walks.by_page[usize::from(l)].walks > 0).map(|level| {
        let count = walks.by_page[usize::from(level)];
        WalksByPage {
            page: page_size(run.system.geometry(), level),
            walks: count.walks,
            accesses: count.accesses,
            latency_cycles: timed.and(ratio(count.latency_cycles as f64, count.walks)),
        }
    });
    let mechanism = run.mmu.mechanisms().find_map(Mechanism::read_name);
    let mechanism = mechanism.map(|name| ("", Stage::One, vec![(0, name.to_owned())]));
    let stages = match run.mmu.walker() {
        Walker::Native(caches) => vec![("", Stage::One, caches.read_names())],
        Walker::Nested(nested) => vec![
            ("guest ", Stage::One, nested.guest.read_names()),
            ("host ", Stage::Two, nested.host.read_names()),
        ],
    };
    let by_level = stages.into_iter().chain(mechanism).flat_map(|(whose, stage, names)| {
        names.into_iter().filter_map(move |(class, name)| {
            let served = walks.reads[stage as usize][usize::from(class)];
            let accesses = served.iter().sum();
            // Without a clock there are no caches that could have served.
            let [l1d, l2, llc, dram] = if timed.is_some() { served } else { [0; 4] };
            let level = format!("{whose}{name}");
            (accesses > 0).then_some(AccessesByLevel { level, accesses, l1d, l2, llc, dram })
        })
    });
    let histogram = timed.map(|_| walks.histogram()).unwrap_or_default();
    WalkResult {
        by_page: by_page.collect(),
        accesses_by_level: by_level.collect(),
        latency_histogram: histogram
            .into_iter()
            .map(|(from_cycles, to_cycles, walks)| Bucket { from_cycles, to_cycles, walks })
            .collect(),
        merged: walks.merged,
        dirty_updates: walks.dirty_updates,
        faulting: walks.faulting,
        faulting_accesses: walks.faulting_accesses,
        instruction_side: walks.instruction_side,
    }
}

fn os_result(run: &Run) -> OsResult {
    let (now, measured) = (run.system.statistics(), run.os_measured());
    let core = run.timed.as_ref().map(|(core, _)| core.statistics);
    OsResult {
        faults: measured.faults,
        fault_cycles: core.map(|s| s.fault_cycles),
        call_cycles: core.map(|s| s.call_cycles),
        merge_cycles: core.map(|s| s.merge_cycles),
        host_faults: run.host_faults(),
        large_page_faults: measured.large_page_faults,
        large_page_fallbacks: measured.large_page_fallbacks,
        node_fallbacks: now.node_fallbacks,
        demotions: now.demotions,
        merges: now.merges,
        unmerges: now.unmerges,
        merge_refusals: now.merge_refusals,
        resizes: now.resizes,
        resize_refusals: now.resize_refusals,
        windows: run.configuration.scheme.recursive_index.map(|_| WindowsResult {
            accesses: measured.window_accesses,
            reads: measured.window_reads,
            unlinked: measured.unlinked_accesses,
        }),
        splits: measured.splits,
        populated_pages: measured.populated_pages,
        around_pages: measured.around_pages,
        implicit_mappings: measured.implicit_mappings,
        protection_mismatches: measured.protection_mismatches,
        context_switches: run.context_switches(),
        events: measured.events,
    }
}

/// Says that prefetchers which walk the page table were left out, if they were.
fn left_out_prefetchers(run: &Run) -> Option<String> {
    let machine = &run.configuration.machine;
    let mut all = [&machine.l1d, &machine.l2].into_iter().flatten().flat_map(|c| &c.prefetcher);
    let walk = all.any(|one| one.page_crossing == PageCrossing::Walk);
    (run.timed.is_none() && walk).then(|| {
        "there are no caches in functional mode, so the machine's data prefetchers, which walk the page \
         table, were left out"
            .to_owned()
    })
}

/// What there is to say about threads on cores.
fn of_threads(run: &Run, cores: &[CoreFigures]) -> Vec<String> {
    let mut warnings = Vec::new();
    let threads: usize = cores.iter().map(|core| core.threads).sum();
    let theirs = cores.iter().filter(|core| core.threads > 0).count();
    if threads > theirs {
        warnings.push(format!(
            "{threads} threads shared {}, in the recorded order",
            several(theirs as u64, "simulated core", "simulated cores")
        ));
    }
    let multicore = run.configuration.machine.multicore;
    if theirs > 1 && multicore.is_some_and(|multicore| multicore.isolation == Isolation::Ways) {
        warnings.push(
            "the machine's `multicore.isolation = \"ways\"` keeps programs apart: these cores run one \
             program's threads, and share all of the last-level cache; to keep them apart, run programs \
             as a --mix"
                .to_owned(),
        );
    }
    if let Some(instructions) = run.longer_warmup() {
        warnings.push(format!(
            "windows of {} cores began before each was as far ahead or behind as it is later: how many \
             worked at the same time is less sure; take a --warmup of {instructions} or more",
            cores.len(),
        ));
    }
    warnings
}

/// Figures are uncertain of fewer instructions than these …
const FEW_INSTRUCTIONS: u64 = 1_000_000;
/// … and figures per walk of fewer walks than these.
const FEW_WALKS: u64 = 1000;
/// Translation is not stressed where fewer than one in so many entries of the L2 TLB were ever in use
/// at a time: the warning says "half".
const LITTLE_OF_TLB: usize = 2;
/// Page faults matter if they take more than one cycle in so many.
const MUCH_OF_TIME: u64 = 5;

/// What there is to say about how much was measured.
fn about_length(run: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    let (instructions, ..) = run.measured();
    if !run.has_measured() {
        warnings.push(
            "the trace ended within the warm-up, so all of it is counted; shorten --warmup"
                .to_owned(),
        );
    } else if instructions < FEW_INSTRUCTIONS {
        warnings.push(format!(
            "only {} measured: figures are uncertain",
            several(instructions, "instruction was", "instructions were")
        ));
    }
    warnings
}

/// What there is to say about how much was translated.
fn about_walks(run: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    let walks = run.mmu.statistics.total().walks;
    let scheme = &run.configuration.scheme;
    if scheme.translation == TranslationMode::Walked
        && !run.mmu.mechanisms().any(Mechanism::replaces_walks)
    {
        if walks == 0 {
            warnings.push("no walks, so that translation hardly matters to this run".to_owned());
        } else if walks < FEW_WALKS {
            warnings.push(format!(
                "only {}: figures per walk are uncertain, and translation hardly matters to this run",
                several(walks, "walk", "walks")
            ));
        }
        let (used, entries) = run.fullest_l2_tlb();
        if used as usize * LITTLE_OF_TLB < entries {
            warnings.push(format!(
                "the L2 TLB was never more than half full ({used} of {entries} entries): the run \
                 is too short or too small to stress translation"
            ));
        }
    }
    warnings
}

/// Says that page faults took much of the time of so many cores, if they did.
fn about_faults(run: &Run, os: &OsResult, cores: usize) -> Option<String> {
    let (cycles, fault_cycles) = run.cycles().zip(os.fault_cycles)?;
    let all = cycles * cores as u64;
    let remark = if run.follows_kernels() {
        ": all those of the program count"
    } else {
        "; a longer --warmup leaves the first touches out"
    };
    (fault_cycles * MUCH_OF_TIME > all).then(|| {
        format!(
            "page faults took {:.0} % of the time{remark}",
            100.0 * fault_cycles as f64 / all as f64
        )
    })
}

/// What there is to say about the program's memory.
fn about_memory(run: &Run, os: &OsResult) -> Vec<String> {
    let mut warnings = Vec::new();
    if os.implicit_mappings > 0 {
        warnings.push(format!(
            "{} touched that no event of the trace had mapped, and taken for anonymous memory",
            several(os.implicit_mappings, "page was", "pages were")
        ));
    }
    if os.protection_mismatches > 0 {
        warnings.push(format!(
            "{} in the trace against the rights of the mapping; the rights were widened",
            several(os.protection_mismatches, "access succeeded", "accesses succeeded")
        ));
    }
    // Before and between windows as well: most pages are there by then.
    let fallbacks = run.system.statistics().large_page_fallbacks;
    if fallbacks > 0 {
        warnings.push(format!(
            "{} could not be had and became base pages (memory is fragmented or full)",
            several(fallbacks, "large page", "large pages")
        ));
    }
    if os.node_fallbacks > 0 {
        warnings.push(format!(
            "{} could not be flattened for want of a large block",
            several(os.node_fallbacks, "page-table node", "page-table nodes")
        ));
    }
    warnings
}

/// What there is to say about memory for the page table.
fn about_tables(os: &OsResult) -> Vec<String> {
    let mut warnings = Vec::new();
    if os.merge_refusals > 0 {
        warnings.push(format!(
            "{} there was no memory to merge page-table nodes (or to take merged ones apart), so they \
             stayed as they were",
            several(os.merge_refusals, "time", "times")
        ));
    }
    if os.resize_refusals > 0 {
        warnings.push(format!(
            "{} there was no contiguous memory for larger (or smaller) ways of a hashed page table, or \
             not for as much as was due, so it is more crowded than it should be",
            several(os.resize_refusals, "time", "times")
        ));
    }
    warnings
}

/// What a reader should know before trusting the numbers.
fn warnings(run: &Run) -> Vec<String> {
    let cores = run.by_core();
    let os = os_result(run);
    let mut warnings = about_length(run);
    warnings.extend(about_walks(run));
    warnings.extend(about_faults(run, &os, cores.len()));
    warnings.extend(of_threads(run, &cores));
    warnings.extend(about_memory(run, &os));
    warnings.extend(run.mmu.mechanisms().flat_map(|mechanism| mechanism.warnings(&run.view())));
    warnings.extend(about_tables(&os));
    warnings.extend(left_out_prefetchers(run));
    if run.is_relocated() {
        warnings.push(format!(
            "the trace spans more than the {} address bits of the scheme: its regions were relocated to fit",
            run.system.geometry().address_bits()
        ));
    }
    warnings
}
