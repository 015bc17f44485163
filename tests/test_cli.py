"""The command line with chosen answers: what it asks of the engine, prints, writes and refuses."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk import engine, processor
from flatwalk.errors import FlatwalkError
from flatwalk.recorder import find_recorder
from flatwalk.terminal import output
from tests import fake
from tests.terminal import on_terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Result

    Call = Callable[..., Result]

COMMANDS = [
    [],
    ["compare"],
    ["reproduce"],
    ["record"],
    ["walk"],
    ["version"],
    ["trace"],
    ["trace", "info"],
    ["trace", "import"],
    ["trace", "export"],
    ["list"],
    ["list", "schemes"],
    ["list", "machines"],
    ["list", "mixes"],
    ["list", "workloads"],
    ["cache"],
    ["cache", "list"],
    ["cache", "clear"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_help_has_an_example(call: Call, command: list[str]) -> None:
    result = call(*command, "--help")
    assert result.code == 0
    assert f"\n    flatwalk {' '.join(command)}".rstrip() in result.out.split("Example")[1]
    assert "\x1b" not in result.out
    assert call(*command, "-h") == result


@pytest.mark.parametrize("group", [[], ["host"], ["vm"], ["trace"], ["results"]])
def test_a_group_lists_its_commands_with_whole_sentences(call: Call, group: list[str]) -> None:
    listed = call(*group, "--help").out.split("\nCommands:\n")[1].split("\n\n")[0]
    entries = re.split(r"\n(?=  \S)", listed)
    assert len(entries) > 2
    assert [entry for entry in entries if not entry.endswith(".")] == []
    assert "..." not in listed
    assert max(map(len, listed.splitlines())) < 80


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['flatwalk', '--help']\n"
        "from flatwalk.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & "
        "{'rich', 'jinja2', 'tomllib', 'json', 'tempfile'}), 'flatwalk._engine' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] False"


def test_the_version_is_an_option_too(call: Call) -> None:
    assert call("--version") == call("version")


@pytest.mark.usefixtures("fake_engine")
def test_a_trace_without_an_end_is_doubted(call: Call, tmp_path: Path) -> None:
    (tmp_path / "cut.fwt").write_bytes(b"")
    result = call("compare", "--trace", "cut.fwt", "--json", "out.json")
    assert "warning: the trace was cut off" in result.err
    answer = json.loads((tmp_path / "out.json").read_text())
    assert all(any("cut off" in warning for warning in run["warnings"]) for run in answer["runs"])
    assert "cut off" not in call("compare").err


def test_compare_writes_all_it_promises(call: Call, fake_engine: fake.Engine, tmp_path: Path) -> None:
    result = call("compare", "--json", "out.json")
    assert result.code == 0, result.err
    answer = json.loads((tmp_path / "out.json").read_text())
    assert answer["schema"] == "flatwalk-compare/2"
    assert answer["version"] == "0.0.0"
    assert len(answer["runs"]) == 22
    for run in answer["runs"]:
        assert {
            "scheme",
            "machine",
            "workload",
            "large_pages",
            "mode",
            "instructions",
            "cycles",
            "ipc",
            "speedup",
            "walks",
            "accesses_per_walk",
            "walk_latency_cycles",
            "page_table_bytes",
            "data_bytes",
            "seed",
            "warnings",
        } <= run.keys()
    report = tmp_path / "flatwalk-report.html"
    assert "fpt+ptp is best, 32 % faster" in report.read_text()
    last = result.out.rstrip().splitlines()[-11:]
    assert last[0].startswith("Judged: instructions 200 k to 1.2 M, one part.")
    assert last[1].startswith(
        "Huge pages: 2 MiB pages make radix4 33 % faster than 4 KiB pages; of the 33 %, "
    )
    assert last[8].startswith("All together at 4 KiB pages: fpt+ptp is best, 32 % faster than radix4; ")
    assert last[9].startswith("All together at 2 MiB pages: fpt+ptp is best, 19 % faster than radix4; ")
    assert last[10] == f"Report: {report}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flatwalk-report.html", "out.json"]
    (asked,) = fake_engine.requests
    assert asked["source"] == {"workload": {"name": "gups", "size_bytes": 1 << 30}}
    assert (asked["instructions"], asked["warmup"], asked["skip"]) == (1_000_000_000, 0, 2_000_000)
    lengths = {"windows": 40, "window": 400_000, "warmup": 2_000_000, "filling": 16_000_000}
    assert asked["sampling"] == lengths
    assert (asked["seed"], asked["threads"]) == (1, 0)


def test_a_panic_of_the_engine_is_an_error(
    call: Call, fake_engine: fake.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what else is no `Exception`, as Ctrl-C, stays what it is."""

    def raising(error: BaseException) -> Callable[..., str]:
        def simulate(*_: object) -> str:
            raise error

        return simulate

    # As pyo3 has it.
    panic = type("PanicException", (BaseException,), {})
    asked = ("compare", "--workload", "gups:64MiB", "--no-report")
    monkeypatch.setattr(fake_engine, "simulate", raising(panic("index out of bounds\nat 7")))
    result = call(*asked)
    assert (result.code, result.out) == (1, "")
    assert "error: the engine failed: index out of bounds" in result.err
    assert "remedy: report it, with this command" in result.err
    monkeypatch.setattr(fake_engine, "simulate", raising(KeyboardInterrupt()))
    assert call(*asked).code == 130


