"""Flat nested page tables (docs/flat-page-tables.md, Nested page tables): QEMU with our series runs guests.

What should come of them says a walker of both tables that is written from that page (tests/oracles).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import flatwalk
from flatwalk.vm import build, compiled, components, counting
from tests.oracles import flat_machine, nested_machine, nested_page_tables
from tests.oracles.flat_page_tables import FLAT, MAXPHYADDR
from tests.oracles.flat_vectors import DATA
from tests.oracles.nested_page_tables import (
    CODE,
    FINAL,
    GUEST_DATA,
    INVALID,
    LMA,
    LME,
    NPF,
    PAGE_FAULT,
    PE,
    PG,
    STOP,
    SVME,
    TABLE,
    TARGET,
    VMMCALL,
    Exit,
)
from tests.test_flat_page_tables import replayed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.oracles.nested_page_tables import Guest

FLAT_NPT = 1 << 22
#: INVPCID RAX, [RDI] with VMMCALL behind it, the bit that intercepts it, and how guests end then.
INVPCID, INTERCEPT = 0xD9_010F_0782_380F66, 1 << 2
INTERCEPTED, UNDEFINED, PROTECTED = 0xA2, 0x46, 0x4D
#: MOV to CR0 from EAX with VMMCALL behind it.
ENTER = 0xD9_010F_C0220F
#: The bit of a flat root that must be set.
GLUE_HALF = 1 << 20
#: Entries of a cold walk, by guest's and nested tables (Park et al., section 4).
PAPERS = {
    "off/off/execute": 24,
    "l4l3+l2l1/off/execute": 14,
    "off/l4l3+l2l1/execute": 14,
    "l4l3+l2l1/l4l3+l2l1/execute": 8,
}
GUESTS = {
    guest.name: guest
    for guests in (
        nested_page_tables.layouts(),
        nested_page_tables.faults(),
        nested_page_tables.mistakes(),
        nested_page_tables.switches(),
        nested_page_tables.five_levels(),
    )
    for guest in guests
}


def having(levels: int) -> list[Guest]:
    """The guests whose nested tables have as many levels."""
    return [guest for guest in GUESTS.values() if guest.nested.levels == levels]


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("off/off/execute", (4, 20)),
        ("l4l3+l2l1/off/execute", (2, 12)),
        ("off/l4l3+l2l1/execute", (4, 10)),
        ("l4l3+l2l1/l4l3+l2l1/execute", (2, 6)),
        ("l4l3/off/execute", (3, 16)),
        ("off/l2l1/execute", (4, 15)),
        ("l3l2/l3l2/execute", (3, 12)),
        ("off/off/2m/4k", (3, 16)),
        ("off/off/4k/2m", (4, 15)),
        ("off/off/2m/2m", (3, 12)),
        ("l3l2/l3l2/2m/2m", (2, 6)),
        ("off/off5", (4, 25)),
        ("off5/off", (5, 24)),
        ("off5/off5", (5, 30)),
        ("l4l3+l2l1/l4l3+l2l1-5", (2, 9)),
        ("l5l4+l3l2/l5l4+l3l2", (3, 12)),
    ],
)
def test_cold_walks_read_as_many_entries_as_the_papers_say(name: str, entries: tuple[int, int]) -> None:
    # The papers' sums are in PAPERS; the others by the same sum, g + (g + 1) * h.
    assert nested_machine.entries_of(GUESTS[name].run().walks) == entries


@pytest.mark.parametrize("nested", nested_page_tables.LEVELS)
@pytest.mark.parametrize("own", nested_page_tables.LEVELS)
def test_the_engine_reads_as_many_entries_in_a_cold_walk(own: str, nested: str) -> None:
    machine = flatwalk.Machine.named("skylake-server").table
    machine["pwc"] = machine["virtualisation"]["pwc"] = {"kind": "none"}
    machine["virtualisation"]["nested_tlb"] = []
    scheme = flatwalk.Scheme.named("virt-radix4").table
    scheme["table"], scheme["host"]["table"] = _table(own), _table(nested)
    walk = flatwalk.walk(
        workload="gups:64MiB",
        scheme=flatwalk.Scheme(scheme),
        machine=flatwalk.Machine(machine),
        instructions=0,
        address=0,
    )
    levels = [step["level"].split()[0] for step in walk.answer["steps"] if step["kind"] == "entry"]
    guest = GUESTS[f"{own}/{nested}/execute"]
    assert (levels.count("guest"), levels.count("host")) == nested_machine.entries_of(guest.run().walks)


def _table(layout: str) -> dict[str, object]:
    """A layout in the words of schemes."""
    flatten = [pair.upper() for pair in layout.split("+") if pair != "off"]
    if not flatten:
        return {"organisation": "radix", "levels": 4}
    return {"organisation": "flattened", "levels": 4, "flatten": flatten, "no_flatten_threshold": 0}


@pytest.mark.parametrize(
    ("name", "how"),
    # P, W/R, U/S, RSVD, I/D from bit 0; written from the page's words, not by a walker.
    [
        ("off/l4l3+l2l1/read/root-0-absent", (NPF, 0b00110 | TABLE)),
        ("off/l4l3+l2l1/read/page-1-absent", (NPF, 0b00100 | FINAL)),
        ("off/l2l1/write/page-2-absent", (NPF, 0b00110 | FINAL)),
        ("off/l3l2/execute/page-0-absent", (NPF, 0b10100 | FINAL)),
        ("off/l3l2/execute/last-2-read-only", (NPF, 0b00111 | TABLE)),
        ("off/l3l2/write/page-1-read-only", (NPF, 0b00111 | FINAL)),
        ("off/l3l2/execute/page-1-no-execute", (NPF, 0b10101 | FINAL)),
        ("off/off/read/page-3-supervisor", (NPF, 0b00101 | FINAL)),
        ("off/l2l1/read/last-1-beyond-maxphyaddr", (NPF, 0b01111 | TABLE)),
        ("nested-level-4-bit-16", (NPF, 0b11101 | FINAL)),
        ("nested-level-3-bit-7", (NPF, 0b11101 | FINAL)),
        ("own-level-3-bit-12", (PAGE_FAULT, 0b11001)),
        ("own-level-2-bit-13", (PAGE_FAULT, 0b11001)),
        ("l4l3+l2l1/off/write/own-1-read-only", (PAGE_FAULT, 0b00011)),
        ("off/l2l1/read/page-2-no-execute", (VMMCALL, 0)),
        ("switch-l2l1-00", (NPF, 0b00110 | TABLE)),
        ("switch-l2l1-10", (NPF, 0b00110 | TABLE)),
        ("switch-l2l1-01", (VMMCALL, 0)),
        ("switch-l4l3-10", (INVALID, 0)),
        ("ncr3-lower-half", (INVALID, 0)),
        ("ncr3-beyond-maxphyaddr", (INVALID, 0)),
        ("ncr3-bit-53", (INVALID, 0)),
        ("ignored-3-1", (VMMCALL, 0)),
        ("ignored-0-0", (VMMCALL, 0)),
    ],
)
def test_guests_end_as_the_specification_says(name: str, how: tuple[int, int]) -> None:
    end = GUESTS[name].run().exit
    assert (end.code, end.info[0]) == how


@pytest.fixture(scope="module")
def qemu() -> Path:
    """QEMU with our series; built now if it is not there."""
    return build.ensure(components.QEMU)


def run(
    qemu: Path, directory: Path, guests: Sequence[Guest], cpu: str = "max,+flat-pt,+flat-npt"
) -> tuple[int, list[nested_machine.Seen], str]:
    """CPUID's word, what came of the guests, and what the plugin wrote."""
    plugin, walks = flat_machine.build_plugin(qemu, directory), directory / "walks"
    program = flat_machine.build_guest(directory, "nested")
    options = ("-plugin", f"{plugin},out={walks}")
    with nested_machine.running(qemu, program, directory, guests, cpu=cpu, options=options) as machine:
        features, seen = nested_machine.results(machine)
    return features, seen, walks.read_text(encoding="ascii")


