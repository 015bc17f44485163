"""Pages as a browser shows them."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def chromium(directory: Path, *arguments: str) -> str:
    """Runs the browser without a window, its profile in `directory`; returns what it prints."""
    browser = shutil.which("chromium")
    assert browser, "chromium is missing: ./test installs it; by hand: apt-get install chromium"
    return subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            f"--user-data-dir={directory / 'profile'}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
