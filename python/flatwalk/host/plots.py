"""Pictures of measurements and address spaces: HTML files without scripts or network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.host import results, stats, wording
from flatwalk.report import templates

if TYPE_CHECKING:
    from flatwalk.host.process import Area, Level, Process
    from flatwalk.host.results import Result


@dataclass(frozen=True)
class Strip:
    """One file's measurements of a variant: places from 0 to 1 along the axis."""

    label: str
    points: list[float]
    low: float
    mean: float
    high: float
    words: str


@dataclass(frozen=True)
class Panel:
    """One variant: both files' measurements on one axis."""

    title: str
    strips: list[Strip]
    axis: tuple[str, str]
    verdict: str
    differs: bool


def _panel(
    title: str,
    pair: tuple[list[float], list[float]],
    names: tuple[str, str],
    one: stats.Comparison,
    verdict: tuple[str, bool],
) -> Panel:
    low, high = min(map(min, pair)), max(map(max, pair))
    for summary in (one.a, one.b):
        low, high = min(low, summary.interval.low), max(high, min(summary.interval.high, 2 * high))
    span = (high - low) or 1.0

    def place(value: float) -> float:
        return min(max((value - low) / span, 0.0), 1.0)

    strips = [
        Strip(
            name,
            [place(value) for value in found],
            place(summary.interval.low),
            place(summary.mean),
            place(summary.interval.high),
            f"{wording.number(summary.mean)} ({wording.interval(summary.interval)}), {summary.n} runs",
        )
        for name, found, summary in zip(names, pair, (one.a, one.b), strict=True)
    ]
    return Panel(title, strips, (wording.number(low), wording.number(high)), *verdict)


def diff(
    a: Result,
    b: Result,
    names: tuple[str, str],
    found: dict[str, tuple[stats.Comparison, float]],
    changes: list[str],
) -> str:
    """All measurements of two results, as HTML."""
    first, second = results.values(a), results.values(b)
    panels = [
        _panel(
            a["titles"].get(name, name),
            (first[name], second[name]),
            names,
            one,
            (wording.verdict(one, p, rate=a["rate"], words=results.changed(a)), p < 0.05),
        )
        for name, (one, p) in found.items()
    ]
    return templates.fill(
        "host",
        "diff.html.j2",
        title=f"{a['bench']}: {names[0]} and {names[1]}",
        unit=a["unit"],
        mean="harmonic mean" if a["rate"] else "mean",
        panels=panels,
        changes=changes,
        warnings=dict.fromkeys([*a["warnings"], *b["warnings"]]),
        version=a["version"],
    )


@dataclass(frozen=True)
class Cluster:
    """Areas that lie near each other, on one scale."""

    title: str
    #: x, width (of 1000) and kind: mapped, small or large pages.
    bars: list[tuple[float, float, str]]


#: Areas farther apart than this are drawn on their own scales.
_GAP = 1 << 32


def _clusters(found: Process) -> list[Cluster]:
    groups: list[list[Area]] = []
    for area in found.areas:
        if groups and area.start - groups[-1][-1].end < _GAP:
            groups[-1].append(area)
        else:
            groups.append([area])
    clusters = []
    for group in groups:
        low, high = group[0].start, group[-1].end

        def bar(
            start: int, end: int, kind: str, low: int = low, high: int = high
        ) -> tuple[float, float, str]:
            scale = 1000 / (high - low)
            return (start - low) * scale, max((end - start) * scale, 0.4), kind

        bars = [bar(area.start, area.end, "track") for area in group]
        # Thousands of pieces per picture would only be drawn over each other.
        drawn = -1.0
        for pages in found.pages:
            if low <= pages.start < high:
                piece = bar(pages.start, pages.end, "c1" if pages.large else "c0")
                if piece[0] + piece[1] > drawn + 0.2 or pages.large:
                    bars.append(piece)
                    drawn = piece[0] + piece[1]
        names = dict.fromkeys(area.name.rsplit("/", 1)[-1] for area in group if area.name)
        title = f"{low:#x} … {high:#x}, {units.size(high - low)}"
        clusters.append(Cluster(f"{title}: {', '.join(list(names)[:6])}" if names else title, bars))
    return clusters


def address_space(
    found: Process,
    levels: list[Level],
    headers: list[str],
    rows: list[list[str]],
    version: str,
    *,
    notes: list[str] | None = None,
) -> str:
    """A process's address space, its page table under each scheme, as HTML.

    With `notes`, or those about the process alone.
    """
    small, large = found.present_bytes()
    biggest = sorted(found.areas, key=lambda area: area.sizes.get("Rss", 0), reverse=True)[:20]
    return templates.fill(
        "host",
        "inspect.html.j2",
        title=f"Process {found.pid}: {found.name}",
        small=units.size(small),
        large=units.size(large),
        clusters=_clusters(found),
        levels=[(level, units.size(level.bytes), units.percent(level.occupancy)) for level in levels],
        headers=headers,
        rows=rows,
        areas=[
            (
                f"{area.start:#x}",
                units.size(area.end - area.start),
                units.size(area.sizes.get("Rss", 0)),
                units.size(area.huge_bytes),
                area.rights,
                area.name or "anonymous",
            )
            for area in biggest
        ],
        notes=found.notes if notes is None else notes,
        version=version,
    )
