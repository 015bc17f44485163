"""What schemes are worth on several machines, or with several settings of one.

All of them ran over the same windows, so differences between machines are paired as those between schemes
are: by how much a scheme gains more on one machine than on another has an interval of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.answer.differences import NOISE, WITHIN, Standing, difference, spread
from flatwalk.answer.results import (
    by_machine,
    is_bound,
    machine_phrase,
    machines_label,
    pages_key,
    pages_label,
    speedup_ratio,
    time_ratio,
    walks_per_1000,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatwalk.answer.differences import Difference
    from flatwalk.answer.results import Response, Run, Sampling

#: So many machines are named one by one; of more, the extremes.
MOST = 4


@dataclass(frozen=True)
class Place:
    """A scheme and its baseline on one machine."""

    run: Run
    base: Run


def several(runs: list[Run]) -> bool:
    """Whether there is more than one machine, or more than one setting of it."""
    return len(by_machine(runs)) > 1


def places(runs: list[Run]) -> list[tuple[str, list[list[Place]]]]:
    """By large-page setting, its label and by scheme: the scheme on each machine."""
    found: dict[object, tuple[str, dict[str, list[Place]]]] = {}
    for machine in by_machine(runs):
        for group in machine:
            _, schemes = found.setdefault(pages_key(group[0]), (pages_label(group[0]), {}))
            for run in group:
                schemes.setdefault(run["scheme"], []).append(Place(run, group[0]))
    return [(label, list(schemes.values())) for label, schemes in found.values()]


def words(response: Response) -> list[tuple[str, str]]:
    """What differs between machines, by large-page setting: a topic and what is said; nothing for one."""
    runs, sampling = response["runs"], response.get("sampling")
    if not several(runs):
        return []
    names = {run["machine"] for run in runs}
    topic = "Settings" if len(names) == 1 else "Machines"
    found = []
    for label, schemes in places(runs):
        said = [_baseline(schemes[0], runs, sampling), _gains(schemes, runs, sampling)]
        if any(said):
            found.append((f"{topic} at {label}", "; ".join(filter(None, said))))
    return found


def _where(run: Run, runs: list[Run]) -> str:
    return machine_phrase(run, runs).strip()


def _baseline(places: list[Place], runs: list[Run], sampling: Sampling | None) -> str:
    """What the first scheme's time is on each machine, against the first."""
    first = places[0].base
    told = []
    shown = _extremes(places, lambda place: _time(place.base, first))
    for place in shown:
        compared, ratio = difference(place.base, first, sampling), time_ratio(place.base, first, sampling)
        if place.base is not first and compared is not None and ratio is not None:
            told.append(f"{_where(place.base, runs)} {_amount(compared.with_ratio(ratio))}")
    if not told:
        return ""
    clocks = {place.base["configuration"]["machine"]["frequency_mhz"] for place in places}
    time = "in time " if len(clocks) > 1 else ""
    where = f"{_where(first, runs)}{_which(shown, places)}"
    return f"{first['scheme']}, {time}against itself {where}: {', '.join(told)}"


def _time(run: Run, base: Run) -> float:
    ratio = time_ratio(run, base, None)
    return ratio.value if ratio else 1.0


def _extremes(places: list[Place], figure: Callable[[Place], float]) -> list[Place]:
    """All of a few places; of many, those with the smallest and the largest figure."""
    if len(places) <= MOST:
        return places
    ordered = sorted(places, key=figure)
    return [ordered[0], ordered[-1]]


def _which(shown: list[Place], places: list[Place]) -> str:
    """That these are the extremes of more."""
    return "" if len(shown) == len(places) else f", least and most of {len(places)}"


