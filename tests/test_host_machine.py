"""What the host's record says, from made-up kernels' files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flatwalk.host import machine

if TYPE_CHECKING:
    from pathlib import Path

INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 106
model name\t: Intel(R) Xeon(R) Gold 6330
stepping\t: 6
flags\t\t: fpu la57 pcid
address sizes\t: 46 bits physical, 57 bits virtual

processor\t: 1
"""


def files(root: Path, **contents: str) -> machine.Files:
    """A tree of kernel files; `proc__stat` is /proc/stat."""
    for name, text in contents.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return machine.Files(proc=root / "proc", sys=root / "sys", etc=root / "etc")


@pytest.fixture
def server(tmp_path: Path) -> dict[str, Any]:
    cpu = "sys/devices/system/cpu".replace("/", "__")
    huge = "sys/kernel/mm/transparent_hugepage".replace("/", "__")
    return machine.describe(
        files(
            tmp_path,
            **{
                "proc__cpuinfo": INTEL,
                "proc__cmdline": "quiet isolcpus=2-3\n",
                "proc__meminfo": "MemTotal:       32768 kB\n",
                "etc__machine-id": "abc\n",
                "proc__self__maps": "7ffd0-7ffffffff000 rw-p 0 00:00 0  [stack]\n",
                f"{cpu}__online": "0-3\n",
                f"{cpu}__isolated": "2-3\n",
                f"{cpu}__smt__active": "1\n",
                f"{cpu}__cpu0__cpufreq__scaling_governor": "powersave\n",
                f"{cpu}__intel_pstate__no_turbo": "0\n",
                f"{cpu}__vulnerabilities__meltdown": "Mitigation: PTI\n",
                f"{cpu}__vulnerabilities__mds": "Not affected\n",
                f"{cpu}__cpu0__cache__index0__size": "48K\n",
                f"{cpu}__cpu0__cache__index0__level": "1\n",
                f"{cpu}__cpu0__cache__index0__type": "Data\n",
                f"{cpu}__cpu0__cache__index3__size": "42M\n",
                f"{cpu}__cpu0__cache__index3__level": "3\n",
                f"{cpu}__cpu0__cache__index3__type": "Unified\n",
                f"{huge}__enabled": "always [madvise] never\n",
                f"{huge}__hpage_pmd_size": "2097152\n",
                "sys__devices__system__node__node0__cpulist": "0-1\n",
                "sys__devices__system__node__node1__cpulist": "2-3\n",
                "sys__devices__system__node__node1__meminfo": "Node 1 MemTotal:       16384 kB\n",
            },
        )
    )


@pytest.fixture(autouse=True)
def _on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def test_a_servers_record(server: dict[str, Any]) -> None:
    assert server["page_table_levels"] == 5
    assert server["cpu"]["virtual_bits"] == 57
    assert server["user_address_bits"] == 47
    assert server["thp"] == {"enabled": "madvise", "defrag": None, "shmem": None, "page_bytes": 2 << 20}
    assert server["isolated"] == [2, 3]
    assert server["mitigations"] == {"meltdown": "Mitigation: PTI"}
    assert server["hypervisor"] is None
    assert server["memory_bytes"] == 32 << 20
    assert machine.cache_bytes(server) == (48 << 10) + (42 << 20)
    assert machine.node_of(server, 3) == 1
    assert server["node_bytes"] == {"1": 16 << 20}
    assert (server["core_types"], server["cpu"]["core_type"]) == ({}, None)
    assert "abc" not in server["machine"]


def test_no5lvl_leaves_four_levels(tmp_path: Path) -> None:
    found = machine.describe(files(tmp_path, proc__cpuinfo=INTEL, proc__cmdline="no5lvl"))
    assert (found["page_table_levels"], found["no5lvl"]) == (4, True)


def test_warnings_of_a_server(server: dict[str, Any]) -> None:
    reported = " ".join(machine.warnings(server, [1]))
    for word in ("governor powersave", "Turbo is on", "SMT is on", "Processor 1 is not isolated"):
        assert word in reported
    assert "isolated" not in " ".join(machine.warnings(server, [2, 3]))


