"""`flatwalk walk`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from flatwalk.commands.options import JsonFlag, Settings, complete_names
from flatwalk.definitions.defaults import MACHINE, WALK_INSTRUCTIONS
from flatwalk.terminal.help import PLAIN, examples

app = typer.Typer(**PLAIN)


@app.command(
    epilog=examples(
        "walk --scheme fpt",
        "walk 0x1000201234 --workload gups:8GiB --scheme radix4 --large-pages 50",
        "walk --scheme radix4,fpt --report walk.html",
    )
)
def walk(
    address: Annotated[
        str | None,
        Argument(metavar="ADDRESS", help="Virtual address [default: the last one used].", show_default=False),
    ] = None,
    *,
    workload: Annotated[
        str | None, Option(metavar="NAME:SIZE", help="Whose address space [default: gups:1GiB].")
    ] = None,
    trace: Annotated[Path | None, Option(metavar="FILE", help="Whose address space.")] = None,
    scheme: Annotated[
        str,
        Option(
            metavar="A,B,...",
            autocompletion=complete_names("scheme"),
            help="Schemes, by name or path, or two of them as GUEST/HOST.",
        ),
    ] = "radix4",
    machine: Annotated[
        str,
        Option(
            metavar="NAME|PATH",
            autocompletion=complete_names("machine"),
            help="Machine; host is this one.",
        ),
    ] = MACHINE,
    set_: Settings = None,
    large_pages: Annotated[
        int, Option(metavar="P", min=0, max=100, help="Per cent of memory on 2 MiB pages.")
    ] = 0,
    instructions: Annotated[
        str, Option(metavar="COUNT", help="Instructions to run before, which warm the structures.")
    ] = WALK_INSTRUCTIONS,
    report: Annotated[
        Path | None, Option(metavar="FILE", help="Write the steps as HTML, to be played one by one.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Explain one translation step by step.

    Shows the index bits, the address of every entry read, and what each structure answered.
    """
    from flatwalk import walking as work  # noqa: PLC0415

    work.run(
        work.Options(
            address=address,
            workload=workload,
            trace=trace,
            scheme=scheme,
            machine=machine,
            set=set_ or [],
            large_pages=large_pages,
            instructions=instructions,
            report=report,
            as_json=json,
        )
    )
