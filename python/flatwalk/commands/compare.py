"""`flatwalk compare`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from flatwalk.commands.options import (
    PROGRAM,
    Command,
    Jobs,
    NoReport,
    ProgramCommand,
    Settings,
    complete_names,
    report_path,
)
from flatwalk.definitions.defaults import MACHINE, SEED
from flatwalk.terminal.help import PLAIN, examples

app = typer.Typer(**PLAIN)


@app.command(
    cls=ProgramCommand,
    context_settings=PROGRAM,
    epilog=examples(
        "compare -- sort big.txt",
        "compare --workload gups:8GiB --schemes radix4,fpt,fpt+ptp",
        "compare --trace program.fwt --large-pages 0,50,100 --machine zen4",
        "compare --trace program.fwt --schemes radix4,./mine.toml --json -",
        "compare --workload gups:64MiB --schemes radix4,./mine.py:LeafMap --instructions 5M",
        "compare --trace program.fwt --schemes radix4,fpt --error 0.5%",
        "compare --trace program.fwt --simpoints a.simpoints --weights a.weights --window 100M",
        "compare --trace program.fwt --machine golden-cove,zen4 --set walker.concurrent=1,4",
        "compare --cores 1 -- ./threads",
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
            autocompletion=complete_names("scheme"),
            help="Schemes by name, as path to a TOML file, or as FILE.py:NAME of Python, or two of them as "
            "GUEST/HOST; the first is the baseline [default: radix4, radix3, radix5, fpt-l4l3, fpt-l3l2, "
            "fpt-l2l1, fpt, fpt-nonf, radix4+ptp, fpt+ptp, ideal].",
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
        str,
        Option(
            metavar="HOW",
            help="Where a guest's frames lie: scattered, compact, apart, permuted or scattered_4k.",
        ),
    ] = "scattered",
    machine: Annotated[
        str | None,
        Option(
            metavar="A,B,...",
            autocompletion=complete_names("machine"),
            help="Machines by name, as path to a TOML file, or host [default: skylake-server; with --mix "
            "skylake-server-4core].",
        ),
    ] = None,
    set_: Settings = None,
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
    cores: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            max=64,
            help="Cores that the program's threads run on, at most [default: those of the machine].",
        ),
    ] = None,
    context_switch: Annotated[
        float | None,
        Option(
            metavar="MS",
            min=0.001,
            max=1_000_000,
            help="Empty TLBs and page-walk caches every so many milliseconds, as another process would.",
        ),
    ] = None,
    windows: Annotated[
        int | None,
        Option(
            metavar="N",
            min=3,
            max=2**20,
            help="Windows to measure, spread evenly over all of it [default: 40]; of a program that is "
            "recorded, N to 2N [32 to 64].",
        ),
    ] = None,
    window: Annotated[
        str | None, Option(metavar="COUNT", help="Instructions of each window, 1000 or more [default: 400K].")
    ] = None,
    warmup: Annotated[
        str | None,
        Option(metavar="COUNT", help="Instructions that are warmed before each window [default: 2M]."),
    ] = None,
    simpoints: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Measure SimPoint's intervals instead, of --window instructions each; with --weights.",
        ),
    ] = None,
    weights: Annotated[Path | None, Option(metavar="FILE", help="SimPoint's weights of these.")] = None,
    simpoints_out: Annotated[
        Path | None,
        Option(
            metavar="NAME", help="Write the windows as NAME.simpoints and NAME.weights, for other simulators."
        ),
    ] = None,
    error: Annotated[
        str | None,
        Option(
            metavar="PERCENT",
            help="Measure more windows until the table's ± of all speed-ups is at most this, as in 1%.",
        ),
    ] = None,
    exhaustive: Annotated[
        bool,
        Option("--exhaustive", help="Record and measure every instruction, from the first to the last."),
    ] = False,
    instructions: Annotated[
        str | None,
        Option(
            metavar="COUNT",
            help="Only so many instructions [default: all; of a workload 1G].",
        ),
    ] = None,
    skip: Annotated[
        str | None, Option(metavar="COUNT", help="Instructions to leave out at the beginning [default: 0].")
    ] = None,
    seed: Annotated[int, Option(metavar="N", min=0, max=2**64 - 1, help="Seed of everything random.")] = SEED,
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
    no_report: NoReport = False,
    time: Annotated[
        float | None, Option(metavar="SECONDS", min=0.1, help="Stop the program after so long.")
    ] = None,
    keep_trace: Annotated[Path | None, Option(metavar="FILE", help="Keep the recorded trace there.")] = None,
    jobs: Jobs = 0,
) -> None:
    """Say which page-table organisation makes a program faster, by how much, and why.

    Simulates every scheme on the same windows, spread over the whole run of a program that it records, over
    a trace, or over a built-in workload. Prints the answer with 95 % intervals, a table, and writes an
    HTML report.
    """
    from flatwalk.comparison import comparing as work  # noqa: PLC0415
    from flatwalk.comparison.configurations import Options  # noqa: PLC0415
    from flatwalk.units import parse_percent  # noqa: PLC0415

    usual = MACHINE if mix is None else "skylake-server-4core"
    work.run(
        Options(
            workload=workload,
            trace=trace,
            command=command or [],
            schemes=schemes,
            virt=virt,
            host_large_pages=host_large_pages,
            guest_frames=guest_frames,
            mix=mix,
            machine=usual if machine is None else machine,
            set=set_ or [],
            large_pages=large_pages,
            thp=thp,
            fragmentation=fragmentation,
            cores=cores,
            context_switch_ms=context_switch,
            instructions=instructions,
            warmup=warmup,
            skip=skip,
            windows=windows,
            window=window,
            simpoints=simpoints,
            weights=weights,
            simpoints_out=simpoints_out,
            exhaustive=exhaustive,
            time=time,
            error=None if error is None else parse_percent(error, "--error"),
            seed=seed,
            mode=mode,
            json=json,
            energy=energy,
            report=report_path(report, no_report=no_report, usual=Path("flatwalk-report.html")),
            usual_report=report is None,
            keep_trace=keep_trace,
            jobs=jobs,
        )
    )
