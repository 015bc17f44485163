"""Statistics of repeated measurements: intervals, tests, and what a test could have seen.

Times are averaged arithmetically. Rates are averaged harmonically, which is the arithmetic mean of the
time that each unit of work took; so everything about a rate (interval, test, bootstrap) is computed on
its reciprocal and turned back at the end.

Measurements taken one after another are not always independent: a machine drifts. So the error of a mean
is found by batch means: the series, in the order of measurement, is cut into a few batches, whose means
vary by as much as the whole is uncertain, drift included. Of ten or more independent measurements this
makes the interval about a fifth to a quarter wider; of dependent ones it makes it valid.

What stays constant through a whole series but differs in the next shows in neither's errors. So two
series may come with negative controls, quantities that cannot truly differ, measured with them: by how
much those differ more than their own errors explain is added to the error of the difference
(the calibration by negative controls of Schuemie et al., Statistics in Medicine 33, 2014).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats as distributions

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Share of intervals that hold the true value, and one minus the share of false alarms.
CONFIDENCE = 0.95
#: Share of the cases in which a difference of the size called "smallest detectable" is found.
POWER = 0.8
#: Resamples of the bootstrap.
RESAMPLES = 4999
#: Batches, by the least number of measurements for them. Fewer measurements are taken singly.
_BATCHES = ((25, 6), (10, 5))
#: Share of independent series that are said to drift.
_DRIFT_ALARM = 0.01


@dataclass(frozen=True)
class Moments:
    """What a t test needs of a sample: all that an article has to publish.

    Args:
        n: Measurements.
        mean: Arithmetic mean.
        sd: Standard deviation with n − 1.
        error: Standard error of the mean, if not sd / √n.
        df: Degrees of freedom of `error`, if not n − 1.
    """

    n: int
    mean: float
    sd: float
    error: float | None = None
    df: float | None = None

    @property
    def standard_error(self) -> float:
        """Standard deviation of the mean."""
        return self.sd / math.sqrt(self.n) if self.error is None else self.error

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the standard error."""
        return self.n - 1 if self.df is None else self.df


@dataclass(frozen=True)
class Drift:
    """By how much two series differ though nothing that is compared differs.

    Args:
        share: Standard deviation of the relative difference.
        df: Degrees of freedom of `share`.
    """

    share: float
    df: float


#: Two series that were measured as if at the same time.
NO_DRIFT = Drift(0.0, 1.0)


@dataclass(frozen=True)
class Interval:
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """A sample in the unit it was measured in."""

    n: int
    #: Arithmetic of times, harmonic of rates.
    mean: float
    interval: Interval
    #: Standard deviation over mean.
    variation: float
    #: Whether the measurements' neighbours resemble each other more than chance explains.
    drifts: bool


@dataclass(frozen=True)
class Test:
    """A two-sided t test for equal means; `difference` is that of a − b, as in R."""

    __test__ = False  # not a test of pytest's

    t: float
    df: float
    p: float
    difference: Interval


@dataclass(frozen=True)
class Comparison:
    """Two samples of the same quantity."""

    a: Summary
    b: Summary
    #: mean of b / mean of a − 1, in the unit measured.
    change: float
    #: The same by Welch's test (for rates: of the reciprocals).
    change_interval: Interval
    #: The same by the BCa bootstrap; None where the measurements themselves are not known.
    bootstrap: Interval | None
    #: Unequal variances, errors by batch means.
    welch: Test
    #: Equal variances, every measurement taken as independent: the test of textbooks and articles.
    pooled: Test
    #: Cohen's d: the difference in standard deviations.
    effect: float
    #: Smallest relative difference that would have been found in 4 of 5 cases, among all questions asked.
    detectable: float
    #: By how much controls differed, as far as their errors do not explain it: part of `welch`'s error.
    drift: Drift = NO_DRIFT


