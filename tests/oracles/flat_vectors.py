"""Makes the vectors of flat page tables: `python -m tests.oracles.flat_vectors` writes the file anew.

Cases are chosen by hand or at random; their expected results come from tests/oracles/flat_page_tables.py.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from tests.oracles.flat_page_tables import (
    ADDRESS,
    FLAT,
    MAXPHYADDR,
    NX,
    PAT4K,
    PS,
    RW,
    US,
    VECTORS,
    A,
    Case,
    D,
    Fault,
    Kind,
    Load,
    P,
    Page,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """\
# Vectors of flat page tables (docs/flat-page-tables.md). One word a field, fields separated by a blank.
#
# Everywhere: long mode, EFER.NXE = 1, CR0.WP = 1, CR4.SMEP = CR4.SMAP = CR4.PKE = 0, MAXPHYADDR = 40.
# Numbers other than `levels` are hexadecimal. Physical addresses are below 2 GiB. Slot 1ff of the root (of
# the glue, if the root is flat) is free in every case, for whoever must map himself to run one.
#
#   case NAME                  begins a case
#   levels 4|5                 CR4.LA57
#   feature 0|1                CPUID.(7,1):EAX[30]
#   flat 0|1                   CR4.FLAT
#   cr3 VALUE
#   word ADDRESS VALUE         a word of the tables; all others are 0
#   load cr3 VALUE ok|gp       a MOV to CR3 from that state, and whether it raises #GP(0)
#   load cr4.flat 0|1 ok|gp    a MOV to CR4 with CR4.FLAT as given
#   access read|write|execute user|supervisor ADDRESS
#                              an access from that state, caches empty; what follows belongs to it:
#   reads ADDRESS...           the entries that the walk reads, in order
#   page ADDRESS SIZE          what the address translates to, and the page's size in bytes; or
#   fault CODE                 the page fault's error code; or
#   gp                         #GP: not canonical
#   after ADDRESS VALUE        a word that the access has changed; only accesses that succeed have these lines
"""

TABLES, BLOCKS, DATA = 0x1000_0000, 0x1400_0000, 0x2000_0000
LARGE, HUGE = 0x3000_0000, 0x4000_0000
FULL = P | RW | US
KINDS: tuple[Kind, ...] = ("read", "write", "execute")
#: Where the glue is in the block of a flat root: in its upper half.
GLUE_SLOT = 0x101


class Tables:
    """Builds a tree."""

    def __init__(self, name: str, levels: int = 4, *, flat: bool = True, flat_root: bool = False) -> None:
        self._small = itertools.count(TABLES, 4096)
        self._blocks = itertools.count(BLOCKS, 1 << 21)
        self.case = Case(name, levels, feature=True, flat=flat, cr3=0)
        self.flat_root = flat_root
        if flat_root:
            self.case.cr3 = (next(self._blocks) + 4096 * GLUE_SLOT) | FLAT
        else:
            self.case.cr3 = next(self._small)

    @property
    def words(self) -> dict[int, int]:
        return self.case.words

    @property
    def glue(self) -> int:
        """The root page."""
        return self.case.cr3 & ADDRESS

    def table(self, *, flat: bool) -> int:
        """A new table."""
        return next(self._blocks if flat else self._small)

    def entries(self, address: int, level: int) -> list[int]:
        """Where the entries for an address are that are there, down to `level`'s."""
        return [at for at, found in self._path(address) if found >= level]

    def _path(self, address: int) -> Iterator[tuple[int, int]]:
        base, level, width = self.case.root(address)
        while True:
            at = base + 8 * (address >> (3 + 9 * level) & ((1 << width) - 1))
            yield at, level
            entry = self.words.get(at, 0)
            if not entry & P or entry & PS or level == 1:
                return
            flat = self.case.flat and bool(entry & FLAT)
            base, level, width = entry & ADDRESS, level - (2 if flat else 1), 18 if flat else 9

    def map(
        self,
        address: int,
        frame: int,
        *,
        size_level: int = 1,
        flat: tuple[int, ...] = (),
        leaf: int = FULL,
        inner: int = FULL,
    ) -> int:
        """Maps a page, with new tables where there are none; flat ones below the levels in `flat`.

        Returns:
            Where the entry that maps it is.
        """
        if self.flat_root and not address >> (11 + 9 * self.case.levels) & 1:
            slot = address >> (3 + 9 * self.case.levels) & 511
            self.words[self.glue + 8 * slot] = (self.glue & ~0x1FF000) + 4096 * slot | FULL
        for at, level in self._path(address):
            if self.words.get(at, 0) & P:
                continue
            if level <= size_level:
                self.words[at] = frame | leaf | (PS if level > 1 else 0)
                return at
            self.words[at] = self.table(flat=level in flat) | inner | (FLAT if level in flat else 0)
        raise AssertionError(f"{address:#x} is mapped already")

    def access(self, address: int, kind: Kind = "read", *, user: bool = True) -> Tables:
        """Adds an access."""
        self.case.accesses.append(self.case.translate(address, kind, user=user))
        return self

    def every_access(self, address: int) -> Tables:
        """Adds accesses of every kind."""
        for kind, user in itertools.product(KINDS, (True, False)):
            self.access(address, kind, user=user)
        return self


