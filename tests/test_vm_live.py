"""`vm run --record`: what a trace of a guest's program holds, against the same program recorded alone and
against a walker that was written from the specification."""

from __future__ import annotations

import json
import subprocess
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from flatwalk import engine
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.recorder import Checked, KernelWork, Part, ProcessTrace, record
from flatwalk.vm import components, live, run, timed
from flatwalk.vm.machine import Machine
from tests.oracles.flat_page_tables import NX, Case, Page
from tests.oracles.trace_reader import Definition, Slice, Trace

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
    with pytest.raises(UsageError, match="chosen by one thing") as caught:
        live.record(Machine(), ["true"], tmp_path / "t.fwt", Part(start_at="marker"), program="sort")
    assert caught.value.where == "--program"
    with pytest.raises(UsageError, match="chosen by one thing"):
        live.record(Machine(), ["true"], tmp_path / "t.fwt", program="/usr/bin/sort")
    for option in ("--skip", "--instructions", "--program"):
        result = call("vm", "run", option, "1M", "--", "true")
        assert (result.code, option in result.err) == (2, True)
    result = call("vm", "run", "--record", "t.fwt", "--instructions", "0", "--", "true")
    assert (result.code, "--instructions" in result.err) == (2, True)
    (tmp_path / "kept").write_text("no trace")
    result = call("vm", "run", "--record", "kept", "--", "true")
    assert (result.code, (tmp_path / "kept").read_text()) == (2, "no trace")


def boot(cycles: float, instructions: int = 1000, kernel: KernelWork | None = None) -> timed.Boot:
    """What was simulated of 1000 instructions in a guest, of those that were recorded."""
    run: Any = {
        "cycles": cycles,
        "ipc": 1000 / cycles,
        "instructions": 1000,
        "walks": 20,
        "accesses_per_walk": 1.5,
        "walk_latency_cycles": cycles / 10,
    }
    ideal: Any = {**run, "ipc": 2.0}
    control: Any = {**run, "cycles": 500 + cycles}
    return timed.Boot(run, ideal, control, kernel or KernelWork(0, 0), instructions)


def test_a_mode_is_timed_against_off_in_all_its_boots() -> None:
    rows = [
        timed.Row("gups", "off", 4, [boot(1000), boot(1200)]),
        timed.Row("gups", "l2l1", 4, [boot(880), boot(880)]),
        timed.Row("gups", "l2l1", 5, [boot(880), boot(880)]),
    ]
    off, flat, alone = timed.table(rows).splitlines()[2:]
    assert off == (
        "| gups | off | 4 | 20.00 | 1.50 | 110.0 | 0.917 | 0.458 "
        "| 0.0 | 1.000 | 1.000 | 1.000 | 0.909, 1.091 |"
    )
    assert flat == (
        "| gups | l2l1 | 4 | 20.00 | 1.50 | 88.0 | 1.136 | 0.568 "
        "| 0.0 | 0.863 | 0.800 | 0.800 | 0.800, 0.800 |"
    )
    assert alone.endswith("| – | – | – | – |")
    # In whatever order the modes were measured.
    assert timed.table(rows[::-1]).splitlines()[2:] == [alone, flat, off]


def test_the_kernels_time_is_that_of_the_instructions_simulated() -> None:
    # Half of what was recorded: 300 instructions and 3200 repetitions in its time.
    made = boot(1000, 2000, KernelWork(7000, 6400))
    assert made.cycles == 1000 + 300 * timed.KERNEL_CPI + 3200 / timed.KERNEL_REPETITIONS_PER_CYCLE
    rows = [timed.Row("redis", "off", 4, [boot(500)]), timed.Row("redis", "l2l1", 4, [made])]
    assert timed.table(rows).splitlines()[-1].endswith("| 300.0 | 1.500 | 2.000 | 2.800 |")


