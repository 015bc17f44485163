"""Processes that a test started: which they started, what they have done, and whether they have ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, AnyStr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: How long what must come may take on a slow machine with much else to do.
PATIENCE_SECONDS = 600

#: Code of a process: the most memory that it has had, in KiB. `ru_maxrss` counts that of its parent, too.
PEAK = """
def peak_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
"""


def _children(pid: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def descendants(pid: int) -> set[int]:
    """All that a process and those that it started have started, as far as they run."""
    try:
        children = _children(pid)
    except OSError:  # it has just ended
        return set()
    return children.union(*map(descendants, children))


def _status(pid: int) -> list[str]:
    """What `/proc/PID/stat` says behind the name; see `proc(5)`."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def is_gone(pid: int) -> bool:
    """Whether a process has ended, whether or not anybody has asked for its status."""
    try:
        return _status(pid)[0] == "Z"
    except OSError:
        return True


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used so far; 0 if it is gone."""
    try:
        fields = _status(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for what must come: what is waited for would not come at all if the code were wrong."""
    last = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < last
        time.sleep(0.01)


def run_code(
    code: str, *, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, to its end."""
    return subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@contextlib.contextmanager
def waited_for(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Waits for a process's end. If the test fails, the process and what it started are killed first."""
    with process:
        try:
            yield process
        except BaseException:
            for pid in {process.pid, *descendants(process.pid)}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise
