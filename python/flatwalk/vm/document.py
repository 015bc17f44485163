"""Tables in documents, each between two lines that name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def update(document: Path, tables: Mapping[str, str]) -> None:
    """Puts tables into a document, between the lines `<!-- begin NAME -->` and `<!-- end NAME -->`.

    Raises:
        FlatwalkError: If the document cannot be read or written, or has no place for a table.
    """
    try:
        text = document.read_text(encoding="utf-8")
        for name, table in tables.items():
            begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
            before, begun, rest = text.partition(begin)
            _, ended, after = rest.partition(end)
            text = "".join([before, begun, table, ended, after])
            if not begun or not ended:
                raise FlatwalkError(
                    f"no place is marked for the table `{name}`",
                    where=str(document),
                    remedy=f"mark it by the lines <!-- begin {name} --> and <!-- end {name} -->",
                )
        output.write_whole(document, text)
    except OSError as error:
        raise FlatwalkError(
            f"the document cannot be updated: {error.strerror}",
            where=str(document),
            remedy="name an existing document",
        ) from error
