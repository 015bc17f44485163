"""The report's page tables: each tree in outline, from the whole address space to single entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.answer.results import grouped, is_bound, place_label
from flatwalk.report import charts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flatwalk.answer.results import Run
    from flatwalk.answer.types import TreeEntries, TreePart, TreeResult

#: A shade begins where so large a share of the entries is in use.
SHADES = (0.01, 0.1, 0.5, 0.9)


#: Address bits of an entry, without those that say what it is.
_FRAME = (1 << 52) - (1 << 12)


@dataclass(frozen=True)
class Entries:
    """Entries next to each other, of the first node of a row."""

    number: str  # that of the row and their own
    under: int
    name: str
    first: str
    last: str
    index: int
    count: int
    stride: int  # bytes of addresses from one to the next
    what: str


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
    shown: list[Entries]
    left: str  # entries that are not among them, in words


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
            _tree(run["scheme"], tree, recorded=bool(run["configuration"]["scheme"].get("recorded")))
            for run in members
            if not is_bound(run)
            # Earlier results have none.
            for tree in run["page_table"].get("trees", [])
        ]
        panels.append(Panel(place_label(members[0], runs), trees))
    return [panel for panel in panels if panel.trees]


def chart(panels: list[Panel]) -> charts.Chart:
    """All trees as a chart: bars span the levels of nodes, and are as dark as these are full."""
    every = [tree for panel in panels for tree in panel.trees]
    levels = every[0].levels
    alike = all(tree.levels == levels for tree in every)

    def row(one: Row, count: int) -> charts.Row:
        opacity = 0.12 + 0.88 * one.shade / (len(SHADES) + 1)
        box = charts.Segment(one.column / count, one.width / count, 0, one.level, opacity)
        name = f"{one.level}, fall-back" if one.is_fallback else one.level
        return charts.Row(name, [box], [one.occupancy, one.nodes, one.covers, one.memory])

    return charts.Chart(
        "tree",
        "The page table as a tree",
        "Rows are nodes next to each other; bars span their levels.",
        ["in use", "nodes", "each covers", "memory"],
        [
            charts.Panel(f"{tree.title}, {panel.label}", [row(one, len(tree.levels)) for one in tree.rows])
            for panel in panels
            for tree in panel.trees
        ],
        [charts.Tick((at + 0.5) / len(levels), level) for at, level in enumerate(levels)] if alike else [],
        rows="nodes",
    )


def _tree(scheme: str, tree: TreeResult, *, recorded: bool) -> Tree:
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

    title = ", ".join(filter(None, (scheme, tree["whose"], "as far as walks read it" if recorded else "")))
    names = [f"L{level}" for level in range(levels, 0, -1)]
    return Tree(scheme, title, names, units.size(2**bits), list(rows(0, 0)))


def _address(text: str, bits: int) -> int:
    """An address without its sign."""
    return int(text, 16) & ((1 << bits) - 1)


def _text(address: int, bits: int) -> str:
    """An address with its sign, as the engine writes it."""
    sign = (1 << 64) - (1 << bits) if bits < 64 and address >> (bits - 1) & 1 else 0
    return hex(address | sign)


def _entries(number: int, part: TreePart, bits: int) -> list[Entries]:
    """What is known of single entries of a part's first node; earlier results have nothing."""
    start, stride = _address(part["first"], bits), part["entry_bytes"]
    return [
        Entries(
            f"{number}.{place}",
            number,
            f"entry {run['index']}"
            if run["count"] == 1
            else f"entries {run['index']} to {run['index'] + run['count'] - 1}",
            _text(start + run["index"] * stride, bits),
            _text(start + (run["index"] + run["count"]) * stride - 1, bits),
            run["index"],
            run["count"],
            stride,
            _what(run),
        )
        for place, run in enumerate(part.get("entries", []))
    ]


def _what(run: TreeEntries) -> str:
    """What an entry, or the first of several, says."""
    kind = {
        "table": "leads to the node at",
        "page": "maps the page at",
        "replica": "maps a part of the page at",
    }[run["kind"]]
    first = "" if run["count"] == 1 else "the first "
    return f"{first}{kind} {int(run['value'], 16) & _FRAME:#x}: {run['value']}"


def _row(number: int, part: TreePart, depth: int, levels: int, bits: int) -> Row:
    used = part["tables"] + part["pages"] + part["replicas"]
    share = used / (part["nodes"] * 2 ** part["index_bits"])
    size = units.size(part["entry_bytes"])
    kinds = (
        (part["tables"], "to nodes", "to a node"),
        (part["pages"], f"pages of {size}", f"page of {size}"),
        (part["replicas"], "parts of larger pages", "part of a larger page"),
    )
    told = [
        f"{units.count(count)} {one if count == 1 else several}" for count, several, one in kinds if count
    ]
    first, last = _address(part["first"], bits), _address(part["last"], bits)
    left = part.get("entries_left", 0)
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
        shown=_entries(number, part, bits),
        left=f"{units.count(left)} more {'entry' if left == 1 else 'entries'}" if left else "",
    )
