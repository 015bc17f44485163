"""Stored runs at the same place of a chart: one point."""

from __future__ import annotations

from typing import Any


def mean(runs: list[dict[str, Any]], y: str) -> float:
    """The mean of a column."""
    return float(sum(run[y] for run in runs)) / len(runs)


def spread(runs: list[dict[str, Any]], y: str) -> tuple[float, float | None, float | None]:
    """The mean of a column, and from where to where its whisker reaches.

    It holds all of the runs' 95 % intervals or, if they have none, all of their values, and the mean, which
    may be rounded; a single value has no whisker.
    """
    middle = mean(runs, y)
    lows, highs = (
        [one for run in runs if (one := run.get(f"{y}_{end}")) is not None] for end in ("low", "high")
    )
    if len(lows) == len(highs) == len(runs):
        return middle, min(middle, *lows), max(middle, *highs)
    if len(runs) > 1:
        values = [run[y] for run in runs]
        return middle, min(middle, *values), max(middle, *values)
    return middle, None, None
