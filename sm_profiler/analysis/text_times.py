"""Times as text, as the frames show them: `2023-11-14T22:13:20:008444`, UTC."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_WIDTH = 26
_SECOND_US = 1_000_000
_LAST_US = 253_402_300_799_999_999  # the end of the year 9999
_CHUNK = 1 << 16  # rows at a time: what is worked on stays in the processor's cache
_TEXT = np.dtype([("head", "V20"), ("milli", "V3"), ("micro", "V3")])
_DIGITS = np.frombuffer("".join(f"{number:03d}" for number in range(1000)).encode(), "V3")


def text_times(times_us: NDArray[Any]) -> pa.ChunkedArray:
    """The texts of times in microseconds since the epoch, as Arrow has them, without a Python object a row.

    Fractions of a microsecond are rounded; times that no calendar has are shown as the last that it has.
    """
    count = len(times_us)
    # All texts are of the same length: where they begin stands in memory once, for all chunks.
    begins = pa.py_buffer(np.arange(0, (min(count, _CHUNK) + 1) * _WIDTH, _WIDTH, dtype=np.int64))
    text = np.empty(count, _TEXT)
    for start in range(0, count, _CHUNK):
        _fill(text[start : start + _CHUNK], times_us[start : start + _CHUNK])
    raw = pa.py_buffer(text.view(np.uint8))
    chunks = [
        pa.LargeStringArray.from_buffers(rows, begins, raw.slice(start * _WIDTH, rows * _WIDTH))
        for start in range(0, count, _CHUNK)
        for rows in [min(_CHUNK, count - start)]
    ]
    return pa.chunked_array(chunks, pa.large_string())


def _fill(text: NDArray[Any], times_us: NDArray[Any]) -> None:
    whole = np.rint(times_us).astype(np.int64) if times_us.dtype.kind == "f" else times_us.astype(np.int64, copy=False)
    whole = np.clip(whole, 0, _LAST_US)
    seconds = whole // _SECOND_US
    distinct, place = _distinct(seconds)
    heads = np.datetime_as_string(distinct.astype("datetime64[s]"), unit="s").astype("S19")
    micros = (whole - seconds * _SECOND_US).astype(np.int32)
    thousands = micros // np.int32(1000)
    text["head"] = np.char.add(heads, b":").view("V20").take(place)
    text["milli"] = _DIGITS.take(thousands)
    text["micro"] = _DIGITS.take(micros - thousands * np.int32(1000))


def text_time(time_us: float) -> str:
    """The text of one time in microseconds since the epoch."""
    text: str = text_times(np.array([time_us], np.float64 if isinstance(time_us, float) else np.int64))[0].as_py()
    return text


def _distinct(seconds: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct seconds and which of them each row has; a job's seconds are a dense range, so nothing is sorted."""
    if not len(seconds):
        return seconds, seconds
    first, last = int(seconds.min()), int(seconds.max())
    if last - first > 4 * len(seconds) + 100_000:
        return np.unique(seconds, return_inverse=True)
    return np.arange(first, last + 1), seconds - first
