"""Fold system metrics into a fixed number of time buckets that keep extremes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, Columns, Floats, SystemColumns
from sm_profiler.formatting import natural_key
from sm_profiler.identity import (
    INSTANCE_TYPE,
    KEYS,
    LABEL,
    LABEL_TYPE,
    MACHINE,
    MAX_LABELS,
    MAX_TEXT,
    OWNER_TYPES,
)
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.memory_fold import ProcessFold

if TYPE_CHECKING:
    from typing_extensions import Self


@attrs.frozen(eq=False)
class Usage:
    """Samples of one process in time order.

    Attributes:
        seconds: time of each sample since the epoch.
        cpu: CPU seconds so far; they start over if the process was restarted.
        faults: page faults from disk so far.
        waited: seconds so far in which the main thread was ready to run and had no core; empty if not recorded.
        children: CPU seconds so far of processes that it started, such as loader workers; empty if not recorded.
    """

    seconds: Floats
    cpu: Floats
    faults: Floats
    waited: Floats = attrs.field(factory=lambda: np.zeros(0))
    children: Floats = attrs.field(factory=lambda: np.zeros(0))

    def cores(self, start: float, end: float) -> float | None:
        """Return the cores that the process occupied in a time span; None with fewer than two samples."""
        return self._rate(self.cpu, start, end)

    def cores_with_children(self, start: float, end: float) -> float | None:
        """Return the same of the process and those that it started."""
        own = self.cores(start, end)
        return None if own is None else own + self.of_children(start, end)

    def of_children(self, start: float, end: float) -> float:
        """Return the cores that processes occupied which this one started; 0 if that was not recorded."""
        return (self._rate(self.children, start, end) or 0.0) if len(self.children) else 0.0

    def covered(self, start: float, end: float) -> float:
        """Return the share of a time span between the first and the last sample in it: what its rates speak of."""
        inside = self.seconds[(self.seconds >= start) & (self.seconds <= end)]
        return float(inside[-1] - inside[0]) / (end - start) if len(inside) and end > start else 0.0

    def fault_rate(self, start: float, end: float) -> float | None:
        """Return the page faults from disk a second in a time span; None with fewer than two samples."""
        return self._rate(self.faults, start, end)

    def core_wait(self, start: float, end: float) -> float:
        """Return the share of a time span in which the main thread waited for a core; 0 if it was not recorded."""
        return (self._rate(self.waited, start, end) or 0.0) if len(self.waited) else 0.0

    def _rate(self, counter: Floats, start: float, end: float) -> float | None:
        inside = (self.seconds >= start) & (self.seconds <= end)
        if np.count_nonzero(inside) <= 1:
            return None
        seconds, counts = self.seconds[inside], counter[inside]
        spent = float(np.clip(np.diff(counts), 0.0, None).sum())
        return spent / float(seconds[-1] - seconds[0]) if seconds[-1] > seconds[0] else None


class UsageFold(ProcessFold):
    """Collects the CPU time, the page faults and the waits for a core."""

    values = ("cpu_s", "major_faults")
    added = ("waited_s", "children_s")

    def result(self) -> dict[str, Usage]:
        """Return process → its samples."""
        return {name: Usage(*table.T) for name, table in self.tables().items()}


BUCKETS = 1200  # a wide screen shows about as many points
USE_BUCKETS = 96  # of each device: half as many at least, once the job is as long as that
STEPS = 1024  # of a per cent
MAX_USED = 4096  # devices of a kind
MAX_VALUE = 1e18  # larger ones are damage, and their sums would overflow
MAX_SECONDS = 1e11  # since the epoch
MAX_DEVICES = 1024  # per node and metric; the others share the series of OTHER_DEVICES
OTHER_DEVICES = "others"
MAX_OWNERS = 4096  # nodes of which the fold keeps who used them
_KEYS = frozenset({*KEYS, MACHINE, INSTANCE_TYPE})


class SystemWindow(Protocol):
    """The part of an evaluation window that this fold reads."""

    @property
    def new_system(self) -> SystemColumns:
        """System metrics of the window, each in one window only."""


_STATISTICS: dict[str, tuple[float, np.ufunc]] = {  # name → value without samples, and how two buckets join
    "count": (0, np.add),
    "total": (0, np.add),
    "low": (np.inf, np.minimum),
    "high": (-np.inf, np.maximum),
    "idle": (0, np.add),
}


@attrs.define(eq=False)
class _Timed:
    """Statistics over time in buckets of equal width; the last axis of each array is time.

    Attributes:
        first: number of the first bucket, in units of `width` since the epoch.
        width: seconds a bucket; doubles when LIMIT buckets are not enough.
    """

    LIMIT: ClassVar[int]
    NAMES: ClassVar[tuple[str, ...]]

    first: int = 0
    width: int = 1
    count: Floats = attrs.field(factory=lambda: np.zeros(0))
    total: Floats = attrs.field(factory=lambda: np.zeros(0))

    def _make_room(self, earliest: float, latest: float) -> None:
        buckets = self.count.shape[-1]
        if not buckets:
            self.first = int(earliest // self.width)
        while True:
            low = min(self.first, int(earliest // self.width))
            high = max(self.first + self.count.shape[-1], int(latest // self.width) + 1)
            if high - low <= self.LIMIT:
                break
            self.halve()
        self._pad(self.first - low, high - self.first - self.count.shape[-1])
        self.first = low

    def _pad(self, before: int, after: int) -> None:
        if before or after:
            for name in self.NAMES:
                old = getattr(self, name)
                width = [(0, 0)] * (old.ndim - 1) + [(before, after)]
                setattr(self, name, np.pad(old, width, constant_values=_STATISTICS[name][0]))

    def halve(self) -> None:
        """Double the width of the buckets."""
        odd = self.first % 2
        self._pad(odd, (self.count.shape[-1] + odd) % 2)
        self.first //= 2
        self.width *= 2
        for name in self.NAMES:
            old = getattr(self, name)
            setattr(self, name, _STATISTICS[name][1](old[..., 0::2], old[..., 1::2]))

    def merge(self, other: Self) -> None:
        """Add the samples of other buckets."""
        if not other.count.shape[-1]:
            return
        copy = attrs.evolve(other)
        while copy.width < self.width:
            copy.halve()
        while self.width < copy.width:
            self.halve()
        edge = copy.first + copy.count.shape[-1] - 1
        self._make_room(copy.first * copy.width, edge * copy.width)
        while copy.width < self.width:
            copy.halve()
        here = slice(copy.first - self.first, copy.first - self.first + copy.count.shape[-1])
        for name in self.NAMES:
            mine = getattr(self, name)
            mine[..., here] = _STATISTICS[name][1](mine[..., here], getattr(copy, name))


@attrs.define(eq=False)
class Buckets(_Timed):
    """One metric over time.

    Attributes:
        count: samples.
        total: their sum.
        low, high: the smallest and the largest value.
        idle: samples below thresholds.SAMPLE_IDLE.
    """

    LIMIT = BUCKETS
    NAMES = tuple(_STATISTICS)

    low: Floats = attrs.field(factory=lambda: np.zeros(0))
    high: Floats = attrs.field(factory=lambda: np.zeros(0))
    idle: Floats = attrs.field(factory=lambda: np.zeros(0))

    def add(self, seconds: Floats, values: Floats) -> None:
        """Add samples; `seconds` since the epoch."""
        good = (np.abs(values) <= MAX_VALUE) & (seconds > 0) & (seconds <= MAX_SECONDS)
        if not good.any():
            return
        seconds, values = seconds[good], values[good]
        self._make_room(float(seconds.min()), float(seconds.max()))
        at = (seconds // self.width).astype(np.int64) - self.first
        np.add.at(self.count, at, 1)
        np.add.at(self.total, at, values)
        np.minimum.at(self.low, at, values)
        np.maximum.at(self.high, at, values)
        np.add.at(self.idle, at, values < thresholds.SAMPLE_IDLE)

    @property
    def seconds(self) -> Floats:
        """Middle of each bucket, seconds since the epoch."""
        return (self.first + np.arange(len(self.count), dtype=np.float64) + 0.5) * self.width

    @property
    def mean(self) -> Floats:
        """Mean of each bucket; NaN without samples."""
        with np.errstate(invalid="ignore"):
            return np.where(self.count > 0, self.total / np.maximum(self.count, 1), np.nan)

    @property
    def highest(self) -> float:
        """Largest value; NaN without samples."""
        return float(self.high.max()) if len(self.high) else float("nan")

    def within(self, start_s: float, end_s: float) -> NDArray[np.bool_]:
        """Return a mask of the buckets with samples in a time span, or of all with samples if none is in it."""
        filled = self.count > 0
        inside = filled & (self.seconds >= start_s) & (self.seconds <= end_s)
        return inside if inside.any() else filled

    def mean_within(self, start_s: float, end_s: float) -> float:
        """Return the mean over a time span; NaN without samples."""
        rows = self.within(start_s, end_s)
        return float(self.total[rows].sum() / self.count[rows].sum()) if rows.any() else float("nan")

    def idle_within(self, start_s: float, end_s: float) -> float:
        """Return the share of the samples of a time span that were idle; NaN without samples."""
        rows = self.within(start_s, end_s)
        return float(self.idle[rows].sum() / self.count[rows].sum()) if rows.any() else float("nan")


@attrs.define(eq=False)
class Use(_Timed):
    """Use of each device of a kind over time, in a size that does not depend on the job's length.

    Attributes:
        count, total: number and sum of samples, a row a device; the sum in 1/STEPS of a per cent, so that its digits do
            not depend on the order of the samples.
        rows: node and name of each device → its row.
        is_cut: there were more than MAX_USED, and the later are left out.
    """

    LIMIT = USE_BUCKETS
    NAMES = ("count", "total")

    count: Floats = attrs.field(factory=lambda: np.zeros((0, 0)))
    total: Floats = attrs.field(factory=lambda: np.zeros((0, 0)))
    rows: dict[tuple[str, str], int] = attrs.field(factory=dict)
    is_cut: bool = False

    def add(self, node: str, names: Category, seconds: Floats, values: Floats) -> None:
        """Add samples, in per cent, of the devices of a node."""
        row_of = np.full(len(names.values), -1)
        for code in np.unique(names.codes).tolist():
            row_of[code] = self._row((node, names.values[code]))
        rows = row_of[names.codes]
        good = (rows >= 0) & (values >= 0) & (values <= 100) & (seconds > 0) & (seconds <= MAX_SECONDS)
        if not good.any():
            return
        rows, seconds, values = rows[good], seconds[good], np.round(values[good] * STEPS)
        self._make_room(float(seconds.min()), float(seconds.max()))
        node_rows = slice(int(rows.min()), int(rows.max()) + 1)  # next to each other: devices come with their node
        count, total = self.count[node_rows], self.total[node_rows]
        cells = (rows - node_rows.start) * count.shape[1] + (seconds // self.width).astype(np.int64) - self.first
        count += np.bincount(cells, minlength=count.size).reshape(count.shape)
        total += np.bincount(cells, values, total.size).reshape(total.shape)

    def _row(self, device: tuple[str, str]) -> int:
        """Return a device's row, -1 if there are too many."""
        if device not in self.rows:
            if len(self.rows) >= MAX_USED:
                self.is_cut = True
                return -1
            self.rows[device] = len(self.rows)
            if len(self.rows) > len(self.count):
                more = ((0, max(len(self.count), 8)), (0, 0))
                self.count, self.total = np.pad(self.count, more), np.pad(self.total, more)
        return self.rows[device]

    def merge(self, other: Self) -> None:
        """Add the samples of other devices or other times."""
        rows = {self._row(device): row for device, row in other.rows.items()}
        rows.pop(-1, None)
        self.is_cut = self.is_cut or other.is_cut
        copy = attrs.evolve(other)
        for name in self.NAMES:
            ordered = np.zeros((len(self.count), other.count.shape[1]))
            ordered[list(rows)] = getattr(other, name)[list(rows.values())]
            setattr(copy, name, ordered)
        super().merge(copy)

    def ordered(self) -> list[tuple[str, str]]:
        """Return the devices by node and number."""
        return sorted(self.rows, key=lambda row: (natural_key(row[0]), natural_key(row[1])))

    def means(self, devices: Sequence[tuple[str, str]]) -> Floats:
        """Return the mean use of some devices in each bucket, NaN without samples."""
        which = [self.rows[device] for device in devices]
        count, total = self.count[which], self.total[which]
        with np.errstate(invalid="ignore"):
            return np.where(count > 0, total / np.maximum(count, 1) / STEPS, np.nan)


