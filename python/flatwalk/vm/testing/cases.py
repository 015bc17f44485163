"""The cases: which guests are booted, and which tests run in each."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flatwalk.errors import UsageError
from flatwalk.vm.machine import GRACE_MS, HOST_MODES, MODES, Machine
from flatwalk.vm.selftests import KVM_SELFTESTS, SELFTESTS

if TYPE_CHECKING:
    from collections.abc import Sequence

TIERS = ("short", "full")
#: Little time for a flush: a switch of address spaces meanwhile may replace one that is left out.
_HASTY_GRACE_MS = 50
#: How long a kernel with more checks may take to change many pages, which it flushes together.
_SLOW_GRACE_MS = 10_000
#: More of the command line, by kernel. KCSAN watches one in so many accesses, instead of one in 4000.
_PARAMETERS = {"debug": ("page_poison=1",), "kcsan": ("kcsan.skip_watch=400",)}
#: Seconds that a test may take, by kernel: one with all of its checks, or KCSAN, is many times slower.
_LIMIT_S = {"usual": 1200, "debug": 3600, "kcsan": 3600, "mutants": 180, "nested": 1200}
_SHORT = (
    *("populate", "fork", "exec", "mremap", "thp", "switch", "later"),
    *("large", "fits", "cgroup", "merge", "counted", "cap", "exits"),
    *("idle", "poisoned", "halfway", "asked", "policy", "passes", "limit"),
    *("unshare", "leader", "found", "waiters"),
)
#: All tests of ours.
OURS = (
    *_SHORT,
    *(
        "mmap",
        "again",
        "collapse",
        "hugetlb",
        "ksm",
        "userfaultfd",
        "move",
        "gup",
        "proc",
        "ldt",
        "swap",
        "oom",
        "meet",
        "reclaim",
        "retract",
        "pressure",
        "stress",
    ),
)
_STRESSORS = (
    *("bigheap", "brk", "fault", "fork", "madvise", "malloc", "memfd", "mincore", "mlock"),
    *("mmap", "mmapaddr", "mmapfixed", "mmapfork", "mmaphuge", "mmapmany", "mprotect", "mremap", "msync"),
    *("munmap", "pagemove", "pageswap", "remap", "shm", "shm-sysv", "stack", "stackmmap", "tlb-shootdown"),
    *("userfaultfd", "vforkmany", "vm", "vm-addr", "vm-rw", "vm-segv", "vm-splice"),
)
#: Stressors of stress-ng, each for some seconds and with verification: their names.
STRESSORS = tuple(f"stressor-{stressor}" for stressor in _STRESSORS)
#: Tests that are not ours: they may fail in any guest, but must end as they do with `off`.
FOREIGN = {name: f"{name}:{call}" for name, call in (SELFTESTS | KVM_SELFTESTS).items()}
FOREIGN |= {name: name for name in STRESSORS}
#: Flushes that can be left out, by bits of flat_page_tables_skip_flush, and the test that needs them.
_FLUSHES = (
    ("when flattening", "flush"),
    ("when unflattening", "flush"),
    ("a flat root", "flush-root"),
    ("changed pages", "flush-pages"),
)
#: The mode and levels of page tables in which a test needs them; the first is for a short run. With five
#: levels no root becomes flat at the same time, which loads CR3 and flushes everything.
_FLUSHED = {
    "flush": (("l2l1", 4), ("l3l2", 4), ("l4l3", 5), ("compendia", 5)),
    "flush-root": (("l4l3", 4),),
    "flush-pages": (("l2l1", 4),),
}


@dataclass(frozen=True)
class Case:
    """One boot of a guest and what runs in it."""

    name: str
    machine: Machine
    tests: tuple[str, ...]
    #: Per cent of allocations of 2 MiB blocks that fail.
    failing: int = 0
    #: Level-2 entries that a range needs to be flattened.
    threshold: int = 1
    #: Whether flattened tables must have been made.
    flattens: bool = False
    #: Flushes that Linux leaves out, as bits of its flat_page_tables_skip_flush; QEMU must find them.
    unflushed: int = 0
    #: The guard that the kernel of `vm test --mutate` leaves out, or `none`; with another kernel empty.
    left_out: str = ""

    @property
    def mutated(self) -> bool:
        """Whether something must go wrong."""
        return self.left_out not in ("", "none")

    @property
    def ordinary(self) -> bool:
        """Whether all tables must stay ordinary: those of processes, or where KVM has guests, nested ones."""
        machine = self.machine
        if machine.nested is not None:
            return machine.nested == "off"
        forced = any(parameter.endswith(",force") for parameter in machine.parameters)
        return machine.mode == "off" or not (machine.feature or forced)

    @property
    def limit_s(self) -> int:
        """Seconds that each of its tests may take."""
        return _LIMIT_S[self.machine.kernel]

    @property
    def has_selftests(self) -> bool:
        """Whether some of its tests come with Linux."""
        return any(name in SELFTESTS or name in KVM_SELFTESTS for name in self.tests)


def of_tier(tier: str, modes: Sequence[str] = MODES, *, kernel: str = "usual", levels: int = 4) -> list[Case]:
    """The cases of a tier, `short` or `full`, in some modes; `off` is always among them, and first.

    Args:
        tier: One of `TIERS`.
        modes: Those to test.
        kernel: Which one, of `components.KERNELS`.
        levels: Of page tables.

    Raises:
        UsageError: If there is no such tier.
    """
    if tier not in TIERS:
        raise UsageError(f"there is no tier {tier}", where="--tier", remedy=f"choose {' or '.join(TIERS)}")
    full = tier == "full"
    tests = OURS if full else _SHORT
    everything = (*tests, *SELFTESTS, *STRESSORS) if full else tests
    off = usual_machine(levels, kernel=kernel)
    found = [Case("off", off, everything)]
    for mode in (mode for mode in MODES[1:] if mode in modes):
        machine = replace(off, mode=mode)
        found.append(Case(mode, machine, everything, flattens=True))
        found.append(Case(f"{mode}, half of the blocks fail", machine, tests, failing=50, flattens=True))
        if full:
            found += _other_machines(machine, tests)
        for test, machines in _FLUSHED.items():
            for _, pages in (pair for pair in (machines if full else machines[:1]) if pair[0] == mode):
                flushing = replace(machine, levels=pages)
                found += _flushing(mode, flushing, test)
                if full:
                    found += _flushing(f"{mode}, isolated", isolated_machine(flushing), test)
    return found


def of_kvm(modes: Sequence[str] = HOST_MODES) -> list[Case]:
    """KVM's own tests in guests that have guests; `off` is always among them, and first.

    Args:
        modes: How KVM flattens nested page tables, of `HOST_MODES`.
    """
    off = Machine(cpus=4, memory="3G", kernel="nested", nested="off")
    tests = tuple(KVM_SELFTESTS)
    found = [Case("off", off, tests)]
    for mode in (mode for mode in HOST_MODES[1:] if mode in modes):
        machine = replace(off, nested=mode)
        found.append(Case(mode, machine, tests, flattens=True))
        found.append(Case(f"{mode}, half of the blocks fail", machine, tests, failing=50, flattens=True))
        found.append(Case(f"{mode}, 5 levels", replace(machine, levels=5), tests, flattens=True))
    return found


def usual_machine(levels: int, *, kernel: str = "usual") -> Machine:
    """The usual machine, in mode `off`.

    Args:
        levels: Of page tables.
        kernel: Which one, of `components.KERNELS`.
    """
    return Machine(
        levels=levels,
        cpus=4,
        memory="3G" if kernel == "debug" else "1536M",
        check=True,
        grace_ms=_SLOW_GRACE_MS if kernel in ("debug", "kcsan") else GRACE_MS,
        # An address space that is used after it was freed must not look like one, nor must a freed table.
        # A mapping may have pages of 1 GB, but there are none.
        parameters=("slub_debug=FZP,mm_struct", "hugepagesz=1G", *_PARAMETERS.get(kernel, ())),
        kernel=kernel,
    )


def isolated_machine(machine: Machine) -> Machine:
    """The same with page tables of their own for user mode."""
    return replace(machine, parameters=("pti=on", *machine.parameters))


def _other_machines(machine: Machine, tests: tuple[str, ...]) -> list[Case]:
    """The tests on other machines than the usual one."""
    mode = machine.mode
    found = [Case(f"{mode}, isolated", isolated_machine(machine), tests, flattens=True)]
    if machine.levels == 4:
        found.append(Case(f"{mode}, 5 levels", replace(machine, levels=5), tests, flattens=True))
    unable = replace(machine, feature=False, check=False)
    found.append(Case(f"{mode}, no feature", unable, tests))
    forced = replace(unable, parameters=(f"flat_page_tables={mode},force", *unable.parameters))
    found.append(Case(f"{mode}, forced", isolated_machine(forced), tests, flattens=True))
    found.append(Case(f"{mode}, usual threshold", machine, tests, threshold=64))
    return found


def _flushing(name: str, machine: Machine, test: str) -> list[Case]:
    """A test that needs flushes: with all of them, and with each of them left out."""
    whole = Case(f"{name}, {test}", machine, (test,), 0, 64, flattens=True)
    hasty = replace(machine, grace_ms=_HASTY_GRACE_MS)
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
            near = difflib.get_close_matches(name, known)
            raise UsageError(
                f"this tier has no test {name}",
                where="--tests",
                remedy=f"did you mean {' or '.join(near)}?"
                if near
                else f"choose some of {', '.join(sorted(known))}, separated by commas",
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
