"""A process of `LocalExecutor`: calls the function that its command line names, with bytes from a pipe."""

from __future__ import annotations

import gc
import os
import resource
import sys
from contextlib import suppress
from importlib import import_module

from sm_profiler.limits import memory_total
from sm_profiler.processes import receive_message, send_message

LEAST_BYTES = 2 << 30
_OBJECTS = (
    1 << 20
)  # parsing makes no cycles, and looking for them among millions of young objects takes a tenth of the time


def limit_memory() -> None:
    """Limit this process to half of the machine's memory, so that a file that takes more is refused, not the machine."""
    with suppress(OSError, ValueError):
        limit = max(memory_total() // 2, LEAST_BYTES)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard == resource.RLIM_INFINITY or hard > limit:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def main() -> None:
    """Answer until the owner closes the pipe."""
    gc.set_threshold(_OBJECTS)
    limit_memory()
    requests_fd, answers_fd, (module, _, name) = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].partition(":")
    function = getattr(import_module(module), name)
    with os.fdopen(requests_fd, "rb") as requests, os.fdopen(answers_fd, "wb") as answers:
        while True:
            try:
                data = receive_message(requests)
            except EOFError:
                return
            try:
                failed, answer = b"", function(data)
            except Exception as error:  # the owner raises it
                failed, answer = b"1", f"{type(error).__name__}: {error}".encode(errors="backslashreplace")
            send_message(answers, failed)
            send_message(answers, answer)
            answers.flush()


if __name__ == "__main__":
    main()
