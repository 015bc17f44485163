"""C programs for guests, and plugins of QEMU: compiled once for each version of their text."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk import cache, compiler
from flatwalk.errors import FlatwalkError
from flatwalk.vm import build, components

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The sources of the guest's first process, of plugins, and of the tests' programs.
SOURCES = Path(__file__).resolve().parents[3] / "linux"
_PROGRAM_FLAGS = ("-Wall", "-D_GNU_SOURCE", "-static", "-pthread")


def guest_program(source: Path) -> Path:
    """A static program for guests, compiled once for each version of its source and its possible headers.

    Raises:
        FlatwalkError: If it cannot be compiled.
    """
    return _compiled(source, source.stem, _PROGRAM_FLAGS, *_program_headers(source))


def program_identity(source: Path) -> str:
    """The key of all that decides such a program, for which it need not be compiled."""
    return _key(source, _PROGRAM_FLAGS, *_program_headers(source))


def _program_headers(source: Path) -> list[Path]:
    # With the last, programs of all folders mark their phases.
    return [*sorted(source.parent.glob("*.h")), SOURCES.parent / "recorder" / "flatwalk.h"]


def plugin(name: str, source: Path | None) -> Path:
    """A plugin of linux/guest/, compiled once for each version of its source and of headers it may include.

    Args:
        name: Of its source, without `.c`.
        source: The user's own trees, as built by `vm build --source`.

    Raises:
        FlatwalkError: If QEMU is not built, or the plugin cannot be compiled.
    """
    header = build.find(components.QEMU, source) / "include" / "qemu-plugin.h"
    flags = ["-Wall", "-shared", "-fPIC", f"-I{header.parent}"]
    own = sorted((SOURCES / "guest").glob("*.h"))
    return _compiled(SOURCES / "guest" / f"{name}.c", f"{name}.so", flags, header, *own)


def _compiled(source: Path, name: str, flags: Sequence[str], *headers: Path) -> Path:
    """What a C compiler makes of a source, kept under a key of all that decides it."""
    made = cache.directory("vm") / "guest" / f"{_key(source, flags, *headers)}-{name}"
    if made.is_file():
        return made
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FlatwalkError(
            f"what is compiled cannot be kept: {error.strerror}",
            where=str(error.filename),
            remedy="free some space, or set XDG_CACHE_HOME to another place",
        ) from error
    with tempfile.TemporaryDirectory(dir=made.parent) as directory:
        part = Path(directory) / name
        compiler.build(source, part, flags)
        part.replace(made)
    return made


def _key(source: Path, flags: Sequence[str], *headers: Path) -> str:
    texts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (source, *headers)]
    return cache.key([*flags, *texts])[:16]
