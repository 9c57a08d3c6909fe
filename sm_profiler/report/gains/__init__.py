"""Texts of gains, the model of the loader's queue, and what came of predictions."""

from sm_profiler.report.gains.prediction import Prediction, compute_seconds, predictions
from sm_profiler.report.gains.wording import gain_of_finding, gain_sentence

__all__ = ["Prediction", "compute_seconds", "gain_of_finding", "gain_sentence", "predictions"]
