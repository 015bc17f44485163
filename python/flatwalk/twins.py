"""Schemes of a comparison that differ in one thing only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatwalk.results import is_bound

if TYPE_CHECKING:
    from flatwalk.results import Run

    Pairs = list[tuple[Run, Run]]

_WORDS = ("name", "title", "description", "source")
_PRIORITY = "page_table_priority"


def _plan(run: Run) -> dict[str, Any]:
    """A scheme's settings without its words."""
    scheme = run["configuration"]["scheme"]
    return {key: value for key, value in scheme.items() if key not in _WORDS and value is not None}


def has_priority(run: Run) -> bool:
    """Whether caches prefer lines of the page table."""
    return _PRIORITY in _plan(run)


def by_priority(runs: list[Run]) -> Pairs:
    """The same scheme without and with page-table priority."""

    def plain(run: Run) -> dict[str, Any]:
        return {key: value for key, value in _plan(run).items() if key != _PRIORITY}

    return [
        (without, run)
        for without in runs
        for run in runs
        if has_priority(run) and not has_priority(without) and plain(run) == plain(without)
    ]


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
