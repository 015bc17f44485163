"""Buffers of translations that are written in Python, and classes in files of their own."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import flatwalk as fw
from flatwalk import cache, engine
from flatwalk.errors import FlatwalkError
from flatwalk.lab import engines
from flatwalk.prototypes import adapters, scheme_code
from tests.prototypes.leaf_map import LeafMap
from tests.prototypes.next_page import NextPage
from tests.prototypes.part_of_memory import PartOfMemory
from tests.prototypes.sequential import Sequential
from tests.test_prototypes import SHORT, SWEEP, figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Result

FOLDER = Path(__file__).parent / "prototypes"


def mechanism_figures(run: Any) -> dict[str, Any]:
    """What a run found, without what tells a mechanism in Rust from one in Python."""
    walk = run["walk"]
    levels = [{**one, "level": ""} for one in walk["accesses_by_level"]]
    own = {"walk": {**walk, "accesses_by_level": levels}, "mechanisms": {}, "mechanism_words": []}
    return figures(run) | own


def radix4_with(**sections: Any) -> fw.Scheme:
    return fw.Scheme(fw.Scheme.named("radix4").table | sections)


def check_alike(rust: Any, python: Any, mechanism: str, own: str) -> None:
    """Both found the same, and something."""
    for one, other in zip(rust, python, strict=True):
        shipped, counted = one["mechanisms"][mechanism], other["mechanisms"]["python"][own]
        assert counted["hits"] > 50
        assert shipped == {**shipped, **counted}
        assert mechanism_figures(one) == mechanism_figures(other)


@pytest.mark.parametrize("mode", ["timing", "functional"])
@pytest.mark.parametrize("workload", ["stream:16MiB", "hashjoin:64MiB"])
def test_a_buffer_in_python_gives_what_the_same_in_rust_does(mode: str, workload: str) -> None:
    """Every count and cycle of the sequential prefetcher, whose buffer answers misses."""
    settings = {"degree": 2, "buffer_entries": 16, "buffer_latency_cycles": 2}
    asked = {**SHORT, "workload": workload, "mode": mode, "instructions": "600K", "large_pages": [0, 50]}
    rust, python = (
        fw.compare(schemes=[scheme], **asked).runs
        for scheme in (
            radix4_with(sequential_prefetcher=settings),
            fw.Scheme.of(Sequential(degree=2, entries=16, latency=2)),
        )
    )
    check_alike(rust, python, "sequential_prefetcher", "Sequential")


@pytest.mark.parametrize("within", ["walker", "nothing"])
def test_a_tlb_in_memory_in_python_gives_what_the_same_in_rust_does(within: str) -> None:
    """Every count and cycle of POM-TLB, which reads lines of memory before it answers."""
    settings = {"size_bytes": 1 << 16, "predictor_entries": 64, "within": within}
    asked = {**SHORT, "instructions": "300K", "skip": "100K", "warmup": 0}
    own = PartOfMemory(1 << 16, 64, within_walker=within == "walker")
    rust, python = (
        fw.compare(schemes=[scheme], **asked).runs
        for scheme in (radix4_with(pom_tlb=settings), fw.Scheme.of(own))
    )
    check_alike(rust, python, "pom_tlb", "PartOfMemory")


class Listener(fw.Mechanism):
    """Only counts."""

    def missed(self, miss: fw.Miss) -> None:
        self.counts[miss.kind] += 1


def test_several_mechanisms_are_asked_in_order() -> None:
    asked = {**SWEEP, "instructions": "200K"}
    buffer = Sequential(degree=1, entries=8, latency=2)
    run = fw.simulate(fw.Scheme.of(buffer, Listener()), **asked)
    assert run["scheme"] == "radix4+Sequential(degree=1, entries=8, latency=2)+Listener"
    counted: Any = run["mechanisms"]["python"]
    sequential, heard = counted["Sequential"], sum(counted["Listener"].values())
    assert sequential["hits"] > 10
    assert heard == sequential["lookups"] - sequential["hits"], "the next is not asked for what was answered"
    counted = fw.simulate(fw.Scheme.of(Listener(), buffer), **asked)["mechanisms"]["python"]
    assert counted["Sequential"] == sequential
    assert sum(counted["Listener"].values()) == sequential["lookups"]


class Stale(fw.Mechanism):
    """Keeps what it found, and does not listen to `flush`."""

    def begin(self) -> None:
        self.kept: dict[int, fw.Translation] = {}

    def missed(self, miss: fw.Miss) -> fw.Translation | None:
        return self.kept.get(miss.address >> 12)

    def after_walk(self, miss: fw.Miss) -> None:
        if miss.found is not None:
            self.kept[miss.address >> 12] = miss.found


def test_a_translation_whose_page_is_gone_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "again.py"
    program.write_text(
        "import mmap\nfor _ in range(100):\n    with mmap.mmap(-1, 8 << 20) as area:\n"
        "        for at in range(0, 8 << 20, 4096): area[at] = 1\n"
    )
    recorded = fw.record([sys.executable, "-I", "-S", str(program)], tmp_path / "t.fwt", exhaustive=True)
    asked: dict[str, Any] = {"trace": recorded.traces[0], "mode": "functional", "exhaustive": True}
    with pytest.raises(fw.FlatwalkError, match="is not that of the page that is there now") as caught:
        fw.simulate(fw.Scheme.of(Stale()), warmup=0, **asked)
    assert caught.value.what.startswith("Stale.missed returned what cannot be")
    listens = fw.Scheme.of(Sequential(degree=1, entries=64, latency=0))
    assert fw.simulate(listens, warmup=0, **asked)["os"]["faults"] > 100 * 2048


class Remembers(LeafMap):
    """Counts Python's states of the threads that call it: what is local to a thread goes with its state."""

    local: ClassVar = threading.local()
    states: ClassVar[list[int]] = []
    calls: ClassVar[list[int]] = []

    def first(self, number: int) -> int:
        self.calls.append(number)
        if not hasattr(self.local, "known"):
            self.local.known = True
            self.states.append(number)
        return super().first(number)