def test_a_quiet_host_has_no_warnings(server: dict[str, Any]) -> None:
    quiet = {**server, "smt": False, "scaling": {"governors": ["performance"], "turbo": False}}
    assert machine.warnings(quiet, [2]) == []


def test_an_unknown_kernel_is_described_too(tmp_path: Path) -> None:
    found = machine.describe(files(tmp_path))
    assert found["memory_bytes"] is None
    assert found["machine"] is None
    assert machine.cache_bytes(found) == 0
    assert machine.node_of(found, 0) is None


def test_hypervisors(tmp_path: Path) -> None:
    guest = INTEL.replace("pcid", "pcid hypervisor")
    found = machine.describe(
        files(tmp_path, proc__cpuinfo=guest, sys__class__dmi__id__sys_vendor="QEMU\n", proc__cmdline="")
    )
    assert found["hypervisor"] == "QEMU"
    assert any("virtual machine (QEMU)" in line for line in machine.warnings(found, []))


@pytest.mark.parametrize(
    ("cpu", "events"),
    [
        (
            {"vendor": "GenuineIntel", "family": 6, "model": 106},
            {"dtlb_load_walks": 0x0E08, "dtlb_load_walk_cycles": 0x1001008, "dtlb_store_walks": 0x0E49},
        ),
        ({"vendor": "GenuineIntel", "family": 6, "model": 143}, {"dtlb_load_walks": 0x0E12}),
        ({"vendor": "AuthenticAMD", "family": 0x19, "model": 1}, {"dtlb_walks": 0xF045}),
        ({"vendor": "0x41", "family": None, "model": 1, "architecture": "aarch64"}, {"dtlb_walks": 0x34}),
        ({"vendor": "GenuineIntel", "family": 6, "model": 15}, {}),
    ],
)
def test_events_by_processor(cpu: dict[str, Any], events: dict[str, int]) -> None:
    found = machine.events({"cpu": {"architecture": "x86_64", **cpu}})
    raw = {event["name"]: event["config"] for event in found if event["type"] == 4}
    assert events.items() <= raw.items()
    assert bool(raw) == bool(events)
    assert found[0] == {"name": "page_faults", "type": 1, "config": 2}


@pytest.mark.parametrize(
    ("text", "found"),
    [("0-2,5\n", [0, 1, 2, 5]), ("", []), (None, []), ("7", [7]), ("x", []), ("0-1,x", [0, 1])],
)
def test_cpu_lists(text: str | None, found: list[int]) -> None:
    assert machine.cpu_list(text) == found


def test_isolated_processors_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    host = {"isolated": [2], "core_types": {}, "cpu": {"online": 4}}
    assert machine.choose_cpus(host, 3) == [2, 3, 1]
    assert machine.choose_cpus({**host, "isolated": []}, 1) == [3]
    assert machine.choose_cpus({**host, "isolated": []}, 2, [0, 1, 2]) == [0, 1]


def test_isolated_processors_are_outside_the_mask_that_processes_inherit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masks = [{0, 1}]

    def move(_: int, mask: set[int]) -> None:
        if mask & {3, 99}:  # not this control group's
            raise OSError
        masks.append(mask)

    monkeypatch.setattr("os.sched_getaffinity", lambda _: masks[-1])
    monkeypatch.setattr("os.sched_setaffinity", move)
    host = {"isolated": [2, 3], "core_types": {}, "cpu": {"online": 4}}
    assert machine.usable(host) == [0, 1, 2]
    assert machine.choose_cpus(host, 1) == [2]
    assert machine.choose_cpus(host, 4) == [2, 1, 0]
    assert masks[-1] == {0, 1}, "the mask is as it was"


@pytest.mark.parametrize("mask", [{3}, {0, 3}, {0}])
def test_a_mask_that_somebody_chose_is_kept(monkeypatch: pytest.MonkeyPatch, mask: set[int]) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: mask)
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)
    host = {"isolated": [2, 3], "core_types": {}, "cpu": {"online": 4}}
    assert machine.usable(host) == sorted(mask)
    assert machine.choose_cpus(host, 1) == [max(mask)]


