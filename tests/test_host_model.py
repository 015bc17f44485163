"""This host as a machine: what leaves of `cpuid` of real processors mean, and what is made of it."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flatwalk import engine
from flatwalk.definitions import settings
from flatwalk.errors import UsageError
from flatwalk.host import cpuid, model, native
from flatwalk.host.machine import Files

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Result

    Call = Callable[..., Result]

#: What some processors answered, as instlatx64.atw.hu publishes it; leaves that are read, without zeros.
DUMPS = {
    "i7-4770": """
CPUID 00000000: 0000000D-756E6547-6C65746E-49656E69
CPUID 00000001: 000306C3-00100800-7FFAFBFF-BFEBFBFF
CPUID 00000002: 76036301-00F0B5FF-00000000-00C10000
CPUID 00000004: 1C004121-01C0003F-0000003F-00000000 [SL 00]
CPUID 00000004: 1C004122-01C0003F-0000003F-00000000 [SL 01]
CPUID 00000004: 1C004143-01C0003F-000001FF-00000000 [SL 02]
CPUID 00000004: 1C03C163-03C0003F-00001FFF-00000006 [SL 03]
CPUID 80000002: 65746E49-2952286C-726F4320-4D542865
CPUID 80000003: 37692029-3737342D-50432030-20402055
CPUID 80000004: 30342E33-007A4847-00000000-00000000
CPUID 80000006: 00000000-00000000-01006040-00000000
""",
    "D-2183IT": """
CPUID 00000000: 00000016-756E6547-6C65746E-49656E69
CPUID 00000001: 00050654-00200800-7FFEFBFF-BFEBFBFF
CPUID 00000002: 76036301-00F0B5FF-00000000-00C30000
CPUID 00000004: 3C004121-01C0003F-0000003F-00000000 [SL 00]
CPUID 00000004: 3C004122-01C0003F-0000003F-00000000 [SL 01]
CPUID 00000004: 3C004143-03C0003F-000003FF-00000000 [SL 02]
CPUID 00000004: 3C07C163-0280003F-00007FFF-00000004 [SL 03]
CPUID 00000016: 00000898-00000BB8-00000064-00000000
CPUID 80000002: 65746E49-2952286C-6F655820-2952286E
CPUID 80000003: 322D4420-49333831-50432054-20402055
CPUID 80000004: 30322E32-007A4847-00000000-00000000
CPUID 80000006: 00000000-00000000-01006040-00000000
""",
    "i7-1065G7": """
CPUID 00000000: 0000001B-756E6547-6C65746E-49656E69
CPUID 00000001: 000706E5-00100800-7FFAFBBF-BFEBFBFF
CPUID 00000002: 00FEFF01-000000F0-00000000-00000000
CPUID 00000004: 1C004121-02C0003F-0000003F-00000000 [SL 00]
CPUID 00000004: 1C004122-01C0003F-0000003F-00000000 [SL 01]
CPUID 00000004: 1C004143-01C0003F-000003FF-00000000 [SL 02]
CPUID 00000004: 1C03C163-03C0003F-00001FFF-00000006 [SL 03]
CPUID 00000016: 000005DC-00000F3C-00000064-00000000
CPUID 00000018: 00000007-00000000-00000000-00000000 [SL 00]
CPUID 00000018: 00000000-00080007-00000001-00004122 [SL 01]
CPUID 00000018: 00000000-0010000F-00000001-00004125 [SL 02]
CPUID 00000018: 00000000-00040001-00000010-00004024 [SL 03]
CPUID 00000018: 00000000-00040006-00000008-00004024 [SL 04]
CPUID 00000018: 00000000-00080008-00000001-00004124 [SL 05]
CPUID 00000018: 00000000-00080007-00000080-00004043 [SL 06]
CPUID 00000018: 00000000-00080009-00000080-00004043 [SL 07]
CPUID 80000002: 65746E49-2952286C-726F4320-4D542865
CPUID 80000003: 37692029-3630312D-20374735-20555043
CPUID 80000004: 2E312040-48473033-0000007A-00000000
CPUID 80000006: 00000000-00000000-01006040-00000000
""",
    "i9-12900K": """
