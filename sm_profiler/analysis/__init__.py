"""The notebook API: a job's profile as DataFrames, statistics, charts and timelines.

Importing this package loads nothing else; each public name is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = [
    "Heatmap",
    "MergeUnit",
    "MergedTimeline",
    "MetricsHistogram",
    "PT_dataloader_analysis",
    "PandasFrame",
    "PandasFrameAnalysis",
    "PyinstrumentAnalysis",
    "Resource",
    "StatsBy",
    "StepHistogram",
    "StepTimelineChart",
    "TF_dataloader_analysis",
    "TimelineCharts",
    "TrainingJob",
    "cProfileAnalysis",
    "dataloader_frame",
    "framework_frame",
    "system_frame",
]

if TYPE_CHECKING:
    from sm_profiler.analysis.dataloader import PT_dataloader_analysis, TF_dataloader_analysis
    from sm_profiler.analysis.frames import dataloader_frame, framework_frame, system_frame
    from sm_profiler.analysis.histograms import Heatmap, MetricsHistogram, StepHistogram
    from sm_profiler.analysis.merged_timeline import MergedTimeline, MergeUnit
    from sm_profiler.analysis.pandas_frame import PandasFrame
    from sm_profiler.analysis.python_profiles import PyinstrumentAnalysis, cProfileAnalysis
    from sm_profiler.analysis.readers import TrainingJob
    from sm_profiler.analysis.statistics import PandasFrameAnalysis, Resource, StatsBy
    from sm_profiler.analysis.timeline_charts import StepTimelineChart, TimelineCharts
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "dataloader": ["PT_dataloader_analysis", "TF_dataloader_analysis"],
            "frames": ["dataloader_frame", "framework_frame", "system_frame"],
            "histograms": ["Heatmap", "MetricsHistogram", "StepHistogram"],
            "merged_timeline": ["MergeUnit", "MergedTimeline"],
            "pandas_frame": ["PandasFrame"],
            "python_profiles": ["PyinstrumentAnalysis", "cProfileAnalysis"],
            "readers": ["TrainingJob"],
            "statistics": ["PandasFrameAnalysis", "Resource", "StatsBy"],
            "timeline_charts": ["StepTimelineChart", "TimelineCharts"],
        },
    )
