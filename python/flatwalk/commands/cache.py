"""`flatwalk cache …`."""

from typing import Annotated

import typer
from typer import Argument

from flatwalk.commands.options import JsonFlag
from flatwalk.terminal.help import PLAIN, examples

app = typer.Typer(
    **PLAIN,
    help="Show and remove what is kept from one call to the next, and can be made again.",
    epilog=examples("cache list"),
)


@app.command("list", epilog=examples("cache list --json"))
def list_(*, json: JsonFlag = False) -> None:
    """Show what is kept, its size, and when it was last changed."""
    from flatwalk import cache  # noqa: PLC0415

    cache.show(as_json=json)


@app.command("clear", epilog=examples("cache clear reproduce", "cache clear"))
def clear(
    names: Annotated[
        list[str] | None,
        Argument(metavar="[NAME]...", help="As `cache list` names it [default: all].", show_default=False),
    ] = None,
) -> None:
    """Remove what is kept, or the parts that are named."""
    from flatwalk import cache  # noqa: PLC0415

    cache.clear(names or [])
