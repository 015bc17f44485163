"""Programs of Debian recorded by name: what is said when they cannot be, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flatwalk import engine
from flatwalk.errors import FlatwalkError
from flatwalk.programs import catalogue, install
from flatwalk.programs.attend import Attendance, build_region
from flatwalk.programs.drivers import DRIVERS
from tests.running import PATIENCE_SECONDS, descendants, is_gone, wait_until, waited_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Result

    Call = Callable[..., Result]


def test_every_program_has_a_driver_and_every_driver_a_program() -> None:
    programs = [catalogue.load(name) for name in catalogue.names()]
    assert {program.driver for program in programs} == set(DRIVERS)
    for program in programs:
        assert program.packages
        assert program.commands
        assert program.instructions >= 1_000_000
        assert program.size_bytes >= 1 << 20


def test_list_shows_them(call: Call) -> None:
    assert "postgresql-mixed:256MiB" in call("list", "workloads").out
    listed = json.loads(call("list", "workloads", "--json").out)
    assert [item["name"] for item in listed if "record" in item] == catalogue.names()


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.setattr(catalogue.Program, "command", lambda _self, _name: None)
    monkeypatch.setattr(install, "_privileged", lambda: None)
    result = call("record", "--workload", "memcached")
    assert result.code == 1
    assert "memcached is not installed (memcached missing)" in result.err
    assert "as root: apt-get install memcached" in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workload", "oracle"], "there is no program 'oracle'"),
        (["--workload", "redis:lots"], "not understood"),
        (["--workload", "redis:1KiB"], "too little data"),
        (["--workload", "redis", "--limit", "0"], "records nothing"),
        (["--workload", "redis", "--limit", ""], "not understood"),
        (["--workload", "redis", "--skip", "5"], "determines itself what is recorded"),
        (["--workload", "redis", "--windows", ""], "determines itself what is recorded"),
        (["--workload", "redis", "--", "true"], "determines itself what is recorded"),
    ],
)
def test_refusals(call: Call, arguments: list[str], words: str) -> None:
    result = call("record", *arguments)
    assert result.code == 2
    assert words in result.err


@pytest.mark.parametrize("name", ["notes.txt", "/dev/null"])
def test_what_is_not_a_trace_is_refused_at_once(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(install, "ensure", lambda _program: pytest.fail("it begins"))
    (tmp_path / "notes.txt").write_text("mine")
    result = call("record", "--workload", "redis", "-o", name)
    assert result.code == 2
    assert "not a flatwalk trace; it is left as it is" in result.err
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_handlers_get_an_aligned_stack_and_old_ones_are_reported(tmp_path: Path) -> None:
    """What region.c does to sigaction, natively: handlers run, and a program sees its own again."""
    source = tmp_path / "handlers.c"
    source.write_text(
        """
        #include <signal.h>
        #include <stdint.h>
        #include <stdio.h>
        static volatile int seen;
        static void mine(int number) { long here; seen = number + (int)((uintptr_t)&here & 0); }
        int main(void) {
            struct sigaction action = {.sa_handler = mine}, old;
            sigaction(SIGUSR1, &action, 0);
            raise(SIGUSR1);
            sigaction(SIGUSR1, 0, &old);
            raise(SIGPROF);  /* the region's: must not end the program */
            printf("%d %d\\n", seen == SIGUSR1, old.sa_handler == mine);
            return 0;
        }
        """
    )
    program = tmp_path / "handlers"
    subprocess.run(["cc", "-o", program, source], check=True)
    done = subprocess.run(
        [program],
        env={"LD_PRELOAD": str(build_region(tmp_path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1 1\n"


def test_waiting_ends_with_the_program(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\nlast words\n\n")
    program = subprocess.Popen(["true"])
    program.wait()
    with pytest.raises(FlatwalkError, match="the program ended before it rained: last words"):
        Attendance(program.pid, log).wait_until("it rained", lambda: False)


def installed(name: str) -> None:
    """Installs a program, or skips the test where that cannot be, as without a network."""
    try:
        install.ensure(catalogue.load(name))
    except FlatwalkError as error:
        pytest.skip(str(error))


def _left_running(directory: Path) -> list[bytes]:
    """Command lines of processes that name something in a directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if os.fsencode(directory) in line:
            found.append(line)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["redis", "liblinear"])
def test_the_run_phase_is_recorded_and_nothing_is_left(
    flatwalk: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    installed(name)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    result = flatwalk("record", "--workload", f"{name}:1MiB", "--limit", "1M", "-o", "trace.fwt")
    assert result.code == 0, result.err
    info = json.loads(flatwalk("trace", "info", "--verify", "--json", "trace.fwt").out)
    assert 0.9e6 < info["instructions"] <= 1e6
    assert not info["ended_early"]
    assert list(scratch.iterdir()) == []
    assert _left_running(scratch) == []


@pytest.mark.slow
def test_an_interrupted_server_is_stopped(tmp_path: Path) -> None:
    installed("redis")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    line = [sys.executable, "-I", "-m", "flatwalk", "record", "--workload", "redis:64MiB", "-o", "trace.fwt"]
    command = subprocess.Popen(
        line, cwd=tmp_path, env=os.environ | {"TMPDIR": str(scratch)}, stderr=subprocess.PIPE, text=True
    )
    assert command.stderr is not None
    # It listens, and is being loaded.
    assert any(said.startswith("Loading") for said in command.stderr)
    command.send_signal(signal.SIGINT)
    assert command.wait(PATIENCE_SECONDS) == 130
    command.stderr.close()
    assert list(scratch.iterdir()) == []
    assert _left_running(scratch) == []
    assert not (tmp_path / "trace.fwt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_recording_of_a_server(tmp_path: Path, number: signal.Signals) -> None:
    """With the server, its client and the collector; what was recorded is kept."""
    installed("redis")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    line = ["record", "--workload", "redis:1MiB", "--limit", "1000G", "-o", "trace.fwt"]
    with waited_for(
        subprocess.Popen(
            [sys.executable, "-I", "-m", "flatwalk", *line],
            cwd=tmp_path,
            env=os.environ | {"TMPDIR": str(scratch)},
            stderr=subprocess.DEVNULL,
        )
    ) as command:
        started: set[int] = set()

        def is_recorded() -> bool:
            assert command.poll() is None
            started.update(descendants(command.pid))
            return any(path.stat().st_size > 100_000 for path in scratch.glob("*/*.part/*.part"))

        wait_until(is_recorded)
        command.send_signal(number)
        status = command.wait(PATIENCE_SECONDS)
        wait_until(lambda: all(map(is_gone, started)))
    assert _left_running(scratch) == []
    if number == signal.SIGKILL:
        assert status == -number
    else:
        assert status == 128 + number
        assert engine.trace_info(tmp_path / "trace.fwt", verify=True)["instructions"] > 1_000_000
        assert list(scratch.iterdir()) == []