@pytest.mark.slow
def test_qemu_counts_what_the_papers_count(qemu: Path, tmp_path: Path) -> None:
    _, _, text = run(qemu, tmp_path, [GUESTS[name] for name in PAPERS])
    assert [sum(entries) for entries in nested_machine.counted(text)] == [*PAPERS.values()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpu", "announced"),
    [
        ("max,+flat-npt", True),
        ("max,+flat-pt", False),
        ("max,+flat-npt,-npt", False),
        ("EPYC,+flat-npt", True),
        ("EPYC", False),
    ],
)
def test_processors_announce_it_if_they_are_asked_for_it(
    qemu: Path, tmp_path: Path, cpu: str, *, announced: bool
) -> None:
    features, _, _ = run(qemu, tmp_path, [GUESTS["off/off/read"]], cpu)
    assert bool(features & FLAT_NPT) == announced


@pytest.mark.slow
@pytest.mark.parametrize("feature", [True, False], ids=["feature", "no-feature"])
@pytest.mark.parametrize("levels", [4, 5])
def test_qemu_runs_guests_as_the_specification_says(
    qemu: Path, tmp_path: Path, levels: int, *, feature: bool
) -> None:
    guests = having(levels)
    _, seen, text = run(qemu, tmp_path, guests, "max,+flat-pt" + (",+flat-npt" if feature else ""))
    runs = [guest.run(feature=feature) for guest in guests]
    wrong = nested_machine.wrong_ends(guests, runs, seen)
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])
    expected = [
        (guest.name, nested_machine.line_of(guest, walk, feature=feature))
        for guest, done in zip(guests, runs, strict=True)
        for walk in done.walks
    ]
    found = nested_machine.walks_of(text)
    for (name, line), walk in zip(expected, found, strict=False):
        assert walk == line, name
    assert len(found) == len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [4, 5])
