"""What to record: which part of a program, in what surroundings, and into which file."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.definitions.defaults import SEED
from flatwalk.errors import UsageError
from flatwalk.terminal import output as terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Instructions of a block of code as QEMU divides it, at most. Counts are exact to within one.
LONGEST_BLOCK = 512
#: What a segment has at least: with less, some would have no block.
SHORTEST_SEGMENT = 1000
#: What the recorder appends to an output's name while it writes, at most: `.PID.COUNT.fwt.part.aside`.
APPENDED_BYTES = 32
#: How every trace begins.
TRACE_MAGIC = b"\x89FWTR"


def stopped_by(what: str) -> str:
    """What a trace says whose program was stopped."""
    return f"the run was stopped by {what}"


@dataclass(frozen=True)
class Part:
    """Which part of a program is recorded.

    Args:
        skip: Instructions to pass over.
        limit: Instructions to record.
        start_at: Where recording starts, and
        stop_at: where it ends: see `record`.
        limit_option: The limit as the user gave it: `--limit 1M`. None if it was not the user who did.
    """

    skip: int = 0
    limit: int | None = None
    start_at: str | None = None
    stop_at: str | None = None
    limit_option: str | None = None

    def __post_init__(self) -> None:
        """Checks what a user may have given.

        Raises:
            UsageError: If there is no such part.
        """
        if self.limit is not None and self.limit <= 0:
            raise UsageError(
                f"a limit of {self.limit} instructions records nothing",
                where=self.limit_option or "--limit",
                remedy="give 1 or more",
            )
        if self.skip < 0:
            raise UsageError(
                f"{self.skip} instructions cannot be skipped", where="--skip", remedy="give 0 or more"
            )
        for option, place in (("--start-at", self.start_at), ("--stop-at", self.stop_at)):
            if place is not None and not place.strip():
                raise UsageError("no place is named", where=option, remedy="give a symbol or an address")
            if place and place.startswith("0x") and not re.fullmatch("0x[0-9a-fA-F]{1,16}", place):
                raise UsageError(
                    f"{place!r} is not an address", where=option, remedy="write it like 0x401000"
                )

    @property
    def stopping(self) -> str:
        """What a trace says that ends with it."""
        ends = []
        if self.limit is not None:
            ends.append(self.limit_option or f"a limit of {units.count(self.limit)} instructions")
        if self.stop_at:
            ends.append(f"--stop-at {self.stop_at}")
        return stopped_by(" or ".join(ends))

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
class Sample:
    """A sample of a run, in place of all of it: segments, spread over it however long it is.

    A run of up to twice `windows` segments is recorded whole. Of a longer one between `windows` and twice as
    many remain.

    Args:
        windows: Segments, at least.
        segment: Instructions of each, 1000 or more.
        seed: What chance decides: which segments remain.
    """

    windows: int = 32
    segment: int = 2_500_000
    seed: int = SEED

    def __post_init__(self) -> None:
        """Checks what a user may have given.

        Raises:
            UsageError: If there is no such sample.
        """
        if not 1 <= self.windows <= 1 << 20:
            raise UsageError(
                f"{self.windows} windows are not a sample", where="--windows", remedy="give 1 to 1048576"
            )
        if not SHORTEST_SEGMENT <= self.segment < 1 << 60:
            raise UsageError(
                f"segments cannot have {units.several(self.segment, 'instruction')}",
                where="--segment",
                remedy=f"give {SHORTEST_SEGMENT} or more",
            )
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"{self.seed} is not a seed", where="--seed", remedy="give 0 to 2^64 - 1")

    def options(self) -> dict[str, str]:
        """The plugin's options."""
        return {"segment": str(self.segment), "windows": str(self.windows), "seed": str(self.seed)}


@dataclass(frozen=True)
class Surroundings:
    """What a program runs in, where that differs from what we run in."""

    #: Its working directory.
    directory: Path | None = None
    #: Where its standard output and error go; its standard input is then empty.
    log: Path | None = None
    #: The user that it runs as; only root can ask for that.
    user: str | None = None
    #: Called with the program's process number once it runs. Ctrl-C then reaches the program even where it
    #: was sent to us alone.
    on_start: Callable[[int], None] | None = None


def check_output(output: Path, option: str = "--output") -> None:
    """Checks that the trace can be written, and that nothing but a trace is overwritten.

    Args:
        output: The trace.
        option: Where the user named it.

    Raises:
        UsageError: If not.
    """
    terminal.check_name(output, str(output))
    if output.is_dir():
        raise UsageError("the output is a directory", where=str(output), remedy="name a file in it")
    if output.is_symlink() and not output.exists():
        raise UsageError("the output is a link that leads nowhere", where=str(output), remedy="remove it")
    output = output.resolve()
    # The recorder names what links lead to.
    try:
        str(output).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the output leads to {output}, whose name is not UTF-8",
            where=str(output),
            remedy=f"choose another place with {option}",
        ) from None
    if not os.access(output.parent, os.W_OK | os.X_OK):
        what = "cannot be written to" if output.parent.is_dir() else "does not exist"
        raise UsageError(
            f"the directory of the output {what}",
            where=str(output.parent),
            remedy=f"choose another with {option}",
        )
    most = os.pathconf(output.parent, "PC_NAME_MAX") - APPENDED_BYTES
    if len(os.fsencode(output.name)) > most:
        raise UsageError(
            f"the output's name is too long: others are made of it, so that {most} bytes are the most",
            where=str(output),
            remedy=f"choose a shorter one with {option}",
        )
    if output.exists() and not os.access(output, os.W_OK):
        raise UsageError(
            "the output may not be written",
            where=str(output),
            remedy=f"choose another name with {option}, or chmod +w it",
        )
    if output.exists() and not is_trace(output):
        raise UsageError(
            "the output exists and is not a flatwalk trace; it is left as it is",
            where=str(output),
            remedy=f"choose another name with {option}, or remove it",
        )


def is_trace(path: Path) -> bool:
    """Whether a path leads to a trace in our own format, or to an empty file."""
    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(len(TRACE_MAGIC)) in (b"", TRACE_MAGIC)
    return False
