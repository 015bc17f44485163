"""Records programs: starts them under QEMU with the recorder's plugin, and the collector beside them.

See docs/recording.md for what is recorded and how.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from flatwalk import output as terminal
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.program import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

Progress = Callable[[int, int | None], None]

PLUGIN = "libflatwalk_recorder.so"
COLLECTOR = "flatwalk-collect"
INSTALL_QEMU = (
    "install Debian 12's qemu-user (as root: apt install qemu-user), or name another with FLATWALK_QEMU"
)
#: What the collector may take to write what it has got, when everything else has ended.
COLLECTOR_SECONDS = 30.0
#: How long children may outlive the program before the user is told what is being waited for.
PATIENCE_SECONDS = 2.0
#: How every trace begins.
TRACE_MAGIC = b"\x89FWTR"


class RecordError(FlatwalkError):
    """A program cannot be recorded, or its recording failed."""


@dataclass(frozen=True)
class ProcessTrace:
    """The trace of one program in one process."""

    path: Path
    pid: int
    command: list[str]
    #: Instructions recorded.
    instructions: int
    #: Length of the file.
    bytes: int
    #: Why it ended: "exit", "exec", "limit" (or the place to stop at), "detached" or "failed".
    reason: str


@dataclass(frozen=True)
class RecordResult:
    """What was recorded."""

    #: The trace asked for: of the program that the command's own process ran last.
    path: Path
    #: All traces: that one first, then those of forked children and of programs before an exec.
    traces: list[ProcessTrace]
    #: Instructions in all traces.
    instructions: int
    #: Wall-clock time.
    seconds: float
    #: The program's exit status, negative the signal that ended it; None if the recorder ended it
    #: because the limit, or the place to stop at, was reached.
    status: int | None
    #: Things worth knowing.
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = []
        for trace in self.traces:
            per_instruction = trace.bytes / trace.instructions if trace.instructions else 0.0
            lines.append(
                f"{trace.path}: {trace.instructions:,} instructions of {_shortened(trace.command)} "
                f"({trace.bytes / 1e6:,.1f} MB, {per_instruction:.2f} bytes each)"
            )
        speed = self.instructions / self.seconds / 1e6 if self.seconds > 0 else 0.0
        lines.append(f"{self.seconds:.1f} s, {speed:.0f} million instructions per second; {self._ending()}")
        lines.extend(f"note: {warning}" for warning in self.warnings)
        return "\n".join(lines)

    def _ending(self) -> str:
        if self.status is None:
            return "ended at the limit"
        if self.status < 0:
            try:
                name = signal.Signals(-self.status).name
            except ValueError:
                name = f"signal {-self.status}"
            return f"the program was ended by {name}"
        return f"the program's exit status is {self.status}"


def _shortened(command: list[str]) -> str:
    text = shlex.join(command)
    return text if len(text) <= 60 else f"{text[:59]}…"


@dataclass(frozen=True)
class Part:
    """Which part of a program is recorded.

    Args:
        skip: Instructions to pass over.
        limit: Instructions to record.
        start_at: Where recording starts, and
        stop_at: where it ends: see `record`.
        limit_option: What the user calls the limit.
    """

    skip: int = 0
    limit: int | None = None
    start_at: str | None = None
    stop_at: str | None = None
    limit_option: str = "--limit"

    def __post_init__(self) -> None:
        """Checks what a user may have given.

        Raises:
            UsageError: If there is no such part.
        """
        if self.limit is not None and self.limit <= 0:
            raise UsageError(
                f"a limit of {self.limit} instructions records nothing",
                where=self.limit_option,
                remedy="give 1 or more",
            )
        if self.skip < 0:
            raise UsageError(
                f"{self.skip} instructions cannot be skipped", where="--skip", remedy="give 0 or more"
            )
        for option, place in (("--start-at", self.start_at), ("--stop-at", self.stop_at)):
            if place and place.startswith("0x") and not re.fullmatch("0x[0-9a-fA-F]{1,16}", place):
                raise UsageError(f"{place!r} is no address", where=option, remedy="write it like 0x401000")

    def options(self) -> dict[str, str]:
        """The plugin's options."""
        given = {
            "skip": self.skip or None,
            "limit": self.limit,
            "start-at": self.start_at or None,
            "stop-at": self.stop_at or None,
        }
        return {name: str(value) for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Surroundings:
    """What a program runs in, where that is not what we run in."""

    #: Its working directory.
    directory: Path | None = None
    #: Where its standard output and error go; its standard input is then empty.
    log: Path | None = None
    #: The user that it runs as; only root can ask for that.
    user: str | None = None
    #: Told the program's process once it runs. Ctrl-C then reaches the program even where it was sent to
    #: us alone.
    on_start: Callable[[int], None] | None = None


def record(
    command: list[str],
    output: Path,
    *,
    skip: int = 0,
    limit: int | None = None,
    start_at: str | None = None,
    stop_at: str | None = None,
    follow_exec: bool = True,
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    surroundings: Surroundings | None = None,
) -> RecordResult:
    """Runs a program and records every instruction and data access of it.

    Standard input, output and error are the program's own. Ctrl-C goes to the program; whatever ends
    it, the trace holds everything up to that point.

    Args:
        command: Program (a path, or a name on PATH) and its arguments.
        output: Trace to write. Children of fork, and programs before an exec, get files beside it,
            named by their process number.
        skip: Instructions to pass over in each process.
        limit: Instructions to record in each process, which then ends.
        start_at: Where recording starts: a symbol, an address (0x…), or "marker" (flatwalk_start() of
            flatwalk.h).
        stop_at: Where recording, and the program, ends: a symbol or an address.
        follow_exec: Whether to record programs that the program starts.
        env: The program's environment; this process's if not given.
        progress: Called about ten times a second with the instructions recorded and the limit.
        surroundings: What it runs in, where that is not what we run in.

    Raises:
        UsageError: If the command or the output cannot be.
        RecordError: If QEMU or the recorder is missing, or recording failed.
    """
    if not command:
        raise UsageError("there is no program to record", remedy="give one: flatwalk record -- CMD ARGS…")
    part = Part(skip, limit, start_at, stop_at)
    environment = dict(os.environ if env is None else env)
    program, arguments = resolve(command, environment)
    qemu = find_qemu()
    plugin, collector = find_recorder()
    output = output.absolute()
    check_output(output)
    around = surroundings or Surroundings()
    with tempfile.TemporaryDirectory(prefix="flatwalk-") as directory:
        if around.user is not None:
            shutil.chown(directory, around.user)
        socket = Path(directory) / "collector"
        options = {"socket": str(socket), "follow-exec": "on" if follow_exec else "off", **part.options()}
        line = [str(qemu), "-plugin", plugin_argument(plugin, options)]
        host = {}
        for name, value in environment.items():
            # Loader settings for the program are not for QEMU; but -E takes commas for separators.
            if name.startswith("LD_") and "," not in value:
                line += ["-E", f"{name}={value}"]
            else:
                host[name] = value
        line += ["-0", arguments[0], "--", str(program), *arguments[1:]]
        session = _Session(output, part, progress, around)
        return session.run([str(collector), "--socket", str(socket), "--output", str(output)], line, host)


def check_output(output: Path) -> None:
    """Sees to it that the trace can be written, and that nothing but a trace is overwritten.

    Raises:
        UsageError: If not.
    """
    if output.is_dir():
        raise UsageError("the output is a directory", where=str(output), remedy="name a file in it")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        what = "cannot be written to" if output.parent.is_dir() else "does not exist"
        raise UsageError(
            f"the directory of the output {what}",
            where=str(output.parent),
            remedy="choose another with --output",
        )
    if output.exists() and not (output.is_file() and _starts_with(output, TRACE_MAGIC)):
        raise UsageError(
            "the output exists and is no trace of flatwalk's; it is left as it is",
            where=str(output),
            remedy="choose another name with --output, or remove it",
        )


def _starts_with(path: Path, magic: bytes) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        start = file.read(len(magic))
        return not start or start == magic
    return False


def plugin_argument(plugin: Path, options: Mapping[str, str]) -> str:
    """The value of QEMU's `-plugin`."""
    parts = [str(plugin), *(f"{key}={value}" for key, value in options.items())]
    return ",".join(part.replace(",", ",,") for part in parts)


def find_qemu() -> Path:
    """Finds a `qemu-x86_64` with plugins.

    Raises:
        RecordError: If there is none, or it is of another age.
    """
    given = os.environ.get("FLATWALK_QEMU")
    found = (
        shutil.which(given) if given else shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    )
    if not found:
        raise RecordError("there is no qemu-x86_64", where=given or "PATH", remedy=INSTALL_QEMU)
    try:
        said = subprocess.run(
            [found, "--version"], capture_output=True, text=True, check=False, timeout=30
        ).stdout
    except OSError as error:
        raise RecordError(f"QEMU does not run: {error}", where=found, remedy=INSTALL_QEMU) from error
    version = re.search(r"version (\d+)\.(\d+)", said)
    # Plugin interface 1, with the guest program's path, is in 7.1 to 8.2.
    if not version or not (7, 2) <= (int(version[1]), int(version[2])) < (9, 0):
        first = said.splitlines()[0] if said else "it tells no version"
        raise RecordError(
            f"this QEMU is not of version 7.2 to 8.2: {first}", where=found, remedy=INSTALL_QEMU
        )
    usage = subprocess.run([found, "-h"], capture_output=True, text=True, check=False, timeout=30).stdout
    if "-plugin" not in usage:
        raise RecordError("this QEMU was built without plugins", where=found, remedy=INSTALL_QEMU)
    return Path(found)


def find_recorder() -> tuple[Path, Path]:
    """Finds the plugin and the collector.

    Raises:
        RecordError: If they were not built.
    """
    given = os.environ.get("FLATWALK_RECORDER")
    here = Path(__file__).resolve()
    candidates = (
        [Path(given)]
        if given
        else [here.parent / "libexec" / PLUGIN, here.parents[2] / "target" / "release" / PLUGIN]
    )
    for plugin in candidates:
        collector = plugin.with_name(COLLECTOR)
        if plugin.is_file() and os.access(collector, os.X_OK):
            return plugin.resolve(), collector.resolve()
    raise RecordError(
        f"the recorder ({PLUGIN} and {COLLECTOR} beside it) is not there",
        where=", ".join(str(plugin.parent) for plugin in candidates),
        remedy="build it: cargo build --release -p flatwalk-recorder",
    )


@dataclass(frozen=True)
class Checked:
    """What the engine's walker found as a recorded machine did."""

    #: Walks of the machine, of any address.
    walks: int
    #: Accesses of the program, of which some are sampled.
    accesses: int


@dataclass(frozen=True)
class KernelWork:
    """What a recorded machine's kernel did for the program while that was recorded."""

    instructions: int
    #: Of these, repetitions of string instructions: QEMU executes each on its own.
    repeated: int


class Reports:
    """What a collector has told so far."""

    def __init__(self) -> None:
        #: Instructions so far, by file.
        self.counts: dict[str, int] = {}
        #: Process number and command, by file.
        self.commands: dict[str, tuple[int, list[str]]] = {}
        self.traces: list[ProcessTrace] = []
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self.checked: Checked | None = None
        self.kernel = KernelWork(0, 0)

    def note(self, report: dict[str, Any]) -> None:
        """Takes note of one report."""
        match report["type"]:
            case "start":
                self.commands[report["file"]] = (report["pid"], report["command"])
            case "progress":
                self.counts[report["file"]] = report["instructions"]
            case "warning":
                self.warnings.append(report["message"])
            case "checked":
                self.checked = Checked(report["walks"], report["accesses"])
                self.kernel = KernelWork(report["kernel"], report["repeated"])
            case "end":
                if report["error"]:
                    self.errors.append(report["error"])
                if report["file"]:
                    _, command = self.commands[report["file"]]
                    self.counts[report["file"]] = report["instructions"]
                    self.traces.append(
                        ProcessTrace(
                            Path(report["file"]),
                            report["pid"],
                            command,
                            report["instructions"],
                            report["bytes"],
                            report["reason"],
                        )
                    )

    def keep_partial(self) -> None:
        """What the collector could not finish (it was killed) is still a trace."""
        for file, (pid, command) in self.commands.items():
            partial = Path(f"{file}.part")
            if partial.is_file() and all(str(trace.path) != file for trace in self.traces):
                partial.rename(file)
                size = Path(file).stat().st_size
                count = self.counts.get(file, 0)
                self.traces.append(ProcessTrace(Path(file), pid, command, count, size, "failed"))
                self.warnings.append(f"the collector was killed; {file} holds what it had written")

    def raise_errors(self, output: Path) -> None:
        """Raises what went wrong, if anything did.

        Raises:
            RecordError: With all of it.
        """
        if self.errors:
            kept = [str(trace.path) for trace in self.traces if trace.instructions]
            what = "; ".join(dict.fromkeys(self.errors))
            note = f" (kept, valid up to that point: {', '.join(kept)})" if kept else ""
            raise RecordError(f"recording failed: {what}{note}", where=str(output))


@contextlib.contextmanager
def collecting(output: Path) -> Iterator[tuple[Path, Reports]]:
    """A collector for what the caller starts, and has seen to its end when it leaves.

    Yields:
        The collector's socket, and what it tells, which is all there afterwards.

    Raises:
        RecordError: If there is no collector, or it does not start.
    """
    _, program = find_recorder()
    told = Reports()
    with tempfile.TemporaryDirectory(prefix="flatwalk-") as directory:
        socket = Path(directory) / "collector"
        line = [str(program), "--socket", str(socket), "--output", str(output)]
        collector = _collector(line)
        try:
            assert collector.stdout is not None
            lines = _Lines(collector.stdout)
            _wait_until_ready(lines, line)
            thread = threading.Thread(target=_take_note, args=(lines, told))
            thread.start()
            try:
                yield socket, told
            finally:
                _tell(collector, "close")
                thread.join()
        finally:
            _end(None, collector)
            told.keep_partial()


def _collector(line: list[str], user: str | None = None) -> subprocess.Popen[bytes]:
    """Starts a collector.

    Its session is its own: Ctrl-C is for the program, and the collector sees the end through. Nothing is
    buffered: a word to a collector that is gone would be kept, and fail once more as its pipe is closed.
    """
    return subprocess.Popen(
        line,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        **_identity(user),
    )


def _take_note(lines: _Lines, told: Reports) -> None:
    while not lines.ended:
        for report in lines.read(0.1):
            told.note(report)


def _wait_until_ready(lines: _Lines, collect: list[str]) -> None:
    for report in lines.read(30.0):
        if report["type"] == "ready":
            return
    raise RecordError("the collector does not start", where=collect[0], remedy="see its message above")


class _Session:
    """One call of `record`."""

    def __init__(
        self, output: Path, part: Part, progress: Progress | None, surroundings: Surroundings
    ) -> None:
        self._output = output
        self._part = part
        self._progress = progress
        self._around = surroundings
        self._told = Reports()
        self._interrupted = 0
        self._told_to_end = False

    def run(self, collect: list[str], line: list[str], environment: dict[str, str]) -> RecordResult:
        start = time.monotonic()
        identity = _identity(self._around.user)
        collector = _collector(collect, self._around.user)
        program: subprocess.Popen[bytes] | None = None
        try:
            with self._signals(lambda: program):
                assert collector.stdout is not None
                reports = _Lines(collector.stdout)
                _wait_until_ready(reports, collect)
                with self._files() as files:
                    program = subprocess.Popen(
                        line, env=environment, cwd=self._around.directory, **files, **identity
                    )
                if self._around.on_start is not None:
                    self._around.on_start(program.pid)
                self._follow(program, collector, reports)
        finally:
            _end(program, collector)
            self._told.keep_partial()
        status = program.returncode
        seconds = time.monotonic() - start
        self._raise_errors(status, line)
        traces = self._in_order(program.pid)
        instructions = sum(trace.instructions for trace in traces)
        if instructions == 0:
            for trace in traces:
                trace.path.unlink()
            if self._told_to_end:
                raise KeyboardInterrupt
            raise self._nothing_recorded(status, line)
        at_limit = traces[0].reason == "limit"
        return RecordResult(
            self._output, traces, instructions, seconds, None if at_limit else status, self._told.warnings
        )

    @contextlib.contextmanager
    def _files(self) -> Iterator[dict[str, Any]]:
        """The program's standard files, where they are not ours."""
        if self._around.log is None:
            yield {}
            return
        with self._around.log.open("wb") as log:
            yield {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}

    def _follow(
        self, program: subprocess.Popen[bytes], collector: subprocess.Popen[bytes], reports: _Lines
    ) -> None:
        """Reads reports until the collector ends, which it does after the last process it records."""
        ended: float | None = None
        noted = detached = False
        while not reports.ended:
            for report in reports.read(0.1):
                self._told.note(report)
            if self._progress:
                self._progress(sum(self._told.counts.values()), self._part.limit)
            if ended is None and program.poll() is not None:
                ended = time.monotonic()
                self._interrupted = 0
                _tell(collector, "close")
            if ended is None or detached:
                continue
            # What still runs are children that the program did not wait for.
            if not noted and time.monotonic() - ended > PATIENCE_SECONDS:
                noted = True
                terminal.note(
                    "The program has ended; what it left running is recorded until it ends, or until Ctrl-C."
                )
            if self._interrupted:
                detached = True
                _tell(collector, "detach")

    def _raise_errors(self, status: int, line: list[str]) -> None:
        self._told.raise_errors(self._output)
        if not self._told.traces:
            raise _not_started(status, line)

    def _nothing_recorded(self, status: int, line: list[str]) -> RecordError:
        if self._part.start_at:
            return RecordError(
                f"the program never reached {self._part.start_at}, so nothing was recorded",
                where="--start-at",
                remedy="check the name (nm -C PROGRAM, nm -D LIBRARY), or that the program gets there",
            )
        if self._part.skip:
            return RecordError(
                "the program ended before all the instructions to skip, so nothing was recorded",
                where="--skip",
                remedy="skip fewer",
            )
        return _not_started(status, line)

    def _in_order(self, pid: int) -> list[ProcessTrace]:
        """Puts the trace of the last program of the command's own process first, at the name asked for."""
        # By their starts: a program's end may be told after that of the one it became by an exec.
        started = list(self._told.commands)
        own = [trace for trace in self._told.traces if trace.pid == pid]
        if not own:
            return self._told.traces
        last = max(own, key=lambda trace: started.index(str(trace.path)))
        first = next((trace for trace in self._told.traces if trace.path == self._output), last)
        renamed = {}
        if first is not last:
            swap = self._output.with_name(f"{self._output.name}.swap")
            first.path.rename(swap)
            last.path.rename(first.path)
            swap.rename(last.path)
            renamed = {first.path: last.path, last.path: first.path}
        traces = [
            ProcessTrace(
                renamed.get(trace.path, trace.path),
                trace.pid,
                trace.command,
                trace.instructions,
                trace.bytes,
                trace.reason,
            )
            for trace in self._told.traces
        ]
        return sorted(traces, key=lambda trace: trace.path != self._output)

    @contextlib.contextmanager
    def _signals(self, program: Callable[[], subprocess.Popen[bytes] | None]) -> Iterator[None]:
        """While the program runs, Ctrl-C is its own affair, and a request to end is passed on to it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(number: int, frame: FrameType | None) -> None:
            if self._around.on_start is not None:
                self._told_to_end = True
                pass_on(number, frame)
            else:
                self._interrupted += 1

        def pass_on(number: int, _frame: FrameType | None) -> None:
            self._interrupted += 1
            running = program()
            if running is not None:
                running.send_signal(number)

        # Handlers, not SIG_IGN: a child would inherit that.
        previous = {
            signal.SIGINT: signal.signal(signal.SIGINT, interrupt),
            signal.SIGTERM: signal.signal(signal.SIGTERM, pass_on),
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _identity(user: str | None) -> dict[str, Any]:
    """What makes `subprocess` start a program as a user."""
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def _not_started(status: int, line: list[str]) -> RecordError:
    return RecordError(
        f"QEMU did not start the program (exit status {status})",
        where=shlex.join(line),
        remedy="see its message above",
    )


def _end(program: subprocess.Popen[bytes] | None, collector: subprocess.Popen[bytes]) -> None:
    """Sees both to their end. After an error they may still run: then recording ends here."""
    if program is not None and program.poll() is None:
        program.kill()
        program.wait()
    with collector:
        if collector.poll() is None:
            _tell(collector, "detach")
            try:
                collector.wait(COLLECTOR_SECONDS)
            except subprocess.TimeoutExpired:
                collector.kill()


def _tell(collector: subprocess.Popen[bytes], word: str) -> None:
    """Sends the collector a line: `close` (no more programs will be started) or `detach` (enough)."""
    assert collector.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        collector.stdin.write(f"{word}\n".encode())


class _Lines:
    """Lines of JSON from a pipe, as they come."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._rest = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(pipe, selectors.EVENT_READ)
        self.ended = False

    def read(self, seconds: float) -> list[dict[str, Any]]:
        """What comes within so many seconds; returns as soon as there is something."""
        if not self._selector.select(seconds):
            return []
        data = os.read(self._pipe.fileno(), 1 << 16)
        if not data:
            self.ended = True
            self._selector.close()
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines if line]
