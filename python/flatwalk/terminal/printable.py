"""Text from outside (names in traces, files, archives), made so that it does nothing to a terminal."""

from __future__ import annotations

import re

#: Control characters, marks that change the direction of text, separators, and halves of surrogate pairs,
#: which stand for the bytes of a name that is not UTF-8. Line feeds and tabs are not among them.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_BREAKS = re.compile("[\n\t]")


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte: see PEP 383
        return f"\\x{code - 0xDC00:02x}"
    return match[0].encode("unicode_escape", "backslashreplace").decode("ascii")


def printable(text: str) -> str:
    r"""The text with what would not be shown as itself written out, as in `\x1b`; lines stay lines."""
    return _UNSAFE.sub(_escaped, text)


def one_line(text: str) -> str:
    r"""As `printable`, with line feeds and tabs written out, too, as in `\n`."""
    return printable(_BREAKS.sub(_escaped, text))


def json_escaped(text: str) -> str:
    r"""JSON with such characters as JSON escapes, `\u009b`: they can only be in its strings."""
    return _UNSAFE.sub(lambda match: "".join(f"\\u{unit:04x}" for unit in _units(match[0])), text)


def _units(character: str) -> list[int]:
    """The UTF-16 units of a character."""
    code = ord(character)
    return [code] if code < 0x10000 else [0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF)]
