"""How long the kernel's page-fault handler takes: a histogram by bpftrace, if it is installed.

Measured in a separate run, because probes take time themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from flatwalk.host import machine, native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flatwalk.host.benches import Bench, Variant
    from flatwalk.host.measure import Plan
    from flatwalk.host.results import Result

FUNCTION = "handle_mm_fault"
_SCRIPT = f"""
kprobe:{FUNCTION} /comm == "{native.PROGRAM}"/ {{ @start[tid] = nsecs; }}
kretprobe:{FUNCTION} /@start[tid]/ {{ @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }}
END {{ clear(@start); }}
"""
_READY_SECONDS = 30


class _UnavailableError(Exception):
    """Why there is no histogram."""


def _program() -> str:
    found = os.environ.get("FLATWALK_BPFTRACE") or shutil.which("bpftrace")
    if not found:
        raise _UnavailableError("bpftrace is not installed (apt install bpftrace)")
    return found


@contextlib.contextmanager
def _tracing() -> Iterator[subprocess.Popen[str]]:
    """Bpftrace with its probes in place; ended and reaped whatever happens."""
    try:
        tracer = subprocess.Popen(
            [_program(), "-f", "json", "-e", _SCRIPT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise _UnavailableError(f"bpftrace does not start: {error.strerror}") from error
    with tracer:
        try:
            _await_probes(tracer)
            yield tracer
        finally:
            if tracer.poll() is None:
                tracer.kill()


def _await_probes(tracer: subprocess.Popen[str]) -> None:
    """Waits until bpftrace says that its probes are in place."""
    assert tracer.stdout is not None
    deadline = time.monotonic() + _READY_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(tracer.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            line = tracer.stdout.readline()
            if "attached_probes" in line:
                return
            if not line:  # it ended: usually for lack of permission
                assert tracer.stderr is not None
                raise _UnavailableError(_complaint(tracer.stderr.read()))
    raise _UnavailableError(f"bpftrace did not place its probes in {_READY_SECONDS} s")


def _complaint(said: str) -> str:
    """Why bpftrace failed: its last error, or else its last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "rror:" in line]
    return f"bpftrace says: {(errors or lines or ['nothing'])[-1]}"


def _histogram(output: str) -> list[dict[str, int]]:
    """Buckets of the histogram that bpftrace prints when it ends."""
    for line in output.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if said.get("type") == "hist" and "@ns" in said.get("data", {}):
            return [
                {"from_ns": bucket.get("min", 0), "to_ns": bucket.get("max", 0), "count": bucket["count"]}
                for bucket in said["data"]["@ns"]
            ]
    raise _UnavailableError("bpftrace saw no page fault")


def _measure(variant: Variant, bench: Bench, plan: Plan, host: dict[str, Any]) -> list[dict[str, int]]:
    cpus = machine.choose_cpus(host, variant.threads, plan.cpus)
    request = {
        "cpus": cpus,
        "node": machine.node_of(host, cpus[0]),
        "bench": {**variant.parameters, "seed": plan.seed},
    }
    with _tracing() as tracer:
        native.measure(native.find(), bench.name, request)
        tracer.send_signal(signal.SIGINT)
        try:
            output, complaints = tracer.communicate(timeout=_READY_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise _UnavailableError(f"bpftrace did not end in {_READY_SECONDS} s") from error
    if tracer.returncode > 0:
        raise _UnavailableError(_complaint(complaints))
    return _histogram(output)


def add(result: Result, bench: Bench, plan: Plan, host: dict[str, Any]) -> None:
    """Adds a histogram for every variant that faults; notes why where there is none."""
    for variant in bench.variants:
        if variant.setting is not None or variant.parameters.get("unmap") is False:
            continue
        try:
            result["histograms"][variant.name] = _measure(variant, bench, plan, host)
        except _UnavailableError as why:
            result["notes"].append(f"No histogram of {FUNCTION}: {why}.")
            return


def lines(name: str, buckets: list[dict[str, int]]) -> list[str]:
    """A histogram as text."""
    total = sum(bucket["count"] for bucket in buckets)
    most = max((bucket["count"] for bucket in buckets), default=0)
    if not total:
        return []
    return [
        f"{FUNCTION} in {name}, {total:,} calls:",
        *(
            f"  {bucket['from_ns']:>9,} … {bucket['to_ns']:>9,} ns  {bucket['count'] / total:6.1%}  "
            f"{'█' * round(40 * bucket['count'] / most)}".rstrip()
            for bucket in buckets
            if bucket["count"]
        ),
    ]
