"""Directories that a user names for what a command keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flatwalk.errors import UsageError
from flatwalk.terminal import output

if TYPE_CHECKING:
    from pathlib import Path


def make_directory(directory: Path, option: str) -> None:
    """Makes a directory, before the work whose results go there.

    Args:
        directory: It may be there already.
        option: That names it.

    Raises:
        UsageError: If it cannot be made, or written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the directory {directory} cannot be made: {error.strerror}",
            where=option,
            remedy="name another directory",
        ) from error
    output.check_writable(directory / "result", option)
