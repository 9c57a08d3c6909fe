"""A process that parses files for another one (`processes.Helper`): receives requests, sends rows."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from sm_profiler.formats.outcome import REFUSED, Outcome
from sm_profiler.source.parse import DENIED, parse_bytes
from sm_profiler.source.wire import receive_request, send_rows


def main() -> None:
    """Answer requests until the pipe is closed."""
    # Parsing makes no cycles, and looking for them among millions of young objects costs a tenth of the time.
    gc.disable()
    requests_fd, answers_fd = map(int, sys.argv[1:3])
    with os.fdopen(requests_fd, "rb") as requests, os.fdopen(answers_fd, "wb", buffering=1 << 20) as answers:
        while True:
            try:
                request, data = receive_request(requests)
            except EOFError:
                return
            try:
                if request.path:
                    data = Path(request.path).read_bytes()
                rows, outcome = parse_bytes(request, data)
            except OSError as error:
                rows, outcome = parse_bytes(request, b"")[0], Outcome(REFUSED, 0, _reason(error))
            send_rows(answers, rows, outcome)


def _reason(error: OSError) -> str:
    return DENIED if isinstance(error, PermissionError) else str(error.strerror)


if __name__ == "__main__":
    main()
