"""Where walks come from: mappings, functions and lines, and how the best scheme and huge pages change it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from flatwalk import units
from flatwalk.answer.differences import NOISE
from flatwalk.answer.results import (
    by_machine,
    is_bound,
    machine_phrase,
    pages_label,
    place_label,
    speedup_at_least,
)
from flatwalk.terminal.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatwalk.answer.results import Run
    from flatwalk.answer.types import FunctionBlame, LineBlame, MappingBlame

#: Entries shown of each kind, and the share of walks or time from which on one is.
_MOST, _LEAST = 4, 0.01
#: Characters of a name, at most: the rest of a line of 80 is for figures.
_WIDTH = 34

_WHY = {
    "unreadable": "is not there or cannot be read",
    "changed": "has changed since it was recorded",
    "format": "is not a 64-bit ELF file",
}


@dataclass(frozen=True)
class Row:
    """An entry: its share of the walks, and shares of the reference's cycles (or walks) in each run."""

    name: str
    walks: float
    costs: list[float | None]


@dataclass(frozen=True)
class Part:
    """The top entries of one kind; their shares add up with those of the last, which is all others."""

    title: str
    rows: list[Row]


@dataclass(frozen=True)
class _List:
    """One of the lists that the engine counts walks in."""

    title: str
    key: str
    #: What is the same in other runs' lists.
    same: Callable[[Any], object]
    #: What an entry is called; None if what the list is of is not known.
    name: Callable[[Any], str | None]
    #: What it is called then, if anything is known of it.
    otherwise: Callable[[Any], str | None] = lambda _entry: None


@dataclass(frozen=True)
class Blame:
    """Where the walks of the reference come from.

    Costs are cycles in which retirement waits for translations, over all cycles of the reference; without
    a clock they are walks, over those of the reference.
    """

    title: str
    key: str
    headers: list[str]
    parts: list[Part]
    notes: list[str]
    timed: bool

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headers and rows for a terminal."""
        rows = [
            row
            for part in self.parts
            for row in (
                [f"by {part.title}", *[""] * len(self.headers)],
                *([f"  {one.name}", *cells(one)] for one in part.rows),
            )
        ]
        return ["", *self.headers], rows


def cells(row: Row) -> list[str]:
    """A row's figures as text."""
    return ["–" if share is None else _percent(share) for share in (row.walks, *row.costs)]


def _percent(share: float) -> str:
    # What is left of a sum may be nothing but rounding.
    return "<0.1 %" if 1e-9 < share < 0.0005 else f"{abs(100 * share):.1f} %"


def build(runs: list[Run]) -> Blame | None:
    """What is shown, of the first machine; None where no walk was made, or nothing is known of any."""
    groups = by_machine(runs)[0]
    reference = next((run for run in groups[0] if not is_bound(run)), groups[0][0])
    if not reference.get("blame") or not reference["walks"]:
        return None
    timed = reference["cycles"] is not None
    others = _others(reference, groups)
    compared = [*([reference] if timed else []), *(run for _, run in others)]
    found = [_part(list_, reference, compared) for list_ in _LISTS]
    parts = [part for part in found if part is not None]
    if not parts:
        return None
    scheme, label = reference["scheme"], place_label(reference, runs)
    whose = f"{scheme}'s{machine_phrase(reference, runs)}"
    every = ", in every column" if others else ""
    key = (
        f"time: cycles that wait for translations, over all of {whose}{every}.\n"
        "Without these waits, some of them would wait for data instead."
        if timed
        else f"Over all walks of {scheme}{machine_phrase(reference, runs)}{every}."
    )
    if reference.get("weighted"):
        key += "\nAll windows count the same here: SimPoint's weights have no part in it."
    notes = [
        f"{one_line(file['file'])} {_WHY[file['why']]}, so its functions are not named"
        for file in reference["blame"]["unknown"]
    ]
    headers = ["walks", *(["time"] if timed else []), *(name for name, _ in others)]
    return Blame(f"Where the walks of {scheme} come from, {label}", key, headers, parts, notes, timed)


def _others(reference: Run, groups: list[list[Run]]) -> list[tuple[str, Run]]:
    """The best scheme with the same pages, if one is shown to be better; the reference with larger pages."""
    found = []
    own = reference.get("speedup") or 1.0
    better = [
        run
        for run in groups[0]
        if run is not reference
        and not is_bound(run)
        and (run.get("speedup") or 0.0) >= own * (1 + NOISE)
        and speedup_at_least(run) > own
    ]
    if better:
        best = max(better, key=speedup_at_least)
        found.append((best["scheme"], best))
    same = (run for run in groups[-1] if run["scheme"] == reference["scheme"])
    large = next(same, None)
    if large is not None and large is not reference:
        found.append((pages_label(large), large))
    return found


