"""What a processor's `cpuid` leaves say of its caches, TLBs and clock; a pure function of the leaves.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID (leaves 2, 4, 7,
16h, 18h, 1Ah); AMD64 Architecture Programmer's Manual, volume 3, appendix E (leaves 8000_0005h, 8000_0006h,
8000_0019h, 8000_001Dh, 8000_0021h). A hypervisor may answer a leaf with zeros: what that would say is absent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    #: By leaf and sub-leaf: EAX, EBX, ECX, EDX.
    Leaves = Mapping[tuple[int, int], tuple[int, int, int, int]]

INTEL, AMD = "GenuineIntel", "AuthenticAMD"


@dataclass(frozen=True)
class Cache:
    """A cache: `l1i`, `l1d`, `l2` or `l3`."""

    name: str
    size_bytes: int
    ways: int
    sets: int
    source: str


@dataclass(frozen=True)
class Tlb:
    """An array of a TLB: `l1i`, `l1d` or `l2`, for the page sizes `4K`, `2M`, `1G`."""

    name: str
    pages: tuple[str, ...]
    entries: int
    ways: int
    source: str


@dataclass(frozen=True)
class Processor:
    """What the leaves say; an empty list where they say nothing."""

    vendor: str
    brand: str
    family: int
    model: int
    is_virtual: bool
    highest_mhz: int | None
    #: `P core` or `E core` of a hybrid.
    core: str | None
    caches: list[Cache]
    tlbs: list[Tlb]


def understand(leaves: Leaves) -> Processor:
    """What the leaves say of the processor."""
    _, b, c, d = _leaf(leaves, 0)
    vendor = b"".join(word.to_bytes(4, "little") for word in (b, d, c)).decode("ascii", "replace")
    signature, _, features, _ = _leaf(leaves, 1)
    family, model = signature >> 8 & 0xF, signature >> 4 & 0xF
    if family in {6, 15}:
        model += signature >> 12 & 0xF0
    if family == 15:
        family += signature >> 20 & 0xFF
    brand = b"".join(
        word.to_bytes(4, "little") for leaf in range(0x80000002, 0x80000005) for word in _leaf(leaves, leaf)
    )
    highest = _leaf(leaves, 0x16)[1] & 0xFFFF
    is_amd = vendor == AMD
    return Processor(
        vendor,
        " ".join(brand.partition(b"\0")[0].decode("ascii", "replace").split()),
        family,
        model,
        bool(features >> 31 & 1),
        highest or None,
        _core(leaves),
        list(_caches(leaves, 0x8000001D if is_amd else 4)),
        _amd_tlbs(leaves) if is_amd else _intel_tlbs(leaves),
    )


def _core(leaves: Leaves) -> str | None:
    """The type of the core that was asked; only cores of hybrids have one."""
    is_hybrid = _leaf(leaves, 7)[3] >> 15 & 1
    return {0x20: "E core", 0x40: "P core"}.get(_leaf(leaves, 0x1A)[0] >> 24) if is_hybrid else None


def _leaf(leaves: Leaves, leaf: int, subleaf: int = 0) -> tuple[int, int, int, int]:
    return leaves.get((leaf, subleaf), (0, 0, 0, 0))


def _named(leaf: int) -> str:
    """`cpuid leaf 18h`, `cpuid leaf 8000_001Dh`."""
    text = f"{leaf:X}"
    return f"cpuid leaf {text[:4]}_{text[4:]}h" if len(text) == 8 else f"cpuid leaf {text}h"


def _caches(leaves: Leaves, leaf: int) -> Iterator[Cache]:
    """The deterministic cache parameters, which both vendors have."""
    for subleaf in range(64):
        a, b, c, _ = _leaf(leaves, leaf, subleaf)
        kind, level = a & 0x1F, a >> 5 & 7
        if kind == 0:
            return
        name = {(1, 1): "l1d", (2, 1): "l1i", (3, 2): "l2", (3, 3): "l3"}.get((kind, level))
        line, partitions, ways, sets = (b & 0xFFF) + 1, (b >> 12 & 0x3FF) + 1, (b >> 22) + 1, c + 1
        if name is not None:
            yield Cache(name, line * partitions * ways * sets, ways, sets, _named(leaf))


# --- Intel

#: Leaf 2's descriptors of TLBs (table 3-12): TLB, page sizes, entries, ways. Stores' own TLBs are left out.
_DESCRIPTORS: dict[int, list[tuple[str, tuple[str, ...], int, int]]] = {
    0x01: [("l1i", ("4K",), 32, 4)],
    0x03: [("l1d", ("4K",), 64, 4)],
    0x55: [("l1i", ("2M",), 7, 7)],
    0x57: [("l1d", ("4K",), 16, 4)],
    0x59: [("l1d", ("4K",), 16, 16)],
    0x5A: [("l1d", ("2M",), 32, 4)],
    0x61: [("l1i", ("4K",), 48, 48)],
    0x63: [("l1d", ("2M",), 32, 4), ("l1d", ("1G",), 4, 4)],
    0x76: [("l1i", ("2M",), 8, 8)],
    0xB0: [("l1i", ("4K",), 128, 4)],
    0xB1: [("l1i", ("2M",), 8, 4)],
    0xB2: [("l1i", ("4K",), 64, 4)],
    0xB3: [("l1d", ("4K",), 128, 4)],
    0xB4: [("l1d", ("4K",), 256, 4)],
    0xB5: [("l1i", ("4K",), 64, 8)],
    0xB6: [("l1i", ("4K",), 128, 8)],
    0xBA: [("l1d", ("4K",), 64, 4)],
    0xC1: [("l2", ("4K", "2M"), 1024, 8)],
    0xC3: [("l2", ("4K", "2M"), 1536, 6), ("l2", ("1G",), 16, 4)],
    0xC4: [("l1d", ("2M",), 32, 4)],
    0xCA: [("l2", ("4K",), 512, 4)],
}
#: Leaf 18h: the kinds that are modelled, by type and level. 5 is for stores alone.
_KINDS = {(1, 1): "l1d", (4, 1): "l1d", (2, 1): "l1i", (3, 2): "l2", (1, 2): "l2"}
_PAGES = ((0, "4K"), (1, "2M"), (3, "1G"))


def _intel_tlbs(leaves: Leaves) -> list[Tlb]:
    """Leaf 18h where it says anything, else leaf 2."""
    found = [
        Tlb(name, pages, ways * sets, ways, _named(0x18))
        for subleaf in range(_leaf(leaves, 0x18)[0] + 1)
        for name, pages, ways, sets in _parameters(_leaf(leaves, 0x18, subleaf))
    ]
    return _together(found or list(_described(leaves)))


def _parameters(registers: tuple[int, int, int, int]) -> Iterator[tuple[str, tuple[str, ...], int, int]]:
    _, b, c, d = registers
    name = _KINDS.get((d & 0x1F, d >> 5 & 7))
    pages = tuple(size for bit, size in _PAGES if b >> bit & 1)
    ways, sets = b >> 16, c
    if name is not None and pages and ways and sets:
        yield name, pages, ways, sets


def _described(leaves: Leaves) -> Iterator[Tlb]:
    registers = _leaf(leaves, 2)
    for number, register in enumerate(registers):
        if register >> 31:  # it holds no descriptors
            continue
        for place in range(0 if number else 1, 4):  # the lowest byte of EAX is a count
            for name, pages, entries, ways in _DESCRIPTORS.get(register >> 8 * place & 0xFF, []):
                yield Tlb(name, pages, entries, ways, _named(2))


def _together(arrays: list[Tlb]) -> list[Tlb]:
    """Arrays of one TLB that hold the same pages as one: the sets of the first, the ways of all.

    Such a pair has a half for 4 KiB and 2 MiB pages and one for 4 KiB and 1 GiB pages; the second's
    larger pages are left out, as are those of shipped machines.
    """
    found: list[Tlb] = []
    for array in arrays:
        same = next(
            (old for old in found if old.name == array.name and set(old.pages) & set(array.pages)), None
        )
        if same is None:
            found.append(array)
        elif same.entries * array.ways == array.entries * same.ways:
            source = (
                f"{array.source}: {same.entries} entries, and {array.entries} for {' and '.join(array.pages)}"
            )
            both = Tlb(same.name, same.pages, same.entries + array.entries, same.ways + array.ways, source)
            found[found.index(same)] = both
    return found


# --- AMD

#: Associativities of 8000_0006h and 8000_0019h: the least and the most ways; None is full.
_WAYS: dict[int, tuple[int, int] | None] = {
    1: (1, 1),
    2: (2, 2),
    3: (3, 3),
    4: (4, 5),
    5: (6, 7),
    6: (8, 15),
    8: (16, 31),
    0xA: (32, 47),
    0xB: (48, 63),
    0xC: (64, 95),
    0xD: (96, 127),
    0xF: None,
}
#: 8000_0021h, EAX: sizes of L2 TLBs are in multiples of 32.
_TIMES_32 = 14


def _amd_tlbs(leaves: Leaves) -> list[Tlb]:
    """8000_0005h, 8000_0006h and 8000_0019h; the second-level TLB is the data side's, as in `zen4`."""
    found: list[Tlb] = []
    large, small, *_ = _leaf(leaves, 0x80000005)
    for page, register in (("4K", small), ("2M", large)):
        for name, part in (("l1d", register >> 16), ("l1i", register & 0xFFFF)):
            entries, ways = part & 0xFF, part >> 8
            if entries and ways:
                found.append(Tlb(name, (page,), entries, min(ways, entries), _named(0x80000005)))
    huge, second_huge, *_ = _leaf(leaves, 0x80000019)
    found += _of_codes("l1d", "1G", huge >> 16, 1, 0x80000019)
    found += _of_codes("l1i", "1G", huge & 0xFFFF, 1, 0x80000019)
    second_large, second_small, *_ = _leaf(leaves, 0x80000006)
    times = 32 if _leaf(leaves, 0x80000021)[0] >> _TIMES_32 & 1 else 1
    found += _of_codes("l2", "4K", second_small >> 16, times, 0x80000006)
    found += _of_codes("l2", "2M", second_large >> 16, times, 0x80000006)
    found += _of_codes("l2", "1G", second_huge >> 16, times, 0x80000019)
    return _shared(found)


