"""Use of each core and each GPU over time, folded to a size that does not depend on the job's length."""

from __future__ import annotations

from itertools import groupby

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Floats, SystemColumns
from sm_profiler.report.formatting import natural_key
from sm_profiler.report.system_fold import MAX_SECONDS, SystemWindow
from sm_profiler.source import ProfileSource
from sm_profiler.source.column_builder import ColumnBuilder

COLUMNS = 96  # of time: half as many at least, once the job is as long as that
MAX_DEVICES = 4096  # of a kind
KINDS = {"cpu": "CPUUtilization", "gpu": "GPUUtilization"}
Row = tuple[str, str]


@attrs.define(eq=False)
class Heat:
    """Use of all devices of a kind, in per cent.

    Attributes:
        rows: node and name of each device → its row.
        first: number of the first column, in units of `width` since the epoch.
        width: seconds a column; doubles when COLUMNS are not enough.
        total, count: sum and number of samples, a row a device, COLUMNS columns.
        is_cut: there were more than MAX_DEVICES, and the later ones are left out.
    """

    rows: dict[Row, int] = attrs.field(factory=dict)
    first: int = 0
    width: int = 1
    total: Floats = attrs.field(factory=lambda: np.zeros((0, COLUMNS)))
    count: Floats = attrs.field(factory=lambda: np.zeros((0, COLUMNS)))
    is_cut: bool = False

    def add(self, devices: NDArray[np.int64], seconds: Floats, values: Floats) -> None:
        """Add samples of devices, which are given by their rows."""
        good = (devices >= 0) & (values >= 0) & (values <= 100) & (seconds > 0) & (seconds <= MAX_SECONDS)  # noqa: PLR2004 - per cent
        devices, seconds, values = devices[good], seconds[good], values[good]
        if not len(values):
            return
        self._cover(float(seconds.min()), float(seconds.max()))
        cells = devices * COLUMNS + (seconds // self.width).astype(np.int64) - self.first
        size = self.total.size
        self.total += np.bincount(cells, values, size).reshape(self.total.shape)
        self.count += np.bincount(cells, minlength=size).reshape(self.count.shape)

    def row(self, device: Row) -> int:
        """Return a device's row, -1 if there are too many."""
        if device not in self.rows:
            if len(self.rows) >= MAX_DEVICES:
                self.is_cut = True
                return -1
            self.rows[device] = len(self.rows)
            if len(self.rows) > len(self.total):
                more = np.zeros((max(len(self.total), 8), COLUMNS))
                self.total, self.count = np.vstack((self.total, more)), np.vstack((self.count, more))
        return self.rows[device]

    def _cover(self, earliest: float, latest: float) -> None:
        if not self.count.any():
            self.first = int(earliest // self.width)
        while True:
            low, high = min(self.first, int(earliest // self.width)), int(latest // self.width)
            used = np.flatnonzero(self.count.any(axis=0))
            high = max(high, self.first + int(used[-1]) if len(used) else high)
            if high - low < COLUMNS:
                break
            self._halve()
        if low < self.first:
            by = self.first - low
            self.total, self.count = np.roll(self.total, by, axis=1), np.roll(self.count, by, axis=1)
            self.first = low

    def _halve(self) -> None:
        odd = self.first % 2
        self.first //= 2
        self.width *= 2
        for name in ("total", "count"):
            old = np.pad(getattr(self, name), ((0, 0), (odd, odd)))  # an even number of columns
            joined = old[:, 0::2] + old[:, 1::2]
            setattr(self, name, np.pad(joined, ((0, 0), (0, COLUMNS)))[:, :COLUMNS])

    def ordered(self) -> list[Row]:
        """Return the devices by node and number."""
        return sorted(self.rows, key=lambda row: (natural_key(row[0]), natural_key(row[1])))

    def means(self, rows: list[Row]) -> Floats:
        """Return the mean use of some devices in each column that has data, NaN if there is none."""
        used = np.flatnonzero(self.count.any(axis=0))
        if not len(used):
            return np.zeros((len(rows), 0))
        which = np.asarray([self.rows[row] for row in rows])
        total, count = (one[which, : used[-1] + 1] for one in (self.total, self.count))
        with np.errstate(invalid="ignore"):
            return np.where(count > 0, total / np.maximum(count, 1), np.nan)


class HeatFold:
    """Collects the use of each core and GPU, window by window."""

    def __init__(self) -> None:
        self.heats = {kind: Heat() for kind in KINDS}

    def update(self, window: SystemWindow) -> None:
        """Add the system metrics of one window."""
        self.add(window.new_system)

    def add(self, system: SystemColumns) -> None:
        """Add system metrics."""
        for kind, dimension in KINDS.items():
            chosen = np.flatnonzero(system.dimension.mask(dimension))
            if not len(chosen):
                continue
            heat = self.heats[kind]
            nodes, names = system.node, system.name
            pairs = nodes.codes[chosen].astype(np.int64) * len(names.values) + names.codes[chosen]
            found, which = np.unique(pairs, return_inverse=True)
            rows = np.asarray([heat.row(_device(int(one), nodes.values, names.values)) for one in found])
            heat.add(rows[which], system.timestamp[chosen], system.value[chosen])


def heat_of(source: ProfileSource) -> HeatFold:
    """Return the use of each core and GPU in a whole profile, of which only the system metrics are read.

    Raises:
        SourceError: it cannot be read.
    """
    fold = HeatFold()
    items = [item for item in source.files if item.is_system]
    for _, pieces in groupby(source.rows_of(items), key=lambda piece: piece.item.at_us):
        builder = ColumnBuilder(is_system=True)
        for piece in pieces:
            builder.add(piece)
        fold.add(builder.columns())
    return fold


def _device(pair: int, nodes: tuple[str, ...], names: tuple[str, ...]) -> Row:
    node, name = divmod(pair, len(names))
    return nodes[node], names[name]
