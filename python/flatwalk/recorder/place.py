"""Where traces grow, and where they go when they are complete: one recording of a file at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
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
    into the directory `STEM.processes`, which recordings to files of one stem share. Names in it end as
    `FILE` does, so that each recording knows its own.

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

    @property
    def _prefix(self) -> str:
        """How names in that directory begin: of a file without an ending not as those of one that has it."""
        stem, _ = _parts(self.output)
        return f"{stem}-" if stem == self.output.name else f"{stem}."

    def _name(self, trace: ProcessTrace) -> Path:
        """The name of another process's trace, by that which the collector gave it."""
        stem, _ = _parts(self.output)
        return self.others / (self._prefix + trace.path.name.removeprefix(f"{stem}."))

    def _free(self, pid: int, names: list[Path]) -> Path:
        """A name for the first trace of a process; its later programs may have taken some."""
        _, ending = _parts(self.output)
        counts = ("", *(f".{count}" for count in range(2, len(names) + 2)))
        found = (self.others / f"{self._prefix}{pid}{count}.{ending}" for count in counts)
        return next(name for name in found if name not in names)

    def _remove_earlier(self) -> None:
        """Removes what an earlier recording of this file left in the directory."""
        _, ending = _parts(self.output)
        own = re.compile(rf"{re.escape(self._prefix)}\d+(\.\d+)?\.{re.escape(ending)}", re.ASCII)
        with contextlib.suppress(FileNotFoundError):  # there is no such directory
            for path in self.others.iterdir():
                if own.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def _move(self, trace: Path, name: Path) -> None:
        """Gives a trace its name among the other processes'."""
        while True:
            self.others.mkdir(exist_ok=True)
            try:
                trace.replace(name)
            except FileNotFoundError:
                # A recording that shares the directory may have removed it while it was empty.
                if not trace.exists():
                    raise
            else:
                return

    def keep(self, traces: list[ProcessTrace], main: ProcessTrace | None) -> list[ProcessTrace]:
        """Gives complete traces their names, `main` first. Those without an instruction are left out.

        The busiest takes the place of a main one without an instruction. The traces of an earlier recording
        of this file go.

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
            self._remove_earlier()
            names = [self.output, *map(self._name, kept[1:])]
            # The name that the first process's trace has may be that of another than the main one.
            for index, trace in enumerate(kept[1:], 1):
                if trace.path == self.growing:
                    names[index] = self._free(trace.pid, names)
            if len(names) == 1:
                with contextlib.suppress(OSError):  # it is not there, or another recording's traces are in it
                    self.others.rmdir()
            for trace, name in zip(kept, names, strict=True):
                if name == self.output:
                    trace.path.replace(name)
                else:
                    self._move(trace.path, name)
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


def _parts(output: Path) -> tuple[str, str]:
    """The stem and the ending of the names that the collector gives the traces of other processes."""
    stem, _, ending = output.name.rpartition(".")
    return (stem, ending) if stem else (output.name, "fwt")


def _is_ours(path: Path, output: Path) -> bool:
    """Whether a file where traces grow is of a recording of `output`, by the names that the collector gives.

    What is under the name of a complete trace has to be one. Others may have been cut off anywhere.
    """
    if path.is_symlink() or not path.is_file():
        return False
    if path.name == LOCK:
        return True
    stem, ending = _parts(output)
    trace = rf"{re.escape(output.name)}|{re.escape(stem)}\.\d+(\.\d+)?\.{re.escape(ending)}"
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


def is_used(output: Path) -> bool:
    """Whether there is such a file, or a recording writes it."""
    if os.path.lexists(output):
        return True
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), (_growing(output) / LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


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
    """Checks that nothing but traces is in the directory of the other processes' traces.

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
    if directory.is_symlink() or not directory.is_dir():
        return not os.path.lexists(directory)
    try:
        return all(is_trace(path) or not os.path.lexists(path) for path in directory.iterdir())
    except FileNotFoundError:  # a recording that shares it removed it just now
        return True
