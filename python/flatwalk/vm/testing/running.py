"""Boots the cases one after the other and reads what their guests report."""

from __future__ import annotations

import io
import math
import shutil
import time
from collections.abc import Sized
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError
from flatwalk.vm import build, compiled, components, kept
from flatwalk.vm import run as guest
from flatwalk.vm.testing import mutants
from flatwalk.vm.testing.cases import FOREIGN, STRESSORS
from flatwalk.vm.testing.judging import FAIL, FinishedTest, Result, complaints, differences, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from _typeshed import ReadableBuffer

    from flatwalk.vm.testing.cases import Case

#: A test that runs for so many times as long as it may was not even ended by the signal that kills it.
_HANGING = 1.5
#: Swap space by kernel: with the last, memory is to be short soon.
_SWAP_MIB = {"usual": 512, "debug": 512, "kcsan": 512, "mutants": 96, "nested": 512}


def run(
    planned: Iterable[Case],
    *,
    minutes: float = math.inf,
    logs: Path | None = None,
    source: Path | None = None,
    say: Callable[[str], None] = print,
    before: Sequence[Result] = (),
    keep: Callable[[Sequence[Result]], None] = lambda _: None,
) -> list[Result]:
    """Boots each case and compares its results with those of the first, which is `off`.

    Args:
        planned: What to boot; without end if `minutes` are given.
        minutes: How long guests are to run in all, those of `before` included: then none begins.
        logs: Where each guest's output is kept.
        source: The user's own trees, as built by `vm build --source`.
        say: Takes a line for each test as it ends.
        before: Results of cases that need not be booted again.
        keep: Takes all results, also of other cases, whenever a case has ended.

    Raises:
        UsageError: If no log can be written.
        FlatwalkError: If QEMU, Linux or its selftests are not built, stress-ng is needed and missing, no log
            can be written any more, or the host cannot run a guest, which says nothing of its kernel.
    """
    if logs is not None:
        kept.make_directory(logs, "--logs")
    results: list[Result] = []
    for number, case in enumerate(planned, 1):
        spent = sum(result.seconds for result in results) / 60
        if spent >= minutes:
            break
        # Before the first of a tier boots, what is missing for all is said: it has every test of theirs.
        selftests = _needed(case, source)
        done = (
            f"{number} of {len(planned)}"
            if isinstance(planned, Sized)
            else f"{spent:.0f} of {minutes:g} minutes"
        )
        title = f"{case.name} ({done})"
        if known := next((result for result in before if result.case == case), None):
            say(f"{title}: already complete")
            results.append(known)
            continue
        say(title)
        result = Result(case)
        off = results[0] if results else result
        start = time.monotonic()
        try:
            _boot(result, GuestOutput(result, off, say), logs, source, selftests)
        except guest.GuestLostError as error:
            result.complaints += complaints(error.log, error.messages)
            result.problems.append(str(_lost(error, case)))
        result.seconds = round(time.monotonic() - start, 1)
        result.problems += differences(result, off)
        results.append(result)
        for line in (
            mutants.said(result) if case.mutated else [f"{FAIL}  {problem}" for problem in result.problems]
        ):
            say(f"  {line}")
        ended = [one.case for one in results]
        keep([*results, *(one for one in before if one.case not in ended)])
    return results


def _needed(case: Case, source: Path | None) -> Path | None:
    """Checks that all is there that a case needs; where Linux's own tests are, if it has some of them."""
    build.find(components.QEMU, source)
    build.find(components.KERNELS[case.machine.kernel], source)
    if any(name in STRESSORS or name in ("pressure", "stress") for name in case.tests):
        _check_stress_ng()
    return build.find(components.SELFTESTS, source) if case.has_selftests else None


def _lost(error: guest.GuestLostError, case: Case) -> FlatwalkError:
    """The same as it concerns a case, which no option gives more time."""
    return FlatwalkError(
        error.what,
        where=case.name,
        # As its result is kept, --resume would not boot it again; without that, the file is written anew.
        remedy="look at what its kernel wrote last (--logs); if the host was busy, name this case with "
        "--only, without --resume, and another --json",
    )


def _check_stress_ng() -> None:
    if shutil.which("stress-ng") is None:
        raise FlatwalkError(
            "stress-ng, which some of the tests run, is missing",
            where="--tier full",
            remedy="as root: apt-get install --no-install-recommends stress-ng; or name other --tests",
        )


