"""Mechanisms of your own next to the page table: the base class, and what its hooks are called with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter

    from flatwalk.engine import MissAccess


@dataclass(frozen=True, slots=True)
class Translation:
    """A page that a walk found."""

    #: Number of the translation: the engine's own affair.
    number: int = field(repr=False)
    #: The virtual address that was walked for.
    address: int
    #: Level that pages of its size are leaves of: 1 (4 KiB), 2 (2 MiB) or 3 (1 GiB).
    level: int
    #: Bytes of the page.
    page_bytes: int
    #: Cycle in which the translation is known.
    ready: int


class Miss:
    """A miss of the last-level TLB, until the hook returns that it was given to."""

    def __init__(
        self,
        access: MissAccess,
        address: int,
        time: int,
        kind: str,
        found: tuple[int, int, int, int, int] | None,
    ) -> None:
        """Through the engine."""
        self._access = access
        #: The virtual address that is to be translated.
        self.address = address
        #: Cycle in which that was asked for; 0 in functional mode.
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
            at: Cycle in which the walk begins; without it, that of the miss.

        Returns:
            What was found; None if nothing is mapped there, or no page walker is free in that cycle.

        Raises:
            ValueError: If the cycle is over, or far away.
        """
        found = self._access.miss_walk(address, self.time if at is None else at)
        return None if found is None else Translation(*found)

    def insert(self, translation: Translation) -> None:
        """Puts what `walk` found into the last-level TLB.

        Raises:
            ValueError: If another hook walked for it: the page may be gone since.
        """
        self._access.miss_insert(translation.number)


class Mechanism:
    """A mechanism of your own next to the page table: the base class of prefetchers and the like.

    An instance stands for the design; its attributes are the design's parameters, which must be numbers,
    text, or lists of them. The engine copies it for each run and core, and calls `begin`. Of the other hooks
    it calls those that a class has. What a hook adds to `counts`, results show while they measure.
    """

    #: Counts by name, as in `self.counts["prefetches"] += 1`. The engine takes them after each hook.
    counts: Counter[str]

    def begin(self) -> None:
        """Makes what the mechanism needs; nothing has run yet."""

    def missed(self, miss: Miss) -> None:
        """The last-level TLB missed."""

    def before_walk(self, miss: Miss) -> None:
        """A walk begins."""

    def after_walk(self, miss: Miss) -> None:
        """A walk is over; `miss.found` is what it found."""

    def filled(self, address: int, level: int) -> None:
        """The last-level TLB got the translation of a virtual address, whose page is of `level`."""

    def evicted(self, page: int, level: int) -> None:
        """The last-level TLB lost the translation of the page at virtual address `page`, of `level`."""

    def flush(self, start: int, length_bytes: int) -> None:
        """Translations of a range of virtual addresses are not valid any more."""

    def switch_context(self) -> None:
        """Another process takes the core, and gives it back with empty TLBs."""
