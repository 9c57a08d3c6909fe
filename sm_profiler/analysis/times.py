"""Times in the units and formats that notebooks use, and text columns of frames, times among them.

Text columns are Arrow arrays, built without a Python object per row. Times are shown as `2023-11-14T22:13:20:008444`,
UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import Category

_CHUNK = 1 << 16  # rows processed at once, so that they stay in the processor's cache
SECOND_US = 1_000_000
_TIME_WIDTH = 26
_LAST_US = 253_402_300_799_999_999  # the end of the year 9999
_MINUTE_S = 60
# 2023-11- 14T22:13 :20: 0084 44
_TIME = np.dtype([("date", "u8"), ("minute", "u8"), ("second", "u4"), ("upper", "u4"), ("lower", "u2")])
_SECONDS = np.frombuffer("".join(f":{number:02d}:" for number in range(60)).encode(), "u4")
_UPPER = np.frombuffer("".join(f"{number:04d}" for number in range(10_000)).encode(), "u4")
_LOWER = np.frombuffer("".join(f"{number:02d}" for number in range(100)).encode(), "u2")
_TIME_TEXT = "%Y-%m-%dT%H:%M:%S:%f"


def texts(array: pa.Array | pa.ChunkedArray) -> Any:
    """Convert an Arrow array of texts to the text column of the installed pandas."""
    return _TEXT.__from_arrow__(array)


def category_texts(category: Category) -> Any:
    values, codes = _values(category.values), category.codes
    chunks = [values.take(pa.array(codes[start : start + _CHUNK])) for start in range(0, len(codes), _CHUNK)]
    return texts(pa.chunked_array(chunks, pa.large_string()))


def _values(values: Sequence[str]) -> pa.Array:
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError:  # unpaired surrogates; JSON can contain them, UTF-8 cannot
        return pa.array([text.encode(errors="backslashreplace").decode() for text in values], pa.large_string())


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
    """Write times into rows of `_TIME`."""
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
            time = datetime.strptime(time, _TIME_TEXT)  # noqa: DTZ007 - UTC is added below
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
