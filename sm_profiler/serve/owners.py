"""User, launcher's name and machines of a job, from the first lines of its latest files: known within seconds of its start."""

from __future__ import annotations

import contextlib
import heapq
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.fleet.finding import safe_name
from sm_profiler.formats.event_names import PROCESS
from sm_profiler.formats.layout import SYSTEM_FOLDER, TRACE_FOLDER
from sm_profiler.identity import IDENTITY_TYPE, MACHINE, machine_of
from sm_profiler.jobs.finding import Job, local_folder
from sm_profiler.source.open_files import open_files, profile_folder
from sm_profiler.storage import LocalStorage

LISTING_S = 0.5  # of a listing, at most, reads owners; the rest is read by the next
MAX_FILES = 64
HEAD = 65_536  # bytes; the record of a process is in its file's third line


@attrs.frozen
class Owner:
    """Names of a job; "" for what is unknown.

    Attributes:
        user: who ran it.
        job: what its launcher calls it, such as Slurm.
        hosts: its machines, those of all attempts that these files are of.
    """

    user: str = ""
    job: str = ""
    hosts: tuple[str, ...] = ()


NOBODY = Owner()


@attrs.define(eq=False)
class Owners:
    """Reads the owners of jobs in folders, those that are unknown first; again when files were added.

    Attributes:
        clock: for tests.
    """

    clock: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, Owner]] = attrs.field(factory=dict)

    def read(self, jobs: Iterable[Job]) -> None:
        """Read owners for LISTING_S; forget jobs that are not listed any more."""
        listed = {job.where: job for job in jobs}
        self._known = {where: known for where, known in self._known.items() if where in listed}
        until = self.clock() + LISTING_S
        for job in sorted(listed.values(), key=lambda job: (job.where in self._known, -job.changed)):
            folder = local_folder(job.where)
            if folder is None or self._known.get(job.where, (None,))[0] == job.changed:
                continue
            owner = owner_of(folder)
            if owner != NOBODY or job.state == "ended":  # a new file is empty for a moment
                self._known[job.where] = job.changed, owner
            if self.clock() > until:
                return

    def of(self, job: Job) -> Owner:
        return self._known.get(job.where, (0.0, NOBODY))[1]


def owner_of(folder: Path) -> Owner:
    """Return the names of a folder's job: what its processes recorded last, else its monitors."""
    base = profile_folder(folder)
    written = open_files(base)
    for kind, read in ((TRACE_FOLDER, _of_process), (SYSTEM_FOLDER, _of_monitor)):
        place, found = base / kind, list[dict[str, Any]]()
        with contextlib.suppress(OSError):
            hours = sorted(place.glob("[0-9]*"))
            hour = hours[-1 if kind == TRACE_FOLDER else 0 :][:1]  # a monitor names the owner as it starts
            ended = (path for folder in hour for path in folder.glob("*.json"))
            latest = heapq.nsmallest(MAX_FILES, ended) if kind == SYSTEM_FOLDER else heapq.nlargest(MAX_FILES, ended)
            for path in (*(path for path in written if path.parent == place), *latest):
                found += read(_head(base, path))
        if found:
            return _joined(found)
    return NOBODY


def _joined(found: Sequence[dict[str, Any]]) -> Owner:
    """Return the names in some records, the latest first; a job that was requeued has machines of several attempts."""

    def first(key: str) -> str:
        return next((safe_name(who[key]) for who in found if who.get(key)), "")

    hosts = (safe_name(machine_of(who, str(who.get(MACHINE) or ""))) for who in found)
    return Owner(first("user"), first("job"), tuple(sorted({host for host in hosts if host})))


def _head(base: Path, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file's first lines."""
    try:
        data = LocalStorage(base).read(str(path.relative_to(base)), 0, HEAD)
    except SourceError:  # it was renamed just now
        return
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line.strip().rstrip(b","))
            if isinstance(record, dict):
                yield record


def _of_process(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for record in records:
        about = record.get("args")
        if record.get("name") == PROCESS and isinstance(about, dict):
            who = about.get("identity")
            texts = {key: text for key, text in who.items() if isinstance(text, str)} if isinstance(who, dict) else {}
            yield {**texts, MACHINE: about.get("host")}
            return


def _of_monitor(records: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        if record.get("Type") == IDENTITY_TYPE and isinstance(record.get("Dimension"), str):
            found.setdefault(str(record.get("NodeId")), {})[str(record.get("Name"))] = record["Dimension"]
    return found.values()
