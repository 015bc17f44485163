"""Runs a command in a guest: our Linux on our QEMU, with the host's files as its root file system."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from flatwalk import temporary
from flatwalk.errors import FlatwalkError
from flatwalk.recorder.tools import escaped
from flatwalk.vm import build, compiled, components, ports, processes, races

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flatwalk.vm.machine import Machine

#: Lines of the kernel's log with which it reports a mistake of its own.
SPLAT = re.compile(
    r"BUG:|BUG \w|WARNING:|Oops|kernel BUG|general protection fault|Bad page|Bad rss|non-zero pgtables_bytes"
    r"|: bad p(gd|4d|ud|md) |pagealloc: |swap_(info_get|free): |page allocation failure: order:9"
    r"|possible (recursive|circular) locking|INFO: trying to register|turning off the locking"
    r"|INFO: task .* blocked|rcu: INFO: .*stall|Kernel panic|flat-pt-check"
)
_TAIL_LINES = 20
#: How often a guest is looked at that may be stopped for another reason than its time.
_LOOK_S = 1
#: What QEMU gives every guest, besides its ports: the host's files, random numbers, and no more.
_DEVICES = (
    *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
    *("-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"),
    *("-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
    *("-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
)


def is_splat(line: str) -> bool:
    """Whether a line reports a mistake of the kernel; a race of others than the series' functions is none."""
    return SPLAT.search(line) is not None and not races.is_of_others(line)


def first_process() -> Path:
    """The source of each guest's first process."""
    return compiled.SOURCES / "guest" / "init.c"


class GuestLostError(FlatwalkError):
    """A guest that ended, or was stopped, before its command did.

    Args:
        error: Why.
        log: Everything that its kernel logged.
        messages: QEMU's.
    """

    def __init__(self, error: FlatwalkError, log: str, messages: str) -> None:
        super().__init__(error.what, where=error.where, remedy=error.remedy)
        self.log = log
        self.messages = messages


@dataclass(frozen=True)
class Outcome:
    """How a command in a guest ended."""

    #: Its exit status; 128 and the signal's number if it died of one.
    status: int
    #: Everything that the kernel logged.
    log: str
    #: QEMU's messages.
    messages: str

    def splats(self) -> list[str]:
        """Lines with which the kernel, or QEMU's checking mode, reports a mistake of the kernel."""
        said = [*self.log.splitlines(), *self.messages.splitlines()]
        return [line for line in said if is_splat(line)]


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


def _initrd(init: bytes, job: bytes) -> bytes:
    """The first file system: the first process, and the command that it runs."""
    return archive(
        {
            "dev": (stat.S_IFDIR | 0o755, b""),
            "init": (stat.S_IFREG | 0o755, init),
            "job": (stat.S_IFREG | 0o644, job),
        }
    )


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
    stuck: Callable[[], str] | None = None,
    environment: Mapping[str, str] | None = None,
    source: Path | None = None,
    options: Sequence[str] = (),
) -> Outcome:
    """Boots a guest, runs a command in the host's files, and switches the guest off.

    What the command writes to files stays in the guest's memory and is gone with it.

    Args:
        machine: The guest.
        command: The program and its arguments, as in the current directory.
        stdin: A file descriptor for its input; without one it has no input.
        stdout: Where its output goes; ours if none is given.
        stderr: The same for its messages.
        timeout_s: How long the guest may run.
        stuck: Asked now and then while it runs: what it hangs in, so that it is stopped; or nothing.
        environment: Its environment; ours if none is given.
        source: The user's own trees, as built by `vm build --source`.
        options: More of QEMU's options.

    Raises:
        GuestLostError: If the guest does not end by itself, or before the command.
        FlatwalkError: If QEMU or Linux is not built, or the host cannot run the guest.
    """
    qemu = build.find(components.QEMU, source) / "bin" / "qemu-system-x86_64"
    kernel = build.find(components.KERNELS[machine.kernel], source) / "bzImage"
    init = compiled.guest_program(first_process()).read_bytes()
    given = os.environ if environment is None else environment
    with temporary.directory() as work:
        job = _job(command, str(Path.cwd()), given, fed=stdin is not None)
        (work / "initrd").write_bytes(_initrd(init, job))
        with contextlib.ExitStack() as stack:
            stdout_end = stack.enter_context(ports.forwarded(stdout or sys.stdout.buffer))
            stderr_end = stack.enter_context(ports.forwarded(stderr or sys.stderr.buffer))
            stdin_ends, stdin_port = stack.enter_context(ports.fed(stdin))
            arguments = [
                str(qemu),
                *machine.arguments(),
                *("-kernel", str(kernel), "-initrd", str(work / "initrd")),
                *_DEVICES,
                *("-serial", f"file:{work / 'log'}"),
                *ports.port("status", work / "status"),
                *ports.port("stdout", Path(f"/dev/fd/{stdout_end}")),
                *ports.port("stderr", Path(f"/dev/fd/{stderr_end}")),
                *stdin_port,
                *options,
            ]
            status, messages = _qemu(arguments, (stdout_end, stderr_end, *stdin_ends), timeout_s, stuck)
        log = _text(work / "log")
        _check_end(status, messages, log, str(qemu))
        return _outcome(_text(work / "status"), log, messages)


