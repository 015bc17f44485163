"""Tests Linux with flattened page tables: in every mode the same results as without, and no complaint."""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import re
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flatwalk import cache, output
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.vm import build
from flatwalk.vm import run as guest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from _typeshed import ReadableBuffer

TIERS = ("short", "full")
#: What a test program of ours says where the kernel lacks what it is about, and what the kernel's tests and
#: stress-ng say then.
_SKIPPED, _SKIPPED_ELSEWHERE = 77, 4
#: How `timeout` ends: with the first if it ended the test, with the second if it had to kill it.
_OVERDUE = (124, 137)
#: Seconds that a test may take; a kernel with all of its checks is many times slower.
_LIMIT_S, _DEBUG_LIMIT_S = 300, 3600
#: How long it may take such a kernel to change many pages, which it flushes together.
_DEBUG_GRACE_MS = 10_000

_SHORT = ("populate", "fork", "exec", "mremap", "thp", "switch", "later")
_FULL = (
    *_SHORT,
    *(
        "mmap",
        "again",
        "collapse",
        "hugetlb",
        "ksm",
        "userfaultfd",
        "gup",
        "proc",
        "ldt",
        "swap",
        "oom",
        "pressure",
        "stress",
    ),
)
#: The kernel's own tests of its memory management: their names, and how to call them.
SELFTESTS = {
    "map_fixed_noreplace": "map_fixed_noreplace",
    "map_populate": "map_populate",
    "map_hugetlb": "map_hugetlb",
    "hugepage-mmap": "hugepage-mmap",
    "hugepage-shm": "hugepage-shm",
    "hugepage-mremap": "hugepage-mremap huge/mremap",
    "hugetlb-madvise": "hugetlb-madvise huge/madvise",
    "gup-fast": "gup_test -u",
    "pin-fast": "gup_test -a",
    "pin-dump": "gup_test -ct -F 0x1 0 19 0x1000",
    "userfaultfd-anon": "userfaultfd anon 20 4",
    "userfaultfd-hugetlb": "userfaultfd hugetlb 32 4",
    "userfaultfd-hugetlb-shared": "userfaultfd hugetlb_shared 32 4 huge/uffd",
    "userfaultfd-shmem": "userfaultfd shmem 20 4",
    "compaction": "compaction_test",
    "madv_populate": "madv_populate",
    "mlock2": "mlock2-tests",
    "on-fault-limit": "setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock on-fault-limit",
    "mrelease": "mrelease_test",
    "mremap-move": "mremap_test",
    "mremap-dontunmap": "mremap_dontunmap",
    "thuge-gen": "thuge-gen",
    "khugepaged": "khugepaged",
    "split-huge-page": "split_huge_page_test",
    "soft-dirty": "soft-dirty",
    "virtual-address-range": "virtual_address_range",
    "va-128TB-switch": "va_128TBswitch",
    "protection-keys": "protection_keys_64",
}
#: Stressors of stress-ng, each for some seconds and with verification.
STRESSORS = (
    *("bigheap", "brk", "fault", "fork", "madvise", "malloc", "memfd", "mincore", "mlock"),
    *("mmap", "mmapaddr", "mmapfixed", "mmapfork", "mmaphuge", "mmapmany", "mprotect", "mremap", "msync"),
    *("munmap", "pagemove", "pageswap", "remap", "shm", "shm-sysv", "stack", "stackmmap", "tlb-shootdown"),
    *("userfaultfd", "vforkmany", "vm", "vm-addr", "vm-rw", "vm-segv", "vm-splice"),
)
#: What is not ours: it need not end well in any guest, but must end as it does with `off`.
_FOREIGN = {name: f"{name}:{call}" for name, call in SELFTESTS.items()} | {
    name: name for name in (f"stressor-{stressor}" for stressor in STRESSORS)
}
#: What flushes can be left out, by bits of flat_page_tables_skip_flush, and the test that needs them.
_FLUSHES = (
    ("when flattening", "flush"),
    ("when unflattening", "flush"),
    ("a flat root", "flush-root"),
    ("changed pages", "flush-pages"),
)
#: In what mode, and with how many levels of page tables, a test does; first the one of a short run.
_FLUSHED = {
    "flush": (("l2l1", 4), ("l3l2", 4), ("l4l3", 5), ("compendia", 4)),
    "flush-root": (("l4l3", 4),),
    "flush-pages": (("l2l1", 4),),
}
#: How QEMU's checking mode begins to say that a flush is missing.
_MISSING = "flat-pt-check: missing flush"
_COMPLAINTS_SHOWN = 5
_REASON_LENGTH = 100
#: The kernel's counters of blocks: made by processes, not to be had by them, made later by the kernel's
#: daemon, and given up for ordinary tables.
_BLOCKS, _REFUSED = "flat_table_alloc", "flat_table_alloc_failed"
_LATER, _DEMOTED = "flat_table_scan_alloc", "flat_table_demote"

