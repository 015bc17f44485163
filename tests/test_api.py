"""The Python interface: the same answers as the commands, checked objects, arrays as sources."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flatwalk as fw
from flatwalk import api
from flatwalk.definitions import workload
from tests import fake
from tests.prototypes.hashed import Hashed
from tests.prototypes.leaf_map import LeafMap
from tests.running import PATIENCE_SECONDS, PEAK

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Result

SHORT: dict[str, Any] = {"instructions": "2M", "windows": 5, "window": "20K", "warmup": "50K"}
COUNTS: dict[str, Any] = {"mode": "functional", "exhaustive": True, "warmup": 0}


def test_the_answer_is_that_of_the_command(flatwalk: Callable[..., Result], tmp_path: Path) -> None:
    options = [word for key, value in SHORT.items() for word in (f"--{key}", str(value))]
    done = flatwalk("compare", "--workload", "gups:64MiB", *options, "--schemes", "radix4,fpt", "--no-report",
                    "--json", "a.json")  # fmt: skip
    assert done.code == 0, done.err
    there = fw.read(tmp_path / "a.json")
    here = fw.compare(workload="gups:64MiB", schemes=["radix4", "fpt"], **SHORT)
    assert here.runs == there.runs
    assert repr(here) == repr(there)
    for line in (here.judged, *here.verdict):
        assert line in done.out
    again = fw.read(here.save(tmp_path / "b.json"))
    assert again.runs == here.runs
    assert "<svg" not in here.report(tmp_path / "r.html").read_text()[:100]
    assert here.figure("speed", tmp_path / "f.svg").read_text().count(">fpt</text>") == 2


def test_tables_have_a_row_for_each_run() -> None:
    found = fw.compare(workload="gups:64MiB", schemes=["radix4", "fpt"], **SHORT)
    table = found.to_arrow()
    assert table.num_rows == 4
    for frame in (found.to_pandas(), found.to_polars()):
        assert list(frame["scheme"]) == ["radix4", "fpt"] * 2
        assert list(frame["speedup"]) == [run["speedup"] for run in found.runs]
        assert list(frame["cycles"]) == [run["cycles"] for run in found.runs]
    assert found.run("fpt", 100) is found.runs[3]
    with pytest.raises(fw.UsageError, match="no run of radix5"):
        found.run("radix5")
    assert found._repr_html_().count("<table>") == 2


def pages_walked(addresses: Any, entries: int, ways: int) -> int:
    """Misses of two levels of TLBs of which only the second is larger than nothing: an independent count."""
    sets: list[list[int]] = [[] for _ in range(entries // ways)]
    misses = 0
    for page in (int(address) >> 12 for address in addresses):
        own = sets[page % len(sets)]
        if page in own:
            own.remove(page)
        else:
            misses += 1
            if len(own) == ways:
                own.pop(0)
        own.append(page)
    return misses


def test_an_array_is_a_source() -> None:
    addresses = np.arange(3000, dtype=np.uint64) * np.uint64(4096) + np.uint64(1 << 40)
    twice = np.concatenate([addresses, addresses])
    run = fw.simulate(addresses=twice, **COUNTS)
    assert run["instructions"] == 4 * len(twice)
    assert run["loads"] == len(twice)
    assert run["walks"] == pages_walked(twice, 1536, 12) + 1, "and one for the code"
    small = fw.simulate(addresses=np.tile(addresses[:40], 100), **COUNTS)
    assert small["walks"] == 41
    each = fw.simulate(addresses=addresses, instructions_per_access=1, **COUNTS)
    assert each["instructions"] == 3000


def test_an_array_is_not_copied() -> None:
    program = f"""{PEAK}
import numpy as np
import flatwalk as fw
addresses = np.zeros(40_000_000, dtype=np.uint64) + np.uint64(1 << 30)
before = peak_kib()
fw.simulate(addresses=addresses, mode="functional", instructions=100_000, exhaustive=True, warmup=0)
print((peak_kib() - before) << 10)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150 << 20, "the array has 320 MB"


