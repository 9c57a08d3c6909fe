"""Columns to DataFrames, with the columns and values that notebooks know."""

from __future__ import annotations

from sm_profiler.errors import SourceError

try:
    import pandas as pd
    import pyarrow as pa
except ImportError as missing:  # pragma: no cover - the extra is installed where the tests run
    raise SourceError("the notebook API needs pandas: pip install 'sm-profiler[analysis]'") from missing

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.analysis.readers import in_file_order
from sm_profiler.analysis.text_times import text_times, text_times_of
from sm_profiler.formats.columns import Category, EventColumns, SystemColumns

_CHUNK = 1 << 16  # rows at a time: what is worked on stays in the processor's cache
SYSTEM_COLUMNS = ("timestamp", "timestamp_us", "value", "system_metric", "dimension", "nodeID", "type")
FRAMEWORK_COLUMNS = (
    "start_time", "end_time", "start_time_us", "end_time_us", "tid", "pid", "framework_metric", "step", "bytes", "process", "nodeID",
)  # fmt: skip
DATALOADER_COLUMNS = (
    "start_time", "end_time", "start_time_us", "end_time_us", "duration_us", "pid", "framework_metric", "step", "worker_id",
    "num_workers", "pin_memory", "process", "node_id",
)  # fmt: skip


def system_frame(
    system: SystemColumns, start_us: int = 0, *, shown_us: NDArray[np.int64] | None = None
) -> pd.DataFrame:
    """System metrics as a frame, one row a measurement, without duplicates.

    Args:
        system: the measurements.
        start_us: what `timestamp_us` counts from, microseconds since the epoch.
        shown_us: what `timestamp` shows instead of the time of measurement, microseconds since the epoch.
    """
    at_us = (system.timestamp * 1e6).astype(np.int64)
    rows = first_rows(at_us, system.value, system.name, system.dimension, system.node, system.type)
    if rows is not None:
        system, at_us = system[rows], at_us[rows]
        shown_us = None if shown_us is None else shown_us[rows]
    return pd.DataFrame(
        {
            "timestamp": texts(text_times(at_us if shown_us is None else shown_us)),
            "timestamp_us": at_us - start_us,
            "value": own(system.value),
            "system_metric": category_texts(system.name),
            "dimension": category_texts(system.dimension),
            "nodeID": category_texts(system.node),
            "type": category_texts(system.type),
        },
        copy=False,
    )


def framework_frame(events: EventColumns, start_us: int = 0, *, ordered: bool = False) -> pd.DataFrame:
    """Trace events as a frame, one row an event, without duplicates; instants, which take no time, are left out.

    Args:
        events: the events.
        start_us: what `start_time_us` and `end_time_us` count from, microseconds since the epoch.
        ordered: leave the events in their order; else they go by timeline, the hook's first, and by file.
    """
    events = spans(events) if ordered else in_file_order(spans(events))
    name = shown_names(events)
    size = argument_numbers(events.args, "bytes_fetched")
    pid = np.where(events.pid < 0, events.track, events.pid)
    rows = first_rows(
        events.start_us, events.duration_us, name, events.phase, events.node, events.step, events.tid, pid, size
    )
    if rows is not None:
        events, name, size, pid = events[rows], name[rows], size[rows], pid[rows]
    # What is done with is let go: an hour of a large job is hundreds of megabytes.
    times = (whole_times(events.start_us), whole_times(events.end_us))
    tid, step, phase, node = events.tid, events.step, events.phase, events.node
    del events
    columns = _time_columns(times, start_us)
    del times
    columns |= {"tid": own(tid), "pid": pid}
    del tid
    columns["framework_metric"] = category_texts(name)
    del name
    columns |= {"step": own(step), "bytes": size}
    del step
    columns |= {"process": category_texts(phase), "nodeID": category_texts(node)}
    return pd.DataFrame(columns, copy=False)


