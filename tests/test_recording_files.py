"""Where recordings are written, one at a time; and that they end when told to, with all they started."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flatwalk import engine, temporary
from flatwalk.errors import UsageError
from flatwalk.recorder import RecordError, record
from flatwalk.recorder.place import is_used, taken
from flatwalk.recorder.reports import Reports
from flatwalk.recorder.request import TRACE_MAGIC
from flatwalk.recorder.result import ProcessTrace, RecordResult
from flatwalk.terminal.output import unused
from tests.running import PATIENCE_SECONDS, descendants, is_gone, wait_until, waited_for
from tests.test_record import BARE, compiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatwalk.recorder.place import Place


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.fwt"


def test_traces_of_processes_without_an_instruction_are_left_out(tmp_path: Path, output: Path) -> None:
    """As under wrappers: the program's own process ends before all that is skipped, its child does not."""
    program = compiled(tmp_path, "endless", *BARE)
    shell = ["/bin/sh", "-c", f"/bin/true; {program}; /bin/true"]
    result = record(shell, output, skip=5_000_000, limit=1_000_000)
    assert [trace.command for trace in result.traces] == [[str(program)]]
    assert result.traces[0].path == output
    assert any("own process left nothing" in warning for warning in result.warnings)
    assert {path.name for path in tmp_path.iterdir()} == {"endless", "out.fwt"}


def test_a_name_that_a_recording_writes_is_used(output: Path) -> None:
    assert not is_used(output)
    with taken(output):
        assert is_used(output)
        assert unused(output, is_used).name == "out-2.fwt"
    assert not is_used(output)
    output.touch()
    assert is_used(output)


def test_one_recording_of_a_file_at_a_time(tmp_path: Path, output: Path) -> None:
    program = compiled(tmp_path, "endless", *BARE)
    link = tmp_path / "link.fwt"
    output.write_bytes(b"")
    link.symlink_to(output.name)
    refused: list[str] = []

    def another(done: int, _total: int | None) -> None:
        if done and not refused:
            for path in (output, link):
                with pytest.raises(RecordError) as caught:
                    record(["/bin/true"], path)
                refused.append(caught.value.what)

    result = record([str(program)], output, limit=2_000_000, progress=another)
    assert refused == [f"another recording writes this file: process {os.getpid()}"] * 2
    assert engine.trace_info(output, verify=True)["instructions"] == result.instructions
    assert {path.name for path in tmp_path.iterdir()} == {"endless", "link.fwt", "out.fwt"}
    # What a killed recording left is in nobody's way.
    growing = tmp_path / "out.fwt.part"
    growing.mkdir()
    (growing / "lock").write_text("1")
    (growing / "out.fwt.part").write_bytes(b"half")
    record(["/bin/true"], link)
    assert link.is_symlink()
    assert not growing.exists()


def test_a_place_that_cannot_be_taken_is_left_as_it_was(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RecordError, match="No space left"):
            record(["/bin/true"], output)
    assert not list(tmp_path.iterdir())
    assert record(["/bin/true"], output).status == 0


@pytest.mark.parametrize(
    "name",
    [
        *("thesis.txt", "out.fwt", "out.fwt.part/thesis.txt", "other.1.fwt"),
        *("out.2024.csv.part", "out.1.txt.part.aside", "out.1.fwt.2.part"),
    ],
)
def test_what_is_not_a_trace_stays_where_traces_grow(tmp_path: Path, output: Path, name: str) -> None:
    thesis = tmp_path / "out.fwt.part" / name
    thesis.parent.mkdir(parents=True)
    thesis.write_text("a thesis")
    with pytest.raises(UsageError, match="something that is not a trace"):
        record(["/bin/true"], output)
    assert thesis.read_text() == "a thesis"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [thesis]


def test_an_empty_file_with_another_extension_stays(tmp_path: Path, output: Path) -> None:
    empty = tmp_path / "out.fwt.part" / "out.1.txt"
    empty.parent.mkdir()
    empty.touch()
    with pytest.raises(UsageError, match="something that is not a trace"):
        record(["/bin/true"], output)
    assert empty.exists()


