"""A command on a terminal of its own."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def on_terminal(command: list[str], columns: int, cwd: Path | None = None) -> str:
    """All that `command` writes on a terminal of `columns` columns; it must end well."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        stdout=follower,
        stderr=follower,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns)},
    )
    os.close(follower)
    seen = b""
    try:
        while chunk := os.read(leader, 4096):
            seen += chunk
    except OSError:  # the other end is closed: all was read
        pass
    os.close(leader)
    assert process.wait() == 0, seen.decode()
    return seen.decode()
