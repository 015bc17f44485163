"""The user's cache directory: what is kept from one call to the next and can be made again."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from flatwalk import output
from flatwalk.errors import FlatwalkError


def directory(name: str) -> Path:
    """The part `name` of the user's cache directory, after the XDG base directory specification."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "flatwalk" / name


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
