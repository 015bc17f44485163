"""Records real programs with QEMU, through the Python interface."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import flatwalk as fw
from flatwalk import engine
from flatwalk.errors import UsageError
from flatwalk.recorder import (
    Part,
    RecordError,
    Sample,
    collecting,
    find_qemu,
    find_recorder,
    record,
    session,
    tools,
)
from flatwalk.recorder.collector import Collector
from flatwalk.recorder.program import resolve
from tests.running import PATIENCE_SECONDS, descendants, waited_for

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

GUESTS = Path(__file__).parents[1] / "recorder" / "tests" / "guests"
BARE = [
    "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fno-pic", "-no-pie",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _recorder() -> None:
    find_qemu()
    find_recorder()


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.fwt"


def compiled(directory: Path, name: str, *flags: str) -> Path:
    program = directory / name
    subprocess.run(["gcc", "-O1", str(GUESTS / f"{name}.c"), *flags, "-o", str(program)], check=True)
    return program


@pytest.mark.skipif(
    shutil.which("valgrind") is None, reason="valgrind is not installed (as root: apt-get install valgrind)"
)
@pytest.mark.parametrize(("name", "flags"), [("loops", BARE), ("sorts", ["-static"])])
def test_a_static_program_agrees_with_valgrind(
    tmp_path: Path, output: Path, name: str, flags: list[str]
) -> None:
    program = compiled(tmp_path, name, *flags)
    result = record([str(program)], output)
    assert [trace.path for trace in result.traces] == [output]
    info = engine.trace_info(output, verify=True)
    assert info["instructions"] == result.instructions
    counted = subprocess.run(
        ["valgrind", "--tool=lackey", "--basic-counts=yes", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.status == counted.returncode
    found = re.search(r"guest instrs:\s+([\d,]+)", counted.stderr)
    assert found, counted.stderr
    assert result.instructions == pytest.approx(int(found[1].replace(",", "")), rel=0.01)
    assert output.stat().st_size < 1.5 * result.instructions


def test_a_python_program(output: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, int | None]] = []
    code = "import json; print(json.loads(json.dumps({'a': [1, 2]})))"
    result = record(
        [sys.executable, "-I", "-c", code],
        output,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert capfd.readouterr().out == "{'a': [1, 2]}\n"
    assert result.status == 0
    info = engine.trace_info(output)
    assert info["instructions"] == result.instructions > 10_000_000
    assert info["events"]["map"] > 10
    assert seen == sorted(seen)
    assert seen[-1] == (result.instructions, None)
    assert output.stat().st_size < 1.5 * result.instructions


def test_the_program_has_its_own_input_environment_and_status(tmp_path: Path, output: Path) -> None:
    script = tmp_path / "script"
    script.write_text('#! /bin/sh -e\nread line\necho "$0 $1 $line $COLOUR $LD_COLOUR" > result\nexit 3\n')
    script.chmod(0o755)
    helper = (
        "import sys; from pathlib import Path; from flatwalk.recorder import record\n"
        "env = {'PATH': '/usr/bin:/bin', 'COLOUR': 'red,blue', 'LD_COLOUR': 'green'}\n"
        "print(record(['./script', 'one two'], Path('out.fwt'), env=env).status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", helper],
        input="hello\n",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout == "3\n"
    assert (tmp_path / "result").read_text() == "./script one two hello red,blue green\n"
    assert engine.trace_info(output)["instructions"] > 10_000


@pytest.mark.parametrize(
    ("end", "status", "words"), [("exit 42", 42, "is 42"), ("kill -9 $$", 137, "SIGKILL")]
)
def test_the_command_hands_the_programs_status_on(tmp_path: Path, end: str, status: int, words: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "flatwalk",
            "record",
            "-o",
            "out.fwt",
            "--",
            "sh",
            "-c",
            f"echo result; {end}",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == status
    assert done.stdout == "result\n"
    assert "out.fwt: " in done.stderr
    assert words in done.stderr
    assert engine.trace_info(tmp_path / "out.fwt", verify=True)["instructions"] > 10_000


def test_children_and_programs_before_an_exec_have_files_of_their_own(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = record(["/bin/sh", "-c", "/bin/echo one >result; exec /bin/true"], output)
    assert result.status == 0
    names = [Path(trace.command[0]).name for trace in result.traces]
    assert names[0] == "true"
    assert sorted(names) == ["echo", "sh", "sh", "true"]
    files = {trace.path for trace in result.traces}
    assert len(files) == 4
    assert files == {output, *(tmp_path / "out.processes").iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == {"out.fwt", "out.processes", "result"}
    for trace in result.traces:
        info = engine.trace_info(trace.path, verify=True)
        assert info["instructions"] == trace.instructions
        assert info["name"].split()[0] == trace.command[0]
    without = record(["/bin/sh", "-c", "/bin/echo one >result; exec /bin/true"], output, follow_exec=False)
    assert {Path(trace.command[0]).name for trace in without.traces} == {"sh"}
    assert {trace.path for trace in without.traces} == {output, *(tmp_path / "out.processes").iterdir()}


def test_a_limit_ends_the_program(tmp_path: Path, output: Path) -> None:
    program = compiled(tmp_path, "endless", *BARE)
    seen: list[int | None] = []
    result = record(
        [str(program)], output, skip=1000, limit=2_000_000, progress=lambda _, total: seen.append(total)
    )
    assert result.status is None
    assert 1_999_000 <= result.instructions <= 2_000_000
    assert set(seen) == {2_000_000}
    assert "ended at the limit" in str(result)


def test_a_sample_says_how_much_of_the_run_it_is(tmp_path: Path, output: Path) -> None:
    program = compiled(tmp_path, "grows", *BARE)
    whole = record([str(program)], output)
    assert whole.traces[0].segments is None
    sample = Sample(windows=4, segment=10_000, seed=3)
    seen: list[int] = []
    result = record([str(program)], output, sample=sample, progress=lambda done, _: seen.append(done))
    [trace] = result.traces
    assert trace.executed == result.executed == whole.instructions == seen[-1]
    assert trace.segments is not None
    assert 4 <= trace.segments <= 8
    assert trace.instructions <= 80_500
    assert f"{trace.instructions:,} of {trace.executed:,} instructions in {trace.segments} seg" in str(result)
    info = engine.trace_info(output, verify=True)
    assert info["gap_instructions"] == trace.gap_instructions
    assert info["segment_instructions"] == 10_000
    assert info["gap_pages"]
    again = record([str(program)], output, sample=sample).traces[0]
    assert engine.trace_info(output)["hash"] == info["hash"]
    assert again.instructions == trace.instructions


def test_a_sample_has_the_page_faults_of_a_file_that_the_whole_run_has(tmp_path: Path, output: Path) -> None:
    """Linux maps the pages around one that a program reads, and the sample names them all."""
    program = compiled(tmp_path, "reads_file", "-static")
    file = tmp_path / "file"
    file.write_bytes(bytes(1024 * 4096))
    command = [str(program), str(file)]
    record(command, output)
    whole = fw.compare(trace=output, schemes="radix4", large_pages=0, exhaustive=True)
    counted = whole.runs[0]["os"]
    # Of 1024 pages each eighth is read, and 16 are mapped by a fault; the others are the program's own.
    assert 64 <= counted["faults"] < 64 + 40
    record(command, output, sample=Sample(windows=10, segment=3000, seed=1))
    sampled = fw.compare(trace=output, schemes="radix4", large_pages=0, window=1000, warmup=1000)
    [run] = sampled.runs
    share = run["instructions"] / whole.runs[0]["instructions"]
    # A window has few faults, in whole numbers, and many of their cycles.
    cycles = run["os"]["fault_cycles"]
    assert cycles is not None
    assert cycles / share == pytest.approx(counted["fault_cycles"], rel=0.1)


@pytest.mark.parametrize(
    ("windows", "segment", "seed"), [(0, 1000, 0), (1, 0, 0), (1, 999, 0), (1, 1000, -1)]
)
def test_impossible_samples_are_refused(windows: int, segment: int, seed: int) -> None:
    with pytest.raises(UsageError):
        Sample(windows, segment, seed)


def test_the_time_ends_the_program(tmp_path: Path, output: Path) -> None:
    program = compiled(tmp_path, "endless", *BARE)
    result = record([str(program)], output, sample=Sample(2, 100_000), seconds=3)
    assert result.status is None
    assert "time was over" in str(result)
    info = engine.trace_info(output, verify=True)
    assert not info["ended_early"]
    assert info["stopped"] == result.traces[0].stopped == "the run was stopped by --time 3"
    assert info["gap_instructions"] > 1_000_000
    assert info["instructions"] <= 4 * 100_200


@pytest.mark.parametrize(
    ("options", "sampled"),
    [
        ([], True),
        (["--exhaustive"], False),
        (["--limit", "1M"], False),
        (["--limit", "1M", "--seed", "1"], True),
        (["--skip", "1k"], True),
    ],
)
def test_what_is_sampled(tmp_path: Path, output: Path, options: list[str], *, sampled: bool) -> None:
    program = compiled(tmp_path, "grows", *BARE)
    subprocess.run(
        [sys.executable, "-P", "-m", "flatwalk", "record", *options, "-o", output, "--", program], check=True
    )
    info = engine.trace_info(output)
    assert ("segment_instructions" in info) == ("gap_pages" in info) == sampled


def test_places(tmp_path: Path, output: Path) -> None:
    program = compiled(tmp_path, "region", *BARE)
    marked = record([str(program)], output, start_at="marker").instructions
    inside = record([str(program)], output, start_at="inside").instructions
    whole = record([str(program)], output).instructions
    # The marker comes just before the first call of `inside`.
    assert 0 < inside <= marked < whole
    assert "stopped" not in engine.trace_info(output)
    stopped = record([str(program)], output, stop_at="inside")
    assert stopped.status is None
    assert engine.trace_info(output)["stopped"] == "the run was stopped by --stop-at inside"
    assert 0 < stopped.instructions < whole
    assert stopped.warnings == []
    with pytest.raises(RecordError, match="never reached nowhere"):
        record([str(program)], output, start_at="nowhere")


def test_recording_ends_at_the_programs_own_marker(tmp_path: Path, output: Path) -> None:
    program = compiled(tmp_path, "region", *BARE)
    first = record([str(program)], output, start_at="marker", stop_at="marker")
    assert first.status is None
    assert first.warnings == []
    info = engine.trace_info(output)
    assert info["stopped"] == "the run was stopped by --stop-at marker"
    # The program starts and stops twice.
    both = record([str(program)], output, start_at="marker")
    assert 0 < first.instructions < both.instructions
    # A stop while instructions are skipped is not one of what is recorded.
    late = record([str(program)], output, skip=both.instructions, stop_at="marker")
    assert late.status is None


@pytest.mark.parametrize(
    ("place", "words"),
    [("nowhere", "reached nowhere"), ("0x123", "reached 0x123"), ("marker", r"reached flatwalk_stop\(\)")],
)
def test_a_place_to_stop_at_that_is_never_reached_is_mentioned(
    tmp_path: Path, output: Path, place: str, words: str
) -> None:
    program = compiled(tmp_path, "loops", *BARE)
    result = record([str(program)], output, stop_at=place)
    assert result.status is not None
    [warning] = result.warnings
    assert re.search(rf"never {words}.*--stop-at", warning), warning


def test_where_recording_ends_as_it_begins_the_error_says_why(tmp_path: Path, output: Path) -> None:
    program = compiled(tmp_path, "region", *BARE)
    with pytest.raises(RecordError, match="reached inside as recording began") as caught:
        record([str(program)], output, start_at="inside", stop_at="inside")
    assert caught.value.where == "--stop-at"
    with pytest.raises(RecordError, match="first block of code is longer") as caught:
        record([str(program)], output, limit=1)
    assert caught.value.where == "--limit 1"


def test_a_crash_is_the_programs_own(tmp_path: Path, output: Path) -> None:
    program = compiled(tmp_path, "crash", *BARE)
    result = record([str(program)], output)
    assert result.status == -signal.SIGSEGV
    assert "SIGSEGV" in str(result)
    assert engine.trace_info(output, verify=True)["instructions"] > 4000


def started(
    helper: str, directory: Path, stderr: int | None = None, stdin: int | None = None
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """A program of Python's, in a group of its own, which a terminal sends Ctrl-C to.

    What a shell starts in the background has signals of the terminal ignored, these tests too. A recording
    waits for its program's end for as long as that takes.
    """
    usual = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "for one in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM): signal.signal(one, signal.SIG_DFL)\n"
        "from flatwalk.recorder import session\n"
        f"session.TERMINATION_SECONDS = session.FAILURE_SECONDS = {PATIENCE_SECONDS}.0\n"
    )
    return waited_for(
        subprocess.Popen(
            [sys.executable, "-P", "-c", usual + helper],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=directory,
            start_new_session=True,
        )
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_recording_keeps_what_it_has(tmp_path: Path, number: signal.Signals) -> None:
    program = compiled(tmp_path, "endless", *BARE)
    helper = (
        "import sys; from pathlib import Path; from flatwalk.recorder import record\n"
        f"result = record([{str(program)!r}], Path('out.fwt'))\n"
        "print(result.status, flush=True)\n"
    )
    with started(helper, tmp_path) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "go\n"
        if number in (signal.SIGINT, signal.SIGQUIT):
            os.killpg(running.pid, number)  # as a terminal does
        else:
            running.send_signal(number)
        assert running.stdout.readline() == f"{-number}\n"
    assert running.returncode == 0
    info = engine.trace_info(tmp_path / "out.fwt", verify=True)
    assert info["instructions"] > 600_000
    assert not info["ended_early"]
    by = "Ctrl-C" if number == signal.SIGINT else number.name
    assert info["stopped"] == f"the run was stopped by {by}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_dies_otherwise_while_it_is_ended_was_stopped(tmp_path: Path, number: signal.Signals) -> None:
    """As QEMU does, which may fail on the way out."""
    script = (
        f"import os, signal; signal.signal({int(number)}, lambda *_: os.abort()); print('go', flush=True)\n"
        "while True: pass"
    )
    helper = (
        "import sys; from pathlib import Path; from flatwalk.recorder import record\n"
        f"result = record([sys.executable, '-I', '-c', {script!r}], Path('out.fwt'))\n"
        "print(result.status, flush=True)\n"
    )
    with started(helper, tmp_path) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "go\n"
        if number == signal.SIGINT:
            os.killpg(running.pid, number)
        else:
            running.send_signal(number)
        assert running.stdout.readline() == f"{-signal.SIGABRT}\n"
    by = "Ctrl-C" if number == signal.SIGINT else number.name
    assert engine.trace_info(tmp_path / "out.fwt")["stopped"] == f"the run was stopped by {by}"


def test_a_later_crash_is_the_programs_own(tmp_path: Path) -> None:
    # Not a handler: Python calls it between two steps, and a signal just before a read would wait as long.
    script = (
        "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [2]); os.write(1, b'go\\n')\n"
        "signal.sigwait([2]); os.write(1, b'caught\\n'); os.read(0, 1); os.abort()"
    )
    helper = (
        "import sys; from pathlib import Path\n"
        "session.FAILURE_SECONDS = 0.0\n"
        f"result = session.record([sys.executable, '-I', '-c', {script!r}], Path('out.fwt'))\n"
        "print(result.status, result.traces[0].stopped, flush=True)\n"
    )
    their_input, ours = os.pipe()
    with started(helper, tmp_path, stdin=their_input) as running:
        os.close(their_input)
        assert running.stdout is not None
        assert running.stdout.readline() == "go\n"
        os.killpg(running.pid, signal.SIGINT)
        assert running.stdout.readline() == "caught\n"
        os.write(ours, b"\n")
        os.close(ours)
        assert running.stdout.readline() == f"{-signal.SIGABRT} None\n"


def test_a_program_may_go_on_after_sigquit(tmp_path: Path) -> None:
    """As a JVM does, which prints its stacks."""
    script = "trap 'echo caught' QUIT; echo go; read -r _; read -r _; exit 5"
    helper = (
        "from pathlib import Path; from flatwalk.recorder import record\n"
        f"result = record(['/bin/sh', '-c', {script!r}], Path('out.fwt'))\n"
        "print(result.status, result.traces[0].stopped, flush=True)\n"
    )
    their_input, ours = os.pipe()
    with started(helper, tmp_path, stdin=their_input) as running:
        os.close(their_input)
        assert running.stdout is not None
        assert running.stdout.readline() == "go\n"
        os.killpg(running.pid, signal.SIGQUIT)
        os.write(ours, b"\n")
        assert running.stdout.readline() == "caught\n"
        os.close(ours)
        assert running.stdout.readline() == "5 None\n"
    assert running.returncode == 0
    assert engine.trace_info(tmp_path / "out.fwt", verify=True)["instructions"] > 10_000


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collector that no program reports to; it ends when it is given a word."""
    collector = tmp_path / "collector"
    collector.write_text('#!/bin/sh\necho \'{"type": "ready"}\'\nread -r _\n')
    collector.chmod(0o755)
    monkeypatch.setattr(session, "find_recorder", lambda: (tmp_path, collector))
    return collector


