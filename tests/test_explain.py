from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, cast

import pytest

from flatwalk.answer import across, causes, judged, twins
from flatwalk.answer.differences import Difference, speed_words, spread
from flatwalk.answer.explain import explain
from flatwalk.answer.intervals import Estimate
from flatwalk.answer.results import add_speedups, lost_to_translation
from flatwalk.comparison import presenting
from tests import fake

if TYPE_CHECKING:
    from flatwalk.answer.explain import Answer
    from flatwalk.answer.results import Response, Run


def _explain(*runs: Run, **more: Any) -> Answer:
    """The answer to runs without windows."""
    add_speedups(list(runs))
    return explain(cast("Response", fake.response(list(runs)) | more))


def _points(answer: Answer) -> list[str]:
    return [point.words for point in answer.points]


def _lines(answer: Answer, group: int = 0) -> dict[str, str]:
    return {", ".join(run["scheme"] for run in line.runs): line.words for line in answer.groups[group].lines}


def _ideal(cycles: int, scheme: str = "ideal") -> Run:
    return fake.run(scheme, cycles=cycles, per_walk=None, reading=None, waiting=None)


def test_the_verdict_comes_in_the_order_of_the_questions() -> None:
    answer = explain(fake.sample(fake.gups(0) + fake.gups(100)))
    topics = [point.topic for point in answer.points]
    assert topics == [
        "Huge pages",
        "Page-table design at 4 KiB pages",
        "Page-table design at 2 MiB pages",
        "Page-table priority at 4 KiB pages",
        "Page-table priority at 2 MiB pages",
        "A fifth level at 4 KiB pages",
        "A fifth level at 2 MiB pages",
        "All together at 4 KiB pages",
        "All together at 2 MiB pages",
    ]
    said = dict(zip(topics, _points(answer), strict=True))
    assert said["Huge pages"].startswith(
        "Huge pages: 2 MiB pages make radix4 33 % faster than 4 KiB pages (33 to 34 %); of the 33 %, "
    )
    assert said["Page-table design at 4 KiB pages"].startswith(
        "Page-table design at 4 KiB pages: fpt is best, 8.1 % faster than radix4 ("
    )
    priority = said["Page-table priority at 4 KiB pages"]
    assert "radix4+ptp is 25 % faster than radix4 (" in priority
    assert "; fpt+ptp is 22 % faster than fpt (" in priority
    assert "radix5" in said["A fifth level at 4 KiB pages"]
    together = said["All together at 4 KiB pages"]
    assert (
        "fpt+ptp is best, 32 % faster than radix4 (31 to 32 %); free translation (ideal) would be" in together
    )
    assert together.endswith("so fpt+ptp gets 32 % (31 to 33 %) of what can be had.")


def test_without_windows_there_are_no_intervals_and_no_doubt_is_made_up() -> None:
    answer = _explain(fake.run("radix4"), fake.run("radix5", cycles=1001), fake.run("fpt", cycles=925))
    assert _points(answer) == [
        "Page-table design at 4 KiB pages: fpt is best, 8.1 % faster than radix4.",
        "A fifth level at 4 KiB pages: radix5 is within ±0.5 % of radix4.",
        "All together at 4 KiB pages: fpt is best, 8.1 % faster than radix4.",
    ]
    assert answer.judged == (
        "Judged: instructions 200 k to 1.2 M, one part. "
        "What came before and after it is not judged, so no interval can be given."
    )


def test_schemes_that_cannot_be_told_apart_are_not_ranked() -> None:
    cycles = {"radix4": 1000, "radix3": 1001, "radix5": 999, "fpt": 900, "fpt-nonf": 899, "fpt-l2l1": 1200}
    lines = _lines(_explain(*(fake.run(name, cycles=number) for name, number in cycles.items())))
    assert list(lines) == ["radix4", "fpt-nonf, fpt", "radix3, radix5", "fpt-l2l1"]
    assert lines["radix3, radix5"] == "within ±0.5 % of radix4"
    assert lines["fpt-nonf, fpt"] == "fpt-nonf 11 % faster; fpt within ±0.5 % of it"
    assert lines["fpt-l2l1"] == "17 % slower"