@pytest.mark.parametrize(
    ("addresses", "words"),
    [
        (np.array([1, 2], dtype=np.int32), "unsigned 64-bit"),
        (np.array([1, 2], dtype=np.int64), "unsigned 64-bit"),
        (np.array([1, 2], dtype=np.float64), "unsigned 64-bit"),
        (np.array([1, 2], dtype=">u8"), "unsigned 64-bit"),
        (7, "of type int is no array"),
        (np.array([[1, 2]], dtype=np.uint64), "one-dimensional"),
        (np.arange(8, dtype=np.uint64)[::2], "contiguous"),
        (np.array([], dtype=np.uint64), "there are none"),
        (np.array([1 << 60], dtype=np.uint64), "number 0 is 0x1000000000000000"),
        ([1, 2], "unsigned 64-bit"),
    ],
)
def test_what_is_no_array_of_addresses_is_refused(addresses: Any, words: str) -> None:
    with pytest.raises(fw.FlatwalkError, match=words) as caught:
        fw.simulate(addresses=addresses, **COUNTS)
    if "unsigned" in words:
        assert isinstance(caught.value, fw.UsageError)
        assert caught.value.where == "addresses"
        assert caught.value.remedy == "give np.asarray(x, dtype=np.uint64)"
        own = np.asarray(addresses, dtype=np.uint64)
        assert fw.simulate(addresses=own, **COUNTS)["loads"] == 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"seed": -1}, "seed cannot be -1"),
        ({"seed": 1 << 64}, "seed cannot be 18446744073709551616"),
        ({"seed": 1.5}, "seed cannot be 1.5"),
        ({"seed": True}, "seed cannot be True"),
        ({"threads": -1}, "threads cannot be -1"),
        ({"windows": -1}, "windows cannot be -1"),
        ({"instructions_per_access": 0}, "instructions_per_access cannot be 0"),
        ({"error": -1}, "error cannot be -1"),
        ({"error": [0.1]}, "error cannot be [0.1]"),
        ({"error": "200%"}, "'200%' is not a percentage"),
        ({"cores": 0}, "cores cannot be 0"),
        ({"host_large_pages": None}, "host_large_pages cannot be None"),
        ({"large_pages": []}, "the list is empty"),
        ({"large_pages": 1.5}, "'1.5' is not a percentage"),
        ({"instructions": -1}, "count '-1' not understood"),
        ({"context_switch_ms": -1}, "0.001 to 1000000"),
        ({"large_pages": 101}, "'101' is not a percentage"),
    ],
)
def test_numbers_that_cannot_be_name_the_argument(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(fw.UsageError) as caught:
        fw.simulate(workload="gups:4MiB", **asked)
    assert words in caught.value.what
    assert caught.value.where == next(iter(asked))


@pytest.mark.parametrize(
    ("refused", "remedy"),
    [
        (lambda: fw.walk(workload="gups:4MiB", seed=-1), "0 to 2^64 − 1"),
        (lambda: fw.record(["true"], "t.fwt", seed=-1), "0 to 2^64 − 1"),
        (lambda: fw.walk(workload="gups:4MiB", large_pages=-1), "0 to 100"),
        (lambda: fw.sweep("five-levels", "r", jobs=-1), "0 to 65536"),
        (lambda: fw.check_organisation(LeafMap, cases=-1), "1 to 4294967295"),
    ],
)
def test_other_functions_have_the_same_numbers(refused: Callable[[], object], remedy: str) -> None:
    with pytest.raises(fw.UsageError, match="cannot be -1") as caught:
        refused()
    assert caught.value.remedy == f"give a whole number from {remedy}"
    both: list[Any] = [7, np.int64(7)]
    seeds = [fw.simulate(workload="gups:4MiB", seed=seed, **COUNTS)["seed"] for seed in both]
    assert seeds == [7, 7]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": None}, "None is not text"),
        ({"mode": "fast"}, 'mode cannot be "fast"'),
        ({"thp": 3}, "3 is not text"),
        ({"machine": 3}, "3 is not the name of a machine"),
        ({"schemes": 3}, "3 is not the name of a scheme"),
        ({"schemes": ["fpt", 3]}, "3 is not the name of a scheme"),
    ],
)
def test_what_is_no_name_is_an_error_with_a_remedy(given: dict[str, Any], words: str) -> None:
    with pytest.raises(fw.UsageError, match=words) as caught:
        fw.compare(workload="gups:64MiB", **given)
    assert caught.value.remedy


