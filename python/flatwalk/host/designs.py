"""A process's mapping under each page-table design, as the engine simulates it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatwalk import engine, units
from flatwalk.answer.results import add_speedups
from flatwalk.definitions import machine_files, settings
from flatwalk.errors import UsageError
from flatwalk.terminal import output

if TYPE_CHECKING:
    from flatwalk.answer.results import Run
    from flatwalk.host.process import Process

PATTERNS = ("random", "sequential", "hot")
#: Accesses with which "expected" accesses per walk are counted, and those before them.
COUNTED, WARMUP = 400_000, 100_000
#: Of a mapping's trace (engine/workloads/src/mapping.rs).
INSTRUCTIONS_PER_ACCESS = 4


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
    """Neighbouring areas as one, so that a large page may span the boundary that mprotect left."""
    joined: list[dict[str, int]] = []
    for area in areas:
        if joined and joined[-1]["end"] == area["start"]:
            joined[-1] = {"start": joined[-1]["start"], "end": area["end"]}
        else:
            joined.append(area)
    return joined


def _schemes(text: str | None) -> list[dict[str, Any]]:
    if text is None:  # priority changes caches, not tables
        names = [name for name in settings.DEFAULT_SCHEMES if not name.endswith("+ptp")]
    else:
        names = settings.listed(text)
    settings.check_any_scheme(names)
    return [settings.scheme(name, "--schemes") for name in names]


def _memory(found: Process, loaded: dict[str, Any]) -> int:
    """Physical memory to simulate: the machine's, or twice what the process needs."""
    needed = sum(pages.end - pages.start for pages in found.pages)
    least = int(loaded["os"]["memory_bytes"])
    while least < 2 * needed:
        least *= 2
    return least


def run_schemes(found: Process, schemes: str | None, machine: str, *, seed: int) -> list[dict[str, Any]]:
    """Builds the process's table under every scheme and walks it.

    Args:
        found: The process.
        schemes: By name or path, separated by commas; if none is given, those of `compare` without `+ptp`.
        machine: Whose TLBs and PWC count walks.
        seed: Of the accesses.

    Returns:
        By scheme: its run on the machine (`warm`), and on one without PWC and L2 TLB (`cold`).
    """
    loaded = machine_files.load(machine)
    walked = [scheme for scheme in _schemes(schemes) if scheme.get("translation") != "free"]
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
        "seed": seed,
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
    None for machines where this is not defined, and for all but trees of x86-64's pages whose shape stands in
    the scheme.
    """
    pwc = loaded["pwc"]
    entries = pwc["entries"].get("L2") if pwc["kind"] == "split" else pwc.get("entries")
    table = scheme["table"]
    shaped = table["organisation"] == "radix" or "flatten" in table
    if not entries or not shaped or "geometry" in table:
        return None
    last = next((merged for merged in table.get("flatten", []) if merged.endswith("L1")), "L1")
    width = last.count("L")
    return int(entries) << (12 + 9 * width)


def check_pattern(pattern: str) -> None:
    """Checks that there is a pattern of accesses of that name.

    Raises:
        UsageError: If there is not.
    """
    if pattern not in PATTERNS:
        raise UsageError(
            f"there is no pattern {pattern!r}",
            where="--simulate",
            remedy=f"one of {', '.join(PATTERNS)}",
        )


def simulate(
    found: Process, schemes: str | None, machine: str, pattern: str, *, accesses: int, seed: int
) -> list[Run]:
    """Runs accesses of a pattern over the process's mapping, timed if the machine can be."""
    loaded = machine_files.load(machine)
    timed = settings.is_timed(loaded)
    request = {
        "source": source(found, pattern, accesses),
        "instructions": None,
        "warmup": accesses * INSTRUCTIONS_PER_ACCESS // 5,
        "seed": seed,
        "threads": 0,
        "runs": [
            {
                "scheme": scheme,
                "machine": loaded,
                "thp": "madvise",
                "mode": "timing" if timed else "functional",
                "memory_bytes": _memory(found, loaded),
            }
            for scheme in _schemes(schemes)
        ],
    }
    with output.Progress("Simulating") as progress:
        response = engine.simulate(request, progress)
    add_speedups(response["runs"], response.get("sampling"))
    return response["runs"]


TABLE_HEADERS = [
    "scheme",
    "page table",
    "of data",
    "accesses/walk, no PWC",
    "with PWC",
    "walks/1000 accesses",
    "PWC reach",
]
#: Those that a narrow terminal goes without, the first first.
SPARE = ["PWC reach", "of data", "walks/1000 accesses", "page table"]


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
