"""Records a program in a guest, with the walks of the page tables that the guest's kernel made for it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.recorder import (
    Checked,
    KernelWork,
    Part,
    ProcessTrace,
    RecordError,
    check_output,
    collecting,
    find_recorder,
    plugin_argument,
)
from flatwalk.vm import components, counting
from flatwalk.vm import run as guest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flatwalk.vm.components import Component
    from flatwalk.vm.machine import Machine

#: The code by which the kernel returns to a program, by either instruction: from which symbol, and up to
#: which. The recorder finds there where it restores the program's registers.
_RETURNS = {
    "sysret": ("syscall_return_via_sysret", "entry_SYSRETQ_unsafe_stack"),
    "iret": ("swapgs_restore_regs_and_return_to_usermode", counting.BACK),
}


@dataclass(frozen=True)
class Recording:
    """What was recorded."""

    trace: ProcessTrace
    #: How often the engine's walker, reading the guest's memory, was compared with QEMU.
    checked: Checked
    #: What the guest's kernel did for the program meanwhile.
    kernel: KernelWork
    #: How the command ended; None if the guest was ended because the limit was reached.
    outcome: guest.Outcome | None
    #: Things worth knowing.
    warnings: list[str] = field(default_factory=list)
    #: What the guest's kernel logged.
    log: str = ""

    def __str__(self) -> str:
        trace = self.trace
        agreed = f"{self.checked.walks:,} walks and {self.checked.accesses:,} sampled accesses"
        lines = [
            f"{trace.path}: {trace.instructions:,} instructions ({trace.bytes / 1e6:,.1f} MB)",
            f"the engine's walker and QEMU agree on {agreed}",
            *(f"note: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)


def record(
    machine: Machine,
    command: Sequence[str],
    output: Path,
    part: Part | None = None,
    *,
    program: str | None = None,
    seed: int | None = None,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    source: Path | None = None,
) -> Recording:
    """Runs a command in a guest and records what one of its processes does in user mode.

    That is the command's own, or the first that starts `program`, or, if recording starts at a marker, the
    one that first executes it.

    See docs/vm.md for what a recording holds.

    Args:
        machine: The guest, which has one CPU.
        command: The program and its arguments, as in the current directory.
        output: Trace to write.
        part: Instructions to skip and to record; at the end of these the guest ends.
        program: Name of the program to record, as in its first argument, if not the command.
        seed: Of the guest's random numbers. Its clock is then its instructions, so that what the kernel does
            is as on a machine that is not slowed down by being recorded, and the guest three times slower.
        stdout: As for `run.run`, and so are:
        stderr: the same for the program's messages,
        environment: its environment, and
        source: the user's own trees.

    Raises:
        UsageError: If the guest or the output is not possible.
        RecordError: If the recorder is missing, recording failed, nothing was recorded, or the engine's
            walker and QEMU did not agree.
        FlatwalkError: As `run.run`.
    """
    part = part or Part()
    output = output.absolute()
    _check(machine, part, program, output)
    plugin, _ = find_recorder()
    places = _places(components.KERNELS[machine.kernel], source)
    outcome: guest.Outcome | None = None
    failure: FlatwalkError | None = None
    with collecting(output, part) as (socket, reports):
        options = {"socket": str(socket), "name": shlex.join(command), **places, **part.options()}
        if program is not None:
            options["program"] = program
        try:
            outcome = guest.run(
                machine,
                command,
                stdout=stdout,
                stderr=stderr,
                environment=environment,
                source=source,
                options=[
                    *(counting.repeatable(seed) if seed is not None else []),
                    *("-plugin", plugin_argument(plugin, options)),
                    # Where the recorder finds the guest's memory.
                    *("-object", f"memory-backend-memfd,id=ram,size={machine.memory}"),
                    *("-machine", "memory-backend=ram"),
                ],
            )
        except FlatwalkError as error:
            # The recorder may know better why.
            failure = error
    reports.raise_errors(output, reports.traces)
    trace = next(iter(reports.traces), None)
    if failure is not None and (trace is None or trace.reason != "limit"):
        raise failure
    if trace is None or reports.checked is None or trace.instructions == 0:
        raise _nothing_recorded(part, program, command)
    warnings = list(dict.fromkeys(reports.warnings))
    log = getattr(failure, "log", "") if outcome is None else outcome.log
    return Recording(trace, reports.checked, reports.kernel, outcome, warnings, log)


def _places(linux: Component, source: Path | None) -> dict[str, str]:
    """The recorder's options that say where the kernel turns to another thread, and returns to programs.

    Raises:
        FlatwalkError: If it is not built, or lacks these symbols.
    """
    needed = (counting.SWITCH, *(symbol for way in _RETURNS.values() for symbol in way))
    found = counting.addresses(linux, source, needed)
    ways = {name: f"{found[start]}-{found[end]}" for name, (start, end) in _RETURNS.items()}
    return {"switch": found[counting.SWITCH], **ways}


def _check(machine: Machine, part: Part, program: str | None, output: Path) -> None:
    """Checks what a user may have given.

    Raises:
        UsageError: If it does not fit together, or the output cannot be written.
    """
    if machine.cpus != 1:
        raise UsageError(
            "a guest that is recorded has one CPU", where="--cpus", remedy="leave it out, or do not --record"
        )
    if program is not None and (part.start_at is not None or not program or "/" in program):
        raise UsageError(
            "a process is chosen by one thing, its program's name or a marker",
            where="--program",
            remedy="leave --start-at out" if part.start_at else "give a name without a directory",
        )
    check_output(output)


def _nothing_recorded(part: Part, program: str | None, command: Sequence[str]) -> RecordError:
    where, remedy = shlex.join(command), "see its messages above"
    if part.skip:
        where, remedy = "--skip", "skip fewer instructions"
    elif part.start_at:
        where, remedy = "--start-at", "call flatwalk_start() in the program, or leave this out"
    elif program is not None:
        where, remedy = "--program", "give the name that the program is started by"
    return RecordError("the program ended before anything was recorded", where=where, remedy=remedy)
