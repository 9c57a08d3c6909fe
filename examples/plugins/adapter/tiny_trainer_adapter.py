"""Marks the steps of tiny_trainer."""

import functools
from time import perf_counter_ns

import tiny_trainer

from sm_profiler.hook.adapter import FrameworkAdapter
from sm_profiler.hook.patches import Patches


class TinyTrainerAdapter(FrameworkAdapter):
    framework = "tiny_trainer"

    def __init__(self, session):
        self.session = session
        self._patches = Patches(session.fail)

    def install(self):
        self._patches.replace(tiny_trainer.Trainer, "train_step", self._marked)

    def remove(self):
        self._patches.remove()

    def _marked(self, original):
        session, tracker = self.session, self.session.tracker

        @functools.wraps(original)
        def train_step(trainer, batch):
            try:  # nothing that goes wrong here may stop the training
                if tracker.claim(self.framework):
                    session.lead(self)
                tracker.begin_step(perf_counter_ns(), gradients=True)
            except Exception as error:
                session.fail(error)
            try:
                return original(trainer, batch)
            finally:
                try:
                    tracker.end_step(perf_counter_ns())
                except Exception as error:
                    session.fail(error)

        return train_step