#: What ends a recording, and how that ends where nothing was recorded.
ENDS = [
    (signal.SIGINT, KeyboardInterrupt),
    (signal.SIGTERM, SystemExit),
    (signal.SIGHUP, SystemExit),
]


@pytest.mark.parametrize(("number", "error"), ENDS)
def test_a_signal_before_the_program_starts(
    stand_in: Path,
    output: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    error: type[BaseException],
) -> None:
    monkeypatch.setattr(Collector, "wait_until_ready", lambda _: signal.raise_signal(number))
    monkeypatch.setattr("flatwalk.recorder.session._Session._start", lambda *_: pytest.fail("it starts"))
    with pytest.raises(error) as caught:
        record(["/bin/true"], output)
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 128 + number
    assert list(output.parent.iterdir()) == [stand_in]


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(("number", "error"), ENDS)
def test_a_signal_while_the_program_starts(
    output: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, error: type[BaseException]
) -> None:
    program: list[subprocess.Popen[bytes]] = []

    def start(*_: object) -> subprocess.Popen[bytes]:
        program.append(subprocess.Popen(["sleep", "600"]))
        signal.raise_signal(number)
        return program[0]

    monkeypatch.setattr("flatwalk.recorder.session._Session._start", start)
    with pytest.raises(error):
        record(["/bin/true"], output)
    assert program[0].returncode == -number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_end_leaves_a_complete_recording(
    output: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    finish = Collector.finish

    def finish_late(collector: Collector) -> list[dict[str, Any]]:
        signal.raise_signal(number)
        return finish(collector)

    monkeypatch.setattr(Collector, "finish", finish_late)
    result = record(["/bin/sh", "-c", "exit 3"], output)
    assert result.status == 3
    assert result.traces[0].stopped is None
    assert result.terminated == (0 if number == signal.SIGINT else number)
    assert engine.trace_info(output, verify=True)["instructions"] == result.instructions


def test_the_status_is_known_where_ends_of_children_are_ignored(output: Path) -> None:
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert record(["/bin/sh", "-c", "exit 3"], output).status == 3
        program = "import signal, sys; sys.exit(signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN)"
        assert record([sys.executable, "-I", "-c", program], output).status == 0
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, previous)


