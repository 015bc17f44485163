"""What a recording leaves: traces, or an error."""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.errors import FlatwalkError
from flatwalk.terminal.printable import one_line

if TYPE_CHECKING:
    from pathlib import Path

#: Of how many other processes the traces are shown: the busiest.
SHOWN_OTHERS = 5


class RecordError(FlatwalkError):
    """A program cannot be recorded, or its recording failed."""


@dataclass(frozen=True)
class ProcessTrace:
    """The trace of one program in one process."""

    path: Path
    pid: int
    command: list[str]
    #: Instructions in it.
    instructions: int
    #: Length of the file.
    bytes: int
    #: Why it ended: "exit", "exec", "limit" (or the place to stop at), "detached" or "failed".
    reason: str
    #: Instructions that were executed and are not in it.
    gap_instructions: int = 0
    #: Segments in it, if it is a sample.
    segments: int | None = None
    #: What stopped its program before it ended by itself, in words, if anything did.
    stopped: str | None = None

    @property
    def executed(self) -> int:
        """Instructions executed since recording began."""
        return self.instructions + self.gap_instructions

    def __str__(self) -> str:
        per_instruction = self.bytes / self.instructions if self.instructions else 0.0
        if self.gap_instructions:
            # One unit, so that they can be compared; of the smaller one something is to be left.
            unit, name = (1_000_000, " M") if self.instructions >= 10_000_000 else (1, "")
            done, total = (round(count / unit) for count in (self.instructions, self.executed))
            count = f"{done:,} of {total:,}{name} instructions"
            if self.segments is not None:
                count += f" in {units.several(self.segments, 'segment')}"
        else:
            count = f"{self.instructions:,} instructions"
        return (
            f"{one_line(str(self.path))}: {count} of {_shortened(self.command)} "
            f"({self.bytes / 1e6:,.1f} MB, {per_instruction:.2f} bytes each)"
        )


@dataclass(frozen=True)
class RecordResult:
    """What was recorded."""

    #: The trace asked for: of the program that the command's own process ran last.
    path: Path
    #: All traces: that one first, then those of forked children and of programs before an exec.
    traces: list[ProcessTrace]
    #: Instructions in all traces, without those of gaps.
    instructions: int
    #: Wall-clock time.
    seconds: float
    #: The program's exit status, negative the signal that ended it; None if the recorder ended it
    #: because the limit, the place to stop at, or the end of the time was reached.
    status: int | None
    #: Things worth knowing.
    warnings: list[str] = field(default_factory=list)
    #: The time was over.
    timed_out: bool = False
    #: The signal that asked us to terminate, 0 if none did.
    terminated: int = 0
    #: Ctrl-C ended the program, whose output is not on our terminal, and is to end us.
    interrupted: bool = False

    @property
    def executed(self) -> int:
        """Instructions executed since recording began."""
        return sum(trace.executed for trace in self.traces)

    def __str__(self) -> str:
        main, *others = self.traces
        shown = [main, *sorted(others, key=lambda trace: -trace.executed)[:SHOWN_OTHERS]]
        lines = [str(trace) for trace in shown]
        if left := len(self.traces) - len(shown):
            lines.append(f"… and {left} more in {one_line(str(others[0].path.parent))}")
        speed = self.executed / self.seconds if self.seconds > 0 else 0.0
        lines.append(f"{self.seconds:.1f} s, {units.count(speed)} instructions per second; {self.ending}")
        lines.extend(f"note: {one_line(warning)}" for warning in self.warnings)
        return "\n".join(lines)

    @property
    def ending(self) -> str:
        """How the program ended, in words."""
        if self.timed_out:
            return "ended when the time was over"
        if self.status is None:
            return "ended at the limit"
        if self.status < 0:
            try:
                name = signal.Signals(-self.status).name
            except ValueError:
                name = f"signal {-self.status}"
            return f"the program was killed by {name}"
        return f"the program's exit status is {self.status}"


def _shortened(command: list[str]) -> str:
    text = one_line(shlex.join(command))
    return text if len(text) <= 60 else f"{text[:59]}…"
