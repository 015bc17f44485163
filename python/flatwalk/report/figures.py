"""Figures for papers: the report's charts, and curves over the results of sweeps, as PDF, SVG or PNG."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from flatwalk import units
from flatwalk.answer.blame import short
from flatwalk.errors import UsageError
from flatwalk.report import templates
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flatwalk.report.charts import Chart, Panel, Row
    from flatwalk.report.timeline import Strip, Timeline

#: Widths in inches: a column of two, and both, as in the formats of ACM and IEEE.
WIDTHS = {1: 3.33, 2: 7.0}
FORMATS = ("pdf", "svg", "png")

_ROW, _PANEL, _HEAD, _LEGEND, _LABEL = 0.15, 0.40, 0.25, 0.17, 0.12
_BAR = 0.72
#: Inches that a character takes, the share of the width that names take at most, and that of bars at least.
_CHARACTER, _NAMES, _BARS = 0.062, 0.35, 0.2
#: Inches that a character of a title takes, and the characters of a legend's longest entry.
_TITLE, _LONGEST = 0.08, 28
_WHISKER: Any = {"linewidth": 0.6, "capsize": 1.5, "capthick": 0.6}
#: Text is text that can be searched and edited, in fonts that every journal takes. Between two `$` it is
#: text, too, and not mathematics.
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 7,
    "text.parse_math": False,
    "axes.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "flatwalk",
    "savefig.dpi": 300,
}


@cache
def colours() -> list[str]:
    """The report's colours, by number."""
    sheet = templates.fill("report", "colours.css.j2").partition("@media")[0]
    return [colour for _, colour in sorted((int(n), c) for n, c in re.findall(r"--c(\d+): (#\w{6})", sheet))]


