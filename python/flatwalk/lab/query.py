"""Questions to results: SQL, exports, and differences between two sets of runs."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from flatwalk.answer import results
from flatwalk.errors import UsageError
from flatwalk.lab import store
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import TextIO

    from duckdb import DuckDBPyConnection

    from flatwalk.answer.intervals import Estimate

#: What `export` writes, by the file name's ending.
_FORMATS = (".csv", ".arrow", ".parquet", ".json")

#: A column that numbers the runs which a condition is asked of.
_NUMBER = "number_of_the_run"

#: What two runs that are compared may differ in without being other experiments.
_IDENTITY = (
    "source",
    "source_hash",
    "scheme",
    "scheme_hash",
    "machine",
    "machine_hash",
    "large_pages",
    "thp",
    "fragmentation",
    "host_large_pages",
    "guest_frames",
    "cores",
    "mode",
    "seed",
    "version",
    "engine",
)


def query(
    table: pa.Table,
    sql: str,
    where: str = "SQL",
    remedy: str = 'as "select scheme, avg(speedup) from runs group by scheme"',
) -> pa.Table:
    """The answer to SQL over the table `runs`.

    Args:
        table: It.
        sql: The query.
        where: What has it or a part of it, for errors.
        remedy: Likewise, what to give instead.

    Raises:
        UsageError: If the SQL is wrong.
    """
    import duckdb  # noqa: PLC0415

    connection = duckdb.connect()
    try:
        connection.register("runs", table)
        connection.execute("set timezone = 'UTC'")
        found = _interruptible(connection, lambda: connection.sql(sql).to_arrow_table())
        return found.rename_columns(_distinct(found.column_names))
    except (duckdb.Error, AttributeError) as error:
        what = (
            "the query has no answer: it is not a SELECT" if isinstance(error, AttributeError) else str(error)
        )
        raise UsageError(what, where=where, remedy=remedy) from error
    finally:
        connection.close()


def _interruptible(connection: DuckDBPyConnection, ask: Callable[[], pa.Table]) -> pa.Table:
    """What `ask` answers. It runs on a thread of its own, as no signal is heard inside of DuckDB."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ask)
        try:
            return future.result()
        except (KeyboardInterrupt, SystemExit):
            # Before the query has begun there is nothing to interrupt.
            while not future.done():
                connection.interrupt()
                wait([future], timeout=0.05)
            raise


def _distinct(names: Iterable[str]) -> list[str]:
    """Names of columns, of which SQL may give several the same: `x`, `x_2` and so on."""
    found: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        own = name if name not in found else next(one for one in numbered if one not in found)
        found[own] = None
    return list(found)


def selected(table: pa.Table, condition: str) -> pa.Table:
    """The runs for which a condition in SQL holds.

    Raises:
        UsageError: If it is wrong.
    """
    numbered = table.append_column(_NUMBER, pa.array(range(table.num_rows), pa.int64()))
    sql = f"select {_NUMBER} from runs where {condition}"  # noqa: S608 - it is the user's own
    found = query(numbered, sql, "--where", "as --where \"scheme = 'fpt' and large_pages = 0\"")
    # SQL's types are not quite those of the table.
    return table.take(found.column(0))


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of a table, of values that JSON has."""
    columns = ([_plain(value) for value in column.to_pylist()] for column in table.columns)
    return list(zip(*columns, strict=True))


def _plain(value: object) -> object:
    """A value as JSON has it: a number is one whatever type SQL gave it, and a time is text."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _json(table: pa.Table, indent: int) -> str:
    """One object a row."""
    rows = _rows(table)
    return output.as_json([dict(zip(table.column_names, row, strict=True)) for row in rows], indent)


