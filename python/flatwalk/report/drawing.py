"""`flatwalk figures` and `flatwalk results plot`: what is drawn of answers and stored results."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from flatwalk.answer import blame
from flatwalk.answer.results import add_speedups, grouped, machine_label, pages_label, read_answer
from flatwalk.comparison.presenting import cells
from flatwalk.errors import UsageError
from flatwalk.lab import points
from flatwalk.report import figures as draw
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa
    from matplotlib.figure import Figure

    from flatwalk.answer.results import Response, Run


def figures(
    path: Path, to: Path, *, only: str | None, schemes: str | None, kind: str, columns: int, latex: bool
) -> None:
    """Draws the charts of an answer, or prints its table in LaTeX.

    Raises:
        FlatwalkError: If the answer cannot be read, there is no such chart, or a file cannot be written.
    """
    answer = read_answer(path)
    if schemes is not None:
        answer["runs"] = of_schemes(
            answer["runs"], [name.strip() for name in schemes.split(",")], "--schemes"
        )
        # Against the first that is shown, where what they were compared with is not.
        if any(group[0].get("speedup") not in (None, 1) for group in grouped(answer["runs"])):
            add_speedups(answer["runs"], answer.get("sampling"))
    if latex:
        print(tables(answer["runs"]), end="")
        return
    found = charts(answer)
    wanted = list(found) if only is None else [name.strip() for name in only.split(",")]
    for name in wanted:
        _known(found, name, "--only")
    if kind not in draw.FORMATS:
        raise UsageError(
            f"{kind!r} is not a format", where="--format", remedy=f"one of {', '.join(draw.FORMATS)}"
        )
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the directory {to} cannot be made: {error.strerror}",
            where="--to",
            remedy="choose another one",
        ) from error
    for name in wanted:
        target = to / f"{path.stem}-{name}.{kind}"
        draw.write(found[name](columns), target)
        print(target)


def charts(answer: Response) -> dict[str, Callable[[int], Figure]]:
    """What draws each chart of an answer's report, so many columns wide, by its name."""
    from flatwalk.report import charts, timeline, tree  # noqa: PLC0415

    runs = answer["runs"]
    found: dict[str, Callable[[int], Figure]] = {
        chart.key: partial(draw.draw, chart) for chart in charts.build(runs)
    }
    for one in timeline.build(runs, answer.get("sampling")):
        found["timeline"] = partial(draw.draw_timeline, one)
    if trees := tree.build(runs):
        found["tree"] = partial(draw.draw, tree.chart(trees))
    if (blamed := blame.build(runs)) is not None:
        found["blame"] = partial(draw.draw, charts.of_blame(blamed))
    return found


def chart(answer: Response, name: str, target: Path, columns: int) -> None:
    """Draws one chart of the report.

    Raises:
        FlatwalkError: If there is no such chart or format, or the file cannot be written.
    """
    draw.write(_known(charts(answer), name, "chart")(columns), target)


def _known(found: dict[str, Callable[[int], Figure]], name: str, where: str) -> Callable[[int], Figure]:
    if name not in found:
        raise UsageError(f"there is no chart {name}", where=where, remedy=f"there are {', '.join(found)}")
    return found[name]


def of_schemes(runs: Sequence[Run], names: Sequence[str], where: str) -> list[Run]:
    """The runs of some schemes.

    Raises:
        UsageError: If one of them was not run, or there are none.
    """
    known = list(dict.fromkeys(run["scheme"] for run in runs))
    if not names:
        raise UsageError("no scheme is named", where=where, remedy=f"there are {', '.join(known)}")
    for name in names:
        if name not in known:
            raise UsageError(f"no run of {name}", where=where, remedy=f"there are {', '.join(known)}")
    return [run for run in runs if run["scheme"] in names]


def tables(runs: list[Run]) -> str:
    """The runs in LaTeX, a table for each setting."""
    found = []
    for members in grouped(runs):
        caption = f"{members[0]['workload']} on {machine_label(members[0])}, {pages_label(members[0])}"
        found.append(draw.latex(*cells(members), caption))
    return "".join(found)


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
    rows = table.to_pylist()
    for name, option in ((x, "--x"), (by, "--by"), (over, "--over")):
        if name is not None and any(isinstance(run[name], list | dict) for run in rows):
            raise UsageError(f"{name} is a list", where=option, remedy="choose another column")
    if any(isinstance(run[y], bool) or not isinstance(run[y], int | float | None) for run in rows):
        raise UsageError(f"{y} is no number", where="--y", remedy="choose another column, such as speedup")
    found: dict[str, dict[Any, list[dict[str, Any]]]] = {}
    for run in rows:
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
