"""LoadBalancing: the GPUs of a node do not share the work evenly."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import attrs
import numpy as np

from sm_profiler.folding.window import EvaluationWindow
from sm_profiler.formats.columns import Floats, Ints, SystemColumns
from sm_profiler.formatting import natural_key
from sm_profiler.rules.base import GPU_UTILIZATION, BuiltinRule, gpu_data_missing, values_per_gpu
from sm_profiler.rules.parameters import count, positive
from sm_profiler.rules.results import RuleResult

EDGES = np.arange(0, 100, 2)  # 49 bins; the service leaves out values above 98 %
MAX_PAIRS_PER_WINDOW = 500  # with more pairs, distances are computed for results only, not in every window


@attrs.frozen
class LoadBalancingParameters:
    """`threshold`: distance between two GPUs' histograms, 0 (equal) to 0.83 (disjoint)."""

    threshold: float = positive(0.5, of_service=0.2)
    patience: int = count(1000)


@attrs.define
class _Histogram:
    bins: Ints = attrs.field(factory=lambda: np.zeros(len(EDGES) - 1, np.int64))
    count: int = 0

    def add(self, bins: Ints, count: int) -> None:
        self.bins = self.bins + bins
        self.count += count


class LoadBalancing(BuiltinRule):
    """Fires for each pair of GPUs of a node whose histograms of use differ by more than `threshold` (Jensen-Shannon distance)."""

    Parameters = LoadBalancingParameters

    def start(self) -> None:
        """Set up the state of the fold."""
        self._nodes: dict[str, dict[str, _Histogram]] = {}
        self._pairs = 0  # of GPUs of one node
        self._changed: set[str] = set()  # nodes with new values since they were last judged
        self._unbalanced: set[str] = set()  # nodes with a pair out of balance

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Add the window's values of each GPU; return True if a pair is out of balance."""
        self._add(self.rows(window)[0])
        if self.differs.with_itself:
            return False
        if self._pairs <= MAX_PAIRS_PER_WINDOW:
            fired = {node for node in self._changed if self._distances(self._nodes[node])}
            self._unbalanced -= self._changed
            self._unbalanced |= fired
            self._changed.clear()
        return bool(self._unbalanced)

    def _add(self, system: SystemColumns) -> None:
        for node, gpu, values in values_per_gpu(system, GPU_UTILIZATION):
            histogram = self._histogram(node, gpu)
            histogram.add(np.histogram(values, EDGES)[0], len(values))

    def _histogram(self, node: str, gpu: str) -> _Histogram:
        """Return the histogram of a GPU, to which values will be added."""
        gpus = self._nodes.setdefault(node, {})
        self._changed.add(node)
        self._pairs += len(gpus) if gpu not in gpus else 0
        return gpus.setdefault(gpu, _Histogram())

    def _distances(self, gpus: dict[str, _Histogram]) -> dict[str, dict[str, float]]:
        """Return the distances above the threshold, by pairs of a node's GPUs."""
        patience, threshold = self.parameters.patience, self.parameters.threshold
        enough = [gpu for gpu in sorted(gpus, key=natural_key) if gpus[gpu].count > patience]
        distances = distances_of([gpus[gpu].bins.astype(np.float64) for gpu in enough])
        found: dict[str, dict[str, float]] = {}
        for (one, other), distance in zip(combinations(enough, 2), distances, strict=True):
            if distance > threshold:
                found.setdefault(one, {})[other] = float(distance)
        return found

    def absorb(self, other: LoadBalancing) -> None:
        """Add the state of another part of the job."""
        for node, gpus in other._nodes.items():
            for gpu, histogram in gpus.items():
                self._histogram(node, gpu).add(histogram.bins, histogram.count)

    def result(self) -> RuleResult:
        """Compare every pair of GPUs of a node, over all values so far."""
        if self.differs.with_itself:
            return self._result(0, 0, self._datapoints(), self._details({}))
        self._nodes = {
            node: dict(sorted(gpus.items(), key=lambda item: natural_key(item[0])))
            for node, gpus in sorted(self._nodes.items(), key=lambda item: natural_key(item[0]))
        }
        distances = {node: found for node, gpus in self._nodes.items() if (found := self._distances(gpus))}
        triggered = sum(len(others) for pairs in distances.values() for others in pairs.values())
        datapoints = self._datapoints()
        not_evaluated = gpu_data_missing(datapoints, self.parameters.patience)
        if not_evaluated is None and all(len(gpus) == 1 for gpus in self._nodes.values()):
            not_evaluated = "one GPU per node: nothing to compare"
        return self._result(triggered, triggered, datapoints, self._details(distances), not_evaluated)

    def _datapoints(self) -> int:
        """Return the number of values of the last GPU of the last node."""
        last = next(reversed(self._nodes.values()), None)
        return next(reversed(last.values())).count if last else 0

    def _details(self, distances: Mapping[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
        """Return the histogram of each GPU, and of the pairs above the threshold their distance: node → GPU → other GPU."""
        details: dict[str, Any] = {
            node: {"workloads": {gpu: histogram.bins.tolist() for gpu, histogram in gpus.items()}}
            for node, gpus in self._nodes.items()
        }
        for node, found in distances.items():
            details[node]["distances"] = found
        return details


def distances_of(histograms: list[Floats]) -> Floats:
    """Return the Jensen-Shannon distance (natural logarithm) of each pair, in the order of itertools.combinations."""
    if len(histograms) < 2:  # a pair takes two
        return np.empty(0)
    shares = np.stack(histograms)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1)
    found = [_distances_to(shares[index], shares[index + 1 :]) for index in range(len(shares) - 1)]
    return np.concatenate(found)


def _distances_to(one: Floats, others: Floats) -> Floats:
    middle = (one + others) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(share > 0, share * np.log(share / middle), 0.0).sum(axis=1) for share in (one[None], others)]
    distances: Floats = np.sqrt(np.maximum((parts[0] + parts[1]) / 2, 0))
    return distances
