"""Page tables and mechanisms that are written in Python."""

# ruff: noqa: ARG002 - hooks have the parameters that they have

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flatwalk as fw
from flatwalk.prototypes import adapters
from tests.prototypes.hashed import Hashed
from tests.prototypes.leaf_map import LeafMap
from tests.prototypes.next_page import NextPage
from tests.running import PATIENCE_SECONDS, waited_for

SHORT: dict[str, Any] = {
    "workload": "gups:16MiB",
    "instructions": "60K",
    "warmup": "20K",
    "exhaustive": True,
    "large_pages": [0, 50],
}
#: Keys of a run that say which scheme it was, and what was said of it in words.
NAMES = {"scheme", "configuration", "blame"}


def figures(run: Any) -> dict[str, Any]:
    """What a run found, without the scheme's name."""
    return {key: value for key, value in run.items() if key not in NAMES}


def test_a_table_in_python_gives_what_the_same_in_rust_does() -> None:
    """Every count and cycle, with large pages and growing tables; the first 32 buckets are too few."""
    shipped = fw.Scheme.named("hashed").changed({"table.buckets": 32}, name="rust")
    for mode in ("timing", "functional"):
        rust, python = (
            fw.compare(schemes=[scheme], mode=mode, **{**SHORT, "warmup": 0}).runs
            for scheme in (shipped, fw.Scheme.of(Hashed(32), name="python"))
        )
        assert len(rust) == len(python) == 2
        for one, other in zip(rust, python, strict=True):
            assert one["walks"] > 0
            assert figures(one) == figures(other)
        assert rust[0]["os"]["resizes"] > 0


def test_tables_in_python_pass_the_tests_of_every_organisation() -> None:
    fw.check_organisation(LeafMap, cases=4)
    fw.check_organisation(Hashed(32), cases=4, seed=2)


class Forgetful(LeafMap):
    """A mistake: an entry stays when its page goes."""

    def remove(self, memory: fw.Memory, number: int) -> None:
        assert memory.read(self.slot(number))


def test_a_mistake_is_shown_by_the_shortest_steps() -> None:
    with pytest.raises(fw.FlatwalkError, match="does not do what it is told") as caught:
        fw.check_organisation(Forgetful, cases=20, seed=3)
    steps = [line for line in str(caught.value).splitlines() if line.startswith(("  1.", "  2.", "  3."))]
    first, second = (step.split(" ")[3] for step in steps)
    assert (first, second in {"unmap", "split"}) == ("map", True), "the page that went is still there"
    with pytest.raises(fw.FlatwalkError) as again:
        fw.check_organisation(Forgetful(), cases=20, seed=3)
    assert str(again.value) == str(caught.value)


class Greedy(LeafMap):
    """Memory that is refused is not expected."""

    def insert(self, memory: fw.Memory, number: int, entry: int) -> None:
        try:
            super().insert(memory, number, entry)
        except fw.OutOfMemory:
            raise LookupError("no memory") from None


class Full(LeafMap):
    """It has room for 100 pages, whatever memory there is."""

    def create(self, memory: fw.Memory) -> None:
        self.left = 100
        super().create(memory)

    def insert(self, memory: fw.Memory, number: int, entry: int) -> None:
        if not self.left:
            raise fw.OutOfMemory
        self.left -= 1
        super().insert(memory, number, entry)


class Nowhere(LeafMap):
    """It cannot even be made."""

    def create(self, memory: fw.Memory) -> None:
        raise fw.OutOfMemory


@pytest.mark.parametrize("table", [Full, Nowhere])
def test_a_table_without_room_is_not_memory_that_is_used_up(table: type[fw.Organisation]) -> None:
    with pytest.raises(fw.FlatwalkError, match="has no room for another entry") as caught:
        fw.simulate(fw.Scheme.of(table()), **{**SHORT, "large_pages": 0})
    assert "used up" not in str(caught.value)
    assert re.search(r"though \d{9,} of the simulated machine's \d+ bytes are free", str(caught.value))


class Outside(LeafMap):
    def first(self, number: int) -> int:
        return 1 << 40


class Odd(LeafMap):
    def first(self, number: int) -> int:
        return self.slot(number) + 4


class Wordless(LeafMap):
    def first(self, number: int) -> int:
        return "nowhere"  # type: ignore[return-value]


class Endless(LeafMap):
    def answer(self, number: int, at: int, line: list[int]) -> Any:
        return fw.Next(at)


class Bare(LeafMap):
    def answer(self, number: int, at: int, line: list[int]) -> Any:
        return at


