"""ChampSim's JSON configuration as a machine.

What both simulators have is taken over. What only flatwalk has is as in the shipped `skylake-server`, but
for the energy of accesses, which is of caches of other sizes and left out. What only ChampSim has is named.
Keys and units are those of ChampSim's `config/parse.py` and `config/instantiation_file.py`: latencies of
caches are each level's own, in cycles of the cache's clock, and DRAM's are in cycles of its bus, whose clock
is half of `data_rate`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flatwalk import engine
from flatwalk.definitions import settings, toml
from flatwalk.errors import UsageError
from flatwalk.terminal import output
from flatwalk.terminal.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What says all that ChampSim does not.
BASE = "skylake-server"
_LINE_BYTES = 64
_GIB = 1 << 30
#: The greatest number that a figure can be.
_MOST = 1 << 53
#: Characters of a value that an error or a note shows.
_WIDTH = 80
#: ChampSim's predictors that flatwalk has, too.
_PREDICTORS = {"gshare": "gshare", "hashed_perceptron": "hashed_perceptron"}
#: What says nothing of the simulated machine.
_NO_FIGURES = {"executable_name", "heartbeat_frequency", "name"}


@dataclass
class Imported:
    """A machine, and where its figures are from."""

    machine: dict[str, Any]
    #: By key, such as `l1d.ways`.
    sources: dict[str, str] = field(default_factory=dict)
    #: Keys of the configuration that have no counterpart.
    left_out: list[str] = field(default_factory=list)
    #: What is not the same although both have it, as sentences.
    notes: list[str] = field(default_factory=list)

    def put(self, key: str, value: object, source: str) -> None:
        """Sets a figure of the machine."""
        *path, last = key.split(".")
        table = self.machine
        for part in path:
            table = table[part]
        table[last] = value
        self.sources[key] = f"[C] {source}"


@dataclass
class _Reader:
    """A configuration, and which of its keys were read."""

    config: dict[str, Any]
    where: str
    read: set[str] = field(default_factory=set)

    def _find(self, section: str, key: str) -> object:
        """A key of a section; a core's may stand in the core or at the root, and its caches in the core."""
        first = (self.config.get("ooo_cpu") or [{}])[0]
        if section == "ooo_cpu":
            places = ((f"ooo_cpu.{key}", first), (key, self.config))
        else:
            inner, outer = first.get(section), self.config.get(section)
            places = (
                (f"ooo_cpu.{section}.{key}", inner if isinstance(inner, dict) else {}),
                (f"{section}.{key}", outer if isinstance(outer, dict) else {}),
            )
        for name, place in places:
            if key in place:
                self.read.add(name)
                return place[key]
        return None

    def number(self, section: str, key: str, default: float | None = None) -> int:
        """A whole number that is not negative.

        Raises:
            UsageError: If it is something else, or missing without a default.
        """
        found = self._find(section, key)
        if found is None and default is not None:
            return int(default)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= _MOST:
            what = "is missing" if found is None else f"must be a whole number (it is {_shown(found)})"
            raise UsageError(
                f"{section}.{key} {what}",
                where=self.where,
                remedy="compare with ChampSim's champsim_config.json",
            )
        return found

    def text(self, section: str, key: str, default: str) -> str:
        """A text. A module may be in a list, as ChampSim takes several of a kind, or described by a table."""
        found = self._find(section, key)
        if isinstance(found, list) and len(found) == 1:
            found = found[0]
        if found is None:
            return default
        return one_line(found) if isinstance(found, str) else _shown(found)

    def unread(self) -> list[str]:
        """All other keys."""

        def keys(table: dict[str, Any], prefix: str) -> Iterator[str]:
            for key, one in table.items():
                name = f"{prefix}{key}"
                if key == "ooo_cpu" and isinstance(one, list) and not prefix:
                    yield from keys(one[0] if one else {}, f"{name}.")
                elif isinstance(one, dict):
                    yield from keys(one, f"{name}.")
                elif name not in self.read and key not in _NO_FIGURES:
                    yield name

        return list(keys(self.config, ""))


def _shown(found: object) -> str:
    """What stands in the file, short and on one line."""
    text = json.dumps(found)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def _bytes(found: object) -> object:
    """A size, which ChampSim takes with a unit, too; anything else as it is."""
    match = re.fullmatch(r"(\d{1,12}) ?(k|Ki)?B?", found) if isinstance(found, str) else None
    return int(match[1]) * (1024 if match[2] else 1) if match else found


