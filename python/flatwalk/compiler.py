"""The C compiler, for the few programs and plugins that are compiled where they are used."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def build(source: Path, target: Path, flags: Sequence[str]) -> None:
    """Compiles and links one source.

    Raises:
        FlatwalkError: If there is no C compiler, or it fails.
    """
    try:
        done = subprocess.run(
            ["cc", "-O2", *flags, "-o", target, source],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise FlatwalkError(
            "there is no C compiler", where="cc", remedy="as root: apt-get install gcc libc6-dev"
        ) from error
    if done.returncode:
        raise FlatwalkError(
            f"this does not compile:\n{done.stderr.strip()}",
            where=str(source),
            remedy="fix what the compiler reports; gcc and libc6-dev are needed",
        )
