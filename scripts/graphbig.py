#!/usr/bin/env python3
"""How often programs with GraphBIG's data structures miss the TLB, and the workloads that stand for them.

    scripts/graphbig.py [--vertices N] [--instructions COUNT] [--seed N] [KERNEL …]

Compiles scripts/graphbig/kernels.cpp with `g++ -O3`, as GraphBIG is built, records each kernel (bfs, cc,
dc, pr) from its first instruction on, and prints a table in Markdown: walks in 1000 instructions and accesses
of a walk, of the recording and of the workload with as many vertices, over as many instructions; and the
kernel's instructions for each edge that it follows.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FLATWALK = ROOT / "flatwalk"
KERNELS = ("bfs", "cc", "dc", "pr")
WHAT = ("walks in 1000", "accesses a walk")
#: Bytes of an edge, and edges of a vertex.
EDGE_BYTES, MEAN_DEGREE = 272, 28.82
#: Bytes of a vertex with its bucket and its place in a queue (engine/workloads/src/graphbig).
VERTEX_BYTES = {"bfs": 608, "cc": 592, "dc": 584, "pr": 584}


def size_bytes(kernel: str, vertices: int) -> int:
    """The size of the built-in workload that has so many vertices."""
    return int(vertices * (VERTEX_BYTES[kernel] + MEAN_DEGREE * EDGE_BYTES)) + 128


def compiled(source: Path, directory: Path) -> Path:
    """A program of one file."""
    program = directory / source.stem
    options = ["-O3", "-std=c++11", "-Wno-deprecated", f"-I{ROOT / 'recorder'}"]
    subprocess.run(["g++", *options, "-o", program, source], check=True)
    return program


def record(trace: Path, *arguments: str) -> tuple[str, int]:
    """What a program prints that `flatwalk record` records, and the trace's instructions."""
    command = [FLATWALK, "record", "-o", trace, *arguments]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    command = [FLATWALK, "trace", "info", "--json", trace]
    info = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return told, int(json.loads(info)["instructions"])


def walked(source: list[str], count: str, directory: Path) -> dict[str, Any]:
    """What `flatwalk compare` counts of the first `count` instructions of a source with 4 KiB pages."""
    answer = directory / "answer.json"
    lengths = ["--exhaustive", "--warmup", "0", "--instructions", count]
    command = [FLATWALK, "compare", *source, *lengths, "--schemes", "radix4", "--large-pages", "0"]
    command += ["--mode", "functional", "--json", answer, "--no-report"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    run: dict[str, Any] = json.loads(answer.read_text())["runs"][0]
    return run


def per_1000(run: dict[str, Any]) -> float:
    """Walks in 1000 instructions."""
    return float(1000 * run["walks"] / run["instructions"])


def main() -> None:
    """Prints the table."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--vertices", type=int, default=32_700)
    parser.add_argument("--instructions", default="10M")
    parser.add_argument("--seed", default="1")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", default=[])
    options = parser.parse_args()
    conditions = f"the first {options.instructions} instructions, seed {options.seed}"
    print(f"{options.vertices:,} vertices, {conditions}:\n")
    print(
        f"| kernel | instructions an edge | {' | '.join(f'{what}, recorded | built in' for what in WHAT)} |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = compiled(ROOT / "scripts" / "graphbig" / "kernels.cpp", directory)
        for kernel in options.kernels or KERNELS:
            print(row(kernel, program, directory, options), flush=True)


def row(kernel: str, program: Path, directory: Path, options: argparse.Namespace) -> str:
    """One kernel's row of the table."""
    trace = directory / f"{kernel}.fwt"
    command = [str(program), kernel, str(options.vertices), options.seed]
    told, instructions = record(trace, "--exhaustive", "--start-at", "marker", "--", *command)
    edge = instructions / int(re.search(r"followed=(\d+)", told)[1])  # type: ignore[index]
    recorded = walked(["--trace", str(trace)], options.instructions, directory)
    size = f"graphbig-{kernel}:{size_bytes(kernel, options.vertices)}"
    built_in = walked(["--workload", size, "--seed", options.seed], options.instructions, directory)
    walks = [f"{per_1000(run):.1f}" for run in (recorded, built_in)]
    accesses = [f"{run['accesses_per_walk']:.2f}" for run in (recorded, built_in)]
    return f"| {kernel} | {edge:.1f} | {walks[0]} | {walks[1]} | {accesses[0]} | {accesses[1]} |"


if __name__ == "__main__":
    main()
