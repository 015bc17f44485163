"""The report in headless Chromium, by clicks and keys."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import sync_playwright

from flatwalk import walking
from flatwalk.definitions import settings
from flatwalk.host import designs, plots, process
from flatwalk.host.process import Area, Pages, Process
from flatwalk.report import render, sweep, walk
from tests import fake
from tests import test_report_sweep as stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Locator, Page

    Open = Callable[..., Page]

#: As a program could be called.
EVIL = "<script>document.title = 'pwned'</script><img src=x onerror=\"document.title='pwned'\">"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "chromium is missing: ./test installs it; by hand: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens HTML as a file; the page may neither complain nor ask for anything."""
    contexts, complaints = [], []

    def open_it(html: str, **how: Any) -> Page:
        file = tmp_path / "page.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(**how)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: complaints.append(asked.url) if asked.url != file.as_uri() else None)
        page.goto(file.as_uri())
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def html() -> str:
    runs = fake.gups(0) + fake.gups(100)
    for run in runs:
        run["page_table"]["trees"] = [fake.tree()]  # type: ignore[list-item]
    return render(fake.sample(runs))


def _column(table: Locator, number: int) -> list[str]:
    """The cells of a column that are shown, or would be if they were in view."""
    rows = table.locator("tbody tr:not(.scale)").all()
    return [row.locator("th, td").nth(number).text_content() or "" for row in rows if row.is_visible()]


def _figures(page: Page) -> Locator:
    return page.locator("section[data-metric=figures] table").first


def test_a_table_is_sorted_by_any_column_and_back(open_: Open, html: str) -> None:
    page = open_(html)
    table = _figures(page)
    before = _column(table, 0)
    header = table.locator("th[scope=col]").nth(1)
    assert header.text_content() == "speed-up"
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert _column(table, 0)[:3] == ["ideal", "fpt+ptp", "radix4+ptp"]
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert _column(table, 0)[0] == "radix5"
    # By keys: to the next column, and sort by that.
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "none"
    assert table.locator("th[scope=col]").nth(3).get_attribute("aria-sort") == "descending"
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert _column(table, 0) == before


def test_figures_are_sorted_by_their_size_and_missing_ones_come_last(open_: Open, html: str) -> None:
    page = open_(html)
    table = _figures(page)
    last = table.locator("th[scope=col]").last
    assert last.text_content() == "page table"
    last.get_by_role("button").click()
    sizes = _column(table, table.locator("th[scope=col]").count() - 1)
    assert sizes == sorted(
        sizes, key=lambda text: -float(text.split()[0]) * (1 << 10 * "KMG".index(text.split()[1][0]))
    )
    per_walk = table.get_by_role("button", name="accesses/walk")
    for _ in range(2):
        per_walk.click()
        assert _column(table, 0)[-1] == "ideal"


def test_a_chart_is_sorted_and_its_scale_stays_below(open_: Open, html: str) -> None:
    page = open_(html)
    table = page.locator("section[data-metric=speed] table").first
    table.get_by_role("button", name="scheme").click()
    names = _column(table, 0)
    assert names[:3] == ["radix5", "radix4+ptp", "radix4"]
    assert "scale" in (table.locator("tbody tr").last.get_attribute("class") or "")


def test_rows_are_filtered_by_text(open_: Open, html: str) -> None:
    page = open_(html)
    page.get_by_label("filter").press_sequentially("PTP")
    assert _column(_figures(page), 0) == ["radix4+ptp", "fpt+ptp"]
    page.get_by_label("filter").fill("")
    assert len(_column(_figures(page), 0)) == len(fake.GUPS)


def test_schemes_are_hidden_and_shown_everywhere(open_: Open, html: str) -> None:
    page = open_(html)
    page.get_by_text("11 schemes").click()
    page.get_by_label("radix3", exact=True).uncheck()
    shown = page.locator("[data-scheme=radix3]")
    assert shown.count() > 10
    assert not any(one.is_visible() for one in shown.all())
    page.get_by_role("button", name="none").click()
    assert _column(_figures(page), 0) == []
    page.get_by_label("fpt", exact=True).press("Space")
    assert _column(_figures(page), 0) == ["fpt"]
    page.get_by_role("button", name="all", exact=True).click()
    assert len(_column(_figures(page), 0)) == len(fake.GUPS)


def test_the_page_size_and_the_metric_are_chosen(open_: Open, html: str) -> None:
    page = open_(html)
    small, large = (page.locator(f"div[data-pages='{label}']") for label in ("4 KiB pages", "2 MiB pages"))
    page.get_by_role("radio", name="2 MiB pages").check()
    assert not any(one.is_visible() for one in small.all())
    assert all(one.is_visible() for one in large.all())
    page.keyboard.press("ArrowLeft")
    assert all(one.is_visible() for one in small.all())
    page.locator("#metric").select_option("Latency of a walk")
    sections = page.locator("section[data-metric]")
    assert [one.get_attribute("data-metric") for one in sections.all() if one.is_visible()] == ["latency"]


