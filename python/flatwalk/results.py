"""Runs as the engine answers them, and what follows from several of them."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from flatwalk.result_types import RunResult, TraceSummary


class Run(RunResult):
    """One configuration's result, with what it is to the first scheme's with the same pages."""

    speedup: NotRequired[float | None]
    relative_cache_energy: NotRequired[float | None]
    relative_off_chip_accesses: NotRequired[float | None]


class Response(TypedDict):
    """The engine's answer to `simulate`."""

    schema: str
    version: str
    trace: TraceSummary
    runs: list[Run]


def pages_key(run: Run) -> tuple[int | None, str | None]:
    """The large-page setting of a run: per cent, or the THP policy."""
    return run["large_pages"], run["thp"]


def pages_label(run: Run) -> str:
    """The large-page setting of a run for a person."""
    if run["thp"] is not None:
        return f"THP {run['thp']}"
    return f"{run['large_pages']} % large pages"


def grouped(runs: list[Run]) -> list[list[Run]]:
    """Runs by large-page setting, each group in request order."""
    groups: dict[tuple[int | None, str | None], list[Run]] = {}
    for run in runs:
        groups.setdefault(pages_key(run), []).append(run)
    return list(groups.values())


def add_speedups(runs: list[Run]) -> None:
    """Gives every run its speed-up over the first scheme at the same large-page setting.

    The speed-up is a ratio of cycles per instruction, so 1.092 is 9.2 % faster; `None` where nothing
    was timed.
    """
    for group in grouped(runs):
        base = group[0]["ipc"]
        for run in group:
            ipc = run["ipc"]
            run["speedup"] = ipc / base if base and ipc is not None else None


def add_energy(runs: list[Run]) -> None:
    """Gives every run its cache energy and off-chip accesses over the first scheme's with the same pages.

    Both are per instruction; `None` where nothing was timed or the machine has no figures.
    """

    def ratio(value: float | None, base: float | None) -> float | None:
        return value / base if base and value is not None else None

    for group in grouped(runs):
        base = group[0]
        for run in group:
            run["relative_cache_energy"] = ratio(cache_energy_nj(run), cache_energy_nj(base))
            run["relative_off_chip_accesses"] = ratio(off_chip_accesses(run), off_chip_accesses(base))


def cache_energy_nj(run: Run) -> float | None:
    """Dynamic energy of the data caches per instruction; `None` where it is not known."""
    energy = run["energy"]
    return energy["cache_nj"] / run["instructions"] if energy and run["instructions"] else None


def off_chip_accesses(run: Run) -> float | None:
    """Lines that go to or come from memory, per instruction; `None` where nothing was timed."""
    dram = run["dram"]
    return (dram["reads"] + dram["writes"]) / run["instructions"] if dram and run["instructions"] else None


def is_bound(run: Run) -> bool:
    """Whether a run's scheme is a bound rather than a design: its translation is free."""
    return bool(run["configuration"]["scheme"].get("translation") == "free")


def lost_to_translation(run: Run, group: list[Run]) -> float | None:
    """Share of a run's time that its translation costs: what the bound of its group does without.

    `None` where nothing was timed or no bound was run. The engine's `translation_cycles` is another
    figure: cycles in which the oldest instruction waited for its own translation, which leaves out
    what waits behind it.
    """
    bound = next((other for other in group if is_bound(other)), None)
    if bound is None or not run["ipc"] or not bound["ipc"]:
        return None
    return max(1 - run["ipc"] / bound["ipc"], 0.0)


def warnings_of(runs: list[Run]) -> list[tuple[str, list[str]]]:
    """Each warning once, with the runs that have it by name; no names: all of them."""
    owners: dict[str, list[str]] = {}
    for run in runs:
        for warning in dict.fromkeys(run["warnings"]):
            owners.setdefault(warning, []).append(f"{run['scheme']} at {pages_label(run)}")
    return [(text, [] if len(names) == len(runs) else names) for text, names in owners.items()]
