"""From runs to verdicts: our figure for each point of a claim with its interval, and whether the claim holds.

A check holds if the whole interval is within what it allows, fails if the whole interval is outside, and is
not decided otherwise. What someone wrote about a difference has no part in it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

from flatwalk import units
from flatwalk.answer.differences import joined
from flatwalk.errors import UsageError
from flatwalk.reproduce import explanations
from flatwalk.reproduce.claims import Value
from flatwalk.reproduce.metrics import AVERAGES, METRICS
from flatwalk.reproduce.planning import Selection, compared, selections, workloads_of
from flatwalk.reproduce.spread import Kind, Spread, combined, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flatwalk.answer.results import Run
    from flatwalk.reproduce.claims import Claim, Experiment, Factor, Point
    from flatwalk.reproduce.planning import Needs
    from flatwalk.reproduce.spread import Runs

    Lookup = Callable[[Selection], Run]
    #: A product of ratios: of each its metric, its runs, and what says with which they are compared.
    Term = list[tuple[str, dict[str, Any], Point | Factor]]
    Span = tuple[float, float]


class Verdict(StrEnum):
    """The outcome of a claim."""

    REPRODUCED = "reproduced"
    OPEN = "reproduced where the paper leaves it open"
    SIGN = "sign only"
    UNDECIDED = "not decided"
    NOT = "not reproduced"
    NOT_COMPARABLE = "not comparable"
    CANNOT = "cannot yet be run"


def _value(found: Spread, by_workload: dict[str, float | None]) -> Value:
    low, high = found.bounds()
    return Value(found.value, by_workload, low, high, None if low is None else found.missing())


@dataclass(frozen=True)
class Outcome:
    """A claim with our figures."""

    claim: Claim
    values: list[Value]
    #: What `relations` compares: differences and ratios of points, in its order.
    related: list[Value]
    verdict: Verdict
    #: What fails, is not decided, or is missing.
    failed: str
    #: What someone found out about it.
    why: str


@dataclass(frozen=True)
class Relation:
    """A difference or a ratio of two points that a claim says something about."""

    first: int
    second: int
    #: `difference`, second less first, or `ratio`, second over first.
    kind: str
    allowed: Span

    def of(self, spreads: Sequence[Spread | None]) -> Value:
        """The figure, from those of the points."""
        first, second = spreads[self.first], spreads[self.second]
        if first is None or second is None or (self.kind == "ratio" and not first.value):
            return Value(None)
        function: Callable[[float, float], float] = (
            (lambda a, b: b - a) if self.kind == "difference" else (lambda a, b: b / a)
        )
        return _value(combined([first, second], function), {})


def relations(claim: Claim) -> list[Relation]:
    """What the checks `order`, `ratio` and `ranked` look at."""
    stated = [(at, p) for at, p in enumerate(claim.points) if p.published is not None]
    found = []
    if "ranked" in claim.checks:
        found += [
            Relation(low, high, "difference", (0.0, math.inf))
            for low, high in itertools.pairwise(range(len(claim.points)))
        ]
    if "order" in claim.checks:
        # A figure and a difference of two have no order.
        ranked: dict[str, list[tuple[float, int]]] = {}
        for at, p in stated:
            if isinstance(p.published, float):
                ranked.setdefault(f"{p.metric} less {p.minus}", []).append((p.published, at))
        for alike in ranked.values():
            pairs = itertools.pairwise(at for _, at in sorted(alike))
            found += [Relation(low, high, "difference", (0.0, math.inf)) for low, high in pairs]
    if "ratio" in claim.checks:
        (first, of_first), *others = stated
        for at, point in others:
            expected = _middle(point.published) / _middle(of_first.published)
            ends = sorted(expected * (1 + sign * claim.ratio_tolerance) for sign in (-1, 1))
            found.append(Relation(first, at, "ratio", (ends[0], ends[1])))
    return found


def _runs_of(experiment: Experiment, scale: str, term: Term, run_of: Lookup) -> dict[str, Runs]:
    """By workload of a term's figure, the runs that it needs, in the order in which `_value_of` takes them.

    What it is compared with may be other workloads: as many, in their order.

    Raises:
        UsageError: If they are not as many.
    """
    parts = [part for _, of, what in term for part in compared(of, what)]
    columns = [selections(experiment, scale, part) for part in parts]
    if len({len(column) for column in columns}) > 1:
        raise UsageError(
            f"{[len(column) for column in columns]} workloads are compared with each other",
            where=f"experiment {experiment.name}",
            remedy="let `against`, `bound` and `times` select as many workloads as the point",
        )
    return {row[0].workload: tuple(map(run_of, row)) for row in zip(*columns, strict=True)}


def _terms(point: Point) -> list[Term]:
    """What a point's value is made of: the figure, then what is subtracted, each a product of ratios."""
    bases = [point.of] + ([{**point.of, **point.minus}] if point.minus is not None else [])
    return [
        [(point.metric, base, point)]
        + [(factor.metric, {**base, **factor.of}, factor) for factor in point.times]
        for base in bases
    ]


