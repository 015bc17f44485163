"""`flatwalk host advise`: what to change on this host, with the figures behind each sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flatwalk import temporary, units
from flatwalk.errors import UsageError
from flatwalk.host import benches, machine, measure, results, show, stats, wording
from flatwalk.terminal import output

if TYPE_CHECKING:
    from pathlib import Path

    from flatwalk.host.results import Result

#: Linux's limit of physical memory with four levels: 46 bits (Documentation/arch/x86/x86_64/5level-paging).
FOUR_LEVEL_MEMORY_BYTES = 64 << 40


@dataclass
class Advice:
    """What to do about one thing."""

    topic: str
    do: str
    #: Sentences, each with its figure.
    why: list[str] = field(default_factory=list)
    #: What is not known, and how to find out.
    unknown: list[str] = field(default_factory=list)


def _by_bench(given: list[Result]) -> dict[str, Result]:
    return {result["bench"]: result for result in given}


def _difference(result: Result, a: str, b: str) -> str:
    steps = show.steps(result)
    mean, within, p = steps[a, b]
    words = f"{mean:+.0f} ns ({within.low:+.0f} … {within.high:+.0f})"
    # The interval is of this step alone, and may exclude 0 all the same.
    among = " (p adjusted for all steps)" if len(steps) > 1 else ""
    return words if p < 0.05 else f"{words}, no measurable difference{among}"


def _cold_levels(walk: Result) -> list[str]:
    """What one more cold level and one more dependent load cost, in sentences."""
    found = []
    strides = [name for name in results.values(walk) if name.startswith("stride-")]
    if len(strides) >= 3 and show.more_cold_levels(walk, strides[-2], strides[-1]) == 1:
        found.append(
            f"One more cold level at the top costs a walk {_difference(walk, strides[-2], strides[-1])} here "
            f"(pages {strides[-2].removeprefix('stride-')} and {strides[-1].removeprefix('stride-')} apart)."
        )
    if {"loads-4", "loads-5"} <= results.values(walk).keys():
        found.append(
            f"A fifth dependent cold load after four costs {_difference(walk, 'loads-4', 'loads-5')}: "
            "what a fifth level would cost if nothing of it were cached."
        )
    return found


def levels(host: dict[str, Any], given: dict[str, Result]) -> Advice:
    """Four or five levels."""
    memory = host["memory_bytes"]
    advice = Advice("Four or five levels", "")
    if memory:
        need = memory > FOUR_LEVEL_MEMORY_BYTES
        advice.why.append(
            f"This host has {units.size(memory)} of memory; Linux needs five levels above "
            f"{units.size(FOUR_LEVEL_MEMORY_BYTES)}, or where one process maps more than 128 TiB."
        )
    else:
        need = False
        advice.unknown.append("How much memory there is.")
    if host["page_table_levels"] is None:
        advice.do = "No advice: this processor's levels are not known."
        advice.unknown.append("How many levels this kernel's tables have: only x86-64 kernels report them.")
    elif host["page_table_levels"] == 5 and not need:
        advice.do = "Boot with no5lvl on the kernel's command line, unless a process maps more than 128 TiB."
        advice.why.append(
            "An article of 2022 measured 0.23 % more for a minor fault with five levels (105.637 and "
            "105.880 ns, p = 1.5e-6), and less throughput from four faulting threads up."
        )
    elif host["page_table_levels"] == 5:
        advice.do = "Keep five levels: this host's memory needs them."
    elif need:
        advice.do = (
            "Use a kernel and processor with five levels: not all of the memory can be used with four."
        )
    else:
        advice.do = "Keep four levels: nothing on this host needs five."
        if host["no5lvl"]:
            advice.why.append("no5lvl is on the kernel's command line.")
    if "walk" in given:
        advice.why += _cold_levels(given["walk"])
    else:
        advice.unknown.append("What a cold level costs here: flatwalk host walk.")
    advice.unknown.append(
        "How often your programs' walks find the top level cold: nearly never where a page-walk cache holds "
        "its few entries. Counters of walk cycles show it, where the processor has them."
    )
    return advice


def _gain(result: Result, a: str, b: str, *, rate: bool) -> str | None:
    values = results.values(result)
    if not {a, b} <= values.keys():
        return None
    found = stats.compare(values[a], values[b], rate=rate)
    return wording.verdict(found, found.welch.p, rate=rate)


def huge_pages(host: dict[str, Any], given: dict[str, Result], files: machine.Files) -> Advice:
    """Transparent huge pages."""
    mode = host["thp"]["enabled"]
    advice = Advice("Transparent huge pages", "")
    pagefault, gups = given.get("pagefault"), given.get("gups")
    faster = _gain(gups, "small", "huge", rate=True) if gups else None
    if mode is None:
        advice.do = "This kernel has none; one with CONFIG_TRANSPARENT_HUGEPAGE would."
    elif mode == "never":
        advice.do = (
            "Set them to madvise: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled. "
            "Programs that ask for them get them, others stay as they are."
        )
    elif mode == "madvise":
        advice.do = (
            "Keep madvise; let programs with large, busy heaps ask "
            "(madvise, or GLIBC_TUNABLES=glibc.malloc.hugetlb=1)."
        )
    else:
        advice.do = "Keep always, unless memory is short or latency must not vary: then madvise."
    if faster:
        table = units.size(gups["parameters"]["table_bytes"]) if gups else ""
        advice.why.append(f"Random updates of {table} on huge pages against small ones: {faster}.")
    if pagefault and (cheaper := _gain(pagefault, "anonymous", "huge", rate=False)):
        advice.why.append(f"Faulting memory in on huge pages against small ones, per page: {cheaper}.")
    if not gups or not pagefault:
        missing = [name for name in ("gups", "pagefault") if name not in given]
        advice.unknown.append(f"What they gain here: flatwalk host {' and flatwalk host '.join(missing)}.")
    advice.why += _huge_page_counts(files)
    if mode not in {None, "never"} and host["thp"]["defrag"] == "always":
        advice.why.append(
            "defrag is always: a fault may wait for compaction; with defer+madvise only those that asked do."
        )
    advice.unknown.append(
        "What your programs would gain: flatwalk compare -- CMD, and flatwalk host inspect PID "
        "for what they have now."
    )
    return advice


def _huge_page_counts(files: machine.Files) -> list[str]:
    """What the kernel counted of huge pages."""
    vmstat = dict(re.findall(r"^(\w+) (\d+)$", machine.read(files.proc / "vmstat") or "", re.MULTILINE))
    meminfo = dict(
        re.findall(r"^(\w+):\s+(\d+) kB", machine.read(files.proc / "meminfo") or "", re.MULTILINE)
    )
    found = []
    if {"AnonHugePages", "AnonPages"} <= meminfo.keys() and int(meminfo["AnonPages"]):
        share = int(meminfo["AnonHugePages"]) / int(meminfo["AnonPages"])
        found.append(f"{units.percent(share)} of anonymous memory is on huge pages now.")
    had, failed = int(vmstat.get("thp_fault_alloc", 0)), int(vmstat.get("thp_fault_fallback", 0))
    if had + failed:
        found.append(
            f"Since boot {units.count(had)} faults got a huge page and {units.count(failed)} did not "
            f"({units.percent(failed / (had + failed))}), for lack of a free 2 MiB block."
            if failed
            else f"Since boot {units.count(had)} faults asked for a huge page, and all got one."
        )
    return found


def page_tables(host: dict[str, Any], files: machine.Files) -> Advice | None:
    """Memory in page tables; None where the kernel does not report it."""
    match = re.search(r"^PageTables:\s+(\d+) kB", machine.read(files.proc / "meminfo") or "", re.MULTILINE)
    if not match or not host["memory_bytes"]:
        return None
    table_bytes = int(match[1]) * 1024
    share = table_bytes / host["memory_bytes"]
    advice = Advice(
        "Memory in page tables",
        "Nothing to do."
        if share < 0.01
        else "Find the processes with the largest VmPTE in /proc/PID/status; put their memory on huge pages.",
        [f"Page tables take {units.size(table_bytes)}, {units.percent(share)} of memory."],
    )
    advice.unknown.append("Whose they are: flatwalk host inspect PID shows one process.")
    return advice


def faults(host: dict[str, Any], given: dict[str, Result]) -> Advice | None:
    """Page faults, and the cost of entering the kernel."""
    advice = Advice(
        "Page faults", "Fault in before it matters (MAP_POPULATE, mlockall) where latency counts."
    )
    pagefault = given.get("pagefault")
    if pagefault:
        values = results.values(pagefault)
        for name in ("anonymous", "file"):
            if name in values:
                one = stats.summarise(values[name])
                what = "a file" if name == "file" else "anonymous memory"
                advice.why.append(
                    f"A page of {what} costs {wording.number(one.mean)} ns "
                    f"({wording.interval(one.interval)}) to fault in."
                )
        if {"file", "sparse"} <= values.keys():
            advice.why.append(
                "Where fault-around finds nothing, a file's page costs "
                f"{wording.number(stats.summarise(values['sparse']).mean)} ns."
            )
    else:
        advice.unknown.append("What a fault costs here: flatwalk host pagefault.")
    isolation = host["mitigations"].get("meltdown", "")
    if "PTI" in isolation:
        advice.why.append("Meltdown's mitigation (PTI) changes page tables at every fault and system call.")
        advice.unknown.append("What PTI costs here: boot with nopti on a trusted host and measure again.")
    return advice


def trust(host: dict[str, Any], given: dict[str, Result]) -> Advice:
    """What would make measurements on this host better."""
    cpus = next((result["cpus"] for result in given.values()), machine.choose_cpus(host, 1))
    doubts = machine.warnings(host, cpus)
    for result in given.values():
        doubts += [doubt for doubt in result["warnings"] if doubt not in doubts]
    if not doubts:
        return Advice("Measuring on this host", "Nothing to change: nothing was found that disturbs.")
    return Advice("Measuring on this host", "Consider these before trusting small differences.", doubts)


def advise(host: dict[str, Any], given: list[Result], files: machine.Files | None = None) -> list[Advice]:
    """All advice for a host, from its record and from results measured on it."""
    files = files or machine.Files()
    by_bench = _by_bench(given)
    found = [
        levels(host, by_bench),
        huge_pages(host, by_bench, files),
        faults(host, by_bench),
        page_tables(host, files),
        trust(host, by_bench),
    ]
    return [advice for advice in found if advice is not None]


def _measured(host: dict[str, Any], missing: list[str], directory: Path) -> list[Result]:
    """Short measurements of the benches that no file was given for."""
    made = {
        "pagefault": lambda: benches.pagefault(
            host, directory, size_bytes=12 << 20, repetitions=10, change_host=False
        ),
        "walk": lambda: benches.walk(host, strides=None, group=24, groups=8, flush_bytes=None),
        "gups": lambda: benches.gups(host, table_bytes=64 << 20),
    }
    found = []
    for name in missing:
        plan = measure.Plan(runs=8, at_most_seconds=12, seed=1)
        with output.Progress(f"Measuring {name}") as progress:
            found.append(measure.run(made[name](), plan, host, progress))
    return found


def run(files: list[Path], *, measuring: bool, as_json: bool) -> None:
    """Measures what is missing, and advises."""
    host = machine.describe()
    host = machine.on(host, machine.choose_cpus(host, 1)[0])
    given = [results.load(path) for path in files]
    of: dict[str, Path] = {}
    for path, result in zip(files, given, strict=True):
        results.check_host(result, host, str(path))
        if (first := of.setdefault(result["bench"], path)) is not path:
            raise UsageError(
                f"{first} and {path} are both of {result['bench']}", where="FILE", remedy="name one of them"
            )
    if measuring:
        have = {result["bench"] for result in given}
        missing = [name for name in ("pagefault", "walk", "gups") if name not in have]
        with temporary.directory() as directory:
            given += _measured(host, missing, directory)
    found = advise(host, given)
    if as_json:
        print(output.as_json([vars(advice) for advice in found], indent=1))
        return
    for advice in found:
        output.say(f"{advice.topic}: {advice.do}")
        for sentence in advice.why:
            output.say(f"  - {sentence}")
        for sentence in advice.unknown:
            output.say(f"  ? {sentence}")
        print()
    output.say("Lines with ? say what is not known.")
