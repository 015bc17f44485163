"""Runs the simulations that claims need, shares what they have in common, and keeps the results.

What is kept under the key of a simulation is never run again, so an interrupted command goes on where it was,
and a changed machine file or engine runs again.
"""

from __future__ import annotations

import json
import os
import resource
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from flatwalk.comparison import mixing, weighing
from flatwalk.comparison.lengths import simulate_all, simulated
from flatwalk.definitions import settings
from flatwalk.reproduce import printed, spread
from flatwalk.reproduce.planning import CROWD, PRINTED, TODAY
from flatwalk.vm import bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from flatwalk.answer.results import Run
    from flatwalk.cache import Store
    from flatwalk.reproduce.planning import Job

#: Calls of the engine at once: what a program does is worked out by one thread, and while it does that for
#: one call, the configurations of the other run.
_CALLS = 2
#: Memory that all calls may use together, and what a byte of a workload takes of it: in each run, as
#: measured, its page table and the model's data about its frames; and in the workload itself at most.
_BYTES_AT_ONCE = 12 << 30
_BYTES_PER_BYTE = 1 / 64
_OWN_BYTES_PER_BYTE = 1 / 6


class _StoppedError(Exception):
    """Another call failed, or the user wants to stop."""


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
        most = max(int(_BYTES_AT_ONCE / _CALLS / each), 1)
        # Small pieces, so that an interrupted call loses little: results are kept piece by piece.
        most = min(most, 64)
        found += [members[start : start + most] for start in range(0, len(members), most)]
    return found


#: What windows count (`spread`); those of a mix have the weighted speed-up alone.
_COUNTED = (
    *("walks", "walk_accesses", "walk_latency_cycles", "walk_queue_cycles", "cache_nj", "dram_lines"),
    *(spread.window_key(*counted) for counted in spread.CACHE_COUNTS),
)


def _mixed(request: dict[str, Any], progress: Callable[[int, int | None], None]) -> list[Run]:
    """Runs of a mix. Those under the same conditions have programs alone in common, on the same machine."""
    alike: dict[str, list[int]] = {}
    for at, run in enumerate(request["runs"]):
        conditions = {key: value for key, value in run.items() if key not in ("scheme", "large_pages")}
        alike.setdefault(json.dumps(conditions, sort_keys=True), []).append(at)
    found: dict[int, Run] = {}
    for number, members in enumerate(alike.values()):

        def part(done: int, whole: int | None, number: int = number) -> None:
            progress(number * (whole or 0) + done, whole and whole * len(alike))

        runs = _mixed_alike({**request, "runs": [request["runs"][at] for at in members]}, part)
        found |= zip(members, runs, strict=True)
    return [found[at] for at in range(len(found))]


def _mixed_alike(request: dict[str, Any], progress: Callable[[int, int | None], None]) -> list[Run]:
    """Runs of a mix that differ in schemes and large pages alone.

    Each is that of its first core, with the weighted speed-up in place of the IPC.

    The programs' own speeds, by which it is weighted, are those under today's table without large pages.
    A window's "instructions", over one cycle, are such that the sum of the others gives the weighted speed-up
    that all have without it.
    """
    programs, sources = request["source"]["mix"].values()
    lengths = {key: request.get(key) for key in ("instructions", "warmup", "skip", "sampling")}
    members = [{"source": source, **lengths} for source in sources]

    def watch(_what: str, number: int) -> AbstractContextManager[mixing.Progress]:
        return nullcontext(progress if number == len(programs) else lambda _done, _total: progress(0, None))

    mix = mixing.Mix(programs, members, request["seed"], request["threads"], watch)
    today = {**request["runs"][0], "scheme": settings.scheme(TODAY), "large_pages": 0}
    mixed = mix.simulate(request["runs"], today)
    weights = weighing.Weights(programs, mixed.alone, mixed.sampling)
    share = weights.coverage
    results = []
    for runs in mixed.cores:
        without = [weights.speedup(runs, window) for window in range(weights.windows)]
        windows = [
            dict.fromkeys(_COUNTED, 0)
            | {"at": at, "cycles": 1, "instructions": sum(without) - (len(without) - 1) * left}
            for at, left in enumerate(without)
        ]
        whole = {
            "ipc": weights.speedup(runs),
            "windows": windows,
            "sampling": None if share is None else {"coverage": share, "sampled": share < 1},
        }
        results.append(cast("Run", {**runs[0], **whole}))
    return results


