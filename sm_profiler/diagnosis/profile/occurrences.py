"""Saves, log lines, callbacks and compilations, as recorded call by call and as samples show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Generic, TypeVar

import attrs
import numpy as np
from msgspec.structs import replace

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.model import Evidence, Location
from sm_profiler.diagnosis.profile.case import Case, Found
from sm_profiler.diagnosis.profile.ledger import BESIDE_THE_PHASES, is_timed
from sm_profiler.diagnosis.profile.lines import MAX_LOCATIONS, Lines, error_of_part
from sm_profiler.formats.recorded import AtLine, Frame, TimedCall, place_of
from sm_profiler.formatting import percent
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.metrics.record_fold import Record
from sm_profiler.metrics.sample_fold import Sampled

Call = TypeVar("Call", bound=AtLine)


@attrs.frozen(eq=False)
class Spent(Generic[Call]):
    """The calls of one kind in the loop of the rank that spends most time in them.

    Attributes:
        rank: the rank.
        records: their records, in time order, without those in steps that are not judged.
        seconds: time of all of them; a call inside another one counts for both.
        calls: their number.
    """

    rank: Rank
    records: tuple[Record[Call], ...]
    seconds: float
    calls: int


def calls_of(
    case: Case, kind: type[Call], keep: Callable[[Record[Call]], bool] = lambda _: True, *, once: bool = False
) -> Spent[Call] | None:
    """Return the calls of a kind inside the loops; None without any.

    Args:
        case: the job.
        kind: what was recorded.
        keep: chooses among the records.
        once: each happens once, as compiling does: those in steps that the profiler slowed count, too, and those in loops that
            are too short to judge because of them.
    """
    found, most = case.metrics.recorded(kind), None
    for rank in case.ranks or (case.metrics.ranks if once else ()):
        own = found.of(rank.name)
        kept = tuple(
            one
            for one in own
            if rank.start <= one.start <= rank.end
            and (once or not any(start <= one.start < end for start, end in rank.stretches))
            and keep(one)
        )
        recorded = sum(one.seconds for one in own)
        longer = max(found.seconds.get(rank.name, recorded) / recorded, 1.0) if recorded > 0 else 1.0
        more = max(found.count / len(found.longest), 1.0) if kept else 1.0  # shorter calls are only counted
        spent = Spent(
            rank,
            kept,
            sum(one.seconds for one in kept) * longer,
            max(round(sum(one.calls for one in kept) * more), 1),
        )
        if kept and rank.loop > 0 and (most is None or spent.seconds > most.seconds):
            most = spent
    return most


def in_first_steps(record: Record[AtLine]) -> bool:
    """Return whether a function was compiled in the first steps, which belong to the start.

    JAX compiles a step twice if it returns its parameters on other devices, or with other types, than those it got.
    """
    return 0 <= record.step < thresholds.WARM_UP_STEPS


def lines_of_records(records: Sequence[Record[AtLine]]) -> tuple[Location, ...]:
    """Return the lines of code that made the calls, the most expensive first."""
    seconds: dict[Frame, float] = defaultdict(float)
    for record in records:
        if (place := place_of(record.args)) is not None:
            seconds[place] += record.seconds
    total = sum(record.seconds for record in records)
    longest = sorted(seconds, key=lambda place: -seconds[place])[:MAX_LOCATIONS]
    return tuple(Location(*place, share=seconds[place] / total) for place in longest if total > 0)


def joined_lines(*parts: tuple[float, Sequence[Location]]) -> tuple[Location, ...]:
    """Return the lines of several parts of one loss, each with its seconds or share, the most expensive first."""
    total = sum(spent for spent, lines in parts if lines)
    found = [replace(line, share=line.share * spent / total) for spent, lines in parts for line in lines if total > 0]
    shown = [line for line in found if line.share >= limits.SHOWN]
    return tuple(sorted(shown, key=lambda line: (-line.share, line.file, line.line))[:MAX_LOCATIONS])


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
    def is_exact(self) -> bool:
        """True if each call was recorded; the number is else scaled up from those that were."""
        return self.count == sum(one.calls for one in self.records)

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
    def grows(self) -> tuple[float, float] | None:
        """The usual seconds of a call at first and at last, if calls take longer and longer; else None."""
        each = np.array([one.seconds / max(one.calls, 1) for one in sorted(self.records, key=lambda one: one.start)])
        if len(each) < limits.REPEATS * limits.SAMPLES:
            return None
        parts = [float(np.median(part)) for part in np.array_split(each, limits.REPEATS)]
        steady = all(before < after for before, after in pairwise(parts))
        return (parts[0], parts[-1]) if steady and parts[-1] >= limits.SURELY * parts[0] else None

    @property
    def durations(self) -> tuple[float, float]:
        """The mean seconds of a call, and 0; or those of the others and of one that takes far longer than any of them."""
        longest, *others = sorted((one.seconds for one in self.single), reverse=True) or [0.0]
        if self.count <= 1:
            return self.seconds, 0.0
        mean = (self.seconds - longest) / (self.count - 1)
        if longest > limits.REPEATS * max([mean, *others[:1]]):
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
        bound: share of the parts of the loop in which the samples lie.
        lines: the lines, the most expensive first, each with its share of this time.
    """

    share: float = 0.0
    count: int = 0
    error: float = 0.0
    bound: float = 1.0
    lines: tuple[Location, ...] = ()

    @property
    def low(self) -> str:
        """Reason why no more than a low confidence is due; "" if enough samples show the activity."""
        return f"only {self.count} samples" if self.count < limits.SAMPLES else ""

    def found(self, text: str, what: str, share: float, words: Mapping[str, Any], **more: Any) -> Found:
        """Return the finding about time that only samples show; `what` is the name of its share."""
        evidence = (
            Evidence(what, round(share, 4), unit="share"),
            Evidence("samples in these lines", self.count),
        )
        of_samples = {
            "doubt": "inferred from samples",
            "error": self.error,
            "bound": self.bound,
            "where": self.lines,
            "low": self.low,
        }
        return Found(text, {"share": percent(share), **words}, evidence, share, **{**of_samples, **more})