# dimension or name in the files → metric
METRICS = {
    "CPUUtilization": "cpu",
    "I/OWaitPercentage": "io_wait",
    "GPUUtilization": "gpu",
    "GPUMemoryUtilization": "gpu_memory",
    "MemoryUsedPercent": "memory",
    "ReceiveBytesPerSecond": "received",
    "TransmitBytesPerSecond": "sent",
    "ReadThroughputInBytesPerSecond": "disk_read",
    "WriteThroughputInBytesPerSecond": "disk_write",
    "GPUSMClockMHz": "gpu_clock",
    "GPUSMClockMaxMHz": "gpu_clock_max",
    "GPUThrottledByPower": "gpu_by_power",
    "GPUThrottledByHeat": "gpu_by_heat",
    "GPUThrottledByHardware": "gpu_by_hardware",
    "GPUTemperatureCelsius": "gpu_temperature",
    "GPUTensorUtilization": "gpu_tensor",
    "GPUFP32Utilization": "gpu_single",
    "GPUFP64Utilization": "gpu_double",
    "GPUDRAMBandwidthUtilization": "gpu_bandwidth",
    "SwapInBytesPerSecond": "swap_in",
    "SwapOutBytesPerSecond": "swap_out",
    "MajorFaultsPerSecond": "major_faults",
    "MemoryPressurePercent": "memory_pressure",
    "IOPressurePercent": "io_pressure",
    "NFSOperationsInProgress": "nfs_in_progress",
    "NFSLatencyMilliseconds": "nfs_latency",
}
PER_DEVICE = (
    "gpu", "gpu_memory", "gpu_clock", "gpu_clock_max", "gpu_by_power", "gpu_by_heat", "gpu_by_hardware", "gpu_temperature",
    "gpu_tensor", "gpu_single", "gpu_double", "gpu_bandwidth",
)  # fmt: skip
CPU_FAMILY = ("cpu", "io_wait")
WITH_USE = ("cpu", "gpu")