def _check_end(status: int | str, messages: str, log: str, qemu: str) -> None:
    """Checks how QEMU ended.

    Args:
        status: As from `_qemu`.
        messages: QEMU's.
        log: Everything that the guest's kernel logged.
        qemu: The program.

    Raises:
        GuestLostError: If the guest was stopped, or QEMU failed while it ran.
        FlatwalkError: If QEMU failed before that, or somebody ended it: this is no fault of the guest's.
    """
    # Asked to end, QEMU says by what, and exits with 0, unless it is too early for that.
    by_signal = status in (-signal.SIGKILL, -signal.SIGTERM) or "terminating on signal" in messages
    if isinstance(status, int) and by_signal:
        raise FlatwalkError(
            "QEMU was ended by a signal",
            where=qemu,
            remedy="if the host had too little memory, give less --memory, or end other programs",
        )
    if status == 0:
        return
    if isinstance(status, str):
        overdue = FlatwalkError(
            f"{status}, and was stopped",
            where="--timeout",
            remedy="give it more time, or more of the host's processors",
        )
        raise GuestLostError(overdue, log, messages)
    failed = FlatwalkError(
        f"QEMU failed: {messages.strip() or status}",
        where=qemu,
        remedy="fix what it says; give less --memory if there is too little",
    )
    # A kernel that has never said anything has not run.
    raise GuestLostError(failed, log, messages) if log else failed


def _outcome(status: str, log: str, messages: str) -> Outcome:
    """How the command ended, by what the guest's first process wrote to its port `status`.

    Raises:
        FlatwalkError: If the command could not be run, or the guest ended before it.
    """
    match status.split():
        case ["exit", number]:
            return Outcome(int(number), log, messages)
        case ["signal", number]:
            return Outcome(128 + int(number), log, messages)
        case ["failed", *why]:
            raise FlatwalkError(
                f"the guest cannot run anything: {' '.join(why)}",
                remedy="give it more --memory, or fix what it says",
            )
    lines = "\n".join(log.splitlines()[-_TAIL_LINES:])
    lost = FlatwalkError(
        f"the guest ended before the command did; its last lines:\n{lines}",
        remedy="give it more --memory if it had too little; otherwise this is a bug of the kernel or of QEMU",
    )
    raise GuestLostError(lost, log, messages) if log else lost


@contextlib.contextmanager
def disk(size_bytes: int) -> Iterator[Path]:
    """An empty disk for a guest, gone afterwards."""
    with temporary.directory() as directory:
        file = directory / "disk"
        file.touch()
        os.truncate(file, size_bytes)
        yield file


def drive(path: Path) -> list[str]:
    """QEMU's options that make a file the guest's disk /dev/vda."""
    return ["-drive", f"file={escaped(path)},if=virtio,format=raw,cache=unsafe"]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _qemu(
    arguments: list[str],
    descriptors: tuple[int, ...],
    timeout_s: float | None,
    stuck: Callable[[], str] | None = None,
) -> tuple[int | str, str]:
    """Runs QEMU until it ends; it stops when we are interrupted.

    Returns:
        Its exit status, or why it was stopped, of the guest; and its messages.
    """
    end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    why = ""
    try:
        process = subprocess.Popen(
            processes.outlived_by(arguments),
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
            while True:
                try:
                    messages = process.communicate(timeout=timeout_s if stuck is None else _LOOK_S)[1]
                    break
                except subprocess.TimeoutExpired:
                    if stuck is None or time.monotonic() >= end_s:
                        why = f"the guest did not end within {timeout_s:g} s"
                    elif what := stuck():
                        why = f"the guest hangs in {what}"
                    if why:
                        raise
    except subprocess.TimeoutExpired as error:
        return why, (error.stderr or b"").decode(errors="replace")
    return process.returncode, messages.decode(errors="replace")