def _gains(schemes: list[list[Place]], runs: list[Run], sampling: Sampling | None) -> str:
    """What the scheme that is worth most anywhere gains on each machine, and whether that differs."""
    compared = [
        (places, [difference(place.run, place.base, sampling) for place in places])
        for places in schemes[1:]
        if not is_bound(places[0].run) and not is_bound(places[0].base)
    ]
    known = [(places, [one for one in found if one is not None]) for places, found in compared]
    known = [(places, found) for places, found in known if len(found) == len(places)]
    if not known:
        return ""
    places, found = max(known, key=lambda item: max(one.merit for one in item[1]))
    by_run = {id(one.run): one for one in found}
    shown = _extremes(places, lambda place: by_run[id(place.run)].ratio.value)
    told = [f"{_where(place.run, runs)} {_amount(by_run[id(place.run)])}" for place in shown]
    pair = f"{places[0].run['scheme']} against {places[0].base['scheme']}"
    return f"{pair}{_which(shown, places)}: {', '.join(told)}{_change(shown, runs, sampling)}"


def _amount(one: Difference) -> str:
    """`1.1 % faster (0.8 to 1.3 %)`, without how many windows would decide it."""
    return WITHIN if one.standing is Standing.NONE else one.words.partition("; ")[0]


def _change(places: list[Place], runs: list[Run], sampling: Sampling | None) -> str:
    """Whether the speed-up differs between the machines where it is largest and smallest."""
    ordered = sorted(places, key=lambda place: place.run.get("speedup") or 0.0)
    least, most = ordered[0], ordered[-1]
    ratio = speedup_ratio((most.run, most.base), (least.run, least.base), sampling)
    if ratio is None or least is most:
        return ""
    low, high = (ratio.value if bound is None else bound for bound in (ratio.low, ratio.high))
    pair = f"{_where(most.run, runs)} than {_where(least.run, runs)}"
    if low - 1 > -NOISE and high - 1 < NOISE:
        return f"; the speed-up is the same, {WITHIN}"
    if low < 1 < high or ratio.value - 1 < NOISE:
        return f"; whether the speed-up is higher {pair} is not decided"
    interval = f" ({spread(low - 1, high - 1)})" if low < high else ""
    return f"; the speed-up is {units.percent(ratio.value - 1)} higher {pair}{interval}"


def rows(schemes: list[list[Place]], runs: list[Run]) -> tuple[list[str], list[list[str]]]:
    """A table of one large-page setting: its headers, and a row for each scheme on each machine."""
    timed = runs[0]["cycles"] is not None
    headers = ["scheme", "machine " if len({run["machine"] for run in runs}) > 1 else "settings "]
    if timed:
        headers += ["speed-up", "±", "against the first", "±", "own speed", "±"]
    else:
        headers += ["walks/1000", "accesses/walk"]
    cells = []
    for places in schemes:
        for number, place in enumerate(places):
            run, is_first = place.run, number == 0
            row = [run["scheme"], machines_label(run, runs)]
            if timed:
                is_base = run is place.base
                row += _figure(run, "speedup", hidden=is_base)
                row += _figure(run, "speedup_change", hidden=is_base or is_first)
                row += _figure(run, "machine_speedup", hidden=is_first)
            else:
                rate, per_walk = walks_per_1000(run), run["accesses_per_walk"]
                row.append("–" if rate is None else f"{rate:.3g}")
                row.append("–" if per_walk is None else f"{per_walk:.2f}")
            cells.append(row)
    known = [
        number
        for number, header in enumerate(headers)
        if header != "±" or any(row[number] != "–" for row in cells)
    ]
    return [headers[number] for number in known], [[row[number] for number in known] for row in cells]


def _figure(run: Run, key: str, *, hidden: bool) -> list[str]:
    """A change and half its interval, as cells."""
    values: dict[str, float | None] = run  # type: ignore[assignment]
    value, low, high = values.get(key), values.get(f"{key}_low"), values.get(f"{key}_high")
    if hidden or value is None:
        return ["–", "–"]
    return [units.signed_percent(value - 1), units.margin(value, low, high)]
