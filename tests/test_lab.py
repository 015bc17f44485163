"""Sweeps: what a file asks for, that every run is stored once, and what can be asked of results."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flatwalk import engine
from flatwalk.definitions import settings, variations
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.lab import changes, command, engines, plan, query, run, store
from flatwalk.lab.sweep import Sweep
from tests.checkout import ROOT, shipped
from tests.running import PATIENCE_SECONDS, run_code, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Result

SMALL: dict[str, Any] = {
    "name": "small",
    "workloads": ["gups:16MiB"],
    "schemes": ["radix4", "fpt"],
    "mode": "functional",
    "instructions": "200K",
    "exhaustive": True,
    "warmup": 0,
}


def sweep_of(**keys: object) -> Sweep:
    return Sweep.of({**SMALL, **keys})


def write(path: Path, **keys: object) -> Path:
    """A sweep file; JSON's lists, numbers and text are TOML's, too."""
    table = {**SMALL, **keys}
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for name, section in table.items():
        if isinstance(section, dict):
            lines += [f"[{name}]", *(f'"{key}" = {json.dumps(value)}' for key, value in section.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


# --- what a file asks for


def test_lists_are_combined_and_zipped_ones_move_together() -> None:
    found = changes.combinations(
        {"llc": {"size_bytes": ["4MiB", 8388608]}, "machine.core.width": 4},
        [{"l2.ways": [4, 8], "l2.latency_cycles": [12, 14]}],
        {},
        "here",
    )
    assert [variations.as_settings(variation) for variation in found] == [
        {"llc.size_bytes": size, "core.width": 4, "l2.ways": ways, "l2.latency_cycles": latency}
        for size in (4 << 20, 8 << 20)
        for ways, latency in ((4, 12), (8, 14))
    ]
    assert changes.combinations({}, [], {}, "here") == [()]


@pytest.mark.parametrize(
    ("lists", "zips", "derived", "words"),
    [
        ({"a b": 5}, [], {}, "is not a key"),
        ({"llc.ways": []}, [], {}, "no values"),
        ({"llc.ways": [4], "llc": {"ways": [8]}}, [], {}, "there twice"),
        ({"llc.ways": [4]}, [{"llc.ways": [8]}], {}, "set twice"),
        (
            {},
            [{"llc.ways": [4, 8], "l2.ways": [4]}],
            {},
            r"llc.ways has 2, l2.ways has 1\n  where:  here, zip\[1\]",
        ),
        ({}, [{"llc.ways": [4]}, {}], {}, r"zip\[2\] has no keys\n  where:  here\n  remedy: give it keys"),
        ({}, [{"llc": {}}], {}, r"zip\[1\] has no keys"),
        ({"llc.ways": [4]}, [], {"llc.ways": "8"}, "set twice"),
        ({"llc.size_bytes": ["4XiB"]}, [], {}, "not understood"),
    ],
)
def test_lists_that_do_not_fit_together_are_refused(
    lists: dict[str, Any], zips: list[dict[str, Any]], derived: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        changes.combinations(lists, zips, derived, "here")
    assert re.search(words, str(caught.value))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("llc.size_bytes / 16", 1 << 20),
        ("2 * (core.width + 1) - 3", 7),
        ("7 / 2", 3.5),
        ("-7 // 2", -4),
        ("min(llc.ways, tlb.l2[1].entries, 5) % 4", 1),
    ],
)
def test_expressions(expression: str, value: float) -> None:
    found = changes.evaluated(expression, settings.machine("skylake-server"), "here")
    assert found == value
    assert isinstance(found, type(value))


@pytest.mark.parametrize(
    "expression",
    [
        "llc.size",
        "1 / 0",
        "__import__('os')",
        "name",
        "(lambda: 1)()",
        "2 ** 99",
        "llc",
        "",
        "1 +",
        "max(1, key=2)",
        "l2[llc.ways].x",
        "True + 1",
        "(" * 500,
        "1" + "+1" * 600,
        "1e308 * 10",
    ],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(UsageError):
        changes.evaluated(expression, settings.machine("skylake-server"), "here")


def test_every_combination_is_a_run_and_has_its_baseline() -> None:
    sweep = sweep_of(
        schemes=["radix4", "fpt", "radix4/fpt"],
        large_pages=[0, 100],
        seeds=[1, 2],
        machines=["skylake-server", "skylake-server-4core"],
        cores=[1, 4],
        set={"llc.size_bytes": ["16MiB", "32MiB"]},
        derive={"l2.size_bytes": "llc.size_bytes / 32"},
    )
    units = plan.plan(sweep)
    assert len(units) == plan.count(sweep) == 3 * 2 * 2 * 2 * 2 * 2
    assert len({unit.key for unit in units}) == len(units)
    by_key = {unit.key: unit for unit in units}
    for unit in units:
        base = by_key[unit.baseline]
        assert base.columns == {
            **unit.columns,
            "scheme": "radix4",
            "scheme_hash": base.columns["scheme_hash"],
            "host_large_pages": None,
            "guest_frames": None,
        }
        machine = unit.configuration["machine"]
        assert (
            machine["llc"]["size_bytes"]
            == unit.columns["llc.size_bytes"]
            == 32 * unit.columns["l2.size_bytes"]
        )
        assert machine["l2"]["size_bytes"] == unit.columns["l2.size_bytes"]
        assert machine["name"] == unit.columns["machine"]
        assert unit.configuration["cores"] == unit.columns["cores"]
    assert {unit.columns["cores"] for unit in units} == {1, 4}
    assert {unit.columns["scheme"] for unit in units} == {"radix4", "fpt", "radix4/fpt"}
    assert len({unit.columns["scheme_hash"] for unit in units}) == 3


def test_what_guests_have_is_nothing_to_other_runs() -> None:
    asked: dict[str, Any] = {"host_large_pages": [0, 100], "guest_frames": ["scattered", "compact"]}
    units = plan.plan(sweep_of(schemes=["radix4", "fpt", "radix4/fpt"], **asked))
    conditions = [tuple(unit.columns[key] for key in ("scheme", *asked)) for unit in units]
    assert sorted(conditions, key=str) == sorted(
        [
            ("radix4", None, None),
            ("fpt", None, None),
            *(("radix4/fpt", share, frames) for share in (0, 100) for frames in ("scattered", "compact")),
        ],
        key=str,
    )
    [native] = [unit for unit in units if unit.columns["scheme"] == "radix4"]
    assert {unit.baseline for unit in units} == {native.key}
    for unit in units:
        told = [unit.columns[key] for key in asked]
        assert [unit.configuration[key] for key in asked] == ([0, "scattered"] if None in told else told)
    assert native.key in {unit.key for unit in plan.plan(sweep_of())}


def test_runs_without_a_guest_that_an_earlier_version_stored(tmp_path: Path) -> None:
    results = made(tmp_path)
    ran(sweep_of(schemes=["radix4", "radix4/fpt"]), results)
    wanted = results.table()
    assert set(wanted.column("host_large_pages").to_pylist()) == {None, 0}
    for path in (tmp_path / "runs").iterdir():
        table = pq.read_table(path)
        for name, value in (("host_large_pages", 0), ("guest_frames", "scattered")):
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, pa.array([value], table.schema.field(at).type))
        pq.write_table(table, path)
    assert results.table() == wanted


def test_what_is_there_twice_is_one_run() -> None:
    assert len(plan.plan(sweep_of(seeds=[1, 1], large_pages=[0, 0], schemes=["radix4", "radix4"]))) == 1


def test_the_same_numbers_are_the_same_runs() -> None:
    """Whether they are written with a decimal point or not, or are not written."""

    def keys(**asked: object) -> set[str]:
        return {unit.key for unit in plan.plan(sweep_of(**asked))}

    assert keys() == keys(fragmentation=[0]) == keys(fragmentation=[0, 0.0])
    for key in ("memory.cl_ns", "energy.llc_pj", "page_table_priority.enter_l2_tlb_mpki"):
        assert keys(set={key: [13]}) == keys(set={key: [13.0]}) == keys(derive={key: "26 / 2"})
    assert keys(schemes=["compendia"], set={"scheme.table.merge_us": [13]}) == keys(
        schemes=["compendia"], set={"scheme.table.merge_us": [13.0]}
    )
    assert keys(set={"llc.ways": [8]}) == keys(set={"llc.ways": ["8"]})


def test_derived_values_may_make_the_others_possible() -> None:
    """7 ways alone leave no power of two of sets."""
    sweep = sweep_of(set={"llc.ways": [7]}, derive={"llc.size_bytes": "llc.ways * 64 * 4096"})
    for unit in plan.plan(sweep):
        llc = unit.configuration["machine"]["llc"]
        assert (llc["ways"], llc["size_bytes"]) == (7, 7 * 64 * 4096)
    with pytest.raises(UsageError, match="must make a power of two"):
        plan.plan(sweep_of(set={"llc.ways": [8]}, derive={"llc.size_bytes": "7 * 64 * 4096"}))


def test_a_run_is_the_same_however_its_sweep_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, name, before, after in (
        ("machines", "zen4", "frequency_mhz = 5000", "frequency_mhz = 4000"),
        ("schemes", "radix4", "levels = 4", "levels = 5"),
    ):
        (tmp_path / f"{name}.toml").write_text(shipped(kind, name, before, after))
    file = write(tmp_path / "s.toml", machines=["zen4.toml"], schemes=["radix4", "radix4.toml"])
    monkeypatch.chdir(tmp_path)
    plans = [plan.plan(Sweep.read(name)) for name in (str(file), "./s.toml")]
    assert [unit.key for unit in plans[0]] == [unit.key for unit in plans[1]]
    assert [unit.columns["scheme"] for unit in plans[0]] == ["radix4", "radix4 (radix4.toml)"]


def test_two_files_of_one_name_are_named_as_the_sweep_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, levels in (("a", 4), ("b", 5)):
        (tmp_path / folder).mkdir()
        changed = shipped("schemes", "radix4", "levels = 4", f"levels = {levels}")
        (tmp_path / folder / "radix4.toml").write_text(changed.replace('title = "', f'title = "{folder}: '))
    file = write(tmp_path / "s.toml", schemes=["a/radix4.toml", "b/radix4.toml"])
    monkeypatch.chdir(tmp_path)
    plans = [plan.plan(Sweep.read(name)) for name in (str(file), "./s.toml")]
    assert [unit.key for unit in plans[0]] == [unit.key for unit in plans[1]]


@pytest.mark.parametrize("pair", ["mine.toml/radix4", "radix4/mine.toml", "a/mine.toml/b/mine.toml"])
def test_members_of_a_pair_are_files_of_the_sweeps_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: str
) -> None:
    for folder in (".", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        own = shipped("schemes", "fpt", 'name = "fpt"', 'name = "mine"')
        (tmp_path / folder / "mine.toml").write_text(own)
    file = write(tmp_path / "s.toml", schemes=["radix4", pair])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    plans = [plan.plan(Sweep.read(name)) for name in (str(file), "../s.toml")]
    assert [unit.key for unit in plans[0]] == [unit.key for unit in plans[1]]
    assert {unit.columns["scheme"] for unit in plans[0]} == {
        "radix4",
        pair.replace("a/", "").replace("b/", "").replace("mine.toml", "mine"),
    }


def test_threads_that_start_processes_leave_the_main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    own = sys.modules["__main__"]
    inside, go_on = threading.Event(), threading.Event()

    def submit(_self: object, _fn: object, number: int) -> None:
        if number == 0:
            inside.set()
            assert go_on.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
    with engines._Processes(1) as processes:  # noqa: SLF001
        threads = [threading.Thread(target=processes.submit, args=(print, number)) for number in range(2)]
        threads[0].start()
        assert inside.wait(PATIENCE_SECONDS)
        threads[1].start()
        go_on.set()
        for thread in threads:
            thread.join()
    assert sys.modules["__main__"] is own


def test_processes_of_a_sweep_begin_deaf_to_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a child would print of one that comes while it loads modules is a traceback."""
    blocked: list[bool] = []

    def submit(_self: object, _fn: object) -> None:
        blocked.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
    with engines._Processes(1) as processes:  # noqa: SLF001
        processes.submit(print)
    assert blocked == [True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_killed_processes_do_not_keep_a_sweep_from_ending(tmp_path: Path) -> None:
    """Whatever they were doing: here they do nothing but look whether they shall stop."""
    code = """import os, pathlib, signal, time
from flatwalk.lab import engines
looks = "from flatwalk.lab import engines\\nopen(str(number), 'w')\\nwhile True: engines._look(0, None)"
with engines.local(4) as make:
    pool = make()
    calls = [pool.submit(exec, looks, {"number": number}) for number in range(4)]
    while not all(pathlib.Path(str(number)).exists() for number in range(4)):
        time.sleep(0.1)
    for pid in list(pool._processes):
        os.kill(pid, signal.SIGKILL)
    assert all(call.exception() for call in calls)
print("ended")"""
    done = run_code(code, cwd=tmp_path)
    assert done.stdout == "ended\n", done.stderr


def test_results_that_cannot_be_written_are_an_error_before_anything_runs(
    small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, call: Callable[..., Result]
) -> None:
    disk = small_disk("1m")
    (disk / "r" / "runs").mkdir(parents=True)
    (disk / "s.toml").write_text('name = "s"\nworkloads = ["gups:16MiB"]\nschemes = ["radix4", "fpt"]\n')
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    monkeypatch.setattr(run, "run", lambda *_, **__: pytest.fail("it runs"))
    done = call("sweep", str(disk / "s.toml"), "--results", str(disk / "r"), "-j", "1")
    assert (done.code, "results cannot be locked: Read-only file system" in done.err) == (1, True), done.err


def test_a_sweep_whose_files_cannot_be_joined_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Result]
) -> None:
    def full(_self: object) -> None:
        raise FlatwalkError("results cannot be written: No space left on device")

    monkeypatch.setattr(store.Results, "compact", full)
    (tmp_path / "s.toml").write_text(
        'name = "s"\nworkloads = ["gups:16MiB"]\nschemes = ["radix4", "fpt"]\ninstructions = "20K"\n'
        "warmup = 0\nexhaustive = true\n"
    )
    done = call("sweep", "s.toml", "--results", "r", "-j", "1")
    assert (done.code, "2 of 2 runs" in done.out) == (0, True), done.err
    assert "files of results were not joined: results cannot be written: No space left" in done.err


