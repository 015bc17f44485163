"""Where traces grow, and where they go when they are complete: one recording of a file at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from flatwalk.errors import UsageError
from flatwalk.recorder.request import check_output, is_trace
from flatwalk.recorder.result import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flatwalk.recorder.result import ProcessTrace


class Place:
    """The files of one recording.

    Traces grow in the directory `FILE.part`. Then the main one becomes `FILE`; those of other processes go
    into the directory `STEM.processes`.

    Args:
        output: `FILE`, where links lead to.
        lock: A descriptor that holds `FILE.part` for this recording; the collector holds it, too.
    """

    def __init__(self, output: Path, lock: int) -> None:
        self.output = output
        self.lock = lock
        #: Complete traces could not be given their names, and stay where they grew.
        self.is_stuck = False

    @property
    def growing(self) -> Path:
        """What the collector is to call the first trace; it names the others after it."""
        return _growing(self.output) / self.output.name

    @property
    def others(self) -> Path:
        """The directory of the other processes' traces."""
        return self.output.with_name(f"{self.output.stem}.processes")

    def _free(self, pid: int, names: list[Path]) -> Path:
        """A name for the first trace of a process; its later programs may have taken some."""
        counts = ("", *(f".{count}" for count in range(2, len(names) + 2)))
        found = (self.others / f"{self.output.stem}.{pid}{count}{self.output.suffix}" for count in counts)
        return next(name for name in found if name not in names)

    def keep(self, traces: list[ProcessTrace], main: ProcessTrace | None) -> list[ProcessTrace]:
        """Gives complete traces their names, `main` first. Those without an instruction are left out.

        The busiest takes the place of a main one without an instruction. An earlier recording's traces go.

        Returns:
            The traces where they are now.

        Raises:
            RecordError: If the system refuses.
        """
        kept = [trace for trace in traces if trace.instructions]
        if not kept:
            return []
        if main not in kept:
            main = max(kept, key=lambda trace: trace.instructions)
        kept.sort(key=lambda trace: trace is not main)
        try:
            shutil.rmtree(self.others, ignore_errors=True)
            names = [self.output, *(self.others / trace.path.name for trace in kept[1:])]
            # The name that the first process's trace has may be that of another than the main one.
            for index, trace in enumerate(kept[1:], 1):
                if trace.path == self.growing:
                    names[index] = self._free(trace.pid, names)
            if len(names) > 1:
                self.others.mkdir()
            for trace, name in zip(kept, names, strict=True):
                trace.path.replace(name)
        except OSError as error:
            self.is_stuck = True
            raise RecordError(
                f"the traces cannot be given their names: {error.strerror}",
                where=str(error.filename),
                remedy=f"they are in {_growing(self.output)}; the next recording of this file removes them",
            ) from error
        return [replace(trace, path=name) for trace, name in zip(kept, names, strict=True)]


def _growing(output: Path) -> Path:
    return output.with_name(f"{output.name}.part")


@contextlib.contextmanager
def taken(output: Path) -> Iterator[Place]:
    """Takes the place of a recording to `output`, for this process alone.

    Raises:
        UsageError: If it cannot be written, or something is there that is not a trace.
        RecordError: If another recording writes it.
    """
    check_output(output)
    output = output.resolve()
    directory = _growing(output)
    lock = _locked(output, directory)
    place = Place(output, lock)
    try:
        _check_others(place.others)
        yield place
    finally:
        if not place.is_stuck:
            shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _locked(output: Path, directory: Path) -> int:
    """A descriptor that holds an empty directory.

    Raises:
        RecordError: If another process holds it, or it cannot be made.
    """
    name = directory / "lock"
    lock = -1
    try:
        while True:
            directory.mkdir(exist_ok=True)
            try:
                lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:  # its owner ended just now, and removed it
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), name.stat()):
                    break
            except BlockingIOError:
                with os.fdopen(lock, "rb") as file:
                    owner = file.read(32).decode(errors="replace") or "which is just starting"
                raise RecordError(
                    f"another recording writes this file: process {owner}",
                    where=str(output),
                    remedy="wait until it has ended, or choose another name with --output",
                ) from None
            except FileNotFoundError:
                pass
            os.close(lock)
            lock = -1
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        for path in directory.iterdir():
            if path != name:  # of a recording that was killed
                path.unlink()
    except OSError as error:
        if lock >= 0:
            with contextlib.suppress(OSError):
                name.unlink()
                directory.rmdir()  # unless something else is in it
            os.close(lock)
        raise RecordError(
            f"the trace cannot be made: {error.strerror}",
            where=str(error.filename or directory),
            remedy="check the directory, or choose another with --output",
        ) from error
    return lock


def _check_others(directory: Path) -> None:
    """Checks that nothing but traces is in the directory that is replaced.

    Raises:
        UsageError: If something is.
    """
    if not os.path.lexists(directory):
        return
    if directory.is_symlink() or not directory.is_dir() or not all(map(is_trace, directory.iterdir())):
        raise UsageError(
            "here the traces of other processes go, and there is something that is not a trace",
            where=str(directory),
            remedy="choose another name with --output, or remove it",
        )
