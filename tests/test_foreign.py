"""Traces from outside: what they say of branches and accesses, and what forged or sparse ones may take."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk.definitions.settings import DATA
from tests.running import PATIENCE_SECONDS, PEAK, processor_seconds, wait_until, waited_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.conftest import Result

    Flatwalk = Callable[..., Result]

# ChampSim's numbers of registers.
STACK, FLAGS, IP = 6, 25, 26
GIB = 1 << 30

# Runs the command line in little address space, and says what memory it took at most, in KiB.
LIMITED = f"""{PEAK}
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (8 * {GIB}, 8 * {GIB}))
from flatwalk import cli
try:
    cli.main()
finally:
    print(peak_kib(), file=sys.stderr)
"""


#: More memory than any of these tests may take, in KiB: a gigabyte.
MOST = 1_000_000


def limited(directory: Path, *arguments: str | Path) -> tuple[int, str, int]:
    """Exit status, messages and most memory in KiB of a command that has 8 GiB of address space."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", LIMITED, *map(str, arguments)],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    messages, _, peak = done.stderr.rstrip().rpartition("\n")
    return done.returncode, messages, int(peak)


def record(
    pc: int, writes: tuple[int, int], reads: tuple[int, int], *, taken: int = 0, load: int = 0
) -> bytes:
    """An instruction of ChampSim's; one that writes the instruction pointer is a branch."""
    return struct.pack("<QBB2B4B2Q4Q", pc, IP in writes, taken, *writes, *reads, 0, 0, 0, 0, load, 0, 0, 0)


def plain(pc: int, load: int = 0) -> bytes:
    return record(pc, (10, 0), (7, 0), load=load)


def run(flatwalk: Flatwalk, tmp_path: Path, records: Iterable[bytes], *options: str) -> dict[str, Any]:
    """The result of a trace of these records."""
    (tmp_path / "made.champsim").write_bytes(b"".join(records))
    done = flatwalk("trace", "import", "--format", "champsim", "made.champsim", "made.fwt")
    assert done.code == 0, done.err
    return compare(flatwalk, tmp_path, tmp_path / "made.fwt", *options)


def compare(flatwalk: Flatwalk, tmp_path: Path, trace: Path, *options: str) -> dict[str, Any]:
    done = flatwalk(
        *["compare", "--trace", trace, "--schemes", "radix4", "--large-pages", "0", "--exhaustive"],
        *["--json", "out.json", "--no-report", *options],
    )
    assert done.code == 0, done.err
    result: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())["runs"][0]
    return result


def test_random_branches_are_mispredicted_half_of_the_time(flatwalk: Flatwalk, tmp_path: Path) -> None:
    def records() -> Iterable[bytes]:
        state = 1
        for _ in range(20_000):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            taken = state >> 63
            yield record(0x400000, (IP, 0), (IP, FLAGS), taken=taken)
            # Taken, it goes over one instruction of four bytes.
            if not taken:
                yield plain(0x400002)
            # A direct jump back.
            yield record(0x400006, (IP, 0), (IP, 0), taken=1)

    branch = run(flatwalk, tmp_path, records())["branch"]
    assert branch["branches"] in range(39_998, 40_001)
    # Of 20,000 tosses the standard deviation is 71.
    assert abs(branch["mispredictions"] - 10_000) < 500


def test_returns_find_their_calls(flatwalk: Flatwalk, tmp_path: Path) -> None:
    def records() -> Iterable[bytes]:
        for _ in range(10_000):
            for call, through, length in [(0x400000, 0, 5), (0x400010, 9, 3)]:
                yield struct.pack(
                    "<QBB2B4B2Q4Q", call, 1, 1, STACK, IP, STACK, IP, through, 0, 0x7000, 0, 0, 0, 0, 0
                )
                yield record(0x500000, (STACK, IP), (STACK, 0), taken=1, load=0x7000)
                yield record(call + length, (IP, 0), (IP, 0), taken=1)

    branch = run(flatwalk, tmp_path, records())["branch"]
    assert branch["branches"] in range(59_998, 60_001)
    # The first call through a register has an unknown target, and its first return an unknown place.
    assert branch["mispredictions"] <= 3


