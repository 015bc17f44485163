"""`flatwalk figures` and `flatwalk results plot`: what is drawn of answers and stored results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatwalk import figures as draw
from flatwalk import output
from flatwalk.errors import UsageError
from flatwalk.lab import points
from flatwalk.presenting import cells
from flatwalk.results import grouped, machine_label, pages_label, read_answer

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from flatwalk.report.charts import Chart
    from flatwalk.results import Run


def figures(path: Path, to: Path, *, only: str | None, kind: str, columns: int, latex: bool) -> None:
    """Draws the charts of an answer, or prints its table in LaTeX.

    Raises:
        FlatwalkError: If the answer cannot be read, there is no such chart, or a file cannot be written.
    """
    from flatwalk.report import charts  # noqa: PLC0415

    runs = read_answer(path)["runs"]
    if latex:
        for members in grouped(runs):
            caption = f"{members[0]['workload']} on {machine_label(members[0])}, {pages_label(members[0])}"
            print(draw.latex(*cells(members), caption), end="")
        return
    names = [chart.key for chart in charts.build(runs)]
    wanted = names if only is None else [name.strip() for name in only.split(",")]
    for name in wanted:
        _chart(runs, name, "--only")
    if kind not in draw.FORMATS:
        raise UsageError(
            f"{kind!r} is not a format", where="--format", remedy=f"one of {', '.join(draw.FORMATS)}"
        )
    if not to.is_dir():
        raise UsageError(f"there is no directory {to}", where="--to", remedy="make it, or choose another one")
    for name in wanted:
        target = to / f"{path.stem}-{name}.{kind}"
        chart(runs, name, target, columns)
        print(target)


def chart(runs: list[Run], name: str, target: Path, columns: int) -> None:
    """Draws one chart of the report.

    Raises:
        FlatwalkError: If there is no such chart or format, or the file cannot be written.
    """
    draw.write(draw.draw(_chart(runs, name, "chart"), columns), target)


def _chart(runs: list[Run], name: str, where: str) -> Chart:
    from flatwalk.report import charts  # noqa: PLC0415

    known = {chart.key: chart for chart in charts.build(runs)}
    if name not in known:
        raise UsageError(f"there is no chart {name}", where=where, remedy=f"there are {', '.join(known)}")
    return known[name]


def plot(
    table: pa.Table, target: Path, *, x: str, y: str, by: str | None, over: str | None, columns: int
) -> None:
    """Draws stored results: curves of `y` over `x`, or a heat map over `x` and `over`.

    Where several runs have the same place, their mean is drawn; its whiskers reach from the lowest end of
    their intervals to the highest, or if they have none, from the lowest to the highest value.

    Raises:
        FlatwalkError: If there is no such column, nothing to draw, or the file cannot be written.
    """
    for name, option in ((x, "--x"), (y, "--y"), (by, "--by"), (over, "--over")):
        if name is not None and name not in table.column_names:
            raise UsageError(
                f"there is no column {name}",
                where=option,
                remedy='`flatwalk results query "describe runs"` shows all',
            )
    found: dict[str, dict[Any, list[dict[str, Any]]]] = {}
    for run in table.to_pylist():
        if run[x] is None or run[y] is None or (over is not None and run[over] is None):
            continue
        place = run[x] if over is None else (run[x], run[over])
        found.setdefault("" if by is None else str(run[by]), {}).setdefault(place, []).append(run)
    if not found:
        raise UsageError(f"no run has both {x} and {y}", where="--x and --y", remedy="choose other columns")
    if over is not None:
        if len(found) > 1:
            raise UsageError(
                f"a map has one value a cell, and there are several {by}",
                where="--by",
                remedy="choose with --where",
            )
        values = {place: points.mean(runs, y) for place, runs in next(iter(found.values())).items()}
        figure = draw.draw_map(values, x, over, y, columns)
    else:
        curves = [
            draw.Curve(name, [(place, *points.spread(runs, y)) for place, runs in places.items()])
            for name, places in found.items()
        ]
        figure = draw.draw_curves(curves, x, y, columns)
    output.check_writable(target, "FILE")
    draw.write(figure, target)
    print(target)
