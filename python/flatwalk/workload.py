"""Built-in workloads by name and size."""

from __future__ import annotations

from typing import Any

from flatwalk import engine, units
from flatwalk.errors import UsageError
from flatwalk.programs import catalogue as programs

DEFAULT_WORKLOAD = "gups:1GiB"


def parse_workload(text: str, where: str = "--workload") -> dict[str, Any]:
    """Reads `NAME` or `NAME:SIZE` against the engine's list of workloads; `where` names the option.

    Raises:
        UsageError: If there is no such workload, or its size is not valid.
    """
    name, _, size = text.partition(":")
    known = {workload["name"]: workload for workload in engine.workloads()}
    if name not in known and name in programs.names():
        raise UsageError(
            f"{name!r} is a program of Debian, which is recorded first",
            where="--workload",
            remedy=f"flatwalk record --workload {text} -o {name}.fwt && flatwalk compare --trace {name}.fwt",
        )
    if name not in known:
        raise UsageError(
            f"there is no workload {name!r}",
            where=where,
            remedy=f"one of {', '.join(known)}; `flatwalk list workloads` describes them",
        )
    size_bytes = units.parse_size(size, where) if size else known[name]["default_size_bytes"]
    return {"name": name, "size_bytes": size_bytes}