#: What the kernel's log says of which test comes now.
_NOW = re.compile(r"flatwalk: test (\S+)")
#: The end of a complaint: in which test.
_DURING = re.compile(r" \(in (\S+)\)$")
#: What differs between two complaints of the same mistake.
_CHANCE = re.compile(rf"^\[[ \d.]+\] |CPU: \d+ PID: \d+ |{_DURING.pattern}")
#: A part of a test that failed, as the kernel's tests and stress-ng say it.
_NOT_OK = re.compile(r"not ok \d+ (?:- )?(.*)|stress-ng: fail:  \[\d+\] (.*)")
_TELLING = re.compile(r"not ok|\bSKIP|\bFAIL|[Ff]ailed|[Ee]rror|skipp|wrong|Bail out|No such|not supported")

PASS, SKIP, XFAIL, FAIL = "pass", "skip", "xfail", "FAIL"


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
    #: Flushes that Linux leaves out, as bits of its flat_page_tables_skip_flush; QEMU must find them.
    unflushed: int = 0


@dataclass(frozen=True)
class Ended:
    """How a test ended."""

    name: str
    status: int
    seconds: float = 0
    #: What it says of its end.
    reason: str = ""
    #: The parts of it that failed, for tests that say so.
    failures: tuple[str, ...] = ()

    @classmethod
    def saying(cls, name: str, status: int, seconds: float, said: Sequence[str]) -> Ended:
        """A test that said these lines. Its last telling line is the reason, or else its last."""
        lines = [line.strip() for line in said if line.strip()]
        telling = [line for line in lines if _TELLING.search(line)]
        last = (telling or lines or ["it said nothing"])[-1]
        reason = last if len(last) <= _REASON_LENGTH else f"{last[: _REASON_LENGTH - 1]}…"
        failures = tuple(found[1] or found[2] for line in said if (found := _NOT_OK.match(line)))
        return cls(name, status, seconds, reason, failures)


@dataclass(frozen=True)
class Verdict:
    """What to think of it: `PASS`, `SKIP`, `XFAIL` (as with `off`) or `FAIL`, and why."""

    word: str
    reason: str = ""


def judge(test: Ended, off: Ended | None) -> Verdict:
    """What to think of a test's end.

    Args:
        test: The test.
        off: The same test with a kernel that flattens nothing; itself if this is that kernel, nothing if
            it did not end there.
    """
    if test.status in _OVERDUE:
        return Verdict(FAIL, "it did not come to its end in time")
    if test.name in _FOREIGN:
        return _judge_foreign(test, off)
    if test.status == 0:
        return Verdict(PASS)
    if test.status == _SKIPPED and off is not None and off.status == _SKIPPED:
        return Verdict(SKIP, test.reason)
    return Verdict(FAIL, f"it ended with {test.status}: {test.reason}")


