#!/usr/bin/env python3
"""How far sampled answers are from exhaustive ones, how sure they say they are, and what they cost.

    scripts/sampling.py [--seeds N] [--programs A,B,...] [--schemes A,B,...]

Each program of tests/sampled is recorded from first to last instruction and simulated so, and then, once
for each seed, recorded as `flatwalk compare -- CMD` records it and simulated with windows. Prints a table
in Markdown: of each scheme's speed-up over the first, and of large pages, what the exhaustive run gives,
the sampled ones' mean distance from it and mean interval, and in how many of them it lies; processor time
(of this process and all that it started) and instructions of the programs. Several threads or processes do
not run alike twice, so that for them the exhaustive run is of another execution.
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
from typing import Any

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tests" / "sampled"


@dataclass
class Timed:
    """Results of one command and the processor time that it took, in seconds."""

    answer: dict[str, Any]
    seconds: float


@dataclass
class Row:
    """One speed-up: what all sampled runs say of it."""

    exact: float
    found: list[tuple[float, float, float]] = field(default_factory=list)

    @property
    def held(self) -> int:
        """Samples whose interval the exhaustive value lies in."""
        return sum(low <= self.exact <= high for _, low, high in self.found)


def built(directory: Path) -> dict[str, list[str]]:
    """The programs' commands, by name."""
    commands: dict[str, list[str]] = {}
    for path in sorted(PROGRAMS.iterdir()):
        if path.suffix == ".c":
            target = directory / path.stem
            subprocess.run(["cc", "-O1", "-pthread", "-o", target, path], check=True)
            commands[path.stem] = [str(target)]
        else:
            interpreter = {".py": sys.executable, ".sh": "sh"}[path.suffix]
            commands[path.stem] = [interpreter, str(path)]
    return commands


def compare(options: list[str], command: list[str], directory: Path) -> Timed:
    """What `flatwalk compare` answers."""
    before = os.times()
    target = directory / "answer.json"
    arguments = [
        sys.executable,
        "-m",
        "flatwalk",
        "compare",
        "--no-report",
        "--json",
        target,
        *options,
        "--",
        *command,
    ]
    done = subprocess.run(
        [str(word) for word in arguments], cwd=directory, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)}: {done.stderr}")
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Timed(json.loads(target.read_text()), spent)


def speed_ups(answer: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """By scheme and pages: the speed-up over the first scheme of these pages and its interval."""
    return {
        f"{run['scheme']}, {run['large_pages']} %": (run["speedup"], run["speedup_low"], run["speedup_high"])
        for run in answer["runs"][1:]
        if run["speedup_low"] is not None and run["scheme"] != answer["runs"][0]["scheme"]
    }


def main() -> None:
    """Runs everything and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--programs", default=None)
    parser.add_argument("--schemes", default="radix4,fpt,fpt+ptp,ideal")
    parser.add_argument("--large-pages", default="0")
    options = parser.parse_args()
    common = ["--schemes", options.schemes, "--large-pages", options.large_pages]
    held = asked = 0
    with tempfile.TemporaryDirectory(prefix="flatwalk-sampling-") as name:
        directory = Path(name)
        commands = built(directory)
        print("| program | M instr. | speed-up of | exhaustive | error | ± | held | time |")
        print("|---|---|---|---|---|---|---|---|")
        for program in options.programs.split(",") if options.programs else commands:
            whole = compare([*common, "--exhaustive"], commands[program], directory)
            rows = {scheme: Row(value) for scheme, (value, *_) in speed_ups(whole.answer).items()}
            seconds = 0.0
            for seed in range(1, options.seeds + 1):
                part = compare([*common, "--seed", str(seed)], commands[program], directory)
                seconds += part.seconds
                for scheme, found in speed_ups(part.answer).items():
                    rows[scheme].found.append(found)
            instructions = whole.answer["sampling"]["instructions_total"] / 1e6
            share = seconds / options.seeds / whole.seconds
            for scheme, row in rows.items():
                held, asked = held + row.held, asked + len(row.found)
                error = sum(abs(value / row.exact - 1) for value, _, _ in row.found) / len(row.found)
                half = sum((high - low) / 2 / value for value, low, high in row.found) / len(row.found)
                print(
                    f"| {program} | {instructions:.0f} | {scheme} | {100 * (row.exact - 1):+.2f} % | "
                    f"{100 * error:.2f} % | {100 * half:.2f} % | {row.held} of {len(row.found)} | "
                    f"{share:.2f} |",
                    flush=True,
                )
    print(f"\nThe exhaustive value lies in {held} of {asked} intervals.")


if __name__ == "__main__":
    main()
