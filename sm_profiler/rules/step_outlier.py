"""StepOutlier: steps that take much longer than the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats.columns import EventColumns, Floats, Ints, Mask
from sm_profiler.formats.event_names import STEP
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.nodes import natural
from sm_profiler.rules.parameters import count, positive, text
from sm_profiler.rules.quantile_sketch import Series, Spread
from sm_profiler.rules.time_breakdown import WhatRan
from sm_profiler.rules.window import Window

ENOUGH = 100  # steps of a phase before its outliers are looked for
BINS = 100
LISTED = 1000  # so many of a process's longest steps per phase keep their numbers
LONGEST = 15  # and so many of them what ran in them


@attrs.frozen
class StepOutlierParameters:
    """`stddev`: how many standard deviations above the mean; `n_outliers`: how many outliers are tolerated."""

    stddev: float = positive(3)
    mode: str | None = text()
    n_outliers: int = count(10)


@attrs.define
class _Phase:
    """The steps of one process and phase; durations in seconds."""

    durations: Spread = attrs.field(factory=Spread)
    longest: list[tuple[float, float, int]] = attrs.field(factory=list)  # minus duration, start, step: sorts by itself
    ran: list[tuple[float, float, int, WhatRan]] = attrs.field(factory=list)  # and what ran in it

    def floor_s(self) -> float:
        """Steps shorter than this cannot be among those that are listed."""
        return -self.longest[-1][0] if len(self.longest) >= LISTED else -np.inf

    def limit(self, stddev: float) -> tuple[float, float]:
        """Above which duration a step is an outlier, and the standard deviation."""
        values, counts = self.durations.values_and_counts()
        mean = float(np.average(values, weights=counts))
        deviation = float(np.sqrt(np.average((values - mean) ** 2, weights=counts)))
        return mean + stddev * deviation, deviation


class StepOutlier(BuiltinRule):
    """Fires for a process and phase with more than `n_outliers` steps longer than the mean plus `stddev` standard deviations."""

    description = "Steps that take much longer than the others of the same process."
    recommendation = "Look at what ran inside the long steps, and at what they coincide with: checkpoints, data, collection of garbage."
    Parameters = StepOutlierParameters

    def start(self) -> None:
        """Nothing has been seen yet."""
        self.details["step_details"] = {}
        self._phases: dict[str, dict[str, _Phase]] = {}
        self._series: dict[str, dict[str, tuple[Series, list[int]]]] = {}
        self._ran = WhatRan()

    @classmethod
    def accepted(cls, values: Mapping[str, object]) -> dict[str, object]:
        """`threshold` is another name of stddev, as the service's own report has it."""
        rest = {name: value for name, value in values.items() if name != "threshold"}
        return {"stddev": values["threshold"], **rest} if "threshold" in values else rest

    def shown_parameters(self) -> dict[str, object]:
        """The report names stddev twice."""
        limits = self.parameters
        return {
            "threshold": limits.stddev,
            "mode": limits.mode,
            "n_outliers": limits.n_outliers,
            "stddev": limits.stddev,
        }

    def update(self, window: Window) -> bool:
        """Take the window's steps; True once it has fired."""
        if self.service:
            if window.looked_at_by_service:
                self._update_as_service(window.events)
            return self.triggered > 0
        events, all_events = window.new_events, window.events
        rows = np.flatnonzero(self._is_step(events))
        self.datapoints += len(rows)
        around: _Processes | None = None
        groups = events.node.codes[rows].astype(np.int64) * len(events.name.values) + events.name.codes[rows]
        order = np.argsort(groups, kind="stable")
        for steps in np.split(rows[order], np.flatnonzero(np.diff(groups[order])) + 1) if len(rows) else []:
            process, name = (each.values[each.codes[steps[0]]] for each in (events.node, events.name))
            phase = self._phases.setdefault(process, {}).setdefault(name, _Phase())
            durations_s = events.duration_us[steps] / 1e6
            phase.durations.add(durations_s)
            long = steps[durations_s >= phase.floor_s()]
            columns = (events.duration_us[long] / -1e6, events.start_us[long], events.step[long])
            phase.longest += zip(*(column.tolist() for column in columns), strict=True)
            candidates = self._candidates(phase, events.duration_us, steps)
            if candidates:
                around = around or _Processes(all_events)
                _look_into(phase, events, candidates, around, process)
            _keep_longest(phase)
        return False

    @staticmethod
    def _candidates(phase: _Phase, durations_us: Floats, steps: Ints) -> list[int]:
        """The steps that may be among the longest."""
        rows = steps[np.argsort(-durations_us[steps], kind="stable")[:LONGEST]]
        floor = phase.ran[-1][0] if len(phase.ran) >= LONGEST else -np.inf
        return [int(row) for row in rows if durations_us[row] / 1e6 >= floor]

    def _is_step(self, events: EventColumns) -> Mask:
        return events.name.mask(lambda name: STEP in name or name == self.parameters.mode)

    def _update_as_service(self, events: EventColumns) -> None:
        rows = np.flatnonzero(self._is_step(events))
        self.datapoints += len(rows)
        starts, ends, steps = events.start_us[rows], events.end_us[rows], events.step[rows]
        pairs = np.stack([events.node.codes[rows], events.name.codes[rows]])
        _, first = np.unique(pairs, axis=1, return_index=True)
        for index in np.sort(first):
            own = (pairs == pairs[:, [index]]).all(axis=0)
            node, name = events.node.values[pairs[0, index]], events.name.values[pairs[1, index]]
            series, numbers = self._series.setdefault(node, {}).setdefault(name, (Series(), []))
            series.add((ends[own] - starts[own]) / 1e6)
            numbers += steps[own].tolist()
        present: dict[tuple[str, int], tuple[float, float]] = {}  # intervals in this window: the first one met wins
        nodes = events.node[rows].decode().tolist()
        for node, number, start_us, end_us in zip(nodes, steps.tolist(), starts.tolist(), ends.tolist(), strict=True):
            present.setdefault((node, number), (start_us, end_us))
        for node, phases in self._series.items():
            for name, (series, numbers) in phases.items():
                if len(series) > ENOUGH:
                    self._judge_as_service(node, name, series.values, numbers, present, events)

    def _judge_as_service(  # noqa: PLR0913, PLR0917 - a phase and the window it is judged in
        self,
        node: str,
        name: str,
        durations: Floats,
        numbers: list[int],
        present: dict[tuple[str, int], tuple[float, float]],
        events: EventColumns,
    ) -> None:
        limit = float(durations.mean() + self.parameters.stddev * durations.std())
        outliers = np.flatnonzero(durations > limit)
        p99, p95, p50 = np.quantile(durations, [0.99, 0.95, 0.5])
        stats = {"mean": durations.mean(), "max": durations.max(), "p99": p99, "p95": p95, "p50": p50}
        stats["min"] = durations.min()
        probs, edges = np.histogram(durations[durations < limit], bins=BINS)
        shown = [str(numbers[index]) for index in outliers]
        self.details["step_details"][node] = {
            "step_stats": {key: float(value) for key, value in stats.items()},
            "number_of_outliers": len(outliers),
            "phase": name,
            "stddev": float(np.round(durations.std(), 2)),
            "probs": probs.tolist(),
            "binedges": edges.tolist(),
            "step_numbers": shown,
        }
        if len(outliers) <= self.parameters.n_outliers:
            return
        self.violations += len(outliers)
        self.triggered += 1
        for index in outliers:
            span = present.get((node, numbers[index]))
            if span:
                start_us, end_us = span
                self._ran.add(events, np.flatnonzero((events.start_us <= end_us) & (events.end_us >= start_us)))
        self._ran.write_details(self.details, swapped=True)

    def absorb(self, other: StepOutlier) -> None:
        """Take in other nodes or other minutes of the same job."""
        self.datapoints += other.datapoints
        for process, phases in other._phases.items():
            for name, theirs in phases.items():
                mine = self._phases.setdefault(process, {}).setdefault(name, _Phase())
                mine.durations.merge(theirs.durations)
                mine.longest += theirs.longest
                mine.ran += theirs.ran
                _keep_longest(mine)

    def finish(self) -> None:
        """Judge each phase of each process by all its steps."""
        if self.service:
            return
        self.triggered = self.violations = 0
        shown: dict[str, Any] = {}
        ran = WhatRan()
        most = 0
        for process, phases in sorted(self._phases.items(), key=lambda item: natural(item[0])):
            judged = {name: phase for name, phase in sorted(phases.items()) if phase.durations.count > ENOUGH}
            most = max([most, *(phase.durations.count for phase in phases.values())])
            for name, phase in judged.items():
                found = self._describe(name, phase, ran)
                shown[process if len(judged) == 1 else f"{process} {name}"] = found
        self.details = {"step_details": shown}
        if self.triggered:
            ran.write_details(self.details)
        if most == 0:
            self.not_evaluated("no steps recorded")
        elif not shown:
            self.not_evaluated(f"{most} steps of one phase, more than {ENOUGH} are needed")

    def _describe(self, name: str, phase: _Phase, ran: WhatRan) -> dict[str, Any]:
        limit, deviation = phase.limit(self.parameters.stddev)
        values, counts = phase.durations.values_and_counts()
        outliers = int(counts[values > limit].sum())
        p99, p95, p50 = phase.durations.quantiles([0.99, 0.95, 0.5])
        stats = {"mean": float(np.average(values, weights=counts)), "max": phase.durations.max, "p99": p99, "p95": p95}
        usual = values < limit
        probs, edges = np.histogram(values[usual], bins=BINS, weights=counts[usual])
        listed = sorted((start, step) for minus_duration, start, step in phase.longest if -minus_duration > limit)
        if outliers > self.parameters.n_outliers:
            self.triggered += 1
            self.violations += outliers
            for duration, _, _, what in phase.ran:
                if duration > limit:
                    ran.merge(what)
        return {
            "step_stats": {**stats, "p50": p50, "min": phase.durations.min},
            "number_of_outliers": outliers,
            "phase": name,
            "stddev": float(np.round(deviation, 2)),
            "probs": probs.astype(int).tolist(),
            "binedges": edges.tolist(),
            "step_numbers": [str(step) for _, step in listed],
        }


