"""Statistics, against published figures and known distributions (with fixed seeds)."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from flatwalk.host import diff, show, stats, wording

T_29 = 2.045229642  # 97.5 % point of Student's t, 29 degrees of freedom


def published(mean: float, low: float, high: float) -> stats.Moments:
    """A sample of 30 of which an article gives mean and 95 % interval."""
    return stats.Moments(30, mean, (high - low) / 2 * math.sqrt(30) / T_29)


# jabperf 2022, lat_pagefault, in microseconds.
FOUR = published(0.1056367, 0.1055758, 0.1056975)
FIVE = published(0.10588, 0.1058097, 0.1059503)


def plain(values: Any) -> stats.Moments:
    """Moments of independent values, as articles have them."""
    array = np.asarray(values)
    return stats.Moments(array.size, float(array.mean()), float(array.std(ddof=1)))


def with_moments(sample: stats.Moments) -> list[float]:
    """Values that have exactly these moments, without resemblance between neighbours."""
    raw = np.random.default_rng(3).normal(size=sample.n)
    raw = (raw - raw.mean()) / raw.std(ddof=1)
    return [float(value) for value in sample.mean + sample.sd * raw]


def test_the_articles_deviations() -> None:
    assert round(FOUR.sd * 1000, 3) == 0.163
    assert round(FIVE.sd * 1000, 3) == 0.188


def test_the_articles_pooled_test() -> None:
    test = stats.pooled(FOUR, FIVE)
    assert test.df == 58
    assert test.t == pytest.approx(-5.3531, abs=0.002)  # the article's figures are rounded
    assert test.p == pytest.approx(1.543e-6, rel=0.01)
    assert test.difference.low * 1000 == pytest.approx(-0.334, abs=5e-4)
    assert test.difference.high * 1000 == pytest.approx(-0.152, abs=5e-4)


def test_welch_of_the_same_figures() -> None:
    test = stats.welch(FOUR, FIVE)
    assert test.t == pytest.approx(stats.pooled(FOUR, FIVE).t)  # as sizes are equal
    assert test.df == pytest.approx(56.8, abs=0.05)


def test_the_articles_effect() -> None:
    assert stats.cohens_d(FOUR, FIVE) == pytest.approx(1.38, abs=0.005)
    assert FIVE.mean / FOUR.mean - 1 == pytest.approx(0.0023, abs=5e-5)


def test_the_articles_intervals_come_back() -> None:
    found = stats.interval(FOUR)
    assert (found.low, found.high) == pytest.approx((0.1055758, 0.1056975), abs=1e-7)


def test_the_articles_verdict_from_values() -> None:
    comparison = stats.compare(with_moments(FOUR), with_moments(FIVE))
    assert comparison.pooled.p == pytest.approx(1.543e-6, rel=0.01)
    words = wording.verdict(comparison, comparison.welch.p)
    assert words.startswith("0.23 % slower (0.1")
    assert words.endswith("large effect (d = 1.38)")


def test_textbook_values_of_welch() -> None:
    # Computed by hand: variances 2.5 and 10, n = 5: t = −3 / √2.5, df = 2.5² / (0.25/4 + 4/4).
    test = stats.welch(stats.moments([1.0, 2.0, 3.0, 4.0, 5.0]), stats.moments([2.0, 4.0, 6.0, 8.0, 10.0]))
    assert test.t == pytest.approx(-3 / math.sqrt(2.5))
    assert test.df == pytest.approx(6.25 / 1.0625)


def test_means() -> None:
    assert stats.summarise([1.0, 2.0, 4.0]).mean == pytest.approx(7 / 3)
    assert stats.summarise([1.0, 2.0, 4.0], rate=True).mean == pytest.approx(3 / 1.75)


def test_a_rates_interval_is_the_reciprocals() -> None:
    rates = [90.0, 100.0, 95.0, 105.0, 99.0]
    of_rates = stats.summarise(rates, rate=True).interval
    of_times = stats.summarise([1 / rate for rate in rates]).interval
    assert (of_rates.low, of_rates.high) == pytest.approx((1 / of_times.high, 1 / of_times.low))
    wild = stats.summarise([1.0, 100.0], rate=True).interval
    assert wild.high == math.inf


def test_a_rates_change_has_its_sign() -> None:
    slow, fast = [100.0, 101.0, 99.0, 100.5], [110.0, 111.0, 109.0, 110.5]
    comparison = stats.compare(slow, fast, rate=True)
    assert comparison.change == pytest.approx(0.1, abs=0.001)
    for found in (comparison.change_interval, comparison.bootstrap):
        assert found is not None
        assert 0 < found.low < comparison.change < found.high
    assert "faster" in wording.verdict(comparison, comparison.welch.p, rate=True)
    assert "slower" in wording.verdict(stats.compare(fast, slow, rate=True), 0.001, rate=True)


def test_a_rate_without_bounds_has_none() -> None:
    """Times of the fast series may be none by the slow one's noise: the rate has no upper end."""
    slow, fast = [100.0, 130.0, 80.0, 120.0, 75.0], [500.0, 510.0, 495.0, 505.0, 490.0]
    comparison = stats.compare(slow, fast, rate=True)
    assert 0 < comparison.change_interval.low < comparison.change < comparison.change_interval.high
    assert comparison.change_interval.high == math.inf
    words = wording.verdict(comparison, 0.001, rate=True)
    assert re.match(r"418 % faster \(\d+ % or more\)", words), words


