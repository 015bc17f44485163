"""Standard output, standard error and files: tables, progress, whole files only."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import stat
import sys
import tempfile
import textwrap
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TextIO

from flatwalk.errors import FlatwalkError, UsageError
from flatwalk.terminal.printable import json_escaped, one_line, printable
from flatwalk.terminal.standard import styled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    import rich.progress
    from rich.console import Console

#: Seconds before a task shows its progress, and from one line of it to the next where there is no bar.
PATIENCE, LINES_APART = 2.0, 30.0


def note(text: str) -> None:
    """Prints a note to the user on standard error, apart from the results."""
    print(_wrapped(text, sys.stderr), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Prints sentences on standard output."""
    print(_wrapped(text, sys.stdout))


def _wrapped(text: str, stream: TextIO) -> str:
    """Text whose lines end between words on a terminal; elsewhere a line is what the caller made one."""
    if not stream.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    lines = (
        textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False) or [""]
        for line in printable(text).split("\n")
    )
    return "\n".join(line for wrapped in lines for line in wrapped)


def as_json(value: object, indent: int | None = 2) -> str:
    """JSON for a file or standard output, without the final line feed. What is no finite number is null."""
    return json_escaped(json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False))


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console  # noqa: PLC0415

    return Console(file=styled(sys.stderr if stderr else sys.stdout))


