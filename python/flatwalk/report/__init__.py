"""The HTML report: one file, no scripts, no network."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flatwalk import templates
from flatwalk.explain import explain
from flatwalk.report import charts, timeline
from flatwalk.results import grouped, pages_label, warnings_of

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
        machine=first["configuration"].get("machine", {}).get("title") or first["machine"],
        machine_name=first["machine"],
        mode=first["mode"],
        timed=first["cycles"] is not None,
        first=first,
        answer=explain(response),
        charts=charts.build(runs),
        timelines=timeline.build(runs, response.get("sampling")),
        warnings=warnings_of(runs),
        configurations=configurations(runs),
        trace=response["trace"],
        version=response["version"],
        settings=[pages_label(members[0]) for members in grouped(runs)],
    )


def configurations(runs: list[Run]) -> list[tuple[str, str]]:
    """The resolved settings, each once: (title, JSON)."""
    found: dict[str, Any] = {}
    for run in runs:
        configuration = run["configuration"]
        for kind, settings in configuration.items():
            name = settings.get("name") if isinstance(settings, dict) else None
            title = f"{kind} {name}" if name else f"{kind}, {run['scheme']} at {pages_label(run)}"
            if name is None and any(
                settings == other for key, other in found.items() if key.startswith(kind)
            ):
                continue
            found.setdefault(title, settings)
    return [(title, json.dumps(settings, indent=2, ensure_ascii=False)) for title, settings in found.items()]
