"""Trainings that stopped: which processes wait, where, and the stacks of their threads, as the hook recorded them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs
import numpy as np

from sm_profiler.formats import recorded
from sm_profiler.formats.process_end import bounded_line
from sm_profiler.formats.recorded import Frame
from sm_profiler.formatting import clean, is_library
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.attempts import process_name
from sm_profiler.metrics.ends import rank_ends
from sm_profiler.metrics.job_metrics import JobMetrics
from sm_profiler.metrics.record_fold import Record, read_args

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
GONE_S = 30.0  # after its end, the other ranks still wait for a rank
MAX_TEXT = 200_000  # characters of an argument in a timeline
SHOWN = ("state", "waited", "cpu", "same", "error")  # arguments of the event besides the stacks


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
        steps: training steps that it had completed.
        stacks: of its threads, that of the training first.
        waits_for: what its training thread waits for, "" if the stack does not show it.
        dead: its threads that ended with an exception, the latest first.
    """

    name: str
    record: Record[recorded.Hang]
    steps: int
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
        return self.record.args.same or self.record.args.cpu <= thresholds.HANG_CPU


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
    def steps(self) -> tuple[int, int]:
        """The fewest and the most training steps that one of them had completed."""
        found = [one.steps for one in self.stopped]
        return min(found), max(found)

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
        return [
            {
                "rank": one.name,
                "pid": str(child.pid),
                "name": child.name,
                "state": child.state,
                "waits_in": child.waits_in,
            }
            for one in self.stopped
            for child in one.record.args.children or ()
        ]


def hang_arguments(text: str) -> dict[str, int | float | str]:
    """Return the arguments of a hang's event as a timeline shows them: each stack and each child process as text."""
    args = read_args(recorded.Hang, text)
    shown = {key: value for key, value in args.args().items() if key in SHOWN and args.state}
    stacks = [
        "\n".join((f"{one.thread}:", *(f"  {file}:{line} in {function}" for file, line, function in one.frames)))
        for one in _stacks(args, "")
    ]
    children = [f"{one.name} ({one.pid}): state {one.state}, waits in {one.waits_in}" for one in args.children or ()]
    dead = [f"{one.name}: {one}" for one in _dead(args, 0.0)]
    texts = {"threads": "\n".join(stacks), "children": "\n".join(children), "dead": "\n".join(dead)}
    return shown | {key: clean(value)[:MAX_TEXT] for key, value in texts.items() if value}


def find_hang(metrics: JobMetrics) -> Hang | None:
    """Return the processes whose steps stopped and did not go on; None if there are none."""
    records = metrics.recorded(recorded.Hang)
    if not records.longest:
        return None
    known = {*(rank.name for rank in metrics.ranks), *map(process_name, metrics.metadata), *records.seconds}
    found = (_stopped(name, records.of(name), metrics, several=len(known) > 1) for name in records.seconds)
    stopped = [one for one in found if one is not None]
    if not stopped:
        return None
    if waiting := [one.record.start + one.record.seconds for one in stopped if one.waits_for_ranks]:
        ended = _ended(metrics)
        stopped = [one for one in stopped if ended.get(one.name, max(waiting)) > max(waiting) - GONE_S]
    common = Counter(one.line for one in stopped)
    stopped.sort(key=lambda one: (one.waits_for_ranks, common[one.line], one.record.step, one.name))
    names = {one.name for one in stopped}
    gone = tuple(rank.name for rank in metrics.ranks if rank.name not in names) if stopped[0].waits_for_ranks else ()
    return Hang(tuple(stopped), gone)


def _ended(metrics: JobMetrics) -> dict[str, float]:
    """Return when processes ended, in seconds since the epoch."""
    found = {one.name: one.at for one in rank_ends(metrics.metadata, {}) if one.state}
    records = metrics.recorded(recorded.Hang)
    for name in records.seconds:
        last = max(records.of(name), key=lambda record: record.end)
        if last.args.state == "ended":
            found.setdefault(name, last.end)
    return found


def _stopped(
    name: str, records: Sequence[Record[recorded.Hang]], metrics: JobMetrics, *, several: bool
) -> Stopped | None:
    """Return what is known of a process whose latest record is that its steps stopped."""
    with_stacks = [record for record in records if record.args.threads]
    if not with_stacks:
        return None
    last = max(records, key=lambda record: (record.end, record.args.state != "hanging"))
    record = max(with_stacks, key=lambda record: record.end)
    state, waiting = last.args.state, record.args.cpu <= thresholds.HANG_CPU
    if state == "resumed" or (state == "hanging" and not waiting and not record.args.same):
        return None  # it went on, or it computes in changing places
    stacks = tuple(_stacks(record.args, name))
    waits_for = _waits_for(stacks[0].frames if stacks else (), several=several)
    never_stepped = record.step < 0 and not metrics.ranks  # what follows no loop was waited for in vain
    idle = record.args.same and waiting and waits_for in OF_A_LOOP
    if state == "ended" and not last.args.error and not never_stepped and not idle:
        return None  # work after the loop
    end = last.end if state == "ended" else _end_of(name, last, metrics)
    moved = attrs.evolve(record, seconds=max(end - record.start, 0.0))
    steps = next((one.step for one in metrics.ending.ranks if one.name == name), max(record.step + 1, 0))
    return Stopped(name, moved, steps, stacks, waits_for, tuple(_dead(record.args, record.seconds)))


def _end_of(name: str, last: Record[recorded.Hang], metrics: JobMetrics) -> float:
    """Return the end of a process's recording: it did not move up to then, or until an attempt that succeeds it."""
    end = last.end
    if name in metrics.memory:
        end = max(end, float(np.max(metrics.memory[name][0], initial=end)))
    for rank in metrics.ranks:
        if rank.name == name:
            later = rank.steps.start[rank.steps.start / 1e6 > last.end] / 1e6
            end = min(end, float(np.min(later, initial=end)))
    return end


def _stacks(args: recorded.Hang, rank: str) -> Iterable[Stack]:
    """Return the stacks of a record; that of the training first."""
    for thread in args.threads or ():
        if frames := tuple(frame for frame in thread.frames if frame[1] > 0):
            yield Stack(rank, thread.name, thread.training, frames)


def _dead(args: recorded.Hang, waited: float) -> Iterable[DeadThread]:
    for one in args.dead or ():
        if one.error:
            yield DeadThread(bounded_line(one.name), bounded_line(one.error), bounded_line(one.where), one.ago - waited)


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