#: Where entries of these levels point to flat tables, and whether the root is flat; by name, with the levels.
LAYOUTS: dict[str, tuple[int, bool, tuple[int, ...]]] = {
    "off": (4, False, ()),
    "l3l2": (4, False, (4,)),
    "l4l3": (4, True, ()),
    "l2l1": (4, False, (3,)),
    "l4l3+l2l1": (4, True, (3,)),
    "off5": (5, False, ()),
    "l3l2-5": (5, False, (4,)),
    "l4l3-5": (5, False, (5,)),
    "l2l1-5": (5, False, (3,)),
    "l4l3+l2l1-5": (5, False, (5, 3)),
    "l5l4": (5, True, ()),
    "l5l4+l3l2": (5, True, (4,)),
    "l5l4+l2l1": (5, True, (3,)),
}
#: Indices that differ in every level, none of them symmetric; the first is below 256.
INDICES = (0x0A5, 0x173, 0x0E9, 0x1C6, 0x12D)


def address(levels: int, *indices: int, offset: int = 0) -> int:
    """The canonical address with these indices, root first; missing ones are 0."""
    value = 0
    for index in (*indices, *[0] * (levels - len(indices))):
        value = value << 9 | index
    value = value << 12 | offset
    bits = 12 + 9 * levels
    return value | (((1 << 64) - (1 << bits)) if value >> (bits - 1) else 0)


def layouts() -> Iterator[Case]:
    """Every layout: pages of every size, both halves of the address space, neighbours in every level."""
    for name, (levels, flat_root, flat) in LAYOUTS.items():
        first = INDICES[:levels]
        for half, top in (("low", 0), ("high", 0x100)):
            tables = Tables(f"{name}-{half}", levels, flat_root=flat_root)
            place = (first[0] | top, *first[1:])
            tables.map(address(levels, *place), DATA, flat=flat)
            tables.every_access(address(levels, *place, offset=0xBA8))
            for depth in range(levels):
                near = (*place[:depth], place[depth] ^ 1, *place[depth + 1 :])
                tables.access(address(levels, *near))  # not present
                tables.map(address(levels, *near), DATA + 4096 * (depth + 1), flat=flat)
                tables.access(address(levels, *near, offset=8), "write")
            yield tables.case
        for size_level in (2, 3):
            tables = Tables(f"{name}-page{size_level}", levels, flat_root=flat_root)
            inner = [level for level in flat if level != size_level + 1 and level != size_level]
            where = address(levels, *first)
            tables.map(where, LARGE if size_level == 2 else HUGE, size_level=size_level, flat=tuple(inner))
            size = 1 << (3 + 9 * size_level)
            tables.every_access((where & -size) + 8 + (size >> 1))
            tables.access((where & -size) + size - 8).access((where & -size) + size)
            yield tables.case
        tables = Tables(f"{name}-ends", levels, flat_root=flat_root)
        bits = 12 + 9 * levels
        edges = [0, (1 << (bits - 1)) - 4096, (1 << 64) - (1 << (bits - 1))]
        for number, edge in enumerate(edges):
            tables.map(edge, DATA + 4096 * number, flat=flat)
        for edge in edges:
            tables.access(edge).access(edge + 4088, "write")
        tables.access(1 << (bits - 1)).access((1 << 64) - (1 << (bits - 1)) - 8)
        yield tables.case