def test_constant_samples() -> None:
    same = stats.compare([5.0, 5.0, 5.0], [5.0, 5.0, 5.0])
    assert (same.welch.p, same.pooled.p, same.effect) == (1.0, 1.0, 0.0)
    assert wording.verdict(same, 1.0) == "no difference: every measurement is the same"
    apart = stats.compare([5.0, 5.0, 5.0], [6.0, 6.0, 6.0])
    assert apart.welch.p == 0
    assert apart.change == pytest.approx(0.2)
    assert apart.bootstrap is not None
    assert (apart.bootstrap.low, apart.bootstrap.high) == pytest.approx((0.2, 0.2))


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 0.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf]])
def test_what_cannot_be_summarised(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"at least two|positive"):
        stats.summarise(values)


def share(conditions: list[bool]) -> float:
    return sum(conditions) / len(conditions)


def test_false_alarms_of_both_tests() -> None:
    generator = np.random.default_rng(2022)
    runs = 4000
    pooled, welch = [], []
    for _ in range(runs):
        a = stats.moments((100 + generator.normal(size=30)).tolist())
        b = stats.moments((100 + generator.normal(size=30)).tolist())
        pooled.append(stats.pooled(a, b).p < 0.05)
        welch.append(stats.welch(a, b).p < 0.05)
    # Three standard errors of a share of 5 % in 4000 are 1 %. Of few batches Welch's degrees of freedom
    # are a little too small, so it may be more careful than promised.
    assert share(pooled) == pytest.approx(0.05, abs=0.0105)
    assert 0.03 < share(welch) < 0.0605


def test_pooled_fails_and_welch_holds_where_variances_and_sizes_differ() -> None:
    generator = np.random.default_rng(7)
    pooled, welch = [], []
    for _ in range(3000):
        a, b = plain(100 + 4 * generator.normal(size=8)), plain(100 + generator.normal(size=40))
        pooled.append(stats.pooled(a, b).p < 0.05)
        welch.append(stats.welch(a, b).p < 0.05)
    assert share(pooled) > 0.2
    assert share(welch) == pytest.approx(0.05, abs=0.013)


@pytest.mark.parametrize("rate", [False, True])
def test_coverage_of_intervals(*, rate: bool) -> None:
    generator = np.random.default_rng(11)
    inside = []
    for _ in range(3000):
        times = 100 + 5 * generator.normal(size=20)
        found = stats.summarise((1 / times if rate else times).tolist(), rate=rate).interval
        inside.append(found.low <= (0.01 if rate else 100) <= found.high)
    # Three standard errors of 95 % in 3000 are 1.2 %.
    assert share(inside) == pytest.approx(0.95, abs=0.012)


