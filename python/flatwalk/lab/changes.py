"""What a sweep changes: lists of values of keys, and values that follow from others."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import operator
import re
import textwrap
from typing import TYPE_CHECKING, Any

from flatwalk import engine
from flatwalk.definitions import variations
from flatwalk.definitions.variations import Setting
from flatwalk.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flatwalk.definitions.variations import Variation


_KEY = re.compile(r"[a-z]\w*(\[\d+\])?(\.\w+(\[\d+\])?)*", re.ASCII)


def flat(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A table's keys by their dotted names, as `llc.size_bytes`; `machine.` in front of one is left out.

    Raises:
        UsageError: If a key is not one, changes nothing, or is there twice.
    """
    found: dict[str, Any] = {}
    for name, value in _leaves(table):
        key = name.removeprefix("machine.")
        if not _KEY.fullmatch(key):
            raise UsageError(
                f"{name!r} is not a key", where=where, remedy="as llc.size_bytes or tlb.l1d[1].ways"
            )
        variations.check_key(key, where)
        if key in found:
            raise UsageError(f"{key} is there twice", where=where, remedy="leave one of them out")
        found[key] = value
    return found


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def combinations(
    lists: Mapping[str, Any], zips: Sequence[Mapping[str, Any]], derived: Mapping[str, str], where: str
) -> list[Variation]:
    """Every combination of the lists, the zipped lists moving together, with what is derived from each.

    Args:
        lists: Values of each key, or one value; all are combined, the last key fastest.
        zips: Tables of lists of equal length; the values of each position belong together.
        derived: Expressions over keys of the same machine, for `evaluated`; they are left as they are here.
        where: The file or option.

    Returns:
        At least one variation, perhaps empty; its keys are in the order of the arguments.

    Raises:
        UsageError: If a key is not one or is there twice, a zip has none, or lists do not fit together.
    """
    axes: list[list[Variation]] = []
    for key, values in flat(lists, where).items():
        axes.append([(setting(key, value, where),) for value in _several(values, key, where)])
    for number, table in enumerate(zips, start=1):
        place = f"{where}, zip[{number}]"
        columns = {key: _several(value, key, place) for key, value in flat(table, place).items()}
        if not columns:
            raise UsageError(
                f"zip[{number}] has no keys", where=where, remedy="give it keys with lists, or leave it out"
            )
        lengths = {key: len(values) for key, values in columns.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            raise UsageError(
                f"lists of different lengths: {told}", where=place, remedy="give as many values for each key"
            )
        rows = zip(*columns.values(), strict=True)
        axes.append(
            [
                tuple(setting(key, value, place) for key, value in zip(columns, row, strict=True))
                for row in rows
            ]
        )
    keys = [one.key for axis in axes for one in axis[0]] + list(flat(derived, where))
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise UsageError(
            f"{', '.join(sorted(twice))} is set twice",
            where=where,
            remedy="a key stands in one of set, zip and derive",
        )
    return [tuple(itertools.chain.from_iterable(parts)) for parts in itertools.product(*axes)]


def setting(key: str, value: object, where: str) -> Setting:
    """A key's value as the engine takes it: text of a size or a count is a number."""
    found = variations.read_value(key, value, where) if isinstance(value, str) else value
    if isinstance(found, int) and not isinstance(found, bool) and _may_be_broken(key):
        # Else 13 and 13.0 were two runs.
        found = float(found)
    return Setting(key, found, str(value))


def _may_be_broken(key: str) -> bool:
    """Whether the values of a key need not be whole numbers."""
    return re.sub(r"\[\d+\]", "[]", key) in _broken_keys()


@functools.cache
def _broken_keys() -> frozenset[str]:
    """Those keys, of any kind that a table or a memory may be."""
    kinds = (("machine", ""), ("scheme", variations.SCHEME))
    return frozenset(
        f"{prefix}{one['key']}"
        for kind, prefix in kinds
        for one in engine.describe(kind)
        if one["type"] == "number"
    )


def _several(values: object, key: str, where: str) -> list[Any]:
    found = values if isinstance(values, list) else [values]
    if not found:
        raise UsageError(f"{key} has no values", where=where, remedy="give at least one")
    return found


def value_of(machine: Mapping[str, Any], key: str, where: str) -> object:
    """The value of a dotted key.

    Raises:
        UsageError: If the machine has none.
    """
    found: Any = machine
    for step in _steps(key):
        try:
            found = found[step]
        except (KeyError, IndexError, TypeError):
            raise UsageError(
                f"the machine {machine.get('name')} has no {key}",
                where=where,
                remedy="`flatwalk list keys` shows what a machine may have",
            ) from None
    return found


def _steps(key: str) -> list[str | int]:
    """The steps to a key; tables of an array are numbered from 1."""
    steps: list[str | int] = []
    for part in key.split("."):
        name, bracket, number = part.partition("[")
        steps.append(name)
        if bracket:
            steps.append(int(number.removesuffix("]")) - 1)
    return steps


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def evaluated(expression: str, machine: Mapping[str, Any], where: str) -> int | float:
    """The value of an expression of numbers, machine's keys, `+ - * / // %`, parentheses, `min`, `max`.

    Raises:
        UsageError: If it is not one, or divides by 0.
    """
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _not_understood(expression, where) from None
    try:
        value = _evaluate(tree.body, expression, machine, where)
    except (ZeroDivisionError, OverflowError):
        raise UsageError(f"{expression!r} has no value", where=where, remedy="it divides by 0") from None
    except RecursionError:
        raise _not_understood(expression, where) from None
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{expression!r} has no value", where=where, remedy="it is not a finite number")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _not_understood(expression: str, where: str) -> UsageError:
    return UsageError(
        f"expression {textwrap.shorten(repr(expression), 80, placeholder=' …')} not understood",
        where=where,
        remedy='as "llc.size_bytes / 16", of numbers, keys, + - * / // %, parentheses, min and max',
    )


def _evaluate(node: ast.expr, expression: str, machine: Mapping[str, Any], where: str) -> int | float:
    def inner(part: ast.expr) -> int | float:
        return _evaluate(part, expression, machine, where)

    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            result = _OPERATORS[type(op)](inner(left), inner(right))
            assert isinstance(result, int | float)
            return result
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -inner(operand)
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, *_] as parts, keywords=[]):
            return (min if name == "min" else max)(map(inner, parts))
        case ast.Name() | ast.Attribute() | ast.Subscript() if _KEY.fullmatch(key := ast.unparse(node)):
            value = value_of(machine, key, where)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return value
    raise _not_understood(expression, where)
