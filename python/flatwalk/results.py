"""What the engine answers: the JSON of a run, by name."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class AccessLevel(TypedDict):
    """Where the walker's accesses to one table level were served."""

    level: str
    accesses: int
    l1d: int
    l2: int
    llc: int
    dram: int


class PageWalks(TypedDict):
    """Walks that ended at one page size."""

    page: str
    walks: int
    accesses: int
    latency_cycles: float | None


class Bin(TypedDict):
    """One bin of the walk-latency histogram: `from_cycles <= latency < to_cycles`."""

    from_cycles: int
    to_cycles: int | None
    walks: int


class Walks(TypedDict):
    """The walks of a run, in detail."""

    by_page: list[PageWalks]
    accesses_by_level: list[AccessLevel]
    latency_histogram: list[Bin]
    merged: int
    dirty_updates: int
    faulting: int
    instruction_side: int


class Nodes(TypedDict):
    """Page-table nodes of one kind."""

    level: str
    width: int
    node_bytes: int
    nodes: int
    bytes: int


class PageTable(TypedDict):
    """The page table at the end of a run."""

    nodes: list[Nodes]


class CacheCounts(TypedDict):
    """Counters of one cache."""

    name: str
    data_accesses: int
    data_misses: int
    table_accesses: int
    table_misses: int
    writebacks: int


class Dram(TypedDict):
    """Counters of main memory."""

    reads: int
    writes: int
    row_hits: int
    row_misses: int
    average_latency_cycles: float | None


class Energy(TypedDict):
    """Dynamic energy of the data caches' accesses."""

    l1d_nj: float
    l2_nj: float
    llc_nj: float
    cache_nj: float


class Os(TypedDict):
    """What the operating system did."""

    faults: int
    fault_cycles: int | None
    large_page_faults: int
    large_page_fallbacks: int
    node_fallbacks: int
    context_switches: NotRequired[int | None]
    events: int


class Asap(TypedDict):
    """What ASAP prefetched, and what the operating system keeps in order for it."""

    prefetches: int
    dropped: int
    unused: int
    uncovered_walks: int
    ranges: int
    reserved_bytes: int
    scattered_nodes: int


class DirectSegment(TypedDict):
    """The range that was translated without pages."""

    bytes: int
    translations: int


class PomTlb(TypedDict):
    """What the TLB in memory was asked."""

    lookups: int
    hits: int
    second_probes: int
    bypasses: int


class Csalt(TypedDict):
    """How L2 and LLC are divided at the end, and how often that changed."""

    l2_data_ways: int | None
    llc_data_ways: int | None
    divisions: int


class Run(TypedDict):
    """One configuration's result; every count is from after the warm-up."""

    scheme: str
    machine: str
    workload: str
    large_pages: int | None
    thp: str | None
    fragmentation: float
    mode: str
    seed: int
    instructions: int
    cycles: int | None
    ipc: float | None
    loads: int
    stores: int
    walks: int
    accesses_per_walk: float | None
    walk_latency_cycles: float | None
    walk_queue_cycles: float | None
    walk_access_cycles: float | None
    translation_cycles: int | None
    page_table_bytes: int
    data_bytes: int
    page_table: PageTable
    tlb: list[dict[str, Any]]
    pwc: list[dict[str, Any]]
    walk: Walks
    caches: list[CacheCounts]
    dram: Dram | None
    energy: Energy | None
    os: Os
    branch: dict[str, int] | None
    priority: dict[str, float]
    asap: Asap | None
    host_asap: Asap | None
    direct_segment: DirectSegment | None
    host_direct_segment: DirectSegment | None
    pom_tlb: PomTlb | None
    csalt: Csalt | None
    warnings: list[str]
    configuration: dict[str, Any]
    speedup: NotRequired[float | None]
    relative_cache_energy: NotRequired[float | None]
    relative_off_chip_accesses: NotRequired[float | None]


class Response(TypedDict):
    """The engine's answer to `simulate`."""

    schema: str
    version: str
    trace: dict[str, Any]
    runs: list[Run]


def pages_key(run: Run) -> tuple[int | None, str | None]:
    """The large-page setting of a run: per cent, or the THP policy."""
    return run["large_pages"], run["thp"]


def pages_label(run: Run) -> str:
    """The large-page setting of a run for a person."""
    if run["thp"] is not None:
        return f"THP {run['thp']}"
    return f"{run['large_pages']} % large pages"


def grouped(runs: list[Run]) -> list[list[Run]]:
    """Runs by large-page setting, each group in request order."""
    groups: dict[tuple[int | None, str | None], list[Run]] = {}
    for run in runs:
        groups.setdefault(pages_key(run), []).append(run)
    return list(groups.values())


def add_speedups(runs: list[Run]) -> None:
    """Gives every run its speed-up over the first scheme at the same large-page setting.

    The speed-up is a ratio of cycles per instruction, so 1.092 is 9.2 % faster; `None` where nothing
    was timed.
    """
    for group in grouped(runs):
        base = group[0]["ipc"]
        for run in group:
            ipc = run["ipc"]
            run["speedup"] = ipc / base if base and ipc is not None else None


def add_energy(runs: list[Run]) -> None:
    """Gives every run its cache energy and off-chip accesses over the first scheme's with the same pages.

    Both are per instruction; `None` where nothing was timed or the machine has no figures.
    """

    def ratio(value: float | None, base: float | None) -> float | None:
        return value / base if base and value is not None else None

    for group in grouped(runs):
        base = group[0]
        for run in group:
            run["relative_cache_energy"] = ratio(cache_energy_nj(run), cache_energy_nj(base))
            run["relative_off_chip_accesses"] = ratio(off_chip_accesses(run), off_chip_accesses(base))


def cache_energy_nj(run: Run) -> float | None:
    """Dynamic energy of the data caches per instruction; `None` where it is not known."""
    energy = run["energy"]
    return energy["cache_nj"] / run["instructions"] if energy and run["instructions"] else None


def off_chip_accesses(run: Run) -> float | None:
    """Lines that go to or come from memory, per instruction; `None` where nothing was timed."""
    dram = run["dram"]
    return (dram["reads"] + dram["writes"]) / run["instructions"] if dram and run["instructions"] else None


def is_bound(run: Run) -> bool:
    """Whether a run's scheme is a bound rather than a design: its translation is free."""
    return bool(run["configuration"]["scheme"].get("translation") == "free")


def lost_to_translation(run: Run, group: list[Run]) -> float | None:
    """Share of a run's time that its translation costs: what the bound of its group does without.

    `None` where nothing was timed or no bound was run. The engine's `translation_cycles` is another
    figure: cycles in which the oldest instruction waited for its own translation, which leaves out
    what waits behind it.
    """
    bound = next((other for other in group if is_bound(other)), None)
    if bound is None or not run["ipc"] or not bound["ipc"]:
        return None
    return max(1 - run["ipc"] / bound["ipc"], 0.0)


def warnings_of(runs: list[Run]) -> list[tuple[str, list[str]]]:
    """Each warning once, with the runs that have it by name; no names: all of them."""
    owners: dict[str, list[str]] = {}
    for run in runs:
        for warning in dict.fromkeys(run["warnings"]):
            owners.setdefault(warning, []).append(f"{run['scheme']} at {pages_label(run)}")
    return [(text, [] if len(names) == len(runs) else names) for text, names in owners.items()]