def test_the_baseline_says_what_the_machine_prefetched() -> None:
    words = "brought 10 lines, of which 9 were used (0 % while still on their way) and 1 went unused"
    runs = [fake.run("radix4"), fake.run("fpt", cycles=925)]
    assert "prefetcher" not in _lines(_explain(*runs))["radix4"]
    for run in runs:
        run["prefetchers"] = [{"cache": "L1D", "kind": "next_line", "words": words}]  # type: ignore[typeddict-item]
    assert _lines(_explain(*runs))["radix4"].endswith(f"; L1D's prefetcher next_line {words}")


def test_a_loss_is_told_though_nothing_is_gained() -> None:
    cycles = {"radix4": 1000, "fpt-l3l2": 1001, "fpt": 1112, "fpt-nonf": 1111}
    (point,) = _explain(*(fake.run(name, cycles=number) for name, number in cycles.items())).points
    assert point.words == (
        "Page-table design at 4 KiB pages: none is faster than radix4; fpt is 10 % slower; "
        "fpt-nonf is within ±0.5 % of it."
    )


def test_what_is_not_decided_says_what_would_decide() -> None:
    response = fake.sample([fake.run("radix4"), fake.run("fpt", cycles=990)], own=0.05)
    (point,) = explain(response).points
    assert point.words == (
        "Page-table design at 4 KiB pages: none is shown to be faster than radix4; "
        "fpt not decided: between 1.3 % slower and 3.4 % faster; 176 windows more may decide."
    )
    few = fake.sample([fake.run("radix4"), fake.run("fpt", cycles=996)], own=0.2, total=1_100_000)
    assert "only measuring the whole run would decide" in explain(few).points[0].words


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.9960, 1.0054, "between 0.40 % slower and 0.54 % faster"),
        (0.9940, 1.0049, "between 0.6 % slower and 0.5 % faster"),
        (1.0010, 1.00502, "0.100 to 0.502 % faster"),
    ],
)
def test_a_bound_beyond_the_threshold_is_not_rounded_to_it(low: float, high: float, words: str) -> None:
    """±0.5 % counts as no difference: an end that is shown as 0.5 % has to be within."""
    found = Difference(fake.run(), fake.run(), Estimate((low + high) / 2, low, high), True, 40, 0.01)  # noqa: FBT003
    assert found.words.startswith(f"not decided: {words}")


def test_what_has_no_walks_has_no_figure_of_a_walk() -> None:
    base, other = fake.run("radix4"), fake.run("ideal", cycles=500, per_walk=None)
    fake.stack(base, walk_dram=0.5)
    fake.stack(other, walk_dram=0.0)
    words = causes.words(other, base)
    assert "0 instead of 100 walks per 1000 instructions" in words
    assert "accesses a walk" not in words


def test_causes_sum_to_the_difference() -> None:
    """Bug of old: page faults of 1.8 % were given as the cause of 13 %."""
    base, other = fake.run("radix4", cycles=1000), fake.run("fpt", cycles=1149)
    fake.stack(base, walk_dram=0.1, page_faults=0.02, system_calls=0.01)
    fake.stack(
        other,
        walk_dram=100 / 1149,
        page_faults=(20 + 23) / 1149,
        system_calls=(10 + 126) / 1149,
    )
    base["os"]["faults"], other["os"]["faults"] = 10, 300
    lines = _lines(_explain(base, other))
    assert lines["fpt"] == (
        "13 % slower; of the 13 %, 11 are system calls for memory, 2 page faults; "
        "300 instead of 10 page faults"
    )