def _checked(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    array = np.array(values, dtype=np.float64)
    if array.ndim != 1 or array.size < 2:
        raise ValueError("statistics need at least two measurements")
    if not np.isfinite(array).all() or (array <= 0).any():
        raise ValueError("a measurement is not a positive number")
    return array


def _batches(
    array: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """Consecutive batches, as equal as can be; single values if they are few."""
    count = next((batches for least, batches in _BATCHES if array.size >= least), array.size)
    return np.array_split(array, count)


def _batch_means(
    array: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([batch.mean() for batch in _batches(array)])


def drifts(values: Sequence[float]) -> bool:
    """Whether batches of a series differ more than those of independent values (one-sided F test)."""
    array = np.asarray(values, dtype=np.float64)
    batches = _batches(array)
    degrees, rest_degrees = len(batches) - 1, array.size - len(batches)
    if rest_degrees == 0 or _is_constant(array):
        return False
    # Sums of squares: batches may differ in length.
    between = sum(batch.size * float(batch.mean() - array.mean()) ** 2 for batch in batches)
    within = sum(batch.size * float(batch.var()) for batch in batches)
    ratio = (between / degrees) / (within / rest_degrees) if within else math.inf
    return float(distributions.f.sf(ratio, degrees, rest_degrees)) < _DRIFT_ALARM


def _is_constant(array: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    """Whether all values are the same but for rounding."""
    return float(np.ptp(array)) <= 1e-12 * float(np.abs(array).max())


def _moments(array: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Moments:
    means = _batch_means(array)
    if _is_constant(array):
        return Moments(array.size, float(array[0]), 0.0, 0.0, means.size - 1)
    error = float(means.std(ddof=1)) / math.sqrt(means.size)
    return Moments(array.size, float(array.mean()), float(array.std(ddof=1)), error, means.size - 1)


def moments(values: Sequence[float]) -> Moments:
    """Moments of a series in the order of measurement; its error by batch means.

    Raises:
        ValueError: If there are fewer than two values, or one is not a positive number.
    """
    return _moments(_checked(values))


def interval(sample: Moments) -> Interval:
    """95 % interval of the mean by Student's t."""
    half = _quantile((1 + CONFIDENCE) / 2, sample.degrees) * sample.standard_error
    return Interval(sample.mean - half, sample.mean + half)


def _quantile(share: float, df: float) -> float:
    return float(distributions.t.ppf(share, df))


def _test(difference: float, error: float, df: float) -> Test:
    if error == 0:  # both constant, as counted instructions are
        t = 0.0 if difference == 0 else math.copysign(math.inf, difference)
        return Test(t, df, 1.0 if difference == 0 else 0.0, Interval(difference, difference))
    t = difference / error
    half = _quantile((1 + CONFIDENCE) / 2, df) * error
    p = float(2 * distributions.t.sf(abs(t), df))
    return Test(t, df, p, Interval(difference - half, difference + half))


def pooled(a: Moments, b: Moments) -> Test:
    """Student's test: equal variances, all measurements independent."""
    df = a.n + b.n - 2
    variance = ((a.n - 1) * a.sd**2 + (b.n - 1) * b.sd**2) / df
    return _test(a.mean - b.mean, math.sqrt(variance * (1 / a.n + 1 / b.n)), df)


def drift(controls: Sequence[tuple[Moments, Moments]]) -> Drift:
    """What `controls` differ by, each in two series, beyond what their own errors explain."""
    if not controls:
        return NO_DRIFT
    unexplained = [
        math.log(b.mean / a.mean) ** 2 - (a.standard_error / a.mean) ** 2 - (b.standard_error / b.mean) ** 2
        for a, b in controls
    ]
    return Drift(math.sqrt(max(0.0, sum(unexplained) / len(controls))), len(controls))


def _welch_error(a: Moments, b: Moments, between: Drift) -> tuple[float, float]:
    """The error of a − b, and its degrees of freedom by Welch and Satterthwaite."""
    parts = [
        (a.standard_error**2, a.degrees),
        (b.standard_error**2, b.degrees),
        (between.share**2 * a.mean * b.mean, between.df),
    ]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return 0.0, a.degrees + b.degrees
    return math.sqrt(variance), variance**2 / sum(part**2 / df for part, df in parts)


def welch(a: Moments, b: Moments, between: Drift = NO_DRIFT) -> Test:
    """Welch's test: unequal variances, each sample's own standard error, and what drifted between them."""
    error, df = _welch_error(a, b, between)
    return _test(a.mean - b.mean, error, df)


def paired(a: Sequence[float], b: Sequence[float]) -> tuple[float, Interval, float]:
    """Mean of b − a, pair by pair, its 95 % interval, and p for no difference.

    Raises:
        ValueError: If there are fewer than two pairs.
    """
    if len(a) != len(b) or len(a) < 2:
        raise ValueError("statistics need at least two pairs of measurements")
    differences = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    sample = _moments(differences)
    test = _test(sample.mean, sample.standard_error, sample.degrees)
    return sample.mean, test.difference, test.p


def cohens_d(a: Moments, b: Moments) -> float:
    """Difference b − a in pooled standard deviations; 0.2 is small, 0.8 large."""
    variance = ((a.n - 1) * a.sd**2 + (b.n - 1) * b.sd**2) / (a.n + b.n - 2)
    difference = b.mean - a.mean
    if variance == 0:
        return 0.0 if difference == 0 else math.copysign(math.inf, difference)
    return difference / math.sqrt(variance)


def detectable(a: Moments, b: Moments, between: Drift = NO_DRIFT, *, questions: int = 1) -> float:
    """Smallest true difference that Welch's test finds in `POWER` of the cases, in the samples' unit.

    Of several questions that are asked at once, it is the only one with a difference, so that Holm's method
    multiplies its p by their number.
    """
    error, df = _welch_error(a, b, between)
    return (_quantile(1 - (1 - CONFIDENCE) / 2 / questions, df) + _quantile(POWER, df)) * error


def summarise(values: Sequence[float], *, rate: bool = False) -> Summary:
    """Mean and interval of times, or of rates.

    Raises:
        ValueError: If there are fewer than two values, or one is not a positive number.
    """
    checked = _checked(values)
    times = 1 / checked if rate else checked
    sample = _moments(times)
    mean, of_mean = sample.mean, interval(sample)
    if rate:
        # The slow end of the times is the low end of the rates. A mean time's interval that reaches 0
        # leaves the rate without an upper end.
        of_mean = Interval(1 / of_mean.high, 1 / of_mean.low if of_mean.low > 0 else math.inf)
        mean = 1 / mean
    return Summary(sample.n, mean, of_mean, sample.sd / sample.mean, drifts(times.tolist()))


def bootstrap(a: Sequence[float], b: Sequence[float], *, rate: bool = False, seed: int = 1) -> Interval:
    """95 % interval of the relative change from a to b by bias-corrected, accelerated bootstrap.

    It takes measurements as independent: where the machine drifts, trust Welch's interval.
    """
    first, second = _checked(a), _checked(b)
    if rate:
        first, second = 1 / first, 1 / second
    if np.ptp(first) == 0 and np.ptp(second) == 0:
        change = float(second[0] / first[0] - 1)
        found = Interval(change, change)
    else:
        result = distributions.bootstrap(
            (first, second),
            lambda x, y, axis=-1: np.mean(y, axis=axis) / np.mean(x, axis=axis) - 1,
            vectorized=True,
            n_resamples=RESAMPLES,
            confidence_level=CONFIDENCE,
            method="BCa",
            rng=np.random.default_rng(seed),
        )
        found = Interval(float(result.confidence_interval.low), float(result.confidence_interval.high))
    return _as_rate(found) if rate else found


def _as_rate(of_time: Interval) -> Interval:
    """A relative change of times as one of rates. Of times that may be none, rates have no upper end."""
    low, high = (math.inf if time <= -1 else 1 / (1 + time) - 1 for time in (of_time.high, of_time.low))
    return Interval(low if math.isfinite(low) else -1.0, high)


def compare_moments(a: Moments, b: Moments, between: Drift = NO_DRIFT, *, questions: int = 1) -> Comparison:
    """The comparison of two samples of times of which only the moments are known, as from an article."""
    test = welch(a, b, between)
    return Comparison(
        a=Summary(a.n, a.mean, interval(a), a.sd / a.mean, drifts=False),
        b=Summary(b.n, b.mean, interval(b), b.sd / b.mean, drifts=False),
        change=b.mean / a.mean - 1,
        # a − b, so the ends change places and sign.
        change_interval=Interval(-test.difference.high / a.mean, -test.difference.low / a.mean),
        bootstrap=None,
        welch=test,
        pooled=pooled(a, b),
        effect=cohens_d(a, b),
        detectable=detectable(a, b, between, questions=questions) / a.mean,
        drift=between,
    )


def compare(
    a: Sequence[float],
    b: Sequence[float],
    *,
    rate: bool = False,
    between: Drift = NO_DRIFT,
    questions: int = 1,
    seed: int = 1,
) -> Comparison:
    """The full comparison of two series in the order of measurement.

    Args:
        a: One series.
        b: The other.
        rate: Whether they are rates.
        between: What drifted between them, as their controls show.
        questions: How many such comparisons are made at once.
        seed: Of the bootstrap.

    Raises:
        ValueError: If one has fewer than two values, or a value is not a positive number.
    """
    first, second = _checked(a), _checked(b)
    of_a, of_b = (_moments(1 / values if rate else values) for values in (first, second))
    found = compare_moments(of_a, of_b, between, questions=questions)
    summary_a, summary_b = summarise(a, rate=rate), summarise(b, rate=rate)
    within = found.change_interval
    return replace(
        found,
        a=summary_a,
        b=summary_b,
        change=summary_b.mean / summary_a.mean - 1,
        change_interval=_as_rate(within) if rate else within,
        bootstrap=bootstrap(a, b, rate=rate, seed=seed),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p values for asking several questions at once (Holm 1979); the order stays."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted
