"""What is simulated of a sample, and what is said of its warm-up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

import flatwalk as fw
from flatwalk import engine
from flatwalk.comparison import sampling
from flatwalk.comparison.lengths import Lengths
from tests import fake


class Sample:
    """A recording whose segments hold windows of 400 k and 2.1 M instructions before each."""

    info: dict[str, Any]

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.info = {
            "instructions": 10**8,
            "gap_instructions": 10**10,
            "segment_instructions": 2_500_000,
        }
        self.warmups: list[int] = []
        monkeypatch.setattr(engine, "trace_info", lambda _path: self.info)
        monkeypatch.setattr(sampling, "_simulate", self._simulate)

    def _simulate(self, _options: object, lengths: Lengths, source: dict[str, Any], _runs: object) -> Any:
        self.warmups.append(min(lengths.request(source)["sampling"]["warmup"], 2_100_000))
        response = fake.sample([fake.run(), fake.run("fpt", cycles=900 - 50 * len(self.warmups))])
        cast("Any", response["sampling"])["warmup_instructions"] = self.warmups[-1]
        return response

    def compare(self, warmup: int) -> Any:
        """The answer with so much warm-up."""
        options = cast("Any", type("Options", (), {"error": None}))
        lengths = replace(Lengths(None, None, 0), warmup=warmup)
        return sampling.simulate(options, lengths, {"trace": "program.fwt"}, [])


def test_half_the_warm_up_is_not_tried_where_segments_hold_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, tried in ((0, [0]), (8_000_000, [2_100_000]), (4_000_000, [2_100_000, 2_000_000])):
        sample = Sample(monkeypatch)
        bias = sample.compare(asked)["bias"]
        assert sample.warmups == tried
        assert (bias is None) == (len(tried) == 1)


def test_segments_too_short_for_more_warm_up_are_to_be_recorded_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample = Sample(monkeypatch)
    bias = sample.compare(2_000_000)["bias"]
    assert not bias["agrees"]
    assert bias["remedy"].startswith("flatwalk record --segment 8500000 -o FILE")
    sample.info["gap_instructions"] = 0
    assert sample.compare(2_000_000)["bias"]["remedy"] == "--warmup 8M"


def test_the_warm_up_is_checked_in_functional_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the accesses of walks: there are no speed-ups."""
    runs: list[list[Any]] = []

    def simulate(_options: object, lengths: Lengths, source: dict[str, Any], asked: list[Any]) -> Any:
        runs.append([one["scheme"]["name"] for one in asked])
        figures = {"radix4": 2.49, "fpt-l3l2": 1.9, "fpt": 1.0, "ideal": None}
        found = [
            fake.run(name, cycles=None, per_walk=each) for name, each in figures.items() if name in runs[-1]
        ]
        response: Any = fake.sample(found)
        response["sampling"]["warmup_instructions"] = lengths.request(source)["sampling"]["warmup"]
        return response

    monkeypatch.setattr(engine, "trace_info", lambda _path: {"instructions": 10**8, "gap_instructions": 0})
    monkeypatch.setattr(sampling, "_simulate", simulate)
    asked: Any = [{"scheme": {"name": name}} for name in ("radix4", "fpt-l3l2", "fpt", "ideal")]
    options = cast("Any", type("Options", (), {"error": None}))
    answer = sampling.simulate(options, replace(Lengths(None, None, 0), warmup=1000), {"trace": "a"}, asked)
    assert runs[1] == ["radix4", "fpt"]
    bias = answer["bias"]
    assert bias is not None
    assert (bias["schemes"], bias["agrees"]) == (["radix4", "fpt"], True)
    assert bias["speedup"] == pytest.approx(1 / 2.49, rel=0.01)


def test_machines_may_differ_in_which_scheme_differs_most() -> None:
    """The check of the warm-up simulates other schemes on the second than on the first."""
    found = fw.compare(
        workload="random:64MiB",
        schemes=["radix4", "hashed", "fpt+ptp"],
        machine=["zen4", "skylake-server"],
        large_pages=100,
        fragmentation=0.7,
        context_switch_ms=1,
        instructions="30M",
        windows=12,
        window="200K",
        warmup="500K",
    )
    assert [run["scheme"] for run in found.runs] == ["radix4", "hashed", "fpt+ptp"] * 2
    assert all(run["speedup_change"] for run in found.runs)