def test_a_hybrids_p_cores_come_first_and_its_caches_are_those_of_one_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, devices = "sys__devices__system__cpu__cpu{}__cache__index0__", "sys__bus__event_source__devices__"
    made = files(
        tmp_path,
        **{
            f"{devices}cpu_core__cpus": "0-1\n",
            f"{devices}cpu_atom__cpus": "2-3\n",
            **{
                cpu.format(number) + key: text
                for number, size in ((0, "48K"), (3, "32K"))
                for key, text in (("size", size), ("level", "1"), ("type", "Data"))
            },
        },
    )
    host = machine.describe(made)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert machine.choose_cpus(host, 3) == [1, 0, 3]
    assert machine.choose_cpus({**host, "isolated": [2]}, 2) == [2, 1]
    assert (host["cpu"]["core_type"], machine.cache_bytes(host)) == ("cpu_core", 48 << 10)
    other = machine.on(host, 3, made)
    assert (other["cpu"]["core_type"], machine.cache_bytes(other)) == ("cpu_atom", 32 << 10)
    assert machine.on(other, 0, made) == host


def test_file_systems(tmp_path: Path) -> None:
    (tmp_path / "a b" / "c").mkdir(parents=True)
    place = str(tmp_path / "a b").replace(" ", "\\040")
    mounts = f"/dev/sda / ext4 rw 0 0\nnone {place} xfs rw 0 0\ntmpfs {place} tmpfs rw 0 0\n"
    made = files(tmp_path, proc__self__mounts=mounts)
    assert machine.file_system(tmp_path / "a b" / "c", made) == "tmpfs"
    assert machine.file_system(tmp_path / "a", made) == "ext4"
    assert machine.file_system(tmp_path, files(tmp_path / "none")) is None


def test_busy_and_stolen_processors_are_reported(tmp_path: Path) -> None:
    def stat(user: int, idle: int, stolen: int) -> machine.Files:
        rest = f"cpu0 {user // 2} 0 0 {idle} 0 0 0 0\n"
        return files(tmp_path, proc__stat=f"cpu 1 2 3\ncpu1 {user} 0 0 {idle} 0 0 0 {stolen} 0 0\n{rest}")

    busyness = machine.Busyness([1], stat(0, 0, 0))
    stat(10**7, 8 * 10**7, 10**7)
    shares = busyness.shares()
    assert shares == pytest.approx({"others": 0.1, "stolen": 0.1, "elsewhere": 1 / 17}, abs=1e-4)
    others, elsewhere, stolen = machine.disturbances(shares, [1])
    assert others.startswith("Other programs took 10 % of processor 1")
    assert "busy for 6 % of the time" in elsewhere
    assert "away for 10 % of the time" in stolen
    assert "processor 1: stop them, or choose another" in others
    others, _, stolen = machine.disturbances(shares, [1, 0])
    assert "of processors 0, 1: stop them, or choose others with --cpu" in others
    assert "took processors 0, 1 away" in stolen


def test_a_few_ticks_are_no_disturbance(tmp_path: Path) -> None:
    busyness = machine.Busyness([1], files(tmp_path, proc__stat="cpu1 0 0 0 0 0 0 0 0\n"))
    files(tmp_path, proc__stat="cpu1 1 0 0 2 0 0 0 1\n")  # a round of 40 ms
    assert machine.disturbances(busyness.shares(), [1]) == []


def test_a_quiet_host_is_not_disturbed(tmp_path: Path) -> None:
    busyness = machine.Busyness([1], files(tmp_path, proc__stat="cpu1 0 0 0 0 0 0 0 0\n"))
    files(tmp_path, proc__stat="cpu1 0 0 0 100000 0 0 0 0\n")
    assert machine.disturbances(busyness.shares(), [1]) == []
    assert machine.disturbances(machine.Busyness([1], files(tmp_path / "none")).shares(), [1]) == []
