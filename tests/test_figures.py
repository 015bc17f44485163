"""Figures for papers: what is drawn has the figures' sizes, and what is written is as wide as a column."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from flatwalk.answer.results import answer
from flatwalk.errors import UsageError
from flatwalk.report import charts, drawing, figures, render, timeline, tree
from tests import fake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flatwalk.answer.results import Response
    from tests.conftest import Result

    Call = Callable[..., Result]


def drawn(key: str, columns: int = 2) -> Any:
    runs = fake.sample(fake.gups())["runs"]
    chart = next(chart for chart in charts.build(runs) if chart.key == key)
    return figures.draw(chart, columns).axes


def scale(axes: Any) -> tuple[float, float]:
    """Where 0 is, and the axis' own units for each of its width, read off its ticks."""
    marks = [label.get_text().replace("−", "-").strip(" %") for label in axes.get_xticklabels()]
    places = axes.get_xticks()
    unit = (float(marks[-1]) - float(marks[0])) / (places[-1] - places[0])
    return places[0] - float(marks[0]) / unit, unit


def values(axes: Any) -> dict[str, float]:
    """The end of each row's bars in the axis' own units."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    zero, unit = scale(axes)
    ends: dict[str, float] = {}
    for patch in axes.patches:
        (left, top), (right, bottom) = patch.get_window_extent().get_points()
        (left, top), (right, bottom) = axes.transData.inverted().transform([(left, top), (right, bottom)])
        name = names[round((top + bottom) / 2)]
        end = left if right <= zero + 1e-6 else right
        ends[name] = max(ends.get(name, end), end, key=lambda x: abs(x - zero))
    return {name: (end - zero) * unit for name, end in ends.items()}


def test_bars_are_as_long_as_the_figures() -> None:
    found = values(drawn("speed")[0])
    base = fake.GUPS["radix4"][0]
    for name, (cycles, *_) in fake.GUPS.items():
        assert found[name] == pytest.approx(100 * (base / cycles - 1), abs=0.01), name
    found = values(drawn("accesses")[0])
    for name, (_, accesses, *_) in fake.GUPS.items():
        if accesses is not None:
            assert found[name] == pytest.approx(accesses, rel=0.001), name


def test_whiskers_are_the_intervals() -> None:
    runs = fake.sample(fake.gups())["runs"][: len(fake.GUPS)]
    axes = drawn("speed")[0]
    zero, unit = scale(axes)
    found = [path.vertices[:, 0] for lines in axes.collections for path in lines.get_paths()]
    wanted = [(run["speedup_low"], run["speedup_high"]) for run in runs]
    wanted = [(low, high) for low, high in wanted if low != high]
    assert len(found) == len(wanted) > 5
    for (left, right), (low, high) in zip(found, wanted, strict=True):
        assert low is not None
        assert high is not None
        assert (left - zero) * unit == pytest.approx(100 * (low - 1), abs=0.01)
        assert (right - zero) * unit == pytest.approx(100 * (high - 1), abs=0.01)


def everything() -> Response:
    """An answer whose report has every chart."""
    response = fake.sample(fake.gups(0) + fake.gups(100))
    for run in response["runs"]:
        run["page_table"]["trees"] = [fake.tree()]  # type: ignore[list-item]
        fake.blamed(run, {"/a": (600, 90_000), "/b": (300, 20_000), "": (300, 20_000)})
    return response


#: The report's charts; a new one is to be drawn, too.
CHARTS = [
    "speed", "cycles", "accesses", "latency", "served", "memory", "histogram", "timeline", "tree", "blame",
]  # fmt: skip


def test_every_chart_of_the_report_is_drawn() -> None:
    assert list(drawing.charts(everything())) == CHARTS
    sections = set(re.findall(r'data-metric="(\w+)"', render(everything())))
    assert sections == {*CHARTS, "schemes", "figures"}, "words and a table are no charts"


@pytest.mark.parametrize("key", CHARTS)
@pytest.mark.parametrize("columns", [1, 2])
def test_nothing_stands_outside(key: str, columns: int) -> None:
    figure: Any = drawing.charts(everything())[key](columns)
    figure.canvas.draw()
    width, height = figure.bbox.width, figure.bbox.height
    texts = [text for axes in figure.axes for text in (*axes.texts, *axes.get_yticklabels())] + figure.texts
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= -1, text
        assert box.x1 <= width + 1, text
        assert box.y1 <= height + 1, text


@pytest.mark.parametrize("key", CHARTS)
@pytest.mark.parametrize("columns", [1, 2])
def test_long_names_leave_room_for_the_bars(key: str, columns: int) -> None:
    """Of schemes, and of machines with settings, which stand above the bars."""
    answer = everything()
    for number, run in enumerate(answer["runs"]):
        if run["scheme"] == "fpt+ptp":
            run["scheme"] = "a-scheme-" * 9
        run["settings"] = {"llc.size_bytes": (1 + number % 2) << 22, "core.branch_predictor": "tage-" * 9}
    figure: Any = drawing.charts(answer)[key](columns)
    figure.canvas.draw()
    width, height = figure.bbox.width, figure.bbox.height
    texts = list(figure.texts)
    for axes in figure.axes:
        assert axes.bbox.width >= 0.15 * width
        texts += [*axes.texts, *axes.get_yticklabels(), axes._left_title]  # noqa: SLF001
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= -1, text
        assert box.x1 <= width + 1, text
        assert box.y1 <= height + 1, text


def test_a_timeline_has_every_course() -> None:
    answer = everything()
    [shown] = timeline.build(answer["runs"], answer.get("sampling"))
    axes: Any = drawing.charts(answer)["timeline"](1).axes
    strips = [strip for panel in shown.panels for strip in panel.strips]
    assert [one.get_title(loc="left") for one in axes] == [strip.title for strip in strips]
    for one, strip in zip(axes, strips, strict=True):
        courses = [line for line in one.lines if len(line.get_xdata()) > 2]
        assert len(courses) == len(strip.lines)
        first = [float(x) for x in re.findall(r"[ML]([\d.]+)", strip.lines[0].path)]
        assert list(courses[0].get_xdata()) == first
        assert [label.get_text() for label in one.get_yticklabels()] == [strip.high, strip.low]


def test_a_timeline_has_the_bound_of_the_first_scheme() -> None:
    """In a guest that is free translation in a guest, whatever comes first."""
    runs = [fake.run("virt-radix4"), *(fake.run(name, cycles=500) for name in ("ideal", "virt-ideal"))]
    for members, names in ((runs, {"virt-radix4", "virt-ideal"}), (runs[:2], {"virt-radix4"})):
        answer = fake.sample(members)
        [shown] = timeline.build(answer["runs"], answer.get("sampling"))
        assert {name for _, name in shown.legend} == names


def test_a_tree_has_a_box_for_each_row_as_dark_as_it_is_full() -> None:
    runs = everything()["runs"][:1]
    axes: Any = drawing.charts({**everything(), "runs": runs})["tree"](2).axes[0]
    [[shown]] = [panel.trees for panel in tree.build(runs)]
    boxes = [(patch.get_x(), patch.get_width()) for patch in axes.patches]
    assert boxes == [(row.column / 4, row.width / 4) for row in shown.rows]
    dark = [patch.get_alpha() for patch in axes.patches]
    assert sorted(range(5), key=lambda at: dark[at]) == sorted(range(5), key=lambda at: shown.rows[at].shade)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["L4", "L3", "L2", "L1"]
    assert "L2, fall-back" in [label.get_text() for label in axes.get_yticklabels()]


def test_bars_of_blame_are_shares_of_the_walks() -> None:
    axes: Any = drawing.charts(everything())["blame"](2).axes[0]
    found = {
        label.get_text(): patch.get_width()
        for label, patch in zip(axes.get_yticklabels(), axes.patches, strict=True)
    }
    assert found == {
        "a": pytest.approx(0.5), "b": pytest.approx(0.25), "all others": pytest.approx(0.25),
    }  # fmt: skip


def test_only_some_schemes_are_drawn(tmp_path: Path, call: Call) -> None:
    (tmp_path / "a.json").write_text(json.dumps(answer(everything())))
    done = call("figures", "a.json", "--only", "tree,speed", "--schemes", "radix4, fpt", "--format", "svg")
    assert done.out.split() == ["a-tree.svg", "a-speed.svg"]
    drawn_names = (tmp_path / "a-speed.svg").read_text()
    assert ">fpt</text>" in drawn_names
    assert ">ideal</text>" not in drawn_names
    assert (tmp_path / "a-tree.svg").read_text().count(">L4L3</text>") == 4
    refused = call("figures", "a.json", "--schemes", "fptt")
    assert (refused.code, "there are radix4, " in refused.err) == (2, True)


def test_what_is_drawn_alone_is_compared_with_its_first(tmp_path: Path, call: Call) -> None:
    response = fake.sample([fake.run("radix4"), fake.run("fpt", cycles=800), fake.run("fpt+ptp", cycles=400)])
    (tmp_path / "a.json").write_text(json.dumps(answer(response)))
    out = call("figures", "a.json", "--latex", "--schemes", "fpt,fpt+ptp").out
    rows = [line.split(" & ") for line in map(str.strip, out.splitlines()) if line.startswith("fpt")]
    assert [row[:2] for row in rows] == [["fpt", r"0.0 \%"], ["fpt+ptp", r"+100.0 \%"]], "not over radix4"


def test_files_are_as_wide_as_a_column_and_the_same_twice(tmp_path: Path, call: Call) -> None:
    (tmp_path / "a.json").write_text(json.dumps(answer(fake.sample(fake.gups()))))
    done = call("figures", "a.json", "--only", "speed, cycles")
    assert done.out.split() == ["a-speed.pdf", "a-cycles.pdf"]
    first = (tmp_path / "a-speed.pdf").read_bytes()
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", first)
    assert box is not None
    assert float(box[1]) == pytest.approx(3.33 * 72, abs=0.1)
    assert b"/Type3" not in first, "journals refuse such fonts"
    call("figures", "a.json", "--only", "speed")
    assert (tmp_path / "a-speed.pdf").read_bytes() == first
    assert call("figures", "a.json", "--format", "svg", "--columns", "2", "--only", "speed").code == 0
    svg = (tmp_path / "a-speed.svg").read_text()
    assert 'width="504pt"' in svg
    for name in fake.GUPS:
        assert f">{name}</text>" in svg
    assert call("figures", "a.json", "--format", "png", "--only", "served").code == 0
    assert (tmp_path / "a-served.png").read_bytes().startswith(b"\x89PNG")


def test_the_directory_of_files_is_made(tmp_path: Path, call: Call) -> None:
    (tmp_path / "a.json").write_text(json.dumps(answer(fake.sample(fake.gups()))))
    for _ in range(2):
        done = call("figures", "a.json", "--only", "speed", "--format", "svg", "--to", "paper/figures")
        assert (done.code, done.out) == (0, "paper/figures/a-speed.svg\n"), done.err
    assert (tmp_path / "paper" / "figures" / "a-speed.svg").is_file()


#: Names that mean something else to matplotlib: mathematics, which these are not, and what has no entry.
ODD = (r"a$\b$", "_private")


def test_names_are_drawn_as_they_are(tmp_path: Path, call: Call) -> None:
    response = fake.sample([fake.run(), fake.run("fpt", cycles=900), fake.run("fpt+ptp", cycles=800)])
    for run, name in zip(response["runs"][1:], ODD, strict=True):
        run["scheme"] = name
    (tmp_path / "a.json").write_text(json.dumps(answer(response)))
    done = call("figures", "a.json", "--format", "svg")
    assert done.code == 0, done.err
    for chart, names in (("speed", ODD), ("timeline", ODD[1:])):  # over the run only the best one is drawn
        texts = re.findall(">(.*?)</text>", (tmp_path / f"a-{chart}.svg").read_text())
        assert set(names) <= set(texts), chart


def test_every_curve_has_its_name_and_every_place_its_figure(tmp_path: Path) -> None:
    places = [1 << number for number in range(12)]
    table = runs(ways=places * 2, scheme=[name for name in ODD for _ in places], ipc=[0.5, 1.5] * 12)
    drawing.plot(table, tmp_path / "c.svg", x="ways", y="ipc", by="scheme", over=None, columns=1)
    texts = re.findall(">(.*?)</text>", (tmp_path / "c.svg").read_text())
    assert set(ODD) <= set(texts)
    assert {"1", "16", "1024"} <= set(texts)
    assert [text for text in texts if "$" in text] == [ODD[0]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "speeds"], "there are speed, cycles"),
        (["--format", "jpg"], "one of pdf, svg, png"),
        (["--to", "a.json"], "a.json cannot be made"),
        (["--to", "a.json/figures"], "a.json/figures cannot be made"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    tmp_path: Path, call: Call, arguments: list[str], words: str
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(answer(fake.sample(fake.gups()))))
    done = call("figures", "a.json", *arguments)
    assert done.code == 2
    assert words in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    "option", [("--only", "speed"), ("--to", "figures"), ("--format", "svg"), ("--columns", "2")]
)
def test_a_latex_table_has_nothing_that_is_drawn(tmp_path: Path, call: Call, option: tuple[str, str]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(answer(fake.sample(fake.gups()))))
    done = call("figures", "a.json", "--latex", *option)
    assert (done.code, done.out, option[0] in done.err) == (2, "", True), done.err


def test_latex_has_every_row_and_no_raw_character(tmp_path: Path, call: Call) -> None:
    response = fake.sample(fake.gups())
    response["runs"][1]["scheme"] = r"a_b&c\d#"
    (tmp_path / "a.json").write_text(json.dumps(answer(response)))
    out = call("figures", "a.json", "--latex").out
    assert r"a\_b\&c\textbackslash{}d\#" in out
    rows = [line for line in out.splitlines() if line.endswith(r"\\")]
    assert len(rows) == len(response["runs"]) + out.count(r"\toprule")
    assert len({line.count(" & ") for line in rows}) == 1
    assert not re.search(r"(?<!\\)[%#_]", out)
    out.encode("ascii")
    answered = fake.sample([fake.run(), fake.run() | {"machine": "zen4"}])
    (tmp_path / "b.json").write_text(json.dumps(answer(answered)))
    captions = re.findall(r"caption{(.*)}", call("figures", "b.json", "--latex").out)
    assert captions == ["gups:8GiB on skylake-server, 4 KiB pages", "gups:8GiB on zen4, 4 KiB pages"]


def runs(**columns: Any) -> pa.Table:
    return pa.table(columns)


def test_curves_go_through_the_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = runs(
        size=[4, 4, 8, 8],
        scheme=["a", "a", "a", "b"],
        speedup=[1.0, 1.2, 1.3, 2.0],
        speedup_low=[0.9, 1.1, 1.2, None],
        speedup_high=[1.1, 1.4, 1.5, None],
    )
    found: list[figures.Curve] = []
    monkeypatch.setattr(figures, "draw_curves", lambda curves, *_: found.extend(curves))
    monkeypatch.setattr(figures, "write", lambda *_: None)
    drawing.plot(table, tmp_path / "x.pdf", x="size", y="speedup", by="scheme", over=None, columns=1)
    assert [curve.name for curve in found] == ["a", "b"]
    assert found[0].points == [(4, pytest.approx(1.1), 0.9, 1.4), (8, 1.3, 1.2, 1.5)]
    assert found[1].points == [(8, 2.0, None, None)]


def test_only_numbers_are_drawn(tmp_path: Path) -> None:
    table = runs(size=[4, 8], scheme=["a", "b"])
    with pytest.raises(UsageError, match="scheme is no number"):
        drawing.plot(table, tmp_path / "x.svg", x="size", y="scheme", by=None, over=None, columns=1)
    assert not list(tmp_path.iterdir())


def test_curves_and_maps_are_drawn(tmp_path: Path) -> None:
    table = runs(
        **{"llc.size_bytes": [1 << 20, 2 << 20] * 2, "ways": [4, 4, 8, 8], "speedup": [1.0, 1.1, 1.2, 1.3]}
    )
    size = "llc.size_bytes"
    drawing.plot(table, tmp_path / "c.svg", x=size, y="speedup", by="ways", over=None, columns=1)
    curves = (tmp_path / "c.svg").read_text()
    assert ">1 MiB</text>" in curves
    assert ">2 MiB</text>" in curves
    drawing.plot(table, tmp_path / "m.svg", x=size, y="speedup", by=None, over="ways", columns=1)
    cells = (tmp_path / "m.svg").read_text()
    for value in ("1", "1.1", "1.2", "1.3"):
        assert f">{value}</text>" in cells


def test_names_that_begin_alike_stay_apart() -> None:
    names = [f"radix4+Mine(entries={number})" for number in (16, 32)]
    found = figures._shortened(["radix4", *names], 18)  # noqa: SLF001
    assert len(set(found.values())) == 3
    assert all(len(name) <= 18 for name in found.values())
