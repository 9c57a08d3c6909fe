"""Conversion of columns to DataFrames with the columns and values of the notebook API."""

from __future__ import annotations

from sm_profiler.errors import SourceError

try:
    import pandas as pd
    import pyarrow as pa  # noqa: F401 - the text columns are Arrow's
except ImportError as missing:  # pragma: no cover - the extra is installed where the tests run
    raise SourceError("the notebook API needs pandas: pip install 'sm-profiler[analysis]'") from missing

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.analysis.readers import in_file_order
from sm_profiler.analysis.times import category_texts, text_times, texts
from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.formats.event_names import STEP, STEP_TRAIN

_CHUNK = 1 << 16  # rows processed at once, so that they stay in the processor's cache
SYSTEM_COLUMNS = ("timestamp", "timestamp_us", "value", "system_metric", "dimension", "nodeID", "type")
FRAMEWORK_COLUMNS = (
    "start_time", "end_time", "start_time_us", "end_time_us", "tid", "pid", "framework_metric", "step", "bytes", "process", "nodeID",
)  # fmt: skip
DATALOADER_COLUMNS = (
    "start_time", "end_time", "start_time_us", "end_time_us", "duration_us", "pid", "framework_metric", "step", "worker_id",
    "num_workers", "pin_memory", "process", "node_id",
)  # fmt: skip


def system_frame(
    system: SystemColumns, start_us: int = 0, *, shown_us: NDArray[np.int64] | None = None, reuse: bool = False
) -> pd.DataFrame:
    """Convert system metrics to a frame with one row per measurement, without duplicates.

    Args:
        system: the measurements.
        start_us: origin of `timestamp_us`, microseconds since the epoch.
        shown_us: times to show in `timestamp`, microseconds since the epoch, one per measurement; default: the time of
            measurement.
        reuse: overwrite the memory of `system`, which the caller must not use afterwards.

    Returns:
        Columns timestamp, timestamp_us, value, system_metric, dimension, nodeID, type.
    """
    at_us = _microseconds(writable(system.timestamp, reuse=reuse))
    rows = first_rows(at_us, system.value, system.name, system.dimension, system.node, system.type)
    if rows is not None:
        system, at_us, reuse = system[rows], at_us[rows], True
        shown_us = None if shown_us is None else shown_us[rows]
    # Release each column as soon as it is converted: an hour of a large job takes hundreds of megabytes.
    columns: dict[str, Any] = {"timestamp_us": at_us, "value": writable(system.value, reuse=reuse)}
    left = {"nodeID": system.node, "type": system.type, "dimension": system.dimension, "system_metric": system.name}
    del system
    while left:
        column, category = left.popitem()
        columns[column] = category_texts(category)
    columns["timestamp"] = texts(text_times(at_us if shown_us is None else shown_us))
    at_us -= start_us
    return pd.DataFrame({column: columns[column] for column in SYSTEM_COLUMNS}, copy=False)


def framework_frame(
    events: EventColumns, start_us: int = 0, *, ordered: bool = False, reuse: bool = False
) -> pd.DataFrame:
    """Convert trace events to a frame with one row per span, without duplicates; instants are left out.

    Args:
        events: the events.
        start_us: origin of `start_time_us` and `end_time_us`, microseconds since the epoch.
        ordered: keep the order of `events` instead of sorting by timeline (the hook's first) and file.
        reuse: overwrite the memory of `events`, which the caller must not use afterwards.

    Returns:
        Columns start_time, end_time, start_time_us, end_time_us, tid, pid, framework_metric, step, bytes, process,
        nodeID.
    """
    events = spans(events) if ordered else in_file_order(spans(events))
    name = shown_names(events)
    size = argument_numbers(events.args, "bytes_fetched")
    pid = process_numbers(events, reuse=reuse)
    rows = first_rows(
        events.start_us, events.duration_us, name, events.phase, events.node, events.step, events.tid, pid, size
    )
    if rows is not None:
        events, name, size, pid, reuse = events[rows], name[rows], size[rows], pid[rows], True
    # Release each column as soon as it is converted, as in `system_frame`.
    tid, step, phase, node = (
        writable(events.tid, reuse=reuse),
        writable(events.step, reuse=reuse),
        events.phase,
        events.node,
    )
    start, end = writable(events.start_us, reuse=reuse), writable(events.duration_us, reuse=reuse)
    del events
    end += start
    columns = {"framework_metric": category_texts(name)}
    del name
    columns["process"] = category_texts(phase)
    del phase
    columns["nodeID"] = category_texts(node)
    del node
    columns |= _time_columns(start, end, start_us) | {"tid": tid, "pid": pid, "step": step, "bytes": size}
    return pd.DataFrame({column: columns[column] for column in FRAMEWORK_COLUMNS}, copy=False)


