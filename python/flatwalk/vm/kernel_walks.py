"""Which page walks come from the kernel's own addresses, and what a level less would save of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flatwalk import units
from flatwalk.definitions import settings
from flatwalk.errors import FlatwalkError
from flatwalk.terminal import output
from flatwalk.vm import bench, counting, workloads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

#: Whose TLB and page-walk caches are taken.
MACHINE = "skylake-server"
PROGRAMS = "programs"
#: Where the kernel's addresses begin and end, by levels (Documentation/arch/x86/x86_64/mm.rst).
_REGIONS = {
    4: {
        "direct map": (0xFFFF_8880_0000_0000, 0xFFFF_C880_0000_0000),
        "vmalloc": (0xFFFF_C900_0000_0000, 0xFFFF_E900_0000_0000),
        "memory map": (0xFFFF_EA00_0000_0000, 0xFFFF_EB00_0000_0000),
    },
    5: {
        "direct map": (0xFF11_0000_0000_0000, 0xFF91_0000_0000_0000),
        "vmalloc": (0xFFA0_0000_0000_0000, 0xFFD2_0000_0000_0000),
        "memory map": (0xFFD4_0000_0000_0000, 0xFFD6_0000_0000_0000),
    },
}
_OF_BOTH = {
    "entry area": (0xFFFF_FE00_0000_0000, 0xFFFF_FE80_0000_0000),
    "kernel image": (0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_C000_0000),
}


@dataclass(frozen=True)
class Pages:
    """Pages of one size in one region, whose walks read as many entries if nothing is cached."""

    region: str
    page_bytes: int
    cold_entries: int
    #: Of the whole phase: accesses, pages accessed, and walks.
    accesses: int
    pages: int
    walks: int
    #: Entries that these walks read, and would read with levels 4 and 3 of the kernel's half in one table.
    entries: int
    folded_entries: int

    def __add__(self, other: Pages) -> Pages:
        """Both; pages that both access are not told apart."""
        return dataclasses.replace(
            self,
            accesses=self.accesses + other.accesses,
            pages=self.pages + other.pages,
            walks=self.walks + other.walks,
            entries=self.entries + other.entries,
            folded_entries=self.folded_entries + other.folded_entries,
        )


@dataclass
class Phase:
    """What the plugin saw between two markers."""

    #: Instructions of programs and of the kernel.
    instructions: int = 0
    #: Accesses of which it does not know the page.
    unknown: int = 0
    pages: list[Pages] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """What was counted of a program's running phase, with everything that ran in its guest meanwhile."""

    program: str
    levels: int
    instructions: int
    pages: Sequence[Pages]

    @property
    def programs(self) -> Pages:
        """All pages of programs."""
        return _sum(PROGRAMS, (pages for pages in self.pages if pages.region == PROGRAMS))

    @property
    def kernel(self) -> Pages:
        """All pages of the kernel's."""
        return _sum("all of the kernel's", (pages for pages in self.pages if pages.region != PROGRAMS))

    @property
    def every(self) -> Pages:
        """All pages."""
        return _sum("all", self.pages)

    @property
    def saved(self) -> float:
        """The share of all entries read that folding levels 4 and 3 of the kernel's half saves."""
        every = self.every
        return (every.entries - every.folded_entries) / every.entries if every.entries else 0.0


def _sum(name: str, pages: Iterable[Pages]) -> Pages:
    return sum(pages, Pages(name, 0, 0, 0, 0, 0, 0, 0))


def region(gib: int, levels: int) -> str:
    """The region that GiB number `gib` of the address space belongs to; 0 stands for all of programs."""
    if not gib:
        return PROGRAMS
    for name, (begin, end) in (_REGIONS[levels] | _OF_BOTH).items():
        if begin <= gib << 30 < end:
            return name
    return "other"


def read(text: str, levels: int) -> list[Phase]:
    """What the plugin wrote."""
    phases: list[Phase] = []
    for line in text.splitlines():
        match line.split():
            case [_, "began", _]:
                phases.append(Phase())
            case [_, "instructions", _, number]:
                phases[-1].instructions += int(number)
            case [_, "unknown", number]:
                phases[-1].unknown = int(number)
            case [_, "pages", gib, shift, entries, *counts]:
                accesses, pages, walks, warm, folded = map(int, counts)
                where = region(int(gib, 16), levels)
                phases[-1].pages.append(
                    Pages(where, 1 << int(shift), int(entries), accesses, pages, walks, warm, folded)
                )
    return phases


