"""How many instructions a run measures, warms up with, and leaves out before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatwalk import engine, units
from flatwalk.errors import UsageError

#: Instructions simulated and, before them, warmed up with, unless the user says otherwise.
WORKLOAD_INSTRUCTIONS, WORKLOAD_WARMUP = 50_000_000, 10_000_000
PROGRAM_INSTRUCTIONS, PROGRAM_WARMUP = 100_000_000, 10_000_000


@dataclass(frozen=True)
class Lengths:
    """Numbers of instructions; `None` is not asked for."""

    instructions: int | None
    warmup: int | None
    skip: int

    @classmethod
    def asked(cls, instructions: str | None, warmup: str | None, skip: str | None) -> Lengths:
        """The lengths that the command line asks for.

        Raises:
            UsageError: If one is not a count, or nothing is to be measured.
        """

        def read(text: str | None, option: str) -> int | None:
            return None if text is None else units.parse_count(text, option)

        measured = read(instructions, "--instructions")
        if measured == 0:
            raise UsageError(
                "nothing is to be simulated", where="--instructions", remedy="give a count above 0"
            )
        return cls(measured, read(warmup, "--warmup"), read(skip, "--skip") or 0)

    def of(self, source: dict[str, Any]) -> Lengths:
        """All lengths, as asked or else fitted to what the source holds.

        Raises:
            UsageError: If the source has nothing left to measure.
        """
        warmup, instructions = self.warmup, self.instructions
        if "workload" in source:
            return Lengths(
                instructions or WORKLOAD_INSTRUCTIONS,
                WORKLOAD_WARMUP if warmup is None else warmup,
                self.skip,
            )
        available = engine.trace_info(Path(source["trace"]))["instructions"]
        if available is None:  # a foreign trace, which is read as it comes
            return Lengths(instructions or PROGRAM_INSTRUCTIONS, warmup or 0, self.skip)
        left = available - self.skip
        if warmup is None:
            warmup = min(PROGRAM_WARMUP, max(left, 0) // 10)
        if left - warmup < 1:
            raise UsageError(
                f"the trace has {available} instructions, which leaves none to measure",
                where="--skip and --warmup",
                remedy=f"together they must stay below {available}",
            )
        return Lengths(min(instructions or PROGRAM_INSTRUCTIONS, left - warmup), warmup, self.skip)