def test_numbers_may_be_of_numpy() -> None:
    asked: dict[str, Any] = {"workload": "gups:4MiB", "instructions": 20_000, **COUNTS}

    def pages(large_pages: Any) -> list[int | None]:
        return [
            run["large_pages"] for run in fw.compare(schemes="radix4", large_pages=large_pages, **asked).runs
        ]

    assert pages(np.int64(0)) == [0]
    assert pages(np.int64(50)) == [50]
    assert pages(np.array([0, 50])) == [0, 50]
    assert pages(None) == [0, 100]
    both: list[tuple[Any, Any]] = [(int, float), (np.int64, np.float32)]
    ours, theirs = (
        fw.simulate(
            "virt-radix4",
            cores=whole(2),
            host_large_pages=whole(50),
            skip=whole(0),
            context_switch_ms=part(0.5),
            fragmentation=part(0.25),
            **{**asked, "mode": "timing"},
        )
        for whole, part in both
    )
    assert ours == theirs
    address = fw.walk(workload="gups:4MiB", instructions=20_000).answer["address"]
    walked = fw.walk(np.uint64(int(address, 16)), workload="gups:4MiB", instructions=20_000)
    assert walked.answer["address"] == address
    machine = fw.Machine.named("skylake-server")
    larger = machine.changed({"llc.size_bytes": np.int64(32 << 20), "llc.ways": np.uint8(8)})
    assert larger == machine.changed({"llc.size_bytes": 32 << 20, "llc.ways": 8})
    assert len({machine, fw.Machine(machine.table | {"frequency_mhz": np.int32(2000)})}) == 1


