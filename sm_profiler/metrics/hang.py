"""Trainings that stopped: which processes wait, where, and the stacks of their threads, as the hook recorded them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np

from sm_profiler.formats.event_names import HANG
from sm_profiler.formats.process_end import bounded_line
from sm_profiler.formatting import clean, is_library
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.attempts import process_name
from sm_profiler.metrics.job_metrics import JobMetrics
from sm_profiler.metrics.record_fold import Record, record_of

# What the innermost frames wait for: ends of file names, the more specific ones first.
WAITS = (
    (("torch/distributed/", "horovod/", "deepspeed/comm/", "jax/_src/distributed.py"), "the other ranks"),
    (("torch/utils/data/",), "a loader's worker"),
    (("subprocess.py",), "a child process"),
    (("multiprocessing/queues.py", "/queue.py"), "a queue"),
    (("multiprocessing/synchronize.py", "threading.py"), "a lock or a thread"),
    (("multiprocessing/popen_fork.py", "multiprocessing/process.py"), "a child process"),
    (("ssl.py", "socket.py", "http/client.py", "urllib/request.py"), "the network"),
    (("multiprocessing/connection.py", "selectors.py"), "another process"),
)
RANKS = "the other ranks"
OF_A_LOOP = (RANKS, "a loader's worker", "a queue")  # a loop waits for these; what follows a loop waits for the others
MAX_STACKS, MAX_CHILDREN = 512, 128  # in report.json
MAX_TEXT = 200_000  # characters of an argument in a timeline
SHOWN = ("state", "waited", "cpu", "same", "error")  # arguments of the event besides the stacks
Frame = tuple[str, int, str]


@attrs.frozen
class Stack:
    """The stack of a thread; frames from the innermost outwards."""

    rank: str
    thread: str
    training: bool
    frames: tuple[Frame, ...]

    @property
    def own(self) -> Frame | None:
        """The innermost line of the script; None if only libraries run."""
        return next((frame for frame in self.frames if not is_library(frame[0])), None)


@attrs.frozen
class DeadThread:
    """A thread that ended with an exception while its process went on.

    Attributes:
        name: its name.
        error: the exception's type and the first line of its message.
        where: the innermost line of the script that the exception passed, as `train.py:12`; "" if unknown.
        before: seconds from its end to the process's last progress; negative if it ended after that.
    """

    name: str
    error: str
    where: str
    before: float

    def __str__(self) -> str:
        return f"{self.error}{f' ({self.where})' if self.where else ''}"


@attrs.frozen
class Stopped:
    """A process whose steps stopped.

    Attributes:
        name: `algo-1-0`.
        record: its latest record with stacks; `seconds` is how long it has not moved, up to the end of its recording.
        stacks: of its threads, that of the training first.
        waits_for: what its training thread waits for, "" if the stack does not show it.
        dead: its threads that ended with an exception, the latest first.
    """

    name: str
    record: Record
    stacks: tuple[Stack, ...]
    waits_for: str
    dead: tuple[DeadThread, ...] = ()

    @property
    def place(self) -> Frame | None:
        """The innermost line of the script in its training thread; None if there is no stack."""
        if not self.stacks:
            return None
        return self.stacks[0].own or self.stacks[0].frames[0]

    @property
    def line(self) -> str:
        """That line as `train.py:83`; "" if it is unknown."""
        return f"{self.place[0].rpartition('/')[2]}:{self.place[1]}" if self.place else ""

    @property
    def waits_for_ranks(self) -> bool:
        """True if it waits inside a collective."""
        return self.waits_for == RANKS

    @property
    def before_first_step(self) -> bool:
        """True if it has not begun a step."""
        return self.record.step < 0

    @property
    def is_sure(self) -> bool:
        """True if it was at one place all the time, or used hardly any CPU time."""
        return bool(self.record.args.get("same")) or self.number("cpu") <= thresholds.HANG_CPU

    def number(self, key: str) -> float:
        """Return a number of its record; 0 if there is none."""
        return _number(self.record, key)


@attrs.frozen
class Hang:
    """Processes whose steps stopped and did not go on.

    Attributes:
        stopped: the processes; those that the others wait for come first.
        gone: ranks that ended while others wait for them.
    """

    stopped: tuple[Stopped, ...]
    gone: tuple[str, ...] = ()

    @property
    def first(self) -> Stopped:
        """The process to look at first."""
        return self.stopped[0]

    @property
    def seconds(self) -> float:
        """Time without a step, of the process that has not moved for longest."""
        return max(one.record.seconds for one in self.stopped)

    @property
    def disagree(self) -> bool:
        """True if all processes wait for each other, at different lines."""
        places = {one.place[:2] for one in self.stopped if one.place is not None}
        return all(one.waits_for_ranks for one in self.stopped) and len(places) > 1

    @property
    def before_first_step(self) -> bool:
        """True if no step was begun by any of them."""
        return all(one.before_first_step for one in self.stopped)

    @property
    def kind(self) -> str:
        """Cause of the hang: `rank_ended`, `collective_mismatch`, `collective`, `rank_elsewhere` or `process`."""
        if self.gone:
            return "rank_ended"
        if self.disagree:
            return "collective_mismatch"
        if self.first.waits_for_ranks:
            return "collective"
        return "rank_elsewhere" if any(one.waits_for_ranks for one in self.stopped) else "process"

    @property
    def ranks(self) -> tuple[str, ...]:
        """The processes that cause it: those that ended, that are elsewhere, or else all that wait."""
        elsewhere = tuple(one.name for one in self.stopped if not one.waits_for_ranks)
        return self.gone or elsewhere or tuple(one.name for one in self.stopped)

    def stacks(self) -> list[Stack]:
        """Return the stacks of all processes: those of the training threads, then those that run the script, then others."""
        every = [stack for one in self.stopped for stack in one.stacks]
        return sorted(every, key=lambda stack: (not stack.training, stack.own is None))

    @property
    def children(self) -> list[dict[str, str]]:
        """Child processes of all of them, as the kernel reports their state."""
        return [{"rank": one.name, **child} for one in self.stopped for child in _children(one.record)]


def hang_arguments(text: str) -> dict[str, int | float | str]:
    """Return the arguments of a hang's event as a timeline shows them: each stack and each child process as text."""
    record = record_of("", 0.0, 0.0, -1, "", text)
    shown: dict[str, int | float | str] = {
        key: value for key in SHOWN if isinstance(value := record.args.get(key), (int, float, str))
    }
    stacks = [
        "\n".join((f"{one.thread}:", *(f"  {file}:{line} in {function}" for file, line, function in one.frames)))
        for one in _stacks(record, "")
    ]
    children = [
        f"{one['name']} ({one['pid']}): state {one['state']}, waits in {one['waits_in']}" for one in _children(record)
    ]
    dead = [f"{one.name}: {one}" for one in _dead(record)]
    texts = {"threads": "\n".join(stacks), "children": "\n".join(children), "dead": "\n".join(dead)}
    return shown | {key: clean(value)[:MAX_TEXT] for key, value in texts.items() if value}


