"""`flatwalk record`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from flatwalk.commands.options import PROGRAM, Command, ProgramCommand
from flatwalk.definitions.defaults import SEED
from flatwalk.errors import UsageError
from flatwalk.terminal.help import PLAIN, examples

app = typer.Typer(**PLAIN)


@app.command(
    cls=ProgramCommand,
    context_settings=PROGRAM,
    epilog=examples(
        "record -o sort.fwt -- sort big.txt",
        "record --time 60 --windows 64 -o sorted.fwt -- sort big.txt",
        "record --exhaustive -o listed.fwt -- ls /",
        "record --skip 10M --limit 20M -o sort.fwt -- sort big.txt",
        "record --workload redis:256MiB --limit 100M -o redis.fwt",
        "record --start-at Py_RunMain --limit 5M -o run.fwt -- python3 -c 'print(sum(range(1000)))'",
    ),
)
def record(
    command: Command = None,
    *,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Trace to write [default: program.fwt].")
    ] = None,
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
        str | None,
        Option(metavar="COUNT", help="Record the first COUNT instructions, then end the program."),
    ] = None,
    windows: Annotated[
        str | None, Option(metavar="N", help="Segments of the sample: N to 2 N of them [default: 32].")
    ] = None,
    segment: Annotated[
        str | None, Option(metavar="COUNT", help="Instructions of a segment, 1000 or more [default: 2.5M].")
    ] = None,
    seed: Annotated[
        int | None, Option(metavar="NUMBER", help=f"What chance decides of the sample [default: {SEED}].")
    ] = None,
    exhaustive: Annotated[
        bool, Option("--exhaustive", help="Record everything instead of a sample.")
    ] = False,
    time: Annotated[
        str | None, Option(metavar="SECONDS", help="End the program after so long [default: run to its end].")
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
        Option(
            metavar="PLACE",
            help="Where to end recording and program: a symbol, an address, or marker: its flatwalk_stop().",
        ),
    ] = None,
    no_follow: Annotated[
        bool, Option("--no-follow", help="Do not record programs that the program starts.")
    ] = False,
) -> int:
    """Record a program's instructions and memory accesses into a trace file.

    Runs the program under QEMU's user-mode emulation, to its end, and keeps a sample of the whole run: 32 to
    64 segments of 2.5 million instructions, all of it if it is shorter. Other processes' traces go into a
    directory next to it. Where there is a program.fwt already, the default is program-2.fwt. Ctrl-C or a
    crash leaves a valid trace up to that point. The exit status is the program's.
    """
    from flatwalk.recorder import place  # noqa: PLC0415
    from flatwalk.recorder import recording as work  # noqa: PLC0415
    from flatwalk.terminal.output import unused  # noqa: PLC0415

    trace = unused(Path("program.fwt"), place.is_used) if output is None else output
    if workload is not None:
        given = (skip, start_at, stop_at, windows, segment, seed, time)
        if command or no_follow or exhaustive or any(value is not None for value in given):
            raise UsageError(
                "a workload determines itself what is recorded",
                where="--workload",
                remedy="leave out the command and all options but --output and --limit",
            )
        return work.record_workload(workload, trace, limit=limit)
    return work.record_program(
        command or [],
        trace,
        skip=skip,
        limit=limit,
        start_at=start_at,
        stop_at=stop_at,
        follow_exec=not no_follow,
        sampling=work.Sampling(windows, segment, seed, exhaustive, time),
    )
