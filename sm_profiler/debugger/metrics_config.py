"""What a FrameworkProfile collects, and in which window of steps or time."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from sm_profiler.config.profile import COLLECTORS, Collector
from sm_profiler.debugger.disguise import Disguised, is_kind
from sm_profiler.debugger.profiler_constants import PROFILING_NUM_STEPS_DEFAULT, START_STEP_DEFAULT
from sm_profiler.debugger.utils import (
    ErrorMessages,
    PythonProfiler,
    convert_json_config_to_string,
    cProfileTimer,
    is_valid_regex,
    is_valid_unix_time,
    require,
)


class _Value(Disguised):
    """Equal by value, and hashable as the SDK's objects are: they can change, so the hash says no more than the kind."""

    def __hash__(self) -> int:
        return hash(type(self).__name__)


@attrs.define(slots=False, init=False)
class StepRange(_Value):
    """A range of steps: `num_steps` steps from `start_step` on, counted from 0."""

    start_step: int
    num_steps: int | None

    def __init__(self, start_step: int | None, num_steps: int | None) -> None:
        """Without a start it is step 0; with a start and no number it is one step."""
        if start_step is None:
            start_step = START_STEP_DEFAULT
        elif num_steps is None:
            num_steps = PROFILING_NUM_STEPS_DEFAULT
        self.start_step = start_step
        self.num_steps = num_steps

    __hash__ = _Value.__hash__

    def to_json(self) -> dict[str, Any]:
        """The range under the request's names."""
        return {"StartStep": self.start_step, "NumSteps": self.num_steps}


@attrs.define(slots=False, init=False)
class TimeRange(_Value):
    """A range of time: `duration` seconds from `start_unix_time` (seconds since the epoch) on."""

    start_unix_time: int | None
    duration: float | None

    def __init__(self, start_unix_time: int | None, duration: float | None) -> None:
        """Without a start it begins with the first step; without a duration it is one step."""
        self.start_unix_time = start_unix_time
        self.duration = duration

    __hash__ = _Value.__hash__

    def to_json(self) -> dict[str, Any]:
        """The range under the request's names, only what is given."""
        given = {"StartTimeInSecSinceEpoch": self.start_unix_time, "Duration": self.duration}
        return {key: value for key, value in given.items() if value is not None}


@attrs.define(slots=False, init=False)
class MetricsConfigBase(_Value):
    """A range of steps or of time, under the name that the request has for it."""

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
        """Check the range.

        Raises:
            AssertionError: a field is invalid, or both kinds of range are given.
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

    __hash__ = _Value.__hash__

    def _to_json(self) -> dict[str, Any]:
        return self.range.to_json()

    def to_json_string(self) -> str:
        """The config as one string in the request's notation."""
        return convert_json_config_to_string(self._to_json())


class _Collected(MetricsConfigBase):
    """A metrics config that knows its collector's default window."""

    collector: ClassVar[Collector]

    def _set_range(
        self,
        start_step: int | None,
        num_steps: int | None,
        start_unix_time: int | None,
        duration: float | None,
        profile_default_steps: bool,  # noqa: FBT001 - the order is the SDK's
    ) -> None:
        require(isinstance(profile_default_steps, bool), ErrorMessages.INVALID_PROFILE_DEFAULT_STEPS)
        if profile_default_steps or start_step is num_steps is start_unix_time is duration is None:
            start_step, num_steps = self.collector.start_step, self.collector.num_steps
        MetricsConfigBase.__init__(self, self.collector.wire, start_step, num_steps, start_unix_time, duration)


class DetailedProfilingConfig(_Collected):
    """Operators and kernels; step 5 where no range is given."""

    collector: ClassVar[Collector] = COLLECTORS["detailed"]

    def __init__(
        self,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: int | None = None,
        duration: float | None = None,
        profile_default_steps: bool = False,  # noqa: FBT001, FBT002 - the SDK's signature
    ) -> None:
        """A range of steps or one of time, or neither.

        Raises:
            AssertionError: a field is invalid, or both kinds of range are given.
        """
        self._set_range(start_step, num_steps, start_unix_time, duration, profile_default_steps)


