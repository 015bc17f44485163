"""Records programs: starts them under QEMU with the recorder's plugin, and a collector next to them.

See docs/recording.md for what is recorded and how.
"""

from __future__ import annotations

from flatwalk.recorder.collector import collecting
from flatwalk.recorder.reports import Checked, KernelWork, Reports
from flatwalk.recorder.request import Part, Sample, Surroundings, check_output
from flatwalk.recorder.result import ProcessTrace, RecordError, RecordResult
from flatwalk.recorder.session import Progress, record
from flatwalk.recorder.tools import find_qemu, find_recorder, plugin_argument

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
