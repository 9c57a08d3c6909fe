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
from typing import TypeAlias

import attrs
import msgspec

from sm_profiler.diagnosis.classes import Class
from sm_profiler.errors import ProfilerError
from sm_profiler.fleet.finding import safe_sentence
from sm_profiler.fleet.model import Fleet, FleetJob
from sm_profiler.fleet.page import link
from sm_profiler.fleet.wording import Amounts, result
from sm_profiler.jobs.finding import is_remote
from sm_profiler.printable import printable
from sm_profiler.processes import start_module, wait_for
from sm_profiler.render.page import Link
from sm_profiler.serve.jobs import Found
from sm_profiler.serve.live import end_with_server
from sm_profiler.serve.pages import ENDS, FLEET, links_of
from sm_profiler.source.opening import ACCOUNT, OUTPUTS, is_account
from sm_profiler.storage import LocalStorage

NICENESS = 10
RENEWED_S = 600.0  # while it is open
LIMIT_S = 1800  # of making it; rows that were read until then are kept for the next attempt
LEAVING_S = 5.0  # in which its process ends the one that judges jobs, too
MAX_ERROR = 300
PAGES = "pages.json"  # location of a job → identifier of its live page, and when its files changed last
PRICES = "prices.json"
NUMBERS = "fleet.json"  # of the page, which names it
FACTS = "facts.json"  # identifier of a live page → what the fleet has of its job
HEALTHY = frozenset(kind.value for kind in Class if kind.is_healthy)
ELSEWHERE = "live://"  # a base for which there are no links to files of this machine
Pages: TypeAlias = Mapping[str, tuple[str, float]]
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')


class Facts(msgspec.Struct, frozen=True):
    """The part of a fleet's row that the list of jobs shows.

    Attributes:
        user, job, hosts: who ran it, what its launcher calls it, and the machines of all its attempts; "" if unknown.
        status: its end, as the service names it; "" if unknown.
        failure: why it failed; "" if it did not.
        label, headline: the result, as rows of the fleet name it.
        mood: `issue`, `healthy` or `open`.
        cost, lost: what it cost and what of that is lost, as text; "" if unknown.
        usd, machine_hours: the same cost in both units; 0 if unknown.
        started, ended: as its profile or the service has them, seconds since the epoch; None if unknown.
        changed: when the job's files had changed last as this was read, seconds since the epoch.
        is_judged: False if nothing but its user and machines is known.
    """

    user: str = ""
    job: str = ""
    hosts: tuple[str, ...] = ()
    status: str = ""
    failure: str = ""
    label: str = ""
    headline: str = ""
    mood: str = "open"
    cost: str = ""
    lost: str = ""
    usd: float = 0.0
    machine_hours: float = 0.0
    started: float | None = None
    ended: float | None = None
    changed: float = 0.0
    is_judged: bool = False

    @classmethod
    def of(cls, job: FleetJob, changed: float = 0.0) -> Facts:
        """Return those of a job: dollars if it has a bill, else hours of machines."""
        amounts = Amounts(priced=True)
        known, has_failed = bool(job.billable_s), job.status == "Failed"
        return cls(
            user=job.user,
            job=job.job_name,
            hosts=tuple(job.machines),
            status=job.status,
            failure=job.failure if has_failed else "",
            label=result(job) if job.verdict in HEALTHY else job.label or result(job),
            headline=(job.failure if has_failed else "") or job.headline,
            mood="open" if not job.is_judged else "healthy" if job.verdict in HEALTHY and not has_failed else "issue",
            cost=amounts.text(job.bill_usd, job.instance_hours) if known else "",
            lost=amounts.text(job.lost_usd, job.lost_instance_hours) if known and job.lost_s > 0 else "",
            usd=job.bill_usd or 0.0,
            machine_hours=job.instance_hours,
            started=job.started,
            ended=job.ended,
            changed=changed,
            is_judged=True,
        )

    def as_of(self, found: Found) -> Facts:
        """Return what is still true of a job: of one that has ended, and whose files have changed since, the names."""
        if found.state != "ended" or found.changed <= self.changed:
            return self
        return Facts(self.user, self.job, self.hosts, started=self.started)

    @property
    def end(self) -> str:
        """Its status as a word; "" if it has not ended, or if that is unknown."""
        return ENDS.get(self.status, "")


