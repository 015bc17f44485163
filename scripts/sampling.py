#!/usr/bin/env python3
"""How far sampled answers are from exhaustive ones, how sure they say they are, and what they cost.

    scripts/sampling.py [--sources A,B,...] [--windows N,M,...] [--seeds N] [--schemes A,B,...]
        [--warmup N] [--instructions N] [--one-recording] [--each-seed] [--default]

A source is a program of tests/sampled (all of them unless given), one of `python` and `sort`, which
scripts/speed.py times too, a built-in workload that has an end, as gups:1GiB, or several workloads that run
together, as gups:64MiB+random:256MiB. Each is simulated from its
first to its last instruction, and then, once for each seed and number of windows, with windows. A program
of tests/sampled is recorded anew each time, as `flatwalk compare -- CMD` records it; the recordings of
`python` and `sort` are made once, whole, and so are part of no time. With --one-recording those of
tests/sampled are recorded once, too, so that samples and the exhaustive run are of one execution. A seed
also decides what a workload draws and where frames lie: with --each-seed each sample is held against the
exhaustive run of its seed, otherwise against that of seed 1. With --instructions both are of a source's
first N instructions (as 1G). --default compares what `flatwalk compare` does unless told otherwise, eleven
schemes at two page sizes, and prints one row for all of their speed-ups.

Prints a table in Markdown: of each scheme's speed-up over the first, and of large pages, what the
exhaustive run gives (with --each-seed on average), the sampled ones' mean distance from it and mean
interval, and in how many of them it lies; processor time (of this process and all that it started) and
instructions. Below it stand the intervals that it does not lie in. Several threads or processes do not run
alike twice, so that for them the exhaustive run is of another execution, unless there is one recording.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from speed import record

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tests" / "sampled"
SAME = 0.2
"""How much the instructions of two runs of a program may differ."""


@dataclass(frozen=True)
class Source:
    """What instructions come from: options of `flatwalk compare`, and the program that it records, if any."""

    name: str
    options: list[str]
    command: list[str]


@dataclass
class Timed:
    """Results of one command and the processor time that it took, in seconds."""

    answer: dict[str, Any]
    seconds: float


@dataclass
class Row:
    """One speed-up: what all sampled runs say of it."""

    #: Of each sample the exhaustive value, and what it says itself: a value and its interval.
    found: list[tuple[float, float, float, float]] = field(default_factory=list)

    @property
    def held(self) -> int:
        """Samples whose interval the exhaustive value lies in."""
        return sum(low <= exact <= high for exact, _, low, high in self.found)

    @property
    def exact(self) -> float:
        """The mean of the exhaustive values."""
        return mean([exact for exact, *_ in self.found])

    @property
    def error(self) -> float:
        """The mean distance from the exhaustive value, as a share of it."""
        return mean([abs(value / exact - 1) for exact, value, *_ in self.found])

    @property
    def half(self) -> float:
        """Half the mean width of the intervals, as a share of the value."""
        return mean([(high - low) / 2 / value for _, value, low, high in self.found])


def missed(source: str, scheme: str, row: Row) -> list[str]:
    """What each interval says that the exhaustive value does not lie in; seeds count from 1."""
    lines = []
    for seed, found in enumerate(row.found, 1):
        exact, _, low, high = found
        if not low <= exact <= high:
            of_all, *one = (f"{100 * (ratio - 1):+.3f}" for ratio in found)
            lines.append(
                f"- {source}, {scheme}: {of_all} % exhaustively, {one[0]} % with seed {seed}, "
                f"{one[1]} to {one[2]} %"
            )
    return lines


def cells(label: str, rows: list[Row]) -> list[str]:
    """The columns from the speed-up on, for one speed-up, or for several, with means."""
    exact = [f"{100 * (value - 1):+.2f}" for value in sorted(row.exact for row in rows)]
    return [
        label,
        f"{exact[0]} %" if len(rows) == 1 else f"{exact[0]} to {exact[-1]} %",
        f"{100 * mean([row.error for row in rows]):.2f} %",
        f"{100 * mean([row.half for row in rows]):.2f} %",
        f"{sum(row.held for row in rows)} of {sum(len(row.found) for row in rows)}",
    ]


def programs(directory: Path) -> dict[str, Source]:
    """The programs of tests/sampled, by name, built."""
    found: dict[str, Source] = {}
    for path in sorted(PROGRAMS.iterdir()):
        if path.suffix == ".c":
            target = directory / path.stem
            subprocess.run(["cc", "-O1", "-pthread", "-o", target, path], check=True)
            command = [str(target)]
        else:
            interpreter = {".py": sys.executable, ".sh": "sh"}[path.suffix]
            command = [interpreter, str(path)]
        found[path.stem] = Source(path.stem, [], command)
    return found


def sources(names: list[str], directory: Path) -> list[Source]:
    """What is asked for; all programs of tests/sampled if nothing is."""
    known = programs(directory)
    if {"python", "sort"} & set(names):
        for name, trace in record(directory, ["--exhaustive"]):
            known[name] = Source(name, ["--trace", str(trace)], [])
    for name in names:
        if "+" in name:
            known[name] = Source(name, ["--mix", name.replace("+", ",")], [])
        elif ":" in name:
            known[name] = Source(name, ["--workload", name], [])
        elif name not in known:
            sys.exit(f"error: there is no source {name}: {', '.join(known)}, or a workload as gups:1GiB")
    return [known[name] for name in names or known]


def recorded(source: Source, directory: Path) -> Source:
    """A program's recording from first to last instruction, in its place."""
    trace = directory / f"{source.name}.fwt"
    arguments = ["record", "--exhaustive", "-o", str(trace), "--", *source.command]
    done = subprocess.run(
        [sys.executable, "-m", "flatwalk", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"error: {source.name}: {done.stderr}")
    return Source(source.name, ["--trace", str(trace)], [])


def compare(options: list[str], source: Source, directory: Path) -> Timed:
    """What `flatwalk compare` answers."""
    before = os.times()
    target = directory / "answer.json"
    arguments = [
        *[sys.executable, "-m", "flatwalk", "compare", "--no-report", "--json", str(target)],
        *options,
        *source.options,
        *(["--", *source.command] if source.command else []),
    ]
    done = subprocess.run(arguments, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: {source.name}: {done.stderr}")
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Timed(json.loads(target.read_text()), spent)


def speed_ups(answer: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """By scheme and pages: the speed-up over the first scheme of these pages and its interval.

    An exhaustive run has no interval: all three are the speed-up.
    """
    found: dict[str, tuple[float, float, float]] = {}
    for run in answer["runs"]:
        if run["scheme"] != answer["runs"][0]["scheme"]:
            kind = "speedup" if "speedup" in run else "relative_weighted_speedup"
            exact, low, high = (run[f"{kind}{end}"] for end in ("", "_low", "_high"))
            found[f"{run['scheme']}, {run['large_pages']} %"] = (
                exact,
                exact if low is None else low,
                exact if high is None else high,
            )
    return found


def judged(answer: dict[str, Any]) -> tuple[float, float, int, bool]:
    """Instructions judged and measured, in millions, windows, and whether it is known how many there are."""
    programs = answer["sampling"] if isinstance(answer["sampling"], list) else [answer["sampling"]]
    represented, measured = (
        sum(program[key] for program in programs) / 1e6
        for key in ("instructions_represented", "instructions_measured")
    )
    is_known = all(program["instructions_total"] is not None for program in programs)
    return represented, measured, programs[0]["windows"], is_known


def asked() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sources", default=None)
    parser.add_argument("--windows", default=None, help="numbers of windows [default: compare's]")
    parser.add_argument("--schemes", default="radix4,fpt,fpt+ptp,ideal")
    parser.add_argument("--large-pages", default="0")
    parser.add_argument("--warmup", default=None, help="instructions before each window [default: compare's]")
    parser.add_argument("--instructions", default=None, help="judge only so many [default: compare's]")
    parser.add_argument("--one-recording", action="store_true", help="sample one recording of each program")
    parser.add_argument("--each-seed", action="store_true", help="an exhaustive run for each seed")
    parser.add_argument("--default", action="store_true", help="compare's schemes and pages")
    return parser.parse_args()


def main() -> None:
    """Runs everything and prints the tables."""
    options = asked()
    common = [] if options.default else ["--schemes", options.schemes, "--large-pages", options.large_pages]
    common += ["--instructions", options.instructions] if options.instructions else []
    counts = options.windows.split(",") if options.windows else [None]
    held = of = 0
    others: list[str] = []
    with tempfile.TemporaryDirectory(prefix="flatwalk-sampling-") as name:
        directory = Path(name)
        print(
            "| source | M instr. | windows | measured | speed-up of | exhaustive | error | ± | held | time |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
        for found in sources(options.sources.split(",") if options.sources else [], directory):
            source = recorded(found, directory) if options.one_recording and found.command else found
            whole = compare([*common, "--exhaustive"], source, directory)
            wholes = {1: whole}
            instructions, _, _, is_known = judged(whole.answer)
            if not is_known and not options.instructions:
                sys.exit(f"error: {source.name} has no end: give --instructions, as 1G")
            for count in counts:
                rows = {scheme: Row() for scheme in speed_ups(whole.answer)}
                seconds = windows = measured = 0.0
                for seed in range(1, options.seeds + 1):
                    windowed = ["--windows", count] if count else []
                    windowed += ["--warmup", options.warmup] if options.warmup else []
                    part = compare([*common, "--seed", str(seed), *windowed], source, directory)
                    represented, of_windows, number, _ = judged(part.answer)
                    if abs(represented / instructions - 1) > SAME:
                        sys.exit(
                            f"error: {source.name}: samples are of {represented:.0f} M instructions, "
                            f"the exhaustive run of {instructions:.0f} M: give --instructions"
                        )
                    seconds += part.seconds / options.seeds
                    windows += number / options.seeds
                    measured += of_windows / options.seeds
                    its = seed if options.each_seed else 1
                    if its not in wholes:
                        wholes[its] = compare(
                            [*common, "--exhaustive", "--seed", str(its)], source, directory
                        )
                    exact = speed_ups(wholes[its].answer)
                    for scheme, speed_up in speed_ups(part.answer).items():
                        rows[scheme].found.append((exact[scheme][0], *speed_up))
                held += sum(row.held for row in rows.values())
                of += sum(len(row.found) for row in rows.values())
                others += [line for scheme, row in rows.items() for line in missed(source.name, scheme, row)]
                lines = {scheme: [row] for scheme, row in rows.items()}
                if options.default:
                    lines = {f"{len(rows)} others": list(rows.values())}
                for label, together in lines.items():
                    line = [
                        source.name,
                        f"{instructions:.0f}",
                        f"{windows:.0f}",
                        f"{100 * measured / instructions:.2f} %",
                        *cells(label, together),
                        f"{seconds / whole.seconds:.2f}",
                    ]
                    print(f"| {' | '.join(line)} |", flush=True)
    print(f"\nThe exhaustive value lies in {held} of {of} intervals.")
    if others:
        print("\nIt does not lie in:\n")
        print("\n".join(others))


if __name__ == "__main__":
    main()
