"""Results on disk: a data set in Parquet that grows by whole files, one row a run.

A file is complete or missing, and a run is in it once: whoever appends holds the lock, and leaves out what
is there already. docs/lab.md explains the columns.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flatwalk.answer import results
from flatwalk.answer.types import WindowResult
from flatwalk.errors import FlatwalkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, KeysView, Sequence
    from pathlib import Path

    from flatwalk.answer.results import Run, Sampling
    from flatwalk.answer.types import Sampled
    from flatwalk.lab.plan import Unit

T = TypeVar("T")

#: The form of the files, in their metadata.
SCHEMA = "flatwalk-results/1"

#: How the figures of a window are stored, by what they are in a result.
_KINDS = {
    int: pa.int64(),
    int | None: pa.int64(),
    float | None: pa.float64(),
    list[int]: pa.list_(pa.int64()),
}
_WINDOW = pa.struct([(name, _KINDS[kind]) for name, kind in get_type_hints(WindowResult).items()])

#: Figures that are columns by the names that they have in a result (docs/result-format.md).
_FIGURES: dict[str, pa.DataType] = {
    "instructions": pa.int64(),
    "cycles": pa.int64(),
    "ipc": pa.float64(),
    "loads": pa.int64(),
    "stores": pa.int64(),
    "walks": pa.int64(),
    "accesses_per_walk": pa.float64(),
    "walk_latency_cycles": pa.float64(),
    "walk_queue_cycles": pa.float64(),
    "walk_access_cycles": pa.float64(),
    "translation_cycles": pa.int64(),
    "page_table_bytes": pa.int64(),
    "data_bytes": pa.int64(),
}

#: Every column but those of changed keys of machines, with what it means.
COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "key": (pa.string(), "hash of all that decides the result"),
    "baseline": (pa.string(), "`key` of the run that its speed-up is over"),
    "baseline_scheme": (pa.string(), "scheme of that run"),
    "sweep": (pa.string(), "name of the sweep that ran it"),
    "finished": (pa.timestamp("ms", tz="UTC"), "when it was stored"),
    "seconds": (pa.float64(), "processor time of its share of the engine's call"),
    "version": (pa.string(), "flatwalk's version"),
    "engine": (pa.string(), "hash of the engine's binary"),
    "source": (
        pa.string(),
        "workload, or file name of the trace; its path in a sweep that has several of the name",
    ),
    "source_hash": (pa.string(), "hash of the trace's contents; null for a workload"),
    "scheme": (pa.string(), "scheme"),
    "scheme_hash": (pa.string(), "hash of its contents, before a sweep changed keys"),
    "machine": (pa.string(), "machine; changed keys have columns of their own"),
    "machine_hash": (pa.string(), "hash of its contents, before a sweep changed keys"),
    "large_pages": (pa.int64(), "per cent of memory on 2 MiB pages; null with `thp`"),
    "thp": (pa.string(), "Linux's policy for large pages; null with `large_pages`"),
    "fragmentation": (pa.float64(), "share of physical 2 MiB blocks that cannot be had whole"),
    "host_large_pages": (
        pa.int64(),
        "per cent of a guest's memory on 2 MiB pages of the host; null without a guest",
    ),
    "guest_frames": (pa.string(), "where a guest's frames lie; null without a guest"),
    "cores": (pa.int64(), "cores that threads run on, at most; null for the machine's"),
    "mode": (pa.string(), "timing or functional"),
    "seed": (pa.int64(), "seed of all that is random"),
    "lengths": (pa.string(), "instructions and windows that the engine was asked for"),
    **{name: (kind, f"as `{name}` in result-format.md") for name, kind in _FIGURES.items()},
    "sampled": (pa.bool_(), "whether windows were spread over more than what was measured"),
    "coverage": (pa.float64(), "share of the source that was measured; null where its length is not known"),
    "windows": (pa.list_(_WINDOW), "the windows, as in result-format.md"),
    "warnings": (pa.list_(pa.string()), "doubts about the run"),
    "result": (pa.string(), "the whole result as JSON, as one of `runs` in result-format.md"),
}

#: Names of which several things may have the same, and the hashes that tell these apart.
HASHES = {name: f"{name}_hash" for name in ("source", "scheme", "machine")}

#: Columns that are computed when results are read.
COMPUTED = {
    "walks_per_1000": "walks per 1000 instructions",
    "speedup": "speed over the baseline's; null where nothing was timed or the baseline is missing",
    "speedup_low": "lower end of its 95 % interval; null where nothing is known of it",
    "speedup_high": "upper end",
}

#: More files than this are made one after a sweep.
_MOST_FILES = 32


def figures_of(run: Run) -> dict[str, Any]:
    """The columns that a run has by itself, outside of any sweep."""
    own = cast("dict[str, Any]", run)
    conditions = ("scheme", "machine", "large_pages", "thp", "fragmentation", "host_large_pages")
    names = (*conditions, "guest_frames", "mode", "seed", *_FIGURES, "windows", "warnings")
    speeds = {name: own.get(name) for name in ("speedup", "speedup_low", "speedup_high")}
    return {
        "source": run["workload"],
        **{name: own[name] for name in names},
        "walks_per_1000": results.walks_per_1000(run),
        **speeds,
    }


def row(unit: Unit, run: Run, sampling: Sampled | None, **about: object) -> dict[str, Any]:
    """A run as a row, without what is computed when it is read."""
    figures = {name: cast("dict[str, Any]", run)[name] for name in _FIGURES}
    return {
        "key": unit.key,
        "baseline": unit.baseline,
        "finished": datetime.now(UTC),
        **about,
        **unit.columns,
        "lengths": _lengths(unit.request),
        **figures,
        "sampled": None if sampling is None else sampling["sampled"],
        "coverage": None if sampling is None else sampling["coverage"],
        "windows": run["windows"],
        "warnings": run["warnings"],
        "result": json.dumps(run),
    }


def _lengths(request: dict[str, Any]) -> str:
    """What of a source was asked for, as `skip=0, warmup=0, windows=40, window=400000`."""
    spread = request["sampling"] or {}
    # Before each window instead of before all.
    found = {**{key: request[key] for key in ("instructions", "skip", "warmup")}, **spread}
    return ", ".join(f"{key}={value}" for key, value in found.items() if value is not None)


class Results:
    """The results in a directory.

    Args:
        place: The directory, which `make` makes; without it there are no runs.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._runs = place / "runs"
        self._lock = place / "lock"
        self._baselines: dict[str, str] = {}
        self._seen: set[str] = set()

    def make(self) -> None:
        """Makes the directory if it is not there.

        Raises:
            FlatwalkError: If it cannot be made, or nothing be written there.
        """
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FlatwalkError(
                f"results cannot be kept: {error.strerror}",
                where=str(self.place),
                remedy="choose another directory with --results DIR",
            ) from error
        # Before anything is run, not when its results are there.
        with self._locked():
            pass

    def baselines(self) -> dict[str, str]:
        """By the key of each run that is stored, that of the run that its speed-up is over.

        Raises:
            FlatwalkError: If a file is not one of results.
        """
        return self._whole(self._look)

    def baseline_schemes(self) -> set[str]:
        """The schemes that speed-ups of stored runs are over, as far as they are known.

        Raises:
            FlatwalkError: If a file is not one of results.
        """
        table = self._columns(["key", "baseline", "scheme", "baseline_scheme"])
        return set(_with_baselines(table).column("baseline_scheme").drop_null().to_pylist())

    def others(self, units: Sequence[Unit], digest: str) -> tuple[int, list[str]]:
        """Stored runs of an engine that have names of units, but are of other contents.

        Args:
            units: They.
            digest: The engine's hash: runs of another one are told apart by it.

        Returns:
            How many they are, and the names, as far as an older version stored their contents.

        Raises:
            FlatwalkError: If a file is not one of results.
        """
        known: dict[str, dict[str, set[str | None]]] = {name: {} for name in HASHES}
        for unit in units:
            for name, own in HASHES.items():
                known[name].setdefault(unit.columns[name], set()).add(unit.columns[own])
        columns = ["engine", *HASHES, *HASHES.values()]
        count, found = 0, set()
        for row in (
            self._columns(["key", *columns]).group_by(columns).aggregate([("key", "count")]).to_pylist()
        ):
            changed = {
                row[name]
                for name, own in HASHES.items()
                if row[own] is not None and row[own] not in known[name].get(row[name], {row[own]})
            }
            if changed and row["engine"] == digest:
                count += row["key_count"]
                found |= changed
        return count, sorted(found)

    def keys(self) -> KeysView[str]:
        """Keys of the runs that are stored.

        Raises:
            FlatwalkError: If a file is not one of results.
        """
        return self.baselines().keys()

    def append(self, rows: Sequence[dict[str, Any]]) -> int:
        """Stores the rows that are not there yet, in one step.

        Returns:
            How many they were.

        Raises:
            FlatwalkError: If they cannot be written.
        """
        with self._locked():
            stored = self.baselines()
            new = [one for one in rows if one["key"] not in stored]
            if new:
                self._write(_table(new))
                stored.update((one["key"], one["baseline"]) for one in new)
        return len(new)

    def compact(self) -> None:
        """Makes one file of many.

        Raises:
            FlatwalkError: If it cannot be written.
        """
        with self._locked():
            files = self._files()
            if len(files) > _MOST_FILES:
                self._write(_completed(_once(_joined(map(_read, files)))))
                for path in files:
                    path.unlink()

    def require(self) -> None:
        """Passes a directory that has runs.

        Raises:
            FlatwalkError: If there are none.
        """
        if not self._files():
            raise FlatwalkError(
                "there are no results",
                where=str(self.place),
                remedy="run a sweep: flatwalk sweep FILE --results DIR",
            )

    def table(self) -> pa.Table:
        """All runs, each once, in the order in which they were stored, with what is computed.

        Raises:
            FlatwalkError: If there are none, or a file is not one of results.
        """
        self.require()
        tables = self._whole(lambda: [_read(path) for path in self._files()])
        return computed(_completed(_once(_joined(tables)).sort_by("finished")))

    def _columns(self, names: list[str]) -> pa.Table:
        """Some columns of all runs; null where an older version did not store them."""
        return _joined(self._whole(lambda: [_read(path, names) for path in self._files()]))

    def _files(self) -> list[Path]:
        return sorted(self._runs.glob("*.parquet"))

    def _look(self) -> dict[str, str]:
        for path in self._files():
            if path.name not in self._seen:
                found = _read(path, ["key", "baseline"])
                columns = (found.column(name).to_pylist() for name in ("key", "baseline"))
                self._baselines.update(zip(*columns, strict=True))
                self._seen.add(path.name)
        return self._baselines

    def _whole(self, read: Callable[[], T]) -> T:
        """What `read` finds in the files; again, if another process has joined some of them meanwhile."""
        while True:
            with suppress(FileNotFoundError):
                return read()

    def _write(self, table: pa.Table) -> None:
        path = self._runs / f"{uuid4().hex}.parquet"
        temporary = path.with_suffix(".part")
        try:
            with temporary.open("wb") as file:
                pq.write_table(table, file, compression="zstd", write_page_checksum=True)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise FlatwalkError(
                f"results cannot be written: {error.strerror}",
                where=str(self._runs),
                remedy="free some space; the same command then goes on from what is stored",
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
        self._seen.add(path.name)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, on all machines that see the directory."""
        try:
            with self._lock.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                for left in self._runs.glob("*.part"):  # of a writer that was killed: it held the lock
                    left.unlink()
                yield
        except OSError as error:
            raise FlatwalkError(
                f"results cannot be locked: {error.strerror}",
                where=str(self._lock),
                remedy="choose a directory that you may write to, on a file system with locks",
            ) from error


def _table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    names = {name: None for one in rows for name in one if name not in COLUMNS}
    arrays = {name: pa.array([one.get(name) for one in rows], kind) for name, (kind, _) in COLUMNS.items()}
    arrays |= {name: pa.array(_plain([one.get(name) for one in rows])) for name in names}
    return pa.table(arrays).replace_schema_metadata({"flatwalk": SCHEMA})


def _plain(values: Sequence[object]) -> list[object]:
    """Values of a key that sweeps set, as a column has them: lists and tables are JSON."""
    return [json.dumps(one, sort_keys=True) if isinstance(one, list | dict) else one for one in values]


def _read(path: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        if columns is not None:
            # Of older versions files may lack some.
            there = pq.read_schema(path).names
            columns = [name for name in columns if name in there]
        table = pq.read_table(path, columns=columns, partitioning=None, page_checksum_verification=True)
        table.validate(full=True)
        for field in table.schema:
            kind = COLUMNS[field.name][0] if field.name in COLUMNS else field.type
            # Of older versions, windows have fewer figures.
            if field.type != kind and not pa.types.is_nested(kind):
                raise pa.ArrowTypeError(f"{field.name} is {field.type} there, not {kind}")
    except (OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
            raise
        raise FlatwalkError(
            f"not a file of results: {error}", where=str(path), remedy="move it out of the directory"
        ) from error
    form = (table.schema.metadata or {}).get(b"flatwalk", b"").decode(errors="replace")
    if form != SCHEMA:
        raise FlatwalkError(
            f"the file has the form {form or 'of something else'!r}, and this version reads {SCHEMA}",
            where=str(path),
            remedy="use the version of flatwalk that wrote it, or move it out of the directory",
        )
    # What `results export` wrote is a file of results, too.
    return table.drop_columns([name for name in COMPUTED if name in table.column_names])


def _joined(tables: Iterable[pa.Table]) -> pa.Table:
    """Tables one after another; a column that one lacks is null there, and text in some is text in all."""
    # Of older versions every table may lack a column.
    found = [_table([]), *tables]
    kinds: dict[str, set[pa.DataType]] = {}
    for field in (field for table in found for field in table.schema if field.name not in COLUMNS):
        kinds.setdefault(field.name, set()).add(field.type)
    text = pa.string()
    for name, known in kinds.items():
        if text in known or any(pa.types.is_nested(kind) for kind in known):
            found = [
                table.set_column(at, name, pa.array(_texts(table.column(at)), text))
                if (at := table.schema.get_field_index(name)) >= 0 and table.schema.field(at).type != text
                else table
                for table in found
            ]
    return pa.concat_tables(found, promote_options="permissive").replace_schema_metadata({"flatwalk": SCHEMA})


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    return [
        value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True)
        for value in column.to_pylist()
    ]


def _once(table: pa.Table) -> pa.Table:
    """The first row of each run. It is there twice if the writer was killed while it joined files."""
    first: dict[Any, int] = {}
    for number, key in enumerate(table.column("key").to_pylist()):
        first.setdefault(key, number)
    return table if len(first) == table.num_rows else table.take(list(first.values()))


def _with_baselines(table: pa.Table) -> pa.Table:
    """A table with the names of baselines' schemes, which older versions did not store."""
    names = ("key", "baseline", "scheme", "baseline_scheme")
    keys, baselines, schemes, stored = (table.column(name).to_pylist() for name in names)
    by_key = dict(zip(keys, schemes, strict=True))
    found = [name or by_key.get(key) for key, name in zip(baselines, stored, strict=True)]
    at = table.schema.get_field_index("baseline_scheme")
    return table.set_column(at, "baseline_scheme", pa.array(found, pa.string()))


def _completed(table: pa.Table) -> pa.Table:
    """A table as this version stores it, as far as the rest of older rows says it."""
    table = _with_baselines(table)
    # They had these columns without a guest, too; the results never did.
    pages, frames = table.column("host_large_pages"), table.column("guest_frames")
    without = pc.match_substring(table.column("result"), '"host_large_pages": null')
    usual = pc.and_(pc.equal(pages, 0), pc.equal(frames, "scattered"))
    wrong = pc.fill_null(pc.and_(without, usual), fill_value=False)
    for name in ("host_large_pages", "guest_frames"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, pc.if_else(wrong, None, table.column(name)))
    return table


def computed(table: pa.Table) -> pa.Table:
    """A table of runs with the columns that follow from several of them."""
    names = ["key", "baseline", "sampled", "coverage", "windows", *_FIGURES]
    runs = cast("list[Any]", table.select(names).to_pylist())
    by_key = {run["key"]: run for run in runs}
    found: dict[str, list[float | None]] = {name: [] for name in COMPUTED}
    for run in runs:
        base = by_key.get(run["baseline"])
        speed = None if base is None else results.speed_ratio(run, base, sampling_of(run))
        bounds = (speed.value, speed.low, speed.high) if speed else (None, None, None)
        figures = (results.walks_per_1000(run), *bounds)
        for column, figure in zip(found.values(), figures, strict=True):
            column.append(figure)
    for name, column in found.items():
        table = table.append_column(name, pa.array(column, pa.float64()))
    return table


def sampling_of(run: dict[str, Any]) -> Sampling | None:
    """What is known of how a stored run was sampled."""
    if run["sampled"] is None:
        return None
    return cast("Sampling", {"sampled": run["sampled"], "coverage": run["coverage"]})


def changed_keys(table: pa.Table) -> list[str]:
    """The columns of machines' changed keys."""
    return [name for name in table.column_names if name not in itertools.chain(COLUMNS, COMPUTED)]
