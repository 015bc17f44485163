"""The native kernels: `flatwalk-host`, one fresh process for each measurement."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from flatwalk.errors import FlatwalkError, UsageError

PROGRAM = "flatwalk-host"
#: Seconds after which a measurement counts as stuck.
PATIENCE_SECONDS = 600


def find() -> Path:
    """Finds the program.

    Raises:
        FlatwalkError: If it was not built.
    """
    given = os.environ.get("FLATWALK_HOST")
    here = Path(__file__).resolve()
    candidates = (
        [Path(given)]
        if given
        else [here.parents[1] / "libexec" / PROGRAM, here.parents[3] / "target" / "release" / PROGRAM]
    )
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return candidate
    raise FlatwalkError(
        f"the measuring program {PROGRAM} is missing",
        where=", ".join(map(str, candidates)),
        remedy="build it: cargo build --release -p flatwalk-host",
    )


def measure(program: Path, bench: str, request: dict[str, Any]) -> dict[str, Any]:
    """Takes one measurement.

    Args:
        program: What `find` found.
        bench: pagefault, gups, walk, ebizzy or tlb.
        request: `cpus`, `node`, `events` and `bench`, as host/src/main.rs documents them.

    Raises:
        UsageError: If the program does not take the parameters.
        FlatwalkError: If the kernel refuses something, or the program fails.
    """
    return _run([str(program), bench, json.dumps(request)], bench)


def ask(what: str, request: dict[str, Any]) -> dict[str, Any]:
    """Asks the program something that it need not measure; `cpuid` is known, of a processor `cpu`.

    Raises:
        FlatwalkError: If it is missing or fails.
    """
    return _run([str(find()), what, json.dumps(request)], what)


def _run(command: list[str], bench: str) -> dict[str, Any]:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except OSError as error:
        raise FlatwalkError(
            f"the measuring program does not start: {error.strerror}", where=command[0]
        ) from error
    except subprocess.TimeoutExpired as error:
        raise FlatwalkError(
            f"a measurement took more than {PATIENCE_SECONDS} s", where=bench, remedy="make it smaller"
        ) from error
    said = done.stderr.strip()
    if done.returncode == 2:
        raise UsageError(said, where=bench)
    if done.returncode < 0:
        raise FlatwalkError(
            f"the measurement was ended by signal {-done.returncode}",
            where=bench,
            remedy="if memory ran out, choose a smaller size",
        )
    if done.returncode:
        raise FlatwalkError(said or "the measurement failed", where=bench)
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer
