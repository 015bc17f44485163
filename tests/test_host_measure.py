"""`flatwalk host` benches: rounds, result files, diff, bpftrace; with kernels whose answers are known."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.host import benches, bpf, diff, machine, measure, native, results, show, stats, wording
from tests.running import PATIENCE_SECONDS, descendants, is_gone, processor_seconds, wait_until, waited_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Result

QUIET = {"others": 0.0, "stolen": 0.0, "elsewhere": 0.0}
VALUES = {
    "pagefault": "nanoseconds_per_page",
    "gups": "giga_updates_per_second",
    "walk": "nanoseconds_per_reference",
    "ebizzy": "records_per_second",
}


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Puts a stand-in in the place of the native kernels; calling gives the requests so far."""
    requests: list[Any] = []
    base = [100.0]

    def answer(_: Path, bench: str, request: dict[str, Any]) -> dict[str, Any]:
        requests.append((bench, json.loads(json.dumps(request))))
        return {
            VALUES[bench]: base[0] + len(requests) % 5,
            "faults_per_page": 1.0,
            "counts": [{"name": "page_faults", "value": 7.0, "share": 1.0, "kernel": False}],
            "preemptions": 0,
            "controls_nanoseconds": {"clock": 0.9, "lines": 0.5, "stores": 2.0},
            "notes": ["a note"],
        }

    monkeypatch.setattr(native, "find", lambda: Path("kernel"))
    monkeypatch.setattr(machine.Busyness, "shares", lambda _: dict(QUIET))
    monkeypatch.setattr(native, "measure", answer)

    def look(*, slower: float | None = None) -> list[Any]:
        base[0] = slower or base[0]
        return list(requests)

    return look


def host(**changes: Any) -> dict[str, Any]:
    """A host's record: a quiet machine of four isolated processors."""
    files = machine.Files(proc=Path("/nowhere"), sys=Path("/nowhere"), etc=Path("/nowhere"))
    return {
        **machine.describe(files),
        "page_bytes": 4096,
        "isolated": [0, 1, 2, 3],
        "memory_bytes": 1 << 33,
        "hypervisor": None,
        "scaling": {"governors": ["performance"], "turbo": False},
        "thp": {"enabled": "madvise", "defrag": "madvise", "shmem": "never", "page_bytes": 2 << 20},
        **changes,
    }


def bench(directory: Path, **changes: Any) -> benches.Bench:
    return benches.pagefault(host(**changes), directory, size_bytes=4 << 20, repetitions=3, change_host=False)


def measured(directory: Path, runs: int = 5) -> results.Result:
    plan = measure.Plan(runs, 60, seed=1, cpus=[0])
    return measure.run(bench(directory), plan, host(), lambda *_: None)


def test_every_round_measures_every_variant_once_in_its_own_order(
    tmp_path: Path, kernel: Callable[..., list[Any]]
) -> None:
    result = measured(tmp_path, runs=6)
    rounds: dict[int, list[str]] = {}
    for sample in result["samples"]:
        rounds.setdefault(sample["round"], []).append(sample["variant"])
    names = ["file", "sparse", "anonymous", "huge"]
    assert [sorted(found) for found in rounds.values()] == [sorted(names)] * 6
    assert len({tuple(found) for found in rounds.values()}) > 1
    requests = kernel()
    assert len(requests) == 28  # one round more, to warm up
    # The variants of a round have its seed, and every round its own.
    seeds = [request["bench"]["seed"] for _, request in requests]
    assert [len(set(seeds[at : at + 4])) for at in range(0, 28, 4)] == [1] * 7
    assert len(set(seeds)) == 7
    assert list(results.values(result)) == names  # in the order of the table, not of measurement


def test_the_same_seed_gives_the_same_order(tmp_path: Path, kernel: Callable[..., list[Any]]) -> None:
    orders = []
    for _ in range(2):
        before = len(kernel())
        measured(tmp_path)
        orders.append([request["bench"]["memory"] for _, request in kernel()[before:]])
    assert orders[0] == orders[1]


def test_the_file_lies_elsewhere_in_every_round(tmp_path: Path) -> None:
    made = bench(tmp_path)
    made.prepare()
    file = tmp_path / "pages"
    before = file.stat()
    assert before.st_size == 4 << 20
    with file.open("rb"):  # keeps its number from being used again
        made.prepare()
        assert file.stat().st_ino != before.st_ino


def test_time_up_ends_after_the_fewest_runs(tmp_path: Path, kernel: Callable[..., list[Any]]) -> None:
    plan = measure.Plan(30, 0, seed=1, cpus=[0])
    result = measure.run(bench(tmp_path), plan, host(), lambda *_: None)
    assert {len(found) for found in results.values(result).values()} == {measure.FEWEST_RUNS}
    assert any("Time was up" in note for note in result["notes"])
    assert len(kernel()) == 4 * (measure.FEWEST_RUNS + 1)


def test_rounds_on_a_busy_host_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., list[Any]]
) -> None:
    turns = [0]

    def shares(_: machine.Busyness) -> dict[str, float]:
        turns[0] += 1
        return {**QUIET, "others": 0.5 if turns[0] % 3 == 0 else 0.0}

    monkeypatch.setattr(machine.Busyness, "shares", shares)
    result = measured(tmp_path, runs=6)
    # The first warms up; then every third from the second on is busy.
    assert sorted({sample["round"] for sample in result["samples"]}) == [0, 2, 3, 5, 6, 8]
    assert "3 of 9 rounds do not count: other programs were busy meanwhile." in result["notes"]
    assert result["busy"] == QUIET
    assert len(kernel()) == 4 * 10


