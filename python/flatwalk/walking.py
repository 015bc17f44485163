"""`flatwalk walk`: one translation, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatwalk import engine, units
from flatwalk.answer.results import machine_label
from flatwalk.definitions import machine_files, settings, variations
from flatwalk.definitions.defaults import SEED
from flatwalk.definitions.workload import DEFAULT_WORKLOAD, parse_workload
from flatwalk.errors import UsageError
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What the command line asked for; `None` is not asked for."""

    address: str | None
    workload: str | None
    trace: Path | None
    scheme: str
    machine: str
    set: Sequence[str]
    large_pages: int
    instructions: str
    report: Path | None
    as_json: bool


def run(options: Options) -> None:
    """Prints how an address (by default the last one used) is translated after some instructions.

    Raises:
        UsageError: If there is no such address, or more than one address space.
        FlatwalkError: If the report cannot be written.
    """
    if options.report is not None:
        output.check_writable(options.report, "--report")
        read = settings.own_files(options.scheme, "--scheme")
        read += settings.own_files(options.machine, "--machine")
        output.check_apart([(options.report, "--report")], [(options.trace, "--trace"), *read])
    address = None if options.address is None else _address(options.address)
    grid = variations.grid(options.set)
    if len(grid) > 1:
        raise UsageError(
            "one translation is shown", where="--set", remedy="give each key one value, or use `compare`"
        )
    file = machine_files.load(options.machine)
    machine = variations.machine(file, grid[0])
    names = map(str.strip, options.scheme.split(","))
    asked = [(name, settings.scheme_or_pair(name, "--scheme")) for name in names]
    schemes = variations.schemes(settings.distinct(asked, "scheme", "--scheme"), grid[0])
    source, instructions = _source(options), units.parse_count(options.instructions, "--instructions")
    answers = [
        explained(
            source,
            scheme,
            machine,
            address=address,
            settings_=variations.as_settings(grid[0]),
            large_pages=options.large_pages,
            instructions=instructions,
        )
        for scheme in schemes
    ]
    told = [lines(answer) for answer in answers]
    if options.as_json:
        print(output.as_json(answers if len(answers) > 1 else answers[0]))
    else:
        output.say("\n\n".join(map("\n".join, told)))
    if options.report is not None:
        from flatwalk.report import walk  # noqa: PLC0415

        output.write_whole(options.report, walk.render(answers, told, schemes, engine.version()))
        output.note(f"Report: {options.report.absolute()}")


def explained(
    source: dict[str, Any],
    scheme: dict[str, Any],
    machine: dict[str, Any],
    *,
    address: int | None,
    settings_: dict[str, Any],
    large_pages: int,
    instructions: int,
    seed: int = SEED,
) -> dict[str, Any]:
    """How the engine translates an address after some instructions, step by step.

    Args:
        source: A trace or a workload, as the engine takes it.
        scheme: The scheme.
        machine: The machine.
        address: Virtual address; None is the last one used.
        settings_: What of the machine and the scheme differs from their files.
        large_pages: Per cent of the touched memory on 2 MiB pages.
        instructions: Run before, so that TLBs and page-walk caches are warm.
        seed: Of all that is random.

    Raises:
        FlatwalkError: If the source cannot be read.
    """
    run_ = {
        "scheme": scheme,
        "machine": machine,
        "settings": settings_,
        "large_pages": large_pages,
        "mode": "timing" if settings.is_timed(machine) else "functional",
    }
    request = {"source": source, "run": run_, "instructions": instructions, "address": address, "seed": seed}
    return {**engine.walk(request), "settings": settings_}


def _address(text: str) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise UsageError(
            f"{text!r} is not an address", where="ADDRESS", remedy="write it like 0x7f0000201234"
        )
    return number


def _source(options: Options) -> dict[str, Any]:
    if options.trace is None:
        text = DEFAULT_WORKLOAD if options.workload is None else options.workload
        return {"workload": parse_workload(text)}
    if options.workload is not None:
        raise UsageError(
            "two address spaces are given", where="--workload and --trace", remedy="give one of them"
        )
    output.check_trace(options.trace, "--trace")
    return {"trace": str(options.trace)}


def lines(answer: dict[str, Any]) -> list[str]:
    """An explanation for a person: what is walked, each step, and what comes of it."""
    where = f"of {answer['workload']} under {answer['scheme']} on {machine_label(answer)}"
    title = f"{answer['address']} {where}"
    found = [f"{title}, after {units.count(answer['instructions'])} instructions"]
    if answer["moved_to"] is not None:
        found.append(f"The scheme's addresses are narrower: this one is moved to {answer['moved_to']} there.")
    found += [f"{position:2}. {step['text']}" for position, step in enumerate(answer["steps"], start=1)]
    if answer["page"] is None:
        return [*found, f"Physical address {answer['physical']}, without a walk."]
    latency = "" if answer["latency_cycles"] is None else f" in {answer['latency_cycles']} cycles"
    reads = f"{answer['accesses']} {'entry' if answer['accesses'] == 1 else 'entries'}"
    found.append(
        f"Physical address {answer['physical']} in a {answer['page']} page. A walk reads {reads}{latency}."
    )
    return found
