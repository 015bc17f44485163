"""What commands and functions of Python take unless told otherwise."""

from __future__ import annotations

#: What is simulated.
MACHINE = "skylake-server"
#: Of all that is random.
SEED = 1
#: Instructions that run before a translation that is shown.
WALK_INSTRUCTIONS = "1M"
