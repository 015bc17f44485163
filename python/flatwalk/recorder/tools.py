"""The programs that record: QEMU, and the recorder's plugin and collector."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk import processor
from flatwalk.recorder.result import RecordError

if TYPE_CHECKING:
    from collections.abc import Mapping

PLUGIN = "libflatwalk_recorder.so"
COLLECTOR = "flatwalk-collect"
INSTALL_QEMU = (
    "install Debian 12's qemu-user (as root: apt install qemu-user), or name another with FLATWALK_QEMU"
)


def escaped(value: object) -> str:
    """A path, or another value, as QEMU's options take it: each comma twice."""
    return str(value).replace(",", ",,")


def plugin_argument(plugin: Path, options: Mapping[str, str]) -> str:
    """The value of QEMU's `-plugin`."""
    return ",".join(map(escaped, (plugin, *(f"{key}={value}" for key, value in options.items()))))


def plugin_options(plugin: Path, options: Mapping[str, str]) -> list[str]:
    """QEMU's options for recording a process.

    The plugin is loaded twice, the second time by another path: only that registration is reset when other
    things are to be watched.
    """
    again = escaped(f"{plugin.parent}/./{plugin.name}")
    return ["-plugin", plugin_argument(plugin, options), "-plugin", again]


def find_qemu() -> Path:
    """Finds a `qemu-x86_64` with plugins.

    Raises:
        RecordError: If there is none, or its version does not fit.
    """
    given = os.environ.get("FLATWALK_QEMU")
    found = (
        shutil.which(given) if given else shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    )
    if not found:
        raise RecordError("there is no qemu-x86_64", where=given or "PATH", remedy=INSTALL_QEMU)
    try:
        said = subprocess.run(
            [found, "--version"], capture_output=True, text=True, check=False, timeout=30
        ).stdout
    except OSError as error:
        raise RecordError(f"QEMU does not run: {error}", where=found, remedy=INSTALL_QEMU) from error
    version = re.search(r"version (\d+)\.(\d+)", said)
    # Plugin interface 1, with the guest program's path, is in 7.1 to 8.2.
    if not version or not (7, 2) <= (int(version[1]), int(version[2])) < (9, 0):
        first = said.splitlines()[0] if said else "it reports no version"
        raise RecordError(
            f"this QEMU is not of version 7.2 to 8.2: {first}", where=found, remedy=INSTALL_QEMU
        )
    usage = subprocess.run([found, "-h"], capture_output=True, text=True, check=False, timeout=30).stdout
    if "-plugin" not in usage:
        raise RecordError("this QEMU was built without plugins", where=found, remedy=INSTALL_QEMU)
    return Path(found)


def find_recorder() -> tuple[Path, Path]:
    """Finds the plugin and the collector.

    Raises:
        RecordError: If they were not built.
        FlatwalkError: If they were built for another processor.
    """
    processor.check()
    given = os.environ.get("FLATWALK_RECORDER")
    package = Path(__file__).resolve().parents[1]
    candidates = (
        [Path(given)]
        if given
        else [package / "libexec" / PLUGIN, package.parents[1] / "target" / "release" / PLUGIN]
    )
    for plugin in candidates:
        collector = plugin.with_name(COLLECTOR)
        if plugin.is_file() and os.access(collector, os.X_OK):
            return plugin.resolve(), collector.resolve()
    raise RecordError(
        f"the recorder ({PLUGIN} with {COLLECTOR}) is missing",
        where=", ".join(str(plugin.parent) for plugin in candidates),
        remedy="build it: cargo build --release -p flatwalk-recorder",
    )
