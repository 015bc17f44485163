"""Runs a program in a guest of a guest, and counts what its page walks read and its exits cost."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from flatwalk import temporary
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.vm import build, compiled, components, machine, ports
from flatwalk.vm import run as guest

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Memory of the host in addition to its guest's, in MiB.
_OWN_MIB = 512
#: The most that the monitor (linux/guest/vmm.c) can give the inner guest, below its devices, in MiB.
_MOST_MIB = 3072
#: For the inner guest's kernel.
_PARAMETERS = (
    *("console=ttyS0", "loglevel=5", "panic=-1", "reboot=t", "random.trust_cpu=on"),
    # It has no firmware and no buses, and the processor may be taken from it for long.
    *("acpi=off", "pci=off", "no_timer_check", "tsc=reliable", "rcupdate.rcu_cpu_stall_timeout=300"),
)
#: More parameters with which it flattens a process at once, however small.
AT_ONCE = ("sysctl.vm.flat_page_table_threshold=1",)
#: The monitor's exit status if it, or its guest, fails, and how its messages begin.
_FAILED, _SAYS = 125, re.compile("^vmm: ", re.MULTILINE)
#: A library of a program, or its interpreter, as ldd lists it.
_LIBRARY = re.compile(r"^\s+(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


@dataclass(frozen=True)
class Guest:
    """The inner guest, which has one processor and four levels of page tables.

    Args:
        mode: How its Linux flattens page tables, one of `machine.MODES`.
        memory_mib: Its memory.
        parameters: More of its kernel's command line.
    """

    mode: str = "off"
    memory_mib: int = 256
    parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks what a user may have given.

        Raises:
            UsageError: If it cannot have so much memory.
        """
        if self.memory_mib > _MOST_MIB:
            raise UsageError(
                f"an inner guest has {_MOST_MIB >> 10} GiB of memory at most",
                where="--memory",
                remedy=f"give {_MOST_MIB >> 10}G, or less",
            )

    def host(self, nested: str, *parameters: str, levels: int = 4) -> machine.Machine:
        """A host that has room for it, with more of its kernel's command line."""
        memory = f"{self.memory_mib + _OWN_MIB}M"
        return machine.Machine(
            memory=memory, nested=nested, parameters=parameters, levels=levels, kernel="nested"
        )

    def line(self) -> str:
        """Its kernel's command line."""
        return " ".join([*_PARAMETERS, f"flat_page_tables={self.mode}", *self.parameters])


@dataclass(frozen=True)
class Walks:
    """Page walks of the program, all of it in user mode."""

    #: Those for which nothing was known: how many read so many entries of the guest's and of nested tables.
    cold: Counter[tuple[int, int]]
    #: Others: QEMU knew where some of the guest-physical addresses are.
    warm: int

    def document(self) -> dict[str, object]:
        """The same as JSON; the most frequent of the cold walks first."""
        cold = [
            {"entries": own + nested, "guest": own, "nested": nested, "walks": number}
            for (own, nested), number in self.cold.most_common()
        ]
        return {"cold": cold, "warm": self.warm}

    def words(self) -> list[str]:
        """The same as lines."""
        lines = [
            f"{number:,} cold walks of {own + nested} entries: {own} of the guest, {nested} of the host"
            for (own, nested), number in self.cold.most_common()
        ]
        return [*lines, f"{self.warm:,} other walks"]


@dataclass(frozen=True)
class Phase:
    """What was counted between two markers; a repeated string instruction is one."""

    walks: Walks
    #: Exits to KVM, by cause: a nested page fault, or another.
    exits: Counter[str] = field(default_factory=Counter)
    #: Instructions of the host's kernel between such an exit and the next entry.
    host: Counter[str] = field(default_factory=Counter)
    #: Instructions of the host's programs, of which the monitor is one.
    monitor: int = 0
    #: Instructions of the inner guest: its kernel's, and its programs'.
    guest: Counter[str] = field(default_factory=Counter)
    #: Repetitions of string instructions of both kernels, which are not among these.
    repeated: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Outcome:
    """How a program in the inner guest ended."""

    #: Its exit status; 128 and the signal's number if it died of one.
    status: int
    #: From the boot to the inner guest's end. The first processes of both guests mark where the program
    #: starts and ends (linux/guest), and it may mark phases itself.
    all_phases: list[Phase]
    #: Lines with which either kernel reports a mistake of its own.
    splats: list[str]
    #: Everything that the host's kernel logged.
    log: str
    #: What the inner guest's kernel wrote to its console, and what its monitor reports.
    console: str

    @property
    def phases(self) -> list[Phase]:
        """The program's own: one, or more if it marks some itself."""
        return self.all_phases[2:-2]

    @property
    def walks(self) -> Walks:
        """Of the program."""
        cold = sum((phase.walks.cold for phase in self.phases), Counter[tuple[int, int]]())
        return Walks(cold, sum(phase.walks.warm for phase in self.phases))

    @property
    def statistics(self) -> dict[str, int]:
        """KVM's, if the monitor was to write them (`-s`)."""
        lines = [line.split() for line in self.console.splitlines() if line.startswith("kvm: ")]
        return {name: int(value) for _, name, value in lines}


