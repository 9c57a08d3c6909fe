"""Writer of trace events: Chrome trace arrays, rotated by size, age and hour, under a `.tmp` name while open.

The writer is synchronous and belongs to one thread; the hook, which must not wait, passes events to a background thread.
Raw file descriptors are used, so that a forked child inherits no buffer that it could write a second time. No call raises
for a disk that is full, read-only or gone: events wait in a bounded backlog, and those beyond it are counted in `dropped`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import attrs

from sm_profiler.descriptors import moved_up
from sm_profiler.formats import event_names
from sm_profiler.formats.layout import PYTHON_TIMELINE, TEMPORARY, TRACE_FOLDER, TraceFile, hour_folder
from sm_profiler.formats.process_end import END, END_US

SPARE_BYTES = 4096  # blanks in each file, in whose place the process's last record fits when the disk is full
LATE_US = 60_000_000  # an event that ends earlier before now does not open a file of that time
_TAIL = 1 << 20  # bytes in which the last event begins
BACKLOG_BYTES = 4_000_000  # of events that wait for a failing disk
# Bounds on memory, in names and in characters: names may be generated, a new one for every event.
_MAX_CACHED = 10_000
_MAX_CACHED_CHARACTERS = 1_000_000
_MAX_PHASES = 1000

# A span as the hook appends it on the training thread: phase, name, start and end (`perf_counter_ns`), number of the step
# within its mode or -1, further arguments or None.  A plain tuple, because six are created per step.
Span: TypeAlias = tuple[str, str, int, int, int, dict[str, Any] | None]


class TraceEvent(NamedTuple):
    """One event to write.

    Attributes:
        phase: the trace's process name: `Forward`, `DataLoaderIter` …
        name: `Step:ModeKeys.TRAIN`, a module's class, an operator …
        start_us: microseconds since the epoch.
        duration_us: microseconds.
        args: a JSON object as text, or "".
        kind: `X`, `B`, `E` or `i`.
    """

    phase: str
    name: str
    start_us: int
    duration_us: int
    args: str = ""
    kind: str = "X"


def span_args(pid: int, step: int, more: Mapping[str, Any] | None) -> str:
    """Return the arguments of a span's event as JSON."""
    if more:
        return json.dumps({"pid": pid, **({} if step < 0 else {"step_num": str(step)}), **more})
    return f'{{"pid": {pid}}}' if step < 0 else f'{{"pid": {pid}, "step_num": "{step}"}}'


def quoted(text: str) -> str:
    return json.dumps(text)


