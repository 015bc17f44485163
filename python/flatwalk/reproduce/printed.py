"""Figures that another command printed into a document of this repository, for claims about a running system.

`flatwalk vm bench` boots a guest for each row, so its tables are read instead of made anew: which row is
meant follows from a workload's name, `KIND:ROW`, and which mode or number of levels from a scheme's.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Where the documents are, in a checkout.
RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"

_Row = dict[str, str]


def mode_of(scheme: str) -> str:
    """What Linux calls a scheme (docs/vm.md): for `fpt-l3l2` it is `l3l2`."""
    return {"radix4": "off", "fpt": "l4l3+l2l1"}.get(scheme, scheme.removeprefix("fpt-"))


def _levels_of(scheme: str) -> str:
    return scheme.removeprefix("radix")


@dataclass(frozen=True)
class Kind:
    """A kind of row: where it is printed, and what its figure is."""

    document: str
    tables: tuple[str, ...]
    #: Column that a workload's name is in.
    name: str
    #: What a row has to have to be of a scheme.
    of: Callable[[str], _Row]
    #: Column with the figure, by scheme; several rows add up.
    figure: Callable[[str], str]


KINDS = {
    # Instructions of the kernel while a program loads and runs, in thousands.
    "kernel": Kind(
        "full-system.md",
        ("causes", "programs-causes"),
        "program",
        lambda scheme: {"mode": mode_of(scheme), "levels": "4"},
        lambda _: "all",
    ),
    # All instructions for a unit of work of a bench, and those of its page faults.
    "levels": Kind(
        "five-levels.md", ("host",), "variant", lambda _: {}, lambda scheme: f"{_levels_of(scheme)} levels"
    ),
    "faults": Kind(
        "five-levels.md",
        ("host-parts",),
        "variant",
        lambda scheme: {"levels": _levels_of(scheme)},
        lambda _: "page faults",
    ),
}


def read(kind: str) -> str:
    """The document of a kind.

    Raises:
        FlatwalkError: If it is not here: only a checkout has it.
    """
    path = RESULTS / KINDS[kind].document
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FlatwalkError(
            f"docs/results/{path.name} is not here", remedy="run flatwalk in a checkout of its repository"
        ) from error


def identity(kind: str) -> str:
    """Everything that decides the figures of a kind."""
    return hashlib.sha256(read(kind).encode()).hexdigest()


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(text: str, table: str) -> list[_Row]:
    """The rows of a table between `<!-- begin NAME -->` and `<!-- end NAME -->`, by column."""
    _, _, rest = text.partition(f"<!-- begin {table} -->\n")
    lines = rest.partition(f"<!-- end {table} -->")[0].splitlines()
    heads = _cells(lines[0]) if lines else []
    # A column's name may stand once in full and then in short: "entries per walk, 4 levels | 5 levels".
    return [dict(reversed(list(zip(heads, _cells(line), strict=True)))) for line in lines[2:]]


def figure(kind: str, row: str, scheme: str) -> float:
    """The figure of a row: the sum over those that have its name and are of the scheme.

    Raises:
        FlatwalkError: If none is printed.
    """
    what = KINDS[kind]
    wanted = {what.name: row, **what.of(scheme)}
    text = read(kind)
    found = [one for table in what.tables for one in rows(text, table) if wanted.items() <= one.items()]
    cells = [one[what.figure(scheme)].split(" ")[0] for one in found]
    if not cells:
        raise FlatwalkError(
            f"nothing is printed of {row!r} for {scheme}",
            where=f"docs/results/{what.document}",
            remedy=f"let flatwalk vm bench print it between <!-- begin {what.tables[0]} --> and its end",
        )
    return sum(map(float, cells))
