"""Fetches that run beside the computation of the batch before, in a function that runs several batches."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sm_profiler.hook.tensorflow.stopwatch import Times

RECENT = 3  # runs; the shortest of their last batches is the computation of one, which other load only lengthens


class Overlap:
    """Finds how much of the waiting for data is hidden behind computation.

    With `steps_per_execution`, Keras requests the next batch as it begins to compute one: neither needs the other.  The
    last batch of a run is computed with nothing beside it, which shows how long that takes.
    """

    def __init__(self) -> None:
        self._alone: dict[Hashable, deque[int]] = defaultdict(lambda: deque(maxlen=RECENT))

    def hidden(self, waits: Sequence[Times], end_ns: int, kind: Hashable = None) -> int:
        """Return the nanoseconds of the waits of a run during which it also computed.

        Args:
            waits: the run's fetches, in time order.
            end_ns: end of the run.
            kind: what the run does; training and evaluation compute for different times.
        """
        if not waits[1:]:
            return 0
        alone = self._alone[kind]
        alone.append(max(end_ns - waits[-1].end_ns, 0))
        computing = min(alone)
        if 2 * (waits[1].start_ns - waits[0].end_ns) > computing:  # one after the other
            return 0
        return sum(min(later.end_ns - later.start_ns, computing) for _, later in pairwise(waits))
