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
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sm_profiler import threads
from sm_profiler.formats.event_names import MEMORY, OVERHEAD
from sm_profiler.formats.trace_writer import Span, TraceEvent, TraceWriter, span_args
from sm_profiler.hook.clock import Timebase
from sm_profiler.hook.guard import Guard
from sm_profiler.hook.overhead import OverheadController
from sm_profiler.hook.own_work import OwnWork
from sm_profiler.hook.scheduling import children_cpu_s, waited_ns

FLUSH_SECONDS = 1.0  # between two beats, without the training's waits for a core
FIRST_SECONDS = 0.1  # until the first beat; then twice as many each time, so that short steps soon cost less
MAX_STRETCH = 2.5  # times as long with them: the watch for hangs takes twice that for the pause of a suspended process
QUEUE_RECORDS = 100_000  # about 20 MB; beyond that the oldest records are dropped and counted
DISK_SECONDS = 10.0  # close() abandons a disk that does not answer for so long
TASK_SECONDS = 60.0  # and a task that takes longer
CHUNK = 256  # events between two points at which the training thread may take the interpreter back
PAGE = os.sysconf("SC_PAGE_SIZE")
STATM = Path("/proc/self/statm")

Result = TypeVar("Result")


class Recorder:
    """The queue between the training thread and the files of this process.

    Attributes:
        writer: writes the trace files.
        records: queue of the training thread.
        events: queue of finished events.
        tasks: work that is too slow for the training thread.
    """

    def __init__(  # each is a part that tests replace
        self,
        writer: TraceWriter,
        timebase: Timebase,
        guard: Guard,
        *,
        controller: OverheadController,
        work: OwnWork,
        events: deque[TraceEvent],
        on_beat: Callable[[], None],
        flush_seconds: float = FLUSH_SECONDS,
        helpers_ns: Callable[[], int] = lambda: 0,
        complete: Callable[[list[Span]], list[Span]] = lambda records: records,
    ) -> None:
        self._complete = complete
        self._helpers_ns = helpers_ns
        self.writer = writer
        self.records: deque[Span] = deque()
        self.events = events
        self.tasks: deque[Callable[[], None]] = deque()
        self.at_end: Callable[[], None] | None = None  # once the file is complete
        self._timebase = timebase
        self._guard = guard
        self._controller = controller
        self._own = work
        self._on_beat = on_beat
        self._flush_seconds = flush_seconds
        self._pause = FIRST_SECONDS
        self._overflow = 0
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._trimming = threading.Lock()
        self._deadline: float | None = None  # of the disk operation or task that runs
        self._in_flight = 0  # events that are being written
        self._abandoned = False  # the disk hangs, and close() has given up
        self._thread: threads.Thread | None = None
        self._disk_reported = False
        self._last_beat = (0, 0)  # time, and what the training has waited for a core

    def start(self) -> None:
        """Start the background thread."""
        self._thread = threads.start(self._run, name="sm-profiler")

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

    def complete_file(self, seconds: float) -> None:
        """Finish the open file with all that is queued, and wait for that some seconds; the next records open another."""
        done = threading.Event()

        def finish() -> None:
            try:
                self._on_beat()
                self._drain()
                self.writer.finish()
            finally:
                done.set()

        self.tasks.append(finish)
        self._wake.set()
        if self._thread is not None and self._thread.is_alive():
            done.wait(seconds)

    def close(self) -> None:
        """Write what is left and finish the file, unless the disk hangs: then count what is lost and give up."""
        self._stop.set()
        self._wake.set()
        thread = self._thread
        if thread is None or thread.ident == threading.get_ident() or not thread.is_alive():
            self._finish()
            return
        thread.join(0.05)  # usually enough
        while thread.is_alive():
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._abandon()
                return
            thread.join(0.2)

    def _abandon(self) -> None:
        self._abandoned = True
        lost = self._in_flight + len(self.records) + len(self.events) + self.writer.waiting
        self._overflow += lost
        self.records.clear()
        self.events.clear()
        self._guard.warn(f"the disk does not answer, the profile ends incomplete: {self._lost()}")

    def _run(self) -> None:
        with self._own.unrecorded():
            self._guarded(self._controller.begin)
            self._stretch()
            while not self._stopped():
                self._guarded(self.beat)
                threads.hide()
            self._guarded(self._finish)

    def _stopped(self) -> bool:
        self._wake.wait(min(self._pause, self._flush_seconds) * self._stretch())
        self._pause *= 2
        self._wake.clear()
        return self._stop.is_set()

    def _stretch(self) -> float:
        """Return how many times as long a second of the training takes as it has a core for a part of the time only."""
        last, self._last_beat = self._last_beat, (time.perf_counter_ns(), waited_ns() + self._helpers_ns())
        elapsed, waited = self._last_beat[0] - last[0], self._last_beat[1] - last[1]
        return min(elapsed / max(elapsed - waited, 1), MAX_STRETCH) if elapsed > 0 else 1.0

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # fail open
            self._guard.failed("recording", error)

    def _finish(self) -> None:
        self._work()
        if self._thread is not None and self._thread.ident == threading.get_ident():  # whose CPU time is measured
            self._record_overhead(self._controller.end())
        self._drain()
        if not self._abandoned:
            self._limited(DISK_SECONDS, self.writer.close)
            self._report_disk(ended=True)
            if self.at_end is not None:
                self._limited(DISK_SECONDS, self.at_end)

    def _limited(self, seconds: float, action: Callable[[], Result]) -> Result:
        """Run an action that may hang; close() gives up once it has taken so long."""
        self._deadline = time.monotonic() + seconds
        try:
            return action()
        finally:
            self._deadline = None

    def beat(self) -> None:
        """Do one second's work."""
        self._read_memory()
        self._drain()
        if self._timebase.has_jumped():
            self._limited(DISK_SECONDS, self.writer.finish)  # a file has one time base
            self.writer.start_us = self._timebase.now_us()
        self._limited(DISK_SECONDS, self.writer.tick)
        self._report_disk()
        self._work()
        self._control_overhead()
        self._on_beat()

    def _work(self) -> None:
        while self.tasks and not self._abandoned:
            task = self.tasks.popleft()
            try:
                self._limited(TASK_SECONDS, task)
            except Exception as error:  # one failed task must not stop recording
                self._guard.failed("writing of a window", error)

    def _control_overhead(self) -> None:
        self._record_overhead(self._controller.beat(self.writer.written))

    def _record_overhead(self, overhead: Mapping[str, Any] | None) -> None:
        if overhead is not None:
            args = {"pid": self._pid, "phases_every": self._controller.every, "dropped": self.dropped, **overhead}
            length = int(overhead["training_us"] + overhead["background_us"] + overhead["windows_us"])
            start = self._timebase.now_us() - length
            self.events.append(TraceEvent(OVERHEAD, "overhead", start, length, json.dumps(args)))

    def _drain(self) -> None:
        self.trim()
        while (self.records or self.events) and not self._abandoned:
            events = [self.events.popleft() for _ in range(min(len(self.events), CHUNK))]
            records = [self.records.popleft() for _ in range(min(len(self.records), CHUNK))]
            self._in_flight = len(events) + len(records)
            self._write(self.writer.write, events)
            self._write(self._write_records, records)
            self._in_flight = 0
            if (self.records or self.events) and not self._stop.is_set():
                time.sleep(0.0002)  # lets the training thread have the interpreter

    def _write(self, write: Callable[[list[Any]], None], what: list[Any]) -> None:
        """Write a chunk; if it has something that no file can hold, it is lost and counted."""
        if not what:
            return
        try:
            self._limited(DISK_SECONDS, partial(write, what))
        except Exception as error:  # the rest of the queue is recorded
            self._overflow += len(what)
            self._guard.failed("recording", error)

    def _write_records(self, records: list[Span]) -> None:
        records = self._complete(records)
        if records and not self.writer.write_spans(records, self._timebase.offset_ns, self._pid):
            self.writer.write(self._to_events(records))

    def _to_events(self, records: Iterable[Span]) -> list[TraceEvent]:
        to_us = self._timebase.to_us
        events = []
        for phase, name, start_ns, end_ns, step, more in records:
            start_us = to_us(start_ns)
            args = span_args(self._pid, step, more)
            events.append(TraceEvent(phase, name, start_us, to_us(end_ns) - start_us, args))
        return events

    def _read_memory(self) -> None:
        args = {"pid": self._pid, **memory(self._helpers_ns())}
        self.events.append(TraceEvent(MEMORY, "memory", self._timebase.now_us(), 0, json.dumps(args), "i"))

    def _lost(self) -> str:
        return "1 event is lost" if self.dropped == 1 else f"{self.dropped} events are lost"

    def _report_disk(self, *, ended: bool = False) -> None:
        """Report the first failure; at the end, when no file can hold the number any more, also how much is lost."""
        lost = self._lost() if ended and self.writer.dropped else ""
        if self.writer.error and not self._disk_reported:
            self._disk_reported = True
            text = f"the profile cannot be written, training continues: {self.writer.error}"
            self._guard.warn(f"{text}; {lost}" if lost else text)
        elif lost:
            self._guard.warn(f"the profile ends incomplete: {lost}")


def resident_bytes() -> int:
    """Return this process's resident memory; 0 if the kernel's files cannot be read, as in a sandbox without /proc."""
    try:
        with open(STATM, "rb", buffering=0) as pages:  # a fifth of the time of Path.read_text
            return int(pages.read(256).split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return 0


def memory(helpers_ns: int = 0) -> dict[str, Any]:
    """Return resident (if known) and peak memory of this process in bytes, and what it used so far.

    That is its CPU seconds and those of its children, its page faults from disk, and the seconds that its main thread, or those it waited for,
    had no core.
    """
    resident, usage = resident_bytes(), resource.getrusage(resource.RUSAGE_SELF)
    return {
        **({"resident_bytes": resident} if resident else {}),
        "peak_bytes": usage.ru_maxrss * 1024,
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "children_s": round(children_cpu_s(), 2),
        "major_faults": usage.ru_majflt,
        "waited_s": round((waited_ns() + helpers_ns) / 1e9, 3),
    }
