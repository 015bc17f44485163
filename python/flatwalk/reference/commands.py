"""docs/commands.md: every command and option, from the command line's own parser."""

from __future__ import annotations

from pathlib import Path

from flatwalk.reference import parser
from flatwalk.terminal import output

PATH = Path(__file__).parents[3] / "docs" / "commands.md"

_HEAD = """# The command line

Every command with its options, as `flatwalk COMMAND --help` and the manual page say it.
`python -m flatwalk.reference` writes this page from the command line's own parser.
[The guide](guide.md) explains how to use them; in a checkout the program is `./flatwalk`.
"""


def text() -> str:
    """The page."""
    return "\n".join([_HEAD, *map(_command, parser.commands())])


def _command(command: parser.Command) -> str:
    # No page of a table of contents needs the program's name before each command.
    parts = [f"## {command.name.removeprefix('flatwalk ')}\n", f"`{command.name} {command.usage}`\n"]
    parts += [f"{_escaped(paragraph)}\n" for paragraph in command.paragraphs]
    rows = [(f"`{_cell(option)}`", _cell(_escaped(meaning))) for option, meaning in command.options]
    parts.append(output.markdown(["option", "meaning"], 2, rows))
    if command.examples:
        _, *lines = command.examples
        parts.append("\n".join(["```", *lines, "```\n"]))
    return "\n".join(parts)


def _escaped(text: str) -> str:
    """Text in which nothing but `code` is markup."""
    parts = text.split("`")
    for number in range(0, len(parts), 2):
        parts[number] = "".join(f"\\{sign}" if sign in "*_<[$" else sign for sign in parts[number])
    return "`".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