def _crowded(request: dict[str, Any], progress: Callable[[int, int | None], None]) -> list[Run]:
    """Processes in guests, and those that did not get their blocks of 2 MiB when they began.

    A window is a guest: what its processes get depends on each other, and on when they run. It is one of as
    many as one likes.
    """
    swap_percent, count = request["source"][CROWD].values()
    results = []
    for number, run in enumerate(request["runs"]):
        boots = []
        for boot in range(count):
            progress(number * count + boot, len(request["runs"]) * count)
            (crowd,) = bench.oversubscribe([run["mode"]], [swap_percent])
            boots.append({"processes": crowd.processes, "refused": crowd.short_at_begin})
        # Where none was refused in any guest, nothing says how often one is.
        sampling = {"coverage": 0.0, "sampled": True} if any(boot["refused"] for boot in boots) else None
        results.append(cast("Run", {"walks": 0, "ipc": None, "windows": boots, "sampling": sampling}))
    return results


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
    answer = simulate_all(request, progress)
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
    """Instructions of one configuration that are warmed or measured, and those passed over for all."""
    programs = request["source"].get("mix", {"programs": ["one"]})["programs"]
    whole, sampling = int(request.get("instructions", 0)), request.get("sampling")
    if sampling is None:
        return len(programs) * (whole + int(request.get("warmup", 0))), 0
    measured = simulated(sampling)
    # Each program of a mix is also read alone.
    read = len(programs) + (len(set(programs)) if "mix" in request["source"] else 0)
    return len(programs) * measured, read * max(whole - measured, 0)


def _seconds(piece: Sequence[Job]) -> float:
    """Time of one processor that a batch takes."""
    measured, passed = _lengths(piece[0].request)
    runs = 0.0
    for job in piece:
        guest = _GUEST if "host" in job.configuration.get("scheme", {}) else 1.0
        runs += measured * guest * _NS.get(job.configuration.get("mode", ""), 0.0)
    return (passed * _PASSED_NS + runs) * 1e-9


def plan(jobs: Iterable[Job], store: Store) -> Plan:
    """What `simulate` will do for these jobs."""
    wanted = {job.key: job for job in jobs}
    missing = [job for key, job in wanted.items() if _kept(store, job) is None]
    pieces = batches(missing)
    return Plan(
        wanted=len(wanted),
        kept=len(wanted) - len(missing),
        simulated=sum(len(piece) * _lengths(piece[0].request)[0] for piece in pieces),
        passed=sum(_lengths(piece[0].request)[1] for piece in pieces),
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
    sizes = [len(piece) * _lengths(piece[0].request)[0] for piece in pieces]
    done = [0] * len(pieces)
    lock = threading.Lock()

    def call(number: int, stop: threading.Event) -> None:
        piece, size = pieces[number], sizes[number]

        def report(part: int, whole: int | None) -> None:
            if stop.is_set():
                raise _StoppedError
            with lock:
                if whole:  # else what this piece has done is not known yet
                    # Of a whole that turns out to be more, the same part is less.
                    done[number] = max(done[number], int(size * min(part / whole, 1.0)))
                progress(sum(done), sum(sizes))

        found = _run_batch(piece, {**piece[0].request, "threads": threads}, report)
        with lock:
            for job, result in zip(piece, found, strict=True):
                store.put(job.key, result)
                results[job.key] = result
            done[number] = size
            progress(sum(done), sum(sizes))

    # Guests have the terminal and its signals for themselves.
    alone = [number for number, piece in enumerate(pieces) if not piece[0].is_simulated]
    together = [number for number, piece in enumerate(pieces) if piece[0].is_simulated]
    # The longest first, so that none is left over alone.
    together.sort(key=lambda number: -_seconds(pieces[number]))
    memory = {number: _bytes(pieces[number]) for number in together}
    at_once(memory, min(_CALLS, threads or len(os.sched_getaffinity(0))), call)
    at_once(dict.fromkeys(alone, 0.0), 1, call)
    return results


def _bytes(piece: Sequence[Job]) -> float:
    """Memory that a batch takes, at most."""
    return _size_bytes(piece[0].request["source"]) * (len(piece) * _BYTES_PER_BYTE + _OWN_BYTES_PER_BYTE)


def at_once(memory: Mapping[int, float], calls: int, run: Callable[[int, threading.Event], None]) -> None:
    """Calls `run` for each number, in order as far as memory permits. After an error the others stop.

    Args:
        memory: What each of them takes, in bytes. One that takes more than there may be runs alone.
        calls: How many at once.
        run: Gets the number, and what is set when it is to stop.
    """
    stop = threading.Event()
    if calls == 1:  # here, where Ctrl-C is heard
        for number in memory:
            run(number, stop)
        return
    left, running = list(memory), dict[Future[None], int]()
    with ThreadPoolExecutor(calls) as pool:
        try:
            while left or running:
                used = sum(memory[number] for number in running.values())
                fits = (number for number in left if not running or used + memory[number] <= _BYTES_AT_ONCE)
                following = next(fits, None) if len(running) < calls else None
                if following is not None:
                    left.remove(following)
                    running[pool.submit(run, following, stop)] = following
                    continue
                # In between, signals are heard.
                for future in wait(running, timeout=0.1, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    future.result()
        finally:
            stop.set()
