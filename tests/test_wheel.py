"""The wheel that pip builds, installed where nothing else of the repository is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from scripts import container

from flatwalk.reference import man
from tests import checkout
from tests.checkout import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Compiled fast rather than to be fast.
QUICK = {
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "0",
    "CARGO_PROFILE_RELEASE_DEBUG": "0",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # From a copy: the build puts its recorder next to the sources, where other tests have theirs.
    source = tmp_path_factory.mktemp("source")
    for path in checkout.files():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, source / path)  # with its time, so that cargo knows what it has compiled
    directory = tmp_path_factory.mktemp("wheel")
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    # Without a network: what builds it is here, in the version that it asks for.
    options = ["--no-build-isolation", "--check-build-dependencies", "--no-deps"]
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    subprocess.run(
        [sys.executable, "-I", "-m", "pip", "wheel", *options, "--wheel-dir", str(directory), str(source)],
        env=os.environ | QUICK | {"CARGO_TARGET_DIR": str(target), "PATH": path},
        check=True,
    )
    (made,) = directory.iterdir()
    return made


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the wheel's command line; what it depends on is taken from this environment."""
    place = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-I", "-m", "pip", "install", "--no-deps", "--target", str(place), str(wheel)],
        check=True,
    )
    begin = f"import sys; sys.path.insert(0, {str(place)!r}); from flatwalk.cli import main; main()"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment: dict[str, Any] = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-I", "-c", begin, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_container_has_the_packages_of_the_set_up() -> None:
    setup = (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8")
    needs = re.findall(r"^need have_(?:c_compiler|rust|python) (.+)$", setup, re.MULTILINE)
    containerfile = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", "")
    build, image = re.findall(r"install -y --no-install-recommends (.+?)&&", containerfile)
    assert set(build.split()) == {"ca-certificates", *" ".join(needs).split()}
    assert "apt_install qemu-user" in setup
    assert image.split() == ["python3", "qemu-user"]


def test_every_instruction_of_the_container_can_be_carried_out_without_an_engine() -> None:
    build, image = container.stages((ROOT / "Containerfile").read_text(encoding="utf-8"))
    assert build.base == image.base
    assert build.base.rpartition(":")[2].partition("-")[0] in container.RELEASES
    assert build.name == "build"
    assert [word for word, _ in build.steps] == ["RUN", "WORKDIR", "COPY", "RUN"]
    assert [word for word, _ in image.steps] == ["RUN", "COPY", "ENV", "WORKDIR", "ENTRYPOINT", "CMD"]
    made = container.Image(ROOT)
    done = [made.do(word, rest) for word, rest in image.steps if word in {"ENV", "ENTRYPOINT", "CMD"}]
    assert done == [True] * 3
    assert made.environment["PATH"].startswith("/opt/flatwalk/bin:/usr/local/sbin:")
    assert made.entry == ["flatwalk"]
    assert not made.do("RUN", "true"), "what changes files is done once"
    assert build.steps[3][1].count("&&") == 2, "lines that go on are one"


@pytest.mark.slow
def test_the_wheel_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (page,) = (name for name in names if name.endswith("share/man/man1/flatwalk.1"))
        assert archive.read(page).decode() == man.PATH.read_text(encoding="utf-8")
    inside = {name.removeprefix("flatwalk/libexec/") for name in names if "/libexec/" in name}
    # Without `processor`: a wheel is for any.
    assert inside == {"flatwalk-collect", "flatwalk-host", "flatwalk.h", "libflatwalk_recorder.so"}
    shipped = {str(path.relative_to(ROOT / "python")) for path in (ROOT / "python").rglob("*.toml")}
    assert shipped <= names


@pytest.mark.slow
def test_the_wheel_records_compares_and_measures(
    installed: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    recorded = installed("record", "--exhaustive", "-o", "true.fwt", "--", "true")
    assert recorded.returncode == 0, recorded.stderr
    compared = installed("compare", "--trace", "true.fwt", "--schemes", "radix4", "--report", "r.html")
    assert compared.returncode == 0, compared.stderr
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    measured = installed("host", "gups", "--table", "1MiB", "--runs", "2", "--at-most", "2", "--no-counters")
    assert measured.returncode == 0, measured.stderr
