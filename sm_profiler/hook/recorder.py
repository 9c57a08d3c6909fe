"""Takes records off the training thread's hands: a background thread turns them into events and files.

The training thread only appends to a deque, which needs no lock.  Once a second the background thread empties it, reads
the process's memory, looks for a changed configuration and for a wall clock that was set, and closes files that are due.
"""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sm_profiler.formats.event_names import MEMORY, OVERHEAD
from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter, span_args
from sm_profiler.hook.guard import Guard
from sm_profiler.hook.meter import Meter
from sm_profiler.hook.steps import Record, StepTracker
from sm_profiler.hook.timebase import Timebase

FLUSH_SECONDS = 1.0
QUEUE_RECORDS = 100_000  # some 20 MB; what comes while the queue is longer is counted, not kept
BYTES_A_MINUTE = 2_000_000
MAX_SPARSE = 16  # beyond that the files hold little but steps, and those are always written
CHUNK = 256  # events between two points where the training thread may take the interpreter back
PAGE = os.sysconf("SC_PAGE_SIZE")


class Recorder:
    """The queue between the training thread and the files of this process."""

    def __init__(  # noqa: PLR0913 - each is a part that tests replace
        self,
        writer: TraceWriter,
        timebase: Timebase,
        guard: Guard,
        *,
        tracker: StepTracker,
        watch: Callable[[], None] | None = None,
        flush_seconds: float = FLUSH_SECONDS,
        memory: bool = True,
    ) -> None:
        self.writer = writer
        self.timebase = timebase
        self.guard = guard
        self.records: deque[Record] = deque()
        self.events: deque[TraceEvent] = deque()
        self.meter = Meter(tracker)
        self.tasks: deque[Callable[[], None]] = deque()  # what is too slow for the training thread
        self.overflow = 0
        self._tracker = tracker
        self._written = 0
        self._beat_at = time.monotonic()
        self._watch = watch
        self._flush_seconds = flush_seconds
        self._memory = memory
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._lock = threading.Lock()  # the writer's: held by the background thread, or by close()
        self._thread: threading.Thread | None = None
        self._said_disk = False

    def start(self) -> None:
        """Start the background thread."""
        self._thread = threading.Thread(target=self._run, name="sm-profiler", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Events that were lost: the disk did not take them, or the queue was full."""
        return self.writer.dropped + self.overflow

    def close(self) -> None:
        """Stop the thread, write what is left, finish the file."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join(timeout=10)
        with self._lock:
            self._work()
            self._drain()
            self.writer.close()
            self._report_disk()

    def flush(self) -> None:
        """Write what has been recorded so far."""
        with self._lock:
            self._drain()

    def _run(self) -> None:
        while not self._stop.wait(self._flush_seconds):
            try:
                with self._lock:
                    self._beat()
            except Exception as error:  # noqa: BLE001, PERF203 - whatever it is, the training must not see it
                self.guard.failed("recording", error)

    def _beat(self) -> None:
        if self._memory:
            self._read_memory()
        self._drain()
        if self.timebase.has_jumped():
            self.writer.finish()  # what follows counts from another start
            self.writer.start_us = self.timebase.now_us()
        self.writer.tick()
        self._report_disk()
        self._work()
        self._sparser_or_denser()
        self._write_overhead()
        if self._watch:
            self._watch()

    def _work(self) -> None:
        while self.tasks:
            task = self.tasks.popleft()
            try:
                task()
            except Exception as error:  # noqa: BLE001 - one task that fails is no reason to stop recording
                self.guard.failed("writing of a window", error)

    def _sparser_or_denser(self) -> None:
        """Hold the files to their budget: phases are recorded for every n-th step, n a power of two."""
        now = time.monotonic()
        passed, self._beat_at = now - self._beat_at, now
        a_minute = (self.writer.written - self._written) / max(passed, 0.1) * 60
        self._written = self.writer.written
        tracker = self._tracker
        if a_minute > BYTES_A_MINUTE and tracker.every < MAX_SPARSE:
            tracker.every *= 2
        elif tracker.every > 1 and a_minute < BYTES_A_MINUTE / 3 and not self.meter.is_over_budget():
            tracker.every //= 2

    def _write_overhead(self) -> None:
        overhead = self.meter.read()
        if overhead is not None:
            args = {"pid": self._pid, "phases_every": self._tracker.every, "dropped": self.dropped, **overhead}
            length = int(overhead["training_us"] + overhead["background_us"])
            start = self.timebase.now_us() - length
            self.events.append(TraceEvent(OVERHEAD, "overhead", start, length, json.dumps(args)))

    def _drain(self) -> None:
        while len(self.records) > QUEUE_RECORDS:
            self.records.popleft()
            self.overflow += 1
        while self.records or self.events:
            if self.events:
                self.writer.write([self.events.popleft() for _ in range(min(len(self.events), CHUNK))])
            records = [self.records.popleft() for _ in range(min(len(self.records), CHUNK))]
            if records and not self.writer.write_spans(records, self.timebase.offset_ns, self._pid):
                self.writer.write(self._events(records))
            if not self._stop.is_set():
                time.sleep(0.0002)  # let the training thread have the interpreter

    def _events(self, records: Iterable[Record]) -> list[TraceEvent]:
        to_us = self.timebase.to_us
        events = []
        for phase, name, start_ns, end_ns, step, more in records:
            start_us = to_us(start_ns)
            args = span_args(self._pid, step, more)
            events.append(TraceEvent(phase, name, start_us, to_us(end_ns) - start_us, args))
        return events

    def _read_memory(self) -> None:
        args = {"pid": self._pid, **memory()}
        self.events.append(TraceEvent(MEMORY, "memory", self.timebase.now_us(), 0, json.dumps(args), "i"))

    def _report_disk(self) -> None:
        if self.writer.error and not self._said_disk:
            self._said_disk = True
            self.guard.warn(f"the profile cannot be written, training goes on: {self.writer.error}")


def memory() -> dict[str, Any]:
    """Resident and peak memory of this process in bytes."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    return {"resident_bytes": resident, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