def test_a_part_against_the_result_is_told_with_it() -> None:
    base, other = fake.run("radix4"), fake.run("radix4+ptp", cycles=800, reading=50.0, dram=0.05)
    fake.stack(base, walk_dram=0.5, data_dram=0.2)
    fake.stack(other, walk_dram=0.27 / 0.8, data_dram=0.23 / 0.8)
    other["caches"][0]["data_misses"] = 70_000
    said = _lines(_explain(base, other))["radix4+ptp"]
    assert said == (
        "25 % faster; of the 25 %, 29 are walk entries from DRAM, less 4 for data from DRAM; "
        "0.12 instead of 1.00 accesses a walk go to DRAM, data misses the LLC 40 % more often"
    )


def test_counts_that_went_the_other_way_are_no_cause() -> None:
    base, other = fake.run("radix4"), fake.run("fpt", cycles=900, per_walk=3.0, dram=0.9)
    fake.stack(base, walk_dram=0.5)
    fake.stack(other, walk_dram=0.4 / 0.9)
    assert _lines(_explain(base, other))["fpt"] == "11 % faster; all of it walk entries from DRAM"


def test_without_a_stack_no_cause_is_guessed() -> None:
    base, other = fake.run("radix4"), fake.run("fpt", cycles=900, per_walk=1.0)
    assert _lines(_explain(base, other))["fpt"] == "11 % faster"
    fake.stack(base, walk_dram=0.5)
    assert _lines(_explain(base, other))["fpt"] == "11 % faster"
    fake.stack(other, walk_dram=0.4)
    other["cycle_stack"][0]["cycles"] += 1
    assert _lines(_explain(base, other))["fpt"] == "11 % faster", "its parts do not sum to its cycles"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (0.092, "9.2 % faster"),
        (-0.12, "12 % slower"),
        (0.0049, "no difference"),
        (-0.0049, "no difference"),
        (0.0051, "0.5 % faster"),
    ],
)
def test_small_differences_are_none_and_losses_are_losses(change: float, words: str) -> None:
    assert speed_words(change) == words


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.6, 0.66, "60 to 66 %"),
        (0.077, 0.086, "7.7 to 8.6 %"),
        (0.0912, 0.1088, "9.1 to 10.9 %"),
        (0.628, 0.631, "62.8 to 63.1 %"),
    ],
)
def test_intervals_have_as_many_digits_as_they_need(low: float, high: float, words: str) -> None:
    assert spread(low, high) == words


# Contradictions that were seen once.


def test_nothing_to_gain_from_tables_is_not_nothing_to_gain() -> None:
    small = [fake.run("radix4"), fake.run("fpt", cycles=1001), _ideal(999)]
    large = [fake.run("radix4", cycles=870, large_pages=100), fake.run("fpt", cycles=870, large_pages=100)]
    assert _points(_explain(*small, *large)) == [
        "Huge pages: 2 MiB pages make radix4 15 % faster than 4 KiB pages.",
        (
            "Page-table design at 4 KiB pages: makes no difference: fpt is within ±0.5 % of radix4 "
            "(translation takes 0.1 % of the time); free translation (ideal) would make no difference."
        ),
        "Page-table design at 2 MiB pages: makes no difference: fpt is within ±0.5 % of radix4.",
    ]


def test_a_gain_beside_a_bound_without_one() -> None:
    said = _points(_explain(fake.run("radix4"), fake.run("fpt", cycles=994), _ideal(999)))
    assert said == [
        (
            "Page-table design at 4 KiB pages: fpt is best, 0.6 % faster than radix4; "
            "free translation (ideal) would make no difference, so the gain is not one of translation."
        )
    ]
    said = _points(_explain(fake.run("radix4"), fake.run("fpt", cycles=900), _ideal(980)))
    assert said[0].endswith(
        "free translation (ideal) would be 2.0 % faster, less than that: "
        "part of the gain is not one of translation."
    )


