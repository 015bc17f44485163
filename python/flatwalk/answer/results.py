"""Runs as the engine answers them, and what follows from several of them."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeVar, cast

from flatwalk import units
from flatwalk.answer import intervals
from flatwalk.answer.intervals import Estimate
from flatwalk.answer.types import RunResult, Sampled, TraceSummary, WindowResult
from flatwalk.errors import FlatwalkError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")
K = TypeVar("K")

#: What `compare --json` writes, and what it once wrote.
SCHEMA, FIRST_SCHEMA = "flatwalk-compare/2", "flatwalk-compare/1"

#: By how much weights of SimPoint's intervals may sum to more or less than what they are of: they are
#: written with few digits.
WEIGHT_TOLERANCE = 1e-3

#: Bits of an address within a base page, and of an entry's place in a node, where a scheme does not say it.
_X86_64 = {"page_shift": 12, "index_bits": 9}

#: What runs of both forms have that is read without a question.
_RUN_KEYS = (
    *("scheme", "machine", "workload", "large_pages", "thp", "configuration"),
    *("instructions", "cycles", "ipc", "walks", "accesses_per_walk", "walk_latency_cycles"),
    *("walk_queue_cycles", "walk_access_cycles", "data_bytes", "page_table"),
    *("windows", "cycle_stack"),
    *("page_table_bytes", "walk", "tlb", "caches", "os", "warnings"),
)
#: What answers and their runs have of each kind, where they have it.
_KINDS: dict[Any, tuple[str, ...]] = {
    str: ("version", "scheme", "machine", "workload"),
    str | None: ("thp",),
    dict: ("trace", "settings", "configuration", "page_table", "walk", "os"),
    dict | None: ("sampling", "bias", "intervals"),
    list: ("windows", "cycle_stack", "tlb", "caches", "warnings"),
    int | float: ("instructions", "walks", "page_table_bytes", "data_bytes"),
    int | float | None: (
        *("large_pages", "cycles", "ipc", "speedup", "speedup_low", "speedup_high"),
        *("accesses_per_walk", "walk_latency_cycles", "walk_queue_cycles", "walk_access_cycles"),
    ),
}
#: Of the lists those of tables.
_TABLES = ("windows", "cycle_stack", "tlb", "caches")


class Intervals(TypedDict):
    """Of each mean of a run its 95 % interval, `[low, high]`; None where nothing is known of it."""

    ipc: list[float] | None
    walks_per_1000: list[float] | None
    accesses_per_walk: list[float] | None
    walk_latency_cycles: list[float] | None
    walk_queue_cycles: list[float] | None


class Sampling(Sampled):
    """What was measured; with SimPoint's intervals, the weight of each as its file says it.

    `cut_short` says what stopped a run before its end; then the whole of it is what came until then.
    """

    weights: NotRequired[list[float] | None]
    cut_short: NotRequired[str]


class Bias(TypedDict):
    """Whether windows that are warmed half as long give the same speed-up of the second scheme."""

    schemes: list[str]
    machine: str
    settings: dict[str, Any]
    large_pages: int | None
    thp: str | None
    warmup_instructions: int
    half_warmup_instructions: int
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    half_warmup_speedup: float
    agrees: bool
    remedy: str


class Run(RunResult):
    """One configuration's result, with what it is to the first scheme's on the same machine and pages.

    Where there are several machines, or settings of one, `machine_speedup` is its speed in time over that
    of the same scheme and pages on the first of them, and `speedup_change` its speed-up over that one's.
    `weighted` is true of runs over SimPoint's intervals (`simpoints.weigh`).
    """

    speedup: NotRequired[float | None]
    speedup_low: NotRequired[float | None]
    speedup_high: NotRequired[float | None]
    machine_speedup: NotRequired[float | None]
    machine_speedup_low: NotRequired[float | None]
    machine_speedup_high: NotRequired[float | None]
    speedup_change: NotRequired[float | None]
    speedup_change_low: NotRequired[float | None]
    speedup_change_high: NotRequired[float | None]
    intervals: NotRequired[Intervals | None]
    weighted: NotRequired[bool]
    relative_cache_energy: NotRequired[float | None]
    relative_off_chip_accesses: NotRequired[float | None]


class Response(TypedDict):
    """The engine's answer to `simulate`, and what `compare` adds to it."""

    schema: str
    version: str
    trace: TraceSummary
    runs: list[Run]
    sampling: NotRequired[Sampling | None]
    bias: NotRequired[Bias | None]


