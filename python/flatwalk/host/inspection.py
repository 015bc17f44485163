"""`flatwalk host inspect`: what each page-table design would do to a live process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatwalk import engine, units
from flatwalk.answer.results import is_bound
from flatwalk.comparison.presenting import say_left_out, show_some, show_table
from flatwalk.definitions import settings
from flatwalk.host import designs, machine, process
from flatwalk.terminal import output

if TYPE_CHECKING:
    from pathlib import Path

    from flatwalk.answer.results import Run
    from flatwalk.host.process import Process

#: Smaller speed-ups are reported as none: where pages happen to lie moves a result by as much.
WORTH_MENTIONING = 0.005


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    schemes: str | None
    machine: str
    simulate: str | None
    accesses: int
    seed: int
    html: Path | None
    as_json: bool


def run(pid: int, options: Options) -> None:
    """Inspects a process and says what was found."""
    if options.html is not None:
        output.check_writable(options.html, "--html")
        read = settings.own_files(options.schemes, "--schemes")
        read += settings.own_files(options.machine, "--machine")
        output.check_apart([(options.html, "--html")], read)
    if options.simulate is not None:
        designs.check_pattern(options.simulate)
    found = process.read(pid)
    host = machine.describe()
    levels = process.radix_levels(found.pages, host["page_table_levels"] or 4, host["page_bytes"])
    notes = list(found.notes)
    tables: list[dict[str, Any]] = []
    simulated: list[Run] = []
    if host["page_bytes"] == 4096:
        tables, simulated = _simulate(found, options)
    else:
        notes.append(
            f"Pages of {units.size(host['page_bytes'])}: the schemes have 4 KiB pages, so none is computed."
        )
    if options.html is not None:
        from flatwalk.host import plots  # noqa: PLC0415

        drawn = plots.address_space(
            found, levels, designs.TABLE_HEADERS, designs.table_rows(tables), engine.version(), notes=notes
        )
        output.write_whole(options.html, drawn)
    if options.as_json:
        print(output.as_json(_as_json(found, levels, tables, simulated, notes), indent=1))
        return
    _show(found, levels, host)
    if tables:
        left_out = show_some(designs.TABLE_HEADERS, designs.table_rows(tables), designs.SPARE)
        say_left_out(left_out, "--html and --json have")
        output.say(
            f"Tables as the engine builds them for this mapping; walks counted over "
            f"{units.count(designs.COUNTED)} accesses to random present pages, on {options.machine}."
        )
    if simulated:
        print()
        _show_simulated(simulated, options)
    for line in notes:
        output.say(f"note: {line}")
    if options.html is not None:
        output.say(f"drawn: {options.html}")


def _simulate(found: Process, options: Options) -> tuple[list[dict[str, Any]], list[Run]]:
    """The table under every scheme and, if asked for, accesses of a pattern."""
    schemes, simulated_machine, seed = options.schemes, options.machine, options.seed
    tables = designs.run_schemes(found, schemes, simulated_machine, seed=seed)
    if options.simulate is None:
        return tables, []
    return tables, designs.simulate(
        found, schemes, simulated_machine, options.simulate, accesses=options.accesses, seed=seed
    )


def _show(found: Process, levels: list[process.Level], host: dict[str, Any]) -> None:
    small, large = found.present_bytes()
    mapped = sum(area.end - area.start for area in found.areas)
    output.say(f"Process {found.pid}: {found.name}")
    output.say(
        f"{len(found.areas)} areas of {units.size(mapped)}; present: {units.size(small)} on "
        f"{units.size(host['page_bytes'])} pages, {units.size(large)} on 2 MiB pages."
    )
    print()
    output.table(
        ["level of its table", "nodes", "bytes", "entries in use", "occupancy"],
        [
            [
                f"L{level.level}",
                str(level.nodes),
                units.size(level.bytes),
                str(level.entries),
                units.percent(level.occupancy),
            ]
            for level in levels
        ],
    )
    if found.table_bytes is not None:
        # VmPTE is of the nodes of PTEs, PMDs and PUDs: of five levels the second from the top is not counted.
        counted = levels[1:][-3:]
        present = sum(level.bytes for level in counted)
        where = "below the root" if counted == levels[1:] else f"from L{counted[0].level} down"
        # For each anonymous large page the kernel keeps a PTE node, to split it without allocating.
        spare = sum(area.sizes.get("AnonHugePages", 0) for area in found.areas) // process.LARGE * 4096
        output.say(
            f"The kernel counts {units.size(found.table_bytes)} {where}: {units.size(present)} for "
            f"present pages, {units.size(spare)} kept to split large pages, the rest for absent pages."
        )
        print()


def _show_simulated(runs: list[Run], options: Options) -> None:
    left_out = show_table(
        runs, f"{options.simulate} accesses to its pages, simulated on {runs[0]['machine']}"
    )
    say_left_out(left_out, "--json has")
    designs = [run for run in runs if not is_bound(run) and run.get("speedup") is not None]
    if len(designs) > 1:
        best = max(designs, key=lambda run: run.get("speedup") or 0.0)
        change = (best.get("speedup") or 1.0) - 1
        output.say(
            f"Fastest of them: {best['scheme']}, {units.signed_percent(change)} against {runs[0]['scheme']}."
            if change >= WORTH_MENTIONING
            else f"None is faster than {runs[0]['scheme']} by {units.percent(WORTH_MENTIONING)} or more."
        )
        output.say("The pattern is not the process's own: record the program for that.")


def _as_json(
    found: Process,
    levels: list[process.Level],
    tables: list[dict[str, Any]],
    simulated: list[Run],
    notes: list[str],
) -> dict[str, Any]:
    small, large = found.present_bytes()
    return {
        "schema": "flatwalk-inspect/1",
        "version": engine.version(),
        "pid": found.pid,
        "name": found.name,
        "small_page_bytes": small,
        "large_page_bytes": large,
        "kernel_table_bytes": found.table_bytes,
        "areas": [vars(area) for area in found.areas],
        "pages": [vars(pages) for pages in found.pages],
        "levels": [vars(level) for level in levels],
        "schemes": tables,
        "simulated": simulated,
        "notes": notes,
    }