def test_windows_may_have_a_unit() -> None:
    sweep = sweep_of(windows="4K", window="1K", exhaustive=False)
    assert sweep.lengths.windows == 4000


def test_traces_of_one_name_are_told_apart(tmp_path: Path, flatwalk: Callable[..., Result]) -> None:
    for folder, command_ in (("a", ["true"]), ("b", ["echo", "x"])):
        (tmp_path / folder).mkdir()
        done = flatwalk("record", "-o", tmp_path / folder / "t.fwt", "--exhaustive", "--", *command_)
        assert done.code == 0
    file = write(tmp_path / "s.toml", traces=["a/t.fwt", "b/t.fwt"], instructions="10K")
    units = plan.plan(Sweep.read(str(file)))
    assert {unit.columns["source"] for unit in units} == {"gups:16MiB", "a/t.fwt", "b/t.fwt"}
    alone = write(tmp_path / "alone.toml", traces=["b/t.fwt"], instructions="10K")
    [name] = {unit.columns["source"] for unit in plan.plan(Sweep.read(str(alone)))} - {"gups:16MiB"}
    assert name == "t.fwt"


def test_an_edited_machine_is_told_apart(
    tmp_path: Path, call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = tmp_path / "m.toml"
    machine.write_text(shipped("machines", "zen4", "frequency_mhz = 5000", "frequency_mhz = 4000"))
    asked = {"machines": ["m.toml", "zen4"], "set": {"llc.latency_cycles": [40, 60]}}
    file = write(tmp_path / "s.toml", **asked)
    sweep = ("sweep", str(file), "--results", "r", "-j", "1")
    assert "other contents" not in call(*sweep).err
    assert "other contents" not in call(*sweep).err, "they are this sweep's"
    machine.write_text(machine.read_text().replace("frequency_mhz = 4000", "frequency_mhz = 3000"))
    done = call(*sweep)
    assert "4 of them new" in done.out
    assert "r has 4 runs of m.toml with other contents than now" in done.err
    assert "machine_hash" in done.err
    rows = store.Results(tmp_path / "r").table().to_pylist()
    found = Counter((row["machine"], row["machine_hash"]) for row in rows)
    assert sorted((name, count) for (name, _), count in found.items()) == [
        ("m.toml", 4), ("m.toml", 4), ("zen4", 4)
    ]  # fmt: skip
    by = ("results", "diff", "40", "60", "--by", "llc.latency_cycles", "--results", "r", "--json")
    pairs = json.loads(call(*by).out)
    assert Counter((one["machine"], one["machine_hash"]) for one in pairs) == dict.fromkeys(found, 2)
    [row, *_] = json.loads(call(*by, "--where", "machine = 'zen4'").out)
    assert row["scheme"] == "fpt"
    assert "machine" not in row
    assert "scheme_hash" not in row, "the name says it"
    between = ("results", "diff", "m.toml", "zen4", "--by", "machine", "--results", "r")
    assert "several runs are alike" in call(*between).err
    one = next(own for name, own in found if name == "m.toml")
    chosen = call(*between, "--where", f"machine = 'zen4' or machine_hash = '{one}'", "--json")
    assert len(json.loads(chosen.out)) == 4
    assert call("results", "report", "--results", "r", "-o", "r.html").code == 0
    page = (tmp_path / "r.html").read_text()
    assert "machine_hash" in page
    assert "scheme_hash" not in page


def test_the_same_trace_elsewhere_is_the_same_source(tmp_path: Path, flatwalk: Callable[..., Result]) -> None:
    first, second = tmp_path / "a.fwt", tmp_path / "b.fwt"
    assert flatwalk("record", "-o", first, "--exhaustive", "--", "true").code == 0
    second.write_bytes(first.read_bytes())
    keys = [
        {unit.key for unit in plan.plan(sweep_of(workloads=[], traces=[str(path)], instructions="10K"))}
        for path in (first, second)
    ]
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"workloads": []}, "neither workloads nor traces"),
        ({"workloads": ["nope:1GiB"]}, "no workload 'nope'"),
        ({"traces": ["nowhere.fwt"]}, "no file nowhere.fwt"),
        ({"schemes": ["fptt"]}, "did you mean fpt"),
        ({"machines": ["zen5"]}, "did you mean zen4"),
        ({"scheme": ["fpt"]}, "scheme is not a known key; did you mean schemes"),
        ({"thp": ["always"], "large_pages": [0]}, "give one of them"),
        ({"set": {"llc.size_byte": [1]}}, "size_byte is not a known key; did you mean size_bytes"),
        ({"set": {"tlb.l2[7].entries": [1]}}, "has no tlb.l2"),
        ({"set": {"scheme.table.nope": [1]}}, "no scheme here has it"),
        ({"set": {"llc.ways": [7]}}, "llc.size_bytes must make a power of two"),
        ({"set": {"llc.ways": ["x"]}}, "must be a whole number"),
        ({"set": {"title": ["x"]}}, "title changes no figure"),
        ({"set": {"machine": {"name": ["x"]}}}, "name changes no figure"),
        ({"set": {"scheme.source": ["x"]}}, "scheme.source changes no figure"),
        ({"zip": [{"description": ["x"]}]}, "description changes no figure"),
        ({"seeds": []}, "a list that is not empty"),
        ({"seeds": [1, 2**63]}, "a seed of 9223372036854775808 is more than results can hold"),
        ({"windows": 0, "exhaustive": False}, "nothing is to be simulated"),
        ({"windows": "4X", "exhaustive": False}, "4X"),
        ({"cores": [0]}, "cores"),
        ({"host_large_pages": [0, 100]}, "no scheme runs in a guest\n  where:  sweep, host_large_pages\n"),
        ({"guest_frames": ["compact"]}, "no scheme runs in a guest\n  where:  sweep, guest_frames\n"),
        ({"machines": ["skylake-server-4core"], "cores": [5]}, "has 4"),
        (
            {"set": {f"tlb.l2[1].{key}": list(range(1, 1500)) for key in ("entries", "ways")}},
            "2,000,000|4,49",
        ),
    ],
)
def test_a_sweep_is_refused_before_anything_runs(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan.plan(sweep_of(**keys))
    assert re.search(words, str(caught.value))


@pytest.mark.parametrize(
    ("keys", "key", "remedy"),
    [
        ({"instructions": "abc"}, "instructions", "for example 100M"),
        ({"instructions": 0}, "instructions", "above 0"),
        ({"warmup": "-1"}, "warmup", "for example 100M"),
        ({"skip": "1.5"}, "skip", "for example 100M"),
        ({"window": "0", "exhaustive": False}, "window", "above 0"),
        ({"window": 1}, "window", "give 1000 or more"),
        ({"windows": "4X"}, "windows", "for example 100M"),
        ({"windows": 4}, "exhaustive", "leave out windows and window, or exhaustive"),
        ({"thp": []}, "thp", "leave it out"),
        ({"cores": []}, "cores", "leave it out"),
    ],
)
def test_a_mistake_in_a_sweep_names_file_key_and_remedy(
    tmp_path: Path, keys: dict[str, Any], key: str, remedy: str
) -> None:
    path = write(tmp_path / "mine.toml", **keys)
    with pytest.raises(UsageError) as caught:
        Sweep.read(str(path))
    assert caught.value.where == f"{path}, {key}"
    assert remedy in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"skip": "1G"}, "skip"),
        ({"skip": "1G", "warmup": "1K"}, "skip and warmup"),
        ({"warmup": "1G"}, "warmup"),
    ],
)
def test_a_sweep_that_leaves_nothing_of_a_trace_names_both(
    tmp_path: Path, flatwalk: Callable[..., Result], keys: dict[str, Any], place: str
) -> None:
    assert flatwalk("record", "-o", tmp_path / "a.fwt", "--exhaustive", "--", "true").code == 0
    path = write(tmp_path / "mine.toml", traces=["a.fwt"], **keys)
    with pytest.raises(UsageError, match="leaves none to measure") as caught:
        plan.plan(Sweep.read(str(path)))
    assert caught.value.where == f"{path}, {place}: a.fwt"
    assert "--" not in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("info", "keys", "place"),
    [
        ({"instructions": 0}, {}, "traces"),
        ({"gap_instructions": 9}, {}, "exhaustive"),
        (
            {"gap_instructions": 9, "segment_instructions": 2000},
            {"exhaustive": False, "window": "1M"},
            "window",
        ),
    ],
)
def test_a_trace_that_a_sweep_cannot_use_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, info: dict[str, Any], keys: dict[str, Any], place: str
) -> None:
    trace = tmp_path / "t.fwt"
    trace.touch()
    monkeypatch.setattr(engine, "trace_info", lambda _: {"instructions": 9000, "hash": "0", **info})
    with pytest.raises(UsageError) as caught:
        plan.plan(sweep_of(traces=[str(trace)], **keys))
    assert caught.value.where == f"sweep, {place}: t.fwt"


