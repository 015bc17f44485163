"""Claims: what experiments say, what is run for them, how figures become verdicts and a document."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from flatwalk import cache, engine
from flatwalk.answer import intervals, results
from flatwalk.comparison import lengths, mixing
from flatwalk.definitions import settings
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.reproduce import (
    agreement,
    figures,
    planning,
    printed,
    runs,
    sensitivity,
    show,
    spread,
    verdicts,
)
from flatwalk.reproduce.claims import SCALES, Claim, Experiment, Value
from flatwalk.reproduce.experiments import load, load_all
from flatwalk.reproduce.metrics import AVERAGES, METRICS
from flatwalk.reproduce.verdicts import Verdict
from flatwalk.terminal import output
from flatwalk.vm import bench, build, components
from tests import fake

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flatwalk.answer.results import Run
    from tests.conftest import Result

    Call = Callable[..., Result]

RESULTS = Path(__file__).parents[1] / "docs" / "results"

EXPERIMENT = """
title = "A test"

[[series]]
machine = "skylake-server"

[[series]]
name = "small caches"
machine = "skylake-server"
set.llc.size_bytes = 1048576

[scale.small]
workloads = ["gups:1GiB", "gups:2GiB"]
instructions = "1M"
windows = 4
window = "100k"
warmup = "50k"
spans = { "gups:2GiB" = "2M" }

[scale.paper]
workloads = ["gups:8GiB"]
instructions = "10M"
warmup = "1M"

[[claim]]
id = "T1"
claim = "Faster."
paper = "asplos2022"
place = "nowhere"
figure = "A figure"
metric = "speedup"
average = "geomean"
against = { scheme = "radix4" }
check = ["value", "order"]
tolerance = 1
why = { small = "Because." }
shown_by = "a run"
points = [
  { label = "FPT", scheme = "fpt", published = 8 },
  { label = "both", scheme = "fpt+ptp", published = 31.6 },
]
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    path = tmp_path / "test.toml"
    path.write_text(EXPERIMENT)
    return load(path)


def test_every_shipped_claim_can_be_planned_at_every_scale() -> None:
    experiments = load_all()
    assert experiments
    for experiment in experiments:
        for claim in experiment.claims:
            assert claim.points, claim.id
            for scale in SCALES:
                jobs = planning.needs_of(experiment, scale, claim).jobs
                assert jobs or len(planning.needs_of(experiment, scale, claim).missing) == len(
                    claim.points
                ), claim.id
                assert all(len(job.key) == 64 for job in jobs.values())


def test_the_committed_table_is_what_the_experiments_and_figures_give() -> None:
    """docs/results/reproduction.md has its words from the experiments, its figures from the JSON."""
    written = json.loads((RESULTS / "reproduction.json").read_text())
    experiments = load_all()
    report = show.from_json(written, experiments)
    found = [claim["id"] for claim in written["claims"]]
    assert found == [claim.id for one in experiments for claim in one.claims if claim.id in found]
    assert json.loads(output.as_json(show.to_json(report))) == written
    document = (RESULTS / "reproduction.md").read_text()
    assert document == show.markdown(report, show.command(report, experiments))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('metric = "speedup"', 'metric = "speed"', "no metric 'speed'"),
        ('average = "geomean"', 'average = "mode"', "no average 'mode'"),
        ('against = { scheme = "radix4" }', "", "speedup needs `against`"),
        ("tolerance = 1\n", "", "needs a tolerance"),
        ('check = ["value", "order"]', 'check = ["taste"]', 'claim[1].check[1] cannot be "taste"'),
        (
            'label = "FPT",',
            'label = "FPT", lable = 3,',
            "claim[1].points[1].lable is not a known key; did you mean label?",
        ),
        ("published = 8 }", "range = [9, 8] }", "a range is [LOW, HIGH]"),
        ('paper = "asplos2022"', 'paper = "mine"', "known: asplos2022"),
        ("why = { small", "why = { tiny", "claim[1].why.tiny is not a known key"),
        ('why = { small = "Because." }', "why = 3", "claim[1].why must be a text or a table (it is 3)"),
        ('shown_by = "a run"\n', "", "`why` needs `shown_by`: the run that shows it"),
        ("windows = 4\n", "", "windows and window go together"),
        ('"gups:2GiB" = "2M"', '"gups:3GiB" = "2M"', "spans names gups:3GiB, which is not run"),
        ('small = "Because."', "small = 3", "claim[1].why.small must be a text (it is 3)"),
        ('instructions = "1M"', 'instructions = "many"', "not understood"),
        ("[scale.paper]", "[scale.huge]", "scale.huge is not a known key; known here: small, paper"),
        ('id = "T1"\n', "", "claim[1].id is missing"),
        ('id = "T1"', "id = 1", "claim[1].id must be a text that is not empty (it is 1)"),
    ],
)
def test_a_wrong_experiment_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert words in refusal(tmp_path, EXPERIMENT, old, new)


def refusal(directory: Path, text: str, old: str, new: str) -> str:
    """What is said of an experiment in which something is changed to something wrong."""
    assert old in text
    path = directory / "wrong.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as raised:
        load(path)
    assert "wrong.toml" in str(raised.value)
    return str(raised.value)


def test_workloads_that_are_not_run_are_named_in_their_order(tmp_path: Path) -> None:
    names = [f"gups:{size}GiB" for size in range(3, 9)]
    spans = ", ".join(f'"{name}" = "2M"' for name in names)
    words = refusal(tmp_path, EXPERIMENT, '"gups:2GiB" = "2M"', spans)
    assert f"spans names {', '.join(names)}, which is not run" in words


def test_one_reason_may_stand_for_all_scales(tmp_path: Path) -> None:
    path = tmp_path / "test.toml"
    path.write_text(EXPERIMENT.replace('{ small = "Because." }', '"Because."'))
    assert load(path).claims[0].why == {"small": "Because.", "paper": "Because."}


def test_a_job_is_known_by_all_that_decides_its_result(experiment: Experiment) -> None:
    claim = experiment.claims[0]
    small, paper = (planning.needs_of(experiment, scale, claim).jobs for scale in SCALES)
    # Two workloads, three schemes; the baseline once for both points.
    assert len(small) == 6
    assert len({job.key for job in [*small.values(), *paper.values()]}) == 9
    assert len(runs.batches(small.values())) == 2, "one for each source"
    one = next(iter(small))
    shrunk = planning.Selection("small caches", one.scheme, one.large_pages, one.workload)
    other = planning.job_of(experiment, "small", shrunk)
    assert other.configuration["machine"]["llc"]["size_bytes"] == 1 << 20
    assert other.configuration["machine"]["llc"]["ways"] == 8, "the rest is the machine file's"
    assert other.key != small[one].key


def test_what_chooses_windows_and_weighs_mixes_is_part_of_a_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, experiment: Experiment
) -> None:
    path = tmp_path / "mixed.toml"
    text = EXPERIMENT.replace('["gups:1GiB", "gups:2GiB"]', '["asplos-3:1GiB"]')
    text = text.replace('spans = { "gups:2GiB" = "2M" }\n', "")
    path.write_text(text.replace('"skylake-server"', '"skylake-server-4core"'))

    def keys(of: Experiment) -> set[str]:
        return {job.key for job in planning.needs_of(of, "small", of.claims[0]).jobs.values()}

    alone, mixed = (keys(experiment), keys(load(path)))
    other = tmp_path / "other.py"
    other.write_text("")
    scheme = settings.scheme

    def changed(name: str) -> dict[str, Any]:
        return {**scheme(name), "title": "today's, changed"}

    with monkeypatch.context() as patched:
        patched.setattr(mixing, "__file__", str(other))
        assert (keys(experiment), keys(load(path)) & mixed) == (alone, set())
    with monkeypatch.context() as patched:
        patched.setattr(settings, "scheme", changed)
        assert (keys(experiment), keys(load(path)) & mixed) == (alone, set())
    with monkeypatch.context() as patched:
        patched.setattr(lengths, "__file__", str(other))
        assert (keys(experiment) & alone, keys(load(path)) & mixed) == (set(), set())
    assert (keys(experiment), keys(load(path))) == (alone, mixed)


