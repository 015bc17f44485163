"""Benches: what each measures, in which variants, and the rounds in which they take turns.

A round measures every variant once, each in a fresh process, in an order that is random but for the
seed. So whatever drifts hits all variants alike, and where memory lies is part of what varies.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import engine, units
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.host import machine, native
from flatwalk.host.results import SCHEMA, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Rounds that are measured whatever time they take.
FEWEST_RUNS = 5
#: Times that `pagefault` does everything before it counts.
WARMUP = 3
#: Times the rounds asked for that are tried at most, to have so many undisturbed ones.
_TRIES = 3
FAULT_AROUND = Path("/sys/kernel/debug/fault_around_bytes")


@dataclass(frozen=True)
class Variant:
    """One thing that a bench measures."""

    name: str
    title: str
    #: The native kernel's parameters.
    parameters: dict[str, Any]
    #: Threads it runs.
    threads: int = 1
    #: A setting of the kernel that it needs, with its value.
    setting: tuple[Path, str] | None = None


@dataclass(frozen=True)
class Bench:
    """A bench, ready to run."""

    name: str
    unit: str
    #: Whether values are rates: more is better, and means are harmonic.
    rate: bool
    #: Key of the value in the kernel's answer.
    key: str
    variants: list[Variant]
    #: What decides the result, for comparing files.
    parameters: dict[str, Any]
    #: Variants that cannot be measured here, and why.
    skipped: list[str] = field(default_factory=list)
    #: What a user should know about this bench here.
    notes: list[str] = field(default_factory=list)
    #: What must be done before each round.
    prepare: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Plan:
    """How a bench is run."""

    runs: int
    at_most_seconds: float
    seed: int
    cpus: list[int] | None = None
    count: bool = True


def pagefault(
    host: dict[str, Any], directory: Path, *, size_bytes: int, repetitions: int, change_host: bool
) -> Bench:
    """Page faults, as lmbench's lat_pagefault; `directory` is where the file is put."""
    page, huge = host["page_bytes"], host["thp"]["page_bytes"]
    pages = size_bytes // page
    if pages < 16:
        raise UsageError(
            f"{units.size(size_bytes)} are too few pages", where="--size", remedy="give 1MiB or more"
        )
    common = {"pages": pages, "repetitions": repetitions, "warmup": WARMUP}
    file = directory / "pages"
    variants = [
        Variant("file", "file, shared, fault-around as it is", {**common, "memory": {"file": str(file)}}),
        Variant("sparse", "file in memory, nothing to fault around", {**common, "memory": "sparse"}),
        Variant("anonymous", f"anonymous, {units.size(page)} pages", {**common, "memory": "anonymous"}),
    ]
    skipped, notes = [], []
    if not huge or host["thp"]["enabled"] not in {"always", "madvise"}:
        skipped.append("huge: transparent huge pages are off on this host")
    elif size_bytes < huge:
        skipped.append(f"huge: {units.size(size_bytes)} hold no huge page of {units.size(huge)}")
    else:
        whole = {**common, "pages": size_bytes // huge * (huge // page), "memory": {"huge": huge}}
        variants.append(Variant("huge", f"anonymous, {units.size(huge)} pages", whole))
    if change_host:
        if machine.read(FAULT_AROUND) is None:
            skipped.append(f"file-single: {FAULT_AROUND} is not there, or may not be changed")
        else:
            variants.append(
                Variant(
                    "file-single",
                    "file, fault-around off",
                    {**common, "memory": {"file": str(file)}},
                    setting=(FAULT_AROUND, str(page)),
                )
            )
    else:
        notes.append("Fault-around stays on: --change-host turns it off for some runs (as root).")
    return Bench(
        "pagefault",
        f"ns per {units.size(page)} page",
        rate=False,
        key="nanoseconds_per_page",
        variants=variants,
        parameters={"size_bytes": size_bytes, "repetitions": repetitions, "page_bytes": page},
        skipped=skipped,
        notes=notes,
        prepare=lambda: _write_pages(file, pages, page),
    )


def _write_pages(file: Path, pages: int, page_bytes: int) -> None:
    """Makes the file to map anew, so that it lies elsewhere in memory in every round.

    It is written page by page: of a large write some file systems make large folios, which one fault
    maps whole.

    Raises:
        FlatwalkError: If there is no room for it.
    """
    try:
        file.unlink(missing_ok=True)
        with file.open("wb", buffering=0) as target:
            for number in range(pages):
                target.write(number.to_bytes(8, "little") * (page_bytes // 8))
    except OSError as error:
        raise FlatwalkError(
            f"the file to map cannot be written: {error.strerror}",
            where=str(file.parent),
            remedy="free some space there, or name another directory with TMPDIR",
        ) from error


def gups(host: dict[str, Any], *, table_bytes: int) -> Bench:
    """HPCC's RandomAccess, single process."""
    if table_bytes < 1024 or table_bytes & (table_bytes - 1):
        raise UsageError(
            f"a table of {table_bytes} bytes", where="--table", remedy="give a power of two, such as 256MiB"
        )
    memory = host["memory_bytes"]
    if memory and table_bytes > memory // 2:
        raise UsageError(
            f"HPCC's table is at most half of memory, which is {units.size(memory)}",
            where="--table",
            remedy=f"give {units.short_size(1 << ((memory // 2).bit_length() - 1))} or less",
        )
    page, huge = host["page_bytes"], host["thp"]["page_bytes"]
    variants = [Variant("small", f"{units.size(page)} pages", {"table_bytes": table_bytes})]
    skipped = []
    if huge and host["thp"]["enabled"] in {"always", "madvise"} and table_bytes >= huge:
        variants.append(
            Variant("huge", f"{units.size(huge)} pages", {"table_bytes": table_bytes, "huge": huge})
        )
    else:
        skipped.append("huge: transparent huge pages are off on this host, or larger than the table")
    return Bench(
        "gups",
        "GUP/s",
        rate=True,
        key="giga_updates_per_second",
        variants=variants,
        parameters={"table_bytes": table_bytes},
        skipped=skipped,
    )


def level_strides(host: dict[str, Any], pages: int) -> list[int]:
    """Distances at which each page needs an own cache line of one, two, … levels of entries.

    An entry is 8 bytes and a line 64, so pages 8 apart have PTEs in lines of their own, and so on up, as
    long as so many pages fit the address space. With five levels a program may ask for 56 bits.
    """
    page_bytes = host["page_bytes"]
    bits = 56 if host["page_table_levels"] == 5 else host["user_address_bits"] or 47
    strides, stride = [], page_bytes * 8
    while stride * (pages + 2) <= 1 << bits:
        strides.append(stride)
        stride *= page_bytes // 8
    return strides


def walk(
    host: dict[str, Any], *, strides: list[int] | None, group: int, groups: int, flush_bytes: int | None
) -> Bench:
    """References that miss the TLB, by how many levels of the table are cold; and plain loads."""
    page = host["page_bytes"]
    flush = flush_bytes or 2 * machine.cache_bytes(host)
    notes = []
    if not flush:
        flush = 256 << 20
        notes.append("The kernel does not tell the caches' sizes; 256 MiB are flushed (see --flush).")
    common = {"group": group, "groups": groups, "flush_bytes": flush}
    by_level = level_strides(host, group)
    variants = []
    for stride in strides or [page, *by_level]:
        cold = sum(stride >= least for least in by_level)
        title = f"pages {units.size(stride)} apart: {cold} cold {'level' if cold == 1 else 'levels'}"
        variants.append(
            Variant(
                f"stride-{units.short_size(stride)}",
                title,
                {**common, "kind": {"pages": {"stride_bytes": stride}}},
            )
        )
    area = host["thp"]["page_bytes"] or page * 512
    for depth in range(1, 6):
        kind = {"loads": {"depth": depth, "area_bytes": area}}
        title = f"{depth} dependent cold {'load' if depth == 1 else 'loads'}"
        variants.append(Variant(f"loads-{depth}", title, {**common, "kind": kind}))
    if host["hypervisor"]:
        notes.append(
            "In a virtual machine each level that is cold may cost further loads from the host's table."
        )
    return Bench(
        "walk",
        "ns per reference",
        rate=False,
        key="nanoseconds_per_reference",
        variants=variants,
        parameters={**common, "strides": strides, "page_bytes": page},
        notes=notes,
    )


def ebizzy(*, threads: int, chunks: int, chunk_bytes: int, milliseconds: int, cpus: int) -> Bench:
    """A search server's copying: threads map, fault and unmap in one address space."""
    common = {"chunks": chunks, "chunk_bytes": chunk_bytes, "milliseconds": milliseconds}
    variants = [
        Variant(
            f"{count}-{'unmap' if unmap else 'keep'}",
            f"{count} {'thread' if count == 1 else 'threads'}, {'with' if unmap else 'without'} munmap",
            {**common, "threads": count, "unmap": unmap},
            threads=count,
        )
        for unmap in (True, False)
        for count in range(1, threads + 1)
    ]
    notes = []
    if threads > cpus:
        notes.append(f"{threads} threads share {cpus} processors: beyond {cpus} this measures the scheduler.")
    return Bench(
        "ebizzy",
        "records/s",
        rate=True,
        key="records_per_second",
        variants=variants,
        parameters={**common, "threads": threads},
        notes=notes,
    )


@contextlib.contextmanager
def _set(setting: tuple[Path, str] | None) -> Iterator[None]:
    """Gives a kernel's setting another value, and back."""
    if setting is None:
        yield
        return
    path, value = setting
    try:
        before = path.read_text(encoding="ascii")
        path.write_text(value, encoding="ascii")
    except OSError as error:
        raise FlatwalkError(
            f"{path} cannot be changed: {error.strerror}", remedy="run as root, or without --change-host"
        ) from error
    try:
        yield
    finally:
        path.write_text(before, encoding="ascii")


@dataclass
class _Round:
    """Every variant once, and how busy the host was meanwhile."""

    samples: list[dict[str, Any]]
    shares: dict[str, float]
    #: No other program was busy, as far as this system knows.
    alone: bool
    #: Nanoseconds to read a line of the second-level cache: the slowest of all samples.
    pace: float


class _Session:
    """A bench that is being measured."""

    def __init__(self, bench: Bench, plan: Plan, host: dict[str, Any]) -> None:
        self.bench = bench
        self.plan = plan
        self.program = native.find()
        self.order = random.Random(plan.seed)  # noqa: S311
        self.cpus = machine.choose_cpus(host, max(variant.threads for variant in bench.variants), plan.cpus)
        self.node = machine.node_of(host, self.cpus[0])
        self.events = machine.events(host) if plan.count else []
        self.notes = dict.fromkeys(bench.notes)

    def measure(self, turn: int, done: Callable[[], None]) -> _Round:
        """Measures round number `turn`, and calls `done` after each variant."""
        self.bench.prepare()
        busyness = machine.Busyness(self.cpus)
        samples = []
        for variant in self.order.sample(self.bench.variants, len(self.bench.variants)):
            request = {
                "cpus": self.cpus[: variant.threads],
                "node": self.node,
                "events": self.events,
                "bench": {**variant.parameters, **_seeded(self.bench, self.plan, turn)},
            }
            with _set(variant.setting):
                answer = native.measure(self.program, self.bench.name, request)
            self.notes.update(dict.fromkeys(answer.pop("notes")))
            samples.append(
                {
                    "variant": variant.name,
                    "round": turn,
                    "value": _positive(answer.pop(self.bench.key), variant),
                    "preemptions": answer.pop("preemptions"),
                    "controls_nanoseconds": answer.pop("controls_nanoseconds"),
                    "counts": answer.pop("counts"),
                    "answer": answer,
                }
            )
            done()
        shares = busyness.shares()
        alone = not machine.disturbances(shares, self.cpus)
        pace = max(sample["controls_nanoseconds"]["lines"] for sample in samples)
        return _Round(samples, shares, alone, pace)

    def rounds(self, progress: Callable[[int, int | None], None]) -> list[_Round]:
        """Measures, and returns the rounds that count, in order.

        A round during which other programs were busy, or the processor slower than it can be, is measured
        again at the end, as long as time and three times the rounds asked for allow. If too few were
        undisturbed then, all count.
        """
        plan, start, steps = self.plan, time.monotonic(), 0

        def step() -> None:
            nonlocal steps
            steps += 1
            progress(steps, max(steps, (plan.runs + 1) * len(self.bench.variants)))

        self.measure(-1, step)  # warms up
        rounds: list[_Round] = []
        while len(rounds) < _TRIES * plan.runs and len(_undisturbed(rounds)) < plan.runs:
            if len(rounds) >= min(FEWEST_RUNS, plan.runs) and time.monotonic() - start > plan.at_most_seconds:
                self.notes[f"Time was up after {len(rounds)} rounds (--at-most)."] = None
                break
            rounds.append(self.measure(len(rounds), step))
        found = _undisturbed(rounds)
        if len(found) < min(FEWEST_RUNS, plan.runs):
            return rounds[: plan.runs]
        busy = sum(not one.alone for one in rounds)
        for count, why in [
            (busy, "other programs were busy meanwhile"),
            (len(rounds) - len(found) - busy, "something outside this system slowed the processor down"),
        ]:
            if count:
                self.notes[f"{count} of {len(rounds)} rounds do not count: {why}."] = None
        return found


def _undisturbed(rounds: list[_Round]) -> list[_Round]:
    """Rounds without other programs, at the processor's best pace."""
    alone = [one for one in rounds if one.alone]
    best = min((one.pace for one in alone), default=0.0)
    return [one for one in alone if one.pace <= (1 + machine.PACE_TOLERANCE) * best]


def run(
    bench: Bench, plan: Plan, host: dict[str, Any], progress: Callable[[int, int | None], None]
) -> Result:
    """Measures until there are `plan.runs` of each variant or time is up.

    Raises:
        FlatwalkError: If a kernel cannot be run.
    """
    started, start = datetime.now(UTC), time.monotonic()
    session = _Session(bench, plan, host)
    rounds = session.rounds(progress)
    shares = {key: sum(one.shares[key] for one in rounds) / len(rounds) for key in rounds[0].shares}
    return {
        "schema": SCHEMA,
        "version": engine.version(),
        "bench": bench.name,
        "unit": bench.unit,
        "rate": bench.rate,
        "parameters": bench.parameters,
        "seed": plan.seed,
        "cpus": session.cpus,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - start, 1),
        "host": host,
        "titles": {variant.name: variant.title for variant in bench.variants},
        "samples": [sample for one in rounds for sample in one.samples],
        "skipped": bench.skipped,
        "busy": shares,
        "warnings": machine.warnings(host, session.cpus) + machine.disturbances(shares, session.cpus),
        "notes": list(session.notes),
        "histograms": {},
    }


def _seeded(bench: Bench, plan: Plan, turn: int) -> dict[str, int]:
    """The same seed for all variants of a round. ebizzy's load is the same in all rounds; gups has none."""
    if bench.name == "gups":
        return {}
    return {"seed": plan.seed if bench.name == "ebizzy" else plan.seed * 1_000_003 + turn + 1}


def _positive(value: float, variant: Variant) -> float:
    if value <= 0:
        raise FlatwalkError(
            f"variant {variant.name} took no time that could be measured",
            remedy="make it larger, for instance with a larger --size",
        )
    return value


def temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """Where a bench puts its files, until it is done."""
    return tempfile.TemporaryDirectory(prefix="flatwalk-host-")
