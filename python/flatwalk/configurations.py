"""The configurations that the options of `flatwalk compare` ask for, as the engine takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatwalk import output, settings
from flatwalk.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What the command line said, read but not yet acted upon."""

    workload: str | None
    trace: Path | None
    command: Sequence[str]
    schemes: str | None
    virt: str | None
    host_large_pages: int
    guest_frames: str
    machine: str
    large_pages: str | None
    thp: str | None
    fragmentation: float
    context_switch_ms: float | None
    instructions: str | None
    warmup: str | None
    skip: str | None
    seed: int
    mode: str
    json: Path | None
    energy: bool
    mix: str | None
    report: Path | None
    keep_trace: Path | None
    jobs: int

    def __post_init__(self) -> None:
        """Checks the options that name one of a few things.

        Raises:
            UsageError: If there is no such thing.
        """
        if self.guest_frames not in ("scattered", "compact"):
            raise UsageError(
                f"{self.guest_frames!r} is not a way to place a guest's frames",
                where="--guest-frames",
                remedy="give scattered or compact",
            )
        if self.thp not in {None, "always", "madvise", "never"}:
            raise UsageError(
                f"there is no THP policy {self.thp!r}", where="--thp", remedy="always, madvise or never"
            )
        if self.mode not in {"timing", "functional"}:
            raise UsageError(f"there is no mode {self.mode!r}", where="--mode", remedy="timing or functional")

    def check_writable(self) -> None:
        """Fails early if a file could not be written.

        Raises:
            UsageError: If one could not.
        """
        for path, option in ((self.json, "--json"), (self.report, "--report")):
            if path is not None and str(path) != "-":
                output.check_writable(path, option)


def configurations(options: Options) -> list[dict[str, Any]]:
    """Every run that the options ask for, as the engine takes it.

    Raises:
        UsageError: If they do not go together.
    """
    schemes = _schemes(options)
    if not schemes:
        raise UsageError("no scheme is named", where="--schemes", remedy="as in --schemes radix4,fpt")
    machine = settings.machine(options.machine)
    _check_guests(schemes, machine)
    _check_timing(options, machine)
    return [
        {
            "scheme": scheme,
            "machine": machine,
            "large_pages": large_pages,
            "thp": thp,
            "fragmentation": options.fragmentation,
            "host_large_pages": options.host_large_pages,
            "guest_frames": options.guest_frames,
            "mode": options.mode,
            "context_switch_ms": options.context_switch_ms,
            "memory_bytes": None,
        }
        for large_pages, thp in _pages(options)
        for scheme in schemes
    ]


def _check_guests(schemes: list[dict[str, Any]], machine: dict[str, Any]) -> None:
    guests = [scheme["name"] for scheme in schemes if "host" in scheme or scheme.get("shadow")]
    if guests and "virtualisation" not in machine:
        raise UsageError(
            f"the machine {machine['name']} has no [virtualisation] section, which {guests[0]} needs",
            where="--machine",
            remedy="choose another machine, or add the section to a copy of the file",
        )


def _check_timing(options: Options, machine: dict[str, Any]) -> None:
    """Checks that the machine and the mode have what the options need."""
    if options.energy and (options.mode != "timing" or "energy" not in machine):
        raise UsageError(
            f"the machine {machine['name']} has no [energy] section"
            if options.mode == "timing"
            else "functional mode has no caches",
            where="--energy",
            remedy="see docs/energy.md; skylake-server has figures, in timing mode",
        )
    if options.mode == "timing" and not settings.is_timed(machine):
        raise UsageError(
            f"the machine {machine['name']} has no core and caches, so it can count but not time",
            where="--machine",
            remedy="add --mode functional, or choose another machine",
        )
    if options.context_switch_ms is not None and options.mode != "timing":
        raise UsageError(
            "functional mode has no clock to switch by", where="--context-switch", remedy="leave out --mode"
        )


def _pages(options: Options) -> list[tuple[int | None, str | None]]:
    """Per cent on large pages, or else Linux's policy for them, of each group of runs."""
    if options.thp is None:
        return [(percent, None) for percent in parse_large_pages(options.large_pages or "0,100")]
    if options.large_pages is not None:
        raise UsageError(
            "both say which pages are large", where="--large-pages and --thp", remedy="give one of them"
        )
    return [(None, options.thp)]


def _schemes(options: Options) -> list[dict[str, Any]]:
    def listed(text: str) -> list[str]:
        return [name for name in dict.fromkeys(map(str.strip, text.split(","))) if name]

    pairs = listed(options.virt or "")
    if options.schemes is not None:
        names = listed(options.schemes)
    else:
        # Pairs alone are measured against what today's virtual machines do.
        names = ["virt-radix4"] if pairs else list(settings.DEFAULT_SCHEMES)
    return [settings.scheme(name) for name in names] + [settings.guest(pair) for pair in pairs]


def parse_large_pages(text: str) -> list[int]:
    """Reads `0,50,100`: per cent of the address space on large pages.

    Raises:
        UsageError: If a value is not a whole percentage.
    """
    values = []
    for item in text.split(","):
        digits = item.strip().removesuffix("%")
        if not (digits.isascii() and digits.isdecimal() and int(digits) <= 100):
            raise UsageError(
                f"{item.strip()!r} is not a percentage",
                where="--large-pages",
                remedy="give whole numbers from 0 to 100, as in --large-pages 0,50,100",
            )
        values.append(int(digits))
    return list(dict.fromkeys(values))