def large_pages_below_flat() -> Iterator[Case]:
    """Leaves inside flat tables, and flat and ordinary tables side by side."""
    tables = Tables("l3l2-large-inside")
    tables.map(address(4, 3, 5, 7), LARGE, size_level=2, flat=(4,))
    tables.map(address(4, 3, 5, 8, 9), DATA, flat=(4,))
    tables.access(address(4, 3, 5, 7, 11)).access(address(4, 3, 5, 8, 9)).access(address(4, 3, 6, 7))
    yield tables.case
    tables = Tables("l4l3-huge-inside", flat_root=True)
    tables.map(address(4, 3, 5), HUGE, size_level=3)
    tables.access(address(4, 3, 5, 1, 1)).access(address(4, 3, 6))
    yield tables.case
    tables = Tables("l2l1-pat")
    at = tables.map(address(4, 3, 5, 7, 9), DATA, flat=(3,), leaf=FULL | PAT4K)
    assert tables.words[at] & PAT4K
    tables.every_access(address(4, 3, 5, 7, 9, offset=16))
    yield tables.case
    tables = Tables("mixed")
    for slot, flat in enumerate([(), (4,), (3,), ()]):
        tables.map(address(4, slot, 1, 2, 3), DATA + 4096 * slot, flat=flat)
        tables.access(address(4, slot, 1, 2, 3)).access(address(4, slot, 1, 2, 4))
    tables.map(address(4, 0, 2, 2, 3), DATA + 0x8000, flat=(3,))
    tables.access(address(4, 0, 2, 2, 3)).access(address(4, 0, 1, 2, 3), "write")
    yield tables.case
    tables = Tables("fall-back-under-flat-root", flat_root=True)
    for slot, flat in enumerate([(), (3,), ()]):
        tables.map(address(4, 7, slot, 2, 3), DATA + 4096 * slot, flat=flat)
        tables.access(address(4, 7, slot, 2, 3), "write").access(address(4, 7, slot, 3, 3))
    yield tables.case


def flat_bit() -> Iterator[Case]:
    """FLAT where it is ignored, misaligned, or reserved."""
    for level in (4, 3, 2, 1):
        tables = Tables(f"flat-ignored-without-cr4-{level}", flat=False)
        tables.map(address(4, 3, 5, 7, 9), DATA)
        tables.words[tables.entries(address(4, 3, 5, 7, 9), level)[-1]] |= FLAT
        tables.every_access(address(4, 3, 5, 7, 9))
        yield tables.case
    tables = Tables("flat-ignored-in-level-1")
    tables.map(address(4, 3, 5, 7, 9), DATA, leaf=FULL | FLAT)
    tables.map(address(4, 3, 5, 7, 10), DATA + 0x1000, leaf=FULL | FLAT | PAT4K)
    tables.every_access(address(4, 3, 5, 7, 9)).access(address(4, 3, 5, 7, 10))
    yield tables.case
    tables = Tables("flat-in-2mb-page")
    tables.map(address(4, 3, 5, 7), LARGE, size_level=2, leaf=FULL | FLAT)
    tables.every_access(address(4, 3, 5, 7, 9))
    yield tables.case
    tables = Tables("flat-with-ps-ignored-without-cr4", flat=False)
    tables.map(address(4, 3, 5), HUGE, size_level=3, leaf=FULL | FLAT)
    tables.every_access(address(4, 3, 5, 7, 9))
    yield tables.case
    for bit in (13, 20):
        tables = Tables(f"flat-level-2-misaligned-bit{bit}")
        tables.map(address(4, 3, 5, 7, 9), DATA)
        tables.words[tables.entries(address(4, 3, 5, 7, 9), 2)[-1]] = LARGE | 1 << bit | FULL | FLAT
        tables.every_access(address(4, 3, 5, 7, 9))
        yield tables.case
    tables = Tables("flat-level-2-pat")
    tables.map(address(4, 3, 5, 7, 9), DATA)
    tables.words[tables.entries(address(4, 3, 5, 7, 9), 2)[-1]] = LARGE | 1 << 12 | FULL | FLAT
    tables.every_access(address(4, 3, 5, 7, 9, offset=0x80))
    yield tables.case


def reserved() -> Iterator[Case]:
    """Bits that must not be set."""
    for levels, level in ((4, 4), (4, 3), (5, 5), (5, 4), (5, 3)):
        where = address(levels, *INDICES[:levels])
        for bit in (12, 16, 20):
            tables = Tables(f"misaligned-{levels}-{level}-bit{bit}", levels)
            tables.map(where, DATA, flat=(level,))
            tables.words[tables.entries(where, level)[-1]] |= 1 << bit
            tables.every_access(where)
            yield tables.case
        tables = Tables(f"flat-with-ps-{levels}-{level}", levels)
        tables.map(where, DATA, flat=(level,))
        tables.words[tables.entries(where, level)[-1]] |= PS
        tables.every_access(where)
        yield tables.case
    where = address(4, 3, 5, 7, 9)
    for bit in (MAXPHYADDR, 51):
        for level in (4, 3, 2, 1):
            tables = Tables(f"beyond-maxphyaddr-bit{bit}-level{level}")
            tables.map(where, DATA, flat=(3,) if level > 2 else ())
            tables.words[tables.entries(where, level)[-1]] |= 1 << bit
            tables.every_access(where)
            yield tables.case
    for bit in (13, 20):
        tables = Tables(f"2mb-page-misaligned-bit{bit}")
        tables.map(where, LARGE | 1 << bit, size_level=2)
        tables.every_access(where)
        yield tables.case
    tables = Tables("ps-in-level-4")
    tables.map(address(4, 3, 5, 7, 9), DATA)
    tables.words[tables.entries(address(4, 3), 4)[-1]] |= PS
    tables.every_access(address(4, 3, 5, 7, 9))
    yield tables.case
    tables = Tables("1gb-page-misaligned")
    tables.map(address(4, 3, 5), HUGE | 1 << 13, size_level=3)
    tables.every_access(address(4, 3, 5, 7, 9))
    yield tables.case


