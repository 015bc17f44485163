"""Result files of `flatwalk host`: what was measured, on what, and with which parameters."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.terminal.output import as_json, write_whole

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "flatwalk-host/4"
_KEYS = {
    "bench": str,
    "version": str,
    "unit": str,
    "rate": bool,
    "parameters": dict,
    "host": dict,
    "cpus": list,
    "samples": list,
    "titles": dict,
    "busy": dict,
    "started": str,
    "skipped": list,
    "warnings": list,
    "notes": list,
    "histograms": dict,
}

#: What `flatwalk host BENCH --save` writes. Keys as above, and: schema, seconds, seed. `started` is
#: ISO 8601. A sample: variant, round, value, answer, counts, preemptions,
#: controls_nanoseconds by control (host/src/controls.rs).
Result = dict[str, Any]


def save(path: Path, result: Result) -> None:
    """Writes a result file in one step."""
    write_whole(path, as_json(result, indent=1) + "\n")


def load(path: Path) -> Result:
    """Reads a result file.

    Raises:
        UsageError: If it is not a result, or of another version of the format.
        FlatwalkError: If it cannot be read.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}", remedy="check the path") from error
    except OSError as error:
        raise FlatwalkError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _not_ours(path, f"it is not valid JSON ({error})") from error
    if not isinstance(result, dict):
        raise _not_ours(path, "it does not hold a JSON object")
    schema = result.get("schema")
    if not isinstance(schema, str) or not schema.startswith("flatwalk-host/"):
        raise _not_ours(path, f"it does not say that its schema is {SCHEMA}")
    if schema != SCHEMA:
        raise UsageError(
            f"{path} has format {schema}; this flatwalk reads {SCHEMA}",
            remedy="measure again, or use the flatwalk that wrote it",
        )
    for key, kind in _KEYS.items():
        if not isinstance(result.get(key), kind):
            raise _not_ours(path, f"its key {key} is missing or of the wrong kind")
    if not isinstance(result["host"].get("cpu", {}), dict):
        raise _not_ours(path, "its key host.cpu is of the wrong kind")
    for number, sample in enumerate(result["samples"]):
        if not _is_measurement(sample):
            raise _not_ours(path, f"its sample {number} is not a measurement")
    return result


def _is_measurement(sample: object) -> bool:
    if not isinstance(sample, dict) or not isinstance(sample.get("variant"), str):
        return False
    controls = sample.get("controls_nanoseconds")
    return isinstance(controls, dict) and all(map(_positive, [sample.get("value"), *controls.values()]))


