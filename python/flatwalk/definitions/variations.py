"""`--set`: what differs from the files of machines and schemes, and the grid of all its values.

A key is one of a machine file, or behind `scheme.` one of a scheme file. A machine takes every key, and
the engine refuses what it does not know. A scheme takes the keys that it has: with `radix4,fpt`,
`scheme.table.no_flatten_threshold` changes `fpt` alone.
"""

from __future__ import annotations

import copy
import itertools
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatwalk import engine, units
from flatwalk.definitions import settings
from flatwalk.errors import UsageError
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: What stands before the keys of a scheme, and may stand before those of a machine.
SCHEME, MACHINE = "scheme.", "machine."
#: Keys that only name a file's contents.
NAMES = ("name", "title", "description", "source")
_OPTION = "--set"


@dataclass(frozen=True)
class Setting:
    """A key, its value as the engine takes it, and what the user wrote."""

    key: str
    value: object
    text: str

    @property
    def of_scheme(self) -> bool:
        """Whether it is a key of schemes."""
        return self.key.startswith(SCHEME)


#: One value of each key.
Variation = tuple[Setting, ...]


def grid(options: Iterable[str]) -> list[Variation]:
    """Every combination of the values that `KEY=V1,V2` options give; the first key changes slowest.

    Raises:
        UsageError: If one is not of that form, or a key comes twice.
    """
    keys: dict[str, list[Setting]] = {}
    for option in options:
        output.check_text(option, _OPTION)
        name, equals, values = option.partition("=")
        key = name.strip().removeprefix(MACHINE)
        texts = _split(values)
        if not equals or not key or not texts:
            raise UsageError(
                f"{option!r} is not KEY=VALUE", where=_OPTION, remedy="as in --set llc.size_bytes=8MiB,16MiB"
            )
        check_key(key, _OPTION)
        if key in keys:
            raise UsageError(
                f"{key} is set twice",
                where=_OPTION,
                remedy=f"give all its values at once: --set {key}=V1,V2",
            )
        found = [Setting(key, read_value(key, text, f"{_OPTION} {key}"), text) for text in texts]
        keys[key] = list({repr(setting.value): setting for setting in found}.values())
    return list(itertools.product(*keys.values()))


def check_key(key: str, where: str) -> None:
    """Passes a key that changes more than what a file's contents are called.

    Raises:
        UsageError: If it does not.
    """
    if key.removeprefix(SCHEME) in NAMES:
        raise UsageError(
            f"{key} changes no figure",
            where=where,
            remedy="a copy of the file can have another name: give it by path",
        )


def _split(text: str) -> list[str]:
    """Parts between commas that are not within brackets or quotes."""
    parts, depth = [""], 0
    for piece in re.findall(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|.", text, re.DOTALL):
        depth += (piece in "[{") - (piece in "]}")
        if piece == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts if part.strip()]


def read_value(key: str, text: str, where: str) -> object:
    """What a text stands for: a TOML value, a number with a unit, or a word.

    Raises:
        UsageError: If it begins as a number and is not one.
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # tomllib has its own error for some of what it cannot read
        pass
    is_size = key.endswith("_bytes") or text.endswith("iB")
    read = units.parse_size if is_size else units.parse_count
    try:
        return read(text, where)
    except UsageError:
        if re.match(r"[\d.+-]", text):
            raise
        return text


def as_settings(variation: Iterable[Setting]) -> dict[str, Any]:
    """By key, as a run's `settings` hold them."""
    return {setting.key: setting.value for setting in variation}


def machine(file: dict[str, Any], variation: Variation, where: str = _OPTION) -> dict[str, Any]:
    """A machine with the variation's keys of machines; `where` names the option or file.

    Raises:
        UsageError: If the machine cannot have one of them.
    """
    found = changed(file, variation, where)
    own = [setting for setting in variation if not setting.of_scheme]
    if own and (problems := engine.check("machine", found)):
        raise _refused(own, f"{file['name']} cannot have it", problems, where)
    return found


def changed(file: dict[str, Any], variation: Variation, where: str) -> dict[str, Any]:
    """The same, which may be no machine that there can be.

    Raises:
        UsageError: If the machine has no place for a key.
    """
    found = copy.deepcopy(file)
    for setting in variation:
        if not setting.of_scheme:
            put(found, setting.key, setting.value, file["name"], where)
    return found


