"""The next-page prefetcher of CONTRIBUTING.md once more, in Python."""

import flatwalk as fw


class NextPage(fw.Mechanism):
    """After a walk, the table is walked for the pages behind it."""

    def __init__(self, pages: int) -> None:
        self.pages = pages

    def after_walk(self, miss: fw.Miss) -> None:
        if miss.found is None:
            return
        at = miss.found.ready
        for ahead in range(1, self.pages + 1):
            page = miss.address + ahead * miss.found.page_bytes
            if not miss.holds(page) and (found := miss.walk(page, at)):
                miss.insert(found)
                self.counts["prefetches"] += 1
                at = found.ready
