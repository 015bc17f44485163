//! What a run found, as it is written to JSON.
//!
//! All counts are of the measured part, after warm-up; sizes are of its end. Times are in cycles and
//! absent in functional mode.

use flatwalk_os::{OrderedNodes, Thp};
use flatwalk_paging::{Level, NodeKind, NodeStatistics, Physical, Width};
use schemars::JsonSchema;
use serde::Serialize;

use crate::config::machine::PageSize;
use crate::driver::run::{GuestFrames, Mode, Run, RunConfiguration};
use crate::mechanisms::asap::AsapStatistics;
use crate::memory::energy::EnergyResult;
use crate::mmu::event::{Stage, walk_table_count};
use crate::mmu::pwc::PwcStatistics;
use crate::mmu::walker::{Caches, Walker};
use crate::system::System;

/// Everything that one run found.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)] // The names say it, with units; docs/results.md explains each.
pub struct RunResult {
    pub scheme: String,
    pub machine: String,
    pub workload: String,
    pub large_pages: Option<u8>,
    pub thp: Option<Thp>,
    pub fragmentation: f64,
    pub host_large_pages: Option<u8>,
    pub guest_frames: Option<GuestFrames>,
    pub mode: Mode,
    pub seed: u64,
    pub instructions: u64,
    pub cycles: Option<u64>,
    pub ipc: Option<f64>,
    pub loads: u64,
    pub stores: u64,
    pub walks: u64,
    pub accesses_per_walk: Option<f64>,
    pub walk_latency_cycles: Option<f64>,
    pub walk_queue_cycles: Option<f64>,
    pub walk_access_cycles: Option<f64>,
    pub translation_cycles: Option<u64>,
    pub page_table_bytes: u64,
    pub data_bytes: u64,
    pub page_table: PageTable,
    pub tlb: Vec<TlbResult>,
    pub pwc: Vec<PwcResult>,
    pub walk: WalkResult,
    pub caches: Vec<CacheResult>,
    pub dram: Option<DramResult>,
    pub energy: Option<EnergyResult>,
    pub os: OsResult,
    pub branch: Option<BranchResult>,
    pub priority: PriorityResult,
    pub asap: Option<AsapResult>,
    /// The same of the host's table.
    pub host_asap: Option<AsapResult>,
    pub direct_segment: Option<SegmentResult>,
    /// The host's.
    pub host_direct_segment: Option<SegmentResult>,
    pub pom_tlb: Option<PomTlbResult>,
    pub csalt: Option<CsaltResult>,
    pub warnings: Vec<String>,
    pub configuration: RunConfiguration,
}

/// The page table at the end.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct PageTable {
    pub nodes: Vec<NodesResult>,
}

/// Nodes of one shape.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct NodesResult {
    /// Levels spanned, such as `L4L3`.
    pub level: String,
    pub width: u8,
    pub node_bytes: u64,
    pub nodes: u64,
    pub bytes: u64,
    pub entries_used: u64,
}

/// One TLB level and page size.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct TlbResult {
    pub name: &'static str,
    pub page: &'static str,
    pub lookups: u64,
    pub hits: u64,
}

/// One page-walk cache.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct PwcResult {
    pub level: String,
    pub lookups: u64,
    pub hits: u64,
}

/// The walks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct WalkResult {
    pub by_page: Vec<WalksByPage>,
    pub accesses_by_level: Vec<AccessesByLevel>,
    pub latency_histogram: Vec<Bucket>,
    pub merged: u64,
    pub dirty_updates: u64,
    pub faulting: u64,
    pub faulting_accesses: u64,
    pub instruction_side: u64,
}

/// Walks that found a page of one size.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct WalksByPage {
    pub page: &'static str,
    pub walks: u64,
    pub accesses: u64,
    pub latency_cycles: Option<f64>,
}

/// Entries of one level that walks read, and who had them.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct AccessesByLevel {
    pub level: String,
    pub accesses: u64,
    pub l1d: u64,
    pub l2: u64,
    pub llc: u64,
    pub dram: u64,
}

/// One bucket of the latency histogram: `from_cycles ≤ latency < to_cycles`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct Bucket {
    pub from_cycles: u64,
    pub to_cycles: u64,
    pub walks: u64,
}

