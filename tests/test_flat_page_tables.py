"""The specification's vectors, and QEMU with our series against them.

The engine runs the same vectors in engine/paging/tests/hardware.rs.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from flatwalk.vm import build, components
from tests import crates
from tests.oracles import flat_machine, flat_vectors
from tests.oracles.flat_page_tables import FLAT, VECTORS, Access, Case, Fault, Kind, Page, read
from tests.running import wait_until

if TYPE_CHECKING:
    from pathlib import Path

CASES = {case.name: case for case in read()}


def test_the_vectors_are_those_that_their_maker_makes() -> None:
    assert VECTORS.read_text(encoding="ascii") == flat_vectors.text(flat_vectors.cases()), (
        "run: python -m tests.oracles.flat_vectors"
    )


def test_the_walker_does_what_the_vectors_say() -> None:
    for case in CASES.values():
        for access in case.accesses:
            assert case.translate(access.address, access.kind, user=access.user) == access, case.name


def first(name: str, kind: Kind = "read", *, user: bool = True) -> Access:
    """The first access of that kind in a case."""
    return next(a for a in CASES[name].accesses if a.kind == kind and a.user == user)


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        *(("off", 4), ("l3l2", 3), ("l4l3", 3), ("l2l1", 3), ("l4l3+l2l1", 2)),
        *(("off5", 5), ("l3l2-5", 4), ("l4l3-5", 4), ("l5l4", 4), ("l5l4+l3l2", 3), ("l4l3+l2l1-5", 3)),
    ],
)
def test_cold_walks_read_as_many_entries_as_the_specification_says(name: str, entries: int) -> None:
    assert len(first(f"{name}-low").reads) == entries


@pytest.mark.parametrize(
    ("name", "code"),
    # P, W/R, U/S, RSVD, I/D from bit 0; written from the page's words, not by a walker.
    [
        ("misaligned-4-4-bit12", 0b01101),
        ("misaligned-4-3-bit20", 0b01101),
        ("misaligned-5-5-bit16", 0b01101),
        ("flat-with-ps-4-3", 0b01101),
        ("flat-with-ps-5-5", 0b01101),
        ("flat-level-2-misaligned-bit13", 0b01101),
        ("ps-in-level-4", 0b01101),
        ("rights-l3l2-su-0", 0b00101),
        ("rights-l4l3+l2l1-su-1", 0b00101),
    ],
)
def test_faults_are_those_that_the_specification_names(name: str, code: int) -> None:
    assert first(name).result == Fault(code)


def test_bit_52_means_nothing_unless_it_is_enabled() -> None:
    for level in (4, 3, 2, 1):
        access = first(f"flat-ignored-without-cr4-{level}")
        assert (access.result, len(access.reads)) == (Page(flat_vectors.DATA, 4096), 4)


def test_a_flat_entry_of_level_2_is_a_2_mb_page() -> None:
    # PAT is not a bit of the address.
    assert first("flat-level-2-pat").result == Page(flat_vectors.LARGE + (9 << 12) + 0x80, 1 << 21)


def test_a_folded_level_contributes_no_right() -> None:
    for name in ("l4l3", "l4l3+l2l1"):
        for case in ("glue", "no-glue"):
            for kind in flat_vectors.KINDS:
                assert isinstance(first(f"rights-{name}-{case}", kind).result, Page)


@pytest.mark.parametrize("name", flat_vectors.LAYOUTS)
def test_recursion_reaches_every_entry_by_the_same_formulas(name: str) -> None:
    case = CASES[f"recursion-{name}"]
    path = entries_by_level(case, flat_vectors.address(case.levels, *flat_vectors.INDICES[: case.levels]))
    assert len(path) >= 2
    for level, at in path.items():
        result = case.accesses[level - 1].result
        assert isinstance(result, Page)
        assert result.address == at, level


def entries_by_level(case: Case, address: int) -> dict[int, int]:
    """Where the entries for an address are, by what the entry above says of their level."""
    access = case.translate(address, "read", user=True)
    level = case.levels - (1 if case.cr3 & FLAT else 0)
    path = {}
    for at in access.reads:
        path[level] = at
        level -= 2 if case.words[at] & FLAT else 1
    return path


def test_the_glue_is_an_ordinary_root() -> None:
    old = {name: first(name) for name in CASES if name.startswith("glue-as-root")}
    assert len(old) == 6
    for name, access in old.items():
        assert isinstance(access.result, Page)
        assert len(access.reads) == CASES[name].levels


@pytest.fixture(scope="module")
def qemu() -> Path:
    """QEMU with our series; built now if it is not there."""
    return build.ensure(components.QEMU)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the bare machine's programs are built."""
    return tmp_path_factory.mktemp("guest")


