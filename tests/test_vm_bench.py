"""`flatwalk vm bench`: what it makes of counts, and that what is counted is what happened."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk import cache, compiler
from flatwalk.errors import FlatwalkError
from flatwalk.host import diff, machine, results
from flatwalk.vm import bench, build, compiled, counting, document, hosted, measuring, run, workloads
from flatwalk.vm.counting import CAUSES, START, STOP, Phase
from flatwalk.vm.machine import Machine
from tests.test_programs import installed

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Sequence

    from tests.conftest import Result

    Call = Callable[..., Result]

PHASES = {bench.LOADING: 262_144_000, bench.RUNNING: 0}, {bench.LOADING: 131_072_000, bench.RUNNING: 100_000}
ROWS = [
    bench.Row(
        *("gups", mode, 4, entries, {phase: dict.fromkeys(CAUSES, n) for phase, n in spent.items()}),
        *({bench.LOADING: 262_144_000, bench.RUNNING: 5000}, 4096, 2048),
    )
    for mode, entries, spent in zip(("off", "l3l2"), (4.0, 3.0), PHASES, strict=True)
]


def test_instructions_are_compared_with_off() -> None:
    last = bench.walks_table(ROWS).splitlines()[-1]
    assert last == "| l3l2 | 4 | 3.000 | 4000 (0.500) | 2000 | 1.00 | 4 | 2 |"
    lines = bench.causes_table(ROWS).splitlines()
    heads = "program | mode | phase | levels | timer | system calls | page faults | other | all | repetitions"
    assert lines[0] == f"| {heads} |"
    assert lines[-2].endswith("| loading | 4 | 131072 | 131072 | 131072 | 131072 | 524288 (0.500) | 262144 |")
    assert lines[-1] == "| gups | l3l2 | running | 4 | 100 | 100 | 100 | 100 | 400 | 5 |"
    assert bench.tables_table(ROWS).splitlines()[-1] == "| gups | l3l2 | 4 | 3.000 | 4 | 2 |"


def test_each_program_is_compared_with_itself() -> None:
    other = bench.Row("redis", "l3l2", 4, 3.0, ROWS[0].kernel_instructions, ROWS[0].kernel_repetitions, 0, 0)
    assert "(" not in bench.causes_table([ROWS[0], other]).splitlines()[-2]


#: What a guest prints in which one of three processes lacks a block when it begins, and another when it ends.
CROWD = """process 0 4096 4096
process 2 4096 2048
process 1 2048 4096
counter flat_table_alloc 190
counter flat_table_alloc_failed 10
"""


def test_processes_that_lack_blocks_are_counted_and_refused_blocks_too() -> None:
    crowd = bench.Crowd.of("l3l2", 50, CROWD)
    assert crowd == bench.Crowd("l3l2", 50, 190, 10, processes=3, short_at_begin=1, short_at_end=1)
    last = bench.crowd_table([crowd]).splitlines()[-1]
    assert last == "| l3l2 | 50 % | 3 | 1 (33.3 %) | 1 (33.3 %) | 200 | 10 (5.0 %) |"


def test_a_crowd_without_blocks_is_an_error() -> None:
    with pytest.raises(FlatwalkError, match="no process of a guest in l3l2 had a block"):
        bench.Crowd.of("l3l2", 50, CROWD.replace("4096", "0").replace("2048", "0"))


def test_a_crowd_is_known_by_all_that_runs_in_its_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "SOURCES", tmp_path / "linux")
    tests, marking = tmp_path / "linux" / "tests", tmp_path / "recorder" / "flatwalk.h"
    sources = (tests / "crowd.c", tests / "run.sh", run.first_process(), marking)
    for path in sources:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("first")
    known = [bench.crowd_identity()]
    assert bench.crowd_identity() == known[0]
    for path in sources:
        path.write_text("second")
        cache.digest.cache_clear()
        known.append(bench.crowd_identity())
    assert len(set(map(tuple, known))) == 5


def test_a_table_without_rows_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure", lambda *_, **__: ROWS)
    crowds = {mode: bench.Crowd.of(mode, 0, CROWD) for mode in bench.CROWD_MODES}
    monkeypatch.setattr(bench, "oversubscribe", lambda modes, **_: [crowds[mode] for mode in modes])
    usual: dict[str, Any] = dict.fromkeys(
        ("levels", "programs", "threshold", "host", "boots", "save", "host_modes", "source")
    )
    for modes, tables in (("off,l2l1", {"walks", "causes"}), ("off,l3l2", {"walks", "causes", "crowd"})):
        options = measuring.Options(
            modes=modes, time=False, nested=False, kernel=False, unchecked=False, **usual
        )
        assert measuring.measure(options).tables.keys() == tables


def test_tables_go_where_the_document_wants_them(tmp_path: Path) -> None:
    text = tmp_path / "text.md"
    text.write_text("before\n<!-- begin a -->\nold\n<!-- end a -->\nafter\n")
    document.update(text, {"a": "new\n"})
    assert text.read_text() == "before\n<!-- begin a -->\nnew\n<!-- end a -->\nafter\n"
    with pytest.raises(FlatwalkError, match="no place is marked for the table `b`"):
        document.update(text, {"a": "newer\n", "b": ""})
    assert "newer" not in text.read_text()


def test_what_the_plugin_writes_is_read() -> None:
    first, second = counting.read(
        "0 began 0\n0 instructions user 5\n0 instructions other 6\n0 entered other 1\n"
        "1 began 3\n1 instructions user 7\n1 instructions fault 8\n1 entered fault 2\n"
        "1 repeated fault 3\n1 walks 4 10\n1 walks 3 30\n1 walks-of-all 4 50\n"
    )
    assert (first.marker, first.user, first.kernel["other"], first.entered["other"]) == (0, 5, 6, 1)
    assert (second.marker, second.user, second.instructions, second.entered["fault"]) == (3, 7, 8, 2)
    assert counting.entries_per_walk(second.walks) == 3.25
    assert (second.repeated["fault"], second.walks_of_all) == (3, {4: 50})
    assert counting.entries_per_walk(first.walks) is None


def phase(marker: int = START, user: int = 0, fault: int = 0, **more: Any) -> Phase:
    """What was counted in one."""
    none = dict.fromkeys(CAUSES, 0)
    entered = none | {"fault": fault // 100}
    return Phase(marker, user, none | {"fault": fault}, entered=entered, **more)


def test_a_programs_phases_become_a_row() -> None:
    boot, ending = phase(0), [phase(START), phase(STOP)]
    strings: dict[str, Any] = {"repeated": {"fault": 7, "other": 1}}
    phases = [
        *(boot, phase(), phase(3, fault=1000, **strings), phase(fault=100, **strings)),
        phase(STOP, fault=20, walks={3: 4}, **strings),
    ]
    said = "Name: redis\nVmPTE:\t  12 kB\nVmFlat:\t  4 kB\n\nVmPTE:\t  8 kB\n"
    row = bench.Row.of("redis", Machine("l2l1"), [*phases, *ending], said)
    assert (row.entries_per_walk, row.table_bytes, row.flat_bytes) == (3.0, 20 << 10, 4 << 10)
    assert {number: spent["fault"] for number, spent in row.kernel_instructions.items()} == {2: 1000, 3: 120}
    assert row.kernel_repetitions == {2: 8, 3: 16}
    with pytest.raises(FlatwalkError, match="has not marked"):
        bench.Row.of("redis", Machine(), phases[:3], said)


# The host's benches


def test_touching_is_counted_without_mapping_and_warming_up() -> None:
    warming = [phase(user=10**9)] * 6
    turns = [phase(user=70, fault=4000), phase(user=30, fault=0), phase(user=90, fault=4400), phase(user=30)]
    parameters = {"repetitions": 2, "size_bytes": 20 << 12, "page_bytes": 1 << 12}
    found = hosted.cost("pagefault", parameters, [*warming, *turns], {})
    assert (found.counts["user"], found.counts["fault"], found.counts["faults"]) == (100 / 40, 210, 84 / 40)
    assert found.instructions == 212.5


def test_the_first_group_of_walks_only_warms_up() -> None:
    interrupted = phase(user=60, fault=9000)
    groups = [phase(user=1000), interrupted, *[phase(user=60, walks={5: 8, 4: 2})] * 7]
    found = hosted.cost("walk", {}, groups, {"references": 80})
    assert (found.counts["user"], found.instructions) == (6, 6)
    assert found.counts["entries"] / found.counts["walks"] == 4.8


def test_the_timer_is_no_work() -> None:
    one = Phase(START, 10, {"timer": 1000, "syscall": 20, "fault": 30, "other": 40})
    found = hosted.cost("gups", {}, [one], {"updates": 10})
    assert (found.instructions, found.counts["timer"]) == (10.0, 100.0)


def guests_result(levels: int, rounds: int = 2) -> results.Result:
    """What a guest's `gups` says, of one variant."""
    nowhere = Path("/nowhere")
    host = {**machine.describe(machine.Files(nowhere, nowhere, nowhere)), "page_table_levels": levels}
    sample = {
        "variant": "small",
        "value": 0.1,
        "counts": [],
        "preemptions": 0,
        "controls_nanoseconds": {"clock": 1.0},
    }
    return {
        "schema": results.SCHEMA,
        "version": "1",
        "bench": "gups",
        "unit": "GUP/s",
        "rate": True,
        "parameters": {"table_bytes": 8},
        "seed": 1,
        "cpus": [0],
        "started": "",
        "seconds": 1.0,
        "host": host,
        "titles": {"small": "4 KiB pages"},
        "skipped": [],
        "busy": {"others": 0.5, "stolen": 0.1, "elsewhere": 0.2},
        "warnings": ["busy"],
        "notes": [],
        "histograms": {},
        "samples": [{**sample, "round": turn, "answer": {"updates": 100}} for turn in range(rounds)],
    }


