"""The judge of trainings that stopped in the middle: which process is elsewhere, and at which line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

from sm_profiler.formats.event_names import HANG
from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.formatting import duration
from sm_profiler.report.judges.judge_context import JudgeContext
from sm_profiler.report.model import Evidence, Finding, Location
from sm_profiler.report.record_fold import Record

LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", "/sm_profiler/hook/")
# What the innermost frames wait for: ends of file names, the more specific ones first.
WAITS = (
    (("torch/distributed/", "horovod/", "deepspeed/comm/"), "the other ranks"),
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
FRAME = ("file", "line", "function")


@attrs.frozen
class Stopped:
    """A process whose steps stopped.

    Attributes:
        name: `algo-1-0`.
        record: its latest record with stacks.
        waits_for: what its training thread waits for, "" if the stack does not show it.
        place: the innermost line of the script in its training thread; None if there is no stack.
    """

    name: str
    record: Record
    waits_for: str
    place: Location | None

    @property
    def waits_for_ranks(self) -> bool:
        """True if it waits inside a collective."""
        return self.waits_for == RANKS


def judge_hang(context: JudgeContext) -> Finding | None:
    """Find processes whose steps stopped and did not go on."""
    metrics = context.metrics
    records = metrics.records.get(HANG)
    if records is None:
        return None
    several = len(metrics.ranks) > 1
    found = (_stopped(name, records.of(name), several=several) for name in records.seconds)
    stopped = [one for one in found if one is not None]
    if not stopped:
        return None
    common = Counter(_line(one) for one in stopped)
    elsewhere = sorted(stopped, key=lambda one: (one.waits_for_ranks, common[_line(one)], one.record.step, one.name))
    gone = _gone(context, stopped) if elsewhere[0].waits_for_ranks else []
    first = elsewhere[0]
    waited = max(one.record.seconds for one in stopped)
    where = [one.place for one in elsewhere if one.place is not None][: int(policy.MAX_PLACES)]
    share = min(waited / metrics.duration, 1.0) if metrics.duration > 0 else 1.0
    return Finding(
        Class.HANG,
        _headline(first, gone, stopped, waited),
        (
            Evidence("time without a step", round(waited, 1), round(_number(first, "longest"), 1), first.name, "s", "usually"),
            Evidence("last step", first.record.step, None, first.name),
            Evidence("CPU use of the process meanwhile", round(100 * _number(first, "cpu"), 1), None, first.name, "percent"),
        ),
        _advice(first, gone),
        share,
        of="job",
        confidence="high" if _is_sure(first) and (not first.waits_for_ranks or gone or _disagree(stopped)) else "medium",
        where=tuple(where),
    )  # fmt: skip


def _stopped(name: str, records: Sequence[Record], *, several: bool) -> Stopped | None:
    """Return what is known of a process whose latest record is that its steps stopped."""
    if not records:
        return None
    last = max(records, key=lambda record: (record.end, record.args.get("state") != "hanging"))
    if last.args.get("state") == "resumed":
        return None
    with_stacks = [record for record in records if record.args.get("threads")]
    if not with_stacks:
        return None
    record = max(with_stacks, key=lambda record: record.end)
    if (
        last.args.get("state") == "hanging"
        and _number_of(record, "cpu") > policy.HANG_CPU
        and not record.args.get("same")
    ):
        return None  # it computes, in changing places
    frames = _frames(record)
    waits_for = _waits_for(frames, several=several)
    if last.args.get("state") == "ended" and not last.args.get("error"):
        idle = bool(record.args.get("same")) and _number_of(record, "cpu") <= policy.HANG_CPU
        if not idle or waits_for not in OF_A_LOOP:
            return None  # work after the loop
    return Stopped(
        name, attrs.evolve(record, seconds=max(last.end - record.start, 0.0)), waits_for, _place(frames, name)
    )


def _frames(record: Record) -> list[tuple[str, int, str]]:
    """Return the stack of the training thread; files and names are those of a file that anyone may have written."""
    threads = record.args.get("threads")
    first = threads[0] if isinstance(threads, list) and threads else None
    frames = first.get("frames") if isinstance(first, Mapping) else None
    sound = [frame for frame in frames if _is_frame(frame)] if isinstance(frames, list) else []
    return [(str(file), line, str(function)) for file, line, function in sound]


def _is_frame(frame: object) -> bool:
    return isinstance(frame, list) and len(frame) == len(FRAME) and isinstance(frame[1], int)


def _is_library(file: str) -> bool:
    return any(part in file or file.startswith(part) for part in LIBRARY)


def _place(frames: Sequence[tuple[str, int, str]], rank: str) -> Location | None:
    own = next((frame for frame in frames if not _is_library(frame[0])), frames[0] if frames else None)
    return own and Location(own[0], own[1], own[2], 1.0, rank=rank)


def _waits_for(frames: Sequence[tuple[str, int, str]], *, several: bool) -> str:
    """Return what the frames inside the script's innermost line wait for."""
    inner = []
    for file, _, _ in frames:
        if not _is_library(file):
            break
        inner.append(file)
    for endings, what in WAITS:
        if any(ending in file for file in inner for ending in endings):
            return what
    # A backward pass waits for the others in C++, where no frame shows it.
    return RANKS if several and any("torch/autograd/" in file for file in inner) else ""


