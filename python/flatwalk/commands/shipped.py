"""`flatwalk list …`."""

import typer

from flatwalk.commands.options import JsonFlag
from flatwalk.terminal.help import PLAIN, examples

app = typer.Typer(
    **PLAIN,
    help="Show what is shipped: schemes, machines, workloads, mixes, experiments, sweeps, keys of files.",
    epilog=examples("list schemes"),
)


@app.command("schemes", epilog=examples("list schemes --json"))
def list_schemes(*, json: JsonFlag = False) -> None:
    """Show the page-table schemes that are shipped."""
    from flatwalk import catalogue  # noqa: PLC0415

    catalogue.schemes(as_json=json)


@app.command("machines", epilog=examples("list machines"))
def list_machines(*, json: JsonFlag = False) -> None:
    """Show the machines that are shipped."""
    from flatwalk import catalogue  # noqa: PLC0415

    catalogue.machines(as_json=json)


@app.command("mixes", epilog=examples("list mixes"))
def list_mixes(*, json: JsonFlag = False) -> None:
    """Show the mixes of programs for `compare --mix` that are shipped."""
    from flatwalk import catalogue  # noqa: PLC0415

    catalogue.mixes(as_json=json)


@app.command("workloads", epilog=examples("list workloads"))
def list_workloads(*, json: JsonFlag = False) -> None:
    """Show the built-in workloads."""
    from flatwalk import catalogue  # noqa: PLC0415

    catalogue.workloads(as_json=json)


@app.command("experiments", epilog=examples("list experiments --json"))
def list_experiments(*, json: JsonFlag = False) -> None:
    """Show the experiments that `reproduce` runs, with their claims."""
    from flatwalk import catalogue  # noqa: PLC0415

    catalogue.experiments(as_json=json)


@app.command("sweeps", epilog=examples("list sweeps"))
def list_sweeps(*, json: JsonFlag = False) -> None:
    """Show the sweeps that are shipped."""
    from flatwalk import catalogue  # noqa: PLC0415

    catalogue.sweeps(as_json=json)


@app.command("keys", epilog=examples("list keys"))
def list_keys(*, json: JsonFlag = False) -> None:
    """Show every key of files and results: its meaning, unit, range and default."""
    from flatwalk import catalogue  # noqa: PLC0415

    catalogue.keys(as_json=json)
