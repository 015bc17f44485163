"""Experiments as data: what is run, what is claimed, what is compared. One TOML file each.

A file holds runs (`[[series]]` over the workloads of a `[scale.…]`) and claims about them. A claim has
points: one figure of ours next to one of the paper's. docs/reproducing.md explains every key.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from flatwalk import settings, units
from flatwalk.errors import UsageError
from flatwalk.reproduce.metrics import AVERAGES, METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

EXPERIMENTS = settings.DATA / "experiments"
SCALES = ("small", "paper")
CHECKS = ("value", "order", "sign", "ratio")

#: The papers by the key that experiments use.
PAPERS = {
    "asplos2022": "Park et al., ASPLOS 2022",
    "ismm2021": "Ainsworth and Jones, ISMM 2021",
    "fpt2025": "Du and Zhang, FPT in EMT-Linux, 2025",
    "lkml2005": "Holt, LKML, 2005",
}

#: Keys that select runs. A workload's name stands for any size, and `!name` for all others.
SELECTORS = ("series", "scheme", "large_pages", "workload")

_REMEDY = "compare with docs/reproducing.md"
_T = TypeVar("_T")
_D = TypeVar("_D")


@dataclass(frozen=True)
class Series:
    """A machine and conditions; which schemes run on it follows from the points of the claims.

    In the mode `guest` real programs run under `flatwalk vm`, and the machine is only named.
    """

    name: str
    machine: str
    #: Settings of the machine that differ from the shipped file's.
    changes: dict[str, Any]
    mode: str
    host_large_pages: int
    guest_frames: str
    fragmentation: float


@dataclass(frozen=True)
class Scale:
    """How much of it is run."""

    workloads: list[str]
    instructions: int
    warmup: int
    #: Instructions left out at the beginning, by workload where one needs it.
    skip: dict[str, int]


@dataclass(frozen=True)
class Point:
    """One figure of ours and one of the paper's."""

    label: str
    #: What the paper says: a figure, or the ends of a range. None where it gives none.
    published: float | tuple[float, float] | None
    metric: str
    average: str
    #: Which runs: some of `SELECTORS`.
    of: dict[str, Any]
    #: Which runs the metric compares them with, where it compares.
    against: dict[str, Any] | None
    #: Which runs' value is subtracted.
    minus: dict[str, Any] | None
    #: Which runs have free translation, for metrics that need the bound.
    bound: dict[str, Any] | None
    tolerance: float | None


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, and the checks that support it."""

    id: str
    text: str
    paper: str
    #: Section and figure.
    place: str
    points: list[Point]
    checks: list[str]
    #: Largest relative difference of ratios, for the check of that name.
    ratio_tolerance: float
    #: By scale: why our figures differ, written by someone who investigated.
    why: dict[str, str]
    #: Title of its figure; empty if there is none.
    figure: str


@dataclass(frozen=True)
class Experiment:
    """Runs, and the claims about them."""

    name: str
    title: str
    seed: int
    series: dict[str, Series]
    scales: dict[str, Scale]
    claims: list[Claim]


class _Table:
    """A TOML table that is read key by key; keys that nobody reads are errors."""

    def __init__(self, table: object, where: str) -> None:
        if not isinstance(table, dict):
            raise UsageError("must be a table", where=where, remedy=_REMEDY)
        self._left = dict(table)
        self.where = where

    def get(self, key: str, kind: type[_T], default: _D) -> _T | _D:
        """The value of a key that may be missing. A whole number will do for a float."""
        if key not in self._left:
            return default
        value = self._left.pop(key)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(f"{key} is not of type {kind.__name__}: {value!r}")
        return value

    def take(self, key: str, kind: type[_T]) -> _T:
        """The value of a key that must be there."""
        value = self.get(key, kind, None)
        if value is None:
            raise self.error(f"{key} is missing")
        return value

    def choice(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """One of some words."""
        value = self.take(key, str) if default is None else self.get(key, str, default)
        if value not in choices:
            raise self.error(f"{key} is {value!r}, which is none of {', '.join(choices)}")
        return value

    def count(self, key: str) -> int:
        """A number of instructions, as on the command line."""
        return units.parse_count(self.take(key, str), f"{self.where}: {key}")

    def tables(self, key: str) -> list[_Table]:
        """An array of tables."""
        items = self.get(key, list, [])
        return [_Table(item, f"{self.where}, {key} {number}") for number, item in enumerate(items, 1)]

    def selectors(self) -> dict[str, Any]:
        """The selectors in it."""
        return {key: self._left.pop(key) for key in SELECTORS if key in self._left}

    def end(self) -> None:
        """Checks that no key is left."""
        if self._left:
            raise self.error(f"unknown: {', '.join(self._left)}")

    def error(self, what: str) -> UsageError:
        """An error in this table."""
        return UsageError(what, where=self.where, remedy=_REMEDY)


def _series(table: _Table) -> Series:
    found = Series(
        name=table.get("name", str, "main"),
        machine=table.take("machine", str),
        changes=table.get("set", dict, {}),
        mode=table.choice("mode", ("timing", "functional", "guest"), "timing"),
        host_large_pages=table.get("host_large_pages", int, 0),
        guest_frames=table.choice("guest_frames", ("scattered", "compact"), "scattered"),
        fragmentation=table.get("fragmentation", float, 0.0),
    )
    table.end()
    return found


def _scale(table: _Table) -> Scale:
    skips = table.get("skip", dict, {})
    found = Scale(
        workloads=table.take("workloads", list),
        instructions=table.count("instructions"),
        warmup=table.count("warmup"),
        skip={name: units.parse_count(str(value), table.where) for name, value in skips.items()},
    )
    table.end()
    if unknown := skips.keys() - set(found.workloads):
        raise table.error(f"skip names {', '.join(unknown)}, which is not run")
    return found


#: What a claim may say once for all of its points, and a point for itself.
_SHARED: dict[str, type] = {
    "metric": str,
    "average": str,
    "against": dict,
    "minus": dict,
    "bound": dict,
    "tolerance": float,
}


def _shared(table: _Table) -> dict[str, Any]:
    found = {key: table.get(key, kind, None) for key, kind in _SHARED.items()}
    return {key: value for key, value in found.items() if value is not None}


def _point(table: _Table, defaults: dict[str, Any], of: dict[str, Any]) -> Point:
    published: float | tuple[float, float] | None = table.get("published", float, None)
    if ends := table.get("range", list, []):
        if len(ends) != 2 or not all(isinstance(end, int | float) for end in ends) or ends[0] > ends[1]:
            raise table.error("a range is [LOW, HIGH]")
        published = (float(ends[0]), float(ends[1]))
    mine: dict[str, Any] = {
        "average": "mean",
        "against": None,
        "minus": None,
        "bound": None,
        "tolerance": None,
    }
    mine |= defaults | _shared(table)
    found = Point(label=table.take("label", str), published=published, of={**of, **table.selectors()}, **mine)
    table.end()
    if found.metric not in METRICS:
        raise table.error(f"there is no metric {found.metric!r}; known: {', '.join(METRICS)}")
    if found.average not in AVERAGES:
        raise table.error(f"there is no average {found.average!r}; known: {', '.join(AVERAGES)}")
    if METRICS[found.metric].compares and found.against is None:
        raise table.error(f"{found.metric} needs `against`")
    for part in (found.against, found.minus, found.bound):
        if part is not None and (unknown := part.keys() - set(SELECTORS)):
            raise table.error(f"not a selector: {', '.join(unknown)}")
    return found


def _why(table: _Table) -> dict[str, str]:
    """By scale; one text stands for all of them."""
    why = table.get("why", object, {})
    if isinstance(why, str):
        return dict.fromkeys(SCALES, why)
    if not isinstance(why, dict) or not all(isinstance(text, str) for text in why.values()):
        raise table.error("why is a text, or a table of texts by scale")
    for scale in why:
        if scale not in SCALES:
            raise table.error(f"why is by scale, {' or '.join(SCALES)}, not {scale}")
    return why


def _claim(table: _Table) -> Claim:
    defaults, of = _shared(table), table.selectors()
    found = Claim(
        id=table.take("id", str),
        text=table.take("claim", str),
        paper=table.choice("paper", PAPERS),
        place=table.take("place", str),
        checks=table.get("check", list, ["value"]),
        ratio_tolerance=table.get("ratio_tolerance", float, 0.1),
        why=_why(table),
        figure=table.get("figure", str, ""),
        points=[_point(point, defaults, of) for point in table.tables("points")],
    )
    table.end()
    for check in found.checks:
        if check not in CHECKS:
            raise table.error(f"there is no check {check!r}; known: {', '.join(CHECKS)}")
    if "value" in found.checks and any(p.published is not None and p.tolerance is None for p in found.points):
        raise table.error("the check `value` needs a tolerance")
    return found


def load(path: Path) -> Experiment:
    """Reads one experiment.

    Raises:
        UsageError: If the file cannot be read, or asks for something that is not possible.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the experiment cannot be read: {error}", where=str(path), remedy="fix the file"
        ) from error
    table = _Table(content, path.name)
    series = [_series(item) for item in table.tables("series")]
    scales = table.get("scale", dict, {})
    found = Experiment(
        name=path.stem,
        title=table.take("title", str),
        seed=table.get("seed", int, 1),
        series={item.name: item for item in series},
        scales={name: _scale(_Table(value, f"{path.name}, scale.{name}")) for name, value in scales.items()},
        claims=[_claim(item) for item in table.tables("claim")],
    )
    table.end()
    if found.scales.keys() - set(SCALES) or (series and found.scales.keys() != set(SCALES)):
        raise table.error(f"the scales are {' and '.join(SCALES)}")
    return found


def load_all(directory: Path = EXPERIMENTS) -> list[Experiment]:
    """All experiments, by file name.

    Raises:
        UsageError: If one is wrong, or two claims have one name.
    """
    found = [load(path) for path in sorted(directory.glob("*.toml"))]
    seen: dict[str, str] = {}
    for experiment in found:
        for claim in experiment.claims:
            if claim.id in seen:
                raise UsageError(
                    f"two claims {claim.id}",
                    where=f"{seen[claim.id]} and {experiment.name}",
                    remedy="rename one",
                )
            seen[claim.id] = experiment.name
    return found
