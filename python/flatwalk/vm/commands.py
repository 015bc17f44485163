"""`flatwalk vm …`: the command line. Commands import their work."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from flatwalk.errors import UsageError, refuse
from flatwalk.terminal.help import PLAIN, examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flatwalk.recorder import Part
    from flatwalk.vm.machine import Machine


app = typer.Typer(
    **PLAIN,
    help="Flattened page tables in a running system: a QEMU that walks them, a Linux that uses them.",
    epilog=examples("vm build", "vm run --mode l3l2 -- sort big.txt"),
)

Source = Annotated[
    Path | None,
    Option(
        metavar="DIR",
        help="Your own trees, built as they are: DIR/qemu, DIR/linux or both, instead of Debian's with "
        "our series.",
    ),
]


@app.command("build", epilog=examples("vm build", "vm build --source ~/src"))
def build(
    *,
    source: Source = None,
    jobs: Annotated[
        int, Option("--jobs", "-j", metavar="N", min=0, help="Compilers at once; 0 is one per core.")
    ] = 0,
    debug: Annotated[
        bool,
        Option("--debug", help="Also build the kernel with all of its checks, for --debug."),
    ] = False,
    nested: Annotated[
        bool,
        Option("--nested", help="Also build the kernel with a KVM that flattens, for --nested elsewhere."),
    ] = False,
    selftests: Annotated[
        bool,
        Option(
            "--selftests",
            help="Also build Linux's own tests: for `test --tier full`, and those of KVM for "
            "`test --nested`.",
        ),
    ] = False,
    mutants: Annotated[
        bool,
        Option("--mutants", help="Also build the kernel that leaves out guards, for `test --mutate`."),
    ] = False,
    kcsan: Annotated[
        bool,
        Option("--kcsan", help="Also build the kernel that finds data races, for `test --kcsan`."),
    ] = False,
    unchecked: Annotated[
        bool,
        Option("--unchecked", help="Also build the kernel without checks, for `bench --unchecked`."),
    ] = False,
) -> None:
    """Build the QEMU and the Linux that support flattened page tables.

    Gets Debian's sources without changing the system's package configuration, applies the series in
    qemu/ and linux/, and keeps what it builds in the cache directory; a second call does nothing.
    """
    from flatwalk.vm import build as work  # noqa: PLC0415
    from flatwalk.vm import components  # noqa: PLC0415

    asked = {
        components.DEBUG_LINUX: debug,
        components.NESTED_LINUX: nested,
        components.SELFTESTS: selftests,
        components.MUTANTS_LINUX: mutants,
        components.UNCHECKED_LINUX: unchecked,
        components.KCSAN_LINUX: kcsan,
    }
    also = [component for component, given in asked.items() if given]
    for built in work.build(source, jobs=jobs, also=also):
        print(f"{built.name}: {built.path}")


Mode = Annotated[
    str,
    Option(
        "--mode", metavar="MODE", help="How Linux flattens: off, l3l2, l4l3, l2l1, l4l3+l2l1 or compendia."
    ),
]
Modes = Annotated[str | None, Option("--modes", metavar="A,B,...", help="Only these modes [default: all].")]
Cpus = Annotated[int, Option("--cpus", metavar="N", min=1, max=16, help="Virtual CPUs.")]
Memory = Annotated[str, Option("--memory", metavar="SIZE", help="The guest's memory, as 512M or 2G.")]
Levels = Annotated[int, Option("--levels", metavar="N", help="Levels of page tables: 4 or 5.")]


@app.command(
    "run",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    epilog=examples(
        "vm run --mode l3l2 -- python3 -c 'print(sum(range(10**6)))'",
        "vm run --mode l3l2 --cpus 4 --memory 2G -- stress-ng --vm 4 --vm-ops 100 --verify",
        "vm run --mode l4l3+l2l1 --record sort.fwt --instructions 20M -- sort big.txt",
        "vm run --nested --host-mode l4l3+l2l1 --mode l4l3+l2l1 --memory 256M -- sha256sum /proc/kallsyms",
    ),
)
def run(
    command: Annotated[
        list[str], Argument(metavar="-- CMD", help="Program of this system, with its arguments.")
    ],
    *,
    mode: Mode = "l3l2",
    cpus: Cpus = 1,
    memory: Memory = "1G",
    levels: Levels = 4,
    no_feature: Annotated[
        bool, Option("--no-feature", help="The same kernel on a CPU without flattened page tables.")
    ] = False,
    check: Annotated[bool, Option("--check", help="Let QEMU check for missing flushes; slower.")] = False,
    parameter: Annotated[
        list[str] | None, Option("--parameter", metavar="TEXT", help="More of the kernel's command line.")
    ] = None,
    log: Annotated[
        Path | None, Option("--log", metavar="FILE", help="Where the kernel's messages go.")
    ] = None,
    record: Annotated[
        Path | None,
        Option(
            "--record", metavar="FILE", help="Write a trace of the command, with its page tables' entries."
        ),
    ] = None,
    skip: Annotated[
        str | None,
        Option(
            "--skip", metavar="COUNT", help="Instructions of the command to leave out of the trace first."
        ),
    ] = None,
    instructions: Annotated[
        str | None,
        Option("--instructions", metavar="COUNT", help="Instructions to record; the guest ends after them."),
    ] = None,
    start_at: Annotated[
        str | None,
        Option(
            "--start-at",
            metavar="marker",
            help="Begin recording at the first flatwalk_start(), in the process that executes it.",
        ),
    ] = None,
    program: Annotated[
        str | None,
        Option(
            "--program",
            metavar="NAME",
            help="Record the first process that starts this program, instead of the command's.",
        ),
    ] = None,
    debug: Annotated[
        bool, Option("--debug", help="The kernel with all of its checks, many times slower.")
    ] = False,
    timeout: Annotated[
        float | None, Option("--timeout", metavar="SECONDS", min=1, help="Stop the guest after this time.")
    ] = None,
    nested: Annotated[
        bool,
        Option(
            "--nested",
            help="Boot a guest in the guest, run the command there, and count the entries that its page "
            "walks read. The other options are about the inner guest.",
        ),
    ] = False,
    host_mode: Annotated[
        str | None,
        Option(
            "--host-mode",
            metavar="MODE",
            help="With --nested: how KVM flattens nested page tables: off, l3l2, l4l3, l2l1 or l4l3+l2l1 "
            "[default: off].",
        ),
    ] = None,
    json: Annotated[
        Path | None,
        Option(
            "--json",
            metavar="FILE",
            help="With --nested: write what was counted as JSON; - is standard output.",
        ),
    ] = None,
    source: Source = None,
) -> None:
    """Boot a guest and run a command in it, on this system's own files.

    The command sees this system's files; what it writes stays in the guest's memory and is gone with it.
    Its input, its output and its exit status are ours. With --nested it sees nothing but the libraries that
    it is linked with, and has no input.
    """
    from flatwalk.terminal import output  # noqa: PLC0415
    from flatwalk.vm import live  # noqa: PLC0415
    from flatwalk.vm import run as work  # noqa: PLC0415
    from flatwalk.vm.machine import Machine  # noqa: PLC0415

    machine = Machine(
        mode=mode,
        levels=levels,
        cpus=cpus,
        memory=memory,
        feature=not no_feature,
        check=check,
        parameters=tuple(parameter or ()),
        kernel="debug" if debug else "usual",
    )
    if log is not None:
        output.check_writable(log, "--log")
    if json is not None and str(json) != "-":
        output.check_writable(json, "--json")
    output.check_apart([(log, "--log"), (json, "--json"), (record, "--record")])
    if nested:
        unfit = {
            "--cpus": cpus != 1,
            "--levels": levels != 4,
            "--no-feature": no_feature,
            "--check": check,
            "--record": record is not None,
            "--debug": debug,
        }
        refuse(unfit, "this does not go with --nested")
        raise typer.Exit(
            _nested(machine, host_mode or "off", command, timeout=timeout, log=log, json=json, source=source)
        )
    unfit = {"--host-mode": host_mode is not None, "--json": json is not None}
    refuse(unfit, "this is about a guest in the guest", "give --nested, too")
    if record is None:
        given = {"--skip": skip, "--instructions": instructions, "--start-at": start_at, "--program": program}
        unfit = {option: value is not None for option, value in given.items()}
        refuse(unfit, "this applies to a trace, and none is recorded", "give --record FILE, too")
        with _kept(log):
            outcome = work.run(machine, command, stdin=_input(), timeout_s=timeout, source=source)
    else:
        if timeout is not None:
            raise UsageError(
                "a recording ends by its instructions, not by time",
                where="--timeout",
                remedy="give --instructions instead",
            )
        part = _part(skip, instructions, start_at)
        with _kept(log):
            recording = live.record(machine, command, record, part, program=program, source=source)
        output.note(str(recording))
        if recording.outcome is None:
            if log is not None:
                output.write_whole(log, recording.log)
            return
        outcome = recording.outcome
    if log is not None:
        output.write_whole(log, outcome.log)
    for line in outcome.splats():
        print(f"flatwalk: the guest's kernel: {line}", file=sys.stderr)
    raise typer.Exit(outcome.status)


@contextmanager
def _kept(log: Path | None) -> Iterator[None]:
    """Keeps what the kernel of a guest logged that ended early."""
    from flatwalk.terminal import output  # noqa: PLC0415
    from flatwalk.vm import run as work  # noqa: PLC0415

    try:
        yield
    except work.GuestLostError as error:
        if log is not None:
            output.write_whole(log, error.log)
        raise


def _nested(
    machine: Machine,
    host_mode: str,
    command: list[str],
    *,
    timeout: float | None,
    log: Path | None,
    json: Path | None,
    source: Path | None,
) -> int:
    """Runs a command in a guest of a guest and reports its walks; the command's exit status."""
    from flatwalk.comparison.presenting import write_json  # noqa: PLC0415
    from flatwalk.terminal import output  # noqa: PLC0415
    from flatwalk.vm import nested  # noqa: PLC0415

    inner = nested.Guest(machine.mode, nested.mebibytes(machine.memory), machine.parameters)
    with _kept(log):
        outcome = nested.run(inner.host(host_mode), inner, command, timeout_s=timeout, source=source)
    if log is not None:
        output.write_whole(log, outcome.log + outcome.console)
    for line in outcome.splats:
        print(f"flatwalk: a guest's kernel: {line}", file=sys.stderr)
    for line in outcome.walks.words():
        output.note(line)
    if json is not None:
        write_json(json, {"host_mode": host_mode, "mode": machine.mode, **outcome.walks.document()}, indent=1)
    return outcome.status


