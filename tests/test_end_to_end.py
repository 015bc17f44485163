"""The command line with the real engine, as a user runs it."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from flatwalk import cli, units
from flatwalk.definitions import settings
from flatwalk.terminal import output
from tests.running import PATIENCE_SECONDS, wait_until, waited_for
from tests.test_cli import COMMANDS
from tests.test_foreign import thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.conftest import Result

    Flatwalk = Callable[..., Result]

RESULTS = Path(__file__).parents[1] / "docs" / "result-format.md"
SHORT = ["--instructions", "300k", "--warmup", "100k"]
#: Instructions; cuts are made between blocks.
LONGEST_BLOCK = 512


def _runs(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    answer = json.loads(path.read_text())
    assert answer["schema"] == "flatwalk-compare/2"
    return {(run["scheme"], run["large_pages"]): run for run in answer["runs"]}


def test_compare_from_a_workload_to_an_answer(flatwalk: Flatwalk, tmp_path: Path) -> None:
    result = flatwalk("compare", "--workload", "gups:64MiB", *SHORT, "--json", "out.json")
    assert result.code == 0, result.err
    assert "\x1b" not in result.out + result.err
    runs = _runs(tmp_path / "out.json")
    assert set(runs) == {(scheme, pages) for scheme in settings.DEFAULT_SCHEMES for pages in (0, 100)}
    for (scheme, pages), run in runs.items():
        assert run["instructions"] == 300_000
        assert run["mode"] == "timing"
        assert run["workload"] == "gups:64MiB"
        assert run["cycles"] > 0
        assert run["ipc"] == pytest.approx(run["instructions"] / run["cycles"])
        assert run["speedup"] == pytest.approx(runs["radix4", pages]["cycles"] / run["cycles"])
        assert run["data_bytes"] >= 64 << 20
        nodes = run["page_table"]["nodes"]
        assert run["page_table_bytes"] == sum(item["bytes"] for item in nodes)
        (tree,) = run["page_table"]["trees"]
        assert run["page_table_bytes"] == sum(part["nodes"] * part["node_bytes"] for part in tree["parts"])
        kinds = [sum(part[kind] for part in tree["parts"]) for kind in ("tables", "pages", "replicas")]
        assert sum(kinds) == sum(item["entries_used"] for item in nodes)
        assert kinds[0] == sum(part["nodes"] for part in tree["parts"][1:])
        assert all(item["bytes"] == item["nodes"] * item["node_bytes"] for item in nodes)
        levels = run["walk"]["accesses_by_level"]
        for level in levels:
            served = level["l1d"] + level["l2"] + level["llc"] + level["dram"]
            assert served == level["accesses"]
        accesses = sum(level["accesses"] for level in levels)
        if run["walks"]:
            assert run["accesses_per_walk"] == pytest.approx(accesses / run["walks"])
            assert sum(item["walks"] for item in run["walk"]["latency_histogram"]) == run["walks"]
            parts = run["walk_queue_cycles"] + run["walk_access_cycles"]
            assert parts <= run["walk_latency_cycles"] + 1e-6
        if scheme == "ideal":
            assert run["walks"] == 0
            # On large pages nothing walks: in which order memory serves requests says which is faster.
            assert run["speedup"] > (0.99 if pages else 1.1)
        assert run["configuration"]["scheme"]["name"] == scheme
        assert run["configuration"]["machine"] == settings.machine("skylake-server")
    report = (tmp_path / "flatwalk-report.html").read_text()
    assert "The answer" in report
    assert result.out.rstrip().endswith(f"Report: {tmp_path / 'flatwalk-report.html'}")


def test_the_same_command_gives_the_same_bytes(flatwalk: Flatwalk, tmp_path: Path) -> None:
    command = ["compare", "--workload", "gups:64MiB", *SHORT, "--schemes", "radix4,fpt+ptp"]
    for number, jobs in enumerate(["1", "1", "2"]):
        flatwalk(*command, "--jobs", jobs, "--json", f"{number}.json", "--report", f"{number}.html")
    for kind in ("json", "html"):
        assert len({(tmp_path / f"{number}.{kind}").read_bytes() for number in range(3)}) == 1
    other = flatwalk(*command, "--seed", "2", "--json", "-", "--no-report")
    assert json.loads(other.out)["runs"] != json.loads((tmp_path / "0.json").read_text())["runs"]


def test_gups_walks_as_the_paper_says(flatwalk: Flatwalk, tmp_path: Path) -> None:
    result = flatwalk(
        *["compare", "--workload", "gups:8GiB", "--mode", "functional", "--large-pages", "0"],
        *["--schemes", "radix4,fpt,ideal", "--instructions", "5M", "--warmup", "1M"],
        *["--json", "out.json", "--no-report"],
    )
    assert result.code == 0, result.err
    runs = _runs(tmp_path / "out.json")
    radix4, fpt = runs["radix4", 0], runs["fpt", 0]
    assert radix4["accesses_per_walk"] == pytest.approx(2.49, abs=0.05)
    assert fpt["accesses_per_walk"] == pytest.approx(1.00, abs=0.05)
    assert radix4["cycles"] is radix4["ipc"] is radix4["speedup"] is radix4["walk_latency_cycles"] is None
    assert 4106 <= radix4["page_table_bytes"] / 4096 <= 4120, "8 GiB dense, plus the few for anything else"
    large = {item["node_bytes"]: item["nodes"] for item in fpt["page_table"]["nodes"]}
    assert 9 <= large[2 << 20] <= 11
    assert re.search(
        r"fpt is best, its walks make (59|60) % fewer accesses( \(.*\))? than radix4's", result.out
    )


@pytest.mark.parametrize(("size", "radix4"), [("128MiB", 1.02), ("256MiB", 1.51), ("8GiB", 1.99)])
def test_compendia_walks_as_its_paper_says(
    flatwalk: Flatwalk, tmp_path: Path, size: str, radix4: float
) -> None:
    result = flatwalk(
        *["compare", "--workload", f"random:{size}", "--machine", "compendia", "--mode", "functional"],
        *["--schemes", "radix4,compendia,compendia5", "--large-pages", "0", "--instructions", "5M"],
        *["--warmup", "1M", "--json", "out.json", "--no-report"],
    )
    assert result.code == 0, result.err
    runs = {scheme: run for (scheme, _), run in _runs(tmp_path / "out.json").items()}
    assert runs["radix4"]["accesses_per_walk"] == pytest.approx(radix4, abs=0.01)
    for scheme in ("compendia", "compendia5"):
        assert runs[scheme]["accesses_per_walk"] == pytest.approx(1.00, abs=0.005)
        gibibytes = max(1, runs[scheme]["data_bytes"] >> 30)
        merged = [node for node in runs[scheme]["page_table"]["nodes"] if node["width"] == 2]
        assert [(node["level"], node["nodes"]) for node in merged] == [("L2L1", gibibytes)]
        assert runs[scheme]["os"]["merges"] == gibibytes


def test_hashed_tables_beside_the_radix_table(flatwalk: Flatwalk, tmp_path: Path) -> None:
    result = flatwalk(
        *["compare", "--workload", "gups:256MiB", "--large-pages", "0", "--instructions", "1M"],
        *["--schemes", "radix4,ecpt,hashed,clustered,inverted,hdc", "--warmup", "1M"],
        *["--json", "out.json", "--no-report"],
    )
    assert result.code == 0, result.err
    runs = _runs(tmp_path / "out.json")
    for (scheme, _), run in runs.items():
        assert run["page_table_bytes"] == sum(item["bytes"] for item in run["page_table"]["nodes"]), scheme
        served = sum(item["accesses"] for item in run["walk"]["accesses_by_level"])
        assert run["accesses_per_walk"] == pytest.approx(served / run["walks"])
    # Three ways; the cuckoo walk caches know that there are no large pages.
    assert runs["ecpt", 0]["accesses_per_walk"] == pytest.approx(3, abs=0.01)
    assert runs["ecpt", 0]["os"]["resizes"] == 0, "65,536 pages are 8,192 lines, a sixth of the slots"
    levels = {item["level"]: item["nodes"] for item in runs["ecpt", 0]["page_table"]["nodes"]}
    assert levels == {"PMD-CWT way": 2, "PUD-CWT way": 2, "4K way": 3}
    # A chain of a table with at least as many buckets as nodes; a clustered entry may be in a second line.
    assert 1 <= runs["hashed", 0]["accesses_per_walk"] < 2
    assert 1 < runs["clustered", 0]["accesses_per_walk"] < 3
    assert runs["hashed", 0]["os"]["resizes"] > 0
    # 64 GiB have 16 Mi frames: an anchor, and one of 65,536 pages. Large frames have theirs from the start.
    assert runs["inverted", 0]["accesses_per_walk"] == pytest.approx(2, abs=0.01)
    sizes = {item["level"]: item["bytes"] for item in runs["inverted", 0]["page_table"]["nodes"]}
    large = {"2M frames": 512 << 10, "2M anchors": 256 << 10, "1G frames": 4096, "1G anchors": 4096}
    assert sizes == {"4K frames": 256 << 20, "4K anchors": 128 << 20, **large}
    # Lines of eight pages, at most 0.6 of them in use.
    assert 1 <= runs["hdc", 0]["accesses_per_walk"] < 1.8
    assert "4K buckets" in {item["level"] for item in runs["clustered", 0]["page_table"]["nodes"]}


def test_both_ideas_help_gups_and_together_most(flatwalk: Flatwalk, tmp_path: Path) -> None:
    result = flatwalk(
        *["compare", "--workload", "gups:8GiB", "--large-pages", "0", "--json", "out.json", "--no-report"],
        *["--schemes", "radix4,fpt,radix4+ptp,fpt+ptp", "--instructions", "4M", "--warmup", "4M"],
    )
    assert result.code == 0, result.err
    speed = {scheme: run["speedup"] for (scheme, _), run in _runs(tmp_path / "out.json").items()}
    assert speed["fpt+ptp"] > speed["radix4+ptp"] > speed["fpt"] > speed["radix4"] == 1


@pytest.mark.parametrize("machine", settings.names("machine"))
def test_every_machine_runs(flatwalk: Flatwalk, tmp_path: Path, machine: str) -> None:
    description = settings.machine(machine)
    mode = "timing" if settings.is_timed(description) else "functional"
    guests, hashes = "virtualisation" in description, "hashed_walks" in description
    known = {name: settings.scheme(name) for name in settings.names("scheme")}
    schemes = [
        name
        for name, scheme in known.items()
        if not scheme.get("recorded")  # whose tables only a recording of a whole system has
        and (guests or not {"host", "shadow"} & set(scheme))
        and (hashes or scheme["table"]["organisation"] in {"radix", "flattened", "compendia"})
    ]
    result = flatwalk(
        *["compare", "--workload", "random:64MiB", "--machine", machine, "--mode", mode, *SHORT],
        *["--schemes", ",".join(schemes), "--json", "out.json"],
    )
    assert result.code == 0, result.err
    assert len(_runs(tmp_path / "out.json")) == 2 * len(schemes)


def test_own_files_work_by_path(flatwalk: Flatwalk, tmp_path: Path) -> None:
    scheme = (settings.DATA / "schemes" / "fpt.toml").read_text().replace('"fpt"', '"mine"')
    (tmp_path / "mine.toml").write_text(scheme)
    machine = (settings.DATA / "machines" / "skylake-server.toml").read_text()
    (tmp_path / "half.toml").write_text(
        machine.replace('"skylake-server"', '"half"').replace("entries = 1536", "entries = 768")
    )
    result = flatwalk(
        *[
            "compare",
            "--workload",
            "gups:64MiB",
            *SHORT,
            "--schemes",
            "radix4,mine.toml",
            "--large-pages",
            "0",
        ],
        *["--machine", "half.toml", "--json", "-", "--no-report"],
    )
    runs = json.loads(result.out)["runs"]
    assert [run["scheme"] for run in runs] == ["radix4", "mine"]
    assert runs[0]["machine"] == "half"
    assert runs[0]["configuration"]["machine"]["tlb"]["l2"][0]["entries"] == 768


def test_keys_that_do_not_fit_each_other_are_reported_with_file_and_key(
    flatwalk: Flatwalk, tmp_path: Path
) -> None:
    machine = (settings.DATA / "machines" / "skylake-server.toml").read_text()
    (tmp_path / "odd.toml").write_text(machine.replace("entries = 1536", "entries = 1537"))
    result = flatwalk("compare", "--machine", "./odd.toml", *SHORT, "--no-report")
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert "tlb.l2[1].entries" in result.err
    assert "1537" in result.err
    assert "odd.toml" in result.err


# Traces of others, written here without the engine.


def _champsim(instructions: Iterable[tuple[int, int]]) -> bytes:
    """ChampSim's `input_instr` for loads: (instruction pointer, address loaded from)."""
    return b"".join(
        struct.pack("<QBB2B4B2Q4Q", ip, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, address, 0, 0, 0)
        for ip, address in instructions
    )


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_champsim_trace_keeps_every_instruction_and_its_walks(
    flatwalk: Flatwalk, tmp_path: Path, suffix: str
) -> None:
    pages = 6000  # far beyond the reach of 1536 entries
    chosen = random.Random(7).sample(range(1 << 22), pages)
    # Twice the same round: the first touches every page, the second must walk to each of them again.
    loads = [(0x400000 + 4 * (n % 64), (page << 12) + 8 * (n % 512)) for n, page in enumerate(chosen)]
    raw = _champsim(loads * 2)
    source = tmp_path / f"random.champsimtrace{suffix}"
    if suffix == ".gz":
        raw = gzip.compress(raw)
    elif suffix == ".xz":
        raw = lzma.compress(raw)
    source.write_bytes(raw)
    result = flatwalk("trace", "import", source, "random.fwt", "--format", "champsim")
    assert result.code == 0, result.err
    info = json.loads(flatwalk("trace", "info", "random.fwt", "--json").out)
    assert (info["instructions"], info["loads"], info["stores"]) == (2 * pages, 2 * pages, 0)
    result = flatwalk(
        *["compare", "--trace", "random.fwt", "--schemes", "radix4,fpt", "--large-pages", "0"],
        *["--mode", "functional", "--warmup", str(pages), "--json", "out.json", "--no-report"],
    )
    assert result.code == 0, result.err
    for run in _runs(tmp_path / "out.json").values():
        assert (run["instructions"], run["loads"]) == (pages, pages)
        assert run["walks"] - run["walk"]["instruction_side"] == pages
        assert run["walk"]["faulting"] == 0


