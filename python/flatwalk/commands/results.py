"""`flatwalk results …`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from flatwalk.commands.figures import Columns
from flatwalk.commands.options import JsonFlag
from flatwalk.commands.sweep import RESULTS, ResultsDirectory
from flatwalk.errors import refuse
from flatwalk.terminal.help import PLAIN, examples

app = typer.Typer(
    **PLAIN,
    help="Query, compare and export what sweeps found.",
    epilog=examples('results query "select scheme, avg(speedup) from runs group by scheme"'),
)

Where = Annotated[
    str | None, Option(metavar="SQL", help="Only runs for which this holds, as in \"mode = 'timing'\".")
]


def _check_form(*, csv: bool, json: bool) -> None:
    refuse({"--csv": csv and json}, "--json prints JSON, and not CSV")


@app.command(
    epilog=examples(
        'results query "select scheme, avg(speedup) from runs group by scheme"',
        'results query "select \\"llc.size_bytes\\", scheme, speedup from runs" --csv --results results',
        'results query "describe runs"',
    )
)
def query(
    sql: Annotated[str, Argument(metavar="SQL", help="A query over the table runs, in DuckDB's SQL.")],
    *,
    results: ResultsDirectory = RESULTS,
    csv: Annotated[bool, Option("--csv", help="Print CSV.")] = False,
    json: JsonFlag = False,
) -> None:
    """Ask SQL of the stored runs; docs/lab.md explains the columns."""
    from flatwalk.lab import command  # noqa: PLC0415

    _check_form(csv=csv, json=json)
    command.query(results, sql, as_csv=csv, as_json=json)


@app.command(
    epilog=examples(
        "results diff zen4 golden-cove --by machine",
        "results diff 8MiB 16MiB --by llc.size_bytes,llc.latency_cycles",
        "results diff 0.1.0 0.2.0 --by version --where \"scheme = 'fpt'\"",
        "results diff old-results new-results",
    )
)
def diff(
    first: Annotated[
        str, Argument(metavar="A", help="A value of the (first) column, as 8MiB, or a directory of results.")
    ],
    second: Annotated[str, Argument(metavar="B", help="Another one.")],
    *,
    by: Annotated[
        str | None,
        Option(metavar="COLUMN,...", help="What the runs differ in; without it, A and B are directories."),
    ] = None,
    where: Where = None,
    results: ResultsDirectory = RESULTS,
    csv: Annotated[bool, Option("--csv", help="Print CSV.")] = False,
    json: JsonFlag = False,
) -> None:
    """Compare runs in pairs that are alike but for some columns: how much faster B is than A, in time.

    The 95 % intervals are from the same windows on both sides.
    """
    from flatwalk.lab import command  # noqa: PLC0415

    _check_form(csv=csv, json=json)
    apart = {"--results": by is None and results != RESULTS}
    refuse(apart, "A and B are the directories of the results", "leave it out, or give --by COLUMN, too")
    command.diff(results, first, second, by=by, where=where, as_csv=csv, as_json=json)


@app.command(
    epilog=examples("results export runs.csv", "results export fpt.arrow --where \"scheme = 'fpt'\"")
)
def export(
    file: Annotated[
        Path, Argument(metavar="FILE", help="Its ending says how: .csv, .arrow, .parquet, .json.")
    ],
    *,
    where: Where = None,
    results: ResultsDirectory = RESULTS,
) -> None:
    """Write all runs to one file for other programs."""
    from flatwalk.lab import command  # noqa: PLC0415

    command.export(results, file, where)


@app.command(
    epilog=examples("results report -o sweep.html", "results report -o fpt.html --where \"scheme = 'fpt'\"")
)
def report(
    file: Annotated[
        Path | None,
        Option(
            "--output", "-o", metavar="FILE", help="Where the page goes [default: flatwalk-results.html]."
        ),
    ] = None,
    *,
    where: Where = None,
    results: ResultsDirectory = RESULTS,
) -> None:
    """Write a page of all runs: curves and heat maps over whatever varies, with their intervals, and a table.

    It can be explored in a browser: sorted, filtered, with one figure or some of the schemes.
    """
    from flatwalk.lab import command  # noqa: PLC0415
    from flatwalk.terminal import output  # noqa: PLC0415

    usual = output.unused(Path("flatwalk-results.html"))
    command.report(results, file or usual, where, usual=file is None)


@app.command(
    epilog=examples(
        "results plot llc.pdf --x llc.size_bytes --y speedup --by scheme",
        "results plot map.svg --x llc.size_bytes --over l2.size_bytes --y speedup --where \"scheme = 'fpt'\"",
    )
)
def plot(
    file: Annotated[Path, Argument(metavar="FILE", help="Its ending says how: .pdf, .svg, .png.")],
    *,
    x: Annotated[str, Option(metavar="COLUMN", help="What the horizontal axis is.")],
    y: Annotated[str, Option(metavar="COLUMN", help="What is drawn.")] = "speedup",
    by: Annotated[str | None, Option(metavar="COLUMN", help="A curve for each value of it.")] = None,
    over: Annotated[
        str | None, Option(metavar="COLUMN", help="A heat map, with this as the vertical axis.")
    ] = None,
    where: Where = None,
    columns: Columns = 1,
    results: ResultsDirectory = RESULTS,
) -> None:
    """Draw stored runs: curves with their intervals, or a heat map.

    Runs at the same place are one point, their mean. Its whisker holds all of their 95 % intervals, or all of
    their values where they have none.
    """
    from flatwalk.lab import command  # noqa: PLC0415

    command.plot(results, file, where, x=x, y=y, by=by, over=over, columns=columns)