def counted(levels: int, *instructions: int) -> results.Result:
    """The same with so many instructions in each round, after one that warms up, among other phases."""
    regions = [phase(START), phase(START, user=10**9), *(phase(START, user=n) for n in instructions)]
    between = [other for region in regions for other in (region, phase(STOP, user=7))]
    return hosted.counted(guests_result(levels, len(instructions)), [phase(0), *between])


def test_instructions_take_the_place_of_times_in_a_result() -> None:
    made = counted(4, 500, 700)
    assert results.values(made) == {"small": [5.0, 7.0]}
    assert (made["unit"], made["rate"], made["warnings"]) == ("instructions per update", False, [])
    with pytest.raises(FlatwalkError, match="2 regions were counted for 2 measurements"):
        hosted.counted(guests_result(4), [phase(0), *[phase()] * 3])


def test_four_levels_are_compared_with_five(tmp_path: Path, call: Call) -> None:
    made = [hosted.joined([counted(4, 500, 500), counted(4, 500, 501)])]
    made.append(hosted.joined([counted(5, 550, 550), counted(5, 550, 550)]))
    row = hosted.levels_table(made).splitlines()[-1]
    assert row == (
        "| gups | 4 KiB pages | update | 5.00 | 5.50 | +0.50 | +9.945 % | 0.200 % | 0.0000 | – | – |"
    )
    assert hosted.parts_table(made).splitlines()[2:] == []
    paths = hosted.save(tmp_path, made)
    assert [path.name for path in paths] == ["gups-4level.json", "gups-5level.json"]
    compared = diff.compare(*map(results.load, paths))["small"][0]
    assert compared.change == pytest.approx(0.09945, abs=1e-5)
    done = call("host", "diff", *map(str, paths))
    assert done.code == 0, done.err
    assert "page_table_levels: 4 → 5" in done.out
    assert "small: B is 9.9 % higher" in done.out