def test_few_pages_need_no_walks(flatwalk: Flatwalk, tmp_path: Path) -> None:
    chosen = random.Random(8).sample(range(1 << 22), 32)
    (tmp_path / "few.champsim").write_bytes(_champsim([(0x400000, page << 12) for page in chosen * 100]))
    assert flatwalk("trace", "import", "few.champsim", "few.fwt", "--format", "champsim").code == 0
    result = flatwalk(
        *["compare", "--trace", "few.fwt", "--schemes", "radix4", "--large-pages", "0", "--warmup", "320"],
        *["--mode", "functional", "--json", "out.json", "--no-report"],
    )
    assert result.code == 0, result.err
    assert _runs(tmp_path / "out.json")["radix4", 0]["walks"] == 0


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short recording of a real program."""
    path = tmp_path_factory.mktemp("program") / "program.fwt"
    subprocess.run(
        [
            *[sys.executable, "-I", "-m", "flatwalk", "record", "-o", str(path), "--limit", "600k"],
            *["--", "python3", "-c", "print(sum(range(1000)))"],
        ],
        check=True,
        capture_output=True,
    )
    return path


def test_a_recording_is_compared(flatwalk: Flatwalk, tmp_path: Path, program: Path) -> None:
    result = flatwalk("trace", "info", program, "--verify", "--json")
    assert result.code == 0, result.err
    info = json.loads(result.out)
    assert 590_000 <= info["instructions"] <= 600_000 + 1000
    assert info["loads"] > 0
    assert info["stores"] > 0
    assert info["verified"] is True
    result = flatwalk("compare", "--trace", program, "--json", "out.json")
    assert result.code == 0, result.err
    runs = _runs(tmp_path / "out.json")
    assert len(runs) == 22
    # What is short is measured whole.
    (measured,) = {run["instructions"] for run in runs.values()}
    assert measured == info["instructions"]
    sampling = json.loads((tmp_path / "out.json").read_text())["sampling"]
    assert (sampling["sampled"], sampling["coverage"]) == (False, 1.0)


def test_a_program_is_compared_in_one_command(flatwalk: Flatwalk, tmp_path: Path) -> None:
    result = flatwalk(
        *["compare", *SHORT, "--schemes", "radix4,fpt", "--large-pages", "0", "--keep-trace", "kept.fwt"],
        *["--json", "out.json", "--", "python3", "-c", "print('the program ran')"],
    )
    assert result.code == 0, result.err
    cut_short = "the run was stopped by --instructions 300k"
    assert f"warning: {cut_short}: what would have come then is not judged" in result.err
    answer = json.loads((tmp_path / "out.json").read_text())
    assert answer["sampling"]["cut_short"] == cut_short
    for run in answer["runs"]:
        assert f"{cut_short}: what would have come then is not judged" in run["warnings"]
    assert _runs(tmp_path / "out.json")["fpt", 0]["instructions"] == pytest.approx(300_000, abs=1000)
    # The kept trace says so, too.
    info = flatwalk("trace", "info", "kept.fwt", "--verify")
    assert info.code == 0
    assert cut_short in info.out
    again = flatwalk("compare", *SHORT, "--schemes", "radix4", "--large-pages", "0", "--trace", "kept.fwt")
    assert f"warning: {cut_short}: what would have come then is not judged" in again.err


def test_the_busiest_process_is_simulated(flatwalk: Flatwalk) -> None:
    count = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; :"
    result = flatwalk(
        *["compare", "--schemes", "radix4", "--large-pages", "0", "--no-report", "--json", "out.json"],
        *["--", "sh", "-c", f"(sh -c {shlex.quote(count)}); exit 3"],
    )
    assert result.code == 0, result.err
    assert "Simulating its busiest process" in result.err
    assert "the program's exit status is 3" in result.err


def test_large_pages_and_thp_reach_the_kernel(flatwalk: Flatwalk, tmp_path: Path) -> None:
    command = ["compare", "--workload", "gups:64MiB", *SHORT, "--schemes", "radix4", "--no-report"]
    flatwalk(*command, "--thp", "always", "--json", "always.json")
    flatwalk(*command, "--thp", "never", "--json", "never.json")
    flatwalk(*command, "--thp", "always", "--fragmentation", "1", "--json", "fragmented.json")
    bytes_of = {
        path.stem: json.loads(path.read_text())["runs"][0]["page_table_bytes"]
        for path in tmp_path.glob("*.json")
    }
    assert bytes_of["always"] < bytes_of["never"] / 4
    assert bytes_of["fragmented"] == bytes_of["never"]


# Bad input.


@pytest.mark.parametrize(
    "content", [b"", b"hello, world\n" * 100, bytes(range(256)) * 40, b"\x1f\x8b\x08garbage"]
)
def test_what_is_no_trace_is_refused(flatwalk: Flatwalk, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.fwt").write_bytes(content)
    for command in (
        ["trace", "info", "x.fwt"],
        ["compare", "--trace", "x.fwt"],
        ["trace", "import", "x.fwt", "y"],
    ):
        result = flatwalk(*command)
        assert result.code == 1, (command, result)
        assert result.err.startswith("error: ")
        assert "x.fwt" in result.err
        assert "Traceback" not in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.fwt"]


def test_a_truncated_trace_is_never_a_wrong_answer(flatwalk: Flatwalk, tmp_path: Path, program: Path) -> None:
    whole = program.read_bytes()
    full = json.loads(flatwalk("trace", "info", program, "--json").out)["instructions"]
    compared = 0
    for share in (0.05, 0.5, 0.9, 0.999):
        (tmp_path / "cut.fwt").write_bytes(whole[: int(len(whole) * share)])
        result = flatwalk("trace", "info", "cut.fwt", "--json", "--verify")
        if result.code == 0:
            info = json.loads(result.out)
            assert info["ended_early"] is True
            assert info["instructions"] <= full
            if not info["instructions"]:
                continue
            compared += 1
            result = flatwalk("compare", "--trace", "cut.fwt", "--schemes", "radix4", "--large-pages", "0")
            words = "the trace was cut off when it was recorded or copied"
            count = units.count(info["instructions"])
            assert f"Judged: all {count} instructions until {words}." in result.out
            assert f"warning: {words}: what would have come then is not judged" in result.err
        else:
            assert result.code == 1
            assert "cut.fwt" in result.err
    assert compared


def test_a_damaged_trace_is_found(flatwalk: Flatwalk, tmp_path: Path, program: Path) -> None:
    whole = bytearray(program.read_bytes())
    whole[len(whole) // 2] ^= 0x10
    (tmp_path / "bad.fwt").write_bytes(whole)
    result = flatwalk("trace", "info", "bad.fwt", "--verify")
    assert result.code == 1
    assert "bad.fwt" in result.err
    assert re.search(r"\d", result.err), "the offset"
    result = flatwalk("compare", "--trace", "bad.fwt", "--no-report")
    assert result.code == 1
    assert result.out == ""


def test_lengths_beyond_the_trace_are_reported(flatwalk: Flatwalk, program: Path) -> None:
    result = flatwalk("compare", "--trace", program, "--skip", "500k", "--warmup", "500k")
    assert result.code == 2
    assert "leaves none to measure" in result.err


def test_a_program_that_is_none_is_reported(flatwalk: Flatwalk, tmp_path: Path) -> None:
    for command in (["no-such-program"], [str(settings.DATA / "schemes" / "fpt.toml")]):
        result = flatwalk("compare", "--", *command)
        assert result.code == 2
        assert result.err.splitlines()[1].startswith("error: ")
    assert list(tmp_path.iterdir()) == []


# Ctrl-C.


def test_ctrl_c_while_simulating(
    call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(_self: output.Progress, _done: int, _total: int | None = None) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(output.Progress, "__call__", interrupt)
    result = call("compare", "--workload", "gups:64MiB", "--instructions", "100G", "--json", "out.json")
    assert result.code == 130
    assert "Interrupted; nothing was left half-written." in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "arguments",
    [
        ["walk", "--instructions", "500G"],
        ["compare", "--workload", "graph500:2GiB", "--schemes", "radix4"],
        ["compare", "--mix", "4*gups:1GiB", "--instructions", "100G"],
        ["reproduce", "P1"],
    ],
    ids=" ".join,
)
def test_signals_are_heard_while_the_engine_works(
    tmp_path: Path, arguments: list[str], number: signal.Signals
) -> None:
    """Warming a walk and making a graph report nothing for minutes; each would go on without an end here."""
    work = tmp_path / "work"
    work.mkdir()
    with waited_for(
        subprocess.Popen(
            [sys.executable, "-I", "-m", "flatwalk", *arguments],
            cwd=work,
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    ) as running:
        threads = Path(f"/proc/{running.pid}/task")
        # The engine's own thread.
        wait_until(lambda: running.poll() is not None or len(list(threads.iterdir())) > 1)
        running.send_signal(number)
        out, err = running.communicate(timeout=PATIENCE_SECONDS)
    assert out == ""
    assert running.returncode == 128 + number
    assert "Traceback" not in err
    assert list(work.iterdir()) == []


# Runs the command line; each report of progress sends a signal.
SIGNALLED = """
import os, sys
from flatwalk import cli
from flatwalk.terminal import output

