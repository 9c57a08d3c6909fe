"""Fold a job with an executor: plan, distribute, merge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import msgspec

from sm_profiler._version import __version__
from sm_profiler.errors import SourceError
from sm_profiler.executors import Meter, Pool, open_pool, run_tasks
from sm_profiler.report.scaling.part import Answer, Task, decode_answer, decode_slice, fold_part
from sm_profiler.report.scaling.plan import Part, plan_parts
from sm_profiler.report.scaling.put_away import put_away
from sm_profiler.rules import engine
from sm_profiler.rules.engine import Slice, SliceTree
from sm_profiler.source.listed import listed, place_of
from sm_profiler.source.profile import FileQuality, ProfileSource

PARTS_PER_WORKER = 2  # an even load, although parts differ
PART_BYTES = 2 << 30  # of files, at most: a worker that dies loses no more


def fold_with(  # noqa: PLR0913 - keyword arguments, one an independent choice
    source: ProfileSource,
    executor: str | Executor | Pool,
    *,
    parameters: Mapping[str, Any],
    interval_us: int,
    parts: int | None = None,
    slice_windows: int | None = None,
) -> Slice | None:
    """Fold a job with an executor.

    Args:
        source: the job's data; afterwards it has the account of the files that were read.
        executor: as for `executors.open_pool`.
        parameters: of the rules.
        interval_us: length of a window.
        parts: number of parts; default: by workers and bytes.
        slice_windows: windows of a slice; default: as in one process.

    Returns:
        The merged state; None if the job must be read in one process: it is short, or its files are not named as usual.

    Raises:
        SourceError: the data cannot be read, or the executor failed.
    """
    slice_windows = slice_windows or engine.slice_windows(source, interval_us)
    where = place_of(source)
    items = source.files
    with open_pool(executor) as pool:
        size = sum(item.info.size for item in items)
        wanted = parts or max(PARTS_PER_WORKER * pool.workers, -(-size // PART_BYTES))
        planned = plan_parts(items, wanted, interval_us=interval_us, slice_windows=slice_windows)
        if len(planned) < 2:  # noqa: PLR2004 - one part is one process
            return None
        tasks = [
            msgspec.msgpack.encode(
                Task(
                    __version__, *where, dict(parameters), one.first, one.last, one.start_us, one.from_us, one.until_us,
                    slice_windows * interval_us, interval_us, one.more,
                    listed(source, (item.info for item in one.items)),
                    [item.info.key for item in one.own],
                )
            )
            for one in planned
        ]  # fmt: skip
        tree = SliceTree(lambda state: put_away(state, parameters))
        quality: list[FileQuality] = []
        metadata: dict[str, tuple[dict[str, Any], ...]] = {}
        for answer in _answers(pool, planned, tasks, source):  # merged while the workers fold the next parts
            if answer.error:
                raise SourceError(answer.error)
            if answer.irregular:
                return None
            quality += [FileQuality(*one) for one in answer.quality]
            metadata |= {path: tuple(records) for path, records in answer.metadata.items()}
            for level, number, state in answer.states:
                tree.add(level, number, decode_slice(state, parameters))
    source.adopt(quality, metadata)
    return tree.whole()


def _answers(pool: Pool, planned: Sequence[Part], tasks: Sequence[bytes], source: ProfileSource) -> Iterator[Answer]:
    """Yield the results as they arrive; the order does not matter."""
    files = sum(len(one.own) for one in planned)
    with Meter(files, pool.workers, show=source.options.progress) as meter:
        for result in run_tasks(pool, fold_part, tasks, waiting=meter.draw):
            if result.error:
                raise SourceError(f"the workers failed: {result.error}")
            answer = decode_answer(result.data)
            meter.add(len(planned[result.number].own), answer.rows)
            yield answer
            if answer.error or answer.irregular:
                return
