"""What a paper leaves open: all of its claims under each joint setting.

One joint setting is for all claims of a paper, never one for each, and the default's verdicts come first.
"""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flatwalk import variations
from flatwalk.errors import UsageError
from flatwalk.reproduce.experiments import PAPERS
from flatwalk.reproduce.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flatwalk.reproduce.experiments import Experiment, Open
    from flatwalk.reproduce.show import Report


@dataclass(frozen=True)
class Judged:
    """A paper's claims under one joint setting; the default where `setting` is empty."""

    setting: Mapping[str, Any]
    verdicts: dict[str, Verdict]


def axes(experiments: Sequence[Experiment], paper: str) -> list[Open]:
    """What a paper leaves open.

    Raises:
        UsageError: If there is no such paper, or it leaves nothing open.
    """
    found = [one for experiment in experiments for one in experiment.open if one.paper == paper]
    if not found:
        known = sorted({one.paper for experiment in experiments for one in experiment.open})
        raise UsageError(
            f"nothing is known to be open in {paper!r}", where="--sensitivity", remedy=" or ".join(known)
        )
    return found


def settings(found: Sequence[Open]) -> list[dict[str, Any]]:
    """Every joint setting of some axes, by key."""
    return [
        dict(zip([one.key for one in found], values, strict=True))
        for values in itertools.product(*(one.values for one in found))
    ]


def under(experiment: Experiment, setting: Mapping[str, Any]) -> Experiment:
    """The experiment with a joint setting in place of what the paper leaves open.

    Raises:
        UsageError: If a key is none of a series, a machine or schemes.
    """
    machine: dict[str, Any] = {}
    schemes: dict[str, Any] = {}
    series: dict[str, Any] = {}
    for key, value in setting.items():
        where, _, rest = key.partition(".")
        if where in {"guest_frames", "frames"} and not rest:
            series[where] = value
        elif where in {"machine", "scheme"} and rest:
            part: Any = value
            for name in reversed(rest.split(".")):
                part = {name: part}
            changes = machine if where == "machine" else schemes
            changes.update(variations.merged(changes, part))
        else:
            remedy = "guest_frames, frames, machine.KEY or scheme.SECTION.KEY"
            raise UsageError(f"there is no setting {key}", where=experiment.name, remedy=remedy)
    changed = {
        name: replace(one, changes=variations.merged(machine, one.changes), **series)
        for name, one in experiment.series.items()
    }
    return replace(experiment, series=changed, scheme_changes=schemes)


def of_paper(experiments: Sequence[Experiment], paper: str) -> list[Experiment]:
    """The experiments with the paper's claims alone."""
    picked = (
        replace(one, claims=[claim for claim in one.claims if claim.paper == paper]) for one in experiments
    )
    return [one for one in picked if one.claims]


def judged(
    experiments: Sequence[Experiment],
    paper: str,
    chosen: Sequence[Mapping[str, Any]],
    gather: Callable[[Sequence[Experiment]], Report],
) -> list[Judged]:
    """All settings judged, the default first."""
    ours = of_paper(experiments, paper)
    found = []
    for setting in ({}, *chosen):
        report = gather([under(one, setting) for one in ours])
        found.append(Judged(setting, {one.claim.id: one.verdict for one in report.outcomes()}))
    return found


def final(claim: str, found: Sequence[Judged]) -> Verdict:
    """A claim's verdict where other settings than the default count, too."""
    default = found[0].verdicts[claim]
    elsewhere = any(one.verdicts.get(claim) is Verdict.REPRODUCED for one in found[1:])
    return Verdict.OPEN if elsewhere and default is not Verdict.REPRODUCED else default


_LEGEND = """
Each row is one joint setting for all claims. **R**: reproduced; s: sign only; ?: not decided; ·: not
reproduced; –: not comparable, or cannot be run. No setting is chosen: the first row is the default.
"""

_LETTERS = {
    Verdict.REPRODUCED: "**R**",
    Verdict.SIGN: "s",
    Verdict.UNDECIDED: "?",
    Verdict.NOT: "·",
    Verdict.NOT_COMPARABLE: "–",
    Verdict.CANNOT: "–",
}


def markdown(paper: str, found: Sequence[Judged], open_: Sequence[Open], made_by: str) -> str:
    """The table as a document: claims down, joint settings across."""
    claims = list(found[0].verdicts)
    lines = [
        f"# What {PAPERS[paper]} leaves open, and what depends on it",
        "",
        f"Written by `{made_by}`.",
        "",
        *textwrap.wrap(_LEGEND, 110),
        "",
    ]
    lines += [f"- **{one.name}** (`{one.key}`): by default as it is because {one.default}." for one in open_]
    names = [one.name for one in open_]
    lines += [
        "",
        f"| {' | '.join(names)} | {' | '.join(claims)} | reproduced |",
        "|" + "---|" * (len(names) + len(claims) + 1),
    ]
    for one in found:
        cells = [str(one.setting[axis.key]) if one.setting else "default" for axis in open_]
        letters = [_LETTERS[one.verdicts[claim]] for claim in claims]
        count = sum(verdict is Verdict.REPRODUCED for verdict in one.verdicts.values())
        lines.append(f"| {' | '.join([*cells, *letters])} | {count} |")
    lines += ["", "| claim | by default | with what is open |", "|---|---|---|"]
    lines += [f"| {claim} | {found[0].verdicts[claim]} | {final(claim, found)} |" for claim in claims]
    return "\n".join(lines) + "\n"