def seen_in_samples(case: Case, activity: str, timed: Collection[tuple[str, int]] = ()) -> Seen:
    """Add up the samples of an activity.

    Args:
        case: the job.
        activity: an activity of the ledger.
        timed: file and line of calls that were timed one by one, which are left out.
    """
    names = {rank.name for rank in case.ranks}
    stacks = [stack for stack in case.metrics.samples.stacks if stack.process in names and stack.places]
    found = [
        stack for stack in stacks
        if case.seen.activity(stack) == activity and not is_timed(stack.places[-1], timed)
    ]  # fmt: skip
    lines, count = Lines.of(found), sum(stack.count for stack in found)
    if lines.seconds <= 0:
        return Seen()
    spent = case.mean(
        lambda rank: sum(one.seconds for one in found if one.process == rank.name) / max(rank.loop, 1e-12)
    )
    share = min(spent, case.share_of(activity))
    inside = sum(one.seconds for phases in _parts_of(found) for one in stacks if one.phase in phases)
    bound = min(inside / lines.seconds * share, 1.0)
    return Seen(
        share, count, share * _error(found, stacks), bound, lines.locations(lines.weights(), case.metrics, least=1)
    )


def _parts_of(found: Sequence[Sampled]) -> list[set[str]]:
    """Return the parts of a step in which samples lie, each as the names of its phases: what is outside the others is one."""
    phases = {one.phase for one in found}
    outside = [{*BESIDE_THE_PHASES}] if phases & {*BESIDE_THE_PHASES} else []
    return [*outside, *({phase} for phase in phases - {*BESIDE_THE_PHASES})]


def _error(found: Sequence[Sampled], stacks: Sequence[Sampled]) -> float:
    """Return the standard error of the time of some samples, as a share of it.

    The parts of a step that they lie in are timed: only how much of each is theirs is known from samples.
    """
    total, variance = sum(one.seconds for one in found), 0.0
    for phases in _parts_of(found):
        inside = [one for one in stacks if one.phase in phases]
        if own := [one for one in found if one.phase in phases]:
            variance += (sum(one.seconds for one in inside) * error_of_part(own, inside)) ** 2
    return float(variance**0.5) / total if total > 0 else 1.0
