"""`flatwalk record`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from flatwalk import output, units
from flatwalk.errors import UsageError
from flatwalk.record import record

if TYPE_CHECKING:
    from pathlib import Path


def record_program(
    command: list[str],
    path: Path,
    *,
    skip: str | None,
    limit: str | None,
    start_at: str | None,
    stop_at: str | None,
    follow_exec: bool,
) -> int:
    """Records `command` into `path` and says, on standard error, what was recorded.

    Returns:
        The program's exit status as a shell gives it: 128 and its number after a signal. 0 if the
        recorder ended the program because the limit, or the place to stop at, was reached.

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
    with output.Progress(f"Recording {shlex.join(command)}") as progress:
        result = record(
            command,
            path,
            skip=units.parse_count(skip, "--skip") if skip else 0,
            limit=units.parse_count(limit, "--limit") if limit else None,
            start_at=start_at,
            stop_at=stop_at,
            follow_exec=follow_exec,
            progress=progress,
        )
    output.note(str(result))
    status = result.status or 0
    return status if status >= 0 else 128 - status


def record_workload(workload: str, path: Path, *, limit: str | None) -> int:
    """Records a program of Debian by name; says, on standard error, what was recorded.

    Returns:
        0: its driver ends the program, so its own exit status means nothing.

    Raises:
        FlatwalkError: If it cannot be installed, or does not reach its run phase.
    """
    output.check_writable(path, "--output")
    from flatwalk.programs import runner  # noqa: PLC0415

    result = runner.record_workload(
        workload, path, limit=units.parse_count(limit, "--limit") if limit else None
    )
    output.note(str(result))
    return 0
