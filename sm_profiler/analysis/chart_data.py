"""Data of the charts, computed without Bokeh."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.errors import ConfigError
from sm_profiler.formats.columns import EventColumns, Floats, SystemColumns
from sm_profiler.identity import OWNER_TYPES

# dimension (and node) → device → rows of time (seconds since the epoch) and value
Series: TypeAlias = dict[str, dict[str, Floats]]
TOTAL = "total"
PERCENT_DIMENSIONS = ("Utilization", "Memory", "I/OWaitPercentage")


def system_series(system: SystemColumns, *, by_node: bool = True) -> Series:
    """Group system metrics by dimension and device, each sorted by time.

    Every dimension has a device `total`: the mean over its devices at each time.

    Args:
        system: the measurements.
        by_node: separate nodes; dimensions are then named like `CPUUtilization-nodeid:algo-1`.

    Returns:
        Dimension → device → array of shape (measurements, 2): seconds since the epoch, and value.
    """
    found: Series = {}
    for dimension, node in _pairs(system, by_node=by_node):
        rows = system[system.dimension.mask(dimension) & (system.node.mask(node) if by_node else True)]
        devices: dict[str, Floats] = {}
        for device in rows.name.present():
            mine = rows[rows.name.mask(device)]
            devices[device] = _in_order(mine.timestamp, mine.value)
        if dimension:
            at, place = np.unique(rows.timestamp, return_inverse=True)
            devices[TOTAL] = np.column_stack(
                [at, np.bincount(place, rows.value, len(at)) / np.bincount(place, minlength=len(at))]
            )
        found[f"{dimension}-nodeid:{node}" if by_node else dimension] = devices
    return found


def chosen(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of the regular expressions anywhere, in their order, without duplicates.

    Raises:
        ConfigError: a pattern is not a valid regular expression.
    """
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise ConfigError(f"{error.pattern!r} is not a valid regular expression: {error.msg}") from error
    return [name for name in dict.fromkeys(names) if any(pattern.search(name) for pattern in compiled)]


def is_percent(dimension: str, device: str) -> bool:
    """Return True for a percentage, which is drawn between 0 and 100."""
    return any(part in dimension for part in PERCENT_DIMENSIONS) or "Percent" in device


def time_annotations(events: EventColumns) -> dict[str, float]:
    """Sum durations in milliseconds by name and step (`Forward_7`), maximum first."""
    events = events[~events.instants]
    spent: dict[str, float] = {}
    keys = np.stack([events.name.codes.astype(np.int64), events.step])
    distinct, place = np.unique(keys, axis=1, return_inverse=True)
    sums = np.bincount(place.ravel(), events.duration_us, distinct.shape[1]) / 1e3
    for (name, step), total in zip(distinct.T.tolist(), sums.tolist(), strict=True):
        text = events.name.values[name]
        spent[text if step < 0 else f"{text}_{step}"] = total
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


@attrs.frozen(eq=False)
class StepSeries:
    """Steps sorted by start; all arrays have one element per step.

    Attributes:
        start_s: seconds since the epoch.
        duration_s: seconds.
        number: number of the step.
        metric: `Step:ModeKeys.TRAIN` …
        node: the process.
    """

    start_s: Floats
    duration_s: Floats
    number: NDArray[np.int64]
    metric: NDArray[np.object_]
    node: NDArray[np.object_]


def steps_of(events: EventColumns) -> StepSeries:
    """Select the steps among events."""
    steps = events[events.name.mask(lambda name: name.startswith("Step")) & (events.step >= 0)]
    steps = steps[np.argsort(steps.start_us, kind="stable")]
    return StepSeries(
        steps.start_us / 1e6, steps.duration_us / 1e6, steps.step, steps.name.decode(), steps.node.decode()
    )