@pytest.mark.parametrize(
    ("refused", "where"),
    [
        (lambda found: found.figure("speed", "f.svg", columns=3), "columns"),
        (lambda found: found.figure("speed", "f.svg", schemes=[]), "schemes"),
        (lambda found: found.figure("speed", "f.svg", schemes="nope"), "schemes"),
        (lambda _: fw.sweep({"schemes": ["fpt"], "machines": [fw.Machine.named("zen4")]}, "r"), "machines"),
        (lambda _: fw.sweep({"schemes": [fw.Scheme.named("fpt")]}, "r"), "schemes"),
        (lambda _: fw.sweep({"schemes": ["fpt"]}, "r", jobs="2"), "jobs"),  # type: ignore[arg-type]
        (lambda _: fw.check_organisation(LeafMap, cases="3"), "cases"),  # type: ignore[arg-type]
        (lambda _: fw.check_organisation(LeafMap, cases=0), "cases"),
        (lambda _: fw.check_organisation(Hashed), "organisation"),
        (lambda _: fw.compare(trace=5), "trace"),  # type: ignore[arg-type]
        (lambda _: fw.walk(trace=5), "trace"),  # type: ignore[arg-type]
        (lambda _: fw.compare(workload="gups", simpoints=5), "simpoints"),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused_names_the_argument(refused: Callable[[fw.Comparison], object], where: str) -> None:
    response: Any = fake.sample(fake.gups())
    with pytest.raises(fw.UsageError) as caught:
        refused(fw.Comparison(response))
    assert caught.value.where == where
    assert caught.value.remedy


def test_a_share_may_be_a_percentage() -> None:
    asked: dict[str, Any] = {
        "workload": "gups:16MiB",
        "schemes": ["radix4", "fpt"],
        "large_pages": 0,
        **SHORT,
    }
    found = [fw.compare(error=error, **asked).runs for error in (0.5, "50%")]
    assert found[0] == found[1]


def test_one_scheme_of_a_figure_may_be_text(tmp_path: Path) -> None:
    response: Any = fake.sample(fake.gups())
    found = fw.Comparison(response)
    one, other = (
        found.figure("speed", tmp_path / "f.svg", schemes=name).read_text() for name in ("fpt", ["fpt"])
    )
    assert one == other


def test_objects_are_checked_and_changed() -> None:
    machine = fw.Machine.named("skylake-server")
    larger = machine.changed({"llc.size_bytes": "32MiB", "tlb.l2[1].entries": 3072})
    assert larger.table["llc"]["size_bytes"] == 32 << 20
    assert larger.table["tlb"]["l2"][0]["entries"] == 3072
    assert machine.table["llc"]["size_bytes"] == 16 << 20, "the first is as it was"
    assert larger != machine == fw.Machine.named("skylake-server")
    assert larger.name == "skylake-server, llc.size_bytes=32MiB, tlb.l2[1].entries=3072"
    assert len({larger, machine, fw.Machine(machine.table)}) == 2
    with pytest.raises(fw.UsageError, match="power of two"):
        machine.changed({"llc.ways": 7})
    with pytest.raises(fw.UsageError, match="did you mean size_bytes"):
        machine.changed({"llc.size_byte": 1})
    assert machine.changed({}) == machine
    assert machine.changed({"memory.cl_ns": "13.5"}).table["memory"]["cl_ns"] == 13.5, "as of --set"
    with pytest.raises(fw.UsageError, match="not a valid scheme"):
        fw.Scheme({"name": "x"})
    with pytest.raises(fw.UsageError, match="5 is not a table of keys"):
        fw.Machine(5)  # type: ignore[arg-type]
    assert "llc.size_bytes" in larger._repr_html_()
    assert str(fw.Workload("gups", "8GiB")) == "gups:8GiB"
    assert fw.Workload("gups", 1 << 20).size_bytes == 1 << 20
    assert str(fw.Workload("graph500", "288MiB", "upwards")) == "graph500:288MiB:upwards"
    assert str(fw.Workload("graph500", "288MiB", "downwards")) == "graph500:288MiB"
    assert str(fw.Workload("kv-redis", "1GiB", "uniform")) == "kv-redis:1GiB:uniform"
    assert str(fw.Workload("kv-redis", variant="zipfian")) == "kv-redis:1GiB"
    assert str(fw.Workload("random", "64MiB", "30")) == "random:64MiB:30"
    assert str(fw.Workload("random", "64MiB")) == "random:64MiB"
    assert str(fw.Workload("graph500", "288MiB", "searches")) == "graph500:288MiB:searches"
    both = fw.Workload("graph500", "288MiB", "searches:upwards")
    assert str(both) == "graph500:288MiB:upwards:searches"
    assert str(fw.Workload("graph500", "288MiB", "upwards:searches")) == str(both)
    for wrong in ("upwards", "6", "1001", "٣٠", "9" * 30):
        with pytest.raises(fw.UsageError, match="the instructions of an access, 7 to 1000"):
            fw.Workload("random", "64MiB", wrong)
    with pytest.raises(fw.UsageError, match="one variant too many"):
        fw.Workload("graph500", "288MiB", "upwards:upwards")
    with pytest.raises(fw.UsageError, match="graph500::searches"):
        workload.parse_workload("graph500:searches")
    with pytest.raises(fw.UsageError, match="has no variant '30'"):
        fw.Workload("gups", "1GiB", "30")
    with pytest.raises(fw.UsageError, match="no variant 'sideways'"):
        fw.Workload("graph500", "288MiB", "sideways")
    with pytest.raises(fw.UsageError, match="has no variant 'upwards'"):
        fw.Workload("gups", "1GiB", "upwards")
    with pytest.raises(fw.UsageError, match="no workload"):
        fw.Workload("nope")


def test_several_machines_and_own_schemes() -> None:
    machine = fw.Machine.named("skylake-server")
    scheme = fw.Scheme.named("fpt").changed({"table.no_flatten_threshold": 128}, name="mine")
    found = fw.compare(
        workload="gups:64MiB",
        schemes=["radix4", scheme, "radix4/fpt"],
        machine=[machine, machine.changed({"llc.size_bytes": "8MiB"}, name="small")],
        large_pages=0,
        **SHORT,
    )
    assert [run["scheme"] for run in found.runs] == ["radix4", "mine", "radix4/fpt"] * 2
    assert found.run("mine", machine="small")["configuration"]["machine"]["llc"]["size_bytes"] == 8 << 20


def test_what_is_skipped_is_in_memory() -> None:
    pages = (1 << 40) + (np.arange(4096, dtype=np.uint64) << np.uint64(12))
    twice = np.concatenate([pages, pages])
    asked: dict[str, Any] = {"addresses": twice, "instructions_per_access": 1, "schemes": ["radix4"]}
    for exhaustive in (True, False):
        run = fw.compare(**asked, large_pages=0, skip=4096, warmup=0, exhaustive=exhaustive).runs[0]
        assert run["os"]["faults"] == 0


def test_a_program_is_recorded(tmp_path: Path) -> None:
    recording = fw.record(["true"], tmp_path / "t.fwt", exhaustive=True)
    assert recording.status == 0
    assert recording.executed > 10_000
    run = fw.simulate(trace=recording.traces[0], **COUNTS)
    assert run["instructions"] == pytest.approx(recording.executed, abs=10)


def test_a_walk_is_explained(flatwalk: Callable[..., Result]) -> None:
    here = fw.walk(workload="gups:64MiB", scheme="fpt", instructions=100_000)
    done = flatwalk("walk", "--workload", "gups:64MiB", "--scheme", "fpt", "--instructions", "100K", "--json")
    there = json.loads(done.out)
    assert here.steps == [step["text"] for step in there["steps"]]
    assert here.physical == int(there["physical"], 16)
    assert repr(here).count("\n") == len(here.steps) - 1
    for scheme, words in {
        "virt-guest-direct": "3. guest segment: it says where the address lies in the guest's memory.",
        "virt-vmm-direct": "6. host segment: it says where the guest's memory lies in the machine's.",
        "ecpt": "way 0: VA[47:15] hashes to line",
    }.items():
        told = str(fw.walk(0x1000400000, workload="gups:64MiB", scheme=scheme, instructions=1000))
        assert words in told
        assert ("guest L4 PWC" in told) == (scheme == "virt-vmm-direct")
    nowhere = fw.walk(0x99000, workload="gups:64MiB", instructions=1000)
    assert any(step.startswith("Nothing was mapped at 0x99000") for step in nowhere.steps)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "nothing given as a source"),
        ({"command": []}, "there is no program"),
        ({"workload": ""}, "no workload is named"),
        ({"workload": "gups", "trace": "x"}, "workload and trace given"),
        ({"workload": "gups", "schemes": []}, "no scheme is named"),
        ({"workload": "gups", "machine": []}, "no machine is named"),
        ({"workload": "gups", "large_pages": 101}, "not a percentage"),
        ({"trace": "nowhere.fwt"}, "there is no file"),
    ],
)
def test_what_is_not_possible_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(fw.UsageError, match=words):
        fw.compare(**asked)