def test_compare_asks_what_was_asked(call: Call, fake_engine: fake.Engine) -> None:
    result = call(
        *["compare", "--workload", "gups:8GiB", "--schemes", "fpt, radix4", "--machine", "zen4"],
        *["--large-pages", "50,0", "--fragmentation", "0.25", "--instructions", "1M", "--warmup", "200k"],
        *["--seed", "7", "--jobs", "1", "--no-report"],
    )
    assert result.code == 0, result.err
    assert "Report" not in result.out
    (asked,) = fake_engine.requests
    assert asked["source"]["workload"]["size_bytes"] == 8 << 30
    assert (asked["instructions"], asked["warmup"], asked["skip"]) == (1_000_000, 0, 200_000)
    lengths = {"windows": 40, "window": 400_000, "warmup": 200_000, "filling": 1_600_000}
    assert asked["sampling"] == lengths
    assert (asked["seed"], asked["threads"]) == (7, 1)
    shape = [(run["scheme"]["name"], run["large_pages"], run["thp"]) for run in asked["runs"]]
    assert shape == [("fpt", 50, None), ("radix4", 50, None), ("fpt", 0, None), ("radix4", 0, None)]
    assert {run["machine"]["name"] for run in asked["runs"]} == {"zen4"}
    assert {run["fragmentation"] for run in asked["runs"]} == {0.25}


@pytest.mark.usefixtures("fake_engine")
def test_an_error_of_nothing_is_told(call: Call) -> None:
    done = call("compare", "--schemes", "radix4", "--large-pages", "0", "--error", "1%", "--no-report")
    assert (done.code, "Nothing is compared, so that --error has no effect.\n" in done.err) == (0, True)


def test_a_recorded_table_has_the_pages_that_it_has(call: Call, fake_engine: fake.Engine) -> None:
    assert call("compare", "--schemes", "radix4,recorded").code == 0
    asked = fake_engine.requests[-1]
    assert [run["large_pages"] for run in asked["runs"]] == [0, 0]


def test_thp_takes_the_place_of_large_pages(call: Call, fake_engine: fake.Engine) -> None:
    assert call("compare", "--thp", "madvise", "--schemes", "radix4", "--no-report").code == 0
    (run,) = fake_engine.requests[0]["runs"]
    assert (run["thp"], run["large_pages"]) == ("madvise", None)


def test_a_pipe_gets_plain_aligned_text(call: Call, fake_engine: fake.Engine) -> None:
    del fake_engine
    result = call("compare", "--large-pages", "0", "--no-report")
    assert result.out.isprintable() or "\x1b" not in result.out
    assert not set(result.out) & set("│┃━─┏╇\x1b\r")
    lines = result.out.splitlines()
    assert lines[0] == "gups:8GiB on skylake-server, 4 KiB pages"
    body = lines[1:13]
    assert [line.split()[0] for line in body] == ["scheme", *fake.GUPS]
    ends = {line.rstrip().rfind("B") for line in body[1:]}
    assert len(ends) == 1, "figures end in one column"
    assert "+31.6 %" in result.out
    assert result.err == ""


def test_json_to_standard_output_is_alone_there(call: Call, fake_engine: fake.Engine) -> None:
    del fake_engine
    result = call("compare", "--schemes", "radix4,fpt", "--large-pages", "0", "--json", "-")
    assert [run["speedup"] for run in json.loads(result.out)["runs"]] == pytest.approx([1.0, 1000 / 925])
    assert "fpt is best, 8.1 % faster than radix4" in result.err