def durations_by_phase(events: EventColumns, *, by_node: bool = True) -> dict[str, Floats]:
    """Return the durations of events in seconds by phase, and by process (`Forward-nodeid:algo-1-0`) if `by_node`."""
    events = events[~events.instants]
    found: dict[str, Floats] = {}
    for phase in events.phase.present():
        mine = events[events.phase.mask(phase)]
        if not by_node:
            found[phase] = mine.duration_us / 1e6
            continue
        for node in mine.node.present():
            found[f"{phase}-nodeid:{node}"] = mine.duration_us[mine.node.mask(node)] / 1e6
    return found


def histogram(values: Floats, edges: Floats) -> NDArray[np.int64]:
    """Count the values between consecutive edges; NaN counts nowhere."""
    return np.histogram(values, bins=edges)[0].astype(np.int64)


def duration_edges(values: Floats, count: int = 50) -> Floats:
    """Return `count` + 1 equidistant edges from the minimum to two standard deviations above the median."""
    low, high = float(np.min(values)), float(np.median(values) + 2 * np.std(values))
    high = max(high, low + 1e-9)
    return np.linspace(low, high, count + 1)


@attrs.frozen(eq=False)
class Bars:
    """Spans drawn as bars in rows.

    Attributes:
        row: index of each bar's row.
        start_ms, end_ms: milliseconds since the epoch.
        metric: name of each bar.
        rows: names of the rows.
        left_out: number of spans that were left out.
    """

    row: NDArray[np.int64]
    start_ms: Floats
    end_ms: Floats
    metric: NDArray[np.object_]
    rows: tuple[str, ...]
    left_out: int = 0


def bars_of(events: EventColumns, row_names: Sequence[str], limit: int) -> Bars:
    """Place spans in the rows named by `row_names`, one name per span; keep only the `limit` longest."""
    rows = {name: number for number, name in enumerate(dict.fromkeys(row_names))}
    number = np.array([rows[name] for name in row_names], np.int64)
    kept = np.arange(len(events))
    if len(events) > limit:
        kept = np.sort(np.argsort(-events.duration_us, kind="stable")[:limit])
    part = events[kept]
    return Bars(
        number[kept], part.start_us / 1e3, part.end_us / 1e3, part.name.decode(), tuple(rows), len(events) - len(kept)
    )


@attrs.frozen(eq=False)
class HeatmapRows:
    """Rows of a heat map.

    Attributes:
        values: percent, shape (rows, measurements); NaN beyond the end of a shorter row.
        names: names of the rows.
    """

    values: Floats
    names: tuple[str, ...]


def heat_rows(series: Series, dimensions: Sequence[str], devices: Sequence[str]) -> HeatmapRows:
    """Return the selected metrics, one per row; metrics other than percentages are scaled to their maximum."""
    wanted_dimensions, found = set(chosen(series, dimensions)), []
    names = []
    for dimension, members in series.items():
        if dimension not in wanted_dimensions:
            continue
        for device in chosen(members, devices):
            values = members[device][:, 1]
            maximum = values.max() if len(values) else 0
            found.append(values if is_percent(dimension, device) or not maximum else values / maximum * 100)
            names.append(f"{dimension}_{device}")
    width = max(map(len, found), default=0)
    table = np.full((len(found), width), np.nan)
    for row, values in enumerate(found):
        table[row, : len(values)] = values
    return HeatmapRows(table, tuple(names))


def _pairs(system: SystemColumns, *, by_node: bool) -> list[tuple[str, str]]:
    metrics = ~system.type.mask(lambda kind: kind in OWNER_TYPES)
    nodes = system.node.present() if by_node else [""]
    return [
        (dimension, node)
        for dimension in system.dimension[metrics].present()
        for node in nodes
        if _exists(system, dimension, node)
    ]


def _exists(system: SystemColumns, dimension: str, node: str) -> bool:
    return not node or bool((system.dimension.mask(dimension) & system.node.mask(node)).any())


def _in_order(times: Floats, values: Floats) -> Any:
    order = np.argsort(times, kind="stable")
    return np.column_stack([times[order], values[order]])
