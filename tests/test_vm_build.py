"""`flatwalk vm build`: what is built when, and what is left when it fails.

That it builds QEMU is seen in test_flat_page_tables.py, which needs one.
"""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from flatwalk.cache import directory
from flatwalk.errors import FlatwalkError
from flatwalk.terminal import output
from flatwalk.vm import build, components, sources

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flatwalk.vm.components import Component
    from flatwalk.vm.steps import Steps
    from tests.conftest import Result

PATCH = """\
--- a/file
+++ b/file
@@ -1,3 +1,3 @@
 first
-second
+changed
 third
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return directory("vm")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one small series."""
    directory = tmp_path / "repository"
    (directory / "qemu" / "series").mkdir(parents=True)
    (directory / "qemu" / "base").write_text("small 1.0-1\n")
    (directory / "qemu" / "series" / "0001-change.patch").write_text(PATCH)
    monkeypatch.setattr(components, "REPOSITORY", directory)
    return directory


def fetch(archive: sources.Archive, chosen: sources.Base, into: Path) -> Path:
    """Stands in for a download."""
    del archive
    tree = into / "tree"
    tree.mkdir()
    (tree / "file").write_text("first\nsecond\nthird\n")
    (tree / "version").write_text(chosen.version)
    return tree


def make(tree: Path, work: Path, out: Path, steps: Steps) -> None:
    """Stands in for a compiler."""
    steps.run("compiling", "cp", str(tree / "file"), "product", cwd=work, remedy="have cp")
    (work / "product").rename(out / "product")


