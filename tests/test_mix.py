from __future__ import annotations

import json
from contextlib import nullcontext
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from flatwalk import engine
from flatwalk.answer import judged
from flatwalk.comparison import mix, mixing, weighing
from flatwalk.definitions import settings
from flatwalk.errors import UsageError
from flatwalk.report.mix import render
from tests import fake

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from flatwalk.answer.results import Run, Sampling
    from tests.conftest import Result

    Flatwalk = Callable[..., Result]

SHORT = ["--instructions", "100k", "--warmup", "50k"]


@pytest.mark.parametrize("name", settings.names("mix"))
def test_every_mix_is_valid_and_fits_four_cores(name: str) -> None:
    found = settings.mix(name)
    assert found["name"] == name
    assert len(found["programs"]) == 4
    assert "ASPLOS 2022, table 2" in found["source"]


def test_mixes_are_named_scaled_or_listed() -> None:
    assert mix.programs("asplos-1")["programs"] == ["graphbig-dc:6758MiB"] * 4
    hashjoin, mummer = ["hashjoin-mitosis:64MiB"] * 2, ["mummer:64MiB"] * 2
    assert mix.programs("asplos-5:64MiB")["programs"] == hashjoin + mummer, "all have that one size"
    listed = mix.programs("2*gups:1GiB, random,runs/a.fwt")
    assert listed["programs"] == ["gups:1GiB", "gups:1GiB", "random", "runs/a.fwt"]
    assert mix.source(mix.programs("2*random:1.5MiB")["programs"][0])["workload"]["size_bytes"] == 3 << 19
    assert [mix.is_trace(name) for name in ("random:1.5MiB", "./random:1.fwt", "a.fwt", "random")] == [
        *(False, True, True, False)
    ]
    with pytest.raises(UsageError, match="not a number of programs"):
        mix.programs("many*gups")
    with pytest.raises(UsageError, match="there is no mix 'asplos-9'"):
        mix.programs("asplos-9")


def test_a_mixs_programs_have_sizes_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    programs = '["gups:2GiB", "random", "svm-url:1GiB:upwards", "runs/a.fwt"]'
    path.write_text(f'name = "mine"\ntitle = "Mine"\nsource = "none"\nprograms = {programs}\n')
    mine = mix.programs(str(path))
    assert mine["programs"] == ["gups:2GiB", "random", "svm-url:1GiB:upwards", "runs/a.fwt"]
    sources = [mix.source(program)["workload"] for program in mine["programs"][:3]]
    assert [one["size_bytes"] >> 20 for one in sources] == [2048, 1024, 1024]
    assert sources[2]["array_order"] == "upwards"
    # One size for all leaves the rest as it is.
    monkeypatch.setattr(settings, "mix", lambda _: {**mine, "programs": list(mine["programs"])})
    asked = ["gups:64MiB", "random:64MiB", "svm-url:64MiB:upwards", "runs/a.fwt"]
    assert mix.programs("mine:64MiB")["programs"] == asked
    assert mix.programs("mine:64MiB:downwards")["programs"][2] == "svm-url:64MiB:downwards"
    monkeypatch.undo()
    path.write_text(path.read_text().replace("2GiB", "2Gub"))
    with pytest.raises(UsageError, match="2Gub"):
        mix.source(mix.programs(str(path))["programs"][0])


def sampled(windows: int = 0, coverage: float | None = None, total: int | None = 1_000_000) -> Sampling:
    """What was measured of a program: so many windows, or all of it."""
    return {
        "sampled": bool(windows),
        "kernels_followed": False,
        "windows": windows or 40,
        "window_instructions": 1000,
        "warmup_instructions": 5000 if windows else 0,
        "first_instruction": 0,
        "instructions_total": total,
        "instructions_measured": 1000 * windows,
        "instructions_represented": 1_000_000,
        "coverage": coverage,
    }


def windowed(scheme: str, cycles: list[int], **changes: Any) -> Run:
    """A run of windows of 1000 instructions that take so many cycles."""
    made = fake.run(scheme, cycles=1000, **changes)
    made["ipc"] = 1000 * len(cycles) / sum(cycles)
    made["windows"] = [{"at": at, "instructions": 1000, "cycles": one} for at, one in enumerate(cycles)]  # type: ignore[typeddict-item]
    return made