def test_what_was_measured_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for component in (components.QEMU, components.LINUX):
        monkeypatch.setattr(type(component), "key", lambda self: self.name)
    asked: list[tuple[str, str, int]] = []

    def measured(program: str, _: list[str], machine: Machine, seed: int, __: Path | None) -> timed.Boot:
        asked.append((program, machine.mode, seed))
        if len(asked) == 3:
            raise FlatwalkError("the guest was lost")
        return boot(100.0 * len(asked))

    monkeypatch.setattr(timed, "_measure", measured)
    with pytest.raises(FlatwalkError, match="lost"):
        timed.measure(["off", "l2l1"], ["gups"], boots=2)
    rows = timed.measure(["off", "l2l1"], ["gups"], boots=2)
    assert asked == [("gups", "off", 1), ("gups", "off", 2), *[("gups", "l2l1", 1)] * 2, ("gups", "l2l1", 2)]
    assert [made.recorded["cycles"] for row in rows for made in row.boots] == [100, 200, 400, 500]
    # What cannot be understood is measured anew, and what decides more is something else.
    for path in (tmp_path / "flatwalk" / "vm" / "timed").iterdir():
        path.write_text("{}")
    timed.measure(["off"], ["gups"])
    timed.measure(["off"], ["gups"], levels=(5,))
    assert len(asked) == 7
    first = tmp_path / "init.c"
    monkeypatch.setattr(run, "first_process", lambda: first)
    for text in ("one", "one", "another"):
        first.write_text(text)
        timed.measure(["off"], ["gups"])
    assert len(asked) == 9


def test_what_a_kernel_complained_of_is_no_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for component in (components.QEMU, components.LINUX):
        monkeypatch.setattr(type(component), "key", lambda self: self.name)
    path = tmp_path / "t.fwt"
    trace = ProcessTrace(path, 1, ["gups"], timed.WARMUP + timed.MEASURED, 0, "limit")
    logs = ["fine\nBUG: Bad page map in process gups  pte:8000 pmd:1\n", "fine\n"]

    def recorded(*_: object, **__: object) -> live.Recording:
        return live.Recording(trace, Checked(1, 1), KernelWork(1, 0), None, log=logs.pop(0))

    answer = {"runs": [boot(100).recorded] * 3}
    monkeypatch.setattr(live, "record", recorded)
    monkeypatch.setattr(engine, "simulate", lambda *_: answer)
    # The guest is stopped at its limit, so that no status says that it failed.
    with pytest.raises(FlatwalkError, match="Bad page map in process gups"):
        timed.measure(["off"], ["gups"])
    (row,) = timed.measure(["off"], ["gups"])
    assert (logs, row.boots[0].recorded["cycles"]) == ([], 100)


