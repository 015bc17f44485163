#!/usr/bin/env python3
"""Pages of 1,000 runs drawn by Vega-Lite and Observable Plot, for docs/adr/0012-a-report-to-explore.md.

    npm pack vega vega-lite vega-embed d3 @observablehq/plot
    python -m scripts.report_libraries DIRECTORY
    python -m scripts.report_speed --page DIRECTORY/vega-lite.html --page DIRECTORY/plot.html

DIRECTORY holds what `npm pack` wrote. Each page has the library in it, and for each of six figures the curves
of four schemes over five sizes in two panels, as `flatwalk results report` has for the sweep of
`scripts.report_speed`, with made-up values. The table of all runs, and the heat maps, are left out.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from pathlib import Path

#: By page: the minified files of the packages that it needs, in order.
LIBRARIES = {
    "vega-lite": [
        "vega-[0-9]*/build/vega.min",
        "vega-lite-*/build/vega-lite.min",
        "vega-embed-*/build/vega-embed.min",
    ],
    "plot": ["d3-*/dist/d3.min", "observablehq-plot-*/dist/plot.umd.min"],
}
FIGURES = ("speedup", "ipc", "walks_per_1000", "accesses_per_walk", "walk_latency_cycles", "page_table_bytes")

DRAW = {
    "vega-lite": """
for (const y of FIGURES) {
  const at = document.body.appendChild(document.createElement("div"));
  const x = { field: "llc", type: "quantitative", scale: { type: "log", base: 2 } };
  const of = { field: y, type: "quantitative" };
  vegaEmbed(at, { data: { values: RUNS }, facet: { column: { field: "large_pages" } }, spec: {
    width: 300, height: 180, encoding: { x, color: { field: "scheme" } }, layer: [
      { mark: "line", encoding: { y: { ...of, aggregate: "mean" } } },
      { mark: { type: "errorbar", extent: "iqr" }, encoding: { y: of } }] } }, { actions: false });
}""",
    "plot": """
for (const y of FIGURES) {
  const of = { x: "llc", stroke: "scheme", fx: "large_pages" };
  const mean = Plot.groupX({ y: "mean" }, { ...of, y });
  const whisker = Plot.groupX({ y1: "p25", y2: "p75" }, { ...of, y1: y, y2: y });
  const marks = [Plot.lineY(RUNS, mean), Plot.dot(RUNS, mean), Plot.ruleX(RUNS, whisker)];
  const x = { type: "log", base: 2 };
  document.body.append(Plot.plot({ width: 900, height: 220, x, color: { legend: true }, marks }));
}""",
}


def runs() -> list[dict[str, object]]:
    """A thousand runs of made-up figures."""
    return [
        {"scheme": scheme, "llc": 1 << shift, "large_pages": pages, "entries": entries}
        | {
            figure: 1 + shift * (number + 1) / 100 + pages / 500 + entries / 300
            for number, figure in enumerate(FIGURES)
        }
        for scheme in ("radix4", "fpt", "fpt+ptp", "radix4+ptp")
        for shift in range(20, 25)
        for pages in (0, 50)
        for entries in range(1, 26)
    ]


def library(directory: Path, pattern: str) -> tuple[str, str]:
    """The name of a package with its version, and a file of it."""
    package, _, inside = pattern.partition("/")
    (archive,) = directory.glob(f"{package}.tgz")
    with tarfile.open(archive) as packed:
        file = packed.extractfile(f"package/{inside}.js")
        assert file is not None
        return archive.stem, file.read().decode()


def main() -> None:
    """Writes the pages, and prints the sizes of the libraries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    for name, patterns in LIBRARIES.items():
        files = [library(directory, pattern) for pattern in patterns]
        sizes = ", ".join(f"{package} {len(text.encode()) / 1e3:.0f} kB" for package, text in files)
        print(f"{name}: {sizes}; together {sum(len(text.encode()) for _, text in files) / 1e3:.0f} kB")
        data = f"const RUNS = {json.dumps(runs())}, FIGURES = {json.dumps(FIGURES)};{DRAW[name]}"
        scripts = "".join(f"<script>{text}</script>\n" for text in [*(text for _, text in files), data])
        head = f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{name}</title><body>'
        page = f"{head}\n{scripts}</body></html>"
        (directory / f"{name}.html").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