def test_branches_of_drmemtrace_are_what_their_records_say(flatwalk: Flatwalk, tmp_path: Path) -> None:
    """Without machine code: a random conditional one, a call and its return, and a jump back."""
    plain_, jump, conditional, call, back = 10, 11, 13, 14, 16
    out = [entry(25, 0, 7), entry(28, 9, 0x40), entry(22, 4, 1), entry(24, 4, 1)]
    state = 1
    for _ in range(20_000):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(entry(conditional, 2, 0x400000))
        if not state >> 63:  # not taken
            out.append(entry(plain_, 4, 0x400002))
        out += [entry(call, 5, 0x400006), entry(1, 8, 0x7000), entry(back, 1, 0x500000), entry(0, 8, 0x7000)]
        out.append(entry(jump, 2, 0x40000B))
    (tmp_path / "made").write_bytes(b"".join([*out, entry(23, 4, 1), entry(26, 0, 0)]))
    done = flatwalk("trace", "import", "--format", "drmemtrace", "made", "made.fwt")
    assert done.code == 0, done.err
    branch = compare(flatwalk, tmp_path, tmp_path / "made.fwt")["branch"]
    assert branch["branches"] in range(79_998, 80_001)
    # Of 20,000 tosses the standard deviation is 71.
    assert abs(branch["mispredictions"] - 10_000) < 500


def test_code_of_a_block_comes_before_its_data_only_without_a_clock(
    flatwalk: Flatwalk, tmp_path: Path
) -> None:
    """As docs/model.md says. The first instruction reads its own page, the second is in the next page."""
    loop = [
        record(0x400FFC, (10, 0), (7, 0), load=0x400100),
        record(0x401000, (11, 0), (7, 0), load=0x800000),
        record(0x401004, (IP, 0), (IP, 0), taken=1),
    ]
    # Each TLB holds one page. That of the first data is in the L2 TLB, unless the next code page is by then.
    small = [f"tlb.{name}[1].{key}=1" for name in ("l1i", "l1d", "l2") for key in ("entries", "ways")]
    options = ["--machine", "mobile", *(word for change in small for word in ("--set", change))]
    trips = 1000
    timed = run(flatwalk, tmp_path, loop * trips, *options)
    counted = compare(flatwalk, tmp_path, tmp_path / "made.fwt", *options, "--mode", "functional")
    assert abs(timed["walks"] - 3 * trips) <= 3
    assert abs(counted["walks"] - 4 * trips) <= 3


def test_hostile_names_reach_no_terminal(flatwalk: Flatwalk, tmp_path: Path) -> None:
    """Of files, which become names of traces, and of members of archives."""
    name = "evil\x1b]0;owned\x07"
    (tmp_path / name).write_bytes(b"".join(plain(0x400000 + 4 * (n % 2), 0x800000) for n in range(3000)))
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr(f"{name}/chunk.0000", b"no trace")
    shown = []
    for arguments in (
        ["trace", "import", "--format", "champsim", name, "made.fwt"],
        ["trace", "info", "made.fwt"],
        ["compare", "--trace", "made.fwt", "--schemes", "radix4", "--large-pages", "0", "--report", "r.html"],
        ["compare", "--trace", "made.fwt", "--schemes", "radix4", "--no-report", "--json", "-"],
        ["trace", "import", "archive.zip", "other.fwt"],
    ):
        done = flatwalk(*arguments)
        assert done.code == (1 if "archive.zip" in arguments else 0), done.err
        shown.append(done.out + done.err)
    assert all("evil" in text for text in shown[:4])
    page = (tmp_path / "r.html").read_text()
    assert "evil" in page
    assert [text for text in [*shown, page] if {"\x1b", "\x07"} & set(text)] == []


