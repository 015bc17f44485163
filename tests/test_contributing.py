"""The examples of CONTRIBUTING.md are built and run as they are written there.

A comment before a block says what it is: `file:` and a path is a whole file, `change:` a diff of one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests import checkout
from tests.checkout import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Result

#: The workspace with the examples in it. It stays, so that cargo builds again only what has changed.
COPY = ROOT / ".flatwalk" / "contributing"
#: Not the checkout's: cargo cannot tell the packages of two workspaces in one folder apart.
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "contributing"
WORKSPACE = [
    "Cargo.lock",
    "Cargo.toml",
    "clippy.toml",
    "engine",
    "host",
    "python/flatwalk/data",
    "recorder",
    "rustfmt.toml",
]
PAGE_TABLE = "engine/paging/src/organisations/leaf_map.rs"
MECHANISM = "engine/timing/src/mechanisms/next_page.rs"
MACHINE = "python/flatwalk/data/machines/zen4.toml"


class Block(NamedTuple):
    """A marked block of the document."""

    kind: str
    path: str
    text: str


def blocks() -> list[Block]:
    document = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    marked = r"^<!-- (file|change): (\S+) -->\n```\w+\n(.*?)^```$"
    return [Block(*found) for found in re.findall(marked, document, flags=re.DOTALL | re.MULTILINE)]


def changed(text: str, diff: str) -> str:
    """A file after a diff whose hunks are parted by @@ and occur once."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(old) == 1, f"not there once:\n{old}"
        text = text.replace(old, new)
    return text


def workspace() -> dict[str, bytes]:
    """The files of the Rust workspace, and those that it reads."""
    return {path: (ROOT / path).read_bytes() for path in checkout.files(*WORKSPACE)}


def with_examples() -> dict[str, bytes]:
    """The workspace as somebody has it who follows the document."""
    files = workspace()
    files["mine.toml"] = files[MACHINE]
    for block in blocks():
        if block.kind == "file":
            assert block.path not in files, f"{block.path} is there already"
            files[block.path] = block.text.encode()
        else:
            files[block.path] = changed(files[block.path].decode(), block.text).encode()
    return files


def put(files: dict[str, bytes]) -> None:
    """Makes the copy have these files and no others; what is the same already is not touched."""
    for path in [path for path in COPY.rglob("*") if path.is_file()]:
        if str(path.relative_to(COPY)) not in files:
            path.unlink()
    for name, content in files.items():
        path = COPY / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def take_dependencies() -> None:
    """Copies what the checkout has compiled of other people's crates, so that cargo need not do it again.

    Times stay as they are, by which cargo sees that nothing has changed.
    """
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    others = {package["name"] for package in packages if "source" in package}
    theirs, ours = TARGET.parent / "debug", TARGET / "debug"
    for unit in (theirs / ".fingerprint").glob("*"):
        name, _, key = unit.name.rpartition("-")
        if name not in others:
            continue
        for path in (unit, theirs / "build" / unit.name, *(theirs / "deps").glob(f"*-{key}*")):
            copied = ours / path.relative_to(theirs)
            copied.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir() and not copied.exists():
                shutil.copytree(path, copied, symlinks=True)
            elif path.is_file() and not copied.exists():
                copied.hardlink_to(path)


def cargo(*arguments: str, organisation: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs cargo in the copy."""
    environment = {**os.environ, "CARGO_TARGET_DIR": str(TARGET)}
    if organisation is not None:
        environment["FLATWALK_ORGANISATION"] = organisation
    return subprocess.run(
        ["cargo", *arguments],
        cwd=COPY,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,
        check=False,
    )


def passed(done: subprocess.CompletedProcess[str]) -> None:
    """Insists that a cargo test ran exactly one test, which passed."""
    assert done.returncode == 0, done.stdout
    assert re.findall(r"test result: ok\. (\d+) passed", done.stdout) == ["1"], done.stdout


def test_the_document_has_three_examples() -> None:
    assert [(block.kind, block.path) for block in blocks()] == [
        ("file", PAGE_TABLE),
        ("change", "engine/paging/src/organisations/mod.rs"),
        ("file", "python/flatwalk/data/schemes/leaf_map.toml"),
        ("file", MECHANISM),
        ("change", "engine/timing/src/mechanisms/mod.rs"),
        ("file", "python/flatwalk/data/schemes/radix4+next.toml"),
        ("change", "mine.toml"),
    ]
    assert with_examples().keys() > workspace().keys()


def test_the_machine_of_the_document_runs_and_walks_less(
    flatwalk: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_bytes(with_examples()["mine.toml"])

    def walks(machine: str) -> int:
        done = flatwalk(
            "compare", "--workload", "gups:64MiB", "--schemes", "radix4", "--large-pages", "0",
            "--instructions", "200k", "--warmup", "200k", "--machine", machine, "--no-report", "--json", "-",
        )  # fmt: skip
        assert done.code == 0, done.err
        [run] = json.loads(done.out)["runs"]
        return int(run["walks"])

    assert 0 < walks("./mine.toml") < walks("zen4")


@pytest.mark.slow
def test_the_rust_examples_build_and_pass_the_tests_of_the_engine() -> None:
    files = with_examples()
    put(files)
    take_dependencies()
    formatted = cargo("fmt", "--all", "--check")
    assert formatted.returncode == 0, formatted.stdout
    checked = cargo("clippy", "--locked", "--package", "flatwalk-timing")
    assert checked.returncode == 0, checked.stdout
    assert not [path for path in (PAGE_TABLE, MECHANISM) if path in checked.stdout], checked.stdout
    conformance = ("test", "--locked", "--package", "flatwalk-paging", "--test", "conformance")
    timing = ("test", "--locked", "--package", "flatwalk-timing", "--lib")
    passed(cargo(*conformance, organisation="leaf_map"))
    passed(cargo(*timing, "next_page"))
    # Among those that are shipped are the two schemes now.
    passed(cargo(*timing, "a_word_written_through_any_scheme_reads_back"))

    # A mistake is found: an entry stays when its page goes.
    taken = "        memory.write(self.slot(number), Entry::ABSENT.0);\n"
    code = files[PAGE_TABLE].decode()
    assert code.count(taken) == 1
    wrong = code.replace(taken, "        let _ = (memory, number);\n")
    put({**files, PAGE_TABLE: wrong.encode()})
    found = cargo(*conformance, organisation="leaf_map")
    put(files)
    assert found.returncode == 101, found.stdout
    assert re.search(r"panicked at .*conformance\.rs.*\n.*leaf_map", found.stdout), found.stdout
