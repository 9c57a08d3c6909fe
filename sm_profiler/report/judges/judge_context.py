"""What a judge is given, and the few questions that several judges ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.job_metrics import Facts, Rank
from sm_profiler.report.model import Finding


@attrs.frozen(eq=False)
class Case:
    """Facts and rule results of one job."""

    facts: Facts
    rules: dict[str, dict[str, Any]]

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Processes with enough training steps to be judged."""
        return tuple(rank for rank in self.facts.ranks if len(rank.turns) >= policy.MIN_STEPS.value)

    def mean(self, of: Callable[[Rank], float]) -> float:
        """Average over the judged ranks."""
        return float(np.mean([of(rank) for rank in self.ranks])) if self.ranks else 0.0

    @property
    def waits_known(self) -> bool:
        """Waiting for data was recorded over the loop (not only in the dataloader window)."""
        return waits_recorded(self.ranks)

    @property
    def wait(self) -> float:
        """Share of the training turns spent waiting for data, rare stalls and collections left out."""

        def of(rank: Rank) -> float:
            in_waits = rank.gc_in_wait / (float(rank.turns.length[rank.turns.known].sum()) or 1.0)
            steady = rank.stalls.is_rare and not input_bursts(rank, self.facts)
            return max(rank.share_of_turns("wait", without_stalls=steady) - in_waits, 0.0)

        return self.mean(of)

    @property
    def gpu_mean(self) -> float | None:
        """Mean use of all GPUs in the loop, percent."""
        return mean_or_none([gpu.mean for gpu in self.facts.gpus])

    def gpu_hides(self, kind: Class) -> bool:
        """Whether the GPUs are too busy for what was found to matter to them."""
        gpu, limit = self.gpu_mean, policy.HIDDEN_ABOVE.get(kind)
        if gpu is None or limit is None:
            return False
        measured = kind is Class.OPTIMIZER_BOUND and any(rank.on_device for rank in self.ranks)
        return gpu > limit.value and not measured

    @property
    def gpu_busiest(self) -> float | None:
        """Mean use of each node's busiest GPU, averaged over nodes, percent."""
        best: dict[str, float] = {}
        for gpu in self.facts.gpus:
            if np.isfinite(gpu.mean):
                best[gpu.node] = max(best.get(gpu.node, 0.0), gpu.mean)
        return mean_or_none(list(best.values()))

    @property
    def gpu_idle(self) -> float | None:
        """Share of the GPU samples in the loop below 10 %."""
        return mean_or_none([gpu.idle for gpu in self.facts.gpus])

    def rule_share(self, rule: str) -> float:
        """Violations by data points of a bottleneck rule; 0 where it has too few data points."""
        found = self.rules.get(rule, {})
        points = found.get("Datapoints", 0)
        return float(found.get("Violations", 0)) / points if points >= policy.MIN_GPU_SAMPLES.value else 0.0


Judge: TypeAlias = Callable[[Case], Finding | None]


def mean_or_none(values: Sequence[float]) -> float | None:
    """Mean of the finite values."""
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else None


def waits_recorded(ranks: Sequence[Rank]) -> bool:
    """Waiting for data was recorded over the loop of all these processes."""
    return bool(ranks) and all(rank.has_waits or rank.waits_seen > 0.9 for rank in ranks)  # noqa: PLR2004 - what the number means stands in the line


def input_bursts(rank: Rank, facts: Facts) -> bool:
    """Long waits come one a round of the loader's workers: slow workers, not a stall with a cause of its own."""
    stalls, workers = rank.stalls, facts.loader.num_workers
    if stalls.where != "wait" or workers <= 0 or not stalls.count:
        return False
    return stalls.long.mean() >= 0.5 / workers and (stalls.period is None or stalls.period <= workers)


def confidence(case: Case, value: float, threshold: float, *, sure: bool = True) -> str:
    """How sure: enough steps, a value well beyond its threshold, and data that really shows it (`sure`)."""
    steps = min((len(rank.turns) for rank in case.ranks), default=0)
    points = (steps >= policy.STEADY_STEPS.value) + (value >= policy.CLEARLY.value * threshold) + 2 * sure
    return "high" if points == 4 else "medium" if points else "low"  # noqa: PLR2004 - all four points


def percent(share: float) -> str:
    """A share for a sentence: `62 %`, `0.4 %`."""
    shown = 100 * share
    return f"{shown:.0f} %" if shown >= 1 or shown == 0 else f"{shown:.1f} %"


def duration(seconds: float) -> str:
    """A time for a sentence: `1.2 ms`, `3.4 s`, `12 min`, `5.1 h`."""
    for limit, unit, scale in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3), (120.0, "s", 1.0), (7200.0, "min", 1 / 60)):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"


def size(count: float) -> str:
    """Bytes for a sentence: `1.2 GB`."""
    for limit, unit, scale in ((1e6, "kB", 1e3), (1e9, "MB", 1e6)):
        if abs(count) < limit:
            return f"{count / scale:.3g} {unit}"
    return f"{count / 1e9:.3g} GB"
