"""What each program needs: data, a command line, and a client that loads it and sends it requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flatwalk.programs.drivers.batch import Hpcc, Liblinear, Mummer, Sysbench
from flatwalk.programs.drivers.keyvalue import Memcached, Redis
from flatwalk.programs.drivers.postgresql import Postgresql

if TYPE_CHECKING:
    from flatwalk.programs.attend import Driver

#: By the name that the programs' files use.
DRIVERS: dict[str, type[Driver]] = {
    "liblinear": Liblinear,
    "sysbench": Sysbench,
    "mummer": Mummer,
    "hpcc": Hpcc,
    "redis": Redis,
    "memcached": Memcached,
    "postgresql": Postgresql,
}