def _of_codes(name: str, page: str, part: int, times: int, leaf: int) -> list[Tlb]:
    """An array whose associativity is a code: of its range the ways that make a power of two of sets."""
    entries, code = (part & 0xFFF) * times, part >> 12
    if not entries or code not in _WAYS:
        return []
    ends = _WAYS[code]
    if ends is None:
        return [Tlb(name, (page,), entries, entries, _named(leaf))]
    fitting = [ways for ways in range(ends[0], ends[1] + 1) if _is_power(entries, ways)]
    return [Tlb(name, (page,), entries, (fitting or [ends[0]])[0], _named(leaf))]


def _is_power(entries: int, ways: int) -> bool:
    """Whether so many entries in so many ways make a power of two of sets."""
    sets, rest = divmod(entries, ways)
    return rest == 0 and sets > 0 and sets & (sets - 1) == 0


def _shared(arrays: list[Tlb]) -> list[Tlb]:
    """Arrays of as many entries as one for all their pages: AMD's are shared, and named once a page size."""
    found: list[Tlb] = []
    for array in arrays:
        same = next((old for old in found if (old.name, old.entries) == (array.name, array.entries)), None)
        if same is None:
            found.append(array)
        else:
            pages = (*same.pages, *array.pages)
            found[found.index(same)] = Tlb(same.name, pages, same.entries, same.ways, same.source)
    return found


