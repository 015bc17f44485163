"""What several commands take."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option
from typer.core import TyperCommand

from flatwalk.errors import UsageError

if TYPE_CHECKING:
    from typer._click import Context

#: Settings of a command whose last arguments are a program and its arguments.
PROGRAM: dict[str, Any] = {"allow_interspersed_args": False, "ignore_unknown_options": False}


class ProgramCommand(TyperCommand):
    """A command whose last arguments are a program and its arguments, behind `--`."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Reads the arguments.

        Raises:
            UsageError: If there is nothing behind `--`: it announces a program.
        """
        last = args[-1:]
        rest = super().parse_args(ctx, args)
        if last == ["--"] and not ctx.params["command"]:
            raise UsageError(
                "there is no program behind --",
                where=ctx.command_path,
                remedy="name one, as in -- sort big.txt, or leave -- out",
            )
        return rest


def complete_names(kind: str) -> Callable[[str], list[str]]:
    """What completes the last of several names of machines or schemes, as a shell asks for it."""

    def complete(incomplete: str) -> list[str]:
        from flatwalk.definitions import settings  # noqa: PLC0415

        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in settings.names(kind) if name.startswith(last)]

    return complete


Command = Annotated[
    list[str] | None,
    Argument(metavar="-- CMD", help="Program to record, with its arguments.", show_default=False),
]
JsonFlag = Annotated[bool, Option("--json", help="Print JSON.")]


Settings = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=V1,V2",
        help="Change a key of the machine's file, or of the scheme's as scheme.KEY; several values, or --set "
        "again, make a grid.",
        show_default=False,
    ),
]
NoReport = Annotated[bool, Option("--no-report", help="Write no report.")]
Jobs = Annotated[
    int,
    Option("--jobs", "-j", metavar="N", min=0, max=4096, help="Threads to simulate with; 0 is one per core."),
]


def report_path(given: Path | None, *, no_report: bool, usual: Path) -> Path | None:
    """Where the report goes, if anywhere: what an earlier call wrote under the usual name stays.

    Raises:
        UsageError: If both a report and none are asked for.
    """
    if no_report and given is not None:
        raise UsageError("--report and --no-report conflict", where="--no-report", remedy="give one of them")
    if no_report or given is not None:
        return None if no_report else given
    from flatwalk.terminal.output import unused  # noqa: PLC0415

    return unused(usual)
