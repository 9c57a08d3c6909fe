"""A process that parses files for another one (`processes.Helper`): receives requests, sends rows."""

from __future__ import annotations

import gc
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from sm_profiler.formats.outcome import REFUSED, Outcome
from sm_profiler.source.parse import DENIED, LEAST_BYTES, machine_bytes, parse_bytes, receive_request, send_rows
from sm_profiler.storage.local import open_regular


def limit_memory() -> None:
    """Limit this process to half of the machine's memory, so that a file that takes more is refused, not the machine."""
    with suppress(OSError, ValueError):
        limit = max(machine_bytes() // 2, LEAST_BYTES)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard == resource.RLIM_INFINITY or hard > limit:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def main() -> None:
    """Answer requests until the pipe is closed."""
    # Parsing makes no cycles, and a search for them among millions of young objects costs a tenth of the time.
    gc.disable()
    limit_memory()
    requests_fd, answers_fd = map(int, sys.argv[1:3])
    with os.fdopen(requests_fd, "rb") as requests, os.fdopen(answers_fd, "wb", buffering=1 << 20) as answers:
        while True:
            try:
                request, data = receive_request(requests)
            except EOFError:
                return
            try:
                if request.path:
                    with open_regular(Path(os.fsdecode(request.path))) as file:
                        data = file.read() or b""  # None: a link to a file of the kernel that would wait for data
                rows, outcome = parse_bytes(request, data)
            except OSError as error:
                rows, outcome = parse_bytes(request, b"")[0], Outcome(REFUSED, 0, _reason(error))
            send_rows(answers, rows, outcome)


def _reason(error: OSError) -> str:
    return DENIED if isinstance(error, PermissionError) else str(error.strerror)


if __name__ == "__main__":
    main()
