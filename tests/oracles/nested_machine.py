"""Runs guests over nested page tables on QEMU, under the hypervisor of tests/guest/nested.c."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.oracles import flat_machine
from tests.oracles.flat_page_tables import Fault, Page
from tests.oracles.nested_page_tables import (
    ENABLED,
    NESTED_FLAT,
    TARGET,
    VMMCALL,
    Exit,
    Guest,
    Run,
    Walk,
)

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Sequence
    from pathlib import Path

MAGIC = 0x464C_4154_4E50_5431
_KINDS = {"read": "r", "write": "w", "execute": "x"}


def packed(guests: Sequence[Guest], levels: int) -> bytes:
    """The cases as nested.c reads them."""
    numbers = [MAGIC, levels, len(guests)]
    for guest in guests:
        control = ENABLED | (NESTED_FLAT if guest.nested_flat else 0)
        start = TARGET if guest.kind == "execute" else guest.code
        numbers += [guest.host_flat, control, guest.nested.cr3, guest.own.cr3, own_control(guest)]
        numbers += [start, TARGET, guest.rax, guest.cpl, guest.intercepts, guest.efer, guest.cr0]
        words = guest.words()
        numbers += [len(words), *itertools.chain(*words.items())]
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def own_control(guest: Guest) -> int:
    """CR4 of the guest."""
    return flat_machine.control_of(guest.own.levels, flat=guest.own.flat)


@dataclass
class Seen:
    """What QEMU did with a guest."""

    exit: Exit
    after: dict[int, int] = field(default_factory=dict)


def running(
    qemu: Path, program: Path, directory: Path, guests: Sequence[Guest], *, cpu: str, options: Sequence[str]
) -> contextlib.AbstractContextManager[flat_machine.Machine]:
    """A machine that has these guests, whose nested tables all have as many levels."""
    (levels,) = {guest.nested.levels for guest in guests}
    vectors = packed(guests, levels)
    return flat_machine.holding(qemu, program, directory, vectors, cpu=cpu, options=options)


def results(machine: flat_machine.Machine) -> tuple[int, list[Seen]]:
    """CPUID.8000000AH:EDX, and what came of each guest."""
    features = 0
    seen: list[Seen] = []
    for words in machine.lines():
        match words:
            case ["features", number]:
                features = int(number, 16)
            case ["case", _, *numbers]:
                code, first, second, rax = (int(number, 16) for number in numbers)
                seen.append(Seen(Exit(code, (first, second), rax if code == VMMCALL else 0)))
            case ["after", at, word]:
                seen[-1].after[int(at, 16)] = int(word, 16)
            case _:
                raise ValueError(words)
    return features, seen


def wrong_ends(guests: Sequence[Guest], runs: Sequence[Run], seen: Sequence[Seen]) -> list[str]:
    """Where guests ended otherwise, or left other words behind."""
    wrong = []
    for guest, run, found in zip(guests, runs, seen, strict=True):
        ok = found.exit == run.exit
        if run.exit.code == VMMCALL:
            ok = ok and found.after == run.after
        else:  # A and D may be set on the way down, and nothing else.
            ok = ok and found.after.items() <= run.after.items()
        if not ok:
            wrong.append(f"{guest.name}: {found}, not {run.exit} {run.after}")
    return wrong


def line_of(guest: Guest, walk: Walk, *, feature: bool) -> list[str]:
    """The fields of the plugin's line about a walk, without the values of entries."""
    if walk.stage == "guest":
        root, control, mode = guest.own.cr3, own_control(guest), "s"
    else:
        control = flat_machine.control_of(guest.nested.levels, flat=guest.nested_flat and feature)
        root, mode = guest.nested.cr3, "u"
    match walk.result:
        case Page(address, size):
            result = ["page", f"{address:x}", f"{size:x}"]
        case Fault(code):
            result = ["fault", f"{code:x}"]
        case None:
            result = ["abandoned"]
    head = ["0", f"{root:x}", f"{control:x}", f"{walk.address:x}", _KINDS[walk.kind], mode, walk.stage]
    return [*head, *result, *(f"{at:x}" for at in walk.reads)]


def _end_of_result(fields: Sequence[str]) -> int:
    """Where the entries begin in the plugin's line."""
    return 7 + {"page": 3, "fault": 2, "abandoned": 1}[fields[7]]


def walks_of(text: str) -> list[list[str]]:
    """The plugin's lines about guests' walks and nested ones, without the values of entries."""
    walks = []
    for line in text.splitlines():
        fields = line.split()
        if fields[6] != "single":
            end = _end_of_result(fields)
            walks.append([*fields[:end], *fields[end::2]])
    return walks


def entries_of(walks: Sequence[Walk]) -> tuple[int, int]:
    """How many entries walks have read: of the guest's tables, and of nested ones."""
    guest = sum(len(walk.reads) for walk in walks if walk.stage == "guest")
    return guest, sum(len(walk.reads) for walk in walks) - guest


def counted(text: str) -> list[tuple[int, int]]:
    """The same, as the plugin's lines have it, for each walk of a guest with the nested ones before it."""
    counts = []
    nested = 0
    for fields in map(str.split, text.splitlines()):
        if fields[6] != "single":
            entries = (len(fields) - _end_of_result(fields)) // 2
            if fields[6] == "nested":
                nested += entries
            else:
                counts.append((entries, nested))
                nested = 0
    return counts
