"""What is built: QEMU, Linux in six configurations, and Linux's own tests; how, and from what."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError
from flatwalk.vm import selftests, sources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flatwalk.vm.steps import Steps

REPOSITORY = Path(__file__).resolve().parents[3]
#: Where QEMU assumes it is installed; it finds its firmware relative to its program.
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
#: The file that configures a component.
_PLAIN = ("config",)
#: One of memory management's ends with this status without including kselftest.h, which defines it.
_SELFTEST_FLAGS = "EXTRA_CFLAGS=-DKSFT_SKIP=4"


@dataclass(frozen=True)
class Component:
    """Something that is built: what it needs, and how it is built."""

    name: str
    #: Debian packages to build it.
    needs: tuple[str, ...]
    #: The file without which it is not built, in its directory.
    product: str
    #: All else that decides how it is built, besides the series, the base and the configuration.
    recipe: tuple[str, ...]
    #: Downloads and unpacks into an empty directory.
    fetch: Callable[[sources.Archive, sources.Base, Path], Path]
    #: Whether its base is a source package.
    source_package: bool
    #: Builds TREE in WORK and puts the results in the empty OUT.
    make: Callable[[Path, Path, Path, Steps], None]
    #: Files in its directory that configure it.
    configuration: tuple[str, ...] = _PLAIN
    #: Directories of patches there, one after the other.
    patches: tuple[str, ...] = ("series",)
    #: Whose source it is built from, if not its own.
    variant_of: str = ""
    #: Whether its source is built unchanged, without our series.
    original: bool = False
    #: The option of `vm build` that also builds it.
    option: str = ""

    @property
    def source_name(self) -> str:
        """The name of its series' directory, and of a user's own tree of it."""
        return self.variant_of or self.name

    @property
    def directory(self) -> Path:
        """Where its series and base are."""
        return REPOSITORY / self.source_name

    @property
    def base(self) -> sources.Base:
        """The version that its series was made for."""
        return sources.Base.read(self.directory / "base")

    @property
    def series(self) -> list[Path]:
        """Its patches, in order."""
        if self.original:
            return []
        return [path for name in self.patches for path in sorted((self.directory / name).glob("*.patch"))]

    def key(self) -> str:
        """Identifies everything that goes into it: another series or configuration has another key."""
        digest = hashlib.sha256()
        for text in (*self.recipe, self.base.package, self.base.version):
            digest.update(text.encode() + b"\0")
        for path in (*self.series, *(self.directory / name for name in self.configuration)):
            if path.is_file():
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]


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


def settings_of(fragments: Sequence[Path]) -> list[str]:
    """The settings of fragments, each as the last that has it says."""
    lines = [line for path in fragments for line in path.read_text(encoding="utf-8").splitlines()]
    return list({line.partition("=")[0]: line for line in lines if line.startswith("CONFIG_")}.values())


def _make_linux(tree: Path, work: Path, out: Path, steps: Steps, configuration: Sequence[str]) -> None:
    remedy = "see the message above; packages that Linux misses are installed with apt-get"
    fragments = [REPOSITORY / "linux" / name for name in configuration]
    settings = settings_of(fragments)
    whole = work / "allconfig"
    whole.write_text("\n".join([*settings, ""]), encoding="utf-8")
    make = ("make", "-C", str(tree), f"O={work}", f"-j{steps.jobs}")
    steps.run("configuring", *make, f"KCONFIG_ALLCONFIG={whole}", "allnoconfig", cwd=work, remedy=remedy)
    got = set((work / ".config").read_text(encoding="utf-8").splitlines())
    made = {line.partition("=")[0] for line in got}

    def is_taken(setting: str) -> bool:
        symbol, _, value = setting.partition("=")
        return symbol not in made if value == "n" else setting in got

    ignored = [setting for setting in settings if not is_taken(setting)]
    if ignored:
        raise FlatwalkError(
            f"Linux does not accept these settings: {', '.join(ignored)}",
            where=", ".join(map(str, fragments)),
            remedy="also name what they depend on",
        )
    steps.run("compiling", *make, "bzImage", cwd=work, remedy=remedy)
    for product in ("arch/x86/boot/bzImage", "vmlinux", "System.map"):
        shutil.copy2(work / product, out)
    shutil.copy2(work / ".config", out / "config")


def _make_selftests(tree: Path, work: Path, out: Path, steps: Steps) -> None:
    remedy = "see the message above"
    make = ("make", f"-j{steps.jobs}")
    steps.run("headers", *make, "-C", str(tree), f"O={work}", "headers", cwd=work, remedy=remedy)

    for directory, programs in selftests.PROGRAMS.items():
        built = work / "selftests" / directory
        built.mkdir(parents=True)
        steps.run(
            f"selftests of {directory}",
            *(*make, "-C", str(tree / "tools" / "testing" / "selftests" / directory)),
            *(f"OUTPUT={built}", f"KHDR_INCLUDES=-isystem {work / 'usr' / 'include'}"),
            *([_SELFTEST_FLAGS] if directory == "mm" else []),
            *(str(built / program) for program in programs),
            cwd=work,
            remedy=remedy,
        )
        for program in programs:
            copied = out / directory / program
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built / program, copied)


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


def _kernel(variant: str, *, patches: tuple[str, ...] = ()) -> Component:
    """Another Linux: with what `linux/config.VARIANT` adds, and more directories of patches."""
    configuration = (*_PLAIN, f"config.{variant}")
    return replace(
        LINUX,
        name=f"linux-{variant}",
        configuration=configuration,
        patches=(*LINUX.patches, *patches),
        make=partial(_make_linux, configuration=configuration),
        variant_of="linux",
        option=f"--{variant}",
    )


#: The same kernel with the checks that make it many times slower.
DEBUG_LINUX = _kernel("debug")
#: The same kernel without checks, for what they cost, and hide.
UNCHECKED_LINUX = _kernel("unchecked")
#: The same kernel with KCSAN, which finds data races.
KCSAN_LINUX = _kernel("kcsan")
#: The kernel of a guest that has guests itself, with a KVM that flattens nested page tables. It is another
#: one, so that what is measured and tested without it stays what it is.
NESTED_LINUX = _kernel("nested", patches=("nested",))
#: A kernel that leaves out a guard of the series on demand. It is another one for the same reason.
MUTANTS_LINUX = _kernel("mutants", patches=("mutants",))
#: The kernels that a guest's own Linux may be, by what `Machine.kernel` calls them.
KERNELS = {
    "usual": LINUX,
    "unchecked": UNCHECKED_LINUX,
    "debug": DEBUG_LINUX,
    "kcsan": KCSAN_LINUX,
    "mutants": MUTANTS_LINUX,
    "nested": NESTED_LINUX,
}
#: Linux's own tests, those of KVM among them.
SELFTESTS = replace(
    LINUX,
    name="linux-selftests",
    product=f"kvm/{selftests.PROGRAMS['kvm'][-1]}",
    recipe=(
        _SELFTEST_FLAGS,
        *(f"{directory}/{name}" for directory, names in selftests.PROGRAMS.items() for name in names),
    ),
    configuration=(),
    make=_make_selftests,
    variant_of="linux",
    original=True,
    option="--selftests",
)
#: What `vm build` builds when nothing more is asked for.
ALWAYS = (QEMU, LINUX)
