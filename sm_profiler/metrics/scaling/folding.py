"""Fold a job with an executor: plan, distribute, merge."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from typing import Any

import attrs
import numpy as np

from sm_profiler import folding as engine
from sm_profiler.executors import Meter, Pool, map_tasks, open_pool
from sm_profiler.folding import Slice, SliceTree
from sm_profiler.metrics.scaling.kept import put_away
from sm_profiler.metrics.scaling.part import (
    Answer,
    FoldTask,
    JobPart,
    decode_slice,
    fold_part,
    group_nodes,
    groups_needed,
    plan_parts,
)
from sm_profiler.metrics.step_fold import StepFold
from sm_profiler.source.item_table import Item, OrderedItems
from sm_profiler.source.opening import listed, place_of
from sm_profiler.source.parse import Parsed, ParseTask, parse_files
from sm_profiler.source.profile import FileQuality, ProfileSource
from sm_profiler.storage import Storage

GROUP_BYTES, GROUP_FILES = 4 << 20, 256  # of files that a worker parses at once


@contextmanager
def reading_with(source: ProfileSource, executor: str | Executor | None) -> Iterator[None]:
    """Have the workers of an executor fetch and parse the files that a source reads in this block.

    Rows, their order and the account of damaged files are the same. A profile in Parquet, which needs no parsing, is read
    here.

    Args:
        source: the profile.
        executor: as for `executors.open_pool`; None: this process.

    Raises:
        SourceError: the executor cannot be reached, or its workers not the data.
    """
    if executor is None:
        yield
        return
    uri, job = place_of(source)
    if job is not None:
        yield
        return
    with open_pool(executor) as pool:
        here = source.parse

        def parse(storage: Storage, items: Iterable[Item], **options: Any) -> Generator[Parsed, None, None]:
            del storage, options
            return _parsed(pool, uri, list(items), show=source.options.progress)

        source.parse = parse
        try:
            yield
        finally:
            source.parse = here


def _groups(items: Sequence[Item]) -> list[list[Item]]:
    groups: list[list[Item]] = []
    size = 0
    for item in items:
        if not groups or size + item.info.size > GROUP_BYTES or len(groups[-1]) >= GROUP_FILES:
            groups.append([])
            size = 0
        groups[-1].append(item)
        size += item.info.size
    return groups


def _parsed(pool: Pool, uri: str, items: Sequence[Item], *, show: bool | None) -> Generator[Parsed, None, None]:
    """Yield parsed files in their order."""
    groups = _groups(items)
    tasks = (ParseTask(group, uri) for group in groups)
    with (
        Meter(len(items), pool.workers, show=show) as meter,
        closing(map_tasks(pool, parse_files, tasks, waiting=meter.draw, in_order=True)) as answers,
    ):
        for number, found in answers:
            parsed = [(item, each.rows, each.outcome) for item, each in zip(groups[number], found, strict=True)]
            meter.add(len(parsed), sum(len(rows.head) for _, rows, _ in parsed if rows is not None))
            yield from parsed


PARTS_PER_WORKER = 2  # an even load, although parts differ
PART_BYTES = 2 << 30  # of files, at most: a worker that dies loses no more


@attrs.frozen
class _Cut:
    """Cut of a job into parts.

    Attributes:
        parameters: of the rules.
        interval_us: length of a window.
        slice_windows: windows of a slice.
    """

    parameters: Mapping[str, Any]
    interval_us: int
    slice_windows: int

    def planned(self, items: OrderedItems, stretches: int, groups: int) -> list[JobPart]:
        """Return the parts; those that take longest first, so that no worker is left with one at the end."""
        found = plan_parts(
            items, stretches, interval_us=self.interval_us, slice_windows=self.slice_windows, groups=groups
        )
        return sorted(found, key=lambda part: -part.size)

    def tasks(self, source: ProfileSource, planned: Sequence[JobPart]) -> Iterator[FoldTask]:
        """Yield what the workers get, one after another: the names of all files of a long job take much memory."""
        uri, job = place_of(source)
        for part in planned:
            yield FoldTask(
                uri, job, dict(self.parameters), part.first, part.last, part.start_us, part.from_us, part.until_us,
                self.slice_windows * self.interval_us, self.interval_us, part.more,
                listed(source, (item.info for item in part.items)), [item.info.key for item in part.own], list(part.hosts),
                list(part.minutes),
            )  # fmt: skip


def fold_with(  # independent choices
    source: ProfileSource,
    executor: str | Executor | Pool,
    *,
    parameters: Mapping[str, Any],
    interval_us: int,
    parts: int | None = None,
    slice_windows: int | None = None,
    groups: int | None = None,
) -> Slice | None:
    """Fold a job with an executor.

    Args:
        source: the job's data; afterwards it has the account of the files that were read.
        executor: as for `executors.open_pool`.
        parameters: of the rules.
        interval_us: length of a window.
        parts: number of stretches of time; default: by workers and bytes.
        slice_windows: windows of a slice; default: as in one process.
        groups: number of groups of nodes; default: by workers and bytes.

    Returns:
        The merged state; None if the job must be read in one process: it is short, or its files are not named as usual.

    Raises:
        SourceError: the data cannot be read, or the executor failed.
    """
    cut = _Cut(parameters, interval_us, slice_windows or engine.slice_windows(source, interval_us))
    items = source.files
    place_of(source)
    with open_pool(executor) as pool:
        size = int(items.sizes.sum())
        # Minutes around a stretch of time are read twice, so that nodes are divided first.
        groups = groups or max(min(len(np.unique(items.hosts)), pool.workers), groups_needed(items))
        groups = len(group_nodes(items, groups))
        wanted = parts or -(-max(PARTS_PER_WORKER * pool.workers, -(-size // PART_BYTES)) // groups)
        for count in dict.fromkeys((groups, 1)):
            whole = _folded(source, pool, cut, cut.planned(items, wanted * groups // count, count))
            if whole is not None:
                return whole
    return None


def _folded(source: ProfileSource, pool: Pool, cut: _Cut, planned: Sequence[JobPart]) -> Slice | None:
    """Fold the parts of a job; None if that might give other digits than one process, or if there is only one."""
    if len(planned) < 2:  # one part is one process
        return None
    trees = {part.group: SliceTree(put_away) for part in planned}
    quality: list[FileQuality] = []
    metadata: dict[str, tuple[dict[str, Any], ...]] = {}
    missing = {part.first: set(part.minutes) for part in planned}
    for part, answer in _answers(pool, planned, cut.tasks(source, planned), source):  # while they fold the next parts
        if answer.irregular:
            return None
        quality += answer.quality
        metadata |= {path: tuple(records) for path, records in answer.metadata.items()}
        missing[part.first].difference_update(answer.clock)
        for level, number, state in answer.states:
            trees[part.group].add(level, number, decode_slice(state, cut.parameters))
    if any(missing.values()):
        return None
    first, *others = (whole for _, tree in sorted(trees.items()) if (whole := tree.whole()) is not None)
    for other in others:
        first.merge(other)
    if others and any(isinstance(fold, StepFold) and fold.depends_on_order() for fold in first.folds):
        return None
    source.adopt(quality, metadata)
    return first


def _answers(
    pool: Pool, planned: Sequence[JobPart], tasks: Iterable[FoldTask], source: ProfileSource
) -> Iterator[tuple[JobPart, Answer]]:
    """Yield the results as they arrive; the order does not matter."""
    files = sum(len(part.own) for part in planned)
    with Meter(files, pool.workers, show=source.options.progress) as meter:
        for number, answer in map_tasks(pool, fold_part, tasks, waiting=meter.draw):
            meter.add(len(planned[number].own), answer.rows)
            yield planned[number], answer
            if answer.irregular:
                return