@pytest.mark.parametrize(
    ("refused", "argument"),
    [
        (lambda: fw.walk(workload=""), "workload"),
        (lambda: fw.simulate(workload=""), "workload"),
        (lambda: fw.simulate(command=()), "command"),
        (lambda: fw.record([], "t.fwt"), "command"),
    ],
)
def test_an_empty_source_is_none(refused: Callable[[], object], argument: str) -> None:
    with pytest.raises(fw.UsageError) as caught:
        refused()
    assert caught.value.where == argument
    assert caught.value.remedy


def test_a_sweep_is_run_once(tmp_path: Path) -> None:
    table = {
        "name": "s",
        "workloads": ["gups:16MiB"],
        "schemes": ["radix4", "fpt"],
        "mode": "functional",
        "instructions": "100K",
        "exhaustive": True,
    }
    found = fw.sweep(table, tmp_path / "r", jobs=1)
    before = found.to_arrow()
    assert fw.sweep(table, tmp_path / "r", jobs=1).to_arrow().equals(before)
    assert found.query("select count(*) as n from runs").to_pylist() == [{"n": 2}]
    assert list(fw.open_results(tmp_path / "r").to_pandas()["scheme"]) == ["radix4", "fpt"]
    drawn = found.figure(tmp_path / "f.svg", x="seed", y="walks", by="scheme", where="seed = 1")
    assert ">fpt</text>" in drawn.read_text()
    assert fw.open_results(tmp_path / "r").to_polars().height == 2


def test_a_sweep_may_have_workloads_and_numbers_of_numpy(tmp_path: Path) -> None:
    table = {
        "name": "s",
        "workloads": [fw.Workload("gups", "4MiB")],
        "schemes": ["radix4"],
        "mode": "functional",
        "instructions": "20K",
        "exhaustive": True,
        "seeds": list(np.arange(1, 3)),
        "set": {"llc.size_bytes": np.array([8 << 20, 16 << 20])},
    }
    one: Any = np.int64(1)
    found = fw.sweep(table, tmp_path / "r", jobs=one)
    rows = found.query('select source, seed, "llc.size_bytes" as size from runs order by all').to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("gups:4MiB", seed, size) for seed in (1, 2) for size in (8 << 20, 16 << 20)
    ]


