from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from flatwalk import mix, settings, weighing
from flatwalk.errors import UsageError
from flatwalk.report.mix import render
from tests import fake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Result

    Flatwalk = Callable[..., Result]

SHORT = ["--instructions", "100k", "--warmup", "50k"]


@pytest.mark.parametrize("name", settings.names("mix"))
def test_every_mix_is_valid_and_fits_four_cores(name: str) -> None:
    found = settings.mix(name)
    assert found["name"] == name
    assert len(found["programs"]) == 4
    assert "ASPLOS 2022, table 2" in found["source"]


def test_mixes_are_named_scaled_or_listed() -> None:
    assert mix.programs("asplos-1")["programs"] == ["graphbig-dc"] * 4
    assert mix.programs("asplos-5:64MiB")["programs"] == ["hashjoin:64MiB"] * 2 + ["mummer:64MiB"] * 2
    listed = mix.programs("2*gups:1GiB, random,runs/a.fwt")
    assert listed["programs"] == ["gups:1GiB", "gups:1GiB", "random", "runs/a.fwt"]
    with pytest.raises(UsageError, match="not a number of programs"):
        mix.programs("many*gups")
    with pytest.raises(UsageError, match="there is no mix 'asplos-9'"):
        mix.programs("asplos-9")


def test_weighted_speed_up_by_hand() -> None:
    """Two programs with 1 and 4 instructions per cycle alone; the fake's IPC is 1000 over its cycles."""
    alone = {"a": fake.run(cycles=1000), "b": fake.run(cycles=250)}
    base = [fake.run(cycles=2000), fake.run(cycles=500)]  # half as fast each
    other = [fake.run("fpt", cycles=1000), fake.run("fpt", cycles=1000)]  # all of a, a quarter of b
    large = [fake.run(cycles=1250, large_pages=100), fake.run(cycles=312.5, large_pages=100)]  # type: ignore[arg-type]
    results = weighing.weigh(["a", "b"], [base, other, large], alone)
    assert [result["weighted_speedup"] for result in results] == pytest.approx([1.0, 1.25, 1.6])
    relative = [result["relative_weighted_speedup"] for result in results]
    assert relative == pytest.approx([1.0, 1.25, 1.0]), "each over the first at its own pages"


def test_the_report_has_each_scheme_and_each_program_in_it() -> None:
    alone = {"a": fake.run(cycles=1000), "b": fake.run(cycles=250)}
    base = [fake.run(cycles=2000), fake.run(cycles=500)]
    other = [fake.run("fpt", cycles=1000), fake.run("fpt", cycles=1000)]
    answer = {
        "version": "0",
        "mix": {"name": "mine", "title": "A & B", "source": "none", "programs": ["a", "b"]},
        "alone": [{"program": program, **run} for program, run in alone.items()],
        "runs": weighing.weigh(["a", "b"], [base, other], alone),
    }
    page = render(answer)
    assert "A &amp; B" in page
    assert "fpt serves the programs together best: its weighted speed-up of 1.250 is 25 % higher" in page
    # A quarter more in all: all of a, a quarter of b.
    for name, change in [("fpt", "+25.0 %"), ("fpt, 1: a", "0.0 %"), ("fpt, 2: b", "−75.0 %")]:
        row = page[page.index(f'<th scope="row">{name}</th>') :]
        assert change in row[: row.index("</tr>")], name


@pytest.mark.parametrize(
    ("cycles", "words"),
    [
        ({}, "Only radix4 was run: add schemes to compare it with."),
        (
            {"fpt": 998},
            "No scheme makes a difference to the programs together: all are within ±0.5 % of radix4.",
        ),
        ({"fpt": 1100, "ideal": 500}, "No scheme serves the programs together better than radix4."),
        (
            {"fpt": 900, "fpt-nonf": 901},
            (
                "fpt serves the programs together best: its weighted speed-up of 1.111 is 11 % higher than "
                "radix4's; fpt-nonf is within ±0.5 % of it."
            ),
        ),
    ],
)
def test_the_best_of_a_mix_is_best_by_more_than_noise(cycles: dict[str, int], words: str) -> None:
    runs = [[fake.run()], *([fake.run(scheme, cycles=number)] for scheme, number in cycles.items())]
    assert weighing.words(weighing.weigh(["a"], runs, {"a": fake.run()})) == words


def test_a_mix_runs_and_says_how_much_faster(flatwalk: Flatwalk, tmp_path: Path) -> None:
    arguments = ["--mix", "2*gups:64MiB,random:64MiB", "--schemes", "radix4,fpt+ptp", "--large-pages", "0"]
    result = flatwalk("compare", *arguments, *SHORT, "--json", "out.json")
    assert result.code == 0, result.err
    assert "weighted speed-up" in result.out
    answer = json.loads((tmp_path / "out.json").read_text())
    assert answer["schema"] == "flatwalk-mix/1"
    assert [run["program"] for run in answer["alone"]] == ["gups:64MiB", "random:64MiB"]
    assert [run["scheme"] for run in answer["runs"]] == ["radix4", "fpt+ptp"]
    alone = {run["program"]: run["ipc"] for run in answer["alone"]}
    for run in answer["runs"]:
        names = [core["workload"] for core in run["cores"]]
        assert names == ["gups:64MiB", "gups:64MiB", "random:64MiB"]
        assert {core["seed"] for core in run["cores"]} == {1, 2, 3}
        assert all(core["instructions"] >= 100_000 for core in run["cores"])
        weights = [core["ipc"] / alone[core["workload"]] for core in run["cores"]]
        assert run["weighted_speedup"] == pytest.approx(sum(weights))
    page = (tmp_path / "flatwalk-report.html").read_text()
    for reported in (
        "2*gups:64MiB,random:64MiB",
        "Weighted speed-up",
        "fpt+ptp, 3: random:64MiB",
        "gups:64MiB a",
    ):
        assert reported in page
    for run in answer["runs"]:
        assert f"{run['weighted_speedup']:.3f}" in page
    again = flatwalk("compare", *arguments, *SHORT, "--json", "-", "--no-report")
    assert json.loads(again.out) == answer, "the same mix gives the same figures"


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--mix", "5*gups:64MiB"], "4 cores"),
        (["--mix", "2*gups", "--machine", "skylake-server"], "1 cores"),
        (["--mix", "2*gups", "--workload", "gups"], "more than one thing"),
        (["--mix", "2*gups", "--mode", "functional"], "take time"),
        (["--mix", "gups,none.fwt"], "flatwalk record -o none.fwt"),
        (["--mix", "gups,gusp"], "no workload 'gusp'"),
    ],
)
def test_what_cannot_be_is_reported(flatwalk: Flatwalk, arguments: list[str], reported: str) -> None:
    result = flatwalk("compare", *arguments)
    assert result.code == 2
    assert reported in result.err
    assert "remedy" in result.err
