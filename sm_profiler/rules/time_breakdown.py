"""What ran: time per step phase, pass, operator and anything else, from trace events."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints

KEPT_SHARE = 2.0  # percent: operators below are left out of the report
KINDS_OF_OTHERS = ("horovod", "smdataparallel")
_NO_EVENTS = EventColumns.empty()
CPU, GPU, STEP, FORWARD_PASS, BACKWARD_PASS, GENERAL, NOTHING, HOROVOD = range(8)
PASSES = ((FORWARD_PASS, "Forward pass"), (BACKWARD_PASS, "Backward pass"))
FEW = 32  # events up to which they are added one by one


@lru_cache(1024)
def class_of(phase: str) -> int:
    """What an event of this phase is; the first that fits."""
    lower = phase.lower()
    if phase.startswith(event_names.OWN):
        return NOTHING
    if "cpu" in lower:
        return CPU
    if "gpu" in lower:
        return GPU
    if "Step" in phase:
        return STEP
    return {event_names.FORWARD_MODULE: FORWARD_PASS, event_names.BACKWARD_MODULE: BACKWARD_PASS}.get(phase, GENERAL)


def classes(events: EventColumns) -> Ints:
    """The class of each event, shape (rows,)."""
    by_phase = np.asarray([class_of(phase) for phase in events.phase.values] or [NOTHING], np.int64)
    found = by_phase[events.phase.codes]
    if any(kind.startswith(KINDS_OF_OTHERS) for kind in events.kind.values):
        other = events.kind.mask(lambda kind: kind.startswith(KINDS_OF_OTHERS))
        found[other & (found == GENERAL)] = HOROVOD
    return found


def classes_of(events: EventColumns, rows: Ints) -> Ints:
    """The class of each chosen event."""
    chosen = attrs.evolve(_NO_EVENTS, phase=events.phase[rows], kind=events.kind[rows])
    return classes(chosen)


class WhatRan:
    """Sums of durations in microseconds by what ran; each dict in order of first appearance."""

    def __init__(self) -> None:
        self.cpu_phases: dict[str, float] = {}
        self.gpu_phases: dict[str, float] = {}
        self.cpu_operators: dict[str, float] = {}
        self.gpu_operators: dict[str, float] = {}
        self.steps: dict[str, float] = {}
        self.passes: dict[str, float] = {}
        self.general: dict[str, float] = {}
        self.horovod: dict[str, float] = {}

    def add(self, events: EventColumns, chosen: Ints | None = None, weights: Ints | None = None) -> None:
        """Add events.

        Args:
            events: the events.
            chosen: row numbers, in the order in which they are met; default: all.
            weights: how many times each chosen one counts; default: once.
        """
        if chosen is not None and weights is None and len(chosen) <= FEW:
            self._add_few(events, chosen)
            return
        phase = events.phase if chosen is None else events.phase[chosen]
        name = events.name if chosen is None else events.name[chosen]
        durations = events.duration_us if chosen is None else events.duration_us[chosen]
        durations = durations if weights is None else durations * weights
        self._add(phase, name, durations, classes(events) if chosen is None else classes_of(events, chosen))

    def _add(self, phase: Category, name: Category, durations: Floats, found: Ints) -> None:
        present = np.bincount(found, minlength=HOROVOD + 1) > 0
        for kind, by_phase, by_name in self._kinds():
            if not present[kind]:
                continue
            rows = np.flatnonzero(found == kind)
            if by_phase is not None:
                add_sums(by_phase, phase[rows], durations[rows])
            if by_name is not None:
                add_sums(by_name, name[rows], durations[rows])
        for kind, title in PASSES:
            if present[kind]:
                self.passes[title] = self.passes.get(title, 0) + float(durations[found == kind].sum())

    def _add_few(self, events: EventColumns, chosen: Ints) -> None:
        """The same, faster for a handful of events: what a step usually holds."""
        texts = (events.phase, events.name, events.kind)
        phases, names, timelines = ([each.values[code] for code in each.codes[chosen].tolist()] for each in texts)
        durations = events.duration_us[chosen]
        found = [
            HOROVOD if class_of(phase) == GENERAL and timeline.startswith(KINDS_OF_OTHERS) else class_of(phase)
            for phase, timeline in zip(phases, timelines, strict=True)
        ]
        sums: dict[int, tuple[dict[str, float], dict[str, float]]] = {}
        for kind, phase, name, duration in zip(found, phases, names, durations.tolist(), strict=True):
            by_phase, by_name = sums.setdefault(kind, ({}, {}))
            by_phase[phase] = by_phase.get(phase, 0.0) + duration
            by_name[name] = by_name.get(name, 0.0) + duration
        for kind, *ours in self._kinds():
            for mine, new in zip(ours, sums.get(kind, ({}, {})), strict=True):
                if mine is not None:
                    _add_to(mine, new)
        for kind, title in PASSES:
            if kind in sums:
                of_pass = durations[[each == kind for each in found]]
                self.passes[title] = self.passes.get(title, 0) + float(of_pass.sum())

    def _kinds(self) -> tuple[tuple[int, dict[str, float] | None, dict[str, float] | None], ...]:
        """Where the sums of each class by phase and by name go."""
        return (
            (CPU, self.cpu_phases, self.cpu_operators),
            (GPU, self.gpu_phases, self.gpu_operators),
            (STEP, self.steps, None),
            (GENERAL, self.general, None),
            (HOROVOD, None, self.horovod),
        )

    def merge(self, other: WhatRan) -> None:
        """Add the sums of another part."""
        for name, sums in vars(self).items():
            _add_to(sums, getattr(other, name))

    def write_details(self, details: dict[str, Any], *, swapped: bool = False) -> None:
        """Write the report's keys into `details`, keeping the place of those that are there.

        `swapped`: label the shares of CPU and GPU time the wrong way round, as the service does in some rules.
        """
        labels, values = [*self.gpu_phases, *self.cpu_phases], [*self.gpu_phases.values(), *self.cpu_phases.values()]
        if swapped:
            labels = [*self.cpu_phases, *self.gpu_phases]
        details["ratio"] = percentages(dict(zip(labels, values, strict=True)))
        for name, operators in (("CPU", self.cpu_operators), ("GPU", self.gpu_operators)):
            if operators:
                kept = kept_operators(operators)
                details[name] = percentages(kept)
                details[f"{name}_total"] = {key: whole(value) for key, value in kept.items()}
        details["phase"] = percentages(self.steps)
        details["phase_time"] = {}
        if self.general:
            details["general"] = percentages(self.general)
        if len(self.passes) == 2:  # noqa: PLR2004 - forward and backward
            details["forward_backward"] = percentages(
                {key: self.passes[key] for key in ("Forward pass", "Backward pass")}
            )
        if self.horovod:
            details["horovod"] = percentages(kept_operators(self.horovod))


def _add_to(sums: dict[str, float], more: dict[str, float]) -> None:
    for key, value in more.items():
        sums[key] = sums.get(key, 0) + value


def add_sums(sums: dict[str, float], category: Category, values: Floats) -> None:
    """Add the values to the sums of their texts; new texts go in by order of first appearance."""
    size = len(category.values)
    totals = np.bincount(category.codes, values, minlength=size)
    first = np.full(size, -1, np.int64)
    first[category.codes[::-1]] = np.arange(len(category.codes) - 1, -1, -1)
    present = np.flatnonzero(first >= 0)
    for code in present[np.argsort(first[present])]:
        key = category.values[code]
        sums[key] = sums.get(key, 0) + float(totals[code])


def percentages(sums: dict[str, float]) -> dict[str, float]:
    """Each value as a percentage of all; all zero gives zeros."""
    total = sum(sums.values())
    return {key: 100 * value / total if total else 0.0 for key, value in sums.items()}


def kept_operators(sums: dict[str, float]) -> dict[str, float]:
    """Those with more than 2 % of the time."""
    total = sum(sums.values())
    return {key: value for key, value in sums.items() if total and 100 * value / total > KEPT_SHARE}


def whole(value: float) -> float:
    """An int where nothing is lost by it: whole microseconds are ints in the reports."""
    return int(value) if value.is_integer() else value
