"""Enums, error messages and checks that the configuration classes share."""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from sm_profiler.config.api import format_metrics
from sm_profiler.debugger.sdk_compat import SdkCompatible

if TYPE_CHECKING:
    from collections.abc import Mapping


def convert_json_config_to_string(config: Mapping[str, Any]) -> str:
    """Write a metrics config in the notation of the request, such as `{"StartStep": 5, "NumSteps": 1, }`."""
    return format_metrics(config)


def is_valid_unix_time(unix_time: float) -> bool:
    """Return True if `datetime` can represent a number of seconds since the epoch."""
    try:
        datetime.fromtimestamp(unix_time)  # noqa: DTZ006 - local time, as in the SDK
    except (OverflowError, ValueError):
        return False
    return True


def is_valid_regex(regex: Any) -> bool:
    """Return True if a pattern compiles."""
    try:
        re.compile(regex)
    except (re.error, TypeError):
        return False
    return True


def require(condition: object, message: ErrorMessages | str) -> None:
    """Raise the SDK's AssertionError unless the condition holds; unlike `assert`, also under `python -O`.

    Raises:
        AssertionError: the condition does not hold.
    """
    if not condition:
        raise AssertionError(message.value if isinstance(message, ErrorMessages) else message)


class ErrorMessages(Enum):
    """The SDK's messages for invalid arguments."""

    INVALID_LOCAL_PATH = "local_path must be a string!"
    INVALID_FILE_MAX_SIZE = "file_max_size must be an integer greater than 0!"
    INVALID_FILE_CLOSE_INTERVAL = "file_close_interval must be a float/integer greater than 0!"
    INVALID_FILE_OPEN_FAIL_THRESHOLD = "file_open_fail threshold must be an integer greater than 0!"
    INVALID_PROFILE_DEFAULT_STEPS = "profile_default_steps must be a boolean!"
    INVALID_START_STEP = "start_step must be integer greater or equal to 0!"
    INVALID_NUM_STEPS = "num_steps must be integer greater than 0!"
    INVALID_START_UNIX_TIME = "start_unix_time must be valid integer unix time!"
    INVALID_DURATION = "duration must be float greater than 0!"
    FOUND_BOTH_STEP_AND_TIME_FIELDS = "Both step and time fields cannot be specified in the metrics config!"
    INVALID_METRICS_REGEX = "metrics_regex is invalid!"
    INVALID_PYTHON_PROFILER = "python_profiler must be of type PythonProfiler!"
    INVALID_CPROFILE_TIMER = "cprofile_timer must be of type cProfileTimer"


class _Choice(SdkCompatible, Enum):
    """An enum whose members equal the SDK's members of the same class name and value."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Enum):
            return type(self).__name__ == type(other).__name__ and bool(self.value == other.value)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)  # as in Enum, so that the SDK's equal member has the same hash

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle as a member of our enum."""
        del protocol
        return type(self), (self.value,)


class PythonProfiler(_Choice):
    """Python profilers: `CPROFILE` measures every call, `PYINSTRUMENT` samples the stack."""

    CPROFILE = "cprofile"
    PYINSTRUMENT = "pyinstrument"


class cProfileTimer(_Choice):  # the SDK's name
    """Time that cProfile measures: wall time, CPU time or time off the CPU; `DEFAULT` rotates through the three."""

    TOTAL_TIME = "total_time"
    CPU_TIME = "cpu_time"
    OFF_CPU_TIME = "off_cpu_time"
    DEFAULT = "default"
