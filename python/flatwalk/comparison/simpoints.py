"""SimPoint's files: intervals of a program that were chosen to stand for all of it, and their weights.

SimPoint 3.2 (Hamerly et al., Journal of Instruction-Level Parallelism 7, 2005) writes two texts with a line
for each simulation point: `INTERVAL NUMBER` (`.simpoints`) and `WEIGHT NUMBER` (`.weights`). An interval
is so many instructions of the program, the first one number 0; the files do not say how many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk.answer.results import WEIGHT_TOLERANCE
from flatwalk.errors import UsageError
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from flatwalk.answer.results import Run, Sampling


@dataclass(frozen=True)
class SimPoints:
    """Intervals in the program's order: the first instruction of each, and its weight as written."""

    starts: list[int]
    weights: list[float]


def _lines(path: Path, option: str) -> dict[str, tuple[int, str]]:
    """By number of the simulation point: the line and what stands before the number."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise UsageError(f"{path} cannot be read: {why}", where=option, remedy="check the path") from error
    found: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or words[1] in found:
            raise UsageError(
                f"{line.strip()[:40]!r} is not a line of SimPoint"
                if len(words) != 2
                else f"simulation point {words[1][:20]} comes twice",
                where=f"{path}, line {number}",
                remedy="a line is a figure and the number of the simulation point, as `57 0`",
            )
        found[words[1]] = (number, words[0])
    if not found:
        raise UsageError(f"{path} names no simulation point", where=option, remedy="check the path")
    return found


def read_files(points: Path, weights: Path, interval: int) -> SimPoints:
    """Reads both files; `interval` is the instructions of an interval.

    Raises:
        UsageError: If they cannot be read, do not belong together, or cannot be right.
    """
    starts, shares = _lines(points, "--simpoints"), _lines(weights, "--weights")
    if starts.keys() != shares.keys():
        odd = min(starts.keys() ^ shares.keys())
        raise UsageError(
            f"simulation point {odd} is in one of the files only",
            where=f"{points} and {weights}",
            remedy="give the two files of one run of SimPoint",
        )
    found: dict[int, float] = {}
    for key, (line, text) in starts.items():
        if not text.isdecimal() or len(text) > 19 or int(text) > (1 << 62) // interval:
            raise UsageError(
                f"{text[:40]!r} is not the number of an interval",
                where=f"{points}, line {line}",
                remedy="as in `57 0`",
            )
        number, share = int(text), shares[key]
        if number in found:
            raise UsageError(
                f"interval {number} comes twice",
                where=f"{points}, line {line}",
                remedy="leave one of them out",
            )
        found[number] = _weight(share[1], f"{weights}, line {share[0]}")
    total = math.fsum(found.values())
    if not 0 < total <= 1 + WEIGHT_TOLERANCE:
        raise UsageError(
            f"the weights sum to {total:g}",
            where=str(weights),
            remedy="they are shares of the program, which sum to 1, or to less if some were left out",
        )
    ordered = sorted(found)
    return SimPoints([number * interval for number in ordered], [found[number] for number in ordered])


def _weight(text: str, where: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 <= weight <= 1 + WEIGHT_TOLERANCE:
        raise UsageError(f"{text[:40]!r} is not a weight", where=where, remedy="as in `0.25 0`")
    return weight


def write(prefix: Path, run: Run, sampling: Sampling) -> list[Path]:
    """Writes the windows of a run as `PREFIX.simpoints` and `PREFIX.weights`; they weigh the same.

    The windows must begin at multiples of their length, but for the rest of a block before them.

    Returns:
        The two paths.
    """
    length = sampling["window_instructions"]
    count = len(run["windows"])
    weights = sampling.get("weights") or [1 / count] * count
    numbers = [window["at"] // length for window in run["windows"]]
    points = "".join(f"{number} {key}\n" for key, number in enumerate(numbers))
    shares = "".join(f"{weight!r} {key}\n" for key, weight in enumerate(weights))
    paths = paths_of(prefix)
    for path, text in zip(paths, (points, shares), strict=True):
        output.write_whole(path, text)
    return paths


def paths_of(prefix: Path) -> list[Path]:
    """The files that `write` writes.

    Raises:
        UsageError: If no name of a file begins so.
    """
    if prefix.name in ("", ".."):
        raise UsageError(
            f"{prefix} is a directory, and not how names of files begin",
            where="--simpoints-out",
            remedy=f"as in --simpoints-out {prefix / 'points'}",
        )
    return [prefix.with_name(f"{prefix.name}.{kind}") for kind in ("simpoints", "weights")]


def weigh(run: Run, weights: list[float]) -> None:
    """Makes the figures of a run weighted ones: each window counts by its weight.

    These are its instructions, cycles and their stack, its walks and their means. They are those of as many
    windows as were measured, in the proportions of the weights. Other counts stay sums over the windows.
    """
    windows = run["windows"]
    total = math.fsum(weights)
    factors = [weight * len(windows) / total for weight in weights]

    def exact(figures: Iterable[float | None]) -> float:
        return math.fsum(factor * (figure or 0) for factor, figure in zip(factors, figures, strict=True))

    def summed(figures: Iterable[float | None]) -> int:
        return round(exact(figures))

    walks = exact(window["walks"] for window in windows)

    def mean(figures: Iterable[int]) -> float | None:
        return exact(figures) / walks if walks else None

    run["weighted"] = True
    run["instructions"] = summed(window["instructions"] for window in windows)
    run["walks"] = round(walks)
    run["accesses_per_walk"] = mean(window["walk_accesses"] for window in windows)
    if run["cycles"] is None:
        return
    for number, part in enumerate(run["cycle_stack"]):
        part["cycles"] = summed(window["cycle_stack"][number] for window in windows)
    run["cycles"] = sum(part["cycles"] for part in run["cycle_stack"])
    run["ipc"] = run["instructions"] / run["cycles"] if run["cycles"] else None
    latency = [window["walk_latency_cycles"] or 0 for window in windows]
    queue = [window["walk_queue_cycles"] or 0 for window in windows]
    run["walk_latency_cycles"], run["walk_queue_cycles"] = mean(latency), mean(queue)
    run["walk_access_cycles"] = mean(whole - part for whole, part in zip(latency, queue, strict=True))
