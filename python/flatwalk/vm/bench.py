"""Measures what flattening costs and saves: entries per walk, instructions, bytes, blocks refused."""

from __future__ import annotations

import contextlib
import io
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk import cache
from flatwalk.errors import FlatwalkError
from flatwalk.terminal import output
from flatwalk.vm import compiled, components, counting
from flatwalk.vm import run as guest
from flatwalk.vm.counting import CAUSES
from flatwalk.vm.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from flatwalk.vm.counting import Phase

#: Pages that the program writes to, and updates of them at random.
_PAGES, _UPDATES = 131072, 400_000
#: A program's phases: a guest's first two are its boot and the program's start.
LOADING, RUNNING = 2, 3
PHASES = {LOADING: "loading", RUNNING: "running"}
_MEMORY = "1G"
#: Processes with too little memory: how many, how many at once, the guest's memory, and swap space in
#: per cent of it.
_CROWD, _AT_ONCE, _CROWD_MIB, _SWAP_PERCENT = 120, 8, 512, (0, 6, 50)
#: How much of memory and swap space they want, in per cent: the kernel and flat blocks need some, too.
_WANTED_PERCENT = 65
#: The modes that this is done in: the ASPLOS paper's, and the one with most blocks.
CROWD_MODES = ("l3l2", "l4l3+l2l1")


@dataclass(frozen=True)
class Row:
    """What was measured of a program in a mode."""

    program: str
    mode: str
    levels: int
    #: Entries read by a walk of the program's accesses in its running phase, on average.
    entries_per_walk: float
    #: Instructions of the kernel in each phase, by what it was entered for.
    kernel_instructions: dict[int, dict[str, int]]
    #: Repetitions of its string instructions, which are not among these.
    kernel_repetitions: dict[int, int]
    #: Bytes of the program's page tables at the end of that phase, and of the flat blocks among them.
    table_bytes: int
    flat_bytes: int

    @classmethod
    def of(cls, program: str, machine: Machine, phases: Sequence[Phase], said: str) -> Row:
        """What was counted for a program that marks where it loads, runs, and ends its run.

        Raises:
            FlatwalkError: If it did not.
        """
        # The last two phases: what the program does then, and the guest's end.
        running = phases[RUNNING:-2]
        entries = counting.entries_per_walk(running[-1].walks) if running else None
        table_bytes, flat_bytes = counting.table_bytes(said.splitlines())
        if entries is None or not table_bytes:
            raise FlatwalkError(
                f"{program} has not marked its phases", remedy="this is a bug of flatwalk; please report it"
            )
        kernel = {
            LOADING: phases[LOADING].kernel,
            RUNNING: {cause: sum(phase.kernel[cause] for phase in running) for cause in CAUSES},
        }
        repeated = {
            LOADING: sum(phases[LOADING].repeated.values()),
            RUNNING: sum(sum(phase.repeated.values()) for phase in running),
        }
        return cls(program, machine.mode, machine.levels, entries, kernel, repeated, table_bytes, flat_bytes)


def measure(
    modes: Iterable[str],
    levels: Sequence[int] = (4, 5),
    *,
    kernel: str = "usual",
    source: Path | None = None,
) -> list[Row]:
    """Runs GUPS in guests of one CPU.

    Args:
        modes: Of flattening.
        levels: Of page tables.
        kernel: Which one, of `components.KERNELS`.
        source: The user's own trees, as built by `vm build --source`.

    Raises:
        FlatwalkError: If QEMU or Linux is not built, or a guest fails.
    """
    program = compiled.guest_program(compiled.SOURCES / "tests" / "gups.c")
    rows = []
    for mode in modes:
        for count in levels:
            machine = Machine(mode, levels=count, memory=_MEMORY, kernel=kernel)
            found = counting.count(machine, [str(program), str(_PAGES), str(_UPDATES)], source=source)
            row = Row.of("gups", machine, *found)
            output.note(f"{mode}, {count} levels: {row.entries_per_walk:.3f} entries per walk")
            rows.append(row)
    return rows


@dataclass(frozen=True)
class Crowd:
    """Blocks of processes that wanted more memory than there was, in one guest."""

    mode: str
    #: Swap space, in per cent of the guest's memory.
    swap_percent: int
    #: Blocks that were allocated, and those that were refused, some of them more than once.
    allocated: int
    refused: int
    processes: int
    #: Processes that began with fewer blocks than one of them needs to begin with, and that ended with fewer.
    short_at_begin: int
    short_at_end: int

    @classmethod
    def of(cls, mode: str, swap_percent: int, said: str) -> Crowd:
        """From what a guest printed, as `linux/tests/crowd.c` and `run.sh` do.

        Raises:
            FlatwalkError: If no process had a block.
        """
        counters: dict[str, int] = {}
        began, ended = [], []
        for line in said.splitlines():
            match line.split():
                case ["counter", name, number]:
                    counters[name] = int(number)
                case ["process", _, first, last]:
                    began.append(int(first))
                    ended.append(int(last))
        # They are all alike until then.
        needed = max(began, default=0)
        if not needed:
            raise FlatwalkError(
                f"no process of a guest in {mode} had a block",
                remedy="report this as a bug, with `flatwalk vm run --mode MODE -- dmesg`",
            )
        return cls(
            mode,
            swap_percent,
            counters["flat_table_alloc"],
            counters["flat_table_alloc_failed"],
            len(began),
            sum(kib < needed for kib in began),
            sum(kib < needed for kib in ended),
        )


def _crowd_program() -> Path:
    return compiled.SOURCES / "tests" / "crowd.c"