def draw(chart: Chart, columns: int) -> Figure:
    """A chart of the report, one column or two wide, its panels below one another."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    panels = [panel for panel in chart.panels if panel.rows]
    legend = chart.legend if len(chart.legend) > 1 else []
    in_row = 3 if columns == 1 else 6
    width = WIDTHS[columns]
    title = textwrap.wrap(chart.title, int(width / _TITLE))
    head = _HEAD + 0.14 * (len(title) - 1)
    above = head + _LEGEND * -(-len(legend) // in_row)
    most = int(_NAMES * width / _CHARACTER)
    shown_as = _shortened([row.name for panel in panels for row in panel.rows], most)
    names = _CHARACTER * max(map(len, shown_as.values())) + 0.05
    cells = [0.06 * max(map(len, column)) for column in _cells(chart, panels)]
    shown = len(cells) if columns == 2 else min(1, len(cells))
    while shown > 1 and names + sum(cells[:shown]) + 0.05 > (1 - _BARS) * width:
        shown -= 1
    right = sum(cells[:shown]) + 0.05
    labels = [textwrap.wrap(panel.label, int((width - names - right) / _CHARACTER)) for panel in panels]
    heights = [
        _PANEL + _LABEL * max(len(label) - 1, 0) + _ROW * len(panel.rows)
        for label, panel in zip(labels, panels, strict=True)
    ]
    height = above + sum(heights)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height))
        at = 1 - (head - 0.11) / height
        figure.text(0.02 / width, at, "\n".join(title), weight="bold", size=8)
        if legend:
            _legend(figure, legend, in_row, (height, head))
        top = height - above
        for panel, label, tall in zip(panels, labels, heights, strict=True):
            bottom = top - tall + 0.22
            box = (
                names / width,
                bottom / height,
                (width - names - right) / width,
                _ROW * len(panel.rows) / height,
            )
            axes = figure.add_axes(box)
            _panel(axes, chart, panel, cells[:shown])
            axes.set_yticks(range(len(panel.rows)), [shown_as[row.name] for row in panel.rows])
            axes.set_title("\n".join(label), loc="left", size=7, pad=3, color="#5b6470")
            top -= tall
    return figure


def _shortened(names: Sequence[str], most: int) -> dict[str, str]:
    """Names as there is room for; where some would become the same, they are cut in the middle."""
    found = {name: short(name, most) for name in names}
    if len(set(found.values())) == len(found):
        return found
    end = most // 2
    return {name: name if len(name) <= most else f"{name[: most - end - 1]}…{name[-end:]}" for name in found}


def _cells(chart: Chart, panels: Sequence[Panel]) -> list[list[str]]:
    """The texts of each column of figures, its title among them."""
    rows = [row.cells for panel in panels for row in panel.rows]
    return [list(column) for column in zip(*([chart.columns[: len(rows[0])], *rows]), strict=True)]


def _panel(axes: Axes, chart: Chart, panel: Panel, cells: Sequence[float]) -> None:
    count = len(panel.rows)
    axes.set_xlim(0, 1)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_xticks([tick.at for tick in chart.ticks], [tick.label for tick in chart.ticks])
    axes.tick_params(length=2, width=0.5, pad=2)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if chart.origin:
        axes.axvline(chart.origin, color="#5b6470", linewidth=0.5)
    inches = axes.get_position().width * axes.get_figure().get_size_inches()[0]  # type: ignore[union-attr]
    for number, row in enumerate(panel.rows):
        _bar(axes, number, row)
        at = 1.0
        for text, room in zip(row.cells, cells, strict=False):
            at += room / inches
            axes.text(at, number, text, ha="right", va="center", clip_on=False)
    at = 1.0
    for title, room in zip(chart.columns, cells, strict=False):
        at += room / inches
        axes.text(at, -0.75, title, ha="right", va="bottom", clip_on=False, size=6, color="#5b6470")


def _bar(axes: Axes, number: int, row: Row) -> None:
    for segment in row.segments:
        colour, opacity = colours()[segment.colour], segment.opacity
        axes.barh(number, segment.length, _BAR, segment.start, color=colour, alpha=opacity, linewidth=0)
    if row.path:
        outline = [(x / 1000, number + _BAR * (y / 100 - 0.5)) for x, y in _points(row.path)]
        axes.fill(*zip(*outline, strict=True), color=colours()[0], linewidth=0)
    if row.whisker is not None:
        low, high = row.whisker
        axes.errorbar(
            (low + high) / 2,
            number,
            xerr=(high - low) / 2,
            color="black",
            **_WHISKER,
        )


#: Height of a strip of a timeline, with its title.
_STRIP, _STRIP_TITLE = 0.55, 0.22


def draw_timeline(timeline: Timeline, columns: int) -> Figure:
    """The courses of all settings below one another, one column or two wide."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    in_row = 3 if columns == 1 else 6
    above = _HEAD + _LEGEND * -(-len(timeline.legend) // in_row)
    each = _STRIP + _STRIP_TITLE
    width = WIDTHS[columns]
    labels = [textwrap.wrap(panel.label, int(width / _CHARACTER)) for panel in timeline.panels]
    heads = [_LEGEND + _LABEL * max(len(label) - 1, 0) for label in labels]
    height = above + sum(heads) + each * sum(len(panel.strips) for panel in timeline.panels) + 0.25
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height))
        figure.text(0.02 / width, 1 - 0.14 / height, "Over the run", weight="bold", size=8)
        _legend(figure, timeline.legend, in_row, (height, _HEAD))
        top, axes = height - above, None
        for panel, label, head in zip(timeline.panels, labels, heads, strict=True):
            at = (top - head + 0.01) / height
            figure.text(0.02 / width, at, "\n".join(label), size=7, color="#5b6470")
            top -= head
            for strip in panel.strips:
                bottom = top - each
                axes = figure.add_axes((0.5 / width, bottom / height, (width - 0.6) / width, _STRIP / height))
                _strip(axes, strip)
                top = bottom
        if axes is not None:
            axes.set_xticks([0, 1000], [timeline.start, timeline.end])
            start, end = axes.get_xticklabels()
            start.set_horizontalalignment("left")
            end.set_horizontalalignment("right")
    return figure


def _legend(
    figure: Figure, legend: Sequence[tuple[int, str]], in_row: int, place: tuple[float, float]
) -> None:
    """Draws a legend under the title; `place` are the height of the figure and of what is above."""
    import matplotlib as mpl  # noqa: PLC0415

    height, head = place
    handles = [
        mpl.patches.Patch(color=colours()[colour], label=short(label, _LONGEST)) for colour, label in legend
    ]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, 1 - (head - 0.04) / height),
        ncols=in_row,
        frameon=False,
        handlelength=0.8,
        handleheight=0.8,
        columnspacing=1.0,
        borderpad=0.1,
        fontsize=6,
    )


def _strip(axes: Axes, strip: Strip) -> None:
    """One figure over the run: paths in a box of 1000 × 100, with the origin above on the left."""
    axes.set_xlim(0, 1000)
    axes.set_ylim(100, 0)
    axes.set_title(strip.title, loc="left", size=6, pad=2, color="#5b6470")
    axes.set_xticks([])
    axes.set_yticks([4, 96], [strip.high, strip.low])
    axes.tick_params(length=2, width=0.5, pad=2, labelsize=6)
    axes.spines[["top", "right"]].set_visible(False)
    if strip.zero is not None:
        axes.axhline(strip.zero, color="#5b6470", linewidth=0.5)
    for line in strip.lines:
        # A new piece begins where something is missing.
        for piece in filter(str.strip, line.path.split("M")):
            axes.plot(*zip(*_points(f"M{piece}"), strict=True), color=colours()[line.colour], linewidth=0.9)


