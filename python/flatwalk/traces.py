"""`flatwalk trace …`: what a trace holds, and conversions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatwalk import engine, units
from flatwalk.errors import UsageError
from flatwalk.terminal import output
from flatwalk.terminal.printable import one_line

if TYPE_CHECKING:
    from pathlib import Path


#: How many ranges of touched pages are shown.
_SHOWN_RANGES = 4
#: Formats that traces are exported to.
WRITTEN = ("champsim",)


def info(path: Path, *, as_json: bool, verify: bool) -> None:
    """Prints what a trace holds."""
    output.check_trace(path, "FILE")
    with output.Progress("Verifying" if verify else "Reading") as progress:
        found = engine.trace_info(path, verify=verify, progress=progress)
    _print_info(found, as_json=as_json)


def _print_info(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(output.as_json(found))
        return
    # What ends early is the file: its run may have been stopped early, too, and that is another key.
    shown = dict(
        ("file_complete", not value) if key == "ended_early" else (key, value) for key, value in found.items()
    )
    width = max(map(len, shown))
    for key, value in shown.items():
        print(f"{key.replace('_', ' '):{width}}  {one_line(_readable(key, value))}")


def _readable(key: str, value: Any) -> str:  # noqa: ANN401 - whatever JSON holds
    match value:
        case None | bool():
            return {None: "unknown", True: "yes", False: "no"}[value]
        case int() if key.endswith("_bytes"):
            return f"{units.size(value)} ({value})"
        case float():
            return f"{value:.3g}"
        case dict():
            return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in value.items()) or "none"
        case list():  # of ranges
            shown = [f"{start:#x}–{end:#x}" for start, end in value[:_SHOWN_RANGES]]
            left = len(value) - len(shown)
            return ", ".join([*shown, f"and {left} more (--json has all)"] if left else shown) or "none"
        case _:
            return str(value)


def import_trace(source: Path, target: Path, kind: str | None) -> None:
    """Converts a foreign trace, a file or several; the target appears only when it is complete."""
    if not source.is_dir():
        output.check_exists(source, "SOURCE")
    output.check_writable(target, "TARGET")
    read = source.rglob("*") if source.is_dir() else [source]
    output.check_apart([(target, "TARGET")], [(path, "SOURCE") for path in read])
    with output.Progress("Importing") as progress:
        found = engine.trace_import(source, target, kind, progress)
    _print_info(found, as_json=False)


def export_trace(source: Path, target: Path, kind: str) -> None:
    """Converts a trace to a foreign format; the target appears only when it is complete."""
    if kind not in WRITTEN:
        raise UsageError(
            f"no trace is written as {kind!r}", where="--format", remedy=f"give {' or '.join(WRITTEN)}"
        )
    output.check_trace(source, "SOURCE")
    output.check_writable(target, "TARGET")
    output.check_apart([(target, "TARGET")], [(source, "SOURCE")])
    with output.Progress("Exporting") as progress:
        done = engine.trace_export(source, target, kind, progress)
    if not done["instructions"]:
        raise UsageError(
            f"{one_line(str(source))} holds no instruction", where="SOURCE", remedy="record or copy it again"
        )
    print(
        f"{target}: {done['instructions']} instructions, {done['loads']} loads, {done['stores']} stores "
        f"({units.size(target.stat().st_size)})"
    )
    left_out = {
        "loads (an instruction has room for four, none of them of address 0)": done["dropped_loads"],
        "stores (an instruction has room for two, none of them to address 0)": done["dropped_stores"],
        "instructions' registers (there is room for four read and two written)": done["dropped_registers"],
        "instructions of other threads (there is room for one thread)": done["other_threads"],
        "instructions of gaps (what is around a gap was joined)": done["gap_instructions"],
    }
    for what, count in left_out.items():
        if count:
            print(f"left out: {count} {what}")
    if done["ended_early"]:
        print("the end of the trace is missing: the part that exists was exported")