def test_a_scheme_leads_to_its_settings_and_a_word_to_its_meaning(open_: Open, html: str) -> None:
    page = open_(html)
    page.locator("section[data-metric=speed] a.name", has_text="fpt+ptp").first.click()
    settings = page.locator("details:has(pre)", has=page.get_by_text("scheme fpt+ptp", exact=True))
    assert settings.locator("pre").is_visible()
    assert 'organisation = "flattened"' in settings.locator("pre").inner_text()
    word = page.locator("a.term", has_text="walk").first
    assert "translation" in (word.get_attribute("title") or "")
    word.click()
    assert page.locator("#word-walk + dd").is_visible()


def test_a_tree_is_zoomed_from_all_addresses_to_a_node(open_: Open, html: str) -> None:
    page = open_(html)
    tree = page.locator("details.tree").first
    rows = tree.locator("tbody tr:not(.entry)")
    assert tree.locator("tbody tr.entry:visible").count() == 0, "entries are shown with their node"
    assert tree.locator("nav.crumbs button").count() == 0
    widths = [box.evaluate("box => box.getBoundingClientRect().width") for box in rows.locator("th").all()]
    flat, _, plain, *_ = widths
    assert flat > 1.5 * plain, "flattened nodes are wide"
    tree.get_by_role("button", name=re.compile("^L2 fall-back")).click()
    shown = [row.locator("th").inner_text() for row in rows.all() if row.is_visible()]
    assert [text.split()[0] for text in shown] == ["L4L3", "L2", "L1"]
    assert tree.locator("nav.crumbs button").all_inner_texts() == ["256 TiB", "node of 1 GiB"]
    assert tree.locator("svg.map rect").count() == 2 + 2, "all of it, its entries, and the node below"
    # By keys: down past its entries to the node below, into it, and back out to everything.
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "an entry: 4 KiB" in tree.locator("nav.crumbs").inner_text()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    whole = "tbody tr:not(.entry):visible"
    assert tree.locator(whole).count() == len(fake.tree()["parts"])
    tree.locator("nav.crumbs button").first.click()
    assert tree.locator(whole).count() == len(fake.tree()["parts"])


def test_a_tree_is_zoomed_down_to_a_single_entry(open_: Open, html: str) -> None:
    page = open_(html)
    tree = page.locator("details.tree").first
    crumbs = tree.locator("nav.crumbs")
    tree.get_by_role("button", name=re.compile("^L1 ")).click()
    shown = tree.locator("tbody tr.entry:visible")
    assert [row.locator("th").inner_text() for row in shown.all()[:2]] == ["entries 0 to 2", "entry 7"]
    assert shown.last.inner_text() == "and 2 more entries of this node"
    assert shown.nth(1).locator(".what").inner_text() == "maps the page at 0x99000: 0x99067"
    tree.get_by_role("button", name="entry 7").click()
    assert tree.locator("tbody tr.entry:visible").count() == 1
    assert crumbs.locator("button").all_inner_texts() == [
        "256 TiB", "node of 1 GiB", "node of 2 MiB", "entry 7",
    ]  # fmt: skip
    assert "0x10200007000 to 0x10200007fff" in (tree.locator("svg.map").get_attribute("aria-label") or "")
    # Of several next to each other one is chosen.
    page.keyboard.press("ArrowLeft")
    tree.get_by_role("button", name="entries 0 to 2").click()
    chosen = crumbs.get_by_role("spinbutton")
    chosen.fill("2")
    assert crumbs.locator("output").inner_text() == "entry 2: 0x10200002000"
    chosen.fill("9")
    assert crumbs.locator("output").inner_text() == "entry 2: 0x10200002000", "there are no more"
    chosen.press("ArrowDown")
    assert crumbs.get_by_role("spinbutton").count() == 1, "keys are the number's here"


@pytest.fixture(scope="module")
def walk_html() -> str:
    answers = [fake.walk("radix4"), fake.walk("fpt")]
    told = [walking.lines(answer) for answer in answers]
    return walk.render(answers, told, [settings.scheme("radix4")] * 2, "0.0.0")


