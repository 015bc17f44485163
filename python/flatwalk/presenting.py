"""How results are shown and written: tables, warnings, JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from flatwalk import output, units
from flatwalk.results import lost_to_translation, warnings_of

if TYPE_CHECKING:
    from pathlib import Path

    from flatwalk.results import Run


def table_of(runs: list[Run], *, energy: bool = False) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of the result table of one large-page setting, with or without energy."""

    def cell(value: float | None, style: str) -> str:
        return "–" if value is None else format(value, style)

    def change(run: Run) -> str:
        speedup = run.get("speedup")
        return "–" if speedup is None else units.signed_percent(speedup - 1)

    timed = runs[0]["cycles"] is not None
    headers = ["scheme"]
    if timed:
        headers += ["speed-up", "IPC"]
    headers += ["walks/1000 instr.", "accesses/walk"]
    if timed:
        headers += ["cycles/walk"]
    losses = [lost_to_translation(run, runs) for run in runs]
    if any(loss is not None for loss in losses):
        headers += ["lost to translation"]
    if energy:
        headers += ["cache energy", "off-chip"]
    headers += ["page table"]
    rows = []
    for run, loss in zip(runs, losses, strict=True):
        row = [run["scheme"]]
        if timed:
            row += [change(run), cell(run["ipc"], ".3f")]
        row += [
            format(run["walks"] / run["instructions"] * 1000, ".3g") if run["instructions"] else "–",
            cell(run["accesses_per_walk"], ".2f"),
        ]
        if timed:
            row += [cell(run["walk_latency_cycles"], ".1f")]
        if loss is not None:
            row += [units.percent(loss)]
        if energy:
            ratios = (run.get("relative_cache_energy"), run.get("relative_off_chip_accesses"))
            row += ["–" if ratio is None else units.signed_percent(ratio - 1) for ratio in ratios]
        row.append(units.size(run["page_table_bytes"]))
        rows.append(row)
    return headers, rows


def note_warnings(runs: list[Run]) -> None:
    """Prints each warning once, on standard error, with some of the runs that have it."""
    for warning, owners in warnings_of(runs):
        names = list(dict.fromkeys(owners))
        names = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]
        output.note(f"warning: {warning}" + (f" ({', '.join(names)})" if names else ""))


def write_json(path: Path, answer: object) -> None:
    """Writes JSON to a file, or to standard output if the path is `-`."""
    text = json.dumps(answer, indent=2, ensure_ascii=False) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        output.write_whole(path, text)
