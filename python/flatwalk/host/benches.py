"""Benches: what each measures, and in which variants."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import units
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.host import machine

if TYPE_CHECKING:
    from collections.abc import Callable

#: Repetitions of `pagefault` that warm up and do not count.
WARMUP = 3
#: Bytes of a record of `ebizzy`.
_RECORD = 8
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
    #: What decides the result, to check that files can be compared.
    parameters: dict[str, Any]
    #: Variants that cannot be measured here, and why.
    skipped: list[str] = field(default_factory=list)
    #: What a user should know about this bench here.
    notes: list[str] = field(default_factory=list)
    #: What must be done before each round.
    prepare: Callable[[], None] = lambda: None


def pagefault(
    host: dict[str, Any], directory: Path, *, size_bytes: int, repetitions: int, change_host: bool
) -> Bench:
    """Page faults, as lmbench's lat_pagefault; `directory` is where the file goes."""
    page, huge = host["page_bytes"], host["thp"]["page_bytes"]
    pages = size_bytes // page
    if pages < 16:
        raise UsageError(
            f"{units.size(size_bytes)} are too few pages", where="--size", remedy="give 1MiB or more"
        )
    _check_memory(host, size_bytes, "--size", "give less")
    free = shutil.disk_usage(directory).free
    if size_bytes > free:
        raise UsageError(
            f"a file of {units.size(size_bytes)} is mapped; {directory.parent} has {units.size(free)} free",
            where="--size",
            remedy="give less, or name another directory with TMPDIR",
        )
    common = {"pages": pages, "repetitions": repetitions, "warmup": WARMUP}
    file = directory / "pages"
    variants = [
        Variant("file", "file, shared, fault-around as it is", {**common, "memory": {"file": str(file)}}),
        Variant("sparse", "file in memory, nothing to fault around", {**common, "memory": "sparse"}),
        Variant("anonymous", f"anonymous, {units.size(page)} pages", {**common, "memory": "anonymous"}),
    ]
    skipped, notes = [], []
    if not _has_huge_pages(host):
        skipped.append("huge: transparent huge pages are off on this host")
    elif size_bytes < huge:
        skipped.append(f"huge: {units.size(size_bytes)} do not hold a huge page of {units.size(huge)}")
    else:
        whole = {**common, "pages": size_bytes // huge * (huge // page), "memory": {"huge": huge}}
        variants.append(Variant("huge", f"anonymous, {units.size(huge)} pages", whole))
    if change_host:
        if machine.read(FAULT_AROUND) is None:
            skipped.append(f"file-single: {FAULT_AROUND} does not exist, or may not be changed")
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
        parameters={
            "size_bytes": size_bytes,
            "repetitions": repetitions,
            "page_bytes": page,
            # Whose faults `file` measures: tmpfs maps other pages than a disk's file system.
            "file_system": machine.file_system(directory),
        },
        skipped=skipped,
        notes=notes,
        prepare=lambda: _write_pages(file, pages, page),
    )


def _check_memory(host: dict[str, Any], size_bytes: int, where: str, remedy: str) -> None:
    """Checks that a bench fits half of memory, so that it measures no swapping.

    Raises:
        UsageError: If not.
    """
    memory = host["memory_bytes"]
    if memory and size_bytes > memory // 2:
        raise UsageError(
            f"{units.size(size_bytes)} are more than half of memory, which is {units.size(memory)}",
            where=where,
            remedy=remedy,
        )


