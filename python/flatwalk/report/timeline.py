"""The report's timeline: what changes over the run, window by window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from flatwalk import units
from flatwalk.answer.results import bound_for, grouped, is_bound, place_label, speedup_at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flatwalk.answer.results import Run, Sampling
    from flatwalk.answer.types import WindowResult

    Values = list[float | None]

#: With fewer windows there is no course to be seen.
LEAST = 3
#: Colours of the lines, as the bars of the speed-up chart have them.
_REFERENCE, _BEST, _BOUND = 1, 0, 3


@dataclass(frozen=True)
class Line:
    """A scheme's course, as an SVG path in a box of 1000 × 100, and in words."""

    colour: int
    path: str
    words: str


@dataclass(frozen=True)
class Strip:
    """One figure over the run."""

    title: str
    low: str
    high: str
    zero: float | None
    lines: list[Line]


@dataclass(frozen=True)
class Panel:
    """One large-page setting."""

    label: str
    strips: list[Strip]


@dataclass(frozen=True)
class Timeline:
    """All settings over the same run."""

    note: str
    start: str
    end: str
    legend: list[tuple[int, str]]
    panels: list[Panel]


@dataclass(frozen=True)
class _Course:
    run: Run
    colour: int
    values: Values


def _windows(run: Run) -> list[WindowResult]:
    return run["windows"]


def _shown(members: list[Run]) -> list[tuple[Run, int]]:
    """The runs that have a line: the first scheme, the fastest other one, and the first one's bound."""
    base = members[0]
    others = [run for run in members[1:] if len(_windows(run)) == len(_windows(base))]
    designs = [run for run in others if not is_bound(run) and run.get("speedup") is not None]
    best = max(designs, key=speedup_at_least, default=None)
    bound = bound_for(base, others)
    found = [(base, _REFERENCE)]
    found += [(run, colour) for run, colour in ((best, _BEST), (bound, _BOUND)) if run is not None]
    return found


def _over(windows: Sequence[WindowResult], over: str, under: str, factor: float = 1.0) -> Values:
    rows = cast("Sequence[dict[str, float | None]]", windows)
    return [factor * (row[over] or 0) / (row[under] or 1) if row[under] else None for row in rows]


def build(runs: list[Run], sampling: Sampling | None) -> list[Timeline]:
    """The timeline, if there are windows; a list, so that a page without one needs no question."""
    groups = [members for members in grouped(runs) if len(_windows(members[0])) >= LEAST]
    if not groups:
        return []
    every = _windows(groups[0][0])
    begin, end = every[0]["at"], every[-1]["at"] + every[-1]["instructions"]
    if sampling is not None and sampling["sampled"]:
        begin = min(sampling["first_instruction"], begin)
        end = max(sampling["first_instruction"] + sampling["instructions_represented"], end)
    shown = [(place_label(members[0], runs), members[0], _shown(members)) for members in groups]
    timed = runs[0]["cycles"] is not None

    def strips(
        measure: Callable[[Run, Run], Values], title: str, *, walking: bool, zero: float | None
    ) -> list[Strip]:
        """The same figure at every setting, to one scale."""
        courses = [
            [
                _Course(run, colour, measure(run, base))
                for run, colour in members
                if not (walking and is_bound(run)) and not (zero is not None and run is base)
            ]
            for _, base, members in shown
        ]
        values = [
            value for found in courses for course in found for value in course.values if value is not None
        ]
        low, high = min(values, default=0.0), max(values, default=1.0)
        low = min(low, zero) if zero is not None else 0.0
        high = max(high, zero if zero is not None else 0.0)
        span = (high - low) or 1.0

        def text(value: float) -> str:
            return units.signed_percent(value - 1) if zero is not None else f"{value:.3g}"

        def line(course: _Course, windows: list[WindowResult]) -> Line:
            path, pen = [], "M"
            for window, value in zip(windows, course.values, strict=True):
                if value is None:
                    pen = "M"
                    continue
                middle = window["at"] + window["instructions"] / 2
                across = 1000 * (middle - begin) / ((end - begin) or 1)
                path.append(f"{pen}{across:.1f} {96 - 92 * (value - low) / span:.1f}")
                pen = "L"
            known = [value for value in course.values if value is not None]
            words = f"{course.run['scheme']} from {text(min(known))} to {text(max(known))}" if known else ""
            return Line(course.colour, " ".join(path), words)

        return [
            Strip(
                title,
                text(low),
                text(high),
                None if zero is None else round(96 - 92 * (zero - low) / span, 1),
                [line(course, _windows(course.run)) for course in found],
            )
            for found in courses
        ]

    figures = [
        strips(
            lambda run, _base: _over(_windows(run), "walks", "instructions", 1000),
            "walks per 1000 instructions",
            walking=True,
            zero=None,
        )
    ]
    if timed:
        figures.append(
            strips(
                lambda run, _base: _over(_windows(run), "instructions", "cycles"),
                "instructions per cycle",
                walking=False,
                zero=None,
            )
        )
        figures.append(strips(_speeds, "speed-up", walking=False, zero=1.0))
    legend = {colour: run["scheme"] for _, _, members in reversed(shown) for run, colour in members}
    several = {
        colour: {run["scheme"] for _, _, members in shown for run, other in members if other == colour}
        for colour in legend
    }
    panels = [
        Panel(label, [strips_[number] for strips_ in figures if strips_[number].lines])
        for number, (label, _, _) in enumerate(shown)
    ]
    return [
        Timeline(
            f"What each of {len(every)} windows shows, in the order of the program. "
            "A course that changes has phases: an average over them hides what each of them gains.",
            f"instruction {units.count(begin)}",
            units.count(end),
            [
                (colour, name if len(several[colour]) == 1 else "the fastest scheme")
                for colour, name in sorted(legend.items(), key=lambda item: item[0] != _REFERENCE)
            ],
            panels,
        )
    ]


def _speeds(run: Run, base: Run) -> Values:
    """The speed-up in each window."""
    mine, others = (_over(_windows(one), "instructions", "cycles") for one in (run, base))
    return [None if new is None or not old else new / old for new, old in zip(mine, others, strict=True)]
