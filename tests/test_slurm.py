"""Sweeps on Slurm: a real one where its packages are installed, and commands that act like it."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.lab import engines, slurm
from tests.running import PATIENCE_SECONDS, wait_until
from tests.test_lab import begin, big, figures, stored_keys, wait_for, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Result

# One node without control groups and accounts. MinJobAge and KillWait: nothing here is worth waiting for.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
MinJobAge=2
KillWait=1
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=node1 Default=YES State=UP
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def squeue(*options: str) -> list[str]:
    answer = subprocess.run(
        ["squeue", "--noheader", "--array", *options], capture_output=True, text=True, check=True
    )
    return answer.stdout.split()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Slurm of one node with two processors."""
    # Its daemons lie where only root's PATH leads.
    controller, daemon = (
        shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("slurmctld", "slurmd")
    )
    if controller is None or daemon is None:
        pytest.skip("Slurm is not installed: apt-get install slurm-wlm")
    place = tmp_path / "cluster"
    for name in ("state", "spool"):
        (place / name).mkdir(parents=True)
    about = {
        "host": socket.gethostname().partition(".")[0],
        "user": getpass.getuser(),
        "ports": free_ports(2),
    }
    file = place / "slurm.conf"
    file.write_text(CONFIGURATION.format(place=place, **about))
    (place / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
    monkeypatch.setenv("SLURM_CONF", str(file))
    log = (place / "log").open("w")
    commands = ([controller, "-D", "-f", str(file)], [daemon, "-D", "-N", "node1", "-f", str(file)])
    started = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
    try:

        def is_idle() -> bool:
            assert all(one.poll() is None for one in started), (place / "log").read_text()
            asked = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, check=False)
            return asked.stdout.strip() == "idle"

        wait_until(is_idle)
        yield
    finally:
        for one in reversed(started):
            one.terminate()
            one.wait()
        log.close()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_jobs_find_the_same_though_one_is_killed(tmp_path: Path) -> None:
    file, place = big(tmp_path, "20M"), tmp_path / "r"
    (place / "runs").mkdir(parents=True)
    process = begin(file, place, "--slurm", "main", "--jobs", "2")
    wait_for(process, place, 8)
    assert process.poll() is None, process.communicate()
    before = squeue("--format=%i", "--states=RUNNING")
    assert before
    assert all(re.fullmatch(r"\d+_[01]", job) for job in before), "an array, which waits once"
    subprocess.run(["scancel", before[0]], check=True)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    alone = begin(file, tmp_path / "alone", "-j", "1")
    alone.communicate()
    assert figures(place) == figures(tmp_path / "alone")
    assert len(stored_keys(place)) == len(set(stored_keys(place))) == 64
    assert sorted(path.name for path in place.iterdir()) == ["lock", "runs"], "nothing of the jobs is left"


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_jobs(tmp_path: Path, number: signal.Signals) -> None:
    file, place = big(tmp_path, "50M"), tmp_path / "r"
    (place / "runs").mkdir(parents=True)
    process = begin(file, place, "--slurm", "time=10,mem=0", "--jobs", "3")
    wait_for(process, place, 1)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + number
    assert b"Traceback" not in err

    def none_is_left() -> bool:
        left = squeue("--format=%T")
        assert set(left) <= {"COMPLETING"}, "each of them, the one that waited too"
        return not left

    wait_until(none_is_left)


@pytest.mark.usefixtures("cluster")
def test_what_slurm_refuses_is_named(tmp_path: Path, flatwalk: Callable[..., Result]) -> None:
    file = write(tmp_path / "s.toml")
    done = flatwalk("sweep", file, "--results", tmp_path / "r", "--slurm", "nowhere")
    assert done.code == 2
    assert "Slurm does not take the jobs" in done.err
    assert "partition" in done.err
    assert "Traceback" not in done.err


# --- without a Slurm


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("long", {"partition": "long"}),
        ("partition=long,mem=8G", {"partition": "long", "mem": "8G"}),
        ("--account=a=b, cpus_per_task=2", {"account": "a=b", "cpus-per-task": "2"}),
    ],
)
def test_options(text: str, found: dict[str, str]) -> None:
    assert slurm.options(text) == found


@pytest.mark.parametrize("text", ["", "long,mem=8G", "=1", "a b=1", "mem=8G,", "mem=1\n#SBATCH --x"])
def test_what_is_no_option_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an option of sbatch"):
        slurm.options(text)


