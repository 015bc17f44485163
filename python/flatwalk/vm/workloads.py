"""The papers' programs in guests, and what the kernel does for them while they load their data, and work."""

from __future__ import annotations

import contextlib
import pickle
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk import cache, temporary, units
from flatwalk.errors import UsageError
from flatwalk.programs import attend, catalogue, drivers, install
from flatwalk.programs.attend import build_region
from flatwalk.programs.drivers import DRIVERS
from flatwalk.terminal import output
from flatwalk.vm import compiled, counting, inside
from flatwalk.vm.bench import Row
from flatwalk.vm.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True)
class Work:
    """What a program of `data/programs` does in a guest."""

    size: str
    #: Requests, or transactions, that it is asked in its running phase.
    requests: int = 0
    #: How long that phase is if nobody sends requests, by a clock that counts instructions.
    seconds: float = 0


#: Programs of linux/tests with their arguments; each marks its phases itself.
OWN = {
    "gups": ("gups.c", "131072", "4000000"),
    "pagerank": ("graph.c", "pagerank", "4194304", "8", "2"),
    "bfs": ("graph.c", "bfs", "4194304", "8", "1"),
    "components": ("graph.c", "components", "4194304", "8", "1"),
}
#: Programs of the catalogue, sized for guests.
ATTENDED = {
    "sysbench": Work("256MiB", seconds=0.5),
    "redis": Work("64MiB", requests=50_000),
    "memcached": Work("64MiB", requests=50_000),
    "postgresql-mixed": Work("64MiB", requests=1_500),
}
#: All of these.
EVERY = (*OWN, *ATTENDED)
#: Those that are counted: all but GUPS, which `bench.measure` does.
NAMES = ("pagerank", "bfs", "components", *ATTENDED)
_MEMORY = "2G"
#: Tables of a range from which on the kernel flattens it: its own 64 is for larger programs than these.
THRESHOLD = 8


def measure(
    modes: Sequence[str],
    names: Iterable[str] = NAMES,
    levels: Sequence[int] = (4,),
    *,
    threshold: int = THRESHOLD,
    works: dict[str, Work] | None = None,
    kernel: str = "usual",
    source: Path | None = None,
) -> list[Row]:
    """Runs each program in guests of each mode, with the client that asks it for work.

    Args:
        modes: Of flattening.
        names: Programs, of `NAMES`.
        levels: Of page tables.
        threshold: Tables of a range from which on the kernel flattens it.
        works: For programs that do not do what `ATTENDED` says.
        kernel: Which one, of `components.KERNELS`.
        source: The user's own trees, as built by `vm build --source`.

    Raises:
        UsageError: If there is no such program.
        FlatwalkError: If QEMU or Linux is not built, a program cannot be installed, or a guest fails.
    """
    rows = []
    for name in known(names, NAMES):
        with prepared(name, (works or {}).get(name)) as command:
            for mode in modes:
                for count in levels:
                    made = machine(mode, count, threshold, kernel)
                    row = Row.of(name, made, *counting.count(made, command, source=source))
                    output.note(
                        f"{name}, {mode}, {count} levels: {row.entries_per_walk:.3f} entries per walk"
                    )
                    rows.append(row)
    return rows


def known(names: Iterable[str], among: Sequence[str]) -> list[str]:
    """The programs of these names.

    Raises:
        UsageError: If one is not among those that there are.
    """
    chosen = list(names)
    for name in chosen:
        if name not in among:
            raise UsageError(
                f"there is no program {name!r} to measure",
                where="--programs",
                remedy=f"some of {', '.join(among)}",
            )
    return chosen


def machine(mode: str, levels: int, threshold: int = THRESHOLD, kernel: str = "usual") -> Machine:
    """The guest that such a program runs in."""
    parameters = (f"sysctl.vm.flat_page_table_threshold={threshold}",)
    return Machine(mode, levels=levels, memory=_MEMORY, parameters=parameters, kernel=kernel)


@contextlib.contextmanager
def prepared(name: str, work: Work | None = None, *, recorded: bool = False) -> Iterator[list[str]]:
    """A program, and in a directory that guests see what it needs.

    Args:
        name: Of `OWN` or `ATTENDED`.
        work: What it does, if not what is said there.
        recorded: Whether it runs until it has been recorded. Data is then loaded outside of guests,
            if possible.

    Yields:
        The command that runs it in a guest.

    Raises:
        FlatwalkError: If it cannot be compiled or installed.
    """
    if name in OWN:
        text, *arguments = OWN[name]
        yield [str(compiled.guest_program(compiled.SOURCES / "tests" / text)), *arguments]
        return
    work = work or ATTENDED[name]
    program = catalogue.load(name)
    install.ensure(program)
    if not recorded:
        # All that is loaded is loaded in the guest, and counted.
        program = replace(program, options={**program.options, "load": "attended"})
    driver = DRIVERS[program.driver]()
    with temporary.directory() as directory:
        launch = driver.prepare(program, directory, units.parse_size(work.size, name))
        requests = None if recorded else work.requests
        job = inside.Job(driver, launch, build_region(directory), requests, work.seconds)
        (directory / "job").write_bytes(pickle.dumps(job))
        yield [sys.executable, "-I", "-m", inside.__name__, "attend", str(directory)]


def identity(name: str) -> list[str]:
    """Everything that decides what a program does in a guest, as strings."""
    if name in OWN:
        text, *arguments = OWN[name]
        return [compiled.guest_program(compiled.SOURCES / "tests" / text).name, *arguments]
    program = catalogue.load(name)
    commands = [program.command(Path(pattern).name) for pattern in program.commands]
    texts = [catalogue.PROGRAMS / f"{name}.toml", Path(attend.__file__)]
    texts += sorted(Path(drivers.__file__).parent.glob("*.py"))
    texts += [attend.REGION, Path(inside.__file__), *(path for path in commands if path is not None)]
    return [repr(ATTENDED[name]), *map(cache.digest, texts)]
