"""The benches of `flatwalk host` in guests of four and of five levels, counted in instructions."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.host import native, results
from flatwalk.host.benches import WARMUP
from flatwalk.terminal import output
from flatwalk.vm import counting, inside
from flatwalk.vm.counting import CAUSES
from flatwalk.vm.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from flatwalk.host.results import Result
    from flatwalk.vm.counting import Phase


@dataclass(frozen=True)
class Bench:
    """A bench, sized for guests, where nothing has to be repeated against noise."""

    #: What its instructions are counted for: the unit, and how the answer names their number.
    unit: str
    #: Its parameters, as flatwalk.host.benches takes them.
    options: dict[str, Any]


BENCHES = {
    "pagefault": Bench("page", {"size_bytes": 12 << 20, "repetitions": 3}),
    "ebizzy": Bench("record", {"threads": 1, "chunks": 7, "chunk_bytes": 512 << 10, "milliseconds": 200}),
    "gups": Bench("update", {"table_bytes": 8 << 20}),
    "walk": Bench("reference", {"group": 24, "groups": 16, "flush_bytes": 1 << 20}),
}
_MEMORY = "1G"
#: Measurements of each variant in a boot, each in a new process, after one that warms up; and boots.
ROUNDS, BOOTS = 2, 2
#: What is counted: instructions by what they are for, repetitions of the kernel's string instructions (all
#: but the timer's), page faults, walks and the entries that they read.
_KEYS = ("user", *CAUSES, "repeated", "faults", "walks", "entries")


@dataclass(frozen=True)
class Cost:
    """What one unit of work cost, in one measurement."""

    counts: dict[str, float]

    @property
    def instructions(self) -> float:
        """All but the timer's, which come by the clock."""
        return sum(self.counts[key] for key in ("user", *CAUSES) if key != "timer")


def _sum(phases: Iterable[Phase]) -> Counter[str]:
    total: Counter[str] = Counter(dict.fromkeys(_KEYS, 0))
    for phase in phases:
        total["user"] += phase.user
        for cause in CAUSES:
            total[cause] += phase.kernel[cause]
            total["repeated"] += phase.repeated[cause] if cause != "timer" else 0
        total["faults"] += phase.entered["fault"]
        for entries, times in phase.walks.items():
            total["walks"] += times
            total["entries"] += entries * times
    return total


