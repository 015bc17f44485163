"""The command line. Only what `--help` needs is imported here; commands import their work."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer import Argument, Option

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.host.commands import app as host_app
from flatwalk.vm.commands import app as vm_app

if TYPE_CHECKING:
    from types import FrameType


def _examples(*commands: str) -> str:
    """A help text's last paragraph, kept line by line (the backspace tells the formatter so)."""
    title = "Example:" if len(commands) == 1 else "Examples:"
    return "\n".join(["\b", title, *(f"  flatwalk {command}" for command in commands)])


# Help is plain text everywhere: the same on a terminal and in a pipe, and without delay.
app = typer.Typer(
    name="flatwalk",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="What another page-table organisation would do to a program's speed.",
    epilog=_examples("compare -- python3 -c 'print(sum(range(10**5)))'"),
)
trace_app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Look into trace files and convert them.",
    epilog=_examples("trace info program.fwt"),
)
list_app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Show what is shipped: schemes, machines, workloads, mixes.",
    epilog=_examples("list schemes"),
)
app.add_typer(trace_app, name="trace")
app.add_typer(list_app, name="list")
app.add_typer(host_app, name="host")
app.add_typer(vm_app, name="vm")


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


_PROGRAM = {"allow_interspersed_args": False, "ignore_unknown_options": False}

Command = Annotated[
    list[str] | None,
    Argument(metavar="-- CMD", help="Program to record, with its arguments.", show_default=False),
]
JsonFlag = Annotated[bool, Option("--json", help="Print JSON.")]


