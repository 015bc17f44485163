"""Runs on Slurm: jobs that take one request after another from a directory that they share with the sweep.

Each job waits in Slurm's queue once, and then works until there is nothing more to do. submitit submits the
jobs, as an array; see docs/adr/0016-slurm.md. The directory has

- `todo/NAME`: a request; whoever moves it away does it,
- `taken/NAME.JOB`: a request that this job does,
- `done/NAME`: its answer, which appears whole.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.lab import engines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: How often the directory is looked at.
_LOOK_SECONDS = 0.3
#: How often Slurm is asked which jobs there are.
_ASK_SECONDS = 5.0
#: A job without work ends after so long.
_IDLE_SECONDS = 60.0
#: Minutes of a job, where the user says nothing: it is stopped after that, and another one goes on.
_MINUTES = 60
#: So often a request is done anew whose job was killed.
_AGAIN = 1


def options(text: str) -> dict[str, str]:
    """Options for `sbatch`: a partition, or `KEY=VALUE` with commas between them, `KEY=` for one without.

    Raises:
        UsageError: If it is neither.
    """
    if text and "=" not in text and "," not in text:
        return {"partition": text}
    found = {}
    for part in text.split(","):
        key, equals, value = part.strip().lstrip("-").partition("=")
        if not equals or not key.replace("-", "").replace("_", "").isalnum() or not value.isprintable():
            raise UsageError(
                f"{part!r} is not an option of sbatch",
                where="--slurm",
                remedy="a partition, as `long`, or options of sbatch, as `partition=long,mem=8G`",
            )
        found[key.replace("_", "-")] = value
    return found


def serve(place: str) -> None:
    """What a job does: requests, until there are none for a while or `place` is gone."""
    array, own = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ["SLURM_JOB_ID"]
    job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else own
    folder = Path(place)
    # submitit ignores it; nothing here needs time to end.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    (folder / "began" / job).touch()
    # Of a job that Slurm has put back into the queue: it was killed while it did this.
    for lost in (folder / "taken").glob(f"*.{job}"):
        lost.rename(folder / "todo" / lost.name.partition(".")[0])
    last = time.monotonic()
    while time.monotonic() - last < _IDLE_SECONDS and (folder / "todo").is_dir():
        taken = _take(folder, job)
        if taken is None:
            time.sleep(_LOOK_SECONDS)
            continue
        answer = engines.work(*json.loads(taken.read_text()))
        name = taken.name.partition(".")[0]
        _write_whole(folder / "done" / name, json.dumps(asdict(answer)))
        taken.unlink(missing_ok=True)
        last = time.monotonic()


def _take(folder: Path, job: str) -> Path | None:
    """A request that no other job has, now this one's."""
    for path in sorted((folder / "todo").glob("*")):
        taken = folder / "taken" / f"{path.name}.{job}"
        try:
            path.rename(taken)
        except FileNotFoundError:  # another one was faster
            continue
        return taken
    return None


def _write_whole(path: Path, text: str) -> None:
    """Writes a file that appears whole."""
    part = path.parent.parent / f"{path.name}.part"
    part.write_text(text)
    part.rename(path)