def _part(skip: str | None, instructions: str | None, start_at: str | None) -> Part:
    """Which part of the command is recorded.

    Raises:
        UsageError: If there is no such part in a guest.
    """
    from flatwalk import recorder, units  # noqa: PLC0415

    if start_at not in (None, "marker"):
        raise UsageError(
            f"{start_at!r} is not a place that is known in a guest",
            where="--start-at",
            remedy="give marker, and flatwalk_start() in the program",
        )
    return recorder.Part(
        start_at=start_at,
        skip=units.parse_count(skip, "--skip") if skip is not None else 0,
        limit=units.parse_count(instructions, "--instructions") if instructions is not None else None,
        limit_option=f"--instructions {instructions}",
    )


def _input() -> int | None:
    """Our standard input, if it is open."""
    try:
        os.fstat(0)
    except OSError:
        return None
    return 0


@app.command(
    "test",
    epilog=examples(
        "vm test",
        "vm test --tier full --modes l4l3+l2l1 --logs logs",
        "vm test --tier full --only l3l2 --only l2l1 --json all.json --resume",
        "vm test --tier full --debug --only 'l2l1, isolated' --tests fork,oom",
        "vm test --kcsan --modes l4l3+l2l1",
        "vm test --nested --modes l4l3+l2l1 --tests kvm-tables,kvm-log",
        "vm test --soak 24 --seed 7 --json soak.json --resume",
        "vm test --mutate --only NO_FLUSH_DEMOTE --only NO_SUB_RECHECK --logs logs",
    ),
)
def run_tests(
    *,
    tier: Annotated[
        str, Option("--tier", metavar="TIER", help="short, or full: every test, machine and kind of failure.")
    ] = "short",
    modes: Modes = None,
    levels: Levels = 4,
    debug: Annotated[
        bool, Option("--debug", help="The kernel of `vm build --debug`, which is many times slower.")
    ] = False,
    kcsan: Annotated[
        bool, Option("--kcsan", help="The kernel of `vm build --kcsan`, which finds data races, and is slow.")
    ] = False,
    nested: Annotated[
        bool,
        Option(
            "--nested",
            help="KVM's own tests instead, in guests whose KVM flattens nested page tables in each mode.",
        ),
    ] = False,
    mutate: Annotated[
        bool,
        Option(
            "--mutate",
            help="Leave out each guard of the series, in turn: a test must notice (`vm build --mutants`).",
        ),
    ] = False,
    soak: Annotated[
        float | None,
        Option(
            "--soak",
            metavar="HOURS",
            min=0.01,
            help="Guests with other machines, failures and orders of tests each, for that long in all.",
        ),
    ] = None,
    seed: Annotated[
        int | None, Option("--seed", metavar="N", min=0, help="With --soak: draws other guests [default: 1].")
    ] = None,
    only: Annotated[
        list[str] | None,
        Option(
            "--only",
            metavar="TEXT",
            help="Only `off` and the case of this name, or those that contain it; with --mutate, the guard "
            "of this name. May be repeated.",
        ),
    ] = None,
    tests: Annotated[str | None, Option("--tests", metavar="A,B,...", help="Only these tests.")] = None,
    logs: Annotated[Path | None, Option("--logs", metavar="DIR", help="Keep each guest's output.")] = None,
    json: Annotated[
        Path | None,
        Option("--json", metavar="FILE", help="Write all results as JSON; - is standard output."),
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="Do not boot again what is complete already, as the --json FILE says.")
    ] = False,
    update: Annotated[
        Path | None, Option("--update", metavar="FILE", help="Put the table into this document, too.")
    ] = None,
    source: Source = None,
) -> None:
    """Test Linux with flattened page tables against itself without.

    Boots a guest in every mode, with four CPUs and a kernel that checks itself, and with allocations of
    blocks that fail. Every test must end as with `off`, and the kernel must not complain. A kernel that
    leaves out a flush on purpose must be caught. Prints a line for each test: pass, skip, xfail (not ours;
    it does not end better with `off`) or FAIL. The full tier needs `vm build --selftests`, and most of an
    hour for a mode.

    With --soak, the mode, the levels, the number of CPUs, what fails and which tests run in which order are
    drawn for each guest. A seed's guests are always the same; with --resume, calls add up to HOURS.
    With --kcsan, a race counts if a function takes part that the series adds or changes.
    With --nested, guests have guests themselves (`vm build --nested --selftests` first): tests that come
    with Linux have KVM map, log, move and split the memory of guests of several processors, with nested
    page tables that are flattened in each of KVM's modes, with blocks that fail, and with five levels.
    With --mutate, a kernel leaves out each flush, lock and second look of the series, one in each guest, and
    waits at the moment for which it is there. Prints what noticed; with all of them, nothing may.
    """
    from flatwalk.vm.testing import command as work  # noqa: PLC0415

    refuse(
        {"--kcsan": debug and kcsan}, "--debug and --kcsan are different kernels", "run one after the other"
    )
    kernels = {"mutants": mutate, "debug": debug, "kcsan": kcsan, "nested": nested}
    options = work.Options(
        tier=tier,
        modes=modes,
        levels=levels,
        kernel=next((name for name, given in kernels.items() if given), "usual"),
        soak=soak,
        seed=1 if seed is None else seed,
        only=only or (),
        tests=tests,
        logs=logs,
        json=json,
        resume=resume,
        update=update,
        source=source,
        mutate=mutate,
    )
    if nested:
        unfit = {
            "--tier": tier != "short",
            "--levels": levels != 4,
            "--debug": debug,
            "--kcsan": kcsan,
            "--mutate": mutate,
            "--soak": soak is not None,
        }
        refuse(unfit, "KVM's tests run on a machine and a kernel of their own")
    if mutate:
        unfit = {
            "--tier": tier != "short",
            "--modes": modes is not None,
            "--levels": levels != 4,
            "--debug": debug,
            "--kcsan": kcsan,
            "--tests": tests is not None,
            "--soak": soak is not None,
        }
        refuse(unfit, "the table of guards says where each is left out")
    if soak is None:
        refuse({"--seed": seed is not None}, "nothing is drawn", "give --soak HOURS, too")
    else:
        given = {"--tier": tier != "short", "--modes": modes is not None, "--levels": levels != 4}
        given |= {"--only": bool(only), "--tests": tests is not None}
        refuse(given, "--soak draws the guests")
    if not work.run(options):
        raise typer.Exit(1)


