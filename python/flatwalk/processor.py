"""Whether what was built runs on this processor."""

from __future__ import annotations

import re
from pathlib import Path

from flatwalk.errors import FlatwalkError

#: Features that the engine and the recorder were built for, as the set-up found them.
_BUILT_FOR = Path(__file__).parent / "libexec" / "processor"
_CPUINFO = Path("/proc/cpuinfo")


def check() -> None:
    """Checks that this processor has what the engine and the recorder use: they would crash.

    Raises:
        FlatwalkError: If it lacks some of it.
    """
    needed = _BUILT_FOR.read_text().split() if _BUILT_FOR.exists() else []
    if not needed:
        return
    with _CPUINFO.open() as cpuinfo:
        of_first = next((line for line in cpuinfo if re.match(r"flags\s*:", line)), "")
    if missing := sorted(set(needed) - set(of_first.split())):
        raise FlatwalkError(
            f"flatwalk was built on another processor: this one lacks {', '.join(missing)}",
            remedy="use another copy of the repository on this machine; ./flatwalk builds it there",
        )