def run(
    host: machine.Machine,
    inner: Guest,
    command: Sequence[str],
    *,
    monitor: Sequence[str] = (),
    wrapper: Sequence[str] = (),
    options: Sequence[str] = (),
    stdout: IO[bytes] | None = None,
    timeout_s: float | None = None,
    source: Path | None = None,
) -> Outcome:
    """Boots a guest, a guest of its KVM, and in that runs a program, which has only what it is linked with.

    Args:
        host: The guest that has a guest.
        inner: Its guest.
        command: A program of this system, and its arguments.
        monitor: Options of linux/guest/vmm.c.
        wrapper: A command of the host that runs the monitor, for tests.
        options: More of QEMU's options.
        stdout: Where the program's output and messages go; our output if none is given.
        timeout_s: How long the guests may run.
        source: The user's own trees, as built by `vm build --source`.

    Raises:
        GuestLostError: If a guest does not end by itself; with what both kernels logged.
        FlatwalkError: If something is not built, the program is not one, or the host cannot run the guests.
    """
    vmlinux = build.find(components.LINUX, source) / "vmlinux"
    init = compiled.guest_program(compiled.SOURCES / "guest" / "inner.c")
    vmm = compiled.guest_program(compiled.SOURCES / "guest" / "vmm.c")
    plugin = compiled.plugin("nested", source)
    console = io.BytesIO()
    with temporary.directory() as work, tempfile.NamedTemporaryFile(prefix="flatwalk-vm-") as counted:
        initrd = work / "initrd"
        initrd.write_bytes(archive(init, command))
        kernel = [str(vmlinux), str(initrd), str(inner.memory_mib), inner.line()]
        try:
            outcome = guest.run(
                host,
                [*wrapper, str(vmm), *monitor, *kernel],
                stdout=stdout,
                stderr=console,
                timeout_s=timeout_s,
                source=source,
                options=(*options, *ports.plugin(plugin, f"out={counted.name}")),
            )
        except guest.GuestLostError as error:
            said = console.getvalue().decode(errors="replace")
            raise guest.GuestLostError(error, error.log + said, error.messages) from error
        counts = Path(counted.name).read_text(encoding="ascii")
    said = console.getvalue().decode(errors="replace")
    if outcome.status == _FAILED and _SAYS.search(said):
        lines = "\n".join(said.splitlines()[-20:])
        lost = FlatwalkError(
            f"the inner guest ended before its program did; the last lines of it and its monitor:\n{lines}",
            remedy="give it more --memory if it had too little; else this is a bug of the kernel or of QEMU",
        )
        raise guest.GuestLostError(lost, outcome.log + said, outcome.messages)
    splats = [*outcome.splats(), *(line for line in said.splitlines() if guest.is_splat(line))]
    return Outcome(outcome.status, read(counts), splats, outcome.log, said)


def read(text: str) -> list[Phase]:
    """What the counting plugin wrote."""
    phases: list[Phase] = []
    for line in text.splitlines():
        match line.split()[1:]:
            case ["began", _]:
                phases.append(Phase(Walks(Counter(), 0)))
            case ["cold", own, nested, number]:
                phases[-1].walks.cold[int(own), int(nested)] = int(number)
            case ["warm", number]:
                phases[-1] = replace(phases[-1], walks=replace(phases[-1].walks, warm=int(number)))
            case ["monitor", number]:
                phases[-1] = replace(phases[-1], monitor=int(number))
            case [("exits" | "host" | "guest" | "repeated") as what, which, number]:
                getattr(phases[-1], what)[which] = int(number)
    return phases


def archive(init: Path, command: Sequence[str]) -> bytes:
    """The inner guest's file system: its first process, the program, and the program's libraries.

    Raises:
        FlatwalkError: If there is no such program, or it is a script.
    """
    found = shutil.which(command[0])
    if found is None:
        raise FlatwalkError(f"there is no program {command[0]}", remedy="give a program of this system")
    program = Path(found).absolute()
    with program.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            raise FlatwalkError(
                "the inner guest has no interpreter for scripts",
                where=str(program),
                remedy="give a compiled program",
            )
    # It lists nothing for static programs, and fails.
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    needed = [program, *map(Path, _LIBRARY.findall(listed))]
    folders = sorted({parent for path in needed for parent in path.parents[:-1]})
    directory, executable = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755
    words = [str(program), *command[1:]]
    return guest.archive(
        {
            "dev": (directory, b""),
            **{str(folder)[1:]: (directory, b"") for folder in folders},
            **{str(path)[1:]: (executable, path.read_bytes()) for path in needed},
            "init": (executable, init.read_bytes()),
            "job": (stat.S_IFREG | 0o644, b"".join(os.fsencode(word) + b"\0" for word in words)),
        }
    )


def mebibytes(memory: str) -> int:
    """A size as `--memory` has it."""
    return int(memory[:-1]) << (10 if memory.endswith("G") else 0)