@pytest.mark.usefixtures("stand_in")
def test_sighup_stays_ignored(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under nohup."""
    seen = []

    def start(*_: object) -> subprocess.Popen[bytes]:
        seen.append(signal.getsignal(signal.SIGHUP))
        return subprocess.Popen(["true"])

    monkeypatch.setattr("flatwalk.recorder.session._Session._start", start)
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(RecordError, match="nothing was recorded"):
            record(["/bin/true"], output)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert seen == [signal.SIG_IGN]


def test_where_a_program_ran_unrecorded_the_error_says_why(
    stand_in: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.write_text(
        '#!/bin/sh\necho \'{"type": "ready"}\'\n'
        "read -r _\n"
        'echo \'{"type": "warning", "pid": 1, "message": "a process is not recorded: too many files"}\'\n'
    )
    for status in (0, 3):
        monkeypatch.setattr(
            "flatwalk.recorder.session._Session._start",
            lambda *_, end=status: subprocess.Popen(["sh", "-c", f"exit {end}"]),
        )
        with pytest.raises(RecordError, match="nothing was recorded; a process is not recorded: too many"):
            record(["/bin/true"], output)


def test_a_handler_that_is_not_pythons_is_left_alone(
    stand_in: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stand_in.exists()
    put, handlers = signal.signal, []

    def signal_as_of_c(number: int, handler: object) -> object:
        handlers.append(handler)
        previous = put(number, handler)  # type: ignore[arg-type]
        return None if number == signal.SIGINT else previous

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("flatwalk.recorder.session._Session._start", lambda *_: subprocess.Popen(["true"]))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(signal, "signal", signal_as_of_c)
            with pytest.raises(RecordError, match="nothing was recorded"):
                record(["/bin/true"], output)
    finally:
        put(signal.SIGINT, before)
    assert None not in handlers


@pytest.mark.parametrize("by", ["--time", "SIGTERM"])
def test_what_is_about_to_start_is_not_waited_for_once_all_is_to_end(
    stand_in: Path, output: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    # It ends with its input alone.
    stand_in.write_text('#!/bin/sh\necho \'{"type": "ready"}\'\nwhile read -r _; do :; done\n')
    passed = 0.0
    monkeypatch.setattr(session, "time", types.SimpleNamespace(monotonic=lambda: time.monotonic() + passed))
    monkeypatch.setattr(
        "flatwalk.recorder.session._Session._start", lambda *_: subprocess.Popen(["sleep", "600"])
    )

    def end_it(_done: int, _total: int | None) -> None:
        nonlocal passed
        if not passed:
            passed = 1000.0
            if by == "SIGTERM":
                signal.raise_signal(signal.SIGTERM)

    seconds = 500.0 if by == "--time" else None
    with pytest.raises(SystemExit if by == "SIGTERM" else RecordError) as caught:
        record(["/bin/true"], output, seconds=seconds, progress=end_it)
    if isinstance(caught.value, RecordError):
        assert caught.value.what == "the time was over before anything was recorded"
        assert caught.value.where == "--time"


@pytest.mark.parametrize(
    ("part", "remedy"), [({"skip": 10**15}, "skip fewer"), ({"start_at": "nowhere"}, "reaches nowhere")]
)
def test_a_time_that_ends_before_the_recorded_part_is_named(
    output: Path, monkeypatch: pytest.MonkeyPatch, part: dict[str, Any], remedy: str
) -> None:
    passed = 0.0
    monkeypatch.setattr(session, "time", types.SimpleNamespace(monotonic=lambda: time.monotonic() + passed))

    def end_it(_done: int, _total: int | None) -> None:
        nonlocal passed
        # The program has begun.
        passed = 1000.0 if list(output.with_name("out.fwt.part").glob("out.fwt*")) else 0.0

    with pytest.raises(RecordError, match="the time was over") as caught:
        record(["/bin/sleep", "600"], output, seconds=500.0, progress=end_it, **part)
    assert caught.value.where == "--time"
    assert remedy in str(caught.value.remedy)


@pytest.mark.parametrize("by", ["--time", "SIGTERM"])
def test_a_program_that_runs_without_qemu_is_ended(
    output: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    passed = 0.0
    monkeypatch.setattr(session, "time", types.SimpleNamespace(monotonic=lambda: time.monotonic() + passed))

    def end_it(_done: int, _total: int | None) -> None:
        nonlocal passed
        if passed:
            return
        names = [Path(f"/proc/{pid}/comm").read_text() for pid in descendants(os.getpid())]
        if "sleep\n" in names:
            passed = 1000.0
            if by == "SIGTERM":
                signal.raise_signal(signal.SIGTERM)

    seconds = 500.0 if by == "--time" else None
    shell = ["/bin/sh", "-c", "trap '' TERM; exec sleep 600"]
    result = record(shell, output, follow_exec=False, seconds=seconds, progress=end_it)
    assert passed
    assert result.timed_out == (by == "--time")
    assert result.status == (None if by == "--time" else -signal.SIGKILL)
    assert bool(result.terminated) == (by == "SIGTERM")
    # What was recorded had ended before.
    assert [(trace.reason, trace.stopped) for trace in result.traces] == [("exec", None)]


def test_what_had_ended_before_was_not_stopped(tmp_path: Path) -> None:
    program, short = compiled(tmp_path, "endless", *BARE), compiled(tmp_path, "loops", *BARE)
    helper = (
        "from pathlib import Path; from flatwalk.recorder import record\n"
        f"result = record(['/bin/sh', '-c', '{short} >&2; {program}; :'], Path('out.fwt'),\n"
        "    progress=lambda *_: print('looked', flush=True))\n"
        "print(result.status, *(Path(trace.command[0]).name for trace in result.traces if trace.stopped))\n"
        "print(*sorted(Path(trace.command[0]).name for trace in result.traces), flush=True)\n"
    )
    with started(helper, tmp_path) as running:
        assert running.stdout is not None
        lines = (line.split() for line in running.stdout)
        next(line for line in lines if line == ["go"])
        # Since the second program began, it has looked once from beginning to end.
        for _ in range(2):
            next(line for line in lines if line == ["looked"])
        os.killpg(running.pid, signal.SIGINT)
        # The program says twice that it goes.
        status, *stopped = next(line for line in lines if line not in (["looked"], ["go"]))
        programs = next(lines)
    assert status == f"{-signal.SIGINT}"
    assert sorted(stopped) == ["endless", "sh"]
    # What the shell forks is recorded as its own until it becomes another program.
    assert set(programs) == {"endless", "loops", "sh"}


def test_children_left_running_are_let_go_by_ctrl_c(tmp_path: Path) -> None:
    program = compiled(tmp_path, "endless", *BARE)
    helper = (
        "import sys; from pathlib import Path\n"
        "session.PATIENCE_SECONDS = 0.0\n"
        f"result = session.record(['/bin/sh', '-c', '{program} & echo $!'], Path('out.fwt'))\n"
        "print(*(trace.reason for trace in result.traces), file=sys.stderr)\n"
        "print(*(trace.stopped for trace in result.traces), sep=',', file=sys.stderr)\n"
    )
    with started(helper, tmp_path, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        said: set[str] = set()
        while len(said) < 2:  # its number, and twice that it goes, in any order
            said.add(next(running.stdout))
        child = int((said - {"go\n"}).pop())
        try:
            noted = running.stderr.readline()
            os.killpg(running.pid, signal.SIGINT)  # a shell's background processes ignore it
            reasons = running.stderr.readline().split()
            stopped = running.stderr.readline().strip().split(",")
        finally:
            os.kill(child, signal.SIGKILL)
    assert "what it left running is recorded until it ends" in noted
    assert reasons[0] == "exit"
    assert sorted(reasons[1:]) == ["detached", "exec"]
    by_reason = dict(zip(reasons, stopped, strict=True))
    expected = {"exit": "None", "exec": "None", "detached": "the run was stopped by Ctrl-C"}
    assert by_reason == expected
    for trace in tmp_path.rglob("*.fwt"):
        assert not engine.trace_info(trace, verify=True)["ended_early"]


def test_nothing_is_said_of_children_where_none_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A sample is encoded after the program's end, which takes a while."""
    monkeypatch.setattr(session, "PATIENCE_SECONDS", -1.0)
    record(["/bin/true"], tmp_path / "out.fwt")
    assert capfd.readouterr().err == ""


def killed_at(instructions: int) -> tuple[Callable[[int, int | None], None], threading.Event]:
    """What kills the collector when so much was executed, to be called with progress; and whether it has."""
    killed = threading.Event()

    def kill_it(done: int, _total: int | None) -> None:
        if done > instructions and not killed.is_set():
            killed.set()
            children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
            for child in children:
                if b"flatwalk-collect" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)

    return kill_it, killed


