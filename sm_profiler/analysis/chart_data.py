"""What charts show, computed apart from their drawing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.errors import ConfigError
from sm_profiler.formats.columns import EventColumns, Floats, SystemColumns

# dimension (and node) → device → rows of time (seconds since the epoch) and value
Series: TypeAlias = dict[str, dict[str, Floats]]
TOTAL = "total"
PERCENT_DIMENSIONS = ("Utilization", "Memory", "I/OWaitPercentage")


def system_series(system: SystemColumns, *, by_node: bool = True) -> Series:
    """The system metrics by dimension (of each node, as `CPUUtilization-nodeid:algo-1`) and device, each in order of time.

    Dimensions whose devices are alike have a `total`, too: the mean over the devices measured at a time.
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
    """The names in which one of the regular expressions is found, in their order.

    Raises:
        ConfigError: one is no regular expression.
    """
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise ConfigError(f"{error.pattern!r} is no regular expression: {error.msg}") from error
    return [name for name in dict.fromkeys(names) if any(pattern.search(name) for pattern in compiled)]


def is_percent(dimension: str, device: str) -> bool:
    """Whether a metric is a share, which is drawn between 0 and 100."""
    return any(part in dimension for part in PERCENT_DIMENSIONS) or "Percent" in device


def time_annotations(events: EventColumns) -> dict[str, float]:
    """How long what ran, in milliseconds, the longest first; what has a step is told apart by it."""
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
class Steps:
    """Steps in order of their start.

    Attributes:
        start_s: seconds since the epoch.
        duration_s: seconds.
        number: of the step.
        metric: `Step:ModeKeys.TRAIN` …
        node: the process.
    """

    start_s: Floats
    duration_s: Floats
    number: NDArray[np.int64]
    metric: NDArray[np.object_]
    node: NDArray[np.object_]


def steps_of(events: EventColumns) -> Steps:
    """The steps among the events."""
    steps = events[events.name.mask(lambda name: name.startswith("Step")) & (events.step >= 0)]
    steps = steps[np.argsort(steps.start_us, kind="stable")]
    return Steps(steps.start_us / 1e6, steps.duration_us / 1e6, steps.step, steps.name.decode(), steps.node.decode())


def durations_by_phase(events: EventColumns, *, by_node: bool = True) -> dict[str, Floats]:
    """The durations of events in seconds, by phase (of each process, as `Forward-nodeid:algo-1-0`)."""
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
    """How many values lie between the edges."""
    return np.histogram(values, bins=edges)[0].astype(np.int64)


def duration_edges(values: Floats, count: int = 50) -> Floats:
    """Edges for durations: from the least to twice the standard deviation beyond the median; the last takes all above."""
    low, high = float(np.min(values)), float(np.median(values) + 2 * np.std(values))
    high = max(high, low + 1e-9)
    return np.linspace(low, high, count + 1)


@attrs.frozen(eq=False)
class Bars:
    """Spans to draw in rows.

    Attributes:
        row: which row each is in.
        start_ms, end_ms: milliseconds since the epoch.
        metric: its name.
        rows: the rows' names.
        left_out: how many more there would be.
    """

    row: NDArray[np.int64]
    start_ms: Floats
    end_ms: Floats
    metric: NDArray[np.object_]
    rows: tuple[str, ...]
    left_out: int = 0


def bars_of(events: EventColumns, row_names: Sequence[str], most: int) -> Bars:
    """Spans in the rows that `row_names` gives them; the longest of them, where there are more than `most`."""
    rows = {name: number for number, name in enumerate(dict.fromkeys(row_names))}
    number = np.array([rows[name] for name in row_names], np.int64)
    kept = np.arange(len(events))
    if len(events) > most:
        kept = np.sort(np.argsort(-events.duration_us, kind="stable")[:most])
    part = events[kept]
    return Bars(
        number[kept], part.start_us / 1e3, part.end_us / 1e3, part.name.decode(), tuple(rows), len(events) - len(kept)
    )


@attrs.frozen(eq=False)
class Rows:
    """Rows of a heat map.

    Attributes:
        values: shape (rows, ticks), percent; NaN where nothing was measured.
        names: the rows' names.
    """

    values: Floats
    names: tuple[str, ...]


def heat_rows(series: Series, dimensions: Sequence[str], devices: Sequence[str]) -> Rows:
    """The chosen metrics, a row each; what is no share is shown as a share of its greatest value."""
    wanted_dimensions, found = set(chosen(series, dimensions)), []
    names = []
    for dimension, members in series.items():
        if dimension not in wanted_dimensions:
            continue
        for device in chosen(members, devices):
            values = members[device][:, 1]
            greatest = values.max() if len(values) else 0
            found.append(values if is_percent(dimension, device) or not greatest else values / greatest * 100)
            names.append(f"{dimension}_{device}")
    width = max(map(len, found), default=0)
    table = np.full((len(found), width), np.nan)
    for row, values in enumerate(found):
        table[row, : len(values)] = values
    return Rows(table, tuple(names))


def _pairs(system: SystemColumns, *, by_node: bool) -> list[tuple[str, str]]:
    nodes = system.node.present() if by_node else [""]
    return [
        (dimension, node) for dimension in system.dimension.present() for node in nodes if _any(system, dimension, node)
    ]


def _any(system: SystemColumns, dimension: str, node: str) -> bool:
    return not node or bool((system.dimension.mask(dimension) & system.node.mask(node)).any())


def _in_order(times: Floats, values: Floats) -> Any:
    order = np.argsort(times, kind="stable")
    return np.column_stack([times[order], values[order]])
