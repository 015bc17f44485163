"""What a paper leaves open: all of its claims under each joint setting.

One joint setting is for all claims of a paper, never one for each, and the default's verdicts come first.
"""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flatwalk import units
from flatwalk.definitions import variations, workload
from flatwalk.errors import UsageError
from flatwalk.reproduce.claims import PAPERS
from flatwalk.reproduce.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flatwalk.reproduce.claims import Experiment, Open, Scale
    from flatwalk.reproduce.show import Report


@dataclass(frozen=True)
class Judged:
    """A paper's claims under one joint setting: what differs from the default, by key."""

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


def settings(found: Sequence[Open], differ: int | None = None) -> list[dict[str, Any]]:
    """The joint settings of some axes: the default, those that differ from it in one axis, in two, and so on.

    Each is what differs from the default, by key.

    Args:
        found: The axes.
        differ: Most axes in which a setting differs from the default; None for every joint setting.
    """
    most = len(found) if differ is None else min(differ, len(found))
    return [
        dict(zip([one.key for one in chosen], values, strict=True))
        for count in range(most + 1)
        for chosen in itertools.combinations(found, count)
        for values in itertools.product(*(one.values[1:] for one in chosen))
    ]


def under(experiment: Experiment, setting: Mapping[str, Any]) -> Experiment:
    """The experiment with a joint setting in place of what the paper leaves open.

    Raises:
        UsageError: If a key is none of a series, a workload, a machine or schemes.
    """
    changes: dict[str, dict[str, Any]] = {"machine": {}, "scheme": {}, "workload": {}}
    series: dict[str, Any] = {}
    sizes: dict[str, str] = {}
    for key, value in setting.items():
        where, _, rest = key.partition(".")
        if where in {"guest_frames", "frames"} and not rest:
            series[where] = value
        elif where == "size" and rest:
            sizes[rest] = value
        elif where in changes and rest:
            part: Any = value
            for name in reversed(rest.split(".")):
                part = {name: part}
            changes[where] = variations.merged(changes[where], part)
        else:
            remedy = "guest_frames, frames, size.WORKLOAD, machine.KEY, scheme.SECTION.KEY or workload.KEY"
            raise UsageError(f"there is no setting {key}", where=experiment.name, remedy=remedy)
    # What is open of a machine matters to its time alone, and what an experiment itself sets stays.
    changed = {
        name: replace(
            one,
            changes=variations.merged(changes["machine"] if one.mode == "timing" else {}, one.changes),
            **series,
        )
        for name, one in experiment.series.items()
    }
    return replace(
        experiment,
        series=changed,
        scales={name: _resized(scale, sizes) for name, scale in experiment.scales.items()},
        scheme_changes=changes["scheme"],
        workload_changes=changes["workload"],
    )


def _resized(scale: Scale, sizes: Mapping[str, str]) -> Scale:
    """The scale with other sizes of some workloads; their spans grow and shrink with them."""

    def changed(name: str) -> str:
        program, _, size = name.partition(":")
        return workload.resized(name, sizes[program]) if size and program in sizes else name

    def span(name: str, instructions: int) -> int:
        if changed(name) == name:
            return instructions
        before, after = (units.parse_size(text.split(":")[1], name) for text in (name, changed(name)))
        return instructions * after // before

    spans = {changed(name): span(name, instructions) for name, instructions in scale.spans.items()}
    return replace(scale, workloads=[changed(name) for name in scale.workloads], spans=spans)


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
    """All settings judged, in their order: the first is the default."""
    ours = of_paper(experiments, paper)
    found = []
    for setting in chosen:
        report = gather([under(one, setting) for one in ours])
        found.append(Judged(setting, {one.claim.id: one.verdict for one in report.outcomes()}))
    return found


def final(claim: str, found: Sequence[Judged]) -> Verdict:
    """A claim's verdict where other settings than the default count, too."""
    default = found[0].verdicts[claim]
    elsewhere = any(one.verdicts.get(claim) is Verdict.REPRODUCED for one in found[1:])
    return Verdict.OPEN if elsewhere and default is not Verdict.REPRODUCED else default


_LEGEND = """
Each row is one joint setting for all claims: the default first, then those that differ from it in one
thing, in two, and so on; a cell says what differs. **R**: reproduced; s: sign only; ?: not decided; ·: not
reproduced; –: not comparable, or cannot be run. No setting is chosen.
"""

_LETTERS = {
    Verdict.REPRODUCED: "**R**",
    Verdict.SIGN: "s",
    Verdict.UNDECIDED: "?",
    Verdict.NOT: "·",
    Verdict.NOT_COMPARABLE: "–",
    Verdict.CANNOT: "–",
}


def _reproduced(one: Judged) -> int:
    """How many claims a setting reproduces."""
    return sum(verdict is Verdict.REPRODUCED for verdict in one.verdicts.values())


def _cell(value: object) -> str:
    """A value; of a list of tables their kinds."""
    if isinstance(value, list):
        return ", ".join(str(item["kind"]) for item in value) or "none"
    return str(value)


def _words(one: Judged, open_: Sequence[Open]) -> str:
    """In what a setting differs from the default."""
    names = {axis.key: axis.name for axis in open_}
    return ", ".join(f"{names[key]}: {_cell(value)}" for key, value in one.setting.items()) or "the default"


def markdown(paper: str, found: Sequence[Judged], open_: Sequence[Open], made_by: str) -> str:
    """The table as a document: claims down, joint settings across."""
    claims = list(found[0].verdicts)
    lines = [
        f"# What {PAPERS[paper]} leaves open, and what depends on it",
        "",
        f"Written by `{made_by}`.",
        "",
        *textwrap.wrap(_LEGEND.strip(), 110),
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
        cells = [_cell(one.setting.get(axis.key, "")) for axis in open_]
        if not one.setting:
            cells = [f"{_cell(axis.values[0])} (default)" for axis in open_]
        letters = [_LETTERS[one.verdicts[claim]] for claim in claims]
        lines.append(f"| {' | '.join([*cells, *letters])} | {_reproduced(one)} |")
    most = max(map(_reproduced, found))
    best = next(one for one in found if _reproduced(one) == most)
    held = [claim for claim in claims if best.verdicts[claim] is Verdict.REPRODUCED]
    count = sum(_reproduced(one) == most for one in found)
    together = (
        f"Most claims that hold together: {most} of {len(claims)}, under {count} of {len(found)} settings, "
        f"by default {_reproduced(found[0])}. The first of them ({_words(best, open_)}) has "
        f"{', '.join(held) or 'none'}."
    )
    lines += ["", together]
    lines += ["", "| claim | by default | with what is open |", "|---|---|---|"]
    lines += [f"| {claim} | {found[0].verdicts[claim]} | {final(claim, found)} |" for claim in claims]
    return "\n".join(lines) + "\n"
