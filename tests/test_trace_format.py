"""docs/trace-format.md is enough to read a trace: a reader written from it sees what the engine sees."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk import engine
from flatwalk.errors import FlatwalkError
from flatwalk.recorder import record
from tests import crates
from tests.oracles.trace_reader import BRANCHES, Definition, FormatError, Instruction, Item, Slice, Trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Result


def example(name: str, *arguments: str | Path) -> str:
    """Runs one of the trace crate's examples."""
    done = subprocess.run(
        [crates.built(name), *map(str, arguments)], check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace that has everything there is."""
    path = tmp_path_factory.mktemp("written") / "sample.fwt"
    example("sample", path)
    return path


def _instruction(instruction: Instruction) -> list[Any]:
    pc, length, kind, operands = instruction
    if kind == 2:
        return [pc, length, list(operands[:4]), list(operands[4:8]), BRANCHES[operands[8]]]
    return [pc, length] if kind == 0 else [pc, length, list(operands)]


def as_dumped(item: Item) -> dict[str, Any]:
    match item:
        case Definition():
            return {
                "define": item.number,
                "instructions": [_instruction(instruction) for instruction in item.instructions],
                "accesses": [list(access) for access in item.accesses],
            }
        case Slice():
            return {"thread": item.thread, "blocks": item.blocks, "addresses": item.addresses}
        case _:
            return item


def compare(path: Path) -> Trace:
    """The engine and the reader agree on everything that the file says."""
    trace = Trace(path)
    info = engine.trace_info(path, verify=True)
    assert {key: info[key] for key in trace.found} == trace.found
    assert {key: info[key] for key in trace.header} == trace.header
    assert info["ended_early"] == trace.ended_early
    dumped = [json.loads(line) for line in example("items", path).splitlines()]
    # Definitions may come at any time before their use.
    dumped.sort(key=lambda item: "define" not in item)
    assert dumped == [as_dumped(item) for item in trace.items()]
    return trace


def test_a_written_trace(written: Path) -> None:
    trace = compare(written)
    assert not trace.ended_early
    assert trace.found["threads"] > 2
    assert len(trace.found["events"]) == 16
    assert trace.found["gap_instructions"] > 0
    assert trace.header["segment_instructions"] == 5_000_000
    assert trace.header["gap_pages"]
    # Every way to code an address, but for the rarest.
    assert set(trace.codes) >= set(range(18))
    epochs = [epoch for epoch, item in trace.stored if isinstance(item, Slice)]
    assert epochs != sorted(epochs)


def test_a_trace_that_ended_early(written: Path, tmp_path: Path) -> None:
    whole = Trace(written)
    slices = [chunk for chunk in whole.chunks if chunk.kind == 4]
    cut = tmp_path / "cut.fwt"
    for end in [slices[len(slices) // 2].end, slices[-1].end - 1]:
        cut.write_bytes(written.read_bytes()[:end])
        trace = compare(cut)
        assert trace.ended_early
        assert 0 < trace.found["instructions"] < whole.found["instructions"]


def test_a_recorded_trace(tmp_path: Path) -> None:
    path = tmp_path / "recorded.fwt"
    record(["/bin/echo", "hello"], path, limit=300_000)
    trace = compare(path)
    assert trace.found["instructions"] > 10_000
    assert trace.header["architecture"] == "x86_64"


def test_an_export_says_what_is_not_in_it(
    written: Path, tmp_path: Path, flatwalk: Callable[..., Result]
) -> None:
    cut, target = tmp_path / "cut.fwt", tmp_path / "sample.champsim"
    cut.write_bytes(written.read_bytes()[:-1])
    result = flatwalk("trace", "export", cut, target)
    assert result.code == 0, result.err
    begin = re.match(rf"{re.escape(str(target))}: (\d+) instructions, ", result.out)
    assert begin, result.out
    assert target.stat().st_size == 64 * int(begin[1])
    registers = "instructions' registers"
    for what in ["loads (", "stores (", registers, "instructions of other threads", "instructions of gaps"]:
        assert re.search(rf"^left out: [1-9]\d* {re.escape(what)}", result.out, re.MULTILINE), result.out
    assert "the end of the trace is missing" in result.out


def test_nothing_is_not_exported(tmp_path: Path, flatwalk: Callable[..., Result]) -> None:
    whole, cut, target = (tmp_path / name for name in ("whole.fwt", "cut.fwt", "sample.champsim"))
    record(["/bin/true"], whole, limit=20_000)
    cut.write_bytes(whole.read_bytes()[:300])  # within what comes before the first instruction
    result = flatwalk("trace", "export", cut, target)
    assert result.code == 2
    assert "cut.fwt holds no instruction\n  where:  SOURCE\n" in result.err
    assert not target.exists()


def test_damage_is_seen_by_both(written: Path, tmp_path: Path) -> None:
    data = written.read_bytes()
    damaged = tmp_path / "damaged.fwt"
    for at in range(20, len(data) - 32, len(data) // 8):
        damaged.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(FormatError):
            Trace(damaged)
        with pytest.raises(FlatwalkError, match="damaged at byte"):
            engine.trace_info(damaged, verify=True)
