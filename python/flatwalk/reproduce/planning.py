"""The simulations that claims need.

A run is known by the hash of all that decides its result: the engine itself, what chooses windows, the
source, the lengths, the seed and the resolved configuration.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import cache, engine, units
from flatwalk.comparison import lengths, mix, mixing, weighing
from flatwalk.definitions import settings, variations
from flatwalk.definitions.workload import parse_workload
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.reproduce import printed
from flatwalk.reproduce.claims import GUEST_FRAMES
from flatwalk.vm import bench, build, components

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from flatwalk.reproduce.claims import Claim, Experiment, Factor, Point, Series

#: Where `dense` lies: the beginning of what one entry of a root node covers.
_DENSE_START = 1 << 39
#: Workload that is processes in a guest whose memory is short; its size is swap space, in per cent of memory.
CROWD = "crowd"
#: What processes do to each other is not repeatable: how many guests are booted for one figure.
_CROWD_BOOTS = 3
#: Scheme under which a mix's programs run alone.
TODAY = "radix4"
#: Key of a source whose figure another command has printed.
PRINTED = "printed"


class MissingError(Exception):
    """A claim needs something that is missing; the text is a sentence."""


@dataclass(frozen=True)
class Selection:
    """One run of a claim: where, on what, with which pages."""

    series: str
    scheme: str
    large_pages: int
    workload: str


@dataclass(frozen=True)
class Job:
    """One simulation: its key, what it shares with others, and its own configuration."""

    key: str
    #: Everything of the engine's request but the runs.
    request: dict[str, Any]
    configuration: dict[str, Any]
    title: str

    @property
    def group(self) -> str:
        """The same for jobs that the engine can run over one decoding of the source."""
        return json.dumps(self.request, sort_keys=True)

    @property
    def is_simulated(self) -> bool:
        """False if programs run in a guest, or another command printed the figure."""
        return not {CROWD, PRINTED} & self.request["source"].keys()


def is_mix(workload: str) -> bool:
    """Whether a workload's name is that of a mix, with a size or without."""
    return workload.partition(":")[0] in settings.names("mix")


@functools.cache
def source_of(workload: str) -> dict[str, Any]:
    """The engine's source for a workload's name, or the sources of a mix's programs.

    `dense:SIZE` is one mapped range, accessed at random; `crowd:PERCENT` are processes in a guest; the kinds
    of `printed` are rows of documents.

    Raises:
        UsageError: If there is no such workload.
    """
    name, _, size = workload.partition(":")
    if is_mix(workload):
        programs = mix.programs(workload)["programs"]
        return {"mix": {"programs": programs, "sources": list(map(mix.source, programs))}}
    if name in printed.KINDS:
        return {PRINTED: {"kind": name, "row": size}}
    if name == CROWD:
        return {CROWD: {"swap_percent": units.parse_count(size, workload), "boots": _CROWD_BOOTS}}
    if name != "dense":
        return {"workload": parse_workload(workload)}
    area = {"start": _DENSE_START, "end": _DENSE_START + units.parse_size(size, workload)}
    return {
        "mapping": {
            "name": workload,
            "areas": [area],
            "pages": [area],
            "code": _DENSE_START,
            "pattern": "random",
            "accesses": 1 << 40,
        }
    }


