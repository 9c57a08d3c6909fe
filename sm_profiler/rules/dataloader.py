"""Dataloader: the loop waits for batches that too few workers prepare, or workers crowd the cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from sm_profiler.folding import EvaluationWindow
from sm_profiler.formats import event_names
from sm_profiler.formats.columns import EventColumns, Floats, Ints, Mask, SystemColumns
from sm_profiler.formatting import natural_key
from sm_profiler.rules.base import CPU_UTILIZATION, BuiltinRule, names_by_node, node_groups, node_of, positive
from sm_profiler.rules.results import KeyOrder, RuleResult
from sm_profiler.rules.statistics import QuantileSketch, histogram

PATIENCE = 10  # events or counts before the rule is silent
BINS = 100
MIN_WAITING_SHARE = 0.1  # of the loop: below it, few workers do no harm
MAX_GAP_US = 60e6  # a longer time without a batch is a pause in the recording and not part of the loop
MOST_SPARSE = 64  # steps, of which the hook records the wait of one
MAX_COUNTS = 1000  # the service cleared its list of counts beyond this
ITERATIONS = (event_names.DATALOADER_ITER, event_names.DATALOADER_WAIT)


@attrs.frozen
class DataloaderParameters:
    """Workers in percent of a node's cores."""

    min_threshold: float = positive(70)
    max_threshold: float = positive(200)


def loading_times(seconds: QuantileSketch) -> dict[str, Any]:
    """Summarize durations of the loader's events; the sketch must not be empty."""
    values, counts = seconds.values_and_counts()
    bins, edges = histogram(values, BINS, counts)
    p25, p50, p95 = seconds.quantiles([0.25, 0.5, 0.95])
    return {"p25": p25, "p50": p50, "p95": p95, "probs": bins.tolist(), "binedges": edges.tolist()}


@attrs.define
class _Waits:
    """Time that one process's loop waited for batches, out of the time that it was observed."""

    first_us: float
    last_us: float  # start of the last wait
    last_length_us: float
    first_step: int
    last_step: int
    waited_us: float = 0.0
    observed_us: float = 0.0

    @classmethod
    def of(cls, starts: Floats, lengths: Floats, steps: Ints) -> _Waits:
        order = np.argsort(starts, kind="stable")
        starts, lengths, steps = starts[order], lengths[order], steps[order]
        gaps = np.diff(starts)
        observed = gaps <= MAX_GAP_US
        waited_us = float(np.minimum(lengths[:-1] * _steps_between(np.diff(steps)), gaps)[observed].sum())
        ends = float(starts[0]), float(starts[-1]), float(lengths[-1]), int(steps[0]), int(steps[-1])
        return cls(*ends, waited_us, float(gaps[observed].sum()))

    def append(self, later: _Waits) -> None:
        gap_us = later.first_us - self.last_us
        if 0 <= gap_us <= MAX_GAP_US:
            self.observed_us += gap_us
            steps = int(_steps_between(np.asarray([later.first_step - self.last_step]))[0])
            self.waited_us += min(self.last_length_us * steps, gap_us)
        self.last_us, self.last_length_us, self.last_step = later.last_us, later.last_length_us, later.last_step
        self.observed_us += later.observed_us
        self.waited_us += later.waited_us


def _steps_between(differences: Ints) -> Ints:
    """Return of how many steps each recorded wait is one: of short steps, the hook records those of every n-th."""
    return np.where((differences > 1) & (differences <= MOST_SPARSE), differences, 1)


