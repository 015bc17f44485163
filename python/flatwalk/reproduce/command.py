"""`flatwalk reproduce`: from claims to a table."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flatwalk import cache, engine, units
from flatwalk.errors import UsageError, refuse
from flatwalk.reproduce import agreement, figures, planning, runs, sensitivity, show, verdicts
from flatwalk.reproduce.claims import PAPERS, SCALES, Experiment
from flatwalk.reproduce.experiments import load_all
from flatwalk.terminal import output

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path


#: Instructions of each run in a rehearsal. Its memory and its page tables are there before the first.
_REHEARSED = 100_000


@dataclass(frozen=True)
class Options:
    """What the command line said."""

    claims: Sequence[str]
    scale: str
    json: Path | None
    #: JSON of an earlier call, to be rewritten with this call's figures in place of the old ones.
    update: Path | None
    markdown: Path | None
    report: Path | None
    jobs: int
    #: JSON of a call at another scale, which the figures are held against.
    against: Path | None = None
    #: Only begin each simulation.
    rehearse: bool = False
    #: A paper, whose claims are judged under all that it leaves open.
    sensitivity: str | None = None
    #: Most things in which a setting differs from the default; None for every joint setting.
    differ: int | None = None
    #: Only say what would be run.
    plan: bool = False


def chosen(experiments: Sequence[Experiment], names: Sequence[str]) -> list[tuple[Experiment, list[str]]]:
    """The experiments with the claims asked for; all of them where none is named.

    Raises:
        UsageError: If there is no such claim.
    """
    known = [claim.id for experiment in experiments for claim in experiment.claims]
    wanted = [name.upper() for name in names] or known
    if files := [name for name in names if "/" in name or name.endswith(".toml")]:
        raise UsageError(
            f"{files[0]} is a file: reproduce checks the claims that are shipped",
            where="CLAIM",
            remedy="name claims, as in: flatwalk reproduce R1 F1; docs/reproducing.md says how one is added",
        )
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(
            f"there is no claim {unknown[0]}",
            where="CLAIM",
            remedy=f"one of {', '.join(known)}; `flatwalk reproduce --list` describes them",
        )
    picked = [(one, [claim.id for claim in one.claims if claim.id in wanted]) for one in experiments]
    return [(one, ids) for one, ids in picked if ids]


def list_claims() -> None:
    """Shows what can be asked for."""
    rows = [
        [claim.id, claim.text, f"{PAPERS[claim.paper]}: {claim.place}"]
        for experiment in load_all()
        for claim in experiment.claims
    ]
    output.table(["claim", "what it says ", "where "], rows)


def check(options: Options) -> None:
    """Checks the options before anything is run.

    Raises:
        UsageError: If there is no such scale, a file will not be writable, or a rehearsal is to write one.
    """
    if options.scale not in SCALES:
        raise UsageError(f"there is no scale {options.scale!r}", where="--scale", remedy=" or ".join(SCALES))
    files = (
        (options.json, "--json"),
        (options.update, "--update"),
        (options.markdown, "--markdown"),
        (options.report, "--report"),
    )
    for path, option in files:
        if path is None:
            continue
        if options.rehearse:
            remedy = f"leave out {option}, or --rehearse"
            raise UsageError("a rehearsal has nothing to write", where=option, remedy=remedy)
        if options.sensitivity is not None and option != "--markdown":
            remedy = f"leave out {option}; --markdown FILE keeps the table"
            raise UsageError("--sensitivity writes a table alone", where=option, remedy=remedy)
        if options.plan:
            remedy = f"leave out {option}, or --plan"
            raise UsageError("a plan has nothing to write", where=option, remedy=remedy)
        if str(path) != "-":
            output.check_writable(path, option)
    if options.plan or options.rehearse:
        why = "no figures are held against others where none are made"
        refuse({"--against": options.against is not None and options.sensitivity is None}, why)
    if options.rehearse:
        refuse({"--plan": options.plan}, "a rehearsal begins what a plan only counts", "give one of them")
        refuse({"--sensitivity": options.sensitivity is not None}, "a rehearsal has one setting")
    if options.sensitivity is None:
        refuse({"--differ": options.differ is not None}, "nothing differs", "give --sensitivity PAPER, too")
    output.check_apart(files, [(options.against, "--against")])
    if options.sensitivity is not None and options.against is not None:
        remedy = "leave out one of them"
        raise UsageError(
            "joint settings are not held against another scale", where="--against", remedy=remedy
        )


def run(options: Options) -> None:
    """Runs what is missing, judges, prints and writes.

    Raises:
        FlatwalkError: With what is wrong and what to do.
    """
    check(options)
    experiments = load_all()
    if options.rehearse:
        rehearse(options, experiments)
        return
    if options.sensitivity is not None:
        sensitive(options, options.sensitivity, experiments)
        return
    if options.plan:
        jobs = jobs_of(needs_of(chosen(experiments, options.claims), options.scale))
        print(planned(jobs, options))
        return
    again = [claim for _, ids in chosen(experiments, options.claims) for claim in ids]
    before = None if options.update is None else earlier(options.update, options.scale, experiments, again)
    other = None if options.against is None else other_scale(options.against, options.scale, experiments)
    found = gather(options, experiments)
    if before is not None:
        found = show.joined(before, found, experiments)
    _show(options, found, other, experiments)


def _show(
    options: Options, found: show.Report, other: show.Report | None, experiments: Sequence[Experiment]
) -> None:
    """Prints a report and writes the files that were asked for."""
    text = output.as_json(show.to_json(found), indent=1) + "\n"
    if str(options.json) == "-":
        print(text, end="")
    else:
        output.table(*show.table(found))
        for outcome in found.outcomes():
            if outcome.failed or outcome.why:
                words = " ".join(part for part in (outcome.failed, outcome.why) if part)
                print(f"{outcome.claim.id}, {outcome.verdict}: {words}")
        print(found.counts())
        for words in show.cannot_show(found):
            print(f"At the scale {found.scale}, {words}")
        if other is not None:
            print(agreement.summary(found, other))
        if options.json is not None:
            output.write_whole(options.json, text)
    if options.update is not None:
        output.write_whole(options.update, text)
    if options.markdown is not None:
        also = [] if other is None else agreement.markdown(found, other)
        made_by = show.command(found, experiments, against=other is not None)
        output.write_whole(options.markdown, show.markdown(found, made_by, also))
    if options.report is not None:
        output.write_whole(options.report, figures.html(found))
        output.note(f"Report: {options.report.absolute()}")


def earlier(
    path: Path, scale: str, experiments: Sequence[Experiment], again: Collection[str]
) -> show.Report | None:
    """What an earlier call wrote; None if there is no such file yet.

    Args:
        path: The file.
        scale: That of this call.
        experiments: All of them.
        again: Claims that are judged again, and may have changed since.

    Raises:
        UsageError: If it is something else, or of another scale or version.
    """
    where, remedy = f"--update {path}", "name another file, or let --json write this one again"
    report = written(path, experiments, where, remedy, again)
    if report is None:
        return None
    for name, theirs, ours in (("scale", report.scale, scale), ("version", report.version, engine.version())):
        if theirs != ours:
            raise UsageError(f"its figures are of {name} {theirs}, not {ours}", where=where, remedy=remedy)
    return report


def other_scale(path: Path, scale: str, experiments: Sequence[Experiment]) -> show.Report:
    """What a call at another scale wrote.

    Raises:
        UsageError: If there is no such file, or it is something else, or of the same scale.
    """
    where, remedy = f"--against {path}", "name a file that `reproduce --json` wrote at another --scale"
    report = written(path, experiments, where, remedy)
    if report is None:
        raise UsageError("there is no such file", where=where, remedy=remedy)
    if report.scale == scale:
        raise UsageError(f"its figures are of scale {scale}, too", where=where, remedy=remedy)
    return report


def written(
    path: Path, experiments: Sequence[Experiment], where: str, remedy: str, but: Collection[str] = ()
) -> show.Report | None:
    """A report that `--json` wrote; None if there is no such file.

    Raises:
        UsageError: If it is something else.
    """
    try:
        return show.from_json(json.loads(path.read_text(encoding="utf-8")), experiments, but)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        what = "this is not what `reproduce --json` writes"
        raise UsageError(what, where=where, remedy=remedy) from error


def needs_of(picked: Sequence[tuple[Experiment, list[str]]], scale: str) -> dict[str, planning.Needs]:
    """What some experiments' claims need, by claim."""
    return {
        claim.id: planning.needs_of(experiment, scale, claim)
        for experiment, ids in picked
        for claim in experiment.claims
        if claim.id in ids
    }


