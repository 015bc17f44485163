"""Averages over programs of several kinds, of which a paper says how many there are, and their intervals."""

from __future__ import annotations

import math
import random
import statistics
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk.reproduce import experiments, planning, spread, verdicts
from flatwalk.reproduce.claims import Stratum
from tests import fake
from tests.test_reproduce import refusal

if TYPE_CHECKING:
    from pathlib import Path

EXPERIMENT = """
title = "Mixes"

[[series]]
machine = "skylake-server"

[scale.small]
workloads = ["gups:1GiB", "random:1GiB", "chase:1GiB", "stream:1GiB", "xsbench:1GiB"]
instructions = "1M"
windows = 4
window = "100k"
warmup = "50k"

[scale.paper]
workloads = ["gups:8GiB", "random:8GiB", "chase:8GiB", "stream:8GiB"]
instructions = "10M"
warmup = "1M"

[[claim]]
id = "T1"
claim = "Faster."
paper = "asplos2022"
place = "nowhere"
metric = "speedup"
average = "geomean"
against = { scheme = "radix4" }
tolerance = 1
strata = [
  { programs = 4, workloads = ["gups", "random"] },
  { programs = 9, workloads = ["!gups", "!random"] },
]
points = [
  { label = "FPT", scheme = "fpt", published = 8 },
  { label = "FPT of one", scheme = "fpt", workload = "gups", published = 8 },
]
"""

#: Two of four and three of nine.
VALUES = {"a": 1.0, "b": 3.0, "c": 4.0, "d": 5.0, "e": 9.0}
KINDS = [spread.Kind(4, frozenset("ab")), spread.Kind(9, frozenset("cde"))]


def of(values: dict[str, float]) -> dict[str, Any]:
    return {name: ({"ipc": value},) for name, value in values.items()}


def ipc(runs: Any) -> float | None:
    found: float | None = runs[0]["ipc"]
    return found


def test_each_kind_weighs_as_many_as_it_has() -> None:
    """By hand: means 2 and 6 of 4 and 9 in 13; variances 2 and 7, of a half and two thirds."""
    found = spread.spread(of(VALUES), ipc, statistics.fmean, KINDS, sampled=False)
    assert found is not None
    assert found.value == pytest.approx((4 * 2 + 9 * 6) / 13)
    first, second = (4 / 13) ** 2 * 2 / 2 / 2, (9 / 13) ** 2 * 7 / 3 * 2 / 3
    # Student's quantile of (v1 + v2)^2 / (v1^2 / 1 + v2^2 / 2) = 2.244 degrees of freedom.
    assert (first + second) ** 2 / (first**2 + second**2 / 2) == pytest.approx(2.2439, rel=1e-4)
    margin = 3.8841 * math.sqrt(first + second)
    assert found.bounds() == pytest.approx((62 / 13 - margin, 62 / 13 + margin), rel=1e-4)
    assert found.missing() == pytest.approx(margin, rel=1e-4)
    geomean = spread.spread(of(VALUES), ipc, statistics.geometric_mean, KINDS, sampled=False)
    assert geomean is not None
    assert math.log(geomean.value) == pytest.approx((4 * math.log(3) / 2 + 9 * math.log(180) / 3) / 13)


def test_a_kind_that_is_run_whole_leaves_nothing_open() -> None:
    whole = spread.Kind(2, frozenset("ab"))
    found = spread.spread(of(VALUES), ipc, statistics.fmean, [whole, KINDS[1]], sampled=False)
    assert found is not None
    margin = 4.3027 * 9 / 11 * math.sqrt(7 / 3 * 2 / 3)
    assert found.missing() == pytest.approx(margin, rel=1e-4), "two degrees of freedom are left"
    all_run = [whole, spread.Kind(3, frozenset("cde"))]
    exact = spread.spread(of(VALUES), ipc, statistics.fmean, all_run, sampled=False)
    assert exact is not None
    assert exact.bounds() == pytest.approx((4.4, 4.4))
    # Of one in four nothing says how far the others are from it.
    lone = [spread.Kind(4, frozenset("a")), KINDS[1]]
    alone = spread.spread(
        of({name: VALUES[name] for name in "acde"}), ipc, statistics.fmean, lone, sampled=False
    )
    assert alone is not None
    assert alone.value == pytest.approx((4 * 1 + 9 * 6) / 13)
    assert alone.bounds() == (None, None)
    none = {name: VALUES[name] for name in "cde"}
    assert spread.spread(of(none), ipc, statistics.fmean, KINDS, sampled=False) is None


@pytest.mark.parametrize(
    ("own", "low", "high"),
    [
        # As papers have it: programs of one kind are alike.
        (0.3, 0.93, 0.97),
        # Of two that differ as much as the others too much is made: they have one degree of freedom.
        (1.0, 0.87, 0.93),
    ],
)
def test_intervals_of_kinds_hold_the_mean_of_all(own: float, low: float, high: float) -> None:
    """Of 11 and 9 programs 2 and 6 are drawn: nineteen in twenty intervals hold the mean of the twenty."""
    rng = random.Random(11)
    held, errors, trials = 0, [], 600
    for _ in range(trials):
        first = {f"a{at}": 10 + own * rng.gauss(0, 1) for at in range(11)}
        second = {f"b{at}": 15 + rng.gauss(0, 1) for at in range(9)}
        true = statistics.fmean([*first.values(), *second.values()])
        drawn = rng.sample(sorted(first), 2), rng.sample(sorted(second), 6)
        kinds = [spread.Kind(11, frozenset(drawn[0])), spread.Kind(9, frozenset(drawn[1]))]
        values = {name: (first | second)[name] for names in drawn for name in names}
        found = spread.spread(of(values), ipc, statistics.fmean, kinds, sampled=False)
        assert found is not None
        bounds = found.bounds()
        held += (bounds[0] or 0) <= true <= (bounds[1] or 0)
        errors.append(found.value - true)
    assert low <= held / trials <= high, held
    assert abs(statistics.fmean(errors)) < 4 * statistics.stdev(errors) / math.sqrt(trials), "no bias"