class Dataloader(BuiltinRule):
    """Fires if the loop waits for batches and the node's workers are fewer than `min_threshold` % of its cores, or more than `max_threshold` %."""

    Parameters = DataloaderParameters

    def start(self) -> None:
        self._events = 0
        self._cores: dict[str, set[str]] = {}  # by node
        self._settings: dict[str, int | bool] = {}
        self._workers: dict[str, int] = {}  # by process, as recorded
        self._parallel = QuantileSketch()  # loading processes per node and second
        self._seconds = QuantileSketch(exact=self.differs.all_values)
        self._waits: dict[tuple[str, str], _Waits] = {}  # by process and phase
        self._waited = 0  # waits that were recorded, in windows and outside of them
        self._saw_events = False
        if self.differs.processes:
            self._violations = 0
            self._core_count: int | None = None  # in the first window
            self._counts: list[int] = []
            self._details: dict[str, Any] = {}
            self._order = KeyOrder()

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Add the window's loader events; the rule is evaluated for results only."""
        system, events = self.rows(window)
        for node, names in names_by_node(system, system.dimension.mask(CPU_UTILIZATION)).items():
            self._cores.setdefault(node, set()).update(names)
        self._saw_events = self._saw_events or len(events) > 0
        if not self.differs.processes:
            self._add_settings(events)
        loading = loading_events(events)
        self._events += len(loading)
        self._seconds.add(loading.duration_us / 1e6)
        if self.differs.processes:
            return self._evaluate_processes(system, events, loading)
        for _, own in sorted(node_groups(loading.node).items()):
            self._parallel.add(np.asarray(processes_per_second(loading[own]), np.float64))
        self._waited += int(events.phase.mask(event_names.DATALOADER_WAIT).sum())
        for phase in ITERATIONS:
            for process, rows in events.node.groups(events.phase.mask(phase)):
                waits = _Waits.of(events.start_us[rows], events.duration_us[rows], events.step[rows])
                known = self._waits.setdefault((process, phase), waits)
                if known is not waits:
                    known.append(waits)
        return False

    def _evaluate_processes(self, system: SystemColumns, events: EventColumns, loading: EventColumns) -> bool:
        """Compare the processes that load at a time with the cores of the first window, as the service did."""
        if self._core_count is None:
            self._core_count = len(set(system.name[system.dimension.mask(CPU_UTILIZATION)].present()))
        initial = events[events.phase.mask(event_names.DATALOADER_INITIALIZE)]
        if len(initial) and initial.pin_memory[-1] >= 0:
            self._settings["pin_memory"] = bool(initial.pin_memory[-1])
        if len(initial) and initial.num_workers[-1] >= 0:
            self._settings["num_workers"] = int(initial.num_workers[-1])
        if has_prefetch(events).any():
            self._settings["prefetch"] = True
        if len(loading):
            self._counts = self._counts if len(self._counts) <= MAX_COUNTS else []
            self._counts += processes_per_second(loading)
            median, cores = int(np.median(self._counts)), self._core_count
            if len(self._counts) > PATIENCE:
                self._violations += median < cores * self.parameters.min_threshold / 100
                self._violations += median > cores * self.parameters.max_threshold / 100
            self._details = {**self._shown_settings(), "cores": cores, "dataloaders": median}
            self._details["dataloading_time"] = loading_times(self._seconds)
            self._order.add(self._details)
        return self._violations > 0

    def _add_settings(self, events: EventColumns) -> None:
        iterations = {event_names.DATALOADER_INITIALIZE, event_names.DATALOADER_ITER}
        loaders = events[events.phase.mask(lambda phase: phase in iterations)]
        with_workers = loaders[loaders.num_workers >= 0]
        workers = {process: int(with_workers.num_workers[rows].max()) for process, rows in with_workers.node.groups()}
        settings: dict[str, int | bool] = {}
        if (loaders.pin_memory >= 0).any():
            settings["pin_memory"] = bool(loaders.pin_memory.max())
        if workers:
            settings["num_workers"] = max(workers.values())
        if has_prefetch(events).any():
            settings["prefetch"] = True
        self._merge_settings(settings, workers)

    def _merge_settings(self, settings: Mapping[str, int | bool], workers: Mapping[str, int]) -> None:
        """Keep the largest values: the result does not depend on the order of a job's parts."""
        for name, value in settings.items():
            self._settings[name] = max(value, self._settings.get(name, value))
        for process, number in workers.items():
            self._workers[process] = max(number, self._workers.get(process, 0))

    def absorb(self, other: Dataloader) -> None:
        self._events += other._events
        self._waited += other._waited
        self._saw_events = self._saw_events or other._saw_events
        self._seconds.merge(other._seconds)
        self._parallel.merge(other._parallel)
        for node, names in other._cores.items():
            self._cores.setdefault(node, set()).update(names)
        self._merge_settings(other._settings, other._workers)
        for key, theirs in other._waits.items():
            mine = self._waits.get(key)
            if mine is None:
                self._waits[key] = theirs
                continue
            first, second = (mine, theirs) if mine.first_us <= theirs.first_us else (theirs, mine)
            first.append(second)
            self._waits[key] = first

    def result(self) -> RuleResult:
        """Evaluate each node by all events so far."""
        if self.differs.processes:
            triggered = int(self._violations > 0)
            return self._result(triggered, self._violations, self._events, self._order.apply(self._details))
        shares = self._waiting_shares()
        violations = 0
        if self._points > PATIENCE:
            workers: dict[str, int] = {}
            for process, number in self._workers.items():
                workers[node_of(process)] = workers.get(node_of(process), 0) + number
            violations = sum(
                self._violations_of(node, workers.get(node), shares.get(node, 0.0)) for node in self._cores
            )
        details: dict[str, Any] = {}
        if self._events or shares:
            cores = max((len(names) for names in self._cores.values()), default=0)
            parallel = int(self._parallel.quantiles([0.5])[0]) if self._parallel.count else 0
            details = {**self._shown_settings(), "cores": cores, "dataloaders": parallel}
            if self._seconds.count:
                details["dataloading_time"] = loading_times(self._seconds)
            if shares:
                details["waiting_share"] = dict(sorted(shares.items(), key=lambda item: natural_key(item[0])))
        return self._result(int(violations > 0), violations, self._points, details, self._missing())

    def _shown_settings(self) -> dict[str, int | bool]:
        names = ("pin_memory", "num_workers", "prefetch")
        return {name: self._settings[name] for name in names if name in self._settings}

    @property
    def _points(self) -> int:
        """Events to judge by: those of the windows, or, if these are short, the waits of the whole loop."""
        return self._events if self._events > PATIENCE else max(self._events, self._waited)

    def _violations_of(self, node: str, workers: int | None, waiting_share: float) -> int:
        """Return the number of thresholds that a node's workers violate; None: their number is unknown."""
        if workers is None:
            return 0
        cores, limits = len(self._cores[node]), self.parameters
        waits = waiting_share > MIN_WAITING_SHARE
        too_few = waits and workers < cores * limits.min_threshold / 100
        return int(too_few) + int(workers > cores * limits.max_threshold / 100)

    def _waiting_shares(self) -> dict[str, float]:
        """Return the share of each node's loops spent waiting for batches; recorded waits come before iterations."""
        sums: dict[str, list[float]] = {}
        for (process, phase), waits in sorted(self._waits.items()):
            if phase == event_names.DATALOADER_WAIT or (process, event_names.DATALOADER_WAIT) not in self._waits:
                of_node = sums.setdefault(node_of(process), [0.0, 0.0])
                of_node[0] += waits.waited_us
                of_node[1] += waits.observed_us
        return {node: waited / observed for node, (waited, observed) in sums.items() if observed}

    def _missing(self) -> str | None:
        if not self._saw_events:
            return "no framework data"
        if not self._points:
            return "no data loader events: switch data loader profiling on"
        if self._points <= PATIENCE:
            return f"{self._points} data loader events, more than {PATIENCE} are needed"
        if self._events <= PATIENCE and not self._workers:
            return "the number of workers was not recorded: switch data loader profiling on"
        return None if any(self._cores.values()) else "no CPU metrics"


def loading_events(events: EventColumns) -> EventColumns:
    phases = {event_names.DATALOADER_ITER, event_names.DATALOADER_WORKER}
    found: EventColumns = events[events.phase.mask(lambda phase: phase in phases)]
    return found


def processes_per_second(loading: EventColumns) -> list[int]:
    """Return the number of processes that load in each second with events, ascending."""
    seconds: Ints = (loading.start_us // 1e6).astype(np.int64)
    pairs = np.unique(np.stack([seconds, loading.pid]), axis=1)
    counts: list[int] = np.unique(pairs[0], return_counts=True)[1].tolist()
    return counts


def has_prefetch(events: EventColumns) -> Mask:
    return events.name.mask(lambda name: event_names.TENSORFLOW_PREFETCH in name)