def test_workloads_are_picked_by_name_or_left_out() -> None:
    names = ["gups:8GiB", "random:8GiB", "xsbench:1GiB"]
    assert planning.workloads_of(names, None) == names
    assert planning.workloads_of(names, "gups") == ["gups:8GiB"]
    assert planning.workloads_of(names, ["gups:8GiB", "xsbench"]) == ["gups:8GiB", "xsbench:1GiB"]
    assert planning.workloads_of(names, ["!gups", "!random"]) == ["xsbench:1GiB"]


def test_what_was_interrupted_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, experiment: Experiment
) -> None:
    calls: list[int] = []
    interrupted = True

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        calls.append(request["source"]["workload"]["size_bytes"])
        if interrupted and len(calls) == 2:
            raise KeyboardInterrupt
        return fake.response([fake.run(item["scheme"]["name"]) for item in request["runs"]])

    stand_in = fake.Engine(answer)
    monkeypatch.setattr(engine, "_module", lambda: stand_in)
    store = cache.Store(tmp_path / "store")
    jobs = list(planning.needs_of(experiment, "small", experiment.claims[0]).jobs.values())
    seen: list[tuple[int, int | None]] = []
    with pytest.raises(KeyboardInterrupt):
        runs.simulate(jobs, store, 1, lambda *at: seen.append(at))
    kept = sorted((tmp_path / "store").iterdir())
    assert len(kept) == 3, "the first batch, and nothing half-written"
    each = 4 * 150_000 + 7 * 50_000
    assert (3 * each, 6 * each) in seen, "four windows of 150 k, and seven warm-ups more before the first"
    interrupted = False
    kept[0].write_text("{")  # what cannot be read is made anew
    assert len(runs.simulate(jobs, store, 1, lambda *_: None)) == 6
    assert sorted(calls) == [1 << 30, 1 << 30, 2 << 30, 2 << 30]
    assert sorted(len(request["runs"]) for request in stand_in.requests) == [1, 3, 3, 3]
    runs.simulate(jobs, store, 1, lambda *_: None)
    assert len(calls) == 4, "nothing is run twice"


def test_two_calls_at_once_end_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, experiment: Experiment
) -> None:
    jobs = list(planning.needs_of(experiment, "small", experiment.claims[0]).jobs.values())
    both = threading.Barrier(2)
    stopped = []

    def well(piece: Sequence[Any], _request: object, _progress: object) -> list[Any]:
        both.wait(60)
        return [fake.run() for _ in piece]

    def one_fails(
        piece: Sequence[Any], request: dict[str, Any], progress: Callable[[int, int | None], None]
    ) -> list[Any]:
        both.wait(60)
        if request["source"]["workload"]["size_bytes"] == 1 << 30:
            raise FlatwalkError("no memory")
        try:
            while True:
                progress(1, 2)
        finally:
            stopped.append(len(piece))

    monkeypatch.setattr(runs, "_run_batch", one_fails)
    with pytest.raises(FlatwalkError, match="no memory"):
        runs.simulate(jobs, cache.Store(tmp_path), 2, lambda *_: None)
    assert stopped == [3], "the other one is told to stop"
    monkeypatch.setattr(runs, "_run_batch", well)
    assert len(runs.simulate(jobs, cache.Store(tmp_path), 2, lambda *_: None)) == 6


def test_calls_at_once_have_room_together() -> None:
    gib = 1 << 30
    present: set[int] = set()
    seen: list[set[int]] = []
    lock, both = threading.Lock(), threading.Barrier(2)

    def run(number: int, _stop: threading.Event) -> None:
        with lock:
            present.add(number)
            seen.append(set(present))
        if number in {1, 3}:  # they wait for each other
            both.wait(60)
        with lock:
            present.remove(number)

    runs.at_once({0: 20 * gib, 1: 8 * gib, 2: 8 * gib, 3: 2 * gib}, 2, run)
    assert set().union(*seen) == {0, 1, 2, 3}
    assert {1, 3} in seen
    assert all(other == {0} for other in seen if 0 in other), "more than there may be: alone"
    assert not any({1, 2} <= other for other in seen), "too much together"


def exact(ours: float | None, half: float = 0.0) -> Value:
    """A figure with an interval of this half width."""
    if ours is None:
        return Value(None)
    return Value(ours, {"gups": ours}, ours - half, ours + half)


def outcome(claim: Claim, *ours: float | None, half: float = 0.0) -> verdicts.Outcome:
    """What becomes of a claim whose points have these figures, each as sure as said."""
    values = [exact(one, half) for one in ours]
    related = []
    for relation in verdicts.relations(claim):
        first, second = ours[relation.first], ours[relation.second]
        if first is None or second is None:
            related.append(Value(None))
        else:
            found = second - first if relation.kind == "difference" else second / first
            related.append(exact(found, half))
    return verdicts.conclude(claim, values, related, "small")


def test_verdicts(experiment: Experiment, tmp_path: Path) -> None:
    claim = experiment.claims[0]
    assert outcome(claim, 7.0, 32.64).verdict is Verdict.REPRODUCED, "32.6 is shown, and within 1"
    assert outcome(claim, 7.0, 32.66).verdict is Verdict.SIGN
    wrong = outcome(claim, 40.0, 31.6)
    assert wrong.failed == "FPT is outside the tolerance; both is below FPT."
    assert wrong.why == "Because."
    assert outcome(claim, None, 31.6).failed.startswith("FPT has no figure")
    assert outcome(claim, None, 31.6).verdict is Verdict.NOT
    assert outcome(claim, -1.0, 31.6).verdict is Verdict.NOT
    path = tmp_path / "other.toml"
    signs = EXPERIMENT.replace('check = ["value", "order"]', 'check = ["sign", "ratio"]')
    path.write_text(signs.replace("published = 8 ", "published = -8 "))
    other = load(path).claims[0]
    assert outcome(other, -1.0, 4.0).verdict is Verdict.REPRODUCED
    assert "Both is -4.50 of FPT, which is outside -4.35 to -3.56" in outcome(other, -1.0, 4.5).failed
    assert "FPT has the other sign" in outcome(other, 1.0, 4.0).failed
    path.write_text(EXPERIMENT.replace('check = ["value", "order"]', 'check = ["sign"]'))
    assert outcome(load(path).claims[0], 800.0, 0.1).verdict is Verdict.SIGN, "no size is asked for"
    path.write_text(EXPERIMENT.replace('scheme = "fpt+ptp"', 'scheme = "no-such-scheme"'))
    lacking = load(path)
    needs = planning.needs_of(lacking, "small", lacking.claims[0])
    results = {job.key: fake.run() for job in needs.jobs.values()}
    found = verdicts.judge(lacking, "small", lacking.claims[0], needs, results)
    assert found.verdict is Verdict.CANNOT
    assert found.failed == "This version has no scheme no-such-scheme."
    assert [value.ours for value in found.values] == [0.0, None]
    path.write_text(EXPERIMENT.replace("published = 8 ", "range = [6, 8] "))
    ranged = load(path).claims[0]
    assert outcome(ranged, 5.0, 31.6).verdict is Verdict.REPRODUCED
    assert outcome(ranged, 4.9, 31.6).verdict is Verdict.SIGN
    open_range = EXPERIMENT.replace("published = 8 ", "range = [0, inf] ").replace(
        "tolerance = 1", "tolerance = 0"
    )
    path.write_text(open_range.replace('check = ["value", "order"]', 'check = ["value"]'))
    positive = load(path).claims[0]
    assert outcome(positive, 0.04, 31.6, half=0.03).verdict is Verdict.REPRODUCED
    assert outcome(positive, 0.02, 31.6, half=0.03).verdict is Verdict.UNDECIDED, "rounding decides nothing"


def test_a_check_is_decided_by_the_whole_interval(experiment: Experiment) -> None:
    claim = experiment.claims[0]
    assert outcome(claim, 8.0, 31.6, half=0.9).verdict is Verdict.REPRODUCED
    undecided = outcome(claim, 8.5, 31.6, half=0.9)
    assert undecided.verdict is Verdict.UNDECIDED
    assert undecided.failed == "FPT may be outside the tolerance."
    assert outcome(claim, 10.0, 31.6, half=0.9).verdict is Verdict.SIGN
    assert outcome(claim, 0.5, 31.6, half=0.9).verdict is Verdict.NOT, "its sign is not sure"
    unknown = verdicts.conclude(claim, [Value(8.0), Value(31.6)], [Value(23.6)], "small")
    assert unknown.verdict is Verdict.UNDECIDED, "nothing is known of how sure it is"


