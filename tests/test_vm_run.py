"""`flatwalk vm run` and `vm test`: what a guest is given, what it gives back, and that Linux works in it."""

from __future__ import annotations

import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from flatwalk import cache
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.vm import build, compiled, components, ports, races, run
from flatwalk.vm.machine import MODES, Machine
from flatwalk.vm.testing import cases, judging, report, running
from tests.running import waited_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.conftest import Result


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"mode": "l5l1"}, "--mode"),
        ({"levels": 3}, "--levels"),
        ({"memory": "1T"}, "--memory"),
        ({"memory": "0G"}, "--memory"),
        ({"memory": "1G,x"}, "--memory"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        Machine(**wrong)  # type: ignore[arg-type]
    assert caught.value.where == named
    assert caught.value.remedy


def test_the_machine_is_what_was_asked_for() -> None:
    words = Machine("l3l2", levels=5, cpus=3, feature=False, parameters=("pti=on",)).arguments()
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given["-cpu"].split(",") == ["max", "la57=on", "flat-pt=off", "pcid=off", "invpcid=off"]
    assert given["-smp"] == "3"
    assert {"flat_page_tables=l3l2", "pti=on"} <= set(given["-append"].split())
    assert "flat-pt-check=on" in Machine(check=True).arguments()[3]


def test_the_archive_is_one_that_other_programs_read(tmp_path: Path) -> None:
    if not shutil.which("cpio"):
        pytest.skip("cpio is not installed")
    files = {"dev": (0o040755, b""), "init": (0o100755, b"\x7fELF"), "job": (0o100644, b"odd")}
    subprocess.run(
        ["cpio", "-i", "--quiet", "--no-absolute-filenames"],
        input=run.archive(files),
        cwd=tmp_path,
        check=True,
    )
    assert (tmp_path / "dev").is_dir()
    assert (tmp_path / "init").read_bytes() == b"\x7fELF"
    assert (tmp_path / "init").stat().st_mode == 0o100755
    assert (tmp_path / "job").read_bytes() == b"odd"


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: CPU: 1 PID: 44 at mm/memory.c:123 zap_pte_range+0x1/0x2",
        "BUG: Bad page map in process mm  pte:80000001 pmd:02dc4067",
        "BUG: non-zero pgtables_bytes on freeing mm: 4096",
        "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
        "WARNING: possible circular locking dependency detected",
        "flat-pt-check: missing flush: vCPU 2, CR3 0x10000001fe000",
        "mm/memory.c:448: bad pmd 00000000b1c3(0010000100a00067)",
        "pagealloc: memory corruption",
        "BUG page->ptl (Not tainted): Poison overwritten",
        "mm: page allocation failure: order:9, mode:0x400dc0(GFP_KERNEL_ACCOUNT|__GFP_ZERO)",
        "BUG: KCSAN: data-race in flat_note / vma_merge",
        "BUG: KCSAN: data-race in vma_merge / promote.constprop.0",
        "BUG: KCSAN: data-race in __pte_alloc / vma_merge",
        "BUG: KCSAN: assert: race in __flat_free_table",
    ],
)
def test_what_a_kernel_says_of_its_mistakes_is_seen(line: str) -> None:
    assert run.Outcome(0, f"fine\n{line}\nfine", "").splats() == [line]
    assert run.Outcome(0, "fine", f"{line}\n").splats() == [line]


def test_an_ordinary_boot_is_no_mistake() -> None:
    said = [
        "Command line: console=ttyS0 rcupdate.rcu_cpu_stall_timeout=300",
        "RCU CPU stall warnings timeout set to 300 (rcu_cpu_stall_timeout).",
        "x86/mm: flat page tables",
        "BUG: KCSAN: data-race in tick_nohz_stop_tick / tick_sched_do_timer.part.0",
        "BUG: KCSAN: data-race in flatten_others_of_this_name / try_to_wake_up",
    ]
    assert run.Outcome(0, "\n".join(said), "").splats() == []


def test_the_series_functions_are_those_that_it_adds_or_changes() -> None:
    found = races.functions_of_the_series()
    assert {"promote", "demote", "flat_note", "glue_block", "__p4d_alloc"} <= found
    # Their first lines are within the hunks that change them.
    within = {"__pte_alloc", "__pmd_alloc", "___pmd_free_tlb", "___p4d_free_tlb"}
    assert within | {"should_clear_pmd_young"} <= found
    assert not {"handle_mm_fault", "if", "unmap_vmas"} & found


LIMIT_S = 1200


def ended(name: str, status: int, *said: str, seconds: float = 0) -> judging.FinishedTest:
    return judging.FinishedTest.from_output(name, status, seconds, said)


def result(
    case: cases.Case, *tests: judging.FinishedTest, off: judging.Result | None = None
) -> judging.Result:
    found = judging.Result(case, {test.name: test for test in tests})
    others = (off or found).tests
    found.verdicts = {test.name: judging.judge(test, others.get(test.name), LIMIT_S) for test in tests}
    return found


def test_a_case_that_went_wrong_says_how() -> None:
    off = result(cases.Case("off", Machine(), ()), ended("fork", 0), ended("mmap", 0), ended("ksm", 77))
    case = cases.Case("l3l2", Machine("l3l2"), ("fork", "mmap", "ksm", "exec"), flattens=True)
    found = result(
        case, ended("fork", 0), ended("mmap", 1, "wrong contents at 0x1"), ended("ksm", 77), off=off
    )
    assert judging.differences(found, off) == [
        "exec did not end",
        "mmap: it ended with 1: wrong contents at 0x1",
        "nothing was flattened",
    ]
    assert [found.count(word) for word in (judging.PASS, judging.SKIP, judging.FAIL)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("test", "off", "word"),
    [
        (ended("fork", 0), None, judging.PASS),
        (ended("fork", 77), None, judging.FAIL),
        (ended("fork", 77), ended("fork", 0), judging.FAIL),
        (ended("fork", 77), ended("fork", 77), judging.SKIP),
        (ended("fork", 124), ended("fork", 124), judging.FAIL),
        (ended("mlock2", 0), ended("mlock2", 0), judging.PASS),
        (ended("mlock2", 0), None, judging.FAIL),
        (ended("mlock2", 0), ended("mlock2", 1), judging.FAIL),
        (ended("mlock2", 1), ended("mlock2", 1), judging.XFAIL),
        (ended("mlock2", 4), ended("mlock2", 4), judging.SKIP),
        (ended("mlock2", 124), ended("mlock2", 124), judging.FAIL),
        (ended("mlock2", 127), ended("mlock2", 127), judging.FAIL),
        (ended("kvm-log", 126), ended("kvm-log", 126), judging.FAIL),
        (ended("kvm-log", 125), ended("kvm-log", 125), judging.FAIL),
        (ended("mlock2", 137), ended("mlock2", 137), judging.FAIL),
        (ended("stressor-vm", 2), ended("stressor-vm", 0), judging.FAIL),
        (ended("soft-dirty", 1, "not ok 3 a"), ended("soft-dirty", 1, "ok 1 b", "not ok 3 a"), judging.XFAIL),
        (ended("soft-dirty", 1, "not ok 3 a"), ended("soft-dirty", 1, "not ok 2 b"), judging.FAIL),
    ],
)
def test_a_test_must_end_as_without_flat_tables(
    test: judging.FinishedTest, off: judging.FinishedTest | None, word: str
) -> None:
    assert judging.judge(test, off, LIMIT_S).word == word


@pytest.mark.parametrize(
    ("test", "why"),
    [
        (ended("fork", 124), "it did not end in time"),
        # `timeout` had to kill it, or somebody else did.
        (ended("fork", 137, seconds=LIMIT_S + 10), "it did not end in time"),
        (ended("oom", 137, "filling", seconds=30), "it was killed: filling"),
        (ended("mlock2", 127, "sh: mlock2: not found"), "it could not be run: sh: mlock2: not found"),
        (ended("kvm-log", 126), "it could not be run: it wrote nothing"),
        (ended("mlock2", 125, "timeout: failed"), "it could not be run: timeout: failed"),
    ],
)
def test_why_a_test_did_not_end_is_said(test: judging.FinishedTest, why: str) -> None:
    assert judging.judge(test, test, LIMIT_S) == judging.Verdict(judging.FAIL, why)


@pytest.mark.parametrize(
    ("machine", "ordinary"),
    [
        (Machine(), True),
        (Machine("l2l1"), False),
        (Machine("l2l1", feature=False), True),
        (Machine("l2l1", feature=False, parameters=("flat_page_tables=l2l1,force", "pti=on")), False),
        (Machine(nested="off"), True),
        (Machine(nested="l2l1"), False),
    ],
)
@pytest.mark.parametrize("counter", [judging.BLOCKS, judging.LATER])
def test_nothing_is_flattened_where_nothing_may_be(machine: Machine, ordinary: bool, counter: str) -> None:
    case = cases.Case("one", machine, ())
    assert case.ordinary == ordinary
    found = judging.Result(case, counters={judging.BLOCKS: 0, judging.LATER: 0})
    assert judging.differences(found, found) == []
    found.counters[counter] = 1
    assert judging.differences(found, found) == (["something was flattened"] if ordinary else [])


