"""Which tests stay together where they run in several processes (`pytest -n 2`, as ./test does)."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling


def boots_guests(file: str) -> bool:
    """Whether a file's slow tests boot guests, or bare machines, with QEMU's system emulator."""
    return file.startswith(("test_vm_", "test_flat_page_tables"))


def group(test: str) -> str:
    """A name for those that run one after the other, in one process.

    These are the tests of a file, whose fixtures are then made once, and all that boot guests: a guest alone
    keeps two cores busy.
    """
    file = test.split("::", 1)[0]
    return "guests" if boots_guests(PurePath(file).name) else file


def scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Gives each process one group after the other.

    Not by pytest-xdist's own marks: version 3.8 does not see them with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]  # has no types
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False  # conftest.py has put them in order
    return Groups(config, log)
