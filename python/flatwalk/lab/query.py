"""Questions to results: SQL, exports, and differences between two sets of runs."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from flatwalk import output, results
from flatwalk.errors import UsageError
from flatwalk.lab import store
from flatwalk.printable import json_escaped

if TYPE_CHECKING:
    from pathlib import Path

    from flatwalk.intervals import Estimate

#: What `export` writes, by the file name's ending.
_FORMATS = (".csv", ".arrow", ".parquet", ".json")

#: What two runs that are compared may differ in without being other experiments.
_IDENTITY = (
    "source",
    "source_hash",
    "scheme",
    "machine",
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


def query(table: pa.Table, sql: str) -> pa.Table:
    """The answer to SQL over the table `runs`.

    Raises:
        UsageError: If the SQL is wrong.
    """
    import duckdb  # noqa: PLC0415

    connection = duckdb.connect()
    try:
        connection.register("runs", table)
        return cast("pa.Table", connection.sql(sql).to_arrow_table())
    except (duckdb.Error, AttributeError) as error:
        what = (
            "the query has no answer: it is not a SELECT" if isinstance(error, AttributeError) else str(error)
        )
        raise UsageError(
            what, where="SQL", remedy='as "select scheme, avg(speedup) from runs group by scheme"'
        ) from error
    finally:
        connection.close()


def selected(table: pa.Table, condition: str) -> pa.Table:
    """The runs for which a condition in SQL holds.

    Raises:
        UsageError: If it is wrong.
    """
    return query(table, f"select * from runs where {condition}")  # noqa: S608 - it is the user's own


def plain(table: pa.Table) -> pa.Table:
    """A table that CSV can hold: lists and structures as JSON."""
    for number, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            texts = [
                None if value is None else json.dumps(value) for value in table.column(number).to_pylist()
            ]
            table = table.set_column(number, field.name, pa.array(texts, pa.string()))
    return table


def print_table(table: pa.Table, *, as_csv: bool, as_json: bool) -> None:
    """Prints a table: for a person, as CSV or as JSON, one object a row."""
    rows = table.to_pylist()
    if as_json:
        print(json_escaped(json.dumps(rows, indent=2, default=str, ensure_ascii=False)))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows(row.values() for row in plain(table).to_pylist())
    else:
        output.table(
            [
                name + (" " if pa.types.is_string(kind) else "")
                for name, kind in zip(table.column_names, table.schema.types, strict=True)
            ],
            [[_cell(value) for value in row.values()] for row in rows],
        )


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | dict):
        return json.dumps(value, default=str)
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
                pa.csv.write_csv(plain(table), temporary)
            case ".arrow":
                with pa.ipc.new_file(str(temporary), table.schema) as writer:
                    writer.write_table(table)
            case ".parquet":
                pq.write_table(table, temporary, compression="zstd")
            case _:
                text = json_escaped(json.dumps(table.to_pylist(), indent=1, default=str, ensure_ascii=False))
                temporary.write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Difference:
    """Two runs that differ in one thing."""

    #: What they have in common, by column.
    same: dict[str, Any]
    #: Speed of the second over the first, in time.
    speed: Estimate | None
    #: Walks per instruction of the second over the first's.
    walks: float | None


def diff(first: pa.Table, second: pa.Table, but: set[str]) -> list[Difference]:
    """Runs of two tables that are alike but for some columns, in pairs.

    Intervals are from windows at the same places, and are missing where the windows differ.

    Args:
        first: Runs.
        second: Other runs.
        but: Columns in which the runs of a pair may differ.

    Raises:
        UsageError: If no run has a partner, or one has several.
    """
    changed = dict.fromkeys(store.changed_keys(first) + store.changed_keys(second))
    identity = [name for name in (*_IDENTITY, *changed) if name not in but]

    def keyed(table: pa.Table) -> dict[tuple[Any, ...], Any]:
        found: dict[tuple[Any, ...], Any] = {}
        for run in table.to_pylist():
            key = tuple(run.get(name) for name in identity)
            if key in found:
                alike = ", ".join(
                    f"{name} {value}" for name, value in zip(identity, key, strict=True) if value
                )
                raise UsageError(
                    f"several runs are alike but for {', '.join(sorted(but))}: {alike}",
                    where="A and B",
                    remedy="say with --where which runs are meant",
                )
            found[key] = run
        return found

    ours, theirs = keyed(first), keyed(second)
    pairs = [(key, run, theirs[key]) for key, run in ours.items() if key in theirs]
    if not pairs:
        raise UsageError(
            f"no run of A has a partner in B that is alike but for {', '.join(sorted(but))}",
            where="A and B",
            remedy="`flatwalk results query` shows what there is",
        )
    shown = [name for name in identity if len({key[identity.index(name)] for key, *_ in pairs}) > 1]
    return [
        Difference(
            {name: run.get(name) for name in shown or ["scheme"]},
            results.time_ratio(_configured(other), _configured(run), store.sampling_of(run)),
            other["walks_per_1000"] / run["walks_per_1000"] if run["walks_per_1000"] else None,
        )
        for _, run, other in pairs
    ]


def _configured(run: dict[str, Any]) -> results.Run:
    """A stored run with its configuration, which has the clock of its machine."""
    return cast("results.Run", run | {"configuration": json.loads(run["result"])["configuration"]})
