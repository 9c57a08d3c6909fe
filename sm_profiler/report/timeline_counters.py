"""System metrics as the values of a timeline's counters."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.formats.columns import Category, Floats, Ints, Mask, Numbering, SystemColumns
from sm_profiler.formatting import shorten
from sm_profiler.report.trace_json import distinct

COUNTERS = {
    "CPUUtilization": "CPU use, %", "I/OWaitPercentage": "I/O wait, %", "GPUUtilization": "GPU use, %",
    "GPUMemoryUtilization": "GPU memory, %", "MemoryUsedPercent": "memory, %", "ReceiveBytesPerSecond": "network, bytes/s",
    "TransmitBytesPerSecond": "network, bytes/s", "ReadThroughputInBytesPerSecond": "disk, bytes/s",
    "WriteThroughputInBytesPerSecond": "disk, bytes/s", "IOPS": "disk operations/s",
}  # fmt: skip
SERIES = {
    "ReceiveBytesPerSecond": "received",
    "TransmitBytesPerSecond": "sent",
    "ReadThroughputInBytesPerSecond": "read",
    "WriteThroughputInBytesPerSecond": "written",
}


@attrs.frozen(eq=False)
class Values:
    """Values by time, those of a counter and a moment together.

    Attributes:
        node: measured there.
        name: of the counter.
        series: name of the value.
        at: whole nanoseconds since the timeline's origin, of any size.
        value: finite.
        first: True for the first value of a counter at a moment.
    """

    node: Category
    name: Category
    series: Category
    at: Floats
    value: Floats
    first: Mask

    def name_at(self, row: int) -> str:
        """Return the name of a value's counter."""
        name: str = self.name.values[self.name.codes[row]]
        return name

    def shown(self, begin: int, end: int) -> dict[str, float]:
        """Return some values by the names of their series."""
        return {self.series.values[self.series.codes[row]]: float(self.value[row]) for row in range(begin, end)}


def values_of(system: SystemColumns, origin_us: float) -> Values:
    """Return the values that are shown, in the order in which they are written."""
    titles, series = Numbering(), Numbering()
    by_dimension = _titles(system.dimension, titles)
    title = np.where(by_dimension >= 0, by_dimension, _titles(system.name, titles))
    with np.errstate(over="ignore"):
        at = np.rint((system.timestamp * 1e6 - origin_us) * 1e3)
    wanted = (title >= 0) & np.isfinite(system.value) & np.isfinite(at)
    rows = np.flatnonzero(wanted & ~system.dimension.mask("Platform"))
    shown = [series[SERIES.get(text, shorten(text, 60) or "value")] for text in system.name.values]
    column = np.array(shown, np.int32)[system.name.codes]
    counter = system.node.codes[rows].astype(np.int64) * len(titles) + title[rows]
    order, moment = _by_moment(system.timestamp[rows], counter)
    rows = rows[order]
    values = system.value[rows]
    pairs, first = distinct(moment * len(series) + column[rows], (int(moment.max(initial=0)) + 1) * len(series))
    if len(first) < len(rows):  # of several values of a moment the last one counts, in the place of the first
        last = np.empty(len(first), np.int64)
        last[pairs] = np.arange(len(rows))
        kept = np.sort(first)
        rows, moment, values = rows[kept], moment[kept], values[last[pairs[kept]]]
    names = Category(title[rows].astype(np.int32), tuple(titles))
    begins = np.diff(moment, prepend=-1) > 0
    return Values(system.node[rows], names, Category(column[rows], tuple(series)), at[rows], values, begins)


def _titles(texts: Category, titles: Numbering) -> Ints:
    """Return the number of each row's counter; -1 for what is not shown."""
    numbers = [titles[COUNTERS[text]] if text in COUNTERS else -1 for text in texts.values]
    return np.array(numbers, np.int64)[texts.codes]


def _by_moment(seconds: Floats, counter: Ints) -> tuple[Ints, Ints]:
    """Return the order of values by time, those of a counter together, and the number of each one's moment of its counter.

    Counters of one time, and the values of a counter, keep their order.
    """
    order = np.lexsort((counter, seconds))
    edges = (np.diff(seconds[order], prepend=np.nan) != 0) | (np.diff(counter[order], prepend=-1) != 0)
    begins = np.flatnonzero(edges)
    counts = np.diff(begins, append=len(order))
    by_appearance = np.lexsort((order[begins], seconds[order[begins]]))
    begins, counts = begins[by_appearance], counts[by_appearance]
    shift = begins - (np.cumsum(counts) - counts)
    return order[np.repeat(shift, counts) + np.arange(len(order))], np.repeat(np.arange(len(counts)), counts)
