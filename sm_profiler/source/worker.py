"""A process that parses files for another one: requests on standard input, rows on standard output."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from sm_profiler.formats.outcome import REFUSED, Outcome
from sm_profiler.source.parse import parse_bytes
from sm_profiler.source.wire import receive_request, send_rows


def main() -> None:
    """Answer until nobody asks."""
    # Parsing makes no cycles, and looking for them among millions of young objects costs a tenth of the time.
    gc.disable()
    requests = sys.stdin.buffer
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=1 << 20) as answers:
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
                rows, outcome = parse_bytes(request, b"")[0], Outcome(REFUSED, 0, str(error.strerror))
            send_rows(answers, rows, outcome)


if __name__ == "__main__":
    main()
