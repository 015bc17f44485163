"""A sweep as its file says it: lists, every combination of which is run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import engine, units
from flatwalk.comparison.lengths import Lengths
from flatwalk.definitions import settings
from flatwalk.definitions.defaults import MACHINE, SEED
from flatwalk.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


#: The largest seed that a column of results holds.
MOST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Sweep:
    """What is to be run; docs/settings.md, section Sweeps, explains each key."""

    name: str
    schemes: list[str]
    workloads: list[str] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    machines: list[str] = field(default_factory=lambda: [MACHINE])
    #: Per cent on 2 MiB pages, or a policy of Linux.
    pages: list[int | str] = field(default_factory=lambda: [0])
    fragmentation: list[float] = field(default_factory=lambda: [0.0])
    host_large_pages: list[int] = field(default_factory=lambda: [0])
    guest_frames: list[str] = field(default_factory=lambda: ["scattered"])
    #: Cores that threads run on, at most; None is as many as the machine has.
    cores: list[int | None] = field(default_factory=lambda: [None])
    seeds: list[int] = field(default_factory=lambda: [SEED])
    mode: str = "timing"
    lengths: Lengths = field(default_factory=lambda: Lengths(None, None, 0))
    set: dict[str, Any] = field(default_factory=dict)
    zip: list[dict[str, Any]] = field(default_factory=list)
    derive: dict[str, Any] = field(default_factory=dict)
    #: Where its paths are from.
    folder: Path = field(default_factory=Path)
    #: What the user knows it by.
    where: str = "sweep"

    @classmethod
    def read(cls, name: str) -> Sweep:
        """The shipped sweep of that name, or the one in that TOML file.

        Raises:
            UsageError: If there is none, or with every problem of it.
        """
        table, path = settings.sweep(name)
        return cls._of(table, path.parent, str(path))

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "sweep") -> Sweep:
        """A sweep from a table as a file would have it; paths are from the current directory.

        Raises:
            UsageError: With every problem of it.
        """
        if problems := engine.check("sweep", dict(table)):
            raise UsageError(
                "not a valid sweep: " + "\n         ".join(map(settings.words, problems)),
                where=where,
                remedy=f"{settings.REFERENCE} explains every key",
            )
        return cls._of(table, Path(), where)

    @classmethod
    def _of(cls, table: Mapping[str, Any], folder: Path, where: str) -> Sweep:
        if not table.get("workloads") and not table.get("traces"):
            raise UsageError(
                "nothing to run: there are neither workloads nor traces",
                where=where,
                remedy='as workloads = ["gups:1GiB"], or traces = ["program.fwt"]',
            )
        if "thp" in table and "large_pages" in table:
            raise UsageError(
                "thp says which pages are large, and so does large_pages",
                where=where,
                remedy="give one of them",
            )
        for key in ("thp", "cores"):
            if table.get(key) == []:
                raise UsageError("the list is empty", where=f"{where}, {key}", remedy="leave it out")
        counts = {
            key: str(table[key]) for key in ("instructions", "warmup", "skip", "window") if key in table
        }
        windows = None
        if "windows" in table:
            place = f"{where}, windows"
            windows = units.parse_count(str(table["windows"]), place)
            if not windows:
                raise UsageError("nothing is to be simulated", where=place, remedy="give a count above 0")
        for seed in table.get("seeds", []):
            if seed > MOST_SEED:
                raise UsageError(
                    f"a seed of {seed} is more than results can hold",
                    where=f"{where}, seeds",
                    remedy=f"give at most {MOST_SEED}",
                )
        lengths = Lengths.asked(
            counts.get("instructions"),
            counts.get("warmup"),
            counts.get("skip"),
            windows=windows,
            window=counts.get("window"),
            exhaustive=table.get("exhaustive", False),
            file=where,
        )
        found = cls(
            name=table["name"],
            schemes=table["schemes"],
            workloads=table.get("workloads", []),
            traces=[folder / path for path in table.get("traces", [])],
            pages=table.get("thp", table.get("large_pages", [0])),
            # As 0 and 0.0 it would be two runs.
            fragmentation=[float(share) for share in table.get("fragmentation", [0.0])],
            cores=table.get("cores", [None]),
            lengths=lengths,
            folder=folder,
            where=where,
        )
        same = ("machines", "host_large_pages", "guest_frames", "seeds", "mode")
        given = {key: table[key] for key in (*same, "set", "zip", "derive") if key in table}
        return replace(found, **given)