@attrs.define(slots=False, init=False)
class DataloaderProfilingConfig(_Collected):  # type: ignore[override] # of __attrs_init__, which nothing calls
    """The data loader's events whose names match `metrics_regex`; step 7 where no range is given."""

    collector: ClassVar[Collector] = COLLECTORS["dataloader"]
    metrics_regex: str

    def __init__(  # noqa: PLR0913, PLR0917 - the SDK's signature
        self,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: int | None = None,
        duration: float | None = None,
        profile_default_steps: bool = False,  # noqa: FBT001, FBT002 - the SDK's signature
        metrics_regex: str = ".*",
    ) -> None:
        """A range of steps or one of time, or neither.

        Raises:
            AssertionError: a field is invalid, or both kinds of range are given.
        """
        self._set_range(start_step, num_steps, start_unix_time, duration, profile_default_steps)
        require(is_valid_regex(metrics_regex), ErrorMessages.INVALID_METRICS_REGEX)
        self.metrics_regex = metrics_regex

    __hash__ = _Value.__hash__

    def _to_json(self) -> dict[str, Any]:
        return {**super()._to_json(), "MetricsRegex": self.metrics_regex}


@attrs.define(slots=False, init=False)
class PythonProfilingConfig(_Collected):  # type: ignore[override] # of __attrs_init__, which nothing calls
    """Where the Python code spends its time; steps 9, 10 and 11 where no range is given."""

    collector: ClassVar[Collector] = COLLECTORS["python"]
    python_profiler: PythonProfiler
    cprofile_timer: cProfileTimer | None

    def __init__(  # noqa: PLR0913, PLR0917 - the SDK's signature
        self,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: int | None = None,
        duration: float | None = None,
        profile_default_steps: bool = False,  # noqa: FBT001, FBT002 - the SDK's signature
        python_profiler: PythonProfiler = PythonProfiler.CPROFILE,
        cprofile_timer: cProfileTimer = cProfileTimer.TOTAL_TIME,
    ) -> None:
        """A range of steps or one of time, or neither; `cprofile_timer` means nothing to Pyinstrument.

        Raises:
            AssertionError: a field is invalid, or both kinds of range are given.
        """
        if profile_default_steps is True:
            cprofile_timer = cProfileTimer.DEFAULT
        self._set_range(start_step, num_steps, start_unix_time, duration, profile_default_steps)
        require(is_kind(python_profiler, PythonProfiler), ErrorMessages.INVALID_PYTHON_PROFILER)
        require(is_kind(cprofile_timer, cProfileTimer), ErrorMessages.INVALID_CPROFILE_TIMER)
        self.python_profiler = python_profiler
        self.cprofile_timer = None if python_profiler == PythonProfiler.PYINSTRUMENT else cprofile_timer

    __hash__ = _Value.__hash__

    def _to_json(self) -> dict[str, Any]:
        written = {**super()._to_json(), "ProfilerName": self.python_profiler.value}
        if self.cprofile_timer is not None:
            written["cProfileTimer"] = self.cprofile_timer.value
        return written


class HorovodProfilingConfig(_Collected):
    """Horovod's timeline; step 13 where no range is given."""

    collector: ClassVar[Collector] = COLLECTORS["horovod"]

    def __init__(
        self,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: int | None = None,
        duration: float | None = None,
        profile_default_steps: bool = False,  # noqa: FBT001, FBT002 - the SDK's signature
    ) -> None:
        """A range of steps or one of time, or neither.

        Raises:
            AssertionError: a field is invalid, or both kinds of range are given.
        """
        self._set_range(start_step, num_steps, start_unix_time, duration, profile_default_steps)


class SMDataParallelProfilingConfig(_Collected):
    """The timeline of SageMaker's data parallel library; step 15 where no range is given."""

    collector: ClassVar[Collector] = COLLECTORS["smddp"]

    def __init__(
        self,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: int | None = None,
        duration: float | None = None,
        profile_default_steps: bool = False,  # noqa: FBT001, FBT002 - the SDK's signature
    ) -> None:
        """A range of steps or one of time, or neither.

        Raises:
            AssertionError: a field is invalid, or both kinds of range are given.
        """
        self._set_range(start_step, num_steps, start_unix_time, duration, profile_default_steps)