def test_drift_makes_false_alarms_without_batches() -> None:
    generator = np.random.default_rng(5)

    def drifting() -> list[float]:
        series, value = [], generator.normal() / math.sqrt(1 - 0.7**2)
        for _ in range(40):
            value = 0.7 * value + generator.normal()
            series.append(100 + value)
        return series

    naive, careful = [], []
    for _ in range(1500):
        a, b = stats.moments(drifting()), stats.moments(drifting())
        naive.append(stats.pooled(a, b).p < 0.05)
        careful.append(stats.welch(a, b).p < 0.05)
    assert share(naive) > 0.3
    assert share(careful) < 0.14


def test_drift_is_distinguished_from_chance() -> None:
    generator = np.random.default_rng(1)
    assert not stats.drifts([1.0] * 30)
    assert not stats.drifts([1.0, 2.0] * 15)
    assert not stats.drifts([1.0, 5.0, 2.0])  # too few to tell
    assert stats.drifts([float(n) for n in range(1, 31)])
    assert stats.drifts([1.0] * 15 + [2.0] * 15)
    alarms = [stats.drifts(generator.normal(size=30).tolist()) for _ in range(3000)]
    assert share(alarms) == pytest.approx(0.01, abs=0.006)


@pytest.mark.parametrize("size", [11, 12, 13])
def test_drift_is_as_rarely_seen_where_batches_differ_in_length(size: int) -> None:
    generator = np.random.default_rng(3)
    alarms = [stats.drifts(series.tolist()) for series in generator.normal(size=(4000, size))]
    # Three standard errors of a share of 1 % in 4000 are 0.47 %.
    assert share(alarms) == pytest.approx(0.01, abs=0.0047)


def test_batches_by_hand() -> None:
    # Ten values in five batches of two, with means 1.5, 3.5, …, 9.5: their deviation is √10.
    found = stats.moments([float(n) for n in range(1, 11)])
    assert (found.mean, found.degrees) == (5.5, 4)
    assert found.standard_error == pytest.approx(math.sqrt(10 / 5))
    few = stats.moments([1.0, 2.0, 3.0])
    assert few.standard_error == pytest.approx(1 / math.sqrt(3))
    assert few.degrees == 2


def test_power_at_the_smallest_detectable_difference() -> None:
    generator = np.random.default_rng(13)
    found = []
    true = stats.Moments(30, 100, 2.0)
    shift = stats.detectable(true, true)
    for _ in range(2000):
        a, b = (plain(100 + move + 2 * generator.normal(size=30)) for move in (0.0, shift))
        found.append(stats.welch(a, b).p < 0.05)
    assert share(found) == pytest.approx(0.8, abs=0.03)


def test_power_among_several_questions() -> None:
    generator = np.random.default_rng(23)
    true, found, questions = stats.Moments(30, 100, 2.0), [], 4
    shift = stats.detectable(true, true, questions=questions)
    assert shift > 1.15 * stats.detectable(true, true)
    for _ in range(600):
        p_values = []
        for move in (shift, *[0.0] * (questions - 1)):
            a, b = (plain(100 + level + 2 * generator.normal(size=30)) for level in (0.0, move))
            p_values.append(stats.welch(a, b).p)
        found.append(stats.holm(p_values)[0] < 0.05)
    # Three standard errors of 80 % in 600 are 5 %.
    assert 0.75 <= share(found) < 0.87


def test_what_a_comparison_could_detect_is_of_all_variants() -> None:
    values = [100.0, 101.0, 99.0, 100.5, 98.0]
    result: dict[str, Any] = {"rate": False, "titles": {}}
    samples = [
        {"round": turn, "value": value, "controls_nanoseconds": {}} for turn, value in enumerate(values)
    ]
    for names in (["a"], ["a", "b", "c"]):
        made = result | {"samples": [{"variant": name, **sample} for name in names for sample in samples]}
        sample = stats.moments(values)
        expected = stats.detectable(sample, sample, questions=len(names)) / sample.mean
        assert diff.compare(made, made)["a"][0].detectable == pytest.approx(expected)


