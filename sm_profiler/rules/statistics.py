"""Statistics that rules share, in bounded memory and independent of the order of arrival: quantiles, and time by class of event."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from enum import IntEnum
from functools import lru_cache
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints

LIMIT = 32_768  # distinct values kept exactly; beyond that the least significant bits of all values are dropped
MANTISSA_BITS = 52
LEAST_PENDING = 512  # values kept as they came; more if as many are distinct: a sort of both pays then
Counted = tuple[Floats, NDArray[np.integer[Any]]]  # distinct values in ascending order, and how often each occurred

MIN_OPERATOR_SHARE = 2.0  # percent: operators with less are left out of the report
COLLECTIVE_TIMELINES = ("horovod", "smdataparallel")
UNITS = 1024  # of a microsecond: sums are whole numbers of them, so that they do not depend on the order of their terms
LONGEST_US = float((1 << 62) // UNITS)  # 142 years: what fits in 64 bits
_NO_EVENTS = EventColumns.empty()


class QuantileSketch:
    """A mergeable multiset of numbers with exact counts and quantiles.

    Up to LIMIT distinct values the quantiles are exact. Beyond that, all values lose as many low bits as needed (with
    32,768 values, a day of samples keeps a relative error below 0.01 %). The result does not depend on the order of
    additions and merges. With `exact`, every value is kept.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self.limit = None if exact else LIMIT
        self.count = 0
        self._dropped_bits = 0
        self._values: Floats = np.empty(0)
        self._counts: NDArray[np.integer[Any]] = np.empty(0, np.uint8)  # as few bytes as they need
        self._pending: list[Floats] = []
        self._pending_count = 0

    def __deepcopy__(self, _: dict[int, Any]) -> QuantileSketch:
        """Return a sketch that shares the arrays, which never change: a live report copies thousands of sketches."""
        made = copy(self)
        vars(made)["_pending"] = list(self._pending)
        return made

    def add(self, values: Floats) -> None:
        """Add finite values, shape (n,), which stay as they are."""
        if len(values) == 0:
            return
        self.count += len(values)
        self._pending.append(values)
        self._pending_count += len(values)
        if self.limit is not None and self._pending_count > max(LEAST_PENDING, len(self._values)):
            self._compact()

    def merge(self, other: QuantileSketch) -> None:
        other._compact()
        self._compact()
        self._absorb(other._values, other._counts, other._dropped_bits)
        self.count += other.count

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return quantiles, interpolated linearly as numpy.quantile does; the sketch must not be empty."""
        self._compact()
        ends = np.cumsum(self._counts, dtype=np.int64)
        found = []
        for share in shares:
            place = (self.count - 1) * share
            low = int(place)
            below = float(self._values[np.searchsorted(ends, low, side="right")])
            above = float(self._values[np.searchsorted(ends, min(low + 1, self.count - 1), side="right")])
            found.append(below + (above - below) * (place - low))
        return found

    def box(self, lower_quartile: float | None = None) -> dict[str, float]:
        """Return the box plot of all values: quartiles, 95th percentile, whiskers at 1.5 times the interquartile range.

        Args:
            lower_quartile: 25th percentile that the length of the whiskers is computed from; default: its own.
        """
        p25, p50, p75, p95 = self.quantiles((0.25, 0.5, 0.75, 0.95))
        whisker = 1.5 * (p75 - (p25 if lower_quartile is None else lower_quartile))
        upper, lower = min(p75 + whisker, self.max), max(p25 - whisker, self.min)
        return {"p25": p25, "p50": p50, "p75": p75, "p95": p95, "upper": upper, "lower": lower}

    @property
    def min(self) -> float:
        self._compact()
        return float(self._values[0])

    @property
    def max(self) -> float:
        self._compact()
        return float(self._values[-1])

    def values_and_counts(self) -> tuple[Floats, Ints]:
        """Return the distinct values in ascending order, and how often each occurred."""
        self._compact()
        return self._values, self._counts.astype(np.int64)

    def _compact(self) -> None:
        if self._pending:
            pending, self._pending, self._pending_count = np.concatenate(self._pending), [], 0
            self._absorb(*np.unique(pending, return_counts=True), 0)

    def _absorb(self, values: Floats, counts: NDArray[np.integer[Any]], dropped_bits: int) -> None:
        """Add distinct values in ascending order."""
        bits = max(self._dropped_bits, dropped_bits)
        mine, theirs = (self._values, self._counts), (values, counts)
        if bits > self._dropped_bits:
            mine = _grouped(_without_low_bits(self._values, bits), self._counts)
        if bits > dropped_bits:
            theirs = _grouped(_without_low_bits(values, bits), counts)
        self._values, self._counts = _united(mine, theirs)
        while self.limit is not None and len(self._values) > self.limit and bits < MANTISSA_BITS:
            bits += 1
            self._values, self._counts = _grouped(_without_low_bits(self._values, bits), self._counts)
        self._dropped_bits = bits
        if len(self._counts):  # many sketches wait to be merged
            self._counts = self._counts.astype(np.min_scalar_type(int(self._counts.max())))


def histogram(values: Floats, bins: int, weights: Ints | None = None) -> tuple[Ints, Floats]:
    """Count values in bins of equal width; return the counts, shape (bins,), and the edges, shape (bins + 1,)."""
    try:
        counts, edges = np.histogram(values, bins=bins, weights=weights)
    except ValueError:  # values so close to each other that floats cannot split the range: as if they were equal
        ends = (float(values.min()) - 0.5, float(values.max()) + 0.5)
        counts, edges = np.histogram(values, bins=bins, weights=weights, range=ends)
    return counts.astype(np.int64), edges


def _without_low_bits(values: Floats, bits: int) -> Floats:
    """Clear the lowest `bits` bits of each mantissa: rounds towards zero, so that repeating it changes nothing."""
    if bits == 0:
        return values
    kept = np.int64(-1) << np.int64(bits)
    return (values.view(np.int64) & kept).view(np.float64)


def _united(first: Counted, second: Counted) -> Counted:
    """Return all distinct values of both in ascending order, without sorting them again."""
    (values, counts), (more, more_counts) = (first, second) if len(first[0]) >= len(second[0]) else (second, first)
    if not len(more):
        return values, counts
    at = np.searchsorted(values, more)
    known = values[np.minimum(at, len(values) - 1)] == more
    sums = counts.astype(np.int64)
    sums[at[known]] += more_counts[known]
    return np.insert(values, at[~known], more[~known]), np.insert(sums, at[~known], more_counts[~known])


def _grouped(values: Floats, counts: NDArray[np.integer[Any]]) -> tuple[Floats, Ints]:
    distinct, inverse = np.unique(values, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, inverse, counts)
    return distinct, sums


class EventClass(IntEnum):
    CPU = 0
    GPU = 1
    STEP = 2
    FORWARD_PASS = 3
    BACKWARD_PASS = 4
    GENERAL = 5
    IGNORED = 6
    COLLECTIVE = 7


PASSES = {EventClass.FORWARD_PASS: "Forward pass", EventClass.BACKWARD_PASS: "Backward pass"}


@lru_cache(1024)
def class_of_phase(phase: str) -> EventClass:
    """Return the first class that fits a phase."""
    lower = phase.lower()
    if phase.startswith(event_names.OWN):
        return EventClass.IGNORED
    if "cpu" in lower:
        return EventClass.CPU
    if "gpu" in lower:
        return EventClass.GPU
    if "Step" in phase:
        return EventClass.STEP
    passes = {
        event_names.FORWARD_MODULE: EventClass.FORWARD_PASS,
        event_names.BACKWARD_MODULE: EventClass.BACKWARD_PASS,
    }
    return passes.get(phase, EventClass.GENERAL)


def classes_of(events: EventColumns, rows: Ints | None = None) -> Ints:
    """Return the class of each event (or of each of `rows`)."""
    if rows is not None:
        events = attrs.evolve(_NO_EVENTS, phase=events.phase[rows], kind=events.kind[rows])
    by_phase = np.asarray([class_of_phase(phase) for phase in events.phase.values] or [EventClass.IGNORED], np.int64)
    found: Ints = by_phase[events.phase.codes]
    if any(kind.startswith(COLLECTIVE_TIMELINES) for kind in events.kind.values):
        collective = events.kind.mask(lambda kind: kind.startswith(COLLECTIVE_TIMELINES))
        found[collective & (found == EventClass.GENERAL)] = EventClass.COLLECTIVE
    return found


class TimeBreakdown:
    """Sums of durations in UNITS by class of event; each dict in order of first appearance."""

    def __init__(self) -> None:
        self.cpu_phases: dict[str, float] = {}
        self.gpu_phases: dict[str, float] = {}
        self.cpu_operators: dict[str, float] = {}
        self.gpu_operators: dict[str, float] = {}
        self.steps: dict[str, float] = {}
        self.passes: dict[str, float] = {}
        self.general: dict[str, float] = {}
        self.collectives: dict[str, float] = {}

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def add(self, events: EventColumns, rows: Ints | None = None, weights: Ints | None = None) -> None:
        """Add events.

        Args:
            rows: row numbers of the events to add, in order of appearance; default: all.
            weights: how many times each of them counts; default: once.
        """
        phase = events.phase if rows is None else events.phase[rows]
        name = events.name if rows is None else events.name[rows]
        durations = events.duration_us if rows is None else events.duration_us[rows]
        durations = in_units(durations) if weights is None else in_units(durations) * weights
        classes = classes_of(events, rows)
        present = np.bincount(classes, minlength=len(EventClass)) > 0
        for each, texts, sums in (
            (EventClass.CPU, phase, self.cpu_phases),
            (EventClass.CPU, name, self.cpu_operators),
            (EventClass.GPU, phase, self.gpu_phases),
            (EventClass.GPU, name, self.gpu_operators),
            (EventClass.STEP, phase, self.steps),
            (EventClass.GENERAL, phase, self.general),
            (EventClass.COLLECTIVE, name, self.collectives),
        ):
            if present[each]:
                own = np.flatnonzero(classes == each)
                add_sums(sums, texts[own], durations[own])
        for each, title in PASSES.items():
            if present[each]:
                self.passes[title] = self.passes.get(title, 0) + int(durations[classes == each].sum())

    def merge(self, other: TimeBreakdown) -> None:
        for name, sums in vars(self).items():
            for key, value in getattr(other, name).items():
                sums[key] = sums.get(key, 0) + value

    def shares(self, *, in_order: bool = False, swapped: bool = False) -> dict[str, Any]:
        """Return the keys of a report's details: shares in percent, and microseconds of operators.

        CPU operators against those of each GPU by phase, the operators with more than 2 % of their processor's time, the
        phases of steps, all other events, forward and backward pass if there are both, and collective operations.

        Args:
            in_order: show keys in order of first appearance, which depends on the order of a job's parts; default: the
                largest first.
            swapped: CPU and GPU time have each other's label, as in some rules of the service.
        """

        def shown(sums: dict[str, float]) -> dict[str, float]:
            return sums if in_order else dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

        ratio = {**self.gpu_phases, **self.cpu_phases}
        if swapped:
            values = [*self.gpu_phases.values(), *self.cpu_phases.values()]
            ratio = dict(zip([*self.cpu_phases, *self.gpu_phases], values, strict=True))
        details: dict[str, Any] = {"ratio": percentages(shown(ratio))}
        for name, operators in (("CPU", self.cpu_operators), ("GPU", self.gpu_operators)):
            if operators:
                kept = _main_operators({key: value / UNITS for key, value in shown(operators).items()})
                details[name] = percentages(kept)
                details[f"{name}_total"] = {key: int_if_whole(value) for key, value in kept.items()}
        details["phase"] = percentages(shown(self.steps))
        details["phase_time"] = {}
        if self.general:
            details["general"] = percentages(shown(self.general))
        if len(self.passes) == len(PASSES):
            details["forward_backward"] = percentages({title: self.passes[title] for title in PASSES.values()})
        if self.collectives:
            details["horovod"] = percentages(_main_operators(shown(self.collectives)))
        return details


def in_units(durations_us: Floats) -> Floats:
    """Return durations in UNITS, whole numbers; damaged ones are cut to LONGEST_US."""
    return np.rint(np.clip(np.nan_to_num(durations_us), 0.0, LONGEST_US) * UNITS)


def add_sums(sums: dict[str, float], category: Category, values: Floats) -> None:
    """Add whole numbers to the sums of their texts; new texts in order of first appearance."""
    size = len(category.values)
    totals = np.bincount(category.codes, values, minlength=size)
    first = np.full(size, -1, np.int64)
    first[category.codes[::-1]] = np.arange(len(category.codes) - 1, -1, -1)
    present = np.flatnonzero(first >= 0)
    for code in present[np.argsort(first[present])]:
        key = category.values[code]
        sums[key] = sums.get(key, 0) + int(totals[code])


def percentages(sums: dict[str, float]) -> dict[str, float]:
    """Return each value as a percentage of the total; zeros if the total is zero."""
    total = sum(sums.values())
    return {key: 100 * value / total if total else 0.0 for key, value in sums.items()}


def _main_operators(sums: dict[str, float]) -> dict[str, float]:
    total = sum(sums.values())
    return {key: value for key, value in sums.items() if total and 100 * value / total > MIN_OPERATOR_SHARE}


def int_if_whole(value: float) -> float:
    """Return an int if nothing is lost: whole microseconds are ints in reports."""
    return int(value) if value.is_integer() else value
