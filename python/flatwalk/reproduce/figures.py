"""The papers' figures redrawn: our bars next to the published ones, then each workload's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk.report import templates
from flatwalk.report.charts import Chart, Panel, Row, Segment, Tick, spaced, steps
from flatwalk.reproduce import show
from flatwalk.reproduce.claims import PAPERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatwalk.reproduce.claims import Point
    from flatwalk.reproduce.verdicts import Outcome

_OURS, _PUBLISHED = 0, 1


@dataclass(frozen=True)
class _Axis:
    """The axis of a claim's figure, from the lowest value to the highest, 0 among them."""

    low: float
    high: float

    @classmethod
    def of(cls, outcome: Outcome) -> _Axis:
        """The axis that holds all of a claim's figures, ours and the published ones."""
        known: list[float] = [0.0]
        for point, value in zip(outcome.claim.points, outcome.values, strict=True):
            known += [one for one in (value.ours, *value.by_workload.values()) if one is not None]
            known += [end for end in _ends(point) if math.isfinite(end)]
        return cls(min(known), max(known))

    @property
    def span(self) -> float:
        """Its length."""
        return (self.high - self.low) or 1.0

    def place(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        return (value - self.low) / self.span

    def ticks(self) -> list[Tick]:
        """Round values, with their places."""
        marks = [*(-step for step in reversed(steps(max(-self.low, 0.0))[1:])), *steps(self.high)]
        within = [mark for mark in marks if self.low <= mark <= self.high]
        return [Tick(self.place(mark), f"{mark:g}".replace("-", "−")) for mark in within]

    def bar(self, name: str, ends: Sequence[float], colour: int, text: str) -> Row:
        """A bar between two values."""
        left, right = (min(max(end, self.low), self.high) for end in (min(ends), max(ends)))
        segment = Segment(self.place(left), (right - left) / self.span, colour, f"{name}: {text}")
        return Row(name, [segment], [text])

    def ours(self, name: str, value: float, point: Point) -> Row:
        """A bar for a figure of ours."""
        return self.bar(name, (0.0, value), _OURS, f"{show.number(value, point)} {show.unit(point)}")

    def published(self, point: Point) -> Row:
        """A bar for what is published: from 0 to a figure, or between the ends of a range."""
        text = f"{show.published(point)} {show.unit(point)}"
        return self.bar(f"{point.label}, published", _ends(point), _PUBLISHED, text)


def _ends(point: Point) -> Sequence[float]:
    """Where the published figure's bar begins and ends; empty if nothing is published."""
    if point.published is None:
        return ()
    return point.published if isinstance(point.published, tuple) else (0.0, point.published)


def _panels(outcome: Outcome, axis: _Axis) -> list[Panel]:
    """The averages, ours next to the published ones; then, for each point, our workloads."""
    pairs = list(zip(outcome.claim.points, outcome.values, strict=True))
    averages: list[Row] = []
    for point, value in pairs:
        if value.ours is not None:
            averages.append(axis.ours(f"{point.label}, ours", value.ours, point))
        if point.published is not None:
            averages.append(axis.published(point))
    panels = [Panel("As published", averages)]
    for point, value in pairs:
        rows = [axis.ours(name, one, point) for name, one in value.by_workload.items() if one is not None]
        if len(rows) > 1:
            panels.append(Panel(f"{point.label}, ours", rows))
    return panels


def chart(outcome: Outcome) -> Chart:
    """A claim's figure: our figures next to the published ones."""
    claim, axis = outcome.claim, _Axis.of(outcome)
    return Chart(
        key=claim.id,
        title=f"{claim.id}: {claim.figure}",
        note=f"{claim.text} {PAPERS[claim.paper]}, {claim.place}.",
        columns=[""],
        panels=_panels(outcome, axis),
        ticks=spaced(axis.ticks()),
        legend=[(_OURS, "ours"), (_PUBLISHED, "published")],
        origin=axis.place(0.0),
        rows="",
    )


def _comparisons(outcome: Outcome) -> list[str]:
    """Each point's figures in words."""
    triples = zip(outcome.claim.points, outcome.values, show.ours(outcome), strict=False)
    return [
        f"{point.label}: {figure} {show.unit(point)} (published {show.published(point)})"
        for point, _, figure in triples
    ]


def html(report: show.Report) -> str:
    """All claims and their figures as one page, which reads without scripts or network."""
    outcomes = report.outcomes()
    return templates.fill(
        "report",
        "reproduction.html.j2",
        counts=report.counts(),
        scale=report.scale,
        version=report.version,
        outcomes=[(outcome, _comparisons(outcome)) for outcome in outcomes],
        papers=PAPERS,
        charts=[chart(outcome) for outcome in outcomes if outcome.claim.figure and outcome.values],
    )
