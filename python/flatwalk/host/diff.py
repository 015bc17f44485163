"""`flatwalk host diff`: whether two results differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk.comparison import presenting
from flatwalk.errors import UsageError
from flatwalk.host import machine, results, show, stats, wording
from flatwalk.terminal import output

if TYPE_CHECKING:
    from flatwalk.host.results import Result


#: Between these are the figures of articles: tests take their fourth powers, which are finite and not 0.
_LEAST, _MOST = 1e-30, 1e30
#: Measurements of a sample, at most.
_MOST_MEASUREMENTS = 10**9


def compare(a: Result, b: Result) -> dict[str, tuple[stats.Comparison, float]]:
    """Every variant that both have: its comparison, and Welch's p adjusted for their number.

    Raises:
        UsageError: If there is none, or one was measured only once.
    """
    first, second = results.values(a), results.values(b)
    between = stats.drift([one for _, one in controls(a, b)])
    common = [name for name in first if name in second]
    if not common:
        raise UsageError("the files have no variant in common", remedy="measure both with the same options")
    found = {}
    for name in common:
        try:
            found[name] = stats.compare(
                first[name], second[name], rate=a["rate"], between=between, questions=len(common)
            )
        except ValueError as error:
            raise UsageError(
                f"variant {name} cannot be compared: {error}", remedy="measure again with more --runs"
            ) from error
    adjusted = stats.holm([comparison.welch.p for comparison in found.values()])
    return {name: (found[name], p) for name, p in zip(found, adjusted, strict=True)}


def controls(a: Result, b: Result) -> list[tuple[str, tuple[stats.Moments, stats.Moments]]]:
    """What cannot differ, by name, in both results. None if one was not measured in enough rounds."""
    first, second = results.controls(a), results.controls(b)
    return [
        (name, (stats.moments(first[name]), stats.moments(second[name])))
        for name in first
        if min(len(first[name]), len(second.get(name, []))) > 1
    ]


def published(text: str) -> stats.Moments | None:
    """Reads `MEAN:SD:N`, as articles give them; None if `text` is a file, or has no colon.

    Raises:
        UsageError: If the figures are not possible.
    """
    if ":" not in text or Path(text).exists():
        return None
    match = re.fullmatch(r"([\d.]+(?:e-?\d+)?):([\d.]+(?:e-?\d+)?):(\d+)", text)
    try:
        mean, sd, n = (float(match[1]), float(match[2]), int(match[3])) if match else (0.0, 0.0, 0)
    except ValueError:
        mean, sd, n = 0.0, 0.0, 0
    if mean <= 0 or n < 2:
        raise UsageError(
            f"{text} is not a sample, nor a file",
            remedy="write MEAN:SD:N, with a mean above 0 and at least 2 measurements, or check the path",
        )
    if not (_LEAST <= mean <= _MOST and (sd == 0 or _LEAST <= sd <= _MOST) and n <= _MOST_MEASUREMENTS):
        raise UsageError(
            f"{text} has a figure that no test can be computed of",
            remedy="give mean and SD in another unit, as 1e-30 to 1e30, and at most 10^9 measurements",
        )
    return stats.Moments(n, mean, sd)


def show_published(a: stats.Moments, b: stats.Moments) -> None:
    """Prints the tests of two published samples of times."""
    one = stats.compare_moments(a, b)
    for name, summary in (("A", one.a), ("B", one.b)):
        within = summary.interval
        low = _minus(f"{within.low:g}")
        output.say(f"{name}: mean {summary.mean:g}, 95 % interval {low} … {within.high:g}")
    for name, test in (("Welch", one.welch), ("pooled", one.pooled)):
        t, low, high = (
            _minus(text)
            for text in (f"{test.t:.3f}", f"{test.difference.low:.4g}", f"{test.difference.high:.4g}")
        )
        output.say(f"{name}: t = {t}, df = {test.df:.4g}, p = {test.p:.4g}, A − B {low} … {high}")
    verdict = wording.verdict(one, one.welch.p)
    output.say(f"B is {verdict}." if one.welch.p < 0.05 else verdict)


def run(path_a: Path, path_b: Path, *, other_host: bool, plot: Path | None, as_json: bool) -> None:
    """Compares two files, prints what follows and draws it."""
    if plot is not None:
        output.check_writable(plot, "--plot")
        output.check_apart([(plot, "--plot")], [(path_a, "A"), (path_b, "B")])
    a, b = results.load(path_a), results.load(path_b)
    names = str(path_a), str(path_b)
    results.check_comparable(a, b, names, other_host=other_host)
    found = compare(a, b)
    changes = results.changes(a, b)
    if plot is not None:
        from flatwalk.host import plots  # noqa: PLC0415

        output.write_whole(plot, plots.diff(a, b, names, found, changes))
    if as_json:
        print(output.as_json(_as_json(a, b, found, changes), indent=1))
        return
    _show(a, b, names, found, changes)
    if plot is not None:
        output.say(f"drawn: {plot}")


def _minus(text: str) -> str:
    """A number with a true minus sign; an exponent keeps its own."""
    return re.sub("^-", "−", text)


def _change(share: float) -> str:
    return _minus(f"{100 * share:+z.2f} %")


def _test(test: stats.Test, sign: int, df: str) -> str:
    return f"{_minus(f'{sign * test.t:z.3f}')}, {format(test.df, df)}, {_p(test.p)}"


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 0.001 else f"{value:.1e}"


def _show(
    a: Result,
    b: Result,
    names: tuple[str, str],
    found: dict[str, tuple[stats.Comparison, float]],
    changes: list[str],
) -> None:
    rate = a["rate"]
    # The tests of rates are those of their reciprocals, whose difference has the other sign.
    sign = -1 if rate else 1
    output.say(f"A: {names[0]}, {a['started']}\nB: {names[1]}, {b['started']}")
    output.say(
        "\n".join(f"changed: {change}" for change in changes) or "Processor and host record are the same."
    )
    print()
    rows = [
        [
            a["titles"].get(name, name),
            wording.number(one.a.mean),
            wording.number(one.b.mean),
            _change(one.change),
            _minus(f"{sign * one.effect:z.2f}"),
            _test(one.welch, sign, ".1f"),
            _test(one.pooled, sign, ".0f"),
        ]
        for name, (one, _) in found.items()
    ]
    headers = [f"{a['bench']}, {a['unit']} ", "A", "B", "change", "d", "Welch t, df, p", "pooled t, df, p"]
    left_out = presenting.show_some(headers, rows, ["pooled t, df, p", "d", "Welch t, df, p"])
    presenting.say_left_out([header.partition(",")[0] for header in left_out], "--json has")
    for name, (one, p) in found.items():
        said = wording.verdict(one, p, rate=rate, words=results.changed(a))
        output.say(f"{name}: {'B is ' if p < 0.05 else ''}{said}.")
    _show_controls(a, b, next(iter(found.values()))[0].drift)
    if any(p < 0.05 for _, p in found.values()) and (doubt := _doubt(a, b)):
        output.say(f"But {doubt}: measure again before trusting it.")
    if len(found) > 1:
        output.say(f"Verdicts hold for all {len(found)} together (p adjusted by Holm's method).")
    for path, result in zip(names, (a, b), strict=True):
        summaries = {name: one.a if result is a else one.b for name, (one, _) in found.items()}
        for line in show.doubts(result, summaries):
            output.say(f"warning: {path}: {line}")


def _show_controls(a: Result, b: Result, between: stats.Drift) -> None:
    """Prints how the controls changed, which no kernel influences."""
    found = {name: two[1].mean / two[0].mean - 1 for name, two in controls(a, b)}
    if any(found.values()):
        changes = [f"{name} {_change(change)}" for name, change in found.items()]
        allowed = (
            f"The verdicts allow for ± {wording.percent(between.share)}."
            if between.share
            else "Together that is no more than their errors explain: the verdicts allow for nothing more."
        )
        output.say(
            f"From A to B, controls that no kernel influences changed, too: {', '.join(changes)} "
            f"(docs/host.md). {allowed}"
        )


def _doubt(a: Result, b: Result) -> str:
    """What else a difference may be due to, if something disturbed one of the two."""
    busy = [name for name, one in (("A", a), ("B", b)) if machine.disturbances(one["busy"], one["cpus"])]
    if not busy:
        return ""
    were = "was" if len(busy) == 1 else "were"
    return f"the host was busy with other things while {' and '.join(busy)} {were} measured"


def _as_json(
    a: Result, b: Result, found: dict[str, tuple[stats.Comparison, float]], changes: list[str]
) -> dict[str, Any]:
    def plain(value: object) -> object:
        if isinstance(value, stats.Interval | stats.Test | stats.Summary | stats.Comparison | stats.Drift):
            return {key: plain(item) for key, item in vars(value).items()}
        return value

    return {
        "bench": a["bench"],
        "unit": a["unit"],
        "host_changes": changes,
        "busy": bool(_doubt(a, b)),
        "controls": {name: two[1].mean / two[0].mean - 1 for name, two in controls(a, b)},
        "variants": {
            name: {
                "verdict": wording.verdict(one, p, rate=a["rate"], words=results.changed(a)),
                "differs": p < 0.05,
                "p_adjusted": p,
                "comparison": plain(one),
            }
            for name, (one, p) in found.items()
        },
    }
