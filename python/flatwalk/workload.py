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

#: The parameter that a number behind the size sets, and what it is without.
NUMBER, USUAL_NUMBER = "instructions_per_access", 7


def parse_workload(text: str, where: str = "--workload") -> dict[str, Any]:
    """Reads `NAME`, `NAME:SIZE` or `NAME:SIZE:VARIANT` against the engine's list of workloads.

    Args:
        text: What is read; the variant is one of `VARIANTS` that the workload has, or a number (`NUMBER`).
        where: The option, for errors.

    Raises:
        UsageError: If there is no such workload, or its size or its variant is not valid.
    """
    name, _, rest = text.partition(":")
    size, _, variant = rest.partition(":")
    known = {workload["name"]: workload for workload in engine.workloads()}
    if name not in known and name in programs.names():
        raise UsageError(
            f"{name!r} is a program of Debian, which is recorded first",
            where=where,
            remedy=f"flatwalk record --workload {text} -o {name}.fwt && flatwalk compare --trace {name}.fwt",
        )
    if name not in known:
        raise UsageError(
            f"there is no workload {name!r}",
            where=where,
            remedy=f"one of {', '.join(known)}; `flatwalk list workloads` describes them",
        )
    size_bytes = units.parse_size(size, where) if size else known[name]["default_size_bytes"]
    of = variants(name)
    allowed = [value for values in of.values() for value in values]
    has_number = NUMBER in _parameters(name)
    is_number = has_number and variant.isdecimal()
    words = [*allowed, *(["a number of instructions"] if has_number else [])]
    if variant and variant not in allowed and not is_number:
        raise UsageError(
            f"{name} has no variant {variant!r}",
            where=where,
            remedy=f"{' or '.join(words)}, behind the size" if words else f"leave :{variant} out",
        )
    chosen: dict[str, Any] = {key: variant if variant in values else values[0] for key, values in of.items()}
    if has_number:
        chosen[NUMBER] = int(variant) if is_number else USUAL_NUMBER
    return {"name": name, "size_bytes": size_bytes, **chosen}


def variants(name: str) -> dict[str, tuple[str, ...]]:
    """The parameters of `VARIANTS` that a workload has."""
    names = _parameters(name)
    return {parameter: values for parameter, values in VARIANTS.items() if parameter in names}


def _parameters(name: str) -> set[str]:
    of = [one["parameters"] for one in engine.workloads() if one["name"] == name]
    return {parameter["name"] for known in of for parameter in known}


def text_of(workload: dict[str, Any]) -> str:
    """What `parse_workload` reads as this workload."""
    usual = {key: values[0] for key, values in VARIANTS.items()}
    others = [workload[key] for key in usual.keys() & workload.keys() if workload[key] != usual[key]]
    others += [str(number) for number in [workload.get(NUMBER, USUAL_NUMBER)] if number != USUAL_NUMBER]
    return ":".join([workload["name"], units.short_size(workload["size_bytes"]), *others])