def load(path: Path) -> Imported:
    """The machine of a configuration file.

    Raises:
        UsageError: If it is not one, or says something that no machine of flatwalk can be.
    """
    where = str(path)
    try:
        config = json.loads(settings.read_text(path, "a configuration of ChampSim"))
    except OSError as error:
        raise UsageError(
            f"it cannot be read: {error.strerror}", where=where, remedy="check the path"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"this is not JSON: {error}", where=where, remedy="give ChampSim's champsim_config.json"
        ) from error
    cores = config.get("ooo_cpu", [{}]) if isinstance(config, dict) else None
    if not isinstance(cores, list) or not all(isinstance(core, dict) for core in cores):
        raise UsageError(
            "this is not a configuration of ChampSim", where=where, remedy="give its champsim_config.json"
        )
    if named := [key for key in ("caches", "ptws") if config.get(key)]:
        raise UsageError(
            f"{named[0]} has names of its own",
            where=where,
            remedy="describe them as L1I, L1D, L2C, LLC, ITLB, DTLB, STLB and PTW",
        )
    count = config.get("num_cores", 1)
    alike = [{key: core[key] for key in core.keys() - _NO_FIGURES} for core in cores]
    if isinstance(count, int) and any(core != alike[0] for core in alike[1 : max(count, 1)]):
        raise UsageError(
            "its cores differ", where=where, remedy="describe one core in ooo_cpu: here all cores are alike"
        )
    found = machine(config, path.stem, where)
    if problems := engine.check("machine", found.machine):
        first = problems[0]
        raise UsageError(
            f"it makes no valid machine: {first['key']} {first['problem']}",
            where=where,
            remedy="change what it comes from",
        )
    return found


def machine(config: dict[str, Any], name: str, where: str) -> Imported:
    """The machine of a configuration.

    Raises:
        UsageError: If a figure is missing that a machine must have.
    """
    reader = _Reader(config, where)
    # The energy is of caches of other sizes.
    found = Imported({key: value for key, value in settings.machine(BASE).items() if key != "energy"})
    mhz = reader.number("ooo_cpu", "frequency", 4000)
    found.machine |= {
        "name": name,
        "title": f"ChampSim's configuration {name}",
        "source": f"[C] = {name}.json, for ChampSim; what it does not say is as {BASE}",
    }
    found.put("frequency_mhz", mhz, "frequency")
    _core(reader, found)
    _caches(reader, found, mhz)
    _tlbs(reader, found)
    _walker(reader, found)
    _memory(reader, found)
    if (cores := config.get("num_cores", 1)) != 1:
        found.machine["multicore"] = {"cores": cores, "isolation": "owners"}
        found.sources["multicore.cores"] = "[C] num_cores"
    reader.read.add("num_cores")
    for key, ours in (("block_size", _LINE_BYTES), ("page_size", 4096)):
        if _bytes(size := config.get(key, ours)) != ours:
            raise UsageError(f"{key} is {_shown(size)}", where=where, remedy=f"here it is {ours}")
        reader.read.add(key)
    found.left_out = reader.unread()
    return found


def _core(reader: _Reader, found: Imported) -> None:
    def of(key: str, default: int) -> int:
        return reader.number("ooo_cpu", key, default)

    widths = {key: of(key, 6) for key in ("fetch_width", "decode_width", "dispatch_width")}
    widths["retire_width"] = of("retire_width", 5)
    found.put("core.width", min(widths.values()), f"the least of {', '.join(widths)}")
    found.put("core.window", of("rob_size", 352), "rob_size")
    found.put("core.load_queue", of("lq_size", 128), "lq_size")
    found.put("core.store_queue", of("sq_size", 72), "sq_size")
    front = of("mispredict_penalty", 1) + of("decode_latency", 1) + of("dispatch_latency", 1)
    found.put("core.frontend_cycles", front, "mispredict_penalty + decode_latency + dispatch_latency")
    theirs = reader.text("ooo_cpu", "branch_predictor", "hashed_perceptron")
    ours = _PREDICTORS.get(theirs)
    found.put("core.branch_predictor", ours or "hashed_perceptron", f"branch_predictor = {theirs}")
    if ours is None:
        words = f"branch_predictor is {theirs}; here it is hashed_perceptron, so that IPC may differ by it."
        found.notes.append(words)