@pytest.mark.parametrize("ours", [(8.0, 31.6), (8.9, 31.6), (80.0, 31.6), (-8.0, 31.6)])
def test_an_explanation_has_no_part_in_a_verdict(
    tmp_path: Path, experiment: Experiment, ours: tuple[float, float]
) -> None:
    path = tmp_path / "bare.toml"
    path.write_text(EXPERIMENT.replace('why = { small = "Because." }\n', ""))
    for half in (0.0, 0.5):
        explained = outcome(experiment.claims[0], *ours, half=half)
        bare = outcome(load(path).claims[0], *ours, half=half)
        assert (explained.why, bare.why) == ("Because.", "")
        assert (explained.verdict, explained.failed) == (bare.verdict, bare.failed)


def test_what_is_not_comparable_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_text(
        EXPERIMENT.replace('shown_by = "a run"', 'shown_by = "a run"\nnot_comparable = "Another load."')
    )
    for ours in ((8.0, 31.6), (80.0, 31.6)):
        found = outcome(load(path).claims[0], *ours)
        assert (found.verdict, found.why) == (Verdict.NOT_COMPARABLE, "Another load.")


def test_what_windows_have_in_common_drops_out_of_a_figure() -> None:
    """Windows differ by a half, schemes by the same factor in each: that is sure, the speeds are not."""
    base = fake.run("radix4")
    faster = fake.run("fpt", cycles=925)
    response = fake.sample([base, faster], windows=12, common=0.5, own=0.0)
    for run in (base, faster):
        run["sampling"] = response["sampling"]  # type: ignore[typeddict-unknown-key]
    metric = METRICS["speedup"]

    def speedup(runs: tuple[Any, ...]) -> float | None:
        return metric.of(runs[0], runs[1], runs[1])

    found = spread.spread({"gups": (faster, base)}, speedup, lambda values: values[0], None)
    assert found is not None
    low, high = found.bounds()
    assert low is not None
    assert high is not None
    assert found.value == pytest.approx(1000 / 925)
    assert high - low < 1e-4, "but for rounding to whole cycles"
    alone = spread.spread({"gups": (base,)}, lambda runs: runs[0]["ipc"], lambda values: values[0], None)
    assert alone is not None
    low, high = alone.bounds()
    assert low is not None
    assert high is not None
    assert high - low > 0.1 * alone.value
    # The jackknife of a ratio of sums is its linearisation, which `intervals.estimate` has in closed form.
    windows: list[Any] = list(base["windows"])
    over, under = ([[one[key] for one in windows]] for key in ("instructions", "cycles"))
    expected = intervals.estimate(over, under, results.coverage(response["sampling"]) or 0.0)
    assert expected.low is not None
    assert low == pytest.approx(expected.low, rel=0.05)


def test_programs_that_are_not_run_make_a_mean_less_sure() -> None:
    """Of twenty programs sixteen are run, exactly: what is left is a fifth of the variance, by hand."""
    values = [1.0, 2.0, 3.0, 4.0]
    of = {str(at): (exactly(value),) for at, value in enumerate(values)}

    def mean(figures: Sequence[float]) -> float:
        return sum(figures) / len(figures)

    whole = spread.spread(of, lambda runs: runs[0]["ipc"], mean, 4)
    part = spread.spread(of, lambda runs: runs[0]["ipc"], mean, 5)
    assert whole is not None
    assert part is not None
    assert whole.bounds() == (2.5, 2.5)
    low, high = part.bounds()
    # Variance 5/3 of four, Student's 3.182 of three degrees of freedom, a fifth of the programs missing.
    margin = 3.1824 * math.sqrt(5 / 3 / 4 * (1 - 4 / 5))
    assert [low, high] == pytest.approx([2.5 - margin, 2.5 + margin], rel=1e-4)


def test_what_is_not_sampled_is_of_some_programs_still() -> None:
    of = {str(at): (exactly(value),) for at, value in enumerate([1.0, 2.0, 3.0, 4.0])}

    def at(programs: int, sampled: bool) -> spread.Spread | None:
        return spread.spread(of, lambda runs: runs[0]["ipc"], statistics.fmean, programs, sampled=sampled)

    whole, part = at(4, sampled=False), at(5, sampled=False)
    assert whole is not None
    assert part is not None
    assert whole.bounds() == (2.5, 2.5)
    assert part.bounds() == at(5, sampled=True).bounds()  # type: ignore[union-attr]
    assert part.bounds()[0] < 2.5  # type: ignore[operator]


def test_a_window_that_has_everything_says_nothing_of_how_it_varies() -> None:
    run = fake.run()
    fake.sample([run], windows=12, own=0.0)
    windows: list[Any] = list(run["windows"])
    for at, window in enumerate(windows):
        window |= {"walks": 7 if at == 5 else 0, "walk_accesses": 13 if at == 5 else 0}
    sampling = {"sampled": True, "coverage": 0.01, "windows": 12}
    whole: Any = {**run, "sampling": sampling, "accesses_per_walk": 13 / 7}
    found = spread.spread(
        {"gups": (whole,)}, lambda runs: runs[0]["accesses_per_walk"], statistics.fmean, None
    )
    assert found is not None
    assert found.bounds() == (None, None)


def test_figures_of_other_programs_are_not_paired() -> None:
    def of(*values: float) -> spread.Spread:
        found = spread.Sample(tuple(values), 0.5)
        return spread.Spread(1.0, {}, (found,))

    def less(one: float, other: float) -> float:
        return one - other

    assert spread.combined([of(-1, 0, 1), of(-1, 0, 1)], less).bounds() == pytest.approx((0.0, 0.0))
    assert spread.combined([of(-1, 0, 1), of(-1, 1)], less).bounds() == (None, None)


def exactly(ipc: float) -> Any:
    """A run that was measured whole."""
    run = fake.run()
    sampling: Any = fake.sample([run], windows=4, own=0.0)["sampling"]
    sampling = {**sampling, "coverage": 1.0, "sampled": False}
    return {**run, "ipc": ipc, "sampling": sampling}


def judge(experiment: Experiment, claim: Claim, results: Mapping[str, Run]) -> verdicts.Outcome:
    """The verdict at the small scale on what is needed now."""
    needs = planning.needs_of(experiment, "small", claim)
    return verdicts.judge(experiment, "small", claim, needs, results)


def test_a_claim_about_many_processes_needs_a_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (experiment,) = (one for one in load_all() if one.name == "95-guest")
    (claim,) = experiment.claims

    def find(component: components.Component) -> Path:
        raise FlatwalkError(f"{component.name} is not built", remedy="run: flatwalk vm build")

    monkeypatch.setattr(build, "find", find)
    needs = planning.needs_of(experiment, "small", claim)
    assert needs.jobs == {}
    found = judge(experiment, claim, {})
    assert found.verdict is Verdict.CANNOT
    assert found.failed == "There is no guest: qemu is not built; run: flatwalk vm build."
    monkeypatch.setattr(build, "find", lambda _: tmp_path)
    later = verdicts.judge(experiment, "small", claim, needs, {})
    assert later == found, "a guest that was built meanwhile"

    asked = []

    def oversubscribe(modes: list[str], swaps_percent: list[int]) -> list[bench.Crowd]:
        asked.append((*modes, *swaps_percent))
        (swap,) = swaps_percent
        short = 6 * asked.count(asked[-1]) if swap == 6 else 0
        return [bench.Crowd(modes[0], swap, 200, 40, processes=120, short_at_begin=short, short_at_end=1)]

    monkeypatch.setattr(build, "find", lambda _: tmp_path)
    monkeypatch.setattr(bench, "oversubscribe", oversubscribe)
    jobs = planning.needs_of(experiment, "small", claim).jobs.values()
    for _ in range(2):  # what was found is kept
        results = runs.simulate(jobs, cache.Store(tmp_path), 1, lambda _done, _total: None)
        assert asked == 3 * [("l3l2", 6)] + 3 * [("l3l2", 50)]
    found = judge(experiment, claim, results)
    some, none = found.values
    # Three guests, of 5, 10 and 15 %: Student's t with two degrees of freedom.
    assert (some.ours, some.low, some.high) == pytest.approx((10.0, 10 - 12.42, 10 + 12.42), abs=0.01)
    assert (none.ours, none.low, none.high) == (0.0, None, None)
    assert found.verdict is Verdict.NOT_COMPARABLE


