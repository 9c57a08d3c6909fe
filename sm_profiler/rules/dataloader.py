"""Dataloader: the loop waits for batches that too few workers prepare, or there are more workers than cores can run."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from sm_profiler.formats import event_names
from sm_profiler.formats.columns import EventColumns, Floats, Ints
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.nodes import natural, node_of
from sm_profiler.rules.parameters import positive
from sm_profiler.rules.quantile_sketch import Spread
from sm_profiler.rules.window import Window

PATIENCE = 10
MANY_COUNTS = 1000  # the service starts its list of counts anew beyond this
BINS = 100
WAITING_SHARE = 0.1  # of the loop: below it nobody waits, however few the workers are
INTERRUPTION_US = 60e6  # without a batch for so long: recording paused, the time between does not belong to the loop


@attrs.frozen
class DataloaderParameters:
    """Percent of a node's cores."""

    min_threshold: float = positive(70)
    max_threshold: float = positive(200)


@attrs.define
class _Waits:
    """How long one process's loop waited for batches, of how long it was watched."""

    first_us: float
    last_us: float  # start of the last wait
    last_length_us: float
    waited_us: float = 0.0
    watched_us: float = 0.0

    def add_gap(self, next_us: float, end: _Waits) -> None:
        """Go on with the waits that start at next_us and end as in `end`."""
        gap_us = next_us - self.last_us
        if 0 <= gap_us <= INTERRUPTION_US:
            self.watched_us += gap_us
            self.waited_us += min(self.last_length_us, gap_us)
        self.last_us, self.last_length_us = end.last_us, end.last_length_us
        self.watched_us += end.watched_us
        self.waited_us += end.waited_us


def _waits_of(starts: Floats, lengths: Floats) -> _Waits:
    order = np.argsort(starts, kind="stable")
    starts, lengths = starts[order], lengths[order]
    gaps = np.diff(starts)
    watched = gaps <= INTERRUPTION_US
    waited_us = float(np.minimum(lengths[:-1], gaps)[watched].sum())
    return _Waits(float(starts[0]), float(starts[-1]), float(lengths[-1]), waited_us, float(gaps[watched].sum()))


