"""Standard input, output and error of the command line: closed, full, and shown to a person."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO, cast

from flatwalk.errors import FlatwalkError
from flatwalk.terminal.printable import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputError(FlatwalkError):
    """Standard output cannot be written."""


class OutputClosed(Exception):  # noqa: N818 - it is no error
    """The reader of standard output has seen enough. Typer, which ends for a broken pipe, does not see it."""


class Standard(io.TextIOWrapper):
    """Standard output or error. Text is written so that it does nothing to a terminal; see `write_styled`."""

    def write(self, text: str) -> int:
        """Writes text, of which parts may come from outside."""
        return self.write_styled(printable(text))

    def write_styled(self, text: str) -> int:
        """Writes text that holds a terminal's control sequences, as rich makes them."""
        return super().write(text)


class _Output(io.FileIO):
    """What standard output writes to: says so where it cannot."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise OutputClosed from error
        except OSError as error:
            raise OutputError(
                f"standard output cannot be written: {error.strerror}",
                remedy="free some space, or send it elsewhere",
            ) from error


class _Messages(io.FileIO):
    """What standard error writes to. What cannot be written is lost: there is nowhere to say so."""

    failed = False

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # A reader that has seen enough is not a failure.
            _Messages.failed |= not isinstance(error, BrokenPipeError)
            return memoryview(data).nbytes


def prepare() -> None:
    """Takes standard input, output and error into our hands.

    A closed one gets a stand-in, so that no file that is opened later takes its number: of standard input
    one that is empty, of standard output one that cannot be written, of standard error one that takes all.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    if sys.stdout is sys.__stdout__:  # not where a test has put another in its place
        sys.stdout = _wrapped(_Output(1, "wb", closefd=False), is_line_buffered=os.isatty(1))
    if sys.stderr is sys.__stderr__:
        sys.stderr = _wrapped(_Messages(2, "wb", closefd=False), is_line_buffered=True)


def _wrapped(raw: io.FileIO, *, is_line_buffered: bool) -> TextIO:
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    buffer = io.BufferedWriter(raw)
    return Standard(buffer, encoding, errors="backslashreplace", line_buffering=is_line_buffered)


def give_up() -> None:
    """Standard output is not written any more: what is left of it goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def lost_messages() -> bool:
    """Whether something could not be written to standard error."""
    return _Messages.failed


class _Styled:
    """A stream for rich: what it writes holds control sequences."""

    def __init__(self, stream: Standard) -> None:
        self._stream = stream
        self.write = stream.write_styled

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def styled(stream: TextIO) -> TextIO:
    """The stream for text that holds a terminal's control sequences."""
    return cast("TextIO", _Styled(stream)) if isinstance(stream, Standard) else stream
