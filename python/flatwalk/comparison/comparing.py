"""`flatwalk compare`: from a program, a trace or a workload to an answer."""

from __future__ import annotations

import shlex
import signal
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from flatwalk import temporary, units
from flatwalk.answer import across, blame
from flatwalk.answer.explain import explain
from flatwalk.answer.results import (
    add_energy,
    answer,
    by_machine,
    grouped,
    machine_label,
    note_page_sizes,
    pages_label,
)
from flatwalk.comparison import mix, sampling, simpoints
from flatwalk.comparison.configurations import configurations
from flatwalk.comparison.lengths import Lengths, recorded_sample
from flatwalk.comparison.presenting import (
    json_written,
    note_warnings,
    say_left_out,
    show_blame,
    show_machines,
    show_table,
)
from flatwalk.definitions.workload import DEFAULT_WORKLOAD, parse_workload
from flatwalk.errors import UsageError
from flatwalk.prototypes import adapters
from flatwalk.terminal import output
from flatwalk.terminal.printable import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from flatwalk.answer.results import Response
    from flatwalk.comparison.configurations import Options

#: What is timed has at least so many instructions: loops of a few do not fill a core's window.
FEWEST = 1000


def run(options: Options) -> None:
    """Does all of it: record, simulate, print, write.

    Raises:
        FlatwalkError: With what is wrong and what to do.
    """
    lengths = lengths_of(options)
    if options.mix is not None:
        mix.run(options, options.mix, lengths, configurations(options))
        return
    options.check_writable()
    response = respond(options, lengths, configurations(options))
    with json_written(options.json, answer(response)):
        _present(options, response)
    sampled = response.get("sampling")
    if options.simpoints_out is not None and sampled is not None:
        paths = simpoints.write(options.simpoints_out, response["runs"][0], sampled)
        output.note(
            f"Windows: {' and '.join(map(str, paths))}, of {sampled['window_instructions']} instructions each"
        )


def respond(options: Options, lengths: Lengths, runs: list[dict[str, Any]]) -> Response:
    """Records where there is something to record, simulates, and gives runs what follows from others.

    Args:
        options: Source and conditions.
        lengths: What of the source is measured.
        runs: Configurations, as the engine takes them.

    Raises:
        FlatwalkError: With what is wrong and what to do.
    """
    with ExitStack() as stack:
        source, ending = _source(options, lengths, stack)
        if options.command:  # nothing else was recorded
            lengths = lengths.whole()
        with adapters.timed(runs):
            response = sampling.simulate(options, lengths, source, runs)
        cut_short = sampling.cut_off(source)
    add_energy(response["runs"])
    note_page_sizes(response["runs"])
    if cut_short is not None:
        sampling.note_cut(cut_short, response["runs"], response.get("sampling"))
    if ending is not None:
        for run in response["runs"]:
            run["warnings"].append(f"{ending}; what ran until then is judged")
    return response


def lengths_of(options: Options) -> Lengths:
    """The lengths that the options ask for.

    Raises:
        UsageError: If they are not possible, or too short to be timed.
    """
    _check_simpoints(options)
    lengths = Lengths.asked(
        options.instructions,
        options.warmup,
        options.skip,
        windows=options.windows,
        window=options.window,
        exhaustive=options.exhaustive,
        simpoints=options.simpoints,
        weights=options.weights,
        aligned=options.simpoints_out is not None,
    )
    if lengths.instructions is not None and lengths.instructions < FEWEST and options.mode == "timing":
        raise UsageError(
            f"{lengths.instructions} instructions are too few to say anything about speed",
            where="--instructions",
            remedy=f"give {FEWEST} or more; --mode functional counts any number of them",
        )
    return lengths


def _check_simpoints(options: Options) -> None:
    """Passes options that go together with SimPoint's files, in or out."""
    is_in = options.simpoints is not None
    refused = {
        "--mix": (options.mix, "windows of a mix are spread over each of its programs"),
        "--error": (
            options.error if is_in else None,
            "SimPoint's intervals are not a random sample: no error is known",
        ),
        "--energy": (options.energy if is_in else None, "energy is summed over the intervals, not weighed"),
        "--simpoints-out": (
            options.simpoints_out if is_in else None,
            "these intervals are in a file already",
        ),
    }
    for option, (value, why) in refused.items() if is_in or options.simpoints_out is not None else ():
        if value:
            raise UsageError(
                why,
                where=f"{option} with {'--simpoints' if is_in else '--simpoints-out'}",
                remedy="leave one of them out",
            )