def _with_parameters(source: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The source with the parameters that its workload has, or the workloads of its mix."""
    if "mix" in source:
        members = [_with_parameters(member, changes) for member in source["mix"]["sources"]]
        return {"mix": {**source["mix"], "sources": members}}
    if "workload" not in source or not changes:
        return source
    of = next(one for one in engine.workloads() if one["name"] == source["workload"]["name"])
    known = {parameter["name"] for parameter in of["parameters"]}
    return {"workload": {**source["workload"], **{key: changes[key] for key in known & changes.keys()}}}


@functools.cache
def scheme_of(name: str) -> dict[str, Any]:
    """The shipped scheme, or the pair GUEST/HOST.

    Raises:
        MissingError: If this version does not have it.
    """
    try:
        return settings.scheme_or_pair(name)
    except UsageError as error:
        if "there is no scheme" in error.what:
            raise MissingError(f"This version has no scheme {name}.") from error
        raise


def _changed(scheme: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The scheme with the changes to sections that it has."""
    return variations.merged(scheme, {name: of for name, of in changes.items() if name in scheme})


def _check_guest() -> None:
    """Checks that guests can be run.

    Raises:
        MissingError: If they cannot.
    """
    try:
        for component in (components.QEMU, components.LINUX):
            build.find(component)
    except FlatwalkError as error:
        raise MissingError(f"There is no guest: {error.what}; {error.remedy}.") from error


@functools.cache
def _machine(name: str) -> dict[str, Any]:
    return settings.machine(name)


def machine_of(series: Series) -> dict[str, Any]:
    """The series' machine with its changes."""
    return variations.merged(_machine(series.machine), series.changes)


def workloads_of(names: Iterable[str], selector: str | list[str] | None) -> list[str]:
    """The workloads that a selector selects: all of them without one."""
    if selector is None:
        return list(names)
    wanted = [selector] if isinstance(selector, str) else selector
    left_out = {name[1:] for name in wanted if name.startswith("!")}
    taken = {name for name in wanted if not name.startswith("!")}

    def known(name: str, among: set[str]) -> bool:
        return name in among or name.partition(":")[0] in among

    return [name for name in names if not known(name, left_out) and (not taken or known(name, taken))]


def selections(experiment: Experiment, scale: str, of: Mapping[str, Any]) -> list[Selection]:
    """The runs that selectors name, one for each workload.

    Raises:
        UsageError: If they name none.
    """
    series = _series_name(experiment, of)
    names = workloads_of(experiment.scales[scale].workloads, of.get("workload"))
    if series not in experiment.series or not names or "scheme" not in of:
        raise UsageError(
            f"nothing is run for {dict(of)}",
            where=f"experiment {experiment.name}",
            remedy=f"name a scheme, a series ({', '.join(experiment.series)}) and workloads of the scale",
        )
    return [Selection(series, of["scheme"], of.get("large_pages", 0), name) for name in names]


def _series_name(experiment: Experiment, of: Mapping[str, Any]) -> str:
    """The selected series: the first if none is named."""
    return str(of.get("series", next(iter(experiment.series))))


def parts_of(point: Point) -> Iterator[dict[str, Any]]:
    """All runs that a point's value needs, as complete selectors."""
    yield point.of
    for base in (point.of, {**point.of, **point.minus} if point.minus else None):
        if base is None:
            continue
        yield from compared(base, point)
        for factor in point.times:
            yield from compared({**base, **factor.of}, factor)


def compared(of: dict[str, Any], what: Point | Factor) -> Iterator[dict[str, Any]]:
    """The runs that a metric needs: those themselves, what they are compared with, the bound, and a clock.

    The clock is what they are compared with, in the bound's series if `bound` names one: its time counts.
    """
    base, bound = ({**of, **(other or {})} for other in (what.against, what.bound))
    series = {key: value for key, value in (what.bound or {}).items() if key == "series"}
    yield from (of, base, bound, {**base, **series})


def job_of(experiment: Experiment, scale: str, selection: Selection) -> Job:
    """The simulation of a selection."""
    series, size = experiment.series[selection.series], experiment.scales[scale]
    source = _with_parameters(source_of(selection.workload), experiment.workload_changes)
    title = f"{selection.workload}, {series.machine}"
    if PRINTED in source:
        asked = {"scheme": selection.scheme}
        return Job(
            _key(printed.identity(source[PRINTED]["kind"]), source, asked), {"source": source}, asked, title
        )
    request = {
        "source": source,
        "instructions": size.span(selection.workload),
        "warmup": 0 if size.windows else size.warmup,
        "skip": 0,
        "seed": experiment.seed,
    }
    if size.windows is not None:
        windows, window = size.windows
        request["sampling"] = lengths.spread(windows, window, size.warmup)
        if "mix" in source:
            request = mixing.unfilled(request)
    configuration: dict[str, Any]
    if series.mode == "guest":
        configuration = {"mode": printed.mode_of(selection.scheme)}
        return Job(_key(bench.crowd_identity(), request, configuration), request, configuration, title)
    machine = machine_of(series)
    scheme = _changed(scheme_of(selection.scheme), experiment.scheme_changes)
    configuration = {
        "scheme": scheme,
        "machine": machine,
        "large_pages": selection.large_pages,
        "thp": None,
        "fragmentation": series.fragmentation,
        "host_large_pages": series.host_large_pages,
        # Without a guest these decide nothing: runs that differ in them alone are one.
        "guest_frames": series.guest_frames if "host" in scheme else GUEST_FRAMES,
        "frames": series.frames,
        "mode": series.mode,
        "memory_bytes": None,
    }
    return Job(_key(_simulator(source), request, configuration), request, configuration, title)


def _simulator(source: Mapping[str, Any]) -> list[object]:
    """All that decides a simulation's result but what it is asked for.

    Any change to the engine's binary may, and any to where windows are (`lengths`). A mix is weighed by its
    programs alone under today's table.
    """
    modules = [lengths, mixing, weighing] if "mix" in source else [lengths]
    files = [engine.path(), *(Path(str(module.__file__)) for module in modules)]
    today = [settings.scheme(TODAY)] if "mix" in source else []
    return [*map(cache.digest, files), *today]


def _key(simulator: object, request: dict[str, Any], configuration: dict[str, Any]) -> str:
    return cache.key({"simulator": simulator, "request": request, "run": configuration})


@dataclass(frozen=True)
class Needs:
    """What a claim needs. A guest or an engine may be built while it is run, so this is found out once."""

    #: All simulations, but for those of points that lack something.
    jobs: dict[Selection, Job]
    #: Points by label that need something missing, and what that is, as a sentence.
    missing: dict[str, str]


def needs_of(experiment: Experiment, scale: str, claim: Claim) -> Needs:
    """What a claim needs, as things are now."""
    missing = _missing_of(experiment, claim)
    jobs = {
        selection: job_of(experiment, scale, selection)
        for point in claim.points
        if point.label not in missing
        for part in parts_of(point)
        for selection in selections(experiment, scale, part)
    }
    return Needs(jobs, missing)


def _missing_of(experiment: Experiment, claim: Claim) -> dict[str, str]:
    """Points by label that need something missing, and what that is, as a sentence."""
    found = {}
    for point in claim.points:
        for part in parts_of(point):
            try:
                match experiment.series[_series_name(experiment, part)].mode:
                    case "guest":
                        _check_guest()
                    case "printed":
                        _check_printed(experiment)
                    case _:
                        scheme_of(part["scheme"])
            except MissingError as missing:
                found[point.label] = str(missing)
    return found


def _check_printed(experiment: Experiment) -> None:
    """Checks that the documents are here that an experiment's figures are in.

    Raises:
        MissingError: If one is not.
    """
    names = {name for scale in experiment.scales.values() for name in scale.workloads}
    try:
        for kind in sorted({name.partition(":")[0] for name in names}):
            printed.read(kind)
    except FlatwalkError as error:
        raise MissingError(f"There is no figure: {error.what}; {error.remedy}.") from error
