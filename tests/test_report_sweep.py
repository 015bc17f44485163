"""The report of stored runs: what varies is found, drawn, and as it is stored."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from flatwalk.lab import points, store
from flatwalk.report import sweep


def row(**figures: object) -> dict[str, Any]:
    """A stored run with chosen figures."""
    usual: dict[str, Any] = dict.fromkeys(store.COLUMNS) | dict.fromkeys(store.COMPUTED)
    usual |= {"source": "gups:1GiB", "machine": "skylake-server", "scheme": "radix4", "mode": "timing"}
    usual |= {"large_pages": 0, "seed": 1, "fragmentation": 0.0, "version": "0.0.0", "ipc": 0.5}
    return usual | {"walks_per_1000": 80.0, "page_table_bytes": 1 << 21} | figures


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows)


def grid(**more: object) -> list[dict[str, Any]]:
    """Two schemes over two axes; the speed-up of one is known to 1 %."""
    found = []
    for llc in (4 << 20, 8 << 20, 64 << 20):
        for entries in (16, 32):
            axes = {"llc.size_bytes": llc, "pwc.entries.L2": entries, **more}
            gain = 1.05 + (llc >> 20) / 1000 + entries / 10000
            found.append(row(speedup=1.0, speedup_low=1.0, speedup_high=1.0, **axes))
            ends = {"speedup_low": gain - 0.01, "speedup_high": gain + 0.01}
            found.append(row(scheme="fpt", speedup=gain, **ends, **axes))
    return found


def charts(rows: list[dict[str, Any]], metric: str) -> dict[str, sweep.Chart]:
    """The charts of a figure, by key."""
    varied = [key for key in rows[0] if key in ("scheme", "large_pages", "seed") or "." in key]
    varied = [key for key in varied if len({row[key] for row in rows}) > 1]
    axes = [key for key in varied if key not in ("scheme", "seed")]
    one = next(known for known in sweep.METRICS if known.key == metric)
    drawn = sweep._Sweep(rows, varied, axes, ["radix4", "fpt"])  # noqa: SLF001
    return {chart.key: chart for chart in drawn.charts(one)}


def test_curves_go_through_their_points_on_a_logarithmic_axis() -> None:
    rows = [one for one in grid() if one["pwc.entries.L2"] == 16]
    (chart,) = charts(rows, "speedup").values()
    (plot,) = chart.plots
    flat, curve = plot.curves
    assert [point.x for point in curve.points] == pytest.approx([0, 25, 100])
    assert {point.y for point in flat.points} == {96.0}, "the baseline is the origin"
    heights = [point.y for point in curve.points]
    assert heights == sorted(heights, reverse=True)
    for point in curve.points:
        assert point.whisker is not None
        low, high = point.whisker
        assert 4 - 1e-9 <= high < point.y < low <= 96
    assert curve.points[0].words == "fpt at 4 MiB: +5.6 % (+4.6 % to +6.6 %)"
    assert "is one run" in chart.note


def test_runs_at_one_place_are_their_mean_and_the_note_says_over_what() -> None:
    both = charts(grid(), "speedup")
    assert list(both) == [
        "speedup-llc.size_bytes",
        "speedup-pwc.entries.L2",
        "speedup-llc.size_bytes-pwc.entries.L2",
    ]
    chart = both["speedup-llc.size_bytes"]
    assert "a mean over pwc.entries.L2;" in chart.note
    assert chart.plots[0].curves[1].points[0].words == "fpt at 4 MiB: +5.6 % (+4.6 % to +6.7 %)"


def test_the_note_says_what_each_groups_interval_holds() -> None:
    rows = grid()
    own = {"speedup_low": None, "speedup_high": None}
    some = [one | own if one["llc.size_bytes"] == 4 << 20 else one for one in rows]
    for known, words in (
        (rows, "holds all of the runs' 95 % intervals."),
        (some, "holds all of the runs' 95 % intervals, or of some the values."),
        ([one | own for one in rows], "holds all of the runs' values."),
    ):
        assert words in charts(known, "speedup")["speedup-llc.size_bytes"].note


def test_a_map_has_each_place_and_the_baseline_none() -> None:
    rows = [one for one in grid() if (one["llc.size_bytes"], one["pwc.entries.L2"]) != (8 << 20, 32)]
    (only,) = charts(rows, "speedup")["speedup-llc.size_bytes-pwc.entries.L2"].maps
    assert only.scheme == "fpt"
    assert only.columns == ["4 MiB", "8 MiB", "64 MiB"]
    names, cells = zip(*only.rows, strict=True)
    assert names == ("16", "32")
    assert [None if cell is None else cell.text for cell in cells[1]] == ["+5.7 %", None, "+11.7 %"]
    assert cells[0][0] == sweep.Cell("+5.6 %", "+4.6 % to +6.6 %", 0)
    assert cells[1][2] is not None
    assert cells[1][2].shade == 5


def test_a_condition_has_a_panel_for_each_value_and_too_many_are_said() -> None:
    rows = [one for pages in (0, 50) for one in grid(large_pages=pages)]
    chart = charts(rows, "ipc")["ipc-llc.size_bytes"]
    assert [plot.label for plot in chart.plots] == ["large_pages 0 %", "large_pages 50 %"]
    rows = [one for pages in range(sweep.MOST_PANELS + 2) for one in grid(large_pages=pages)]
    chart = charts(rows, "ipc")["ipc-llc.size_bytes"]
    assert len(chart.plots) == sweep.MOST_PANELS
    assert "2 more panels are not drawn" in chart.note


def test_a_single_value_has_no_whisker() -> None:
    assert points.spread([{"ipc": 0.5}], "ipc") == (0.5, None, None)
    assert points.spread([{"ipc": 0.5}, {"ipc": 0.75}], "ipc") == (0.625, 0.5, 0.75)


def test_a_whisker_holds_the_mean() -> None:
    for count in range(2, 30):
        rows = [{"ipc": 0.1, "ipc_low": 0.1, "ipc_high": 0.1} for _ in range(count)]
        for one in (rows, [{"ipc": row["ipc"]} for row in rows]):
            middle, low, high = points.spread(one, "ipc")
            assert low is not None
            assert high is not None
            assert low <= middle <= high


def test_runs_that_differ_in_anything_are_no_single_run() -> None:
    """A mean over runs of other cores, contents, lengths or engines is none of one run."""
    rows = [
        row(cores=cores, lengths=lengths, engine=engine, source_hash=contents, seed=seed)
        for cores in (1, 4)
        for lengths in ("skip=0", "skip=1")
        for engine in ("0123456789ab", "ba9876543210")
        for contents in ("abcdef0123", "abcdef9876")
        for seed in (1, 2)
    ]
    page = sweep.render(table(rows[:-1]), "results", "0.0.0")
    varied = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert varied["cores"] == "1, 4"
    assert varied["lengths"] == "skip=0, skip=1"
    assert varied["engine"] == "01234567, ba987654"
    assert varied["source_hash"] == "abcdef01, abcdef98"
    assert "IPC over cores" in page
    assert page.count('<figure class="plot">') == 3 * 8, "of each figure a panel for each of the others"
    words = re.sub("<.*?>", "", page)
    assert "A point is a mean over seed; its interval" in words
    assert "Points are means of different numbers of runs." in words
    assert "A point is one run" not in words
    twice = sweep.render(table([row(cores=cores) for cores in (1, 4, 4)]), "results", "0.0.0")
    assert "A point is a mean over runs that are alike in what is known" in re.sub("<.*?>", "", twice)


def test_what_follows_from_the_source_is_not_said_again() -> None:
    rows = [
        row(source=source, source_hash=contents, lengths=lengths, engine="0123456789ab", cores=cores)
        for source, contents, lengths in (("a.fwt", "abcdef0123", "skip=0"), ("gups", None, "skip=1"))
        for cores in (1, 4)
    ]
    page = sweep.render(table(rows), "results", "0.0.0")
    assert "source_hash" not in page
    assert "lengths" not in page
    assert "engine" not in page


def test_the_page_says_what_varies_and_has_every_run() -> None:
    page = sweep.render(table([one for seed in (1, 2) for one in grid(seed=seed)]), "results", "0.0.0")
    varied = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert varied["llc.size_bytes"] == "4 MiB, 8 MiB, 64 MiB"
    assert varied["seed"] == "1, 2"
    assert varied["machine"] == "skylake-server"
    _, all_runs = page.split('id="all-runs"')
    assert all_runs.count("<tr data-scheme=") == 24
    assert "cycles per walk" not in page, "nothing is known of it"
    one = sweep.render(table([row(scheme="<b>")]), "results", "0.0.0")
    assert "1 run<" in one
    assert "<b>" not in one


def test_numbers_are_in_order_though_some_are_missing() -> None:
    rows = [row(large_pages=share, thp="never" if share is None else None) for share in (100, None, 5, 0)]
    page = sweep.render(table(rows), "results", "0.0.0")
    assert dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page))["large_pages"] == "0 %, 5 %, 100 %, –"