def test_rounds_that_are_measured_again_are_still_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., list[Any]]
) -> None:
    shares = iter([QUIET, {**QUIET, "others": 0.5}, QUIET, {**QUIET, "others": 0.5}, *[QUIET] * 9])
    monkeypatch.setattr(machine.Busyness, "shares", lambda _: dict(next(shares)))
    told: list[tuple[int, int | None]] = []
    plan = measure.Plan(5, 60, seed=1, cpus=[0])
    measure.run(bench(tmp_path), plan, host(), lambda *both: told.append(both))
    assert len(kernel()) == 4 * 8
    # Six rounds at first; two more as two are found disturbed.
    assert told[:4] == [(done, 24) for done in range(1, 5)]
    totals = [total for _, total in told]
    assert totals == sorted(totals, key=lambda total: total or 0)
    assert told[-1] == (32, 32)
    assert [total for done, total in told if done == total] == [32]


def test_where_no_round_is_quiet_all_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., list[Any]]
) -> None:
    monkeypatch.setattr(machine.Busyness, "shares", lambda _: {**QUIET, "elsewhere": 0.5})
    result = measured(tmp_path, runs=6)
    assert sorted({sample["round"] for sample in result["samples"]}) == [0, 1, 2, 3, 4, 5]
    assert any("The other processors were busy for 50 %" in line for line in result["warnings"])
    assert len(kernel()) == 4 * 19  # three times the rounds were tried


def test_disturbed_rounds_that_count_are_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., list[Any]]
) -> None:
    answer = native.measure

    def slowed(program: Path, bench: str, request: dict[str, Any]) -> dict[str, Any]:
        pace = 0.5 if len(kernel()) // 4 in (3, 9) else 0.8
        reported = answer(program, bench, request)
        controls = reported["controls_nanoseconds"]
        return {**reported, "controls_nanoseconds": {**controls, "lines": pace}}

    monkeypatch.setattr(native, "measure", slowed)
    result = measured(tmp_path, runs=6)
    assert len({sample["round"] for sample in result["samples"]}) == 6
    (warning,) = (line for line in result["warnings"] if "disturbed" in line)
    assert re.match(r"only \d of 18 rounds", warning), warning


def test_rounds_at_less_than_the_best_pace_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., list[Any]]
) -> None:
    answer = native.measure

    def slowed(program: Path, bench: str, request: dict[str, Any]) -> dict[str, Any]:
        # A round takes four, and the first warms up: so the second and the fourth that count are slow.
        slow = len(kernel()) in (9, 18)
        reported = answer(program, bench, request)
        return {
            **reported,
            "controls_nanoseconds": {**reported["controls_nanoseconds"], "lines": 0.6 if slow else 0.5},
        }

    monkeypatch.setattr(native, "measure", slowed)
    result = measured(tmp_path, runs=6)
    assert sorted({sample["round"] for sample in result["samples"]}) == [0, 2, 4, 5, 6, 7]
    reported = "2 of 8 rounds do not count: something outside this system slowed the processor down."
    assert reported in result["notes"]
    assert not any("disturbed" in line for line in result["warnings"])
    assert results.controls(result)["lines"] == pytest.approx([0.5] * 6)


def test_what_cannot_be_measured_is_reported(tmp_path: Path) -> None:
    off = {"enabled": "never", "defrag": None, "shmem": None, "page_bytes": 2 << 20}
    made = bench(tmp_path, thp=off)
    assert [variant.name for variant in made.variants] == ["file", "sparse", "anonymous"]
    assert made.skipped == ["huge: transparent huge pages are off on this host"]
    assert any("--change-host" in note for note in made.notes)
    # The kernel has their size even where it never makes any: then loads lie on small pages.
    walk = benches.walk(host(thp=off), strides=None, group=24, groups=4, flush_bytes=None)
    assert {variant.name.partition("-")[0] for variant in walk.variants} == {"stride"}
    assert walk.skipped == ["loads-1 to loads-5: transparent huge pages are off on this host"]
    walk = benches.walk(host(), strides=None, group=24, groups=4, flush_bytes=None)
    assert (walk.variants[-1].name, walk.skipped) == ("loads-5", [])


def test_a_setting_comes_back_even_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., list[Any]]
) -> None:
    setting = tmp_path / "fault_around_bytes"
    setting.write_text("65536\n")
    monkeypatch.setattr(benches, "FAULT_AROUND", setting)
    made = benches.pagefault(host(), tmp_path, size_bytes=4 << 20, repetitions=3, change_host=True)
    assert made.variants[-1].setting == (setting, "4096")
    seen = []

    def fail(*_: object) -> dict[str, Any]:
        seen.append(setting.read_text())
        raise FlatwalkError("no")

    monkeypatch.setattr(native, "measure", fail)
    made.variants[:-1] = []
    with pytest.raises(FlatwalkError, match="no"):
        measure.run(made, measure.Plan(5, 60, seed=1, cpus=[0]), host(), lambda *_: None)
    assert seen == ["4096"]
    assert setting.read_text() == "65536\n"
    assert kernel() == []


