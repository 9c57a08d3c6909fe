"""A file's bytes to rows, by what kind of file it is."""

from __future__ import annotations

from sm_profiler.formats.outcome import REFUSED, Outcome
from sm_profiler.formats.system_reader import SystemRows, read_system
from sm_profiler.formats.trace_reader import read_trace
from sm_profiler.formats.trace_rows import TraceRows
from sm_profiler.source.catalog import Item

Rows = SystemRows | TraceRows


def parse(item: Item, data: bytes) -> tuple[Rows | None, Outcome]:
    """The rows of a file and what became of it; None for a file that cannot be used."""
    try:
        if item.is_system:
            return read_system(data, item.node)
        return read_trace(data, item.node, item.kind, item.start_us, approximate=item.approximate)
    except MemoryError:
        return None, Outcome(REFUSED, 0, "too large for this machine's memory")
