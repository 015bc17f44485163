"""Simulates a mix: each program alone, and all together over the same windows.

Alone comes first, as it says three things that windows in the mix depend on: where a workload ends whose
length was not known, so that its windows are spread over what there is; how many windows a recording has,
as all programs have as many; and how fast each is. What a shared cache holds of each program depends on what
each does in the same time. So what is read for all warm-ups takes as long, at the programs' speeds alone, and
a program runs on behind its window for as long as the slowest takes for its own; at which speeds they run
together, the engine sees (`engine/timing/src/simulate/mix/windows.rs`).

Alone, a program has all of the shared cache, which it may take long to fill. What a program is weighed by
is therefore warmed longer than what is compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatwalk import engine, units
from flatwalk.comparison.lengths import FILLINGS, nothing_left, recorded_sample, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from flatwalk.answer.results import Run, Sampling

    Progress = Callable[[int, int | None], None]

#: As many times the usual warm-up are warmed before each window of a program alone, which has the whole
#: shared cache to fill; where there is one program, as much as in a round, whose runs are the same.
ALONE_WARMUPS = 8
#: As many times the usual warm-up are warmed at most of a program that is faster than the slowest.
MOST_WARMUPS = 4.0
#: So many times its window and the instructions before it run on behind that at most.
MOST_WINDOWS = 16.0
#: Programs that are simulated at once under some configuration, at most: each has page tables in memory.
MOST_RUNS = 48
#: Instructions that run before a window with the clock (`engine/timing/src/driver/sampling.rs`).
DETAILED = 50_000


@dataclass(frozen=True)
class Mixed:
    """What came out."""

    #: By configuration: the cores' results.
    cores: list[list[Run]]
    #: By core: what was measured of its program.
    sampling: list[Sampling]
    #: By program: its run alone.
    alone: dict[str, Run]
    #: By core: what the engine was asked for.
    requests: list[dict[str, Any]]
    #: By program: what it was asked for of the run alone.
    requests_alone: dict[str, dict[str, Any]]
    #: The program that has too few instructions between its windows for the warm-up that was asked for.
    too_short: str | None
    #: As many windows leave room for all of the warm-up before each; None where nothing limits them.
    most_windows: int | None


@dataclass(frozen=True)
class Mix:
    """Programs, and what is common to all their simulations.

    A request has the source, its limits and `sampling`, as `engine.simulate` takes them.
    """

    programs: Sequence[str]
    requests: Sequence[dict[str, Any]]
    seed: int
    threads: int
    #: Given what is simulated, and of how many programs, says how far that is.
    watch: Callable[[str, int], AbstractContextManager[Progress]]

    def simulate(self, runs: Sequence[dict[str, Any]], baseline: dict[str, Any]) -> Mixed:
        """All programs together under `runs`, and each alone under `baseline`.

        Raises:
            UsageError: If a program has nothing to measure.
            FlatwalkError: If a source cannot be read, or a configuration is not possible.
        """
        requests = dict(zip(self.programs, map(unfilled, self.requests), strict=True))
        found = {name: self._alone(name, request, baseline) for name, request in requests.items()}
        for name, (run, _, request) in found.items():
            if not run["instructions"]:
                raise nothing_left(request, f" of {name}")
        sampled = [sampling["windows"] for _, sampling, _ in found.values() if sampling["sampled"]]
        fewest = min(sampled, default=0)
        for name, (_, sampling, request) in found.items():
            if sampled and (sampling["windows"] != fewest or not sampling["sampled"]):
                found[name] = self._alone(name, _changed(request, windows=fewest), baseline)
        asked, too_short = in_step(found) if sampled else (requests, None)
        most = _most_windows(found) if sampled else None
        together = [asked[name] for name in self.programs]
        cores, measured = self.together(runs, together)
        totals = [found[name][1]["instructions_total"] for name in self.programs]
        sampling_of_all: list[Sampling] = [
            {**one, "instructions_total": total} for one, total in zip(measured, totals, strict=True)
        ]
        alone = {name: run for name, (run, _, _) in found.items()}
        requests_alone = {name: self.longer(request) for name, (_, _, request) in found.items()}
        return Mixed(cores, sampling_of_all, alone, together, requests_alone, too_short, most)

    def alone(
        self, requests: Mapping[str, dict[str, Any]], baseline: dict[str, Any], what: str = ""
    ) -> dict[str, Run]:
        """Each program by itself, as these requests ask for it."""
        found = {}
        for name, request in requests.items():
            cores, _ = self._by_itself(name, request, baseline, what)
            found[name] = cores[0][0]
        return found

    def together(
        self, runs: Sequence[dict[str, Any]], requests: Sequence[dict[str, Any]], what: str = ""
    ) -> tuple[list[list[Run]], list[Sampling]]:
        """All programs together, as these requests ask for them.

        Returns:
            By configuration the cores' results, and by core what was measured of its program.
        """
        size = max(MOST_RUNS // len(requests), 1)
        cores: list[list[Run]] = []
        sampling: list[Sampling] = []
        for first in range(0, len(runs), size):
            part = runs[first : first + size]
            several = units.several(len(part), "configuration")
            if len(part) < len(runs):
                several = f"{first + 1} to {first + len(part)} of {len(runs)} configurations"
            together = f"{several} of {units.several(len(requests), 'program')}{what}"
            found, sampling = self._run(requests, part, self.seed, together)
            cores += found
        return cores, sampling

    def _alone(
        self, name: str, request: dict[str, Any], baseline: dict[str, Any]
    ) -> tuple[Run, Sampling, dict[str, Any]]:
        """A program by itself; and the request, shortened if that was too long."""
        cores, (sampling,) = self._by_itself(name, self.longer(request), baseline)
        shorter = shortened(request, sampling)
        if shorter is None:
            return cores[0][0], sampling, request
        run, measured, request = self._alone(name, shorter, baseline)
        return run, {**measured, "instructions_total": sampling["instructions_total"]}, request

    def longer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The request for a program alone."""
        if request["sampling"] is None or len(self.programs) == 1:
            return request
        return _changed(request, warmup=ALONE_WARMUPS * request["sampling"]["warmup"])

    def _by_itself(
        self, name: str, request: dict[str, Any], baseline: dict[str, Any], what: str = ""
    ) -> tuple[list[list[Run]], list[Sampling]]:
        """A program with the seed of its first core."""
        seed = (self.seed + self.programs.index(name)) % 2**64
        return self._run([request], [baseline], seed, f"{name} alone{what}")

    def _run(
        self, requests: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]], seed: int, what: str
    ) -> tuple[list[list[Run]], list[Sampling]]:
        asked = {"programs": list(requests), "runs": list(runs), "seed": seed, "threads": self.threads}
        with self.watch(what, len(requests)) as progress:
            return engine.simulate_mix(asked, progress)


