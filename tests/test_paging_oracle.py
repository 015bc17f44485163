"""The engine's walker against a reader of page tables that was written from the specification alone."""

from __future__ import annotations

import functools
import json
import subprocess
from typing import Any

import pytest

from tests import crates
from tests.oracles.paging import Table, differences

SEEDS = range(1, 7)


@functools.cache
def dump(seed: int) -> list[dict[str, Any]]:
    """Random tables of every layout, as the engine built and walked them."""
    command = [crates.built("dump"), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tables: list[dict[str, Any]] = json.loads(done.stdout)
    return tables


@pytest.mark.parametrize("seed", SEEDS)
def test_engine_and_oracle_translate_alike(seed: int) -> None:
    assert differences(dump(seed)) == []


def test_dumps_hold_every_kind_of_answer() -> None:
    answers = [answer for seed in SEEDS for table in dump(seed) for answer in table["answers"]]
    kinds = {(answer.get("fault", "page"), answer["level"]) for answer in answers}
    assert {("page", 1), ("page", 2), ("page", 3)} <= kinds
    assert {(fault, level) for fault in ("not present", "reserved") for level in (1, 2, 3, 4)} <= kinds
    assert all({True, False} == {a[right] for a in answers if right in a} for right in ("write", "user"))
    assert {table["root"]["width"] for table in dump(1)} == {1, 2, 3}


def test_oracle_follows_hand_written_words() -> None:
    """4-level table: root at 0x1000 → L3 at 0x2000 → flattened L2+L1 node at 2 MiB → page at 5 GiB."""
    words = {
        0x1000 + 8 * 1: 0x2007,
        0x2000 + 8 * 2: 0x20_0007 | 1 << 58,
        0x20_0000 + 8 * (3 * 512 + 4): 0x1_4000_0007,
    }
    table = Table(12, 9, 0x1000, 4, 1, words)
    address = 1 << 39 | 2 << 30 | 3 << 21 | 4 << 12 | 0x567
    expected = {"address": address, "level": 1, "entry": 0x20_0000 + 8 * (3 * 512 + 4)}
    rights = {"write": True, "user": True, "execute": True}
    assert table.translate(address) == {**expected, "physical": 0x1_4000_0567, **rights}


def test_oracle_follows_overlapping_nodes() -> None:
    """Root at 0x1000 → L3+L2 node at 4 MiB → with O, L2+L1 node at 2 MiB → page at 5 GiB."""
    index = 3 * 512 + 4
    words = {
        0x1000 + 8 * 1: 0x40_0007 | 1 << 58,
        0x40_0000 + 8 * (2 * 512 + 3): 0x20_0007 | 1 << 58 | 1 << 59,
        0x20_0000 + 8 * index: 0x1_4000_0007,
    }
    table = Table(12, 9, 0x1000, 4, 1, words)
    address = 1 << 39 | 2 << 30 | 3 << 21 | 4 << 12 | 0x567
    rights = {"write": True, "user": True, "execute": True}
    answer = {"address": address, "level": 1, "entry": 0x20_0000 + 8 * index, **rights}
    assert table.translate(address) == {**answer, "physical": 0x1_4000_0567}
    # A large page whose entry is a replica: the entry's own index counts into the page.
    words[0x20_0000 + 8 * index] = 0x1_4000_0087 | 1 << 59
    assert table.translate(address) == {**answer, "level": 2, "physical": 0x1_4000_4567}


def test_dumps_hold_overlapping_nodes() -> None:
    words = [word for seed in SEEDS for table in dump(seed) for _, word in table["words"]]
    pointers = [word for word in words if word >> 57 & 7 == 0b110 and word & 0x81 == 1]
    replicas = [word for word in words if word >> 59 & 1 and word & 0x81 == 0x81]
    assert len(pointers) > 100
    assert len(replicas) > 50


def test_a_wrong_answer_is_seen() -> None:
    tables = dump(1)
    pages = [a for table in tables for a in table["answers"] if "physical" in a]
    pages[0]["physical"] ^= 0x1000
    try:
        assert len(differences(tables)) == 1
    finally:
        pages[0]["physical"] ^= 0x1000
