"""Judge traces of torch.profiler: what the GPU waited for, and which kernels are slower than they need to be."""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = ["report_traces"]

if TYPE_CHECKING:
    from sm_profiler.report.gpu.report import report_traces
else:  # the page needs `section` only
    __getattr__, __dir__ = lazy_exports(__name__, {"report": ["report_traces"]})
