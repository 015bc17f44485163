"""The HTML report: one file, no scripts, no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatwalk import across, blame, output, templates
from flatwalk.explain import explain
from flatwalk.report import charts, timeline
from flatwalk.results import by_machine, grouped, machine_label, place_label, settings_label, warnings_of

if TYPE_CHECKING:
    from flatwalk.results import Response, Run


def render(response: Response) -> str:
    """The report of a comparison as HTML; runs carry their speed-ups."""
    runs = response["runs"]
    first = runs[0]
    return templates.fill(
        "report",
        "report.html.j2",
        workload=first["workload"],
        machines=[_machine(pages[0][0]) for pages in by_machine(runs)],
        machine_name=", ".join(machine_label(pages[0][0]) for pages in by_machine(runs)),
        tables=[
            (label, *across.rows(schemes, runs))
            for label, schemes in (across.places(runs) if across.several(runs) else [])
        ],
        mode=first["mode"],
        timed=first["cycles"] is not None,
        first=first,
        answer=explain(response),
        charts=charts.build(runs),
        timelines=timeline.build(runs, response.get("sampling")),
        blame=blame.build(runs),
        cells=blame.cells,
        warnings=warnings_of(runs),
        configurations=configurations(runs),
        trace=response["trace"],
        version=response["version"],
        settings=[place_label(members[0], runs) for members in grouped(runs)],
    )


def _machine(run: Run) -> str:
    """A machine's title, with what differs from its file."""
    title = run["configuration"].get("machine", {}).get("title") or run["machine"]
    return ", ".join(filter(None, (title, settings_label(run["settings"]))))


def configurations(runs: list[Run]) -> list[tuple[str, str]]:
    """The resolved settings, each once: (title, JSON)."""
    found: dict[str, Any] = {}
    for run in runs:
        configuration = run["configuration"]
        for kind, settings in configuration.items():
            name = settings.get("name") if isinstance(settings, dict) else None
            title = f"{kind} {name}" if name else f"{kind}, {run['scheme']} at {place_label(run, runs)}"
            if name is not None and found.get(title, settings) != settings:
                title += f" with {settings_label(run['settings'])}"
            if name is None and any(
                settings == other for key, other in found.items() if key.startswith(kind)
            ):
                continue
            found.setdefault(title, settings)
    return [(title, output.as_json(settings)) for title, settings in found.items()]
