"""The answer in words, computed from the numbers.

A simulation is deterministic, but it is a model: where pages happen to lie alone moves a result by
some tenths of a per cent. So a difference below `NOISE` is told as none, and causes are told from
what the run counted, never from what a scheme is supposed to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.results import grouped, is_bound, lost_to_translation, pages_label

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatwalk.results import Run

#: Relative difference in speed that is told as none.
NOISE = 0.005
#: Relative change of a figure that is worth a word.
NOTICEABLE = 0.02
#: What a walk's access that hits a cache costs at least; only weighs causes against each other.
CACHE_HIT_CYCLES = 10.0


@dataclass(frozen=True)
class Verdict:
    """One scheme against the baseline of its group.

    `change` is relative: speed in timing mode, accesses by walks in functional mode (negative is
    fewer); `None` where the baseline has none.
    """

    run: Run
    change: float | None
    words: str
    is_bound: bool


@dataclass(frozen=True)
class Group:
    """All schemes at one large-page setting, best first and bounds last."""

    label: str
    baseline: Run
    verdicts: list[Verdict]
    headline: str


@dataclass(frozen=True)
class _Cause:
    """A noticeable difference; `cycles` is about how much it saves (rough: overlap is ignored)."""

    cycles: float
    words: str


def dram_per_walk(run: Run) -> float:
    """Accesses per walk that main memory served."""
    in_dram = sum(level["dram"] for level in run["walk"]["accesses_by_level"])
    return in_dram / run["walks"] if run["walks"] else 0.0


def served(run: Run) -> dict[str, float]:
    """Shares of the walker's accesses by the place that served them, nearest first."""
    levels = run["walk"]["accesses_by_level"]
    counts = {
        "L1D": sum(level["l1d"] for level in levels),
        "L2": sum(level["l2"] for level in levels),
        "LLC": sum(level["llc"] for level in levels),
        "DRAM": sum(level["dram"] for level in levels),
    }
    total = sum(counts.values())
    return {place: count / total if total else 0.0 for place, count in counts.items()}


def llc_data_misses(run: Run) -> int:
    """Data misses of the last-level cache."""
    return next((cache["data_misses"] for cache in run["caches"] if cache["name"] == "LLC"), 0)


def _changed(new: float, old: float) -> bool:
    return abs(new - old) > NOTICEABLE * max(abs(old), abs(new))


def _causes(run: Run, base: Run) -> list[_Cause]:
    """Noticeable differences between two timed runs, the weightiest first."""
    causes: list[_Cause] = []

    def add(cycles: float, words: str) -> None:
        causes.append(_Cause(cycles, words))

    walks, base_walks = run["walks"], base["walks"]
    if base_walks and walks and _changed(walks, base_walks):
        fewer = "fewer" if walks < base_walks else "more"
        amount = units.percent(abs(walks / base_walks - 1))
        add((base_walks - walks) * (base["walk_latency_cycles"] or 0), f"there are {amount} {fewer} walks")
    per_walk, base_per_walk = run["accesses_per_walk"], base["accesses_per_walk"]
    dram, base_dram = dram_per_walk(run), dram_per_walk(base)
    latency_of_miss = base["dram"]["average_latency_cycles"] if base["dram"] else None
    if per_walk and base_per_walk and latency_of_miss:
        if _changed(per_walk, base_per_walk):
            outside = (base["walk_access_cycles"] or 0) - base_dram * latency_of_miss
            near = max(outside / max(base_per_walk - base_dram, 0.1), CACHE_HIT_CYCLES)
            add(
                (base_per_walk - per_walk) * near * walks,
                f"walks need {per_walk:.2f} instead of {base_per_walk:.2f} accesses",
            )
        if _changed(dram, base_dram) and abs(dram - base_dram) >= 0.01:
            add(
                (base_dram - dram) * latency_of_miss * walks,
                f"{dram:.2f} instead of {base_dram:.2f} accesses a walk go to DRAM",
            )
    queue, base_queue = run["walk_queue_cycles"], base["walk_queue_cycles"]
    if queue is not None and base_queue is not None and _changed(queue, base_queue):
        add(
            (base_queue - queue) * walks,
            f"walks wait {queue:.1f} instead of {base_queue:.1f} cycles for a walker",
        )
    misses, base_misses = llc_data_misses(run), llc_data_misses(base)
    if base_misses and latency_of_miss and _changed(misses, base_misses):
        more = "more" if misses > base_misses else "less"
        amount = units.percent(abs(misses / base_misses - 1))
        add((base_misses - misses) * latency_of_miss, f"data misses the LLC {amount} {more} often")
    faults, base_faults = run["os"]["fault_cycles"], base["os"]["fault_cycles"]
    if faults is not None and base_faults is not None and base["cycles"] and _changed(faults, base_faults):
        more = "more" if faults > base_faults else "less"
        amount = units.percent(abs(faults - base_faults) / base["cycles"])
        add(base_faults - faults, f"page faults cost {amount} of the time {more}")
    weightiest = max((abs(cause.cycles) for cause in causes), default=0.0)
    least = max(0.03 * weightiest, NOISE * (base["cycles"] or 0))
    causes = [cause for cause in causes if abs(cause.cycles) >= least]
    return sorted(causes, key=lambda cause: -abs(cause.cycles))


