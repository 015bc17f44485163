"""A simulation that samples: as many windows as are asked for or needed, and a check of their warm-up."""

from __future__ import annotations

import math
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flatwalk import engine, units
from flatwalk.answer import judged
from flatwalk.answer.differences import difference
from flatwalk.answer.results import add_speedups, by_machine, is_bound
from flatwalk.comparison import simpoints
from flatwalk.comparison.lengths import CUT_OFF, nothing_left, recorded_sample, simulate_all
from flatwalk.errors import FlatwalkError
from flatwalk.terminal import output
from flatwalk.terminal.printable import one_line

if TYPE_CHECKING:
    from flatwalk.answer.results import Response, Run, Sampling
    from flatwalk.comparison.configurations import Options
    from flatwalk.comparison.lengths import Lengths
    from flatwalk.comparison.simpoints import SimPoints

#: Times that more windows are measured because the error is larger than asked for.
ROUNDS = 4


def simulate(
    options: Options, lengths: Lengths, source: dict[str, Any], runs: list[dict[str, Any]]
) -> Response:
    """Simulates all runs, with their speed-ups, intervals and the check of the warm-up.

    Goes on with more windows until `options.error` is reached, or says what is missing.

    Raises:
        FlatwalkError: If the source cannot be read, or a configuration is not possible.
    """
    response = _simulate(options, lengths, source, runs)
    if options.error is not None:
        lengths, response = _refine(options, options.error, lengths, source, response)
    sampling = response.get("sampling")
    add_speedups(response["runs"], sampling)
    pair = _most_different(response)
    if sampling is not None and sampling["sampled"] and pair:
        half = lengths.with_half_warmup()
        warmup = sampling["warmup_instructions"]
        # A recorded segment may hold no more than that, either, nor may windows lie further apart: then both
        # would be the same.
        shorter = half.request(source)["sampling"]["warmup"]
        if shorter < warmup and any(room > shorter for room in judged.room(response["runs"][0])):
            bias = response["bias"] = judged.bias(response, _simulate(options, half, source, pair))
            if bias is not None and (remedy := _segments_for(replace(lengths, warmup=4 * warmup), source)):
                bias["remedy"] = remedy
    return response


def _segments_for(longer: Lengths, source: dict[str, Any]) -> str | None:
    """How to record more of a program, if its recording has no room for a longer warm-up."""
    recorded, needed = recorded_sample(source) or {}, longer.sample()["segment"]
    segment = recorded.get("segment_instructions")
    if segment is None or segment >= needed:
        return None
    held = units.count(segment)
    return f"flatwalk record --segment {needed} -o FILE -- CMD: segments of {held} have no room for more"


def _simulate(
    options: Options, lengths: Lengths, source: dict[str, Any], runs: list[dict[str, Any]]
) -> Response:
    request = {
        "source": source,
        **lengths.request(source),
        "seed": options.seed,
        "threads": options.jobs,
        "runs": runs,
    }
    with output.Progress(f"Simulating {units.several(len(runs), 'configuration')}") as progress:
        response = simulate_all(request, progress, options.addresses)
    if not any(run["instructions"] for run in response["runs"]):
        raise nothing_left(request)
    if lengths.points is not None:
        _weigh(response, lengths.points)
    return response


def _weigh(response: Response, points: SimPoints) -> None:
    """Weighs the windows of all runs as SimPoint says.

    Raises:
        FlatwalkError: If the program ended before one of them.
    """
    measured = len(response["runs"][0]["windows"])
    if measured < len(points.starts):
        raise FlatwalkError(
            f"the program ended before its interval at instruction {points.starts[measured]}",
            where="--simpoints and --window",
            remedy="give the length of an interval that SimPoint was told, and the same program",
        )
    for run in response["runs"]:
        simpoints.weigh(run, points.weights)
    if (sampling := response.get("sampling")) is not None:
        sampling["weights"] = points.weights


def _refine(
    options: Options,
    error: float,
    lengths: Lengths,
    source: dict[str, Any],
    response: Response,
) -> tuple[Lengths, Response]:
    """More windows and their answer, until the error is reached or there are no more."""
    is_recorded_sample = recorded_sample(source) is not None
    for _ in range(ROUNDS):
        sampling = response.get("sampling")
        missing = judged.missing(response["runs"], sampling, error)
        if missing is None or missing.reached or missing.needed is None or sampling is None:
            break
        if is_recorded_sample or not sampling["sampled"]:
            break
        output.note(missing.words)
        lengths = lengths.with_windows(max(missing.needed, missing.windows + 1))
        runs = cast("list[dict[str, Any]]", [run["configuration"] for run in response["runs"]])
        response = _simulate(options, lengths, source, runs)
    missing = judged.missing(response["runs"], response.get("sampling"), error)
    if missing is None:
        output.note(judged.NOTHING_COMPARED)
    else:
        output.note(missing.words)
        if not missing.reached and missing.needed is not None and is_recorded_sample:
            output.note(
                "All windows of the recording were measured; to record more: flatwalk record --windows "
                f"{missing.needed} -o FILE -- CMD"
            )
    return lengths, response


def cut_off(source: dict[str, Any]) -> str | None:
    """What stopped a trace's program, in words; or that the trace lacks its end mark."""
    found = engine.trace_info(Path(source["trace"])) if "trace" in source else {}
    if found.get("ended_early"):  # foreign formats have no mark to lack
        return f"the trace {CUT_OFF}"
    stopped = found.get("stopped")  # whatever a trace says
    return textwrap.shorten(one_line(stopped), 200, placeholder=" …") if stopped else None


def note_cut(cut_short: str, runs: list[Run], sampling: Sampling | None) -> None:
    """Notes what stopped a program before its end, as a doubt about each run of it and in what was judged."""
    for run in runs:
        run["warnings"].append(f"{cut_short}: what would have come then is not judged")
    if sampling is not None:
        sampling["cut_short"] = cut_short


def _most_different(response: Response) -> list[dict[str, Any]]:
    """Of each machine's first pages the configurations of the first scheme and the design that differs most.

    By speed, in functional mode by the accesses of walks. None where nothing is to be compared.
    """
    found: list[Any] = []
    for group, *_ in by_machine(response["runs"]):
        others = [
            compared
            for run in group[1:]
            if not is_bound(run) and (compared := difference(run, group[0], None)) is not None
        ]
        if others:
            other = max(others, key=lambda one: abs(math.log(one.ratio.value or sys.float_info.min)))
            found += [run["configuration"] for run in (group[0], other.run)]
    return found
