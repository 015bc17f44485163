# The engine. Requests and answers are JSON; docs/guide.md describes them.
from collections.abc import Callable

from typing_extensions import Buffer

__all__ = [
    "EngineError",
    "check",
    "describe",
    "schema",
    "simulate",
    "simulate_mix",
    "trace_export",
    "trace_import",
    "trace_info",
    "version",
    "walk",
    "workloads",
]

class EngineError(Exception): ...

def version() -> str: ...
def simulate(
    request: str,
    progress: Callable[[int, int | None], None] | None = None,
    addresses: Buffer | None = None,
) -> str: ...
def simulate_mix(request: str, progress: Callable[[int, int | None], None] | None = None) -> str: ...
def trace_info(
    path: str, verify: bool = False, progress: Callable[[int, int | None], None] | None = None
) -> str: ...
def trace_import(
    source: str,
    target: str,
    format: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> str: ...
def trace_export(
    source: str,
    target: str,
    format: str = "champsim",
    progress: Callable[[int, int | None], None] | None = None,
) -> str: ...
def walk(request: str) -> str: ...
def workloads() -> str: ...
def check(kind: str, value: str) -> str: ...
def schema(kind: str) -> str: ...
def describe(kind: str) -> str: ...
