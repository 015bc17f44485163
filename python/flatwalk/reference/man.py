"""The manual page, from the command line's own parser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk import engine
from flatwalk.reference import parser

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where maturin takes what a wheel puts next to programs.
PATH = Path(__file__).parents[3] / "docs" / "wheel" / "data" / "share" / "man" / "man1" / "flatwalk.1"


def text() -> str:
    """The page as troff's man macros have it: see man-pages(7)."""
    return "\n".join(
        [
            '.\\" Written by python -m flatwalk.reference.',
            f'.TH FLATWALK 1 "" "flatwalk {engine.version()}" "User Commands"',
            ".SH NAME",
            f"flatwalk \\- {_escaped(parser.summary())}",
            ".SH SYNOPSIS",
            ".B flatwalk",
            ".I COMMAND",
            "[\\fIOPTION\\fR]... [\\fIARGUMENT\\fR]...",
            ".SH COMMANDS",
            *(line for command in parser.commands() for line in _command(command)),
            ".SH EXIT STATUS",
            "0 if all is done, 1 if something failed, 2 if the command line asks for what cannot be,",
            "129 after SIGHUP, 130 after Ctrl-C, 143 after SIGTERM.",
            "record exits with the status of the program it records.",
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


def _command(command: parser.Command) -> Iterator[str]:
    yield f".SS \\fB{_escaped(command.name)}\\fR {_escaped(command.usage)}"
    for paragraph in command.paragraphs:
        yield from (".PP", _escaped(paragraph))
    for option, meaning in command.options:
        yield from _entry(option, meaning)
    if command.examples:
        title, *lines = command.examples
        yield from (".PP", _escaped(title), ".PP", ".EX", *map(_escaped, lines), ".EE")


def _entry(name: str, meaning: str) -> list[str]:
    return [".TP", f".B {_escaped(name)}", _escaped(meaning)]


def _escaped(text: str) -> str:
    """Text without anything that troff takes for a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = "".join(character if character.isascii() else f"\\[u{ord(character):04X}]" for character in text)
    return f"\\&{text}" if text.startswith(".") else text
