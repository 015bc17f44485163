"""`flatwalk vm test --soak`: guests that are drawn, and for how long."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from flatwalk.vm import build
from flatwalk.vm.machine import MODES
from flatwalk.vm.testing import cases, running, soak

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flatwalk.vm.testing.judging import Result
    from tests.conftest import Result as Ended


def drawn(seed: int, count: int) -> list[cases.Case]:
    """The first guests of a seed."""
    return list(itertools.islice(soak.guests(seed), count))


def test_a_seeds_guests_are_always_the_same() -> None:
    assert drawn(7, 20) == drawn(7, 30)[:20]
    assert soak.guest(7, 12) == drawn(7, 20)[12]
    assert {case.name.partition(": ")[2] for case in drawn(7, 9)[1:]} != {
        case.name.partition(": ")[2] for case in drawn(8, 9)[1:]
    }


def test_everything_is_drawn_some_time_and_compared_with_off() -> None:
    off, *others = drawn(1, 400)
    assert (off.name, off.machine.mode, off.tests) == ("off", "off", cases.OURS)
    assert {case.machine.mode for case in others} == set(MODES[1:])
    assert {(case.machine.levels, case.machine.cpus) for case in others} == {
        (levels, cpus) for levels in (4, 5) for cpus in (1, 2, 3, 4)
    }
    assert {case.machine.feature for case in others} == {True, False}
    assert {case.threshold for case in others} == {1, 64}
    assert len({case.failing for case in others}) > 40
    isolated = [case for case in others if "pti=on" in case.machine.parameters]
    assert 60 < len(isolated) < 140
    assert {name for case in others for name in case.tests} == set(cases.OURS)
    for case in others:
        assert len(set(case.tests)) == len(case.tests)
        # A test that needs every block, or large ranges, has them.
        assert case.threshold == 1 or not case.failing
        assert case.flattens == (case.machine.feature and case.threshold == 1)
        assert ("isolated" in case.name) == (case in isolated)


def titles(said: list[str]) -> list[str]:
    """How far it was, from the lines that begin a guest."""
    return [line.rpartition("(")[2] for line in said if " minutes)" in line]


def test_calls_add_up_to_the_hours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = itertools.count(0, 300)  # Each guest takes 300 s.
    monkeypatch.setattr(build, "find", lambda *_: tmp_path)
    monkeypatch.setattr(running, "_check_stress_ng", lambda: None)
    monkeypatch.setattr(running, "_boot", lambda *_: None)
    monkeypatch.setattr("flatwalk.vm.testing.running.time.monotonic", lambda: next(clock))
    said: list[str] = []
    kept: list[Result] = []

    def call(minutes: float) -> list[Result]:
        def keep(results: object) -> None:
            kept[:] = results  # type: ignore[call-overload]

        return running.run(soak.guests(1), minutes=minutes, say=said.append, before=kept[:], keep=keep)

    assert [result.case for result in call(12)] == drawn(1, 3)
    assert titles(said) == ["0 of 12 minutes)", "5 of 12 minutes)", "10 of 12 minutes)"]
    said.clear()
    assert [result.case for result in call(22)] == drawn(1, 5)
    assert titles(said)[3:] == ["15 of 22 minutes)", "20 of 22 minutes)"]
    assert [title.partition(" minutes)")[2] for title in titles(said)[:3]] == [": already complete"] * 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seed", "3"], "give --soak HOURS, too"),
        (["--soak", "1", "--tier", "full"], "--soak draws the guests"),
        (["--soak", "1", "--only", "l2l1"], "--soak draws the guests"),
        (["--soak", "1", "--mutate"], "the table of guards"),
        (["--debug", "--kcsan"], "different kernels"),
    ],
)
def test_refusals(call: Callable[..., Ended], arguments: list[str], words: str) -> None:
    ended = call("vm", "test", *arguments)
    assert (ended.code, words in ended.err) == (2, True), ended.err
