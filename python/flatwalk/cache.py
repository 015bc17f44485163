"""The user's cache directory: what is kept from one call to the next and can be made again."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import units
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Sequence


def _root() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "flatwalk"


def directory(name: str) -> Path:
    """The part `name` of the user's cache directory, after the XDG base directory specification."""
    return _root() / name


@dataclass(frozen=True)
class Entry:
    """Something that is kept: one of the directories of a part, or its results."""

    #: As `reproduce` or `vm/linux-0123`.
    name: str
    path: Path
    size_bytes: int
    #: Seconds since the epoch, of what was changed last in it.
    changed: float


#: Parts whose directories are kept each for itself; another part is one thing.
_DIVIDED = {"vm"}


def entries() -> list[Entry]:
    """What is kept, by name."""
    found = []
    for part in sorted(_listed(_root())):
        for path in sorted(_listed(part)) if part.name in _DIVIDED else [part]:
            files = [file.lstat() for file in (path, *path.rglob("*")) if os.path.lexists(file)]
            name = str(path.relative_to(_root()))
            # Blocks, not lengths: disks of guests have holes.
            size, changed = sum(file.st_blocks for file in files) * 512, max(f.st_mtime for f in files)
            found.append(Entry(name, path, size, changed))
    return found


def _listed(place: Path) -> list[Path]:
    return list(place.iterdir()) if place.is_dir() else []


def show(*, as_json: bool) -> None:
    """Prints what is kept."""
    found = entries()
    if as_json:
        print(output.as_json([{**vars(entry), "path": str(entry.path)} for entry in found]))
        return
    rows = [
        [
            entry.name,
            units.size(entry.size_bytes),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.changed)),
        ]
        for entry in found
    ]
    if rows:
        output.table(["kept", "size", "changed"], rows)
    total = units.size(sum(entry.size_bytes for entry in found))
    print(f"{total} in {_root()}" if found else f"nothing is kept in {_root()}")


def clear(names: Sequence[str]) -> None:
    """Removes what is kept, or what is named of it, and says so.

    Each thing is there whole, or not at all, for a command that runs meanwhile.

    Raises:
        UsageError: If nothing of that name is kept; then nothing is removed.
        FlatwalkError: If it cannot be removed.
    """
    found = entries()
    unknown = [name for name in names if not any(_is_in(entry, name) for entry in found)]
    if unknown:
        raise UsageError(
            f"nothing is kept that is called {unknown[0]!r}",
            where="NAME",
            remedy="`flatwalk cache list` shows what there is",
        )
    freed = 0
    for entry in found:
        if names and not any(_is_in(entry, name) for name in names):
            continue
        gone = _root() / f".removed-{os.getpid()}"
        try:
            entry.path.rename(gone)
            if gone.is_dir() and not gone.is_symlink():
                shutil.rmtree(gone)
            else:
                gone.unlink()
        except OSError as error:
            raise FlatwalkError(
                f"{entry.path} cannot be removed: {error.strerror}",
                where=error.filename,
                remedy="check who owns it, or remove it yourself",
            ) from error
        freed += entry.size_bytes
        print(f"removed {entry.name}")
    print(f"{units.size(freed)} freed")


def _is_in(entry: Entry, name: str) -> bool:
    return entry.name == name or entry.name.startswith(f"{name.rstrip('/')}/")


@functools.cache
def digest(path: Path) -> str:
    """The hash of a file's contents."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def key(identity: object) -> str:
    """The key of a result: the hash of everything that decides it, given as JSON can hold it."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


class Store:
    """Results on disk by their keys, one file of JSON each; a file is complete or missing.

    Raises:
        FlatwalkError: If the directory cannot be made.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FlatwalkError(
                f"results cannot be kept: {error.strerror}",
                where=str(place),
                remedy="free some space, or set XDG_CACHE_HOME to a directory that you may write to",
            ) from error

    def _path(self, key: str) -> Path:
        return self._place / f"{key}.json"

    def get(self, key: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """The kept result; None if there is none, or it cannot be read, so that it is made again."""
        try:
            return json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def put(self, key: str, value: object) -> None:
        """Keeps a result.

        Raises:
            FlatwalkError: If it cannot be written.
        """
        output.write_whole(self._path(key), json.dumps(value))