def test_a_thread_keeps_its_state_between_hooks() -> None:
    """Or each call maps and unmaps one: three quarters of a prototype's time."""
    fw.simulate(
        fw.Scheme.of(Remembers()), workload="gups:16MiB", instructions="20K", warmup=0, exhaustive=True
    )
    assert len(Remembers.calls) > 1000
    assert len(Remembers.states) <= 3


def test_memory_of_half_a_page_is_refused() -> None:
    half = NextPage(1)
    half.memory_bytes = 2048
    with pytest.raises(fw.UsageError, match="2048, which is not whole pages"):
        fw.Scheme.of(half)


def test_classes_in_files_are_schemes_of_the_command_line(
    tmp_path: Path, flatwalk: Callable[..., Result]
) -> None:
    (tmp_path / "mine.py").write_text((FOLDER / "leaf_map.py").read_text())
    made = "small = Hashed(32)\nlarger = fw.Scheme.of(Hashed(64), name='larger')\n"
    (tmp_path / "buckets.py").write_text(f"{(FOLDER / 'hashed.py').read_text()}\n\n{made}")
    options = ["--workload", "gups:16MiB", "--large-pages", "0", "--instructions", "60K", "--warmup", "0"]
    names = f"radix4,{tmp_path}/mine.py,./buckets.py:small,buckets.py:larger"
    done = flatwalk(
        "compare", *options, "--exhaustive", "--schemes", names, "--no-report", "--json", "a.json"
    )
    assert done.code == 0, done.err
    assert "LeafMap and Hashed: Python, which is slow" in " ".join(done.err.split())
    runs: dict[str, Any] = {run["scheme"]: run for run in fw.read(tmp_path / "a.json").runs}
    assert list(runs) == ["radix4", "LeafMap", "Hashed(buckets=32)", "larger"]
    shipped = fw.Scheme.named("hashed").changed({"table.buckets": 32}, name="rust")
    asked: dict[str, Any] = {"workload": "gups:16MiB", "instructions": "60K", "warmup": 0, "exhaustive": True}
    rust: Any = fw.simulate(shipped, **asked)
    for figure in ("cycles", "walks", "os", "walk", "page_table_bytes"):
        assert runs["Hashed(buckets=32)"][figure] == rust[figure]
    walked = flatwalk("walk", "--workload", "gups:16MiB", "--scheme", "./mine.py:LeafMap")
    assert "LeafMap.first leads to line" in walked.out, walked.err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere.py:X", "cannot be read: No such file"),
        ("two.py:Three", "two.py has no scheme Three"),
        ("two.py", "does not have one scheme alone"),
        ("two.py:Wants", "wants parameters"),
        ("wrong.py:X", "wrong.py failed: ZeroDivisionError"),
        ("wrong_syntax.py:X", "wrong_syntax.py failed: SyntaxError"),
        ("empty.py:X", "it has no fw.Organisation"),
    ],
)
def test_what_is_no_scheme_of_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    classes = "class One(fw.Mechanism): pass\nclass Wants(fw.Mechanism):\n    def __init__(self, x): pass\n"
    (tmp_path / "two.py").write_text(f"import flatwalk as fw\n{classes}")
    (tmp_path / "wrong.py").write_text("1 / 0\n")
    (tmp_path / "wrong_syntax.py").write_text("1 /\n")
    (tmp_path / "empty.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fw.FlatwalkError) as caught:
        fw.Scheme.named(name)
    assert words in str(caught.value)
    if name.startswith("wrong"):
        assert str(caught.value.where).endswith(f"{name.partition(':')[0]}:1")


def test_a_class_in_a_file_is_swept_by_other_processes(
    tmp_path: Path, flatwalk: Callable[..., Result]
) -> None:
    source = (FOLDER / "leaf_map.py").read_text()
    (tmp_path / "mine.py").write_text(source)
    (tmp_path / "s.toml").write_text(
        'name = "s"\nworkloads = ["gups:16MiB"]\nschemes = ["radix4", "mine.py:LeafMap"]\nseeds = [1, 2]\n'
        'instructions = "60K"\nwarmup = 0\nexhaustive = true\n'
    )
    done = flatwalk("sweep", "s.toml", "--results", "r", "-j", "2")
    assert done.code == 0, done.err
    assert "4 of 4 runs" in done.out
    asked: dict[str, Any] = {"workload": "gups:16MiB", "instructions": "60K", "warmup": 0, "exhaustive": True}
    here = fw.simulate(fw.Scheme.of(LeafMap()), seed=2, **asked)
    sql = "select cycles, walks from runs where scheme = 'LeafMap' and seed = 2"
    found = fw.open_results(tmp_path / "r").query(sql).to_pylist()
    assert found == [{"cycles": here["cycles"], "walks": here["walks"]}]
    assert "0 of them new" in flatwalk("sweep", "s.toml", "--results", "r").out
    (tmp_path / "mine.py").write_text(source.replace("4096", "8192", 1))
    changed = flatwalk("sweep", "s.toml", "--results", "r")
    assert "2 of them new" in changed.out, "other code is another scheme"


def test_members_of_a_pair_in_files_are_swept_by_other_processes(
    tmp_path: Path, flatwalk: Callable[..., Result]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "mine.py").write_text((FOLDER / "leaf_map.py").read_text())
    (tmp_path / "a" / "other.py").write_text(f"{(FOLDER / 'hashed.py').read_text()}\nsmall = Hashed(32)\n")
    pairs = ["./mine.py:LeafMap/radix4", "radix4/a/other.py:small", "mine.py:LeafMap/a/other.py:small"]
    names = ", ".join(f'"{pair}"' for pair in pairs)
    (tmp_path / "s.toml").write_text(
        f'name = "s"\nworkloads = ["gups:16MiB"]\nschemes = ["virt-radix4", {names}]\nmode = "functional"\n'
        'instructions = "20K"\nwarmup = 0\nexhaustive = true\n'
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = flatwalk("sweep", "../s.toml", "--results", "r", "-j", "2", cwd=elsewhere)
    assert done.code == 0, done.err
    assert "4 of 4 runs" in done.out
    found = fw.open_results(elsewhere / "r").query("select scheme from runs").to_pylist()
    pairs = ["LeafMap/radix4", "radix4/Hashed(buckets=32)", "LeafMap/Hashed(buckets=32)"]
    assert sorted(run["scheme"] for run in found) == sorted(["virt-radix4", *pairs])


def test_pairs_are_schemes_of_the_command_line(tmp_path: Path, flatwalk: Callable[..., Result]) -> None:
    (tmp_path / "mine.py").write_text((FOLDER / "leaf_map.py").read_text())
    options = ["--workload", "gups:16MiB", "--instructions", "20K"]
    walked = flatwalk("walk", *options, "--scheme", "radix4/fpt,./mine.py:LeafMap/radix4")
    assert walked.code == 0, walked.err
    assert "under radix4/fpt on" in walked.out
    assert "under LeafMap/radix4 on" in walked.out
    here = fw.walk(workload="gups:16MiB", instructions="20K", scheme="radix4/fpt")
    assert all(step in walked.out for step in here.steps)
    options += ["--mode", "functional", "--exhaustive", "--warmup", "0", "--large-pages", "0", "--no-report"]
    found = []
    for option in ("--schemes", "--virt"):
        done = flatwalk("compare", *options, option, "radix4/fpt", "--json", "a.json")
        assert done.code == 0, done.err
        found.append(fw.read(tmp_path / "a.json").run("radix4/fpt"))
    assert found[0]["walk"] == found[1]["walk"]


def test_modules_next_to_a_class_are_part_of_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they are imported, and by whom; others are not."""
    class_ = "class Mine(fw.Mechanism):\n    def missed(self, miss): pass\n"
    texts = {
        "mine.py": f"import flatwalk as fw\nimport first_of_mine\n{class_}",
        "first_of_mine.py": "def later():\n    from package_of_mine import inner\n",
        "package_of_mine/__init__.py": "",
        "package_of_mine/inner.py": "from . import innermost\nimport mine\n",
        "package_of_mine/innermost.py": "from package_of_mine.last import *\n",
        "package_of_mine/last.py": "",
        "unused_of_mine.py": "",
    }

    def code(name: str) -> str:
        """Of a copy in which one of the files has another line."""
        folder = tmp_path / name.replace("/", "-")
        # As a process has it that knows none of the other copies.
        monkeypatch.setattr(scheme_code, "_LOADED", {})
        for loaded in [one for one in sys.modules if "of_mine" in one]:
            del sys.modules[loaded]
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text + ("# new\n" if path == name else ""))
        found = str(fw.Scheme.named(f"{folder}/mine.py:Mine").table["python"][0]["code"])
        return found.partition("-")[0]  # behind it is a number that tells files apart

    codes = {name: code(name) for name in ("none", *texts)}
    assert codes.pop("unused_of_mine.py") == codes["none"]
    assert len(set(codes.values())) == 7, codes


@pytest.mark.parametrize("file", ["/mine.py", "<ipython-input-1-a>"])
def test_a_class_of_a_folder_without_a_name_can_be_known(file: str) -> None:
    assert adapters.imported(Path(file), "import module_of_nobody\n") == {}


def test_what_is_installed_is_no_part_of_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.py").write_text("K = 1\n")
    assert adapters.imported(tmp_path / "mine.py", "import other\n") == {tmp_path / "other.py": "K = 1\n"}
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    assert adapters.imported(tmp_path / "mine.py", "import other\n") == {}


def test_a_file_runs_again_when_one_next_to_it_says_something_else(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine.py", tmp_path / "next_to_mine.py"
    mine.write_text("from next_to_mine import K\n")
    found = []
    for text in ("K = 1\n", "K = 1 + 1\n"):
        other.write_text(text)
        found.append(scheme_code._run(scheme_code._read(mine, "a test")).K)  # noqa: SLF001
    assert found == [1, 2]


def variant(folder: Path, value: int, module: str, *, late: str = "pass") -> str:
    """A scheme in a folder of its own, next to a module that the other variants have, too; its name."""
    folder.mkdir(parents=True)
    (folder / f"{module}.py").write_text(f"VALUE = {value}\n")
    (folder / "mine.py").write_text(
        f"import flatwalk as fw\nimport {module}\nclass Mine(fw.Mechanism):\n    value = {module}.VALUE\n"
        f"    def missed(self, miss):\n        {late}\n"
    )
    return f"{folder}/mine.py:Mine"


def value_of(name: str) -> int:
    """What the class of a scheme has read from its module."""
    return int(fw_class(name).value)


def fw_class(name: str) -> Any:
    path, wanted = name.split(":")
    return vars(scheme_code._run(scheme_code._read(Path(path), "--schemes")))[wanted]  # noqa: SLF001


def test_modules_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    names = [variant(tmp_path / str(value), value, "size_of_many") for value in (1, 2, 3)]
    assert [value_of(name) for name in names] == [1, 2, 3]
    # As a process of a sweep has it: every folder is on the path already.
    scheme_code._run.cache_clear()  # noqa: SLF001
    assert [value_of(name) for name in reversed(names)] == [3, 2, 1]


def test_a_module_of_another_folder_is_not_what_a_function_imports(tmp_path: Path) -> None:
    late = "import size_of_late\n        return size_of_late.VALUE"
    first = variant(tmp_path / "first", 4, "size_of_late", late=late)
    assert value_of(first) == 4
    second = variant(tmp_path / "second", 5, "size_of_late", late=late)
    with pytest.raises(FlatwalkError, match="imports size_of_late in a function") as error:
        value_of(second)
    assert error.value.where == str(tmp_path / "second" / "mine.py")
    # Of the first it still is its own.
    assert fw_class(first)().missed(None) == 4


def test_a_module_of_the_caller_stays_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = types.ModuleType("size_of_caller")
    monkeypatch.setitem(sys.modules, "size_of_caller", own)
    assert value_of(variant(tmp_path / "one", 6, "size_of_caller")) == 6
    assert sys.modules["size_of_caller"] is own


#: A mechanism of `size` bytes, in a file that says nothing else.
SIZED = "import flatwalk as fw\nclass Sized(fw.Mechanism):\n    size = {}\n    def missed(self, miss): pass\n"


def code_of(name: str) -> str:
    return str(fw.Scheme.named(name).table["python"][0]["code"])


@pytest.mark.parametrize("changed", ["mine.py", "beside_of_mine.py"])
def test_a_file_of_the_same_second_and_length_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """Python itself takes what it compiled before for such a file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    texts = {
        "mine.py": f"import beside_of_mine\n{SIZED.format(1)}    beside = beside_of_mine.SIZE\n",
        "beside_of_mine.py": "SIZE = 1\n",
    }
    found, codes = [], set()
    for number in (1, 2, 3):
        for name, text in texts.items():
            said = text.replace("= 1", f"= {number}") if name == changed else text
            (tmp_path / name).write_text(said)
            os.utime(tmp_path / name, (1e9, 1e9))
            # As another program may have left it, of the first version.
            if number == 1:
                py_compile.compile(str(tmp_path / name))
        name = f"{tmp_path}/mine.py:Sized"
        codes.add(code_of(name))
        found.append((fw_class(name).size, fw_class(name).beside))
    assert len(codes) == 3
    assert found == [(n, 1) if changed == "mine.py" else (1, n) for n in (1, 2, 3)]


def test_the_code_of_a_file_depends_on_no_order(tmp_path: Path) -> None:
    """Several classes of one text, in whatever order processes load them."""
    made = (
        "import flatwalk as fw\n"
        "def make(size):\n    class Made(fw.Mechanism):\n        def missed(self, miss): return size\n"
        "    return Made()\n"
        "a, b = make(1), make(3)\nc, d = fw.Scheme.of(make(5)), fw.Scheme.of(make(7))\n"
    )
    (tmp_path / "mine.py").write_text(made)
    names = [f"{tmp_path}/mine.py:{name}" for name in "abcd"]
    ask = (
        "import flatwalk as fw, sys\n"
        "print(*sorted(fw.Scheme.named(name).table['python'][0]['code'] + name[-1] for name in sys.argv[1:]))"
    )
    told = [
        subprocess.run(
            [sys.executable, "-I", "-c", ask, *order], check=True, capture_output=True, text=True
        ).stdout
        for order in (names, names[::-1], names[2:] + names[:2])
    ]
    assert len(set(told[0].split())) == 4
    assert len({code[:-1] for code in told[0].split()}) == 4
    assert told[1:] == told[:1] * 2
    # A class of a sweep that begins with the last one has the same code.
    alone = [
        subprocess.run(
            [sys.executable, "-I", "-c", ask, one], check=True, capture_output=True, text=True
        ).stdout
        for one in names
    ]
    assert sorted(code.strip() for code in alone) == told[0].split()


def test_copies_of_a_file_have_one_code(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(SIZED.format(1))
    assert len({code_of(f"{tmp_path}/{folder}/mine.py:Sized") for folder in ("a", "b", "a")}) == 1


def test_the_file_that_is_named_is_part_of_the_code(tmp_path: Path) -> None:
    (tmp_path / "class_of_mine.py").write_text(SIZED.format(1))
    codes = set()
    for size in (1, 2):
        mine = f"import class_of_mine\nclass_of_mine.Sized.size = {size}\nmine = class_of_mine.Sized()\n"
        (tmp_path / "mine.py").write_text(mine)
        codes.add(code_of(f"{tmp_path}/mine.py:mine"))
    assert len(codes) == 2


@pytest.mark.parametrize(
    "loads",
    [
        "import importlib\nimportlib.import_module('hidden_of_mine')\n",
        "import sys\nsys.path.insert(0, __file__[:-7] + 'lib')\nfrom deep_of_mine import SIZE\n",
    ],
)
def test_modules_that_the_text_does_not_name_are_refused(tmp_path: Path, loads: str) -> None:
    (tmp_path / "hidden_of_mine.py").write_text("")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "deep_of_mine.py").write_text("SIZE = 1\n")
    (tmp_path / "mine.py").write_text(loads + SIZED.format(1))
    for _ in range(2):  # it is not taken for known the second time
        with pytest.raises(FlatwalkError, match="in a way that its text does not show"):
            fw.Scheme.named(f"{tmp_path}/mine.py:Sized")


def test_modules_elsewhere_on_the_path_are_part_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library" / "package_of_path"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(library.parent))
    (tmp_path / "mine.py").write_text("from package_of_path import inner\n" + SIZED.format("inner.SIZE"))
    found = []
    for size in (1, 2):
        (library / "inner.py").write_text(f"SIZE = {size}\n")
        found.append((code_of(f"{tmp_path}/mine.py:Sized"), fw_class(f"{tmp_path}/mine.py:Sized").size))
    assert len({code for code, _ in found}) == 2
    assert [size for _, size in found] == [1, 2]


@pytest.mark.parametrize("changed", ["mine.py", "late_of_sweep.py"])
def test_a_file_that_changes_in_a_sweep_is_refused(tmp_path: Path, changed: str) -> None:
    """Its old code may still be known, but would import the new module."""
    late = f"late_{len(changed)}_of_sweep"
    changed = changed.replace("late_of_sweep", late)
    (tmp_path / f"{late}.py").write_text("SIZE = 1\n")
    (tmp_path / "mine.py").write_text(SIZED.format(1).replace("pass", f"import {late}; {late}.SIZE"))
    name = f"{tmp_path}/mine.py:Sized"
    run = {"scheme": fw.Scheme.named(name).table, "machine": fw.Machine.named("skylake-server").table}
    request = {"source": {"workload": {}}, "runs": [run]}
    (tmp_path / changed).write_text((tmp_path / changed).read_text().replace("1", "2"))
    done = engines.work(json.dumps(request), cache.digest(engine.path()), [name])
    assert done.error == "mine.py:Sized, or what it imports, was changed after the sweep began"
