"""What is read from runs: metrics of one run, and averages over workloads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from flatwalk.answer.results import cache_energy_nj, off_chip_accesses, walks_per_1000
from flatwalk.units import ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flatwalk.answer.results import Run
    from flatwalk.answer.types import CacheResult


@dataclass(frozen=True)
class Metric:
    """A figure of a run, or of a run against another.

    Args:
        unit: What stands behind the figure: `%`, `pp` (percentage points), `×`, `cycles` …
        digits: Digits after the decimal point that are shown.
        of: The run's value from the run, the one it is compared with, and the bound. None where it has none.
        compares: Whether another run is needed.
        show: From the average to what is shown; by itself where not given.
        sampled: Whether it counts what happens in windows, rather than what is there at the end.
    """

    unit: str
    digits: int
    of: Callable[[Run, Run, Run], float | None]
    compares: bool = False
    show: Callable[[float], float] = lambda value: value
    sampled: bool = True

    @property
    def is_change(self) -> bool:
        """Whether it says by how much something grows, so that its sign means something."""
        return self.compares and self.unit in {"%", "ns"}


def _cache(run: Run, name: str) -> CacheResult | None:
    return next((cache for cache in run["caches"] if cache["name"] == name), None)


def _misses(name: str, kind: str) -> Callable[[Run, Run, Run], float | None]:
    def value(run: Run, _base: Run, _bound: Run) -> float | None:
        counts: Mapping[str, object] | None = _cache(run, name)
        if counts is None:
            return None
        misses, accesses = counts[f"{kind}_misses"], counts[f"{kind}_accesses"]
        assert isinstance(misses, int)
        assert isinstance(accesses, int)
        share = ratio(misses, accesses)
        return None if share is None else 100 * share

    return value


def _nodes(run: Run, _base: Run, _bound: Run) -> float:
    return float(sum(item["nodes"] for item in run["page_table"]["nodes"]))


def _table_mib(run: Run, _base: Run, _bound: Run) -> float:
    return run["page_table_bytes"] / (1 << 20)


def _l3_accesses(run: Run, _base: Run, _bound: Run) -> float | None:
    """Demand accesses of the L3 cache per instruction: misses of L2, which windows have, too."""
    l2 = _cache(run, "L2")
    return None if l2 is None else ratio(l2["data_misses"] + l2["table_misses"], run["instructions"])


def _memory_growth(run: Run, base: Run, _bound: Run) -> float:
    """How much more memory the process takes, table included."""
    return (run["data_bytes"] + run["page_table_bytes"]) / (base["data_bytes"] + base["page_table_bytes"])


def _extra_ns(run: Run, base: Run, _bound: Run) -> float | None:
    """What a run takes longer than the other, for each read of its table's root.

    On IA-64 that is for each walk in software: one for each page that lies far from all others.
    """
    levels = run["walk"]["accesses_by_level"]
    reads = levels[0]["accesses"] if levels else 0
    if run["cycles"] is None or base["cycles"] is None or not reads:
        return None
    mhz = int(run["configuration"]["machine"]["frequency_mhz"])
    return (run["cycles"] - base["cycles"]) / reads * 1000 / mhz


def _ns_per_update(run: Run, _base: Run, _bound: Run) -> float | None:
    """What an update of `gups` takes, which stores twice: its random number and the table's word."""
    cycles = ratio(run["instructions"], run["ipc"])
    found = None if cycles is None else ratio(cycles, run["stores"] / 2)
    return None if found is None else found * 1000 / int(run["configuration"]["machine"]["frequency_mhz"])


def _walks_per_access(run: Run, _base: Run, _bound: Run) -> float | None:
    """Of the accesses that ask a TLB, loads and stores, those that miss the last one, in per cent."""
    return ratio(100 * run["walks"], run["loads"] + run["stores"])


def _interpolated(run: Run, base: Run, bound: Run) -> float | None:
    """ISMM 2021, section 5: the time that free translation saves shrinks as accesses per walk do.

    The paper takes accesses from its simulator, and the savable time from a machine's counters; here that is
    what the bound saves on a simulated machine. More accesses, as a guest's walks make, take more time in
    proportion.
    """
    fewer = ratio(run["accesses_per_walk"], base["accesses_per_walk"])
    free = ratio(base["ipc"], bound["ipc"])
    if fewer is None or free is None:
        return None
    return 1 / (1 - (1 - free) * (1 - fewer))


def _interpolated_time(run: Run, base: Run, bound: Run) -> float | None:
    return ratio(1.0, _interpolated(run, base, bound))


def _trace_ipc(run: Run) -> float | None:
    """Instructions per cycle as EMT-Linux's public simulator has them (ipc_with_inst_fpt.py), without a core.

    An instruction takes half a cycle, the TLB one for each access, a walk all of its time, and data an eighth
    of theirs, as eight accesses overlap. Latencies are the machine's.
    """
    machine = run["configuration"]["machine"]
    caches = [_cache(run, name) for name in ("L1D", "L2", "LLC")]
    if not run["instructions"] or any(cache is None for cache in caches):
        return None
    counts = cast("list[CacheResult]", caches)
    latencies = [float(machine[name]["latency_cycles"]) for name in ("l1d", "l2", "llc")]
    beyond = float(machine["memory"]["latency_ns"]) * float(machine["frequency_mhz"]) / 1000
    served = [cache["data_accesses"] - cache["data_misses"] for cache in counts]
    data = sum(number * latency for number, latency in zip(served, latencies, strict=True))
    data += counts[-1]["data_misses"] * (latencies[-1] + beyond)
    walks = run["walks"] * (run["walk_access_cycles"] or 0)
    return run["instructions"] / (run["instructions"] / 2 + counts[0]["data_accesses"] + walks + data / 8)


