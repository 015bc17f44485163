"""`flatwalk version`."""

import typer

from flatwalk.terminal.help import PLAIN, examples

app = typer.Typer(**PLAIN)


@app.command(epilog=examples("version"))
def version() -> None:
    """Print the version."""
    from flatwalk import engine  # noqa: PLC0415

    print(f"flatwalk {engine.version()}")
