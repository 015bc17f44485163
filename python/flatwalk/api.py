"""The Python interface. `import flatwalk as fw`; docs/python.md shows how it is used.

Machines, schemes and workloads are objects that are checked when they are made. Functions give the same
answers as the commands of the same names, from the same engine. Every function that simulates releases
the interpreter lock, hears Ctrl-C within a second, and may be called from several threads at once.
"""

from __future__ import annotations

import copy
import html
import json
import operator
import re
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, TypedDict, TypeVar, Unpack, cast

from flatwalk import engine, units, walking
from flatwalk.answer import explain, results
from flatwalk.comparison import comparing, configurations, presenting
from flatwalk.definitions import machine_files, settings, variations
from flatwalk.definitions.defaults import MACHINE, SEED, WALK_INSTRUCTIONS
from flatwalk.definitions.workload import parse_workload, text_of
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.prototypes import adapters
from flatwalk.prototypes.mechanism import Mechanism, Miss, Translation
from flatwalk.prototypes.organisation import Found, Geometry, Memory, Next, Organisation, OutOfMemory
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from numpy.typing import NDArray

    from flatwalk.answer.results import Response, Run
    from flatwalk.lab.store import Results as StoredResults

__all__ = [
    "Asked",
    "Comparison",
    "FlatwalkError",
    "Found",
    "Geometry",
    "Machine",
    "Mechanism",
    "Memory",
    "Miss",
    "Next",
    "Organisation",
    "OutOfMemory",
    "Recording",
    "Results",
    "Scheme",
    "Translation",
    "UsageError",
    "Walk",
    "Workload",
    "check_organisation",
    "compare",
    "machines",
    "open_results",
    "read",
    "record",
    "schemes",
    "simulate",
    "sweep",
    "walk",
    "workloads",
]


class _Definition:
    """A scheme or a machine: a table of keys as its file has them."""

    kind = ""

    def __init__(self, table: Mapping[str, Any]) -> None:
        """From a table as a TOML file would have it.

        Raises:
            UsageError: With every problem of it.
        """
        if not isinstance(table, Mapping):
            raise UsageError(
                f"{table!r} is not a table of keys",
                remedy=f"give a dictionary, or take a shipped one: {type(self).__name__}.named(NAME)",
            )
        own = _plain(dict(table))
        if problems := engine.check(self.kind, own):
            raise UsageError(
                f"not a valid {self.kind}: " + "\n         ".join(map(settings.words, problems)),
                remedy=f"{settings.REFERENCE} explains every key",
            )
        self._table = own

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._table["name"])

    @property
    def title(self) -> str:
        """What it is, in a line."""
        return str(self._table["title"])

    @property
    def source(self) -> str:
        """Where it is from: a paper, a manual."""
        return str(self._table["source"])

    @property
    def table(self) -> dict[str, Any]:
        """All of its keys, as its file has them; a copy."""
        return copy.deepcopy(self._table)

    def changed(self, changes: Mapping[str, Any], name: str | None = None) -> Self:
        """The same with other values of some keys, as `{"llc.size_bytes": "32MiB"}` of a machine.

        Args:
            changes: Values by dotted key, sizes and counts as numbers or text; tables of an array are
                numbered from 1, as in `tlb.l2[1].entries`.
            name: A name of its own; without it the changes in words.

        Returns:
            Another object; this one, if nothing is to change.

        Raises:
            UsageError: If it cannot have one of them.
        """
        if not changes and name is None:
            return self
        result = self.table
        read = {
            key: variations.read_value(key, value, key) if isinstance(value, str) else _plain(value)
            for key, value in changes.items()
        }
        for key, value in read.items():
            variations.put(result, key, value, self.name, "changes")
        result["name"] = name or f"{self.name}, {results.settings_label(read)}"
        return type(self)(result)

    def __eq__(self, other: object) -> bool:
        """True of the same kind with the same keys."""
        return isinstance(other, _Definition) and self.kind == other.kind and self._table == other._table

    def __hash__(self) -> int:
        """By its keys."""
        return hash(json.dumps(self._table, sort_keys=True))

    def __repr__(self) -> str:
        """Its name and title."""
        return f"<{type(self).__name__} {self.name}: {self.title}>"

    def _repr_html_(self) -> str:
        """For notebooks: every key with its value."""
        rows = "".join(
            f"<tr><td style='text-align:left'>{html.escape(key)}</td><td>{html.escape(str(value))}</td></tr>"
            for key, value in _leaves(self._table)
            if key not in {"name", "title", "source", "description"}
        )
        head = (
            f"<b>{html.escape(self.name)}</b>: {html.escape(self.title)}<br><i>{html.escape(self.source)}</i>"
        )
        return f"{head}<table>{rows}</table>"


