"""No two sentences of an answer contradict each other or the figures, whatever the runs are."""

from __future__ import annotations

import itertools
import random
import re
from typing import TYPE_CHECKING, cast

import pytest

from flatwalk.answer.differences import NOISE, Standing, difference
from flatwalk.answer.explain import explain
from flatwalk.answer.results import add_speedups, grouped, is_bound, pages_label
from tests import fake

if TYPE_CHECKING:
    from flatwalk.answer.explain import Answer, Line
    from flatwalk.answer.results import Response, Run

SCHEMES = ["radix4", "radix3", "radix5", "fpt", "fpt-nonf", "radix4+ptp", "fpt+ptp", "ideal"]
PARTS = ["base", "data_dram", "walk_dram", "walk_queue", "page_faults", "system_calls"]


def _response(seed: int) -> Response:
    """An answer of any schemes in any order, sampled or not, timed or not, with cycle stacks or without."""
    rng = random.Random(seed)
    names = rng.sample(SCHEMES, rng.randint(1, 7))
    pages = rng.choice([[0], [0, 100], [100, 50, 0]])
    timed = rng.random() < 0.8
    runs = []
    for large_pages, name in itertools.product(pages, names):
        walking = name != "ideal" and rng.random() < 0.9
        run = fake.run(
            name,
            cycles=1 if timed else None,
            per_walk=rng.choice([1.0, 1.001, 1.5, 2.49]) if walking else None,
            reading=rng.choice([20.0, 95.0]) if walking else None,
            waiting=rng.choice([0.0, 12.0]) if walking else None,
            dram=rng.random(),
            walks=rng.choice([100, 99_900, 100_000]),
            large_pages=large_pages,
        )
        if timed:
            # Most are near each other, where words are hardest to choose.
            near = rng.random() < 0.6
            cycles = rng.randint(985_000, 1_015_000) if near else rng.randint(600_000, 1_500_000)
            run["cycles"], run["ipc"] = cycles, run["instructions"] / cycles
            if rng.random() < 0.9:
                weights = [rng.random() ** 3 for _ in PARTS]
                fake.set_stack(run, dict(zip(PARTS, fake.split(cycles, weights), strict=True)))
        runs.append(run)
    if rng.random() < 0.3:
        add_speedups(runs)
        return cast("Response", fake.response(runs))
    return fake.sample(
        runs,
        windows=rng.choice([2, 3, 12, 40]),
        own=rng.choice([0.0, 0.003, 0.05]),
        total=rng.choice([None, 1_000_000, 1_300_000, 10**10]),
        seed=seed,
    )


def _reference(members: list[Run]) -> Run:
    return next((run for run in members if not is_bound(run)), members[0])


