"""The guest: its processors, memory and levels of page tables, and how its Linux flattens them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flatwalk.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What the kernel's `flat_page_tables=` takes.
MODES = ("off", "l3l2", "l4l3", "l2l1", "l4l3+l2l1", "compendia")
#: How KVM flattens nested page tables: what its `flat_npt=` takes.
HOST_MODES = tuple(mode for mode in MODES if mode != "compendia")
#: How long after a change QEMU grants Linux for the flush, in milliseconds.
GRACE_MS = 1000


def parse_modes(given: str | None, option: str = "--modes", known: Sequence[str] = MODES) -> tuple[str, ...]:
    """The modes of `--modes A,B,…`, or of another option; all that are known if it is not given.

    Raises:
        UsageError: If there is no such mode.
    """
    chosen = tuple(given.split(",") if given else known)
    for mode in chosen:
        if mode not in known:
            raise UsageError(
                f"there is no mode {mode}",
                where=option,
                remedy=f"choose some of {', '.join(known)}, separated by commas",
            )
    return chosen


def check_levels(levels: int) -> None:
    """Checks a number of levels of page tables.

    Raises:
        UsageError: If there are no such tables.
    """
    if levels not in (4, 5):
        raise UsageError(f"there are no tables of {levels} levels", where="--levels", remedy="4 or 5")


@dataclass(frozen=True)
class Machine:
    """The guest.

    Args:
        mode: How Linux uses flattened tables, one of `MODES`.
        levels: Of page tables, 4 or 5.
        cpus: Virtual CPUs.
        memory: As QEMU takes it: `2G`.
        feature: Whether the CPU has flattened page tables.
        check: Whether QEMU looks for flushes that are missing.
        grace_ms: How long after a change QEMU grants Linux for the flush, if it looks for them.
        parameters: More of the kernel's command line.
        kernel: Which one, of `components.KERNELS`.
        nested: How its KVM flattens nested page tables, one of `HOST_MODES`; None if it has no guests.
    """

    mode: str = "off"
    levels: int = 4
    cpus: int = 1
    memory: str = "1G"
    feature: bool = True
    check: bool = False
    grace_ms: int = GRACE_MS
    parameters: tuple[str, ...] = ()
    kernel: str = "usual"
    nested: str | None = None

    def __post_init__(self) -> None:
        """Checks what a user may have given.

        Raises:
            UsageError: If there is no such machine.
        """
        if self.mode not in MODES:
            raise UsageError(
                f"there is no mode {self.mode}", where="--mode", remedy=f"choose one of {', '.join(MODES)}"
            )
        if self.nested not in (None, *HOST_MODES):
            raise UsageError(
                f"there is no mode {self.nested} of nested tables",
                where="--host-mode",
                remedy=f"choose one of {', '.join(HOST_MODES)}",
            )
        check_levels(self.levels)
        if not re.fullmatch(r"[1-9][0-9]*[MG]", self.memory):
            raise UsageError(
                f"{self.memory} is not a size of memory", where="--memory", remedy="write it like 512M or 2G"
            )

    def arguments(self) -> list[str]:
        """QEMU's arguments that make this machine."""
        features = [
            f"la57={'on' if self.levels == 5 else 'off'}",
            f"flat-pt={'on' if self.feature else 'off'}",
            # They do not make QEMU faster; only the check uses what they keep.
            *(f"{name}={'on' if self.check else 'off'}" for name in ("pcid", "invpcid")),
        ]
        if self.nested is not None:
            features.append("flat-npt=on")
        if self.check:
            features += ["flat-pt-check=on", f"flat-pt-check-grace={self.grace_ms}"]
        line = " ".join(
            [
                "console=ttyS0",
                "panic=-1",
                "random.trust_cpu=on",
                # The check takes a busy host for a broken timer.
                "no_timer_check",
                # Guests may have to wait for the host for long.
                "rcupdate.rcu_cpu_stall_timeout=300",
                f"flat_page_tables={self.mode}",
                *([f"kvm_amd.flat_npt={self.nested}"] if self.nested is not None else []),
                *self.parameters,
            ]
        )
        return [
            *("-machine", "q35,accel=tcg"),
            *("-cpu", ",".join(["max", *features])),
            *("-smp", str(self.cpus)),
            *("-m", self.memory),
            *("-append", line),
        ]