def _joined(phrases: list[str]) -> str:
    if len(phrases) < 2:
        return "".join(phrases)
    return ", ".join(phrases[:-1]) + " and " + phrases[-1]


def speed_words(change: float) -> str:
    """`9.2 % faster`, `1.0 % slower` or `no difference`."""
    if abs(change) < NOISE:
        return "no difference"
    return f"{units.percent(abs(change))} {'faster' if change > 0 else 'slower'}"


def _timed_verdict(run: Run, base: Run, group: list[Run]) -> Verdict:
    change = (run.get("speedup") or 0) - 1 if run.get("speedup") else None
    if run is base:
        return Verdict(run, 0.0, _baseline_words(base, group), is_bound(run))
    if change is None:
        return Verdict(run, None, "was not timed", is_bound(run))
    words = speed_words(change)
    if is_bound(run):
        words += ": the bound, with translation free"
        return Verdict(run, change, words, is_bound=True)
    causes = _causes(run, base)
    gains = [cause.words for cause in causes if cause.cycles > 0]
    losses = [cause.words for cause in causes if cause.cycles < 0]
    if abs(change) < NOISE:
        words += _no_difference_reason(lost_to_translation(base, group), gains, losses)
    else:
        because, although = (gains, losses) if change > 0 else (losses, gains)
        if because:
            words += f", because {_joined(because[:3])}"
        if although:
            words += f", although {_joined(although[:2])}"
    return Verdict(run, change, words + _mechanisms(run), is_bound=False)


def _mechanisms(run: Run) -> str:
    """What the run's mechanisms did, as they say it."""
    words = run["mechanism_words"]
    return f"; {_joined(words)}" if words else ""


def _no_difference_reason(share: float | None, gains: list[str], losses: list[str]) -> str:
    if share is not None and share < 2 * NOISE:
        return f": translation takes only {units.percent(share)} of the time"
    if gains and losses:
        return f": {_joined(gains[:2])}, but {_joined(losses[:2])}"
    if gains or losses:
        return f": {_joined((gains or losses)[:2])}, which hardly shows beside the rest of the time"
    return ": nothing that it changes is worth as much"


def _baseline_words(base: Run, group: list[Run]) -> str:
    words = "the baseline"
    share = lost_to_translation(base, group)
    if share is not None:
        words += f": {units.percent(share)} of its time is lost to translation"
    if base["walks"] and base["accesses_per_walk"] is not None:
        rate = base["walks"] / base["instructions"] * 1000
        words += "; " if share is not None else ": "
        words += f"{rate:.3g} walks per 1000 instructions, {base['accesses_per_walk']:.2f} accesses each"
    return words