@attrs.frozen(eq=False)
class SystemSeries:
    """Result of the fold.

    Attributes:
        series: (node, metric, device) → buckets; device is `gpu0` … for GPUs, else "".
        cores: node → number of CPU cores.
        first_s, last_s: first and last sample; NaN without samples.
        rows: number of measurements.
        owners: node → who used it, as `identity` returns it, with MACHINE and INSTANCE_TYPE; empty if not recorded.
        use: `cpu` and `gpu` → the use of each core and GPU.
    """

    series: dict[tuple[str, str, str], Buckets]
    cores: dict[str, int]
    first_s: float
    last_s: float
    rows: int
    owners: dict[str, dict[str, str]] = attrs.field(factory=dict)
    use: dict[str, Use] = attrs.field(factory=dict)

    def of(self, metric: str) -> dict[tuple[str, str], Buckets]:
        """Return the buckets of one metric by (node, device)."""
        return {(node, device): data for (node, name, device), data in self.series.items() if name == metric}

    def without(self, devices: Collection[tuple[str, str]]) -> SystemSeries:
        """Return the series of all devices but these, each given by its node and name."""
        kept = {
            (node, name, device): data
            for (node, name, device), data in self.series.items()
            if (node, device) not in devices
        }
        return attrs.evolve(self, series=kept)


