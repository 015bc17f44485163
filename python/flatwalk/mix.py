"""`flatwalk compare --mix`: several programs together on the cores of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import engine, output, settings, units
from flatwalk.errors import UsageError
from flatwalk.lengths import MIX_INSTRUCTIONS, MIX_WARMUP
from flatwalk.presenting import note_warnings, write_json
from flatwalk.results import machine_label, pages_label
from flatwalk.weighing import by_pages, weigh, words
from flatwalk.workload import parse_workload

if TYPE_CHECKING:
    from flatwalk.configurations import Options
    from flatwalk.lengths import Lengths
    from flatwalk.results import Run

SCHEMA = "flatwalk-mix/1"


def programs(text: str) -> dict[str, Any]:
    """The mix that `--mix` names, or that it lists: `A,B,…`, where `N*A` is N of A.

    A shipped mix can be scaled: `NAME:SIZE` gives every built-in workload of it that size.

    Raises:
        UsageError: If there is no such mix, or a member cannot be read.
    """
    if "," in text or "*" in text:
        found: list[str] = []
        for item in filter(None, map(str.strip, text.split(","))):
            times, star, program = item.rpartition("*")
            if star and not (times.isdecimal() and 0 < int(times) <= 64):
                raise UsageError(
                    f"{item!r} is not a number of programs", where="--mix", remedy="as in --mix 4*gups:1GiB"
                )
            found += [program] * (int(times) if star else 1)
        return {"name": text, "title": text, "source": "--mix", "programs": found}
    name, _, size = text.partition(":")
    mix = settings.mix(text if text.endswith(".toml") else name)
    if size and not text.endswith(".toml"):
        mix["programs"] = [
            program if is_trace(program) else f"{program.partition(':')[0]}:{size}"
            for program in mix["programs"]
        ]
    return mix


def is_trace(program: str) -> bool:
    """Whether a member of a mix is a trace's path rather than a workload."""
    return "/" in program or Path(program).suffix != ""


def source(program: str) -> dict[str, Any]:
    """The engine's source for a member of a mix.

    Raises:
        UsageError: If there is no such trace or workload.
    """
    if not is_trace(program):
        return {"workload": parse_workload(program)}
    output.check_exists(Path(program), "--mix", remedy=f"record it: flatwalk record -o {program} -- CMD")
    return {"trace": program}


def run(options: Options, name: str, lengths: Lengths, runs: list[dict[str, Any]]) -> None:
    """Simulates a mix under every configuration, and each of its programs alone; prints and writes.

    Args:
        options: What the command line asked for.
        name: The mix, as `programs` takes it.
        lengths: Of each program, as asked for.
        runs: The configurations.

    Raises:
        FlatwalkError: With what is wrong and what to do.
    """
    mix = programs(name)
    _check(options, mix, runs[0]["machine"])
    options.check_writable()
    cores, alone = _simulate(options, mix["programs"], lengths, runs)
    results = weigh(mix["programs"], cores, alone)
    answer = {
        "schema": SCHEMA,
        "version": engine.version(),
        "mix": mix,
        "alone": [{"program": program, **run} for program, run in alone.items()],
        "runs": results,
    }
    if options.json is not None:
        write_json(options.json, answer)
    _present(options, mix, results)
    if options.report is not None:
        from flatwalk.report.mix import render  # noqa: PLC0415

        output.write_whole(options.report, render(answer))
        output.note(f"Report: {options.report.absolute()}")


def _simulate(
    options: Options, names: list[str], lengths: Lengths, runs: list[dict[str, Any]]
) -> tuple[list[list[Run]], dict[str, Run]]:
    """The results: of each configuration by core, and of each program alone."""
    request = {
        "instructions": lengths.instructions or MIX_INSTRUCTIONS,
        "warmup": MIX_WARMUP if lengths.warmup is None else lengths.warmup,
        "skip": lengths.skip,
        "threads": options.jobs,
    }
    members = [source(program) for program in names]
    alone: dict[str, Run] = {}
    for core, (program, member) in enumerate(zip(names, members, strict=True)):
        if program not in alone:
            # Under the baseline, with all of the shared cache and the seed that it has in the mix.
            asked = request | {"sources": [member], "runs": runs[:1], "seed": options.seed + core}
            with output.Progress(f"Simulating {program} alone") as progress:
                alone[program] = engine.simulate_mix(asked, progress)[0][0]
    asked = request | {"sources": members, "runs": runs, "seed": options.seed}
    with output.Progress(f"Simulating {len(runs)} configurations of {len(members)} programs") as progress:
        return engine.simulate_mix(asked, progress), alone


def _check(options: Options, mix: dict[str, Any], machine: dict[str, Any]) -> None:
    if options.command or options.trace is not None or options.workload is not None:
        raise UsageError(
            "more than one thing to simulate",
            where="--mix, --workload, --trace and -- CMD",
            remedy="give one of them",
        )
    if options.mode != "timing":
        raise UsageError("programs share caches, which take time", where="--mode", remedy="leave it out")
    available = machine.get("multicore", {}).get("cores", 1)
    if len(mix["programs"]) > available:
        raise UsageError(
            f"{mix['name']} has {len(mix['programs'])} programs, and {machine['name']} {available} cores",
            where="--mix and --machine",
            remedy="name fewer, or a machine with enough in [multicore]; skylake-server-4core has four",
        )


def _present(options: Options, mix: dict[str, Any], results: list[dict[str, Any]]) -> None:
    if str(options.json) != "-":
        for group in by_pages(results):
            headers = ["scheme", "weighted speed-up", f"over {group[0]['scheme']}"]
            headers += [f"IPC {core}: {program}" for core, program in enumerate(mix["programs"], start=1)]
            rows = []
            for result in group:
                ratio = result["relative_weighted_speedup"]
                row = [result["scheme"], format(result["weighted_speedup"], ".3f")]
                row.append("–" if ratio is None else units.signed_percent(ratio - 1))
                row += ["–" if run["ipc"] is None else format(run["ipc"], ".3f") for run in result["cores"]]
                rows.append(row)
            first = group[0]["cores"][0]
            title = f"{mix['name']} on {machine_label(first)}, {pages_label(first)}"
            output.table(headers, rows, title=title)
    note_warnings([run for result in results for run in result["cores"]])
    say = output.note if str(options.json) == "-" else output.say
    for group in by_pages(results):
        say(f"{pages_label(group[0]['cores'][0])}: {words(group)}")
