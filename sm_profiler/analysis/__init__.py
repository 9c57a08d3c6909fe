"""The notebook API: a job's profile as DataFrames, statistics, charts and timelines.

Importing this package loads none of them; each name is loaded when it is first used.
"""

from importlib import import_module
from typing import Any

# name → the module that defines it
_LAZY = {
    "MergedTimeline": "merged_timeline",
    "MergeUnit": "merged_timeline",
    "PandasFrame": "pandas_frame",
    "PandasFrameAnalysis": "statistics",
    "PT_dataloader_analysis": "dataloader",
    "Resource": "statistics",
    "StatsBy": "statistics",
    "PyinstrumentAnalysis": "python_profiles",
    "cProfileAnalysis": "python_profiles",
    "TrainingJob": "training_job",
    "system_frame": "frames",
    "framework_frame": "frames",
    "dataloader_frame": "frames",
}

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = globals()[name] = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
