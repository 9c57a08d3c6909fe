"""A profile as data: what is collected, in which window, and its destination."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice
from typing import Any

import attrs

from sm_profiler.settings import FAIL_THRESHOLD, INTERVAL, LOCAL_PATH, ROTATE_BYTES, ROTATE_SECONDS

PROFILERS = ("cprofile", "pyinstrument")
TIMERS = ("total_time", "cpu_time", "off_cpu_time", "default")

MAX_NAMED = 10  # unknown keys in a job's log
MAX_PATTERN = 256  # characters; the API accepts no longer parameters
MAX_NAME = 128  # characters of a name that are compared
MAX_CHOICES = 4  # repeats and alternatives of a pattern: each multiplies the ways in which `re` can try to match a name
_SINGLE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # an escape, or a set of characters
_REPEAT = re.compile(r"(?:[*+?]|\{[0-9]*,?[0-9]*\})[?+]?")


@attrs.frozen
class CollectorSpec:
    """Name, request key and default window (in steps) of one of the five collectors."""

    name: str
    wire: str
    start_step: int
    num_steps: int


COLLECTORS = {
    collector.name: collector
    for collector in (
        CollectorSpec("detailed", "DetailedProfilingConfig", 5, 1),
        CollectorSpec("dataloader", "DataloaderProfilingConfig", 7, 1),
        CollectorSpec("python", "PythonProfilingConfig", 9, 3),
        CollectorSpec("horovod", "HorovodProfilingConfig", 13, 1),
        CollectorSpec("smddp", "SMDataParallelProfilingConfig", 15, 1),
    )
}


@attrs.frozen
class CollectorConfig:
    """Window and options of one collector.

    Either the step fields or the time fields are set, never both.

    Attributes:
        start_step: first global step of the window, counted from 0.
        num_steps: length of the window in steps.
        start_time: start of the window in seconds since the epoch.
        duration: length of the window in seconds; may be infinite.
        metrics_regex: names that the dataloader collector keeps, matched from the start and ignoring case.
        profiler: `cprofile` or `pyinstrument` (Python collector).
        timer: `total_time`, `cpu_time`, `off_cpu_time`, or `default`, which rotates through the three.
        default: the window is the collector's default window.
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
        """True if the window is a range of time, not of steps."""
        return self.start_time is not None or self.duration is not None


@attrs.frozen
class Profile:
    """A parsed profiler configuration.

    Attributes:
        s3_output_path: S3 URI that the profile is uploaded to, or None.
        interval_ms: milliseconds between two samples of the system metrics.
        disabled: `DisableProfiler` is true.
        local_path: folder that the files are written to.
        rotate_max_bytes: size at which a trace file is closed.
        rotate_close_seconds: age at which a trace file is closed.
        fail_threshold: number of failures to open a file after which the writer is switched off.
        collectors: `detailed`, `dataloader`, `python`, `horovod`, `smddp` → config; only those that are on.
        parameters: `ProfilingParameters` as given.
        problems: one line for each invalid field, starting with the field's name.
        unknown: keys that nothing reads, as `ProfilingParameters.Colour` → a suggestion; "" without one.
        off: reason why the hook stays off, in one line; empty if it is on.
        kms_key_id: KMS key for the agent's uploads (`KmsKeyId`, an extension of the API's keys), or None.
    """

    s3_output_path: str | None = None
    interval_ms: int = INTERVAL.default
    disabled: bool = False
    local_path: str = LOCAL_PATH.default
    rotate_max_bytes: int = ROTATE_BYTES.default
    rotate_close_seconds: float = ROTATE_SECONDS.default
    fail_threshold: int = FAIL_THRESHOLD.default
    collectors: dict[str, CollectorConfig] = attrs.field(factory=dict)
    parameters: dict[str, Any] = attrs.field(factory=dict)
    problems: list[str] = attrs.field(factory=list)
    off: str = ""
    kms_key_id: str | None = None
    unknown: dict[str, str] = attrs.field(factory=dict)

    @property
    def hook_on(self) -> bool:
        """True if the hook has anything to do."""
        return not self.off

    @property
    def warnings(self) -> list[str]:
        """Lines for the job's log: the problems, and one that names the unknown keys."""
        if not self.unknown:
            return self.problems
        named = [f"{key}{hint and f' ({hint})'}" for key, hint in islice(self.unknown.items(), MAX_NAMED)]
        more = f" and {len(self.unknown) - MAX_NAMED} more" if len(self.unknown) > MAX_NAMED else ""
        return [*self.problems, f"unknown keys of the configuration are ignored: {', '.join(named)}{more}"]


class NamePattern:
    """A regular expression that is matched from the start of a name, ignoring case.

    It is matched on the training thread, and `re` backtracks: `(a+)+$` takes exponential time. So groups cannot be repeated,
    and the number of repeats and of groups with alternatives is limited.

    Attributes:
        text: the expression.
    """

    def __init__(self, text: str) -> None:
        """Compile an expression in the syntax of `re`.

        Raises:
            ValueError: it is invalid, too long, or could take too long to match.
        """
        self.text = text
        if len(text) > MAX_PATTERN:
            raise ValueError(f"longer than {MAX_PATTERN} characters")
        try:
            compiled = re.compile(text, re.IGNORECASE)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"not a regular expression ({error})") from None
        if "(?#" in text:  # a comment may hide brackets from what follows
            raise ValueError("comments are not supported")
        if compiled.flags & re.VERBOSE:
            raise ValueError("the flag x is not supported")
        plain = _SINGLE.sub("x", text).replace("(?", "(")
        if re.search(r"\)[*+{]", plain):
            raise ValueError("a repeated group could take too long to match")
        if len(_REPEAT.findall(plain)) + (plain.count("(") if "|" in plain else 0) > MAX_CHOICES:
            raise ValueError(
                f"more than {MAX_CHOICES} repeats and groups with alternatives could take too long to match"
            )
        self._matches = lru_cache(maxsize=500)(lambda name: compiled.match(name) is not None)

    def matches(self, name: str) -> bool:
        """Return True if the start of a name matches; of a long name, the first 128 characters are compared."""
        return self._matches(name[:MAX_NAME])
