"""The notebooks of the documents: they run, and what they are kept with is what they print."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "notebooks.py"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def check(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--check", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_is_kept_with(path: Path) -> None:
    done = check(path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_figure_that_has_changed_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "one.ipynb"
    shutil.copy(NOTEBOOKS[0], path)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = notebook["cells"]
    notebook["cells"] = [cell for cell in cells if cell["cell_type"] == "code"][:1]
    output = {"output_type": "stream", "name": "stdout", "text": ["5\n"]}
    notebook["cells"][0] |= {"source": ["print(2 + 2)"], "outputs": [output]}
    path.write_text(json.dumps(notebook), encoding="utf-8")
    done = check(path)
    assert done.returncode == 1
    assert {"-5", "+4"} <= set(done.stdout.splitlines())
    assert "remedy: scripts/notebooks.py" in done.stderr
