"""Temporary directories that do not outlast a command, even one that was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "flatwalk-work-"
#: A directory without an owner is removed when it is this old: a younger one may just be getting its owner.
_SETTLED_SECONDS = 60.0


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A directory that is removed in the end. Those of commands that were killed go, too.

    A lock on each of them, which ends with its process, says that it is in use.

    Raises:
        OSError: If there is no room, or no place, for one.
    """
    _remove_orphans(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        lock = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield Path(name)
        finally:
            os.close(lock)


def _remove_orphans(parent: Path) -> None:
    before = time.time() - _SETTLED_SECONDS
    for path in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            about = path.lstat()
            if about.st_uid != os.geteuid() or about.st_mtime > before:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