def test_what_a_killed_collector_wrote_stays(tmp_path: Path, output: Path) -> None:
    program = compiled(tmp_path, "endless", *BARE)
    kill_it, killed = killed_at(20_000_000)
    result = record([str(program)], output, progress=kill_it)
    assert killed.is_set()
    assert any("collector was killed" in warning for warning in result.warnings)
    info = engine.trace_info(output, verify=True)
    assert info["ended_early"]
    assert info["instructions"] > 1_000_000


def test_a_sample_that_a_killed_collector_had_is_an_error(tmp_path: Path, output: Path) -> None:
    program = compiled(tmp_path, "endless", *BARE)
    kill_it, killed = killed_at(20_000_000)
    with pytest.raises(RecordError, match="the collector was killed before it had written anything"):
        record([str(program)], output, sample=Sample(), progress=kill_it)
    assert killed.is_set()
    assert not output.exists()


def test_a_collector_that_is_gone_needs_no_word(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = tmp_path / "collector"
    collector.write_text('#!/bin/sh\nexec 0<&-\necho \'{"type": "ready"}\'\n')
    collector.chmod(0o755)
    monkeypatch.setattr(tools, "find_recorder", lambda: (tmp_path, collector))
    with collecting(output, Part()) as (_, reports):
        pass
    assert reports.traces == []


def test_an_exception_in_progress_stops_everything(tmp_path: Path, output: Path) -> None:
    program = compiled(tmp_path, "endless", *BARE)

    def fail(done: int, _total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record([str(program)], output, progress=fail)
    info = engine.trace_info(output, verify=True)
    assert info["instructions"] > 0
    assert not info["ended_early"]


def test_a_full_disk(tmp_path: Path, small_disk: Callable[[str], Path]) -> None:
    program = compiled(tmp_path, "loops", *BARE)
    with pytest.raises(RecordError, match=r"(?s)No space left.*free some space"):
        record([str(program)], small_disk("64k") / "out.fwt")


def test_a_sample_that_fills_the_disk_keeps_what_there_was(
    tmp_path: Path, small_disk: Callable[[str], Path]
) -> None:
    program = compiled(tmp_path, "endless", *BARE)
    small = small_disk("4m")
    with pytest.raises(RecordError, match=r"(?s)No space left.*free some space"):
        record([str(program)], small / "out.fwt", sample=Sample())
    assert [path.name for path in small.iterdir()] == ["out.fwt"]
    info = engine.trace_info(small / "out.fwt", verify=True)
    assert not info["ended_early"]
    assert info["instructions"] > 1_000_000


def elf(machine: int, bits: int, kind: int = 2) -> bytes:
    return b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9) + struct.pack("<HH", kind, machine) + bytes(100)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (elf(3, 32), "32-bit i386"),
        (elf(62, 32), "32-bit x86-64"),
        (elf(183, 64), "aarch64"),
        (elf(8, 64), "ELF machine 8"),
        (elf(62, 64, kind=1), "object file"),
        (b"\x7fELF", "neither a Linux program"),
        (b"echo hello\n", "neither a Linux program"),
        (b"", "neither a Linux program"),
        (b"#!\n", "names no interpreter"),
        (b"#!/nonexistent/sh\n", "/nonexistent/sh does not exist"),
        (b"#!./program\n", "too many scripts"),
    ],
)
def test_what_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    program = tmp_path / "program"
    program.write_bytes(content)
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        record(["./program"], tmp_path / "out.fwt")
    assert not (tmp_path / "out.fwt").exists()


