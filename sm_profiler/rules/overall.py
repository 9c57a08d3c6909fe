"""Rules that never fire: statistics of the machines (OverallSystemUsage) and of the training loop (OverallFrameworkMetrics)."""

from __future__ import annotations

import math

import attrs
import numpy as np

from sm_profiler.folding import EvaluationWindow
from sm_profiler.formats.columns import EventColumns, Ints, SystemColumns
from sm_profiler.formatting import natural_key
from sm_profiler.rules.base import (
    CPU_UTILIZATION,
    GPU_MEMORY,
    GPU_UTILIZATION,
    IO_WAIT,
    MEMORY_NAME,
    BuiltinRule,
    names_by_node,
    sums_per_moment,
)
from sm_profiler.rules.results import KeyOrder, RuleResult
from sm_profiler.rules.statistics import UNITS, EventClass, QuantileSketch, TimeBreakdown, classes_of

# Metric in the report → dimension of its rows, and the devices it is the mean of.
METRICS = {
    "Network": ("Algorithm", None),
    "GPU": (GPU_UTILIZATION, "gpu"),
    "CPU": (CPU_UTILIZATION, "cpu"),
    "CPU memory": ("", None),
    "GPU memory": (GPU_MEMORY, "gpu"),
    "I/O": (IO_WAIT, "cpu"),
}
DEVICES = {"gpu": (GPU_UTILIZATION, GPU_MEMORY), "cpu": (CPU_UTILIZATION, IO_WAIT)}

OTHERS = "others"


def statistics(values: QuantileSketch) -> dict[str, float]:
    """Return maximum, percentiles and minimum to two decimals; values of zero and below are the int 0."""
    p99, p95, p50 = values.quantiles([0.99, 0.95, 0.5])
    found = {"max": values.max, "p99": p99, "p95": p95, "p50": p50, "min": values.min}
    return {name: max(0, float(np.round(value, 2))) for name, value in found.items()}


class OverallSystemUsage(BuiltinRule):
    """Maximum, percentiles and minimum of network, GPU, CPU, memory and I/O wait of each node."""

    def start(self) -> None:
        self._device_names: dict[tuple[str, str], set[str]] = {}  # by node and kind
        self._values: dict[str, dict[str, QuantileSketch]] = {metric: {} for metric in METRICS}

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Add the window's sums per node and timestamp."""
        self._add(self.rows(window)[0])
        return False

    def _add(self, system: SystemColumns) -> None:
        for kind, dimensions in DEVICES.items():
            rows = system.dimension.mask(dimensions[0]) | system.dimension.mask(dimensions[1])
            for node, names in names_by_node(system, rows).items():
                self._names_of(node, kind).update(names)
        for metric, (dimension, devices) in METRICS.items():
            is_memory = metric == "CPU memory"
            chosen = system.name.mask(MEMORY_NAME) if is_memory else system.dimension.mask(dimension)
            for node, sums in sums_per_moment(system, chosen):
                divisor = len(self._names_of(node, devices)) if devices else 1
                self._values[metric].setdefault(node, QuantileSketch(exact=self.differs.all_values)).add(sums / divisor)

    def _names_of(self, node: str, kind: str) -> set[str]:
        return self._device_names.setdefault(("" if self.differs.across_nodes else node, kind), set())

    def absorb(self, other: OverallSystemUsage) -> None:
        for (node, kind), names in other._device_names.items():
            self._names_of(node, kind).update(names)
        for metric, nodes in other._values.items():
            for node, values in nodes.items():
                self._values[metric].setdefault(node, QuantileSketch()).merge(values)

    def result(self) -> RuleResult:
        """Return the statistics, nodes in natural order."""
        metrics = self._values
        if not self.differs.as_it_went:
            metrics = {
                metric: dict(sorted(nodes.items(), key=lambda item: natural_key(item[0])))
                for metric, nodes in metrics.items()
            }
        cpu = next(iter(metrics["CPU"].values()), None)
        details = {
            metric: {node: statistics(values) for node, values in nodes.items()} for metric, nodes in metrics.items()
        }
        missing = None if any(metrics.values()) else "no system metrics"
        return self._result(0, 0, cpu.count if cpu else 0, details, missing)


