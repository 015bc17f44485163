"""Prototypes, page tables and mechanisms that are written in Python: how the engine comes to call them.

It calls their hooks while it simulates, from its own threads and with the interpreter lock. It checks what
they return. An exception ends the simulation; its error names file and line.
"""

from __future__ import annotations

import ast
import copy
import ctypes
import difflib
import functools
import hashlib
import importlib.util
import inspect
import itertools
import json
import linecache
import math
import sys
import sysconfig
import time
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from flatwalk import engine, units
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.prototypes.mechanism import Mechanism, Miss, Translation
from flatwalk.prototypes.organisation import Found, Geometry, Memory, Next, Organisation, OutOfMemory
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from flatwalk.engine import Given

#: The package: frames of its files are not the user's.
_HERE = Path(__file__).parents[1]
#: The hooks that a mechanism may have.
_HOOKS = [name for name, value in vars(Mechanism).items() if inspect.isfunction(value)]
#: What a mechanism may have of physical memory.
_PAGE_BYTES, _MOST_MEMORY_BYTES = 4096, 4 << 30


#: What the user wrote.
Own = TypeVar("Own", Organisation, Mechanism)


class _Hooks(Generic[Own]):
    """What the engine calls of a prototype: the user's methods, with errors that say where they are."""

    def __init__(self, own: Own) -> None:
        """Those of an object."""
        self._own: Own = own

    def copy(self) -> Self:
        """Those of a copy."""
        return type(self)(self._copied())

    def wrong(self, hook: str, words: str) -> FlatwalkError:
        """The error of a hook that did what it may not, or of the class as a whole."""
        own = type(self._own)
        code = getattr(inspect.unwrap(getattr(own, hook, own)), "__code__", None)
        if code is None or _HERE in Path(code.co_filename).parents:  # it is not the user's
            place = str(file_of(own))
        else:
            place = f"{code.co_filename}:{code.co_firstlineno}"
        return self._error(f"{hook} {words}", place)

    def _copied(self) -> Own:
        try:
            return copy.deepcopy(self._own)
        except Exception as error:
            raise self.wrong("copy", f"failed, as something in it cannot be copied: {error}") from error

    def _call(self, hook: str, *arguments: object) -> Any:  # noqa: ANN401 - whatever it returns
        try:
            return getattr(self._own, hook)(*arguments)
        except (FlatwalkError, KeyboardInterrupt):
            raise
        except BaseException as error:
            words = f"failed: {type(error).__name__}: {error}"
            place = place_of(error)
            if place is None:
                raise self.wrong(hook, words) from error
            raise self._error(f"{hook} {words}", place) from error

    def _error(self, words: str, place: str) -> FlatwalkError:
        return FlatwalkError(
            f"{type(self._own).__name__}.{words}", where=place, remedy=f"fix {place}{self.advice}"
        )

    #: What an error recommends in addition.
    advice = ""


class OrganisationHooks(_Hooks[Organisation]):
    """Those of a page table."""

    advice = "; fw.check_organisation finds the shortest steps that lead there"

    def table(self, page_shift: int, index_bits: int, levels: int, level: int) -> OrganisationHooks:
        """Those of a new table for pages of `level`."""
        own = self._copied()
        own.geometry = Geometry(page_shift, index_bits, levels)
        own.level = level
        return OrganisationHooks(own)

    def change(self, hook: str, arguments: Sequence[int]) -> bool:
        """Calls a hook with memory; False if it was refused some."""
        try:
            self._call(hook, _memory(), *arguments)
        except FlatwalkError as error:
            if not isinstance(error.__cause__, OutOfMemory):
                raise
            return False
        return True

    def first(self, number: int) -> object:
        """What the hook returns."""
        return self._call("first", number)

    def answer(self, number: int, at: int, line: list[int]) -> tuple[bool, int] | None:
        """What the hook returns: whether the entry is there, and where to look."""
        answer = self._call("answer", number, at, line)
        if answer is None:
            return None
        if not isinstance(answer, Found | Next):
            raise self.wrong("answer", f"returned {answer!r}, which is not Found, Next or None")
        return isinstance(answer, Found), answer.at

    def resizes(self) -> tuple[int, int, int, int]:
        """The counts that results show."""
        own = self._own
        counts = own.grown, own.shrunk, own.refused, own.curtailed
        if not all(isinstance(count, int) and 0 <= count < 1 << 63 for count in counts):
            raise self.wrong("create", f"and others left {counts}, which are not counts of resizes")
        return counts