def test_batches_widen_the_interval_of_independent_values_by_a_fifth_to_a_quarter() -> None:
    generator = np.random.default_rng(29)

    def width(found: stats.Interval) -> float:
        return found.high - found.low

    for size in (10, 30):
        series = [100 + generator.normal(size=size) for _ in range(800)]
        batched = sum(width(stats.interval(stats.moments(values.tolist()))) for values in series)
        wider = batched / sum(width(stats.interval(plain(values))) for values in series)
        assert 1.13 < wider < 1.28


def test_the_drift_of_a_rate_is_that_of_its_reciprocal() -> None:
    # Times that drift without doubt; of the rates one hides it.
    times = [1.0 if turn == 14 else 100.0 + 31 * turn for turn in range(30)]
    rates = [1 / time for time in times]
    assert (stats.drifts(times), stats.drifts(rates)) == (True, False)
    assert stats.summarise(rates, rate=True).drifts
    assert not stats.summarise(rates).drifts


def test_coverage_of_the_bootstrap() -> None:
    generator = np.random.default_rng(17)
    inside = []
    for number in range(200):
        # Skewed, as latencies are: mean 1 + 2 = 3 against 1 + 2 · 1.1.
        a = 1 + generator.gamma(2.0, 1.0, size=40)
        b = 1 + generator.gamma(2.0, 1.1, size=40)
        found = stats.bootstrap(a.tolist(), b.tolist(), seed=number)
        inside.append(found.low <= 3.2 / 3 - 1 <= found.high)
    assert 0.9 < share(inside) < 0.99


def test_the_bootstrap_repeats() -> None:
    a, b = with_moments(FOUR), with_moments(FIVE)
    assert stats.bootstrap(a, b, seed=4) == stats.bootstrap(a, b, seed=4)


def test_no_difference_says_what_would_have_been_seen() -> None:
    values = [100.0, 101.0, 99.0] * 3  # fewer than ten: taken singly
    comparison = stats.compare(values, values)
    # (2.1199 + 0.8647) · sd √(2/9), of 100; sd = √(6/8).
    assert comparison.detectable == pytest.approx(2.9846 * math.sqrt(0.75 * 2 / 9) / 100, rel=1e-3)
    words = wording.verdict(comparison, comparison.welch.p)
    assert words == "no measurable difference; 1.2 % would have been seen (80 % of the time)"


def test_what_controls_differ_by_is_allowed_for_by_hand() -> None:
    exact = stats.Moments(30, 100.0, 0.0)
    # One control a tenth slower, one as before: half of (ln 1.1)².
    found = stats.drift([(exact, stats.Moments(30, 110.0, 0.0)), (exact, exact)])
    assert found.share == pytest.approx(math.log(1.1) / math.sqrt(2))
    assert found.df == 2
    # Their own errors explain 3 % and 4 %, that is 5 % together: nothing is left of a change of 5 %.
    noisy = stats.drift([(stats.Moments(9, 100.0, 0, 3.0), stats.Moments(9, 105.0, 0, 4.2))])
    assert noisy.share == 0
    assert stats.drift([]) == stats.NO_DRIFT
    # Without errors of their own, all of the error is the controls'.
    test = stats.welch(exact, stats.Moments(30, 121.0, 0.0), stats.Drift(0.1, 4))
    assert test.t == pytest.approx(-21 / 11)
    assert test.df == pytest.approx(4)