@pytest.mark.slow
@pytest.mark.parametrize("feature", [True, False], ids=["feature", "no-feature"])
@pytest.mark.parametrize("levels", [4, 5])
def test_qemu_does_what_the_vectors_say(
    qemu: Path, built: Path, tmp_path: Path, levels: int, *, feature: bool
) -> None:
    cases = [case for case in CASES.values() if case.levels == levels and case.feature == feature]
    cpu = "max,flat-pt-check=on" + (",+flat-pt" if feature else "")
    plugin, walks = flat_machine.build_plugin(qemu, tmp_path), tmp_path / "walks"
    guest = flat_machine.build_guest(built, "run")
    wrong: list[str] = []
    seen: set[str] = set()
    options = ("-plugin", f"{plugin},out={walks}")
    with flat_machine.running(qemu, guest, tmp_path, cases, cpu=cpu, options=options) as machine:
        for case, results in flat_machine.results(machine, cases):
            if case.name not in seen:
                wrong += flat_machine.wrong_accesses(case, results)
                wrong += flat_machine.wrong_translations(case, machine.monitor)
                if not case.name.startswith("recursion"):  # there is no end to what such tables map
                    wrong += flat_machine.wrong_listings(case, machine.monitor)
            else:
                wrong += flat_machine.wrong_loads(case, results)
            seen.add(case.name)
    wrong += flat_machine.wrong_walks(cases, walks.read_text(encoding="ascii").splitlines())
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])
    assert len(seen) == len(cases)
    assert "missing flush" not in machine.errors


@pytest.mark.slow
@pytest.mark.parametrize("levels", [4, 5])
def test_the_engine_walks_again_what_qemu_has_walked(
    qemu: Path, built: Path, tmp_path: Path, levels: int
) -> None:
    # The engine takes the machine's word for what is in memory, and must look for it in the same places.
    cases = [case for case in CASES.values() if case.levels == levels and case.feature]
    plugin, walks = flat_machine.build_plugin(qemu, tmp_path), tmp_path / "walks"
    options = ("-plugin", f"{plugin},out={walks}")
    guest = flat_machine.build_guest(built, "run")
    with flat_machine.running(qemu, guest, tmp_path, cases, cpu="max,+flat-pt", options=options) as machine:
        assert len(list(flat_machine.results(machine, cases))) == 2 * len(cases)
    lines = walks.read_bytes()
    assert replayed(lines) == (0, f"{len(lines.splitlines())} walks agree\n", "")
    walk = next(line for line in lines.splitlines() if b" page " in line)
    spoilt = walk.replace(b" page ", b" page 1")
    code, _, errors = replayed(b"\n".join([walk, spoilt, b""]))
    assert code == 1
    assert errors.startswith("after 1 walks: the machine found 0x1")


