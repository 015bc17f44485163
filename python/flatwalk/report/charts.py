"""The report's charts: what each shows, in numbers from 0 to 1, for the template to draw.

A chart is a table whose rows carry a bar, so the figures stand next to the picture, a screen reader
reads them, and bars stretch with the page while text keeps its size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.answer import blame, causes
from flatwalk.answer.explain import served
from flatwalk.answer.results import grouped, is_bound, place_label, walks_per_1000

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flatwalk.answer.blame import Blame
    from flatwalk.answer.results import Run

#: Colours by number; the style sheet has as many.
COLOURS = 12
#: From the left to the right end of a chart of changes, at least.
LEAST_SPAN = 0.02
#: Marks of a chart of changes are so far apart at least, as a share of its width.
LEAST_GAP = 0.13


@dataclass(frozen=True)
class Segment:
    """A piece of a bar: where it starts and how long it is, as shares of the width."""

    start: float
    length: float
    colour: int
    title: str
    opacity: float = 1.0


@dataclass(frozen=True)
class Row:
    """One scheme's bar and figures."""

    name: str
    segments: list[Segment]
    cells: list[str]
    path: str = ""  # for histograms: an SVG path in a box of 1000 × 100
    whisker: tuple[float, float] | None = None  # from where to where the figure may lie


@dataclass(frozen=True)
class Panel:
    """One large-page setting's rows."""

    label: str
    rows: list[Row]


@dataclass(frozen=True)
class Tick:
    """A mark on the scale below the bars."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """A chart with its title, its explanation, its key and its panels, all to one scale."""

    key: str
    title: str
    note: str
    columns: list[str]
    panels: list[Panel]
    ticks: list[Tick]
    legend: list[tuple[int, str]] = field(default_factory=list)
    origin: float = 0.0
    is_histogram: bool = False
    rows: str = "scheme"  # what the rows are
    figures: list[Figures] = field(default_factory=list)  # of bars with too many pieces to write next to them


@dataclass(frozen=True)
class Figures:
    """A table of one panel's figures, to be unfolded below the bars."""

    label: str
    headers: list[str]
    rows: list[list[str]]


def of_blame(found: Blame) -> Chart:
    """The table of where walks come from as a chart: bars are shares of the walks."""

    def row(one: blame.Row) -> Row:
        figures = blame.cells(one)
        return Row(one.name, [Segment(0, max(one.walks, 0), 0, f"{one.name}: {figures[0]}")], figures)

    return Chart(
        "blame",
        found.title,
        found.key,
        found.headers,
        [Panel(f"by {part.title}", [row(one) for one in part.rows]) for part in found.parts],
        [Tick(step / 2, f"{step * 50} %") for step in range(3)],
    )


def build(runs: list[Run]) -> list[Chart]:
    """All charts that the runs have figures for."""
    timed = runs[0]["cycles"] is not None
    charts = [_speed(runs), _cycles(runs)] if timed else []
    charts.append(_accesses(runs))
    if timed:
        charts += [_latency(runs), _served(runs)]
    charts.append(_page_table(runs))
    if timed:
        charts.append(_histogram(runs))
    return [chart for chart in charts if any(panel.rows for panel in chart.panels)]


def steps(top: float) -> list[float]:
    """About four round numbers from 0 to `top`."""
    if top <= 0:
        return [0.0]
    raw = top / 4
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * 0.999)
    return [step * number for number in range(int(top / step * 1.001) + 1)]


def spaced(ticks: list[Tick]) -> list[Tick]:
    """Ticks far enough apart for their labels on a narrow page, from the left."""
    kept: list[Tick] = []
    for tick in ticks:
        if not kept or tick.at - kept[-1].at >= 0.22:
            kept.append(tick)
    return kept


