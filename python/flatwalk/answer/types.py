"""The engine's answer; written by `python -m flatwalk.reference`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class RunResult(TypedDict):
    """Everything that one run found."""

    scheme: str
    machine: str
    settings: dict[str, Any]
    workload: str
    large_pages: int | None
    thp: Literal["always", "madvise", "never"] | None
    fragmentation: float
    host_large_pages: int | None
    guest_frames: Literal["scattered", "compact", "apart", "permuted", "scattered_4k"] | None
    mode: Literal["timing", "functional"]
    seed: int
    threads: int
    cores: list[CoreResult]
    instructions: int
    cycles: int | None
    ipc: float | None
    loads: int
    stores: int
    cycle_stack: list[CyclePart]
    walks: int
    accesses_per_walk: float | None
    walk_latency_cycles: float | None
    walk_queue_cycles: float | None
    walk_access_cycles: float | None
    translation_cycles: int | None
    page_table_bytes: int
    data_bytes: int
    page_table: PageTable
    windows: list[WindowResult]
    tlb: list[TlbResult]
    pwc: list[PwcResult]
    walk: WalkResult
    caches: list[CacheResult]
    prefetchers: NotRequired[list[PrefetcherResult]]
    dram: DramResult | None
    energy: EnergyResult | None
    os: OsResult
    branch: BranchResult | None
    llc_table_fraction: float | None
    blame: BlameResult
    mechanisms: Mechanisms
    mechanism_words: list[str]
    warnings: list[str]
    configuration: RunConfiguration


class CoreResult(TypedDict):
    """What one core did in the measured part."""

    core: int
    threads: int
    instructions: int
    cycle_stack: list[CyclePart]
    walks: int
    walk_accesses: int
    walk_latency_cycles: int | None
    translation_cycles: int | None


class CyclePart(TypedDict):
    """What some of the cycles went to."""

    part: Literal[
        "base",
        "branch_mispredictions",
        "instruction_fetch",
        "instruction_translation",
        "data_l1",
        "data_l2",
        "data_llc",
        "data_dram",
        "store_queue",
        "tlb",
        "mechanisms",
        "walk_queue",
        "walk_lookups",
        "walk_l1",
        "walk_l2",
        "walk_llc",
        "walk_dram",
        "page_faults",
        "host_faults",
        "system_calls",
        "merges",
        "guest_exits",
        "shootdowns",
        "idle",
    ]
    cycles: int


class PageTable(TypedDict):
    """The page table at the end."""

    nodes: list[NodesResult]
    trees: list[TreeResult]


class NodesResult(TypedDict):
    """Nodes of one shape."""

    level: str
    width: int
    node_bytes: int
    nodes: int
    bytes: int
    entries_used: int


class TreeResult(TypedDict):
    """A table that is a tree, in outline."""

    whose: str
    address_bits: int
    parts: list[TreePart]


class TreePart(TypedDict):
    """Neighbouring nodes of one shape, summed."""

    under: int
    level: str
    width: int
    index_bits: int
    entry_bytes: int
    node_bytes: int
    first: str
    last: str
    nodes: int
    fallback: bool
    tables: int
    pages: int
    replicas: int
    node: str
    entries: list[TreeEntries]
    entries_left: int


class TreeEntries(TypedDict):
    """Entries of a node that are in use, next to each other, and of one kind."""

    index: int
    count: int
    kind: Literal["table", "page", "replica"]
    value: str


class WindowResult(TypedDict):
    """What was counted in one window."""

    at: int
    instructions: int
    cycles: int | None
    kernel_cycles: NotRequired[int | None]
    cycle_stack: list[int]
    walks: int
    walk_accesses: int
    walk_latency_cycles: int | None
    walk_queue_cycles: int | None
    l1d_data_accesses: int | None
    l1d_data_misses: int | None
    l2_data_accesses: int | None
    l2_data_misses: int | None
    l2_table_accesses: int | None
    l2_table_misses: int | None
    llc_data_accesses: int | None
    llc_data_misses: int | None
    cache_nj: float | None
    dram_lines: int | None


class TlbResult(TypedDict):
    """One TLB level and page size."""

    name: str
    page: str
    lookups: int
    hits: int


class PwcResult(TypedDict):
    """One page-walk cache."""

    level: str
    lookups: int
    hits: int


class WalkResult(TypedDict):
    """The walks."""

    by_page: list[WalksByPage]
    accesses_by_level: list[AccessesByLevel]
    latency_histogram: list[Bucket]
    merged: int
    dirty_updates: int
    faulting: int
    faulting_accesses: int
    instruction_side: int


class WalksByPage(TypedDict):
    """Walks that found a page of one size."""

    page: str
    walks: int
    accesses: int
    latency_cycles: float | None


class AccessesByLevel(TypedDict):
    """Entries of one level that walks read, and who had them."""

    level: str
    accesses: int
    l1d: int
    l2: int
    llc: int
    dram: int


class Bucket(TypedDict):
    """One bucket of the latency histogram: `from_cycles ≤ latency < to_cycles`."""

    from_cycles: int
    to_cycles: int
    walks: int


class CacheResult(TypedDict):
    """What went through one cache."""

    name: str
    data_accesses: int
    data_misses: int
    table_accesses: int
    table_misses: int
    prefetch_accesses: NotRequired[int | None]
    prefetch_misses: NotRequired[int | None]
    writebacks: int
    mshr_wait_cycles: int
    invalidations: int


class PrefetcherResult(TypedDict):
    """What a data prefetcher did."""

    cache: str
    kind: str
    words: str
    issued: int
    useful: int
    late: int
    useless: int
    redundant: int
    dropped: int
    stopped: int
    walks: int
    walk_accesses: int


class DramResult(TypedDict):
    """What memory did."""

    reads: int
    writes: int
    row_hits: int
    row_misses: int
    average_latency_cycles: float | None


class EnergyResult(TypedDict):
    """What a run's accesses took, in nanojoules."""

    l1d_nj: float
    l2_nj: float
    llc_nj: float
    cache_nj: float


