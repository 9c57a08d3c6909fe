"""Executors of `concurrent.futures` for work that is cut into parts: processes of this machine, or a Dask cluster."""

from sm_profiler.executors.pools import Meter, Pool, Remote, TaskResult, map_tasks, open_pool, run_tasks

__all__ = ["Meter", "Pool", "Remote", "TaskResult", "map_tasks", "open_pool", "run_tasks"]
