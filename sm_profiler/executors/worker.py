"""A process that runs functions of this package on bytes (`processes.Helper`)."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from sm_profiler.executors.pools import send
from sm_profiler.processes import receive_message

_OURS = "sm_profiler."


def main() -> None:
    """Run tasks until the owner closes the pipe."""
    with os.fdopen(int(sys.argv[1]), "rb") as requests, os.fdopen(int(sys.argv[2]), "wb") as answers:
        while True:
            try:
                name, data = receive_message(requests).decode(), receive_message(requests)
            except EOFError:
                return
            try:
                module, _, function = name.partition(":")
                if not module.startswith(_OURS):
                    raise ValueError(f"{module} is no module of sm-profiler")  # answered like all others
                answer = getattr(import_module(module), function)(data)
            except Exception as error:  # the owner raises it
                send(answers, b"1", f"{type(error).__name__}: {error}".encode())
            else:
                send(answers, b"", answer)


if __name__ == "__main__":
    main()
