"""From a sweep to its runs, each known by the hash of all that decides its result."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import cache, engine
from flatwalk.comparison import configurations
from flatwalk.comparison.configurations import Options
from flatwalk.definitions import machine_files, settings, variations
from flatwalk.definitions.workload import parse_workload, text_of
from flatwalk.errors import UsageError
from flatwalk.lab import changes
from flatwalk.lab.store import HASHES
from flatwalk.prototypes import scheme_code
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flatwalk.definitions.variations import Variation
    from flatwalk.lab.sweep import Sweep

#: More runs than this are a mistake.
MOST_RUNS = 1_000_000
#: Runs of one call of the engine, at most: it decodes their source once, and what it was doing is lost if
#: it is killed.
MOST_AT_ONCE = 16
#: What a byte of a source's memory takes of this machine's, for each run: its page table's share and the
#: model's data about its frames, as measured.
_BYTES_PER_BYTE = 1 / 64
#: What the engine is told of a guest where there is none.
_NO_GUEST = {"host_large_pages": Options.host_large_pages, "guest_frames": Options.guest_frames}


@dataclass(frozen=True)
class Source:
    """Something to simulate."""

    #: As the engine takes it.
    request: dict[str, Any]
    #: Its columns in the results.
    columns: dict[str, Any]
    #: Bytes of its memory.
    size_bytes: int
    #: Instructions of all of it; None for a workload, which has no end, and where it is not known.
    instructions: int | None


@dataclass(frozen=True)
class Unit:
    """One run."""

    #: Hash of the engine, the source's contents, the lengths, the seed and the configuration.
    key: str
    #: Key of the run that its speed-up is over: the first scheme's under the same conditions.
    baseline: str
    #: The engine's request but for `runs` and `threads`; the same for runs that can share a call.
    request: dict[str, Any]
    configuration: dict[str, Any]
    #: What tells it from the others of the sweep, by column of the results.
    columns: dict[str, Any]
    source: Source
    #: What of the scheme is in files of Python, as `FILE.py:NAME` with absolute paths.
    code: tuple[str, ...]

    @property
    def label(self) -> str:
        """What a person knows it by."""
        unusual = [
            f"{key} {value}"
            for key, value in self.columns.items()
            if key not in {*HASHES, *HASHES.values(), "baseline_scheme", "mode"}
            and value is not None
            and value != ""
        ]
        names = (self.columns[key] for key in ("source", "scheme", "machine"))
        return f"{', '.join([*names, *unusual])}"


def count(sweep: Sweep) -> int:
    """How many runs a sweep has, without planning them.

    Raises:
        UsageError: If its lists do not fit together.
    """
    points = 1
    for values in changes.flat(sweep.set, sweep.where).values():
        points *= len(values) if isinstance(values, list) else 1
    for table in sweep.zip:
        columns = changes.flat(table, sweep.where).values()
        points *= max((len(values) if isinstance(values, list) else 1 for values in columns), default=1)
    lists = (sweep.schemes, sweep.machines, sweep.pages, sweep.fragmentation, sweep.host_large_pages)
    for values in (*lists, sweep.guest_frames, sweep.cores, sweep.seeds):
        points *= len(dict.fromkeys(map(str, values)))
    return points * (len(sweep.workloads) + len(sweep.traces))


def plan(sweep: Sweep) -> list[Unit]:
    """Every run of a sweep, checked, each once.

    Raises:
        UsageError: If there is no such source, scheme or machine, or a run is not possible.
    """
    runs = count(sweep)
    if runs > MOST_RUNS:
        raise UsageError(
            f"{runs:,} runs are more than a sweep may have",
            where=sweep.where,
            remedy=f"at most {MOST_RUNS:,}: shorten some lists",
        )
    digest = cache.digest(engine.path())
    sources = list(_sources(sweep))
    groups = list(_configurations(sweep))
    units: dict[str, Unit] = {}
    for source, seed in itertools.product(sources, dict.fromkeys(sweep.seeds)):
        request = {"source": source.request, **_lengths(sweep, source), "seed": seed}
        # The same trace elsewhere is the same source.
        contents = {"trace": source.columns["source_hash"]} if "trace" in source.request else source.request
        for group in groups:
            keys = [
                cache.key(
                    {"engine": digest, "request": {**request, "source": contents}, "run": configuration}
                )
                for configuration, *_ in group
            ]
            over = {"baseline_scheme": group[0][1]["scheme"]}
            for key, (configuration, own, code) in zip(keys, group, strict=True):
                columns = {**source.columns, **own, **over, "seed": seed}
                units.setdefault(key, Unit(key, keys[0], request, configuration, columns, source, code))
    return list(units.values())


def _sources(sweep: Sweep) -> Iterator[Source]:
    for text in dict.fromkeys(sweep.workloads):
        workload = parse_workload(text, where=sweep.where)
        columns = {"source": text_of(workload), "source_hash": None}
        yield Source({"workload": workload}, columns, workload["size_bytes"], None)
    paths = list(dict.fromkeys(sweep.traces))
    names = [path.name for path in paths]
    for path in paths:
        remedy = "record one: flatwalk record -o FILE -- CMD; paths are from the sweep's folder"
        output.check_trace(path, sweep.where, remedy=remedy)
        if not path.is_file():
            raise UsageError(f"{path} is not a file", where=sweep.where, remedy=remedy)
        info = engine.trace_info(path)
        contents = info.get("hash") or cache.digest(path)
        length = info["instructions"]
        # Where a name is not enough, it is what the sweep's file says.
        said = path.relative_to(sweep.folder) if path.is_relative_to(sweep.folder) else path
        name = path.name if names.count(path.name) == 1 else str(said)
        yield Source(
            {"trace": str(path.resolve())},
            {"source": name, "source_hash": contents},
            info.get("footprint_bytes") or 0,
            None if length is None else length + (info.get("gap_instructions") or 0),
        )


def _lengths(sweep: Sweep, source: Source) -> dict[str, Any]:
    """What the engine is told to run of a source.

    Raises:
        UsageError: If the source does not have it.
    """
    try:
        return sweep.lengths.request(source.request)
    except UsageError as error:
        # These are options of `compare`; a sweep has keys, and several sources.
        keys = re.sub(r"--([a-z]+)", r"\1", (error.where or "").replace("--trace", "traces"))
        place = f"{sweep.where}, {keys}: {source.columns['source']}"
        raise UsageError(error.what, where=place, remedy=error.remedy) from error


def _configurations(sweep: Sweep) -> Iterator[list[tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]]]:
    """The engine's configurations with their columns and code, in groups that share their baseline."""
    names = [_from_folder(name, sweep) for name in dict.fromkeys(sweep.schemes)]
    # By what the sweep's file says: where that file lies is no part of a name.
    said = dict.fromkeys(sweep.schemes)
    named = [
        (text, settings.scheme_or_pair(name, sweep.where)) for text, name in zip(said, names, strict=True)
    ]
    schemes = settings.distinct(named, "scheme", sweep.where)
    of_guests: dict[str, list[Any]] = {
        "host_large_pages": sweep.host_large_pages,
        "guest_frames": sweep.guest_frames,
    }
    given = {f"{sweep.where}, {key}": {*values} != {_NO_GUEST[key]} for key, values in of_guests.items()}
    configurations.check_guests(schemes, given, 'schemes = ["radix4", "radix4/fpt"]')
    codes = {
        scheme["name"]: tuple(
            str(Path(member).absolute())
            for member in settings.pair_of(name) or (name,)
            if scheme_code.is_one(member)
        )
        for name, scheme in zip(names, schemes, strict=True)
    }
    points = changes.combinations(sweep.set, sweep.zip, sweep.derive, sweep.where)
    files = {name: machine_files.load(_from_folder(name, sweep), sweep.where) for name in sweep.machines}
    of_schemes = {scheme["name"]: cache.key(scheme) for scheme in schemes}
    of_machines = {name: cache.key(file) for name, file in files.items()}
    for (name, file), point in itertools.product(files.items(), points):
        machine, variation = _machine(sweep, file, point)
        told = variations.as_settings(variation)
        varied = variations.schemes(schemes, variation, sweep.where)
        for pages, fragmentation, host_large_pages, guest_frames, cores in itertools.product(
            dict.fromkeys(sweep.pages),
            dict.fromkeys(sweep.fragmentation),
            dict.fromkeys(sweep.host_large_pages),
            dict.fromkeys(sweep.guest_frames),
            dict.fromkeys(sweep.cores),
        ):
            conditions = {
                "large_pages": pages if isinstance(pages, int) else None,
                "thp": pages if isinstance(pages, str) else None,
                "fragmentation": fragmentation,
                "host_large_pages": host_large_pages,
                "guest_frames": guest_frames,
                "cores": cores,
                "mode": sweep.mode,
            }
            group = []
            for scheme in varied:
                columns = {
                    "scheme": scheme["name"],
                    "scheme_hash": of_schemes[scheme["name"]],
                    "machine": name,
                    "machine_hash": of_machines[name],
                    **conditions,
                    **told,
                }
                run = {
                    "scheme": scheme,
                    "machine": machine,
                    "settings": told,
                    **conditions,
                    "memory_bytes": None,
                }
                if "host" not in scheme:  # it is the same run whatever guests have
                    columns |= dict.fromkeys(_NO_GUEST)
                    run |= _NO_GUEST
                _check(run, columns, sweep.where)
                group.append((run, columns, codes[scheme["name"]]))
            yield group


