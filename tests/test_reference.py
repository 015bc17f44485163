"""What is written from the engine's schemas is what the engine says now."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk import engine
from flatwalk.answer.results import Response, Run
from flatwalk.definitions import settings
from flatwalk.reference import columns, commands, glossary, man, page, parser, shipped, types

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Result

    Call = Callable[..., Result]

REMEDY = "run: python -m flatwalk.reference"


def test_the_page_of_keys_is_up_to_date() -> None:
    assert page.PATH.read_text(encoding="utf-8") == page.text(), REMEDY


def test_the_columns_of_stored_results_are_up_to_date() -> None:
    assert columns.PATH.read_text(encoding="utf-8") == columns.text(), REMEDY


def test_the_glossary_is_up_to_date() -> None:
    assert glossary.PATH.read_text(encoding="utf-8") == glossary.text(), REMEDY


def test_the_page_of_what_is_shipped_is_up_to_date() -> None:
    text = shipped.text()
    assert shipped.PATH.read_text(encoding="utf-8") == text, REMEDY
    for kind in ("machine", "scheme", "mix"):
        assert all(f"| `{name}` |" in text for name in settings.names(kind)), kind


def test_the_schemes_of_a_usual_comparison_are_named() -> None:
    assert f"[default: {', '.join(settings.DEFAULT_SCHEMES)}]" in commands.text().replace("\\", "")
    guide = (commands.PATH.parent / "guide.md").read_text(encoding="utf-8")
    (line,) = [line for line in guide.splitlines() if line.startswith("| `--schemes ")]
    assert set(re.findall(r"`([a-z0-9+-]+)`", line)) == set(settings.DEFAULT_SCHEMES)


def test_the_manual_page_is_up_to_date_and_names_every_command() -> None:
    text = man.PATH.read_text(encoding="utf-8")
    assert text == man.text(), REMEDY
    for command in ("compare", "trace import", "cache clear", "host diff", "vm run"):
        assert f".SS \\fBflatwalk {command}\\fR" in text
    assert "\\-\\-large\\-pages" in text
    assert text.isascii()


def test_the_page_of_commands_is_up_to_date_and_has_every_option() -> None:
    text = commands.PATH.read_text(encoding="utf-8")
    assert text == commands.text(), REMEDY
    rows = re.findall(r"^\| `(.*?)` \|", text, re.MULTILINE)
    assert [row.replace("\\|", "|") for row in rows] == [
        option for command in parser.commands() for option, _ in command.options
    ]
    assert len(rows) > 150
    for command in ("compare", "trace import", "cache clear", "host diff", "vm run"):
        assert f"\n## {command}\n" in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_manual_page_is_formatted_without_a_complaint() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", str(man.PATH)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "EXIT STATUS" in done.stdout or "E\bEX" in done.stdout


def test_the_types_of_results_are_up_to_date() -> None:
    assert types.PATH.read_text(encoding="utf-8") == types.text(), REMEDY


def test_the_types_have_every_key_of_a_result() -> None:
    """Counted without the code that writes them."""
    module = ast.parse(types.PATH.read_text(encoding="utf-8"))
    written = {
        node.name: {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}  # type: ignore[union-attr]
        for node in module.body
        if isinstance(node, ast.ClassDef)
    }
    schema = engine.schema("results")
    for name, keys in written.items():
        if name in schema["$defs"]:
            assert keys == set(schema["$defs"][name]["properties"]), name
    assert len(written["OsResult"]) == 22
    assert set(Response.__annotations__) - {"sampling", "bias"} == set(schema["properties"]) - {"sampling"}
    extra = set(Run.__annotations__) - written["RunResult"] - {"windows", "cycle_stack"}
    added = {"speedup", "speedup_low", "speedup_high", "intervals"}
    added |= {"weighted"} | {
        f"{key}{end}" for key in ("machine_speedup", "speedup_change") for end in ("", "_low", "_high")
    }
    assert extra == added | {"relative_cache_energy", "relative_off_chip_accesses"}


@pytest.mark.parametrize("kind", ["machine", "scheme", "mix", "experiment"])
def test_every_key_of_a_shipped_file_is_described(kind: str) -> None:
    described = engine.describe(kind)
    known = {key["key"] for key in described}
    same = {key["key"]: key["same_as"] for key in described if key["same_as"] is not None}

    def unknown(value: object, key: str) -> list[str]:
        key = same.get(key, key)
        if f"{key}.*" in known or key.endswith(".set") or key == "open[].values":
            return []
        if isinstance(value, list):
            tables = [item for item in value if isinstance(item, dict)]
            return [found for item in tables for found in unknown(item, f"{key}[]")]
        if not isinstance(value, dict):
            return []
        key = key.removesuffix("[]") if key.removesuffix("[]") in same else key
        return [
            found
            for name, item in value.items()
            for below in [f"{key}.{name}".lstrip(".")]
            for found in ([] if below in known else [below]) + unknown(item, below)
        ]

    folder = settings.DATA / ("mixes" if kind == "mix" else f"{kind}s")
    for path in sorted(folder.glob("*.toml")):
        assert unknown(settings.read(path, kind), "") == [], path.name


def test_what_the_engine_answers_is_what_its_schema_says() -> None:
    names = [
        "radix4",
        "fpt+ptp",
        "asap",
        "csalt",
        "pom-tlb",
        "direct-segment",
        "virt-asap",
        "virt-dual-direct",
    ]
    common = {"large_pages": 0, "thp": None, "mode": "timing"}
    machine = settings.machine("skylake-server")
    runs = [{"scheme": settings.scheme(name), "machine": machine, **common} for name in names]
    # Only a machine with prefetchers has something to say of them.
    runs.append(runs[0] | {"machine": settings.machine("golden-cove")})
    request = {
        "source": {"workload": {"name": "gups", "size_bytes": 16 << 20}},
        "instructions": 20_000,
        "runs": runs,
    }
    answer = engine.simulate(request, lambda _done, _total: None)
    assert engine.check("results", dict(answer)) == []
    keys = set(engine.schema("results")["$defs"]["RunResult"]["properties"])
    found: set[str] = set()
    for run in answer["runs"]:
        assert keys - set(run) == (set() if run["machine"] == "golden-cove" else {"prefetchers"})
        assert set(run) <= keys
        found |= run["mechanisms"].keys()
    assert found == {"page_table_priority", "asap", "csalt", "pom_tlb", "direct_segment"}


def test_a_figure_that_is_not_a_number_is_refused() -> None:
    machine: dict[str, Any] = settings.machine("skylake-server")
    for value, words in ((float("nan"), '"nan"'), (float("inf"), "e+308"), (-1, "-1"), (10**30, "1e+30")):
        machine["memory"]["cl_ns"] = value
        (problem,) = engine.check("machine", machine)
        assert problem["key"] == "memory.cl_ns"
        assert problem["problem"].startswith("must be a number, 0 to 1000000")
        assert words in problem["problem"]


def test_keys_and_experiments_are_listed(call: Call) -> None:
    listed = json.loads(call("list", "keys", "--json").out)
    assert list(listed) == ["machine", "scheme", "mix", "experiment", "sweep", "results"]
    window = next(key for key in listed["machine"] if key["key"] == "core.window")
    assert window["meaning"] == "Reorder-buffer entries."
    assert window["range"] == "1 to 65536"
    assert "core.window" in call("list", "keys").out
    experiments = json.loads(call("list", "experiments", "--json").out)
    assert [item["name"] for item in experiments] == settings.names("experiment")
    assert "Native execution" in call("list", "experiments").out
