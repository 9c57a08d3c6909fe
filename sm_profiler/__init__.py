"""sm-profiler: find out why a training job is slow, and what to do about it.

`import sm_profiler` loads only this module; each public name is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports
from sm_profiler._version import __version__

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
    "__version__",
    "cProfileTimer",
    "get_default_profiler_processing_job",
    "get_rule_container_image_uri",
    "install_as_smdebug",
    "rule_configs",
    "start",
    "stop",
]

if TYPE_CHECKING:
    from sm_profiler.analysis.smdebug_alias import install_as_smdebug
    from sm_profiler.debugger import (
        DataloaderProfilingConfig,
        DetailedProfilingConfig,
        FrameworkProfile,
        HorovodProfilingConfig,
        Profiler,
        ProfilerConfig,
        ProfilerRule,
        PythonProfiler,
        PythonProfilingConfig,
        SMDataParallelProfilingConfig,
        StepRange,
        TimeRange,
        cProfileTimer,
        get_default_profiler_processing_job,
        get_rule_container_image_uri,
        rule_configs,
    )
    from sm_profiler.recording import start, stop
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "analysis.smdebug_alias": ["install_as_smdebug"],
            "debugger": [
                name for name in __all__ if name not in {"__version__", "install_as_smdebug", "start", "stop"}
            ],
            "recording": ["start", "stop"],
        },
    )
