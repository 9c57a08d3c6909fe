"""Which framework metrics are collected, and how the files are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from sm_profiler.debugger.disguise import Disguised
from sm_profiler.debugger.metrics_config import (
    DataloaderProfilingConfig,
    DetailedProfilingConfig,
    HorovodProfilingConfig,
    MetricsConfigBase,
    PythonProfilingConfig,
    SMDataParallelProfilingConfig,
)
from sm_profiler.debugger.parsing import PARAMETER_KEYS, canonical, metrics_configs
from sm_profiler.debugger.profiler_constants import (
    BASE_FOLDER_DEFAULT,
    CLOSE_FILE_INTERVAL_DEFAULT,
    FILE_OPEN_FAIL_THRESHOLD_DEFAULT,
    MAX_FILE_SIZE_DEFAULT,
)
from sm_profiler.debugger.quiet import expect_untrue_warnings
from sm_profiler.debugger.utils import ErrorMessages, require

ALL_METRIC_CONFIGS = [
    DetailedProfilingConfig,
    DataloaderProfilingConfig,
    PythonProfilingConfig,
    HorovodProfilingConfig,
    SMDataParallelProfilingConfig,
]


class _MetricsConfig(Protocol):
    """What a metrics config must offer: the SDK's own fit as well as ours."""

    name: str

    def to_json_string(self) -> str: ...


@attrs.define(slots=False, init=False)
class FrameworkProfile(Disguised):
    """Which framework metrics are collected, in which windows, and how the files are written.

    Three cases, in this order: where any `*_profiling_config` is given, only those are collected and the range arguments
    are ignored; else, where a range is given, all five are collected in it; else all five in their default windows.

    Attributes:
        profiling_parameters: the request's `ProfilingParameters`, all strings.
    """

    profiling_parameters: dict[str, str]

    def __init__(  # noqa: PLR0913, PLR0917 - the SDK's signature
        self,
        local_path: str = BASE_FOLDER_DEFAULT,
        file_max_size: int = MAX_FILE_SIZE_DEFAULT,
        file_close_interval: float = CLOSE_FILE_INTERVAL_DEFAULT,
        file_open_fail_threshold: int = FILE_OPEN_FAIL_THRESHOLD_DEFAULT,
        detailed_profiling_config: _MetricsConfig | None = None,
        dataloader_profiling_config: _MetricsConfig | None = None,
        python_profiling_config: _MetricsConfig | None = None,
        horovod_profiling_config: _MetricsConfig | None = None,
        smdataparallel_profiling_config: _MetricsConfig | None = None,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: int | None = None,
        duration: float | None = None,
    ) -> None:
        """Check the arguments and write the parameters.

        Args:
            local_path: folder in the container that the files are written under.
            file_max_size: a trace file of so many bytes is closed.
            file_close_interval: a trace file so many seconds old is closed.
            file_open_fail_threshold: so many failures to open a file switch the writer off.
            detailed_profiling_config: operators and kernels.
            dataloader_profiling_config: the data loader's events.
            python_profiling_config: Python code.
            horovod_profiling_config: Horovod's timeline.
            smdataparallel_profiling_config: SageMaker data parallel's timeline.
            start_step: first step of the window of all five.
            num_steps: number of steps of it.
            start_unix_time: start of the window of all five, seconds since the epoch.
            duration: seconds of it.

        Raises:
            AssertionError: an argument is invalid, or both kinds of range are given.
        """
        require(isinstance(local_path, str), ErrorMessages.INVALID_LOCAL_PATH)
        require(isinstance(file_max_size, int) and file_max_size > 0, ErrorMessages.INVALID_FILE_MAX_SIZE)
        require(
            isinstance(file_close_interval, (float, int)) and file_close_interval > 0,
            ErrorMessages.INVALID_FILE_CLOSE_INTERVAL,
        )
        require(
            isinstance(file_open_fail_threshold, int) and file_open_fail_threshold > 0,
            ErrorMessages.INVALID_FILE_OPEN_FAIL_THRESHOLD,
        )
        expect_untrue_warnings()
        self.profiling_parameters = {
            "LocalPath": local_path,
            "RotateMaxFileSizeInBytes": str(file_max_size),
            "RotateFileCloseIntervalInSeconds": str(file_close_interval),
            "FileOpenFailThreshold": str(file_open_fail_threshold),
        }
        given = (
            detailed_profiling_config,
            dataloader_profiling_config,
            python_profiling_config,
            horovod_profiling_config,
            smdataparallel_profiling_config,
        )
        configs: list[Any] = [config for config in given if config is not None]
        if not configs:
            window: dict[str, Any] = {
                "start_step": start_step,
                "num_steps": num_steps,
                "start_unix_time": start_unix_time,
                "duration": duration,
            }
            if all(value is None for value in window.values()):
                window = {"profile_default_steps": True}
            configs = [config_class(**window) for config_class in ALL_METRIC_CONFIGS]
        for config in configs:
            name = config.name  # read first, as the SDK does: the error for a wrong object speaks of it
            self.profiling_parameters[name] = config.to_json_string()

    def __hash__(self) -> int:
        return hash(type(self).__name__)

    @classmethod
    def from_request(cls, parameters: Mapping[str, Any]) -> FrameworkProfile:
        """Make it of the request's `ProfilingParameters`; keys in any case, values as they stand."""
        made = cls()
        made.profiling_parameters = canonical(parameters, PARAMETER_KEYS)
        return made

    @property
    def metrics_configs(self) -> dict[str, MetricsConfigBase]:
        """What is collected, as objects, by the request's names.

        Raises:
            ConfigError: a config came from elsewhere and cannot be parsed.
        """
        return metrics_configs(self.profiling_parameters)