def test_programs_one_after_another_have_a_file_each(tmp_path: Path, output: Path) -> None:
    result = record(["/bin/sh", "-c", "exec /usr/bin/env /bin/true"], output)
    assert result.traces[0].command[0].endswith("true")
    assert {trace.path for trace in result.traces} == {output, *(tmp_path / "out.processes").iterdir()}
    assert len({trace.path for trace in result.traces}) == 3
    for trace in result.traces:
        assert engine.trace_info(trace.path)["instructions"] == trace.instructions


def test_a_carriage_return_is_part_of_an_interpreters_name(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"#!/bin/sh\r\necho ran\r\n")
    script.chmod(0o755)
    with pytest.raises(UsageError, match=r"interpreter /bin/sh.* does not exist"):
        resolve([str(script)], dict(os.environ))
    script.write_bytes(b"#! \t/bin/sh -e -u\t \necho ran\n")
    program, arguments = resolve([str(script), "one"], dict(os.environ))
    assert (program, arguments) == (Path("/bin/sh"), ["/bin/sh", "-e -u", str(script), "one"])


def test_programs_are_found_as_the_shell_finds_them(tmp_path: Path) -> None:
    environment = dict(os.environ)
    program, arguments = resolve(["ls", "-l"], environment)
    assert program == Path(shutil.which("ls") or "")
    assert arguments == ["ls", "-l"]
    with pytest.raises(UsageError, match="no such program"):
        resolve(["no-such-program"], environment)
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    with pytest.raises(UsageError, match="may not be executed"):
        resolve([str(plain)], environment)


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        record(["/bin/true"], tmp_path / "missing" / "out.fwt")
    with pytest.raises(UsageError, match="is a directory"):
        record(["/bin/true"], tmp_path)
    strange = Path(os.fsdecode(os.fsencode(tmp_path) + b"/dir\xff"))
    strange.mkdir()
    (tmp_path / "link").symlink_to(strange)
    with pytest.raises(UsageError, match="not UTF-8"):
        record(["/bin/true"], tmp_path / "link" / "out.fwt")
    with pytest.raises(UsageError, match="name is too long"):
        record(["/bin/true"], tmp_path / f"{'a' * 220}.fwt")