def _from_folder(name: str, sweep: Sweep) -> str:
    """A name of a shipped setting as it is, a path from the sweep's folder."""
    if pair := settings.pair_of(name, sweep.folder):
        return "/".join(_from_folder(member, sweep) for member in pair)
    return str(sweep.folder / name) if name.endswith(".toml") or scheme_code.is_one(name) else name


def _machine(sweep: Sweep, file: dict[str, Any], point: Variation) -> tuple[dict[str, Any], Variation]:
    """The machine at a point, and all that differs from its file, derived values among it."""
    machine = variations.changed(file, point, sweep.where)
    for key, expression in changes.flat(sweep.derive, sweep.where).items():
        value = changes.evaluated(str(expression), machine, f"{sweep.where}, derive.{key}")
        derived = changes.setting(key, value, sweep.where)
        machine = variations.changed(machine, (derived,), sweep.where)
        point = (*point, derived)
    # What is derived may be what makes the rest possible.
    return variations.machine(file, point, sweep.where), point


def _check(run: dict[str, Any], columns: dict[str, Any], where: str) -> None:
    """Passes a configuration that the engine can run."""
    for problem in engine.check("run", run):
        point = ", ".join(f"{key} = {value}" for key, value in columns.items() if "." in key)
        place = f"{where}: {columns['scheme']} on {columns['machine']}" + (f", {point}" if point else "")
        raise UsageError(
            settings.words(problem), where=place, remedy=f"{settings.REFERENCE} explains every key"
        )


def batches(units: Iterable[Unit], workers: int, memory_bytes: int) -> list[list[Unit]]:
    """Runs in pieces that the engine does in one call each, in the order of the sweep.

    Args:
        units: Runs; those with the same request share a call.
        workers: Calls at a time; every one of them shall have several pieces, so that none waits long.
        memory_bytes: For all calls at a time.
    """
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        groups.setdefault(json.dumps(unit.request, sort_keys=True), []).append(unit)
    total = sum(map(len, groups.values()))
    fair = max(total // (4 * workers), 1)
    found = []
    for group in groups.values():
        each = max(group[0].source.size_bytes * _BYTES_PER_BYTE, 1 << 20)
        most = max(min(int(memory_bytes / workers / each), MOST_AT_ONCE, fair), 1)
        found += [group[start : start + most] for start in range(0, len(group), most)]
    return found
