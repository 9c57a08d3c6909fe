"""Modes of a step, and the names of their events."""

from enum import Enum

from sm_profiler.formats import event_names


class ModeKeys(Enum):
    """Purpose of a step; the names are smdebug's."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4

    __hash__ = object.__hash__  # Enum's own is a Python function, which would run several times a step


STEP = {mode: f"{event_names.STEP}.{mode.name}" for mode in ModeKeys}
