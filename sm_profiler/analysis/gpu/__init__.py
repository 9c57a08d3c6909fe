"""Traces of torch.profiler as DataFrames: where a GPU's time goes, and which line of code spends it."""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = ["GpuTraces", "find_traces"]

if TYPE_CHECKING:
    from sm_profiler.analysis.gpu.gpu_traces import GpuTraces, find_traces
else:
    __getattr__, __dir__ = lazy_exports(__name__, {"gpu_traces": ["GpuTraces", "find_traces"]})