def test_the_engine_walks_again_what_qemu_has_walked(qemu: Path, tmp_path: Path, levels: int) -> None:
    _, _, text = run(qemu, tmp_path, having(levels))
    lines = text.splitlines()
    assert replayed(text.encode()) == (0, f"{len(lines)} walks agree\n", "")
    for stage, outcome in (("guest", "page"), ("nested", "page"), ("guest", "abandoned")):
        if levels == 4 or outcome == "page":
            walk = next(line for line in lines if f" {stage} {outcome} " in line)  # with entries
            # An entry elsewhere, and one more than the engine looks for.
            *head, at, word = walk.split()
            for spoilt in ([*head, f"{int(at, 16) ^ 8:x}", word], [*head, at, word, at, word, at, word]):
                code, _, errors = replayed(f"{walk}\n{' '.join(spoilt)}\n".encode())
                assert code == 1, spoilt
                assert errors.startswith("after 1 walks: the machine "), errors


def invalidating(rax: int, intercepts: int, *, cpl: int = 0, mapped: bool = True) -> Guest:
    """A guest that executes INVPCID; its operand in memory is all zeros, or in a page that is not there."""
    guest = nested_page_tables.build("", "off", "off", "read")
    guest.rax, guest.intercepts, guest.cpl = rax, intercepts, cpl
    operand = GUEST_DATA + TARGET % 4096
    guest.contents = {DATA + CODE % 4096: INVPCID, operand: 0, operand + 8: 0}
    if not mapped:
        guest.own.words[nested_page_tables.entry_for(guest.own, TARGET, 3)] = 0
    return guest


@pytest.mark.slow
@pytest.mark.parametrize("without", ["", ",-pcid", ",-invpcid"], ids=["all", "no-pcid", "no-invpcid"])
def test_a_hypervisor_can_intercept_invpcid(qemu: Path, tmp_path: Path, without: str) -> None:
    # With types 0 to 3, and one that there is not. #UD and the check of the CPL come first, all else later.
    others = ~INTERCEPT & 0xFFFF_FFFF
    expected = [(invalidating(4, INTERCEPT), Exit(INTERCEPTED, (TARGET, 4)))]
    for kind in range(4):
        expected += [
            (invalidating(kind, INTERCEPT), Exit(INTERCEPTED, (TARGET, kind))),
            (invalidating(kind, 0), Exit(VMMCALL, rax=kind)),
        ]
    expected += [
        (invalidating(2, others), Exit(VMMCALL, rax=2)),
        (invalidating(4, 0), Exit(PROTECTED)),
        (invalidating(2, INTERCEPT, cpl=3), Exit(PROTECTED)),
        (invalidating(2, 0, cpl=3), Exit(PROTECTED)),
        (invalidating(2, INTERCEPT, mapped=False), Exit(INTERCEPTED, (TARGET, 2))),
        (invalidating(2, 0, mapped=False), Exit(PAGE_FAULT, (0, TARGET))),
    ]
    guests, exits = zip(*expected, strict=True)
    if without == ",-invpcid":
        exits = (Exit(UNDEFINED),) * len(guests)
    _, seen, _ = run(qemu, tmp_path, guests, f"max,+flat-pt{without}")
    assert tuple(found.exit for found in seen) == exits