def _positive(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value <= sys.float_info.max  # a whole number may be larger


def _not_ours(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is not a result of flatwalk host: {why}",
        remedy="make one: flatwalk host pagefault --save FILE",
    )


def values(result: Result) -> dict[str, list[float]]:
    """Measured values by variant, in the order of `titles`, and without one in that of measurement."""
    found: dict[str, list[float]] = {}
    for sample in result["samples"]:
        found.setdefault(sample["variant"], []).append(sample["value"])
    return {variant: found[variant] for variant in _ordered(result, found)}


def controls(result: Result) -> dict[str, list[float]]:
    """What each control took, by control: a mean over each round's variants, in the order of measurement."""
    by_round: dict[Any, list[dict[str, float]]] = {}
    for sample in result["samples"]:
        by_round.setdefault(sample.get("round"), []).append(sample["controls_nanoseconds"])
    common = (
        set.intersection(*(set(one) for turn in by_round.values() for one in turn)) if by_round else set()
    )
    return {
        name: [sum(one[name] for one in turn) / len(turn) for turn in by_round.values()]
        for name in sorted(common)
    }


def _ordered(result: Result, found: dict[str, list[float]]) -> list[str]:
    titles = result["titles"]
    return [*(name for name in titles if name in found), *(name for name in found if name not in titles)]


def changed(result: Result) -> tuple[str, str]:
    """What the worse of two results is called, and what the better: times or instructions."""
    return ("higher", "lower") if result["unit"].startswith("instructions") else ("slower", "faster")


def answers(result: Result, variant: str, key: str) -> list[float]:
    """What each measurement of a variant reported in addition to its value."""
    return [
        sample["answer"][key]
        for sample in result["samples"]
        if sample["variant"] == variant and key in sample["answer"]
    ]


def counts(result: Result, variant: str) -> dict[str, float]:
    """Mean of what was counted, by event; events without the kernel's part end in :u."""
    sums: dict[str, list[float]] = {}
    for sample in result["samples"]:
        if sample["variant"] == variant:
            for count in sample["counts"]:
                name = count["name"] if count["kernel"] else f"{count['name']}:u"
                sums.setdefault(name, []).append(count["value"])
    return {name: sum(found) / len(found) for name, found in sums.items()}


def check_comparable(a: Result, b: Result, names: tuple[str, str], *, other_host: bool) -> None:
    """Checks that a difference between two results would mean something.

    Raises:
        UsageError: If they differ in bench, version or parameters, or (unless `other_host`) machine.
    """
    for key, what in (("bench", "different benches"), ("version", "different versions of flatwalk")):
        if a[key] != b[key]:
            raise UsageError(
                f"the files are of {what}: {a[key]} and {b[key]}",
                where=f"{names[0]}, {names[1]}",
                remedy="compare results of the same bench and version"
                if key == "bench"
                else "measure both with the same flatwalk",
            )
    differing = [
        f"{key} ({a['parameters'].get(key)} and {b['parameters'].get(key)})"
        for key in sorted(a["parameters"].keys() | b["parameters"].keys())
        if a["parameters"].get(key) != b["parameters"].get(key)
    ]
    if differing:
        raise UsageError(
            f"the files were measured with different parameters: {', '.join(differing)}",
            where=f"{names[0]}, {names[1]}",
            remedy="measure both with the same options",
        )
    if not other_host and (elsewhere := _other_machine(a["host"], b["host"])):
        raise UsageError(
            f"the files are from different machines: {elsewhere}",
            where=f"{names[0]}, {names[1]}",
            remedy="give --other-host if that is what you want to compare",
        )


def check_host(result: Result, host: dict[str, Any], name: str) -> None:
    """Checks that a result was measured on this host.

    Raises:
        UsageError: If it was not.
    """
    if elsewhere := _other_machine(result["host"], host):
        raise UsageError(
            f"the file was measured on another machine: {elsewhere}",
            where=name,
            remedy="measure on this one, or ask for advice on that one",
        )


def _other_machine(a: dict[str, Any], b: dict[str, Any]) -> str | None:
    model_a, model_b = (host.get("cpu", {}).get("model_name") for host in (a, b))
    if model_a != model_b:
        return f"{model_a} and {model_b}"
    id_a, id_b = a.get("machine"), b.get("machine")
    if id_a and id_b and id_a != id_b:
        return f"two machines with {model_a}"
    return None


def changes(a: Result, b: Result) -> list[str]:
    """What differs between two results but what was measured, one line each: processors, and the host."""
    ran = [", ".join(map(str, one["cpus"])) for one in (a, b)]
    return ([f"processors: {ran[0]} → {ran[1]}"] if ran[0] != ran[1] else []) + host_changes(
        a["host"], b["host"]
    )


def host_changes(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> list[str]:
    """What differs between two hosts' records, one line each."""
    changes = []
    for key in [*a, *(key for key in b if key not in a)]:
        before, after = a.get(key), b.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            changes += host_changes(before, after, f"{prefix}{key}.")
        elif before != after:
            changes.append(f"{prefix}{key}: {_as_text(before)} → {_as_text(after)}")
    return changes


def _as_text(value: object) -> str:
    return "unknown" if value is None else value if isinstance(value, str) else json.dumps(value)