def markdown(headers: Sequence[str], words: int, rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown whose first `words` columns are words, and the others figures."""
    rule = [*["---"] * words, *["---:"] * (len(headers) - words)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headers, rule, *rows))


#: Blanks of a framed table: those of each column with what stands between two, and at an edge.
_PADDING, _EDGES = 3, 1
#: Least width of a column of words, which are then broken anywhere.
_FOLDED = 8


def fits(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table of figures stands whole on the terminal; where there is none, everything fits."""
    if not sys.stdout.isatty():
        return True
    columns = zip(headers, *rows, strict=True)  # a blank at a header's end is as in `table`
    return _framed(_least(*column) for column in columns) <= _console().width


def _words(header: str) -> list[str]:
    """The words that a header may be broken into; a number and its unit are one."""
    return re.split(r"(?<!\d) ", header)


def _framed(widths: Iterable[int]) -> int:
    """Width of a framed table whose columns have these."""
    return sum(width + _PADDING for width in widths) + _EDGES


def _least(header: str, *cells: str) -> int:
    """The least width of a column whose cells stay whole; a header may break between words.

    So may cells if the header ends in a blank.
    """
    found = [word for cell in cells for word in (cell.split() if header.endswith(" ") else [cell])]
    return max(map(len, (*_words(header), *found)), default=0)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Prints a table: framed on a terminal, plain aligned text otherwise.

    The first column is text; the others are figures and stand to the right unless a header ends in
    a blank, which is then dropped.
    """
    left = [number == 0 or header.endswith(" ") for number, header in enumerate(headers)]
    headers = [header.rstrip() for header in headers]
    rows = [[one_line(cell) for cell in row] for row in rows]
    title = title and one_line(title)
    if sys.stdout.isatty():
        from rich import box  # noqa: PLC0415
        from rich.markup import escape  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415

        framed = Table(title=title and escape(title), title_justify="left", box=box.SIMPLE_HEAD)
        console = _console()
        columns = list(zip(headers, *rows, strict=True))
        is_wide = _framed(max(map(len, column)) for column in columns) <= console.width
        # Words may take several lines, and headers one for each word. So may names where they leave no room
        # for figures, which are never cut: a table of too many is wider than the terminal.
        breaks = [is_left and number > 0 for number, is_left in enumerate(left)]
        least = [
            min(_least(*column), _FOLDED) if may_break else _least(*column)
            for column, may_break in zip(columns, breaks, strict=True)
        ]
        if _framed(least) > console.width:
            breaks[0], least[0] = True, min(least[0], _FOLDED)
        console.width = max(console.width, _framed(least))
        for header, is_left, may_break in zip(headers, left, breaks, strict=True):
            shown = escape(header if is_wide or may_break else "\n".join(_words(header)))
            justify: Literal["left", "right"] = "left" if is_left else "right"
            framed.add_column(shown, justify=justify, no_wrap=not may_break, overflow="fold")
        for row in rows:
            framed.add_row(*map(escape, row))
        console.print(framed)
        return
    if title:
        print(title)
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = (
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(row, widths, left, strict=True)
        )
        print("  ".join(cells).rstrip())
    print()


class Progress:
    """A progress callback: after two seconds a bar on a terminal's standard error, elsewhere lines.

    Used as a context manager; called with the amount done and, if known, the total.

    Args:
        title: What is being done.
        is_shared: A program that we started uses our terminal meanwhile. Then no bar is drawn where its
            output goes to the terminal, and nothing at all while it has put the terminal into a mode of its
            own, as editors and pagers do.
    """

    def __init__(self, title: str, *, is_shared: bool = False) -> None:
        self._title = one_line(title)
        self._is_shared = is_shared
        self._start = time.monotonic()
        self._last_line = self._start
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None
        #: A bar that was left on the screen hid the cursor.
        self._is_cursor_hidden = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        if self._is_cursor_hidden:
            _console(stderr=True).show_cursor()

    def _stop(self, *, is_silent: bool = False) -> None:
        if self._bar is not None:
            self._bar.console.quiet = is_silent
            self._bar.stop()
            self._bar = None
            self._is_cursor_hidden |= is_silent

    def __call__(self, done: int, total: int | None = None) -> None:
        """Shows how far it is; the unit is the caller's."""
        now = time.monotonic()
        if now - self._start < PATIENCE:
            return
        on_terminal = sys.stderr.isatty()
        if on_terminal and self._is_shared and not _is_in_usual_mode():
            # The screen is the program's by now: wiping the bar off would write there.
            self._stop(is_silent=True)
        elif on_terminal and not (self._is_shared and sys.stdout.isatty()):
            self._draw(done, total)
        elif now - self._last_line >= LINES_APART:
            self._last_line = now
            note(self._line(done, total, now - self._start))

    def _line(self, done: int, total: int | None, seconds: float) -> str:
        from flatwalk import units  # noqa: PLC0415

        amount = units.count(done) if total is None else f"{units.count(done)} of {units.count(total)}"
        share = f", {100 * done // total} %" if total else ""
        return f"{self._title}: {amount}{share} after {seconds:.0f} s"

    def _draw(self, done: int, total: int | None) -> None:
        from flatwalk import units  # noqa: PLC0415

        if self._bar is None:
            from rich.markup import escape  # noqa: PLC0415
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn  # noqa: PLC0415

            self._bar = Progress(
                "{task.description}",
                BarColumn(),
                TaskProgressColumn(),
                "{task.fields[amount]}",
                TimeRemainingColumn(),
                console=_console(stderr=True),
                transient=True,
                # Drawn here alone, where the terminal's mode has just been looked at.
                auto_refresh=not self._is_shared,
            )
            self._task = self._bar.add_task(escape(self._title), total=total, amount="")
            self._bar.start()
        assert self._task is not None
        self._bar.update(
            self._task, completed=done, total=total, amount=units.count(done), refresh=self._is_shared
        )


def _is_in_usual_mode() -> bool:
    """Whether the terminal takes lines, as a shell leaves it."""
    import termios  # noqa: PLC0415

    try:
        return bool(termios.tcgetattr(2)[3] & termios.ICANON)
    except (termios.error, OSError):
        return True


def _named(path: Path) -> str:
    """A path in a sentence, on one line."""
    return one_line(str(path))


def check_writable(path: Path, option: str) -> None:
    """Fails early if `path` will not be writable when the work is done.

    Raises:
        UsageError: If it is a directory, a link that leads nowhere, or a name that is not UTF-8; or if it,
            or its directory, may not be written. `-` is standard output where that is possible, and no name.
    """
    if str(path) == "-":
        raise UsageError("- is not the name of a file", where=option, remedy="give another name")
    check_name(path, option)
    if path.is_dir():
        raise UsageError(f"{_named(path)} is a directory", where=option, remedy="give a file name")
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(
            f"{_named(path)} is not writable", where=option, remedy="choose a place that you may write to"
        )
    if _is_special(path):
        return
    directory = _resolved(path, option).parent
    if not directory.is_dir():
        raise UsageError(
            f"there is no directory {_named(directory)}",
            where=option,
            remedy="make it, or choose another place",
        )
    if not os.access(directory, os.W_OK):
        raise UsageError(
            f"{_named(directory)} is not writable",
            where=option,
            remedy="choose a place that you may write to",
        )


def check_apart(
    written: Iterable[tuple[Path | None, str]], read: Iterable[tuple[Path | None, str]] = ()
) -> None:
    """Fails if a file is to be written twice, or to replace one that is read.

    Args:
        written: Files with the options that name them; devices, and `-`, take any number of outputs.
        read: Likewise.

    Raises:
        UsageError: If there is one.
    """
    inputs = [(path, option) for path, option in read if path is not None]
    outputs: list[tuple[Path, str]] = []
    for path, option in written:
        if path is None or str(path) == "-" or _is_special(path):
            continue
        for others, what in ((inputs, "read, and would be replaced"), (outputs, "written twice")):
            where = next((its_option for other, its_option in others if _is_same(path, other)), None)
            if where is not None:
                raise UsageError(
                    f"{_named(path)} is {what}",
                    where=f"{where} and {option}",
                    remedy=f"give {option} another file",
                )
        outputs.append((path, option))


def _is_same(path: Path, other: Path) -> bool:
    """Whether two names are of one file, which need not be there yet."""
    try:
        return path.samefile(other)
    except OSError:
        return path.resolve() == other.resolve()


def check_name(path: Path, where: str) -> None:
    """Checks that a file's whole name is UTF-8, as JSON takes it.

    Raises:
        UsageError: If it is not.
    """
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the name {_named(path)} is not UTF-8",
            where=where,
            remedy="rename it, or give it another name by a link",
        ) from None