def rights() -> Iterator[Case]:
    """Every right, withdrawn in every entry of every layout of four levels."""
    for name in ("off", "l3l2", "l4l3", "l2l1", "l4l3+l2l1"):
        levels, flat_root, flat = LAYOUTS[name]
        where = address(levels, *INDICES[:levels], offset=0x40)
        plain = Tables("", levels, flat_root=flat_root)
        plain.map(where, DATA, flat=flat)
        for number, _ in enumerate(plain.entries(where, 1)):
            for what, clear, sets in (("nx", 0, NX), ("ro", RW, 0), ("su", US, 0), ("all", RW | US, NX)):
                tables = Tables(f"rights-{name}-{what}-{number}", levels, flat_root=flat_root)
                tables.map(where, DATA, flat=flat)
                at = tables.entries(where, 1)[number]
                tables.words[at] = tables.words[at] & ~clear | sets
                tables.every_access(where)
                yield tables.case
        if flat_root:
            tables = Tables(f"rights-{name}-glue", levels, flat_root=True)
            tables.map(where, DATA, flat=flat)
            slot = tables.glue + 8 * INDICES[0]
            tables.words[slot] = tables.words[slot] & ~(RW | US) | NX  # of no consequence
            tables.every_access(where)
            yield tables.case
            del tables.words[slot]
            tables = Tables(f"rights-{name}-no-glue", levels, flat_root=True)
            tables.map(where, DATA, flat=flat)
            del tables.words[tables.glue + 8 * INDICES[0]]
            tables.every_access(where)
            yield tables.case
    tables = Tables("accessed-already")
    where = address(4, 3, 5, 7, 9)
    tables.map(where, DATA, flat=(4,), inner=FULL | A, leaf=FULL | A)
    tables.map(where + 4096, DATA + 4096, leaf=FULL | A | D)
    for kind in KINDS:
        tables.access(where, kind).access(where + 4096, kind)
    yield tables.case


def legacy() -> Iterator[Case]:
    """The glue of a flat root as an ordinary root, as a processor without the extension reads it."""
    for levels, flat, feature in itertools.product((4, 5), (False, True), (False, True)):
        if flat and not feature:
            continue
        tables = Tables(f"glue-as-root-{levels}-{int(flat)}{int(feature)}", levels, flat_root=True)
        where = address(levels, *INDICES[:levels])
        high = address(levels, INDICES[0] | 0x100, *INDICES[1:levels])
        tables.map(where, DATA)
        tables.map(high, DATA + 4096)
        tables.case.cr3 &= ~FLAT
        tables.case.flat, tables.case.feature = flat, feature
        tables.every_access(where).access(high, "write").access(where ^ 1 << 21)
        yield tables.case


def recursion() -> Iterator[Case]:
    """Each entry of the path of a page, reached through a slot that points to the root itself."""
    for name, (levels, flat_root, flat) in LAYOUTS.items():
        slot = 0x1ED if flat_root else 0x0ED
        tables = Tables(f"recursion-{name}", levels, flat_root=flat_root)
        where = INDICES[:levels]
        tables.map(address(levels, *where), DATA, flat=flat)
        tables.words[tables.glue + 8 * slot] = tables.glue | FULL
        for level in range(1, levels + 1):
            indices = (*[slot] * level, *where[: levels - level])
            tables.access(address(levels, *indices, offset=8 * where[levels - level]))
        yield tables.case


