"""How far our figures may be off: by the windows that were not measured, and the programs that were not run.

A figure of a claim is some function of several runs of several programs. By how much a window moves it is
seen by leaving that window out of all of the program's runs at once (the jackknife), so that what schemes
have in common drops out. A program's windows are a stratified sample (`flatwalk.answer.intervals`);
programs are independent of each other, so that their variances add up. Where a paper averages over more
programs than we run, ours count as a simple random sample of those: what is missing has the spread of what
is there. Where it says of which kinds they are, and how many of each (strata), ours are such a sample of
each kind, and weigh as much together as the whole kind (Cochran 1977, 5.3 to 5.5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

from flatwalk.answer import intervals
from flatwalk.answer.results import coverage, sampled_cycles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flatwalk.answer.results import Run, Sampling

    Runs = tuple[Run, ...]


@dataclass(frozen=True)
class Sample:
    """By how much each member of a sample moves a figure, and which share of all members it is."""

    residuals: tuple[float, ...]
    coverage: float


@dataclass(frozen=True)
class Spread:
    """A figure, and by how much windows and programs move it."""

    value: float
    #: By program.
    windows: dict[str, Sample] = field(default_factory=dict)
    #: By kind of program, in their order; empty where all of the paper's programs are run.
    programs: tuple[Sample, ...] = ()
    #: False if something of it is not known to be a sample, or is too small a one.
    known: bool = True

    def missing(self) -> float:
        """Half the width that the interval would have if all windows of these programs had been measured."""
        return intervals.strata_margin([(kind.residuals, kind.coverage) for kind in self.programs])

    def bounds(self) -> tuple[float | None, float | None]:
        """The ends of the 95 % interval; None where nothing is known."""
        if not self.known or not math.isfinite(self.value):
            return None, None
        margins = [intervals.margin(one.residuals, one.coverage) for one in self.windows.values()]
        margin = math.hypot(*margins, self.missing())
        return self.value - margin, self.value + margin


def combined(spreads: Sequence[Spread], function: Callable[..., float]) -> Spread:
    """A function of figures of the same programs, to first order."""
    values = [one.value for one in spreads]
    value = function(*values)
    slopes = []
    for at, old in enumerate(values):
        step = 1e-6 * (abs(old) or 1.0)
        moved = function(*(old + step if index == at else other for index, other in enumerate(values)))
        slopes.append((moved - value) / step)

    def sums(samples: Sequence[Sample | None]) -> Sample | None:
        there = [(slope, one) for slope, one in zip(slopes, samples, strict=True) if one is not None]
        if not there or len({len(one.residuals) for _, one in there}) > 1:
            return None
        columns = zip(*([slope * item for item in one.residuals] for slope, one in there), strict=True)
        return Sample(tuple(map(sum, columns)), min(one.coverage for _, one in there))

    names = {name for one in spreads for name in one.windows}
    windows = {name: sums([one.windows.get(name) for one in spreads]) for name in sorted(names)}
    of_kinds: list[Sample | None] = [None]
    if len(counts := {len(one.programs) for one in spreads if one.programs}) <= 1:
        kinds = range(max(counts, default=0))
        of_kinds = [sums([one.programs[at] if one.programs else None for one in spreads]) for at in kinds]
    return Spread(
        value,
        {name: sample for name, sample in windows.items() if sample is not None},
        tuple(sample for sample in of_kinds if sample is not None),
        all(one.known for one in spreads) and None not in [*windows.values(), *of_kinds],
    )


@dataclass(frozen=True)
class Kind:
    """Programs of one kind: how many a figure is to stand for, and which of those are run."""

    programs: int
    names: frozenset[str]


def spread(
    of: Mapping[str, Runs],
    value: Callable[[Runs], float | None],
    average: Callable[[Sequence[float]], float],
    programs: int | Sequence[Kind] | None,
    *,
    sampled: bool = True,
) -> Spread | None:
    """The spread of an average over programs.

    Args:
        of: By program, the runs that its value needs, all over the same windows.
        value: A program's value; None where it has none.
        average: From all values to the figure. A value that stands for several programs is there as often.
        programs: How many the figure is to stand for, or of each kind; None if those are all.
        sampled: Whether it counts what happens in windows; otherwise it is exact of each program.

    Returns:
        None where no program has a value, or none of some kind.
    """
    values = {name: found for name, runs in of.items() if (found := value(runs)) is not None}
    if programs is None or isinstance(programs, int):
        kinds = [Kind(max(programs or 0, len(values)), frozenset(values))]
    else:
        kinds = [replace(kind, names=kind.names & values.keys()) for kind in programs]
    if not all(kind.names for kind in kinds):
        return None
    times = _times(kinds)
    whole = average(_repeated(values, times))
    windows: dict[str, Sample] = {}
    known = True
    for name in values if sampled else ():
        share = _coverage(of[name])
        count = {len(run.get("windows") or []) for run in of[name]}
        if share is None or len(count) != 1:
            known = False
            continue
        if share >= 1:
            continue
        others = [value(tuple(_without(run, window) for run in of[name])) for window in range(max(count))]
        moved = [average(_repeated({**values, name: one}, times)) for one in others if one is not None]
        # Where one window has all that is counted, nothing is known of how it varies.
        if len(moved) < intervals.LEAST or None in others:
            known = False
            continue
        windows[name] = Sample(intervals.jackknife(moved), share)
    if all(kind.programs <= len(kind.names) for kind in kinds):
        return Spread(whole, windows, known=known)
    # Of kinds, other ones say something, too.
    least = intervals.LEAST if len(kinds) == 1 else 2
    if any(len(kind.names) < min(least, kind.programs) for kind in kinds):
        return Spread(whole, windows, known=False)
    samples = []
    for kind in kinds:
        names = [name for name in values if name in kind.names]
        share = min(len(names) / kind.programs, 1.0)
        residuals = (0.0,) * len(names)
        if share < 1:
            # The others of its kind stand for a program that is left out.
            without = [[replace(one, names=one.names - {name}) for one in kinds] for name in names]
            residuals = intervals.jackknife([average(_repeated(values, _times(left))) for left in without])
        samples.append(Sample(residuals, share))
    return Spread(whole, windows, tuple(samples), known)


def _times(kinds: Sequence[Kind]) -> dict[str, int]:
    """How often each program's value is in an average in which it weighs as what it stands for."""
    share = {
        name: Fraction(max(kind.programs, len(kind.names)), len(kind.names))
        for kind in kinds
        for name in kind.names
    }
    whole = math.lcm(*(one.denominator for one in share.values()))
    times = {name: int(one * whole) for name, one in share.items()}
    common = math.gcd(*times.values())
    return {name: count // common for name, count in times.items()}


def _repeated(values: Mapping[str, float], times: Mapping[str, int]) -> list[float]:
    return [value for name, value in values.items() for _ in range(times.get(name, 0))]


def _coverage(runs: Runs) -> float | None:
    """Share of the programs' instructions that was measured; None where it is not known to be a sample."""
    shares = [coverage(cast("Sampling | None", cast("dict[str, Any]", run).get("sampling"))) for run in runs]
    known = [share for share in shares if share is not None]
    return min(known) if len(known) == len(shares) else None


def _without(run: Run, left_out: int) -> Run:
    """A run as if a window had not been measured, in all that metrics read of it."""
    others = [window for at, window in enumerate(run["windows"]) if at != left_out]
    if "instructions" not in cast("dict[str, Any]", run):  # guests, of which metrics read windows alone
        return cast("Run", {**run, "windows": others})

    def total(key: str) -> float:
        return sum(cast("dict[str, float | None]", window)[key] or 0 for window in others)

    instructions, walks = total("instructions"), total("walks")
    cycles = sum(one for at, one in enumerate(sampled_cycles(run["windows"])) if at != left_out)
    latency, queue = total("walk_latency_cycles"), total("walk_queue_cycles")
    accesses = total("walk_accesses")

    def per_walk(count: float, whole: float | None) -> float | None:
        return count / walks if walks and whole is not None else None

    all_accesses = sum(window["walk_accesses"] for window in run["windows"])
    share = accesses / all_accesses if all_accesses else 1.0
    levels = [
        {**level, "accesses": level["accesses"] * share} for level in run["walk"]["accesses_by_level"][:1]
    ]
    caches: dict[str, dict[str, str | float]] = {}
    for name, count in CACHE_COUNTS:
        caches.setdefault(name, {"name": name})[count] = total(window_key(name, count))
    # Windows do not count loads and stores: each has its share of instructions of them.
    measured = sum(window["instructions"] for window in run["windows"])
    part = instructions / measured if measured else 1.0
    changed = {
        "instructions": instructions,
        "loads": run["loads"] * part,
        "stores": run["stores"] * part,
        "cycles": None if run["cycles"] is None else cycles,
        "ipc": None if run["ipc"] is None or not cycles else instructions / cycles,
        "walks": walks,
        "accesses_per_walk": per_walk(accesses, run["accesses_per_walk"]),
        "walk_latency_cycles": per_walk(latency, run["walk_latency_cycles"]),
        "walk_access_cycles": per_walk(latency - queue, run["walk_access_cycles"]),
        "walk": {"accesses_by_level": levels},
        "caches": [*caches.values()] if run["caches"] else [],
        "energy": None if run["energy"] is None else {"cache_nj": total("cache_nj")},
        "dram": None if run["dram"] is None else {"reads": total("dram_lines"), "writes": 0},
    }
    return cast("Run", {**run, **changed})


#: What windows count of caches.
CACHE_COUNTS = [
    (name, f"{kind}_{what}")
    for name, kind in (("L1D", "data"), ("L2", "data"), ("L2", "table"), ("LLC", "data"))
    for what in ("accesses", "misses")
]


def window_key(cache: str, count: str) -> str:
    """What a window calls a count of a cache."""
    return f"{cache.lower()}_{count}"