@attrs.define(eq=False)
class FleetPage:
    """Makes the page at the first request, and with it what the list of jobs shows of each.

    Attributes:
        sources: what is served; names of single jobs are left out.
        jobs: lists the jobs that have a live page here.
        prices: instance type → dollars an hour; see `report.prices.Prices`.
        listed: path of the scheduler's list of jobs, which is read again each time; "" without one.
        clock: for tests.
        limit_s: seconds that making the page may take.
        error: why the latest attempt failed; "" if it did not.
    """

    sources: Sequence[str]
    jobs: Callable[[], Sequence[Found]] = tuple
    prices: Mapping[str, object] | None = None
    listed: str = ""
    clock: Callable[[], float] = time.monotonic
    limit_s: int = LIMIT_S
    error: str = attrs.field(default="", init=False)
    _scratch: tempfile.TemporaryDirectory[str] | None = None
    _process: subprocess.Popen[bytes] | None = None
    _made: float | None = None
    _facts: tuple[float, dict[str, Facts]] = (0.0, {})
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def places(self) -> list[str]:
        """Return the sources that can hold several jobs."""
        return [source for source in self.sources if is_remote(source) or Path(source).is_dir()]

    def page(self) -> tuple[str, str]:
        """Return the latest page and the error of the latest attempt; "" for what there is not."""
        out = self.make()
        return _text(out / "fleet.html"), self.error

    def numbers(self) -> str:
        """Return the fleet.json of the latest page; "" before the first."""
        return _text(self.make() / NUMBERS)

    def make(self) -> Path:
        """Begin to make the page if it is time, and return its folder."""
        with self._lock:
            if self._scratch is None:
                self._scratch = tempfile.TemporaryDirectory(prefix="sm-profiler-")
                atexit.register(self.close)
            out = Path(self._scratch.name)
            if self._process is not None and self._process.poll() is not None:
                self._process.communicate()  # closes its standard input
                failed = self._process.returncode != 0
                self.error = (_text(out / "error") or "the process that reads them was killed") if failed else ""
                self._process, self._made = None, self.clock()
            if self._process is None and (self._made is None or self.clock() - self._made > RENEWED_S):
                arguments = [
                    str(out),
                    str(self.limit_s),
                    self.listed and os.path.abspath(self.listed),
                    *(source if is_remote(source) else str(Path(source).absolute()) for source in self.places()),
                ]
                (out / PAGES).write_text(json.dumps(pages_of(self.jobs())), "utf-8")
                (out / PRICES).write_text(json.dumps(self.prices), "utf-8")
                with (out / "error").open("wb") as errors:
                    self._process = start_module(
                        "sm_profiler.serve.fleet_page",
                        arguments,
                        stdin=subprocess.PIPE,
                        stderr=errors.fileno(),
                        new_session=True,
                    )
        return out

    def facts(self) -> dict[str, Facts] | None:
        """Return what the latest page has of each job, by the identifier of its live page; None before the first page."""
        with self._lock:
            if self._scratch is None:
                return None
            path = Path(self._scratch.name, FACTS)
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                written = path.stat().st_mtime
                if written != self._facts[0]:
                    self._facts = written, msgspec.json.decode(path.read_bytes(), type=dict[str, Facts])
            return self._facts[1] if self._facts[0] else None

    def close(self) -> None:
        """Stop, and remove the files."""
        with self._lock:
            if (process := self._process) is not None:
                if process.stdin is not None:
                    process.stdin.close()
                if not wait_for(process, LEAVING_S):
                    process.kill()
                    process.wait()
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


def pages_of(jobs: Iterable[Found]) -> Pages:
    return {place_of(job.where): (job.id, job.changed) for job in jobs}


def page_of(job: FleetJob, pages: Pages) -> tuple[str, float]:
    """Return the identifier of a job's live page, "" if it has none, and when its files had changed last."""
    region = job.arn.split(":")[3] if job.arn.count(":") > 3 else ""  # arn:aws:sagemaker:REGION:…
    found = pages.get(f"{ACCOUNT}{region}/{job.name}") or (pages.get(place_of(job.source)) if job.source else None)
    return found or ("", 0.0)


def address_of(job: FleetJob, pages: Pages) -> str:
    """Return the address of a job's live page, relative to the fleet's; else that of its report on the web, or ""."""
    found, _ = page_of(job, pages)
    return f"jobs/{found}" if found else link(job, ELSEWHERE)


def facts_of(fleet: Fleet, pages: Pages) -> dict[str, Facts]:
    """Return what the list of jobs shows of a fleet."""
    found = ((job, *page_of(job, pages)) for job in fleet.jobs)
    return {page: Facts.of(job, changed) for job, page, changed in found if page}


def make(out: Path, sources: Sequence[str], listed: str = "") -> None:
    """Write the page of a fleet to a folder, which also keeps the index for the next time and names the live pages."""
    from sm_profiler.fleet.building import build_fleet  # for this process only
    from sm_profiler.fleet.page import render_html
    from sm_profiler.fleet.scheduler import read_list

    storage = LocalStorage(out)
    prices = json.loads((out / PRICES).read_text("utf-8"))
    fleet = build_fleet(
        sources,
        listed=read_list(listed) if listed else None,
        executor="local:1",
        index=storage,
        prices=prices,
        progress=False,
    )
    pages = msgspec.json.decode((out / PAGES).read_bytes(), type=dict[str, tuple[str, float]])
    links = links_of("/fleet", Link(NUMBERS, NUMBERS), here=FLEET)
    page = render_html(fleet, links=links, address=partial(address_of, pages=pages))
    storage.write(NUMBERS, fleet.to_json())
    storage.write(FACTS, msgspec.json.encode(facts_of(fleet, pages)))
    storage.write("fleet.html", page.encode())


def too_long(*_: object) -> None:
    """End this process: its server may be gone, or a source may not answer.

    Raises:
        KeyboardInterrupt: always, so that the index is saved.
    """
    raise KeyboardInterrupt


def main() -> None:
    """Make the page: folder, time limit, the scheduler's list and sources are given on the command line."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(int(sys.argv[2]))
    try:
        end_with_server(partial(os.kill, os.getpid(), signal.SIGALRM))
        make(Path(sys.argv[1]), sys.argv[4:], sys.argv[3])
    except ProfilerError as error:
        sys.exit(printable(error)[:MAX_ERROR])
    except KeyboardInterrupt:
        sys.exit("reading them takes too long; what has been read is kept, and the next attempt goes on from there")


if __name__ == "__main__":
    main()
