"""The adapter for Keras 3: Keras's own loops mark the steps, on every backend."""

from __future__ import annotations

import functools
from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.adapter import FrameworkAdapter
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.patches import Patches

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session

KERAS = "keras"
LOOPS = ("fit", "evaluate", "predict")
MODES = {"train": ModeKeys.TRAIN, "test": ModeKeys.EVAL, "predict": ModeKeys.PREDICT}


class KerasAdapter(FrameworkAdapter):
    """Patches Keras's list of callbacks.

    It adds no callback: on the JAX backend a callback with methods for batches moves those of all others to the main
    thread.
    """

    framework = KERAS

    def __init__(self, session: Session) -> None:
        self.session = session
        self._patches = Patches(session.fail)
        self._loops = 0  # fit, evaluate and predict that run, one inside the other

    def install(self) -> None:
        """Patch the list of callbacks, and the methods of models that run a loop."""
        keras = import_module("keras")
        for name, mode in MODES.items():
            owner = keras.callbacks.CallbackList
            begins = functools.partial(self._batch_begins, mode)
            self._replace(owner, f"on_{name}_batch_begin", after=begins)
            self._replace(owner, f"on_{name}_batch_end", before=self._batch_ends)
        for name in LOOPS:
            definers = [owner for owner in keras.Model.__mro__ if name in vars(owner)]
            self._replace(definers[0], name, before=self._loop_begins, after=self._loop_ends)
        if keras.backend.backend() == "torch":  # a model under construction computes shapes by running its layers
            backend = import_module("keras.src.backend")
            self._replace(backend, "compute_output_spec", before=self._loop_begins, after=self._loop_ends)

    def remove(self) -> None:
        """Restore Keras."""
        self._patches.remove()
        self.session.tracker.release(KERAS)

    def _replace(self, owner: Any, name: str, *, before: Any = None, after: Any = None) -> None:
        session = self.session

        def note(action: Any) -> None:
            if action is not None and not session.quiet:
                try:
                    action()
                except Exception as error:  # noqa: BLE001 - fail open
                    session.fail(error)

        def wrap(original: Any) -> Any:
            @functools.wraps(original)
            def method(*args: Any, **kwargs: Any) -> Any:
                note(before)
                try:
                    return original(*args, **kwargs)
                finally:
                    note(after)

            return method

        self._patches.replace(owner, name, wrap)

    def _loop_begins(self) -> None:
        self._loops += 1
        if self.session.tracker.claim(KERAS):
            self.session.lead(self)

    def _loop_ends(self) -> None:
        self._loops -= 1
        if self._loops == 0:
            self.session.tracker.release(KERAS)

    def _batch_begins(self, mode: ModeKeys) -> None:
        tracker = self.session.tracker
        if tracker.owner == KERAS:
            tracker.begin_step(perf_counter_ns(), gradients=mode is ModeKeys.TRAIN, mode=mode)

    def _batch_ends(self) -> None:
        tracker = self.session.tracker
        if tracker.owner == KERAS:
            tracker.end_step(perf_counter_ns())