def windowed(ipc_of: float, own: float) -> Any:
    run = fake.run("radix4", cycles=round(1000 / ipc_of))
    run["sampling"] = fake.sample([run], windows=12, own=own)["sampling"]  # type: ignore[typeddict-unknown-key]
    return run


def test_windows_count_as_much_as_their_program() -> None:
    runs = {name: (windowed(value, 0.2),) for name, value in VALUES.items()}
    alone = {name: spread.spread({name: one}, ipc, statistics.fmean, None) for name, one in runs.items()}
    halves = {name: (found.bounds()[1] or 0) - found.value for name, found in alone.items() if found}
    assert min(halves.values()) > 0
    found = spread.spread(runs, ipc, statistics.fmean, KINDS)
    assert found is not None
    low, high = found.bounds()
    assert low is not None
    assert high is not None
    by_windows = math.hypot(
        *(halves[name] * 4 / 13 / 2 for name in "ab"), *(halves[name] * 9 / 13 / 3 for name in "cde")
    )
    missing = found.missing()
    assert missing > 0
    assert ((high - low) / 2) ** 2 == pytest.approx(by_windows**2 + missing**2)


def test_figures_of_the_same_kinds_are_paired() -> None:
    found = spread.spread(of(VALUES), ipc, statistics.fmean, KINDS, sampled=False)
    assert found is not None
    doubled = spread.combined([found], lambda one: 2 * one)
    assert doubled.missing() == pytest.approx(2 * found.missing())
    same = spread.combined([found, found], lambda one, other: one - other)
    assert same.bounds() == pytest.approx((0.0, 0.0))
    plain = spread.spread(of(VALUES), ipc, statistics.fmean, 13, sampled=False)
    assert plain is not None
    other = spread.combined([found, plain], lambda one, other: one - other)
    assert other.bounds() == (None, None), "of other kinds"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "strata.toml"
    path.write_text(EXPERIMENT)
    return path


def test_a_claim_says_which_workloads_are_of_a_kind(file: Path) -> None:
    mixed = experiments.load(file)
    claim = mixed.claims[0]
    assert claim.strata[0] == Stratum(4, ["gups", "random"])
    needs = planning.needs_of(mixed, "small", claim)
    cycles = {
        "gups:1GiB": 800,
        "random:1GiB": 500,
        "chase:1GiB": 1000,
        "stream:1GiB": 900,
        "xsbench:1GiB": 950,
    }
    results: dict[str, Any] = {}
    for selection, job in needs.jobs.items():
        run: Any = fake.run(
            selection.scheme, cycles=1000 if selection.scheme == "radix4" else cycles[selection.workload]
        )
        sampled: Any = fake.sample([run], windows=4, own=0.0)["sampling"]
        sampling = {**sampled, "coverage": 1.0, "sampled": False}
        results[job.key] = {**run, "sampling": sampling}
    values = verdicts.judge(mixed, "small", claim, needs, results).values
    logs = {name: math.log(1000 / each) for name, each in cycles.items()}
    (gups, chance, *others) = logs.values()
    expected = (4 * (gups + chance) / 2 + 9 * sum(others) / 3) / 13
    assert values[0].ours == pytest.approx(100 * math.expm1(expected))
    assert values[0].missing == pytest.approx(values[0].half), "all windows are measured, and programs lack"
    one = values[1]
    assert [one.ours, one.low, one.high] == pytest.approx([25.0] * 3), "of one workload nothing is missing"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["gups", "random"]', '["gups"]', "random:1GiB of the scale small is in no stratum; name it in one"),
        (
            '["!gups", "!random"]',
            '["!gups"]',
            "random:1GiB of the scale small is in 2 strata; name it in one",
        ),
        ('["gups", "random"]', '["gups", "randon"]', "strata[1] names randon, which is not run"),
        (
            '["!gups", "!random"]',
            '["xsbench", "chase", "stream:1GiB"]',
            "stream:8GiB of the scale paper is in no stratum",
        ),
        (
            'workloads = ["gups:8GiB", "random:8GiB", ',
            "workloads = [",
            "strata[1] has no workload at the scale paper; add one to it",
        ),
        ("programs = 9,", "programs = 2,", "strata[2] has 2 programs and 3 workloads at the scale small"),
        ("programs = 9,", "programs = 0,", "claim[1].strata[2].programs"),
        ("programs = 9,", "", "claim[1].strata[2].programs is missing"),
        ("programs = 9,", "programs = 9, names = 3,", "claim[1].strata[2].names is not a known key"),
        (
            "strata = [",
            "programs = 13\nstrata = [",
            "strata say how many programs there are of each kind; leave",
        ),
    ],
)
def test_wrong_strata_are_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert words in refusal(tmp_path, EXPERIMENT, old, new)