def _judge_foreign(test: Ended, off: Ended | None) -> Verdict:
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
    tests: dict[str, Ended] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    #: The kernel's counters of flattened tables.
    counters: dict[str, int] = field(default_factory=dict)
    #: What the kernel, or QEMU, complained of, and in which test.
    complaints: list[str] = field(default_factory=list)
    #: What is wrong, one sentence each.
    problems: list[str] = field(default_factory=list)
    seconds: float = 0

    def count(self, word: str) -> int:
        """The tests with a verdict."""
        return sum(verdict.word == word for verdict in self.verdicts.values())


def cases(
    tier: str, modes: Sequence[str] = guest.MODES, *, debug: bool = False, levels: int = 4
) -> list[Case]:
    """The boots of a tier, `short` or `full`, in some modes; `off` is always among them, and first.

    Args:
        tier: One of `TIERS`.
        modes: Those to test.
        debug: Whether the kernel is the one with all of its checks.
        levels: Of page tables.

    Raises:
        UsageError: If there is no such tier.
    """
    if tier not in TIERS:
        raise UsageError(f"there is no tier {tier}", where="--tier", remedy=f"choose {' or '.join(TIERS)}")
    full = tier == "full"
    tests = _FULL if full else _SHORT

    def machine(
        mode: str, *, levels: int = levels, feature: bool = True, parameters: tuple[str, ...] = ()
    ) -> guest.Machine:
        return guest.Machine(
            mode=mode,
            levels=levels,
            cpus=4,
            memory="3G" if debug else "1536M",
            feature=feature,
            check=feature,
            grace_ms=_DEBUG_GRACE_MS if debug else guest.GRACE_MS,
            # A freed table that is still walked must not look like one.
            parameters=(*parameters, *(["page_poison=1"] if debug else [])),
            debug=debug,
        )

    everything = (*tests, *_FOREIGN) if full else tests
    found = [Case("off", machine("off"), everything)]
    for mode in (mode for mode in guest.MODES[1:] if mode in modes):
        found.append(Case(mode, machine(mode), everything, flattens=True))
        found.append(
            Case(f"{mode}, half of the blocks fail", machine(mode), tests, failing=50, flattens=True)
        )
        if full:
            isolated = machine(mode, parameters=("pti=on",))
            found.append(Case(f"{mode}, isolated", isolated, tests, flattens=True))
            if levels == 4:
                found.append(Case(f"{mode}, 5 levels", machine(mode, levels=5), tests, flattens=True))
            found.append(Case(f"{mode}, no feature", machine(mode, feature=False), tests))
            found.append(Case(f"{mode}, usual threshold", machine(mode), tests, threshold=64))
        for test, machines in _FLUSHED.items():
            for _, pages in (pair for pair in (machines if full else machines[:1]) if pair[0] == mode):
                found += _flushing(mode, machine(mode, levels=pages), test)
                if full:
                    isolated = machine(mode, levels=pages, parameters=("pti=on",))
                    found += _flushing(f"{mode}, isolated", isolated, test)
    return found


def _flushing(name: str, machine: guest.Machine, test: str) -> list[Case]:
    """A test that needs flushes: with all of them, and with each of them left out."""
    whole = Case(f"{name}, {test}", machine, (test,), 0, 64, flattens=True)
    # What switches address spaces meanwhile may make up for the flush: leave it little time.
    hasty = replace(machine, grace_ms=50)
    left_out = [
        replace(whole, name=f"{name}, not flushing {what}", machine=hasty, unflushed=1 << bit)
        for bit, (what, needing) in enumerate(_FLUSHES)
        if needing == test
    ]
    return [whole, *left_out]


def chosen(found: Sequence[Case], only: Sequence[str], tests: Sequence[str]) -> list[Case]:
    """Some of the cases and tests; `off` stays, since the others are compared with it.

    Args:
        found: All cases.
        only: For each, the case of this name, or else those whose names contain it; all if none are given.
        tests: The tests; all if none are named.

    Raises:
        UsageError: If there are none.
    """
    known = {name for case in found for name in case.tests}
    for name in tests:
        if name not in known:
            raise UsageError(
                f"this tier has no test {name}",
                where="--tests",
                remedy=f"choose some of {', '.join(sorted(known))}, separated by commas",
            )
    names = [case.name for case in found]
    wanted = set(names[:1] if only else names)
    for text in only:
        named = [text] if text in names else [name for name in names if text in name]
        if not named:
            raise UsageError(
                f"this tier has no case {text!r}",
                where="--only",
                remedy=f"give a part of one of: {'; '.join(names)}",
            )
        wanted.update(named)
    some = [case for case in found if case.name in wanted]
    if tests:
        some = [replace(case, tests=tuple(name for name in case.tests if name in tests)) for case in some]
    return [case for case in some if case.tests]


