"""The report's page tables: each tree in outline, from the whole address space to the pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.results import grouped, is_bound, place_label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flatwalk.result_types import TreePart, TreeResult
    from flatwalk.results import Run

#: A shade begins where so large a share of the entries is in use.
SHADES = (0.01, 0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Row:
    """Some nodes next to each other."""

    number: int
    under: int | None  # number of the row whose entries lead there
    depth: int
    level: str
    column: int  # that of its topmost level; the root's is 0
    width: int
    shade: int
    occupancy: str
    first: str
    last: str
    place: tuple[float, float]  # where it lies in all of the addresses, as shares of them
    covers: str  # bytes of addresses under one of the nodes
    entry: str  # bytes of addresses that one of its entries translates
    nodes: str
    memory: str
    entries: str
    is_fallback: bool


@dataclass(frozen=True)
class Tree:
    """A tree of one run."""

    scheme: str
    title: str
    levels: list[str]
    covers: str
    rows: list[Row]


@dataclass(frozen=True)
class Panel:
    """One large-page setting's trees."""

    label: str
    trees: list[Tree]


def build(runs: list[Run]) -> list[Panel]:
    """The trees of all runs that have any; a bound has its baseline's."""
    panels = []
    for members in grouped(runs):
        trees = [
            _tree(run["scheme"], tree)
            for run in members
            if not is_bound(run)
            # Earlier results have none.
            for tree in run["page_table"].get("trees", [])
        ]
        panels.append(Panel(place_label(members[0], runs), trees))
    return [panel for panel in panels if panel.trees]


def _tree(scheme: str, tree: TreeResult) -> Tree:
    parts, bits = tree["parts"], tree["address_bits"]
    levels = int(parts[0]["level"].split("L")[1])
    children: dict[int, list[int]] = {}
    for number, part in enumerate(parts[1:], start=1):
        children.setdefault(part["under"], []).append(number)

    def rows(number: int, depth: int) -> Iterator[Row]:
        part = parts[number]
        yield _row(number, part, depth, levels, bits)
        below = sorted(children.get(number, []), key=lambda child: _address(parts[child]["first"], bits))
        for child in below:
            yield from rows(child, depth + 1)

    title = scheme if not tree["whose"] else f"{scheme}, {tree['whose']}"
    names = [f"L{level}" for level in range(levels, 0, -1)]
    return Tree(scheme, title, names, units.size(2**bits), list(rows(0, 0)))


def _address(text: str, bits: int) -> int:
    """An address without its sign."""
    return int(text, 16) & ((1 << bits) - 1)


def _row(number: int, part: TreePart, depth: int, levels: int, bits: int) -> Row:
    used = part["tables"] + part["pages"] + part["replicas"]
    share = used / (part["nodes"] * 2 ** part["index_bits"])
    kinds = (("tables", "to nodes"), ("pages", f"pages of {units.size(part['entry_bytes'])}"))
    told = [f"{units.count(part[key])} {what}" for key, what in kinds if part[key]]  # type: ignore[literal-required]
    if part["replicas"]:
        told.append(f"{units.count(part['replicas'])} parts of larger pages")
    first, last = _address(part["first"], bits), _address(part["last"], bits)
    return Row(
        number,
        None if number == 0 else part["under"],
        depth,
        part["level"],
        levels - int(part["level"].split("L")[1]),
        part["width"],
        sum(share >= least for least in SHADES) + (used > 0),
        units.percent(share),
        part["first"],
        part["last"],
        (first / 2**bits, (last + 1) / 2**bits),
        units.size(part["entry_bytes"] * 2 ** part["index_bits"]),
        units.size(part["entry_bytes"]),
        f"{part['nodes']:,}",
        units.size(part["nodes"] * part["node_bytes"]),
        ", ".join(told) or "none",
        is_fallback=part["fallback"],
    )