def test_a_walk_is_played_step_by_step(open_: Open, walk_html: str) -> None:
    page = open_(walk_html)
    played = page.locator("section.walk").first
    steps = played.locator("ol.steps > li")

    def shown() -> list[str]:
        return [step.locator("div").inner_text() for step in steps.all() if step.is_visible()]

    texts = [step["text"] for step in fake.walk("radix4")["steps"]]
    assert shown() == texts
    played.get_by_role("button", name="First").click()
    assert shown() == texts[:1]
    assert played.get_by_role("button", name="Previous").is_disabled()
    played.get_by_role("button", name="Next").click()
    assert shown() == texts[:2]
    assert played.locator("output").inner_text() == "step 2 of 4"
    page.keyboard.press("ArrowRight")
    assert steps.nth(2).get_attribute("aria-current") == "step"
    page.keyboard.press("ArrowLeft")
    assert shown() == texts[:2]
    page.keyboard.press("End")
    assert shown() == texts
    page.keyboard.press("Home")
    assert shown() == texts[:1]
    # The other walk is another player.
    assert page.locator("section.walk").nth(1).locator("ol.steps > li:visible").count() == len(texts)


def test_a_walk_is_a_list_without_scripts_and_fits(open_: Open, walk_html: str) -> None:
    page = open_(walk_html, java_script_enabled=False)
    assert page.locator("ol.steps > li:visible").count() == 2 * len(fake.walk("radix4")["steps"])
    _check_fit(open_(walk_html, viewport={"width": 360, "height": 2000}))


@pytest.fixture(scope="module")
def sweep_html() -> str:
    return sweep.render(stored.table(stored.grid()), "flatwalk-results", "0.0.0")


def test_a_sweep_is_sorted_filtered_and_hidden(open_: Open, sweep_html: str) -> None:
    page = open_(sweep_html)
    runs = page.locator("#all-runs")
    assert len(_column(runs, 0)) == len(stored.grid())
    runs.get_by_role("button", name="speed-up").click()
    assert _column(runs, 3)[0] == "+11.7 %"
    page.get_by_label("filter").fill("64 MiB")
    assert set(_column(runs, 1)) == {"64 MiB"}
    assert page.locator(".legend li:visible").count() > 0, "a key is not a row"
    page.get_by_text("2 schemes").click()
    page.get_by_role("checkbox", name="fpt").uncheck()
    assert set(_column(runs, 0)) == {"radix4"}
    curves = page.locator("figure.plot [data-scheme=fpt]")
    assert curves.count() > 0
    assert not any(one.is_visible() for one in curves.all())
    page.locator("#metric").select_option("IPC")
    sections = [
        one.get_attribute("data-metric") for one in page.locator("section[data-metric]:visible").all()
    ]
    assert sections == ["ipc", "ipc", "ipc"]


@pytest.mark.parametrize("width", [360, 1280])
def test_a_sweep_fits_and_reads_without_scripts(open_: Open, sweep_html: str, width: int) -> None:
    _check_fit(open_(sweep_html, viewport={"width": width, "height": 2000}))
    page = open_(sweep_html, java_script_enabled=False)
    assert len(_column(page.locator("#all-runs"), 0)) == len(stored.grid())
    assert page.locator("figure.plot:visible").count() > 0
    assert page.locator("table.heat:visible").count() > 0


def test_a_process_fits(open_: Open) -> None:
    name = "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30"
    area = Area(0x7FFF_C000_0000, 0x7FFF_C000_0000 + (3 << 20), "r-xp", name, {"Rss": 3 << 20})
    found = Process(1234, "a-program", [area], [Pages(area.start, area.end, large=False)], None, [])
    levels = process.radix_levels(found.pages, 4)
    rows = [["fpt-l4l3", "16.04 MiB", "12.5 %", "2.49", "1.02", "80.1", "512 GiB"]] * 2
    html = plots.address_space(found, levels, designs.TABLE_HEADERS, rows, "0.0.0")
    page = open_(html, viewport={"width": 360, "height": 2000})
    _check_fit(page)
    for section in page.locator("section").all():
        assert section.evaluate("one => one.scrollWidth <= one.clientWidth + 1"), "nothing is cut"


def test_names_from_a_trace_do_nothing(open_: Open) -> None:
    runs = [fake.run("radix4"), fake.run("fpt", cycles=900)]
    for run in runs:
        run["workload"] = EVIL
        run["scheme"] += EVIL
    page = open_(render(fake.sample(runs)))
    assert page.locator("img").count() == 0
    assert EVIL in page.locator("h1").inner_text()
    page.get_by_label("filter").fill("img src")
    page.locator("section[data-metric=figures] table button").first.click()
    assert "pwned" not in page.evaluate("document.title").removeprefix(EVIL)


