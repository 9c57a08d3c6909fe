"""From sources to a fleet: find the jobs, take their rows from the index, read or judge the others.

The index keeps the rows of earlier runs: a job whose files have not changed is not read again. A row is kept without
prices, under the location of its job, with a text that changes if one of its files does.
"""

from __future__ import annotations

import io
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sm_profiler._version import __version__
from sm_profiler.config.launched import Launched
from sm_profiler.errors import ConfigError, ProfilerError, SourceError
from sm_profiler.executors import Meter, Remote, open_pool, run_tasks
from sm_profiler.fleet.analysis import ATTRIBUTES, GROUP_BY, HOST, ON_REQUEST, assemble, shared_machines, value_of
from sm_profiler.fleet.finding import (
    DATASET,
    IndexCandidate,
    Loaded,
    as_json,
    as_text,
    candidates_below,
    candidates_of,
    described,
    safe_sentence,
)
from sm_profiler.fleet.model import SCHEMA_VERSION, Fleet, FleetJob
from sm_profiler.fleet.rows import read_report, row_of, with_bill
from sm_profiler.fleet.scheduler import beyond_profiles, completed_by, numbers_of, with_states, without_profile
from sm_profiler.fleet.wording import hours
from sm_profiler.formats.bounds import inflate
from sm_profiler.formatting import percent, plural
from sm_profiler.jobs.finding import SILENT_S
from sm_profiler.metrics.ends import StoredEnd
from sm_profiler.metrics.thresholds import Threshold
from sm_profiler.printable import CUT, one_line, printable
from sm_profiler.report.prices import Prices
from sm_profiler.report.report_json import stored_end
from sm_profiler.source.opening import NoProfilerDataError, is_account, not_a_folder, split_account
from sm_profiler.storage import MissingFileError, Storage, open_storage

READERS = 8  # threads
BATCH = 32  # jobs whose small files are in memory: at most 1 GiB, however large strangers make them
SETTLED_S = 86400.0  # after the end of a job of an account; its rules have ended, too
SAVED_S = 60.0  # between two writes of the index while jobs are judged
BRIEF = Threshold(
    30.0, "seconds at most; the profile of a process that imported a framework and made no step is no training"
)
LARGE = Threshold(0.5, "of all machine time; a single job that has more of it decides every share")
LARGE_AMONG = Threshold(5, "jobs at least; of fewer, the largest often has most of the time")

NAME = "fleet-index.bin"  # compressed MessagePack: its checksum finds damage, and nothing in it names code
MAX_BYTES = 1 << 30  # of the file, and of its content

KEYS = 12  # shown, of which some job has a value
TIMES = ("created", "started", "ended")
_PLAIN = {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}

HTML, JSON, TABLE = "fleet.html", "fleet.json", "fleet.parquet"