def run_cases(
    planned: Sequence[Case],
    *,
    logs: Path | None = None,
    source: Path | None = None,
    say: Callable[[str], None] = print,
    before: Sequence[Result] = (),
    keep: Callable[[Sequence[Result]], None] = lambda _: None,
) -> list[Result]:
    """Boots each case and compares its results with those of the first, which is `off`.

    Args:
        planned: What to boot.
        logs: Where what each guest said is kept.
        source: The user's own trees, as built by `vm build --source`.
        say: Takes a line for each test as it ends.
        before: What is known, of cases that need not be booted again.
        keep: Takes all results, of other cases too, whenever a case has ended.

    Raises:
        FlatwalkError: If QEMU, Linux or its selftests are not built, or no log can be written.
    """
    build.find(build.QEMU, source)
    for debug in {case.machine.debug for case in planned}:
        build.find(build.DEBUG_LINUX if debug else build.LINUX, source)
    selftests = None
    if any(name in SELFTESTS for case in planned for name in case.tests):
        selftests = build.find(build.SELFTESTS, source)
    results: list[Result] = []
    for number, case in enumerate(planned, 1):
        if known := next((result for result in before if result.case == case), None):
            say(f"{case.name} ({number} of {len(planned)}): ended before")
            results.append(known)
            continue
        result = Result(case)
        off = results[0] if results else result
        say(f"{case.name} ({number} of {len(planned)})")
        start = time.monotonic()
        told = Told(result, off, say)
        try:
            _run(result, told, logs, source, selftests)
        except guest.GuestLostError as error:
            result.complaints += complaints(error.log, "")
            result.problems.append(str(error))
        result.seconds = round(time.monotonic() - start, 1)
        result.problems += differences(result, off)
        results.append(result)
        for problem in result.problems:
            say(f"  {FAIL}  {problem}")
        ended = [one.case for one in results]
        keep([*results, *(one for one in before if one.case not in ended)])
    return results


def differences(result: Result, off: Result) -> list[str]:
    """What went otherwise than expected, one sentence each.

    Args:
        result: The case; its complaints are known.
        off: The case that it is compared with; itself if it is that one.
    """
    problems = [f"{name} did not end" for name in result.case.tests if name not in result.tests]
    for name, verdict in result.verdicts.items():
        if verdict.word == FAIL:
            problems.append(f"{name}: {verdict.reason}")
    if result.case.flattens and not result.counters.get(_BLOCKS):
        problems.append("nothing was flattened")
    missing = [line for line in result.complaints if _MISSING in line]
    if result.case.unflushed and not missing:
        problems.append("no missing flush was found")
    wanted = missing if result.case.unflushed else []
    # Mistakes of the kernel that have nothing to do with flat tables.
    known = set(map(_mistake, filter(_is_foreign, off.complaints)))
    unexpected = [
        line
        for line in result.complaints
        if line not in wanted and not (_is_foreign(line) and _mistake(line) in known)
    ]
    problems += [f"the kernel says: {line}" for line in unexpected[:_COMPLAINTS_SHOWN]]
    if len(unexpected) > _COMPLAINTS_SHOWN:
        problems.append(f"the kernel says {len(unexpected) - _COMPLAINTS_SHOWN} things more")
    return problems


