"""Where what can be made again is kept from one call to the next."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path


def directory(name: str) -> Path:
    """The part `name` of the user's cache directory, after the XDG base directory specification."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "flatwalk" / name


@functools.cache
def digest(path: Path) -> str:
    """What a file's contents are known by."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def key(identity: object) -> str:
    """What a result is known by: the hash of all that decides it, which JSON can hold."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
