"""Tests Linux with flattened page tables: in every mode the same results as without, and no complaint."""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flatwalk import output
from flatwalk.errors import FlatwalkError
from flatwalk.vm import build
from flatwalk.vm import run as guest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: What a test program says where the kernel lacks what it is about.
_SKIPPED = 77
_SHORT = ("populate", "fork", "exec", "mremap", "thp", "switch")
_FULL = (*_SHORT, "mmap", "hugetlb", "ksm", "userfaultfd", "gup", "swap", "pressure", "stress")
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
    "userfaultfd-anon": "userfaultfd anon 20 16",
    "userfaultfd-hugetlb": "userfaultfd hugetlb 128 32",
    "userfaultfd-hugetlb-shared": "userfaultfd hugetlb_shared 128 32 huge/uffd",
    "userfaultfd-shmem": "userfaultfd shmem 20 16",
    "compaction": "compaction_test",
    "madv_populate": "madv_populate",
    "mlock2": "mlock2-tests",
    "mrelease": "mrelease_test",
    "mremap-move": "mremap_test",
    "mremap-dontunmap": "mremap_dontunmap",
    "thuge-gen": "thuge-gen",
    "khugepaged": "khugepaged",
    "split-huge-page": "split_huge_page_test",
    "soft-dirty": "soft-dirty",
    "va-128TB-switch": "va_128TBswitch",
    "protection-keys": "protection_keys_64",
}
#: What mode a short run leaves out flushes in, and how many levels of page tables make that a pair of tables.
_UNFLUSHED = {"l2l1": 4}
_UNFLUSHED_FULL = {"l3l2": 4, "l2l1": 4, "l4l3": 5, "compendia": 4}
#: How QEMU's checking mode begins to say that a flush is missing.
_MISSING = "flat-pt-check: missing flush"
_COMPLAINTS_SHOWN = 5
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
    #: Flushes that Linux leaves out, as bits of its flat_page_tables_skip_flush; QEMU must find them.
    unflushed: int = 0


@dataclass
class Result:
    """How a case went."""

    case: Case
    #: Each test's exit status.
    statuses: dict[str, int] = field(default_factory=dict)
    #: The kernel's counters of flattened tables.
    counters: dict[str, int] = field(default_factory=dict)
    #: What the kernel, or QEMU, complained of.
    complaints: list[str] = field(default_factory=list)
    #: What is wrong, one sentence each.
    problems: list[str] = field(default_factory=list)


def cases(tier: str, modes: Sequence[str] = guest.MODES, *, debug: bool = False) -> list[Case]:
    """The boots of a tier, `short` or `full`, in some modes; `off` is always among them, and first.

    The full tier always has the kernel with all checks, the short one if it is asked for.
    """
    full = tier == "full"
    debug = debug or full
    tests = _FULL if full else _SHORT

    def machine(mode: str, *, levels: int = 4, feature: bool = True, parameters: str = "") -> guest.Machine:
        return guest.Machine(
            mode=mode,
            levels=levels,
            cpus=4,
            memory="3G" if debug else "1536M",
            feature=feature,
            check=feature,
            # A freed table that is still walked must not look like one.
            parameters=(*parameters.split(), *(["page_poison=1"] if debug else [])),
            debug=debug,
        )

    everything = (*tests, *SELFTESTS) if full else tests
    found = [Case("off", machine("off"), everything)]
    for mode in (mode for mode in guest.MODES[1:] if mode in modes):
        found.append(Case(mode, machine(mode), everything, flattens=True))
        found.append(
            Case(f"{mode}, half of the blocks fail", machine(mode), tests, failing=50, flattens=True)
        )
        if full:
            found.append(Case(f"{mode}, isolated", machine(mode, parameters="pti=on"), tests, flattens=True))
            found.append(Case(f"{mode}, 5 levels", machine(mode, levels=5), tests, flattens=True))
            found.append(Case(f"{mode}, no feature", machine(mode, feature=False), tests))
            found.append(Case(f"{mode}, usual threshold", machine(mode), tests, threshold=64))
        levels = (_UNFLUSHED_FULL if full else _UNFLUSHED).get(mode)
        if levels:
            flushing = Case(
                f"{mode}, flushing", machine(mode, levels=levels), ("flush",), 0, 64, flattens=True
            )
            found.append(flushing)
            for bit, change in enumerate(("flattening", "unflattening")):
                name = f"{mode}, not flushing when {change}"
                # Whatever switches address spaces meanwhile makes up for the flush: leave it little time.
                hasty = replace(flushing.machine, grace_ms=50)
                found.append(replace(flushing, name=name, machine=hasty, unflushed=1 << bit))
    return found


