"""An organisation or a mechanism is named by its own file and the registry: nothing else knows it. And files
import each other in no circle, nor do folders."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
MECHANISMS = ROOT / "engine/timing/src/mechanisms"
ORGANISATIONS = ROOT / "engine/paging/src/organisations"
#: Written by `python -m flatwalk.reference`.
GENERATED = ROOT / "python/flatwalk/answer/types.py"
#: Works out the reach of x86-64's page-walk caches, which only x86-64's own tree and flattened ones have.
REACH = ROOT / "python/flatwalk/host/designs.py"
RUST_TESTS = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\(\w+\))? )?mod tests \{.*\Z", re.DOTALL)
CRATES = sorted(
    path.parent for path in [*ROOT.glob("engine/*/src"), ROOT / "host/src", ROOT / "recorder/src"]
)


def names(folder: Path) -> list[str]:
    """What a folder registers: each module of its `mod.rs`."""
    found = re.findall(r"^(?:pub )?mod (\w+);", (folder / "mod.rs").read_text(encoding="utf-8"), re.MULTILINE)
    return [name for name in found if name != "tests"]


def files(registry: Path, name: str) -> Iterator[Path]:
    """The engine's and Python's sources, without tests, the files of `name`, and its registry."""
    for path in [*(ROOT / "engine").rglob("*.rs"), *(ROOT / "python").rglob("*.py")]:
        own = path == registry / f"{name}.rs" or registry / name in path.parents
        registers = path in (registry / "mod.rs", GENERATED, REACH)
        # Tests, benches and examples choose among what there is.
        uses = path.stem == "tests" or {"tests", "benches", "examples"} & set(path.relative_to(ROOT).parts)
        if not (own or registers or uses):
            yield path


def mentions(registry: Path, name: str, pattern: str) -> list[str]:
    """Where else the code outside tests has `pattern`."""
    found = re.compile(pattern)
    texts = ((path, RUST_TESTS.sub("", path.read_text(encoding="utf-8"))) for path in files(registry, name))
    return [str(path.relative_to(ROOT)) for path, text in texts if found.search(text)]


@pytest.mark.parametrize("name", names(MECHANISMS))
def test_a_mechanism_is_named_by_its_own_file_alone(name: str) -> None:
    assert mentions(MECHANISMS, name, rf"\b{name}\b") == []


@pytest.mark.parametrize("name", names(ORGANISATIONS))
def test_an_organisation_is_used_by_its_own_file_alone(name: str) -> None:
    """Many of the names are ordinary words: this looks for the module and for the name in quotes."""
    assert mentions(ORGANISATIONS, name, rf"\b{name}::[A-Za-z]|organisation.{{0,6}}\"{name}\"") == []


def paths(tree: str) -> list[str]:
    """What `use crate::TREE;` names: `a::{b, c::{d, e}}` has `a::b`, `a::c::d` and `a::c::e`."""

    def spelt_out(group: re.Match[str]) -> str:
        return ",".join(group[1] + name.strip() for name in group[2].split(",") if name.strip())

    while "{" in tree:
        tree = re.sub(r"([\w:]*)\{([^{}]*)\}", spelt_out, tree)
    return [path.split(" as ")[0].strip() for path in tree.split(",")]


def imports(source: Path) -> dict[str, set[str]]:
    """The modules of a crate, and for each those whose files its own imports by `use crate::`, but for
    tests. What it has from `super` is not among them: a folder's files and its `mod.rs` may use each other.
    """
    modules = {}
    for path in source.rglob("*.rs"):
        parts = path.relative_to(source).with_suffix("").parts
        if "tests" not in parts:
            modules["::".join(parts[:-1] if parts[-1] in {"mod", "lib", "main"} else parts)] = path

    def home(path: str) -> str:
        while path not in modules:
            path = path.rpartition("::")[0]
        return path

    graph = {}
    for name, path in modules.items():
        text = RUST_TESTS.sub("", path.read_text(encoding="utf-8"))
        uses = re.findall(r"^\s*(?:pub(?:\(\w+\))? )?use crate::([^;]+);", text, re.MULTILINE)
        graph[name] = {home(path) for tree in uses for path in paths(tree)} - {name}
    return graph


@pytest.mark.parametrize("crate", CRATES, ids=lambda crate: crate.name)
def test_files_import_each_other_in_no_circle(crate: Path) -> None:
    """The error names the files of a circle."""
    TopologicalSorter(imports(crate / "src")).prepare()


@pytest.mark.parametrize("crate", CRATES, ids=lambda crate: crate.name)
def test_folders_import_each_other_in_no_circle(crate: Path) -> None:
    """Of a crate's folders, and the files beside them, some build on others and not the other way as well."""
    graph: dict[str, set[str]] = {}
    for name, uses in imports(crate / "src").items():
        folder = name.split("::")[0]
        graph.setdefault(folder, set()).update({use.split("::")[0] for use in uses} - {folder, ""})
    del graph[""]
    TopologicalSorter(graph).prepare()
