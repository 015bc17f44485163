"""What `vm bench` measures: one of six kinds, each with its tables and charts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk.errors import UsageError
from flatwalk.terminal import output
from flatwalk.vm import bench, charts, hosted, kept, kernel_walks, nested_bench, timed, workloads
from flatwalk.vm.machine import HOST_MODES, check_levels, parse_modes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from flatwalk.report.charts import Chart


@dataclass(frozen=True)
class Options:
    """What the command line asked for; `None` is not asked for."""

    modes: str | None
    levels: list[int] | None
    programs: str | None
    threshold: int | None
    host: str | None
    boots: int | None
    save: Path | None
    time: bool
    nested: bool
    host_modes: str | None
    kernel: bool
    unchecked: bool
    source: Path | None

    @property
    def kinds(self) -> dict[str, bool]:
        """The options that ask for other measurements than the usual, and whether they were given."""
        return {
            "--time": self.time,
            "--kernel": self.kernel,
            "--programs": self.programs is not None and not self.time and not self.kernel,
            "--host": self.host is not None,
            "--nested": self.nested,
        }

    def check(self) -> None:
        """Checks that one kind was asked for, and only options that belong to it and can be.

        Raises:
            UsageError: If not.
        """
        kinds = self.kinds
        given = [kind for kind, asked in kinds.items() if asked]
        if len(given) > 1:
            raise UsageError(
                f"{' and '.join(given)} are different benches",
                where=given[1],
                remedy="run one after the other",
            )
        if self.unchecked and given not in ([], ["--programs"]):
            raise UsageError(f"{given[0]} takes the usual kernel", where="--unchecked", remedy="leave it out")
        belonging = (
            ("--boots", self.boots, ("--host", "--time")),
            ("--save", self.save, ("--host",)),
            ("--threshold", self.threshold, ("--programs",)),
            ("--host-modes", self.host_modes, ("--nested",)),
        )
        for option, value, owners in belonging:
            if value is not None and not any(kinds[owner] for owner in owners):
                named = " or ".join(owners)
                raise UsageError(
                    f"this belongs to {named}", where=option, remedy=f"give {named}, or leave it out"
                )
        for count in self.levels or ():
            check_levels(count)
        if self.save is not None:
            kept.make_directory(self.save, "--save")

    @property
    def linux(self) -> str:
        """Which kernel, of `components.KERNELS`."""
        return "unchecked" if self.unchecked else "usual"


@dataclass(frozen=True)
class Measured:
    """What was measured, in every form in which it is shown."""

    #: As the charts' files call it.
    kind: str
    #: By their names in documents.
    tables: dict[str, str]
    charts: list[Chart]
    #: For JSON.
    rows: object


def measure(options: Options) -> Measured:
    """Measures what was asked for.

    Raises:
        UsageError: If there is no such thing.
        FlatwalkError: If QEMU or Linux is not built, or a guest fails.
    """
    if options.host is not None:
        return _host(options, options.host)
    if options.time:
        return _time(options)
    if options.nested:
        return _nested(options)
    if options.kernel:
        return _kernel(options)
    measured = _gups(options) if options.programs is None else _programs(options)
    return _unchecked(measured) if options.unchecked else measured


def _host(options: Options, benches: str) -> Measured:
    modes = parse_modes(options.modes or "off")
    if len(modes) > 1 or options.levels is not None:
        raise UsageError(
            "the host's benches run in one mode, with 4 and with 5 levels",
            where="--levels" if options.levels is not None else "--modes",
            remedy="name one mode, or none for `off`; leave --levels out",
        )
    found = hosted.measure(
        tuple(hosted.BENCHES) if benches == "all" else benches.split(","),
        mode=modes[0],
        boots=options.boots or hosted.BOOTS,
        source=options.source,
    )
    for path in hosted.save(options.save, found) if options.save is not None else ():
        output.note(f"saved: {path}")
    tables = {"host": hosted.levels_table(found), "host-parts": hosted.parts_table(found)}
    return Measured("host", tables, charts.levels(found), found)


def _time(options: Options) -> Measured:
    rows = timed.measure(
        parse_modes(options.modes),
        _named(options.programs, workloads.EVERY),
        levels=options.levels or (4,),
        boots=options.boots or timed.BOOTS,
        source=options.source,
    )
    return Measured(
        "time", {"time": timed.table(rows)}, charts.clocked(rows), [*map(dataclasses.asdict, rows)]
    )


def _nested(options: Options) -> Measured:
    if options.levels is not None:
        raise UsageError(
            "guests in guests are measured with 4 levels", where="--levels", remedy="leave it out"
        )
    rows = nested_bench.measure(
        parse_modes(options.host_modes, "--host-modes", HOST_MODES),
        parse_modes(options.modes) if options.modes else nested_bench.MODES,
        source=options.source,
    )
    tables = {
        "nested-walks": nested_bench.walks_table(rows),
        "nested-costs": nested_bench.costs_table(rows),
    }
    return Measured("nested", tables, charts.nested(rows), [*map(dataclasses.asdict, rows)])


def _kernel(options: Options) -> Measured:
    if options.modes is not None:
        raise UsageError(
            "walks of the kernel's addresses are counted in `off`", where="--modes", remedy="leave it out"
        )
    rows = kernel_walks.measure(
        _named(options.programs, workloads.EVERY),
        options.levels or (4, 5),
        source=options.source,
    )
    tables = {"kernel": kernel_walks.table(rows)}
    return Measured("kernel", tables, charts.kernel(rows), [*map(dataclasses.asdict, rows)])


def _programs(options: Options) -> Measured:
    rows = workloads.measure(
        parse_modes(options.modes),
        _named(options.programs, workloads.NAMES),
        options.levels or (4,),
        threshold=options.threshold or workloads.THRESHOLD,
        kernel=options.linux,
        source=options.source,
    )
    tables = {"programs": bench.tables_table(rows), "programs-causes": bench.causes_table(rows)}
    return Measured("programs", tables, charts.counted(rows), [*map(dataclasses.asdict, rows)])


def _gups(options: Options) -> Measured:
    modes = parse_modes(options.modes)
    rows = bench.measure(modes, options.levels or (4, 5), kernel=options.linux, source=options.source)
    tables = {
        "walks": bench.walks_table(rows),
        "causes": bench.causes_table(rows),
    }
    if options.unchecked:
        return Measured("gups", tables, charts.counted(rows), [*map(dataclasses.asdict, rows)])
    crowds = bench.oversubscribe([mode for mode in bench.CROWD_MODES if mode in modes], source=options.source)
    if crowds:
        tables["crowd"] = bench.crowd_table(crowds)
    else:
        output.note(f"Blocks refused are counted in {' and '.join(bench.CROWD_MODES)} only.")
    made = [*map(dataclasses.asdict, rows), *map(dataclasses.asdict, crowds)]
    return Measured("gups", tables, charts.counted(rows), made)


def _named(programs: str | None, every: Sequence[str]) -> Sequence[str]:
    """The programs of `--programs`."""
    return every if programs in (None, "all") else programs.split(",")


def _unchecked(measured: Measured) -> Measured:
    """The same under other names, so that a document can have both."""
    tables = {f"unchecked-{name}": table for name, table in measured.tables.items()}
    return dataclasses.replace(measured, kind=f"unchecked-{measured.kind}", tables=tables)