def find_hang(metrics: JobMetrics) -> Hang | None:
    """Return the processes whose steps stopped and did not go on; None if there are none."""
    records = metrics.records.get(HANG)
    if records is None:
        return None
    known = {*(rank.name for rank in metrics.ranks), *map(process_name, metrics.metadata), *records.seconds}
    found = (_stopped(name, records.of(name), metrics, several=len(known) > 1) for name in records.seconds)
    stopped = [one for one in found if one is not None]
    if not stopped:
        return None
    common = Counter(one.line for one in stopped)
    stopped.sort(key=lambda one: (one.waits_for_ranks, common[one.line], one.record.step, one.name))
    names = {one.name for one in stopped}
    gone = tuple(rank.name for rank in metrics.ranks if rank.name not in names) if stopped[0].waits_for_ranks else ()
    return Hang(tuple(stopped), gone)


def _stopped(name: str, records: Sequence[Record], metrics: JobMetrics, *, several: bool) -> Stopped | None:
    """Return what is known of a process whose latest record is that its steps stopped."""
    with_stacks = [record for record in records if record.args.get("threads")]
    if not with_stacks:
        return None
    last = max(records, key=lambda record: (record.end, record.args.get("state") != "hanging"))
    record = max(with_stacks, key=lambda record: record.end)
    state, waiting = last.args.get("state"), _number(record, "cpu") <= thresholds.HANG_CPU
    if state == "resumed" or (state == "hanging" and not waiting and not record.args.get("same")):
        return None  # it went on, or it computes in changing places
    stacks = tuple(_stacks(record, name))
    waits_for = _waits_for(stacks[0].frames if stacks else (), several=several)
    never_stepped = record.step < 0 and not metrics.ranks  # what follows no loop was waited for in vain
    if state == "ended" and not last.args.get("error") and not never_stepped:
        idle = bool(record.args.get("same")) and waiting
        if not idle or waits_for not in OF_A_LOOP:
            return None  # work after the loop
    end = last.end if state == "ended" else _end_of(name, last, metrics)
    seconds = max(end - record.start, 0.0)
    return Stopped(name, attrs.evolve(record, seconds=seconds), stacks, waits_for, tuple(_dead(record)))


