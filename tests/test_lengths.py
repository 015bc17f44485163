"""Which instructions are measured, as the command line asks and the source allows."""

from __future__ import annotations

from typing import Any

import pytest

from flatwalk import engine
from flatwalk.comparison import lengths
from flatwalk.comparison.lengths import Lengths
from flatwalk.errors import UsageError

TRACE = {"trace": "program.fwt"}
WORKLOAD = {"workload": {"name": "gups", "size_bytes": 1 << 30}}


def asked(**options: Any) -> Lengths:
    return Lengths.asked(options.pop("instructions", None), options.pop("warmup", None), None, **options)


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the trace says of itself."""
    info = {"instructions": 1_000_000, "gap_instructions": 0}
    monkeypatch.setattr(engine, "trace_info", lambda _path: info)
    return info


def test_a_program_is_sampled_from_its_first_instruction(trace: dict[str, int]) -> None:
    trace["gap_instructions"] = 10**9
    found = asked().request(TRACE)
    assert found == {
        "instructions": None,
        "warmup": 0,
        "skip": 0,
        "sampling": {"windows": 40, "window": 400_000, "warmup": 2_000_000, "filling": 16_000_000},
    }


def test_a_workload_is_warm_when_its_first_window_begins() -> None:
    assert asked(warmup="3M", windows=7, window="100K").request(WORKLOAD) == {
        "instructions": 10**9,
        "warmup": 0,
        "skip": 3_000_000,
        "sampling": {"windows": 7, "window": 100_000, "warmup": 3_000_000, "filling": 24_000_000},
    }


def test_everything_is_one_part(trace: dict[str, int]) -> None:
    found = asked(exhaustive=True).request(TRACE)
    assert found == {"instructions": None, "warmup": 0, "skip": 0, "sampling": None}
    trace["gap_instructions"] = 1
    with pytest.raises(UsageError, match="the trace is a sample"):
        asked(exhaustive=True).request(TRACE)


def test_what_leaves_nothing_to_measure_is_refused(trace: dict[str, int]) -> None:
    assert trace["instructions"] == 1_000_000
    with pytest.raises(UsageError, match="leaves none to measure"):
        asked(warmup="1M").request(TRACE)
    assert asked(warmup="999999").request(TRACE)["skip"] == 999_999


@pytest.mark.parametrize("name", ["instructions", "warmup", "window"])
def test_counts_that_no_program_has_are_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=rf"18446744073709551615 instructions(?s:.*)--{name}"):
        asked(**{name: "18446744073709551615"})
    assert asked(warmup="9999999G").warmed == 9_999_999 * 10**9


def test_a_window_must_fit_into_a_recorded_segment(trace: dict[str, int]) -> None:
    trace |= {"gap_instructions": 10**9, "segment_instructions": 400_000}
    with pytest.raises(UsageError, match=r"400000 .* segments of 400000(?s:.*)--segment 2500000 -o FILE"):
        asked().request(TRACE)
    assert asked(window="399k").request(TRACE)["sampling"]["window"] == 399_000
    trace["gap_instructions"] = 0
    assert asked().request(TRACE)["sampling"]["window"] == 400_000, "there is but one segment"


def test_a_recording_holds_what_will_be_measured() -> None:
    assert asked().sample() == {"segment": 2_500_000}
    assert asked(windows=100, window="1M", warmup="5M").sample() == {"segment": 6_100_000, "windows": 100}
    assert (asked().recorded, asked(instructions="2M", warmup="1M").recorded) == (None, 3_000_000)


def test_half_of_the_warm_up_is_before_the_same_windows(trace: dict[str, int]) -> None:
    """Otherwise two samples would be compared, and their difference taken for the warm-up's."""
    trace["instructions"] = 10_000_000
    for source, options in ((WORKLOAD, {}), (TRACE, {}), (TRACE, {"warmup": "2M"})):
        whole = asked(**options).request(source)
        half = asked(**options).with_half_warmup().request(source)
        warmed = [[one["sampling"].pop(key) for key in ("warmup", "filling")] for one in (half, whole)]
        assert warmed == [[1_000_000, 8_000_000], [2_000_000, 16_000_000]]
        assert half == whole


def test_windows_are_spread_over_what_a_workload_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends after 2.5 M instructions, which is found out; half of the windows would have been there."""
    told: list[tuple[int, int]] = []

    def simulate(request: dict[str, Any], _progress: object, _addresses: object) -> dict[str, Any]:
        asked, windows = request["instructions"], request["sampling"]["windows"]
        told.append((asked, windows))
        there = min(2_500_000 - request["skip"], asked)
        ended = 2_500_000 if there < asked else None
        return {"sampling": {"windows": windows * there // asked, "instructions_total": ended}}

    monkeypatch.setattr(engine, "simulate", simulate)
    request = asked(instructions="1M", windows=20, window="10k").request(WORKLOAD)
    assert request["skip"] == 2_000_000
    found = lengths.simulate_all(request, lambda *_: None)
    assert told == [(1_000_000, 20), (500_000, 20)]
    assert found["sampling"] == {"windows": 20, "instructions_total": 2_500_000}
    # What has ended before anything was measured stays an error of its own.
    assert lengths.shortened({**request, "skip": 3_000_000}, found["sampling"] | {"windows": 0}) is None
    # One part is what it is.
    part = asked(exhaustive=True, instructions="1M").request(WORKLOAD)
    assert lengths.shortened(part, {"windows": 1, "instructions_total": 10}) is None  # type: ignore[typeddict-item]