def answer(response: Response) -> dict[str, Any]:
    """What `compare --json` writes of a response."""
    return {
        "schema": SCHEMA,
        "version": response["version"],
        "trace": response["trace"],
        "sampling": response.get("sampling"),
        "bias": response.get("bias"),
        "runs": response["runs"],
    }


def read_answer(path: Path) -> Response:
    """Reads what `compare --json` wrote, of this form or the first; what that lacks is None or empty.

    Raises:
        FlatwalkError: If the file is not one.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FlatwalkError(f"{path} cannot be read: {error.strerror}", remedy="check the path") from error
    except (ValueError, RecursionError) as error:
        raise FlatwalkError(
            f"{path} is not JSON", remedy="give a file that flatwalk compare --json wrote"
        ) from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema not in (SCHEMA, FIRST_SCHEMA):
        raise FlatwalkError(
            f"{path} is not the result of a comparison",
            remedy=f"give a file that flatwalk compare --json wrote, whose schema is {SCHEMA}",
        )
    runs = found.get("runs")
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise _incomplete(path, "it has no runs")
    if schema == FIRST_SCHEMA:
        found |= {"schema": SCHEMA, "sampling": None, "bias": None}
        for run in runs:
            for key in ("speedup_low", "speedup_high", "intervals"):
                run.setdefault(key, None)
            for key in ("windows", "cycle_stack"):
                run.setdefault(key, [])
    for run in runs:
        run.setdefault("settings", {})
    for of, keys in ((found, ("version", "trace")), *((run, _RUN_KEYS) for run in runs)):
        if (fault := _fault(of, keys)) is not None:
            raise _incomplete(path, fault)
    if found.get("bias") is not None:
        lacking = {"speedup_low": None, "speedup_high": None, "remedy": "a longer --warmup"}
        found["bias"] = lacking | found["bias"]
    return cast("Response", found)


def _fault(of: dict[str, Any], required: Sequence[str]) -> str | None:
    """What is wrong with an answer, or a run of one: which keys it lacks, or one of another kind."""
    if missing := [key for key in required if key not in of]:
        return f"it lacks {', '.join(missing[:3])}"
    unfit = [
        key for kind, keys in _KINDS.items() for key in keys if key in of and not isinstance(of[key], kind)
    ] or [key for key in _TABLES if not all(isinstance(item, dict) for item in of.get(key, ()))]
    return f"its {unfit[0]} is of the wrong kind" if unfit else None


def _incomplete(path: Path, why: str) -> FlatwalkError:
    return FlatwalkError(
        f"{path} is not a whole result: {why}",
        remedy="write it again with flatwalk compare --json; older versions' may lack what is new",
    )


def pages_key(run: Run) -> tuple[int | None, str | None]:
    """The large-page setting of a run: per cent, or the THP policy."""
    return run["large_pages"], run["thp"]


def pages_label(run: Run) -> str:
    """The large-page setting of a run for a person."""
    if run["thp"] is not None:
        return f"THP {run['thp']}"
    share = run["large_pages"] or 0
    base, large = _page_sizes(run)
    return {0: f"{base} pages", 100: f"{large} pages"}.get(share, f"{share} % of memory on {large} pages")


def _page_sizes(run: Run) -> tuple[str, str]:
    """The sizes of a run's base and large pages, for a person."""
    geometry = run["configuration"]["scheme"].get("table", {}).get("geometry") or _X86_64
    shifts = geometry["page_shift"], geometry["page_shift"] + geometry["index_bits"]
    base, large = (units.size(1 << shift) for shift in shifts)
    return base, large


def note_page_sizes(runs: list[Run]) -> None:
    """Notes of runs with base pages of another size than their baseline: this is part of what differs."""
    for first, *others in grouped(runs):
        base = _page_sizes(first)[0]
        for run in others:
            if (own := _page_sizes(run)[0]) != base:
                run["warnings"].append(
                    f"pages of {own}, those of {first['scheme']} have {base}: what is said of page tables is "
                    "that of page sizes, too"
                )


