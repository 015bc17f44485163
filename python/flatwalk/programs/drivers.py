"""What each program needs: data, a command line, and someone who loads it and asks it for work."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from typing import IO, TYPE_CHECKING

from flatwalk import output, units
from flatwalk.errors import FlatwalkError
from flatwalk.programs.attend import Attendance, Launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flatwalk.programs.attend import Driver
    from flatwalk.programs.catalogue import Program

#: Of all that the drivers draw.
_SEED = 1
#: Requests that a client has under way.
_PIPELINE = 32


def _says(log: Path, words: str) -> bool:
    with contextlib.suppress(OSError):
        return words in log.read_text(encoding="utf-8", errors="replace")
    return False


class Liblinear:
    """Trains on rows like HIGGS's: 28 dense features. 16 bytes a feature and 32 a row in memory."""

    _FEATURES = 28

    def prepare(self, program: Program, directory: Path, size_bytes: int) -> Launch:
        """Writes the rows; what is recorded is the training, not the reading."""
        draw = random.Random(_SEED)  # noqa: S311
        rows = max(size_bytes // (16 * (self._FEATURES + 1) + 32), 2)
        data = directory / "rows.txt"
        with data.open("w", encoding="ascii") as file:
            for row in range(rows):
                values = [draw.gauss(0.5 if row % 2 else -0.5, 1.0) for _ in range(self._FEATURES)]
                features = " ".join(f"{number}:{value:.4f}" for number, value in enumerate(values, 1))
                file.write(f"{'+1' if row % 2 else '-1'} {features}\n")
        command = [str(program.command("liblinear-train")), *program.options["arguments"].split()]
        return Launch([*command, str(data), str(directory / "model")], "train", "save_model")

    def attend(self, attendance: Attendance) -> None:
        """Nothing to do: its library's symbols are where the region begins and ends."""


class Sysbench:
    """Random or ordered passes over one block of memory."""

    def prepare(self, program: Program, directory: Path, size_bytes: int) -> Launch:  # noqa: ARG002
        """The block is the data; a pass over it is an event."""
        command = [str(program.command("sysbench")), "memory", f"--memory-block-size={size_bytes}"]
        command += ["--threads=1", "--time=0", "--events=0", "--memory-total-size=1000T"]
        return Launch([*command, *program.options["arguments"].split(), "run"], "marker")

    def attend(self, attendance: Attendance) -> None:
        """The region begins when its threads do."""
        attendance.wait_until("it began", lambda: _says(attendance.log, "Threads started!"))
        attendance.turn()
        attendance.linger()
        attendance.over()


class Mummer:
    """Matches a query against a genome: a suffix tree of about 20 bytes a base is built, then walked."""

    def prepare(self, program: Program, directory: Path, size_bytes: int) -> Launch:
        """Draws a genome, and a query of mutated pieces of it."""
        draw = random.Random(_SEED)  # noqa: S311
        bases = max(size_bytes // 20, 1000)
        genome = "".join(draw.choices("acgt", k=bases))
        pieces = []
        for _ in range(max(bases // 2000, 1)):
            start = draw.randrange(max(bases - 1000, 1))
            piece = list(genome[start : start + 1000])
            for at in draw.sample(range(len(piece)), len(piece) // 50):
                piece[at] = draw.choice("acgt")
            pieces.append("".join(piece))
        for name, text in (("genome", genome), ("query", "".join(pieces))):
            (directory / f"{name}.fa").write_text(f">{name}\n{text}\n", encoding="ascii")
        command = [str(program.command("mummer")), *program.options["arguments"].split()]
        return Launch([*command, str(directory / "genome.fa"), str(directory / "query.fa")], "marker")

    def attend(self, attendance: Attendance) -> None:
        """The region begins when it says that it matches."""
        log = attendance.log
        attendance.wait_until("it matched", lambda: _says(log, "# matching query-file"))
        attendance.turn()


class Hpcc:
    """The HPC Challenge suite up to its RandomAccess on one process."""

    def prepare(self, program: Program, directory: Path, size_bytes: int) -> Launch:
        """The table is the largest power of two within half of the memory that the matrix would have."""
        side = int((2 * size_bytes / 8) ** 0.5) + 1
        (directory / "hpccinf.txt").write_text(_HPCC_INPUT.format(side=side), encoding="ascii")
        environment = {"OMPI_MCA_ess_singleton_isolated": "1", "OMPI_MCA_btl": "self"}
        return Launch([str(program.command("hpcc"))], "marker", environment=environment)

    def attend(self, attendance: Attendance) -> None:
        """The region is the section of that name in its output file."""
        told = attendance.log.with_name("hpccoutf.txt")
        section = "SingleRandomAccess section."
        attendance.wait_until("RandomAccess began", lambda: _says(told, f"Begin of {section}"))
        attendance.turn()
        with contextlib.suppress(FlatwalkError):
            attendance.wait_until("RandomAccess ended", lambda: _says(told, f"End of {section}"), 1e9)
        attendance.kill(signal.SIGKILL)


#: The suite's input: one process, one matrix.
_HPCC_INPUT = """\
HPLinpack benchmark input file
flatwalk
HPL.out      output file name
8            device out (file)
1            problem sizes
{side} N
1            NBs
80           NB
0            process mapping
1            process grids
1            P
1            Q
16.0         threshold
1            panel factorisations
2            PFACT
1            recursive stopping criteria
4            NBMIN
1            panels in recursion
2            NDIV
1            recursive panel factorisations
1            RFACT
1            broadcasts
1            BCAST
1            look-ahead depths
1            DEPTH
2            swap
64           swapping threshold
0            L1
0            U
1            equilibration
8            alignment
#####
0            further problem sizes for PTRANS
1200         N
0            further block sizes for PTRANS
40           NB
"""


class _Requests:
    """A client of a key-value server over a local socket, with many requests under way."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._answers: IO[bytes] = self._socket.makefile("rb")

    def send(self, requests: list[bytes]) -> None:
        self._socket.sendall(b"".join(requests))

    def line(self) -> bytes:
        """The next line of an answer."""
        line = self._answers.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        return line[:-2]

    def read(self, count: int) -> bytes:
        """So many bytes of an answer, and its end of line."""
        return self._answers.read(count + 2)[:-2]


class _KeyValue(ABC):
    """Loads records, then asks for random ones until the recorder has enough."""

    #: Bytes of a record's value; with its key and the server's own bytes, about 1 KiB.
    _VALUE = b"v" * 960

    def __init__(self) -> None:
        self._records = 0
        self._reads = 0.5
        self._socket_path: Path

    def _plan(self, program: Program, directory: Path, size_bytes: int) -> None:
        self._records = max(size_bytes // 1024, 1)
        self._reads = float(program.options["reads"])
        self._socket_path = directory / "socket"

    @abstractmethod
    def set(self, key: int) -> bytes:
        """A request that stores a record."""

    @abstractmethod
    def get(self, key: int) -> bytes:
        """A request for a record."""

    @abstractmethod
    def answer(self, client: _Requests) -> None:
        """Reads one answer whole."""

    def _batches(self, requests: Iterator[bytes], client: _Requests) -> None:
        while batch := [request for _, request in zip(range(_PIPELINE), requests, strict=False)]:
            client.send(batch)
            for _ in batch:
                self.answer(client)

    def attend(self, attendance: Attendance) -> None:
        """Loads, begins the region, asks until the server is ended or has been asked enough."""
        attendance.wait_until("it listened", self._listens)
        client = _Requests(self._socket_path)
        output.note(f"Loading {units.count(self._records)} records …")
        self._batches((self.set(key) for key in range(self._records)), client)
        draw = random.Random(_SEED)  # noqa: S311

        def requests() -> Iterator[bytes]:
            for number in itertools.count():
                if attendance.enough(number):
                    break
                key = draw.randrange(self._records)
                yield self.get(key) if draw.random() < self._reads else self.set(key)

        attendance.turn()
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            self._batches(requests(), client)
        attendance.over()

    def _listens(self) -> bool:
        try:
            _Requests(self._socket_path)
        except OSError:
            return False
        return True


class Redis(_KeyValue):
    """Redis without persistence, over its own protocol."""

    def prepare(self, program: Program, directory: Path, size_bytes: int) -> Launch:
        """No port, no files: a local socket."""
        self._plan(program, directory, size_bytes)
        command = [str(program.command("redis-server")), "--port", "0", "--save", "", "--appendonly", "no"]
        command += ["--unixsocket", str(self._socket_path), "--daemonize", "no", "--dir", str(directory)]
        return Launch(command, "marker")

    def set(self, key: int) -> bytes:
        """As the class above."""
        name = b"%012d" % key
        return b"*3\r\n$3\r\nSET\r\n$12\r\n%s\r\n$%d\r\n%s\r\n" % (name, len(self._VALUE), self._VALUE)

    def get(self, key: int) -> bytes:
        """As the class above."""
        return b"*2\r\n$3\r\nGET\r\n$12\r\n%012d\r\n" % key

    def answer(self, client: _Requests) -> None:
        """As the class above; a refusal is an error."""
        line = client.line()
        if line.startswith(b"$") and line != b"$-1":
            client.read(int(line[1:]))
        elif line.startswith(b"-"):
            raise FlatwalkError(f"Redis refused: {line.decode(errors='replace')}")


class Memcached(_KeyValue):
    """memcached with one worker, over its text protocol."""

    def prepare(self, program: Program, directory: Path, size_bytes: int) -> Launch:
        """Room for twice the data, so that nothing is evicted."""
        self._plan(program, directory, size_bytes)
        megabytes = max(2 * size_bytes >> 20, 64)
        command = [str(program.command("memcached")), "-s", str(self._socket_path), "-t", "1"]
        command += ["-m", str(megabytes)]
        if os.geteuid() == 0:
            command += ["-u", "root"]
        return Launch(command, "marker")

    def set(self, key: int) -> bytes:
        """As the class above."""
        return b"set %012d 0 0 %d\r\n%s\r\n" % (key, len(self._VALUE), self._VALUE)

    def get(self, key: int) -> bytes:
        """As the class above."""
        return b"get %012d\r\n" % key

    def answer(self, client: _Requests) -> None:
        """As the class above; a refusal is an error."""
        line = client.line()
        if line.startswith(b"VALUE "):
            client.read(int(line.rsplit(b" ", 1)[1]))
            line = client.line()
        if line not in {b"STORED", b"END"}:
            raise FlatwalkError(f"memcached refused: {line.decode(errors='replace')}")


class Postgresql:
    """PostgreSQL under pgbench: what is recorded is the backend that serves it.

    The database is made, and loaded, by a server that is not recorded; with option `load = "attended"` it is
    only made, and loading is what the attendant does first. 16 MB a unit of pgbench's scale.
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
        if os.geteuid() == 0:  # which it refuses to run as
            self._user = "postgres"
            shutil.chown(directory, self._user)
        cluster, self._scale = str(directory / "cluster"), max(size_bytes // (16 << 20), 1)
        self._run(self._command("initdb"), "--auth=trust", "--username=flatwalk", "--no-sync", "-D", cluster)
        # What is recorded, or counted, shall not depend on when the server looks after its tables.
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
        line = [self._command("pgbench"), *self._client(), "-n", "-c", "1", f"--random-seed={_SEED}"]
        line += ["-T", "1000000"] if attendance.requests is None else ["-t", str(attendance.requests)]
        line += [*self._program.options["arguments"].split(), "postgres"]
        # What pgbench asks before its transactions, on a connection of its own, needs no lock of this table.
        waits = (
            "select pid from pg_stat_activity where application_name = 'pgbench' and wait_event_type = 'Lock'"
        )
        backend = ""

        def failure() -> FlatwalkError:
            words = (self._directory / "pgbench.log").read_text(errors="replace").splitlines()
            return FlatwalkError(f"pgbench failed: {words[-1] if words else client.returncode}")

        def serves() -> bool:
            nonlocal backend
            if client.poll() is not None:
                raise failure()
            backend = self._asked(waits)
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

    @contextlib.contextmanager
    def _locked(self, table: str) -> Iterator[Callable[[], None]]:
        """Keeps others from using a table until what it gives is called: who wants to, waits.

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


#: By the name that the programs' files use.
DRIVERS: dict[str, type[Driver]] = {
    "liblinear": Liblinear,
    "sysbench": Sysbench,
    "mummer": Mummer,
    "hpcc": Hpcc,
    "redis": Redis,
    "memcached": Memcached,
    "postgresql": Postgresql,
}