class _Processes:
    """The events of a window by process."""

    def __init__(self, events: EventColumns) -> None:
        self.events = events
        codes, values = events.node.codes, events.node.values
        # Numbers of 16 bits are sorted in one go.
        order = np.argsort(codes.astype(np.uint16) if len(values) <= 1 << 16 else codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(values))).tolist()
        self._spans = {value: slice(start, end) for value, start, end in zip(values, [0, *ends], ends, strict=False)}
        self._rows, self._starts_us, self._ends_us = order, events.start_us[order], events.end_us[order]

    def what_ran(self, process: str, start_us: float, end_us: float) -> WhatRan:
        """What ran in a process in a stretch of time."""
        span = self._spans.get(process, slice(0))
        inside = (self._starts_us[span] <= end_us) & (self._ends_us[span] >= start_us)
        ran = WhatRan()
        ran.add(self.events, self._rows[span][inside])
        return ran


def _look_into(phase: _Phase, events: EventColumns, candidates: list[int], processes: _Processes, process: str) -> None:
    """Note what ran in those of the steps that are among the longest."""
    columns = (events.duration_us[candidates], events.start_us[candidates], events.step[candidates])
    found = zip(*(column.tolist() for column in columns), strict=True)
    new = [(duration_us / 1e6, start_us, step, duration_us) for duration_us, start_us, step in found]
    known = [(*each[:3], None) for each in phase.ran]
    for duration_s, start_us, step, duration_us in sorted([*known, *new], key=_by_length)[:LONGEST]:
        if duration_us is not None:
            ran = processes.what_ran(process, start_us, start_us + duration_us)
            phase.ran.append((duration_s, start_us, step, ran))


def _keep_longest(phase: _Phase) -> None:
    if len(phase.longest) >= LISTED:
        phase.longest.sort()
        del phase.longest[LISTED:]
    phase.ran.sort(key=_by_length)
    del phase.ran[LONGEST:]


def _by_length(step: tuple[Any, ...]) -> tuple[float, float, int]:
    """The longest first; of equal ones the earliest."""
    return -step[0], step[1], step[2]
