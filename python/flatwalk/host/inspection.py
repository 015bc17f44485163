"""`flatwalk host inspect`: what each page-table design would do to a live process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatwalk import engine, output, settings, units
from flatwalk.errors import UsageError
from flatwalk.host import machine, process
from flatwalk.results import add_speedups, is_bound

if TYPE_CHECKING:
    from pathlib import Path

    from flatwalk.host.process import Process
    from flatwalk.results import Run

PATTERNS = ("random", "sequential", "hot")
#: Accesses with which "expected" accesses per walk are counted, and those before them.
COUNTED, WARMUP = 400_000, 100_000
#: Of a mapping's trace (engine/workloads/src/mapping.rs).
INSTRUCTIONS_PER_ACCESS = 4
#: Smaller speed-ups are told as none: where pages happen to lie moves a result by as much.
WORTH_TELLING = 0.005


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    schemes: str | None
    machine: str
    simulate: str | None
    accesses: int
    seed: int
    html: Path | None
    as_json: bool


def source(found: Process, pattern: str, accesses: int) -> dict[str, Any]:
    """The engine's source for a process's mapping.

    Raises:
        UsageError: If nothing of it is present.
    """
    if not found.pages:
        raise UsageError(
            f"no page of process {found.pid} is present", where="PID", remedy="choose a process that works"
        )
    executable = [area for area in found.areas if "x" in area.rights]
    code = next(
        (
            pages.start
            for pages in found.pages
            if any(area.start <= pages.start < area.end for area in executable)
        ),
        found.pages[0].start,
    )
    areas = [{"start": area.start, "end": area.end} for area in found.areas]
    return {
        "mapping": {
            "name": f"process {found.pid}: {found.name}"[:80],
            "areas": _joined(areas),
            "pages": [vars(pages) for pages in found.pages],
            "code": code,
            "pattern": pattern,
            "accesses": accesses,
        }
    }


def _joined(areas: list[dict[str, int]]) -> list[dict[str, int]]:
    """Neighbouring areas as one, so that a large page may reach over the border that mprotect left."""
    joined: list[dict[str, int]] = []
    for area in areas:
        if joined and joined[-1]["end"] == area["start"]:
            joined[-1] = {"start": joined[-1]["start"], "end": area["end"]}
        else:
            joined.append(area)
    return joined


def _schemes(text: str | None) -> list[dict[str, Any]]:
    names = [name.strip() for name in text.split(",")] if text else list(settings.DEFAULT_SCHEMES)
    if text is None:  # priority changes caches, not tables
        names = [name for name in names if not name.endswith("+ptp")]
    return [settings.scheme(name, "--schemes") for name in dict.fromkeys(names) if name]


def _memory(found: Process, loaded: dict[str, Any]) -> int:
    """Physical memory to simulate: the machine's, or twice what the process needs."""
    needed = sum(pages.end - pages.start for pages in found.pages)
    least = int(loaded["os"]["memory_bytes"])
    while least < 2 * needed:
        least *= 2
    return least


def run_schemes(found: Process, options: Options) -> list[dict[str, Any]]:
    """Builds the process's table under every scheme and walks it.

    Returns:
        By scheme: its run on the machine (`warm`), and on one without PWC and L2 TLB (`cold`).
    """
    schemes, loaded = _schemes(options.schemes), settings.machine(options.machine)
    walked = [scheme for scheme in schemes if scheme.get("translation") != "free"]
    # A TLB of one entry makes every access walk, so that small processes' walks have a length, too.
    sizes = [{"pages": [size], "entries": 1, "ways": 1, "latency_cycles": 1} for size in ("4K", "2M", "1G")]
    without = {**loaded, "pwc": {"kind": "none"}, "tlb": {"l1d": sizes}}
    runs = [
        {
            "scheme": scheme,
            "machine": kind,
            "thp": "madvise",
            "mode": "functional",
            "memory_bytes": _memory(found, loaded),
        }
        for scheme in walked
        for kind in (loaded, without)
    ]
    request = {
        "source": source(found, "random", COUNTED + WARMUP),
        "instructions": COUNTED * INSTRUCTIONS_PER_ACCESS,
        "warmup": WARMUP * INSTRUCTIONS_PER_ACCESS,
        "seed": options.seed,
        "threads": 0,
        "runs": runs,
    }
    with output.Progress(f"Building {len(walked)} page tables") as progress:
        answer = engine.simulate(request, progress)["runs"]
    return [
        {"scheme": scheme["name"], "reach_bytes": reach_bytes(scheme, loaded), "warm": warm, "cold": cold}
        for scheme, warm, cold in zip(walked, answer[::2], answer[1::2], strict=True)
    ]