def test_weighted_speed_up_by_hand() -> None:
    """Two programs with 1 and 4 instructions per cycle alone; the fake's IPC is 1000 over its cycles."""
    alone = {"a": fake.run(cycles=1000), "b": fake.run(cycles=250)}
    base = [fake.run(cycles=2000), fake.run(cycles=500)]  # half as fast each
    other = [fake.run("fpt", cycles=1000), fake.run("fpt", cycles=1000)]  # all of a, a quarter of b
    large = [fake.run(cycles=1250, large_pages=100), fake.run(cycles=312.5, large_pages=100)]  # type: ignore[arg-type]
    results = weighing.weigh(weighing.Weights(["a", "b"], alone), [base, other, large])
    assert [result["weighted_speedup"] for result in results] == pytest.approx([1.0, 1.25, 1.6])
    relative = [result["relative_weighted_speedup"] for result in results]
    assert relative == pytest.approx([1.0, 1.25, 1.0]), "each over the first at its own pages"
    assert all(result["weighted_speedup_low"] is None for result in results), "nothing is known"


def test_half_the_warm_up_is_tried_on_what_differs_most_from_the_first() -> None:
    """Not from a bound that came before it."""

    def of(scheme: str, speedup: float, over_bound: float) -> dict[str, Any]:
        figures = {"weighted_speedup": speedup, "relative_weighted_speedup": over_bound}
        return {"scheme": scheme, **figures, "cores": [fake.run(scheme)]}

    pair = mix._most_different([of("radix4", 0.8, 0.8), of("fpt", 0.88, 0.88), of("ecpt", 0.78, 0.78)])  # noqa: SLF001
    assert [one["scheme"] for one in pair] == ["radix4", "fpt"]
    none = mix._most_different([of("radix4", 0.0, 0.0), of("fpt", 0.88, 0.88)])  # noqa: SLF001
    assert [one["scheme"] for one in none] == ["radix4", "fpt"]


