"""`flatwalk host …`: the command line. Commands import their work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Argument, Option

from flatwalk.definitions.defaults import MACHINE
from flatwalk.errors import UsageError, refuse
from flatwalk.terminal.help import PLAIN, examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatwalk.host.benches import Bench
    from flatwalk.host.measure import Plan


app = typer.Typer(
    **PLAIN,
    help="Measure this machine, with statistics; inspect its processes; advise.",
    epilog=examples(
        "host pagefault --save 4level.json",
        "host diff 4level.json 5level.json",
        "host inspect 1234",
        "host machine -o mine.toml",
        "host advise",
    ),
)
run_app = typer.Typer(
    **PLAIN, help="The benches (the same as without `run`).", epilog=examples("host run gups")
)
app.add_typer(run_app, name="run")

_Command = TypeVar("_Command", bound="Callable[..., None]")


def _bench(name: str, *commands: str) -> Callable[[_Command], _Command]:
    """Makes a function the command of a bench, with `run` before its name and without."""

    def register(function: _Command) -> _Command:
        for group in (run_app, app):
            group.command(name, epilog=examples(*commands))(function)
        return function

    return register


Save = Annotated[Path | None, Option("--save", metavar="FILE", help="Write the result there, for `diff`.")]
Json = Annotated[bool, Option("--json", help="Print everything as JSON.")]
Runs = Annotated[int, Option(metavar="N", min=2, help="Processes that measure each variant.")]
AtMost = Annotated[
    float, Option(metavar="SECONDS", min=0, help="Stop after this time, once each ran 5 times, or --runs.")
]
Seed = Annotated[int, Option(metavar="N", min=0, max=2**64 - 1, help="Seed of the order and of addresses.")]
Cpu = Annotated[
    str | None,
    Option(
        "--cpu",
        metavar="N",
        help="Processor to run on [default: an isolated one, a P core, or the last].",
    ),
]
Cpus = Annotated[
    str | None,
    Option(
        "--cpu",
        metavar="LIST",
        help="Processors to run on, as 2 or 0-3 [default: isolated ones, then P cores, then the last].",
    ),
]
#: A part of what `--cpu` takes: a processor, or some in a row.
_SOME_CPUS = r" *\d{1,5}(-\d{1,5})? *"
NoCounters = Annotated[bool, Option("--no-counters", help="Do not use the processor's event counters.")]
Histogram = Annotated[
    bool, Option("--histogram", help="Also time the kernel's fault handler with bpftrace, in a separate run.")
]


def _run(
    bench: Bench,
    plan: Plan,
    host: dict[str, Any],
    *,
    save: Path | None,
    as_json: bool,
    histogram: bool = False,
) -> None:
    from flatwalk.host import bpf, measure, results, show  # noqa: PLC0415
    from flatwalk.terminal import output  # noqa: PLC0415

    with output.Progress(f"Measuring {bench.name}") as progress:
        result = measure.run(bench, plan, host, progress)
    if histogram:
        bpf.add(result, bench, plan, host)
    if save is not None:
        results.save(save, result)
    if as_json:
        print(show.as_json(result))
    else:
        show.show(result)
        if save is not None:
            output.say(f"saved: {save}")


def _prepared(
    runs: int,
    at_most: float,
    seed: int,
    cpu: str | None,
    *,
    no_counters: bool,
    save: Path | None,
    threads: bool = False,
) -> tuple[Plan, dict[str, Any]]:
    """The plan and the host; fails before anything is measured if it could not be saved.

    Unless the bench has `threads`, it runs on one processor.
    """
    from flatwalk.host import machine, measure, native  # noqa: PLC0415
    from flatwalk.terminal import output  # noqa: PLC0415

    if save is not None:
        output.check_writable(save, "--save")
    native.find()
    host = machine.describe()
    cpus = None
    if cpu is not None:
        usable = machine.usable(host)
        is_list = re.fullmatch(f"{_SOME_CPUS}(,{_SOME_CPUS})*", cpu, re.ASCII)
        cpus = list(dict.fromkeys(machine.cpu_list(cpu))) if is_list else []
        if not cpus or any(number not in usable for number in cpus):
            raise UsageError(
                f"{cpu!r} names no processors that this program may use",
                where="--cpu",
                remedy=f"choose from {', '.join(map(str, usable))}",
            )
        if len(cpus) > 1 and not threads:
            raise UsageError(
                f"{cpu!r} names {len(cpus)} processors, and this bench runs on one",
                where="--cpu",
                remedy=f"name one of them, as --cpu {cpus[-1]}",
            )
    cpus = machine.choose_cpus(host, host["cpu"]["online"] if threads else 1, cpus)
    host = machine.on(host, cpus[0])
    return measure.Plan(runs, at_most, seed, cpus, count=not no_counters), host


@_bench("pagefault", "host pagefault", "host pagefault --save 4level.json --runs 30")
def pagefault(
    *,
    size: Annotated[str, Option(metavar="SIZE", help="What is mapped.")] = "12MiB",
    repetitions: Annotated[
        int, Option(metavar="N", min=1, max=10**6, help="Repetitions in each process.")
    ] = 30,
    change_host: Annotated[
        bool, Option("--change-host", help="Also turn the kernel's fault-around off for a moment (root).")
    ] = False,
    runs: Runs = 30,
    at_most: AtMost = 45,
    seed: Seed = 1,
    cpu: Cpu = None,
    no_counters: NoCounters = False,
    histogram: Histogram = False,
    save: Save = None,
    json: Json = False,
) -> None:
    """Time page faults, per page, by the method of lmbench's lat_pagefault.

    Maps, touches every page once in random order and unmaps; what mapping alone takes is subtracted.
    File, file without fault-around, anonymous memory, and transparent huge pages, in turn.
    """
    from flatwalk import temporary, units  # noqa: PLC0415
    from flatwalk.host import benches  # noqa: PLC0415

    plan, host = _prepared(runs, at_most, seed, cpu, no_counters=no_counters, save=save)
    with temporary.directory() as directory:
        bench = benches.pagefault(
            host,
            directory,
            size_bytes=units.parse_size(size, "--size"),
            repetitions=repetitions,
            change_host=change_host,
        )
        _run(bench, plan, host, save=save, as_json=json, histogram=histogram)


@_bench("gups", "host gups --table 1GiB")
def gups(
    *,
    table: Annotated[
        str, Option(metavar="SIZE", help="Table: a power of two, at most half of memory.")
    ] = "256MiB",
    runs: Runs = 10,
    at_most: AtMost = 300,
    seed: Seed = 1,
    cpu: Cpu = None,
    no_counters: NoCounters = False,
    save: Save = None,
    json: Json = False,
) -> None:
    """Count random updates per second by HPCC's rules, on small and on huge pages.

    Four updates for each word, and a check at the end that none was lost.
    """
    from flatwalk import units  # noqa: PLC0415
    from flatwalk.host import benches, machine  # noqa: PLC0415

    plan, host = _prepared(runs, at_most, seed, cpu, no_counters=no_counters, save=save)
    assert plan.cpus
    node = machine.node_of(host, plan.cpus[0])
    bench = benches.gups(host, table_bytes=units.parse_size(table, "--table"), node=node)
    _run(bench, plan, host, save=save, as_json=json)


@_bench("walk", "host walk", "host walk --strides 4KiB,64GiB")
def walk(
    *,
    strides: Annotated[
        str | None,
        Option(metavar="A,B,...", help="Distances between pages [default: one for each level of the table]."),
    ] = None,
    group: Annotated[int, Option(metavar="N", min=1, help="References between two flushes.")] = 24,
    groups: Annotated[int, Option(metavar="N", min=4, max=10**6, help="Groups in a process.")] = 16,
    flush: Annotated[
        str | None, Option(metavar="SIZE", help="Memory that flushes the caches [default: twice their size].")
    ] = None,
    runs: Runs = 20,
    at_most: AtMost = 120,
    seed: Seed = 1,
    cpu: Cpu = None,
    no_counters: NoCounters = False,
    save: Save = None,
    json: Json = False,
) -> None:
    """Time walks by how many levels of the table are cold, and dependent cold loads for comparison.

    One reference to each of a few pages, far apart, with the caches flushed between groups: what one
    more level costs.
    """
    from flatwalk import units  # noqa: PLC0415
    from flatwalk.host import benches  # noqa: PLC0415

    plan, host = _prepared(runs, at_most, seed, cpu, no_counters=no_counters, save=save)
    bench = benches.walk(
        host,
        strides=None
        if strides is None
        else [units.parse_size(part, "--strides") for part in strides.split(",")],
        group=group,
        groups=groups,
        flush_bytes=None if flush is None else units.parse_size(flush, "--flush"),
    )
    _run(bench, plan, host, save=save, as_json=json)


@_bench("ebizzy", "host ebizzy --threads 4")
def ebizzy(
    *,
    threads: Annotated[
        int | None,
        # The limit of host/src/ebizzy.rs.
        Option(metavar="T", min=1, max=1024, help="Measure 1 to T threads [default: processors, up to 7]."),
    ] = None,
    chunks: Annotated[int, Option(metavar="N", min=1, max=10**6, help="Chunks of records.")] = 7,
    chunk: Annotated[str, Option(metavar="SIZE", help="Size of a chunk.")] = "512KiB",
    milliseconds: Annotated[
        int, Option(metavar="MS", min=10, max=3_600_000, help="Length of each run.")
    ] = 300,
    runs: Runs = 15,
    at_most: AtMost = 120,
    seed: Seed = 1,
    cpu: Cpus = None,
    no_counters: NoCounters = False,
    histogram: Histogram = False,
    save: Save = None,
    json: Json = False,
) -> None:
    """Count records found per second by threads that map, fault and unmap in one address space.

    As ebizzy -m -l -p: with munmap, and without as the control, for 1 to T threads.
    """
    from flatwalk import units  # noqa: PLC0415
    from flatwalk.host import benches  # noqa: PLC0415

    plan, host = _prepared(runs, at_most, seed, cpu, no_counters=no_counters, save=save, threads=True)
    assert plan.cpus
    available = len(plan.cpus)
    bench = benches.ebizzy(
        host,
        threads=threads or min(available, 7),
        chunks=chunks,
        chunk_bytes=units.parse_size(chunk, "--chunk"),
        milliseconds=milliseconds,
        cpus=available,
    )
    _run(bench, plan, host, save=save, as_json=json, histogram=histogram)


@app.command(
    "diff",
    epilog=examples(
        "host diff 4level.json 5level.json --plot levels.html",
        "host diff 105.6367:0.16293:30 105.88:0.18822:30",
    ),
)
def diff(
    a: Annotated[Path, Argument(metavar="A", help="Result file, the baseline; or MEAN:SD:N of times.")],
    b: Annotated[Path, Argument(metavar="B", help="Result file to compare with it; or MEAN:SD:N.")],
    *,
    other_host: Annotated[
        bool, Option("--other-host", help="Compare results of different machines.")
    ] = False,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Draw all measurements into an HTML file.")
    ] = None,
    json: Json = False,
) -> None:
    """Say whether two results of a bench differ, by how much, and what could have been detected.

    Means with 95 % intervals, Welch's and the pooled t test, effect size and bootstrap.
    """
    from flatwalk.host import diff as work  # noqa: PLC0415

    figures = work.published(str(a)), work.published(str(b))
    if figures[0] and figures[1]:
        given = {"--json": json, "--plot": plot is not None, "--other-host": other_host}
        refuse(given, "published figures are only printed")
        work.show_published(figures[0], figures[1])
        return
    if figures[0] or figures[1]:
        raise UsageError(
            "a result and published figures are not compared",
            where="A and B",
            remedy="give two files, or MEAN:SD:N twice",
        )
    work.run(a, b, other_host=other_host, plot=plot, as_json=json)


#: Accesses that `inspect` simulates.
_ACCESSES = "2M"


@app.command(
    "inspect", epilog=examples("host inspect 1234", "host inspect 1234 --simulate random --html space.html")
)
def inspect(
    pid: Annotated[int, Argument(metavar="PID", min=1, help="Process to inspect.")],
    *,
    schemes: Annotated[
        str | None,
        Option(metavar="A,B,...", help="Schemes by name or path [default: those of `compare` without +ptp]."),
    ] = None,
    machine: Annotated[
        str, Option(metavar="NAME|PATH", help="Machine whose TLBs and PWC count walks.")
    ] = MACHINE,
    simulate: Annotated[
        str | None,
        Option(metavar="PATTERN", help="Simulate accesses to its pages: random, sequential or hot."),
    ] = None,
    accesses: Annotated[str, Option(metavar="COUNT", help="Accesses to simulate.")] = _ACCESSES,
    seed: Seed = 1,
    html: Annotated[
        Path | None, Option(metavar="FILE", help="Draw the address space into an HTML file.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a live process's page table, and what it would be under each scheme.

    Reads maps, smaps and pagemap, as far as permissions go; never stops or changes the process.
    """
    from flatwalk import units  # noqa: PLC0415
    from flatwalk.host import inspection  # noqa: PLC0415

    if simulate is None:
        given = {"--accesses": accesses != _ACCESSES}
        refuse(given, "no accesses are simulated", "give --simulate PATTERN, too")
    count = units.parse_count(accesses, "--accesses")
    if count < 5:
        raise UsageError(f"{count} accesses are too few", where="--accesses", remedy="give 100k or more")
    inspection.run(
        pid,
        inspection.Options(schemes, machine, simulate, count, seed, html, as_json=json),
    )


