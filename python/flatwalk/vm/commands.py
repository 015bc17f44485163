"""`flatwalk vm …`: the command line. Commands import their work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

_PLAIN: dict[str, Any] = {"rich_markup_mode": None, "no_args_is_help": True}


def _examples(*commands: str) -> str:
    return "\n".join(["\b", "Examples:", *(f"  flatwalk vm {command}" for command in commands)])


app = typer.Typer(
    **_PLAIN,
    help="Flattened page tables in a running system: a QEMU that walks them, a Linux that uses them.",
    epilog=_examples("build"),
)

Source = Annotated[
    Path | None,
    Option(
        metavar="DIR",
        help="Your own trees, built as they are: DIR/qemu, DIR/linux or both, instead of Debian's with "
        "our series.",
    ),
]


@app.command("build", epilog=_examples("build", "build --source ~/src"))
def build(
    *,
    source: Source = None,
    jobs: Annotated[
        int, Option("--jobs", "-j", metavar="N", min=0, help="Compilers at once; 0 is one per core.")
    ] = 0,
) -> None:
    """Build the QEMU and the Linux that know flattened page tables.

    Gets Debian's sources without changing the system's package configuration, applies the series in
    qemu/ and linux/, and keeps what it builds in the cache directory; a second call does nothing.
    """
    from flatwalk.vm import build as work  # noqa: PLC0415

    for built in work.build(source, jobs=jobs):
        print(f"{built.name}: {built.path}")
