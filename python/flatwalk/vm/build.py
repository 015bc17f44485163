"""Builds QEMU and Linux with our series, once, into the cache directory."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk import cache
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.terminal import output
from flatwalk.vm import components, sources
from flatwalk.vm.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flatwalk.vm.components import Component


@dataclass(frozen=True)
class Built:
    """Where the results of a build are."""

    name: str
    #: QEMU: bin, share, include. Linux: bzImage, vmlinux, System.map, config. Selftests: the programs.
    path: Path


def find(component: Component, source: Path | None = None) -> Path:
    """The directory of what was built.

    Args:
        component: Of what.
        source: The user's own trees, if they are to be used.

    Raises:
        FlatwalkError: If it was not built.
    """
    path = _place(component, source)
    if not has(component, source):
        option = f" --source {source}" if source else ""
        if component.option:
            option += f" {component.option}"
        raise FlatwalkError(
            f"{component.name} is not built", where=str(path), remedy=f"run: flatwalk vm build{option}"
        )
    return path


def has(component: Component, source: Path | None = None) -> bool:
    """Whether it was built; a user's own tree may have changed since.

    Args:
        component: What.
        source: The user's own trees, if they are to be used.
    """
    return (_place(component, source) / component.product).is_file()


def build(source: Path | None = None, *, jobs: int = 0, also: Sequence[Component] = ()) -> list[Built]:
    """Builds what is not built yet.

    Args:
        source: A directory with the user's own trees `qemu` or `linux`, to be built as they are.
        jobs: Compilers at once; 0 is one per core.
        also: What to build besides `components.ALWAYS`.

    Raises:
        FlatwalkError: If packages or sources are missing, or a build fails.
    """
    wanted = (*components.ALWAYS, *also)
    chosen = [component for component in wanted if component.directory.is_dir()]
    if not chosen and source is None:
        raise FlatwalkError(
            "there is no series to build",
            where=str(components.REPOSITORY),
            remedy="run this from a checkout of the repository, or give your own trees with --source DIR",
        )
    if source is not None:
        source = source.absolute()
        _check_source(source)
        chosen = [component for component in wanted if (source / component.source_name).is_dir()]
        if not chosen:
            raise UsageError(
                f"{source} holds neither qemu nor linux", where="--source", remedy="give their parent"
            )
    missing = [component for component in chosen if not _is_built(component, source)]
    # Before the first is built, which takes minutes.
    sources.check_installed(list(dict.fromkeys(need for component in missing for need in component.needs)))
    return [Built(component.name, ensure(component, source, jobs=jobs)) for component in chosen]


def missing_packages() -> list[str]:
    """The Debian packages that `build` needs and that are not installed."""
    needed = dict.fromkeys(package for component in components.ALWAYS for package in component.needs)
    return sources.not_installed(list(needed))


def ensure(component: Component, source: Path | None = None, *, jobs: int = 0) -> Path:
    """Builds one component, if it is not built yet.

    Args:
        component: Which.
        source: A directory with the user's own tree of it.
        jobs: Compilers at once; 0 is one per core.

    Returns:
        The directory of what was built.

    Raises:
        FlatwalkError: If packages or sources are missing, or the build fails.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    place = _place(component, source)
    if _is_built(component, source):
        return place
    sources.check_installed(component.needs)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place.parent / f"{component.source_name}.lock"):
            if source is not None:
                _build_own(component, source / component.source_name, place, jobs)
            elif not (place / component.product).is_file():  # not built by another call meanwhile
                _build_series(component, place, jobs)
    except OSError as error:
        raise FlatwalkError(
            f"{component.name} cannot be built: {error.strerror}",
            where=str(error.filename or place.parent),
            remedy="free some space, or set XDG_CACHE_HOME to another directory",
        ) from error
    return place


def _is_built(component: Component, source: Path | None) -> bool:
    """Whether there is nothing to do; the user's own trees may have changed."""
    return source is None and has(component)


def _check_source(source: Path) -> None:
    """Checks that there is such a directory.

    Raises:
        UsageError: If not.
    """
    if not source.is_dir():
        raise UsageError(f"there is no directory {source}", where="--source", remedy="check the path")


def _place(component: Component, source: Path | None) -> Path:
    if source is not None:
        _check_source(source)
    if source is None or not (source / component.source_name).is_dir():
        return cache.directory("vm") / f"{component.name}-{component.key()}"
    tree = hashlib.sha256(os.fsencode(source.absolute() / component.source_name)).hexdigest()[:16]
    return cache.directory("vm") / f"{component.name}-source-{tree}"


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Waits for other builds of the same to end; removes what a killed build left behind."""
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            output.note(f"another build of {lock.stem} is running; waiting for it")
            fcntl.flock(held, fcntl.LOCK_EX)
        for left in lock.parent.glob(f".{lock.stem}-*"):
            shutil.rmtree(left)
        yield


@contextlib.contextmanager
def _whole(place: Path) -> Iterator[Path]:
    """A directory that becomes `place` when it is complete."""
    name = place.name.split("-", 1)[0]
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{name}-") as directory:
        out = Path(directory) / "out"
        out.mkdir()
        try:
            yield out
        except BaseException:
            output.note(f"{name}: removing what was half built")
            raise
        if place.is_dir():
            place.rename(Path(directory) / "old")
        out.rename(place)


def _steps(component: Component, directory: Path, jobs: int) -> Steps:
    kept = cache.directory("vm") / f"{component.name}-failed.log"
    return Steps(component.name, directory / "log", kept, jobs)


def _build_series(component: Component, place: Path, jobs: int) -> None:
    archive = sources.Archive(place.parent / "apt")
    base = component.base
    with _whole(place) as out:
        directory = out.parent
        steps = _steps(component, directory, jobs)
        with steps.titled("getting Debian's source"):
            chosen = archive.choose(base, source=component.source_package)
            if chosen != base:
                output.note(
                    f"{component.name}: the archive has {chosen.version} instead of {base.version}; using it"
                )
            download = directory / "download"
            download.mkdir()
            tree = component.fetch(archive, chosen, download)
        sources.apply(component.series, tree, chosen, base)
        work = directory / "work"
        work.mkdir()
        component.make(tree, work, out, steps)
        (out / "base").write_text(f"{chosen.package} {chosen.version}\n", encoding="utf-8")


def _build_own(component: Component, tree: Path, place: Path, jobs: int) -> None:
    # The objects are kept, so that the next build compiles only what changed.
    work = place.with_name(f"{place.name}-work")
    work.mkdir(exist_ok=True)
    with _whole(place) as out:
        component.make(tree, work, out, _steps(component, out.parent, jobs))