class Scheme(_Definition):
    """A page-table organisation with its mechanisms: see docs/settings.md, Schemes."""

    kind = "scheme"

    @classmethod
    def named(cls, name: str) -> Scheme:
        """A shipped scheme, a TOML file by path, or a guest and its host as `radix4/fpt`.

        A class or an object of a file of Python is `FILE.py:NAME`.

        Raises:
            UsageError: If there is none, or the file is not valid.
            FlatwalkError: If a file of Python raises an exception.
        """
        return cls(settings.scheme_or_pair(_text_of(name, "a scheme"), "scheme"))

    @classmethod
    def of(
        cls, *parts: Organisation | Mechanism, base: str | Scheme = "radix4", name: str | None = None
    ) -> Scheme:
        """A scheme with a page table, mechanisms or both of your own.

        Args:
            parts: The designs, with their parameters; later changes to them have no effect. Mechanisms are
                asked in this order, after those of `base`.
            base: The scheme that has all else, by name, path or object.
            name: A name of its own; without it the classes', with their parameters.

        Raises:
            UsageError: If there are none or two tables, two mechanisms are of one class, results could not
                show a parameter, or the code of a class cannot be read.
        """
        start = base if isinstance(base, Scheme) else cls.named(base)
        return cls(adapters.scheme(parts, start.table, name))


class Machine(_Definition):
    """TLBs, page-walk caches, walkers, caches, memory and core: see docs/settings.md, Machines."""

    kind = "machine"

    @classmethod
    def named(cls, name: str) -> Machine:
        """A shipped machine, a TOML file by path, or `host`, this machine as far as it can be known.

        Raises:
            UsageError: If there is none, or the file is not valid.
        """
        return cls(machine_files.load(_text_of(name, "a machine"), "machine"))


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a table may hold
    """A copy of a value as a TOML file would have it: NumPy's numbers are numbers, and arrays are lists."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(one) for one in value]
    return value.tolist() if hasattr(value, "tolist") else copy.deepcopy(value)


def _text_of(name: object, what: str) -> str:
    """A name or a path as text, whatever a caller gave."""
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is not the name of {what}", remedy="give a name or a path, as text")
    return name


def _path(name: str, value: str | Path | None) -> Path | None:
    """A path, if one was given.

    Raises:
        UsageError: If it is something else.
    """
    try:
        return None if value is None else Path(value)
    except TypeError:
        raise UsageError(
            f"{value!r} is not a path", where=name, remedy="give text or a pathlib.Path"
        ) from None


def _words_of(command: Sequence[str]) -> list[str]:
    """A command's words: one text is none, as nobody says where its words end."""
    words = [] if isinstance(command, str) else list(command)
    if not words:
        what = f"{command!r} is one text" if isinstance(command, str) else "there is no program"
        raise UsageError(what, where="command", remedy='give a list of words, as ["sort", "big.txt"]')
    return words


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, item in enumerate(value, start=1):
                yield from _leaves(item, f"{prefix}{key}[{number}].")
        else:
            yield f"{prefix}{key}", value


