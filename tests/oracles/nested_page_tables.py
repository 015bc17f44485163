"""Two-dimensional walks: a guest's page tables over nested ones (SVM), by docs/flat-page-tables.md alone.

Both tables are cases of tests/oracles/flat_page_tables.py, whose walker walks either. `Guest.run` says what a
machine does that runs a guest of one or two instructions and then forgets all translations.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from tests.oracles.flat_page_tables import (
    FLAT,
    MAXPHYADDR,
    NX,
    RW,
    US,
    A,
    Case,
    D,
    Fault,
    Kind,
    P,
    Page,
)
from tests.oracles.flat_vectors import DATA, KINDS, LAYOUTS, TABLES, Tables, address

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bits of the first word about a nested page fault: which guest-physical address had no translation.
FINAL, TABLE = 1 << 32, 1 << 33
NPF, PAGE_FAULT, VMMCALL, INVALID = 0x400, 0x4E, 0x81, 0xFFFF_FFFF
#: nested_ctl.
ENABLED, NESTED_FLAT = 1 << 0, 1 << 29
#: Bits of EFER, and of CR0.
SVME, NXE, LME, LMA = 1 << 12, 1 << 11, 1 << 8, 1 << 10
PE, ET, WP, PG = 1 << 0, 1 << 4, 1 << 16, 1 << 31
#: Guests' memory: the hypervisor puts it here.
MEMORY = 0x4000_0000
#: Where the guest's instructions are, in its own addresses, and the words of them.
CODE = address(4, 0x0C3, 0x05A, 0x11E, 0x0F1, offset=0x10)
LOAD, STORE, STOP = 0xD9_010F_078B48, 0xD9_010F_078948, 0xD9_010F
#: Where the page is that a guest reads, writes or executes.
TARGET = address(4, 0x0A5, 0x173, 0x0E9, 0x1C6, offset=0xBA8)
#: Its guest-physical address: with other indices in every level, as far as MAXPHYADDR goes.
GUEST_DATA = 0xB3_4A56_7000
LARGE_DATA = 0xB3_4A40_0000
STORED = 0x5A5A_0000_1234_5678


@dataclass(frozen=True)
class Walk:
    """A walk of one of the two tables."""

    stage: Literal["guest", "nested"]
    address: int
    kind: Kind
    #: Addresses of the entries read: guest-physical in the guest's tables.
    reads: tuple[int, ...]
    #: None if the nested tables have no translation for the next entry.
    result: Page | Fault | None


@dataclass(frozen=True)
class Exit:
    """How a guest ended."""

    code: int
    info: tuple[int, int] = (0, 0)
    #: RAX, for guests that ended by themselves.
    rax: int = 0


@dataclass
class Run:
    """What comes of a guest."""

    exit: Exit
    walks: list[Walk] = field(default_factory=list)
    #: Words that the run has changed, by physical address.
    after: dict[int, int] = field(default_factory=dict)


@dataclass
class Guest:
    """A guest, its hypervisor's tables, and what it does: it fetches at, loads from or stores to TARGET."""

    name: str
    kind: Kind
    #: Its own tables, in guest-physical memory.
    own: Case
    nested: Case
    #: CR4.FLAT of the hypervisor.
    host_flat: bool = False
    #: What nested_ctl says of flat tables.
    nested_flat: bool = True
    #: Where the nested tables put the guest's pages, whatever they say after an entry was spoilt.
    frames: dict[int, int] = field(default_factory=dict)
    #: What lies at guest-physical addresses and is no table.
    contents: dict[int, int] = field(default_factory=dict)
    #: What it has in RAX.
    rax: int = STORED
    cpl: int = 0
    #: The VMCB's word at 014h.
    intercepts: int = 0
    #: Where it begins, unless it fetches at TARGET.
    code: int = CODE
    #: `run` knows guests in long mode only.
    efer: int = SVME | NXE | LME | LMA
    cr0: int = PE | ET | WP | PG

    def place(self, guest_physical: int) -> int:
        """Where the hypervisor has put a byte."""
        return self.frames[guest_physical >> 12] + guest_physical % 4096

    def words(self) -> dict[int, int]:
        """Everything in physical memory."""
        own = {**self.own.words, **self.contents}
        return {**self.nested.words, **{self.place(at): word for at, word in own.items()}}

    def run(self, *, feature: bool = True) -> Run:
        """What a processor does, by the specification.

        Args:
            feature: Whether the processor has flat nested tables.
        """
        flat = feature and self.nested_flat
        root = self.nested.cr3
        if root >> MAXPHYADDR << MAXPHYADDR & ~(FLAT if flat else 0) or (root & FLAT and not root & 1 << 20):
            return Run(Exit(INVALID))
        return _Machine(self, replace(self.nested, flat=flat)).run()


