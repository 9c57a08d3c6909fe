"""The input of a judge, and computations that several judges share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.job_metrics import JobMetrics, Rank
from sm_profiler.report.model import Finding


@attrs.frozen(eq=False)
class JudgeContext:
    """Metrics and rule results of one job."""

    metrics: JobMetrics
    rules: dict[str, dict[str, Any]]

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Processes with enough training steps to be judged."""
        return tuple(rank for rank in self.metrics.ranks if len(rank.iterations) >= policy.MIN_STEPS)

    def mean(self, of: Callable[[Rank], float]) -> float:
        """Return the average over the judged ranks; 0 if there are none."""
        return float(np.mean([of(rank) for rank in self.ranks])) if self.ranks else 0.0

    @property
    def waits_known(self) -> bool:
        """True if waiting for data was recorded over the whole loop of all judged ranks."""
        return waits_recorded(self.ranks)

    @property
    def wait(self) -> float:
        """Share of the iterations spent waiting for data, without rare stalls and garbage collections."""

        def of(rank: Rank) -> float:
            in_waits = rank.gc_in_wait / (float(rank.iterations.length[rank.iterations.known].sum()) or 1.0)
            steady = rank.stalls.is_rare and not input_bursts(rank, self.metrics)
            return max(rank.share_of_iterations("wait", without_stalls=steady) - in_waits, 0.0)

        return self.mean(of)

    @property
    def gpu_mean(self) -> float | None:
        """Mean use of all GPUs in the loop, percent; None without GPUs."""
        return mean_or_none([gpu.mean for gpu in self.metrics.gpus])

    def gpu_hides(self, kind: Class) -> bool:
        """Return whether the GPUs are so busy that a finding of this class costs nothing."""
        gpu, limit = self.gpu_mean, policy.HIDDEN_ABOVE.get(kind)
        if gpu is None or limit is None:
            return False
        measured = kind is Class.OPTIMIZER_BOUND and any(rank.on_device for rank in self.ranks)
        return gpu > limit and not measured

    @property
    def gpu_busiest(self) -> float | None:
        """Mean use of the most used GPU of each node, averaged over nodes, percent; None without GPUs."""
        best: dict[str, float] = {}
        for gpu in self.metrics.gpus:
            if np.isfinite(gpu.mean):
                best[gpu.node] = max(best.get(gpu.node, 0.0), gpu.mean)
        return mean_or_none(list(best.values()))

    @property
    def gpu_idle(self) -> float | None:
        """Share of the GPU samples in the loop that are idle; None without GPUs."""
        return mean_or_none([gpu.idle for gpu in self.metrics.gpus])

    def rule_share(self, rule: str) -> float:
        """Return the violations of a bottleneck rule per data point; 0 with too few data points."""
        found = self.rules.get(rule, {})
        points = found.get("Datapoints", 0)
        return float(found.get("Violations", 0)) / points if points >= policy.MIN_GPU_SAMPLES else 0.0

    def confidence(self, value: float, threshold: float, *, sure: bool = True) -> str:
        """Return the confidence in a finding.

        Args:
            value: the value that exceeds the threshold.
            threshold: the threshold.
            sure: the data show the cause directly.
        """
        steps = min((len(rank.iterations) for rank in self.ranks), default=0)
        reasons = (steps >= policy.STEADY_STEPS, value >= policy.CLEARLY * threshold, sure)
        return "high" if all(reasons) else "medium" if any(reasons) else "low"


Judge: TypeAlias = Callable[[JudgeContext], Finding | None]


def mean_or_none(values: Sequence[float]) -> float | None:
    """Return the mean of the finite values; None if there are none."""
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else None


def waits_recorded(ranks: Sequence[Rank]) -> bool:
    """Return whether waiting for data was recorded over the whole loop of all these processes."""
    return bool(ranks) and all(rank.has_waits or rank.waits_seen > policy.WAITS_SEEN for rank in ranks)


def input_bursts(rank: Rank, metrics: JobMetrics) -> bool:
    """Return whether the long waits recur with each round of the loader's workers, so that slow workers cause them."""
    stalls, workers = rank.stalls, metrics.loader.num_workers
    if stalls.where != "wait" or workers <= 0 or not stalls.count:
        return False
    return bool(stalls.long.mean() >= policy.BURSTS / workers) and (stalls.period is None or stalls.period <= workers)
