"""How sure the figures of a sampled run are: 95 % intervals from its windows.

The windows of a run are a stratified sample: the program is cut into stretches of equal length, and in each
one window begins, at random. Neighbours are alike, so the usual error of a mean (windows against their mean)
is wrong: it counts the program's phases, which such a sample sees in their right proportions. What counts is
how much a stretch differs within itself. Of one window each that cannot be seen, so by how much neighbours
differ is taken, which is that and the difference of their stretches (collapsed strata: Cochran 1977, 5A.12;
the successive differences of Wolter 1984, there v2): more than the truth, if anything.

Every figure is a product of sums over the windows, as cycles of one scheme over cycles of another. Its
logarithm is taken to first order: a window's residual is by how much its shares of the sums differ. Two
schemes that run over the same windows are compared window by window in this way; what windows have in
common drops out.

What is known of the whole run, the work of kernels, is not sampled, and varies for other reasons: who
gives columns spreads it evenly (`results.sampled_cycles`).

What this cannot do: see what no window has met. A figure that a few rare stretches decide (one in a
thousand instructions makes half of the walks) has intervals that are too narrow where the sample missed
them. And an interval
says nothing of the model, nor of contents that were not warm when a window began.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: How often the true value lies in an interval.
LEVEL = 0.95
#: Below so many windows their differences are too few to be trusted alone.
FEW = 8
#: Fewer windows than this say nothing of how sure a figure is.
LEAST = 3


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval; no bounds where nothing is known of how sure it is."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def half(self) -> float | None:
        """The farther bound's distance."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.value, self.value - self.low)


@cache
def _student(freedom: float) -> float:
    """The quantile of Student's distribution that `LEVEL` takes."""
    from scipy.special import stdtrit  # noqa: PLC0415

    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def margin(residuals: Sequence[float], coverage: float) -> float:
    """Half the width of the interval about the mean of a stratified sample; residuals have mean 0."""
    count = len(residuals)
    successive = sum((here - before) ** 2 for before, here in itertools.pairwise(residuals))
    variance = successive / (2 * (count - 1) * count)
    # Normal residuals without correlation give this estimator so many degrees of freedom (von Neumann 1941).
    freedom = 2 * (count - 1) ** 2 / (3 * count - 4)
    found = _student(freedom) * math.sqrt(variance)
    if count < FEW:
        found = max(found, simple_margin(residuals, 0.0))
    return found * math.sqrt(1 - coverage)


def simple_margin(residuals: Sequence[float], coverage: float) -> float:
    """The same of a simple random sample, whose members have no order."""
    return strata_margin([(residuals, coverage)])


def strata_margin(strata: Sequence[tuple[Sequence[float], float]]) -> float:
    """The same of a sum of means of simple random samples: of each its residuals, and its coverage.

    Variances add up, and have as many degrees of freedom as Satterthwaite (1946) and Welch (1947) give them.
    That is too many where a sample of two is as varied as the larger ones: nine in ten of such intervals
    hold the true value then, not 19 in 20.
    """
    variances = [
        (1 - coverage) * sum(residual**2 for residual in residuals) / (len(residuals) * (len(residuals) - 1))
        for residuals, coverage in strata
        if coverage < 1
    ]
    total = sum(variances)
    if not total:
        return 0.0
    counts = [len(residuals) for residuals, coverage in strata if coverage < 1]
    parts = (variance**2 / (count - 1) for variance, count in zip(variances, counts, strict=True))
    return _student(round(total**2 / sum(parts), 6)) * math.sqrt(total)


def estimate(over: Sequence[Sequence[float]], under: Sequence[Sequence[float]], coverage: float) -> Estimate:
    """The product of some sums over the product of others, with its interval.

    Args:
        over: Columns that count windows' figures, one after the other in the order of the program; their
            sums are multiplied.
        under: Those whose sums divide.
        coverage: Share of the program that the windows cover.

    Returns:
        An estimate without bounds if there are too few windows, or too few that have what divides, or a sum
        is 0.
    """
    sums = [sum(column) for column in (*over, *under)]
    if not all(sums):
        divided = bool(under) and all(sums[len(over) :])
        return Estimate(0.0 if divided else math.nan)
    value = math.prod(sums[: len(over)]) / math.prod(sums[len(over) :])
    count = len((*over, *under)[0])
    if coverage >= 1:
        return Estimate(value, value, value)
    # What divides may be in a few windows alone: of how it varies, the others say nothing.
    telling = min((sum(map(bool, column)) for column in under), default=count)
    if count < LEAST or telling < min(count, FEW):
        return Estimate(value)
    signs = [1] * len(over) + [-1] * len(under)
    columns = zip(*over, *under, strict=True)
    residuals = [
        sum(sign * figure * count / total for sign, figure, total in zip(signs, row, sums, strict=True))
        - (len(over) - len(under))
        for row in columns
    ]
    half = margin(residuals, coverage)
    return Estimate(value, value * math.exp(-half), value * math.exp(half))


def jackknife(without: Sequence[float]) -> tuple[float, ...]:
    """What each window moves a figure by, from the figures without each; their mean is 0."""
    mean = sum(without) / len(without)
    return tuple((len(without) - 1) * (mean - one) for one in without)


def needed(count: int, half: float, error: float, coverage: float) -> int:
    """Windows that bring an interval's half width from `half` down to `error`.

    Never more than there are in the whole program. An estimate itself: the windows to come may vary more.
    """
    if half <= error:
        return count
    if not coverage:
        return math.ceil(count * (half / error) ** 2)
    population = count / coverage
    spread = half**2 * count / (1 - coverage)
    return min(math.ceil(spread / (error**2 + spread / population)), math.ceil(population))
