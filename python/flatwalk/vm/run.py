"""Runs a command in a guest: our Linux on our QEMU, with the host's files as its root file system."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import select
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from flatwalk import cache, compiler
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.vm import build, processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: What the kernel's `flat_page_tables=` takes.
MODES = ("off", "l3l2", "l4l3", "l2l1", "l4l3+l2l1", "compendia")
#: The guest's first process and the tests' programs.
GUEST = Path(__file__).resolve().parents[3] / "linux"
#: Lines of the kernel's log that say that it found a mistake of its own.
SPLAT = re.compile(
    r"BUG:|BUG \w|WARNING:|Oops|kernel BUG|general protection fault|Bad page|Bad rss|non-zero pgtables_bytes"
    r"|: bad p(gd|4d|ud|md) |pagealloc: |swap_(info_get|free): |page allocation failure: order:9"
    r"|possible (recursive|circular) locking|INFO: trying to register|turning off the locking"
    r"|INFO: task .* blocked|rcu: INFO: .*stall|Kernel panic|flat-pt-check"
)
_TAIL_LINES = 20
#: How long after a change QEMU grants Linux for the flush, in milliseconds.
GRACE_MS = 1000


@dataclass(frozen=True)
class Machine:
    """The guest.

    Args:
        mode: How Linux uses flattened tables, one of `MODES`.
        levels: Of page tables, 4 or 5.
        cpus: Virtual CPUs.
        memory: As QEMU takes it: `2G`.
        feature: Whether the CPU has flattened page tables.
        check: Whether QEMU looks for flushes that are missing.
        grace_ms: How long after a change QEMU grants Linux for the flush, if it looks for them.
        parameters: More of the kernel's command line.
        debug: Whether the kernel is the one with all of its checks, which is much slower.
    """

    mode: str = "off"
    levels: int = 4
    cpus: int = 1
    memory: str = "1G"
    feature: bool = True
    check: bool = False
    grace_ms: int = GRACE_MS
    parameters: tuple[str, ...] = ()
    debug: bool = False

    def __post_init__(self) -> None:
        """Checks what a user may have given.

        Raises:
            UsageError: If there is no such machine.
        """
        if self.mode not in MODES:
            raise UsageError(
                f"there is no mode {self.mode}", where="--mode", remedy=f"choose one of {', '.join(MODES)}"
            )
        if self.levels not in (4, 5):
            raise UsageError(
                f"there are no tables of {self.levels} levels", where="--levels", remedy="4 or 5"
            )
        if not re.fullmatch(r"[1-9][0-9]*[MG]", self.memory):
            raise UsageError(
                f"{self.memory} is no size of memory", where="--memory", remedy="write it like 512M or 2G"
            )

    def arguments(self) -> list[str]:
        """QEMU's arguments that make this machine."""
        features = [
            f"la57={'on' if self.levels == 5 else 'off'}",
            f"flat-pt={'on' if self.feature else 'off'}",
            # QEMU is no faster with them; what they keep only the check knows.
            *(f"{name}={'on' if self.check else 'off'}" for name in ("pcid", "invpcid")),
        ]
        if self.check:
            features += ["flat-pt-check=on", f"flat-pt-check-grace={self.grace_ms}"]
        line = " ".join(
            [
                "console=ttyS0",
                "panic=-1",
                "random.trust_cpu=on",
                # The check takes a busy host for a broken timer.
                "no_timer_check",
                # Guests may have to wait for the host for long.
                "rcupdate.rcu_cpu_stall_timeout=300",
                f"flat_page_tables={self.mode}",
                *self.parameters,
            ]
        )
        return [
            *("-machine", "q35,accel=tcg"),
            *("-cpu", ",".join(["max", *features])),
            *("-smp", str(self.cpus)),
            *("-m", self.memory),
            *("-append", line),
        ]


class GuestLostError(FlatwalkError):
    """A guest that did not come to its end.

    Args:
        error: Why.
        log: All that its kernel said.
    """

    def __init__(self, error: FlatwalkError, log: str) -> None:
        super().__init__(error.what, where=error.where, remedy=error.remedy)
        self.log = log


@dataclass(frozen=True)
class Outcome:
    """How a command in a guest ended."""

    #: Its exit status; 128 and the signal's number if it died of one.
    status: int
    #: All that the kernel said.
    log: str
    #: All that QEMU said.
    messages: str

    def splats(self) -> list[str]:
        """Lines with which the kernel, or QEMU's checking mode, reports a mistake of the kernel."""
        said = [*self.log.splitlines(), *self.messages.splitlines()]
        return [line for line in said if SPLAT.search(line)]


