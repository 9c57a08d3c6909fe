"""Occurrences that the hook recorded one by one, compared with a rank's loop: shares, long steps, lines of code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.model import Location
from sm_profiler.formats import event_names
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.metrics.left_out import disturbed_spans
from sm_profiler.metrics.record_fold import Record, Records

MAX_LINES = 5  # of a finding
Spans: TypeAlias = Sequence[tuple[float, float]]  # starts and ends, seconds since the epoch


@attrs.frozen(eq=False)
class Spent:
    """Time that the occurrences of one phase take of the judged ranks' loops, averaged; shares of the loop.

    Attributes:
        share: all of it.
        in_long: in steps that are long, beyond what the other steps spend on it.
        worst: the rank that spends most, or None if nothing was recorded in a loop.
        records: its occurrences in the loop, in time order.
        seconds: its time.
        calls: number of its occurrences, those included that were recorded as a sum.
    """

    share: float = 0.0
    in_long: float = 0.0
    worst: Rank | None = None
    records: tuple[Record, ...] = ()
    seconds: float = 0.0
    calls: int = 0


def time_spent(context: JudgeContext, phase: str, keep: Callable[[Record], bool] = lambda _: True) -> Spent:
    """Add up the occurrences of a phase inside the loops; `keep` chooses among them."""
    return _average(context, phase, lambda rank, found: _of(rank, found, keep))


def time_in_calls(context: JudgeContext, phase: str, keep: Callable[[Record], bool] = lambda _: True) -> Spent:
    """Add up calls that the script makes again and again, without those that the profiler disturbed.

    Calls times their mean duration are then the share of the loop that remains.
    """
    return _average(context, phase, lambda rank, found: _of_calls(rank, found, keep, *_disturbing(context, rank)))


def _average(context: JudgeContext, phase: str, of: Callable[[Rank, Records], Spent]) -> Spent:
    found = context.metrics.records.get(phase)
    if found is None or not context.ranks:
        return Spent()
    spent = [of(rank, found) for rank in context.ranks]
    worst = max(spent, key=lambda one: one.share)
    share = float(np.mean([one.share for one in spent]))
    return attrs.evolve(worst, share=share, in_long=float(np.mean([one.in_long for one in spent])))


def _of(rank: Rank, found: Records, keep: Callable[[Record], bool]) -> Spent:
    own = found.of(rank.name)
    inside = tuple(one for one in own if rank.start <= one.start <= rank.end and keep(one))
    if not inside or rank.loop <= 0:
        return Spent()
    recorded = sum(one.seconds for one in own)
    # shorter ones are only counted
    scale = max(found.seconds.get(rank.name, recorded) / recorded, 1.0) if recorded > 0 else 1.0
    seconds = sum(one.seconds for one in inside) * scale
    calls = round(sum(calls_of(one) for one in inside) * max(found.count / len(found.longest), 1.0))
    judged = sum(one.seconds * (1 - _left_out(rank, one)) for one in inside) * scale
    share = _share(rank, seconds, judged)
    in_long = _in_long(rank, inside) / judged if judged > 0 else 0.0
    return Spent(share, min(in_long, 1.0) * share, rank, inside, seconds, calls)


def _of_calls(rank: Rank, found: Records, keep: Callable[[Record], bool], disturbing: Spans, excluded: Spans) -> Spent:
    own = found.of(rank.name)
    inside = [one for one in own if rank.start <= one.start <= rank.end and keep(one)]
    disturbed = [_part_inside(one, disturbing) for one in inside]
    kept = tuple(one for one, part in zip(inside, disturbed, strict=True) if part < 1)
    if not kept or rank.loop <= 0:
        return Spent()
    recorded = sum(one.seconds for one in own)
    # shorter ones are only counted
    scale = max(found.seconds.get(rank.name, recorded) / recorded, 1.0) if recorded > 0 else 1.0
    more = max(found.count / len(found.longest), 1.0)
    seconds = sum(one.seconds * (1 - part) for one, part in zip(inside, disturbed, strict=True)) * scale
    calls = max(round(sum(calls_of(one) * (1 - part) for one, part in zip(inside, disturbed, strict=True)) * more), 1)
    gone = sum(  # left out, and still part of the loop
        max(one.seconds * part - _covered(one, excluded), 0.0) for one, part in zip(inside, disturbed, strict=True)
    )
    share = min(seconds / max(rank.loop - gone * scale, seconds, 1e-12), 1.0)
    in_long = _in_long(rank, kept) / seconds if seconds > 0 else 0.0
    return Spent(share, min(in_long, 1.0) * share, rank, kept, seconds, calls)


def _disturbing(context: JudgeContext, rank: Rank) -> tuple[Spans, Spans]:
    """Return the spans in which the profiler disturbed a process, and those of them that are no part of its loop.

    A window that covers most of the loop counts as undisturbed.
    """
    found = context.metrics.records.get(event_names.PROFILING)
    own = found.of(rank.name) if found else ()
    spans = disturbed_spans(own)
    windows = (
        spans.windows if sum(end - start for start, end in spans.windows) < rank.loop * policy.MOSTLY_WINDOWS else ()
    )
    excluded = [*rank.stretches, *((one.start, one.end) for one in own if one.args.get("kind") == "stall")]
    return [*excluded, *windows, *spans.beside], excluded


def _part_inside(record: Record, spans: Spans) -> float:
    """Return the part of a record that lies in some spans; a single call that touches one is inside."""
    if calls_of(record) == 1 or record.end <= record.start:
        return float(any(start <= record.end and record.start <= end for start, end in spans))
    return min(_covered(record, spans) / (record.end - record.start), 1.0)


def _covered(record: Record, spans: Spans) -> float:
    """Return the seconds of a record that lie in some spans, which may overlap."""
    covered, at = 0.0, record.start
    for start, end in sorted(spans):
        covered += max(min(end, record.end) - max(start, at), 0.0)
        at = max(at, end)
    return covered


def _left_out(rank: Rank, record: Record) -> float:
    """Return the part of a record that lies in steps that the profiler slowed; all or nothing of a single call."""
    if calls_of(record) == 1 or record.end <= record.start:
        return float(any(start <= record.start < end for start, end in rank.stretches))
    covered = sum(max(min(record.end, end) - max(record.start, start), 0.0) for start, end in rank.stretches)
    return min(covered / (record.end - record.start), 1.0)


def _share(rank: Rank, seconds: float, judged: float) -> float:
    """Return the share of a loop that occurrences take.

    Occurrences count in the steps that the profiler slowed, too: a compilation happens once.  What such a step takes
    beside them is taken from the others.

    Args:
        rank: the process.
        seconds: what all occurrences take.
        judged: what those take that are not in such steps.
    """
    kept = max(rank.train_steps - rank.left_out, 1)
    rest = max(rank.loop - judged, 0.0) * (1 + rank.left_out / kept)
    return min(seconds / max(seconds + rest, 1e-12), 1.0)


def in_first_steps(record: Record) -> bool:
    """Return whether a function was compiled in the first steps, which belong to the start, even if it was the second time.

    JAX, for one, compiles a step twice if it returns its parameters on other devices, or with other types, than those it
    got at first.
    """
    return 0 <= record.step < thresholds.WARM_UP_STEPS


def calls_of(record: Record) -> int:
    """Return the number of calls in a record."""
    calls = record.args.get("calls", 1)
    return calls if isinstance(calls, int) and calls > 0 else 1


def _in_long(rank: Rank, records: Sequence[Record]) -> float:
    """Return the seconds of the records inside long iterations; a sum of many calls is spread over all steps."""
    inside = (one for one in records if calls_of(one) == 1 and long_iteration(rank, one) is not None)
    return sum(one.seconds for one in inside) * rank.scale


def long_iteration(rank: Rank, record: Record) -> int | None:
    """Return the row of the long iteration in which a record begins, or None."""
    iterations = rank.iterations
    row = int(np.searchsorted(iterations.start, record.start, side="right")) - 1
    inside = row >= 0 and record.start < iterations.start[row] + iterations.length[row]
    return row if inside and rank.stalls.long[row] else None


def lines_of(records: Sequence[Record]) -> tuple[Location, ...]:
    """Return the lines of code that made the calls, the most expensive first."""
    seconds: dict[tuple[str, int, str], float] = defaultdict(float)
    for record in records:
        file, line, function = (record.args.get(name) for name in ("file", "line", "function"))
        if isinstance(file, str) and isinstance(line, int) and isinstance(function, str):
            seconds[file, line, function] += record.seconds
    total = sum(record.seconds for record in records)
    longest = sorted(seconds, key=lambda place: -seconds[place])[:MAX_LINES]
    return tuple(Location(*place, share=seconds[place] / total) for place in longest if total > 0)


@attrs.frozen(eq=False)
class Calls:
    """The occurrences of one name: what they add to the calls and seconds of a `Spent`."""

    name: str
    records: tuple[Record, ...]
    count: int
    seconds: float


def calls_by_name(spent: Spent) -> list[Calls]:
    """Return the occurrences by their names, the most expensive first; counts and seconds add up to all of them."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in spent.records:
        found[record.name].append(record)
    seconds, calls = sum(one.seconds for one in spent.records), sum(map(calls_of, spent.records))
    longer, more = (spent.seconds / seconds if seconds > 0 else 1.0), spent.calls / max(calls, 1)
    named = [
        Calls(name, tuple(own), max(round(sum(map(calls_of, own)) * more), 1), sum(one.seconds for one in own) * longer)
        for name, own in found.items()
    ]
    return sorted(named, key=lambda one: -one.seconds)
