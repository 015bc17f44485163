"""The answer in words, computed from the numbers.

First what a performance engineer asks, in that order: huge pages, the page table's design, what mechanisms
add (of the schemes that run by themselves, page-table priority), a fifth level. Then every scheme. Each
difference stands with its interval; schemes that differ by no more than the noise are named together and
not ranked. Everything is compared with one scheme, the first that is not a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.answer import across, causes, twins
from flatwalk.answer.differences import NOISE, WITHIN, Standing, difference, joined, spread
from flatwalk.answer.judged import bias_words, judged_words
from flatwalk.answer.results import (
    bound_for,
    by_machine,
    has_host,
    is_bound,
    lost_to_translation,
    machine_phrase,
    pages_label,
    place_label,
    walks_per_1000,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flatwalk.answer.differences import Difference
    from flatwalk.answer.results import Response, Run, Sampling

#: Names that a sentence lists before it counts the rest.
NAMES = 5


@dataclass(frozen=True)
class Point:
    """One answer of the verdict."""

    topic: str
    said: str

    @property
    def words(self) -> str:
        """The whole sentence."""
        return f"{self.topic}: {self.said}."


@dataclass(frozen=True)
class Line:
    """What is said of one scheme, or of several that cannot be told apart."""

    runs: list[Run]
    words: str
    standing: Standing | None = None  # None: the reference, and what has no figure

    @property
    def tone(self) -> str:
        """Whether it is good news."""
        return {Standing.BETTER: "good", Standing.WORSE: "bad"}.get(self.standing or Standing.NONE, "")


@dataclass(frozen=True)
class Group:
    """All schemes at one large-page setting: the best first, then what differs not, bounds last."""

    label: str
    reference: Run
    lines: list[Line]


@dataclass(frozen=True)
class Answer:
    """Everything that is said of a comparison."""

    judged: str
    points: list[Point]
    groups: list[Group]
    machines: list[Point]  # what differs between machines, or settings of one
    bias: str | None
    is_warm: bool = True


@dataclass(frozen=True)
class _Place:
    """One machine and large-page setting: its runs against the reference."""

    label: str
    runs: list[Run]
    reference: Run
    differences: dict[str, Difference]
    sampling: Sampling | None

    @classmethod
    def of(cls, members: list[Run], among: list[Run], sampling: Sampling | None) -> _Place:
        reference = next((run for run in members if not is_bound(run)), members[0])
        found = {
            run["scheme"]: compared
            for run in members
            if run is not reference and (compared := difference(run, reference, sampling)) is not None
        }
        return cls(place_label(members[0], among), members, reference, found, sampling)

    @property
    def timed(self) -> bool:
        return self.reference["cycles"] is not None

    def between(self, run: Run, base: Run) -> Difference | None:
        return difference(run, base, self.sampling)

    def of_runs(self, runs: Iterable[Run]) -> list[Difference]:
        return [self.differences[run["scheme"]] for run in runs if run["scheme"] in self.differences]

    @property
    def bounds(self) -> list[Difference]:
        return [one for one in self.of_runs(self.runs) if is_bound(one.run)]

    @property
    def bound(self) -> Difference | None:
        """What the verdict speaks of: the reference's bound."""
        found = bound_for(self.reference, [one.run for one in self.bounds])
        return None if found is None else self.differences[found["scheme"]]

    @property
    def schemes(self) -> list[Difference]:
        """Everything but bounds, against the reference."""
        return [one for one in self.of_runs(self.runs) if not is_bound(one.run)]

    def better(self, run: Run, base: Run) -> bool:
        """Whether a run is better than another for certain."""
        compared = self.between(run, base)
        return compared is not None and compared.standing is Standing.BETTER

    def undecided(self, run: Run, base: Run) -> bool:
        """Whether nobody knows which of two is better."""
        compared = self.between(run, base)
        return compared is not None and compared.standing is Standing.UNDECIDED

    def same(self, run: Run, others: Iterable[Run]) -> list[Run]:
        """Those of `others` that are within the noise of `run` for certain."""
        found = []
        for other in others:
            compared = None if other is run else self.between(other, run)
            if compared is not None and compared.standing is Standing.NONE:
                found.append(other)
        return found


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


