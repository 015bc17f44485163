"""Runs with chosen figures, for tests of words, charts and the command line."""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING, Any

from flatwalk import _engine
from flatwalk.answer.results import Response, Run, Sampling, add_speedups
from flatwalk.definitions import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Shape of a run on gups:8GiB by scheme: (cycles, accesses per walk, reading, waiting, DRAM share).
GUPS = {
    "radix4": (1000, 2.49, 95.0, 12.0, 0.40),
    "radix3": (1000, 2.49, 95.0, 12.0, 0.40),
    "radix5": (1002, 2.49, 95.2, 12.0, 0.40),
    "fpt-l4l3": (985, 2.1, 90.0, 11.0, 0.45),
    "fpt-l3l2": (960, 1.9, 85.0, 9.0, 0.48),
    "fpt-l2l1": (930, 1.02, 70.0, 6.0, 0.70),
    "fpt": (925, 1.0, 69.0, 6.0, 0.71),
    "fpt-nonf": (925, 1.0, 69.0, 6.0, 0.71),
    "radix4+ptp": (800, 2.49, 60.0, 4.0, 0.05),
    "fpt+ptp": (760, 1.0, 43.0, 2.0, 0.06),
    "ideal": (500, None, None, None, None),
}


def run(
    scheme: str = "radix4",
    *,
    cycles: int | None = 1000,
    per_walk: float | None = 2.49,
    reading: float | None = 95.0,
    waiting: float | None = 12.0,
    dram: float | None = 0.4,
    walks: int = 100_000,
    llc_data_misses: int = 50_000,
    large_pages: int | None = 0,
    thp: str | None = None,
    warnings: list[str] | None = None,
    fault_cycles: int = 0,
) -> Run:
    """One run; `cycles` are in thousands over a million instructions."""
    timed, thousands = cycles is not None, cycles or 0
    if per_walk is None:
        walks = 0
    accesses = int(walks * (per_walk or 0))
    in_dram = int(accesses * (dram or 0))
    nodes: list[dict[str, Any]] = [
        {"level": "L4", "width": 1, "node_bytes": 4096, "nodes": 1, "bytes": 4096},
        {"level": "L1", "width": 1, "node_bytes": 4096, "nodes": 4105, "bytes": 4096 * 4105},
    ]
    if scheme.startswith("fpt"):
        nodes = [{"level": "L2L1", "width": 2, "node_bytes": 2 << 20, "nodes": 9, "bytes": 9 * (2 << 20)}]
    result: dict[str, Any] = {
        "scheme": scheme,
        "machine": "skylake-server",
        "settings": {},
        "workload": "gups:8GiB",
        "large_pages": None if thp else large_pages,
        "thp": thp,
        "fragmentation": 0.0,
        "mode": "timing" if timed else "functional",
        "seed": 1,
        "instructions": 1_000_000,
        "cycles": thousands * 1000 if timed else None,
        "ipc": 1000 / thousands if timed else None,
        "loads": 200_000,
        "stores": 100_000,
        "walks": walks,
        "accesses_per_walk": per_walk,
        "walk_latency_cycles": None
        if reading is None or waiting is None or not timed
        else reading + waiting + 1,
        "walk_queue_cycles": waiting if timed else None,
        "walk_access_cycles": None if reading is None or not timed else reading + 1,
        "translation_cycles": (thousands - 500) * 1000 if timed else None,
        "page_table_bytes": sum(item["bytes"] for item in nodes),
        "data_bytes": 8 << 30,
        "page_table": {"nodes": nodes},
        "windows": [],
        "cycle_stack": [],
        "tlb": [],
        "pwc": [],
        "walk": {
            "by_page": [],
            "accesses_by_level": [
                {
                    "level": "L1",
                    "accesses": accesses,
                    "l1d": (accesses - in_dram) // 10,
                    "l2": (accesses - in_dram) // 5,
                    "llc": accesses - in_dram - (accesses - in_dram) // 10 - (accesses - in_dram) // 5,
                    "dram": in_dram,
                }
            ],
            "latency_histogram": [
                {"from_cycles": start, "to_cycles": start + 10, "walks": walks // (4 + abs(start - 60))}
                for start in range(0, 400, 10)
            ],
            "merged": 0,
            "dirty_updates": 0,
            "faulting": 0,
            "instruction_side": 0,
        },
        "caches": [
            {
                "name": "LLC",
                "data_accesses": 100_000,
                "data_misses": llc_data_misses,
                "table_accesses": 0,
                "table_misses": 0,
                "writebacks": 0,
            }
        ],
        "dram": {
            "reads": 0,
            "writes": 0,
            "row_hits": 0,
            "row_misses": 0,
            "average_latency_cycles": 150.0 if timed else None,
        },
        "os": {
            "faults": 0,
            "fault_cycles": fault_cycles if timed else None,
            "large_page_faults": 0,
            "large_page_fallbacks": 0,
            "node_fallbacks": 0,
            "events": 0,
        },
        "energy": None,
        "llc_table_fraction": None,
        "mechanisms": {},
        "mechanism_words": [],
        "branch": {"branches": 0, "mispredictions": 0},
        "warnings": warnings or [],
        "configuration": {"scheme": settings.scheme(scheme), "machine": settings.machine("skylake-server")},
    }
    return result  # type: ignore[return-value]


def gups(large_pages: int = 0) -> list[Run]:
    """All default schemes on gups, with speed-ups."""
    runs = []
    for scheme, (cycles, per_walk, reading, waiting, dram) in GUPS.items():
        # Large pages leave a tenth of the walks and half of the cost above the ideal.
        factor = 1.0 if not large_pages else 0.5
        made = run(
            scheme,
            cycles=500 + int((cycles - 500) * factor),
            per_walk=per_walk,
            reading=reading,
            waiting=waiting,
            dram=dram,
            walks=100_000 if not large_pages else 10_000,
            large_pages=large_pages,
        )
        lost = 1 - 500_000 / (made["cycles"] or 1)
        stack(
            made,
            data_dram=0.6 * (1 - lost),
            walk_dram=0.7 * lost,
            walk_queue=0.3 * lost,
        )
        runs.append(made)
    add_speedups(runs)
    return runs


def tree() -> dict[str, Any]:
    """A tree of flattened nodes, one of which had to fall back."""

    def part(
        under: int, level: str, span: tuple[int, int], nodes: int, counts: tuple[int, int, int]
    ) -> dict[str, Any]:
        width = level.count("L")
        bottom = int(level[-1])
        kind = "page" if bottom == 1 else "table"
        return {
            "under": under,
            "level": level,
            "width": width,
            "index_bits": 9 * width,
            "entry_bytes": 1 << (12 + 9 * (bottom - 1)),
            "node_bytes": 1 << (3 + 9 * width),
            "first": hex(span[0]),
            "last": hex(span[0] + span[1] - 1),
            "nodes": nodes,
            "fallback": level == "L2",
            **dict(zip(("tables", "pages", "replicas"), counts, strict=True)),
            "node": "0x7000",
            "entries": [
                {"index": 0, "count": 3, "kind": kind, "value": "0x80000012345067"},
                {"index": 7, "count": 1, "kind": kind, "value": "0x99067"},
            ],
            "entries_left": 2,
        }

    start, gib = 0x100_0000_0000, 1 << 30
    parts = [
        part(0, "L4L3", (0, 1 << 64), 1, (10, 0, 0)),
        part(0, "L2L1", (start, 8 * gib), 8, (0, 8 << 18, 0)),
        part(0, "L2", (start + 8 * gib, gib), 1, (1, 3, 0)),
        part(0, "L2L1", (0x7FFF_C000_0000, gib), 1, (0, 33, 512)),
        part(2, "L1", (start + 8 * gib, 2 << 20), 1, (0, 5, 0)),
    ]
    return {"whose": "", "address_bits": 48, "parts": parts}


def blamed(run: Run, mappings: dict[str, tuple[int, int]]) -> Run:
    """A run whose walks come from files of these names: walks and cycles of each."""
    nothing = {"address": None, "bytes": None}
    entries: list[dict[str, Any]] = [
        {
            "kind": "file" if name else "other",
            "name": name or None,
            "walks": walks,
            "cycles": cycles,
            **nothing,
        }
        for name, (walks, cycles) in mappings.items()
    ]
    code = {
        "kind": "code",
        "function": None,
        "file": None,
        "source": None,
        "line": None,
        "walks": 0,
        "cycles": 0,
    }
    lists = {"functions": [code], "lines": [code], "mappings": entries, "unknown": []}
    run["blame"] = lists  # type: ignore[typeddict-item]
    run["walks"] = sum(walks for walks, _ in mappings.values())
    return run


def walk(scheme: str) -> dict[str, Any]:
    """A translation explained: a miss, a hit, an entry skipped and an entry read."""

    def entry(text: str, bits: list[int], *, skipped: bool) -> dict[str, Any]:
        return {"kind": "entry", "text": text, "index_bits": bits, "skipped": skipped}

    return {
        "scheme": scheme,
        "machine": "skylake-server",
        "settings": {},
        "workload": "gups:8GiB",
        "instructions": 1_000_000,
        "address": "0x1003db2590",
        "moved_to": None,
        "physical": "0x43b3590",
        "page": "4K",
        "steps": [
            {"kind": "tlb", "text": "L2 TLB: miss.", "name": "L2", "hit": False},
            {"kind": "pwc", "text": "L3 PWC: hit on VA[47:30].", "level": "L3", "hit": True},
            entry("L4L3 node at 0x0: VA[47:30] = 64", [47, 30], skipped=True),
            entry("L2L1 node at 0x600000: VA[29:12] = 15794", [29, 12], skipped=False),
        ],
        "accesses": 1,
        "latency_cycles": 5,
    }


def stack(run: Run, **parts: float) -> None:
    """Gives a run a cycle stack: shares of its cycles by part, and the rest as `base`."""
    total = run["cycles"] or 0
    cycles = {part: round(share * total) for part, share in parts.items()}
    set_stack(run, {"base": total - sum(cycles.values()), **cycles})


def set_stack(run: Run, cycles: dict[str, int]) -> None:
    """Gives a run a cycle stack: cycles by part, which need not be one that the engine knows."""
    run["cycle_stack"] = [{"part": part, "cycles": count} for part, count in cycles.items()]  # type: ignore[typeddict-item]


def split(total: int, weights: Sequence[float]) -> list[int]:
    """Whole parts of a whole number in proportion to weights."""
    ends = [0, *itertools.accumulate(weights)]
    marks = [round(total * end / ends[-1]) for end in ends]
    return [after - before for before, after in itertools.pairwise(marks)]


def sample(
    runs: list[Run],
    *,
    windows: int = 40,
    common: float = 0.3,
    own: float = 0.01,
    total: int | None = 1_000_000_000,
    seed: int = 1,
) -> Response:
    """A response whose runs have windows that sum to their figures, and intervals.

    Windows vary by `common` in what all schemes share, and by `own` in what each has to itself.
    """
    rng = random.Random(seed)
    course = [max(1 + common * rng.gauss(0, 1), 0.1) for _ in range(windows)]

    def parts(whole: int | None) -> list[int] | list[None]:
        if whole is None:
            return [None] * windows
        return split(whole, [one * max(1 + own * rng.gauss(0, 1), 0.1) for one in course])

    measured = runs[0]["instructions"]
    for run in runs:
        walks = run["walks"]
        columns: dict[str, list[Any]] = {
            "at": [round((number + 0.5) * (total or 10**9) / windows) for number in range(windows)],
            "instructions": split(run["instructions"], [1] * windows),
            "cycles": parts(run["cycles"]),
            "walks": parts(walks),
            "walk_accesses": parts(round(walks * (run["accesses_per_walk"] or 0))),
            "walk_latency_cycles": parts(round(walks * (run["walk_latency_cycles"] or 0))),
            "walk_queue_cycles": parts(round(walks * (run["walk_queue_cycles"] or 0))),
            **{
                f"l2_{kind}_{what}": parts(walks)
                for kind in ("data", "table")
                for what in ("accesses", "misses")
            },
            "cache_nj": parts(walks),
            "dram_lines": parts(walks),
        }
        for cache, what in itertools.product(("l1d", "llc"), ("accesses", "misses")):
            columns[f"{cache}_data_{what}"] = columns[f"l2_data_{what}"]
        run["windows"] = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]  # type: ignore[misc]
    sampling: Sampling = {
        "windows": windows,
        "window_instructions": measured // windows,
        "warmup_instructions": 200_000,
        "instructions_total": total,
        "instructions_measured": measured,
        "first_instruction": 0,
        "instructions_represented": total or 10**9,
        "coverage": None if total is None else measured / total,
        "sampled": True,
        "kernels_followed": False,
    }
    add_speedups(runs, sampling)
    return {**response(runs), "sampling": sampling, "bias": None}  # type: ignore[typeddict-item]


