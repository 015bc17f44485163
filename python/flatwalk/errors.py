"""Errors that a person can act on."""

from __future__ import annotations

from flatwalk.printable import one_line


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