def test_regions_that_three_levels_do_not_reach_are_moved_and_this_is_said(
    flatwalk: Flatwalk, tmp_path: Path
) -> None:
    loads = (plain(0x400000 + 4 * (n % 2), [0x800000, 1 << 45][n % 2]) for n in range(2000))
    (tmp_path / "made.champsim").write_bytes(b"".join(loads))
    flatwalk("trace", "import", "--format", "champsim", "made.champsim", "made.fwt")
    done = flatwalk(
        "compare", "--trace", "made.fwt", "--schemes", "radix3", "--mode", "functional", "--no-report"
    )
    assert done.code == 0, done.err
    bits = "the trace spans more than the 39 address bits of the scheme"
    assert f"warning: {bits}: its regions were relocated to fit" in done.err


def test_an_access_at_the_end_of_a_page_stays_there(flatwalk: Flatwalk, tmp_path: Path) -> None:
    loads = [plain(0x400000 + 4 * (n % 2), (n + 100) * 0x10000 + 0xFFC) for n in range(20_000)]
    result = run(flatwalk, tmp_path, loads, "--mode", "functional")
    assert result["walks"] - result["walk"]["instruction_side"] == 20_000


def test_an_imported_recording_has_the_branches_of_the_recorded_one(
    flatwalk: Flatwalk, tmp_path: Path
) -> None:
    recorded = tmp_path / "recorded.fwt"
    command = ["python3", "-I", "-S", "-c", "print(sorted(str(i) for i in range(99))[:3])"]
    assert flatwalk("record", "-o", recorded, "--limit", "3M", "--", *command).code == 0
    assert flatwalk("trace", "export", recorded, "exported.champsim").code == 0
    done = flatwalk("trace", "import", "--format", "champsim", "exported.champsim", "imported.fwt")
    assert done.code == 0, done.err
    ours, theirs = (
        compare(flatwalk, tmp_path, trace)["branch"] for trace in (recorded, tmp_path / "imported.fwt")
    )
    assert ours["branches"] > 100_000
    assert abs(theirs["branches"] - ours["branches"]) <= 2
    assert abs(theirs["mispredictions"] - ours["mispredictions"]) < ours["mispredictions"] / 10


@pytest.mark.parametrize("format", ["champsim", "drmemtrace", "lackey"])
def test_what_cannot_be_is_refused_with_its_place(tmp_path: Path, format: str) -> None:  # noqa: A002
    drmemtrace = [(25, 0, 5), (28, 9, 0x40), (22, 0, 1), (10, 1, 0x1000), (0, 65535, 2**63), (26, 0, 0)]
    forged = {
        "champsim": plain(0x400000) + plain(2**64 - 6),
        "drmemtrace": b"".join(struct.pack("<HHQ", *line) for line in drmemtrace),
        "lackey": b"I  1000,4\n L ffffffffffffffff,8\n",
    }
    (tmp_path / "forged").write_bytes(forged[format])
    status, messages, peak = limited(tmp_path, "trace", "import", "--format", format, "forged", "made.fwt")
    place = {"champsim": 128, "drmemtrace": 48, "lackey": 10}[format]
    assert (status, f"byte {place}" in messages) == (1, True), messages
    assert peak < MOST
    assert not (tmp_path / "made.fwt").exists()


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Loads of 20,000 pages in 20,000 different gigabytes."""
    folder = tmp_path_factory.mktemp("sparse")
    loads = (
        plain(0x400000 + 4 * (n % 4), (n + 1) * GIB + n * 37 % 512 * 0x200000 + 8) for n in range(20_000)
    )
    (folder / "sparse.champsim").write_bytes(b"".join(loads))
    subprocess.run(
        [
            *[sys.executable, "-I", "-m", "flatwalk", "trace", "import", "--format", "champsim"],
            *[str(folder / "sparse.champsim"), str(folder / "sparse.fwt")],
        ],
        check=True,
        capture_output=True,
    )
    return folder / "sparse.fwt"


KEPT = Path(__file__).parents[1] / "engine" / "trace" / "fuzz" / "kept"

# Imports what can be imported, and compares what comes of it; says how many files, and what memory that took.
EVERY = f"""{PEAK}
import contextlib, io, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (8 * {GIB}, 8 * {GIB}))
from flatwalk import cli

