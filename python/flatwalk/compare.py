"""`flatwalk compare`: from a program, a trace or a workload to an answer."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import engine, output, settings, units
from flatwalk.errors import UsageError
from flatwalk.explain import explain, large_page_words
from flatwalk.results import (
    add_energy,
    add_speedups,
    grouped,
    lost_to_translation,
    pages_label,
    warnings_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatwalk.results import Response, Run

DEFAULT_WORKLOAD = "gups:1GiB"
DEFAULT_REPORT = Path("flatwalk-report.html")
#: Instructions simulated and, before them, warmed up with, unless told otherwise.
WORKLOAD_INSTRUCTIONS, WORKLOAD_WARMUP = 50_000_000, 10_000_000
PROGRAM_INSTRUCTIONS, PROGRAM_WARMUP = 100_000_000, 10_000_000
SCHEMA = "flatwalk-compare/1"
#: A doubt about every run of a trace that has no end.
ENDED_EARLY = "the trace was cut off when it was recorded or copied: what came after is missing"


@dataclass(frozen=True)
class Options:
    """What the command line said, read but not yet acted upon."""

    workload: str | None
    trace: Path | None
    command: Sequence[str]
    schemes: str | None
    virt: str | None
    host_large_pages: int
    guest_frames: str
    machine: str
    large_pages: str | None
    thp: str | None
    fragmentation: float
    context_switch_ms: float | None
    instructions: str | None
    warmup: str | None
    skip: str | None
    seed: int
    mode: str
    json: Path | None
    energy: bool
    mix: str | None
    report: Path | None
    keep_trace: Path | None
    jobs: int


@dataclass(frozen=True)
class Lengths:
    """Numbers of instructions; `None` is not asked for."""

    instructions: int | None
    warmup: int | None
    skip: int

    def of(self, source: dict[str, Any]) -> Lengths:
        """All lengths, as asked or else fitted to what the source holds.

        Raises:
            UsageError: If the source has nothing left to measure.
        """
        warmup, instructions = self.warmup, self.instructions
        if "workload" in source:
            return Lengths(
                instructions or WORKLOAD_INSTRUCTIONS,
                WORKLOAD_WARMUP if warmup is None else warmup,
                self.skip,
            )
        available = engine.trace_info(Path(source["trace"]))["instructions"]
        if available is None:  # a foreign trace, which is read as it comes
            return Lengths(instructions or PROGRAM_INSTRUCTIONS, warmup or 0, self.skip)
        left = available - self.skip
        if warmup is None:
            warmup = min(PROGRAM_WARMUP, max(left, 0) // 10)
        if left - warmup < 1:
            raise UsageError(
                f"the trace has {available} instructions, which leaves none to measure",
                where="--skip and --warmup",
                remedy=f"together they must stay below {available}",
            )
        return Lengths(min(instructions or PROGRAM_INSTRUCTIONS, left - warmup), warmup, self.skip)


def parse_workload(text: str) -> dict[str, Any]:
    """Reads `NAME` or `NAME:SIZE` against the engine's list of workloads.

    Raises:
        UsageError: If there is no such workload, or the size is none.
    """
    name, _, size = text.partition(":")
    known = {workload["name"]: workload for workload in engine.workloads()}
    if name not in known:
        raise UsageError(
            f"there is no workload {name!r}",
            where="--workload",
            remedy=f"one of {', '.join(known)}; `flatwalk list workloads` describes them",
        )
    size_bytes = units.parse_size(size, "--workload") if size else known[name]["default_size_bytes"]
    return {"name": name, "size_bytes": size_bytes}


def parse_large_pages(text: str) -> list[int]:
    """Reads `0,50,100`: per cent of the address space on large pages.

    Raises:
        UsageError: If a value is no whole percentage.
    """
    values = []
    for item in text.split(","):
        digits = item.strip().removesuffix("%")
        if not (digits.isascii() and digits.isdecimal() and int(digits) <= 100):
            raise UsageError(
                f"{item.strip()!r} is no percentage",
                where="--large-pages",
                remedy="give whole numbers from 0 to 100, as in --large-pages 0,50,100",
            )
        values.append(int(digits))
    return list(dict.fromkeys(values))


def check_guest_frames(text: str) -> str:
    """Checks `--guest-frames`.

    Raises:
        UsageError: If it is no way to place frames.
    """
    if text not in ("scattered", "compact"):
        raise UsageError(
            f"{text!r} is no way to place a guest's frames",
            where="--guest-frames",
            remedy="give scattered or compact",
        )
    return text


def run(options: Options) -> None:
    """Does all of it: record, simulate, print, write.

    Raises:
        FlatwalkError: With what is wrong and what to do.
    """
    lengths = _lengths_asked(options)
    runs = configurations(options)
    if options.mix is not None:
        from flatwalk import mix  # noqa: PLC0415

        mix.run(options, lengths, runs)
        return
    for path, option in ((options.json, "--json"), (options.report, "--report")):
        if path is not None and str(path) != "-":
            output.check_writable(path, option)
    with ExitStack() as stack:
        source = _source(options, lengths, stack)
        response = _simulate(options, lengths.of(source), source, runs)
        ended_early = _ended_early(source)
    add_speedups(response["runs"])
    add_energy(response["runs"])
    for run_ in response["runs"] if ended_early else ():
        run_["warnings"].append(ENDED_EARLY)
    if options.json is not None:
        _write_json(options.json, response)
    _present(options, response)


def configurations(options: Options) -> list[dict[str, Any]]:
    """Every run that the options ask for, as the engine takes it.

    Raises:
        UsageError: If they do not go together.
    """
    schemes = _schemes(options)
    if not schemes:
        raise UsageError("no scheme is named", where="--schemes", remedy="as in --schemes radix4,fpt")
    machine = settings.machine(options.machine)
    guests = [scheme["name"] for scheme in schemes if "host" in scheme or scheme.get("shadow")]
    if guests and "virtualisation" not in machine:
        raise UsageError(
            f"the machine {machine['name']} has no [virtualisation] section, which {guests[0]} needs",
            where="--machine",
            remedy="choose another machine, or add the section to a copy of the file",
        )
    if options.energy and (options.mode != "timing" or "energy" not in machine):
        raise UsageError(
            f"the machine {machine['name']} has no [energy] section"
            if options.mode == "timing"
            else "functional mode has no caches",
            where="--energy",
            remedy="see docs/energy.md; skylake-server has figures, in timing mode",
        )
    if options.mode == "timing" and not settings.is_timed(machine):
        raise UsageError(
            f"the machine {machine['name']} has no core and caches, so it can count but not time",
            where="--machine",
            remedy="add --mode functional, or choose another machine",
        )
    if options.context_switch_ms is not None and options.mode != "timing":
        raise UsageError(
            "functional mode has no clock to switch by", where="--context-switch", remedy="leave out --mode"
        )
    if options.thp is not None and options.large_pages is not None:
        raise UsageError(
            "both say which pages are large", where="--large-pages and --thp", remedy="give one of them"
        )
    pages: list[tuple[int | None, str | None]]
    if options.thp is not None:
        pages = [(None, options.thp)]
    else:
        pages = [(percent, None) for percent in parse_large_pages(options.large_pages or "0,100")]
    return [
        {
            "scheme": scheme,
            "machine": machine,
            "large_pages": large_pages,
            "thp": thp,
            "fragmentation": options.fragmentation,
            "host_large_pages": options.host_large_pages,
            "guest_frames": options.guest_frames,
            "mode": options.mode,
            "context_switch_ms": options.context_switch_ms,
            "memory_bytes": None,
        }
        for large_pages, thp in pages
        for scheme in schemes
    ]


def _schemes(options: Options) -> list[dict[str, Any]]:
    def listed(text: str) -> list[str]:
        return [name for name in dict.fromkeys(map(str.strip, text.split(","))) if name]

    pairs = listed(options.virt or "")
    if options.schemes is not None:
        names = listed(options.schemes)
    else:
        # Pairs alone are measured against what today's virtual machines do.
        names = ["virt-radix4"] if pairs else list(settings.DEFAULT_SCHEMES)
    return [settings.scheme(name) for name in names] + [settings.guest(pair) for pair in pairs]


def _lengths_asked(options: Options) -> Lengths:
    def read(text: str | None, option: str) -> int | None:
        return None if text is None else units.parse_count(text, option)

    instructions = read(options.instructions, "--instructions")
    if instructions == 0:
        raise UsageError("nothing is to be simulated", where="--instructions", remedy="give a count above 0")
    return Lengths(instructions, read(options.warmup, "--warmup"), read(options.skip, "--skip") or 0)


def _source(options: Options, lengths: Lengths, stack: ExitStack) -> dict[str, Any]:
    """The engine's source. Records a program into a file that lives as long as `stack`."""
    if sum([options.workload is not None, options.trace is not None, bool(options.command)]) > 1:
        raise UsageError(
            "more than one thing to simulate",
            where="--workload, --trace and -- CMD",
            remedy="give one of them",
        )
    if options.keep_trace is not None and not options.command:
        raise UsageError(
            "there is nothing to record", where="--keep-trace", remedy="give a program: -- CMD ARGS…"
        )
    if options.command:
        path = options.keep_trace
        if path is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="flatwalk-"))
            path = Path(directory) / "program.fwt"
        else:
            output.check_writable(path, "--keep-trace")
        return {"trace": str(_record(options.command, lengths, path))}
    if options.trace is not None:
        if not options.trace.is_file():
            raise UsageError(
                f"there is no file {options.trace}",
                where="--trace",
                remedy="record one: flatwalk record -o FILE -- CMD",
            )
        return {"trace": str(options.trace)}
    return {"workload": parse_workload(options.workload or DEFAULT_WORKLOAD)}


