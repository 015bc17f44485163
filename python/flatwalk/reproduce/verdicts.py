"""From runs to verdicts: our figure for each point of a claim, and whether the claim holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from flatwalk.reproduce.metrics import AVERAGES, METRICS
from flatwalk.reproduce.planning import Selection, jobs_of, missing_of, selections

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flatwalk.reproduce.experiments import Claim, Experiment, Point
    from flatwalk.results import Run

    Lookup = Callable[[Selection], Run]


class Verdict(StrEnum):
    """The outcome of a claim."""

    REPRODUCED = "reproduced"
    EXPLAINED = "explained"
    NOT = "not reproduced"
    CANNOT = "cannot yet be run"


@dataclass(frozen=True)
class Value:
    """Our figure for a point."""

    ours: float | None
    #: By workload; None where a workload has no such figure (no walks, for example).
    by_workload: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A claim with our figures."""

    claim: Claim
    values: list[Value]
    verdict: Verdict
    #: What failed, or is missing; then why, if that is known.
    why: str


def _average(point: Point, per_workload: Mapping[str, float | None]) -> float | None:
    known = [value for value in per_workload.values() if value is not None]
    return METRICS[point.metric].show(AVERAGES[point.average](known)) if known else None


def _values(
    experiment: Experiment, scale: str, point: Point, of: dict[str, Any], run_of: Lookup
) -> dict[str, float | None]:
    """The metric of each workload, before it is averaged and formatted."""

    def runs(other: dict[str, Any] | None) -> list[Run]:
        return [run_of(one) for one in selections(experiment, scale, {**of, **(other or {})})]

    names = [one.workload for one in selections(experiment, scale, of)]
    metric = METRICS[point.metric]
    rows = zip(names, runs(None), runs(point.against), runs(point.bound), strict=True)
    return {name: metric.of(run, base, bound) for name, run, base, bound in rows}


def value_of(experiment: Experiment, scale: str, point: Point, run_of: Lookup) -> Value:
    """Our figure for a point."""
    per_workload = _values(experiment, scale, point, point.of, run_of)
    ours = _average(point, per_workload)
    show = METRICS[point.metric].show
    shown = {name: None if value is None else show(value) for name, value in per_workload.items()}
    if point.minus is not None:
        less = _values(experiment, scale, point, {**point.of, **point.minus}, run_of)
        average = _average(point, less)
        ours = None if ours is None or average is None else ours - average
        pairs = zip(shown.items(), less.values(), strict=True)
        shown = {
            name: None if value is None or other is None else value - show(other)
            for (name, value), other in pairs
        }
    return Value(ours, shown)


def _middle(published: float | tuple[float, float]) -> float:
    return published if isinstance(published, float) else sum(published) / 2


def _value_fails(point: Point, ours: float) -> bool:
    if point.published is None or point.tolerance is None:
        return False
    ends = point.published if isinstance(point.published, tuple) else (point.published, point.published)
    # A figure that is shown as within the tolerance is within it.
    slack = point.tolerance + 1e-9
    return not ends[0] - slack <= round(ours, METRICS[point.metric].digits) <= ends[1] + slack


def failures(claim: Claim, ours: list[float]) -> list[str]:
    """The checks of a claim that our figures do not pass, in words."""
    points = [(point, value) for point, value in zip(claim.points, ours, strict=True)]
    stated = [
        (point, value, _middle(point.published)) for point, value in points if point.published is not None
    ]
    found = []
    if "value" in claim.checks:
        found += [
            f"{point.label} is outside the tolerance" for point, value in points if _value_fails(point, value)
        ]
    if "sign" in claim.checks:
        found += [
            f"{point.label} has the other sign"
            for point, value, published in stated
            if value * published <= 0
        ]
    if "order" in claim.checks:
        ranked = [item for item in stated if not isinstance(item[0].published, tuple)]
        by_paper = [point.label for point, _, _ in sorted(ranked, key=lambda item: item[2])]
        by_us = [point.label for point, _, _ in sorted(ranked, key=lambda item: item[1])]
        if by_paper != by_us:
            found.append(f"the order is {' < '.join(by_us)}, not {' < '.join(by_paper)}")
    if "ratio" in claim.checks:
        (_, first, first_published), *others = stated
        for point, value, published in others:
            ratio, expected = value / first, published / first_published
            if abs(ratio / expected - 1) > claim.ratio_tolerance:
                found.append(
                    f"{point.label} is {ratio:.2f} of {claim.points[0].label}, published {expected:.2f}"
                )
    return found


def judge(experiment: Experiment, scale: str, claim: Claim, results: Mapping[str, Run]) -> Outcome:
    """Our figures for a claim, from the results of its jobs, and the verdict."""
    jobs, missing = jobs_of(experiment, scale, claim), missing_of(experiment, claim)

    def run_of(one: Selection) -> Run:
        return results[jobs[one].key]

    values = [
        Value(None) if point.label in missing else value_of(experiment, scale, point, run_of)
        for point in claim.points
    ]
    if missing:
        return Outcome(claim, values, Verdict.CANNOT, " ".join(sorted(set(missing.values()))))
    return conclude(claim, values, scale)


def conclude(claim: Claim, values: list[Value], scale: str) -> Outcome:
    """The verdict on our figures for a claim."""
    ours = [value.ours for value in values]
    known = [value for value in ours if value is not None]
    if len(known) < len(ours):
        pairs = zip(claim.points, ours, strict=True)
        failed = [f"{point.label} has no figure" for point, value in pairs if value is None]
    else:
        failed = failures(claim, known)
    if not failed:
        return Outcome(claim, values, Verdict.REPRODUCED, "")
    words = "; ".join(failed)
    words = f"{words[0].upper()}{words[1:]}."
    why = claim.why.get(scale)
    if why is None:
        return Outcome(claim, values, Verdict.NOT, words)
    return Outcome(claim, values, Verdict.EXPLAINED, f"{words} {why}")
