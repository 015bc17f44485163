"""How page-table organisations change the speed of a program. `import flatwalk as fw`: see docs/python.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatwalk.api import (
        Asked,
        Comparison,
        FlatwalkError,
        Found,
        Geometry,
        Machine,
        Mechanism,
        Memory,
        Miss,
        Next,
        Organisation,
        OutOfMemory,
        Recording,
        Results,
        Scheme,
        Translation,
        UsageError,
        Walk,
        Workload,
        check_organisation,
        compare,
        machines,
        open_results,
        read,
        record,
        schemes,
        simulate,
        sweep,
        walk,
        workloads,
    )

__all__ = [
    "Asked",
    "Comparison",
    "FlatwalkError",
    "Found",
    "Geometry",
    "Machine",
    "Mechanism",
    "Memory",
    "Miss",
    "Next",
    "Organisation",
    "OutOfMemory",
    "Recording",
    "Results",
    "Scheme",
    "Translation",
    "UsageError",
    "Walk",
    "Workload",
    "check_organisation",
    "compare",
    "machines",
    "open_results",
    "read",
    "record",
    "schemes",
    "simulate",
    "sweep",
    "walk",
    "workloads",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever it is
    """The interface, loaded when it is used: the command line starts without it."""
    if name in __all__:
        return getattr(importlib.import_module("flatwalk.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
