"""What was judged of a program, and how far that can be relied on, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.answer import intervals
from flatwalk.answer.differences import NOISE, WITHIN, difference
from flatwalk.answer.results import (
    WEIGHT_TOLERANCE,
    by_machine,
    coverage,
    grouped,
    machine_phrase,
    place_key,
    place_label,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatwalk.answer.differences import Difference
    from flatwalk.answer.intervals import Estimate
    from flatwalk.answer.results import Bias, Response, Run, Sampling


def judged_words(response: Response) -> str:
    """`Judged: 40 windows of 500 k instructions, spread over the whole run of 12.3 G (0.16 % of it) …`."""
    return " ".join([_windows_words(response), *_cores_words(response["runs"][0])])


def _cores_words(run: Run) -> list[str]:
    """Where its threads ran, if there were several: `Its 4 threads ran on 4 simulated cores, …`."""
    cores, threads = [core for core in run.get("cores") or [] if core["threads"]], run.get("threads", 1)
    if threads < 2:
        return []
    words = f"Its {threads} threads ran on {_number(len(cores), 'simulated core')}"
    if len(cores) < 2 or not run["cycles"]:
        return [f"{words}."]
    stacks, of = [core["cycle_stack"] for core in cores], len(cores)
    if run.get("weighted"):
        # The cores' own stacks are without weights; the run's is their average, those without threads too.
        stacks, of = [run["cycle_stack"]], len(run.get("cores") or [])
    idle = sum(part["cycles"] for stack in stacks for part in stack if part["part"] == "idle")
    busy = of * (1 - idle / (len(stacks) * run["cycles"]))
    return [f"{words}, of which {busy:.1f} were busy on average (with {run['scheme']})."]


def _windows_words(response: Response) -> str:
    sampling = response.get("sampling")
    first = response["runs"][0]
    if sampling is None:
        return _part_words(response, first["instructions"], None)
    total = sampling["instructions_total"]
    if weights := sampling.get("weights"):
        return _simpoint_words(sampling, weights, first)
    if coverage(sampling) == 1 or _counts_warmup(first, sampling):
        count = units.count(total or first["instructions"])
        if "cut_short" in sampling:
            return f"Judged: all {count} instructions until {sampling['cut_short']}."
        return f"Judged: the whole run, all of its {count} instructions."
    if not sampling["sampled"]:
        return _part_words(response, sampling["instructions_measured"], total)
    words = f"Judged: {_number(sampling['windows'], 'window')} of {_window_words(sampling)}"
    words += f" instructions, spread over {_spread_words(sampling)}"
    words += _warmup_words(sampling, first)
    if sampling.get("kernels_followed"):
        words += "; all page faults and system calls count"
    if sampling["windows"] < intervals.LEAST:
        words += ". So few windows do not tell how sure the figures are"
    return words + "."


def _counts_warmup(run: Run, sampling: Sampling) -> bool:
    """Whether the source ended in its warm-up, so that all of it counts."""
    return not sampling["instructions_measured"] and run["instructions"] == sampling["instructions_total"]


def room(run: Run) -> list[int]:
    """Instructions before each window of a run that are behind the window before it: what can be warmed."""
    windows = sorted(run.get("windows") or [], key=lambda window: window["at"])
    ends = [0, *(window["at"] + window["instructions"] for window in windows)]
    return [max(window["at"] - end, 0) for window, end in zip(windows, ends, strict=False)]


def _warmup_words(sampling: Sampling, run: Run) -> str:
    """What was warmed before windows, as `, after 2 M of warm-up each, up to 16 M before the first`.

    Where windows lie closer together than that, all that lies between them is warmed.
    """
    asked = sampling["warmup_instructions"]
    if not asked:
        return ""
    warmed = [min(asked, one) for one in room(run)]
    if any(one < asked for one in warmed[1:]):
        mean = units.count(sum(warmed) / len(warmed))
        return f", after up to {units.count(asked)} of warm-up each, {mean} on average"
    words = f", after {units.count(asked)} of warm-up each"
    if filling := sampling.get("filling_instructions"):
        words += f", up to {units.count(filling)} before the first"
    return words


def _window_words(sampling: Sampling) -> str:
    """Length of the windows; where a recording's segments have less, of the longest."""
    length = units.count(sampling["window_instructions"])
    mean = units.count(sampling["instructions_measured"] / max(sampling["windows"], 1))
    return length if mean == length else f"up to {length}"


