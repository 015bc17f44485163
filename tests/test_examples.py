"""What documents show is possible: commands are parsed and run in small, files are read, code is compiled."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import typer

from flatwalk import engine
from flatwalk.definitions import settings
from tests import examples
from tests.test_docs import DOCS, DOCUMENTS, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Result

    Flatwalk = Callable[..., Result]

#: Options of other programs that documents mention.
OTHERS = {
    *("--champsim", "--config", "--default", "--each-seed", "--example", "--no-signature", "--release"),
    *("--one-recording", "--seeds", "--sources", "--trace-mem", "--user", "--vertices", "--zero-commit"),
}
#: Documents whose commands are run in small.
RUN = [
    ROOT / "README.md",
    *(DOCS / f"{name}.md" for name in ("tutorial", "guide", "recording", "lab", "host", "model")),
]
#: What of them is not run, by how it begins, and why.
NOT_RUN = {
    "host pagefault": "measures this machine for minutes; tests/test_host_measure.py does in seconds",
    "host diff 4level.json": "needs such measurements; tests/test_host_stats.py",
    "host diff levels": "needs such measurements; tests/test_host_stats.py",
    "host inspect": "needs a process of this user; tests/test_host_inspect.py",
    "vm": "needs the guest; tests/test_vm_run.py and its neighbours",
    "sweep mine.toml --results results --slurm": "needs a Slurm; tests/test_slurm.py",
    "record --workload": "installs Debian's packages; tests/test_programs.py",
}
#: What makes a command small: of the document's sizes and lengths, these.
SMALLER = [
    (r"\b(gups|random):\d+GiB", r"\1:16MiB"),
    (r"asplos-3$", "asplos-3:16MiB"),
    (r"^\d+(G|00M|0M)$", "100k"),
    (r"^60$", "1"),
    (r"^llc-size$", "./llc.toml"),
    # The page's sizes of caches are not possible on the other.
    (r"^golden-cove$", "skylake-server"),
]
SHORT = {"--instructions": "100k", "--warmup": "20k"}


def test_what_names_its_interpreter_can_be_executed() -> None:
    files = [path for folder in ("scripts", "linux/tests") for path in (ROOT / folder).rglob("*")]
    scripts = [path for path in files if path.is_file() and path.read_bytes().startswith(b"#!/")]
    assert len(scripts) > 10
    assert [path.name for path in scripts if not os.access(path, os.X_OK)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_is_one_that_the_parser_knows(document: Path) -> None:
    for example in examples.examples(document):
        try:
            examples.parse(example)
        except (AssertionError, typer.TyperException) as error:
            pytest.fail(f"{example.text}: {error!r}")


def test_a_wrong_option_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```\n$ ./flatwalk compare --workloads gups   what it does\n```\n`flatwalk walk --seed x`\n"
    )
    first, second = examples.examples(page)
    assert (first.words, first.block) == (["compare", "--workloads", "gups"], True)
    for example in (first, second):
        with pytest.raises(typer.TyperException):
            examples.parse(example)


def test_every_option_that_is_mentioned_exists() -> None:
    code = " ".join(code for document in DOCUMENTS for code in examples.mentioned(document))
    named = set(re.findall(r"(?<!\S)\[?(--[a-z][a-z-]+)", code))
    assert named - examples.options() == OTHERS
    assert len(named) > 50


def _small(words: list[str]) -> list[str]:
    """A command with less of everything; without a clock, unless it says which mode."""
    for pattern, size in SMALLER:
        words = [re.sub(pattern, size, word) for word in words]
    if words[0] != "compare" or "--help" in words:
        return words
    added = [] if {"--mode", "--mix"} & set(words) else ["--mode", "functional"]
    if not {"--", "--trace"} & set(words):
        added += [word for option, value in SHORT.items() if option not in words for word in (option, value)]
        if "--mix" not in words:
            added += ["--exhaustive"] + ([] if "--workload" in words else ["--workload", "gups:16MiB"])
    return [words[0], *added, *words[1:]]


@pytest.fixture
def stage(tmp_path: Path, flatwalk: Flatwalk) -> Path:
    """A directory with all that the commands name."""
    (tmp_path / "big.txt").write_text("".join(f"{n * 2_654_435_761 % 10**9}\n" for n in range(1000)))
    for name in ("program.py", "server.py"):
        (tmp_path / name).write_text("print(sum(range(100_000)))\n")
    shutil.copytree(ROOT / "tests" / "sampled", tmp_path / "tests" / "sampled")
    subprocess.run(["gcc", "-O2", "-g", "tests/sampled/fill.c", "-o", "fill"], cwd=tmp_path, check=True)
    # The code that docs/recording.md marks, with something to do.
    (code,) = examples.blocks(DOCS / "recording.md", "c")
    used = "".join(f"static void {name}(void) {{}}\n" for name in ("load", "sort", "check"))
    (tmp_path / "program.c").write_text(code.replace("\n", f"\n{used}", 1))
    compiler = ["gcc", "-Wall", "-Werror", f"-I{ROOT / 'recorder'}"]
    subprocess.run([*compiler, "program.c", "-o", "program"], cwd=tmp_path, check=True)
    (scheme,) = examples.blocks(DOCS / "tutorial.md", "toml")
    (tmp_path / "mine.toml").write_text(scheme)
    sweep, _ = examples.blocks(DOCS / "lab.md", "toml")
    for written, small in (("gups:1GiB", "gups:16MiB"), ('"100M"', '"100K"'), ("[1, 2, 3]", "[1]")):
        assert sweep.count(written) == 1
        sweep = sweep.replace(written, small)
    (tmp_path / "llc.toml").write_text('machines = ["zen4", "skylake-server"]\n' + sweep)
    program = [sys.executable, "-I", "-S", "program.py"]
    recorded = flatwalk("record", "--exhaustive", "-o", "program.fwt", "--", *program)
    assert recorded.code == 0, recorded.err
    for name in ("redis.fwt", "mine.fwt"):
        shutil.copy(tmp_path / "program.fwt", tmp_path / name)
    (tmp_path / "a.simpoints").write_text("0 0\n")
    (tmp_path / "a.weights").write_text("1 0\n")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("document", RUN, ids=lambda path: path.name)
def test_every_command_to_type_runs_in_small(document: Path, flatwalk: Flatwalk, stage: Path) -> None:
    ran = 0
    for example in examples.examples(document):
        if not example.block or " ".join(example.words).startswith(tuple(NOT_RUN)):
            continue
        words = _small(example.words)
        done = flatwalk(*words, cwd=stage)
        assert done.code == 0, f"{example.text}\n{done.err}"
        if words == ["sweep", "./llc.toml", "--results", "results"]:
            # Commands that do not say where results are look there.
            shutil.copytree(stage / "results", stage / "flatwalk-results")
        ran += 1
    assert ran


def test_what_is_not_run_is_there() -> None:
    shown = (example for document in RUN for example in examples.examples(document) if example.block)
    commands = [" ".join(example.words) for example in shown]
    assert [begin for begin in NOT_RUN if not any(command.startswith(begin) for command in commands)] == []


@pytest.mark.parametrize(
    ("document", "number"), [("tutorial", 0), ("guide", 0), ("guide", 1), ("guide", 2), ("lab", 0)]
)
def test_every_file_that_is_shown_is_valid(document: str, number: int) -> None:
    """Of a part of a file the rest is a shipped scheme's."""
    table: dict[str, Any] = tomllib.loads(examples.blocks(DOCS / f"{document}.md", "toml")[number])
    kind = "sweep" if document == "lab" else "scheme"
    whole = table if kind == "sweep" else settings.scheme("radix4") | table
    if document == "guide" and "shadow" in whole:
        # As it says there, one stands instead of the other.
        assert [problem["key"] for problem in engine.check(kind, whole)] == ["shadow"]
        del whole["shadow"]
    assert engine.check(kind, whole) == []
    assert engine.check(kind, whole | {"misspelt": 1}) != []
