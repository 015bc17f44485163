"""Why one run is faster than another: the differences of their cycles' parts, which sum to it.

A run's `cycle_stack` says what its cycles went to, and its parts sum to its cycles. So a difference in
speed is the sum of differences of parts, and that sum is reported, with any part that goes against it.
What the run counted besides, as accesses of walks, is reported only where it went the way of the part that
it belongs to. Without a stack no cause is given: a guess from counts can be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk import units
from flatwalk.answer.results import walks_per_1000

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flatwalk.answer.results import Run

#: What the parts of a cycle stack are called in sentences; docs/model.md says what each one is.
_NAMES = {
    "base": "computing",
    "instruction_fetch": "fetching code",
    "instruction_translation": "translating code addresses",
    "data_l1": "data from L1",
    "data_l2": "data from L2",
    "data_llc": "data from the LLC",
    "data_dram": "data from DRAM",
    "store_queue": "a full store queue",
    "tlb": "TLB look-ups",
    "mechanisms": "look-ups of mechanisms",
    "walk_queue": "waiting for a walker",
    "walk_lookups": "walks without reads",
    "walk_l1": "walk entries from L1",
    "walk_l2": "walk entries from L2",
    "walk_llc": "walk entries from the LLC",
    "walk_dram": "walk entries from DRAM",
    "host_faults": "page faults of the host",
    "system_calls": "system calls for memory",
    "merges": "merging of page-table nodes",
    "guest_exits": "exits of the guest",
    "shootdowns": "TLB flushes on other cores",
    "idle": "idle cores",
}
#: Relative change of a count that is worth a word.
NOTICEABLE = 0.02
#: Parts that are named, and the share of the difference that each must be.
MOST, LEAST_SHARE = 3, 0.08


@dataclass(frozen=True)
class Share:
    """What a part of the cycles contributes to a change of speed, as a share like the change itself."""

    part: str
    change: float


def shares(run: Run, base: Run) -> list[Share]:
    """By part, what it contributes to the relative change in speed; they sum to it. The largest first.

    Empty where a run has no stack.
    """
    stacks = []
    for one in (run, base):
        parts: dict[str, int] = {}
        for item in one.get("cycle_stack") or []:
            parts[item["part"]] = parts.get(item["part"], 0) + item["cycles"]
        if not parts or not one["instructions"] or sum(parts.values()) != one["cycles"]:
            return []
        stacks.append({part: cycles / one["instructions"] for part, cycles in parts.items()})
    mine, others = stacks
    total = sum(mine.values())
    found = [
        Share(part, (others.get(part, 0.0) - mine.get(part, 0.0)) / total)
        for part in dict.fromkeys((*others, *mine))
    ]
    return sorted(found, key=lambda share: -abs(share.change))


def name(part: str) -> str:
    """What a part of the cycle stack is called in a sentence."""
    return _NAMES.get(part, part.replace("_", " "))


def _rounded(values: list[float], total: float, digits: int) -> list[float]:
    """Values rounded so that they sum to the rounded total: the largest remainders give way."""
    unit = 10.0**-digits
    whole = [round(value / unit) for value in values]
    off = round(total / unit) - sum(whole)
    order = sorted(
        range(len(values)), key=lambda at: (values[at] / unit - whole[at]) * (1 if off > 0 else -1)
    )
    for at in order[::-1][: abs(off)]:
        whole[at] += 1 if off > 0 else -1
    return [count * unit for count in whole]


def words(run: Run, base: Run) -> str:
    """`; of the 13 %, 11 are system calls for memory and 2 page faults`, or nothing."""
    every = shares(run, base)
    total = sum(share.change for share in every)
    if not total:
        return ""
    named = [share for share in every if abs(share.change) >= LEAST_SHARE * abs(total)][:MOST]
    digits = units.percent_digits(total)
    sign = 1 if total > 0 else -1
    points = [100 * sign * share.change for share in named]
    *amounts, rest = _rounded([*points, 100 * abs(total) - sum(points)], 100 * abs(total), digits)

    def number(value: float) -> str:
        return f"{abs(value):.{digits}f}"

    kept = [(share, amount) for share, amount in zip(named, amounts, strict=True) if float(number(amount))]
    towards = [f"{number(amount)} {name(share.part)}" for share, amount in kept if amount > 0]
    against = [f"{number(amount)} for {name(share.part)}" for share, amount in kept if amount < 0]
    if float(number(rest)):
        (towards if rest > 0 else against).append(f"{number(rest)} {'for ' if rest < 0 else ''}all else")
    if not kept or not towards:
        return ""
    if len(towards) == 1 and not against:
        told = f"all of it {name(kept[0][0].part)}"
    else:
        first, *others = towards
        told = f"of the {number(100 * total)} %, {first.replace(' ', ' are ', 1)}"
        told += f", {', '.join(others)}" if others else ""
        told += f", less {', less '.join(against)}" if against else ""
    facts = [fact for share, _ in kept for fact in _facts(share, run, base)]
    return f"; {told}" + (f"; {', '.join(list(dict.fromkeys(facts))[:2])}" if facts else "")


def dram_per_walk(run: Run) -> float:
    """Accesses per walk that main memory served."""
    in_dram = sum(level["dram"] for level in run["walk"]["accesses_by_level"])
    return in_dram / run["walks"] if run["walks"] else 0.0


def llc_data_misses(run: Run) -> int:
    """Data misses of the last-level cache."""
    return next((cache["data_misses"] for cache in run["caches"] if cache["name"] == "LLC"), 0)


def _facts(share: Share, run: Run, base: Run) -> Iterator[str]:
    """What was counted of a part and went its way, as words; of a weighted run only what is weighted."""
    part = share.part

    def agrees(new: float | None, old: float | None) -> bool:
        if new is None or old is None or abs(new - old) <= NOTICEABLE * max(abs(new), abs(old)):
            return False
        return (new < old) == (share.change > 0)

    rates = [walks_per_1000(one) or 0.0 for one in (run, base)]
    fewer = f"{rates[0]:.3g} instead of {rates[1]:.3g} walks per 1000 instructions"
    if part == "walk_queue":
        new, old = run["walk_queue_cycles"], base["walk_queue_cycles"]
        if agrees(new, old):
            yield f"walks wait {new:.1f} instead of {old:.1f} cycles for a walker"
    elif part.startswith("walk_"):
        read, others_read = (one["accesses_per_walk"] for one in (run, base))
        if agrees(*rates):
            yield fewer
        elif agrees(read, others_read):
            yield f"walks read {read:.2f} instead of {others_read:.2f} entries"
        memory, others_memory = (dram_per_walk(one) for one in (run, base))
        have_walks = run["walks"] and base["walks"] and not run.get("weighted")
        if have_walks and agrees(memory, others_memory) and abs(memory - others_memory) >= 0.01:
            yield f"{memory:.2f} instead of {others_memory:.2f} accesses a walk go to DRAM"
    elif part == "page_faults":
        if not run.get("weighted") and agrees(run["os"]["faults"], base["os"]["faults"]):
            yield f"{run['os']['faults']} instead of {base['os']['faults']} page faults"
    elif part.startswith("data_"):
        misses, others = (llc_data_misses(one) / (one["instructions"] or 1) for one in (run, base))
        if others and not run.get("weighted") and agrees(misses, others):
            more = "more" if misses > others else "less"
            yield f"data misses the LLC {units.percent(abs(misses / others - 1))} {more} often"
        # Data that waits for a translation arrives later: the end of that wait counts as the data's.
        elif agrees(*rates):
            yield fewer
        elif agrees(run["walk_latency_cycles"], base["walk_latency_cycles"]):
            yield (
                f"walks, which data waits for, take {run['walk_latency_cycles']:.1f} "
                f"instead of {base['walk_latency_cycles']:.1f} cycles"
            )
