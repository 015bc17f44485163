"""`flatwalk figures`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from flatwalk.errors import refuse
from flatwalk.terminal.help import PLAIN, examples

app = typer.Typer(**PLAIN)

Columns = Annotated[
    int, Option(min=1, max=2, metavar="N", help="Width in columns of a paper of two: 1 or 2.")
]


@app.command(
    epilog=examples(
        "figures answer.json",
        "figures answer.json --only speed,cycles --format svg --columns 2 --to figures",
        "figures answer.json --only tree,timeline,blame --schemes radix4,fpt",
        "figures answer.json --latex",
    )
)
def figures(
    answer: Annotated[Path, Argument(metavar="ANSWER", help="What `flatwalk compare --json` wrote.")],
    *,
    to: Annotated[Path, Option(metavar="DIR", help="Where the files go.")] = Path(),
    only: Annotated[
        str | None,
        Option(
            metavar="A,B,...",
            help="Charts by name, as in the files' names, such as speed, cycles or tree [default: all].",
        ),
    ] = None,
    kind: Annotated[str, Option("--format", metavar="FORMAT", help="pdf, svg or png.")] = "pdf",
    schemes: Annotated[
        str | None, Option(metavar="A,B,...", help="Draw only these schemes [default: all].")
    ] = None,
    columns: Columns = 1,
    latex: Annotated[bool, Option("--latex", help="Print the results as a LaTeX table instead.")] = False,
) -> None:
    """Draw the report's charts for a paper, or print its table in LaTeX."""
    from flatwalk.report import drawing  # noqa: PLC0415

    if latex:
        given = {"--to": to != Path(), "--only": only is not None, "--format": kind != "pdf"}
        refuse(given | {"--columns": columns != 1}, "--latex prints a table, and draws nothing")
    drawing.figures(answer, to, only=only, schemes=schemes, kind=kind, columns=columns, latex=latex)
