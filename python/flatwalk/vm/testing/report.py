"""What was tested and how it ended: a table, and JSON from which a later call can go on."""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import TYPE_CHECKING, Any

from flatwalk import cache
from flatwalk.errors import UsageError
from flatwalk.terminal import output
from flatwalk.vm import build, compiled, components
from flatwalk.vm.machine import Machine
from flatwalk.vm.testing.cases import Case
from flatwalk.vm.testing.judging import (
    BLOCKS,
    DEMOTED,
    FAIL,
    LATER,
    PASS,
    REFUSED,
    SKIP,
    XFAIL,
    FinishedTest,
    Result,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def versions(kernel: str, source: Path | None = None, *, selftests: bool = False) -> dict[str, str]:
    """What was tested, and by what: QEMU's and Linux's base and build, the tests, and the day.

    Args:
        kernel: Of `components.KERNELS`.
        source: The user's own trees, as built by `vm build --source`.
        selftests: Whether tests that come with Linux are among these.
    """
    linux = components.KERNELS[kernel]
    found = {
        component.source_name: _version(build.find(component, source), [component.product])
        for component in (components.QEMU, linux)
    }
    if selftests:
        place = build.find(components.SELFTESTS, source)
        programs = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
        found["selftests"] = _version(place, programs)
    ours = sorted((compiled.SOURCES / "tests").iterdir())
    found["tests"] = cache.key({path.name: cache.digest(path) for path in ours})[:16]
    return found | {"day": datetime.date.today().isoformat()}


def _version(place: Path, products: Sequence[str]) -> str:
    """The base of what was built, and its directory, whose name says what else went into it.

    A user's own tree is built into the same directory each time: there only what came out says which it was.
    """
    base = place / "base"
    if base.is_file():
        return f"{base.read_text(encoding='utf-8').strip()} ({place.name})"
    made = cache.key({name: cache.digest(place / name) for name in products})[:16]
    return f"own tree ({place.name}, {made})"


def summary(results: Sequence[Result]) -> str:
    """A table in Markdown: how many tests ended how in each case, and how blocks fared."""
    headers = (
        *("case", "pass", "skip", "xfail", "FAIL", "complaints"),
        *("blocks", "refused", "later", "given up", "minutes"),
    )
    rows = []
    for result in results:
        missing = sum(name not in result.tests for name in result.case.tests)
        counts = [result.count(PASS), result.count(SKIP), result.count(XFAIL), result.count(FAIL) + missing]
        blocks = [result.counters.get(name, 0) for name in (BLOCKS, REFUSED, LATER, DEMOTED)]
        figures = [*counts, len(result.complaints), *blocks]
        rows.append([result.case.name, *map(str, figures), f"{result.seconds / 60:.1f}"])
    return output.markdown(headers, 1, rows)


def as_dict(results: Sequence[Result], tested: dict[str, str]) -> dict[str, Any]:
    """Everything, for JSON."""
    return {
        "versions": tested,
        "cases": [
            {
                "name": result.case.name,
                "machine": dataclasses.asdict(result.case.machine),
                "failing_percent": result.case.failing,
                "threshold": result.case.threshold,
                "unflushed": result.case.unflushed,
                "left_out": result.case.left_out,
                "flattens": result.case.flattens,
                "planned": list(result.case.tests),
                "seconds": result.seconds,
                "tests": [
                    {
                        "name": name,
                        "verdict": result.verdicts[name].word,
                        "why": result.verdicts[name].reason,
                        **dataclasses.asdict(test),
                    }
                    for name, test in result.tests.items()
                ],
                "counters": result.counters,
                "complaints": result.complaints,
                "problems": result.problems,
            }
            for result in results
        ],
    }


def resumed(path: Path, tested: dict[str, str]) -> list[Result]:
    """The results that an earlier call wrote; empty if there is no such file yet.

    Raises:
        UsageError: If the file is something else, or of another kernel, QEMU or version of the tests.
    """
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        theirs = dict(written["versions"])
        found = [_result(case) for case in written["cases"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            "this is not what `vm test --json` writes", where=str(path), remedy="name another file"
        ) from error
    for what in sorted({*tested, *theirs} - {"day"}):
        if theirs.get(what) != tested.get(what):
            raise UsageError(
                f"its results are of {what} {theirs.get(what, 'none')}, not {tested.get(what, 'none')}",
                where=str(path),
                remedy="name another file, or leave --resume out, so that everything runs again",
            )
    return found


def _result(written: dict[str, Any]) -> Result:
    """A case's part of `as_dict`, as a result."""
    machine = {**written["machine"], "parameters": tuple(written["machine"]["parameters"])}
    case = Case(
        written["name"],
        Machine(**machine),
        tuple(written["planned"]),
        failing=written["failing_percent"],
        threshold=written["threshold"],
        flattens=written["flattens"],
        unflushed=written["unflushed"],
        left_out=written["left_out"],
    )
    tests = [
        FinishedTest(test["name"], test["status"], test["seconds"], test["reason"], tuple(test["failures"]))
        for test in written["tests"]
    ]
    return Result(
        case,
        {test.name: test for test in tests},
        {test["name"]: Verdict(test["verdict"], test["why"]) for test in written["tests"]},
        written["counters"],
        written["complaints"],
        written["problems"],
        written["seconds"],
    )