def test_what_the_kernel_does_is_distinguished() -> None:
    made = [counted(4, 500, 500), counted(5, 500, 500)]
    for result in made:
        for sample in result["samples"]:
            sample["answer"]["instructions"] |= {"syscall": 1.0, "timer": 2.0, "other": 0.25, "repeated": 0.5}
    last = hosted.parts_table(made).splitlines()[-1]
    assert last == "| gups | 4 KiB pages | 5 | 5.00 | 0.00 | 1.00 | 0.25 | 2.00 | 0.50 |"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "pagefault", "--time"], "--host are different benches"),
        (["--boots", "3"], "this belongs to --host or --time"),
        (["--time", "--programs", "oracle"], "there is no program 'oracle'"),
        (["--threshold", "3", "--time"], "this belongs to --programs"),
        (["--host", "pagefault", "--levels", "4"], "with 4 and with 5 levels"),
        (["--host", "pagefault", "--modes", "off,l3l2"], "name one mode"),
        (["--host", "oracle"], "there is no bench 'oracle'"),
        (["--programs", "oracle"], "there is no program 'oracle'"),
        (["--unchecked", "--time"], "--time takes the usual kernel"),
    ],
)
def test_refusals(call: Call, arguments: list[str], words: str) -> None:
    result = call("vm", "bench", *arguments)
    assert result.code == 2
    assert words in result.err