def test_a_directory_for_temporary_files_that_qemu_cannot_be_given(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = Path(os.fsdecode(os.fsencode(tmp_path) + b"/dir\xff"))
    strange.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(strange))
    with pytest.raises(UsageError, match="temporary files is not UTF-8") as caught:
        record(["/bin/true"], output)
    assert "TMPDIR" in str(caught.value.remedy)
    assert list(strange.iterdir()) == []


def test_the_usual_trace_replaces_none(tmp_path: Path) -> None:
    for _ in range(2):
        command = [sys.executable, "-I", "-m", "flatwalk", "record", "--", "true"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program-2.fwt", "program.fwt"]


def test_only_traces_are_overwritten(output: Path) -> None:
    output.write_text("a thesis")
    with pytest.raises(UsageError, match="not a flatwalk trace"):
        record(["/bin/true"], output)
    assert output.read_text() == "a thesis"
    with pytest.raises(UsageError, match="not a flatwalk trace"):
        record(["/bin/true"], Path("/dev/null"))
    output.unlink()
    first = record(["/bin/true"], output)
    assert record(["/bin/true"], output).instructions == pytest.approx(first.instructions, rel=0.01)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another's setuid program")
def test_rights_that_qemu_cannot_give(tmp_path: Path, output: Path) -> None:
    program = tmp_path / "id"
    shutil.copy("/usr/bin/id", program)
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    with pytest.raises(UsageError, match=r"setuid.*\n.*id\n.*sudo"):
        record([str(program)], output)
    program.chmod(0o2755)
    with pytest.raises(UsageError, match="setgid"):
        record([str(program)], output)
    os.chown(program, 0, 0)
    program.chmod(0o6755)  # rights that we have already
    assert record([str(program)], output).status == 0


def test_a_part_that_is_never_reached(output: Path) -> None:
    with pytest.raises(RecordError, match=r"ended before.*\n.*--skip"):
        record(["/bin/true"], output, skip=10**12)
    assert not output.exists()


def test_numbers_that_cannot_be(output: Path) -> None:
    with pytest.raises(UsageError, match="no program"):
        record([], output)
    with pytest.raises(UsageError, match="records nothing"):
        record(["/bin/true"], output, limit=0)
    with pytest.raises(UsageError, match="cannot be skipped"):
        record(["/bin/true"], output, skip=-1)
    with pytest.raises(UsageError, match="'0x12z' is not an address"):
        record(["/bin/true"], output, start_at="0x12z")
    with pytest.raises(UsageError, match="'0x' is not an address"):
        record(["/bin/true"], output, stop_at="0x")


def test_a_program_that_cannot_be_loaded(
    tmp_path: Path, output: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = compiled(tmp_path, "maps", "-Wl,--dynamic-linker=/lib/none.so")
    with pytest.raises(RecordError, match="did not start the program"):
        record([str(program)], output)
    assert "Could not open '/lib/none.so'" in capfd.readouterr().err
    assert list(tmp_path.glob("*.fwt*")) == []


def test_missing_tools(tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("FLATWALK_RECORDER", str(tmp_path / "libflatwalk_recorder.so"))
        with pytest.raises(RecordError, match="cargo build --release -p flatwalk-recorder"):
            record(["/bin/true"], output)
    with monkeypatch.context() as patch:
        patch.setenv("FLATWALK_QEMU", str(tmp_path / "qemu"))
        with pytest.raises(RecordError, match="apt install qemu-user"):
            record(["/bin/true"], output)
    for version in ("6.2.0", "9.0.1"):
        old = tmp_path / f"qemu-{version}"
        old.write_text(f"#!/bin/sh\necho qemu-x86_64 version {version}\n")
        old.chmod(0o755)
        with monkeypatch.context() as patch:
            patch.setenv("FLATWALK_QEMU", str(old))
            with pytest.raises(RecordError, match=r"not of version 7\.2 to 8\.2"):
                record(["/bin/true"], output)