class MechanismHooks(_Hooks[Mechanism]):
    """Those of a mechanism. What a hook counted is returned, by name."""

    def begin(self) -> MechanismHooks:
        """Those of a mechanism that has seen nothing."""
        own = self._copied()
        own.counts = Counter()
        hooks = MechanismHooks(own)
        hooks.call("begin")
        return hooks

    def has(self) -> list[str]:
        """The hooks that the class has, and `takes_walker` if its look-ups take one."""
        own = type(self._own)
        found = [name for name in _HOOKS if getattr(own, name) is not getattr(Mechanism, name)]
        return [*found, *(["takes_walker"] if self._own.takes_walker else [])]

    def memory_bytes(self) -> int:
        """Bytes of physical memory of its own."""
        wanted = self._own.memory_bytes
        if not isinstance(wanted, int) or wanted % _PAGE_BYTES or not 0 <= wanted <= _MOST_MEMORY_BYTES:
            raise UsageError(
                f"memory_bytes is {wanted!r}, which is not whole pages",
                where=type(self._own).__name__,
                remedy=f"give a multiple of {_PAGE_BYTES} up to 4 GiB, or 0",
            )
        return wanted

    def populated(self, found: Given) -> dict[str, int]:
        """Calls the hook."""
        return self.call("populated", Translation(*found))

    def call(self, hook: str, *arguments: object) -> dict[str, int]:
        """Calls a hook."""
        self._call(hook, *arguments)
        return self._counted(hook)

    def _counted(self, hook: str) -> dict[str, int]:
        """What a hook counted."""
        counts, self._own.counts = dict(self._own.counts), Counter()
        for name, count in counts.items():
            if not isinstance(name, str) or not isinstance(count, int) or not 0 <= count < 1 << 63:
                raise self.wrong(hook, f"counted {count!r} {name!r}, which is not a count with a name")
        return counts

    def miss(
        self, hook: str, address: int, at: int, kind: str, found: Given | None
    ) -> tuple[dict[str, int], Translation | None]:
        """Calls a hook with a miss; `missed` may return a translation."""
        answer = self._call(hook, Miss(engine.hook_access(), address, at, kind, found))
        if hook != "missed" or answer is None:
            return self._counted(hook), None
        if not isinstance(answer, Translation):
            raise self.wrong(hook, f"returned {answer!r}, which is not a Translation or None")
        return self._counted(hook), answer


def interrupt(threads: Sequence[int]) -> None:
    """Raises KeyboardInterrupt in threads that run a hook, which may never return."""
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    for thread in threads:
        raise_in(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))


@functools.cache
def _memory() -> Memory:
    """Simulated memory: that of the table whose hook runs."""
    return Memory(engine.hook_access())


def file_of(own: type) -> str | None:
    """The file that a class is in: of one in a notebook's cell, as Python knows the cell by."""
    try:
        return inspect.getsourcefile(own)
    except (OSError, TypeError):
        functions = (value for value in vars(own).values() if inspect.isfunction(value))
        return next((function.__code__.co_filename for function in functions), None)