@attrs.define
class _Loop:
    """The training loop of one process: from its first step to the end of its last."""

    start_us: float
    end_us: float
    in_steps_us: float = 0.0

    def add(self, start_us: float, end_us: float, in_steps_us: float) -> None:
        self.start_us, self.end_us = min(self.start_us, start_us), max(self.end_us, end_us)
        self.in_steps_us += in_steps_us

    @property
    def outside_us(self) -> float:
        return max(self.end_us - self.start_us - self.in_steps_us, 0.0)


class OverallFrameworkMetrics(BuiltinRule):
    """Shares of training and evaluation steps, of passes, operators and all other recorded events."""

    def start(self) -> None:
        self._breakdown = TimeBreakdown()
        self._loops: dict[str, _Loop] = {}  # by process
        if self.differs.counted_again:
            self._loop_start_us: float | None = None
            self._order = KeyOrder()

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Add the window's events."""
        events = self.rows(window)[1]
        if self.differs.counted_again:
            self._count_again(events)
            return False
        self._breakdown.add(events)
        ends_us = events.end_us
        for process, own in events.node.groups(classes_of(events) == EventClass.STEP):
            start_us, end_us = float(events.start_us[own].min()), float(ends_us[own].max())
            loop = self._loops.setdefault(process, _Loop(start_us, end_us))
            loop.add(start_us, end_us, float(events.duration_us[own].sum()))
        return False

    def _count_again(self, events: EventColumns) -> None:
        """Add events, and compute `others` anew after each step with its own last value among the steps.

        That is about half of the true time, and possibly negative.
        """
        known_gpu_phases, before = len(self._breakdown.gpu_phases), dict(self._breakdown.steps)
        self._breakdown.add(events)
        self._add_others(events, self._gpu_phases_at(events, known_gpu_phases), before)
        self._order.add(self._breakdown.shares(in_order=True))

    def _add_others(self, events: EventColumns, gpu_phases_at: Ints, before: dict[str, float]) -> None:
        rows = np.flatnonzero(classes_of(events) == EventClass.STEP)
        if len(rows) == 0:
            return
        in_steps = sum(value for name, value in before.items() if name != OTHERS) / UNITS
        others = before.get(OTHERS, 0.0) / UNITS
        columns = (events.start_us, events.duration_us, events.end_us, gpu_phases_at)
        for start_us, duration_us, end_us, gpus in zip(*(each[rows].tolist() for each in columns), strict=True):
            self._loop_start_us = start_us if self._loop_start_us is None else self._loop_start_us
            in_steps += duration_us
            others = (end_us - self._loop_start_us) - (in_steps + others) / max(gpus, 1)
        names = [name for name in self._breakdown.steps if name != OTHERS]
        place = names if OTHERS in before else [names[0], OTHERS, *names[1:]]
        values = {**self._breakdown.steps, OTHERS: others * UNITS}
        order = list(before) + [name for name in place if name not in before]
        self._breakdown.steps = {name: values[name] for name in order}

    def _gpu_phases_at(self, events: EventColumns, known: int) -> Ints:
        """Return the number of GPU phases seen up to each event."""
        new = np.zeros(len(events), np.int64)
        for name in list(self._breakdown.gpu_phases)[known:]:
            new[int(np.argmax(events.phase.mask(name)))] += 1
        return known + np.cumsum(new)

    def absorb(self, other: OverallFrameworkMetrics) -> None:
        self._breakdown.merge(other._breakdown)
        for process, loop in other._loops.items():
            mine = self._loops.setdefault(process, _Loop(loop.start_us, loop.end_us))
            mine.add(loop.start_us, loop.end_us, loop.in_steps_us)

    def result(self) -> RuleResult:
        """Return the shares; `others` is the time of all loops outside their steps."""
        if self.differs.counted_again:
            shares = self._breakdown.shares(in_order=True)
            self._order.add(shares)
            return self._result(0, 0, 0, self._order.apply(shares))
        breakdown = TimeBreakdown()
        breakdown.merge(self._breakdown)
        if breakdown.steps:
            breakdown.steps[OTHERS] = UNITS * math.fsum(loop.outside_us for loop in self._loops.values())
        missing = None if self._breakdown else "no framework data"
        return self._result(0, 0, 0, breakdown.shares(), missing)
