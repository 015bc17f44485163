"""What a measurement shows: a table, what follows from it, and how far it can be trusted."""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.host import bpf, results, stats, wording
from flatwalk.terminal import output

if TYPE_CHECKING:
    from flatwalk.host.results import Result


def show(result: Result) -> None:
    """Prints a result: a table, sentences, counters, warnings."""
    by_variant = results.values(result)
    summaries = {name: stats.summarise(found, rate=result["rate"]) for name, found in by_variant.items()}
    extra = {
        "pagefault": ("faults/page", "faults_per_page"),
        "ebizzy": ("faults/record", "faults_per_record"),
        "gups": ("errors", "errors"),
    }.get(result["bench"])
    rows = []
    for name, summary in summaries.items():
        half = _half(summary, rate=result["rate"])
        row = [
            result["titles"].get(name, name),
            wording.number(summary.mean),
            wording.interval(summary.interval),
            f"± {wording.percent(half)}",
            str(summary.n),
        ]
        if extra:
            said = results.answers(result, name, extra[1])
            row.append(wording.number(sum(said) / len(said)) if said else "–")
        rows.append(row)
    mean = "harmonic mean" if result["rate"] else "mean"
    of = "of its reciprocal" if result["rate"] else ""
    headers = [result["bench"] + " ", f"{mean}, {result['unit']}", "95 % interval", of, "runs"]
    output.table(headers + ([extra[0]] if extra else []), rows)
    for sentence in sentences(result):
        output.say(sentence)
    _counters(result, list(summaries))
    for name, buckets in result["histograms"].items():
        print(*bpf.lines(name, buckets), sep="\n")
    for line in result["skipped"]:
        output.say(f"not measured: {line}")
    for line in result["notes"]:
        output.say(f"note: {line}")
    for line in doubts(result, summaries):
        output.say(f"warning: {line}")


def _half(summary: stats.Summary, *, rate: bool) -> float:
    """Half of the interval over the mean; of a rate that of its reciprocal, about which it is symmetric."""
    low, high = summary.interval.low, summary.interval.high
    if not rate:
        return (high - low) / 2 / summary.mean
    return (1 / low - 1 / high) / 2 * summary.mean if low > 0 else math.inf


#: Faults a page from which the variant on huge pages counts as partly on small ones.
_SINGLY = 0.05


def doubts(result: Result, summaries: dict[str, stats.Summary]) -> list[str]:
    """What makes the result untrustworthy: of the host, and of the values themselves."""
    found = list(result["warnings"])
    per_page = results.answers(result, "huge", "faults_per_page")
    # Of 2 MiB pages one fault maps 512: what is far above that are small pages.
    if per_page and (small := sum(per_page) / len(per_page)) > _SINGLY:
        found.append(
            f"{units.percent(min(small, 1.0))} of the pages of huge came one by one, as small pages: the "
            "kernel had no more free huge ones, or may not make them."
        )
    wrong = sum(sum(results.answers(result, name, "errors")) for name in summaries)
    if wrong:
        found.append(
            f"{wrong:.0f} words were wrong after the updates: this machine computes or stores wrong values."
        )
    drifting = [name for name, summary in summaries.items() if summary.drifts]
    if drifting:
        found.append(
            f"The host drifted while measuring {', '.join(drifting)}: neighbouring runs resemble each "
            "other, and the intervals are wider because of it."
        )
    return found


def paired(result: Result, a: str, b: str) -> tuple[float, stats.Interval, float]:
    """Mean of b − a round by round, its interval, and p for no difference."""
    by_round: dict[int, dict[str, float]] = {}
    for sample in result["samples"]:
        by_round.setdefault(sample["round"], {})[sample["variant"]] = sample["value"]
    pairs = [(turn[a], turn[b]) for turn in by_round.values() if a in turn and b in turn]
    return stats.paired([first for first, _ in pairs], [second for _, second in pairs])


def sentences(result: Result) -> list[str]:
    """What follows from a result, each sentence with its figures."""
    by_variant = results.values(result)
    match result["bench"]:
        case "walk":
            return _of_walks(result)
        case "pagefault":
            return _of_faults(result, by_variant)
        case "gups":
            return _of_gups(by_variant)
        case "ebizzy":
            return _of_ebizzy(by_variant)
    return []


