"""Page tables of your own: the base class, and what its hooks are called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flatwalk.engine import MemoryAccess


class OutOfMemory(Exception):  # noqa: N818 - it is not a mistake
    """Simulated memory has no free block of that size. `create` and `insert` may let it pass."""


@dataclass(frozen=True, slots=True)
class Found:
    """A walk's answer: the entry is in the line just read. If it is not present, the page is not there."""

    #: Address of the entry.
    at: int


@dataclass(frozen=True, slots=True)
class Next:
    """A walk's answer: a further line must be read."""

    #: Address of the word that is looked for in it.
    at: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """Page size and levels of the address space that a table translates."""

    #: log2 of a base page's bytes: 12.
    page_shift: int
    #: Bits of an address that each level consumes: 9. A page of level 2 is 512 pages of level 1.
    index_bits: int
    levels: int

    @property
    def node_bytes(self) -> int:
        """Bytes of a node with the entries of one level, of a radix table: 4096."""
        return int(max(8 << self.index_bits, 4096))


class Memory:
    """Simulated physical memory, while the engine calls a hook that has it as a parameter.

    A table reads and writes 8-byte words in blocks that it allocated. That is the operating system's work:
    page faults take longer with more of it. A walk reads what `first` and `answer` return instead.
    """

    def __init__(self, access: MemoryAccess) -> None:
        """Through the engine."""
        self._access = access

    def read(self, at: int) -> int:
        """The word at address `at`, from 0 to 2^64 - 1.

        Raises:
            ValueError: If it is not in memory that this table allocated.
        """
        return self._access.memory_read(at)

    def write(self, at: int, word: int) -> None:
        """Stores a word at address `at`.

        Raises:
            ValueError: If it is not in memory that this table allocated.
        """
        self._access.memory_write(at, word)

    def allocate(self, size_bytes: int, name: str = "nodes") -> int:
        """The address of a block of zeros, aligned to its size.

        Args:
            size_bytes: A power of two, 4096 or more.
            name: What results call blocks of its kind.

        Raises:
            OutOfMemory: If there is none, which is ordinary for large blocks.
            ValueError: If blocks cannot have that size.
        """
        at = self._access.memory_allocate(size_bytes, name)
        if at is None:
            raise OutOfMemory(f"no block of {size_bytes} bytes is free")
        return at

    def free(self, at: int) -> None:
        """Gives back the block at address `at`. What is left when a table ends is given back by itself.

        Raises:
            ValueError: If no block of this table begins there.
        """
        self._access.memory_free(at)


class Organisation:
    """A page table of your own: the base class of tables for pages of one size.

    An instance stands for the design; its attributes are the design's parameters, which must be numbers,
    text, or lists of them. The engine copies it for each page size that a process has pages of, sets
    `geometry` and `level`, and calls `create`. Walks ask the tables of all page sizes at once.

    A page is known by its number among the pages of its size: its address divided by that. Pages are never
    inserted twice. An entry is a 64-bit word as of x86-64, whose bit 0 says that it is present; bits 52 to 56
    are free. Hardware writes accessed and dirty bits where `Found` says that the entry is.
    """

    #: The address space. Set before `create`.
    geometry: Geometry
    #: Level that pages of the table's size are leaves of: 1 (4 KiB), 2 (2 MiB) or 3 (1 GiB).
    level: int
    #: How often the table was resized, and how often there was no memory for that: counts that results show.
    grown: int = 0
    shrunk: int = 0
    refused: int = 0
    curtailed: int = 0

    def create(self, memory: Memory) -> None:
        """Makes an empty table.

        Raises:
            OutOfMemory: If there is no memory for it, however small.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method `create`")

    def insert(self, memory: Memory, number: int, entry: int) -> None:
        """Puts in the entry of page `number`, which has none.

        Raises:
            OutOfMemory: If there is no memory for it; every other page must translate as before then.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method `insert`")

    def remove(self, memory: Memory, number: int) -> None:
        """Takes away the entry of page `number`, which has one."""
        raise NotImplementedError(f"{type(self).__name__} needs a method `remove`")

    def change(self, memory: Memory, at: int, entry: int) -> None:
        """Gives the page whose entry is at address `at` another entry, which is written there as it is."""
        memory.write(at, entry)

    def first(self, number: int) -> int:
        """The address of the first word that a walk for page `number` reads, with the line that it is in."""
        raise NotImplementedError(f"{type(self).__name__} needs a method `first`")

    def answer(self, number: int, at: int, line: list[int]) -> Found | Next | None:
        """What a walk for page `number` does after it read the word at address `at`.

        Args:
            number: The page's number.
            at: The address that `first` or an answer gave.
            line: The eight words of the line that it is in.

        Returns:
            `Found`, `Next` to read another line, or None if the page is not there.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method `answer`")