def test_batches_share_a_request_and_fit_into_memory() -> None:
    units = plan.plan(sweep_of(seeds=[1, 2, 3], set={"llc.ways": [4, 8, 16]}))
    for memory, most in ((1 << 40, 16), (1 << 20, 1)):
        found = plan.batches(units, 1, memory)
        assert [unit for batch in found for unit in batch] == units
        assert all(len({json.dumps(unit.request) for unit in batch}) == 1 for batch in found)
        assert max(map(len, found)) <= most
    assert len(plan.batches(units, 4, 1 << 40)) == len(units), "every worker has several"


def test_runs_take_no_more_than_the_process_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, groups = tmp_path / "own", tmp_path / "groups"
    monkeypatch.setattr(run, "_OWN_GROUPS", own)
    monkeypatch.setattr(run, "_GROUPS", groups)
    whole = run.memory_bytes()
    inner = groups / "a" / "b"
    inner.mkdir(parents=True)
    own.write_text("1:name=systemd:/other\n0::/a/b\n")
    assert run.memory_bytes() == whole
    (inner / "memory.max").write_text("max\n")
    assert run.memory_bytes() == whole
    (inner.parent / "memory.max").write_text("8192\n")
    assert run.memory_bytes() == 4096
    (inner / "memory.max").write_text("4096\n")
    assert run.memory_bytes() == 2048


