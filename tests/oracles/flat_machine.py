"""Runs the vectors of flat page tables on QEMU: a bare machine makes the accesses, the monitor looks on."""

from __future__ import annotations

import bisect
import contextlib
import json
import socket
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.oracles.flat_page_tables import ADDRESS, FLAT, MAXPHYADDR, PS, RW, US, A, Case, Fault, P, Page
from tests.running import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GUEST = Path(__file__).parents[1] / "guest"
#: Where run.c looks for the vectors, and what they begin with.
PLACE, MAGIC = 0x400_0000, 0x4641_4C54_5054_2031
#: Below are tables, from here on data.
DATA = 0x2000_0000
NOWHERE = (1 << 64) - 1
#: Bits of CR4.
PAE, LA57, CR4_FLAT = 1 << 5, 1 << 12, 1 << 29
#: From here on the program is mapped, in every case's tables.
OWN = 0xFFFF_FF80_0000_0000
_KINDS = {"read": 0, "write": 1, "execute": 2}
_FLAGS = (
    *("-O2", "-Wall", "-Wextra", "-Werror"),
    *("-ffreestanding", "-nostdlib", "-static", "-fno-stack-protector", "-fcf-protection=none"),
    *("-fno-pic", "-fno-pie", "-no-pie", "-mcmodel=kernel", "-mno-red-zone", "-mgeneral-regs-only"),
    *("-Wl,--build-id=none", "-Wl,-z,max-page-size=4096", "-Wl,-z,noexecstack", "-Wl,--no-warn-rwx-segments"),
)


def control_of(levels: int, *, flat: bool) -> int:
    """The bits of CR4 that have tables read so."""
    return PAE | (LA57 if levels == 5 else 0) | (CR4_FLAT if flat else 0)


