"""Configuration of SageMaker Profiler, the service's other profiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from sm_profiler.debugger.disguise import Disguised
from sm_profiler.debugger.parsing import PARAMETER_KEYS, canonical
from sm_profiler.debugger.profiler_constants import (
    CPU_PROFILING_DURATION,
    DETAIL_PROF_PROCESSING_DEFAULT_INSTANCE_TYPE,
    DETAIL_PROF_PROCESSING_DEFAULT_VOLUME_SIZE,
    FILE_ROTATION_INTERVAL_DEFAULT,
)


@attrs.define(slots=False, init=False)
class Profiler(Disguised):
    """Switches SageMaker Profiler on, which only AWS's own containers have; our hook stays off beside it."""

    profiling_parameters: dict[str, str]
    instanceType: str  # noqa: N815 - the SDK's name
    volumeSizeInGB: int  # noqa: N815 - the SDK's name

    def __init__(
        self,
        cpu_profiling_duration: str = str(CPU_PROFILING_DURATION),
        file_rotation_interval: str = str(FILE_ROTATION_INTERVAL_DEFAULT),
    ) -> None:
        """Take both in seconds, as text or numbers."""
        self.profiling_parameters = {
            "CPUProfilingDuration": str(cpu_profiling_duration),
            "SMPFileRotationSecs": str(file_rotation_interval),
        }
        self.instanceType = DETAIL_PROF_PROCESSING_DEFAULT_INSTANCE_TYPE
        self.volumeSizeInGB = DETAIL_PROF_PROCESSING_DEFAULT_VOLUME_SIZE

    def __hash__(self) -> int:
        return hash(type(self).__name__)

    @classmethod
    def from_request(cls, parameters: Mapping[str, Any]) -> Profiler:
        """Make it of the request's `ProfilingParameters`."""
        made = cls()
        made.profiling_parameters = canonical(parameters, PARAMETER_KEYS)
        return made
