"""LoadBalancing: the GPUs of a node do not share the work evenly."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats, Ints
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.gpus import GPU_USE, per_gpu, why_not
from sm_profiler.rules.nodes import natural
from sm_profiler.rules.parameters import count, positive
from sm_profiler.rules.window import Window

EDGES = np.arange(0, 100, 2)  # 49 bins; the service leaves out what is above 98 %
PAIRS_PER_UPDATE = 500  # beyond so many the distances are computed when the result is asked for, not in every window


@attrs.frozen
class LoadBalancingParameters:
    """`threshold`: distance between two GPUs' workloads, 0 (same) to 0.83 (nothing in common)."""

    threshold: float = positive(0.5)
    patience: int = count(1000)


@attrs.define
class _Workload:
    bins: Ints
    count: int = 0


class LoadBalancing(BuiltinRule):
    """Fires for each pair of GPUs of a node whose histograms of use are further apart than `threshold` (Jensen-Shannon distance)."""

    description = "GPUs of one node that are used differently: the work is not shared evenly."
    recommendation = "Choose another distribution strategy or framework, and check that each process gets as much data."
    Parameters = LoadBalancingParameters
    service_defaults = {"threshold": 0.2}  # noqa: RUF012 - declared ClassVar in the base

    def start(self) -> None:
        """Nothing has been seen yet."""
        self._workloads: dict[str, dict[str, _Workload]] = {}

    def update(self, window: Window) -> bool:
        """Take the window's values of each GPU; True if a pair is out of balance."""
        if self.service and not window.looked_at_by_service:
            return False
        for node, gpu, values in per_gpu(window.system if self.service else window.new_system, GPU_USE):
            of_node = self._workloads.setdefault(node, {})
            workload = of_node.setdefault(gpu, _Workload(np.zeros(len(EDGES) - 1, np.int64)))
            workload.bins = workload.bins + np.histogram(values, EDGES)[0]
            workload.count += len(values)
        if self.service:
            self._write_workloads()
            return False  # it compares each GPU with itself only
        pairs = sum(len(of_node) * (len(of_node) - 1) // 2 for of_node in self._workloads.values())
        if pairs <= PAIRS_PER_UPDATE:
            self.finish()
        return self.triggered > 0

    def absorb(self, other: LoadBalancing) -> None:
        """Take in other nodes or other minutes of the same job."""
        for node, gpus in other._workloads.items():
            mine = self._workloads.setdefault(node, {})
            for gpu, theirs in gpus.items():
                own = mine.setdefault(gpu, _Workload(np.zeros(len(EDGES) - 1, np.int64)))
                own.bins, own.count = own.bins + theirs.bins, own.count + theirs.count

    def finish(self) -> None:
        """Compare every pair of GPUs of a node, over all values so far."""
        if self.service:
            return
        self._workloads = {
            node: dict(sorted(gpus.items(), key=lambda item: natural(item[0])))
            for node, gpus in sorted(self._workloads.items(), key=lambda item: natural(item[0]))
        }
        self.triggered = 0
        self._write_workloads()
        for node, gpus in self._workloads.items():
            judged = [gpu for gpu, workload in gpus.items() if workload.count > self.parameters.patience]
            distances = distances_of([gpus[gpu].bins.astype(np.float64) for gpu in judged])
            for (one, other), distance in zip(combinations(judged, 2), distances, strict=True):
                if distance > self.parameters.threshold:
                    self.triggered += 1
                    self.details[node].setdefault("distances", {}).setdefault(one, {})[other] = float(distance)
        self.violations = self.triggered
        why = why_not(self.datapoints, self.parameters.patience)
        if why is None and all(len(gpus) == 1 for gpus in self._workloads.values()):
            why = "one GPU per node: nothing to compare"
        self.not_evaluated(why)

    def _write_workloads(self) -> None:
        self.details = {}
        for node, gpus in self._workloads.items():
            shown: dict[str, Any] = {gpu: workload.bins.tolist() for gpu, workload in gpus.items()}
            self.details[node] = {"workloads": shown}
            self.datapoints = next(reversed(gpus.values())).count


def distances_of(histograms: list[Floats]) -> Floats:
    """The Jensen-Shannon distance (natural logarithm) of each pair, in the order of itertools.combinations."""
    if len(histograms) < 2:  # noqa: PLR2004 - a pair takes two
        return np.empty(0)
    shares = np.stack(histograms)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1)
    found = [_distances(shares[index], shares[index + 1 :]) for index in range(len(shares) - 1)]
    return np.concatenate(found)


def _distances(one: Floats, others: Floats) -> Floats:
    middle = (one + others) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(share > 0, share * np.log(share / middle), 0.0).sum(axis=1) for share in (one[None], others)]
    distances: Floats = np.sqrt(np.maximum((parts[0] + parts[1]) / 2, 0))
    return distances
