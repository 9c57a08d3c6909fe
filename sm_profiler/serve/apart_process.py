"""The process that reads a job for `ReaderApart`: first results if that takes long, then the whole."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import IO

import msgspec

from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.printable import printable
from sm_profiler.processes import send_message
from sm_profiler.serve.apart import Answer
from sm_profiler.serve.look import look_of, packed_or_none
from sm_profiler.serve.reading import FIRST_S, JobReader
from sm_profiler.source.opening import NoProfilerDataError

EARLY_SHARE = 4  # a first result may be made after this many times the time that the last one took


def leave_with_parent(requests: int) -> None:
    """End this process when the one that started it is gone."""
    with contextlib.suppress(OSError):
        os.read(requests, 1)
    os._exit(1)


def read_whole(where: str, send: Callable[[Answer], object]) -> Answer:
    """Read a job, send first results if that takes long, and return the last answer."""
    reader, due = JobReader(where), time.monotonic() + FIRST_S

    def early() -> None:
        nonlocal due
        begun = time.monotonic()
        if begun >= due:
            send(Answer.of(look_of(reader), reader))
            now = time.monotonic()
            due = now + EARLY_SHARE * (now - begun)

    try:
        reader.read(early)
        if reader.lacks_heat:
            early()
            with contextlib.suppress(SourceError):  # the rest is shown without it
                reader.read_heat()
        look = look_of(reader)
        return Answer.of(look, reader, packed_or_none(look.report), is_last=True)
    except NoProfilerDataError as error:
        outcome = reader.outcome
        return Answer(is_last=True, error=printable(error), is_empty=True, outcome=outcome, here=not outcome)
    except ProfilerError as error:
        return Answer(is_last=True, error=printable(error))
    except (TypeError, ValueError):  # it cannot be sent, or else the server finds the same error
        return Answer(is_last=True, here=True)
    except Exception as error:  # noqa: BLE001 - the page shows what it is
        return Answer(is_last=True, error=printable(f"{type(error).__name__}: {error}"))


def main() -> None:
    """Read the job that the command line names, and write answers to the pipe that it names."""
    requests, answers, where = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    threading.Thread(target=leave_with_parent, args=(requests,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError), os.fdopen(answers, "wb") as out:
        send(out, read_whole(where, lambda answer: send(out, answer)))


def send(out: IO[bytes], answer: Answer) -> None:
    """Write an answer."""
    send_message(out, msgspec.msgpack.encode(answer))
    out.flush()


if __name__ == "__main__":
    main()