def test_figures_come_from_the_runs_that_a_point_names(experiment: Experiment) -> None:
    claim = experiment.claims[0]
    jobs = planning.needs_of(experiment, "small", claim).jobs
    cycles = {"radix4": 1000, "fpt": 925, "fpt+ptp": 760}
    results = {}
    for selection, job in jobs.items():
        doubled = 2 if selection.workload == "gups:2GiB" and selection.scheme != "radix4" else 1
        results[job.key] = fake.run(selection.scheme, cycles=cycles[selection.scheme] * doubled)
    found = judge(experiment, claim, results)
    first = found.values[0]
    assert first.by_workload["gups:1GiB"] == pytest.approx(100 * (1000 / 925 - 1))
    assert first.by_workload["gups:2GiB"] == pytest.approx(100 * (1000 / 1850 - 1))
    assert first.ours == pytest.approx(100 * (math.sqrt(1000 / 925 * 1000 / 1850) - 1))


def test_a_mix_is_weighed_by_its_programs_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mixed.toml"
    text = EXPERIMENT.replace('["gups:1GiB", "gups:2GiB"]', '["asplos-3:1GiB"]')
    text = text.replace('spans = { "gups:2GiB" = "2M" }\n', "")
    path.write_text(text.replace('"skylake-server"', '"skylake-server-4core"'))
    mixed = load(path)
    asked: list[dict[str, Any]] = []
    parts = [0.9, 1.0, 1.2, 0.9]

    def answer(request: dict[str, Any], _progress: object) -> tuple[list[list[Any]], list[Any]]:
        asked.append(request)
        cycles = {"radix4": 1000, "fpt": 500, "fpt+ptp": 250}
        runs = [
            fake.run(item["scheme"]["name"], cycles=cycles[item["scheme"]["name"]])
            for item in request["runs"]
        ]
        programs = len(request["programs"])
        for run in runs:
            each = parts if programs > 1 else parts[::-1]
            windows = [{"instructions": 1000, "cycles": 1000 / (run["ipc"] or 1) * part} for part in each]
            run["windows"] = cast("Any", windows)
        sampling = {
            "sampled": True,
            "windows": 4,
            "coverage": 0.1,
            "instructions_total": None,
            "instructions_represented": 1_000_000,
        }
        return [[run] * programs for run in runs], [sampling] * programs

    monkeypatch.setattr(engine, "simulate_mix", answer)
    jobs = planning.needs_of(mixed, "small", mixed.claims[0]).jobs
    results = runs.simulate(jobs.values(), cache.Store(tmp_path / "store"), 1, lambda *_: None)
    assert [len(request["programs"]) for request in asked] == [1, 1, 4], "two programs alone, then all"
    assert [request["seed"] for request in asked] == [1, 3, 1], "as its first core has in the mix"
    found = judge(mixed, mixed.claims[0], results)
    assert [value.ours for value in found.values] == pytest.approx([100.0, 300.0])
    # Windows are as much slower in both schemes as each other.
    assert all(
        value.high - value.low < 1e-6 for value in found.values if value.low is not None and value.high
    )
    for run in results.values():
        ipc = [window["instructions"] / (window["cycles"] or 1) for window in run["windows"]]
        assert sum(ipc) / len(ipc) == pytest.approx(run["ipc"], rel=1e-2)
        assert max(ipc) > 1.001 * min(ipc), "windows say how sure it is"


def test_programs_of_a_mix_are_alone_on_the_machine_on_which_they_are_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[set[int], int]] = []

    def stand_in(request: dict[str, Any], progress: Callable[[int, int | None], None]) -> list[Any]:
        walkers = {run["machine"]["walker"]["concurrent"] for run in request["runs"]}
        asked.append((walkers, len(request["runs"])))
        progress(0, None)
        progress(1, 2)
        progress(1, 4)
        return [{"walks": run["scheme"]["number"]} for run in request["runs"]]

    monkeypatch.setattr(runs, "_mixed_alike", stand_in)
    mix = {"programs": ["gups"], "sources": [{"workload": {"size_bytes": 1}}]}
    request = {"source": {"mix": mix}, "instructions": 1000}
    jobs = [
        planning.Job(
            str(number),
            request,
            {"scheme": {"number": number}, "machine": {"walker": {"concurrent": walkers}}},
            "a mix",
        )
        for number, walkers in enumerate([2, 64, 2, 64])
    ]
    at: list[float] = []

    def progress(done: int, whole: int | None) -> None:
        at.append(done / (whole or 1))

    found = runs.simulate(jobs, cache.Store(tmp_path), 1, progress)
    assert asked == [({2}, 2), ({64}, 2)]
    assert [found[str(number)]["walks"] for number in range(4)] == [0, 1, 2, 3]
    assert at == [0, 0.25, 0.25, 0.25, 0.75, 0.75, 1.0], "nothing is taken back when a whole is more"


def test_interpolated_speedup_saves_what_the_accesses_save() -> None:
    """Accesses halve, translation costs half of the time: a quarter of the time goes."""
    run, base, bound = (
        fake.run(per_walk=1.0),
        fake.run(per_walk=2.0, cycles=1000),
        fake.run("ideal", cycles=500),
    )
    assert METRICS["interpolated_speedup"].of(run, base, bound) == pytest.approx(1 / 0.75)
    # A guest's walks make twice as many accesses: half as much time again.
    assert METRICS["interpolated_slowdown"].of(fake.run(per_walk=4.0), base, bound) == pytest.approx(1.5)


def test_time_is_that_of_the_bounds_series(tmp_path: Path) -> None:
    """Accesses, counted on one machine, halve; on another half of the time is translation."""
    path = tmp_path / "test.toml"
    bound = 'bound = { series = "small caches", scheme = "ideal" }'
    text = EXPERIMENT.replace('metric = "speedup"', f'metric = "interpolated_speedup"\n{bound}')
    path.write_text(text)
    experiment = load(path)
    claim = experiment.claims[0]
    asked = []

    def run_of(one: planning.Selection) -> Run:
        asked.append((one.series, one.scheme))
        cycles = {"ideal": 500, "radix4": 1000 if one.series == "small caches" else 7}.get(one.scheme, 3)
        return fake.run(per_walk=2.0 if one.scheme == "radix4" else 1.0, cycles=cycles)

    found = verdicts.measure(experiment, "paper", claim, claim.points[0], run_of)
    assert found.by_workload == {"gups:8GiB": pytest.approx(100 / 3)}
    timed, counted = "small caches", "main"
    assert asked == [(counted, "fpt"), (counted, "radix4"), (timed, "ideal"), (timed, "radix4")]
    jobs = planning.needs_of(experiment, "paper", claim).jobs
    assert {(one.series, one.scheme) for one in jobs} == {*asked, (counted, "fpt+ptp")}


def test_accesses_of_the_l3_are_misses_of_the_l2() -> None:
    """30 in 1000 instructions and 20: half as many again."""

    def run(data: int, table: int) -> Any:
        l2 = {"name": "L2", "data_misses": data, "table_misses": table}
        return cast("dict[str, Any]", fake.run()) | {"instructions": 1000, "caches": [l2]}

    metric = METRICS["l3_accesses"]
    found = metric.of(run(20, 10), run(20, 0), run(20, 0))
    assert found is not None
    assert metric.show(found) == pytest.approx(50)
    without = cast("Any", {**run(1, 1), "caches": []})
    assert metric.of(without, run(20, 0), run(20, 0)) is None


def test_a_tlb_miss_rate_is_of_the_accesses_that_ask_it() -> None:
    """Twice as many walks in 1000 instructions, of four times as many loads and stores, are half the rate."""

    def run(loads: int, stores: int, walks: int) -> Any:
        return cast("dict[str, Any]", fake.run(walks=walks)) | {"loads": loads, "stores": stores}

    few, many = run(300_000, 100_000, 100_000), run(50_000, 50_000, 50_000)
    rate, dense = METRICS["walks_per_access"], METRICS["walks_per_1000"]
    assert [rate.of(one, one, one) for one in (few, many)] == [25.0, 50.0]
    assert [dense.of(one, one, one) for one in (few, many)] == [100.0, 50.0]
    none = run(0, 0, 0)
    assert rate.of(none, none, none) is None