def explain(response: Response) -> Answer:
    """The answer; runs carry their speed-ups."""
    sampling = response.get("sampling")
    runs = response["runs"]
    machines = [[_Place.of(members, runs, sampling) for members in pages] for pages in by_machine(runs)]
    places = [place for pages in machines for place in pages]
    bias = response.get("bias")
    return Answer(
        judged_words(response),
        [
            *(point for pages in machines for point in _huge_pages(pages, runs)),
            *_about("Page-table design", places, _design),
            *_mechanism_points(places),
            *_about("A fifth level", places, _fifth_level),
            *_about("All together", places, _together),
        ],
        [_group(place) for place in places],
        [Point(topic, said) for topic, said in across.words(response)],
        bias_words(bias, runs) if bias is not None else None,
        is_warm=bias is None or bias["agrees"],
    )


# --- the verdict


def _about(topic: str, places: list[_Place], words: Callable[[_Place], str]) -> list[Point]:
    return [Point(f"{topic} at {place.label}", said) for place in places if (said := words(place))]


def _huge_pages(places: list[_Place], among: list[Run]) -> list[Point]:
    """What each further large-page setting of a machine does to the reference, against its first."""
    first = places[0]
    here, old = pages_label(first.reference), first.reference
    topic = f"Huge pages{machine_phrase(old, among)}"
    points = []
    for place in places[1:]:
        run, base = place.reference, first.reference
        compared = difference(run, base, first.sampling)
        if run["scheme"] != base["scheme"] or compared is None:
            continue
        name, label = base["scheme"], pages_label(run)
        makes = "make" if label[0].isdigit() and " of memory " not in label else "makes"
        if compared.standing is Standing.NONE:
            words = f"{label} {makes} no difference to {name} ({WITHIN} of {here})"
        elif compared.standing is Standing.UNDECIDED:
            words = f"{label} instead of {here}, of {name}: {compared.words}"
        elif place.timed:
            amount, _, interval = compared.words.partition(" (")
            words = f"{label} {makes} {name} {amount} than {here}"
            words += f" ({interval}" if interval else ""
            words += causes.words(run, base)
        else:
            words = f"with {label} {name}'s walks make {compared.words} than with {here}"
        points.append(Point(topic, words))
    return points


def _verb(place: _Place, run: Run) -> str:
    return f"{run['scheme']} is" if place.timed else f"{run['scheme']}'s walks make"


def _of_pair(place: _Place, run: Run, base: Run) -> str | None:
    """`fpt is 10 % faster than radix4 (9.0 to 11.0 %)`."""
    compared = place.between(run, base)
    if compared is None:
        return None
    if compared.standing is Standing.NONE:
        of = "" if place.timed else " in accesses by walks"
        return f"{run['scheme']} is {WITHIN} of {base['scheme']}{of}"
    if compared.standing is Standing.UNDECIDED:
        return f"{run['scheme']} against {base['scheme']} is {compared.words}"
    amount, _, interval = compared.words.partition(" (")
    return f"{_verb(place, run)} {amount} than {base['scheme']}" + (f" ({interval}" if interval else "")


def _names(runs: list[Run]) -> str:
    names = [run["scheme"] for run in runs]
    if len(names) > NAMES:
        return joined([*names[: NAMES - 1], f"{len(names) - NAMES + 1} more"])
    return joined(names)


def _best_of(found: list[Difference]) -> Difference | None:
    """The one that is worth most for certain, of those that are better at all."""
    better = [one for one in found if one.standing is Standing.BETTER]
    return max(better, key=lambda one: one.merit, default=None)


def _best_words(place: _Place, best: Difference, found: list[Difference]) -> str:
    """What the best one gains, and which others gain as much."""
    words = f"{best.run['scheme']} is best, "
    amount, _, interval = best.words.partition(" (")
    against = place.reference["scheme"]
    words += f"{amount} than {against}" if place.timed else f"its walks make {amount} than {against}'s"
    words += f" ({interval}" if interval else ""
    words += _same_words(place.same(best.run, (one.run for one in found)))
    rivals = [one.run for one in found if one is not best and place.undecided(one.run, best.run)]
    if rivals:
        words += f"; whether {_names(rivals)} {'is' if len(rivals) == 1 else 'are'} as good is not decided"
    return words


def _same_words(same: list[Run]) -> str:
    return f"; {_names(same)} {'is' if len(same) == 1 else 'are'} {WITHIN} of it" if same else ""


