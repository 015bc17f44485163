"""Page tables that are written in Python, for prototypes: docs/python.md has an example.

The engine calls their hooks while it simulates, from its own threads and with the interpreter lock. It
checks what they return. An exception ends the simulation; its error names file and line.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from flatwalk import engine, output, units
from flatwalk.errors import FlatwalkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flatwalk.engine import MemoryAccess

#: The package: frames of its files are not the user's.
_HERE = Path(__file__).parent


class OutOfMemory(Exception):  # noqa: N818 - it is not a mistake
    """Simulated memory has no free block of that size. `create` and `insert` may let it pass."""


@dataclass(frozen=True, slots=True)
class Found:
    """A walk's answer: the entry is in the line just read. If it is not present, the page is not there."""

    #: Address of the entry.
    at: int


@dataclass(frozen=True, slots=True)
class Next:
    """A walk's answer: a further line must be read."""

    #: Address of the word that is looked for in it.
    at: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """Page size and levels of the address space that a table translates."""

    #: log2 of a base page's bytes: 12.
    page_shift: int
    #: Bits of an address that each level consumes: 9. A page of level 2 is 512 pages of level 1.
    index_bits: int
    levels: int

    @property
    def node_bytes(self) -> int:
        """Bytes of a node with the entries of one level, of a radix table: 4096."""
        return int(max(8 << self.index_bits, 4096))


class Memory:
    """Simulated physical memory, while the engine calls a hook that has it as a parameter.

    A table reads and writes 8-byte words in blocks that it allocated. What it does here takes no simulated
    time: that is the operating system's work. A walk reads memory through what `first` and `answer` return.
    """

    def __init__(self, access: MemoryAccess) -> None:
        """Through the engine."""
        self._access = access

    def read(self, at: int) -> int:
        """The word at address `at`, from 0 to 2^64 - 1.

        Raises:
            ValueError: If it is not in memory that this table allocated.
        """
        return self._access.memory_read(at)

    def write(self, at: int, word: int) -> None:
        """Stores a word at address `at`.

        Raises:
            ValueError: If it is not in memory that this table allocated.
        """
        self._access.memory_write(at, word)

    def allocate(self, size_bytes: int, name: str = "nodes") -> int:
        """The address of a block of zeros, aligned to its size.

        Args:
            size_bytes: A power of two, 4096 or more.
            name: What results call blocks of its kind.

        Raises:
            OutOfMemory: If there is none, which is ordinary for large blocks.
            ValueError: If blocks cannot have that size.
        """
        at = self._access.memory_allocate(size_bytes, name)
        if at is None:
            raise OutOfMemory(f"no block of {size_bytes} bytes is free")
        return at

    def free(self, at: int) -> None:
        """Gives back the block at address `at`. What is left when a table ends is given back by itself.

        Raises:
            ValueError: If no block of this table begins there.
        """
        self._access.memory_free(at)


class Organisation:
    """A page table of your own: the base class of tables for pages of one size.

    An instance stands for the design; its attributes are the design's parameters, which must be numbers,
    text, or lists of them. The engine copies it for each page size that a process has pages of, sets
    `geometry` and `level`, and calls `create`. Walks ask the tables of all page sizes at once.

    A page is known by its number among the pages of its size: its address divided by that. Pages are never
    inserted twice. An entry is a 64-bit word as of x86-64, whose bit 0 says that it is present; bits 52 to 56
    are free. Hardware writes accessed and dirty bits where `Found` says that the entry is.
    """

    #: The address space. Set before `create`.
    geometry: Geometry
    #: Level that pages of the table's size are leaves of: 1 (4 KiB), 2 (2 MiB) or 3 (1 GiB).
    level: int
    #: How often the table was resized, and how often there was no memory for that: counts that results show.
    grown: int = 0
    shrunk: int = 0
    refused: int = 0
    curtailed: int = 0

    def create(self, memory: Memory) -> None:
        """Makes an empty table.

        Raises:
            OutOfMemory: If there is no memory for it, however small.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method `create`")

    def insert(self, memory: Memory, number: int, entry: int) -> None:
        """Puts in the entry of page `number`, which has none.

        Raises:
            OutOfMemory: If there is no memory for it; every other page must translate as before then.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method `insert`")

    def remove(self, memory: Memory, number: int) -> None:
        """Takes away the entry of page `number`, which has one."""
        raise NotImplementedError(f"{type(self).__name__} needs a method `remove`")

    def change(self, memory: Memory, at: int, entry: int) -> None:
        """Gives the page whose entry is at address `at` another entry, which is written there as it is."""
        memory.write(at, entry)

    def first(self, number: int) -> int:
        """The address of the first word that a walk for page `number` reads, with the line that it is in."""
        raise NotImplementedError(f"{type(self).__name__} needs a method `first`")

    def answer(self, number: int, at: int, line: list[int]) -> Found | Next | None:
        """What a walk for page `number` does after it read the word at address `at`.

        Args:
            number: The page's number.
            at: The address that `first` or an answer gave.
            line: The eight words of the line that it is in.

        Returns:
            `Found`, `Next` to read another line, or None if the page is not there.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method `answer`")


class Hooks:
    """What the engine calls of a prototype: the user's methods, with errors that say where they are."""

    def __init__(self, own: Organisation, memory: Memory) -> None:
        """Those of an object."""
        self._own = own
        self._memory = memory

    def table(self, page_shift: int, index_bits: int, levels: int, level: int) -> Hooks:
        """Those of a new table for pages of `level`."""
        own = copy.deepcopy(self._own)
        own.geometry = Geometry(page_shift, index_bits, levels)
        own.level = level
        return Hooks(own, self._memory)

    def copy(self) -> Hooks:
        """Those of a copy."""
        return Hooks(copy.deepcopy(self._own), self._memory)

    def change(self, hook: str, arguments: Sequence[int]) -> bool:
        """Calls a hook with memory; False if it was refused some."""
        try:
            getattr(self._own, hook)(self._memory, *arguments)
        except OutOfMemory:
            return False
        except FlatwalkError:
            raise
        except BaseException as error:
            raise self._failed(hook, error) from error
        return True

    def first(self, number: int) -> object:
        """What the hook returns."""
        try:
            return self._own.first(number)
        except BaseException as error:
            raise self._failed("first", error) from error

    def answer(self, number: int, at: int, line: list[int]) -> tuple[bool, int] | None:
        """What the hook returns: whether the entry is there, and where to look."""
        try:
            answer = self._own.answer(number, at, line)
        except BaseException as error:
            raise self._failed("answer", error) from error
        if answer is None:
            return None
        if not isinstance(answer, Found | Next):
            raise self.wrong("answer", f"returned {answer!r}, which is not Found, Next or None")
        return isinstance(answer, Found), answer.at

    def resizes(self) -> tuple[int, int, int, int]:
        """The counts that results show."""
        own = self._own
        return own.grown, own.shrunk, own.refused, own.curtailed

    def wrong(self, hook: str, words: str) -> FlatwalkError:
        """The error of a hook that did what it may not."""
        code = getattr(type(self._own), hook).__code__
        return self._error(f"{hook} {words}", f"{code.co_filename}:{code.co_firstlineno}")

    def _failed(self, hook: str, error: BaseException) -> FlatwalkError:
        """The error of a hook that raised."""
        place = _place(error)
        words = f"{hook} failed: {type(error).__name__}: {error}"
        return self.wrong(hook, words.partition(" ")[2]) if place is None else self._error(words, place)

    def _error(self, words: str, place: str) -> FlatwalkError:
        return FlatwalkError(
            f"{type(self._own).__name__}.{words}",
            where=place,
            remedy=f"fix {place}; fw.check_organisation finds the shortest steps that lead there",
        )


