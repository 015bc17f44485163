"""Errors that a person can act on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from flatwalk.terminal.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping


class FlatwalkError(Exception):
    """Something went wrong that the user can fix.

    Args:
        what: What is wrong, in one sentence.
        where: The file, option or key concerned.
        remedy: What to do about it.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where:  {one_line(self.where)}")
        if self.remedy:
            lines.append(f"  remedy: {one_line(self.remedy)}")
        return "\n".join(lines)


class UsageError(FlatwalkError):
    """The command line, or a file that it names, asks for something that is not possible."""

    exit_code = 2


def refuse(unfit: Mapping[str, bool], why: str, remedy: str = "leave it out") -> None:
    """Refuses the first of some options that was given, if any was.

    Raises:
        UsageError: Which, and why.
    """
    for option, given in unfit.items():
        if given:
            raise UsageError(why, where=option, remedy=remedy)


def interrupted() -> NoReturn:
    """Ends the program after Ctrl-C."""
    print("\nInterrupted; nothing was left half-written.", file=sys.stderr)
    sys.exit(130)