def jobs_of(needs: Mapping[str, planning.Needs]) -> list[planning.Job]:
    """All simulations that claims need."""
    jobs = {job.key: job for one in needs.values() for job in one.jobs.values()}
    return list(jobs.values())


def rehearse(options: Options, experiments: Sequence[Experiment]) -> None:
    """Begins every simulation, and says how much memory that took."""
    picked = chosen(experiments, options.claims)
    jobs = [job for job in jobs_of(needs_of(picked, options.scale)) if job.is_simulated]
    with output.Progress("Rehearsing") as progress:
        most_bytes = runs.rehearse(jobs, options.jobs, progress, _REHEARSED)
    print(
        f"{len(jobs)} simulations can be run here. Of each, {units.count(_REHEARSED)} instructions were; "
        f"at most {most_bytes / 1e9:.1f} GB of memory were in use."
    )


def sensitive(options: Options, paper: str, experiments: Sequence[Experiment]) -> None:
    """Judges a paper's claims under each joint setting of what it leaves open, and prints the table.

    Raises:
        FlatwalkError: With what is wrong and what to do.
    """
    axes = sensitivity.axes(experiments, paper)
    picked = sensitivity.of_paper(
        [
            replace(one, claims=[claim for claim in one.claims if claim.id in ids])
            for one, ids in chosen(experiments, options.claims)
        ],
        paper,
    )
    if not picked:
        remedy = f"name claims of {PAPERS[paper]}, or none for all of them"
        raise UsageError(f"none of the claims is of {paper}", where="CLAIM", remedy=remedy)
    settings = sensitivity.settings(axes, options.differ)
    # All of them together, so that runs of the same program under several settings share its instructions.
    jobs: dict[str, planning.Job] = {}
    with output.Progress("Planning") as progress:
        for done, setting in enumerate(settings):
            progress(done, len(settings))
            under = [sensitivity.under(one, setting) for one in picked]
            of = jobs_of(
                needs_of([(one, [claim.id for claim in one.claims]) for one in under], options.scale)
            )
            jobs |= {job.key: job for job in of}
    told = f"{len(settings)} joint settings of {len(axes)} open axes: {planned(jobs.values(), options)}"
    if options.plan:
        print(told)
        return
    output.note(told)
    with output.Progress("Simulating") as progress:
        runs.simulate(jobs.values(), cache.Store(cache.directory("reproduce")), options.jobs, progress)
    quiet = replace(options, claims=[])
    found = sensitivity.judged(picked, paper, settings, lambda ours: gather(quiet, ours))
    words = ["flatwalk reproduce", *options.claims, "--scale", options.scale, "--sensitivity", paper]
    words += [] if options.differ is None else ["--differ", str(options.differ)]
    text = sensitivity.markdown(paper, found, axes, " ".join([*words, "--markdown FILE"]))
    if options.markdown is None:
        print(text, end="")
    else:
        output.write_whole(options.markdown, text)


