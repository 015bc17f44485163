"""Guests for hours: in each another machine, other failures, and the tests in another order."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from flatwalk.vm.machine import MODES
from flatwalk.vm.testing import cases
from flatwalk.vm.testing.cases import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Tests of one guest, of all those of ours.
_TESTS = (6, 12)
#: Per cent of guests whose page tables are isolated, that have five levels, and whose CPU has no flat tables.
_ISOLATED, _FIVE_LEVELS, _NO_FEATURE = 25, 30, 5
#: Of those left, one after the other: with the usual threshold instead of 1, and with blocks that fail.
_USUAL_THRESHOLD, _FAILING = 20, 50


def guests(seed: int, kernel: str = "usual") -> Iterator[Case]:
    """The guests of a seed, without end. The first is in mode `off`, and has every test to compare with.

    Args:
        seed: Another has other guests.
        kernel: Which one, of `components.KERNELS`.
    """
    yield Case("off", cases.usual_machine(4, kernel=kernel), cases.OURS)
    yield from (guest(seed, number, kernel) for number in itertools.count(1))


def guest(seed: int, number: int, kernel: str = "usual") -> Case:
    """One guest of a seed, which depends on nothing else."""
    drawn = random.Random(f"{seed} {number}")  # noqa: S311  # no secret

    def falls(per_cent: int) -> bool:
        return drawn.randrange(100) < per_cent

    tests = drawn.sample(cases.OURS, drawn.randint(*_TESTS))
    levels = 5 if falls(_FIVE_LEVELS) else 4
    machine = replace(
        cases.usual_machine(levels, kernel=kernel), mode=drawn.choice(MODES[1:]), cpus=drawn.randint(1, 4)
    )
    words = [machine.mode, f"{levels} levels", f"{machine.cpus} CPU{'s' if machine.cpus > 1 else ''}"]
    if falls(_ISOLATED):
        machine = cases.isolated_machine(machine)
        words.append("isolated")
    case = Case("", machine, tuple(tests), flattens=True)
    if falls(_NO_FEATURE):
        case = replace(case, machine=replace(machine, feature=False, check=False), flattens=False)
        words.append("no feature")
    elif falls(_USUAL_THRESHOLD):
        # Whether a test is large enough depends on which were drawn.
        case = replace(case, threshold=64, flattens=False)
        words.append("usual threshold")
    elif falls(_FAILING):
        case = replace(case, failing=drawn.randrange(10, 91))
        words.append(f"{case.failing} % of the blocks fail")
    return replace(case, name=f"{seed}-{number}: {', '.join(words)}")
