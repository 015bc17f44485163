"""The columns of stored results, in docs/lab.md."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from flatwalk.lab import store
from flatwalk.terminal import output

PATH = Path(__file__).parents[3] / "docs" / "lab.md"

_BEGIN, _END = "<!-- columns: python -m flatwalk.reference writes this table -->", "<!-- end of columns -->"


def text() -> str:
    """The page with its table as the store has it."""
    page = PATH.read_text(encoding="utf-8")
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    rows = [(f"`{name}`", _type(kind), meaning) for name, (kind, meaning) in store.COLUMNS.items()]
    rows += [(f"`{name}`", "double", f"{meaning} (computed)") for name, meaning in store.COMPUTED.items()]
    return f"{before}{_BEGIN}\n{output.markdown(['column', 'type', 'meaning'], 3, rows)}{_END}{after}"


def _type(kind: pa.DataType) -> str:
    """A column's type; of a list of structures not each field, which result-format.md has."""
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        return "list of structures"
    return str(kind)
