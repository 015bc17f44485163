"""What a collector reports of the traces that it writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flatwalk.errors import FlatwalkError
from flatwalk.record.result import ProcessTrace, RecordError


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
                self.warnings.append(report["message"])
            case "checked":
                self.checked = Checked(report["walks"], report["accesses"])
                self.kernel = KernelWork(report["kernel"], report["repeated"])
            case "end":
                if report["error"]:
                    self.errors.append(report["error"])
                if report["file"]:
                    _, command = self.commands[report["file"]]
                    self.counts[report["file"]] = report["instructions"] + report["gap_instructions"]
                    self.traces.append(
                        ProcessTrace(
                            Path(report["file"]),
                            report["pid"],
                            command,
                            report["instructions"],
                            report["bytes"],
                            report["reason"],
                            report["gap_instructions"],
                            report["segments"],
                        )
                    )

    def keep_partial(self) -> None:
        """Keeps as a trace what the collector could not finish because it was killed."""
        for file, (pid, command) in self.commands.items():
            partial = Path(f"{file}.part")
            Path(f"{partial}.new").unlink(missing_ok=True)
            if partial.is_file() and all(str(trace.path) != file for trace in self.traces):
                partial.rename(file)
                size = Path(file).stat().st_size
                info = _totals(Path(file)) or {"instructions": self.counts.get(file, 0)}
                count, gaps = info["instructions"], info.get("gap_instructions", 0)
                self.traces.append(ProcessTrace(Path(file), pid, command, count, size, "failed", gaps))
                self.warnings.append(f"the collector was killed; {file} holds what it had written")

    def raise_errors(self, output: Path) -> None:
        """Raises what went wrong, if anything did.

        Raises:
            RecordError: With all of it.
        """
        if self.errors:
            kept = [str(trace.path) for trace in self.traces if trace.instructions]
            what = "; ".join(dict.fromkeys(self.errors))
            note = f" (kept, valid up to that point: {', '.join(kept)})" if kept else ""
            raise RecordError(f"recording failed: {what}{note}", where=str(output))

    def in_order(self, pid: int, output: Path) -> list[ProcessTrace]:
        """The traces; that of the last program of process `pid` comes first and takes the name `output`."""
        # By their starts: a program's end may be reported after that of the one it became by an exec.
        started = list(self.commands)
        own = [trace for trace in self.traces if trace.pid == pid]
        if not own:
            return self.traces
        last = max(own, key=lambda trace: started.index(str(trace.path)))
        first = next((trace for trace in self.traces if trace.path == output), last)
        renamed = {}
        if first is not last:
            swap = output.with_name(f"{output.name}.swap")
            first.path.rename(swap)
            last.path.rename(first.path)
            swap.rename(last.path)
            renamed = {first.path: last.path, last.path: first.path}
        traces = [replace(trace, path=renamed.get(trace.path, trace.path)) for trace in self.traces]
        return sorted(traces, key=lambda trace: trace.path != output)
