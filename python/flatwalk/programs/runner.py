"""`flatwalk record --workload`: installs, prepares, records the run phase, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from flatwalk import temporary, units
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.programs import catalogue, install
from flatwalk.programs.attend import Attendance, build_region
from flatwalk.programs.drivers import DRIVERS
from flatwalk.recorder import Part, RecordResult, Surroundings, check_output, record
from flatwalk.terminal import output

if TYPE_CHECKING:
    from pathlib import Path

    from flatwalk.programs.attend import Driver, Launch


def record_workload(workload: str, path: Path, *, limit: int | None) -> RecordResult:
    """Records the run phase of a program by name.

    Args:
        workload: `NAME` or `NAME:SIZE`.
        path: Trace to write.
        limit: Instructions to record; what the program's file says if not given.

    Raises:
        UsageError: If there is no such program, its size is not valid, or the trace cannot be written there.
        FlatwalkError: If it cannot be installed, started, or brought to its run phase.
    """
    check_output(path)
    name, _, size = workload.partition(":")
    program = catalogue.load(name)
    size_bytes = units.parse_size(size, "--workload") if size else program.size_bytes
    if size_bytes < 1 << 20:
        raise UsageError("too little data", where="--workload", remedy="give 1MiB or more")
    limit = program.instructions if limit is None else limit
    Part(limit=limit)  # one that cannot be is refused before anything is installed
    install.ensure(program)
    driver = DRIVERS[program.driver]()
    with temporary.directory() as directory:
        output.note(f"Preparing {program.name} with {units.size(size_bytes)} of data …")
        launch = driver.prepare(program, directory, size_bytes)
        with output.Progress(f"Recording {program.name}") as progress:
            result = _Recording(driver, launch, directory).run(limit, progress)
        return _kept(result, path)


class _Recording:
    """One program under the recorder, and its driver in another thread."""

    def __init__(self, driver: Driver, launch: Launch, directory: Path) -> None:
        self._driver = driver
        self._launch = launch
        self._directory = directory
        self._attendance: Attendance | None = None
        self._thread: threading.Thread | None = None
        self._errors: list[Exception] = []

    def run(self, limit: int, progress: output.Progress) -> RecordResult:
        environment = os.environ | self._launch.environment
        if self._launch.start_at == "marker":
            environment["LD_PRELOAD"] = str(build_region(self._directory))
        around = Surroundings(
            self._directory, self._directory / "log.txt", self._launch.user, self._attend_to
        )
        try:
            return record(
                self._launch.command,
                self._directory / "program.fwt",
                limit=limit,
                start_at=self._launch.start_at,
                stop_at=self._launch.stop_at,
                env=environment,
                progress=progress,
                surroundings=around,
            )
        except FlatwalkError:
            self._join()
            if self._errors:
                raise self._errors[0] from None
            raise
        finally:
            self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _attend_to(self, pid: int) -> None:
        self._attendance = Attendance(pid, self._directory / "log.txt")
        self._thread = threading.Thread(target=self._attend, args=(self._attendance,))
        self._thread.start()

    def _attend(self, attendance: Attendance) -> None:
        try:
            self._driver.attend(attendance)
        except Exception as error:  # noqa: BLE001 - raised again by the thread that records
            self._errors.append(error)
            attendance.kill(signal.SIGKILL)


def _kept(result: RecordResult, path: Path) -> RecordResult:
    """The trace of the busiest process at the path asked for; the others are removed with their directory."""
    busiest = max(result.traces, key=lambda trace: trace.instructions)
    if not busiest.instructions:
        raise FlatwalkError("nothing was recorded", remedy="give more data, or a larger --limit")
    with output.whole_file(path) as temporary:
        shutil.copyfile(busiest.path, temporary)
    kept = replace(busiest, path=path)
    return replace(result, path=path, traces=[kept], instructions=kept.instructions)
