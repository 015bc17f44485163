"""Shared fixtures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import hypothesis
import pytest

from flatwalk import cli, engine
from flatwalk.vm import build, components
from tests import fake, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


# A shell ignores Ctrl-C for what it starts in the background, and nohup ignores SIGHUP; commands that tests
# signal would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# The same examples each time, however long they take.
hypothesis.settings.register_profile(
    "repeated", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("repeated")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Guests begin first, then the files with slow tests: what takes longest is not left for the end.

    The first guests' tests build QEMU and Linux, too.
    """
    for item in items:
        if processes.boots_guests(item.path.name):
            item.add_marker(pytest.mark.timeout(3000))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (not processes.boots_guests(item.path.name), item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """With `-n`: which tests stay together."""
    return processes.scheduler(config, log)


@pytest.fixture(scope="session")
def vm() -> None:
    """Builds QEMU and Linux with the series, where they are not built yet."""
    build.ensure(components.QEMU)
    build.ensure(components.LINUX)


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> fake.Engine:
    """Puts an engine with chosen answers in the place of the real one."""
    stand_in = fake.Engine()
    monkeypatch.setattr(engine, "_module", lambda: stand_in)
    return stand_in


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Result]:
    """Runs the command line in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["flatwalk", *arguments])
        code: int | str | None = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def flatwalk(tmp_path: Path) -> Callable[..., Result]:
    """Runs the command line as a program with the real engine, in an empty directory, in pipes."""

    def run(*arguments: str | Path, cwd: Path | None = None, timeout: float = 1800) -> Result:
        done = subprocess.run(
            [sys.executable, "-I", "-m", "flatwalk", *map(str, arguments)],
            cwd=cwd or tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=os.environ | {"COLUMNS": "80"},
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a file system of a size, as `64k`, and returns where it is; one for each test."""
    if os.geteuid() != 0:
        pytest.skip("needs a file system of its own")
    small = tmp_path / "small"

    def mount(size: str) -> Path:
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(small)], check=True)
        return small

    yield mount
    if small.is_mount():
        subprocess.run(["umount", str(small)], check=True)