@app.command(
    context_settings=_PROGRAM,
    epilog=_examples(
        "compare -- sort big.txt",
        "compare --workload gups:8GiB --schemes radix4,fpt,fpt+ptp",
        "compare --trace program.fwt --large-pages 0,50,100 --machine zen4",
        "compare --trace program.fwt --schemes radix4,./mine.toml --json -",
        "compare --workload gups:1GiB --virt radix4/fpt,fpt/fpt --large-pages 0 --instructions 5M",
    ),
)
def compare(
    command: Command = None,
    *,
    workload: Annotated[
        str | None, Option(metavar="NAME:SIZE", help="Built-in workload [default: gups:1GiB].")
    ] = None,
    trace: Annotated[Path | None, Option(metavar="FILE", help="Recorded trace, of any known format.")] = None,
    mix: Annotated[
        str | None,
        Option(
            metavar="NAME|A,B,...",
            help="Several programs together on the machine's cores: a shipped mix, or workloads and traces "
            "(4*gups:1GiB is four of one).",
        ),
    ] = None,
    schemes: Annotated[
        str | None,
        Option(
            metavar="A,B,...",
            help="Schemes by name or as path to a TOML file; the first is the baseline "
            "[default: radix4 and all other designs of `flatwalk list schemes` but the 1 GiB-node and "
            "flattened five-level ones].",
        ),
    ] = None,
    virt: Annotated[
        str | None,
        Option(
            metavar="GUEST/HOST,...",
            help="Run in a guest: schemes of its and the host's tables, as radix4/fpt, after those of "
            "--schemes [default of those: virt-radix4].",
        ),
    ] = None,
    host_large_pages: Annotated[
        int,
        Option(metavar="P", min=0, max=100, help="Per cent of a guest's memory on 2 MiB pages of the host."),
    ] = 0,
    guest_frames: Annotated[
        str, Option(metavar="HOW", help="Where a guest's memory comes from: scattered or compact.")
    ] = "scattered",
    machine: Annotated[
        str | None,
        Option(
            metavar="NAME|PATH",
            help="Machine by name or as path to a TOML file [default: skylake-server; with --mix "
            "skylake-server-4core].",
        ),
    ] = None,
    large_pages: Annotated[
        str | None,
        Option(metavar="P,Q,...", help="Per cent of memory on 2 MiB pages, lowest first [default: 0,100]."),
    ] = None,
    thp: Annotated[
        str | None,
        Option(metavar="POLICY", help="Linux's transparent huge pages instead: always, madvise or never."),
    ] = None,
    fragmentation: Annotated[
        float, Option(metavar="SHARE", min=0.0, max=1.0, help="Share of physical memory that is fragmented.")
    ] = 0.0,
    context_switch: Annotated[
        float | None,
        Option(
            metavar="MS",
            min=0.001,
            help="Empty TLBs and page-walk caches every so many milliseconds, as another process would.",
        ),
    ] = None,
    instructions: Annotated[
        str | None,
        Option(metavar="COUNT", help="Instructions to measure [default: 50M; of a program 100M]."),
    ] = None,
    warmup: Annotated[
        str | None,
        Option(metavar="COUNT", help="Instructions before them [default: 10M, of short traces a tenth]."),
    ] = None,
    skip: Annotated[
        str | None, Option(metavar="COUNT", help="Instructions to leave out at the beginning [default: 0].")
    ] = None,
    seed: Annotated[int, Option(metavar="N", min=0, help="Seed of all that is random.")] = 1,
    mode: Annotated[
        str, Option(metavar="MODE", help="timing, or functional: TLBs and walks only, counts but no cycles.")
    ] = "timing",
    json: Annotated[
        Path | None, Option("--json", metavar="FILE", help="Write all results as JSON; - is standard output.")
    ] = None,
    energy: Annotated[
        bool, Option("--energy", help="Show cache energy and off-chip accesses, over the baseline's.")
    ] = False,
    report: Annotated[
        Path | None, Option(metavar="FILE", help="Where the report goes [default: flatwalk-report.html].")
    ] = None,
    no_report: Annotated[bool, Option("--no-report", help="Write no report.")] = False,
    keep_trace: Annotated[Path | None, Option(metavar="FILE", help="Keep the recorded trace there.")] = None,
    jobs: Annotated[
        int, Option("--jobs", "-j", metavar="N", min=0, help="Threads to simulate with; 0 is one per core.")
    ] = 0,
) -> None:
    """Say which page-table organisation makes a program faster, by how much, and why.

    Simulates every scheme on the same instructions: of a program that it records, of a trace, or of a
    built-in workload. Prints a table and the answer, and writes an HTML report.
    """
    from flatwalk import compare as work  # noqa: PLC0415

    if no_report and report is not None:
        raise UsageError("a report and none", where="--report and --no-report", remedy="give one of them")
    work.run(
        work.Options(
            workload=workload,
            trace=trace,
            command=command or [],
            schemes=schemes,
            virt=virt,
            host_large_pages=host_large_pages,
            guest_frames=work.check_guest_frames(guest_frames),
            mix=mix,
            machine=machine or ("skylake-server" if mix is None else "skylake-server-4core"),
            large_pages=large_pages,
            thp=work.check_thp(thp),
            fragmentation=fragmentation,
            context_switch_ms=context_switch,
            instructions=instructions,
            warmup=warmup,
            skip=skip,
            seed=seed,
            mode=work.check_mode(mode),
            json=json,
            energy=energy,
            report=None if no_report else report or work.DEFAULT_REPORT,
            keep_trace=keep_trace,
            jobs=jobs,
        )
    )


