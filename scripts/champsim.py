#!/usr/bin/env python3
"""The same trace through flatwalk and through a ChampSim that you have built: what both count, side by side.

    scripts/champsim.py --champsim BIN --config champsim_config.json TRACE [--warmup N] [--instructions N]

TRACE is flatwalk's own, which is exported, or one of ChampSim's. BIN is the program that the configuration
has been built into. flatwalk simulates the machine that `flatwalk machine import` makes of the configuration,
with a radix table of as many levels, and reads the exported file, too. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: ChampSim's kinds of accesses that are the program's; a store that hits is looked up as RFO, too.
DATA = ("LOAD", "RFO")


@dataclass(frozen=True)
class Row:
    """One figure of both simulators."""

    name: str
    ours: float
    theirs: float

    def cells(self) -> str:
        """A line of the table."""
        both = [f"{one:,.0f}" if one == int(one) else f"{one:.3f}" for one in (self.ours, self.theirs)]
        if self.ours == self.theirs:
            return f"| {self.name} | {both[0]} | {both[1]} | equal |"
        ratio = f"{self.ours / self.theirs:.3f}" if self.theirs else "–"
        return f"| {self.name} | {both[0]} | {both[1]} | {ratio} |"


def call(command: list[str | Path]) -> None:
    """Runs a command; ends this program with its message if it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        sys.exit(f"error: {' '.join(map(str, command))} ended with status {done.returncode}:\n{said}")


def flatwalk(*words: str | Path) -> None:
    """Runs flatwalk, set up as it is."""
    call([ROOT / "flatwalk", *words])


def simulated(directory: Path, options: argparse.Namespace, trace: Path, levels: int) -> dict[str, Any]:
    """The figures of flatwalk."""
    machine, answer = directory / "machine.toml", directory / "flatwalk.json"
    flatwalk("machine", "import", options.config, machine)
    lengths = ["--warmup", str(options.warmup), "--instructions", str(options.instructions)]
    what: list[str | Path] = ["--machine", machine, "--schemes", f"radix{levels}", "--large-pages", "0"]
    flatwalk("compare", "--trace", trace, "--exhaustive", *what, *lengths, "--json", answer, "--no-report")
    run: dict[str, Any] = json.loads(answer.read_text())["runs"][0]
    return run


def champsim(directory: Path, options: argparse.Namespace, trace: Path) -> dict[str, Any]:
    """The figures of ChampSim, of what was measured."""
    answer = directory / "champsim.json"
    lengths = ["-w", str(options.warmup), "-i", str(options.instructions)]
    call([options.champsim.resolve(), "--hide-heartbeat", *lengths, "--json", answer, trace])
    found: dict[str, Any] = json.loads(answer.read_text())[0]["roi"]
    return found


def table(run: dict[str, Any], roi: dict[str, Any]) -> list[Row]:
    """What both count."""
    core = roi["cores"][0]
    caches = {cache["name"]: cache for cache in run["caches"]}
    l2 = [tlb for tlb in run["tlb"] if tlb["name"] == "L2"]

    def total(cache: str, what: tuple[str, ...], kinds: tuple[str, ...]) -> int:
        place = roi.get(f"cpu0_{cache}") or roi[cache]
        return int(sum(sum(place[kind][one]) for kind in kinds for one in what))

    every = tuple(kind for kind in roi["cpu0_STLB"] if isinstance(roi["cpu0_STLB"][kind], dict))
    lookups, hits = (sum(tlb[key] for tlb in l2) for key in ("lookups", "hits"))
    merged = total("STLB", ("mshr_merge",), every)
    rows = [
        Row("instructions", run["instructions"], core["instructions"]),
        Row("STLB look-ups", lookups, total("STLB", ("hit", "miss"), every) - merged),
        Row("STLB hits", hits, total("STLB", ("hit",), every)),
        Row("walks", run["walks"], total("STLB", ("miss",), every) - merged),
    ]
    for ours, theirs in (("L1D", "L1D"), ("L2", "L2C"), ("LLC", "LLC")):
        missed = total(theirs, ("miss",), DATA) - total(theirs, ("mshr_merge",), DATA)
        rows.append(Row(f"{theirs}: misses of data", caches[ours]["data_misses"], missed))
    for ours, theirs in (("L1D", "L1D"), ("L2", "L2C"), ("LLC", "LLC")):
        for what, key in ((("hit", "miss"), "table_accesses"), (("miss",), "table_misses")):
            name = f"{theirs}: {'accesses' if key == 'table_accesses' else 'misses'} of walks"
            rows.append(Row(name, caches[ours][key], total(theirs, what, ("TRANSLATION",))))
    rows.append(Row("cycles", run["cycles"], core["cycles"]))
    rows.append(Row("IPC", run["ipc"], core["instructions"] / core["cycles"]))
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--champsim", type=Path, required=True, metavar="BIN", help="ChampSim's program")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="its configuration")
    parser.add_argument("--warmup", type=int, default=1_000_000, metavar="N", help="instructions before")
    parser.add_argument(
        "--instructions", type=int, default=5_000_000, metavar="N", help="instructions counted"
    )
    options = parser.parse_args()
    for path in (options.trace, options.champsim, options.config):
        if not path.exists():
            sys.exit(f"error: there is no {path}")
    levels = json.loads(options.config.read_text()).get("virtual_memory", {}).get("num_levels", 5)
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        trace = options.trace
        if trace.suffix == ".fwt":
            trace = directory / f"{trace.stem}.champsimtrace.xz"
            flatwalk("trace", "export", options.trace, trace)
        run = simulated(directory, options, trace, levels)
        rows = table(run, champsim(directory, options, trace))
    print("| count | flatwalk | ChampSim | flatwalk / ChampSim |\n|---|---:|---:|---:|")
    print("\n".join(row.cells() for row in rows))


if __name__ == "__main__":
    main()
