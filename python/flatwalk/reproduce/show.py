"""The table of claims: for a terminal, as Markdown, as JSON."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from flatwalk import units
from flatwalk.comparison import lengths
from flatwalk.reproduce import planning, verdicts
from flatwalk.reproduce.claims import FRAMES, GUEST_FRAMES, PAPERS, Value
from flatwalk.reproduce.metrics import METRICS
from flatwalk.reproduce.verdicts import Outcome, Verdict, conclude, relations

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from flatwalk.reproduce.claims import Claim, Experiment, Point

SCHEMA = "flatwalk-reproduce/3"


@dataclass(frozen=True)
class Report:
    """All that a call found out."""

    scale: str
    version: str
    #: Each experiment with the outcomes of its claims that were asked for.
    found: list[tuple[Experiment, list[Outcome]]]
    #: By claim of an earlier call: under which conditions it was run, which may be others now.
    told: Mapping[str, list[str]] = field(default_factory=dict)

    def outcomes(self) -> list[Outcome]:
        """All outcomes in the order of the table."""
        return [outcome for _, outcomes in self.found for outcome in outcomes]

    def counts(self) -> str:
        """How many claims have which verdict, in words."""
        verdicts = [outcome.verdict for outcome in self.outcomes()]
        parts = [f"{verdicts.count(verdict)} {verdict}" for verdict in Verdict if verdict in verdicts]
        return f"{len(verdicts)} claims: {', '.join(parts)}."


def _signed(text: str, value: float, point: Point) -> str:
    metric = METRICS[point.metric]
    changes = (metric.unit == "%" and metric.compares) or point.minus is not None
    if not text.strip("-0."):
        text = text.lstrip("-")
        changes = False
    return f"{'+' if changes and value > 0 else ''}{text}".replace("-", "−")


def number(value: float, point: Point) -> str:
    """A figure of ours, without its unit."""
    return _signed(f"{value:.{METRICS[point.metric].digits}f}", value, point)


def published(point: Point) -> str:
    """What the paper says, with its digits."""
    if point.published is None:
        return "–"
    if isinstance(point.published, float):
        return _signed(f"{point.published:g}", point.published, point)
    low, high = (_signed(f"{end:g}", end, point) for end in point.published)
    if math.isinf(point.published[1]):
        return f"at least {low}"
    return f"at most {high}" if math.isinf(point.published[0]) else f"{low} to {high}"


def unit(point: Point) -> str:
    """The unit of a point's figures."""
    return (
        "pp" if point.minus is not None and METRICS[point.metric].unit == "%" else METRICS[point.metric].unit
    )


def tolerance(claim: Claim) -> str:
    """What is asked of our figures, in words."""
    parts: list[str] = []
    if "value" in claim.checks:
        judged = [point for point in claim.points if point.published is not None]
        known = {(point.tolerance, unit(point)) for point in judged if point.tolerance is not None}
        words = ["exact" if most == 0 else f"±{most:g} {name}" for most, name in sorted(known)]
        parts += dict.fromkeys(words)
    parts += [word for word in ("order", "sign") if word in claim.checks]
    if "ranked" in claim.checks:
        parts.append("each at least the one before")
    if "ratio" in claim.checks:
        parts.append(f"ratios ±{units.percent(claim.ratio_tolerance)}")
    return ", ".join(parts)


def ours(outcome: Outcome) -> list[str]:
    """Our figure for each point, with its interval."""
    if not outcome.values:
        return ["–"] * len(outcome.claim.points)
    pairs = zip(outcome.claim.points, outcome.values, strict=True)
    return [_with_interval(point, value) for point, value in pairs]


def _with_interval(point: Point, value: Value) -> str:
    if value.ours is None:
        return "–"
    found = number(value.ours, point)
    if value.low is None or value.high is None:
        return f"{found} [?]"
    low, high = number(value.low, point), number(value.high, point)
    return found if low == high else f"{found} [{low}, {high}]"