def dataloader_frame(events: EventColumns, start_us: int = 0) -> pd.DataFrame:
    """Convert trace events to a frame with the columns of data loading, without duplicates; instants are left out.

    Args:
        events: the events.
        start_us: origin of `start_time_us` and `end_time_us`, microseconds since the epoch.

    Returns:
        Columns start_time, end_time, start_time_us, end_time_us, duration_us, pid, framework_metric, step, worker_id,
        num_workers, pin_memory, process, node_id.
    """
    events = in_file_order(spans(events))
    name = shown_names(events)
    pid = process_numbers(events)
    key = (events.start_us, events.duration_us, name, events.phase, events.node, events.step, pid, events.worker_id)
    rows = first_rows(*key, events.num_workers, events.pin_memory)
    if rows is not None:
        events, name, pid = events[rows], name[rows], pid[rows]
    pinned = Category((events.pin_memory.astype(np.int32) + 1), ("NA", "False", "True"))
    return pd.DataFrame(
        {
            **_time_columns(writable(events.start_us), events.end_us, start_us),
            "duration_us": whole_times(writable(events.duration_us)),
            "pid": pid,
            "framework_metric": category_texts(name),
            "step": writable(events.step),
            "worker_id": events.worker_id.astype(np.int64),
            "num_workers": events.num_workers.astype(np.int64),
            "pin_memory": category_texts(pinned),
            "process": category_texts(events.phase),
            "node_id": category_texts(events.node),
        },
        copy=False,
    )


def _time_columns(start: NDArray[Any], end: NDArray[Any], offset_us: int) -> dict[str, Any]:
    """Return the columns of times, which take over the memory of the arrays."""
    shown = [whole_times(start), whole_times(end)]
    start_time, end_time = (texts(text_times(times)) for times in shown)
    for times in shown:
        np.subtract(times, offset_us, out=times)
    return {"start_time": start_time, "end_time": end_time, "start_time_us": shown[0], "end_time_us": shown[1]}


def spans(events: EventColumns) -> EventColumns:
    """Return the events that have a duration: all except instants."""
    instants = events.instants
    taken: EventColumns = events[~instants] if instants.any() else events
    return taken


def writable(column: NDArray[Any], *, reuse: bool = False) -> NDArray[Any]:
    """Return a copy of a column that a frame can own and write to, or with `reuse` the column itself if it is writable.

    Columns may be shared between readers or mapped from a file.
    """
    return column if reuse and column.flags.writeable else np.array(column)


def process_numbers(events: EventColumns, *, reuse: bool = False) -> NDArray[np.int64]:
    """Return the process of each event, or its track if the process is unknown."""
    pid = writable(events.pid, reuse=reuse)
    np.copyto(pid, events.track, where=pid < 0)
    return pid


def whole_times(times: NDArray[np.float64]) -> NDArray[Any]:
    """Convert times to integers in the same memory if all of them are whole; return them unchanged otherwise."""
    chunks = [slice(start, start + _CHUNK) for start in range(0, len(times), _CHUNK)]
    if not all(np.array_equal(np.rint(times[chunk]), times[chunk]) for chunk in chunks):
        return times
    whole = times.view(np.int64)
    for chunk in chunks:
        whole[chunk] = times[chunk].astype(np.int64)
    return whole