class _LeftError(Exception):
    """The guest has been left."""

    def __init__(self, how: Exit) -> None:
        super().__init__(how)
        self.how = how


class _Machine:
    """A processor that knows translations of guest-physical pages until the guest ends."""

    def __init__(self, guest: Guest, nested: Case) -> None:
        self._guest = guest
        self._memory = guest.words()
        self._first = dict(self._memory)
        self._nested = replace(nested, words={at: self._memory[at] for at in nested.words})
        self._own = replace(guest.own, words=dict(guest.own.words))
        self._known: dict[int, set[Kind]] = {}
        self._walks: list[Walk] = []

    def run(self) -> Run:
        kind = self._guest.kind
        try:
            self._access(TARGET if kind == "execute" else self._guest.code, "execute")
            if kind != "execute":
                at = self._access(TARGET, kind)
                if kind == "write":
                    self._memory[self._guest.place(at)] = STORED
            rax = self._guest.contents[self._data()] if kind == "read" else STORED
            how = Exit(VMMCALL, rax=rax)
        except _LeftError as left:
            how = left.how
        changed = {at: word for at, word in self._memory.items() if word != self._first[at]}
        return Run(how, self._walks, changed)

    def _data(self) -> int:
        access = self._own.translate(TARGET, "read", user=False)
        assert isinstance(access.result, Page)
        return access.result.address

    def _access(self, where: int, kind: Kind) -> int:
        """Where an access goes, guest-physical."""
        access = self._own.translate(where, kind, user=False)
        for number, at in enumerate(access.reads):
            try:
                # The processor sets A there.
                self._translate(at, "write", TABLE)
            except _LeftError:
                self._walks.append(Walk("guest", where, kind, access.reads[:number], None))
                self._set(self._own.words, {at: self._own.words[at] | A for at in access.reads[:number]})
                raise
        walk = Walk("guest", where, kind, access.reads, access.result)
        if isinstance(access.result, Fault):
            self._walks.append(walk)
            assert access.result.code is not None
            self._set(self._own.words, {at: self._own.words[at] | A for at in access.reads[:-1]})
            raise _LeftError(Exit(PAGE_FAULT, (access.result.code, where)))
        self._set(self._own.words, access.after)
        try:
            self._translate(access.result.address, kind, FINAL)
        finally:
            self._walks.append(walk)
        return access.result.address

    def _set(self, words: dict[int, int], changed: dict[int, int]) -> None:
        words.update(changed)
        for at, word in changed.items():
            self._memory[self._guest.place(at)] = word

    def _translate(self, guest_physical: int, kind: Kind, which: int) -> None:
        """A walk of the nested tables, unless the page is known: always one of user mode."""
        known = self._known.setdefault(guest_physical >> 12, set())
        if kind in known:
            return
        access = self._nested.translate(guest_physical, kind, user=True)
        self._walks.append(Walk("nested", guest_physical, kind, access.reads, access.result))
        if isinstance(access.result, Fault):
            assert access.result.code is not None
            above = {at: self._nested.words[at] | A for at in access.reads[:-1]}
            self._nested.words.update(above)
            self._memory.update(above)
            raise _LeftError(Exit(NPF, (access.result.code | which, guest_physical)))
        self._nested.words.update(access.after)
        self._memory.update(access.after)
        is_dirty = bool(self._nested.words[access.reads[-1]] & D)
        for other in ("read", "write", "execute"):
            allowed = self._nested.translate(guest_physical, other, user=True).result
            if isinstance(allowed, Page) and (other != "write" or is_dirty):
                known.add(other)


