"""The engine's POM-TLB once more, in Python: Ryoo, Gulur, Song and John, ISCA 2017."""

from __future__ import annotations

import flatwalk as fw

WAYS = 4
LINE_BYTES = 64
SHIFTS = (12, 21)


class PartOfMemory(fw.Mechanism):
    """A very large TLB in memory, read through the caches on a miss of the L2 TLB."""

    def __init__(self, size_bytes: int, predictions: int, *, within_walker: bool) -> None:
        self.memory_bytes = size_bytes
        self.predictions = predictions
        self.takes_walker = within_walker

    def begin(self) -> None:
        self.count = self.memory_bytes // 2 // LINE_BYTES
        #: By size and number of the set: page numbers and translations, the most recently used last.
        self.sets: list[dict[int, dict[int, fw.Translation]]] = [{}, {}]
        #: By prediction: whether the page is large, and whether to go to memory at once.
        self.large: set[int] = set()
        self.bypass: set[int] = set()

    def prediction(self, address: int) -> int:
        return (address >> SHIFTS[0]) % self.predictions

    def predict(self, address: int, *, large: bool) -> None:
        (self.large.add if large else self.large.discard)(self.prediction(address))

    def line(self, page: int, size: int) -> int:
        return (size * self.count + page % self.count) * LINE_BYTES

    def missed(self, miss: fw.Miss) -> fw.Translation | None:
        self.counts["lookups"] += 1
        slot = self.prediction(miss.address)
        first, bypass = int(slot in self.large), slot in self.bypass
        # A size that never had a page is not looked for.
        sizes = [size for size in (first, 1 - first) if self.sets[size]]
        for probe, size in enumerate(sizes):
            page = miss.address >> SHIFTS[size]
            entries = self.sets[size].get(page % self.count, {})
            found = entries.pop(page, None)
            if found is not None:
                entries[page] = found
            from_memory = miss.read(self.line(page, size), bypass=bypass) == "DRAM"
            (self.bypass.add if from_memory else self.bypass.discard)(slot)
            self.counts["bypasses"] += from_memory and bypass
            if found is not None:
                self.predict(miss.address, large=size == 1)
                self.counts["hits"] += 1
                self.counts["second_probes"] += probe
                return found
        return None

    def keep(self, found: fw.Translation) -> int | None:
        size = found.level - 1
        if size > 1:
            return None
        self.predict(found.address, large=size == 1)
        page = found.address >> SHIFTS[size]
        entries = self.sets[size].setdefault(page % self.count, {})
        entries.pop(page, None)
        if len(entries) == WAYS:
            del entries[next(iter(entries))]
        entries[page] = found
        return self.line(page, size)

    def after_walk(self, miss: fw.Miss) -> None:
        if miss.found is not None and (line := self.keep(miss.found)) is not None:
            miss.write(line, miss.found.ready)

    def populated(self, translation: fw.Translation) -> None:
        self.keep(translation)

    def flush(self, start: int, length_bytes: int) -> None:
        last = start + length_bytes - 1
        for shift, sets in zip(SHIFTS, self.sets, strict=True):
            for entries in sets.values():
                for page in [page for page in entries if start >> shift <= page <= last >> shift]:
                    del entries[page]
