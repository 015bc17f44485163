"""PostgreSQL under pgbench."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError
from flatwalk.programs.attend import Attendance, Launch
from flatwalk.programs.drivers.common import SEED
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flatwalk.programs.catalogue import Program


#: Asks which backend waits for a lock while it serves pgbench. What pgbench asks before its transactions, on
#: a connection of its own, needs no lock of the table that is locked.
_WAITING = "select pid from pg_stat_activity where application_name = 'pgbench' and wait_event_type = 'Lock'"


class Postgresql:
    """PostgreSQL under pgbench: what is recorded is the backend that serves it.

    The database is made, and loaded, by a server that is not recorded; with option `load = "attended"` it is
    only made, and the driver loads it first. 16 MB a unit of pgbench's scale.
    """

    def __init__(self) -> None:
        self._directory: Path
        self._program: Program
        self._user: str | None = None
        self._scale = 1

    def _command(self, name: str) -> str:
        return str(self._program.command(name))

    def _run(self, *line: str) -> str:
        done = subprocess.run(
            line, capture_output=True, text=True, check=False, cwd=self._directory, user=self._user
        )
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise FlatwalkError(f"{line[0]} failed: {said[-1] if said else done.returncode}")
        return done.stdout

    def prepare(self, program: Program, directory: Path, size_bytes: int) -> Launch:
        """Makes a cluster, loads pgbench's tables into it, and stops its server."""
        self._directory, self._program = directory, program
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            self._user = "postgres"
            shutil.chown(directory, self._user)
        cluster, self._scale = str(directory / "cluster"), max(size_bytes // (16 << 20), 1)
        self._run(self._command("initdb"), "--auth=trust", "--username=flatwalk", "--no-sync", "-D", cluster)
        # What is recorded or counted must not depend on when the server vacuums its tables.
        options = f"-k {directory} -c listen_addresses= -c fsync=off -c autovacuum=off"
        options += f" -c shared_buffers={max(size_bytes >> 19, 16384)}kB"
        if not self._load_is_attended():
            control = (self._command("pg_ctl"), "-D", cluster, "-w", "-t", "600")
            output.note(f"Loading pgbench's tables, scale {self._scale} …")
            self._run(*control, "-o", options, "-l", str(directory / "load.log"), "start")
            try:
                self._load()
            finally:
                self._run(*control, "-m", "fast", "stop")
        command = [self._command("postgres"), "-D", cluster, *options.split()]
        return Launch(command, "marker", user=self._user)

    def _load_is_attended(self) -> bool:
        return self._program.options.get("load") == "attended"

    def _load(self) -> None:
        self._run(self._command("pgbench"), *self._client(), "-i", "-s", str(self._scale), "postgres")

    def _client(self) -> list[str]:
        return ["-h", str(self._directory), "-U", "flatwalk"]

    def _asked(self, query: str) -> str:
        """The answer to a query; nothing if there is none."""
        line = [self._command("psql"), *self._client(), "-tAc", query, "postgres"]
        return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()

    def attend(self, attendance: Attendance) -> None:
        """Starts pgbench, begins the region in its backend, and stops both when that has ended."""
        attendance.wait_until("it answered", lambda: self._asked("select 1") == "1")
        attended = self._load_is_attended()
        if attended:
            self._load()
        line = self._pgbench(attendance.requests)
        backend = ""

        def failure() -> FlatwalkError:
            words = (self._directory / "pgbench.log").read_text(errors="replace").splitlines()
            return FlatwalkError(f"pgbench failed: {words[-1] if words else client.returncode}")

        def serves() -> bool:
            nonlocal backend
            if client.poll() is not None:
                raise failure()
            backend = self._asked(_WAITING)
            return bool(backend)

        with self._locked("pgbench_accounts") as release, (self._directory / "pgbench.log").open("wb") as log:
            client = subprocess.Popen(line, stdout=log, stderr=log)
            try:
                attendance.wait_until("pgbench was served", serves)
                if attended:
                    attendance.loaded()
                attendance.turn(int(backend))
                release()
                with contextlib.suppress(FlatwalkError):
                    attendance.wait_until("it was recorded", lambda: client.poll() is not None, 1e9)
                if attendance.requests is not None and client.poll():
                    raise failure()
                attendance.over()
            finally:
                client.kill()
                client.wait()
                attendance.kill(signal.SIGINT)

    def _pgbench(self, requests: int | None) -> list[str]:
        """The command that asks for so many transactions, or without an end in sight."""
        line = [self._command("pgbench"), *self._client(), "-n", "-c", "1", f"--random-seed={SEED}"]
        line += ["-T", "1000000"] if requests is None else ["-t", str(requests)]
        return [*line, *self._program.options["arguments"].split(), "postgres"]

    @contextlib.contextmanager
    def _locked(self, table: str) -> Iterator[Callable[[], None]]:
        """Locks a table, so that others wait for it, until the yielded function is called.

        Raises:
            FlatwalkError: If it cannot be locked.
        """
        line = [self._command("psql"), *self._client(), "-XqtA", "postgres"]
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            try:
                print(f"begin; lock table {table}; select 'locked';", file=holder.stdin, flush=True)
                if holder.stdout.readline().strip() != "locked":
                    raise FlatwalkError(f"{table} cannot be locked")
                yield holder.stdin.close
            finally:
                holder.kill()