class Elsewhere(LeafMap):
    def answer(self, number: int, at: int, line: list[int]) -> fw.Found:
        return fw.Found(at + 64)


class Stray(LeafMap):
    def insert(self, memory: fw.Memory, number: int, entry: int) -> None:
        memory.write(1 << 40, entry)


class Small(LeafMap):
    def create(self, memory: fw.Memory) -> None:
        memory.allocate(64)


class Peeking(LeafMap):
    """A walk's reads must be seen by the caches."""

    def create(self, memory: fw.Memory) -> None:
        super().create(memory)
        self.memory = memory

    def answer(self, number: int, at: int, line: list[int]) -> fw.Found:
        self.memory.read(at)
        return fw.Found(at)


class Failing(LeafMap):
    def answer(self, number: int, at: int, line: list[int]) -> fw.Found:
        return fw.Found(line[8])


class Blind(LeafMap):
    """Loses every page."""

    def answer(self, number: int, at: int, line: list[int]) -> Any:
        return None


class Miscounting(LeafMap):
    def create(self, memory: fw.Memory) -> None:
        super().create(memory)
        self.grown = -1


class Empty(fw.Organisation):
    pass


@pytest.mark.parametrize(
    ("organisation", "hook", "words"),
    [
        (Outside, "first", "outside of the memory that this table allocated"),
        (Odd, "first", "not the address of an 8-byte word"),
        (Wordless, "first", "returned 'nowhere', which is not the address of a word"),
        (Endless, "answer", "reads more than 255 lines for page"),
        (Bare, "answer", "which is not Found, Next or None"),
        (Elsewhere, "answer", "which is not in the line read"),
        (Stray, "insert", "outside of the memory that this table allocated"),
        (Small, "create", "a block has 4096 bytes, or a larger power of two, not 64"),
        (Peeking, "answer", "a walk reads what `first` and `answer` return"),
        (Failing, "answer", "IndexError: list index out of range"),
        (Blind, "answer", "does not find page number 0x"),
        (Miscounting, "create", "which are not counts of resizes"),
        (Empty, "create", "needs a method `create`"),
    ],
)
def test_what_a_table_may_not_do_is_an_error_that_names_the_line(
    organisation: type[fw.Organisation], hook: str, words: str
) -> None:
    for table in (fw.simulate, fw.walk):
        asked = {**SHORT, "large_pages": 0} if table is fw.simulate else {"workload": "gups:16MiB"}
        with pytest.raises(fw.FlatwalkError) as caught:
            table(scheme=fw.Scheme.of(organisation()), **asked)
        error = caught.value
        assert error.what.startswith(f"{organisation.__name__}.{hook} ")
        assert words in error.what
        if organisation is not Empty:
            lines, start = inspect.getsourcelines(getattr(organisation, hook))
            file, _, line = str(error.where).rpartition(":")
            assert file == __file__
            assert start <= int(line) < start + len(lines)
        else:
            assert error.where == __file__, "its method is to be written there"
        assert f"fix {error.where}" in str(error.remedy)


@dataclass(frozen=True)
class Frozen(LeafMap):
    entries: int = 512


class Thawed(Frozen):
    def __init__(self) -> None:
        """Without fields."""


@dataclass(frozen=True)
class FrozenMechanism(fw.Mechanism):
    pages: int = 1

    def missed(self, miss: fw.Miss) -> None:
        """Has nothing."""


class Misspelt(fw.Mechanism):
    def mised(self, miss: fw.Miss) -> None:
        self.counts["missed"] += 1


class Inherited(Misspelt):
    takes_walker = True

    def begin(self) -> None:
        self.pages: set[int] = set()


class Hookless(fw.Mechanism):
    pass


@pytest.mark.parametrize(
    ("own", "words", "remedy"),
    [
        (Frozen(), "Frozen is frozen", "leave out frozen=True"),
        (FrozenMechanism(), "FrozenMechanism is frozen", "leave out frozen=True"),
        (Misspelt(), "has no hook", "mised may be meant to be missed; there are missed, before_walk, "),
        (Inherited(), "has no hook", "mised may be meant to be missed; there are missed, "),
        (Hookless(), "has no hook", "there are missed, before_walk, after_walk, populated, filled, "),
    ],
)
def test_a_class_that_cannot_work_is_refused_at_once(
    own: fw.Organisation | fw.Mechanism, words: str, remedy: str
) -> None:
    with pytest.raises(fw.UsageError, match=words) as caught:
        fw.Scheme.of(own)
    assert caught.value.where == __file__
    assert str(caught.value.remedy).startswith(remedy)
    fw.check_organisation(Thawed, cases=1)