def build_guest(directory: Path, program: str) -> Path:
    """Builds a program of the bare machine: run, flush or nested."""
    whole, image = directory / f"{program}64.elf", directory / f"{program}.elf"
    parts = [str(GUEST / name) for name in ("boot.S", f"{program}.c")]
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
    """A running bare machine.

    Args:
        qemu: The directory of a built QEMU.
        guest: What `build_guest` built.
        directory: An empty one.
        cpu: QEMU's CPU.
        options: More of QEMU's options.
    """

    def __init__(self, qemu: Path, guest: Path, directory: Path, *, cpu: str, options: Sequence[str]) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / "qmp"))
        self._listener.listen()
        self._listener.settimeout(PATIENCE_SECONDS)
        self._process = subprocess.Popen(
            [
                str(qemu / "bin" / "qemu-system-x86_64"),
                *("-machine", "pc", "-accel", "tcg", "-cpu", cpu, "-m", "2G"),
                *("-nodefaults", "-display", "none", "-no-reboot"),
                *("-kernel", str(guest), "-serial", "stdio", "-qmp", f"unix:{directory / 'qmp'}"),
                *options,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        #: What QEMU said on standard error, once it has ended.
        self.errors = ""

    def __enter__(self) -> Self:
        connection, _ = self._listener.accept()
        connection.settimeout(PATIENCE_SECONDS)
        self.monitor = Monitor(connection)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.monitor.execute("quit")
        self.monitor.close()
        self._listener.close()
        self.errors = self._process.communicate(timeout=PATIENCE_SECONDS)[1].decode()

    def missing_flushes(self) -> int:
        """How many flushes the checking mode has missed so far."""
        (cpu,) = self.monitor.execute("query-cpus-fast")
        count = self.monitor.execute("qom-get", path=cpu["qom-path"], property="flat-pt-check-misses")
        assert isinstance(count, int)
        return count

    def migrate(self, state: Path) -> None:
        """Stops, and writes the machine's state to a file."""
        self.monitor.execute("migrate", uri=f"exec:cat > {state}")
        while (status := self.monitor.execute("query-migrate")["status"]) != "completed":
            assert status in ("setup", "active", "device"), status

    def arrive(self) -> None:
        """Waits until a machine that is migrated here runs."""
        while self.monitor.execute("query-status")["status"] == "inmigrate":
            pass

    def go_on(self) -> None:
        """Ends a wait that the machine had begun before it was migrated here."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def lines(self) -> Iterator[list[str]]:
        """The words of the lines that the machine prints, until it says that it has ended.

        After a line that is `?` the machine waits until the next line is asked for.
        """
        serial, command = self._process.stdout, self._process.stdin
        assert serial is not None
        assert command is not None
        for line in serial:
            words = line.decode("ascii").split()
            if words == ["end"]:
                return
            yield words
            if words == ["?"]:
                command.write(b"\n")
                command.flush()
        raise EOFError("the machine has stopped")


@contextlib.contextmanager
def holding(
    qemu: Path, guest: Path, directory: Path, vectors: bytes, *, cpu: str, options: Sequence[str]
) -> Iterator[Machine]:
    """A machine with `vectors` where its guest looks for them."""
    blob = directory / "vectors.bin"
    blob.write_bytes(vectors)
    loader = ("-device", f"loader,file={blob},addr={PLACE:#x},force-raw=on")
    with Machine(qemu, guest, directory, cpu=cpu, options=[*loader, *options]) as machine:
        yield machine


def running(
    qemu: Path, guest: Path, directory: Path, cases: Sequence[Case], *, cpu: str, options: Sequence[str] = ()
) -> contextlib.AbstractContextManager[Machine]:
    """A machine that has the vectors of `cases`, all of as many levels."""
    (levels,) = {case.levels for case in cases}
    return holding(qemu, guest, directory, packed(cases, levels), cpu=cpu, options=options)


def results(machine: Machine, cases: Sequence[Case]) -> Iterator[tuple[Case, list[Seen]]]:
    """Runs vectors.

    Yields:
        Each case twice: with what was seen of its accesses, while the machine waits with the case's tables
        for the monitor to look at them; and with what was seen of its loads.
    """
    case: Case | None = None
    seen: list[Seen] = []
    for words in machine.lines():
        match words:
            case ["case", index]:
                if case is not None:
                    yield case, seen
                case, seen = cases[int(index, 16)], []
            case ["access" | "load", _, outcome, *numbers]:
                seen.append(Seen(outcome, [int(number, 16) for number in numbers]))
            case ["after", at, word]:
                seen[-1].after[int(at, 16)] = int(word, 16)
            case ["?"]:
                assert case is not None
                yield case, seen
                seen = []
            case _:
                raise ValueError(words)
    assert case is not None
    yield case, seen


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


def build_plugin(qemu: Path, directory: Path) -> Path:
    """Builds the plugin that writes page walks to a file."""
    plugin = directory / "page_walks.so"
    source = Path(__file__).parents[1] / "plugin" / "page_walks.c"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    command = ["gcc", *flags, f"-I{qemu / 'include'}", str(source), "-o", str(plugin)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return plugin


def wrong_walks(cases: Sequence[Case], lines: Sequence[str]) -> list[str]:
    """Where the plugin has seen other walks than the vectors say."""
    roots = {f"{case.cr3:x}" for case in cases}
    walks = [walk for walk in map(str.split, lines) if walk[1] in roots and int(walk[3], 16) < OWN]
    wrong = []
    for case in cases:
        for access in case.accesses:
            if access.result == Fault(None):
                continue
            match access.result:
                case Page(address, size):
                    result = ["page", f"{address:x}", f"{size:x}"]
                case Fault(code):
                    result = ["fault", f"{code:x}"]
            kind = {"read": "r", "write": "w", "execute": "x"}[access.kind]
            control = control_of(case.levels, flat=case.flat)
            mode = "u" if access.user else "s"
            key = ["0", f"{case.cr3:x}", f"{control:x}", f"{access.address:x}", kind, mode, "single"]
            seen = walks.pop(0) if walks else []
            fields = len(key) + len(result)
            # An entry that is read again has A by then.
            entries = [int(field, 16) for field in seen[fields:]]
            words = [word | A for word in entries[1::2]]
            expected = [case.words.get(at, 0) | A for at in access.reads]
            if seen[:fields] != key + result or entries[::2] != [*access.reads] or words != expected:
                wrong.append(f"{case.name}: {access}: {' '.join(seen)}")
            while walks and walks[0][: len(key)] == key:  # the same, done again
                walks.pop(0)
    return wrong + [f"nobody asked for {walk}" for walk in walks]


Mapped = tuple[int, int, int, int]


def pages(case: Case) -> list[Mapped]:
    """All pages that a case's tables map, in order: address, physical address, size, and RW and US."""
    at = sorted(case.words)
    bits = 12 + 9 * case.levels

    def visit(low: int, level: int, count: int, start: int, rights: int) -> Iterator[Mapped]:
        """As many entries from `low` on; the first of them translates `start`."""
        span = 1 << (3 + 9 * level)
        for place in at[bisect.bisect_left(at, low) : bisect.bisect_left(at, low + 8 * count)]:
            entry = case.words[place]
            address = start + (place - low) // 8 * span
            if not entry & P or entry & case.reserved(entry, level) & ((1 << MAXPHYADDR) - 1):
                continue
            flat = case.flat and bool(entry & FLAT)
            if level == 1 or (level <= 3 and entry & PS) or (level == 2 and flat):
                yield address, entry & ADDRESS & ~(span - 1), span, rights & entry
            else:
                below, width = (level - 2, 18) if flat else (level - 1, 9)
                yield from visit(entry & ADDRESS, below, 1 << width, address, rights & entry)

    found: list[Mapped] = []
    for start in (0, 1 << (bits - 1)):
        base, level, _ = case.root(start)
        span = 1 << (3 + 9 * level)
        found += visit(base + 8 * (start // span), level, (1 << (bits - 1)) // span, start, RW | US)
    return found


def wrong_listings(case: Case, monitor: Monitor) -> list[str]:
    """Where `info tlb` and `info mem` list other pages than the tables map."""
    bits = 12 + 9 * case.levels
    high = (1 << 64) - (1 << bits)
    own = (1 << bits) - (1 << (bits - 9))  # the slot that the vectors leave free
    mapped = pages(case)
    expected = [(address, frame) for address, frame, _, _ in mapped]
    listed = []
    for line in monitor.ask("info tlb").splitlines():
        address, frame = (int(field.rstrip(":"), 16) for field in line.split()[:2])
        listed.append((address & ~high, frame))
    wrong = []
    if [pair for pair in listed if pair[0] < own] != expected:
        wrong.append(f"{case.name}: info tlb: {listed}")
    ranges: list[list[int]] = []
    for address, _, size, rights in mapped:
        if ranges and ranges[-1][1:] == [address, rights]:
            ranges[-1][1] += size
        else:
            ranges.append([address, address + size, rights])
    listed_ranges = []
    for line in monitor.ask("info mem").splitlines():
        span, _, rights_text = line.split()
        first, last = (int(field, 16) & ~high for field in span.split("-"))
        rights = (US if rights_text[0] == "u" else 0) | (RW if rights_text[2] == "w" else 0)
        if first < own:
            listed_ranges.append([first, last, rights])
    if listed_ranges != ranges:
        wrong.append(f"{case.name}: info mem: {listed_ranges}, not {ranges}")
    return wrong


def dumped(path: Path) -> list[tuple[int, int]]:
    """Address and physical address of every segment of a dump (an ELF core file)."""
    data = path.read_bytes()
    offset, size, count = (
        struct.unpack_from("<Q", data, 32)[0],
        *struct.unpack_from("<HH", data, 54),
    )
    segments = [struct.unpack_from("<IIQQQQQQ", data, offset + size * number) for number in range(count)]
    return [(address, physical) for kind, _, _, address, physical, *_ in segments if kind == 1]
