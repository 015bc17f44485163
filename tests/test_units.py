from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatwalk import units
from flatwalk.answer.judged import longer_warmup
from flatwalk.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1GiB", 1 << 30),
        ("512MiB", 512 << 20),
        ("8G", 8 << 30),
        ("8g", 8 << 30),
        ("64 KiB", 65536),
        ("1.5GiB", 3 << 29),
        ("4096", 4096),
        ("2TB", 2 << 40),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert units.parse_size(text, "--workload") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100M", 100_000_000),
        ("1.5G", 1_500_000_000),
        ("20k", 20_000),
        ("100_000", 100_000),
        ("1e8", 10**8),
        ("2.5e6", 2_500_000),
        ("8.2M", 8_200_000),
        ("2.01k", 2010),
        ("4.1e6", 4_100_000),
        ("3.0", 3),
        ("0", 0),
    ],
)
def test_counts(text: str, value: int) -> None:
    assert units.parse_count(text, "--instructions") == value


@pytest.mark.parametrize("text", ["", "many", "-1", "1X", "1GiBB", "0x10", "1e999", "٣"])
def test_what_is_no_number_is_reported_with_its_option(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        units.parse_count(text, "--warmup")
    assert caught.value.where == "--warmup"
    assert caught.value.exit_code == 2
    if text != "0x10":
        with pytest.raises(UsageError):
            units.parse_size(text, "--workload")


@pytest.mark.parametrize("text", ["1.5", "0.5", "1.0005k", "1.25e1", "1.00000000000000000000000000000001M"])
def test_what_is_no_whole_number_is_no_count(text: str) -> None:
    with pytest.raises(UsageError, match="is not a whole number") as caught:
        units.parse_count(text, "--windows")
    assert caught.value.where == "--windows"
    assert units.parse_size("1.5MiB", "--workload") == 3 << 19


@given(st.integers(0, 10**9), st.integers(0, 10**6 - 1))
def test_counts_with_a_point_are_exact(millions: int, rest: int) -> None:
    assert units.parse_count(f"{millions}.{rest:06}M", "") == millions * 10**6 + rest


@given(st.integers(0, 1 << 50))
def test_sizes_survive_being_written(value: int) -> None:
    assert units.parse_size(units.short_size(value), "") == value


@given(st.integers(0, 10**15))
def test_plain_counts_are_exact(value: int) -> None:
    assert units.parse_count(str(value), "") == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.092, "+9.2 %"), (-0.01, "−1.0 %"), (0.0, "0.0 %"), (-0.0004, "0.0 %"), (1.0, "+100.0 %")],
)
def test_changes(value: float, text: str) -> None:
    assert units.signed_percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "50 %"),
        (0.052, "5.2 %"),
        (0.0001, "under 0.1 %"),
        (0.0, "0 %"),
        (0.0994, "9.9 %"),
        (0.09998, "10 %"),
    ],
)
def test_shares(value: float, text: str) -> None:
    assert units.percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (950, "950"),
        (999.6, "1 k"),
        (999_499, "999 k"),
        (999_500, "1 M"),
        (999_800, "1 M"),
        (999_999_999, "1 G"),
        (1.25e9, "1.25 G"),
        (1.2e12, "1,200 G"),
    ],
)
def test_counts_are_rounded_before_they_get_a_unit(value: float, text: str) -> None:
    assert units.count(value) == text


def test_what_is_suggested_is_understood() -> None:
    assert longer_warmup(249_950) == "--warmup 1M"
    assert units.duration(1200 * 3600) == "1,200 hours"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4096, "4 KiB"),
        (4106 * 4096, "16.04 MiB"),
        (9 * (2 << 20), "18 MiB"),
        (100, "100 B"),
        (1 << 43, "8 TiB"),
        (1 << 57, "128 PiB"),
    ],
)
def test_bytes(value: int, text: str) -> None:
    assert units.size(value) == text
