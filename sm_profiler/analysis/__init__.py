"""The notebook API: a job's profile as DataFrames, statistics, charts and timelines.

Importing this package loads none of them; each name is loaded when it is first used.
"""

from importlib import import_module
from typing import Any

# name → the module that defines it
_LAZY = {
    "Heatmap": "heatmap",
    "MergeUnit": "merged_timeline",
    "MergedTimeline": "merged_timeline",
    "MetricsHistogram": "histograms",
    "PT_dataloader_analysis": "dataloader",
    "PandasFrame": "pandas_frame",
    "PandasFrameAnalysis": "statistics",
    "PyinstrumentAnalysis": "python_profiles",
    "Resource": "statistics",
    "StatsBy": "statistics",
    "StepHistogram": "histograms",
    "StepTimelineChart": "step_timeline",
    "TimelineCharts": "timeline_charts",
    "TrainingJob": "training_job",
    "cProfileAnalysis": "python_profiles",
    "dataloader_frame": "frames",
    "framework_frame": "frames",
    "system_frame": "frames",
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