def _frame(guest_physical: int) -> int:
    """Where the hypervisor puts a page: neighbours in a block of 2 MiB are none in memory."""
    # The page that the guest accesses is far away from the rest of its memory.
    low = guest_physical - TABLES if guest_physical < 1 << 32 else 0x2000_0000 | guest_physical & 0x00FF_FFFF
    return MEMORY + (low ^ 0x0AA0_5000)


def build(
    name: str,
    own_layout: str,
    nested_layout: str,
    kind: Kind = "execute",
    *,
    own_large: bool = False,
    nested_large: bool = False,
    code: int = CODE,
) -> Guest:
    """A guest.

    Args:
        name: Its name.
        own_layout: Of its tables, a key of LAYOUTS.
        nested_layout: Of the nested ones.
        kind: What it does to its page.
        own_large: Whether that lies in a page of 2 MiB of its own tables.
        nested_large: Whether all of its memory is nested pages of 2 MiB.
        code: Where its instructions are, in its own addresses.
    """
    own = _tables(own_layout)
    below_own = LAYOUTS[own_layout][2]
    own.map(code & -4096, DATA, flat=below_own)
    data = LARGE_DATA if own_large else GUEST_DATA
    own.map(
        TARGET & (-(1 << 21) if own_large else -4096),
        data,
        size_level=2 if own_large else 1,
        flat=tuple(level for level in below_own if level != 3) if own_large else below_own,
    )
    target = data + TARGET % (1 << 21 if own_large else 4096)
    word = {"execute": STOP, "read": 0x1234_5678_9ABC_DEF0, "write": 0}[kind]
    contents = {DATA + code % 4096: STORE if kind == "write" else LOAD, target: word}
    nested = _tables(nested_layout)
    guest = Guest(name, kind, own.case, nested.case, contents=contents, code=code)
    below_nested = LAYOUTS[nested_layout][2]
    blocks = set()
    for at in sorted({at >> 12 for at in (*own.words, *contents)}):
        page = at << 12
        if not nested_large:
            guest.frames[at] = _frame(page)
            nested.map(page, _frame(page), flat=below_nested)
            continue
        block = page & -(1 << 21)
        frame = _frame(block) & -(1 << 21)
        guest.frames[at] = frame + page % (1 << 21)
        if block not in blocks:
            blocks.add(block)
            flat = tuple(level for level in below_nested if level != 3)
            nested.map(block, frame, size_level=2, flat=flat)
    return guest


def _tables(layout: str) -> Tables:
    levels, flat_root, _ = LAYOUTS[layout]
    return Tables(layout, levels, flat_root=flat_root)


#: Layouts of four levels, and entries of a walk for 4 KiB and for 2 MiB.
LEVELS = {"off": (4, 3), "l4l3": (3, 2), "l3l2": (3, 2), "l2l1": (3, 3), "l4l3+l2l1": (2, 2)}


def layouts() -> Iterator[Guest]:
    """Every layout over every other, and all accesses; pages of 2 MiB."""
    for own, nested in itertools.product(LEVELS, LEVELS):
        for kind in KINDS:
            yield build(f"{own}/{nested}/{kind}", own, nested, kind)
        for large in ((True, False), (False, True), (True, True)):
            sizes = "/".join("2m" if is_large else "4k" for is_large in large)
            name = f"{own}/{nested}/{sizes}"
            yield build(name, own, nested, own_large=large[0], nested_large=large[1])


def entry_for(tables: Case, where: int, depth: int) -> int:
    """Where the entry is that a walk reads as its `depth`-th."""
    return tables.translate(where, "read", user=True).reads[depth]


def spoilt(name: str, guest: Guest, tables: Case, at: int, *, flip: int) -> Guest:
    """The guest with other bits in the entry at `at`, of its own tables or the nested ones."""
    guest.name = name
    tables.words[at] ^= flip
    return guest


#: What may be wrong with an entry, and the bit that makes it so.
_MISTAKES = {
    "absent": P,
    "read-only": RW,
    "supervisor": US,
    "no-execute": NX,
    "beyond-maxphyaddr": 1 << MAXPHYADDR,
}


