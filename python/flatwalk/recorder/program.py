"""Finds the program that a command runs, and says why it cannot be recorded."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
import struct
from pathlib import Path
from typing import IO, TYPE_CHECKING

from flatwalk.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: How many interpreters of interpreters Linux follows.
SCRIPT_DEPTH = 4
# ELF header: class, type at offset 16, and machine at offset 18.
ELF_MAGIC = b"\x7fELF"
ELF_CLASS_64 = 2
ELF_EXECUTABLE, ELF_SHARED = 2, 3
ELF_MACHINES = {3: "i386", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv"}


def resolve(command: list[str], environment: Mapping[str, str]) -> tuple[Path, list[str]]:
    """Finds the x86-64 program that a command runs: itself, or a script's interpreter.

    Returns:
        The program's file and its arguments, the first of which is its name.

    Raises:
        UsageError: If it is missing, or not a program that can be recorded.
    """
    if not command[0]:
        raise UsageError("the program has no name", where="-- CMD", remedy="name one, as in -- sort big.txt")
    found = shutil.which(command[0], path=environment.get("PATH"))
    if not found:
        if Path(command[0]).is_file():
            with _opened(Path(command[0])) as file:
                head = file.read(256)
            if not head.startswith(b"#!"):
                _check_elf(command[0], head)
            raise UsageError(
                "the program may not be executed",
                where=command[0],
                remedy=f"chmod +x {shlex.quote(command[0])}",
            )
        if Path(command[0]).is_dir():
            raise UsageError("this is a directory", where=command[0], remedy="name a program in it")
        raise UsageError("there is no such program", where=command[0], remedy="check its name and PATH")
    arguments = list(command)
    for _ in range(SCRIPT_DEPTH + 1):
        with _opened(Path(found)) as file:
            head = file.read(256)
        if not head.startswith(b"#!"):
            _check_elf(found, head)
            _check_rights(Path(found))
            return Path(found), arguments
        # Nothing but blanks and tabs separates words: a carriage return is part of the interpreter's name.
        line = os.fsdecode(head[2:].split(b"\n", 1)[0]).strip(" \t")
        words = re.split("[ \t]+", line, maxsplit=1)
        if not line:
            raise UsageError(
                "the script's first line names no interpreter",
                where=found,
                remedy="write it behind #!, or give it as the program: sh SCRIPT",
            )
        if not Path(words[0]).is_file():
            raise UsageError(
                f"the script's interpreter {words[0]} does not exist",
                where=found,
                remedy="install it, or fix the script's first line",
            )
        # The path as it was given: a script sees it as its name.
        arguments = [*words, found, *arguments[1:]]
        found = words[0]
    raise UsageError(
        "too many scripts interpreted by scripts",
        where=command[0],
        remedy=f"name a program behind #! in {found}",
    )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise UsageError(
            f"the program cannot be read: {error.strerror}",
            where=str(path),
            remedy="make it readable (chmod +r); QEMU loads it like data",
        ) from error


def _check_elf(where: str, head: bytes) -> None:
    if not head.startswith(ELF_MAGIC) or len(head) < 20:
        raise UsageError(
            "this is neither a Linux program nor a script with an interpreter",
            where=where,
            remedy="give a compiled program, or start the script with #! and its interpreter",
        )
    kind, machine = struct.unpack_from("<HH", head, 16)
    if kind not in (ELF_EXECUTABLE, ELF_SHARED):
        raise UsageError(
            "this ELF file is not a program (it is an object file, or a core dump)",
            where=where,
            remedy="link it, and give the program",
        )
    if machine != 62 or head[4] != ELF_CLASS_64:
        name = ELF_MACHINES.get(machine, f"ELF machine {machine}")
        bits = "" if head[4] == ELF_CLASS_64 else "32-bit "
        raise UsageError(
            f"this is a {bits}{name} program; only 64-bit x86-64 programs can be recorded",
            where=where,
            remedy="compile it for x86-64 (gcc -m64)",
        )


def _check_rights(program: Path) -> None:
    about = program.stat()
    privileged = (
        (about.st_mode & stat.S_ISUID and about.st_uid != os.geteuid())
        or (about.st_mode & stat.S_ISGID and about.st_gid != os.getegid())
        or (os.geteuid() != 0 and _has_capabilities(program))
    )
    if privileged:
        raise UsageError(
            "this program is setuid, setgid or has capabilities: rights that QEMU cannot give it",
            where=str(program),
            remedy="record it as the user that it would run as (root: sudo), or a copy without these rights",
        )


def _has_capabilities(program: Path) -> bool:
    try:
        return bool(os.getxattr(program, "security.capability"))
    except OSError:  # it has none, or its file system does not support them
        return False
