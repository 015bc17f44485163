"""`flatwalk vm test --mutate`: what is left out, on which machines, and what counts as noticed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.vm import components
from flatwalk.vm.testing import cases, judging, mutants

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Result

TABLE = mutants.read()
#: Guards of the model that are not in the series for Linux 6.12: khugepaged looks once there, and tables
#: that became empty are taken since 6.14 only. A lock of CPU hotplug that is taken too early is no guard that
#: is left out.
NOT_IN_SERIES = {"NO_RETRACT_RECHECK", "NO_RECLAIM_GUARD", "NO_CPUS_LOCK_LATE"}


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


def result(left_out: str, *, status: int | None = 0, said: str = "", problem: str = "") -> judging.Result:
    """A guest in which one test ended with this status, or not, and which said something."""
    case = cases.Case(left_out, TABLE[0].case().machine, ("meet",), left_out=left_out)
    found = judging.Result(case)
    if status is not None:
        found.tests["meet"] = judging.FinishedTest.from_output("meet", status, 1, ["wrong contents"])
        found.verdicts["meet"] = judging.judge(found.tests["meet"], None)
    found.complaints = [said] if said else []
    found.problems = [*([problem] if problem else []), *judging.differences(found, found)]
    return found


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (result("A"), ("", "")),
        (result("A", status=1), ("it ended with 1: wrong contents", "meet")),
        (result("A", status=124), ("it did not end in time", "meet")),
        (result("A", status=None, problem="the guest was lost"), ("the guest did not end", "meet")),
        (
            result("A", said="[ 9.1] BUG: Bad page map in process mm  pte:800000000abcd (in meet)"),
            ("BUG: Bad page map in process mm  pte:", "meet"),
        ),
        (
            result("A", status=None, said="[ 9.1] WARNING: CPU: 1 PID: 7 at mm/x.c:1 f+0x1/0x2"),
            ("WARNING: at mm/x.c:1 f+0x1/0x2", "meet"),
        ),
        (
            result("A", said="flat-pt-check: missing flush: vCPU 1, CR3 0x10000001fe000"),
            ("QEMU: a flush is missing", ""),
        ),
    ],
)
def test_what_counts_as_noticed(found: judging.Result, what: tuple[str, str]) -> None:
    assert mutants.noticed(found) == what
    assert mutants.missed([found]) == ([] if what[0] else ["A: nothing noticed that it was left out"])


def test_a_script_that_fails_has_noticed_nothing() -> None:
    found = result("A")
    found.problems.append("the tests' script ended with 2: no such file")
    assert mutants.missed([found])


def test_with_all_guards_nothing_may_complain() -> None:
    assert mutants.missed([result("none")]) == []
    assert mutants.missed([result("none", said="WARNING: x")]) == ["none: the kernel says: WARNING: x"]


def test_the_table_has_a_row_for_each_guard() -> None:
    some = [TABLE[0], next(mutant for mutant in TABLE if mutant.unseen), TABLE[1]]
    found = result(TABLE[0].name, status=1)
    rows = mutants.table(some, [found]).splitlines()[2:]
    assert [row.split(" | ")[2:] for row in rows] == [
        ["l2l1", "meet", "it ended with 1: wrong contents |"],
        ["–", "–", f"nothing: {some[1].unseen} |"],
        ["–", "–", "not booted |"],
    ]


@pytest.mark.parametrize(
    "text", ["[[mutant]]\nat = 'x'\n", "[[mutant]]\nname = 'A'\nat = ''\nodd = 1\n", "x", ""]
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