def _caches(reader: _Reader, found: Imported, mhz: int) -> None:
    latency = 0
    # A cache that says nothing of its clock has that of the caches above it, the fastest of several.
    clocks = {name: max(reader.number(name, "frequency", mhz), 1) for name in ("L1I", "L1D")}
    clocks["L2C"] = max(reader.number("L2C", "frequency", max(clocks.values())), 1)
    clocks["LLC"] = max(reader.number("LLC", "frequency", clocks["L2C"]), 1)
    for ours, theirs in (("l1i", "L1I"), ("l1d", "L1D"), ("l2", "L2C"), ("llc", "LLC")):
        ways = reader.number(theirs, "ways")
        size = reader.number(theirs, "sets") * ways * _LINE_BYTES
        clock = clocks[theirs]
        own = -(-reader.number(theirs, "latency") * mhz // clock)
        latency = own if ours in {"l1i", "l1d"} else latency + own
        found.put(f"{ours}.size_bytes", size, f"{theirs}: sets × ways × 64")
        found.put(f"{ours}.ways", ways, f"{theirs}.ways")
        found.put(f"{ours}.latency_cycles", latency, f"{theirs}.latency, and those of the caches before it")
        found.put(f"{ours}.mshrs", reader.number(theirs, "mshr_size"), f"{theirs}.mshr_size")
        for what, same in (("prefetcher", "no"), ("replacement", "lru")):
            if (kind := reader.text(theirs, what, same)) != same:
                found.notes.append(f"{theirs}.{what} is {kind}; here it is {same}.")


def _tlbs(reader: _Reader, found: Imported) -> None:
    for ours, theirs in (("l1i", "ITLB"), ("l1d", "DTLB"), ("l2", "STLB")):
        ways = reader.number(theirs, "ways")
        figures = {
            "entries": (reader.number(theirs, "sets") * ways, "sets × ways"),
            "ways": (ways, "ways"),
            "latency_cycles": (reader.number(theirs, "latency"), "latency"),
        }
        # ChampSim knows pages of 4 KiB alone; larger ones, if asked for, share the structure.
        array = {"pages": ["4K", "2M", "1G"], **{key: value for key, (value, _) in figures.items()}}
        found.machine["tlb"][ours] = [array]
        found.sources |= {f"tlb.{ours}.{key}": f"[C] {theirs}: {how}" for key, (_, how) in figures.items()}


def _walker(reader: _Reader, found: Imported) -> None:
    entries = {}
    levels = reader.number("virtual_memory", "num_levels", 5)
    for level, usual in {5: (1, 2), 4: (1, 4), 3: (2, 4), 2: (4, 8)}.items():
        sets = reader.number("PTW", f"pscl{level}_set", usual[0])
        ways = reader.number("PTW", f"pscl{level}_way", usual[1])
        if not sets * ways or level > levels:
            continue
        entries[f"L{level}"] = sets * ways
        found.sources[f"pwc.entries.L{level}"] = f"[C] PTW: pscl{level}_set × pscl{level}_way"
        if sets > 1:
            words = f"PSCL{level} has {sets} sets of {ways}; here its {sets * ways} are fully associative."
            found.notes.append(words)
    found.machine["pwc"] = {"kind": "split", "latency_cycles": 0, "entries": entries}
    found.sources["pwc.latency_cycles"] = "[C] none: ChampSim's walker looks it up in no time"
    walkers = reader.number("PTW", "mshr_size", 5)
    found.put("walker.concurrent", walkers, "PTW.mshr_size")
    found.notes.append(
        f"PTW.mshr_size is {walkers}, which ChampSim does not keep to: its STLB's MSHRs limit its walks."
    )
    lower = reader.text("PTW", "lower_level", "L1D")
    entry = "l2" if lower.endswith("L2C") else "l1d"
    found.put("walker.entry", entry, f"PTW.lower_level = {lower}")
    if not lower.endswith(("L1D", "L2C")):
        found.notes.append(f"PTW.lower_level is {lower}; here walks begin at the {entry.upper()}.")
    scheme = f"radix{levels}"
    shipped = scheme in settings.names("scheme")
    with_ = f": compare with the scheme {scheme}." if shipped else ", as those of no shipped scheme."
    found.notes.append(f"Its page tables have {levels} levels{with_}")


def _memory(reader: _Reader, found: Imported) -> None:
    def of(key: str, default: int) -> int:
        return reader.number("physical_memory", key, default)

    # ChampSim's own file had `frequency` for years, which it takes instead of the other.
    rate_key = "data_rate" if reader.number("physical_memory", "frequency", 0) == 0 else "frequency"
    rate = max(of(rate_key, 3200), 1)
    channels, ranks, width = of("channels", 1), of("ranks", 1), of("channel_width", 8)
    banks, rows = of("bankgroups", 8) * of("banks", 4), of("bank_rows", 65536)
    columns = of("bank_columns", 1024)

    def ns(cycles: int) -> float:
        return round(cycles * 2000 / rate, 3)

    period, refreshes = of("refresh_period", 32), max(of("refreshes_per_period", 8192), 1)
    turn = ns(of("tRAS", 52))
    # ChampSim's size of a chip (`DRAM_CHANNEL::density`): a byte for each cell, in whole GiB.
    density = rows * columns * banks // _GIB
    queue = of("wq_size", 64)
    for key, value, source in (
        ("channels", channels, "channels"),
        ("ranks", ranks, "ranks"),
        ("banks", banks, "bankgroups × banks"),
        ("row_bytes", columns * width, "bank_columns × channel_width"),
        ("data_rate_mts", rate, rate_key),
        ("cl_ns", ns(of("tCAS", 24)), "tCAS cycles of the bus"),
        ("rcd_ns", ns(of("tRCD", 24)), "tRCD cycles of the bus"),
        ("rp_ns", ns(of("tRP", 24)), "tRP cycles of the bus"),
        ("controller_ns", 0.0, "none: it takes no time of its own"),
        ("ras_ns", 0.0, "none: tRAS is the time of its turn-around and in its tRFC"),
        ("faw_ns", 0.0, "none"),
        ("refi_ns", round(period * 1e6 / refreshes, 3), "refresh_period ms / refreshes_per_period"),
        ("rfc_ns", round(math.sqrt(8 * density) * turn, 3), "√(8 × GiB of a chip) × tRAS"),
        ("write_queue", max(queue * 7 // 8, 1), "seven eighths of wq_size"),
        ("write_batch", queue * 7 // 8 - queue * 6 // 8 + 1, "to below six eighths of wq_size"),
        ("rtw_ns", turn, "tRAS cycles of the bus: its turn-around"),
        ("wtr_ns", turn, "tRAS cycles of the bus: its turn-around"),
    ):
        found.put(f"memory.{key}", value, source)
    found.notes.append(
        "Its neighbouring lines lie in other banks, so that few accesses hit a row; here they lie in a row."
    )
    whole = channels * ranks * banks * rows * columns * width
    found.put("os.memory_bytes", max(whole // _GIB, 1) * _GIB, "physical_memory: all of its cells")
    fault = reader.number("virtual_memory", "minor_fault_penalty", 200)
    found.put("os.fault_cycles", fault, "minor_fault_penalty")
    found.put("os.zero_bytes_per_cycle", 1 << 16, "none: a new page costs nothing else")


def text(found: Imported) -> str:
    """The machine's file; each figure with its source."""
    lines = []
    section = ""
    for line in toml.text(found.machine).splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        key, is_setting, _ = line.partition(" = ")
        is_figure = bool(is_setting) and f"{section}{key}" not in {"name", "title", "source"}
        source = found.sources.get(f"{section}{key}", f"as {BASE}")
        lines.append(f"{line} # {source}" if is_figure else line)
    return "\n".join(lines) + "\n"


def import_machine(path: Path, target: Path | None) -> None:
    """Writes the machine of a configuration, to standard output without a target, and says what is lost.

    Raises:
        UsageError: If it is not a configuration, or the target cannot be written.
    """
    if target is not None:
        output.check_writable(target, "TARGET")
        output.check_apart([(target, "TARGET")], [(path, "SOURCE")])
    found = load(path)
    if target is None:
        print(text(found), end="")
    else:
        output.write_whole(target, text(found))
    for words in found.notes:
        output.note(words)
    if found.left_out:
        output.note(f"Without a counterpart: {', '.join(found.left_out)}.")
