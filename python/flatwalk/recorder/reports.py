"""What a collector reports of the traces that it writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatwalk import units
from flatwalk.errors import FlatwalkError
from flatwalk.recorder.result import ProcessTrace, RecordError
from flatwalk.terminal.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

#: What to do about a full disk, and a full temporary directory.
FREE_SPACE = "free some space, record elsewhere with --output, or record less with --limit"
FREE_TEMPORARY = (
    "free some space, set TMPDIR to a directory with more, record elsewhere with --keep-trace, "
    "or record less with --time"
)


@dataclass(frozen=True)
class Checked:
    """In what the engine's walker agreed with a recorded machine."""

    #: Walks of the machine, of any address.
    walks: int
    #: Accesses of the program, of which some are sampled.
    accesses: int


@dataclass(frozen=True)
class KernelWork:
    """What a recorded machine's kernel did for the program while that was recorded."""

    instructions: int
    #: Of these, repetitions of string instructions: QEMU executes each on its own.
    repeated: int


def _totals(file: Path) -> dict[str, Any] | None:
    """What is in a trace that ended early; nothing if it cannot be read."""
    from flatwalk import engine  # noqa: PLC0415

    try:
        return engine.trace_info(file)
    except FlatwalkError:
        return None


class Reports:
    """What a collector has reported so far."""

    def __init__(self) -> None:
        #: Instructions executed so far, by file.
        self.counts: dict[str, int] = {}
        #: Process number and command, by file.
        self.commands: dict[str, tuple[int, list[str]]] = {}
        self.traces: list[ProcessTrace] = []
        self.warnings: list[str] = []
        self.errors: list[str] = []
        #: A trace could not be written because there was no room for it.
        self.is_disk_full = False
        self.checked: Checked | None = None
        self.kernel = KernelWork(0, 0)

    def add(self, report: dict[str, Any]) -> None:
        """Adds one report."""
        match report["type"]:
            case "start":
                self.commands[report["file"]] = (report["pid"], report["command"])
            case "progress":
                self.counts[report["file"]] = report["instructions"]
            case "warning":
                # Every program that a process becomes may have the same one.
                if report["message"] not in self.warnings:
                    self.warnings.append(report["message"])
            case "checked":
                self.checked = Checked(report["walks"], report["accesses"])
                self.kernel = KernelWork(report["kernel"], report["repeated"])
            case "end":
                if report["error"]:
                    self.errors.append(report["error"])
                    self.is_disk_full |= report["disk_full"]
                if report["file"]:
                    file = Path(report["file"])
                    _, command = self.commands[report["file"]]
                    self.counts[report["file"]] = report["instructions"] + report["gap_instructions"]
                    # Of what the collector had, not all reached the file then.
                    held = (_totals(file) or {"instructions": 0}) if report["error"] else report
                    self.traces.append(
                        ProcessTrace(
                            file,
                            report["pid"],
                            command,
                            held["instructions"],
                            report["bytes"],
                            report["reason"],
                            held.get("gap_instructions") or 0,
                            report["segments"],
                        )
                    )

    def unfinished(self) -> dict[str, int]:
        """The process of each trace that is not complete, by file."""
        complete = {str(trace.path) for trace in self.traces}
        return {file: pid for file, (pid, _) in self.commands.items() if file not in complete}

    def keep_partial(self) -> None:
        """Keeps as a trace what the collector could not finish because it was killed."""
        killed: list[int] = []
        for file, pid in self.unfinished().items():
            partial = Path(f"{file}.part")
            if partial.is_file():
                _, command = self.commands[file]
                partial.rename(file)
                size = Path(file).stat().st_size
                info = _totals(Path(file)) or {"instructions": self.counts.get(file, 0)}
                count, gaps = info["instructions"], info.get("gap_instructions", 0)
                self.traces.append(ProcessTrace(Path(file), pid, command, count, size, "failed", gaps))
                killed.append(count)
        if any(killed):
            self.warnings.append("the collector was killed; what it had written is kept")
        elif killed:
            # Of what was still running; other processes may have ended before.
            lost = (
                "the collector was killed before it had written anything, as of a sample it does at the end"
            )
            is_all = not any(trace.instructions for trace in self.traces)
            (self.errors if is_all else self.warnings).append(lost)

    def note_stopped(self, why: Callable[[ProcessTrace], str | None]) -> None:
        """Notes in the traces what stopped their programs, where something did."""
        from flatwalk import engine  # noqa: PLC0415

        for number, trace in enumerate(self.traces):
            if (stopped := why(trace)) is None or not trace.instructions:
                continue
            size = trace.bytes
            try:
                engine.trace_stopped(trace.path, stopped)
                size = trace.path.stat().st_size
            except (FlatwalkError, OSError) as error:
                self.warnings.append(f"{trace.path.name} does not say that {stopped}: {error}")
            self.traces[number] = replace(trace, stopped=stopped, bytes=size)

    def main(self, pid: int) -> ProcessTrace | None:
        """The trace of the last program of process `pid`."""
        # By their starts: a program's end may be reported after that of the one it became by an exec.
        started = list(self.commands)
        own = [trace for trace in self.traces if trace.pid == pid]
        return max(own, key=lambda trace: started.index(str(trace.path)), default=None)

    def raise_errors(self, output: Path, kept: list[ProcessTrace], *, is_temporary: bool = False) -> None:
        """Raises what went wrong, if anything did.

        Args:
            output: The trace asked for.
            kept: What has been written, valid up to that point.
            is_temporary: That goes after an error.

        Raises:
            RecordError: With all of it.
        """
        if self.errors:
            what = "; ".join(dict.fromkeys(self.errors))
            if kept and not is_temporary:
                count = units.several(sum(trace.instructions for trace in kept), "instruction")
                names = ", ".join(str(trace.path) for trace in kept)
                what += f" ({count} kept, valid up to that point: {names})"
            elif not is_temporary:
                what += " (no instruction was written by then, so nothing is kept)"
            remedy = FREE_TEMPORARY if is_temporary else FREE_SPACE
            raise RecordError(
                f"recording failed: {one_line(what)}",
                where=str(output),
                remedy=remedy if self.is_disk_full else "see docs/recording.md",
            )