def test_the_trace_simulator_counts_cycles_by_its_formula() -> None:
    """1000 instructions with 400 accesses, of which 8 read memory, and 10 walks of 50 cycles, by hand.

    500 cycles of instructions, 400 of the TLB and 500 of walks; data take 360 x 2 + 24 x 16 + 8 x 56 + 8 x
    200, an eighth of which counts: 394.
    """

    def run(walks: int) -> Any:
        caches = [
            {"name": name, "data_accesses": accesses, "data_misses": misses}
            for name, accesses, misses in (("L1D", 400, 40), ("L2", 40, 16), ("LLC", 16, 8))
        ]
        machine = {
            "l1d": {"latency_cycles": 2},
            "l2": {"latency_cycles": 16},
            "llc": {"latency_cycles": 56},
            "memory": {"latency_ns": 72.0},
            "frequency_mhz": 2000,
        }
        return cast("dict[str, Any]", fake.run()) | {
            "instructions": 1000,
            "walks": walks,
            "walk_access_cycles": 50.0,
            "caches": caches,
            "configuration": {"machine": machine},
        }

    base, fewer = run(10), run(0)
    cycles = 500 + 400 + 500 + 394
    assert METRICS["trace_time"].of(fewer, base, base) == pytest.approx((cycles - 500) / cycles)
    assert METRICS["trace_speedup"].of(fewer, base, base) == pytest.approx(cycles / (cycles - 500))
    functional = cast("Any", {**base, "caches": []})
    assert METRICS["trace_time"].of(functional, base, base) is None


def test_an_update_is_two_stores() -> None:
    """A million instructions in 2 M cycles of 2 GHz, with 100 k stores: 50 k updates in 1 ms."""
    run = fake.run(cycles=2000)
    metric = METRICS["ns_per_update"]
    assert metric.of(run, run, run) == pytest.approx(20.0)
    still = cast("Any", {**run, "ipc": None})
    assert metric.of(still, run, run) is None


@pytest.mark.parametrize(
    ("name", "same"), [("walks_per_access", "walks_per_1000"), ("ns_per_update", "speedup")]
)
def test_what_windows_do_not_count_is_shared_out_by_instructions(name: str, same: str) -> None:
    """Without a window there are as many loads for an instruction: only walks and cycles vary."""
    run, base = fake.run(), fake.run()
    response = fake.sample([run], windows=12, common=0.5, own=0.0)
    run["sampling"] = response["sampling"]  # type: ignore[typeddict-unknown-key]

    def half(metric: str) -> float:
        def value(runs: tuple[Run, ...]) -> float | None:
            return METRICS[metric].of(runs[0], base, base)

        found = spread.spread({"gups": (run,)}, value, lambda values: values[0], None)
        assert found is not None
        low, high = found.bounds()
        assert low is not None
        assert high is not None
        return (high - low) / found.value

    assert half(name) == pytest.approx(half(same), rel=0.05)
    assert half(name) > 0.1


def test_the_third_largest_is_what_three_programs_have() -> None:
    third = AVERAGES["third"]
    assert third([5.0, -1.0, 3.0, 4.0, 2.0]) == 3.0
    assert third([9.0, 9.0, -2.0, -3.0]) == -2.0, "in two cases only"
    assert third([1.0, 4.0]) == 1.0, "of fewer, the least"


def test_a_difference_has_no_rank_among_figures(tmp_path: Path) -> None:
    """What one gains more than the other is less than either, which says nothing of their order."""
    path = tmp_path / "less.toml"
    line = '  { label = "both", scheme = "fpt+ptp", published = 31.6 },\n'
    less = line.replace("both", "less").replace("31.6", '23.6, minus = { scheme = "fpt" }')
    assert line in EXPERIMENT
    path.write_text(EXPERIMENT.replace(line, line + less))
    claim = load(path).claims[0]
    assert [(one.first, one.second) for one in verdicts.relations(claim)] == [(0, 1)]
    assert outcome(claim, 8.0, 31.6, 23.6).verdict is Verdict.REPRODUCED
    apart = outcome(claim, 8.0, 31.6, 20.0)
    assert (apart.verdict, apart.failed) == (Verdict.SIGN, "Less is outside the tolerance.")
    path.write_text(
        EXPERIMENT.replace(line, line + less + less.replace('"less"', '"more"').replace("23.6", "30"))
    )
    both = load(path).claims[0]
    assert [(one.first, one.second) for one in verdicts.relations(both)] == [(0, 1), (2, 3)]


def test_what_is_not_judged_has_no_tolerance(tmp_path: Path) -> None:
    path = tmp_path / "shown.toml"
    text = EXPERIMENT.replace('scheme = "fpt", published = 8', 'scheme = "fpt", metric = "accesses_per_walk"')
    path.write_text(text)
    assert show.tolerance(load(path).claims[0]) == "±1 %, order"


def shipped(name: str) -> Claim:
    """A shipped claim."""
    return next(claim for one in load_all() for claim in one.claims if claim.id == name)


def test_published_figures_are_the_papers_sums() -> None:
    """What a claim has from two others, or from a run, is what these give."""

    def of(name: str) -> dict[str, Any]:
        return {point.label: point.published for point in shipped(name).points}

    flattened, prioritised, gain = of("V2"), of("V3"), of("V4")
    for label in ("HF", "GF", "GF+HF"):
        assert gain[label] == pytest.approx(prioritised[f"{label}+PTP"] - flattened[label]), label
    assert gain["neither flattened"] == 6.1, "the least of those that section 7.2 has"
    assert flattened["GF less HF"] == pytest.approx(flattened["GF"] - flattened["HF"])
    assert of("X4")["1 GiB, an update"] == round(108.077732e9 / 2**29)


def test_a_growth_that_is_not_there_is_not_the_published_one() -> None:
    """C5 publishes 0.06 %: none at all has no sign, and a twelfth of it has the sign alone."""
    claim = shipped("C5")
    assert outcome(claim, 0.06).verdict is Verdict.REPRODUCED
    assert [outcome(claim, ours).verdict for ours in (0.0, 0.005)] == [Verdict.NOT, Verdict.SIGN]


def test_misses_are_ranked_by_their_rate() -> None:
    """F17: GUPS' rate is to be higher, however often dc walks in as many instructions."""
    claim = shipped("F17")

    def verdict(dc: float, gups: float) -> Verdict:
        return outcome(claim, dc, gups, gups - dc, 106.0, 83.0).verdict

    claim = replace(claim, why={})
    assert verdict(21.0, 25.0) is Verdict.REPRODUCED
    assert verdict(25.0, 21.0) is Verdict.NOT


def test_walks_under_way_are_none_where_there_are_no_walks() -> None:
    """10 walks of 20 cycles in 1000 cycles; without walks none, not an unknown number."""
    walking = cast("dict[str, Any]", fake.run()) | {"cycles": 1000, "walks": 10, "walk_access_cycles": 20.0}
    still = walking | {"walks": 0, "walk_access_cycles": None}
    unknown = walking | {"cycles": None}
    found = [
        METRICS["walks_under_way"].of(cast("Any", run), *[cast("Any", run)] * 2)
        for run in (walking, still, unknown)
    ]
    assert found == [pytest.approx(0.2), 0.0, None]


def test_a_report_survives_its_json(experiment: Experiment) -> None:
    report = show.Report("small", "0.0.0", [(experiment, [outcome(experiment.claims[0], 7.04, -0.04)])])
    written = json.loads(json.dumps(show.to_json(report)))
    again = show.from_json(written, [experiment])
    assert json.loads(json.dumps(show.to_json(again))) == written
    text = show.markdown(report, "flatwalk reproduce")
    assert "| T1 | Faster. | Park et al., ASPLOS 2022: nowhere | FPT +8 %<br>both +31.6 % |" in text
    assert "| FPT +7.0 %<br>both 0.0 % |" in text
    # What was run stays what it was, whatever the experiment says now.
    shorter = {name: replace(one, windows=(7, 1000)) for name, one in experiment.scales.items()}
    later = show.from_json(written, [replace(experiment, scales=shorter)])
    assert "4 windows of 100 k over" in show.markdown(later, "flatwalk reproduce")
    anew = show.Report("small", "0.0.0", [(replace(experiment, scales=shorter), report.found[0][1])])
    joined = show.joined(later, anew, [replace(experiment, scales=shorter)])
    assert "7 windows of 1 k over" in show.markdown(joined, "flatwalk reproduce")
    page = figures.html(report)
    assert "FPT, ours" in page
    assert "FPT, published" in page
    assert page.count("<script") == 1, "the page's own"


