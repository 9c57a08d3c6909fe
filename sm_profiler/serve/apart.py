"""Finished jobs are read in a subprocess, so that their memory returns to the OS."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import attrs
import msgspec

from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.formats.layout import END_MARKERS
from sm_profiler.monitor.run_state import read_state
from sm_profiler.processes import Helper, receive_message
from sm_profiler.report.model import Finding
from sm_profiler.report.scaling import codec
from sm_profiler.rules.engine import LATE_S
from sm_profiler.serve.ending import Ending
from sm_profiler.serve.look import Look
from sm_profiler.serve.reading import JobReader, local_folder
from sm_profiler.source.open_files import profile_folder
from sm_profiler.source.opening import NoProfilerDataError
from sm_profiler.source.parquet.paths import FILES, STATES, folder_of, split_job
from sm_profiler.storage import open_storage

AT_ONCE = 2  # processes of a server: a very long job must not keep all others waiting

_places = threading.Semaphore(AT_ONCE)


class Answer(msgspec.Struct):
    """A message of the process that reads.

    Attributes:
        main: the leading finding, by the codec of states; b"" if nothing was read.
        parts, packed, spark, gpu, data_at: see `Look`.
        is_last: no other follows.
        error, is_empty: why it could not be read, and whether that is because there is no data.
        here: the server itself has to read it: there is no data yet, or what was read cannot be sent.
        over, files, outcome: see `JobReader`.
    """

    main: bytes = b""
    parts: dict[str, str] = {}
    packed: bytes = b""
    spark: tuple[float, ...] = ()
    gpu: tuple[float, ...] = ()
    data_at: float | None = None
    is_last: bool = False
    error: str = ""
    is_empty: bool = False
    here: bool = False
    over: bool = False
    files: int = 0
    outcome: str = ""

    @classmethod
    def of(cls, look: Look, reader: JobReader, packed: bytes = b"", *, is_last: bool = False) -> Answer:
        """Return the message of a look; with the report in `packed`, it is the last."""
        return cls(
            codec.encode(look.main), dict(look.parts), packed, look.spark, look.gpu, look.data_at, is_last,
            over=reader.over, files=reader.files, outcome=reader.outcome,
        )  # fmt: skip

    def look(self) -> Look:
        """Return the look again, its report packed."""
        main: Finding = codec.decode(self.main, report=True)
        return Look(self.parts, main, None, self.packed, self.spark, self.gpu, self.data_at)


_ANSWER = msgspec.msgpack.Decoder(Answer)


def is_over(where: str) -> bool:
    """Return whether a job is read as a whole: in Parquet, or a local run that has ended."""
    if in_parquet(where):
        return True
    folder = local_folder(where)
    if folder is None:
        return False
    try:
        run = read_state(folder)
        if run is not None:
            return run.is_over
        ended = [path.stat().st_mtime for name in END_MARKERS if (path := profile_folder(folder) / name).exists()]
    except OSError:  # the reader of the job reports it
        return False
    return bool(ended) and time.time() - max(ended) > LATE_S


def in_parquet(where: str) -> bool:
    """Return whether a location is that of a job of a data set in Parquet."""
    return split_job(where) is not None and local_folder(where) is None


@attrs.define(eq=False)
class ReaderApart:
    """Reads a job as a `JobReader` does, in a process that ends when it has read it.

    Attributes:
        where: as `open_source` takes it.
        look: what has been read so far.
        over, files, outcome: see `JobReader`.
        is_to_read_here: the job is not over and has to be followed file by file, or its report cannot be packed.
    """

    where: str
    look: Look | None = None
    over: bool = False
    files: int = 0
    outcome: str = ""
    is_to_read_here: bool = False
    is_intact: bool = True
    _seen: Any = None
    _helper: Helper | None = None
    _is_closed: bool = False

    @property
    def ending(self) -> Ending | EndingInParquet:
        """The end of the job, once it is over."""
        if in_parquet(self.where):
            return EndingInParquet(self.where, self._seen)
        return Ending(local_folder(self.where))

    def read(self, progress: Callable[[], object]) -> bool:
        """Read the job unless it is read already, and return whether it was read; `progress` is called after each result.

        Raises:
            NoProfilerDataError: the run ended without data.
            SourceError: it cannot be read.
        """
        seen = identity(self.where)
        if seen == self._seen:
            return False
        with _places:
            try:
                with closing(Helper("sm_profiler.serve.apart_process", [_absolute(self.where)])) as helper:
                    self._helper = helper
                    if self._is_closed:
                        helper.process.kill()
                    while not self._receive(helper.answers):
                        progress()
            except (OSError, EOFError):
                raise SourceError("the process that read it has ended before its time") from None
            finally:
                self._helper = None
        self._seen = seen
        return True

    def close(self) -> None:
        """End the process; `read`, in another thread, then fails."""
        self._is_closed, helper = True, self._helper
        if helper is not None:
            helper.process.kill()

    def _receive(self, answers: IO[bytes]) -> bool:
        answer = _ANSWER.decode(receive_message(answers))
        self.over, self.files, self.outcome = answer.over, answer.files, answer.outcome
        if answer.here:
            self.is_to_read_here = True
            return True
        if answer.error:
            raise (NoProfilerDataError if answer.is_empty else SourceError)(answer.error)
        self.look = answer.look()
        self.is_to_read_here = answer.is_last and (not answer.packed or not (answer.over or in_parquet(self.where)))
        return answer.is_last


@attrs.frozen
class EndingInParquet:
    """The Parquet files of a job when it was read; see `Ending`.

    Attributes:
        where: the job.
        seen: its `identity`.
    """

    where: str
    seen: Any

    @property
    def is_final(self) -> bool:
        """True unless they have changed; so it is if they cannot be listed."""
        try:
            return bool(identity(self.where) == self.seen)
        except (ProfilerError, OSError):
            return True


def identity(where: str) -> Any:
    """Return what changes if a job is to be read again.

    Raises:
        SourceError: it cannot be listed.
    """
    split = split_job(where) if in_parquet(where) else None
    if split is None:
        return where
    root, job = split
    storage = open_storage(root if "://" in root else str(Path(root).absolute()))
    folders = [folder_of(one, job) for one in (FILES, STATES)]  # `compact` writes a list whenever rows have come
    return [(one.key, one.size, one.etag or one.mtime) for folder in folders for one in storage.list(folder)]


def _absolute(where: str) -> str:
    """Return a location for a process in another folder."""
    return str(Path(where).absolute()) if local_folder(where) or (in_parquet(where) and "://" not in where) else where