def replayed(lines: bytes) -> tuple[int, str, str]:
    """Exit status, output and errors of the engine's replay."""
    done = subprocess.run([crates.built("replay_walks")], input=lines, capture_output=True, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def flushing(qemu: Path, built: Path, directory: Path, *, grace_ms: int) -> flat_machine.Machine:
    """The bare machine that flushes and forgets to."""
    cpu = f"max,+flat-pt,flat-pt-check=on,flat-pt-check-grace={grace_ms}"
    # Where the program looks for the number of levels.
    levels = ("-device", f"loader,addr={flat_machine.PLACE + 8:#x},data=4,data-len=8")
    guest = flat_machine.build_guest(built, "flush")
    return flat_machine.Machine(qemu, guest, directory, cpu=cpu, options=levels)


@pytest.mark.slow
@pytest.mark.parametrize("grace", [0, 3_600_000], ids=["no-grace", "grace"])
def test_qemu_finds_flushes_that_are_missing_and_no_others(
    qemu: Path, built: Path, tmp_path: Path, grace: int
) -> None:
    steps = 0
    reported = 0
    name = ""
    with flushing(qemu, built, tmp_path, grace_ms=grace) as machine:
        for words in machine.lines():
            match words:
                case ["until", _]:  # it begins, and is enough
                    machine.go_on()
                    machine.go_on()
                case ["step", name]:
                    pass
                case _:
                    before, reported = reported, machine.missing_flushes()
                    # Until the flush is due, what is out of use or gone may still be found.
                    missing = name.startswith("!") and not (grace and name.endswith("-not-flushed-in-time"))
                    assert (reported > before) == missing, name
                    steps += 1
    assert steps == 45
    reports = [line for line in machine.errors.splitlines() if "missing flush" in line]
    kinds = ["no page", "another page", "a reserved bit", "more rights", "a dirty bit in another entry"]
    overdue = ["a page that is gone", "a table out of use"]
    overdue += ["another protection key", "a write that sets no dirty bit"]
    for what in [*kinds, *([] if grace else overdue)]:
        assert any(line.endswith(f"gives {what}") for line in reports), what


@pytest.mark.slow
def test_qemu_finds_what_is_used_all_the_time_or_once_much_later(
    qemu: Path, built: Path, tmp_path: Path
) -> None:
    found = []
    before = 0
    with flushing(qemu, built, tmp_path, grace_ms=20) as machine:

        def is_reported() -> bool:
            return machine.missing_flushes() > before

        for words in machine.lines():
            if words[0] == "until":
                before = machine.missing_flushes()
                machine.go_on()
                # One may be reported only once, which is not before the machine is told to begin.
                wait_until(is_reported)
                found.append(words[1])
                machine.go_on()
    assert found == ["used-all-the-time", "written-all-the-time", "used-once-much-later"]


@pytest.mark.slow
def test_dumps_give_the_addresses_of_pages_under_flat_tables(qemu: Path, built: Path, tmp_path: Path) -> None:
    case = CASES["l4l3+l2l1-low"]
    guest, dump = flat_machine.build_guest(built, "run"), tmp_path / "dump"
    with flat_machine.running(qemu, guest, tmp_path, [case], cpu="max,+flat-pt") as machine:
        next(flat_machine.results(machine, [case]))
        machine.monitor.execute(
            "dump-guest-memory",
            paging=True,
            protocol=f"file:{dump}",
            begin=flat_vectors.DATA,
            length=0x1_0000,
        )
    found = flat_machine.dumped(dump)
    expected = [(address, frame) for address, frame, _, _ in flat_machine.pages(case)]
    assert len(expected) >= 5
    assert set(expected) <= set(found)


@pytest.mark.slow
def test_a_machine_goes_on_with_its_flat_root_after_migration(
    qemu: Path, built: Path, tmp_path: Path
) -> None:
    cases = [CASES["l4l3+l2l1-low"], CASES["controls-4-flat"]]
    guest, state = flat_machine.build_guest(built, "run"), tmp_path / "state"
    places = tmp_path / "source", tmp_path / "target"
    for place in places:
        place.mkdir()
    with flat_machine.running(qemu, guest, places[0], cases, cpu="max,+flat-pt") as source:
        case, seen = next(flat_machine.results(source, cases))
        assert flat_machine.wrong_accesses(case, seen) == []
        source.migrate(state)
    incoming = ("-incoming", f"exec:cat {state}")
    with flat_machine.running(qemu, guest, places[1], cases, cpu="max,+flat-pt", options=incoming) as target:
        target.arrive()
        # It waits with the case's root, goes on with the loads, of which there are none, and the next case.
        assert flat_machine.wrong_translations(case, target.monitor) == []
        target.go_on()
        results = list(flat_machine.results(target, cases))
    assert [other.name for other, _ in results] == ["controls-4-flat"] * 2
    assert flat_machine.wrong_loads(*results[1]) == []
