"""Debian's source packages, fetched without changing the system's package configuration.

A private list holds the machine's own Debian entries, with their sources; apt keeps the indexes of
that list in our cache directory. Nothing under /etc or /var is written.
"""

from __future__ import annotations

import functools
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError
from flatwalk.vm import processes

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Debian's own keys, with which all its archives are signed.
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: What the machine's lists say about each index; apt leaves placeholders that it does not know unchanged.
_TARGET = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)"
_OWN_TREE = "or give your own source trees with --source DIR"


@dataclass(frozen=True)
class Base:
    """The version of a package that a series was made for: the one line of a `base` file."""

    package: str
    version: str

    @classmethod
    def read(cls, path: Path) -> Base:
        """Reads `PACKAGE VERSION`.

        Raises:
            FlatwalkError: If the file is missing or says something else.
        """
        try:
            package, version = path.read_text(encoding="utf-8").split()
        except OSError as error:
            raise FlatwalkError(
                f"the base of a patch series cannot be read: {error.strerror}",
                where=str(path),
                remedy="run this from a checkout of flatwalk's repository",
            ) from error
        except ValueError as error:
            raise FlatwalkError(
                "the base of a patch series is not one package and one version",
                where=str(path),
                remedy="write: PACKAGE VERSION",
            ) from error
        return cls(package, version)


def not_installed(packages: Sequence[str]) -> list[str]:
    """Those of some Debian packages that are not installed.

    Raises:
        FlatwalkError: If this is not a Debian system.
    """
    try:
        done = subprocess.run(
            ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}\n", *packages],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise FlatwalkError(
            "this is not a Debian system: dpkg-query is missing", remedy="use Debian 12"
        ) from error
    there = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("installed ")}
    return [package for package in packages if package not in there]


def check_installed(packages: Sequence[str]) -> None:
    """Checks that Debian packages are installed.

    Raises:
        FlatwalkError: If some are missing; says how to install them.
    """
    missing = " ".join(not_installed(packages))
    if missing:
        raise FlatwalkError(
            f"packages needed to build are missing: {missing}",
            remedy=f"as root: apt-get install --no-install-recommends {missing}",
        )