def planned(jobs: Iterable[planning.Job], options: Options) -> str:
    """What is going to be simulated, and about how long it takes, in words."""
    plan = runs.plan(jobs, cache.Store(cache.directory("reproduce")))
    if plan.wanted == plan.kept:
        return f"{plan.wanted} simulations, all of them kept from before."
    threads = options.jobs or len(os.sched_getaffinity(0))
    minutes = max(plan.seconds / 60, 0.1)
    return (
        f"{plan.wanted} simulations, of which {plan.kept} are kept from before. Those that are missing "
        f"simulate {units.count(plan.simulated)} instructions and pass over {units.count(plan.passed)}: some "
        f"{minutes:.1f} minutes of one processor, {minutes / threads:.1f} with {threads}."
    )


def gather(options: Options, experiments: Sequence[Experiment]) -> show.Report:
    """Our figures for all claims asked for, simulated where they are not known yet."""
    picked = chosen(experiments, options.claims)
    needs = needs_of(picked, options.scale)
    jobs = jobs_of(needs)
    store = cache.Store(cache.directory("reproduce"))
    if options.sensitivity is None:
        output.note(planned(jobs, options))
    with output.Progress("Simulating") as progress:
        results = runs.simulate(jobs, store, options.jobs, progress)
    found = [
        (
            experiment,
            [
                verdicts.judge(experiment, options.scale, claim, needs[claim.id], results)
                for claim in experiment.claims
                if claim.id in ids
            ],
        )
        for experiment, ids in picked
    ]
    return show.Report(options.scale, engine.version(), found)
