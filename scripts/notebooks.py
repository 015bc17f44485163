#!/usr/bin/env python3
"""Runs the notebooks of the documents, and writes what they print into them.

    scripts/notebooks.py [--check] [NOTEBOOK…]      default: all of docs/notebooks

Simulations give the same figures on every machine, so that a notebook's text is always the same. With
--check nothing is written: a notebook whose text differs from what it prints now is named, and the status
is 1. Pictures are not compared, as they depend on the versions of libraries and fonts.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "docs" / "notebooks"


def run(path: Path) -> Any:  # noqa: ANN401 - nbformat has no type for it
    """A notebook after a run in an empty directory; without what differs, as progress does."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="flatwalk-notebook-") as directory:
        work = {"metadata": {"path": directory}}
        NotebookClient(notebook, timeout=1800, record_timing=False, resources=work).execute()
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        outputs[:] = [output for output in outputs if output.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return notebook


def text(notebook: Any) -> list[str]:  # noqa: ANN401
    """What a notebook says and prints, line by line, without pictures."""
    lines: list[str] = []
    for cell in notebook.cells:
        lines += cell.source.splitlines()
        for output in cell.get("outputs", []):
            data = {"text/plain": output["text"]} if "text" in output else output.get("data", {})
            pictures = [kind for kind in data if kind.startswith("image/")]
            lines += pictures or [line for kind in sorted(data) for line in data[kind].splitlines()]
    return lines


def main() -> None:
    """Runs and writes, or compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted(NOTEBOOKS.glob("*.ipynb")))
    options = parser.parse_args()
    stale = False
    for path in options.notebooks:
        new = run(path)
        if not options.check:
            nbformat.write(new, path)
            print(path)
            continue
        old = text(nbformat.read(path, as_version=4))
        difference = list(difflib.unified_diff(old, text(new), str(path), "now", lineterm="", n=1))
        stale |= bool(difference)
        print(*difference, sep="\n")
    if stale:
        sys.exit("error: a notebook prints something else now\n  remedy: scripts/notebooks.py")


if __name__ == "__main__":
    main()