@pytest.mark.parametrize("name", [".nfs0123", ".fuse_hidden0123"])
def test_what_a_file_system_keeps_of_removed_files_is_in_nobodys_way(
    tmp_path: Path, output: Path, name: str
) -> None:
    growing = tmp_path / "out.fwt.part"
    growing.mkdir()
    (growing / name).write_bytes(b"half")
    with taken(output) as place:
        place.keep(traces := grown(growing, "out.fwt"), traces[0])
    assert {path.name for path in tmp_path.rglob("*")} == {"out.fwt", "out.fwt.part", name}


@pytest.mark.parametrize("name", ["thesis.txt", "out.fwt.part", "lock"])
def test_links_are_not_followed_where_traces_grow(tmp_path: Path, output: Path, name: str) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / name).write_text("1")
    growing = tmp_path / "out.fwt.part"
    growing.symlink_to(texts)
    with pytest.raises(UsageError, match="something that is not a trace"):
        record(["/bin/true"], output)
    growing.unlink()
    growing.mkdir()
    (growing / name).symlink_to(texts / name)
    with pytest.raises(UsageError, match="something that is not a trace"):
        record(["/bin/true"], output)
    assert [(path.name, path.read_text()) for path in texts.iterdir()] == [(name, "1")]


def test_a_file_where_traces_grow_is_refused(tmp_path: Path, output: Path) -> None:
    (tmp_path / "out.fwt.part").write_text("a thesis")
    with pytest.raises(UsageError, match="something that is not a trace"):
        record(["/bin/true"], output)
    assert (tmp_path / "out.fwt.part").read_text() == "a thesis"


@pytest.mark.parametrize("name", ["out.fwt", "out", "out.a.trace", "out.", ".out"])
def test_all_that_a_killed_recording_leaves_goes(tmp_path: Path, name: str) -> None:
    stem, _, suffix = name.rpartition(".")
    others = [f"{stem or name}.{middle}.{suffix if stem else 'fwt'}" for middle in ("4711", "4711.2")]
    growing = tmp_path / f"{name}.part"
    growing.mkdir()
    (growing / "lock").write_text("1")
    for trace in (name, *others):
        (growing / trace).write_bytes(TRACE_MAGIC)
        (growing / f"{trace}.part").write_bytes(b"half")
        (growing / f"{trace}.part.aside").write_bytes(b"half")
    with taken(tmp_path / name):
        assert [path.name for path in growing.iterdir()] == ["lock"]
    assert not growing.exists()


def grown(directory: Path, *names: str) -> list[ProcessTrace]:
    """Complete traces, as a collector leaves them."""
    for name in names:
        (directory / name).write_bytes(TRACE_MAGIC)
    return [ProcessTrace(directory / name, 1, ["sh"], 1, 5, "exit") for name in names]


def kept(place: Place, *others: str) -> None:
    """Ends a recording with these traces of other processes."""
    traces = grown(place.growing.parent, place.output.name, *others)
    place.keep(traces, traces[0])


#: Files of which the traces of other processes go into one directory; one of each, as the collector names it.
SHARING = [("out.trc", "out.1.trc"), ("out", "out.1.fwt"), ("out.2", "out.1.2"), ("out.fwtt", "out.1.fwtt")]


@pytest.mark.parametrize(("name", "child"), SHARING)
def test_traces_of_another_files_processes_stay(tmp_path: Path, output: Path, name: str, child: str) -> None:
    other, others = tmp_path / name, tmp_path / "out.processes"
    with taken(output) as one, taken(other) as another:
        kept(one, "out.1.fwt", "out.1.2.fwt")
        kept(another, child)
    own = {others / "out.1.fwt", others / "out.1.2.fwt"}
    assert own < set(others.iterdir())
    assert len(list(others.iterdir())) == 3
    with taken(other) as another:
        kept(another)
    assert set(others.iterdir()) == own
    with taken(output) as one:
        kept(one, "out.2.fwt")
    assert [path.name for path in others.iterdir()] == ["out.2.fwt"]
    with taken(output) as one:
        kept(one)
    assert {path.name for path in tmp_path.iterdir()} == {"out.fwt", name}


