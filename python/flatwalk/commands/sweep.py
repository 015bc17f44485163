"""`flatwalk sweep`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from flatwalk.terminal.help import PLAIN, examples

app = typer.Typer(**PLAIN)

ResultsDirectory = Annotated[
    Path,
    Option(
        "--results", metavar="DIR", help="Directory of the results, which may be those of several sweeps."
    ),
]
RESULTS = Path("flatwalk-results")


@app.command(
    epilog=examples(
        "sweep llc-size --dry-run",
        "sweep mine.toml --results results",
        "sweep mine.toml --results results --cluster tcp://node1:8786",
        "sweep mine.toml --results results --slurm partition=long,mem=8G --jobs 32",
        "sweep mine.toml --results results --status",
    )
)
def sweep(
    file: Annotated[str, Argument(metavar="SWEEP", help="A TOML file, or a shipped sweep by name.")],
    *,
    results: ResultsDirectory = RESULTS,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check it and say how much it is; run nothing.")
    ] = False,
    status: Annotated[bool, Option("--status", help="Say how much of it is stored; run nothing.")] = False,
    cluster: Annotated[
        str | None,
        Option(metavar="ADDRESS", help="Run on a Dask cluster, by its scheduler's address, tcp://HOST:PORT."),
    ] = None,
    slurm: Annotated[
        str | None,
        Option(metavar="OPTIONS", help="Run in Slurm's jobs: a partition, or KEY=VALUE,… as of sbatch."),
    ] = None,
    jobs: Annotated[
        int,
        Option(
            "--jobs",
            "-j",
            metavar="N",
            min=0,
            help="Processes of this machine, or Slurm's jobs; 0 is one per core, or 16 jobs.",
        ),
    ] = 0,
) -> None:
    """Run every combination of a file's lists, and keep each result.

    What is stored already is not run again, so the same command goes on after an interruption, runs what
    was added to the file, and tries again what failed. --dry-run checks all of it, and says how many runs it
    has and about how long they take.

    The shortest file has name, workloads (or traces) and schemes; large_pages, seeds, machines and cores are
    lists, too, and a table [set] has lists of values for keys of the machine. `flatwalk list sweeps` shows
    those that are shipped; docs/lab.md explains the file and the results.
    """
    from flatwalk.lab import command  # noqa: PLC0415

    on = command.Place(jobs, cluster, slurm)
    command.sweep(file, results, dry_run=dry_run, status=status, on=on)
