"""Schemes, machines, mixes, experiments and sweeps: found by name or path, read from TOML.

The engine checks them; it knows every key, its meaning and its range. Here each problem gets the file that
it is in, and what a misspelt word was probably meant to be.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import engine
from flatwalk.errors import UsageError
from flatwalk.prototypes import scheme_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flatwalk.engine import Problem

DATA = Path(__file__).parents[1] / "data"
EXPERIMENTS = DATA / "experiments"

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

#: Keys of a scheme that are of its own table alone, and so in a pair of the guest's, though the host's may
#: say the same: a host's kernel does not use the table that it makes for a guest for itself.
_OF_THE_GUEST = frozenset({"recursive_index"})

#: Where every key is explained.
REFERENCE = "docs/settings.md"


def _nearest(word: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)), None)


def words(problem: Problem) -> str:
    """A problem in words, with what is known in place of a word that is not."""
    text = f"{problem['key']} {problem['problem']}".strip()
    known = problem["known"]
    if not known:
        return text
    near = _nearest(problem["given"] or "", known)
    hints = [f"did you mean {near}?"] if near else []
    if near is None or len(known) <= 8:
        hints.append(f"known here: {', '.join(known)}")
    return f"{text}; {' '.join(hints)}"


def _folder(kind: str) -> Path:
    """Where the shipped settings of a kind are."""
    return DATA / ("mixes" if kind == "mix" else f"{kind}s")


#: So many bytes a file of settings has at most; what is longer is something else, as a device.
_LONGEST = 4 << 20


def read_text(path: Path, what: str) -> str:
    """The text of a file or a pipe, with or without a byte-order mark.

    Raises:
        OSError: If it cannot be read.
        UnicodeDecodeError: If it is not UTF-8.
        UsageError: If it is too long.
    """
    with path.open("rb") as file:
        data = file.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise UsageError(f"this is too long to be {what}", where=str(path), remedy="check the path")
    return data.decode("utf-8-sig")


def read(path: Path, kind: str) -> dict[str, Any]:
    """What a file of a kind (`scheme`, `machine`, `mix`, `experiment` or `sweep`) says.

    Raises:
        UsageError: If it cannot be read, or with every problem of it.
    """
    try:
        table = tomllib.loads(read_text(path, f"a file of a {kind}"))
    except OSError as error:
        raise UsageError(
            f"the {kind} file cannot be read: {error.strerror}",
            where=str(path),
            remedy="check the path and its permissions",
        ) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"the {kind} file is not UTF-8 in line {line}", where=str(path), remedy="save it as UTF-8"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"the {kind} file is not valid TOML: {error}", where=str(path), remedy="fix the line named"
        ) from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, tables without end
        raise UsageError(
            f"the {kind} file cannot be read: {error}", where=str(path), remedy="shorten what is that long"
        ) from error
    if problems := engine.check(kind, table):
        raise UsageError(
            f"not a valid {kind}: " + "\n         ".join(map(words, problems)),
            where=str(path),
            remedy=f"{REFERENCE} explains every key; compare with the shipped ones in {_folder(kind)}",
        )
    return table


def _find(name: str, kind: str, where: str) -> dict[str, Any]:
    """Loads a setting by its shipped name, or by path if `name` looks like one."""
    path = _path(name, kind, where)
    table = read(path, kind)
    return _apart(table, name, kind) if path == Path(name) else table


def _is_path(name: str) -> bool:
    """Whether a setting's name is a path."""
    return "/" in name or name.endswith(".toml")


def own_files(text: str | None, where: str) -> list[tuple[Path, str]]:
    """The user's files among names between commas, of schemes, pairs of them, machines or a mix.

    Each with the option that has them.
    """
    members = [member for name in listed(text or "") for member in pair_of(name) or (name,)]
    return [
        (scheme_code.file_of(name) if scheme_code.is_one(name) else Path(name), where)
        for name in members
        if _is_path(name) or scheme_code.is_one(name)
    ]


def _path(name: str, kind: str, where: str) -> Path:
    """The file of a shipped name, or of a path."""
    if _is_path(name):
        return Path(name)
    path = _folder(kind) / f"{name}.toml"
    if not path.is_file():
        near = _nearest(name, names(kind))
        own = f"./{name}.toml" if name.strip(".") else "./mine.toml"
        remedy = f"`flatwalk list {_folder(kind).name}` shows all; your own: by path, as {own}"
        raise UsageError(
            f"there is no {kind} {name!r}",
            where=where,
            remedy=f"did you mean {near}? {remedy}" if near else remedy,
        )
    return path


def _apart(table: dict[str, Any], path: str, kind: str) -> dict[str, Any]:
    """A user's file; with its file name next to its name if that is the name of a shipped one that differs.

    Without folders: however a path is written, a run of it is the same.
    """
    name = table.get("name")
    shipped = _folder(kind) / f"{name}.toml"
    if name not in names(kind) or read(shipped, kind) == table:
        return table
    return table | {"name": f"{name} ({Path(path).name})"}


def distinct(found: Sequence[tuple[str, dict[str, Any]]], kind: str, where: str) -> list[dict[str, Any]]:
    """Settings of a kind, each by what the user wrote, with names that differ.

    Raises:
        UsageError: If two have one name and are not both files.
    """
    taken: dict[str, dict[str, Any]] = {}
    for text, table in found:
        name = table["name"]
        if name in taken and taken[name] != table and name != (own := f"{name} ({text})"):
            name = own
        if name in taken:
            raise UsageError(
                f"two {kind}s are called {name}", where=where, remedy=f"leave out one of them: {text}"
            )
        taken[name] = table | {"name": name}
    return list(taken.values())


def listed(text: str) -> list[str]:
    """Names between commas, each once."""
    return [name for name in dict.fromkeys(map(str.strip, text.split(","))) if name]


