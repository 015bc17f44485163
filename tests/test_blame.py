"""Where walks come from: a program whose walks are computed by hand, and what is shown of results."""

from __future__ import annotations

import json
import random
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk.answer import blame
from flatwalk.answer.results import add_speedups
from flatwalk.comparison import presenting
from flatwalk.report import render
from tests import fake
from tests.test_record import GUESTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Result

    Flatwalk = Callable[..., Result]

#: Pages of each of the four regions of `regions.c`.
PAGES = (24 << 20) // 4096
SOURCE = GUESTS / "regions.c"


def _line(marker: str) -> int:
    lines = SOURCE.read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"// line of {marker}"))
    return number


def _entry(run: dict[str, Any], list_: str, **of: Any) -> dict[str, Any]:
    found = [one for one in run["blame"][list_] if all(one[key] == value for key, value in of.items())]
    assert len(found) == 1, (of, run["blame"][list_])
    return dict(found[0])


def _near(walks: int, pages: int) -> None:
    """Each page of a sweep is walked for once, with little else in the same place.

    The array's first page can be one that the program's file fills the first half of, in each of 5 sweeps.
    """
    assert pages - 5 <= walks <= pages + 16, (walks, pages)


def _judge(
    flatwalk: Flatwalk, tmp_path: Path, *flags: str, names: tuple[str, ...] = ()
) -> tuple[dict[str, Any], str]:
    """The comparison of `regions`, built with `flags`, and what it printed."""
    program, data = tmp_path / "regions", tmp_path / "data.bin"
    subprocess.run(["gcc", "-O1", *flags, SOURCE, "-o", program], check=True)
    with data.open("wb") as file:
        file.truncate(24 << 20)
    options = ["--exhaustive", "--schemes", "radix4", "--large-pages", "0", "--json", "out.json"]
    result = flatwalk("compare", *options, "--keep-trace", "kept.fwt", "--", str(program), str(data), *names)
    assert result.code == 0, result.err
    run = json.loads((tmp_path / "out.json").read_text())["runs"][0]
    for list_ in ("mappings", "functions", "lines"):
        assert sum(one["walks"] for one in run["blame"][list_]) == run["walks"], list_
        waited = sum(one["cycles"] for one in run["blame"][list_])
        assert waited == sum(
            part["cycles"]
            for part in run["cycle_stack"]
            if part["part"] in {"instruction_translation", "tlb", "mechanisms"}
            or part["part"].startswith("walk_")
        )
    return run, result.out