/// What went through one cache.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct CacheResult {
    pub name: &'static str,
    pub data_accesses: u64,
    pub data_misses: u64,
    pub table_accesses: u64,
    pub table_misses: u64,
    pub writebacks: u64,
    pub mshr_wait_cycles: u64,
}

/// What memory did.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct DramResult {
    pub reads: u64,
    pub writes: u64,
    pub row_hits: u64,
    pub row_misses: u64,
    pub average_latency_cycles: f64,
}

/// What the operating system did.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct OsResult {
    pub faults: u64,
    pub fault_cycles: Option<u64>,
    pub host_faults: Option<u64>,
    pub large_page_faults: u64,
    pub large_page_fallbacks: u64,
    pub node_fallbacks: u64,
    pub demotions: u64,
    pub merges: u64,
    pub unmerges: u64,
    pub merge_refusals: u64,
    pub resizes: u64,
    pub resize_refusals: u64,
    pub windows: Option<WindowsResult>,
    pub splits: u64,
    pub populated_pages: u64,
    pub implicit_mappings: u64,
    pub protection_mismatches: u64,
    pub context_switches: Option<u64>,
    pub events: u64,
}

/// How a kernel accessed the entries of its recursive table.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct WindowsResult {
    pub accesses: u64,
    pub reads: u64,
    pub unlinked: u64,
}

/// Branches.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct BranchResult {
    pub branches: u64,
    pub mispredictions: u64,
}

/// Prefetching of entries.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct AsapResult {
    pub prefetches: u64,
    pub dropped: u64,
    pub unused: u64,
    pub uncovered_walks: u64,
    pub ranges: u64,
    pub reserved_bytes: u64,
    pub scattered_nodes: u64,
}

/// The TLB in memory.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct PomTlbResult {
    pub lookups: u64,
    pub hits: u64,
    pub second_probes: u64,
    pub bypasses: u64,
}

/// How the caches are divided.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct CsaltResult {
    /// Ways for data at the end; `None` before the first epoch is over.
    pub l2_data_ways: Option<u32>,
    pub llc_data_ways: Option<u32>,
    /// Times that either division changed.
    pub divisions: u64,
}

/// The direct segment.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct SegmentResult {
    pub bytes: u64,
    pub translations: u64,
}

/// Page-table priority.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub struct PriorityResult {
    /// Share of the measured instructions for which it was active.
    pub active_fraction: f64,
    /// Share of the last-level cache's lines that hold page-table entries at the end.
    pub llc_table_fraction: Option<f64>,
}

fn ratio(part: f64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part / whole as f64)
}

/// `L4L3` for level 4 and width 2.
pub(crate) fn levels_spanned(level: Level, width: Width) -> String {
    let levels = (level + 1 - width..=level).rev();
    levels.map(|l| format!("L{l}")).collect::<Vec<_>>().concat()
}

/// Name of the cuckoo walk table for `level`.
pub(crate) fn walk_table_name(level: Level) -> &'static str {
    if level == 2 { "PMD-CWT" } else { "PUD-CWT" }
}

/// Name of the cache of its lines.
pub(crate) fn walk_cache_name(level: Level) -> &'static str {
    if level == 2 { "PMD-CWC" } else { "PUD-CWC" }
}

/// What walks of one table read, by the number that counts of reads have for it, in order.
fn read_names<A: Physical>(caches: &Caches<A>) -> Vec<(Level, String)> {
    let mut names: Vec<_> = match caches {
        Caches::Tree(pwc) => {
            (1..=pwc.geometry().levels()).rev().map(|level| (level, format!("L{level}"))).collect()
        }
        Caches::Hashed(_) => {
            let tables = [2, 3].map(|l| (walk_table_count(l), walk_table_name(l).to_owned()));
            let pages = [1, 2, 3].map(|level| (level, page_name(level).to_owned()));
            tables.into_iter().chain(pages).collect()
        }
    };
    names.push((0, "POM-TLB".to_owned()));
    names
}

pub(crate) fn page_name(level: Level) -> &'static str {
    PageSize::ALL[usize::from(level) - 1].name()
}

