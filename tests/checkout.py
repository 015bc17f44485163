"""Copies of this repository's files, for tests that build them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from flatwalk.definitions import settings

ROOT = Path(__file__).parents[1]


def files(*names: str) -> list[str]:
    """The paths of what git has here, or has in these files and folders; changed and new files too."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *names]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(path for path in set(found.strip("\0").split("\0")) if (ROOT / path).is_file())


def shipped(kind: str, name: str, before: str, after: str) -> str:
    """The text of a shipped machine or scheme (`machines`, `schemes`), with something changed."""
    text = (settings.DATA / kind / f"{name}.toml").read_text()
    assert before in text
    return text.replace(before, after)
