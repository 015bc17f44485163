"""Intervals from windows: by hand, and how often the truth lies in them."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from flatwalk.answer.intervals import estimate, needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Population = Callable[[random.Random, int], list[float]]

UNITS = 1000


def _iid(rng: random.Random, _windows: int) -> list[float]:
    return [1 + 0.3 * rng.gauss(0, 1) for _ in range(UNITS)]


def _trend(rng: random.Random, _windows: int) -> list[float]:
    return [1 + unit / UNITS + 0.02 * rng.gauss(0, 1) for unit in range(UNITS)]


def _bare_trend(_rng: random.Random, _windows: int) -> list[float]:
    return [1 + 4 * (unit / UNITS) ** 2 for unit in range(UNITS)]


def _phases(rng: random.Random, _windows: int) -> list[float]:
    ends = sorted(rng.random() for _ in range(3))
    levels = [rng.uniform(0.5, 3) for _ in range(4)]
    return [levels[sum(unit / UNITS > end for end in ends)] + 0.1 * rng.gauss(0, 1) for unit in range(UNITS)]


def _correlated(correlation: float) -> Population:
    def make(rng: random.Random, _windows: int) -> list[float]:
        found, state = [], rng.gauss(0, 1)
        for _ in range(UNITS):
            found.append(2 + 0.4 * state)
            state = correlation * state + math.sqrt(1 - correlation**2) * rng.gauss(0, 1)
        return found

    return make


def _periodic(stretches: float) -> Population:
    """A period of so many stretches."""

    def make(rng: random.Random, windows: int) -> list[float]:
        period, start = UNITS / windows * stretches, rng.random()
        return [2 + math.sin(2 * math.pi * (unit / period + start)) for unit in range(UNITS)]

    return make


def _heavy(rng: random.Random, _windows: int) -> list[float]:
    return [rng.paretovariate(1.3) for _ in range(UNITS)]


POPULATIONS: dict[str, Population] = {
    "iid": _iid,
    "trend": _trend,
    "bare trend": _bare_trend,
    "phases": _phases,
    "correlated a little": _correlated(0.5),
    "correlated": _correlated(0.97),
    "correlated far": _correlated(0.999),
    "periodic": _periodic((1 + math.sqrt(5)) / 2),
    "periodic as the stretches": _periodic(1),
}


def _taken(rng: random.Random, windows: int) -> list[int]:
    """The units that a stratified sample takes."""
    return [rng.randrange(UNITS * at // windows, UNITS * (at + 1) // windows) for at in range(windows)]


def _samples(
    population: Population, windows: int, trials: int, seed: int
) -> Iterator[tuple[list[float], list[float]]]:
    """Populations with stratified samples of them."""
    rng = random.Random(f"{seed} {windows}")
    for _ in range(trials):
        values = population(rng, windows)
        yield values, [values[unit] for unit in _taken(rng, windows)]


def _hits(population: Population, windows: int, trials: int) -> float:
    hits = 0
    for values, sample in _samples(population, windows, trials, 1):
        found = estimate([sample], [[1.0] * len(sample)], len(sample) / UNITS)
        assert found.low is not None
        assert found.high is not None
        assert found.value == pytest.approx(sum(sample) / len(sample))
        hits += found.low <= sum(values) / UNITS <= found.high
    return hits / trials


@pytest.mark.parametrize("windows", [5, 12, 40])
@pytest.mark.parametrize("name", POPULATIONS)
def test_the_truth_lies_within(name: str, windows: int) -> None:
    """300 trials of a sure 95 % stay above 92.5 % with near certainty, and 93 % is aimed at."""
    assert _hits(POPULATIONS[name], windows, 300) >= 0.925


def test_heavy_tails_are_what_it_cannot_do() -> None:
    """The module says so. Should this begin to pass, its words are out of date."""
    assert _hits(_heavy, 40, 200) < 0.85


def test_intervals_are_not_wide_for_nothing() -> None:
    """Phases that all windows see in proportion are not an error: the mean's usual interval is far wider."""
    widths, usual = [], []
    for _, sample in _samples(_phases, 40, 50, 2):
        found = estimate([sample], [[1.0] * len(sample)], 0.0)
        mean = sum(sample) / len(sample)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in sample) / (len(sample) - 1))
        widths.append(found.half or 0)
        usual.append(2.02 * deviation / math.sqrt(len(sample)))
    assert sum(widths) < 0.5 * sum(usual)