def _part(list_: _List, reference: Run, compared: list[Run]) -> Part | None:
    """The top entries of one list; None if nothing is known of any."""
    entries: list[dict[str, Any]] = cast("dict[str, Any]", reference["blame"])[list_.key]
    named = [(entry, list_.name(entry)) for entry in entries if entry["kind"] != "other"]
    if all(called is None for _, called in named):
        return None
    timed = reference["cycles"] is not None
    unit = "cycles" if timed else "walks"
    walks = sum(entry["walks"] for entry in entries) or 1
    total = (_cycles(reference) if timed else walks) or 1
    costs = [_Costs(run, list_, unit, total) for run in compared]
    rows: list[Row] = []
    for entry, called in named:
        row = Row(
            called or list_.otherwise(entry) or "(unknown)",
            entry["walks"] / walks,
            [cost.of(entry) for cost in costs],
        )
        known = [cost for cost in (row.walks, *row.costs[: int(timed)]) if cost is not None]
        if len(rows) < _MOST and max(known) >= _LEAST:
            rows.append(row)
    left = [cost.without([row.costs[number] for row in rows]) for number, cost in enumerate(costs)]
    return Part(list_.title, [*rows, Row("all others", 1 - sum(row.walks for row in rows), left)])


def _cycles(run: Run) -> int:
    """Cycles of all windows, without weights, and of all cores, as the entries' are."""
    passed = (
        sum(window["cycles"] or 0 for window in run["windows"]) if run.get("weighted") else run["cycles"] or 0
    )
    return passed * (len(run.get("cores") or []) or 1)


class _Costs:
    """What the entries of a list cost in a run, over `total`."""

    def __init__(self, run: Run, list_: _List, unit: str, total: int) -> None:
        entries = cast("dict[str, Any]", run["blame"])[list_.key]
        self._same = list_.same
        self._cost = {list_.same(entry): entry[unit] / total for entry in entries if entry["kind"] != "other"}
        self._is_all = all(entry["kind"] != "other" for entry in entries)
        self.all: float = sum(entry[unit] for entry in entries) / total

    def of(self, entry: dict[str, Any]) -> float | None:
        """One entry's; None if it is among those that were summed up."""
        return self._cost.get(self._same(entry), 0.0 if self._is_all else None)

    def without(self, shown: list[float | None]) -> float | None:
        """All but what is shown; None where that is not known."""
        return None if None in shown else self.all - sum(cast("list[float]", shown))


def _mapping_key(entry: MappingBlame) -> object:
    return entry["kind"], entry["name"], entry["address"], entry["bytes"]


def _mapping_name(entry: MappingBlame) -> str | None:
    """As `/proc/PID/maps` calls it, a file without its directory; None if nothing is known of it."""
    if entry["kind"] == "unmapped":
        return None
    if entry["name"]:
        return short(PurePosixPath(entry["name"]).name if entry["kind"] == "file" else entry["name"])
    if entry["kind"] == "anonymous":
        return f"anonymous, {units.size(entry['bytes'] or 0)} at {entry['address'] or 0:#x}"
    return {"file": "files without names", "stack": "other stacks", "heap": "[heap]"}.get(entry["kind"])


def _function_key(entry: FunctionBlame) -> object:
    return entry["function"], entry["file"]


def _function_name(entry: FunctionBlame) -> str | None:
    """A function and its file; None if neither is known."""
    file = PurePosixPath(entry["file"]).name if entry["file"] else None
    if entry["function"]:
        return _with(entry["function"], f" ({file})" if file else "")
    return _with("unnamed code", f" ({file})") if file else None


def _line_key(entry: LineBlame) -> object:
    return entry["source"], entry["line"], entry["function"], entry["file"]


def _line_name(entry: LineBlame) -> str | None:
    """A line and its function; None without debug information."""
    if not entry["source"]:
        return None
    place = f"{PurePosixPath(entry['source']).name}:{entry['line']}"
    return short(f"{place} ({entry['function']})" if entry["function"] else place)


def _with(name: str, file: str) -> str:
    """A name and its file, whole or with the name cut."""
    name, file = one_line(name), short(file, _WIDTH // 2)
    room = _WIDTH - len(file)
    return short(name, room) + file


def short(name: str, width: int = _WIDTH) -> str:
    """A name as it may be shown, with its end cut where it is long; the JSON has all of it."""
    name = one_line(name)
    return name if len(name) <= width else name[: width - 1] + "…"


_LISTS = (
    _List("mapping", "mappings", _mapping_key, _mapping_name),
    _List("function", "functions", _function_key, _function_name),
    _List("line", "lines", _line_key, _line_name, _function_name),
)
