"""Data races that KCSAN reports: which are of functions that the series adds or changes.

Linux has data races of its own, most of them harmless, and KCSAN reports those too.
"""

from __future__ import annotations

import functools
import re

from flatwalk.vm import components

#: `BUG: KCSAN: data-race in FUNCTION / FUNCTION`, or one function if only one was caught.
_RACE = re.compile(r"BUG: KCSAN: \S.* in (\w[\w.]*)(?: / (\w[\w.]*))?")
#: A function's beginning: not indented, and no prototype.
_DEFINITION = re.compile(r"^\+(?:[a-z_][\w *]*[ *])(\w+)\((?!.*;\s*$)")
_CHANGED = re.compile(r"^@@ [-+, \d]+ @@ .*?\b(\w+)\(")


@functools.cache
def functions_of_the_series() -> frozenset[str]:
    """Functions that the kernel series adds, and those in which, or after which, it changes something."""
    lines = (
        line for path in components.LINUX.series for line in path.read_text(encoding="utf-8").splitlines()
    )
    found = (pattern.match(line) for line in lines for pattern in (_DEFINITION, _CHANGED))
    return frozenset(match[1] for match in found if match)


def is_of_others(line: str) -> bool:
    """Whether a line of the kernel's log reports a race between functions that are not the series'."""
    race = _RACE.search(line)
    if race is None:
        return False
    # A compiler's variants of a function have its name and more.
    names = {name.partition(".")[0] for name in race.groups() if name}
    return not names & functions_of_the_series()
