"""This host as a machine: what can be known of it, and the nearest shipped machine for all else.

Every figure says where it is from, as those of shipped machines do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatwalk import engine, units
from flatwalk.definitions import settings, toml, variations
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.host import cpuid, native
from flatwalk.host.machine import GOLDEN_COVE, Files, choose_cpus, describe, events, read

if TYPE_CHECKING:
    from flatwalk.host.cpuid import Cache, Processor, Tlb

#: The name that `--machine` knows this host by.
NAME = "host"
_GIB = 1 << 30


@dataclass(frozen=True)
class Modelled:
    """A machine made from a host, with the source of each of its figures by key."""

    machine: dict[str, Any]
    sources: dict[str, str]
    #: The shipped machine that the rest is from.
    base: str
    processor: Processor

    @property
    def known(self) -> list[str]:
        """Keys whose figures are the host's."""
        return [key for key, source in self.sources.items() if not source.startswith(f"as {self.base}")]

    @property
    def words(self) -> str:
        """How much is known and what is assumed, as a note."""
        sections = [re.sub(r"\[\d+\]", "", key).rpartition(".")[0] or key for key in self.known]
        return (
            f"host is {self.machine['title']}: {len(self.known)} of {len(self.sources)} figures are its own "
            f"({', '.join(dict.fromkeys(sections))}), the others those of {self.base}."
        )


def leaves(cpu: int) -> dict[tuple[int, int], tuple[int, int, int, int]]:
    """The `cpuid` leaves of a processor.

    Raises:
        FlatwalkError: If they cannot be read.
    """
    answer = native.ask("cpuid", {"cpu": cpu})
    return {(leaf, subleaf): (a, b, c, d) for leaf, subleaf, a, b, c, d in answer["leaves"]}


def machine() -> Modelled:
    """This host as a machine: the processor that measurements run on.

    Raises:
        FlatwalkError: If the processor does not say what it is, or is not one of a vendor that is shipped.
    """
    cpu = choose_cpus(describe(), 1)[0]
    return model(cpuid.understand(leaves(cpu)), Files(), cpu)


def _nearest(processor: Processor) -> str:
    """The shipped machine of the same vendor that is most like it."""
    if processor.vendor == cpuid.AMD:
        return "zen4"
    if processor.vendor == cpuid.INTEL:
        is_golden = processor.family == 6 and processor.model in GOLDEN_COVE
        return "golden-cove" if is_golden else "skylake-server"
    raise UsageError(
        f"no machine of this vendor is shipped ({processor.vendor.strip() or 'the processor does not say'})",
        where="--machine host",
        remedy="name a shipped one, or a file of your own: `flatwalk list machines`",
    )


def model(processor: Processor, files: Files, cpu: int = 0) -> Modelled:
    """A processor, of which the kernel has number `cpu`, with its memory and clock as a machine.

    Raises:
        UsageError: If no machine of its vendor is shipped.
        FlatwalkError: If what the processor says makes no valid machine.
    """
    base = _nearest(processor)
    made = settings.machine(base)
    # The energy is of caches of other sizes, and one core is modelled.
    left_out = ("multicore", "energy")
    sources = {
        key: f"as {base}: {comment}" if comment else f"as {base}"
        for key, comment in _comments(base).items()
        if key.partition(".")[0] not in left_out
    }
    made = {key: value for key, value in made.items() if key not in left_out}

    def put(section: str | None, key: str, value: object, source: str) -> None:
        (made[section] if section else made)[key] = value
        sources[f"{section}.{key}" if section else key] = source

    for name, section in (("l1i", "l1i"), ("l1d", "l1d"), ("l2", "l2"), ("l3", "llc")):
        cache = next((cache for cache in processor.caches if cache.name == name), None)
        if cache is not None:
            size, ways, source = _in_sets(cache)
            put(section, "size_bytes", size, source)
            put(section, "ways", ways, cache.source)
    _put_tlbs(made, sources, processor, base)
    if (clock := _clock(processor, files, cpu)) is not None:
        taken = {
            key: 1000 * made["os"][key] / made["frequency_mhz"]
            for key in ("fault_cycles", "shootdown_cycles")
        }
        put(None, "frequency_mhz", *clock)
        for key, nanoseconds in taken.items():
            put("os", key, round(nanoseconds * clock[0] / 1000), f"as {base}: {nanoseconds:.0f} ns")
    if (memory := _memory_bytes(files)) is not None:
        put("os", "memory_bytes", memory, "/proc/meminfo, MemTotal, in whole GiB")
    if (rate := _data_rate(files)) is not None:
        put("memory", "data_rate_mts", rate, "DMI, configured speed of the memory devices")
    brand = processor.brand or f"{processor.vendor} family {processor.family} model {processor.model}"
    core = f", {processor.core}" if processor.core else ""
    virtual = ", in a virtual machine" if processor.is_virtual else ""
    made |= {"name": NAME, "title": f"{brand}{core}{virtual}", "source": f"this host; else {base}"}
    if problems := engine.check("machine", made):
        raise FlatwalkError(
            "what this host says makes no valid machine: " + "; ".join(map(settings.words, problems)),
            where="--machine host",
            remedy=f"name a machine that is shipped, as {base}",
        )
    return Modelled(made, sources, base, processor)


