"""The configurations that the options of `flatwalk compare` ask for, as the engine takes them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import engine
from flatwalk.comparison.simpoints import paths_of
from flatwalk.definitions import machine_files, settings, variations
from flatwalk.definitions.defaults import MACHINE, SEED
from flatwalk.errors import UsageError
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is asked for, as the command line says it; not yet acted upon."""

    workload: str | None = None
    trace: Path | None = None
    command: Sequence[str] = ()
    #: A buffer of unsigned 64-bit addresses, instead of a source by name.
    addresses: Any = None
    instructions_per_access: int = 4
    schemes: str | None = None
    virt: str | None = None
    host_large_pages: int = 0
    guest_frames: str = "scattered"
    machine: str = MACHINE
    set: Sequence[str] = ()
    large_pages: str | None = None
    thp: str | None = None
    fragmentation: float = 0.0
    cores: int | None = None
    context_switch_ms: float | None = None
    instructions: str | None = None
    warmup: str | None = None
    skip: str | None = None
    windows: int | None = None
    window: str | None = None
    simpoints: Path | None = None
    weights: Path | None = None
    simpoints_out: Path | None = None
    exhaustive: bool = False
    error: float | None = None
    time: float | None = None
    seed: int = SEED
    mode: str = "timing"
    json: Path | None = None
    energy: bool = False
    mix: str | None = None
    report: Path | None = None
    #: Nobody has asked for that name.
    usual_report: bool = False
    keep_trace: Path | None = None
    jobs: int = 0

    @property
    def prints_json(self) -> bool:
        """Whether standard output is for JSON, and words go to standard error."""
        return str(self.json) == "-"

    def check_writable(self, programs: Sequence[Path] = ()) -> None:
        """Fails early if a file could not be written, or would replace another one of the command.

        Args:
            programs: Traces of a mix.

        Raises:
            UsageError: If there is such a file.
        """
        written = [(self.json, "--json"), (self.report, "--report"), (self.keep_trace, "--keep-trace")]
        if self.simpoints_out is not None:
            written += [(path, "--simpoints-out") for path in paths_of(self.simpoints_out)]
        for path, option in written:
            if path is not None and (str(path), option) != ("-", "--json"):
                output.check_writable(path, option)
        read = [(self.trace, "--trace"), (self.simpoints, "--simpoints"), (self.weights, "--weights")]
        read += [(path, "--mix") for path in programs]
        of_names = {
            "--schemes": self.schemes,
            "--virt": self.virt,
            "--machine": self.machine,
            "--mix": self.mix,
        }
        for option, names in of_names.items():
            read += settings.own_files(names, option)
        if self.command and (program := shutil.which(self.command[0])) is not None:
            read.append((Path(program), "-- CMD"))
        output.check_apart(written, read)

    def check_recorded(self) -> None:
        """Refuses what is for a program that is recorded, where there is none.

        Raises:
            UsageError: If there is such an option.
        """
        given = {"--keep-trace": self.keep_trace, "--time": self.time}
        for option, value in given.items():
            if value is not None and not self.command:
                raise UsageError(
                    "there is nothing to record", where=option, remedy="give a program: -- CMD ARGS…"
                )


def configurations(options: Options) -> list[dict[str, Any]]:
    """Every run that the options ask for, as the engine takes it.

    Raises:
        UsageError: If they do not go together.
    """
    schemes = _schemes(options)
    settings.check_any_scheme(schemes)
    if options.mix is not None and options.cores is not None:
        raise UsageError(
            "each program of a mix runs on one core",
            where="--mix and --cores",
            remedy="leave one of them out",
        )
    files = _machines(options)
    grid = variations.grid(options.set)
    for machine in files:
        if options.energy and (options.mode != "timing" or "energy" not in machine):
            raise UsageError(
                f"the machine {machine['name']} has no [energy] section"
                if options.mode == "timing"
                else "functional mode has no caches",
                where="--energy",
                remedy="see docs/energy.md; skylake-server has figures, in timing mode",
            )
    if options.mix is not None and len(files) * len(grid) > 1:
        raise UsageError(
            "a mix runs on one machine",
            where="--mix with several machines",
            remedy="name one --machine, and one value for each --set; run it again for the others",
        )
    return runs_of(options, files, schemes)