def controls() -> Iterator[Case]:
    """What may be loaded into CR3 and CR4."""
    for levels, flat_root in itertools.product((4, 5), (False, True)):
        tables = Tables(f"controls-{levels}-{'flat' if flat_root else 'plain'}", levels, flat_root=flat_root)
        plain, flat = tables.glue, BLOCKS + 4096 * GLUE_SLOT | FLAT
        tables.case.loads = [
            Load("cr3", plain, faults=False),
            Load("cr3", flat, faults=False),
            Load("cr3", flat & ~(1 << 20), faults=True),
            Load("cr3", (flat & ~FLAT) | 1 << 51, faults=True),
            Load("cr3", flat | 1 << 53, faults=True),
            Load("cr4.flat", 1, faults=False),
            Load("cr4.flat", 0, faults=flat_root),
        ]
        yield tables.case
        tables = Tables(f"controls-{levels}-{'off' if flat_root else 'none'}", levels, flat=False)
        tables.case.feature = flat_root
        tables.case.loads = [
            Load("cr3", plain & ADDRESS, faults=False),
            Load("cr3", flat, faults=True),
            Load("cr3", TABLES | FLAT, faults=True),
            Load("cr4.flat", 0, faults=False),
            Load("cr4.flat", 1, faults=not flat_root),
        ]
        yield tables.case


def scattered(count: int, seed: int) -> Iterator[Case]:
    """Trees with random shapes, rights and mistakes."""
    source = random.Random(seed)
    for number in range(count):
        levels = source.choice((4, 4, 5))
        tables = Tables(f"random-{number:02}", levels, flat=source.random() < 0.9)
        if tables.case.flat and source.random() < 0.5:
            tables = Tables(f"random-{number:02}", levels, flat_root=True)
        addresses = []
        for page in range(source.randint(3, 8)):
            # Few different indices, so that tables are shared.
            indices = [source.choice((0, 1, 0xFF, 0x100, 0x1FE)) for _ in range(levels)]
            where = address(levels, *indices)
            size_level = source.choice((1, 1, 1, 2, 3))
            flat = tuple(level for level in (5, 4, 3) if level > size_level and source.random() < 0.4)
            flags = [source.choice((FULL, FULL, FULL, FULL & ~RW, FULL & ~US, FULL | NX)) for _ in range(2)]
            frame = {1: DATA + 4096 * page, 2: LARGE + (page << 21), 3: HUGE}[size_level]
            try:
                tables.map(where, frame, size_level=size_level, flat=flat, leaf=flags[0], inner=flags[1])
            except AssertionError:
                continue
            addresses.append(where)
        for _ in range(source.choice((0, 0, 1, 2))):
            at = source.choice(sorted(tables.words))
            tables.words[at] ^= 1 << source.choice((0, 1, 2, 5, 6, 7, 9, 10, 11, 52, 52, 53, 58, 59, 62, 63))
        for where in addresses:
            # Not where a mistake has made a page of something that is not data.
            near = where + source.choice((0, 0, 1 << 12, 1 << 21)) + 8 * source.randrange(512)
            kind: Kind = source.choice(("read", "read", "write", "execute"))
            seen = tables.case.translate(near, kind, user=source.random() < 0.7)
            if isinstance(seen.result, Page) and not DATA <= seen.result.address < HUGE + (1 << 30):
                continue
            tables.case.accesses.append(seen)
        yield tables.case


def cases() -> list[Case]:
    """All of them, with the results that their finished tables give."""
    all_cases = [
        *layouts(),
        *large_pages_below_flat(),
        *flat_bit(),
        *reserved(),
        *rights(),
        *legacy(),
        *recursion(),
        *controls(),
        *scattered(60, seed=1),
    ]
    for case in all_cases:
        case.accesses = [case.translate(old.address, old.kind, user=old.user) for old in case.accesses]
    return all_cases


def text(all_cases: list[Case]) -> str:
    """The file."""
    lines = [HEAD.rstrip("\n")]
    for case in all_cases:
        lines += [
            "",
            f"case {case.name}",
            f"levels {case.levels}",
            f"feature {case.feature:d}",
            f"flat {case.flat:d}",
            f"cr3 {case.cr3:x}",
            *(f"word {at:x} {word:x}" for at, word in sorted(case.words.items())),
            *(f"load {load.register} {load.value:x} {'gp' if load.faults else 'ok'}" for load in case.loads),
        ]
        for access in case.accesses:
            mode = "user" if access.user else "supervisor"
            lines.append(f"access {access.kind} {mode} {access.address:x}")
            if access.reads:
                lines.append("reads " + " ".join(f"{at:x}" for at in access.reads))
            match access.result:
                case Page(found, size):
                    lines.append(f"page {found:x} {size:x}")
                case Fault(None):
                    lines.append("gp")
                case Fault(code):
                    lines.append(f"fault {code:x}")
            lines += [f"after {at:x} {word:x}" for at, word in sorted(access.after.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    VECTORS.write_text(text(cases()), encoding="ascii")
