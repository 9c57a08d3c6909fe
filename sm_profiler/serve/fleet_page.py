"""The fleet's page of what is served, made now and then by a separate process with low priority."""

from __future__ import annotations

import atexit
import contextlib
import html
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from posixpath import basename, dirname

import attrs

from sm_profiler.errors import ProfilerError
from sm_profiler.fleet.finding import safe_sentence
from sm_profiler.fleet.model import FleetJob
from sm_profiler.fleet.page import link
from sm_profiler.jobs.finding import is_remote
from sm_profiler.printable import printable
from sm_profiler.processes import start_module
from sm_profiler.serve.jobs import Found
from sm_profiler.serve.pages import FLEET, links_of
from sm_profiler.source.opening import ACCOUNT, OUTPUTS, is_account
from sm_profiler.storage import LocalStorage

NICENESS = 10
RENEWED_S = 600.0  # while it is open
LIMIT_S = 1800  # of making it; rows that were read until then are kept for the next attempt
MAX_ERROR = 300
PAGES = "pages.json"  # location of a job → identifier of its live page
ELSEWHERE = "live://"  # a base for which there are no links to files of this machine
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')


@attrs.define(eq=False)
class FleetPage:
    """Makes the page at the first request.

    Attributes:
        sources: what is served; names of single jobs are left out.
        jobs: lists the jobs that have a live page here.
        clock: for tests.
        limit_s: seconds that making the page may take.
    """

    sources: Sequence[str]
    jobs: Callable[[], Sequence[Found]] = tuple
    clock: Callable[[], float] = time.monotonic
    limit_s: int = LIMIT_S
    _scratch: tempfile.TemporaryDirectory[str] | None = None
    _process: subprocess.Popen[bytes] | None = None
    _made: float | None = None
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def places(self) -> list[str]:
        """Return the sources that can hold several jobs."""
        return [source for source in self.sources if is_remote(source) or Path(source).is_dir()]

    def page(self) -> tuple[str, str]:
        """Return the latest page and the error of the latest attempt; "" for what there is not."""
        with self._lock:
            if self._scratch is None:
                self._scratch = tempfile.TemporaryDirectory(prefix="sm-profiler-")
                atexit.register(self.close)
            out = Path(self._scratch.name)
            if self._process is not None and self._process.poll() is not None:
                self._process, self._made = None, self.clock()
            if self._process is None and (self._made is None or self.clock() - self._made > RENEWED_S):
                arguments = [
                    str(out),
                    str(self.limit_s),
                    *(source if is_remote(source) else str(Path(source).absolute()) for source in self.places()),
                ]
                (out / PAGES).write_text(json.dumps(pages_of(self.jobs())), "utf-8")
                with (out / "error").open("wb") as errors:
                    self._process = start_module(
                        "sm_profiler.serve.fleet_page", arguments, stderr=errors.fileno(), new_session=True
                    )
        return _text(out / "fleet.html"), _text(out / "error") if self._process is None else ""

    def close(self) -> None:
        """Stop, and remove the files."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None
            if self._scratch is not None:
                self._scratch.cleanup()
                self._scratch = None


def policy_of(page: str) -> str:
    """Return the content security policy that a page contains."""
    found = _POLICY.search(page)
    return html.unescape(found[1]) if found else "default-src 'none'"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def place_of(where: str) -> str:
    """Return a location of a job as rows of a fleet write it: absolute, without the folder of the profile in it."""
    if is_account(where):
        return where
    place = where.rstrip("/") if "://" in where else os.path.abspath(where)  # `..` is taken out, links stay
    while basename(place) in OUTPUTS:
        place = dirname(place)
    return safe_sentence(place)


def pages_of(jobs: Iterable[Found]) -> dict[str, str]:
    return {place_of(job.where): job.id for job in jobs}


def address_of(job: FleetJob, pages: Mapping[str, str]) -> str:
    """Return the address of a job's live page, relative to the fleet's; else that of its report on the web, or ""."""
    region = job.arn.split(":")[3] if job.arn.count(":") > 3 else ""  # arn:aws:sagemaker:REGION:…
    found = pages.get(f"{ACCOUNT}{region}/{job.name}") or (job.source and pages.get(place_of(job.source)))
    return f"jobs/{found}" if found else link(job, ELSEWHERE)


def make(out: Path, sources: Sequence[str]) -> None:
    """Write the page of a fleet to a folder, which also keeps the index for the next time and names the live pages."""
    from sm_profiler.fleet.building import build_fleet  # for this process only
    from sm_profiler.fleet.page import render_html

    storage = LocalStorage(out)
    fleet = build_fleet(sources, executor="local:1", index=storage, progress=False)
    pages: Mapping[str, str] = json.loads((out / PAGES).read_text("utf-8"))
    page = render_html(fleet, links=links_of("/fleet", here=FLEET), address=partial(address_of, pages=pages))
    storage.write("fleet.html", page.encode())


def too_long(*_: object) -> None:
    """End this process: its server may be gone, or a source may not answer.

    Raises:
        KeyboardInterrupt: always, so that the index is saved.
    """
    raise KeyboardInterrupt


def main() -> None:
    """Make the page: folder, time limit and sources are given on the command line."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(int(sys.argv[2]))
    try:
        make(Path(sys.argv[1]), sys.argv[3:])
    except ProfilerError as error:
        sys.exit(printable(error)[:MAX_ERROR])
    except KeyboardInterrupt:
        sys.exit("reading them takes too long; what has been read is kept, and the next attempt goes on from there")


if __name__ == "__main__":
    main()