@app.command(
    "machine", epilog=examples("host machine -o mine.toml", "compare --machine mine.toml -- sort big.txt")
)
def machine_file(
    *,
    out: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Write it there [default: print it].")
    ] = None,
    no_counters: NoCounters = False,
) -> None:
    """Write this host as a machine file, with the source of each figure.

    What the processor and the kernel do not say is taken from the nearest shipped machine. The reach of the
    TLBs is checked against the event counters where they may be used. `--machine host` uses it as it is.
    """
    from flatwalk.host import model  # noqa: PLC0415
    from flatwalk.terminal import output  # noqa: PLC0415

    if out is not None:
        output.check_writable(out, "--output")
    modelled = model.machine()
    text = model.as_toml(modelled)
    output.note(modelled.words)
    if not no_counters:
        output.note(model.checked(modelled))
    if out is None:
        print(text, end="")
    else:
        output.write_whole(out, text)


@app.command("advise", epilog=examples("host advise", "host advise pagefault.json gups.json --no-measure"))
def advise(
    results: Annotated[
        list[Path] | None,
        Argument(metavar="FILE...", help="Results of benches on this host, to use instead of measuring."),
    ] = None,
    *,
    no_measure: Annotated[bool, Option("--no-measure", help="Measure nothing.")] = False,
    json: Json = False,
) -> None:
    """Advise on this host: levels of the page table, huge pages, faults, and what is unknown.

    Measures for about a minute, so that its sentences have figures.
    """
    from flatwalk.host import advice  # noqa: PLC0415

    advice.run(results or [], measuring=not no_measure, as_json=json)
