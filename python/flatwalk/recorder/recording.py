"""`flatwalk record`."""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.errors import UsageError
from flatwalk.recorder import Sample, record
from flatwalk.terminal import output

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Sampling:
    """How much of a program is recorded, as the user wrote it."""

    windows: str | None = None
    segment: str | None = None
    seed: int | None = None
    exhaustive: bool = False
    time: str | None = None

    def sample(self, *, limited: bool) -> Sample | None:
        """The sample; none if everything is recorded.

        A program is sampled unless there is a limit, and with one if the user says how.

        Raises:
            UsageError: If the options contradict each other.
        """
        given = {"--windows": self.windows, "--segment": self.segment, "--seed": self.seed}
        asked = [option for option, value in given.items() if value is not None]
        if self.exhaustive and asked:
            raise UsageError(
                "everything is recorded, or a sample",
                where=f"--exhaustive with {asked[0]}",
                remedy="leave one of them out",
            )
        if self.exhaustive or (limited and not asked):
            return None
        usual = Sample()
        return Sample(
            usual.windows if self.windows is None else units.parse_count(self.windows, "--windows"),
            usual.segment if self.segment is None else units.parse_count(self.segment, "--segment"),
            usual.seed if self.seed is None else self.seed,
        )

    def seconds(self) -> float | None:
        """After how long the program is ended.

        Raises:
            UsageError: If that is not a time.
        """
        if self.time is None:
            return None
        try:
            return float(self.time)
        except ValueError:
            raise UsageError(
                f"{self.time!r} is not a number of seconds", where="--time", remedy="write it like 30"
            ) from None


def record_program(
    command: list[str],
    path: Path,
    *,
    skip: str | None,
    limit: str | None,
    start_at: str | None,
    stop_at: str | None,
    follow_exec: bool,
    sampling: Sampling,
) -> int:
    """Records `command` into `path` and says, on standard error, what was recorded.

    Returns:
        The program's exit status as a shell gives it: 128 and its number after a signal. 0 if the
        recorder ended the program because the limit, the place to stop at, or the end of the time was
        reached.

    Raises:
        UsageError: If no command is given, or the path cannot be written to.
    """
    if not command:
        raise UsageError(
            "there is no program to record",
            where="flatwalk record",
            remedy="put it after --, as in: flatwalk record -o sort.fwt -- sort big.txt",
        )
    output.check_writable(path, "--output")
    sample, seconds = sampling.sample(limited=limit is not None), sampling.seconds()
    with output.Progress(f"Recording {shlex.join(command)}", is_shared=True) as progress:
        result = record(
            command,
            path,
            skip=0 if skip is None else units.parse_count(skip, "--skip"),
            limit=None if limit is None else units.parse_count(limit, "--limit"),
            start_at=start_at,
            stop_at=stop_at,
            follow_exec=follow_exec,
            sample=sample,
            seconds=seconds,
            limit_option=None if limit is None else f"--limit {limit}",
            progress=progress,
        )
    output.note(str(result))
    status = result.status or 0
    if result.terminated and status == -signal.SIGKILL:  # it did not end by itself
        return 128 + result.terminated
    return status if status >= 0 else 128 - status


def record_workload(workload: str, path: Path, *, limit: str | None) -> int:
    """Records a program of Debian by name; says, on standard error, what was recorded.

    Returns:
        0: its driver ends the program, so its own exit status means nothing. 128 and the signal's number if
        a signal ended it earlier; what was recorded until then is kept.

    Raises:
        FlatwalkError: If it cannot be installed, or does not reach its run phase.
    """
    output.check_writable(path, "--output")
    from flatwalk.programs import runner  # noqa: PLC0415

    result = runner.record_workload(
        workload, path, limit=None if limit is None else units.parse_count(limit, "--limit")
    )
    output.note(str(result))
    if result.terminated:
        return 128 + result.terminated
    return 128 + signal.SIGINT if result.interrupted else 0
