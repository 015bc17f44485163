"""The report of stored runs: curves and heat maps over whatever varies, and every run in a table."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatwalk import units
from flatwalk.answer.results import grouped_by
from flatwalk.lab import points, store
from flatwalk.report import templates
from flatwalk.report.charts import COLOURS, Tick, spaced, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    Rows = list[dict[str, Any]]
    Spread = tuple[float, float | None, float | None]

#: What runs may differ in, but for the keys of machines; those of the second line are never an axis.
_CONDITIONS = ("large_pages", "fragmentation", "host_large_pages", "cores")
_NAMES = (
    *("source", "source_hash", "machine", "machine_hash", "scheme_hash"),
    *("thp", "guest_frames", "mode", "lengths", "version", "engine"),
)
#: Hashes; they are shown in short, and only where they vary.
_HASHES = ("source_hash", "machine_hash", "scheme_hash", "engine")
#: Names that mostly follow from others, and are only shown where they do not.
_FOLLOWING = (*_HASHES, "lengths")
#: Panels of a chart, at most; what more there would be is said.
MOST_PANELS = 12


@dataclass(frozen=True)
class Metric:
    """A figure of a run."""

    key: str
    title: str
    text: Callable[[float], str]


METRICS = (
    Metric("speedup", "speed-up", lambda value: units.signed_percent(value - 1)),
    Metric("ipc", "IPC", "{:.3f}".format),
    Metric("walks_per_1000", "walks per 1000 instructions", "{:.3g}".format),
    Metric("accesses_per_walk", "accesses per walk", "{:.2f}".format),
    Metric("walk_latency_cycles", "cycles per walk", "{:.1f}".format),
    Metric("page_table_bytes", "page table", units.size),
)


@dataclass(frozen=True)
class Point:
    """Some runs at one place; a whisker, if any, from its low to its high end, all in an SVG's units."""

    x: float
    y: float
    whisker: tuple[float, float] | None
    words: str


@dataclass(frozen=True)
class Curve:
    """A scheme's points."""

    scheme: str
    colour: int
    path: str
    points: list[Point]


@dataclass(frozen=True)
class Plot:
    """Curves over one axis."""

    label: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    curves: list[Curve]


@dataclass(frozen=True)
class Cell:
    """A value of a heat map, and its shade from 0 to 5; None is missing."""

    text: str
    interval: str
    shade: int


@dataclass(frozen=True)
class Map:
    """A heat map: columns are the places on one axis, rows those on another."""

    label: str
    scheme: str
    columns: list[str]
    rows: list[tuple[str, list[Cell | None]]]


@dataclass(frozen=True)
class Chart:
    """Curves of a figure over one axis, or heat maps over two."""

    key: str
    metric: str
    title: str
    note: str
    legend: list[tuple[int, str]]
    plots: list[Plot]
    maps: list[Map]


