"""The engine, with Python values instead of JSON and with our errors."""

from __future__ import annotations

import json
import math
import sys
from datetime import date, time
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, cast

from flatwalk import processor
from flatwalk.errors import FlatwalkError
from flatwalk.terminal.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from flatwalk.answer.results import Response, Run, Sampling


class MemoryAccess(Protocol):
    """Simulated memory, for a hook of a page table that is written in Python."""

    def memory_read(self, at: int) -> int:
        """The word at `at`."""

    def memory_write(self, at: int, word: int) -> None:
        """Stores a word at `at`."""

    def memory_allocate(self, size_bytes: int, name: str) -> int | None:
        """A block of zeros, if there is one."""

    def memory_free(self, at: int) -> None:
        """Gives a block back."""


#: A translation: an address of the page, its level and bytes, when it is known, the page's physical address,
#: what it permits, whether its dirty bit is set, and when it was asked for.
Given = tuple[int, int, int, int, int, int, bool, int]


class MissAccess(Protocol):
    """A miss of the last-level TLB, for a hook of a mechanism that is written in Python."""

    def miss_holds(self, address: int) -> bool:
        """Whether the last-level TLB has an entry for an address."""

    def miss_walk(self, address: int, at: int) -> Given | None:
        """Walks for a prefetch."""

    def miss_insert(self, translation: Given) -> None:
        """Puts a translation into the last-level TLB."""

    def miss_wait(self, cycles: int) -> int:
        """Lets time pass; returns the cycle then."""

    def miss_read(self, offset: int, bypass: bool) -> tuple[str, int]:
        """Reads a line of the mechanism's memory: who had it, and the cycle in which it is there."""

    def miss_write(self, offset: int, at: int) -> None:
        """Writes into a line of it."""


class HookAccess(MemoryAccess, MissAccess, Protocol):
    """What there is while a hook runs."""


class Problem(TypedDict):
    """What is wrong with one key."""

    #: The key with its tables, as `tlb.l1d[2].pages`.
    key: str
    #: What is wrong with it: words that stand after the key.
    problem: str
    #: A word that is not known, if that is the problem, …
    given: str | None
    #: … and those that are.
    known: list[str]


class Choice(TypedDict):
    """A value that a key may have."""

    value: Any
    meaning: str


class KeyDescription(TypedDict):
    """What there is to know of one key; `[]` in it stands for the number of a table, `*` for any name."""

    key: str
    when: str | None
    meaning: str
    unit: str | None
    type: str
    range: str | None
    choices: list[Choice]
    optional: bool
    default: Any
    same_as: str | None


def _module() -> ModuleType:
    if "flatwalk._engine" not in sys.modules:
        processor.check()
    try:
        from flatwalk import _engine  # noqa: PLC0415
    except ImportError as error:
        raise FlatwalkError(
            f"the simulation engine cannot be loaded ({error})",
            remedy="start the program as ./flatwalk, which builds it",
        ) from error
    return _engine


def _call(name: str, *arguments: object) -> str:
    module = _module()
    try:
        return cast("str", getattr(module, name)(*arguments))
    except module.EngineError as error:
        raise FlatwalkError(one_line(str(error))) from error
    except BaseException as error:
        # A panic of the engine; its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise FlatwalkError(
            f"the engine failed: {one_line(str(error))}", remedy="report it, with this command"
        ) from error


def _json(value: object) -> str:
    """A request; numbers may be NumPy's."""
    return json.dumps(value, default=_number)


def _number(value: object) -> int | float:
    """A number that is not of a type of Python's own.

    Raises:
        TypeError: If it is none.
    """
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"a {type(value).__name__} is not a number")


def _number_or_text(value: object) -> int | float | str:
    try:
        return _number(value)
    except TypeError:
        return str(value)


def version() -> str:
    """The engine's version."""
    return _call("version")


def path() -> Path:
    """The engine's binary."""
    return Path(str(_module().__file__))


def simulate(
    request: dict[str, Any], progress: Callable[[int, int | None], None], addresses: object = None
) -> Response:
    """Runs every configuration of `request` over its source; decodes the source once.

    Args:
        request: As in docs/guide.md, section "Requests".
        progress: Called about ten times a second with instructions done and in all.
        addresses: Those of the source `addresses`: a buffer of unsigned 64-bit numbers, which is not copied.

    Raises:
        FlatwalkError: If the source cannot be read, or a configuration is not possible.
    """
    return cast("Response", json.loads(_call("simulate", _json(request), progress, addresses)))