def _none_words(place: _Place, found: list[Difference], *, why: bool) -> str:
    """That none of some schemes is better than the reference, and how much worse the worst is."""
    name = place.reference["scheme"]
    open_ones = [one for one in found if one.standing is Standing.UNDECIDED]
    worse = [one for one in found if one.standing is Standing.WORSE]
    none = [one.run for one in found if one.standing is Standing.NONE]
    better = "faster than" if place.timed else "sparing accesses against"
    if open_ones:
        told = [f"{one.run['scheme']} {one.words}" for one in open_ones[:2]]
        told += [f"{len(open_ones) - 2} more not decided"] if len(open_ones) > 2 else []
        return f"none is shown to be {better} {name}; {'; '.join(told)}"
    if worse:
        worst = min(worse, key=lambda one: one.merit)
        words = f"none is {better} {name}; {_verb(place, worst.run)} {worst.words}"
        words += causes.words(worst.run, place.reference) if why else ""
        return words + _same_words(place.same(worst.run, (one.run for one in worse if one is not worst)))
    which = f"all {len(none)} schemes are" if len(none) > NAMES else _names(none)
    which += "" if len(none) > NAMES else " is" if len(none) == 1 else " are"
    words = f"makes no difference: {which} {WITHIN} of {name}"
    share = lost_to_translation(place.reference, place.runs) if place.timed else None
    bound = place.bound
    if share is not None and share < 2 * NOISE and bound is not None and bound.standing is Standing.NONE:
        words += f" (translation takes {units.percent(share)} of the time)"
    return words


def _designs(place: _Place) -> list[Difference]:
    """Schemes with the reference's mechanisms, and of its levels where they have a twin with these."""
    deeper = {five["scheme"] for _, five in twins.by_fifth_level(place.runs)}
    return [
        one
        for one in place.schemes
        if twins.mechanisms(one.run) == twins.mechanisms(place.reference) and one.run["scheme"] not in deeper
    ]


def _of_all(place: _Place, found: list[Difference], *, why: bool = False) -> str:
    best = _best_of(found)
    return _none_words(place, found, why=why) if best is None else _best_words(place, best, found)


def _design(place: _Place) -> str:
    """What tables are worth; and the bound, where nothing else was run."""
    found = _designs(place)
    if not found:
        return ""
    free = _free_words(place, _best_of(found)) if len(found) == len(place.schemes) else ""
    return _of_all(place, found, why=True) + (f"; {free}" if free else "")


def _together(place: _Place) -> str:
    """The best of all schemes and the bound, where the design alone is not all."""
    found, name = place.schemes, place.reference["scheme"]
    if found and len(_designs(place)) == len(found):
        return ""
    free = _free_words(place, _best_of(found))
    if found:
        return _of_all(place, found) + (f"; {free}" if free else "")
    if free:
        return f"{free}; add schemes to see how much of that they get"
    return f"only {name} was run: add schemes to compare it with" if len(place.runs) == 1 else ""


def _pairs(place: _Place, pairs: list[tuple[Run, Run]]) -> str:
    said = [words for base, run in pairs if (words := _of_pair(place, run, base)) is not None]
    return "; ".join(said)


def _mechanism_points(places: list[_Place]) -> list[Point]:
    """What page-table priority adds, and any other mechanism, to a scheme that was run without it too."""
    found = [(place, twins.by_mechanism(place.runs)) for place in places]
    return [
        Point(f"{twins.title(key)} at {place.label}", said)
        for key in dict.fromkeys(key for _, pairs in found for key in pairs)
        for place, pairs in found
        if (said := _pairs(place, pairs.get(key, [])))
    ]


def _fifth_level(place: _Place) -> str:
    return _pairs(place, twins.by_fifth_level(place.runs))


# --- scheme by scheme


def _group(place: _Place) -> Group:
    return Group(place.label, place.reference, list(_lines(place, place.schemes)))