def test_scales_agree_where_the_interval_of_the_difference_holds_zero(experiment: Experiment) -> None:
    """With halves of 0.3 and 0.4 the difference's is 0.5, and figures are shown to a tenth."""
    claim = experiment.claims[0]

    def report(scale: str, *ours: float, half: float, missing: float = 0.0) -> show.Report:
        found = outcome(claim, *ours, half=math.hypot(half, missing))
        values = [replace(value, missing=missing) for value in found.values]
        return show.Report(scale, "0.0.0", [(experiment, [replace(found, values=values)])])

    small = report("small", 8.0, 20.0, half=0.3)
    for second, agrees in ((20.5, True), (20.7, False)):
        paper = report("paper", 8.4, second, half=0.4)
        assert [one.agrees() for one in agreement.figures(small, paper)] == [True, agrees]
    # Programs that are not run are missing from both: they do not make figures agree.
    missing = report("paper", 8.4, 20.7, half=0.4, missing=5.0)
    assert [one.agrees() for one in agreement.figures(small, missing)] == [True, False]
    text = "\n".join(agreement.markdown(small, paper))
    assert "Of 2 figures at the scales small and paper, 1 agree within their intervals." in text
    assert "| T1 | both | +20.0 [+19.7, +20.3] % | +20.7 [+20.3, +21.1] % |" in text
    assert "Of 1 claims, 1 have the same verdict." in text
    values = [Value(8.0), Value(20.0)]
    unknown = show.Report(
        "paper", "0.0.0", [(experiment, [replace(outcome(claim, 8.0, 20.0), values=values)])]
    )
    assert "Of 0 figures" in agreement.summary(small, unknown)
    assert "Of 2 more no interval is known." in agreement.summary(small, unknown)
    good = report("paper", 8.0, 31.6, half=0.4)
    assert "| T1 | sign only | reproduced |" in "\n".join(agreement.markdown(small, good))


def test_a_bar_reaches_from_zero_to_its_figure(experiment: Experiment) -> None:
    drawn = figures.chart(outcome(experiment.claims[0], -10.0, 30.0))
    span = 31.6 + 10.0
    assert drawn.origin == pytest.approx(10 / span)
    bars = [
        (row.segments[0].start * span - 10, row.segments[0].length * span) for row in drawn.panels[0].rows
    ]
    assert bars == [pytest.approx(bar) for bar in [(-10, 10), (0, 8), (0, 30), (0, 31.6)]]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An engine that answers every request alike, and no results from before."""
    made = fake.Engine(lambda request: fake.response([fake.run() for _ in request["runs"]]))
    monkeypatch.setattr(engine, "_module", lambda: made)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("stand_in")
def test_the_command_runs_prints_and_writes(call: Call, tmp_path: Path) -> None:
    result = call("reproduce", "r4", "--json", "out.json", "--markdown", "out.md")
    assert result.code == 0, result.err
    assert "1 claims: 1 not reproduced." in result.out
    assert json.loads((tmp_path / "out.json").read_text())["claims"][0]["id"] == "R4"
    assert "| R4 |" in (tmp_path / "out.md").read_text()
    assert (tmp_path / "flatwalk-claims.html").is_file()
    assert call("reproduce", "R99").code == 2
    assert "there is no claim R99" in call("reproduce", "R99").err
    assert "there is no scale" in call("reproduce", "--scale", "large").err
    assert "Speed-up with 4 KiB pages" in call("reproduce", "--list").out


@pytest.mark.usefixtures("stand_in")
def test_a_call_is_held_against_one_at_another_scale(call: Call, tmp_path: Path) -> None:
    call("reproduce", "R4", "--scale", "paper", "--json", "paper.json", "--no-report")
    words = ("reproduce", "R4", "--against", "paper.json", "--markdown", "out.md", "--no-report")
    assert "Of 1 claims, 1 have the same verdict." in call(*words).out
    text = (tmp_path / "out.md").read_text()
    assert "`flatwalk reproduce R4 --scale small --against FILE --markdown FILE`" in text
    assert text.index("## Against the scale paper") < text.index("\n\n## What was run")
    refused = call(*words, "--scale", "paper")
    assert (refused.code, "its figures are of scale paper, too" in refused.err) == (2, True)
    (tmp_path / "paper.json").unlink()
    assert "there is no such file" in call(*words).err


def test_a_call_adds_its_claims_to_what_an_earlier_one_wrote(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    accesses = 24.0
    stand_in = fake.Engine(
        lambda request: fake.response([fake.run(per_walk=accesses) for _ in request["runs"]])
    )
    monkeypatch.setattr(engine, "_module", lambda: stand_in)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "all.json"

    def ours() -> dict[str, float]:
        return {claim["id"]: claim["points"][0]["ours"] for claim in json.loads(file.read_text())["claims"]}

    def reproduce(*words: str) -> Result:
        return call("reproduce", *words, "--update", "all.json", "--no-report")

    assert reproduce("R4").code == 0
    first = ours()
    assert list(first) == ["R4"]
    both = reproduce("R3", "--markdown", "all.md")
    assert "2 claims" in both.out
    assert ours() == {"R3": 24.0, **first}, "in the order of the experiments, whichever ran first"
    assert "`flatwalk reproduce R3 R4 --scale small" in (tmp_path / "all.md").read_text()

    accesses = 12.0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    reproduce("R3")
    assert ours() == {"R3": 12.0, **first}, "a claim that runs again has its new figures"

    whole = file.read_text()
    assert "its figures are of scale small, not paper" in reproduce("R3", "--scale", "paper").err
    for old, new, words in (
        ('"version": "', '"version": "0.0.', "its figures are of version 0.0."),
        ('"label": "4 levels', '"label": "9 levels', "not what `reproduce --json` writes"),
        ("{", "[", "not what `reproduce --json` writes"),
        ("{", "[" * 100_000, "not what `reproduce --json` writes"),
    ):
        file.write_text(whole.replace(old, new, 1))
        failed = reproduce("R4")
        assert failed.code == 2
        assert words in failed.err
        assert "--json" in failed.err
        assert file.read_text() == whole.replace(old, new, 1), "it stays as it was"

    file.write_text(whole.replace('"label": "4 levels', '"label": "9 levels', 1))
    assert reproduce("R3").code == 0
    assert ours() == {"R3": 12.0, **first}, "what has changed since may run again"


OPEN = """
[[open]]
paper = "asplos2022"
name = "page walkers"
key = "machine.walker.concurrent"
values = [2, 4]
default = "of its source"

