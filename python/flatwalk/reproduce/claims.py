"""What an experiment is: runs, and claims about them. Points set our figures next to the paper's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCALES = ("small", "paper")

#: The papers by the key that experiments use.
PAPERS = {
    "asplos2022": "Park et al., ASPLOS 2022",
    "ismm2021": "Ainsworth and Jones, ISMM 2021",
    "fpt2025": "Du and Zhang, FPT in EMT-Linux, 2025",
    "jabperf2022": "Dawson, JabPerf, 2022",
    "lkml2005": "Holt, LKML, 2005",
}


#: Where a guest's frames, and the machine's own, lie if a series says nothing else.
GUEST_FRAMES, FRAMES = "scattered", "apart"


@dataclass(frozen=True)
class Series:
    """A machine and conditions; which schemes run on it follows from the points of the claims.

    In the mode `guest` real programs run under `flatwalk vm`, in the mode `printed` another command printed
    the figures, and the machine is only named.
    """

    name: str
    machine: str
    #: Settings of the machine that differ from the shipped file's.
    changes: dict[str, Any]
    mode: str
    host_large_pages: int
    guest_frames: str
    #: Where the machine's own frames lie.
    frames: str
    fragmentation: float


@dataclass(frozen=True)
class Scale:
    """How much of it is run."""

    workloads: list[str]
    #: Instructions that windows are spread over; those to measure where there are no windows.
    instructions: int
    #: The same of workloads where it is another number.
    spans: dict[str, int]
    #: Windows and instructions of each; None: one part.
    windows: tuple[int, int] | None
    #: Instructions warmed before each window, or before the part.
    warmup: int
    #: What it cannot show, whatever the intervals say; empty if nothing is known of that kind.
    cannot_show: str = ""

    def span(self, workload: str) -> int:
        """Instructions of a workload that its windows are spread over."""
        return self.spans.get(workload, self.instructions)


@dataclass(frozen=True)
class Factor:
    """A ratio of runs of the same workload."""

    metric: str
    of: dict[str, Any]
    against: dict[str, Any] | None
    bound: dict[str, Any] | None


@dataclass(frozen=True)
class Point:
    """One figure of ours and one of the paper's."""

    label: str
    #: What the paper says: a figure, or the ends of a range. None where it gives none.
    published: float | tuple[float, float] | None
    metric: str
    average: str
    #: Which runs: some of `SELECTORS`.
    of: dict[str, Any]
    #: Which runs the metric compares them with, where it compares.
    against: dict[str, Any] | None
    #: Which runs' value is subtracted.
    minus: dict[str, Any] | None
    #: Which runs have free translation, for metrics that need the bound.
    bound: dict[str, Any] | None
    tolerance: float | None
    #: Ratios of other runs that each workload's value is multiplied by.
    times: list[Factor] = field(default_factory=list)


@dataclass(frozen=True)
class Stratum:
    """Some of the programs that a paper's averages are over: those of one kind."""

    #: How many of the paper's.
    programs: int
    #: Which of the workloads are of them, as `workload` of a point selects.
    workloads: list[str]


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, and the checks that support it."""

    id: str
    text: str
    paper: str
    #: Section and figure.
    place: str
    points: list[Point]
    checks: list[str]
    #: Largest relative difference of ratios, for the check of that name.
    ratio_tolerance: float
    #: Programs that the paper's averages are over; None: the workloads.
    programs: int | None
    #: The same by kind of program, where the paper says how many it has of each.
    strata: list[Stratum]
    #: By scale: why our figures differ, written by someone who investigated, with places for figures
    #: (`explanations`). No verdict depends on it.
    why: dict[str, str]
    #: The run that shows it.
    shown_by: str
    #: Why what is run is not what the paper ran; empty where it is.
    not_comparable: str
    #: Title of its figure; empty if there is none.
    figure: str


@dataclass(frozen=True)
class Open:
    """Something that a paper leaves open, and what it might be."""

    paper: str
    name: str
    #: `guest_frames`, `frames`, `size.WORKLOAD`, or a key of the machine, of schemes or of workloads.
    key: str
    #: What it might be; the first is what it is by default.
    values: list[Any]
    #: Why it is what it is by default.
    default: str


@dataclass(frozen=True)
class Experiment:
    """Runs, and the claims about them."""

    name: str
    title: str
    seed: int
    series: dict[str, Series]
    scales: dict[str, Scale]
    claims: list[Claim]
    open: list[Open] = field(default_factory=list)
    #: Settings of schemes by section, for those that have it.
    scheme_changes: dict[str, Any] = field(default_factory=dict)
    #: Parameters of workloads, for those that have them.
    workload_changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Value:
    """A figure of ours."""

    ours: float | None
    #: By workload; None where a workload has no such figure (no walks, for example).
    by_workload: dict[str, float | None] = field(default_factory=dict)
    #: Ends of the 95 % interval; None where nothing is known of it.
    low: float | None = None
    high: float | None = None
    #: Half the width that it has with all windows measured: because of programs that are not run.
    missing: float | None = None

    @property
    def half(self) -> float | None:
        """Half the width of the interval; None where nothing is known of it."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2
