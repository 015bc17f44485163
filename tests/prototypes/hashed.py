"""The engine's hashed page table once more, written in Python: Huck and Hays, ISCA 1993.

docs/adr/0014: a table of Python must give the counts and cycles of the same table in Rust, bit by bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import flatwalk as fw

if TYPE_CHECKING:
    from collections.abc import Iterator

WORD = (1 << 64) - 1
NODE = 32
POOL = 4096
LONGEST = 255


class Hashed(fw.Organisation):
    """A hashed page table in Python.

    Buckets are nodes of 32 bytes: the page's number × 2 + 1, the address of the next node or 0, the entry.
    """

    def __init__(self, buckets: int) -> None:
        self.buckets = buckets

    def create(self, memory: fw.Memory) -> None:
        self.salt = (self.level + 1) * 0xBF58476D1CE4E5B9 & WORD
        self.used, self.retry_at = 0, 0
        self.pool: list[int] = []
        self.vacant: list[int] = []
        count = self.buckets
        while True:
            try:
                self.base = memory.allocate(max(count * NODE, 4096), "buckets")
                break
            except fw.OutOfMemory:
                if count == 32:
                    raise
                count //= 2
        self.curtailed += count < self.buckets
        self.count = count

    def bucket(self, number: int) -> int:
        product = (number ^ self.salt) * 0x9E3779B97F4A7C15 & WORD
        mixed = (product ^ product >> 32) * 0xD6E8FEB86659FD93 & WORD
        return self.base + (mixed * self.count >> 64) * NODE

    def chain(self, memory: fw.Memory, at: int) -> Iterator[int]:
        """The nodes of a chain from that at address `at` on, which may be 0 for a bucket."""
        yield at
        while at := memory.read(at + 8):
            yield at

    def obtain(self, memory: fw.Memory) -> int:
        if not self.vacant:
            block = memory.allocate(POOL, "chains")
            self.pool.append(block)
            self.vacant = [at for at in range(block + POOL - NODE, block - 1, -NODE) if at]
        return self.vacant.pop()

    def add(self, memory: fw.Memory, number: int) -> int:
        nodes = list(self.chain(memory, self.bucket(number)))
        if memory.read(nodes[0]) == 0:
            node = nodes[0]
        else:
            if len(nodes) == LONGEST:
                raise fw.OutOfMemory
            node = self.obtain(memory)
            memory.write(nodes[-1] + 8, node)
        memory.write(node, number * 2 + 1)
        self.used += 1
        return node

    def insert(self, memory: fw.Memory, number: int, entry: int) -> None:
        memory.write(self.add(memory, number) + 16, entry)
        if self.used > self.count and self.used >= self.retry_at and not self.grow(memory):
            self.refused += 1
            self.retry_at = self.used + self.count // 8

    def grow(self, memory: fw.Memory) -> bool:
        try:
            base = memory.allocate(max(2 * self.count * NODE, 4096), "buckets")
        except fw.OutOfMemory:
            return False
        old = self.base, self.count, self.used, self.pool, self.vacant
        nodes = [
            (memory.read(at), memory.read(at + 16))
            for bucket in range(self.base, self.base + self.count * NODE, NODE)
            for at in self.chain(memory, bucket)
            if memory.read(at)
        ]
        self.base, self.count, self.used, self.pool, self.vacant = base, 2 * self.count, 0, [], []
        gone = old
        grown = True
        try:
            for tag, entry in nodes:
                memory.write(self.add(memory, tag >> 1) + 16, entry)
        except fw.OutOfMemory:
            gone = self.base, self.count, self.used, self.pool, self.vacant
            self.base, self.count, self.used, self.pool, self.vacant = old
            grown = False
        for block in [gone[0], *gone[3]]:
            memory.free(block)
        self.grown += grown
        return grown

    def remove(self, memory: fw.Memory, number: int) -> None:
        nodes = list(self.chain(memory, self.bucket(number)))
        place = next(i for i, at in enumerate(nodes) if memory.read(at) == number * 2 + 1)
        self.used -= 1
        following = nodes[place + 1] if place + 1 < len(nodes) else 0
        gone = nodes[place]
        if place:
            memory.write(nodes[place - 1] + 8, memory.read(gone + 8))
        elif not following:
            memory.write(gone, 0)
            memory.write(gone + 16, 0)
            return
        else:
            for word in (0, 8, 16):
                memory.write(gone + word, memory.read(following + word))
            gone = following
        for word in (0, 8, 16):
            memory.write(gone + word, 0)
        self.vacant.append(gone)

    def first(self, number: int) -> int:
        return self.bucket(number)

    def answer(self, number: int, at: int, line: list[int]) -> fw.Found | fw.Next | None:
        word = at % 64 // 8
        if line[word] == number * 2 + 1:
            return fw.Found(at + 16)
        return fw.Next(line[word + 1]) if line[word + 1] else None