def commands(place: Path, monkeypatch: pytest.MonkeyPatch, sbatch: str) -> None:
    """Puts commands like Slurm's before all others.

    `sbatch` runs this shell code: job number $job, whose directory is $folder. No job is left afterwards.
    """
    counted = f"job=$(($(cat {place}/count 2>/dev/null || echo 0) + 1)); echo $job > {place}/count\n"
    folder = 'folder=$(dirname "$(dirname "$(readlink -f "$1")")")\n'
    texts = {
        "sbatch": f'{counted}{folder}{sbatch}\necho "Submitted batch job $job"\n',
        "squeue": "",
        "scancel": "",
        "srun": "",
    }
    for name, text in texts.items():
        (place / name).write_text(f"#!/bin/sh\n{text}")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "_ASK_SECONDS", 0.05)
    monkeypatch.setattr(slurm, "_LOOK_SECONDS", 0.01)


def asked(executor: Any) -> Future[Any]:
    future: Future[Any] = executor.submit(engines.work, "{}", "digest")
    return future


def test_a_request_whose_jobs_are_killed_fails_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = 'touch "$folder/began/$job"\n'
    killed = 'mv "$folder/todo/00000000" "$folder/taken/00000000.$job"\n'
    words = 'echo "out of memory" > "$folder/jobs/${job}_0_log.err"'
    commands(tmp_path, monkeypatch, begun + killed + words)
    with slurm.jobs("main", 1, tmp_path / "r") as make:
        future = asked(make())
        wait([future], timeout=PATIENCE_SECONDS)
        assert "killed 2 times; the last one said: out of memory" in str(future.exception())
    assert (tmp_path / "count").read_text() == "2\n"
    assert not (tmp_path / "r" / "slurm").exists()


def test_jobs_that_end_at_once_end_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands(tmp_path, monkeypatch, 'echo "No module named flatwalk" > "$folder/jobs/${job}_0_log.err"')
    with slurm.jobs("main", 1, tmp_path / "r") as make:
        executor = make()
        future = asked(executor)
        wait([future], timeout=PATIENCE_SECONDS)
        assert isinstance(future.exception(), FlatwalkError)
        with pytest.raises(
            FlatwalkError, match="ended before it did anything; it said: No module named flatwalk"
        ):
            asked(executor)


def test_a_job_answers_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = "import sys; from flatwalk.lab import slurm; slurm._IDLE_SECONDS = 0.1; slurm.serve(sys.argv[1])"
    commands(tmp_path, monkeypatch, f'SLURM_JOB_ID=$job {sys.executable} -I -c "{serve}" "$folder"')
    # The request is written before a job is submitted, so that this one finds it.
    with slurm.jobs("main", 1, tmp_path / "r") as make:
        future = asked(make())
        wait([future], timeout=PATIENCE_SECONDS)
        assert "another engine" in future.result().error
        assert (tmp_path / "count").read_text() == "1\n"


def test_what_nobody_foresaw_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands(tmp_path, monkeypatch, 'touch "$folder/began/$job"\necho no > "$folder/done/00000000"')
    with slurm.jobs("main", 1, tmp_path / "r") as make:
        error = asked(make()).exception(timeout=PATIENCE_SECONDS)
    assert isinstance(error, FlatwalkError)
    assert "JSONDecodeError" in str(error)


def test_jobs_are_not_queued_again_unless_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(tmp_path, monkeypatch, f'cp "$1" {tmp_path}/script')
    for options, has, has_not in (
        ("main", "--no-requeue\n", "--requeue"),
        ("partition=main,requeue=", "--requeue\n", "--no-requeue"),
    ):
        with slurm.jobs(options, 500, tmp_path / "r") as make:
            executor = make()
            assert executor._slurm.parameters["array_parallelism"] == 500  # type: ignore[attr-defined]  # noqa: SLF001
            asked(executor).exception(timeout=PATIENCE_SECONDS)
        script = (tmp_path / "script").read_text()
        assert f"#SBATCH {has}" in script
        assert f"#SBATCH {has_not}" not in script


def test_a_job_that_is_queued_again_does_what_it_had_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = "import sys; from flatwalk.lab import slurm; slurm._IDLE_SECONDS = 0.1; slurm.serve(sys.argv[1])"
    killed = 'mv "$folder/todo/00000000" "$folder/taken/00000000.$job"\n'
    commands(tmp_path, monkeypatch, f'{killed}SLURM_JOB_ID=$job {sys.executable} -I -c "{serve}" "$folder"')
    monkeypatch.setattr(slurm, "_ASK_SECONDS", 1000.0)
    with slurm.jobs("main", 1, tmp_path / "r") as make:
        assert "another engine" in asked(make()).result(timeout=PATIENCE_SECONDS).error


def test_one_place_is_enough(tmp_path: Path, flatwalk: Callable[..., Result]) -> None:
    done = flatwalk("sweep", write(tmp_path / "s.toml"), "--slurm", "a", "--cluster", "b")
    assert done.code == 2
    assert "--cluster and --slurm" in done.err