def dataloader_frame(events: EventColumns, start_us: int = 0) -> pd.DataFrame:
    """Trace events as a frame with the columns of data loading, without duplicates; instants are left out.

    Args:
        events: the events.
        start_us: what `start_time_us` and `end_time_us` count from, microseconds since the epoch.
    """
    events = in_file_order(spans(events))
    name = shown_names(events)
    pid = np.where(events.pid < 0, events.track, events.pid)
    key = (events.start_us, events.duration_us, name, events.phase, events.node, events.step, pid, events.worker_id)
    rows = first_rows(*key, events.num_workers, events.pin_memory)
    if rows is not None:
        events, name, pid = events[rows], name[rows], pid[rows]
    pinned = Category((events.pin_memory.astype(np.int32) + 1), ("NA", "False", "True"))
    return pd.DataFrame(
        {
            **_time_columns((whole_times(events.start_us), whole_times(events.end_us)), start_us),
            "duration_us": own(whole_times(events.duration_us)),
            "pid": pid,
            "framework_metric": category_texts(name),
            "step": own(events.step),
            "worker_id": events.worker_id.astype(np.int64),
            "num_workers": events.num_workers.astype(np.int64),
            "pin_memory": category_texts(pinned),
            "process": category_texts(events.phase),
            "node_id": category_texts(events.node),
        },
        copy=False,
    )


def _time_columns(times: tuple[NDArray[Any], NDArray[Any]], start_us: int) -> dict[str, Any]:
    start, end = text_times_of(*times)
    return {
        "start_time": texts(start),
        "end_time": texts(end),
        "start_time_us": times[0] - start_us,
        "end_time_us": times[1] - start_us,
    }


def spans(events: EventColumns) -> EventColumns:
    """The events that take time: all but the instants."""
    instants = events.instants
    taken: EventColumns = events[~instants] if instants.any() else events
    return taken


def texts(array: pa.Array) -> Any:
    """An Arrow array of texts as the text column of the installed pandas."""
    return _TEXT.__from_arrow__(array)


def category_texts(category: Category) -> Any:
    """A category as a text column; the texts are put in place by Arrow, not by Python."""
    values = pa.array(category.values, pa.large_string())
    return texts(values.take(pa.array(category.codes)) if len(category) else pa.array([], pa.large_string()))


def own(column: NDArray[Any]) -> NDArray[Any]:
    """A copy for a frame to keep: its owner may write into it, and columns may be shared, or stand in a file."""
    return np.array(column)


def whole_times(times: NDArray[np.float64]) -> NDArray[Any]:
    """Times as whole numbers, if all of them are."""
    rounded = np.rint(times)
    return rounded.astype(np.int64) if np.array_equal(rounded, times) else times


def shown_names(events: EventColumns) -> Category:
    """What notebooks see as `framework_metric`: the name in the arguments where there is one, else the event's."""
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
    """A whole number of each row's arguments; -1 where there is none."""
    quoted = f'"{key}"'
    numbers = np.full(len(args.values), -1, np.int64)
    for number, text in enumerate(args.values):
        if quoted in text:
            value = _decoded(text).get(key, -1)
            numbers[number] = value if isinstance(value, int) and abs(value) < 1 << 63 else -1
    return numbers[args.codes] if len(args.values) else np.full(len(args.codes), -1, np.int64)


def first_rows(*columns: NDArray[Any] | Category) -> NDArray[np.int64] | None:
    """The rows that no earlier row equals in all columns; None where that is every row.

    Rows are told apart by a 32-bit mix of their columns; those whose mix occurs twice are compared in full.
    """
    count = len(columns[0])
    mixed = np.empty(count, np.uint32)
    for start in range(0, count, _CHUNK):
        part = np.zeros(min(_CHUNK, count - start), np.uint64)
        for column in columns:
            part *= np.uint64(0x9E3779B97F4A7C15)
            part ^= part >> np.uint64(29)
            part += _bits(column[start : start + _CHUNK])
        part *= np.uint64(0x9E3779B97F4A7C15)
        mixed[start : start + _CHUNK] = part >> np.uint64(32)
    ordered = np.sort(mixed)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    del ordered
    if not len(twice):
        return None
    near = np.zeros(1 << 20, np.bool_)  # most rows are far from any mix that occurs twice, and looked at no further
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


def _text_dtype() -> Any:
    try:
        return pd.StringDtype("pyarrow", na_value=np.nan)
    except TypeError:  # pandas 2.2 has another name for it
        named: Any = "pyarrow_numpy"
        return pd.StringDtype(named)


_TEXT = _text_dtype()
