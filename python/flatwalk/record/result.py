"""What a recording leaves: traces, or an error."""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError

if TYPE_CHECKING:
    from pathlib import Path


class RecordError(FlatwalkError):
    """A program cannot be recorded, or its recording failed."""


@dataclass(frozen=True)
class ProcessTrace:
    """The trace of one program in one process."""

    path: Path
    pid: int
    command: list[str]
    #: Instructions recorded.
    instructions: int
    #: Length of the file.
    bytes: int
    #: Why it ended: "exit", "exec", "limit" (or the place to stop at), "detached" or "failed".
    reason: str

    def __str__(self) -> str:
        per_instruction = self.bytes / self.instructions if self.instructions else 0.0
        return (
            f"{self.path}: {self.instructions:,} instructions of {_shortened(self.command)} "
            f"({self.bytes / 1e6:,.1f} MB, {per_instruction:.2f} bytes each)"
        )


@dataclass(frozen=True)
class RecordResult:
    """What was recorded."""

    #: The trace asked for: of the program that the command's own process ran last.
    path: Path
    #: All traces: that one first, then those of forked children and of programs before an exec.
    traces: list[ProcessTrace]
    #: Instructions in all traces.
    instructions: int
    #: Wall-clock time.
    seconds: float
    #: The program's exit status, negative the signal that ended it; None if the recorder ended it
    #: because the limit, or the place to stop at, was reached.
    status: int | None
    #: Things worth knowing.
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [str(trace) for trace in self.traces]
        speed = self.instructions / self.seconds / 1e6 if self.seconds > 0 else 0.0
        lines.append(f"{self.seconds:.1f} s, {speed:.0f} million instructions per second; {self._ending()}")
        lines.extend(f"note: {warning}" for warning in self.warnings)
        return "\n".join(lines)

    def _ending(self) -> str:
        if self.status is None:
            return "ended at the limit"
        if self.status < 0:
            try:
                name = signal.Signals(-self.status).name
            except ValueError:
                name = f"signal {-self.status}"
            return f"the program was ended by {name}"
        return f"the program's exit status is {self.status}"


def _shortened(command: list[str]) -> str:
    text = shlex.join(command)
    return text if len(text) <= 60 else f"{text[:59]}…"
