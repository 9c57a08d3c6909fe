"""Rules about steps: StepOutlier (some take much longer) and MaxInitializationTime (the first one comes late)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from sm_profiler.folding import EvaluationWindow
from sm_profiler.formats.columns import EventColumns, Floats, Ints, SystemColumns
from sm_profiler.formats.event_names import STEP
from sm_profiler.formatting import natural_key
from sm_profiler.rules.base import BuiltinRule, count, positive, text
from sm_profiler.rules.results import KeyOrder, RuleResult
from sm_profiler.rules.statistics import QuantileSketch, TimeBreakdown, histogram, int_if_whole

MIN_STEPS = 100  # a phase needs more of them
BINS = 100
MAX_LISTED = 1000  # longest steps of a process and phase that keep their numbers
MAX_BROKEN_DOWN = 15  # and those that keep what ran in them

US_PER_MINUTE = 60e6


@attrs.frozen
class StepOutlierParameters:
    """`stddev`: standard deviations above the mean; `n_outliers`: number of outliers that is tolerated."""

    stddev: float = positive(3)
    mode: str | None = text()
    n_outliers: int = count(10)


@attrs.frozen
class StepStatistics:
    """Durations in seconds of the steps of one process and phase, and its outliers."""

    step_stats: dict[str, float]
    number_of_outliers: int
    phase: str
    stddev: float
    probs: list[int]
    binedges: list[float]
    step_numbers: list[str]


@attrs.frozen
class _LongStep:
    duration_us: float
    start_us: float
    step: int
    breakdown: TimeBreakdown | None = None

    def __deepcopy__(self, _: dict[int, Any]) -> _LongStep:
        return self

    @property
    def order(self) -> tuple[float, float, int]:
        """Sort key: the longest first, of equal ones the earliest."""
        return -self.duration_us, self.start_us, self.step


@attrs.define
class _Phase:
    durations: QuantileSketch = attrs.field(factory=QuantileSketch)
    longest: Floats = attrs.field(factory=lambda: np.empty((2, 0)))  # durations, and starts in µs; the longest first
    numbers: Ints = attrs.field(factory=lambda: np.empty(0, np.int64))  # of the longest
    broken_down: list[_LongStep] = attrs.field(factory=list)
    most: int = MAX_LISTED

    @classmethod
    def with_everything(cls) -> _Phase:
        """Return a phase that keeps every duration and number."""
        return cls(QuantileSketch(exact=True), most=sys.maxsize)

    def add(self, events: EventColumns, steps: Ints) -> None:
        durations_s = events.duration_us[steps] / 1e6
        self.durations.add(durations_s)
        if len(self.numbers) >= self.most:  # most are shorter than those that are listed
            long = durations_s >= self.longest[0, -1]
            steps, durations_s = steps[long], durations_s[long]
        self._list(np.stack([durations_s, events.start_us[steps]]), events.step[steps])

    def _list(self, longest: Floats, numbers: Ints) -> None:
        """Add steps to the longest, and keep MAX_LISTED of them; of equal ones the earliest."""
        if len(numbers):
            longest = np.concatenate([self.longest, longest], axis=1)
            numbers = np.concatenate([self.numbers, numbers])
            order = np.lexsort((numbers, longest[1], -longest[0]))[: self.most]
            self.longest, self.numbers = longest[:, order], numbers[order]

    def candidates(self, durations_us: Floats, steps: Ints) -> list[int]:
        """Return those of the new steps that may be among the longest."""
        rows = steps[np.argsort(-durations_us[steps], kind="stable")[:MAX_BROKEN_DOWN]]
        floor_us = self.broken_down[-1].duration_us if len(self.broken_down) >= MAX_BROKEN_DOWN else -np.inf
        return [int(row) for row in rows if durations_us[row] >= floor_us]

    def break_down(self, events: EventColumns, rows: list[int], process: str, by_process: _EventsByProcess) -> None:
        """Record what ran in those of the steps that are among the longest."""
        columns = (events.duration_us[rows], events.start_us[rows], events.step[rows])
        new = [_LongStep(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]
        kept = sorted([*self.broken_down, *new], key=lambda each: each.order)[:MAX_BROKEN_DOWN]
        for each in kept:
            if each.breakdown is None:
                breakdown = by_process.breakdown(process, each.start_us, each.start_us + each.duration_us)
                self.broken_down.append(attrs.evolve(each, breakdown=breakdown))

    def keep_longest(self) -> None:
        """Drop what ran in steps that are not among the longest any more."""
        self.broken_down.sort(key=lambda each: each.order)
        del self.broken_down[MAX_BROKEN_DOWN:]

    def merge(self, other: _Phase) -> None:
        self.durations.merge(other.durations)
        self._list(other.longest, other.numbers)
        self.broken_down += other.broken_down
        self.keep_longest()

    def limit_s(self, stddev: float) -> tuple[float, float]:
        """Return the duration above which a step is an outlier, and the standard deviation."""
        values, counts = self.durations.values_and_counts()
        mean = float(np.average(values, weights=counts))
        deviation = float(np.sqrt(np.average((values - mean) ** 2, weights=counts)))
        return mean + stddev * deviation, deviation

    def statistics(self, name: str, stddev: float) -> StepStatistics:
        limit_s, deviation = self.limit_s(stddev)
        values, counts = self.durations.values_and_counts()
        p99, p95, p50 = self.durations.quantiles([0.99, 0.95, 0.5])
        stats = {"mean": float(np.average(values, weights=counts)), "max": self.durations.max, "p99": p99, "p95": p95}
        usual = values < limit_s
        probs, edges = histogram(values[usual], BINS, counts[usual])
        listed = np.flatnonzero(self.longest[0] > limit_s)
        listed = listed[np.lexsort((self.numbers[listed], self.longest[1, listed]))]
        return StepStatistics(
            {**stats, "p50": p50, "min": self.durations.min},
            int(counts[values > limit_s].sum()),
            name,
            float(np.round(deviation, 2)),
            probs.tolist(),
            edges.tolist(),
            [str(step) for step in self.numbers[listed].tolist()],
        )


class StepOutlier(BuiltinRule):
    """Fires for a process and phase with more than `n_outliers` steps longer than the mean plus `stddev` standard deviations."""

    Parameters = StepOutlierParameters

    def start(self) -> None:
        self._steps = 0
        self._phases: dict[str, dict[str, _Phase]] = {}  # by process
        if self.differs.added_up:
            self._triggered = self._violations = 0
            self._shown: dict[str, StepStatistics] = {}
            self._breakdown = TimeBreakdown()
            self._order = KeyOrder()
            self._order.add(("step_details",))

    @classmethod
    def parameter_names(cls) -> set[str]:
        """Return the names of the parameters, and the other name of stddev."""
        return {*super().parameter_names(), "threshold"}

    @classmethod
    def accepted(cls, values: Mapping[str, object]) -> dict[str, object]:
        """Accept `threshold` as another name of stddev: the service's reports have both."""
        rest = {name: value for name, value in values.items() if name != "threshold"}
        return {"stddev": values["threshold"], **rest} if "threshold" in values else rest

    def shown_parameters(self) -> dict[str, object]:
        """Return the parameters; the report shows stddev twice."""
        limits = self.parameters
        return {
            "threshold": limits.stddev,
            "mode": limits.mode,
            "n_outliers": limits.n_outliers,
            "stddev": limits.stddev,
        }

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Add the window's steps; the rule is evaluated for results only."""
        events = self.rows(window)[1]
        rows = np.flatnonzero(events.name.mask(lambda name: STEP in name or name == self.parameters.mode))
        self._steps += len(rows)
        by_process: _EventsByProcess | None = None
        groups = events.node.codes[rows].astype(np.int64) * len(events.name.values) + events.name.codes[rows]
        order = np.argsort(groups, kind="stable")
        new_phase = _Phase.with_everything if self.differs.added_up else _Phase
        parts = np.split(rows[order], np.flatnonzero(np.diff(groups[order])) + 1) if len(rows) else []
        for steps in sorted(parts, key=lambda part: int(part[0])):
            process, name = (each.values[each.codes[steps[0]]] for each in (events.node, events.name))
            phases = self._phases.setdefault(process, {})
            phase = phases.get(name) or phases.setdefault(name, new_phase())
            phase.add(events, steps)
            if self.differs.added_up:
                continue
            candidates = phase.candidates(events.duration_us, steps)
            if candidates:
                by_process = by_process or _EventsByProcess(window.events)
                phase.break_down(events, candidates, process, by_process)
                phase.keep_longest()
        return self._add_up(events, rows) if self.differs.added_up else False

    def _add_up(self, events: EventColumns, rows: Ints) -> bool:
        """Evaluate all steps so far again and count their outliers once more, as the service did in each window."""
        spans: dict[tuple[str, int], tuple[float, float]] = {}  # the first step of a number wins, of any phase
        processes = events.node[rows].decode().tolist()
        columns = (events.step[rows].tolist(), events.start_us[rows].tolist(), events.end_us[rows].tolist())
        for process, number, start_us, end_us in zip(processes, *columns, strict=True):
            spans.setdefault((process, number), (start_us, end_us))
        for process, phases in self._phases.items():
            for name, phase in phases.items():
                if phase.durations.count <= MIN_STEPS:
                    continue
                found = self._shown[process] = phase.statistics(name, self.parameters.stddev)
                if found.number_of_outliers <= self.parameters.n_outliers:
                    continue
                self._triggered += 1
                self._violations += found.number_of_outliers
                for number in map(int, found.step_numbers):
                    if (span := spans.get((process, number))) is not None:
                        inside = (events.start_us <= span[1]) & (events.end_us >= span[0])
                        self._breakdown.add(events, np.flatnonzero(inside))
                self._order.add(self._shares(self._breakdown))
        return self._triggered > 0

    def _shares(self, breakdown: TimeBreakdown) -> dict[str, Any]:
        return breakdown.shares(in_order=self.differs.as_it_went, swapped=self.differs.swapped)

    def absorb(self, other: StepOutlier) -> None:
        self._steps += other._steps
        for process, phases in other._phases.items():
            for name, theirs in phases.items():
                self._phases.setdefault(process, {}).setdefault(name, _Phase()).merge(theirs)

    def result(self) -> RuleResult:
        """Evaluate each phase of each process by all its steps."""
        if self.differs.added_up:
            so_far = self._details(self._shown, self._breakdown if self._triggered else None)
            return self._result(self._triggered, self._violations, self._steps, self._order.apply(so_far))
        triggered = violations = 0
        shown: dict[str, StepStatistics] = {}
        breakdown = TimeBreakdown()
        for process, phases in sorted(self._phases.items(), key=lambda item: natural_key(item[0])):
            enough = {name: phase for name, phase in sorted(phases.items()) if phase.durations.count > MIN_STEPS}
            for name, phase in enough.items():
                found = phase.statistics(name, self.parameters.stddev)
                shown[process if len(enough) == 1 else f"{process} {name}"] = found
                if found.number_of_outliers > self.parameters.n_outliers:
                    triggered += 1
                    violations += found.number_of_outliers
                    limit_s, _ = phase.limit_s(self.parameters.stddev)
                    for each in phase.broken_down:
                        if each.duration_us / 1e6 > limit_s and each.breakdown is not None:
                            breakdown.merge(each.breakdown)
        details = self._details(shown, breakdown if triggered else None)
        return self._result(triggered, violations, self._steps, details, None if shown else self._missing())

    def _details(self, steps: Mapping[str, StepStatistics], breakdown: TimeBreakdown | None) -> dict[str, Any]:
        """Return statistics by process (and phase), and what ran in the outliers, if there are enough."""
        details = {"step_details": {name: attrs.asdict(each) for name, each in steps.items()}}
        return details if breakdown is None else {**details, **self._shares(breakdown)}

    def _missing(self) -> str:
        most = max((phase.durations.count for phases in self._phases.values() for phase in phases.values()), default=0)
        return f"{most} steps of one phase, more than {MIN_STEPS} are needed" if most else "no steps recorded"


