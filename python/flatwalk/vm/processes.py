"""Runs programs that start others, and ends them all together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How long programs may take to end when they are asked to.
_PATIENCE_S = 10


def outlived_by(command: list[str]) -> list[str]:
    """The command as one that is killed when its parent dies, however that happens."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *command]


@contextlib.contextmanager
def ended_together(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends a process, and all that it has started, if the block does not complete.

    Args:
        process: The leader of its own process group (`process_group=0`), so that Ctrl-C comes to us alone.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            # Build tools wait for their compilers, so that nothing is written after they have ended.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        raise


def run(command: list[str], *, cwd: os.PathLike[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program without input to its end, and returns its output.

    Raises:
        FileNotFoundError: If there is no such program.
    """
    with (
        subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        ) as process,
        ended_together(process),
    ):
        out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out.decode(), err.decode())
