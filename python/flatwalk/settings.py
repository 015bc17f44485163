"""Schemes and machines: found by name or path, read from TOML, checked key by key.

The engine checks the values' sense again; here a person learns which file and key to mend, and what
a misspelt key was probably meant to be.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

DATA = Path(__file__).parent / "data"

#: The schemes that `compare` runs unless told otherwise. The first is the baseline: what today's
#: machines do.
DEFAULT_SCHEMES = (
    "radix4",
    "radix3",
    "radix5",
    "fpt-l4l3",
    "fpt-l3l2",
    "fpt-l2l1",
    "fpt",
    "fpt-nonf",
    "radix4+ptp",
    "fpt+ptp",
    "ideal",
)


def _text(value: object) -> str | None:
    return None if isinstance(value, str) and value.strip() else "must be a text that is not empty"


def _whole(least: int = 1) -> Callable[[object], str | None]:
    def check(value: object) -> str | None:
        fine = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return None if fine else f"must be a whole number, at least {least}"

    return check


def _flag(value: object) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _number(value: object) -> str | None:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return None if fine else "must be a number, not negative"


def _one_of(*choices: object) -> Callable[[object], str | None]:
    def check(value: object) -> str | None:
        if value in choices:
            return None
        near = _nearest(str(value), [str(choice) for choice in choices])
        hint = f"; did you mean {near}?" if near else ""
        return f"must be one of {', '.join(map(repr, choices))}{hint}"

    return check


def _list_of(check: Callable[[object], str | None]) -> Callable[[object], str | None]:
    def check_all(value: object) -> str | None:
        if not isinstance(value, list):
            return "must be a list"
        return next((problem for item in value if (problem := check(item))), None)

    return check_all


@dataclass(frozen=True)
class _Table:
    """A TOML table. `variants` adds keys by the value of the key `kind`; `open`: others are not looked at."""

    keys: Mapping[str, object]  # a check, a _Table or a _Tables
    optional: frozenset[str] = frozenset()
    variants: Mapping[str, Mapping[str, object]] | None = None
    open: bool = False


@dataclass(frozen=True)
class _Tables:
    """An array of TOML tables."""

    item: _Table


_CACHE = _Table(
    {"size_bytes": _whole(64), "ways": _whole(), "latency_cycles": _whole(), "mshrs": _whole()},
)
_TLB = _Tables(
    _Table(
        {
            "pages": _list_of(_one_of("4K", "2M", "1G")),
            "entries": _whole(),
            "ways": _whole(),
            "latency_cycles": _whole(),
        }
    )
)
#: What a page table of any organisation has; the organisation's own parameters are the engine's to check.
_TABLE = _Table(
    {
        "organisation": _text,
        "levels": _one_of(3, 4, 5),
        "geometry": _Table({"page_shift": _whole(), "index_bits": _whole()}),
    },
    optional=frozenset({"geometry"}),
    open=True,
)
_HOST_TABLE = _Table({"organisation": _text, "levels": _one_of(3, 4, 5)}, open=True)

#: What a scheme can switch on beside its table.
_MECHANISMS: dict[str, object] = {
    "asap": _Table({"range_registers": _whole()}),
    "direct_segment": _Table({"memory_fraction": _number}),
    "pom_tlb": _Table({"size_bytes": _whole(), "predictor_entries": _whole()}),
    "shadow": _flag,
    "recursive_index": _whole(256),
    "csalt": _Table({"epoch_accesses": _whole(), "translation_weight": _number}),
}

_SCHEME = _Table(
    {
        "name": _text,
        "title": _text,
        "description": _text,
        "source": _text,
        "table": _TABLE,
        "page_table_priority": _one_of("off", "phases", "always"),
        **_MECHANISMS,
        "translation": _one_of("walked", "free"),
        "recorded": _flag,
        "host": _Table(
            {"table": _HOST_TABLE, "direct_segment": _flag}, optional=frozenset({"direct_segment"})
        ),
    },
    optional=frozenset({"page_table_priority", "translation", "recorded", "host", *_MECHANISMS}),
)

_PWC = _Table(
    {},
    variants={
        "split": {
            "latency_cycles": _whole(0),
            "entries": _Table(
                {level: _whole(0) for level in ("L2", "L3", "L4", "L5")},
                optional=frozenset({"L2", "L3", "L4", "L5"}),
            ),
        },
        "unified": {"latency_cycles": _whole(0), "entries": _whole(), "ways": _whole()},
        "vhpt": {"handler_cycles": _whole(0)},
        "none": {},
    },
)

_MACHINE = _Table(
    {
        "name": _text,
        "title": _text,
        "source": _text,
        "frequency_mhz": _whole(),
        "core": _Table(
            {
                "width": _whole(),
                "window": _whole(),
                "load_queue": _whole(),
                "store_queue": _whole(),
                "frontend_cycles": _whole(0),
                "branch_predictor": _one_of("gshare", "perfect"),
                "branch_history_bits": _whole(),
            }
        ),
        "l1i": _CACHE,
        "l1d": _CACHE,
        "l2": _CACHE,
        "llc": _CACHE,
        "memory": _Table(
            {},
            variants={
                "ddr4": {
                    "channels": _whole(),
                    "ranks": _whole(),
                    "banks": _whole(),
                    "row_bytes": _whole(64),
                    "data_rate_mts": _whole(),
                    "cl_ns": _number,
                    "rcd_ns": _number,
                    "rp_ns": _number,
                    "controller_ns": _number,
                },
                "fixed": {"latency_ns": _number, "bandwidth_gbs": _number},
            },
        ),
        "multicore": _Table({"cores": _whole(), "isolation": _one_of("owners", "ways")}),
        "energy": _Table({"l1d_pj": _number, "l2_pj": _number, "llc_pj": _number}),
        "tlb": _Table({"l1i": _TLB, "l1d": _TLB, "l2": _TLB}, optional=frozenset({"l1i", "l2"})),
        "pwc": _PWC,
        "hashed_walks": _Table(
            {
                "hash_cycles": _whole(0),
                "cwc_latency_cycles": _whole(0),
                "cwc_entries": _Table(
                    {level: _whole(0) for level in ("L2", "L3")}, optional=frozenset({"L2", "L3"})
                ),
                "end": _one_of("matching_probe", "last_probe"),
            }
        ),
        "virtualisation": _Table(
            {
                "pwc": _PWC,
                "nested_tlb": _TLB,
                "guest_pwc": _one_of("guest_physical", "host_physical"),
                "exit_cycles": _whole(0),
            },
            optional=frozenset({"nested_tlb"}),
        ),
        "walker": _Table({"concurrent": _whole(), "entry": _one_of("l1d", "l2")}),
        "priority": _Table(
            {
                "evict_data_percent": _whole(0),
                "window_instructions": _whole(),
                "enter_l2_tlb_mpki": _number,
                "enter_l2_data_miss_ratio": _number,
                "exit_fraction": _number,
            }
        ),
        "os": _Table(
            {"fault_cycles": _whole(0), "zero_bytes_per_cycle": _whole(), "memory_bytes": _whole(1 << 30)}
        ),
    },
    optional=frozenset(
        {
            *("core", "l1i", "l1d", "l2", "llc", "memory", "energy"),
            *("multicore", "hashed_walks", "virtualisation"),
        }
    ),
)


_MIX = _Table({"name": _text, "title": _text, "source": _text, "programs": _list_of(_text)})


def _nearest(word: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)), None)


def _problems(value: object, spec: object, key: str) -> Iterator[tuple[str, str]]:
    """Every problem of `value` as (key, what is wrong with it)."""
    if isinstance(spec, _Tables):
        if not isinstance(value, list):
            yield key, f"must be an array of tables: write [[{key}]]"
            return
        for number, item in enumerate(value, start=1):
            yield from _problems(item, spec.item, f"{key}[{number}]")
    elif isinstance(spec, _Table):
        if not isinstance(value, dict):
            yield key, f"must be a table: write [{key}]"
            return
        yield from _table_problems(value, spec, f"{key}." if key else "")
    elif callable(spec) and (problem := spec(value)):
        yield key, f"{problem} (it is {value!r})"


def _table_problems(table: dict[str, Any], spec: _Table, prefix: str) -> Iterator[tuple[str, str]]:
    keys = dict(spec.keys)
    if spec.variants is not None:
        keys["kind"] = _one_of(*spec.variants)
        keys |= spec.variants.get(str(table.get("kind")), {})
        if table.get("kind") not in spec.variants:  # the other keys cannot be judged
            table = {"kind": table["kind"]} if "kind" in table else {}
            keys = {"kind": keys["kind"]}
    for key, value in table.items():
        if key in keys:
            yield from _problems(value, keys[key], prefix + key)
        elif spec.open:
            continue
        elif key == "organisation":
            section = f"{prefix}table"
            rest = "levels, geometry = { page_shift = ..., index_bits = ... } and its own parameters"
            yield prefix + key, f"belongs in [{section}], with {rest} as keys of that section"
        elif near := _nearest(key, keys):
            yield prefix + key, f"is no known key; did you mean {near}?"
        else:
            yield prefix + key, f"is no known key; known here: {', '.join(sorted(keys))}"
    for key in keys:
        if key not in table and key not in spec.optional:
            yield prefix + key, "is missing"


def _folder(kind: str) -> Path:
    """Where the shipped settings of a kind are."""
    return DATA / ("mixes" if kind == "mix" else f"{kind}s")


def _load(path: Path, spec: _Table, kind: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"the {kind} file cannot be read: {error.strerror}",
            where=str(path),
            remedy="check the path and its permissions",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the {kind} file is no TOML: {error}", where=str(path), remedy="mend the line named"
        ) from error
    problems = [f"{key} {problem}" for key, problem in _problems(table, spec, "")]
    if problems:
        raise UsageError(
            f"not a valid {kind}: " + "\n         ".join(problems),
            where=str(path),
            remedy=f"compare with the shipped ones in {_folder(kind)}",
        )
    return table


def _find(name: str, kind: str, spec: _Table, where: str) -> dict[str, Any]:
    """Loads a setting by its shipped name, or by path if `name` looks like one."""
    if "/" in name or name.endswith(".toml"):
        return _load(Path(name), spec, kind)
    path = _folder(kind) / f"{name}.toml"
    if not path.is_file():
        near = _nearest(name, names(kind))
        remedy = f"`flatwalk list {_folder(kind).name}` shows all; your own: by path, as ./{name}.toml"
        raise UsageError(
            f"there is no {kind} {name!r}",
            where=where,
            remedy=f"did you mean {near}? {remedy}" if near else remedy,
        )
    return _load(path, spec, kind)


def names(kind: str) -> list[str]:
    """Names of the shipped settings of a kind (`scheme`, `machine` or `mix`), in alphabetical order."""
    return sorted(path.stem for path in _folder(kind).glob("*.toml"))


def scheme(name: str, where: str = "--schemes") -> dict[str, Any]:
    """The scheme of that shipped name, or in that TOML file.

    Raises:
        UsageError: If there is none, or the file is no valid scheme.
    """
    return _find(name, "scheme", _SCHEME, where)


def guest(pair: str, where: str = "--virt") -> dict[str, Any]:
    """The scheme `GUEST/HOST`: a process in a guest, its table as the scheme GUEST says, the host's as HOST.

    Raises:
        UsageError: If it is no pair of native schemes, by name or path.
    """
    own, slash, other = pair.partition("/")
    if not slash or not own or not other:
        raise UsageError(
            f"{pair!r} is no pair of schemes", where=where, remedy="give GUEST/HOST, as in --virt radix4/fpt"
        )
    schemes = [scheme(own, where), scheme(other, where)]
    for member in schemes:
        if "host" in member:
            raise UsageError(
                f"{member['name']} is a guest and its host already",
                where=where,
                remedy=f"name it with --schemes {member['name']}",
            )
        if member.get("recorded"):
            raise UsageError(
                f"{member['name']} is the table of a machine, not of a guest or host that is simulated",
                where=where,
                remedy=f"name it with --schemes {member['name']}",
            )
    first, second = schemes
    host: dict[str, Any] = {
        "table": {key: value for key, value in second["table"].items() if key != "geometry"}
    }
    if "direct_segment" in second:
        host["direct_segment"] = True
    return {
        **first,
        "name": pair,
        "title": f"{first['title']}, in a guest",
        "description": f"In the guest: {first['description']} In the host: {second['description']}",
        "source": f"{first['source']}; host: {second['source']}",
        "host": host,
    }


def machine(name: str, where: str = "--machine") -> dict[str, Any]:
    """The machine of that shipped name, or in that TOML file.

    Raises:
        UsageError: If there is none, or the file is no valid machine.
    """
    return _find(name, "machine", _MACHINE, where)


def mix(name: str, where: str = "--mix") -> dict[str, Any]:
    """The mix of programs of that shipped name, or in that TOML file.

    Raises:
        UsageError: If there is none, or the file is no valid mix.
    """
    return _find(name, "mix", _MIX, where)


def is_timed(machine: Mapping[str, Any]) -> bool:
    """Whether a machine has a core and caches, so that it can run in timing mode."""
    return "core" in machine
