"""Judge one job from its raw profile, in a worker: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sm_profiler._version import __version__
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.fleet import sanitize
from sm_profiler.fleet.description import as_json, described
from sm_profiler.fleet.model import FleetJob
from sm_profiler.printable import one_line


class Task(msgspec.Struct):
    """A job as it is sent to a worker.

    Attributes:
        version: of sm-profiler, where the fleet is made.
        profile: location, as `source.open_source` takes it.
        name: the job's name.
        instance_type: type of its instances; "" if unknown.
        description: parts of its description that a report uses.
    """

    version: str
    profile: str
    name: str
    instance_type: str = ""
    description: dict[str, Any] = {}


class Answer(msgspec.Struct):
    """The job's report.json, or why there is none."""

    report: bytes = b""
    error: str = ""


_TASK, _ANSWER = msgspec.msgpack.Decoder(Task), msgspec.msgpack.Decoder(Answer)


def task_of(profile: str, name: str, description: Mapping[str, Any]) -> bytes:
    """Return the task for a job."""
    job = described(FleetJob(name), description)
    kind = "" if job.types else job.instance_type
    return msgspec.msgpack.encode(Task(__version__, profile, name, kind, as_json(description) if description else {}))


def judge_job(data: bytes) -> bytes:
    """Judge a job; run by an executor's workers."""
    task = _TASK.decode(data)
    try:
        return msgspec.msgpack.encode(Answer(report=_report(task)))
    except ProfilerError as error:
        return msgspec.msgpack.encode(Answer(error=sanitize.sentence(one_line(error))))


def answer_of(data: bytes) -> Answer:
    """Return a worker's answer.

    Raises:
        SourceError: the bytes are not such an answer.
    """
    try:
        return _ANSWER.decode(data)
    except msgspec.MsgspecError as error:
        raise SourceError(f"a worker's answer is damaged: {error}") from None


def _report(task: Task) -> bytes:
    if task.version != __version__:
        raise SourceError(
            f"sm-profiler is {task.version} where the fleet is made and {__version__} on a worker: install the same version"
        )
    # here, a process that only sends tasks does without these imports
    from sm_profiler.report import JobInfo, build_report
    from sm_profiler.report.report_json import to_json
    from sm_profiler.source import open_source

    source = open_source(task.profile, cache=False, progress=False, processes=1)
    job = JobInfo(
        name=task.name or None,
        instance_type=task.instance_type or None,
        description=task.description or None,
        finished=None,
    )
    return to_json(build_report(source, job=job)).encode()
