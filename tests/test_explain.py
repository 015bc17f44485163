from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flatwalk.explain import explain, large_page_words, speed_words
from flatwalk.results import add_speedups
from tests import fake

if TYPE_CHECKING:
    from flatwalk.results import Run


def _words(*runs: Run) -> dict[str, str]:
    add_speedups(list(runs))
    (group,) = explain(list(runs))
    return {verdict.run["scheme"]: verdict.words for verdict in group.verdicts}


def test_speedup_is_against_the_first_scheme_at_the_same_setting() -> None:
    runs = [
        fake.run("radix4", cycles=1000),
        fake.run("fpt", cycles=800),
        fake.run("radix4", cycles=500, large_pages=100),
        fake.run("fpt", cycles=550, large_pages=100),
    ]
    add_speedups(runs)
    assert [run["speedup"] for run in runs] == pytest.approx([1.0, 1.25, 1.0, 500 / 550])


def test_nothing_is_timed_in_functional_mode() -> None:
    runs = [fake.run("radix4", cycles=None), fake.run("fpt", cycles=None, per_walk=1.0)]
    add_speedups(runs)
    assert [run["speedup"] for run in runs] == [None, None]
    (group,) = explain(runs)
    assert group.headline == "fpt: walks make 60 % fewer accesses: 1.00 instead of 2.49 a walk."


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


def test_the_cause_of_a_gain_is_what_was_counted() -> None:
    words = _words(
        fake.run("radix4"), fake.run("fpt+ptp", cycles=760, per_walk=1.0, reading=43, waiting=12, dram=0.06)
    )
    assert words["fpt+ptp"] == (
        "32 % faster, because 0.06 instead of 1.00 accesses a walk go to DRAM and "
        "walks need 1.00 instead of 2.49 accesses"
    )


def test_a_gain_is_told_with_what_speaks_against_it() -> None:
    words = _words(
        fake.run("radix4"),
        fake.run("radix4+ptp", cycles=900, reading=50.0, dram=0.05, llc_data_misses=70_000),
    )["radix4+ptp"]
    because, although = words.split(", although ")
    assert "go to DRAM" in because
    assert although == "data misses the LLC 40 % more often"


def test_a_loss_is_told_by_its_own_causes() -> None:
    words = _words(
        fake.run("radix4"), fake.run("fpt-nonf", cycles=1100, per_walk=1.0, dram=0.9, walks=300_000)
    )["fpt-nonf"]
    assert words.startswith("9.1 % slower, because there are 200 % more walks")
    assert "although" in words
    assert "walks need 1.00 instead of 2.49 accesses" in words.split("although")[1]


def test_no_difference_says_why() -> None:
    same = _words(fake.run("radix4"), fake.run("radix5", cycles=1001))
    assert same["radix5"] == "no difference: nothing that it changes is worth as much"
    rare = _words(
        fake.run("radix4", cycles=501, walks=10),
        fake.run("fpt", cycles=501, per_walk=1.0, walks=10),
        fake.run("ideal", cycles=500, per_walk=None, reading=None, waiting=None),
    )
    assert rare["fpt"] == "no difference: translation takes only 0.2 % of the time"
    hidden = _words(fake.run("radix4"), fake.run("fpt", cycles=999, per_walk=1.0))
    assert "hardly shows" in hidden["fpt"] or ", but " in hidden["fpt"]


def test_the_bound_is_a_bound_and_no_rank() -> None:
    (group,) = explain(fake.gups())
    assert group.verdicts[-1].run["scheme"] == "ideal"
    assert [verdict.run["scheme"] for verdict in group.verdicts[:3]] == ["fpt+ptp", "radix4+ptp", "fpt"]
    assert group.headline.startswith("fpt+ptp is 32 % faster, because ")
    assert (
        "Free translation would be 100 % faster, so fpt+ptp gets 32 % of what can be had." in group.headline
    )


def test_nothing_to_gain() -> None:
    runs = [
        fake.run("radix4", cycles=501, walks=10),
        fake.run("fpt", cycles=502, per_walk=1.0, walks=10),
        fake.run("fpt-nonf", cycles=600, per_walk=1.0, walks=10),
        fake.run("ideal", cycles=500, per_walk=None, reading=None, waiting=None),
    ]
    add_speedups(runs)
    (group,) = explain(runs)
    assert group.headline == (
        "Nothing to gain: no scheme is faster than radix4; the slowest, fpt-nonf, is 16 % slower. "
        "Even free translation would make no difference."
    )


def test_a_baseline_alone_asks_for_company() -> None:
    runs = [fake.run("radix4")]
    add_speedups(runs)
    assert "add schemes" in explain(runs)[0].headline


def test_runs_without_walks_are_no_trouble() -> None:
    runs = [
        fake.run("radix4", per_walk=None, reading=None, waiting=None),
        fake.run("fpt", per_walk=None, reading=None, waiting=None),
    ]
    add_speedups(runs)
    assert explain(runs)[0].headline.startswith("Nothing to gain")


def test_large_pages_are_told_of_the_baseline() -> None:
    words = large_page_words(fake.gups(0) + fake.gups(100))
    assert words == ["100 % large pages instead of 0 % large pages make radix4 33 % faster."]


def test_what_mechanisms_did_is_said_with_the_verdict() -> None:
    base, other = fake.run("radix4", cycles=1000), fake.run("fpt", cycles=900)
    other["mechanism_words"] = ["the buffer had half", "it was busy"]
    words = _words(base, other)
    assert words["fpt"].endswith("; the buffer had half and it was busy")
    assert "buffer" not in words["radix4"]