class Jobs(Executor):
    """Does calls of `engines.work` in jobs of Slurm. A call whose jobs were killed has an exception.

    Args:
        place: A new directory that the jobs see, too.
        jobs: How many there are at a time.
        asked: Options of `sbatch`.
    """

    def __init__(self, place: Path, jobs: int, asked: dict[str, str]) -> None:
        import submitit  # noqa: PLC0415

        self._place, self._jobs = place, jobs
        for name in ("todo", "taken", "done", "began"):
            (place / name).mkdir(parents=True)
        self._name = f"flatwalk-{uuid.uuid4().hex[:12]}"
        self._slurm = submitit.SlurmExecutor(place / "jobs")
        self._slurm.update_parameters(
            job_name=self._name,
            time=_MINUTES,
            use_srun=False,
            array_parallelism=jobs,
            # What a job has taken is given back at once if it ends; if it is queued again, only when it runs.
            additional_parameters=({} if "requeue" in asked else {"no-requeue": True})
            | {key: value or True for key, value in asked.items()},
        )
        self._lock = threading.Lock()
        self._waiting: dict[str, Future[engines.Done]] = {}
        self._lost: dict[str, int] = {}
        #: Jobs that were submitted, by whether they were seen to have ended.
        self._alive: set[str] = set()
        self._ended: set[str] = set()
        #: What makes it impossible to go on.
        self._broken: FlatwalkError | None = None
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        """Does `engines.work(*args)`.

        Raises:
            FlatwalkError: If no job could be submitted, or jobs ended at once.
        """
        assert fn is engines.work
        assert not kwargs
        with self._lock:
            if self._broken is not None:
                raise self._broken
            name = f"{len(self._lost):08}"
            self._lost[name] = 0
            future: Future[engines.Done] = Future()
            self._waiting[name] = future
            _write_whole(self._place / "todo" / name, json.dumps(args))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Cancels all jobs."""
        if not self._closed.is_set():
            self._closed.set()
            self._watcher.join()
            subprocess.run(["scancel", "--name", self._name], check=False, capture_output=True)

    def _more(self) -> None:
        """Submits jobs if there are fewer than requests, and than there may be.

        Raises:
            FlatwalkError: If Slurm refuses them.
        """
        import submitit  # noqa: PLC0415

        count = min(self._jobs, len(self._waiting)) - len(self._alive)
        if count <= 0:
            return
        try:
            jobs = self._slurm.map_array(serve, [str(self._place)] * count)
        except (
            submitit.core.utils.FailedJobError,
            submitit.core.utils.FailedSubmissionError,
            OSError,
        ) as error:
            words = [line.strip() for line in str(error).splitlines() if line.strip()]
            why = next(
                (line for line in words if "error:" in line), words[-1] if words else "no reason given"
            )
            raise UsageError(
                f"Slurm does not take the jobs: {why}", where="--slurm", remedy="`sinfo` shows the partitions"
            ) from error
        self._alive.update(job.job_id for job in jobs)

    def _watch(self) -> None:
        asked = time.monotonic()
        while not self._closed.wait(_LOOK_SECONDS):
            try:
                with self._lock:
                    self._collect()
                    self._more()
                    before = set(self._alive)
                if time.monotonic() - asked < _ASK_SECONDS:
                    continue
                listed = self._listed()
                asked = time.monotonic()
                with self._lock:
                    self._collect()
                    if listed is not None:
                        self._bury(before - listed)
            except OSError as error:
                place = str(self._place)
                self._give_up(FlatwalkError(f"{error}", where=place, remedy="check the file system"))
            except FlatwalkError as error:
                self._give_up(error)
            except Exception as error:  # noqa: BLE001 - whoever waits for a call would wait for ever
                words = f"the jobs cannot be followed any more: {type(error).__name__}: {error}"
                remedy = "the same command goes on from what is stored"
                self._give_up(FlatwalkError(words, where=str(self._place), remedy=remedy))

    def _give_up(self, error: FlatwalkError) -> None:
        """Nothing can be done any more."""
        with self._lock:
            self._broken = error
            for future in self._waiting.values():
                future.set_exception(error)
            self._waiting.clear()

    def _collect(self) -> None:
        """Hands on what is done."""
        for path in (self._place / "done").iterdir():
            if path.name in self._waiting:
                answer = engines.Done(**json.loads(path.read_text()))
                self._waiting.pop(path.name).set_result(answer)
            path.unlink()

    def _listed(self) -> set[str] | None:
        """The jobs that Slurm has, waiting or running; None if it does not answer."""
        command = ["squeue", "--noheader", "--array", "--format=%i", f"--name={self._name}"]
        answer = subprocess.run(command, check=False, capture_output=True, text=True)
        return set(answer.stdout.split()) if answer.returncode == 0 else None

    def _bury(self, ended: set[str]) -> None:
        """What jobs that have ended were doing is done anew, or has failed.

        Raises:
            FlatwalkError: If they end at once.
        """
        self._alive -= ended
        self._ended |= ended
        for path in (self._place / "taken").iterdir():
            name, _, job = path.name.partition(".")
            if job not in self._ended or name not in self._waiting:
                continue
            self._lost[name] += 1
            if self._lost[name] <= _AGAIN:
                path.rename(self._place / "todo" / name)
            else:
                path.unlink(missing_ok=True)
                what = (
                    f"its job was killed {self._lost[name]} times; the last one said: {self._last_words(job)}"
                )
                self._waiting.pop(name).set_exception(RuntimeError(what))
        idle = sorted(job for job in ended if not (self._place / "began" / job).exists())
        if idle:
            raise FlatwalkError(
                f"Slurm's job {idle[0]} ended before it did anything; it said: {self._last_words(idle[0])}",
                where=str(self._place),
                remedy="the nodes must see this directory, and this flatwalk under the same path",
            )

    def _last_words(self, job: str) -> str:
        """The end of what it wrote to standard error."""
        logs = sorted((self._place / "jobs").glob(f"{job}*_log.err"))
        lines = logs[0].read_text(errors="replace").split("\n") if logs else []
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "it wrote nothing")


@contextmanager
def jobs(text: str, count: int, results: Path) -> Iterator[Callable[[], Executor]]:
    """Makes executors of `count` jobs of Slurm with a directory in that of the results; they end with this.

    Raises:
        UsageError: If submitit or Slurm is not installed, or an option is none.
    """
    asked = options(text)
    try:
        import submitit  # noqa: F401, PLC0415
    except ImportError as error:
        raise UsageError(
            "submitit is not installed", where="--slurm", remedy="pip install submitit"
        ) from error
    if shutil.which("sbatch") is None:
        raise UsageError(
            "there is no `sbatch` here",
            where="--slurm",
            remedy="call this on a machine from which jobs are submitted",
        )
    place = (results / "slurm" / uuid.uuid4().hex).resolve()
    made: list[Jobs] = []

    def make() -> Executor:
        made.append(Jobs(place / str(len(made)), count, asked))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.shutdown()
        shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):  # another sweep's is there
            place.parent.rmdir()
