"""One data file of a job."""

from __future__ import annotations

import re
from typing import TypeAlias

import attrs

from sm_profiler.formats import layout
from sm_profiler.formats.layout import DetailedTrace, SystemFile, TraceFile
from sm_profiler.storage import FileInfo

TIMELINES = (
    layout.PYTHON_TIMELINE,
    layout.MODEL_TIMELINE,
    layout.DETAILED_TRACE,
    layout.HOROVOD_TIMELINE,
    layout.SMDATAPARALLEL_TIMELINE,
)
Order: TypeAlias = tuple[int, bool, int, str]
_HOST = re.compile(r"algo-(\d{1,9})(?!\d)")


def host_of(node: str) -> int:
    """Return the number of a node or process: 1 for `algo-1`; 0 for a name of another form."""
    match = _HOST.match(node)
    return int(match[1]) if match else 0


@attrs.frozen
class Item:
    """A file with data.

    Attributes:
        info: the file as listed.
        file: its parsed name.
        at_us: the time of its name, microseconds since the epoch.
        node, kind: as in EventColumns for traces; a system file has a node and the kind "".
        start_us: origin of the times of a trace that does not name one.
        approximate: `start_us` is an estimate.
    """

    info: FileInfo
    file: SystemFile | TraceFile | DetailedTrace
    at_us: int
    node: str
    kind: str
    start_us: int = 0
    approximate: bool = False

    @property
    def is_system(self) -> bool:
        """True for a file of system metrics."""
        return not self.kind

    @property
    def host(self) -> int:
        """Number of the host: 1 for `algo-1`; 0 for a name of another form."""
        return host_of(self.node)

    @property
    def order(self) -> Order:
        """Sort key: by minute, system metrics first."""
        return self.at_us // layout.MINUTE_US, not self.is_system, self.at_us, self.info.key

    @property
    def rank(self) -> int:
        """Position of its timeline among the others."""
        return TIMELINES.index(self.kind) if self.kind in TIMELINES else len(TIMELINES)


def item_of(info: FileInfo, file: SystemFile | TraceFile) -> Item:
    """Return a file whose times are in its name."""
    return Item(info, file, file.at_us, file.node, "" if isinstance(file, SystemFile) else file.kind)