@app.command(
    epilog=_examples("reproduce", "reproduce R1 F1 --json claims.json", "reproduce --scale paper F1"),
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
    report: Annotated[
        Path | None, Option(metavar="FILE", help="Where the report goes [default: flatwalk-claims.html].")
    ] = None,
    no_report: Annotated[bool, Option("--no-report", help="Write no report.")] = False,
    jobs: Annotated[
        int, Option("--jobs", "-j", metavar="N", min=0, help="Threads to simulate with; 0 is one per core.")
    ] = 0,
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
        work.list_claims()
        return
    if no_report and report is not None:
        raise UsageError("a report and none", where="--report and --no-report", remedy="give one of them")
    work.run(
        work.Options(
            claims=claims or [],
            scale=scale,
            json=json,
            update=update,
            markdown=markdown,
            report=report or (None if no_report or rehearse else Path("flatwalk-claims.html")),
            jobs=jobs,
            rehearse=rehearse,
        )
    )


@app.command(
    context_settings=_PROGRAM,
    epilog=_examples(
        "record -o sort.fwt -- sort big.txt",
        "record --skip 10M --limit 20M -o sort.fwt -- sort big.txt",
        "record --workload redis:256MiB --limit 100M -o redis.fwt",
        "record --start-at Py_RunMain --limit 5M -o run.fwt -- python3 -c 'print(sum(range(1000)))'",
    ),
)
def record(
    command: Command = None,
    *,
    output: Annotated[Path, Option("--output", "-o", metavar="FILE", help="Trace to write.")] = Path(
        "program.fwt"
    ),
    workload: Annotated[
        str | None,
        Option(
            metavar="NAME[:SIZE]",
            help="A program of Debian by name, its run phase only; `flatwalk list workloads` shows them.",
        ),
    ] = None,
    skip: Annotated[
        str | None, Option(metavar="COUNT", help="Instructions to leave out at the beginning [default: 0].")
    ] = None,
    limit: Annotated[
        str | None, Option(metavar="COUNT", help="Instructions to record [default: all].")
    ] = None,
    start_at: Annotated[
        str | None,
        Option(
            metavar="PLACE",
            help="Where to start: a symbol, an address (0x…), or marker: the program's flatwalk_start().",
        ),
    ] = None,
    stop_at: Annotated[
        str | None,
        Option(metavar="PLACE", help="Where to end recording and program: a symbol, or an address."),
    ] = None,
    no_follow: Annotated[
        bool, Option("--no-follow", help="Leave out programs that the program starts.")
    ] = False,
) -> int:
    """Record every instruction and memory access of a program into a trace file.

    Runs the program under QEMU's user-mode emulation. Its children by fork get trace files of their
    own. Ctrl-C or a crash leaves a valid trace up to that point. The exit status is the program's.
    """
    from flatwalk import traces  # noqa: PLC0415

    if workload is not None:
        given = (command, skip, start_at, stop_at, no_follow)
        if any(given):
            raise UsageError(
                "the workload says itself what is recorded of it",
                where="--workload",
                remedy="leave out the command, --skip, --start-at, --stop-at and --no-follow",
            )
        return traces.record_workload(workload, output, limit=limit)
    return traces.record_program(
        command or [],
        output,
        skip=skip,
        limit=limit,
        start_at=start_at,
        stop_at=stop_at,
        follow_exec=not no_follow,
    )


@app.command(
    epilog=_examples(
        "walk --scheme fpt", "walk 0x10000201234 --workload gups:8GiB --scheme radix4 --large-pages 50"
    )
)
def walk(
    address: Annotated[
        str | None,
        Argument(metavar="ADDRESS", help="Virtual address [default: the last one used].", show_default=False),
    ] = None,
    *,
    workload: Annotated[
        str | None, Option(metavar="NAME:SIZE", help="Whose address space [default: gups:1GiB].")
    ] = None,
    trace: Annotated[Path | None, Option(metavar="FILE", help="Whose address space.")] = None,
    scheme: Annotated[str, Option(metavar="NAME|PATH", help="Scheme.")] = "radix4",
    machine: Annotated[str, Option(metavar="NAME|PATH", help="Machine.")] = "skylake-server",
    large_pages: Annotated[
        int, Option(metavar="P", min=0, max=100, help="Per cent of memory on 2 MiB pages.")
    ] = 0,
    instructions: Annotated[
        str, Option(metavar="COUNT", help="Instructions to run before, which warm the structures.")
    ] = "1M",
    json: JsonFlag = False,
) -> None:
    """Explain one translation step by step.

    Shows the index bits, the address of every entry read, and what each structure answered.
    """
    from flatwalk import traces  # noqa: PLC0415

    traces.explain_walk(
        address,
        workload=workload,
        trace=trace,
        scheme=scheme,
        machine=machine,
        large_pages=large_pages,
        instructions=instructions,
        as_json=json,
    )


@trace_app.command("info", epilog=_examples("trace info program.fwt --verify"))
def trace_info(
    file: Annotated[Path, Argument(metavar="FILE", help="Trace of any known format.")],
    *,
    json: JsonFlag = False,
    verify: Annotated[bool, Option("--verify", help="Check every block of the file first.")] = False,
) -> None:
    """Say what a trace holds: instructions, loads, stores, threads, footprint, events, hash."""
    from flatwalk import traces  # noqa: PLC0415

    traces.info(file, as_json=json, verify=verify)


@trace_app.command(
    "import", epilog=_examples("trace import --format champsim 605.mcf.champsimtrace.xz mcf.fwt")
)
def trace_import(
    source: Annotated[Path, Argument(metavar="SOURCE", help="Foreign trace, compressed or not.")],
    target: Annotated[Path, Argument(metavar="TARGET", help="Trace to write.")],
    *,
    kind: Annotated[
        str | None,
        Option(
            "--format",
            metavar="FORMAT",
            help="champsim, cloudsuite, drmemtrace or lackey [default: by what the file looks like].",
        ),
    ] = None,
) -> None:
    """Convert a ChampSim, drmemtrace or Valgrind lackey trace into flatwalk's own format."""
    from flatwalk import traces  # noqa: PLC0415

    traces.import_trace(source, target, kind)


@trace_app.command("export", epilog=_examples("trace export program.fwt program.champsimtrace.xz"))
def trace_export(
    source: Annotated[Path, Argument(metavar="SOURCE", help="flatwalk trace.")],
    target: Annotated[Path, Argument(metavar="TARGET", help="File to write; .gz or .xz compresses.")],
    *,
    kind: Annotated[str, Option("--format", metavar="FORMAT", help="Format to write.")] = "champsim",
) -> None:
    """Convert a trace into ChampSim's format."""
    from flatwalk import traces  # noqa: PLC0415

    traces.export_trace(source, target, kind)


@list_app.command("schemes", epilog=_examples("list schemes --json"))
def list_schemes(*, json: JsonFlag = False) -> None:
    """Show the page-table schemes that are shipped."""
    from flatwalk import catalogue  # noqa: PLC0415

    catalogue.schemes(as_json=json)


@list_app.command("machines", epilog=_examples("list machines"))
def list_machines(*, json: JsonFlag = False) -> None:
    """Show the machines that are shipped."""
    from flatwalk import catalogue  # noqa: PLC0415

    catalogue.machines(as_json=json)


@list_app.command("mixes", epilog=_examples("list mixes"))
def list_mixes(*, json: JsonFlag = False) -> None:
    """Show the mixes of programs for `compare --mix` that are shipped."""
    from flatwalk import catalogue  # noqa: PLC0415

    catalogue.mixes(as_json=json)


@list_app.command("workloads", epilog=_examples("list workloads"))
def list_workloads(*, json: JsonFlag = False) -> None:
    """Show the built-in workloads."""
    from flatwalk import catalogue  # noqa: PLC0415

    catalogue.workloads(as_json=json)


@app.command(epilog=_examples("version"))
def version() -> None:
    """Print the version."""
    from flatwalk import engine  # noqa: PLC0415

    print(f"flatwalk {engine.version()}")


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM ends the program as an exception does, so that temporary files go."""
    sys.exit(128 + signal.SIGTERM)


def main() -> None:
    """Runs the command line; exits with 0, 1 (failed), 2 (usage), 130 (Ctrl-C).

    `record` exits with the program's status.
    """
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = app(prog_name="flatwalk", standalone_mode=False)
        sys.stdout.flush()
    except FlatwalkError as error:
        _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        _fail_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        print("\nInterrupted; nothing was left half-written.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader has seen enough; Python must not complain when it closes standard output.
        sys.stdout = None
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _fail_usage(error: typer.TyperException) -> NoReturn:
    context = getattr(error, "ctx", None)
    message = error.format_message().strip()
    if not message and context is not None:  # no arguments: the help is the answer
        print(context.get_help())
        sys.exit(2)
    if message.startswith("Usage:"):
        print(message)
        sys.exit(2)
    path = context.command_path if context is not None else "flatwalk"
    _fail(str(FlatwalkError(message.rstrip("."), where=path, remedy=f"see {path} --help")), error.exit_code)
