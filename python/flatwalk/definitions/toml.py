"""Settings as TOML."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def value(one: object) -> str:
    """A value; texts are written as JSON, which TOML's basic strings contain."""
    if isinstance(one, dict):
        return "{ " + ", ".join(f"{_key(name)} = {value(item)}" for name, item in one.items()) + " }"
    if isinstance(one, list):
        return f"[{', '.join(map(value, one))}]"
    return json.dumps(one, ensure_ascii=False)


def text(settings: Mapping[str, Any]) -> str:
    """A file of settings; what is None is left out, as in the files that flatwalk reads."""
    return "\n".join(_table(settings, "")).strip("\n") + "\n"


def _table(settings: Mapping[str, Any], name: str) -> Iterator[str]:
    tables = {}
    for key, one in settings.items():
        if isinstance(one, dict) or (isinstance(one, list) and one and isinstance(one[0], dict)):
            tables[key] = one
        elif one is not None:
            yield f"{_key(key)} = {value(one)}"
    for key, one in tables.items():
        path = f"{name}.{_key(key)}" if name else _key(key)
        for item in [one] if isinstance(one, dict) else one:
            yield from ("", f"[{path}]" if isinstance(one, dict) else f"[[{path}]]", *_table(item, path))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else value(name)
