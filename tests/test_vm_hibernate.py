"""Guests that hibernate: their flat roots are there again when they resume."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from flatwalk.vm import build, compiled, components, run
from flatwalk.vm.machine import Machine

if TYPE_CHECKING:
    from pathlib import Path

#: Hibernation also needs room for what it does not save.
_DISK_BYTES = 512 << 20


def _boot(mode: str, work: Path, disk: Path) -> str:
    """Boots a guest whose first process hibernates, or resumes; returns what it and its kernel printed."""
    qemu = build.find(components.QEMU) / "bin" / "qemu-system-x86_64"
    kernel = build.find(components.LINUX) / "bzImage"
    init = compiled.guest_program(compiled.SOURCES / "tests" / "hibernate.c").read_bytes()
    initrd, log = work / "initrd", work / "log"
    initrd.write_bytes(run.archive({"dev": (0o040755, b""), "init": (0o100755, init)}))
    machine = Machine(mode, cpus=2, memory="384M")
    subprocess.run(
        [
            str(qemu),
            *machine.arguments(),
            *("-kernel", str(kernel), "-initrd", str(initrd), "-serial", f"file:{log}"),
            # After a triple fault it would boot again.
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *run.drive(disk),
        ],
        check=True,
        timeout=1800,
    )
    return log.read_text(encoding="utf-8", errors="replace")


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
@pytest.mark.parametrize(
    ("mode", "resumed_by"),
    [("off", "off"), ("l4l3", "l4l3"), ("l4l3", "off"), ("off", "l4l3"), ("l4l3+l2l1", "l4l3+l2l1")],
)
def test_a_guest_resumes_from_hibernation(mode: str, resumed_by: str, tmp_path: Path) -> None:
    with run.disk(_DISK_BYTES) as disk:
        first = _boot(mode, tmp_path, disk)
        assert "hibernated" not in first.splitlines()
        second = _boot(resumed_by, tmp_path, disk)
    assert "hibernated" in second.splitlines(), second
    assert [line for line in (first + second).splitlines() if run.SPLAT.search(line)] == []
