"""The engine's hashed page table once more, written in Python: Huck and Hays, ISCA 1993.

docs/adr/0014: a table of Python must give the counts and cycles of the same table in Rust, bit by bit.
So it reads and writes memory as often as that does: a page fault takes as long.
"""

from __future__ import annotations

import flatwalk as fw

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

    def find(self, memory: fw.Memory, number: int) -> tuple[int, int] | None:
        """The node for a page, and the one before it or 0."""
        at, before = self.bucket(number), 0
        while memory.read(at) != number * 2 + 1:
            before, at = at, memory.read(at + 8)
            if not at:
                return None
        return at, before

    def obtain(self, memory: fw.Memory) -> int:
        if not self.vacant:
            block = memory.allocate(POOL, "chains")
            self.pool.append(block)
            self.vacant = [at for at in range(block + POOL - NODE, block - 1, -NODE) if at]
        return self.vacant.pop()

    def add(self, memory: fw.Memory, number: int) -> int:
        """A node for a page that has none."""
        node = self.bucket(number)
        if memory.read(node):
            last, length = node, 1
            while following := memory.read(last + 8):
                last, length = following, length + 1
            if length == LONGEST:
                raise fw.OutOfMemory
            node = self.obtain(memory)
            memory.write(last + 8, node)
        memory.write(node, number * 2 + 1)
        self.used += 1
        return node

    def insert(self, memory: fw.Memory, number: int, entry: int) -> None:
        assert self.find(memory, number) is None
        memory.write(self.add(memory, number) + 16, entry)
        if self.used > self.count and self.used >= self.retry_at:
            old = self.base, self.count, self.used, self.pool, self.vacant
            try:
                self.base = memory.allocate(max(2 * self.count * NODE, 4096), "buckets")
            except fw.OutOfMemory:
                self.refuse()
                return
            self.count, self.used, self.pool, self.vacant = 2 * self.count, 0, [], []
            try:
                self.fill_from(memory, old[0], old[1])
                gone = old
            except fw.OutOfMemory:
                gone = self.base, self.count, self.used, self.pool, self.vacant
                self.base, self.count, self.used, self.pool, self.vacant = old
                self.refuse()
            for block in [gone[0], *gone[3]]:
                memory.free(block)
            self.grown += gone is old

    def refuse(self) -> None:
        self.refused += 1
        self.retry_at = self.used + self.count // 8

    def fill_from(self, memory: fw.Memory, base: int, count: int) -> None:
        """Enters all that is in another array of buckets."""
        for bucket in range(count):
            at = base + bucket * NODE
            while True:
                number = memory.read(at) >> 1
                if memory.read(at):
                    node = self.add(memory, number)
                    memory.write(node + 16, memory.read(at + 16))
                at = memory.read(at + 8)
                if not at:
                    break

    def remove(self, memory: fw.Memory, number: int) -> None:
        found = self.find(memory, number)
        assert found is not None
        node, before = found
        memory.write(node + 16, 0)
        assert not memory.read(node + 16)
        self.used -= 1
        following = memory.read(node + 8)
        if before:
            memory.write(before + 8, following)
        elif not following:
            memory.write(node, 0)
            return
        else:
            for word in (0, 8, 16):
                memory.write(node + word, memory.read(following + word))
            node = following
        for word in (0, 8, 16):
            memory.write(node + word, 0)
        self.vacant.append(node)

    def first(self, number: int) -> int:
        return self.bucket(number)

    def answer(self, number: int, at: int, line: list[int]) -> fw.Found | fw.Next | None:
        word = at % 64 // 8
        if line[word] == number * 2 + 1:
            return fw.Found(at + 16)
        return fw.Next(line[word + 1]) if line[word + 1] else None
