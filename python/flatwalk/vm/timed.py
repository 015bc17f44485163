"""What flattening is worth in time: programs recorded in a guest, in the timing model with its tables."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import cache, engine, temporary
from flatwalk.definitions import settings
from flatwalk.errors import FlatwalkError
from flatwalk.recorder import KernelWork, Part, find_recorder
from flatwalk.terminal import output
from flatwalk.vm import compiled, components, counting, live, workloads
from flatwalk.vm import run as guest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flatwalk.answer.results import Run
    from flatwalk.vm.machine import Machine

#: Instructions of the run phase: simulated first without being counted, and counted.
WARMUP, MEASURED = 4_000_000, 16_000_000
MACHINE = "skylake-server"
#: Guests for each program and mode.
BOOTS = 1
#: What is taken for the kernel's time, which is not simulated: cycles for an instruction, and repetitions
#: of a string instruction (QEMU executes each byte or word on its own) in a cycle.
KERNEL_CPI, KERNEL_REPETITIONS_PER_CYCLE = 1.0, 32


@dataclass(frozen=True)
class Boot:
    """A program in one guest."""

    #: The engine's results: under the recorded tables, with every translation known at once, and under a
    #: table that the engine makes itself, the same for all modes.
    recorded: Run
    ideal: Run
    control: Run
    #: What the kernel did for the program while so many of its instructions were recorded.
    kernel: KernelWork
    instructions: int

    def of_kernel(self, count: float) -> float:
        """That much of the kernel, for the instructions that were simulated and counted."""
        return count * self.recorded["instructions"] / self.instructions

    @property
    def kernel_instructions(self) -> int:
        """All but repetitions of string instructions."""
        return self.kernel.instructions - self.kernel.repeated

    @property
    def cycles(self) -> float:
        """Of the program, as simulated, and of the kernel for it, as `KERNEL_CPI` says."""
        kernel = self.kernel_instructions * KERNEL_CPI + self.kernel.repeated / KERNEL_REPETITIONS_PER_CYCLE
        return (self.recorded["cycles"] or 0.0) + self.of_kernel(kernel)


@dataclass(frozen=True)
class Row:
    """A program in a mode, in several boots of a guest: where its pages and tables lie differs by chance."""

    program: str
    mode: str
    levels: int
    boots: Sequence[Boot]

    def mean(self, figure: Callable[[Boot], float | None]) -> float:
        """A figure, on average over boots."""
        return statistics.fmean(figure(boot) or 0.0 for boot in self.boots)

    @property
    def walks_per_1000(self) -> float:
        """Page walks for 1000 instructions of the program."""
        return self.mean(lambda boot: 1000 * boot.recorded["walks"] / boot.recorded["instructions"])

    @property
    def walk_latency_cycles(self) -> float:
        """Cycles of a page walk."""
        return self.mean(lambda boot: boot.recorded["walk_latency_cycles"])

    @property
    def ipc(self) -> float:
        """Instructions of the program in a cycle."""
        return self.mean(lambda boot: boot.recorded["ipc"])

    @property
    def cycles(self) -> float:
        """Of the program, and of the kernel for it."""
        return self.mean(lambda boot: boot.cycles)


def measure(
    modes: Iterable[str],
    programs: Iterable[str] = workloads.EVERY,
    *,
    levels: Sequence[int] = (4,),
    boots: int = BOOTS,
    source: Path | None = None,
) -> list[Row]:
    """Records each program in a guest of each mode, and simulates what was recorded.

    Results are kept in the cache directory, keyed by everything that decides them, and not measured again.

    Raises:
        UsageError: If there is no such program.
        FlatwalkError: If QEMU or Linux is not built, a guest fails, or a recording does.
    """
    chosen = list(modes)
    # Someone who works on their own trees wants to measure again.
    store = None if source else cache.Store(cache.directory("vm") / "timed")
    rows: list[Row] = []
    names = workloads.known(programs, workloads.EVERY)
    total = len(names) * len(chosen) * len(levels) * boots
    for program in names:
        with contextlib.ExitStack() as stack:
            command: list[str] = []
            for mode in chosen:
                for count in levels:
                    made = []
                    machine = workloads.machine(mode, count)
                    for seed in range(1, boots + 1):
                        key = _key(program, machine, seed) if store else ""
                        boot = _kept(store, key) if store else None
                        if boot is None:
                            # Prepared once for all guests that follow.
                            command = command or stack.enter_context(
                                workloads.prepared(program, recorded=True)
                            )
                            boot = _measure(program, command, machine, seed, source)
                            if store:
                                store.put(key, dataclasses.asdict(boot))
                        made.append(boot)
                        done = sum(len(row.boots) for row in rows) + len(made)
                        ipc = boot.recorded["ipc"]
                        output.note(f"{done} of {total}: {program}, {mode}, {count} levels: IPC {ipc:.3f}")
                    rows.append(Row(program, mode, count, made))
    return rows


def table(rows: Sequence[Row]) -> str:
    """Each program's walks and time, against `off`."""
    off = {(row.program, row.levels): row for row in rows if row.mode == "off"}
    # One boot alone is its own mean.
    last = "in each boot" if any(len(row.boots) > 1 for row in rows) else None

    def line(row: Row) -> list[str]:
        cells = [
            *(row.program, row.mode, str(row.levels)),
            f"{row.walks_per_1000:.2f}",
            f"{row.mean(lambda boot: boot.recorded['accesses_per_walk']):.2f}",
            f"{row.walk_latency_cycles:.1f}",
            f"{row.ipc:.3f}",
            f"{row.ipc / row.mean(lambda boot: boot.ideal['ipc']):.3f}",
            f"{row.mean(lambda boot: 1000 * boot.kernel_instructions / boot.instructions):.1f}",
        ]
        base = off.get((row.program, row.levels))
        against = list(_against(row, base)) if base else ["–"] * 4
        return cells + (against if last else against[:-1])

    heads = (
        *("program", "mode", "levels", "walks per 1000", "entries per walk", "cycles per walk", "IPC"),
        *("of ideal", "kernel per 1000", "control", "time", "end to end"),
        *([last] if last else []),
    )
    return output.markdown(heads, 2, map(line, rows))


