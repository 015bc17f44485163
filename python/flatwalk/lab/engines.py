"""Where runs are done: processes of this machine, or the workers of a Dask cluster or of Slurm.

All of them are `concurrent.futures.Executor`s (docs/adr/0009).
"""

from __future__ import annotations

import ctypes
import functools
import json
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from flatwalk import cache, engine
from flatwalk.comparison.lengths import simulate_all
from flatwalk.definitions import settings
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.prototypes import adapters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future


@dataclass(frozen=True)
class Done:
    """What a worker answers: the engine's answer, or what is wrong, and the processor time."""

    response: dict[str, Any] | None
    error: str
    seconds: float
    #: Of the error, as `FlatwalkError` has them.
    where: str | None = None
    remedy: str | None = None

    @property
    def failure(self) -> FlatwalkError:
        """What is wrong."""
        return FlatwalkError(self.error, where=self.where, remedy=self.remedy)


class StoppedError(Exception):
    """The worker was told to stop."""


#: In a worker: not 0 once it shall stop. It has no lock, which a worker that is killed would keep for ever.
_stop: ctypes.c_byte | None = None
#: From linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def _begin(stop: ctypes.c_byte, parent: int) -> None:
    """What a process of this machine does first. Ctrl-C is its parent's to hear, which then sets `stop`."""
    global _stop  # noqa: PLW0603
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # A pool's process that waits for work does not notice that its parent was killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _stop = stop


def _look(_done: int, _total: int | None) -> None:
    """Called ten times a second while the engine works."""
    if _stop is not None and _stop.value:
        raise StoppedError


def work(request: str, digest: str, code: Sequence[str] = ()) -> Done:
    """Runs a request, in whatever process this is called.

    Args:
        request: The engine's request, as JSON.
        digest: Hash of the engine that is asked for; another one may have other results.
        code: Schemes of it that are written in Python, as `FILE.py:NAME`. The request has hashes of their
            code: a file that says something else by now is refused, though its old code may still be known.
    """
    before = os.times()
    try:
        if cache.digest(engine.path()) != digest:
            remedy = "install the same build of flatwalk on all machines"
            return Done(None, "the worker has another engine", 0.0, remedy=remedy)
        asked = json.loads(request)
        if code:
            loaded = [settings.scheme(name, "schemes") for name in code]
            if not adapters.codes(run["scheme"] for run in asked["runs"]) <= adapters.codes(loaded):
                files = " or ".join(name.rpartition("/")[2] for name in code)
                return Done(None, f"{files}, or what it imports, was changed after the sweep began", 0.0)
        response = simulate_all(asked, _look)
    except FlatwalkError as error:
        return Done(None, error.what, 0.0, error.where, error.remedy)
    after = os.times()
    return Done(cast("dict[str, Any]", response), "", after.user + after.system - before.user - before.system)


#: One thread at a time says what the main module is.
_MAIN = threading.Lock()


class _Processes(ProcessPoolExecutor):
    """Processes that do not run the user's script again, as spawned ones do: they only call the engine."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        """As usual; processes start here, and are told what the main module is.

        They are deaf to Ctrl-C from the beginning, not only once `_begin` says so.
        """
        with _MAIN:
            own = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                return super().submit(fn, *args, **kwargs)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                sys.modules["__main__"] = own


@contextmanager
def local(jobs: int) -> Iterator[Callable[[], Executor]]:
    """Makes executors of `jobs` processes of this machine; all of them stop when this ends."""
    context = multiprocessing.get_context("spawn")
    stop = context.RawValue(ctypes.c_byte, 0)
    made: list[Executor] = []

    def make() -> Executor:
        pool = _Processes(jobs, context, _begin, (stop, os.getpid()))
        made.append(pool)
        return pool

    try:
        yield make
    finally:
        stop.value = 1
        for pool in made:
            pool.shutdown(cancel_futures=True)


@contextmanager
def cluster(address: str) -> Iterator[tuple[Callable[[], Executor], int]]:
    """The workers of a running Dask cluster, and how many calls they do at a time.

    Args:
        address: Its scheduler's, as `tcp://node1:8786`.

    Raises:
        UsageError: If Dask is not installed, that is no address, or there is no scheduler.
    """
    if not address.strip():  # Dask would start a cluster of its own
        raise UsageError(
            "no scheduler is named", where="--cluster", remedy="give its address, as tcp://node1:8786"
        )
    try:
        import distributed  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "Dask is not installed", where="--cluster", remedy="pip install distributed"
        ) from error
    try:
        # A client that finds this out itself is half made, and waits for itself before it goes.
        cast("Any", distributed).comm.get_address_host_port(address)
    except ValueError as error:
        raise UsageError(
            f"{address!r} is not the address of a scheduler: {error}",
            where="--cluster",
            remedy="give it as tcp://node1:8786",
        ) from error
    try:
        client = cast("Any", distributed).Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"there is no scheduler at {address}: {error}",
            where="--cluster",
            remedy="start one: `dask scheduler`, then `dask worker ADDRESS` on each machine",
        ) from error
    try:
        # A run is the same wherever and however often it is done; Dask does those of lost workers again.
        yield functools.partial(client.get_executor, pure=False, retries=2), sum(client.ncores().values())
    finally:
        client.close()