def _value_of(term: Term) -> Callable[[Runs], float | None]:
    """A workload's value of a term from its runs, before it is shown."""

    def value(runs: Runs) -> float | None:
        product = 1.0
        for number, (metric, _, _) in enumerate(term):
            run, base, bound, clock = runs[4 * number : 4 * number + 4]
            if clock is not base:
                base = cast("Run", {**base, "ipc": clock["ipc"]})
            factor = METRICS[metric].of(run, base, bound)
            if factor is None:
                return None
            product *= factor
        return product

    return value


def measure(experiment: Experiment, scale: str, claim: Claim, point: Point, run_of: Lookup) -> Measured:
    """Our figure for a point."""
    metric, average = METRICS[point.metric], AVERAGES[point.average]
    is_of_all = "workload" not in point.of and point.average in {"mean", "geomean"}
    names = experiment.scales[scale].workloads
    kinds = [Kind(one.programs, frozenset(workloads_of(names, one.workloads))) for one in claim.strata]
    programs = (kinds or claim.programs) if is_of_all else None
    spreads, shown = [], []
    for term in _terms(point):
        runs, value = _runs_of(experiment, scale, term, run_of), _value_of(term)
        found = spread(
            runs, value, lambda values: metric.show(average(values)), programs, sampled=metric.sampled
        )
        spreads.append(found)
        each = {name: value(of) for name, of in runs.items()}
        shown.append({name: None if one is None else metric.show(one) for name, one in each.items()})
    known = [found for found in spreads if found is not None]
    if len(known) < len(spreads):
        return Measured(None, shown[0])
    if len(known) == 1:
        return Measured(known[0], shown[0])
    less = {
        name: None if one is None or other is None else one - other
        for (name, one), other in zip(shown[0].items(), shown[1].values(), strict=False)
    }
    return Measured(combined(known, lambda of, minus: of - minus), less)


@dataclass(frozen=True)
class Measured:
    """A figure of a point with its spread, and by workload."""

    spread: Spread | None
    by_workload: dict[str, float | None] = field(default_factory=dict)

    def value(self) -> Value:
        """What is shown of it."""
        return Value(None, self.by_workload) if self.spread is None else _value(self.spread, self.by_workload)


def _middle(published: float | tuple[float, float] | None) -> float:
    assert published is not None
    return published if isinstance(published, float) else sum(published) / 2


def _state(value: Value, allowed: Span, digits: int | None) -> bool | None:
    """Whether a figure is within `allowed`, or None if that is not decided. It counts as it is shown."""

    def shown(bound: float) -> float:
        return bound if digits is None else round(bound, digits)

    low, high = allowed[0] - 1e-9, allowed[1] + 1e-9
    if value.ours is None:
        return False
    if value.low is None or value.high is None:
        return None
    if low <= shown(value.low) and shown(value.high) <= high:
        return True
    return False if shown(value.high) < low or shown(value.low) > high else None


def _sign_state(value: Value, published: float) -> bool | None:
    if value.ours is None:
        return False
    if value.low is None or value.high is None:
        return None
    low, high = sorted((value.low * math.copysign(1, published), value.high * math.copysign(1, published)))
    return True if low > 0 else False if high <= 0 else None


@dataclass(frozen=True)
class Check:
    """What became of a check: it holds, it fails, or None: that is not decided."""

    state: bool | None
    #: What fails or is not decided.
    words: str
    #: The figure that it looks at.
    value: Value
    #: What would become of it with all windows measured.
    at_best: bool | None = None
    #: What it looks at, in a word.
    kind: str = "figure"


def _at_best(value: Value) -> Value:
    """A figure as sure as it would be with all windows measured, or as it is where that is not known."""
    if value.ours is None or value.missing is None:
        return value
    return replace(value, low=value.ours - value.missing, high=value.ours + value.missing)