def _simpoint_words(sampling: Sampling, weights: list[float], run: Run) -> str:
    total = math.fsum(weights)
    words = f"Judged: {_number(len(weights), 'interval')} of {units.count(sampling['window_instructions'])}"
    words += " instructions that SimPoint chose, each by its weight"
    if total < 1 - WEIGHT_TOLERANCE:
        words += f"; the weights sum to {total:.3g}, so the rest of the program is taken to be like these"
    words += _warmup_words(sampling, run)
    words += (
        ". They were chosen, not drawn at random: how far off the figures are cannot be known from them. "
    )
    return words + "Speeds, walks and what cycles went to are weighted means; other counts are plain sums."


def _spread_words(sampling: Sampling) -> str:
    total, spread = sampling["instructions_total"], sampling["instructions_represented"]
    share = _share(sampling["coverage"] or sampling["instructions_measured"] / (spread or 1))
    first = sampling["first_instruction"]
    if total is not None and first == 0 and spread > 0.99 * total:
        if "cut_short" in sampling:
            return f"all {units.count(total)} until {sampling['cut_short']} ({share} of them)"
        return f"the whole run of {units.count(total)} ({share} of it)"
    words = _stretch(first, first + spread)
    whole = f" of {units.count(total)}" if total is not None else " of a run whose length is not known"
    return f"{words}{whole}{_cut_words(sampling)} ({share} of them)"


def _cut_words(sampling: Sampling | None) -> str:
    """` until the run was stopped by --time 2`, of what was stopped before its end."""
    return f" until {sampling['cut_short']}" if sampling is not None and "cut_short" in sampling else ""


def _part_words(response: Response, measured: int, total: int | None) -> str:
    trace, cut = response["trace"], _cut_words(response.get("sampling"))
    start = trace.get("skip", 0) + trace.get("warmup", 0)
    if not measured and (counted := response["runs"][0]["instructions"]):
        # It ended in its warm-up, so that this is what was counted.
        start, measured = trace.get("skip", 0), counted
    words = f"Judged: {_stretch(start, start + measured)}"
    if total is not None and total > 0:
        words += f" of {units.count(total)}{cut} ({_share(measured / total)}), one part"
    else:
        words += f"{cut}, one part"
    return words + ". What came before and after it is not judged, so no interval can be given."


def mix_words(programs: Sequence[str], sampled: Sequence[Sampling]) -> str:
    """What was judged of the programs of a mix: `Judged: 40 windows of each program together. gups: …`."""
    if all(coverage(one) == 1 and "cut_short" not in one for one in sampled):
        return "Judged: the whole runs of all programs."
    words = "Judged"
    if any(coverage(one) is None for one in sampled):
        words = "Judged: one part of each program, so no interval can be given"
    if any(one["sampled"] for one in sampled):
        windows = sampled[0]["windows"]
        words = f"Judged: {_number(windows, 'window')} of each program together"
        if windows < intervals.LEAST:
            words += ". So few windows do not tell how sure the figures are"
    of = dict.fromkeys(
        f"{program}, {_program_words(one)}" for program, one in zip(programs, sampled, strict=True)
    )
    return f"{words}: {'; '.join(of)}."


def _program_words(sampling: Sampling) -> str:
    """Of one program of a mix: which windows of which instructions, or which part."""
    if coverage(sampling) == 1:
        count = units.count(sampling["instructions_measured"])
        if "cut_short" in sampling:
            return f"all {count} instructions until {sampling['cut_short']}"
        return f"the whole run of {count} instructions"
    if sampling["sampled"]:
        words = f"of {_window_words(sampling)} instructions"
        if sampling["warmup_instructions"]:
            words += f" after {units.count(sampling['warmup_instructions'])} of warm-up"
        return f"{words}, spread over {_spread_words(sampling)}"
    start, measured = sampling["first_instruction"], sampling["instructions_measured"]
    warmup, total = sampling["warmup_instructions"], sampling["instructions_total"]
    # One part has its warm-up behind where it begins; windows that leave nothing out, before the first.
    if total is None or start + warmup + measured <= total:
        start += warmup
    return _stretch(start, start + measured) + _cut_words(sampling)