@dataclass(frozen=True)
class Workload:
    """A built-in workload: see docs/workloads.md.

    Args:
        name: As in `flatwalk list workloads`.
        size: Bytes, as a number or as `8GiB`; without it the workload's default.
        variant: What else the command line has behind the size: `downwards`, each large array below the one
            before it, as Linux does it, or `upwards`; of key-value stores `zipfian` or `uniform` keys; the
            first of each without it. Of `random`, the instructions of an access, 7 to 1000; of
            `graph500`, `searches` without their validation.

    Raises:
        UsageError: If there is none of that name, or its size or its variant is not understood.
    """

    name: str
    size: str | int | None = None
    variant: str | None = None
    #: Size in bytes.
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Reads the size and the variant."""
        size = "" if self.size is None else self.size
        object.__setattr__(self, "size_bytes", self._parsed(size)["size_bytes"])

    def __str__(self) -> str:
        """As the command line has it: `gups:8GiB`."""
        return text_of(self._parsed(self.size_bytes))

    def _parsed(self, size: str | int) -> dict[str, Any]:
        """What it is as the engine takes it."""
        variant = f":{self.variant}" if self.variant else ""
        return parse_workload(f"{self.name}:{size}{variant}", "workload")


def check_organisation(
    organisation: Organisation | type[Organisation],
    *,
    base: str | Scheme = "radix4",
    seed: int = SEED,
    cases: int = 4,
) -> None:
    """Checks that a page table of your own does what it is told, as the engine's own are checked.

    Pages are mapped, unmapped, moved and split at random, memory is refused, and after each step a walk and a
    map of pages are compared with the table.

    Args:
        organisation: The design, or its class if it needs no parameters.
        base: As for `Scheme.of`.
        seed: Of the steps.
        cases: Lists of steps that are tried, of up to 29.

    Raises:
        UsageError: If a number is none.
        FlatwalkError: With what is wrong, and the shortest list of steps that shows it.
    """
    seed = _seed(seed)
    cases = _whole("cases", cases, 1, _MOST_CASES)
    try:
        own = organisation() if isinstance(organisation, type) else organisation
    except TypeError as error:
        raise UsageError(
            f"{getattr(organisation, '__name__', organisation)} wants parameters: {error}",
            where="organisation",
            remedy="give an object of it, with its parameters",
        ) from error
    name = type(own).__name__
    found = engine.check_organisation(Scheme.of(own, base=base).table, seed, cases)
    if found is not None:
        problem, steps = found
        numbered = "".join(f"\n  {number}. {step}" for number, step in enumerate(steps, start=1))
        raise FlatwalkError(
            f"a table of {name} does not do what it is told: {problem}{numbered}",
            where=adapters.file_of(type(own)),
            remedy=f"do these steps by hand; {len(steps)} are the fewest that show it (seed {seed})",
        )


def machines() -> list[Machine]:
    """The shipped machines, by name."""
    return [Machine.named(name) for name in settings.names("machine")]


def schemes() -> list[Scheme]:
    """The shipped schemes, by name."""
    return [Scheme.named(name) for name in settings.names("scheme")]


def workloads() -> list[Workload]:
    """The built-in workloads at their default sizes."""
    return [Workload(one["name"]) for one in engine.workloads()]


class Comparison:
    """What `compare` found: runs with speed-ups and intervals, and what follows in words."""

    def __init__(self, response: Response) -> None:
        """From an answer of the engine with its speed-ups."""
        self._response = response
        self._answer = explain.explain(response)

    @property
    def runs(self) -> list[Run]:
        """One for each scheme and setting, in the order asked; docs/result-format.md has keys and units."""
        return self._response["runs"]

    @property
    def judged(self) -> str:
        """How much of the program was judged."""
        return self._answer.judged

    @property
    def verdict(self) -> list[str]:
        """The answer in words, as `flatwalk compare` prints it."""
        return [point.words for point in (*self._answer.points, *self._answer.machines)]

    @property
    def warnings(self) -> list[str]:
        """Doubts about runs, each once."""
        return [text for text, _ in results.warnings_of(self.runs)]

    def run(self, scheme: str, large_pages: int | None = 0, machine: str | None = None) -> Run:
        """The run of a scheme.

        Args:
            scheme: Its name.
            large_pages: Per cent on 2 MiB pages; None for a run with `thp`.
            machine: Its name, where there are several.

        Raises:
            UsageError: If there is none, or several.
        """
        found = [
            run
            for run in self.runs
            if run["scheme"] == scheme
            and run["large_pages"] == large_pages
            and machine in {None, run["machine"]}
        ]
        if len(found) != 1:
            known = ", ".join(dict.fromkeys(run["scheme"] for run in self.runs))
            raise UsageError(
                f"{'several runs' if found else 'no run'} of {scheme} at {large_pages} % large pages",
                remedy=f"schemes: {known}",
            )
        return found[0]

    def to_arrow(self) -> pa.Table:
        """One row a run, with the columns of docs/lab.md that a comparison has."""
        import pyarrow as pa  # noqa: PLC0415

        from flatwalk.lab import store  # noqa: PLC0415

        return pa.Table.from_pylist([store.figures_of(run) for run in self.runs])

    def to_pandas(self) -> pd.DataFrame:
        """One row a run; needs pandas."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """One row a run; needs polars."""
        return _to_polars(self.to_arrow())

    def report(self, path: str | Path) -> Path:
        """Writes the HTML report.

        Raises:
            FlatwalkError: If it cannot be written.
        """
        from flatwalk.report import render  # noqa: PLC0415

        output.write_whole(Path(path), render(self._response))
        return Path(path)

    def save(self, path: str | Path) -> Path:
        """Writes the results as JSON, as `compare --json` does; `read` reads it.

        Raises:
            FlatwalkError: If it cannot be written.
        """
        presenting.write_json(Path(path), results.answer(self._response))
        return Path(path)

    def figure(
        self, chart: str, path: str | Path, columns: int = 1, schemes: str | Sequence[str] | None = None
    ) -> Path:
        """Draws a chart of the report for a paper.

        Args:
            chart: `speed`, `cycles`, `accesses`, `latency`, `served`, `memory`, `histogram`, `timeline`,
                `tree` or `blame`, as far as there is something to draw.
            path: Its ending says how: .pdf, .svg, .png.
            columns: Width in columns of a paper of two: 1 (3.33 inches) or 2 (7 inches).
            schemes: Only these, by name; without it all.

        Raises:
            UsageError: If there is no such chart, format, width or scheme.
            FlatwalkError: If it cannot be written.
        """
        from flatwalk.report import drawing  # noqa: PLC0415

        names = [schemes] if isinstance(schemes, str) else schemes
        runs = self.runs if names is None else drawing.of_schemes(self.runs, names, "schemes")
        drawing.chart({**self._response, "runs": runs}, chart, Path(path), _columns(columns))
        return Path(path)

    def to_latex(self) -> str:
        """The results in LaTeX: a table for each setting, with the package booktabs."""
        from flatwalk.report import drawing  # noqa: PLC0415

        return drawing.tables(self.runs)

    def __repr__(self) -> str:
        """How much was judged, and the verdict."""
        return "\n".join([self.judged, *self.verdict])

    def _repr_html_(self) -> str:
        """For notebooks: a table for each setting, and the verdict."""
        parts = []
        for members in results.grouped(self.runs):
            headers, rows = presenting.cells(members)
            label = results.place_label(members[0], self.runs)
            title = f"{members[0]['workload']} on {results.machine_label(members[0])}, {label}"
            parts.append(_html_table(title, headers, rows))
        words = "".join(f"<li>{html.escape(text)}</li>" for text in self.verdict)
        return "".join(parts) + f"<p>{html.escape(self.judged)}</p><ul>{words}</ul>"


def _html_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(row("td", cells) for cells in rows)
    return f"<table><caption>{html.escape(title)}</caption>{row('th', headers)}{body}</table>"


def _to_polars(table: pa.Table) -> pl.DataFrame:
    import polars as pl  # noqa: PLC0415

    return cast("pl.DataFrame", pl.from_arrow(table))


def compare(
    *,
    workload: str | Workload | None = None,
    trace: str | Path | None = None,
    command: Sequence[str] | None = None,
    addresses: NDArray[np.uint64] | None = None,
    schemes: str | Scheme | Sequence[str | Scheme] = settings.DEFAULT_SCHEMES,
    machine: str | Machine | Sequence[str | Machine] = MACHINE,
    large_pages: int | Sequence[int] | None = None,
    thp: str | None = None,
    mode: str = "timing",
    instructions: int | str | None = None,
    warmup: int | str | None = None,
    skip: int | str = 0,
    windows: int | None = None,
    window: int | str | None = None,
    exhaustive: bool = False,
    simpoints: str | Path | None = None,
    weights: str | Path | None = None,
    error: float | str | None = None,
    fragmentation: float = 0.0,
    host_large_pages: int = 0,
    guest_frames: str = "scattered",
    context_switch_ms: float | None = None,
    cores: int | None = None,
    instructions_per_access: int = 4,
    seed: int = SEED,
    threads: int = 0,
) -> Comparison:
    """Simulates every scheme over the same windows of a program, as `flatwalk compare` does.

    Args:
        workload: A built-in workload, as `"gups:8GiB"`. One of the four sources is given.
        trace: A trace of any known format.
        command: A program to record, with its arguments.
        addresses: A one-dimensional, contiguous array of unsigned 64-bit virtual addresses, which is not
            copied; each is a load of its 8-byte word. It must not change meanwhile.
        schemes: By name, path or object; the first is the baseline. `radix4/fpt` is a guest and its host.
        machine: One or several, by name, path or object.
        large_pages: Per cent of the touched memory on 2 MiB pages, one or several settings. By default
            0 and 100, with the scheme `recorded` 0.
        thp: Linux's policy instead: `always`, `madvise` or `never`.
        mode: `timing`, or `functional`: counts without cycles.
        instructions: Only so many, as a number or as `"100M"`.
        warmup: Instructions that are warmed before each window.
        skip: Instructions left out at the beginning.
        windows: Windows to measure, spread evenly, each at random in its stretch.
        window: Instructions of each.
        exhaustive: Measure every instruction instead.
        simpoints: A file of SimPoint's: measure its intervals, of `window` instructions each.
        weights: SimPoint's weights of these.
        error: Measure more windows until all speed-ups are known to this: with 0.01, or `"1%"`, 1.2 is 1.19
            to 1.21.
        fragmentation: Share of physical 2 MiB blocks that cannot be had whole, 0 to 1.
        host_large_pages: Per cent of a guest's memory on 2 MiB pages of the host.
        guest_frames: Where a guest's frames lie: `scattered`, `compact`, `apart`, `permuted`, `scattered_4k`.
        context_switch_ms: Empty TLBs and page-walk caches every so many milliseconds.
        cores: Cores that the program's threads run on, at most; without it, the machine's.
        instructions_per_access: With `addresses`: instructions for each, 1 to 64; one of them loads.
        seed: Of all that is random.
        threads: To simulate with; 0 is one per core.

    Raises:
        UsageError: If what is asked for is not possible.
        FlatwalkError: If a source cannot be read, or the program cannot be recorded.
    """
    given = {"workload": workload, "trace": trace, "command": command, "addresses": addresses}
    sources = [name for name, value in given.items() if value is not None]
    if len(sources) != 1:
        raise UsageError(
            f"{' and '.join(sources) or 'nothing'} given as a source",
            remedy=f"give one of {', '.join(given)}",
        )
    seed = _seed(seed)
    threads = _whole("threads", threads, 0, _MOST_THREADS)
    instructions_per_access = _whole("instructions_per_access", instructions_per_access, 1, 64)
    if windows is not None:
        windows = _whole("windows", windows, 1, _MOST_SEED)
    if cores is not None:
        cores = _whole("cores", cores, 1, 64)
    host_large_pages = _whole("host_large_pages", host_large_pages, 0, 100)
    if addresses is not None:
        _check_addresses(addresses)
    own = [one if isinstance(one, Scheme) else Scheme.named(one) for one in _each(schemes)]
    places = [one if isinstance(one, Machine) else Machine.named(one) for one in _each(machine)]
    options = configurations.Options(
        workload=None if workload is None else str(workload),
        trace=_path("trace", trace),
        command=() if command is None else _words_of(command),
        addresses=addresses,
        instructions_per_access=instructions_per_access,
        large_pages=_large_pages(large_pages),
        thp=thp,
        fragmentation=fragmentation,
        host_large_pages=host_large_pages,
        guest_frames=guest_frames,
        context_switch_ms=context_switch_ms,
        cores=cores,
        instructions=_text(instructions),
        warmup=_text(warmup),
        skip=None if skip == 0 else str(skip),
        windows=windows,
        window=_text(window),
        exhaustive=exhaustive,
        simpoints=_path("simpoints", simpoints),
        weights=_path("weights", weights),
        error=None if error is None else _share("error", error),
        seed=seed,
        mode=mode,
        jobs=threads,
    )
    with _arguments_named():
        runs = configurations.runs_of(options, _tables(places, "machine"), _tables(own, "scheme"))
        return Comparison(comparing.respond(options, comparing.lengths_of(options), runs))


_Given = TypeVar("_Given", bound=str | _Definition)


def _each(given: _Given | Iterable[_Given]) -> Iterable[_Given]:
    """What was given, alone or several."""
    return given if isinstance(given, Iterable) and not isinstance(given, str) else [given]


_MOST_SEED, _MOST_THREADS, _MOST_CASES = 2**64 - 1, 2**16, 2**32 - 1


def _whole(name: str, value: SupportsIndex, least: int, most: int) -> int:
    """A whole number within a range, NumPy's, too.

    Raises:
        UsageError: If it is none.
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        end = "2^64 − 1" if most == _MOST_SEED else str(most)
        raise UsageError(
            f"{name} cannot be {value!r}", where=name, remedy=f"give a whole number from {least} to {end}"
        )
    return number