def guest_program(source: Path) -> Path:
    """A static program for guests, compiled once for each text of its source and of headers beside it.

    Raises:
        FlatwalkError: If it cannot be compiled.
    """
    flags = ["-Wall", "-D_GNU_SOURCE", "-static", "-pthread"]
    return _compiled(source, source.stem, flags, *sorted(source.parent.glob("*.h")))


def plugin(name: str, source: Path | None) -> Path:
    """A plugin of linux/guest/, compiled once for each text of it and of QEMU's header.

    Args:
        name: Of its source, without `.c`.
        source: The user's own trees, as built by `vm build --source`.

    Raises:
        FlatwalkError: If QEMU is not built, or the plugin cannot be compiled.
    """
    header = build.find(build.QEMU, source) / "include" / "qemu-plugin.h"
    flags = ["-Wall", "-shared", "-fPIC", f"-I{header.parent}"]
    return _compiled(GUEST / "guest" / f"{name}.c", f"{name}.so", flags, header)


def _compiled(source: Path, name: str, flags: Sequence[str], *headers: Path) -> Path:
    """What a C compiler makes of a source, kept under a key of its text and its headers'."""
    key = hashlib.sha256(b"".join(path.read_bytes() for path in (source, *headers))).hexdigest()[:16]
    made = cache.directory("vm") / "guest" / f"{key}-{name}"
    if made.is_file():
        return made
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FlatwalkError(
            f"there is no place for what is compiled: {error.strerror}",
            where=str(error.filename),
            remedy="free some space, or set XDG_CACHE_HOME to another place",
        ) from error
    with tempfile.TemporaryDirectory(dir=made.parent) as directory:
        part = Path(directory) / name
        compiler.build(source, part, flags)
        part.replace(made)
    return made


def archive(files: Mapping[str, tuple[int, bytes]]) -> bytes:
    """A cpio archive (`newc`) that Linux unpacks as its first file system.

    Args:
        files: Each path's mode and contents.
    """
    out = bytearray()
    entries = [*files.items(), ("TRAILER!!!", (0, b""))]
    for number, (name, (mode, content)) in enumerate(entries, 1):
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + path
        out += bytes(-len(out) % 4) + content
        out += bytes(-len(out) % 4)
    return bytes(out)