def response(runs: list[Run]) -> dict[str, Any]:
    """What the engine would answer."""
    return {
        "schema": "flatwalk-runs/1",
        "version": "0.0.0",
        "trace": {
            "name": runs[0]["workload"],
            "hash": "00ff",
            "instructions": None,
            "skip": 0,
            "warmup": 200_000,
        },
        "runs": runs,
    }


class Engine:
    """Stands in for `flatwalk._engine` where a test must choose what it answers."""

    class EngineError(Exception):
        """As the engine's."""

    #: What stands for the engine's binary.
    __file__ = __file__

    def __init__(self, answer: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        self._answer = answer

    def version(self) -> str:
        """As the engine's."""
        return "0.0.0"

    check = staticmethod(_engine.check)
    schema = staticmethod(_engine.schema)
    describe = staticmethod(_engine.describe)

    def workloads(self) -> str:
        """As the engine's."""
        return json.dumps(
            [
                {
                    "name": "gups",
                    "description": "random updates",
                    "default_size_bytes": 1 << 30,
                    "least_bytes": 4096,
                    "greatest_bytes": 1 << 46,
                    "power_of_two": True,
                    "parameters": {},
                }
            ]
        )

    def trace_info(self, _path: str, _verify: bool, _progress: object) -> str:
        """A trace that was cut off."""
        return json.dumps({"instructions": 2_000_000, "ended_early": True})

    def simulate(
        self,
        request: str,
        progress: Callable[[int, int | None], None] | None = None,
        addresses: object = None,  # noqa: ARG002 - as the engine has it
    ) -> str:
        """Answers with the runs of `gups` that were asked for, or with what the test chose."""
        asked = json.loads(request)
        self.requests.append(asked)
        if progress is not None:
            progress(1, 1)
        if self._answer is not None:
            return json.dumps(self._answer(asked))
        runs = [
            made
            for item in asked["runs"]
            for made in gups(item["large_pages"] or 0)
            if made["scheme"] == item["scheme"]["name"]
        ]
        return json.dumps(response(runs))
