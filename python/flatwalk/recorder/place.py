"""Where traces grow, and where they go when they are complete: one recording of a file at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
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

#: The name in `FILE.part` that says whose it is.
LOCK = "lock"
#: What network file systems call a file that was removed while somebody had it open; it goes by itself.
REMOVED = (".nfs", ".fuse_hidden")


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
            RecordError: If the system refuses, or something is there by now that is not a trace.
        """
        kept = [trace for trace in traces if trace.instructions]
        if not kept:
            return []
        if main not in kept:
            main = max(kept, key=lambda trace: trace.instructions)
        kept.sort(key=lambda trace: trace is not main)
        moved = 0
        try:
            # The program may have written its own results there.
            if os.path.lexists(self.output) and (self.output.is_symlink() or not is_trace(self.output)):
                raise self._stuck("what is there by now is not a trace", self.output)
            if not _holds_traces(self.others):
                raise self._stuck("something is there by now that is not a trace", self.others)
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
                moved += 1
        except OSError as error:
            done = f"{moved} of {len(kept)} have theirs; the rest is" if moved else "they are"
            raise self._stuck(str(error.strerror), error.filename, done) from error
        return [replace(trace, path=name) for trace, name in zip(kept, names, strict=True)]

    def _stuck(self, why: str, where: Path | str, done: str = "they are") -> RecordError:
        """The error that complete traces cannot be given their names; they then stay where they grew."""
        self.is_stuck = True
        return RecordError(
            f"the traces cannot be given their names: {why}",
            where=str(where),
            remedy=f"{done} in {_growing(self.output)}, which the next recording of this file empties",
        )


def _growing(output: Path) -> Path:
    return output.with_name(f"{output.name}.part")


def _is_ours(path: Path, output: Path) -> bool:
    """Whether a file where traces grow is of a recording of `output`, by the names that the collector gives.

    What is under the name of a complete trace has to be one. Others may have been cut off anywhere.
    """
    if path.is_symlink() or not path.is_file():
        return False
    if path.name == LOCK:
        return True
    stem, _, suffix = output.name.rpartition(".")
    if not stem:
        stem, suffix = output.name, "fwt"
    trace = rf"{re.escape(output.name)}|{re.escape(stem)}\.\d+(\.\d+)?\.{re.escape(suffix)}"
    found = re.fullmatch(rf"(?:{trace})(?P<partial>\.part(\.aside)?)?", path.name, re.DOTALL)
    return found is not None and (found["partial"] is not None or is_trace(path))


def _check_growing(directory: Path, output: Path) -> None:
    """Checks that nothing but what a recording made is where traces grow, and go.

    Raises:
        UsageError: If something is.
    """
    is_fit = not directory.is_symlink() and directory.is_dir()
    with contextlib.suppress(FileNotFoundError):  # its owner ended just now
        # What its owner removes meanwhile does no harm.
        is_fit = is_fit and all(
            _is_ours(path, output) or path.name.startswith(REMOVED) or not os.path.lexists(path)
            for path in directory.iterdir()
        )
    if not is_fit and os.path.lexists(directory):
        raise UsageError(
            "here traces grow, and there is something that is not a trace",
            where=str(directory),
            remedy="choose another name with --output, or remove it",
        )


def _empty(directory: Path, output: Path) -> None:
    """Removes what a recording made in `directory`, but for the lock."""
    for path in directory.iterdir():
        if path.name != LOCK and _is_ours(path, output):
            path.unlink()


def _clear(directory: Path, output: Path) -> None:
    """Removes what a recording made in `directory`; that, too, if nothing else is in it."""
    with contextlib.suppress(OSError):
        _empty(directory, output)
        (directory / LOCK).unlink()
        directory.rmdir()


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
            _clear(directory, output)
        os.close(lock)


def _locked(output: Path, directory: Path) -> int:
    """A descriptor that holds an empty directory.

    Raises:
        UsageError: If something is there that no recording made.
        RecordError: If another process holds it, or it cannot be made.
    """
    name = directory / LOCK
    lock = -1
    try:
        while True:
            try:
                directory.mkdir()
            except FileExistsError:
                _check_growing(directory, output)
            try:
                lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
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
        _empty(directory, output)  # of a recording that was killed
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
    if not _holds_traces(directory):
        raise UsageError(
            "here the traces of other processes go, and there is something that is not a trace",
            where=str(directory),
            remedy="choose another name with --output, or remove it",
        )


def _holds_traces(directory: Path) -> bool:
    """Whether a path is a directory with nothing but traces in it, or nothing at all."""
    if not os.path.lexists(directory):
        return True
    return not directory.is_symlink() and directory.is_dir() and all(map(is_trace, directory.iterdir()))