@pytest.mark.parametrize(("spread", "without"), [(0.0, 0.02), (0.03, 0.5)])
def test_false_alarms_where_the_machine_is_another_in_each_run(spread: float, without: float) -> None:
    generator = np.random.default_rng(19)

    def run() -> tuple[stats.Moments, list[stats.Moments]]:
        """A value and three controls, each with noise of its own and a pace of its own for the run."""
        paces = 1 + spread * generator.normal(size=4)
        value, *controls = (
            stats.moments((100 * pace * (1 + 0.03 * generator.normal(size=30))).tolist()) for pace in paces
        )
        return value, controls

    naive, calibrated = [], []
    for _ in range(2000):
        (a, of_a), (b, of_b) = run(), run()
        naive.append(stats.welch(a, b).p < 0.05)
        between = stats.drift(list(zip(of_a, of_b, strict=True)))
        calibrated.append(stats.welch(a, b, between).p < 0.05)
    assert share(naive) > without
    # Three standard errors of 5 % in 2000 are 1.5 %; three controls are few to tell a variance by.
    assert share(calibrated) < 0.075


def test_holm() -> None:
    # Holm's own scheme by hand: 4 · 0.005, 3 · 0.01, 2 · 0.03, then at least as much as before.
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []


def test_disagreement_with_the_bootstrap_is_reported() -> None:
    comparison = stats.compare(with_moments(FOUR), with_moments(FIVE))
    doubtful = stats.Comparison(**{**vars(comparison), "bootstrap": stats.Interval(-0.001, 0.002)})
    assert "measure longer" in wording.verdict(doubtful, 0.001)


def test_an_interval_says_the_direction_once() -> None:
    """Where all of it is on one side, sizes; and nothing falls by more than all of itself."""
    slow = [100.0, 101.0, 99.0, 100.5, 99.5]
    fast = [1.0, 40.0, 2.0, 25.0, 2.0]
    words = wording.verdict(stats.compare(slow, fast), 0.001)
    assert words.startswith("86 % faster (")
    low, high = (int(part) for part in re.findall(r"(\d+) %", words)[1:3])
    assert 60 < low < 86 < high <= 100
    assert "−" not in words


def test_controls_that_did_not_change_are_not_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result: Any = None
    for later, is_named in ((1.0, False), (1.1, True)):
        two = (stats.Moments(2, 1.0, 0.0), stats.Moments(2, later, 0.0))
        monkeypatch.setattr(diff, "controls", lambda _a, _b, two=two: [("clock", two)])
        diff._show_controls(result, result, stats.Drift(0.01, 0.0))  # noqa: SLF001
        assert ("controls that no kernel influences" in capsys.readouterr().out) == is_named


def test_what_the_verdicts_allow_for_follows_from_the_controls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result: Any = None
    # A tenth more, within errors of a tenth and a fifth, or with none.
    for error, told in ((0.1, "no more than their errors explain"), (0.0, "allow for ± 9.5 %")):
        two = (stats.Moments(5, 1.0, 0.1, error), stats.Moments(5, 1.1, 0.1, 2 * error))
        monkeypatch.setattr(diff, "controls", lambda _a, _b, two=two: [("clock", two)])
        diff._show_controls(result, result, stats.drift([two]))  # noqa: SLF001
        said = capsys.readouterr().out
        assert "clock +10.00 %" in said
        assert told in said
        assert "± 0.000" not in said


def test_half_of_a_rates_interval_is_that_of_its_reciprocal() -> None:
    rates = [1.0, 4.0, 2.0, 5.0, 3.0, 2.5]
    found = stats.summarise(rates, rate=True)
    half = show._half(found, rate=True)  # noqa: SLF001
    assert 1 / found.interval.low == pytest.approx((1 + half) / found.mean)
    assert 1 / found.interval.high == pytest.approx((1 - half) / found.mean)
    times = stats.summarise([1 / rate for rate in rates])
    assert show._half(times, rate=False) == pytest.approx(half)  # noqa: SLF001
    endless = stats.Summary(2, 1.0, stats.Interval(0.5, math.inf), 0.1, drifts=False)
    assert show._half(endless, rate=True) == pytest.approx(1.0)  # noqa: SLF001
    none = stats.Summary(2, 1.0, stats.Interval(0.0, 2.0), 0.1, drifts=False)
    assert show._half(none, rate=True) == math.inf  # noqa: SLF001