def test_each_tier_has_guests_where_nothing_may_be_flattened() -> None:
    for planned in (cases.of_tier("full"), cases.of_kvm()):
        assert {case.ordinary for case in planned} == {True, False}
        assert not any(case.ordinary and case.flattens for case in planned)


def test_what_the_kernel_says_is_said_of_the_test_that_ran() -> None:
    splat = "[ 9.1] WARNING: CPU: 1 PID: 44 at mm/memory.c:123"
    log = f"[ 1.0] flatwalk: test fork\n[ 2.0] fine\n[ 8.0] flatwalk: test exec\n{splat}\n"
    miss = "flat-pt-check: missing flush: vCPU 1, CR3 1"
    assert judging.complaints(log, f"{miss}\n") == [f"{splat} (in exec)", miss]


def test_each_test_is_a_line_as_it_ends() -> None:
    case = cases.Case("l3l2", Machine("l3l2"), ("fork", "ksm"))
    found, lines = judging.Result(case), list[str]()
    output = running.GuestOutput(found, found, lines.append)
    for part in (
        b"@begin fork 1.5\nall ",
        b"well\n\n@test fork 0 3.75\n@beg",
        b"in ksm 4\nno KSM\n@test ksm 77 4\n",
    ):
        output.write(part)
    output.write(b"counter flat_table_alloc 12\ncounter flat_table_scan_alloc 3\n")
    assert [" ".join(line.split()) for line in lines] == ["pass fork 2.2 s", "skip ksm 0.0 s no KSM"]
    assert found.tests["fork"].reason == "all well"
    assert found.counters == {"flat_table_alloc": 12, "flat_table_scan_alloc": 3}
    table = report.summary([found]).splitlines()
    assert table[-1] == "| l3l2 | 1 | 1 | 0 | 0 | 0 | 12 | 0 | 3 | 0 | 0.0 |"
    reported = report.as_dict([found], {"day": "today"})["cases"][0]["tests"]
    assert [(test["name"], test["verdict"], test["seconds"]) for test in reported] == [
        ("fork", "pass", 2.25),
        ("ksm", "skip", 0.0),
    ]


def test_what_ended_is_not_booted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = cases.chosen(cases.of_tier("full", ["l3l2"]), ["l3l2"], ["fork", "mlock2"])
    versions = {"linux": "6.1 (a)", "day": "today"}
    file = tmp_path / "all.json"
    booted: list[str] = []

    def boot(found: judging.Result, output: running.GuestOutput, *_: object) -> None:
        booted.append(found.case.name)
        if booted == ["off", "l3l2"]:
            raise FlatwalkError("the host ran out of memory")
        output.write(b"@begin fork 0\n@test fork 0 1.5\n@begin mlock2 2\nnot ok 3 a part\n@test mlock2 1 3\n")
        output.write(b"counter flat_table_alloc %d\n" % (5 if found.case.flattens else 0))

    def keep(results: Sequence[judging.Result]) -> None:
        file.write_text(json.dumps(report.as_dict(results, versions)))

    monkeypatch.setattr(running, "_boot", boot)
    monkeypatch.setattr(build, "find", lambda *_: tmp_path)

    def call(given: Sequence[cases.Case] = planned) -> list[judging.Result]:
        before = report.resumed(file, versions | {"day": "tomorrow"})
        return running.run(given, say=lambda _: None, before=before, keep=keep)

    with pytest.raises(FlatwalkError, match="out of memory"):
        call()
    off, flat = call()
    assert booted == ["off", "l3l2", "l3l2"]
    assert [one.verdicts["mlock2"].word for one in (off, flat)] == [judging.XFAIL] * 2, (
        "as `off` had it before"
    )
    assert report.resumed(file, versions) == [off, flat]
    assert call() == [off, flat]
    assert len(booted) == 3
    # Another machine, or other tests, are another case; what is known of others stays.
    smaller = replace(planned[0], machine=replace(planned[0].machine, cpus=2))
    assert [one.case for one in call([smaller, planned[1]])] == [smaller, planned[1]]
    fewer = replace(planned[0], tests=("fork",))
    call([fewer])
    assert booted[3:] == ["off", "off"]
    assert [one.case for one in report.resumed(file, versions)] == [fewer, smaller, *planned]

    with pytest.raises(UsageError, match=r"of linux 6.1 \(a\), not 6.1 \(b\)"):
        report.resumed(file, {"linux": "6.1 (b)"})
    for wrong in (
        "[]",
        "{",
        "{}",
        '{"versions": 3, "cases": []}',
        '{"versions": {}, "cases": [{"name": "off"}]}',
    ):
        file.write_text(wrong)
        with pytest.raises(UsageError, match="not what `vm test --json` writes"):
            report.resumed(file, versions)


