"""docs/glossary.md: the words that flatwalk uses."""

from __future__ import annotations

from pathlib import Path

from flatwalk.report import glossary

PATH = Path(__file__).parents[3] / "docs" / "glossary.md"


def text() -> str:
    """The page."""
    rows = [f"| {word.word} | {word.meaning} |" for word in glossary.words()]
    return "\n".join(["# Glossary", "", "| word | meaning here |", "| --- | --- |", *rows]) + "\n"
