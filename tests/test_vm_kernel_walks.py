"""`flatwalk vm bench --kernel`: whose addresses a guest's page walks are for."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

from flatwalk.definitions import settings
from flatwalk.errors import FlatwalkError
from flatwalk.vm import charts, kernel_walks, workloads
from flatwalk.vm.kernel_walks import Row, region

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Result

WRITTEN = """\
0 began 0
0 instructions kernel 7
0 instructions user 1
0 unknown 3
1 began 1
1 instructions kernel 1500
1 instructions user 500
1 unknown 0
1 pages 0 12 4 1000 16 50 60 60
1 pages 3fffe2220 21 3 400 2 10 20 10
1 pages 3fffe2221 21 3 400 3 10 20 12
1 pages 3fffffffe 21 3 900 4 0 0 0
2 began 2
2 instructions kernel 0
2 instructions user 2000
2 unknown 0
2 pages 0 12 4 1000 8 30 40 40
"""


def row() -> Row:
    """What the plugin wrote of two phases."""
    phases = kernel_walks.read(WRITTEN, 4)[1:]
    return Row("gups", 4, sum(phase.instructions for phase in phases), kernel_walks.merged(phases))


def test_what_the_plugin_writes_is_read() -> None:
    boot, first, second = kernel_walks.read(WRITTEN, 4)
    assert (boot.instructions, boot.unknown, boot.pages) == (8, 3, [])
    assert (first.instructions, second.instructions) == (2000, 2000)
    # Pages of one kind in two GiB of the direct map are one row; so is a kind in two phases.
    found = {(pages.region, pages.page_bytes): pages for pages in row().pages}
    assert list(found) == [("programs", 4096), ("direct map", 2 << 20), ("kernel image", 2 << 20)]
    direct = found["direct map", 2 << 20]
    assert (direct.accesses, direct.pages, direct.walks) == (800, 5, 20)
    assert (direct.cold_entries, direct.entries, direct.folded_entries) == (3, 40, 22)
    assert found["programs", 4096].walks == 80


def test_parts_sum_to_all() -> None:
    made = row()
    assert (made.programs.walks, made.kernel.walks, made.every.walks) == (80, 20, 100)
    assert (made.kernel.entries, made.kernel.folded_entries, made.every.entries) == (40, 22, 140)
    assert made.saved == pytest.approx(18 / 140)
    lines = kernel_walks.table([made]).splitlines()
    assert lines[-5] == "| gups | 4 | programs | 4 KiB | 500 | 24 | 20000.0 | 4 | 1.250 | 1.250 |"
    assert lines[-3] == "| gups | 4 | kernel image | 2 MiB | 225 | 4 | 0.0 | 3 | – | – |"
    assert lines[-2] == "| gups | 4 | all of the kernel's | – | 425 | 9 | 5000.0 | – | 2.000 | 1.100 |"
    assert lines[-1] == "| gups | 4 | all | – | 925 | 33 | 25000.0 | – | 1.400 | 1.220 |"
    (chart,) = charts.kernel([made])
    (bar,) = chart.panels[0].rows
    assert bar.cells == ["20.00", "5.00", "12.86 %"]


@pytest.mark.parametrize(
    ("address", "levels", "name"),
    [
        (0, 4, "programs"),
        (0xFFFF_8880_0000_0000, 4, "direct map"),
        (0xFFFF_C87F_C000_0000, 4, "direct map"),
        (0xFFFF_C880_0000_0000, 4, "other"),
        (0xFFFF_C900_0000_0000, 4, "vmalloc"),
        (0xFFFF_EA00_0000_0000, 4, "memory map"),
        (0xFF11_0000_4000_0000, 5, "direct map"),
        (0xFFA0_0000_0000_0000, 5, "vmalloc"),
        (0xFFD4_0000_0000_0000, 5, "memory map"),
        (0xFFFF_FE00_0000_0000, 5, "entry area"),
        (0xFFFF_FFFF_8000_0000, 5, "kernel image"),
        (0xFFFF_FFFF_C000_0000, 5, "other"),
    ],
)
def test_regions_are_those_of_the_kernels_documentation(address: int, levels: int, name: str) -> None:
    assert region(address >> 30, levels) == name


def test_caches_are_the_machines() -> None:
    machine = settings.machine(kernel_walks.MACHINE)
    assert kernel_walks.caches(machine) == ["tlb=1536/12", "huge=16/4", "pwc=4/4/4/24"]
    other = copy.deepcopy(machine)
    other["tlb"]["l2"] = other["tlb"]["l2"][:1]
    with pytest.raises(FlatwalkError, match="L2 TLB"):
        kernel_walks.caches(other)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kernel", "--time"], "are different benches"),
        (["--kernel", "--modes", "l3l2"], "in `off`"),
        (["--kernel", "--programs", "oracle"], "there is no program 'oracle'"),
        (["--kernel", "--threshold", "3"], "this belongs to --programs"),
    ],
)
def test_refusals(call: Callable[..., Result], arguments: list[str], words: str) -> None:
    result = call("vm", "bench", *arguments)
    assert (result.code, words in result.err) == (2, True), result.err


@pytest.mark.slow
@pytest.mark.usefixtures("vm")
def test_walks_in_a_guest_are_as_many_as_they_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    levels, pages, updates, tlb = 5, 8192, 2_000_000, 1536
    monkeypatch.setitem(workloads.OWN, "gups", ("gups.c", str(pages), str(updates)))
    (made,) = kernel_walks.measure(["gups"], (levels,))
    # An update at random finds what fits into the TLB, of as many pages as likely as any other.
    assert made.programs.walks == pytest.approx(updates * (1 - tlb / pages), rel=0.02)
    # 32 MiB lie below 16 or 17 entries of level 2, all of which the page-walk caches hold.
    assert made.programs.entries / made.programs.walks == pytest.approx(1, abs=0.01)
    (of_programs,) = (found for found in made.pages if found.region == "programs")
    assert (of_programs.cold_entries, pages <= of_programs.pages < pages + 50) == (levels, True)
    # Nothing of the programs' half is folded, and the kernel that waits for a timer walks for little.
    assert made.programs.entries == made.programs.folded_entries
    assert made.kernel.folded_entries <= made.kernel.entries
    assert 0 < made.kernel.walks < made.programs.walks / 100
    assert {"direct map", "kernel image"} <= {found.region for found in made.pages}