[[open]]
paper = "asplos2022"
name = "guest frames"
key = "guest_frames"
values = ["scattered", "compact"]
default = "of its reason"
"""


def test_what_a_paper_leaves_open_is_one_setting_for_all_its_claims(tmp_path: Path) -> None:
    path = tmp_path / "open.toml"
    path.write_text(EXPERIMENT + OPEN)
    experiment = load(path)
    axes = sensitivity.axes([experiment], "asplos2022")
    chosen = sensitivity.settings(axes)
    four, compact = {"machine.walker.concurrent": 4}, {"guest_frames": "compact"}
    assert chosen == [{}, four, compact, {**four, **compact}], (
        "first what differs in nothing, then in one thing"
    )
    assert sensitivity.settings(axes, 1) == chosen[:3]
    assert sensitivity.settings(axes, 0) == chosen[:1]
    under = sensitivity.under(experiment, chosen[3])
    claim = experiment.claims[0]
    for one, job in planning.needs_of(under, "small", claim).jobs.items():
        assert job.configuration["machine"]["walker"]["concurrent"] == 4
        assert job.key != planning.job_of(experiment, "small", one).key
        # What decides nothing without a guest does not make another run.
        assert job.key == planning.job_of(sensitivity.under(experiment, chosen[1]), "small", one).key
    asap = sensitivity.under(experiment, {"scheme.asap.issue": "at_miss"})
    issue = [
        planning.job_of(asap, "small", planning.Selection("main", scheme, 0, "gups:1GiB"))
        for scheme in ("asap", "radix4")
    ]
    assert issue[0].configuration["scheme"]["asap"]["issue"] == "at_miss"
    assert "asap" not in issue[1].configuration["scheme"]

    def gather(ours: Sequence[Experiment]) -> show.Report:
        machine = planning.machine_of(next(iter(ours[0].series.values())))
        good = machine["walker"]["concurrent"] == 4
        return show.Report(
            "small", "0", [(ours[0], [outcome(ours[0].claims[0], 8.0 if good else 80.0, 31.6)])]
        )

    found = sensitivity.judged([experiment], "asplos2022", chosen, gather)
    bad, good = Verdict.SIGN, Verdict.REPRODUCED
    assert [one.verdicts["T1"] for one in found] == [bad, good, bad, good]
    assert sensitivity.final("T1", found) is Verdict.OPEN
    assert sensitivity.final("T1", found[::2]) is Verdict.SIGN
    text = sensitivity.markdown("asplos2022", found, axes, "flatwalk reproduce")
    rows = [line for line in text.splitlines() if line.endswith((" 0 |", " 1 |"))]
    assert rows == [
        "| 2 (default) | scattered (default) | s | 0 |",
        "| 4 |  | **R** | 1 |",
        "|  | compact | s | 0 |",
        "| 4 | compact | **R** | 1 |",
    ]
    assert "Most claims that hold together: 1 of 1, under 2 of 4 settings, by default 0." in text
    assert "The first of them (page walkers: 4) has T1." in text
    assert "| T1 | sign only | reproduced where the paper leaves it open |" in text
    with pytest.raises(UsageError, match="nothing is known to be open"):
        sensitivity.axes([experiment], "ismm2021")
    with pytest.raises(UsageError, match=r"no setting caches\.l1"):
        sensitivity.under(experiment, {"caches.l1": 3})


def test_the_first_value_of_what_is_open_is_the_default() -> None:
    """What is said of it in so many words changes no run; defaults of schemes' sections are the engine's."""
    experiments = load_all()
    for paper in {axis.paper for one in experiments for axis in one.open}:
        axes = sensitivity.axes(experiments, paper)
        # Nor does what a machine does not have stand in its file.
        said = [axis for axis in axes if not axis.key.startswith("scheme.")]
        said = [axis for axis in said if axis.values[0] not in ([], 0)]
        default = {axis.key: axis.values[0] for axis in said}
        assert default
        for one in sensitivity.of_paper(experiments, paper):
            if any(series.machine == "mobile" for series in one.series.values()):
                continue  # of whose walkers the same paper says nothing either: its default is another
            for claim in one.claims:
                again = planning.needs_of(sensitivity.under(one, default), "small", claim).jobs
                first = planning.needs_of(one, "small", claim).jobs
                assert {job.key for job in again.values()} == {job.key for job in first.values()}, claim.id


def test_what_is_open_can_be() -> None:
    """The engine knows each machine and scheme that a setting makes."""
    experiments = load_all()
    tried = set()
    for paper in {axis.paper for one in experiments for axis in one.open}:
        for axis in sensitivity.axes(experiments, paper):
            for value, one in itertools.product(axis.values, sensitivity.of_paper(experiments, paper)):
                changed = sensitivity.under(one, {axis.key: value})
                needs = [planning.needs_of(changed, "small", claim) for claim in one.claims]
                jobs = [job for need in needs for job in need.jobs.values() if job.is_simulated]
                for kind, job in itertools.product(("machine", "scheme"), jobs):
                    asked = job.configuration[kind]
                    if (text := repr(asked)) not in tried:
                        tried.add(text)
                        assert engine.check(kind, asked) == [], (axis.key, value)
    assert tried


def test_a_size_that_is_open_changes_workload_and_span(experiment: Experiment) -> None:
    scale = replace(
        experiment.scales["small"],
        workloads=["gups:1GiB", "hashjoin:4GiB", "dense:1GiB", "graph500:1GiB:searches"],
        spans={"hashjoin:4GiB": 5_100_000_000, "graph500:1GiB:searches": 1000},
    )
    experiment = replace(experiment, scales={"small": scale})
    sizes = {"size.hashjoin": "1GiB", "size.graph500": "2GiB"}
    under = sensitivity.under(experiment, sizes).scales["small"]
    assert under.workloads == ["gups:1GiB", "hashjoin:1GiB", "dense:1GiB", "graph500:2GiB:searches"]
    assert under.span("hashjoin:1GiB") == 1_275_000_000
    assert under.span("graph500:2GiB:searches") == 2000
    assert under.span("gups:1GiB") == scale.instructions
    assert sensitivity.under(experiment, {"size.hashjoin": "4GiB"}).scales["small"] == scale


def test_what_is_open_of_workloads_is_for_those_that_have_it(
    monkeypatch: pytest.MonkeyPatch, experiment: Experiment
) -> None:
    gups = {"least_bytes": 4096, "greatest_bytes": 1 << 46, "power_of_two": True}
    known: list[dict[str, Any]] = [gups | {"name": "gups", "parameters": [{"name": "array_order"}]}]
    monkeypatch.setattr(engine, "workloads", lambda: known)
    selection = planning.Selection("main", "fpt", 0, "gups:1GiB")

    def source(setting: dict[str, Any]) -> dict[str, Any]:
        under = sensitivity.under(experiment, setting)
        found: dict[str, Any] = planning.job_of(under, "small", selection).request["source"]["workload"]
        return found

    assert source({"workload.array_order": "upwards"})["array_order"] == "upwards"
    known[0]["parameters"] = []
    assert source({"workload.array_order": "upwards"}) == source({})


RANKED = EXPERIMENT.replace('check = ["value", "order"]', 'check = ["ranked"]')
for _published in (", published = 8", ", published = 31.6"):
    RANKED = RANKED.replace(_published, "")


def test_an_order_without_figures_is_all_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "ranked.toml"
    path.write_text(RANKED)
    claim = load(path).claims[0]
    assert outcome(claim, 3.0, 3.5).verdict is Verdict.REPRODUCED
    assert outcome(claim, 3.0, 3.5, half=1.0).verdict is Verdict.UNDECIDED
    wrong = outcome(claim, 4.0, 3.5)
    assert (wrong.verdict, wrong.failed) == (Verdict.NOT, "Both is below FPT.")
    path.write_text(RANKED.replace('scheme = "fpt"', 'scheme = "fpt", published = 8'))
    with pytest.raises(UsageError, match="`ranked` is for figures that a paper does not give"):
        load(path)


def test_other_workloads_are_compared_one_by_one(tmp_path: Path) -> None:
    """As a mix with its program alone: the point names one, what is subtracted another."""
    path = tmp_path / "pairs.toml"
    path.write_text(
        EXPERIMENT.replace(
            'scheme = "fpt", published = 8',
            'scheme = "fpt", workload = "gups:2GiB", minus = { workload = "gups:1GiB" }, published = 8',
        )
    )
    paired = load(path)
    claim = paired.claims[0]
    cycles = {("fpt", 1): 800, ("fpt", 2): 500}
    results = {}
    for selection, job in planning.needs_of(paired, "small", claim).jobs.items():
        size = int(selection.workload.removeprefix("gups:")[0])
        results[job.key] = fake.run(selection.scheme, cycles=cycles.get((selection.scheme, size), 1000))
    found = judge(paired, claim, results)
    assert found.values[0].ours == pytest.approx(100 * (2.0 - 1.25))
    assert found.values[0].by_workload == {"gups:2GiB": pytest.approx(75.0)}
    text = EXPERIMENT.replace(
        'against = { scheme = "radix4" }', 'against = { scheme = "radix4", workload = "gups:1GiB" }'
    )
    path.write_text(text)
    uneven = load(path)
    needs = planning.needs_of(uneven, "small", uneven.claims[0])
    results = {job.key: fake.run() for job in needs.jobs.values()}
    with pytest.raises(UsageError, match="workloads are compared with each other"):
        judge(uneven, uneven.claims[0], results)


def test_figures_that_were_printed_are_read_from_their_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By hand: 100 k and 50 k instructions of `off`, 99 k and 48 k of `l4l3+l2l1`."""
    (kernel,) = (one for one in load_all() if one.name == "96-kernel")
    (claim,) = kernel.claims
    rows = [
        f"| {program} | {mode} | {phase} | 4 | 0 | {count} ({count / base:.3f}) |"
        for program in (name.removeprefix("kernel:") for name in kernel.scales["small"].workloads)
        for mode, counts in {"off": (100, 50), "l3l2": (99, 49), "l4l3+l2l1": (99, 48)}.items()
        for phase, count, base in zip(("loading", "running"), counts, (100, 50), strict=True)
    ]
    heads = ["| program | mode | phase | levels | timer | all |", "| --- | --- | --- | ---: | ---: | ---: |"]
    document = tmp_path / "full-system.md"
    document.write_text(
        "\n".join(["<!-- begin programs-causes -->", *heads, *rows, "<!-- end programs-causes -->"])
    )
    monkeypatch.setattr(printed, "RESULTS", tmp_path)
    jobs = planning.needs_of(kernel, "small", claim).jobs.values()
    assert not any(job.is_simulated for job in jobs)
    results = runs.simulate(jobs, cache.Store(tmp_path / "store"), 1, lambda *_: None)
    found = judge(kernel, claim, results)
    assert [value.ours for value in found.values] == pytest.approx(
        [-100 * 2 / 150, -100 * 3 / 150, -100 / 150]
    )
    assert found.verdict is Verdict.NOT_COMPARABLE, "other programs, other sizes"
    assert found.failed == "", "all of it is asked for and holds"
    first = {job.key for job in jobs}
    document.write_text(document.read_text().replace("48 (", "47 ("))
    assert first.isdisjoint({job.key for job in planning.needs_of(kernel, "small", claim).jobs.values()})
    document.write_text("nothing")
    with pytest.raises(FlatwalkError, match="nothing is printed of 'gups' for"):
        runs.simulate(
            planning.needs_of(kernel, "small", claim).jobs.values(), cache.Store(tmp_path), 1, lambda *_: None
        )
    document.unlink()
    lacking = judge(kernel, claim, {})
    assert lacking.verdict is Verdict.CANNOT
    assert lacking.failed.startswith("There is no figure: docs/results/full-system.md is not here")