def test_a_program_must_be_known() -> None:
    with pytest.raises(UsageError, match="no program 'oracle'"):
        timed.measure(["off"], ["gups", "oracle"])


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph kernels, for this machine."""
    program = tmp_path_factory.mktemp("graph") / "graph"
    source = Path(__file__).parents[1] / "linux" / "tests" / "graph.c"
    subprocess.run(["gcc", "-O2", "-D_GNU_SOURCE", source, "-o", program], check=True)
    return program


def neighbours(vertices: int, degree: int) -> list[list[int]]:
    """The graph that they draw."""
    random, found = 1, []
    for _ in range(vertices * degree):
        random = (random * 6364136223846793005 + 1442695040888963407) % 2**64
        found.append((random >> 20) % vertices)
    return [found[vertex * degree : (vertex + 1) * degree] for vertex in range(vertices)]


@pytest.mark.parametrize(("vertices", "degree"), [(1000, 1), (500, 2), (300, 3)])
def test_graph_kernels_find_what_is_there(graph: Path, vertices: int, degree: int) -> None:
    def said(kernel: str) -> str:
        line = [str(graph), kernel, str(vertices), str(degree), "2"]
        return subprocess.run(line, capture_output=True, check=True, text=True).stdout.splitlines()[0]

    edges = neighbours(vertices, degree)
    # From vertex 1, where the second round begins.
    levels, order = {1: 0}, [1]
    for vertex in order:
        for other in edges[vertex]:
            if other not in levels:
                levels[other] = levels[vertex] + 1
                order.append(other)
    assert said("bfs") == f"reached {len(order)}, depth {levels[order[-1]]}"
    sets = [{vertex, *others} for vertex, others in enumerate(edges)]
    joined: list[set[int]] = []
    for one in sets:
        apart = [other for other in joined if not one & other]
        joined = [*apart, one.union(*(other for other in joined if one & other))]
    assert said("components") == f"components {len(joined)}"
    ranks = [1 / vertices] * vertices
    for _ in range(2):
        ranks = [0.15 / vertices + 0.85 * sum(ranks[other] / degree for other in others) for others in edges]
    assert said("pagerank") == f"sum {sum(ranks):.6f}"


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
# With page-table isolation, the kernel has a way of its own back to the program.
@pytest.mark.parametrize("parameters", [(), ("pti=on",)])
def test_a_guest_executes_what_a_process_alone_does(parameters: tuple[str, ...], tmp_path: Path) -> None:
    program = compiled(tmp_path, "accesses", *BARE, "-fno-tree-vectorize")
    alone = record([str(program)], tmp_path / "alone.fwt")
    machine = Machine("l3l2", memory="512M", parameters=parameters)
    guest = live.record(machine, [str(program)], tmp_path / "guest.fwt")
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
@pytest.mark.parametrize(
    # QEMU's checking mode has PCIDs, which are part of CR3.
    ("mode", "check", "entries"),
    [("off", False, 4), ("l4l3+l2l1", False, 2), ("l4l3+l2l1", True, 2)],
)
def test_the_tables_in_a_trace_translate_all_that_it_does(
    mode: str, check: bool, entries: int, tmp_path: Path
) -> None:
    program = compiled(tmp_path, "accesses", *BARE, "-fno-tree-vectorize")
    command = ["sh", "-c", f"{EAGER} {program}"]
    made = live.record(Machine(mode, memory="512M", check=check), command, tmp_path / "t.fwt")
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


def calls_of(trace: Trace, program: Path) -> dict[str, int]:
    """How often each function of the program was entered."""
    lines = subprocess.run(["nm", program], capture_output=True, check=True, text=True).stdout.splitlines()
    names = {int(line.split()[0], 16): line.split()[2] for line in lines if line[0] != " "}
    made: dict[str, int] = {}
    for instruction in executed(trace):
        if instruction.pc in names:
            made[names[instruction.pc]] = made.get(names[instruction.pc], 0) + 1
    return made


#: As recorder/tests/guests/serves.c has them.
STEPS, SERVED = 4000, (0x2000_0000_0000, 64 << 12)


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
@pytest.mark.parametrize(("mode", "entries"), [("off", 4), ("l4l3+l2l1", 2)])
def test_the_process_that_executes_the_marker_is_recorded(mode: str, entries: int, tmp_path: Path) -> None:
    program = compiled(tmp_path, "serves", "-static", "-pthread", "-no-pie")
    command = ["sh", "-c", f"{EAGER} {program}"]
    made = live.record(Machine(mode, memory="512M"), command, tmp_path / "t.fwt", Part(start_at="marker"))
    assert made.outcome is not None
    assert made.outcome.status == 0
    trace = Trace(made.trace.path)
    calls = calls_of(trace, program)
    assert (calls["in_child"], calls["in_thread"]) == (STEPS, STEPS)
    assert "in_parent" not in calls
    # Whoever got its page tables' memory after it is somebody else.
    assert "afterwards" not in calls
    assert len(trace_events(trace, "thread_start")) == 2
    # Nobody had seen it make its mappings, but they are in memory.
    there = [(event["address"], event["length"]) for event in trace_events(trace, "populate")]
    assert SERVED in there
    reads = []
    for tables, kind, address in walked(trace):
        access = tables.translate(address, kind, user=True)  # type: ignore[arg-type]
        assert isinstance(access.result, Page), f"{kind} of {address:#x}: {access.result}"
        reads.append(len(access.reads))
    assert set(reads) == {entries}


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_a_program_is_recorded_by_its_name(flatwalk: Call, tmp_path: Path) -> None:
    program = compiled(tmp_path, "serves", "-static", "-pthread", "-no-pie")
    done = flatwalk(
        *["vm", "run", "--mode", "off", "--memory", "512M", "--record", "t.fwt", "--program", "serves"],
        *["--", "sh", "-c", f"true; {program} 7; false"],
    )
    assert done.code == 1, done.err
    calls = calls_of(Trace(tmp_path / "t.fwt"), program)
    assert calls["in_parent"] > 0
    assert not {"in_child", "in_thread", "afterwards"} & calls.keys()
    missing = flatwalk("vm", "run", "--record", "u.fwt", "--program", "oracle", "--", "true")
    assert missing.code != 0
    assert "--program" in missing.err


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_the_kernels_work_for_the_program_is_counted(tmp_path: Path) -> None:
    program = compiled(tmp_path, "serves", "-static", "-pthread", "-no-pie")

    def work(calls: int) -> KernelWork:
        path = tmp_path / f"{calls}.fwt"
        command = [str(program), str(calls)]
        part = Part(start_at="marker")
        return live.record(Machine(memory="512M"), command, path, part, seed=1).kernel

    few, many = work(0), work(20_000)
    # Its parent makes system calls all the time; these are not its own.
    assert 1000 < few.instructions < 1_000_000
    assert 20 < (many.instructions - few.instructions) / 20_000 < 300
    assert 0 < few.repeated < few.instructions
