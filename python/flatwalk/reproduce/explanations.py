"""Explanations of claims: texts in which figures stand as what they are of, and are filled in from the runs.

`{LABEL}` is the figure of the claim's point of that label, `{LABEL: gups}` that of one workload, by what
stands before the colon in its name. Instead of a workload:

- `least`, `most`, `mean`: of all workloads, or of others than some: `least but gups, random`;
- `half`: half the width of the figure's interval; `windows`: of that, what the windows alone make.

`{A / B: gups}` is one point's figure over another's. `-` before a label changes the sign, for what is lost;
`+` writes the sign of what grows, too. `| 2` at the end asks for so many digits after the decimal point.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flatwalk.errors import UsageError
from flatwalk.reproduce.metrics import AVERAGES, METRICS
from flatwalk.units import ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flatwalk.reproduce.claims import Claim, Point, Value

_PLACE = re.compile(r"\{([^{}]*)\}")
_INSIDE = re.compile(
    r"(?P<sign>[+-]?)(?P<label>[^{}:|]+?)(?: / (?P<over>[^{}:|]+?))?"
    r"(?:: (?P<what>[^{}|]+?))?(?: \| (?P<digits>\d))?"
)
#: Without a number of digits, figures from here on have one less than their metric shows.
_LARGE = 10.0
#: What is not of a workload.
_OF_ALL = ("least", "most", "mean")
_OF_INTERVAL = ("half", "windows")


@dataclass(frozen=True)
class Place:
    """A figure in a text: which one, and how it is written."""

    sign: str
    label: str
    over: str | None
    #: A workload, or one of the words above; None is the point's own figure.
    what: str | None
    #: Workloads that are left out.
    but: tuple[str, ...]
    digits: int | None


def places(text: str) -> list[Place]:
    """The figures of a text, in order.

    Raises:
        ValueError: If a brace begins something else.
    """
    found = []
    for match in _PLACE.finditer(text):
        inside = _INSIDE.fullmatch(match[1])
        if inside is None:
            raise ValueError(f"{match[0]} is not the place of a figure")
        what, _, but = (inside["what"] or "").partition(" but ")
        if but and what not in _OF_ALL:
            raise ValueError(f"{match[0]}: `but` follows {', '.join(_OF_ALL)}")
        found.append(
            Place(
                inside["sign"],
                inside["label"],
                inside["over"],
                what or None,
                tuple(but.split(", ")) if but else (),
                int(inside["digits"]) if inside["digits"] else None,
            )
        )
    rest = _PLACE.sub("", text)
    if "{" in rest or "}" in rest:
        raise ValueError("a brace has no other")
    return found


def check(claim: Claim, workloads: Mapping[str, Sequence[str]]) -> None:
    """Passes a claim whose explanations name points and workloads that it has.

    Args:
        claim: The claim.
        workloads: Those of its experiment, by scale.

    Raises:
        ValueError: If one does not.
    """
    labels = {point.label for point in claim.points}
    for scale, text in claim.why.items():
        known = {_short(name) for name in workloads.get(scale, ())}
        for place in places(text):
            for label in (place.label, place.over):
                if label is not None and label not in labels:
                    raise ValueError(f"an explanation names the point {label!r}, which is not there")
            named = [place.what] if place.what not in (None, *_OF_ALL, *_OF_INTERVAL) else []
            for name in (*named, *place.but):
                if name not in known:
                    raise ValueError(f"an explanation names {name!r}, which the scale {scale} does not run")


def filled(claim: Claim, values: Sequence[Value], scale: str) -> str:
    """A claim's explanation at a scale with its figures.

    Raises:
        UsageError: If a workload that it names has none.
    """
    text = claim.why.get(scale, "")
    by_label = {point.label: (point, value) for point, value in zip(claim.points, values, strict=True)}
    figures = iter([_written(place, by_label, claim.id) for place in places(text)])
    return _PLACE.sub(lambda _: next(figures), text)


def _written(place: Place, by_label: Mapping[str, tuple[Point, Value]], claim: str) -> str:
    point, value = by_label[place.label]
    digits = METRICS[point.metric].digits
    if place.over is None:
        found = _figure(place, point, value, claim)
    else:
        found, digits = _figure(place, point, _over(value, by_label[place.over][1]), claim), 2
    if found is None:
        return "?"
    if place.sign == "-":
        found = -found
    if place.digits is not None:
        digits = place.digits
    elif abs(found) >= _LARGE:
        digits = max(digits - 1, 0)
    text = f"{found:{'+' if place.sign == '+' else ''}.{digits}f}"
    if not text.strip("+-0."):
        text = text.lstrip("+-")
    return text.replace("-", "−")


def _over(value: Value, other: Value) -> Value:
    """One point's figures over another's, each workload's over the same one's."""
    each = {name: ratio(one, other.by_workload.get(name)) for name, one in value.by_workload.items()}
    return replace(value, ours=ratio(value.ours, other.ours), by_workload=each, low=None, high=None)


def _figure(place: Place, point: Point, value: Value, claim: str) -> float | None:
    """The figure that a place asks for; None where there is none."""
    if place.what is None:
        return value.ours
    if place.what == "half":
        return value.half
    if place.what == "windows":
        half, missing = value.half, value.missing
        return None if half is None else math.sqrt(max(half**2 - (missing or 0.0) ** 2, 0.0))
    shown = {_short(name): one for name, one in value.by_workload.items() if one is not None}
    if place.what in shown:
        return shown[place.what]
    if place.what not in _OF_ALL:
        raise UsageError(
            f"claim {claim} explains itself by {place.what}, which has no figure",
            where="why",
            remedy="name a workload of the claim's points",
        )
    return _of(place.what, [one for name, one in shown.items() if name not in place.but], point)


def _of(word: str, shown: Sequence[float], point: Point) -> float | None:
    if not shown:
        return None
    return {"least": min, "most": max}[word](shown) if word != "mean" else _mean(point, shown)


def _mean(point: Point, shown: Sequence[float]) -> float:
    """The average of figures as they are shown, as the point's own is."""
    average = AVERAGES[point.average if point.average in {"mean", "geomean"} else "mean"]
    metric = METRICS[point.metric]
    if metric.compares and metric.unit == "%" and point.minus is None:
        return metric.show(average([1 + one / 100 for one in shown]))
    return average(shown) if point.minus is None else sum(shown) / len(shown)


def _short(workload: str) -> str:
    """What a workload is called in explanations."""
    return workload.partition(":")[0]
