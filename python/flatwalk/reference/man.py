"""The manual page, from the command line's own parser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer.main

from flatwalk import cli, engine

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where maturin takes what a wheel puts next to programs.
PATH = Path(__file__).parents[3] / "docs" / "wheel" / "data" / "share" / "man" / "man1" / "flatwalk.1"


def text() -> str:
    """The page as troff's man macros have it: see man-pages(7)."""
    root = typer.main.get_command(cli.app)
    return "\n".join(
        [
            '.\\" Written by python -m flatwalk.reference.',
            f'.TH FLATWALK 1 "" "flatwalk {engine.version()}" "User Commands"',
            ".SH NAME",
            f"flatwalk \\- {_escaped(root.help or '').rstrip('.')}",
            ".SH SYNOPSIS",
            ".B flatwalk",
            ".I COMMAND",
            "[\\fIOPTION\\fR]... [\\fIARGUMENT\\fR]...",
            ".SH COMMANDS",
            *_commands(root, "flatwalk"),
            ".SH EXIT STATUS",
            "0 if all is done, 1 if something failed, 2 if the command line asks for what cannot be,",
            "130 after Ctrl-C, 143 after SIGTERM. record exits with the status of the program it records.",
            ".SH ENVIRONMENT",
            *_entry("FLATWALK_QEMU", "The qemu-x86_64 that records programs."),
            *_entry("XDG_CACHE_HOME", "The directory in which flatwalk/ keeps what can be made again."),
            *_entry(
                "TMPDIR", "The directory for temporary files, such as the trace of a program to compare."
            ),
            ".SH SEE ALSO",
            "The guide, docs/guide.md, and all else in docs/README.md of the repository.",
            "",
        ]
    )


def _commands(group: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - of the parser's library, without types
    for name, command in group.commands.items():
        if command.hidden:
            continue
        full = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _commands(command, full)
            continue
        context = command.make_context(full, [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        yield f".SS \\fB{_escaped(full)}\\fR {_escaped(usage)}"
        for paragraph in (command.help or "").strip().split("\n\n"):
            yield from (".PP", _escaped(re.sub(r"\s+", " ", paragraph)))
        for parameter in command.params:
            record = parameter.get_help_record(context)
            if record is not None:
                option, meaning = record
                yield from _entry(re.sub(r" <.*>$", "", option), meaning)
        yield from _examples(command.epilog or "")


def _entry(name: str, meaning: str) -> list[str]:
    return [".TP", f".B {_escaped(name)}", _escaped(re.sub(r"\s+", " ", meaning))]


def _examples(epilog: str) -> Iterator[str]:
    title, *lines = epilog.removeprefix("\b\n").split("\n")
    if lines:
        yield from (".PP", _escaped(title), ".PP", ".EX", *(_escaped(line.strip()) for line in lines), ".EE")


def _escaped(text: str) -> str:
    """Text without anything that troff takes for a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = "".join(character if character.isascii() else f"\\[u{ord(character):04X}]" for character in text)
    return f"\\&{text}" if text.startswith(".") else text