def table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Headers and cells for a terminal: one line for each point."""
    rows = []
    for outcome in report.outcomes():
        claim = outcome.claim
        figures = ours(outcome)
        for position, point in enumerate(claim.points):
            first = position == 0
            rows.append(
                [
                    claim.id if first else "",
                    point.label,
                    published(point),
                    figures[position],
                    unit(point),
                    tolerance(claim) if first else "",
                    str(outcome.verdict) if first else "",
                ]
            )
        if not claim.points:
            rows.append([claim.id, claim.text, "", "", "", "", str(outcome.verdict)])
    return ["claim", "what ", "published", "ours", " ", "tolerance ", "verdict "], rows


def command(report: Report, experiments: Sequence[Experiment], *, against: bool = False) -> str:
    """The command that makes the document from nothing, wherever it is written to."""
    claims = [outcome.claim.id for outcome in report.outcomes()]
    if len(claims) == sum(len(experiment.claims) for experiment in experiments):
        claims = []
    other = ["--against", "FILE"] if against else []
    return " ".join(["flatwalk reproduce", *claims, "--scale", report.scale, *other, "--markdown FILE"])


_COLUMNS = ["", "claim", "paper and place", "published", "ours", "tolerance", "verdict"]
_COLUMNS += ["what fails", "explanation", "shown by"]
_LEGEND = """
**reproduced**: every check in the column *tolerance* holds for the whole 95 % interval, which stands in
brackets ([?]: nothing is known of it). **sign only**: each figure has the published sign, but a check
fails or asks for no more than signs or an order of published figures. **not reproduced**: a check fails for
the whole interval. **not decided**: none fails, but an interval reaches across a bound. **not comparable**:
what is run is not what the paper ran. An explanation has no part in a verdict. In *tolerance*, *order* is
that the points rank as published, *sign* that each has the published sign, *ratios* are to the first point,
and *each at least the one before* stands where the paper shows an order and no figures. No parameter of a
machine or a scheme was fitted to a claim. How claims are written, run and judged stands in
[reproducing.md](../reproducing.md).
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def markdown(report: Report, made_by: str, also: Sequence[str] = ()) -> str:
    """The table as a document, with what was run. Nothing in it depends on when or where.

    Args:
        report: What was found out.
        made_by: The command that makes the document.
        also: Lines of a further section.
    """
    lines = [
        "# What the papers claim, and what flatwalk finds",
        "",
        f"Written by `{made_by}`, version {report.version}. {report.counts()}",
        "",
        *textwrap.wrap(_LEGEND.strip(), 110),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---" * len(_COLUMNS) + "|",
    ]
    for outcome in report.outcomes():
        claim = outcome.claim
        figures = ours(outcome)

        def cells(values: Sequence[str], points: Sequence[Point] = claim.points) -> str:
            pairs = zip(points, values, strict=True)
            return "<br>".join(f"{point.label} {value}{unit_of(point)}" for point, value in pairs)

        row = (
            claim.id,
            claim.text,
            f"{PAPERS[claim.paper]}: {claim.place}",
            cells([published(point) for point in claim.points]) or "–",
            cells(figures) or "–",
            tolerance(claim) if claim.points else "–",
            str(outcome.verdict),
            outcome.failed,
            outcome.why,
            claim.shown_by if outcome.why else "",
        )
        lines.append(f"| {' | '.join(map(_cell, row))} |")
    if cannot := cannot_show(report):
        lines += ["", f"## What the scale {report.scale} cannot show", "", *(f"- {text}" for text in cannot)]
    lines += ["", *also] if also else [""]
    lines += ["## What was run", ""]
    for experiment, outcomes in report.found:
        alike: dict[tuple[str, ...], list[str]] = {}
        for outcome in outcomes:
            alike.setdefault(tuple(_conditions(report, experiment, outcome)), []).append(outcome.claim.id)
        for texts, claims in alike.items():
            lines += [
                f"**{experiment.title}** ({', '.join(claims)})",
                "",
                *(f"- {text}" for text in texts),
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"


def cannot_show(report: Report) -> list[str]:
    """What a scale does not decide, and what would; and what it cannot show whatever its intervals say."""
    found = [
        f"{outcome.claim.id} is not decided by {words}."
        for outcome in report.outcomes()
        if (words := verdicts.undecided(outcome))
    ]
    for experiment, outcomes in report.found:
        if text := experiment.scales[report.scale].cannot_show:
            found.append(f"{', '.join(outcome.claim.id for outcome in outcomes)}: {text}")
    return found


def unit_of(point: Point) -> str:
    """The unit as it follows a figure in a document."""
    name = unit(point)
    return "" if name in {"accesses", "nodes", "walks"} else f" {name}"


def _conditions(report: Report, experiment: Experiment, outcome: Outcome) -> list[str]:
    return report.told.get(outcome.claim.id) or conditions(experiment, report.scale)


def conditions(experiment: Experiment, scale: str) -> list[str]:
    """Machines, workloads and lengths of an experiment, in words."""
    size = experiment.scales[scale]
    lines = []
    for series in experiment.series.values():
        told = {
            "guest": f"programs in a {series.machine} guest",
            "printed": f"figures that were printed of a {series.machine} guest",
        }
        words = [told.get(series.mode, f"{series.mode} mode on `{series.machine}`")]
        if series.changes:
            words.append(f"with {_changes(series.changes)}")
        if series.guest_frames != GUEST_FRAMES:
            words.append(f"guest frames {series.guest_frames}")
        if series.frames != FRAMES:
            words.append(f"frames {series.frames}")
        if series.fragmentation:
            words.append(f"fragmentation {series.fragmentation:g}")
        lines.append(("" if len(experiment.series) == 1 else f"{series.name}: ") + ", ".join(words))
    lines.append(f"workloads {', '.join(f'`{name}`' for name in size.workloads)}")
    if not size.instructions:
        return lines
    warmup = units.count(size.warmup)
    if size.windows is None:
        length = f"{units.count(size.instructions)} instructions after a warm-up of {warmup}"
    else:
        windows, window = size.windows
        spans = [f"{units.count(count)} of `{name}`" for name, count in size.spans.items()]
        whole = ", ".join([f"the first {units.count(size.instructions)} instructions", *spans])
        length = f"{windows} windows of {units.count(window)} over {whole}, {warmup} warmed before each"
        if not all(map(planning.is_mix, size.workloads)):
            more = units.count(lengths.spread(windows, window, size.warmup)["filling"])
            length += f", up to {more} before the first of a program by itself"
    lines.append(f"{length}; seed {experiment.seed}")
    return lines


def _changes(changes: Mapping[str, Any], prefix: str = "") -> str:
    parts: list[str] = []
    for key, value in changes.items():
        if isinstance(value, dict):
            parts.append(_changes(value, f"{prefix}{key}."))
        else:
            parts.append(f"`{prefix}{key} = {value}`")
    return ", ".join(parts)


def to_json(report: Report) -> dict[str, Any]:
    """All of it for a program; `from_json` reads it back."""
    return {
        "schema": SCHEMA,
        "version": report.version,
        "scale": report.scale,
        "claims": [
            {
                "id": outcome.claim.id,
                "claim": outcome.claim.text,
                "paper": PAPERS[outcome.claim.paper],
                "place": outcome.claim.place,
                "tolerance": tolerance(outcome.claim),
                "verdict": str(outcome.verdict),
                "failed": outcome.failed,
                "why": outcome.why,
                "related": [asdict(value) for value in outcome.related],
                "conditions": _conditions(report, experiment, outcome),
                "points": [
                    {
                        "label": point.label,
                        "metric": point.metric,
                        "unit": unit(point),
                        "published": point.published,
                        **asdict(value),
                    }
                    for point, value in zip(outcome.claim.points, outcome.values, strict=False)
                ],
            }
            for experiment, outcomes in report.found
            for outcome in outcomes
        ],
    }


def from_json(
    written: Mapping[str, Any], experiments: Sequence[Experiment], but: Collection[str] = ()
) -> Report:
    """A report from its JSON and the experiments as they are now: figures from there, words from here.

    Args:
        written: What `to_json` made.
        experiments: All of them.
        but: Claims that are left out, whatever is written of them.

    Raises:
        ValueError: If a claim has other points now.
        LookupError, TypeError: If this is other JSON.
    """
    by_id = {claim["id"]: claim for claim in written["claims"] if claim["id"] not in but}
    found = []
    for experiment in experiments:
        outcomes = []
        for claim in experiment.claims:
            if (old := by_id.get(claim.id)) is None:
                continue
            if [point["label"] for point in old["points"]] != [point.label for point in claim.points]:
                raise ValueError(f"claim {claim.id} has other points now")
            keys = ("ours", "by_workload", "low", "high", "missing")
            values = [Value(*(point[key] for key in keys)) for point in old["points"]]
            related = [Value(*(one[key] for key in keys)) for one in old["related"]]
            if len(related) != len(relations(claim)):
                raise ValueError(f"claim {claim.id} has other checks now")
            if old["verdict"] == Verdict.CANNOT:
                outcomes.append(Outcome(claim, values, related, Verdict.CANNOT, old["failed"], ""))
            else:
                outcomes.append(conclude(claim, values, related, written["scale"]))
        if outcomes:
            found.append((experiment, outcomes))
    told = {name: list(claim["conditions"]) for name, claim in by_id.items()}
    return Report(written["scale"], written["version"], found, told)


def joined(before: Report, now: Report, experiments: Sequence[Experiment]) -> Report:
    """Both reports' claims, in the order of the experiments; those of both are `now`'s."""
    outcomes = {outcome.claim.id: outcome for report in (before, now) for outcome in report.outcomes()}
    found = [
        (one, [outcomes[claim.id] for claim in one.claims if claim.id in outcomes]) for one in experiments
    ]
    again = {outcome.claim.id for outcome in now.outcomes()}
    told = {name: texts for name, texts in before.told.items() if name not in again}
    return Report(now.scale, now.version, [(one, of) for one, of in found if of], told)