def halved(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same windows, each warmed half as long."""
    return [
        _changed(request, **{name: request["sampling"][name] // 2 for name in ("warmup", "filling")})
        if request["sampling"]
        else request
        for request in requests
    ]


def unfilled(request: dict[str, Any]) -> dict[str, Any]:
    """The request without longer warm-ups at first: `in_step` says what rounds have of each program."""
    return _changed(request, filling=0) if request["sampling"] else request


def in_step(
    found: Mapping[str, tuple[Run, Sampling, dict[str, Any]]],
) -> tuple[dict[str, dict[str, Any]], str | None]:
    """By program: the request whose warm-up, and what runs behind a window, takes as long as all others'.

    And the program for which all are warmed shorter than was asked for, if there is one.
    """
    speeds = _speeds(found)
    slowest = min(speeds.values())
    # Cycles that all programs can be warmed for.
    cycles, rooms = math.inf, dict[str, float]()
    for name, (_, sampling, request) in found.items():
        warmup, window = request["sampling"]["warmup"], request["sampling"]["window"]
        between = sampling["instructions_represented"] / sampling["windows"] - window - DETAILED
        # What is measured without gaps needs no warm-up, and says nothing of the others'.
        room = math.inf if not sampling["sampled"] else max(between, 0.0)
        rooms[name] = (warmup if _is_recorded_sample(request) else room) / speeds[name]
        cycles = min(cycles, rooms[name], MOST_WARMUPS * warmup / speeds[name], warmup / slowest)
    # It may also be shorter because no program is warmed for longer than that.
    least = min(rooms, key=lambda name: rooms[name])
    wanted = min(request["sampling"]["warmup"] for _, _, request in found.values()) / slowest
    too_short = least if rooms[least] <= cycles and rooms[least] < wanted else None
    windows = min(sampling["windows"] for _, sampling, _ in found.values())
    warmups = {name: max(int(cycles * speed), DETAILED) for name, speed in speeds.items()}
    asked = {
        name: _changed(
            request,
            windows=windows,
            warmup=warmups[name],
            filling=FILLINGS * warmups[name] if len(found) > 1 else 0,
            after=int(
                (request["sampling"]["window"] + DETAILED) * (min(speeds[name] / slowest, MOST_WINDOWS) - 1.0)
            ),
        )
        for name, (_, _, request) in found.items()
    }
    return asked, too_short


def _most_windows(found: Mapping[str, tuple[Run, Sampling, dict[str, Any]]]) -> int | None:
    """As many windows have room for the whole warm-up of every program; None where nothing limits them."""
    speeds = _speeds(found)
    slowest = min(speeds.values())
    limits = []
    for name, (_, sampling, request) in found.items():
        if sampling["sampled"] and not _is_recorded_sample(request):
            warmup = min(MOST_WARMUPS, speeds[name] / slowest) * request["sampling"]["warmup"]
            span = warmup + request["sampling"]["window"] + DETAILED
            limits.append(int(sampling["instructions_represented"] / span))
    return min(limits, default=None)


def _speeds(found: Mapping[str, tuple[Run, Sampling, dict[str, Any]]]) -> dict[str, float]:
    """Of each program by itself."""
    return {name: run["ipc"] or 1.0 for name, (run, _, _) in found.items()}


def _is_recorded_sample(request: dict[str, Any]) -> bool:
    """Whether no more instructions lie before a window than it is warmed with."""
    return recorded_sample(request["source"]) is not None


def _changed(request: dict[str, Any], **sampling: int) -> dict[str, Any]:
    return {**request, "sampling": {**request["sampling"], **sampling}}
