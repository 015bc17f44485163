"""`flatwalk vm run --nested`: a Linux guest in a Linux guest, over nested tables that KVM flattens or not.

How many entries a cold walk reads is known from the papers (test_nested_page_tables.py). Whether KVM keeps
its tables right is seen by a program that verifies its memory, and by a copy of the inner guest's memory that
is kept by KVM's log of written pages, as for a migration, while all mappings are dropped again and again
(linux/guest/vmm.c).
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.vm import build, charts, compiled, components, nested, nested_bench, run, selftests
from flatwalk.vm.machine import HOST_MODES
from flatwalk.vm.testing import cases, judging, report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.conftest import Result

#: A command of the host that lets each allocation of a block fail, and then runs another.
WITHOUT_BLOCKS = """\
cd /sys/kernel/debug/fail_page_alloc || exit
echo 9 >min-order
echo N >ignore-gfp-wait
echo 0 >verbose
echo -1 >times
echo 100 >probability
exec "$@"
"""


def test_modes_that_kvm_does_not_have_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        nested.Guest().host("compendia")
    assert caught.value.where == "--host-mode"
    assert caught.value.remedy


def test_the_host_has_what_its_guest_needs() -> None:
    words = nested.Guest(memory_mib=300).host("l2l1", "quiet").arguments()
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert "flat-npt=on" in given["-cpu"].split(",")
    assert {"kvm_amd.flat_npt=l2l1", "quiet"} <= set(given["-append"].split())
    assert given["-m"] == "812M"


def test_an_inner_guest_is_no_larger_than_its_monitor_can_make_it(call: Callable[..., Result]) -> None:
    assert nested.Guest(memory_mib=3072).memory_mib == 3072
    text = (compiled.SOURCES / "guest" / "vmm.c").read_text(encoding="utf-8")
    most = re.search(r"memory_bytes > (\d+)ull << 30", text)
    assert most is not None
    assert most[1] == str(nested._MOST_MIB >> 10)  # noqa: SLF001
    for memory in ("3073M", "4G"):
        result = call("vm", "run", "--nested", "--memory", memory, "--", "true")
        assert (result.code, "--memory" in result.err) == (2, True)


def test_all_that_the_monitor_says_can_be_told_apart() -> None:
    text = (compiled.SOURCES / "guest" / "vmm.c").read_text(encoding="utf-8")
    (usage,) = re.findall(r'fprintf\(stderr, "([^"]*usage[^"]*)', text)
    assert usage.startswith("vmm: ")


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., run.GuestLostError]:
    """Runs guests of guests of which `guest.run` is a function, and gives the error."""
    empty = tmp_path / "built"
    empty.write_bytes(b"")
    monkeypatch.setattr(build, "find", lambda *_: tmp_path)
    monkeypatch.setattr(compiled, "guest_program", lambda _: empty)
    monkeypatch.setattr(compiled, "plugin", lambda *_: tmp_path / "a,b" / "nested.so")

    def of(ending: Callable[..., run.Outcome]) -> run.GuestLostError:
        monkeypatch.setattr(run, "run", ending)
        with pytest.raises(run.GuestLostError) as caught:
            nested.run(nested.Guest().host("off"), nested.Guest(), ["true"])
        return caught.value

    return of


def test_what_the_inner_kernel_logged_is_kept_of_guests_that_are_lost(
    lost: Callable[..., run.GuestLostError],
) -> None:
    given: list[Sequence[str]] = []

    def inner(*_: object, stderr: io.BytesIO, options: Sequence[str], **__: object) -> run.Outcome:
        given.append(options)
        stderr.write(b"inner: oops\nvmm: the guest has stopped without a status\n")
        return run.Outcome(125, "host: fine\n", "odd\n")

    def both(*_: object, stderr: io.BytesIO, **__: object) -> run.Outcome:
        stderr.write(b"inner: fine\n")
        raise run.GuestLostError(FlatwalkError("over", where="--timeout"), "host: BUG\n", "odd\n")

    error = lost(inner)
    assert error.log == "host: fine\ninner: oops\nvmm: the guest has stopped without a status\n"
    assert error.messages == "odd\n"
    assert "/a,,b/nested.so,out=" in given[0][-1]
    error = lost(both)
    assert (error.log, error.messages) == ("host: BUG\ninner: fine\n", "odd\n")
    assert (error.what, error.where) == ("over", "--timeout")


def test_the_program_takes_its_libraries_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: dict[str, tuple[int, bytes]] = {}

    def pack(files: Mapping[str, tuple[int, bytes]]) -> bytes:
        packed.update(files)
        return b""

    monkeypatch.setattr(run, "archive", pack)
    init = tmp_path / "init"
    init.write_bytes(b"first")
    nested.archive(init, ["true", "one two"])
    names = [*packed]
    assert {"dev", "lib64/ld-linux-x86-64.so.2"} <= packed.keys()
    assert any(name.endswith("/libc.so.6") for name in names)
    # A directory comes before what is in it, or Linux cannot unpack that.
    for name in names:
        assert "/" not in name or names.index(name.rpartition("/")[0]) < names.index(name)
    assert packed["init"] == (0o100755, b"first")
    assert packed["job"][1].endswith(b"/true\0one two\0")


def test_a_script_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    with pytest.raises(FlatwalkError, match="scripts"):
        nested.archive(script, [str(script)])
    with pytest.raises(FlatwalkError, match="no program"):
        nested.archive(script, ["/no/such/program"])


COUNTED = """\
0 began 0
0 cold 4 20 1
0 warm 1
1 began 1
1 cold 4 20 2
1 warm 2
2 began 1
2 cold 2 6 4
2 warm 4
2 exits other 10
2 host other 5000
2 exits fault 40
2 host fault 60000
2 repeated fault 4095
2 monitor 9
2 guest kernel 4000
2 guest user 300
3 began 3
3 cold 2 6 8
3 cold 4 10 16
3 warm 8
3 exits other 100
3 host other 70000
4 began 2
4 warm 32
5 began 2
5 cold 4 20 64
5 warm 64
"""


def ended(counted: str = COUNTED) -> nested.Outcome:
    """A program that has ended, and what was counted of it."""
    console = "kvm: flat_tables 2\nLinux version\nkvm: pages_4k 100\n"
    return nested.Outcome(0, nested.read(counted), [], "", console)


def test_only_the_programs_own_phases_are_counted() -> None:
    walks = ended().walks
    assert walks.cold == {(2, 6): 12, (4, 10): 16}
    assert walks.warm == 12
    assert walks.document() == {
        "cold": [
            {"entries": 14, "guest": 4, "nested": 10, "walks": 16},
            {"entries": 8, "guest": 2, "nested": 6, "walks": 12},
        ],
        "warm": 12,
    }
    first, second = ended().phases
    assert (first.exits["fault"], first.host["fault"], first.repeated["fault"]) == (40, 60000, 4095)
    assert (first.monitor, first.guest) == (9, {"kernel": 4000, "user": 300})
    assert (second.exits, second.host, second.monitor) == ({"other": 100}, {"other": 70000}, 0)


def test_the_bench_divides_by_what_there_was() -> None:
    row = nested_bench.Row.of("l2l1", "off", 80, ended())
    ordinary = dataclasses.replace(row, host_mode="off", guest_kernel_instructions=8000, exits=200)
    walks = nested_bench.walks_table([ordinary, row]).splitlines()
    # Eight walks of 2 + 6 and sixteen of 4 + 10 entries.
    assert walks[-1] == "| l2l1 | off | 12.000 | 3.333 | 8.667 | 24 | 8 | 2 |"
    costs = nested_bench.costs_table([ordinary, row]).splitlines()
    assert costs[-2] == "| off | off | 100 (1.000) | 40 | 1500 (1.000) | 102 | 200 | 350 (1.000) |"
    assert costs[-1] == "| l2l1 | off | 50 (0.500) | 40 | 1500 (1.000) | 102 | 100 | 700 (2.000) |"
    # Without the row that others are compared with.
    assert (
        nested_bench.costs_table([row]).splitlines()[-1]
        == "| l2l1 | off | 50 | 40 | 1500 | 102 | 100 | 700 |"
    )
    with pytest.raises(FlatwalkError, match="has not marked"):
        nested_bench.Row.of("l2l1", "off", 80, ended(COUNTED.replace("3 began 3\n3 cold", "2 cold")))


def test_the_bench_draws_what_it_counted() -> None:
    row = nested_bench.Row.of("l2l1", "off", 80, ended())
    (chart,) = charts.nested([row, dataclasses.replace(row, mode="l2l1")])
    assert [panel.label for panel in chart.panels] == ["guest off", "guest l2l1"]
    assert chart.panels[0].rows[0].cells == ["12.000"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--nested", "--levels", "5"], "--levels"),
        (["--nested", "--host-modes", "compendia"], "--host-modes"),
        (["--nested", "--modes", "l5l4"], "--modes"),
        (["--nested", "--time"], "--nested"),
        (["--host-modes", "off"], "--host-modes"),
    ],
)
def test_benches_that_there_are_not_are_refused(
    call: Callable[..., Result], options: list[str], named: str
) -> None:
    result = call("vm", "bench", *options)
    assert result.code == 2
    assert named in result.err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--nested", "--record", "x.fwt"], "--record"),
        (["--nested", "--levels", "5"], "--levels"),
        (["--nested", "--cpus", "2"], "--cpus"),
        (["--nested", "--check"], "--check"),
        (["--nested", "--debug"], "--debug"),
        (["--nested", "--no-feature"], "--no-feature"),
        (["--nested", "--host-mode", "l5l4"], "--host-mode"),
        (["--host-mode", "off"], "--host-mode"),
        (["--json", "-"], "--json"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    call: Callable[..., Result], options: list[str], named: str
) -> None:
    result = call("vm", "run", *options, "--", "true")
    assert result.code == 2
    assert named in result.err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--nested", "--tier", "full"], "--tier"),
        (["--nested", "--levels", "5"], "--levels"),
        (["--nested", "--kcsan"], "--kcsan"),
        (["--nested", "--mutate"], "--mutate"),
        (["--nested", "--soak", "1"], "--soak"),
        (["--nested", "--modes", "compendia"], "--modes"),
        (["--nested", "--tests", "fork"], "--tests"),
        (["--tests", "kvm-log"], "--tests"),
        (["--tier", "full", "--tests", "uffd-unit-tests"], "did you mean userfaultfd-units"),
        (["--tier", "full", "--tests", "sigreturn_64"], "did you mean x86/sigreturn_64"),
        (["--tests", "kvm-log"], "choose some of asked, cap,"),
    ],
)
def test_tests_that_there_are_not_are_refused(
    call: Callable[..., Result], options: list[str], named: str
) -> None:
    result = call("vm", "test", *options)
    assert result.code == 2
    assert named in result.err


def test_kvms_own_tests_run_in_each_of_its_modes() -> None:
    off, *others = cases.of_kvm()
    assert (off.name, off.machine.nested, off.flattens) == ("off", "off", False)
    assert {case.machine.nested for case in others} == set(HOST_MODES) - {"off"}
    assert {(case.failing, case.machine.levels) for case in others} == {(0, 4), (50, 4), (0, 5)}
    for case in (off, *others):
        assert case.machine.cpus > 1
        assert case.tests == tuple(selftests.KVM_SELFTESTS)
        assert case.flattens == (case is not off)
    assert [case.machine.nested for case in cases.of_kvm(["l2l1"])] == ["off", *["l2l1"] * 3]
    # They are on no other machine, where there is no KVM.
    usual = {name for case in cases.of_tier("full") for name in case.tests}
    assert not usual & selftests.KVM_SELFTESTS.keys()
    built = set(components.SELFTESTS.recipe)
    assert all(
        call.split()[0] in built or f"mm/{call.split()[0]}" in built for call in selftests.SELFTESTS.values()
    )
    assert {f"kvm/{words.split()[0]}" for words in selftests.KVM_SELFTESTS.values()} <= built


def test_what_ended_on_a_host_is_read_again(tmp_path: Path) -> None:
    case = cases.of_kvm(["l2l1"])[1]
    written = tmp_path / "all.json"
    written.write_text(json.dumps(report.as_dict([judging.Result(case)], {})), encoding="utf-8")
    assert [result.case for result in report.resumed(written, {})] == [case]


@pytest.fixture(scope="module")
def nested_vm(vm: None) -> None:
    """Builds the host's kernel, too, where it is not built yet."""
    del vm
    build.ensure(components.NESTED_LINUX)


