"""Measures a bench, in rounds in which its variants take turns.

A round measures every variant once, each in a fresh process, in an order that is random but for the
seed. So whatever drifts hits all variants alike, and where memory lies is part of what varies.
"""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from flatwalk import engine
from flatwalk.errors import FlatwalkError
from flatwalk.host import machine, native
from flatwalk.host.results import SCHEMA, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flatwalk.host.benches import Bench, Variant

#: Rounds that are measured however long they take.
FEWEST_RUNS = 5
#: At most this many times the rounds asked for are tried, to get enough undisturbed ones.
_TRIES = 3


@dataclass(frozen=True)
class Plan:
    """How a bench is run."""

    runs: int
    at_most_seconds: float
    seed: int
    cpus: list[int] | None = None
    count: bool = True


@contextlib.contextmanager
def _set(setting: tuple[Path, str] | None) -> Iterator[None]:
    """Gives a kernel's setting another value, and restores it."""
    if setting is None:
        yield
        return
    path, value = setting
    try:
        before = path.read_text(encoding="ascii")
        path.write_text(value, encoding="ascii")
    except OSError as error:
        raise FlatwalkError(
            f"{path} cannot be changed: {error.strerror}", remedy="run as root, or without --change-host"
        ) from error
    try:
        yield
    finally:
        path.write_text(before, encoding="ascii")


@dataclass
class _Round:
    """Every variant once, and how busy the machine was meanwhile."""

    samples: list[dict[str, Any]]
    shares: dict[str, float]
    #: No other program was busy, as far as this system knows.
    alone: bool
    #: Nanoseconds to read a line of the second-level cache: the slowest of all samples.
    pace: float


class _Session:
    """A bench that is being measured."""

    def __init__(self, bench: Bench, plan: Plan, host: dict[str, Any]) -> None:
        self.bench = bench
        self.plan = plan
        self.program = native.find()
        self.order = random.Random(plan.seed)  # noqa: S311
        self.cpus = machine.choose_cpus(host, max(variant.threads for variant in bench.variants), plan.cpus)
        self.node = machine.node_of(host, self.cpus[0])
        self.events = machine.events(host) if plan.count else []
        self.notes = dict.fromkeys(bench.notes)
        self.warnings: list[str] = []

    def measure(self, turn: int, done: Callable[[], None]) -> _Round:
        """Measures round number `turn`, and calls `done` after each variant."""
        self.bench.prepare()
        busyness = machine.Busyness(self.cpus)
        samples = []
        for variant in self.order.sample(self.bench.variants, len(self.bench.variants)):
            request = {
                "cpus": self.cpus[: variant.threads],
                "node": self.node,
                "events": self.events,
                "bench": {**variant.parameters, **_seeded(self.bench, self.plan, turn)},
            }
            with _set(variant.setting):
                answer = native.measure(self.program, self.bench.name, request)
            self.notes.update(dict.fromkeys(answer.pop("notes")))
            samples.append(
                {
                    "variant": variant.name,
                    "round": turn,
                    "value": _positive(answer.pop(self.bench.key), variant),
                    "preemptions": answer.pop("preemptions"),
                    "controls_nanoseconds": answer.pop("controls_nanoseconds"),
                    "counts": answer.pop("counts"),
                    "answer": answer,
                }
            )
            done()
        shares = busyness.shares()
        alone = not machine.disturbances(shares, self.cpus)
        pace = max(sample["controls_nanoseconds"]["lines"] for sample in samples)
        return _Round(samples, shares, alone, pace)

    def rounds(self, progress: Callable[[int, int | None], None]) -> list[_Round]:
        """Measures, and returns the rounds that count, in order.

        A round during which other programs were busy, or the processor slower than at its best, is measured
        again at the end, as long as time and three times the rounds asked for allow. If too few were
        undisturbed then, all count.
        """
        plan, start, steps = self.plan, time.monotonic(), 0
        #: Rounds, with the first, which warms up, and those to come.
        due = plan.runs + 1

        def tell() -> None:
            progress(steps, due * len(self.bench.variants))

        def step() -> None:
            nonlocal steps
            steps += 1
            tell()

        self.measure(-1, step)  # warms up
        rounds: list[_Round] = []
        while len(rounds) < _TRIES * plan.runs and (missing := plan.runs - len(_undisturbed(rounds))) > 0:
            if len(rounds) >= min(FEWEST_RUNS, plan.runs) and time.monotonic() - start > plan.at_most_seconds:
                self.notes[f"Time was up after {len(rounds)} rounds (--at-most)."] = None
                break
            due = 1 + min(len(rounds) + missing, _TRIES * plan.runs)
            tell()
            rounds.append(self.measure(len(rounds), step))
        found = _undisturbed(rounds)
        if len(found) < min(FEWEST_RUNS, plan.runs):
            self.warnings.append(
                f"only {len(found)} of {len(rounds)} rounds were disturbed neither by other programs nor by "
                "what slows the processor down from outside this system, so that disturbed ones count, too"
            )
            return rounds[: plan.runs]
        busy = sum(not one.alone for one in rounds)
        for count, why in [
            (busy, "other programs were busy meanwhile"),
            (len(rounds) - len(found) - busy, "something outside this system slowed the processor down"),
        ]:
            if count:
                self.notes[f"{count} of {len(rounds)} rounds do not count: {why}."] = None
        return found


def _undisturbed(rounds: list[_Round]) -> list[_Round]:
    """Rounds without other programs, at the processor's best pace."""
    alone = [one for one in rounds if one.alone]
    best = min((one.pace for one in alone), default=0.0)
    return [one for one in alone if one.pace <= (1 + machine.PACE_TOLERANCE) * best]


def run(
    bench: Bench, plan: Plan, host: dict[str, Any], progress: Callable[[int, int | None], None]
) -> Result:
    """Measures until there are `plan.runs` of each variant or time is up.

    Raises:
        FlatwalkError: If a kernel cannot be run.
    """
    started, start = datetime.now(UTC), time.monotonic()
    session = _Session(bench, plan, host)
    rounds = session.rounds(progress)
    shares = {key: sum(one.shares[key] for one in rounds) / len(rounds) for key in rounds[0].shares}
    return {
        "schema": SCHEMA,
        "version": engine.version(),
        "bench": bench.name,
        "unit": bench.unit,
        "rate": bench.rate,
        "parameters": bench.parameters,
        "seed": plan.seed,
        "cpus": session.cpus,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - start, 1),
        "host": host,
        "titles": {variant.name: variant.title for variant in bench.variants},
        "samples": [sample for one in rounds for sample in one.samples],
        "skipped": bench.skipped,
        "busy": shares,
        "warnings": machine.warnings(host, session.cpus)
        + machine.disturbances(shares, session.cpus)
        + session.warnings,
        "notes": list(session.notes),
        "histograms": {},
    }


def _seeded(bench: Bench, plan: Plan, turn: int) -> dict[str, int]:
    """The same seed for all variants of a round. ebizzy's load is the same in all rounds; gups has none."""
    if bench.name == "gups":
        return {}
    return {"seed": plan.seed if bench.name == "ebizzy" else (plan.seed * 1_000_003 + turn + 1) % 2**64}


def _positive(value: float, variant: Variant) -> float:
    if value <= 0:
        raise FlatwalkError(
            f"variant {variant.name} took no time that could be measured",
            remedy="make it larger, for instance with a larger --size",
        )
    return value
