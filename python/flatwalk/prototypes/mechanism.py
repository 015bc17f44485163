"""Mechanisms of your own next to the page table: the base class, and what its hooks are called with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections import Counter

    from flatwalk.engine import Given, MissAccess


class Translation(NamedTuple):
    """A page that a walk found. It may be kept until `flush` or `switch_context` says that it is gone."""

    #: The virtual address that was walked for.
    address: int
    #: Level that pages of its size are leaves of: 1 (4 KiB), 2 (2 MiB) or 3 (1 GiB).
    level: int
    #: Bytes of the page.
    page_bytes: int
    #: Cycle in which the translation is known.
    ready: int
    #: Physical address of the page.
    frame: int
    #: What the page permits: the sum of 1 (stores), 2 (user mode) and 4 (instruction fetches).
    rights: int
    #: Whether its dirty bit is set. If not, a store has to walk, whoever has the translation.
    dirty: bool
    #: Cycle in which the translation was asked for.
    asked: int


class Miss:
    """A miss of the last-level TLB, until the hook returns that it was given to."""

    def __init__(self, access: MissAccess, address: int, time: int, kind: str, found: Given | None) -> None:
        """Through the engine."""
        self._access = access
        #: The virtual address that is to be translated.
        self.address = address
        #: Cycle that the hook has come to; 0 in functional mode.
        self.time = time
        #: `load`, `store` or `fetch`.
        self.kind = kind
        #: After a walk: what it found. None before it, and where no page is mapped.
        self.found = None if found is None else Translation(*found)

    def holds(self, address: int) -> bool:
        """Whether the last-level TLB has an entry for a virtual address. Nothing is counted."""
        return self._access.miss_holds(address)

    def walk(self, address: int, at: int | None = None) -> Translation | None:
        """Walks for a prefetch. Its reads go through caches and memory like any walk's.

        Args:
            address: The virtual address.
            at: Cycle in which the walk begins; without it, `time`.

        Returns:
            What was found; None if nothing is mapped there, or no page walker is free in that cycle.

        Raises:
            ValueError: If the cycle is over, or far away.
        """
        found = self._access.miss_walk(address, self.time if at is None else at)
        return None if found is None else Translation(*found)

    def insert(self, translation: Translation) -> None:
        """Puts a translation into the last-level TLB.

        Raises:
            ValueError: If it is not that of the page that is there now.
        """
        self._access.miss_insert(translation)

    def wait(self, cycles: int) -> None:
        """Lets time pass in `missed`: what it returns, or the walk, comes so many cycles later.

        In functional mode no time passes.

        Raises:
            ValueError: In another hook.
        """
        self.time = self._access.miss_wait(cycles)

    def read(self, offset: int, *, bypass: bool = False) -> str:
        """Reads a line of the mechanism's memory in `missed`, through the L2 cache and the LLC.

        It counts among the accesses of the walk. What is in the memory, the mechanism knows itself.

        Args:
            offset: A byte of the line, from the beginning of the memory.
            bypass: Do not look for it in caches, as it is thought to be in none of them. A line that is
                in one is read from there all the same.

        Returns:
            Who had it: `L2`, `LLC` or `DRAM`; in functional mode `L1D`. `time` is when it is there.

        Raises:
            ValueError: In another hook, or outside of the memory.
        """
        place, self.time = self._access.miss_read(offset, bypass)
        return place

    def write(self, offset: int, at: int | None = None) -> None:
        """Writes into a line of the mechanism's memory, in the L2 cache. Nobody waits for it.

        Args:
            offset: A byte of the line, from the beginning of the memory.
            at: Cycle in which it is written; without it, `time`.

        Raises:
            ValueError: Outside of the memory, or if the cycle is over or far away.
        """
        self._access.miss_write(offset, self.time if at is None else at)


class Mechanism:
    """A mechanism of your own next to the page table: the base class of prefetchers, buffers and the like.

    An instance stands for the design; its attributes are the design's parameters, which must be numbers,
    text, or lists of them. The engine copies it for each run and core, and calls `begin`. Of the other hooks
    it calls those that a class has. What a hook adds to `counts`, results show while they measure.
    """

    #: Counts by name, as in `self.counts["prefetches"] += 1`. The engine takes them after each hook.
    counts: Counter[str]
    #: Bytes of physical memory of its own, as of a TLB in memory: whole pages of 4096, 4 GiB at most.
    memory_bytes: int = 0
    #: Whether `missed` takes a page walker, until it answers or the walk ends that follows.
    takes_walker: bool = False

    def begin(self) -> None:
        """Makes what the mechanism needs; nothing has run yet."""

    def missed(self, miss: Miss) -> Translation | None:
        """The last-level TLB missed.

        Returns:
            The translation, if the mechanism has it: then the table is not walked. It counts as a walk that
            read what `miss.read` did. None, and the next mechanism is asked, or the table walked.
        """

    def before_walk(self, miss: Miss) -> None:
        """A walk begins."""

    def after_walk(self, miss: Miss) -> None:
        """A walk is over; `miss.found` is what it found."""

    def populated(self, translation: Translation) -> None:
        """A page was touched in a part of the program that is not run. No time passes."""

    def filled(self, address: int, level: int) -> None:
        """The last-level TLB got the translation of a virtual address, whose page is of `level`."""

    def evicted(self, page: int, level: int) -> None:
        """The last-level TLB lost the translation of the page at virtual address `page`, of `level`."""

    def flush(self, start: int, length_bytes: int) -> None:
        """Translations of a range of virtual addresses are not valid any more: 2**64 bytes are all."""

    def switch_context(self) -> None:
        """Another process takes the core, and gives it back with empty TLBs."""
