"""The scheduler's list of jobs, from Slurm's `sacct`: it has those without a profile, which no folder shows."""

from __future__ import annotations

import csv
import io
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import attrs

from sm_profiler.errors import ConfigError
from sm_profiler.fleet.finding import MAX_INSTANCES, safe_name, safe_sentence, stem_of
from sm_profiler.fleet.model import FleetJob
from sm_profiler.fleet.rows import ended_by
from sm_profiler.metrics.thresholds import Threshold

COMMAND = "sacct -a -X -P -o JobIDRaw,JobName,User,Account,State,Start,Elapsed,NNodes,AllocTRES"
BILLED_BY = "scheduler"
OWNER = ("user", "account", "job_name", "job_id")
_ELAPSED = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,6}):)?([0-9]{1,6}):([0-9]{1,2})(?:\.[0-9]+)?")
NO_MEMORY = "OUT_OF_MEMORY"
_STATUS = {  # a time limit stops a job, as it does on the service
    "COMPLETED": "Completed", "RUNNING": "InProgress",
    **dict.fromkeys(("CANCELLED", "PREEMPTED", "TIMEOUT", "DEADLINE"), "Stopped"),
    **dict.fromkeys(("FAILED", NO_MEMORY, "NODE_FAIL", "BOOT_FAIL"), "Failed"),
}  # fmt: skip
_WORSE = ("", "InProgress", "Completed", "Stopped", "Failed")  # of two ends of a job, the later one here counts
UNRECORDED = Threshold(
    0.1, "of a job's machine time at least; what a batch script does before and after its training takes less"
)
_GPUS = re.compile(r"gres/gpu(:[^=,]+)?=([0-9]{1,6})\b")  # of all nodes: of each type, or of all types together
_NAMED = re.compile(r"slurm[-_.]?([0-9]+)")  # how the profile of a job without its own name is called