def checks(claim: Claim, values: Sequence[Value], related: Sequence[Value]) -> list[Check]:
    """What became of each check of a claim."""
    found = []
    for point, value in zip(claim.points, values, strict=True):
        if point.published is None:
            continue
        if value.ours is None:
            found.append(Check(state=False, words=f"{point.label} has no figure", value=value))
            continue
        if "value" in claim.checks and point.tolerance is not None:
            published = point.published
            ends = published if isinstance(published, tuple) else (published, published)
            allowed = (ends[0] - point.tolerance, ends[1] + point.tolerance)
            # An open range says which side of a bound a figure is on, which rounding must not decide.
            digits = None if any(map(math.isinf, ends)) else METRICS[point.metric].digits
            state, at_best = (_state(one, allowed, digits) for one in (value, _at_best(value)))
            found.append(Check(state, f"{point.label} {_where(state)} the tolerance", value, at_best))
        if "sign" in claim.checks:
            published = _middle(point.published)
            state, at_best = (_sign_state(one, published) for one in (value, _at_best(value)))
            verb = "has" if state is False else "may have"
            found.append(Check(state, f"{point.label} {verb} the other sign", value, at_best))
    for relation, value in zip(relations(claim), related, strict=True):
        first, second = (claim.points[at].label for at in (relation.first, relation.second))
        is_order = relation.kind == "difference"
        digits = None if is_order else 2
        state, at_best = (_state(one, relation.allowed, digits) for one in (value, _at_best(value)))
        if value.ours is None:
            words = f"{second} and {first} cannot be compared, as one of them has no figure"
        elif is_order:
            words = f"{second} {'is' if state is False else 'may be'} below {first}"
        else:
            low, high = relation.allowed
            words = f"{second} is {value.ours:.2f} of {first}, which {_where(state)} {low:.2f} to {high:.2f}"
        found.append(Check(state, words, value, at_best, "order" if is_order else "ratio"))
    return found


def undecided(outcome: Outcome) -> str:
    """What would decide a claim that is not decided, as a sentence; empty for the others."""
    if outcome.verdict is not Verdict.UNDECIDED:
        return ""
    found = checks(outcome.claim, outcome.values, outcome.related)
    # A figure may have several checks.
    open_checks: dict[int, list[Check]] = {}
    for check in found:
        if check.state is None:
            open_checks.setdefault(id(check.value), []).append(check)
    kinds = Counter(of[0].kind for of in open_checks.values())
    count = joined([units.several(number, kind) for kind, number in kinds.items()])
    values = [of[0].value for of in open_checks.values()]
    unknown = sum(value.half is None for value in values)
    if unknown:
        return f"{count}, {unknown} of them without an interval"
    if any(value.missing is None for value in values):
        return count
    lacking = sum(all(check.at_best is None for check in of) for of in open_checks.values())
    if lacking == len(values):
        return f"{count}: more windows would not help, as programs that we lack account for the interval"
    if lacking:
        return f"{count}: for {lacking} of them more windows would not help, as we lack programs"
    return f"{count}: more windows may"


def _where(state: bool | None) -> str:
    return "is outside" if state is False else "may be outside"


def _has_signs(claim: Claim, values: Sequence[Value]) -> bool:
    """Whether every point has a sign that means something, and ours is wholly the published one."""
    stated = [(p, v) for p, v in zip(claim.points, values, strict=True) if p.published is not None]
    changes = all(point.minus is not None or METRICS[point.metric].is_change for point, _ in stated)
    return (
        bool(stated)
        and changes
        and all(
            middle != 0 and _sign_state(value, middle) is True
            for point, value in stated
            for middle in (_middle(point.published),)
        )
    )


def judge(
    experiment: Experiment, scale: str, claim: Claim, needs: Needs, results: Mapping[str, Run]
) -> Outcome:
    """Our figures for a claim, from the results of the jobs that it needs, and the verdict."""

    def run_of(one: Selection) -> Run:
        return results[needs.jobs[one].key]

    measured = [
        Measured(None) if point.label in needs.missing else measure(experiment, scale, claim, point, run_of)
        for point in claim.points
    ]
    values = [one.value() for one in measured]
    related = [relation.of([one.spread for one in measured]) for relation in relations(claim)]
    if needs.missing:
        lacking = " ".join(sorted(set(needs.missing.values())))
        return Outcome(claim, values, related, Verdict.CANNOT, lacking, "")
    return conclude(claim, values, related, scale)


def conclude(claim: Claim, values: list[Value], related: list[Value], scale: str) -> Outcome:
    """The verdict on our figures for a claim."""
    found = checks(claim, values, related)
    bad = [check for check in found if check.state is not True]
    if claim.not_comparable:
        verdict = Verdict.NOT_COMPARABLE
    elif not bad:
        is_measured = {"value", "ratio", "ranked"} & set(claim.checks)
        verdict = Verdict.REPRODUCED if is_measured else Verdict.SIGN
    elif any(check.state is False for check in bad):
        verdict = Verdict.SIGN if _has_signs(claim, values) else Verdict.NOT
    else:
        verdict = Verdict.UNDECIDED
    words = "; ".join(check.words for check in bad)
    failed = f"{words[0].upper()}{words[1:]}." if words else ""
    why = claim.not_comparable or explanations.filled(claim, values, scale)
    return Outcome(claim, values, related, verdict, failed, why)
