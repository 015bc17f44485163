"""Gets a program's Debian packages where that is allowed, or says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError
from flatwalk.terminal import output

if TYPE_CHECKING:
    from flatwalk.programs.catalogue import Program


def _privileged() -> list[str] | None:
    """What precedes a command that root must run; None if we cannot become root."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        return None
    allowed = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
    return ["sudo", "-n"] if allowed.returncode == 0 else None


def ensure(program: Program) -> None:
    """Makes sure that all commands of a program are installed.

    Raises:
        FlatwalkError: If they are not and cannot be installed from here.
    """
    missing = program.missing()
    if not missing:
        return
    wanted = " ".join(program.packages)
    what = f"{program.name} is not installed ({', '.join(missing)} missing)"
    before = _privileged()
    if before is None:
        raise FlatwalkError(what, remedy=f"as root: apt-get install {wanted}")
    output.note(f"Installing {wanted} …")
    # In run level 1 a package's service is not started: the recorder starts its own.
    line = [*before, "env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get", "-qq"]
    line += ["-o", "DPkg::Lock::Timeout=300"]  # another one may be installing something
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", *program.packages]):
        done = subprocess.run([*line, *arguments], capture_output=True, text=True, check=False)
    if missing := program.missing():
        said = done.stderr.strip().splitlines()
        raise FlatwalkError(
            f"{wanted} could not be installed" + (f": {said[-1]}" if said else ""),
            where=", ".join(missing),
            remedy=f"as root: apt-get install {wanted}",
        )
