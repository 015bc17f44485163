"""The report of `flatwalk walk`: translations, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flatwalk import templates, toml, walking
from flatwalk.printable import printable

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


def render(answers: list[dict[str, Any]], schemes: list[dict[str, Any]], version: str) -> str:
    """What `flatwalk walk` found under some schemes, as HTML."""
    return templates.fill(
        "report",
        "walk.html.j2",
        workload=printable(answers[0]["workload"]),
        address=answers[0]["address"],
        walks=[_walk(answer) for answer in answers],
        configurations=[
            (f"settings-{number}", f"scheme {scheme['name']}", toml.text(scheme))
            for number, scheme in enumerate(schemes, start=1)
        ],
        version=version,
    )


def _walk(answer: dict[str, Any]) -> Walk:
    bits = 1 + max((step["index_bits"][0] for step in answer["steps"] if step["kind"] == "entry"), default=47)
    first, *_, last = walking.lines(answer)
    return Walk(answer["scheme"], first, last, [_step(step, bits) for step in answer["steps"]])


def _step(step: dict[str, Any], bits: int) -> Step:
    is_entry = step["kind"] == "entry"
    high, low = step["index_bits"] if is_entry else (0, 0)
    place = ((bits - 1 - high) / bits, (high - low + 1) / bits) if is_entry else None
    return Step(_KINDS[step["kind"]], step["text"], place, high, low, is_entry and step["skipped"])
