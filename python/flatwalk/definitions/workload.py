"""Built-in workloads by name and size."""

from __future__ import annotations

from typing import Any

from flatwalk import engine, units
from flatwalk.errors import UsageError
from flatwalk.programs import catalogue as programs

DEFAULT_WORKLOAD = "gups:1GiB"

#: What may stand behind a workload's size, by the parameter that it sets; the first is what holds without.
VARIANTS = {
    #: How large arrays follow each other: as Linux does it, or as its legacy layout.
    "array_order": ("downwards", "upwards"),
    #: How often each record is asked for: as YCSB does by default, or all alike.
    "keys": ("zipfian", "uniform"),
    #: How much of a benchmark is traced: all behind the making of its data, or what it takes the time of.
    "traced": ("whole", "searches"),
}

#: The parameter that a number behind the size sets, what it is without, and what it is at most.
NUMBER, USUAL_NUMBER, MOST = "instructions_per_access", 7, 1000


def parse_workload(text: str, where: str = "--workload") -> dict[str, Any]:
    """Reads `NAME`, `NAME:SIZE` or `NAME:SIZE:VARIANT…` against the engine's list of workloads.

    Args:
        text: What is read; a variant is one of `VARIANTS` that the workload has, or a number (`NUMBER`).
            There is one of each at most, with colons between them.
        where: The option, for errors.

    Raises:
        UsageError: If there is no such workload, or its size or its variant is not valid.
    """
    name, _, rest = text.partition(":")
    size, *asked = rest.split(":")
    known = {workload["name"]: workload for workload in engine.workloads()}
    if name not in known and name in programs.names():
        raise UsageError(
            f"{name!r} is a program of Debian, which is recorded first",
            where=where,
            remedy=f"flatwalk record --workload {text} -o {name}.fwt && flatwalk compare --trace {name}.fwt",
        )
    if name not in known:
        raise UsageError(
            f"there is no workload {name!r}" if name else "no workload is named",
            where=where,
            remedy=f"one of {', '.join(known)}; `flatwalk list workloads` describes them",
        )
    parameters = {parameter["name"] for parameter in known[name]["parameters"]}
    if any(size in values for key, values in VARIANTS.items() if key in parameters):
        raise UsageError(
            f"{name}:{size} has a variant where the size stands",
            where=where,
            remedy=f"{name}::{rest}, or a size",
        )
    size_bytes = units.parse_size(size, where) if size else known[name]["default_size_bytes"]
    _check_size(known[name], size_bytes, where)
    chosen = _chosen(name, parameters, asked, where)
    return {"name": name, "size_bytes": size_bytes, **chosen}


def _check_size(workload: dict[str, Any], size_bytes: int, where: str) -> None:
    """Checks that a workload can have a size.

    Raises:
        UsageError: If it cannot.
    """
    least, greatest = workload["least_bytes"], workload["greatest_bytes"]
    is_power = size_bytes.bit_count() == 1
    if not least <= size_bytes <= greatest or (workload["power_of_two"] and not is_power):
        what = "a power of two" if workload["power_of_two"] else "a size"
        raise UsageError(
            f"{workload['name']} cannot have a size of {units.size(size_bytes)}",
            where=where,
            remedy=f"give {what} from {units.short_size(least)} to {units.short_size(greatest)}",
        )


def _chosen(name: str, parameters: set[str], asked: list[str], where: str) -> dict[str, Any]:
    """The parameters of a workload that has those of these names, by what stands behind its size."""
    of = {key: values for key, values in VARIANTS.items() if key in parameters}
    chosen: dict[str, Any] = {key: values[0] for key, values in of.items()}
    words = [" or ".join(values) for values in of.values()]
    if NUMBER in parameters:
        chosen[NUMBER] = USUAL_NUMBER
        words.append(f"the instructions of an access, {USUAL_NUMBER} to {MOST}")
    seen: set[str] = set()
    for one in asked:
        number = int(one) if one.isascii() and one.isdecimal() and len(one) <= len(str(MOST)) else None
        keys = [key for key, values in of.items() if one in values]
        if number is not None and NUMBER in chosen and USUAL_NUMBER <= number <= MOST:
            keys.append(NUMBER)
        if not keys or keys[0] in seen:
            raise UsageError(
                f"{name} has no variant {one!r}" if not keys else f"{one!r} is one variant too many",
                where=where,
                remedy=f"behind the size, one of each: {'; '.join(words)}" if words else f"leave :{one} out",
            )
        seen.add(keys[0])
        chosen[keys[0]] = one if number is None else number
    return chosen


def resized(text: str, size: str) -> str:
    """A workload's text with another size; its variants stay, unless others stand behind that."""
    name, *rest = text.split(":")
    return ":".join([name, size, *(rest[1:] if ":" not in size else [])])


def text_of(workload: dict[str, Any]) -> str:
    """What `parse_workload` reads as this workload."""
    named = [workload[key] for key, values in VARIANTS.items() if workload.get(key, values[0]) != values[0]]
    number = workload.get(NUMBER, USUAL_NUMBER)
    named += [] if number == USUAL_NUMBER else [str(number)]
    return ":".join([workload["name"], units.short_size(workload["size_bytes"]), *named])
