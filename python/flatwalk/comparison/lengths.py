"""Which instructions of a source are measured, and what is warmed before them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import engine, units
from flatwalk.comparison.simpoints import SimPoints, read_files
from flatwalk.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flatwalk.answer.results import Response
    from flatwalk.answer.types import Sampled

#: Windows that are spread over a source, instructions of each, and instructions warmed before each.
WINDOWS, WINDOW, WARMUP = 40, 400_000, 2_000_000
#: As many times the warm-up are warmed or measured before windows have no more of it than that. Caches hold
#: nothing at first, and what they keep from window to window takes longer to come than a warm-up.
FILLINGS = 8
#: Shorter windows may lie within one block of a program, where none begins or ends.
LEAST_WINDOW = 1000
#: Instructions that a segment of a recording has in addition.
SPARE = 100_000
#: Of so many instructions or more no sum that is made of them would be a number that the engine can read.
TOO_MANY = 1 << 56
#: Instructions of a workload, which may have no end, that the windows are spread over.
WORKLOAD_INSTRUCTIONS = 1_000_000_000
#: What is said of a trace without its end mark.
CUT_OFF = "was cut off when it was recorded or copied"


@dataclass(frozen=True)
class Lengths:
    """Numbers of instructions, and of windows; `None` is not asked for."""

    instructions: int | None
    warmup: int | None
    skip: int
    windows: int | None = None
    window: int | None = None
    exhaustive: bool = False
    #: Where the windows are, instead of spread evenly.
    points: SimPoints | None = None
    #: Whether windows begin at multiples of their length.
    aligned: bool = False
    #: Windows are warmed half as long, at the places where they would be.
    halved: bool = False

    @classmethod
    def asked(
        cls,
        instructions: str | None,
        warmup: str | None,
        skip: str | None,
        *,
        windows: int | None = None,
        window: str | None = None,
        exhaustive: bool = False,
        simpoints: Path | None = None,
        weights: Path | None = None,
        aligned: bool = False,
        file: str | None = None,
    ) -> Lengths:
        """The lengths that the command line asks for, or a file.

        Raises:
            UsageError: If one is not a count, nothing is to be measured, or two contradict each other.
        """
        dashes = "--" if file is None else ""
        place = dashes or f"{file}, "

        def read(text: str | None, name: str) -> int | None:
            count = None if text is None else units.parse_count(text, f"{place}{name}")
            if count is not None and count >= TOO_MANY:
                raise UsageError(
                    f"{text} instructions are more than any program has",
                    where=f"{place}{name}",
                    remedy="give less than 10^16, as 1G",
                )
            return count

        measured, length = read(instructions, "instructions"), read(window, "window")
        for value, name in ((measured, "instructions"), (length, "window")):
            if value == 0:
                raise UsageError(
                    "nothing is to be simulated", where=f"{place}{name}", remedy="give a count above 0"
                )
        if length is not None and length < LEAST_WINDOW:
            raise UsageError(
                f"windows of {length} instructions are too short to measure",
                where=f"{place}window",
                remedy=f"give {LEAST_WINDOW} or more",
            )
        if exhaustive and (windows is not None or length is not None):
            raise UsageError(
                "everything is to be measured, so there are no windows",
                where=f"{place}exhaustive",
                remedy=f"leave out {dashes}windows and {dashes}window, or {dashes}exhaustive",
            )
        if aligned and exhaustive:
            raise UsageError(
                "everything is to be measured, so no interval is chosen",
                where="--simpoints-out and --exhaustive",
                remedy="leave one of them out",
            )
        points = None
        if simpoints is not None or weights is not None:
            given = {"--windows": windows, "--exhaustive": exhaustive or None, "--skip": skip}
            points = _points(simpoints, weights, length, given)
        lengths = cls(measured, read(warmup, "warmup"), read(skip, "skip") or 0, windows, length, exhaustive)
        return replace(lengths, points=points, aligned=aligned)

    @property
    def recorded(self) -> int | None:
        """Instructions of a program to record, behind those that are left out; None for all."""
        return None if self.instructions is None else self.instructions + (self.warmup or 0)

    @property
    def needs_all(self) -> bool:
        """Whether a program must be recorded whole: a sample of it lacks what is asked for."""
        return self.exhaustive or self.aligned or self.points is not None

    def sample(self) -> dict[str, int]:
        """Windows and segments of a recording that holds what will be measured."""
        segment = self.warmed + (self.window or WINDOW) + SPARE
        return {"segment": segment} | ({} if self.windows is None else {"windows": self.windows})

    @property
    def warmed(self) -> int:
        """Instructions that are to be warmed before each window."""
        return WARMUP if self.warmup is None else self.warmup

    def whole(self) -> Lengths:
        """The same of a trace that holds what was asked for, and nothing else."""
        return replace(self, instructions=None, skip=0)

    def with_windows(self, windows: int) -> Lengths:
        """The same with another number of windows."""
        return replace(self, windows=windows)

    def with_half_warmup(self) -> Lengths:
        """The same windows with half of the warm-up before each."""
        return replace(self, halved=True)

    def request(self, source: dict[str, Any]) -> dict[str, Any]:
        """What the engine is told: as asked, or else fitted to what the source holds.

        A workload begins in the middle of its work, so what comes first warms; so does the beginning of
        a trace if `--warmup` was asked for.

        Raises:
            UsageError: If the source has nothing left to measure, or not all of what is asked for.
        """
        is_workload = "workload" in source
        warmup = self.warmup
        if warmup is None:
            warmup = 0 if self.exhaustive and not is_workload else WARMUP
        lead = warmup if is_workload or self.warmup is not None else 0
        instructions = self.instructions
        if is_workload:
            instructions = instructions or WORKLOAD_INSTRUCTIONS
        elif "trace" in source:
            self._check(engine.trace_info(Path(source["trace"])), lead)
        if self.exhaustive:
            return {"instructions": instructions, "warmup": lead, "skip": self.skip, "sampling": None}
        window, skip, count = self.window or WINDOW, self.skip + lead, self.windows or WINDOWS
        places: dict[str, Any] = {"places": "aligned"} if self.aligned else {}
        if self.points is not None:
            # Positions count from the first instruction, so nothing is left out; what follows is passed over.
            starts = self.points.starts
            if instructions is not None:
                self._check_points(starts[-1] + window, instructions + skip)
                instructions = max(instructions + skip, starts[-1] + window)
            skip, count, places = 0, len(starts), {"places": {"at": starts}}
        return {
            "instructions": instructions,
            "warmup": 0,
            "skip": skip,
            "sampling": spread(count, window, warmup // (1 + self.halved)) | places,
        }

    def _check_points(self, needed: int, end: int) -> None:
        """Passes intervals of which the last ends within `--instructions`, if these were asked for."""
        if self.instructions is not None and needed > end:
            raise UsageError(
                f"an interval ends at instruction {needed}, after the last one that is asked for, {end}",
                where="--simpoints and --instructions",
                remedy=f"give --instructions {self.instructions + needed - end} or more, or leave it out",
            )

    def _check(self, info: dict[str, Any], lead: int) -> None:
        """Passes a trace that has what is asked for; a foreign one is read as it comes."""
        gaps = info.get("gap_instructions") or 0
        if self.needs_all and gaps:
            raise UsageError(
                "the trace is a sample: most of the program's instructions are not in it",
                where="--exhaustive"
                if self.exhaustive
                else "--simpoints-out"
                if self.aligned
                else "--simpoints",
                remedy="leave it out, or record everything: flatwalk record --exhaustive -o FILE -- CMD",
            )
        segment, window = info.get("segment_instructions"), self.window or WINDOW
        if gaps and segment is not None and window >= segment:
            raise UsageError(
                f"a window of {window} instructions does not fit into recorded segments of {segment}",
                where="--window",
                remedy="give a shorter one, or record longer segments: "
                f"flatwalk record --segment {self.sample()['segment']} -o FILE -- CMD",
            )
        recorded = info["instructions"]
        if recorded == 0:
            cut = f": it {CUT_OFF}" if info.get("ended_early") else ""
            raise UsageError(
                f"the trace has no instructions{cut}",
                where="--trace",
                remedy="record it again, or choose another one",
            )
        if self.points is not None and recorded is not None and self.points.starts[-1] >= recorded:
            raise UsageError(
                f"an interval begins at instruction {self.points.starts[-1]}, and the trace has {recorded}",
                where="--simpoints and --window",
                remedy="give the length of an interval that SimPoint was told, and the trace of that program",
            )
        if recorded is not None and recorded + gaps - self.skip - lead < 1:
            left_out = [option for option, count in (("--skip", self.skip), ("--warmup", lead)) if count]
            raise UsageError(
                f"the trace has {recorded + gaps} instructions, which leaves none to measure",
                where=" and ".join(left_out),
                remedy=f"{'together they' if len(left_out) > 1 else 'it'} must stay below {recorded + gaps}",
            )


def spread(windows: int, window: int, warmup: int) -> dict[str, Any]:
    """`sampling` of a request: so many windows of `window` instructions, each after a warm-up."""
    return {"windows": windows, "window": window, "warmup": warmup, "filling": FILLINGS * warmup}


def simulated(sampling: Mapping[str, int]) -> int:
    """Instructions of one configuration that are warmed or measured, about."""
    more = max(sampling["filling"] - sampling["warmup"], 0)
    return int(sampling["windows"] * (sampling["window"] + sampling["warmup"]) + more)


def recorded_sample(source: dict[str, Any]) -> dict[str, Any] | None:
    """What a trace says of itself, if it is a recorded sample, which has a window in each of its segments."""
    info = engine.trace_info(Path(source["trace"])) if "trace" in source else {}
    return info if info.get("gap_instructions") else None


def nothing_left(request: dict[str, Any], what: str = "") -> UsageError:
    """Why nothing was measured, and what to do.

    Args:
        request: What the engine was told.
        what: ` of gups`, where there are several programs.
    """
    sample, asked = recorded_sample(request["source"]), request["instructions"]
    if sample is not None and sample.get("segment_instructions") and asked is not None:
        segments = max(sample["instructions"] // sample["segment_instructions"], 1)
        total = sample["instructions"] + sample["gap_instructions"]
        enough = 2 * total // segments  # there is one in each of as many stretches
        if request["skip"] + enough < total:
            return UsageError(
                f"nothing is left to measure{what}: the trace is a sample, and none of its segments ends "
                f"within {units.count(asked)} instructions",
                where="--instructions",
                remedy=f"give {units.count(enough).replace(' ', '')} or more: there is one in about each "
                f"{units.count(total / segments)}",
            )
    return UsageError(
        f"nothing is left to measure{what}: there are fewer instructions than are left out",
        where="--skip and --warmup",
        remedy="leave out less",
    )


def shortened(request: dict[str, Any], measured: Sampled) -> dict[str, Any] | None:
    """The request that spreads windows over what there is, of a source that ended where that was not known.

    Args:
        request: What the engine was told.
        measured: What it measured.

    Returns:
        None where the source has all that was asked for, or all windows.
    """
    total, asked, sampling = measured["instructions_total"], request["instructions"], request["sampling"]
    if sampling is None or total is None or asked is None or measured["windows"] >= sampling["windows"]:
        return None
    there = total - request["skip"]
    return {**request, "instructions": there} if 0 < there < asked else None


def simulate_all(
    request: dict[str, Any], progress: Callable[[int, int | None], None], addresses: object = None
) -> Response:
    """What the engine answers; a second time, if windows were to be spread over more than there is.

    Args:
        request: As `engine.simulate` takes it, like the others.
        progress: Likewise.
        addresses: Likewise.

    Raises:
        FlatwalkError: If the source cannot be read, or a configuration is not possible.
    """
    response = engine.simulate(request, progress, addresses)
    measured = response.get("sampling")
    shorter = None if measured is None else shortened(request, measured)
    if measured is None or shorter is None:
        return response
    response = engine.simulate(shorter, progress, addresses)
    if (again := response.get("sampling")) is not None:
        again["instructions_total"] = measured["instructions_total"]
    return response


def _points(
    simpoints: Path | None, weights: Path | None, interval: int | None, given: Mapping[str, object]
) -> SimPoints:
    """SimPoint's intervals, of `interval` instructions; `given` are options that say otherwise.

    Raises:
        UsageError: If something is missing, too much, or not right.
    """
    if simpoints is None or weights is None:
        raise UsageError(
            "SimPoint writes two files, and one of them is missing",
            where="--simpoints and --weights",
            remedy="give both, as in --simpoints a.simpoints --weights a.weights --window 100M",
        )
    for option, value in given.items():
        if value is not None:
            raise UsageError(
                f"the intervals are those of {simpoints}", where=option, remedy="leave it out, or --simpoints"
            )
    if interval is None:
        raise UsageError(
            "the files do not say how many instructions an interval has",
            where="--simpoints",
            remedy="give the length that SimPoint's profile had, as in --window 100M",
        )
    return read_files(simpoints, weights, interval)