def read_list(path: str) -> list[FleetJob]:
    """Read a list of jobs in a file, as `read_listed` does its text.

    Raises:
        ConfigError: the file cannot be read, or is no such list.
    """
    try:
        text = Path(path).read_text("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return read_listed(text)


def read_listed(text: str) -> list[FleetJob]:
    """Read a list of jobs, with `|` or commas between its columns and their names in the first line.

    Jobs that never ran and the steps of jobs are left out. A job whose row cannot be read has the reason in its `error`.

    Raises:
        ConfigError: it has no column of the jobs' numbers, or none of the time that they ran.
    """
    lines = text.lstrip("\N{ZERO WIDTH NO-BREAK SPACE}").splitlines()
    first = lines[0] if lines else ""
    try:
        reader = csv.DictReader(io.StringIO("\n".join(lines)), delimiter="|" if "|" in first else ",")
        rows, names = list(reader), {name.strip() for name in reader.fieldnames or ()}
    except csv.Error as error:
        raise ConfigError(f"the list of jobs cannot be read: {error}") from error
    has = {"JobIDRaw": names & {"JobIDRaw", "JobID"}, "Elapsed": "Elapsed" in names}
    if lacks := [name for name, there in has.items() if not there]:
        noun = "column" if len(lacks) == 1 else "columns"
        raise ConfigError(f"the list of jobs lacks the {noun} {' and '.join(lacks)}. To do: write it with {COMMAND}")
    found = (_job({(key or "").strip(): str(value or "").strip() for key, value in row.items()}) for row in rows)
    return [job for job in found if job is not None]


def _job(row: Mapping[str, str]) -> FleetJob | None:
    number, elapsed = row.get("JobIDRaw") or row.get("JobID", ""), _ELAPSED.fullmatch(row["Elapsed"])
    if "." in number:
        return None
    if not number or not elapsed:
        wrong = f"its Elapsed is {row['Elapsed']!r}" if number else "it has no number"
        return FleetJob(
            f"slurm-{safe_name(number) or 'unknown'}",
            error=safe_sentence(f"its row in the list of jobs cannot be read: {wrong}"),
            started=_time(row.get("Start", "")),
            user=safe_name(row.get("User", "")),
            account=safe_name(row.get("Account", "")),
            job_name=safe_name(row.get("JobName", "")),
            job_id=safe_name(number),
            listed_only=True,
        )
    days, hours, minutes, seconds = (int(part or 0) for part in elapsed.groups())
    ran = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if ran <= 0:
        return None
    started, nodes, name = _time(row.get("Start", "")), row.get("NNodes", ""), safe_name(row.get("JobName", ""))
    state = row.get("State", "").partition(" ")[0].rstrip("+")  # "CANCELLED by 1001"
    status = _STATUS.get(state, "")
    counts = [(int(count), kind) for kind, count in _GPUS.findall(row.get("AllocTRES", ""))]
    gpus = max(sum(count for count, kind in counts if bool(kind) == of_type) for of_type in (False, True))
    return FleetJob(
        f"slurm-{safe_name(number)}",
        listed_only=True,
        status=status,
        failure=f"{'Out of memory. ' if state == NO_MEMORY else ''}Slurm's state: {state}"
        if status in {"Failed", "Stopped"}
        else "",
        started=started,
        ended=None if started is None else started + ran,
        instances=min(max(int(nodes), 1), MAX_INSTANCES) if re.fullmatch("[0-9]{1,6}", nodes) else 1,
        gpus=gpus,
        gpu_hours=gpus * ran / 3600 if gpus else None,
        user=safe_name(row.get("User", "")),
        account=safe_name(row.get("Account", "")),
        job_name=name,
        job_id=safe_name(number),
        stem=stem_of(name or "slurm"),
        week="" if started is None else time.strftime("%G-W%V", time.gmtime(started)),
        billable_s=float(ran),
        billed_by=BILLED_BY,
    )


def _time(text: str) -> float | None:
    """Return a time as sacct writes it, in the zone of this machine; None for `Unknown`."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def without_profile(listed: Sequence[FleetJob], found: Collection[FleetJob]) -> list[FleetJob]:
    """Return the listed jobs that are not among those of which a profile was found."""
    known = set[str]().union(*map(numbers_of, found))
    return [job for job in listed if job.job_id not in known]


def beyond_profiles(found: Sequence[FleetJob], listed: Sequence[FleetJob]) -> list[FleetJob]:
    """Return what jobs took beyond their profiles, by the list: nodes without one, or time that none covers.

    A row for each of them, without an end of its own: that is its profile's.
    """
    recorded, unknown = Counter[str](), set[str]()
    for row, job in zip(found, _listed_as(found, listed), strict=True):
        if job is not None and row.billable_s is not None:
            recorded[job.job_id] += round(row.billable_s * row.instances)
        elif job is not None:
            unknown.add(job.job_id)
    rest = []
    for job in listed:
        whole = (job.billable_s or 0.0) * job.instances
        beyond = whole - recorded[job.job_id]
        if job.job_id in recorded and job.job_id not in unknown and beyond >= UNRECORDED * whole > 0:
            rest.append(
                attrs.evolve(
                    job, name=f"{job.name}-unrecorded", status="", failure="", billable_s=beyond / job.instances,
                    gpu_hours=None if job.gpu_hours is None else job.gpu_hours * beyond / whole,
                )
            )  # fmt: skip
    return rest


def completed_by(found: Sequence[FleetJob], listed: Sequence[FleetJob]) -> list[FleetJob]:
    """Return the jobs with the owners, names and GPUs that the list has and their profiles lack."""
    return [
        row if job is None else _completed(row, job) for row, job in zip(found, _listed_as(found, listed), strict=True)
    ]


def _completed(row: FleetJob, job: FleetJob) -> FleetJob:
    row = attrs.evolve(row, **{name: getattr(row, name) or getattr(job, name) for name in OWNER})
    if row.gpus or not job.gpus:
        return row
    gpus = round(job.gpus / job.instances * row.instances)  # of a training on a part of its nodes, that part
    return attrs.evolve(row, gpus=gpus, gpu_hours=None if row.billable_s is None else gpus * row.billable_s / 3600)


def with_states(
    found: Sequence[FleetJob], listed: Sequence[FleetJob]
) -> tuple[list[FleetJob], list[tuple[FleetJob, FleetJob]]]:
    """Return the jobs with their ends by the scheduler, and pairs of a profile and its job of which only one completed.

    Either may have seen a part of the job only: the hook a process that completed before its node failed, the scheduler a
    script that went on after its training had failed. So the worse end counts. Of several trainings of a job, those that
    ended by themselves keep their ends.
    """
    jobs = _listed_as(found, listed)
    several = Counter(job.job_id for job in jobs if job is not None)
    rows, disputed = [], []
    for row, job in zip(found, jobs, strict=True):
        ended = row.status not in _WORSE[:2]
        if job is None or row.listed_only or row.status not in _WORSE or (ended and several[job.job_id] > 1):
            rows.append(row)
            continue
        rows.append(ended_by(row, max(row.status, job.status, key=_WORSE.index), job.failure))
        if ended and job.status not in _WORSE[:2] and (row.status == "Completed") != (job.status == "Completed"):
            disputed.append((row, job))
    return rows, disputed


def _listed_as(found: Sequence[FleetJob], listed: Sequence[FleetJob]) -> list[FleetJob | None]:
    """Return what each job is in the scheduler's list; None if it is not there."""
    known = {job.job_id: job for job in listed}
    return [next((known[number] for number in numbers_of(row) if number in known), None) for row in found]


def numbers_of(job: FleetJob) -> set[str]:
    """Return the scheduler's number of a job of which a profile was found."""
    named = _NAMED.fullmatch(job.name)
    return {number for number in (job.job_id, named[1] if named else "") if number}