def run_tier(
    tier: str,
    modes: Sequence[str] = guest.MODES,
    *,
    debug: bool = False,
    logs: Path | None = None,
    source: Path | None = None,
) -> list[Result]:
    """Boots each case and compares its results with those of `off`, which comes first.

    Args:
        tier: `short` or `full`.
        modes: Those to test.
        debug: Whether a short run, too, has the kernel with all checks.
        logs: Where what each guest said is kept.
        source: The user's own trees, as built by `vm build --source`.

    Raises:
        FlatwalkError: If QEMU or Linux is not built, or no log can be written.
    """
    chosen = cases(tier, modes, debug=debug)
    build.find(build.QEMU, source)
    build.find(build.DEBUG_LINUX if chosen[0].machine.debug else build.LINUX, source)
    results: list[Result] = []
    for case in chosen:
        result = Result(case)
        try:
            _run(result, logs, source)
        except FlatwalkError as error:
            result.problems.append(str(error))
        result.problems += differences(result, _expected(results[0] if results else result))
        results.append(result)
        output.note(f"{case.name}: {'; '.join(result.problems) or 'ok'}")
    return results


def _expected(off: Result) -> dict[str, int]:
    """How each test must end: well, unless a kernel that flattens nothing lacks what it is about.

    The kernel's own tests need not end well in any guest; they must end as they do there.
    """
    expected = dict.fromkeys((*_FULL, "flush"), 0)
    expected |= {name: _SKIPPED for name, status in off.statuses.items() if status == _SKIPPED}
    return expected | {name: off.statuses.get(name, 0) for name in SELFTESTS}


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
    missing = [line for line in result.complaints if _MISSING in line]
    if result.case.unflushed and not missing:
        problems.append("no missing flush was found")
    unexpected = [line for line in result.complaints if not (result.case.unflushed and line in missing)]
    return problems + [f"the kernel says: {line}" for line in unexpected[:_COMPLAINTS_SHOWN]]


def _run(result: Result, logs: Path | None, source: Path | None) -> None:
    case = result.case
    program = guest.guest_program(guest.GUEST / "tests" / "mm.c")
    script = guest.GUEST / "tests" / "run.sh"
    selftests = build.find(build.DEBUG_LINUX, source) / "selftests" if case.machine.debug else "-"
    numbers = [str(number) for number in (case.threshold, case.failing, case.unflushed)]
    tests = [f"{name}:{SELFTESTS[name]}" if name in SELFTESTS else name for name in case.tests]
    said = io.BytesIO()
    complaints = io.BytesIO()
    with guest.disk(512 << 20) as disk:
        outcome = guest.run(
            case.machine,
            [str(script), *numbers, str(program), str(selftests), *tests],
            stdout=said,
            stderr=complaints,
            source=source,
            options=guest.drive(disk),
        )
    told = said.getvalue().decode(errors="replace")
    complained = complaints.getvalue().decode(errors="replace")
    if logs is not None:
        _keep(logs, case, told, complained, outcome)
    for line in told.splitlines():
        match line.split():
            case ["test", name, status]:
                result.statuses[name] = int(status)
            case ["counter", name, value]:
                result.counters[name] = int(value)
    result.complaints = outcome.splats()
    if outcome.status:
        result.problems.append(f"the tests' script ended with {outcome.status}: {complained.strip()}")


def _keep(logs: Path, case: Case, told: str, complained: str, outcome: guest.Outcome) -> None:
    path = logs / f"{case.name.replace(', ', '-').replace(' ', '-')}.log"
    parts = {"tests": told, "their messages": complained, "kernel": outcome.log, "QEMU": outcome.messages}
    text = "".join(f"=== {name}\n{part}\n" for name, part in parts.items())
    try:
        logs.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FlatwalkError(
            f"a log cannot be written: {error.strerror}", where=str(path), remedy="choose another --logs"
        ) from error
