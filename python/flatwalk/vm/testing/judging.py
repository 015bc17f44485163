"""Judges tests and cases: each must end as with `off`, and the kernel must not complain."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flatwalk.vm.run import is_splat
from flatwalk.vm.testing.cases import FOREIGN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatwalk.vm.testing.cases import Case

#: Exit status of a test that is skipped, as the kernel lacks what it tests: of our programs, and of the
#: kernel's tests and stress-ng.
_SKIPPED, _SKIPPED_ELSEWHERE = 77, 4
#: Exit status of `timeout` if it ended the test, and of a test that was killed: by `timeout`, as it did not
#: end when it was asked to, or for want of memory.
_OVERDUE, _KILLED = 124, 137
#: Exit status of `timeout` if it fails itself; and of it and the shell if a program cannot be run, or there
#: is none of this name.
_NOT_RUN = (125, 126, 127)
#: How QEMU's checking mode begins to say that a flush is missing.
MISSING = "flat-pt-check: missing flush"
_COMPLAINTS_SHOWN = 5
_REASON_LENGTH = 100
#: The kernel's counters of blocks: allocated by processes, refused to them, allocated later by the
#: kernel's daemon, and given up for ordinary tables.
BLOCKS, REFUSED = "flat_table_alloc", "flat_table_alloc_failed"
LATER, DEMOTED = "flat_table_scan_alloc", "flat_table_demote"
#: How the kernel's log says which test starts.
_NOW = re.compile(r"flatwalk: test (\S+)")
#: The end of a complaint: in which test.
_DURING = re.compile(r" \(in (\S+)\)$")
#: What differs between two complaints of the same mistake.
_CHANCE = re.compile(rf"^\[[ \d.]+\] |CPU: \d+ PID: \d+ |{_DURING.pattern}")
#: A part of a test that failed, as the kernel's tests and stress-ng say it.
_NOT_OK = re.compile(r"not ok \d+ (?:- )?(.*)|stress-ng: fail:  \[\d+\] (.*)")
_INFORMATIVE = re.compile(
    r"not ok|\bSKIP|\bFAIL|[Ff]ailed|[Ee]rror|skipp|wrong|Bail out|No such|not supported"
)
PASS, SKIP, XFAIL, FAIL = "pass", "skip", "xfail", "FAIL"
#: What is said of a problem that there must be.
FOUND = "found"


def shortened(text: str, length: int) -> str:
    """The text, or its beginning if it is longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


