"""`flatwalk record`, `trace` and `walk`."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from flatwalk import engine, output, settings, units
from flatwalk.errors import UsageError
from flatwalk.workload import DEFAULT_WORKLOAD, parse_workload

if TYPE_CHECKING:
    from pathlib import Path


def record_program(
    command: list[str],
    path: Path,
    *,
    skip: str | None,
    limit: str | None,
    start_at: str | None,
    stop_at: str | None,
    follow_exec: bool,
) -> int:
    """Records `command` into `path` and says, on standard error, what was recorded.

    Returns:
        The program's exit status as a shell gives it: 128 and its number after a signal. 0 if the
        recorder ended the program because the limit, or the place to stop at, was reached.

    Raises:
        UsageError: If no command is given, or the path cannot be written to.
    """
    if not command:
        raise UsageError(
            "there is no program to record",
            where="flatwalk record",
            remedy="put it after --, as in: flatwalk record -o sort.fwt -- sort big.txt",
        )
    output.check_writable(path, "--output")
    from flatwalk.record import record  # noqa: PLC0415

    with output.Progress(f"Recording {shlex.join(command)}") as progress:
        result = record(
            command,
            path,
            skip=units.parse_count(skip, "--skip") if skip else 0,
            limit=units.parse_count(limit, "--limit") if limit else None,
            start_at=start_at,
            stop_at=stop_at,
            follow_exec=follow_exec,
            progress=progress,
        )
    output.note(str(result))
    status = result.status or 0
    return status if status >= 0 else 128 - status


def record_workload(workload: str, path: Path, *, limit: str | None) -> int:
    """Records a program of Debian by name; says, on standard error, what was recorded.

    Returns:
        0: its driver ends the program, so its own exit status means nothing.

    Raises:
        FlatwalkError: If it cannot be installed, or does not reach its run phase.
    """
    output.check_writable(path, "--output")
    from flatwalk.programs import runner  # noqa: PLC0415

    result = runner.record_workload(
        workload, path, limit=units.parse_count(limit, "--limit") if limit else None
    )
    output.note(str(result))
    return 0


def _existing(path: Path, where: str) -> Path:
    if not path.is_file():
        raise UsageError(f"there is no file {path}", where=where, remedy="check the path")
    return path


def info(path: Path, *, as_json: bool, verify: bool) -> None:
    """Prints what a trace holds."""
    with output.Progress("Verifying" if verify else "Reading") as progress:
        found = engine.trace_info(_existing(path, "FILE"), verify=verify, progress=progress)
    _print_info(found, as_json=as_json)


def _print_info(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    width = max(map(len, found))
    for key, value in found.items():
        print(f"{key.replace('_', ' '):{width}}  {_readable(key, value)}")


def _readable(key: str, value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key.endswith("_bytes"):
        return f"{units.size(value)} ({value})"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def import_trace(source: Path, target: Path, kind: str | None) -> None:
    """Converts a foreign trace; the target appears only when it is complete."""
    _existing(source, "SOURCE")
    output.check_writable(target, "TARGET")
    with output.Progress("Importing") as progress:
        found = engine.trace_import(source, target, kind, progress)
    _print_info(found, as_json=False)


def export_trace(source: Path, target: Path, kind: str) -> None:
    """Converts a trace to a foreign format; the target appears only when it is complete."""
    _existing(source, "SOURCE")
    output.check_writable(target, "TARGET")
    with output.Progress("Exporting") as progress:
        done = engine.trace_export(source, target, kind, progress)
    print(
        f"{target}: {done['instructions']} instructions, {done['loads']} loads, {done['stores']} stores "
        f"({units.size(target.stat().st_size)})"
    )
    left_out = {
        "loads (an instruction has room for four, none of them of address 0)": done["dropped_loads"],
        "stores (an instruction has room for two, none of them to address 0)": done["dropped_stores"],
        "instructions' registers (there is room for four read and two written)": done["dropped_registers"],
        "instructions of other threads (there is room for one thread)": done["other_threads"],
    }
    for what, count in left_out.items():
        if count:
            print(f"left out: {count} {what}")
    if done["ended_early"]:
        print("the end of the trace is missing: the part that exists was exported")


def explain_walk(
    address: str | None,
    *,
    workload: str | None,
    trace: Path | None,
    scheme: str,
    machine: str,
    large_pages: int,
    instructions: str,
    as_json: bool,
) -> None:
    """Prints how an address (by default the last one used) is translated after some instructions."""
    number = None
    if address is not None:
        try:
            number = int(address, 0)
        except ValueError:
            number = -1
        if not 0 <= number < 1 << 64:
            raise UsageError(
                f"{address!r} is not an address", where="ADDRESS", remedy="write it like 0x7f0000201234"
            )
    if workload is not None and trace is not None:
        raise UsageError(
            "two address spaces are given", where="--workload and --trace", remedy="give one of them"
        )
    loaded = settings.machine(machine)
    request: dict[str, Any] = {
        "source": {"trace": str(_existing(trace, "--trace"))}
        if trace is not None
        else {"workload": parse_workload(workload or DEFAULT_WORKLOAD)},
        "run": {
            "scheme": settings.scheme(scheme, "--scheme"),
            "machine": loaded,
            "large_pages": large_pages,
            "mode": "timing" if settings.is_timed(loaded) else "functional",
        },
        "instructions": units.parse_count(instructions, "--instructions"),
        "address": number,
    }
    answer = engine.walk(request)
    if as_json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    print(
        f"{answer['address']} of {answer['workload']} under {answer['scheme']} on {answer['machine']}, "
        f"after {units.count(answer['instructions'])} instructions"
    )
    if answer["moved_to"] is not None:
        print(f"The scheme's addresses are narrower: this one is moved to {answer['moved_to']} there.")
    for position, step in enumerate(answer["steps"], start=1):
        print(f"{position:2}. {step['text']}")
    latency = answer["latency_cycles"]
    print(
        f"Physical address {answer['physical']} in a {answer['page']} page. A walk reads "
        f"{answer['accesses']} {'entry' if answer['accesses'] == 1 else 'entries'}"
        + (f" in {latency} cycles." if latency is not None else ".")
    )