def verified(
    host_mode: str,
    mode: str,
    *,
    pages: int = 2000,
    rounds: int = 3,
    levels: int = 4,
    monitor: Sequence[str] = (),
    wrapper: Sequence[str] = (),
) -> tuple[nested.Outcome, dict[str, int]]:
    """Runs the program that verifies its memory: how it ended, and KVM's statistics if `monitor` is given."""
    program = compiled.guest_program(compiled.SOURCES / "tests" / "inner.c")
    inner = nested.Guest(mode, 128, nested.AT_ONCE if mode != "off" else ())
    said = io.BytesIO()
    outcome = nested.run(
        inner.host(host_mode, levels=levels),
        inner,
        [str(program), str(pages), str(rounds)],
        monitor=monitor,
        wrapper=wrapper,
        stdout=said,
    )
    assert (outcome.status, outcome.splats) == (0, [])
    assert said.getvalue().decode().splitlines() == [f"round {number}" for number in range(1, rounds + 1)]
    return outcome, outcome.statistics


@pytest.mark.slow
@pytest.mark.usefixtures("nested_vm")
@pytest.mark.parametrize(
    ("host_mode", "mode", "levels", "entries"),
    [
        ("off", "off", 4, (4, 20)),
        ("l4l3+l2l1", "off", 4, (4, 10)),
        ("off", "l4l3+l2l1", 4, (2, 12)),
        ("l4l3+l2l1", "l4l3+l2l1", 4, (2, 6)),
        ("l4l3", "off", 4, (4, 15)),
        ("l3l2", "off", 4, (4, 15)),
        ("l2l1", "off", 4, (4, 15)),
        # With the host's fifth level: 25 nested entries, 20 with one pair, 15 with two.
        ("l4l3+l2l1", "off", 5, (4, 15)),
    ],
)
def test_cold_walks_read_as_many_entries_as_the_papers_say(
    host_mode: str, mode: str, levels: int, entries: tuple[int, int]
) -> None:
    cold = verified(host_mode, mode, levels=levels)[0].walks.cold
    # A program's first walks may come before its tables are flat.
    assert cold[entries] > max(100, 0.99 * cold.total())