def _seed(value: SupportsIndex) -> int:
    return _whole("seed", value, 0, _MOST_SEED)


def _columns(value: SupportsIndex) -> int:
    return _whole("columns", value, 1, 2)


def _address(value: SupportsIndex) -> int:
    """A virtual address.

    Raises:
        UsageError: If it is none.
    """
    try:
        return _whole("address", value, 0, _MOST_SEED)
    except UsageError:
        remedy = "give a number, as 0x7f0000201234"
        raise UsageError(f"{value!r} is not an address", where="address", remedy=remedy) from None


def _share(name: str, value: float | str) -> float:
    """A share above 0 and below 1; as text a percentage, as on the command line.

    Raises:
        UsageError: If it is neither.
    """
    if isinstance(value, str):
        return units.parse_percent(value, name)
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = 0.0
    if not 0 < share < 1:
        remedy = 'give a share above 0 and below 1, as 0.01 or "1%"'
        raise UsageError(f"{name} cannot be {value!r}", where=name, remedy=remedy)
    return share


def _large_pages(value: int | str | Iterable[int] | None) -> str | None:
    """One setting or several, NumPy's, too, as the command line has them.

    Raises:
        UsageError: If there are none of them.
    """
    if value is None:
        return None
    shares = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    if not shares:
        raise UsageError(
            "the list is empty",
            where="large_pages",
            remedy="leave it out, or give whole numbers from 0 to 100",
        )
    return ",".join(map(str, shares))


