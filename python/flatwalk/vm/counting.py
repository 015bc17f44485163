"""Counts the instructions of a guest by cause, in the phases that its programs mark."""

from __future__ import annotations

import io
import os
import re
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError
from flatwalk.vm import build, compiled, components, ports
from flatwalk.vm import run as guest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flatwalk.vm.components import Component
    from flatwalk.vm.machine import Machine

#: Why the kernel runs, as the counting plugin calls it, and as tables do.
CAUSES = {"timer": "timer", "syscall": "system calls", "fault": "page faults", "other": "other"}
#: Numbers of the markers of recorder/flatwalk.h.
START, STOP = 1, 2
#: Where the kernel turns to another thread.
SWITCH = "__switch_to"
#: Where it begins to return from what interrupted it, and no program.
BACK = "restore_regs_and_return_to_kernel"
#: Entry points of the kernel and what they are for; all others are `other`.
_ENTRIES = {
    "asm_exc_page_fault": "fault",
    "entry_SYSCALL_64": "syscall",
    "asm_sysvec_apic_timer_interrupt": "timer",
    BACK: "back",
    SWITCH: "switch",
    "ret_from_fork_asm": "fresh",
    # Not all timers have an entry of their own.
    "hrtimer_interrupt": "tick",
    "tick_handle_periodic": "tick",
}
_OTHER_ENTRY = re.compile(r"asm_(exc|sysvec)_\w+|asm_common_interrupt|asm_spurious_interrupt")
#: Addresses are the same in every run.
_PARAMETERS = ("norandmaps",)


@dataclass(frozen=True)
class Phase:
    """What was counted between two markers."""

    #: Number of the marker that began it; 0 for the guest's first phase.
    marker: int = 0
    #: Instructions of programs.
    user: int = 0
    #: Instructions of the kernel, by what it was entered for; a repeated string instruction is one.
    kernel: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    #: Repetitions of string instructions, which are not among these, all but the first of each.
    repeated: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    #: How often it was entered.
    entered: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    #: Page walks of the accesses of the marker's program, by the number of entries that they read.
    walks: dict[int, int] = field(default_factory=dict)
    #: The same of all programs.
    walks_of_all: dict[int, int] = field(default_factory=dict)

    @property
    def instructions(self) -> int:
        """Of the kernel, for any cause."""
        return sum(self.kernel.values())


def entries_per_walk(walks: dict[int, int]) -> float | None:
    """On average; None if there was no walk."""
    count = sum(walks.values())
    return sum(entries * times for entries, times in walks.items()) / count if count else None


def read(text: str) -> list[Phase]:
    """What the counting plugin wrote."""
    phases: list[Phase] = []
    for line in text.splitlines():
        match line.split():
            case [_, "began", marker]:
                phases.append(Phase(int(marker)))
            case [_, "instructions", "user", number]:
                phases[-1] = replace(phases[-1], user=int(number))
            case [_, "instructions", cause, number]:
                phases[-1].kernel[cause] = int(number)
            case [_, "repeated", cause, number]:
                phases[-1].repeated[cause] = int(number)
            case [_, "entered", cause, number]:
                phases[-1].entered[cause] = int(number)
            case [_, "walks", entries, number]:
                phases[-1].walks[int(entries)] = int(number)
            case [_, "walks-of-all", entries, number]:
                phases[-1].walks_of_all[int(entries)] = int(number)
    return phases


def repeatable(seed: int) -> list[str]:
    """QEMU's options that make a guest's time independent of the host's.

    Its clock is its instructions, one a nanosecond: the timer comes as often on a busy host as on a quiet
    one. Its random numbers and its date are the same in every run with the same seed.
    """
    return ["-icount", "shift=0", "-seed", str(seed), "-rtc", "base=2024-01-01,clock=vm"]


def addresses(linux: Component, source: Path | None, needed: Iterable[str]) -> dict[str, str]:
    """The addresses of a kernel's symbols, in hexadecimal digits.

    Args:
        linux: The kernel.
        source: The user's own trees, as built by `vm build --source`.
        needed: Symbols that it must have.

    Raises:
        FlatwalkError: If it is not built, or lacks one of these.
    """
    table = build.find(linux, source) / "System.map"
    lines = (line.split() for line in table.read_text(encoding="ascii").splitlines())
    found = {symbol: address for address, _, symbol in lines}
    missing = [symbol for symbol in needed if symbol not in found]
    if missing:
        raise FlatwalkError(
            f"this Linux has no {', '.join(missing)}",
            where=str(table),
            remedy="take the Linux that `flatwalk vm build` builds",
        )
    return found


def _places(linux: Component, source: Path | None) -> list[str]:
    """The counting plugin's arguments: where the kernel is entered, and what for."""
    return [
        f"{_ENTRIES.get(symbol, 'other')}={address}"
        for symbol, address in addresses(linux, source, _ENTRIES).items()
        if symbol in _ENTRIES or _OTHER_ENTRY.fullmatch(symbol)
    ]


def count(machine: Machine, command: Sequence[str], *, source: Path | None = None) -> tuple[list[Phase], str]:
    """Runs a command in a guest of one CPU, and counts.

    Returns:
        The phases: the boot, the command up to its first marker, and then what the command marks; the last is
        the guest's end. And what the command wrote.

    Raises:
        FlatwalkError: If QEMU or Linux is not built, or the command or the guest fails.
    """
    places = _places(components.KERNELS[machine.kernel], source)
    counts, said = watched(machine, command, "count", places, source=source)
    return read(counts), said


def watched(
    machine: Machine, command: Sequence[str], plugin: str, arguments: Sequence[str], *, source: Path | None
) -> tuple[str, str]:
    """Runs a command in a guest of one CPU whose time is its instructions, with a plugin of linux/guest/.

    Returns:
        What the plugin wrote to its `out=`, and what the command wrote.

    Raises:
        FlatwalkError: If QEMU or Linux is not built, or the command or the guest fails.
    """
    compiled_plugin = compiled.plugin(plugin, source)
    machine = replace(machine, parameters=(*machine.parameters, *_PARAMETERS))
    said, complained = io.BytesIO(), io.BytesIO()
    with tempfile.NamedTemporaryFile(prefix="flatwalk-vm-") as counted:
        outcome = guest.run(
            machine,
            command,
            stdout=said,
            stderr=complained,
            environment=os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
            source=source,
            options=[
                *repeatable(1),
                *ports.plugin(compiled_plugin, f"out={counted.name}", *arguments),
            ],
        )
        counts = Path(counted.name).read_text(encoding="utf-8")
    check(outcome, " ".join(command), complained.getvalue().decode(errors="replace"))
    return counts, said.getvalue().decode()


def check(outcome: guest.Outcome, call: str, messages: str = "") -> None:
    """Checks that a command in a guest succeeded, and that its kernel reported no mistake.

    Raises:
        FlatwalkError: If not.
    """
    if outcome.status or outcome.splats():
        why = [*outcome.splats(), *messages.splitlines()[-1:]]
        raise FlatwalkError(
            f"the workload ended with {outcome.status}: {'; '.join(why)}",
            where=call,
            remedy="run it with `flatwalk vm run` and look at --log",
        )


def table_bytes(lines: Iterable[str]) -> tuple[int, int]:
    """Bytes of page tables, and of the flat blocks among them, from lines of /proc/PID/status."""
    sizes = {"VmPTE:": 0, "VmFlat:": 0}
    for line in lines:
        match line.split():
            case [name, kilobytes, "kB"] if name in sizes:
                sizes[name] += int(kilobytes) << 10
    return sizes["VmPTE:"], sizes["VmFlat:"]