class Archive:
    """Debian's archive, as the machine's own package lists reach it.

    Args:
        directory: For our use only; holds the indexes and the private configuration.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._configuration = directory / "apt.conf"

    def _prepare(self) -> None:
        """Writes the private configuration, from what the machine's own lists say now."""
        entries = _entries()
        options = f"[signed-by={KEYRING}] " if KEYRING.is_file() else ""
        lists = self._directory / "sources.list"
        for inner in ("lists/partial", "cache/archives/partial"):
            (self._directory / inner).mkdir(parents=True, exist_ok=True)
        lists.write_text(
            "".join(f"{kind} {options}{entry}\n" for entry in entries for kind in ("deb", "deb-src")),
            encoding="utf-8",
        )
        # The machine's hooks after an update (caches of software centres) must not run here.
        self._configuration.write_text(
            f'Dir::Etc::sourcelist "{lists}";\n'
            f'Dir::Etc::sourceparts "/dev/null";\n'
            f'Dir::State::lists "{self._directory}/lists";\n'
            f'Dir::Cache "{self._directory}/cache";\n'
            'APT::Sandbox::User "";\n'
            "#clear APT::Update::Pre-Invoke;\n"
            "#clear APT::Update::Post-Invoke;\n"
            "#clear APT::Update::Post-Invoke-Success;\n",
            encoding="utf-8",
        )

    @functools.cached_property
    def _updated(self) -> bool:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._prepare()
        self._apt("apt-get", "update", "--quiet", "--error-on=any")
        return True

    def _apt(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        try:
            done = processes.run([program, "--config-file", str(self._configuration), *arguments], cwd=cwd)
        except FileNotFoundError as error:
            raise FlatwalkError(f"{program} is missing", remedy=f"use Debian 12, {_OWN_TREE}") from error
        if done.returncode:
            raise FlatwalkError(
                f"{program} {arguments[0]} failed:\n{done.stderr.strip()}",
                remedy=f"check the network and the machine's package lists (/etc/apt), {_OWN_TREE}",
            )
        return done.stdout

    def choose(self, base: Base, *, source: bool) -> Base:
        """The version to build on: the base's own, or else the newest that the archive has.

        Args:
            base: What the series was made for.
            source: Whether it is a source package.

        Raises:
            FlatwalkError: If the archive has no version of the package.
        """
        assert self._updated
        command = ["showsrc", "--only-source"] if source else ["show", "--all-versions"]
        try:
            stanzas = self._apt("apt-cache", *command, base.package)
        except FlatwalkError:
            stanzas = ""
        versions = [line.split()[1] for line in stanzas.splitlines() if line.startswith("Version: ")]
        if base.version in versions:
            return base
        if not versions:
            raise FlatwalkError(
                f"the machine's package lists offer no {base.package}",
                where="/etc/apt",
                remedy=f"add Debian 12's archive to them, {_OWN_TREE}",
            )
        return Base(base.package, max(versions, key=functools.cmp_to_key(_compare)))

    def source(self, chosen: Base, into: Path) -> Path:
        """Downloads a source package and unpacks it, with Debian's own patches applied.

        Args:
            chosen: What `choose` gave.
            into: An empty directory.

        Returns:
            The tree.
        """
        assert self._updated
        version = f"{chosen.package}={chosen.version}"
        self._apt("apt-get", "source", "--quiet", "--download-only", version, cwd=into)
        (description,) = into.glob("*.dsc")
        tree = into / "tree"
        # apt has compared every file's hash with the signed index.
        _run("dpkg-source", "--no-check", "--extract", str(description), str(tree))
        return tree

    def packaged_source(self, chosen: Base, into: Path) -> Path:
        """Downloads a binary package that carries a source tree in /usr/src, and unpacks that.

        Args:
            chosen: What `choose` gave.
            into: An empty directory.

        Returns:
            The tree.
        """
        assert self._updated
        self._apt("apt-get", "download", "--quiet", f"{chosen.package}={chosen.version}", cwd=into)
        (package,) = into.glob("*.deb")
        _run("dpkg-deb", "--extract", str(package), str(into / "package"))
        tree = into / "tree"
        tree.mkdir()
        archive = into / "package" / "usr" / "src" / f"{chosen.package}.tar.xz"
        _run("tar", "--extract", "--file", str(archive), "--directory", str(tree), "--strip-components=1")
        return tree


def _entries() -> list[str]:
    """`URI SUITE COMPONENT` of the machine's own Debian entries.

    Raises:
        FlatwalkError: If there are none.
    """
    release = _run("sh", "-c", '. /etc/os-release && echo "${VERSION_CODENAME-}"').strip()
    suites = {release, f"{release}-updates", f"{release}-security"}
    listed = _run("apt-get", "indextargets", "--format", _TARGET, "Created-By: Packages")
    entries = []
    for line in listed.splitlines():
        uri, suite, component, origin = line.split("|")
        if suite in suites and component == "main" and origin in ("Debian", "$(ORIGIN)", ""):
            entries.append(f"{uri} {suite} {component}")
    if not entries:
        raise FlatwalkError(
            "the machine's package lists have no Debian archive",
            where="/etc/apt",
            remedy=f"use Debian 12, {_OWN_TREE}",
        )
    return list(dict.fromkeys(entries))


def _run(program: str, *arguments: str) -> str:
    try:
        done = processes.run([program, *arguments])
    except FileNotFoundError as error:
        raise FlatwalkError(f"{program} is missing", remedy=f"use Debian 12, {_OWN_TREE}") from error
    if done.returncode:
        raise FlatwalkError(
            f"{program} failed:\n{done.stderr.strip()}",
            where=" ".join(arguments),
            remedy="free some disk space, and try again",
        )
    return done.stdout


def _compare(a: str, b: str) -> int:
    """Orders two Debian versions."""
    if a == b:
        return 0
    less = subprocess.run(["dpkg", "--compare-versions", a, "lt", b], check=False).returncode == 0
    return -1 if less else 1


def apply(series: Sequence[Path], tree: Path, chosen: Base, base: Base) -> None:
    """Applies a patch series to a tree, all of it and without fuzz.

    Args:
        series: The patches, in order.
        tree: Where to.
        chosen: What the tree is.
        base: What the series was made for.

    Raises:
        FlatwalkError: If a patch does not apply.
    """
    for patch in series:
        done = subprocess.run(
            ["patch", "--strip=1", "--force", "--fuzz=0", "--no-backup-if-mismatch", f"--input={patch}"],
            cwd=tree,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise FlatwalkError(
                f"a patch does not apply to {chosen.package} {chosen.version}:\n{done.stdout.strip()}",
                where=str(patch),
                remedy=f"it was made for {base.version}: make that available to apt, {_OWN_TREE}",
            )