def test_a_scheme_beside_the_bound_alone() -> None:
    assert _points(_explain(fake.run("radix4"), _ideal(600))) == [
        (
            "All together at 4 KiB pages: free translation (ideal) would be 67 % faster; "
            "add schemes to see how much of that they get."
        )
    ]
    assert _points(_explain(fake.run("radix4"))) == [
        "All together at 4 KiB pages: only radix4 was run: add schemes to compare it with."
    ]


def test_the_bound_as_baseline() -> None:
    """Everything is compared with the first scheme that can be built."""
    answer = _explain(_ideal(600), fake.run("radix4"), fake.run("fpt", cycles=900))
    assert _points(answer) == [
        (
            "Page-table design at 4 KiB pages: fpt is best, 11 % faster than radix4; "
            "free translation (ideal) would be 67 % faster, so fpt gets 17 % of what can be had."
        )
    ]
    assert _lines(answer)["radix4"].startswith("what the others are compared with: 40 % of its time is lost")
    assert _lines(answer)["ideal"] == "67 % faster: the bound, with translation free"


def test_nothing_is_timed_in_functional_mode() -> None:
    runs = [fake.run("radix4", cycles=None), fake.run("fpt", cycles=None, per_walk=1.0)]
    runs += [fake.run("radix4", cycles=None, large_pages=100, walks=10_000)]
    answer = _explain(*runs)
    assert [run["speedup"] for run in runs] == [None, None, None]
    assert _points(answer)[:2] == [
        "Huge pages: with 2 MiB pages radix4's walks make 90 % fewer accesses than with 4 KiB pages.",
        "Page-table design at 4 KiB pages: fpt is best, its walks make 60 % fewer accesses than radix4's.",
    ]
    assert _lines(answer)["fpt"] == "walks make 60 % fewer accesses: 1.00 instead of 2.49 a walk"


def test_runs_without_walks_are_no_trouble() -> None:
    for cycles in (1000, None):
        runs = [
            fake.run(name, cycles=cycles, per_walk=None, reading=None, waiting=None)
            for name in ("radix4", "fpt")
        ]
        answer = _explain(*runs)
        assert answer.groups[0].lines


def test_what_mechanisms_did_is_said_with_the_verdict() -> None:
    base, other, same = fake.run("radix4"), fake.run("fpt", cycles=900), fake.run("radix3", cycles=1001)
    other["mechanism_words"] = ["the buffer had half", "it was busy"]
    same["mechanism_words"] = ["nothing was found"]
    lines = _lines(_explain(base, other, same))
    assert lines["fpt"].endswith("; the buffer had half and it was busy")
    assert lines["radix3"] == "within ±0.5 % of radix4; radix3: nothing was found"
    assert "buffer" not in lines["radix4"]


def test_other_shares_of_large_pages_have_names() -> None:
    runs = [fake.run("radix4"), fake.run("radix4", cycles=900, large_pages=50)]
    runs.append(fake.run("radix4", cycles=800, thp="always"))
    assert _points(_explain(*runs))[:2] == [
        "Huge pages: 50 % of memory on 2 MiB pages makes radix4 11 % faster than 4 KiB pages.",
        "Huge pages: THP always makes radix4 25 % faster than 4 KiB pages.",
    ]


def test_every_mechanism_is_compared_with_the_scheme_without_it() -> None:
    said = _points(
        _explain(fake.run("radix4"), fake.run("pom-tlb", cycles=950), fake.run("fpt+ptp", cycles=800))
    )
    assert said == [
        "POM TLB at 4 KiB pages: pom-tlb is 5.3 % faster than radix4.",
        "All together at 4 KiB pages: fpt+ptp is best, 25 % faster than radix4.",
    ]
    assert [twins.title(key) for key in ("page_table_priority", "csalt", "direct_segment")] == [
        "Page-table priority",
        "CSALT",
        "Direct segment",
    ]