def _job(command: Sequence[str], directory: str, environment: Mapping[str, str], *, fed: bool) -> bytes:
    words = [
        directory,
        "fed" if fed else "unfed",
        str(len(command)),
        *command,
        *(f"{name}={value}" for name, value in environment.items()),
    ]
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def run(
    machine: Machine,
    command: Sequence[str],
    *,
    stdin: int | None = None,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
    source: Path | None = None,
    options: Sequence[str] = (),
) -> Outcome:
    """Boots a guest, runs a command in the host's files, and switches the guest off.

    What the command writes to files stays in the guest's memory and is gone with it.

    Args:
        machine: The guest.
        command: The program and its arguments, as in the current directory.
        stdin: A file descriptor that its input comes from; it has none if none is given.
        stdout: Where its output goes; ours if none is given.
        stderr: The same for its messages.
        timeout_s: How long the guest may run.
        environment: Its environment; ours if none is given.
        source: The user's own trees, as built by `vm build --source`.
        options: More of QEMU's options.

    Raises:
        FlatwalkError: If QEMU or Linux is not built, or the guest does not come to an end of its own.
    """
    qemu = build.find(build.QEMU, source) / "bin" / "qemu-system-x86_64"
    kernel = build.find(build.DEBUG_LINUX if machine.debug else build.LINUX, source) / "bzImage"
    init = guest_program(GUEST / "guest" / "init.c").read_bytes()
    given = os.environ if environment is None else environment
    job = _job(command, str(Path.cwd()), given, fed=stdin is not None)
    files = {
        "dev": (stat.S_IFDIR | 0o755, b""),
        "init": (stat.S_IFREG | 0o755, init),
        "job": (stat.S_IFREG | 0o644, job),
    }
    with tempfile.TemporaryDirectory(prefix="flatwalk-vm-") as name:
        work = Path(name)
        (work / "initrd").write_bytes(archive(files))
        with contextlib.ExitStack() as stack:
            ends = {
                "stdout": stack.enter_context(_forwarded(stdout or sys.stdout.buffer)),
                "stderr": stack.enter_context(_forwarded(stderr or sys.stderr.buffer)),
            }
            inputs, ports = stack.enter_context(_fed(stdin))
            arguments = [
                str(qemu),
                *machine.arguments(),
                *("-kernel", str(kernel), "-initrd", str(work / "initrd")),
                *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
                *("-serial", f"file:{work / 'log'}"),
                *("-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"),
                *("-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
                *("-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
                *_port("status", work / "status"),
                *(word for port, end in ends.items() for word in _port(port, Path(f"/dev/fd/{end}"))),
                *ports,
                *options,
            ]
            try:
                messages = _qemu(arguments, (*ends.values(), *inputs), timeout_s)
            except FlatwalkError as error:
                raise GuestLostError(error, _text(work / "log")) from error
        log = _text(work / "log")
        told = _text(work / "status")
    match told.split():
        case ["exit", status]:
            return Outcome(int(status), log, messages)
        case ["signal", number]:
            return Outcome(128 + int(number), log, messages)
        case ["failed", *why]:
            raise FlatwalkError(
                f"the guest cannot run anything: {' '.join(why)}",
                remedy="give it more --memory, or mend what it says",
            )
    lines = "\n".join(log.splitlines()[-_TAIL_LINES:])
    lost = FlatwalkError(
        f"the guest came to an end before the command did; its last lines:\n{lines}",
        remedy="give it more --memory if it had too little; otherwise this is a bug of the kernel or of QEMU",
    )
    raise GuestLostError(lost, log)


@contextlib.contextmanager
def disk(size_bytes: int) -> Iterator[Path]:
    """An empty disk for a guest, gone afterwards."""
    with tempfile.NamedTemporaryFile(prefix="flatwalk-vm-") as file:
        file.truncate(size_bytes)
        yield Path(file.name)


def drive(path: Path) -> list[str]:
    """QEMU's options that make a file the guest's disk /dev/vda."""
    return ["-drive", f"file={path},if=virtio,format=raw,cache=unsafe"]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _port(name: str, path: Path) -> list[str]:
    return [
        *("-chardev", f"file,id={name},path={path},append=on"),
        *("-device", f"virtserialport,chardev={name},name={name}"),
    ]


@contextlib.contextmanager
def _forwarded(to: IO[bytes]) -> Iterator[int]:
    """A pipe whose contents go to a file of ours, which QEMU could not open by a name."""
    reading, writing = os.pipe()

    def forward() -> None:
        with os.fdopen(reading, "rb", buffering=0) as file:
            while got := file.read(65536):
                # A reader who has gone away must not stop the guest.
                with contextlib.suppress(OSError, ValueError):
                    to.write(got)
                    to.flush()

    thread = threading.Thread(target=forward)
    thread.start()
    try:
        yield writing
    finally:
        os.close(writing)
        thread.join()


@contextlib.contextmanager
def _fed(source: int | None) -> Iterator[tuple[list[int], list[str]]]:
    """Hands what comes from a file on to the guest's port `stdin`, which ends when the file does.

    Yields:
        The descriptors that QEMU needs, and its options.
    """
    if source is None:
        yield [], []
        return
    ours, theirs = socket.socketpair()
    over_reading, over_writing = os.pipe()

    def feed() -> None:
        with ours, contextlib.suppress(OSError):
            while source in select.select([source, over_reading], [], [])[0]:
                got = os.read(source, 65536)
                if not got:
                    break
                ours.sendall(got)
            # QEMU learns that there is no more; were all closed, it would drop what it has not read.
            ours.shutdown(socket.SHUT_WR)
            select.select([over_reading], [], [])

    thread = threading.Thread(target=feed)
    thread.start()
    name = "stdin"
    try:
        yield (
            [theirs.fileno()],
            [
                *("-chardev", f"socket,id={name},fd={theirs.fileno()}"),
                *("-device", f"virtserialport,chardev={name},name={name}"),
            ],
        )
    finally:
        theirs.close()
        os.close(over_writing)
        thread.join()
        os.close(over_reading)


def _qemu(arguments: list[str], descriptors: tuple[int, ...], timeout_s: float | None) -> str:
    """Runs QEMU to its end and returns its messages; it stops when we are interrupted."""
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=descriptors,
            # Ctrl-C comes to us, and we stop it.
            process_group=0,
        )
    except OSError as error:
        raise FlatwalkError(
            f"QEMU does not start: {error.strerror}", where=arguments[0], remedy="run: flatwalk vm build"
        ) from error
    try:
        with process, processes.ended_together(process):
            messages = process.communicate(timeout=timeout_s)[1].decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        raise FlatwalkError(
            f"the guest has not come to an end within {timeout_s:g} s, and was stopped",
            where="--timeout",
            remedy="give it more time, or more of the host's",
        ) from error
    if process.returncode:
        raise FlatwalkError(
            f"QEMU failed: {messages.strip() or process.returncode}",
            where=arguments[0],
            remedy="mend what it says; give less --memory if there is too little",
        )
    return messages
