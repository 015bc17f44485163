"""Runs the vectors of flat page tables on QEMU: a bare machine makes the accesses, the monitor looks on."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.flat_page_tables import ADDRESS, MAXPHYADDR, Case, Fault, Page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GUEST = Path(__file__).parent / "guest"
#: Where run.c looks for the vectors, and what they begin with.
PLACE, MAGIC = 0x400_0000, 0x4641_4C54_5054_2031
#: Below are tables, from here on data.
DATA = 0x2000_0000
NOWHERE = (1 << 64) - 1
_KINDS = {"read": 0, "write": 1, "execute": 2}
_FLAGS = (
    *("-O2", "-Wall", "-Wextra", "-Werror"),
    *("-ffreestanding", "-nostdlib", "-static", "-fno-stack-protector", "-fcf-protection=none"),
    *("-fno-pic", "-fno-pie", "-no-pie", "-mcmodel=kernel", "-mno-red-zone", "-mgeneral-regs-only"),
    *("-Wl,--build-id=none", "-Wl,-z,max-page-size=4096", "-Wl,-z,noexecstack", "-Wl,--no-warn-rwx-segments"),
)


def build_guest(directory: Path) -> Path:
    """Builds the bare machine's program."""
    whole, image = directory / "guest64.elf", directory / "guest.elf"
    parts = [str(GUEST / name) for name in ("boot.S", "run.c")]
    command = ["gcc", *_FLAGS, f"-Wl,-T,{GUEST / 'guest.ld'}", *parts, "-o", str(whole)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Multiboot loads 32-bit programs only.
    subprocess.run(["objcopy", "-O", "elf32-i386", str(whole), str(image)], check=True)
    return image


def packed(cases: Sequence[Case], levels: int) -> bytes:
    """The vectors as run.c reads them."""
    numbers = [MAGIC, levels, len(cases)]
    for case in cases:
        numbers += [case.flat, case.cr3, len(case.words), len(case.accesses), len(case.loads)]
        for at, word in case.words.items():
            numbers += [at, word]
        for access in case.accesses:
            target = access.result.address if isinstance(access.result, Page) else NOWHERE
            is_data = isinstance(access.result, Page) and target >= DATA
            numbers += [access.address, _KINDS[access.kind], access.user, target, is_data]
        for load in case.loads:
            numbers += [load.register == "cr4.flat", load.value]
    return struct.pack(f"<{len(numbers)}Q", *numbers)


class Monitor:
    """QEMU's monitor."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._lines.readline()
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: Any) -> Any:
        """Runs a QMP command."""
        request = {"execute": command, "arguments": arguments}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            answer = json.loads(self._lines.readline())
            if "return" in answer:
                return answer["return"]
            assert "error" not in answer, answer

    def ask(self, line: str) -> str:
        """Runs a command of the human monitor."""
        answer = self.execute("human-monitor-command", **{"command-line": line})
        assert isinstance(answer, str)
        return answer

    def close(self) -> None:
        """Hangs up."""
        self._lines.close()
        self._socket.close()


@dataclass
class Seen:
    """What the machine did in one access or load."""

    #: "ok", "pf" or "gp".
    outcome: str
    #: What was read, or stands where something was to be written; error code and CR2 of a page fault.
    numbers: list[int]
    after: dict[int, int] = field(default_factory=dict)


class Machine:
    """A running machine.

    Args:
        qemu: The directory of a built QEMU.
        guest: What `build_guest` built.
        directory: An empty one.
        cases: What to run; all of as many levels.
        cpu: QEMU's CPU.
        options: More of QEMU's options.
    """

    def __init__(
        self,
        qemu: Path,
        guest: Path,
        directory: Path,
        cases: Sequence[Case],
        *,
        cpu: str,
        options: Sequence[str] = (),
    ) -> None:
        (levels,) = {case.levels for case in cases}
        blob, control = directory / "vectors.bin", directory / "qmp"
        blob.write_bytes(packed(cases, levels))
        self.cases = cases
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(control))
        self._listener.listen()
        self._listener.settimeout(60)
        self._process = subprocess.Popen(
            [
                str(qemu / "bin" / "qemu-system-x86_64"),
                *("-machine", "pc", "-accel", "tcg", "-cpu", cpu, "-m", "2G"),
                *("-nodefaults", "-display", "none", "-no-reboot"),
                *("-kernel", str(guest)),
                *("-device", f"loader,file={blob},addr={PLACE:#x},force-raw=on"),
                *("-serial", "stdio", "-qmp", f"unix:{control}"),
                *options,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.errors = ""

    def __enter__(self) -> Self:
        connection, _ = self._listener.accept()
        connection.settimeout(60)
        self.monitor = Monitor(connection)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.monitor.execute("quit")
        self.monitor.close()
        self._listener.close()
        _, errors = self._process.communicate(timeout=60)
        self.errors = errors.decode()

    def run(self) -> Iterator[tuple[Case, list[Seen]]]:
        """Runs the cases.

        Yields:
            Each case and what was seen of it; of its accesses first, while the machine waits with the case's
            tables for the monitor to look at them, and again of its loads.
        """
        serial, command = self._process.stdout, self._process.stdin
        assert serial is not None
        assert command is not None
        current: Case | None = None
        seen: list[Seen] = []
        for line in serial:
            match line.decode("ascii").split():
                case ["case", index]:
                    if current is not None:
                        yield current, seen
                    current, seen = self.cases[int(index, 16)], []
                case ["access" | "load", _, outcome, *numbers]:
                    seen.append(Seen(outcome, [int(number, 16) for number in numbers]))
                case ["after", at, word]:
                    seen[-1].after[int(at, 16)] = int(word, 16)
                case ["?"]:
                    assert current is not None
                    yield current, seen
                    seen = []
                    command.write(b"\n")
                    command.flush()
                case ["end"]:
                    assert current is not None
                    yield current, seen
                    return
                case _:
                    raise ValueError(line)
        raise EOFError(f"the machine stopped in {current and current.name} after {seen}")


def wrong_accesses(case: Case, seen: Sequence[Seen]) -> list[str]:
    """Where what was seen is not what the vectors say."""
    wrong = []
    if len(seen) != len(case.accesses):
        return [f"{case.name}: {len(seen)} of {len(case.accesses)} accesses"]
    for access, found in zip(case.accesses, seen, strict=True):
        target = access.result.address if isinstance(access.result, Page) else 0
        match access.result:
            case Page() if target < DATA:
                # A table's own word, in which the walk may set A.
                ok = found.outcome == "ok" and found.numbers[0] & ~0x20 == case.words.get(target, 0) & ~0x20
            case Page():
                value = target ^ 0x5A5A_0000_0000_0000
                ok = found.outcome == "ok" and found.numbers == [
                    value & 0xFFFF_FFFF if access.kind == "execute" else value
                ]
            case Fault(None):
                ok = found.outcome == "gp"
            case Fault(int(error)):
                ok = found.outcome == "pf" and found.numbers == [error, access.address]
        if isinstance(access.result, Page):
            ok = ok and found.after == access.after
        else:
            # A may be set on the way down, and nothing else.
            above = {at: case.words[at] | 0x20 for at in access.reads[:-1]}
            ok = ok and found.after.items() <= above.items()
        if not ok:
            wrong.append(f"{case.name}: {access}: {found}")
    return wrong


def wrong_loads(case: Case, seen: Sequence[Seen]) -> list[str]:
    """Where a MOV to a control register did something else."""
    wrong = []
    for load, found in zip(case.loads, seen, strict=True):
        ok = found.outcome == "gp" if load.faults else found == Seen("ok", [load.value])
        if not ok:
            wrong.append(f"{case.name}: {load}: {found}")
    return wrong


def wrong_translations(case: Case, monitor: Monitor) -> list[str]:
    """Where the debugger's walk says something else than the vectors."""
    wrong = []
    if any(word & ADDRESS >> MAXPHYADDR << MAXPHYADDR for word in case.words.values()):
        return []  # it does not look at MAXPHYADDR
    for address in {access.address for access in case.accesses}:
        # Rights do not matter to it.
        expected = case.translate(address, "read", user=False).result
        said = monitor.ask(f"gva2gpa {address:#x}").strip()
        ok = said == (f"gpa: {expected.address:#x}" if isinstance(expected, Page) else "Unmapped")
        if not ok:
            wrong.append(f"{case.name}: {address:#x}: {expected}: monitor: {said}")
    return wrong
