"""Metrics configs: one kind of data each, in a window of steps or time."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any, ClassVar

import attrs

from sm_profiler.config.api import METRICS_KEYS, canonical, parse_metrics
from sm_profiler.config.profile import COLLECTORS, CollectorSpec
from sm_profiler.debugger.profiler_constants import PROFILING_NUM_STEPS_DEFAULT, START_STEP_DEFAULT
from sm_profiler.debugger.sdk_compat import SdkValue, is_kind
from sm_profiler.debugger.utils import (
    ErrorMessages,
    PythonProfiler,
    convert_json_config_to_string,
    cProfileTimer,
    is_valid_regex,
    is_valid_unix_time,
    require,
)
from sm_profiler.errors import ConfigError

_ARGUMENTS = {
    "StartStep": "start_step",
    "NumSteps": "num_steps",
    "StartTimeInSecSinceEpoch": "start_unix_time",
    "Duration": "duration",
    "DurationInSeconds": "duration",
    "MetricsRegex": "metrics_regex",
    "ProfilerName": "python_profiler",
    "cProfileTimer": "cprofile_timer",
    "DefaultProfiling": "profile_default_steps",
}


@attrs.define(slots=False, init=False, unsafe_hash=False)
class StepRange(SdkValue):
    """A range of steps.

    Attributes:
        start_step: first step, counted from 0.
        num_steps: number of steps.
    """

    start_step: int
    num_steps: int | None

    def __init__(self, start_step: int | None, num_steps: int | None) -> None:
        """Set the range; without a start it begins at step 0, with only a start it is one step long."""
        if start_step is None:
            start_step = START_STEP_DEFAULT
        elif num_steps is None:
            num_steps = PROFILING_NUM_STEPS_DEFAULT
        self.start_step = start_step
        self.num_steps = num_steps

    def to_json(self) -> dict[str, Any]:
        """Return the range with the request's keys."""
        return {"StartStep": self.start_step, "NumSteps": self.num_steps}


@attrs.define(slots=False, init=False, unsafe_hash=False)
class TimeRange(SdkValue):
    """A range of time.

    Attributes:
        start_unix_time: start in seconds since the epoch.
        duration: length in seconds.
    """

    start_unix_time: int | None
    duration: float | None

    def __init__(self, start_unix_time: int | None, duration: float | None) -> None:
        """Set the range; without a start it begins with the first step, without a duration it is one step long."""
        self.start_unix_time = start_unix_time
        self.duration = duration

    def to_json(self) -> dict[str, Any]:
        """Return the range with the request's keys, leaving out what is None."""
        given = {"StartTimeInSecSinceEpoch": self.start_unix_time, "Duration": self.duration}
        return {key: value for key, value in given.items() if value is not None}


@attrs.define(slots=False, init=False, unsafe_hash=False)
class MetricsConfigBase(SdkValue):
    """Base of the metrics configs: a range of steps or time.

    Attributes:
        name: key in the request's `ProfilingParameters`.
        range: the window.
    """

    name: str
    range: StepRange | TimeRange

    def __init__(
        self,
        name: str,
        start_step: int | None,
        num_steps: int | None,
        start_unix_time: int | None,
        duration: float | None,
    ) -> None:
        """Check and set the range.

        Raises:
            AssertionError: an argument is invalid, or both kinds of range are given.
        """
        self.name = name
        require(
            start_step is None or (isinstance(start_step, int) and start_step >= 0), ErrorMessages.INVALID_START_STEP
        )
        require(num_steps is None or (isinstance(num_steps, int) and num_steps > 0), ErrorMessages.INVALID_NUM_STEPS)
        require(
            start_unix_time is None or (isinstance(start_unix_time, int) and is_valid_unix_time(start_unix_time)),
            ErrorMessages.INVALID_START_UNIX_TIME,
        )
        require(
            duration is None or (isinstance(duration, (float, int)) and duration > 0), ErrorMessages.INVALID_DURATION
        )
        by_steps = start_step is not None or num_steps is not None
        by_time = start_unix_time is not None or duration is not None
        require(not (by_steps and by_time), ErrorMessages.FOUND_BOTH_STEP_AND_TIME_FIELDS)
        self.range = StepRange(start_step, num_steps) if by_steps else TimeRange(start_unix_time, duration)

    def _to_json(self) -> dict[str, Any]:
        return self.range.to_json()

    def to_json_string(self) -> str:
        """Return the config in the request's notation, such as `{"StartStep": 5, "NumSteps": 1, }`."""
        return convert_json_config_to_string(self._to_json())


class _Collected(MetricsConfigBase):
    """A metrics config with the default window of its collector."""

    collector: ClassVar[CollectorSpec]

    def __init__(
        self,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: int | None = None,
        duration: float | None = None,
        profile_default_steps: bool = False,  # the SDK's signature
    ) -> None:
        """Set the window, by steps or by time.

        Args:
            start_step: first step of the window, counted from 0.
            num_steps: length of the window in steps.
            start_unix_time: start of the window in seconds since the epoch.
            duration: length of the window in seconds.
            profile_default_steps: use the default window and ignore the range arguments.

        Raises:
            AssertionError: an argument is invalid, or both kinds of range are given.
        """
        require(isinstance(profile_default_steps, bool), ErrorMessages.INVALID_PROFILE_DEFAULT_STEPS)
        if profile_default_steps or start_step is num_steps is start_unix_time is duration is None:
            start_step, num_steps = self.collector.start_step, self.collector.num_steps
        MetricsConfigBase.__init__(self, self.collector.wire, start_step, num_steps, start_unix_time, duration)

    def __init_subclass__(cls) -> None:
        """Give a class without its own `__init__` a copy with its name, which the message of a wrong call shows."""
        if "__init__" not in vars(cls):
            shared = _Collected.__init__
            copy = FunctionType(shared.__code__, shared.__globals__, shared.__name__, shared.__defaults__)
            copy.__qualname__ = f"{cls.__name__}.{shared.__name__}"
            copy.__doc__, copy.__annotations__ = shared.__doc__, shared.__annotations__
            cls.__init__ = copy  # type: ignore[method-assign]


