#!/usr/bin/env python3
"""How often recorded programs miss the TLB, and the workloads mcf, mummer, omnetpp and tiger.

    scripts/recorded.py [--seed N] [PROGRAM[:SIZE] …]

Records Debian's mummer and the programs in scripts/recorded, which have the data structures of the
workloads of their names, from where these begin. Prints a table in Markdown: instructions of the recording
and of a step (an iteration of the simplex, an event, or a fragment that is compared), walks in 1000
instructions and accesses of a walk, of the recording and of the workload with as many data, over as
many instructions.
"""

from __future__ import annotations

import argparse
import math
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from graphbig import ROOT, WHAT, compiled, per_1000, record, walked

if TYPE_CHECKING:
    from collections.abc import Callable

#: The workloads' sizes in MiB, as the experiments have them.
SIZES = {"mcf": 1668, "mummer": 512, "omnetpp": 170, "tiger": 512}
#: Instructions of mummer that are recorded, and steps of the others.
LIMIT = "200M"
STEPS = {"mcf": 2000, "omnetpp": 100_000, "tiger": 100}
#: Bytes of mummer's workload for each letter, and others (engine/workloads/src/mummer).
LETTER_BYTES, OTHER_BYTES = 17.1, 8448


def mcf(size_bytes: int) -> dict[str, int]:
    """What a workload of this size schedules (engine/workloads/src/mcf)."""
    size_bytes -= 350 * 32 + 64
    trips = max(size_bytes // 64 // 1000, math.isqrt(size_bytes // 16))
    return {"trips": trips, "deadheads": (size_bytes - (2 * trips + 2) * 168) // 64 - 2 * trips}


def omnetpp(size_bytes: int) -> dict[str, int]:
    """What sends frames (engine/workloads/src/omnetpp)."""

    def bytes_of(hosts: int) -> int:
        nodes = level = hosts
        while level > 1:
            level = -(-level // 16)
            nodes += level
        frames = max(hosts // 8, 64)
        return nodes * 3200 + (2 * nodes + hosts + frames) * 264 + frames * 32 + 256

    hosts = 2
    for step in (1 << bit for bit in reversed(range(size_bytes.bit_length()))):
        if bytes_of(hosts + step) <= size_bytes:
            hosts += step
    return {"hosts": hosts}


def tiger(size_bytes: int) -> dict[str, int]:
    """What is compared (engine/workloads/src/tiger)."""
    return {"fragments": (size_bytes - 8 * 4**10 - 256) // (512 + 48 + 16 * 491 + 8 + 4 + 512)}


SHAPES: dict[str, Callable[[int], dict[str, int]]] = {"mcf": mcf, "omnetpp": omnetpp, "tiger": tiger}


def row(name: str, size: int, seed: str, directory: Path) -> str:
    """One program's row of the table."""
    trace = directory / f"{name}.fwt"
    size_bytes = size << 20
    if name == "mummer":
        bases = int((size_bytes - OTHER_BYTES) / LETTER_BYTES)
        _, instructions = record(trace, "--workload", f"mummer:{20 * bases}", "--limit", LIMIT)
        data, step = f"{bases:,} letters", ""
    else:
        program = compiled(ROOT / "scripts" / "recorded" / f"{name}.cpp", directory)
        shape = SHAPES[name](size_bytes)
        command = [str(program), *map(str, shape.values()), seed, str(STEPS[name])]
        told, instructions = record(trace, "--exhaustive", "--start-at", "marker", "--", *command)
        steps = int(re.search(r"steps=(\d+)", told)[1])  # type: ignore[index]
        data = " and ".join(f"{count:,} {what}" for what, count in shape.items())
        step = f"{instructions / steps:,.0f}"
    runs = [
        walked(source, str(instructions), directory)
        for source in (["--trace", str(trace)], ["--workload", f"{name}:{size}MiB", "--seed", seed])
    ]
    walks = " | ".join(f"{per_1000(run):.2f}" for run in runs)
    accesses = " | ".join(f"{run['accesses_per_walk']:.2f}" for run in runs)
    trace.unlink()
    return f"| {name}, {size} MiB | {data} | {instructions / 1e6:.1f} M | {step} | {walks} | {accesses} |"


def main() -> None:
    """Prints the table."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--seed", default="1")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM[:SIZE]", help="SIZE in MiB", default=[])
    options = parser.parse_args()
    columns = ", recorded | built in | ".join(WHAT)
    print(f"| program | data | instructions | a step | {columns}, recorded | built in |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as directory:
        for program in options.programs or SIZES:
            name, _, size = program.partition(":")
            print(row(name, int(size or SIZES[name]), options.seed, Path(directory)), flush=True)


if __name__ == "__main__":
    main()