def test_what_programs_have_in_common_drops_out_of_a_mixs_interval() -> None:
    """Window by window one scheme is as much slower in both programs: the ratio is sure, the sums are not."""
    cycles = [1000, 3000, 1500, 2500, 1000, 4000, 2000, 1000]
    alone = {"a": windowed("radix4", cycles), "b": windowed("radix4", cycles)}
    base = [windowed("radix4", [2 * one for one in cycles])] * 2
    fpt = [windowed("fpt", [one * 8 // 5 for one in cycles])] * 2
    weights = weighing.Weights(["a", "b"], alone, [sampled(8, 0.008)] * 2)
    first, other = weighing.weigh(weights, [base, fpt])
    assert first["weighted_speedup"] == pytest.approx(1.0)
    assert first["relative_weighted_speedup_low"] == first["relative_weighted_speedup_high"] == 1.0
    bounds = [other[f"relative_weighted_speedup{end}"] for end in ("_low", "", "_high")]
    assert bounds == pytest.approx([1.25] * 3)
    # One program alone was measured over windows of its own, which are in no step with those of the mix.
    alone["b"] = windowed("radix4", cycles[::-1])
    first, other = weighing.weigh(weights, [base, fpt])
    low, high = (first[f"weighted_speedup_{end}"] for end in ("low", "high"))
    assert low < 0.95
    assert high > 1.05
    assert other["relative_weighted_speedup_high"] - other["relative_weighted_speedup_low"] < 1e-9
    # Its weight is known if all of it was measured.
    whole = weighing.Weights(["a", "b"], alone, [sampled(8, 0.008), sampled(0, 1.0)])
    assert whole.coverage == 0.008
    assert whole.windows == 8
    # In the mix it has as many windows as the others have, which are no sample of it.
    steady = windowed("radix4", [1000] * 8)
    whole = weighing.Weights(["a", "b"], {"a": steady, "b": windowed("radix4", cycles)}, whole.sampling)
    found = whole.ratio([steady, windowed("radix4", cycles[::-1])])
    assert found is not None
    assert found.low == found.high == found.value == pytest.approx(2.0)
    exact = weighing.Weights(["a", "b"], alone, [sampled(0, 1.0)] * 2).ratio(fpt, base)
    assert exact is not None
    assert exact.low == exact.high == exact.value == pytest.approx(1.25)


def test_intervals_of_a_mix_hold_what_they_say() -> None:
    """Of windows drawn at random from programs of 4000, 19 in 20 intervals hold the whole programs' ratio."""
    random = Random(5)
    length, held = 4000, 0
    course = [
        [max(200, random.gauss(1000 * (1 + program), 300)) for _ in range(length)] for program in (0, 1)
    ]
    slow = [[one * random.uniform(1.3, 1.5) for one in program] for program in course]
    fast = [[one * random.uniform(1.1, 1.4) for one in program] for program in course]

    def runs(of: list[list[float]], places: Sequence[int], scheme: str = "radix4") -> list[Run]:
        return [windowed(scheme, [program[at] for at in places]) for program in of]  # type: ignore[misc]

    everything = range(length)
    whole = weighing.Weights(["a", "b"], dict(zip("ab", runs(course, everything), strict=True)))
    true = whole.speedup(runs(fast, everything)) / whole.speedup(runs(slow, everything))
    for _ in range(200):
        places = [stretch * 200 + random.randrange(200) for stretch in range(20)]
        alone = dict(zip("ab", runs(course, places), strict=True))
        weights = weighing.Weights(["a", "b"], alone, [sampled(20, 20 / length)] * 2)
        found = weights.ratio(runs(fast, places, "fpt"), runs(slow, places))
        assert found is not None
        held += (found.low or 0) <= true <= (found.high or 0)
    assert 180 <= held <= 198, held


def mixed_answer(runs: list[list[Run]], alone: dict[str, Run], sampling: list[Sampling]) -> dict[str, Any]:
    weights = weighing.Weights(list(alone), alone, sampling)
    return {
        "version": "0",
        "mix": {"name": "mine", "title": "A & B", "source": "none", "programs": list(alone)},
        "alone": [{"program": program, **run} for program, run in alone.items()],
        "sampling": sampling,
        "bias": None,
        "runs": weighing.weigh(weights, runs),
    }


def test_the_report_has_each_scheme_and_each_program_in_it() -> None:
    alone = {"a": fake.run(cycles=1000), "traces/of/today/b.fwt": fake.run(cycles=250)}
    base = [fake.run(cycles=2000), fake.run(cycles=500)]
    other = [fake.run("fpt", cycles=1000), fake.run("fpt", cycles=1000)]
    page = render(mixed_answer([base, other], alone, [sampled(0, 1.0)] * 2))
    assert "A &amp; B" in page
    assert "fpt serves the programs together best: by weighted speed-up, 1.250, they are 25 % faster" in page
    assert "Judged: the whole runs of all programs." in page
    # A quarter more in all: all of a, a quarter of b.
    for name, change in [("fpt", "+25.0 %"), ("fpt, 1: a", "0.0 %"), ("fpt, 2: b.fwt", "−75.0 %")]:
        row = page[page.index(f'<th scope="row"><span class="row-name">{name}</span></th>') :]
        assert change in row[: row.index("</tr>")], name


@pytest.mark.parametrize(
    ("cycles", "words"),
    [
        ({}, "Only radix4 was run: add schemes to compare it with."),
        (
            {"fpt": 998},
            "No scheme makes a difference to the programs together: all are within ±0.5 % of radix4.",
        ),
        ({"fpt": 1100, "ideal": 500}, "No scheme serves the programs together better than radix4."),
        (
            {"fpt": 900, "fpt-nonf": 901},
            (
                "fpt serves the programs together best: by weighted speed-up, 1.111, they are 11 % faster "
                "than with radix4; fpt-nonf is within ±0.5 % of it."
            ),
        ),
    ],
)
def test_the_best_of_a_mix_is_best_by_more_than_noise(cycles: dict[str, int], words: str) -> None:
    runs = [[fake.run()], *([fake.run(scheme, cycles=number)] for scheme, number in cycles.items())]
    weights = weighing.Weights(["a"], {"a": fake.run()}, [sampled(0, 1.0)])
    assert weighing.words(weighing.weigh(weights, runs), weights) == words


def test_what_the_interval_leaves_open_is_not_decided() -> None:
    base = [1000, 1000, 1000, 1000]
    alone = {"a": windowed("radix4", base)}
    weights = weighing.Weights(["a"], alone, [sampled(4, 0.004)])

    def said(**schemes: list[int]) -> str:
        runs = [[windowed("radix4", base)], *([windowed(name, of)] for name, of in schemes.items())]
        return weighing.words(weighing.weigh(weights, runs), weights)

    words = said(fpt=[900, 1100, 850, 1050])
    assert words.startswith(
        "Whether a scheme serves the programs together better than radix4 is not decided. fpt: "
    )
    assert "more may decide" in words
    words = said(fpt=[800, 802, 798, 801], ecpt=[790, 815, 785, 812])
    assert words.startswith("fpt serves the programs together best")
    assert words.endswith("; whether ecpt is as good is not decided.")


class Engine:
    """In the engine's place: programs that are as fast and as long as they are told."""

    def __init__(self, ipc: dict[str, float], lengths: dict[str, int], recorded: dict[str, int]) -> None:
        self.ipc, self.lengths, self.recorded = ipc, lengths, recorded
        self.asked: list[dict[str, Any]] = []

    def simulate_mix(
        self, request: dict[str, Any], _progress: object
    ) -> tuple[list[list[Run]], list[Sampling]]:
        self.asked.append(request)
        names = [program["source"]["workload"]["name"] for program in request["programs"]]
        found = []
        for name, program in zip(names, request["programs"], strict=True):
            asked, windows = program["instructions"], program["sampling"]["windows"]
            there = min(self.lengths.get(name, asked) / asked, 1.0)
            made = min(int(windows * there), self.recorded.get(name, windows))
            found.append(sampled(made, made / 1000, self.lengths[name] if there < 1 else None))
        made = min(one["windows"] for one in found)
        runs = [
            [windowed(run["scheme"]["name"], [round(1000 / self.ipc[name])] * made) for name in names]
            for run in request["runs"]
        ]
        return runs, [
            {**one, "windows": made, "instructions_represented": 1000 * 1000 * made} for one in found
        ]


def test_programs_are_in_step_when_they_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fast` is four times as fast as `slow`, `short` ends after a quarter, and `few` has 30 windows."""
    standing = Engine({"fast": 2.0, "slow": 0.5, "short": 1.0, "few": 0.5}, {"short": 250_000}, {"few": 30})
    monkeypatch.setattr(engine, "simulate_mix", standing.simulate_mix)
    sampling = {"windows": 40, "window": 400_000, "warmup": 100_000, "after": 0}
    lengths = {"instructions": 1_000_000, "skip": 0, "warmup": 0, "sampling": sampling}
    names = ["fast", "slow", "short", "few", "fast"]
    requests = [{"source": {"workload": {"name": name}}, **lengths} for name in names]
    simulated = mixing.Mix(names, requests, 7, 1, lambda _what, _programs: nullcontext(lambda *_: None))
    runs = [{"scheme": settings.scheme(name)} for name in ("radix4", "fpt")]
    mixed = simulated.simulate(runs, runs[0])
    asked = [
        (program["source"]["workload"]["name"], program["instructions"], program["sampling"]["windows"])
        for request in standing.asked[:-1]
        for program in request["programs"]
    ]
    assert asked == [
        *[("fast", 1_000_000, 40), ("slow", 1_000_000, 40)],
        *[("short", 1_000_000, 40), ("short", 250_000, 40), ("few", 1_000_000, 40)],
        *[("fast", 1_000_000, 30), ("slow", 1_000_000, 30), ("short", 250_000, 30)],
    ], "each until it has as many windows as that with the fewest"
    assert [request["seed"] for request in standing.asked] == [7, 8, 9, 9, 10, 7, 8, 9, 7]
    assert mixed.most_windows == 35, "`fast` is read 400 k before each of its windows, of 850 k in 30 M"
    together = [program["sampling"] for program in standing.asked[-1]["programs"]]
    assert [one["windows"] for one in together] == [30] * 5
    assert [one["warmup"] for one in together] == [400_000, 100_000, 200_000, 100_000, 400_000]
    assert [one["after"] for one in together] == [1_350_000, 0, 450_000, 0, 1_350_000]
    assert list(mixed.alone) == ["fast", "slow", "short", "few"]
    assert all(len(run["windows"]) == 30 for run in [*mixed.alone.values(), *mixed.cores[1]])
    # Ten configurations of five programs are too many at once.
    del standing.asked[:]
    cores, measured = simulated.together(runs * 5, mixed.requests)
    assert [len(request["runs"]) for request in standing.asked] == [9, 1]
    assert (len(cores), len(measured)) == (10, 5)
    halves = mixing.halved(mixed.requests)
    assert [one["sampling"]["warmup"] for one in halves] == [200_000, 50_000, 100_000, 50_000, 200_000]


def test_what_was_judged_of_each_program_is_said() -> None:
    part = {**sampled(0, None), "windows": 40, "instructions_measured": 50_000}
    words = judged.mix_words(["a", "b", "a"], [sampled(20, 0.02), sampled(0, 1.0), sampled(20, 0.02)])
    assert words == (
        "Judged: 20 windows of each program together: a, of 1 k instructions after 5 k of warm-up, spread "
        "over the whole run of 1 M (2.0 % of it); b, the whole run of 0 instructions."
    )
    assert judged.mix_words(["a", "b"], [cast("Sampling", part), sampled(0, 1.0)]).startswith(
        "Judged: one part of each program, so no interval can be given: a, instructions 0 to 50 k; b, the "
    )
    cut = sampled(0, 1.0) | {"cut_short": "the trace was cut off"}
    assert judged.mix_words(["a"], [cut]).endswith(": a, all 0 instructions until the trace was cut off.")
    stopped = {**part, "cut_short": "the run was stopped by --time 2"}
    assert judged.mix_words(["a"], [cast("Sampling", stopped)]).endswith(
        ": a, instructions 0 to 50 k until the run was stopped by --time 2."
    )
    assert judged.mix_words(["a"], [cast("Sampling", part)]) == (
        "Judged: one part of each program, so no interval can be given: a, instructions 0 to 50 k."
    )


def test_a_mix_runs_and_says_how_much_faster(flatwalk: Flatwalk, tmp_path: Path) -> None:
    arguments = ["--mix", "2*gups:64MiB,random:64MiB", "--schemes", "radix4,fpt+ptp", "--large-pages", "0"]
    short = ["--instructions", "4M", "--windows", "6", "--window", "20k", "--warmup", "50k"]
    result = flatwalk("compare", *arguments, *short, "--json", "out.json")
    assert result.code == 0, result.err
    assert "weighted speed-up" in result.out
    assert "Judged: 6 windows of each program together: gups:64MiB, of 20 k instructions after" in result.out
    answer = json.loads((tmp_path / "out.json").read_text())
    assert answer["schema"] == "flatwalk-mix/2"
    assert [run["program"] for run in answer["alone"]] == ["gups:64MiB", "random:64MiB"]
    assert [run["scheme"] for run in answer["runs"]] == ["radix4", "fpt+ptp"]
    assert [one["windows"] for one in answer["sampling"]] == [6] * 3
    alone = {run["program"]: run["ipc"] for run in answer["alone"]}
    for run in answer["runs"]:
        names = [core["workload"] for core in run["cores"]]
        assert names == ["gups:64MiB", "gups:64MiB", "random:64MiB"]
        assert {core["seed"] for core in run["cores"]} == {1, 2, 3}
        assert all(len(core["windows"]) == 6 for core in run["cores"])
        assert all(abs(core["instructions"] - 120_000) < 200 for core in run["cores"])
        weights = [core["ipc"] / alone[core["workload"]] for core in run["cores"]]
        assert run["weighted_speedup"] == pytest.approx(sum(weights))
        assert run["weighted_speedup_low"] < run["weighted_speedup"] < run["weighted_speedup_high"]
    assert answer["bias"]["schemes"] == ["radix4", "fpt+ptp"]
    page = (tmp_path / "flatwalk-report.html").read_text()
    for reported in (
        "2*gups:64MiB,random:64MiB",
        "Weighted speed-up",
        "fpt+ptp, 3: random:64MiB",
        "gups:64MiB a",
        "6 windows of each program together",
    ):
        assert reported in page
    for run in answer["runs"]:
        assert f"{run['weighted_speedup']:.3f}" in page
    again = flatwalk("compare", *arguments, *short, "--json", "-", "--no-report")
    assert json.loads(again.out) == answer, "the same mix gives the same figures"


def test_a_mix_can_be_measured_as_one_part(flatwalk: Flatwalk) -> None:
    arguments = ["--mix", "2*gups:64MiB", "--schemes", "radix4", "--large-pages", "0", "--exhaustive"]
    result = flatwalk("compare", *arguments, *SHORT, "--json", "-", "--no-report")
    answer = json.loads(result.out)
    assert "one part of each program, so no interval can be given" in result.err
    (run,) = answer["runs"]
    assert run["weighted_speedup_low"] is None
    assert all(core["instructions"] >= 100_000 for core in run["cores"])


def test_more_windows_are_measured_until_a_mix_is_known_well_enough(flatwalk: Flatwalk) -> None:
    arguments = ["--mix", "gups:64MiB,random:64MiB", "--schemes", "radix4,fpt+ptp", "--large-pages", "0"]
    short = ["--instructions", "20M", "--windows", "4", "--window", "10k", "--warmup", "50k", "--error", "1%"]
    result = flatwalk("compare", *arguments, *short, "--json", "-", "--no-report")
    assert "±1 % is not reached" in result.err
    assert "All speed-ups are known to ±1 % or better." in result.err
    run = json.loads(result.out)["runs"][1]
    assert len(run["cores"][0]["windows"]) > 4
    half = run["relative_weighted_speedup_high"] - run["relative_weighted_speedup"]
    assert half <= 0.01


_CLOSE = (
    *("--mix", "2*gups:64MiB", "--schemes", "radix4,fpt+ptp", "--large-pages", "0", "--instructions", "5M"),
    *("--window", "50k", "--warmup", "800k", "--no-report"),
)


def test_windows_that_stand_too_close_are_to_be_fewer(flatwalk: Flatwalk) -> None:
    """Of 40 windows of 5 M instructions each has 25 k before it, and the least is 50 k."""
    result = flatwalk("compare", *_CLOSE, "--windows", "40")
    assert "The warm-up is too short" in result.err
    assert "try --windows 5, or more --instructions: the windows leave no room for all of it" in result.err
    assert "--warmup" not in result.err


def test_the_check_of_the_warm_up_has_as_much_memory(flatwalk: Flatwalk) -> None:
    """Each of four cores has 2 GiB, which 1 GiB of data and its table fit into, but not into a part of it."""
    short = ["--instructions", "2M", "--windows", "3", "--window", "10k", "--warmup", "50k"]
    own = ["--schemes", "radix4,fpt", "--large-pages", "0", "--set", "os.memory_bytes=8GiB", "--json", "-"]
    answer = json.loads(flatwalk("compare", "--mix", "2*gups:1GiB", *short, *own).out)
    assert answer["bias"]["schemes"] == ["radix4", "fpt"]


def test_an_error_asks_for_no_windows_that_shorten_warm_ups(flatwalk: Flatwalk) -> None:
    result = flatwalk("compare", *_CLOSE, "--windows", "3", "--error", "0.01%", "--json", "-")
    answer = json.loads(result.out)
    assert [one["windows"] for one in answer["sampling"]] == [5, 5]
    assert all(one["warmup_instructions"] >= 750_000 for one in answer["sampling"])
    assert "More than 5 windows leave no room for the warm-up before each; try more --instr" in result.err


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--mix", "5*gups:64MiB"], "4 cores"),
        (["--mix", "2*gups", "--machine", "skylake-server"], "1 cores"),
        (["--mix", "2*gups", "--workload", "gups"], "more than one thing"),
        (["--mix", "gups:4MiB", "--workload", "gups:4MiB"], "more than one thing"),
        (
            ["--mix", "2*gups:4MiB", "--schemes", "radix4,csalt", "--set", 'multicore.isolation="ways"'],
            'write "owners", or leave out the scheme\n  where:  --set multicore.isolation',
        ),
        (["--mix", "2*gups", "--mode", "functional"], "take time"),
        (["--mix", "2*gups", "--energy"], "energy is of one program's run"),
        (["--mix", "2*gups", "--time", "1"], "nothing to record"),
        (["--mix", "2*gups", "--keep-trace", "a.fwt"], "nothing to record"),
        (
            ["--mix", "gups:64MiB,chase:64MiB", "--skip", "20M", "--warmup", "0", "--instructions", "100k"],
            "nothing is left to measure of chase:64MiB",
        ),
        (["--mix", " , ,"], "' , ,' names no program"),
        (["--mix", "gups,none.fwt"], "flatwalk record -o none.fwt"),
        (["--mix", "gups,gusp"], "no workload 'gusp'\n  where:  --mix"),
    ],
)
def test_what_cannot_be_is_reported(flatwalk: Flatwalk, arguments: list[str], reported: str) -> None:
    result = flatwalk("compare", *arguments)
    assert result.code == 2
    assert reported in result.err
    assert "remedy" in result.err


def part(ipc: float, represented: int, warmup: int = 2_000_000) -> tuple[Run, Sampling, dict[str, Any]]:
    """A program alone: its speed, of how many instructions ten windows are, and what was asked for."""
    sampling = {**sampled(0, 1.0), "sampled": True, "windows": 10, "instructions_represented": represented}
    request = {"source": {"workload": {}}, "sampling": {"windows": 10, "window": 100_000, "warmup": warmup}}
    return {**fake.run(), "ipc": ipc}, cast("Sampling", sampling), request


def test_a_program_without_room_for_the_warm_up_is_named() -> None:
    asked, too_short = mixing.in_step({"a": part(1.0, 400_000_000), "b": part(2.0, 400_000_000)})
    assert too_short is None
    assert [one["sampling"]["warmup"] for one in asked.values()] == [2_000_000, 4_000_000]
    # No program is warmed for more than four times as long, however much room it has.
    asked, too_short = mixing.in_step({"a": part(0.1, 400_000_000), "b": part(1.0, 400_000_000)})
    assert too_short is None
    assert [one["sampling"]["warmup"] for one in asked.values()] == [800_000, 8_000_000]
    # Ten windows of 100 k in 4 M: 250 k are between two, with those that run with the clock.
    asked, too_short = mixing.in_step({"a": part(1.0, 400_000_000), "b": part(1.0, 4_000_000)})
    assert too_short == "b"
    assert [one["sampling"]["warmup"] for one in asked.values()] == [250_000, 250_000]


def test_a_program_that_is_measured_whole_leaves_the_others_their_warm_up() -> None:
    run, sampling, request = part(1.0, 1_000_000)
    asked, too_short = mixing.in_step(
        {"a": part(1.0, 400_000_000), "whole": (run, {**sampling, "sampled": False}, request)}
    )
    assert too_short is None
    assert asked["a"]["sampling"]["warmup"] == 2_000_000


def test_the_first_rounds_are_warmed_longer() -> None:
    found = {"a": part(1.0, 400_000_000), "b": part(2.0, 400_000_000)}
    asked, _ = mixing.in_step(found)
    assert [one["sampling"]["filling"] for one in asked.values()] == [16_000_000, 32_000_000]
    halves = mixing.halved(list(asked.values()))
    assert [one["sampling"]["filling"] for one in halves] == [8_000_000, 16_000_000]
    # One program by itself runs as it does alone.
    asked, _ = mixing.in_step({"a": found["a"]})
    assert asked["a"]["sampling"]["filling"] == 0


def test_a_program_alone_is_warmed_longer_than_together() -> None:
    _, _, request = part(1.0, 400_000_000)

    def longer(programs: list[str]) -> dict[str, Any]:
        return mixing.Mix(programs, [request], 1, 1, lambda *_: nullcontext(lambda *_: None)).longer(request)

    assert longer(["a", "b"])["sampling"]["warmup"] == mixing.ALONE_WARMUPS * 2_000_000
    assert request["sampling"]["warmup"] == 2_000_000
    assert longer(["a"]) == request


def test_one_program_runs_together_as_it_runs_alone(call: Callable[..., Result]) -> None:
    lengths = ["--instructions", "4M", "--windows", "20", "--window", "20k", "--warmup", "50k"]
    options = ["--schemes", "radix4", "--large-pages", "0", "--no-report", "--json", "-", *lengths]
    answer = json.loads(call("compare", "--mix", "1*gups:16MiB", *options).out)
    (run,) = answer["runs"]
    assert run["weighted_speedup"] == pytest.approx(1.0, abs=1e-12)
