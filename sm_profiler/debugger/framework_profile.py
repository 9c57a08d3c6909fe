"""Selection of framework metrics, their windows, and how their files are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from sm_profiler.config.api import PARAMETER_KEYS, canonical
from sm_profiler.debugger.metrics_config import METRICS_CONFIGS, MetricsConfigBase, metrics_configs
from sm_profiler.debugger.profiler_constants import (
    BASE_FOLDER_DEFAULT,
    CLOSE_FILE_INTERVAL_DEFAULT,
    FILE_OPEN_FAIL_THRESHOLD_DEFAULT,
    MAX_FILE_SIZE_DEFAULT,
)
from sm_profiler.debugger.sdk_compat import SdkValue, drop_deprecation_warnings
from sm_profiler.debugger.utils import ErrorMessages, require

ALL_METRIC_CONFIGS = list(METRICS_CONFIGS)  # the SDK's name


class _MetricsConfig(Protocol):
    """Interface of a metrics config; the SDK's own classes have it too."""

    name: str

    def to_json_string(self) -> str: ...


@attrs.define(slots=False, init=False, unsafe_hash=False)
class FrameworkProfile(SdkValue):
    """Framework metrics to collect, their windows, and how the files are written.

    If any `*_profiling_config` is given, only those are collected and the range arguments are ignored. Otherwise all five
    are collected, in the given range or, without a range, in their default windows.

    Attributes:
        profiling_parameters: the request's `ProfilingParameters`, all strings.
    """

    profiling_parameters: dict[str, str]

    def __init__(  # the SDK's signature
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
        """Check the arguments and format the parameters.

        Args:
            local_path: folder in the container that the files are written to.
            file_max_size: size in bytes at which a trace file is closed.
            file_close_interval: age in seconds at which a trace file is closed.
            file_open_fail_threshold: number of failures to open a file after which the writer is switched off.
            detailed_profiling_config: operators and kernels.
            dataloader_profiling_config: data loader events.
            python_profiling_config: Python functions.
            horovod_profiling_config: Horovod's timeline.
            smdataparallel_profiling_config: timeline of SageMaker's data parallel library.
            start_step: first step of the window of all five, counted from 0.
            num_steps: length of that window in steps.
            start_unix_time: start of the window of all five in seconds since the epoch.
            duration: length of that window in seconds.

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
        drop_deprecation_warnings()
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
            configs = [config_class(**window) for config_class in METRICS_CONFIGS]
        for config in configs:
            name = config.name  # read first, as in the SDK, so that the error for a wrong object is the same
            self.profiling_parameters[name] = config.to_json_string()

    @classmethod
    def from_request(cls, parameters: Mapping[str, Any]) -> FrameworkProfile:
        """Return the FrameworkProfile in a request's `ProfilingParameters`, their keys in any case."""
        profile = cls()
        profile.profiling_parameters = canonical(parameters, PARAMETER_KEYS)
        return profile

    @property
    def metrics_configs(self) -> dict[str, MetricsConfigBase]:
        """The metrics configs as objects, by their names in the request.

        Raises:
            ConfigError: a config that was read from a request cannot be parsed.
        """
        return metrics_configs(self.profiling_parameters)
