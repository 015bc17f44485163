"""`flatwalk sweep` and `flatwalk results`: what they print."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from flatwalk import cache, engine, units
from flatwalk.definitions import variations
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.lab import engines, run, slurm, store
from flatwalk.lab import query as ask
from flatwalk.lab.plan import plan
from flatwalk.lab.sweep import Sweep
from flatwalk.report import drawing
from flatwalk.terminal import output
from flatwalk.terminal.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor

    from flatwalk.answer.intervals import Estimate
    from flatwalk.lab.plan import Unit

#: Failures that are named one by one.
_TOLD = 20
#: What runs that differ in a column may differ in, too: another version has another engine and may have other
#: shipped files, and another trace has other lengths.
_FOLLOWING = {
    "version": ("engine", "scheme_hash", "machine_hash"),
    "source": ("source_hash", "lengths"),
    "scheme": ("scheme_hash",),
    "machine": ("machine_hash",),
}
#: Slurm's jobs at a time, where the user does not say.
_SLURM_JOBS = 16


@dataclass(frozen=True)
class Place:
    """Where runs are done."""

    #: Calls at a time; 0 is as many as usual there.
    jobs: int = 0
    #: A Dask scheduler's address.
    cluster: str | None = None
    #: Options of `sbatch`, if Slurm does them.
    slurm: str | None = None

    def __post_init__(self) -> None:
        """Passes one place.

        Raises:
            UsageError: If there are two.
        """
        if self.cluster is not None and self.slurm is not None:
            raise UsageError("runs are done in one place", where="--cluster and --slurm", remedy="give one")

    @property
    def here(self) -> bool:
        """On this machine."""
        return self.cluster is None and self.slurm is None

    @property
    def workers(self) -> int:
        """Calls at a time."""
        return self.jobs or (_SLURM_JOBS if self.slurm is not None else len(os.sched_getaffinity(0)))

    @contextmanager
    def executors(self, results: Path) -> Iterator[tuple[Callable[[], Executor], int]]:
        """What makes executors for runs whose results go to `results`, and how many calls they do at a time.

        Raises:
            UsageError: If there is no such place.
        """
        if self.cluster is not None:
            with engines.cluster(self.cluster) as (make, workers):
                yield make, self.jobs or workers or self.workers
            return
        count = self.workers
        with engines.local(count) if self.slurm is None else slurm.jobs(self.slurm, count, results) as make:
            yield make, count


def sweep(name: str, place: Path, *, dry_run: bool, status: bool, on: Place) -> None:
    """Runs what of a sweep is not stored yet, or says how much that is.

    Raises:
        FlatwalkError: If the sweep is not possible, results cannot be stored, or a run failed.
    """
    asked = Sweep.read(name)
    results = store.Results(place)
    wanted, missing = _planned(asked, results)
    is_done = f"{len(wanted) - len(missing):,} of {units.several(len(wanted), 'run')} are stored in {place}"
    if status:
        print(f"{asked.name}: {is_done}.")
        return
    if missing:
        seconds = run.estimate_seconds(missing, on.workers) if on.here else None
        told = "" if seconds is None else f", about {units.duration(seconds)}"
        before = f" ({is_done})" if len(missing) < len(wanted) else ""
        output.note(f"{asked.name}: {units.several(len(missing), 'run')}{told}{before}")
    if dry_run:
        return
    outcome = _run(asked, missing, results, on)
    print(
        f"{asked.name}: {len(wanted) - len(outcome.failed):,} of {units.several(len(wanted), 'run')} are "
        f"stored in {place}, {outcome.new:,} of them new."
    )
    if outcome.failed:
        raise _failure(outcome.failed)


def run_missing(asked: Sweep, place: Path, on: Place) -> None:
    """Runs what of a sweep is not stored yet.

    Raises:
        FlatwalkError: If the sweep is not possible, results cannot be stored, or a run failed.
    """
    results = store.Results(place)
    outcome = _run(asked, _planned(asked, results)[1], results, on)
    if outcome.failed:
        raise _failure(outcome.failed)


def _planned(asked: Sweep, results: store.Results) -> tuple[list[Unit], list[Unit]]:
    """All runs of a sweep, and those that are not stored.

    Raises:
        UsageError: If it is not possible, or stored runs have speed-ups over another scheme.
    """
    wanted = plan(asked)
    stored = results.baselines()
    own = wanted[0].columns["baseline_scheme"]
    others = sorted(results.baseline_schemes() - {own})
    # An edited file may have another scheme under the same name.
    if others or any(stored.get(unit.key, unit.baseline) != unit.baseline for unit in wanted):
        raise UsageError(
            f"stored runs have their speed-ups over {', '.join(others) or f'another {own}'}, "
            f"and those of this sweep were over {own}",
            where=str(results.place),
            remedy="keep the first of schemes, or name another directory with --results",
        )
    count, names = results.others(wanted, cache.digest(engine.path()))
    if count:
        output.note(
            f"{results.place} has {units.several(count, 'run')} of {', '.join(names)} with other contents "
            f"than now: {', '.join(store.HASHES.values())} tell them apart. "
            "For a table without them name another directory with --results."
        )
    return wanted, [unit for unit in wanted if unit.key not in stored]


def _run(asked: Sweep, missing: list[Unit], results: store.Results, on: Place) -> run.Outcome:
    if not missing:
        return run.Outcome()
    with ExitStack() as stack:
        make, workers = stack.enter_context(on.executors(results.place))
        results.make()
        progress = stack.enter_context(output.Progress("Running"))
        outcome = run.run(asked.name, missing, results, make=make, workers=workers, progress=progress)
    try:
        results.compact()
    except FlatwalkError as error:  # all of them are stored; the next sweep joins their files
        output.note(f"warning: files of results were not joined: {error.what}")
    return outcome


def _failure(failed: list[tuple[Unit, FlatwalkError]]) -> FlatwalkError:
    told = failed[:_TOLD]
    lines = [f"{unit.label}: {_told(error)}" for unit, error in told]
    if len(failed) > _TOLD:
        lines.append(f"and {len(failed) - _TOLD} more")
    remedies = dict.fromkeys(error.remedy for _, error in told if error.remedy)
    return FlatwalkError(
        f"{units.several(len(failed), 'run')} failed:\n         " + "\n         ".join(lines),
        remedy="; ".join([*remedies, "the same command runs what is missing, and nothing else"]),
    )


def _told(error: FlatwalkError) -> str:
    """What is wrong and where, in a line."""
    what = error.what.splitlines()[0]
    return f"{what} ({one_line(error.where)})" if error.where else what


def _runs(place: Path, where: str | None) -> pa.Table:
    table = store.Results(place).table()
    return table if where is None else ask.selected(table, where)


def query(place: Path, sql: str, *, as_csv: bool, as_json: bool) -> None:
    """Prints the answer to SQL.

    Raises:
        FlatwalkError: If there are no results, or the SQL is wrong.
    """
    ask.print_table(ask.query(store.Results(place).table(), sql), as_csv=as_csv, as_json=as_json)


def export(place: Path, path: Path, where: str | None) -> None:
    """Writes runs to a file.

    Raises:
        FlatwalkError: If there are none, or it cannot be written.
    """
    output.check_writable(path, "FILE")
    table = _runs(place, where)
    ask.export(table, path)
    print(f"{path}: {units.several(table.num_rows, 'run')}")


def plot(
    place: Path,
    path: Path,
    where: str | None,
    *,
    x: str,
    y: str,
    by: str | None,
    over: str | None,
    columns: int,
) -> None:
    """Draws runs.

    Raises:
        FlatwalkError: If there are none, there is no such column, or the file cannot be written.
    """
    drawing.plot(_runs(place, where), path, x=x, y=y, by=by, over=over, columns=columns)
    print(path)


def report(place: Path, path: Path, where: str | None, *, usual: bool = False) -> None:
    """Writes a page of runs, to be explored in a browser.

    Args:
        place: Directory of the results.
        path: Where the page goes.
        where: A condition in SQL.
        usual: Nobody has asked for that name.

    Raises:
        FlatwalkError: If there are none, or it cannot be written.
    """
    from flatwalk.report import sweep as page  # noqa: PLC0415

    output.check_writable(path, "--output")
    table = _runs(place, where)
    if not table.num_rows:
        raise UsageError("there are no such runs", where="--where", remedy="ask for others")
    path = output.write_report(path, page.render(table, str(place), engine.version()), usual=usual)
    print(f"{path}: {units.several(table.num_rows, 'run')}")


def diff(
    place: Path, first: str, second: str, *, by: str | None, where: str | None, as_csv: bool, as_json: bool
) -> None:
    """Prints by how much runs of B are faster than those of A.

    Args:
        place: Directory of the results, with `by`.
        first: A: a value of the first column of `by`, or without it a directory.
        second: B.
        by: Columns that the runs of a pair may differ in, with commas between them.
        where: Only runs for which this SQL holds.
        as_csv: Print CSV.
        as_json: Print JSON.

    Raises:
        FlatwalkError: If there are none that can be compared.
    """
    columns = [] if by is None else [name.strip() for name in by.split(",")]
    if not columns:
        tables = [_runs(Path(name), where) for name in (first, second)]
        but = {"version", *_FOLLOWING["version"]}
    else:
        table = _runs(place, where)
        for name in columns:
            if name not in table.column_names:
                raise UsageError(
                    f"there is no column {name}",
                    where="--by",
                    remedy='`flatwalk results query "describe runs"` shows all',
                )
        values = table.column(columns[0]).to_pylist()
        tables = [table.filter(_named(values, columns[0], name)) for name in (first, second)]
        for name, found in zip((first, second), tables, strict=True):
            if not found.num_rows:
                known = ", ".join(sorted(set(map(str, values))))
                remedy = f"there are {known}" if known else "no run is left of --where: ask for others"
                raise UsageError(f"no run has {columns[0]} {name}", where="A and B", remedy=remedy)
        but = {*columns, *(other for name in columns for other in _FOLLOWING.get(name, ()))}
    pairs = ask.diff(tables[0], tables[1], but, columns)
    if any(alone := [table.num_rows - len(pairs) for table in tables]):
        output.note(
            f"Without a partner: {units.several(alone[0], 'run')} of {first}, "
            f"{units.several(alone[1], 'run')} of {second}."
        )
    print_table = {"as_csv": as_csv, "as_json": as_json}
    rows = [
        {
            **one.same,
            "speed-up": None if one.speed is None else one.speed.value,
            "low": None if one.speed is None else one.speed.low,
            "high": None if one.speed is None else one.speed.high,
            "walks": one.walks,
        }
        for one in pairs
    ]
    if as_csv or as_json:
        ask.print_table(pa.Table.from_pylist(rows), **print_table)
        return
    names = list(pairs[0].same)
    output.table(
        [*(f"{name} " for name in names), "B against A", "±", "walks"],
        [[*(str(one.same[name]) for name in names), *_speed(one.speed), _change(one.walks)] for one in pairs],
        title=f"{second} against {first}",
    )


def _named(values: Sequence[object], column: str, text: str) -> pa.BooleanArray:
    """Which values of a column a text stands for, read as in a sweep's file: `8MiB` is a size."""
    wanted: object = text
    with suppress(UsageError):
        wanted = variations.read_value(column, text, "A and B")
    return pa.array([str(value) == text or value == wanted for value in values], pa.bool_())


def _change(ratio: float | None) -> str:
    return "–" if ratio is None else units.signed_percent(ratio - 1)


def _speed(speed: Estimate | None) -> tuple[str, str]:
    if speed is None:
        return "–", "–"
    return _change(speed.value), units.margin(speed.value, speed.low, speed.high)
