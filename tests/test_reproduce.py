"""Claims: what experiments say, what is run for them, how figures become verdicts and a document."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk import cache, engine
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.reproduce import figures, planning, runs, show, verdicts
from flatwalk.reproduce.experiments import SCALES, Claim, Experiment, load, load_all
from flatwalk.reproduce.metrics import METRICS
from flatwalk.reproduce.verdicts import Value, Verdict
from flatwalk.vm import bench, build, components
from tests import fake

if TYPE_CHECKING:
    from collections.abc import Callable

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
warmup = "0"

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
                jobs = planning.jobs_of(experiment, scale, claim)
                assert jobs or len(planning.missing_of(experiment, claim)) == len(claim.points), claim.id
                assert all(len(job.key) == 64 for job in jobs.values())


@pytest.mark.parametrize("scale", SCALES)
def test_the_committed_table_is_what_the_experiments_and_figures_give(scale: str) -> None:
    """docs/results/reproduction*.md has its words from the experiments, its figures from the JSON."""
    complete = scale == "small"  # not all have been run at the papers' scale
    suffix = "" if complete else f"-{scale}"
    written = json.loads((RESULTS / f"reproduction{suffix}.json").read_text())
    experiments = load_all()
    report = show.from_json(written, experiments)
    found = [claim["id"] for claim in written["claims"]]
    known = [claim.id for experiment in experiments for claim in experiment.claims]
    assert found == [name for name in known if complete or name in found]
    assert json.loads(json.dumps(show.to_json(report))) == written
    document = (RESULTS / f"reproduction{suffix}.md").read_text()
    assert document == show.markdown(report, show.command(report, experiments))
    assert ("`flatwalk reproduce --scale" in document) == complete


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('metric = "speedup"', 'metric = "speed"', "no metric 'speed'"),
        ('average = "geomean"', 'average = "median"', "no average 'median'"),
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
        ('small = "Because."', "small = 3", "claim[1].why.small must be a text (it is 3)"),
        ('instructions = "1M"', 'instructions = "many"', "not understood"),
        ("[scale.paper]", "[scale.huge]", "scale.huge is not a known key; known here: small, paper"),
        ('id = "T1"\n', "", "claim[1].id is missing"),
        ('id = "T1"', "id = 1", "claim[1].id must be a text that is not empty (it is 1)"),
    ],
)
def test_a_wrong_experiment_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in EXPERIMENT
    path = tmp_path / "wrong.toml"
    path.write_text(EXPERIMENT.replace(old, new))
    with pytest.raises(UsageError) as raised:
        load(path)
    assert words in str(raised.value)
    assert "wrong.toml" in str(raised.value)


def test_one_reason_may_stand_for_all_scales(tmp_path: Path) -> None:
    path = tmp_path / "test.toml"
    path.write_text(EXPERIMENT.replace('{ small = "Because." }', '"Because."'))
    assert load(path).claims[0].why == {"small": "Because.", "paper": "Because."}


def test_a_job_is_known_by_all_that_decides_its_result(experiment: Experiment) -> None:
    claim = experiment.claims[0]
    small, paper = (planning.jobs_of(experiment, scale, claim) for scale in SCALES)
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
    jobs = list(planning.jobs_of(experiment, "small", experiment.claims[0]).values())
    seen: list[tuple[int, int | None]] = []
    with pytest.raises(KeyboardInterrupt):
        runs.simulate(jobs, store, 1, lambda *at: seen.append(at))
    kept = sorted((tmp_path / "store").iterdir())
    assert len(kept) == 3, "the first batch, and nothing half-written"
    assert (3_000_000, 6_000_000) in seen
    interrupted = False
    kept[0].write_text("{")  # what cannot be read is made anew
    assert len(runs.simulate(jobs, store, 1, lambda *_: None)) == 6
    assert sorted(calls) == [1 << 30, 1 << 30, 2 << 30, 2 << 30]
    assert sorted(len(request["runs"]) for request in stand_in.requests) == [1, 3, 3, 3]
    runs.simulate(jobs, store, 1, lambda *_: None)
    assert len(calls) == 4, "nothing is run twice"


def outcome(claim: Claim, *ours: float | None) -> verdicts.Outcome:
    return verdicts.conclude(claim, [Value(value, {"gups": value}) for value in ours], "small")


def test_verdicts(experiment: Experiment, tmp_path: Path) -> None:
    claim = experiment.claims[0]
    assert outcome(claim, 7.0, 32.64).verdict is Verdict.REPRODUCED, "32.6 is shown, and within 1"
    assert outcome(claim, 7.0, 32.66).verdict is Verdict.EXPLAINED
    wrong = outcome(claim, 40.0, 31.6)
    assert wrong.verdict is Verdict.EXPLAINED
    assert wrong.why.startswith(
        "FPT is outside the tolerance; the order is both < FPT, not FPT < both. Because."
    )
    assert outcome(claim, None, 31.6).why.startswith("FPT has no figure")
    path = tmp_path / "bare.toml"
    path.write_text(EXPERIMENT.replace('why = { small = "Because." }', ""))
    assert outcome(load(path).claims[0], 0.0, 31.6).verdict is Verdict.NOT
    signs = EXPERIMENT.replace('check = ["value", "order"]', 'check = ["sign", "ratio"]')
    path.write_text(signs.replace("published = 8 ", "published = -8 "))
    other = load(path).claims[0]
    assert outcome(other, -1.0, 4.0).verdict is Verdict.REPRODUCED
    assert "Both is -4.50 of FPT, published -3.95" in outcome(other, -1.0, 4.5).why
    assert "FPT has the other sign" in outcome(other, 1.0, 4.0).why
    path.write_text(EXPERIMENT.replace('scheme = "fpt+ptp"', 'scheme = "no-such-scheme"'))
    lacking = load(path)
    jobs = planning.jobs_of(lacking, "small", lacking.claims[0])
    found = verdicts.judge(
        lacking, "small", lacking.claims[0], {job.key: fake.run() for job in jobs.values()}
    )
    assert found.verdict is Verdict.CANNOT
    assert found.why == "This version has no scheme no-such-scheme."
    assert [value.ours for value in found.values] == [0.0, None]
    path.write_text(EXPERIMENT.replace("published = 8 ", "range = [6, 8] "))
    ranged = load(path).claims[0]
    assert outcome(ranged, 5.0, 31.6).verdict is Verdict.REPRODUCED
    assert outcome(ranged, 4.9, 31.6).verdict is Verdict.EXPLAINED


def test_a_claim_about_many_processes_needs_a_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (experiment,) = (one for one in load_all() if one.name == "95-guest")
    (claim,) = experiment.claims

    def find(component: components.Component) -> Path:
        raise FlatwalkError(f"{component.name} is not built", remedy="run: flatwalk vm build")

    monkeypatch.setattr(build, "find", find)
    assert planning.jobs_of(experiment, "small", claim) == {}
    found = verdicts.judge(experiment, "small", claim, {})
    assert found.verdict is Verdict.CANNOT
    assert found.why == "There is no guest: qemu is not built; run: flatwalk vm build."

    asked = []

    def oversubscribe(modes: list[str], swaps_percent: list[int]) -> list[bench.Crowd]:
        asked.append((modes, swaps_percent))
        return [bench.Crowd(modes[0], swap, 200 - 2 * swap, 2 * swap) for swap in swaps_percent]

    monkeypatch.setattr(build, "find", lambda _: tmp_path)
    monkeypatch.setattr(bench, "oversubscribe", oversubscribe)
    jobs = planning.jobs_of(experiment, "small", claim).values()
    for _ in range(2):  # what was found is kept
        results = runs.simulate(jobs, cache.Store(tmp_path), 1, lambda _done, _total: None)
        assert asked == [(["l3l2"], [6]), (["l3l2"], [50])]
    found = verdicts.judge(experiment, "small", claim, results)
    assert [value.ours for value in found.values] == [6.0, 50.0]
    assert found.verdict is Verdict.EXPLAINED


def test_figures_come_from_the_runs_that_a_point_names(experiment: Experiment) -> None:
    claim = experiment.claims[0]
    jobs = planning.jobs_of(experiment, "small", claim)
    cycles = {"radix4": 1000, "fpt": 925, "fpt+ptp": 760}
    results = {}
    for selection, job in jobs.items():
        doubled = 2 if selection.workload == "gups:2GiB" and selection.scheme != "radix4" else 1
        results[job.key] = fake.run(selection.scheme, cycles=cycles[selection.scheme] * doubled)
    found = verdicts.judge(experiment, "small", claim, results)
    first = found.values[0]
    assert first.by_workload["gups:1GiB"] == pytest.approx(100 * (1000 / 925 - 1))
    assert first.by_workload["gups:2GiB"] == pytest.approx(100 * (1000 / 1850 - 1))
    assert first.ours == pytest.approx(100 * (math.sqrt(1000 / 925 * 1000 / 1850) - 1))


def test_a_mix_is_weighed_by_its_programs_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mixed.toml"
    text = EXPERIMENT.replace('["gups:1GiB", "gups:2GiB"]', '["asplos-3:1GiB"]')
    path.write_text(text.replace('"skylake-server"', '"skylake-server-4core"'))
    mixed = load(path)
    asked: list[dict[str, Any]] = []

    def answer(request: dict[str, Any], _progress: object) -> list[list[Any]]:
        asked.append(request)
        cycles = {"radix4": 1000, "fpt": 500, "fpt+ptp": 250}
        return [
            [fake.run(item["scheme"]["name"], cycles=cycles[item["scheme"]["name"]])]
            * len(request["sources"])
            for item in request["runs"]
        ]

    monkeypatch.setattr(engine, "simulate_mix", answer)
    jobs = planning.jobs_of(mixed, "small", mixed.claims[0])
    results = runs.simulate(jobs.values(), cache.Store(tmp_path / "store"), 1, lambda *_: None)
    assert [len(request["sources"]) for request in asked] == [1, 1, 4], "two programs alone, then all"
    assert [request["seed"] for request in asked] == [1, 3, 1], "as its first core has in the mix"
    found = verdicts.judge(mixed, "small", mixed.claims[0], results)
    assert [value.ours for value in found.values] == pytest.approx([100.0, 300.0])


def test_interpolated_speedup_saves_what_the_accesses_save() -> None:
    """Accesses halve, translation costs half of the time: a quarter of the time goes."""
    run, base, bound = (
        fake.run(per_walk=1.0),
        fake.run(per_walk=2.0, cycles=1000),
        fake.run("ideal", cycles=500),
    )
    assert METRICS["interpolated_speedup"].of(run, base, bound) == pytest.approx(1 / 0.75)


def test_a_report_survives_its_json(experiment: Experiment) -> None:
    report = show.Report("small", "0.0.0", [(experiment, [outcome(experiment.claims[0], 7.04, -0.04)])])
    written = json.loads(json.dumps(show.to_json(report)))
    again = show.from_json(written, [experiment])
    assert json.loads(json.dumps(show.to_json(again))) == written
    text = show.markdown(report, "flatwalk reproduce")
    assert "| T1 | Faster. | Park et al., ASPLOS 2022: nowhere | FPT +8 %<br>both +31.6 % |" in text
    assert "| FPT +7.0 %<br>both 0.0 % |" in text
    page = figures.html(report)
    assert "FPT, ours" in page
    assert "FPT, published" in page
    assert page.count("<script") == 1, "the page's own"


def test_a_bar_reaches_from_zero_to_its_figure(experiment: Experiment) -> None:
    drawn = figures.chart(outcome(experiment.claims[0], -10.0, 30.0))
    span = 31.6 + 10.0
    assert drawn.origin == pytest.approx(10 / span)
    bars = [
        (row.segments[0].start * span - 10, row.segments[0].length * span) for row in drawn.panels[0].rows
    ]
    assert bars == [pytest.approx(bar) for bar in [(-10, 10), (0, 8), (0, 30), (0, 31.6)]]


def test_the_command_runs_prints_and_writes(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in = fake.Engine(lambda request: fake.response([fake.run() for _ in request["runs"]]))
    monkeypatch.setattr(engine, "_module", lambda: stand_in)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = call("reproduce", "r4", "--json", "out.json", "--markdown", "out.md")
    assert result.code == 0, result.err
    assert "1 claims: 1 not reproduced." in result.out
    assert json.loads((tmp_path / "out.json").read_text())["claims"][0]["id"] == "R4"
    assert "| R4 |" in (tmp_path / "out.md").read_text()
    assert (tmp_path / "flatwalk-claims.html").is_file()
    assert call("reproduce", "R9").code == 2
    assert "there is no claim R9" in call("reproduce", "R9").err
    assert "there is no scale" in call("reproduce", "--scale", "large").err
    assert "Speed-up with 4 KiB pages" in call("reproduce", "--list").out


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
    ):
        file.write_text(whole.replace(old, new, 1))
        failed = reproduce("R3")
        assert failed.code == 2
        assert words in failed.err
        assert "--json" in failed.err
        assert file.read_text() == whole.replace(old, new, 1), "it stays as it was"


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