def test_hpccs_rules_for_the_table() -> None:
    assert [variant.name for variant in benches.gups(host(), table_bytes=1 << 30).variants] == [
        "small",
        "huge",
    ]
    with pytest.raises(UsageError, match="half of memory"):
        benches.gups(host(), table_bytes=1 << 33)
    with pytest.raises(UsageError, match="table of 3000 bytes"):
        benches.gups(host(), table_bytes=3000)


def test_a_file_to_map_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=3 << 20))
    with pytest.raises(UsageError, match=r"a file of 4 MiB is mapped; .* has 3 MiB free") as caught:
        bench(tmp_path)
    assert (caught.value.where, "TMPDIR" in str(caught.value.remedy)) == ("--size", True)


def test_a_table_is_at_most_half_of_the_node_that_it_is_from() -> None:
    nodes = host(node_bytes={"0": 7 << 30, "1": 1 << 30, "2": 0})
    with pytest.raises(UsageError, match="it is from node 1, which has 1 GiB") as caught:
        benches.gups(nodes, table_bytes=1 << 30, node=1)
    assert caught.value.remedy == "give 512MiB or less"
    for node in (0, 2, None):  # a node without memory gives none, so it is from others
        assert benches.gups(nodes, table_bytes=1 << 30, node=node).parameters == {"table_bytes": 1 << 30}


def test_strides_are_in_order_and_named_once() -> None:
    given = [64 << 30, 4096, 4096]
    made = benches.walk(host(), strides=given, group=24, groups=4, flush_bytes=None)
    names = [variant.name for variant in made.variants if variant.name.startswith("stride")]
    assert names == ["stride-4KiB", "stride-64GiB"]
    assert made.parameters["strides"] == [4096, 64 << 30]


@pytest.mark.parametrize(
    ("changes", "where", "remedy"),
    [
        ({"strides": [100]}, "--strides", "multiples of the page size, 4 KiB"),
        ({"strides": [0]}, "--strides", "multiples of the page size, 4 KiB"),
        ({"strides": [4 << 40], "group": 32}, "--strides", "a smaller --group"),
        ({"group": 10_000}, "--group", "give 6553 or less"),
        ({"flush_bytes": 0}, "--flush", "twice what the caches hold"),
        ({"flush_bytes": 1 << 40}, "--flush", "twice what the caches hold"),
    ],
)
def test_impossible_walks_name_the_option(changes: dict[str, Any], where: str, remedy: str) -> None:
    options = {"strides": None, "group": 24, "groups": 4, "flush_bytes": None, **changes}
    with pytest.raises(UsageError) as caught:
        benches.walk(host(page_table_levels=4, user_address_bits=47), **options)
    assert caught.value.where == where
    assert remedy in str(caught.value.remedy)
    # What just fits is measured.
    fine: dict[str, Any] = {"strides": [4 << 40], "group": 31, "groups": 4, "flush_bytes": 4096}
    assert benches.walk(host(page_table_levels=4, user_address_bits=47), **fine).variants


def test_strides_of_the_levels() -> None:
    # A line of entries spans 8 pages; of the next levels up, 512 times as much each.
    four = [32 << 10, 16 << 20, 8 << 30, 4 << 40]
    assert benches.level_strides(host(page_table_levels=4, user_address_bits=47), 24) == four
    assert benches.level_strides(host(page_table_levels=4, user_address_bits=47), 32) == four[:3]
    assert benches.level_strides(host(page_table_levels=5, user_address_bits=47), 24) == [*four, 2 << 50]
    # Arm with 39 bits of address, and with pages of 64 KiB.
    assert benches.level_strides(host(page_table_levels=None, user_address_bits=39), 24) == four[:3]
    arm = host(page_table_levels=None, user_address_bits=48, page_bytes=65536)
    assert benches.level_strides(arm, 24) == [512 << 10, 4 << 30]


def test_ebizzys_variants() -> None:
    made = benches.ebizzy(host(), threads=3, chunks=7, chunk_bytes=1 << 19, milliseconds=300, cpus=2)
    assert [variant.name for variant in made.variants] == [
        *("1-unmap", "2-unmap", "3-unmap"),
        *("1-keep", "2-keep", "3-keep"),
    ]
    assert any("scheduler" in note for note in made.notes)


# Result files


def test_a_saved_result_comes_back(tmp_path: Path, kernel: Callable[..., list[Any]]) -> None:
    assert kernel() == []
    result = measured(tmp_path)
    results.save(tmp_path / "a.json", result)
    assert results.load(tmp_path / "a.json") == result


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: [], "not hold a JSON object"),
        (lambda r: r | {"schema": "flatwalk-compare/1"}, "does not say that its schema"),
        (lambda r: r | {"schema": "flatwalk-host/1"}, "has format flatwalk-host/1"),
        # Of a host without types of cores or the nodes' memory.
        (lambda r: r | {"schema": "flatwalk-host/3"}, "(?s)has format flatwalk-host/3.*measure again"),
        (lambda r: {k: v for k, v in r.items() if k != "host"}, "key host is missing"),
        (lambda r: r | {"samples": [r["samples"][0] | {"value": "x"}]}, "sample 0 is not a measurement"),
        (lambda r: r | {"samples": [r["samples"][0] | {"value": -1.0}]}, "sample 0 is not a measurement"),
        (lambda r: r | {"samples": [{"variant": "file", "value": 1.0}]}, "sample 0 is not a measurement"),
        (
            lambda r: r | {"samples": [r["samples"][0] | {"controls_nanoseconds": {"clock": 0}}]},
            "sample 0 is not a measurement",
        ),
        (lambda r: r | {"samples": [r["samples"][0] | {"value": 10**400}]}, "sample 0 is not a measurement"),
        (lambda r: r | {"host": {"cpu": None}}, r"key host\.cpu is of the wrong kind"),
    ],
)
def test_files_that_are_no_results(
    tmp_path: Path, kernel: Callable[..., list[Any]], change: Callable[[Any], Any], message: str
) -> None:
    assert kernel() == []
    path = tmp_path / "a.json"
    path.write_text(json.dumps(change(measured(tmp_path))))
    with pytest.raises(UsageError, match=message):
        results.load(path)


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_no_json_at_all(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match="not valid JSON"):
        results.load(tmp_path / "a.json")
    with pytest.raises(UsageError, match="no file"):
        results.load(tmp_path / "b.json")