def test_data_that_arrives_earlier_because_walks_are_shorter() -> None:
    """Where loads overlap, the core waits for the data when the walks before it are long over."""
    base, other = fake.run("radix4"), fake.run("radix4+ptp", cycles=800, reading=50.0)
    fake.stack(base, data_dram=0.8)
    fake.stack(other, data_dram=0.75)
    assert _lines(_explain(base, other))["radix4+ptp"] == (
        "25 % faster; all of it data from DRAM; "
        "walks, which data waits for, take 63.0 instead of 108.0 cycles"
    )


def test_the_cores_that_were_busy_are_said() -> None:
    def core(idle: int, threads: int = 1) -> Any:
        stack = [{"part": "base", "cycles": 100 - idle}, {"part": "idle", "cycles": idle}]
        return {"threads": threads, "cycle_stack": stack}

    run: Any = {"scheme": "radix4", "cycles": 100, "threads": 3, "cores": [core(0), core(50), core(100, 0)]}
    words = judged._cores_words(run)  # noqa: SLF001
    assert words == [
        "Its 3 threads ran on 2 simulated cores, of which 1.5 were busy on average (with radix4)."
    ]
    # SimPoint's weights have a part in the run's stack alone.
    stack = [{"part": "base", "cycles": 9}, {"part": "idle", "cycles": 1}]
    weighted = run | {"weighted": True, "cycles": 10, "cycle_stack": stack, "cores": [core(0), core(50)]}
    assert "of which 1.8 were busy" in judged._cores_words(weighted)[0]  # noqa: SLF001
    assert judged._cores_words(run | {"cores": [core(0)]}) == ["Its 3 threads ran on 1 simulated core."]  # noqa: SLF001
    assert judged._cores_words(run | {"threads": 1, "cores": [core(0)]}) == []  # noqa: SLF001


def test_rivals_that_cannot_be_told_apart_from_the_best_are_named() -> None:
    """Bug of old: another scheme was faster in the table, and nothing was said of it."""
    response = fake.sample(
        [
            fake.run("radix4"),
            fake.run("fpt", cycles=900),
            fake.run("fpt-nonf", cycles=893),
            fake.run("fpt-l3l2", cycles=960),
        ],
        own=0.002,
    )
    # What varies by itself has a wider interval, and is worth less for certain.
    wide = response["runs"][2]
    for number, window in enumerate(wide["windows"]):
        window["cycles"] = round((window["cycles"] or 0) * (1 + 0.04 * (-1) ** number))
    add_speedups(response["runs"], response["sampling"])
    speedups = {run["scheme"]: run["speedup"] or 0 for run in response["runs"]}
    assert speedups["fpt-nonf"] > speedups["fpt"]
    (point,) = explain(response).points
    assert "fpt is best, 11 % faster than radix4" in point.said
    assert point.said.endswith("; whether fpt-nonf is as good is not decided")
    same = explain(
        fake.sample([fake.run("radix4"), fake.run("fpt", cycles=900), fake.run("fpt-nonf", cycles=950)])
    )
    assert "not decided" not in same.points[0].said


def test_a_gain_above_the_bound_for_certain_alone_is_not_one_of_translation() -> None:
    runs = [fake.run("radix4"), fake.run("fpt", cycles=899), _ideal(900)]
    said = explain(fake.sample(runs, own=0.02)).points[0].said
    assert said.endswith("free translation (ideal) would be 11 % faster (10 to 12 %), no more than fpt")
    runs = [fake.run("radix4"), fake.run("fpt", cycles=850), _ideal(900)]
    said = explain(fake.sample(runs, own=0.005)).points[0].said
    assert said.endswith("less than that: part of the gain is not one of translation")
    # Half a per cent of the gain may be one of translation.
    runs = [fake.run("radix4"), fake.run("fpt", cycles=994), _ideal(996)]
    assert explain(fake.sample(runs, own=0.0001)).points[0].said.endswith("(ideal) would make no difference")
    runs = [fake.run("radix4"), fake.run("fpt", cycles=980), _ideal(996)]
    said = explain(fake.sample(runs, own=0.0001)).points[0].said
    assert said.endswith("would make no difference, so the gain is not one of translation")