number = int(sys.argv.pop(1))

class Signalled(output.Progress):
    def __call__(self, done, total=None):
        os.kill(os.getpid(), number)

output.Progress = Signalled
cli.main()
"""


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten million instructions of ChampSim's, compressed."""
    folder = tmp_path_factory.mktemp("long")
    load = (
        struct.pack("<QBB2B4B2Q4Q", 0x400000 + n % 16, *[0] * 10, 0x10000 + n, 0, 0, 0) for n in range(4096)
    )
    part = gzip.compress(b"".join(load))
    (folder / "long.champsim.gz").write_bytes(part * 2500)
    return folder / "long.champsim.gz"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_import_and_an_export_with_nothing_half_written(
    tmp_path: Path, long_trace: Path, number: signal.Signals
) -> None:
    def signalled(*arguments: str | Path) -> None:
        done = subprocess.run(
            [sys.executable, "-I", "-c", SIGNALLED, str(number.value), *map(str, arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 128 + number, done.stderr
        assert "Traceback" not in done.stderr

    signalled("trace", "import", "--format", "champsim", long_trace, "out.fwt")
    assert list(tmp_path.iterdir()) == []
    subprocess.run(
        [
            sys.executable,
            "-I",
            "-m",
            "flatwalk",
            "trace",
            "import",
            "--format",
            "champsim",
            long_trace,
            "in.fwt",
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    signalled("trace", "export", "in.fwt", "out.champsim")
    assert [path.name for path in tmp_path.iterdir()] == ["in.fwt"]


def test_ctrl_c_while_recording_judges_what_ran(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    work = tmp_path / "work"
    temporary.mkdir()
    work.mkdir()
    with waited_for(
        subprocess.Popen(
            [
                *[sys.executable, "-I", "-m", "flatwalk", "compare", "--schemes", "radix4,fpt"],
                *["--no-report", "--large-pages", "0", "--", "sh", "-c", "echo ready; while :; do :; done"],
            ],
            cwd=work,
            env=os.environ | {"TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a terminal sends Ctrl-C to the whole group
        )
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert b"Interrupted: what ran until then is judged." in err
    assert re.search(rb"Judged: .* until the run was stopped by Ctrl-C", out)
    assert list(temporary.iterdir()) == []
    assert list(work.iterdir()) == []


# The examples of every --help.

_SLOW = ("gups:8GiB", "sort big.txt", "python3")
#: What takes minutes to hours: tests of their own run these commands in small.
_LONG = ("reproduce", "record --workload")


def _examples() -> list[Any]:
    found = []
    for command in COMMANDS:
        done = CliRunner().invoke(cli.app, [*command, "--help"])
        assert done.exit_code == 0, done.output
        found += re.findall(r"^    flatwalk (.*)$", done.output, re.MULTILINE)
    return [
        pytest.param(line, marks=[pytest.mark.slow] if any(word in line for word in _SLOW) else [], id=line)
        for line in dict.fromkeys(found)
        if not line.startswith(_LONG)
    ]


@pytest.mark.parametrize("example", _examples())
def test_every_example_of_the_help_runs(
    flatwalk: Flatwalk, tmp_path: Path, program: Path, example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if example.startswith("cache"):  # the user's own is not a test's to clear
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        (tmp_path / "cache" / "flatwalk" / "reproduce").mkdir(parents=True)
    shutil.copy(program, tmp_path / "program.fwt")
    shutil.copy("/bin/true", tmp_path / "threads")
    (tmp_path / "a.simpoints").write_text("0 0\n")
    (tmp_path / "a.weights").write_text("1 0\n")
    lines = (str(random.Random(n).random()) for n in range(20_000))
    (tmp_path / "big.txt").write_text("\n".join(lines))
    shutil.copy(settings.DATA / "schemes" / "fpt.toml", tmp_path / "mine.toml")
    shutil.copy(Path(__file__).parent / "prototypes" / "leaf_map.py", tmp_path / "mine.py")
    trace = _champsim([(0x400000 + 4 * n, 0x10000000 + 8 * n) for n in range(1000)])
    (tmp_path / "605.mcf.champsimtrace.xz").write_bytes(lzma.compress(trace))
    (tmp_path / "charlie").mkdir()
    for number in (1, 2):
        loads = range(0x1000_0000, 0x1000_4000, 0x1000)
        (tmp_path / "charlie" / f"u.{number}.memtrace").write_bytes(thread(number, loads))
    result = flatwalk(*shlex.split(example))
    assert result.code == 0, result.err


def test_energy_is_reported_relative_to_the_baseline(flatwalk: Flatwalk, tmp_path: Path) -> None:
    names = ["--schemes", "radix4,radix4+ptp", "--large-pages", "0"]
    result = flatwalk(
        *["compare", "--workload", "gups:256MiB", *SHORT, *names],
        *["--energy", "--json", "out.json", "--no-report"],
    )
    assert result.code == 0, result.err
    assert "cache energy" in result.out
    assert "off-chip" in result.out
    runs = _runs(tmp_path / "out.json")
    base, other = runs["radix4", 0], runs["radix4+ptp", 0]
    assert base["relative_cache_energy"] == base["relative_off_chip_accesses"] == 1
    for run in runs.values():
        figures = run["configuration"]["machine"]["energy"]
        caches = {cache["name"]: cache for cache in run["caches"]}
        look_ups = caches["LLC"]["data_accesses"] + caches["LLC"]["table_accesses"]
        accesses = look_ups + caches["L2"]["writebacks"]
        assert run["energy"]["llc_nj"] == pytest.approx(accesses * figures["llc_pj"] / 1000)
    ratio = (other["energy"]["cache_nj"] / other["instructions"]) / (
        base["energy"]["cache_nj"] / base["instructions"]
    )
    assert other["relative_cache_energy"] == pytest.approx(ratio)


def test_energy_needs_figures(flatwalk: Flatwalk) -> None:
    for arguments in (["--machine", "golden-cove"], ["--mode", "functional"]):
        result = flatwalk("compare", "--energy", *arguments)
        assert result.code == 2
        assert "--energy" in result.err


def test_context_switches_cost_walks(flatwalk: Flatwalk, tmp_path: Path) -> None:
    walks = {}
    for name, option in (("none", []), ("many", ["--context-switch", "0.05"])):
        arguments = ["--workload", "gups:64MiB", *SHORT, "--schemes", "radix4", "--large-pages", "100"]
        result = flatwalk("compare", *arguments, *option, "--json", f"{name}.json", "--no-report")
        assert result.code == 0, result.err
        run = _runs(tmp_path / f"{name}.json")["radix4", 100]
        assert (run["os"]["context_switches"] or 0) > 0 if option else run["os"]["context_switches"] is None
        walks[name] = run["walks"]
    assert walks["many"] > walks["none"]
    refused = flatwalk("compare", "--context-switch", "10", "--mode", "functional")
    assert refused.code == 2
    assert "--context-switch" in refused.err


def test_every_field_is_explained(flatwalk: Flatwalk) -> None:
    every = "radix4,asap,direct-segment,csalt"
    elsewhere = {"configuration", "mechanisms"}  # docs/settings.md, written from the engine, has their keys
    result = flatwalk(
        *["compare", "--workload", "gups:64MiB", *SHORT, "--schemes", every, "--json", "-", "--no-report"]
    )
    answer = json.loads(result.out)
    quoted = re.findall(r"`([^`]+)`", RESULTS.read_text())
    explained = {word for text in quoted for word in re.findall(r"\w+", text)}

    def keys(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*(keys(item) for item in value))
        if not isinstance(value, dict):
            return set()
        inside = ((key, item) for key, item in value.items() if key not in elsewhere)
        return set(value).union(*(keys(item) for _, item in inside))

    assert keys(answer) <= explained, keys(answer) - explained


def test_a_guest_walks_two_tables(flatwalk: Flatwalk, tmp_path: Path) -> None:
    result = flatwalk(
        *["compare", "--workload", "random:256MiB", *SHORT, "--large-pages", "0", "--mode", "functional"],
        *["--virt", "radix4/fpt,fpt/fpt", "--guest-frames", "compact", "--json", "out.json"],
    )
    assert result.code == 0, result.err
    runs = _runs(tmp_path / "out.json")
    assert [scheme for scheme, _ in runs] == ["virt-radix4", "radix4/fpt", "fpt/fpt"]
    walks = [run["accesses_per_walk"] for run in runs.values()]
    assert walks[0] > walks[1] > walks[2] > 2
    assert {run["guest_frames"] for run in runs.values()} == {"compact"}
    levels = [item["level"] for item in runs["fpt/fpt", 0]["walk"]["accesses_by_level"]]
    assert "guest L1" in levels
    assert "host L1" in levels


def test_a_walk_in_a_guest_is_explained(flatwalk: Flatwalk) -> None:
    result = flatwalk("walk", "--scheme", "virt-radix4", "--workload", "gups:64MiB", "--instructions", "1M")
    assert result.code == 0, result.err
    assert "guest L4 node" in result.out
    assert "host L1 node" in result.out


def test_guests_need_a_machine_that_has_them(flatwalk: Flatwalk) -> None:
    result = flatwalk("compare", *SHORT, "--schemes", "virt-fpt", "--machine", "zen4")
    assert result.code == 2
    assert "machine.virtualisation is missing in `zen4`" in result.err
    result = flatwalk("compare", *SHORT, "--virt", "virt-fpt/radix4")
    assert result.code == 2
    assert "is a guest and its host already" in result.err