def _in_sets(cache: Cache) -> tuple[int, int, str]:
    """A cache's size and ways with a power of two of sets, as near as can be, and where they are from."""
    sets = 1 << (cache.sets.bit_length() - 1)
    if sets == cache.sets:
        return cache.size_bytes, cache.ways, cache.source
    ways = round(cache.size_bytes / 64 / sets)
    said = f"{units.size(cache.size_bytes)} in {cache.ways} ways, whose sets are not a power of two"
    return sets * ways * 64, ways, f"{cache.source}: {said}; as near as the model can"


def _put_tlbs(made: dict[str, Any], sources: dict[str, str], processor: Processor, base: str) -> None:
    """Each TLB that the processor describes for 4 KiB pages, with the latencies of the base's."""
    for name in ("l1i", "l1d", "l2"):
        arrays = [tlb for tlb in processor.tlbs if tlb.name == name and _fits(tlb)]
        if not any("4K" in tlb.pages for tlb in arrays):
            continue
        old = made["tlb"][name]
        prefix = f"tlb.{name}["
        latency = sources.get(f"{prefix}1].latency_cycles", f"as {base}")
        for key in [key for key in sources if key.startswith(prefix)]:
            del sources[key]
        made["tlb"][name] = []
        told = {page for tlb in arrays for page in tlb.pages}
        # Page sizes that the processor says nothing of, as a hypervisor may hide them.
        others = [(array, [page for page in array["pages"] if page not in told]) for array in old]
        rows = [(list(tlb.pages), tlb.entries, tlb.ways, tlb.source) for tlb in arrays]
        rows += [
            (pages, array["entries"], array["ways"], f"as {base}: the processor does not say")
            for array, pages in others
            if pages
        ]
        for number, (pages, entries, ways, source) in enumerate(rows, start=1):
            array = {"pages": pages, "entries": entries, "ways": ways}
            sources |= {f"{prefix}{number}].{key}": source for key in array}
            sources[f"{prefix}{number}].latency_cycles"] = latency
            made["tlb"][name].append(array | {"latency_cycles": old[0]["latency_cycles"]})


def _fits(tlb: Tlb) -> bool:
    """Whether the model can have such an array."""
    sets, rest = divmod(tlb.entries, tlb.ways)
    return rest == 0 and sets & (sets - 1) == 0


