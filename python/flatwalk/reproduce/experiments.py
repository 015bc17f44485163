"""Experiments as data: what is run, what is claimed, what is compared. One TOML file each.

A file holds runs (`[[series]]` over the workloads of a `[scale.…]`) and claims about them. A claim has
points: one figure of ours next to one of the paper's. The engine checks every key; here they become what
is run and compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flatwalk import settings, units
from flatwalk.errors import UsageError
from flatwalk.reproduce import explanations
from flatwalk.reproduce.metrics import AVERAGES, METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SCALES = ("small", "paper")

#: The papers by the key that experiments use.
PAPERS = {
    "asplos2022": "Park et al., ASPLOS 2022",
    "ismm2021": "Ainsworth and Jones, ISMM 2021",
    "fpt2025": "Du and Zhang, FPT in EMT-Linux, 2025",
    "jabperf2022": "Dawson, JabPerf, 2022",
    "lkml2005": "Holt, LKML, 2005",
}

#: Keys that select runs. A workload's name stands for any size, and `!name` for all others.
SELECTORS = ("series", "scheme", "large_pages", "workload")

_REMEDY = "compare with docs/reproducing.md"


@dataclass(frozen=True)
class Series:
    """A machine and conditions; which schemes run on it follows from the points of the claims.

    In the mode `guest` real programs run under `flatwalk vm`, in the mode `printed` another command printed
    the figures, and the machine is only named.
    """

    name: str
    machine: str
    #: Settings of the machine that differ from the shipped file's.
    changes: dict[str, Any]
    mode: str
    host_large_pages: int
    guest_frames: str
    #: Where the machine's own frames lie.
    frames: str
    fragmentation: float


@dataclass(frozen=True)
class Scale:
    """How much of it is run."""

    workloads: list[str]
    #: Instructions that windows are spread over; those to measure where there are no windows.
    instructions: int
    #: The same of workloads where it is another number.
    spans: dict[str, int]
    #: Windows and instructions of each; None: one part.
    windows: tuple[int, int] | None
    #: Instructions warmed before each window, or before the part.
    warmup: int
    #: What it cannot show, whatever the intervals say; empty if nothing is known of that kind.
    cannot_show: str = ""

    def span(self, workload: str) -> int:
        """Instructions of a workload that its windows are spread over."""
        return self.spans.get(workload, self.instructions)


@dataclass(frozen=True)
class Factor:
    """A ratio of runs of the same workload."""

    metric: str
    of: dict[str, Any]
    against: dict[str, Any] | None
    bound: dict[str, Any] | None


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
    #: Ratios of other runs that each workload's value is multiplied by.
    times: list[Factor] = field(default_factory=list)


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
    #: Programs that the paper's averages are over; None: the workloads.
    programs: int | None
    #: By scale: why our figures differ, written by someone who investigated, with places for figures
    #: (`explanations`). No verdict depends on it.
    why: dict[str, str]
    #: The run that shows it.
    shown_by: str
    #: Why what is run is not what the paper ran; empty where it is.
    not_comparable: str
    #: Title of its figure; empty if there is none.
    figure: str


@dataclass(frozen=True)
class Open:
    """Something that a paper leaves open, and what it might be."""

    paper: str
    name: str
    #: `guest_frames`, `frames`, `size.WORKLOAD`, or a key of the machine, of schemes or of workloads.
    key: str
    #: What it might be; the first is what it is by default.
    values: list[Any]
    #: Why it is what it is by default.
    default: str


@dataclass(frozen=True)
class Experiment:
    """Runs, and the claims about them."""

    name: str
    title: str
    seed: int
    series: dict[str, Series]
    scales: dict[str, Scale]
    claims: list[Claim]
    open: list[Open] = field(default_factory=list)
    #: Settings of schemes by section, for those that have it.
    scheme_changes: dict[str, Any] = field(default_factory=dict)
    #: Parameters of workloads, for those that have them.
    workload_changes: dict[str, Any] = field(default_factory=dict)


def _error(where: str, what: str) -> UsageError:
    return UsageError(what, where=where, remedy=_REMEDY)


def _known(word: str, known: Iterable[str], what: str, where: str) -> str:
    """A word that the engine does not know all of."""
    if word not in known:
        raise _error(where, f"there is no {what} {word!r}; known: {', '.join(known)}")
    return word


def _series(table: dict[str, Any]) -> Series:
    return Series(
        name=table.get("name", "main"),
        machine=table["machine"],
        changes=table.get("set", {}),
        mode=table.get("mode", "timing"),
        host_large_pages=table.get("host_large_pages", 0),
        guest_frames=table.get("guest_frames", "scattered"),
        frames=table.get("frames", "compact"),
        fragmentation=float(table.get("fragmentation", 0.0)),
    )


def _scale(table: dict[str, Any], where: str) -> Scale:
    def count(key: str) -> int:
        return units.parse_count(table[key], f"{where}: {key}")

    spans = table.get("spans", {})
    if unknown := spans.keys() - set(table["workloads"]):
        raise _error(where, f"spans names {', '.join(unknown)}, which is not run")
    if ("windows" in table) != ("window" in table):
        raise _error(where, "windows and window go together")
    return Scale(
        workloads=table["workloads"],
        instructions=count("instructions"),
        spans={name: units.parse_count(value, f"{where}: spans") for name, value in spans.items()},
        windows=(table["windows"], count("window")) if "windows" in table else None,
        warmup=count("warmup"),
        cannot_show=table.get("cannot_show", ""),
    )


#: What a claim may say once for all of its points, and a point for itself; and what it is if neither does.
_SHARED: dict[str, Any] = {
    "metric": None,
    "average": "mean",
    "against": None,
    "minus": None,
    "bound": None,
    "tolerance": None,
}


def _published(table: dict[str, Any], where: str) -> float | tuple[float, float] | None:
    if "range" in table:
        low, high = map(float, table["range"])
        if low > high:
            raise _error(where, "a range is [LOW, HIGH]")
        return (low, high)
    return float(table["published"]) if "published" in table else None


def _point(table: dict[str, Any], claim: dict[str, Any], where: str) -> Point:
    where = f"{where}, {table['label']}"
    both = {**claim, **table}
    shared = {key: both.get(key, default) for key, default in _SHARED.items()}
    if shared["tolerance"] is not None:
        shared["tolerance"] = float(shared["tolerance"])
    if shared["metric"] is None:
        raise _error(where, "metric is missing")
    _known(shared["metric"], METRICS, "metric", where)
    _known(shared["average"], AVERAGES, "average", where)
    if METRICS[shared["metric"]].compares and shared["against"] is None:
        raise _error(where, f"{shared['metric']} needs `against`")
    return Point(
        label=table["label"],
        published=_published(table, where),
        of={key: both[key] for key in SELECTORS if key in both},
        times=[_factor(item, where) for item in table.get("times", [])],
        **shared,
    )


def _factor(table: dict[str, Any], where: str) -> Factor:
    return Factor(
        metric=_known(table["metric"], METRICS, "metric", where),
        of={key: table[key] for key in SELECTORS if key in table},
        against=table.get("against"),
        bound=table.get("bound"),
    )


def _why(table: dict[str, Any]) -> dict[str, str]:
    """By scale; one text stands for all of them."""
    why: str | dict[str, str] = table.get("why", {})
    return dict.fromkeys(SCALES, why) if isinstance(why, str) else why


def _claim(table: dict[str, Any], where: str) -> Claim:
    where = f"{where}, claim {table['id']}"
    found = Claim(
        id=table["id"],
        text=table["claim"],
        paper=_known(table["paper"], PAPERS, "paper", where),
        place=table["place"],
        checks=table.get("check", ["value"]),
        ratio_tolerance=float(table.get("ratio_tolerance", 0.1)),
        programs=table.get("programs"),
        why=_why(table),
        shown_by=table.get("shown_by", ""),
        not_comparable=table.get("not_comparable", ""),
        figure=table.get("figure", ""),
        points=[_point(point, table, where) for point in table.get("points", [])],
    )
    if "value" in found.checks and any(p.published is not None and p.tolerance is None for p in found.points):
        raise _error(where, "the check `value` needs a tolerance")
    if "ranked" in found.checks and any(point.published is not None for point in found.points):
        raise _error(where, "`ranked` is for figures that a paper does not give; those given have `order`")
    if any(found.why.values()) and not found.shown_by:
        raise _error(where, "`why` needs `shown_by`: the run that shows it")
    return found


def load(path: Path) -> Experiment:
    """Reads one experiment.

    Raises:
        UsageError: If the file cannot be read, or asks for something that is not possible.
    """
    table = settings.read(path, "experiment")
    series = [_series(item) for item in table.get("series", [])]
    scales = table.get("scale", {})
    if series and scales.keys() != set(SCALES):
        raise _error(path.name, f"the scales are {' and '.join(SCALES)}")
    sizes = {name: _scale(scale, f"{path.name}, scale.{name}") for name, scale in scales.items()}
    claims = [_claim(item, path.name) for item in table.get("claim", [])]
    for claim in claims:
        try:
            explanations.check(claim, {name: size.workloads for name, size in sizes.items()})
        except ValueError as error:
            raise _error(f"{path.name}, claim {claim.id}", str(error)) from error
    return Experiment(
        name=path.stem,
        title=table["title"],
        seed=table.get("seed", 1),
        series={item.name: item for item in series},
        scales=sizes,
        claims=claims,
        open=[Open(**item) for item in table.get("open", [])],
    )


def load_all(directory: Path = settings.EXPERIMENTS) -> list[Experiment]:
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