def test_the_bound_of_a_guest_is_free_translation_in_a_guest() -> None:
    """What the host's page faults take is in both, and is no cost of translation."""
    runs = [
        fake.run("radix4"),
        fake.run("virt-radix4", cycles=2000),
        _ideal(1500, "virt-ideal"),
        _ideal(500),
    ]
    for order in itertools.permutations(runs):
        every = list(order)
        shares = {run["scheme"]: lost_to_translation(run, every) for run in every}
        assert shares == {"radix4": 0.5, "virt-radix4": 0.25, "virt-ideal": 0.0, "ideal": 0.0}
        answer = _explain(*every)
        first = next(run["scheme"] for run in every if "ideal" not in run["scheme"])
        share, free, change = {
            "radix4": ("50", "ideal", "100"),
            "virt-radix4": ("25", "virt-ideal", "33"),
        }[first]
        assert f": {share} % of its time is lost to translation" in _lines(answer)[first]
        said = " ".join(_points(answer))
        assert f"free translation ({free}) would be {change} % faster" in said
        assert said.count("free translation") == 1


def test_without_a_bound_of_the_same_system_nothing_is_known_to_be_lost() -> None:
    for base, bound in (("virt-radix4", _ideal(500)), ("radix4", _ideal(500, "virt-ideal"))):
        runs = [fake.run(base), bound]
        answer = _explain(*runs)
        assert "lost to translation" not in _lines(answer)[base]
        assert all("free translation" not in words for words in _points(answer))
        headers, rows = presenting.cells(runs)
        assert [row[headers.index("lost to translation")] for row in rows] == ["–", "0 %"]


def test_what_can_be_had_of_translation_is_not_said_of_another_system() -> None:
    """A table without a host is no share of what free translation gains in a guest."""
    runs = [fake.run("virt-radix4"), fake.run("radix4", cycles=800), _ideal(900, "virt-ideal")]
    (point,) = _explain(*runs).points
    assert point.said.endswith(
        "radix4 is best, 25 % faster than virt-radix4; free translation (virt-ideal) would be 11 % faster"
    )


def test_every_bound_has_a_line() -> None:
    lines = _lines(
        _explain(
            fake.run("virt-radix4"),
            fake.run("radix4", cycles=900),
            fake.run("virt-ideal", cycles=600, per_walk=None, reading=None, waiting=None),
            _ideal(500),
        )
    )
    assert list(lines) == ["virt-radix4", "radix4", "virt-ideal", "ideal"]
    assert lines["ideal"] == "100 % faster: the bound, with translation free"


@pytest.mark.parametrize(
    ("half", "error", "words"),
    [
        (0.0105, 0.01, "1.1"),
        (0.01004, 0.01, "1.01"),
        (0.0100000001, 0.01, "1.01"),
        (0.1234, 0.01, "13"),
        (0.099999, 0.05, "10"),
    ],
)
def test_what_is_not_reached_is_not_said_to_be(half: float, error: float, words: str) -> None:
    told = judged.Missing(error, fake.run("fpt"), half, 40, 80, "4 KiB pages").words
    assert f"the speed-up of fpt at 4 KiB pages is known to ±{words} %. About 40 windows more" in told


def test_where_nothing_is_sampled_nothing_is_missing() -> None:
    runs = [fake.run("radix4"), fake.run("fpt")]
    sampling: Any = fake.sample(runs)["sampling"]
    for whole in ({"coverage": 1.0}, {"instructions_measured": 0, "instructions_total": 1_000_000}):
        found = judged.missing(runs, sampling | {"sampled": False, "coverage": 0.0} | whole, 0.001)
        assert found is not None
        assert found.reached
        assert found.words == "All instructions were measured: speed-ups have no error of sampling."
    part = judged.missing(runs, sampling | {"sampled": False, "coverage": 0.01}, 0.001)
    assert part is not None
    assert not part.reached
    assert part.words == "Whether speed-ups are known to ±0.1 % cannot be said: there are no intervals."
    weighted = judged.missing(runs, sampling | {"weights": [1.0]}, 0.001)
    assert weighted is not None
    assert not weighted.reached