def _counted_verdict(run: Run, base: Run, group: list[Run]) -> Verdict:
    """Functional mode: there is no speed, only accesses."""
    if run is base:
        return Verdict(run, 0.0, _baseline_words(base, group), is_bound(run))
    if is_bound(run):
        return Verdict(run, None, "the bound, with translation free", is_bound=True)
    accesses = run["walks"] * (run["accesses_per_walk"] or 0)
    base_accesses = base["walks"] * (base["accesses_per_walk"] or 0)
    if not base_accesses:
        return Verdict(run, None, "no walks to compare", is_bound=False)
    change = accesses / base_accesses - 1
    if abs(change) < NOISE:
        return Verdict(run, change, "no difference in the accesses that walks make", is_bound=False)
    fewer = "fewer" if change < 0 else "more"
    words = f"walks make {units.percent(abs(change))} {fewer} accesses"
    if run["accesses_per_walk"] is not None and base["accesses_per_walk"] is not None:
        words += f": {run['accesses_per_walk']:.2f} instead of {base['accesses_per_walk']:.2f} a walk"
    return Verdict(run, change, words + _mechanisms(run), is_bound=False)


def _headline(base: Run, verdicts: list[Verdict], *, timed: bool) -> str:
    designs = [v for v in verdicts if not v.is_bound and v.run is not base and v.change is not None]
    if not designs:
        return f"Only {base['scheme']} was run: add schemes to compare it with."
    best = designs[0]
    change = best.change or 0.0
    if not timed:
        if change >= -NOISE:
            return f"No scheme's walks make fewer accesses than {base['scheme']}'s."
        return f"{best.run['scheme']}: {best.words}."
    if change < NOISE:
        headline = f"Nothing to gain: no scheme is faster than {base['scheme']}"
        worst = designs[-1]
        if (worst.change or 0.0) <= -NOISE:
            headline += f"; the slowest, {worst.run['scheme']}, is {speed_words(worst.change or 0.0)}"
    else:
        headline = f"{best.run['scheme']} is {best.words}"
    bound = next((v for v in verdicts if v.is_bound and v.change is not None), None)
    if bound is not None and (bound.change or 0.0) >= NOISE:
        headline += f". Free translation would be {speed_words(bound.change or 0.0)}"
        if change >= NOISE:
            share = units.percent(min(change / (bound.change or 1.0), 1.0))
            headline += f", so {best.run['scheme']} gets {share} of what can be had"
    elif bound is not None:
        headline += ". Even free translation would make no difference"
    return headline + "."


def explain(runs: list[Run]) -> list[Group]:
    """Ranks the runs of each large-page setting and says why; runs carry their speed-ups."""
    groups = []
    for members in grouped(runs):
        base = members[0]
        timed = base["cycles"] is not None
        judge: Callable[[Run, Run, list[Run]], Verdict] = _timed_verdict if timed else _counted_verdict

        def rank(verdict: Verdict, *, timed: bool = timed) -> tuple[bool, float]:
            if verdict.change is None:
                return verdict.is_bound, float("inf")
            return verdict.is_bound, -verdict.change if timed else verdict.change

        verdicts = sorted((judge(run, base, members) for run in members), key=rank)
        headline = _headline(base, verdicts, timed=timed)
        groups.append(Group(pages_label(base), base, verdicts, headline))
    return groups


def large_page_words(runs: list[Run]) -> list[str]:
    """What large pages do to the baseline scheme, and what the best scheme adds on top of them."""
    groups = grouped(runs)
    first = groups[0][0]
    words = []
    for members in groups[1:]:
        base = members[0]
        if first["ipc"] and base["ipc"]:
            change = base["ipc"] / first["ipc"] - 1
            words.append(
                f"{pages_label(base)} instead of {pages_label(first)} make {base['scheme']} "
                f"{speed_words(change)}."
                if abs(change) >= NOISE
                else f"{pages_label(base)} instead of {pages_label(first)} make no difference to "
                f"{base['scheme']}."
            )
    return words
