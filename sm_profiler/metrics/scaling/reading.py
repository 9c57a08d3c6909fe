"""Parse the files of a source with the workers of an executor, for readers that need every row in its order."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from typing import Any

from sm_profiler._version import __version__
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.executors import Meter, Pool, open_pool, run_tasks
from sm_profiler.metrics.scaling import codec
from sm_profiler.source.item import Item
from sm_profiler.source.listed import place_of
from sm_profiler.source.parse import Parsed, parse_all
from sm_profiler.source.profile import ProfileSource
from sm_profiler.storage import Storage, open_storage

GROUP_BYTES, GROUP_FILES = 4 << 20, 256  # of files that a worker parses at once
DIFFERENT = "sm-profiler is {} where the command runs and {} on a worker: install the same version"


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


def parse_group(data: bytes) -> bytes:
    """Parse some files; they, rows and outcomes are bytes."""
    version, uri, items = codec.decode(data)
    try:
        if version != __version__:
            raise SourceError(DIFFERENT.format(version, __version__))
        found = [(rows, outcome) for _, rows, outcome in parse_all(open_storage(uri), items, processes=1)]
    except ProfilerError as error:
        return codec.encode(str(error))
    return codec.encode(found)


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
    tasks = (codec.encode((__version__, uri, group)) for group in groups)
    with (
        Meter(len(items), pool.workers, show=show) as meter,
        closing(run_tasks(pool, parse_group, tasks, waiting=meter.draw, in_order=True)) as results,
    ):
        for result in results:
            found = f"the workers failed: {result.error}" if result.error else codec.decode(result.data)
            if isinstance(found, str):
                raise SourceError(found)
            group = groups[result.number]
            meter.add(len(group), sum(len(rows.head) for rows, _ in found if rows is not None))
            for item, (rows, outcome) in zip(group, found, strict=True):
                yield item, rows, outcome