def runs_of(
    options: Options, files: Sequence[dict[str, Any]], schemes: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Every run of schemes on the machines `files`, as the engine takes it, with the options' conditions.

    Raises:
        UsageError: If one is not possible.
    """
    of_guests = {
        "--host-large-pages": options.host_large_pages != Options.host_large_pages,
        "--guest-frames": options.guest_frames != Options.guest_frames,
    }
    check_guests(schemes, of_guests, "--virt radix4/fpt")
    words = {"--thp": options.thp or "", "--mode": options.mode, "--guest-frames": options.guest_frames}
    for option, text in words.items():
        output.check_text(text, option)
    runs = [
        {
            "scheme": scheme,
            "machine": machine,
            "settings": changes,
            "large_pages": large_pages,
            "thp": options.thp,
            "fragmentation": options.fragmentation,
            "host_large_pages": options.host_large_pages,
            "guest_frames": options.guest_frames,
            "mode": options.mode,
            "context_switch_ms": options.context_switch_ms,
            "memory_bytes": None,
            "cores": options.cores,
        }
        for file in files
        for variation in variations.grid(options.set)
        for machine in [variations.machine(file, variation)]
        for changes in [variations.as_settings(variation)]
        for large_pages in _large_pages(options, schemes)
        for scheme in variations.schemes(schemes, variation)
    ]
    for run in runs:
        _check(run)
    return runs


def check_guests(schemes: Sequence[dict[str, Any]], given: Mapping[str, bool], example: str) -> None:
    """Passes what is for guests where a scheme runs in one.

    Args:
        schemes: All of them.
        given: By the option or key that is for guests, whether it was given.
        example: How a guest is asked for.

    Raises:
        UsageError: If one was given and there is no guest.
    """
    for option, is_given in given.items():
        if is_given and not any("host" in scheme for scheme in schemes):
            raise UsageError(
                "no scheme runs in a guest",
                where=option,
                remedy=f"leave it out, or add a guest, as in {example}",
            )


def _machines(options: Options) -> list[dict[str, Any]]:
    """The machines that are named."""
    found = [(name, machine_files.load(name)) for name in settings.listed(options.machine)]
    if not found:
        raise UsageError("no machine is named", where="--machine", remedy="as in --machine zen4")
    return settings.distinct(found, "machine", "--machine")


#: Where a configuration's keys come from, and what to do about what the engine refuses.
_SOURCES = {
    "settings": ("--set", "see docs/settings.md"),
    "scheme": ("--schemes", "leave the scheme out, or fix a copy of its file"),
    "machine": ("--machine", "choose another machine, or add what it lacks to a copy of the file"),
    "large_pages": ("--large-pages", "give whole numbers from 0 to 100; with a recorded table leave it out"),
    "thp": ("--thp", "give always, madvise or never, and no --large-pages"),
    "fragmentation": ("--fragmentation", "give a share from 0 to 1"),
    "host_large_pages": ("--host-large-pages", "give 0 to 100, and with a shadow page table 0 or 100"),
    "guest_frames": ("--guest-frames", "give scattered, compact, apart, permuted or scattered_4k"),
    "mode": (
        "--machine and --mode",
        "give timing or functional; where nothing can be timed, --mode functional",
    ),
    "cores": ("--cores", "give fewer, or a machine with as many; each program of a mix has one"),
    "context_switch_ms": ("--context-switch", "leave it out, or leave out --mode"),
}


def _check(run: dict[str, Any]) -> None:
    """Passes a configuration that the engine can run."""
    for problem in engine.check("run", run):
        where, remedy = _SOURCES[problem["key"].partition(".")[0]]
        raise UsageError(settings.words(problem), where=where, remedy=remedy)


def _large_pages(options: Options, schemes: Sequence[dict[str, Any]]) -> list[int | None]:
    """Per cent on large pages of each group of runs; None where only Linux's policy was asked for.

    Recorded tables have the pages that they have, so that with them one setting is the default.
    """
    if options.large_pages is not None:
        return [*parse_large_pages(options.large_pages)]
    if options.thp is not None:
        return [None]
    return [0] if any(scheme.get("recorded") for scheme in schemes) else [0, 100]


def _schemes(options: Options) -> list[dict[str, Any]]:
    pairs = settings.listed(options.virt or "")
    if options.virt is not None and not pairs:
        raise UsageError("no guest is named", where="--virt", remedy="as in --virt radix4/fpt")
    if options.schemes is not None:
        names = settings.listed(options.schemes)
    else:
        # Pairs alone are measured against what today's virtual machines do.
        names = ["virt-radix4"] if pairs else list(settings.DEFAULT_SCHEMES)
    found = [(name, settings.scheme_or_pair(name)) for name in names]
    found += [(pair, settings.guest(pair)) for pair in pairs]
    return settings.distinct(found, "scheme", "--schemes")


def parse_large_pages(text: str) -> list[int]:
    """Reads `0,50,100`: per cent of the address space on large pages.

    Raises:
        UsageError: If a value is not a whole percentage.
    """
    values = []
    for item in text.split(","):
        digits = item.strip().removesuffix("%")
        if not (digits.isascii() and digits.isdecimal() and int(digits) <= 100):
            raise UsageError(
                f"{item.strip()!r} is not a percentage",
                where="--large-pages",
                remedy="give whole numbers from 0 to 100, as in --large-pages 0,50,100",
            )
        values.append(int(digits))
    return list(dict.fromkeys(values))
