"""The papers' figures redrawn: our bars next to the published ones, then each workload's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flatwalk import templates
from flatwalk.report.charts import Chart, Panel, Row, Segment, Tick, spaced, steps
from flatwalk.reproduce import show
from flatwalk.reproduce.experiments import PAPERS

if TYPE_CHECKING:
    from flatwalk.reproduce.experiments import Point
    from flatwalk.reproduce.verdicts import Outcome

_OURS, _PUBLISHED = 0, 1


def _chart(outcome: Outcome) -> Chart:
    claim = outcome.claim
    pairs = list(zip(claim.points, outcome.values, strict=True))
    known: list[float] = [0.0]
    for point, value in pairs:
        known += [one for one in (value.ours, *value.by_workload.values()) if one is not None]
        if point.published is not None:
            ends = point.published if isinstance(point.published, tuple) else [point.published]
            known += [end for end in ends if math.isfinite(end)]
    low, high = min(known), max(known)
    span = (high - low) or 1.0

    def bar(name: str, ends: tuple[float, float], colour: int, text: str) -> Row:
        left, right = (min(max(end, low), high) for end in (min(ends), max(ends)))
        segment = Segment((left - low) / span, (right - left) / span, colour, f"{name}: {text}")
        return Row(name, [segment], [text])

    def single(name: str, value: float, colour: int, point: Point) -> Row:
        text = f"{show.number(value, point)} {show.unit(point)}"
        return bar(name, (0.0, value), colour, text)

    def range_of(point: Point) -> Row | None:
        if point.published is None:
            return None
        ends = point.published if isinstance(point.published, tuple) else (0.0, point.published)
        return bar(
            f"{point.label}, published", ends, _PUBLISHED, f"{show.published(point)} {show.unit(point)}"
        )

    averages: list[Row] = []
    for point, value in pairs:
        if value.ours is not None:
            averages.append(single(f"{point.label}, ours", value.ours, _OURS, point))
        if (row := range_of(point)) is not None:
            averages.append(row)
    panels = [Panel("As published", averages)]
    for point, value in pairs:
        rows = [single(name, one, _OURS, point) for name, one in value.by_workload.items() if one is not None]
        if len(rows) > 1:
            panels.append(Panel(f"{point.label}, ours", rows))
    marks = [*(-step for step in reversed(steps(max(-low, 0.0))[1:])), *steps(high)]
    ticks = [
        Tick((mark - low) / span, f"{mark:g}".replace("-", "−")) for mark in marks if low <= mark <= high
    ]
    return Chart(
        key=claim.id,
        title=f"{claim.id}: {claim.figure}",
        note=f"{claim.text} {PAPERS[claim.paper]}, {claim.place}.",
        columns=[""],
        panels=panels,
        ticks=spaced(ticks),
        legend=[(_OURS, "ours"), (_PUBLISHED, "published")],
        origin=-low / span,
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
    """All claims and their figures as one page, without scripts or network."""
    outcomes = report.outcomes()
    return templates.fill(
        "report",
        "reproduction.html.j2",
        counts=report.counts(),
        scale=report.scale,
        version=report.version,
        outcomes=[(outcome, _comparisons(outcome)) for outcome in outcomes],
        papers=PAPERS,
        charts=[_chart(outcome) for outcome in outcomes if outcome.claim.figure and outcome.values],
    )
