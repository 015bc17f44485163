"""Runs the simulations that claims need, shares what they have in common, and keeps the results.

What is kept under the key of a simulation is never run again, so an interrupted command goes on where it was,
and a changed machine file or engine runs again.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any, cast

from flatwalk import engine, settings, weighing
from flatwalk.reproduce.planning import CROWD
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
    if CROWD in source:
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
        most = min(most, 32)
        found += [members[start : start + most] for start in range(0, len(members), most)]
    return found


def _mixed(request: dict[str, Any], progress: Callable[[int, int | None], None]) -> list[Run]:
    """Runs of a mix. Each is that of its first core, with the weighted speed-up in place of the IPC.

    The programs' own speeds, by which it is weighted, are those under today's table without large pages.
    """
    programs, sources = request["source"]["mix"].values()
    common = {key: value for key, value in request.items() if key not in {"source", "runs", "sampling"}}
    today = {**request["runs"][0], "scheme": settings.scheme("radix4"), "large_pages": 0}
    alone: dict[str, Run] = {}
    for core, member in enumerate(sources):
        if programs[core] not in alone:
            asked = {**common, "seed": request["seed"] + core, "sources": [member], "runs": [today]}
            alone[programs[core]] = engine.simulate_mix(asked, lambda _done, _total: None)[0][0]
    cores = engine.simulate_mix({**common, "sources": sources, "runs": request["runs"]}, progress)
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


def _simulated(request: dict[str, Any], progress: Callable[[int, int | None], None]) -> list[Run]:
    answer = engine.simulate(request, progress)
    return [cast("Run", {**run, "sampling": answer.get("sampling")}) for run in answer["runs"]]


def _run_batch(
    piece: Sequence[Job], request: dict[str, Any], progress: Callable[[int, int | None], None]
) -> list[Run]:
    """The results of jobs of one batch, whose common `request` this is."""
    request = {**request, "runs": [job.configuration for job in piece]}
    of = {"mix": _mixed, CROWD: _crowded}.get(next(iter(request["source"])), _simulated)
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

    def instructions(piece: list[Job]) -> int:
        request = piece[0].request
        programs = len(request["source"].get("mix", {"programs": "1"})["programs"])
        if (sampling := request.get("sampling")) is not None:
            return len(piece) * int(sampling["windows"] * (sampling["window"] + sampling["warmup"]))
        return len(piece) * programs * int(request["instructions"] + request["warmup"])

    total = sum(map(instructions, pieces))
    done = 0
    for piece in pieces:
        here = instructions(piece)

        def report(part: int, whole: int | None, done: int = done, here: int = here) -> None:
            progress(done + int(here * min(part / whole, 1.0)) if whole else done, total)

        found = _run_batch(piece, {**piece[0].request, "threads": threads}, report)
        for job, run in zip(piece, found, strict=True):
            store.put(job.key, run)
            results[job.key] = run
        done += here
        progress(done, total)
    return results
