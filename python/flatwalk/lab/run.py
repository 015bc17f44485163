"""Runs what of a sweep is missing, and stores each result as it comes."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import cache, engine
from flatwalk.comparison.lengths import simulated
from flatwalk.errors import FlatwalkError
from flatwalk.lab import engines, plan, store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor, Future

    from flatwalk.lab.plan import Unit
    from flatwalk.lab.store import Results

#: How often progress is reported, at least.
_LOOK_SECONDS = 0.2
#: Calls that wait in the executor for each one that it can do at a time.
_AHEAD = 2
#: Where Linux says which control groups a process is in, and what they may have (version 2).
_OWN_GROUPS, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
#: What is wrong with a run whose worker was killed.
_KILLED = "its worker was killed: perhaps there was not enough memory"
#: What is wrong with a run over a trace that is not the one its key says.
_ANOTHER = "its trace is another one by now, or where it ran"
#: Instructions of the run by which the time of all is estimated.
_REHEARSAL = 1_000_000


@dataclass
class Outcome:
    """What became of the runs."""

    done: int = 0
    #: Of them, those that nobody else had stored meanwhile.
    new: int = 0
    #: With what is wrong.
    failed: list[tuple[Unit, FlatwalkError]] = field(default_factory=list)


def memory_bytes() -> int:
    """Memory that runs may take together: half of what this process may have."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits()]) // 2


def _limits() -> list[int]:
    """What the control groups that this process is in may have, as far as they are limited."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return []
    groups = [_GROUPS / line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    found = []
    for folder in (folder for group in groups for folder in (group, *group.parents)):
        with suppress(OSError, ValueError):  # there is no such file in the root, or it says `max`
            found.append(int((folder / "memory.max").read_text()))
    return found


def run(
    name: str,
    units: list[Unit],
    results: Results,
    *,
    make: Callable[[], Executor],
    workers: int,
    progress: Callable[[int, int | None], None],
) -> Outcome:
    """Runs units, none of which is stored.

    Args:
        name: The sweep's.
        units: What to run.
        results: Where each result goes as soon as it is there.
        make: Makes an executor; another one is made if it breaks because a worker was killed.
        workers: Calls that the executor does at a time.
        progress: Called with runs done and in all.

    Raises:
        FlatwalkError: If results cannot be stored, or the executor cannot go on.
    """
    digest = cache.digest(engine.path())
    outcome = Outcome()
    waiting = plan.batches(units, workers, memory_bytes())[::-1]
    #: Those that ran when a worker was killed: any may have been the reason, so each runs again alone.
    suspects: list[list[Unit]] = []
    running: dict[Future[engines.Done], list[Unit]] = {}
    executor, alone = make(), False

    def submit(batch: list[Unit]) -> None:
        request = {**batch[0].request, "threads": 1, "runs": [unit.configuration for unit in batch]}
        code = sorted({name for unit in batch for name in unit.code})
        running[executor.submit(engines.work, json.dumps(request), digest, code)] = batch

    def take(future: Future[engines.Done]) -> None:
        batch, error = running.pop(future), future.exception()
        if isinstance(error, BrokenExecutor):
            if alone:
                fail(batch, FlatwalkError(_KILLED), suspects)
            else:
                suspects.append(batch)
        elif error is not None:
            fail(batch, _failure(error), waiting)
        elif (done := future.result()).response is None:
            fail(batch, done.failure, waiting)
        elif not _is_of(batch[0].source, done.response):
            outcome.failed.extend((unit, FlatwalkError(_ANOTHER)) for unit in batch)
        else:
            outcome.done += len(batch)
            outcome.new += _store(name, batch, done, results, digest)

    def fail(batch: list[Unit], error: FlatwalkError, again: list[list[Unit]]) -> None:
        if len(batch) > 1:  # which of them it is shows when each is a call of its own
            again.extend([unit] for unit in reversed(batch))
        else:
            outcome.failed.append((batch[0], error))

    while waiting or suspects or running:
        try:
            if suspects and not running:
                submit(suspects[-1])
                suspects.pop()
                alone = True
            while waiting and not suspects and not alone and len(running) < _AHEAD * workers:
                submit(waiting[-1])
                waiting.pop()
        except BrokenExecutor:
            if not running:
                executor = make()
        finished = wait(running, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED).done
        for future in finished:
            take(future)
        if not running and any(isinstance(future.exception(), BrokenExecutor) for future in finished):
            executor = make()
        alone = alone and bool(running)
        progress(outcome.done + len(outcome.failed), len(units))
    return outcome


def _is_of(source: plan.Source, response: dict[str, Any]) -> bool:
    """Whether what ran is the source that was planned. The path of a trace may have another one meanwhile."""
    return "trace" not in source.request or response["trace"]["hash"] == source.columns["source_hash"]


def _failure(error: BaseException) -> FlatwalkError:
    """What a run failed of.

    Raises:
        FlatwalkError: If it is not the run's failure but the executor's, which cannot go on.
    """
    if isinstance(error, FlatwalkError):
        raise error
    return FlatwalkError(f"{type(error).__name__}: {error}")


def _store(name: str, batch: list[Unit], done: engines.Done, results: Results, digest: str) -> int:
    """Stores what a call found; returns how many of its runs were not there yet."""
    assert done.response is not None
    about = {
        "sweep": name,
        "seconds": done.seconds / len(batch),
        "version": done.response["version"],
        "engine": digest,
    }
    sampling = done.response.get("sampling")
    runs = zip(batch, done.response["runs"], strict=True)
    return results.append([store.row(unit, run, sampling, **about) for unit, run in runs])


def estimate_seconds(units: Iterable[Unit], workers: int) -> float | None:
    """About how long units take, by running the beginning of the first; None if that fails."""
    units = list(units)
    first = units[0]
    request = {**first.request, "sampling": None, "warmup": 0, "skip": 0, "instructions": _REHEARSAL}
    before = time.process_time()
    done = engines.work(
        json.dumps({**request, "threads": 1, "runs": [first.configuration]}), cache.digest(engine.path())
    )
    if done.response is None or not done.response["runs"][0]["instructions"]:
        return None
    each: float = (time.process_time() - before) / done.response["runs"][0]["instructions"]
    return each * sum(map(_instructions, units)) / workers


def _instructions(unit: Unit) -> int:
    """Instructions that a unit simulates, about."""
    request = unit.request
    sampling, length = request["sampling"], request["instructions"]
    if length is None:
        length = unit.source.instructions
    if sampling is None:
        return int((length or 0) + request["warmup"])
    sampled = simulated(sampling)
    return sampled if length is None else min(length, sampled)