@pytest.mark.parametrize("built", [True, False])
def test_other_tests_of_a_tier_are_joined(
    call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: bool
) -> None:
    def boot(found: judging.Result, output: running.GuestOutput, *_: object) -> None:
        for test in found.case.tests:
            output.write(f"@begin {test} 0\n@test {test} 0 1.5\n".encode())
        output.write(b"counter flat_table_alloc 5\n" if found.case.flattens else b"")

    for component in (components.QEMU, components.LINUX, components.SELFTESTS):
        product = tmp_path / component.name / component.product
        product.parent.mkdir(parents=True)
        if built or component is not components.SELFTESTS:
            product.write_text("made")
    monkeypatch.setattr(build, "_place", lambda component, _: tmp_path / component.name)
    monkeypatch.setattr(running, "_boot", boot)
    common = ("vm", "test", "--tier", "full", "--only", "l2l1", "--json", "all.json", "--resume")
    for tests in ("fork", "exec", *(["mlock2", "fork"] if built else [])):
        done = call(*common, "--tests", tests)
        assert done.code == 0, done.out + done.err
    document = json.loads((tmp_path / "all.json").read_text())
    assert ("selftests" in document["versions"]) == built
    assert len(document["cases"]) == (6 if built else 4)
    # Without them, what needs them is not begun.
    if not built:
        refused = call(*common, "--tests", "mlock2")
        assert (refused.code, "vm build --selftests" in refused.err) == (1, True)


def test_own_trees_that_were_built_again_are_other_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "find", lambda component, _: tmp_path / component.name)

    def made(component: components.Component, text: str, *, name: str = "") -> dict[str, str]:
        file = tmp_path / component.name / (name or component.product)
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        # Each call of the command reads it again.
        cache.digest.cache_clear()
        return report.versions("usual", tmp_path, selftests=True)

    for component in (components.QEMU, components.LINUX, components.SELFTESTS):
        product = tmp_path / component.name / component.product
        product.parent.mkdir(parents=True)
        product.write_text("first")
    before = made(components.LINUX, "first")
    assert made(components.LINUX, "first") == before
    for component, name, what in (
        (components.QEMU, "", "qemu"),
        (components.LINUX, "", "linux"),
        (components.SELFTESTS, "", "selftests"),
        (components.SELFTESTS, "mm/khugepaged", "selftests"),
    ):
        after = made(component, "second", name=name)
        assert {key for key in after if after[key] != before[key]} == {what}
        file = tmp_path / "all.json"
        file.write_text(json.dumps(report.as_dict([], before)))
        with pytest.raises(UsageError, match=f"its results are of {what} own tree"):
            report.resumed(file, after)
        before = after
    # Results of tests that come with Linux are not joined with others' without.
    assert report.versions("usual", tmp_path).keys() == before.keys() - {"selftests"}
    with pytest.raises(UsageError, match=r"its results are of selftests own tree .*, not none"):
        report.resumed(file, report.versions("usual", tmp_path))


def test_a_series_is_known_by_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base").write_text("linux-source-6.12 6.12.1\n")
    monkeypatch.setattr(build, "find", lambda *_: tmp_path)
    assert report.versions("usual")["linux"] == f"linux-source-6.12 6.12.1 ({tmp_path.name})"


