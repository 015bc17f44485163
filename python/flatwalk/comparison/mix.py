"""`flatwalk compare --mix`: several programs together on the cores of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import engine, units
from flatwalk.answer import intervals
from flatwalk.answer.judged import NOTHING_COMPARED, bias_of, bias_words, least_sure, longer_warmup, mix_words
from flatwalk.answer.results import is_bound, machine_label, pages_label
from flatwalk.comparison.mixing import Mix, halved
from flatwalk.comparison.presenting import json_written, note_warnings
from flatwalk.comparison.sampling import ROUNDS, cut_off, note_cut
from flatwalk.comparison.weighing import Weights, by_pages, weigh, words
from flatwalk.definitions import settings
from flatwalk.definitions.workload import parse_workload, resized
from flatwalk.errors import UsageError
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flatwalk.answer.intervals import Estimate
    from flatwalk.answer.judged import Missing
    from flatwalk.answer.results import Bias, Run, Sampling
    from flatwalk.comparison.configurations import Options
    from flatwalk.comparison.lengths import Lengths
    from flatwalk.comparison.mixing import Mixed

SCHEMA = "flatwalk-mix/2"


def programs(text: str) -> dict[str, Any]:
    """The mix that `--mix` names, or that it lists: `A,B,…`, where `N*A` is N of A.

    Built-in workloads have the sizes in the mix's file. `NAME:SIZE` gives all those of a shipped mix that one
    size instead.

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
        if not found:
            remedy = "as in --mix gups:1GiB,random:1GiB"
            raise UsageError(f"{text!r} names no program", where="--mix", remedy=remedy)
        return {"name": text, "title": text, "source": "--mix", "programs": found}
    name, _, size = text.partition(":")
    is_file = Path(name).suffix not in ("", ".toml")
    if is_file or _is_workload(name):
        option = "--trace" if is_file else "--workload"
        raise UsageError(
            f"{text} is one program",
            where="--mix",
            remedy=f"give {option} {text}, or a mix of one: --mix '1*{text}'",
        )
    mix = settings.mix(text if text.endswith(".toml") else name)
    if size and not text.endswith(".toml"):
        mix["programs"] = [
            program if is_trace(program) else resized(program, size) for program in mix["programs"]
        ]
    return mix


def is_trace(program: str) -> bool:
    """Whether a member of a mix is a trace's path rather than a workload."""
    # A workload's size may have a point, as in random:1.5MiB.
    return not _is_workload(program.partition(":")[0]) and ("/" in program or Path(program).suffix != "")


def _is_workload(name: str) -> bool:
    return name in {one["name"] for one in engine.workloads()}


def source(program: str) -> dict[str, Any]:
    """The engine's source for a member of a mix.

    Raises:
        UsageError: If there is no such trace or workload.
    """
    if not is_trace(program):
        return {"workload": parse_workload(program, "--mix")}
    output.check_trace(Path(program), "--mix", remedy=f"record it: flatwalk record -o {program} -- CMD")
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
    _check_alone(options)
    mix = programs(name)
    _check(options, mix, runs)
    options.check_writable([Path(program) for program in mix["programs"] if is_trace(program)])
    answer = _answer(options, mix, lengths, runs)
    with json_written(options.json, answer):
        _present(options, answer)


def _answer(
    options: Options, mix: dict[str, Any], lengths: Lengths, runs: list[dict[str, Any]]
) -> dict[str, Any]:
    """What `compare --mix --json` writes."""
    mixed, answer = _weighed(options, mix, lengths, runs)
    if options.error is not None:
        lengths, mixed, answer = _refined(options, mix, lengths, runs, (mixed, answer))
        _note_missing(_missing(answer, options.error), mixed, mix)
    if mixed.too_short is not None:
        warmed = units.count(min(one["warmup_instructions"] for one in answer["sampling"]))
        output.note(
            f"{mixed.too_short} has no room for the warm-up before each window, so that the programs are "
            f"warmed together for as little as {warmed} instructions."
        )
    answer["bias"] = _half_warmed(options, mix, lengths, runs, (mixed, answer))
    return answer


def _refined(
    options: Options,
    mix: dict[str, Any],
    lengths: Lengths,
    runs: list[dict[str, Any]],
    first: tuple[Mixed, dict[str, Any]],
) -> tuple[Lengths, Mixed, dict[str, Any]]:
    """More windows and their answer, until the error is reached or there are no more."""
    mixed, answer = first
    for _ in range(ROUNDS):
        missing = _missing(answer, options.error or 0.0)
        had = answer["sampling"][0]["windows"]
        if missing is None or missing.reached or missing.needed is None:
            break
        wanted = max(missing.needed, had + 1)
        if mixed.most_windows is not None:
            wanted = min(wanted, mixed.most_windows)
        if wanted <= had:
            break
        output.note(missing.words)
        lengths = lengths.with_windows(wanted)
        mixed, answer = _weighed(options, mix, lengths, runs)
        if answer["sampling"][0]["windows"] <= had:
            break
    return lengths, mixed, answer