@pytest.mark.parametrize("changed", [1.0, 1.4])
def test_a_difference_is_none_if_the_controls_differ_as_much(
    tmp_path: Path, kernel: Callable[..., list[Any]], call: Callable[..., Result], changed: float
) -> None:
    results.save(tmp_path / "a.json", measured(tmp_path))
    kernel(slower=150.0)
    slow = measured(tmp_path)
    for sample in slow["samples"]:
        sample["controls_nanoseconds"]["lines"] *= changed
    results.save(tmp_path / "b.json", slow)
    done = call("host", "diff", "a.json", "b.json")
    assert ("B is" in done.out) == (changed == 1)
    assert ("no measurable difference" in done.out) == (changed > 1)
    changes = f"clock +0.00 %, lines +{100 * changed - 100:.2f} %, stores +0.00 %"
    told = f"controls that no kernel influences changed, too: {changes}"
    assert (told in done.out) == (changed > 1)
    found = json.loads(call("host", "diff", "a.json", "b.json", "--json").out)
    assert found["controls"]["lines"] == pytest.approx(changed - 1)
    # ln 1.4 for one control in three.
    share = math.log(changed) / math.sqrt(3)
    assert found["variants"]["file"]["comparison"]["drift"] == {"share": pytest.approx(share), "df": 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bench": "gups"}, "different benches: pagefault and gups"),
        ({"version": "9.9"}, "different versions"),
        ({"parameters": {"size_bytes": 1, "repetitions": 3, "page_bytes": 4096}}, "size_bytes"),
        ({"host": {"cpu": {"model_name": "Another"}}}, "different machines"),
        (
            {"parameters": {"size_bytes": 4 << 20, "repetitions": 3, "page_bytes": 4096, "file_system": "x"}},
            r"different parameters: file_system \(.* and x\)",
        ),
    ],
)
def test_results_that_cannot_be_compared(
    tmp_path: Path,
    kernel: Callable[..., list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    message: str,
) -> None:
    assert kernel() == []
    # Whatever mounts are seen here: in a chroot there may be none.
    monkeypatch.setattr(machine, "file_system", lambda _: "ext4")
    a = measured(tmp_path)
    a["host"]["cpu"]["model_name"] = "One"
    assert a["parameters"]["file_system"] == "ext4"
    with pytest.raises(UsageError, match=message):
        results.check_comparable(a, {**a, **change}, ("a", "b"), other_host=False)


def test_other_hosts_on_request(tmp_path: Path, kernel: Callable[..., list[Any]]) -> None:
    assert kernel() == []
    a = measured(tmp_path)
    b = {**a, "host": {**a["host"], "cpu": {"model_name": "Another"}}}
    results.check_comparable(a, b, ("a", "b"), other_host=True)


def test_what_changed_on_the_host() -> None:
    a = {"kernel": {"command_line": "quiet", "release": "6.1"}, "page_table_levels": 4, "smt": None}
    b = {"kernel": {"command_line": "quiet no5lvl", "release": "6.1"}, "page_table_levels": 5, "smt": True}
    assert results.host_changes(a, b) == [
        "kernel.command_line: quiet → quiet no5lvl",
        "page_table_levels: 4 → 5",
        "smt: unknown → true",
    ]


def test_other_processors_are_a_change() -> None:
    a, b = ({"cpus": cpus, "host": {"smt": True}} for cpus in ([3], [0, 1]))
    assert results.changes(a, b) == ["processors: 3 → 0, 1"]
    assert results.changes(a, a) == []


# Diff and the command line


def test_measure_save_and_diff(
    call: Callable[..., Result], tmp_path: Path, kernel: Callable[..., list[Any]]
) -> None:
    common = ["--size", "4MiB", "--runs", "10", "--at-most", "60"]
    done = call("host", "pagefault", *common, "--save", "a.json")
    assert done.code == 0, done.err
    assert "saved: a.json" in done.out
    assert "note: a note" in done.out
    kernel(slower=120.0)
    assert call("host", "run", "pagefault", *common, "--save", "b.json").code == 0
    done = call("host", "diff", "a.json", "b.json", "--plot", "plot.html")
    assert done.code == 0, done.err
    assert "anonymous: B is" in done.out
    assert "slower" in done.out
    page = (tmp_path / "plot.html").read_text()
    # Ten runs of four variants in two files, each a dot.
    assert page.count("<circle") == 80
    for box, marks in re.findall(r'<svg viewBox="(.*?)"(.*?)</svg>', page, re.DOTALL):
        left, top, width, height = map(float, box.split())
        for dot in re.findall(r'<circle .*cx="(.*?)" cy="(.*?)" r="(.*?)"', marks):
            x, y, radius = map(float, dot)
            assert left + radius <= x <= left + width - radius
            assert top + radius <= y <= top + height - radius
    assert "http" not in page
    found = json.loads(call("host", "diff", "a.json", "b.json", "--json").out)
    assert found["variants"]["file"]["differs"]
    same = call("host", "diff", "a.json", "a.json")
    assert same.out.count("no measurable difference") >= 4
    assert "would have been seen" in same.out


def test_the_table_of_a_difference_fits_its_terminal(
    tmp_path: Path,
    kernel: Callable[..., list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, slower in (("a.json", 1234.0), ("b.json", 1300.0)):
        kernel(slower=slower)
        results.save(tmp_path / name, measured(tmp_path, runs=10))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for columns, left_out in ((60, "pooled t, d, Welch t"), (80, "pooled t"), (200, None)):
        monkeypatch.setenv("COLUMNS", str(columns))
        diff.run(tmp_path / "a.json", tmp_path / "b.json", other_host=False, plot=None, as_json=False)
        said = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
        table = said[said.index("same.") : said.index("file: B")]
        assert max(map(len, table.splitlines())) <= columns
        assert table.count(" %") == 4
        told = f"Left out for want of room: {left_out}; --json has them."
        assert (told in " ".join(said.split())) == (left_out is not None)


def test_the_articles_figures_on_the_command_line(call: Callable[..., Result]) -> None:
    done = call("host", "diff", "105.6367:0.16293:30", "105.88:0.18822:30")
    assert done.code == 0, done.err
    assert "pooled: t = −5.353, df = 58, p = 1.543e-06, A − B −0.3343 … −0.1523" in done.out
    assert "Welch: t = −5.353, df = 56.8" in done.out
    assert "B is 0.23 % slower" in done.out
    assert "no measurable difference" in call("host", "diff", "100:5:30", "101:5:30").out
    assert call("host", "diff", "0:1:30", "1:1:30").code == 2
    assert "not compared" in call("host", "diff", "1:1:30", "a.json").err
    refused = call("host", "diff", "100:5:30", "101:5:30", "--json")
    assert (refused.code, "--json" in refused.err) == (2, True)


@pytest.mark.parametrize("two", [("1:2", "1:2:3"), ("nan:1:30", "1:1:30"), ("1:1:30", "1.2.3:1:30")])
def test_what_is_no_sample_is_said_to_be_none(call: Callable[..., Result], two: tuple[str, str]) -> None:
    done = call("host", "diff", *two)
    assert (done.code, done.out) == (2, "")
    wrong = two[1] if two[0] == "1:1:30" else two[0]
    assert f"{wrong} is not a sample" in done.err
    assert "MEAN:SD:N" in done.err


def test_a_file_may_have_a_colon_in_its_name(
    call: Callable[..., Result], tmp_path: Path, kernel: Callable[..., list[Any]]
) -> None:
    assert kernel() == []
    results.save(tmp_path / "5level:a.json", measured(tmp_path))
    assert "no measurable difference" in call("host", "diff", "5level:a.json", "5level:a.json").out


@pytest.mark.parametrize(
    "text",
    ["1e308:1e308:5", "1e308:1:5", "1:1e999:5", "1e999:1:5", "1e-200:0:5", "1:1e-200:5", "1:1:1000000001"],
)
def test_figures_that_no_test_can_be_computed_of_are_refused(call: Callable[..., Result], text: str) -> None:
    done = call("host", "diff", text, "1:1:5")
    assert (done.code, done.out) == (2, "")
    assert f"{text} has a figure that no test can be computed of" in done.err
    assert "remedy:" in done.err


def test_what_can_be_computed_of_has_a_verdict() -> None:
    means, deviations, numbers = ("1e-30", "1e30"), ("0", "1e-30", "1e30"), ("2", "1000000000")
    ends = map(":".join, itertools.product(means, deviations, numbers))
    figures = [figure for text in ends if (figure := diff.published(text))]
    assert len(figures) == 12
    for a in figures:
        for b in figures:
            found = stats.compare_moments(a, b)
            assert not math.isnan(found.welch.p)
            assert wording.verdict(found, found.welch.p)
    assert "no measurable difference" in wording.verdict(
        stats.compare_moments(stats.Moments(5, 1.0, 1.0), stats.Moments(5, 9.0, 1.0)), math.nan
    )


def test_large_seeds_stay_within_the_kernels_numbers(
    call: Callable[..., Result], kernel: Callable[..., list[Any]]
) -> None:
    for name, seed, first in (("walk", 7, 7_000_021), ("walk", 2**64 - 1, 2**64 - 1_000_003)):
        before = len(kernel())
        done = call("host", name, "--strides", "4KiB", "--runs", "2", "--seed", str(seed), "--json")
        assert done.code == 0, done.err
        seeds = [request["bench"]["seed"] for _, request in kernel()[before:]]
        assert seeds[0] == first
        assert all(0 <= one < 2**64 for one in seeds)


def test_wrong_words_are_reported(tmp_path: Path, kernel: Callable[..., list[Any]]) -> None:
    assert kernel() == []
    result = measured(tmp_path)
    for sample in result["samples"]:
        sample["answer"]["errors"] = 1
    doubts = show.doubts(
        result, {name: stats.summarise(found) for name, found in results.values(result).items()}
    )
    assert "20 words were wrong" in doubts[-1]


def test_a_table_that_is_not_on_huge_pages_is_doubted(
    tmp_path: Path, kernel: Callable[..., list[Any]]
) -> None:
    assert kernel() == []
    result = measured(tmp_path)
    huge = [sample for sample in result["samples"] if sample["variant"] == "huge"]
    for faults, words in ((1 / 512, []), (0.25, ["25 % of the pages of huge came one by one"])):
        for sample in huge:
            sample["answer"]["faults_per_page"] = faults
        doubts = [line for line in show.doubts(result, {}) if "huge" in line]
        assert [line.partition(", as small")[0] for line in doubts] == words


def test_a_rates_tests_have_the_sign_of_the_rate(call: Callable[..., Result], tmp_path: Path) -> None:
    """And an exponent keeps its own minus sign: only t and d have a typographic one."""
    shared = {
        "schema": results.SCHEMA, "version": "1", "titles": {}, "parameters": {}, "host": {}, "cpus": [0],
        "busy": QUIET, "started": "", "skipped": [], "warnings": [], "notes": [], "histograms": {},
    }  # fmt: skip
    answer: dict[str, Any] = {"answer": {}, "counts": [], "controls_nanoseconds": {}}
    for name, level in (("a", 100.0), ("b", 90.0)):
        samples = [
            {"variant": "one", "round": turn, "value": level + noise, **answer}
            for turn, noise in enumerate((0.0, 0.1, -0.1, 0.05, -0.05))
        ]
        for unit, rate in (("GUP/s", True), ("ns", False), ("instructions per page", False)):
            made = {**shared, "bench": "gups", "unit": unit, "rate": rate, "samples": samples}
            results.save(tmp_path / f"{name}-{unit[0]}.json", made)

    for unit in ("G", "n"):
        done = call("host", "diff", f"a-{unit}.json", f"b-{unit}.json")
        assert done.code == 0, done.err
        (line,) = (line for line in done.out.splitlines() if re.match(r"one +100", line))
        *_, effect, t, _, p = re.findall(r"[−-]?[\d.]+(?:e[−-]\d+)?", line.replace(",", " "))[:7]
        # d of B − A, t of A − B; and p has a plain exponent.
        assert re.match(r"−\d", effect), line
        assert re.match(r"\d", t), line
        assert re.search(r"e-\d+$", p), line
        # Nothing is not less than nothing.
        assert not re.search(r"−0\.0+\b", call("host", "diff", f"a-{unit}.json", f"a-{unit}.json").out)
    call("host", "diff", "a-i.json", "b-i.json", "--plot", "x.html")
    assert "lower" in (page := (tmp_path / "x.html").read_text())
    assert "faster" not in page


def test_isolated_processors_can_be_named(
    call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., list[Any]]
) -> None:
    made = host(isolated=[2, 3])
    made["cpu"]["online"] = 4
    monkeypatch.setattr(machine, "describe", lambda: made)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)
    common = ("host", "pagefault", "--size", "1MiB", "--runs", "2", "--json")
    done = call(*common, "--cpu", "3")
    assert done.code == 0, done.err
    assert json.loads(done.out)["cpus"] == [3]
    assert json.loads(call(*common).out)["cpus"] == [2]
    assert {tuple(request["cpus"]) for _, request in kernel()} == {(2,), (3,)}
    assert "choose from 0, 1, 2, 3" in call(*common, "--cpu", "4").err
    for bench in ("pagefault", "gups", "walk"):
        refused = call("host", bench, "--cpu", "2-3")
        assert (refused.code, "runs on one" in refused.err, "--cpu" in refused.err) == (2, True, True)
    for given in ("2-3", "2, 3", " 2,3 "):
        done = call("host", "ebizzy", "--threads", "2", "--cpu", given, "--runs", "2", "--json")
        assert json.loads(done.out)["cpus"] == [2, 3]
    assert "names no processors" in call("host", "ebizzy", "--cpu", "1 2").err


@pytest.mark.parametrize(("bench", "count"), [("gups", 1), ("ebizzy", 2)])
def test_the_processors_are_chosen_once(
    call: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    kernel: Callable[..., list[Any]],
    bench: str,
    count: int,
) -> None:
    asked: list[dict[str, Any]] = []
    made = host()
    made["cpu"]["online"] = 4

    def usable(host: dict[str, Any]) -> list[int]:
        asked.append(host)
        return [0, 1, 2, 3]

    monkeypatch.setattr(machine, "describe", lambda: made)
    monkeypatch.setattr(machine, "usable", usable)
    size = ("--table", "1MiB") if bench == "gups" else ("--threads", str(count))
    done = call("host", bench, *size, "--runs", "2", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["cpus"] == list(range(count))
    assert max(len(request["cpus"]) for _, request in kernel()) == count
    assert asked == [made]


def test_the_help_says_how_many_processors_a_bench_takes(call: Callable[..., Result]) -> None:
    for bench in ("pagefault", "gups", "walk"):
        assert re.search(r"--cpu +N +Processor to run on", call("host", bench, "--help").out)
    assert re.search(r"--cpu +LIST +Processors to run on", call("host", "ebizzy", "--help").out)


def test_nothing_is_half_written(
    call: Callable[..., Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernel: Callable[..., list[Any]],
) -> None:
    def interrupt(*_: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(native, "measure", interrupt)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert kernel() == []
    done = call("host", "pagefault", "--size", "1MiB", "--save", "a.json")
    assert done.code == 130
    assert not (tmp_path / "a.json").exists()
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pagefault", "--save", "missing/a.json"), "there is no directory"),
        (("pagefault", "--size", "4KiB"), "too few pages"),
        (("pagefault", "--size", "1000TiB"), "1000 TiB are more than half of memory"),
        (("ebizzy", "--chunk", "0"), "a chunk of 0 bytes holds no record"),
        (("ebizzy", "--chunk", "1000TiB", "--threads", "1"), "7.81 PiB are more than half of memory"),
        (("pagefault", "--cpu", "4095"), "names no processors"),
        (("pagefault", "--cpu", "x"), "names no processors"),
        (("pagefault", "--cpu", "0,x"), "names no processors"),
        (("gups", "--table", "3000"), "power of two"),
        (("pagefault", "--seed", "18446744073709551616"), "less than or equal to 18446744073709551615"),
        (("ebizzy", "--threads", "1025"), "less than or equal to 1024"),
        (("walk", "--strides", "x"), "not understood"),
        (("walk", "--strides", ""), "not understood"),
        (("diff", "a.json", "b.json"), "there is no file a.json"),
        (("diff", "a.json", "b.json", "--plot", "x/y.html"), "there is no directory"),
    ],
)
def test_wrong_usage(
    call: Callable[..., Result], kernel: Callable[..., list[Any]], arguments: tuple[str, ...], message: str
) -> None:
    done = call("host", *arguments)
    assert done.code == 2
    assert message in done.err
    assert "remedy:" in done.err
    assert kernel() == []


def test_the_program_is_missing(call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATWALK_HOST", "/nowhere")
    done = call("host", "gups")
    assert done.code == 1
    assert "cargo build" in done.err


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("echo 'parameters: wrong' >&2; exit 2", UsageError, "parameters: wrong"),
        ("echo 'mapping: no memory' >&2; exit 1", FlatwalkError, "mapping: no memory"),
        ("kill -9 $$", FlatwalkError, "signal 9"),
    ],
)
def test_failing_kernels(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    program = script(tmp_path / "kernel", f"#!/bin/sh\n{text}\n")
    with pytest.raises(error, match=message):
        native.measure(program, "gups", {})


def test_sentences_of_walks(tmp_path: Path, kernel: Callable[..., list[Any]]) -> None:
    assert kernel() == []
    result = measured(tmp_path)
    near, far = "pages 4 KiB apart: 0 cold levels", "pages 8 GiB apart: {} cold {}"
    result |= {"bench": "walk", "titles": {"stride-4KiB": near, "stride-8GiB": far.format(1, "level")}}
    result["samples"] = [
        {"variant": name, "round": turn, "value": value + noise, "answer": {}, "counts": []}
        for turn, noise in enumerate((0.0, 1.0, -1.0, 0.5))
        for name, value in (("stride-4KiB", 200.0), ("stride-8GiB", 320.0))
    ]
    (line,) = show.sentences(result)
    assert line == "One more cold level of the table (4KiB → 8GiB): +120 ns (+120 … +120)."
    for levels, words in ((3, "3 more cold levels of the table"), (0, "Pages farther apart")):
        result["titles"]["stride-8GiB"] = far.format(levels, "levels")
        assert show.sentences(result) == [f"{words} (4KiB → 8GiB): +120 ns (+120 … +120)."]


def test_steps_of_a_walk_are_one_family_of_questions(
    tmp_path: Path, kernel: Callable[..., list[Any]]
) -> None:
    assert kernel() == []
    result = measured(tmp_path)
    names = [f"loads-{depth}" for depth in range(1, 6)]
    # Of the first step alone p is about 0.02; the others show nothing.
    values = {names[0]: (0.0, 0.0, 0.0, 0.0, 0.0), names[1]: (3.0, 1.0, 2.5, 1.0, 4.0)}
    flat = dict.fromkeys(names[2:], (2.3, 2.2, 2.4, 2.3, 2.3))
    result |= {"bench": "walk", "titles": {name: name for name in names}}
    result["samples"] = [
        {"variant": name, "round": turn, "value": 100.0 + value, "answer": {}, "counts": []}
        for name, found in (values | flat).items()
        for turn, value in enumerate(found)
    ]
    alone = show.paired(result, *names[:2])[2]
    assert 0.0125 < alone < 0.05
    assert show.steps(result)["loads-1", "loads-2"][2] == pytest.approx(4 * alone)
    first, *_, last = show.sentences(result)
    assert "not a measurable difference" in first
    assert "all 4 together" in last


def test_numbers() -> None:
    assert [wording.number(value) for value in (0, 12345.6, 123.456, 1.23456, 0.00123456)] == [
        *("0", "12,346", "123.5", "1.235", "0.001235"),
    ]


def test_one_run_is_no_comparison(tmp_path: Path, kernel: Callable[..., list[Any]]) -> None:
    assert kernel() == []
    result = measured(tmp_path)
    lone = {**result, "samples": result["samples"][:1]}
    with pytest.raises(UsageError, match="at least two"):
        diff.compare(lone, lone)
    with pytest.raises(UsageError, match="no variant in common"):
        diff.compare(result, {**result, "samples": []})


# bpftrace

BPFTRACE = """#!{python}
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print('{{"type": "attached_probes", "data": {{"probes": 3}}}}', flush=True)
signal.sigwait([signal.SIGINT])
print('{{"type": "hist", "data": {{"@ns": [{{"min": 256, "max": 511, "count": 30}},'
      '{{"min": 512, "max": 1023, "count": 10}}]}}}}')
"""


def with_histogram(directory: Path) -> results.Result:
    result = measured(directory)
    bpf.add(result, bench(directory), measure.Plan(5, 60, seed=1, cpus=[0]), host())
    return result


def test_histograms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., list[Any]]
) -> None:
    assert kernel() == []
    tracer = script(tmp_path / "bpftrace", BPFTRACE.format(python=sys.executable))
    monkeypatch.setenv("FLATWALK_BPFTRACE", str(tracer))
    result = with_histogram(tmp_path)
    assert result["histograms"].keys() == {"file", "sparse", "anonymous", "huge"}
    text = bpf.lines("file", result["histograms"]["file"])
    assert text[0] == "handle_mm_fault in file, 40 calls:"
    assert "256 …       511 ns   75.0%" in text[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "bpftrace does not start"),
        ("echo 'only root may' >&2; exit 1", "bpftrace says: only root may"),
        ("printf 'ERROR: no kprobes\nhint: ~~~\n' >&2; exit 1", "bpftrace says: ERROR: no kprobes"),
        (
            "trap '' INT; echo '{\"type\": \"attached_probes\"}'; echo 'Error: late' >&2; exit 1",
            "bpftrace says: Error: late",
        ),
        (
            "trap 'exit 0' INT; echo '{\"type\": \"attached_probes\"}'; while :; do sleep 0.05; done",
            "no page fault",
        ),
    ],
)
def test_no_histogram_says_why_and_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernel: Callable[..., list[Any]],
    text: str | None,
    message: str,
) -> None:
    assert kernel() == []
    tracer = tmp_path / "bpftrace"
    if text is not None:
        script(tracer, f"#!/bin/sh\n{text}\n")
    monkeypatch.setenv("FLATWALK_BPFTRACE", str(tracer))
    result = with_histogram(tmp_path)
    assert result["histograms"] == {}
    assert any(message in note for note in result["notes"]), result["notes"]


