"""Tests Linux with flattened page tables: in every mode the same results as without, and no complaint."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flatwalk import output
from flatwalk.vm import run as guest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: What a test program says where the kernel lacks what it is about.
_SKIPPED = 77
_SHORT = ("populate", "fork", "exec", "mremap", "thp", "switch")
_FULL = (*_SHORT, "mmap", "hugetlb", "ksm", "userfaultfd", "gup", "swap", "pressure", "stress")
#: The kernel's counters that say whether anything was flattened at all.
_BLOCKS = "flat_table_alloc"


@dataclass(frozen=True)
class Case:
    """One boot of a guest and what runs in it."""

    name: str
    machine: guest.Machine
    tests: tuple[str, ...]
    #: Per cent of allocations of 2 MiB blocks that fail.
    failing: int = 0
    #: Level-2 entries that a range needs to be flattened.
    threshold: int = 1
    #: Whether flattened tables must have come about.
    flattens: bool = False


@dataclass
class Result:
    """How a case went."""

    case: Case
    #: Each test's exit status.
    statuses: dict[str, int] = field(default_factory=dict)
    #: The kernel's counters of flattened tables.
    counters: dict[str, int] = field(default_factory=dict)
    #: What is wrong, one sentence each.
    problems: list[str] = field(default_factory=list)


def cases(tier: str) -> list[Case]:
    """The boots of a tier: `short` or `full`."""
    full = tier == "full"
    tests = _FULL if full else _SHORT
    memory = "1536M"

    def machine(mode: str, *, levels: int = 4, feature: bool = True, parameters: str = "") -> guest.Machine:
        return guest.Machine(
            mode=mode,
            levels=levels,
            cpus=4,
            memory=memory,
            feature=feature,
            check=feature,
            parameters=tuple(parameters.split()),
        )

    found = [Case("off", machine("off"), tests)]
    for mode in guest.MODES[1:]:
        found.append(Case(mode, machine(mode), tests, flattens=True))
        found.append(
            Case(f"{mode}, half of the blocks fail", machine(mode), tests, failing=50, flattens=True)
        )
        if full:
            found.append(Case(f"{mode}, isolated", machine(mode, parameters="pti=on"), tests, flattens=True))
            found.append(Case(f"{mode}, 5 levels", machine(mode, levels=5), tests, flattens=True))
            found.append(Case(f"{mode}, no feature", machine(mode, feature=False), tests))
            found.append(Case(f"{mode}, usual threshold", machine(mode), tests, threshold=64))
    return found


def run_tier(tier: str, *, source: Path | None = None) -> list[Result]:
    """Boots each case and compares its results with those of `off`, which comes first.

    Raises:
        FlatwalkError: If QEMU or Linux is not built, or a guest does not come to its end.
    """
    results: list[Result] = []
    for case in cases(tier):
        result = _run(case, source)
        result.problems += differences(result, _expected(results[0] if results else result))
        results.append(result)
        output.note(f"{case.name}: {'; '.join(result.problems) or 'ok'}")
    return results


def _expected(off: Result) -> dict[str, int]:
    """How each test must end: well, unless a kernel that flattens nothing lacks what it is about."""
    return {name: _SKIPPED if off.statuses.get(name) == _SKIPPED else 0 for name in off.case.tests}


def differences(result: Result, expected: Mapping[str, int]) -> list[str]:
    """What went otherwise than expected, one sentence each."""
    problems = []
    for name in result.case.tests:
        status = result.statuses.get(name)
        if status is None:
            problems.append(f"{name} did not run")
        elif status != expected[name]:
            problems.append(f"{name} ended with {status} instead of {expected[name]}")
    if result.case.flattens and not result.counters.get(_BLOCKS):
        problems.append("nothing was flattened")
    return problems


def _run(case: Case, source: Path | None) -> Result:
    program = guest.guest_program(guest.GUEST / "tests" / "mm.c")
    script = guest.GUEST / "tests" / "run.sh"
    said = io.BytesIO()
    complaints = io.BytesIO()
    with guest.disk(512 << 20) as disk:
        outcome = guest.run(
            case.machine,
            [str(script), str(case.threshold), str(case.failing), str(program), *case.tests],
            stdout=said,
            stderr=complaints,
            source=source,
            options=guest.drive(disk),
        )
    result = Result(case)
    for line in said.getvalue().decode(errors="replace").splitlines():
        match line.split():
            case ["test", name, status]:
                result.statuses[name] = int(status)
            case ["counter", name, value]:
                result.counters[name] = int(value)
    result.problems += [f"the kernel says: {line}" for line in outcome.splats()[:5]]
    if outcome.status:
        said_last = complaints.getvalue().decode(errors="replace").strip()
        result.problems.append(f"the tests' script ended with {outcome.status}: {said_last}")
    return result