def _check_addresses(addresses: object) -> None:
    """Passes what the engine can read without copying it.

    Raises:
        UsageError: If it is something else.
    """
    array = "np.asarray(x, dtype=np.uint64)"
    try:
        view = memoryview(addresses)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError) as error:
        raise UsageError(
            f"a value of type {type(addresses).__name__} is no array of unsigned 64-bit numbers",
            where="addresses",
            remedy=f"give {array}",
        ) from error
    if view.itemsize != 8 or view.format.lstrip("@=<") not in {"L", "Q"}:
        raise UsageError(
            "the array does not hold unsigned 64-bit numbers, as this machine writes them",
            where="addresses",
            remedy=f"give {array}",
        )
    if view.ndim != 1 or not view.c_contiguous:
        raise UsageError(
            "the array is not one-dimensional and contiguous",
            where="addresses",
            remedy="give np.ascontiguousarray(x).ravel()",
        )


#: What the command line calls otherwise than the arguments of `compare`, by its options.
_ARGUMENTS = {"--jobs": "threads", "--context-switch": "context_switch_ms", "-- CMD": "command"}


@contextmanager
def _arguments_named() -> Iterator[None]:
    """Lets errors name the arguments of a function, where they would name options of the command line."""

    def argument(match: re.Match[str]) -> str:
        return _ARGUMENTS.get(match[0]) or match[0].removeprefix("--").replace("-", "_")

    try:
        yield
    except FlatwalkError as error:
        error.where = error.where and re.sub(r"(?<!\S)--( CMD|[a-z][a-z-]*)", argument, error.where)
        raise