#: `CPUID 00000004: EAX-EBX-ECX-EDX [SL 03]` (AIDA64), `0x00000004 0x03: eax=0x… ebx=0x… …` (`cpuid -r`).
_LINES = (
    re.compile(
        r"CPUID ([0-9A-F]{8}): ([0-9A-F]{8})-([0-9A-F]{8})-([0-9A-F]{8})-([0-9A-F]{8})(?: \[SL (\w+)\])?"
    ),
    re.compile(
        r"\s*0x([0-9a-f]{8}) 0x([0-9a-f]{2}): eax=0x([0-9a-f]{8}) ebx=0x([0-9a-f]{8}) "
        r"ecx=0x([0-9a-f]{8}) edx=0x([0-9a-f]{8})"
    ),
)


def read_dump(text: str) -> dict[tuple[int, int], tuple[int, int, int, int]]:
    """The leaves of the first processor of a text as AIDA64 or `cpuid -r` writes it."""
    leaves: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    for line in text.splitlines():
        if match := _LINES[0].match(line):
            leaf, a, b, c, d, subleaf = match.groups()
        elif match := _LINES[1].match(line):
            leaf, subleaf, a, b, c, d = match.groups()
        else:
            continue
        registers = (int(a, 16), int(b, 16), int(c, 16), int(d, 16))
        leaves.setdefault((int(leaf, 16), int(subleaf or "0", 16)), registers)
    return leaves
