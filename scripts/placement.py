#!/usr/bin/env python3
"""How often intervals hold the true value where a program's loop is as long as a stretch of the sample.

    python scripts/placement.py

A tenth of the loop takes three times as long as the rest. Windows either begin anywhere in their stretches,
as the engine's do (engine/timing/src/driver/sampling.rs, docs/adr/0008-samples.md), or are kept within them.
Prints for each placement how many of 100 seeds have an interval that holds the true value, and by how much
samples are off on average, with the slow tenth at ten places of the stretch.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from flatwalk.answer.intervals import estimate

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Where windows of length 1 begin and end, in stretches of a length.
    Placement = Callable[[float, random.Random], list[tuple[float, float]]]

WINDOWS, SEEDS, PLACES = 40, 100, 10
SLOW_SHARE, SLOW_CYCLES = 0.1, 3.0


def anywhere(stretch: float, draw: random.Random) -> list[tuple[float, float]]:
    """Each begins anywhere in its stretch; the first stretch begins a window before the program."""
    length = WINDOWS * stretch
    windows: list[tuple[float, float]] = []
    ended = 0.0
    for number in range(WINDOWS):
        start = (number + draw.random()) * (length + 1) / WINDOWS - 1
        end = start + 1 if start < 0 else max(start, ended) + 1
        windows.append((max(start, ended), min(end, length)))
        ended = end
    return windows


def within(stretch: float, draw: random.Random) -> list[tuple[float, float]]:
    """Each is anywhere within its stretch."""
    starts = [number * stretch + draw.random() * (stretch - 1) for number in range(WINDOWS)]
    return [(start, start + 1) for start in starts]


def cycles(at: float, stretch: float, slow_from: float) -> float:
    """Cycles up to an instruction of a loop of which a part, from `slow_from` on, is slow."""
    slow = SLOW_SHARE * stretch

    def before(at: float) -> float:
        """Slow instructions up to there, of a loop that begins with them."""
        loops, rest = divmod(at, stretch)
        return loops * slow + min(rest, slow)

    return at + (SLOW_CYCLES - 1) * (before(at - slow_from) - before(-slow_from))


def judge(placement: Placement, stretch: float, slow_from: float) -> tuple[int, float]:
    """In how many seeds the interval holds the true value, and how far samples are off it on average."""
    true = cycles(WINDOWS * stretch, stretch, slow_from) / (WINDOWS * stretch)
    held, off = 0, 0.0
    for seed in range(SEEDS):
        windows = placement(stretch, random.Random(seed))  # noqa: S311
        lengths = [end - start for start, end in windows]
        slowed = [cycles(at, stretch, slow_from) for window in windows for at in window]
        taken = [end - start for start, end in zip(slowed[::2], slowed[1::2], strict=True)]
        found = estimate([taken], [lengths], sum(lengths) / (WINDOWS * stretch))
        held += found.low is not None and found.high is not None and found.low <= true <= found.high
        off += found.value / true - 1
    return held, off / SEEDS


def main() -> None:
    """Prints a table: of each share of the program that windows cover, both placements."""
    print("| windows cover | placement | intervals that hold it, of 100 | off by |")
    print("| --- | --- | --- | --- |")
    for stretch in (2, 3, 5, 10, 20):
        for name, placement in (("anywhere", anywhere), ("within", within)):
            found = [judge(placement, stretch, place * stretch / PLACES) for place in range(PLACES)]
            held, off = [one[0] for one in found], [one[1] for one in found]
            print(
                f"| 1/{stretch} | {name} | {min(held)} to {max(held)} | {min(off):+.1%} to {max(off):+.1%} |"
            )


if __name__ == "__main__":
    main()
