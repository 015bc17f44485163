"""Key-value servers, with a client that loads records and requests them: Redis and memcached."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
from abc import ABC, abstractmethod
from typing import IO, TYPE_CHECKING

from flatwalk import units
from flatwalk.errors import FlatwalkError
from flatwalk.programs.attend import Attendance, Launch
from flatwalk.programs.drivers.common import SEED
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flatwalk.programs.catalogue import Program

#: Requests that a client has under way.
_PIPELINE = 32


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
    """Loads records, then requests random ones until the recorder has enough."""

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
        """Loads, begins the region, sends requests until the server is ended or has served enough."""
        attendance.wait_until("it listened", self._listens)
        client = _Requests(self._socket_path)
        output.note(f"Loading {units.count(self._records)} records …")
        self._batches((self.set(key) for key in range(self._records)), client)
        draw = random.Random(SEED)  # noqa: S311

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