impl RunResult {
    /// The result of `run` over the trace called `workload`.
    pub fn new(run: &Run, workload: &str, seed: u64) -> Self {
        let configuration = run.configuration.clone();
        let (instructions, loads, stores) = run.measured();
        let timed = run.timed.as_ref();
        let cycles = run.cycles();
        let walks = &run.mmu.statistics;
        let total = walks.total();
        let average = |sum: u64| timed.and(ratio(sum as f64, total.walks));
        let nodes = nodes(run);
        let in_guest = configuration.scheme.host.is_some();
        Self {
            scheme: configuration.scheme.name.clone(),
            machine: configuration.machine.name.clone(),
            workload: workload.to_owned(),
            large_pages: configuration.large_pages,
            thp: configuration.thp,
            fragmentation: configuration.fragmentation,
            host_large_pages: in_guest.then_some(configuration.host_large_pages),
            guest_frames: in_guest.then_some(configuration.guest_frames),
            mode: configuration.mode,
            seed,
            instructions,
            cycles,
            ipc: cycles.and_then(|c| ratio(instructions as f64, c)),
            loads,
            stores,
            walks: total.walks,
            accesses_per_walk: ratio(total.accesses as f64, total.walks),
            walk_latency_cycles: average(total.latency_cycles),
            walk_queue_cycles: average(walks.queue_cycles),
            walk_access_cycles: average(total.latency_cycles - walks.queue_cycles),
            translation_cycles: timed.map(|(core, _)| core.statistics.translation_cycles),
            page_table_bytes: nodes.iter().map(|n| n.bytes).sum(),
            data_bytes: run.system.data_bytes(),
            page_table: PageTable { nodes },
            tlb: tlbs(run),
            pwc: pwcs(run),
            walk: walk_result(run),
            caches: caches(run),
            dram: timed.map(|(_, caches)| {
                let s = &caches.dram().statistics;
                DramResult {
                    reads: s.reads,
                    writes: s.writes,
                    row_hits: s.row_hits,
                    row_misses: s.row_misses,
                    average_latency_cycles: ratio(s.read_cycles as f64, s.reads).unwrap_or(0.0),
                }
            }),
            energy: timed.and_then(|(_, caches)| {
                let figures = configuration.machine.energy.as_ref()?;
                Some(EnergyResult::new(figures, caches))
            }),
            os: os_result(run),
            branch: timed.map(|(core, _)| {
                let s = core.predictor().statistics;
                BranchResult { branches: s.branches, mispredictions: s.mispredictions }
            }),
            priority: PriorityResult {
                active_fraction: run.priority_fraction(),
                llc_table_fraction: timed.and_then(|(_, caches)| {
                    let (tables, lines) = caches.llc_table_lines();
                    ratio(tables as f64, lines as u64)
                }),
            },
            asap: asap(run),
            host_asap: host_asap(run),
            pom_tlb: run.mmu.pom_tlb().map(|pom_tlb| {
                let s = pom_tlb.statistics;
                PomTlbResult {
                    lookups: s.lookups,
                    hits: s.hits,
                    second_probes: s.second_probes,
                    bypasses: s.bypasses,
                }
            }),
            csalt: timed.and_then(|(_, caches)| caches.partitions()).map(|[l2, llc]| CsaltResult {
                l2_data_ways: l2.data_ways(),
                llc_data_ways: llc.data_ways(),
                divisions: l2.changes + llc.changes,
            }),
            direct_segment: run
                .mmu
                .segment()
                .map(|(bytes, translations)| SegmentResult { bytes, translations }),
            host_direct_segment: run.mmu.walker().host_segment().map(|segment| SegmentResult {
                bytes: segment.bytes(),
                translations: segment.translations,
            }),
            warnings: warnings(run),
            configuration,
        }
    }
}

fn asap(run: &Run) -> Option<AsapResult> {
    let statistics = run.mmu.asap()?;
    match &run.system {
        System::Native(process) => Some(asap_result(statistics, process.ordered_nodes()?)),
        System::Virtual(vm) => Some(asap_result(statistics, vm.guest.ordered_nodes()?)),
        System::Recorded(_) => None,
    }
}

fn host_asap(run: &Run) -> Option<AsapResult> {
    let nodes = run.system.virtual_machine()?.host.ordered_nodes()?;
    Some(asap_result(run.mmu.walker().host_asap()?, nodes))
}

