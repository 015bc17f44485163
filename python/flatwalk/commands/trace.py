"""`flatwalk trace …`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from flatwalk.commands.options import JsonFlag
from flatwalk.terminal.help import PLAIN, examples

app = typer.Typer(
    **PLAIN,
    help="Inspect trace files and convert them.",
    epilog=examples("trace info program.fwt"),
)


@app.command("info", epilog=examples("trace info program.fwt --verify"))
def trace_info(
    file: Annotated[Path, Argument(metavar="FILE", help="Trace of any known format.")],
    *,
    json: JsonFlag = False,
    verify: Annotated[bool, Option("--verify", help="Check every block of the file first.")] = False,
) -> None:
    """Show what a trace holds: instructions, loads, stores, threads, footprint, events, hash."""
    from flatwalk import traces  # noqa: PLC0415

    traces.info(file, as_json=json, verify=verify)


@app.command(
    "import",
    epilog=examples(
        "trace import --format champsim 605.mcf.champsimtrace.xz mcf.fwt", "trace import charlie/ charlie.fwt"
    ),
)
def trace_import(
    source: Annotated[
        Path,
        Argument(
            metavar="SOURCE", help="Foreign trace, compressed or not, or a directory of its threads' files."
        ),
    ],
    target: Annotated[Path, Argument(metavar="TARGET", help="Trace to write.")],
    *,
    kind: Annotated[
        str | None,
        Option(
            "--format",
            metavar="FORMAT",
            help="champsim, cloudsuite, drmemtrace or lackey [default: detected from the file].",
        ),
    ] = None,
) -> None:
    """Convert a ChampSim, drmemtrace or Valgrind lackey trace into flatwalk's own format."""
    from flatwalk import traces  # noqa: PLC0415

    traces.import_trace(source, target, kind)


@app.command("export", epilog=examples("trace export program.fwt program.champsimtrace.xz"))
def trace_export(
    source: Annotated[Path, Argument(metavar="SOURCE", help="flatwalk trace.")],
    target: Annotated[Path, Argument(metavar="TARGET", help="File to write; .gz or .xz compresses.")],
    *,
    kind: Annotated[str, Option("--format", metavar="FORMAT", help="Format to write.")] = "champsim",
) -> None:
    """Convert a trace into ChampSim's format."""
    from flatwalk import traces  # noqa: PLC0415

    traces.export_trace(source, target, kind)