def _text(value: float | str | None) -> str | None:
    return None if value is None else str(value)


def _tables(found: Sequence[Scheme] | Sequence[Machine], kind: str) -> list[dict[str, Any]]:
    if not found:
        raise UsageError(f"no {kind} is named", remedy=f"give at least one {kind}")
    return settings.distinct([(one.name, one.table) for one in found], kind, f"{kind}s")


class Asked(TypedDict, total=False):
    """What `simulate` takes in addition: a source and conditions, each as for `compare`."""

    workload: str | Workload | None
    trace: str | Path | None
    command: Sequence[str] | None
    addresses: NDArray[np.uint64] | None
    machine: str | Machine
    thp: str | None
    mode: str
    instructions: int | str | None
    warmup: int | str | None
    skip: int | str
    windows: int | None
    window: int | str | None
    exhaustive: bool
    simpoints: str | Path | None
    weights: str | Path | None
    error: float | str | None
    fragmentation: float
    host_large_pages: int
    guest_frames: str
    context_switch_ms: float | None
    cores: int | None
    instructions_per_access: int
    seed: int
    threads: int


def simulate(scheme: str | Scheme = "radix4", *, large_pages: int | None = 0, **asked: Unpack[Asked]) -> Run:
    """One run: a scheme over a source.

    Args:
        scheme: By name, path or object.
        large_pages: Per cent of the touched memory on 2 MiB pages; None with `thp`.
        **asked: A source and conditions, as for `compare`: `Asked` has all.

    Returns:
        The result; docs/result-format.md has the keys and units.

    Raises:
        UsageError: If what is asked for is not possible.
        FlatwalkError: If the source cannot be read.
    """
    return compare(schemes=[scheme], large_pages=large_pages, **asked).runs[0]