def _clock(processor: Processor, files: Files, cpu: int) -> tuple[int, str] | None:
    """MHz and where they are from: the highest, as shipped machines have it."""
    kilohertz = read(files.sys / f"devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq") or ""
    blocks = (read(files.proc / "cpuinfo") or "").split("\n\n")
    own = next((text for text in blocks if re.search(rf"^processor\s*: {cpu}$", text, re.MULTILINE)), "")
    now = re.search(r"^cpu MHz\s*: ([\d.]+)", own, re.MULTILINE)
    named = re.search(r"@ ([\d.]+)\s*GHz", processor.brand)
    found = [
        (int(kilohertz) // 1000 if kilohertz.isdecimal() else 0, "highest frequency (cpufreq)"),
        (processor.highest_mhz or 0, "cpuid leaf 16h, highest frequency"),
        (round(1000 * float(named[1])) if named else 0, "the processor's name"),
        (round(float(now[1])) if now else 0, "/proc/cpuinfo, which may be the clock of the TSC"),
    ]
    return next(((mhz, source) for mhz, source in found if 100 <= mhz <= 20_000), None)


def _memory_bytes(files: Files) -> int | None:
    total = re.search(r"MemTotal:\s+(\d+) kB", read(files.proc / "meminfo") or "")
    if total is None:
        return None
    return min(max(-(-int(total[1]) * 1024 // _GIB), 1), 1024) * _GIB


def _data_rate(files: Files) -> int | None:
    """Million transfers a second that all memory devices are set to; only root may read it.

    SMBIOS 3, memory device (type 17): size at offset 0Ch, configured speed at 20h.
    """
    rates = set()
    for path in (files.sys / "firmware/dmi/entries").glob("17-*/raw"):
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        if len(raw) >= 0x22 and int.from_bytes(raw[0x0C:0x0E], "little"):
            rates.add(int.from_bytes(raw[0x20:0x22], "little"))
    return rates.pop() if len(rates) == 1 and 0 not in rates and 0xFFFF not in rates else None


# --- against the counters

#: Pages that are touched, as shares of what the second-level TLB holds: all of them fit, or none.
FITS, EXCEEDS = 0.75, 4.0
#: Walks a load that are taken for none, and for one every time.
_FEW, _MANY = 0.1, 0.5
#: Events that count walks for data.
_WALKS = ("dtlb_load_walks", "dtlb_walks")


def walks_per_load(
    pages: int, host: dict[str, Any], *, loads: int = 2_000_000
) -> tuple[float | None, list[str]]:
    """Walks that the counters show for each of many loads over so many pages.

    Returns:
        None where they show nothing, and why not.

    Raises:
        FlatwalkError: If the measuring program fails.
    """
    request = {
        "cpus": choose_cpus(host, 1),
        "events": [event for event in events(host) if event["name"] in _WALKS],
        "bench": {"pages": pages, "loads": loads, "seed": 1},
    }
    answer = native.measure(native.find(), "tlb", request)
    found = [count["value"] / loads for count in answer["counts"]]
    why = [note for note in answer["notes"] if "not counted" in note]
    return sum(found) if found else None, why


def judged(entries: int, fits: float | None, exceeds: float | None, why: list[str] | None = None) -> str:
    """Whether the counters agree with a second-level TLB of so many entries for 4 KiB pages.

    Args:
        entries: What the model has.
        fits: Walks a load over `FITS` times as many pages.
        exceeds: The same over `EXCEEDS` times as many.
        why: Why nothing was counted, where nothing was.
    """
    if fits is None or exceeds is None:
        reason = "; ".join(dict.fromkeys(why or ["no event of this processor is known to count walks"]))
        return f"The TLBs were not checked: {reason}."
    told = (
        f"{fits:.2f} walks a load over {round(FITS * entries)} pages, "
        f"{exceeds:.2f} over {round(EXCEEDS * entries)}"
    )
    if fits > _FEW:
        return f"The counters contradict the L2 TLB of {entries} entries, which is too large: {told}."
    if exceeds < _MANY:
        return f"The counters contradict the L2 TLB of {entries} entries, which is too small: {told}."
    return f"The counters agree with an L2 TLB of {entries} entries: {told}."


def checked(modelled: Modelled) -> str:
    """What the counters say of the model's TLBs.

    Raises:
        FlatwalkError: If the measuring program fails.
    """
    host = describe()
    tlb = modelled.machine["tlb"]
    entries = next(
        array["entries"] for name in ("l2", "l1d") for array in tlb.get(name, []) if "4K" in array["pages"]
    )
    fits, exceeds = (walks_per_load(round(share * entries), host) for share in (FITS, EXCEEDS))
    return judged(entries, fits[0], exceeds[0], fits[1] + exceeds[1])


# --- as a file


def _comments(name: str) -> dict[str, str]:
    """By key: what a shipped file's comments say of it, or of its table; empty where they say nothing."""
    found: dict[str, str] = {}
    section, of_table, counts = "", "", dict[str, int]()
    for line in (settings.DATA / "machines" / f"{name}.toml").read_text(encoding="utf-8").splitlines():
        comment = line.partition(" # ")[2].strip()
        if header := re.match(r"(\[\[?)([\w.]+)\]", line):
            section, of_table = header[2], comment
            if header[1] == "[[":
                counts[section] = counts.get(section, 0) + 1
                section += f"[{counts[section]}]"
        elif (figure := re.match(r"(\w+) = ", line)) and figure[1] not in variations.NAMES:
            found[f"{section}.{figure[1]}" if section else figure[1]] = comment or of_table
    return found


def as_toml(modelled: Modelled) -> str:
    """The machine as a file, with the source of each figure beside it."""
    lines = [
        f"# Made by flatwalk from a host: {modelled.machine['title']}. What it does not say is from the",
        f"# shipped machine {modelled.base}, whose file explains the names in brackets.",
    ]
    tables = [(key, value) for key, value in modelled.machine.items() if isinstance(value, dict)]
    words = {key: value for key, value in modelled.machine.items() if not isinstance(value, dict)}
    lines += _table("", words, modelled.sources)
    for name, table in tables:
        lines += _section(name, table, modelled.sources)
    return "\n".join(lines) + "\n"


def _section(name: str, table: dict[str, Any], sources: dict[str, str]) -> list[str]:
    arrays = {
        key: value
        for key, value in table.items()
        if value and isinstance(value, list) and isinstance(value[0], dict)
    }
    own = {key: value for key, value in table.items() if key not in arrays}
    # A page-walk cache within a table is a table of its own; other tables are short.
    nested = {key: value for key, value in own.items() if isinstance(value, dict) and "kind" in value}
    own = {key: value for key, value in own.items() if key not in nested}
    lines = ["", f"[{name}]", *_table(name, own, sources)] if own else []
    for key, value in nested.items():
        lines += _section(f"{name}.{key}", value, sources)
    for key, items in arrays.items():
        for number, item in enumerate(items, start=1):
            lines += ["", f"[[{name}.{key}]]", *_table(f"{name}.{key}[{number}]", item, sources)]
    return lines


def _table(name: str, values: dict[str, Any], sources: dict[str, str]) -> list[str]:
    found = []
    for key, value in values.items():
        line = f"{key} = {toml.value(value)}"
        source = sources.get(f"{name}.{key}" if name else key)
        found.append(f"{line:<31} # {source}" if source else line)
    return found
