"""The collector: a process of its own that writes the traces and reports on them, line by line."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import threading
import time
from typing import IO, TYPE_CHECKING, Any

from flatwalk import temporary
from flatwalk.recorder import place, tools
from flatwalk.recorder.reports import Reports
from flatwalk.recorder.result import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flatwalk.recorder.place import Place
    from flatwalk.recorder.request import Part

#: What the collector may take to write what it has got, a whole sample, when everything else has ended.
COLLECTOR_SECONDS = 120.0


class Collector:
    """A collector that runs.

    Its session is its own: Ctrl-C is for the program, and the collector goes on to the end. Nothing is
    buffered: a word to a collector that is gone would be kept, and fail once more as its pipe is closed.

    Args:
        program: The collector's program.
        socket: Where it listens for recorded programs.
        place: Where it writes traces.
        user: Who it runs as, if not who we are.
    """

    def __init__(self, program: Path, socket: Path, place: Place, user: str | None = None) -> None:
        self._program = program
        self._process = subprocess.Popen(
            [str(program), "--socket", str(socket), "--output", str(place.growing)],
            # The place is taken as long as anyone may write there.
            pass_fds=(place.lock,),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            **identity(user),
        )
        assert self._process.stdout is not None
        self._lines = _JsonLines(self._process.stdout)

    @property
    def ended(self) -> bool:
        """Whether it has reported everything, which it has after the last process that it records."""
        return self._lines.ended

    def read(self, seconds: float) -> list[dict[str, Any]]:
        """Its reports within so many seconds; returns as soon as there is one."""
        return self._lines.read(seconds)

    def wait_until_ready(self) -> None:
        """Waits until programs can connect.

        Raises:
            RecordError: If it does not start.
        """
        for report in self.read(30.0):
            if report["type"] == "ready":
                return
        raise RecordError(
            "the collector does not start", where=str(self._program), remedy="see its message above"
        )

    def close(self) -> None:
        """Says that no more programs will be started."""
        self._send("close")

    def detach(self) -> None:
        """Ends recording in all programs that still run."""
        self._send("detach")

    def finish(self) -> list[dict[str, Any]]:
        """Waits for its end. After an error programs may still run: then recording ends here.

        Returns:
            The reports that nobody has read.
        """
        rest: list[dict[str, Any]] = []
        last = time.monotonic() + COLLECTOR_SECONDS
        with self._process:
            if not self.ended:
                self.detach()
            while not self.ended and time.monotonic() < last:
                rest += self.read(0.1)
            if not self.ended:
                self._process.kill()
        return rest

    def leave(self) -> None:
        """Ends what is still recorded, or is just about to be, as our own end would."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _send(self, word: str) -> None:
        assert self._process.stdin is not None
        # It is gone, or we have closed its input.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(f"{word}\n".encode())


@contextlib.contextmanager
def collecting(output: Path, part: Part) -> Iterator[tuple[Path, Reports]]:
    """Runs a collector for what the caller starts, and waits for its end on leaving.

    Args:
        output: The trace to write.
        part: Which part of what runs is recorded.

    Yields:
        The collector's socket, and its reports, which are complete afterwards.

    Raises:
        RecordError: If there is no collector, or it does not start.
    """
    _, program = tools.find_recorder()
    reports = Reports()
    with place.taken(output) as taken, temporary.directory() as directory:
        socket = directory / "collector"
        collector = Collector(program, socket, taken)
        try:
            collector.wait_until_ready()
            thread = threading.Thread(target=_add_all, args=(collector, reports))
            thread.start()
            try:
                yield socket, reports
            finally:
                collector.close()
                thread.join()
        finally:
            collector.finish()
            reports.keep_partial()
            reports.note_stopped(lambda trace: part.stopping if trace.reason == "limit" else None)
            reports.traces = taken.keep(reports.traces, next(iter(reports.traces), None))


def _add_all(collector: Collector, reports: Reports) -> None:
    while not collector.ended:
        for report in collector.read(0.1):
            reports.add(report)


def identity(user: str | None) -> dict[str, Any]:
    """What makes `subprocess` start a program as a user."""
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


class _JsonLines:
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
