#!/usr/bin/env python3
"""How fast `flatwalk sweep` is against the engine alone, by processor time.

    scripts/lab_speed.py [--runs N] [--instructions COUNT]

Runs a sweep of functional configurations on two processes, and the same configurations by one call of
the engine with two threads. Prints both times, of this process and all that it started, and the sweep's
share of the engine's speed; elapsed times, too, which mean something only where nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flatwalk import engine
from flatwalk.lab import plan
from flatwalk.lab.sweep import Sweep


def processor_seconds() -> float:
    """Time of this process and of its children that have ended."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def main() -> None:
    """Runs both and prints the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="rounded down to a multiple of 8")
    parser.add_argument("--instructions", default="2M")
    options = parser.parse_args()
    table = {
        "name": "speed",
        "workloads": ["gups:256MiB"],
        "schemes": ["radix4", "fpt", "fpt-l3l2", "radix5"],
        "large_pages": [0, 50],
        "mode": "functional",
        "instructions": options.instructions,
        "warmup": 0,
        "exhaustive": True,
        "set": {"pwc.entries.L2": list(range(1, options.runs // 8 + 1))},
    }
    with tempfile.TemporaryDirectory(prefix="flatwalk-") as name:
        file = Path(name) / "speed.toml"
        lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if key != "set"]
        keys = [f'"{key}" = {json.dumps(value)}' for key, value in table["set"].items()]
        file.write_text("\n".join([*lines, "[set]", *keys]))
        units = plan.plan(Sweep.read(str(file)))
        before, begun = processor_seconds(), time.monotonic()
        command = [sys.executable, "-m", "flatwalk", "sweep", file, "--results", f"{name}/r", "-j", "2"]
        subprocess.run(command, check=True)
        swept, elapsed = processor_seconds() - before, time.monotonic() - begun
        request = {**units[0].request, "threads": 2, "runs": [unit.configuration for unit in units]}
        before, begun = processor_seconds(), time.monotonic()
        engine.simulate(request, lambda *_: None)
        alone, other = processor_seconds() - before, time.monotonic() - begun
    print(f"{len(units)} runs of {options.instructions} instructions")
    print(f"sweep:  {swept:.1f} s of processor time, {elapsed:.1f} s elapsed")
    print(f"engine: {alone:.1f} s of processor time, {other:.1f} s elapsed")
    shares = f"{alone / swept:.0%} by processor time, {other / elapsed:.0%} elapsed"
    print(f"the sweep's share of the engine's speed: {shares}")


if __name__ == "__main__":
    main()
