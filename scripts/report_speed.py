#!/usr/bin/env python3
"""How long the report of many runs takes to open in headless Chromium.

    python -m scripts.report_speed [--runs N] [--rounds N]

Runs a sweep of N short configurations, writes `flatwalk results report` of it, and opens the page. Prints its
size, how long it takes to write, and two medians: the time from asking for the page until it is loaded, its
script has run and a frame has been drawn, and the processor time of the page's thread in it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Until two frames after the page was loaded have been begun: the first has been drawn then.
DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))"


def write(directory: Path, runs: int) -> Path:
    """Runs the sweep and writes its report."""
    sizes = [2**shift for shift in range(20, 25)]
    table = {
        "name": "speed",
        "workloads": ["gups:16MiB"],
        "schemes": ["radix4", "fpt", "fpt+ptp", "radix4+ptp"],
        "large_pages": [0, 50],
        "instructions": 60_000,
        "warmup": 20_000,
    }
    changed = {"llc.size_bytes": sizes, "pwc.entries.L2": list(range(1, runs // 40 + 1))}
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    keys = [f'"{key}" = {json.dumps(value)}' for key, value in changed.items()]
    file = directory / "speed.toml"
    file.write_text("\n".join([*lines, "[set]", *keys]))
    flatwalk = [sys.executable, "-m", "flatwalk"]
    subprocess.run([*flatwalk, "sweep", file, "--results", directory / "results"], check=True)
    page = directory / "report.html"
    begun = time.monotonic()
    subprocess.run(
        [*flatwalk, "results", "report", "--results", directory / "results", "-o", page], check=True
    )
    print(f"written in {time.monotonic() - begun:.2f} s")
    return page


def opened(browser: Browser, page: Path) -> tuple[float, float]:
    """Seconds until a page is drawn, and of them those of the processor for the page's thread."""
    tab = browser.new_page()
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    begun = time.monotonic()
    tab.goto(page.absolute().as_uri(), wait_until="load")
    tab.evaluate(DRAWN)
    elapsed = time.monotonic() - begun
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    tab.close()
    return elapsed, float(metrics["TaskDuration"])


def main() -> None:
    """Runs, opens, and prints the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="rounded down to a multiple of 40")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--page", type=Path, action="append", default=[], help="a page to open, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flatwalk-") as name, sync_playwright() as playwright:
        pages = [write(Path(name), options.runs), *options.page]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for page in pages:
            times = [opened(browser, page) for _ in range(options.rounds)]
            (elapsed, busy), worst = map(statistics.median, zip(*times, strict=True)), max(times)[0]
            size = f"{page.stat().st_size / 1e6:.2f} MB"
            print(
                f"{page.name}: {size}, opened in {elapsed:.2f} s, at most {worst:.2f} s ({len(times)} times)"
            )
            print(f"of that, processor time of the page's thread: {busy:.2f} s")
        browser.close()


if __name__ == "__main__":
    main()
