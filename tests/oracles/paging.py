"""Reads page tables on its own: written from the head of engine/paging/src/entry.rs and from nothing else.

`python tests/oracles/paging.py < DUMP` checks what `cargo run -p flatwalk-paging --example dump` printed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

PRESENT, WRITE, USER, PAGE_SIZE, NO_EXECUTE = 1 << 0, 1 << 1, 1 << 2, 1 << 7, 1 << 63
ADDRESS = sum(1 << bit for bit in range(12, 52))
OVERLAP = 1 << 59
WIDTH_OF_BITS = {0b00: 1, 0b10: 2, 0b01: 3}  # bit 58, bit 57


@dataclass(frozen=True)
class Table:
    """A table as it lies in memory."""

    page_shift: int
    index_bits: int
    base: int
    level: int
    width: int
    words: dict[int, int]

    def span(self, level: int) -> int:
        """Bytes that an entry of `level` translates."""
        return 1 << (self.page_shift + self.index_bits * (level - 1))

    def node_bytes(self, width: int) -> int:
        """Size of a node that spans `width` levels."""
        return max(1 << (self.index_bits * width + 3), 4096)

    def translate(self, address: int) -> dict[str, Any]:
        """What hardware makes of `address`."""
        base, level, width = self.base, self.level, self.width
        write = user = execute = True
        while True:
            bottom = level + 1 - width
            index = address // self.span(bottom) % (1 << self.index_bits * width)
            at = base + 8 * index
            word = self.words[at]
            ended = {"address": address, "level": bottom, "entry": at}
            if not word & PRESENT:
                return {**ended, "fault": "not present"}
            write = write and bool(word & WRITE)
            user = user and bool(word & USER)
            execute = execute and not word & NO_EXECUTE
            target = word & ADDRESS
            page = self.page(word, bottom)
            if page == 0:
                return {**ended, "fault": "reserved"}
            if page is not None:
                rights = {"write": write, "user": user, "execute": execute}
                physical = target + address % self.span(page)
                return {**ended, "level": page, "physical": physical, **rights}
            below = bottom if word & OVERLAP else bottom - 1
            base, level, width = target, below, WIDTH_OF_BITS[word >> 57 & 3]

    def page(self, word: int, level: int) -> int | None:
        """Level of the page that a present entry of `level` maps, 0 if reserved, None if it points on."""
        target = word & ADDRESS
        overlap = 1 if word & OVERLAP else 0
        level += overlap
        if word & PAGE_SIZE:
            page = max(level, 2)
            return page if page <= min(3, self.level) and target % self.span(page) == 0 else 0
        if level == 1:
            return 1 if target % self.span(1) == 0 else 0
        width = WIDTH_OF_BITS.get(word >> 57 & 3)
        if width is None or target % self.node_bytes(width):
            return 0
        if overlap < width < level:
            return None
        fits = width == level <= self.level and self.node_bytes(width) == self.span(level)
        return level if fits else 0


def differences(dump: list[dict[str, Any]]) -> list[str]:
    """Where a dump's answers are not this reader's."""
    wrong = []
    for item in dump:
        root = item["root"]
        words = {int(at): int(word) for at, word in item["words"]}
        table = Table(
            item["page_shift"], item["index_bits"], root["base"], root["level"], root["width"], words
        )
        for answer in item["answers"]:
            own = table.translate(answer["address"])
            if own != answer:
                wrong.append(f"{item['name']}: {answer['address']:#x}: engine {answer}, oracle {own}")
    return wrong


if __name__ == "__main__":
    found = differences(json.load(sys.stdin))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
