"""Reading of a job as its files appear: each new file is read once, and a report of all data so far costs little.

The live page and the live terminal follow a job with it, and so does `report --follow`.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from sm_profiler.config.launched import RUNNING
from sm_profiler.diagnosis.model import Report
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.folding import LATE_S, TRIM_WINDOWS, Slice, WindowCutter, others_may_follow, service_limit_us
from sm_profiler.formats.layout import END_MARKERS, SYSTEM_FOLDER, TRACE_FOLDER
from sm_profiler.identity import host_id
from sm_profiler.jobs.finding import data_changed, has_end_marker, local_folder, training_job_of
from sm_profiler.metrics.metric_folds import JobInfo, MetricFolds
from sm_profiler.metrics.scaling import kept
from sm_profiler.metrics.step_fold import StepFold
from sm_profiler.monitor.node_state import is_over_here
from sm_profiler.monitor.run_state import read_state
from sm_profiler.processes import trim_heap
from sm_profiler.report.build import report_of_folds
from sm_profiler.rules import ProfilerReport
from sm_profiler.source import ProfileSource, open_source
from sm_profiler.source.job import describe
from sm_profiler.source.open_files import copy_readable, open_files, profile_folder
from sm_profiler.source.opening import NoProfilerDataError, job_name
from sm_profiler.source.parquet.paths import FILES, STATES, folder_of, split_job
from sm_profiler.source.profile import Options
from sm_profiler.storage import LocalStorage, open_storage

FIRST_S = 2.0  # a job that is read faster is shown as a whole
MAX_OPEN_BYTES = 64 << 20  # of files that are still written
JOIN_AFTER = 32  # reads with news
ASKED_S, REFUSED_S = 60.0, 300.0  # between two requests for the status of a training job, and after a refusal

ResumeCheck: TypeAlias = Callable[[], bool]  # whether a job that has ended goes on


@attrs.define(eq=False)
class JobStatus:
    """Status of a training job in its account, requested now and then: a job that was stopped or failed may have no end marker.

    Attributes:
        where: location of the job.
        clock: for tests.
        description: the latest answer of DescribeTrainingJob; empty if the account cannot be asked, or has no such job.
    """

    where: str
    clock: Callable[[], float] = time.monotonic
    description: dict[str, Any] = attrs.field(factory=dict)
    _next: float = 0.0

    def ask(self, *, now: bool = False) -> None:
        """Ask if it is time (`now`: in any case)."""
        name, region = training_job_of(self.where)
        if not name or self.is_over or (self.clock() < self._next and not now):
            return
        self._next = self.clock() + ASKED_S
        try:
            self.description = describe(name, region=region or None)
        except ProfilerError:  # the profile is read all the same
            self._next = self.clock() + REFUSED_S

    def learn(self, description: dict[str, Any] | None) -> None:
        """Take over an answer that the caller got just now."""
        if description:
            self.description, self._next = description, self.clock() + ASKED_S

    @property
    def is_over(self) -> bool:
        """True if the job no longer runs."""
        return self.description.get("TrainingJobStatus", RUNNING[0]) not in RUNNING

    @property
    def outcome(self) -> str:
        """End of the job as the rest of a sentence that begins with its name; "" if it completed, or if that is not known."""
        reason = " ".join(str(self.description.get("FailureReason") or "").split())
        status = self.description.get("TrainingJobStatus")
        return {"Stopped": "was stopped", "Failed": f"failed: {reason}" if reason else "failed"}.get(str(status), "")


class _WithOpenFiles:
    """A source whose metadata includes that of the files that are still written."""

    def __init__(self, source: ProfileSource, opened: ProfileSource | None) -> None:
        self._source, self._opened = source, opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def metadata(self) -> list[dict[str, Any]]:
        """Metadata records of both."""
        return self._source.metadata() + (self._opened.metadata() if self._opened else [])


def goes_on(folder: Path) -> bool:
    """Return whether the run in a folder goes on: another may have been started there."""
    run = read_state(folder)
    return not (run.is_over if run is not None else has_end_marker(folder) or _is_over_here(folder))


def _is_over_here(folder: Path) -> bool:
    return is_over_here(folder, host_id(in_container=False))


def later_files_of(source: ProfileSource) -> ResumeCheck:
    """Return a function that reports whether a later attempt of a spot job has added files; it does not keep the source."""
    storage, keys, latest = source.storage, list(source.files.keys()), dict[str, str]()
    for kind in (SYSTEM_FOLDER, TRACE_FOLDER):
        latest[kind] = max((key for key in keys if key.startswith(f"{kind}/")), default="")
    return lambda: any(any(True for _ in storage.list(f"{kind}/", after or None)) for kind, after in latest.items())


def in_parquet(where: str) -> bool:
    """Return whether a location is that of a job of a data set in Parquet."""
    return split_job(where) is not None and local_folder(where) is None


def absolute(where: str) -> str:
    """Return a location for a process in another folder."""
    return str(Path(where).absolute()) if local_folder(where) or (in_parquet(where) and "://" not in where) else where


def is_over(where: str) -> bool:
    """Return whether a job is read as a whole: in Parquet, or a local run that has ended."""
    if in_parquet(where):
        return True
    folder = local_folder(where)
    if folder is None:
        return False
    try:
        run = read_state(folder)
        if run is not None:
            return run.is_over
        ended = [path.stat().st_mtime for name in END_MARKERS if (path := profile_folder(folder) / name).exists()]
    except OSError:  # the reader of the job reports it
        return False
    return bool(ended) and time.time() - max(ended) > LATE_S


def identity(where: str) -> Any:
    """Return what changes if a job that is over is to be read again.

    In Parquet, these are the lists that `compact` writes with new rows; in a folder, the times of its latest files.
    """
    split = split_job(where) if in_parquet(where) else None
    if split is None:
        folder = local_folder(where)
        return data_changed(folder) if folder else where
    root, job = split
    storage = open_storage(root if "://" in root else str(Path(root).absolute()))
    folders = [folder_of(kind, job) for kind in (FILES, STATES)]
    return [(file.key, file.size, file.etag or file.mtime) for folder in folders for file in storage.list(folder)]


def resume_check_of(where: str, seen: Any) -> ResumeCheck:
    """Return a function that reports whether a job that was read as a whole, with this identity, goes on."""
    if in_parquet(where):
        return lambda: bool(identity(where) != seen)
    folder = local_folder(where)
    return (lambda: goes_on(folder) or bool(identity(where) != seen)) if folder else bool


@attrs.define(eq=False)
class JobReader:
    """Folds a job's files as they come.

    Attributes:
        where: as `open_source` takes it.
        strict: make every lost record an error.
        job: what the profile does not contain; its name is that of the folder by default.
        parameters, compat: of the rules, as `run_rules` takes them.
        over: the job has ended and all of its files have been read.
        files: number of files that are read.
        outcome: how the run ended; "" if that is not known.
        is_intact: False after an error that left some of the data half counted.
    """

    where: str
    strict: bool = False
    job: JobInfo = attrs.field(factory=JobInfo)
    parameters: Mapping[str, object] = attrs.field(factory=dict)
    compat: Literal["service"] | None = None
    over: bool = False
    files: int = 0
    outcome: str = ""
    is_intact: bool = True
    _status: JobStatus = attrs.field(
        init=False, default=attrs.Factory(lambda self: JobStatus(self.where), takes_self=True)
    )
    _source: ProfileSource | None = None
    _state: Slice = attrs.field(init=False)
    _cutter: WindowCutter = attrs.field(init=False)
    _open: tuple[tuple[str, int, int], ...] = ()
    _unjoined: int = JOIN_AFTER
    _is_local: bool = False
    _seen: float | None = None
    _is_whole: bool = False  # the state was kept

    @property
    def folder(self) -> Path | None:
        """The folder of a local profile; None for anything else."""
        return local_folder(self.where)

    @property
    def resume_check(self) -> ResumeCheck:
        """A function that reports whether the job, which is over, goes on."""
        if self.folder is not None:
            return resume_check_of(self.where, self._seen)
        return later_files_of(self._source) if self._source is not None else bool

    def read(self, progress: Callable[[], object] = bool) -> bool:
        """Read what is new, and return whether there was anything; `progress` is called after each minute of data.

        Raises:
            NoProfilerDataError: the run ended without data, or none can follow.
            SourceError: it cannot be read.
        """
        if self._is_local and self.folder is None:
            self.is_intact = False  # what comes in its place is another job
            raise SourceError("its folder was removed")
        self._is_local = self.folder is not None
        self._seen = data_changed(self.folder) if self.folder else None  # before the files are listed
        state = read_state(self.folder) if self.folder else None
        stopped = state is not None and state.is_over  # before the files are listed: all it wrote is then there
        if stopped and state is not None:
            self.outcome = state.outcome
        if self._source is not None:
            self._status.ask()  # likewise before
        vanished = state is None and self.folder is not None and _is_over_here(self.folder)
        newly_begun = False
        if self._source is None:
            try:
                self._source = open_source(self.where, strict=self.strict, progress=False, left_open=vanished)
            except NoProfilerDataError as error:
                if stopped or vanished or error.final:
                    raise
                return self._changed_open_files()
            self._status.learn(self._source.description)
            self._begin(self._source, None if self.parameters or self.compat else kept.load(self._source))
            newly_begun = self._is_whole
        elif self._source.refresh() and self._is_whole:
            self._source.rewind()  # there are more rows than the kept state is of
            self._begin(self._source, None)
        ended = self._status.is_over
        # The markers come before the exit code of a run: the page of a run that is about to end shows both at once.
        marked = state is None and self._source.finished and not others_may_follow(self._source)
        if marked and not ended:
            self._status.ask(now=True)
        finished = stopped or marked or ended or vanished
        if finished and not self.over:
            self._source.description = self._description(self._source)
            self.outcome = self.outcome or self._status.outcome
        found = self._fold(self._source, progress, finished=finished)
        if found:
            self.files = len(self._source.files)
        newly_over = finished and not self.over
        self.over = finished
        return self._changed_open_files() or found or newly_over or newly_begun

    def _description(self, source: ProfileSource) -> dict[str, Any] | None:
        """Return the description of a job that is over; the service may take longer to notice that than the end markers."""
        found = self._status.description or source.description
        return (
            {key: value for key, value in found.items() if self._status.is_over or key != "TrainingJobStatus"}
            if found
            else None
        )

    def _begin(self, source: ProfileSource, whole: Slice | None) -> None:
        """Start with the state that is kept with a profile in Parquet, without any data if that is None."""
        self._is_whole = whole is not None
        empty, self._cutter = self._empty(source)
        self._state = whole or empty
        if whole is not None:
            self.files = len(source.files)

    def _empty(self, source: ProfileSource) -> tuple[Slice, WindowCutter]:
        """Return the folds of a job without data (the rules and those of the report), and what cuts its windows."""
        rules = ProfilerReport(compat=self.compat, **dict(self.parameters))
        cutter = WindowCutter(source.first_timestamp_us, rules.parameters.scan_interval_us)
        return Slice([rules, *MetricFolds().all()]), cutter

    def _fold(self, source: ProfileSource, progress: Callable[[], object], *, finished: bool) -> bool:
        """Fold the new data, and return whether there was any."""
        found = self.is_intact = False
        self._cutter.service_limit_us = service_limit_us(source, self._cutter.length_us)
        for count, batch in enumerate(source.batches(unsettled=finished), 1):
            found = True
            self._cutter.add(batch)
            del batch  # its rows are packed
            for window in self._cutter.ready():
                self._state.update(window)
                del window  # before the next is cut
            if not count % TRIM_WINDOWS:
                trim_heap()
            progress()
        for window in self._cutter.ready(eager=True):
            self._state.update(window)
        if found:
            self._join_steps()
        self.is_intact = True
        return found

    def _join_steps(self) -> None:
        """Keep the steps in few pieces: with a piece for each process and minute, each report would take longer than the last."""
        self._unjoined += 1
        if self._unjoined >= JOIN_AFTER:
            self._unjoined = 0
            for fold in self._state.folds:
                if isinstance(fold, StepFold):
                    fold.join()

    def report(self) -> Report:
        """Return the report of all data so far, those of files that are still written included."""
        with tempfile.TemporaryDirectory(prefix="sm-profiler-") as scratch:
            opened = None if self.over else self._opened(Path(scratch))
            if self._source is None:
                if opened is None:
                    raise NoProfilerDataError("no whole record yet")
                state, cutter = self._empty(opened)
            else:
                state, cutter = copy.deepcopy((self._state, self._cutter))
            for batch in opened.batches(unsettled=True) if opened else ():
                cutter.add(batch)
            for window in cutter.rest():
                state.update(window)
            source = opened if self._source is None else _WithOpenFiles(self._source, opened)
            is_known = (
                self.folder is not None and read_state(self.folder) is not None
            )  # else the age of its data decides
            finished = True if self.over else False if is_known else None
            job = attrs.evolve(self.job, name=self.job.name or self.name, finished=finished)
            report = report_of_folds(source, state, job, windows=self.over)
            del state, cutter
            trim_heap()  # of the copy
            return report

    @property
    def name(self) -> str:
        if self._source is not None:
            return job_name(self._source.origin)
        return job_name(str(self.folder.resolve()) if self.folder else self.where)

    def _changed_open_files(self) -> bool:
        """Return whether files that are still written have grown since the last call."""
        found = []
        if self.folder and not self.over:
            for path in open_files(profile_folder(self.folder)):
                with contextlib.suppress(OSError):
                    status = path.stat()
                    found.append((str(path), status.st_size, status.st_mtime_ns))
        before, self._open = self._open, tuple(found)
        return self._open != before and any(size for _, size, _ in found)

    def _opened(self, scratch: Path) -> ProfileSource | None:
        """Return a source of copies of the files that are still written; None if there are none."""
        sizes = {Path(path): size for path, size, _ in self._open if size}
        if not self.folder or not sizes or sum(sizes.values()) > MAX_OPEN_BYTES:
            return None
        copy_readable(profile_folder(self.folder), sizes, scratch)
        opened = ProfileSource(LocalStorage(scratch), Options(cache=False, processes=1, progress=False))
        return opened if opened.files else None
