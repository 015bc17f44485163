"""ChampSim's configuration as a machine, and its counts next to ours."""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from scripts import champsim as judge

from flatwalk.definitions import champsim, settings
from flatwalk.errors import UsageError
from tests import fake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Result

    Call = Callable[..., Result]


def config(**changes: Any) -> dict[str, Any]:
    """The keys of ChampSim's own champsim_config.json that matter here, with other values than its."""
    cache = {"mshr_size": 9, "prefetcher": "no", "rq_size": 64}
    tlb = {"latency": 1, "mshr_size": 8}
    found: dict[str, Any] = {
        "executable_name": "champsim",
        "block_size": 64,
        "page_size": 4096,
        "num_cores": 1,
        "ooo_cpu": [
            {
                "frequency": 4000,
                "rob_size": 352,
                "lq_size": 128,
                "retire_width": 5,
                "branch_predictor": "bimodal",
            }
        ],
        "L1I": {"sets": 64, "ways": 8, "latency": 4, **cache},
        "L1D": {"sets": 64, "ways": 12, "latency": 5, **cache},
        "L2C": {"sets": 1024, "ways": 8, "latency": 10, **cache},
        "LLC": {"frequency": 2000, "sets": 2048, "ways": 16, "latency": 20, **cache},
        "ITLB": {"sets": 16, "ways": 4, **tlb},
        "DTLB": {"sets": 16, "ways": 4, **tlb},
        "STLB": {"sets": 128, "ways": 12, "latency": 8, "mshr_size": 16},
        "PTW": {"pscl3_set": 2, "pscl3_way": 4, "mshr_size": 5},
        "physical_memory": {"data_rate": 3200, "channels": 2, "tCAS": 24},
        "virtual_memory": {"num_levels": 5, "minor_fault_penalty": 200},
    }
    return {**found, **changes}


def test_a_configuration_becomes_a_machine(tmp_path: Path, call: Call) -> None:
    source, target = tmp_path / "champsim_config.json", tmp_path / "mine.toml"
    source.write_text(json.dumps(config()))
    result = call("machine", "import", "champsim_config.json", "mine.toml")
    assert result.code == 0, result.err
    machine = settings.machine(str(target))
    assert machine["frequency_mhz"] == 4000
    assert machine["core"]["width"] == 5
    assert machine["core"]["window"] == 352
    assert machine["core"]["frontend_cycles"] == 3
    assert [machine[name]["size_bytes"] for name in ("l1d", "l2", "llc")] == [48 << 10, 512 << 10, 2 << 20]
    # Each level's own, summed; the last one's clock is half as fast.
    assert [machine[name]["latency_cycles"] for name in ("l1d", "l2", "llc")] == [5, 15, 55]
    assert machine["tlb"]["l2"] == [
        {"pages": ["4K", "2M", "1G"], "entries": 1536, "ways": 12, "latency_cycles": 8}
    ]
    assert machine["pwc"]["entries"] == {"L5": 2, "L4": 4, "L3": 8, "L2": 32}
    assert machine["walker"] == {"concurrent": 5, "entry": "l1d"}
    assert machine["memory"]["cl_ns"] == 15.0, "24 cycles of 1600 MHz"
    assert machine["memory"]["banks"] == 32
    assert machine["memory"]["ras_ns"] == 0, "ChampSim's rows may be closed at any time"
    assert machine["memory"]["rfc_ns"] == 130.0, "52 cycles of 1600 MHz, times the root of 8 × 2 GiB"
    assert machine["memory"]["refi_ns"] == 3906.25, "32 ms over 8192"
    assert machine["memory"]["write_queue"] == 56
    assert machine["memory"]["write_batch"] == 9, "until fewer than 48 are left"
    assert machine["os"]["memory_bytes"] == 32 << 30
    assert "branch_predictor is bimodal; here it is hashed_perceptron" in result.err
    assert "PSCL3 has 2 sets of 4" in result.err
    assert "PTW.mshr_size is 5, which ChampSim does not keep to" in result.err
    assert "compare with the scheme radix5" in result.err
    assert "Its neighbouring lines lie in other banks" in result.err
    assert "L1D.rq_size" in result.err.replace("\n", " ")
    assert "heartbeat" not in result.err
    # As every figure of a machine has.
    figures = [line for line in target.read_text().splitlines() if re.match(r"\w+ = [\d{]", line)]
    assert len(figures) > 30
    assert [line for line in figures if " # " not in line] == []
    shown = call("machine", "import", "champsim_config.json")
    assert tomllib.loads(shown.out) == machine


