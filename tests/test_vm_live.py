"""`vm run --record`: what a trace of a guest's program holds, against the same program recorded alone and
against a walker that was written from the specification."""

from __future__ import annotations

import json
import subprocess
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from flatwalk.errors import UsageError
from flatwalk.record import Part, record
from flatwalk.vm import live, timed
from flatwalk.vm.run import Machine
from tests.flat_page_tables import NX, Case, Page
from tests.trace_reader import Definition, Slice, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Result

    Call = Callable[..., Result]

GUESTS = Path(__file__).parents[1] / "recorder" / "tests" / "guests"
#: A guest's kernel flattens from one table on.
EAGER = "echo 1 >/proc/sys/vm/flat_page_table_threshold; exec"
LA57, CR4_FLAT = 1 << 12, 1 << 29


def test_what_cannot_be_recorded_is_refused(call: Call, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one CPU") as caught:
        live.record(Machine(cpus=2), ["true"], tmp_path / "t.fwt")
    assert caught.value.where == "--cpus"
    for option in ("--skip", "--instructions"):
        result = call("vm", "run", option, "1M", "--", "true")
        assert (result.code, option in result.err) == (2, True)
    result = call("vm", "run", "--record", "t.fwt", "--instructions", "0", "--", "true")
    assert (result.code, "--instructions" in result.err) == (2, True)
    (tmp_path / "kept").write_text("no trace")
    result = call("vm", "run", "--record", "kept", "--", "true")
    assert (result.code, (tmp_path / "kept").read_text()) == (2, "no trace")


def test_a_mode_is_timed_against_off_in_all_its_boots() -> None:
    def runs(*cycles: int) -> list[Any]:
        return [
            {"cycles": n, "ipc": 1000 / n, "accesses_per_walk": 1.5, "walk_latency_cycles": n / 10}
            for n in cycles
        ]

    rows = [
        timed.Row("gups", "off", 4, runs(1000, 1200), runs(500, 500)),
        timed.Row("gups", "l2l1", 4, runs(880, 880), runs(500, 500)),
        timed.Row("gups", "l2l1", 5, runs(880, 880), runs(500, 500)),
    ]
    off, flat, alone = timed.table(rows).splitlines()[2:]
    assert off == "| gups | off | 4 | 1.50 | 110.0 | 0.917 | 0.458 | 1.000 | 0.909, 1.091 |"
    assert flat == "| gups | l2l1 | 4 | 1.50 | 88.0 | 1.136 | 0.568 | 0.800 | 0.800, 0.800 |"
    assert alone.endswith("| – | –, – |")


class Executed(NamedTuple):
    """An instruction that was executed."""

    pc: int
    #: Kind of each access with its size and address.
    accesses: tuple[tuple[bool, int, int], ...]


def executed(trace: Trace) -> Iterator[Executed]:
    """What ran, whatever blocks it was cut into."""
    blocks: dict[int, Definition] = {}
    for item in trace.items():
        if isinstance(item, Definition):
            blocks[item.number] = item
        elif isinstance(item, Slice):
            addresses = iter(item.addresses)
            for number in item.blocks:
                made: dict[int, list[tuple[bool, int, int]]] = {}
                for access in blocks[number].accesses:
                    made.setdefault(access.instruction, []).append(
                        (bool(access.store), access.size, next(addresses))
                    )
                for index, instruction in enumerate(blocks[number].instructions):
                    yield Executed(instruction.pc, tuple(made.get(index, ())))


def compiled(directory: Path, name: str, *flags: str) -> Path:
    """A test program of the recorder's."""
    program = directory / name
    source = GUESTS / f"{name}.c"
    subprocess.run(["gcc", "-O1", source, *flags, "-o", program], check=True)
    return program


BARE = ("-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fno-pic", "-no-pie", "-mno-avx")


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_a_guest_executes_what_a_process_alone_does(tmp_path: Path) -> None:
    program = compiled(tmp_path, "accesses", *BARE, "-fno-tree-vectorize")
    alone = record([str(program)], tmp_path / "alone.fwt")
    guest = live.record(Machine("l3l2", memory="512M"), [str(program)], tmp_path / "guest.fwt")
    assert guest.outcome is not None
    assert guest.outcome.status == alone.status
    assert guest.warnings == []
    pairs = zip_longest(executed(Trace(alone.path)), executed(Trace(guest.trace.path)))
    assert next((pair for pair in pairs if pair[0] != pair[1]), None) is None
    assert guest.trace.instructions == alone.instructions > 10_000
    assert guest.checked.walks > 100


def walked(trace: Trace) -> Iterator[tuple[Case, str, int]]:
    """Each access of a trace of four-level tables, with the tables as the trace tells them by then."""
    tables = Case("live", 4, feature=True, flat=False, cr3=0)
    blocks: dict[int, Definition] = {}
    for item in trace.items():
        match item:
            case Definition():
                blocks[item.number] = item
            case Slice():
                addresses = iter(item.addresses)
                for number in item.blocks:
                    yield tables, "execute", blocks[number].instructions[0].pc
                    for access in blocks[number].accesses:
                        yield tables, "write" if access.store else "read", next(addresses)
            case {"event": "root", "cr3": cr3, "cr4": cr4}:
                assert not cr4 & LA57
                tables.cr3, tables.flat = cr3, bool(cr4 & CR4_FLAT)
            case {"event": "entry", "address": address, "value": value}:
                tables.words[address] = value


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
@pytest.mark.parametrize(("mode", "entries"), [("off", 4), ("l4l3+l2l1", 2)])
def test_the_tables_in_a_trace_translate_all_that_it_does(mode: str, entries: int, tmp_path: Path) -> None:
    program = compiled(tmp_path, "accesses", *BARE, "-fno-tree-vectorize")
    command = ["sh", "-c", f"{EAGER} {program}"]
    made = live.record(Machine(mode, memory="512M"), command, tmp_path / "t.fwt")
    trace = Trace(made.trace.path)
    reads: list[int] = []
    pages: dict[int, int] = {}
    for tables, kind, address in walked(trace):
        access = tables.translate(address, kind, user=True)  # type: ignore[arg-type]
        assert isinstance(access.result, Page), f"{kind} of {address:#x}: {access.result}"
        reads.append(len(access.reads))
        pages[address >> 12] = access.result.address >> 12
    assert len(reads) > 10_000
    # The end of the program has all of its tables flattened, if any are.
    assert reads[-1] == entries
    assert {entry["value"] & NX for entry in trace_events(trace, "entry")} == {0, NX}


def trace_events(trace: Trace, name: str) -> list[dict[str, Any]]:
    """The events of a kind."""
    return [item for item in trace.items() if isinstance(item, dict) and item["event"] == name]


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_a_recorded_guest_is_compared(flatwalk: Call, tmp_path: Path) -> None:
    # Of a program that maps, forks and computes: the middle of it.
    command = ["python3", "-c", "import subprocess; subprocess.run(['true']); print(sum(range(10**6)))"]
    done = flatwalk(
        *["vm", "run", "--mode", "l2l1", "--memory", "512M", "--record", "t.fwt"],
        *["--skip", "10M", "--instructions", "20M", "--", *command],
    )
    assert done.code == 0, done.err
    assert "the engine's walker and QEMU agree on" in done.err
    events = json.loads(flatwalk("trace", "info", "t.fwt", "--json", "--verify").out)["events"]
    assert {"map", "populate", "root", "entry"} <= events.keys()
    compared = flatwalk(
        *["compare", "--trace", "t.fwt", "--schemes", "radix4,fpt,recorded", "--large-pages", "0"],
        *["--json", "out.json", "--no-report"],
    )
    assert compared.code == 0, compared.err
    runs = {run["scheme"]: run for run in json.loads((tmp_path / "out.json").read_text())["runs"]}
    assert {run["instructions"] for run in runs.values()} == {runs["radix4"]["instructions"]}
    assert runs["recorded"]["walks"] > 100
    # The guest's kernel flattens as the trace's tables say, and no table of ours is there.
    assert {node["level"] for node in runs["recorded"]["page_table"]["nodes"]} <= {
        *("L4", "L3", "L2", "L1", "L2L1")
    }
    refused = flatwalk("compare", "--trace", "t.fwt", "--schemes", "recorded5", "--large-pages", "0")
    assert refused.code != 0
    assert "choose scheme `recorded`" in refused.err


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_nothing_to_record_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="before anything was recorded") as caught:
        live.record(Machine(memory="512M"), ["true"], tmp_path / "t.fwt", Part(skip=10**9))
    assert getattr(caught.value, "where", None) == "--skip"
    assert list(tmp_path.iterdir()) == []