def more_cold_levels(result: Result, before: str, after: str) -> int:
    """How many levels more are cold in a variant of `walk` than in another, as their titles say."""
    titles = (result["titles"].get(name, "") for name in (before, after))
    first, second = (int(found[1]) if (found := _COLD.search(title)) else 0 for title in titles)
    return second - first


def steps(result: Result) -> dict[tuple[str, str], tuple[float, stats.Interval, float]]:
    """What each variant of `walk` takes more than the one before it.

    The mean, its interval, and p for no difference, adjusted for the number of steps.
    """
    names = list(results.values(result))
    found = {
        (before, after): paired(result, before, after)
        for kind in ("stride-", "loads-")
        for before, after in itertools.pairwise(name for name in names if name.startswith(kind))
    }
    adjusted = stats.holm([p for _, _, p in found.values()])
    return {
        pair: (mean, within, p) for (pair, (mean, within, _)), p in zip(found.items(), adjusted, strict=True)
    }


def _of_walks(result: Result) -> list[str]:
    lines = []
    found = steps(result)
    for (before, after), (mean, within, p) in found.items():
        kind = before.partition("-")[0] + "-"
        verdict = "" if p < 0.05 else ", which is not a measurable difference"
        said = "One more dependent cold load"
        if kind == "stride-":
            more = more_cold_levels(result, before, after)
            said = f"{more} more cold levels of the table" if more else "Pages farther apart"
            said = "One more cold level of the table" if more == 1 else said
        lines.append(
            f"{said} ({before.removeprefix(kind)} → {after.removeprefix(kind)}): "
            f"{mean:+.0f} ns ({within.low:+.0f} … {within.high:+.0f}){verdict}."
        )
    if len(found) > 1:
        lines.append(f"What is measurable holds for all {len(found)} together (p adjusted by Holm's method).")
    return lines


#: What the title of a variant of `walk` says of levels.
_COLD = re.compile(r": (\d+) cold level")


def _of_faults(result: Result, by_variant: dict[str, list[float]]) -> list[str]:
    lines = []
    for name, found in by_variant.items():
        per_page = results.answers(result, name, "faults_per_page")
        if per_page and 0 < (share := sum(per_page) / len(per_page)) < 0.9:
            mean = stats.summarise(found).mean
            lines.append(
                f"{name}: one fault maps {1 / share:.0f} pages, so a fault costs "
                f"{wording.number(mean / share)} ns and a page {wording.number(mean)} ns."
            )
    return lines


def _of_gups(by_variant: dict[str, list[float]]) -> list[str]:
    if not {"small", "huge"} <= by_variant.keys():
        return []
    found = stats.compare(by_variant["small"], by_variant["huge"], rate=True)
    return [f"Huge pages against small ones: {wording.verdict(found, found.welch.p, rate=True)}."]


def _of_ebizzy(by_variant: dict[str, list[float]]) -> list[str]:
    lines = []
    for unmap in ("unmap", "keep"):
        means = {
            int(name.split("-")[0]): stats.summarise(found, rate=True).mean
            for name, found in by_variant.items()
            if name.endswith(unmap)
        }
        most = max(means, default=1)
        if most > 1:
            lines.append(
                f"{'With' if unmap == 'unmap' else 'Without'} munmap, {most} threads do "
                f"{means[most] / means[1]:.2f} times the work of one."
            )
    return lines


def _counters(result: Result, names: list[str]) -> None:
    by_variant = {name: results.counts(result, name) for name in names}
    events = list(dict.fromkeys(event for found in by_variant.values() for event in found))
    if events:
        rows = [
            [name, *(wording.number(found[event]) if event in found else "–" for event in events)]
            for name, found in by_variant.items()
        ]
        print()
        output.table(["counted per run", *events], rows)


def as_json(result: Result) -> str:
    """The result with its statistics, as JSON."""
    summaries = {
        name: vars(stats.summarise(found, rate=result["rate"]))
        | {"interval": vars(stats.summarise(found, rate=result["rate"]).interval)}
        for name, found in results.values(result).items()
    }
    return output.as_json({**result, "summaries": summaries, "sentences": sentences(result)}, indent=1)
