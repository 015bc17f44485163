"""A live process's mapping, from /proc: areas, present pages, large pages. Only ever reads."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = 2 << 20
#: Addresses from here on are the kernel's (vsyscall).
KERNEL = 1 << 56

# linux/fs.h: PAGEMAP_SCAN, _IOWR('f', 16, struct pm_scan_arg), in Linux 6.7 and later.
_SCAN_ARGUMENT = struct.Struct("12Q")
_SCAN = 3 << 30 | _SCAN_ARGUMENT.size << 16 | ord("f") << 8 | 16
_REGION = struct.Struct("3Q")
_REGIONS = 4096
_IS_PRESENT, _IS_HUGE = 1 << 3, 1 << 6
# Documentation/admin-guide/mm/pagemap.rst
_PAGEMAP_PRESENT = 1 << 63


@dataclass(frozen=True)
class Area:
    """A line of maps, with what smaps says of it."""

    start: int
    end: int
    rights: str
    name: str
    #: smaps: bytes by key (Rss, AnonHugePages, …); empty where smaps may not be read.
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def huge_bytes(self) -> int:
        """Bytes on large pages, by smaps."""
        return sum(
            self.sizes.get(key, 0)
            for key in (
                "AnonHugePages",
                "ShmemPmdMapped",
                "FilePmdMapped",
                "Private_Hugetlb",
                "Shared_Hugetlb",
            )
        )


@dataclass(frozen=True)
class Pages:
    """Present pages, `[start, end)`, all base or all 2 MiB pages."""

    start: int
    end: int
    large: bool


@dataclass(frozen=True)
class Process:
    """What was found about a process."""

    pid: int
    name: str
    areas: list[Area]
    pages: list[Pages]
    #: Page-table bytes by the kernel's own count; None where it does not report it.
    table_bytes: int | None
    #: What could not be found, and what was assumed instead.
    notes: list[str]

    def present_bytes(self) -> tuple[int, int]:
        """Bytes on small and on large pages."""
        sums = [0, 0]
        for pages in self.pages:
            sums[pages.large] += pages.end - pages.start
        return sums[0], sums[1]


@contextlib.contextmanager
def _reading(pid: int) -> Iterator[None]:
    """Turns the kernel's errors into ones that a person understands."""
    try:
        yield
    except PermissionError as error:
        raise FlatwalkError(
            f"process {pid} may not be inspected",
            where=error.filename,
            remedy="root lacks CAP_SYS_PTRACE here, as in a container: allow it, or name another process"
            if os.geteuid() == 0
            else "it must be yours (and allow it); or run this as root",
        ) from error
    except (FileNotFoundError, ProcessLookupError) as error:
        raise _ended(pid) from error


def _ended(pid: int) -> FlatwalkError:
    return FlatwalkError(
        f"process {pid} ended while it was inspected",
        remedy="nothing was written; name a process that runs",
    )


def _kilobytes(text: str, key: str) -> int | None:
    match = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def parse_maps(text: str) -> list[Area]:
    """Reads maps, or smaps: user areas in ascending order."""
    areas: list[Area] = []
    for line in text.splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+\s*(.*)", line)
        if head:
            areas.append(Area(int(head[1], 16), int(head[2], 16), head[3], head[4]))
        elif areas and (size := re.match(r"(\w+):\s+(\d+) kB", line)):
            areas[-1].sizes[size[1]] = int(size[2]) * 1024
    return [area for area in areas if area.end <= KERNEL]


def _ascending(areas: list[Area]) -> list[Area]:
    """The areas without those that overlap an earlier one.

    The kernel gives smaps piece by piece; what moves in between may be reported twice.
    """
    kept: list[Area] = []
    for area in areas:
        if not kept or area.start >= kept[-1].end:
            kept.append(area)
    return kept