def _place(error: BaseException) -> str | None:
    """File and line of the user's code that an exception passed last."""
    place, frame = None, error.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if _HERE not in Path(name).parents:
            place = f"{name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place


class _Known:
    """The classes that have been made known to the engine, by the hash of their code."""

    classes: ClassVar[dict[str, type]] = {}

    @classmethod
    def code(cls, own: type, parameters: str) -> str:
        """A hash of a class's code and parameters. Classes that differ all the same get others."""
        try:
            file = inspect.getsourcefile(own)
            code = Path(file).read_text("utf-8") if file and Path(file).is_file() else inspect.getsource(own)
        except OSError as error:
            raise UsageError(
                f"the code of {own.__name__} cannot be read, and results must say what ran",
                remedy="write the class to a file or a notebook's cell",
            ) from error
        text = "\0".join([own.__qualname__, parameters, code])
        first = hashlib.sha256(text.encode()).hexdigest()[:16]
        code, number = first, 1
        while cls.classes.setdefault(code, own) is not own:
            code, number = f"{first}-{number + 1}", number + 1
        return code


def register(kind: str, own: Organisation) -> dict[str, Any]:
    """Makes a prototype known to the engine, as it is now.

    Returns:
        The keys of a scheme that name it.

    Raises:
        UsageError: If its parameters or its code cannot be written down.
    """
    name = type(own).__name__
    parameters = {key: _plain(value, f"{name}.{key}") for key, value in vars(own).items()}
    code = _Known.code(type(own), json.dumps(parameters, sort_keys=True))
    file = Path(inspect.getsourcefile(type(own)) or "unknown").name
    keys = {"class": name, "file": file, "code": code, "parameters": parameters}
    hooks = Hooks(copy.deepcopy(own), Memory(engine.memory_access()))
    engine.register_prototype(kind, keys, hooks)
    return keys


def _plain(value: object, where: str) -> object:
    """A value that results can show.

    Raises:
        UsageError: If it is not one.
    """
    if isinstance(value, list | tuple):
        return [_plain(one, where) for one in value]
    if not isinstance(value, bool | int | float | str | None) or value in {float("inf"), -float("inf")}:
        raise UsageError(
            f"a {type(value).__name__} is not a parameter that results can show",
            where=where,
            remedy="keep numbers, text or lists of them; what a table needs, make in create",
        )
    return value


def names(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the classes that runs call."""
    tables = [
        part["table"]
        for run in runs
        for part in (run["scheme"], run["scheme"].get("host"))
        if part is not None
    ]
    return list(dict.fromkeys(table["class"] for table in tables if table["organisation"] == "python"))


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
    output.note(
        f"{' and '.join(classes)}: Python, which is slow: {(more_busy - busy) / seconds:.0%} of "
        f"{seconds:.1f} s went into {units.count(more_calls - calls)} calls. CONTRIBUTING.md shows how to "
        "write it in Rust."
    )