def rooted(
    *, efer: int, paging: bool = False, flat: bool = True, flip: int = 0, instruction: int = STOP
) -> Guest:
    """A guest with a flat root, or what `flip` makes of it, and CR4.FLAT as given.

    Its code has the same address with its tables and without paging.
    """
    guest = nested_page_tables.build("", "l4l3", "off", "read", code=DATA)
    guest.own.flat = flat
    guest.own.cr3 ^= flip
    guest.efer, guest.cr0 = SVME | efer, PE | (PG if paging else 0)
    guest.contents[DATA] = instruction
    guest.rax = guest.cr0 | PG
    return guest


def ends(qemu: Path, directory: Path, guests: Sequence[Guest]) -> list[tuple[int, int]]:
    """How QEMU's guests end, and with what in RAX."""
    _, seen, _ = run(qemu, directory, guests)
    return [(found.exit.code, found.exit.rax) for found in seen]


@pytest.mark.slow
def test_vmrun_checks_the_root_of_a_guest_in_long_mode(qemu: Path, tmp_path: Path) -> None:
    guests = [
        rooted(efer=LME | LMA, paging=True),
        rooted(efer=LME | LMA, paging=True, flat=False),
        rooted(efer=LME | LMA, paging=True, flip=GLUE_HALF),
        rooted(efer=LME | LMA, paging=True, flip=1 << MAXPHYADDR),
    ]
    assert ends(qemu, tmp_path, guests) == [(VMMCALL, guests[0].rax), *[(INVALID, 0)] * 3]


@pytest.mark.slow
def test_vmrun_lets_a_guest_that_is_not_in_long_mode_keep_its_flat_root(qemu: Path, tmp_path: Path) -> None:
    # In SMM, which leaves CR3 and clears CR4 and EFER; on the way into long mode, or out of it.
    guests = [
        rooted(efer=efer, flat=flat, flip=flip)
        for efer in (0, LME)
        for flat in (False, True)
        for flip in (0, GLUE_HALF)
    ]
    assert ends(qemu, tmp_path, guests) == [(VMMCALL, guest.rax) for guest in guests]


@pytest.mark.slow
def test_long_mode_is_not_entered_with_a_flat_root_that_it_must_not_have(qemu: Path, tmp_path: Path) -> None:
    guests = [
        rooted(efer=LME, instruction=ENTER),
        rooted(efer=LME, instruction=ENTER, flat=False, flip=FLAT),
        rooted(efer=LME, instruction=ENTER, flat=False),
        rooted(efer=LME, instruction=ENTER, flip=GLUE_HALF),
    ]
    assert ends(qemu, tmp_path, guests) == [*[(VMMCALL, guests[0].rax)] * 2, *[(PROTECTED, 0)] * 2]


@pytest.mark.slow
def test_the_counting_plugin_leaves_out_walks_with_nested_paging(qemu: Path, tmp_path: Path) -> None:
    guests = [GUESTS[name] for name in ("off/off/read", "l4l3+l2l1/l4l3+l2l1/read")]
    counts, program = tmp_path / "counts", flat_machine.build_guest(tmp_path, "nested")
    options = ("-plugin", f"{compiled.plugin('count', None)},out={counts}")
    cpu = "max,+flat-pt,+flat-npt"
    with nested_machine.running(qemu, program, tmp_path, guests, cpu=cpu, options=options) as machine:
        _, seen = nested_machine.results(machine)
    assert [found.exit.code for found in seen] == [VMMCALL] * 2
    # The hypervisor and its guests are privileged. Nested walks are of user mode, but not a program's.
    phases = counting.read(counts.read_text(encoding="ascii"))
    assert sum(sum(phase.kernel.values()) for phase in phases) > 0
    assert all(not phase.walks_of_all for phase in phases)