def _gone(context: JudgeContext, stopped: Sequence[Stopped]) -> list[str]:
    """Return the ranks that have not stopped while others wait for them: they ended."""
    names = {one.name for one in stopped}
    return [rank.name for rank in context.metrics.ranks if rank.name not in names]


def _disagree(stopped: Sequence[Stopped]) -> bool:
    """Return whether all processes wait for each other, at different lines."""
    places = {(one.place.file, one.place.line) for one in stopped if one.place is not None}
    return all(one.waits_for_ranks for one in stopped) and len(places) > 1


def _headline(first: Stopped, gone: Sequence[str], stopped: Sequence[Stopped], waited: float) -> str:
    at = f"{_line(first)} in {first.place.function}" if first.place else "an unknown line"
    if gone:
        one = gone[0] if len(gone) == 1 else f"{len(gone)} ranks"
        return f"The training stopped: {one} ended, and {first.name} has waited for it for {duration(waited)} at {at}."
    if _disagree(stopped):
        lines = [f"{one.name} at {_line(one)}" for one in stopped if one.place is not None][: int(policy.MAX_PLACES)]
        return f"The training stopped: for {duration(waited)} the ranks have waited for each other, {', '.join(lines)}."
    waits = f", waiting for {first.waits_for}" if first.waits_for else ""
    others = sum(one.waits_for_ranks for one in stopped if one is not first)
    rest = (
        f"; {others} other{'s wait' if others > 1 else ' waits'} for it" if others and not first.waits_for_ranks else ""
    )
    after = f" after step {first.record.step}" if first.record.step >= 0 else ""
    return f"The training stopped{after}: {first.name} has been at {at} for {duration(waited)}{waits}{rest}."


def _line(one: Stopped) -> str:
    return f"{one.place.file.rpartition('/')[2]}:{one.place.line}" if one.place else ""


def _advice(first: Stopped, gone: Sequence[str]) -> str:
    if gone:
        return "Read the log of the rank that ended; let a launcher such as torchrun end all ranks when one fails."
    if first.waits_for_ranks:
        return (
            "All ranks wait in collectives: compare their lines, which must be the same call in the same order. A collective "
            "inside a condition that only some ranks meet is the usual cause."
        )
    return (
        "Look at that line and at the stacks of all threads and processes in the timeline. Give waits a timeout, so that an "
        "error names the cause the next time."
    )


def _is_sure(one: Stopped) -> bool:
    return bool(one.record.args.get("same")) or _number(one, "cpu") <= policy.HANG_CPU


def _number(one: Stopped, key: str) -> float:
    return _number_of(one.record, key)


def _number_of(record: Record, key: str) -> float:
    value = record.args.get(key)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0
