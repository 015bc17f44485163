"""What flattening is worth in time: programs recorded in a guest, in the timing model with its tables."""

from __future__ import annotations

import io
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk import engine, output, settings
from flatwalk.errors import FlatwalkError
from flatwalk.record import Part
from flatwalk.vm import live
from flatwalk.vm import run as guest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flatwalk.results import Run

#: Programs in linux/tests with their arguments; each marks where its run phase begins.
PROGRAMS = {
    "gups": ("gups.c", "131072", "4000000"),
    "pagerank": ("graph.c", "4194304", "8", "2"),
}
#: Instructions of the run phase: simulated first without being counted, and counted.
WARMUP, MEASURED = 2_000_000, 8_000_000
MACHINE = "skylake-server"
#: Guests for each program and mode.
BOOTS = 3
_MEMORY = "1G"


@dataclass(frozen=True)
class Row:
    """A program in a mode, in several boots of a guest: where its pages and tables lie differs by chance."""

    program: str
    mode: str
    levels: int
    #: The engine's results by boot: under the recorded tables, and with every translation known at once.
    recorded: Sequence[Run]
    ideal: Sequence[Run]

    def mean(self, figure: Callable[[Run], float | None]) -> float:
        """A figure of the recorded tables' results, on average over boots."""
        return _mean(self.recorded, figure)


def measure(
    modes: Iterable[str],
    programs: Iterable[str] = tuple(PROGRAMS),
    *,
    levels: Sequence[int] = (4,),
    boots: int = BOOTS,
    source: Path | None = None,
) -> list[Row]:
    """Records each program in a guest of each mode, and simulates what was recorded.

    Raises:
        FlatwalkError: If QEMU or Linux is not built, a guest fails, or a recording does.
    """
    chosen = list(modes)
    rows = []
    for program in programs:
        text, *arguments = PROGRAMS[program]
        command = [str(guest.guest_program(guest.GUEST / "tests" / text)), *arguments]
        for mode in chosen:
            for count in levels:
                machine = guest.Machine(mode, levels=count, memory=_MEMORY)
                pairs = [_measure(program, machine, command, source) for _ in range(boots)]
                recorded, ideal = zip(*pairs, strict=True)
                row = Row(program, mode, count, recorded, ideal)
                output.note(f"{program}, {mode}, {count} levels: IPC {row.mean(lambda run: run['ipc']):.3f}")
                rows.append(row)
    return rows


def table(rows: Iterable[Row]) -> str:
    """What each program's walks and time come to, against `off`."""
    off: dict[tuple[str, int], float] = {}

    def line(row: Row) -> list[str]:
        cycles, ipc = row.mean(lambda run: run["cycles"]), row.mean(lambda run: run["ipc"])
        if row.mode == "off":
            off[row.program, row.levels] = cycles
        base = off.get((row.program, row.levels))
        times = [f"{run['cycles'] / base:.3f}" if base and run["cycles"] else "–" for run in row.recorded]
        return [
            *(row.program, row.mode, str(row.levels)),
            f"{row.mean(lambda run: run['accesses_per_walk']):.2f}",
            f"{row.mean(lambda run: run['walk_latency_cycles']):.1f}",
            f"{ipc:.3f}",
            f"{ipc / _mean(row.ideal, lambda run: run['ipc']):.3f}",
            f"{cycles / base:.3f}" if base else "–",
            ", ".join(sorted(times)),
        ]

    heads = (
        *("program", "mode", "levels", "entries per walk", "cycles per walk"),
        *("IPC", "of ideal", "time", "in each boot"),
    )
    return output.markdown(heads, 2, map(line, rows))


def _mean(runs: Sequence[Run], figure: Callable[[Run], float | None]) -> float:
    """Of a figure that timing gives, so that it is there."""
    return statistics.fmean(figure(run) or 0.0 for run in runs)


def _measure(program: str, machine: guest.Machine, command: list[str], source: Path | None) -> list[Run]:
    with tempfile.TemporaryDirectory(prefix="flatwalk-vm-") as directory:
        trace = Path(directory) / "trace.fwt"
        part = Part(start_at="marker", limit=WARMUP + MEASURED)
        made = live.record(machine, command, trace, part, stdout=io.BytesIO(), source=source)
        if made.outcome is not None:
            raise FlatwalkError(
                f"{program} ended after {made.trace.instructions} instructions of its run phase, with "
                f"{made.outcome.status}",
                where=" ".join(command),
                remedy="run it with `flatwalk vm run` and look at --log",
            )
        return _simulate(trace, "recorded5" if machine.levels == 5 else "recorded", "ideal")


def _simulate(trace: Path, *schemes: str) -> list[Run]:
    loaded = settings.machine(MACHINE)
    request = {
        "source": {"trace": str(trace)},
        "runs": [
            {"scheme": settings.scheme(name), "machine": loaded, "large_pages": 0, "mode": "timing"}
            for name in schemes
        ],
        "warmup": WARMUP,
        "instructions": MEASURED,
    }
    with output.Progress("Simulating") as progress:
        return list(engine.simulate(request, progress)["runs"])