fn asap_result<A: Physical>(asap: AsapStatistics, nodes: &OrderedNodes<A>) -> AsapResult {
    AsapResult {
        prefetches: asap.prefetches,
        dropped: asap.dropped,
        unused: asap.unused,
        uncovered_walks: asap.uncovered,
        ranges: nodes.ranges().count() as u64,
        reserved_bytes: nodes.reserved_bytes(),
        scattered_nodes: nodes.scattered_nodes(),
    }
}

fn nodes(run: &Run) -> Vec<NodesResult> {
    let all = |whose: &'static str, nodes: Vec<NodeStatistics>| {
        nodes.into_iter().map(move |n| NodesResult {
            level: match n.kind {
                NodeKind::Node => format!("{whose}{}", levels_spanned(n.level, n.width)),
                NodeKind::Way => format!("{whose}{} way", page_name(n.level)),
                NodeKind::WalkTable => format!("{whose}{} way", walk_table_name(n.level)),
                NodeKind::Buckets => format!("{whose}{} buckets", page_name(n.level)),
                NodeKind::Chain => format!("{whose}{} chains", page_name(n.level)),
                NodeKind::Lines => format!("{whose}{} lines", page_name(n.level)),
                NodeKind::Frames => format!("{whose}{} frames", page_name(n.level)),
                NodeKind::Anchors => format!("{whose}{} anchors", page_name(n.level)),
            },
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

fn tlbs(run: &Run) -> Vec<TlbResult> {
    let nested = match run.mmu.walker() {
        Walker::Nested(nested) => nested.tlb.as_ref(),
        Walker::Native(_) => None,
    };
    let named = run.mmu.tlbs().into_iter().chain(nested.map(|tlb| ("nested", tlb)));
    let all = named.flat_map(|(name, tlb)| {
        tlb.statistics().into_iter().map(move |(level, s)| TlbResult {
            name,
            page: page_name(level),
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
        Caches::Hashed(cwc) => {
            cwc.statistics().map(|(level, s)| one(walk_cache_name(level).to_owned(), s)).collect()
        }
    }
}

fn caches(run: &Run) -> Vec<CacheResult> {
    let caches = run.timed.iter().flat_map(|(_, caches)| caches.caches());
    let all = caches.map(|(name, s)| CacheResult {
        name,
        data_accesses: s.data_accesses,
        data_misses: s.data_misses,
        table_accesses: s.table_accesses,
        table_misses: s.table_misses,
        writebacks: s.writebacks,
        mshr_wait_cycles: s.mshr_wait_cycles,
    });
    all.collect()
}

fn walk_result(run: &Run) -> WalkResult {
    let walks = &run.mmu.statistics;
    let timed = run.timed.as_ref();
    let by_page = (1..=3u8).filter(|&l| walks.by_page[usize::from(l)].walks > 0).map(|level| {
        let count = walks.by_page[usize::from(level)];
        WalksByPage {
            page: page_name(level),
            walks: count.walks,
            accesses: count.accesses,
            latency_cycles: timed.and(ratio(count.latency_cycles as f64, count.walks)),
        }
    });
    let stages = match run.mmu.walker() {
        Walker::Native(caches) => vec![("", Stage::One, read_names(caches))],
        Walker::Nested(nested) => vec![
            ("guest ", Stage::One, read_names(&nested.guest)),
            ("host ", Stage::Two, read_names(&nested.host)),
        ],
    };
    let by_level = stages.into_iter().flat_map(|(whose, stage, names)| {
        names.into_iter().filter_map(move |(level, name)| {
            let served = walks.reads[stage as usize][usize::from(level)];
            let accesses = served.iter().sum();
            // Without a clock there are no caches that could have served.
            let [l1d, l2, llc, dram] = if timed.is_some() { served } else { [0; 4] };
            let level = if level == 0 { name } else { format!("{whose}{name}") };
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
    let (now, before) = (run.system.statistics(), run.os_at_start());
    OsResult {
        faults: now.faults - before.faults,
        fault_cycles: run.timed.as_ref().map(|(core, _)| core.statistics.fault_cycles),
        host_faults: run.host_faults(),
        large_page_faults: now.large_page_faults - before.large_page_faults,
        large_page_fallbacks: now.large_page_fallbacks - before.large_page_fallbacks,
        node_fallbacks: now.node_fallbacks,
        demotions: now.demotions,
        merges: now.merges,
        unmerges: now.unmerges,
        merge_refusals: now.merge_refusals,
        resizes: now.resizes,
        resize_refusals: now.resize_refusals,
        windows: run.configuration.scheme.recursive_index.map(|_| WindowsResult {
            accesses: now.window_accesses - before.window_accesses,
            reads: now.window_reads - before.window_reads,
            unlinked: now.unlinked_accesses - before.unlinked_accesses,
        }),
        splits: now.splits - before.splits,
        populated_pages: now.populated_pages - before.populated_pages,
        implicit_mappings: now.implicit_mappings - before.implicit_mappings,
        protection_mismatches: now.protection_mismatches - before.protection_mismatches,
        context_switches: run.context_switches(),
        events: now.events - before.events,
    }
}

/// What a reader should know before trusting the numbers.
fn warnings(run: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    let (instructions, ..) = run.measured();
    let os = os_result(run);
    if !run.is_measuring() {
        warnings.push(
            "the trace ended within the warm-up, so all of it is counted; shorten --warmup"
                .to_owned(),
        );
    } else if instructions < 1_000_000 {
        warnings.push(format!(
            "only {instructions} instructions were measured; caches and TLBs are hardly warm"
        ));
    }
    let walks = run.mmu.statistics.total().walks;
    let scheme = &run.configuration.scheme;
    if scheme.translation == crate::config::scheme::TranslationMode::Walked
        && scheme.direct_segment.is_none()
    {
        if walks < 1000 {
            warnings.push(format!(
                "only {walks} walks: figures per walk are uncertain, and translation hardly \
                 matters to this run"
            ));
        }
        let (used, entries) = run.mmu.tlbs()[2].1.occupancy();
        if entries > 0 && used * 2 < entries {
            warnings.push(format!(
                "the L2 TLB was never more than half full ({used} of {entries} entries): the run \
                 is too short or too small to stress translation"
            ));
        }
    }
    if let (Some(cycles), Some(fault_cycles)) = (run.cycles(), os.fault_cycles)
        && fault_cycles * 5 > cycles
    {
        warnings.push(format!(
            "page faults took {:.0} % of the time; a longer --warmup leaves the first touches out",
            100.0 * fault_cycles as f64 / cycles as f64
        ));
    }
    if os.implicit_mappings > 0 {
        warnings.push(format!(
            "{} pages were touched that no event of the trace had mapped; they were taken for \
             anonymous memory",
            os.implicit_mappings
        ));
    }
    if os.protection_mismatches > 0 {
        warnings.push(format!(
            "{} accesses succeeded in the trace against the rights of their mapping; the rights \
             were widened",
            os.protection_mismatches
        ));
    }
    if os.large_page_fallbacks > 0 {
        warnings.push(format!(
            "{} large pages could not be had and became 4 KiB pages (memory is fragmented or full)",
            os.large_page_fallbacks
        ));
    }
    if os.node_fallbacks > 0 {
        warnings.push(format!(
            "{} page-table nodes could not be flattened for want of a large block",
            os.node_fallbacks
        ));
    }
    if let Some(scattered) = asap(run).map(|asap| asap.scattered_nodes).filter(|&n| n > 0) {
        warnings.push(format!(
            "{scattered} page-table nodes found no contiguous memory, so that ASAP cannot prefetch \
             from them"
        ));
    }
    if os.merge_refusals > 0 {
        warnings.push(format!(
            "{} times there was no memory to merge page-table nodes (or to take merged ones apart), \
             so they stayed as they were",
            os.merge_refusals
        ));
    }
    if os.resize_refusals > 0 {
        warnings.push(format!(
            "{} times there was no contiguous memory for larger (or smaller) ways of a hashed page \
             table, or not for as much as was due, so it is more crowded than it should be",
            os.resize_refusals
        ));
    }
    if run.is_relocated() {
        warnings.push(format!(
            "the trace's gigabytes were moved together to fit the {} address bits of the scheme",
            run.system.geometry().address_bits()
        ));
    }
    warnings
}
