"""The HTML report: one file, without network, that reads without scripts and can be explored with them."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from flatwalk.answer import across, blame
from flatwalk.answer.explain import explain
from flatwalk.answer.results import (
    by_machine,
    grouped,
    machine_label,
    place_label,
    settings_label,
    warnings_of,
)
from flatwalk.comparison import presenting
from flatwalk.definitions import toml
from flatwalk.report import charts, templates, timeline, tree

if TYPE_CHECKING:
    from flatwalk.answer.results import Response, Run


def render(response: Response) -> str:
    """The report of a comparison as HTML; runs carry their speed-ups."""
    runs = response["runs"]
    first = runs[0]
    drawn, timelines = charts.build(runs), timeline.build(runs, response.get("sampling"))
    trees, found = tree.build(runs), blame.build(runs)
    settings = configurations(runs)
    labels = [place_label(members[0], runs) for members in grouped(runs)]
    sections = {
        "timeline": "Over the run" if timelines else None,
        "schemes": "Scheme by scheme",
        "figures": "All figures",
        "tree": "The page table as a tree" if trees else None,
        "blame": "Where the walks come from" if found else None,
    }
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
        schemes=list(dict.fromkeys(run["scheme"] for run in runs)),
        labels=labels,
        metrics=[(chart.key, chart.title) for chart in drawn]
        + [(key, title) for key, title in sections.items() if title is not None],
        places=_places(runs),
        charts=drawn,
        timelines=timelines,
        figures=[
            (label, *presenting.cells(members)) for label, members in zip(labels, grouped(runs), strict=True)
        ],
        trees=trees,
        blame=found,
        cells=blame.cells,
        warnings=warnings_of(runs),
        configurations=settings,
        trace=response["trace"],
        version=response["version"],
        settings=labels,
    )


def _machine(run: Run) -> str:
    """A machine's title, with what differs from its file."""
    title = run["configuration"].get("machine", {}).get("title") or run["machine"]
    return ", ".join(filter(None, (title, settings_label(run["settings"]))))


def configurations(runs: list[Run]) -> list[tuple[str, str, str]]:
    """The resolved settings, each once: (what the page calls their place, title, TOML)."""
    return [(key, title, toml.text(settings)) for key, title, settings in _resolved(runs).values()]


def _places(runs: list[Run]) -> dict[tuple[str, str], str]:
    """By large-page setting, with its machine, and scheme: where its settings are.

    By scheme alone, with an empty setting, where it has the same everywhere.
    """
    found, everywhere = {}, dict[str, set[str]]()
    resolved = _resolved(runs)
    for members in grouped(runs):
        # As the page calls it, by the first: schemes may have other page sizes.
        place = place_label(members[0], runs)
        for run in members:
            key, *_ = resolved[_identity("scheme", run["configuration"]["scheme"])]
            found[place, run["scheme"]] = key
            everywhere.setdefault(run["scheme"], set()).add(key)
    return found | {("", scheme): min(keys) for scheme, keys in everywhere.items() if len(keys) == 1}


def _identity(kind: str, settings: dict[str, Any]) -> tuple[str, str]:
    """What only equal settings have in common."""
    return kind, json.dumps(settings, sort_keys=True)


def _resolved(runs: list[Run]) -> dict[tuple[str, str], tuple[str, str, dict[str, Any]]]:
    """By identity, the resolved settings: what the page calls their place, title, and themselves."""
    found: dict[tuple[str, str], tuple[str, Run, dict[str, Any]]] = {}
    for run in runs:
        configuration: dict[str, Any] = dict(run["configuration"])
        own = {key: value for key, value in configuration.items() if not isinstance(value, dict)}
        for kind, settings in {**configuration, "run": own}.items():
            if kind not in own and settings:
                found.setdefault(_identity(kind, settings), (kind, run, settings))
    names = Counter((kind, settings.get("name")) for kind, _, settings in found.values())

    def title(kind: str, run: Run, settings: dict[str, Any]) -> str:
        name = settings.get("name")
        if name is None:
            return f"{kind}, {run['scheme']} at {place_label(run, runs)}"
        # Of several variants each says what was changed in it.
        is_scheme = kind == "scheme"
        changed = {
            key: value for key, value in run["settings"].items() if key.startswith("scheme.") == is_scheme
        }
        with_ = f" with {settings_label(changed)}" if changed and names[kind, name] > 1 else ""
        return f"{kind} {name}{with_}"

    return {
        identity: (f"settings-{number}", title(kind, run, settings), settings)
        for number, (identity, (kind, run, settings)) in enumerate(found.items(), start=1)
    }
