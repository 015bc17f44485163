"""Built-in workloads by name and size."""

from __future__ import annotations

from typing import Any

from flatwalk import engine, units
from flatwalk.errors import UsageError
from flatwalk.programs import catalogue as programs

DEFAULT_WORKLOAD = "gups:1GiB"

#: How a workload's large arrays follow each other; the first as Linux does it.
ARRAY_ORDERS = ("downwards", "upwards")


def parse_workload(text: str, where: str = "--workload") -> dict[str, Any]:
    """Reads `NAME`, `NAME:SIZE` or `NAME:SIZE:ORDER` against the engine's list of workloads.

    Args:
        text: What is read; the order is one of `ARRAY_ORDERS`.
        where: The option, for errors.

    Raises:
        UsageError: If there is no such workload, or its size or its order is not valid.
    """
    name, _, rest = text.partition(":")
    size, _, order = rest.partition(":")
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
    order = order or ARRAY_ORDERS[0]
    if order not in ARRAY_ORDERS:
        raise UsageError(
            f"arrays do not lie {order!r}",
            where=where,
            remedy=f"{' or '.join(ARRAY_ORDERS)}, behind the size",
        )
    workload = {"name": name, "size_bytes": size_bytes}
    if has_arrays(name):
        return workload | {"array_order": order}
    if order != ARRAY_ORDERS[0]:
        raise UsageError(
            f"{name} does not have several large arrays", where=where, remedy=f"leave :{order} out"
        )
    return workload


def has_arrays(name: str) -> bool:
    """Whether the order of arrays makes a difference to a workload."""
    parameters = [one["parameters"] for one in engine.workloads() if one["name"] == name]
    return any(parameter["name"] == "array_order" for known in parameters for parameter in known)


def text_of(workload: dict[str, Any]) -> str:
    """What `parse_workload` reads as this workload."""
    order = workload.get("array_order", ARRAY_ORDERS[0])
    suffix = "" if order == ARRAY_ORDERS[0] else f":{order}"
    return f"{workload['name']}:{units.short_size(workload['size_bytes'])}{suffix}"
