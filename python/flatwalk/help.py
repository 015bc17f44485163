"""Help texts of the command line: plain text, the same on a terminal and in a pipe."""

from __future__ import annotations

from typing import Any

#: Settings of every group of commands.
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "no_args_is_help": True}


def examples(*commands: str) -> str:
    """A help text's last paragraph, kept line by line (the backspace makes the formatter do so)."""
    title = "Example:" if len(commands) == 1 else "Examples:"
    return "\n".join(["\b", title, *(f"  flatwalk {command}" for command in commands)])