@dataclass(frozen=True)
class Walk:
    """One translation, step by step."""

    #: As `flatwalk walk --json` prints it.
    answer: dict[str, Any]

    @property
    def steps(self) -> list[str]:
        """What the hardware does, in words."""
        return [step["text"] for step in self.answer["steps"]]

    @property
    def physical(self) -> int:
        """The physical address."""
        return int(self.answer["physical"], 16)

    @property
    def accesses(self) -> int:
        """Entries that a walk reads now, with what the page-walk caches hold; 0 where translation is free."""
        return int(self.answer["accesses"])

    def __repr__(self) -> str:
        """The steps, numbered."""
        return "\n".join(f"{number:2}. {text}" for number, text in enumerate(self.steps, start=1))


def walk(
    address: SupportsIndex | None = None,
    *,
    workload: str | Workload | None = None,
    trace: str | Path | None = None,
    scheme: str | Scheme = "radix4",
    machine: str | Machine = MACHINE,
    large_pages: int = 0,
    instructions: int | str = WALK_INSTRUCTIONS,
    seed: int = SEED,
) -> Walk:
    """How an address is translated, as `flatwalk walk` shows it.

    Args:
        address: Virtual address; without it the last one that the program used.
        workload: A built-in workload, or …
        trace: … a trace.
        scheme: By name, path or object.
        machine: Likewise.
        large_pages: Per cent of the touched memory on 2 MiB pages.
        instructions: Run before, so that TLBs and page-walk caches are warm.
        seed: Of all that is random.

    Returns:
        The walk. If nothing was mapped at the address, a page is mapped there first, and a step says so.

    Raises:
        UsageError: If there is not exactly one source, or an argument cannot be what it is.
        FlatwalkError: If the source cannot be read.
    """
    if (workload is None) == (trace is None):
        raise UsageError("a source is needed, and only one", remedy="give a workload or a trace")
    if address is not None:
        address = _address(address)
    if (path := _path("trace", trace)) is not None:
        output.check_trace(path, "trace")
        source: dict[str, Any] = {"trace": str(path)}
    else:
        source = {"workload": parse_workload(str(workload), "workload")}
    seed = _seed(seed)
    large_pages = _whole("large_pages", large_pages, 0, 100)
    place = machine if isinstance(machine, Machine) else Machine.named(machine)
    own = scheme if isinstance(scheme, Scheme) else Scheme.named(scheme)
    return Walk(
        walking.explained(
            source,
            own.table,
            place.table,
            address=address,
            settings_={},
            large_pages=large_pages,
            instructions=units.parse_count(str(instructions), "instructions"),
            seed=seed,
        )
    )


@dataclass(frozen=True)
class Recording:
    """What `record` wrote."""

    #: The traces, one for each process, the program's own first.
    traces: list[Path]
    #: Instructions that all processes executed.
    executed: int
    #: The program's exit status; None if it was stopped.
    status: int | None
    warnings: list[str]


def record(
    command: Sequence[str],
    trace: str | Path,
    *,
    exhaustive: bool = False,
    seconds: float | None = None,
    seed: int = SEED,
) -> Recording:
    """Records a program, as `flatwalk record` does.

    Args:
        command: The program and its arguments.
        trace: Where the trace goes.
        exhaustive: Every instruction, instead of a sample of the whole run.
        seconds: Stop the program after so long.
        seed: Where the sample begins.

    Raises:
        FlatwalkError: If it cannot be recorded.
    """
    from flatwalk.recorder import Sample  # noqa: PLC0415
    from flatwalk.recorder import record as run  # noqa: PLC0415

    seed = _seed(seed)
    sample = None if exhaustive else Sample(seed=seed)
    with output.Progress("Recording") as progress:
        found = run(_words_of(command), Path(trace), sample=sample, seconds=seconds, progress=progress)
    return Recording([one.path for one in found.traces], found.executed, found.status, list(found.warnings))


def read(path: str | Path) -> Comparison:
    """Reads what `compare --json` or `Comparison.save` wrote.

    Args:
        path: The file.

    Raises:
        FlatwalkError: If the file is not one.
    """
    return Comparison(results.read_answer(Path(path)))