class DetailedProfilingConfig(_Collected):
    """Record operators and kernels; by default in step 5."""

    collector: ClassVar[CollectorSpec] = COLLECTORS["detailed"]


@attrs.define(slots=False, init=False, unsafe_hash=False)
class DataloaderProfilingConfig(_Collected):  # type: ignore[override] # of __attrs_init__, which nothing calls
    """Record data loader events; by default in step 7.

    Attributes:
        metrics_regex: regular expression of the events' names, matched from the start and ignoring case.
    """

    collector: ClassVar[CollectorSpec] = COLLECTORS["dataloader"]
    metrics_regex: str

    def __init__(  # the SDK's signature
        self,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: int | None = None,
        duration: float | None = None,
        profile_default_steps: bool = False,  # the SDK's signature
        metrics_regex: str = ".*",
    ) -> None:
        """Set the window, as `DetailedProfilingConfig` does, and the filter.

        Args:
            metrics_regex: regular expression of the names to keep, matched from the start and ignoring case.

        Raises:
            AssertionError: an argument is invalid, or both kinds of range are given.
        """
        _Collected.__init__(self, start_step, num_steps, start_unix_time, duration, profile_default_steps)
        require(is_valid_regex(metrics_regex), ErrorMessages.INVALID_METRICS_REGEX)
        self.metrics_regex = metrics_regex

    def _to_json(self) -> dict[str, Any]:
        return {**super()._to_json(), "MetricsRegex": self.metrics_regex}


@attrs.define(slots=False, init=False, unsafe_hash=False)
class PythonProfilingConfig(_Collected):  # type: ignore[override] # of __attrs_init__, which nothing calls
    """Profile Python functions; by default in steps 9, 10 and 11.

    Attributes:
        python_profiler: cProfile or Pyinstrument.
        cprofile_timer: time that cProfile measures; None for Pyinstrument.
    """

    collector: ClassVar[CollectorSpec] = COLLECTORS["python"]
    python_profiler: PythonProfiler
    cprofile_timer: cProfileTimer | None

    def __init__(  # the SDK's signature
        self,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: int | None = None,
        duration: float | None = None,
        profile_default_steps: bool = False,  # the SDK's signature
        python_profiler: PythonProfiler = PythonProfiler.CPROFILE,
        cprofile_timer: cProfileTimer = cProfileTimer.TOTAL_TIME,
    ) -> None:
        """Set the window, as `DetailedProfilingConfig` does, and the profiler.

        Args:
            python_profiler: `CPROFILE` or `PYINSTRUMENT`.
            cprofile_timer: time that cProfile measures; ignored for Pyinstrument.

        Raises:
            AssertionError: an argument is invalid, or both kinds of range are given.
        """
        if profile_default_steps is True:
            cprofile_timer = cProfileTimer.DEFAULT
        _Collected.__init__(self, start_step, num_steps, start_unix_time, duration, profile_default_steps)
        require(is_kind(python_profiler, PythonProfiler), ErrorMessages.INVALID_PYTHON_PROFILER)
        require(is_kind(cprofile_timer, cProfileTimer), ErrorMessages.INVALID_CPROFILE_TIMER)
        self.python_profiler = python_profiler
        self.cprofile_timer = None if python_profiler == PythonProfiler.PYINSTRUMENT else cprofile_timer

    def _to_json(self) -> dict[str, Any]:
        written = {**super()._to_json(), "ProfilerName": self.python_profiler.value}
        if self.cprofile_timer is not None:
            written["cProfileTimer"] = self.cprofile_timer.value
        return written


class HorovodProfilingConfig(_Collected):
    """Record Horovod's timeline; by default in step 13."""

    collector: ClassVar[CollectorSpec] = COLLECTORS["horovod"]


class SMDataParallelProfilingConfig(_Collected):
    """Record the timeline of SageMaker's data parallel library; by default in step 15."""

    collector: ClassVar[CollectorSpec] = COLLECTORS["smddp"]


METRICS_CONFIGS: tuple[type[_Collected], ...] = (
    DetailedProfilingConfig, DataloaderProfilingConfig, PythonProfilingConfig, HorovodProfilingConfig,
    SMDataParallelProfilingConfig,
)  # fmt: skip
_BY_NAME = {kind.__name__.lower(): kind for kind in METRICS_CONFIGS}


def metrics_configs(parameters: Mapping[str, str]) -> dict[str, MetricsConfigBase]:
    """Return the metrics configs among `ProfilingParameters`, by their names.

    Raises:
        ConfigError: a config cannot be parsed, or its values are invalid.
    """
    return {
        kind.__name__: _metrics_config(kind, text)
        for name, text in parameters.items()
        if (kind := _BY_NAME.get(name.lower())) is not None
    }


def _metrics_config(kind: type[MetricsConfigBase], text: str) -> MetricsConfigBase:
    try:
        fields = canonical(parse_metrics(text), METRICS_KEYS)
        arguments = {_ARGUMENTS.get(key, key): value for key, value in fields.items() if value is not None}
        if "python_profiler" in arguments:
            arguments["python_profiler"] = PythonProfiler(str(arguments["python_profiler"]).lower())
        if "cprofile_timer" in arguments:
            arguments["cprofile_timer"] = cProfileTimer(str(arguments["cprofile_timer"]).lower())
        return kind(**arguments)
    except (AssertionError, ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"{kind.__name__}: {error}") from None
