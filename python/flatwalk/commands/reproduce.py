"""`flatwalk reproduce`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from flatwalk.commands.options import Jobs, NoReport, report_path
from flatwalk.errors import refuse
from flatwalk.terminal.help import PLAIN, examples

app = typer.Typer(**PLAIN)


@app.command(
    epilog=examples("reproduce", "reproduce R1 F1 --json claims.json", "reproduce --scale paper F1"),
)
def reproduce(
    claims: Annotated[
        list[str] | None,
        Argument(metavar="[CLAIM]...", help="Claims by name [default: all].", show_default=False),
    ] = None,
    *,
    scale: Annotated[
        str, Option(metavar="SCALE", help="small (minutes), or paper: the papers' sizes (hours).")
    ] = "small",
    list_: Annotated[bool, Option("--list", help="Show the claims and where they stand.")] = False,
    json: Annotated[
        Path | None, Option("--json", metavar="FILE", help="Write all figures as JSON; - is standard output.")
    ] = None,
    update: Annotated[
        Path | None,
        Option(metavar="FILE", help="Add the figures to those that an earlier call wrote as JSON; show all."),
    ] = None,
    markdown: Annotated[Path | None, Option(metavar="FILE", help="Write the table as Markdown.")] = None,
    against: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Hold the figures against those that a call at another --scale wrote as JSON.",
        ),
    ] = None,
    report: Annotated[
        Path | None, Option(metavar="FILE", help="Where the report goes [default: flatwalk-claims.html].")
    ] = None,
    no_report: NoReport = False,
    jobs: Jobs = 0,
    sensitivity: Annotated[
        str | None,
        Option(metavar="PAPER", help="Judge a paper's claims under all that it leaves open, as asplos2022."),
    ] = None,
    differ: Annotated[
        int | None,
        Option(
            metavar="N",
            min=0,
            help="With --sensitivity: only settings that differ from the default in so many things at most.",
        ),
    ] = None,
    plan: Annotated[
        bool,
        Option("--plan", help="Only say how many simulations are missing, and about how long they take."),
    ] = False,
    rehearse: Annotated[
        bool, Option("--rehearse", help="Only begin each simulation, and say how much memory that takes.")
    ] = False,
) -> None:
    """Check the papers' claims: run their experiments and compare the figures.

    Prints claim by claim what is published and what we get, with a verdict, and redraws the papers'
    figures in an HTML report. Interrupted, it goes on where it was.
    """
    from flatwalk.reproduce import command as work  # noqa: PLC0415

    if list_:
        given = {
            "CLAIM": bool(claims),
            "--scale": scale != "small",
            "--json": json is not None,
            "--update": update is not None,
            "--markdown": markdown is not None,
            "--against": against is not None,
            "--report": report is not None,
            "--no-report": no_report,
            "--jobs": jobs != 0,
            "--sensitivity": sensitivity is not None,
            "--differ": differ is not None,
            "--plan": plan,
            "--rehearse": rehearse,
        }
        refuse(given, "--list shows all claims, and does nothing else")
        work.list_claims()
        return
    written = report_path(report, no_report=no_report, usual=Path("flatwalk-claims.html"))
    if (rehearse or plan or sensitivity is not None) and report is None:
        written = None
    work.run(
        work.Options(
            claims=claims or [],
            scale=scale,
            json=json,
            update=update,
            markdown=markdown,
            against=against,
            report=written,
            jobs=jobs,
            rehearse=rehearse,
            sensitivity=sensitivity,
            differ=differ,
            plan=plan,
        )
    )