def place_of(error: BaseException) -> str | None:
    """File and line of the user's code that an exception passed last, or that is no Python."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    place, frame = None, error.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if _HERE not in Path(name).parents:
            place = f"{name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place


class _Origin:
    """The file of schemes that makes prototypes known, as it is now."""

    def __init__(self, text: str) -> None:
        """`text`: what tells it from others, in whatever process and order they are made known."""
        self._text = text
        self._count = 0

    def next(self) -> str:
        """What tells the next one that it makes known from all others."""
        self._count += 1
        return f"{self._text} {self._count}"


_ORIGIN: ContextVar[_Origin | None] = ContextVar("_ORIGIN", default=None)


@contextmanager
def of_file(text: str) -> Iterator[None]:
    """What is made known meanwhile is a file's, which `text` and the order there tell from all others.

    Results are stored under its code, in which nothing may depend on what else a process has loaded.
    """
    token = _ORIGIN.set(_Origin(text))
    try:
        yield
    finally:
        _ORIGIN.reset(token)


class _Known:
    """The classes that have been made known to the engine, by the hash of their code."""

    classes: ClassVar[dict[str, type]] = {}

    @classmethod
    def code(cls, own: type, parameters: str) -> str:
        """A hash of a class's code and parameters. Classes that differ all the same get others."""
        file = file_of(own) or ""
        linecache.checkcache(file)
        code = "".join(linecache.getlines(file))
        if not code:
            raise UsageError(
                f"the code of {own.__name__} cannot be read, and results must say what ran",
                remedy="write the class to a file or a notebook's cell",
            )
        origin = _ORIGIN.get()
        place = [] if origin is None else [origin.next()]
        text = "\0".join([own.__qualname__, parameters, *place, code, *_parts(Path(file), code)])
        first = hashlib.sha256(text.encode()).hexdigest()[:16]
        if origin is not None:
            cls.classes[first] = own
            return first
        code, number = first, 1
        while not _is_same(cls.classes.setdefault(code, own), own):
            code, number = f"{first}-{number + 1}", number + 1
        return code


def imported(file: Path, code: str) -> dict[Path, str]:
    """The user's modules that code imports, and that these do, with what they say.

    Those are the modules in the file's own folder, and others where Python looks for modules but nothing is
    installed. What the code says decides, not what is loaded: each process of a sweep loads other files.
    """
    found: dict[Path, str] = {}
    if is_installed(file):
        return found
    roots = _roots(file)
    left = [(file, code)]
    while left:
        importer, text = left.pop()
        for path in _modules(importer, _tree(text), roots):
            if path not in found and path != file:
                found[path] = source(path.read_bytes())
                left.append((path, found[path]))
    return found


def source(contents: bytes) -> str:
    """The text of a file of Python, as Python reads it."""
    try:
        return importlib.util.decode_source(contents)
    except (SyntaxError, UnicodeDecodeError):
        return contents.decode(errors="replace")


def is_installed(file: Path) -> bool:
    """Whether a file is Python's own, of a package that is installed, or flatwalk's."""
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    return (
        _HERE in file.parents
        or any(folder.name in ("site-packages", "dist-packages") for folder in file.parents)
        or any(str(folder) in places for folder in file.parents)
    )


def _roots(file: Path) -> list[Path]:
    """Where a file's imports find what is not installed: in its folder first."""
    places = (Path(place or ".").absolute() for place in sys.path)
    others = [place for place in places if place.is_dir() and not is_installed(place / "module.py")]
    return list(dict.fromkeys([file.parent, *others]))


def imported_late(file: Path, others: Iterable[Path]) -> set[Path]:
    """Those of a file's own modules that a function of the file, or of one of them, imports."""
    functions = (
        (one, node)
        for one in (file, *others)
        for node in ast.walk(_tree(source(one.read_bytes())))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {path for importer, node in functions for path in _modules(importer, node, [file.parent])}


def _parts(file: Path, code: str) -> list[str]:
    """Names and contents of the user's modules that code imports."""
    return named(imported(file, code), file)


def named(modules: Mapping[Path, str], file: Path) -> list[str]:
    """Names and contents of modules, alike wherever the file's folder is."""
    roots = _roots(file)
    names = {
        path: next((str(path.relative_to(root)) for root in roots if root in path.parents), path.name)
        for path in modules
    }
    ordered = sorted(modules, key=lambda path: (names[path], path))
    return [part for path in ordered for part in (names[path], modules[path])]


def _tree(code: str) -> ast.AST:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError):  # as in a notebook's cell with commands of its own
        return ast.Module([], [])


