"""What this host is, and what about it makes measurements untrustworthy."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Intel's family-6 models whose data-TLB walks are counted by events 0x12 and 0x13 (Golden Cove and
#: relatives: Alder, Raptor, Meteor and Arrow Lake; Sapphire, Emerald and Granite Rapids).
GOLDEN_COVE = {0x8F, 0x97, 0x9A, 0xAA, 0xAC, 0xAD, 0xAE, 0xB7, 0xBA, 0xBF, 0xC5, 0xC6, 0xCF}
#: Those with events 0x08 and 0x49 (Haswell to Ice Lake, Tiger Lake and Rocket Lake).
_SKYLAKE = {
    *(0x3C, 0x3F, 0x45, 0x46, 0x3D, 0x47, 0x4F, 0x56, 0x4E, 0x5E, 0x55, 0x8E, 0x9E, 0xA5, 0xA6),
    *(0x6A, 0x6C, 0x7D, 0x7E, 0x8C, 0x8D, 0xA7),
}


@dataclass(frozen=True)
class Files:
    """Where the kernel describes the machine; tests give their own files."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    etc: Path = Path("/etc")


def read(path: Path) -> str | None:
    """A small file's text without blanks around it; None if it does not exist, or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _chosen(text: str | None) -> str | None:
    """The word in brackets: `always [madvise] never` is madvise."""
    match = re.search(r"\[([^]]+)\]", text or "")
    return match[1] if match else text


def cpu_list(text: str | None) -> list[int]:
    """Reads the kernel's lists: `0-2,5` is [0, 1, 2, 5]."""
    found: list[int] = []
    for part in (text or "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match:
            found.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def _cpuinfo(files: Files) -> dict[str, str]:
    first = (read(files.proc / "cpuinfo") or "").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _caches(files: Files, cpu: int) -> list[dict[str, Any]]:
    found = []
    for index in sorted((files.sys / f"devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        size = re.fullmatch(r"(\d+)([KM]?)", read(index / "size") or "")
        level = read(index / "level")
        if size and level:
            found.append(
                {
                    "level": int(level),
                    "type": read(index / "type"),
                    "bytes": int(size[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20}[size[2]],
                    "shared_by": len(cpu_list(read(index / "shared_cpu_list"))),
                }
            )
    return found


def _cpu(files: Files) -> dict[str, Any]:
    info = _cpuinfo(files)
    flags = (info.get("flags") or info.get("Features") or "").split()
    sizes = re.search(r"(\d+) bits physical, (\d+) bits virtual", info.get("address sizes", ""))

    def number(key: str) -> int | None:
        try:
            return int(info[key], 0)
        except (KeyError, ValueError):
            return None

    arm = "CPU implementer" in info
    return {
        "architecture": platform.machine(),
        "vendor": info.get("vendor_id") or info.get("CPU implementer"),
        "model_name": info.get("model name") or (f"Arm part {info.get('CPU part')}" if arm else None),
        "family": number("cpu family"),
        "model": number("CPU part" if arm else "model"),
        "stepping": number("stepping"),
        "microcode": info.get("microcode"),
        "online": len(cpu_list(read(files.sys / "devices/system/cpu/online"))) or os.cpu_count(),
        "physical_bits": int(sizes[1]) if sizes else None,
        "virtual_bits": int(sizes[2]) if sizes else None,
        "la57": "la57" in flags if not arm else None,
        "hypervisor_flag": "hypervisor" in flags,
        **_of_one(files, 0, _core_types(files)),
    }


def _of_one(files: Files, cpu: int, types: dict[str, list[int]]) -> dict[str, Any]:
    """What may differ from one processor of a hybrid host to the next."""
    own = (name for name, cpus in types.items() if cpu in cpus)
    return {"core_type": next(own, None), "caches": _caches(files, cpu)}


#: Types of a hybrid's cores, as the kernel names their counters: P cores, E cores, and slower E cores.
_CORE_TYPES = (_P_CORES := "cpu_core", "cpu_atom", "cpu_lowpower")


def _core_types(files: Files) -> dict[str, list[int]]:
    """Processors by the type of their core; empty unless the host is a hybrid."""
    found = {name: read(files.sys / f"bus/event_source/devices/{name}/cpus") for name in _CORE_TYPES}
    return {name: cpu_list(text) for name, text in found.items() if text}


def _hypervisor(files: Files, cpu: dict[str, Any]) -> str | None:
    kind = read(files.sys / "hypervisor/type")
    if kind and kind != "none":
        return kind
    vendor = " ".join(
        filter(None, (read(files.sys / f"class/dmi/id/{name}") for name in ("sys_vendor", "product_name")))
    )
    known = ("QEMU", "KVM", "VMware", "VirtualBox", "Xen", "Amazon EC2", "Google", "Microsoft", "Firecracker")
    clock = read(files.sys / "devices/system/clocksource/clocksource0/available_clocksource") or ""
    if cpu["hypervisor_flag"]:
        return next((name for name in known if name.lower() in f"{vendor} {clock}".lower()), "unnamed")
    return next((name for name in known[:6] if name.lower() in vendor.lower()), None)


def _scaling(files: Files) -> dict[str, Any]:
    cpus = files.sys / "devices/system/cpu"
    governors = {read(path) for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    no_turbo, boost = read(cpus / "intel_pstate/no_turbo"), read(cpus / "cpufreq/boost")
    turbo = {"0": True, "1": False}.get(no_turbo or "", {"1": True, "0": False}.get(boost or ""))
    return {"governors": sorted(filter(None, governors)), "turbo": turbo}


def _nodes(files: Files) -> dict[str, list[int]]:
    """Processors by NUMA node."""
    return {
        path.name.removeprefix("node"): cpu_list(read(path / "cpulist"))
        for path in sorted((files.sys / "devices/system/node").glob("node[0-9]*"))
    }


def _node_bytes(files: Files) -> dict[str, int]:
    """Memory by NUMA node."""
    found = {}
    for path in sorted((files.sys / "devices/system/node").glob("node[0-9]*")):
        if total := re.search(r"MemTotal:\s+(\d+) kB", read(path / "meminfo") or ""):
            found[path.name.removeprefix("node")] = int(total[1]) * 1024
    return found


def _mitigations(files: Files) -> dict[str, str]:
    found = {
        path.name: read(path) or ""
        for path in sorted((files.sys / "devices/system/cpu/vulnerabilities").glob("*"))
    }
    return {name: state for name, state in found.items() if state and state != "Not affected"}


def describe(files: Files | None = None) -> dict[str, Any]:
    """Everything about the host that a measurement may depend on, as it goes into result files."""
    files = files or Files()
    cpu = _cpu(files)
    command_line = read(files.proc / "cmdline") or ""
    huge = files.sys / "kernel/mm/transparent_hugepage"
    memory = re.search(r"MemTotal:\s+(\d+) kB", read(files.proc / "meminfo") or "")
    machine_id = read(files.etc / "machine-id")
    system = files.sys / "devices/system/cpu"
    return {
        "machine": hashlib.sha256(f"flatwalk-host {machine_id}".encode()).hexdigest()[:16]
        if machine_id
        else None,
        "cpu": cpu,
        "kernel": {
            "release": read(files.proc / "sys/kernel/osrelease") or platform.release(),
            "version": read(files.proc / "sys/kernel/version") or platform.version(),
            "command_line": command_line,
        },
        "page_table_levels": _levels(cpu, command_line),
        "user_address_bits": _user_address_bits(files),
        "no5lvl": "no5lvl" in command_line.split(),
        "page_bytes": os.sysconf("SC_PAGESIZE"),
        "memory_bytes": int(memory[1]) * 1024 if memory else None,
        "thp": {
            "enabled": _chosen(read(huge / "enabled")),
            "defrag": _chosen(read(huge / "defrag")),
            "shmem": _chosen(read(huge / "shmem_enabled")),
            "page_bytes": int(read(huge / "hpage_pmd_size") or 0) or None,
        },
        "fault_around_bytes": int(read(files.sys / "kernel/debug/fault_around_bytes") or 0) or None,
        "mitigations": _mitigations(files),
        "scaling": _scaling(files),
        "smt": read(system / "smt/active") == "1",
        "isolated": cpu_list(read(system / "isolated")),
        "nohz_full": cpu_list(read(system / "nohz_full")),
        "nodes": _nodes(files),
        "node_bytes": _node_bytes(files),
        "core_types": _core_types(files),
        "hypervisor": _hypervisor(files, cpu),
        "swappiness": int(read(files.proc / "sys/vm/swappiness") or 0),
        "perf_event_paranoid": int(read(files.proc / "sys/kernel/perf_event_paranoid") or 4),
        "aslr": read(files.proc / "sys/kernel/randomize_va_space"),
    }


def on(host: dict[str, Any], cpu: int, files: Files | None = None) -> dict[str, Any]:
    """The host's record with what is particular to one processor, such as its caches, of this one."""
    own = _of_one(files or Files(), cpu, host["core_types"])
    return {**host, "cpu": {**host["cpu"], **own}}


def file_system(path: Path, files: Files | None = None) -> str | None:
    """The kind of file system that a path lies on, as ext4 or tmpfs; None if the kernel does not say."""
    found: tuple[int, str | None] = (-1, None)
    path = path.resolve()
    for line in (read((files or Files()).proc / "self/mounts") or "").splitlines():
        _, place, kind, *_ = line.split(" ")
        place = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), place)
        # Of two that are mounted at one place, the later one is seen.
        if path.is_relative_to(place) and len(place) >= found[0]:
            found = (len(place), kind)
    return found[1]


def _user_address_bits(files: Files) -> int | None:
    """Bits of the addresses that a program gets unless it asks for more: the stack is at their top."""
    stack = re.search(
        r"^[0-9a-f]+-([0-9a-f]+) .*\[stack\]$", read(files.proc / "self/maps") or "", re.MULTILINE
    )
    return int(stack[1], 16).bit_length() if stack else None


def _levels(cpu: dict[str, Any], command_line: str) -> int | None:
    """Levels of user page tables; None where they are not known."""
    if cpu["architecture"] in {"x86_64", "AMD64"}:
        # Linux takes the flag away where it does not use five levels.
        return 5 if cpu["la57"] and "no5lvl" not in command_line.split() else 4
    return None


def warnings(host: dict[str, Any], cpus: list[int]) -> list[str]:
    """What about the host makes measurements on `cpus` less trustworthy."""
    found = []
    if host["hypervisor"]:
        found.append(
            f"This is a virtual machine ({host['hypervisor']}): walks go through the hypervisor's tables, "
            "too, and it may take the processor away at any time."
        )
    governors = host["scaling"]["governors"]
    if governors and governors != ["performance"]:
        found.append(
            f"The processor's frequency varies (governor {', '.join(governors)}): "
            "cpupower frequency-set -g performance holds it."
        )
    elif not governors and not host["hypervisor"]:
        found.append("The kernel does not say how the processor's frequency is governed.")
    if host["scaling"]["turbo"]:
        found.append("Turbo is on: the frequency depends on temperature and on the other processors' work.")
    if host["smt"]:
        found.append("SMT is on: a sibling thread shares the core's TLBs and caches.")
    shared = [cpu for cpu in cpus if cpu not in host["isolated"]]
    if shared:
        found.append(
            f"{processors(shared)} not isolated (isolcpus=, or a cpuset): other programs may run there."
        )
    return found


def processors(cpus: list[int]) -> str:
    """`Processor 1 is`, `Processors 0, 1 are`."""
    names = ", ".join(map(str, sorted(cpus)))
    return f"Processor {names} is" if len(cpus) == 1 else f"Processors {names} are"


def usable(host: dict[str, Any]) -> list[int]:
    """Processors that this process may run on.

    Isolated ones (isolcpus=) are in no process's mask until it asks for them, so that is tried: unless
    the mask has some, or lacks others, too. Then somebody chose it, as with `taskset`.
    """
    mask, isolated = os.sched_getaffinity(0), set(host["isolated"])
    if not isolated or mask & isolated or len(mask) < host["cpu"]["online"] - len(isolated):
        return sorted(mask)
    return sorted(mask | {cpu for cpu in isolated if _may_use(cpu, mask)})


def _may_use(cpu: int, mask: set[int]) -> bool:
    """Whether this process may run on a processor outside its mask, which it has again afterwards."""
    try:
        os.sched_setaffinity(0, {cpu})
    except (OSError, ValueError):
        return False
    os.sched_setaffinity(0, mask)
    return True


def choose_cpus(host: dict[str, Any], count: int, given: list[int] | None = None) -> list[int]:
    """Processors to run `count` threads on: those given, else isolated ones, else P cores, else the last.

    May be fewer than `count`; never none.
    """
    if given:
        return given[:count]
    fast = host["core_types"].get(_P_CORES, [])

    def rank(cpu: int) -> tuple[bool, bool, int]:
        is_isolated = cpu in host["isolated"]
        # The first processor takes most interrupts, so of those that are not isolated it comes last.
        return not is_isolated, bool(fast) and cpu not in fast, cpu if is_isolated else -cpu

    return sorted(usable(host), key=rank)[:count]


def node_of(host: dict[str, Any], cpu: int) -> int | None:
    """The NUMA node of a processor."""
    return next((int(node) for node, cpus in host["nodes"].items() if cpu in cpus), None)


def cache_bytes(host: dict[str, Any]) -> int:
    """What one core's data can lie in: the largest cache of each level."""
    by_level: dict[int, int] = {}
    for cache in host["cpu"]["caches"]:
        if cache["type"] != "Instruction":
            by_level[cache["level"]] = max(by_level.get(cache["level"], 0), cache["bytes"])
    return sum(by_level.values())


_SOFTWARE, _HARDWARE, _CACHE, _RAW = 1, 0, 3, 4


def events(host: dict[str, Any]) -> list[dict[str, Any]]:
    """What to count: page faults, and this processor's events of its data TLB.

    Sources: Intel's perfmon event lists, AMD's Processor Programming References (PMCx045), Arm's
    architecture reference (PMUv3 common events); the generic ones, linux/perf_event.h.
    """
    found = [
        {"name": "page_faults", "type": _SOFTWARE, "config": 2},
        {"name": "cycles", "type": _HARDWARE, "config": 0},
        {"name": "instructions", "type": _HARDWARE, "config": 1},
        {"name": "dtlb_load_misses", "type": _CACHE, "config": 3 | 0 << 8 | 1 << 16},
    ]
    cpu = host["cpu"]
    raw: dict[str, int] = {}
    if cpu["vendor"] == "GenuineIntel" and cpu["family"] == 6:
        if cpu["model"] in GOLDEN_COVE | _SKYLAKE:
            load, store = (0x12, 0x13) if cpu["model"] in GOLDEN_COVE else (0x08, 0x49)
            raw = {
                "dtlb_load_walks": 0x0E << 8 | load,
                "dtlb_load_walk_cycles": 1 << 24 | 0x10 << 8 | load,
                "dtlb_store_walks": 0x0E << 8 | store,
                "dtlb_store_walk_cycles": 1 << 24 | 0x10 << 8 | store,
            }
    elif cpu["vendor"] == "AuthenticAMD" and (cpu["family"] or 0) >= 0x17:
        raw = {"dtlb_walks": 0xF0 << 8 | 0x45}  # no event for their cycles
    elif cpu["architecture"] == "aarch64":
        raw = {"dtlb_walks": 0x34}
    return found + [{"name": name, "type": _RAW, "config": config} for name, config in raw.items()]


#: Shares of a processor's time above which other programs, or the hypervisor, disturb a measurement.
_BUSY, _STOLEN = 0.05, 0.01
#: Share by which a processor may be slower than at its best.
PACE_TOLERANCE = 0.08
#: Ticks by which the kernel's count may be wrong.
_GRAIN_TICKS = 2


def _whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


class Busyness:
    """How busy this machine was with other work, from construction to `shares`."""

    def __init__(self, cpus: list[int], files: Files | None = None) -> None:
        self._cpus = cpus
        self._files = files or Files()
        self._before = self._times()
        self._own = self._used()

    @staticmethod
    def _used() -> tuple[float, float]:
        """Seconds that this process used, and its ended children."""
        times = os.times()
        return times.user + times.system, times.children_user + times.children_system

    def _times(self) -> dict[int, list[float]]:
        """Seconds of each processor so far, by kind."""
        tick = os.sysconf("SC_CLK_TCK")
        lines = (read(self._files.proc / "stat") or "").splitlines()
        found = (re.match(r"cpu(\d+) (.*)", line) for line in lines)
        return {
            int(match[1]): ([int(field) / tick for field in match[2].split()] + [0.0] * 8)[:8]
            for match in found
            if match
        }

    def shares(self) -> dict[str, float]:
        """Shares of the time since construction.

        `others`: of the measuring processors, used by other programs; `stolen`: taken by the hypervisor;
        `elsewhere`: of the other processors, used by other programs. The children are taken to run on the
        measuring processors, this process elsewhere. The kernel counts in ticks, so a few of them
        are not a disturbance.
        """
        spent = {
            cpu: [now - then for now, then in zip(times, self._before.get(cpu, times), strict=True)]
            for cpu, times in self._times().items()
        }

        def total(cpus: list[int]) -> tuple[float, float, float]:
            rows = [spent[cpu] for cpu in cpus if cpu in spent]
            all_of_it = sum(map(sum, rows))
            stolen = sum(row[7] for row in rows)
            return all_of_it - sum(row[3] + row[4] for row in rows) - stolen, stolen, all_of_it or 1.0

        busy, stolen, time = total(self._cpus)
        busy_elsewhere, _, time_elsewhere = total([cpu for cpu in spent if cpu not in self._cpus])
        own, children = (now - then for now, then in zip(self._used(), self._own, strict=True))
        grain = _GRAIN_TICKS / os.sysconf("SC_CLK_TCK")
        return {
            "others": max(0.0, busy - children - grain) / time,
            "stolen": max(0.0, stolen - grain) / time,
            "elsewhere": max(0.0, busy_elsewhere - own - grain) / time_elsewhere,
        }


def disturbances(shares: dict[str, float], cpus: list[int]) -> list[str]:
    """What disturbed a measurement, in words; nothing if nothing did."""
    found = []
    names = f"{'processor' if len(cpus) == 1 else 'processors'} {', '.join(map(str, sorted(cpus)))}"
    if shares["others"] > _BUSY:
        found.append(
            f"Other programs took {_whole_percent(shares['others'])} of {names}: "
            f"stop them, or choose {'another' if len(cpus) == 1 else 'others'} with --cpu."
        )
    if shares["elsewhere"] > _BUSY:
        found.append(
            f"The other processors were busy for {_whole_percent(shares['elsewhere'])} of the time: "
            "they share caches, memory and the frequency's limits with the measuring ones."
        )
    if shares["stolen"] > _STOLEN:
        found.append(f"The hypervisor took {names} away for {_whole_percent(shares['stolen'])} of the time.")
    return found