def _csv(table: pa.Table, file: TextIO) -> None:
    """Lists and structures are JSON."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.column_names)
    for row in _rows(table):
        writer.writerow(
            output.as_json(value, None) if isinstance(value, list | dict) else value for value in row
        )


def print_table(table: pa.Table, *, as_csv: bool, as_json: bool) -> None:
    """Prints a table: for a person, as CSV or as JSON, one object a row."""
    if as_json:
        print(_json(table, 2))
    elif as_csv:
        _csv(table, sys.stdout)
    else:
        output.table(
            [
                name + (" " if pa.types.is_string(kind) else "")
                for name, kind in zip(table.column_names, table.schema.types, strict=True)
            ],
            [[_cell(value) for value in row] for row in _rows(table)],
        )


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | dict):
        return output.as_json(value, None)
    return str(value)


def export(table: pa.Table, path: Path) -> None:
    """Writes a table as CSV, Arrow, Parquet or JSON, by the file's name.

    Raises:
        UsageError: If its ending is none of these.
        FlatwalkError: If it cannot be written.
    """
    if path.suffix not in _FORMATS:
        raise UsageError(
            f"{path.name} does not say what to write", where="FILE", remedy=f"end it in {', '.join(_FORMATS)}"
        )
    with output.whole_file(path) as temporary:
        match path.suffix:
            case ".csv":
                with temporary.open("w", encoding="utf-8", newline="") as file:
                    _csv(table, file)
            case ".arrow":
                with pa.ipc.new_file(str(temporary), table.schema) as writer:
                    writer.write_table(table)
            case ".parquet":
                pq.write_table(table, temporary, compression="zstd")
            case _:
                temporary.write_text(_json(table, 1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Difference:
    """Two runs that differ in one thing."""

    #: What they have in common, by column.
    same: dict[str, Any]
    #: Speed of the second over the first, in time.
    speed: Estimate | None
    #: Walks per instruction of the second over the first's.
    walks: float | None


#: So many runs of either side are looked at for the nearest two.
_NEAR = 200


def diff(first: pa.Table, second: pa.Table, but: set[str], by: Sequence[str] = ()) -> list[Difference]:
    """Runs of two tables that are alike but for some columns, in pairs.

    Intervals are from windows at the same places, and are missing where the windows differ.

    Args:
        first: Runs.
        second: Other runs.
        but: Columns in which the runs of a pair may differ.
        by: Those of them that the user named, if any.

    Returns:
        The pairs, in the order of what tells them apart.

    Raises:
        UsageError: If no run has a partner, or one has several.
    """
    changed = dict.fromkeys(store.changed_keys(first) + store.changed_keys(second))
    known = [name for name in (*_IDENTITY, *changed) if name not in but]
    identity = [*known, "lengths"]

    def several(key: tuple[Any, ...]) -> UsageError:
        alike = ", ".join(f"{name} {value}" for name, value in zip(known, key, strict=True) if value)
        return UsageError(
            f"several runs are alike but for {', '.join(sorted(but))}: {alike}",
            where="A and B",
            remedy="say with --where which runs are meant",
        )

    def keyed(table: pa.Table) -> dict[tuple[Any, ...], dict[str | None, Any]]:
        """By what they are the runs, by lengths; those that an earlier version stored have unknown ones."""
        found: dict[tuple[Any, ...], dict[str | None, Any]] = {}
        for run in table.to_pylist():
            key = tuple(run.get(name) for name in known)
            lengths = None if "lengths" in but else run.get("lengths")
            if lengths in found.setdefault(key, {}):
                raise several(key)
            found[key][lengths] = run
        return found

    ours, theirs = keyed(first), keyed(second)
    pairs = []
    for key in (key for key in ours if key in theirs):
        mine, others = ours[key], theirs[key]
        if None not in {*mine, *others}:
            both = [(lengths, run, others[lengths]) for lengths, run in mine.items() if lengths in others]
            pairs += [((*key, lengths), run, other) for lengths, run, other in both]
        elif len(mine) > 1 or len(others) > 1:
            raise several(key)
        else:
            # Lengths that are not known may be the same.
            (lengths, run), other = next(iter(mine.items())), next(iter(others.values()))
            pairs.append(((*key, lengths), run, other))
    pairs.sort(key=lambda pair: [(value is not None, value or 0) for value in pair[0]])
    if not pairs:
        apart = _apart(first.slice(0, _NEAR).to_pylist(), second.slice(0, _NEAR).to_pylist(), identity, but)
        told = ", ".join(f"{name} ({one} and {other})" for name, (one, other) in apart.items())
        named = f"name these too, as in --by {','.join([*by, *apart])}" if by and apart else None
        raise UsageError(
            f"no run of A has a partner in B that is alike but for {', '.join(sorted(but))}"
            + (f"; the nearest differ in {told}" if told else ""),
            where="A and B",
            remedy=named or "`flatwalk results query` shows what there is",
        )

    def values(*names: str) -> int:
        return len({tuple(key[identity.index(name)] for name in names) for key, *_ in pairs})

    # Of a hash that says no more than its name, the name is enough.
    short = {
        own
        for name, own in store.HASHES.items()
        if {name, own} <= {*identity} and values(name) == values(name, own)
    }
    shown = [name for name in identity if name not in short and values(name) > 1]
    return [
        Difference(
            {name: run.get(name) for name in shown or ["scheme"]},
            results.time_ratio(_configured(other), _configured(run), store.sampling_of(run)),
            other["walks_per_1000"] / run["walks_per_1000"] if run["walks_per_1000"] else None,
        )
        for _, run, other in pairs
    ]


def _apart(
    first: list[dict[str, Any]], second: list[dict[str, Any]], identity: Sequence[str], but: set[str]
) -> dict[str, tuple[Any, Any]]:
    """The columns in which the nearest runs of two lists differ, with their values."""

    def differ(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
        values = {name: (one.get(name), other.get(name)) for name in identity if name not in but}
        # Lengths that are not known may be the same.
        apart = {
            name: pair
            for name, pair in values.items()
            if pair[0] != pair[1] and (name != "lengths" or None not in pair)
        }
        # Two names have two hashes.
        follow = {own for name, own in store.HASHES.items() if name in apart}
        return {name: pair for name, pair in apart.items() if name not in follow}

    return min(itertools.starmap(differ, itertools.product(first, second)), key=len, default={})


def _configured(run: dict[str, Any]) -> results.Run:
    """A stored run with its configuration, which has the clock of its machine."""
    return cast("results.Run", run | {"configuration": json.loads(run["result"])["configuration"]})
