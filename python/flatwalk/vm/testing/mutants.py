"""Guards of the kernel series that are left out, one after the other, to see whether the tests notice."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flatwalk import output
from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.vm import components
from flatwalk.vm.testing import cases
from flatwalk.vm.testing.cases import Case
from flatwalk.vm.testing.judging import FAIL, MISSING, during, mistake, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from flatwalk.vm.testing.judging import Result

#: All guards, and where each is noticed.
TABLE = components.MUTANTS_LINUX.directory / "mutants" / "mutants.toml"
#: The kernel ends at its first complaint, whichever it is, and so does the guest.
_STRICT = ("page_poison=1", "panic_on_warn=1", "panic_on_taint=0xffffffff", "hung_task_panic=1")
#: Shorter than what is made long so that QEMU sees it, and longer than all else that is.
_GRACE_MS = 100
#: Little, so that it is short soon.
_MEMORY = "768M"
#: Addresses and names that a complaint has by chance.
_CHANCE = re.compile(r"0x[0-9a-f]{5,}|\b[0-9a-f]{12,16}\b")
_LENGTH = 90


@dataclass(frozen=True)
class Mutant:
    """A guard that can be left out."""

    #: What the kernel, and the model of the protocol, call it being left out.
    name: str
    #: Where it is in the series, and what.
    at: str
    #: The tests that must notice.
    tests: tuple[str, ...] = ()
    #: The machine on which they do.
    mode: str = "l2l1"
    isolated: bool = False
    #: Why none can notice, if so.
    unseen: str = ""

    def case(self, left_out: str = "") -> Case:
        """Its tests on its machine.

        Args:
            left_out: The guard that is left out; itself if empty, or `none`.
        """
        left_out = left_out or self.name
        machine = cases.usual_machine(4, kernel="mutants")
        if self.isolated:
            machine = cases.isolated_machine(machine)
        words = (*machine.parameters, *_STRICT, f"flat_page_tables_without={left_out}")
        machine = replace(machine, mode=self.mode, memory=_MEMORY, grace_ms=_GRACE_MS, parameters=words)
        return Case(self.name, machine, self.tests, left_out=left_out)


def read(path: Path = TABLE) -> list[Mutant]:
    """All mutants of a table.

    Raises:
        FlatwalkError: If there is no such table, or it is wrong.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
        return [Mutant(**{**each, "tests": tuple(each.get("tests", ()))}) for each in found]
    except OSError as error:
        raise FlatwalkError(
            f"the table of guards cannot be read: {error.strerror}",
            where=str(path),
            remedy="run this from a checkout of the repository",
        ) from error
    except (tomllib.TOMLDecodeError, LookupError, TypeError) as error:
        raise FlatwalkError(
            f"the table of guards is wrong: {error}", where=str(path), remedy="see its first lines"
        ) from error


def chosen(mutants: Sequence[Mutant], only: Sequence[str]) -> list[Mutant]:
    """Some of the mutants, by name; all if none are named.

    Raises:
        UsageError: If there is no such mutant, or it cannot be noticed.
    """
    known = {mutant.name: mutant for mutant in mutants}
    for name in only:
        if name not in known:
            raise UsageError(
                f"there is no guard {name}", where="--only", remedy=f"give one of {', '.join(known)}"
            )
        if known[name].unseen:
            raise UsageError(
                f"no test can notice {name}: {known[name].unseen}",
                where="--only",
                remedy="give another guard",
            )
    return [known[name] for name in only] or list(mutants)


def planned(mutants: Sequence[Mutant]) -> list[Case]:
    """What is booted: first each machine with all guards, where nobody may complain, then each mutant."""
    seen = [mutant for mutant in mutants if not mutant.unseen]
    tests: dict[Case, dict[str, None]] = {}
    for mutant in seen:
        control = replace(mutant.case("none"), name=_machine_name(mutant), tests=(), flattens=True)
        tests.setdefault(control, {}).update(dict.fromkeys(mutant.tests))
    controls = [replace(control, tests=tuple(names)) for control, names in tests.items()]
    return [*controls, *(mutant.case() for mutant in seen)]


def _machine_name(mutant: Mutant) -> str:
    """What a machine with all guards is called."""
    return f"all guards, {_mode(mutant)}"


def _mode(mutant: Mutant) -> str:
    """Its mode, and whether page tables are isolated."""
    return f"{mutant.mode}, isolated" if mutant.isolated else mutant.mode


def noticed(result: Result) -> tuple[str, str]:
    """What noticed that a guard is left out, and in which test; both empty if nothing did."""
    running = next((name for name in result.case.tests if name not in result.tests), "")
    for complaint in result.complaints:
        if MISSING in complaint:
            # Which vCPU and address is chance.
            return "QEMU: a flush is missing", running
        text = _CHANCE.sub("", mistake(complaint)).strip()
        return shortened(text, _LENGTH), during(complaint) or running
    for name, verdict in result.verdicts.items():
        if verdict.word == FAIL:
            return verdict.reason, name
    if running and result.problems:
        return "the guest did not end", running
    return "", ""


def missed(results: Sequence[Result]) -> list[str]:
    """What is wrong: complaints although all guards are there, and guards that nobody misses."""
    problems = []
    for result in results:
        if not result.case.mutated:
            problems += [f"{result.case.name}: {problem}" for problem in result.problems]
        elif not noticed(result)[0]:
            problems.append(f"{result.case.name}: nothing noticed that it was left out")
    return problems


def table(mutants: Sequence[Mutant], results: Sequence[Result]) -> str:
    """A row for each guard: where it is, what noticed that it was left out, in which mode and test."""
    by_name = {result.case.name: result for result in results}

    def line(mutant: Mutant) -> list[str]:
        start = [f"`{mutant.name}`", mutant.at]
        result = by_name.get(mutant.name)
        if result is None:
            return [*start, "–", "–", f"nothing: {mutant.unseen}" if mutant.unseen else "not booted"]
        what, test = noticed(result)
        return [*start, _mode(mutant), test or "–", what or "**nothing**"]

    return output.markdown(("left out", "where", "mode", "test", "noticed by"), 5, map(line, mutants))
