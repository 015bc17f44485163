"""The commands that documents show."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

import typer.main
from typer._click.exceptions import BadOptionUsage, MissingParameter

from flatwalk import cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOT = typer.main.get_command(cli.app)
#: What stands for something in a command, and an example of it.
PLACEHOLDERS = {
    "host … --histogram": "host pagefault --histogram",
    "CMD ARGS…": "true",
    "COMMAND": "compare",
    "CLAIM": "R1",
    "ADDRESS": "0x1000",
    "PID": "1234",
    "-- CMD": "-- true",
    "…": "",
}


class Example(NamedTuple):
    """A command as a document has it."""

    text: str
    #: Its words after `flatwalk`.
    words: list[str]
    #: It stands in a block, as something to type, and not in a sentence that is about it.
    block: bool


def blocks(document: Path, language: str) -> list[str]:
    """The document's blocks of a language, without what indents them."""
    text = document.read_text(encoding="utf-8")
    found = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [
        re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)
        for indent, own, block in found
        if own == language
    ]


def mentioned(document: Path) -> list[str]:
    """The code in the document's sentences and tables."""
    text = document.read_text(encoding="utf-8")
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", prose)]


def examples(document: Path) -> list[Example]:
    """The document's commands of flatwalk, in their order."""
    shown = [(line, True) for block in blocks(document, "") for line in _lines(block)]
    # A usage line is not an example.
    shown += [(code, False) for code in mentioned(document) if "[OPTIONS]" not in code]
    return [
        Example(text, words, block)
        for text, block in shown
        for command in _alternatives(text)
        for words in _commands(command)
    ]


def _lines(block: str) -> Iterator[str]:
    """Lines, each with those that continue it: after a backslash, or within quotes."""
    pending = ""
    for line in block.splitlines():
        pending = _without_remark(f"{pending}{line.strip()}" if pending else line)
        if pending.endswith("\\"):
            pending = pending[:-1]
        elif not re.match(r"\$? *(\./)?flatwalk ", pending) or _whole(pending):
            yield pending
            pending = ""
        else:
            pending += "\n"
    assert not pending, pending


def _without_remark(line: str) -> str:
    """A command without what is said of it behind some blanks."""
    before = (line[: gap.start()] for gap in re.finditer(" {3,}", line))
    return next((command for command in before if command.strip() and _whole(command)), line)


def _whole(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return False
    return True


def _alternatives(text: str) -> list[str]:
    """A command without placeholders; of `list a|b` both commands."""
    for placeholder, value in PLACEHOLDERS.items():
        text = text.replace(placeholder, value)
    text = re.sub(r"\[(-*\w+)\]", r"\1", text)
    choice = re.search(r"(?<= )\w+(\\?\|\w+)+(?= |$)", text)
    if choice is None:
        return [text]
    return [text.replace(choice[0], one) for one in re.split(r"\\?\|", choice[0])]


def _commands(text: str) -> Iterator[list[str]]:
    for part in text.removeprefix("$ ").split(" && "):
        found = re.match(r"(?:[A-Z_]+=\S+ )*(?:\./)?flatwalk (?!record ─)(.*)", part, re.DOTALL)
        if found:
            yield shlex.split(found[1].replace("\n", " "), comments=True)


def parse(example: Example) -> None:
    """Lets the command line's parser look at a command, which raises what is wrong with it.

    A sentence may leave out what a command or an option needs.
    """
    command: Any = ROOT
    words = list(example.words)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no command {words[0]}"
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands"):
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert set(words) <= options, words
    elif words != ["--help"]:
        try:
            command.make_context("flatwalk", words)
        except (MissingParameter, BadOptionUsage):
            if example.block:
                raise


def options(command: Any = ROOT) -> set[str]:
    """Every option of every command."""
    own = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return own.union({"--help"}, *map(options, getattr(command, "commands", {}).values()))