class Results:
    """The stored runs of sweeps: see docs/lab.md."""

    def __init__(self, stored: StoredResults) -> None:
        """Of a directory."""
        self._stored = stored

    def to_arrow(self) -> pa.Table:
        """One row a run, with the columns of docs/lab.md.

        Raises:
            FlatwalkError: If there are none, or a file is not one of results.
        """
        return self._stored.table()

    def to_pandas(self) -> pd.DataFrame:
        """One row a run; needs pandas."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """One row a run; needs polars."""
        return _to_polars(self.to_arrow())

    def query(self, sql: str) -> pa.Table:
        """The answer to DuckDB's SQL over the table `runs`.

        Raises:
            UsageError: If it is wrong.
        """
        from flatwalk.lab import query  # noqa: PLC0415

        return query.query(self.to_arrow(), sql)

    def figure(
        self,
        path: str | Path,
        *,
        x: str,
        y: str = "speedup",
        by: str | None = None,
        over: str | None = None,
        where: str | None = None,
        columns: int = 1,
    ) -> Path:
        """Draws runs for a paper, as `flatwalk results plot` does: curves, or a heat map.

        Args:
            path: Its ending says how: .pdf, .svg, .png.
            x: The column that the horizontal axis is.
            y: The column that is drawn.
            by: A column with a curve for each of its values.
            over: A column that is the vertical axis of a heat map.
            where: Only runs for which this SQL holds.
            columns: Width in columns of a paper of two: 1 (3.33 inches) or 2 (7 inches).

        Raises:
            UsageError: If there is no such column, format or width, or the SQL is wrong.
            FlatwalkError: If it cannot be written.
        """
        from flatwalk.lab import query  # noqa: PLC0415
        from flatwalk.report import drawing  # noqa: PLC0415

        table = self.to_arrow() if where is None else query.selected(self.to_arrow(), where)
        drawing.plot(table, Path(path), x=x, y=y, by=by, over=over, columns=_columns(columns))
        return Path(path)


def open_results(directory: str | Path) -> Results:
    """The results that sweeps stored.

    Args:
        directory: What `--results` named.

    Raises:
        FlatwalkError: If there are none.
    """
    from flatwalk.lab import store  # noqa: PLC0415

    stored = store.Results(Path(directory))
    stored.require()
    return Results(stored)


def _sweep_table(what: Mapping[str, Any]) -> dict[str, Any]:
    """A sweep as its file would have it.

    Raises:
        UsageError: If it has objects that other processes do not know.
    """
    for key, of_python in (("schemes", ", of a class of Python as FILE.py:NAME"), ("machines", "")):
        for one in named if isinstance(named := what.get(key), list | tuple) else ():
            if not isinstance(one, str):
                raise UsageError(
                    f"a sweep names its {key}, and runs them in other processes: {one!r} cannot go there",
                    where=key,
                    remedy=f"give a name or a path{of_python}; compare takes objects",
                )
    table: dict[str, Any] = _plain(dict(what))
    if isinstance(named := table.get("workloads"), list):
        table["workloads"] = [str(one) if isinstance(one, Workload) else one for one in named]
    return table


def sweep(
    what: str | Path | Mapping[str, Any],
    results: str | Path,
    *,
    jobs: int = 0,
    cluster: str | None = None,
    slurm: str | None = None,
) -> Results:
    """Runs what of a sweep is not stored yet, as `flatwalk sweep` does.

    Args:
        what: A TOML file by path, a shipped sweep by name, or a table as a file would have it. Workloads may
            be objects.
        results: Directory of the results.
        jobs: Processes; 0 is one per core.
        cluster: A Dask scheduler's address, instead of processes of this machine.
        slurm: A partition of Slurm, or options of `sbatch` as `partition=long,mem=8G`, instead of either.

    Returns:
        All results in the directory, those of other sweeps among them.

    Raises:
        UsageError: If the sweep is not valid, or a run of it is not possible.
        FlatwalkError: If runs failed, naming them; the others are stored.
    """
    from flatwalk.lab import command, store  # noqa: PLC0415
    from flatwalk.lab.sweep import Sweep  # noqa: PLC0415

    jobs = _whole("jobs", jobs, 0, _MOST_THREADS)
    asked = Sweep.read(str(what)) if isinstance(what, str | Path) else Sweep.of(_sweep_table(what))
    command.run_missing(asked, Path(results), command.Place(jobs, cluster, slurm))
    return Results(store.Results(Path(results)))
