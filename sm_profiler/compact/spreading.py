"""Parts of a dataset written by the workers of an executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs

from sm_profiler._version import __version__
from sm_profiler.compact.rewriting import Compacted, Rewriting
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.executors import Meter, Pool, run_tasks
from sm_profiler.formats.outcome import READ, Outcome
from sm_profiler.formats.trace_rows import LooseEnd, OpenEvent
from sm_profiler.metrics.scaling import codec
from sm_profiler.metrics.scaling.reading import DIFFERENT
from sm_profiler.source.column_builder import FileRows
from sm_profiler.source.item import Item
from sm_profiler.source.listed import ListedStorage
from sm_profiler.source.parquet.paths import Part
from sm_profiler.source.parquet.storage import ParquetStorage, loose_rows
from sm_profiler.source.parse import parse_all
from sm_profiler.source.streams import Streams
from sm_profiler.storage import FileInfo, open_storage

Open = tuple[str, str, OpenEvent]  # node, kind and event


@attrs.frozen
class Task:
    """A part for a worker.

    Attributes:
        version: of sm-profiler.
        source, target: locations of the profile and of the dataset.
        origin: where the profile was recorded.
        part: the part.
        new: files to read.
        held: files whose rows the part holds already.
        file: the part's Parquet file, if there is one.
        finished: the job has ended.
        opened: events that are open at the start of the part.
        is_known: these are all of them.
    """

    version: str
    source: str
    target: str
    origin: str
    part: Part
    new: list[Item]
    held: list[Item]
    file: FileInfo | None
    finished: bool
    opened: list[Open] = attrs.field(factory=list)
    is_known: bool = False


@attrs.frozen
class Answer:
    """Result of a part.

    Attributes:
        done: account of it.
        missed: nothing was written, as the begin of an event is missing.
        loose: files with ends and begins of events that have no counterpart in them, in their order.
        error: one line if the part can be neither read nor written.
    """

    done: Compacted
    missed: bool = False
    loose: list[tuple[Item, list[LooseEnd], list[OpenEvent]]] = attrs.field(factory=list)
    error: str = ""

    def pieces(self) -> Iterator[FileRows]:
        """Yield the files in `loose`, without rows."""
        for item, ends, begins in self.loose:
            rows = loose_rows(item, tuple(ends), tuple(begins))
            yield FileRows(item, Outcome(READ, 0, ""), loose=rows)


def spread(pool: Pool, tasks: Sequence[Task], meter: Meter) -> Iterator[tuple[Part, Answer]]:
    """Have workers write parts; yield them as they are done.

    Raises:
        SourceError: one cannot be read or written, or the workers failed.
    """
    encoded = (codec.encode(task) for task in tasks)
    for result in run_tasks(pool, rewrite_part, encoded, waiting=meter.draw):
        answer = (
            codec.decode(result.data)
            if result.data
            else Answer(Compacted(""), error=f"the workers failed: {result.error}")
        )
        if answer.error:
            raise SourceError(answer.error)
        if not answer.missed:
            meter.add(len(tasks[result.number].new), answer.done.rows)
        yield tasks[result.number].part, answer


def rewrite_part(data: bytes) -> bytes:
    """Write a part; task and answer are bytes."""
    task: Task = codec.decode(data)
    try:
        if task.version != __version__:
            raise SourceError(DIFFERENT.format(task.version, __version__))
        return codec.encode(_rewritten(task))
    except ProfilerError as error:
        return codec.encode(Answer(Compacted(task.part.job), error=str(error)))


def _rewritten(task: Task) -> Answer:
    storage = open_storage(task.target)
    existing = ParquetStorage(ListedStorage(storage, [task.file] if task.file else []), task.part.job)
    existing.load()
    for key, reason in existing.unreadable.items():
        raise SourceError(f"{storage.uri}/{key}: {reason}")
    rewriting = Rewriting(task.part, task.held, existing, task.origin)
    parsed = parse_all(open_storage(task.source), task.new, processes=1)
    rewriting.take(parsed, len(task.new), finished=task.finished)
    found = list(rewriting.loose())
    loose = [(piece.item, list(piece.loose_ends), list(piece.open_events)) for piece in found]
    if not task.is_known and _misses(found):
        return Answer(rewriting.done, missed=True, loose=loose)
    streams = Streams()
    for opened in task.opened:
        streams.push(*opened)
    rewriting.write(storage, streams)
    return Answer(rewriting.done, loose=loose)


def _misses(pieces: Iterable[FileRows]) -> bool:
    """Return whether an event ends in these files that does not begin in them."""
    streams = Streams()
    for piece in pieces:
        piece.joined(streams)
    return streams.failed
