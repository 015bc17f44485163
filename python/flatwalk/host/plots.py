"""Pictures of measurements and address spaces: HTML files without scripts or network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk.host import results, show, stats

if TYPE_CHECKING:
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


def render(template: str, **values: object) -> str:
    """Fills a template of this package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=PackageLoader("flatwalk", "host"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


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
            f"{show.number(summary.mean)} ({show.interval(summary.interval)}), {summary.n} runs",
        )
        for name, found, summary in zip(names, pair, (one.a, one.b), strict=True)
    ]
    return Panel(title, strips, (show.number(low), show.number(high)), *verdict)


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
            (stats.verdict(one, p, rate=a["rate"]), p < 0.05),
        )
        for name, (one, p) in found.items()
    ]
    return render(
        "diff.html.j2",
        title=f"{a['bench']}: {names[0]} and {names[1]}",
        unit=a["unit"],
        mean="harmonic mean" if a["rate"] else "mean",
        panels=panels,
        changes=changes,
        warnings=dict.fromkeys([*a["warnings"], *b["warnings"]]),
        version=a["version"],
    )