@attrs.define(eq=False)
class TraceWriter:
    """Writer of the trace files of one process (rank) and kind.

    Attributes:
        root: the `profiler-output` folder on this machine.
        source: `<rank or pid>-algo-N`.
        kind: last part of the files' names.
        max_bytes: size at which a file is closed.
        close_seconds: age at which a file is closed.
        fail_threshold: failures in a row after which the writer gives up and counts all events as dropped.
        start_us: origin of the times in the files, microseconds since the epoch; default: each file's first event.
        metadata: returns the arguments of the `sm_profiler/process` record of each new file, repeated at its end if it has changed.
        now_us: the clock of events that are written as they happen: no file is named after an event far from it; None for
            events of an earlier time.
        age_clock: monotonic clock, seconds.
        dropped: number of lost events.
        error: description of the first failure, or "".
        written: bytes written so far.
        files: number of finished files.
    """

    root: Path = attrs.field(converter=Path)
    source: str
    kind: str = PYTHON_TIMELINE
    max_bytes: int = 10_485_760
    close_seconds: float = 60.0
    fail_threshold: int = 50
    start_us: int | None = None
    metadata: Callable[[], Mapping[str, Any]] | None = None
    now_us: Callable[[], int] | None = None
    age_clock: Callable[[], float] = time.monotonic
    dropped: int = 0
    error: str = ""
    written: int = 0
    files: int = 0
    _fd: int = attrs.field(default=-1, init=False)
    _path: Path = attrs.field(factory=Path, init=False)
    _size: int = attrs.field(default=0, init=False)
    _spare: int = attrs.field(default=0, init=False)  # where the spare blanks of the open file begins
    _events: int = attrs.field(default=0, init=False)  # in the open file
    _opened_at: float = attrs.field(default=0.0, init=False)
    _base_us: int = attrs.field(default=0, init=False)
    _end_us: int = attrs.field(default=0, init=False)
    _hour: str = attrs.field(default="", init=False)
    _described: Any = attrs.field(default=None, init=False)  # what may have changed since the open file began
    _phases: dict[str, int] = attrs.field(factory=dict, init=False)
    _announced: set[int] = attrs.field(factory=set, init=False)
    # first parts of spans in the open file, and quoted names
    _heads: dict[tuple[str, str], str] = attrs.field(factory=dict, init=False)
    _names: dict[str, str] = attrs.field(factory=dict, init=False)
    _cached: int = attrs.field(default=0, init=False)  # characters in both
    _backlog: list[TraceEvent] = attrs.field(factory=list, init=False)
    _failures: int = attrs.field(default=0, init=False)

    @property
    def _used(self) -> int:
        """Size of the open file without its spare blanks."""
        return self._size - SPARE_BYTES

    @property
    def waiting(self) -> int:
        """Number of events that a failing disk has not taken yet."""
        return len(self._backlog)

    @property
    def given_up(self) -> bool:
        """True after too many failures in a row: nothing more is written."""
        return self._failures >= self.fail_threshold

    def write(self, events: Iterable[TraceEvent]) -> None:
        """Append events in order, rotating as needed; failures of the disk raise no error."""
        todo = [*self._backlog, *events]
        self._backlog = []
        now_us = self.now_us() if self.now_us is not None else None
        while todo:
            if self.given_up:
                self.dropped += len(todo)
                return
            hour = self._hour_of(todo[0], now_us)
            count = self._same_hour(todo, hour, now_us)
            try:
                self._append(todo[:count], hour, now_us)
            except OSError as error:
                self._failed(error)
                self._keep(todo)
                return
            self._failures = 0
            todo = todo[count:]
            if self._is_full():
                self.finish()

    def write_spans(self, spans: Sequence[Span], offset_ns: int, pid: int) -> bool:
        """Append spans to the open file, at a third of the cost of `write`.

        Args:
            spans: one or more.
            offset_ns: wall clock minus the spans' clock.
            pid: the process, for the arguments.

        Returns:
            Whether the spans were written. If not, `write` must take them: no file is open, another hour begins, the
            file is nearly full, or the disk fails.
        """
        if self._fd < 0 or self._backlog or self.given_up or len(spans) > (self.max_bytes - self._used) // 64:
            return False
        if any(hour_folder((span[3] + offset_ns) // 1000) != self._hour for span in (spans[0], spans[-1])):
            return False
        heads, lines, announced = self._heads, list[str](), set[int]()
        shift, last_ns, some_args = offset_ns - self._base_us * 1000, 0, f', "args": {{"pid": {pid}, "step_num": "'
        for phase, name, start_ns, end_ns, step, more in spans:
            head = heads.get((phase, name)) or self._head(phase, name, lines, announced)
            start_us = (start_ns + shift) // 1000
            length_us = (end_ns + shift) // 1000 - start_us
            last_ns = max(last_ns, end_ns)
            if more or step < 0:
                lines.append(f'{head}{start_us}, "dur": {length_us}, "args": {span_args(pid, step, more)}}}')
            else:
                lines.append(f'{head}{start_us}, "dur": {length_us}{some_args}{step}"}}}}')
        try:
            self._put((",\n" + ",\n".join(lines)).encode())
        except OSError:
            heads.clear()
            return False
        self._announced |= announced
        self._events += len(spans)
        self._end_us = max(self._end_us, (last_ns + offset_ns) // 1000)
        if self._is_full():
            self.finish()
        return True

    def tick(self) -> None:
        """Close the open file if it is old enough or was removed, and retry the backlog."""
        if self._fd >= 0 and self._is_removed():
            self.finish()
        if self._backlog:
            self.write(())
        if self._fd >= 0 and self.age_clock() - self._opened_at >= self.close_seconds:
            self.finish()

    def finish(self) -> None:
        """Close the open file and give it its final name; the next event opens another one."""
        if self._fd < 0:
            return
        try:
            self._end_array()
            os.close(self._fd)
            self._fd = -1
            publish(self.root, self._path, self._end_us, self.source, self.kind)
            self.files += 1
        except OSError as error:
            self._failed(error)
            if self._is_removed():
                self.dropped += self._events
            if self._fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(self._fd)
                self._fd = -1

    def _end_array(self) -> None:
        """Close the array; on a full disk in the place of the last event, and with the process's record in the spare blanks."""
        try:
            self._put(f"{self._description(again=True)}\n]\n".encode())
        except OSError as error:
            self._failed(error)
            end = self._last_event()
            self.dropped += end is not None
            last = self._description().encode()
            if len(last) <= SPARE_BYTES:
                os.pwrite(self._fd, last, self._spare)
            end = self._spare + len(last[:SPARE_BYTES]) if end is None else end
            os.ftruncate(self._fd, end)
            os.pwrite(self._fd, b"\n]\n", end)

    def _last_event(self) -> int | None:
        """Return where the last event of the open file begins, behind the spare blanks; None without any."""
        begin = max(self._spare + SPARE_BYTES, self._size - _TAIL)
        with self._path.open("rb") as file:
            file.seek(begin)
            at = file.read().rfind(b",\n")
        return begin + at if at >= 0 else None

    def close(self) -> None:
        """Write the backlog and finish the open file; events that still cannot be written are counted."""
        if self._backlog:
            self.write(())
        self.dropped += len(self._backlog)
        self._backlog = []
        self.finish()

    def abandon(self) -> None:
        """Give up the open file without closing it: in a forked child it belongs to the parent."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd, self._backlog = -1, []

    def _hour_of(self, event: TraceEvent, now_us: int | None) -> str:
        return hour_folder(_file_us(event.start_us + event.duration_us, now_us))

    def _same_hour(self, events: list[TraceEvent], hour: str, now_us: int | None) -> int:
        """Return how many of the first events fit into one file: same hour, within its size."""
        room = max(self.max_bytes - self._used, 0) // 64 + 1
        if self._hour_of(events[-1], now_us) == hour:
            return min(len(events), room)
        count = 1
        while count < len(events) and self._hour_of(events[count], now_us) == hour:
            count += 1
        return min(count, room)

    def _append(self, events: list[TraceEvent], hour: str, now_us: int | None) -> None:
        if self._fd >= 0 and hour != self._hour:
            self.finish()
        if self._fd < 0:
            self._open(self.start_us or min(event.start_us for event in events), hour)
        lines, announced = list[str](), set[int]()
        for event in events:
            number = self._number(event.phase, lines, announced)
            name = self._names.get(event.name)
            if name is None:
                self._make_room(len(event.name))
                name = self._names[event.name] = quoted(event.name)
            tail = f', "args": {event.args}}}' if event.args else "}"
            length = f', "dur": {event.duration_us}' if event.kind == "X" else ""
            lines.append(
                f'{{"name": {name}, "pid": {number}, "ph": "{event.kind}", "ts": {event.start_us - self._base_us}{length}{tail}'
            )
        self._put((",\n" + ",\n".join(lines)).encode())
        self._announced |= announced
        self._events += len(events)
        self._end_us = max(self._end_us, *(_file_us(event.start_us + event.duration_us, now_us) for event in events))

    def _number(self, phase: str, lines: list[str], announced: set[int]) -> int:
        """Return the phase's number, which is announced in the file before its first event."""
        number = self._phases.setdefault(phase, len(self._phases) + 1)
        if number not in self._announced and number not in announced:
            announced.add(number)
            lines.append(metadata_line("process_name", number, f'{{"name": {quoted(phase)}}}'))
            lines.append(metadata_line("process_sort_index", number, f'{{"sort_index": {number}}}'))
        return number

    def _head(self, phase: str, name: str, lines: list[str], announced: set[int]) -> str:
        """Return the beginning of the events of a phase and name, up to their time."""
        self._make_room(len(phase) + len(name))
        number = self._number(phase, lines, announced)
        head = self._heads[phase, name] = f'{{"name": {quoted(name)}, "pid": {number}, "ph": "X", "ts": '
        return head

    def _is_removed(self) -> bool:
        """Return whether the open file is gone, possibly with its folder: what is written to it is lost."""
        try:
            self._path.lstat()
        except OSError as error:  # others come from a disk that fails
            return isinstance(error, (FileNotFoundError, NotADirectoryError))
        return False

    def _is_full(self) -> bool:
        return self._used >= self.max_bytes or len(self._announced) > 2 * _MAX_PHASES

    def _make_room(self, characters: int) -> None:
        """Keep the cached texts within bounds before another one is added."""
        self._cached += characters
        if len(self._names) + len(self._heads) >= _MAX_CACHED or self._cached > _MAX_CACHED_CHARACTERS:
            self._names.clear()
            self._heads.clear()
            self._cached = characters

    def _open(self, base_us: int, hour: str) -> None:
        folder = self.root / TRACE_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.source}_{self.kind}_{os.getpid()}_{self.files}_{time.time_ns()}.json{TEMPORARY}"
        self._path = folder / name
        self._fd = moved_up(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        with contextlib.suppress(OSError):  # locked while open, so that no other node treats it as abandoned
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._size, self._events, self._opened_at, self._hour = 0, 0, self.age_clock(), hour
        self._base_us, self._end_us, self._announced = base_us, 0, set()
        self._heads.clear()
        if len(self._phases) > _MAX_PHASES:
            self._phases.clear()  # numbers mean something within a file only
        lines = [
            metadata_line("process_name", 0, f'{{"start_time_since_epoch_in_micros": {base_us}}}'),
            metadata_line("process_sort_index", 0, '{"sort_index": 0}'),
        ]
        try:
            head = "[\n" + ",\n".join(lines) + self._description()
            self._put((head + " " * SPARE_BYTES).encode())
            self._spare = len(head.encode())
        except OSError:  # an empty file on a full disk would only mislead
            with contextlib.suppress(OSError):
                os.close(self._fd)
                self._path.unlink()
            self._fd = -1
            raise

    def _description(self, *, again: bool = False) -> str:
        """Return the record of the process as a further line, or "" if it is in the file as it is."""
        if self.metadata is None:
            return ""
        metadata = self.metadata()
        keys = ("collectors", "uses_gpu", "dropped", "left_out", "events_cut", "phases_elsewhere", END)
        changing = [metadata.get(key) for key in keys]
        if again and changing == self._described:
            return ""
        self._described = changing
        return ",\n" + metadata_line(event_names.PROCESS, 0, json.dumps(metadata))

    def _put(self, data: bytes) -> None:
        """Write all or nothing: the file is truncated to its former size after a failed write."""
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError as error:
            if error.errno == errno.EBADF:  # the script has closed it: the next event opens another one
                self._fd = -1
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
                os.lseek(self._fd, self._size, os.SEEK_SET)
            raise
        self._size += len(data)
        self.written += len(data)

    def _failed(self, error: OSError) -> None:
        self._failures += 1
        self.error = self.error or f"{error.strerror or error} ({error.filename or self.root})"

    def _keep(self, events: list[TraceEvent]) -> None:
        room = BACKLOG_BYTES // 128
        self.dropped += max(len(events) - room, 0)
        self._backlog = events[:room]


def _file_us(end_us: int, now_us: int | None) -> int:
    """Return the time after which a file with an event is named: the event's end, unless that is far from now."""
    return end_us if now_us is None or now_us - LATE_US <= end_us <= now_us else now_us


def metadata_line(name: str, number: int, args: str) -> str:
    """Return a metadata record."""
    return f'{{"name": "{name}", "ph": "M", "pid": {number}, "args": {args}}}'


def write_record(root: Path, source: str, process: Mapping[str, Any]) -> None:
    """Write a trace file with nothing but the record of a process, whose end it has.

    Raises:
        OSError: it cannot be written.
    """
    end_us, folder = int(process[END_US]), root / TRACE_FOLDER
    path = folder / f"{source}_{PYTHON_TIMELINE}_{os.getpid()}_end_{time.time_ns()}.json{TEMPORARY}"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[\n{metadata_line(event_names.PROCESS, 0, json.dumps(process))}\n]\n", "utf-8")
    publish(root, path, end_us, source, PYTHON_TIMELINE)


def publish(root: Path, path: Path, end_us: int, source: str, kind: str) -> None:
    """Give a finished file its final name, a microsecond later if the name exists."""
    while (target := root / TraceFile(end_us, source, kind).path).exists():
        end_us += 1
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
