"""The commands, as the command line's own parser knows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import typer.main

from flatwalk import cli

if TYPE_CHECKING:
    from collections.abc import Iterator


class Command(NamedTuple):
    """A command with all that its `--help` says."""

    #: `flatwalk host gups`.
    name: str
    usage: str
    paragraphs: list[str]
    #: Options and arguments, each with its meaning.
    options: list[tuple[str, str]]
    #: The title of the examples, and each; empty without any.
    examples: list[str]


def summary() -> str:
    """What flatwalk is, without a full stop."""
    return (typer.main.get_command(cli.app).help or "").rstrip(".")


def commands() -> list[Command]:
    """All that are not hidden, in the order of the help text."""
    return list(_below(typer.main.get_command(cli.app), "flatwalk"))


def _below(group: Any, path: str) -> Iterator[Command]:  # noqa: ANN401 - of the parser's library, without types
    for name, command in group.commands.items():
        if command.hidden:
            continue
        full = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _below(command, full)
            continue
        context = command.make_context(full, [], resilient_parsing=True)
        records = (parameter.get_help_record(context) for parameter in command.params)
        title, *lines = (command.epilog or "").removeprefix("\b\n").split("\n")
        yield Command(
            full,
            " ".join(command.collect_usage_pieces(context)),
            [_one_line(paragraph) for paragraph in (command.help or "").strip().split("\n\n")],
            [(re.sub(r" <.*>$", "", record[0]), _one_line(record[1])) for record in records if record],
            [title, *(line.strip() for line in lines)] if lines else [],
        )


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)
