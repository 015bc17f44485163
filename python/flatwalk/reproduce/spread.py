"""How far our figures may be off: by the windows that were not measured, and the programs that were not run.

A figure of a claim is some function of several runs of several programs. By how much a window moves it is
seen by leaving that window out of all of the program's runs at once (the jackknife), so that what schemes
have in common drops out. A program's windows are a stratified sample (`flatwalk.intervals`); programs are
independent of each other, so that their variances add up. Where a paper averages over more programs than we
run, ours count as a simple random sample of those: what is missing has the spread of what is there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from flatwalk import intervals
from flatwalk.results import coverage, sampled_cycles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flatwalk.results import Run, Sampling

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
    #: None where all of the paper's programs are run.
    programs: Sample | None = None
    #: False if something of it is not known to be a sample, or is too small a one.
    known: bool = True

    def missing(self) -> float:
        """Half the width that the interval would have if all windows of these programs had been measured."""
        if self.programs is None:
            return 0.0
        return intervals.simple_margin(self.programs.residuals, self.programs.coverage)

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
    programs = sums([one.programs for one in spreads])
    are_known = programs is not None or all(one.programs is None for one in spreads)
    return Spread(
        value,
        {name: sample for name, sample in windows.items() if sample is not None},
        programs,
        all(one.known for one in spreads) and None not in windows.values() and are_known,
    )


def spread(
    of: Mapping[str, Runs],
    value: Callable[[Runs], float | None],
    average: Callable[[Sequence[float]], float],
    programs: int | None,
    *,
    sampled: bool = True,
) -> Spread | None:
    """The spread of an average over programs.

    Args:
        of: By program, the runs that its value needs, all over the same windows.
        value: A program's value; None where it has none.
        average: From all values to the figure.
        programs: How many the figure is to stand for; None if those are all.
        sampled: Whether it counts what happens in windows; otherwise it is exact of each program.

    Returns:
        None where no program has a value.
    """
    values = {name: found for name, runs in of.items() if (found := value(runs)) is not None}
    if not values:
        return None
    whole = average(list(values.values()))
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
        moved = [average(list({**values, name: one}.values())) for one in others if one is not None]
        # Where one window has all that is counted, nothing is known of how it varies.
        if len(moved) < intervals.LEAST or None in others:
            known = False
            continue
        windows[name] = Sample(intervals.jackknife(moved), share)
    of_programs = None
    if programs is not None and programs > len(values):
        if len(values) < intervals.LEAST:
            return Spread(whole, windows, known=False)
        each = [average([v for other, v in values.items() if other != name]) for name in values]
        of_programs = Sample(intervals.jackknife(each), len(values) / programs)
    return Spread(whole, windows, of_programs, known)


def _coverage(runs: Runs) -> float | None:
    """Share of the programs' instructions that was measured; None where it is not known to be a sample."""
    shares = [coverage(cast("Sampling | None", cast("dict[str, Any]", run).get("sampling"))) for run in runs]
    known = [share for share in shares if share is not None]
    return min(known) if len(known) == len(shares) else None


def _without(run: Run, left_out: int) -> Run:
    """A run as if a window had not been measured, in all that metrics read of it."""
    others = [window for at, window in enumerate(run["windows"]) if at != left_out]

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
    l2 = {
        "name": "L2",
        **{f"{kind}_{what}": total(f"l2_{kind}_{what}") for kind in ("data", "table") for what in _COUNTS},
    }
    changed = {
        "instructions": instructions,
        "cycles": None if run["cycles"] is None else cycles,
        "ipc": None if run["ipc"] is None or not cycles else instructions / cycles,
        "walks": walks,
        "accesses_per_walk": per_walk(accesses, run["accesses_per_walk"]),
        "walk_latency_cycles": per_walk(latency, run["walk_latency_cycles"]),
        "walk_access_cycles": per_walk(latency - queue, run["walk_access_cycles"]),
        "walk": {"accesses_by_level": levels},
        "caches": [l2] if run["caches"] else [],
        "energy": None if run["energy"] is None else {"cache_nj": total("cache_nj")},
        "dram": None if run["dram"] is None else {"reads": total("dram_lines"), "writes": 0},
    }
    return cast("Run", {**run, **changed})


_COUNTS = ("accesses", "misses")
