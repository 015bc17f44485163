"""Reads flatwalk's traces: an independent reader, written from docs/trace-format.md alone.

It is slow and keeps everything in memory; it checks everything that the page says.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import xxhash
import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MAGIC = b"\x89FWTR\r\n\x1a"
DEFINITIONS, EVENTS, TOUCHED, SLICES, SUMMARY, INDEX = range(1, 7)
SEVERAL_THREADS = NONE = 2**32 - 1
WRAP = 2**64 - 1
BRANCHES = ["none", "conditional", "direct", "indirect", "return", "directcall", "indirectcall"]
BACKINGS = ["anonymous", "file", "stack", "heap"]
ADVICES = ["huge_page", "no_huge_page", "dont_need", "populate"]

Item: TypeAlias = "Definition | Slice | dict[str, Any]"


class FormatError(Exception):
    """The file is not as the page says."""


def check(holds: bool, what: str) -> None:
    if not holds:
        raise FormatError(what)


class Bytes:
    """A payload, read from front to back."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        check(count <= len(self.data) - self.at, "it ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def u8(self, below: int = 256) -> int:
        value = self.take(1)[0]
        check(value < below, "a byte is larger than it can be")
        return value

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def varint(self, most: int = WRAP) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                check(value <= most, "a number is larger than it can be")
                return value
        raise FormatError("a number has more than ten bytes")

    def signed(self) -> int:
        return unzigzag(self.varint())

    def end(self) -> None:
        check(self.at == len(self.data), "bytes are left over")


def unzigzag(value: int) -> int:
    return -(value + 1) // 2 if value & 1 else value // 2


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


class Instruction(NamedTuple):
    pc: int
    length: int
    kind: int
    operands: bytes


class Access(NamedTuple):
    instruction: int
    size: int
    store: bool


@dataclass
class Definition:
    number: int
    instructions: list[Instruction]
    accesses: list[Access]


@dataclass
class Slice:
    thread: int
    epoch: int
    blocks: list[int]
    addresses: list[int]


@dataclass(frozen=True)
class Chunk:
    offset: int
    header: bytes
    kind: int
    stored_bytes: int
    raw_bytes: int
    first: int
    count: int
    first_epoch: int
    last_epoch: int
    thread: int
    a: int
    b: int
    checksum: int

    @classmethod
    def parse(cls, offset: int, header: bytes) -> Chunk:
        check(header[:4] == b"FWck", "no chunk starts here")
        check(xxhash.xxh3_64_digest(header[:72])[::-1] == header[72:], "a chunk header's checksum")
        chunk = cls(offset, header, *struct.unpack("<III QQQQ III xxxx Q", header[4:72]))
        check(DEFINITIONS <= chunk.kind <= INDEX, "a chunk of an unknown kind")
        check(chunk.first_epoch <= chunk.last_epoch, "epochs")
        check(chunk.kind == INDEX or chunk.raw_bytes <= 2**25, "a chunk is too long")
        return chunk

    @property
    def end(self) -> int:
        return self.offset + 80 + self.stored_bytes


class Touched:
    """Pages of 4 KiB by number, and threads."""

    def __init__(self) -> None:
        self.pages: set[int] = set()
        self.populated: set[int] = set()
        self.threads: set[int] = set()

    def touch(self, address: int, size: int) -> None:
        self.pages.update(range(address >> 12, (min(address + size - 1, WRAP) >> 12) + 1))

    def event(self, event: dict[str, Any]) -> None:
        if event["event"] == "populate" and event["length"] > 0:
            last = min(event["address"] + event["length"] - 1, WRAP)
            self.populated.update(range(event["address"] >> 21, (last >> 21) + 1))
        elif event["event"] == "thread_start":
            self.threads.add(event["thread"])

    def merge(self, payload: Bytes) -> None:
        for _ in range(payload.varint()):
            self.threads.add(payload.varint(NONE))
        region = 0
        for _ in range(payload.varint()):
            region += payload.varint()
            bits = int.from_bytes(payload.take(64), "little")
            self.pages.update(region << 9 | bit for bit in range(512) if bits >> bit & 1)
        payload.end()

    def ranges(self) -> list[list[int]]:
        found: list[list[int]] = []
        for region in sorted({page >> 9 for page in self.pages} | self.populated):
            start, end = region << 21, min((region + 1) << 21, WRAP)
            if found and found[-1][1] == start:
                found[-1][1] = end
            else:
                found.append([start, end])
        return found