def test_warnings_are_reported_once(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        return fake.response(
            [fake.run(r["scheme"]["name"], warnings=["the L2 TLB never filled"]) for r in asked["runs"]]
        )

    monkeypatch.setattr(engine, "_module", lambda: fake.Engine(answer))
    result = call("compare", "--schemes", "radix4,fpt", "--large-pages", "0", "--no-report")
    assert result.err == "warning: the L2 TLB never filled\n"


def test_a_recorded_sample_has_the_windows_that_it_has(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trace = tmp_path / "sample.fwt"
    trace.touch()
    monkeypatch.setattr(engine, "trace_info", lambda *_: {"gap_instructions": 1_000_000})
    result = call("compare", "--trace", trace, "--windows", "5")
    assert result.code == 2
    assert "one window in each of its segments" in result.err
    assert "record --windows N" in result.err


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["compare", "--schemes", "radix4,fptt"], ["no scheme 'fptt'", "did you mean fpt?"]),
        (["compare", "--schemes", ","], ["no scheme is named"]),
        (["compare", "--machine", "zen44"], ["no machine 'zen44'", "did you mean zen4?"]),
        (["compare", "--machine", "./none.toml"], ["cannot be read", "none.toml"]),
        (["compare", "--machine", "compendia"], ["can only count", "--mode functional"]),
        (["compare", "--workload", "gup"], ["no workload 'gup'", "gups"]),
        (["compare", "--workload", ""], ["no workload is named", "gups"]),
        (["walk", "--workload", ""], ["no workload is named", "gups"]),
        (["compare", "--workload", "gups:64MiB::::"], ["no variant ''", "where:  --workload\n"]),
        (["compare", "--workload", "gups:0"], ["a size of 0 B", "where:  --workload\n", "4KiB to 64TiB"]),
        (["compare", "--workload", "gups:3MiB"], ["a size of 3 MiB", "a power of two from 4KiB"]),
        (["walk", "--workload", "gups:128TiB"], ["a size of 128 TiB", "where:  --workload\n"]),
        (["compare", "--workload", "gups:big"], ["size 'big' not understood", "512GiB"]),
        (["compare", "--trace", "none.fwt"], ["no file none.fwt", "flatwalk record"]),
        (["compare", "--trace", "a", "--workload", "gups"], ["more than one thing"]),
        (["compare", "--keep-trace", "a"], ["nothing to record"]),
        (["compare", "--time", "1"], ["nothing to record", "--time"]),
        (["compare", "--host-large-pages", "50"], ["no scheme runs in a guest", "--virt radix4/fpt"]),
        (["compare", "--guest-frames", "compact"], ["no scheme runs in a guest", "--guest-frames"]),
        (["compare", "--large-pages", "0,150"], ["'150' is not a percentage"]),
        (["compare", "--large-pages", "0", "--thp", "always"], ["give one of them"]),
        (["compare", "--thp", "sometimes"], ["always, madvise or never"]),
        (["compare", "--mode", "fast"], ["timing or functional"]),
        (["compare", "--instructions", "lots"], ["count 'lots' not understood", "100M"]),
        (["compare", "--instructions", "0"], ["nothing is to be simulated"]),
        (["compare", "--fragmentation", "2"], ["--fragmentation"]),
        (["compare", "--report", "no/such/r.html"], ["there is no directory"]),
        (["compare", "--json", "."], ["is a directory"]),
        (["compare", "--report", "r.html", "--no-report"], ["give one of them"]),
        (["compare", "--shcemes", "fpt"], ["--shcemes", "compare --help"]),
        (["compare", "--instructions", "9" * 26], ["is too large", "--instructions"]),
        (["compare", "--error", "200%"], ["above 0 and below 100", "--error"]),
        (["compare", "--window", "999"], ["windows of 999 instructions", "give 1000 or more"]),
        (["compare", "--mix", "2*gups", "--window", "1"], ["windows of 1 instructions", "--window"]),
        (["compare", "--instructions", "999"], ["999 instructions are too few", "--mode functional"]),
        (["compare", "--seed", "9" * 26], ["--seed", "18446744073709551615"]),
        (["compare", "--workload", f"gups:{'9' * 26}"], ["is too large", "less than 16777216 TiB"]),
        (
            ["compare", "--workload", "redis:64MiB"],
            ["record --workload redis:64MiB", "compare --trace redis.fwt"],
        ),
        (["compare", "--trace", "."], [". is a directory"]),
        (["reproduce", "./x.toml"], ["./x.toml is a file", "docs/reproducing.md"]),
        (["record", "--", "/etc/passwd"], ["neither a Linux program nor a script"]),
        (["record", "--", "/etc"], ["this is a directory"]),
        (["record"], ["no program to record", "--"]),
        (["record", "-o", "no/such.fwt", "--", "true"], ["there is no directory"]),
        (["walk", "nowhere"], ["'nowhere' is not an address"]),
        (["walk", "0x10000000000000000"], ["not an address"]),
        (["walk", "--trace", "a", "--workload", "gups"], ["two address spaces"]),
        (["walk", "--instructions", "few"], ["count 'few' not understood"]),
        (["trace", "info"], ["FILE", "info --help"]),
        (["trace", "info", "none"], ["no file none"]),
        (["trace", "import", "none", "x"], ["no file none"]),
        (["trace", "export", "none", "x"], ["no file none"]),
        (
            ["trace", "export", "none", "x", "--format", "foo"],
            ["'foo'", "remedy: give champsim\n", "--format"],
        ),
        (["trace", "export", "none", "x", "--format", "lackey"], ["'lackey'", "remedy: give champsim\n"]),
        (
            ["compare", "--set"],
            ["'--set' requires an argument", "where:  flatwalk compare\n", "compare --help"],
        ),
        (["host", "diff", "--plot"], ["where:  flatwalk host diff\n", "see flatwalk host diff --help"]),
        (["comapre"], ["comapre"]),
        (["compare", "--windows", "9" * 26], ["--windows", "1048576"]),
        (["compare", "--jobs", "9" * 26], ["--jobs", "4096"]),
        (["host", "pagefault", "--repetitions", "9" * 26], ["--repetitions", "1000000"]),
        (["host", "ebizzy", "--chunks", "9" * 26], ["--chunks", "1000000"]),
        (["host", "ebizzy", "--milliseconds", "9" * 26], ["--milliseconds", "3600000"]),
        (["host", "walk", "--groups", "9" * 26], ["--groups", "1000000"]),
        (["compare", "--set", "a=\udcff"], ["a=\\xff is not UTF-8\n  where:  --set\n"]),
        (["walk", "--set", "a=\udcff"], ["a=\\xff is not UTF-8\n  where:  --set\n"]),
        (["compare", "--thp", "\udcff"], ["\\xff is not UTF-8\n  where:  --thp\n"]),
        (["compare", "--mode", "\udcff"], ["\\xff is not UTF-8\n  where:  --mode\n"]),
        (
            ["compare", "--virt", "radix4/fpt", "--guest-frames", "\udcff"],
            ["\\xff is not UTF-8\n  where:  --guest-frames\n"],
        ),
        (["compare", "--context-switch", "inf"], ["--context-switch", "equal to 1000000"]),
        (["vm", "run", "--source", "missing", "--", "true"], ["where:  --source\n", "no directory missing"]),
        (["compare", "--machine", ""], ["no machine is named\n  where:  --machine\n"]),
        (["compare", "--virt", ""], ["no guest is named\n  where:  --virt\n"]),
        (["compare", "--virt", ","], ["no guest is named\n  where:  --virt\n"]),
    ],
    ids=" ".join,
)
def test_usage_errors_say_what_where_and_the_remedy(
    call: Call, fake_engine: fake.Engine, arguments: list[str], reported: list[str]
) -> None:
    result = call(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert "  where:  " in result.err
    assert "  remedy: " in result.err
    for words in reported:
        assert words in result.err
    assert fake_engine.requests == []


def test_what_the_engine_refuses_is_a_failure(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answer(_asked: dict[str, Any]) -> dict[str, Any]:
        raise fake.Engine.EngineError("block 7 of x.fwt is damaged (offset 812): record it again")

    monkeypatch.setattr(engine, "_module", lambda: fake.Engine(answer))
    result = call("compare", "--json", "out.json")
    assert result.code == 1
    assert result.err == "error: block 7 of x.fwt is damaged (offset 812): record it again\n"
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing_behind(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def answer(_asked: dict[str, Any]) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_module", lambda: fake.Engine(answer))
    result = call("compare", "--json", "out.json")
    assert result.code == 130
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_it_loads_is_no_traceback(tmp_path: Path) -> None:
    loading = "import signal, sys; sys.meta_path.insert(0, type('', (), {'find_spec': find}))"
    find = "find = lambda name, *_: signal.raise_signal(2) if name == 'flatwalk.cli' else None"
    begin = f"{find}; {loading}; from flatwalk.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-I", "-c", begin], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (130, b"")
    assert done.stderr == b"\nInterrupted; nothing was left half-written.\n"


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    path.write_text("before")

    def fail_in_the_middle() -> None:
        with output.whole_file(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_in_the_middle()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    output.write_whole(path, "after")
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -I -m flatwalk list schemes --json | head -n 1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[\n", "")


@pytest.mark.parametrize("arguments", ["list keys", "list schemes", "compare --help"])
def test_no_reader_is_no_error(tmp_path: Path, arguments: str) -> None:
    line = f"{sys.executable} -I -m flatwalk {arguments} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_terminal_gets_a_framed_table(tmp_path: Path) -> None:
    seen = on_terminal([sys.executable, "-I", "-m", "flatwalk", "list", "machines"], 200, tmp_path)
    assert "skylake-server" in seen
    assert "─" in seen


def test_walk_prints_the_steps(call: Call, fake_engine: fake.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def walk(request: str) -> str:
        asked.append(json.loads(request))
        return json.dumps(
            {
                "scheme": "fpt",
                "machine": "skylake-server",
                "workload": "gups:1GiB",
                "instructions": 2_000_000,
                "address": "0x7f000000",
                "moved_to": None,
                "physical": "0x1028",
                "page": "4K",
                "accesses": 1,
                "latency_cycles": 5,
                "steps": [{"text": "L1 TLB: miss"}, {"text": "L4 entry 5 at 0x1028"}],
            }
        )

    monkeypatch.setattr(fake_engine, "walk", walk, raising=False)
    result = call("walk", "0x7F00_0000", "--scheme", "fpt", "--large-pages", "50", "--instructions", "2M")
    assert result.out == (
        "0x7f000000 of gups:1GiB under fpt on skylake-server, after 2 M instructions\n"
        " 1. L1 TLB: miss\n"
        " 2. L4 entry 5 at 0x1028\n"
        "Physical address 0x1028 in a 4K page. A walk reads 1 entry in 5 cycles.\n"
    )
    assert asked[0]["address"] == 0x7F000000
    assert asked[0]["run"]["scheme"]["name"] == "fpt"
    assert asked[0]["run"]["large_pages"] == 50
    assert asked[0]["instructions"] == 2_000_000


def test_walk_writes_the_steps_under_several_schemes(
    call: Call, fake_engine: fake.Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def walk(request: str) -> str:
        return json.dumps(fake.walk(json.loads(request)["run"]["scheme"]["name"]))

    monkeypatch.setattr(fake_engine, "walk", walk, raising=False)
    result = call("walk", "--scheme", "radix4, fpt", "--report", "walk.html")
    assert result.err == f"Report: {tmp_path / 'walk.html'}\n"
    assert [line for line in result.out.splitlines() if "under" in line] == [
        f"0x1003db2590 of gups:8GiB under {scheme} on skylake-server, after 1 M instructions"
        for scheme in ("radix4", "fpt")
    ]
    page = (tmp_path / "walk.html").read_text(encoding="utf-8")
    assert page.count('<section class="walk"') == 2
    assert 'flatten = ["L4L3", "L2L1"]' in html.unescape(page)
    both = json.loads(call("walk", "--scheme", "radix4,fpt", "--json").out)
    assert [one["scheme"] for one in both] == ["radix4", "fpt"]
    assert json.loads(call("walk", "--scheme", "fpt", "--json").out)["scheme"] == "fpt"
    refused = call("walk", "--scheme", "fpt,fpt")
    assert (refused.code, "two schemes are called fpt" in refused.err) == (2, True)
    assert "nowhere" in call("walk", "--report", "nowhere/walk.html").err


def test_lists_hold_what_is_shipped(call: Call, fake_engine: fake.Engine) -> None:
    del fake_engine
    assert call("list", "schemes").out.splitlines()[1].startswith("radix4 ")
    machines = json.loads(call("list", "machines", "--json").out)
    assert [machine["name"] for machine in machines] == sorted(machine["name"] for machine in machines)
    assert "gups:1GiB" in call("list", "workloads").out


def test_version(call: Call, fake_engine: fake.Engine) -> None:
    del fake_engine
    assert call("version").out == "flatwalk 0.0.0\n"


def test_an_engine_built_for_another_processor_is_not_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built_for = tmp_path / "processor"
    monkeypatch.setattr(processor, "_BUILT_FOR", built_for)
    monkeypatch.delitem(sys.modules, "flatwalk._engine", raising=False)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 bmi2\nbugs\t\t: fma\n\nprocessor\t: 1\n")
    monkeypatch.setattr(processor, "_CPUINFO", cpuinfo)
    built_for.write_text("avx2 fma abm\n")
    with pytest.raises(FlatwalkError, match="lacks abm, fma") as caught:
        engine.version()
    assert "./flatwalk" in (caught.value.remedy or "")
    with pytest.raises(FlatwalkError, match="lacks abm, fma"):
        find_recorder()
    for content in ("bmi2 avx2\n", "\n"):
        built_for.write_text(content)
        assert engine.version()