def _stretch(first: int, end: int) -> str:
    """`instructions 1.2 M to 2.2 M`, in digits where these would be the same."""
    ends = [units.count(first), units.count(end)]
    if ends[0] == ends[1]:
        ends = [f"{first:,}", f"{end:,}"]
    return f"instructions {ends[0]} to {ends[1]}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _share(share: float) -> str:
    if 0 < share < 1e-6:
        return "under 0.0001 %"
    return f"{100 * share:.2g} %" if share < 0.01 else units.percent(share)


def _above(half: float, error: float) -> str:
    """A half width above `error` in per cent, rounded up: `1.3`, and where that would not show it, `1.01`."""
    digits = 2 if f"{half:.2g}" != f"{error:.2g}" else 3
    unit = 10.0 ** (math.floor(math.log10(100 * half)) - digits + 1)
    return f"{math.ceil(100 * half / unit - 1e-9) * unit:.{digits}g}"


#: What is said of `--error` where there are no figures that it could be of.
NOTHING_COMPARED = "Nothing is compared, so that --error has no effect."


@dataclass(frozen=True)
class Missing:
    """What `--error` lacks: the least sure figure, and how many windows would make it sure enough.

    Figures are speed-ups; in functional mode the accesses of walks against those of the first scheme.
    """

    error: float
    run: Run
    half: float | None  # None: there are no intervals
    windows: int
    needed: int | None
    place: str
    #: Nothing was sampled: the whole run was measured.
    is_all: bool = False

    @property
    def reached(self) -> bool:
        """Whether every figure is as sure as was asked for."""
        return self.is_all or (self.half is not None and self.half <= self.error)

    @property
    def words(self) -> str:
        """Whether it is reached, and if not what is missing."""
        asked = f"±{100 * self.error:g} %"
        what, whats = ("speed-up", "speed-ups")
        if self.run["cycles"] is None:
            what, whats = "change in accesses", "changes in accesses"
        if self.is_all:
            return f"All instructions were measured: {whats} have no error of sampling."
        if self.half is None or self.needed is None:
            return f"Whether {whats} are known to {asked} cannot be said: there are no intervals."
        if self.reached:
            return f"All {whats} are known to {asked} or better."
        name = f"{self.run['scheme']} at {self.place}"
        return (
            f"{asked} is not reached: the {what} of {name} is known to ±{_above(self.half, self.error)} %. "
            f"About {_number(max(self.needed - self.windows, 1), 'window')} more would do it, "
            f"{self.needed} instead of {self.windows}."
        )


def missing(runs: list[Run], sampling: Sampling | None, error: float) -> Missing | None:
    """What `--error` still lacks; `error` is 0.01 for ±1 %, as tables say it.

    None where there is nothing to be sure of. Counts the speed-ups of all schemes, and those of large
    pages; in functional mode the accesses.
    """
    machines = by_machine(runs)
    pairs = [(run, members[0]) for pages in machines for members in pages for run in members[1:]]
    pairs += [(members[0], pages[0][0]) for pages in machines for members in pages[1:]]
    found: list[tuple[Run, Estimate, str]] = []
    for run, base in pairs:
        compared = difference(run, base, sampling)
        if compared is not None and compared.ratio.value:
            found.append((run, compared.ratio, place_label(run, runs)))
    lacking = least_sure(found, error, len(runs[0].get("windows") or []), coverage(sampling))
    if lacking is None or sampling is None or sampling.get("weights"):
        return lacking
    whole = coverage(sampling) == 1 or _counts_warmup(runs[0], sampling)
    return replace(lacking, is_all=not sampling["sampled"] and whole)


def least_sure(
    found: Sequence[tuple[Run, Estimate, str]], error: float, windows: int, share: float | None
) -> Missing | None:
    """What `--error` lacks of these figures of runs, each with its place; None where there are none.

    Args:
        found: The figures, of `windows` windows.
        error: As asked for: with 0.01, a speed-up of 20 % is to be in 19 to 21 %.
        windows: How many there are.
        share: Share of the program that they cover; None where they are not a sample.
    """
    if not found:
        return None
    run, worst, place = max(found, key=lambda item: math.inf if item[1].half is None else item[1].half)
    half = None if share is None else worst.half
    needed = None if half is None or share is None else intervals.needed(windows, half, error, share)
    return Missing(error, run, half, windows, needed, place)


