"""Estimate what the repair of each finding saves, with an interval, so that no second is claimed twice.

A repair's model (`models`) states a claim: seconds of each step that it saves, and how far the model may be off. The
claims are allocated in the order of the findings (`allocation`): a later one gets only time that the earlier ones left.
"""

from sm_profiler.report.gains.allocation import with_gains
from sm_profiler.report.gains.loop_table import LoopTable, loop_table, row_keys
from sm_profiler.report.gains.prediction import Prediction, compute_seconds, predictions
from sm_profiler.report.gains.wording import gain_of_finding, gain_sentence

__all__ = [
    "LoopTable",
    "Prediction",
    "compute_seconds",
    "gain_of_finding",
    "gain_sentence",
    "loop_table",
    "predictions",
    "row_keys",
    "with_gains",
]
