"""python/flatwalk/answer/types.py: the engine's answer as types, from its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flatwalk import engine

PATH = Path(__file__).parents[1] / "answer" / "types.py"

_HEAD = '''"""The engine's answer; written by `python -m flatwalk.reference`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict
'''

#: Structures of files: their keys are not the business of who reads results.
_FILES = {"Machine", "Scheme"}
_SIMPLE = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None"}


#: Characters of a line, at most.
_WIDTH = 110


class _Types:
    """The types of a schema, as they are met."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._definitions: dict[str, Any] = schema["$defs"]
        self._classes: dict[str, str] = {}

    def of(self, node: dict[str, Any], name: str) -> str:
        """The type of a value; `name` is for a structure that has none."""
        if "$ref" in node:
            return self._named(node["$ref"].rsplit("/", 1)[1])
        if "anyOf" in node:
            return " | ".join(self.of(one, name) for one in node["anyOf"])
        if "oneOf" in node or "enum" in node:
            parts = node.get("oneOf", [node])
            known = [value for part in parts for value in part.get("enum", [part.get("const")])]
            return f"Literal[{', '.join(json.dumps(value) for value in known)}]"
        kinds = node.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        return " | ".join(self._of_kind(kind, node, name) for kind in kinds) or "Any"

    def _of_kind(self, kind: str, node: dict[str, Any], name: str) -> str:
        if kind == "array":
            return f"list[{self.of(node['items'], name)}]"
        if kind == "object":
            return self._structure(name, node) if "properties" in node else "dict[str, Any]"
        return _SIMPLE[kind]

    def _named(self, name: str) -> str:
        if name in _FILES:
            return "dict[str, Any]"
        node = self._definitions[name]
        return self._structure(name, node) if "properties" in node else self.of(node, name)

    def _structure(self, name: str, node: dict[str, Any]) -> str:
        if name not in self._classes:
            self._classes[name] = ""  # its place
            required = node.get("required", [])
            lines = [f"class {name}(TypedDict):", f'    """{_sentence(node)}"""', ""]
            for key, value in node["properties"].items():
                # A mechanism's figures are called after it.
                type_ = self.of(value, _camel(key) if name == "Mechanisms" else name + _camel(key))
                line = f"    {key}: {type_ if key in required else f'NotRequired[{type_}]'}"
                lines.append(_wrapped(line))
            self._classes[name] = "\n".join(lines)
        return name

    def text(self) -> str:
        """All classes."""
        return "\n\n\n".join(self._classes.values())


def _wrapped(line: str) -> str:
    """A line as the formatter would have it: one word a line if it has too many."""
    if len(line) <= _WIDTH or not line.endswith("]"):
        return line
    first, _, rest = line.partition("[")
    words = "".join(f"        {word},\n" for word in rest.removesuffix("]").split(", "))
    return f"{first}[\n{words}    ]"


def _camel(key: str) -> str:
    return "".join(word.capitalize() for word in key.split("_"))


def _sentence(node: dict[str, Any]) -> str:
    """The first sentence of what a structure is."""
    words = " ".join(node.get("description", "Figures.").split()).replace("[`", "`").replace("`]", "`")
    return words.partition(". ")[0].rstrip(".") + "."


def text() -> str:
    """The module."""
    schema = engine.schema("results")
    # Named by its key, as there is but one.
    run = schema["$defs"]["RunResult"]["properties"]
    schema["$defs"]["Mechanisms"] = run["mechanisms"]
    run["mechanisms"] = {"$ref": "#/$defs/Mechanisms"}
    types = _Types(schema)
    types.of({"$ref": "#/$defs/RunResult"}, "RunResult")
    types.of(schema["properties"]["trace"], "TraceSummary")
    types.of(schema["properties"]["sampling"], "Sampled")
    return f"{_HEAD}\n\n{types.text()}\n"