@pytest.mark.parametrize(
    "flags", [("-g",), ("-g", "-no-pie"), ("-g", "-static"), ("-g", "-Wl,--build-id=none")]
)
def test_walks_belong_to_the_memory_functions_and_lines_that_they_come_from(
    flatwalk: Flatwalk, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    run, out = _judge(flatwalk, tmp_path, *flags)
    program = str((tmp_path / "regions").resolve())
    _near(_entry(run, "mappings", name="[anon:.bss]", kind="anonymous")["walks"], 5 * PAGES)
    _near(_entry(run, "mappings", name="[heap]", kind="heap")["walks"], 3 * PAGES)
    assert _entry(run, "mappings", name=str(tmp_path / "data.bin"), kind="file")["walks"] == PAGES
    anonymous = [one for one in run["blame"]["mappings"] if one["kind"] == "anonymous" and not one["name"]]
    _near(max(one["walks"] for one in anonymous), PAGES)
    assert max(one["bytes"] for one in anonymous) in range(24 << 20, 25 << 20)
    _near(_entry(run, "functions", function="bss_and_heap", file=program)["walks"], 8 * PAGES)
    _near(_entry(run, "functions", function="mapped", file=program)["walks"], 2 * PAGES)
    for marker, pages in (("the array", 5), ("the heap", 3), ("the anonymous memory", 1), ("the file", 1)):
        _near(_entry(run, "lines", source=str(SOURCE), line=_line(marker))["walks"], pages * PAGES)
    assert run["blame"]["unknown"] == []
    table = out[out.index("Where the walks of radix4 come from, 4 KiB pages") :]
    first = [
        table.index(words)
        for words in ("[anon:.bss]", "bss_and_heap (regions)", f"regions.c:{_line('the array')}")
    ]
    assert first == sorted(first)


def test_a_program_without_symbols_has_mappings_and_one_that_has_changed_is_not_asked(
    flatwalk: Flatwalk, tmp_path: Path
) -> None:
    run, out = _judge(flatwalk, tmp_path, "-s")
    program = str((tmp_path / "regions").resolve())
    _near(_entry(run, "functions", function=None, file=program)["walks"], 10 * PAGES)
    assert "unnamed code (regions)" in out
    # Another program in its place: its symbols are not those of what was recorded.
    subprocess.run(["gcc", "-O2", "-g", SOURCE, "-o", program], check=True)
    again = flatwalk(
        "compare",
        "--trace",
        "kept.fwt",
        "--exhaustive",
        "--schemes",
        "radix4",
        "--large-pages",
        "0",
        "--json",
        "2.json",
    )
    run = json.loads((tmp_path / "2.json").read_text())["runs"][0]
    assert run["blame"]["unknown"] == [{"file": program, "why": "changed"}]
    _near(_entry(run, "functions", function=None, file=program)["walks"], 10 * PAGES)
    assert f"{program} has changed since it was recorded, so its functions are not named" in again.err


def test_memory_has_the_name_that_the_program_gives_it(flatwalk: Flatwalk, tmp_path: Path) -> None:
    run, _ = _judge(flatwalk, tmp_path, names=("a table",))
    assert _entry(run, "mappings", name="[anon:a table]", kind="anonymous")["walks"] == PAGES


def test_a_workload_has_mappings_and_no_functions(flatwalk: Flatwalk) -> None:
    result = flatwalk(
        *("compare", "--workload", "gups:64MiB", "--schemes", "radix4", "--large-pages", "0"),
        *("--instructions", "300k", "--warmup", "100k", "--mode", "functional"),
    )
    assert result.code == 0, result.err
    assert "anonymous, 64 MiB at 0x" in result.out
    assert "by function" not in result.out
    assert "time" not in result.out[result.out.index("Where the walks") :]


# --- what is shown


def test_others_are_what_is_left_and_what_is_not_known_is_not_made_up() -> None:
    first = {"/a": (600, 300_000), "/b": (300, 100_000), "/c": (96, 50_000), "/d": (4, 5_000)}
    runs = [
        fake.blamed(fake.run("radix4"), first),
        fake.blamed(
            fake.run("fpt", cycles=800), {"/a": (600, 100_000), "/c": (100, 10_000), "": (300, 20_000)}
        ),
        fake.blamed(fake.run("radix4", cycles=700, large_pages=100), {"/b": (10, 1_000)}),
    ]
    add_speedups(runs)
    shown = blame.build(runs)
    assert shown is not None
    assert shown.headers == ["walks", "time", "fpt", "2 MiB pages"]
    (part,) = shown.parts
    assert [(row.name, row.walks) for row in part.rows[:-1]] == [("a", 0.6), ("b", 0.3), ("c", 0.096)]
    assert [row.costs for row in part.rows[:3]] == [[0.3, 0.1, 0], [0.1, None, 0.001], [0.05, 0.01, 0]]
    rest = part.rows[-1]
    assert rest.walks == pytest.approx(0.004)
    assert rest.costs == [pytest.approx(0.005), None, pytest.approx(0)]
    # What would be best by a bound that comes first is not faster than the reference.
    bound = fake.blamed(fake.run("ideal", cycles=700), {"/a": (1, 1)})
    bound["configuration"]["scheme"]["translation"] = "free"
    runs.insert(0, bound)
    add_speedups(runs)
    again = blame.build(runs)
    assert again is not None
    assert again.headers == shown.headers


def test_the_best_scheme_is_one_that_is_shown_to_be_faster() -> None:
    """As `explain` ranks: by what the speed-up is at least."""
    runs = [
        fake.blamed(fake.run(name, cycles=cycles), {"/a": (600, 1)})
        for name, cycles in (("radix4", 1000), ("fpt", 980), ("fpt+ptp", 950))
    ]
    fake.sample(runs)
    runs[1] |= {"speedup_low": 1.019, "speedup_high": 1.021}
    runs[2] |= {"speedup_low": 0.91, "speedup_high": 1.19}
    shown = blame.build(runs)
    assert shown is not None
    assert shown.headers == ["walks", "time", "fpt"]
    runs[1] |= {"speedup_low": 0.99, "speedup_high": 1.05}
    shown = blame.build(runs)
    assert shown is not None
    assert shown.headers == ["walks", "time"]


def test_the_shares_of_a_part_add_up_whatever_is_counted() -> None:
    chosen = random.Random(1)
    for _ in range(200):
        names = [f"/{number}" for number in range(chosen.randrange(1, 30))]
        counted = {name: (chosen.choice([0, 1, 1000]), chosen.randrange(9999)) for name in names}
        counted[names[0]] = (1000, 1)
        runs = [fake.blamed(fake.run("radix4"), counted)]
        add_speedups(runs)
        shown = blame.build(runs)
        assert shown is not None
        (part,) = shown.parts
        assert sum(row.walks for row in part.rows) == pytest.approx(1)
        cycles = sum(cycles for _, cycles in counted.values()) / 1_000_000
        assert sum(row.costs[0] or 0 for row in part.rows) == pytest.approx(cycles)
        assert all(row.walks > -1e-9 for row in part.rows)


def test_names_from_outside_control_no_terminal_and_break_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"/x\x1b[31m\n\u202ey": (600, 1), "/<b>bold": (300, 1), f"/{'long' * 40}": (100, 1)}
    runs = [fake.blamed(fake.run("radix4"), names)]
    add_speedups(runs)
    shown = blame.build(runs)
    assert shown is not None
    presenting.show_blame(shown)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert r"x\x1b[31m\n\u202ey" in out
    assert max(map(len, out.splitlines())) <= 80
    html = render(fake.response(runs))  # type: ignore[arg-type]
    assert "<b>bold" not in html
    assert "&lt;b&gt;bold" in html


