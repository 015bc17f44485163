"""The engine's sequential prefetcher once more, in Python: Kandiraju and Sivasubramaniam, ISCA 2002."""

import flatwalk as fw


class Sequential(fw.Mechanism):
    """A buffer behind the L2 TLB, with the translations of the pages behind those that missed."""

    def __init__(self, degree: int, entries: int, latency: int) -> None:
        self.degree = degree
        self.entries = entries
        self.latency = latency

    def begin(self) -> None:
        self.buffer: dict[int, fw.Translation] = {}

    def missed(self, miss: fw.Miss) -> fw.Translation | None:
        self.counts["lookups"] += 1
        miss.wait(self.latency)
        kept = next((page for page, found in self.buffer.items() if page == start(found, miss.address)), None)
        if kept is None:
            return None
        self.counts["hits"] += 1
        found = self.buffer.pop(kept)
        self.prefetch(miss, found, max(found.ready, miss.time))
        return found

    def after_walk(self, miss: fw.Miss) -> None:
        if miss.found is not None:
            self.prefetch(miss, miss.found, miss.found.ready)

    def prefetch(self, miss: fw.Miss, found: fw.Translation, at: int) -> None:
        for ahead in range(1, self.degree + 1):
            page = start(found, miss.address) + ahead * found.page_bytes
            if miss.holds(page) or any(start(one, page) == begin for begin, one in self.buffer.items()):
                continue
            ahead_of_time = miss.walk(page, at)
            if ahead_of_time is None:
                self.counts["dropped"] += 1
                continue
            self.counts["prefetches"] += 1
            at = ahead_of_time.ready
            if len(self.buffer) == self.entries:
                del self.buffer[next(iter(self.buffer))]
                self.counts["unused"] += 1
            self.buffer[start(ahead_of_time, page)] = ahead_of_time

    def flush(self, first: int, length_bytes: int) -> None:
        last = first + length_bytes - 1
        for page, found in list(self.buffer.items()):
            if page <= last and page + found.page_bytes > first:
                del self.buffer[page]
                self.counts["unused"] += 1

    def switch_context(self) -> None:
        self.counts["unused"] += len(self.buffer)
        self.buffer.clear()


def start(found: fw.Translation, address: int) -> int:
    """Where the page of an address begins, if it is as large as that which was found."""
    return address // found.page_bytes * found.page_bytes
