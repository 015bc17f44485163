"""Builds the wheel for pip: maturin's, with the recorder and the host kernels in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import maturin
from maturin import get_requires_for_build_wheel, prepare_metadata_for_build_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["build_sdist", "build_wheel", "get_requires_for_build_wheel", "prepare_metadata_for_build_wheel"]

ROOT = Path(__file__).resolve().parents[1]
LIBEXEC = ROOT / "python" / "flatwalk" / "libexec"
#: As scripts/setup.sh copies them.
BUILT = ("libflatwalk_recorder.so", "flatwalk-collect", "flatwalk-host")


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, object] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds the wheel into a directory; returns its name.

    What is compiled goes to a directory of its own, as it is for any x86-64 processor and without what a
    debugger needs, unlike what scripts/setup.sh builds. maturin's share of it uses the same crates.
    """
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "wheel"
    os.environ |= {"CARGO_TARGET_DIR": str(target), "CARGO_PROFILE_RELEASE_STRIP": "debuginfo"}
    packages = ["--package", "flatwalk-recorder", "--package", "flatwalk-host"]
    subprocess.run(["cargo", "build", "--release", "--locked", *packages], cwd=ROOT, check=True)
    LIBEXEC.mkdir(exist_ok=True)
    for name in BUILT:
        # Renamed, because a program that is being recorded has the old ones open.
        new = LIBEXEC / f".{name}.new"
        shutil.copy(target / "release" / name, new)
        new.replace(LIBEXEC / name)
    shutil.copy(ROOT / "recorder" / "flatwalk.h", LIBEXEC)
    name: str = maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name


def build_sdist(sdist_directory: str, config_settings: Mapping[str, object] | None = None) -> str:
    """Says that there is none: the recorder and the host kernels would be missing from maturin's."""
    del sdist_directory, config_settings
    raise SystemExit("error: flatwalk has no source distribution\n  remedy: in its repository: pip wheel .")
