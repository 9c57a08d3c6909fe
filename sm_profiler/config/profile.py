"""A profile as data: what is collected, in which window, and where it goes."""

from __future__ import annotations

from typing import Any

import attrs

from sm_profiler.container import DEFAULT_PROFILER_OUTPUT

DEFAULT_INTERVAL_MS = 500
DEFAULT_ROTATE_BYTES = 10_485_760
DEFAULT_ROTATE_SECONDS = 60.0
DEFAULT_FAIL_THRESHOLD = 50
API_INTERVALS_MS = (100, 200, 500, 1000, 5000, 60000)


@attrs.frozen
class Collector:
    """One of the five collectors: its name here, its name on the wire, and its default window in steps."""

    name: str
    wire: str
    start_step: int
    num_steps: int


COLLECTORS = {
    collector.name: collector
    for collector in (
        Collector("detailed", "DetailedProfilingConfig", 5, 1),
        Collector("dataloader", "DataloaderProfilingConfig", 7, 1),
        Collector("python", "PythonProfilingConfig", 9, 3),
        Collector("horovod", "HorovodProfilingConfig", 13, 1),
        Collector("smddp", "SMDataParallelProfilingConfig", 15, 1),
    )
}


@attrs.frozen
class CollectorConfig:
    """When one collector is on, and how it collects.

    Attributes:
        start_step: first global step of the window, from 0.
        num_steps: length of the window in steps.
        start_time: start of the window, seconds since the epoch.
        duration: length of the window in seconds; may be infinite.
        metrics_regex: names that the dataloader collector keeps, matched from the start and without regard to case.
        profiler: `cprofile` or `pyinstrument` (Python collector).
        timer: `total_time`, `cpu_time`, `off_cpu_time`, or `default`, which rotates through the three.
        default: the window is the collector's default one.

    Either the step fields or the time fields are set, never both.
    """

    start_step: int | None = None
    num_steps: int | None = None
    start_time: float | None = None
    duration: float | None = None
    metrics_regex: str = ".*"
    profiler: str = "cprofile"
    timer: str = "total_time"
    default: bool = False

    @property
    def by_time(self) -> bool:
        """Whether the window is one of time, not of steps."""
        return self.start_time is not None or self.duration is not None


@attrs.frozen
class Profile:
    """A profiler configuration, as the hook and the monitor need it.

    Attributes:
        s3_output_path: where the profile is uploaded, or None.
        kms_key_id: the key that our own uploads are encrypted with (`KmsKeyId`, of ours and not of the API), or None.
        interval_ms: system metrics are sampled this often.
        disabled: `DisableProfiler` is true.
        local_path: folder that the files are written under.
        rotate_max_bytes: a trace file of this size is closed.
        rotate_close_seconds: a trace file this old is closed.
        fail_threshold: so many failures to open a file switch the writer off.
        collectors: `detailed`, `dataloader`, `python`, `horovod`, `smddp` → config, only those that are on.
        parameters: `ProfilingParameters` as given.
        problems: what is wrong with it, one line each, beginning with the field's name.
        off: why the hook stays off, in one line; empty where it is on.
    """

    s3_output_path: str | None = None
    interval_ms: int = DEFAULT_INTERVAL_MS
    disabled: bool = False
    local_path: str = DEFAULT_PROFILER_OUTPUT
    rotate_max_bytes: int = DEFAULT_ROTATE_BYTES
    rotate_close_seconds: float = DEFAULT_ROTATE_SECONDS
    fail_threshold: int = DEFAULT_FAIL_THRESHOLD
    collectors: dict[str, CollectorConfig] = attrs.field(factory=dict)
    parameters: dict[str, Any] = attrs.field(factory=dict)
    problems: list[str] = attrs.field(factory=list)
    off: str = ""
    kms_key_id: str | None = None

    @property
    def hook_on(self) -> bool:
        """Whether the hook has anything to do."""
        return not self.off