def build_fleet(
    sources: Sequence[str],
    *,
    since: float | None = None,
    tags: Mapping[str, str] | None = None,
    group_by: Sequence[str] = GROUP_BY,
    listed: Sequence[FleetJob] | None = None,
    executor: str | Executor = "local",
    index: Storage | None = None,
    prices: Mapping[str, object] | None = None,
    progress: bool | None = None,
    now: Callable[[], float] = time.time,
) -> Fleet:
    """Read many jobs, judge those without a report, and return what they cost and lose.

    Args:
        sources: folders and s3:// URIs that hold profiles or reports at any depth, and `account:REGION`.
        since: leave out jobs that started before; seconds since the epoch.
        tags: leave out jobs without these tags.
        group_by: keys of groups: user, account, namespace, image, instance-type, git, host, job, tuning-job, or the name of a tag.
        listed: jobs of the scheduler, see `scheduler.read_listed`; those without a profile count as not judged. None: unknown.
        executor: judges jobs from their profiles; see `executors.open_pool`.
        index: where rows are kept for the next time; None: nowhere.
        prices: instance type → dollars an hour, added to the built-in table or in its place; see `report.prices.Prices`.
        progress: show progress on standard error; default: on a terminal.
        now: returns the time.

    Raises:
        ConfigError: a price or the executor's name is not valid.
        SourceError: a source cannot be listed. A job that cannot be read is a row with its error instead.
    """
    table, tags = Prices.of(prices), dict(tags or {})
    run = _Run(since, executor, index, progress, now)
    shown = []
    try:
        for source in sources:
            shown.append(safe_sentence(source))
            run.read(source)
    except KeyboardInterrupt:
        run.save()
        raise
    run.finish()
    once = completed_by(_once(run.rows), listed or ())
    trainings = [row for row in once if not _is_no_training(row)]
    missing = without_profile(listed or (), trainings) + beyond_profiles(trainings, listed or ())
    if since is not None and any(job.started is None and not job.error for job in missing):
        raise ConfigError("--since needs the column Start in the list of jobs")
    once += missing
    shown_jobs = [row for row in once if _is_shown(row, since, tags)]
    ended, disputed = with_states([row for row in shown_jobs if not _is_no_training(row)], listed or ())
    rows = [with_bill(row, table) for row in ended]
    notes = [*run.notes, *_notes(rows, table)]
    if disputed:
        row, job = disputed[0]
        notes.append(
            f"Completed either by the profile or by the scheduler's list, not by both: {plural(len(disputed), 'job')}, such as "
            f"{row.name} ({row.status} by its profile, {job.status} by the list). The worse end counts."
        )
    if brief := len(shown_jobs) - len(rows):
        notes.append(
            f"Left out, as no training: {plural(brief, 'profile')} without a step and of {BRIEF:g} s at most, such as of a check "
            "that only imports a framework."
        )
    if listed is not None:
        notes += _listed_only(rows, len({job.job_id for job in listed}))
    if tuple(group_by) != GROUP_BY:
        notes += _groupless(rows, group_by)
    if twice := len(run.rows) + len(missing) - len(once):
        notes.append(f"Found in several places and counted once: {plural(twice, 'job')}.")
    return assemble(
        rows,
        group_by=tuple(dict.fromkeys(group_by)),
        sources=shown,
        since=since,
        tags=tags,
        prices=table.origin,
        notes=notes,
        found=len(once) - brief,
    )


def _is_no_training(job: FleetJob) -> bool:
    """Return whether a row is that of a process that only imported a framework: a brief profile of system metrics."""
    brief = job.billed_by == "profile" and (job.billable_s or 0.0) <= BRIEF
    return (
        brief and job.steps is None and not job.lost_records and job.status not in {"Failed", "InProgress", "Stopped"}
    )


def _is_shown(job: FleetJob, since: float | None, tags: Mapping[str, str]) -> bool:
    started = job.started or job.created or job.ended
    if since is not None and started is not None and started < since:
        return False
    return all(
        value in (job.tags.get(key), value_of(job, key), *(job.machines if key == HOST else ()))
        for key, value in tags.items()
    )


def _once(rows: Sequence[FleetJob]) -> list[FleetJob]:
    """Return the rows of different jobs: sources may overlap, and a job has one bill.

    A job in a dataset of Parquet files is known by its numbers, which are those of its profile in JSON. Of the rows of a job,
    the one with a bill by the service is kept, and then the one that was judged.
    """
    kept: dict[str, FleetJob] = {}
    numbers: dict[tuple[object, ...], str] = {}  # → ARN
    for row in sorted(rows, key=lambda row: (not row.arn, not row.judged, row.source)):
        names = [name for name in (row.arn, row.source) if name and not name.endswith(CUT)]
        is_dataset = DATASET in row.source
        own = row.name, row.steps, row.steps_per_second, row.headline
        other = numbers.get((*own, not is_dataset))
        is_known = row.steps_per_second is not None and other is not None and not (row.arn and other)
        if not is_known and not any(name in kept for name in names):
            numbers[(*own, is_dataset)] = row.arn
            kept.update(dict.fromkeys(names or [f"row {len(kept)}"], row))
    return list({id(row): row for row in kept.values()}.values())


