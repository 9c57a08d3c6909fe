"""Counters of torch's caching allocator on the device: allocations that had to be retried, memory in pieces."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from sm_profiler.formats.event_names import ALLOCATOR
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.steps import Record

BEATS = 10  # between two events, unless an allocation was retried


class Allocator(Collector):
    """Reads the counters on the recorder's thread, in a process that has initialised CUDA."""

    name = "allocator"

    def __init__(
        self, append: Callable[[Record], None], torch: Any, clock: Callable[[], int] = perf_counter_ns
    ) -> None:
        self._append = append
        self._torch = torch
        self._clock = clock
        self._beats = 0
        self._retries = 0
        self._forked = False

    def beat(self) -> None:
        """Record the counters now and then, and whenever an allocation was retried."""
        cuda = self._torch.cuda
        if self._forked or not cuda.is_initialized():
            return
        self._beats += 1
        device = cuda.current_device()
        stats = cuda.memory_stats_as_nested_dict(device)
        retries = stats.get("num_alloc_retries", 0)
        if retries == self._retries and self._beats % BEATS != 1:
            return
        self._retries = retries
        now = self._clock()
        args = {
            "device": device,
            "retries": retries,
            "ooms": stats.get("num_ooms", 0),
            "reserved_bytes": _all(stats, "reserved_bytes"),
            "allocated_bytes": _all(stats, "allocated_bytes"),
            "split_bytes": _all(stats, "inactive_split_bytes"),
        }
        self._append((ALLOCATOR, "allocator", now, now, -1, args))

    def forked(self) -> None:
        """Stop: a forked child cannot use its parent's CUDA."""
        self._forked = True


def _all(stats: dict[str, Any], name: str) -> int:
    """Return the current value of a counter over all pools."""
    value = stats.get(name, {}).get("all", {}).get("current", 0)
    return int(value)
