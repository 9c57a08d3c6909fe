"""Where a GPU's own times of the phases were recorded, the loop is looked at as that GPU saw it.

The host only launches: it is through with a forward pass before the GPU has begun it, and the time that the GPU takes shows
up wherever the host next asks for a result.  And what the host waits for while the GPU still has work costs nothing.
"""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.report import policy
from sm_profiler.report.step_fold import (
    BACKWARD,
    DEVICE_BACKWARD,
    DEVICE_FORWARD,
    DEVICE_OPTIMIZER,
    FORWARD,
    OPTIMIZER,
    TRAIN,
    WAIT,
    StepRows,
)

HOST = [FORWARD, BACKWARD, OPTIMIZER]
DEVICE = [DEVICE_FORWARD, DEVICE_BACKWARD, DEVICE_OPTIMIZER]


def as_the_device_saw(steps: StepRows) -> StepRows | None:
    """The steps with the device's phases in place of the host's, and of the waits what the device waited, too.

    A step whose phases on the device were not recorded has none.  None where too few steps have them to judge from.
    """
    train = steps.mode == TRAIN
    device: Floats = steps.parts[:, DEVICE].sum(axis=1)
    known = device > 0
    if np.count_nonzero(known & train) < policy.MIN_STEPS.value:
        return None
    parts = steps.parts.copy()
    parts[:, HOST] = parts[:, DEVICE]
    ends = steps.end
    length = np.diff(ends, prepend=ends[0] - steps.duration[0])
    idle = np.where(known, np.maximum(length - device, 0.0), 0.0)
    parts[:, WAIT] = np.minimum(parts[:, WAIT], idle)
    return attrs.evolve(steps, parts=parts)
