"""What several drivers use."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Seed of everything that the drivers draw.
SEED = 1


def says(log: Path, words: str) -> bool:
    """Whether a program has written these words to a file."""
    with contextlib.suppress(OSError):
        return words in log.read_text(encoding="utf-8", errors="replace")
    return False
