"""Results: speed-ups, intervals, what was judged, and files of this form and the one before."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest

from flatwalk import units
from flatwalk.answer.judged import bias, bias_words, judged_words, missing, room
from flatwalk.answer.results import add_speedups, answer, read_answer, speedup_ratio
from flatwalk.errors import FlatwalkError
from tests import fake
from tests.terminal import on_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from flatwalk.answer.results import Response, Sampling


def test_speedup_is_against_the_first_scheme_at_the_same_setting() -> None:
    runs = [
        fake.run("radix4", cycles=1000),
        fake.run("fpt", cycles=800),
        fake.run("radix4", cycles=500, large_pages=100),
        fake.run("fpt", cycles=550, large_pages=100),
    ]
    add_speedups(runs)
    assert [run["speedup"] for run in runs] == pytest.approx([1.0, 1.25, 1.0, 500 / 550])
    assert {run["speedup_low"] for run in runs} == {None}, "nothing says how sure they are"


def test_every_mean_has_its_interval() -> None:
    response = fake.sample(fake.gups())
    for run in response["runs"]:
        found = run["intervals"]
        assert found is not None
        values: dict[str, float | None] = {
            "ipc": run["ipc"],
            "walks_per_1000": 1000 * run["walks"] / run["instructions"],
            "accesses_per_walk": run["accesses_per_walk"],
            "walk_latency_cycles": run["walk_latency_cycles"],
            "walk_queue_cycles": run["walk_queue_cycles"],
        }
        assert found.keys() == values.keys()
        for key, value in values.items():
            interval = cast("dict[str, list[float] | None]", found)[key]
            if not value:
                assert interval is None, key
                continue
            assert interval is not None, key
            assert interval[0] < value < interval[1], key
        if run is not response["runs"][0]:
            low, speedup, high = run["speedup_low"], run["speedup"], run["speedup_high"]
            assert low is not None
            assert speedup is not None
            assert high is not None
            assert low < speedup < high < 1.05 * speedup, "pairs share what windows have in common"
    first = response["runs"][0]
    assert (first["speedup_low"], first["speedup"], first["speedup_high"]) == (1.0, 1.0, 1.0)


def test_the_first_scheme_is_exactly_as_fast_as_itself() -> None:
    response = fake.sample([fake.run("radix4"), fake.run("fpt", cycles=997)], windows=7)
    for number, window in enumerate(response["runs"][0]["windows"]):
        window["cycles"] = (window["cycles"] or 0) + number * number
    add_speedups(response["runs"], response["sampling"])
    first = response["runs"][0]
    assert (first["speedup_low"], first["speedup"], first["speedup_high"]) == (1.0, 1.0, 1.0)


def test_one_part_is_no_sample_of_the_whole() -> None:
    response = fake.sample([fake.run(), fake.run("fpt", cycles=900)])
    sampling = cast("Sampling", response["sampling"])
    sampling["sampled"] = False
    add_speedups(response["runs"], sampling)
    assert response["runs"][1]["speedup_low"] is None
    sampling["coverage"] = 1.0
    add_speedups(response["runs"], sampling)
    assert response["runs"][1]["speedup_low"] == response["runs"][1]["speedup"], "all of it was measured"


def test_windows_that_are_not_the_same_are_not_compared() -> None:
    response = fake.sample([fake.run(), fake.run("fpt", cycles=900)])
    response["runs"][1]["windows"].pop()
    add_speedups(response["runs"], response["sampling"])
    assert response["runs"][1]["speedup"] == pytest.approx(10 / 9)
    assert response["runs"][1]["speedup_low"] is None


def test_windows_at_other_places_are_not_compared() -> None:
    response = fake.sample([fake.run(), fake.run("fpt", cycles=900)])
    fast = response["runs"][1]
    fast["windows"] = [{**window, "at": window["at"] + 1} for window in fast["windows"]]
    add_speedups(response["runs"], response["sampling"])
    assert fast["speedup"] == pytest.approx(10 / 9)
    assert fast["speedup_low"] is None
    pair = (fast, response["runs"][0])
    change = speedup_ratio(pair, pair[::-1], response["sampling"])
    assert change is not None
    assert change.value == pytest.approx(100 / 81)
    assert change.low is None


def test_where_everything_was_measured_the_bounds_are_the_value() -> None:
    for cycles in range(501, 2000, 7):
        response = fake.sample([fake.run(), fake.run("fpt", cycles=cycles)], windows=7)
        cast("Sampling", response["sampling"])["coverage"] = 1.0
        # Rounded, as the figure of the run is.
        response["runs"][1]["windows"][3]["cycles"] += cycles % 7  # type: ignore[operator]
        add_speedups(response["runs"], response["sampling"])
        run = response["runs"][1]
        assert run["speedup_low"] == run["speedup"] == run["speedup_high"]


def test_what_kernels_do_is_no_accident_of_the_sample() -> None:
    response = fake.sample([fake.run(), fake.run("fpt", cycles=900)])
    steady, flattened = response["runs"]
    half = (flattened["speedup_high"] or 0) - (flattened["speedup_low"] or 0)
    # A node is taken apart in one window's stretch: known of the whole run, it is in the figure alone.
    cost = 2 * flattened["windows"][7]["cycles"]  # type: ignore[operator]
    flattened["windows"][7]["cycles"] += cost  # type: ignore[operator]
    flattened["cycles"] += cost  # type: ignore[operator]
    flattened["ipc"] = flattened["instructions"] / (flattened["cycles"] or 1)
    add_speedups(response["runs"], response["sampling"])
    sampled = (flattened["speedup_high"] or 0) - (flattened["speedup_low"] or 0)
    assert sampled > 4 * half
    for run in (steady, flattened):
        for window in run["windows"]:
            window["kernel_cycles"] = 0
    flattened["windows"][7]["kernel_cycles"] = cost
    speed = flattened["speedup"]
    add_speedups(response["runs"], response["sampling"])
    known = (flattened["speedup_high"] or 0) - (flattened["speedup_low"] or 0)
    assert flattened["speedup"] == speed
    assert known < 1.5 * half


def test_windows_that_lie_close_together_are_warmed_by_what_is_between_them() -> None:
    response = fake.sample([fake.run()])
    [run], sampling = response["runs"], response["sampling"]
    assert sampling is not None
    sampling |= {"warmup_instructions": 200_000, "filling_instructions": 1_600_000}
    for number, window in enumerate(run["windows"]):
        window["at"] = 30_000 + number * 75_000
    # Between windows of 25 k are 50 k, and 30 k before the first.
    assert room(run) == [30_000, *39 * [50_000]]
    assert "after up to 200 k of warm-up each, 49.5 k on average" in judged_words(response)
    for number, window in enumerate(run["windows"]):
        window["at"] = 30_000 + number * 225_000
    assert "after 200 k of warm-up each, up to 1.6 M before the first" in judged_words(response)


def test_what_was_stopped_is_said_of_every_part() -> None:
    response = fake.sample([fake.run()])
    sampling = response["sampling"]
    assert sampling is not None
    sampling |= {"first_instruction": 1_000_000, "cut_short": "the run was stopped by Ctrl-C"}
    assert "of 1 G until the run was stopped by Ctrl-C (" in judged_words(response)
    sampling["sampled"] = False
    assert "of 1 G until the run was stopped by Ctrl-C (" in judged_words(response)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"window_instructions": 500_000, "warmup_instructions": 4_500_000},
            (
                "Judged: 40 windows of up to 500 k instructions, spread over the whole run of 1 G "
                "(0.1 % of it), after 4.5 M of warm-up each."
            ),
        ),
        (
            {"kernels_followed": True},
            (
                "Judged: 40 windows of 25 k instructions, spread over the whole run of 1 G (0.1 % of it), "
                "after 200 k of warm-up each; all page faults and system calls count."
            ),
        ),
        (
            {"instructions_total": None, "coverage": None, "warmup_instructions": 0},
            (
                "Judged: 40 windows of 25 k instructions, spread over instructions 0 to 1 G of a run whose "
                "length is not known (0.1 % of them)."
            ),
        ),
        (
            {"first_instruction": 2_000_000, "instructions_represented": 998_000_000},
            (
                "Judged: 40 windows of 25 k instructions, spread over instructions 2 M to 1 G of 1 G "
                "(0.1 % of them), after 200 k of warm-up each."
            ),
        ),
        (
            {"windows": 2},
            (
                "Judged: 2 windows of up to 25 k instructions, spread over the whole run of 1 G "
                "(0.1 % of it), after 200 k of warm-up each. So few windows do not tell how sure the "
                "figures are."
            ),
        ),
        (
            {"sampled": False},
            (
                "Judged: instructions 200 k to 1.2 M of 1 G (0.1 %), one part. "
                "What came before and after it is not judged, so no interval can be given."
            ),
        ),
        (
            {"warmup_instructions": 0, "cut_short": "the run was stopped by --time 1"},
            (
                "Judged: 40 windows of 25 k instructions, spread over all 1 G until the run was stopped by "
                "--time 1 (0.1 % of them)."
            ),
        ),
        (
            {
                "sampled": False,
                "coverage": 1.0,
                "instructions_total": 1_000_000,
                "cut_short": "the trace was cut off when it was recorded or copied",
            },
            "Judged: all 1 M instructions until the trace was cut off when it was recorded or copied.",
        ),
        (
            {"sampled": False, "coverage": 1.0, "instructions_total": 1_000_000},
            "Judged: the whole run, all of its 1 M instructions.",
        ),
    ],
)
def test_what_was_judged_is_said(changes: dict[str, Any], words: str) -> None:
    response = fake.sample([fake.run()])
    cast("dict[str, Any]", response["sampling"]).update(changes)
    assert judged_words(response) == words


def test_what_an_asked_error_lacks() -> None:
    response = fake.sample(fake.gups(), own=0.02)
    assert missing(response["runs"], response["sampling"], 0.5) is not None
    found = missing(response["runs"], response["sampling"], 0.002)
    assert found is not None
    assert not found.reached
    assert found.needed is not None
    assert found.needed > 100
    assert found.words.startswith("±0.2 % is not reached: the speed-up of ")
    assert f"{found.needed - 40} windows more would do it, {found.needed} instead of 40." in found.words
    found = missing(response["runs"], response["sampling"], 0.05)
    assert found is not None
    assert found.reached
    assert found.words == "All speed-ups are known to ±5 % or better."
    found = missing(response["runs"], None, 0.05)
    assert found is not None
    assert not found.reached
    assert "cannot be said" in found.words
    assert missing([fake.run()], None, 0.05) is None, "nothing is compared"


def test_an_asked_error_is_what_the_tables_say() -> None:
    """Of a speed-up of 25 %, ±1 % is 24 to 26 %."""
    response = fake.sample([fake.run(), fake.run("fpt+ptp", cycles=800)])
    run = response["runs"][1]
    half = max((run["speedup_high"] or 0) - 1.25, 1.25 - (run["speedup_low"] or 0))
    assert units.margin(1.25, run["speedup_low"], run["speedup_high"]) == f"±{100 * half:.1f}"
    for error, is_reached in ((1.01 * half, True), (0.99 * half, False), (half / 1.25, False)):
        found = missing(response["runs"], response["sampling"], error)
        assert found is not None
        assert found.half == pytest.approx(half)
        assert found.reached == is_reached
        assert (found.needed == 40) == is_reached


def test_half_the_warm_up_must_agree() -> None:
    response = fake.sample([fake.run(), fake.run("fpt", cycles=900), fake.run("fpt+ptp", cycles=800)])
    half = fake.sample([fake.run(), fake.run("fpt", cycles=900), fake.run("fpt+ptp", cycles=801)])
    cast("Sampling", half["sampling"])["warmup_instructions"] = 100_000
    found = bias(response, half)
    assert found == {
        "schemes": ["radix4", "fpt+ptp"],
        "machine": "skylake-server",
        "settings": {},
        "large_pages": 0,
        "thp": None,
        "warmup_instructions": 200_000,
        "half_warmup_instructions": 100_000,
        "speedup": 1.25,
        "speedup_low": pytest.approx(1.2446, abs=0.0001),
        "speedup_high": pytest.approx(1.2554, abs=0.0001),
        "half_warmup_speedup": pytest.approx(1000 / 801),
        "agrees": True,
        "remedy": "--warmup 800k",
    }
    assert bias_words(found) == (
        "With half the warm-up fpt+ptp is +24.8 % against radix4, with all of it +25.0 %, as near as the "
        "interval allows."
    )
    half = fake.sample([fake.run(), fake.run("fpt+ptp", cycles=850)])
    found = bias(response, half)
    assert found is not None
    assert not found["agrees"]
    assert bias_words(found) == (
        "The warm-up is too short: with half the warm-up fpt+ptp is +17.6 % against radix4, with all of it "
        "+25.0 %, more apart than the interval allows; try --warmup 800k."
    )
    assert bias(response, fake.sample([fake.run("radix5")])) is None


def test_what_is_within_the_noise_but_not_the_interval_is_not_said_to_be_in_it() -> None:
    response = fake.sample([fake.run(), fake.run("fpt+ptp", cycles=800)], own=0.001)
    half = fake.sample([fake.run(), fake.run("fpt+ptp", cycles=803)])
    found = bias(response, half)
    assert found is not None
    assert found["agrees"]
    assert found["half_warmup_speedup"] < (found["speedup_low"] or 0)
    words = (
        "With half the warm-up fpt+ptp is +24.5 % against radix4, with all of it +25.0 %, "
        "within ±0.5 % of each other."
    )
    assert bias_words(found) == words
    for run in response["runs"]:
        run["windows"].clear()
    found = bias(response, half)
    assert found is not None
    assert (found["speedup_low"], bias_words(found)) == (None, words), "nothing is known, as of SimPoint's"
    far = bias(response, fake.sample([fake.run(), fake.run("fpt+ptp", cycles=850)]))
    assert far is not None
    assert "with all of it +25.0 %, more apart than 0.5 %; try --warmup 800k." in bias_words(far)


def _first_form(response: Response) -> dict[str, Any]:
    runs = [dict(run) for run in response["runs"]]
    for run in runs:
        for key in ("windows", "cycle_stack", "speedup_low", "speedup_high", "intervals"):
            run.pop(key, None)
    return {"schema": "flatwalk-compare/1", "version": "0", "trace": response["trace"], "runs": runs}


def test_both_forms_are_read(tmp_path: Path) -> None:
    response = fake.sample(fake.gups())
    path = tmp_path / "out.json"
    path.write_text(json.dumps(answer(response)))
    again = read_answer(path)
    assert again["schema"] == "flatwalk-compare/2"
    assert again["runs"] == response["runs"]
    assert again["sampling"] == response["sampling"]
    path.write_text(json.dumps(_first_form(response)))
    old = read_answer(path)
    assert old["schema"] == "flatwalk-compare/2"
    assert old["sampling"] is None
    for run, other in zip(old["runs"], response["runs"], strict=True):
        assert run["speedup"] == other["speedup"]
        assert not run["windows"]
        assert not run["cycle_stack"]
        assert run["speedup_low"] is None
        assert run["intervals"] is None
    from flatwalk.report import render

    assert "fpt+ptp is best, 32 % faster than radix4" in render(old)


@pytest.mark.parametrize(
    "key", ["data_bytes", "page_table", "walk_queue_cycles", "walk_access_cycles", "windows", "cycle_stack"]
)
def test_a_run_that_lacks_what_figures_need_is_refused(tmp_path: Path, key: str) -> None:
    found = answer(fake.sample(fake.gups()))
    path = tmp_path / "out.json"
    path.write_text(
        json.dumps(found | {"runs": [{of: run[of] for of in run if of != key} for run in found["runs"]]})
    )
    with pytest.raises(FlatwalkError, match=f"it lacks {key}"):
        read_answer(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 2),
        ("trace", []),
        ("sampling", 3),
        ("bias", 3),
        ("settings", None),
        ("configuration", None),
        ("ipc", "x"),
        ("instructions", None),
        ("windows", 3),
        ("windows", [3]),
        ("cycle_stack", {}),
        ("warnings", None),
        ("speedup", "x"),
    ],
)
def test_a_figure_that_is_something_else_is_refused(tmp_path: Path, key: str, value: object) -> None:
    found = answer(fake.sample(fake.gups()))
    (found if key in found else found["runs"][1])[key] = value
    path = tmp_path / "out.json"
    path.write_text(json.dumps(found))
    with pytest.raises(FlatwalkError, match=f"not a whole result: its {key} is of the wrong kind"):
        read_answer(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("no", "is not JSON"),
        pytest.param("[" * 100_000, "is not JSON", id="deep"),
        ("[]", "not the result"),
        ('{"schema": "flatwalk-mix/1"}', "not the result"),
        ('{"schema": []}', "not the result"),
        ('{"schema": "flatwalk-compare/2"}', "it has no runs"),
        ('{"schema": "flatwalk-compare/1"}', "it has no runs"),
        ('{"schema": "flatwalk-compare/2", "runs": []}', "it has no runs"),
        ('{"schema": "flatwalk-compare/2", "runs": [1]}', "it has no runs"),
        ('{"schema": "flatwalk-compare/2", "runs": [{}]}', "it lacks version, trace"),
        (
            '{"schema": "flatwalk-compare/2", "version": "0", "trace": {}, "runs": [{}]}',
            "it lacks scheme, machine, workload",
        ),
    ],
)
def test_what_is_no_answer_is_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "out.json"
    path.write_text(content)
    with pytest.raises(FlatwalkError, match=words):
        read_answer(path)
    with pytest.raises(FlatwalkError, match="cannot be read"):
        read_answer(tmp_path / "none.json")


_TABLE = """
from flatwalk.comparison.presenting import show_table
from tests import fake
response = fake.sample(fake.gups())
for run in response["runs"]:
    run["scheme"] = "virt-" + run["scheme"]
show_table(response["runs"], "gups:8GiB on it")
"""


def _table_lines(width: int) -> list[str]:
    seen = on_terminal([sys.executable, "-c", _TABLE], width)
    return re.sub(r"\x1b\[[\d;]*m", "", seen).splitlines()


@pytest.mark.parametrize("width", [50, 80, 100, 200])
def test_nothing_is_cut_on_a_terminal(width: int) -> None:
    lines = _table_lines(width)
    text = "\n".join(lines)
    assert "…" not in text
    assert max(len(line.rstrip()) for line in lines) <= width
    rows = {line.split()[0]: line.split() for line in lines if line.strip().startswith("virt-")}
    assert list(rows) == [f"virt-{name}" for name in fake.GUPS], "names are whole, each on a line of its own"
    assert rows["virt-fpt+ptp"][1:3] == ["+31.6", "%"]
    if width >= 80:
        header = " ".join(text[: text.index("virt-radix4")].split())
        for word in ("speed-up", "±", "walks/1000", "accesses/walk", "translation"):
            assert word in header
    assert ("MiB" in text) == (width == 200), "what is needed least is left out first"