def reach_bytes(scheme: dict[str, Any], loaded: dict[str, Any]) -> int | None:
    """Addresses for which the PWC can hold the pointer to the last node of a 4 KiB page's walk.

    The structure for it has the machine's L2 entries, as in ADR 0004; each covers what that node maps.
    None for organisations and machines of which this cannot be said.
    """
    pwc = loaded["pwc"]
    entries = pwc["entries"].get("L2") if pwc["kind"] == "split" else pwc.get("entries")
    table = scheme["table"]
    if not entries or (table["organisation"] != "radix" and "flatten" not in table):
        return None
    last = next((merged for merged in table.get("flatten", []) if merged.endswith("L1")), "L1")
    width = last.count("L")
    return int(entries) << (12 + 9 * width)


def simulate(found: Process, options: Options, pattern: str) -> list[Run]:
    """Runs accesses of a pattern over the process's mapping, timed if the machine can be."""
    loaded = settings.machine(options.machine)
    timed = settings.is_timed(loaded)
    request = {
        "source": source(found, pattern, options.accesses),
        "instructions": None,
        "warmup": options.accesses * INSTRUCTIONS_PER_ACCESS // 5,
        "seed": options.seed,
        "threads": 0,
        "runs": [
            {
                "scheme": scheme,
                "machine": loaded,
                "thp": "madvise",
                "mode": "timing" if timed else "functional",
                "memory_bytes": _memory(found, loaded),
            }
            for scheme in _schemes(options.schemes)
        ],
    }
    with output.Progress("Simulating") as progress:
        runs = engine.simulate(request, progress)["runs"]
    add_speedups(runs)
    return runs


def run(pid: int, options: Options) -> None:
    """Inspects a process and says what was found."""
    if options.html is not None:
        output.check_writable(options.html, "--html")
    if options.simulate is not None and options.simulate not in PATTERNS:
        raise UsageError(
            f"there is no pattern {options.simulate!r}",
            where="--simulate",
            remedy=f"one of {', '.join(PATTERNS)}",
        )
    found = process.read(pid)
    host = machine.describe()
    levels = process.radix_levels(found.pages, host["page_table_levels"] or 4, host["page_bytes"])
    notes = list(found.notes)
    tables: list[dict[str, Any]] = []
    simulated: list[Run] = []
    if host["page_bytes"] == 4096:
        tables = run_schemes(found, options)
        if options.simulate is not None:
            simulated = simulate(found, options, options.simulate)
    else:
        notes.append(
            f"Pages of {units.size(host['page_bytes'])}: the schemes have 4 KiB pages, so none is computed."
        )
    if options.html is not None:
        from flatwalk.host import plots  # noqa: PLC0415

        output.write_whole(
            options.html, plots.address_space(found, levels, table_rows(tables), engine.version())
        )
    if options.as_json:
        print(json.dumps(_as_json(found, levels, tables, simulated, notes), indent=1, ensure_ascii=False))
        return
    _show(found, levels, host)
    if tables:
        output.table(TABLE_HEADERS, table_rows(tables))
        print(
            f"Tables as the engine builds them for this mapping; walks counted over {units.count(COUNTED)} "
            f"accesses to random present pages, on {options.machine}."
        )
    if simulated:
        print()
        _show_simulated(simulated, options)
    for line in notes:
        print(f"note: {line}")
    if options.html is not None:
        print(f"drawn: {options.html}")


def present_bytes(found: Process) -> tuple[int, int]:
    """Bytes on small and on large pages."""
    sums = [0, 0]
    for pages in found.pages:
        sums[pages.large] += pages.end - pages.start
    return sums[0], sums[1]


