"""Guards of the kernel series that are left out, one after the other, to see whether the tests notice."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.terminal import output
from flatwalk.vm import components
from flatwalk.vm.testing import cases
from flatwalk.vm.testing.cases import Case
from flatwalk.vm.testing.judging import FOUND, MISSING, during, mistake, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from flatwalk.vm.testing.judging import Result

#: All guards, and where each is noticed.
TABLE = components.MUTANTS_LINUX.directory / "mutants" / "mutants.toml"
#: The kernel ends at its first complaint, whichever it is, and so does the guest.
_STRICT = ("page_poison=1", "panic_on_warn=1", "panic_on_taint=0xffffffff", "hung_task_panic=1")
#: Shorter than what is made long so that QEMU sees it, and longer than all else that is.
_GRACE_MS = 100
#: Little, so that it is short soon.
_MEMORY = "768M"
#: Addresses and names that a complaint has by chance.
_CHANCE = re.compile(r"0x[0-9a-f]{5,}|\b[0-9a-f]{12,16}\b")
_LENGTH = 90
#: Who, or what, may notice that a guard is left out.
KERNEL, QEMU, TEST, HANG = KINDS = ("kernel", "QEMU", "test", "hang")
#: Exit status of a test that finds something wrong, or dies of SIGABRT, SIGBUS or SIGSEGV. With others it was
#: skipped, killed or not run, which says nothing of the guard.
_FOUND = (1, 134, 135, 139)
#: With what the kernel complains that something waits, or runs, for long.
_STANDSTILL = re.compile(
    r"INFO: task .* blocked|hung_task|rcu: INFO: .*stall|RCU Stall|soft ?lockup", re.IGNORECASE
)
#: The part of its limit that a test may take with all guards: if it takes more, a busy host alone may make it
#: overdue.
_QUICK = 1 / 4


@dataclass(frozen=True)
class Mutant:
    """A guard that can be left out."""

    #: What the kernel, and the model of the protocol, call it being left out.
    name: str
    #: Where it is in the series, and what.
    at: str
    #: The tests that must notice.
    tests: tuple[str, ...] = ()
    #: The machine on which they do.
    mode: str = "l2l1"
    isolated: bool = False
    #: Who may notice, of `KINDS`. A hang only where it is the usual sign, as a busy host looks like one.
    by: tuple[str, ...] = (KERNEL, QEMU, TEST)
    #: Why none can notice, if so.
    unseen: str = ""

    def __post_init__(self) -> None:
        """Checks what a table may say.

        Raises:
            ValueError: If `by` names somebody else, or nobody.
        """
        if not self.by or not set(self.by) <= set(KINDS):
            raise ValueError(f"{self.name}: `by` has some of {', '.join(KINDS)}, not {', '.join(self.by)}")

    def case(self, left_out: str = "") -> Case:
        """Its tests on its machine.

        Args:
            left_out: The guard that is left out; itself if empty, or `none`.
        """
        left_out = left_out or self.name
        machine = cases.usual_machine(4, kernel="mutants")
        if self.isolated:
            machine = cases.isolated_machine(machine)
        words = (*machine.parameters, *_STRICT, f"flat_page_tables_without={left_out}")
        machine = replace(machine, mode=self.mode, memory=_MEMORY, grace_ms=_GRACE_MS, parameters=words)
        return Case(self.name, machine, self.tests, left_out=left_out)


def read(path: Path = TABLE) -> list[Mutant]:
    """All mutants of a table.

    Raises:
        FlatwalkError: If there is no such table, or it is wrong.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
        return [
            Mutant(**(each | {key: tuple(value) for key, value in each.items() if isinstance(value, list)}))
            for each in found
        ]
    except OSError as error:
        raise FlatwalkError(
            f"the table of guards cannot be read: {error.strerror}",
            where=str(path),
            remedy="run this from a checkout of the repository",
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FlatwalkError(
            f"the table of guards is wrong: {error}", where=str(path), remedy="see its first lines"
        ) from error


def chosen(mutants: Sequence[Mutant], only: Sequence[str]) -> list[Mutant]:
    """Some of the mutants, by name; all if none are named.

    Raises:
        UsageError: If there is no such mutant, or it cannot be noticed.
    """
    known = {mutant.name: mutant for mutant in mutants}
    for name in only:
        if name not in known:
            raise UsageError(
                f"there is no guard {name}", where="--only", remedy=f"give one of {', '.join(known)}"
            )
        if known[name].unseen:
            raise UsageError(
                f"no test can notice {name}: {known[name].unseen}",
                where="--only",
                remedy="give another guard",
            )
    return [known[name] for name in only] or list(mutants)


def planned(mutants: Sequence[Mutant]) -> list[Case]:
    """What is booted: first each machine with all guards, where nobody may complain, then each mutant."""
    seen = [mutant for mutant in mutants if not mutant.unseen]
    tests: dict[Case, dict[str, None]] = {}
    for mutant in seen:
        control = replace(mutant.case("none"), name=_machine_name(mutant), tests=(), flattens=True)
        tests.setdefault(control, {}).update(dict.fromkeys(mutant.tests))
    controls = [replace(control, tests=tuple(names)) for control, names in tests.items()]
    return [*controls, *(mutant.case() for mutant in seen)]


def _machine_name(mutant: Mutant) -> str:
    """What a machine with all guards is called."""
    return f"all guards, {_mode(mutant)}"


def _mode(mutant: Mutant) -> str:
    """Its mode, and whether page tables are isolated."""
    return f"{mutant.mode}, isolated" if mutant.isolated else mutant.mode


@dataclass(frozen=True)
class Notice:
    """A sign that something is wrong."""

    #: Whose, of `KINDS`.
    by: str
    what: str
    #: In which test; empty if that is not known.
    test: str


def notices(result: Result) -> list[Notice]:
    """All signs that something is wrong: first complaints, then tests.

    A guest that was lost, of which nobody says anything, is none: the host may have lost it.
    """
    running = next((name for name in result.case.tests if name not in result.tests), "")
    found = [_of_complaint(complaint, running) for complaint in result.complaints]
    for name, test in result.tests.items():
        if test.overdue(result.case.limit_s):
            found.append(Notice(HANG, result.verdicts[name].reason, name))
        elif test.status in _FOUND:
            found.append(Notice(TEST, result.verdicts[name].reason, name))
    return found


def _of_complaint(complaint: str, running: str) -> Notice:
    """A complaint as a notice.

    Args:
        complaint: The kernel's, or QEMU's.
        running: The test that did not end, if there is one.
    """
    if MISSING in complaint:
        # Which vCPU and address is chance.
        return Notice(QEMU, "QEMU: a flush is missing", running)
    text = shortened(_CHANCE.sub("", mistake(complaint)).strip(), _LENGTH)
    return Notice(HANG if _STANDSTILL.search(complaint) else KERNEL, text, during(complaint) or running)


def noticed(mutant: Mutant, result: Result, control: Result | None) -> Notice | None:
    """The first notice that counts; None if nothing of what must has noticed.

    Args:
        mutant: The guard that was left out.
        result: How that went.
        control: How the same tests went with all guards; None if they did not run.
    """

    def counts(notice: Notice) -> bool:
        return notice.by in mutant.by and (notice.by != HANG or _is_quick(notice.test, control))

    return next(filter(counts, notices(result)), None)


def said(result: Result) -> list[str]:
    """What is said of a guest in which a guard was left out, as soon as it has ended: a line for each sign.

    What else is wrong, such as that the guest was lost, is said where there is no sign: it is none.
    """
    signs = dict.fromkeys(notices(result))
    if not signs:
        return [f"{'':5}  {problem.splitlines()[0]}" for problem in result.problems]
    # Whether a hang counts is known when all have ended.
    return [f"{HANG if sign.by == HANG else FOUND:<5}  {sign.what}" for sign in signs]


def _is_quick(test: str, control: Result | None) -> bool:
    """Whether a test takes so little of its time with all guards that no busy host makes it take all."""
    if control is None or test not in control.tests:
        return False
    return control.tests[test].seconds <= _QUICK * control.case.limit_s


@dataclass(frozen=True)
class _Finding:
    """What came of a guard that was left out."""

    #: What counts, or else the first notice that does not.
    notice: Notice | None
    counts: bool

    def missed(self, nothing: str) -> str:
        """What is said if nothing counts.

        Args:
            nothing: If there was no notice at all.
        """
        return f"nothing of what must: {self.notice.what}" if self.notice else nothing


def _findings(mutants: Sequence[Mutant], results: Sequence[Result]) -> dict[str, _Finding]:
    """What came of each guard that was left out, by its name."""
    by_name = {result.case.name: result for result in results}
    found = {}
    for mutant in mutants:
        if mutant.name in by_name:
            result = by_name[mutant.name]
            notice = noticed(mutant, result, by_name.get(_machine_name(mutant)))
            found[mutant.name] = _Finding(notice or next(iter(notices(result)), None), notice is not None)
    return found


def missed(mutants: Sequence[Mutant], results: Sequence[Result]) -> list[str]:
    """What is wrong: complaints although all guards are there, and guards that nobody misses."""
    problems = [
        f"{result.case.name}: {problem}"
        for result in results
        if not result.case.mutated
        for problem in result.problems
    ]
    for name, finding in _findings(mutants, results).items():
        if not finding.counts:
            problems.append(f"{name}: {finding.missed('nothing noticed that it was left out')}")
    return problems


def table(mutants: Sequence[Mutant], results: Sequence[Result]) -> str:
    """A row for each guard: where it is, what noticed that it was left out, in which mode and test."""
    findings = _findings(mutants, results)

    def line(mutant: Mutant) -> list[str]:
        start = [f"`{mutant.name}`", mutant.at]
        finding = findings.get(mutant.name)
        if finding is None:
            return [*start, "–", "–", f"nothing: {mutant.unseen}" if mutant.unseen else "not booted"]
        notice = finding.notice
        what = notice.what if notice and finding.counts else f"**{finding.missed('nothing')}**"
        return [*start, _mode(mutant), (notice.test if notice else "") or "–", what]

    return output.markdown(("left out", "where", "mode", "test", "noticed by"), 5, map(line, mutants))
