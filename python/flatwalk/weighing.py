"""What follows from the runs of a mix: weighted speed-ups, and which scheme serves the programs best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatwalk import units
from flatwalk.differences import NOISE, WITHIN, joined
from flatwalk.results import grouped_by, is_bound, pages_key

if TYPE_CHECKING:
    from flatwalk.results import Run


def weigh(programs: list[str], cores: list[list[Run]], alone: dict[str, Run]) -> list[dict[str, Any]]:
    """Weighted speed-ups: over the cores, the sum of each program's IPC over its IPC alone.

    `relative_weighted_speedup` is that over the first scheme's at the same large-page setting.
    """
    results: list[dict[str, Any]] = []
    baselines: dict[tuple[int | None, str | None], float] = {}
    for members in cores:
        first = members[0]
        speedup = 0.0
        for program, run in zip(programs, members, strict=True):
            ipc, own = run["ipc"], alone[program]["ipc"]
            speedup += ipc / own if ipc and own else 0.0
        base = baselines.setdefault(pages_key(first), speedup)
        results.append(
            {
                "scheme": first["scheme"],
                "large_pages": first["large_pages"],
                "thp": first["thp"],
                "weighted_speedup": speedup,
                "relative_weighted_speedup": speedup / base if base else None,
                "cores": members,
            }
        )
    return results


def by_pages(results: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Results by large-page setting, each group in request order."""
    return grouped_by(results, lambda result: pages_key(result["cores"][0]))


def words(group: list[dict[str, Any]]) -> str:
    """Which scheme serves the programs together best, if one does by more than the noise.

    Args:
        group: Results at one large-page setting; the first is the baseline.
    """
    base, *others = [result for result in group if not is_bound(result["cores"][0])] or group
    name, value = base["scheme"], base["weighted_speedup"]
    if not others or not value:
        return f"Only {name} was run: add schemes to compare it with."
    changes = {result["scheme"]: result["weighted_speedup"] / value - 1 for result in others}
    best = max(changes, key=lambda scheme: changes[scheme])
    if changes[best] >= NOISE:
        top = 1 + changes[best]
        same = [scheme for scheme in changes if scheme != best and changes[scheme] + 1 > top * (1 - NOISE)]
        found = next(result for result in others if result["scheme"] == best)
        said = (
            f"{best} serves the programs together best: its weighted speed-up of "
            f"{found['weighted_speedup']:.3f} is {units.percent(changes[best])} higher than {name}'s"
        )
        return said + (f"; {_are(same)} {WITHIN} of it." if same else ".")
    if all(abs(change) < NOISE for change in changes.values()):
        return f"No scheme makes a difference to the programs together: all are {WITHIN} of {name}."
    return f"No scheme serves the programs together better than {name}."


def _are(schemes: list[str]) -> str:
    return f"{joined(schemes)} {'is' if len(schemes) == 1 else 'are'}"