def test_the_energy_of_other_caches_is_left_out(tmp_path: Path, call: Call) -> None:
    """ChampSim has none, and what skylake-server has is of its own sizes."""
    assert "energy" in settings.machine(champsim.BASE)
    (tmp_path / "champsim_config.json").write_text(json.dumps(config()))
    assert call("machine", "import", "champsim_config.json", "mine.toml").code == 0
    assert "energy" not in settings.machine(str(tmp_path / "mine.toml"))
    refused = call("compare", "--energy", "--machine", "mine.toml")
    assert refused.code == 2
    assert "the machine champsim_config has no [energy] section" in refused.err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"L1D": {"sets": 64, "ways": 12, "latency": 5}}, "L1D.mshr_size is missing"),
        ({"L1D": {"sets": "64", "ways": 12, "latency": 5}}, 'L1D.sets must be a whole number (it is "64")'),
        ({"block_size": 128}, "block_size is 128"),
        ({"caches": [{"name": "mine"}]}, "caches has names of its own"),
        ({"ooo_cpu": 3}, "not a configuration of ChampSim"),
        ({"ITLB": {"sets": 3, "ways": 4, "latency": 1}}, "makes no valid machine: tlb.l1i[1].entries"),
        ({"physical_memory": {"channels": 3}}, "makes no valid machine: memory.channels"),
        ({"block_size": "128B"}, 'block_size is "128B"'),
        ({"L1D": 5}, "L1D.ways is missing"),
        ({"L1D": ["ways"]}, "L1D.ways is missing"),
        ({"physical_memory": {"tCAS": 10**400}}, "physical_memory.tCAS must be a whole number (it is 1000"),
        ({"num_cores": 2, "ooo_cpu": [{"rob_size": 352}, {"rob_size": 128}]}, "its cores differ"),
    ],
)
def test_what_makes_no_machine_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "champsim_config.json"
    path.write_text(json.dumps(config(**changes)))
    with pytest.raises(UsageError) as raised:
        champsim.load(path)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "path", "figure", "note"),
    [
        ({"block_size": "64B"}, "l1d.ways", 12, None),
        ({"physical_memory": {"frequency": 2400}}, "memory.data_rate_mts", 2400, None),
        ({"L2C": {"frequency": 2000}, "LLC": {"latency": 20}}, "llc.latency_cycles", 65, None),
        ({"PTW": {"lower_level": "LLC"}}, "walker.entry", "l1d", "PTW.lower_level is LLC"),
        (
            {"ooo_cpu": [{"branch_predictor": ["mine"]}]},
            "core.branch_predictor",
            "hashed_perceptron",
            "branch_predictor is mine",
        ),
        (
            {"L1D": {"prefetcher": [{"path": "a", "class": "b"}]}},
            "l1d.ways",
            12,
            'L1D.prefetcher is {"path": "a", "class": "b"}',
        ),
        (
            {"L1D": {"prefetcher": "x\n[core]\nwidth=1"}},
            "l1d.ways",
            12,
            r"L1D.prefetcher is x\n[core]\nwidth=1",
        ),
    ],
)
def test_what_a_configuration_says_in_other_ways(
    changes: dict[str, Any], path: str, figure: object, note: str | None
) -> None:
    base = config()
    for section, values in changes.items():
        known = base.get(section)
        if isinstance(known, dict) and isinstance(values, dict):
            base[section] = {**known, **values}
        elif isinstance(known, list) and isinstance(values, list):
            base[section] = [{**known[0], **values[0]}]
        else:
            base[section] = values
    if "LLC" in changes:
        base["LLC"].pop("frequency", None)
        base["L2C"].update(latency=10)
        base["L1D"].update(latency=5)
    found = champsim.machine(base, "x", "x.json")
    table, key = path.split(".")
    assert found.machine[table][key] == figure
    assert note is None or any(note in words for words in found.notes)
    assert tomllib.loads(champsim.text(found)) == found.machine


def test_only_the_cores_of_the_root_are_cores() -> None:
    found = champsim.machine(config(mine={"ooo_cpu": [3]}), "x", "x.json")
    assert "mine.ooo_cpu" in found.left_out


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"ooo_cpu": [3]}', "[" * 100_000])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "champsim_config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"not JSON|not a configuration"):
        champsim.load(path)


@pytest.mark.parametrize("levels", [2, 3, 4, 5, 6])
def test_a_scheme_is_named_only_if_there_is_one(levels: int) -> None:
    found = champsim.machine(config(virtual_memory={"num_levels": levels}), "x", "x.json")
    words = next(note for note in found.notes if note.startswith(f"Its page tables have {levels} levels"))
    assert words.endswith(
        f": compare with the scheme radix{levels}."
        if f"radix{levels}" in settings.names("scheme")
        else ", as those of no shipped scheme."
    )


#: ChampSim's kinds of accesses.
KINDS = ("LOAD", "RFO", "PREFETCH", "WRITE", "TRANSLATION")