CPUID 00000000: 00000020-756E6547-6C65746E-49656E69
CPUID 00000001: 00090672-00800800-7FFAFBFF-BFEBFBFF
CPUID 00000002: 00FEFF01-000000F0-00000000-00000000
CPUID 00000004: FC004121-02C0003F-0000003F-00000000 [SL 00]
CPUID 00000004: FC004122-01C0003F-0000003F-00000000 [SL 01]
CPUID 00000004: FC01C143-0240003F-000007FF-00000000 [SL 02]
CPUID 00000004: FC1FC163-02C0003F-00009FFF-00000004 [SL 03]
CPUID 00000016: 00000C80-00001450-00000064-00000000
CPUID 00000018: 00000008-00000000-00000000-00000000 [SL 00]
CPUID 00000018: 00000000-00080001-00000020-00004022 [SL 01]
CPUID 00000018: 00000000-00080006-00000004-00004022 [SL 02]
CPUID 00000018: 00000000-0010000F-00000001-00004125 [SL 03]
CPUID 00000018: 00000000-00040001-00000010-00004024 [SL 04]
CPUID 00000018: 00000000-00040006-00000008-00004024 [SL 05]
CPUID 00000018: 00000000-00080008-00000001-00004124 [SL 06]
CPUID 00000018: 00000000-00080007-00000080-00004043 [SL 07]
CPUID 00000018: 00000000-00080009-00000080-00004043 [SL 08]
CPUID 80000002: 68743231-6E654720-746E4920-52286C65
CPUID 80000003: 6F432029-54286572-6920294D-32312D39
CPUID 80000004: 4B303039-00000000-00000000-00000000
CPUID 80000006: 00000000-00000000-05007040-00000000
""",
    "w7-2475X": """
CPUID 00000000: 00000020-756E6547-6C65746E-49656E69
CPUID 00000001: 000806F8-00800800-7FFEFBFF-BFEBFBFF
CPUID 00000002: 00FEFF01-000000F0-00000000-00000000
CPUID 00000004: FC004121-02C0003F-0000003F-00000000 [SL 00]
CPUID 00000004: FC004122-01C0003F-0000003F-00000000 [SL 01]
CPUID 00000004: FC004143-03C0003F-000007FF-00000000 [SL 02]
CPUID 00000004: FC1FC163-0380003F-00009FFF-00000004 [SL 03]
CPUID 00000016: 00000A28-000012C0-00000064-00000000
CPUID 00000018: 00000008-00000000-00000000-00000000 [SL 00]
CPUID 00000018: 00000000-00080001-00000020-00004022 [SL 01]
CPUID 00000018: 00000000-00080006-00000004-00004022 [SL 02]
CPUID 00000018: 00000000-0010000F-00000001-00004125 [SL 03]
CPUID 00000018: 00000000-00040001-00000010-00004024 [SL 04]
CPUID 00000018: 00000000-00040006-00000008-00004024 [SL 05]
CPUID 00000018: 00000000-00080008-00000001-00004124 [SL 06]
CPUID 00000018: 00000000-00080007-00000080-00004043 [SL 07]
CPUID 00000018: 00000000-00080009-00000080-00004043 [SL 08]
CPUID 80000002: 65746E49-2952286C-6F655820-2952286E
CPUID 80000003: 2D377720-35373432-00000058-00000000
CPUID 80000006: 00000000-00000000-08007040-00000000
""",
    "EPYC 7742": """
CPUID 00000000: 00000010-68747541-444D4163-69746E65
CPUID 00000001: 00830F10-00800800-7EF8320B-178BFBFF
CPUID 80000002: 20444D41-43595045-34373720-34362032
CPUID 80000003: 726F432D-72502065-7365636F-20726F73
CPUID 80000004: 20202020-20202020-20202020-00202020
CPUID 80000005: FF40FF40-FF40FF40-20080140-20080140
CPUID 80000006: 48006400-68006400-02006140-08009140
CPUID 80000019: F040F040-00000000-00000000-00000000
CPUID 8000001D: 00004121-01C0003F-0000003F-00000000 [SL 00]
CPUID 8000001D: 00004122-01C0003F-0000003F-00000000 [SL 01]
CPUID 8000001D: 00004143-01C0003F-000003FF-00000002 [SL 02]
CPUID 8000001D: 0001C163-03C0003F-00003FFF-00000001 [SL 03]
""",
    "Ryzen 5 7600X": """
