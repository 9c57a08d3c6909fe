"""Drop-in replacement for the profiling half of `sagemaker.debugger`: same names, same requests, same errors.

Names outside profiling (`Rule`, `CollectionConfig`, …) are loaded from the installed SageMaker SDK on first use, which
`from sm_profiler.debugger import *` is, too.
"""

from typing import Any

from sm_profiler.debugger import rule_configs
from sm_profiler.debugger.debugger import (
    ProfilerRule,
    get_default_profiler_processing_job,
    get_rule_container_image_uri,
)
from sm_profiler.debugger.framework_profile import FrameworkProfile
from sm_profiler.debugger.metrics_config import (
    DataloaderProfilingConfig,
    DetailedProfilingConfig,
    HorovodProfilingConfig,
    PythonProfilingConfig,
    SMDataParallelProfilingConfig,
    StepRange,
    TimeRange,
)
from sm_profiler.debugger.profiler import Profiler
from sm_profiler.debugger.profiler_config import ProfilerConfig
from sm_profiler.debugger.sdk_compat import SDK_NAMES, installed_names, sdk_name
from sm_profiler.debugger.utils import PythonProfiler, cProfileTimer

__all__ = [
    "DataloaderProfilingConfig",
    "DetailedProfilingConfig",
    "FrameworkProfile",
    "HorovodProfilingConfig",
    "Profiler",
    "ProfilerConfig",
    "ProfilerRule",
    "PythonProfiler",
    "PythonProfilingConfig",
    "SMDataParallelProfilingConfig",
    "StepRange",
    "TimeRange",
    "cProfileTimer",
    "get_default_profiler_processing_job",
    "get_rule_container_image_uri",
    "rule_configs",
]


_OWN = tuple(__all__)
del __all__  # type checkers have read it; the names of the SDK are added when they are requested


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [*_OWN, *installed_names()]
    return sdk_name(name, __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), "__all__", *SDK_NAMES})
