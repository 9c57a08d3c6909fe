"""Traces of torch.profiler as DataFrames: where a GPU's time goes, and which line of code spends it."""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = ["GpuTraces", "find_traces", "group_differences", "kernel_differences", "operator_differences"]

if TYPE_CHECKING:
    from sm_profiler.gpu_traces.traces import GpuTraces, find_traces
    from sm_profiler.report.trace_compare import group_differences, kernel_differences, operator_differences
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "sm_profiler.report.trace_compare": ["group_differences", "kernel_differences", "operator_differences"],
            "sm_profiler.gpu_traces.traces": ["GpuTraces", "find_traces"],
        },
    )
