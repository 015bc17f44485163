"""`flatwalk vm test --mutate`: what is left out, on which machines, and what counts as noticed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.vm import build, components
from flatwalk.vm.testing import cases, judging, mutants, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Result

TABLE = mutants.read()
#: Guards of the model that are not in the series for Linux 6.12: khugepaged looks once there, and tables
#: that became empty are taken since 6.14 only. A lock of CPU hotplug that is taken too early is no guard that
#: is left out. An order of two writes, and what nothing notices in the model either, have no mutant.
NOT_IN_SERIES = {
    "NO_RETRACT_RECHECK",
    "NO_RECLAIM_GUARD",
    "NO_CPUS_LOCK_LATE",
    "NO_COUNT_FIRST",
    "NO_LEAVE_ROOT",
}


def test_the_kernel_knows_each_guard_of_the_table_and_no_other() -> None:
    patches = components.MUTANTS_LINUX.series
    text = next(path for path in patches if path.parent.name == "mutants").read_text(encoding="utf-8")
    enum = text[text.index("+enum flat_guard {") : text.index("+\tFLAT_GUARDS,")]
    known = set(re.findall(r"^\+\t(NO_[A-Z_]+),$", enum, re.MULTILINE)) - {"NO_GUARD_LEFT_OUT"}
    assert {mutant.name for mutant in TABLE if not mutant.unseen} <= known
    assert known <= {mutant.name for mutant in TABLE}
    # Where it is left out, and how long the moment takes that it is for.
    for name in known:
        assert len(re.findall(rf"^\+.*\b{name}\b", text, re.MULTILINE)) >= 3, name


def test_each_guard_of_the_model_is_in_the_table() -> None:
    models = (components.MUTANTS_LINUX.directory / "model").glob("*.pml")
    switches = {name for path in models for name in re.findall(r"\b(NO_[A-Z_]+)\b", path.read_text())}
    assert len(switches) > 40
    names = [mutant.name for mutant in TABLE]
    assert switches - set(names) == NOT_IN_SERIES
    assert len(names) == len(set(names))


def test_what_the_table_says_is_in_the_series() -> None:
    series = "".join(path.read_text(encoding="utf-8") for path in components.LINUX.series)
    for mutant in TABLE:
        assert bool(mutant.tests) != bool(mutant.unseen), mutant.name
        named = re.match(r"(\w+)\(\)", mutant.at)
        assert named, mutant.name
        assert named[1] in series, mutant.name


def test_each_machine_runs_all_its_tests_with_all_guards_first() -> None:
    planned = mutants.planned(TABLE)
    controls = [case for case in planned if case.left_out == "none"]
    assert planned[: len(controls)] == controls
    assert all(case.flattens and not case.mutated for case in controls)
    left_out = planned[len(controls) :]
    assert [case.name for case in left_out] == [mutant.name for mutant in TABLE if not mutant.unseen]

    def machine(case: cases.Case) -> tuple[object, ...]:
        words = [word for word in case.machine.parameters if not word.startswith("flat_page_tables_without=")]
        return replace(case.machine, parameters=()), *words

    for case in left_out:
        assert case.mutated
        assert f"flat_page_tables_without={case.name}" in case.machine.arguments()[-1].split()
        (control,) = (one for one in controls if machine(one) == machine(case))
        assert set(case.tests) <= set(control.tests)


MEET = mutants.Mutant("A", "promote(): a lock", ("meet",))
HANGS = replace(MEET, by=("hang",))
LIMIT_S = MEET.case().limit_s


def ended(
    mutant: mutants.Mutant = MEET,
    status: int | None = 0,
    *,
    seconds: float = 1,
    said: str = "",
    problem: str = "",
    control: bool = False,
) -> judging.Result:
    """A guest in which the test `meet` ended with this status, or not, and which said something.

    Args:
        mutant: The guard that was left out.
        status: None if the guest was lost.
        seconds: That the test took.
        said: A complaint.
        problem: What else is wrong.
        control: Whether no guard was left out.
    """
    case = next(case for case in mutants.planned([mutant]) if case.mutated != control)
    found = judging.Result(case, counters={judging.BLOCKS: 1})
    if status is not None:
        test = judging.FinishedTest.from_output("meet", status, seconds, ["wrong contents"])
        found.tests["meet"] = test
        found.verdicts["meet"] = judging.judge(test, None, case.limit_s)
    found.complaints = [said] if said else []
    found.problems = [*([problem] if problem else []), *judging.differences(found, found)]
    return found


def verdict(mutant: mutants.Mutant, result: judging.Result, control_s: float = 20) -> tuple[str, str, str]:
    """What noticed, in which test, as the table has it; and what is wrong, without the name.

    Args:
        mutant: The guard that was left out.
        result: How that went.
        control_s: Seconds that the test took with all guards.
    """
    results = [ended(mutant, seconds=control_s, control=True), result]
    row = mutants.table([mutant], results).splitlines()[-1].strip("| ").split(" | ")
    problems = mutants.missed([mutant], results)
    assert len(problems) == ("**" in row[4])
    return row[4], row[3], "".join(problems).removeprefix(f"{mutant.name}: ")


@pytest.mark.parametrize(
    ("found", "what", "test"),
    [
        (ended(status=1), "it ended with 1: wrong contents", "meet"),
        (ended(status=134), "it ended with 134: wrong contents", "meet"),
        (ended(status=135), "it ended with 135: wrong contents", "meet"),
        (ended(status=139), "it ended with 139: wrong contents", "meet"),
        (
            ended(said="[ 9.1] BUG: Bad page map in process mm  pte:800000000abcd (in meet)"),
            "BUG: Bad page map in process mm  pte:",
            "meet",
        ),
        (
            ended(status=None, said="[ 9.1] WARNING: CPU: 1 PID: 7 at mm/x.c:1 f+0x1/0x2"),
            "WARNING: at mm/x.c:1 f+0x1/0x2",
            "meet",
        ),
        (
            ended(said="flat-pt-check: missing flush: vCPU 1, CR3 0x10000001fe000"),
            "QEMU: a flush is missing",
            "–",
        ),
    ],
)
def test_what_counts_as_noticed(found: judging.Result, what: str, test: str) -> None:
    assert verdict(MEET, found) == (what, test, "")


@pytest.mark.parametrize(
    "found",
    [
        ended(),
        *(ended(status=status) for status in (2, 77, 125, 126, 127)),
        # Killed long before its time is over, for want of memory.
        ended(status=137),
        ended(status=None, problem="the guest ended before the command did"),
        ended(problem="the tests' script ended with 2: no such file"),
    ],
)
@pytest.mark.parametrize("mutant", [MEET, HANGS])
def test_what_a_test_or_a_host_without_something_does_is_no_notice(
    mutant: mutants.Mutant, found: judging.Result
) -> None:
    assert verdict(mutant, found) == ("**nothing**", "–", "nothing noticed that it was left out")


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (ended(status=124), "it did not end in time"),
        (ended(status=137, seconds=LIMIT_S + 10), "it did not end in time"),
        (
            ended(status=None, said="[ 99.1] INFO: task mm:77 blocked for more than 30 seconds. (in meet)"),
            "INFO: task mm:77 blocked for more than 30 seconds.",
        ),
        (
            ended(status=None, said="Kernel panic - not syncing: hung_task: blocked tasks (in meet)"),
            "Kernel panic - not syncing: hung_task: blocked tasks",
        ),
        (
            ended(status=None, said="rcu: INFO: rcu_sched detected stalls on CPUs/tasks: (in meet)"),
            "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
        ),
        (
            ended(status=None, said="watchdog: BUG: soft lockup - CPU#1 stuck for 26s! (in meet)"),
            "watchdog: BUG: soft lockup - CPU#1 stuck for 26s!",
        ),
    ],
)
def test_a_hang_counts_where_it_must_notice_and_the_test_is_quick(found: judging.Result, what: str) -> None:
    assert verdict(HANGS, found) == (what, "meet", "")
    missed = f"nothing of what must: {what}"
    assert verdict(HANGS, found, control_s=100) == (f"**{missed}**", "meet", missed)
    assert verdict(MEET, found) == (f"**{missed}**", "meet", missed)
    # Nor where the test did not run with all guards.
    assert mutants.missed([HANGS], [found]) == [f"A: {missed}"]


def test_where_only_a_hang_must_notice_another_failure_is_none() -> None:
    missed = "nothing of what must: it ended with 1: wrong contents"
    assert verdict(HANGS, ended(status=1)) == (f"**{missed}**", "meet", missed)


def test_the_first_notice_that_counts_is_shown() -> None:
    both = ended(status=1, said="[ 99.1] INFO: task mm:77 blocked for more than 30 seconds. (in meet)")
    assert verdict(MEET, both)[0] == "it ended with 1: wrong contents"


def test_only_these_guards_rely_on_a_hang() -> None:
    hang = {mutant.name: mutant.by for mutant in TABLE if "hang" in mutant.by}
    # What is left out there may be noticed before it hangs.
    assert hang == dict.fromkeys(("NO_HUGE_GUARD", "NO_MREMAP_GUARD"), mutants.KINDS)


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (ended(status=1), ["found  it ended with 1: wrong contents"]),
        (ended(status=124), ["hang   it did not end in time"]),
        (ended(status=77), ["       meet: it ended with 77: wrong contents"]),
        (
            ended(status=None, problem="the guest ended before the command did; its last lines:\n[ 1.0] x"),
            [
                "       the guest ended before the command did; its last lines:",
                "       meet did not end",
            ],
        ),
        (
            ended(status=None, said="flat-pt-check: missing flush: vCPU 1, CR3 0x10000001fe000"),
            ["found  QEMU: a flush is missing"],
        ),
    ],
)
def test_only_signs_are_said_to_be_found(found: judging.Result, lines: list[str]) -> None:
    assert mutants.said(found) == lines


def test_what_is_found_is_said_as_a_guest_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []

    def boot(_: judging.Result, output: running.GuestOutput, *__: object) -> None:
        output.write(b"@begin meet 0\nwrong\n@test meet 1 3\ncounter flat_table_alloc 5\n")

    monkeypatch.setattr(running, "_boot", boot)
    monkeypatch.setattr(build, "find", lambda *_: tmp_path)
    running.run(mutants.planned([MEET]), say=said.append)
    assert [line for line in said if "ended with 1" in line and "meet  " not in line] == [
        "  FAIL  meet: it ended with 1: wrong",
        "  found  it ended with 1: wrong",
    ]


def test_with_all_guards_nothing_may_complain() -> None:
    assert mutants.missed([MEET], [ended(control=True)]) == []
    complained = ended(said="WARNING: x", control=True)
    assert mutants.missed([MEET], [complained]) == ["all guards, l2l1: the kernel says: WARNING: x"]


def test_the_table_has_a_row_for_each_guard() -> None:
    some = [TABLE[0], next(mutant for mutant in TABLE if mutant.unseen), TABLE[1]]
    found = replace(ended(status=1), case=TABLE[0].case())
    rows = mutants.table(some, [found]).splitlines()[2:]
    assert [row.split(" | ")[2:] for row in rows] == [
        ["l2l1", "meet", "it ended with 1: wrong contents |"],
        ["–", "–", f"nothing: {some[1].unseen} |"],
        ["–", "–", "not booted |"],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[[mutant]]\nat = 'x'\n",
        "[[mutant]]\nname = 'A'\nat = ''\nodd = 1\n",
        "[[mutant]]\nname = 'A'\nat = ''\nby = ['test', 'nobody']\n",
        "[[mutant]]\nname = 'A'\nat = ''\nby = 'hang'\n",
        "[[mutant]]\nname = 'A'\nat = ''\nby = []\n",
        "mutant = ['x']\n",
        "mutant = 3\n",
        "x",
        "",
    ],
)
def test_a_table_that_is_wrong_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mutants.toml"
    with pytest.raises(FlatwalkError, match="cannot be read"):
        mutants.read(file)
    file.write_text(text)
    with pytest.raises(FlatwalkError, match="is wrong"):
        mutants.read(file)


def test_guards_are_chosen_by_name() -> None:
    assert mutants.chosen(TABLE, []) == TABLE
    assert mutants.chosen(TABLE, [TABLE[0].name]) == [TABLE[0]]
    unseen = next(mutant for mutant in TABLE if mutant.unseen)
    for name, said in (("NO_SUCH", "there is no guard"), (unseen.name, "no test can notice")):
        with pytest.raises(UsageError, match=said):
            mutants.chosen(TABLE, [name])


@pytest.mark.parametrize(
    ("given", "where"),
    [
        (["--tier", "full"], "--tier"),
        (["--modes", "l2l1"], "--modes"),
        (["--levels", "5"], "--levels"),
        (["--debug"], "--debug"),
        (["--tests", "fork"], "--tests"),
        (["--only", "NO_SUCH"], "--only"),
    ],
)
def test_the_machines_are_the_tables(call: Callable[..., Result], given: list[str], where: str) -> None:
    done = call("vm", "test", "--mutate", *given)
    assert done.code == 2
    assert where in done.err
