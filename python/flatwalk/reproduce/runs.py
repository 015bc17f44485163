"""Runs the simulations that claims need, shares what they have in common, and keeps the results.

What is kept under the key of a simulation is never run again, so an interrupted command goes on where it was,
and a changed machine file or engine runs again.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from flatwalk import engine, settings, weighing
from flatwalk.reproduce import printed
from flatwalk.reproduce.planning import CROWD, PRINTED
from flatwalk.vm import bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flatwalk.cache import Store
    from flatwalk.reproduce.planning import Job
    from flatwalk.results import Run

#: Memory that the runs of one call of the engine may use together, and what a byte of a workload
#: takes of it, as measured: its page table's share and the model's data about its frames.
_BYTES_AT_ONCE = 12 << 30
_BYTES_PER_BYTE = 1 / 64


def _kept(store: Store, job: Job) -> Run | None:
    """A kept result; None if there is none, so that it is simulated."""
    found = store.get(job.key)
    return cast("Run", found) if isinstance(found, dict) and "walks" in found else None


def _size_bytes(source: Mapping[str, Any]) -> int:
    if "workload" in source:
        return int(source["workload"]["size_bytes"])
    if "mix" in source:
        return sum(map(_size_bytes, source["mix"]["sources"]))
    if CROWD in source or PRINTED in source:
        return 0
    return sum(pages["end"] - pages["start"] for pages in source["mapping"]["pages"])


def batches(jobs: Iterable[Job]) -> list[list[Job]]:
    """Jobs that share a source, in pieces that fit into memory together."""
    groups: dict[str, dict[str, Job]] = {}
    for job in jobs:
        groups.setdefault(job.group, {})[job.key] = job
    found = []
    for group in groups.values():
        members = list(group.values())
        each = max(_size_bytes(members[0].request["source"]) * _BYTES_PER_BYTE, 1)
        most = max(int(_BYTES_AT_ONCE / each), 1)
        # Small pieces, so that an interrupted call loses little: results are kept piece by piece.
        most = min(most, 64)
        found += [members[start : start + most] for start in range(0, len(members), most)]
    return found


#: What windows count (`spread`); those of a mix have the weighted speed-up alone.
_COUNTED = (
    *("walks", "walk_accesses", "walk_latency_cycles", "walk_queue_cycles", "cache_nj", "dram_lines"),
    *(f"l2_{kind}_{what}" for kind in ("data", "table") for what in ("accesses", "misses")),
)


def _mixed(request: dict[str, Any], progress: Callable[[int, int | None], None]) -> list[Run]:
    """Runs of a mix. Each is that of its first core, with the weighted speed-up in place of the IPC.

    Where windows are asked for, each is simulated by itself, as the engine samples no mixes, and the weighted
    speed-up is their mean. A window's stands for its instructions, over one cycle.
    """
    programs, sources = request["source"]["mix"].values()
    sampling = request.get("sampling")
    common = {key: request[key] for key in ("instructions", "warmup", "skip", "seed", "threads")}
    parts = [common]
    if sampling is not None:
        stride = request["instructions"] // sampling["windows"]
        lengths = {"instructions": sampling["window"], "warmup": sampling["warmup"]}
        # Each in the middle of its stretch.
        first = max((stride - sum(lengths.values())) // 2, 0)
        parts = [{**common, **lengths, "skip": first + at * stride} for at in range(sampling["windows"])]
    found = []
    for at, part in enumerate(parts):

        def report(done: int, total: int | None, at: int = at) -> None:
            progress(at * (total or 0) + done, total and total * len(parts))

        found.append(_part_of_a_mix(programs, sources, request["runs"], part, report))
    covered = 0.0 if sampling is None else len(parts) * sampling["window"] / request["instructions"]
    results = []
    for members in zip(*found, strict=True):
        windows = [
            dict.fromkeys(_COUNTED, 0) | {"at": part["skip"], "instructions": member["ipc"], "cycles": 1}
            for part, member in zip(parts, members, strict=True)
        ]
        whole = {
            "ipc": sum(member["ipc"] or 0.0 for member in members) / len(members),
            "windows": windows,
            "sampling": None if sampling is None else {"coverage": covered, "sampled": True},
        }
        results.append(cast("Run", {**members[0], **whole}))
    return results


def _part_of_a_mix(
    programs: list[str],
    sources: list[dict[str, Any]],
    configurations: list[dict[str, Any]],
    part: dict[str, Any],
    progress: Callable[[int, int | None], None],
) -> list[Run]:
    """A mix under each configuration, with its weighted speed-up in place of the first core's IPC.

    The programs' own speeds, by which it is weighted, are those under today's table without large pages.
    """
    today = {**configurations[0], "scheme": settings.scheme("radix4"), "large_pages": 0}
    alone: dict[str, Run] = {}
    for core, member in enumerate(sources):
        if programs[core] not in alone:
            asked = {**part, "seed": part["seed"] + core, "sources": [member], "runs": [today]}
            alone[programs[core]] = engine.simulate_mix(asked, lambda _done, _total: None)[0][0]
    cores = engine.simulate_mix({**part, "sources": sources, "runs": configurations}, progress)
    weighed = weighing.weigh(programs, cores, alone)
    return [cast("Run", {**result["cores"][0], "ipc": result["weighted_speedup"]}) for result in weighed]


def _crowded(request: dict[str, Any], _progress: Callable[[int, int | None], None]) -> list[Run]:
    """Blocks of 2 MiB that processes in guests got, and that they were refused."""
    swap_percent = request["source"][CROWD]["swap_percent"]
    found = bench.oversubscribe([run["mode"] for run in request["runs"]], [swap_percent])
    return [
        cast("Run", {"walks": 0, "blocks": {"allocated": crowd.allocated, "refused": crowd.refused}})
        for crowd in found
    ]


def _printed(request: dict[str, Any], _progress: Callable[[int, int | None], None]) -> list[Run]:
    """Rows of documents, exact as far as they go."""
    kind, row = request["source"][PRINTED].values()
    return [
        cast(
            "Run",
            {
                "walks": 0,
                "printed": printed.figure(kind, row, run["scheme"]),
                "windows": [],
                "sampling": {"coverage": 1.0, "sampled": False},
            },
        )
        for run in request["runs"]
    ]


def _simulated(request: dict[str, Any], progress: Callable[[int, int | None], None]) -> list[Run]:
    answer = engine.simulate(request, progress)
    return [cast("Run", {**run, "sampling": answer.get("sampling")}) for run in answer["runs"]]


def _run_batch(
    piece: Sequence[Job], request: dict[str, Any], progress: Callable[[int, int | None], None]
) -> list[Run]:
    """The results of jobs of one batch, whose common `request` this is."""
    request = {**request, "runs": [job.configuration for job in piece]}
    of = {"mix": _mixed, CROWD: _crowded, PRINTED: _printed}.get(next(iter(request["source"])), _simulated)
    return of(request, progress)


def rehearse(
    jobs: Iterable[Job], threads: int, progress: Callable[[int, int | None], None], instructions: int
) -> int:
    """Simulates the first instructions of every job, and keeps nothing.

    Args:
        jobs: As for `simulate`; none in a guest.
        threads: Likewise.
        progress: Called with batches done and in all.
        instructions: How many of each.

    Returns:
        The most memory that this process ever had, in bytes.

    Raises:
        FlatwalkError: If the engine refuses one.
    """
    pieces = batches(jobs)
    for done, piece in enumerate(pieces):
        progress(done, len(pieces))
        short = {"instructions": instructions, "warmup": 0, "sampling": None, "threads": threads}
        _run_batch(piece, {**piece[0].request, **short}, lambda *_: None)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


#: Nanoseconds of one processor for an instruction that is passed over, once for all configurations of a
#: batch, and for one that is warmed or measured, of each configuration (docs/reproducing.md).
_PASSED_NS = 6.0
_NS = {"functional": 20.0, "timing": 75.0}
#: A run in a guest takes this many times as long.
_GUEST = 1.8
#: And so does one of several programs at once, which share a last-level cache.
_MIX = 5.0


@dataclass(frozen=True)
class Plan:
    """What a call is going to simulate."""

    #: Simulations in all, and of them those whose results are kept.
    wanted: int
    kept: int
    #: Instructions that are warmed or measured, of all simulations, and those that are passed over.
    simulated: int
    passed: int
    #: Time of one processor, estimated.
    seconds: float


def _lengths(request: Mapping[str, Any]) -> tuple[int, int]:
    """Instructions of one configuration that are warmed or measured, and those that are passed over."""
    programs = len(request["source"].get("mix", {"programs": "1"})["programs"])
    whole, sampling = int(request.get("instructions", 0)), request.get("sampling")
    if sampling is None:
        return programs * (whole + int(request.get("warmup", 0))), 0
    measured = int(sampling["windows"] * (sampling["window"] + sampling["warmup"]))
    if "mix" in request["source"]:
        # Each window's simulation begins at the programs' first instruction.
        return programs * measured, programs * whole * int(sampling["windows"]) // 2
    return measured, max(whole - measured, 0)


def _passed(piece: Sequence[Job]) -> int:
    """Instructions that a batch passes over: all configurations together, but each of a mix by itself."""
    return _lengths(piece[0].request)[1] * (len(piece) if "mix" in piece[0].request["source"] else 1)


def _seconds(piece: Sequence[Job]) -> float:
    """Time of one processor that a batch takes."""
    measured, _ = _lengths(piece[0].request)
    runs, factor = 0.0, _MIX if "mix" in piece[0].request["source"] else 1.0
    for job in piece:
        guest = _GUEST if "host" in job.configuration.get("scheme", {}) else 1.0
        runs += measured * guest * factor * _NS.get(job.configuration.get("mode", ""), 0.0)
    return (_passed(piece) * _PASSED_NS + runs) * 1e-9


def plan(jobs: Iterable[Job], store: Store) -> Plan:
    """What `simulate` will do for these jobs."""
    wanted = {job.key: job for job in jobs}
    missing = [job for key, job in wanted.items() if _kept(store, job) is None]
    pieces = batches(missing)
    return Plan(
        wanted=len(wanted),
        kept=len(wanted) - len(missing),
        simulated=sum(len(piece) * _lengths(piece[0].request)[0] for piece in pieces),
        passed=sum(map(_passed, pieces)),
        seconds=sum(map(_seconds, pieces)),
    )


def simulate(
    jobs: Iterable[Job], store: Store, threads: int, progress: Callable[[int, int | None], None]
) -> dict[str, Run]:
    """The results of all jobs by key: those kept, and the others simulated now and kept.

    Raises:
        FlatwalkError: If the engine refuses one.
    """
    wanted = {job.key: job for job in jobs}
    results = {key: run for key, job in wanted.items() if (run := _kept(store, job)) is not None}
    pieces = batches(job for key, job in wanted.items() if key not in results)
    total = sum(len(piece) * _lengths(piece[0].request)[0] for piece in pieces)
    done = 0
    for piece in pieces:
        here = len(piece) * _lengths(piece[0].request)[0]

        def report(part: int, whole: int | None, done: int = done, here: int = here) -> None:
            progress(done + int(here * min(part / whole, 1.0)) if whole else done, total)

        found = _run_batch(piece, {**piece[0].request, "threads": threads}, report)
        for job, run in zip(piece, found, strict=True):
            store.put(job.key, run)
            results[job.key] = run
        done += here
        progress(done, total)
    return results