def _source(options: Options, lengths: Lengths, stack: ExitStack) -> tuple[dict[str, Any], str | None]:
    """The engine's source; and of a program that did not end well how it ended.

    Records a program into a file that lives as long as `stack`.
    """
    if options.addresses is not None:
        each = options.instructions_per_access
        return {"addresses": {"name": "addresses", "instructions_per_access": each}}, None
    if sum([options.workload is not None, options.trace is not None, bool(options.command)]) > 1:
        raise UsageError(
            "more than one thing to simulate",
            where="--workload, --trace and -- CMD",
            remedy="give one of them",
        )
    options.check_recorded()
    if options.command:
        path = options.keep_trace
        if path is None:
            directory = stack.enter_context(temporary.directory())
            path = directory / "program.fwt"
        recorded, ending = _record(options, lengths, path)
        return {"trace": str(recorded)}, ending
    if options.trace is not None:
        output.check_trace(options.trace, "--trace", remedy="record one: flatwalk record -o FILE -- CMD")
        source = {"trace": str(options.trace)}
        if options.windows is not None and recorded_sample(source) is not None:
            raise UsageError(
                "a recorded sample has one window in each of its segments",
                where="--windows",
                remedy="leave it out; flatwalk record --windows N records N to 2N of them",
            )
        return source, None
    text = DEFAULT_WORKLOAD if options.workload is None else options.workload
    return {"workload": parse_workload(text)}, None


def _record(options: Options, lengths: Lengths, path: Path) -> tuple[Path, str | None]:
    """Records a sample of the command's whole run, or of the part that is asked for.

    Returns:
        The trace of its busiest process, and how the program ended if its exit status is not 0, or a signal
        ended it that is not Ctrl-C's.
    """
    from flatwalk.recorder import Sample, record  # noqa: PLC0415
    from flatwalk.recorder.request import check_output  # noqa: PLC0415

    if options.keep_trace is not None:
        check_output(options.keep_trace, "--keep-trace")
    sample = Sample(**lengths.sample(), seed=options.seed) if not lengths.needs_all else None
    output.note(f"Recording {one_line(shlex.join(options.command))} …")
    with output.Progress("Recording", is_shared=True) as progress:
        result = record(
            list(options.command),
            path,
            skip=lengths.skip,
            limit=lengths.recorded,
            sample=sample,
            seconds=options.time,
            limit_option=f"--instructions {options.instructions}" if options.instructions else None,
            progress=progress,
            is_temporary=options.keep_trace is None,
        )
    for warning in result.warnings:
        output.note(f"warning: {warning}")
    if result.terminated:
        sys.exit(128 + result.terminated)
    if result.status == -signal.SIGINT:
        output.note("Interrupted: what ran until then is judged. Ctrl-C again ends the simulation, too.")
    busiest = max(result.traces, key=lambda trace: trace.executed)
    if busiest.path != result.traces[0].path:
        output.note(
            f"Simulating its busiest process, {one_line(shlex.join(busiest.command))}: "
            f"{units.count(busiest.executed)} of {units.count(result.executed)} instructions."
        )
    is_well = not result.status or result.status == -signal.SIGINT
    return busiest.path, None if is_well else result.ending


def _present(options: Options, response: Response) -> None:
    runs = response["runs"]
    if not options.prints_json:
        machines = by_machine(runs)
        left_out: list[str] = []
        for members in grouped(runs) if len(machines) <= across.MOST else []:
            title = f"{members[0]['workload']} on {machine_label(members[0])}, {pages_label(members[0])}"
            left_out += show_table(members, title, energy=options.energy)
        for label, schemes in across.places(runs) if len(machines) > 1 else []:
            names = ", ".join(dict.fromkeys(run["machine"] for run in runs))
            title = f"{runs[0]['workload']} on {names}, {label}"
            left_out += show_machines(*across.rows(schemes, runs), title)
        say_left_out(list(dict.fromkeys(left_out)))
    say = output.note if options.prints_json else output.say
    note_warnings(runs)
    told = explain(response)
    if told.bias is not None and not told.is_warm:
        output.note(f"warning: {told.bias}")
    say(told.judged)
    if told.bias is not None and told.is_warm:
        say(told.bias)
    if len(by_machine(runs)) <= across.MOST:
        for point in told.points:
            say(point.words)
    for point in told.machines:
        say(point.words)
    found = blame.build(runs)
    if found is not None and not options.prints_json:
        show_blame(found)
    if options.report is not None:
        from flatwalk.report import render  # noqa: PLC0415

        written = output.write_report(options.report, render(response), usual=options.usual_report)
        say(f"Report: {written.absolute()}")