def _modules(importer: Path, code: ast.AST, roots: Sequence[Path]) -> Iterator[Path]:
    """The user's files that code may import, packages on the way to a module among them."""
    for node in ast.walk(code):
        match node:
            case ast.Import(names=names):
                imports = [(roots, one.name) for one in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                base = [importer.parents[min(level, len(importer.parents)) - 1]] if level else roots
                # Each name may be a module.
                imports = [(base, ".".join(filter(None, (module, one.name)))) for one in names]
            case _:
                continue
        for bases, name in imports:
            # The first folder that has something of the name has all of it.
            top = name.partition(".")[0]
            has = (one for one in bases if (one / top).is_dir() or (one / f"{top}.py").is_file())
            files = _on_the_way(next(has, bases[0]), name)
            yield from (path for path in files if any(root in path.parents for root in roots))


def _on_the_way(base: Path, name: str) -> Iterator[Path]:
    """Files of a module below a folder, and of the packages that it is in."""
    for place in itertools.accumulate(name.split("."), Path.joinpath, initial=base):
        # A folder such as `/` has no name, and nothing next to it that would be it.
        beside = [place.with_name(f"{place.name}.py")] if place.name and place != base else []
        files = [*beside, place / "__init__.py"]
        yield from (path for path in files if path.is_file() and not is_installed(path))


def _is_same(one: type, other: type) -> bool:
    """Whether classes of one name and code are the same: those in a function may have seen other values."""
    in_function = "<locals>" in one.__qualname__
    return one is other or (not in_function and file_of(one) == file_of(other))


def register(own: Organisation | Mechanism) -> dict[str, Any]:
    """Makes a prototype known to the engine, as it is now.

    Returns:
        The keys of a scheme that name it.

    Raises:
        UsageError: If its parameters or its code cannot be written down, or its class cannot work.
    """
    name = type(own).__name__
    _check_class(type(own))
    parameters = {key: _plain(value, f"{name}.{key}") for key, value in _attributes(own).items()}
    code = _Known.code(type(own), json.dumps(parameters, sort_keys=True))
    file = Path(file_of(type(own)) or "unknown").name
    keys = {"class": name, "file": file, "code": code, "parameters": parameters}
    if isinstance(own, Organisation):
        engine.register_prototype("organisation", keys, OrganisationHooks(copy.deepcopy(own)))
    else:
        engine.register_prototype("mechanism", keys, MechanismHooks(copy.deepcopy(own)))
    return keys


def _attributes(own: object) -> dict[str, object]:
    """An object's own attributes: those in slots, as of a dataclass with `slots=True`, and all others."""
    classes = (vars(one).get("__slots__", ()) for one in reversed(type(own).__mro__))
    slots = (name for names in classes for name in ([names] if isinstance(names, str) else names))
    found = {name: getattr(own, name) for name in slots if hasattr(own, name) and name != "__dict__"}
    return {name: value for name, value in found.items() if name != "__weakref__"} | vars(own)


def _check_class(own: type) -> None:
    """Passes a class of which the engine can set attributes and has something to call.

    Raises:
        UsageError: If it is another one.
    """
    # A class under a frozen one is frozen in the other's fields alone.
    if getattr(vars(own).get("__dataclass_params__"), "frozen", False):
        raise UsageError(
            f"{own.__name__} is frozen, and the engine sets attributes of it",
            where=file_of(own),
            remedy="leave out frozen=True",
        )
    hooks = [name for name in _HOOKS if name != "begin"]
    if issubclass(own, Mechanism) and all(getattr(own, name) is getattr(Mechanism, name) for name in hooks):
        methods = {name for name, _ in inspect.getmembers(own, inspect.isfunction)}
        close = ((name, difflib.get_close_matches(name, hooks, n=1)) for name in sorted(methods - {*_HOOKS}))
        meant = "".join(f"{name} may be meant to be {near[0]}; " for name, near in close if near)
        raise UsageError(
            f"{own.__name__} has no hook that the engine calls",
            where=file_of(own),
            remedy=f"{meant}there are {', '.join(hooks)}",
        )


def _plain(value: object, where: str) -> object:
    """A value that results can show.

    Raises:
        UsageError: If it is not one.
    """
    if isinstance(value, list | tuple):
        return [_plain(one, where) for one in value]
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if not isinstance(value, bool | int | float | str | None) or not is_finite:
        what = f"a {type(value).__name__}" if is_finite else str(value)
        raise UsageError(
            f"{what} is not a parameter that results can show",
            where=where,
            remedy="keep finite numbers, text or lists of them; make everything else in create or begin",
        )
    return value


def scheme(
    parts: Sequence[Organisation | Mechanism], base: Mapping[str, Any], name: str | None
) -> dict[str, Any]:
    """A scheme with a page table, mechanisms or both that are written in Python.

    Args:
        parts: The designs, with their parameters.
        base: The scheme that has all else.
        name: A name of its own; without it the classes', with their parameters.

    Raises:
        UsageError: If there are none or two tables, two mechanisms are of one class, results could not show a
            parameter, or the code of a class cannot be read.
    """
    for part in parts:
        if not isinstance(part, Organisation | Mechanism):
            raise UsageError(
                f"{part!r} is neither a page table nor a mechanism",
                remedy="give objects of your subclasses of fw.Organisation and fw.Mechanism",
            )
    tables = [part for part in parts if isinstance(part, Organisation)]
    classes = [type(part).__name__ for part in parts]
    if not parts or len(tables) > 1 or len(set(classes)) < len(classes):
        raise UsageError(
            f"{', '.join(classes) or 'nothing'} of your own: a scheme has one page table, and mechanisms of "
            "different classes",
            remedy="give an fw.Organisation, some fw.Mechanism, or both; of one class make a subclass",
        )
    table = copy.deepcopy(dict(base))
    named = [] if tables else [str(base["name"])]
    for part in parts:
        keys = register(part)
        text = ", ".join(f"{key}={value}" for key, value in keys["parameters"].items())
        named.append(f"{keys['class']}({text})" if text else keys["class"])
        if isinstance(part, Organisation):
            kept = {key: table["table"][key] for key in ("levels", "geometry") if key in table["table"]}
            table["table"] = {"organisation": "python", **kept, **keys}
        else:
            table["python"] = [*table.get("python", []), keys]
    words = [inspect.getdoc(part) or type(part).__name__ for part in parts]
    table["name"] = name or "+".join(named)
    table["title"] = " ".join(text.partition("\n")[0] for text in words)
    table["description"] = "\n".join(words)
    table["source"] = " and ".join(f"{type(part).__name__}, in Python" for part in parts)
    return table


def _in_python(scheme: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What of a scheme is written in Python: its table, its host's, and mechanisms."""
    parts = [scheme["table"], scheme.get("host", {}).get("table", {}), *scheme.get("python", [])]
    return [part for part in parts if "code" in part]


def codes(schemes: Iterable[Mapping[str, Any]]) -> set[str]:
    """The codes of the classes that schemes call."""
    return {part["code"] for scheme in schemes for part in _in_python(scheme)}


def names(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the classes that runs call."""
    return list(dict.fromkeys(part["class"] for run in runs for part in _in_python(run["scheme"])))


@contextmanager
def timed(runs: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Notes at the end how much of the time was spent in prototypes of `runs`."""
    classes = names(runs)
    if not classes:
        yield
        return
    (busy, calls), began = engine.prototype_time(), time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    more_busy, more_calls = engine.prototype_time()
    took = f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
    output.note(
        f"{' and '.join(classes)}: Python, which is slow: {units.percent((more_busy - busy) / seconds)} of "
        f"{took} went into {units.count(more_calls - calls)} calls. CONTRIBUTING.md shows how to write it in "
        "Rust."
    )