def _notes(rows: Sequence[FleetJob], prices: Prices) -> Iterator[str]:
    unpriced = [row for row in rows if row.price is None and not row.error]
    per_gpu = [row for row in unpriced if any(map(prices.is_per_gpu, row.types or (row.instance_type,)))]
    if per_gpu:
        yield f"Without a bill, because their price is that of a GPU, and no GPU was recorded: {plural(len(per_gpu), 'job')}."
    others = [row for row in unpriced if row not in per_gpu]
    if kinds := {row.instance_type for row in others if row.instance_type}:
        yield f"No price is known for {_some(kinds)}: give them with --prices."
    billed = {kind for row in rows if row.bill_usd is not None for kind in (row.types or (row.instance_type,))}
    if rough := {kind for kind in billed if prices.is_estimated(kind)}:
        yield f"Estimated, because no list price is known: the price of {_some(rough)}."
    largest = max(rows, key=lambda row: row.instance_hours, default=None)
    whole = sum(row.instance_hours for row in rows)
    if largest and len(rows) >= LARGE_AMONG and largest.billed_by == "profile":
        share = largest.instance_hours / whole if whole else 0.0
        if share > LARGE:
            yield f"{percent(share)} of all machine time is that of {largest.name}, by nothing but its own profile."
    again, beside = shared_machines(rows)
    if beside:
        first = " and ".join(row.title for row in beside[:2])
        yield (
            f"Counted more than once: {hours(again)} of machines on which {plural(len(beside), 'job')} ran beside others, such as "
            f"{first}. Each has the whole machine's time."
        )
    unknown = sum(not row.instance_type for row in others)
    if unknown:
        yield f"Without a bill, because the instance type is unknown: {plural(unknown, 'job')}."


def _listed_only(rows: Sequence[FleetJob], count: int) -> Iterator[str]:
    """Return notes on the jobs that left no profile, and on those that have one of a part of their nodes or of their time."""
    profiled = set[str]().union(*(numbers_of(row) for row in rows if not row.listed_only))
    parts = [row for row in rows if row.listed_only and row.job_id in profiled]
    lacking = [row for row in rows if row.listed_only and row.job_id not in profiled]
    for some, what in (
        (lacking, f"Without a profile, of the {plural(count, 'job')} in the scheduler's list: {len(lacking):,} with "),
        (
            parts,
            f"Profiled on some of their nodes or for some of their time: {plural(len(parts), 'job')}, whose rest is ",
        ),
    ):
        if some:
            first = max(some, key=lambda row: row.instance_hours)
            whole = hours(sum(row.instance_hours for row in some))
            yield f"{what}{whole} of machines, such as {first.title}{' of ' + first.user if first.user else ''}."


def _groupless(rows: Sequence[FleetJob], group_by: Iterable[str]) -> Iterator[str]:
    """Return a note for each key by which nothing can be grouped: misspelt, or recorded for no job."""
    for key in dict.fromkeys(group_by):
        if rows and not any(value_of(row, key) for row in rows):
            known = {*ATTRIBUTES, *ON_REQUEST, HOST, *(tag for row in rows for tag in row.tags)}
            ones = sorted(one for one in known if any(value_of(row, one) for row in rows))
            shown = f"; some have {', '.join(ones[:KEYS])}{' and others' if len(ones) > KEYS else ''}" if ones else ""
            yield f"Not grouped by {safe_sentence(key)}, which no job has{safe_sentence(shown)}."


def _some(names: set[str]) -> str:
    """Return the first names, as many as a line holds."""
    first, more = sorted(names)[:3], len(names) - 3
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


