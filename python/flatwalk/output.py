"""Standard output, standard error and files: tables, progress, whole files only."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from flatwalk.errors import FlatwalkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    import rich.progress

#: Seconds before a task shows its progress.
PATIENCE = 2.0


def note(text: str) -> None:
    """Prints a note to the user on standard error, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def markdown(headers: Sequence[str], words: int, rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown whose first `words` columns are words, and the others figures."""
    rule = [*["---"] * words, *["---:"] * (len(headers) - words)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headers, rule, *rows))


#: Blanks of a framed table: beside the cells of each column, and at both edges.
_PADDING, _EDGES = 2, 2


def fits(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table of figures stands whole on the terminal; where there is none, everything fits."""
    if not sys.stdout.isatty():
        return True
    from rich.console import Console  # noqa: PLC0415

    columns = zip(headers, *rows, strict=True)
    return sum(_least(*column) + _PADDING for column in columns) + _EDGES <= Console().width


def _least(header: str, *cells: str) -> int:
    """The least width of a column whose cells stay whole; a header may break between words."""
    return max(map(len, (*header.split(), *cells)), default=0)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Prints a table: framed on a terminal, plain aligned text otherwise.

    The first column is text; the others are figures and stand to the right unless a header ends in
    a blank, which is then dropped.
    """
    left = [number == 0 or header.endswith(" ") for number, header in enumerate(headers)]
    headers = [header.rstrip() for header in headers]
    if sys.stdout.isatty():
        from rich import box  # noqa: PLC0415
        from rich.console import Console  # noqa: PLC0415
        from rich.markup import escape  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415

        framed = Table(title=title and escape(title), title_justify="left", box=box.SIMPLE_HEAD)
        console = Console()
        whole = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
        is_wide = sum(width + _PADDING for width in whole) + _EDGES <= console.width
        for number, (header, is_left) in enumerate(zip(headers, left, strict=True)):
            # Words may take several lines, and headers one for each word; names and figures are never cut.
            words = is_left and number
            least = None if words else _least(header, *(row[number] for row in rows))
            shown = escape(header if is_wide or words else header.replace(" ", "\n"))
            framed.add_column(shown, justify="left" if is_left else "right", min_width=least)
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
    """A progress callback that shows a bar on a terminal's standard error after two seconds.

    Used as a context manager; called with the amount done and, if known, the total.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._start = time.monotonic()
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int | None = None) -> None:
        """Updates the bar; the unit is the caller's."""
        if not sys.stderr.isatty() or time.monotonic() - self._start < PATIENCE:
            return
        if self._bar is None:
            from rich.console import Console  # noqa: PLC0415
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn  # noqa: PLC0415

            self._bar = Progress(
                "{task.description}",
                BarColumn(),
                TaskProgressColumn(),
                "{task.fields[amount]}",
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(self._title, total=total, amount="")
            self._bar.start()
        if self._task is not None:
            from flatwalk import units  # noqa: PLC0415

            self._bar.update(self._task, completed=done, total=total, amount=units.count(done))


def check_writable(path: Path, option: str) -> None:
    """Fails early if `path` will not be writable when the work is done.

    Raises:
        UsageError: If its directory is missing or not writable, or `path` is a directory.
    """
    directory = path.absolute().parent
    if path.is_dir():
        raise UsageError(f"{path} is a directory", where=option, remedy="give a file name")
    if not directory.is_dir():
        raise UsageError(
            f"there is no directory {directory}",
            where=option,
            remedy="make it, or choose another place",
        )
    if not os.access(directory, os.W_OK):
        raise UsageError(
            f"{directory} is not writable", where=option, remedy="choose a place that you may write to"
        )


def check_exists(path: Path, where: str) -> None:
    """Checks that a file exists.

    Raises:
        UsageError: If it does not.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}", where=where, remedy="check the path")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path in the directory of `path`; it becomes `path`, or is removed after an error.

    Raises:
        FlatwalkError: If the file cannot be made or renamed.
    """
    try:
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".flatwalk-") as directory:
            temporary = Path(directory) / path.name
            yield temporary
            temporary.replace(path)
    except OSError as error:
        raise FlatwalkError(
            f"{path} cannot be written: {error.strerror}", remedy="free some space or choose another place"
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Writes a text file in one step: nobody ever sees half of it."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
