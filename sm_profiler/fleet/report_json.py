"""Fields of a report.json that a fleet needs, read strictly: a wrong type is an error, and everything else is skipped."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from sm_profiler.diagnosis.model import SCHEMA_VERSION
from sm_profiler.errors import SourceError
from sm_profiler.fleet.description import LONGEST_S, MAX_INSTANCES
from sm_profiler.formats.process_end import KILLED, OUT_OF_MEMORY
from sm_profiler.printable import one_line

CLOCKS_S = 86400.0  # by which clocks may differ, and what is left of a job after its last record
MAX_BYTES = 32 << 20  # of a report.json: one of 10,000 ranks has 6 MB


class Interval(msgspec.Struct):
    """An estimate with its range."""

    low: float
    value: float
    high: float


class Gain(msgspec.Struct):
    """Saving of a repair."""

    seconds: Interval | None = None


class Evidence(msgspec.Struct):
    """A measured number."""

    metric: str = ""
    value: float | str | None = None
    threshold: float | None = None
    where: str = ""
    unit: str = ""
    held: str = ""


class Location(msgspec.Struct):
    """A line of code."""

    file: str
    line: int
    function: str = ""
    share: float = 0.0


class Finding(msgspec.Struct):
    """A cause."""

    kind: str = msgspec.field(name="class")
    headline: str = ""
    next_step: str = ""
    share_of_time: float = 0.0
    share_of: str = "loop"
    confidence: str = ""
    evidence: list[Evidence] = []
    where: list[Location] = []
    gain: Gain | None = None


class Verdict(Finding):
    """The leading cause, and the others."""

    also: list[Finding] = []


class Part(msgspec.Struct):
    """A part of the start."""

    part: str
    seconds: float


class Rank(msgspec.Struct):
    """A training process."""

    name: str
    node: str = ""
    host: str = ""
    train_steps: int = 0
    loop_s: float | None = None
    seconds: dict[str, float | None] = {}
    communication_s: float | None = None
    attempts: int = 1
    interrupted_s: float | None = None


class Loader(msgspec.Struct):
    """Settings of the data loader; -1 if unknown."""

    num_workers: int = -1


class Job(msgspec.Struct):
    """The job's metrics."""

    name: str
    start: float | None = None
    end: float | None = None
    duration_s: float | None = None
    running: bool = False
    nodes: list[str] = []
    instance_type: str | None = None
    instance_types: dict[str, int] = {}
    identity: dict[str, str] = {}
    hosts: dict[str, str] = {}
    gpus: list[dict[str, Any]] = []
    loop: list[float] | None = None
    steps_per_second: float | None = None
    profiler_overhead: float | None = None
    ranks: list[Rank] = []
    startup: list[Part] = []
    loader: Loader | None = None


_REASONS = {OUT_OF_MEMORY: "ran out of memory", KILLED: "was killed"}


class End(msgspec.Struct):
    """End of the job."""

    state: str = ""
    error: str = ""
    exit_code: int | None = None
    where: str = ""

    @property
    def reason(self) -> str:
        """Reason of the failure: its exception with its place, its exit code, or who ended it; "" if it is unknown."""
        code = f"exit code {self.exit_code}" if self.exit_code else ""
        if not self.error:
            return _REASONS.get(self.state, "") or code
        notes = ", ".join(filter(None, (self.where, code if self.exit_code != 1 else "")))
        return f"{self.error} ({notes})" if notes else self.error


class Quality(msgspec.Struct):
    """Records that could not be read."""

    lost: int = 0


class ReportJson(msgspec.Struct):
    """A report.json."""

    schema_version: str
    job: Job
    verdict: Verdict
    version: str = ""
    source: str = ""
    data_quality: Quality | None = None
    end: End | None = None


_DECODER = msgspec.json.Decoder(ReportJson)


def read_report(data: bytes, now: float | None = None) -> ReportJson:
    """Read a report.json.

    Args:
        data: its bytes.
        now: the time; a job cannot be longer than from its start until then.

    Raises:
        SourceError: it is damaged, too large, of another version of the format, or has times that no job has.
    """
    if len(data) > MAX_BYTES:
        raise SourceError(f"its report.json is larger than {MAX_BYTES >> 20} MB")
    try:
        found = _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise SourceError(f"its report.json cannot be read: {one_line(error)}") from None
    if found.schema_version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise SourceError(f"its report.json has version {found.schema_version[:20]}, not {SCHEMA_VERSION}")
    if wrong := _implausible(found, time.time() if now is None else now):
        raise SourceError(f"its report.json is not plausible: {wrong}")
    return found


def _implausible(report: ReportJson, now: float) -> str:
    """Return the first number that no job has: each would decide the sums of a fleet; "" if there is none."""
    job = report.job
    longest = LONGEST_S
    if job.start is not None:
        last = job.end if job.end is not None else max(now, job.start)
        longest = min(longest, max(last - job.start, 0.0) + CLOCKS_S)
    lengths: list[tuple[str, float | None]] = [("duration", job.duration_s)]
    if job.loop and len(job.loop) == 2:  # start and end
        lengths.append(("training loop", job.loop[1] - job.loop[0]))
    for rank in job.ranks:
        lengths += [("training loop of a rank", rank.loop_s), ("downtime of a rank", rank.interrupted_s)]
    for name, seconds in lengths:
        if seconds is not None and not seconds <= longest:
            return f"its {name} of {seconds:.3g} s is longer than the job"
    if len(job.nodes) > MAX_INSTANCES:
        return f"it has {len(job.nodes):,} nodes"
    return ""
