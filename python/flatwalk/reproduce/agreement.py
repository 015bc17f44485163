"""Two scales against each other: which figures agree within their intervals, which verdicts do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk.reproduce import show
from flatwalk.reproduce.metrics import METRICS
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatwalk.reproduce.claims import Point, Value
    from flatwalk.reproduce.verdicts import Outcome


@dataclass(frozen=True)
class Figure:
    """A figure of a claim at two scales."""

    outcome: Outcome
    other: Outcome
    #: Which of the claim's points.
    index: int

    @property
    def point(self) -> Point:
        """What it is a figure of."""
        return self.outcome.claim.points[self.index]

    def agrees(self) -> bool | None:
        """Whether the 95 % interval of their difference holds 0; None where an interval is not known.

        Programs that are not run are missing from both, so only windows count. Figures are rounded as shown.
        """
        first, second = self.outcome.values[self.index], self.other.values[self.index]
        halves = _half_by_windows(first), _half_by_windows(second)
        if first.ours is None or second.ours is None or None in halves:
            return None
        rounding = 10.0 ** -METRICS[self.point.metric].digits
        return abs(first.ours - second.ours) <= math.hypot(*filter(None, halves)) + rounding


def _half_by_windows(value: Value) -> float | None:
    if value.half is None:
        return None
    return math.sqrt(max(value.half**2 - (value.missing or 0.0) ** 2, 0.0))


def figures(report: show.Report, other: show.Report) -> list[Figure]:
    """All figures that both have."""
    there = {outcome.claim.id: outcome for outcome in other.outcomes()}
    return [
        Figure(outcome, there[outcome.claim.id], index)
        for outcome in report.outcomes()
        if outcome.claim.id in there
        for index in range(min(len(outcome.values), len(there[outcome.claim.id].values)))
    ]


def summary(report: show.Report, other: show.Report) -> str:
    """How many figures agree, and how many claims are judged alike, in words."""
    found = figures(report, other)
    agree = [figure.agrees() for figure in found]
    judged = {figure.outcome.claim.id: figure.outcome.verdict is figure.other.verdict for figure in found}
    unknown = f" Of {agree.count(None)} more no interval is known." if None in agree else ""
    return (
        f"Of {len(agree) - agree.count(None)} figures at the scales {report.scale} and {other.scale}, "
        f"{agree.count(True)} agree within their intervals.{unknown} "
        f"Of {len(judged)} claims, {sum(judged.values())} have the same verdict."
    )


def markdown(report: show.Report, other: show.Report) -> list[str]:
    """A section of the document: what does not agree, and what is judged otherwise."""
    lines = [f"## Against the scale {other.scale}", "", summary(report, other), ""]
    found = figures(report, other)
    rows = [
        [
            figure.outcome.claim.id,
            figure.point.label,
            *(f"{show.ours(one)[figure.index]}{show.unit_of(figure.point)}" for one in _both(figure)),
        ]
        for figure in found
        if figure.agrees() is False
    ]
    if rows:
        lines += _lines(["claim", "figure", report.scale, other.scale], rows)
    judged = {figure.outcome.claim.id: [str(one.verdict) for one in _both(figure)] for figure in found}
    rows = [[name, *verdicts] for name, verdicts in judged.items() if len(set(verdicts)) > 1]
    if rows:
        lines += _lines(["claim", f"verdict at {report.scale}", f"verdict at {other.scale}"], rows)
    return lines


def _both(figure: Figure) -> tuple[Outcome, Outcome]:
    return figure.outcome, figure.other


def _lines(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [*output.markdown(heads, len(heads), rows).splitlines(), ""]
