"""The model of the kernel series' protocol: it holds with all guards, and each that is taken out is missed.

Which guards there are, and what Spin must find without them, is in the tables of linux/model/README.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "linux/model"
README = MODEL / "README.md"
MODELS = ("tables", "root", "exit", "daemon")
#: What Spin says of a state in which nobody can continue.
DEADLOCK = "invalid end state"


class Guard(NamedTuple):
    """A row of a table: what is taken out of which model, and the property that then breaks, if any."""

    model: str
    switches: tuple[str, ...]
    place: str
    found: str


def guards() -> list[Guard]:
    """The rows of all tables of guards."""
    text = README.read_text(encoding="utf-8")
    sections = re.findall(r"^## Guards of (\w+)\.pml\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    row = re.compile(r"^\| `([A-Z_ ]+)` \| (.*?) \| (.*?) \|$", re.MULTILINE)
    rows = []
    for model, section in sections:
        for switches, place, found in row.findall(section):
            rows.append(Guard(model, tuple(switches.split()), place, found))
    return rows


def search(model: str, switches: tuple[str, ...], place: Path, *, whole: bool) -> str:
    """What Spin's search of all orders of a model prints; it stops at the first violation.

    Compiling with optimisation pays for a whole search only.
    """
    if missing := [program for program in ("spin", "cc") if shutil.which(program) is None]:
        pytest.skip(f"needs {' and '.join(missing)}: scripts/setup.sh --dev installs them")
    for path in MODEL.glob("*.pml"):
        shutil.copy(path, place)
    defines = [f"-D{switch}" for switch in switches]
    out = ""
    for command in (
        ["spin", *defines, "-a", f"{model}.pml"],
        ["cc", "-O1" if whole else "-O0", "-w", "-DSAFETY", "-o", "pan", "pan.c"],
        ["./pan", "-m100000", "-w22"],
    ):
        ran = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        out = ran.stdout + ran.stderr
        assert ran.returncode == 0, f"{' '.join(command)}:\n{out}"
    return out


def assert_nothing_found(out: str) -> None:
    """Every order was searched, up to the end, and none breaks a property."""
    assert "errors: 0" in out, out
    assert "Search not completed" not in out
    assert "max search depth too small" not in out
    # Every actor comes to its end, and the last properties are looked at. Only hardware has no end.
    for name, lines in re.findall(r"^unreached in (?:proctype )?(\w+)\n((?:\t.+\n)+)", out, re.MULTILINE):
        assert name == "cpu" or '"-end-"' not in lines, f"{name} never ends:\n{out}"


@pytest.mark.parametrize("model", MODELS)
def test_with_all_guards_nothing_is_found(model: str, tmp_path: Path) -> None:
    assert_nothing_found(search(model, (), tmp_path, whole=True))


@pytest.mark.parametrize("guard", guards(), ids=lambda guard: "+".join(guard.switches))
def test_what_is_found_without_a_guard(guard: Guard, tmp_path: Path) -> None:
    redundant = guard.found.startswith("nothing: ")
    out = search(guard.model, guard.switches, tmp_path, whole=redundant)
    if redundant:
        assert_nothing_found(out)
    elif guard.found == "deadlock":
        assert DEADLOCK in out, out
    else:
        assert f"assertion violated  !({guard.found.strip('`')})" in out, out


def test_every_switch_is_in_the_tables() -> None:
    for model in MODELS:
        text = (MODEL / f"{model}.pml").read_text(encoding="utf-8")
        in_model = set(re.findall(r"\b(NO_[A-Z_]+)\b", text))
        in_tables = {switch for guard in guards() if guard.model == model for switch in guard.switches}
        assert {switch for switch in in_tables if switch.startswith("NO_")} == in_model
    assert len(guards()) == len(set(guards())) > 40


def test_what_the_tables_name_is_in_the_series() -> None:
    series = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "linux/series").glob("*.patch"))
    named = {name for guard in guards() for name in re.findall(r"`(\w+)\(\)`", guard.place)}
    assert len(named) > 20
    assert [name for name in sorted(named) if f"{name}(" not in series] == []
