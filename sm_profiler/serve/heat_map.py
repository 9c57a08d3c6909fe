"""Use of each core and each GPU over time, as heat maps whose size does not depend on the job's length."""

from __future__ import annotations

from itertools import chain, groupby

import attrs
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from sm_profiler.formats.columns import Floats, SystemColumns
from sm_profiler.formatting import duration, natural_key, plural, shorten
from sm_profiler.metrics.system_fold import MAX_SECONDS, SystemWindow
from sm_profiler.render.blocks import Picture, Section
from sm_profiler.render.charts import drawing, element, text
from sm_profiler.source import ProfileSource
from sm_profiler.source.column_builder import ColumnBuilder

COLUMNS = 96  # of time: half as many at least, once the job is as long as that
MAX_DEVICES = 4096  # of a kind
KINDS = {"cpu": "CPUUtilization", "gpu": "GPUUtilization"}
LEVELS = 5  # of 20 % each
MAX_LINES = 64  # of a picture; devices of a node share lines beyond that
LEFT, WIDTH, GAP = 110.0, 890.0, 4.0
LINE_HEIGHTS = (6.0, 16.0)
Row = tuple[str, str]


@attrs.define(eq=False)
class Heat:
    """Use of all devices of a kind, in per cent.

    Attributes:
        rows: node and name of each device → its row.
        first: number of the first column, in units of `width` since the epoch.
        width: seconds a column; doubles when COLUMNS are not enough.
        total, count: sum and number of samples, a row a device, COLUMNS columns.
        is_cut: there were more than MAX_DEVICES, and the later are left out.
    """

    rows: dict[Row, int] = attrs.field(factory=dict)
    first: int = 0
    width: int = 1
    total: Floats = attrs.field(factory=lambda: np.zeros((0, COLUMNS)))
    count: Floats = attrs.field(factory=lambda: np.zeros((0, COLUMNS)))
    is_cut: bool = False

    def add(self, devices: NDArray[np.int64], seconds: Floats, values: Floats) -> None:
        """Add samples of devices, which are given by their rows."""
        good = (devices >= 0) & (values >= 0) & (values <= 100) & (seconds > 0) & (seconds <= MAX_SECONDS)  # per cent
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
        total, count = (cells[which, : used[-1] + 1] for cells in (self.total, self.count))
        with np.errstate(invalid="ignore"):
            return np.where(count > 0, total / np.maximum(count, 1), np.nan)


class HeatFold:
    """Collects the use of each core and GPU, window by window."""

    def __init__(self) -> None:
        self.heats = {kind: Heat() for kind in KINDS}

    def update(self, window: SystemWindow) -> None:
        """Add the system metrics of a window."""
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
            rows = np.asarray([heat.row(_device(int(pair), nodes.values, names.values)) for pair in found])
            heat.add(rows[which], system.timestamp[chosen], system.value[chosen])


def heat_of(source: ProfileSource) -> HeatFold:
    """Return the use of each core and GPU in a whole profile, of which only the system metrics are read."""
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


@attrs.frozen(eq=False)
class Line:
    """A line of a map: the busiest core, or the idlest GPU, of some devices of a node."""

    node: str
    name: str
    values: Floats


