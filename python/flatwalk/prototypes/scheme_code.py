"""Schemes in files of Python, as `FILE.py:NAME`: a class or an object of the user's, or an `fw.Scheme`."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.prototypes import adapters
from flatwalk.prototypes.mechanism import Mechanism
from flatwalk.prototypes.organisation import Organisation

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType


def is_one(name: str) -> bool:
    """Whether a scheme's name is of this form."""
    return name.partition(".py:")[1] != "" or name.endswith(".py")


def file_of(name: str) -> Path:
    """The file of a scheme's name of this form."""
    return Path(f"{name.partition('.py:')[0].removesuffix('.py')}.py")


def load(name: str, where: str, base: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The scheme `FILE.py:NAME`; without NAME the only one of the file. The file is run, once.

    Args:
        name: Path and name.
        where: The option that has it.
        base: What has all that a class or an object does not say.

    Raises:
        UsageError: If there is no such file or name, or it is not a scheme.
        FlatwalkError: If the file raises an exception.
    """
    path, wanted = file_of(name), name.partition(".py:")[2]
    read = _read(path, where)
    known = _schemes(_run(read))
    if not wanted and len(known) == 1:
        [wanted] = known
    if wanted not in known:
        told = (
            f"there are {', '.join(known)}"
            if known
            else "it has no fw.Organisation, fw.Mechanism or fw.Scheme"
        )
        what = f"{path} has no scheme {wanted}" if wanted else f"{path} does not have one scheme alone"
        raise UsageError(what, where=where, remedy=f"give {path}:NAME; {told}")
    found = known[wanted]
    if _is_scheme(found):
        table: dict[str, Any] = found.table
        return table
    try:
        own = found() if isinstance(found, type) else found
    except TypeError as error:
        raise UsageError(
            f"{wanted} of {path} wants parameters: {error}",
            where=where,
            remedy=f"make one there, as `mine = {wanted}(…)`, and give {path}:mine",
        ) from error
    with adapters.of_file(f"{read.version} {wanted}"):
        return adapters.scheme([own], base(), None)


def _is_scheme(found: object) -> bool:
    return getattr(found, "kind", None) == "scheme" and not isinstance(found, type)


def _schemes(module: ModuleType) -> dict[str, Any]:
    """What of a module is a scheme, by name; classes that it imports are not."""

    def is_own(found: object) -> bool:
        if isinstance(found, type):
            return issubclass(found, Organisation | Mechanism) and found.__module__ == module.__name__
        return isinstance(found, Organisation | Mechanism) or _is_scheme(found)

    return {name: found for name, found in vars(module).items() if not name.startswith("_") and is_own(found)}


@dataclass(frozen=True)
class _Read:
    """A file of schemes as it is now."""

    path: Path
    #: The user's modules that it imports.
    modules: frozenset[str]
    #: A hash of what it and they say, alike wherever they are.
    version: str


def _read(path: Path, where: str) -> _Read:
    """Reads a file and the user's modules that it imports; what they say now is what they run as.

    Raises:
        UsageError: If there is no such file.
    """
    try:
        text = adapters.source(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"the file of Python cannot be read: {error.strerror}",
            where=f"{where} {path}",
            remedy="check the path and its permissions",
        ) from error
    path = path.resolve()
    others = adapters.imported(path, text)
    _TEXTS.update({str(path): text}, **{str(other): said for other, said in others.items()})
    if _AsRead not in sys.meta_path:
        sys.meta_path.insert(0, _AsRead)
    version = hashlib.sha256(repr([text, *adapters.named(others, path)]).encode(errors="replace"))
    return _Read(path, frozenset(map(str, others)), version.hexdigest())


#: What files say that were read, by their paths.
_TEXTS: dict[str, str] = {}
#: What they said when they were run last.
_RUN: dict[str, str] = {}
#: Modules of the folders of schemes that were run, by name: where each is.
_LOADED: dict[str, str] = {}


class _AsRead(SourceFileLoader):
    """Runs the text that was read, by which results are known, and not what Python has compiled before.

    Python takes a compiled file for the same if the time, in seconds, and the length are.
    """

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """That of a module which was read; None of all others."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin not in _TEXTS:
            return None
        folders = spec.submodule_search_locations
        loader = cls(name, spec.origin)
        return importlib.util.spec_from_file_location(
            name, spec.origin, loader=loader, submodule_search_locations=folders
        )

    def get_code(self, fullname: str) -> CodeType:
        """Of the text that was read."""
        path = self.get_filename(fullname)
        _RUN[path] = _TEXTS[path]
        code: CodeType = self.source_to_code(_TEXTS[path], path)
        return code


@functools.cache
def _run(read: _Read) -> ModuleType:
    """Runs a file, with its folder on the path as Python does; each version of it and of its modules once.

    Modules of one name in the folders of two files are two modules: each file gets its own.

    Raises:
        FlatwalkError: If it fails, or has loaded what its text does not say that it imports.
    """
    path = read.path
    # Two files of one name are two modules.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_AsRead(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _modules_of(path, read.modules), adapters.of_file(read.version):
        sys.modules[name] = module
        before = set(sys.modules)
        try:
            spec.loader.exec_module(module)
        except (FlatwalkError, KeyboardInterrupt):
            raise
        except BaseException as error:
            place = adapters.place_of(error) or str(path)
            raise FlatwalkError(
                f"{path.name} failed: {type(error).__name__}: {error}", where=place, remedy=f"fix {place}"
            ) from error
        _check_loaded(read, before)
    return module


def _check_loaded(read: _Read, before: set[str]) -> None:
    """Passes a file that has loaded no module of the user's but those which its text names.

    Raises:
        FlatwalkError: Otherwise: old results would be taken for those of a module that was changed.
    """
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in before or not file or Path(file) == read.path or file in read.modules:
            continue
        if not adapters.is_installed(Path(file)):
            del sys.modules[name]
            raise FlatwalkError(
                f"{read.path.name} has loaded {file} in a way that its text does not show",
                where=str(read.path),
                remedy=f"write `import {name}` in it, and have that next to it or on PYTHONPATH: results are "
                "known by what a file and its imports say",
            )


def _forget_changed(others: frozenset[str], own: Container[str]) -> None:
    """Has packages elsewhere run again whose modules say something else now; those of the caller stay."""
    changed = {
        name.partition(".")[0]
        for name, path in ((name, getattr(one, "__file__", None)) for name, one in sys.modules.items())
        if path in others and name not in own and _RUN.get(path, _TEXTS[path]) != _TEXTS[path]
    }
    for name in [one for one in sys.modules if one.partition(".")[0] in changed]:
        del sys.modules[name]


@contextlib.contextmanager
def _modules_of(file: Path, others: frozenset[str]) -> Iterator[None]:
    """Has imports find a file's own modules, as they are now; afterwards others of their names are back.

    Raises:
        FlatwalkError: If it imports one of these later, in a function: then the other would be found.
    """
    own = _names(file.parent, [path for path in map(Path, others) if file.parent in path.parents])
    _forget_changed(others, own)
    held = {name: sys.modules.pop(name) for name in own if name in sys.modules}
    taken = {
        name
        for name, place in own.items()
        if _LOADED.get(name, place) != place or (name in held and _place(held[name]) != place)
    }
    folder, before = str(file.parent), list(sys.path)
    sys.path[:] = [folder, *(one for one in before if one != folder)]
    importlib.invalidate_caches()
    try:
        late = _names(file.parent, adapters.imported_late(file, map(Path, others))) if taken else {}
        if hidden := taken & late.keys():
            raise FlatwalkError(
                f"{file.name} imports {min(hidden)} in a function, and there is another module of that name",
                where=str(file),
                remedy="import it at the beginning of the file, or give it another name",
            )
        yield
    finally:
        if folder not in before:  # what only this file has can be imported later, too
            before.insert(len(before) if taken else 0, folder)
        sys.path[:] = before
        for name in taken:
            sys.modules.pop(name, None)
        sys.modules.update({name: held[name] for name in taken if name in held})
        _LOADED.update({name: place for name, place in own.items() if name not in taken})


def _names(folder: Path, modules: Iterable[Path]) -> dict[str, str]:
    """How modules in a folder, and the packages that they are in, are imported, and where each is."""
    found: dict[str, str] = {}
    for path in modules:
        place = _without_ending(path)
        while place != folder:
            name = ".".join(place.relative_to(folder).parts)
            found.setdefault(name, str(place))
            place = place.parent
    return found


def _place(module: ModuleType) -> str | None:
    """Where a module is, as `_names` says it."""
    file = getattr(module, "__file__", None)
    if file is None:
        return next(iter(getattr(module, "__path__", [])), None)
    return str(_without_ending(Path(file)))


def _without_ending(module: Path) -> Path:
    """Of a package its folder."""
    return module.parent if module.name == "__init__.py" else module.with_suffix("")