# The real kernels


def real() -> Path:
    try:
        return native.find()
    except FlatwalkError:  # pragma: no cover
        pytest.fail("flatwalk-host is not built; scripts/setup.sh builds it")


@pytest.mark.parametrize(
    "arguments",
    [
        # One interruption of five does not move the median.
        ("pagefault", "--size", "8MiB", "--repetitions", "5"),
        ("gups", "--table", "2MiB"),
        ("walk", "--flush", "1MiB", "--groups", "4", "--strides", "4KiB,16MiB"),
        ("ebizzy", "--threads", "2", "--milliseconds", "20"),
    ],
)
def test_real_kernels_answer_what_the_benches_ask(
    call: Callable[..., Result], arguments: tuple[str, ...]
) -> None:
    real()
    done = call("host", *arguments, "--runs", "2", "--at-most", "1", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert {len([s for s in found["samples"] if s["variant"] == name]) for name in found["titles"]} == {2}
    assert all(summary["mean"] > 0 for summary in found["summaries"].values())


def test_real_faults_are_counted(call: Callable[..., Result]) -> None:
    real()
    found = json.loads(call("host", "pagefault", "--size", "2MiB", "--runs", "2", "--json").out)
    per_page = {s["variant"]: s["answer"]["faults_per_page"] for s in found["samples"]}
    assert per_page["anonymous"] == pytest.approx(1, abs=0.1)
    assert per_page["sparse"] == pytest.approx(1, abs=0.1)
    assert per_page["file"] < 1.1


def test_ctrl_c_ends_the_kernel_too(tmp_path: Path) -> None:
    program = real()
    child = subprocess.Popen(
        [sys.executable, "-m", "flatwalk", "host", "gups", "--table", "64MiB", "--save", "a.json"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: child.poll() is not None or bool(descendants(child.pid)))  # until it measures
    os.killpg(child.pid, 2)
    _, said = child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 130, said
    assert list(tmp_path.iterdir()) == []
    assert program.is_file()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_kernel_ends_with_the_command_that_started_it(tmp_path: Path, number: signal.Signals) -> None:
    real()
    line = ["host", "ebizzy", "--threads", "1", "--milliseconds", "1000000", "--no-counters"]
    with waited_for(
        subprocess.Popen(
            [sys.executable, "-I", "-m", "flatwalk", *line], cwd=tmp_path, stdout=subprocess.DEVNULL
        )
    ) as command:
        kernels: set[int] = set()

        def one_works() -> bool:
            assert command.poll() is None
            kernels.update(descendants(command.pid))
            return any(processor_seconds(kernel) > 0.5 for kernel in kernels)

        wait_until(one_works)
        command.send_signal(number)
        assert command.wait(PATIENCE_SECONDS) == (128 + number if number == signal.SIGTERM else -number)
        wait_until(lambda: all(map(is_gone, kernels)))


def test_help_has_examples(call: Callable[..., Result]) -> None:
    for command in ("pagefault", "gups", "walk", "ebizzy", "diff"):
        done = call("host", command, "--help")
        assert done.code == 0
        assert "flatwalk host" in done.out