def test_without_walks_or_counts_nothing_is_shown() -> None:
    runs = [fake.run("radix4")]
    assert blame.build(runs) is None
    assert blame.build([fake.blamed(fake.run("radix4"), {"/a": (0, 0)})]) is None


def test_what_is_left_by_rounding_is_nothing() -> None:
    left = blame.Row("all others", 1 - sum([0.1] * 10), [-5e-20, 1e-5])
    assert left.walks > 0
    assert blame.cells(left) == ["0.0 %", "0.0 %", "<0.1 %"]


def test_functions_without_lines_are_named_among_lines() -> None:
    run = fake.blamed(fake.run("radix4"), {"/a": (100, 100)})
    code: Any = run["blame"]["lines"][0]
    own = code | {"function": "main", "file": "/bin/a", "source": "/src/a.c", "line": 7, "walks": 60}
    library = code | {"function": "memcpy", "file": "/lib/libc.so.6", "walks": 30}
    nothing = code | {"walks": 10}
    run["blame"]["lines"] = [own, library, nothing]
    add_speedups([run])
    shown = blame.build([run])
    assert shown is not None
    part = next(part for part in shown.parts if part.title == "line")
    assert [row.name for row in part.rows] == [
        "a.c:7 (main)",
        "memcpy (libc.so.6)",
        "(unknown)",
        "all others",
    ]
    run["blame"]["lines"] = [library, nothing]
    without = blame.build([run])
    assert without is not None
    assert [part.title for part in without.parts] == ["mapping"], "no line is known"


def test_of_several_machines_the_one_that_is_shown_is_named() -> None:
    for cycles, key in (
        (1000, "over all of radix4's on skylake-server."),
        (None, "Over all walks of radix4 on sky"),
    ):
        runs = [fake.blamed(fake.run("radix4", cycles=cycles), {"/a": (100, 100)}) for _ in range(2)]
        runs[1]["machine"] = "zen4"
        add_speedups(runs)
        shown = blame.build(runs)
        assert shown is not None
        assert shown.title == "Where the walks of radix4 come from, 4 KiB pages on skylake-server"
        assert key in shown.key
