#!/usr/bin/env python3
"""The same trace through flatwalk and through a ChampSim that you have built: what both count, side by side.

    scripts/champsim.py --champsim BIN --config champsim_config.json TRACE... [--warmup N] [--instructions N]

Each TRACE is flatwalk's own, which is exported, or one of ChampSim's. BIN is the program that the
configuration has been built into. flatwalk simulates the machine that `flatwalk machine import` makes of the
configuration, with a radix table of as many levels, and reads the exported file, too; `--set KEY=VALUE`
changes that machine. Prints a table in Markdown for each trace.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: ChampSim's kinds of accesses that are the program's. A store is WRITE in the L1D and RFO behind it, where
#: WRITE is what the cache before writes back.
DATA = {"L1D": ("LOAD", "WRITE"), "L2C": ("LOAD", "RFO"), "LLC": ("LOAD", "RFO")}


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
    if done.returncode == 0:
        return
    # What ChampSim then prints is headed DEADLOCK, whether or not anything waits for itself.
    if slow := re.search(r"^.* panic: IPC .*$", done.stdout, re.MULTILINE):
        sys.exit(
            f"error: ChampSim gave up: {slow[0]}: it ends a program that is this slow for 10 M cycles; "
            "give a longer --warmup, which touches its pages before"
        )
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
    what += [word for setting in options.set for word in ("--set", setting)]
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
    tlbs = {tlb["name"]: tlb for tlb in run["tlb"] if tlb["page"] == "4K"}

    def total(cache: str, what: tuple[str, ...], kinds: tuple[str, ...]) -> int:
        place = roi.get(f"cpu0_{cache}") or roi[cache]
        return int(sum(sum(place[kind][one]) for kind in kinds for one in what))

    def missed(cache: str, kinds: tuple[str, ...]) -> int:
        """Misses but for those that wait for one under way."""
        return total(cache, ("miss",), kinds) - total(cache, ("mshr_merge",), kinds)

    rows = [Row("instructions", run["instructions"], core["instructions"])]
    for ours, theirs in (("L1D", "DTLB"), ("L2", "STLB")):
        tlb = tlbs[ours]
        rows.append(Row(f"{theirs}: look-ups", tlb["lookups"], total(theirs, ("hit", "miss"), ("LOAD",))))
        rows.append(Row(f"{theirs}: misses", tlb["lookups"] - tlb["hits"], missed(theirs, ("LOAD",))))
    walks = missed("STLB", ("LOAD",))
    # Of the cache that walks begin in.
    read = max(total(cache, ("hit", "miss"), ("TRANSLATION",)) for cache in DATA)
    rows += [
        Row("walks", run["walks"], walks),
        Row("accesses of walks", max(cache["table_accesses"] for cache in run["caches"]), read),
        Row("accesses a walk", run["accesses_per_walk"] or 0.0, read / walks if walks else 0.0),
    ]
    for ours, theirs in (("L1D", "L1D"), ("L2", "L2C"), ("LLC", "LLC")):
        counts, kinds = caches[ours], DATA[theirs]
        rows += [
            Row(
                f"{theirs}: accesses of data", counts["data_accesses"], total(theirs, ("hit", "miss"), kinds)
            ),
            Row(f"{theirs}: misses of data", counts["data_misses"], missed(theirs, kinds)),
            Row(f"{theirs}: misses of walks", counts["table_misses"], missed(theirs, ("TRANSLATION",))),
        ]

    def memory(queues: tuple[str, ...], what: tuple[str, ...]) -> int:
        counts = (
            channel[f"{queue} ROW_BUFFER_{one}"]
            for channel in roi["DRAM"]
            for queue in queues
            for one in what
        )
        return sum(counts)

    dram = run["dram"]
    rows += [
        Row("DRAM: reads", dram["reads"], memory(("RQ",), ("HIT", "MISS"))),
        Row("DRAM: writes", dram["writes"], memory(("WQ",), ("HIT", "MISS"))),
        Row("DRAM: hits of rows", dram["row_hits"], memory(("RQ", "WQ"), ("HIT",))),
        Row("branches mispredicted", run["branch"]["mispredictions"], sum(core["mispredict"].values())),
        Row("cycles", run["cycles"], core["cycles"]),
        Row("IPC", run["ipc"], core["instructions"] / core["cycles"]),
    ]
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("traces", type=Path, metavar="TRACE", nargs="+")
    parser.add_argument("--champsim", type=Path, required=True, metavar="BIN", help="ChampSim's program")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="its configuration")
    parser.add_argument("--warmup", type=int, default=1_000_000, metavar="N", help="instructions before")
    parser.add_argument(
        "--instructions", type=int, default=5_000_000, metavar="N", help="instructions counted"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of flatwalk's machine"
    )
    options = parser.parse_args()
    for path in (*options.traces, options.champsim, options.config):
        if not path.exists():
            sys.exit(f"error: there is no {path}")
    levels = json.loads(options.config.read_text()).get("virtual_memory", {}).get("num_levels", 5)
    for given in options.traces:
        with tempfile.TemporaryDirectory() as place:
            directory = Path(place)
            trace = given
            if trace.suffix == ".fwt":
                trace = directory / f"{trace.stem}.champsimtrace.xz"
                flatwalk("trace", "export", given, trace)
            run = simulated(directory, options, trace, levels)
            rows = table(run, champsim(directory, options, trace))
        print(f"{given.name.partition('.')[0]}:\n")
        print("| count | flatwalk | ChampSim | flatwalk / ChampSim |\n|---|---:|---:|---:|")
        print("\n".join(row.cells() for row in rows), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