@pytest.mark.slow
@pytest.mark.usefixtures("nested_vm")
@pytest.mark.parametrize(("host_mode", "tables"), [("off", 0), ("l4l3+l2l1", 2)])
def test_the_log_of_written_pages_misses_none_while_mappings_go_and_come(host_mode: str, tables: int) -> None:
    _, statistics = verified(host_mode, "l4l3+l2l1", rounds=12, monitor=["-c", "100"])
    assert statistics["checks"] > 50
    assert statistics["pages_written"] > 2000
    assert statistics["flat_tables"] == tables
    assert statistics["flat_table_demote"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("nested_vm")
def test_large_pages_take_the_place_of_a_flat_table() -> None:
    outcome, statistics = verified("l4l3+l2l1", "off", pages=16000, monitor=["-l"])
    assert statistics["flat_table_demote"] > 0
    assert statistics["pages_2m"] > 10
    # The root stays flat.
    assert statistics["flat_tables"] == 1
    assert max(count for _, count in outcome.walks.cold) == 15


@pytest.mark.slow
@pytest.mark.usefixtures("nested_vm")
def test_without_blocks_tables_are_ordinary() -> None:
    outcome, statistics = verified(
        "l4l3+l2l1", "off", monitor=["-c", "1000"], wrapper=["sh", "-ec", WITHOUT_BLOCKS, "sh"]
    )
    assert statistics["flat_table_alloc"] == 0
    assert statistics["flat_table_refused"] > 1
    assert {count for _, count in outcome.walks.cold} == {20}


@pytest.mark.slow
@pytest.mark.usefixtures("nested_vm")
def test_the_command_reports_the_walks_and_ends_as_the_program(
    call: Callable[..., Result], tmp_path: Path
) -> None:
    counted, log, program = tmp_path / "counted.json", tmp_path / "log", tmp_path / "test"
    # Wherever it is, and with its libraries.
    shutil.copy2("/usr/bin/test", program)
    result = call(
        *("vm", "run", "--nested", "--host-mode", "l4l3+l2l1", "--mode", "off", "--memory", "128M"),
        *("--json", str(counted), "--log", str(log), "--", str(program), "a", "=", "b"),
    )
    assert result.code == 1
    document = json.loads(counted.read_text(encoding="utf-8"))
    assert (document["host_mode"], document["mode"]) == ("l4l3+l2l1", "off")
    assert {row["entries"] for row in document["cold"]} == {14}
    assert "cold walks of 14 entries" in result.err
    assert "Flat nested page tables: l4l3+l2l1" in log.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("nested_vm")
def test_the_bench_counts_what_kvm_and_the_program_know_of() -> None:
    pages, rounds = 2000, 3
    outcome, statistics = verified("l4l3+l2l1", "off", pages=pages, rounds=rounds, monitor=["-s"])
    assert sum(phase.exits.total() for phase in outcome.all_phases) == statistics["exits"]
    first, others = outcome.phases
    # Of these pages, those that the inner kernel has not had before are new to KVM; later none is.
    assert others.exits["fault"] < first.exits["fault"] < 1.2 * pages
    # It executes CPUID before each 16th.
    cpuids = (pages + 15) // 16 * (rounds - 1)
    assert others.exits["other"] >= cpuids
    assert first.host["fault"] > 100 * first.exits["fault"]
    assert others.host["other"] > 100 * cpuids