def test_there_are_as_many_processes_as_cores_that_may_be_used() -> None:
    code = """import os
from flatwalk.lab import command
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(command.Place().workers)"""
    done = run_code(code)
    assert done.stdout == "1\n", done.stderr


def test_without_cores_they_are_the_machines() -> None:
    assert {unit.configuration["cores"] for unit in plan.plan(sweep_of())} == {None}


def test_a_wrong_condition_is_of_its_option() -> None:
    with pytest.raises(UsageError) as caught:
        query.selected(pa.table({"seed": [1]}), "foo")
    assert caught.value.where == "--where"
    assert "--where" in (caught.value.remedy or "")


# --- running


class Here(Executor):
    """Runs each call at once, in this process; the given ones kill their worker first."""

    def __init__(self, deadly: set[str], calls: list[dict[str, Any]]) -> None:
        self._deadly, self._calls, self._broken = deadly, calls, False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._broken:
            raise BrokenExecutor
        future: Future[Any] = Future()
        request = json.loads(args[0])
        self._calls.append(request)
        names = {one["scheme"]["name"] for one in request["runs"]}
        if names & self._deadly:
            self._broken = True
            future.set_exception(BrokenExecutor())
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def ran(
    sweep: Sweep, results: store.Results, deadly: set[str] | None = None
) -> tuple[run.Outcome, list[dict[str, Any]]]:
    calls: list[dict[str, Any]] = []
    missing = [unit for unit in plan.plan(sweep) if unit.key not in results.keys()]  # noqa: SIM118 - no dict
    outcome = run.run(
        sweep.name,
        missing,
        results,
        make=lambda: Here(deadly or set(), calls),
        workers=1,
        progress=lambda *_: None,
    )
    return outcome, calls


def test_runs_are_those_of_compare(tmp_path: Path, flatwalk: Callable[..., Result]) -> None:
    options = ["--workload", "gups:16MiB", "--schemes", "radix4,fpt", "--large-pages", "0,100", "--seed", "3"]
    lengths = ["--instructions", "2M", "--windows", "5", "--window", "20K", "--warmup", "50K"]
    done = flatwalk("compare", *options, *lengths, "--no-report", "--json", "-")
    assert done.code == 0, done.err
    wanted = json.loads(done.out)["runs"]
    results = made(tmp_path / "r")
    keys = {"windows": 5, "window": "20K", "warmup": "50K", "instructions": "2M", "exhaustive": False}
    outcome, _ = ran(sweep_of(seeds=[3], large_pages=[0, 100], mode="timing", **keys), results)
    assert (outcome.done, outcome.failed) == (4, [])
    found = {(row["scheme"], row["large_pages"]): row for row in results.table().to_pylist()}
    for one in wanted:
        row = found[one["scheme"], one["large_pages"]]
        for name in ("cycles", "walks", "ipc", "speedup", "speedup_low", "speedup_high", "windows"):
            assert row[name] == one[name], name
        assert json.loads(row["result"])["cycle_stack"] == one["cycle_stack"]


def test_only_what_is_missing_runs(tmp_path: Path) -> None:
    results = made(tmp_path)
    outcome, calls = ran(sweep_of(), results)
    assert (outcome.done, sum(len(call["runs"]) for call in calls)) == (2, 2)
    assert ran(sweep_of(), results)[1] == []
    outcome, calls = ran(sweep_of(schemes=["radix4", "fpt", "radix5"]), results)
    assert [one["scheme"]["name"] for call in calls for one in call["runs"]] == ["radix5"]
    row = next(row for row in results.table().to_pylist() if row["scheme"] == "radix5")
    assert row["speedup"] is None, "nothing was timed"
    assert row["baseline"] in results.keys()  # noqa: SIM118


def test_speed_ups_are_over_one_scheme(tmp_path: Path) -> None:
    place = tmp_path / "r"
    results = made(place)
    ran(sweep_of(), results)
    on = command.Place(jobs=1)
    words = "over radix4, and those of this sweep were over fpt"
    for other in ({}, {"seeds": [2]}, {"schemes": ["fpt", "radix5"]}):
        with pytest.raises(UsageError, match=words):
            command.run_missing(sweep_of(**{"schemes": ["fpt", "radix4", "radix5"]} | other), place, on)
    # An earlier version did not store the baseline's scheme.
    for path in (place / "runs").iterdir():
        table = pq.read_table(path)
        assert set(table.column("baseline_scheme").to_pylist()) == {"radix4"}
        pq.write_table(table.drop_columns("baseline_scheme"), path)
    with pytest.raises(UsageError, match=words):
        command.run_missing(sweep_of(schemes=["fpt", "radix4"], seeds=[2]), place, on)
    assert set(results.table().column("baseline_scheme").to_pylist()) == {"radix4"}
    assert len(stored_keys(place)) == 2
    command.run_missing(sweep_of(schemes=["radix4", "fpt", "radix5"]), place, on)
    assert len(set(results.baselines().values())) == 1
    assert len(stored_keys(place)) == 3


def test_a_baseline_that_was_edited_is_another_one(tmp_path: Path) -> None:
    file = tmp_path / "radix4.toml"
    sweep = sweep_of(schemes=[str(file), "fpt"])
    file.write_text(shipped("schemes", "radix4", 'name = "radix4"', 'name = "mine"'))
    ran(sweep, made(tmp_path / "r"))
    file.write_text(file.read_text().replace("levels = 4", "levels = 5"))
    with pytest.raises(UsageError, match="over another mine, and"):
        command.run_missing(sweep, tmp_path / "r", command.Place(jobs=1))