def render(table: pa.Table, name: str, version: str) -> str:
    """The report of stored runs as HTML."""
    changed = store.changed_keys(table)
    conditions = ["scheme", *_NAMES, *_CONDITIONS, *changed, "seed"]
    figures = [metric.key for metric in METRICS] + ["speedup_low", "speedup_high"]
    rows = table.select([*conditions, *figures]).to_pylist()
    varying = [key for key in conditions if _varies(rows, key)]
    varied = [key for key in varying if key not in _FOLLOWING or _tells(rows, key)]
    metrics = [metric for metric in METRICS if any(row[metric.key] is not None for row in rows)]
    axes = [
        key
        for key in (*changed, *_CONDITIONS)
        if key in varied and all(_is_number(row[key]) or row[key] is None for row in rows)
    ]
    drawn = _Sweep(rows, varied, axes, list(dict.fromkeys(row["scheme"] for row in rows)))
    charts = [chart for metric in metrics for chart in drawn.charts(metric)]
    return templates.fill(
        "report",
        "sweep.html.j2",
        name=name,
        count=units.several(len(rows), "run"),
        varied=[(key, ", ".join(_value(key, value) for value in _values(rows, key))) for key in varied],
        same=[(key, _value(key, rows[0][key])) for key in conditions if key not in (*varying, *_HASHES)],
        schemes=drawn.schemes,
        metrics=[(metric.key, metric.title) for metric in metrics if charts] + [("runs", "All runs")],
        charts=charts,
        headers=[*varied, *(metric.title for metric in metrics)],
        rows=[{"scheme": row["scheme"], "cells": _cells(row, varied, metrics)} for row in rows],
        version=version,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _varies(rows: Rows, key: str) -> bool:
    return len({repr(row[key]) for row in rows}) > 1


def _tells(rows: Rows, key: str) -> bool:
    """Whether a name tells runs apart that the names before it do not."""
    names = ("scheme", *_NAMES)
    number = names.index(key)
    before, after = (
        {tuple(row[name] for name in names[:end]) for row in rows} for end in (number, number + 1)
    )
    return len(before) < len(after)


def _values(rows: Rows, key: str) -> list[Any]:
    """What a column has, in order; what is missing is last."""
    found = {row[key] for row in rows}
    known = found - {None}
    return [*(sorted(known) if all(map(_is_number, known)) else sorted(known, key=str)), *(found - known)]


def _value(key: str, value: object) -> str:
    if value is None:
        return "–"
    if key.endswith("_bytes") and isinstance(value, int):
        return units.size(value)
    if key in {"large_pages", "host_large_pages"}:
        return f"{value} %"
    if key in _HASHES:
        return str(value).removeprefix("partial-")[:8]
    return str(value)


def _cells(row: dict[str, Any], varied: Sequence[str], metrics: Sequence[Metric]) -> list[str]:
    figures = ["–" if row[metric.key] is None else metric.text(row[metric.key]) for metric in metrics]
    return [*(_value(key, row[key]) for key in varied), *figures]


@dataclass(frozen=True)
class _Note:
    """Says what a point, or a cell, is a mean of, and what is not drawn."""

    what: str
    metric: Metric
    groups: list[Rows]
    left_out: int

    def text(self, varied: Sequence[str]) -> str:
        over = [key for key in varied if any(_varies(members, key) for members in self.groups)]
        ends = [f"{self.metric.key}_{end}" for end in ("low", "high")]
        # As the whiskers are drawn: a group has intervals only if all of its runs have.
        known = {all(row.get(end) is not None for row in members for end in ends) for members in self.groups}
        counts = {len(members) for members in self.groups}
        if over or counts > {1}:
            what = f"{self.what} is a mean over {', '.join(over) or 'runs that are alike in what is known'}"
            bounds = "95 % intervals" if True in known else "values"
            bounds += ", or of some the values" if len(known) > 1 else ""
            told = f"{what}; its interval holds all of the runs' {bounds}."
            if len(counts) > 1:
                told += f" {self.what[2:].capitalize()}s are means of different numbers of runs."
        else:
            told = f"{self.what} is one run{'' if False in known else '; its interval is that of 95 %'}."
        more = f" {self.left_out} more panels are not drawn: choose runs with --where."
        return told + (more if self.left_out else "")


@dataclass(frozen=True)
class _Sweep:
    """Stored runs, and what varies among them."""

    rows: Rows
    varied: list[str]
    axes: list[str]
    schemes: list[str]

    def charts(self, metric: Metric) -> list[Chart]:
        """A figure's curves over each axis, and its maps over each pair of axes."""
        found = [self._curves(metric, axis) for axis in self.axes]
        found += [self._maps(metric, pair) for pair in itertools.combinations(self.axes, 2)]
        return [chart for chart in found if chart.plots or chart.maps]

    def _rows(self, metric: Metric, *axes: str) -> Rows:
        return [row for row in self.rows if all(row[key] is not None for key in (metric.key, *axes))]

    def _beside(self, *axes: str) -> list[str]:
        """What has a panel for each of its values: names, and conditions that are not an axis here."""
        return [key for key in self.varied if key in (*_NAMES, *_CONDITIONS) and key not in axes]

    def _label(self, members: Rows, keys: Sequence[str]) -> str:
        return ", ".join(f"{key} {_value(key, members[0][key])}" for key in keys)

    def _curves(self, metric: Metric, axis: str) -> Chart:
        rows, beside = self._rows(metric, axis), self._beside(axis)
        panels = grouped_by(rows, lambda row: tuple(row[key] for key in beside))
        drawn = panels[:MOST_PANELS] if _varies(rows, axis) else []
        groups = grouped_by(rows, lambda row: (row["scheme"], *(row[key] for key in [axis, *beside])))
        return Chart(
            f"{metric.key}-{axis}",
            metric.key,
            f"{metric.title} over {axis}",
            _Note("A point", metric, groups, len(panels) - len(drawn)).text(self.varied),
            [(number % COLOURS, scheme) for number, scheme in enumerate(self.schemes)],
            [self._plot(members, metric, axis, self._label(members, beside)) for members in drawn],
            [],
        )

    def _plot(self, rows: Rows, metric: Metric, axis: str, label: str) -> Plot:
        """Curves in a box of 100 × 100, with the origin above on the left."""
        places = _values(self._rows(metric, axis), axis)
        logarithmic = places[0] > 0 and places[-1] >= 8 * places[0]
        first, last = (math.log2(end) if logarithmic else end for end in (places[0], places[-1]))

        def across(place: float) -> float:
            return 100 * ((math.log2(place) if logarithmic else place) - first) / ((last - first) or 1)

        groups = grouped_by(rows, lambda row: (row["scheme"], row[axis]))
        found = {(one[0]["scheme"], one[0][axis]): points.spread(one, metric.key) for one in groups}
        origin = 1.0 if metric.key == "speedup" else 0.0
        ends = [origin, *(end for spread in found.values() for end in spread if end is not None)]
        low, high = min(ends), max(ends)

        def down(value: float) -> float:
            return 96 - 92 * (value - low) / ((high - low) or 1)

        def point(scheme: str, place: float, spread: Spread) -> Point:
            value, least, most = spread
            whisker = None if least is None or most is None else (down(least), down(most))
            words = f"{scheme} at {_value(axis, place)}: {metric.text(value)}{_interval(metric, spread)}"
            return Point(across(place), down(value), whisker, words)

        curves = []
        for number, scheme in enumerate(self.schemes):
            own = sorted((place, spread) for (name, place), spread in found.items() if name == scheme)
            made = [point(scheme, place, spread) for place, spread in own]
            path = " ".join(f"{'L' if i else 'M'}{one.x:.2f} {one.y:.2f}" for i, one in enumerate(made))
            curves.append(Curve(scheme, number % COLOURS, path, made))
        marks = {origin + step for step in steps(high - origin)} | {
            origin - step for step in steps(origin - low)
        }
        return Plot(
            label,
            spaced([Tick(across(place) / 100, _value(axis, place)) for place in places]),
            [Tick(down(mark) / 100, metric.text(mark)) for mark in sorted(marks) if low <= mark <= high],
            [curve for curve in curves if curve.points],
        )

    def _maps(self, metric: Metric, axes: tuple[str, str]) -> Chart:
        x, y = axes
        rows, beside = self._rows(metric, *axes), self._beside(*axes)
        panels = [
            members
            for members in grouped_by(rows, lambda row: (row["scheme"], *(row[key] for key in beside)))
            # A baseline is 0 % everywhere.
            if not (metric.key == "speedup" and all(row[metric.key] == 1 for row in members))
        ]
        drawn = panels[:MOST_PANELS] if _varies(rows, x) and _varies(rows, y) else []
        groups = [cell for members in panels for cell in grouped_by(members, lambda row: (row[x], row[y]))]
        return Chart(
            f"{metric.key}-{x}-{y}",
            metric.key,
            f"{metric.title} over {x} and {y}",
            _Note("A cell", metric, groups, len(panels) - len(drawn)).text(self.varied),
            [],
            [],
            [self._map(members, metric, axes, self._label(members, beside)) for members in drawn],
        )

    def _map(self, rows: Rows, metric: Metric, axes: tuple[str, str], label: str) -> Map:
        x, y = axes
        groups = grouped_by(rows, lambda row: (row[x], row[y]))
        found = {(one[0][x], one[0][y]): points.spread(one, metric.key) for one in groups}
        low, high = (end(value for value, *_ in found.values()) for end in (min, max))

        def cell(spread: Spread | None) -> Cell | None:
            if spread is None:
                return None
            shade = round(5 * (spread[0] - low) / ((high - low) or 1))
            return Cell(metric.text(spread[0]), _interval(metric, spread).strip(" ()"), shade)

        columns, lines = _values(rows, x), _values(rows, y)
        return Map(
            ", ".join(filter(None, (rows[0]["scheme"], label))),
            rows[0]["scheme"],
            [_value(x, place) for place in columns],
            [(_value(y, line), [cell(found.get((place, line))) for place in columns]) for line in lines],
        )


def _interval(metric: Metric, spread: Spread) -> str:
    """` (+1.0 % to +2.0 %)`, or nothing."""
    _, low, high = spread
    return (
        "" if low is None or high is None or low == high else f" ({metric.text(low)} to {metric.text(high)})"
    )
