"""The adapter for TensorFlow."""

from __future__ import annotations

import functools
import weakref
from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.adapter import FrameworkAdapter
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.steps import Stream

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session

TENSORFLOW = "tensorflow"
STREAM = "_sm_profiler_stream"


class TensorFlowAdapter(FrameworkAdapter):
    """Patches the iterators of datasets: how long a loop waits for each batch."""

    framework = TENSORFLOW

    def __init__(self, session: Session) -> None:
        self.session = session
        self._patches = Patches(session.fail)

    def install(self) -> None:
        """Patch TensorFlow."""
        iterators = import_module("tensorflow.python.data.ops.iterator_ops")
        self._patches.replace(iterators.OwnedIterator, "__next__", self._wrap_next)

    def remove(self) -> None:
        """Restore TensorFlow."""
        self._patches.remove()

    def _wrap_next(self, original: Any) -> Any:
        session, tracker = self.session, self.session.tracker

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807 - replaces a method of this name
            if session.quiet or tracker.in_fetch:
                return original(iterator)
            stream = iterator.__dict__.get(STREAM)
            if stream is None:
                stream = iterator.__dict__[STREAM] = Stream(type(iterator).__name__, weakref.ref(iterator))
            tracker.fetch_begins()
            start = perf_counter_ns()
            try:
                batch = original(iterator)
            except StopIteration:
                tracker.fetch_ends(stream, start, perf_counter_ns(), got=False, gradients=True)
                raise
            except BaseException:
                tracker.fetch_failed()
                raise
            tracker.fetch_ends(stream, start, perf_counter_ns(), got=True, gradients=True)
            return batch

        return __next__
