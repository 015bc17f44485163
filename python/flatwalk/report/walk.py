"""The report of `flatwalk walk`: translations, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flatwalk.definitions import toml
from flatwalk.report import templates
from flatwalk.terminal.printable import printable

#: What a step is, by its kind.
_KINDS = {"fault": "page fault", "tlb": "TLB", "pwc": "page-walk cache", "entry": "entry"}


@dataclass(frozen=True)
class Step:
    """One step."""

    kind: str
    text: str
    #: The address bits that choose the entry: where they begin and how many they are, as shares of all.
    bits: tuple[float, float] | None
    high: int
    low: int
    is_skipped: bool


@dataclass(frozen=True)
class Walk:
    """One translation under one scheme."""

    scheme: str
    title: str
    result: str
    steps: list[Step]


def render(
    answers: list[dict[str, Any]], told: list[list[str]], schemes: list[dict[str, Any]], version: str
) -> str:
    """What `flatwalk walk` found under some schemes, as HTML.

    Args:
        answers: The engine's.
        told: Each in words, as the command prints it: the title first, what comes of it last.
        schemes: The schemes.
        version: Of flatwalk.
    """
    return templates.fill(
        "report",
        "walk.html.j2",
        workload=printable(answers[0]["workload"]),
        address=answers[0]["address"],
        walks=[_walk(answer, lines) for answer, lines in zip(answers, told, strict=True)],
        configurations=[
            (f"settings-{number}", f"scheme {scheme['name']}", toml.text(scheme))
            for number, scheme in enumerate(schemes, start=1)
        ],
        version=version,
    )


def _walk(answer: dict[str, Any], lines: list[str]) -> Walk:
    bits = 1 + max((step["index_bits"][0] for step in answer["steps"] if step["kind"] == "entry"), default=47)
    return Walk(answer["scheme"], lines[0], lines[-1], [_step(step, bits) for step in answer["steps"]])


def _step(step: dict[str, Any], bits: int) -> Step:
    is_entry = step["kind"] == "entry"
    high, low = step["index_bits"] if is_entry else (0, 0)
    place = ((bits - 1 - high) / bits, (high - low + 1) / bits) if is_entry else None
    return Step(_KINDS[step["kind"]], step["text"], place, high, low, is_entry and step["skipped"])
