"""Explanations of claims: their figures are those of the runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from flatwalk.errors import UsageError
from flatwalk.reproduce import explanations, show
from flatwalk.reproduce.claims import Claim, Value
from flatwalk.reproduce.experiments import load, load_all
from tests.checkout import ROOT
from tests.test_reproduce import EXPERIMENT

if TYPE_CHECKING:
    from pathlib import Path

#: By workload of the points FPT and both.
FPT = Value(9.0, {"gups:8GiB": 21.0, "random:8GiB": -0.04, "mcf:1668MiB": 10.25}, 6.0, 12.0, 2.4)
BOTH = Value(20.0, {"gups:8GiB": 42.0, "random:8GiB": 0.5, "mcf:1668MiB": None}, None, None)


@pytest.fixture
def claim(tmp_path: Path) -> Claim:
    path = tmp_path / "test.toml"
    path.write_text(EXPERIMENT)
    return load(path).claims[0]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("nothing", "nothing"),
        ("{FPT} and {both} %", "9.0 and 20 %"),
        ("{FPT: gups}, {FPT: mcf}, {FPT: mcf | 2}, {FPT: random}", "21, 10, 10.25, 0.0"),
        ("{-FPT: gups}, {+FPT: gups}, {+FPT: random | 2}", "−21, +21, −0.04"),
        ("{FPT: least} to {FPT: most}", "0.0 to 21"),
        ("{FPT: least but random} to {FPT: most but gups, random}", "10 to 10"),
        # 1.21 and 1.1025: the mean of what is shown would be 15.6.
        ("{FPT: mean but random | 2}", "15.50"),
        ("{FPT: half}, {FPT: windows}, {both: half}", "3.0, 1.8, ?"),
        ("{both / FPT: gups} and {both / FPT}", "2.00 and 2.22"),
        # That of random; not the least of one over the least of the other.
        ("{both / FPT: least}", "−12.5"),
        ("{both: most but gups, random}", "?"),
    ],
)
def test_figures_are_filled_in(claim: Claim, text: str, written: str) -> None:
    explained = replace(claim, why={"small": text})
    assert explanations.filled(explained, [FPT, BOTH], "small") == written
    assert explanations.filled(explained, [FPT, BOTH], "paper") == ""


def test_differences_are_averaged_as_they_are(claim: Claim) -> None:
    less = replace(claim.points[0], minus={"scheme": "asap"})
    explained = replace(claim, points=[less, claim.points[1]], why={"small": "{FPT: mean but random | 2}"})
    assert explanations.filled(explained, [FPT, BOTH], "small") == "15.62"


def test_a_workload_without_a_figure_is_said(claim: Claim) -> None:
    explained = replace(claim, why={"small": "{both: mcf}"})
    with pytest.raises(UsageError, match="claim T1 explains itself by mcf"):
        explanations.filled(explained, [FPT, BOTH], "small")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{ECH: gups}", "the point 'ECH'"),
        ("{FPT / ECH}", "the point 'ECH'"),
        ("{FPT: mcf}", "names 'mcf', which the scale small does not run"),
        ("{FPT: most but mcf}", "names 'mcf'"),
        ("{FPT: half but gups}", "`but` follows"),
        ("{FPT: gups | two}", "is not the place of a figure"),
        ("{}", "is not the place of a figure"),
        ("{FPT", "a brace has no other"),
    ],
)
def test_what_a_claim_does_not_have_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "test.toml"
    path.write_text(EXPERIMENT.replace('"Because."', json.dumps(text)))
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        load(path)
    assert caught.value.where == "test.toml, claim T1"


def test_all_that_is_shipped_is_filled_in_from_the_committed_figures() -> None:
    written = json.loads((ROOT / "docs" / "results" / "reproduction.json").read_text(encoding="utf-8"))
    outcomes = show.from_json(written, load_all()).outcomes()
    filled = [outcome for outcome in outcomes if explanations.places(outcome.claim.why.get("paper", ""))]
    assert len(filled) > 25
    for outcome in filled:
        assert not set("{}?") & set(outcome.why), outcome.claim.id