def test_a_document_is_looked_at_before_anything_is_measured(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[object] = []
    table = measuring.Measured(kind="x", tables={"bench-x": "| a |\n"}, charts=[], rows=[])

    def measure(options: object) -> measuring.Measured:
        measured.append(options)
        return table

    monkeypatch.setattr(measuring, "measure", measure)
    refused = call("vm", "bench", "--update", "none.md")
    assert (refused.code, "--update" in refused.err, measured) == (2, True, [])
    (tmp_path / "text.md").write_text("no place\n")
    failed = call("vm", "bench", "--update", "text.md")
    assert (failed.code != 0, len(measured)) == (True, 1)
    assert "| a |" in failed.out, "what was measured is not lost"


def test_all_levels_are_looked_at_before_any_is_measured(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[object] = []
    monkeypatch.setattr(measuring, "measure", measured.append)
    refused = call("vm", "bench", "--levels", "4", "--levels", "3")
    assert (refused.code, "no tables of 3 levels" in refused.err, measured) == (2, True, [])


def test_results_need_a_directory(call: Call, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    result = call("vm", "bench", "--host", "gups", "--save", "taken")
    assert (result.code, "--save" in result.err) == (2, True)


def test_programs_and_files_may_have_blanks_and_commas_in_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "a b,c"
    monkeypatch.setattr(compiled, "guest_program", lambda source: odd / source.stem)
    monkeypatch.setattr(compiled, "plugin", lambda name, _: odd / f"{name}.so")
    given: list[tuple[Sequence[str], Sequence[str]]] = []

    def ended(
        _: object, command: Sequence[str], *, stdout: io.BytesIO, options: Sequence[str], **__: object
    ) -> run.Outcome:
        given.append((command, options))
        stdout.write(CROWD.encode())
        return run.Outcome(0, "", "")

    monkeypatch.setattr(run, "run", ended)
    (crowd,) = bench.oversubscribe(["l3l2"], [0])
    assert (crowd.allocated, crowd.refused) == (190, 10)
    # run.sh has a shell read it.
    call = given[0][0][-1].removeprefix("run=")
    assert shlex.split(call)[0] == str(odd / "crowd")
    assert len(shlex.split(call)) == 4
    counting.watched(Machine(), ["true"], "count", ["other=1"], source=None)
    plugin = given[1][1][-1]
    assert plugin.startswith(f"{tmp_path}/a b,,c/count.so,out=")
    assert plugin.endswith(",other=1")


def test_what_is_compiled_is_known_by_all_that_it_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "SOURCES", tmp_path / "linux")
    made: list[Sequence[str]] = []

    def compile_one(_: Path, target: Path, flags: Sequence[str]) -> None:
        made.append(flags)
        target.write_bytes(b"")

    monkeypatch.setattr(compiler, "build", compile_one)
    program = tmp_path / "linux" / "tests" / "one.c"
    own, marking = program.with_name("tables.h"), tmp_path / "recorder" / "flatwalk.h"
    for path in (program, own, marking):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("first")
    found = [compiled.guest_program(program)]
    assert compiled.guest_program(program) == found[0]
    for path in (program, own, marking):
        path.write_text("second")
        found.append(compiled.guest_program(program))
    # Of the same header, but with another flag.
    plugin = tmp_path / "linux" / "guest" / "count.c"
    for path in (plugin, *(tmp_path / name / "include" / "qemu-plugin.h" for name in ("a", "b"))):
        path.parent.mkdir(parents=True)
        path.write_text("")
    for name in ("a", "b"):
        monkeypatch.setattr(build, "find", lambda *_, name=name: tmp_path / name)
        found.append(compiled.plugin("count", None))
    assert len(set(found)) == len(made) == len(found) == 6


# In guests


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_what_the_kernel_did_is_counted_where_it_belongs() -> None:
    row = bench.measure(["l3l2"], (4,))[0]
    assert f"{row.entries_per_walk:.2f}" == "3.00"
    loading, running = (row.kernel_instructions[number] for number in (bench.LOADING, bench.RUNNING))
    # Pages are written one after the other, then again at random; only the guest's first process does more.
    assert 131072 * 1000 < loading["fault"] < 131072 * 5000
    # Each page was zeroed by `rep stosb`, and a block; other strings are short.
    assert row.kernel_repetitions[bench.LOADING] == pytest.approx(131072 * 4095 + (2 << 20), rel=0.02)
    assert loading["fault"] > 10 * (loading["timer"] + loading["syscall"] + loading["other"])
    assert running["fault"] < loading["fault"] / 1000
    assert running["timer"] > 0
    assert running["timer"] > running["syscall"]


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_a_programs_walks_are_counted_also_once_its_root_is_flat() -> None:
    pages = 40_000
    command = [str(compiled.guest_program(compiled.SOURCES / "tests" / "gups.c")), str(pages), "0"]
    phases, _ = counting.count(Machine("l4l3", memory="512M"), command)
    loading = phases[bench.LOADING].walks
    # Each page is written once. In the midst of it the kernel flattens the root.
    assert loading.keys() == {3, 4}
    assert loading[3] > pages / 20
    assert pages <= sum(loading.values()) < pages * 1.01


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_page_faults_in_a_guest_are_counted_alike_in_every_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    small = hosted.Bench("page", {"size_bytes": 2 << 20, "repetitions": 1})
    monkeypatch.setitem(hosted.BENCHES, "pagefault", small)
    made = hosted.measure(["pagefault"], boots=1)
    assert [result["host"]["page_table_levels"] for result in made] == [4, 5]
    assert ["no5lvl" in result["host"]["kernel"]["command_line"] for result in made] == [True, False]
    for result in made:
        by_variant = results.values(result)
        assert {"anonymous", "sparse", "file", "huge"} == by_variant.keys()
        for sample in result["samples"]:
            reported, seen = sample["answer"]["faults_per_page"], sample["answer"]["instructions"]["faults"]
            assert seen == pytest.approx(reported, rel=0.02)
        # A kernel's fault takes some thousands of instructions, one of which is repeated 4,095 times.
        for sample in result["samples"]:
            if sample["variant"] == "anonymous":
                assert 4095 <= sample["answer"]["instructions"]["repeated"] < 5000
                assert 1000 < sample["value"] < 26000
        assert by_variant["file"][0] < by_variant["sparse"][0]
        assert by_variant["anonymous"][0] == pytest.approx(by_variant["anonymous"][1], rel=0.02)
    assert json.loads(json.dumps(made)) == made


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_a_server_loads_and_works_in_a_guest() -> None:
    installed("memcached")
    few = {"memcached": workloads.Work("32MiB", requests=2000)}
    row = workloads.measure(["l2l1"], ["memcached"], works=few)[0]
    loading, running = (row.kernel_instructions[number] for number in (bench.LOADING, bench.RUNNING))
    # Its memory is faulted in while it is loaded: 32 MiB in 4 KiB pages.
    assert loading["fault"] > 8192 * 1000 > running["fault"]
    assert running["syscall"] > 0
    assert 3.0 <= row.entries_per_walk < 4.0
    assert 0 < row.flat_bytes < row.table_bytes
