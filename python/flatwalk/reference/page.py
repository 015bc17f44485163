"""docs/settings.md: every key of files and results, as the engine describes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk import engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flatwalk.engine import KeyDescription

PATH = Path(__file__).parents[3] / "docs" / "settings.md"

_HEAD = """# Settings and results

Every key of the files that flatwalk reads, and of the JSON that it writes. `python -m flatwalk.reference`
writes this page from the schemas that the engine checks files by; `flatwalk list keys` prints the same.

In a key `[]` stands for each table of an array, and `*` for any name. A key with *with* belongs to tables in
which the other key has that value. A key without a default must be there; – means that it may be left out.
"""

#: Each kind with its title and what it is.
KINDS = {
    "machine": (
        "Machines",
        """\
A TOML file for `--machine`; those that come with flatwalk are in `python/flatwalk/data/machines`.""",
    ),
    "scheme": (
        "Schemes",
        """\
A TOML file for `--schemes`; those that come with flatwalk are in `python/flatwalk/data/schemes`.""",
    ),
    "mix": (
        "Mixes",
        """\
A TOML file for `--mix`; those that come with flatwalk are in `python/flatwalk/data/mixes`.""",
    ),
    "experiment": (
        "Experiments",
        """\
A TOML file in `python/flatwalk/data/experiments`, for `flatwalk reproduce`; [reproducing.md](reproducing.md)
explains how they are used.""",
    ),
    "sweep": (
        "Sweeps",
        """\
A TOML file for `flatwalk sweep`; those that come with flatwalk are in `python/flatwalk/data/sweeps`.
[lab.md](lab.md) explains how they are used.""",
    ),
    "results": (
        "Results",
        """\
What `compare --json` writes; [result-format.md](result-format.md) explains how to read it. Counts are of the
measured part, after warm-up; sizes are of its end. Each of `runs` also has `speedup`, `relative_cache_energy`
and `relative_off_chip_accesses`, over those of the first scheme with the same pages.""",
    ),
}


def _code(value: object) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def value(key: KeyDescription) -> str:
    """What the key's value is: its type, unit, range and choices."""
    if key["same_as"] is not None and not key["choices"]:
        return f"{key['type']}, as `{key['same_as']}`"
    if key["choices"]:
        several = "one of" if key["type"] == "choice" else "list of"
        known = [
            _code(choice["value"]) + (f" ({choice['meaning'].rstrip('.')})" if choice["meaning"] else "")
            for choice in key["choices"]
        ]
        return f"{several} {', '.join(known)}"
    words = [key["type"]]
    if key["unit"] is not None:
        words.append(f"in {key['unit']}")
    if key["range"] is not None and key["range"] != "at least 0":
        words.append(key["range"])
    return ", ".join(words)


def _default(key: KeyDescription) -> str:
    if not key["optional"]:
        return ""
    return "–" if key["default"] is None else _code(key["default"])


def _rows(keys: list[KeyDescription], *, with_default: bool) -> Iterator[str]:
    yield "| key | meaning | value | default |" if with_default else "| key | meaning | value |"
    yield "| --- | --- | --- | --- |" if with_default else "| --- | --- | --- |"
    for key in keys:
        name = f"`{key['key']}`" + (f"<br>with `{key['when']}`" if key["when"] else "")
        cells = [name, key["meaning"], value(key)] + ([_default(key)] if with_default else [])
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def text() -> str:
    """The page."""
    parts = [_HEAD]
    for kind, (title, what) in KINDS.items():
        rows = "\n".join(_rows(engine.describe(kind), with_default=kind != "results"))
        parts.append(f"## {title}\n{what}\n\n{rows}\n")
    return "\n".join(parts)