class _Check:
    """What must hold of an answer; every method is a statement about all sentences."""

    def __init__(self, response: Response) -> None:
        self.response = response
        self.answer: Answer = explain(response)
        self.settings = {pages_label(members[0]): members for members in grouped(response["runs"])}
        self.timed = response["runs"][0]["cycles"] is not None

    def bounds(self, run: Run, base: Run) -> tuple[float, float, float] | None:
        """Low, value and high of what a run is to another, from the figures themselves."""
        found = difference(run, base, self.response.get("sampling"))
        return None if found is None else (found.bounds[0], found.change, found.bounds[1])

    def at(self, text: str) -> list[Run]:
        """The runs of the setting that a topic names."""
        return next(members for label, members in self.settings.items() if text.endswith(f" at {label}"))

    def none(self, run: Run, base: Run) -> bool:
        found = self.bounds(run, base)
        return found is not None and found[0] > -NOISE and found[2] < NOISE

    def every_scheme_has_one_line(self) -> None:
        for group, members in zip(self.answer.groups, self.settings.values(), strict=True):
            told = [run["scheme"] for line in group.lines for run in line.runs]
            assert sorted(told) == sorted(run["scheme"] for run in members)

    def lines_are_what_the_figures_say(self) -> None:
        for group, members in zip(self.answer.groups, self.settings.values(), strict=True):
            base = _reference(members)
            for line in group.lines:
                if "the bound, with" in line.words or line.runs[0] is base:
                    continue
                found = self.bounds(line.runs[0], base)
                if found is not None:
                    self._line(line, base, *found)

    def _line(self, line: Line, base: Run, low: float, value: float, high: float) -> None:
        if line.words.startswith("within"):
            assert all(self.none(run, base) for run in line.runs)
        elif line.words.startswith("not decided"):
            assert abs(value) < NOISE or low < 0 < high
            assert not self.none(line.runs[0], base)
        else:
            assert abs(value) >= NOISE
            assert not low < 0 < high
            assert all(self.none(run, line.runs[0]) for run in line.runs[1:])
        assert ("no difference" in line.words) <= self.none(line.runs[0], base)

    def numbers_are_the_runs_own(self) -> None:
        """`X is [best,] 10 % faster than Y` in the verdict, and in the lines."""
        pattern = re.compile(
            r"(\S+?)(?:'s walks make| is best, its walks make| is best,| is) ([\d.]+) % "
            r"(faster|slower|fewer|more)(?: accesses)? than (\S+?)(?:'s)?(?=[ ;.]|$)"
        )
        for point in self.answer.points:
            if point.topic == "Huge pages":
                continue
            members = {run["scheme"]: run for run in self.at(point.topic)}
            for name, number, way, other in pattern.findall(point.said):
                found = self.bounds(members[name], members[other])
                assert found is not None
                self._number(float(number), way, found[1])
        for group, runs in zip(self.answer.groups, self.settings.values(), strict=True):
            for line in group.lines:
                told = re.match(r"(?:\S+ |walks make )?([\d.]+) % (faster|slower|fewer|more)", line.words)
                found = self.bounds(line.runs[0], _reference(runs))
                if told and found:
                    self._number(float(told[1]), told[2], found[1])

    @staticmethod
    def _number(number: float, way: str, change: float) -> None:
        assert (change > 0) == (way in {"faster", "more"})
        assert number == pytest.approx(100 * abs(change), abs=0.51 if number >= 10 else 0.051)

    def who_gains_is_not_told_that_there_is_nothing(self) -> None:
        for group, members in zip(self.answer.groups, self.settings.values(), strict=True):
            base = _reference(members)
            designs = [
                line for line in group.lines if not is_bound(line.runs[0]) and line.runs[0] is not base
            ]
            topics = {f"{kind} at {group.label}" for kind in ("All together", "Page-table design")}
            points = {point.topic: point.said for point in self.answer.points if point.topic in topics}
            last = points.get(
                f"All together at {group.label}", points.get(f"Page-table design at {group.label}")
            )
            if not designs:
                continue
            assert last is not None or not any(line.standing for line in designs)
            if any(line.standing is Standing.BETTER for line in designs):
                assert last is not None
                assert " is best, " in last
                assert "makes no difference:" not in last
                assert "none is" not in last
            if last is not None and last.startswith("makes no difference:"):
                assert all(line.standing is Standing.NONE for line in designs)

    def the_best_is_worth_most(self) -> None:
        for point in self.answer.points:
            if " is best, " not in point.said:
                continue
            members = self.at(point.topic)
            base, name = _reference(members), point.said.partition(" is best, ")[0]
            best = next(run for run in members if run["scheme"] == name)
            own = self.bounds(best, base)
            assert own is not None
            rivals = [run for run in members if not is_bound(run) and run is not base]
            if point.topic.startswith("Page-table design"):
                kinds = {"fpt", "fpt-nonf", "radix3", "radix4", "radix5"}
                rivals = [run for run in rivals if ("ptp" in run["scheme"]) == ("ptp" in base["scheme"])]
                if "radix4" in {run["scheme"] for run in members}:
                    kinds -= {"radix5"}
                rivals = [run for run in rivals if run["scheme"] in kinds or "ptp" in run["scheme"]]
            for run in rivals:
                found = self.bounds(run, base)
                if found is not None and abs(found[1]) >= NOISE and not found[0] < 0 < found[2]:
                    assert (own[0] >= found[0]) if self.timed else (own[2] <= found[2])

    def causes_sum_to_what_they_explain(self) -> None:
        sentences = [point.said for point in self.answer.points]
        sentences += [line.words for group in self.answer.groups for line in group.lines]
        for sentence in sentences:
            told = re.search(r"of the ([\d.]+) %, (.*?)(?:; |$)", sentence)
            if not told:
                continue
            assert re.search(rf"(?<![\d.]){re.escape(told[1])} % (faster|slower)", sentence)
            total = 0.0
            for piece in told[2].split(", "):
                sign = -1 if piece.startswith("less ") else 1
                number = re.match(r"(?:less )?([\d.]+) ", piece)
                assert number, piece
                total += sign * float(number[1])
            assert total == pytest.approx(float(told[1]))

    def shares_of_what_can_be_had_are_shares(self) -> None:
        for point in self.answer.points:
            for share in re.findall(r"gets ([\d.]+) % of what can be had", point.said):
                assert 0 < float(share) <= 100
                assert "would make no difference" not in point.said

    def nobody_is_alone_in_company(self) -> None:
        for point in self.answer.points:
            if "only " in point.said and "was run" in point.said:
                assert len(self.at(point.topic)) == 1
            names = {run["scheme"] for run in self.response["runs"]}
            if names - {"ideal"}:
                assert "than ideal" not in point.said
                assert "of ideal" not in point.said

    def huge_pages_are_what_the_figures_say(self) -> None:
        first = next(iter(self.settings.values()))
        others = list(self.settings.values())[1:]
        points = [point for point in self.answer.points if point.topic == "Huge pages"]
        for point, members in zip(points, others, strict=False):
            found = self.bounds(_reference(members), _reference(first))
            assert found is not None
            told = re.search(r"([\d.]+) % (faster|slower|fewer|more)(?: accesses)? than", point.said)
            if told:
                self._number(float(told[1]), told[2], found[1])
            assert ("no difference" in point.said) == self.none(_reference(members), _reference(first))