def counted(**kinds: tuple[int, int, int]) -> dict[str, Any]:
    """ChampSim's JSON of a cache: hits, misses, and how many of these wait for one under way."""
    every = {kind: kinds.get(kind, (0, 0, 0)) for kind in KINDS}
    found: dict[str, Any] = {
        kind: {"hit": [hit], "miss": [miss], "mshr_merge": [merged]}
        for kind, (hit, miss, merged) in every.items()
    }
    return {**found, "miss latency": 3.5}


def test_counts_stand_side_by_side() -> None:
    """Misses that wait for one under way are no misses of their own; a store is WRITE in the L1D alone."""
    roi = {
        "cores": [
            {
                "instructions": 1_000_000,
                "cycles": 2_000_000,
                "mispredict": {"BRANCH_CONDITIONAL": 7, "BRANCH_INDIRECT": 2},
            }
        ],
        "cpu0_DTLB": counted(LOAD=(1800, 1100, 50)),
        "cpu0_STLB": counted(LOAD=(700, 350, 50)),
        "cpu0_L1D": counted(LOAD=(10, 30, 5), WRITE=(100, 4, 1), TRANSLATION=(400, 200, 20)),
        "cpu0_L2C": counted(LOAD=(10, 20, 0), RFO=(1, 2, 1), WRITE=(1000, 1000, 0)),
        "LLC": counted(LOAD=(10, 15, 0), WRITE=(1000, 1000, 0)),
        "DRAM": [
            {f"{queue} ROW_BUFFER_{what}": count for queue, what, count in queues}
            for queues in (
                (("RQ", "HIT", 1), ("RQ", "MISS", 2), ("WQ", "HIT", 10), ("WQ", "MISS", 20)),
                (("RQ", "HIT", 3), ("RQ", "MISS", 4), ("WQ", "HIT", 30), ("WQ", "MISS", 40)),
            )
        ],
    }
    run: dict[str, Any] = {
        **fake.run(),
        "instructions": 1_000_000,
        "walks": 300,
        "accesses_per_walk": 1.0,
        "cycles": 1_000_000,
        "ipc": 1.0,
        "dram": {"reads": 10, "writes": 100, "row_hits": 44},
        "branch": {"branches": 100, "mispredictions": 9},
    }
    # The same array holds pages of each size, and is looked up once.
    run["tlb"] = [
        {"name": name, "page": page, "lookups": lookups, "hits": hits if page == "4K" else 0}
        for name, lookups, hits in (("L1D", 3000, 1950), ("L1I", 5, 5), ("L2", 1050, 700))
        for page in ("4K", "2M", "1G")
    ]
    counts = {"data_accesses": 33, "data_misses": 28, "table_accesses": 300, "table_misses": 0}
    run["caches"] = [{"name": name, **counts} for name in ("L1D", "L2", "LLC")]
    rows = {row.name: row for row in judge.table(run, roi)}
    assert rows["walks"].cells() == "| walks | 300 | 300 | equal |"
    assert rows["DTLB: misses"].cells() == "| DTLB: misses | 1,050 | 1,050 | equal |"
    assert rows["STLB: look-ups"].cells() == "| STLB: look-ups | 1,050 | 1,050 | equal |"
    assert rows["accesses of walks"].cells() == "| accesses of walks | 300 | 600 | 0.500 |"
    assert rows["accesses a walk"].theirs == 2
    assert rows["L1D: accesses of data"].theirs == 144
    assert rows["L1D: misses of data"].cells() == "| L1D: misses of data | 28 | 28 | equal |"
    assert rows["L1D: misses of walks"].theirs == 180
    assert rows["L2C: accesses of data"].cells() == "| L2C: accesses of data | 33 | 33 | equal |"
    assert rows["L2C: misses of data"].theirs == 21
    assert rows["LLC: misses of data"].theirs == 15
    for name in ("reads", "writes", "hits of rows"):
        assert rows[f"DRAM: {name}"].ours == rows[f"DRAM: {name}"].theirs
    assert rows["branches mispredicted"].theirs == 9
    assert rows["IPC"].cells() == "| IPC | 1 | 0.500 | 2.000 |"


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        (
            "Simulation CPU 0 panic: IPC 0.0024 < 0.01\nDEADLOCK! CPU 0 cycle 10684823",
            "gave up: Simulation CPU 0",
        ),
        ("DEADLOCK! CPU 0 cycle 8", "ended with status 134:\nDEADLOCK! CPU 0 cycle 8"),
    ],
)
def test_a_slow_program_is_no_deadlock(printed: str, words: str) -> None:
    """ChampSim reports both in the same way."""
    with pytest.raises(SystemExit, match=re.escape(words)):
        judge.call(["sh", "-c", f"echo '{printed}'; exit 134"])