CPUID 00000000: 00000010-68747541-444D4163-69746E65
CPUID 00000001: 00A60F12-000C0800-7EF8320B-178BFBFF
CPUID 80000002: 20444D41-657A7952-2035206E-30303637
CPUID 80000003: 2D362058-65726F43-6F725020-73736563
CPUID 80000004: 2020726F-20202020-20202020-00202020
CPUID 80000005: FF48FF40-FF48FF40-20080140-20080140
CPUID 80000006: 5C002200-6C004200-04006140-01009140
CPUID 80000019: F048F040-F0400000-00000000-00000000
CPUID 8000001D: 00004121-01C0003F-0000003F-00000000 [SL 00]
CPUID 8000001D: 00004122-01C0003F-0000003F-00000000 [SL 01]
CPUID 8000001D: 00004143-01C0003F-000007FF-00000002 [SL 02]
CPUID 8000001D: 0002C163-03C0003F-00007FFF-00000001 [SL 03]
CPUID 80000021: 00062FCF-0000015C-00000000-00000000
""",
    "Ryzen 9 9950X": """
CPUID 00000000: 00000010-68747541-444D4163-69746E65
CPUID 00000001: 00B40F40-00200800-7ED8320B-178BFBFF
CPUID 80000002: 20444D41-657A7952-2039206E-30353939
CPUID 80000003: 36312058-726F432D-72502065-7365636F
CPUID 80000004: 20726F73-20202020-20202020-00202020
CPUID 80000005: FF60FF40-FF60FF40-300C0140-20080140
CPUID 80000006: 40802040-60804040-04008140-02009140
CPUID 80000019: F060F040-40200000-00000000-00000000
CPUID 8000001D: 00004121-02C0003F-0000003F-00000000 [SL 00]
CPUID 8000001D: 00004122-01C0003F-0000003F-00000000 [SL 01]
CPUID 8000001D: 00004143-03C0003F-000003FF-00000002 [SL 02]
CPUID 8000001D: 0003C163-03C0003F-00007FFF-00000001 [SL 03]
CPUID 80000021: 593FFFCF-00080382-00000000-00000000
""",
}
#: A guest of KVM on an EPYC 7763: leaf 8000_0019h is hidden.
DUMPS["EPYC, a guest"] = """
   0x00000000 0x00: eax=0x0000000d ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
   0x00000001 0x00: eax=0x00a00f11 ebx=0x00020800 ecx=0xfff83203 edx=0x178bfbff
   0x80000002 0x00: eax=0x20444d41 ebx=0x43595045 ecx=0x00000000 edx=0x00000000
   0x80000005 0x00: eax=0xff40ff40 ebx=0xff40ff40 ecx=0x20080140 edx=0x20080140
   0x80000006 0x00: eax=0x48002200 ebx=0x68004200 ecx=0x02006140 edx=0x08009140
   0x8000001d 0x00: eax=0x00000121 ebx=0x01c0003f ecx=0x0000003f edx=0x00000000
   0x8000001d 0x01: eax=0x00000122 ebx=0x01c0003f ecx=0x0000003f edx=0x00000000
   0x8000001d 0x02: eax=0x00000143 ebx=0x01c0003f ecx=0x000003ff edx=0x00000002
   0x8000001d 0x03: eax=0x00004163 ebx=0x03c0003f ecx=0x00007fff edx=0x00000001