def heat_section(fold: HeatFold, start: float) -> Section | None:
    """Return the section, None without system metrics; `start` is the job's, seconds since the epoch."""
    pictures, sentences = [], []
    for kind, colour, singular in (("gpu", "blue", "GPU"), ("cpu", "teal", "core")):
        heat = fold.heats[kind]
        rows = heat.ordered()
        means = heat.means(rows)
        if not np.isfinite(means).any():
            continue
        lines = lines_of(rows, means, busiest=kind == "cpu")
        each = -(-len(rows) // len(lines))
        sentences.append(sentence(rows, means, singular) + (" More devices are left out." if heat.is_cut else ""))
        caption = f"Use of {plural(len(rows), singular)} over time"
        if each > 1:
            caption += f"; a line shows the {'busiest core' if kind == 'cpu' else 'idlest GPU'} of up to {each}"
        pictures.append(Picture(draw(heat, lines, colour, caption, start), caption, legend(colour), "chart wide"))
    return Section("heat", "Cores and GPUs over time", tuple(sentences), pictures=tuple(pictures)) if pictures else None


def lines_of(rows: list[Row], means: Floats, *, busiest: bool) -> list[Line]:
    """Return at most MAX_LINES lines; none has devices of two nodes, unless there are more nodes than lines."""
    numbered = list(enumerate(rows))
    nodes = [list(group) for _, group in groupby(numbered, key=lambda pair: pair[1][0])]
    if len(nodes) > MAX_LINES:
        each = -(-len(nodes) // MAX_LINES)
        groups = [list(chain.from_iterable(nodes[at : at + each])) for at in range(0, len(nodes), each)]
    else:
        each = next(
            size for size in range(1, len(rows) + 1) if sum(-(-len(node) // size) for node in nodes) <= MAX_LINES
        )
        groups = [node[at : at + each] for node in nodes for at in range(0, len(node), each)]
    found = []
    for group in groups:
        first, last = group[0][1], group[-1][1]
        values = means[[number for number, _ in group]]
        filled = np.where(np.isfinite(values), values, -np.inf if busiest else np.inf)
        chosen = filled.max(axis=0) if busiest else filled.min(axis=0)
        name = first[1] if len(group) == 1 else f"{first[1]} to {last[1]}"
        node = first[0] if first[0] == last[0] else f"{first[0]} to {last[0]}"
        found.append(Line(node, name, np.where(np.isfinite(chosen), chosen, np.nan)))
    return found


def sentence(rows: list[Row], means: Floats, singular: str) -> str:
    """Return a sentence about a map: the mean, the most and the least busy device."""
    with np.errstate(invalid="ignore"):
        counts = np.isfinite(means).sum(axis=1)
        whole = np.where(counts > 0, np.nansum(means, axis=1) / np.maximum(counts, 1), np.nan)
    if len(rows) == 1:
        return f"The {singular} is {whole[0]:.0f} % busy on average."
    most, least = int(np.nanargmax(whole)), int(np.nanargmin(whole))

    def named(at: int) -> str:
        return f"{shorten(rows[at][1], 30)} of {shorten(rows[at][0], 40)}"

    return (
        f"{plural(len(rows), singular)} are {np.nanmean(whole):.0f} % busy on average: "
        f"{named(most)} most ({whole[most]:.0f} %), {named(least)} least ({whole[least]:.0f} %)."
    )


def legend(colour: str) -> tuple[tuple[str, str, str], ...]:
    """Return the key of the levels."""
    return tuple((f"{20 * level} to {20 * level + 20} %", f"{colour} l{level}", "") for level in range(LEVELS))


def draw(heat: Heat, lines: list[Line], colour: str, title: str, start: float) -> Markup:
    """Draw lines as runs of equal level, a path for each level: the size is bounded by lines and columns."""
    height = min(max(320.0 / len(lines), LINE_HEIGHTS[0]), LINE_HEIGHTS[1])
    columns = lines[0].values.shape[0]
    wide = WIDTH / columns
    paths: list[list[str]] = [[] for _ in range(LEVELS)]
    labels, top, node = [], 0.0, ""
    several = len({line.node for line in lines}) > 1
    for line in lines:
        if line.node != node:
            top += GAP if node else 0.0
            node = line.node
            if several:
                labels.append(text(LEFT - 8, top + 11, shorten(node, 16), anchor="end"))
        if not several and (height >= LINE_HEIGHTS[1] or line is lines[0] or line is lines[-1]):
            labels.append(text(LEFT - 8, top + min(height, 12.0), shorten(line.name, 16), anchor="end"))
        at = 0
        for level, run in groupby(levels(line.values)):
            length = len(list(run))
            if level >= 0:
                paths[level].append(f"M{LEFT + at * wide:.5g} {top + height / 2:.5g}h{length * wide:.4g}")
            at += length
        top += height
    drawn = [
        element("path", d="".join(path), class_=f"s-{colour} l{level}", stroke_width=height)
        for level, path in enumerate(paths)
        if path
    ]
    begin, span = heat.first * heat.width - start, columns * heat.width
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = "start" if not share else "end" if share == 1 else "middle"
        label = duration(max(begin + span * share, 0.0)) if begin + span * share >= 1 else "0"
        labels.append(text(LEFT + WIDTH * share, top + 16, label, anchor=anchor))
    return drawing(LEFT + WIDTH, top + 22, title, *drawn, *labels, kind="chart heat")


def levels(values: Floats) -> list[int]:
    """Return the level of each value, -1 if it is missing."""
    whole = np.nan_to_num(values, nan=-1.0)
    return [int(level) for level in np.where(whole < 0, -1, np.minimum(whole // (100 / LEVELS), LEVELS - 1))]
