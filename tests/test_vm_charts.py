"""The charts of `vm bench`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk.vm import bench, charts, timed
from flatwalk.vm.counting import CAUSES
from tests.test_vm_live import boot

if TYPE_CHECKING:
    from pathlib import Path

SVG = "{http://www.w3.org/2000/svg}"


def row(program: str, mode: str, faults: int, *, entries: float = 4.0, levels: int = 4) -> bench.Row:
    """A program whose kernel had this many page faults to answer, and half as many system calls."""
    spent = dict.fromkeys(CAUSES, 0) | {"fault": faults, "syscall": faults // 2}
    flat = 0 if mode == "off" else 2 << 20
    kernel = {bench.LOADING: spent, bench.RUNNING: dict.fromkeys(CAUSES, 10)}
    return bench.Row(program, mode, levels, entries, kernel, {}, (1 << 20) + flat, flat)


ROWS = [row("redis", "off", 2000), row("redis", "l3l2", 1000, entries=3.0), row("<b>", "off", 10)]


def test_instructions_are_stacked_by_what_they_were_for() -> None:
    kernel, entries, tables = charts.counted(ROWS)
    loading, running = kernel.panels[:2]
    assert (loading.label, running.label) == ("redis, loading", "redis, running")
    off, flat = loading.rows
    assert [(part.start, part.length) for part in off.segments] == [(0, 1 / 3), (1 / 3, 2 / 3)]
    assert [part.colour for part in off.segments] == [1, 2]
    assert [(part.start, part.length) for part in flat.segments] == [(0, 1 / 6), (1 / 6, 1 / 3)]
    assert (off.cells, flat.cells) == (["3", "1.000"], ["2", "0.500"])
    # These have one scale.
    assert [part.length for panel in entries.panels for one in panel.rows for part in one.segments] == [
        1,
        0.75,
        1,
    ]
    assert tables.panels[0].rows[1].cells == ["3 MiB", "2 MiB"]


def test_levels_are_distinguished_where_there_are_several() -> None:
    made = charts.counted([*ROWS, row("redis", "off", 3000, levels=5)])[1]
    assert [panel.label for panel in made.panels] == ["redis, 4 levels", "<b>, 4 levels", "redis, 5 levels"]


def test_time_is_compared_with_off() -> None:
    rows = [timed.Row("gups", "off", 4, [boot(1000), boot(1000)]), timed.Row("gups", "l2l1", 4, [boot(800)])]
    walks, latency, ipc, speed = charts.clocked(rows)
    assert [one.cells for one in walks.panels[0].rows] == [["20.00"], ["20.00"]]
    assert [one.cells for one in latency.panels[0].rows] == [["100.0"], ["80.0"]]
    assert [one.segments[0].length for one in ipc.panels[0].rows] == [0.8, 1]
    assert [(one.name, one.cells) for one in speed.panels[0].rows] == [("l2l1", ["+25.0 %"])]
    assert charts.clocked([rows[1]])[-1].panels == []


def test_a_picture_holds_all_of_a_chart() -> None:
    made = charts.counted(ROWS)[0]
    drawn = ET.fromstring(charts.picture(made))
    words = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"Kernel instructions", "redis, loading", "<b>, running", "page faults", "0.500"} <= set(words)
    titles = [title.text for title in drawn.iter(f"{SVG}title")]
    assert "l3l2: system calls" in titles
    # Nothing is beyond the edge.
    width, height = (float(drawn.attrib[name]) for name in ("width", "height"))
    groups = list(drawn.iter(f"{SVG}g"))
    assert len(groups) == 4
    for group in groups:
        x, y = map(float, re.findall(r"[\d.]+", group.attrib["transform"]))
        for rectangle in group.iter(f"{SVG}rect"):
            assert x + float(rectangle.attrib["x"]) + float(rectangle.attrib["width"]) <= width + 0.02
        for text in group.iter(f"{SVG}text"):
            assert y + float(text.attrib["y"]) <= height


def test_pictures_go_where_the_document_has_them(tmp_path: Path) -> None:
    document = tmp_path / "SYSTEM.md"
    document.write_text("![Entries](system/gups-entries.svg) ![Kernel](system/redis-kernel.svg)\n")
    made = charts.counted(ROWS)
    assert charts.draw(document, "gups", made) == [tmp_path / "system" / "gups-entries.svg"]
    assert (tmp_path / "system" / "gups-entries.svg").read_text() == charts.picture(made[1])
    # What has no bars has no picture.
    assert charts.draw(document, "redis", [replace(made[0], panels=[])]) == []


@pytest.mark.parametrize("made", [charts.counted(ROWS)])
def test_a_page_holds_all_charts(made: list[Any]) -> None:
    text = charts.page(made, "1.2.3")
    assert all(chart.title in text for chart in made)
    assert "<b>, loading" not in text
    assert "flatwalk 1.2.3" in text