def test_a_trace_that_no_recording_named_stays(tmp_path: Path, output: Path) -> None:
    mine = tmp_path / "out.processes" / "mine.fwt"
    mine.parent.mkdir()
    mine.write_bytes(TRACE_MAGIC)
    with taken(output) as place:
        kept(place, "out.1.fwt")
    assert {path.name for path in mine.parent.iterdir()} == {"mine.fwt", "out.1.fwt"}


def test_a_directory_that_another_recording_removes_is_made_again(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir
    removed: list[Path] = []

    def made(path: Path, *, exist_ok: bool = False) -> None:
        mkdir(path, exist_ok=exist_ok)
        if path.name == "out.processes" and not removed:
            removed.append(path)
            path.rmdir()

    with taken(output) as place, monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", made)
        kept(place, "out.1.fwt")
    assert removed == [tmp_path / "out.processes"]
    assert [path.name for path in removed[0].iterdir()] == ["out.1.fwt"]


@pytest.mark.parametrize("name", ["out.fwt", "out.processes/data"])
def test_what_comes_to_be_during_a_recording_stays(tmp_path: Path, output: Path, name: str) -> None:
    """As where the program writes its results there."""
    theirs = tmp_path / name
    with taken(output) as place:
        traces = grown(tmp_path / "out.fwt.part", "out.fwt", "out.1.fwt")
        theirs.parent.mkdir(exist_ok=True)
        theirs.write_text("a thesis")
        with pytest.raises(RecordError, match=r"not a trace(?s:.*)they are in .*out\.fwt\.part"):
            place.keep(traces, traces[0])
    assert theirs.read_text() == "a thesis"
    assert all(trace.path.exists() for trace in traces)


def test_what_comes_to_be_where_traces_grow_stays(tmp_path: Path, output: Path) -> None:
    theirs = tmp_path / "out.fwt.part" / "data"
    with taken(output) as place:
        traces = grown(theirs.parent, "out.fwt")
        theirs.write_text("a thesis")
        place.keep(traces, traces[0])
    assert {path.name for path in tmp_path.rglob("*")} == {"out.fwt", "out.fwt.part", "data"}


def test_a_link_that_comes_to_be_during_a_recording_stays(tmp_path: Path, output: Path) -> None:
    with taken(output) as place:
        traces = grown(tmp_path / "out.fwt.part", "out.fwt")
        output.symlink_to("nowhere")
        with pytest.raises(RecordError, match="not a trace"):
            place.keep(traces, traces[0])
    assert output.is_symlink()


def test_a_trace_that_has_its_name_is_not_said_to_be_elsewhere(tmp_path: Path, output: Path) -> None:
    with taken(output) as place:
        traces = grown(tmp_path / "out.fwt.part", "out.fwt", "out.1.fwt", "out.2.fwt")
        traces[1].path.unlink()
        with pytest.raises(RecordError, match=r"1 of 3 have theirs; the rest is in .*out\.fwt\.part"):
            place.keep(traces, traces[0])
    assert output.exists()
    assert traces[2].path.exists()


def test_small_counts_are_said_in_full(output: Path) -> None:
    trace = ProcessTrace(output, 1, ["ls"], 3512, 1000, "exit", 14_000_000 - 3512, segments=11)
    assert "3,512 of 14,000,000 instructions in 11 segments" in str(trace)
    trace = ProcessTrace(output, 1, ["ls"], 100_000_000, 1000, "exit", 12_245_000_000, segments=40)
    assert "100 of 12,345 M instructions in 40 segments" in str(trace)


def test_a_warning_is_given_once() -> None:
    reports = Reports()
    for message in ("one", "two", "one"):
        reports.add({"type": "warning", "message": message})
    assert reports.warnings == ["one", "two"]


def test_a_short_recordings_speed_is_said(output: Path) -> None:
    trace = ProcessTrace(output, 1, ["ls"], 300_000, 1000, "exit", gap_instructions=100_000)
    said = str(RecordResult(output, [trace], 300_000, 0.5, 0))
    assert "0.5 s, 800 k instructions per second;" in said


def test_what_is_not_a_trace_stays_where_traces_of_processes_go(tmp_path: Path, output: Path) -> None:
    others = tmp_path / "out.processes"
    others.mkdir()
    (others / "thesis.txt").write_text("a thesis")
    with pytest.raises(UsageError, match="something that is not a trace"):
        record(["/bin/true"], output)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["out.processes", "thesis.txt"]


@pytest.mark.parametrize(
    ("command", "number"),
    [
        (["record", "-o", "out.fwt"], signal.SIGTERM),
        (["record", "-o", "out.fwt"], signal.SIGHUP),
        (["record", "-o", "out.fwt"], signal.SIGKILL),
        (["compare", "--json", "out.json"], signal.SIGTERM),
        (["compare", "--json", "out.json"], signal.SIGHUP),
        (["compare", "--json", "out.json"], signal.SIGKILL),
    ],
)
def test_a_signal_ends_the_program_its_children_and_the_collector(
    tmp_path: Path, command: list[str], number: signal.Signals
) -> None:
    files = tmp_path / "temporary"
    files.mkdir()
    program = compiled(tmp_path, "endless", *BARE)
    # A shell that ignores the signal, and so does what it starts.
    deaf = ["/bin/sh", "-c", f"trap '' TERM INT HUP; {program} & {program}; exit"]
    with waited_for(
        subprocess.Popen(
            [sys.executable, "-I", "-m", "flatwalk", *command, "--", *deaf],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"TMPDIR": str(files)},
        )
    ) as running:
        assert running.stdout is not None
        # The collector, the shell, and its two children, each of which has begun to be recorded.
        started: set[int] = set()

        def all_run() -> bool:
            started.update(descendants(running.pid))
            return len(started) == 4

        assert running.stdout.readline() == "go\n"
        wait_until(all_run)
        running.send_signal(number)
        status = running.wait(timeout=PATIENCE_SECONDS)
        wait_until(lambda: all(map(is_gone, started)))
        assert set(running.stdout.read().split()) <= {"go"}  # the program's, and no answer
    assert status == (-number if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert list(files.iterdir()) == []
        assert not (tmp_path / "out.json").exists()
        assert not (tmp_path / "out.fwt.part").exists()
    if command[0] == "record" and number != signal.SIGKILL:
        info = engine.trace_info(tmp_path / "out.fwt", verify=True)
        assert info["instructions"] > 10_000
        assert info["stopped"] == f"the run was stopped by {number.name}"
        assert len(list((tmp_path / "out.processes").iterdir())) >= 2


def test_a_full_temporary_directory_says_what_is_true(
    tmp_path: Path, small_disk: Callable[[str], Path]
) -> None:
    small = small_disk("64k")
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-m",
            "flatwalk",
            "compare",
            "--no-report",
            "--exhaustive",
            "--",
            "ls",
            "/usr",
        ],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(small)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert list(small.iterdir()) == []
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "kept" not in done.stderr
    assert "--output" not in done.stderr
    assert "set TMPDIR" in done.stderr
    assert "--keep-trace" in done.stderr


def test_a_temporary_directory_with_a_long_name(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than the address of a socket; programs after fork and exec connect there, too."""
    long = tmp_path / ("x" * 150)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    result = record(["/bin/sh", "-c", "/bin/true; exit 3"], output)
    assert (result.status, result.warnings) == (3, [])
    assert sorted(trace.command[0] for trace in result.traces) == ["/bin/sh", "/bin/sh", "/bin/true"]
    assert list(long.iterdir()) == []


def test_temporary_directories_of_killed_commands_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, young, other = (tmp_path / f"flatwalk-{name}" for name in ("work-killed", "work-young", "mine"))
    for path in (killed, young, other):
        path.mkdir()
        (path / "trace").write_text("…")
    for path in (killed, other):
        os.utime(path, (0, 0))
    with temporary.directory() as ours:
        os.utime(ours, (0, 0))
        with temporary.directory() as second:
            assert ours.is_dir()
        assert not second.exists()
        assert not killed.exists()
        assert young.is_dir()
        assert other.is_dir()
    assert not ours.exists()
