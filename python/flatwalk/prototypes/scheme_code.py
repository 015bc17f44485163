"""Schemes in files of Python, as `FILE.py:NAME`: a class or an object of the user's, or an `fw.Scheme`."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.prototypes import adapters
from flatwalk.prototypes.mechanism import Mechanism
from flatwalk.prototypes.organisation import Organisation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType


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
    known = _schemes(_module(path, where))
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
    if not isinstance(found, type):
        return found.table if _is_scheme(found) else adapters.scheme([found], base(), None)
    try:
        own = found()
    except TypeError as error:
        raise UsageError(
            f"{wanted} of {path} wants parameters: {error}",
            where=where,
            remedy=f"make one there, as `mine = {wanted}(…)`, and give {path}:mine",
        ) from error
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


def _module(path: Path, where: str) -> ModuleType:
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the file of Python cannot be read: {error.strerror}",
            where=f"{where} {path}",
            remedy="check the path and its permissions",
        ) from error
    path = path.resolve()
    others = adapters.imported(path, contents.decode(errors="replace"))
    version = repr([contents, *sorted((str(other), text) for other, text in others.items())])
    return _run(
        path, hashlib.sha256(version.encode(errors="replace")).hexdigest(), frozenset(map(str, others))
    )


#: Modules of the folders of schemes that were run, by name: where each is.
_LOADED: dict[str, str] = {}


@functools.cache
def _run(path: Path, _version: str, others: frozenset[str]) -> ModuleType:
    """Runs a file, with its folder on the path as Python does; each version of it and of its modules once.

    Modules of one name in the folders of two files are two modules: each file gets its own.
    """
    # Two files of one name are two modules.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _modules_of(path, others):
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (FlatwalkError, KeyboardInterrupt):
            raise
        except BaseException as error:
            place = adapters.place_of(error) or str(path)
            raise FlatwalkError(
                f"{path.name} failed: {type(error).__name__}: {error}", where=place, remedy=f"fix {place}"
            ) from error
    return module


@contextlib.contextmanager
def _modules_of(file: Path, others: frozenset[str]) -> Iterator[None]:
    """Has imports find a file's own modules, as they are now; afterwards others of their names are back.

    Raises:
        FlatwalkError: If it imports one of these later, in a function: then the other would be found.
    """
    own = _names(file.parent, map(Path, others))
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