def complaints(log: str, messages: str) -> list[str]:
    """Lines with which the kernel, or QEMU, reports a mistake of the kernel, and in which test."""
    found = []
    test = ""
    for line in log.splitlines():
        if now := _NOW.search(line):
            test = f" (in {now[1]})"
        elif guest.SPLAT.search(line):
            found.append(line + test)
    return found + [line for line in messages.splitlines() if guest.SPLAT.search(line)]


def _is_foreign(complaint: str) -> bool:
    """True if it was a test of the kernel's or stress-ng's that brought it about."""
    found = _DURING.search(complaint)
    return found is not None and found[1] in _FOREIGN


def _mistake(complaint: str) -> str:
    """A complaint without what chance decides: in which test, when, on which CPU and by which process."""
    return _CHANCE.sub("", complaint)


class Told(io.BytesIO):
    """What a guest's script says, taken apart as it comes.

    Args:
        result: Where the tests go as they end.
        off: What they are compared with.
        say: Takes a line for each.
    """

    def __init__(self, result: Result, off: Result, say: Callable[[str], None]) -> None:
        super().__init__()
        self._result = result
        self._off = off
        self._say = say
        self._open = b""
        self._said: list[str] = []
        self._begun_s = 0.0

    def write(self, data: ReadableBuffer) -> int:
        """Takes what came next, lines or parts of them, and keeps all of it."""
        *lines, self._open = (self._open + bytes(data)).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace").rstrip("\r"))
        return super().write(data)

    def _take(self, line: str) -> None:
        match line.split():
            case ["@begin", _, uptime]:
                self._begun_s = float(uptime)
                self._said = []
            case ["@test", name, status, uptime]:
                seconds = round(float(uptime) - self._begun_s, 2)
                self._judge(Ended.saying(name, int(status), seconds, self._said))
            case ["counter", name, value] if name.startswith("flat_"):
                self._result.counters[name] = int(value)
            case _:
                self._said.append(line)

    def _judge(self, test: Ended) -> None:
        self._result.tests[test.name] = test
        verdict = judge(test, self._off.tests.get(test.name))
        self._result.verdicts[test.name] = verdict
        self._say(f"  {verdict.word:<5}  {test.name:<27} {test.seconds:7.1f} s  {verdict.reason}".rstrip())


def _run(result: Result, told: Told, logs: Path | None, source: Path | None, selftests: Path | None) -> None:
    case = result.case
    program = guest.guest_program(guest.GUEST / "tests" / "mm.c")
    script = guest.GUEST / "tests" / "run.sh"
    limit_s = _DEBUG_LIMIT_S if case.machine.debug else _LIMIT_S
    numbers = [str(number) for number in (limit_s, case.threshold, case.failing, case.unflushed)]
    tests = [_FOREIGN.get(name, name) for name in case.tests]
    errors = io.BytesIO()
    log = messages = ""
    with guest.disk(512 << 20) as disk:
        try:
            outcome = guest.run(
                case.machine,
                [str(script), "-t", *numbers, str(program), str(selftests or "-"), *tests],
                stdout=told,
                stderr=errors,
                source=source,
                options=guest.drive(disk),
                # Its tests end in time unless the kernel hangs.
                timeout_s=limit_s * (len(tests) + 1),
            )
            log, messages = outcome.log, outcome.messages
        except guest.GuestLostError as error:
            log = error.log
            raise
        finally:
            if logs is not None:
                said = {"tests": told.getvalue(), "script": errors.getvalue()}
                parts = {name: text.decode(errors="replace") for name, text in said.items()}
                _keep(logs, case, parts | {"kernel": log, "QEMU": messages})
    result.complaints = complaints(log, messages)
    if outcome.status:
        complained = errors.getvalue().decode(errors="replace").strip()
        result.problems.append(f"the tests' script ended with {outcome.status}: {complained}")


def _keep(logs: Path, case: Case, parts: dict[str, str]) -> None:
    path = logs / f"{case.name.replace(', ', '-').replace(' ', '-')}.log"
    text = "".join(f"=== {name}\n{part}\n" for name, part in parts.items())
    try:
        logs.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FlatwalkError(
            f"a log cannot be written: {error.strerror}", where=str(path), remedy="choose another --logs"
        ) from error


