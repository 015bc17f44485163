"""Figures and verdicts in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flatwalk.host.stats import CONFIDENCE, POWER

if TYPE_CHECKING:
    from flatwalk.host.stats import Comparison, Interval


def number(value: float) -> str:
    """Four significant digits, without exponents."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = 3
    size = abs(value)
    while size < 1 and digits < 9:
        size *= 10
        digits += 1
    while size >= 10:
        size /= 10
        digits -= 1
    return f"{value:.{digits}f}"


def interval(found: Interval) -> str:
    """`1.02 … 1.05`."""
    high = "∞" if found.high == float("inf") else number(found.high)
    return f"{number(found.low)} … {high}"


def percent(share: float) -> str:
    """A relative size with two significant digits: 0.00234 is `0.23 %`."""
    value = abs(100 * share)
    if not math.isfinite(value):
        return "any size"
    digits = 0 if value >= 10 else 1 if value >= 1 else 2 if value >= 0.1 else 3
    return f"{value:.{digits}f} %"


def _between(change: Interval) -> str:
    """An interval of a change whose direction the words before it give: sizes, if all of it is on one side.

    Nothing falls by more than all of itself, whatever an interval that is the same to both sides says.
    """
    low, high = max(change.low, -1.0), change.high
    if not math.isfinite(high):
        return f"{percent(low) if low > 0 else _signed(low)} or more"
    if low <= 0 <= high:
        return f"{_signed(low)} to {_signed(high)}"
    least, most = sorted((abs(low), abs(high)))
    return f"{percent(least)} to {percent(most)}"


def _signed(share: float) -> str:
    return ("−" if share < 0 else "+") + percent(share)


def verdict(
    comparison: Comparison,
    p: float,
    *,
    rate: bool = False,
    words: tuple[str, str] = ("slower", "faster"),
) -> str:
    """What follows, in words, for `p` adjusted for the number of questions.

    Args:
        comparison: Of two series.
        p: Of the difference.
        rate: Whether more is better.
        words: What the worse is called, and what the better.
    """
    if not p < 1 - CONFIDENCE:  # also where there is no p
        if comparison.detectable == 0:
            return "no difference: every measurement is the same"
        return (
            f"no measurable difference; {percent(comparison.detectable)} would have been seen "
            f"({POWER:.0%} of the time)".replace("80%", "80 %")
        )
    worse = comparison.change < 0 if rate else comparison.change > 0
    said = (
        f"{percent(comparison.change)} {words[0] if worse else words[1]} "
        f"({_between(comparison.change_interval)}), "
        f"{_size(comparison.effect)} effect (d = {abs(comparison.effect):.2f})"
    )
    if comparison.bootstrap and comparison.bootstrap.low <= 0 <= comparison.bootstrap.high:
        said += "; the bootstrap's interval includes 0, so measure longer before trusting it"
    return said


def _size(effect: float) -> str:
    """Cohen's names of effect sizes."""
    size = abs(effect)
    return "large" if size >= 0.8 else "medium" if size >= 0.5 else "small"
