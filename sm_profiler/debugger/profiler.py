"""Configuration of SageMaker Profiler, the service's other profiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from sm_profiler.config.api import PARAMETER_KEYS, canonical
from sm_profiler.debugger.profiler_constants import (
    CPU_PROFILING_DURATION,
    DETAIL_PROF_PROCESSING_DEFAULT_INSTANCE_TYPE,
    DETAIL_PROF_PROCESSING_DEFAULT_VOLUME_SIZE,
    FILE_ROTATION_INTERVAL_DEFAULT,
)
from sm_profiler.debugger.sdk_compat import SdkValue


@attrs.define(slots=False, init=False, unsafe_hash=False)
class Profiler(SdkValue):
    """Parameters of SageMaker Profiler, which only AWS's containers have; sm-profiler's hook stays off.

    Attributes:
        profiling_parameters: the request's `ProfilingParameters`, all strings.
        instanceType: instance type of its processing job.
        volumeSizeInGB: disk size of its processing job.
    """

    profiling_parameters: dict[str, str]
    instanceType: str  # the SDK's name
    volumeSizeInGB: int  # the SDK's name

    def __init__(
        self,
        cpu_profiling_duration: str = str(CPU_PROFILING_DURATION),
        file_rotation_interval: str = str(FILE_ROTATION_INTERVAL_DEFAULT),
    ) -> None:
        """Format the parameters.

        Args:
            cpu_profiling_duration: seconds, as a string or a number.
            file_rotation_interval: seconds, as a string or a number.
        """
        self.profiling_parameters = {
            "CPUProfilingDuration": str(cpu_profiling_duration),
            "SMPFileRotationSecs": str(file_rotation_interval),
        }
        self.instanceType = DETAIL_PROF_PROCESSING_DEFAULT_INSTANCE_TYPE
        self.volumeSizeInGB = DETAIL_PROF_PROCESSING_DEFAULT_VOLUME_SIZE

    @classmethod
    def from_request(cls, parameters: Mapping[str, Any]) -> Profiler:
        """Return the Profiler in a request's `ProfilingParameters`, their keys in any case."""
        profiler = cls()
        profiler.profiling_parameters = canonical(parameters, PARAMETER_KEYS)
        return profiler
