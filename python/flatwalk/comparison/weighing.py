"""What follows from the runs of a mix: weighted speed-ups, and which scheme serves the programs best.

A weighted speed-up is the sum, over the programs, of the IPC in the mix over the IPC alone. Window by window
all programs and configurations run together, so that by how much a window moves such a figure is seen by
leaving it out of all of them at once (the jackknife; `flatwalk.answer.intervals` has what follows from that).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatwalk.answer import intervals
from flatwalk.answer.differences import WITHIN, Difference, Standing, joined
from flatwalk.answer.intervals import Estimate
from flatwalk.answer.results import coverage, grouped_by, is_bound, pages_key, sampled_cycles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flatwalk.answer.results import Run, Sampling

    Result = dict[str, Any]


@dataclass(frozen=True)
class Weights:
    """What the speeds of a mix's programs are compared with, and how sure they are."""

    programs: Sequence[str]
    #: By program: its run alone.
    alone: Mapping[str, Run]
    #: By core: what was measured of its program. None: nothing is known of how sure the figures are.
    sampling: Sequence[Sampling] | None = None

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Weights:
        """What the results of `compare --mix --json` are weighed by."""
        alone = {run["program"]: run for run in answer["alone"]}
        return cls(answer["mix"]["programs"], alone, answer["sampling"])

    @property
    def coverage(self) -> float | None:
        """The least share of a program that was measured; None where it is not a sample."""
        shares = [coverage(one) for one in self.sampling or ()]
        known = [share for share in shares if share is not None]
        return min(known) if known and len(known) == len(shares) else None

    @property
    def windows(self) -> int:
        """Windows of each program that are not measured whole."""
        counts = [one["windows"] for one in self.sampling or () if coverage(one) != 1]
        return min(counts, default=0)

    def speedup(self, cores: Sequence[Run], left_out: int | None = None) -> float:
        """The weighted speed-up of the runs of all cores, or what it is without one window."""
        total = 0.0
        for core, (program, run) in enumerate(zip(self.programs, cores, strict=True)):
            # A mix has as many windows of a program that is measured whole as of the others.
            left = None if self.sampling and coverage(self.sampling[core]) == 1 else left_out
            ipc, own = (_ipc(one, left, self.windows) for one in (run, self.alone[program]))
            total += ipc / own if ipc and own else 0.0
        return total

    def ratio(self, cores: Sequence[Run], base: Sequence[Run] | None = None) -> Estimate | None:
        """The weighted speed-up, or that over another configuration's; None if that one's is 0."""

        def of(left_out: int | None) -> float:
            whole = self.speedup(cores, left_out)
            return whole if base is None else whole / self.speedup(base, left_out)

        if base is not None and not self.speedup(base):
            return None
        value, share = of(None), self.coverage
        if share is None or (share < 1 and self.windows < intervals.LEAST):
            return Estimate(value)
        if share >= 1 or base is cores:
            return Estimate(value, value, value)
        margin = intervals.margin(intervals.jackknife([of(at) for at in range(self.windows)]), share)
        return Estimate(value, value - margin, value + margin)

    def difference(self, result: Result, base: Result) -> Difference | None:
        """One result against another."""
        ratio = self.ratio(result["cores"], base["cores"])
        if ratio is None:
            return None
        first, other = result["cores"][0], base["cores"][0]
        return Difference(first, other, ratio, timed=True, windows=self.windows, coverage=self.coverage)


def _ipc(run: Run, left_out: int | None, windows: int) -> float | None:
    """The IPC of a run, or that without one of its windows; of a run with other windows, its own."""
    found = run.get("windows") or []
    if left_out is None or len(found) != windows:
        return run["ipc"]
    instructions = [window["instructions"] for window in found]
    each = (instructions, sampled_cycles(found))
    executed, cycles = (sum(column) - column[left_out] for column in each)
    return executed / cycles if cycles else None


def weigh(weights: Weights, cores: Sequence[list[Run]]) -> list[Result]:
    """Weighted speed-ups of all configurations, with their 95 % intervals.

    `relative_weighted_speedup` is that over the first scheme's at the same large-page setting.
    """
    results: list[Result] = []
    bases: dict[tuple[int | None, str | None], list[Run]] = {}
    for members in cores:
        first = members[0]
        base = bases.setdefault(pages_key(first), members)
        results.append(
            {
                "scheme": first["scheme"],
                "large_pages": first["large_pages"],
                "thp": first["thp"],
                **_bounded("weighted_speedup", weights.ratio(members)),
                **_bounded("relative_weighted_speedup", weights.ratio(members, base)),
                "cores": members,
            }
        )
    return results


def _bounded(name: str, found: Estimate | None) -> dict[str, float | None]:
    value, low, high = (found.value, found.low, found.high) if found else (None, None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def by_pages(results: list[Result]) -> list[list[Result]]:
    """Results by large-page setting, each group in request order."""
    return grouped_by(results, lambda result: pages_key(result["cores"][0]))


def words(group: list[Result], weights: Weights) -> str:
    """Which scheme serves the programs together best, if one does by more than the noise.

    Args:
        group: Results at one large-page setting; the first that is not a bound is the baseline.
        weights: Those that the results were weighed by.
    """
    base, *others = [result for result in group if not is_bound(result["cores"][0])] or group
    name = base["scheme"]
    found = [one for result in others if (one := weights.difference(result, base)) is not None]
    if not found:
        return f"Only {name} was run: add schemes to compare it with."
    better = [one for one in found if one.standing is Standing.BETTER]
    undecided = [one for one in found if one.standing is Standing.UNDECIDED]
    if better:
        return _best(max(better, key=lambda one: one.merit), base, others, weights)
    if undecided:
        best = max(undecided, key=lambda one: one.ratio.value)
        return (
            f"Whether a scheme serves the programs together better than {name} is not decided. "
            f"{best.run['scheme']}: {best.words.removeprefix('not decided: ')}."
        )
    if all(one.standing is Standing.NONE for one in found):
        return f"No scheme makes a difference to the programs together: all are {WITHIN} of {name}."
    return f"No scheme serves the programs together better than {name}."


def _best(best: Difference, base: Result, others: list[Result], weights: Weights) -> str:
    """That this is the best one, how much it gains, and which others are as good or may be."""
    result = next(one for one in others if one["scheme"] == best.run["scheme"])
    said = (
        f"{result['scheme']} serves the programs together best: by weighted speed-up, "
        f"{result['weighted_speedup']:.3f}, they are {best.words} than with {base['scheme']}"
    )
    against = {
        other["scheme"]: one.standing
        for other in others
        if other is not result and (one := weights.difference(other, result)) is not None
    }
    same = [scheme for scheme, standing in against.items() if standing is Standing.NONE]
    open_ = [scheme for scheme, standing in against.items() if standing is Standing.UNDECIDED]
    said += f"; {joined(same)} {'is' if len(same) == 1 else 'are'} {WITHIN} of it" if same else ""
    said += f"; whether {joined(open_, 'or')} is as good is not decided" if open_ else ""
    return f"{said}."
