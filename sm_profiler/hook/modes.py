"""Modes of a step, and the names of their events."""

from enum import Enum

from sm_profiler.formats import event_names


class ModeKeys(Enum):
    """What a step is for; the names are those of the old library."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4

    __hash__ = object.__hash__  # Enum's own is a call of a Python function, several times a step


STEP = {mode: f"{event_names.STEP}.{mode.name}" for mode in ModeKeys}