def _script() -> Path:
    """What sets the guest up, and runs it there."""
    return compiled.SOURCES / "tests" / "run.sh"


def crowd_identity() -> list[str]:
    """Everything that decides a crowd's result."""
    sizes = (_CROWD, _AT_ONCE, _CROWD_MIB, _WANTED_PERCENT)
    built = (components.QEMU.key(), components.LINUX.key())
    programs = map(compiled.program_identity, (_crowd_program(), guest.first_process()))
    return [*built, *programs, cache.digest(_script()), *map(str, sizes)]


def oversubscribe(
    modes: Iterable[str], swaps_percent: Sequence[int] = _SWAP_PERCENT, *, source: Path | None = None
) -> list[Crowd]:
    """Runs many processes at once in guests with little memory; each is flattened from its first table on.

    Args:
        modes: In which.
        swaps_percent: With how much swap space, in per cent of memory.
        source: The user's own trees, if they are to be used.

    Raises:
        FlatwalkError: If QEMU or Linux is not built, or a guest fails.
    """
    program = compiled.guest_program(_crowd_program())
    found = []
    for mode in modes:
        for swap_percent in swaps_percent:
            machine = Machine(mode, cpus=4, memory=f"{_CROWD_MIB}M")
            swap_mib = _CROWD_MIB * swap_percent // 100
            pages = ((_CROWD_MIB + swap_mib) << 8) * _WANTED_PERCENT // 100 // _AT_ONCE
            call = shlex.join([str(program), str(_CROWD), str(_AT_ONCE), str(pages)])
            said = io.BytesIO()
            with contextlib.ExitStack() as stack:
                options = guest.drive(stack.enter_context(guest.disk(swap_mib << 20))) if swap_mib else []
                outcome = guest.run(
                    machine,
                    [str(_script()), "1", "0", "0", "-", "-", f"run={call}"],
                    stdout=said,
                    source=source,
                    options=options,
                )
            counting.check(outcome, call)
            row = Crowd.of(mode, swap_percent, said.getvalue().decode())
            output.note(
                f"{mode}, swap of {swap_percent} %: {row.short_at_begin} of {row.processes} processes began "
                f"with fewer blocks than they need, {row.refused} blocks refused"
            )
            found.append(row)
    return found


def walks_table(rows: Sequence[Row]) -> str:
    """What a walk reads, what a page fault costs, and how large page tables are."""
    faults = {(row.mode, row.levels): sum(row.kernel_instructions[LOADING].values()) / _PAGES for row in rows}

    def line(row: Row) -> list[str]:
        fault, base = faults[row.mode, row.levels], faults.get(("off", row.levels))
        return [
            *(row.mode, str(row.levels), f"{row.entries_per_walk:.3f}"),
            f"{fault:.0f}" + (f" ({fault / base:.3f})" if base else ""),
            f"{row.kernel_repetitions[LOADING] / _PAGES:.0f}",
            f"{sum(row.kernel_instructions[RUNNING].values()) / _UPDATES:.2f}",
            *(str(row.table_bytes >> 10), str(row.flat_bytes >> 10)),
        ]

    heads = (
        *("mode", "levels", "entries per walk", "kernel instructions per page fault", "repetitions"),
        *("kernel instructions per update", "page tables, KiB", "of them flat, KiB"),
    )
    return output.markdown(heads, 1, map(line, rows))


def causes_table(rows: Sequence[Row]) -> str:
    """What the kernel's instructions were for, in each phase, in thousands."""
    base = {
        (row.program, row.levels, phase): sum(spent.values())
        for row in rows
        if row.mode == "off"
        for phase, spent in row.kernel_instructions.items()
    }

    def line(row: Row, phase: int) -> list[str]:
        spent = row.kernel_instructions[phase]
        whole, off = sum(spent.values()), base.get((row.program, row.levels, phase))
        return [
            *(row.program, row.mode, PHASES[phase], str(row.levels)),
            *(f"{spent[cause] / 1000:.0f}" for cause in CAUSES),
            f"{whole / 1000:.0f}" + (f" ({whole / off:.3f})" if off else ""),
            f"{row.kernel_repetitions[phase] / 1000:.0f}",
        ]

    heads = ("program", "mode", "phase", "levels", *CAUSES.values(), "all", "repetitions")
    return output.markdown(heads, 3, [line(row, phase) for row in rows for phase in PHASES])


def tables_table(rows: Sequence[Row]) -> str:
    """What programs' walks read, and how large their page tables are."""

    def line(row: Row) -> list[str]:
        return [
            *(row.program, row.mode, str(row.levels), f"{row.entries_per_walk:.3f}"),
            *(str(row.table_bytes >> 10), str(row.flat_bytes >> 10)),
        ]

    heads = ("program", "mode", "levels", "entries per walk", "page tables, KiB", "of them flat, KiB")
    return output.markdown(heads, 2, map(line, rows))


def crowd_table(rows: Sequence[Crowd]) -> str:
    """How many processes did not get their blocks, and how many blocks were refused."""

    def of(part: int, whole: int) -> str:
        return f"{part} ({100 * part / max(whole, 1):.1f} %)"

    def line(row: Crowd) -> list[str]:
        asked = row.allocated + row.refused
        return [
            *(row.mode, f"{row.swap_percent} %", str(row.processes)),
            *(of(short, row.processes) for short in (row.short_at_begin, row.short_at_end)),
            *(str(asked), of(row.refused, asked)),
        ]

    heads = (
        *("mode", "swap", "processes", "began with too few blocks", "ended with too few"),
        *("blocks asked for", "refused"),
    )
    return output.markdown(heads, 1, map(line, rows))
