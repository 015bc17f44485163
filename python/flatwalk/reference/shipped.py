"""docs/shipped.md: the machines side by side, and the schemes and mixes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import catalogue, units
from flatwalk.definitions import settings
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PATH = Path(__file__).parents[3] / "docs" / "shipped.md"

_NONE = "–"

_HEAD = """# Machines, schemes and mixes that are shipped

Each is one file in `python/flatwalk/data`, where a comment gives the source of every figure.
[settings.md](settings.md) explains the keys, and [workloads.md](workloads.md) describes the workloads.
`flatwalk list` prints the lists. For a scheme or machine of your own see the
[guide](guide.md#your-own-schemes-and-machines).
"""

_SCHEMES = f"""`flatwalk compare` runs the first {len(settings.DEFAULT_SCHEMES)} by default.
Those whose name begins with `virt-` are of a process in a guest; `--virt GUEST/HOST` makes one of any two
others.
"""


def text() -> str:
    """The page."""
    machines = [settings.machine(name) for name in settings.names("machine")]
    mixes = [settings.mix(name) for name in settings.names("mix")]
    parts = [
        _HEAD,
        "## Machines\n",
        _table(["machine", "what it is", "source"], _sources(machines)),
        "Of a TLB: the sizes of pages that it holds, its entries, and its ways.\n",
        _table(["", *(machine["name"] for machine in machines)], _compared(machines)),
        "## Schemes\n",
        _SCHEMES,
        _table(
            ["scheme", "what it is", "source"],
            [(f"`{one['name']}`", one["description"], one["source"]) for one in catalogue.all_schemes()],
        ),
        "## Mixes\n",
        _table(
            ["mix", "programs", "source"],
            [(f"`{mix['name']}`", catalogue.programs_of(mix), mix["source"]) for mix in mixes],
        ),
    ]
    return "\n".join(parts)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return output.markdown(
        headers, len(headers), [[cell.replace("|", "\\|") for cell in row] for row in rows]
    )


def _sources(machines: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [(f"`{one['name']}`", one["title"], one["source"]) for one in machines]


def _compared(machines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row of each property, with a cell of each machine."""
    return [[name, *(words(one) or _NONE for one in machines)] for name, words in _PROPERTIES.items()]


def _of(key: str, words: Callable[[Any], str]) -> Callable[[Mapping[str, Any]], str | None]:
    """Words of what stands under a key with points, where a machine has it."""

    def read(machine: Mapping[str, Any]) -> str | None:
        found: Any = machine
        for part in key.split("."):
            found = found.get(part) if found is not None else None
        return None if found is None else words(found)

    return read


def _core(core: Mapping[str, Any]) -> str:
    queues = f"{core['load_queue']} loads, {core['store_queue']} stores"
    return f"{core['width']} wide, window {core['window']}, {queues}"


def _cache(cache: Mapping[str, Any]) -> str:
    return ", ".join(
        [
            units.size(cache["size_bytes"]),
            f"{cache['ways']} ways",
            units.several(cache["latency_cycles"], "cycle"),
            f"{cache['mshrs']} MSHRs",
            *(prefetcher["kind"] for prefetcher in cache.get("prefetcher", [])),
        ]
    )


def _memory(memory: Mapping[str, Any]) -> str:
    if memory["kind"] == "fixed":
        return f"{memory['latency_ns']:g} ns, {memory['bandwidth_gbs']:g} GB/s"
    channels = units.several(memory["channels"], "channel")
    return f"{channels} of {memory['kind'].upper()}-{memory['data_rate_mts']}"


def _tlbs(tlbs: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{'+'.join(tlb['pages'])}: {tlb['entries']}, {tlb['ways']} ways" for tlb in tlbs)


def _pwc(pwc: Mapping[str, Any]) -> str:
    entries = pwc.get("entries")
    if isinstance(entries, dict):
        return ", ".join(f"{level}: {count}" for level, count in entries.items())
    return f"{entries}, {pwc['ways']} ways" if entries else pwc["kind"]


def _walker(walker: Mapping[str, Any]) -> str:
    return f"{walker['concurrent']}, reads through {walker['entry'].upper()}"


#: By their names in the table.
_PROPERTIES: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
    "clock": _of("frequency_mhz", lambda mhz: f"{mhz / 1000:g} GHz"),
    "cores": _of("multicore.cores", str),
    "core": _of("core", _core),
    "branches": _of("core.branch_predictor", str),
    "L1I": _of("l1i", _cache),
    "L1D": _of("l1d", _cache),
    "L2": _of("l2", _cache),
    "LLC": _of("llc", _cache),
    "memory": _of("memory", _memory),
    "L1 instruction TLB": _of("tlb.l1i", _tlbs),
    "L1 data TLB": _of("tlb.l1d", _tlbs),
    "L2 TLB": _of("tlb.l2", _tlbs),
    "page-walk caches": _of("pwc", _pwc),
    "page walkers": _of("walker", _walker),
    "nested TLB": _of("virtualisation.nested_tlb", _tlbs),
}