PREDICATES = [name for name, value in vars(_Check).items() if callable(value) and not name.startswith("_")]
PREDICATES = [name for name in PREDICATES if name not in {"bounds", "at", "none"}]


@pytest.mark.parametrize("block", range(4))
def test_no_two_sentences_contradict(block: int) -> None:
    for seed in range(100 * block, 100 * (block + 1)):
        check = _Check(_response(seed))
        for name in PREDICATES:
            getattr(check, name)()
        sentences = [*(point.words for point in check.answer.points), check.answer.judged]
        sentences += [line.words for group in check.answer.groups for line in group.lines]
        for sentence in sentences:
            assert not re.search(r"nan|None|inf\b|\b-\d|  |;;|\.\.", sentence), (seed, sentence)


def test_the_cases_are_not_empty() -> None:
    """Every kind of sentence is among them."""
    said = "\n".join(
        "\n".join(
            [*(p.words for p in answer.points), *(line.words for g in answer.groups for line in g.lines)]
        )
        for answer in (explain(_response(seed)) for seed in range(200))
    )
    for words in (
        "is best, ",
        "makes no difference: ",
        "none is shown to be faster",
        "none is faster",
        "not decided: between",
        "windows more may decide",
        "only measuring the whole run would decide",
        "of what can be had",
        "so the gain is not one of translation",
        "less than that: part of the gain",
        "accesses than",
        ", less ",
        " within ±0.5 % of it",
        "only radix4 was run",
    ):
        assert words in said, words