@attrs.frozen(eq=False)
class _Metrics(Columns):
    """The columns of system metrics that this fold selects from."""

    timestamp: Floats
    value: Floats
    name: Category


class SystemFold:
    """Collects system metrics window by window; memory is bounded by nodes, GPUs and BUCKETS."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str], Buckets] = {}
        self._devices: dict[tuple[str, str], int] = {}
        self._cores: dict[str, set[str]] = {}
        self._owners: dict[str, dict[str, str]] = {}
        self._use = {metric: Use() for metric in WITH_USE}
        self._first, self._last, self._rows = np.inf, -np.inf, 0

    def update(self, window: SystemWindow) -> None:
        """Add the system metrics of one window."""
        system = window.new_system
        if not len(system):
            return
        self._rows += len(system)
        self._first = min(self._first, float(system.timestamp.min()))
        self._last = max(self._last, float(system.timestamp.max()))
        self._note_owners(system)
        codes = metric_codes(system)
        metrics = _Metrics(system.timestamp, system.value, system.name)
        for node, rows in system.node.groups(codes >= 0):
            self._node(node, metrics[rows], codes[rows])

    def _note_owners(self, system: SystemColumns) -> None:
        """Note who used each node; in case of doubt, the last one named."""
        named = system.type.mask(lambda kind: kind in OWNER_TYPES)
        if not named.any():
            return
        rows = system[named]
        columns = (rows.node.codes, rows.type.codes, rows.name.codes, rows.dimension.codes)
        for node, kind, name, text in dict.fromkeys(zip(*(codes.tolist() for codes in columns), strict=True)):
            is_label = rows.type.values[kind] == LABEL_TYPE
            key = f"{LABEL}{rows.name.values[name]}" if is_label else rows.name.values[name]
            self._own(rows.node.values[node], key, rows.dimension.values[text][:MAX_TEXT])

    def _own(self, node: str, key: str, text: str) -> None:
        if node not in self._owners and len(self._owners) >= MAX_OWNERS:
            return
        owner = self._owners.setdefault(node, {})
        if key in _KEYS or (key.startswith(LABEL) and (key in owner or len(owner) < MAX_LABELS + len(_KEYS))):
            owner[key] = text

    def _node(self, node: str, metrics: _Metrics, codes: NDArray[np.int8]) -> None:
        for number in np.flatnonzero(np.bincount(codes)):
            metric = _METRIC_NAMES[number]
            rows = metrics[codes == number]
            if metric in WITH_USE:
                self._use[metric].add(node, rows.name, rows.timestamp, rows.value)
            if metric in PER_DEVICE:
                for device, mine in rows.name.groups():
                    self._bucket(node, metric, device).add(rows.timestamp[mine], rows.value[mine])
            elif metric in CPU_FAMILY:
                self._cpu(node, metric, rows)
            else:
                self._bucket(node, metric, "").add(rows.timestamp, rows.value)

    def _cpu(self, node: str, metric: str, rows: _Metrics) -> None:
        """Average the cores of each tick; all cores of a tick have its timestamp."""
        self._cores.setdefault(node, set()).update(rows.name.present())
        rows = rows[np.isfinite(rows.value)]
        if not len(rows):
            return
        ticks, which = np.unique(rows.timestamp, return_inverse=True)
        counts = np.bincount(which)
        self._bucket(node, metric, "").add(ticks, np.bincount(which, rows.value) / counts)
        if metric == "cpu":
            hottest = np.full(len(ticks), -np.inf)
            np.maximum.at(hottest, which, rows.value)
            self._bucket(node, "hottest_core", "").add(ticks, hottest)

    def _bucket(self, node: str, metric: str, device: str) -> Buckets:
        key = node, metric, device
        if key not in self._series and device:
            self._devices[node, metric] = self._devices.get((node, metric), 0) + 1
            if self._devices[node, metric] > MAX_DEVICES:
                key = node, metric, OTHER_DEVICES
        return self._series.setdefault(key, Buckets())

    def merge(self, other: SystemFold) -> None:
        """Add the metrics of a fold of other minutes or nodes."""
        for key, data in other._series.items():
            self._bucket(*key).merge(data)
        for metric, use in other._use.items():
            self._use[metric].merge(use)
        for node, names in other._cores.items():
            self._cores.setdefault(node, set()).update(names)
        for node, owner in other._owners.items():
            for kind, text in owner.items():
                self._own(node, kind, text)
        self._first, self._last = min(self._first, other._first), max(self._last, other._last)
        self._rows += other._rows

    def result(self) -> SystemSeries:
        """Return all metrics so far."""
        none = float("nan")
        return SystemSeries(
            dict(sorted(self._series.items(), key=lambda item: [natural_key(text) for text in item[0]])),
            {node: len(self._cores[node]) for node in sorted(self._cores, key=natural_key)},
            float(self._first) if self._rows else none,
            float(self._last) if self._rows else none,
            self._rows,
            {node: dict(self._owners[node]) for node in sorted(self._owners, key=natural_key)},
            self._use,
        )


_METRIC_NAMES = tuple(dict.fromkeys(METRICS.values()))


def metric_codes(system: SystemColumns) -> NDArray[np.int8]:
    """Return the metric of each row as an index into _METRIC_NAMES, -1 for others.

    Network metrics count the traffic of the training container (dimension Algorithm) only.
    """

    def table(column: Category) -> NDArray[np.int8]:
        numbers = [_METRIC_NAMES.index(METRICS[text]) if text in METRICS else -1 for text in column.values]
        return np.asarray(numbers or [-1], np.int8)

    by_dimension, by_name = table(system.dimension)[system.dimension.codes], table(system.name)[system.name.codes]
    codes = np.where(by_dimension >= 0, by_dimension, by_name).astype(np.int8)
    codes[system.dimension.mask("Platform")] = -1
    return codes
