"""Fields of a report.json that a fleet needs, read strictly: a wrong type is an error, and everything else is skipped."""

from __future__ import annotations

from typing import Any

import msgspec

from sm_profiler.errors import SourceError
from sm_profiler.printable import one_line
from sm_profiler.report.model import SCHEMA_VERSION

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
    gpus: list[dict[str, Any]] = []
    loop: list[float] | None = None
    steps_per_second: float | None = None
    profiler_overhead: float | None = None
    ranks: list[Rank] = []
    startup: list[Part] = []
    loader: Loader | None = None


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


_DECODER = msgspec.json.Decoder(ReportJson)


def read_report(data: bytes) -> ReportJson:
    """Read a report.json.

    Raises:
        SourceError: it is damaged, too large, or of another version of the format.
    """
    if len(data) > MAX_BYTES:
        raise SourceError(f"its report.json is larger than {MAX_BYTES >> 20} MB")
    try:
        found = _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise SourceError(f"its report.json cannot be read: {one_line(error)}") from None
    if found.schema_version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise SourceError(f"its report.json has version {found.schema_version[:20]}, not {SCHEMA_VERSION}")
    return found