def _processes_refused(run: Run, _base: Run, _bound: Run) -> float | None:
    """Of the processes in guests, those that did not get a block of 2 MiB when they began."""
    boots = cast("list[dict[str, int]]", run["windows"])
    return ratio(100 * sum(boot["refused"] for boot in boots), sum(boot["processes"] for boot in boots))


def _printed(run: Run, base: Run, _bound: Run) -> float | None:
    """What another command printed of a row, over what it printed of another."""
    of, other = (cast("dict[str, float]", one)["printed"] for one in (run, base))
    return ratio(of, other)


def _walks_under_way(run: Run, _base: Run, _bound: Run) -> float | None:
    """How many walks are under way in a cycle, on average; not those that wait for a walker."""
    access = run["walk_access_cycles"]
    if not run["cycles"] or (run["walks"] and access is None):
        return None
    return run["walks"] * access / run["cycles"] if access is not None else 0.0


def _percent_change(ratio: float) -> float:
    return 100 * (ratio - 1)


METRICS: dict[str, Metric] = {
    "speedup": Metric(
        "%", 1, lambda run, base, _: ratio(run["ipc"], base["ipc"]), compares=True, show=_percent_change
    ),
    "interpolated_speedup": Metric("%", 1, _interpolated, compares=True, show=_percent_change),
    "interpolated_time": Metric("×", 2, _interpolated_time, compares=True),
    "interpolated_slowdown": Metric("%", 1, _interpolated_time, compares=True, show=_percent_change),
    "slowdown": Metric(
        "%", 1, lambda run, base, _: ratio(base["ipc"], run["ipc"]), compares=True, show=_percent_change
    ),
    "time": Metric("×", 2, lambda run, base, _: ratio(base["ipc"], run["ipc"]), compares=True),
    "trace_speedup": Metric(
        "%",
        1,
        lambda run, base, _: ratio(_trace_ipc(run), _trace_ipc(base)),
        compares=True,
        show=_percent_change,
    ),
    "trace_time": Metric(
        "×", 2, lambda run, base, _: ratio(_trace_ipc(base), _trace_ipc(run)), compares=True
    ),
    "accesses_per_walk": Metric("accesses", 2, lambda run, _base, _: run["accesses_per_walk"]),
    "accesses_change": Metric(
        "%",
        0,
        lambda run, base, _: ratio(run["accesses_per_walk"], base["accesses_per_walk"]),
        compares=True,
        show=_percent_change,
    ),
    "walk_latency": Metric("cycles", 1, lambda run, _base, _: run["walk_latency_cycles"]),
    "walk_access": Metric("cycles", 1, lambda run, _base, _: run["walk_access_cycles"]),
    "walk_speed": Metric(
        "×",
        2,
        lambda run, base, _: ratio(base["walk_access_cycles"], run["walk_access_cycles"]),
        compares=True,
    ),
    "l2_data_misses": Metric("%", 1, _misses("L2", "data")),
    "l2_walk_misses": Metric("%", 1, _misses("L2", "table")),
    "page_table_nodes": Metric("nodes", 0, _nodes, sampled=False),
    "page_table_mib": Metric("MiB", 2, _table_mib, sampled=False),
    "memory_growth": Metric("%", 2, _memory_growth, compares=True, show=_percent_change, sampled=False),
    "cache_energy": Metric(
        "%",
        1,
        lambda run, base, _: ratio(cache_energy_nj(run), cache_energy_nj(base)),
        compares=True,
        show=_percent_change,
    ),
    "off_chip": Metric(
        "%",
        1,
        lambda run, base, _: ratio(off_chip_accesses(run), off_chip_accesses(base)),
        compares=True,
        show=_percent_change,
    ),
    "l3_accesses": Metric(
        "%",
        1,
        lambda run, base, bound: ratio(_l3_accesses(run, run, bound), _l3_accesses(base, base, bound)),
        compares=True,
        show=_percent_change,
    ),
    "processes_refused": Metric("%", 1, _processes_refused),
    "extra_ns": Metric("ns", 0, _extra_ns, compares=True),
    "ns_per_update": Metric("ns", 0, _ns_per_update),
    "walks_under_way": Metric("walks", 2, _walks_under_way),
    "printed_change": Metric("%", 2, _printed, compares=True, show=_percent_change),
    "walks_per_1000": Metric("walks", 2, lambda run, _base, _: walks_per_1000(run)),
    "walks_per_access": Metric("%", 1, _walks_per_access),
}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _geomean(values: Sequence[float]) -> float:
    return math.exp(_mean([math.log(value) for value in values]))


def _third(values: Sequence[float]) -> float:
    """The third largest: what at least three programs have."""
    return sorted(values)[-min(len(values), 3)]


AVERAGES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": _mean,
    "geomean": _geomean,
    "max": max,
    "min": min,
    "third": _third,
}