@dataclass
class Predictor:
    """What writer and reader both remember within a chunk of slices."""

    previous: int = NONE
    before_previous: int = NONE
    address: int = 0
    pairs: dict[int, int] = field(default_factory=dict)
    successors: dict[int, int] = field(default_factory=dict)
    #: Of each block, for each access: last, stride, offset, follow.
    slots: dict[int, list[list[int]]] = field(default_factory=dict)

    def pair(self) -> int:
        mixed = self.previous * 0x9E3779B1 ^ self.before_previous * 0x85EBCA6B
        return (mixed & 0xFFFFFFFF) >> 16


class Columns(NamedTuple):
    tokens: Bytes
    ids: Bytes
    codes: Bytes
    values: Bytes


class Trace:
    """A trace file, all of it."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.header, start = self._read_header()
        index = self._find_index()
        self.ended_early = index is None
        self.chunks = self._scan(start) if index is None else self._indexed(start, index)
        self._check_sequence()
        self.definitions: list[Definition] = []
        self.instructions: list[Instruction] = []
        #: What the codes of addresses were used for, so that a test can say that it saw them all.
        self.codes: Counter[int] = Counter()
        #: Everything in the file's order, with its epoch.
        self.stored = list(self._decode())
        self.found = self._totals()
        if index is not None:
            summary = json.loads(self._payload(self.chunks[-1]))
            check(summary == self.found, f"totals: {summary} are not {self.found}")

    def items(self) -> Iterator[Item]:
        """In the order of reading; all definitions first."""
        yield from self.definitions
        # Stable: within an epoch, events before slices, each in the file's order.
        executed = [stored for stored in self.stored if not isinstance(stored[1], Definition)]
        executed.sort(key=lambda stored: (stored[0], isinstance(stored[1], Slice)))
        yield from (item for _, item in executed)

    def _read_header(self) -> tuple[dict[str, Any], int]:
        check(self.data[:8] == MAGIC, "not a trace")
        version, length = struct.unpack_from("<II", self.data, 8)
        check(version == 1, f"version {version}")
        check(length <= 2**20, "the description is too long")
        end = 16 + length
        check(xxhash.xxh3_64_digest(self.data[:end])[::-1] == self.data[end : end + 8], "file header")
        return json.loads(self.data[16:end]), end + 8

    def _find_index(self) -> int | None:
        trailer = self.data[-32:]
        if trailer[16:24] != b"FWTR-end" or xxhash.xxh3_64_digest(trailer[:24])[::-1] != trailer[24:]:
            return None
        return int.from_bytes(trailer[:8], "little")

    def _indexed(self, start: int, offset: int) -> list[Chunk]:
        index = Chunk.parse(offset, self.data[offset : offset + 80])
        check(index.kind == INDEX and index.end == len(self.data) - 32, "the index")
        chunks = []
        payload = Bytes(self._payload(index))
        while payload.at < len(payload.data):
            chunks.append(Chunk.parse(start, payload.take(80)))
            start = chunks[-1].end
        check(start == offset, "the chunks do not fill the file")
        check(chunks[-1].kind == SUMMARY, "the summary")
        return chunks

    def _scan(self, offset: int) -> list[Chunk]:
        chunks = []
        while offset + 80 <= len(self.data):
            chunk = Chunk.parse(offset, self.data[offset : offset + 80])
            if chunk.end > len(self.data):
                break
            if chunk.kind not in (SUMMARY, INDEX):
                chunks.append(chunk)
            offset = chunk.end
        return chunks

    def _check_sequence(self) -> None:
        counts = Counter[int]()
        latest = Counter[int]()
        for chunk in self.chunks:
            if chunk.kind not in (DEFINITIONS, EVENTS, SLICES):
                continue
            check(chunk.first == counts[chunk.kind] and chunk.count > 0, "a chunk is missing")
            counts[chunk.kind] += chunk.count
            if chunk.first_epoch >= latest[chunk.kind]:
                latest[chunk.kind] = chunk.last_epoch
            else:
                check(chunk.first_epoch == chunk.last_epoch, "a late chunk of several epochs")

    def _payload(self, chunk: Chunk) -> bytes:
        stored = self.data[chunk.offset + 80 : chunk.end]
        check(self.data[chunk.offset : chunk.offset + 80] == chunk.header, "the index's copy")
        check(xxhash.xxh3_64_intdigest(stored) == chunk.checksum, "a payload's checksum")
        raw = zstandard.ZstdDecompressor().decompress(stored, max_output_size=chunk.raw_bytes)
        check(len(raw) == chunk.raw_bytes, "a payload's length")
        return raw

    def _decode(self) -> Iterator[tuple[int, Item]]:
        decoders: dict[int, Callable[[Chunk, Bytes], Iterator[tuple[int, Item]]]] = {
            DEFINITIONS: self._definitions,
            EVENTS: self._events,
            SLICES: self._slices,
        }
        for chunk in self.chunks:
            if chunk.kind in decoders:
                payload = Bytes(self._payload(chunk))
                yield from decoders[chunk.kind](chunk, payload)
                payload.end()

    def _definitions(self, chunk: Chunk, payload: Bytes) -> Iterator[tuple[int, Item]]:
        next_pc = next_index = 0
        known = len(self.instructions)
        for number in range(chunk.first, chunk.first + chunk.count):
            new = payload.varint(2**16)
            for _ in range(new):
                tag = payload.u8()
                pc = (next_pc + payload.signed()) & WRAP
                length, kind = tag & 15, tag >> 4
                next_pc = (pc + length) & WRAP
                check(kind < 3 and (kind != 1 or length > 0), "operands")
                operands = payload.take([0, length, 9][kind])
                check(kind != 2 or operands[8] < len(BRANCHES), "a branch")
                self.instructions.append(Instruction(pc, length, kind, operands))
            instructions: list[Instruction] = []
            for _ in range(payload.varint(2**16)):
                start = next_index + payload.signed()
                next_index = start + payload.varint(2**16 - len(instructions))
                check(start >= 0 and next_index <= len(self.instructions), "undefined instructions")
                instructions += self.instructions[start:next_index]
            check(len(instructions) >= max(new, 1), "a block's instructions")
            accesses: list[Access] = []
            owner = 0
            for _ in range(payload.varint(2**16)):
                step = payload.varint()
                owner += step >> 1
                accesses.append(Access(owner, payload.varint(2**14), bool(step & 1)))
                check(owner < len(instructions) and accesses[-1].size > 0, "an access")
            definition = Definition(number, instructions, accesses)
            self.definitions.append(definition)
            yield 0, definition
        defined = self.instructions[known:]
        check(len(defined) == chunk.a and sum(i.length for i in defined) == chunk.b, "code's totals")

    def _events(self, chunk: Chunk, payload: Bytes) -> Iterator[tuple[int, Item]]:
        epoch = chunk.first_epoch
        for _ in range(chunk.count):
            epoch += payload.varint()
            yield epoch, _event(payload)
        check(epoch == chunk.last_epoch, "the last event's epoch")

    def _slices(self, chunk: Chunk, payload: Bytes) -> Iterator[tuple[int, Item]]:
        runs = []
        epoch = chunk.first_epoch
        for _ in range(payload.varint(2**20)):
            thread = payload.varint(NONE)
            epoch += payload.varint()
            runs.append((thread, epoch, payload.varint(2**15), payload.varint(2**17 + 2**16)))
        check(runs[0][1] == chunk.first_epoch and epoch == chunk.last_epoch, "the runs' epochs")
        threads = {thread for thread, *_ in runs}
        check(chunk.thread == (threads.pop() if len(threads) == 1 else SEVERAL_THREADS), "threads")
        lengths = [payload.varint() for _ in range(4)]
        columns = Columns(*(Bytes(payload.take(length)) for length in lengths))
        predictor = Predictor()
        totals = Counter[str]()
        for thread, epoch, blocks, addresses in runs:
            run = Slice(thread, epoch, [], [])
            for _ in range(blocks):
                self._execute(run, predictor, columns)
                definition = self.definitions[run.blocks[-1]]
                totals["instructions"] += len(definition.instructions)
                totals.update("ba"[access.store] for access in definition.accesses)
            check(len(run.addresses) == addresses, "a run's addresses")
            yield epoch, run
        for column in columns:
            column.end()
        check((totals["instructions"], totals["b"], totals["a"]) == (chunk.count, chunk.a, chunk.b), "totals")

    def _execute(self, run: Slice, predictor: Predictor, columns: Columns) -> None:
        token = columns.tokens.u8()
        pair = predictor.pair()
        if token & 1:
            code = columns.ids.varint()
            block = code - 1 if code else predictor.successors.get(predictor.previous, NONE)
            predictor.pairs[pair] = block
        else:
            block = predictor.pairs.get(pair, NONE)
        check(block < len(self.definitions), "an undefined block")
        predictor.successors[predictor.previous] = block
        predictor.before_previous, predictor.previous = predictor.previous, block
        run.blocks.append(block)
        count = len(self.definitions[block].accesses)
        slots = predictor.slots.setdefault(block, [[0, 0, 0, 0] for _ in range(count)])
        bit = 1
        for slot in slots:
            if bit == 8:
                token, bit = columns.tokens.u8(), 0
            last, stride, offset, follow = slot
            before = predictor.address
            predicted = [last + stride, before + offset]
            address = predicted[follow]
            if token >> bit & 1:
                code = columns.codes.u8(19)
                self.codes[code] += 1
                if code == 0:
                    slot[3] ^= 1
                    address = predicted[1 - follow]
                else:
                    base, width = (last, code - 1) if code < 10 else (before, code - 10)
                    address = base + unzigzag(int.from_bytes(columns.values.take(width), "little"))
            address &= WRAP
            slot[:3] = address, address - last, address - before
            predictor.address = address
            run.addresses.append(address)
            bit += 1
        check(token >> bit == 0, "a token's spare bits")

    def _totals(self) -> dict[str, Any]:
        touched, noted = Touched(), Touched()
        events = Counter[str]()
        gaps = 0
        for _, item in self.stored:
            match item:
                case Definition():
                    for instruction in item.instructions:
                        touched.touch(instruction.pc, max(instruction.length, 1))
                case Slice():
                    touched.threads.add(item.thread)
                    addresses = iter(item.addresses)
                    for block in item.blocks:
                        for access in self.definitions[block].accesses:
                            touched.touch(next(addresses), access.size)
                case _:
                    events[item["event"]] += 1
                    gaps += item["instructions"] if item["event"] == "gap" else 0
                    touched.event(item)
                    noted.event(item)
        for chunk in self.chunks:
            if chunk.kind == TOUCHED:
                noted.merge(Bytes(self._payload(chunk)))
        complete = (touched.pages, touched.threads) == (noted.pages, noted.threads)
        check(complete or self.ended_early, "the touched pages")

        def total(kind: int, name: str) -> int:
            return sum(getattr(chunk, name) for chunk in self.chunks if chunk.kind == kind)

        return {
            "instructions": total(SLICES, "count"),
            "loads": total(SLICES, "a"),
            "stores": total(SLICES, "b"),
            "threads": len(noted.threads),
            "blocks": total(DEFINITIONS, "count"),
            "code_bytes": total(DEFINITIONS, "b"),
            "footprint_bytes": 4096 * len(noted.pages),
            "touched": noted.ranges(),
            "events": dict(events),
            "hash": self._partial_hash() if self.ended_early else self._hash(),
        } | ({"gap_instructions": min(gaps, WRAP)} if gaps else {})

    def _partial_hash(self) -> str:
        return "partial-" + xxhash.xxh3_128_hexdigest(b"".join(chunk.header for chunk in self.chunks))

    def _hash(self) -> str:
        parts = [xxhash.xxh3_128() for _ in range(5)]
        definitions, events, runs, blocks, addresses = parts
        executed = 0
        running = None
        for epoch, item in self.stored:
            match item:
                case Definition():
                    definitions.update(_canonical(item))
                case Slice():
                    if running != (item.thread, epoch):
                        running = (item.thread, epoch)
                        runs.update(struct.pack("<IQQ", item.thread, epoch, executed))
                    executed += len(item.blocks)
                    blocks.update(struct.pack(f"<{len(item.blocks)}I", *item.blocks))
                    addresses.update(struct.pack(f"<{len(item.addresses)}Q", *item.addresses))
                case _:
                    events.update(struct.pack("<Q", epoch) + _encoded(item))
        return xxhash.xxh3_128_hexdigest(b"".join(part.digest()[::-1] for part in parts))


def _canonical(definition: Definition) -> bytes:
    out = varint(len(definition.instructions))
    for pc, length, kind, operands in definition.instructions:
        out += struct.pack("<QBB", pc, length, kind) + (operands.ljust(15, b"\0") if kind == 1 else operands)
    out += varint(len(definition.accesses))
    return out + b"".join(struct.pack("<HHB", *access) for access in definition.accesses)


def _rights(bits: int) -> dict[str, bool]:
    return {"read": bool(bits & 1), "write": bool(bits & 2), "execute": bool(bits & 4)}


def _level(level: int) -> int:
    check(1 <= level <= 5, "an entry of a level that no table has")
    return level


#: Kind of event: name, and its fields with their types.
EVENTS_BY_KIND: dict[int, tuple[str, list[tuple[str, str]]]] = {
    1: ("map", [("address", "varint"), ("length", "varint"), ("protection", "rights"), ("backing", "backing"),
                ("shared", "flag")]),
    2: ("unmap", [("address", "varint"), ("length", "varint")]),
    3: ("remap", [("from", "varint"), ("from_length", "varint"), ("to", "varint"), ("to_length", "varint")]),
    4: ("protect", [("address", "varint"), ("length", "varint"), ("protection", "rights")]),
    5: ("advise", [("address", "varint"), ("length", "varint"), ("advice", "advice")]),
    6: ("break", [("from", "varint"), ("to", "varint")]),
    7: ("populate", [("address", "varint"), ("length", "varint"), ("store", "flag")]),
    8: ("thread_start", [("thread", "varint")]),
    9: ("thread_exit", [("thread", "varint")]),
    10: ("marker", [("name", "text")]),
    11: ("root", [("cr3", "varint"), ("cr4", "varint")]),
    12: ("entry", [("address", "varint"), ("value", "varint"), ("level", "level")]),
    13: ("gap", [("instructions", "varint")]),
    14: ("name", [("address", "varint"), ("length", "varint"), ("offset", "varint"), ("name", "text"),
                  ("build_id", "text")]),
    15: ("wake", [("thread", "varint"), ("number", "varint")]),
    16: ("woken", [("thread", "varint"), ("number", "varint")]),
}  # fmt: skip


def _event(payload: Bytes) -> dict[str, Any]:
    readers: dict[str, Callable[[], Any]] = {
        "varint": payload.varint,
        "rights": lambda: _rights(payload.u8(8)),
        "backing": lambda: BACKINGS[payload.u8(4)],
        "advice": lambda: ADVICES[payload.u8(4)],
        "flag": lambda: bool(payload.u8(2)),
        "text": lambda: payload.take(payload.varint(2**16)).decode(),
        "level": lambda: _level(payload.u8()),
    }
    kind = payload.u8()
    check(kind in EVENTS_BY_KIND, "an event of an unknown kind")
    name, fields = EVENTS_BY_KIND[kind]
    return {"event": name} | {key: readers[reader]() for key, reader in fields}


def _encoded(event: dict[str, Any]) -> bytes:
    """An event's kind and fields as they stand in a payload."""
    writers: dict[str, Callable[[Any], bytes]] = {
        "varint": varint,
        "rights": lambda rights: bytes([rights["read"] | rights["write"] << 1 | rights["execute"] << 2]),
        "backing": lambda backing: bytes([BACKINGS.index(backing)]),
        "advice": lambda advice: bytes([ADVICES.index(advice)]),
        "flag": lambda flag: bytes([flag]),
        "text": lambda text: varint(len(text.encode())) + text.encode(),
        "level": lambda level: bytes([level]),
    }
    kind, (_, fields) = next((k, e) for k, e in EVENTS_BY_KIND.items() if e[0] == event["event"])
    return bytes([kind]) + b"".join(writers[writer](event[key]) for key, writer in fields)
