"""What `vm bench` measured, as charts: in a page of its own, and drawn next to a document."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from flatwalk import units
from flatwalk.errors import FlatwalkError
from flatwalk.host import results
from flatwalk.report import charts, templates
from flatwalk.report.charts import Chart, Panel, Tick
from flatwalk.terminal import output
from flatwalk.vm import bench, hosted
from flatwalk.vm.counting import CAUSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from flatwalk.host.results import Result
    from flatwalk.vm import kernel_walks, nested_bench, timed

_Row = TypeVar("_Row", "bench.Row", "timed.Row")

#: Of bars whose panels are each drawn to a scale of its own.
_SHARES = [Tick(step / 2, f"{50 * step} %") for step in range(3)]
_OWN_SCALE = "The longest bar of each panel is as wide as the panel."


@dataclass(frozen=True)
class _Bar:
    """A bar: its name, its parts with what each is, and figures next to it."""

    name: str
    parts: list[tuple[str, float]]
    figures: list[str]

    @property
    def length(self) -> float:
        return sum(value for _, value in self.parts)


def _panel(label: str, bars: Sequence[_Bar], top: float | None = None) -> Panel:
    """Bars against `top`, or else against the longest."""
    top = top or max((bar.length for bar in bars), default=0.0)
    rows = []
    for bar in bars:
        parts = [
            (value, colour, f"{bar.name}: {title}".removesuffix(": "))
            for colour, (title, value) in enumerate(bar.parts)
        ]
        rows.append(charts.Row(bar.name, charts.stack(parts, top), bar.figures))
    return Panel(label, rows)


def _grouped(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    """Rows by program and, where there are several, by levels of page tables."""
    every = list(rows)
    several = len({row.levels for row in every}) > 1
    found: dict[str, list[_Row]] = {}
    for row in every:
        found.setdefault(row.program + (f", {row.levels} levels" if several else ""), []).append(row)
    return found


def counted(rows: Sequence[bench.Row]) -> list[Chart]:
    """Of programs whose instructions and walks were counted (the FPT paper's figure 3, and more)."""
    groups = _grouped(rows)

    def instructions(row: bench.Row, phase: int, base: bench.Row | None) -> _Bar:
        spent = row.kernel_instructions[phase]
        off = sum(base.kernel_instructions[phase].values()) if base else 0
        ratio = f"{sum(spent.values()) / off:.3f}" if off else "–"
        parts = [(name, float(spent[cause])) for cause, name in CAUSES.items()]
        return _Bar(row.mode, parts, [f"{sum(spent.values()) / 1000:.0f}", ratio])

    def entries(row: bench.Row) -> _Bar:
        return _Bar(row.mode, [("", row.entries_per_walk)], [f"{row.entries_per_walk:.3f}"])

    def tables(row: bench.Row) -> _Bar:
        parts = [("flat", float(row.flat_bytes)), ("others", float(row.table_bytes - row.flat_bytes))]
        return _Bar(row.mode, parts, [units.size(row.table_bytes), units.size(row.flat_bytes)])

    top = max(row.entries_per_walk for row in rows)
    return [
        Chart(
            "kernel",
            "Kernel instructions",
            f"By what the kernel was entered for. A repeated string instruction is one. {_OWN_SCALE}",
            ["thousands", "of off"],
            [
                _panel(f"{label}, {name}", [instructions(row, phase, _off(members)) for row in members])
                for label, members in groups.items()
                for phase, name in bench.PHASES.items()
            ],
            _SHARES,
            legend=list(enumerate(CAUSES.values())),
            rows="mode",
        ),
        Chart(
            "entries",
            "Entries per walk",
            "What a page walk of the program reads while it runs, without page-walk caches.",
            ["entries"],
            [_panel(label, [*map(entries, members)], top) for label, members in groups.items()],
            [Tick(step / top, f"{step:g}") for step in charts.steps(top)],
            rows="mode",
        ),
        Chart(
            "tables",
            "Page tables",
            f"Bytes of the program's page tables at the end. {_OWN_SCALE}",
            ["all", "of them flat"],
            [_panel(label, [*map(tables, members)]) for label, members in groups.items()],
            _SHARES,
            legend=[(0, "flat blocks"), (1, "tables of 4 KiB")],
            rows="mode",
        ),
    ]


def _off(members: Iterable[_Row]) -> _Row | None:
    return next((row for row in members if row.mode == "off"), None)


def clocked(rows: Sequence[timed.Row]) -> list[Chart]:
    """Of programs that were recorded and simulated (the FPT paper's figures 4 to 7)."""
    groups = _grouped(rows)

    def plain(row: timed.Row, value: float, digits: int) -> _Bar:
        return _Bar(row.mode, [("", value)], [f"{value:.{digits}f}"])

    def change(row: timed.Row, base: timed.Row) -> charts.Change:
        return charts.Change(row.mode, base.cycles / row.cycles - 1)

    def chart(key: str, title: str, note: str, column: str, bar: Callable[[timed.Row], _Bar]) -> Chart:
        panels = [_panel(label, [*map(bar, members)]) for label, members in groups.items()]
        return Chart(key, title, f"{note} {_OWN_SCALE}", [column], panels, _SHARES, rows="mode")

    speed = charts.changes(
        "speed",
        "End to end",
        "Speed against off, the kernel's part included. Right of the line is faster.",
        ["speed-up"],
        [
            (label, [change(row, base) for row in members if row is not base])
            for label, members in groups.items()
            if (base := _off(members)) is not None
        ],
    )
    return [
        chart(
            "walks",
            "Walks",
            "Page walks for 1000 instructions of the program, as the model makes them.",
            "walks",
            lambda row: plain(row, row.walks_per_1000, 2),
        ),
        chart(
            "latency",
            "Latency of a walk",
            "Cycles from the L2 TLB's miss to the translation, on average.",
            "cycles",
            lambda row: plain(row, row.walk_latency_cycles, 1),
        ),
        chart(
            "ipc",
            "Instructions per cycle",
            "Of the program.",
            "IPC",
            lambda row: plain(row, row.ipc, 3),
        ),
        dataclasses.replace(speed, rows="mode"),
    ]


def levels(made: Sequence[Result]) -> list[Chart]:
    """Of the host's benches, with four and with five levels of page tables."""

    def bar(result: Result, variant: str) -> _Bar:
        parts = [(name, hosted.mean(result, variant, key)) for key, name in kinds.items()]
        whole = sum(value for _, value in parts)
        return _Bar(f"{result['host']['page_table_levels']} levels", parts, [f"{whole:.2f}"])

    # The timer's come by the clock.
    kinds = {"user": "program", **{key: name for key, name in CAUSES.items() if key != "timer"}}
    panels: dict[tuple[str, str], list[_Bar]] = {}
    for result in made:
        for name in results.values(result):
            label = f"{result['titles'][name]}, per {hosted.BENCHES[result['bench']].unit}"
            panels.setdefault((result["bench"], label), []).append(bar(result, name))
    return [
        Chart(
            "levels",
            "Four levels against five",
            f"Instructions for each unit of work, all but the timer's. {_OWN_SCALE}",
            ["instructions"],
            [_panel(f"{name}: {label}", bars) for (name, label), bars in panels.items()],
            _SHARES,
            legend=list(enumerate(kinds.values())),
            rows="page tables",
        )
    ]


def nested(rows: Sequence[nested_bench.Row]) -> list[Chart]:
    """Of guests in guests (ASPLOS 2022, section 4): what cold walks read, by the host's mode."""
    panels: dict[str, list[_Bar]] = {}
    for row in rows:
        parts = [("guest", row.guest_entries), ("nested", row.nested_entries)]
        bar = _Bar(row.host_mode, parts, [f"{row.guest_entries + row.nested_entries:.3f}"])
        panels.setdefault(f"guest {row.mode}", []).append(bar)
    top = max(bar.length for bars in panels.values() for bar in bars)
    return [
        Chart(
            "entries",
            "Entries per cold walk",
            "What a page walk of the inner guest's program reads if nothing is known of its way.",
            ["entries"],
            [_panel(label, bars, top) for label, bars in panels.items()],
            [Tick(step / top, f"{step:g}") for step in charts.steps(top)],
            legend=[(0, "of the guest's tables"), (1, "of nested tables")],
            rows="host",
        )
    ]


def kernel(rows: Sequence[kernel_walks.Row]) -> list[Chart]:
    """Of programs and the kernel that serves them: whose addresses are walked for."""

    def bar(row: kernel_walks.Row) -> _Bar:
        whose = {"programs": row.programs, "kernel": row.kernel}
        walks = [(name, 1000 * pages.walks / row.instructions) for name, pages in whose.items()]
        figures = [f"{count:.2f}" for _, count in walks]
        return _Bar(f"{row.levels} levels", walks, [*figures, f"{100 * row.saved:.2f} %"])

    panels: dict[str, list[_Bar]] = {}
    for row in rows:
        panels.setdefault(row.program, []).append(bar(row))
    return [
        Chart(
            "walks",
            "Walks of programs' and of the kernel's addresses",
            "Per 1000 instructions of both, and the share of all entries read that is saved if levels 4 and "
            f"3 of the kernel's half are one table. {_OWN_SCALE}",
            ["programs", "kernel", "saved"],
            [_panel(label, bars) for label, bars in panels.items()],
            _SHARES,
            legend=[(0, "of programs"), (1, "of the kernel")],
            rows="levels",
        )
    ]


def draw(document: Path, kind: str, made: Sequence[Chart]) -> list[Path]:
    """Draws charts that a document shows, into a directory of its own name next to it.

    Args:
        document: For full-system.md the picture of chart `entries` is full-system/KIND-entries.svg.
        kind: What was measured.
        made: The charts.

    Returns:
        The pictures.

    Raises:
        FlatwalkError: If they cannot be written.
    """
    directory = document.with_name(document.stem.lower())
    drawn = []
    try:
        text = document.read_text(encoding="utf-8")
        for chart in made:
            place = directory / f"{kind}-{chart.key}.svg"
            if chart.panels and f"({directory.name}/{place.name})" in text:
                directory.mkdir(exist_ok=True)
                output.write_whole(place, picture(chart))
                drawn.append(place)
    except OSError as error:
        raise FlatwalkError(
            f"the document's charts cannot be drawn: {error.strerror}",
            where=str(error.filename or directory),
            remedy="name an existing document, in a directory that you may write to",
        ) from error
    return drawn


def page(made: Sequence[Chart], version: str) -> str:
    """The charts as one page, which reads without scripts or network."""
    return templates.fill("report", "bench.html.j2", charts=made, version=version)


#: Sizes of a picture, in pixels: of columns side by side, and of what a line of text takes.
_COLUMNS, _COLUMN_WIDTH, _GAP, _LINE = 2, 480, 40, 18
_NAME_WIDTH, _FIGURE_WIDTH = 92, 74


@dataclass(frozen=True)
class _Placed:
    """A panel, and where it is drawn."""

    panel: Panel
    x: int
    y: int


def picture(chart: Chart) -> str:
    """A chart as SVG, its panels in columns from top to bottom."""
    panels = [panel for panel in chart.panels if panel.rows]
    above = 3 * _LINE
    depth = [above] * _COLUMNS
    placed = []
    for panel in panels:
        column = depth.index(min(depth))
        placed.append(_Placed(panel, column * (_COLUMN_WIDTH + _GAP), depth[column]))
        # Its label and the heads of its figures, its rows, its scale, and a gap.
        depth[column] += (len(panel.rows) + 3) * _LINE
    columns = min(len(panels), _COLUMNS)
    bar = _COLUMN_WIDTH - _NAME_WIDTH - _FIGURE_WIDTH * len(chart.columns)
    return templates.fill(
        "report",
        "chart.svg.j2",
        chart=chart,
        placed=placed,
        width=columns * (_COLUMN_WIDTH + _GAP) - _GAP,
        height=max(depth),
        column_width=_COLUMN_WIDTH,
        line=_LINE,
        bar_from=_NAME_WIDTH,
        bar=bar,
        figure=_FIGURE_WIDTH,
    )