@pytest.fixture
def component(cache: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Component:
    """Something small to build, from an archive that has the base's version."""
    del cache, repository
    monkeypatch.setattr(sources.Archive, "choose", lambda _self, base, **_: base)
    return replace(components.QEMU, needs=("dpkg",), product="product", fetch=fetch, make=make)


def left(cache: Path) -> set[str]:
    """What is in the cache, but locks."""
    return {path.name for path in cache.iterdir() if path.suffix != ".lock"}


def test_a_build_applies_the_series_and_says_what_it_was_made_of(component: Component) -> None:
    place = build.ensure(component)
    assert (place / "product").read_text() == "first\nchanged\nthird\n"
    assert (place / "base").read_text() == "small 1.0-1\n"
    assert left(place.parent) == {place.name}
    assert build.find(component) == place


def test_a_second_build_runs_nothing(component: Component, monkeypatch: pytest.MonkeyPatch) -> None:
    place = build.ensure(component)
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert build.ensure(component) == place


def test_whatever_goes_in_makes_another_build(component: Component, repository: Path) -> None:
    keys = {component.key()}
    series = repository / "qemu" / "series"
    (series / "0002-more.patch").write_text("")
    keys.add(component.key())
    (series / "0002-more.patch").write_text("x")
    keys.add(component.key())
    (repository / "qemu" / "config").write_text("CONFIG_X=y\n")
    keys.add(component.key())
    (repository / "qemu" / "base").write_text("small 1.0-2\n")
    keys.add(component.key())
    keys.add(replace(component, recipe=("other",)).key())
    assert len(keys) == 6


@pytest.mark.parametrize(
    "ending", [KeyboardInterrupt, FlatwalkError("no"), OSError(28, "No space left on device")]
)
def test_a_build_that_ends_early_leaves_nothing(
    component: Component, cache: Path, ending: type[BaseException] | BaseException
) -> None:
    def stopped(tree: Path, work: Path, out: Path, steps: Steps) -> None:
        make(tree, work, out, steps)
        raise ending

    with pytest.raises((KeyboardInterrupt, FlatwalkError)):
        build.ensure(replace(component, make=stopped))
    assert left(cache) == set()
    with pytest.raises(FlatwalkError, match="qemu is not built") as error:
        build.find(component)
    assert "flatwalk vm build" in str(error.value)


def test_an_interrupted_build_ends_its_compilers_and_leaves_nothing(
    component: Component, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)

    def endless(tree: Path, work: Path, out: Path, steps: Steps) -> None:
        del tree, out
        # A build tool with a compiler that never ends, and holds the pipe open.
        script = f"exec 3>{held}; sleep 100000 & echo started; wait"
        steps.run("compiling", "sh", "-c", script, cwd=work, remedy="")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output.Progress, "__call__", interrupt)
    # Reads until the last who holds the pipe has ended.
    thread = threading.Thread(target=held.read_text, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        build.ensure(replace(component, make=endless))
    thread.join(60)
    assert not thread.is_alive()
    assert left(cache) == set()


def test_what_a_killed_build_left_goes_away(component: Component, cache: Path) -> None:
    (cache / ".qemu-killed" / "work").mkdir(parents=True)
    place = build.ensure(component)
    assert left(cache) == {place.name}


def test_a_command_that_fails_is_shown_and_its_log_kept(component: Component, cache: Path) -> None:
    def failing(tree: Path, work: Path, out: Path, steps: Steps) -> None:
        del tree, out
        script = "seq 100; echo the reason; exit 3"
        steps.run("compiling", "sh", "-c", script, cwd=work, remedy="fix it")

    with pytest.raises(FlatwalkError, match="qemu: compiling failed") as error:
        build.ensure(replace(component, make=failing))
    assert "the reason" in error.value.what
    assert "\n50\n" not in error.value.what
    assert "\n50\n" in (cache / "qemu-failed.log").read_text()
    assert error.value.remedy == "fix it"


def test_missing_packages_are_named_with_the_command_that_installs_them(
    component: Component,
) -> None:
    with pytest.raises(FlatwalkError, match="flatwalk-no-such-package") as error:
        build.ensure(replace(component, needs=("dpkg", "flatwalk-no-such-package")))
    assert error.value.remedy is not None
    assert error.value.remedy.endswith("apt-get install --no-install-recommends flatwalk-no-such-package")


def test_packages_of_all_that_is_built_are_looked_for_first(
    component: Component, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(component, product="other", needs=("flatwalk-no-such-package",))
    monkeypatch.setattr(components, "ALWAYS", (component, other))
    with pytest.raises(FlatwalkError, match="flatwalk-no-such-package"):
        build.build()
    assert not cache.exists()


def test_a_patch_that_does_not_apply_is_named_with_the_version_it_was_made_for(
    component: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newer(archive: sources.Archive, chosen: sources.Base, into: Path) -> Path:
        tree = fetch(archive, chosen, into)
        (tree / "file").write_text("first\nother\nthird\n")
        return tree

    monkeypatch.setattr(sources.Archive, "choose", lambda *_, **__: sources.Base("small", "2.0-1"))
    with pytest.raises(FlatwalkError, match=r"does not apply to small 2\.0-1") as error:
        build.ensure(replace(component, fetch=newer))
    assert error.value.where is not None
    assert error.value.where.endswith("0001-change.patch")
    assert "1.0-1" in str(error.value.remedy)


@pytest.mark.usefixtures("cache")
def test_the_kernel_with_all_checks_is_another_build_of_the_same_series(tmp_path: Path) -> None:
    plain, debug = components.LINUX, components.DEBUG_LINUX
    assert (debug.series, debug.base, debug.directory) == (plain.series, plain.base, plain.directory)
    assert debug.key() != plain.key()
    with pytest.raises(FlatwalkError, match="linux-debug is not built") as error:
        build.find(debug, tmp_path)
    assert error.value.remedy == f"run: flatwalk vm build --source {tmp_path} --debug"


def test_a_later_fragment_of_a_configuration_takes_settings_back(tmp_path: Path) -> None:
    first, second = tmp_path / "config", tmp_path / "config.other"
    first.write_text("# Words.\nCONFIG_A=y\nCONFIG_B=y\n")
    second.write_text("CONFIG_B=n\nCONFIG_C=3\n")
    assert components.settings_of([first]) == ["CONFIG_A=y", "CONFIG_B=y"]
    assert components.settings_of([first, second]) == ["CONFIG_A=y", "CONFIG_B=n", "CONFIG_C=3"]


def test_the_kernel_without_checks_takes_back_what_the_usual_one_has() -> None:
    usual, unchecked = (
        (components.LINUX.directory / name).read_text() for name in ("config", "config.unchecked")
    )
    for line in unchecked.splitlines():
        if line.startswith("CONFIG_"):
            assert f"{line.removesuffix('=n')}=y" in usual.splitlines()


@pytest.mark.usefixtures("cache")
def test_the_kernel_with_kvm_leaves_the_usual_one_as_it_is() -> None:
    plain, nested = components.LINUX, components.NESTED_LINUX
    assert nested.series[: len(plain.series)] == plain.series
    assert all(path.parent.name == "nested" for path in nested.series[len(plain.series) :])
    assert len(nested.series) > len(plain.series)
    assert nested.key() != plain.key()
    with pytest.raises(FlatwalkError, match="linux-nested is not built") as error:
        build.find(nested)
    assert error.value.remedy == "run: flatwalk vm build --nested"


def test_own_trees_are_built_as_they_are_and_again_each_time(component: Component, tmp_path: Path) -> None:
    tree = tmp_path / "mine" / "qemu"
    tree.mkdir(parents=True)
    for text in ("one", "two"):
        (tree / "file").write_text(text)
        place = build.ensure(component, tmp_path / "mine")
        assert (place / "product").read_text() == text
        assert build.find(component, tmp_path / "mine") == place


def test_a_directory_without_trees_is_refused(call: Callable[..., Result], tmp_path: Path) -> None:
    result = call("vm", "build", "--source", str(tmp_path))
    assert result.code == 2
    assert "holds neither qemu nor linux" in result.err


def test_where_there_is_no_series_nothing_is_called_built(
    call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(components, "REPOSITORY", tmp_path)
    result = call("vm", "build")
    assert result.code == 1
    assert "there is no series to build" in result.err


def test_the_private_list_takes_the_machines_own_debian_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = """\
http://mirror/debian/|bookworm|main|Debian
http://mirror/debian/|bookworm|main|Debian
http://mirror/debian/|bookworm|contrib|Debian
http://mirror/debian/|bookworm-updates|main|$(ORIGIN)
http://mirror/debian-security/|bookworm-security|main|Debian
http://elsewhere/|bookworm|main|Elsewhere
http://elsewhere/|nodistro|main|$(ORIGIN)
"""
    answers = {"sh": "bookworm\n", "apt-get": listed}
    monkeypatch.setattr(sources, "_run", lambda program, *_: answers[program])
    assert sources._entries() == [  # noqa: SLF001
        "http://mirror/debian/ bookworm main",
        "http://mirror/debian/ bookworm-updates main",
        "http://mirror/debian-security/ bookworm-security main",
    ]
    answers["apt-get"] = "http://elsewhere/|nodistro|main|$(ORIGIN)\n"
    with pytest.raises(FlatwalkError, match="no Debian archive"):
        sources._entries()  # noqa: SLF001


@pytest.mark.parametrize(("text", "what"), [("qemu\n", "not one package"), (None, "cannot be read")])
def test_a_base_that_is_none_is_refused(tmp_path: Path, text: str | None, what: str) -> None:
    if text is not None:
        (tmp_path / "base").write_text(text)
    with pytest.raises(FlatwalkError, match=what):
        sources.Base.read(tmp_path / "base")


def test_the_archives_newest_version_stands_in_for_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = sources.Archive(tmp_path)
    stanzas = "Package: x\nVersion: 1:7.2-7+deb12u9\n\nPackage: x\nVersion: 1:7.2-7+deb12u18\n"
    monkeypatch.setattr(sources, "_entries", lambda: ["http://mirror/debian/ bookworm main"])
    monkeypatch.setattr(sources.Archive, "_apt", lambda *_, **__: stanzas)
    for wanted, given in (("1:7.2-7+deb12u9", "1:7.2-7+deb12u9"), ("1:7.2-7+deb12u5", "1:7.2-7+deb12u18")):
        assert archive.choose(sources.Base("x", wanted), source=True).version == given
    stanzas = ""
    with pytest.raises(FlatwalkError, match="offer no x"):
        archive.choose(sources.Base("x", "1"), source=True)
