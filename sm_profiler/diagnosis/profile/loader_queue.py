"""A queueing model of the data loader: how long a loop would wait with other numbers of workers.

It follows PyTorch's loader: batch number i belongs to worker i modulo W, batches are delivered in order, and each worker
may be `prefetch` batches ahead.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sm_profiler.formats.columns import Floats

PREFETCH = 2  # batches each worker may be ahead, PyTorch's default
MAX_BATCHES = 2_000  # simulated; the mean wait of more differs by little


def fetch_times(waits: Floats, lengths: Floats, workers: int) -> Floats:
    """Return the seconds that one worker needs for each batch, from a loop that its loader limits.

    Without workers, the loop waits while it loads. A worker that is never idle takes for a batch as long as its round.
    """
    if workers <= 0:
        return waits
    sums = np.concatenate([[0.0], np.cumsum(lengths)])
    workers = min(workers, len(lengths))
    rounds: Floats = sums[workers:] - sums[:-workers]
    return rounds


def simulated_wait(fetch: Floats, compute: Floats, workers: int, prefetch: int = PREFETCH) -> float:
    """Return the mean wait for a batch once the loop is under way.

    Args:
        fetch: seconds for each batch, in order; repeated if there are fewer than of `compute`.
        compute: seconds of each step that are not waiting.
        workers: worker processes; 0 loads in the loop itself.
        prefetch: batches each worker may be ahead.
    """
    if not len(fetch) or not len(compute):
        return 0.0
    compute = compute[:MAX_BATCHES]
    loads = np.resize(fetch[:MAX_BATCHES], len(compute))
    if workers <= 0:
        return float(loads.mean())
    ahead = workers * max(prefetch, 1)
    ready: list[float] = []
    taken: list[float] = []
    now = 0.0
    for number, (load, work) in enumerate(zip(loads.tolist(), compute.tolist(), strict=True)):
        free = ready[number - workers] if number >= workers else 0.0
        asked = taken[number - ahead] if number >= ahead else 0.0
        ready.append(max(free, asked) + load)
        now = max(now, ready[-1])
        taken.append(now)
        now += work
    begin = min(ahead, len(compute) // 2)  # until the queue has filled
    gaps = [after - before for before, after in pairwise(taken[begin:])]
    waits = np.asarray(gaps) - compute[begin : len(compute) - 1]
    return float(np.maximum(waits, 0.0).mean()) if len(waits) else 0.0