@dataclass(frozen=True)
class FinishedTest:
    """How a test ended."""

    name: str
    status: int
    seconds: float = 0
    #: What it says about its end.
    reason: str = ""
    #: The parts of it that failed, for tests that report them.
    failures: tuple[str, ...] = ()

    @classmethod
    def from_output(cls, name: str, status: int, seconds: float, said: Sequence[str]) -> FinishedTest:
        """A test that wrote these lines. Its last informative line is the reason, or else its last."""
        lines = [line.strip() for line in said if line.strip()]
        informative = [line for line in lines if _INFORMATIVE.search(line)]
        last = (informative or lines or ["it wrote nothing"])[-1]
        reason = shortened(last, _REASON_LENGTH)
        failures = tuple(found[1] or found[2] for line in said if (found := _NOT_OK.match(line)))
        return cls(name, status, seconds, reason, failures)

    def overdue(self, limit_s: float) -> bool:
        """Whether it ended because its time was over."""
        return self.status == _OVERDUE or (self.status == _KILLED and self.seconds >= limit_s)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a test: `PASS`, `SKIP`, `XFAIL` (as with `off`) or `FAIL`, and why."""

    word: str
    reason: str = ""


def judge(test: FinishedTest, off: FinishedTest | None, limit_s: float) -> Verdict:
    """The verdict on how a test ended.

    Args:
        test: The test.
        off: The same test with a kernel that flattens nothing; itself if this is that kernel, None if
            it did not end there.
        limit_s: Seconds that it may take.
    """
    if why := _without_end(test, limit_s):
        return Verdict(FAIL, why)
    if test.name in FOREIGN:
        return _judge_foreign(test, off)
    if test.status == 0:
        return Verdict(PASS)
    if test.status == _SKIPPED and off is not None and off.status == _SKIPPED:
        return Verdict(SKIP, test.reason)
    return Verdict(FAIL, f"it ended with {test.status}: {test.reason}")


def _without_end(test: FinishedTest, limit_s: float) -> str:
    """Why a test did not come to an end of its own; empty if it did."""
    if test.overdue(limit_s):
        return "it did not end in time"
    if test.status == _KILLED:
        return f"it was killed: {test.reason}"
    return f"it could not be run: {test.reason}" if test.status in _NOT_RUN else ""


def _judge_foreign(test: FinishedTest, off: FinishedTest | None) -> Verdict:
    if off is None:
        return Verdict(FAIL, "there is nothing to compare it with: it did not end with `off`")
    if test.status != off.status:
        return Verdict(FAIL, f"it ended with {test.status} instead of {off.status}: {test.reason}")
    if test.failures != off.failures:
        other = set(test.failures) ^ set(off.failures)
        return Verdict(FAIL, f"other parts of it failed: {', '.join(sorted(other)) or 'more or fewer'}")
    if test.status == 0:
        return Verdict(PASS)
    word = SKIP if test.status == _SKIPPED_ELSEWHERE else XFAIL
    return Verdict(word, f"{test.status}: {test.reason}")


@dataclass
class Result:
    """How a case went."""

    case: Case
    #: The tests that came to an end, in order.
    tests: dict[str, FinishedTest] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    #: The kernel's counters of flattened tables.
    counters: dict[str, int] = field(default_factory=dict)
    #: What the kernel, or QEMU, complained about, and in which test.
    complaints: list[str] = field(default_factory=list)
    #: What is wrong, one sentence each.
    problems: list[str] = field(default_factory=list)
    seconds: float = 0

    def count(self, word: str) -> int:
        """The tests with a verdict."""
        return sum(verdict.word == word for verdict in self.verdicts.values())


def differences(result: Result, off: Result) -> list[str]:
    """What did not go as expected, one sentence each.

    Args:
        result: The case; its complaints are known.
        off: The case that it is compared with; itself if it is that one.
    """
    problems = [f"{name} did not end" for name in result.case.tests if name not in result.tests]
    for name, verdict in result.verdicts.items():
        if verdict.word == FAIL:
            problems.append(f"{name}: {verdict.reason}")
    if result.case.flattens and not result.counters.get(BLOCKS):
        problems.append("nothing was flattened")
    if result.case.ordinary and any(result.counters.get(made) for made in (BLOCKS, LATER)):
        problems.append("something was flattened")
    missing = [line for line in result.complaints if MISSING in line]
    if result.case.unflushed and not missing:
        problems.append("no missing flush was found")
    wanted = missing if result.case.unflushed else []
    # Mistakes of the kernel that are unrelated to flat tables.
    known = set(map(mistake, filter(_is_foreign, off.complaints)))
    unexpected = [
        line
        for line in result.complaints
        if line not in wanted and not (_is_foreign(line) and mistake(line) in known)
    ]
    problems += [f"the kernel says: {line}" for line in unexpected[:_COMPLAINTS_SHOWN]]
    if len(unexpected) > _COMPLAINTS_SHOWN:
        problems.append(f"the kernel says: … and {len(unexpected) - _COMPLAINTS_SHOWN} more")
    return problems


def complaints(log: str, messages: str) -> list[str]:
    """Lines with which the kernel, or QEMU, reports a mistake of the kernel, and in which test."""
    found = []
    test = ""
    for line in log.splitlines():
        if now := _NOW.search(line):
            test = f" (in {now[1]})"
        elif is_splat(line):
            found.append(line + test)
    return found + [line for line in messages.splitlines() if is_splat(line)]


def _is_foreign(complaint: str) -> bool:
    """True if a test of the kernel's or stress-ng's caused it."""
    return during(complaint) in FOREIGN


def during(complaint: str) -> str:
    """The test that ran when the kernel complained; empty if that is not known."""
    found = _DURING.search(complaint)
    return found[1] if found else ""


def mistake(complaint: str) -> str:
    """A complaint without what varies by chance: the test, the time, the CPU and the process."""
    return _CHANCE.sub("", complaint)
