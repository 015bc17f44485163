"""Data races that KCSAN reports: which are of functions that the series adds or changes.

Linux has data races of its own, most of them harmless, and KCSAN reports those too.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from flatwalk.vm import components

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: `BUG: KCSAN: data-race in FUNCTION / FUNCTION`, or one function if only one was caught.
_RACE = re.compile(r"BUG: KCSAN: \S.* in (\w[\w.]*)(?: / (\w[\w.]*))?")
#: A function's beginning, at the margin; no prototype of one line.
_DEFINITION = re.compile(r"[a-z_][\w *]*[ *](\w+)\((?!.*;\s*$)")
#: Where a hunk begins, and the latest function before that.
_HUNK = re.compile(r"@@ [-+, \d]+ @@ ?(.*)")
#: At the margin within a function: its braces, labels, and the preprocessor's lines.
_WITHIN = re.compile(r"\{|\w+:$|#")


@functools.cache
def functions_of_the_series() -> frozenset[str]:
    """Functions that the kernel series adds, and those in which, or after which, it changes something."""
    return frozenset(
        name
        for path in components.LINUX.series
        for name in _changed(path.read_text(encoding="utf-8").splitlines())
    )


def _changed(patch: Iterable[str]) -> Iterator[str]:
    """The same of one patch; a function may come several times."""
    function, is_code = None, False
    for line in patch:
        sign, text = line[:1], line[1:]
        hunk = _HUNK.match(line)
        if line.startswith("+++ "):
            is_code = line.endswith((".c", ".h"))
        elif not is_code:
            continue
        elif found := _DEFINITION.match(hunk[1] if hunk else text):
            function = found[1]
            if hunk or sign == "+":
                yield function
        elif text.startswith("\t"):
            if function and sign != " ":
                yield function
        elif hunk or (text[:1] not in ("", " ") and not _WITHIN.match(text)):
            function = None


def is_of_others(line: str) -> bool:
    """Whether a line of the kernel's log reports a race between functions that are not the series'."""
    race = _RACE.search(line)
    if race is None:
        return False
    # A compiler's variants of a function have its name and more.
    names = {name.partition(".")[0] for name in race.groups() if name}
    return not names & functions_of_the_series()