class Dataloader(BuiltinRule):
    """Fires where the loop waits for batches and the node's workers are fewer than `min_threshold` % of its cores, or where they exceed `max_threshold` %."""

    description = "Whether the number of data loader workers suits the machine and the loop waits for its batches."
    recommendation = (
        "Where the loop waits: more workers, pinned memory, prefetching. Where workers crowd the cores: fewer."
    )
    Parameters = DataloaderParameters

    def start(self) -> None:
        """Nothing has been seen yet."""
        self._cores: dict[str, set[str]] = {}  # by node
        self._service_cores: int | None = None
        self._settings: dict[str, Any] = {}
        self._workers: dict[str, int] = {}  # by process: how many workers it said it has
        self._parallel = Spread()  # loader processes per node and second
        self._counts: list[int] = []
        self._times = Spread(exact=self.service)
        self._waits: dict[tuple[str, str], _Waits] = {}  # by process and kind of event
        self._saw_events = False

    def update(self, window: Window) -> bool:
        """Take the window's loader events; True once it has fired."""
        if self.service:
            if window.looked_at_by_service:
                self._update_as_service(window)
            return self.triggered > 0
        system, events = window.new_system, window.new_events
        is_cpu = system.dimension.mask("CPUUtilization")
        for node in system.node.present():
            self._cores.setdefault(node, set()).update(system.name[is_cpu & system.node.mask(node)].present())
        self._saw_events = self._saw_events or len(events) > 0
        self._learn_settings(events)
        self._take_times(events)
        for kind in (event_names.DATALOADER_ITER, event_names.DATALOADER_WAIT):
            rows = np.flatnonzero(events.phase.mask(kind))
            codes, starts_us, lengths_us = events.node.codes[rows], events.start_us[rows], events.duration_us[rows]
            for code in np.unique(codes):
                waits = _waits_of(starts_us[codes == code], lengths_us[codes == code])
                key = (events.node.values[code], kind)
                if key in self._waits:
                    self._waits[key].add_gap(waits.first_us, waits)
                else:
                    self._waits[key] = waits
        return False

    def _learn_settings(self, events: EventColumns) -> None:
        loaders = events[
            events.phase.mask(lambda phase: phase in {event_names.DATALOADER_INITIALIZE, event_names.DATALOADER_ITER})
        ]
        told = loaders[loaders.num_workers >= 0]
        for process in told.node.present():
            self._workers[process] = max(
                int(told.num_workers[told.node.mask(process)].max()), self._workers.get(process, 0)
            )
        for name, values in (("pin_memory", loaders.pin_memory), ("num_workers", loaders.num_workers)):
            known = values[values >= 0]
            if len(known):
                last = int(known.max())  # whatever order the parts of a job come in
                last = max(last, int(self._settings.get(name, 0)))
                self._settings[name] = bool(last) if name == "pin_memory" else last
        if events.name.mask(lambda name: event_names.TENSORFLOW_PREFETCH in name).any():
            self._settings["prefetch"] = True

    def _take_times(self, events: EventColumns) -> list[int]:
        """Take the loader events' times; returns how many processes loaded in each second, of each node."""
        loading = events[
            events.phase.mask(lambda phase: phase in {event_names.DATALOADER_ITER, event_names.DATALOADER_WORKER})
        ]
        self.datapoints += len(loading)
        self._times.add(loading.duration_us / 1e6)
        counts: list[int] = []
        nodes = [""] if self.service else sorted({node_of(process) for process in loading.node.present()})
        for node in nodes:
            own = loading if self.service else loading[loading.node.mask(lambda name, node=node: node_of(name) == node)]
            seconds: Ints = (own.start_us // 1e6).astype(np.int64)
            pairs = np.unique(np.stack([seconds, own.pid]), axis=1)
            counts += np.unique(pairs[0], return_counts=True)[1].tolist()
        self._parallel.add(np.asarray(counts, np.float64))
        return counts

    def _update_as_service(self, window: Window) -> None:
        system, events = window.system, window.events
        if self._service_cores is None:
            self._service_cores = len(set(system.name[system.dimension.mask("CPUUtilization")].present()))
        initial = events[events.phase.mask(event_names.DATALOADER_INITIALIZE)]
        if len(initial):
            for name, values in (("pin_memory", initial.pin_memory), ("num_workers", initial.num_workers)):
                if values[-1] >= 0:
                    self._settings[name] = bool(values[-1]) if name == "pin_memory" else int(values[-1])
        if events.name.mask(lambda name: event_names.TENSORFLOW_PREFETCH in name).any():
            self._settings["prefetch"] = True
        if len(self._counts) > MANY_COUNTS:
            self._counts = []
        counts = self._take_times(events)
        self._counts += counts
        if not counts:
            return
        cores, middle = self._service_cores, int(np.median(self._counts))
        if len(self._counts) > PATIENCE:
            self.violations += middle < cores * self.parameters.min_threshold / 100
            self.violations += middle > cores * self.parameters.max_threshold / 100
        self.triggered = int(self.violations > 0)
        self._write_details(cores, middle)

    def absorb(self, other: Dataloader) -> None:
        """Take in other nodes or other minutes of the same job."""
        self.datapoints += other.datapoints
        self._saw_events = self._saw_events or other._saw_events
        self._times.merge(other._times)
        self._parallel.merge(other._parallel)
        for node, names in other._cores.items():
            self._cores.setdefault(node, set()).update(names)
        for process, workers in other._workers.items():
            self._workers[process] = max(workers, self._workers.get(process, 0))
        for name, value in other._settings.items():
            self._settings[name] = max(value, self._settings.get(name, value))
        for key, theirs in other._waits.items():
            mine = self._waits.get(key)
            if mine is None:
                self._waits[key] = theirs
                continue
            first, second = (mine, theirs) if mine.first_us <= theirs.first_us else (theirs, mine)
            first.add_gap(second.first_us, second)
            self._waits[key] = first

    def finish(self) -> None:
        """Judge each node."""
        if self.service:
            return
        self.violations = 0
        self.details = {}
        shares = self._waiting_shares()
        if self.datapoints or shares:
            cores = max((len(names) for names in self._cores.values()), default=0)
            middle = int(self._parallel.quantiles([0.5])[0]) if self._parallel.count else 0
            self._write_details(cores, middle)
        for node, share in sorted(shares.items(), key=lambda item: natural(item[0])):
            self.details.setdefault("waiting_share", {})[node] = share
        if self.datapoints > PATIENCE:
            for node in sorted(self._cores, key=natural):
                workers = self._workers_of(node)
                if workers is not None:
                    cores = len(self._cores[node])
                    waits = shares.get(node, 0.0) > WAITING_SHARE
                    self.violations += waits and workers < cores * self.parameters.min_threshold / 100
                    self.violations += workers > cores * self.parameters.max_threshold / 100
        self.triggered = int(self.violations > 0)
        self.not_evaluated(self._why_not())

    def _why_not(self) -> str | None:
        if not self._saw_events:
            return "no framework data"
        if not self.datapoints:
            return "no data loader events: switch data loader profiling on"
        if self.datapoints <= PATIENCE:
            return f"{self.datapoints} data loader events, more than {PATIENCE} are needed"
        return None if any(self._cores.values()) else "no CPU metrics"

    def _waiting_shares(self) -> dict[str, float]:
        """The share of each node's loops spent waiting for batches."""
        sums: dict[str, list[float]] = {}
        for (process, kind), waits in self._waits.items():
            if kind == event_names.DATALOADER_WAIT or (process, event_names.DATALOADER_WAIT) not in self._waits:
                of_node = sums.setdefault(node_of(process), [0.0, 0.0])
                of_node[0] += waits.waited_us
                of_node[1] += waits.watched_us
        return {node: waited / watched for node, (waited, watched) in sums.items() if watched}

    def _workers_of(self, node: str) -> int | None:
        """How many workers all processes of a node have together; None if nothing tells."""
        told = [workers for process, workers in self._workers.items() if node_of(process) == node]
        return sum(told) if told else None

    def _write_details(self, cores: int, middle: int) -> None:
        for name in ("pin_memory", "num_workers", "prefetch"):
            if name in self._settings:
                self.details[name] = self._settings[name]
        self.details["cores"] = cores
        self.details["dataloaders"] = middle
        if self._times.count:
            p25, p50, p95 = self._times.quantiles([0.25, 0.5, 0.95])
            values, counts = self._times.values_and_counts()
            probs, edges = np.histogram(values, bins=BINS, weights=counts)
            histogram = {"probs": probs.astype(int).tolist(), "binedges": edges.tolist()}
            self.details["dataloading_time"] = {"p25": p25, "p50": p50, "p95": p95, **histogram}