def test_the_policy_stops_what_gets_past_the_escaping(browser: Browser, html: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(html.replace("<h1>", f"<h1>{EVIL}"), encoding="utf-8")
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(file.as_uri())
    assert "pwned" not in page.title()
    assert any("Content Security Policy" in text for text in complaints)
    page.close()


def test_everything_is_there_without_scripts(open_: Open, html: str) -> None:
    page = open_(html, java_script_enabled=False)
    assert not page.locator("#controls").is_visible()
    assert _column(_figures(page), 0) == list(fake.GUPS)
    for section in page.locator("section").all():
        assert section.is_visible()
    assert page.locator("details.tree tbody tr").first.is_visible()
    assert page.locator("button:visible").count() == 0
    assert all(one.is_visible() for one in page.locator("div[data-pages]").all())


_MEASURE = """() => {
const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest("svg, pre, .scroll") &&
  e.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
const clipped = [...document.querySelectorAll("td:not(.bar), th:not(.bar)")].filter(
  e => e.scrollWidth > e.clientWidth + 1);
const thin = [...document.querySelectorAll("td.bar svg:not(.ticks)")].filter(
  e => e.checkVisibility() && e.getBoundingClientRect().width < 60);
const labels = [...document.querySelectorAll("svg")].flatMap(svg => {
  const boxes = [...svg.querySelectorAll("text")].map(e => e.getBoundingClientRect());
  return boxes.filter((box, i) => boxes.some((other, j) => j < i && box.width && other.width &&
    box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom));
});
return JSON.stringify({
  over: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  wide: wide.map(e => e.outerHTML.slice(0, 90)), clipped: clipped.map(e => e.outerHTML.slice(0, 90)),
  thin: thin.length, labels: labels.length, page: getComputedStyle(document.body).backgroundColor,
});
}"""


def _check_fit(page: Page, *, dark: bool = False) -> None:
    measured = json.loads(page.evaluate(_MEASURE))
    assert measured.pop("page") == ("rgb(20, 23, 26)" if dark else "rgb(251, 251, 249)")
    assert measured == {"over": 0, "wide": [], "clipped": [], "thin": 0, "labels": 0}


@pytest.mark.parametrize("width", [360, 500, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_fits(open_: Open, html: str, width: int, scheme: str) -> None:
    page = open_(html, viewport={"width": width, "height": 2000}, color_scheme=scheme)
    _check_fit(page, dark=scheme == "dark")
    # The whole tree is in view; its figures may have to be scrolled to.
    box = page.locator("details.tree tbody tr:not(.entry) th").nth(4)
    box.scroll_into_view_if_needed()
    assert box.evaluate("one => one.getBoundingClientRect().right <= innerWidth - 12")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["a-copy-of-fpt-" + "whose-name-is-long-" * 4, "x" * 90])
def test_a_long_name_takes_several_lines(open_: Open, width: int, name: str) -> None:
    """And leaves every chart whole."""
    runs = [run for run in fake.gups(0) + fake.gups(100) if run["scheme"] in {"radix4", "fpt", "ideal"}]
    for run in runs:
        run["scheme"] = name if run["scheme"] == "fpt" else run["scheme"]
        run["warnings"] = [f"{name} is long"]
        run["workload"] = name
    page = open_(render(fake.sample(runs)), viewport={"width": width, "height": 2000})
    _check_fit(page)
    for box in page.locator("section, .panels > *").all():
        assert box.evaluate("one => one.scrollWidth <= one.clientWidth + 1"), "nothing is cut"


def test_what_is_below_a_number_is_sorted_below_it(open_: Open) -> None:
    runs = [
        fake.run("radix4"),
        *(fake.run(name, cycles=900) for name in ("fpt", "fpt-nonf", "radix5", "ideal")),
    ]
    page = open_(render(fake.sample(runs)))
    table = _figures(page)
    cells = ["40 %", "under 0.1 %", "0.0 %", "<0.1 %", "0.2 %"]
    for row, text in zip(table.locator("tbody tr").all(), cells, strict=True):
        row.locator("td").first.evaluate("(cell, text) => (cell.textContent = text)", text)
    table.locator("th[scope=col]").nth(1).get_by_role("button").click()
    assert _column(table, 1) == ["40 %", "0.2 %", "under 0.1 %", "<0.1 %", "0.0 %"]


def test_lines_of_several_schemes_are_filtered_and_hidden(open_: Open) -> None:
    cycles = {"radix4": 1000, "radix3": 1001, "radix5": 999, "fpt": 900}
    page = open_(render(fake.sample([fake.run(name, cycles=each) for name, each in cycles.items()], own=0.0)))
    line = page.locator(".ranking li", has_text="radix3, radix5")
    assert line.is_visible()
    page.get_by_label("filter").fill("faster")
    assert not line.is_visible()
    page.get_by_label("filter").fill("")
    page.get_by_text("4 schemes").click()
    page.get_by_label("radix3", exact=True).uncheck()
    assert line.is_visible(), "one of the two is chosen"
    page.get_by_label("radix5", exact=True).uncheck()
    assert not line.is_visible()
