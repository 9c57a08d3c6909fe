"""sm-profiler: why is my training job slow, and what do I do about it?

Importing this package loads nothing but itself; every public name is loaded when it is first used.
"""

from typing import Any

from sm_profiler._version import __version__

# name → the module that defines it; `sm_profiler.debugger` has the same names eagerly
_LAZY = dict.fromkeys(
    (
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
    ),
    "sm_profiler.debugger",
)
_LAZY["install_as_smdebug"] = "sm_profiler.analysis.smdebug_alias"

__all__ = ["__version__", *_LAZY]  # noqa: PLE0604 - they are strings


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module  # noqa: PLC0415 - nothing is loaded before it is asked for

    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