def call(*arguments):
    sys.argv = ["flatwalk", *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as messages:
            cli.main()
    except SystemExit as end:
        assert end.code in (None, 0, 1, 2), (arguments, messages.getvalue())
        return not end.code
    return True

files = 0
for path in sorted(Path(sys.argv[2]).iterdir()):
    files += 1
    trace = str(path)
    if sys.argv[1] != "own":
        if not call("trace", "import", "--format", sys.argv[1], trace, "made.fwt"):
            continue
        trace = "made.fwt"
    call("compare", "--trace", trace, "--schemes", "radix4,fpt,inverted", "--large-pages", "0",
         "--mode", "functional", "--exhaustive", "--instructions", "10k", "--no-report", "-j", "1")
print(files, peak_kib())
"""


@pytest.mark.parametrize("format", ["own", "champsim", "drmemtrace", "lackey"])
def test_what_the_fuzzer_kept_takes_little_memory(tmp_path: Path, format: str) -> None:  # noqa: A002
    done = subprocess.run(
        [sys.executable, "-I", "-c", EVERY, format, str(KEPT / format)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files, peak = map(int, done.stdout.split())
    assert files == len(list((KEPT / format).iterdir())) > 10
    assert peak < MOST


# But those whose tables the trace would have to hold.
SCHEMES = {path.stem for path in (DATA / "schemes").glob("*.toml")} - {"recorded", "recorded5"}


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_pages_far_apart_take_little_memory(sparse: Path, scheme: str) -> None:
    status, messages, peak = limited(
        sparse.parent,
        *["compare", "--trace", str(sparse), "--schemes", scheme],
        *["--large-pages", "0", "--mode", "functional", "--exhaustive", "--no-report"],
    )
    assert peak < MOST
    if scheme == "radix3":
        assert "more than a table of 3 levels translates" in messages
    else:
        assert status == 0, messages


#: A tree with and without flattened and merged nodes, tables without a tree, and a guest.
KINDS = "radix4,fpt,compendia,ecpt,inverted,virt-fpt"

#: Writes to 64 pages that are 16 GiB apart, of a mapping of 1 TiB that reserves nothing (`MAP_NORESERVE`).
HUGE = """
import mmap
memory = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
for place in range(0, 1 << 40, 1 << 34):
    memory[place] = 1
"""


def test_a_mapping_of_a_terabyte_takes_little_memory(flatwalk: Flatwalk, tmp_path: Path) -> None:
    """Recorded, and simulated with every kind of table on pages of both sizes."""
    done = flatwalk(
        "record", "--exhaustive", "-o", "huge.fwt", "--", "/usr/bin/python3", "-I", "-S", "-c", HUGE
    )
    assert done.code == 0, done.err
    info = json.loads(flatwalk("trace", "info", "huge.fwt", "--json").out)
    assert len(info["touched"]) >= 64
    status, messages, peak = limited(
        tmp_path,
        *["compare", "--trace", "huge.fwt", "--schemes", KINDS, "--large-pages", "0,100", "-j", "1"],
        *["--exhaustive", "--mode", "functional", "--no-report", "--json", "out.json"],
    )
    assert status == 0, messages
    assert peak < MOST
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert len(runs) == 2 * len(KINDS.split(","))
    assert all(run["data_bytes"] < 1 << 30 for run in runs), "what is touched is backed, and no more"


def test_a_workload_of_8_gib_is_simulated_in_8_gib_of_addresses(tmp_path: Path) -> None:
    status, messages, peak = limited(
        tmp_path,
        *["compare", "--workload", "gups:8GiB", "--schemes", KINDS, "--instructions", "100k", "--exhaustive"],
        *["--no-report", "-j", "2"],
    )
    assert status == 0, messages
    assert peak < MOST


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_heard_whatever_the_engine_does(tmp_path: Path, number: signal.Signals) -> None:
    """A walk after so many instructions as take hours; nothing is reported until then."""
    with waited_for(
        subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-m",
                "flatwalk",
                "walk",
                "--workload",
                "gups:64MiB",
                "--instructions",
                "1000G",
            ],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    ) as process:
        # It is at work once it has used more processor time than starting takes.
        wait_until(lambda: process.poll() is not None or processor_seconds(process.pid) >= 3)
        process.send_signal(number)
        assert process.wait(timeout=PATIENCE_SECONDS) == 128 + number


# --- a trace of several threads, as Google's are

PAGE = 2 << 20


def entry(kind: int, size: int, value: int) -> bytes:
    """A record of drmemtrace."""
    return struct.pack("<HHQ", kind, size, value)


def synthetic(category: int, written: list[int], read: list[int]) -> bytes:
    """A synthetic instruction in records of machine code."""
    code = struct.pack("<I", category << 10 | len(read) << 4 | len(written))
    code += bytes([4, *written, *read])
    code += bytes(-len(code) % 4)
    parts = [code[start : start + 8] for start in range(0, len(code), 8)]
    return b"".join(struct.pack("<HH8s", 47, len(part), part) for part in parts)


def thread(number: int, loads: Iterable[int]) -> bytes:
    """A thread's file: a loop whose load is at a new place each time."""
    out = [entry(25, 0, 7), entry(28, 9, 0x20200), entry(22, 4, number), entry(24, 4, 1)]
    head, first = 0x1000, [synthetic(2, [10], [12]), synthetic(8, [], [10])]
    for time, load in enumerate(loads):
        out += [entry(28, 2, 1 + time // 100), first[0], entry(10, 6, head), entry(0, 8, load)]
        out += [first[1], entry(48, 2, head + 6)]  # taken
        first = [b"", b""]
    return b"".join([*out, entry(23, 4, number), entry(26, 0, 0)])


def test_a_trace_without_an_instruction_is_refused(flatwalk: Flatwalk, tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(thread(10, []))
    done = flatwalk("trace", "import", "--format", "drmemtrace", "made", "made.fwt")
    assert done.code == 0, done.err
    done = flatwalk("compare", "--trace", "made.fwt", "--no-report")
    assert done.code == 2
    assert done.err.startswith("error: the trace has no instructions\n  where:  --trace\n  remedy: ")


def test_a_directory_with_a_map_is_walked_as_the_map_says(flatwalk: Flatwalk, tmp_path: Path) -> None:
    place = tmp_path / "workload"
    (place / "trace").mkdir(parents=True)
    (place / "aux").mkdir()
    pages = 2000  # more than the TLB holds, in as many gigabytes as the page-walk cache has entries
    for number in range(2):
        loads = ((1 + (7919 * step + number) % pages) * PAGE for step in range(6000))
        (place / "trace" / f"u.{number + 10}.memtrace").write_bytes(thread(number + 10, loads))
    lines = [f"address_mapping_group {{\n  page_size: {PAGE:#x}"]
    for page in range(pages + 1):
        virtual = f"virtual_address: {page * PAGE}" if page else ""
        lines += [f"  address_mapping {{\n    {virtual}\n    physical_address: {(page + 3) * PAGE:#x}\n  }}"]
    (place / "aux" / "v2p.textproto").write_text("\n".join([*lines, "}"]))
    done = flatwalk("trace", "import", "workload", "made.fwt")
    assert done.code == 0, done.err
    info = json.loads(flatwalk("trace", "info", "made.fwt", "--json").out)
    assert (info["name"], info["threads"], info["instructions"], info["loads"]) == (
        "workload",
        2,
        24000,
        12000,
    )
    done = flatwalk(
        *["compare", "--trace", "made.fwt", "--schemes", "recorded,radix4", "--large-pages", "100"],
        *["--exhaustive", "--warmup", "0", "--json", "out.json", "--no-report", "--seed", "3"],
    )
    assert done.code == 0, done.err
    recorded, radix = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert (recorded["threads"], len(recorded["cores"])) == (2, 2)
    assert recorded["data_bytes"] == (pages + 1) * PAGE
    assert [node["nodes"] for node in recorded["page_table"]["nodes"]] == [1, 1, 4]
    # Pages of the same size in a table of the same form are walked for as often, and in as many steps.
    assert recorded["walks"] == radix["walks"] > 10_000
    for run in (recorded, radix):
        assert 1 <= run["accesses_per_walk"] < 1.01
