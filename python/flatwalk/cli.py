"""The command line: its commands, and how it ends. Commands import their work when they run."""

from __future__ import annotations

import errno
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer import Option

from flatwalk.commands import (
    cache,
    compare,
    figures,
    machine,
    record,
    reproduce,
    results,
    shipped,
    sweep,
    trace,
    version,
    walk,
)
from flatwalk.errors import FlatwalkError, interrupted
from flatwalk.host import commands as host
from flatwalk.terminal import standard
from flatwalk.terminal.help import PLAIN, Group, examples
from flatwalk.vm import commands as vm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from typer._click import Context


class _Commands(Group):
    """Those of the command line. Ctrl-C is told apart from a command that ends with the same status."""

    def invoke(self, ctx: Context) -> object:
        """Runs the command that was named."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise typer.Abort from interrupt


app = typer.Typer(
    name="flatwalk",
    **PLAIN | {"cls": _Commands},
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="What another page-table organisation would do to a program's speed.",
    epilog=examples("compare -- python3 -c 'print(sum(range(10**5)))'"),
)
for module in (compare, figures, sweep, reproduce, record, walk, version):
    app.add_typer(module.app)
app.add_typer(results.app, name="results")
app.add_typer(trace.app, name="trace")
app.add_typer(machine.app, name="machine")
app.add_typer(shipped.app, name="list")
app.add_typer(cache.app, name="cache")
app.add_typer(host.app, name="host")
app.add_typer(vm.app, name="vm")


def _show_version(wanted: bool) -> None:
    if wanted:
        version.version()
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def _unforeseen(error: OSError) -> FlatwalkError:
    """What the system refused, where no one expected that."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return FlatwalkError(
            "the current directory does not exist any more", remedy="change to one that does: cd DIRECTORY"
        )
    where = error.filename if isinstance(error.filename, str) else None
    remedy = {
        errno.ENOSPC: "free some space there, or set TMPDIR to a directory with more",
        errno.EDQUOT: "free some space there, or set TMPDIR to a directory with more",
        errno.EACCES: "check who may use it, and who you are",
        errno.EMFILE: "allow more open files: ulimit -n",
        errno.ENOMEM: "free some memory, or allow more: ulimit -v",
    }.get(error.errno or 0, "check it, then call again")
    return FlatwalkError(f"the system refused: {error.strerror or error}", where=where, remedy=remedy)


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM and SIGHUP end the program as an exception does, so that temporary files go."""
    sys.exit(128 + number)


def main() -> None:
    """Runs the command line; exits with 0, 1 (failed), 2 (usage), 130 (Ctrl-C).

    `record` exits with the program's status.
    """
    standard.prepare()
    signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, _terminated)
    try:
        code = app(prog_name="flatwalk", standalone_mode=False)
        sys.stdout.flush()
    except FlatwalkError as error:
        if isinstance(error, standard.OutputError):
            standard.give_up()
        _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        _fail_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        interrupted()
    except standard.OutputClosed:
        standard.give_up()
        sys.exit(0)
    except OSError as error:
        _fail(str(_unforeseen(error)), 1)
    code = code if isinstance(code, int) else 0
    sys.exit(code or int(standard.lost_messages()))


def _command_path(words: Sequence[str]) -> str:
    """The command that words of a command line begin with, where typer does not say which it was."""
    path, command = "flatwalk", typer.main.get_command(app)
    for word in words:
        members = getattr(command, "commands", {})
        if word not in members:
            break
        path, command = f"{path} {word}", members[word]
    return path


def _fail_usage(error: typer.TyperException) -> NoReturn:
    context = getattr(error, "ctx", None)
    message = error.format_message().strip()
    if not message and context is not None:  # no arguments: the help is the answer
        print(context.get_help())
        sys.exit(2)
    if message.startswith("Usage:"):
        print(message)
        sys.exit(2)
    path = context.command_path if context is not None else _command_path(sys.argv[1:])
    _fail(str(FlatwalkError(message.rstrip("."), where=path, remedy=f"see {path} --help")), error.exit_code)
