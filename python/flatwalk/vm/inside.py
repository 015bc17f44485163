"""What runs in a guest (`python -m flatwalk.vm.inside`): a program and its driver, or a host's bench."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import temporary
from flatwalk.errors import FlatwalkError
from flatwalk.host import benches, machine, measure
from flatwalk.programs.attend import Attendance, Driver, Launch

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How long a signal may take to arrive.
_ARRIVAL_SECONDS = 0.02
#: How many times the program is looked at before its page tables are, which costs more.
_LOOKS = 25


@dataclass(frozen=True)
class Job:
    """A program that has been prepared outside."""

    driver: Driver
    launch: Launch
    #: Makes signals to markers: see programs/region.c.
    region: Path
    #: How many requests it gets; None if it is recorded, until the guest ends.
    requests: int | None
    #: How long the program runs if nobody sends it requests.
    seconds: float


class _Recorded(Attendance):
    """A program that is recorded: the guest ends when enough has been recorded."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, job: Job) -> None:
        super().__init__(process.pid, log, job.requests)
        self._process = process

    def ended(self) -> bool:
        """Whether the program, our own child, has ended."""
        return self._process.poll() is not None

    def linger(self) -> None:
        """Until it has been recorded."""
        self._process.wait()


class _Counted(_Recorded):
    """A program whose phases are counted."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, job: Job) -> None:
        super().__init__(process, log, job)
        self._seconds = job.seconds
        #: The process that works, and its status when last read: it may be gone when the run is over.
        self._worker = process.pid
        self._seen = ""
        self._looks = 0

    def ended(self) -> bool:
        """Whether the program has ended; looks at its page tables now and then."""
        self._looks += 1
        if self._looks % _LOOKS == 0:
            self._seen = _status(self._worker) or self._seen
        return super().ended()

    def turn(self, pid: int | None = None) -> None:
        """Ends a phase and begins another."""
        self._worker = pid or self.pid
        super().turn(pid)
        time.sleep(_ARRIVAL_SECONDS)

    def loaded(self) -> None:
        """Ends the loading phase."""
        self.turn()

    def linger(self) -> None:
        """The guest's clock counts instructions, so the same time is the same work."""
        time.sleep(self._seconds)

    def over(self) -> None:
        """Ends the running phase, and prints how large page tables are by now.

        Raises:
            FlatwalkError: If the program has ended by itself.
        """
        if self.ended():
            raise FlatwalkError(f"the program ended before its work was done: {self.last_words()}")
        worker = self._worker
        self.turn()
        there = {self.pid, *_children(self.pid)}
        print(*(_status(pid) for pid in sorted(there)), "" if worker in there else self._seen, sep="\n")


def _status(pid: int) -> str:
    """The kernel's status of a process; empty if it is gone."""
    return machine.read(Path(f"/proc/{pid}/status")) or ""


def _children(pid: int) -> Iterator[int]:
    """A process's children."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        # The name before it, in parentheses, may hold anything.
        if int(path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]) == pid:
            yield int(path.parent.name)


def attend(directory: Path) -> None:
    """Runs the program whose job is in a directory through its phases."""
    job: Job = pickle.loads((directory / "job").read_bytes())  # noqa: S301 - our own, of the same version
    log = directory / "log.txt"
    if job.requests is None:
        # Opening a file for writing copies it into the guest's memory: before the program works, not while.
        for path in filter(Path.is_file, directory.rglob("*")):
            os.close(os.open(path, os.O_RDWR))
    with log.open("wb") as file:
        process = subprocess.Popen(
            job.launch.command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={
                **os.environ,
                **job.launch.environment,
                "LD_PRELOAD": str(job.region),
                "FLATWALK_LOADING": "1",
            },
            user=job.launch.user,
        )
    try:
        job.driver.attend((_Recorded if job.requests is None else _Counted)(process, log, job))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def bench(name: str, options: dict[str, Any], rounds: int, seed: int) -> None:
    """Measures a bench of `flatwalk host` in some rounds and prints the result as JSON."""
    host = machine.describe()
    with temporary.directory() as directory:
        match name:
            case "pagefault":
                made = benches.pagefault(host, directory, change_host=False, **options)
            case "gups":
                made = benches.gups(host, **options)
            case "walk":
                made = benches.walk(host, strides=None, **options)
            case _:
                made = benches.ebizzy(host, cpus=1, **options)
        # No round is measured again: counts are the same on a busy host.
        plan = measure.Plan(rounds, at_most_seconds=0, seed=seed, count=False)
        result = measure.run(made, plan, host, lambda *_: None)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    if sys.argv[1] == "attend":
        attend(Path(sys.argv[2]))
    else:
        bench(*json.loads(sys.argv[2]))
