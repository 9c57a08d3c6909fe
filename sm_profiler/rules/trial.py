"""The old API's trial: a job's profile by ranges of time, waiting for data that has not arrived yet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sm_profiler.container import STOP_SIGNAL_VARIABLE
from sm_profiler.errors import SourceError
from sm_profiler.folding import LOOK_AHEAD_US, EvaluationWindow, in_timeline_order
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.event_objects import ProfilerSystemEvent, TraceEvent, system_events, trace_events
from sm_profiler.formats.layout import IGNORED_FOLDER
from sm_profiler.rules.rule import NoMoreProfilerData
from sm_profiler.rules.rule_job import stop_signalled
from sm_profiler.settings import POLL_S
from sm_profiler.source import Batch, ProfileSource, open_source


class ProfilerTrial:
    """A job's profile for rules of the old API.

    Attributes:
        name: any name.
        path: folder or s3:// URI of the profile.
        first_timestamp: time of the first file, microseconds since the epoch.
        output_dir, temp_dir: folders that a rule may write to; temp_dir is not uploaded.
    """

    def __init__(
        self,
        name: str,
        trial_dir: str,
        output_dir: str,
        *,
        follow: bool = True,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.name = name
        self.path = str(trial_dir)
        self.output_dir = str(output_dir)
        self.temp_dir = str(Path(self.output_dir, IGNORED_FOLDER))
        Path(self.temp_dir).mkdir(parents=True, exist_ok=True)
        self._sleep = sleep
        self._follow = follow
        self._poll_s: float = POLL_S.read_or_default()
        self._source = self._open()
        self.first_timestamp = self._source.first_timestamp_us or 0
        self._rows = _RowCache(self._source)

    def _open(self) -> ProfileSource:
        """Return the source once it has data."""
        while True:
            try:
                return open_source(self.path, cache=False, progress=False, left_open=False)
            except SourceError:  # a wait of ten seconds follows
                if not self._follow or stop_signalled() or STOP_SIGNAL_VARIABLE not in os.environ:
                    raise
                self._sleep(self._poll_s)

    def job_finished(self) -> bool:
        """Return True if there is an end marker, the stop signal is older than its grace time, or the job is not followed."""
        return not self._follow or self._source.finished or stop_signalled()

    def get_latest_timestamp(self) -> int:
        """Return the time up to which there is data, in microseconds.

        While the job runs, that is the earlier of the last system and the last trace file. Once it is over, it is the end
        of the last file, so that the last minute of a job is evaluated too.
        """
        self._source.refresh()
        if self.job_finished():
            return self._source.last_timestamp_us or 0
        last: dict[bool, int] = {}
        for item in self._source.files:
            last[item.is_system] = max(item.at_us, last.get(item.is_system, 0))
        return min(last.values(), default=0)

    def wait_for_data(self, end_time: float, start_time: float) -> None:
        """Wait until there is data up to end_time (microseconds).

        Raises:
            NoMoreProfilerData: the job is over, and has no data at or after start_time.
        """
        while end_time > self.get_latest_timestamp():
            if self.job_finished():
                if start_time >= self.get_latest_timestamp():
                    raise NoMoreProfilerData(end_time)
                return
            self._sleep(self._poll_s)

    def get_system_metrics(self, start_time: float, end_time: float) -> list[ProfilerSystemEvent]:
        """Return the system metrics from start_time to end_time (microseconds), both included."""
        return system_events(self.window(start_time, end_time).system)

    def get_framework_metrics(self, start_time: float, end_time: float) -> list[TraceEvent]:
        """Return the trace events that overlap a range."""
        return trace_events(self.window(start_time, end_time).events)

    def window(self, start_time: float, end_time: float) -> EvaluationWindow:
        """Return a range as columns: much faster than event objects."""
        return self._rows.window(start_time, end_time)


class _RowCache:
    """Rows of a source around the last requested range; requests in ascending order read each file once."""

    def __init__(self, source: ProfileSource) -> None:
        self._source = source
        self._batches: list[Batch] = []
        self._stream: Iterator[Batch] = iter(())
        self._read_to_us = -1
        self._dropped_to_us: int | None = None
        self._last: tuple[float, float, int] | None = None
        self._window: EvaluationWindow | None = None

    def window(self, start_us: float, end_us: float) -> EvaluationWindow:
        if self._dropped_to_us is not None and start_us - LOOK_AHEAD_US <= self._dropped_to_us:
            self._source = open_source(self._source.storage, cache=False, progress=False)  # a rule looks back
            self._batches, self._stream, self._read_to_us, self._dropped_to_us = [], iter(()), -1, None
        self._read_to(end_us + LOOK_AHEAD_US)
        requested = (start_us, end_us, len(self._batches) and self._batches[-1].minute_us)
        if self._window is not None and requested == self._last:
            return self._window
        system: list[SystemColumns] = []
        events: list[EventColumns] = []
        for batch in self._batches:
            moments_us = batch.system.timestamp * 1e6
            system.append(batch.system[(moments_us >= start_us) & (moments_us <= end_us)])
            events.append(batch.events[(batch.events.start_us <= end_us) & (batch.events.end_us >= start_us)])
        rows = SystemColumns.concat(system)
        overlapping = in_timeline_order(EventColumns.concat(events))
        self._window = EvaluationWindow(int(start_us), int(end_us), rows, overlapping)
        self._last = requested
        self._drop(start_us)
        return self._window

    def _read_to(self, needed_us: float) -> None:
        while self._read_to_us < needed_us:
            batch = next(self._stream, None)
            if batch is None:
                self._stream = iter(self._source.batches())
                batch = next(self._stream, None)
                if batch is None:
                    return
            self._batches.append(batch)
            self._read_to_us = max(self._read_to_us, batch.minute_us)

    def _drop(self, start_us: float) -> None:
        """Drop rows too old for any request that follows in ascending order."""
        kept = [
            batch
            for batch in self._batches
            if batch.minute_us >= start_us - 2 * LOOK_AHEAD_US
            or (len(batch.events) and np.any(batch.events.end_us >= start_us))
        ]
        gone = [batch.minute_us for batch in self._batches if not any(batch is other for other in kept)]
        if gone:
            self._dropped_to_us = max([self._dropped_to_us or 0, *gone])
        self._batches = kept


def create_trial(
    path: str,
    name: str | None = None,
    profiler: bool = False,  # the known signature
    output_dir: str = "/opt/ml/processing/outputs/",
    **settings: Any,
) -> ProfilerTrial:
    """Open a job's profile for rules of the old API.

    Args:
        path: folder or s3:// URI of the profile.
        name: any name; default: the last part of the path.
        profiler: must be True; the old library's trials of saved tensors have no counterpart.
        output_dir: folder that rules may write to.
        **settings: further arguments of `ProfilerTrial`.

    Raises:
        SourceError: `profiler` is False, or the profile does not exist or cannot be reached.
    """
    path = path.strip()
    if not profiler:
        raise SourceError(
            f"create_trial({path!r}) would open saved tensors, which sm-profiler does not record: pass profiler=True for "
            "a profile, or read it with sm_profiler.analysis.PandasFrame"
        )
    return ProfilerTrial(name or path.rstrip("/").rpartition("/")[2], path, output_dir, **settings)