class GuestOutput(io.BytesIO):
    """The output of a guest's script, parsed as it comes.

    Args:
        result: Takes the tests as they end.
        off: What they are compared with.
        say: Takes a line for each.
    """

    def __init__(self, result: Result, off: Result, say: Callable[[str], None]) -> None:
        super().__init__()
        self._result = result
        self._off = off
        self._say = say
        self._open = b""
        self._said: list[str] = []
        self._begun_s = 0.0
        #: The test that runs, and since when by our clock; nothing if there is none.
        self._running: tuple[str, float] | None = None

    def write(self, data: ReadableBuffer) -> int:
        """Parses the next output, lines or parts of them, and keeps all of it."""
        *lines, self._open = (self._open + bytes(data)).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace").rstrip("\r"))
        return super().write(data)

    def stuck(self) -> str:
        """The test that nothing in the guest can end, as it hangs in the kernel; empty if none does."""
        due_s = self._result.case.limit_s
        hanging_s = _HANGING * due_s
        match self._running:
            case [name, since] if time.monotonic() - since >= hanging_s:
                return f"{name}, which was to end within {due_s} s and did not within {hanging_s:g} s"
        return ""

    def _take(self, line: str) -> None:
        match line.split():
            case ["@begin", name, uptime]:
                self._begun_s = float(uptime)
                self._said = []
                self._running = name, time.monotonic()
            case ["@test", name, status, uptime]:
                self._running = None
                seconds = round(float(uptime) - self._begun_s, 2)
                self._judge(FinishedTest.from_output(name, int(status), seconds, self._said))
            case ["counter", name, value] if name.startswith("flat_"):
                self._result.counters[name] = int(value)
            case _:
                self._said.append(line)

    def _judge(self, test: FinishedTest) -> None:
        self._result.tests[test.name] = test
        verdict = judge(test, self._off.tests.get(test.name), self._result.case.limit_s)
        self._result.verdicts[test.name] = verdict
        self._say(f"  {verdict.word:<5}  {test.name:<27} {test.seconds:7.1f} s  {verdict.reason}".rstrip())


def _boot(
    result: Result, output: GuestOutput, logs: Path | None, source: Path | None, selftests: Path | None
) -> None:
    case = result.case
    program = compiled.guest_program(compiled.SOURCES / "tests" / "mm.c")
    script = compiled.SOURCES / "tests" / "run.sh"
    limit_s = case.limit_s
    numbers = [str(number) for number in (limit_s, case.threshold, case.failing, case.unflushed)]
    tests = [FOREIGN.get(name, name) for name in case.tests]
    errors = io.BytesIO()
    log = messages = ""
    with guest.disk(_SWAP_MIB[case.machine.kernel] << 20) as disk:
        try:
            outcome = guest.run(
                case.machine,
                [str(script), "-t", *numbers, str(program), str(selftests or "-"), *tests],
                stdout=output,
                stderr=errors,
                source=source,
                options=guest.drive(disk),
                # Its tests end in time unless the kernel hangs: all of them, and each.
                timeout_s=limit_s * (len(tests) + 1),
                stuck=output.stuck,
            )
            log, messages = outcome.log, outcome.messages
        except guest.GuestLostError as error:
            log, messages = error.log, error.messages
            raise
        except FlatwalkError as error:
            # The options that its remedy may name are of other commands.
            raise FlatwalkError(
                error.what,
                where=case.name,
                remedy="end other programs, or fix what QEMU says; --resume goes on with this case",
            ) from error
        finally:
            if logs is not None:
                written = {"tests": output.getvalue(), "script": errors.getvalue()}
                parts = {name: text.decode(errors="replace") for name, text in written.items()}
                _keep(logs, case, parts | {"kernel": log, "QEMU": messages})
    result.complaints = complaints(log, messages)
    if outcome.status:
        complained = errors.getvalue().decode(errors="replace").strip()
        result.problems.append(f"the tests' script ended with {outcome.status}: {complained}")


def _keep(logs: Path, case: Case, parts: dict[str, str]) -> None:
    path = logs / f"{case.name.replace(', ', '-').replace(' ', '-')}.log"
    text = "".join(f"=== {name}\n{part}\n" for name, part in parts.items())
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FlatwalkError(
            f"a log cannot be written: {error.strerror}", where=str(path), remedy="choose another --logs"
        ) from error