def _record(command: Sequence[str], lengths: Lengths, path: Path) -> Path:
    """Records as much of `command` as will be simulated; returns the trace of its busiest process."""
    from flatwalk.record import record  # noqa: PLC0415

    warmup = PROGRAM_WARMUP if lengths.warmup is None else lengths.warmup
    limit = lengths.skip + warmup + (lengths.instructions or PROGRAM_INSTRUCTIONS)
    output.note(f"Recording {shlex.join(command)} …")
    with output.Progress("Recording") as progress:
        result = record(list(command), path, limit=limit, progress=progress)
    for warning in result.warnings:
        output.note(f"warning: {warning}")
    if result.status == -signal.SIGINT:  # the program was interrupted, and so are we
        raise KeyboardInterrupt
    if result.status is None:
        output.note(
            f"Ended it after {units.count(limit)} instructions, which is what will be simulated; "
            "--instructions takes more."
        )
    elif result.status != 0:
        output.note(f"warning: the program ended with status {result.status}")
    busiest = max(result.traces, key=lambda trace: trace.instructions)
    if busiest.path != result.traces[0].path:
        output.note(
            f"Simulating its busiest process, {shlex.join(busiest.command)}: "
            f"{units.count(busiest.instructions)} of {units.count(result.instructions)} instructions."
        )
    return busiest.path


