"""Programs that work through their data by themselves: liblinear, sysbench, mummer and HPCC."""

from __future__ import annotations

import contextlib
import random
import signal
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError
from flatwalk.programs.attend import Attendance, Launch
from flatwalk.programs.drivers.common import SEED, says

if TYPE_CHECKING:
    from pathlib import Path

    from flatwalk.programs.catalogue import Program


class Liblinear:
    """Trains on rows like HIGGS's: 28 dense features. 16 bytes a feature and 32 a row in memory."""

    _FEATURES = 28

    def prepare(self, program: Program, directory: Path, size_bytes: int) -> Launch:
        """Writes the rows; what is recorded is the training, not the reading."""
        draw = random.Random(SEED)  # noqa: S311
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
        attendance.wait_until("it began", lambda: says(attendance.log, "Threads started!"))
        attendance.turn()
        attendance.linger()
        attendance.over()


#: Bases of a piece of a genome, and the share of pieces that are copies of earlier ones.
_PIECE, _COPIES = 1000, 0.25


def _mutated(draw: random.Random, genome: list[str], changed: int) -> list[str]:
    """A piece of the genome with so many bases drawn anew."""
    start = draw.randrange(len(genome) - _PIECE + 1)
    piece = genome[start : start + _PIECE]
    for at in draw.sample(range(_PIECE), changed):
        piece[at] = draw.choice("acgt")
    return piece


class Mummer:
    """Matches a query against a genome: a suffix tree of about 20 bytes a base is built, then walked."""

    def prepare(self, program: Program, directory: Path, size_bytes: int) -> Launch:
        """Draws a genome with repeats, and a query of mutated pieces of it."""
        draw = random.Random(SEED)  # noqa: S311
        bases = max(size_bytes // 20, 2 * _PIECE)
        genome: list[str] = []
        while len(genome) < bases:
            if len(genome) > _PIECE and draw.random() < _COPIES:
                genome += _mutated(draw, genome, _PIECE // 10)
            else:
                genome += draw.choices("acgt", k=_PIECE)
        query: list[str] = []
        for _ in range(bases // (2 * _PIECE)):
            query += _mutated(draw, genome, _PIECE // 50)
        for name, text in (("genome", genome), ("query", query)):
            (directory / f"{name}.fa").write_text(f">{name}\n{''.join(text)}\n", encoding="ascii")
        command = [str(program.command("mummer")), *program.options["arguments"].split()]
        return Launch([*command, str(directory / "genome.fa"), str(directory / "query.fa")], "marker")

    def attend(self, attendance: Attendance) -> None:
        """The region begins when it says that it matches."""
        log = attendance.log
        attendance.wait_until("it matched", lambda: says(log, "# matching query-file"))
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
        report = attendance.log.with_name("hpccoutf.txt")
        section = "SingleRandomAccess section."
        attendance.wait_until("RandomAccess began", lambda: says(report, f"Begin of {section}"))
        attendance.turn()
        with contextlib.suppress(FlatwalkError):
            attendance.wait_until("RandomAccess ended", lambda: says(report, f"End of {section}"), 1e9)
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