@attrs.define(eq=False)
class _Run:
    since: float | None
    executor: str | Executor
    index: Storage | None
    progress: bool | None
    now: Callable[[], float]
    rows: list[FleetJob] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    _old: dict[str, IndexEntry] = attrs.field(factory=dict)
    _new: dict[str, IndexEntry] = attrs.field(factory=dict)
    _sources: list[str] = attrs.field(factory=list)  # of whose jobs the index has those that were found, no others
    _changed: bool = False

    def __attrs_post_init__(self) -> None:
        if self.index is not None:
            self._old, note = read_index(self.index)
            if note:
                self.notes.append(note)
                self._changed = True

    def read(self, source: str) -> None:
        missing = []
        found, notes = self._candidates(source)
        self.notes += notes
        for candidate in found:
            entry = self._old.get(candidate.job)
            if entry is not None and self._is_current(candidate, entry):
                self._keep(candidate, entry)
            elif self.since is None or not candidate.started or candidate.started >= self.since:
                missing.append(candidate)
        judged = self._load(missing)
        if judged:
            self._judge(judged)

    def _candidates(self, source: str) -> tuple[Iterable[IndexCandidate], Sequence[str]]:
        if is_account(source):
            from sm_profiler.jobs.account import Account  # boto3 takes a third of a second to load

            account = Account.open(split_account(source)[0])
            self._sources.append(f"arn:aws:sagemaker:{account.region}:")
            return candidates_of(account, self.since), ()
        if "://" not in source and not Path(source).expanduser().is_dir():
            raise not_a_folder(source)
        # absolute: workers have a working directory of their own, and the index serves runs from any folder
        storage = open_storage(source if "://" in source else str(Path(source).expanduser().resolve()))
        self._sources.append(f"{storage.uri}\n")
        return candidates_below(storage)

    @staticmethod
    def _is_current(candidate: IndexCandidate, entry: IndexEntry) -> bool:
        if candidate.identity:
            return candidate.identity == entry.identity
        return entry.settled and candidate.modified == entry.modified

    def _keep(self, candidate: IndexCandidate, entry: IndexEntry) -> None:
        self._new[candidate.job] = entry
        self.rows.append(entry.row)

    def _add(self, candidate: IndexCandidate, row: FleetJob, identity: str) -> None:
        ended = row.ended or candidate.started
        settled = candidate.ended and bool(ended) and self.now() - ended > SETTLED_S
        self._changed = True
        self._keep(candidate, IndexEntry(identity or candidate.identity, row, candidate.modified, settled))

    def _load(self, missing: Sequence[IndexCandidate]) -> list[tuple[IndexCandidate, Loaded]]:
        """Read the small files of jobs; return those that have to be judged."""
        judged = []
        waiting = iter(missing)
        with ThreadPoolExecutor(READERS) as threads, self._meter(len(missing), READERS) as meter:
            while batch := list(islice(waiting, BATCH)):
                for candidate, loaded in zip(batch, threads.map(_loaded, batch), strict=True):
                    meter.add(1)
                    if isinstance(loaded, str):
                        self._failed(candidate, loaded)
                        continue
                    if loaded.error:
                        self._failed(candidate, loaded.error, loaded)
                        continue
                    known, now = self._old.get(candidate.job), (loaded.identity, candidate.modified)
                    if known is not None and loaded.identity and (known.identity, known.modified) == now:
                        self._add(candidate, known.row, loaded.identity)
                    elif not self._from_report(candidate, loaded):
                        judged.append((candidate, attrs.evolve(loaded, report=None, end=_stored_end(loaded))))
        return judged

    def _from_report(self, candidate: IndexCandidate, loaded: Loaded) -> bool:
        """Add the row of a job that need not be judged; return False if it has to be."""
        if loaded.report is None:
            if loaded.profile:
                return False
            self._add(candidate, _without_profile(loaded), loaded.identity)
            return True
        try:
            report = read_report(loaded.report)
        except ProfilerError as error:
            if loaded.profile:
                return False
            self._failed(candidate, one_line(error), loaded)
            return True
        outdated = report.version != __version__ or (report.job.running and loaded.changed > loaded.reported)
        if outdated and loaded.profile:
            return False
        row = row_of(report, loaded.description, attrs.evolve(loaded.place, judged="report"))
        self._add(candidate, row, loaded.identity)
        return True

    def _judge(self, jobs: Sequence[tuple[IndexCandidate, Loaded]]) -> None:
        now = self.now()
        tasks = (judge_job.encode(_Task.of(loaded, now)) for _, loaded in jobs)
        saved = time.monotonic()
        with open_pool(self.executor) as pool, self._meter(len(jobs), pool.workers) as meter:
            for result in run_tasks(pool, judge_job, tasks, waiting=meter.draw):
                candidate, loaded = jobs[result.number]
                meter.add(1)
                try:
                    if result.error:
                        raise SourceError(result.error)
                    found = judge_job.decode(result.data)
                    report = read_report(found) if found else None
                except ProfilerError as error:
                    self._failed(candidate, one_line(error), loaded)
                else:
                    if report is None:
                        row = row_of(None, loaded.description, loaded.place)
                        self.rows.append(attrs.evolve(row, status=row.status or "InProgress"))  # not kept: it goes on
                        continue
                    place = attrs.evolve(loaded.place, judged="profile", report="")
                    self._add(candidate, row_of(report, loaded.description, place), loaded.identity)
                if time.monotonic() - saved > SAVED_S:
                    self.save()
                    saved = time.monotonic()

    def _failed(self, candidate: IndexCandidate, error: str, loaded: Loaded | None = None) -> None:
        """Add the row of a job that cannot be read; it is not kept, because the reason may be gone the next time."""
        place = loaded.place if loaded else FleetJob(candidate.name, source=safe_sentence(candidate.place))
        row = row_of(None, loaded.description if loaded else {}, place)
        self.rows.append(attrs.evolve(row, error=safe_sentence(error)))

    def _meter(self, total: int, workers: int) -> Meter:
        return Meter(total, workers, noun="jobs", show=self.progress)

    def save(self) -> None:
        """Write the index; jobs that these sources hold no more are left out."""
        if self.index is None or not self._changed:
            return
        gone = () if self.since is not None else tuple(self._sources)
        others = {job: entry for job, entry in self._old.items() if not job.startswith(gone)}
        write_index(self.index, others | self._new)

    def finish(self) -> None:
        """Keep the rows for the next time."""
        self._changed = self._changed or len(self._new) != len(self._old)
        self.save()


