"""Marks the steps of tiny_trainer, and records its saves."""

from functools import partial
from time import perf_counter_ns

import tiny_trainer

from sm_profiler.hook.adapter import FrameworkAdapter
from sm_profiler.hook.patches import Patches


class TinyTrainerAdapter(FrameworkAdapter):
    framework = "tiny_trainer"

    def __init__(self, session):
        self.session = session
        self._patches = Patches(partial(session.adapter_failed, self))  # an error switches off this adapter alone

    def install(self):
        self._patches.around(tiny_trainer.Trainer, "train_step", self._step_begins, self._step_ends)
        self._patches.around(tiny_trainer.Trainer, "save", self._save_begins, self._save_ends)

    def remove(self):
        self._patches.remove()
        self.session.tracker.release(self.framework)

    def _step_begins(self, *_args, **_kwargs):
        tracker = self.session.tracker
        if self.session.quiet or tracker.owner not in ("", self.framework) or not tracker.claim(self.framework):
            return None  # the script, or another framework, marks the steps
        self.session.lead(self)
        tracker.begin_step(perf_counter_ns(), gradients=True)
        return True  # None calls no `_step_ends`

    def _step_ends(self, _begun, _result, _error):
        if self.session.tracker.owner == self.framework:
            self.session.tracker.end_step(perf_counter_ns())

    def _save_begins(self, *_args, **_kwargs):
        return None if self.session.quiet else perf_counter_ns()

    def _save_ends(self, start_ns, _result, _error):
        self.session.append_span("save of tiny_trainer", start_ns, perf_counter_ns())
