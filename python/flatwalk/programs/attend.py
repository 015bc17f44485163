"""A program under the recorder, and what drives it: waits, loads data, begins the region, stops it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from flatwalk import compiler
from flatwalk.errors import FlatwalkError
from flatwalk.recorder import find_recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatwalk.programs.catalogue import Program

#: Preloaded into programs, so that a signal begins the region.
REGION = Path(__file__).with_name("region.c")
#: Begins the region, and ends it: see there.
TURN = signal.SIGPROF
#: Seconds between two looks at something that another process does.
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Launch:
    """How a program is started under the recorder."""

    command: list[str]
    #: Where recording begins and ends: a symbol, or "marker" where the driver says so.
    start_at: str
    stop_at: str | None = None
    #: Its environment, in addition to ours.
    environment: dict[str, str] = field(default_factory=dict)
    #: The user it runs as, where that cannot be root.
    user: str | None = None


class Attendance:
    """One program under the recorder, as its driver sees it.

    Args:
        pid: The program's process.
        log: What it writes.
        requests: How many it gets in its run phase; until it is ended if not given.
    """

    def __init__(self, pid: int, log: Path, requests: int | None = None) -> None:
        self.pid = pid
        self.log = log
        self.requests = requests

    def ended(self) -> bool:
        """Whether the program has ended."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def enough(self, requests: int) -> bool:
        """Whether this many requests are enough."""
        return self.ended() if self.requests is None else requests >= self.requests

    def wait_until(self, what: str, condition: Callable[[], bool], seconds: float = 600.0) -> None:
        """Waits for a condition.

        Raises:
            FlatwalkError: If the program ends before it, or it takes too long.
        """
        last = time.monotonic() + seconds
        while not condition():
            time.sleep(_LOOK_SECONDS)
            if self.ended():
                raise FlatwalkError(f"the program ended before {what}: {self.last_words()}")
            if time.monotonic() > last:
                raise FlatwalkError(f"after {seconds:.0f} s, {what} has not happened: {self.last_words()}")

    def last_words(self) -> str:
        """The last line that the program wrote."""
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it wrote nothing")

    def turn(self, pid: int | None = None) -> None:
        """Begins the region in the program (or in one of its processes), or ends it."""
        self.kill(TURN, pid)

    def loaded(self) -> None:
        """What follows belongs to the run phase, though the region may begin later; does nothing here."""

    def linger(self) -> None:
        """Lets it run by itself: the recorder ends it when it has enough."""

    def over(self) -> None:
        """The run phase is over while the program goes on; does nothing here, since the recorder ends it."""

    def kill(self, number: signal.Signals, pid: int | None = None) -> None:
        """Sends a signal; nothing happens if the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid if pid is None else pid, number)


class Driver(Protocol):
    """Knows one program: how to prepare and start it, and what to do while it runs."""

    def prepare(self, program: Program, directory: Path, size_bytes: int) -> Launch:
        """Prepares what it needs in `directory` and returns how to start it."""

    def attend(self, attendance: Attendance) -> None:
        """Drives it through its region, from another thread. Returns when nothing is left to do."""


def build_region(directory: Path) -> Path:
    """Compiles region.c.

    Raises:
        FlatwalkError: If there is no C compiler, or it fails.
    """
    library = directory / "region.so"
    header = find_recorder()[0].parent
    places = [header, REGION.parents[3] / "recorder"]
    include = [f"-I{place}" for place in places if (place / "flatwalk.h").is_file()]
    compiler.build(REGION, library, ["-shared", "-fPIC", *include])
    return library
