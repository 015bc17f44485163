"""Walks flat page tables on its own: written from docs/flat-page-tables.md and from nothing else.

Also reads the vectors in tests/vectors/flat-page-tables.txt, whose format their first lines describe.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

VECTORS = Path(__file__).parents[1] / "vectors" / "flat-page-tables.txt"

P, RW, US, A, D, PS, PAT4K = 1 << 0, 1 << 1, 1 << 2, 1 << 5, 1 << 6, 1 << 7, 1 << 7
FLAT, NX = 1 << 52, 1 << 63
ADDRESS = (1 << 52) - (1 << 12)
MAXPHYADDR = 40
#: Bits of a page fault's error code.
PROTECTED, WRITE, USER, RESERVED, FETCH = 1, 2, 4, 8, 16

Kind = Literal["read", "write", "execute"]


@dataclass(frozen=True)
class Page:
    """A translation."""

    address: int
    size: int


@dataclass(frozen=True)
class Fault:
    """A page fault and its error code; None is #GP."""

    code: int | None


@dataclass(frozen=True)
class Access:
    """An access and what comes of it."""

    address: int
    kind: Kind
    user: bool
    #: Physical addresses of the entries read, in order.
    reads: tuple[int, ...]
    result: Page | Fault
    #: Words that a successful access leaves changed.
    after: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Load:
    """A MOV to a control register: CR3, or CR4 with CR4.FLAT as given."""

    register: Literal["cr3", "cr4.flat"]
    value: int
    faults: bool


@dataclass
class Case:
    """A machine's state and what is done in it."""

    name: str
    levels: int
    #: Whether CPUID announces the extension.
    feature: bool
    #: CR4.FLAT.
    flat: bool
    cr3: int
    #: All words of the tables that are not zero.
    words: dict[int, int] = field(default_factory=dict)
    accesses: list[Access] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)

    def translate(self, address: int, kind: Kind, *, user: bool) -> Access:
        """What hardware makes of an access, by sections "The root" and "A walk"."""
        bits = 12 + 9 * self.levels
        if address >> (bits - 1) not in (0, (1 << (65 - bits)) - 1):
            return Access(address, kind, user, (), Fault(None))
        why = (WRITE if kind == "write" else 0) | (FETCH if kind == "execute" else 0) | (USER if user else 0)
        base, level, width = self.root(address)
        reads: list[int] = []
        writable = accessible = executable = True
        while True:
            at = base + 8 * (address // 2 ** (12 + 9 * (level - 1)) % 2**width)
            reads.append(at)
            entry = self.words.get(at, 0)
            if not entry & P:
                return Access(address, kind, user, tuple(reads), Fault(why))
            if entry & self.reserved(entry, level):
                return Access(address, kind, user, tuple(reads), Fault(why | PROTECTED | RESERVED))
            writable = writable and bool(entry & RW)
            accessible = accessible and bool(entry & US)
            executable = executable and not entry & NX
            flat = self.flat and bool(entry & FLAT)
            if level == 1 or (level <= 3 and entry & PS) or (level == 2 and flat):
                break
            base = entry & ADDRESS
            level, width = (level - 2, 18) if flat else (level - 1, 9)
        size = 2 ** (12 + 9 * (level - 1))
        wanted = {"read": True, "write": writable, "execute": executable}[kind]
        if not wanted or (user and not accessible):
            return Access(address, kind, user, tuple(reads), Fault(why | PROTECTED))
        after = {at: self.words[at] | A for at in reads}
        if kind == "write":
            after[reads[-1]] |= D
        changed = {at: word for at, word in after.items() if word != self.words[at]}
        page = Page(entry & ADDRESS & ~(size - 1) | address % size, size)
        return Access(address, kind, user, tuple(reads), page, changed)

    def root(self, address: int) -> tuple[int, int, int]:
        """Base, level and index bits of the table that a walk begins in."""
        glue = self.cr3 & ADDRESS
        top = address >> (11 + 9 * self.levels) & 1
        if self.flat and self.cr3 & FLAT and not top:
            return glue & ~0x1FF000, self.levels - 1, 18
        return glue, self.levels, 9

    def reserved(self, entry: int, level: int) -> int:
        """The bits that a present entry must not set."""
        bits = ADDRESS & ~((1 << MAXPHYADDR) - 1)
        flat = self.flat and bool(entry & FLAT)
        if level >= 4:
            bits |= PS
        if level >= 3 and flat:
            bits |= PS | 0x1FF000
        if level == 3 and entry & PS:
            bits |= 0x3FFFE000
        if level == 2 and (entry & PS or flat):
            bits |= 0x1FE000
        return bits


def read(path: Path = VECTORS) -> list[Case]:
    """Reads vectors."""
    cases: list[Case] = []
    for line in path.read_text(encoding="ascii").splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        if words[0] == "case":
            cases.append(Case(words[1], 0, feature=False, flat=False, cr3=0))
        elif not _describes(cases[-1], words) and not _reports(cases[-1], words):
            raise ValueError(line)
    return cases


def _describes(case: Case, words: list[str]) -> bool:
    """Takes in a line about the machine's state, or about a load."""
    match words:
        case ["levels", levels]:
            case.levels = int(levels)
        case ["feature", flag]:
            case.feature = flag == "1"
        case ["flat", flag]:
            case.flat = flag == "1"
        case ["cr3", value]:
            case.cr3 = int(value, 16)
        case ["word", at, value]:
            case.words[int(at, 16)] = int(value, 16)
        case ["load", ("cr3" | "cr4.flat") as register, value, ("ok" | "gp") as outcome]:
            case.loads.append(Load(register, int(value, 16), outcome == "gp"))
        case _:
            return False
    return True


def _reports(case: Case, words: list[str]) -> bool:
    """Takes in a line about an access."""
    match words:
        case ["access", ("read" | "write" | "execute") as kind, ("user" | "supervisor") as mode, address]:
            case.accesses.append(Access(int(address, 16), kind, mode == "user", (), Fault(None)))
            return True
        case ["after", at, value]:
            case.accesses[-1].after[int(at, 16)] = int(value, 16)
            return True
        case ["reads", *entries]:
            change = replace(case.accesses[-1], reads=tuple(int(at, 16) for at in entries))
        case ["page", address, size]:
            change = replace(case.accesses[-1], result=Page(int(address, 16), int(size, 16)))
        case ["fault", code]:
            change = replace(case.accesses[-1], result=Fault(int(code, 16)))
        case ["gp"]:
            change = replace(case.accesses[-1], result=Fault(None))
        case _:
            return False
    case.accesses[-1] = change
    return True
