"""Finished jobs are read in a subprocess, so that their memory returns to the OS."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import attrs
import msgspec

from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.folding.engine import LATE_S
from sm_profiler.formats.layout import END_MARKERS
from sm_profiler.metrics.scaling import codec
from sm_profiler.monitor.run_state import read_state
from sm_profiler.printable import printable
from sm_profiler.processes import Helper, receive_message, send_message, wait_for_starter
from sm_profiler.serve.reading import FIRST_S, JobReader, ResumeCheck, goes_on, local_folder
from sm_profiler.serve.snapshot import Content, packed_or_none
from sm_profiler.source.open_files import profile_folder
from sm_profiler.source.opening import NoProfilerDataError
from sm_profiler.source.parquet.paths import FILES, STATES, folder_of, split_job
from sm_profiler.storage import open_storage

MAX_PROCESSES = 2  # of a server: a very long job must not keep all others waiting
EARLY_SHARE = 4  # a first result may be made after this many times the time that the last result took

_free = threading.Semaphore(MAX_PROCESSES)


class Answer(msgspec.Struct):
    """A message of the process.

    Attributes:
        content: the fields of a `Content`, by the codec of states; b"" if nothing was read.
        is_last: no other follows.
        error, is_empty: why it could not be read, and whether that is because there is no data.
        here: the server itself has to read it: there is no data yet, or what was read cannot be sent.
        over, files, outcome: see `JobReader`.
    """

    content: bytes = b""
    is_last: bool = False
    error: str = ""
    is_empty: bool = False
    here: bool = False
    over: bool = False
    files: int = 0
    outcome: str = ""

    @classmethod
    def of(cls, content: Content, reader: JobReader, *, is_last: bool = False) -> Answer:
        """Return the message of some content; the last also has the whole report, packed."""
        content = attrs.evolve(content, packed=packed_or_none(content.report) if is_last else b"", report=None)
        encoded = codec.encode(attrs.astuple(content, recurse=False))
        return cls(encoded, is_last, over=reader.over, files=reader.files, outcome=reader.outcome)


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
class ReaderProcess:
    """Reads a job as a `JobReader` does, in a process that ends when it has read it.

    Attributes:
        where: as `open_source` takes it.
        content: what has been read so far.
        over, files, outcome: see `JobReader`.
        is_to_read_here: the job is not over and has to be followed file by file, or its report cannot be packed.
    """

    where: str
    content: Content | None = None
    over: bool = False
    files: int = 0
    outcome: str = ""
    is_to_read_here: bool = False
    is_intact: bool = True
    _seen: Any = None
    _helper: Helper | None = None
    _is_closed: bool = False

    @property
    def resume_check(self) -> ResumeCheck:
        """A function that reports whether the job, which is over, goes on."""
        if in_parquet(self.where):
            return partial(_has_changed, self.where, self._seen)
        folder = local_folder(self.where)
        return partial(goes_on, folder) if folder else bool

    def read(self, progress: Callable[[], object]) -> bool:
        """Read the job unless it is read already, and return whether it was read; `progress` is called after each result.

        Raises:
            NoProfilerDataError: the run ended without data.
            SourceError: it cannot be read.
        """
        seen = identity(self.where)
        if seen == self._seen:
            return False
        with _free:
            try:
                with contextlib.closing(Helper(__name__, [_absolute(self.where)])) as helper:
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
        content = self.content = Content(*codec.decode(answer.content, report=True))
        self.is_to_read_here = answer.is_last and (not content.packed or not (answer.over or in_parquet(self.where)))
        return answer.is_last


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
    folders = [folder_of(kind, job) for kind in (FILES, STATES)]  # `compact` writes a list whenever rows have come
    return [(file.key, file.size, file.etag or file.mtime) for folder in folders for file in storage.list(folder)]


def _has_changed(where: str, seen: Any) -> bool:
    return bool(identity(where) != seen)


def _absolute(where: str) -> str:
    """Return a location for a process in another folder."""
    return str(Path(where).absolute()) if local_folder(where) or (in_parquet(where) and "://" not in where) else where


def read_whole(where: str, send: Callable[[Answer], object]) -> Answer:
    """Read a job, send first results if that takes long, and return the last answer."""
    reader, due = JobReader(where), time.monotonic() + FIRST_S

    def early() -> None:
        nonlocal due
        begun = time.monotonic()
        if begun >= due:
            send(Answer.of(Content.of(reader), reader))
            now = time.monotonic()
            due = now + EARLY_SHARE * (now - begun)

    try:
        reader.read(early)
        if reader.lacks_heat:
            early()
            with contextlib.suppress(SourceError):  # the rest is shown without it
                reader.read_heat()
        return Answer.of(Content.of(reader), reader, is_last=True)
    except NoProfilerDataError as error:
        outcome = reader.outcome
        return Answer(is_last=True, error=printable(error), is_empty=True, outcome=outcome, here=not outcome)
    except ProfilerError as error:
        return Answer(is_last=True, error=printable(error))
    except (TypeError, ValueError):  # it cannot be sent, or else the server finds the same error
        return Answer(is_last=True, here=True)
    except Exception as error:  # the page shows what it is
        return Answer(is_last=True, error=printable(f"{type(error).__name__}: {error}"))


def exit_with_parent(requests: int) -> None:
    """End this process when the server, at the other end of a pipe, is gone."""
    wait_for_starter(requests)
    os._exit(1)


def main() -> None:
    """Read the job that the command line names, and write answers to the pipe that it names."""
    requests, answers, where = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    threading.Thread(target=exit_with_parent, args=(requests,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError), os.fdopen(answers, "wb") as out:

        def send(answer: Answer) -> None:
            send_message(out, msgspec.msgpack.encode(answer))
            out.flush()

        send(read_whole(where, send))


if __name__ == "__main__":
    main()