def test_a_tier_without_its_programs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find", lambda *_: tmp_path)
    monkeypatch.setattr(running, "_boot", lambda *_: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    planned = cases.chosen(cases.of_tier("full", ["l3l2"]), ["off"], ["fork", "stressor-brk"])
    with pytest.raises(FlatwalkError, match="stress-ng") as caught:
        running.run(planned, say=lambda _: None)
    assert "apt-get install" in str(caught.value.remedy)
    running.run([replace(planned[0], tests=("fork",))], say=lambda _: None)


@pytest.fixture
def machinery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in the place of QEMU, which finds the file of the kernel's log in $log."""
    qemu = tmp_path / "bin" / "qemu-system-x86_64"
    qemu.parent.mkdir()
    init = tmp_path / "init"
    init.write_bytes(b"")
    monkeypatch.setattr(build, "find", lambda *_: tmp_path)
    monkeypatch.setattr(compiled, "guest_program", lambda _: init)

    def be(script: str) -> None:
        find_log = "for word; do case $word in file:*) log=${word#file:} ;; esac; done"
        qemu.write_text(f"#!/bin/sh\n{find_log}\n{script}\n")
        qemu.chmod(0o755)

    return be


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("echo no library >&2; exit 127", "QEMU failed: no library"),
        ("exit 1", "QEMU failed: 1"),
        ("exit 0", "ended before the command did"),
        # By the host, which has no memory left, whatever the kernel has said.
        ("echo booting >$log; kill -KILL $$", "QEMU was ended by a signal"),
        # Before and after it has a handler.
        ("echo booting >$log; kill -TERM $$", "QEMU was ended by a signal"),
        (
            "echo booting >$log; echo 'qemu: terminating on signal 15 from pid 7 (kill)' >&2; exit 0",
            "QEMU was ended by a signal",
        ),
    ],
)
def test_a_host_that_cannot_run_a_guest_has_lost_none(
    machinery: Callable[[str], None], script: str, what: str
) -> None:
    machinery(script)
    with pytest.raises(FlatwalkError, match=what) as caught:
        run.run(Machine(), ["true"], stdout=io.BytesIO(), stderr=io.BytesIO())
    assert not isinstance(caught.value, run.GuestLostError)
    assert caught.value.remedy


@pytest.mark.parametrize("status", [0, 1])
def test_a_guest_that_is_lost_leaves_what_it_and_qemu_said(
    machinery: Callable[[str], None], status: int
) -> None:
    machinery(f"echo BUG: here >$log; echo odd >&2; exit {status}")
    with pytest.raises(run.GuestLostError) as caught:
        run.run(Machine(), ["true"], stdout=io.BytesIO(), stderr=io.BytesIO())
    assert (caught.value.log, caught.value.messages) == ("BUG: here\n", "odd\n")