def _note_missing(missing: Missing | None, mixed: Mixed, mix: dict[str, Any]) -> None:
    """Notes whether the error that was asked for is reached, and what to try if it is not."""
    if missing is None:
        output.note(NOTHING_COMPARED)
        return
    output.note(missing.words)
    if not missing.reached and _is_full(mixed, missing.needed or missing.windows):
        output.note(
            f"More than {mixed.most_windows} windows leave no room for the warm-up before each; try more "
            "--instructions, or a shorter --warmup."
        )
    elif not missing.reached and any(map(is_trace, mix["programs"])):
        output.note(
            "A mix has as many windows as its program with the fewest; to record more: "
            f"flatwalk record --windows {missing.needed or 2 * missing.windows} -o FILE -- CMD"
        )


def _half_warmed(
    options: Options,
    mix: dict[str, Any],
    lengths: Lengths,
    runs: list[dict[str, Any]],
    found: tuple[Mixed, dict[str, Any]],
) -> Bias | None:
    """Whether windows that are warmed half as long agree with those found; None where nothing is compared."""
    mixed, answer = found
    results = answer["runs"]
    pair = _most_different([result for result in results if not is_bound(result["cores"][0])])
    halves = halved(mixed.requests)
    # Where recorded segments hold no more than half, both would be the same.
    differs = any(
        one["sampled"] and one["warmup_instructions"] > half["sampling"]["warmup"]
        for one, half in zip(answer["sampling"], halves, strict=True)
    )
    if not pair or not differs:
        return None
    # What was asked for: a core's own configuration has its part of the memory already.
    asked = [runs[results.index(result)] for result in pair]
    simulated = _mix(options, mix, lengths)
    cores, of_half = simulated.together(asked, halves, ", half warmed")
    half_alone = dict(zip(mixed.requests_alone, halved(list(mixed.requests_alone.values())), strict=True))
    alone = simulated.alone(half_alone, runs[0], ", half warmed")
    weights = Weights.of({**answer, "alone": _alone(alone)})
    half = weights.ratio(cores[1], cores[0])
    return _bias(answer, pair, half, of_half, _warmer(mixed, lengths))


def _is_full(mixed: Mixed, windows: int) -> bool:
    """Whether so many windows leave no room for the whole warm-up before each."""
    return mixed.most_windows is not None and windows > mixed.most_windows


def _warmer(mixed: Mixed, lengths: Lengths) -> str:
    """What to try where the warm-up is too short: a longer one, if there is room for what was asked for."""
    windows = mixed.sampling[0]["windows"]
    if not _is_full(mixed, windows):
        return longer_warmup(lengths.warmed)
    most = mixed.most_windows or 0
    fewer = f"--windows {most}, or " if most >= intervals.LEAST else ""
    return f"{fewer}more --instructions: the windows leave no room for all of it"


def _weighed(
    options: Options, mix: dict[str, Any], lengths: Lengths, runs: list[dict[str, Any]]
) -> tuple[Mixed, dict[str, Any]]:
    """What is simulated with the windows that `lengths` ask for, and the answer."""
    mixed = _mix(options, mix, lengths).simulate(runs, runs[0])
    for core, program in enumerate(mix["programs"]):
        if (cut_short := cut_off(source(program))) is not None:
            note_cut(cut_short, [members[core] for members in mixed.cores], mixed.sampling[core])
    answer = {
        "schema": SCHEMA,
        "version": engine.version(),
        "mix": mix,
        "sampling": mixed.sampling,
        "bias": None,
        "alone": _alone(mixed.alone),
    }
    answer["runs"] = weigh(Weights.of(answer), mixed.cores)
    return mixed, answer


def _mix(options: Options, mix: dict[str, Any], lengths: Lengths) -> Mix:
    """The programs, with the lengths that are asked for."""
    names = mix["programs"]
    members = [source(name) for name in names]
    requests = [{"source": member, **lengths.request(member)} for member in members]

    def watch(what: str, _programs: int) -> output.Progress:
        return output.Progress(f"Simulating {what}")

    return Mix(names, requests, options.seed, options.jobs, watch)