def _number(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e4 else units.count(value)


def _panels(runs: list[Run], row: Callable[[Run], Row | None]) -> list[Panel]:
    panels = []
    for members in grouped(runs):
        rows = [made for run in members if (made := row(run)) is not None]
        panels.append(Panel(place_label(members[0], runs), rows))
    return panels


def stack(parts: Sequence[tuple[float, int, str]], top: float) -> list[Segment]:
    """A bar's pieces one after the other: of each its value, colour and title; `top` is the whole width."""
    segments, start = [], 0.0
    for value, colour, title in parts:
        if value > 0 and top > 0:
            segments.append(Segment(start / top, value / top, colour, title))
            start += value
    return segments


@dataclass(frozen=True)
class Change:
    """A row of a chart of changes: 0.1 is 10 % more."""

    name: str
    change: float
    figures: list[str] = field(default_factory=list)  # next to the change itself
    is_bound: bool = False
    bounds: tuple[float, float] | None = None  # its interval


def changes(
    key: str, title: str, note: str, columns: list[str], panels: list[tuple[str, list[Change]]]
) -> Chart:
    """A chart of changes, to both sides of a line."""
    every = [row for _, rows in panels for row in rows]
    reached = [0.0, *(row.change for row in every)]
    reached += [bound for row in every if row.bounds is not None for bound in row.bounds]
    low, high = min(reached), max(reached)
    if high - low < LEAST_SPAN:
        # A difference that counts as none is not to fill the picture.
        low, high = min(low, -LEAST_SPAN / 2), max(high, LEAST_SPAN / 2)
    low, high = (
        (1.02 * low - 0.02 * high if low < 0 else 0.0),
        (1.02 * high - 0.02 * low if high > 0 else 0.0),
    )
    span = high - low
    origin = -low / span

    def draw(row: Change) -> Row:
        length = abs(row.change) / span
        start = origin if row.change >= 0 else origin - length
        colour = 3 if row.is_bound else 0 if row.change >= 0 else 1
        text = units.signed_percent(row.change)
        segments = [Segment(start, length, colour, f"{row.name}: {text}")]
        whisker = None
        if row.bounds is not None:
            whisker = (origin + row.bounds[0] / span, origin + row.bounds[1] / span)
        return Row(row.name, segments, [text, *row.figures], whisker=whisker)

    scale = steps(max(high, -low))
    # Every mark, or every second, or fourth: as many as there is room for, with 0 among them.
    stride = next(n for n in (1, 2, 4, 8) if n * scale[1] / span >= LEAST_GAP)
    scale = scale[::stride]
    marks = [step for step in (*(-s for s in reversed(scale[1:])), *scale) if low <= step <= high]
    bounds = [(3, "bound: translation free")] if any(row.is_bound for row in every) else []
    return Chart(
        key,
        title,
        note,
        columns,
        [Panel(label, [draw(row) for row in rows]) for label, rows in panels],
        [
            Tick((mark - low) / span, f"{100 * mark:+g} %".replace("-", "−") if mark else "0")
            for mark in marks
        ],
        origin=origin,
        legend=[(0, "faster"), (1, "slower"), *bounds],
    )


def _speed(runs: list[Run]) -> Chart:
    known = any(run.get("speedup_low") is not None for run in runs)

    def row(run: Run) -> Change:
        ipc = "–" if run["ipc"] is None else f"{run['ipc']:.3f}"
        low, high = run.get("speedup_low"), run.get("speedup_high")
        bounds = None if low is None or high is None or low == high else (low - 1, high - 1)
        change = (run.get("speedup") or 1.0) - 1
        margin = "–" if bounds is None else units.margin(change, *bounds)
        return Change(run["scheme"], change, [margin, ipc] if known else [ipc], is_bound(run), bounds)

    note = f"Speed against {runs[0]['scheme']} at the same large-page setting. Right of the line is faster."
    return changes(
        "speed",
        "Speed-up",
        f"{note} The thin line is where the whole program's figure lies, with a confidence of 95 %."
        if known
        else note,
        ["speed-up", "±", "IPC"] if known else ["speed-up", "IPC"],
        [(place_label(members[0], runs), [row(run) for run in members]) for members in grouped(runs)],
    )


def _cycles(runs: list[Run]) -> Chart:
    """What an instruction's cycles go to; the parts of a bar sum to all of it."""
    stacks = {id(run): run["cycle_stack"] for run in runs}
    sizes: dict[str, int] = {}
    for stack_ in stacks.values():
        for item in stack_:
            sizes[item["part"]] = max(sizes.get(item["part"], 0), item["cycles"])
    present = [part for part, cycles in sizes.items() if cycles]
    # What has no colour of its own, or could not be seen, is drawn as one piece.
    least = 0.002 * max((run["cycles"] or 0 for run in runs), default=0)
    visible = [part for part in present if sizes[part] >= least]
    drawn = sorted(sorted(visible, key=lambda part: -sizes[part])[: COLOURS - 1], key=present.index)
    others = "all else" if len(drawn) < len(present) else None
    colours = {part: number for number, part in enumerate(drawn)}
    top = max((run["cycles"] or 0) / (run["instructions"] or 1) for run in runs) or 1

    def parts(run: Run) -> dict[str, float]:
        found = dict.fromkeys(present, 0.0)
        for item in stacks[id(run)]:
            if item["part"] in found:
                found[item["part"]] += item["cycles"] / (run["instructions"] or 1)
        return found

    def row(run: Run) -> Row | None:
        if not stacks[id(run)]:
            return None
        found, total = parts(run), (run["cycles"] or 0) / (run["instructions"] or 1)
        pieces = [
            (found[part], colours[part], _piece(run, causes.name(part), found[part], total)) for part in drawn
        ]
        if others is not None:
            rest = sum(value for part, value in found.items() if part not in colours)
            pieces.append((rest, COLOURS - 1, _piece(run, others, rest, total)))
        return Row(run["scheme"], stack(pieces, top), [f"{total:.3f}"])

    return Chart(
        "cycles",
        "Where the cycles go",
        "Cycles per instruction by what they went to. The pieces of a bar sum to the whole time.",
        ["cycles per instr."],
        _panels(runs, row),
        spaced([Tick(step / top, _number(step)) for step in steps(top)]),
        legend=[(colour, causes.name(part)) for part, colour in colours.items()]
        + ([(COLOURS - 1, others)] if others else []),
        figures=[
            Figures(
                place_label(members[0], runs),
                ["scheme", *map(causes.name, present)],
                [[run["scheme"], *(f"{value:.4f}" for value in parts(run).values())] for run in members],
            )
            for members in grouped(runs)
            if any(stacks[id(run)] for run in members)
        ],
    )


def _piece(run: Run, part: str, value: float, total: float) -> str:
    share = units.percent(value / total) if total else "–"
    return f"{run['scheme']}: {part}, {value:.3f} cycles per instruction, {share}"


def _walking(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run["walks"] and not is_bound(run)]


def _accesses(runs: list[Run]) -> Chart:
    top = max((run["accesses_per_walk"] or 0 for run in runs), default=0) or 1

    def row(run: Run) -> Row | None:
        if is_bound(run):
            return None
        value = run["accesses_per_walk"]
        rate = walks_per_1000(run)
        text = "–" if value is None else f"{value:.2f}"
        parts = [(value or 0.0, 0, f"{run['scheme']}: {text} accesses per walk")]
        return Row(run["scheme"], stack(parts, top), [text, "–" if rate is None else f"{rate:.3g}"])

    return Chart(
        "accesses",
        "Accesses per walk",
        "Page-table entries that a walk reads from the caches or memory, after the page-walk cache.",
        ["accesses", "walks per 1000 instr."],
        _panels(runs, row),
        spaced([Tick(step / top, _number(step)) for step in steps(top)]),
    )


def _latency(runs: list[Run]) -> Chart:
    top = max((run["walk_latency_cycles"] or 0 for run in runs), default=0) or 1

    def row(run: Run) -> Row | None:
        if is_bound(run):
            return None
        total, queue = run["walk_latency_cycles"], run["walk_queue_cycles"] or 0.0
        access = run["walk_access_cycles"] or 0.0
        parts = [
            (access, 0, f"{run['scheme']}: {access:.1f} cycles of look-ups and reads"),
            (queue, 1, f"{run['scheme']}: {queue:.1f} cycles waiting for a walker"),
        ]
        text = "–" if total is None else f"{total:.1f}"
        return Row(run["scheme"], stack(parts, top), [text, f"{access:.1f}", f"{queue:.1f}"])

    return Chart(
        "latency",
        "Latency of a walk",
        "Cycles from the L2 TLB's miss to the translation, on average.",
        ["cycles", "look-ups and reads", "waiting"],
        _panels(runs, row),
        spaced([Tick(step / top, _number(step)) for step in steps(top)]),
        legend=[(0, "look-ups and reads"), (1, "waiting for a walker")],
    )


def _served(runs: list[Run]) -> Chart:
    def row(run: Run) -> Row | None:
        if run not in walking:
            return None
        shares = served(run)
        parts = [
            (share, number, f"{run['scheme']}: {units.percent(share)} in {place}")
            for number, (place, share) in enumerate(shares.items())
        ]
        return Row(run["scheme"], stack(parts, 1.0), [units.percent(share) for share in shares.values()])

    walking = _walking(runs)
    return Chart(
        "served",
        "Where the accesses of walks hit",
        "Share of the walker's accesses that each level of the memory hierarchy served.",
        ["L1D", "L2", "LLC", "DRAM"],
        _panels(runs, row),
        [Tick(step / 2, f"{step * 50} %") for step in range(3)],
        legend=[(0, "L1D"), (1, "L2"), (2, "LLC"), (3, "DRAM")],
    )


def _page_table(runs: list[Run]) -> Chart:
    top = max((run["page_table_bytes"] for run in runs), default=0) or 1
    kinds = sorted({nodes["node_bytes"] for run in runs for nodes in run["page_table"]["nodes"]})
    colours = {kind: number % COLOURS for number, kind in enumerate(kinds)}

    def row(run: Run) -> Row | None:
        if is_bound(run):
            return None
        sums = dict.fromkeys(kinds, 0)
        counts = dict.fromkeys(kinds, 0)
        for nodes in run["page_table"]["nodes"]:
            sums[nodes["node_bytes"]] += nodes["bytes"]
            counts[nodes["node_bytes"]] += nodes["nodes"]
        parts = [
            (
                float(sums[kind]),
                colours[kind],
                f"{run['scheme']}: {units.several(counts[kind], 'node')} of {units.size(kind)}",
            )
            for kind in kinds
        ]
        nodes_text = (
            " + ".join(f"{counts[kind]} × {units.size(kind)}" for kind in kinds if counts[kind]) or "–"
        )
        return Row(run["scheme"], stack(parts, top), [units.size(run["page_table_bytes"]), nodes_text])

    return Chart(
        "memory",
        "Page-table memory",
        f"Bytes of page-table nodes at the end, for {units.size(runs[0]['data_bytes'])} of data.",
        ["page table", "nodes"],
        _panels(runs, row),
        spaced([Tick(step / top, units.size(step)) for step in _byte_steps(top)]),
        legend=[(colours[kind], f"{units.size(kind)} nodes") for kind in kinds],
    )


def _byte_steps(top: float) -> list[float]:
    unit = 1024.0 ** max(0, int(math.log(max(top, 1), 1024)))
    return [step * unit for step in steps(top / unit)]


def _histogram(runs: list[Run]) -> Chart:
    walking = _walking(runs)
    bins = [item for run in walking for item in run["walk"]["latency_histogram"] if item["walks"]]
    low = min((item["from_cycles"] for item in bins), default=0)
    high = max((item["to_cycles"] for item in bins), default=1)

    def place(cycles: float) -> float:
        """Logarithmic: a hit in the L1 cache and a queue of DRAM accesses both show."""
        return (math.log1p(cycles) - math.log1p(low)) / ((math.log1p(high) - math.log1p(low)) or 1)

    def row(run: Run) -> Row | None:
        if run not in walking:
            return None
        histogram = run["walk"]["latency_histogram"]
        total = sum(item["walks"] for item in histogram)
        if not total:
            return None
        # Height is density on this scale, so that area is walks whatever the widths of the bins.
        densities = []
        for item in histogram:
            start, end = place(item["from_cycles"]), place(item["to_cycles"])
            if item["walks"] and end > start:
                densities.append((start, end, item["walks"] / total / (end - start)))
        peak = max((density for _, _, density in densities), default=1.0)
        path = "M0 100"
        for start, end, density in densities:
            path += f" L{start * 1000:.1f} 100 V{100 - 96 * density / peak:.1f} H{end * 1000:.1f} V100"
        return Row(
            run["scheme"],
            [],
            [_quantile(run, 0.5), _quantile(run, 0.9), _quantile(run, 0.99)],
            path=path + " Z",
        )

    marks = [
        mark for mark in (0, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000) if low <= mark <= high
    ]
    return Chart(
        "histogram",
        "Walk latencies",
        "How long walks take, in cycles, on a logarithmic scale; the area shows how many.",
        ["median ≤", "90 % ≤", "99 % ≤"],
        _panels(runs, row),
        spaced([Tick(place(mark), _number(mark)) for mark in marks]),
        is_histogram=True,
    )


def _quantile(run: Run, share: float) -> str:
    """Upper end of the bin in which `share` of the walks is reached."""
    histogram = run["walk"]["latency_histogram"]
    needed = share * sum(item["walks"] for item in histogram)
    reached = 0
    for item in histogram:
        reached += item["walks"]
        if reached >= needed:
            return str(item["to_cycles"])
    return "–"
