"""SimPoint's files: what is read, what is refused, what is weighed, and that a round trip changes nothing."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk.answer.explain import explain
from flatwalk.answer.judged import judged_words
from flatwalk.answer.results import add_speedups
from flatwalk.comparison.simpoints import SimPoints, read_files, weigh
from flatwalk.errors import UsageError
from tests import fake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Result

    Flatwalk = Callable[..., Result]


def _files(folder: Path, points: str, weights: str) -> tuple[Path, Path]:
    paths = folder / "a.simpoints", folder / "a.weights"
    for path, text in zip(paths, (points, weights), strict=True):
        path.write_text(text)
    return paths


def test_points_and_weights_belong_together_by_their_numbers(tmp_path: Path) -> None:
    # As SimPoint 3.2 writes them: numbers of clusters in any order, and some left out.
    points, weights = _files(tmp_path, "130 2\n4 0\n\n57 5\n", "0.25 0\n0.5 5\n0.125 2\n")
    assert read_files(points, weights, 1000) == SimPoints([4_000, 57_000, 130_000], [0.25, 0.5, 0.125])


@pytest.mark.parametrize(
    ("points", "weights", "words"),
    [
        ("", "1 0\n", "names no simulation point"),
        ("5 0\n", "1 1\n", "in one of the files only"),
        ("5 0\n6 0\n", "1 0\n", "comes twice"),
        ("5 0\n5 1\n", "0.5 0\n0.5 1\n", "interval 5 comes twice"),
        ("5\n", "1 0\n", "not a line of SimPoint"),
        ("-5 0\n", "1 0\n", "not the number of an interval"),
        ("5.5 0\n", "1 0\n", "not the number of an interval"),
        ("99999999999999999999 0\n", "1 0\n", "not the number of an interval"),
        ("5 0\n", "nan 0\n", "not a weight"),
        ("5 0\n", "-1 0\n", "not a weight"),
        ("5 0\n", "x 0\n", "not a weight"),
        ("5 0\n", "0 0\n", "sum to 0"),
        ("5 0\n6 1\n", "0.6 0\n0.6 1\n", "sum to 1.2"),
        ("\xe9 0\n", "1 0\n", "not plain text"),
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path: Path, points: str, weights: str, words: str) -> None:
    paths = _files(tmp_path, points, weights)
    with pytest.raises(UsageError, match=words):
        read_files(*paths, 100)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_files(tmp_path / "none", tmp_path / "none", 100)


def test_weighted_figures_are_the_means_by_hand() -> None:
    """Against exact fractions."""
    runs = [fake.run(), fake.run("fpt", cycles=900)]
    for run in runs:
        fake.stack(run, walk_dram=0.25, data_dram=0.5)
    response = fake.sample(runs, windows=3, common=0.4)
    weights = [0.5, 0.3, 0.1]  # a tenth of the program is left out
    exact = [Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]
    cpi = []
    for run in runs:
        for window in run["windows"]:
            share = (window["cycles"] or 0) // 4
            window["cycle_stack"] = [(window["cycles"] or 0) - 3 * share, share, 2 * share]
        rows = [(window["cycles"] or 0, window["walks"], window["instructions"]) for window in run["windows"]]
        cycles, walks, instructions = (
            sum(weight * row[place] for weight, row in zip(exact, rows, strict=True)) for place in range(3)
        )
        weigh(run, weights)
        assert run["ipc"] == pytest.approx(float(instructions / cycles), rel=1e-5)
        assert run["walks"] / run["instructions"] == pytest.approx(float(walks / instructions), rel=1e-4)
        assert run["walks"] == pytest.approx(float(3 * walks), abs=1)
        assert sum(part["cycles"] for part in run["cycle_stack"]) == run["cycles"]
        assert run["cycle_stack"][2]["cycles"] == pytest.approx((run["cycles"] or 0) / 2, rel=1e-4)
        cpi.append(cycles / instructions)
    response["sampling"]["weights"] = weights  # type: ignore[index]
    add_speedups(runs, response["sampling"])
    assert runs[1]["speedup"] == pytest.approx(float(cpi[0] / cpi[1]), rel=1e-5)
    assert runs[1]["speedup_low"] is None, "intervals were chosen, not drawn"
    assert runs[1]["intervals"] is not None
    assert set(runs[1]["intervals"].values()) == {None}
    words = judged_words(response)
    assert "3 intervals" in words
    assert "the weights sum to 0.9" in words
    assert "cannot be known" in words
    assert not any(" to " in point.said.partition("(")[2] for point in explain(response).points)


def test_functional_figures_are_weighed_too() -> None:
    run = fake.run(cycles=None)
    fake.sample([run], windows=2)
    first, second = run["windows"]
    weigh(run, [0.75, 0.25])
    assert run["walks"] == round(1.5 * first["walks"] + 0.5 * second["walks"])
    accesses = round(1.5 * first["walk_accesses"] + 0.5 * second["walk_accesses"])
    assert run["accesses_per_walk"] == pytest.approx(accesses / run["walks"])
    assert run["ipc"] is None


WORKLOAD = ["compare", "--workload", "gups:64MiB", "--schemes", "radix4,fpt", "--no-report"]
WORKLOAD += ["--instructions", "9M", "--window", "100k", "--warmup", "150k"]


def _answer(flatwalk: Flatwalk, *arguments: str) -> dict[str, Any]:
    result = flatwalk(*WORKLOAD, *arguments, "--json", "-")
    assert result.code == 0, result.err
    return json.loads(result.out)  # type: ignore[no-any-return]


#: What follows from how windows were chosen.
_CHOICE = ("weighted", "speedup_low", "speedup_high", "intervals")


def test_a_round_trip_gives_the_same_figures(flatwalk: Flatwalk, tmp_path: Path) -> None:
    first = _answer(flatwalk, "--windows", "7", "--simpoints-out", "out")
    points = [line.split() for line in (tmp_path / "out.simpoints").read_text().splitlines()]
    shares = [line.split() for line in (tmp_path / "out.weights").read_text().splitlines()]
    assert [key for _, key in points] == [key for _, key in shares] == [str(key) for key in range(7)]
    assert sum(float(share) for share, _ in shares) == pytest.approx(1)
    windows = first["runs"][0]["windows"]
    for (number, _), window in zip(points, windows, strict=True):
        assert 0 <= window["at"] - 100_000 * int(number) < 512, "a block at most behind the interval's start"
    files = ["--simpoints", "out.simpoints", "--weights", "out.weights"]
    again = _answer(flatwalk, *files)
    for mine, other in zip(first["runs"], again["runs"], strict=True):
        assert {key: value for key, value in mine.items() if key not in _CHOICE} == {
            key: value for key, value in other.items() if key not in _CHOICE
        }
        assert other["weighted"] is True
        assert other["speedup_low"] is None
    assert again["sampling"]["weights"] == [1 / 7] * 7
    assert again["sampling"]["first_instruction"] == 0, "intervals count from the program's first instruction"
    # One interval has the figures of its window, whatever the others have.
    (tmp_path / "one.simpoints").write_text(f"{points[3][0]} 0\n")
    (tmp_path / "one.weights").write_text("1 0\n")
    one = _answer(flatwalk, "--simpoints", "one.simpoints", "--weights", "one.weights")
    assert [len(run["windows"]) for run in one["runs"]] == [1] * 4
    assert one["runs"][0]["windows"][0]["at"] == windows[3]["at"]
    assert one["runs"][0]["windows"][0]["instructions"] == windows[3]["instructions"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--simpoints", "a.simpoints", "--window", "1k"], "one of them is missing"),
        (["--simpoints", "a.simpoints", "--weights", "a.weights"], "do not say how many instructions"),
        (
            ["--simpoints", "a.simpoints", "--weights", "a.weights", "--window", "1k", "--windows", "5"],
            "--windows",
        ),
        (["--simpoints", "a.simpoints", "--weights", "a.weights", "--window", "1k", "--skip", "5"], "--skip"),
        (
            ["--simpoints=a.simpoints", "--weights=a.weights", "--window=1M", "--instructions=5k"],
            "remedy: give --instructions 4000000 or more",
        ),
        (
            ["--simpoints", "a.simpoints", "--weights", "a.weights", "--window", "1k", "--exhaustive"],
            "--exhaustive",
        ),
        (
            ["--simpoints", "a.simpoints", "--weights", "a.weights", "--window", "1k", "--error", "1%"],
            "no error is known",
        ),
        (
            ["--simpoints", "a.simpoints", "--weights", "a.weights", "--window", "1k", "--energy"],
            "not weighed",
        ),
        (["--simpoints-out", "b", "--exhaustive"], "no interval is chosen"),
        (["--simpoints-out", "b", "--mix", "2*gups"], "spread over each of its programs"),
        (["--simpoints-out", "none/b"], "no directory"),
        (["--simpoints-out", "."], "  where:  --simpoints-out\n"),
        (["--simpoints-out", "/"], "as in --simpoints-out /points"),
        (["--simpoints-out", ""], ". is a directory"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    flatwalk: Flatwalk, tmp_path: Path, arguments: list[str], words: str
) -> None:
    _files(tmp_path, "5 0\n", "1 0\n")
    result = flatwalk("compare", "--schemes", "radix4,fpt", "--no-report", *arguments)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
