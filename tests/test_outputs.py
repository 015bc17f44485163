"""What is written, and where to: files, devices, pipes, full disks, closed outputs, foreign names."""

from __future__ import annotations

import html
import itertools
import json
import math
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flatwalk.answer import across, blame
from flatwalk.answer.results import add_speedups
from flatwalk.comparison import presenting
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.recorder import request
from flatwalk.terminal import output
from flatwalk.terminal.printable import json_escaped, one_line, printable
from tests import fake
from tests.checkout import shipped
from tests.terminal import on_terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatwalk.answer.blame import Blame
    from tests.conftest import Result

    Call = Callable[..., Result]

FULL = Path("/dev/full")
COMMAND = [sys.executable, "-I", "-m", "flatwalk"]
#: The shortest comparison there is.
SHORT = ["compare", "--workload", "gups:64MiB", "--schemes", "radix4", "--large-pages", "0"]
SHORT += ["--instructions", "100k"]
#: The shortest mix.
MIX = ["compare", "--mix", "1*gups:1MiB", "--schemes", "radix4", "--large-pages", "0"]


def shell(line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs a shell's line in which $F is the command."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=directory,
        env=os.environ | {"F": " ".join(COMMAND)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [["list", "schemes"], ["list", "machines", "--json"], ["--help"], [*SHORT, "--no-report", "--json", "-"]],
    ids=" ".join,
)
@pytest.mark.parametrize(("where", "reason"), [("> /dev/full", "No space left"), (">&-", "Bad file")])
def test_an_output_that_cannot_be_written_is_an_error(
    tmp_path: Path, arguments: list[str], where: str, reason: str
) -> None:
    done = shell(f"$F {' '.join(arguments)} {where}", tmp_path)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert len(errors) == 2, done.stderr
    assert errors[0].startswith(f"error: standard output cannot be written: {reason}")
    assert errors[1].startswith("  remedy: ")


def test_a_closed_output_is_not_taken_by_a_file(tmp_path: Path) -> None:
    line = f"$F {' '.join(SHORT)} --no-report --json out.json >&- 2>&-"
    assert shell(line, tmp_path).returncode == 1
    assert json.loads((tmp_path / "out.json").read_text())["runs"]


def test_messages_that_are_lost_are_a_failure_but_stop_nothing(tmp_path: Path) -> None:
    done = shell(f"$F {' '.join(SHORT)} --no-report 2> /dev/full", tmp_path)
    assert done.returncode == 1
    assert "radix4" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "--trace", "t.fwt", "--report", "t.fwt"], "t.fwt is read, and would be replaced"),
        (["compare", "--trace", "t.fwt", "--json", "link"], "where:  --trace and --json"),
        (["compare", "--trace", "t.fwt", "--json", "hard"], "remedy: give --json another file"),
        (["compare", "--mix", "gups,./t.fwt", "--report", "t.fwt"], "where:  --mix and --report"),
        (["compare", "--simpoints", "w", "--weights", "w", "--window", "1M", "--json", "w"], "w is read"),
        (["compare", "--json", "new", "--report", "./new"], "new is written twice"),
        (["compare", "--json", "new", "--keep-trace", "new", "--", "true"], "--json and --keep-trace"),
        (["trace", "export", "t.fwt", "t.fwt"], "where:  SOURCE and TARGET"),
        (["trace", "import", "t.fwt", "t.fwt"], "where:  SOURCE and TARGET"),
        (["trace", "import", ".", "t.fwt"], "where:  SOURCE and TARGET"),
        (["machine", "import", "t.fwt", "t.fwt"], "where:  SOURCE and TARGET"),
        (["host", "diff", "t.fwt", "w", "--plot", "w"], "where:  B and --plot"),
        (["walk", "--trace", "t.fwt", "--report", "t.fwt"], "where:  --trace and --report"),
        (["reproduce", "--json", "new", "--markdown", "new"], "where:  --json and --markdown"),
        (["compare", "--machine", "zen4,./m.toml", "--json", "m.toml"], "where:  --machine and --json"),
        (["compare", "--schemes", "radix4,./m.toml", "--report", "m.toml"], "where:  --schemes and --report"),
        (["compare", "--schemes", "s.py:Mine", "--report", "s.py"], "where:  --schemes and --report"),
        (["compare", "--virt", "radix4/m.toml", "--json", "m.toml"], "where:  --virt and --json"),
        (["compare", "--virt", "m.toml/radix4", "--json", "m.toml"], "where:  --virt and --json"),
        (["compare", "--mix", "mix.toml", "--json", "mix.toml"], "where:  --mix and --json"),
        (["compare", "--report", "own.sh", "--", "./own.sh"], "where:  -- CMD and --report"),
        (["compare", "--report", "own.sh", "--", "own.sh"], "where:  -- CMD and --report"),
        (["walk", "--scheme", "s.py", "--report", "s.py"], "where:  --scheme and --report"),
        (["walk", "--machine", "m.toml", "--report", "m.toml"], "where:  --machine and --report"),
        (["host", "inspect", "1", "--machine", "m.toml", "--html", "m.toml"], "where:  --machine and --html"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_no_file_is_written_over_another_of_the_command(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.fwt").write_bytes(b"mine")
    (tmp_path / "w").write_bytes(b"1 0\n")
    (tmp_path / "link").symlink_to("t.fwt")
    (tmp_path / "hard").hardlink_to("t.fwt")
    (tmp_path / "m.toml").write_text('name = "mine"\n')
    (tmp_path / "s.py").write_text("import flatwalk as fw\n")
    mix = ["name", "title", "source"]
    (tmp_path / "mix.toml").write_text(
        "".join(f'{key} = "m"\n' for key in mix) + 'programs = ["gups:1MiB"]\n'
    )
    (tmp_path / "own.sh").write_text("#!/bin/sh\n")
    (tmp_path / "own.sh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    done = call(*arguments)
    assert done.code == 2
    assert words in done.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("option", ["--json", "--report", "--keep-trace"])
def test_a_file_that_may_not_be_written_stays(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    file = tmp_path / "file"
    file.touch(0o444)
    allowed = os.access  # which allows root everything
    monkeypatch.setattr(
        os, "access", lambda path, mode: (Path(path).name, mode) != ("file", os.W_OK) and allowed(path, mode)
    )
    done = call("compare", option, "file", "--", "true")
    assert (done.code, "file is not writable" in done.err) == (2, True), done.err
    with pytest.raises(UsageError, match="the output may not be written"):
        request.check_output(file)


def test_a_device_takes_several_outputs() -> None:
    output.check_apart([(Path("/dev/null"), "--json"), (Path("/dev/null"), "--report"), (None, "--update")])


def test_a_device_is_written_to_and_stays(call: Call, tmp_path: Path) -> None:
    device = tmp_path / "device"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 7))  # as /dev/full
        os.close(os.open(device, os.O_WRONLY))
    except PermissionError:
        pytest.skip("only root makes devices")
    result = call(*SHORT, "--no-report", "--json", "device")
    assert result.code == 1
    assert "error: device cannot be written: No space left on device" in result.err
    assert device.is_char_device()
    assert call(*SHORT, "--no-report", "--json", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()
    assert list(tmp_path.iterdir()) == [device]


def test_a_fifo_is_written_to_and_stays(call: Call, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    assert call(*SHORT, "--json", "fifo", "--report", "/dev/null").code == 0
    reader.join()
    assert json.loads(read[0])["runs"]
    assert fifo.is_fifo()


def test_links_are_followed_and_permissions_stay(call: Call, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    target = tmp_path / "kept" / "answer.json"
    target.write_text("before")
    target.chmod(0o600)
    link = tmp_path / "link.json"
    link.symlink_to(target)
    assert call(*SHORT, "--no-report", "--json", "link.json").code == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["runs"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["answer.json", "kept", "link.json"]


def test_a_link_that_leads_nowhere_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nothing")
    for option in ("--json", "--report"):
        result = call(*SHORT, option, "link")
        assert result.code == 2
        assert "link is a link that leads nowhere" in result.err
    assert not (tmp_path / "nothing").exists()


def test_the_file_of_standard_output_is_refused(tmp_path: Path) -> None:
    done = shell(f"$F {' '.join(SHORT)} --no-report --json out > out", tmp_path)
    assert done.returncode == 2
    assert "is the file that standard output is written to" in done.stderr
    assert (tmp_path / "out").read_text() == ""


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "answer.json"
    path.write_text("before")

    def full(_path: Path, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FlatwalkError, match=r"answer\.json cannot be written: No space left"):
        output.write_whole(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("asked", [SHORT, [*MIX, "--instructions", "100k", "--warmup", "20k"]], ids=" ".join)
def test_a_json_that_cannot_be_written_takes_nothing_else_away(
    call: Call, tmp_path: Path, asked: list[str]
) -> None:
    result = call(*asked, "--report", "report.html", "--json", str(FULL))
    assert result.code == 1
    assert "No space left" in result.err
    assert "Judged: " in result.out
    assert "radix4" in result.out
    assert (tmp_path / "report.html").exists()
    result = call(*asked, "--report", str(FULL), "--json", "answer.json")
    assert (result.code, "No space left" in result.err) == (1, True)
    assert json.loads((tmp_path / "answer.json").read_text())["runs"]


def test_the_usual_report_does_not_replace_an_earlier_one(call: Call, tmp_path: Path) -> None:
    for number in ("", "-2", "-3"):
        name = f"flatwalk-report{number}.html"
        assert f"Report: {tmp_path / name}" in call(*SHORT).out
    assert len(list(tmp_path.iterdir())) == 3
    assert (
        f"Report: {tmp_path / 'flatwalk-report.html'}" in call(*SHORT, "--report", "flatwalk-report.html").out
    )
    assert len(list(tmp_path.iterdir())) == 3


def test_a_current_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    for command in (f"$F {' '.join(SHORT)}", "$F record -- true"):
        done = shell(
            f"cd {gone} && rmdir {gone} && {command}; status=$?; mkdir {gone}; exit $status", tmp_path
        )
        assert done.returncode == 1
        assert done.stderr == (
            "error: the current directory does not exist any more\n"
            "  remedy: change to one that does: cd DIRECTORY\n"
        )


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    name = os.fsdecode(b"a\xff.fwt")
    (tmp_path / name).write_bytes(b"\x89FWTR")
    for line in (
        "compare --no-report --trace $'a\\xff.fwt'",
        "walk --trace $'a\\xff.fwt'",
        "record -o $'a\\xff.fwt' -- touch ran",
        "compare --json $'a\\xff.fwt'",
        "compare --keep-trace $'a\\xff.fwt' -- touch ran",
        "trace info $'a\\xff.fwt'",
    ):
        done = shell(f"$F {line}", tmp_path)
        assert done.returncode == 2, done
        assert "error: the name a\\xff.fwt is not UTF-8\n" in done.stderr
    assert not (tmp_path / "ran").exists()


HOSTILE = "evil\x1b]0;owned\x07\x9b2J\u202egnp.exe\udcff"


def test_json_has_no_number_that_json_has_not() -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    values = {"a": [math.inf, -math.inf, math.nan, 1.5], "b": (1, math.inf)}
    found = json.loads(output.as_json(values), parse_constant=refuse)
    assert found == {"a": [None, None, None, 1.5], "b": [1, None]}


def test_what_is_unsafe_is_written_out() -> None:
    assert printable("a\tb\n∞ – ü 漢") == "a\tb\n∞ – ü 漢"
    assert printable(HOSTILE) == r"evil\x1b]0;owned\x07\x9b2J\u202egnp.exe\xff"
    assert one_line("a\nb\tc") == r"a\nb\tc"
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    shown = printable(every).replace("\n", "").replace("\t", "")
    shown.encode()
    # What Unicode may still assign, and blanks of other widths, are harmless.
    left = {character for character in shown if not character.isprintable()}
    import unicodedata

    assert {unicodedata.category(character) for character in left} <= {"Cn", "Co", "Zs", "Cf"}
    assert not any(
        unicodedata.bidirectional(character) in {"RLO", "LRO", "RLE", "LRE", "PDF"} for character in left
    )
    text = json.dumps([HOSTILE, "\U000e0001"], ensure_ascii=False)
    assert json.loads(json_escaped(text)) == [HOSTILE, "\U000e0001"]
    assert "\x9b" not in json_escaped(text)


@pytest.mark.parametrize("arguments", [["list", "schemes"], ["--version"], ["--help"]])
def test_outputs_reach_a_reader_as_they_are(tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run([*COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout
    assert "\\x" not in done.stdout
    assert "\\u" not in done.stdout


def test_a_hostile_file_name_is_shown_safely(tmp_path: Path) -> None:
    name = "evil\x1b]0;owned\x07.toml"
    (tmp_path / name).write_text("name = 'x'\n")
    for line in (
        f"compare --machine './{name}'",
        f"compare --trace './{name}'",
        f"compare --schemes './{name}'",
    ):
        done = shell(f"$F {line}", tmp_path)
        assert done.returncode, done
        assert not set(done.stderr + done.stdout) & {"\x1b", "\x07"}
        assert r"\x1b]0;owned\x07" in done.stderr


def test_progress_is_said_in_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("flatwalk.terminal.output.time.monotonic", lambda: now)
    with output.Progress("Simulating") as progress:
        for _ in range(70):
            now += 1.0
            progress(int(now) - 100, 200)
    assert capsys.readouterr().err == (
        "Simulating: 30 of 200, 15 % after 30 s\nSimulating: 60 of 200, 30 % after 60 s\n"
    )


def test_special_files_are_no_place_for_a_trace(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(FlatwalkError, match="is not a file"), output.whole_file(fifo):
        pass
    with pytest.raises(UsageError, match="is a directory"):
        output.check_writable(tmp_path, "--json")
    assert fifo.is_fifo()


def test_what_leaves_nothing_to_measure_is_refused(call: Call, tmp_path: Path) -> None:
    result = call(*SHORT, "--skip", "1T")
    assert result.code == 2
    assert "nothing is left to measure" in result.err
    assert list(tmp_path.iterdir()) == []


def test_what_a_trace_holds_is_said_in_words(call: Call, tmp_path: Path) -> None:
    assert call("record", "--exhaustive", "-o", "true.fwt", "--", "true").code == 0
    words = dict(line.split("  ", 1) for line in call("trace", "info", "true.fwt").out.splitlines())
    assert words["file complete"].strip() == "yes"
    assert float(words["bytes per instruction"]) < 10
    assert len(words["bytes per instruction"].strip()) <= 5
    assert " map, " in words["events"]
    assert "[" not in words["touched"] + words["events"]
    (tmp_path / "cut.fwt").write_bytes((tmp_path / "true.fwt").read_bytes()[:20_000])
    words = dict(line.split("  ", 1) for line in call("trace", "info", "cut.fwt").out.splitlines())
    assert words["file complete"].strip() == "no"
    result = call("trace", "import", "true.fwt", "again.fwt")
    assert result.code == 1
    assert result.err == "error: true.fwt: this trace is in flatwalk's own format already; use it as it is\n"
    assert not (tmp_path / "again.fwt").exists()


@pytest.mark.parametrize(
    ("end", "words"),
    [("exit 7", "the program's exit status is 7"), ("kill -9 $$", "the program was killed by SIGKILL")],
)
def test_a_program_that_fails_is_said_to(call: Call, tmp_path: Path, end: str, words: str) -> None:
    asked = ["--schemes", "radix4", "--large-pages", "0", "--json", "all.json", "--report", "all.html"]
    result = call("compare", *asked, "--", "sh", "-c", end)
    warning = f"{words}; what ran until then is judged"
    assert result.err.count(f"warning: {warning}") == 1
    answer = json.loads((tmp_path / "all.json").read_text())
    assert all(warning in run["warnings"] for run in answer["runs"])
    assert warning in html.unescape((tmp_path / "all.html").read_text())


def test_clocks_that_no_processor_has_are_refused(call: Call, tmp_path: Path) -> None:
    from flatwalk.definitions import settings

    text = (settings.DATA / "machines" / "zen4.toml").read_text()
    for absurd in ("frequency_mhz = 2", "frequency_mhz = 99999"):
        (tmp_path / "mine.toml").write_text(text.replace("frequency_mhz = 5000", absurd))
        refused = call(*SHORT, "--machine", "./mine.toml").err
        assert "frequency_mhz must be a whole number, 100 to 20000" in refused


def test_changed_copies_are_shown_with_their_file_names(call: Call, tmp_path: Path) -> None:
    for kind, name, before, after in (
        ("machines", "skylake-server", "width = 4", "width = 3"),
        ("schemes", "radix4", "levels = 4", "levels = 5"),
    ):
        (tmp_path / f"{kind}.toml").write_text(shipped(kind, name, before, after))
    asked = ["--workload", "gups:64MiB", "--large-pages", "0", "--instructions", "100k", "--no-report"]
    said = call("compare", *asked, "--machine", "./machines.toml", "--schemes", "./schemes.toml").out
    assert "gups:64MiB on skylake-server (machines.toml), 4 KiB pages" in said
    assert "radix4 (schemes.toml)" in said


def test_two_schemes_of_one_name_are_refused(call: Call, tmp_path: Path) -> None:
    from flatwalk.definitions import settings

    (tmp_path / "mine.toml").write_text((settings.DATA / "schemes" / "radix4.toml").read_text())
    result = call("compare", "--schemes", "radix4,./mine.toml", "--no-report")
    assert result.code == 2
    assert "two schemes are called radix4" in result.err


def lines_on_terminal(arguments: list[str], directory: Path) -> list[str]:
    """What is left on a terminal of 80 columns."""
    shown = on_terminal([*COMMAND, *arguments], 80, directory)
    plain = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", shown).split("\r\n")
    return [line.rpartition("\r")[2] for line in plain]


def test_sentences_end_lines_between_words_on_a_terminal(tmp_path: Path) -> None:
    """And nothing is wider than the terminal but names."""
    lines = lines_on_terminal([*SHORT, "--no-report", "--schemes", "radix4,fpt+ptp"], tmp_path)
    assert max(map(len, lines)) <= 80
    judged = next(number for number, line in enumerate(lines) if line.startswith("Judged: "))
    assert 40 < len(lines[judged]) <= 80
    assert "What came before and after it is not judged" in " ".join(lines[judged : judged + 3])


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "schemes"],
        ["list", "machines"],
        ["list", "mixes"],
        ["list", "workloads"],
        ["list", "keys"],
        ["walk", "0x7f0000000000", "--scheme", "radix4,ecpt"],
        ["host", "gups", "--table", "1MiB", "--runs", "2", "--at-most", "1"],
    ],
    ids=" ".join,
)
def test_80_columns_show_all_that_a_pipe_shows(call: Call, tmp_path: Path, arguments: list[str]) -> None:
    lines = lines_on_terminal(arguments, tmp_path)
    assert max(map(len, lines)) <= 80
    if arguments[0] == "host":  # it measures other figures
        assert any(line.startswith(("warning: ", "note: ")) for line in lines)
        return
    piped = call(*arguments).out
    assert "".join(lines).count("…") == piped.count("…")
    names = [line.split()[0] for line in piped.splitlines() if re.match(r"[a-z]\S*  ", line)]
    assert [name for name in names if name not in "\n".join(lines)] == []


#: A long name, as copies of schemes have: no column can be narrower than it.
LONG = "virt-fpt-guest+ptp"


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The lines that a function prints on a terminal of so many columns."""

    def lines(columns: int, act: Callable[..., None], *arguments: object) -> list[str]:
        capsys.readouterr()
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        act(*arguments)
        return re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out).split("\n")

    return lines


@pytest.mark.parametrize("name", ["fpt", LONG, "a-scheme-whose-name-is-longer-than-many-a-terminal-is-wide"])
def test_no_cell_of_a_table_is_cut(terminal: Callable[..., list[str]], name: str) -> None:
    """Of the columns that are kept; a name may take several lines."""
    runs = [fake.run("radix4"), fake.run("fpt", cycles=900, per_walk=1.02), fake.run("ideal", cycles=500)]
    runs[1]["scheme"] = name
    fake.sample(runs)
    headers, rows = presenting.cells(runs)
    for columns in range(40, 121):
        lines = terminal(columns, presenting.show_table, runs, "gups on skylake-server, 4 KiB pages")
        assert max(map(len, lines)) <= columns
        rule = next(at for at, line in enumerate(lines) if "─" in line)
        above = " ".join(lines[:rule]).split()
        kept = [at for at, header in enumerate(headers) if at and header.split()[-1] in above]
        assert 1 in kept
        told = [" ".join(line.split()) for line in lines[rule:] if "%" in line]
        for line, row in zip(told, rows, strict=True):
            assert line.endswith(" ".join(row[at] for at in kept)), columns
        names = [re.split("  +", line.strip())[0] for line in lines[rule + 1 :]]
        assert "".join(names) == f"radix4{name}ideal", columns


def test_columns_that_are_left_out_are_named(terminal: Callable[..., list[str]]) -> None:
    runs = [fake.run("radix4"), fake.run("fpt", cycles=900), fake.run("ideal", cycles=500)]
    fake.sample(runs)
    left_out = []
    for columns in (70, 200):
        terminal(columns, lambda: left_out.append(presenting.show_table(runs, "gups")))
    assert left_out == [["IPC", "cycles/walk", "lost to translation", "page table"], []]
    told = terminal(200, presenting.say_left_out, left_out[0])
    assert told[0] == (
        "Left out for want of room: IPC, cycles/walk, lost to translation, page table; the report and --json "
        "have them."
    )
    assert terminal(80, presenting.say_left_out, []) == [""]


@pytest.mark.parametrize(("columns", "left_out"), [(100, []), (50, ["last"]), (38, ["last", "figure"])])
def test_columns_that_can_be_spared_go_first(
    terminal: Callable[..., list[str]], columns: int, left_out: list[str]
) -> None:
    headers, rows = ["words ", "figure", "more", "last"], [["a name of words", "1" * 12, "2" * 12, "3" * 12]]
    found: list[str] = []
    lines = terminal(columns, lambda: found.extend(presenting.show_some(headers, rows, ["last", "figure"])))
    assert found == left_out
    assert max(map(len, lines)) <= columns
    whole = " ".join(" ".join(lines).split())
    for header, cell in zip(headers[1:], rows[0][1:], strict=True):
        assert (cell in whole) == (header not in left_out)
    told = terminal(200, presenting.say_left_out, ["last"], "--json has")
    assert told[0] == "Left out for want of room: last; --json has them."


def test_settings_are_not_broken_within_their_names(terminal: Callable[..., list[str]]) -> None:
    places = itertools.product((4 << 20, 8 << 20), (1, 4), ("radix4", "fpt"))
    runs = [
        fake.run(scheme, cycles=900 + 10 * walkers)
        | {"settings": {"llc.size_bytes": size, "walker.concurrent": walkers}}
        for size, walkers, scheme in places
    ]
    response = fake.sample(runs)
    _, schemes = across.places(response["runs"])[0]
    headers, rows = across.rows(schemes, response["runs"])
    assert "±" in headers
    lines = terminal(80, presenting.show_machines, headers, rows, "gups")
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).split().count("±") < headers.count("±")
    whole = " ".join(" ".join(lines).split())
    assert whole.count("llc.size_bytes=4MiB,") == whole.count("llc.size_bytes=8MiB,") == 4
    assert whole.count("walker.concurrent=1") == whole.count("walker.concurrent=4") == 4


def test_a_number_and_its_unit_stay_together_in_a_header(terminal: Callable[..., list[str]]) -> None:
    headers, rows = ["", "2 MiB pages", "a much longer header"], [["name", "1.0 %", "2.0 %"]]
    lines = terminal(30, output.table, headers, rows)
    assert any("2 MiB" in line for line in lines)


@pytest.mark.parametrize(("columns", "shares"), [(30, 1), (50, 1), (60, 2), (80, 3), (100, 4)], ids=str)
def test_no_cell_of_the_table_of_blame_is_cut(
    terminal: Callable[..., list[str]], columns: int, shares: int
) -> None:
    found = _blame()
    assert found.headers == ["walks", "time", LONG, "2 MiB pages"]
    lines = terminal(columns, presenting.show_blame, found)
    assert max(map(len, lines)) <= columns
    first = next(line for line in lines if line.startswith("    the-first-of"))
    assert re.findall(r"[\d.]+ %", first) == ["60.0 %", "30.0 %", "10.0 %", "1.0 %"][:shares]
    key = found.key.split()
    assert " ".join(lines).split()[-len(key) :] == key


def _blame() -> Blame:
    names = ["the-first-of-two-libraries-of-it.so", "the-other-of-two-libraries-of-it.so"]
    runs = [
        fake.blamed(fake.run("radix4"), {f"/{names[0]}": (600, 300_000), f"/{names[1]}": (400, 100_000)}),
        fake.blamed(fake.run("fpt", cycles=800), {f"/{names[0]}": (600, 100_000)}),
        fake.blamed(fake.run("radix4", cycles=700, large_pages=100), {f"/{names[0]}": (10, 10_000)}),
    ]
    runs[1]["scheme"] = LONG
    add_speedups(runs)
    found = blame.build(runs)
    assert found is not None
    return found


def test_a_page_under_the_usual_name_replaces_nothing(tmp_path: Path) -> None:
    """Also where the name was free when the command began."""
    page = tmp_path / "page.html"
    assert [output.write_report(page, text, usual=True).name for text in "abc"] == [
        "page.html",
        "page-2.html",
        "page-3.html",
    ]
    assert output.write_report(page, "d", usual=False) == page
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["b", "c", "d"]
    page.unlink()
    page.symlink_to(tmp_path / "nowhere")
    assert output.write_report(page, "e", usual=True).name == "page-4.html"
    with pytest.raises(FlatwalkError, match="cannot be written"):
        output.write_report(tmp_path / "none" / "page.html", "f", usual=True)


def test_schemes_of_other_page_sizes_are_named(call: Call, tmp_path: Path) -> None:
    options = "--workload gups:64MiB --instructions 20K --warmup 0 --exhaustive --mode functional --no-report"
    asked = [*options.split(), "--machine", "itanium2", "--large-pages", "0", "--json", "all.json"]
    assert (
        "pages of 4 KiB, those of ia64-3 have 16 KiB"
        in call("compare", *asked, "--schemes", "ia64-3,radix4").err
    )
    runs = json.loads((tmp_path / "all.json").read_text())["runs"]
    assert [any("page sizes" in warning for warning in run["warnings"]) for run in runs] == [False, True]
    assert "page sizes" not in call("compare", *asked, "--schemes", "ia64-3,ia64-4").err