def _alone(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """Runs of programs alone, as the JSON has them."""
    return [{"program": name, **run} for name, run in runs.items()]


def _most_different(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the first pages the first result and that which differs most from it; empty if it is alone."""
    first, *others = by_pages(results)[0]
    if not others:
        return []

    # Not by `relative_weighted_speedup`: that may be over a bound, which is none of these.
    def apart(result: dict[str, Any]) -> float:
        own = first["weighted_speedup"]
        return abs(result["weighted_speedup"] / own - 1) if own else 0.0

    return [first, max(others, key=apart)]


def _bias(
    answer: dict[str, Any],
    pair: list[dict[str, Any]],
    short: Estimate | None,
    sampled: list[Sampling],
    remedy: str,
) -> Bias:
    """Whether windows that are warmed half as long agree: with these, `pair` has the speed-up `short`."""
    long = Weights.of(answer).difference(pair[1], pair[0])
    speedups = (long.ratio.value if long else 1.0, short.value if short else 1.0)
    warmups = [min(one["warmup_instructions"] for one in of) for of in (answer["sampling"], sampled)]
    base, run = (result["cores"][0] for result in pair)
    return bias_of((base, run), speedups, long, (warmups[0], warmups[1]), remedy)


def _missing(answer: dict[str, Any], error: float) -> Missing | None:
    """What `--error` lacks of the weighted speed-ups; None where there is nothing to be sure of."""
    weights = Weights.of(answer)
    found = []
    for base, *others in by_pages(answer["runs"]):
        place = pages_label(base["cores"][0])
        compared = [one for other in others if (one := weights.difference(other, base))]
        found += [(one.run, one.ratio, place) for one in compared]
    return least_sure(found, error, weights.windows, weights.coverage)


def _check_alone(options: Options) -> None:
    """Refuses another source next to a mix."""
    if options.command or options.trace is not None or options.workload is not None:
        raise UsageError(
            "more than one thing to simulate",
            where="--mix, --workload, --trace and -- CMD",
            remedy="give one of them",
        )


def _check(options: Options, mix: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    options.check_recorded()
    if options.energy:
        raise UsageError(
            "energy is of one program's run", where="--mix and --energy", remedy="leave one of them out"
        )
    if options.mode != "timing":
        raise UsageError("programs share caches, which take time", where="--mode", remedy="leave it out")
    machine = runs[0]["machine"]
    available = machine.get("multicore", {}).get("cores", 1)
    if len(mix["programs"]) > available:
        raise UsageError(
            f"{mix['name']} has {len(mix['programs'])} programs, and {machine['name']} {available} cores",
            where="--mix and --machine",
            remedy="name fewer, or a machine with enough in [multicore]; skylake-server-4core has four",
        )
    for run in runs:
        if problem := engine.check_mix(run, len(mix["programs"])):
            key = problem["key"]
            raise UsageError(
                f"scheme {run['scheme']['name']}: {settings.words(problem)}",
                where=f"--set {key}" if key in run["settings"] else f"{key} of {run['machine']['name']}",
                remedy=f"{settings.REFERENCE} explains the key",
            )


def _present(options: Options, answer: dict[str, Any]) -> None:
    results, names = answer["runs"], answer["mix"]["programs"]
    if not options.prints_json:
        for group in by_pages(results):
            first = group[0]["cores"][0]
            title = f"{answer['mix']['name']} on {machine_label(first)}, {pages_label(first)}"
            output.table(*_table(group, names), title=title)
    runs = [run for result in results for run in result["cores"]]
    note_warnings(runs)
    say = output.note if options.prints_json else output.say
    bias = answer["bias"]
    if bias is not None and not bias["agrees"]:
        output.note(f"warning: {bias_words(bias)}")
    say(mix_words(names, answer["sampling"]))
    if bias is not None and bias["agrees"]:
        say(bias_words(bias))
    for group in by_pages(results):
        say(f"{pages_label(group[0]['cores'][0])}: {words(group, Weights.of(answer))}")
    if options.report is not None:
        from flatwalk.report.mix import render  # noqa: PLC0415

        written = output.write_report(options.report, render(answer), usual=options.usual_report)
        output.note(f"Report: {written.absolute()}")


def _table(group: list[dict[str, Any]], names: list[str]) -> tuple[list[str], list[list[str]]]:
    """The table of one large-page setting: headers and rows, without IPC if there is no room."""
    has_intervals = group[0]["weighted_speedup_low"] is not None
    headers = ["scheme", "weighted speed-up", f"over {group[0]['scheme']}", *(["±"] if has_intervals else [])]
    rows = []
    for result in group:
        ratio, low, high = (result[f"relative_weighted_speedup{end}"] for end in ("", "_low", "_high"))
        row = [result["scheme"], format(result["weighted_speedup"], ".3f")]
        row.append("–" if ratio is None else units.signed_percent(ratio - 1))
        if has_intervals:
            row.append("–" if result is group[0] else units.margin(ratio, low, high))
        rows.append(row)
    ipc = [
        ["–" if run["ipc"] is None else format(run["ipc"], ".3f") for run in result["cores"]]
        for result in group
    ]
    whole = headers + [f"IPC {core}: {name}" for core, name in enumerate(names, start=1)]
    wide = [row + more for row, more in zip(rows, ipc, strict=True)]
    return (whole, wide) if output.fits(whole, wide) else (headers, rows)
