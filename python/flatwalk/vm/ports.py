"""A guest's ports: files, and pipes that connect its command to our input and output."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from typing import IO, TYPE_CHECKING

from flatwalk.recorder.tools import escaped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def plugin(path: Path, *arguments: str) -> list[str]:
    """QEMU's options that load a plugin."""
    return ["-plugin", ",".join(map(escaped, (path, *arguments)))]


def port(name: str, path: Path) -> list[str]:
    """QEMU's options for a port whose output goes to a file."""
    return [
        *("-chardev", f"file,id={name},path={escaped(path)},append=on"),
        *("-device", f"virtserialport,chardev={name},name={name}"),
    ]


@contextlib.contextmanager
def forwarded(to: IO[bytes]) -> Iterator[int]:
    """A pipe whose contents go to a file of ours, which QEMU could not open by name."""
    reading, writing = os.pipe()

    def forward() -> None:
        with os.fdopen(reading, "rb", buffering=0) as file:
            while got := file.read(65536):
                # A reader who has gone away must not stop the guest.
                with contextlib.suppress(OSError, ValueError):
                    to.write(got)
                    to.flush()

    thread = threading.Thread(target=forward)
    thread.start()
    try:
        yield writing
    finally:
        os.close(writing)
        thread.join()


@contextlib.contextmanager
def fed(source: int | None) -> Iterator[tuple[list[int], list[str]]]:
    """Forwards a file to the guest's port `stdin`, which ends when the file does.

    Yields:
        The descriptors that QEMU needs, and its options.
    """
    if source is None:
        yield [], []
        return
    ours, theirs = socket.socketpair()
    over_reading, over_writing = os.pipe()

    def feed() -> None:
        with ours, contextlib.suppress(OSError):
            while source in select.select([source, over_reading], [], [])[0]:
                got = os.read(source, 65536)
                if not got:
                    break
                ours.sendall(got)
            # This says that there is no more; if all were closed, QEMU would drop what it has not read.
            ours.shutdown(socket.SHUT_WR)
            select.select([over_reading], [], [])

    thread = threading.Thread(target=feed)
    thread.start()
    name = "stdin"
    try:
        yield (
            [theirs.fileno()],
            [
                *("-chardev", f"socket,id={name},fd={theirs.fileno()}"),
                *("-device", f"virtserialport,chardev={name},name={name}"),
            ],
        )
    finally:
        theirs.close()
        os.close(over_writing)
        thread.join()
        os.close(over_reading)
