"""Times in the units and formats that notebooks use, and text columns of frames, times among them.

Text columns are Arrow arrays, built without one Python object per row. Profiles repeat themselves: the same devices tick
after tick, one process in a whole file. Runs of rows that repeat earlier ones share their memory. Times are shown as
`2023-11-14T22:13:20:008444`, UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import Category
from sm_profiler.formats.layout import SECOND_US

_STRETCH = 1 << 13  # rows compared at once when looking for repetitions
_CHUNK = 1 << 16  # rows processed at once, so that they stay in the processor's cache
_LONG_RUN = 1 << 10  # mean run length from which on each run is one slice of shared memory
_REMEMBERED = 4  # earlier stretches that a new one is compared with
_MAX_BYTE_CODES = 256  # values that fit a code of one byte

_TIME_WIDTH = 26
_LAST_US = 253_402_300_799_999_999  # the end of the year 9999
_MINUTE_S = 60
# 2023-11- 14T22:13 :20: 0084 44
_TIME = np.dtype([("date", "u8"), ("minute", "u8"), ("second", "u4"), ("upper", "u4"), ("lower", "u2")])
_WHOLE = np.dtype(f"V{_TIME_WIDTH}")
_MEAN_RUN = 4  # equal times in a row, from which on runs are faster than rows
_SECONDS = np.frombuffer("".join(f":{number:02d}:" for number in range(60)).encode(), "u4")
_UPPER = np.frombuffer("".join(f"{number:04d}" for number in range(10_000)).encode(), "u4")
_LOWER = np.frombuffer("".join(f"{number:02d}" for number in range(100)).encode(), "u2")
TIME_TEXT = "%Y-%m-%dT%H:%M:%S:%f"


def texts(array: pa.Array | pa.ChunkedArray) -> Any:
    """Convert an Arrow array of texts to the text column of the installed pandas."""
    return _TEXT.__from_arrow__(array)


def category_texts(category: Category) -> Any:
    values, codes = _values(category.values), category.codes
    changes = codes[1:] != codes[:-1]
    if (np.count_nonzero(changes) + 1) * _LONG_RUN <= len(codes):
        chunks = _runs(codes, [0, *(np.flatnonzero(changes) + 1).tolist(), len(codes)], values)
    elif len(category.values) <= _MAX_BYTE_CODES and len(codes) > 2 * _STRETCH:
        chunks = _repetitions(codes, values)
    else:
        chunks = _taken(codes, values) if len(codes) else []
    return texts(pa.chunked_array(chunks, pa.large_string()))


def _values(values: Sequence[str]) -> pa.Array:
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError:  # unpaired surrogates; JSON can contain them, UTF-8 cannot
        return pa.array([text.encode(errors="backslashreplace").decode() for text in values], pa.large_string())


def _taken(codes: NDArray[np.int32], values: pa.Array) -> list[pa.Array]:
    """Write out the text of every row.

    Arrow takes one chunk at a time, and the chunks are joined here: an array that it builds whole allocates up to twice
    the memory it needs.
    """
    lengths = np.array([len(text.as_buffer()) for text in values], np.int64)
    begins = np.empty(len(codes) + 1, np.int64)
    data = np.empty(int(lengths @ np.bincount(codes, minlength=len(lengths))), np.uint8)
    at = begins[0] = 0
    for start in range(0, len(codes), _CHUNK):
        part = values.take(pa.array(codes[start : start + _CHUNK]))
        _, own_begins, own_data = part.buffers()
        own = np.frombuffer(own_begins, np.int64, len(part) + 1)
        np.add(own[1:], at, out=begins[start + 1 : start + 1 + len(part)])
        size = int(own[-1])
        if size:
            data[at : at + size] = np.frombuffer(own_data, np.uint8, size)
        at += size
    return [pa.LargeStringArray.from_buffers(len(codes), pa.py_buffer(begins), pa.py_buffer(data))]


def _runs(codes: NDArray[np.int32], edges: list[int], values: pa.Array) -> list[pa.Array]:
    """Share memory between the runs of a text: each is a slice of the longest one, at most a chunk long."""
    spans = [
        (int(codes[start]), min(_CHUNK, stop - at))
        for start, stop in pairwise(edges)
        for at in range(start, stop, _CHUNK)
    ]
    longest: dict[int, int] = {}
    for code, length in spans:
        longest[code] = max(length, longest.get(code, 0))
    whole = {code: values.take(pa.array(np.full(length, code, np.int32))) for code, length in longest.items()}
    return [whole[code].slice(0, length) for code, length in spans]


def _repetitions(codes: NDArray[np.int32], values: pa.Array) -> list[pa.Array]:
    """Make each stretch that occurs anywhere in a remembered one a slice of it."""
    narrow = codes.astype(np.uint8)
    known: list[tuple[bytes, pa.Array]] = []
    chunks: list[pa.Array] = []
    new = 0
    for start in range(0, len(codes), _STRETCH):
        wanted = narrow[start : start + _STRETCH].tobytes()
        found = next(((array, at) for before, array in known if (at := before.find(wanted)) >= 0), None)
        if found is None and new > _REMEMBERED + len(chunks) // 8:  # too few repetitions
            return [*chunks, *_taken(codes[start:], values)]
        if found is None:
            # Twice the length, so that it contains a period from any offset.
            stop = start + 2 * _STRETCH
            found = values.take(pa.array(codes[start:stop])), 0
            known = [(narrow[start:stop].tobytes(), found[0]), *known[: _REMEMBERED - 1]]
            new += 1
        chunks.append(found[0].slice(found[1], len(wanted)))
    return chunks


def _text_dtype() -> Any:
    try:
        return pd.StringDtype("pyarrow", na_value=np.nan)
    except TypeError:  # pandas 2.2 has another name for this dtype
        named: Any = "pyarrow_numpy"
        return pd.StringDtype(named)


_TEXT = _text_dtype()


def text_times(times_us: NDArray[Any]) -> pa.ChunkedArray:
    """Format times in microseconds since the epoch.

    Fractions of a microsecond are rounded. Times before 1970 or after 9999 are shown as the nearest of these limits.
    """
    count = len(times_us)
    # All texts have the same length, so all chunks share one array of offsets.
    begins = pa.py_buffer(np.arange(0, (min(count, _CHUNK) + 1) * _TIME_WIDTH, _TIME_WIDTH, dtype=np.int64))
    text = np.empty(count, _TIME)
    for start in range(0, count, _CHUNK):
        _fill(text[start : start + _CHUNK], times_us[start : start + _CHUNK])
    raw = pa.py_buffer(text.view(np.uint8))
    chunks = [
        pa.LargeStringArray.from_buffers(rows, begins, raw.slice(start * _TIME_WIDTH, rows * _TIME_WIDTH))
        for start in range(0, count, _CHUNK)
        for rows in [min(_CHUNK, count - start)]
    ]
    return pa.chunked_array(chunks, pa.large_string())


def _fill(text: NDArray[Any], times_us: NDArray[Any]) -> None:
    """Write times into rows of `_TIME`, a run of equal ones at once: devices are measured at the same moment."""
    starts = np.flatnonzero(times_us[1:] != times_us[:-1]) + 1
    if _MEAN_RUN * (len(starts) + 1) > len(times_us):
        _fill_each(text, times_us)
        return
    edges = np.concatenate([[0], starts, [len(times_us)]])
    runs = np.empty(len(edges) - 1, _TIME)
    _fill_each(runs, times_us[edges[:-1]])
    text.view(_WHOLE)[:] = np.repeat(runs.view(_WHOLE), np.diff(edges))


def _fill_each(text: NDArray[Any], times_us: NDArray[Any]) -> None:
    whole = np.rint(times_us).astype(np.int64) if times_us.dtype.kind == "f" else times_us.astype(np.int64, copy=False)
    whole = np.clip(whole, 0, _LAST_US)
    seconds = whole // SECOND_US
    micros = (whole - seconds * SECOND_US).astype(np.int32)
    upper = micros // np.int32(100)
    text["upper"] = _UPPER.take(upper)
    text["lower"] = _LOWER.take(micros - upper * np.int32(100))
    minutes = seconds // _MINUTE_S
    text["second"] = _SECONDS.take(seconds - minutes * _MINUTE_S)
    distinct, place = _distinct(minutes)
    heads = np.datetime_as_string(distinct.astype("datetime64[m]"), unit="m").astype("S16").view("u8").reshape(-1, 2)
    text["date"] = heads[:, 0].take(place)
    text["minute"] = heads[:, 1].take(place)


def text_time(time_us: float) -> str:
    """Format one time in microseconds since the epoch."""
    text: str = text_times(np.array([time_us], np.float64 if isinstance(time_us, float) else np.int64))[0].as_py()
    return text


def _distinct(minutes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return distinct minutes and each row's index into them; a job's minutes are a dense range, so nothing is sorted."""
    if not len(minutes):
        return minutes, minutes
    first, last = int(minutes.min()), int(minutes.max())
    if last - first > len(minutes):
        return np.unique(minutes, return_inverse=True)
    return np.arange(first, last + 1), minutes - first