@app.command(
    "bench",
    epilog=examples(
        "vm bench",
        "vm bench --modes off,l4l3+l2l1 --levels 4",
        "vm bench --programs redis,pagerank --modes off,l3l2 --report redis.html",
        "vm bench --time --programs redis --modes off,l4l3+l2l1",
        "vm bench --host pagefault,ebizzy --save levels",
        "vm bench --nested --host-modes off,l4l3+l2l1",
        "vm bench --unchecked --modes off,l3l2",
        "vm bench --kernel --programs memcached --levels 4",
    ),
)
def bench(
    *,
    modes: Modes = None,
    levels: Annotated[
        list[int] | None, Option("--levels", metavar="N", help="Levels of page tables [default: 4 and 5].")
    ] = None,
    programs: Annotated[
        str | None,
        Option(
            "--programs",
            metavar="A,B,...",
            help="Count what the papers' programs cost instead; or all. With --time or --kernel: only these.",
        ),
    ] = None,
    threshold: Annotated[
        int | None,
        Option(
            "--threshold",
            metavar="N",
            min=1,
            max=512,
            help="With --programs: tables of a range from which on it is flattened [default: 8].",
        ),
    ] = None,
    host: Annotated[
        str | None,
        Option(
            "--host",
            metavar="A,B,...",
            help="Count the benches of `flatwalk host` instead, with 4 and with 5 levels; or all.",
        ),
    ] = None,
    boots: Annotated[
        int | None,
        Option(
            "--boots",
            metavar="N",
            min=1,
            help="Guests for each, with --host [default: 2] or --time [default: 1].",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        Option("--save", metavar="DIR", help="With --host: write results there, for `flatwalk host diff`."),
    ] = None,
    time: Annotated[
        bool,
        Option("--time", help="Measure time instead: programs recorded in guests, in the timing model."),
    ] = False,
    nested: Annotated[
        bool,
        Option("--nested", help="Measure guests of guests instead: two-dimensional walks, faults, exits."),
    ] = False,
    host_modes: Annotated[
        str | None,
        Option(
            "--host-modes",
            metavar="A,B,...",
            help="With --nested: how KVM flattens nested page tables [default: each of its modes].",
        ),
    ] = None,
    kernel: Annotated[
        bool,
        Option("--kernel", help="Count walks of the kernel's own addresses instead, and of programs'."),
    ] = False,
    unchecked: Annotated[
        bool,
        Option("--unchecked", help="Take the kernel without checks (`vm build --unchecked` first)."),
    ] = False,
    update: Annotated[
        Path | None,
        Option("--update", metavar="FILE", help="Put the tables into this document, and draw its charts."),
    ] = None,
    report: Annotated[
        Path | None, Option("--report", metavar="FILE", help="Write charts, as a page of HTML.")
    ] = None,
    json: Annotated[bool, Option("--json", help="Print what was counted as JSON instead.")] = False,
    source: Source = None,
) -> None:
    """Measure flattening in a guest: entries read per walk, kernel instructions, page-table bytes.

    One program writes 512 MiB page by page, then updates words of it at random, in one guest of one CPU for
    each mode. Instructions and walks are counted by a plugin of QEMU; nothing is sampled. The kernel is the
    one that `vm test` tests, with its checks on: compare instructions between modes, but do not take them as
    absolute. Then many processes in guests with too little memory show how many blocks are refused. Prints
    tables in Markdown.

    With --programs, graph kernels, sysbench, Redis, memcached and PostgreSQL load their data and work on it,
    each with its client in the same guest. With --time, these and GUPS are recorded in guests of each mode
    while they work, with their page tables, and simulated: walks, entries and cycles per walk, IPC, time with
    the kernel's part; what has been measured is kept, so that an interrupted command goes on where it was.
    With --host, the benches of `flatwalk host` run with `no5lvl` and with five levels.
    With --nested, a guest of a guest touches pages (`vm build --nested` first): entries of cold walks, and
    instructions of both kernels for page faults and exits; --modes are the inner guest's.
    With --kernel, all accesses of a guest look up a TLB and page-walk caches of `skylake-server`: walks of
    programs', and of the kernel's addresses, and what the latter would read with a level less. --unchecked
    counts the first, or --programs, on a kernel without checks.
    """
    from flatwalk import engine  # noqa: PLC0415
    from flatwalk.terminal import output  # noqa: PLC0415
    from flatwalk.vm import charts, document, measuring  # noqa: PLC0415

    options = measuring.Options(
        modes=modes,
        levels=levels,
        programs=programs,
        threshold=threshold,
        host=host,
        boots=boots,
        save=save,
        time=time,
        nested=nested,
        host_modes=host_modes,
        kernel=kernel,
        unchecked=unchecked,
        source=source,
    )
    options.check()
    if update is not None:
        output.check_exists(update, "--update")
        output.check_writable(update, "--update")
    if report is not None:
        output.check_writable(report, "--report")
        output.check_apart([(report, "--report")], [(update, "--update")])
    measured = measuring.measure(options)
    if report is not None:
        output.write_whole(report, charts.page(measured.charts, engine.version()))
        output.note(f"Report: {report.absolute()}")
    if json:
        print(output.as_json(measured.rows, indent=1))
    else:
        print("\n".join(measured.tables.values()).rstrip())
    if update is not None:
        document.update(update, measured.tables)
        charts.draw(update, measured.kind, measured.charts)
