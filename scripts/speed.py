#!/usr/bin/env python3
"""How fast and in how much memory the whole of `flatwalk compare` runs: one configuration, one thread.

    scripts/speed.py [--rounds N]

Records two real programs (Python working on JSON, and sort), then times complete commands on them and on
gups:8GiB, from start to exit, and prints a table in Markdown: the best of N rounds (default 3), the rates
that follow, and the largest resident memory. In the modes `timing` and `functional` all is measured; in
`warming` all but a short window is warmed, without a clock, as before each window of a sampled run. Ratios
between two builds mean something only when both run in the same minutes on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = """
import json, random
random.seed(1)
d = {str(random.getrandbits(40)): [i, i * 2.5, str(i)] for i in range(200000)}
e = json.loads(json.dumps(d))
print(sum(v[0] for v in e.values()), sorted(e)[:3])
"""


@dataclass(frozen=True)
class Measured:
    """One command: elapsed time in seconds, largest resident memory in bytes."""

    seconds: float
    resident_bytes: int


def measure(command: list[str | Path]) -> Measured:
    """Runs a command to its end; its output is dropped."""
    start = time.perf_counter()
    with subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command))} ended with status {process.returncode}")
    return Measured(time.perf_counter() - start, usage.ru_maxrss * 1024)


def record(directory: Path, limits: list[str]) -> list[tuple[str, Path]]:
    """Records the programs, as far as `record`'s options say; returns names and traces."""
    lines = directory / "lines.txt"
    lines.write_text("\n".join(str(n * 2_654_435_761 % 10**9) for n in range(1_000_000)) + "\n")
    programs = {"python": [sys.executable, "-I", "-c", PYTHON], "sort": ["sort", str(lines)]}
    traces: list[tuple[str, Path]] = []
    for name, command in programs.items():
        trace = directory / f"{name}.fwt"
        measure([ROOT / "flatwalk", "record", "--no-follow", *limits, "-o", trace, "--", *command])
        traces.append((name, trace))
    return traces


# Windows behind what is only warmed: as few, and as short, as rates can be told from.
WINDOWS = 3
WINDOW = 100_000


@dataclass(frozen=True)
class Source:
    """What is timed: its name, the option that names it, its instructions, and those not counted."""

    name: str
    option: list[str | Path]
    instructions: int
    warmup: int

    def options(self, mode: str) -> list[str | Path]:
        """The options of `compare` that simulate all of it in this mode."""
        if mode == "warming":
            # Windows that leave out an instruction each are windows, and not one part that is measured.
            sampled = WINDOWS * (WINDOW + 1)
            windows = ["--windows", str(WINDOWS), "--window", str(WINDOW), "--instructions", str(sampled)]
            return [*self.option, "--mode", "timing", "--warmup", str(self.instructions - sampled), *windows]
        measured = ["--instructions", str(self.instructions - self.warmup), "--warmup", str(self.warmup)]
        return [*self.option, "--mode", mode, "--exhaustive", *measured]


def sources(directory: Path) -> list[Source]:
    """What is timed."""
    traces = record(directory, ["--skip", "50M", "--limit", "200M"])
    return [
        *(Source(name, ["--trace", path], 199_000_000, 10_000_000) for name, path in traces),
        Source("gups:8GiB", ["--workload", "gups:8GiB"], 100_000_000, 1_000_000),
    ]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="flatwalk-speed-") as name:
        directory = Path(name)
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
        print("| source | mode | s | M instructions/s | M accesses/s | M walks/s | resident MB |")
        print("|---|---|---|---|---|---|---|")
        out = directory / "out.json"
        for source in sources(directory):
            for mode in ("timing", "functional", "warming"):
                command = [ROOT / "flatwalk", "compare", *source.options(mode), "--schemes", "radix4"]
                command += ["--large-pages", "0", "--jobs", "1", "--no-report", "--json", out]
                best = min((measure(command) for _ in range(rounds)), key=lambda one: one.seconds)
                answer = json.loads(out.read_text())
                run, simulated = answer["runs"][0], answer["trace"]["instructions"]
                # Counts are of the measured part; what is warmed has as many for each instruction.
                whole = simulated / run["instructions"] / best.seconds / 1e6
                rates = [run["instructions"], run["loads"] + run["stores"], run["walks"]]
                cells = [
                    f"{rate * whole:.2f}" if rate == run["walks"] else f"{rate * whole:.1f}" for rate in rates
                ]
                cells += [f"{best.resident_bytes / 1e6:.0f}"]
                print(f"| {source.name} | {mode} | {best.seconds:.2f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
