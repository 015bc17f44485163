"""Experiments as data: what is run, what is claimed, what is compared. One TOML file each.

A file holds runs (`[[series]]` over the workloads of a `[scale.…]`) and claims about them. The engine checks
every key; here they become what is run and compared (`claims`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatwalk import units
from flatwalk.definitions import settings
from flatwalk.errors import UsageError
from flatwalk.reproduce import explanations
from flatwalk.reproduce.claims import (
    FRAMES,
    GUEST_FRAMES,
    PAPERS,
    SCALES,
    Claim,
    Experiment,
    Factor,
    Open,
    Point,
    Scale,
    Series,
    Stratum,
)
from flatwalk.reproduce.metrics import AVERAGES, METRICS
from flatwalk.reproduce.planning import workloads_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: Keys that select runs. A workload's name stands for any size, and `!name` for all others.
SELECTORS = ("series", "scheme", "large_pages", "workload")

_REMEDY = "compare with docs/reproducing.md"


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
        guest_frames=table.get("guest_frames", GUEST_FRAMES),
        frames=table.get("frames", FRAMES),
        fragmentation=float(table.get("fragmentation", 0.0)),
    )


def _scale(table: dict[str, Any], where: str) -> Scale:
    def count(key: str) -> int:
        return units.parse_count(table[key], f"{where}: {key}")

    spans = table.get("spans", {})
    if unknown := [name for name in spans if name not in table["workloads"]]:
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
        strata=[Stratum(**stratum) for stratum in table.get("strata", [])],
        why=_why(table),
        shown_by=table.get("shown_by", ""),
        not_comparable=table.get("not_comparable", ""),
        figure=table.get("figure", ""),
        points=[_point(point, table, where) for point in table.get("points", [])],
    )
    if "value" in found.checks and any(p.published is not None and p.tolerance is None for p in found.points):
        raise _error(where, "the check `value` needs a tolerance")
    if found.strata and found.programs is not None:
        raise _error(where, "strata say how many programs there are of each kind; leave `programs` out")
    if "ranked" in found.checks and any(point.published is not None for point in found.points):
        raise _error(where, "`ranked` is for figures that a paper does not give; those given have `order`")
    if any(found.why.values()) and not found.shown_by:
        raise _error(where, "`why` needs `shown_by`: the run that shows it")
    return found


def _check_strata(claim: Claim, scales: dict[str, Scale], where: str) -> None:
    """Checks that each workload is in one stratum, and that each stratum has some, at every scale."""
    if not claim.strata:
        return
    run = {name for scale in scales.values() for name in scale.workloads}
    run |= {name.partition(":")[0] for name in run}
    for number, stratum in enumerate(claim.strata, start=1):
        if unknown := {name.removeprefix("!") for name in stratum.workloads} - run:
            raise _error(where, f"strata[{number}] names {', '.join(sorted(unknown))}, which is not run")
    for scale, size in scales.items():
        members = [workloads_of(size.workloads, stratum.workloads) for stratum in claim.strata]
        for number, (stratum, names) in enumerate(zip(claim.strata, members, strict=True), start=1):
            if not names:
                raise _error(where, f"strata[{number}] has no workload at the scale {scale}; add one to it")
            if len(names) > stratum.programs:
                several = f"{stratum.programs} programs and {len(names)} workloads at the scale {scale}"
                raise _error(where, f"strata[{number}] has {several}; it can stand for no fewer than it has")
        for name in size.workloads:
            count = sum(name in names for names in members)
            if count != 1:
                several = "no stratum" if not count else f"{count} strata"
                raise _error(where, f"{name} of the scale {scale} is in {several}; name it in one")


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
        _check_strata(claim, sizes, f"{path.name}, claim {claim.id}")
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
