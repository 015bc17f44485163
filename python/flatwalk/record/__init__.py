"""Records programs: starts them under QEMU with the recorder's plugin, and a collector next to them.

See docs/recording.md for what is recorded and how.
"""

from __future__ import annotations

from flatwalk.record.collector import collecting
from flatwalk.record.reports import Checked, KernelWork, Reports
from flatwalk.record.request import Part, Sample, Surroundings, check_output
from flatwalk.record.result import ProcessTrace, RecordError, RecordResult
from flatwalk.record.session import Progress, record
from flatwalk.record.tools import find_qemu, find_recorder, plugin_argument

__all__ = [
    "Checked",
    "KernelWork",
    "Part",
    "ProcessTrace",
    "Progress",
    "RecordError",
    "RecordResult",
    "Reports",
    "Sample",
    "Surroundings",
    "check_output",
    "collecting",
    "find_qemu",
    "find_recorder",
    "plugin_argument",
    "record",
]