def test_a_script_may_sweep(tmp_path: Path) -> None:
    """One that has no `if __name__ == "__main__"`: its workers do not run it again."""
    block = (ROOT / "docs" / "python.md").read_text().partition("## Sweeps")[2].split("```")[1]
    script = tmp_path / "script.py"
    script.write_text(f"import flatwalk as fw\n{block.removeprefix('python')}")
    done = subprocess.run(
        [sys.executable, "-I", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "accesses_per_walk" in done.stdout
    assert len(stored_keys(tmp_path / "pwc-results")) == 4


def test_a_trace_that_is_another_one_when_it_runs_is_an_error(
    tmp_path: Path, flatwalk: Callable[..., Result]
) -> None:
    trace, other = tmp_path / "t.fwt", tmp_path / "other.fwt"
    for path, command_ in ((trace, ["true"]), (other, ["echo", "x"])):
        assert flatwalk("record", "-o", path, "--exhaustive", "--", *command_).code == 0
    results = made(tmp_path / "r")
    sweep = sweep_of(workloads=["gups:16MiB"], traces=[str(trace)], instructions="10K")
    units = plan.plan(sweep)
    trace.write_bytes(other.read_bytes())
    outcome = run.run("s", units, results, make=lambda: Here(set(), []), workers=1, progress=lambda *_: None)
    assert outcome.done == 2
    assert [(unit.columns["source"], error.what) for unit, error in outcome.failed] == [
        ("t.fwt", "its trace is another one by now, or where it ran")
    ] * 2
    assert {row["source"] for row in results.table().to_pylist()} == {"gups:16MiB"}
    assert ran(sweep, results)[0].done == 2, "planned anew, it is what it is"


def test_readers_do_not_see_that_files_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = made(tmp_path)
    ran(sweep_of(), results)
    ran(sweep_of(schemes=["radix4", "radix5"]), results)
    monkeypatch.setattr(store, "_MOST_FILES", 1)
    read: Callable[..., pa.Table] = store._read  # noqa: SLF001
    asked: list[Callable[[store.Results], list[str]]] = [
        lambda one: sorted(one.baselines()),
        lambda one: sorted(one.table()["key"].to_pylist()),
    ]
    for ask in asked:
        for path in (tmp_path / "runs").iterdir():  # two files again
            table = read(path)
            pq.write_table(table.slice(1), path.with_name("later.parquet"))
            pq.write_table(table.slice(0, 1), path)
        others = [made(tmp_path)]

        def late(*arguments: Any, others: list[store.Results] = others) -> pa.Table:
            while others:  # another process joins the files after this one has listed them
                others.pop().compact()
            return read(*arguments)

        monkeypatch.setattr(store, "_read", late)
        assert ask(made(tmp_path)) == sorted(stored_keys(tmp_path))
        monkeypatch.setattr(store, "_read", read)
        assert len(stored_keys(tmp_path)) == 3
        assert len(list((tmp_path / "runs").iterdir())) == 1


def test_two_writers_store_each_run_once(tmp_path: Path) -> None:
    writers = [made(tmp_path) for _ in range(4)]
    rows: list[dict[str, Any]] = [
        {"key": str(number), "baseline": "0", "finished": None, "x.y": number} for number in range(50)
    ]

    def write_all(results: store.Results, seed: int) -> None:
        shuffled = rows.copy()
        random.Random(seed).shuffle(shuffled)
        for row in shuffled:
            results.append([row])

    threads = [threading.Thread(target=write_all, args=(one, seed)) for seed, one in enumerate(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stored_keys(tmp_path)) == sorted(row["key"] for row in rows)
    writers[0].compact()
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert sorted(stored_keys(tmp_path)) == sorted(row["key"] for row in rows)


def test_what_another_sweep_stored_meanwhile_is_not_new(tmp_path: Path) -> None:
    missing = plan.plan(sweep_of())
    told: list[tuple[int, int | None]] = []
    stored = []
    for _ in range(2):  # both were planned before either had a result
        outcome = run.run(
            "small",
            missing,
            made(tmp_path),
            make=lambda: Here(set(), []),
            workers=1,
            progress=lambda *so_far: told.append(so_far),
        )
        stored.append((outcome.new, outcome.failed))
        assert told[-1] == (2, 2)
    assert stored == [(2, []), (0, [])]


def made(place: Path) -> store.Results:
    results = store.Results(place)
    results.make()
    return results


def stored_keys(place: Path) -> list[str]:
    """Keys of all rows of all files, as another program reads them."""
    return [
        str(key)
        for path in (place / "runs").glob("*.parquet")
        for key in pq.read_table(path)["key"].to_pylist()
    ]


def test_a_run_that_kills_its_worker_fails_alone(tmp_path: Path) -> None:
    results = made(tmp_path)
    sweep = sweep_of(schemes=["radix4", "fpt", "radix5", "fpt-l3l2"], seeds=[1, 2, 3])
    outcome, _ = ran(sweep, results, deadly={"radix5"})
    assert outcome.done == 9
    assert {unit.configuration["scheme"]["name"] for unit, _ in outcome.failed} == {"radix5"}
    assert len(outcome.failed) == 3
    assert all("killed" in error.what for _, error in outcome.failed)
    outcome, calls = ran(sweep, results)
    assert (outcome.done, outcome.failed) == (3, [])
    assert {one["scheme"]["name"] for call in calls for one in call["runs"]} == {"radix5"}


def test_after_a_killed_worker_calls_go_on_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    def counted(running: Any, **options: Any) -> Any:
        waited.append(len(running))
        return wait(running, **options)

    monkeypatch.setattr(run, "wait", counted)
    monkeypatch.setattr(plan, "MOST_AT_ONCE", 1)
    sweep = sweep_of(schemes=["radix5", "radix4", "fpt"], seeds=list(range(6)))
    outcome, calls = ran(sweep, made(tmp_path), deadly={"radix5"})
    assert (outcome.done, len(outcome.failed)) == (12, 6)
    assert waited[-1] == 2, "as many as before"
    assert all(len(call["runs"]) == 1 for call in calls)


def test_another_engine_is_refused() -> None:
    done = engines.work("{}", "another digest")
    assert done.response is None
    assert "another engine" in done.error


def test_a_failed_run_is_named(tmp_path: Path, flatwalk: Callable[..., Result]) -> None:
    trace = tmp_path / "t.fwt"
    assert flatwalk("record", "-o", trace, "--exhaustive", "--", "true").code == 0
    whole = trace.read_bytes()
    middle = len(whole) // 2
    trace.write_bytes(
        whole[:middle] + bytes(byte ^ 0xFF for byte in whole[middle : middle + 64]) + whole[middle + 64 :]
    )
    file = write(tmp_path / "s.toml", workloads=["gups:16MiB"], traces=["t.fwt"], instructions="1M")
    done = flatwalk("sweep", file, "--results", tmp_path / "r", "-j", "1")
    assert done.code == 1
    assert "2 runs failed" in done.err
    assert "t.fwt, fpt" in done.err
    assert "Traceback" not in done.err
    assert len(stored_keys(tmp_path / "r")) == 2
    status = flatwalk("sweep", file, "--results", tmp_path / "r", "--status")
    assert "2 of 4 runs are stored" in status.out


def test_a_failed_run_says_where_and_what_to_do(tmp_path: Path, flatwalk: Callable[..., Result]) -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    table = page.partition("```python\nclass LeafMap")[2].partition("\n\n\n")[0]
    lines = f"import flatwalk as fw\nclass LeafMap{table}\n".splitlines()
    at = next(number for number, line in enumerate(lines) if "def insert(" in line) + 1
    lines.insert(at, '        raise ValueError("no\\nmore")')
    (tmp_path / "mine.py").write_text("\n".join(lines))
    file = write(tmp_path / "s.toml", schemes=["radix4", "mine.py:LeafMap"], seeds=[1, 2])
    done = flatwalk("sweep", file, "--results", tmp_path / "r", "-j", "1")
    assert done.code == 1
    place = f"{tmp_path}/mine.py:{at + 1}"
    for seed in (1, 2):
        [line] = [line for line in done.err.splitlines() if "LeafMap" in line and f"seed {seed}" in line]
        assert line.endswith(f": LeafMap.insert failed: ValueError: no ({place})")
    assert done.err.count(f"fix {place}") == 1
    assert "the same command runs what is missing" in done.err


def big(tmp_path: Path, instructions: str = "400K") -> Path:
    """A sweep of 64 runs; with the usual length it takes some seconds."""
    return write(
        tmp_path / "big.toml",
        seeds=list(range(8)),
        large_pages=[0, 50],
        instructions=instructions,
        set={"tlb.l2[1].entries": [768, 1536]},
    )


def begin(file: Path, place: Path, *options: str) -> subprocess.Popen[bytes]:
    # With nohup, its children ignore SIGHUP.
    heard = ["env", "--default-signal=HUP", sys.executable, "-I", "-m", "flatwalk"]
    command = [*heard, "sweep", str(file), "--results", str(place), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(process: subprocess.Popen[bytes], place: Path, runs: int) -> None:
    """Waits until so many runs are stored, or the sweep has ended."""
    wait_until(lambda: process.poll() is not None or len(stored_keys(place)) >= runs)


@pytest.mark.slow
def test_kill_at_any_time_loses_and_repeats_nothing(tmp_path: Path) -> None:
    file, place = big(tmp_path), tmp_path / "r"
    rng = random.Random(11)
    before: dict[str, Any] = {}
    for _ in range(10):
        (place / "runs").mkdir(parents=True, exist_ok=True)
        process = begin(file, place, "-j", "2")
        wait_for(process, place, len(before) + rng.randint(1, 6))
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)  # ends when its workers have
        tables = [pq.read_table(path) for path in (place / "runs").glob("*.parquet")]
        now = {row["key"]: row for table in tables for row in table.to_pylist()}
        assert sum(table.num_rows for table in tables) == len(now), "each once"
        assert before.items() <= now.items(), "what was stored is there as it was"
        before = now
    process = begin(file, place)
    out, err = process.communicate()
    assert process.returncode == 0, err
    keys = stored_keys(place)
    assert Counter(keys) == Counter(unit.key for unit in plan.plan(Sweep.read(str(file))))
    assert f"{64 - len(before)} of them new" in out.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_its_workers(tmp_path: Path, number: signal.Signals) -> None:
    file, place = big(tmp_path, "50M"), tmp_path / "r"
    (place / "runs").mkdir(parents=True)
    process = begin(file, place, "-j", "2")
    wait_for(process, place, 1)
    process.send_signal(number)
    _, err = process.communicate(
        timeout=PATIENCE_SECONDS
    )  # ends when the workers have, too: they could write there
    assert process.returncode == 128 + number
    assert b"Traceback" not in err
    assert not list(place.rglob("*.part"))


# --- a cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two workers, each a process of its own."""
    distributed: Any = importlib.import_module("distributed")  # has no types
    environment = os.environ | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "30"}
    about = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(about)]
    started = [subprocess.Popen([*dask, *options], **quiet)]
    worker = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        "--scheduler-file",
        str(about),
        "--no-dashboard",
    ]
    one = [
        "--scheduler-file",
        str(about),
        "--nthreads",
        "1",
        "--no-nanny",
        "--local-directory",
        str(tmp_path),
    ]
    try:
        address = distributed.utils.json_load_robust(about, timeout=PATIENCE_SECONDS)["address"]
        started += [subprocess.Popen([*worker, *one], **quiet) for _ in range(2)]
        with distributed.Client(address, timeout=PATIENCE_SECONDS, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=PATIENCE_SECONDS)
        yield address, started
    finally:
        for process in started:
            process.kill()
            process.wait()


