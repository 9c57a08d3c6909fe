"""Inputs of models in training: samples, calls, and how large they are over the course of the steps."""

from __future__ import annotations

import math
from typing import Any

COURSE = 64  # steps whose input's size is kept, at most


class ModelInputs:
    """Counts the inputs of models in training steps.

    Attributes:
        samples: samples so far: the first dimension of each input.
        calls: inputs so far.
        sizes: (step, elements of its first input) of steps that are spread evenly over the training.
    """

    def __init__(self) -> None:
        self.samples = self.calls = 0
        self.sizes: list[tuple[int, int]] = []
        self._steps = 0  # with an input,
        self._last = -1  # the last of which is this
        self._apart = 1  # steps from one size to the next

    def see(self, shape: Any, step: int) -> None:
        """Count the input of a call, unless it has no shape of numbers."""
        if not shape or type(shape[0]) is not int:
            return
        self.samples += shape[0]
        self.calls += 1
        if step != self._last:
            self._steps += 1
            self._last = step
            if not self.sizes or step >= self.sizes[-1][0] + self._apart:
                self._keep(step, math.prod(shape))

    def _keep(self, step: int, elements: int) -> None:
        self.sizes.append((step, elements))
        if len(self.sizes) > COURSE:
            del self.sizes[1::2]
            self._apart *= 2

    def per_step(self, count: int) -> float | None:
        """Return a count divided by the steps with an input; None if none was seen."""
        return round(count / self._steps, 3) if self._steps else None
