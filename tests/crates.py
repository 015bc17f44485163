"""The examples of the engine's crates, for tests that read what they write."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


@functools.cache
def built(name: str) -> str:
    """The path of an example's program, which cargo builds if its sources changed.

    As a part of the whole workspace: for one crate alone cargo may choose other features of its dependencies
    than `cargo test --workspace` did, and then compiles all of them again.
    """
    cargo = shutil.which("cargo")
    assert cargo is not None, "cargo is not on PATH: run ./test, which sees to it"
    command = [cargo, "build", "--quiet", "--workspace", "--example", name, "--message-format", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    (program,) = (message["executable"] for message in messages if message.get("executable"))
    return str(program)