def versions(planned: Sequence[Case], source: Path | None = None) -> dict[str, str]:
    """What was tested, and by what: QEMU's and Linux's base and build, our tests, and the day."""
    linux = build.DEBUG_LINUX if planned[0].machine.debug else build.LINUX
    found = {}
    for component in (build.QEMU, linux):
        place = build.find(component, source)
        base = place / "base"
        version = base.read_text(encoding="utf-8").strip() if base.is_file() else "own tree"
        found[component.source_name] = f"{version} ({place.name})"
    ours = sorted((guest.GUEST / "tests").iterdir())
    found["tests"] = cache.key({path.name: cache.digest(path) for path in ours})[:16]
    return found | {"day": datetime.date.today().isoformat()}


def summary(results: Sequence[Result]) -> str:
    """A table in Markdown: how many tests ended how in each case, and what became of blocks."""
    headers = (
        *("case", "pass", "skip", "xfail", "FAIL", "complaints"),
        *("blocks", "refused", "later", "given up", "minutes"),
    )
    rows = []
    for result in results:
        missing = sum(name not in result.tests for name in result.case.tests)
        counts = [result.count(PASS), result.count(SKIP), result.count(XFAIL), result.count(FAIL) + missing]
        blocks = [result.counters.get(name, 0) for name in (_BLOCKS, _REFUSED, _LATER, _DEMOTED)]
        figures = [*counts, len(result.complaints), *blocks]
        rows.append([result.case.name, *map(str, figures), f"{result.seconds / 60:.1f}"])
    return output.markdown(headers, 1, rows)


def report(results: Sequence[Result], versions: dict[str, str]) -> dict[str, Any]:
    """All of it, for JSON."""
    return {
        "versions": versions,
        "cases": [
            {
                "name": result.case.name,
                "machine": dataclasses.asdict(result.case.machine),
                "failing_percent": result.case.failing,
                "threshold": result.case.threshold,
                "unflushed": result.case.unflushed,
                "flattens": result.case.flattens,
                "planned": list(result.case.tests),
                "seconds": result.seconds,
                "tests": [
                    {
                        "name": name,
                        "verdict": result.verdicts[name].word,
                        "why": result.verdicts[name].reason,
                        **dataclasses.asdict(test),
                    }
                    for name, test in result.tests.items()
                ],
                "counters": result.counters,
                "complaints": result.complaints,
                "problems": result.problems,
            }
            for result in results
        ],
    }


def resumed(path: Path, versions: dict[str, str]) -> list[Result]:
    """The results that an earlier call wrote; none if there is no such file yet.

    Raises:
        UsageError: If the file is something else, or of another kernel or QEMU, or by other tests.
    """
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        theirs = dict(written["versions"])
        found = [_result(case) for case in written["cases"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            "this is not what `vm test --json` writes", where=str(path), remedy="name another file"
        ) from error
    for what, version in versions.items():
        if what != "day" and theirs.get(what) != version:
            raise UsageError(
                f"its results are of {what} {theirs.get(what)}, not {version}",
                where=str(path),
                remedy="name another file, or leave --resume out, so that all runs anew",
            )
    return found


def _result(written: dict[str, Any]) -> Result:
    """A case's part of `report`, as a result."""
    machine = {**written["machine"], "parameters": tuple(written["machine"]["parameters"])}
    case = Case(
        written["name"],
        guest.Machine(**machine),
        tuple(written["planned"]),
        failing=written["failing_percent"],
        threshold=written["threshold"],
        flattens=written["flattens"],
        unflushed=written["unflushed"],
    )
    tests = [
        Ended(test["name"], test["status"], test["seconds"], test["reason"], tuple(test["failures"]))
        for test in written["tests"]
    ]
    return Result(
        case,
        {test.name: test for test in tests},
        {test["name"]: Verdict(test["verdict"], test["why"]) for test in written["tests"]},
        written["counters"],
        written["complaints"],
        written["problems"],
        written["seconds"],
    )