def figures(place: Path) -> list[dict[str, Any]]:
    """All results but for when and how long."""
    rows = [row for path in (place / "runs").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    return sorted(
        ({key: value for key, value in row.items() if key not in {"finished", "seconds"}} for row in rows),
        key=lambda row: str(row["key"]),
    )


@pytest.mark.slow
def test_a_cluster_finds_the_same_though_a_worker_is_killed(
    tmp_path: Path, cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    address, processes = cluster
    file, place = big(tmp_path, "20M"), tmp_path / "cluster"
    (place / "runs").mkdir(parents=True)
    process = begin(file, place, "--cluster", address)
    wait_for(process, place, 8)
    assert process.poll() is None, process.communicate()
    processes[1].kill()
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    alone = begin(file, tmp_path / "alone", "-j", "1")
    alone.communicate()
    assert figures(place) == figures(tmp_path / "alone")
    assert len(figures(place)) == 64


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path, flatwalk: Callable[..., Result]) -> None:
    file = write(tmp_path / "s.toml")
    done = flatwalk("sweep", file, "--results", tmp_path / "r", "--cluster", "tcp://127.0.0.1:1")
    assert done.code == 2
    assert "no scheduler at tcp://127.0.0.1:1" in done.err
    assert "Traceback" not in done.err


def test_no_cluster_is_none_of_ones_own(tmp_path: Path, flatwalk: Callable[..., Result]) -> None:
    done = flatwalk("sweep", write(tmp_path / "s.toml"), "--results", tmp_path / "r", "--cluster", "")
    assert done.code == 2
    assert "no scheduler is named" in done.err


@pytest.mark.parametrize("address", ["nonsense", "tcp://node1", "smoke://node1:1"])
def test_what_is_no_address_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Result], address: str
) -> None:
    import distributed

    # A client that finds this out itself is half made, and waits for itself before it goes.
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("a client is made"))
    file = write(tmp_path / "s.toml")
    done = call("sweep", str(file), "--results", "r", "--cluster", address)
    assert done.code == 2
    assert f"'{address}' is not the address of a scheduler" in done.err
    assert list(tmp_path.iterdir()) == [file]


def test_a_cluster_has_calls_for_all_its_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    class Client:
        def __init__(self, address: str, **_: object) -> None:
            assert address == "tcp://node1:8786"

        def ncores(self) -> dict[str, int]:
            return {"tcp://node2:1": 64, "tcp://node3:1": 32}

        def close(self) -> None:
            pass

        def get_executor(self) -> None:
            pass

    monkeypatch.setattr(distributed, "Client", Client)
    with command.Place(cluster="tcp://node1:8786").executors(tmp_path) as (_, workers):
        assert workers == 96


# --- questions


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of four timed runs on each of two machines."""
    place = tmp_path_factory.mktemp("stored")
    sweep = sweep_of(
        mode="timing",
        machines=["skylake-server", "zen4"],
        instructions="1M",
        exhaustive=False,
        windows=5,
        window="20K",
        warmup="20K",
        set={"llc.latency_cycles": [40, 60]},
    )
    outcome, _ = ran(sweep, made(place))
    assert outcome.done == 8
    return place


def test_sql_is_answered(stored: Path, flatwalk: Callable[..., Result]) -> None:
    sql = 'select scheme, "llc.latency_cycles" as latency, count(*) as n from runs group by all order by all'
    done = flatwalk("results", "query", sql, "--results", stored, "--csv")
    assert done.out == "scheme,latency,n\nfpt,40,2\nfpt,60,2\nradix4,40,2\nradix4,60,2\n"
    done = flatwalk(
        "results",
        "query",
        "select max(speedup) as s from runs where scheme='radix4'",
        "--results",
        stored,
        "--json",
    )
    assert json.loads(done.out) == [{"s": 1.0}]
    done = flatwalk("results", "query", "select speed from runs", "--results", stored)
    assert done.code == 2
    assert "speedup" in done.err
    assert "Traceback" not in done.err
    done = flatwalk("results", "query", "select 1", "--results", stored / "no")
    assert "there are no results" in done.err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["query", "select 1", "--csv", "--json"], "--csv"),
        (["diff", "a", "b", "--csv", "--json"], "--csv"),
        (["diff", "a", "b", "--results", "c"], "--results"),
    ],
)
def test_options_of_results_that_would_be_passed_over_are_refused(
    call: Callable[..., Result], arguments: list[str], option: str
) -> None:
    done = call("results", *arguments)
    assert (done.code, done.out) == (2, "")
    assert f"where:  {option}\n" in done.err


def test_answers_are_whole_whatever_their_columns_are(stored: Path, flatwalk: Callable[..., Result]) -> None:
    sql = """select 1 as x, 2 as x, sum(walks)::hugeint as n, 'nan'::double as nan, 'inf'::double as inf,
        1.5::decimal(4, 2) as half, [date '2026-01-02'] as days, {'at': timestamp '2026-01-02 03:04:05'} as s
        from runs"""
    walks = sum(row["walks"] for row in store.Results(stored).table().to_pylist())
    asked = ("results", "query", sql, "--results", stored)
    done = flatwalk(*asked, "--json")
    assert done.code == 0, done.err
    wanted = {"x": 1, "x_2": 2, "n": walks, "nan": None, "inf": None, "half": 1.5, "days": ["2026-01-02"]}

    def refused(text: str) -> None:
        raise AssertionError(text)

    assert json.loads(done.out, parse_constant=refused) == [wanted | {"s": {"at": "2026-01-02 03:04:05"}}]
    done = flatwalk(*asked, "--csv")
    assert done.code == 0, done.err
    header, row = done.out.splitlines()
    assert header == "x,x_2,n,nan,inf,half,days,s"
    assert row.startswith(f'1,2,{walks},nan,inf,1.5,"[""2026-01-02""]",')
    done = flatwalk(*asked)
    assert done.code == 0, done.err
    assert done.out.split()[:8] == header.split(",")
    assert query.query(pa.table({"a": [1]}), "select a, a, a as a_2, a from runs").column_names == [
        *("a", "a_2", "a_2_2", "a_3")
    ]


def test_a_long_query_hears_ctrl_c() -> None:
    code = """import os, signal, threading, pyarrow as pa