def test_threads_run_at_the_same_time_and_find_the_same() -> None:
    """With the interpreter lock held, the others could not all be inside at once."""
    inside = threading.Barrier(3, timeout=PATIENCE_SECONDS)

    def run(seed: int) -> int:
        inside.wait()
        return fw.simulate(workload="gups:64MiB", seed=seed, instructions="1M", **COUNTS)["walks"]

    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(run, (1, 2, 3)))
    inside = threading.Barrier(1)
    assert together == list(map(run, (1, 2, 3)))


def test_ctrl_c_ends_a_simulation() -> None:
    program = """
import flatwalk as fw
from flatwalk.terminal import output
output.Progress.__call__ = lambda *_: print("begun", flush=True)
try:
    fw.simulate(workload="gups:64MiB", instructions="100G", mode="functional", exhaustive=True, warmup=0)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert out.splitlines()[-1] == "stopped"


def test_every_public_name_is_documented() -> None:
    """And everything that a public class has; parameters and errors, too."""
    for name in fw.__all__:
        thing = getattr(fw, name)
        assert thing.__doc__, name
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (
                    callable(value) or isinstance(value, property | classmethod)
                ):
                    assert inspect.getdoc(getattr(thing, member)), f"{name}.{member}"
        elif inspect.isfunction(thing):
            text = inspect.getdoc(thing) or ""
            for parameter in inspect.signature(thing).parameters:
                assert f"{parameter}:" in text, f"{name}({parameter})"
    public = {name for name, value in vars(api).items() if getattr(value, "__module__", "") == api.__name__}
    assert {name for name in public if not name.startswith("_")} <= set(fw.__all__)
    assert fw.__all__ == api.__all__


def test_everything_that_compare_takes_is_known_of_simulate() -> None:
    own = set(inspect.signature(fw.compare).parameters) - {"schemes", "large_pages"}
    assert set(fw.Asked.__annotations__) == own
    given = inspect.signature(fw.simulate).parameters["asked"].annotation
    assert given == "Unpack[Asked]", "types are checked where it is called"


def test_intervals_of_simpoint_are_measured(tmp_path: Path) -> None:
    (tmp_path / "a.simpoints").write_text("3 0\n8 1\n")
    (tmp_path / "a.weights").write_text("0.75 0\n0.25 1\n")
    asked: dict[str, Any] = {"workload": "gups:16MiB", "instructions": "1M", "warmup": "20K", "window": "50K"}
    files: dict[str, Any] = {"simpoints": tmp_path / "a.simpoints", "weights": tmp_path / "a.weights"}
    run = fw.simulate("radix4", **files, **asked)
    assert [window["at"] // 50_000 for window in run["windows"]] == [3, 8]
    assert run["weighted"] is True
    walks = [window["walks"] / window["instructions"] for window in run["windows"]]
    expected = 0.75 * walks[0] + 0.25 * walks[1]
    assert run["walks"] / run["instructions"] == pytest.approx(expected, rel=1e-3)
    with pytest.raises(fw.UsageError, match="no error is known"):
        fw.simulate("radix4", error=0.01, **files, **asked)


def test_figures_and_tables_for_papers(tmp_path: Path) -> None:
    found = fw.compare(workload="gups:64MiB", schemes=["radix4", "fpt"], **SHORT)
    for chart in ("timeline", "tree"):
        path = found.figure(chart, tmp_path / f"{chart}.svg", columns=2, schemes=["fpt"])
        assert 'width="504pt"' in path.read_text()
    assert found.to_latex().count(r"\toprule") == 2
    with pytest.raises(fw.UsageError, match="no run of radix5"):
        found.figure("speed", tmp_path / "x.svg", schemes=["radix5"])


def test_the_examples_of_the_docs_run(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(examples) >= 4
    (tmp_path / "examples.py").write_text("\n".join(examples), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "import examples"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "accesses_per_walk" in done.stdout
    hits = re.search(r"'Ahead': {'hits': (\d+)", done.stdout)
    assert hits, done.stdout
    assert int(hits[1]) > 0
