"""Measures what flat nested page tables cost and save: entries per walk, instructions per fault and exit."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk.errors import FlatwalkError
from flatwalk.terminal import output
from flatwalk.vm import compiled, counting, nested

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

#: Pages that the program writes to, and how often it comes back to each.
_PAGES, _ROUNDS = 16384, 4
_MEMORY_MIB = 256
#: The inner guest's modes, unless others are asked for.
MODES = ("off", "l4l3+l2l1")


@dataclass(frozen=True)
class Row:
    """What was measured with KVM in one mode and its guest in another."""

    host_mode: str
    mode: str
    #: Entries of the guest's and of nested tables that a cold walk reads, on average, after the first round.
    guest_entries: float
    nested_entries: float
    #: Cold walks and others, after the first round.
    cold_walks: int
    warm_walks: int
    #: The guest's page faults in the first round, and instructions of its kernel then.
    page_faults: int
    guest_kernel_instructions: int
    #: Nested page faults in the first round, the host kernel's instructions for them, and repetitions.
    nested_page_faults: int
    nested_page_fault_instructions: int
    nested_page_fault_repetitions: int
    #: Other exits after the first round, and the host kernel's instructions for them.
    exits: int
    exit_instructions: int
    #: Flat nested tables, and nested tables' mappings of 4 KiB, at the end.
    flat_tables: int
    pages: int

    @classmethod
    def of(cls, host_mode: str, mode: str, pages: int, outcome: nested.Outcome) -> Row:
        """What was counted of the program, in whose first round all pages are new.

        Raises:
            FlatwalkError: If it has not marked where that ended.
        """
        if len(outcome.phases) != 2 or not outcome.phases[1].walks.cold:
            raise FlatwalkError(
                "the program has not marked its rounds", remedy="this is a bug of flatwalk; please report it"
            )
        first, others = outcome.phases
        cold = others.walks.cold.total()
        return cls(
            *(host_mode, mode),
            guest_entries=sum(own * number for (own, _), number in others.walks.cold.items()) / cold,
            nested_entries=sum(host * number for (_, host), number in others.walks.cold.items()) / cold,
            cold_walks=cold,
            warm_walks=others.walks.warm,
            page_faults=pages,
            guest_kernel_instructions=first.guest["kernel"],
            nested_page_faults=first.exits["fault"],
            nested_page_fault_instructions=first.host["fault"],
            nested_page_fault_repetitions=first.repeated["fault"],
            exits=others.exits["other"],
            exit_instructions=others.host["other"],
            flat_tables=outcome.statistics["flat_tables"],
            pages=outcome.statistics["pages_4k"],
        )


def measure(host_modes: Iterable[str], modes: Sequence[str], *, source: Path | None = None) -> list[Row]:
    """Runs a program in guests of guests of one CPU, all pages of 4 KiB.

    Args:
        host_modes: How KVM flattens nested tables, of `machine.HOST_MODES`.
        modes: How its guest's Linux flattens its own.
        source: The user's own trees, as built by `vm build --source`.

    Raises:
        FlatwalkError: If QEMU or a kernel is not built, or a guest fails.
    """
    program = compiled.guest_program(compiled.SOURCES / "tests" / "inner.c")
    rows = []
    for host_mode in host_modes:
        for mode in modes:
            inner = nested.Guest(mode, _MEMORY_MIB, nested.AT_ONCE if mode != "off" else ())
            said = io.BytesIO()
            outcome = nested.run(
                inner.host(host_mode),
                inner,
                [str(program), str(_PAGES), str(_ROUNDS)],
                monitor=["-s"],
                options=counting.repeatable(1),
                stdout=said,
                source=source,
            )
            if outcome.status or outcome.splats:
                raise FlatwalkError(
                    f"the program ended with {outcome.status}: {'; '.join(outcome.splats)}"
                    f"{said.getvalue().decode(errors='replace')}",
                    where=f"--host-modes {host_mode} --modes {mode}",
                    remedy="run it with `flatwalk vm run --nested` and look at --log",
                )
            row = Row.of(host_mode, mode, _PAGES, outcome)
            entries = row.guest_entries + row.nested_entries
            output.note(f"host {host_mode}, guest {mode}: {entries:.3f} entries per cold walk")
            rows.append(row)
    return rows


def walks_table(rows: Sequence[Row]) -> str:
    """What a cold walk reads."""

    def line(row: Row) -> list[str]:
        return [
            *(row.host_mode, row.mode, f"{row.guest_entries + row.nested_entries:.3f}"),
            *(f"{row.guest_entries:.3f}", f"{row.nested_entries:.3f}"),
            *(f"{row.cold_walks:,}", f"{row.warm_walks:,}", str(row.flat_tables)),
        ]

    heads = (
        *("host", "guest", "entries per cold walk", "the guest's", "nested", "cold walks", "other walks"),
        "flat nested tables",
    )
    return output.markdown(heads, 2, map(line, rows))


def costs_table(rows: Sequence[Row]) -> str:
    """What page faults and exits cost; in brackets relative to ordinary tables in both."""
    base = next((row for row in rows if (row.host_mode, row.mode) == ("off", "off")), None)

    def each(row: Row, instructions: str, events: str) -> float:
        return float(getattr(row, instructions) / max(getattr(row, events), 1))

    def compared(row: Row, *what: str) -> str:
        value, off = each(row, *what), each(base, *what) if base else 0.0
        return f"{value:.0f}" + (f" ({value / off:.3f})" if off else "")

    def line(row: Row) -> list[str]:
        return [
            *(row.host_mode, row.mode),
            compared(row, "guest_kernel_instructions", "page_faults"),
            f"{row.nested_page_faults:,}",
            compared(row, "nested_page_fault_instructions", "nested_page_faults"),
            f"{each(row, 'nested_page_fault_repetitions', 'nested_page_faults'):.0f}",
            f"{row.exits:,}",
            compared(row, "exit_instructions", "exits"),
        ]

    heads = (
        *("host", "guest", "guest's instructions per page fault", "nested page faults"),
        *("host's instructions for one", "repetitions", "other exits", "host's instructions per exit"),
    )
    return output.markdown(heads, 2, map(line, rows))