def test_pairs_of_schemes_share_what_windows_have_in_common() -> None:
    """Cycles of both vary by half; their ratio hardly does, and its interval holds the truth."""
    rng = random.Random(3)
    hits, halves = 0, []
    for _ in range(200):
        base = [1000 * (1 + 0.5 * rng.random()) for _ in range(UNITS)]
        other = [cycles / (1.2 + 0.05 * rng.gauss(0, 1)) for cycles in base]
        ones, taken = [100.0] * 40, _taken(rng, 40)
        sampled = [[course[unit] for unit in taken] for course in (base, other)]
        found = estimate([sampled[0], ones], [sampled[1], ones], 40 / UNITS)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= sum(base) / sum(other) <= found.high
        halves.append(found.half or 0)
    assert hits / 200 >= 0.925
    assert sum(halves) / len(halves) < 0.02


def test_by_hand() -> None:
    """Ten windows of 1 and 3 in turn: each pair differs by its mean, 9 differences."""
    windows = [1.0, 3.0] * 5
    variance = 9 * 1.0 / (2 * 9 * 10)
    found = estimate([windows], [[1.0] * 10], 0.0)
    student = 2.4201  # of 6.23 degrees of freedom; from tables: 2.447 of 6, 2.365 of 7
    assert found.value == 2
    assert found.high == pytest.approx(2 * math.exp(student * math.sqrt(variance)), rel=2e-3)
    assert found.low == pytest.approx(2 * math.exp(-student * math.sqrt(variance)), rel=2e-3)
    half = estimate([windows], [[1.0] * 10], 0.75)
    assert math.log((half.high or 0) / 2) == pytest.approx(math.log((found.high or 0) / 2) / 2)


def test_equal_windows_of_two_schemes_leave_no_doubt() -> None:
    cycles = [100.0, 250.0, 90.0, 400.0]
    found = estimate([cycles], [cycles], 0.1)
    assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)


def test_what_is_unknown_has_no_bounds() -> None:
    assert estimate([[1.0, 2.0]], [[1.0, 1.0]], 0.0).low is None, "two windows"
    whole = estimate([[1.0, 2.0]], [[1.0, 1.0]], 1.0)
    assert (whole.low, whole.value, whole.high) == (1.5, 1.5, 1.5), "everything was measured"
    nothing = estimate([[0.0] * 9], [[1.0] * 9], 0.0)
    assert (nothing.value, nothing.low) == (0.0, None), "no walk in any window is not known to be none"
    assert math.isnan(estimate([[1.0] * 9], [[0.0] * 9], 0.0).value)
    in_one = estimate([[0.0] * 5 + [13.0] + [0.0] * 6], [[0.0] * 5 + [7.0] + [0.0] * 6], 0.01)
    assert (in_one.value, in_one.low) == (13 / 7, None), "eleven windows without a walk say nothing of walks"
    # Of a ratio of two rates, instructions divide, too, and are in every window.
    walks, instructions = [0.0] * 33 + [7.0] * 7, [1.0] * 40
    few = estimate([[2 * one for one in walks], instructions], [walks, instructions], 0.01)
    assert (few.value, few.low) == (2.0, None), "so few windows with walks say as little"
    more = estimate(
        [[2 * one for one in [7.0, *walks]], [1.0, *instructions]],
        [[7.0, *walks], [1.0, *instructions]],
        0.01,
    )
    assert (more.low, more.high) == (2.0, 2.0)


def test_windows_needed() -> None:
    assert needed(40, 0.01, 0.02, 0.01) == 40, "it is reached"
    assert needed(40, 0.02, 0.01, 0.0) == 160
    assert needed(40, 0.02, 0.01, 0.1) < 160, "the more of the program is seen, the less is left"
    assert needed(40, 0.5, 0.001, 0.1) == pytest.approx(400, abs=1), "there are no more than the program has"


def test_nothing_heavy_is_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, flatwalk.comparison.comparing, flatwalk.answer.intervals;"
        "print(sorted({n.partition('.')[0] for n in sys.modules} & {'scipy', 'numpy', 'jinja2', 'rich'}))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