from flatwalk.lab import query
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    query.query(pa.table({"x": [1]}), "select count(*) from range(1000000000000) a where a.range % 7 = 3")
except KeyboardInterrupt:
    print("interrupted")"""
    done = run_code(code)
    assert done.stdout == "interrupted\n", done.stderr


def test_a_page_of_runs_is_written(stored: Path, tmp_path: Path, flatwalk: Callable[..., Result]) -> None:
    done = flatwalk("results", "report", "--results", stored, "-o", "page.html", "--where", "seed = 1")
    assert done.out == "page.html: 8 runs\n", done.err
    assert (tmp_path / "page.html").read_text().partition('id="all-runs"')[2].count("<tr data-scheme=") == 8
    flatwalk("results", "report", "--results", stored)
    again = flatwalk("results", "report", "--results", stored)
    assert again.out == "flatwalk-results-2.html: 8 runs\n", "an earlier one stays"
    none = flatwalk("results", "report", "--results", stored, "--where", "seed = 99")
    assert (none.code, "no such runs" in none.err) == (2, True)


def test_runs_are_compared_in_pairs(stored: Path, flatwalk: Callable[..., Result]) -> None:
    rows = {
        (row["machine"], row["scheme"], row["llc.latency_cycles"]): row
        for row in store.Results(stored).table().to_pylist()
    }
    done = flatwalk(
        "results", "diff", "40", "60", "--by", "llc.latency_cycles", "--results", stored, "--json",
        "--where", "machine = 'zen4'",
    )  # fmt: skip
    found = json.loads(done.out)
    assert [one["scheme"] for one in found] == ["fpt", "radix4"]
    for one in found:
        slow, fast = (rows["zen4", one["scheme"], latency] for latency in (60, 40))
        assert one["speed-up"] == pytest.approx(slow["ipc"] / fast["ipc"])
        assert one["low"] <= one["speed-up"] <= one["high"]
        assert one["speed-up"] < 1
    done = flatwalk(
        "results", "diff", "skylake-server", "zen4", "--by", "machine", "--results", stored, "--json",
        "--where", '"llc.latency_cycles" = 40',
    )  # fmt: skip
    for one in json.loads(done.out):
        first, second = (rows[machine, one["scheme"], 40] for machine in ("skylake-server", "zen4"))
        clock = 5000 / 2000  # MHz of the two
        assert one["speed-up"] == pytest.approx(clock * second["ipc"] / first["ipc"]), "time, not cycles"
        assert one["low"] <= one["speed-up"] <= one["high"]
    done = flatwalk("results", "diff", "zen4", "zen9", "--by", "machine", "--results", stored)
    assert "no run has machine zen9" in done.err
    assert "there are skylake-server, zen4" in done.err
    done = flatwalk(
        "results", "diff", "zen4", "zen9", "--by", "machine", "--results", stored, "--where", "1 = 0"
    )
    assert (done.code, done.out) == (2, "")
    assert "no run has machine zen4" in done.err
    assert "no run is left of --where" in done.err


def test_pairs_may_differ_in_several_columns_and_values_have_units(
    tmp_path: Path, flatwalk: Callable[..., Result]
) -> None:
    moved = {"llc.size_bytes": ["8MiB", "16MiB"], "llc.latency_cycles": [40, 60]}
    ran(sweep_of(zip=[moved]), made(tmp_path))

    def diff(*asked: str) -> Result:
        return flatwalk("results", "diff", *asked, "--results", tmp_path, "--json")

    one = diff("8MiB", "16MiB", "--by", "llc.size_bytes")
    assert (one.code, one.out) == (2, "")
    assert "the nearest differ in llc.latency_cycles (40 and 60)" in one.err
    assert "--by llc.size_bytes,llc.latency_cycles" in one.err
    both = diff("8MiB", "16MiB", "--by", "llc.size_bytes,llc.latency_cycles")
    assert both.code == 0, both.err
    assert [row["scheme"] for row in json.loads(both.out)] == ["fpt", "radix4"]
    for first, second, by in (
        (str(8 << 20), str(16 << 20), "llc.size_bytes, llc.latency_cycles"),
        ("8M", "16M", "llc.size_bytes,llc.latency_cycles"),
        ("40", "6e1", "llc.latency_cycles,llc.size_bytes"),
    ):
        assert diff(first, second, "--by", by).out == both.out
    assert "there is no column llc.size" in diff("8MiB", "16MiB", "--by", "llc.size_bytes,llc.size").err
    assert "no run has llc.size_bytes 9MiB" in diff("8MiB", "9MiB", "--by", "llc.size_bytes").err


def test_runs_of_other_lengths_are_no_pair() -> None:
    def runs(*lengths: str | None) -> pa.Table:
        result = json.dumps({"configuration": {"machine": {"frequency_mhz": 1000}}})
        usual = {"scheme": "fpt", "ipc": 1.0, "walks_per_1000": 1.0, "sampled": None, "result": result}
        usual |= {"windows": []}
        return pa.Table.from_pylist([usual | {"lengths": one} for one in lengths])

    def same(first: pa.Table, second: pa.Table, *but: str) -> list[dict[str, Any]]:
        return [one.same for one in query.diff(first, second, {"version", *but})]

    with pytest.raises(UsageError, match="no run of A has a partner"):
        same(runs("skip=0"), runs("skip=1"))
    assert same(runs("skip=0", "skip=1"), runs("skip=1", "skip=0")) == [
        {"lengths": "skip=0"},
        {"lengths": "skip=1"},
    ]
    assert same(runs("skip=0", "skip=1"), runs("skip=1")) == [{"scheme": "fpt"}]
    assert same(runs("skip=0"), runs("skip=1"), "lengths") == [{"scheme": "fpt"}]
    # An earlier version did not store them.
    assert same(runs(None), runs("skip=1")) == [{"scheme": "fpt"}]
    assert same(runs("skip=1"), runs(None)) == [{"scheme": "fpt"}]
    for first, second in ((runs(None), runs("skip=0", "skip=1")), (runs("skip=0", "skip=0"), runs("skip=0"))):
        with pytest.raises(UsageError, match="several runs are alike"):
            same(first, second)


def test_pairs_are_of_the_same_windows_and_the_rest_is_counted(
    stored: Path, tmp_path: Path, flatwalk: Callable[..., Result]
) -> None:
    computed = store.COMPUTED.keys()
    rows = [
        {key: value for key, value in row.items() if key not in computed}
        for row in store.Results(stored).table().to_pylist()
        if row["machine"] == "zen4"
    ]
    other = [
        row
        | {"key": f"{row['key']}-2", "source": "b.fwt", "source_hash": "0123"}
        | {"windows": [window | {"at": window["at"] + 1} for window in row["windows"]]}
        for row in rows[1:]
    ]
    results = made(tmp_path)
    results.append(rows + other)
    done = flatwalk(
        "results", "diff", "gups:16MiB", "b.fwt", "--by", "source", "--results", tmp_path, "--json"
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [(one["speed-up"], one["low"], one["high"]) for one in found] == [(1.0, None, None)] * 3
    assert "Without a partner: 1 run of gups:16MiB, 0 runs of b.fwt." in done.err


@pytest.mark.parametrize("ending", ["csv", "arrow", "parquet", "json"])
def test_exports_hold_every_run(
    stored: Path, tmp_path: Path, flatwalk: Callable[..., Result], ending: str
) -> None:
    import pyarrow as pa
    import pyarrow.csv

    path = tmp_path / f"x.{ending}"
    done = flatwalk("results", "export", path, "--results", stored, "--where", "scheme = 'fpt'")
    assert done.out == f"{path}: 4 runs\n"
    read: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "csv": lambda: pa.csv.read_csv(path).to_pylist(),
        "arrow": lambda: pa.ipc.open_file(str(path)).read_all().to_pylist(),
        "parquet": lambda: pq.read_table(path).to_pylist(),
        "json": lambda: json.loads(path.read_text()),
    }
    rows = read[ending]()
    assert [row["scheme"] for row in rows] == ["fpt"] * 4
    wanted = [row["cycles"] for row in store.Results(stored).table().to_pylist() if row["scheme"] == "fpt"]
    assert [row["cycles"] for row in rows] == wanted
    done = flatwalk("results", "export", tmp_path / "x.txt", "--results", stored)
    assert done.code == 2
    assert not (tmp_path / "x.txt").exists()


@pytest.mark.parametrize("condition", [None, "scheme in ('radix4', 'fpt')"])
def test_exported_runs_are_results(stored: Path, tmp_path: Path, condition: str | None) -> None:
    made(tmp_path)
    path = tmp_path / "runs" / "x.parquet"
    command.export(stored, path, condition)
    wanted = store.Results(stored).table()
    schemas = (pq.read_schema(path), wanted.schema)
    # Parquet calls the items of lists otherwise.
    kinds = [
        [(one.name, one.type) for one in schema if not pa.types.is_nested(one.type)] for schema in schemas
    ]
    assert (kinds[0], schemas[0].metadata) == (kinds[1], schemas[1].metadata)
    assert store.Results(tmp_path).table().to_pylist() == wanted.to_pylist()
    command.report(tmp_path, tmp_path / "x.html", None)


def test_times_are_those_of_the_results_wherever_they_are_asked_for(stored: Path) -> None:
    code = f"""import pathlib