def simulate_mix(
    request: dict[str, Any], progress: Callable[[int, int | None], None]
) -> tuple[list[list[Run]], list[Sampling]]:
    """Runs the programs of `request` together, one a core, under every configuration.

    Returns:
        By configuration the cores' results; and by core what was measured of its program.

    Raises:
        FlatwalkError: If a source cannot be read, or a configuration is not possible.
    """
    answer = json.loads(_call("simulate_mix", _json(request), progress))
    return cast("list[list[Run]]", answer["runs"]), cast("list[Sampling]", answer["sampling"])


def trace_info(
    path: Path, *, verify: bool = False, progress: Callable[[int, int | None], None] | None = None
) -> dict[str, Any]:
    """What a trace says about itself; with `verify`, after checking every block of it."""
    return cast("dict[str, Any]", json.loads(_call("trace_info", str(path), verify, progress)))


def trace_stopped(path: Path, what: str) -> None:
    """Notes in a complete trace what stopped its program before it ended by itself."""
    _call("trace_stopped", str(path), what)


def trace_import(
    source: Path,
    target: Path,
    kind: str | None,
    progress: Callable[[int, int | None], None] | None = None,
) -> dict[str, Any]:
    """Converts a foreign trace; returns the new one's information."""
    return cast("dict[str, Any]", json.loads(_call("trace_import", str(source), str(target), kind, progress)))


def trace_export(
    source: Path, target: Path, kind: str, progress: Callable[[int, int | None], None] | None = None
) -> dict[str, Any]:
    """Converts a trace into a foreign format; returns what was written."""
    return cast("dict[str, Any]", json.loads(_call("trace_export", str(source), str(target), kind, progress)))


def walk(request: dict[str, Any]) -> dict[str, Any]:
    """Explains one translation."""
    return cast("dict[str, Any]", json.loads(_call("walk", _json(request))))


def workloads() -> list[dict[str, Any]]:
    """The built-in workloads: name, description, default size in bytes, parameters."""
    return cast("list[dict[str, Any]]", json.loads(_call("workloads")))


def check(kind: str, value: dict[str, Any]) -> list[Problem]:
    """Every problem of a machine, scheme, mix, experiment, configuration (`run`) or answer (`results`)."""
    text = json.dumps(_finite(value), default=_number_or_text)
    found = cast("list[Problem]", json.loads(_call("check", kind, text)))
    named = {problem["key"] for problem in found}
    return _broken(value) + [one for one in _dates(value) if one["key"] not in named] + found


def check_mix(run: dict[str, Any], programs: int) -> Problem | None:
    """The problem of a configuration that so many programs are to run together under, if there is one."""
    return cast("Problem | None", json.loads(_call("check_mix", _json(run), programs)))


def _broken(value: dict[str, Any]) -> list[Problem]:
    """A name or a title that would break the lines that it is printed in."""
    return [
        {"key": key, "problem": "must be one line of what can be printed", "given": None, "known": []}
        for key in ("name", "title")
        if isinstance(text := value.get(key), str) and one_line(text) != text
    ]


def _dates(value: object, key: str = "") -> Iterator[Problem]:
    """TOML's dates and times, of which JSON makes texts."""
    if isinstance(value, date | time):
        problem = f"must be a text: write {value.isoformat()} in quotes"
        yield {"key": key, "problem": problem, "given": None, "known": []}
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _dates(item, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for number, item in enumerate(value, start=1):
            yield from _dates(item, f"{key}[{number}]")


def _finite(value: object) -> object:
    """A value with the largest number for infinity, which JSON cannot say."""
    if isinstance(value, float) and math.isinf(value):
        return math.copysign(sys.float_info.max, value)
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of a kind."""
    return cast("dict[str, Any]", json.loads(_call("schema", kind)))


def describe(kind: str) -> list[KeyDescription]:
    """Every key of a kind, a table before what is in it."""
    return cast("list[KeyDescription]", json.loads(_call("describe", kind)))


def register_prototype(kind: str, prototype: dict[str, Any], hooks: object) -> None:
    """Makes a class known by the hash of its code; `hooks` is what the engine calls."""
    _call("register_prototype", kind, json.dumps(prototype), hooks)


def hook_access() -> HookAccess:
    """Simulated memory, or a miss, for the hook that runs."""
    return cast("HookAccess", _module())


def prototype_time() -> tuple[float, int]:
    """Seconds in which classes of Python were running, and how often they were called."""
    return cast("tuple[float, int]", _module().prototype_time())


def check_organisation(scheme: dict[str, Any], seed: int, cases: int) -> tuple[str, list[str]] | None:
    """What is wrong with a scheme's table, and the shortest list of steps that shows it; None if nothing."""
    found = _call("check_organisation", _json(scheme), seed, cases)
    return cast("tuple[str, list[str]] | None", found)