def _simulate(
    options: Options, lengths: Lengths, source: dict[str, Any], runs: list[dict[str, Any]]
) -> Response:
    request = {
        "source": source,
        "instructions": lengths.instructions,
        "warmup": lengths.warmup,
        "skip": lengths.skip,
        "seed": options.seed,
        "threads": options.jobs,
        "runs": runs,
    }
    with output.Progress(f"Simulating {len(runs)} configurations") as progress:
        return engine.simulate(request, progress)


def _ended_early(source: dict[str, Any]) -> bool:
    """Whether a trace lacks its end mark. Foreign formats have none to lack."""
    return "trace" in source and bool(engine.trace_info(Path(source["trace"])).get("ended_early"))


def _write_json(path: Path, response: Response) -> None:
    answer = {
        "schema": SCHEMA,
        "version": response["version"],
        "trace": response["trace"],
        "runs": response["runs"],
    }
    text = json.dumps(answer, indent=2, ensure_ascii=False) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        output.write_whole(path, text)


def _present(options: Options, response: Response) -> None:
    runs = response["runs"]
    if str(options.json) != "-":
        for members in grouped(runs):
            headers, rows = table_of(members, energy=options.energy)
            title = f"{members[0]['workload']} on {members[0]['machine']}, {pages_label(members[0])}"
            output.table(headers, rows, title=title)
    say = output.note if str(options.json) == "-" else print
    for warning, owners in warnings_of(runs):
        names = owners if len(owners) <= 3 else [*owners[:2], f"{len(owners) - 2} more"]
        output.note(f"warning: {warning}" + (f" ({', '.join(names)})" if names else ""))
    for group in explain(runs):
        say(f"{group.label}: {group.headline}")
    for words in large_page_words(runs):
        say(words)
    if options.report is not None:
        from flatwalk.report import render  # noqa: PLC0415

        output.write_whole(options.report, render(response))
        say(f"Report: {options.report.absolute()}")


def table_of(runs: list[Run], *, energy: bool = False) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of the result table of one large-page setting, with or without energy."""

    def cell(value: float | None, style: str) -> str:
        return "–" if value is None else format(value, style)

    def change(run: Run) -> str:
        speedup = run.get("speedup")
        return "–" if speedup is None else units.signed_percent(speedup - 1)

    timed = runs[0]["cycles"] is not None
    headers = ["scheme"]
    if timed:
        headers += ["speed-up", "IPC"]
    headers += ["walks/1000 instr.", "accesses/walk"]
    if timed:
        headers += ["cycles/walk"]
    losses = [lost_to_translation(run, runs) for run in runs]
    if any(loss is not None for loss in losses):
        headers += ["lost to translation"]
    if energy:
        headers += ["cache energy", "off-chip"]
    headers += ["page table"]
    rows = []
    for run, loss in zip(runs, losses, strict=True):
        row = [run["scheme"]]
        if timed:
            row += [change(run), cell(run["ipc"], ".3f")]
        row += [
            format(run["walks"] / run["instructions"] * 1000, ".3g") if run["instructions"] else "–",
            cell(run["accesses_per_walk"], ".2f"),
        ]
        if timed:
            row += [cell(run["walk_latency_cycles"], ".1f")]
        if loss is not None:
            row += [units.percent(loss)]
        if energy:
            ratios = (run.get("relative_cache_energy"), run.get("relative_off_chip_accesses"))
            row += ["–" if ratio is None else units.signed_percent(ratio - 1) for ratio in ratios]
        row.append(units.size(run["page_table_bytes"]))
        rows.append(row)
    return headers, rows


def check_mode(mode: str) -> str:
    """Passes `timing` and `functional`.

    Raises:
        UsageError: For anything else.
    """
    if mode not in {"timing", "functional"}:
        raise UsageError(f"there is no mode {mode!r}", where="--mode", remedy="timing or functional")
    return mode


def check_thp(policy: str | None) -> str | None:
    """Passes the kernel's THP policies.

    Raises:
        UsageError: For anything else.
    """
    if policy not in {None, "always", "madvise", "never"}:
        raise UsageError(
            f"there is no THP policy {policy!r}", where="--thp", remedy="always, madvise or never"
        )
    return policy
