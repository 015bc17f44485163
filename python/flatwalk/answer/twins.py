"""Schemes of a comparison that differ in one thing only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatwalk.answer.results import is_bound

if TYPE_CHECKING:
    from flatwalk.answer.results import Run

    Pairs = list[tuple[Run, Run]]

_WORDS = ("name", "title", "description", "source")
#: Sections of a scheme that are tables. Every other one switches on a mechanism.
_TABLES = ("table", "host")


def _plan(run: Run) -> dict[str, Any]:
    """A scheme's settings without its words."""
    scheme = run["configuration"]["scheme"]
    return {key: value for key, value in scheme.items() if key not in _WORDS and value is not None}


def mechanisms(run: Run) -> list[str]:
    """What a run's scheme has in addition to its table, as its sections are called."""
    return [key for key, value in _plan(run).items() if isinstance(value, dict) and key not in _TABLES]


def title(mechanism: str) -> str:
    """A section's name for a person: `Page-table priority`, `CSALT`, `POM TLB`."""
    words = mechanism.split("_")
    if len(words) == 1:  # a name that its authors made of initials
        return mechanism.upper()
    text = " ".join(word.upper() if len(word) <= 3 else word for word in words)
    return f"{text[0].upper()}{text[1:]}".replace("Page table ", "Page-table ")


def by_mechanism(runs: list[Run]) -> dict[str, Pairs]:
    """By mechanism: the same scheme without it and with it."""
    found: dict[str, Pairs] = {}
    for without in runs:
        for run in runs:
            added = [key for key in mechanisms(run) if key not in mechanisms(without)]
            plan = _plan(run)
            if len(added) == 1 and {key: plan[key] for key in plan if key != added[0]} == _plan(without):
                found.setdefault(added[0], []).append((without, run))
    return found


def by_fifth_level(runs: list[Run]) -> Pairs:
    """The same scheme with four levels and with five."""

    def levels(run: Run) -> object:
        return run["configuration"]["scheme"].get("table", {}).get("levels")

    def flat(run: Run) -> dict[str, Any]:
        plan = _plan(run)
        return plan | {"table": {key: value for key, value in plan["table"].items() if key != "levels"}}

    return [
        (four, five)
        for four in runs
        for five in runs
        if (levels(four), levels(five)) == (4, 5)
        and not is_bound(four)
        and not is_bound(five)
        and flat(four) == flat(five)
    ]