def _microseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert seconds to whole microseconds in the same memory."""
    whole = seconds.view(np.int64)
    for start in range(0, len(seconds), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        whole[chunk] = (seconds[chunk] * 1e6).astype(np.int64)
    return whole


def shown_names(events: EventColumns) -> Category:
    """Return the names for `framework_metric`: the name in an event's arguments if there is one, else the event's."""
    own = {number: name for number, text in enumerate(events.args.values) if (name := _own_name(text)) is not None}
    if not own:
        return events.name
    numbers = {text: number for number, text in enumerate(events.name.values)}
    codes = np.full(len(events.args.values), -1, np.int32)
    for number, name in own.items():
        codes[number] = numbers.setdefault(name, len(numbers))
    replaced = codes[events.args.codes]
    return Category(np.where(replaced >= 0, replaced, events.name.codes).astype(np.int32), tuple(numbers))


def argument_numbers(args: Category, key: str) -> NDArray[np.int64]:
    """Return the integer under a key of each row's arguments; -1 if there is none."""
    quoted = f'"{key}"'
    found = {number: _decoded(text).get(key, -1) for number, text in enumerate(args.values) if quoted in text}
    if not found:
        return np.full(len(args), -1, np.int64)
    numbers = np.full(len(args.values), -1, np.int64)
    for number, value in found.items():
        numbers[number] = value if isinstance(value, int) and abs(value) < 1 << 63 else -1
    taken: NDArray[np.int64] = numbers[args.codes]
    return taken


def first_rows(*columns: NDArray[Any] | Category) -> NDArray[np.int64] | None:
    """Return the rows that differ from all earlier rows; None if all rows are distinct.

    Each row is hashed to 32 bits; only rows whose hash occurs twice are compared in full.
    """
    count = len(columns[0])
    mixed = np.empty(count, np.uint32)
    for start in range(0, count, _CHUNK):
        part = np.zeros(min(_CHUNK, count - start), np.uint64)
        for column in columns:
            part *= np.uint64(0x9E3779B97F4A7C15)
            part += _bits(column[start : start + _CHUNK])
        part ^= part >> np.uint64(29)
        part *= np.uint64(0xBF58476D1CE4E5B9)
        mixed[start : start + _CHUNK] = part >> np.uint64(32)
    ordered = np.sort(mixed)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    del ordered
    if not len(twice):
        return None
    near = np.zeros(1 << 20, np.bool_)  # a coarse filter that excludes most rows
    near[twice >> np.uint32(12)] = True
    candidates = np.flatnonzero(near[mixed >> np.uint32(12)])
    candidates = candidates[np.isin(mixed[candidates], twice)]
    table = pd.DataFrame({number: _bits(column[candidates]) for number, column in enumerate(columns)})
    again = candidates[table.duplicated().to_numpy()]
    if not len(again):
        return None
    keep = np.ones(count, np.bool_)
    keep[again] = False
    return np.flatnonzero(keep)


def _bits(column: NDArray[Any] | Category) -> NDArray[np.uint64]:
    if isinstance(column, Category):
        return column.codes.astype(np.uint64)
    if column.dtype == np.float64:
        return column.view(np.uint64)
    return column.astype(np.int64).view(np.uint64)


def _own_name(text: str) -> str | None:
    if '"layer_name"' not in text and '"name"' not in text:
        return None
    args = _decoded(text)
    name = args.get("layer_name", args.get("name"))
    return None if name is None else str(name)


def _decoded(text: str) -> dict[str, Any]:
    args = msgspec.json.decode(text)
    return args if isinstance(args, dict) else {}


def steps_first(events: EventColumns) -> NDArray[np.int64]:
    """Return the rows sorted by start, each step before what starts with it, for `PandasFrame.get_latest_data`.

    The first training step of each process comes directly after the very first row: notebooks from the beta of the old
    library take the row labelled 1 to be the start of the training loop.
    """
    is_step = events.name.mask(lambda name: name.startswith(STEP))
    order = np.lexsort((~is_step, events.start_us)).astype(np.int64)
    first = (events.name.mask(STEP_TRAIN) & (events.step == 0))[order]
    if len(order):
        first[0] = False
    rest = order[~first]
    return np.concatenate([rest[:1], order[first], rest[1:]])