class _EventsByProcess:
    def __init__(self, events: EventColumns) -> None:
        self.events = events
        codes, values = events.node.codes, events.node.values
        # numpy sorts 16-bit numbers in linear time.
        order = np.argsort(codes.astype(np.uint16) if len(values) <= 1 << 16 else codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(values))).tolist()
        self._spans = {value: slice(start, end) for value, start, end in zip(values, [0, *ends], ends, strict=False)}
        self._rows, self._starts_us, self._ends_us = order, events.start_us[order], events.end_us[order]

    def breakdown(self, process: str, start_us: float, end_us: float) -> TimeBreakdown:
        span = self._spans.get(process, slice(0))
        inside = (self._starts_us[span] <= end_us) & (self._ends_us[span] >= start_us)
        found = TimeBreakdown()
        found.add(self.events, self._rows[span][inside])
        return found


@attrs.frozen
class MaxInitializationTimeParameters:
    """`threshold` in minutes."""

    threshold: float = positive(20)


class MaxInitializationTime(BuiltinRule):
    """Fires in each window that ends before the first step and more than `threshold` minutes after the start of the job."""

    Parameters = MaxInitializationTimeParameters

    def start(self) -> None:
        self._job_s: tuple[float, float] | None = None
        self._steps_us: tuple[float, float] | None = None
        self._steps = 0
        self._saw_events = False
        self._last_sample_s: dict[int, float] = {}  # of windows before the first step, by their end

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Take the window's times; return True if there is no step yet and too much time has passed."""
        system, events = self.rows(window)
        self._add_samples(system)
        if len(system) and self._steps_us is None:
            end_s = float(system.timestamp.max())
            self._last_sample_s[window.end_us] = max(end_s, self._last_sample_s.get(window.end_us, end_s))
        self._saw_events = self._saw_events or len(events) > 0
        starts_us = events.start_us[events.name.mask(lambda name: STEP in name)]
        if len(starts_us):
            self._steps += len(starts_us)
            self._steps_us = self._extended(starts_us)
        return self._steps_us is None and self._windows_too_late() > 0

    def _extended(self, starts_us: Floats) -> tuple[float, float]:
        if not self.differs.file_order:
            return _span(self._steps_us, (float(starts_us.min()), float(starts_us.max())))
        return (float(starts_us[0]) if self._steps_us is None else self._steps_us[0]), float(starts_us[-1])

    def _add_samples(self, system: SystemColumns) -> None:
        if len(system):
            self._job_s = _span(self._job_s, (float(system.timestamp.min()), float(system.timestamp.max())))

    def _windows_too_late(self) -> int:
        """Return the number of windows that ended without a step and after the threshold."""
        if self._job_s is None or not self._saw_events or self.differs.never:
            return 0
        first_step_us = np.inf if self._steps_us is None else self._steps_us[0]
        limit_us = self.parameters.threshold * US_PER_MINUTE
        start_s = self._job_s[0]
        return sum(
            end_us <= first_step_us and (end_s - start_s) * 1e6 > limit_us
            for end_us, end_s in self._last_sample_s.items()
        )

    def absorb(self, other: MaxInitializationTime) -> None:
        self._steps += other._steps
        self._saw_events = self._saw_events or other._saw_events
        self._job_s = _span(self._job_s, other._job_s) if other._job_s else self._job_s
        self._steps_us = _span(self._steps_us, other._steps_us) if other._steps_us else self._steps_us
        for end_us, end_s in other._last_sample_s.items():
            self._last_sample_s[end_us] = max(end_s, self._last_sample_s.get(end_us, end_s))

    def result(self) -> RuleResult:
        """Return the number of windows that ended too late without a step."""
        triggered = self._windows_too_late()
        not_evaluated = None
        if self._job_s is None:
            not_evaluated = "no system metrics"
        elif not self._saw_events:
            not_evaluated = "no framework data: the time of the first step is unknown"
        details: dict[str, Any] = {"step_num": {}}
        if self._steps_us is not None:
            details["step_num"] = {"first": int_if_whole(self._steps_us[0]), "last": int_if_whole(self._steps_us[1])}
        if self._job_s is not None:
            details |= {"job_start": self._job_s[0], "job_end": self._job_s[1]}
        return self._result(triggered, triggered, self._steps, details, not_evaluated)


def _span(first: tuple[float, float] | None, second: tuple[float, float]) -> tuple[float, float]:
    return second if first is None else (min(first[0], second[0]), max(first[1], second[1]))
