"""Conversion between the units and formats of times that notebooks use and microseconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm_profiler.analysis.text_columns import text_time
from sm_profiler.errors import SourceError

SECOND_US = 1_000_000
_TEXT = "%Y-%m-%dT%H:%M:%S:%f"


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
            time = datetime.strptime(time, _TEXT)  # noqa: DTZ007 - UTC is added below
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