"""
#: The Ice Lake with leaves 2 and 18h as QEMU answers them unless it passes the host's on.
DUMPS["i7-1065G7, a guest"] = "\n".join(
    line
    for line in DUMPS["i7-1065G7"].splitlines()
    if not line.startswith(("CPUID 00000018", "CPUID 00000002"))
).replace("CPUID 00000001: 000706E5-00100800-7FFAFBBF", "CPUID 00000001: 000706E5-00100800-FFFAFBBF") + (
    "\nCPUID 00000002: 00000001-00000000-0000004D-002C307D\n"
)

KIB, MIB = 1 << 10, 1 << 20
#: By name: family, model, MHz; caches as (size, ways); TLBs as (TLB, pages, entries, ways): read by hand
#: with the manuals' tables. The Ice Lake's instruction TLB is as it says, not as its manual (128 entries).
EXPECTED = {
    "i7-4770": (
        (6, 0x3C, None),
        {"l1d": (32 * KIB, 8), "l1i": (32 * KIB, 8), "l2": (256 * KIB, 8), "l3": (8 * MIB, 16)},
        {
            ("l1d", ("4K",), 64, 4),
            ("l1d", ("2M",), 32, 4),
            ("l1d", ("1G",), 4, 4),
            ("l1i", ("4K",), 64, 8),
            ("l1i", ("2M",), 8, 8),
            ("l2", ("4K", "2M"), 1024, 8),
        },
    ),
    "D-2183IT": (
        (6, 0x55, 3000),
        {"l1d": (32 * KIB, 8), "l1i": (32 * KIB, 8), "l2": (1 * MIB, 16), "l3": (22 * MIB, 11)},
        {
            ("l1d", ("4K",), 64, 4),
            ("l1d", ("2M",), 32, 4),
            ("l1d", ("1G",), 4, 4),
            ("l1i", ("4K",), 64, 8),
            ("l1i", ("2M",), 8, 8),
            ("l2", ("4K", "2M"), 1536, 6),
            ("l2", ("1G",), 16, 4),
        },
    ),
    "i7-1065G7": (
        (6, 0x7E, 3900),
        {"l1d": (48 * KIB, 12), "l1i": (32 * KIB, 8), "l2": (512 * KIB, 8), "l3": (8 * MIB, 16)},
        {
            ("l1d", ("4K",), 64, 4),
            ("l1d", ("2M",), 32, 4),
            ("l1d", ("1G",), 8, 8),
            ("l1i", ("4K", "2M"), 8, 8),
            ("l2", ("4K", "2M"), 2048, 16),
        },
    ),
    "i9-12900K": (
        (6, 0x97, 5200),
        {"l1d": (48 * KIB, 12), "l1i": (32 * KIB, 8), "l2": (1280 * KIB, 10), "l3": (30 * MIB, 12)},
        {
            ("l1d", ("4K",), 64, 4),
            ("l1d", ("2M",), 32, 4),
            ("l1d", ("1G",), 8, 8),
            ("l1i", ("4K",), 256, 8),
            ("l1i", ("2M",), 32, 8),
            ("l2", ("4K", "2M"), 2048, 16),
        },
    ),
    "w7-2475X": (
        (6, 0x8F, 4800),
        {"l1d": (48 * KIB, 12), "l1i": (32 * KIB, 8), "l2": (2 * MIB, 16), "l3": (38400 * KIB, 15)},
        {
            ("l1d", ("4K",), 64, 4),
            ("l1d", ("2M",), 32, 4),
            ("l1d", ("1G",), 8, 8),
            ("l1i", ("4K",), 256, 8),
            ("l1i", ("2M",), 32, 8),
            ("l2", ("4K", "2M"), 2048, 16),
        },
    ),
    "EPYC 7742": (
        (0x17, 0x31, None),
        {"l1d": (32 * KIB, 8), "l1i": (32 * KIB, 8), "l2": (512 * KIB, 8), "l3": (16 * MIB, 16)},
        {
            ("l1d", ("4K", "2M", "1G"), 64, 64),
            ("l1i", ("4K", "2M", "1G"), 64, 64),
            ("l2", ("4K", "2M"), 2048, 8),
        },
    ),
    "Ryzen 5 7600X": (
        (0x19, 0x61, None),
        {"l1d": (32 * KIB, 8), "l1i": (32 * KIB, 8), "l2": (1 * MIB, 8), "l3": (32 * MIB, 16)},
        {
            ("l1d", ("4K", "2M", "1G"), 72, 72),
            ("l1i", ("4K", "2M", "1G"), 64, 64),
            ("l2", ("4K", "2M"), 3072, 12),
            ("l2", ("1G",), 64, 64),
        },
    ),
    "Ryzen 9 9950X": (
        (0x1A, 0x44, None),
        {"l1d": (48 * KIB, 12), "l1i": (32 * KIB, 8), "l2": (1 * MIB, 16), "l3": (32 * MIB, 16)},
        {
            ("l1d", ("4K", "2M", "1G"), 96, 96),
            ("l1i", ("4K", "2M", "1G"), 64, 64),
            # In multiples of 32 (8000_0021h, EAX, bit 14).
            ("l2", ("4K", "2M"), 4096, 8),
            ("l2", ("1G",), 1024, 4),
        },
    ),
    "EPYC, a guest": (
        (0x19, 0x01, None),
        {"l1d": (32 * KIB, 8), "l1i": (32 * KIB, 8), "l2": (512 * KIB, 8), "l3": (32 * MIB, 16)},
        {("l1d", ("4K", "2M"), 64, 64), ("l1i", ("4K", "2M"), 64, 64), ("l2", ("4K", "2M"), 2048, 8)},
    ),
    "i7-1065G7, a guest": (
        (6, 0x7E, 3900),
        {"l1d": (48 * KIB, 12), "l1i": (32 * KIB, 8), "l2": (512 * KIB, 8), "l3": (8 * MIB, 16)},
        set(),
    ),
}


def _processor(name: str) -> cpuid.Processor:
    return cpuid.understand(cpuid.read_dump(DUMPS[name]))


@pytest.mark.parametrize("name", DUMPS)
def test_a_processor_is_understood(name: str) -> None:
    (family, number, mhz), caches, tlbs = EXPECTED[name]
    found = _processor(name)
    assert (found.family, found.model, found.highest_mhz) == (family, number, mhz)
    assert {cache.name: (cache.size_bytes, cache.ways) for cache in found.caches} == caches
    assert {(tlb.name, tlb.pages, tlb.entries, tlb.ways) for tlb in found.tlbs} == tlbs
    assert len(found.tlbs) == len(tlbs)
    assert name.partition(",")[0] in found.brand
    assert found.is_virtual == name.endswith("guest")


def test_a_register_of_leaf_2_may_hold_no_descriptors() -> None:
    # The manual: bit 31 says that a register holds none; the lowest byte of EAX is no descriptor either.
    intel = {(0, 0): (2, 0x756E6547, 0x6C65746E, 0x49656E69)}
    found = cpuid.understand(intel | {(2, 0): (0x00000003, 0x800000C3, 0x00B50000, 0x80000003)})
    assert [(tlb.name, tlb.entries) for tlb in found.tlbs] == [("l1i", 64)]


def test_amds_sizes_are_in_multiples_of_32_where_bit_14_says_so() -> None:
    leaves = cpuid.read_dump(DUMPS["Ryzen 9 9950X"])

    def entries(flags: int) -> int:
        found = cpuid.understand(leaves | {(0x80000021, 0): (flags, 0, 0, 0)})
        return next(tlb.entries for tlb in found.tlbs if tlb.name == "l2" and "4K" in tlb.pages)

    assert (entries(1 << 14), entries(1 << 21)) == (4096, 128)


@pytest.mark.parametrize(
    ("hybrid", "kind", "core"),
    [(1 << 15, 0x40000001, "P core"), (1 << 15, 0x20000001, "E core"), (0, 0x40000001, None), (0, 0, None)],
)
def test_a_hybrids_core_has_a_type(hybrid: int, kind: int, core: str | None, tmp_path: Path) -> None:
    leaves = cpuid.read_dump(DUMPS["i9-12900K"])
    found = cpuid.understand(leaves | {(7, 0): (0, 0, 0, hybrid), (0x1A, 0): (kind, 0, 0, 0)})
    assert found.core == core
    assert (
        model.model(found, _files(tmp_path)).machine["title"].endswith(f", {core}" if core else "i9-12900K")
    )


def test_the_processor_that_measures_is_the_one_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(_: str, request: dict[str, int]) -> dict[str, list[list[int]]]:
        asked.append(request)
        leaves = cpuid.read_dump(DUMPS["i9-12900K"])
        return {"leaves": [[*place, *registers] for place, registers in leaves.items()]}

    monkeypatch.setattr(native, "ask", answer)
    monkeypatch.setattr(model, "choose_cpus", lambda *_: [5])
    assert model.machine().base == "golden-cove"
    assert asked == [{"cpu": 5}]


def test_nothing_is_understood_of_nothing() -> None:
    found = cpuid.understand({})
    assert (found.caches, found.tlbs, found.highest_mhz) == ([], [], None)
    with pytest.raises(UsageError, match="no machine of this vendor"):
        model.model(found, Files())


def _files(root: Path, **contents: str | bytes) -> Files:
    for name, text in contents.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Files(proc=root / "proc", sys=root / "sys", etc=root / "etc")


@pytest.mark.parametrize("name", DUMPS)
def test_a_machine_is_valid_whole_and_says_where_each_figure_is_from(name: str, tmp_path: Path) -> None:
    made = model.model(_processor(name), _files(tmp_path, proc__meminfo="MemTotal: 16777217 kB\n"))
    text = model.as_toml(made)
    assert tomllib.loads(text) == made.machine
    assert engine.check("machine", made.machine) == []
    for line in text.splitlines():
        if " = " in line and not line.startswith(("#", "name", "title", "source")):
            assert " # " in line, f"no source: {line}"
    assert made.machine["os"]["memory_bytes"] == 17 << 30
    # What every page size of the base reaches, the made machine's TLBs reach, too.
    base = settings.machine(made.base)
    for tlb in ("l1d", "l1i", "l2"):
        pages = {page for array in base["tlb"][tlb] for page in array["pages"]}
        assert pages <= {page for array in made.machine["tlb"][tlb] for page in array["pages"]}
    assert f"of {len(made.sources)} figures" in made.words


def test_what_is_not_known_is_the_nearest_machines(tmp_path: Path) -> None:
    made = model.model(_processor("i7-1065G7, a guest"), _files(tmp_path))
    assert made.base == "skylake-server"
    base = settings.machine("skylake-server")
    for section in ("core", "memory", "pwc", "walker", "tlb"):
        assert made.machine[section] == base[section]
    assert all(
        made.sources[key].startswith("as skylake-server") for key in made.sources if key.startswith("tlb")
    )
    assert "in a virtual machine" in made.machine["title"]
    assert made.machine["frequency_mhz"] == 3900
    # A fault takes as long as the shipped machine's, at this clock: 600 ns.
    assert made.machine["os"]["fault_cycles"] == 2340
    shootdown = base["os"]["shootdown_cycles"] / base["frequency_mhz"]
    assert made.machine["os"]["shootdown_cycles"] == round(shootdown * 3900)
    assert made.sources["os.shootdown_cycles"] == f"as skylake-server: {1000 * shootdown:.0f} ns"
    assert model.model(_processor("i9-12900K"), _files(tmp_path)).base == "golden-cove"
    assert model.model(_processor("EPYC 7742"), _files(tmp_path)).base == "zen4"
    guest = model.model(_processor("EPYC, a guest"), _files(tmp_path)).machine["tlb"]
    assert guest["l1d"][1] == {"pages": ["1G"], "entries": 72, "ways": 72, "latency_cycles": 1}


@pytest.mark.parametrize(
    ("name", "size", "ways"),
    [("w7-2475X", 38 * MIB, 19), ("i9-12900K", 30 * MIB, 15), ("D-2183IT", 22 * MIB, 11)],
)
def test_a_cache_has_a_power_of_two_of_sets(name: str, size: int, ways: int, tmp_path: Path) -> None:
    made = model.model(_processor(name), _files(tmp_path))
    llc = made.machine["llc"]
    assert (llc["size_bytes"], llc["ways"]) == (size, ways)
    sets = size // 64 // ways
    assert sets & (sets - 1) == 0
    assert ("not a power of two" in made.sources["llc.size_bytes"]) == (name != "D-2183IT")


def test_the_clock_is_the_best_that_is_known(tmp_path: Path) -> None:
    def clock(name: str, **contents: str) -> tuple[int, str]:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        root.mkdir()
        made = model.model(_processor(name), _files(root, **contents))
        return made.machine["frequency_mhz"], made.sources["frequency_mhz"]

    cpufreq = "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq".replace("/", "__")
    info = {"proc__cpuinfo": "processor : 0\ncpu MHz\t\t: 2445.406\n"}
    assert clock("i9-12900K", **{cpufreq: "5100000\n"}, **info) == (5100, "highest frequency (cpufreq)")
    assert clock("i9-12900K", **info)[0] == 5200
    assert clock("i7-4770", **info) == (3400, "the processor's name")
    assert clock("EPYC 7742", **info)[0] == 2445
    assert clock("EPYC 7742")[1].startswith("as zen4")


def test_the_clock_is_that_of_the_processor_that_was_asked(tmp_path: Path) -> None:
    cpufreq = "sys__devices__system__cpu__cpu{}__cpufreq__cpuinfo_max_freq"
    rates = {cpufreq.format(0): "5100000\n", cpufreq.format(16): "3900000\n"}
    info = "processor : 0\ncpu MHz : 5000.0\n\nprocessor : 16\ncpu MHz : 3800.0\n"
    made = _files(tmp_path, **rates, proc__cpuinfo=info)
    assert [model.model(_processor("i7-4770"), made, cpu).machine["frequency_mhz"] for cpu in (0, 16)] == [
        5100, 3900,
    ]  # fmt: skip
    made = _files(tmp_path / "guest", proc__cpuinfo=info)
    assert model.model(_processor("EPYC 7742"), made, 16).machine["frequency_mhz"] == 3800


def test_memory_devices_say_their_rate_if_all_agree(tmp_path: Path) -> None:
    def device(size: int, rate: int) -> bytes:
        raw = bytearray(0x28)
        raw[0] = 17
        raw[0x0C:0x0E] = size.to_bytes(2, "little")
        raw[0x20:0x22] = rate.to_bytes(2, "little")
        return bytes(raw)

    def rate(*devices: bytes) -> int:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        root.mkdir()
        entries = {f"sys__firmware__dmi__entries__17-{at}__raw": raw for at, raw in enumerate(devices)}
        return int(
            model.model(_processor("i9-12900K"), _files(root, **entries)).machine["memory"]["data_rate_mts"]
        )

    assert rate(device(0x4000, 4800), device(0, 0), device(0x4000, 4800)) == 4800
    assert rate(device(0x4000, 4800), device(0x4000, 4400)) == 3200, "golden-cove's: they disagree"
    assert rate(device(0x4000, 0)) == 3200
    assert rate(b"\x11short") == 3200


@pytest.mark.parametrize(
    ("fits", "exceeds", "words"),
    [
        (
            0.01,
            0.99,
            "agree with an L2 TLB of 2048 entries: 0.01 walks a load over 1536 pages, 0.99 over 8192",
        ),
        (0.9, 1.0, "too large"),
        (0.0, 0.02, "too small"),
        (None, None, "were not checked"),
    ],
)
def test_the_counters_judge_the_reach(fits: float | None, exceeds: float | None, words: str) -> None:
    assert words in model.judged(2048, fits, exceeds)


def test_why_the_counters_did_not_judge_is_what_the_kernel_said(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "dtlb_walks not counted: no counter was free"
    answer = {"counts": [], "notes": ["not pinned to processor 3", why]}
    monkeypatch.setattr(native, "find", lambda: Path("kernel"))
    monkeypatch.setattr(native, "measure", lambda *_: answer)
    made = model.model(_processor("EPYC 7742"), Files(Path("/nowhere"), Path("/nowhere"), Path("/nowhere")))
    assert model.checked(made) == f"The TLBs were not checked: {why}."
    answer["notes"] = []
    assert model.checked(made).endswith("no event of this processor is known to count walks.")


def test_the_host_is_a_machine_like_another(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor of a vendor that is shipped: written, read again, and named, it is the same."""
    # The kernel may know only what the clock is at the moment.
    monkeypatch.setattr(model, "_clock", lambda *_: (3333, "made up"))
    if "AuthenticAMD" not in (text := _cpuinfo()) and "GenuineIntel" not in text:
        pytest.skip("the processor is of another vendor")
    result = call("host", "machine", "-o", "mine.toml")
    assert result.code == 0, result.err
    assert "figures are its own" in result.err
    assert "TLB" in result.err.splitlines()[1], "what the counters say, or that they cannot be read"
    assert engine.check("machine", tomllib.loads((tmp_path / "mine.toml").read_text())) == []
    walk = ["walk", "--workload", "gups:16MiB", "--instructions", "10k"]
    assert call(*walk, "--machine", "host").out == call(*walk, "--machine", "./mine.toml").out != ""


def _cpuinfo() -> str:
    return Path("/proc/cpuinfo").read_text() if os.uname().machine == "x86_64" else ""
