"""How results are shown and written: tables, warnings, JSON."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.answer.results import lost_to_translation, walks_per_1000, warnings_of
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from flatwalk.answer.blame import Blame
    from flatwalk.answer.results import Run


@dataclass(frozen=True)
class _Column:
    """A column of the result table; those of the lowest rank are left out first."""

    header: str
    rank: int
    cells: list[str]


def _columns(runs: list[Run], *, energy: bool) -> list[_Column]:
    """All columns of one large-page setting's table that there are figures for."""

    def cell(value: float | None, style: str) -> str:
        return "–" if value is None else format(value, style)

    def change(ratio: float | None) -> str:
        return "–" if ratio is None else units.signed_percent(ratio - 1)

    def margin(run: Run) -> str:
        if run is runs[0]:
            return "–"
        return units.margin(run.get("speedup"), run.get("speedup_low"), run.get("speedup_high"))

    timed = runs[0]["cycles"] is not None
    losses = [lost_to_translation(run, runs) for run in runs]
    found = [_Column("scheme", 10, [run["scheme"] for run in runs])]
    if timed:
        found.append(_Column("speed-up", 9, [change(run.get("speedup")) for run in runs]))
        if any(run.get("speedup_low") is not None for run in runs):
            found.append(_Column("±", 8, [margin(run) for run in runs]))
        found.append(_Column("IPC", 2, [cell(run["ipc"], ".3f") for run in runs]))
    found.append(_Column("walks/1000", 6, [cell(walks_per_1000(run), ".3g") for run in runs]))
    found.append(_Column("accesses/walk", 7, [cell(run["accesses_per_walk"], ".2f") for run in runs]))
    if timed:
        found.append(_Column("cycles/walk", 3, [cell(run["walk_latency_cycles"], ".1f") for run in runs]))
    if any(loss is not None for loss in losses):
        share = ["–" if loss is None else units.percent(loss) for loss in losses]
        found.append(_Column("lost to translation", 5, share))
    if energy:
        ratios = [(run.get("relative_cache_energy"), run.get("relative_off_chip_accesses")) for run in runs]
        found.append(_Column("cache energy", 8, [change(cache) for cache, _ in ratios]))
        found.append(_Column("off-chip", 8, [change(lines) for _, lines in ratios]))
    found.append(_Column("page table", 1, [units.size(run["page_table_bytes"]) for run in runs]))
    return found


def show_table(runs: list[Run], title: str, *, energy: bool = False) -> list[str]:
    """Prints the result table of one large-page setting, with as many columns as a terminal has room for.

    Nothing in it is cut: where the terminal is narrow, whole columns are left out.

    Returns:
        The headers of those.
    """
    columns = _columns(runs, energy=energy)
    left_out = []
    while len(columns) > 2 and not output.fits(*_rows(columns)):
        least = min(columns, key=lambda column: column.rank)
        columns.remove(least)
        left_out.append(least.header)
    output.table(*_rows(columns), title=title)
    return [column.header for column in _columns(runs, energy=energy) if column.header in left_out]


def show_machines(headers: list[str], rows: list[list[str]], title: str) -> list[str]:
    """Prints the table of several machines or settings; returns the headers that there was no room for."""
    left_out = show_some(headers, rows, ["±"] * headers.count("±"), title)
    return list(dict.fromkeys(left_out))


def show_some(
    headers: list[str], rows: list[list[str]], spare: Sequence[str], title: str | None = None
) -> list[str]:
    """Prints a table without those of the columns `spare`, the first first, that there is no room for.

    Of columns with the same header the last goes first.

    Returns:
        The headers of those.
    """
    left_out: list[str] = []
    for header in spare:
        if output.fits(headers, rows):
            break
        headers, rows = _without(headers, rows, len(headers) - 1 - headers[::-1].index(header))
        left_out.append(header)
    output.table(headers, rows, title=title)
    return left_out


def say_left_out(headers: list[str], where: str = "the report and --json have") -> None:
    """Says which columns of tables there was no room for, if there are any, and where they are."""
    if headers:
        output.say(f"Left out for want of room: {', '.join(headers)}; {where} them.")


def cells(runs: list[Run]) -> tuple[list[str], list[list[str]]]:
    """The result table of one large-page setting, whole: headers and rows."""
    return _rows(_columns(runs, energy=False))


def _rows(columns: list[_Column]) -> tuple[list[str], list[list[str]]]:
    rows = zip(*(column.cells for column in columns), strict=True)
    return [column.header for column in columns], [list(row) for row in rows]


def _without(headers: list[str], rows: list[list[str]], column: int) -> tuple[list[str], list[list[str]]]:
    """A table without one of its columns."""
    kept, *others = ([*row[:column], *row[column + 1 :]] for row in (headers, *rows))
    return kept, others


def show_blame(blame: Blame) -> None:
    """Prints where the walks come from, with as many columns as a terminal has room for."""
    print()
    headers, rows = blame.table
    while len(headers) > 2 and not output.fits(headers, rows):
        # The last without which there is room, or the last of all.
        fewer = [_without(headers, rows, at) for at in reversed(range(2, len(headers)))]
        headers, rows = next((table for table in fewer if output.fits(*table)), fewer[0])
    output.table(headers, rows, title=blame.title)
    output.say(blame.key)
    for doubt in blame.notes:
        output.note(f"warning: {doubt}")


def note_warnings(runs: list[Run]) -> None:
    """Prints each warning once, on standard error, with some of the runs that have it."""
    for warning, owners in warnings_of(runs):
        names = list(dict.fromkeys(owners))
        names = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]
        output.note(f"warning: {warning}" + (f" ({', '.join(names)})" if names else ""))


@contextmanager
def json_written(path: Path | None, answer: object) -> Iterator[None]:
    """Writes JSON, if it is asked for, when the rest is done: one that cannot be written takes nothing away.

    Nor does what else cannot be. On standard output, `-`, it comes first.
    """
    is_first = str(path) == "-"
    if path is not None and is_first:
        write_json(path, answer)
    try:
        yield
    finally:
        if path is not None and not is_first:
            write_json(path, answer)


def write_json(path: Path, answer: object, *, indent: int = 2) -> None:
    """Writes JSON to a file, or to standard output if the path is `-`."""
    text = output.as_json(answer, indent=indent) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        output.write_whole(path, text)
