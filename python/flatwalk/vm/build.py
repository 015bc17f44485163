"""Builds QEMU and Linux with our series, once, into the cache directory."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk import cache, output
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.vm import processes, sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_REPOSITORY = Path(__file__).resolve().parents[3]
#: How many lines of a failed command's output are shown.
_TAIL_LINES = 25
#: How a build tool says how far it is.
_DONE_OF = re.compile(rb"^\[(\d+)/(\d+)\]")

#: Where QEMU believes it is installed; it finds its firmware relative to its program.
_PREFIX = "/opt/flatwalk"
_QEMU_OPTIONS = (
    f"--prefix={_PREFIX}",
    f"--firmwarepath={_PREFIX}/share/qemu",
    "--target-list=x86_64-softmmu",
    "--without-default-features",
    "--enable-system",
    "--enable-tcg",
    "--enable-plugins",
    "--enable-fdt=system",
    # 9p, through which a guest sees the host's files.
    "--enable-virtfs",
    "--enable-attr",
    "--enable-cap-ng",
    "--disable-docs",
)
_FIRMWARE = Path("/usr/share/seabios")
#: Files that configure a component, and those that give Linux all of its checks.
_PLAIN, _CHECKED = ("config",), ("config", "config.debug")
#: Of the kernel's own tests of its memory management: those that need no other libraries, hosts or modules.
_SELFTESTS = (
    *("compaction_test", "gup_test", "hugepage-mmap", "hugepage-mremap", "hugepage-shm", "hugetlb-madvise"),
    *("khugepaged", "madv_populate", "map_fixed_noreplace", "map_hugetlb", "map_populate"),
    *("mlock2-tests", "mrelease_test", "mremap_dontunmap", "mremap_test", "on-fault-limit"),
    *("protection_keys_64", "soft-dirty", "split_huge_page_test", "thuge-gen", "userfaultfd"),
    *("va_128TBswitch", "virtual_address_range"),
)
#: One of them takes the numbers of system calls for granted.
_SELFTEST_FLAGS = "EXTRA_CFLAGS=-include sys/syscall.h"


@dataclass(frozen=True)
class Component:
    """Something that is built: what it needs, and how it comes about."""

    name: str
    #: Debian packages to build it.
    needs: tuple[str, ...]
    #: The file without which it is not built, in its directory.
    product: str
    #: All that decides how it is built beside the series, the base and the configuration.
    recipe: tuple[str, ...]
    #: Downloads and unpacks into an empty directory.
    fetch: Callable[[sources.Archive, sources.Base, Path], Path]
    #: Whether its base is a source package.
    source_package: bool
    #: Builds TREE in WORK and puts the results in the empty OUT.
    make: Callable[[Path, Path, Path, Steps], None]
    #: Files beside its series that configure it.
    configuration: tuple[str, ...] = _PLAIN
    #: Whose source it is built from, if that is no component of its own name.
    variant_of: str = ""
    #: Whether its source is built as it comes, without our series.
    original: bool = False
    #: What `vm build` must be given to build it, too.
    option: str = ""

    @property
    def source_name(self) -> str:
        """What its series' directory, and a user's own tree of it, are called."""
        return self.variant_of or self.name

    @property
    def directory(self) -> Path:
        """Where its series and base are."""
        return _REPOSITORY / self.source_name

    @property
    def base(self) -> sources.Base:
        """What its series was made for."""
        return sources.Base.read(self.directory / "base")

    @property
    def series(self) -> list[Path]:
        """Its patches, in order."""
        if self.original:
            return []
        return sorted((self.directory / "series").glob("*.patch"))

    def key(self) -> str:
        """Names everything that goes into it: another series or configuration, another key."""
        digest = hashlib.sha256()
        for text in (*self.recipe, self.base.package, self.base.version):
            digest.update(text.encode() + b"\0")
        for path in (*self.series, *(self.directory / name for name in self.configuration)):
            if path.is_file():
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Built:
    """Where the results of a build are."""

    name: str
    #: QEMU: bin, share, include. Linux: bzImage, vmlinux, System.map, config. Selftests: the programs.
    path: Path


class Steps:
    """Runs the commands of a build, with their output in a log and progress on a terminal.

    Args:
        name: What is built.
        log: Where the output goes.
        kept: Where the log is kept if a command fails.
        jobs: Compilers at once.
    """

    def __init__(self, name: str, log: Path, kept: Path, jobs: int) -> None:
        self.name = name
        self.jobs = jobs
        self._log = log
        self._kept = kept

    @contextlib.contextmanager
    def titled(self, title: str) -> Iterator[output.Progress]:
        """Announces a step."""
        output.note(f"{self.name}: {title}")
        with output.Progress(title) as progress:
            yield progress

    def run(self, title: str, *command: str, cwd: Path, remedy: str) -> None:
        """Runs a command.

        Raises:
            FlatwalkError: If it fails; its last lines are in the message, all of them in the log.
        """
        with self.titled(title) as progress, self._log.open("ab") as log:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
            except OSError as error:
                raise FlatwalkError(
                    f"{command[0]} does not start: {error.strerror}", remedy=remedy
                ) from error
            with process:
                assert process.stdout is not None
                with processes.ended_together(process):
                    for number, line in enumerate(process.stdout, 1):
                        log.write(line)
                        told = _DONE_OF.match(line)
                        progress(int(told[1]) if told else number, int(told[2]) if told else None)
        if process.returncode:
            shutil.copyfile(self._log, self._kept)
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise FlatwalkError(
                "\n".join([f"{self.name}: {title} failed:", *lines[-_TAIL_LINES:]]),
                where=f"{self._kept}, after: {' '.join(command)}",
                remedy=remedy,
            )


def _make_qemu(tree: Path, work: Path, out: Path, steps: Steps) -> None:
    remedy = "see the message above; packages that QEMU misses are installed with apt-get"
    if not (work / "build.ninja").is_file():
        steps.run("configuring", str(tree / "configure"), *_QEMU_OPTIONS, cwd=work, remedy=remedy)
    jobs = f"-j{steps.jobs}"
    steps.run("compiling", "ninja", jobs, "qemu-system-x86_64", cwd=work, remedy=remedy)
    # QEMU's configure leaves these out unless 32-bit x86 is a target, too; `-kernel` needs them.
    roms = work / "pc-bios" / "optionrom"
    (roms / "config.mak").write_text(
        f"TOPSRC_DIR={tree}\nCC=gcc\nOBJCOPY=objcopy\nPYTHON=python3\n", encoding="utf-8"
    )
    makefile = str(tree / "pc-bios" / "optionrom" / "Makefile")
    steps.run("option ROMs", "make", "-f", makefile, cwd=roms, remedy=remedy)
    firmware = out / "share" / "qemu"
    for directory in (out / "bin", out / "include", firmware):
        directory.mkdir(parents=True)
    shutil.copy2(work / "qemu-system-x86_64", out / "bin")
    shutil.copy2(tree / "include" / "qemu" / "qemu-plugin.h", out / "include")
    for image in (*roms.glob("*.bin"), *_FIRMWARE.glob("*.bin")):
        shutil.copy2(image, firmware)


def _make_linux(tree: Path, work: Path, out: Path, steps: Steps, configuration: Sequence[str]) -> None:
    remedy = "see the message above; packages that Linux misses are installed with apt-get"
    fragments = [_REPOSITORY / "linux" / name for name in configuration]
    settings = [line for path in fragments for line in path.read_text(encoding="utf-8").splitlines()]
    whole = work / "allconfig"
    whole.write_text("\n".join([*settings, ""]), encoding="utf-8")
    make = ("make", "-C", str(tree), f"O={work}", f"-j{steps.jobs}")
    steps.run("configuring", *make, f"KCONFIG_ALLCONFIG={whole}", "allnoconfig", cwd=work, remedy=remedy)
    got = set((work / ".config").read_text(encoding="utf-8").splitlines())
    wanted = [line for line in settings if line.startswith("CONFIG_") and not line.endswith("=n")]
    ignored = [line for line in wanted if line not in got]
    if ignored:
        raise FlatwalkError(
            f"Linux does not take these settings: {', '.join(ignored)}",
            where=", ".join(map(str, fragments)),
            remedy="name what they depend on, too",
        )
    steps.run("compiling", *make, "bzImage", cwd=work, remedy=remedy)
    for product in ("arch/x86/boot/bzImage", "vmlinux", "System.map"):
        shutil.copy2(work / product, out)
    shutil.copy2(work / ".config", out / "config")


def _make_selftests(tree: Path, work: Path, out: Path, steps: Steps) -> None:
    remedy = "see the message above"
    make = ("make", f"-j{steps.jobs}")
    steps.run("headers", *make, "-C", str(tree), f"O={work}", "headers", cwd=work, remedy=remedy)
    steps.run(
        "selftests",
        *(*make, "-C", str(tree / "tools" / "testing" / "selftests" / "vm")),
        *(f"OUTPUT={out}", f"KHDR_INCLUDES=-isystem {work / 'usr' / 'include'}"),
        _SELFTEST_FLAGS,
        *(str(out / name) for name in _SELFTESTS),
        cwd=work,
        remedy=remedy,
    )


QEMU = Component(
    "qemu",
    needs=(
        "gcc",
        "libc6-dev",
        "make",
        "ninja-build",
        "meson",
        "dpkg-dev",
        "libglib2.0-dev",
        "libpixman-1-dev",
        "libfdt-dev",
        "zlib1g-dev",
        "libattr1-dev",
        "libcap-ng-dev",
        "seabios",
    ),
    product="bin/qemu-system-x86_64",
    recipe=_QEMU_OPTIONS,
    fetch=sources.Archive.source,
    source_package=True,
    make=_make_qemu,
)
LINUX = Component(
    "linux",
    needs=(
        "gcc",
        "libc6-dev",
        "make",
        "patch",
        "xz-utils",
        "flex",
        "bison",
        "bc",
        "libelf-dev",
        "libssl-dev",
    ),
    product="bzImage",
    recipe=("allnoconfig",),
    fetch=sources.Archive.packaged_source,
    source_package=False,
    make=partial(_make_linux, configuration=_PLAIN),
)
#: The same kernel with the checks that make it many times slower.
DEBUG_LINUX = replace(
    LINUX,
    name="linux-debug",
    configuration=_CHECKED,
    make=partial(_make_linux, configuration=_CHECKED),
    variant_of="linux",
    option="--debug",
)
#: Linux's own tests of its memory management.
SELFTESTS = replace(
    LINUX,
    name="linux-selftests",
    product=_SELFTESTS[-1],
    recipe=(_SELFTEST_FLAGS, *_SELFTESTS),
    configuration=(),
    make=_make_selftests,
    variant_of="linux",
    original=True,
    option="--selftests",
)
_COMPONENTS = (QEMU, LINUX)


def find(component: Component, source: Path | None = None) -> Path:
    """The directory of what was built.

    Args:
        component: Of what.
        source: The user's own trees, if they are to be used.

    Raises:
        FlatwalkError: If it was not built.
    """
    path = _place(component, source)
    if not (path / component.product).is_file():
        option = f" --source {source}" if source else ""
        if component.option:
            option += f" {component.option}"
        raise FlatwalkError(
            f"{component.name} is not built", where=str(path), remedy=f"run: flatwalk vm build{option}"
        )
    return path


def build(
    source: Path | None = None, *, jobs: int = 0, debug: bool = False, selftests: bool = False
) -> list[Built]:
    """Builds what is not built yet.

    Args:
        source: A directory with the user's own trees `qemu` or `linux`, to be built as they are.
        jobs: Compilers at once; 0 is one per core.
        debug: Whether to build the kernel with all of its checks, too.
        selftests: Whether to build Linux's own tests, too.

    Raises:
        FlatwalkError: If packages or sources are missing, or a build fails.
    """
    asked = {DEBUG_LINUX: debug, SELFTESTS: selftests}
    components = (*_COMPONENTS, *(component for component, wanted in asked.items() if wanted))
    chosen = [component for component in components if component.directory.is_dir()]
    if not chosen and source is None:
        raise FlatwalkError(
            "there is no series to build",
            where=str(_REPOSITORY),
            remedy="run this from a checkout of the repository, or give your own trees with --source DIR",
        )
    if source is not None:
        source = source.absolute()
        chosen = [component for component in components if (source / component.source_name).is_dir()]
        if not chosen:
            raise UsageError(
                f"{source} holds neither qemu nor linux", where="--source", remedy="give their parent"
            )
    return [Built(component.name, ensure(component, source, jobs=jobs)) for component in chosen]


def missing_packages() -> list[str]:
    """The Debian packages that `build` needs and that are not installed."""
    needed = dict.fromkeys(package for component in _COMPONENTS for package in component.needs)
    return sources.not_installed(list(needed))


def _place(component: Component, source: Path | None) -> Path:
    if source is None or not (source / component.source_name).is_dir():
        return cache.directory("vm") / f"{component.name}-{component.key()}"
    tree = hashlib.sha256(os.fsencode(source.absolute() / component.source_name)).hexdigest()[:16]
    return cache.directory("vm") / f"{component.name}-source-{tree}"


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
    if source is None and (place / component.product).is_file():
        return place
    sources.check_installed(component.needs)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place.parent / f"{component.source_name}.lock"):
            if source is not None:
                _build_own(component, source / component.source_name, place, jobs)
            elif not (place / component.product).is_file():  # nobody else built it while we waited
                _build_series(component, place, jobs)
    except OSError as error:
        raise FlatwalkError(
            f"{component.name} cannot be built: {error.strerror}",
            where=str(error.filename or place.parent),
            remedy="free some space, or set XDG_CACHE_HOME to another place",
        ) from error
    return place


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Waits until nobody else builds the same; what a killed build left behind goes away."""
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
    """A directory that becomes `place` when it is whole."""
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
                    f"{component.name}: the archive has {chosen.version} instead of {base.version}; taking it"
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
    # The objects stay, so that the next build compiles only what changed.
    work = place.with_name(f"{place.name}-work")
    work.mkdir(exist_ok=True)
    with _whole(place) as out:
        component.make(tree, work, out, _steps(component, out.parent, jobs))