class TimeUnits(Enum):
    SECONDS = 1
    MILLISECONDS = 2
    MICROSECONDS = 3
    NANOSECONDS = 4


_UNIT_NS = {
    TimeUnits.SECONDS: 1_000_000_000,
    TimeUnits.MILLISECONDS: 1_000_000,
    TimeUnits.MICROSECONDS: 1_000,
    TimeUnits.NANOSECONDS: 1,
}


def convert_utc_timestamp_to_nanoseconds(timestamp: float, unit: TimeUnits = TimeUnits.MICROSECONDS) -> int:
    """Convert a time in `unit` to whole nanoseconds."""
    return int(timestamp * _UNIT_NS[unit])


def convert_utc_timestamp_to_microseconds(timestamp: float, unit: TimeUnits = TimeUnits.MICROSECONDS) -> float:
    """Convert a time in `unit` to microseconds; the result is whole unless the unit is nanoseconds."""
    return timestamp / 1000 if unit is TimeUnits.NANOSECONDS else int(timestamp * (_UNIT_NS[unit] // 1000))


def convert_utc_timestamp_to_seconds(timestamp: float, unit: TimeUnits = TimeUnits.MICROSECONDS) -> float:
    """Convert a time in `unit` to seconds; the result is whole unless the unit is nanoseconds."""
    seconds = timestamp * _UNIT_NS[unit] / _UNIT_NS[TimeUnits.SECONDS]
    return seconds if unit is TimeUnits.NANOSECONDS else int(seconds)


def convert_utc_datetime_to_microseconds(timestamp_datetime: datetime) -> int:
    """Convert a datetime to whole microseconds since the epoch."""
    return int(convert_utc_timestamp_to_microseconds(timestamp_datetime.timestamp(), TimeUnits.SECONDS))


def convert_utc_datetime_to_nanoseconds(timestamp_datetime: datetime) -> int:
    """Convert a datetime to whole nanoseconds since the epoch."""
    return convert_utc_timestamp_to_nanoseconds(timestamp_datetime.timestamp(), TimeUnits.SECONDS)


def us_since_epoch_to_human_readable_time(us_since_epoch: float) -> str:
    """Format a time in microseconds since the epoch, UTC: `2023-11-14T22:13:20:008444`."""
    return text_time(us_since_epoch)


def ns_since_epoch_to_human_readable_time(ns_since_epoch: float) -> str:
    """Format a time in nanoseconds since the epoch, UTC: `2023-11-14T22:13:20:008444`."""
    return text_time(ns_since_epoch / 1000)


def microseconds(time: Any) -> int:
    """Convert a time in any form that notebooks hold to whole microseconds since the epoch.

    Args:
        time: text from a frame, a datetime (UTC unless it has a time zone), or a number of microseconds.

    Raises:
        SourceError: `time` is none of these.
    """
    if isinstance(time, str):
        try:
            time = datetime.strptime(time, TIME_TEXT)  # noqa: DTZ007 - UTC is added below
        except ValueError as error:
            raise SourceError(f"{time!r} is not a time like 2023-11-14T22:13:20:008444") from error
    if isinstance(time, datetime):
        since = (time if time.tzinfo else time.replace(tzinfo=timezone.utc)) - datetime.fromtimestamp(0, timezone.utc)
        return (since.days * 86_400 + since.seconds) * SECOND_US + since.microseconds
    try:
        return int(time)
    except (TypeError, ValueError) as error:
        raise SourceError(f"{time!r} is not a time") from error


def all_microseconds(times: Iterable[Any]) -> NDArray[np.int64]:
    """Convert times in any form to microseconds since the epoch, in the given order."""
    known: dict[Any, int] = {}
    found = [known[time] if time in known else known.setdefault(time, microseconds(time)) for time in times]
    return np.array(found, np.int64)
