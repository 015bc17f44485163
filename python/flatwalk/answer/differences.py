"""What one run is to another: how much faster, how sure that is, and how to say it.

A simulation is deterministic, but it is a model: where pages happen to lie alone moves a result by some
tenths of a per cent. So only what lies within `NOISE` with its whole interval is reported as no difference,
and what does not, but is below `NOISE` itself or has 0 in its interval, is reported as undecided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.answer import intervals
from flatwalk.answer.results import accesses_ratio, coverage, speed_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatwalk.answer.intervals import Estimate
    from flatwalk.answer.results import Run, Sampling

#: Relative difference that is reported as none.
NOISE = 0.005
#: So many times the windows that there are is called far more.
FAR_MORE = 100
#: `NOISE` as it stands in sentences.
WITHIN = "within ±0.5 %"


class Standing(Enum):
    """What is known of a difference."""

    BETTER = "better"
    WORSE = "worse"
    NONE = "no difference"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Difference:
    """A run against another: its speed in timing mode, the accesses of its walks in functional mode."""

    run: Run
    base: Run
    ratio: Estimate
    timed: bool
    windows: int
    coverage: float | None

    def with_ratio(self, ratio: Estimate) -> Difference:
        """The same pair by another figure."""
        return replace(self, ratio=ratio)

    @property
    def change(self) -> float:
        """The relative difference."""
        return self.ratio.value - 1

    @property
    def bounds(self) -> tuple[float, float]:
        """Where it lies; without an interval the figure itself."""
        if self.ratio.low is None or self.ratio.high is None:
            return self.change, self.change
        return self.ratio.low - 1, self.ratio.high - 1

    @property
    def standing(self) -> Standing:
        """What is known of it."""
        low, high = self.bounds
        if low > -NOISE and high < NOISE:
            return Standing.NONE
        if abs(self.change) < NOISE or low < 0 < high:
            return Standing.UNDECIDED
        return Standing.BETTER if (self.change > 0) == self.timed else Standing.WORSE

    @property
    def merit(self) -> float:
        """What schemes are ranked by: what the difference is at least worth."""
        low, high = self.bounds
        return low if self.timed else -high

    def _way(self, change: float) -> str:
        if self.timed:
            return "faster" if change > 0 else "slower"
        return "fewer" if change < 0 else "more"

    @property
    def _of_what(self) -> str:
        return "" if self.timed else " accesses"

    @property
    def words(self) -> str:
        """`9.2 % faster (8.8 to 9.6 %)`, or what takes its place."""
        low, high = self.bounds
        if self.standing is Standing.NONE:
            return "no difference"
        if self.standing is Standing.UNDECIDED:
            return f"not decided: {self._between(low, high)}{self._to_decide()}"
        words = f"{units.percent(abs(self.change))} {self._way(self.change)}{self._of_what}"
        near, far = sorted((abs(low), abs(high)))
        return words + (f" ({spread(near, far)})" if near < far else "")

    def _between(self, low: float, high: float) -> str:
        digits = _digits(low, high)
        if low >= 0 or high <= 0:
            near, far = sorted((abs(low), abs(high)))
            return f"{spread(near, far, digits)} {self._way(low + high)}{self._of_what}"
        return (
            f"between {_plain(-low, digits)} % {self._way(low)} and {_plain(high, digits)} % "
            f"{self._way(high)}{self._of_what}"
        )

    def _to_decide(self) -> str:
        """How many windows more may show that there is a difference, or that there is none.

        With so many, the figure that there is would be just decided. The true one is as often nearer to what
        it is compared with as farther: in half of such cases they do not decide it.
        """
        low, high = self.bounds
        distance = abs(self.change) if abs(self.change) >= NOISE else NOISE - abs(self.change)
        half = max(high - self.change, self.change - low)
        if self.coverage is None or self.windows < intervals.LEAST or not half or not distance:
            return ""
        target = distance / self.ratio.value * (1 - 1e-9)
        needed = intervals.needed(self.windows, half / self.ratio.value, target, self.coverage)
        if self.coverage and needed >= math.floor(self.windows / self.coverage):
            return "; only measuring the whole run would decide"
        if needed > FAR_MORE * self.windows:
            return "; far more windows than these would be needed"
        more = max(needed - self.windows, 1)
        return f"; {more} {'window' if more == 1 else 'windows'} more may decide"


def difference(run: Run, base: Run, sampling: Sampling | None) -> Difference | None:
    """A run against another; None where there is nothing to compare."""
    timed = base["cycles"] is not None
    ratio = (speed_ratio if timed else accesses_ratio)(run, base, sampling)
    if ratio is None:
        return None
    windows = len(run.get("windows") or [])
    return Difference(run, base, ratio, timed, windows, coverage(sampling))


def _plain(share: float, digits: int) -> str:
    return f"{100 * share:.{digits}f}"


def _digits(*changes: float) -> int:
    """As many digits as show which of these is more than `NOISE`: 1, or more for what is 0.5 % if rounded."""
    shown = {digits: [float(_plain(abs(change), digits)) / 100 for change in changes] for digits in (1, 2)}
    above = [abs(change) > NOISE for change in changes]
    return next((digits for digits, ends in shown.items() if [end > NOISE for end in ends] == above), 3)


def spread(low: float, high: float, digits: int = 1) -> str:
    """Two shares, the smaller one first: `60 to 66 %`, `8.8 to 9.6 %`."""
    digits = 0 if low >= 0.1 and _plain(low, 0) != _plain(high, 0) else digits
    return f"{_plain(low, digits)} to {_plain(high, digits)} %"


def joined(phrases: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(phrases) < 2:
        return "".join(phrases)
    return f"{', '.join(phrases[:-1])} {last} {phrases[-1]}"


def speed_words(change: float) -> str:
    """A change without an interval: `9.2 % faster`, `1.0 % slower` or `no difference`."""
    if abs(change) < NOISE:
        return "no difference"
    return f"{units.percent(abs(change))} {'faster' if change > 0 else 'slower'}"