def test_what_ends_in_its_warm_up_is_judged_as_a_whole() -> None:
    sampling: Any = fake.sample([fake.run()])["sampling"]
    sampling |= {"sampled": False, "coverage": 0.0, "instructions_measured": 0}
    sampling["instructions_total"] = fake.run()["instructions"]
    response: Any = fake.response([fake.run()]) | {"sampling": sampling}
    assert judged.judged_words(response) == "Judged: the whole run, all of its 1 M instructions."


def test_in_functional_mode_it_is_accesses_that_are_known() -> None:
    runs = [fake.run("radix4", cycles=None), fake.run("fpt", cycles=None, per_walk=1.0)]
    response = fake.sample(runs)
    found = judged.missing(runs, response["sampling"], 0.5)
    assert found is not None
    assert found.words == "All changes in accesses are known to ±50 % or better."
    found = judged.missing(runs, response["sampling"], 0.0001)
    assert found is not None
    assert "the change in accesses of fpt at 4 KiB pages is known to ±" in found.words
    half = fake.sample([fake.run("radix4", cycles=None), fake.run("fpt", cycles=None, per_walk=1.5)])
    bias = judged.bias(response, half)
    assert bias is not None
    assert judged.bias_words(bias, runs) == (
        "The warm-up is too short: with half the warm-up the accesses of fpt's walks are −39.8 % against "
        "radix4's, with all of it −59.8 %, more apart than the interval allows; try --warmup 800k."
    )


def test_stretches_have_ends_that_differ_and_shares_no_exponents() -> None:
    sampling: Any = fake.sample([fake.run()])["sampling"]
    sampling |= {
        "sampled": False,
        "coverage": 2.5e-6,
        "instructions_measured": 1_000,
        "warmup_instructions": 0,
    }
    sampling |= {"first_instruction": 2_000_000, "instructions_total": 404_000_000}
    response: Any = fake.response([fake.run()]) | {"sampling": sampling}
    response["trace"] |= {"skip": 2_000_000, "warmup": 0}
    assert judged.judged_words(response).startswith(
        "Judged: instructions 2,000,000 to 2,001,000 of 404 M (0.00025 %), one part."
    )
    sampling["instructions_total"] = 10**11
    assert "of 100 G (under 0.0001 %), one part" in judged.judged_words(response)
    words = judged.mix_words(["a"], [sampling])
    assert words.endswith("a, instructions 2,000,000 to 2,001,000.")
    # A warm-up is between where one part begins and what is measured; of windows without gaps, before it.
    sampling |= {
        "warmup_instructions": 500_000,
        "instructions_measured": 98_000_000,
        "instructions_total": 10**8,
    }
    sampling["coverage"] = 0.98
    assert judged.mix_words(["a"], [sampling]).endswith("a, instructions 2 M to 100 M.")
    sampling["instructions_measured"] = 90_000_000
    assert judged.mix_words(["a"], [sampling]).endswith("a, instructions 2.5 M to 92.5 M.")


def test_the_extremes_of_many_machines_are_said_to_be_such() -> None:
    runs = []
    for number in range(across.MOST + 2):
        for scheme, cycles in (("radix4", 1000 - 50 * number), ("fpt", 900 - 55 * number)):
            run = fake.run(scheme, cycles=cycles)
            run["settings"] = {"llc.size_bytes": 1 << (20 + number)}
            runs.append(run)
    (point,) = _explain(*runs).machines
    baseline, gains = point.said.split("; ")[:2]
    assert baseline.startswith("radix4, against itself with llc.size_bytes=1MiB, least and most of 6: ")
    assert gains.startswith("fpt against radix4, least and most of 6: ")