def _write_pages(file: Path, pages: int, page_bytes: int) -> None:
    """Rewrites the file to map, so that it lies elsewhere in memory in every round.

    It is written page by page: of a large write some file systems make large folios, which one fault
    maps whole.

    Raises:
        FlatwalkError: If there is not enough space for it.
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


def _has_huge_pages(host: dict[str, Any]) -> bool:
    """Whether a program that asks for transparent huge pages may get them: their size alone says nothing."""
    return host["thp"]["page_bytes"] is not None and host["thp"]["enabled"] in {"always", "madvise"}


def gups(host: dict[str, Any], *, table_bytes: int, node: int | None = None) -> Bench:
    """HPCC's RandomAccess, single process; all of its memory is the node's, if one is given."""
    if table_bytes < 1024 or table_bytes & (table_bytes - 1):
        raise UsageError(
            f"a table of {table_bytes} bytes", where="--table", remedy="give a power of two, such as 256MiB"
        )
    memory, whose = host["memory_bytes"], ", which is"
    of_node = host["node_bytes"].get(str(node))
    if of_node and (not memory or of_node < memory):
        memory, whose = of_node, f"; it is from node {node}, which has"
    if memory and table_bytes > memory // 2:
        raise UsageError(
            f"HPCC's table is at most half of memory{whose} {units.size(memory)}",
            where="--table",
            remedy=f"give {units.short_size(1 << ((memory // 2).bit_length() - 1))} or less",
        )
    page, huge = host["page_bytes"], host["thp"]["page_bytes"]
    variants = [Variant("small", f"{units.size(page)} pages", {"table_bytes": table_bytes})]
    skipped = []
    if _has_huge_pages(host) and table_bytes >= huge:
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


def _address_bits(host: dict[str, Any]) -> int:
    """Of what a program may map; with five levels it may ask for 56 bits."""
    return 56 if host["page_table_levels"] == 5 else host["user_address_bits"] or 47


def level_strides(host: dict[str, Any], pages: int) -> list[int]:
    """Distances at which each page needs its own cache line at one, two, … levels of entries.

    An entry is 8 bytes and a line 64, so pages 8 apart have PTEs in lines of their own, and so on up, as
    long as so many pages fit the address space.
    """
    page_bytes, bits = host["page_bytes"], _address_bits(host)
    strides, stride = [], page_bytes * 8
    while stride * (pages + 2) <= 1 << bits:
        strides.append(stride)
        stride *= page_bytes // 8
    return strides


#: The most loads of a reference in `walk`, and its most references between two flushes.
_DEEPEST, _MOST = 5, 1 << 15
#: Where its pages begin (LOWEST in host/src/walk.rs).
_FIRST_ADDRESS = 1 << 34


def _check_walk(host: dict[str, Any], strides: list[int], group: int, flush_bytes: int | None) -> None:
    """Checks what was asked of `walk`.

    Raises:
        UsageError: If it cannot be measured.
    """
    page = host["page_bytes"]
    most = _MOST
    if _has_huge_pages(host):
        most = min(most, host["thp"]["page_bytes"] // 64 // _DEEPEST)
    if group > most:
        raise UsageError(
            f"{units.count(group)} references are too many for one group",
            where="--group",
            remedy=f"give {most} or less",
        )
    if flush_bytes is not None:
        remedy = "give twice what the caches hold, as 64MiB"
        if flush_bytes < page:
            raise UsageError(f"{flush_bytes} bytes flush no cache", where="--flush", remedy=remedy)
        _check_memory(host, flush_bytes, "--flush", remedy)
    for stride in strides:
        if not stride or stride % page:
            raise UsageError(
                f"pages cannot be {units.size(stride)} apart",
                where="--strides",
                remedy=f"give multiples of the page size, {units.size(page)}",
            )
        last = -(-_FIRST_ADDRESS // stride) * stride + (group - 1) * stride
        if last + page > 1 << _address_bits(host):
            raise UsageError(
                f"{group} pages {units.size(stride)} apart do not fit the address space",
                where="--strides",
                remedy="give a smaller distance, or a smaller --group",
            )


def walk(
    host: dict[str, Any], *, strides: list[int] | None, group: int, groups: int, flush_bytes: int | None
) -> Bench:
    """References that miss the TLB, by how many levels of the table are cold; and plain loads."""
    page = host["page_bytes"]
    strides = None if strides is None else sorted(set(strides))
    _check_walk(host, strides or [], group, flush_bytes)
    flush = flush_bytes or 2 * machine.cache_bytes(host)
    notes = []
    if not flush:
        flush = 256 << 20
        notes.append("The kernel does not report the caches' sizes; 256 MiB are flushed (see --flush).")
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
    skipped = []
    if _has_huge_pages(host):
        for depth in range(1, _DEEPEST + 1):
            kind = {"loads": {"depth": depth, "area_bytes": host["thp"]["page_bytes"]}}
            title = f"{depth} dependent cold {'load' if depth == 1 else 'loads'}"
            variants.append(Variant(f"loads-{depth}", title, {**common, "kind": kind}))
    else:
        # On small pages each load would miss the TLB, too.
        skipped.append("loads-1 to loads-5: transparent huge pages are off on this host")
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
        skipped=skipped,
        notes=notes,
    )


def ebizzy(
    host: dict[str, Any], *, threads: int, chunks: int, chunk_bytes: int, milliseconds: int, cpus: int
) -> Bench:
    """A search server's copying: threads map, fault and unmap in one address space."""
    if chunk_bytes < _RECORD:
        raise UsageError(
            f"a chunk of {chunk_bytes} bytes holds no record", where="--chunk", remedy="as in --chunk 512KiB"
        )
    remedy = "give smaller chunks, or fewer --chunks or --threads"
    _check_memory(host, (chunks + threads) * chunk_bytes, "--chunk", remedy)
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