def test_what_a_scale_cannot_decide_is_said(tmp_path: Path) -> None:
    path = tmp_path / "weak.toml"
    path.write_text(EXPERIMENT.replace('warmup = "50k"', 'warmup = "50k"\ncannot_show = "Caches are cold."'))
    weak = load(path)
    wide = verdicts.conclude(
        weak.claims[0],
        [Value(8.0, {}, 6.0, 10.0, 1.9), Value(31.6, {}, 31.0, 32.0, 0.1)],
        [exact(23.6)],
        "small",
    )
    (decided, why) = show.cannot_show(show.Report("small", "0", [(weak, [wide])]))
    assert decided == (
        "T1 is not decided by 1 figure: more windows would not help, as programs that we lack account for "
        "the interval."
    )
    assert why == "T1: Caches are cold."
    narrow = verdicts.conclude(
        weak.claims[0],
        [Value(8.0, {}, 6.0, 10.0, 0.1), Value(31.6, {}, 31.0, 32.0, 0.1)],
        [exact(23.6)],
        "small",
    )
    assert verdicts.undecided(narrow) == "1 figure: more windows may"
    assert verdicts.undecided(outcome(weak.claims[0], 8.0, 31.6)) == ""


def test_a_plan_says_what_is_missing_and_for_how_long(experiment: Experiment, tmp_path: Path) -> None:
    store = cache.Store(tmp_path / "store")
    jobs = list(planning.needs_of(experiment, "small", experiment.claims[0]).jobs.values())
    plan = runs.plan(jobs, store)
    assert (plan.wanted, plan.kept, plan.simulated) == (6, 0, 6 * 950_000)
    assert plan.passed == (1_000_000 - 950_000) + (2_000_000 - 950_000)
    store.put(jobs[0].key, {"walks": 0})
    less = runs.plan(jobs, store)
    assert (less.kept, less.simulated) == (1, 5 * 950_000)
    assert less.seconds < plan.seconds


def test_programs_of_a_mix_are_read_alone_too(tmp_path: Path) -> None:
    path = tmp_path / "mixed.toml"
    text = EXPERIMENT.replace('["gups:1GiB", "gups:2GiB"]', '["asplos-3:1GiB"]')
    path.write_text(text.replace('spans = { "gups:2GiB" = "2M" }\n', ""))
    mixed = load(path)
    jobs = planning.needs_of(mixed, "small", mixed.claims[0]).jobs.values()
    plan = runs.plan(jobs, cache.Store(tmp_path / "store"))
    assert (plan.wanted, plan.simulated) == (3, 3 * 4 * 4 * 150_000)
    # Four together, of which two are different.
    assert plan.passed == (4 + 2) * (1_000_000 - 600_000)


def test_a_rehearsal_begins_everything_and_keeps_nothing(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return fake.response([fake.run() for _ in request["runs"]])

    monkeypatch.setattr(engine, "_module", lambda: fake.Engine(answer))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = call("reproduce", "R4", "A1", "--scale", "paper", "--rehearse")
    assert result.code == 0, result.err
    assert "2 simulations can be run here" in result.out
    assert " GB of memory" in result.out
    assert sum(len(request["runs"]) for request in asked) == 2
    assert {request["instructions"] for request in asked} == {100_000}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--json", "--update", "--markdown", "--report"])
def test_a_rehearsal_writes_no_file(call: Call, tmp_path: Path, option: str) -> None:
    result = call("reproduce", "R4", "--rehearse", option, str(tmp_path / "file"))
    assert result.code == 2
    assert "a rehearsal has nothing to write" in result.err
    assert option in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["C1", "--json", "x.json"], "--sensitivity writes a table alone"),
        (["F1", "--report", "x.html"], "--sensitivity writes a table alone"),
        (["F1", "--against", "x.json"], "not held against another scale"),
        (["C1"], "none of the claims is of asplos2022"),
    ],
)
def test_joint_settings_are_refused_what_they_do_not_do(call: Call, words: list[str], said: str) -> None:
    result = call("reproduce", *words, "--sensitivity", "asplos2022", "--differ", "0", "--plan")
    assert (result.code, said in result.err) == (2, True), result.err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["R4", "--list"], "CLAIM"),
        (["--list", "--json", "x.json"], "--json"),
        (["--list", "--scale", "paper"], "--scale"),
        (["--list", "--plan"], "--plan"),
        (["--plan", "--json", "x.json"], "--json"),
        (["--plan", "--update", "x.json"], "--update"),
        (["--plan", "--markdown", "x.md"], "--markdown"),
        (["--plan", "--report", "x.html"], "--report"),
        (["--plan", "--against", "x.json"], "--against"),
        (["--plan", "--sensitivity", "asplos2022", "--markdown", "x.md"], "--markdown"),
        (["--rehearse", "--against", "x.json"], "--against"),
        (["--rehearse", "--plan"], "--plan"),
        (["--rehearse", "--sensitivity", "asplos2022"], "--sensitivity"),
        (["--differ", "1", "--plan"], "--differ"),
    ],
)
def test_no_option_is_passed_over(call: Call, tmp_path: Path, words: list[str], option: str) -> None:
    result = call("reproduce", *words)
    assert result.code == 2, result.err
    assert f"where:  {option}\n" in result.err, result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("stand_in")
def test_a_plan_alone_is_printed(call: Call, tmp_path: Path) -> None:
    result = call("reproduce", "R4", "--plan")
    assert (result.code, "simulations, of which" in result.out) == (0, True), result.err
    assert not (tmp_path / "flatwalk-claims.html").exists()


def test_the_other_scales_figures_are_not_replaced(call: Call) -> None:
    result = call("reproduce", "R4", "--against", "x.json", "--json", "x.json")
    assert (result.code, "read, and would be replaced" in result.err) == (2, True), result.err
