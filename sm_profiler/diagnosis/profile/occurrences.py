"""Saves, log lines, callbacks and compilations, as recorded call by call and as samples show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.model import Location
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.ledger import is_timed
from sm_profiler.diagnosis.profile.lines import MAX_LOCATIONS
from sm_profiler.formats.recorded import AtLine, Frame, Profiling, TimedCall, place_of
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.metrics.left_out import disturbed_spans
from sm_profiler.metrics.record_fold import Record
from sm_profiler.metrics.sample_fold import Place

Spans: TypeAlias = Sequence[tuple[float, float]]  # starts and ends, seconds since the epoch
Call = TypeVar("Call", bound=AtLine)


@attrs.frozen(eq=False)
class Spent(Generic[Call]):
    """Time that the calls of one kind take of the judged ranks' loops, without those that the profiler disturbed.

    Calls times their mean duration are the share of the loop.

    Attributes:
        share: all of it, averaged over ranks.
        in_long: in steps that are long, beyond what the other steps spend on it, averaged over ranks.
        worst: the rank that spends most, or None if nothing was recorded in a loop.
        records: its records in the loop, in time order.
        seconds: its time.
        calls: its number of calls.
    """

    share: float = 0.0
    in_long: float = 0.0
    worst: Rank | None = None
    records: tuple[Record[Call], ...] = ()
    seconds: float = 0.0
    calls: int = 0


def time_in_calls(
    case: Case, kind: type[Call], keep: Callable[[Record[Call]], bool] = lambda _: True, *, once: bool = False
) -> Spent[Call]:
    """Add up the calls of a kind inside the loops.

    Args:
        case: the job.
        kind: what was recorded.
        keep: chooses among the records.
        once: each happens once, as compiling does, so that those in disturbed steps count, too.
    """
    if not case.metrics.recorded(kind).longest or not case.ranks:
        return Spent()
    spent = [_of_rank(case, rank, kind, keep, once=once) for rank in case.ranks]
    worst = max(spent, key=lambda own: own.share)
    share = worst.share if case.in_step else float(np.mean([own.share for own in spent]))  # the others wait
    return attrs.evolve(worst, share=share, in_long=float(np.mean([own.in_long for own in spent])))


def _of_rank(
    case: Case, rank: Rank, kind: type[Call], keep: Callable[[Record[Call]], bool], *, once: bool
) -> Spent[Call]:
    found = case.metrics.recorded(kind)
    own = found.of(rank.name)
    inside = [one for one in own if rank.start <= one.start <= rank.end and keep(one)]
    disturbing, excluded = ((), rank.stretches) if once else _disturbing(case, rank)
    disturbed = [_part_inside(one, disturbing) for one in inside]
    kept = tuple(one for one, part in zip(inside, disturbed, strict=True) if part < 1)
    if not kept or rank.loop <= 0:
        return Spent()
    recorded = sum(one.seconds for one in own)
    # shorter calls are only counted
    scale = max(found.seconds.get(rank.name, recorded) / recorded, 1.0) if recorded > 0 else 1.0
    more = max(found.count / len(found.longest), 1.0)
    seconds = sum(one.seconds * (1 - part) for one, part in zip(inside, disturbed, strict=True)) * scale
    calls = max(round(sum(one.calls * (1 - part) for one, part in zip(inside, disturbed, strict=True)) * more), 1)
    if once:  # what a slowed step takes besides is taken from the other steps
        judged = sum(one.seconds * (1 - _part_inside(one, excluded)) for one in inside) * scale
        rest = max(rank.loop - judged, 0.0) * (1 + rank.left_out / max(rank.train_steps - rank.left_out, 1))
        share = min(seconds / max(seconds + rest, 1e-12), 1.0)
    else:  # what is left out, and still part of the loop
        gone = sum(
            max(one.seconds * part - _covered(one, excluded), 0.0) for one, part in zip(inside, disturbed, strict=True)
        )
        share = min(seconds / max(rank.loop - gone * scale, seconds, 1e-12), 1.0)
    in_long = _in_long(rank, kept) / seconds if seconds > 0 else 0.0
    return Spent(share, min(in_long, 1.0) * share, rank, kept, seconds, calls)


def _disturbing(case: Case, rank: Rank) -> tuple[Spans, Spans]:
    """Return the spans in which the profiler disturbed a process, and those of them that are no part of its loop.

    A window that covers most of the loop counts as undisturbed.
    """
    own = case.metrics.recorded(Profiling).of(rank.name)
    spans = disturbed_spans(own)
    covered = sum(end - start for start, end in spans.windows)
    windows = spans.windows if covered < rank.loop * limits.MAJORITY else ()
    excluded = [*rank.stretches, *((one.start, one.end) for one in own if one.args.kind == "stall")]
    return [*excluded, *windows, *spans.beside], excluded


def _part_inside(record: Record[AtLine], spans: Spans) -> float:
    """Return the part of a record that lies in some spans; a single call that touches one is inside."""
    if record.calls == 1 or record.end <= record.start:
        return float(any(start <= record.end and record.start <= end for start, end in spans))
    return min(_covered(record, spans) / (record.end - record.start), 1.0)


def _covered(record: Record[AtLine], spans: Spans) -> float:
    """Return the seconds of a record that lie in some spans, which may overlap."""
    covered, at = 0.0, record.start
    for start, end in sorted(spans):
        covered += max(min(end, record.end) - max(start, at), 0.0)
        at = max(at, end)
    return covered


def in_first_steps(record: Record[AtLine]) -> bool:
    """Return whether a function was compiled in the first steps, which belong to the start.

    JAX compiles a step twice if it returns its parameters on other devices, or with other types, than those it got.
    """
    return 0 <= record.step < thresholds.WARM_UP_STEPS


def _in_long(rank: Rank, records: Sequence[Record[AtLine]]) -> float:
    """Return the seconds of the records inside long iterations; a sum of many calls is spread over all steps."""
    inside = (one for one in records if one.calls == 1 and long_iteration(rank, one) is not None)
    return sum(one.seconds for one in inside) * rank.scale


def long_iteration(rank: Rank, record: Record[Any]) -> int | None:
    """Return the row of the long iteration in which a record begins, or None."""
    iterations = rank.iterations
    row = int(np.searchsorted(iterations.start, record.start, side="right")) - 1
    inside = row >= 0 and record.start < iterations.start[row] + iterations.length[row]
    return row if inside and rank.stalls.long[row] else None


def lines_of_records(records: Sequence[Record[AtLine]]) -> tuple[Location, ...]:
    """Return the lines of code that made the calls, the most expensive first."""
    seconds: dict[Frame, float] = defaultdict(float)
    for record in records:
        if (place := place_of(record.args)) is not None:
            seconds[place] += record.seconds
    total = sum(record.seconds for record in records)
    longest = sorted(seconds, key=lambda place: -seconds[place])[:MAX_LOCATIONS]
    return tuple(Location(*place, share=seconds[place] / total) for place in longest if total > 0)


@attrs.frozen(eq=False)
class Calls(Generic[Call]):
    """The records of one name: what they add to the calls and seconds of a `Spent`."""

    name: str
    records: tuple[Record[Call], ...]
    count: int
    seconds: float

    @property
    def single(self) -> list[Record[Call]]:
        """The calls that were recorded one by one."""
        return [one for one in self.records if one.calls == 1]

    @property
    def working(self) -> int:
        """Number of calls that do all the work, if most do hardly anything, as at all batches but every hundredth; else all."""
        calls, seconds = sum(one.calls for one in self.records), sum(one.seconds for one in self.records)
        most = len(self.single) * 2 < calls and sum(one.seconds for one in self.single) >= limits.MOST * seconds
        return max(round(len(self.single) * self.count / calls), 1) if most and self.single else self.count

    @property
    def size(self) -> float:
        """Bytes that a call usually writes; 0 if unknown."""
        known = [float(one.args.bytes) for one in self.single if isinstance(one.args, TimedCall) and one.args.bytes]
        return float(np.median(known)) if known else 0.0

    @property
    def steps_between(self) -> int:
        """Steps from one call to the next; 0 if unknown."""
        steps = [one.step for one in self.single if one.step >= 0]
        return round(float(np.median(np.diff(steps)))) if self.count == len(steps) > 1 else 0

    @property
    def durations(self) -> tuple[float, float]:
        """The mean seconds of a call, and 0; or those of the others and of one that takes far longer than any of them."""
        longest, *others = sorted((one.seconds for one in self.single), reverse=True) or [0.0]
        if self.count <= 1:
            return self.seconds, 0.0
        mean = (self.seconds - longest) / (self.count - 1)
        if longest > 5 * max([mean, *others[:1]]):
            return mean, longest
        return self.seconds / self.count, 0.0


def calls_by_name(spent: Spent[Call]) -> list[Calls[Call]]:
    """Return the calls by their names, the most expensive first; counts and seconds add up to all of them."""
    found: dict[str, list[Record[Call]]] = defaultdict(list)
    for record in spent.records:
        found[record.name].append(record)
    seconds, calls = sum(one.seconds for one in spent.records), sum(one.calls for one in spent.records)
    longer, more = (spent.seconds / seconds if seconds > 0 else 1.0), spent.calls / max(calls, 1)
    named = [
        Calls(
            name,
            tuple(own),
            max(round(sum(one.calls for one in own) * more), 1),
            sum(one.seconds for one in own) * longer,
        )
        for name, own in found.items()
    ]
    return sorted(named, key=lambda own: -own.seconds)


@attrs.frozen
class Seen:
    """Samples of an activity; shares of the loop, averaged over ranks.

    Attributes:
        share: all of them.
        count: number of samples.
        error: standard error of the share.
        lines: the lines, the most expensive first, each with its share of this time.
    """

    share: float = 0.0
    count: int = 0
    error: float = 0.0
    lines: tuple[Location, ...] = ()

    @property
    def low(self) -> str:
        """Reason why no more than a low confidence is due; "" if enough samples show the activity."""
        return f"only {self.count} samples" if self.count < limits.SAMPLES else ""


def seen_in_samples(case: Case, activity: str, timed: Collection[tuple[str, int]] = ()) -> Seen:
    """Add up the samples of an activity.

    Args:
        case: the job.
        activity: an activity of the ledger.
        timed: file and line of calls that were timed one by one, which are left out.
    """
    samples, seconds = case.metrics.samples, defaultdict[Place, float](float)
    shares, count = [], 0
    for rank in case.ranks:
        own = [
            stack
            for stack in samples.stacks
            if stack.process == rank.name and case.seen.is_beside(stack) and stack.places
            and case.seen.activity(stack) == activity and not is_timed(stack.places[-1], timed)
        ]  # fmt: skip
        shares.append(sum(stack.seconds for stack in own) / rank.loop if rank.loop > 0 else 0.0)
        count += sum(stack.count for stack in own)
        for stack in own:
            seconds[stack.places[-1]] += stack.seconds
    total = sum(seconds.values())
    if total <= 0 or count < limits.REPEATS:
        return Seen()
    share = min(float(np.mean(shares)), 1.0 if case.loop is None else case.loop.share(activity))
    longest = sorted(seconds, key=lambda place: (-seconds[place], place.file, place.line))[:MAX_LOCATIONS]
    lines = tuple(
        Location(place.file, place.line, place.function, seconds[place] / total, source=samples.source(place))
        for place in longest
    )
    return Seen(share, count, share * ((1 - share) / count) ** 0.5, lines)
