"""Executors of `concurrent.futures` for work that is cut into parts: processes of this machine, or a Dask cluster."""

from sm_profiler.executors.opening import Pool, open_pool

__all__ = ["Pool", "open_pool"]
