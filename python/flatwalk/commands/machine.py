"""`flatwalk machine …`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from flatwalk.terminal.help import PLAIN, examples

app = typer.Typer(
    **PLAIN,
    help="Make machines of other simulators' configurations.",
    epilog=examples("machine import champsim_config.json champsim.toml"),
)


@app.callback()
def _group() -> None:
    pass


@app.command("import", epilog=examples("machine import champsim_config.json champsim.toml"))
def machine_import(
    source: Annotated[Path, Argument(metavar="SOURCE", help="ChampSim's configuration, a JSON file.")],
    target: Annotated[
        Path | None,
        Argument(metavar="[TARGET]", help="Machine to write [default: standard output].", show_default=False),
    ] = None,
) -> None:
    """Make a machine of ChampSim's configuration; say what has no counterpart."""
    from flatwalk.definitions import champsim  # noqa: PLC0415

    champsim.import_machine(source, target)