def _end_of(name: str, last: Record, metrics: JobMetrics) -> float:
    """Return the end of a process's recording: it did not move up to then, or until an attempt that succeeds it."""
    end = last.end
    if name in metrics.memory:
        end = max(end, float(np.max(metrics.memory[name][0], initial=end)))
    for rank in metrics.ranks:
        if rank.name == name:
            later = rank.steps.start[rank.steps.start / 1e6 > last.end] / 1e6
            end = min(end, float(np.min(later, initial=end)))
    return end


def _stacks(record: Record, rank: str) -> Iterable[Stack]:
    """Return the stacks of a record, which comes from a file that anyone may have written; that of the training first."""
    threads = record.args.get("threads")
    for place, thread in enumerate(threads if isinstance(threads, list) else ()):
        frames = thread.get("frames") if isinstance(thread, Mapping) else None
        sound = [frame for frame in frames if _is_frame(frame)] if isinstance(frames, list) else []
        if sound:
            stack = tuple((str(file), line, str(function)) for file, line, function in sound)
            yield Stack(rank, str(thread.get("name", "")), bool(thread.get("training", place == 0)), stack)


def _is_frame(frame: object) -> bool:
    return isinstance(frame, list) and len(frame) == 3 and type(frame[1]) is int and frame[1] > 0


def _children(record: Record) -> Iterable[dict[str, str]]:
    children = record.args.get("children")
    for child in children if isinstance(children, list) else ():
        if isinstance(child, Mapping):
            yield {key: str(child.get(key, "")) for key in ("pid", "name", "state", "waits_in")}


def _dead(record: Record) -> Iterable[DeadThread]:
    dead = record.args.get("dead")
    for one in dead if isinstance(dead, list) else ():
        if isinstance(one, Mapping) and isinstance(error := one.get("error"), str):
            ago = one.get("ago")
            before = float(ago) - record.seconds if isinstance(ago, (int, float)) and math.isfinite(ago) else 0.0
            name, where = (bounded_line(str(one.get(key, ""))) for key in ("name", "where"))
            yield DeadThread(name, bounded_line(error), where, before)


def _waits_for(frames: Sequence[Frame], *, several: bool) -> str:
    """Return what the frames inside the script's innermost line wait for."""
    inner = []
    for file, _, _ in frames:
        if not is_library(file):
            break
        inner.append(file)
    for endings, what in WAITS:
        if any(ending in file for file in inner for ending in endings):
            return what
    # A backward pass waits for the others in C++, where no frame shows it.
    return RANKS if several and any("torch/autograd/" in file for file in inner) else ""


def _number(record: Record, key: str) -> float:
    value = record.args.get(key)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0