def bias(response: Response, half: Response) -> Bias | None:
    """Whether a second answer, of windows that were warmed half as long, agrees with the first.

    Compares the speed-up, in functional mode the accesses, of the scheme of `half` that differs most between
    its first setting's first scheme and another. It agrees if it lies within the interval, or the noise, of
    the first.

    Args:
        response: The answer; its runs carry their speed-ups.
        half: That of the same source, with half the warm-up and at least two of the same configurations
            of one large-page setting.
    """
    others = {(run["scheme"], place_key(run)): run for run in response["runs"]}
    candidates: list[tuple[Run, Run, float, float]] = []
    for members in grouped(half["runs"]):
        again = members[0]
        first = others.get((again["scheme"], place_key(again)))
        if first is None:
            continue
        for run in members[1:]:
            original = others.get((run["scheme"], place_key(run)))
            short = difference(run, again, None)
            long = difference(original, first, None) if original else None
            if original is not None and short and long:
                candidates.append((original, first, long.ratio.value, short.ratio.value))
    if not candidates:
        return None
    run, base, speedup, short_speedup = max(candidates, key=lambda item: abs(item[3] / (item[2] or 1) - 1))
    interval = difference(run, base, response.get("sampling"))
    samplings = [one.get("sampling") for one in (response, half)]
    lengths = [sampling["warmup_instructions"] if sampling else 0 for sampling in samplings]
    remedy = longer_warmup(lengths[0])
    return bias_of((base, run), (speedup, short_speedup), interval, (lengths[0], lengths[1]), remedy)


def bias_of(
    pair: tuple[Run, Run],
    speedups: tuple[float, float],
    interval: Difference | None,
    warmups: tuple[int, int],
    remedy: str,
) -> Bias:
    """Whether the second speed-up of a pair, of windows that were warmed half as long, agrees with the first.

    Args:
        pair: The baseline and the other run.
        speedups: Of windows with all of the warm-up, and with half of it.
        interval: How sure the first is.
        warmups: Instructions of both.
        remedy: What to try if it does not.
    """
    (base, run), (speedup, half) = pair, speedups
    low, high = (None, None) if interval is None else (interval.ratio.low, interval.ratio.high)
    found: Bias = {
        "schemes": [base["scheme"], run["scheme"]],
        "machine": run["machine"],
        "settings": run["settings"],
        "large_pages": run["large_pages"],
        "thp": run["thp"],
        "warmup_instructions": warmups[0],
        "half_warmup_instructions": warmups[1],
        "speedup": speedup,
        "speedup_low": low,
        "speedup_high": high,
        "half_warmup_speedup": half,
        "agrees": abs(half - speedup) <= NOISE * speedup,
        "remedy": remedy,
    }
    found["agrees"] |= _is_in_interval(found)
    return found


def longer_warmup(warmup: int) -> str:
    """What to try where a warm-up is too short."""
    return f"--warmup {units.count(4 * warmup).replace(' ', '')}" if warmup else "a longer --warmup"


def _is_in_interval(found: Bias) -> bool:
    """Whether what half the warm-up gives lies in the interval of what all of it gives."""
    low, high = found["speedup_low"], found["speedup_high"]
    return low is not None and high is not None and low <= found["half_warmup_speedup"] <= high


def bias_words(found: Bias, runs: Sequence[Run] = ()) -> str:
    """What half the warm-up gives, and what to do if it differs; with the machine if `runs` have several.

    Without `runs`, as of a mix, the figure is a speed-up.
    """
    tried = ((run, list(runs)) for run in runs if _is_of(run, found))
    on = next((machine_phrase(run, among) for run, among in tried), "")
    base, scheme = found["schemes"]
    values = [units.signed_percent(found[key] - 1) for key in ("half_warmup_speedup", "speedup")]
    figure, of_base = f"{scheme} is", base
    if runs and runs[0]["cycles"] is None:
        figure, of_base = f"the accesses of {scheme}'s walks are", f"{base}'s"
    said = f"with half the warm-up {figure} {values[0]} against {of_base}{on}, with all of it {values[1]}"
    if found["agrees"]:
        # That it is long enough, this cannot show: what half of it misses may be what all of it misses.
        near = "as near as the interval allows" if _is_in_interval(found) else f"{WITHIN} of each other"
        return f"{said[0].upper()}{said[1:]}, {near}."
    far = "the interval allows" if found["speedup_low"] is not None else f"{100 * NOISE:g} %"
    return f"The warm-up is too short: {said}, more apart than {far}; try {found['remedy']}."


def _is_of(run: Run, found: Bias) -> bool:
    """Whether a run is on the machine of a check of the warm-up."""
    return run["machine"] == found["machine"] and run["settings"] == found["settings"]
