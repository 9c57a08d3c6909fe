"""`sm-profiler run --open`: the live page of a run, served by a separate process until the run is over."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import webbrowser
from collections.abc import Mapping

from sm_profiler.errors import ProfilerError
from sm_profiler.processes import wait_for_starter
from sm_profiler.serve.app import create_app
from sm_profiler.serve.jobs import Found, Jobs, find_shown
from sm_profiler.serve.server import Listening, listen, serve

NICENESS = 10  # the training goes first
LAST_READ_S = 20.0  # a viewer gets the end of the run, if it can be read in this time
LAST_POLL_S = 4.0  # a page that has to ask does so every three seconds
POLL_S = 0.1


def has_browser(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Return whether a browser can open a window here."""
    if platform in ("darwin", "win32"):
        return True
    return any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def address_of(listening: Listening, job: Found) -> str:
    return f"{listening.url('', None)}jobs/{job.id}"


def wait_for_viewers(jobs: Jobs, job: Found) -> None:
    """Wait until the viewers of the job have seen its end."""
    live = jobs.watched(job)
    if live is None or not (live.is_followed or live.snapshot.state == "ended"):
        return
    until = time.monotonic() + LAST_READ_S
    while live.watch().state != "ended" and time.monotonic() < until:
        time.sleep(POLL_S)
    time.sleep(LAST_POLL_S)


def stop_after_run(jobs: Jobs, job: Found) -> None:
    """End this process when standard input is closed: the run is over, or was killed."""
    wait_for_starter()
    wait_for_viewers(jobs, job)
    os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    """Serve the folder that the command line names; print the address, then nothing."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    jobs = Jobs([sys.argv[1]])
    try:
        job = next(iter(find_shown(sys.argv[1])))
        listening = listen("127.0.0.1", None)
    except StopIteration:  # the folder cannot be written to
        sys.exit(1)
    except ProfilerError as error:
        sys.exit(str(error))
    app = create_app(jobs, port=listening.port)
    print(address_of(listening, job), flush=True)  # noqa: T201 - for the process that started this one
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # a browser outlives the run, and must neither write to its streams nor keep them open
        os.dup2(nowhere, stream)
    threading.Thread(target=stop_after_run, args=(jobs, job), daemon=True).start()
    if has_browser(os.environ):
        threading.Thread(target=webbrowser.open, args=(address_of(listening, job),), daemon=True).start()
    serve(app, [listening.socket], jobs.close)


if __name__ == "__main__":
    main()