@dataclass(slots=True)
class Slotted(fw.Mechanism):
    pages: int = 1

    def missed(self, miss: fw.Miss) -> None:
        """Has nothing."""


def test_parameters_in_slots_are_shown() -> None:
    one, other = (fw.Scheme.of(Slotted(pages)).table for pages in (1, 2))
    assert [one["python"][0]["parameters"], other["name"]] == [{"pages": 1}, "radix4+Slotted(pages=2)"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_parameter_is_a_finite_number(number: float) -> None:
    with pytest.raises(fw.UsageError, match=f"{number} is not a parameter") as caught:
        fw.Scheme.of(Hashed(number))  # type: ignore[arg-type]
    assert caught.value.where == "Hashed.buckets"
    assert caught.value.remedy


def test_an_exception_is_the_cause_and_is_found_by_the_check() -> None:
    with pytest.raises(fw.FlatwalkError) as caught:
        fw.simulate(fw.Scheme.of(Failing()), **{**SHORT, "large_pages": 0})
    assert isinstance(caught.value.__cause__, IndexError)
    with pytest.raises(fw.FlatwalkError, match=r"(?s)LookupError: no memory.*memory is refused"):
        fw.check_organisation(Greedy)


@pytest.mark.parametrize(("seconds", "told"), [(0.0321, "of 32 ms went"), (2.5, "of 2.5 s went")])
def test_a_short_time_is_in_milliseconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seconds: float, told: str
) -> None:
    times = iter([10.0, 10.0 + seconds])
    monkeypatch.setattr(adapters, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    with adapters.timed([{"scheme": {"table": {"class": "Own", "code": "0"}}}]):
        pass
    assert told in " ".join(capsys.readouterr().err.split())


def test_the_share_of_python_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (fw.simulate(fw.Scheme.of(LeafMap()), **{**SHORT, "large_pages": 0}) for _ in range(2))
    assert json.dumps(one) == json.dumps(other), "the same seed, the same bytes"
    notes = " ".join(capsys.readouterr().err.split())
    assert notes.count("LeafMap: Python, which is slow:") == 2
    assert " % of " in notes.replace("%", " %")
    fw.simulate("radix4", **{**SHORT, "large_pages": 0})
    assert "Python" not in capsys.readouterr().err


def test_a_scheme_says_which_class_it_is() -> None:
    scheme = fw.Scheme.of(Hashed(64), base="radix5")
    table = scheme.table["table"]
    assert (scheme.name, scheme.title) == ("Hashed(buckets=64)", "A hashed page table in Python.")
    assert table["class"] == "Hashed"
    assert table["file"] == "hashed.py"
    assert table["levels"] == 5
    assert table["parameters"] == {"buckets": 64}
    assert fw.Scheme.of(Hashed(64), base="radix5") == scheme
    assert fw.Scheme.of(Hashed(32)).table["table"]["code"] != table["code"]
    with pytest.raises(fw.UsageError, match="make another Hashed"):
        scheme.changed({"table.parameters.buckets": 32})
    changed = scheme.table
    changed["table"]["code"] = "0" * 16
    with pytest.raises(fw.UsageError, match="runs only in a process that made a scheme of it"):
        fw.Scheme(changed)


def test_classes_of_one_name_are_told_apart() -> None:
    def made(bytes_: int) -> type[LeafMap]:
        class Made(LeafMap):
            def create(self, memory: fw.Memory) -> None:
                super().create(memory)
                memory.allocate(bytes_, "spare")

        return Made

    small, large = (fw.Scheme.of(made(size)(), name=str(size)) for size in (4096, 1 << 16))
    runs = fw.compare(schemes=[small, large], **{**SHORT, "large_pages": 0}).runs
    difference = runs[1]["page_table_bytes"] - runs[0]["page_table_bytes"]
    assert difference == (1 << 16) - 4096


def test_what_cannot_be_written_down_or_sent_away_is_refused(tmp_path: Path) -> None:
    table = LeafMap()
    table.nodes = {}
    with pytest.raises(fw.UsageError, match="a dict is not a parameter"):
        fw.Scheme.of(table)
    sweep = {"name": "s", "workloads": ["gups:16MiB"], "schemes": [fw.Scheme.of(LeafMap())]}
    with pytest.raises(fw.UsageError, match="runs them in other processes"):
        fw.sweep(sweep, tmp_path)


def test_a_table_in_python_is_a_guests_or_a_hosts_too() -> None:
    guest = fw.Scheme.named("virt-radix4").table
    python = fw.Scheme.of(LeafMap()).table["table"]
    rust = fw.Scheme.named("hashed").table["table"] | {"buckets": 32}
    again = fw.Scheme.of(Hashed(32)).table["table"]
    asked = {**SHORT, "large_pages": 0, "instructions": "30K"}
    assert fw.simulate(fw.Scheme(guest | {"table": python}), **asked)["walks"] > 0
    pair = [
        fw.simulate(fw.Scheme(guest | {"table": one, "host": {"table": one}}), **asked)
        for one in (rust, again)
    ]
    assert figures(pair[0]) == figures(pair[1])


@pytest.mark.parametrize("then", ["pass", "while True: pass"])
def test_ctrl_c_ends_a_simulation_in_python(then: str, tmp_path: Path) -> None:
    program = """
import os, time
import flatwalk as fw
from tests.prototypes.leaf_map import LeafMap
class Slow(LeafMap):
    begun = False
    def answer(self, number, at, line):
        if not Slow.begun:
            print("begun", flush=True)
            Slow.begun = True
            THEN
        return super().answer(number, at, line)
try:
    fw.simulate(fw.Scheme.of(Slow()), workload="gups:64MiB", instructions="100G", exhaustive=True)
except KeyboardInterrupt:
    print("stopped", flush=True)
while len(os.listdir("/proc/self/task")) > 1:  # no thread stays in the class
    time.sleep(0.01)
"""
    root = Path(__file__).parents[1]
    (tmp_path / "slow.py").write_text(program.replace("THEN", then), encoding="utf-8")
    with waited_for(
        subprocess.Popen(
            [sys.executable, tmp_path / "slow.py"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert out.splitlines()[-1] == "stopped"
    assert process.returncode == 0


SWEEP: dict[str, Any] = {"workload": "stream:16MiB", "large_pages": 0, "exhaustive": True, "warmup": 0}


def test_a_prefetcher_in_python_saves_every_other_walk() -> None:
    asked = {**SWEEP, "instructions": "200K"}
    alone = fw.simulate("radix4", **asked)
    run = fw.simulate(fw.Scheme.of(NextPage(1)), **asked)
    assert run["scheme"] == "radix4+NextPage(pages=1)"
    assert run["walks"] == pytest.approx(alone["walks"] / 2, abs=3)
    counted = run["mechanisms"]["python"]["NextPage"]["prefetches"]
    assert counted == pytest.approx(alone["walks"] / 2, abs=5)
    assert f"NextPage counted {counted} prefetches" in run["mechanism_words"]
    assert run == fw.simulate(fw.Scheme.of(NextPage(1)), **asked)


@pytest.mark.slow
def test_a_mechanism_in_python_gives_what_the_same_in_rust_does() -> None:
    """Its figures stand in CONTRIBUTING.md, which the class in Rust printed."""
    asked: dict[str, Any] = {"large_pages": 0, "exhaustive": True, "instructions": "5M", "warmup": "10M"}
    found = fw.compare(
        workload="stream:1GiB", schemes=["radix4", fw.Scheme.of(NextPage(1), name="x")], **asked
    )
    document = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [row] = re.findall(r"^radix4\+next +(.*?) *$", document, re.MULTILINE)
    run = found.run("x")
    speedup, ipc, walks, _accesses, cycles, *_ = row.replace(" %", "").split()
    assert f"{100 * (run['speedup'] or 0) - 100:+.1f}" == speedup
    assert f"{run['ipc']:.3f}" == ipc
    assert f"{1000 * run['walks'] / run['instructions']:.3f}" == walks
    assert f"{run['walk_latency_cycles']:.1f}" == cycles


class Watcher(fw.Mechanism):
    """Knows what the TLB holds from what came and went."""

    def begin(self) -> None:
        self.held: set[int] = set()

    def missed(self, miss: fw.Miss) -> None:
        assert miss.kind in {"load", "store", "fetch"}
        assert miss.found is None
        assert miss.holds(miss.address) == (miss.address >> 12 in self.held)
        assert not miss.holds(miss.address)
        self.counts["misses"] += 1

    def before_walk(self, miss: fw.Miss) -> None:
        self.counts["begun"] += 1

    def after_walk(self, miss: fw.Miss) -> None:
        self.counts["ended"] += 1

    def filled(self, address: int, level: int) -> None:
        assert level == 1
        self.held.add(address >> 12)

    def evicted(self, page: int, level: int) -> None:
        self.held.remove(page >> 12)

    def flush(self, start: int, length_bytes: int) -> None:
        self.held = {page for page in self.held if not start <= page << 12 < start + length_bytes}

    def switch_context(self) -> None:
        self.held.clear()
        self.counts["switches"] += 1


def test_every_hook_is_called_where_its_name_says() -> None:
    asked = {**SHORT, "large_pages": 0, "warmup": 0, "context_switch_ms": 0.02}
    run = fw.simulate(fw.Scheme.of(Watcher()), **asked)
    counts = run["mechanisms"]["python"]["Watcher"]
    assert counts["misses"] == run["walks"] + run["os"]["faults"], "a walk that faults is made again"
    assert counts["begun"] == counts["ended"] >= counts["misses"]
    assert counts["switches"] == run["os"]["context_switches"]
    measured = fw.simulate(fw.Scheme.of(Watcher()), **{**asked, "warmup": "30K", "context_switch_ms": None})
    counted = measured["mechanisms"]["python"]["Watcher"]
    assert counted["misses"] == measured["walks"], "the warm-up does not count"


def test_both_of_ones_own_go_together() -> None:
    asked = {**SWEEP, "instructions": "50K"}
    scheme = fw.Scheme.of(Hashed(32), NextPage(1))
    assert scheme.name == "Hashed(buckets=32)+NextPage(pages=1)"
    shipped = fw.Scheme.named("hashed").changed({"table.buckets": 32})
    both, rust = (fw.simulate(one, **asked) for one in (scheme, fw.Scheme.of(NextPage(1), base=shipped)))
    assert both["mechanisms"] == rust["mechanisms"]
    assert figures(both) == figures(rust)
    with pytest.raises(fw.FlatwalkError, match=r"^Failing\.answer failed: IndexError"):
        fw.simulate(fw.Scheme.of(Failing(), NextPage(1)), **asked)
    for parts in ((), (LeafMap(), Hashed(32)), (NextPage(1), NextPage(2))):
        with pytest.raises(fw.UsageError, match="a scheme has one page table"):
            fw.Scheme.of(*parts)
    twice = fw.Scheme.of(NextPage(1))
    with pytest.raises(fw.FlatwalkError, match=r"python\[2\]\.class.* is there twice"):
        fw.simulate(fw.Scheme.of(NextPage(2), base=twice), **asked)


class Forged(fw.Mechanism):
    """Says that the page lies elsewhere."""

    def after_walk(self, miss: fw.Miss) -> None:
        if miss.found is not None:
            miss.insert(miss.found._replace(frame=miss.found.frame + 4096))


class Waiting(fw.Mechanism):
    def after_walk(self, miss: fw.Miss) -> None:
        miss.wait(1)


class Memoryless(fw.Mechanism):
    def missed(self, miss: fw.Miss) -> fw.Translation | None:
        miss.read(0)
        return None


class Answering(fw.Mechanism):
    def missed(self, miss: fw.Miss) -> fw.Translation | None:
        return miss.address  # type: ignore[return-value]


class Early(fw.Mechanism):
    def after_walk(self, miss: fw.Miss) -> None:
        miss.walk(miss.address, miss.time - 1)


class Keeper(fw.Mechanism):
    def missed(self, miss: fw.Miss) -> None:
        self.miss = miss

    def filled(self, address: int, level: int) -> None:
        self.miss.holds(address)


class Uncopied(fw.Mechanism):
    """Cannot be had on another core."""

    def begin(self) -> None:
        self.pages = (page for page in [])  # type: ignore[var-annotated]

    def after_walk(self, miss: fw.Miss) -> None:
        """Sees nothing."""


class Uncounted(fw.Mechanism):
    def missed(self, miss: fw.Miss) -> None:
        self.counts["x"] -= 1


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        (Early, "no walk can begin in cycle"),
        (Forged, "is not that of the page that is there now"),
        (Waiting, "only `missed` can take time"),
        (Memoryless, "byte 0 is outside of the mechanism's memory"),
        (Answering, "which is not a Translation or None"),
        (Keeper, "a miss is there until its hook returns"),
        (Uncopied, "something in it cannot be copied"),
        (Uncounted, "counted -1 'x', which is not a count"),
    ],
)
def test_what_a_mechanism_may_not_do_is_an_error(mechanism: type[fw.Mechanism], words: str) -> None:
    with pytest.raises(fw.FlatwalkError, match=words) as caught:
        fw.simulate(fw.Scheme.of(mechanism()), **{**SHORT, "large_pages": 0})
    assert caught.value.what.startswith(f"{mechanism.__name__}.")
    assert str(caught.value.where).startswith(__file__)


def test_the_examples_of_the_document_are_short_and_are_what_is_tested() -> None:
    page = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for own in (LeafMap, NextPage):
        [example] = [one for one in examples if f"class {own.__name__}(" in one]
        assert inspect.getsource(own) in example
        assert len(example.splitlines()) <= 50
