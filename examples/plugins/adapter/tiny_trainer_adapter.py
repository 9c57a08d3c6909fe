"""Marks the steps of tiny_trainer."""

from time import perf_counter_ns

import tiny_trainer

from sm_profiler.hook.adapter import FrameworkAdapter
from sm_profiler.hook.patches import Patches


class TinyTrainerAdapter(FrameworkAdapter):
    framework = "tiny_trainer"

    def __init__(self, session):
        self.session = session
        self._patches = Patches(session.fail)  # takes all errors of _begins and _ends: none may stop the training

    def install(self):
        self._patches.around(tiny_trainer.Trainer, "train_step", self._begins, self._ends)

    def remove(self):
        self._patches.remove()

    def _begins(self, _trainer, _batch):
        tracker = self.session.tracker
        if tracker.claim(self.framework):
            self.session.lead(self)
        tracker.begin_step(perf_counter_ns(), gradients=True)
        return True

    def _ends(self, _begun, _result, _error):
        self.session.tracker.end_step(perf_counter_ns())
