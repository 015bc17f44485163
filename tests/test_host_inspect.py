"""`flatwalk host inspect` and `advise`: live processes, made-up ones, and the engine's own counts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk.comparison import presenting
from flatwalk.definitions import settings
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.host import advice, designs, machine, process, results, show
from flatwalk.host.process import LARGE, Area, Level, Pages, Process
from tests.test_host_measure import host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Result


def tables_of(found: process.Process) -> list[dict[str, Any]]:
    return designs.run_schemes(found, "radix4,radix5,fpt", "skylake-server", seed=1)


@contextmanager
def running(program: str) -> Iterator[int]:
    """A process that ran `program` and now waits; gives its number."""
    code = textwrap.dedent(program) + "\nprint('ready', flush=True)\nimport sys; sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        while Path(f"/proc/{child.pid}/stat").read_text().split()[2] != "S":  # until it waits for input
            time.sleep(0.005)
        yield child.pid
        child.kill()


# 64 MiB of which every other page of 8 MiB is present, and 6 MiB on large pages where there are any.
SPARSE = """
    import mmap
    m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    m.madvise(15)
    for at in range(0, 8 << 20, 8192): m[at] = 1
    n = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    n.madvise(14)
    for at in range(0, 8 << 20, 4096): n[at] = 1
"""


def test_a_live_process_is_read_completely_and_left_alone() -> None:
    with running(SPARSE) as pid:
        before = Path(f"/proc/{pid}/stat").read_text().split()[2]
        found = process.read(pid)
        assert Path(f"/proc/{pid}/stat").read_text().split()[2] == before
        rss = sum(area.sizes.get("Rss", 0) for area in found.areas)
    small, large = found.present_bytes()
    # Pages that two areas map count in each; the vdso and zero pages count here and not there.
    assert small + large == pytest.approx(rss, rel=0.05)
    assert sum(1 for pages in found.pages if pages.end - pages.start == 4096) >= 1024
    assert sys.executable in found.name


def test_the_table_of_schemes_fits_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warm = {
        "page_table_bytes": 128 << 10,
        "data_bytes": 64 << 20,
        "accesses_per_walk": 1.25,
        "walks": 23456,
        "instructions": 400_000,
    }
    row = {"scheme": "fpt-nonf", "reach_bytes": 1 << 45, "warm": warm, "cold": warm}
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for columns, fewest, most in ((40, 3, 4), (80, 1, 2), (200, 0, 0)):
        monkeypatch.setenv("COLUMNS", str(columns))
        cells = designs.table_rows([row])
        left_out = presenting.show_some(designs.TABLE_HEADERS, cells, designs.SPARE)
        assert fewest <= len(left_out) <= most
        shown = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out).splitlines()
        assert max(map(len, shown)) <= columns
        for header, cell in zip(designs.TABLE_HEADERS, cells[0], strict=True):
            if header not in left_out:
                assert any(cell in line for line in shown)


def test_both_ways_of_reading_agree() -> None:
    def seen(pid: int, *, scan: bool) -> tuple[set[int], tuple[int, int]]:
        found = process.read(pid, scan=scan)
        units = {at for pages in found.pages for at in range(pages.start, pages.end, 4096)}
        return units, found.present_bytes()

    with running(SPARSE) as pid:
        for _ in range(3):  # the kernel may make pages large, or take some, between two readings
            scanned, plain = seen(pid, scan=True), seen(pid, scan=False)
            if scanned == plain:
                break
    assert scanned == plain


def test_the_kernel_counts_the_same_nodes() -> None:
    with running("data = bytearray(32 << 20)") as pid:
        found = process.read(pid)
    if found.table_bytes is None or machine.describe()["page_table_levels"] is None:
        pytest.skip("this kernel does not count page tables")
    levels = process.radix_levels(found.pages, machine.describe()["page_table_levels"])
    spare = sum(area.sizes.get("AnonHugePages", 0) for area in found.areas) // LARGE * 4096
    counted = sum(level.bytes for level in levels[1:])
    # The kernel keeps nodes whose pages went away; it cannot have fewer.
    assert counted + spare <= found.table_bytes <= counted + spare + (256 << 10)


def made_up(pages: list[Pages]) -> Process:
    low, high = pages[0].start, pages[-1].end
    return Process(1, "made up", [Area(low, high, "r-xp", "")], pages, None, [])


MADE_UP = [
    made_up([Pages(0x400000, 0x403000, large=False)]),
    made_up([Pages(0, 4096, large=False), Pages(1 << 30, (1 << 30) + LARGE, large=True)]),
    made_up(
        [
            Pages(LARGE, 3 * LARGE, large=True),
            Pages(3 * LARGE, 3 * LARGE + 4096, large=False),
            Pages(5 << 30, (5 << 30) + 40 * LARGE, large=True),
            Pages((1 << 39) - 4096, (1 << 39) + 8192, large=False),
            Pages(1 << 46, (1 << 46) + (4 << 20), large=False),
        ]
    ),
]


@pytest.mark.parametrize("found", MADE_UP)
def test_counted_nodes_are_the_engines(found: Process) -> None:
    tables = {table["scheme"]: table for table in tables_of(found)}
    for scheme, levels in (("radix4", 4), ("radix5", 5)):
        ours = {
            f"L{level.level}": level.nodes
            for level in process.radix_levels(found.pages, levels)
            if level.nodes
        }
        theirs = {nodes["level"]: nodes["nodes"] for nodes in tables[scheme]["warm"]["page_table"]["nodes"]}
        assert theirs == ours
    assert tables["fpt"]["warm"]["data_bytes"] == sum(found.present_bytes())


def test_accesses_of_walks_without_pwc() -> None:
    small = made_up([Pages(0, 256 * 4096, large=False)])
    tables = {table["scheme"]: table["cold"] for table in tables_of(small)}
    found = {name: run["accesses_per_walk"] for name, run in tables.items()}
    assert found == {"radix4": 4.0, "radix5": 5.0, "fpt": 2.0}
    # 512 of 2560 units are small pages, which take 4 accesses and hardly ever hit a TLB of one entry;
    # the others are on four large pages, which take 3 and hit it a quarter of the time.
    mixed = made_up([Pages(0, LARGE, large=False), Pages(LARGE, 5 * LARGE, large=True)])
    mean = tables_of(mixed)[0]["cold"]["accesses_per_walk"]
    assert mean == pytest.approx((0.2 * 4 + 0.8 * 0.75 * 3) / (0.2 + 0.8 * 0.75), abs=0.01)


def test_levels_by_hand() -> None:
    pages = [Pages(0, 8192, large=False), Pages(LARGE, 2 * LARGE, large=True)]
    assert process.radix_levels(pages, 4) == [
        Level(4, 1, 1, 4096),
        Level(3, 1, 1, 4096),
        Level(2, 1, 2, 4096),
        Level(1, 1, 2, 4096),
    ]
    assert process.radix_levels([], 4)[1:] == [Level(n, 0, 0, 0) for n in (3, 2, 1)]
    assert process.radix_levels(pages, 4)[3].occupancy == 2 / 512
    assert process.radix_levels([], 4)[3].occupancy == 0


@pytest.mark.parametrize(
    ("scheme", "reach"),
    [
        ("radix4", 24 * LARGE),
        ("radix5", 24 * LARGE),
        ("fpt", 24 << 30),
        ("fpt-l3l2", 24 * LARGE),
        ("fpt-l2l1", 24 << 30),
    ],
)
def test_pwc_reach(scheme: str, reach: int) -> None:
    assert designs.reach_bytes(settings.scheme(scheme), settings.machine("skylake-server")) == reach


def test_reach_of_what_is_not_known() -> None:
    loaded = settings.machine("skylake-server")
    assert designs.reach_bytes({"table": {"organisation": "hashed"}}, loaded) is None
    assert designs.reach_bytes(settings.scheme("ia64-3"), loaded) is None
    assert designs.reach_bytes(settings.scheme("radix4"), {**loaded, "pwc": {"kind": "none"}}) is None


SMAPS = """00400000-00600000 r-xp 00000000 08:01 123   /bin/a b
Size:               2048 kB
Rss:                   8 kB
VmFlags: rd ex
00600000-00a00000 rw-p 00000000 00:00 0
Rss:                4096 kB
AnonHugePages:      2048 kB
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0   [vsyscall]
"""


def test_smaps() -> None:
    first, second = process.parse_maps(SMAPS)
    assert (first.start, first.end, first.rights, first.name) == (0x400000, 0x600000, "r-xp", "/bin/a b")
    assert first.sizes == {"Size": 2 << 20, "Rss": 8192}
    assert second.huge_bytes == LARGE


def test_large_pages_where_the_kernel_only_counts_them() -> None:
    area = process.parse_maps(SMAPS)[1]
    guessed = process._guessed([Pages(0x601000, 0xA00000, large=False)], area)  # noqa: SLF001
    assert guessed == [
        Pages(0x601000, 0x800000, large=False),
        Pages(0x800000, 0xA00000, large=True),
    ]


# Errors


def fake_proc(root: Path, **files: str) -> Path:
    directory = root / "42"
    directory.mkdir()
    for name, text in {"status": "Name:\tx\nState:\tR\n", "cmdline": "x", "maps": SMAPS, **files}.items():
        (directory / name).write_text(text)
    return root


def test_no_such_process(call: Callable[..., Result]) -> None:
    done = call("host", "inspect", "4194303999")
    assert done.code == 2
    assert "there is no process 4194303999" in done.err
    assert "remedy:" in done.err


def test_ended_but_not_reaped() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(UsageError, match="has ended"):
        process.read(child.pid)
    child.wait()


def test_a_kernel_thread(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a kernel thread"):
        process.read(42, fake_proc(tmp_path, maps=""))


def test_a_process_that_ends_in_the_middle(tmp_path: Path) -> None:
    with pytest.raises(FlatwalkError, match="ended while it was inspected"):
        process.read(42, fake_proc(tmp_path))  # smaps and pagemap are gone


def test_a_process_that_forbids_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fake_proc(tmp_path)

    def refuse(self: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(FlatwalkError, match="may not be inspected"):
        process.read(42, root)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's process, which only root can make")
def test_another_users_process(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from flatwalk.host import process\n"
        "os.setuid(65534)\n"
        "try:\n    process.read(int(sys.argv[1]))\nexcept Exception as e:\n    print(type(e).__name__, e)\n"
    )
    command = [sys.executable, "-c", code, str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith(f"FlatwalkError process {os.getpid()} may not be inspected")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--simulate", "zigzag"), "there is no pattern 'zigzag'"),
        (("--simulate", "random", "--accesses", "2"), "too few"),
        (("--accesses", "100k"), "give --simulate PATTERN, too"),
        (("--schemes", "radx4"), "radix4"),
        (("--schemes", ","), "no scheme is named"),
        (("--schemes", ""), "no scheme is named"),
        (("--html", "missing/x.html"), "there is no directory"),
    ],
)
def test_wrong_options(call: Callable[..., Result], options: tuple[str, ...], message: str) -> None:
    done = call("host", "inspect", str(os.getpid()), *options)
    assert done.code == 2
    assert message in done.err


# End to end


def test_inspect_and_simulate(call: Callable[..., Result], tmp_path: Path) -> None:
    with running(SPARSE) as pid:
        common = ("host", "inspect", str(pid), "--schemes", "radix4,fpt")
        done = call(*common, "--accesses", "50k", "--simulate", "random", "--html", "space.html")
        reported = call(*common, "--json")
    assert done.code == 0, done.err
    assert "level of its table" in done.out
    assert "random accesses to its pages, simulated on skylake-server" in done.out
    assert "record the program for that" in done.out
    page = (tmp_path / "space.html").read_text()
    assert "<svg" in page
    assert "http" not in page
    found = json.loads(reported.out)
    assert found["schema"] == "flatwalk-inspect/1"
    assert [scheme["scheme"] for scheme in found["schemes"]] == ["radix4", "fpt"]
    # What the process has present, the engine has mapped.
    warm = found["schemes"][0]["warm"]
    assert warm["data_bytes"] == found["small_page_bytes"] + found["large_page_bytes"]
    assert warm["os"]["faults"] == 0


@pytest.mark.parametrize(
    ("levels", "words"),
    [(4, "counts 12 KiB below the root: 12 KiB for"), (5, "counts 12 KiB from L3 down: 12 KiB for")],
)
def test_the_kernel_counts_three_levels_of_nodes(
    call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, levels: int, words: str
) -> None:
    """PTEs, PMDs and PUDs: not the root, and not the P4Ds of a kernel with five levels."""
    made = Process(1, "made up", [Area(0, 4096, "rw-p", "")], [Pages(0, 4096, large=False)], 3 * 4096, [])
    monkeypatch.setattr(process, "read", lambda _: made)
    record = host(page_table_levels=levels)
    monkeypatch.setattr(machine, "describe", lambda: record)
    monkeypatch.setattr(designs, "run_schemes", lambda *_, **__: [])
    assert words in call("host", "inspect", "1").out


def test_the_drawing_has_all_notes(
    call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Process(1, "made up", [Area(0, 65536, "rw-p", "")], [Pages(0, 65536, large=False)], None, ["One."])
    monkeypatch.setattr(process, "read", lambda _: made)
    record = host(page_bytes=65536)
    monkeypatch.setattr(machine, "describe", lambda: record)
    assert call("host", "inspect", "1", "--html", "x.html").code == 0
    page = (tmp_path / "x.html").read_text()
    assert "One." in page
    assert "Pages of 64 KiB: the schemes have 4 KiB pages" in page


def test_nodes_have_as_many_entries_as_fit_into_a_page(
    call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Process(1, "made up", [Area(0, 1 << 28, "rw-p", "")], [Pages(0, 1 << 28, large=False)], None, [])
    monkeypatch.setattr(process, "read", lambda _: made)
    record = host(page_bytes=65536)
    monkeypatch.setattr(machine, "describe", lambda: record)
    done = call("host", "inspect", "1", "--html", "x.html")
    page = (tmp_path / "x.html").read_text()
    assert re.search(r"L1 +1 +64 KiB +4096 +50 %", done.out), done.out
    assert "<td>L1</td><td>1</td><td>64 KiB</td><td>4096</td><td>50 %</td>" in page


def test_the_same_seed_simulates_the_same() -> None:
    cycles = [
        designs.simulate(MADE_UP[2], "radix4", "skylake-server", "random", accesses=20_000, seed=seed)[0][
            "cycles"
        ]
        for seed in (1, 1, 2)
    ]
    assert cycles[0] == cycles[1] != cycles[2]


def test_an_interrupted_inspection_leaves_nothing(
    call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> list[Any]:
        os.kill(os.getpid(), signal.SIGINT)
        return []

    monkeypatch.setattr(designs, "run_schemes", interrupt)
    assert call("host", "inspect", str(os.getpid()), "--html", "space.html").code == 130
    assert list(tmp_path.iterdir()) == []


# Advice


def walk_result(**changes: Any) -> dict[str, Any]:
    values = {
        "stride-32KiB": 200.0,
        "stride-16MiB": 300.0,
        "stride-8GiB": 420.0,
        "loads-4": 800.0,
        "loads-5": 1000.0,
    }
    samples = [
        {
            "variant": name,
            "round": turn,
            "value": value + noise,
            "answer": {},
            "counts": [],
            "controls_nanoseconds": {},
        }
        for turn, noise in enumerate((0.0, 4.0, -4.0, 1.0, -1.0))
        for name, value in values.items()
    ]
    cold = {"stride-32KiB": "0 cold levels", "stride-16MiB": "1 cold level", "stride-8GiB": "2 cold levels"}
    titles = {name: f"{name}: {cold.get(name, name)}" for name in values}
    return {
        "bench": "walk", "samples": samples, "titles": titles, "rate": False,
        "cpus": [0], "warnings": ["A doubt."], **changes,
    }  # fmt: skip


def advised(
    record: dict[str, Any], *given: dict[str, Any], files: machine.Files | None = None
) -> dict[str, Any]:
    nowhere = machine.Files(Path("/nowhere"), Path("/nowhere"), Path("/nowhere"))
    return {one.topic: one for one in advice.advise(record, list(given), files or nowhere)}


def test_levels_by_what_the_host_needs() -> None:
    def do(levels: int | None, memory_bytes: int | None) -> str:
        record = host(page_table_levels=levels, memory_bytes=memory_bytes)
        return str(advised(record)["Four or five levels"].do)

    assert do(5, 1 << 40).startswith("Boot with no5lvl")
    assert do(5, 100 << 40).startswith("Keep five")
    assert do(4, 1 << 40).startswith("Keep four")
    assert do(4, 100 << 40).startswith("Use a kernel")
    assert do(None, 1 << 40).startswith("No advice")
    assert do(4, None).startswith("Keep four")


def test_figures_stand_behind_sentences_or_are_missed() -> None:
    without = advised(host(page_table_levels=4))["Four or five levels"]
    assert any("flatwalk host walk" in line for line in without.unknown)
    given = advised(host(page_table_levels=4), walk_result())["Four or five levels"]
    assert any("+120 ns (+120 … +120)" in line for line in given.why)
    assert any("+200 ns" in line for line in given.why)
    assert not any("flatwalk host walk" in line for line in given.unknown)
    titles = {
        "stride-16MiB": "pages 16 MiB apart: 2 cold levels",
        "stride-8GiB": "pages apart: 2 cold levels",
    }
    alike = advised(host(page_table_levels=4), walk_result(titles=titles))["Four or five levels"]
    assert not any("One more cold level" in line for line in alike.why), "as many are cold"


@pytest.mark.parametrize(
    ("mode", "start"),
    [
        ("never", "Set them to madvise"),
        ("madvise", "Keep madvise"),
        ("always", "Keep always"),
        (None, "This kernel"),
    ],
)
def test_huge_pages_by_the_hosts_setting(mode: str | None, start: str) -> None:
    thp = {"enabled": mode, "defrag": "always", "shmem": None, "page_bytes": LARGE}
    found = advised(host(thp=thp))["Transparent huge pages"]
    assert found.do.startswith(start)
    assert any("defrag is always" in line for line in found.why) == (mode in {"madvise", "always"})


def test_what_the_kernel_counted(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("thp_fault_alloc 75\nthp_fault_fallback 25\n")
    (tmp_path / "meminfo").write_text("AnonPages:  1000 kB\nAnonHugePages:  250 kB\nPageTables: 1048576 kB\n")
    found = advised(host(memory_bytes=4 << 30), files=machine.Files(tmp_path, tmp_path, tmp_path))
    why = " ".join(found["Transparent huge pages"].why)
    assert "25 % of anonymous memory" in why
    assert "75 faults got a huge page and 25 did not (25 %), for lack" in why
    assert found["Memory in page tables"].do.startswith("Find the processes")
    assert found["Memory in page tables"].why == ["Page tables take 1 GiB, 25 % of memory."]


def test_doubts_are_reported() -> None:
    assert advised(host(), walk_result())["Measuring on this host"].why == ["A doubt."]
    assert "Nothing to change" in advised(host(), walk_result(warnings=[]))["Measuring on this host"].do


def test_pti_is_named() -> None:
    found = advised(host(mitigations={"meltdown": "Mitigation: PTI"}))["Page faults"]
    assert any("PTI" in line for line in found.why)
    assert any("nopti" in line for line in found.unknown)


def test_advise_without_measuring(call: Callable[..., Result]) -> None:
    done = call("host", "advise", "--no-measure")
    assert done.code == 0, done.err
    assert "Four or five levels: " in done.out
    assert "  ? " in done.out
    found = json.loads(call("host", "advise", "--no-measure", "--json").out)
    assert {"topic", "do", "why", "unknown"} == set(found[0])


def test_advise_says_of_a_step_what_the_bench_says() -> None:
    result = walk_result()
    # Alone this step would be measurable (p = 0.03), not as one of three.
    noise = dict(enumerate((4.0, 1.0, 3.0, 0.2, 5.0)))
    below = {
        sample["round"]: sample["value"] for sample in result["samples"] if sample["variant"] == "loads-4"
    }
    for sample in result["samples"]:
        if sample["variant"] == "loads-5":
            sample["value"] = below[sample["round"]] + noise[sample["round"]]
    assert 0.05 / 3 < show.paired(result, "loads-4", "loads-5")[2] < 0.05
    result["samples"] += [
        {**one, "variant": "loads-3"} for one in result["samples"] if one["variant"] == "loads-4"
    ]
    why = advised(host(page_table_levels=4), result)["Four or five levels"].why
    said = "no measurable difference (p adjusted for all steps)"
    assert any(line.startswith("A fifth") and said in line for line in why), why
    # A single step is adjusted for nothing.
    for name in ("loads-3", "stride-32KiB", "stride-16MiB", "stride-8GiB"):
        result["samples"] = [one for one in result["samples"] if one["variant"] != name]
    assert advice._difference(result, "loads-4", "loads-5").endswith(")")  # noqa: SLF001
    for one in result["samples"]:
        one["value"] = float(one["round"] % 2 == (one["variant"] == "loads-5"))
    alone = advice._difference(result, "loads-4", "loads-5")  # noqa: SLF001
    assert alone.endswith(", no measurable difference")


def test_one_result_of_each_bench(call: Callable[..., Result], tmp_path: Path) -> None:
    result = walk_result(
        schema=results.SCHEMA, version="1", unit="ns", parameters={}, host=machine.describe(), started="",
        busy={}, skipped=[], notes=[], histograms={},
    )  # fmt: skip
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(result))
    assert call("host", "advise", "a.json", "--no-measure").code == 0
    done = call("host", "advise", "a.json", "b.json", "--no-measure")
    assert (done.code, "a.json and b.json are both of walk" in done.err) == (2, True), done.err


def test_advise_on_another_hosts_figures(call: Callable[..., Result], tmp_path: Path) -> None:
    record = {**host(), "cpu": {"model_name": "Another"}}
    result = walk_result(
        schema=results.SCHEMA, version="1", unit="ns", parameters={}, host=record, started="", busy={},
        skipped=[], notes=[], histograms={},
    )  # fmt: skip
    (tmp_path / "w.json").write_text(json.dumps(result))
    done = call("host", "advise", "w.json", "--no-measure")
    assert done.code == 2
    assert "another machine" in done.err
