"""What commands and functions say of wrong arguments names them, and what helps."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import flatwalk as fw
from flatwalk import engine
from flatwalk.answer import judged
from flatwalk.comparison import lengths, mix
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.recorder import Sample
from flatwalk.recorder.reports import Reports
from flatwalk.recorder.result import ProcessTrace
from tests import fake

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Result

    Call = Callable[..., Result]

#: A recording of 1.52 G instructions with a segment in each 40 M.
SAMPLE = {"instructions": 95_000_000, "gap_instructions": 1_425_000_000, "segment_instructions": 2_500_000}
MISSING = "there is no program behind --"


@pytest.mark.parametrize("command", [["compare"], ["record"], ["compare", "--seed", "2"]], ids=" ".join)
def test_two_dashes_announce_a_program(call: Call, command: list[str]) -> None:
    result = call(*command, "--")
    assert (result.code, result.out) == (2, "")
    assert f"error: {MISSING}\n" in result.err
    # Behind a program they are its own.
    assert MISSING not in call(*command, "--", "no-such-program", "--").err


def test_a_part_that_no_segment_ends_in_says_how_much_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "trace_info", lambda _path: SAMPLE)
    request: dict[str, Any] = {"source": {"trace": "a.fwt"}, "instructions": 4_000_000, "skip": 0}
    error = lengths.nothing_left(request, " of a.fwt")
    assert error.what == (
        "nothing is left to measure of a.fwt: the trace is a sample, and none of its segments ends within "
        "4 M instructions"
    )
    assert error.where == "--instructions"
    # Two stretches hold a whole one wherever they begin.
    assert error.remedy == "give 80M or more: there is one in about each 40 M"
    late = lengths.nothing_left(request | {"skip": 1_500_000_000})
    assert "fewer instructions than are left out" in late.what
    assert lengths.nothing_left({"source": {"workload": {}}, "instructions": 4, "skip": 0}).where == (
        "--skip and --warmup"
    )


@pytest.mark.parametrize(
    ("skip", "warmup", "where", "remedy"),
    [
        (0, 55_388, "--warmup", "it must stay below 55388"),
        (60_000, None, "--skip", "it must stay below 55388"),
        (50_000, 6000, "--skip and --warmup", "together they must stay below 55388"),
    ],
)
def test_only_what_was_left_out_is_blamed(
    monkeypatch: pytest.MonkeyPatch, skip: int, warmup: int | None, where: str, remedy: str
) -> None:
    monkeypatch.setattr(engine, "trace_info", lambda _path: {"instructions": 55_388})
    with pytest.raises(UsageError) as error:
        lengths.Lengths(None, warmup, skip, exhaustive=True).request({"trace": "a.fwt"})
    assert (error.value.where, error.value.remedy) == (where, remedy)


def test_windows_that_segments_cut_short_are_up_to_their_length() -> None:
    response: Any = fake.sample([fake.run()])
    count = response["sampling"]["windows"]
    assert f"Judged: {count} windows of 25 k instructions" in judged.judged_words(response)
    response["sampling"]["instructions_measured"] -= 2000 * count
    assert f"Judged: {count} windows of up to 25 k instructions" in judged.judged_words(response)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--", ""], "the program has no name"),
        (["--keep-trace", "keep.txt", "--", "true"], "choose another name with --keep-trace, or remove it"),
        (["--mix", "gups:1MiB"], "give --workload gups:1MiB, or a mix of one: --mix '1*gups:1MiB'"),
        (["--mix", "a.fwt"], "give --trace a.fwt, or a mix of one: --mix '1*a.fwt'"),
        (["--machine", "latin.toml"], "the machine file is not UTF-8 in line 2"),
        (["--machine", "."], "by path, as ./mine.toml"),
        (["--trace", "a\nb"], "error: there is no file a\\nb\n"),
    ],
)
def test_what_helps_is_named(call: Call, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "keep.txt").write_text("mine")
    (tmp_path / "latin.toml").write_bytes(b"name = 'a'\ntitle = '\xe4'\n")
    result = call("compare", "--no-report", *arguments)
    assert result.code == 2
    assert words in result.err
    assert (tmp_path / "keep.txt").read_text() == "mine"


def test_a_mix_of_one_is_one() -> None:
    assert mix.programs("1*gups:1MiB")["programs"] == ["gups:1MiB"]


@pytest.mark.parametrize(
    ("place", "words"),
    [("marker", "never reached flatwalk_start()"), ("0x10", "check the address"), ("nowhere", "nm -C")],
)
def test_a_place_that_is_not_reached_has_its_own_remedy(call: Call, place: str, words: str) -> None:
    result = call("record", "--start-at", place, "-o", "a.fwt", "--", "true")
    assert result.code == 1
    assert words in result.err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        *((option, "count '' not understood") for option in ("--skip", "--limit", "--windows", "--segment")),
        *((option, "no place is named") for option in ("--start-at", "--stop-at")),
    ],
)
def test_an_empty_value_is_not_none(call: Call, tmp_path: Path, option: str, words: str) -> None:
    result = call("record", option, "", "-o", "a.fwt", "--", "true")
    assert result.code == 2
    assert f"error: {words}\n  where:  {option}\n" in result.err
    assert list(tmp_path.iterdir()) == []


def test_names_with_line_feeds_stay_on_one_line(call: Call, tmp_path: Path) -> None:
    program = tmp_path / "a\nb"
    shutil.copy("/bin/true", program)
    result = call("record", "--exhaustive", "-o", "c\nd.fwt", "--", "./a\nb")
    assert result.code == 0
    assert "c\\nd.fwt: " in result.err
    assert "instructions of 'a\\nb' (" in result.err
    result = call("compare", "--no-report", "--schemes", "radix4", "--large-pages", "0", "--", "./a\nb")
    assert "Recording './a\\nb' …\n" in result.err


def test_what_did_not_reach_the_disk_is_not_said_to_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("flatwalk.recorder.reports._totals", lambda _file: {"instructions": 0})
    reports = Reports()
    file = str(tmp_path / "a.fwt")
    reports.add({"type": "start", "file": file, "pid": 7, "command": ["true"]})
    end = {
        "type": "end",
        "file": file,
        "pid": 7,
        "error": "No space left",
        "disk_full": True,
        "bytes": 61_440,
    }
    reports.add(end | {"instructions": 1000, "gap_instructions": 0, "reason": "failed", "segments": None})
    assert [trace.instructions for trace in reports.traces] == [0]
    with pytest.raises(FlatwalkError, match="no instruction was written by then, so nothing is kept"):
        reports.raise_errors(tmp_path / "a.fwt", [])
    monkeypatch.setattr("flatwalk.recorder.reports._totals", lambda _file: {"instructions": 900})
    reports.add(end | {"instructions": 1000, "gap_instructions": 0, "reason": "failed", "segments": None})
    with pytest.raises(FlatwalkError, match=r"900 instructions kept, valid up to that point: .*a\.fwt"):
        reports.raise_errors(tmp_path / "a.fwt", reports.traces)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: fw.walk("zz", workload="gups:1MiB"), "'zz' is not an address"),  # type: ignore[arg-type]
        (lambda: fw.walk(-1, workload="gups:1MiB"), "-1 is not an address"),
        (lambda: fw.compare(workload="gups:1MiB", schemes="radix9"), "there is no scheme 'radix9'"),
        (lambda: fw.compare(workload="gups:1MiB", schemes=[3]), "3 is not the name of a scheme"),  # type: ignore[list-item]
        (lambda: fw.compare(workload="gups:1MiB", machine=[3]), "3 is not the name of a machine"),  # type: ignore[list-item]
        (lambda: fw.compare(command="sort big.txt"), "'sort big.txt' is one text"),
        (lambda: fw.record("true", "a.fwt"), "'true' is one text"),
        (lambda: fw.Scheme.of(3), "3 is neither a page table nor a mechanism"),  # type: ignore[arg-type]
    ],
)
def test_wrong_types_are_named_in_python(wrong: Callable[[], object], words: str) -> None:
    with pytest.raises(fw.UsageError, match=words):
        wrong()


def test_one_scheme_need_not_be_in_a_list() -> None:
    found = fw.compare(
        workload="gups:1MiB", schemes="fpt", large_pages=0, instructions="20k", exhaustive=True
    )
    assert [run["scheme"] for run in found.runs] == ["fpt"]


def test_commands_and_python_have_the_same_defaults(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def walk(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return {**fake.walk("radix4"), "settings": {}}

    monkeypatch.setattr(engine, "walk", walk)
    call("walk", "--scheme", "radix4")
    fw.walk(workload="gups:1GiB")
    assert asked[0] == asked[1]
    assert (asked[0]["seed"], asked[0]["instructions"]) == (1, 1_000_000)
    assert Sample().seed == default_seed(fw.record) == default_seed(fw.compare) == 1


def default_seed(function: Callable[..., object]) -> object:
    """The default seed of a function."""
    return (function.__kwdefaults__ or {})["seed"]


@pytest.mark.parametrize(
    "asked", [["compare", "--report", "-"], ["record", "-o", "-", "--", "true"]], ids=" ".join
)
def test_a_dash_is_no_file(call: Call, tmp_path: Path, asked: list[str]) -> None:
    result = call(*asked)
    assert (result.code, "- is not the name of a file" in result.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_one_segment_is_one() -> None:
    trace = ProcessTrace(Path("a.fwt"), 7, ["true"], 100, 50, "exit", 900, 1)
    assert str(trace).startswith("a.fwt: 100 of 1,000 instructions in 1 segment of true")


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "--trace", "./of threads"],
        ["compare", "--mix", "./of threads,gups"],
        ["walk", "--trace", "./of threads"],
        ["trace", "info", "./of threads"],
        ["trace", "export", "./of threads", "x.champsim"],
        ["sweep", "s.toml", "--dry-run"],
    ],
    ids=" ".join,
)
def test_a_directory_is_imported_and_no_file_of_it_is_simulated_alone(
    call: Call, tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "of threads").mkdir()
    (tmp_path / "s.toml").write_text('name = "s"\nschemes = ["radix4"]\ntraces = ["of threads"]\n')
    result = call(*command)
    assert (result.code, result.out) == (2, "")
    assert "of threads is a directory" in result.err
    assert "flatwalk trace import 'of threads' FILE.fwt" in result.err


def test_functions_want_a_directory_imported_too(tmp_path: Path) -> None:
    for function in (fw.compare, fw.walk):
        with pytest.raises(UsageError, match=f"trace import {tmp_path} FILE.fwt") as caught:
            function(trace=tmp_path)
        assert caught.value.where == "trace"
