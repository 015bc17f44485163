"""Counts what the papers' programs make the kernel do, while they load their data, and while they work."""

from __future__ import annotations

import pickle
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk import output, units
from flatwalk.errors import UsageError
from flatwalk.programs import catalogue, install
from flatwalk.programs.attend import build_region
from flatwalk.programs.drivers import DRIVERS
from flatwalk.vm import counting, inside, timed
from flatwalk.vm import run as guest
from flatwalk.vm.bench import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class Work:
    """What a program of `data/programs` does in a guest."""

    size: str
    #: Requests, or transactions, that it is asked in its running phase.
    requests: int = 0
    #: How long that phase is where nobody asks anything, by a clock that counts instructions.
    seconds: float = 0


#: Programs of the catalogue, sized for guests.
ATTENDED = {
    "sysbench": Work("256MiB", seconds=0.5),
    "redis": Work("64MiB", requests=50_000),
    "memcached": Work("64MiB", requests=50_000),
    "postgresql-mixed": Work("64MiB", requests=1_500),
}
#: All of them: those, and one of our own.
NAMES = ("pagerank", *ATTENDED)
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
    source: Path | None = None,
) -> list[Row]:
    """Runs each program in guests of each mode, with whoever asks it for work.

    Args:
        modes: Of flattening.
        names: Programs, of `NAMES`.
        levels: Of page tables.
        threshold: Tables of a range from which on the kernel flattens it.
        works: What some do other than in `ATTENDED`.
        source: The user's own trees, as built by `vm build --source`.

    Raises:
        UsageError: If there is no such program.
        FlatwalkError: If QEMU or Linux is not built, a program cannot be installed, or a guest fails.
    """
    chosen = list(names)
    parameters = (f"sysctl.vm.flat_page_table_threshold={threshold}",)
    for name in (name for name in chosen if name not in NAMES):
        raise UsageError(
            f"there is no program {name!r} to count", where="--programs", remedy=f"some of {', '.join(NAMES)}"
        )
    rows = []
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="flatwalk-") as directory:
            command = _prepared(name, Path(directory), (ATTENDED | (works or {})).get(name))
            for mode in modes:
                for count in levels:
                    machine = guest.Machine(mode, levels=count, memory=_MEMORY, parameters=parameters)
                    row = Row.of(name, machine, *counting.count(machine, command, source=source))
                    output.note(
                        f"{name}, {mode}, {count} levels: {row.entries_per_walk:.3f} entries per walk"
                    )
                    rows.append(row)
    return rows


def _prepared(name: str, directory: Path, work: Work | None) -> list[str]:
    """The command that runs a program in a guest, with what it needs in a directory that the guest sees."""
    if work is None:
        text, *arguments = timed.PROGRAMS[name]
        return [str(guest.guest_program(guest.GUEST / "tests" / text)), *arguments]
    program = catalogue.load(name)
    install.ensure(program)
    # All that is loaded is loaded in the guest, and counted.
    program = replace(program, options={**program.options, "load": "attended"})
    driver = DRIVERS[program.driver]()
    launch = driver.prepare(program, directory, units.parse_size(work.size, name))
    job = inside.Job(driver, launch, build_region(directory), work.requests, work.seconds)
    (directory / "job").write_bytes(pickle.dumps(job))
    return [sys.executable, "-I", "-m", inside.__name__, "attend", str(directory)]
