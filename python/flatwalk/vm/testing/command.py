"""`flatwalk vm test`: chooses the cases, boots them, and prints and keeps how they ended."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flatwalk.errors import UsageError
from flatwalk.terminal import output
from flatwalk.vm import build, components, document
from flatwalk.vm.machine import HOST_MODES, parse_modes
from flatwalk.vm.testing import cases, mutants, report, running, soak

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flatwalk.vm.testing.judging import Result


@dataclass(frozen=True)
class Options:
    """What the command line asked for; `None` is not asked for."""

    tier: str
    modes: str | None
    levels: int
    #: Of `components.KERNELS`.
    kernel: str
    only: Sequence[str]
    tests: str | None
    logs: Path | None
    json: Path | None
    resume: bool
    update: Path | None
    source: Path | None
    mutate: bool
    #: Hours of guests that are drawn, and the seed that they are drawn by.
    soak: float | None
    seed: int


def run(options: Options) -> bool:
    """Runs the tests; prints a line for each, and a table.

    Returns:
        Whether all is well.

    Raises:
        UsageError: If there are no such tests.
        FlatwalkError: If something is not built, or a file cannot be written.
    """
    piped = options.json == Path("-")
    file = None if piped else options.json
    if file is not None:
        output.check_writable(file, "--json")
    if options.update is not None:
        output.check_exists(options.update, "--update")
        output.check_writable(options.update, "--update")
    if options.resume and file is None:
        raise UsageError("nothing says what is complete", where="--resume", remedy="give --json FILE, too")
    chosen = mutants.chosen(mutants.read(), options.only) if options.mutate else []
    planned, selftests = _planned(options, chosen)
    tested = report.versions(options.kernel, options.source, selftests=selftests)

    def say(line: str) -> None:
        print(line, file=sys.stderr if piped else sys.stdout, flush=True)

    def as_json(results: Sequence[Result]) -> str:
        return output.as_json(report.as_dict(results, tested)) + "\n"

    def keep(results: Sequence[Result]) -> None:
        if file is not None:
            output.write_whole(file, as_json(results))

    for what, version in tested.items():
        say(f"{what}: {version}")
    results = running.run(
        planned,
        minutes=math.inf if options.soak is None else 60 * options.soak,
        logs=options.logs,
        source=options.source,
        say=say,
        before=report.resumed(file, tested) if options.resume and file is not None else [],
        keep=keep,
    )
    if options.mutate:
        table, failed = mutants.table(chosen, results), mutants.missed(chosen, results)
    else:
        table = report.summary(results)
        failed = [result.case.name for result in results if result.problems]
    say(f"\n{table}")
    say(f"{len(results)} cases: {'all well' if not failed else 'FAILED: ' + '; '.join(failed)}")
    if piped:
        sys.stdout.write(as_json(results))
    if options.update is not None:
        document.update(options.update, {_table_name(options): table})
    return not failed


def _planned(options: Options, guards: Sequence[mutants.Mutant]) -> tuple[Iterable[cases.Case], bool]:
    """What is booted, and whether the version of the tests that come with Linux is a part of the results'.

    It is if the tier has some, chosen or not: so `--resume` may choose others each time. But where none is
    chosen they need not be built.
    """
    # Of a table, and drawn without end: only tests of ours.
    if options.mutate:
        return mutants.planned(guards), False
    if options.soak is not None:
        return soak.guests(options.seed, options.kernel), False
    named = [name for name in (options.tests or "").split(",") if name]
    if options.kernel == "nested":
        found = cases.of_kvm(parse_modes(options.modes, known=HOST_MODES))
    else:
        modes = parse_modes(options.modes)
        found = cases.of_tier(options.tier, modes, kernel=options.kernel, levels=options.levels)
    planned = cases.chosen(found, options.only, named)
    needed, known = (any(case.has_selftests for case in some) for some in (planned, found))
    return planned, needed or (known and build.has(components.SELFTESTS, options.source))


def _table_name(options: Options) -> str:
    """What a document calls the table."""
    if options.mutate:
        return "test-mutants"
    if options.soak is not None:
        return "test-soak"
    if options.kernel == "nested":
        return "test-nested"
    kernel = [options.kernel] if options.kernel != "usual" else []
    return "-".join(["test", options.tier, *kernel, *(["5"] if options.levels == 5 else [])])
