#!/usr/bin/env python3
"""How often two runs of a bench on this host, one after the other, are said to differ.

    scripts/host_repeatability.py [PAIRS [BENCH [OPTION…]]]      default: 20 pagefault

Nothing changes between the two runs of a pair, so every difference is a false alarm: of 20 pairs, one
is what 95 % confidence allows. Pairs during which the host was busy with other things are counted apart:
`host diff` says so next to its verdict. Takes as long as twice PAIRS runs of the bench.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

FLATWALK = Path(__file__).resolve().parents[1] / "flatwalk"


def flatwalk(*arguments: str | Path) -> str:
    """Runs a command of flatwalk and returns what it prints."""
    return subprocess.run(
        [FLATWALK, "host", *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def main() -> None:
    """Measures pairs and counts those that differ."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    command = sys.argv[2:] or ["pagefault"]
    alarms: dict[bool, list[bool]] = {False: [], True: []}  # by whether the host was busy
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory) / "a.json", Path(directory) / "b.json"]
        for pair in range(1, pairs + 1):
            for number, file in enumerate(files):
                flatwalk(*command, "--seed", str(2 * pair + number), "--save", file)
            found = json.loads(flatwalk("diff", *files, "--json"))
            differing = [
                f"{name}: {one['verdict']}" for name, one in found["variants"].items() if one["differs"]
            ]
            alarms[found["busy"]].append(bool(differing))
            busy = " (busy host)" if found["busy"] else ""
            print(f"pair {pair}{busy}: {'; '.join(differing) or 'no measurable difference'}", flush=True)
    for busy_host, among in alarms.items():
        if among:
            print(
                f"{' '.join(command)}, {'busy' if busy_host else 'quiet'} host: "
                f"{among.count(False)} of {len(among)} pairs do not differ"
            )


if __name__ == "__main__":
    main()