def cost(bench: str, parameters: dict[str, Any], regions: Sequence[Phase], answer: dict[str, Any]) -> Cost:
    """What a unit of work cost in one process of a bench, by those of its marked regions that count.

    Args:
        bench: Its name.
        parameters: With which it ran.
        regions: Between `flatwalk_start` and `flatwalk_stop`: see host/src.
        answer: What the process reported.
    """
    match bench:
        case "pagefault":
            # By turns with touching and without; the first ones warm up.
            regions = regions[-2 * parameters["repetitions"] :]
            total = _sum(regions[::2])
            total.subtract(_sum(regions[1::2]))
            count = parameters["repetitions"] * (parameters["size_bytes"] // parameters["page_bytes"])
        case "walk":
            # The first group warms up; groups with an interrupt are beyond the quartiles, as slow ones are.
            groups = sorted(regions[1:], key=lambda region: region.user + region.instructions)
            cut = len(groups) // 4
            kept = groups[cut : len(groups) - cut]
            total, count = _sum(kept), answer["references"] * len(kept) / len(groups)
        case "ebizzy":
            total, count = _sum(regions), answer["records"]
        case _:
            total, count = _sum(regions), answer["updates"]
    return Cost({key: total[key] / count for key in _KEYS})


def _regions_each(bench: str, options: dict[str, Any]) -> int:
    """How many regions a process of a bench marks."""
    match bench:
        case "pagefault":
            return 2 * (WARMUP + int(options["repetitions"]))
        case "walk":
            return 1 + int(options["groups"])
    return 1


def counted(result: Result, phases: Sequence[Phase]) -> Result:
    """A guest's result with instructions in place of times.

    Args:
        result: What the bench measured there.
        phases: What was counted meanwhile.

    Raises:
        FlatwalkError: If the two do not match.
    """
    name, samples, titles = result["bench"], result["samples"], result["titles"]
    # The first one is the guest's own: it says where the command begins.
    regions = [phase for phase in phases if phase.marker == counting.START][1:]
    each = _regions_each(name, result["parameters"])
    warming = len(titles) * each
    if len(regions) != warming + len(samples) * each:
        raise FlatwalkError(
            f"{len(regions)} regions were counted for {len(samples)} measurements of {name}",
            remedy="rebuild flatwalk-host: cargo build --release -p flatwalk-host",
        )
    made = []
    for number, sample in enumerate(samples):
        own = regions[warming + number * each :][:each]
        found = cost(name, result["parameters"], own, sample["answer"])
        answer = {**sample["answer"], "instructions": found.counts}
        # No controls: the host's activity does not affect what was counted.
        made.append({**sample, "value": found.instructions, "answer": answer, "controls_nanoseconds": {}})
    quiet = dict.fromkeys(result["busy"], 0.0)
    return {
        **result,
        "unit": f"instructions per {BENCHES[name].unit}",
        "rate": False,
        "samples": made,
        "busy": quiet,
        "warnings": [],
        "notes": [],
    }


def measure(
    names: Iterable[str],
    *,
    mode: str = "off",
    boots: int = BOOTS,
    source: Path | None = None,
) -> list[Result]:
    """Runs benches in guests of one CPU that knows five levels, with `no5lvl` and without.

    Args:
        names: Of `BENCHES`.
        mode: Of flattening.
        boots: Guests for each bench and number of levels.
        source: The user's own trees, as built by `vm build --source`.

    Returns:
        For each bench the result with four levels, and that with five.

    Raises:
        UsageError: If there is no such bench.
        FlatwalkError: If QEMU, Linux or flatwalk-host is not built, or a guest fails.
    """
    chosen = list(names)
    for name in (name for name in chosen if name not in BENCHES):
        raise UsageError(
            f"there is no bench {name!r} of the host",
            where="--host",
            remedy=f"choose some of {', '.join(BENCHES)}, separated by commas",
        )
    native.find()
    made = []
    for name in chosen:
        for levels in (4, 5):
            parameters = ("no5lvl",) if levels == 4 else ()
            machine = Machine(mode, levels=5, memory=_MEMORY, parameters=parameters)
            request = json.dumps([name, BENCHES[name].options, ROUNDS, 1])
            command = [sys.executable, "-I", "-m", inside.__name__, "bench", request]
            found: list[Result] = []
            for _ in range(boots):
                phases, said = counting.count(machine, command, source=source)
                found.append(counted(json.loads(said), phases))
            result = joined(found)
            if (there := result["host"]["page_table_levels"]) != levels:
                raise FlatwalkError(
                    f"the guest has page tables of {there} levels, not {levels}",
                    remedy="bench the Linux that `flatwalk vm build` builds",
                )
            output.note(f"{name}, {levels} levels: {len(result['samples'])} measurements")
            made.append(result)
    return made


def joined(found: Sequence[Result]) -> Result:
    """The results of several boots as one."""
    samples = [
        {**sample, "round": boot * ROUNDS + sample["round"], "boot": boot}
        for boot, result in enumerate(found)
        for sample in result["samples"]
    ]
    return {**found[0], "samples": samples}


def save(directory: Path, made: Iterable[Result]) -> list[Path]:
    """Writes each result to its own file, for `flatwalk host diff`."""
    paths = []
    for result in made:
        path = directory / f"{result['bench']}-{result['host']['page_table_levels']}level.json"
        results.save(path, result)
        paths.append(path)
    return paths


def _spread(result: Result, variant: str) -> float:
    """By how much measurements of the same round differ between boots, at most, as a share."""
    by_round: dict[int, list[float]] = {}
    for sample in result["samples"]:
        if sample["variant"] == variant:
            by_round.setdefault(sample["round"] % ROUNDS, []).append(sample["value"])
    return max(max(values) / min(values) - 1 for values in by_round.values())


def mean(result: Result, variant: str, key: str) -> float:
    """Of what was counted for a unit of work, on average."""
    return statistics.fmean(
        sample["answer"]["instructions"][key] for sample in result["samples"] if sample["variant"] == variant
    )


def _pairs(made: Sequence[Result]) -> list[tuple[Result, Result]]:
    return list(zip(made[::2], made[1::2], strict=True))


def levels_table(made: Sequence[Result]) -> str:
    """Each variant's instructions with four and with five levels."""
    rows = []
    for four, five in _pairs(made):
        values = {4: results.values(four), 5: results.values(five)}
        for name, title in five["titles"].items():
            means = {
                levels: statistics.fmean(found[name]) for levels, found in values.items() if name in found
            }
            sides = {4: four, 5: five}
            difference = means[5] - means[4] if 4 in means else None
            rows.append(
                [
                    *(five["bench"], title, BENCHES[five["bench"]].unit),
                    *(f"{means[levels]:.2f}" if levels in means else "–" for levels in (4, 5)),
                    f"{difference:+.2f}" if difference is not None else "–",
                    f"{100 * difference / means[4]:+.3f} %" if difference is not None else "–",
                    f"{100 * max(_spread(sides[levels], name) for levels in means):.3f} %",
                    f"{mean(five, name, 'faults'):.4f}",
                    *(_entries(sides[levels], name) if levels in means else "–" for levels in (4, 5)),
                ]
            )
    heads = (
        *("bench", "variant", "per", "4 levels", "5 levels", "difference", "change", "boots differ by"),
        *("page faults", "entries per walk, 4 levels", "5 levels"),
    )
    return output.markdown(heads, 3, rows)


def _entries(result: Result, variant: str) -> str:
    walks = mean(result, variant, "walks")
    return f"{mean(result, variant, 'entries') / walks:.2f}" if walks > 0 else "–"


def parts_table(made: Sequence[Result]) -> str:
    """What each variant's instructions are for, where any but the timer's are the kernel's."""
    rows = [
        [
            *(result["bench"], title, str(result["host"]["page_table_levels"])),
            *(
                f"{mean(result, name, key):.2f}"
                for key in ("user", "fault", "syscall", "other", "timer", "repeated")
            ),
        ]
        for pair in _pairs(made)
        for name, title in pair[1]["titles"].items()
        if any(mean(pair[1], name, cause) >= 0.005 for cause in CAUSES if cause != "timer")
        for result in pair
        if name in result["titles"]
    ]
    heads = (
        *("bench", "variant", "levels", "program", "page faults", "system calls", "other"),
        *("timer", "repetitions"),
    )
    return output.markdown(heads, 2, rows)
