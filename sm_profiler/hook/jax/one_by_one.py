"""Cost of operations that run one by one: in gradient functions that the script has not compiled.

Such a function runs its operations as Python traces them.  The time within them is that of launching and, on a CPU,
of computing; the time between them is Python alone.  The cheapest operations compute nothing to speak of, so that what
they take is the launch.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from sm_profiler.formats.event_names import OPERATORS
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.steps import Record

FIRST = 4  # calls measured before the first record; the next comes after twice as many, and so on
CHEAPEST = 10  # one in so many operations takes less than the launch is taken to take
MAX_OPERATIONS = 100_000  # of a call; no more are timed


class OneByOne:
    """Measures some calls of functions that are not compiled.

    Args:
        append: takes the records.
        clock: nanoseconds.
    """

    def __init__(self, append: Callable[[Record], None], clock: Callable[[], int] = perf_counter_ns) -> None:
        self._append = append
        self._clock = clock
        self._watches = False  # JAX's evaluation of operations is wrapped
        self._taken: list[int] | None = None  # nanoseconds of each operation of the call that is measured
        self._thread = 0  # of that call
        self._inside = False  # an operation runs: what it runs itself is part of it
        self._found: list[tuple[int, float, int]] = []  # operations, fixed nanoseconds of each, nanoseconds of the call
        self._due = FIRST

    def watch(self, patches: Patches, core: Any) -> None:
        """Wrap JAX's evaluation of operations, once."""
        if self._watches:
            return
        self._watches = True
        owner = getattr(core, "EvalTrace", None)
        original = getattr(owner, "process_primitive", None)
        if original is not None:
            patches.put(owner, "process_primitive", self._wrap(original))

    def _wrap(self, original: Any) -> Any:
        get_ident = threading.get_ident

        def process_primitive(*args: Any, **kwargs: Any) -> Any:
            taken = self._taken
            if taken is None or self._inside or len(taken) >= MAX_OPERATIONS or get_ident() != self._thread:
                return original(*args, **kwargs)
            self._inside = True
            start = self._clock()
            try:
                return original(*args, **kwargs)
            finally:
                taken.append(self._clock() - start)
                self._inside = False

        return process_primitive

    def begins(self) -> None:
        """Measure the call that begins."""
        self._taken, self._thread = [], threading.get_ident()

    def ended(self, nanoseconds: int, step: int) -> None:
        """Note the end of the measured call."""
        taken, self._taken = self._taken, None
        if not taken:
            return
        cheapest = sorted(taken)[len(taken) // CHEAPEST]
        python = max(nanoseconds - sum(taken), 0)
        self._found.append((len(taken), python / len(taken) + cheapest, nanoseconds))
        if len(self._found) >= self._due:
            self._due *= 2
            count, fixed, length = map(statistics.median_low, zip(*self._found, strict=True))
            args = {
                "operators": count,
                "fixed_us": round(fixed / 1000, 3),
                "call_us": round(length / 1000, 1),
            }
            now = self._clock()
            self._append((OPERATORS, "operators", now, now, step, args))
            self._found = []

    def failed(self) -> None:
        """Forget the measured call: it raised an error."""
        self._taken, self._inside = None, False

    def forked(self) -> None:
        """Start over in a forked child."""
        self.failed()
        self._found, self._due = [], FIRST