def _without_profile(loaded: Loaded) -> FleetJob:
    """Return the row of a job that has no profile, with the reason that a report of it would name."""
    row = row_of(None, loaded.description, loaded.place)
    if not loaded.description:
        return row
    why, advice = Launched.of(loaded.description).why_no_profile()
    return attrs.evolve(
        row,
        headline=safe_sentence(f"It has no profile: {why}."),
        next_step=safe_sentence(f"{advice[0].upper()}{advice[1:]}." if advice else ""),
    )


def _stored_end(loaded: Loaded) -> StoredEnd | None:
    """Return the end of a job in its report, which is outdated; None if that is not known, or it cannot be read."""
    try:
        return stored_end(read_report(loaded.report)) if loaded.report is not None else None
    except ProfilerError:
        return None


def _loaded(candidate: IndexCandidate) -> Loaded | str:
    """Read the small files of a job; return the error if they cannot be read."""
    try:
        return candidate.load()
    except ProfilerError as error:
        return one_line(error)
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError, OSError) as error:
        return f"{type(error).__name__}: {one_line(error)}"


@attrs.frozen
class _Task:
    """A job as it is sent to a worker.

    Attributes:
        profile: location, as `source.open_source` takes it, in bytes: names of folders need not be Unicode.
        name: the job's name.
        instance_type: type of its instances; "" if unknown, or if there are several.
        description: its description as plain data; empty if there is none.
        is_new: its profile changed just now, and may have no whole file yet.
        end: its end in its report, which is outdated.
    """

    profile: bytes
    name: str
    instance_type: str
    description: dict[str, Any]
    is_new: bool = False
    end: StoredEnd | None = None

    @classmethod
    def of(cls, loaded: Loaded, now: float) -> _Task:
        job = described(loaded.place, loaded.description)
        description = as_json(loaded.description) if loaded.description else {}
        kind = "" if job.types else job.instance_type
        is_new = now - loaded.changed < SILENT_S
        return cls(os.fsencode(loaded.profile), loaded.place.name, kind, description, is_new=is_new, end=loaded.end)


@Remote
def judge_job(task: _Task) -> bytes:
    """Judge a job from its profile, and return its report.json, b"" if it has just begun; run by an executor's workers."""
    # a process that only sends tasks does without these imports
    from sm_profiler.report import JobInfo, build_report
    from sm_profiler.report.report_json import to_json
    from sm_profiler.source import open_source

    job = JobInfo(
        task.name or None, task.instance_type or None, description=task.description or None, stored_end=task.end
    )
    try:
        source = open_source(os.fsdecode(task.profile), cache=False, progress=False, processes=1)
    except NoProfilerDataError:
        if task.is_new:
            return b""
        raise
    return to_json(build_report(source, job=job)).encode()


