"""Waits inside graphs that are added to their steps' records later: reading them in each step would cost it more."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from sm_profiler.formats.event_names import COMPILED_STEP, DATALOADER_WAIT
from sm_profiler.hook.steps import WAITED, WAITED_UNRECORDED, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm_profiler.hook.tensorflow.stopwatch import Times


class LateWaits:
    """Completes records on the recorder's thread.

    Args:
        batches: takes the waits that began before a time, in time order.
    """

    def __init__(self, batches: Callable[[int], list[Times]]) -> None:
        self._batches = batches
        self._waits: deque[Times] = deque()  # of steps whose records have not come yet
        self._latest = (-1, -1)  # start of the latest step before and after its waits

    def complete(self, records: list[Record]) -> list[Record]:
        """Return records with the waits of their steps; a wait belongs to the step in which it ends."""
        ends = [record[3] for record in records if record[5] is WAITED or record[5] is WAITED_UNRECORDED]
        if ends:
            self._waits += self._batches(ends[-1])
        elif not any(record[0] == COMPILED_STEP and record[2] == self._latest[0] for record in records):
            return records
        found: list[Record] = []
        for record in records:
            phase, name, start, end, step, more = record
            if more is WAITED or more is WAITED_UNRECORDED:
                began = start + self._waited(start, end)
                self._latest = start, began
                if began > start and more is WAITED:
                    found.append((DATALOADER_WAIT, "tf.data", start, began, step, None))
                found.append((phase, name, began, end, step, None))
            elif phase == COMPILED_STEP and start == self._latest[0]:
                found.append((phase, name, self._latest[1], end, step, more))
            else:
                found.append(record)
        return found

    def _waited(self, start_ns: int, end_ns: int) -> int:
        """Return the nanoseconds of the waits in a step; earlier ones are those of callbacks."""
        waited = 0
        while self._waits and self._waits[0].end_ns <= end_ns:
            one = self._waits.popleft()
            waited += max(one.end_ns - max(one.start_ns, start_ns), 0)
        return waited