def machine_key(run: Run) -> tuple[str, str]:
    """What tells the machine of a run, with its settings, from others."""
    return run["machine"], json.dumps(run["settings"], sort_keys=True)


def settings_label(values: dict[str, Any]) -> str:
    """Settings for a person: `llc.size_bytes=4MiB, walker.concurrent=2`."""
    return ", ".join(f"{key}={_value_label(key, value)}" for key, value in values.items())


def _value_label(key: str, value: object) -> str:
    if key.endswith("_bytes") and isinstance(value, int) and not isinstance(value, bool):
        return units.short_size(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_value_label(key, item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value_label("", item) for item in value) + "]"
    return str(value)


def machine_label(run: Mapping[str, Any]) -> str:
    """The machine of a run for a person, with what differs from its file."""
    return ", ".join(filter(None, (run["machine"], settings_label(run["settings"]))))


def machines_label(run: Run, runs: list[Run]) -> str:
    """What the machine of a run is called among those of `runs`: its name, its settings, or both.

    Empty if there is only one.
    """
    if len({machine_key(other) for other in runs}) == 1:
        return ""
    settings = settings_label(run["settings"])
    if len({other["machine"] for other in runs}) == 1:
        return settings
    return machine_label(run)


def machine_phrase(run: Run, runs: list[Run]) -> str:
    """` on zen4` or ` with llc.size_bytes=4MiB`, behind what is said of a run; empty for one machine."""
    name = machines_label(run, runs)
    if not name:
        return ""
    return f" {'on' if name.startswith(run['machine']) else 'with'} {name}"


def place_key(run: Run) -> tuple[tuple[str, str], tuple[int | None, str | None]]:
    """What runs have in common that are compared: the machine and the large-page setting."""
    return machine_key(run), pages_key(run)


def place_label(run: Run, runs: list[Run]) -> str:
    """The large-page setting of a run for a person, with its machine if `runs` have several."""
    return pages_label(run) + machine_phrase(run, runs)


def grouped(runs: list[Run]) -> list[list[Run]]:
    """Runs by machine and large-page setting, each group in request order."""
    return grouped_by(runs, place_key)


def by_machine(runs: list[Run]) -> list[list[list[Run]]]:
    """By machine: its runs by large-page setting."""
    return grouped_by(grouped(runs), lambda members: machine_key(members[0]))


def grouped_by(items: list[T], key: Callable[[T], K]) -> list[list[T]]:
    """Items with the same key together, groups and members in the order of the items."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def add_speedups(runs: list[Run], sampling: Sampling | None = None) -> None:
    """Gives every run its speed-up over the first scheme on the same machine and pages, and intervals.

    Also what it is to the same scheme and pages on the first machine, if there are several. The speed-up
    is a ratio of cycles per instruction, so 1.092 is 9.2 % faster; `None` where nothing was timed. Without
    `sampling` nothing is known of how sure the figures are.
    """
    for group in grouped(runs):
        for run in group:
            speed = speed_ratio(run, group[0], sampling)
            run["speedup"], run["speedup_low"], run["speedup_high"] = _figures(speed)
            run["intervals"] = _means(run, sampling)
    _add_machines(runs, sampling)


def _add_machines(runs: list[Run], sampling: Sampling | None) -> None:
    """What each run is to the same scheme and pages on the first machine."""
    machines = by_machine(runs)
    if len(machines) == 1:
        return
    firsts = {(run["scheme"], pages_key(run)): (run, group[0]) for group in machines[0] for run in group}
    for group in itertools.chain.from_iterable(machines):
        for run in group:
            there, base_there = firsts[run["scheme"], pages_key(run)]
            speed = time_ratio(run, there, sampling)
            change = speedup_ratio((run, group[0]), (there, base_there), sampling)
            run["machine_speedup"], run["machine_speedup_low"], run["machine_speedup_high"] = _figures(speed)
            run["speedup_change"], run["speedup_change_low"], run["speedup_change_high"] = _figures(change)


def _figures(found: Estimate | None) -> tuple[float | None, float | None, float | None]:
    return (found.value, found.low, found.high) if found else (None, None, None)


def coverage(sampling: Sampling | None) -> float | None:
    """Share of the program that was measured; None where the windows are not a random sample of it."""
    if sampling is None or sampling.get("weights"):
        return None
    share = sampling["coverage"]
    if share is not None and share > 1 - 1e-6:
        return 1.0
    return (share or 0.0) if sampling["sampled"] else None


def _columns(run: Run, *keys: str) -> list[list[float]]:
    windows = run.get("windows") or []
    cells = cast("list[dict[str, float | None]]", windows)
    return [
        sampled_cycles(windows) if key == "cycles" else [window[key] or 0 for window in cells] for key in keys
    ]


def sampled_cycles(windows: Sequence[WindowResult]) -> list[float]:
    """Cycles of windows for intervals: what is known of the whole run is as much in each instruction.

    That is the work of kernels, where it is followed between windows, too. Which window has how much of it is
    no accident of the sample. The sum is the windows' own.
    """
    known = [window.get("kernel_cycles") or 0 for window in windows]
    each = sum(known) / max(sum(window["instructions"] for window in windows), 1)
    return [
        (window["cycles"] or 0) - part + each * window["instructions"]
        for window, part in zip(windows, known, strict=True)
    ]


def _bounded(value: float, found: Estimate) -> Estimate:
    """A run's own figure with the bounds that its windows give."""
    if found.low is None or found.high is None:
        return Estimate(value)
    # In this order equal bounds stay equal to the value.
    return Estimate(value, value * (found.low / found.value), value * (found.high / found.value))


def _paired(runs: Sequence[Run]) -> bool:
    """Whether runs are over the same windows, of which there are some."""
    places = {tuple(window.get("at") for window in run.get("windows") or []) for run in runs}
    return len(places) == 1 and () not in places


def _ratio(value: float, run: Run, base: Run, key: str, share: float | None) -> Estimate:
    """What `value` is known to: `key` per instruction of `base` over that of `run`, over their windows."""
    if share is None or not _paired([run, base]):
        return Estimate(value)
    (over, under_instructions), (under, over_instructions) = (
        _columns(one, key, "instructions") for one in (base, run)
    )
    found = intervals.estimate([over, over_instructions], [under, under_instructions], share)
    return _bounded(value, found)


def speed_ratio(run: Run, base: Run, sampling: Sampling | None) -> Estimate | None:
    """Speed of a run over that of another over the same windows; None where nothing was timed."""
    if not base["ipc"] or run["ipc"] is None:
        return None
    if run is base:
        # Of sums over windows only rounding would be left.
        return Estimate(1.0) if coverage(sampling) is None else Estimate(1.0, 1.0, 1.0)
    return _ratio(run["ipc"] / base["ipc"], run, base, "cycles", coverage(sampling))


def time_ratio(run: Run, base: Run, sampling: Sampling | None) -> Estimate | None:
    """The same in time rather than cycles: the two may be on machines with different clocks."""
    speed = speed_ratio(run, base, sampling)
    if speed is None:
        return None
    clock = _frequency(run) / _frequency(base)
    low, high = (None if bound is None else bound * clock for bound in (speed.low, speed.high))
    return Estimate(speed.value * clock, low, high)


def _frequency(run: Run) -> float:
    return float(run["configuration"]["machine"]["frequency_mhz"])


def speedup_ratio(
    pair: tuple[Run, Run], other: tuple[Run, Run], sampling: Sampling | None
) -> Estimate | None:
    """The speed-up of a run over its baseline, over that of another pair; None where nothing was timed.

    All four are over the same windows, so what they have in common drops out.
    """
    (run, base), (other_run, other_base) = pair, other
    speeds = [speed_ratio(run, base, sampling), speed_ratio(other_run, other_base, sampling)]
    if speeds[0] is None or speeds[1] is None or not speeds[1].value:
        return None
    value = speeds[0].value / speeds[1].value
    share = coverage(sampling)
    every = (base, other_run, run, other_base)
    if share is None or not _paired(every):
        return Estimate(value)
    if run is other_run or run is base:
        return Estimate(value, value, value)
    # Windows have the same instructions in all four, so these cancel.
    columns = [_columns(one, "cycles")[0] for one in every]
    return _bounded(value, intervals.estimate(columns[:2], columns[2:], share))


def accesses_ratio(run: Run, base: Run, sampling: Sampling | None) -> Estimate | None:
    """Entries that a run's walks read per instruction over another's; None if that one's read none."""
    mine, others = (
        one["walks"] * (one["accesses_per_walk"] or 0.0) / (one["instructions"] or 1) for one in (run, base)
    )
    if not others:
        return None
    if not mine:
        return Estimate(0.0)
    return _ratio(mine / others, base, run, "walk_accesses", coverage(sampling))


def _means(run: Run, sampling: Sampling | None) -> Intervals:
    share = coverage(sampling)
    instructions, cycles, walks, accesses, latency, queue = _columns(
        run, "instructions", "cycles", "walks", "walk_accesses", "walk_latency_cycles", "walk_queue_cycles"
    )

    def interval(over: list[float], under: list[float], value: float | None) -> list[float] | None:
        if share is None or not over or value is None:
            return None
        found = _bounded(value, intervals.estimate([over], [under], share))
        return None if found.low is None or found.high is None else [found.low, found.high]

    return {
        "ipc": interval(instructions, cycles, run["ipc"]),
        "walks_per_1000": interval(walks, instructions, walks_per_1000(run)),
        "accesses_per_walk": interval(accesses, walks, run["accesses_per_walk"]),
        "walk_latency_cycles": interval(latency, walks, run["walk_latency_cycles"]),
        "walk_queue_cycles": interval(queue, walks, run["walk_queue_cycles"]),
    }


def add_energy(runs: list[Run]) -> None:
    """Gives every run its cache energy and off-chip accesses over the first scheme's with the same pages.

    Both are per instruction; `None` where nothing was timed or the machine has no figures.
    """
    for group in grouped(runs):
        base = group[0]
        for run in group:
            run["relative_cache_energy"] = units.ratio(cache_energy_nj(run), cache_energy_nj(base))
            run["relative_off_chip_accesses"] = units.ratio(off_chip_accesses(run), off_chip_accesses(base))


def cache_energy_nj(run: Run) -> float | None:
    """Dynamic energy of the data caches per instruction; `None` where it is not known."""
    energy = run["energy"]
    return energy["cache_nj"] / run["instructions"] if energy and run["instructions"] else None


def off_chip_accesses(run: Run) -> float | None:
    """Lines that go to or come from memory, per instruction; `None` where nothing was timed."""
    dram = run["dram"]
    return (dram["reads"] + dram["writes"]) / run["instructions"] if dram and run["instructions"] else None


def walks_per_1000(run: RunResult) -> float | None:
    """Walks per 1000 instructions; `None` where none were measured."""
    return 1000 * run["walks"] / run["instructions"] if run["instructions"] else None


def is_bound(run: Run) -> bool:
    """Whether a run's scheme is a bound rather than a design: its translation is free."""
    return bool(run["configuration"]["scheme"].get("translation") == "free")


def has_host(run: Run) -> bool:
    """Whether a run's addresses go through a host's table, too."""
    return run["configuration"]["scheme"].get("host") is not None


def bound_for(run: Run, group: list[Run]) -> Run | None:
    """The first bound of `group` for a run: free translation of the same system.

    A guest's system has a host, whose page faults the bound of one without a host does not have. `None`
    where no such bound was run.
    """
    return next(
        (other for other in group if is_bound(other) and has_host(other) == has_host(run)),
        None,
    )


def speedup_at_least(run: Run) -> float:
    """What a run's speed-up is at least; without an interval the speed-up itself, and 0 where it has none."""
    low = run.get("speedup_low")
    return (run.get("speedup") or 0.0) if low is None else low


def lost_to_translation(run: Run, group: list[Run]) -> float | None:
    """Share of a run's time that its translation costs: what its bound does without.

    `None` where nothing was timed or its bound was not run. The engine's `translation_cycles` is another
    figure: cycles in which the oldest instruction waited for its own translation, which leaves out
    what waits behind it.
    """
    bound = bound_for(run, group)
    if bound is None or not run["ipc"] or not bound["ipc"]:
        return None
    return max(1 - run["ipc"] / bound["ipc"], 0.0)


def warnings_of(runs: list[Run]) -> list[tuple[str, list[str]]]:
    """Each warning once, with the runs that have it by name; no names: all of them."""
    owners: dict[str, list[str]] = {}
    for run in runs:
        for warning in dict.fromkeys(run["warnings"]):
            owners.setdefault(warning, []).append(f"{run['scheme']} at {place_label(run, runs)}")
    return [(text, [] if len(names) == len(runs) else names) for text, names in owners.items()]