def merged(phases: Iterable[Phase]) -> list[Pages]:
    """Pages of a kind together, those of programs first."""
    found: dict[tuple[str, int, int], Pages] = {}
    for phase in phases:
        for pages in phase.pages:
            kind = (pages.region, pages.page_bytes, pages.cold_entries)
            found[kind] = found[kind] + pages if kind in found else pages
    order = [PROGRAMS, *_REGIONS[4], *_OF_BOTH, "other"]
    return sorted(found.values(), key=lambda pages: (order.index(pages.region), pages.page_bytes))


def caches(machine: dict[str, Any]) -> list[str]:
    """The plugin's arguments for a machine's TLB of the second level, and its page-walk caches.

    Raises:
        FlatwalkError: If the machine has no such TLB for each size, or page-walk caches of another kind.
    """
    sizes = {size: tlb for tlb in machine["tlb"]["l2"] for size in tlb["pages"]}
    pwc = machine["pwc"]
    if sizes.keys() != {"4K", "2M", "1G"} or sizes["4K"] is not sizes["2M"] or pwc["kind"] != "split":
        raise FlatwalkError(
            "the plugin has an L2 TLB for 4 KiB and 2 MiB, another for 1 GiB, and split page-walk caches",
            where=machine["name"],
            remedy=f"take {MACHINE}",
        )
    return [
        f"tlb={sizes['4K']['entries']}/{sizes['4K']['ways']}",
        f"huge={sizes['1G']['entries']}/{sizes['1G']['ways']}",
        "pwc=" + "/".join(str(pwc["entries"][level]) for level in ("L5", "L4", "L3", "L2")),
    ]


def measure(
    names: Iterable[str] = workloads.EVERY,
    levels: Sequence[int] = (4,),
    *,
    works: dict[str, workloads.Work] | None = None,
    source: Path | None = None,
) -> list[Row]:
    """Runs each program, with the client that asks it for work, in a guest whose tables are not flat.

    Args:
        names: Programs, of `workloads.EVERY`.
        levels: Of page tables.
        works: For programs that do not do what `workloads.ATTENDED` says.
        source: The user's own trees, as built by `vm build --source`.

    Raises:
        UsageError: If there is no such program.
        FlatwalkError: If QEMU or Linux is not built, a program cannot be installed, or a guest fails.
    """
    arguments = caches(settings.machine(MACHINE))
    rows = []
    for name in workloads.known(names, workloads.EVERY):
        with workloads.prepared(name, (works or {}).get(name)) as command:
            for count in levels:
                machine = workloads.machine("off", count)
                text, _ = counting.watched(machine, command, "kernel_walks", arguments, source=source)
                running = read(text, count)[bench.RUNNING : -2]
                unknown = sum(phase.unknown for phase in running)
                if not running or unknown:
                    raise FlatwalkError(
                        f"{name} has not marked its phases, or {unknown} accesses were to unknown pages",
                        remedy="this is a bug of flatwalk; please report it",
                    )
                row = Row(name, count, sum(phase.instructions for phase in running), merged(running))
                output.note(
                    f"{name}, {count} levels: {row.kernel.walks} of {row.every.walks} walks are the kernel's"
                )
                rows.append(row)
    return rows


def table(rows: Sequence[Row]) -> str:
    """Walks by what they translate, and the entries that they read."""

    def line(row: Row, pages: Pages) -> list[str]:
        counts = (pages.entries, pages.folded_entries)
        return [
            *(row.program, str(row.levels), pages.region),
            units.size(pages.page_bytes) if pages.page_bytes else "–",
            f"{1000 * pages.accesses / row.instructions:.0f}",
            str(pages.pages),
            f"{1e6 * pages.walks / row.instructions:.1f}",
            str(pages.cold_entries) if pages.cold_entries else "–",
            *(f"{count / pages.walks:.3f}" if pages.walks else "–" for count in counts),
        ]

    lines = [line(row, pages) for row in rows for pages in (*row.pages, row.kernel, row.every)]
    heads = (
        *("program", "levels", "addresses", "page", "accesses per 1000", "pages", "walks per million"),
        *("entries if cold", "entries per walk", "folded"),
    )
    return output.markdown(heads, 1, lines)
