"""Help texts of the command line: plain text, the same on a terminal and in a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter


class Group(TyperGroup):
    """Lists its commands with the whole first sentence of each, on as many lines as it needs."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Writes the section of commands."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(sys.maxsize))
            for name, command in commands
            if command and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


#: Settings of every group of commands.
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "no_args_is_help": True, "cls": Group}


def examples(*commands: str) -> str:
    """A help text's last paragraph, kept line by line (the backspace makes the formatter do so)."""
    title = "Example:" if len(commands) == 1 else "Examples:"
    return "\n".join(["\b", title, *(f"  flatwalk {command}" for command in commands)])
