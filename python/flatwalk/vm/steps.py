"""The commands of a build: their output goes to a log, their progress to the terminal."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError
from flatwalk.terminal import output
from flatwalk.vm import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: How many lines of a failed command's output are shown.
_TAIL_LINES = 25
#: How a build tool reports its progress.
_DONE_OF = re.compile(rb"^\[(\d+)/(\d+)\]")


class Steps:
    """Runs the commands of a build, with their output in a log and progress on a terminal.

    Args:
        name: What is built.
        log: Where the output goes.
        kept: Where the log is kept if a command fails.
        jobs: Compilers at once.
    """

    def __init__(self, name: str, log: Path, kept: Path, jobs: int) -> None:
        self.name = name
        self.jobs = jobs
        self._log = log
        self._kept = kept

    @contextlib.contextmanager
    def titled(self, title: str) -> Iterator[output.Progress]:
        """Announces a step."""
        output.note(f"{self.name}: {title}")
        with output.Progress(title) as progress:
            yield progress

    def run(self, title: str, *command: str, cwd: Path, remedy: str) -> None:
        """Runs a command.

        Raises:
            FlatwalkError: If it fails; its last lines are in the message, all of them in the log.
        """
        with self.titled(title) as progress, self._log.open("ab") as log:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
            except OSError as error:
                raise FlatwalkError(
                    f"{command[0]} does not start: {error.strerror}", remedy=remedy
                ) from error
            with process:
                assert process.stdout is not None
                with processes.ended_together(process):
                    for number, line in enumerate(process.stdout, 1):
                        log.write(line)
                        done = _DONE_OF.match(line)
                        progress(int(done[1]) if done else number, int(done[2]) if done else None)
        if process.returncode:
            shutil.copyfile(self._log, self._kept)
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise FlatwalkError(
                "\n".join([f"{self.name}: {title} failed:", *lines[-_TAIL_LINES:]]),
                where=f"{self._kept}, after: {' '.join(command)}",
                remedy=remedy,
            )