def read(pid: int, proc: Path = Path("/proc"), *, scan: bool = True) -> Process:
    """Reads a process's mapping. It neither stops nor changes the process, which may change meanwhile.

    Args:
        pid: Its number.
        proc: Where /proc is.
        scan: Whether to use PAGEMAP_SCAN where the kernel has it.

    Raises:
        UsageError: If there is no such process, or it has no memory of its own.
        FlatwalkError: If it may not be read, or it ended meanwhile.
    """
    root = proc / str(pid)
    if not root.is_dir():
        raise UsageError(f"there is no process {pid}", where="PID", remedy="`ps -e` shows those that run")
    notes: list[str] = []
    with _reading(pid):
        status = (root / "status").read_text(encoding="utf-8", errors="replace")
        command = (root / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        maps = (root / "maps").read_text(encoding="utf-8", errors="replace")
    if not maps:
        # A process that has ended but was not reaped, or a thread of the kernel.
        what = "has ended" if re.search(r"^State:\s+[ZX]", status, re.MULTILINE) else "is a kernel thread"
        raise UsageError(f"process {pid} {what}: it has no memory to inspect", where="PID")
    areas = parse_maps(maps)
    try:
        with _reading(pid):
            areas = parse_maps((root / "smaps").read_text(encoding="utf-8", errors="replace")) or areas
    except FlatwalkError:
        if not root.is_dir():
            raise
        notes.append("smaps may not be read: sizes are from pagemap alone.")
    ascending = _ascending(areas)
    if len(ascending) < len(areas):
        notes.append("The process changed its areas while they were read; what overlaps was left out.")
    areas = ascending
    with _reading(pid), (root / "pagemap").open("rb", buffering=0) as file:
        pages = _present(file.fileno(), areas, notes, scan=scan)
    if not root.is_dir():
        raise _ended(pid)
    return Process(
        pid,
        command or (re.search(r"^Name:\s+(.*)", status) or ["", f"process {pid}"])[1],
        areas,
        pages,
        _kilobytes(status, "VmPTE"),
        notes,
    )


def _present(pagemap: int, areas: list[Area], notes: list[str], *, scan: bool) -> list[Pages]:
    """Present pages of all areas."""
    found: list[Pages] = []
    for area in areas:
        pieces = None
        if scan:
            try:
                pieces = list(_scanned(pagemap, area))
            except OSError:  # older kernels: ENOTTY
                scan = False
        if pieces is None:
            pieces = _guessed(list(_read_pagemap(pagemap, area)), area)
        found += _whole(pieces)
    if not scan and any(pages.large for pages in found):
        notes.append(
            "This kernel does not say which pages are large (PAGEMAP_SCAN, Linux 6.7): as many whole 2 MiB "
            "blocks of each area are taken as smaps counts, lowest first."
        )
    return found


def _scanned(pagemap: int, area: Area) -> Iterator[Pages]:
    """By PAGEMAP_SCAN: exact, and quick in areas that are mostly empty."""
    regions = array.array("Q", bytes(_REGIONS * _REGION.size))
    at = behind = area.start
    while at < area.end:
        address, _ = regions.buffer_info()
        argument = bytearray(
            _SCAN_ARGUMENT.pack(
                *(_SCAN_ARGUMENT.size, 0, at, area.end, 0, address, _REGIONS, 0),
                *(0, _IS_PRESENT, 0, _IS_PRESENT | _IS_HUGE),
            )
        )
        count = fcntl.ioctl(pagemap, _SCAN, argument)
        for number in range(count):
            start, end, kinds = regions[3 * number : 3 * number + 3]
            # Linux 6.18 was seen to report the range of one page-table node twice.
            start = max(start, behind)
            if start < end:
                yield Pages(start, end, bool(kinds & _IS_HUGE))
                behind = end
        at = _SCAN_ARGUMENT.unpack(argument)[4]


def _read_pagemap(pagemap: int, area: Area) -> Iterator[Pages]:
    """By reading pagemap: one word for each page, present or not."""
    import numpy as np  # noqa: PLC0415

    if area.sizes and not area.sizes.get("Rss", 0) and not area.huge_bytes:
        return
    page = os.sysconf("SC_PAGESIZE")
    at, chunk = area.start, page << 16
    while at < area.end:
        end = min(at + chunk, area.end)
        words = np.frombuffer(os.pread(pagemap, (end - at) // page * 8, at // page * 8), dtype=np.uint64)
        present = (words & np.uint64(_PAGEMAP_PRESENT)) != 0
        # Where a run of present pages begins or ends.
        edges = np.flatnonzero(np.diff(np.concatenate(([False], present, [False])).astype(np.int8)))
        for first, behind in edges.reshape(-1, 2).tolist():
            yield Pages(at + first * page, at + behind * page, large=False)
        at = end


def _merged(pieces: list[Pages]) -> list[Pages]:
    """Neighbouring ranges of one kind as one."""
    merged: list[Pages] = []
    for piece in pieces:
        if merged and merged[-1].end == piece.start and merged[-1].large == piece.large:
            merged[-1] = Pages(merged[-1].start, piece.end, piece.large)
        else:
            merged.append(piece)
    return merged


def _guessed(pieces: list[Pages], area: Area) -> list[Pages]:
    """Takes whole 2 MiB blocks for large pages, lowest first, as many as smaps counts."""
    left = area.huge_bytes // LARGE
    found: list[Pages] = []
    for piece in _merged(pieces):
        start, end = -(-piece.start // LARGE) * LARGE, piece.end // LARGE * LARGE
        blocks = min(left, max(0, (end - start) // LARGE))
        if not blocks:
            found.append(piece)
            continue
        left -= blocks
        end = start + blocks * LARGE
        found.append(Pages(piece.start, start, large=False))
        found.append(Pages(start, end, large=True))
        found.append(Pages(end, piece.end, large=False))
    return [pages for pages in found if pages.start < pages.end]


def _whole(pieces: list[Pages]) -> list[Pages]:
    """Large ranges as whole 2 MiB pages; what is large but not whole (contiguous entries) is small."""
    found: list[Pages] = []
    for piece in _merged(pieces):
        start, end = -(-piece.start // LARGE) * LARGE, piece.end // LARGE * LARGE
        if not piece.large or end <= start:
            found.append(Pages(piece.start, piece.end, large=False))
            continue
        found.append(Pages(piece.start, start, large=False))
        found.append(Pages(start, end, large=True))
        found.append(Pages(end, piece.end, large=False))
    return _merged([pages for pages in found if pages.start < pages.end])


@dataclass(frozen=True)
class Level:
    """One level of a radix table; level 1 holds PTEs."""

    level: int
    nodes: int
    #: Entries in use.
    entries: int
    bytes: int

    @property
    def occupancy(self) -> float:
        """Share of the entries, of eight bytes each, that is in use."""
        return 8 * self.entries / self.bytes if self.bytes else 0.0


def radix_levels(pages: list[Pages], levels: int, page_bytes: int = 4096) -> list[Level]:
    """The radix table that maps `pages`, by level, from the root down."""
    entries = page_bytes // 8
    bits = entries.bit_length() - 1
    shift = page_bytes.bit_length() - 1

    def distinct(number: int, *, large: bool = True) -> int:
        """Blocks of 2^number bytes that hold a page."""
        count, last = 0, -1
        for piece in pages:
            if piece.large and not large:
                continue
            first, behind = piece.start >> number, ((piece.end - 1) >> number) + 1
            count += behind - max(first, last)
            last = max(behind, last)
        return count

    found = []
    for level in range(levels, 0, -1):
        span = shift + bits * level
        nodes = distinct(span, large=level > 1) if level < levels else 1
        used = distinct(span - bits, large=level > 1)
        found.append(Level(level, nodes, used, nodes * page_bytes))
    return found
