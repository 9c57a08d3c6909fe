"""The process that `LocalSageMaker` starts: `python -m sm_profiler.local PORT FOLDER`.

It writes one line of JSON and serves until its standard input ends, at the latest with the process that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from sm_profiler.errors import ProfilerError
from sm_profiler.processes import wait_for_starter
from sm_profiler.threads import SignalEvent


def main(port: str, folder: str) -> int:
    """Serve and return the exit code."""
    ended = SignalEvent()
    ended.set_on(signal.SIGTERM, signal.SIGINT)
    try:
        from sm_profiler.local.server import Endpoint  # a missing moto is reported in one line

        endpoint = Endpoint(int(port), folder or None).start()
    except (ProfilerError, ModuleNotFoundError) as error:
        hint = "; pip install 'sm-profiler[local]'" if isinstance(error, ModuleNotFoundError) else ""
        sys.stdout.write(json.dumps({"error": f"{error}{hint}"}) + "\n")
        return 2
    try:
        threading.Thread(target=_watch_caller, args=(ended,), daemon=True).start()
        found = {"url": endpoint.url, "folder": str(endpoint.folder), "environment": endpoint.environment}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        ended.wait()
    finally:
        endpoint.stop()
    return 0


def _watch_caller(ended: SignalEvent) -> None:
    wait_for_starter()
    ended.set()


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # a thread may still be blocked in read(0)
