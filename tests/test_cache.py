"""What is kept from one call to the next: shown, and removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from flatwalk import cache

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Result

    Call = Callable[..., Result]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with results, a component, and one of a name that begins as that of another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = cache.Store(cache.directory("reproduce"))
    store.put("a", {"x": 1})
    for name in ("linux-01", "linux-012"):
        place = cache.directory("vm") / name / "deep"
        place.mkdir(parents=True)
        (place / "kernel").write_bytes(b"k" * 100_000)
    return tmp_path / "cache" / "flatwalk"


def test_what_is_kept_is_shown(call: Call, kept: Path) -> None:
    found = {item["name"]: item for item in json.loads(call("cache", "list", "--json").out)}
    assert list(found) == ["reproduce", "vm/linux-01", "vm/linux-012"]
    assert found["vm/linux-01"]["path"] == str(kept / "vm" / "linux-01")
    assert 100_000 <= found["vm/linux-01"]["size_bytes"] < 150_000
    lines = call("cache", "list").out.splitlines()
    assert lines[0].split() == ["kept", "size", "changed"]
    assert lines[-1].endswith(f" in {kept}")


def test_what_is_named_is_removed_and_no_more(call: Call, kept: Path) -> None:
    result = call("cache", "clear", "vm/linux-01", "nothing")
    assert result.code == 2
    assert "'nothing'" in result.err
    assert (kept / "vm" / "linux-01").is_dir()
    assert "removed vm/linux-01\n" in call("cache", "clear", "vm/linux-01").out
    assert sorted(path.name for path in (kept / "vm").iterdir()) == ["linux-012"]
    assert call("cache", "clear", "vm").code == 0
    assert sorted(path.name for path in kept.rglob("*")) == ["a.json", "reproduce", "vm"]
    call("cache", "clear")
    assert call("cache", "list").out == f"nothing is kept in {kept}\n"


def test_links_in_the_cache_are_removed_and_not_followed(call: Call, kept: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_text("…")
    (kept / "vm" / "link").symlink_to(tmp_path / "thesis")
    assert call("cache", "clear").code == 0
    assert (tmp_path / "thesis" / "text").exists()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("flatwalk comp", ["compare"]),
        ("flatwalk cache ", ["list", "clear"]),
        ("flatwalk compare --mach", ["--machine"]),
        ("flatwalk compare --machine golden", ["golden-cove"]),
        ("flatwalk walk --scheme fpt+p", ["fpt+ptp"]),
        ("flatwalk compare --schemes radix4,idea", ["radix4,ideal"]),
    ],
)
def test_the_shell_completes(typed: str, offered: list[str]) -> None:
    words = typed.split(" ")
    done = subprocess.run(
        [sys.executable, "-I", "-m", "flatwalk"],
        env=os.environ
        | {"_FLATWALK_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_of_shells_are_shown(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "flatwalk", "--show-completion", shell],
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_FLATWALK_COMPLETE" in done.stdout
    assert "flatwalk" in done.stdout