def check_text(text: str, where: str) -> None:
    """Checks that what was given is text in UTF-8, as JSON takes it.

    Raises:
        UsageError: If it is not.
    """
    if not isinstance(text, str):  # from Python
        raise UsageError(f"{text!r} is not text", where=where, remedy="give one of the words that are known")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{one_line(text)} is not UTF-8", where=where, remedy="write it in UTF-8") from None


def check_exists(path: Path, where: str, *, remedy: str = "check the path") -> None:
    """Checks that a file can be opened and read.

    Raises:
        UsageError: If it is missing, a directory, or may not be read.
    """
    check_name(path, where)
    if path.is_dir():
        raise UsageError(f"{_named(path)} is a directory", where=where, remedy="name a file in it")
    if not path.exists():
        raise UsageError(f"there is no file {_named(path)}", where=where, remedy=remedy)
    if not os.access(path, os.R_OK):
        raise UsageError(f"{_named(path)} may not be read", where=where, remedy="chmod +r it, or copy it")


def check_trace(path: Path, where: str, *, remedy: str = "check the path") -> None:
    """Checks that a trace can be opened and read, as `check_exists` does.

    A file in a directory is one thread's, or part of one: it stands for itself alone.

    Raises:
        UsageError: If it is missing, may not be read, or is a directory.
    """
    check_name(path, where)
    if path.is_dir():
        name = shlex.quote(_named(path))
        raise UsageError(
            f"{_named(path)} is a directory",
            where=where,
            remedy=f"make one file of it, and name that: flatwalk trace import {name} FILE.fwt",
        )
    check_exists(path, where, remedy=remedy)


def unused(path: Path, is_taken: Callable[[Path], bool] = os.path.lexists) -> Path:
    """`path`, or if there is such a file already, the first of `path-2`, `path-3` … that there is not."""
    name, number = path, 1
    while is_taken(name):
        number += 1
        name = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return name


def _is_special(path: Path) -> bool:
    """Whether a path leads to a device, a FIFO or a socket, which are written to and never replaced."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _resolved(path: Path, where: str) -> Path:
    """The file that is to be replaced: where links lead to.

    Raises:
        UsageError: If a link leads to nothing, or to what standard output or error writes to already.
    """
    if path.is_symlink() and not path.exists():
        raise UsageError(
            f"{_named(path)} is a link that leads nowhere", where=where, remedy="remove the link"
        )
    for number, name in ((1, "output"), (2, "error")):
        if path.exists() and os.path.samestat(path.stat(), os.fstat(number)):
            raise UsageError(
                f"{_named(path)} is the file that standard {name} is written to",
                where=where,
                remedy="give another name; some options take - for standard output",
            )
    return path.resolve() if path.is_symlink() else path.absolute()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path next to the file; it becomes `path`, or is removed after an error.

    Links are followed. A file that is replaced hands on its permissions.

    Raises:
        FlatwalkError: If the file cannot be made or renamed, or there is something that is not a file.
    """
    target = _resolved(path, str(path))
    if path.exists() and not path.is_file():
        raise FlatwalkError(f"{_named(path)} is not a file", remedy="give the name of a file")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".flatwalk-") as directory:
            temporary = Path(directory) / target.name
            yield temporary
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            temporary.replace(target)
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_whole(path: Path, text: str) -> None:
    """Writes a text file in one step, so that nobody ever sees half of it; or into a device or a FIFO.

    Raises:
        FlatwalkError: If it cannot be written.
    """
    data = printable(text).encode()
    if not _is_special(path):
        with whole_file(path) as temporary:
            temporary.write_bytes(data)
        return
    try:
        with path.open("wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_report(path: Path, text: str, *, usual: bool) -> Path:
    """Writes a page where it was asked for, or else under the usual name or the first unused one after it.

    Args:
        path: The file.
        text: The page.
        usual: Nobody has asked for this name: whatever has got it meanwhile stays.

    Returns:
        Where the page is.

    Raises:
        FlatwalkError: If it cannot be written.
    """
    if not usual:
        write_whole(path, text)
        return path
    try:
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".flatwalk-") as directory:
            temporary = Path(directory) / path.name
            temporary.write_bytes(printable(text).encode())
            while True:
                found = unused(path)
                with suppress(FileExistsError):
                    found.touch(exist_ok=False)
                    break
            temporary.replace(found)
    except OSError as error:
        raise _cannot_write(path, error) from error
    return found


def _cannot_write(path: Path, error: OSError) -> FlatwalkError:
    return FlatwalkError(
        f"{_named(path)} cannot be written: {error.strerror}",
        remedy="free some space or choose another place",
    )