def schemes(
    files: Sequence[dict[str, Any]], variation: Variation, where: str = _OPTION
) -> list[dict[str, Any]]:
    """Each scheme with the variation's keys that it has; `where` names the option or file.

    Raises:
        UsageError: If no scheme has one of them, or its value is refused.
    """
    own = [setting for setting in variation if setting.of_scheme]
    found = list(files)
    for setting in own:
        key = setting.key.removeprefix(SCHEME)
        unknown: list[engine.Problem] = []
        takers = 0
        for number, file in enumerate(found):
            if not _has_table(file, key):
                continue
            varied = copy.deepcopy(file)
            put(varied, key, setting.value, file["name"], where)
            problems = engine.check("scheme", varied)
            if any(problem["problem"] == _UNKNOWN for problem in problems):
                unknown += problems
            elif problems:
                raise _refused([setting], f"{file['name']} cannot have it", problems, where)
            else:
                found[number] = varied
                takers += 1
        if not takers:
            problems = _joined(unknown) or _unknown_table(key)
            raise _refused([setting], "no scheme here has it", problems, where)
    return found


#: What the engine says of a key that it does not know.
_UNKNOWN = "is not a known key"


def _joined(problems: list[engine.Problem]) -> list[engine.Problem]:
    """What several schemes say of one key as one problem, with the words that any of them knows."""
    known = dict.fromkeys(word for problem in problems for word in problem["known"])
    return [problems[0] | {"known": list(known)}] if problems else []


def _has_table(file: dict[str, Any], key: str) -> bool:
    """Whether a file has the table that a key stands in."""
    table: Any = file
    for part in key.split(".")[:-1]:
        table = table.get(part) if isinstance(table, dict) else None
    return isinstance(table, dict)


def _unknown_table(key: str) -> list[engine.Problem]:
    """What is wrong with the table of a key that no scheme has: it is unknown, or switched on nowhere."""
    known = [str(name) for name in engine.schema("scheme")["properties"]]
    name = key.partition(".")[0]
    if name in known:
        problem = f"is in none of them: name a scheme with [{name}]"
        return [{"key": name, "problem": problem, "given": None, "known": []}]
    return [{"key": name, "problem": _UNKNOWN, "given": name, "known": known}]


def _refused(own: Sequence[Setting], what: str, problems: list[engine.Problem], where: str) -> UsageError:
    """The error for settings that do not make a valid file, with all of its problems."""
    given = " ".join(f"{setting.key}={setting.text}" for setting in own)
    return UsageError(
        f"{what}: " + "; ".join(map(settings.words, problems)),
        where=f"{where} {given}",
        remedy=f"{settings.REFERENCE} explains every key, and `flatwalk list keys` shows them",
    )


def put(table: dict[str, Any], key: str, value: object, name: str, where: str = _OPTION) -> None:
    """Sets a key such as `tlb.l2[1].entries` in a table, as `merged` does; a table that is not there is made.

    Raises:
        UsageError: If the key leads through what is not a table, or to an element that is not there.
    """
    *path, last = key.split(".")
    at: Any = table
    for number, part in enumerate(path, start=1):
        at = _entered(at, part, ".".join(path[:number]), name, where)
    word, index = _indexed(last)
    if index is None:
        at.update(merged(at, {last: value}))
        return
    _element(at.get(word), index, key, name, where)
    at[word][index - 1] = value


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`, table by table; one that names its kind or organisation replaces the old one."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        is_part = isinstance(value, dict) and not {"kind", "organisation"} & value.keys()
        result[key] = merged(old, value) if is_part and isinstance(old, dict) else value
    return result


def _indexed(part: str) -> tuple[str, int | None]:
    """`l2[1]` is l2 and 1."""
    match = re.fullmatch(r"(.*)\[(\d+)\]", part)
    return (part, None) if match is None else (match[1], int(match[2]))


def _element(found: object, index: int, key: str, name: str, where: str) -> object:
    if not isinstance(found, list) or not 1 <= index <= len(found):
        has = f"{len(found)} of them" if isinstance(found, list) else "none"
        raise UsageError(
            f"{name} has no {key}: it has {has}",
            where=where,
            remedy="tables of an array are numbered from 1, as in tlb.l2[1].entries",
        )
    return found[index - 1]


def _entered(table: dict[str, Any], part: str, key: str, name: str, where: str) -> dict[str, Any]:
    """The table that `part` of a key leads to."""
    word, index = _indexed(part)
    if index is None:
        found = table.setdefault(word, {})
    else:
        found = _element(table.get(word), index, key, name, where)
    if isinstance(found, list):
        raise UsageError(
            f"{name} has {len(found)} tables {key}",
            where=where,
            remedy=f"say which: {key}[1]" + (f" to {key}[{len(found)}]" if len(found) > 1 else ""),
        )
    if not isinstance(found, dict):
        raise UsageError(
            f"{key} of {name} is not a table",
            where=where,
            remedy=f"{settings.REFERENCE} explains every key",
        )
    return found