from flatwalk.lab import query, store
table = store.Results(pathlib.Path({str(stored)!r})).table()
asked = query.query(table, "select finished from runs where seed = 1 and hour(finished) >= 0")
print(asked.schema.field("finished").type.tz)"""
    done = run_code(code, env=os.environ | {"TZ": "Asia/Tokyo"})
    assert done.stdout == "UTC\n", done.stderr


def test_a_foreign_file_among_the_results_is_named(tmp_path: Path) -> None:
    results = made(tmp_path)
    (tmp_path / "runs" / "x.parquet").write_bytes(b"no")
    with pytest.raises(FlatwalkError, match="not a file of results"):
        results.table()


def test_damaged_results_are_not_read_as_others(tmp_path: Path) -> None:
    results = made(tmp_path)
    outcome, _ = ran(sweep_of(), results)
    assert outcome.failed == []
    [path, *_] = (tmp_path / "runs").glob("*.parquet")
    whole, before = path.read_bytes(), store.Results(tmp_path).table()
    # What is behind the values, which says where they are, has no checksum.
    values = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    refused = 0
    for at in range(4, values, 11):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with suppress(FlatwalkError):
            assert store.Results(tmp_path).table().equals(before), at
            continue
        refused += 1
    assert refused > 100


def test_a_column_of_another_kind_is_named(tmp_path: Path) -> None:
    results = made(tmp_path)
    ran(sweep_of(), results)
    [path, *_] = (tmp_path / "runs").glob("*.parquet")
    table = pq.read_table(path)
    at = table.schema.get_field_index("cycles")
    pq.write_table(table.set_column(at, "cycles", pa.array(["many"] * table.num_rows)), path)
    with pytest.raises(FlatwalkError, match="cycles is string there, not"):
        store.Results(tmp_path).table()


def test_values_that_are_lists_are_text_in_the_results(
    tmp_path: Path, flatwalk: Callable[..., Result]
) -> None:
    results = made(tmp_path)
    next_line = [{"kind": "next_line", "page_crossing": "walk", "degree": 1}]
    swept = {"l1d.prefetcher": [[], next_line]}
    sweep = sweep_of(set=swept, mode="timing", exhaustive=False, windows=5, window="20K")
    outcome, _ = ran(sweep, results)
    assert (outcome.done, outcome.failed) == (4, [])
    labels = {unit.label for unit in plan.plan(sweep)}
    assert len(labels) == 4
    assert ran(sweep_of(), results)[0].done == 2, "runs without the key"
    # An earlier version kept the lists as such.
    first = max((tmp_path / "runs").iterdir(), key=lambda path: pq.read_table(path).num_columns)
    table = pq.read_table(first)
    at = table.schema.get_field_index("l1d.prefetcher")
    lists = pa.array([json.loads(text) for text in table.column(at).to_pylist()])
    pq.write_table(table.set_column(at, "l1d.prefetcher", lists), first)

    found = {row["l1d.prefetcher"] for row in results.table().to_pylist()}
    assert found == {None, "[]", json.dumps(next_line, sort_keys=True)}
    for words in (
        ("diff", "fpt", "radix4", "--by", "scheme", "--where", '"l1d.prefetcher" is not null'),
        ("report",),
        ("plot", "out.svg", "--x", "l1d.prefetcher", "--y", "walks"),
    ):
        done = flatwalk("results", *words, "--results", tmp_path)
        assert done.code == 0, done.err


def test_shipped_sweeps_can_run() -> None:
    for name in settings.names("sweep"):
        sweep = Sweep.read(name)
        assert sweep.name == name
        assert plan.plan(sweep)


def test_files_whose_windows_have_fewer_figures_still_open(tmp_path: Path) -> None:
    results = made(tmp_path)
    ran(sweep_of(), results)
    older = sweep_of(schemes=["radix4", "radix5"])
    ran(older, results)
    first, *_ = sorted((tmp_path / "runs").iterdir())
    table = pq.read_table(first)
    kept = [field for field in table.schema.field("windows").type.value_type if field.name != "dram_lines"]
    windows = [
        [{field.name: window[field.name] for field in kept} for window in run]
        for run in table.column("windows").to_pylist()
    ]
    number = table.schema.get_field_index("windows")
    cut = table.set_column(number, "windows", pa.array(windows, pa.list_(pa.struct(kept))))
    pq.write_table(cut, first)
    rows = made(tmp_path).table().to_pylist()
    assert len(rows) == 3
    assert all(window["dram_lines"] is None for row in rows for window in row["windows"])
