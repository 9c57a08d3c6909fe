"""A job's profile as a Dask DataFrame: each partition is read by the worker that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sm_profiler.analysis.frames import framework_frame, system_frame
from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.layout import hour_folder
from sm_profiler.source import ProfileSource
from sm_profiler.source.item_table import Item
from sm_profiler.source.listed import Listed, listed, open_listed, place_of

FRAMEWORK, SYSTEM = KINDS = ("framework", "system")
_Task = tuple[str, str | None, list[Listed], str, int]


def dask_frame(source: ProfileSource, kind: str, start_us: int) -> Any:
    """Return a Dask DataFrame of system metrics or trace events, a partition for each timeline and hour.

    Raises:
        SourceError: Dask is not installed, or its workers cannot open the source.
        ValueError: there is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is neither {FRAMEWORK!r} nor {SYSTEM!r}")
    try:
        import dask.dataframe as frames  # an extra
    except ImportError:
        raise SourceError("to_dask() needs Dask: pip install 'sm-profiler[dask]'") from None
    dd: Any = frames
    place = place_of(source)
    tasks: list[_Task] = [
        (*place, listed(source, (item.info for item in items)), kind, start_us) for items in _partitions(source, kind)
    ]
    empty = _frame(EventColumns.empty() if kind == FRAMEWORK else SystemColumns.empty(), kind, start_us)
    return dd.from_map(read_partition, tasks, meta=empty) if tasks else dd.from_pandas(empty, npartitions=1)


def _partitions(source: ProfileSource, kind: str) -> Iterator[list[Item]]:
    items = [item for item in source.files if item.is_system == (kind == SYSTEM)]
    items.sort(key=lambda item: item.rank)
    for _, group in groupby(items, key=lambda item: (item.rank, hour_folder(item.at_us))):
        yield list(group)


def read_partition(task: _Task) -> Any:
    """Return the pandas DataFrame of a partition."""
    uri, job, files, kind, start_us = task
    source = open_listed(uri, job, files)
    return _frame(source.events() if kind == FRAMEWORK else source.system(), kind, start_us)


def _frame(columns: Any, kind: str, start_us: int) -> Any:
    return (framework_frame if kind == FRAMEWORK else system_frame)(columns, start_us)
