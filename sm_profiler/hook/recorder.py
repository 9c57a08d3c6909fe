"""The recorder: a background thread that turns queued records into events and files.

The training thread only appends to a deque, which needs no lock.  Once a second the background thread empties it, reads
the process's memory, checks for a changed configuration and an adjusted wall clock, and closes files that are due.
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
from sm_profiler.hook.overhead import OverheadController
from sm_profiler.hook.steps import Record
from sm_profiler.hook.timebase import Timebase

FLUSH_SECONDS = 1.0
QUEUE_RECORDS = 100_000  # about 20 MB; beyond that the oldest records are dropped and counted
CHUNK = 256  # events between two points at which the training thread may take the interpreter back
PAGE = os.sysconf("SC_PAGE_SIZE")


class Recorder:
    """The queue between the training thread and the files of this process.

    Attributes:
        writer: writes the trace files.
        records: queue of the training thread.
        events: queue of finished events.
        tasks: work that is too slow for the training thread.
    """

    def __init__(  # noqa: PLR0913 - each is a part that tests replace
        self,
        writer: TraceWriter,
        timebase: Timebase,
        guard: Guard,
        *,
        controller: OverheadController,
        events: deque[TraceEvent],
        on_beat: Callable[[], None],
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self.writer = writer
        self.records: deque[Record] = deque()
        self.events = events
        self.tasks: deque[Callable[[], None]] = deque()
        self._timebase = timebase
        self._guard = guard
        self._controller = controller
        self._on_beat = on_beat
        self._flush_seconds = flush_seconds
        self._overflow = 0
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._lock = threading.Lock()  # of the writer: held by the background thread, or by close()
        self._trimming = threading.Lock()
        self._thread: threading.Thread | None = None
        self._disk_reported = False

    def start(self) -> None:
        """Start the background thread."""
        self._thread = threading.Thread(target=self._run, name="sm-profiler", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Number of events that were lost: the disk failed, or the queue was full."""
        return self.writer.dropped + self._overflow

    def trim(self) -> None:
        """Drop and count the oldest records of a queue that is too long; called on any thread."""
        for queue in (self.records, self.events):
            if len(queue) > QUEUE_RECORDS:
                with self._trimming:
                    while len(queue) > QUEUE_RECORDS:
                        queue.popleft()
                        self._overflow += 1

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

    def _run(self) -> None:
        while not self._stop.wait(self._flush_seconds):
            try:
                with self._lock:
                    self.beat()
            except Exception as error:  # noqa: BLE001, PERF203 - fail open
                self._guard.failed("recording", error)

    def beat(self) -> None:
        """Do one second's work."""
        self._read_memory()
        self._drain()
        if self._timebase.has_jumped():
            self.writer.finish()  # a file has one time base
            self.writer.start_us = self._timebase.now_us()
        self.writer.tick()
        self._report_disk()
        self._work()
        self._control_overhead()
        self._on_beat()

    def _work(self) -> None:
        while self.tasks:
            task = self.tasks.popleft()
            try:
                task()
            except Exception as error:  # noqa: BLE001 - one failed task must not stop recording
                self._guard.failed("writing of a window", error)

    def _control_overhead(self) -> None:
        overhead = self._controller.beat(self.writer.written)
        if overhead is not None:
            args = {"pid": self._pid, "phases_every": self._controller.every, "dropped": self.dropped, **overhead}
            length = int(overhead["training_us"] + overhead["background_us"])
            start = self._timebase.now_us() - length
            self.events.append(TraceEvent(OVERHEAD, "overhead", start, length, json.dumps(args)))

    def _drain(self) -> None:
        self.trim()
        while self.records or self.events:
            if self.events:
                self.writer.write([self.events.popleft() for _ in range(min(len(self.events), CHUNK))])
            records = [self.records.popleft() for _ in range(min(len(self.records), CHUNK))]
            if records and not self.writer.write_spans(records, self._timebase.offset_ns, self._pid):
                self.writer.write(self._to_events(records))
            if not self._stop.is_set():
                time.sleep(0.0002)  # lets the training thread have the interpreter

    def _to_events(self, records: Iterable[Record]) -> list[TraceEvent]:
        to_us = self._timebase.to_us
        events = []
        for phase, name, start_ns, end_ns, step, more in records:
            start_us = to_us(start_ns)
            args = span_args(self._pid, step, more)
            events.append(TraceEvent(phase, name, start_us, to_us(end_ns) - start_us, args))
        return events

    def _read_memory(self) -> None:
        args = {"pid": self._pid, **memory()}
        self.events.append(TraceEvent(MEMORY, "memory", self._timebase.now_us(), 0, json.dumps(args), "i"))

    def _report_disk(self) -> None:
        if self.writer.error and not self._disk_reported:
            self._disk_reported = True
            self._guard.warn(f"the profile cannot be written, training continues: {self.writer.error}")


def memory() -> dict[str, Any]:
    """Return resident and peak memory of this process in bytes."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    return {"resident_bytes": resident, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