def _free_words(place: _Place, best: Difference | None) -> str:
    """What the bound says, beside what the best scheme gains."""
    bound = place.bound
    if bound is None or not place.timed:
        return ""
    if best is not None and has_host(best.run) != has_host(bound.run):
        best = None  # This is no bound for it.
    free = f"free translation ({bound.run['scheme']})"
    words = f"{free} would be {bound.words}"
    if bound.standing is Standing.UNDECIDED:
        words = f"what {free} would gain is {bound.words}"
    elif bound.standing is Standing.NONE:
        words = f"{free} would make no difference"
        # What is no difference may be half a per cent.
        if best is not None and best.bounds[0] > bound.bounds[1] + NOISE:
            words += ", so the gain is not one of translation"
    elif best is not None and place.better(best.run, bound.run):
        words += ", less than that: part of the gain is not one of translation"
    elif best is not None and bound.standing is Standing.BETTER and best.change >= bound.change:
        words += f", no more than {best.run['scheme']}"
    elif best is not None and bound.standing is Standing.BETTER:
        words += f", so {best.run['scheme']} gets {_share_words(best, bound)} of what can be had"
    return words


def _share_words(best: Difference, bound: Difference) -> str:
    """Which part of the bound's gain a scheme's is: with what both intervals allow, if they say something."""
    share = units.percent(best.change / bound.change)
    low, high = best.bounds[0] / bound.bounds[1], min(best.bounds[1] / bound.bounds[0], 1.0)
    return f"{share} ({spread(low, high)})" if best.bounds[0] < best.bounds[1] else share


def _mechanisms(run: Run) -> str:
    """What the run's mechanisms did, as they say it."""
    words = run["mechanism_words"]
    return f"; {joined(words)}" if words else ""


def _lines(place: _Place, found: list[Difference]) -> Iterable[Line]:
    reference = place.reference
    yield Line([reference], _reference_words(place))
    yield from _ranked(place, [one for one in found if one.standing is Standing.BETTER])
    none = [one.run for one in found if one.standing is Standing.NONE]
    if none:
        what = "" if place.timed else " in the accesses that walks make"
        did = "".join(
            f"; {run['scheme']}: {joined(run['mechanism_words'])}" for run in none if run["mechanism_words"]
        )
        yield Line(none, f"{WITHIN} of {reference['scheme']}{what}{did}", Standing.NONE)
    for one in found:
        if one.standing is Standing.UNDECIDED:
            yield Line([one.run], one.words + _mechanisms(one.run), Standing.UNDECIDED)
    yield from _ranked(place, [one for one in found if one.standing is Standing.WORSE])
    for run in place.runs:
        if run is not reference and run["scheme"] not in place.differences:
            yield Line([run], "was not timed" if place.timed else "no walks to compare with")
    for bound in place.bounds:
        words = f"{bound.words}: " if place.timed else ""
        yield Line(
            [bound.run], f"{words}the bound, with translation free", bound.standing if place.timed else None
        )


def _ranked(place: _Place, found: list[Difference]) -> Iterable[Line]:
    """The best first; those that cannot be told apart from a better one stand with it."""
    left = sorted(found, key=lambda one: -one.merit)
    while left:
        first = left.pop(0)
        same = place.same(first.run, (one.run for one in left))
        left = [one for one in left if all(one.run is not run for run in same)]
        words = first.words if place.timed else f"walks make {first.words}"
        if not place.timed and first.run["accesses_per_walk"] and place.reference["accesses_per_walk"]:
            words += (
                f": {first.run['accesses_per_walk']:.2f} instead of "
                f"{place.reference['accesses_per_walk']:.2f} a walk"
            )
        words += causes.words(first.run, place.reference)
        if same:
            words = f"{first.run['scheme']} {words}; {_names(same)} {WITHIN} of it"
        yield Line([first.run, *same], words + _mechanisms(first.run), first.standing)


def _reference_words(place: _Place) -> str:
    base, bound = place.reference, place.bound
    words = "what the others are compared with" if is_bound(place.runs[0]) else "the baseline"
    facts = []
    share = lost_to_translation(base, place.runs)
    if share is not None and bound is not None and bound.standing is not Standing.UNDECIDED:
        facts.append(f"{units.percent(share)} of its time is lost to translation")
    if base["walks"] and base["accesses_per_walk"] is not None:
        rate = walks_per_1000(base) or 0.0
        facts.append(f"{rate:.3g} walks per 1000 instructions, {base['accesses_per_walk']:.2f} accesses each")
    facts += [
        f"{one['cache']}'s prefetcher {one['kind']} {one['words']}" for one in base.get("prefetchers", [])
    ]
    return words + (f": {'; '.join(facts)}" if facts else "")
