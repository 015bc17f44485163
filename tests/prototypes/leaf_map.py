"""The page table of docs/python.md."""

# ruff: noqa: ARG002 - hooks have the parameters that they have

import flatwalk as fw


class LeafMap(fw.Organisation):
    """The hardware knows where every leaf node is: a walk reads one entry for each page size."""

    def create(self, memory: fw.Memory) -> None:
        self.nodes: dict[int, int] = {}
        self.empty = memory.allocate(4096)

    def slot(self, number: int) -> int:
        return self.nodes.get(number // 512, self.empty) + number % 512 * 8

    def insert(self, memory: fw.Memory, number: int, entry: int) -> None:
        if number // 512 not in self.nodes:
            self.nodes[number // 512] = memory.allocate(4096)
        memory.write(self.slot(number), entry)

    def remove(self, memory: fw.Memory, number: int) -> None:
        memory.write(self.slot(number), 0)

    def first(self, number: int) -> int:
        return self.slot(number)

    def answer(self, number: int, at: int, line: list[int]) -> fw.Found:
        return fw.Found(at)
