"""The judge of trainings that stopped in the middle: which process is elsewhere, and at which line."""

from __future__ import annotations

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.confidence import Confidence
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.model import Evidence, Finding, Location
from sm_profiler.formatting import duration, plural, shorten
from sm_profiler.metrics.hang import Hang, Stopped, find_hang

MAX_ERROR = 120  # characters, of the exception of a thread
LONG_BEFORE_S = 60.0  # a thread that died earlier is named with the time
ENDED_BY_THREADS = ("a queue", "a lock or a thread")


def judge_hang(context: JudgeContext) -> Finding | None:
    """Find processes whose steps stopped and did not go on."""
    metrics = context.metrics
    hang = find_hang(metrics)
    if hang is None:
        return None
    first, longest = hang.first, hang.first.number("longest")
    where = [_location(one) for one in hang.stopped if one.place is not None][: int(policy.MAX_PLACES)]
    evidence = [
        Evidence("time without a step", round(hang.seconds, 1), round(longest, 1) or None, first.name, "s", "usually up to"),
        Evidence("last step", "none" if first.before_first_step else first.record.step, None, first.name),
        Evidence("CPU use of the process meanwhile", round(100 * first.number("cpu"), 1), None, first.name, "percent"),
    ]  # fmt: skip
    sure = first.is_sure and (not first.waits_for_ranks or hang.gone or hang.disagree)
    return Finding(
        Class.HANG,
        _headline(hang) + _dead(hang),
        tuple(evidence),
        _advice(hang),
        min(hang.seconds / metrics.duration, 1.0) if metrics.duration > 0 else 1.0,
        of="job",
        confidence="high" if sure else Confidence("medium", _doubt(hang)),
        where=tuple(where),
    )


def _doubt(hang: Hang) -> str:
    """Return why it is not certain that this is the cause."""
    if hang.first.waits_for_ranks:
        return "the rank that is waited for is not recorded"
    return "its threads used the CPU meanwhile"


def _location(one: Stopped) -> Location:
    file, line, function = one.place or ("", 1, "")
    return Location(file, line, function, 1.0, rank=one.name)


def _headline(hang: Hang) -> str:
    first, waited = hang.first, duration(hang.seconds)
    at = f"{first.line} in {first.place[2]}" if first.place else "an unknown line"
    if hang.gone:
        one = hang.gone[0] if len(hang.gone) == 1 else f"{len(hang.gone)} ranks"
        return f"The training stopped: {one} ended, and {first.name} has waited for it for {waited} at {at}."
    if hang.disagree:
        lines = [f"{one.name} at {one.line}" for one in hang.stopped if one.place is not None]
        listed = ", ".join(lines[: int(policy.MAX_PLACES)])
        return f"The training stopped: for {waited} the ranks have waited for each other, {listed}."
    waits = f", waiting for {first.waits_for}" if first.waits_for else ""
    others = sum(one.waits_for_ranks for one in hang.stopped if one is not first)
    rest = (
        f"; {others} other{'s wait' if others > 1 else ' waits'} for it" if others and not first.waits_for_ranks else ""
    )
    if first.before_first_step:
        return f"The training has not begun: {first.name} has been at {at} for {waited}, before its first step{waits}{rest}."
    after = f" after {plural(first.record.step + 1, 'training step')}"
    return f"The training stopped{after}: {first.name} has been at {at} for {waited}{waits}{rest}."


def _dead(hang: Hang) -> str:
    """Return a sentence about the thread that ended last; "" if none did."""
    found = next(((one, one.dead[0]) for one in hang.stopped if one.dead), None)
    if found is None:
        return ""
    one, thread = found
    when = f" {duration(thread.before)} before that" if thread.before > LONG_BEFORE_S else ""
    name = f"thread {thread.name}" if thread.name else "a thread"
    place = f" ({thread.where})" if thread.where else ""
    return f" In {one.name}, {name} had ended with an exception{when}: {shorten(thread.error, MAX_ERROR)}{place}."


def _advice(hang: Hang) -> str:
    if any(one.dead for one in hang.stopped) and not hang.gone:
        return (
            "Repair that exception first, since the wait may be for that thread: the job's log has the whole traceback. Let "
            "threads that produce hand their exceptions on, for example through the queue, and give waits a timeout."
        )
    if hang.gone:
        return "Read the log of the rank that ended; let a launcher such as torchrun end all ranks when one fails."
    if hang.first.waits_for_ranks:
        if hang.before_first_step:
            return (
                "All ranks that are recorded wait for each other: check that every rank was started and reaches this line, and "
                "that MASTER_ADDR, MASTER_PORT and the network between the nodes are right."
            )
        return (
            "All ranks wait in collectives: compare their lines, which must be the same call in the same order. A collective "
            "inside a condition that only some ranks meet is the usual cause."
        )
    alone = hang.first.waits_for in ENDED_BY_THREADS and len(hang.first.stacks) == 1
    nobody = f"No other Python thread is alive in {hang.first.name} that could end the wait. " if alone else ""
    return (
        f"{nobody}Look at that line and at the stacks of the other threads, on the report's page and in report.json (hang). "
        "Give waits a timeout, so that an error names the cause the next time."
    )
