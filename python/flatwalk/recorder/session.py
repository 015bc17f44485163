"""One recording: starts the program under QEMU, follows the collector's reports, passes signals on."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from flatwalk import temporary
from flatwalk.errors import UsageError
from flatwalk.recorder import place
from flatwalk.recorder.collector import Collector, identity
from flatwalk.recorder.program import resolve
from flatwalk.recorder.reports import Reports
from flatwalk.recorder.request import LONGEST_BLOCK, Part, Sample, Surroundings, stopped_by
from flatwalk.recorder.result import RecordError, RecordResult
from flatwalk.recorder.tools import find_qemu, find_recorder, plugin_options
from flatwalk.terminal import output as terminal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    Handler = Callable[[int, FrameType | None], None] | signal.Handlers

    from flatwalk.recorder.place import Place
    from flatwalk.recorder.result import ProcessTrace

Progress = Callable[[int, int | None], None]

#: How long children may outlive the program before the user is shown what is being waited for.
PATIENCE_SECONDS = 2.0
#: How long the program, and what it started, may take to end after we were told to terminate.
TERMINATION_SECONDS = 0.5
#: A death by a signal that nobody sent, so soon after one that asks for the end, is due to that one.
FAILURE_SECONDS = 2.0


def record(
    command: list[str],
    output: Path,
    *,
    skip: int = 0,
    limit: int | None = None,
    start_at: str | None = None,
    stop_at: str | None = None,
    follow_exec: bool = True,
    sample: Sample | None = None,
    seconds: float | None = None,
    limit_option: str | None = None,
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    surroundings: Surroundings | None = None,
    is_temporary: bool = False,
) -> RecordResult:
    """Runs a program and records every instruction and data access of it.

    Standard input, output and error are the program's own. Ctrl-C goes to the program; whatever ends
    it, the trace holds everything up to that point.

    Args:
        command: Program (a path, or a name on PATH) and its arguments.
        output: Trace to write. Those of children of fork, and of programs before an exec, get names with
            their process number in the directory `STEM.processes` next to it.
        skip: Instructions to pass over in each process.
        limit: Instructions to record in each process, which then ends. Of a sample, gaps count, too.
        start_at: Where recording starts: a symbol, an address (0x…), or "marker" (flatwalk_start() of
            flatwalk.h).
        stop_at: Where recording, and the program, ends: a symbol, an address, or "marker"
            (flatwalk_stop()).
        follow_exec: Whether to record programs that the program starts.
        sample: Which sample of each process's run is recorded; all of it if not given.
        seconds: After so much time what still runs is ended.
        limit_option: The limit as the user gave it: `--limit 1M`.
        env: The program's environment; this process's if not given.
        progress: Called about ten times a second with the instructions executed and the limit.
        surroundings: What it runs in, where that differs from what we run in.
        is_temporary: The output goes after an error.

    Raises:
        UsageError: If the command or the output cannot be.
        RecordError: If QEMU or the recorder is missing, another recording writes the output, or recording
            failed.
        KeyboardInterrupt: If nothing was recorded before Ctrl-C.
        SystemExit: If nothing was recorded before we were asked to terminate (SIGTERM, SIGHUP).
    """
    if not command:
        raise UsageError("there is no program to record", remedy="give one: flatwalk record -- CMD ARGS…")
    part = Part(skip, limit, start_at, stop_at, limit_option)
    if seconds is not None and not seconds > 0:
        raise UsageError(f"{seconds} seconds record nothing", where="--time", remedy="give more than 0")
    environment = dict(os.environ if env is None else env)
    program, arguments = resolve(command, environment)
    qemu = find_qemu()
    plugin, collector = find_recorder()
    around = surroundings or Surroundings()
    with place.taken(output) as taken, temporary.directory() as directory:
        _check_directory(directory)
        if around.user is not None:
            shutil.chown(directory, around.user)
            shutil.chown(taken.growing.parent, around.user)
        socket = directory / "collector"
        options = {"socket": str(socket), "follow-exec": "on" if follow_exec else "off", **part.options()}
        options |= sample.options() if sample else {}
        theirs, ours = _divided(environment)
        line = [
            *(str(qemu), *plugin_options(plugin, options), *theirs),
            *("-0", arguments[0], "--", str(program), *arguments[1:]),
        ]
        session = _Session(taken, part, progress, around, seconds, is_temporary=is_temporary)
        return session.run(Collector(collector, socket, taken, around.user), line, ours)


def _check_directory(directory: Path) -> None:
    """Checks that QEMU can be given the name of a temporary directory.

    Raises:
        UsageError: If not.
    """
    try:
        str(directory).encode()
    except UnicodeEncodeError:
        raise UsageError(
            "the name of the directory for temporary files is not UTF-8",
            where=str(directory.parent),
            remedy="set TMPDIR to another one",
        ) from None


def _divided(environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """An environment divided into QEMU's options for the program alone, and what QEMU may see, too.

    Loader settings for the program are not for QEMU; but its -E takes commas for separators.
    """
    options, rest = [], {}
    for name, value in environment.items():
        if name.startswith("LD_") and "," not in value:
            options += ["-E", f"{name}={value}"]
        else:
            rest[name] = value
    return options, rest


class _Session:
    """One call of `record`."""

    def __init__(
        self,
        place: Place,
        part: Part,
        progress: Progress | None,
        surroundings: Surroundings,
        seconds: float | None,
        *,
        is_temporary: bool,
    ) -> None:
        self._is_temporary = is_temporary
        self._place = place
        self._part = part
        self._progress = progress
        self._around = surroundings
        self._seconds = seconds
        self._timed_out = False
        #: The files of traces that were not complete when we ended their processes, and what for.
        self._ended: dict[str, str] = {}
        #: Recorded processes that have ended, as of when we last looked.
        self._gone: set[int] = set()
        #: The signals that came, the last one last, and what had ended then.
        self._signalled: dict[int, set[int]] = {}
        #: When the last one came that asks for the end, and when we saw the command's own process dead.
        self._asked = 0.0
        self._died: float | None = None
        #: The program is to ignore SIGCHLD, as this process did.
        self._ignores_children = False
        #: Those that came before there was a program to pass them on to.
        self._early: list[int] = []
        #: What let processes go on unrecorded.
        self._detached_by = "an error"
        self._reports = Reports()
        self._interrupted = 0
        #: Ctrl-C was sent to end us as well as the program.
        self._asked_to_end = False
        #: When we were asked to terminate, and by which signal.
        self._terminated: float | None = None
        self._terminated_by = 0

    def run(self, collector: Collector, line: list[str], environment: dict[str, str]) -> RecordResult:
        start = time.monotonic()
        program: subprocess.Popen[bytes] | None = None
        with self._signals(lambda: program):
            try:
                collector.wait_until_ready()
                if self._early:
                    self._end_without_traces()
                program = self._start(line, environment)
                for number in self._early:
                    program.send_signal(number)
                if self._around.on_start is not None:
                    self._around.on_start(program.pid)
                self._follow(program, collector, Path(line[0]), start)
            finally:
                # A signal is only noted here, too: what is complete is kept.
                if program is not None and program.poll() is None:
                    program.kill()
                    program.wait()
                    why = _named(self._terminated_by) if self._terminated_by else "an error"
                    self._note_ended(program.pid, why)
                for report in collector.finish():
                    self._reports.add(report)
                self._reports.keep_partial()
                status = None if program is None else program.returncode
                self._reports.note_stopped(lambda trace: self._stopped(trace, status))
                main = None if program is None else self._reports.main(program.pid)
                traces = self._place.keep(self._reports.traces, main)
        return self._result(program, line, time.monotonic() - start, traces, main)

    def _start(self, line: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with contextlib.ExitStack() as stack:
            files: dict[str, Any] = {}
            if self._around.log is not None:
                log = stack.enter_context(self._around.log.open("wb"))
                files = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            return subprocess.Popen(
                line,
                env=environment,
                cwd=self._around.directory,
                preexec_fn=_ignore_children if self._ignores_children else None,  # noqa: PLW1509
                **files,
                **identity(self._around.user),
            )

    def _follow(
        self, program: subprocess.Popen[bytes], collector: Collector, qemu: Path, start: float
    ) -> None:
        """Reads reports until the collector ends, which it does after the last process it records."""
        ended: float | None = None
        noted = detached = is_over = False
        while not collector.ended:
            for report in collector.read(0.1):
                self._reports.add(report)
            running = self._running(program, qemu)
            self._gone = {pid for pid, _ in self._reports.commands.values()}.difference(running)
            if self._progress:
                self._progress(sum(self._reports.counts.values()), self._part.limit)
            now = time.monotonic()
            if self._seconds is not None and now - start > self._seconds:
                self._timed_out |= self._end_all(program, qemu, f"--time {self._seconds:g}")
                is_over = True
            if self._terminated is not None and now - self._terminated > TERMINATION_SECONDS:
                self._end_all(program, qemu, _named(self._terminated_by))
                is_over = True
            if is_over and not running:
                # What the collector still waits for is a program that has not yet introduced itself.
                collector.leave()
            if ended is None and program.poll() is not None:
                self._died = ended = time.monotonic()
                self._interrupted = 0
                collector.close()
            if ended is None or detached:
                continue
            # What still runs are children that the program did not wait for. Else a sample is being encoded.
            late = time.monotonic() - ended > PATIENCE_SECONDS
            if late and not noted and running:
                noted = True
                terminal.note(
                    "The program has ended; what it left running is recorded until it ends, or until Ctrl-C."
                )
            if self._interrupted:
                detached = True
                # SIGQUIT is the program's alone.
                ending = (number for number in self._signalled if number != signal.SIGQUIT)
                self._detached_by = _named([signal.SIGINT, *ending][-1])
                collector.detach()

    def _end_all(self, program: subprocess.Popen[bytes], qemu: Path, why: str) -> bool:
        """Ends what still runs, if anything does. Nothing that was recorded is lost by that."""
        any_ran = False
        for pid in self._running(program, qemu):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                any_ran = True
                self._note_ended(pid, why)
        return any_ran

    def _note_ended(self, pid: int, why: str) -> None:
        for file, of in self._reports.unfinished().items():
            if of == pid:
                self._ended.setdefault(file, why)

    def _stopped(self, trace: ProcessTrace, status: int | None) -> str | None:
        """What stopped a trace's program before it ended by itself, in words.

        Of the command's own process its status says whether a signal that came ended it. If so, whatever had
        not ended by then is taken to have been ended by it, too.
        """
        if trace.reason == "limit":
            return self._part.stopping
        if trace.reason == "detached":
            return stopped_by(self._detached_by)
        if trace.reason != "exit":
            return None
        if (why := self._ended.get(str(trace.path))) is not None:
            return stopped_by(why)
        number = self._ended_by(status)
        if number is None or trace.pid in self._signalled[number]:
            return None
        return stopped_by(_named(number))

    def _ended_by(self, status: int | None) -> int | None:
        """The signal that came and ended the command's own process, if one did.

        QEMU may fail while a signal ends its program, and then dies of one that nobody sent, as SIGABRT.
        """
        if status is None or status >= 0:
            return None
        if -status in self._signalled:
            return -status
        # SIGQUIT does not ask for an end.
        asked = [number for number in self._signalled if number != signal.SIGQUIT]
        was_soon = self._died is not None and 0 <= self._died - self._asked < FAILURE_SECONDS
        return asked[-1] if asked and was_soon else None

    def _running(self, program: subprocess.Popen[bytes], qemu: Path) -> list[int]:
        """The command's own process, recorded or not any more, and the recorded ones that still run."""
        # Its number is nobody else's until we have asked for its status.
        running = [program.pid] if program.poll() is None else []
        for pid in {*self._reports.unfinished().values()} - {program.pid}:
            # The number may be another process's by now.
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/exe").samefile(qemu):
                    running.append(pid)
        return running

    def _result(
        self,
        program: subprocess.Popen[bytes],
        line: list[str],
        seconds: float,
        traces: list[ProcessTrace],
        main: ProcessTrace | None,
    ) -> RecordResult:
        """What was recorded, now that all has ended.

        Raises:
            RecordError: If something failed, or nothing was recorded.
            KeyboardInterrupt, SystemExit: If nothing was recorded because we were asked to end.
        """
        status = program.returncode
        self._reports.raise_errors(self._place.output, traces, is_temporary=self._is_temporary)
        if not traces:
            was_interrupted = self._ended_by(status) == signal.SIGINT
            if self._terminated_by or self._asked_to_end or (was_interrupted and not self._reports.traces):
                self._end_without_traces()
            raise self._nothing_recorded(status, line)
        if main is None or not main.instructions:
            self._reports.warnings.append(
                f"the program's own process left nothing: {self._place.output} is of the busiest one"
            )
        instructions = sum(trace.instructions for trace in traces)
        if self._part.stop_at and all(trace.reason != "limit" for trace in self._reports.traces):
            place, remedy = _to_reach(self._part.stop_at, "flatwalk_stop()")
            self._reports.warnings.append(
                f"the program never reached {place}, so recording did not end there (--stop-at): {remedy}"
            )
        ours = traces[0].reason == "limit" or (self._timed_out and status == -signal.SIGKILL)
        return RecordResult(
            self._place.output,
            traces,
            instructions,
            seconds,
            None if ours else status,
            self._reports.warnings,
            timed_out=self._timed_out,
            terminated=self._terminated_by,
            interrupted=self._asked_to_end,
        )

    def _end_without_traces(self) -> NoReturn:
        """Ends as the signal wants that came.

        Raises:
            KeyboardInterrupt: After Ctrl-C.
            SystemExit: If we were asked to terminate.
        """
        if self._terminated_by:
            sys.exit(128 + self._terminated_by)
        raise KeyboardInterrupt

    def _nothing_recorded(self, status: int, line: list[str]) -> RecordError:
        never_began = not self._reports.traces
        if any(trace.reason == "limit" for trace in self._reports.traces):
            return self._ended_at_once()
        if self._timed_out and not (never_began and self._reports.warnings):
            remedy = "give more"
            if self._part.start_at and not never_began:
                place = "flatwalk_start()" if self._part.start_at == "marker" else self._part.start_at
                remedy = f"give more, or check that the program reaches {place}"
            elif self._part.skip:
                remedy = "give more, or skip fewer instructions"
            return RecordError(
                "the time was over before anything was recorded", where="--time", remedy=remedy
            )
        if self._part.start_at and not never_began:
            place, remedy = _to_reach(self._part.start_at, "flatwalk_start()")
            return RecordError(
                f"the program never reached {place}, so nothing was recorded",
                where="--start-at",
                remedy=remedy,
            )
        if self._part.skip and not never_began:
            return RecordError(
                "the program ended before all the instructions to skip, or never started recording again "
                "after them, so nothing was recorded",
                where="--skip",
                remedy="skip fewer",
            )
        if status == 0 or (never_began and self._reports.warnings):
            # It ran, or the collector refused it and has said why.
            return RecordError(
                "; ".join(["nothing was recorded", *self._reports.warnings]),
                where=shlex.join(line),
                remedy="see docs/recording.md",
            )
        return RecordError(
            f"QEMU did not start the program (exit status {status})",
            where=shlex.join(line),
            remedy="see its message above",
        )

    def _ended_at_once(self) -> RecordError:
        """The error that recording ended where it began."""
        if self._part.limit is not None and self._part.limit < LONGEST_BLOCK:
            return RecordError(
                "the first block of code is longer than that, so nothing was recorded",
                where=self._part.limit_option or f"--limit {self._part.limit}",
                remedy=f"give {LONGEST_BLOCK} or more",
            )
        place, _ = _to_reach(self._part.stop_at or "", "flatwalk_stop()")
        return RecordError(
            f"the program reached {place} as recording began, so nothing was recorded",
            where="--stop-at",
            remedy="name a place that it reaches later",
        )

    @contextlib.contextmanager
    def _signals(self, program: Callable[[], subprocess.Popen[bytes] | None]) -> Iterator[None]:
        """While the program runs, it handles Ctrl-C itself, and a request to end is passed on to it.

        SIGQUIT is for the program alone, which need not end by it: a JVM prints its stacks.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(number: int, frame: FrameType | None) -> None:
            note(number)
            if self._around.on_start is not None:
                self._asked_to_end = True
                pass_on(number, frame)
            else:
                self._interrupted += 1
                if program() is None:
                    self._early.append(number)

        def terminate(number: int, frame: FrameType | None) -> None:
            note(number)
            self._terminated = self._terminated or time.monotonic()
            self._terminated_by = self._terminated_by or number
            pass_on(number, frame)

        def note(number: int, _frame: FrameType | None = None) -> None:
            self._signalled.pop(number, None)
            self._signalled[number] = self._gone
            if number != signal.SIGQUIT:
                self._asked = time.monotonic()

        def pass_on(number: int, _frame: FrameType | None) -> None:
            self._interrupted += 1
            running = program()
            if running is None:
                self._early.append(number)
            else:
                running.send_signal(number)

        # Handlers, not SIG_IGN: a child would inherit that.
        handlers: dict[int, Handler] = {signal.SIGINT: interrupt, signal.SIGTERM: terminate}
        # These may be ignored, as under nohup and in what scripts start with &. The program is to inherit it.
        others: dict[int, Handler] = {signal.SIGHUP: terminate, signal.SIGQUIT: note}
        handlers |= {
            number: handler
            for number, handler in others.items()
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            # The kernel would keep no exit status of the program's, which itself inherits that.
            handlers[signal.SIGCHLD] = signal.SIG_DFL
            self._ignores_children = True
        previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in previous.items():
                # One that was not installed from Python cannot be put back.
                if handler is not None:
                    signal.signal(number, handler)


def _to_reach(place: str, marker: str) -> tuple[str, str]:
    """How to name a place, of which `marker` is the program's own, and what to do if it is never reached."""
    if place == "marker":
        return marker, "call it in the program; docs/recording.md shows how"
    if place.startswith("0x"):
        return place, "check the address in the running program (/proc/PID/maps), or give a symbol"
    return place, "check the name (nm -C PROGRAM, nm -D LIBRARY), or that the program gets there"


def _ignore_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _named(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
