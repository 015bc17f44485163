"""Machines by name or path, or the host itself."""

from __future__ import annotations

from typing import Any

from flatwalk.definitions import settings
from flatwalk.host import model
from flatwalk.terminal import output


def load(name: str, where: str = "--machine") -> dict[str, Any]:
    """The machine of that shipped name, in that TOML file, or made from this host.

    Raises:
        UsageError: If there is none, or the file is not a valid machine.
        FlatwalkError: If the host does not say what it is.
    """
    if name != model.NAME:
        return settings.machine(name, where)
    modelled = model.machine()
    output.note(f"{modelled.words} `flatwalk host machine` shows the source of each.")
    return modelled.machine