class IndexEntry(msgspec.Struct, frozen=True):
    """A row as it was read.

    Attributes:
        identity: text that changes if a file of the job does.
        row: the row without prices.
        modified: last change of the job's description, for jobs of an account; "" otherwise.
        settled: no file of the job is expected any more.
    """

    identity: str
    row: FleetJob
    modified: str = ""
    settled: bool = False


class _Index(msgspec.Struct):
    """Content of the file; other versions of sm-profiler may reach other verdicts, and have other rows."""

    version: str
    entries: msgspec.Raw


def read_index(storage: Storage) -> tuple[dict[str, IndexEntry], str]:
    """Return the entries by job, and a sentence if there is an index that cannot be used."""
    where = printable(f"{storage.uri}/{NAME}")
    try:
        data = inflate(storage.read(NAME, 0, MAX_BYTES), MAX_BYTES)
        index = msgspec.msgpack.decode(data, type=_Index)
        if index.version != __version__:
            return {}, f"{where} was written by another version of sm-profiler: all jobs are read again."
        return msgspec.msgpack.decode(index.entries, type=dict[str, IndexEntry]), ""
    except MissingFileError:
        return {}, ""
    except (msgspec.MsgspecError, ValueError) as error:
        return {}, f"{where} is damaged and is made anew ({one_line(error)[:100]})."


def write_index(storage: Storage, entries: Mapping[str, IndexEntry]) -> None:
    """Write the entries in one piece: a simultaneous run sees the old index or the new one."""
    encoder = msgspec.msgpack.Encoder()
    # names of files need not be Unicode
    kept = {
        as_text(job): msgspec.structs.replace(entry, identity=as_text(entry.identity)) for job, entry in entries.items()
    }
    content = encoder.encode(_Index(__version__, msgspec.Raw(encoder.encode(kept))))
    storage.write(NAME, zlib.compress(content, 1))


def _arrow(kind: Any) -> pa.DataType:
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict:
        return pa.map_(_arrow(arguments[0]), _arrow(arguments[1]))
    if origin is tuple:  # of any length
        return pa.list_(_arrow(arguments[0]))
    if arguments:  # or None
        return _arrow(arguments[0])
    return pa.struct([(name, _arrow(field)) for name, field in get_type_hints(kind).items()])


SCHEMA = pa.schema(
    [
        (name, pa.timestamp("us", "UTC") if name in TIMES else _arrow(kind))
        for name, kind in get_type_hints(FleetJob).items()
    ],
    metadata={"sm_profiler.fleet": SCHEMA_VERSION},
)


def to_parquet(jobs: Sequence[FleetJob]) -> bytes:
    rows: list[dict[str, Any]] = msgspec.to_builtins(jobs)
    for row in rows:
        for name in TIMES:
            row[name] = None if row[name] is None else round(row[name] * 1e6)
    out = io.BytesIO()
    columns = [
        pa.array([list(row[name].items()) if pa.types.is_map(kind) else row[name] for row in rows], kind)
        for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True)
    ]
    pq.write_table(pa.table(columns, schema=SCHEMA), out, compression="zstd")
    return out.getvalue()


def write_fleet(fleet: Fleet, where: str | os.PathLike[str] | Storage) -> list[str]:
    """Write the files of a fleet to a folder or a storage, each in one piece.

    Args:
        where: a folder, an s3:// URI, or a storage.

    Returns:
        Keys of the files, relative to `where`.

    Raises:
        SourceError: a file cannot be written.
    """
    storage: Storage = open_storage(where) if isinstance(where, (str, os.PathLike)) else where
    storage.write(JSON, fleet.to_json())
    storage.write(TABLE, to_parquet(fleet.jobs))
    from sm_profiler.fleet.page import render_html  # templates take time to load

    storage.write(HTML, render_html(fleet, storage.uri).encode())
    return [HTML, JSON, TABLE]