def _points(path: str) -> list[tuple[float, float]]:
    """The corners of a path of the report, which has absolute moves and lines alone."""
    found, x, y = [], 0.0, 0.0
    for letter, numbers in re.findall(r"([MLHVZ])([^MLHVZ]*)", path):
        values = [float(number) for number in numbers.split()]
        match letter:
            case "H":
                x = values[0]
            case "V":
                y = values[0]
            case "M" | "L":
                x, y = values
            case _:
                continue
        found.append((x, y))
    return found


@dataclass(frozen=True)
class Curve:
    """A line through points: of each its place, its value, and the ends of its interval if it has one."""

    name: str
    points: list[tuple[Any, float, float | None, float | None]]


def draw_curves(curves: Sequence[Curve], x: str, y: str, columns: int) -> Figure:
    """Curves over one axis; numbers are on a logarithmic scale if they span much."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    places = sorted({point[0] for curve in curves for point in curve.points})
    numeric = all(isinstance(place, int | float) for place in places)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTHS[columns], 2.2), layout="constrained")
        axes = figure.add_subplot()
        lines = []
        for number, curve in enumerate(curves):
            own = sorted(curve.points, key=lambda point: places.index(point[0]))
            where = [point[0] if numeric else places.index(point[0]) for point in own]
            colour = colours()[number % len(colours())]
            lines += axes.plot(where, [point[1] for point in own], ".-", color=colour, linewidth=1, ms=4)
            for at, (_, value, low, high) in zip(where, own, strict=True):
                if low is not None and high is not None:
                    axes.errorbar(at, value, [[value - low], [high - value]], color=colour, **_WHISKER)
        if numeric and places[0] > 0 and places[-1] >= 8 * places[0]:
            axes.set_xscale("log", base=2)
            # Matplotlib's own labels of such an axis are mathematics.
            axes.xaxis.set_major_formatter(lambda at, _: _tick(x, int(at) if at >= 1 else at))
        if numeric and len(places) <= 8:
            axes.set_xticks(places, [_tick(x, place) for place in places])
            axes.minorticks_off()
        elif not numeric:
            axes.set_xticks(range(len(places)), list(map(str, places)))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(visible=True, linewidth=0.3, alpha=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        if len(curves) > 1:
            # With their names: of itself a legend leaves out what begins with an underscore.
            axes.legend(lines, [curve.name for curve in curves], frameon=False, fontsize=6)
    return figure


def draw_map(values: dict[tuple[Any, Any], float], x: str, y: str, what: str, columns: int) -> Figure:
    """A heat map: values by their places on two axes, with their figures; a missing one is empty."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    across, down = (sorted({place[axis] for place in values}) for axis in (0, 1))
    grid = [[values.get((one, other), float("nan")) for one in across] for other in down]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTHS[columns], 0.9 + 0.25 * len(down)), layout="constrained")
        axes = figure.add_subplot()
        image = axes.imshow(grid, aspect="auto", cmap="cividis")
        axes.set_xticks(range(len(across)), [_tick(x, place) for place in across])
        axes.set_yticks(range(len(down)), [_tick(y, place) for place in down])
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        middle = (min(values.values()) + max(values.values())) / 2
        for (one, other), value in values.items():
            colour = "black" if value > middle else "white"
            axes.text(
                across.index(one), down.index(other), f"{value:.3g}", ha="center", va="center", color=colour
            )
        figure.colorbar(image, label=what)
    return figure


def _tick(key: str, value: object) -> str:

    return (
        units.size(float(value)) if key.endswith("_bytes") and isinstance(value, int | float) else str(value)
    )


def write(figure: Figure, path: Path) -> None:
    """Writes a figure as its file's name says.

    Raises:
        UsageError: If its ending is not one of `FORMATS`.
        FlatwalkError: If it cannot be written.
    """
    import matplotlib as mpl  # noqa: PLC0415

    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(
            f"{path.name} does not say what to draw",
            where="FILE",
            remedy=f"end it in {', '.join('.' + kind for kind in FORMATS)}",
        )
    # The same figure is the same bytes.
    about: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
    with mpl.rc_context(_STYLE), output.whole_file(path) as temporary:
        figure.savefig(temporary, format=kind, metadata=about)


def latex(headers: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """A table in LaTeX, with the package booktabs."""
    lines = [
        r"\begin{table}",
        rf"  \caption{{{_escaped(caption)}}}",
        r"  \centering",
        rf"  \begin{{tabular}}{{l{'r' * (len(headers) - 1)}}}",
        r"    \toprule",
        "    " + " & ".join(map(_escaped, headers)) + r" \\",
        r"    \midrule",
        *("    " + " & ".join(map(_escaped, row)) + r" \\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "–": "--",
    "\N{NARROW NO-BREAK SPACE}": r"\,",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)