class OsResult(TypedDict):
    """What the operating system did."""

    faults: int
    fault_cycles: int | None
    call_cycles: int | None
    merge_cycles: int | None
    host_faults: int | None
    large_page_faults: int
    large_page_fallbacks: int
    node_fallbacks: int
    demotions: int
    merges: int
    unmerges: int
    merge_refusals: int
    resizes: int
    resize_refusals: int
    windows: WindowsResult | None
    splits: int
    populated_pages: int
    around_pages: int
    implicit_mappings: int
    protection_mismatches: int
    context_switches: int | None
    events: int


class WindowsResult(TypedDict):
    """How a kernel accessed the entries of its recursive table."""

    accesses: int
    reads: int
    unlinked: int


class BranchResult(TypedDict):
    """Branches."""

    branches: int
    mispredictions: int
    reconverging: NotRequired[int | None]
    early_loads: NotRequired[int | None]


class BlameResult(TypedDict):
    """Where the walks of a run come from."""

    mappings: list[MappingBlame]
    functions: list[FunctionBlame]
    lines: list[LineBlame]
    unknown: list[UnknownFile]


class MappingBlame(TypedDict):
    """Walks for some memory."""

    kind: Literal["file", "heap", "stack", "anonymous", "unmapped", "other"]
    name: str | None
    address: int | None
    bytes: int | None
    walks: int
    cycles: int | None


class FunctionBlame(TypedDict):
    """Walks by a function."""

    kind: Literal["code", "other"]
    function: str | None
    file: str | None
    walks: int
    cycles: int | None


class LineBlame(TypedDict):
    """Walks by a line."""

    kind: Literal["code", "other"]
    function: str | None
    file: str | None
    source: str | None
    line: int | None
    walks: int
    cycles: int | None


class UnknownFile(TypedDict):
    """A file of whose code nothing is known."""

    file: str
    why: Literal["unreadable", "changed", "format"]


class Mechanisms(TypedDict):
    """By name: the figures of each mechanism that the scheme or the machine switches on."""

    vhpt: NotRequired[Vhpt]
    asap: NotRequired[Asap]
    pom_tlb: NotRequired[PomTlb]
    sequential_prefetcher: NotRequired[SequentialPrefetcher]
    direct_segment: NotRequired[DirectSegment]
    csalt: NotRequired[Csalt]
    page_table_priority: NotRequired[PageTablePriority]
    python: NotRequired[dict[str, Any]]


class Vhpt(TypedDict):
    """What the walker found in the TLB."""

    lookups: int
    hits: int


class Asap(TypedDict):
    """What was prefetched."""

    own: AsapOwn | None
    host: AsapHost | None


class AsapOwn(TypedDict):
    """From the process's own table, or the guest's."""

    prefetches: int
    dropped: int
    unused: int
    uncovered_walks: int
    ranges: int
    reserved_bytes: int
    scattered_nodes: int


class AsapHost(TypedDict):
    """From the host's table."""

    prefetches: int
    dropped: int
    unused: int
    uncovered_walks: int
    ranges: int
    reserved_bytes: int
    scattered_nodes: int


class PomTlb(TypedDict):
    """What the TLB in memory was asked."""

    lookups: int
    hits: int
    second_probes: int
    bypasses: int


class SequentialPrefetcher(TypedDict):
    """What it did."""

    lookups: int
    hits: int
    prefetches: int
    accesses: int
    dropped: int
    unused: int


class DirectSegment(TypedDict):
    """What the segments did."""

    own: DirectSegmentOwn | None
    host: DirectSegmentHost | None


class DirectSegmentOwn(TypedDict):
    """The process's own, or the guest's."""

    bytes: int
    translations: int


class DirectSegmentHost(TypedDict):
    """The host's."""

    bytes: int
    translations: int


class Csalt(TypedDict):
    """How the caches are divided."""

    l2_data_ways: int | None
    llc_data_ways: int | None
    divisions: int


class PageTablePriority(TypedDict):
    """How long page-table priority was active."""

    active_fraction: float


class RunConfiguration(TypedDict):
    """One configuration to run."""

    scheme: dict[str, Any]
    machine: dict[str, Any]
    settings: dict[str, Any]
    large_pages: int | None
    thp: Literal["always", "madvise", "never"] | None
    fragmentation: float
    host_large_pages: int
    guest_frames: Literal["scattered", "compact", "apart", "permuted", "scattered_4k"]
    frames: Literal["scattered", "compact", "apart", "permuted", "scattered_4k"]
    mode: Literal["timing", "functional"]
    context_switch_ms: float | None
    memory_bytes: int | None
    cores: int | None


class TraceSummary(TypedDict):
    """What runs were run over."""

    name: str
    hash: str
    instructions: int
    skip: int
    warmup: int


class Sampled(TypedDict):
    """What was measured of a source."""

    sampled: bool
    kernels_followed: bool
    windows: int
    window_instructions: int
    warmup_instructions: int
    filling_instructions: NotRequired[int | None]
    first_instruction: int
    instructions_total: int | None
    instructions_measured: int
    instructions_represented: int
    coverage: float | None
