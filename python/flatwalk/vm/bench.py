"""Measures what flattening costs and saves: entries read per walk, page-table bytes, instructions."""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk import output
from flatwalk.errors import FlatwalkError
from flatwalk.vm import run as guest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Pages that the program writes to, and updates of them at random.
_PAGES, _UPDATES = 131072, 400_000
#: The program's phases, as the counting plugin numbers them.
_LOADING, _RUNNING = 1, 2
_MEMORY = "1G"


@dataclass(frozen=True)
class Counts:
    """What one run came to."""

    #: Instructions of the kernel in each phase.
    kernel_instructions: dict[int, int]
    #: Page walks of programs' accesses in each phase, by the number of entries that they read.
    walks: dict[int, dict[int, int]]
    #: Bytes of the program's page tables at its end, and of the flat blocks among them.
    table_bytes: int
    flat_bytes: int


@dataclass(frozen=True)
class Row:
    """What was measured of one mode."""

    mode: str
    levels: int
    #: Entries read by a walk of a program's access, on average over the updates at random.
    entries_per_walk: float
    #: Instructions of the kernel for each page written first, flattening included.
    instructions_per_fault: float
    #: Instructions of the kernel for each update, which are not page faults.
    instructions_per_update: float
    #: Bytes of the program's page tables, and of the flat blocks among them.
    table_bytes: int
    flat_bytes: int


def measure(modes: Iterable[str], levels: Sequence[int] = (4, 5), *, source: Path | None = None) -> list[Row]:
    """Runs GUPS in guests of one CPU.

    Raises:
        FlatwalkError: If QEMU or Linux is not built, or a guest fails.
    """
    plugin = guest.plugin("count", source)
    program = guest.guest_program(guest.GUEST / "tests" / "gups.c")
    rows = []
    for mode in modes:
        for count in levels:
            machine = guest.Machine(mode, levels=count, memory=_MEMORY)
            found = _run(machine, [str(program), str(_PAGES), str(_UPDATES)], plugin, source)
            walks = found.walks[_RUNNING]
            row = Row(
                mode,
                count,
                sum(n * times for n, times in walks.items()) / sum(walks.values()),
                found.kernel_instructions[_LOADING] / _PAGES,
                found.kernel_instructions[_RUNNING] / _UPDATES,
                found.table_bytes,
                found.flat_bytes,
            )
            output.note(f"{mode}, {count} levels: {row.entries_per_walk:.3f} entries per walk")
            rows.append(row)
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """The table of docs/FULL-SYSTEM.md."""
    heads = (
        *("mode", "levels", "entries per walk", "kernel instructions per page fault"),
        *("per update", "page tables, KiB", "of them flat, KiB"),
    )
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " ---: |" * (len(heads) - 1)]
    base = {row.levels: row.instructions_per_fault for row in rows if row.mode == "off"}
    for row in rows:
        ratio = f" ({row.instructions_per_fault / base[row.levels]:.3f})" if row.levels in base else ""
        lines.append(
            f"| {row.mode} | {row.levels} | {row.entries_per_walk:.3f} "
            f"| {row.instructions_per_fault:.0f}{ratio} | {row.instructions_per_update:.2f} "
            f"| {row.table_bytes >> 10} | {row.flat_bytes >> 10} |"
        )
    return "\n".join(lines) + "\n"


def _run(machine: guest.Machine, command: list[str], plugin: Path, source: Path | None) -> Counts:
    with tempfile.NamedTemporaryFile(prefix="flatwalk-vm-") as counted:
        said = io.BytesIO()
        outcome = guest.run(
            machine,
            command,
            stdout=said,
            source=source,
            options=["-plugin", f"{plugin},out={counted.name}"],
        )
        told = Path(counted.name).read_text(encoding="utf-8")
    if outcome.status or outcome.splats():
        raise FlatwalkError(
            f"the workload ended with {outcome.status}: {'; '.join(outcome.splats())}",
            where=" ".join(command),
            remedy="run it with `flatwalk vm run` and look at --log",
        )
    kernel: dict[int, int] = {}
    walks: dict[int, dict[int, int]] = {}
    for line in told.splitlines():
        match line.split():
            case [phase, "instructions", "kernel", number]:
                kernel[int(phase)] = int(number)
            case [phase, "walks", entries, number]:
                walks.setdefault(int(phase), {})[int(entries)] = int(number)
    sizes = {}
    for line in said.getvalue().decode().splitlines():
        name, kilobytes = line.split()[:2]
        sizes[name] = int(kilobytes) << 10
    return Counts(kernel, walks, sizes["VmPTE:"], sizes.get("VmFlat:", 0))
