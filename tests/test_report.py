from __future__ import annotations

import base64
import hashlib
import itertools
import re
import tomllib
from html.parser import HTMLParser
from typing import cast

import pytest

from flatwalk.answer.results import Response, Run, add_speedups
from flatwalk.definitions import settings, toml
from flatwalk.report import charts, glossary, render, timeline, tree
from tests import fake


def _response(runs: list[Run]) -> Response:
    return cast("Response", fake.response(runs))


class _Checker(HTMLParser):
    """Collects what the tests ask about, and that tags are closed in order."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input", "rect", "line", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag, f"{tag} closed out of order at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text += data


def _parse(html: str) -> _Checker:
    checker = _Checker()
    checker.feed(html)
    assert checker.open in ([], ["p"])
    return checker


@pytest.fixture(scope="module")
def html() -> str:
    runs = fake.gups(0) + fake.gups(100)
    runs[0]["warnings"] = ["warm-up shorter than the footprint"]
    return render(fake.sample(runs))


def test_the_report_needs_nothing_else(html: str) -> None:
    page = _parse(html)
    tags = [tag for tag, _ in page.seen]
    assert not {*tags} & {"link", "img", "iframe", "object"}
    assert tags.count("script") == 1
    assert not re.findall(r"(?:src|href)=.(?!#)|https?://(?!www.w3.org)|url\(|@import|fetch\(", html)


def test_only_the_script_and_the_style_of_the_page_are_permitted(html: str) -> None:
    policy = next(a["content"] or "" for tag, a in _parse(html).seen if "http-equiv" in a)
    for element in ("script", "style"):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert not re.search(r"\s(?:style|on[a-z]+)=", html)


def test_the_report_says_it_in_words_first(html: str) -> None:
    text = _parse(re.sub("<form.*?</form>", "", html, flags=re.DOTALL)).text
    order = [
        "The answer",
        "2 MiB pages make radix4 33 % faster than 4 KiB pages (33 to 34 %)",
        "fpt+ptp is best, 32 % faster than radix4 (31 to 32 %)",
        "Judged: 40 windows of 25 k instructions, spread over the whole run of 1 G (0.1 % of it)",
        "Warnings",
        "Speed-up",
        "Over the run",
        "Scheme by scheme",
        "Where the cycles go",
        "Accesses per walk",
        "Latency of a walk",
        "Where the accesses of walks hit",
        "Page-table memory",
        "Walk latencies",
        "All figures",
        "What was run",
        "Words",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "4106 × 4 KiB" in text


def test_every_picture_has_a_name_or_is_decoration(html: str) -> None:
    page = _parse(html)
    ids = {attrs["id"] for _, attrs in page.seen if "id" in attrs}
    for tag, attrs in page.seen:
        if tag == "svg" and attrs.get("role") == "img":
            assert attrs["aria-label"]
        if "aria-labelledby" in attrs:
            assert attrs["aria-labelledby"] in ids


def test_names_are_text_and_never_markup() -> None:
    runs = [fake.run("radix4"), fake.run("fpt", cycles=900)]
    for run in runs:
        run["workload"] = "<script>alert(1)</script> & co"
    add_speedups(runs)
    page = _parse(render(_response(runs)))
    assert [tag for tag, _ in page.seen].count("script") == 1, "the page's own"
    assert "<script>alert(1)</script> & co" in page.text


def test_words_lead_to_their_meanings_once_in_a_text() -> None:
    links = glossary.Links()
    text = links("<b> walks, walks & fall-backs; prewalk")
    assert [word.word for word in links.used()] == ["fall-back", "walk"]
    assert text.count("<a ") == 2
    assert text.startswith("&lt;b&gt; <a ")
    assert re.sub("<.*?>", "", text) == "&lt;b&gt; walks, walks &amp; fall-backs; prewalk"
    keys = [word.key for word in glossary.words()]
    assert len(set(keys)) == len(keys)
    forms = [form for word in glossary.words() for form in word.forms]
    assert len(set(forms)) == len(forms)


@pytest.mark.parametrize("kind", ["scheme", "machine"])
def test_settings_are_shown_as_toml_that_can_be_read(kind: str) -> None:
    for name in settings.names(kind):
        loaded = (settings.scheme if kind == "scheme" else settings.machine)(name)
        assert tomllib.loads(toml.text(loaded)) == loaded
    assert (
        toml.text({"a": None, "b c": [{"d": 1}, {"d": True}]}) == '[["b c"]]\nd = 1\n\n[["b c"]]\nd = true\n'
    )


def test_a_tree_is_as_wide_and_as_full_as_its_nodes() -> None:
    run = fake.run("fpt")
    run["page_table"]["trees"] = [fake.tree()]  # type: ignore[list-item]
    ((tree_,),) = (panel.trees for panel in tree.build([run]))
    assert (tree_.levels, tree_.covers) == (["L4", "L3", "L2", "L1"], "256 TiB")
    rows = [(row.level, row.under, row.column, row.width, row.shade) for row in tree_.rows]
    assert rows == [
        ("L4L3", None, 0, 2, 1),
        ("L2L1", 0, 2, 2, 5),
        ("L2", 0, 2, 1, 1),
        ("L1", 2, 3, 1, 1),
        ("L2L1", 0, 2, 2, 1),
    ]
    assert [row.is_fallback for row in tree_.rows] == [False, False, True, False, False]
    assert tree_.rows[4].entries == "33 pages of 4 KiB, 512 parts of larger pages"
    assert tree_.rows[4].place[1] == 0.5, "the last of the lower half"
    run_of, single = tree_.rows[3].shown
    assert (run_of.name, run_of.first, run_of.last) == ("entries 0 to 2", "0x10200000000", "0x10200002fff")
    assert single.what == "maps the page at 0x99000: 0x99067"
    assert tree_.rows[3].left == "2 more entries"
    assert tree_.rows[2].shown[0].what == "the first leads to the node at 0x12345000: 0x80000012345067"
    del run["page_table"]["trees"]  # type: ignore[misc]
    assert tree.build([run]) == []


@pytest.mark.parametrize("mode", ["timing", "functional", "no walks", "one", "slower", "equal"])
def test_bars_stay_in_their_boxes(mode: str) -> None:
    runs = {
        "timing": fake.gups(),
        "functional": [fake.run("radix4", cycles=None), fake.run("fpt", cycles=None, per_walk=1.0)],
        "no walks": [fake.run(s, per_walk=None, reading=None, waiting=None) for s in ("radix4", "fpt")],
        "one": [fake.run("radix4")],
        "slower": [fake.run("radix4"), fake.run("fpt", cycles=1500), fake.run("radix5", cycles=990)],
        "equal": [fake.run("radix4"), fake.run("fpt")],
    }[mode]
    add_speedups(runs)
    for chart in charts.build(runs):
        for tick in chart.ticks:
            assert -1e-9 <= tick.at <= 1 + 1e-9, (chart.key, tick)
        for panel in chart.panels:
            for row in panel.rows:
                assert len(row.cells) == len(chart.columns)
                for segment in row.segments:
                    assert -1e-9 <= segment.start <= segment.start + segment.length <= 1 + 1e-9
    _parse(render(_response(runs)))


def test_intervals_are_whiskers_about_the_ends_of_bars() -> None:
    runs = fake.gups()
    response = fake.sample(runs)
    (chart,) = (chart for chart in charts.build(response["runs"]) if chart.key == "speed")
    rows = {row.name: row for row in chart.panels[0].rows}
    assert rows["radix4"].whisker is None, "it is what the others are compared with"
    for name, row in rows.items():
        if name != "radix4":
            assert row.whisker is not None
            end = row.segments[0].start + row.segments[0].length
            at = end if row.segments[0].colour != 1 else row.segments[0].start
            assert 0 <= row.whisker[0] < at < row.whisker[1] <= 1
    assert rows["fpt+ptp"].cells[1].startswith("±0.")
    add_speedups(runs)
    (plain,) = (chart for chart in charts.build(runs) if chart.key == "speed")
    assert plain.columns == ["speed-up", "IPC"]


def test_the_cycle_stack_is_all_of_the_time() -> None:
    runs = fake.gups()
    (chart,) = (chart for chart in charts.build(runs) if chart.key == "cycles")
    lengths = {row.name: sum(s.length for s in row.segments) for row in chart.panels[0].rows}
    assert lengths["fpt"] / lengths["radix4"] == pytest.approx(0.925)
    (figures,) = chart.figures
    for row, run in zip(figures.rows, runs, strict=True):
        assert sum(map(float, row[1:])) == pytest.approx((run["cycles"] or 0) / run["instructions"], abs=2e-4)
    many = fake.run()
    fake.stack(many, **{f"part_{number}": 0.04 for number in range(20)})
    (chart,) = (chart for chart in charts.build([many]) if chart.key == "cycles")
    assert len(chart.legend) == charts.COLOURS
    assert chart.legend[-1] == (charts.COLOURS - 1, "all else")
    assert sum(s.length for s in chart.panels[0].rows[0].segments) == pytest.approx(1)
    assert "cycles" not in {chart.key for chart in charts.build([fake.run()])}, "an answer of before"


def test_the_timeline_is_of_the_whole_run() -> None:
    response = fake.sample(fake.gups(0) + fake.gups(100), windows=10, total=5_000_000)
    (found,) = timeline.build(response["runs"], response["sampling"])
    assert (found.start, found.end) == ("instruction 0", "5 M")
    assert found.legend == [(1, "radix4"), (0, "fpt+ptp"), (3, "ideal")]
    assert [panel.label for panel in found.panels] == ["4 KiB pages", "2 MiB pages"]
    walks, ipc, speed = found.panels[0].strips
    assert [len(strip.lines) for strip in (walks, ipc, speed)] == [2, 3, 2]
    numbers = [float(number) for number in re.findall(r"[\d.]+", ipc.lines[0].path)]
    across, down = numbers[::2], numbers[1::2]
    assert len(across) == 10
    assert across == sorted(across)
    assert 0 <= across[0] < across[-1] <= 1000
    assert all(0 <= one <= 100 for one in down)
    assert speed.zero is not None
    response = fake.sample(fake.gups(), windows=2)
    assert timeline.build(response["runs"], response["sampling"]) == []
    assert timeline.build(fake.gups(), None) == []


@pytest.mark.parametrize(
    ("change", "room"), [(0.002, 0.25), (-0.002, 0.25), (0.3, 1.0), (-0.3, 1.0), (0.0, 0.0)]
)
def test_a_small_change_is_a_small_bar(change: float, room: float) -> None:
    chart = charts.changes("key", "", "", ["change"], [("", [charts.Change("fpt", change)])])
    (segment,) = chart.panels[0].rows[0].segments
    assert segment.length <= room
    assert segment.length >= 0.9 * room * (room == 1)
    assert "0" in {tick.label for tick in chart.ticks}


def test_marks_of_changes_leave_room_for_their_labels() -> None:
    rows = [charts.Change("a", 0.4), charts.Change("b", -0.38)]
    chart = charts.changes("key", "", "", ["change"], [("", rows)])
    places = [tick.at for tick in chart.ticks]
    assert len(places) > 3
    assert all(after - before >= charts.LEAST_GAP for before, after in itertools.pairwise(places))


def test_stacks_are_as_long_as_their_sums() -> None:
    runs = fake.gups()
    by_key = {chart.key: chart for chart in charts.build(runs)}
    served = by_key["served"].panels[0].rows
    assert all(sum(s.length for s in row.segments) == pytest.approx(1) for row in served)
    latency = {row.name: sum(s.length for s in row.segments) for row in by_key["latency"].panels[0].rows}
    assert latency["fpt"] / latency["radix4"] == pytest.approx((69 + 6 + 1) / (95 + 12 + 1))
    assert [label for _, label in by_key["latency"].legend] == ["look-ups and reads", "waiting for a walker"]
    [memory] = [row for row in by_key["memory"].panels[0].rows if row.name == "radix4"]
    assert memory.segments[0].title == "radix4: 4,106 nodes of 4 KiB"


def test_quantiles_come_from_the_histogram() -> None:
    run = fake.run("radix4")
    run["walk"]["latency_histogram"] = [
        {"from_cycles": 0, "to_cycles": 10, "walks": 50},
        {"from_cycles": 10, "to_cycles": 20, "walks": 40},
        {"from_cycles": 20, "to_cycles": 100, "walks": 9},
        {"from_cycles": 100, "to_cycles": 200, "walks": 1},
    ]
    add_speedups([run])
    histogram = next(chart for chart in charts.build([run]) if chart.key == "histogram")
    assert histogram.panels[0].rows[0].cells == ["10", "20", "100"]


def test_links_lead_to_the_settings_of_their_variant() -> None:
    runs = []
    for llc, pages in ((1 << 20, 0), (1 << 20, 100), (2 << 20, 0), (2 << 20, 100)):
        for priority in (0.5, 0.9):
            for scheme in ("radix4", "fpt"):
                run = fake.run(scheme, cycles=900, large_pages=pages)
                run["configuration"]["machine"]["llc"]["size_bytes"] = llc
                run["settings"] = {"llc.size_bytes": llc, "scheme.threshold": priority}
                if scheme == "fpt":
                    run["configuration"]["scheme"]["threshold"] = priority
                runs.append(run)
    add_speedups(runs)
    html = render(_response(runs))
    shown = re.findall(r'<summary>([^<]*)</summary><pre id="(settings-\d+)">(.*?)</pre>', html, re.DOTALL)
    titles = [title for title, _, _ in shown]
    assert [title for title in titles if not title.startswith("run")] == [
        "scheme radix4",
        "machine skylake-server with llc.size_bytes=1MiB",
        "scheme fpt with scheme.threshold=0.5",
        "scheme fpt with scheme.threshold=0.9",
        "machine skylake-server with llc.size_bytes=2MiB",
    ]
    assert len({text for _, _, text in shown}) == len(shown), "equal settings stand once"
    texts = {key: text for _, key, text in shown}
    links = re.findall(
        r'<h3>([^<]*)</h3>|<a class="name" href="#(settings-\d+)">fpt</a>',
        html[html.index('id="chart-speed"') :],
    )
    label, seen = "", 0
    for heading, key in links:
        label = heading or label
        if key:
            (value,) = re.findall(r"scheme.threshold=(0.\d)", label)
            assert f"threshold = {value}" in texts[key], label
            seen += 1
    assert seen > 8
