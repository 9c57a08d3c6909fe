"""tf.data: inside the dataloader window how long the loop waits for each batch; now and then, how slow each stage is."""

from __future__ import annotations

import functools
import time
import weakref
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import attrs

from sm_profiler.formats.event_names import DATA_STAGES, DATALOADER_ITER
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.tensorflow.pipelines import describe

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session

DATALOADER = "dataloader"
RECENT = 8  # iterators that are sampled
ENDS = 4  # iterators that are sampled when they end: epochs may be shorter than the interval of the recorder


@attrs.define(eq=False)
class _Pipeline:
    """An iterator, and the beat at which its model is read next."""

    iterator: Any  # a weak reference
    beats: int = 0
    due: int = 1


class Stages(Collector):
    """Reads the model that TensorFlow's autotuning keeps of each iterator: less and less often, on the recorder's thread."""

    name = DATALOADER
    follows_steps = False  # batches are fetched ahead of their step

    def __init__(self, session: Session, tensorflow: Any) -> None:
        self._session = session
        self._read = tensorflow.data.experimental.get_model_proto
        self._missing = tensorflow.errors.NotFoundError
        self._eager = tensorflow.executing_eagerly
        self._pipelines: deque[_Pipeline] = deque(maxlen=RECENT)
        self._ends = 0
        self._parallelism = -1

    def wrap_init(self, original: Any) -> Any:
        """Return the constructor of an iterator."""

        @functools.wraps(original)
        def __init__(
            iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any
        ) -> None:  # replaces a method of this name
            original(iterator, dataset, *args, **kwargs)
            try:
                if dataset is not None and self._eager() and not self._session.quiet:
                    self._pipelines.append(_Pipeline(weakref.ref(iterator)))
            except Exception as error:  # fail open
                self._session.guard.failed(DATALOADER, error)

        return __init__

    def beat(self) -> None:
        """Read models that are due."""
        for pipeline in list(self._pipelines):
            pipeline.beats += 1
            if pipeline.beats >= pipeline.due:
                pipeline.due *= 2
                self._look(pipeline.iterator())

    def iterator_ended(self, iterator: Any) -> None:
        """Read the model of an iterator that has no more batches."""
        if self._ends < ENDS and not self._session.is_off(self.name):
            self._ends += 1
            with self._session.work.doing("stages of tf.data are read"):
                self._session.run(self, self._look, iterator)

    def epoch_ended(self) -> None:
        """Read the models of the iterators that a function has read from."""
        for iterator in [pipeline.iterator() for pipeline in self._pipelines]:
            if iterator is not None:
                self.iterator_ended(iterator)

    def close(self) -> None:
        """Read the models of the iterators that are still there."""
        for pipeline in self._pipelines:
            self._look(pipeline.iterator())

    def forked(self) -> None:
        """Forget the parent's iterators."""
        self._pipelines.clear()

    def _look(self, iterator: Any) -> None:
        dataset = getattr(iterator, "_dataset", None)
        if dataset is None:
            return
        try:
            model = self._read(iterator)
        except self._missing:
            self._session.note("tf.data", "stages of the input pipeline are unknown: its autotuning is off")
            return
        about = describe(model, dataset)
        if about["stages"]:
            self._parallelism = int(about["stages"][0]["parallelism"])
            now = perf_counter_ns()
            self._session.append((DATA_STAGES, "tf.data", now, now, self._session.tracker.number, about))

    @property
    def wanted(self) -> bool:
        """True while batches are recorded, or will be."""
        window = self._session.schedule.windows.get(DATALOADER)
        return window is not None and not window.ended and not self._session.is_off(DATALOADER)

    def batch(self, name: str, start_ns: int, end_ns: int) -> None:
        """Record a batch, if it is inside the window."""
        session = self._session
        window = session.schedule.windows.get(DATALOADER)
        if window is None or not self.wanted:
            return
        step = session.tracker.global_step + (not session.tracker.is_open)
        if window.at_step(max(step, 0), time.time(), time.monotonic()):
            about = {"worker_id": -1} | ({"num_workers": self._parallelism} if self._parallelism >= 0 else {})
            session.tracker.append((DATALOADER_ITER, f"{name}::GetNext", start_ns, end_ns, -1, about))