def faults() -> Iterator[Guest]:
    """Each entry of nested walks wrong that translate the guest's root, its last table, or its page."""
    for nested, own, kind in itertools.product(LEVELS, ("off", "l4l3+l2l1"), KINDS):
        path = build("", own, nested, kind).own.translate(TARGET, "read", user=False)
        assert isinstance(path.result, Page)
        wanted = {"root": path.reads[0], "last": path.reads[-1], "page": path.result.address}
        depths = range(LEVELS[nested][0])
        for (what, guest_physical), depth, mistake in itertools.product(wanted.items(), depths, _MISTAKES):
            guest = build("", own, nested, kind)
            at = entry_for(guest.nested, guest_physical, depth)
            name = f"{own}/{nested}/{kind}/{what}-{depth}-{mistake}"
            yield spoilt(name, guest, guest.nested, at, flip=_MISTAKES[mistake])


def mistakes() -> Iterator[Guest]:
    """What flat entries, guest's or nested, must not say; and guests' own faults."""
    for level, layout, depth in ((4, "l3l2", 0), (3, "l2l1", 1)):
        for bit in (7, 12, 16, 20):
            for which in ("own", "nested"):
                own, nested = (layout, "off") if which == "own" else ("off", layout)
                guest = build("", own, nested)
                tables = guest.own if which == "own" else guest.nested
                where = TARGET if which == "own" else GUEST_DATA
                at = entry_for(tables, where, depth)
                name = f"{which}-level-{level}-bit-{bit}"
                yield spoilt(name, guest, tables, at, flip=1 << bit)
    for which in ("own", "nested"):
        for bit in (13, 20):
            guest = build("", "off", "off")
            tables = guest.own if which == "own" else guest.nested
            at = entry_for(tables, TARGET if which == "own" else GUEST_DATA, 2)
            name = f"{which}-level-2-bit-{bit}"
            yield spoilt(name, guest, tables, at, flip=FLAT | 1 << bit)
    kinds: tuple[Kind, ...] = ("execute", "write")
    for own, nested, kind in itertools.product(LEVELS, ("off", "l4l3+l2l1"), kinds):
        for depth, mistake in itertools.product(range(LEVELS[own][0]), _MISTAKES):
            if mistake != "supervisor":  # what it is
                guest = build("", own, nested, kind)
                at = entry_for(guest.own, TARGET, depth)
                name = f"{own}/{nested}/{kind}/own-{depth}-{mistake}"
                yield spoilt(name, guest, guest.own, at, flip=_MISTAKES[mistake])


def switches() -> Iterator[Guest]:
    """What switches flat nested tables on, and what VMRUN refuses."""
    for host_flat in (False, True):
        for nested_flat in (False, True):
            for layout in ("off", "l2l1", "l3l2", "l4l3"):
                guest = build(f"switch-{layout}-{host_flat:d}{nested_flat:d}", "off", layout, "read")
                guest.host_flat, guest.nested_flat = host_flat, nested_flat
                yield guest
    # FLAT where it says nothing: in an entry of level 1, and where it is off.
    for nested_flat in (False, True):
        for depth in range(4):
            guest = build(f"ignored-{depth}-{nested_flat:d}", "off", "off", "read")
            guest.nested_flat = nested_flat
            if depth == 3 or not nested_flat:
                at = entry_for(guest.nested, GUEST_DATA, depth)
                yield spoilt(guest.name, guest, guest.nested, at, flip=FLAT)
    block = build("", "off", "l4l3").nested.cr3
    for name, cr3 in {
        "ncr3-lower-half": block & ~(1 << 20),
        "ncr3-beyond-maxphyaddr": block | 1 << MAXPHYADDR,
        "ncr3-bit-53": block | 1 << 53,
        "ncr3-not-flat": block & ~FLAT,
    }.items():
        guest = build(name, "off", "l4l3", "read")
        guest.nested.cr3 = cr3
        yield guest


def five_levels() -> Iterator[Guest]:
    """Tables of five levels: nested ones, guests', and both."""
    deep = [name for name, (levels, _, _) in LAYOUTS.items() if levels == 5]
    for own, nested in (*itertools.product((*LEVELS, *deep), deep), *itertools.product(deep, LEVELS)):
        yield build(f"{own}/{nested}", own, nested)