def check_any_scheme(schemes: Sequence[object]) -> None:
    """Checks that `--schemes`, or what stands for it, names one.

    Raises:
        UsageError: If not.
    """
    if not schemes:
        raise UsageError("no scheme is named", where="--schemes", remedy="as in --schemes radix4,fpt")


def names(kind: str) -> list[str]:
    """Names of the shipped settings of a kind, as `read` knows them, in alphabetical order."""
    return sorted(path.stem for path in _folder(kind).glob("*.toml"))


def scheme(name: str, where: str = "--schemes") -> dict[str, Any]:
    """The scheme of that shipped name, in that TOML file, or of that file of Python, as `FILE.py:NAME`.

    Raises:
        UsageError: If there is none, or the file is not a valid scheme.
        FlatwalkError: If a file of Python raises an exception.
    """
    if scheme_code.is_one(name):
        return scheme_code.load(name, where, lambda: scheme(DEFAULT_SCHEMES[0]))
    return _find(name, "scheme", where)


def guest(pair: str, where: str = "--virt") -> dict[str, Any]:
    """The scheme `GUEST/HOST`: a process in a guest, its table as the scheme GUEST says, the host's as HOST.

    Raises:
        UsageError: If it is not a pair of native schemes, by name or path.
    """
    members = pair_of(pair)
    if members is None:
        raise UsageError(
            f"{pair!r} is not a pair of schemes",
            where=where,
            remedy="give GUEST/HOST, as in --virt radix4/fpt",
        )
    schemes = [scheme(member, where) for member in members]
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
    host = _as_host(second, first, where)
    return {
        **first,
        "name": f"{first['name']}/{second['name']}",
        "title": f"{first['title']}, in a guest",
        "description": f"In the guest: {first['description']} In the host: {second['description']}",
        "source": f"{first['source']}; host: {second['source']}",
        "host": host,
    }


def scheme_or_pair(name: str, where: str = "--schemes") -> dict[str, Any]:
    """A scheme as `scheme` finds it, or that pair GUEST/HOST.

    Raises:
        UsageError: If there is none, or the file is not a valid scheme.
    """
    return scheme(name, where) if pair_of(name) is None else guest(name, where)


def pair_of(text: str, folder: Path = Path()) -> tuple[str, str] | None:
    """The names or paths of a pair GUEST/HOST; None where that is one scheme. Paths begin at `folder`."""
    if (folder / re.sub(r"(\.py):[^/]*$", r"\1", text)).is_file():
        return None
    by_path = re.fullmatch(r"(.+?(?:\.toml|\.py|\.py:[^/]*))/(.+)", text)
    guest, host = by_path.groups() if by_path else (text.partition("/")[0], text.partition("/")[2])
    is_path = host.endswith(".toml") or scheme_code.is_one(host)
    if by_path is None and is_path and guest not in names("scheme"):
        return None
    return (guest, host) if guest and host else None


def _as_host(scheme: Mapping[str, Any], guest: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What of a native scheme its table has as a host's, under the scheme `guest`: the keys that a host has.

    A host's geometry is x86-64's. What else has no settings for hosts, as most mechanisms and free
    translation, is of both tables or none.

    Raises:
        UsageError: If `scheme` has another geometry, or says such a thing that `guest` does not say, too.
    """
    if "geometry" in scheme["table"]:
        raise UsageError(
            f"{scheme['name']} cannot be a host's scheme: table.geometry is x86-64's in a host",
            where=where,
            remedy=f"choose another host: {guest['name']}/radix4",
        )
    schema = engine.schema("scheme")
    known = schema["$defs"]["HostTable"]["properties"]
    host: dict[str, Any] = {"table": dict(scheme["table"])}
    for name, value in scheme.items():
        if name in {"name", "title", "description", "source", "table"}:
            continue
        # Saying what holds anyway is saying nothing.
        default = schema["properties"].get(name, {}).get("default", False)
        if name in known and isinstance(value, dict):
            of_host = known[name].get("properties", {})
            host[name] = {key: one for key, one in value.items() if key in of_host}
        elif value not in (default, default if name in _OF_THE_GUEST else guest.get(name, default)):
            what = f"[{name}]" if isinstance(value, dict | list) else f"key {name}"
            remedy = f"what helps both tables stands in the guest's scheme: {scheme['name']}/radix4"
            if name in _OF_THE_GUEST:
                remedy = f"name it as the guest's alone: {scheme['name']}/radix4"
            elif name == "shadow":
                remedy = f"a shadow table stands in the place of a host's: name {scheme['name']} alone"
            raise UsageError(
                f"{scheme['name']} cannot be a host's scheme: a host has no {what}",
                where=where,
                remedy=remedy,
            )
    return host


def machine(name: str, where: str = "--machine") -> dict[str, Any]:
    """The machine of that shipped name, or in that TOML file.

    Raises:
        UsageError: If there is none, or the file is not a valid machine.
    """
    return _find(name, "machine", where)


def mix(name: str, where: str = "--mix") -> dict[str, Any]:
    """The mix of programs of that shipped name, or in that TOML file.

    Raises:
        UsageError: If there is none, or the file is not a valid mix.
    """
    return _find(name, "mix", where)


def sweep(name: str, where: str = "SWEEP") -> tuple[dict[str, Any], Path]:
    """The sweep of that shipped name, or in that TOML file, and the file's path.

    Raises:
        UsageError: If there is none, or the file is not a valid sweep.
    """
    path = _path(name, "sweep", where)
    return read(path, "sweep"), path


def is_timed(machine: Mapping[str, Any]) -> bool:
    """Whether a machine has a core and caches, so that it can run in timing mode."""
    return "core" in machine
