"""Number of loader workers that a process needs and has cores for."""

from __future__ import annotations

import math
from collections import Counter

import attrs
import numpy as np

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.formatting import duration, plural


@attrs.frozen
class Workers:
    """Loader workers of one training process.

    Attributes:
        now: configured workers, -1 if unknown.
        cores: cores per process on the node that has the fewest; 0 if unknown.
        needed: workers that would deliver a batch in the rest of the step, at the present speed of each.
        wait, rest: seconds of an average step spent waiting, and not waiting.
        idle: loading itself mostly waits, so more workers than cores can run at once.
    """

    now: int
    cores: int
    needed: int
    wait: float
    rest: float
    idle: bool = False

    @property
    def suggested(self) -> int:
        """Number to try: at least what is needed, limited by the cores if loading computes."""
        wanted = max(int(policy.WORKERS), self.needed)
        limit = self.cores or max(2 * int(policy.WORKERS), self.now + 1)
        usual = max(min(wanted, limit), 1)
        return max(usual, min(self.needed, int(policy.IDLE_WORKERS))) if self.idle else usual

    def advice(self) -> str:
        """Return a sentence about the workers needed, and about the cores if they do not suffice."""
        hide = f"to load a batch in the other {duration(self.rest)} of a step"
        if not self.cores or self.needed <= self.cores:
            return f"About {plural(self.needed, 'worker')} {'is' if self.needed == 1 else 'are'} needed {hide}."
        if self.idle:
            return (
                f"About {self.needed:,} workers are needed {hide}. More workers than the {plural(self.cores, 'core')} are fine here: "
                "loading mostly waits for storage or the network and leaves them idle. Fewer, larger reads and closer data help, "
                "too."
            )
        return (
            f"More workers alone cannot suffice: about {self.needed:,} would be needed {hide}, and each training process has "
            f"{plural(self.cores, 'core')}. Also reduce preprocessing: cache its result, or use a faster decoder."
        )


def workers_of(context: JudgeContext) -> Workers:
    """Estimate the workers that the judged ranks need from the time that a batch takes today."""
    metrics = context.metrics
    ranks = Counter(rank.node for rank in metrics.ranks)
    cores = [max(count // max(ranks[node], 1), 1) for node, count in metrics.system.cores.items() if count]
    wait = context.mean(lambda rank: rank.mean("wait", without_stalls=False))
    iteration = context.mean(lambda rank: rank.mean("length", without_stalls=False))
    now, rest = metrics.loader.num_workers, max(iteration - wait, 1e-6)
    load = now * iteration if now > 0 else wait  # without workers, the process loads only while it waits
    needed = max(math.ceil(load / rest), now + 1, 1)
    idle = _mostly_waits(context, now, wait / max(iteration, 1e-9))
    return Workers(now, min(cores, default=0), needed, wait, rest, idle)


def _mostly_waits(context: JudgeContext, workers: int, wait: float) -> bool:
    """Return whether loading occupies fewer cores than it would if it computed; `wait` is a share of a step.

    Without workers, the training process loads, whose own CPU time is known: other programs do not count.
    """
    metrics = context.metrics
    own = [
        cores for rank in context.ranks if (usage := metrics.usage.get(rank.name)) is not None
        and (cores := usage.cores(rank.start, rank.end)) is not None
    ]  # fmt: skip
    if workers == 0 and own:
        available = 1 - min(
            context.core_wait, 1 - policy.LEAST_WORK
        )  # of the time; a thread without a core does not compute
        return float(np.mean(own)) / available - (1 - wait) < policy.LOADER_IDLE * wait
    cpu, cores = metrics.mean_of("cpu"), sum(metrics.system.cores.values())
    if cpu is None or not cores or not metrics.ranks:
        return False
    busy = cpu / 100 * cores / len(metrics.ranks)  # per training process, which occupies one while it does not wait
    return busy - (1 - wait) < policy.LOADER_IDLE * (workers if workers > 0 else wait)