TABLE_HEADERS = [
    "scheme",
    "page table",
    "of data",
    "accesses/walk, no PWC",
    "with PWC",
    "walks/1000 accesses",
    "PWC reach",
]


def table_rows(tables: list[dict[str, Any]]) -> list[list[str]]:
    """Cells of the table of schemes."""
    rows = []
    for table in tables:
        warm, cold = table["warm"], table["cold"]
        share = warm["page_table_bytes"] / warm["data_bytes"] if warm["data_bytes"] else 0.0
        rows.append(
            [
                table["scheme"],
                units.size(warm["page_table_bytes"]),
                units.percent(share),
                "–" if cold["accesses_per_walk"] is None else f"{cold['accesses_per_walk']:.2f}",
                "–" if warm["accesses_per_walk"] is None else f"{warm['accesses_per_walk']:.2f}",
                f"{1000 * warm['walks'] * INSTRUCTIONS_PER_ACCESS / warm['instructions']:.3g}",
                "–" if table["reach_bytes"] is None else units.size(table["reach_bytes"]),
            ]
        )
    return rows


def _show(found: Process, levels: list[process.Level], host: dict[str, Any]) -> None:
    small, large = present_bytes(found)
    mapped = sum(area.end - area.start for area in found.areas)
    print(f"Process {found.pid}: {found.name}")
    print(
        f"{len(found.areas)} areas of {units.size(mapped)}; present: {units.size(small)} on "
        f"{units.size(host['page_bytes'])} pages, {units.size(large)} on 2 MiB pages."
    )
    print()
    entries = host["page_bytes"] // 8
    output.table(
        ["level of its table", "nodes", "bytes", "entries in use", "occupancy"],
        [
            [
                f"L{level.level}",
                str(level.nodes),
                units.size(level.bytes),
                str(level.entries),
                units.percent(level.occupancy(entries)),
            ]
            for level in levels
        ],
    )
    if found.table_bytes is not None:
        present = sum(level.bytes for level in levels[1:])
        # For each anonymous large page the kernel keeps a PTE node, to split it without allocating.
        spare = sum(area.sizes.get("AnonHugePages", 0) for area in found.areas) // process.LARGE * 4096
        print(
            f"The kernel counts {units.size(found.table_bytes)} below the root: {units.size(present)} for "
            f"what is present, {units.size(spare)} kept to split large pages, the rest for what is not."
        )
        print()


def _show_simulated(runs: list[Run], options: Options) -> None:
    from flatwalk.compare import table_of  # noqa: PLC0415

    headers, rows = table_of(runs)
    title = f"{options.simulate} accesses to its pages, simulated on {runs[0]['machine']}"
    output.table(headers, rows, title=title)
    designs = [run for run in runs if not is_bound(run) and run.get("speedup") is not None]
    if len(designs) > 1:
        best = max(designs, key=lambda run: run.get("speedup") or 0.0)
        change = (best.get("speedup") or 1.0) - 1
        print(
            f"Fastest of them: {best['scheme']}, {units.signed_percent(change)} against {runs[0]['scheme']}."
            if change >= WORTH_TELLING
            else f"None is faster than {runs[0]['scheme']} by {units.percent(WORTH_TELLING)} or more."
        )
        print("The pattern is chosen, not the process's own: record the program for that.")


def _as_json(
    found: Process,
    levels: list[process.Level],
    tables: list[dict[str, Any]],
    simulated: list[Run],
    notes: list[str],
) -> dict[str, Any]:
    small, large = present_bytes(found)
    return {
        "schema": "flatwalk-inspect/1",
        "version": engine.version(),
        "pid": found.pid,
        "name": found.name,
        "small_page_bytes": small,
        "large_page_bytes": large,
        "kernel_table_bytes": found.table_bytes,
        "areas": [vars(area) for area in found.areas],
        "pages": [vars(pages) for pages in found.pages],
        "levels": [vars(level) for level in levels],
        "schemes": tables,
        "simulated": simulated,
        "notes": notes,
    }