def _against(row: Row, base: Row) -> Iterator[str]:
    """As shares of another's: time of the control, the program's own, with the kernel's, and in each boot."""
    yield f"{row.mean(_control_cycles) / base.mean(_control_cycles):.3f}"
    yield f"{row.mean(_user_cycles) / base.mean(_user_cycles):.3f}"
    yield f"{row.cycles / base.cycles:.3f}"
    yield ", ".join(sorted(f"{boot.cycles / base.cycles:.3f}" for boot in row.boots))


def _user_cycles(boot: Boot) -> float | None:
    return boot.recorded["cycles"]


def _control_cycles(boot: Boot) -> float | None:
    return boot.control["cycles"]


def _key(program: str, machine: Machine, seed: int) -> str:
    """The key of a result: everything that decides it."""
    identity = {
        "engine": cache.digest(engine.path()),
        "recorder": [*map(cache.digest, find_recorder())],
        "guest": [components.QEMU.key(), components.LINUX.key(), dataclasses.asdict(machine), seed],
        "init": compiled.program_identity(guest.first_process()),
        "program": workloads.identity(program),
        "request": _request(Path(), machine),
    }
    return cache.key(identity)


def _kept(store: cache.Store, key: str) -> Boot | None:
    """What was measured before; None if it is missing or cannot be read."""
    found = store.get(key)
    try:
        return Boot(**{**found, "kernel": KernelWork(**found["kernel"])})
    except (TypeError, KeyError):
        return None


def _measure(program: str, command: list[str], machine: Machine, seed: int, source: Path | None) -> Boot:
    with temporary.directory() as directory:
        trace, said = directory / "trace.fwt", io.BytesIO()
        part = Part(start_at="marker", limit=WARMUP + MEASURED)
        made = live.record(machine, command, trace, part, seed=seed, stdout=said, stderr=said, source=source)
        if made.outcome is not None:
            words = said.getvalue().decode(errors="replace").splitlines()[-1:]
            raise FlatwalkError(
                f"{program} ended after {made.trace.instructions} instructions of its run phase, with "
                f"{made.outcome.status}: {'; '.join([*made.outcome.splats(), *words])}",
                where=" ".join(command),
                remedy="run it with `flatwalk vm run` and look at --log",
            )
        # It was stopped at its limit; what the kernel had said by then counts all the same.
        counting.check(guest.Outcome(0, made.log, ""), " ".join(command))
        with output.Progress("Simulating") as progress:
            recorded, ideal, control = engine.simulate(_request(trace, machine), progress)["runs"]
    return Boot(recorded, ideal, control, made.kernel, made.trace.instructions)


def _request(trace: Path, machine: Machine) -> dict[str, Any]:
    """The engine's request: a run for each result of `Boot`."""
    loaded = settings.machine(MACHINE)
    recorded, control = ("recorded5", "radix5") if machine.levels == 5 else ("recorded", "radix4")
    schemes = (recorded, "ideal", control)
    return {
        "source": {"trace": str(trace)},
        "runs": [
            {"scheme": settings.scheme(name), "machine": loaded, "large_pages": 0, "mode": "timing"}
            for name in schemes
        ],
        "warmup": WARMUP,
        "instructions": MEASURED,
    }
