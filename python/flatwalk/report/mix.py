"""The report of a mix of programs, as HTML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from flatwalk.answer.blame import short
from flatwalk.answer.judged import bias_words, mix_words
from flatwalk.answer.results import is_bound, pages_label, warnings_of
from flatwalk.comparison.weighing import Weights, by_pages, words
from flatwalk.report import charts, configurations, templates

if TYPE_CHECKING:
    from flatwalk.answer.results import Run

    Results = list[dict[str, Any]]


def render(answer: dict[str, Any]) -> str:
    """The report of what `compare --mix --json` writes."""
    groups = by_pages(answer["runs"])
    runs: list[Run] = [run for result in answer["runs"] for run in result["cores"]]
    first, programs = runs[0], answer["mix"]["programs"]
    alone = {run["program"]: run["ipc"] for run in answer["alone"]}
    return templates.fill(
        "report",
        "mix.html.j2",
        mix=answer["mix"],
        machine=first["configuration"].get("machine", {}).get("title") or first["machine"],
        machine_name=first["machine"],
        first=first,
        headlines=[(_label(results), words(results, Weights.of(answer))) for results in groups],
        judged=mix_words(programs, answer["sampling"]),
        bias=answer["bias"] and bias_words(answer["bias"]),
        is_warm=answer["bias"] and answer["bias"]["agrees"],
        warnings=warnings_of(runs),
        charts=[_weighted(groups), _shares(groups, programs, alone)],
        alone=[(program, "–" if ipc is None else f"{ipc:.3f}") for program, ipc in alone.items()],
        configurations=configurations(runs),
        version=answer["version"],
    )


def _label(results: Results) -> str:
    return pages_label(results[0]["cores"][0])


def _weighted(groups: list[Results]) -> charts.Chart:
    def row(result: dict[str, Any]) -> charts.Change:
        change = (result["relative_weighted_speedup"] or 1.0) - 1
        low, high = (result[f"relative_weighted_speedup_{end}"] for end in ("low", "high"))
        bounds = None if low is None or high is None or low == high else (low - 1, high - 1)
        weighted = f"{result['weighted_speedup']:.3f}"
        return charts.Change(result["scheme"], change, [weighted], is_bound(result["cores"][0]), bounds)

    return charts.changes(
        "weighted",
        "Weighted speed-up",
        f"Over the programs, the sum of each one's IPC over its IPC alone under {groups[0][0]['scheme']}; "
        "the bar is its change against the first scheme, with its interval. Right of the line is faster.",
        ["change", "weighted speed-up"],
        [(_label(results), [row(result) for result in results]) for results in groups],
    )


def _shares(groups: list[Results], programs: list[str], alone: dict[str, float | None]) -> charts.Chart:
    def row(scheme: str, core: int, run: Run) -> charts.Change:
        ipc, own = run["ipc"], alone[programs[core]]
        change = ipc / own - 1 if ipc and own else 0.0
        figure = "–" if ipc is None else f"{ipc:.3f}"
        # Of a trace's path the file says enough: the page lists the programs.
        program = short(PurePosixPath(programs[core]).name)
        return charts.Change(f"{scheme}, {core + 1}: {program}", change, [figure], is_bound(run))

    chart = charts.changes(
        "programs",
        "What each program gets",
        "Speed of each program in the mix against its speed alone, with all of the shared cache, under "
        "the first scheme.",
        ["change", "IPC"],
        [
            (
                _label(results),
                [
                    row(result["scheme"], core, run)
                    for result in results
                    for core, run in enumerate(result["cores"])
                ],
            )
            for results in groups
        ],
    )
    return replace(chart, rows="scheme, core: program")
