"""`flatwalk list`: what is shipped."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from flatwalk import engine, units
from flatwalk.definitions import settings
from flatwalk.programs import catalogue as programs
from flatwalk.reference import page
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Sequence


def _show(
    items: Sequence[dict[str, Any]], headers: list[str], rows: list[list[str]], *, as_json: bool
) -> None:
    if as_json:
        print(output.as_json(items))
    else:
        output.table(headers, rows)


def all_schemes() -> list[dict[str, Any]]:
    """The schemes, those that `compare` runs by itself first."""
    ordered = dict.fromkeys((*settings.DEFAULT_SCHEMES, *settings.names("scheme")))
    return [settings.scheme(name) for name in ordered]


def schemes(*, as_json: bool) -> None:
    """Shows the schemes."""
    found = all_schemes()
    rows = [[scheme["name"], scheme["title"], scheme["source"]] for scheme in found]
    _show(found, ["scheme", "what it is ", "source "], rows, as_json=as_json)


def machines(*, as_json: bool) -> None:
    """Shows the machines."""
    found = [settings.machine(name) for name in settings.names("machine")]
    rows = [[machine["name"], machine["title"], machine["source"]] for machine in found]
    _show(found, ["machine", "what it is ", "source "], rows, as_json=as_json)


def mixes(*, as_json: bool) -> None:
    """Shows the mixes of programs."""
    found = [settings.mix(name) for name in settings.names("mix")]
    rows = [[mix["name"], programs_of(mix), mix["source"]] for mix in found]
    _show(found, ["mix", "programs ", "source "], rows, as_json=as_json)


def programs_of(mix: dict[str, Any]) -> str:
    """A mix's programs as `--mix` reads them: `2*random:8GiB, gups`."""
    runs = [(name, len(list(group))) for name, group in itertools.groupby(mix["programs"])]
    return ", ".join(name if count == 1 else f"{count}*{name}" for name, count in runs)


def experiments(*, as_json: bool) -> None:
    """Shows the experiments of `reproduce`."""
    found = [
        {"name": name, **settings.read(settings.EXPERIMENTS / f"{name}.toml", "experiment")}
        for name in settings.names("experiment")
    ]
    rows = [
        [item["name"], item["title"], ", ".join(claim["id"] for claim in item.get("claim", []))]
        for item in found
    ]
    _show(found, ["experiment", "what it is ", "claims "], rows, as_json=as_json)


def sweeps(*, as_json: bool) -> None:
    """Shows the sweeps."""
    found = [settings.sweep(name)[0] for name in settings.names("sweep")]
    rows = [[sweep["name"], sweep.get("title", "")] for sweep in found]
    _show(found, ["sweep", "what it is "], rows, as_json=as_json)


def keys(*, as_json: bool) -> None:
    """Shows every key of machines, schemes, mixes, experiments, sweeps and results."""
    found = {kind: engine.describe(kind) for kind in page.KINDS}
    if as_json:
        print(output.as_json(found))
        return
    for kind, described in found.items():
        rows = [[key["key"], key["meaning"], page.value(key)] for key in described]
        output.table(["key", "meaning ", "value "], rows, title=page.KINDS[kind][0])


def workloads(*, as_json: bool) -> None:
    """Shows the workloads that the engine has built in, and the programs that can be recorded by name."""
    found = engine.workloads()
    recorded = [programs.load(name) for name in programs.names()]
    if as_json:
        others = [
            {
                "name": item.name,
                "description": item.title,
                "default_size_bytes": item.size_bytes,
                "packages": item.packages,
                "record": f"flatwalk record --workload {item.name}",
            }
            for item in recorded
        ]
        print(output.as_json([*found, *others]))
        return
    output.table(
        ["workload", "what it does "],
        [
            [f"{item['name']}:{units.short_size(item['default_size_bytes'])}", item["description"]]
            for item in found
        ],
    )
    output.table(
        ["program", "what it does ", "Debian package "],
        [
            [f"{item.name}:{units.short_size(item.size_bytes)}", item.title, " ".join(item.packages)]
            for item in recorded
        ],
        title="To be recorded: flatwalk record --workload NAME -o FILE",
    )