def test_a_guest_that_is_stopped_leaves_them_too(
    machinery: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machinery("echo BUG: here >$log; echo odd >&2; exec sleep 100000")

    def communicate(process: subprocess.Popen[bytes], timeout: float | None = None) -> None:
        assert process.stderr is not None
        assert timeout is not None
        raise subprocess.TimeoutExpired(process.args, timeout, stderr=process.stderr.readline())

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(run.GuestLostError, match="did not end within 3 s") as caught:
        run.run(Machine(), ["true"], timeout_s=3, stdout=io.BytesIO(), stderr=io.BytesIO())
    assert (caught.value.log, caught.value.messages) == ("BUG: here\n", "odd\n")
    assert caught.value.where == "--timeout"


def test_a_test_that_cannot_be_killed_ends_the_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    found = judging.Result(cases.Case("l3l2", Machine("l3l2"), ("fork", "ksm")))
    output = running.GuestOutput(found, found, lambda _: None)

    def after(limits: float) -> str:
        nonlocal now
        now += limits * found.case.limit_s
        return output.stuck()

    assert after(9) == "", "booting is none of the tests'"
    output.write(b"@begin fork 1.5\n")
    assert after(1.4) == "", "it is killed somewhat later than its limit"
    output.write(b"still here\n@test fork 124 1800\n@begin ksm 1800\n")
    assert after(1.4) == "", "each has its own time"
    assert after(0.2) == "ksm, which was to end within 1200 s and did not within 1800 s"
    output.write(b"@test ksm 137 3700\n")
    assert after(9) == "", "nor is what comes after the last"


#: In the place of QEMU: a guest in which a test begins.
HANGING = (
    "for word; do case $word in */dev/fd/*) fd=${word##*/}; fd=${fd%%,*}; break ;; esac; done; "
    "echo booting >$log; echo odd >&2; echo @begin fork 1 >/dev/fd/$fd; exec sleep 100000"
)


def test_a_guest_that_hangs_is_stopped_and_says_in_which_test(
    machinery: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machinery(HANGING)
    monkeypatch.setattr(run, "_LOOK_S", 0.05)
    monkeypatch.setattr(running, "_HANGING", 0)
    case = cases.Case("off", Machine(), ("fork", "ksm"))
    (found,) = running.run([case], logs=tmp_path, say=lambda _: None)
    assert "the guest hangs in fork, which was to end within 1200 s" in found.problems[0]
    assert found.problems[1:] == ["fork did not end", "ksm did not end"]
    log = (tmp_path / "off.log").read_text()
    assert [part in log for part in ("@begin fork", "booting", "odd")] == [True] * 3


def test_all_tests_of_a_guest_have_a_time_too(
    machinery: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machinery(HANGING)
    monkeypatch.setattr(run, "_LOOK_S", 0.05)
    monkeypatch.setitem(cases._LIMIT_S, "usual", 1)  # noqa: SLF001
    monkeypatch.setattr(running, "_HANGING", 1000)
    (found,) = running.run([cases.Case("off", Machine(), ("fork",))], say=lambda _: None)
    assert "the guest did not end within 2 s, and was stopped" in found.problems[0]


def test_what_qemu_said_of_a_lost_guest_is_judged_and_kept(
    machinery: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machinery("")
    miss = "flat-pt-check: missing flush: vCPU 1, CR3 1"

    def lost(*_: object, timeout_s: float, **__: object) -> None:
        stopped = FlatwalkError(f"it did not end within {timeout_s} s", where="--timeout", remedy="more time")
        raise run.GuestLostError(stopped, "BUG: here\n", f"{miss}\n")

    monkeypatch.setattr(run, "run", lost)
    logs = tmp_path / "logs"
    (found,) = running.run([cases.Case("off", Machine(), ("fork",))], logs=logs, say=lambda _: None)
    assert found.complaints == ["BUG: here", miss]
    assert f"=== QEMU\n{miss}\n" in (logs / "off.log").read_text()
    # `vm test` has no such option.
    assert "did not end within 2400 s" in found.problems[0]
    assert "--timeout" not in found.problems[0]
    assert "--logs" in found.problems[0]
    # As it is kept, --resume would leave it out.
    assert "with --only, without --resume" in found.problems[0]


def test_a_host_that_cannot_run_a_case_is_said_of_it(
    machinery: Callable[[str], None], tmp_path: Path
) -> None:
    machinery("echo booting >$log; kill -TERM $$")
    kept: list[object] = []
    logs = tmp_path / "logs"
    with pytest.raises(FlatwalkError, match="ended by a signal") as caught:
        running.run(
            [cases.Case("off", Machine(), ("fork",))], logs=logs, say=lambda _: None, keep=kept.append
        )
    assert caught.value.where == "off"
    assert caught.value.remedy is not None
    assert "--resume goes on with this case" in caught.value.remedy
    assert "--memory" not in caught.value.remedy
    assert kept == []


def test_logs_have_a_place_before_the_first_guest_boots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    booted: list[object] = []
    monkeypatch.setattr(build, "find", lambda *_: tmp_path)
    monkeypatch.setattr(running, "_boot", lambda *given: booted.append(given))
    (tmp_path / "taken").write_text("")
    planned = [cases.Case("off", Machine(), ())]
    with pytest.raises(UsageError) as caught:
        running.run(planned, logs=tmp_path / "taken" / "logs", say=lambda _: None)
    assert (caught.value.where, booted) == ("--logs", [])
    running.run(planned, logs=tmp_path / "new" / "logs", say=lambda _: None)
    assert (len(booted), (tmp_path / "new" / "logs").is_dir()) == (1, True)


def test_commas_in_paths_are_qemus_to_read() -> None:
    assert run.drive(Path("/a,b/disk"))[1].startswith("file=/a,,b/disk,if=")
    assert ports.port("status", Path("/a,b/status"))[1].endswith(",path=/a,,b/status,append=on")


def test_a_guest_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    guest = f"exec 3>{held}; echo here >&3; exec sleep 100000"
    script = f"from flatwalk.vm import run; run._qemu(['sh', '-c', {guest!r}], (), None)"
    with subprocess.Popen([sys.executable, "-I", "-c", script]) as starter, held.open() as reader:
        assert reader.readline() == "here\n"
        starter.kill()
        # Can be read at once when the last who could write has ended.
        assert select.select([reader], [], [], 60)[0]
        assert reader.read() == ""


def test_some_cases_and_tests_are_chosen() -> None:
    planned = cases.of_tier("full", ["l2l1"])
    some = cases.chosen(planned, ["isolated"], ["fork", "oom"])
    assert [(case.name, case.tests) for case in some] == [
        ("off", ("fork", "oom")),
        ("l2l1, isolated", ("fork", "oom")),
    ]
    assert [case.name for case in cases.chosen(planned, ["l2l1"], ["fork"])] == ["off", "l2l1"]
    two = cases.chosen(planned, ["5 levels", "no feature"], ["fork"])
    assert [case.name for case in two] == ["off", "l2l1, 5 levels", "l2l1, no feature"]
    assert cases.chosen(planned, [], []) == planned
    wrong: list[tuple[list[str], list[str], str]] = [
        ([], ["frok"], "--tests"),
        (["l2l1", "odd"], [], "--only"),
    ]
    for only, tests, where in wrong:
        with pytest.raises(UsageError) as caught:
            cases.chosen(planned, only, tests)
        assert caught.value.where == where
    with pytest.raises(UsageError) as caught:
        cases.of_tier("long")
    assert caught.value.where == "--tier"


def test_a_flush_that_is_left_out_must_be_found_and_nothing_else() -> None:
    miss = "flat-pt-check: missing flush: vCPU 1, CR3 1"
    splat = "WARNING: CPU: 1 PID: 44 at mm/memory.c:123"
    for unflushed, said, problems in (
        (0, [], []),
        (0, [miss], [f"the kernel says: {miss}"]),
        (1, [miss], []),
        (1, [], ["no missing flush was found"]),
        (1, [miss, splat], [f"the kernel says: {splat}"]),
    ):
        case = cases.Case("l2l1", Machine("l2l1"), ("flush",), unflushed=unflushed)
        found = result(case, ended("flush", 0))
        found.complaints = said
        assert judging.differences(found, found) == problems


def test_a_mistake_that_others_tests_find_with_off_too_is_none_of_ours() -> None:
    def said(where: str, at: str = "include/linux/fs.h:509 hugetlb_split+0x103/0x130") -> str:
        return f"[ {len(where)}.5] WARNING: CPU: {len(where)} PID: 1{len(at)} at {at} (in {where})"

    def problems(case: str, complaints: list[str], off: list[str]) -> list[str]:
        without, found = (judging.Result(cases.Case(name, Machine(), ())) for name in ("off", case))
        without.complaints, found.complaints = off, complaints
        return judging.differences(found, without)

    known = [said("hugetlb-madvise")]
    assert problems("off", known, known) == []
    assert problems("l3l2", [said("hugetlb-madvise"), said("protection-keys")], known) == []
    for ours in (said("hugetlb"), said("hugetlb-madvise", "mm/rmap.c:12"), "WARNING: CPU: 1 PID: 2 at a"):
        assert problems("l3l2", [*known, ours], known) == [f"the kernel says: {ours}"]
    assert problems("l3l2", known, []) == [f"the kernel says: {known[0]}"]
    assert problems("off", [said("fork")], [said("fork")]) == [f"the kernel says: {said('fork')}"]


def test_each_flush_is_left_out_in_some_case() -> None:
    for tier in ("short", "full"):
        assert {case.unflushed for case in cases.of_tier(tier)} == {0, 1, 2, 4, 8}
    assert [case.machine.mode for case in cases.of_tier("short", ["l3l2"])] == ["off", "l3l2", "l3l2"]
    # PCIDs are where there is something to be found by them.
    for case in cases.of_tier("full"):
        assert ("pcid=on" in case.machine.arguments()[3]) == case.machine.check, case.name


def test_every_mode_is_tested() -> None:
    for tier in ("short", "full"):
        assert {case.machine.mode for case in cases.of_tier(tier)} == set(MODES)
        assert cases.of_tier(tier)[0].machine.mode == "off"


def test_a_freed_address_space_looks_like_none() -> None:
    # Without this the test `exits` finds nothing, whatever the kernel does.
    for case in cases.of_tier("full"):
        assert "slub_debug=FZP,mm_struct" in case.machine.arguments()[-1].split(), case.name


def test_what_a_kernel_logged_is_kept_also_of_a_guest_that_is_lost(
    call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise run.GuestLostError(FlatwalkError("the guest ended"), "BUG: here\n", "")

    monkeypatch.setattr(run, "run", lost)
    result = call("vm", "run", "--log", "k.log", "--", "true")
    assert (result.code != 0, "the guest ended" in result.err) == (True, True)
    assert (tmp_path / "k.log").read_text() == "BUG: here\n"
    recording = SimpleNamespace(outcome=None, log="as usual\n")
    monkeypatch.setattr("flatwalk.vm.live.record", lambda *_, **__: recording)
    limited = ["--record", "t.fwt", "--instructions", "1M", "--log", "l.log"]
    assert call("vm", "run", *limited, "--", "true").code == 0
    assert (tmp_path / "l.log").read_text() == "as usual\n"
    refused = call("vm", "run", "--log", "none/k.log", "--", "true")
    assert (refused.code, "--log" in refused.err) == (2, True)


def test_what_is_not_built_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(FlatwalkError, match="is not built") as caught:
        run.run(Machine(), ["true"])
    assert caught.value.remedy == "run: flatwalk vm build"


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_a_command_sees_these_files_and_its_end_is_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from the host\n")
    script = "cat file; echo $GIVEN >&2; echo lost > written; cat written; exit 7"
    said, complained = io.BytesIO(), io.BytesIO()
    outcome = run.run(
        Machine("l4l3+l2l1", cpus=2, memory="512M"),
        ["sh", "-c", f"cd {tmp_path}; {script}"],
        stdout=said,
        stderr=complained,
        environment={"GIVEN": "a word", "PATH": "/usr/bin:/bin"},
    )
    assert outcome.status == 7
    assert said.getvalue() == b"from the host\nlost\n"
    assert complained.getvalue() == b"a word\n"
    assert not (tmp_path / "written").exists()
    assert "x86/mm: flat page tables" in outcome.log
    assert outcome.splats() == []


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
@pytest.mark.parametrize("size", [0, 5, 300_000])
def test_what_we_are_given_is_the_commands_input(tmp_path: Path, size: int) -> None:
    given = tmp_path / "input"
    given.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    said = io.BytesIO()
    with given.open("rb") as file:
        outcome = run.run(Machine(memory="512M"), ["cat"], stdin=file.fileno(), stdout=said)
    assert (outcome.status, said.getvalue()) == (0, given.read_bytes())


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_a_guest_is_stopped_when_its_time_is_over() -> None:
    silent, theirs = socket.socketpair()
    with silent, theirs, pytest.raises(FlatwalkError, match="did not end within 3 s") as caught:
        run.run(Machine(memory="512M"), ["cat"], stdin=theirs.fileno(), timeout_s=3)
    assert caught.value.where == "--timeout"


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_a_signal_is_the_status_that_a_shell_would_give() -> None:
    outcome = run.run(Machine(memory="512M"), ["sh", "-c", "kill -SEGV $$"])
    assert outcome.status == 128 + 11
    assert run.run(Machine(memory="512M"), ["/no/such/program"], stderr=io.BytesIO()).status == 127


#: Takes the memory of a device out of the guest's map and puts it back, while others use theirs.
REMAP = """
import glob, os, subprocess

# Random numbers; its driver lets it go.
every = glob.glob("/sys/bus/pci/devices/*")
device = next(path for path in every if open(path + "/device").read() == "0x1005\\n")
open(device + "/driver/unbind", "w").write(os.path.basename(device))
busy = [subprocess.Popen("while cat /etc/passwd; do :; done", shell=True, stdout=-3) for _ in range(3)]
file = os.open(device + "/config", os.O_RDWR)
for _ in range(3000):
    os.pwrite(file, b"\\0\\0", 4)
    os.pwrite(file, b"\\2\\0", 4)
for one in busy:
    one.kill()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_memory_is_mapped_elsewhere_while_processors_use_devices() -> None:
    outcome = run.run(Machine(cpus=4, memory="512M"), [sys.executable, "-c", REMAP])
    assert (outcome.status, outcome.splats()) == (0, [])


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_linux_does_the_same_in_every_mode() -> None:
    """The short tier, but that half of the blocks fail in one mode alone: a guest takes half a minute."""
    short = cases.of_tier("short")
    chosen = [case for case in short if not case.failing or case.machine.mode == "l4l3+l2l1"]
    assert any(case.failing for case in chosen)
    results = running.run(chosen)
    assert [problem for result in results for problem in result.problems] == []


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_ctrl_c_stops_the_guest(tmp_path: Path) -> None:
    with waited_for(
        subprocess.Popen(
            [sys.executable, "-I", "-m", "flatwalk", "vm", "test", "--modes", "off"],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    ) as process:
        assert process.stdout is not None
        while b"populate" not in process.stdout.readline():
            assert process.poll() is None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        (guest,) = children.read_text().split()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait() == 130
    assert not Path(f"/proc/{guest}").exists()
    assert list(tmp_path.iterdir()) == []
