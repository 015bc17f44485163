"""The programs that can be recorded by name: one TOML file each in `data/programs`."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

from flatwalk import units
from flatwalk.definitions import settings
from flatwalk.errors import UsageError

PROGRAMS = settings.DATA / "programs"
_KEYS = {"title", "source", "driver", "packages", "commands", "size", "instructions", "options"}


@dataclass(frozen=True)
class Program:
    """A program that can be recorded by name."""

    name: str
    #: What it does, in one line.
    title: str
    source: str
    #: Which of `drivers.DRIVERS` runs it.
    driver: str
    #: Debian packages that it comes in.
    packages: list[str]
    #: Commands that must be on PATH, or patterns of their paths.
    commands: list[str]
    #: Approximate size of its data, unless the user says otherwise.
    size_bytes: int
    #: Instructions recorded unless the user says otherwise.
    instructions: int
    #: What the driver understands.
    options: dict[str, str]

    def command(self, name: str) -> Path | None:
        """One of its commands, if it is installed."""
        for pattern in self.commands:
            if Path(pattern).name != name:
                continue
            if "/" not in pattern:
                found = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
                return Path(found) if found else None
            there = sorted(Path("/").glob(pattern.lstrip("/")))
            return there[-1] if there else None
        return None

    def missing(self) -> list[str]:
        """Commands that are not installed."""
        names = [Path(pattern).name for pattern in self.commands]
        return [name for name in names if self.command(name) is None]


def names() -> list[str]:
    """All names, in alphabetical order."""
    return sorted(path.stem for path in PROGRAMS.glob("*.toml"))


def load(name: str) -> Program:
    """The program of that name.

    Raises:
        UsageError: If there is none, or its file is wrong.
    """
    path = PROGRAMS / f"{name}.toml"
    if name not in names():
        raise UsageError(
            f"there is no program {name!r} to record",
            where="--workload",
            remedy=f"one of {', '.join(names())}; those built in are for `flatwalk compare --workload`",
        )
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if table.keys() != _KEYS:
        odd = ", ".join(sorted(table.keys() ^ _KEYS))
        raise UsageError(f"missing or unknown: {odd}", where=str(path), remedy="fix the file")
    return Program(
        name=name,
        title=table["title"],
        source=table["source"],
        driver=table["driver"],
        packages=table["packages"],
        commands=table["commands"],
        size_bytes=units.parse_size(table["size"], str(path)),
        instructions=units.parse_count(table["instructions"], str(path)),
        options=table["options"],
    )
